"""Differences of records in previews of jobs."""

from collections.abc import Iterable, Sequence

from perseid.records.record import Value
from perseid.registry.access.permissions import Differences
from perseid.schema.jobs import PlannedChange
from perseid.schema.records import dump_values


def plan_changes(old: Iterable[Value], new: Sequence[Value], *, can_read: bool) -> list[PlannedChange]:
    """Return the values that change, with their data before and after.

    Values that nobody can read are left out, and private ones unless the caller `can_read` those of the record.
    """
    differences = Differences.between(old, new)
    pairs: list[tuple[Value | None, Value | None]] = [
        *differences.modified,
        *[(None, value) for value in differences.added],
        *[(value, None) for value in differences.removed],
    ]
    return [
        _plan_change(before, after)
        for before, after in pairs
        if all(each is None or each.is_public or (can_read and each.is_readable) for each in (before, after))
    ]


def _plan_change(old: Value | None, new: Value | None) -> PlannedChange:
    value = new or old
    assert value is not None  # noqa: S101 - one of both exists
    before, after = [None if each is None else dump_values([each])[0].data for each in (old, new)]
    return PlannedChange(value.index, value.type, before, after)
