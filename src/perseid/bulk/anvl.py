"""Exports of ARK services: EZID (CSV and ANVL) and arklet (CSV), with mappings of their fields.

`ark:/99999/x` becomes the handle `PREFIX/x` under the prefix that the user chose, or `99999/x`; the ARK is kept as a
value of type ARK. A DOI of EZID is the handle that it is. What a service only uses itself (owners, profiles) is
ignored. A field that is not known is refused unless `--map` gives it a type.

ANVL, as EZID writes it: records separated by blank lines, each with a first line `:: ark:/99999/x`, then `name: value`
with line breaks and percent signs encoded (`%0A`), and in names also colons.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import unquote

import msgspec

from perseid.names.suggest import nearest
from perseid.records.encoding import to_iso
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.registry.policy.policy import Policy
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from perseid.schema.records import Data, ValueInput

from .formats import (
    MAX_RECORD,
    PROBLEM_COLUMNS,
    ColumnUse,
    Detected,
    Format,
    Profile,
    ReadOptions,
    Row,
    RowReader,
    UnknownColumns,
    advise_columns,
    invalid_file,
    row_problem,
    shorten,
)
from .tables import Table, unquote_cell

if TYPE_CHECKING:
    from .columns import Column

MAX_LINE: Final = 4_194_304
"""Bytes of the longest line: a document of metadata on one line, encoded."""

MAX_FIELDS: Final = 1_024
"""Fields of a record; services have some dozen."""

ARK_TYPE: Final = "ARK"
"""The type of the value that keeps the ARK."""

TOMBSTONE_REASON: Final = Policy().tombstone_reason_type
"""The type of the value with the reason why an object is unavailable."""

_ID, _STATUS, _CREATED, _UPDATED, _IGNORED = "handle", "state", "created", "updated", "-"
"""The special words of a mapping, so that no type has such a name."""

_NAAN, _SHOULDER, _NAME = "handle!naan", "handle!shoulder", "handle!name"
"""Parts of the handle. No type contains an exclamation mark."""

_ARK_COLUMN: Final = "ark"

EZID_FIELDS: Final[Mapping[str, str]] = {
    "_id": _ID,
    "_target": "URL",
    "_status": _STATUS,
    "_created": _CREATED,
    "_updated": _UPDATED,
    **dict.fromkeys(("erc.what", "dc.title", "datacite.title", "_mappedtitle"), "TITLE"),
    **dict.fromkeys(("erc.who", "dc.creator", "datacite.creator", "_mappedcreator"), "CREATOR"),
    **dict.fromkeys(("erc.when", "dc.date", "datacite.publicationyear", "_mappeddate"), "DATE"),
    **dict.fromkeys(("dc.publisher", "datacite.publisher", "_mappedpublisher"), "PUBLISHER"),
    **dict.fromkeys(("dc.type", "datacite.resourcetype", "_mappedtype"), "DC.TYPE"),
    "erc": "ERC",
    "datacite": "DATACITE",
    "crossref": "CROSSREF",
    **dict.fromkeys(("_owner", "_ownergroup", "_coowners", "_profile", "_export", "_crossref"), _IGNORED),
    **dict.fromkeys(("_datacenter", "_shadows", "_shadowedby", "success"), _IGNORED),
}
"""Fields of EZID, folded, and the types of values that they become."""

_EZID_OWN: Final = frozenset([name for name in EZID_FIELDS if name[:1] == "_"])
"""Fields that only EZID has; other databases have `_id`, too."""

ARKLET_FIELDS: Final[Mapping[str, str]] = {
    _ARK_COLUMN: _ID,
    "naan": _NAAN,
    "shoulder": _SHOULDER,
    "assigned_name": _NAME,
    "url": "URL",
    "title": "TITLE",
    "metadata": "DESCRIPTION",
    "commitment": "COMMITMENT",
}
"""Fields of arklet, folded."""

_FIELDS: Final = {Profile.EZID: EZID_FIELDS, Profile.ARKLET: ARKLET_FIELDS}
_SPECIAL: Final = frozenset({_ID, _STATUS, _CREATED, _UPDATED, _NAAN, _SHOULDER, _NAME, _IGNORED})
_ARK: Final = re.compile(r"(?:https?://[^/]+/)?(?:ark:/?)?([0-9a-z]{5,}(?:\.[0-9]+)?)/(.+)", re.IGNORECASE | re.DOTALL)
_DOI: Final = re.compile(r"doi:(10\.[^/]+/.+)", re.IGNORECASE | re.DOTALL)
_DIGITS: Final = re.compile("[0-9]{1,12}")
_STATES: Final = {"public": "published", "reserved": "unpublished", "unavailable": "tombstone", "": ""}
"""A reserved identifier of EZID has values that nobody sees yet, unlike one here."""


def detect_profile(header: Iterable[str]) -> Profile | None:
    """The service that exports tables with such columns."""
    names = {name.lower() for name in header}
    fields = {name for name in names if "." in name or name[:1] == "_"}
    if "_id" in names and (len(names & _EZID_OWN) > 1 or names <= EZID_FIELDS.keys() | fields):
        return Profile.EZID
    is_arklet = names >= {"naan", "assigned_name"} or (_ARK_COLUMN in names and names <= ARKLET_FIELDS.keys())
    return Profile.ARKLET if is_arklet else None


def map_ark(text: str, prefix: str = "") -> tuple[str, str] | None:
    """The handle of an identifier, and the ARK to keep, which is empty for a DOI; None if it is neither."""
    text = text.strip()
    if match := _DOI.fullmatch(text):
        return match[1], ""
    match = _ARK.fullmatch(text)
    if match is None:
        return None
    return f"{prefix or match[1]}/{match[2]}", f"ark:/{match[1]}/{match[2]}"


class _Fields:
    """What the fields of a service mean."""

    def __init__(self, profile: Profile, options: ReadOptions, header: Iterable[str] = ()) -> None:
        from .columns import split_mappings  # noqa: PLC0415 - it imports this module

        self.known = _FIELDS[profile]
        own = split_mappings(header, options)
        self.columns: dict[str, Column] = {}
        """The columns of the user's mapping, by their meaning."""
        self._own = {name.lower(): self._parse(name, meaning.strip()) for name, meaning in own}

    def _parse(self, name: str, meaning: str) -> str:
        """Parse what the user says about a field. Raises `InvalidFile`."""
        from .columns import parse_known_column  # noqa: PLC0415 - it imports this module

        try:
            column = parse_known_column(meaning)
        except ValueError as problem:
            raise invalid_file("invalid-column", f"Column {name!r}: {problem}", column=name) from None
        if not column.kind:
            self.columns[str(column)] = column
        elif column.kind not in _SPECIAL:
            message = f"Column {name!r} of an export of a service cannot be {meaning!r}."
            raise invalid_file("invalid-column", message, "Use a type, or - to ignore it.", column=name)
        return str(column)

    def find(self, name: str) -> str | None:
        """The meaning of a field; None if it has none."""
        folded = name.strip().lower()
        if folded in self._own:
            return self._own[folded]
        return _IGNORED if folded in PROBLEM_COLUMNS or not folded else self.known.get(folded)

    def suggest(self, name: str) -> str:
        return nearest(name.lower(), self.known)


