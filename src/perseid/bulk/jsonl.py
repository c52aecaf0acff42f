"""JSON lines: one record on each line, in the lossless form of records.

    {"handle": "12345/x", "state": "published", "values": [{"index": 1, "type": "URL", "data": {…}, "ttl": 86400, …}]}

Values are as in `perseid.records.json_form`. `created` and `owner` are written if they are known. What else a response
of the API says about a record (`seq`, `changed`, `as_of`) is ignored, and so are the `problems` of a report. An export
with history has one line for each version, with `action`: it is refused, because no version would be the record.

A bare string as data is that text: nothing in a file is read from other files.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Final

import msgspec

from perseid.records.encoding import JsonObject, locate_json_error
from perseid.records.json_form import value_to_json
from perseid.records.record import MAX_VALUES, Value
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from perseid.schema.records import Data, Reference, ValueInput

from .formats import Detected, Format, ReadOptions, Row, RowReader, check_state, find_handle, invalid_file, shorten

MAX_LINE: Final = 32 * 1_048_576
"""Bytes of the longest line: a record of the maximum size, in which a byte takes at most ten of JSON."""

MAX_ITEMS: Final = 1_000_000
"""Members, items and containers of one record, each of which takes some 100 bytes of memory: records have thousands."""

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.?)*+(?:"|$)', re.DOTALL)  # also one without an end


class _JsonReference(msgspec.Struct, frozen=True):
    handle: str
    index: int


class _JsonValue(msgspec.Struct, frozen=True, rename={"ttl_type": "ttlType"}):
    """A value as in a file; looser than a request, because stored values can be what requests must not have."""

    type: str
    data: str | Data
    index: int | None = None
    permissions: str | None = None
    ttl: int | str | None = None
    ttl_type: int | None = None
    references: tuple[_JsonReference, ...] | None = None
    timestamp: int | str | None = None


class _JsonRecord(msgspec.Struct, frozen=True):
    """A record of another server, which may have other members."""

    handle: str = ""
    values: tuple[_JsonValue, ...] = ()
    state: str = ""
    created: str = ""
    owner: str = ""


class _OwnRecord(_JsonRecord, frozen=True, forbid_unknown_fields=True):
    """A record in our form; unknown members are refused, to catch typos."""

    seq: msgspec.Raw = msgspec.Raw()
    changed: msgspec.Raw = msgspec.Raw()
    as_of: msgspec.Raw = msgspec.Raw()
    problems: msgspec.Raw = msgspec.Raw()


class _Version(msgspec.Struct, frozen=True):
    """A version of a record, in an export with history."""

    action: str
    seq: int


_DECODER: Final = msgspec.json.Decoder(_OwnRecord)
_LENIENT_DECODER: Final = msgspec.json.Decoder(_JsonRecord)
_VERSION_DECODER: Final = msgspec.json.Decoder(_Version)
_ENCODER: Final = msgspec.json.Encoder()


def read_jsonl(file: BinaryIO, options: ReadOptions | None = None) -> RowReader:
    """The rows of a file of JSON lines."""
    return RowReader(Detected(Format.JSONL, "UTF-8"), _read(file, options or ReadOptions()))


def _read(file: BinaryIO, options: ReadOptions) -> Iterator[Row]:
    number = 0
    while text := file.readline(MAX_LINE + 1):
        number += 1
        if len(text) > MAX_LINE:
            message = f"The line has more than {MAX_LINE:,} bytes."
            raise invalid_file("line-too-long", message, "Each line must contain one record.", number)
        if number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if not text.isspace() and text:
            yield parse_record(text, number, options)


def parse_record(text: bytes, line: int, options: ReadOptions | None = None, handle: str = "") -> Row:
    """Parse a record in JSON; with a `handle`, one of another server, which may be without it."""
    if problem := find_many_items(text):
        return _problem(line, "", text, "too-many-values", problem)
    try:
        record = (_LENIENT_DECODER if handle else _DECODER).decode(text)
    except (msgspec.ValidationError, RecursionError) as error:
        _refuse_version(text, line)
        path = str(error) if isinstance(error, msgspec.ValidationError) else "it is nested too deeply"
        return _problem(line, "", text, "invalid-record", f"The record is invalid: {shorten(path)}.")
    except (msgspec.DecodeError, UnicodeError):
        return _problem(line, "", text, "invalid-json", f"The line is invalid JSON{locate_json_error(text)}.")
    return _to_row(record, line, options or ReadOptions(), handle)


def _refuse_version(text: bytes, line: int) -> None:
    """Refuse a file with a history: its newest versions come first, and some are of records that were deleted."""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
        _VERSION_DECODER.decode(text)
        message = "The file has every version of its records, which cannot be imported."
        raise invalid_file("history", message, "Export the records without their history.", line)


def find_many_items(text: bytes) -> str:
    """Say why a text is not parsed: it would take far more memory. Empty if it is parsed."""
    if len(text) <= MAX_ITEMS or _count_items(text) <= MAX_ITEMS or _count_items(_STRING.sub(b"", text)) <= MAX_ITEMS:
        return ""
    return describe_many_items()


def describe_many_items() -> str:
    """Say why a record with more than `MAX_ITEMS` items is refused."""
    return f"The record has more than {MAX_ITEMS:,} items."


def _count_items(text: bytes) -> int:
    """Count what separates or starts items, also in strings."""
    return sum([text.count(character) for character in (b",", b"[", b"{")])


def make_row(handle: str, values: Iterable[Value], line: int = 0, state: str = "") -> ImportRow:
    """Make the row that creates a record exactly, for sources that are not files."""
    inputs = tuple([_to_input(msgspec.convert(value_to_json(value), _JsonValue)) for value in values])
    return ImportRow(line, RowOperation.CREATE, handle, inputs, state=state)


def _to_row(record: _JsonRecord, line: int, options: ReadOptions, handle: str) -> Row:
    found = find_handle(line, record.handle or handle, "handle", options)
    if isinstance(found, RowProblem):
        return found
    state = record.state
    if state and (problem := check_state(line, "state", state)):
        return problem
    if len(record.values) > MAX_VALUES:
        message = f"The record has {len(record.values):,} values; the maximum is {MAX_VALUES:,}."
        return _problem(line, "values", "", "too-many-values", message)
    values = tuple([_to_input(value) for value in record.values])
    return ImportRow(line, *found, values, (), (), state, record.created, record.owner)


def _to_input(value: _JsonValue) -> ValueInput:
    data = value.data if isinstance(value.data, Data) else Data("string", value.data)
    return ValueInput(
        value.type,
        data,
        value.index,
        value.permissions,
        value.ttl,
        value.ttl_type,
        tuple([Reference(each.handle, each.index) for each in value.references]) if value.references else None,
        value.timestamp,
    )


def format_record(
    handle: str,
    state: str,
    values: Iterable[Value],
    *,
    created: str = "",
    owner: str = "",
) -> bytes:
    """Format a record as a line."""
    record: JsonObject = {"handle": handle, "state": state}
    if created:
        record["created"] = created
    if owner:
        record["owner"] = owner
    record["values"] = [value_to_json(value) for value in values]
    return _ENCODER.encode(record) + b"\n"


def format_problem(text: bytes, problems: Sequence[RowProblem]) -> bytes:
    """Format the line of a report: the record as it was, with its problems; text that is not an object stays."""
    try:
        record = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError):
        record = {"problems": msgspec.Raw(b"[]")}
    return _ENCODER.encode({**record, "problems": problems}) + b"\n"


def _problem(line: int, column: str, value: str | bytes, rule: str, message: str, fix: str = "") -> RowProblem:
    text = value if isinstance(value, str) else value[:1_000].decode("utf-8", "replace").strip()
    return RowProblem(line, column, shorten(text), rule, message, fix)
