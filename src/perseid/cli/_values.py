"""Values on the command line: `[INDEX:]TYPE[!private]=DATA`, or a whole record in JSON.

DATA is text, `@FILE` (the bytes of a file; `@-` is standard input) or `base64:…`. Structured types have a text form:
`HS_ADMIN=200:0.NA/12345:add_value,modify_value`, `HS_VLIST=300:0.NA/12345,301:0.NA/12345`. `TYPE!private` is readable
by administrators only, `TYPE!public` by everyone. A value without an index gets a free one: see
`perseid.registry.commands.records`.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from perseid.names.errors import quote_text
from perseid.records.binary import MAX_BYTES
from perseid.records.data_types import check_data_length, data_from_text, data_to_text
from perseid.records.encoding import MAX_JSON_BYTES, parse_json
from perseid.records.errors import InvalidData
from perseid.records.json_form import values_from_json
from perseid.records.record import DEFAULT_PERMISSIONS, PRIVATE_PERMISSIONS, Value
from perseid.records.types import HS_SECKEY, URL, has_type
from perseid.registry.commands.records import PartialValue

FILE_PREFIX: Final = "@"
STANDARD_INPUT: Final = "-"

_SYNTAX = "[INDEX:]TYPE=DATA, as in URL=https://example.org/ or 2:EMAIL=help@example.org"
_VALUE = re.compile(r"(?:(?P<index>[0-9]{1,10}):)?(?P<type>[^=!]+)(?:!(?P<mark>[^=]*))?=(?P<data>.*)", re.DOTALL)
_PERMISSIONS = {"private": PRIVATE_PERMISSIONS, "public": DEFAULT_PERMISSIONS}
_MAX_INDEX = 0x7FFF_FFFF

ValueOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="[INDEX:]TYPE=DATA",
        help="A value of the record; repeatable. DATA is text, @FILE or base64:…; TYPE!private hides it.",
    ),
]
UrlOption: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The target; short for --value URL=…")
]
ValueArguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[INDEX:]TYPE=DATA...", help="Values. DATA is text, @FILE or base64:…; TYPE!private hides it."
    ),
]
FromOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE", help="A whole record in JSON, as printed by `resolve --json`; - is standard input."
    ),
]


def parse_value(text: str) -> PartialValue:
    """Parse `[INDEX:]TYPE=DATA`."""
    match = _VALUE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{quote_text(text)} is not a value; use {_SYNTAX}")
    type_, mark = match["type"].strip(), match["mark"]
    if mark is not None and mark not in _PERMISSIONS:
        raise typer.BadParameter(f"{quote_text(mark)} is not allowed after a type; use !private or !public")
    index = None if match["index"] is None else int(match["index"])
    if not type_ or ":" in type_ or (index is not None and not 0 < index <= _MAX_INDEX):
        raise typer.BadParameter(f"{quote_text(text)} is not a value: an index is a number from 1; use {_SYNTAX}")
    try:
        data = _parse_data(type_, match["data"])
    except InvalidData as problem:
        raise typer.BadParameter(f"{quote_text(type_)}: {problem}") from problem
    return PartialValue(type_, data, index, _PERMISSIONS[mark] if mark else None)


def parse_values(texts: Iterable[str] | None, url: str | None = None) -> tuple[PartialValue, ...]:
    """Parse the values of a command."""
    first = () if url is None else (PartialValue(URL, _parse_data(URL, url)),)
    return (*first, *[parse_value(text) for text in texts or ()])


def read_record(path: str) -> tuple[Value, ...]:
    """Read the values of a JSON record from a file or standard input: `{"values": […]}`, an array, or one value."""
    raw = _read_bytes(path, MAX_JSON_BYTES)
    return values_from_json(parse_json(raw))


def read_text(path: str) -> str:
    """Read a text in UTF-8 from a file or standard input."""
    raw = _read_bytes(path, MAX_JSON_BYTES)
    try:
        return raw.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise InvalidData(f"{quote_text(path)} is not UTF-8 at byte {error.start + 1}") from None


def format_data(value: Value) -> str:
    """Format the data of a value on one line; hide secrets."""
    if has_type(value.type, HS_SECKEY):
        return "(secret; --json shows it)"
    return printable(data_to_text(value))


def printable(text: str) -> str:
    """Escape line breaks and everything that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _parse_data(type_: str, text: str) -> bytes:
    if text.startswith(FILE_PREFIX):
        return check_data_length(_read_bytes(text.removeprefix(FILE_PREFIX), MAX_BYTES))
    return data_from_text(type_, text)


def _read_bytes(path: str, limit: int) -> bytes:
    """Read a file or standard input; one byte more than `limit` shows that it is too long."""
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(limit + 1)
    with Path(path).open("rb") as file:
        return file.read(limit + 1)
