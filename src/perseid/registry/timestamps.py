"""When values were changed: the timestamps of a record that is about to be stored.

The server sets them, whatever a request says, and an unchanged value keeps its own. So a client that replaces a whole
record with what it read moves no date, and authority metadata can take the last update from the values (A3).
"""

from collections.abc import Iterable

from perseid.records.value import Value


def stamp(
    before: Iterable[Value] | None, wanted: Iterable[Value], now: int, *, is_import: bool = False
) -> tuple[Value, ...]:
    """The wanted values with their timestamps: those that are new or changed get `now`.

    A value is the same if the record had it at this index, with everything but the timestamp equal. An import brings
    timestamps of its own and these are kept; 0 means that it says none.
    """
    former = {value.index: value for value in before or ()}
    return tuple([_stamped(former.get(value.index), value, now, is_import) for value in wanted])


def _stamped(former: Value | None, value: Value, now: int, is_import: bool) -> Value:
    if is_import and value.timestamp:
        return value
    if former is not None and value.with_timestamp(former.timestamp) == former:
        return former
    return value.with_timestamp(now)
