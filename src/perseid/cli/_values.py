"""Values as people type them: `[INDEX:]TYPE[!private]=DATA`, or a whole record in JSON.

DATA is text, `@FILE` (the octets of a file, `@-` of standard input) or `base64:…`; for structured types it is what
people write of them: `HS_ADMIN=200:0.NA/12345:add_value,modify_value`, `HS_VLIST=300:0.NA/12345,301:0.NA/12345`. Behind
the type `!private` makes a value that administrators read, and `!public` one that everybody does.

Where no index is given a free one is chosen: see `perseid.registry.commands.records`.

How commands read: what was given as an argument, or with `-` every line of standard input.
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
from perseid.records.errors import InvalidData
from perseid.records.json_form import values_from_json
from perseid.records.json_parsing import MAX_JSON_BYTES, parse_json
from perseid.records.types import HS_SECKEY, URL, has_type
from perseid.records.value import DEFAULT_PERMISSIONS, Permission, Value
from perseid.registry.commands.records import PartialValue

FILE_PREFIX: Final = "@"
STANDARD_INPUT: Final = "-"
PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
"""The permissions of a value that administrators alone may read."""

_SYNTAX = "[INDEX:]TYPE=DATA, as in URL=https://example.org/ or 2:EMAIL=help@example.org"
_VALUE = re.compile(r"(?:(?P<index>[0-9]{1,10}):)?(?P<type>[^=!]+)(?:!(?P<mark>[^=]*))?=(?P<data>.*)", re.DOTALL)
_PERMISSIONS = {"private": PRIVATE, "public": DEFAULT_PERMISSIONS}
_MAX_INDEX = 0x7FFF_FFFF

ValueOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="[INDEX:]TYPE=DATA",
        help="A value of the record; may be repeated. DATA is text, @FILE or base64:…; TYPE!private hides it.",
    ),
]
UrlOption: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Where the thing is: short for --value URL=…")
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
        "--from", metavar="FILE", help="A whole record in JSON, as `resolve --json` prints it; - is standard input."
    ),
]


def parse_value(text: str) -> PartialValue:
    """Take `[INDEX:]TYPE=DATA`."""
    found = _VALUE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{quote_text(text)} is no value; write {_SYNTAX}")
    type_, mark = found["type"].strip(), found["mark"]
    if mark is not None and mark not in _PERMISSIONS:
        raise typer.BadParameter(f"{quote_text(mark)} is not known behind a type; there are !private and !public")
    index = None if found["index"] is None else int(found["index"])
    if not type_ or ":" in type_ or (index is not None and not 0 < index <= _MAX_INDEX):
        raise typer.BadParameter(f"{quote_text(text)} is no value: an index is a number from 1 on; write {_SYNTAX}")
    try:
        data = _parse_data(type_, found["data"])
    except InvalidData as problem:
        raise typer.BadParameter(f"{quote_text(type_)}: {problem}") from problem
    permissions = _PERMISSIONS[mark] if mark else PRIVATE if has_type(type_, HS_SECKEY) else None
    return PartialValue(type_, data, index, permissions)


def parse_values(texts: Iterable[str] | None, url: str | None = None) -> tuple[PartialValue, ...]:
    """Take the values of a command."""
    first = () if url is None else (PartialValue(URL, _parse_data(URL, url)),)
    return (*first, *[parse_value(text) for text in texts or ()])


def read_record(path: str) -> tuple[Value, ...]:
    """The values of a record in JSON, from a file or standard input: `{"values": […]}`, an array, or one value."""
    raw = _read_bytes(path, MAX_JSON_BYTES)
    return values_from_json(parse_json(raw))


def read_text(path: str) -> str:
    """A text in UTF-8, from a file or standard input."""
    raw = _read_bytes(path, MAX_JSON_BYTES)
    try:
        return raw.decode("utf-8-sig")  # some editors write a mark before the first line
    except UnicodeDecodeError as error:
        raise InvalidData(f"{quote_text(path)} is not UTF-8: octet {error.start + 1}") from None


def format_data(value: Value) -> str:
    """The data of a value on one line for people; secrets are not shown."""
    if has_type(value.type, HS_SECKEY):
        return "(secret; --json shows it)"
    return printable(data_to_text(value))


def printable(text: str) -> str:
    """A text on one line, without anything that a terminal would act upon."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _parse_data(type_: str, text: str) -> bytes:
    if text.startswith(FILE_PREFIX):
        return check_data_length(_read_bytes(text.removeprefix(FILE_PREFIX), MAX_BYTES))
    return data_from_text(type_, text)


def _read_bytes(path: str, limit: int) -> bytes:
    """What is in a file, or in standard input; one octet more than is allowed shows that it is too long."""
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(limit + 1)
    with Path(path).open("rb") as file:
        return file.read(limit + 1)
