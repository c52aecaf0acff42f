"""Differences of records in previews of jobs."""

from collections.abc import Iterable, Sequence

from perseid.records.record import Value
from perseid.registry.access.permissions import Differences
from perseid.schema.jobs import PlannedChange
from perseid.schema.records import Data, dump_values


def plan_changes(old: Iterable[Value], new: Sequence[Value]) -> list[PlannedChange]:
    """Return the values that change, with their data before and after. The data of an absent value is empty."""
    differences = Differences.between(old, new)
    pairs: list[tuple[Value | None, Value | None]] = [
        *differences.modified,
        *[(None, value) for value in differences.added],
        *[(value, None) for value in differences.removed],
    ]
    return [_plan_change(before, after) for before, after in pairs]


def _plan_change(old: Value | None, new: Value | None) -> PlannedChange:
    value = new or old
    assert value is not None  # noqa: S101 - one of both exists
    empty = Data("string", "")
    before, after = [empty if each is None else dump_values([each])[0].data for each in (old, new)]
    return PlannedChange(value.index, value.type, before, after)