def read_service_table(table: Table, profile: Profile, options: ReadOptions) -> RowReader:
    """The rows of a table that a service exported."""
    fields = _Fields(profile, options, table.header)
    if unknown := {name: fields.suggest(name) for name in table.header if fields.find(name) is None}:
        raise UnknownColumns(unknown, advise_columns(unknown))
    uses = tuple([ColumnUse(name, fields.find(name) or "") for name in table.header])
    detected = msgspec.structs.replace(table.detected, columns=uses, profile=profile)
    return RowReader(detected, _read_table(table, fields, options), table.header)


def _read_table(table: Table, fields: _Fields, options: ReadOptions) -> Iterator[Row]:
    for row in table.rows:
        if isinstance(row, RowProblem):
            yield row
            continue
        line, cells = row
        texts = cells if options.raw else [unquote_cell(cell) for cell in cells]
        yield _make_row(line, zip(table.header, texts, strict=True), fields, options)


def read_anvl(file: BinaryIO, options: ReadOptions | None = None) -> RowReader:
    """The records of an ANVL file."""
    options = options or ReadOptions()
    detected = Detected(Format.ANVL, "UTF-8", profile=Profile.EZID)
    return RowReader(detected, _read_anvl(file, _Fields(Profile.EZID, options), options))


def _read_anvl(file: BinaryIO, fields: _Fields, options: ReadOptions) -> Iterator[Row]:
    record: list[tuple[str, str]] = []
    start = number = size = 0
    for number, line in enumerate(_lines(file), 1):
        if line.startswith("::"):
            if record:
                yield _make_row(start, record, fields, options)
            start, record, size = number, [("_id", line[2:].strip())], len(line)
        elif line.strip() and not line.startswith("#"):
            name, colon, value = line.partition(":")
            size += len(line)
            if record and (len(record) == MAX_FIELDS or size > MAX_RECORD):
                message = f"The record has more than {MAX_FIELDS:,} fields or {MAX_RECORD:,} bytes."
                yield RowProblem(number, "", shorten(line), "invalid-anvl", message)
            elif not record or not colon:
                message = "The line does not have the form NAME: VALUE in a record that starts with :: IDENTIFIER."
                yield RowProblem(number, "", shorten(line), "invalid-anvl", message)
            else:
                record.append((unquote(name.strip()), unquote(value.strip())))
    if record:
        yield _make_row(start, record, fields, options)


