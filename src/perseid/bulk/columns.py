"""What the columns of a table mean, and rows from their cells.

A header is one of the well-known words (`handle`, `url`, `title`, …, in any case), or a type with options:

    [INDEX:]TYPE[!private|!PERMISSIONS][!ttl=SECONDS][!base64]

as in `URL`, `2:EMAIL!private` or `10320/loc!ttl=300`. Other columns are refused by name, never stored as types; a
mapping (`--map COLUMN=TYPE`) gives them a meaning, and `COLUMN=-` ignores them. Several columns can have the same
type. An empty cell gives no value.

A table with the columns `type` and `data` has one row for each value: see `value_table`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from perseid.names.suggest import nearest
from perseid.records import types
from perseid.records.data_types import data_from_text
from perseid.records.encoding import to_base64
from perseid.records.errors import InvalidData
from perseid.records.json_form import FORMATS
from perseid.registry.advice import AdviceKind
from perseid.schema.imports import ImportRow, RowProblem
from perseid.schema.records import Data, ValueInput

from .anvl import detect_profile, read_service_table
from .formats import (
    PROBLEM_COLUMNS,
    ColumnUse,
    ReadOptions,
    Row,
    RowReader,
    TypeCheck,
    UnknownColumns,
    advise_columns,
    check_state,
    find_handle,
    invalid_file,
    shorten,
)
from .tables import Table, TableRow, unquote_cell
from .value_table import is_value_table, read_value_table

HANDLE: Final = "handle"
STATE: Final = "state"
CREATED: Final = "created"
UPDATED: Final = "updated"
OWNER: Final = "owner"
IGNORED: Final = "-"

WELL_KNOWN: Final[Mapping[str, str]] = {
    **dict.fromkeys((HANDLE, "handles", "identifier", "pid", "hdl", "handle id", "persistent identifier"), HANDLE),
    **dict.fromkeys(("url", "target", "target url", "location", "link", "uri", "landing page"), types.URL),
    **dict.fromkeys(("email", "e-mail", "mail"), types.EMAIL),
    **dict.fromkeys(("desc",), types.DESC),
    "title": "TITLE",
    "description": "DESCRIPTION",
    **dict.fromkeys(("author", "authors"), "AUTHOR"),
    **dict.fromkeys(("creator", "creators"), "CREATOR"),
    "publisher": "PUBLISHER",
    **dict.fromkeys(("date", "publication date"), "DATE"),
    "abstract": "ABSTRACT",
    **dict.fromkeys((STATE, "status"), STATE),
    **dict.fromkeys((CREATED, "created at", "date created"), CREATED),
    **dict.fromkeys((UPDATED, "updated at", "timestamp", "modified"), UPDATED),
    OWNER: OWNER,
    **dict.fromkeys([name.replace("_", " ") for name in PROBLEM_COLUMNS], IGNORED),
}
"""The meaning of usual headers, folded."""

KNOWN_TYPES: Final = frozenset(
    {
        *(types.URL, types.EMAIL, types.DESC, "INET_HOST", "URN", types.LOCATIONS, types.DEFINITION),
        *(types.HS_ADMIN, types.HS_VLIST, types.HS_PUBKEY, types.HS_SITE, types.HS_NA_DELEGATE, types.HS_SERV),
        *(types.HS_ALIAS, types.HS_NAMESPACE, types.HS_SECKEY, types.HS_SIGNATURE, types.HS_CERT),
        *("TITLE", "AUTHOR", "CREATOR", "DATE", "ISSUED", "PUBLISHER", "DESCRIPTION", "ABSTRACT"),
    }
)
"""Types that a header can be without a mapping; the caller knows those of an installation."""

GUESS_ROWS: Final = 20
"""Rows from which the meaning of a column is guessed."""

_SPECIAL: Final = frozenset({HANDLE, STATE, CREATED, UPDATED, OWNER, IGNORED})
_INDEX: Final = re.compile(r"([1-9][0-9]{0,9}):(.+)", re.DOTALL)
_PERMISSIONS: Final = re.compile("[01]{4}([01]{4})?")
_BLANKS: Final = re.compile(r"[\s_]+")
_CELL: Final = re.compile(r"[a-z][a-z0-9+.-]*://|[0-9][0-9.]*/[^ ]", re.IGNORECASE)
"""The start of a URL or a handle."""
_URL_CELL: Final = re.compile("[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MAX_INDEX: Final = 0x7FFF_FFFF


class Column(msgspec.Struct, frozen=True):
    """The meaning of a column."""

    kind: str
    """`handle`, `state`, `created`, `updated`, `owner`, `-`, or empty for a value of a type."""
    type: str = ""
    index: int | None = None
    permissions: str | None = None
    ttl: int | None = None
    base64: bool = False

    def __str__(self) -> str:
        if self.kind:
            return self.kind
        index = "" if self.index is None else f"{self.index}:"
        permissions = "" if self.permissions is None else f"!{_NAMES.get(self.permissions, self.permissions)}"
        ttl = "" if self.ttl is None else f"!ttl={self.ttl}"
        return f"{index}{self.type}{permissions}{ttl}{'!base64' if self.base64 else ''}"

    def make_value(self, text: str, timestamp: str | None = None) -> ValueInput:
        """Make the value of a cell. Raises `InvalidData`."""
        data = _find_converter(self)(text)
        return ValueInput(self.type, data, self.index, self.permissions, self.ttl, timestamp=timestamp)


_NAMES: Final = {"1100": "private"}


def parse_column(text: str) -> Column:
    """Parse the meaning of a column: a special word, or `[INDEX:]TYPE[!OPTION]…`; raises ValueError."""
    if text.lower() in _SPECIAL:
        return Column(text.lower())
    index = None
    if match := _INDEX.fullmatch(text):
        index, text = int(match[1]), match[2]
        if index > _MAX_INDEX:
            raise ValueError(f"The index {index} is too large.")
    type_, *options = text.split("!")
    permissions, ttl, base64 = None, None, False
    for option in options:
        if option == "private":
            permissions = "1100"
        elif _PERMISSIONS.fullmatch(option):
            permissions = option
        elif option.startswith("ttl=") and option[4:].isascii() and option[4:].isdecimal() and len(option) < 14:
            ttl = int(option[4:])
        elif option == "base64":
            base64 = True
        else:
            raise ValueError(f"Unknown option {shorten(option)!r}; use private, 1110, ttl=SECONDS or base64.")
    if not type_.strip():
        raise ValueError("The type is empty.")
    return Column("", type_.strip(), index, permissions, ttl, base64)


def parse_known_column(text: str) -> Column:
    """Parse the meaning of a column; known types are written as usual. Raises `ValueError`."""
    return _normalize_type(parse_column(text), None)


def map_columns(
    header: tuple[str, ...], options: ReadOptions, is_type: TypeCheck | None = None, rows: Iterable[TableRow] = ()
) -> tuple[Column, ...]:
    """Find the meaning of each column; raises `UnknownColumns` or `InvalidFile`.

    From the first rows it guesses what unknown columns mean.
    """
    mapped = split_mappings(header, options)
    mapping = {_fold(name): meaning for name, meaning in mapped}
    unknown: dict[str, str] = {}
    columns: list[Column] = []
    used: set[str] = set()
    for name in header:
        folded = _fold(name)
        try:
            if folded in mapping:
                used.add(folded)
                columns.append(_normalize_type(_require_one(name, parse_column(mapping[folded])), is_type))
                continue
            column = _find_column(name, is_type)
        except ValueError as problem:
            raise invalid_file("invalid-column", f"Column {name!r}: {problem}", column=name) from None
        if column is None:
            unknown[name] = _suggest(name)
        else:
            columns.append(column)
    if missing := [name for name, _ in mapped if _fold(name) not in used]:
        known = ", ".join(header)
        message = f"The file does not have the column {missing[0]!r}, which was given a meaning."
        raise invalid_file("missing-column", message, f"Its columns are: {shorten(known)}.", column=missing[0])
    if unknown:
        _require_names(header, unknown)
        needs_handle = not options.mint and all(column.kind != HANDLE for column in columns)
        has_url = any(column.type == types.URL for column in columns)
        unknown = _guess(header, unknown, rows, options.prefix, needs_handle=needs_handle, has_url=has_url)
        raise UnknownColumns(unknown, advise_columns(unknown, needs_handle=needs_handle))
    _check_special(header, columns)
    return tuple(columns)


def find_handle_position(header: Sequence[str], options: ReadOptions) -> int:
    """Return the position of the column with handles; that after the last one if there is none."""
    mapping = {_fold(name): meaning.lower() for name, meaning in split_mappings(header, options)}
    meanings = [mapping.get(_fold(name), WELL_KNOWN.get(_fold(name))) for name in header]
    return meanings.index(HANDLE) if HANDLE in meanings else len(header)


def split_mappings(header: Iterable[str], options: ReadOptions) -> list[tuple[str, str]]:
    """Return the mappings of the user, each split after a column of the file, or else at the first equals sign."""
    names = {_fold(name) for name in header}
    return [_split_mapping(name, meaning, names) for name, meaning in options.columns.items()]


def _split_mapping(column: str, meaning: str, names: Collection[str]) -> tuple[str, str]:
    """Split a mapping after the longest column that exists: columns, types and options can have equals signs."""
    while _fold(column) not in names and "=" in column:
        column, _, start = column.rpartition("=")
        meaning = f"{start.strip()}={meaning}"
    return column.strip(), meaning


def _find_column(name: str, is_type: TypeCheck | None) -> Column | None:
    if not name:
        return Column(IGNORED)
    if meaning := WELL_KNOWN.get(_fold(name)):
        return parse_column(meaning)
    column = parse_column(name)
    if column.kind:
        return column
    known = (
        column.type in KNOWN_TYPES or column.type.startswith("HS_") or (is_type is not None and is_type(column.type))
    )
    if known:
        return column
    if meaning := WELL_KNOWN.get(_fold(column.type)):
        return msgspec.structs.replace(column, type=meaning) if meaning not in _SPECIAL else None
    column = _normalize_type(column, is_type)
    return column if column.type in KNOWN_TYPES else None


def _normalize_type(column: Column, is_type: TypeCheck | None) -> Column:
    """Write a known type as it is usually written: `url` is URL."""
    folded = column.type.upper()
    if folded not in KNOWN_TYPES or (is_type is not None and is_type(column.type)):
        return column
    return msgspec.structs.replace(column, type=folded)


def _require_one(name: str, column: Column) -> Column:
    """Refuse a meaning that contains others: they would become one type, permanently. Handles can contain anything."""
    first, *more = re.split("[,=]", column.type)
    if more and "/" not in first:
        message = f"The meaning of the column {name!r}, {shorten(column.type)!r}, is more than one type."
        advice = AdviceKind.MAP_EACH_COLUMN(column=name, meaning=first.strip() or "TYPE")
        raise invalid_file("invalid-column", message, advice, column=name)
    return column


_CUTOFF: Final = 0.65
"""Similarity of a column to what it probably means. The console chooses that, so a wrong guess is worse than none."""


def _suggest(name: str) -> str:
    folded = _fold(name)
    if meant := nearest(folded, WELL_KNOWN, _CUTOFF):
        return WELL_KNOWN[meant]
    return nearest(folded, sorted(each.lower() for each in KNOWN_TYPES if not each.startswith("HS_")), _CUTOFF).upper()


def _guess(
    header: tuple[str, ...],
    unknown: Mapping[str, str],
    rows: Iterable[TableRow],
    prefix: str,
    *,
    needs_handle: bool,
    has_url: bool,
) -> dict[str, str]:
    """Guess what columns mean whose cells look like handles or URLs; only one can be the handle."""
    first = [row[1] for row in islice(rows, GUESS_ROWS) if isinstance(row, tuple)]
    handle = re.compile(f"{re.escape(prefix)}/." if prefix else r"(?:hdl:)?[0-9][0-9.]*/[^ ]", re.IGNORECASE)
    found: dict[str, str] = {}
    for name, meant in unknown.items():
        at = header.index(name)
        cells = [cells[at].strip() for cells in first if cells[at].strip()]
        found[name] = meant
        if cells and needs_handle and HANDLE not in found.values() and all(map(handle.match, cells)):
            found[name] = HANDLE
        elif cells and not has_url and types.URL not in found.values() and all(map(_URL_CELL.match, cells)):
            found[name] = types.URL
    return found


def _require_names(header: tuple[str, ...], unknown: Mapping[str, str]) -> None:
    """Refuse a file without names of columns, whose first row would be lost if its cells were given a meaning."""
    value = next((name for name in header if _CELL.match(name)), "")
    if value and all(name in unknown or _CELL.match(name) for name in header if name):
        message = f"The first row has values, such as {shorten(value)!r}, but no names of columns."
        fix = "Insert a first row with names of columns, such as handle and URL."
        raise invalid_file("missing-header", message, fix)


def _check_special(header: tuple[str, ...], columns: list[Column]) -> None:
    first: dict[str, str] = {}
    for name, column in zip(header, columns, strict=True):
        key = column.kind or (f"{column.index}:" if column.index is not None else "")
        if not key or key == IGNORED:
            continue
        if key in first:
            what = f"the {key}" if column.kind else f"index {column.index}"
            message = f"The columns {first[key]!r} and {name!r} both give {what}."
            raise invalid_file("duplicate-column", message, AdviceKind.IGNORE_COLUMN(column=name), column=name)
        first[key] = name


def _fold(name: str) -> str:
    return _BLANKS.sub(" ", name.strip()).lower()


def read_table(table: Table, options: ReadOptions, is_type: TypeCheck | None = None) -> RowReader:
    """The rows of a table."""
    if is_value_table(table.header, options.columns):
        return read_value_table(table, options)
    if profile := options.profile or detect_profile(table.header):
        return read_service_table(table, profile, options)
    columns = map_columns(table.header, options, is_type, table.rows)
    if not options.mint and all(column.kind != HANDLE for column in columns):
        message = "The table has no column with handles."
        raise invalid_file("missing-column", message, AdviceKind.NAME_HANDLE_COLUMN())
    uses = tuple([ColumnUse(name, str(column)) for name, column in zip(table.header, columns, strict=True)])
    detected = msgspec.structs.replace(table.detected, columns=uses)
    return RowReader(detected, _Mapper(table.header, columns, options).read(table), table.header)


# One row for each handle


class _Mapper:
    """Makes rows from cells."""

    def __init__(self, header: tuple[str, ...], columns: tuple[Column, ...], options: ReadOptions) -> None:
        self._header = header
        self._options = options
        self._special = {column.kind: at for at, column in enumerate(columns) if column.kind not in ("", IGNORED)}
        self._values = [
            (at, column, header[at], _find_converter(column)) for at, column in enumerate(columns) if not column.kind
        ]
        self._details = [self._special.get(kind, -1) for kind in (STATE, CREATED, UPDATED, OWNER)]
        self._reported = {at for at, name in enumerate(header) if name.lower() in PROBLEM_COLUMNS}
        self._unnamed = [at for at, name in enumerate(header) if not name]

    def read(self, table: Table) -> Iterator[Row]:
        """Yield a row or a problem for each row of the table."""
        unquote = not self._options.raw
        for row in table.rows:
            if isinstance(row, RowProblem):
                yield row
                continue
            line, cells = row
            if unquote:
                cells = [unquote_cell(cell) if cell[:1] == "'" else cell for cell in cells]
            if self._reported and not any(cell for at, cell in enumerate(cells) if at not in self._reported):
                message = "The row has nothing but a problem: it could not be read."
                yield RowProblem(line, "", "", "empty-row", message, "Delete the row, or enter its cells.")
                continue
            yield self._map(line, cells)

    def _map(self, line: int, cells: list[str]) -> Row:
        for at in self._unnamed:
            if cells[at]:
                message = f"Column {at + 1} has a value, but no name."
                return RowProblem(line, "", shorten(cells[at]), "unnamed-column", message)
        handle_at = self._special.get(HANDLE, -1)
        found = find_handle(
            line, cells[handle_at].strip() if handle_at >= 0 else "", self._header[handle_at], self._options
        )
        if isinstance(found, RowProblem):
            return found
        state, created, updated, owner = [cells[at].strip() if at >= 0 else "" for at in self._details]
        if state and (problem := check_state(line, self._header[self._details[0]], state.lower())):
            return problem
        values: list[ValueInput] = []
        names: list[str] = []
        for at, column, name, convert in self._values:
            if text := cells[at]:
                try:
                    data = convert(text)
                except InvalidData as error:
                    message = f"{column.type}: {error}."
                    return RowProblem(line, name, shorten(text), "invalid-data", message)
                values.append(
                    ValueInput(
                        column.type, data, column.index, column.permissions, column.ttl, None, None, updated or None
                    )
                )
                names.append(name)
        return ImportRow(line, *found, tuple(values), tuple(names), (), state.lower(), created, owner)


def _find_converter(column: Column) -> Callable[[str], Data]:
    if column.base64:
        return _make_base64
    if types.get_base_type(column.type) in FORMATS:
        return lambda text: _convert_structured(column.type, text)
    return _make_text


def _make_text(text: str) -> Data:
    return Data("string", text)


def _make_base64(text: str) -> Data:
    return Data("base64", text)


def _convert_structured(type_: str, text: str) -> Data:
    """The natural form of a type such as HS_ADMIN, `200:0.NA/12345`."""
    if text.startswith("base64:"):
        raise InvalidData("base64 belongs in a column whose header ends with !base64")
    return Data("base64", to_base64(data_from_text(type_, text)))
