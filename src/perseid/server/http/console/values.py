"""Values of records on pages: as rows of a form and back, and what differs between two lists of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from perseid.client.errors import Refused
from perseid.records.data_types import data_to_text
from perseid.records.errors import RecordProblem
from perseid.records.json_form import value_from_json
from perseid.records.types import HS_SECKEY, has_type
from perseid.schema.records import ValueInput, ValueResponse
from perseid.server.http.messages import Parameters
from perseid.server.http.pages.texts import _

MAX_ROWS: Final = 200
"""Rows of a form: more than a person edits; larger records are changed with the API or by an import."""

EMPTY_ROWS: Final = 3
"""Rows for new values, without JavaScript; with it there is a button."""

PUBLIC: Final = "1110"
PRIVATE: Final = "1100"

SECRET: Final = "••••••••"  # noqa: S105 - not one
"""Shown instead of a secret key. A form that sends it back leaves the key unchanged."""

_INDEX: Final = re.compile("[0-9]{1,10}", re.ASCII)
_TTL: Final = re.compile("[0-9]{1,10}", re.ASCII)
_FIELDS: Final = ("index", "type", "data", "permissions", "ttl", "remove")


@dataclass(frozen=True, slots=True)
class Row:
    """A value as text, as a form shows and sends it."""

    index: str = ""
    type: str = ""
    data: str = ""
    permissions: str = PUBLIC
    ttl: str = ""
    remove: bool = False
    timestamp: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.type and not self.data


class InvalidRow(NamedTuple):
    """What is wrong with a row, counted from 1."""

    number: int
    reason: str


def to_row(value: ValueResponse) -> Row:
    """Convert a value to a row; its data has the natural form of its type."""
    try:
        text = SECRET if has_type(value.type, HS_SECKEY) else data_to_text(value_from_json(msgspec.to_builtins(value)))
    except RecordProblem:
        text = str(value.data.value)
    return Row(
        str(value.index), value.type, text, value.permissions, str(value.ttl), timestamp=str(value.timestamp or "")
    )


def with_secrets(inputs: Sequence[ValueInput], stored: Iterable[ValueResponse]) -> tuple[ValueInput, ...]:
    """Put the stored secrets where the form had `SECRET`."""
    secrets = {value.index: value.data for value in stored if has_type(value.type, HS_SECKEY)}
    return tuple(
        [
            msgspec.structs.replace(each, data=secrets[each.index])
            if each.data == SECRET and each.index in secrets
            else each
            for each in inputs
        ]
    )


def to_rows(values: Iterable[ValueResponse]) -> list[Row]:
    """Convert all values."""
    return [to_row(value) for value in values]


def read_rows(form: Parameters) -> list[Row]:
    """Read the rows of a form: fields `type.N`, `data.N` … Empty rows are left out."""
    numbers = [pair[0].partition(".")[2] for pair in form.pairs if pair[0].startswith("type.")]
    rows = []
    for number in dict.fromkeys(numbers[:MAX_ROWS]):
        index, type_, data, permissions, ttl, remove = ((form.first(f"{name}.{number}") or "") for name in _FIELDS)
        # Browsers send line ends as CR LF.
        row = Row(
            index.strip(), type_.strip(), data.replace("\r\n", "\n"), permissions or PUBLIC, ttl.strip(), bool(remove)
        )
        if not row.is_empty:
            rows.append(row)
    return rows


def to_inputs(rows: Sequence[Row]) -> tuple[ValueInput, ...]:
    """Convert the rows that stay to values of a request; raises `Refused`."""
    inputs = []
    for number, row in enumerate(rows, 1):
        if row.remove:
            continue
        if not row.type:
            raise Refused(_("Row {number} has no type").format(number=number))
        if row.index and not _INDEX.fullmatch(row.index):
            raise Refused(_("The index in row {number} is not a number").format(number=number))
        ttl: int | str | None = int(row.ttl) if _TTL.fullmatch(row.ttl) else row.ttl or None
        inputs.append(ValueInput(row.type, row.data, int(row.index) if row.index else None, row.permissions, ttl))
    return tuple(inputs)


# Differences


class Change(NamedTuple):
    """A difference of one value: the earlier or later row is None if there is none."""

    earlier: Row | None
    later: Row | None

    @property
    def kind(self) -> str:
        """`added`, `removed` or `modified`."""
        if self.earlier is None:
            return "added"
        return "removed" if self.later is None else "modified"


def compare(earlier: Sequence[Row], later: Sequence[Row]) -> list[Change]:
    """The differences between two lists, by index; new rows without one are last."""
    before = {row.index: row for row in earlier}
    kept = [row for row in later if not row.remove]
    after = {row.index: row for row in kept if row.index}
    indexes = sorted({*before, *after}, key=int)
    changes = [
        Change(before.get(index), after.get(index))
        for index in indexes
        if _content(before.get(index)) != _content(after.get(index))
    ]
    return [*changes, *[Change(None, row) for row in kept if not row.index]]


def _content(row: Row | None) -> tuple[str, ...] | None:
    return None if row is None else (row.type, row.data, row.permissions, row.ttl)