def _lines(file: BinaryIO) -> Iterator[str]:
    number = 0
    while raw := file.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            raise invalid_file("line-too-long", f"The line has more than {MAX_LINE:,} bytes.", line=number)
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            message = "The line is not UTF-8."
            raise invalid_file("invalid-encoding", message, "Save the file as UTF-8.", number) from None


def _make_row(line: int, record: Iterable[tuple[str, str]], fields: _Fields, options: ReadOptions) -> Row:
    special: dict[str, str] = {}
    found: dict[tuple[str, str], str] = {}  # several fields often say the same
    for name, text in record:
        meaning = fields.find(name)
        if meaning is None:
            fix = advise_columns({shorten(name): ""})
            return row_problem(line, shorten(name), shorten(text), "unknown-columns", "The field is unknown.", fix)
        if meaning in _SPECIAL:
            special.setdefault(meaning, text.strip())
        elif text.strip():
            found.setdefault((meaning, text), name)
    identifier = special.get(_ID) or "".join([special.get(part, "") for part in (_NAAN, _SHOULDER, _NAME)])
    handle = map_ark(identifier, options.prefix)
    if handle is None:
        message = "The identifier is not an ARK such as ark:/99999/x, or a DOI."
        return RowProblem(line, "", shorten(identifier), "invalid-ark", message)
    status, _, reason = special.get(_STATUS, "").partition("|")
    state = _STATES.get(status.strip().lower())
    if state is None:
        message = "The status is not public, reserved or unavailable."
        return RowProblem(line, "_status", shorten(status), "unknown-state", message)
    if reason.strip():
        found.setdefault((TOMBSTONE_REASON if state == "tombstone" else "DESC", reason.strip()), "_status")
    if handle[1]:
        found.setdefault((ARK_TYPE, handle[1]), "_id")
    timestamp = _to_time(special.get(_UPDATED, "")) or None
    values = _make_values(line, found, fields, timestamp)
    if isinstance(values, RowProblem):
        return values
    created = _to_time(special.get(_CREATED, ""))
    return ImportRow(line, RowOperation.CREATE, handle[0], values, tuple(found.values()), (), state, created)


def _make_values(
    line: int, found: Mapping[tuple[str, str], str], fields: _Fields, timestamp: str | None
) -> tuple[ValueInput, ...] | RowProblem:
    """Make the values of a record: of each meaning and text, with the name of its field."""
    values: list[ValueInput] = []
    for (meaning, text), name in found.items():
        column = fields.columns.get(meaning)
        if column is None:
            values.append(ValueInput(meaning, Data("string", text), timestamp=timestamp))
            continue
        try:
            values.append(column.make_value(text, timestamp))
        except InvalidData as problem:
            return RowProblem(line, shorten(name), shorten(text), "invalid-data", f"{column.type}: {problem}.")
    return tuple(values)


def _to_time(text: str) -> str:
    """A time in ISO 8601, also from seconds since 1970."""
    try:
        return to_iso(int(text)) if _DIGITS.fullmatch(text) else text
    except RecordMisuse:
        return text
