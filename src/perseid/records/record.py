"""Records: a handle and its values, in the order in which they were stored.

The order has no meaning; deployed tools prefer ascending indexes (`ascending`). Indexes are unique. A record can exist
without values, so it has no length and is always true.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from perseid.names.handle import Handle

from .binary import Reader, Writer
from .errors import InvalidData, RecordMisuse
from .types import TypeQuery
from .value import MAX_VALUES, Value, read_values, write_values


@dataclass(frozen=True, slots=True)
class Record:
    """A handle and its values."""

    handle: Handle
    values: tuple[Value, ...] = ()
    """The values, with unique indexes."""
    _by_index: dict[int, Value] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if problem := _find_problem(self.values):
            raise RecordMisuse(problem)
        object.__setattr__(self, "_by_index", {value.index: value for value in self.values})

    @classmethod
    def from_untrusted(cls, handle: Handle, values: Iterable[Value]) -> Self:
        """Create a record from untrusted values; raises InvalidData instead of RecordMisuse."""
        values = tuple(values)
        if problem := _find_problem(values):
            raise InvalidData(problem)
        return cls(handle, values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def value(self, index: int) -> Value | None:
        """The value with this index, or None."""
        return self._by_index.get(index)

    def select(self, indexes: Collection[int] = (), types: Collection[str] = ()) -> tuple[Value, ...]:
        """The values that match a query, in the order of the record."""
        return select(self.values, indexes, types)

    def public(self) -> Self:
        """Copy with the public values."""
        return type(self)(self.handle, tuple([value for value in self.values if value.is_public]))

    def ascending(self) -> Self:
        """Copy with values by ascending index."""
        return type(self)(self.handle, ascending(self.values))


def select(values: Iterable[Value], indexes: Collection[int], types: Collection[str]) -> tuple[Value, ...]:
    """The values whose index is listed or whose type matches; all if both lists are empty."""
    if not indexes and not types:
        return tuple(values)
    index_set = frozenset(indexes)
    query = TypeQuery(types)
    return tuple([value for value in values if value.index in index_set or query.finds(value.type)])


def ascending(values: Iterable[Value]) -> tuple[Value, ...]:
    """Sort values by index."""
    return tuple(sorted(values, key=lambda value: value.index))


def values_from_bytes(data: bytes, now: int) -> tuple[Value, ...]:
    """Decode a file of values (`root_info`, `resolver_service`): length in bytes, then a counted list."""
    reader = Reader(data)
    inner = reader.inner(reader.i32())
    reader.finish()
    values = read_values(inner, now)
    inner.finish()
    return values


def values_to_bytes(values: tuple[Value, ...]) -> bytes:
    """Encode a file of values."""
    writer = Writer()
    write_values(writer, values)
    return Writer().bytes_(writer.getvalue()).getvalue()


def _find_problem(values: tuple[Value, ...]) -> str | None:
    if len(values) > MAX_VALUES:
        return f"the record has {len(values):,} values; the maximum that clients accept is {MAX_VALUES:,}"
    seen: set[int] = set()
    for value in values:
        if value.index in seen:
            return f"two values have index {value.index}"
        seen.add(value.index)
    return None
