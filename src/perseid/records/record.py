"""A record: a handle and its values, as an ordered, frozen collection.

The order is the one in which the values were stored; it carries no meaning, and deployed tools like to see
ascending indexes (`ascending`). No two values share an index. A record may hold no values at all: it exists, and
asking for its values finds none. That is why a record has no length and is always true.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from perseid.names.handle import Handle

from .binary import Reader, Writer
from .errors import InvalidData, RecordMisuse
from .types import TypeQuery, has_type
from .value import MAX_VALUES, Value, read_values, write_values


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept under one name."""

    handle: Handle
    """The name, as it is spelled."""
    values: tuple[Value, ...] = ()
    """The values, each with an index of its own."""
    _by_index: dict[int, Value] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if problem := _find_problem(self.values):
            raise RecordMisuse(problem)
        object.__setattr__(self, "_by_index", {value.index: value for value in self.values})

    @classmethod
    def from_untrusted(cls, handle: Handle, values: Iterable[Value]) -> Self:
        """A record of values from outside, where it is the sender's fault if two share an index."""
        values = tuple(values)
        if problem := _find_problem(values):
            raise InvalidData(problem)
        return cls(handle, values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def value(self, index: int) -> Value | None:
        """The value with this index, if there is one."""
        return self._by_index.get(index)

    def select(self, indexes: Collection[int] = (), types: Collection[str] = ()) -> tuple[Value, ...]:
        """The values that a query finds, in the order of the record."""
        return select(self.values, indexes, types)

    def of_type(self, base: str) -> tuple[Value, ...]:
        """The values of a type and its subtypes, in the order of the record."""
        return tuple([value for value in self.values if has_type(value.type, base)])

    def public(self) -> Self:
        """The same record as everyone may see it."""
        return type(self)(self.handle, tuple([value for value in self.values if value.is_public]))

    def ascending(self) -> Self:
        """The same record with its values by ascending index."""
        return type(self)(self.handle, ascending(self.values))


def select(values: Iterable[Value], indexes: Collection[int], types: Collection[str]) -> tuple[Value, ...]:
    """The values whose index is listed or whose type matches; everything if both lists are empty."""
    if not indexes and not types:
        return tuple(values)
    wanted = frozenset(indexes)
    query = TypeQuery(types)
    return tuple([value for value in values if value.index in wanted or query.finds(value.type)])


def ascending(values: Iterable[Value]) -> tuple[Value, ...]:
    """Values by ascending index."""
    return tuple(sorted(values, key=lambda value: value.index))


def values_from_bytes(data: bytes, now: int) -> tuple[Value, ...]:
    """Take a file of values (`root_info`, `resolver_service`): their length in bytes, then a counted list."""
    reader = Reader(data)
    inner = reader.inner(reader.i32())
    reader.finish()
    values = read_values(inner, now)
    inner.finish()
    return values


def values_to_bytes(values: tuple[Value, ...]) -> bytes:
    """The bytes of a file of values."""
    writer = Writer()
    write_values(writer, values)
    return Writer().bytes_(writer.getvalue()).getvalue()


def _find_problem(values: tuple[Value, ...]) -> str | None:
    if len(values) > MAX_VALUES:
        return f"{len(values):,} values are too many for a record: no client reads more than {MAX_VALUES:,}"
    seen: set[int] = set()
    for value in values:
        if value.index in seen:
            return f"two values have the index {value.index}"
        seen.add(value.index)
    return None
