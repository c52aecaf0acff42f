"""Values of records on pages: as rows of a form and back, and what differs between two lists of them."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec

from perseid.client.errors import Refused
from perseid.records.data_types import data_to_text
from perseid.records.encoding import from_iso
from perseid.records.errors import InvalidData, RecordProblem
from perseid.records.json_form import value_from_json
from perseid.records.types import HS_SECKEY, has_type, is_url_type
from perseid.schema.records import Data, Reference, ValueInput, ValueResponse
from perseid.server.http.messages import Parameters
from perseid.server.http.pages.texts import _

MAX_ROWS: Final = 200
"""Rows of a form: more than a person edits; larger records are changed with the API or by an import."""

EMPTY_ROWS: Final = 3
"""Rows for new values, without JavaScript; with it there is a button."""

MAX_TTL: Final = 0x7FFF_FFFF
"""Seconds: 68 years."""

SECRET: Final = "••••••••"  # noqa: S105 - not one
"""Shown instead of a secret key. A form that sends it back leaves the key unchanged."""

_WEB: Final = re.compile("https?://", re.IGNORECASE)
_NUMBER: Final = re.compile("[0-9]{1,10}", re.ASCII)
_VERSION: Final = re.compile("[0-9]{1,18}", re.ASCII)
_FIELDS: Final = ("index", "type", "data", "permissions", "ttl", "remove")


@dataclass(frozen=True, slots=True)
class Row:
    """A value as text, as a form shows and sends it."""

    index: str = ""
    type: str = ""
    data: str = ""
    permissions: str = ""
    """Empty for the default: public, but not for secret keys."""
    ttl: str = ""
    remove: bool = False
    timestamp: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.type and not self.data

    @property
    def url(self) -> str:
        """The data as the URL of a link, if it is one of the web; empty otherwise."""
        return self.data if is_url_type(self.type) and _WEB.match(self.data) else ""

    @property
    def content(self) -> tuple[str, ...]:
        """What a difference shows. Browsers send all line ends as CR LF and a NUL as U+FFFD, so these do not count."""
        data = self.data.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return self.type, data, self.permissions, self.ttl


def mask(type_: str, text: str) -> str:
    """The data of a value as text, unless it is a secret key."""
    return SECRET if has_type(type_, HS_SECKEY) else text


def to_text(type_: str, data: Data) -> str:
    """The data of a value in the natural form of its type; secrets are masked."""
    try:
        value = value_from_json({"index": 1, "type": type_, "data": msgspec.to_builtins(data)})
        text = data_to_text(value)
    except RecordProblem:
        text = str(data.value)
    return mask(type_, text)


def to_row(value: ValueResponse) -> Row:
    """Convert a value to a row; its data has the natural form of its type."""
    timestamp = str(value.timestamp or "")
    return Row(
        str(value.index),
        value.type,
        to_text(value.type, value.data),
        value.permissions,
        str(value.ttl),
        timestamp=timestamp,
    )


def to_rows(values: Iterable[ValueResponse]) -> list[Row]:
    """Convert all values."""
    return [to_row(value) for value in values]


def read_rows(form: Parameters) -> list[Row]:
    """Read the rows of a form: fields `type.N`, `data.N` … Empty rows are left out. Raises `Refused`."""
    fields = dict(reversed(form.pairs))
    numbers = [name.partition(".")[2] for name in dict(form.pairs) if name.startswith("type.")]
    rows = []
    for number in numbers:
        index, type_, data, permissions, ttl, remove = (fields.get(f"{name}.{number}", "") for name in _FIELDS)
        row = Row(index.strip(), type_.strip(), data, permissions, ttl.strip(), bool(remove))
        if not row.is_empty:
            rows.append(row)
    if len(rows) > MAX_ROWS:
        raise too_many_values(len(rows))
    return rows


def too_many_values(count: int) -> Refused:
    """The refusal of a record that is too long for a form."""
    reason = _("The record has {count} values; the form takes {maximum}").format(count=count, maximum=MAX_ROWS)
    return Refused(reason, advice=_("Change it with the API, or by an import"))


def to_inputs(rows: Sequence[Row], stored: Iterable[ValueResponse] = ()) -> tuple[ValueInput, ...]:
    """Convert the rows that stay to values of a request; raises `Refused`.

    A row that is as stored becomes exactly the stored value, and one that replaces a stored value keeps what the form
    does not show: its references and the kind of its TTL.
    """
    known = {str(value.index): value for value in stored}
    return tuple([_to_input(number, row, known.get(row.index)) for number, row in enumerate(rows, 1) if not row.remove])


def _to_input(number: int, row: Row, stored: ValueResponse | None) -> ValueInput:
    before = None if stored is None else to_row(stored)
    if stored is not None and before is not None and row.content == before.content:
        return _repeat(stored)
    is_secret = has_type(row.type, HS_SECKEY)
    if not row.type:
        raise Refused(_("Row {number} has no type").format(number=number))
    _check_index(number, row)
    if is_secret and row.permissions[2:3] == "1":
        raise Refused(_("The secret key in row {number} would be public").format(number=number))
    data: str | Data = row.data.replace("\r\n", "\n")
    if data == SECRET:
        if stored is None or not is_secret or not has_type(stored.type, HS_SECKEY):
            raise Refused(_("Row {number} has no stored secret").format(number=number), advice=_("Enter its data"))
        data = stored.data
    ttl = _parse_ttl(number, row.ttl)
    index = int(row.index) if row.index else None
    made = ValueInput(row.type, data, index, row.permissions or None, ttl)
    if stored is None or before is None:
        return made
    kept = _repeat(stored)
    ttl_type = kept.ttl_type if row.ttl == before.ttl else None
    return msgspec.structs.replace(made, references=kept.references, ttl_type=ttl_type)


def _parse_ttl(number: int, text: str) -> int | str | None:
    """The TTL of a row: seconds, or a time; None if there is none. Raises `Refused`."""
    if not text:
        return None
    if _NUMBER.fullmatch(text) and int(text) <= MAX_TTL:
        return int(text)
    with suppress(InvalidData):
        if not text.isdecimal():
            from_iso(text)
            return text
    reason = _("The TTL in row {number}, {text}, is not a number of seconds").format(number=number, text=text[:40])
    advice = _("Enter 0 to {maximum}, such as 86400 for a day, or nothing for the default")
    raise Refused(reason, advice=advice.format(maximum=MAX_TTL))


def check_indexes(rows: Sequence[Row]) -> None:
    """Refuse rows that stay and that `compare` cannot order. Raises `Refused`."""
    for number, row in enumerate(rows, 1):
        if not row.remove:
            _check_index(number, row)


def _check_index(number: int, row: Row) -> None:
    if row.index and not _NUMBER.fullmatch(row.index):
        raise Refused(_("The index in row {number} is not a number").format(number=number))


def _repeat(value: ValueResponse) -> ValueInput:
    references = tuple([Reference(each.handle, each.index) for each in value.references])
    return ValueInput(value.type, value.data, value.index, value.permissions, value.ttl, value.ttl_type, references)


def parse_version(text: str) -> int | None:
    """A number in a form, such as the version of a record; None if it is not one."""
    return int(text) if _VERSION.fullmatch(text) else None


# Differences


class Change(NamedTuple):
    """A difference of one value: the earlier or later row is None if there is none."""

    earlier: Row | None
    later: Row | None

    @property
    def value_index(self) -> str:
        """The index of the value; empty if it has none yet."""
        return (self.later or self.earlier or Row()).index

    @property
    def kind(self) -> str:
        """`added`, `removed` or `modified`."""
        if self.earlier is None:
            return "added"
        return "removed" if self.later is None else "modified"


def compare(earlier: Sequence[Row], later: Sequence[Row]) -> list[Change]:
    """The differences between two lists, by index, which `check_indexes` has checked; new rows without one are last."""
    before = {row.index: row for row in earlier}
    kept = [row for row in later if not row.remove]
    after = {row.index: row for row in kept if row.index}
    indexes = sorted({*before, *after}, key=int)
    changes = [
        Change(before.get(index), after.get(index))
        for index in indexes
        if not _is_same(before.get(index), after.get(index))
    ]
    return [*changes, *[Change(None, row) for row in kept if not row.index]]


def merge(base: Sequence[Row], theirs: Sequence[Row], yours: Sequence[Row]) -> list[Row] | None:
    """The rows of a form with both changes of `base`; None if both change one value. `check_indexes` has checked them.

    An added value without an index is never in conflict: it gets one when it is saved.
    """
    own = [change for change in compare(base, yours) if change.value_index]
    if {change.value_index for change in own} & {change.value_index for change in compare(base, theirs)}:
        return None
    touched = {change.value_index for change in own}
    merged = [row for row in theirs if row.index not in touched]
    for change in own:
        if change.later is not None:
            merged.append(change.later)
        elif change.earlier is not None:
            merged.append(replace(change.earlier, remove=True))
    return [*sorted(merged, key=lambda row: int(row.index)), *[row for row in yours if not row.index]]


def _is_same(earlier: Row | None, later: Row | None) -> bool:
    return earlier is not None and later is not None and earlier.content == later.content
