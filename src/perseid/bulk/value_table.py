"""Tables with one row for each value, which express every record exactly.

    handle, state, index, type, data, format, permissions, ttl, timestamp, references, created, owner

Consecutive rows with the same handle are one record; a row with neither index nor type is a record without values.
Nothing is trimmed. `format` is
`string` for text, `text` for the natural form of a type (`200:0.NA/12345` for HS_ADMIN), or `base64`. `ttl` is a number
of seconds, an ISO time, or `TYPE:NUMBER` for an unusual TTL type. `references` are `INDEX:HANDLE`, with commas between.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from perseid.names.suggest import nearest
from perseid.records.admin import ValueList
from perseid.records.data_types import BASE64_PREFIX, data_from_text, data_to_text
from perseid.records.encoding import decode_printable, require_int, to_base64, to_iso
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.json_form import FORMATS
from perseid.records.record import MAX_VALUES, TtlType, Value
from perseid.records.types import get_base_type
from perseid.registry.advice import AdviceKind
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from perseid.schema.records import Data, Reference, ValueInput

from .formats import (
    PROBLEM_COLUMNS,
    ColumnUse,
    ReadOptions,
    Row,
    RowReader,
    UnknownColumns,
    check_state,
    invalid_file,
    shorten,
)
from .tables import Table, unquote_cell

VALUE_COLUMNS: Final = (
    *("handle", "state", "index", "type", "data", "format", "permissions", "ttl", "timestamp", "references"),
    *("created", "owner"),
)
"""The columns, in the order in which they are written."""

_TTL: Final = re.compile(r"([0-9]{1,3}):(-?[0-9]{1,20})")
_PERMISSIONS: Final = re.compile("[01]{4}([01]{4})?")
_NUMBER: Final = re.compile("-?[0-9]{1,19}")
_DIGITS: Final = re.compile("-?[0-9]{1,10}")
_PERMISSION_TEXTS: Final = [f"{bits:0{4 if bits <= 0x0F else 8}b}" for bits in range(0x100)]
_CACHED: Final = 1_024
_MAX_CACHED: Final = 512  # bytes of data that may occur in many records, such as administrators
_TEXT_FORMATS: Final = ("", "string")


def is_value_table(header: Sequence[str], mapping: Mapping[str, str]) -> bool:
    """Whether a table has one row for each value: columns with these names, none of which has another meaning."""
    names = [name.lower() for name in header]
    is_mapped = any(name.lower() in VALUE_COLUMNS or meaning != "-" for name, meaning in mapping.items())
    return "type" in names and "data" in names and "handle" in names and not is_mapped


def read_value_table(table: Table, options: ReadOptions) -> RowReader:
    """The records of a table with one row for each value."""
    names = [name.lower() for name in table.header]
    ignored = {*PROBLEM_COLUMNS, *[name.lower() for name in options.columns]}
    known = {*VALUE_COLUMNS, *ignored}
    if missing := next((name for name in options.columns if name.lower() not in names), ""):
        message = f"The file does not have the column {missing!r}, which was given a meaning."
        raise invalid_file("missing-column", message, f"Its columns are: {', '.join(table.header)}.", column=missing)
    if unknown := [name for name, folded in zip(table.header, names, strict=True) if folded not in known]:
        meant = {name: nearest(name.lower(), VALUE_COLUMNS) for name in unknown}
        raise UnknownColumns(meant, AdviceKind.IGNORE_COLUMN(column=unknown[0]))
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise invalid_file("duplicate-column", f"There are two columns {repeated!r}.", column=repeated)
    if options.mint:
        raise invalid_file("handle-not-empty", "The table has handles, but handles are minted.", AdviceKind.OMIT_MINT())
    uses = tuple([ColumnUse(name, "-" if name in ignored else name) for name in names])
    detected = msgspec.structs.replace(table.detected, columns=uses)
    positions = [names.index(name) if name in names else len(names) for name in VALUE_COLUMNS]
    return RowReader(detected, _group(table, positions, raw=options.raw), table.header)


def value_rows(
    handle: str, state: str, values: Sequence[Value], *, created: str = "", owner: str = ""
) -> list[tuple[str, ...]]:
    """The rows of a record."""
    if not values:
        return [(handle, state, *[""] * 8, created, owner)]
    return [
        (
            handle,
            state,
            str(value.index),
            value.type,
            *_format_data(value),
            _PERMISSION_TEXTS[value.permissions],
            _format_ttl(value),
            _format_time(value.timestamp) if value.timestamp else "",
            ValueList(value.references).to_text() if value.references else "",
            created,
            owner,
        )
        for value in values
    ]


def _format_data(value: Value) -> tuple[str, str]:
    if _is_structured(value.type):
        return (_cached_structure if len(value.data) <= _MAX_CACHED else _format_structure)(value.type, value.data)
    printable = decode_printable(value.data)
    return (to_base64(value.data), "base64") if printable is None else (printable, "string")


@lru_cache(_CACHED)
def _is_structured(type_: str) -> bool:
    return get_base_type(type_) in FORMATS


def _format_structure(type_: str, data: bytes) -> tuple[str, str]:
    text = data_to_text(Value(1, type_, data))
    return (text.removeprefix(BASE64_PREFIX), "base64") if text.startswith(BASE64_PREFIX) else (text, "text")


_cached_structure = lru_cache(_CACHED)(_format_structure)


def _format_ttl(value: Value) -> str:
    if value.ttl_type is TtlType.RELATIVE:
        return str(value.ttl)
    text = _format_time(value.ttl) if value.ttl_type.value == TtlType.ABSOLUTE else ""
    return text if "T" in text else f"{int(value.ttl_type)}:{value.ttl}"


def _format_time(instant: int) -> str:
    try:
        return to_iso(instant)
    except RecordMisuse:
        return str(instant)


def _group(table: Table, positions: list[int], *, raw: bool) -> Iterator[Row]:
    """Join consecutive rows with the same handle."""
    group: list[tuple[int, list[str]]] = []
    for row in table.rows:
        if isinstance(row, RowProblem):
            if group:
                yield from _read_group(group)
                group = []
            yield row
            continue
        line, found = row
        found.append("")  # of the columns that the table does not have
        cells = [found[position] for position in positions]
        if not raw:
            cells = [unquote_cell(cell) if cell[:1] == "'" else cell for cell in cells]
        if group and group[0][1][0] != cells[0]:
            yield from _read_group(group)
            group = []
        group.append((line, cells))
        if len(group) > MAX_VALUES:
            message = f"The record has more than {MAX_VALUES:,} values."
            raise invalid_file("too-many-values", message, line=line)
    if group:
        yield from _read_group(group)


def _read_group(group: list[tuple[int, list[str]]]) -> Iterator[Row]:
    """One record, or problems for all its rows, so that a report has all of them."""
    values: list[ValueInput] = []
    problems: dict[int, RowProblem] = {}
    first, head = group[0]
    state = head[1].strip().lower()
    if not head[0].strip():
        problems[first] = RowProblem(first, "handle", "", "missing-handle", "The handle is missing.")
    elif state and (invalid := check_state(first, "state", state)):
        problems[first] = invalid
    for line, cells in group:
        if not cells[3] and not cells[2]:
            if len(group) > 1 or any(cells[4:10]):
                problems.setdefault(line, RowProblem(line, "type", "", "missing-type", "The type is missing."))
            continue
        try:
            values.append(_read_value(cells))
        except _InvalidCell as problem:
            problems.setdefault(
                line, RowProblem(line, problem.column, shorten(problem.value), problem.rule, str(problem))
            )
    if not problems:
        yield ImportRow(
            first, RowOperation.CREATE, head[0], tuple(values), (), (), state, head[10].strip(), head[11].strip()
        )
        return
    for line, _ in group:
        if line in problems:
            yield problems[line]
        else:
            message = "Another row of the record is invalid."
            yield RowProblem(line, "handle", shorten(head[0]), "invalid-record", message, "No change is needed here.")


class _InvalidCell(Exception):
    def __init__(self, column: str, value: str, rule: str, message: str) -> None:
        super().__init__(message)
        self.column = column
        self.value = value
        self.rule = rule

    def at(self, line: int) -> RowProblem:
        return RowProblem(line, self.column, shorten(self.value), self.rule, str(self))


def _read_value(cells: list[str]) -> ValueInput:
    index, type_, data, format_, permissions, ttl, timestamp, references = cells[2:10]
    if index and not _DIGITS.fullmatch(index):
        raise _InvalidCell("index", index, "invalid-index", "The index is not a number.")
    if permissions and not _PERMISSIONS.fullmatch(permissions):
        raise _InvalidCell(
            "permissions", permissions, "invalid-permissions", "Permissions are four digits, as in 1110."
        )
    ttl_type: int | None = None
    lifetime: int | str | None = ttl or None
    if match := _TTL.fullmatch(ttl):
        ttl_type, lifetime = int(match[1]), int(match[2])
    elif _DIGITS.fullmatch(ttl):
        lifetime = int(ttl)
    try:
        entries = ValueList.from_text(references).entries if references else ()
        for entry in entries:
            require_int(entry.index, "the index")
    except InvalidData as problem:
        raise _InvalidCell(
            "references", references, "invalid-references", f"The references are invalid: {problem}."
        ) from None
    return ValueInput(
        type_,
        _read_data(type_, data, format_),
        int(index) if index else None,
        permissions or None,
        lifetime,
        ttl_type,
        tuple([Reference(entry.handle, entry.index) for entry in entries]) or None,
        _read_time(timestamp) if timestamp else None,
    )


def _read_time(text: str) -> int | str:
    return int(text) if _NUMBER.fullmatch(text) else text


def _read_data(type_: str, data: str, format_: str) -> Data:
    if format_ in _TEXT_FORMATS:
        return Data("string", data)
    if format_ == "base64":
        return Data("base64", data)
    if format_ != "text":
        raise _InvalidCell("format", format_, "unknown-format", "The format is not string, text or base64.")
    try:
        return (_cached_encoding if len(data) <= _MAX_CACHED else _encode_structure)(type_, data)
    except InvalidData as problem:
        raise _InvalidCell("data", data, "invalid-data", f"{shorten(type_)}: {problem}.") from None


def _encode_structure(type_: str, text: str) -> Data:
    return Data("base64", to_base64(data_from_text(type_, text)))


_cached_encoding = lru_cache(_CACHED)(_encode_structure)
