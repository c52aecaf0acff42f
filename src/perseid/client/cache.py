"""The cache of a resolver: bounded, with the lifetimes that records state."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Final, Generic, TypeVar

from perseid.records.record import TtlType, Value

MAX_ENTRIES: Final = 10_000
"""Entries of a cache: some MiB for usual records."""

MAX_SIZE: Final = 64 << 20
"""Bytes of the entries of a cache: services that others run decide how long their records are."""

MAX_ENTRY_SIZE: Final = MAX_SIZE // 8
"""Bytes of one entry: a larger one is not stored, because it would evict too many others."""

_ENTRY_SIZE = 512  # bytes of an entry besides its data

MAX_LIFETIME: Final = 3_600.0
"""Seconds that an entry is used at most, as in deployed clients: a record can state years, and still be corrected."""

NEGATIVE_LIFETIME: Final = 60.0
"""Seconds that a missing handle is remembered: long enough for a page that asks again and again, short enough for a
handle that is being created. Deployed clients remember none."""

V = TypeVar("V")


class Cache(Generic[V]):
    """A bounded cache with an expiry for each entry; the entry that was not used for longest is evicted first.

    It can be shared by threads.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max = max_entries
        self._entries: OrderedDict[Hashable, tuple[float, V, int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now: float) -> V | None:
        """The entry of a key, unless it has expired."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            expires, value, _ = found
            if expires <= now:
                self._remove(key)
                return None
            self._entries.move_to_end(key)
            return value

    def put(self, key: Hashable, value: V, expires: float, now: float, size: int = 0) -> None:
        """Store an entry of some bytes until a time; one that has expired already or is too large is not stored."""
        if self._max < 1:
            return
        with self._lock:
            self._remove(key)
            if expires <= now or size > MAX_ENTRY_SIZE:
                return
            self._entries[key] = min(expires, now + MAX_LIFETIME), value, size + _ENTRY_SIZE
            self._size += size + _ENTRY_SIZE
            while len(self._entries) > self._max or self._size > MAX_SIZE:
                self._remove(next(iter(self._entries)))

    def drop(self, key: Hashable) -> None:
        """Remove an entry, if it exists."""
        with self._lock:
            self._remove(key)

    def clear(self) -> None:
        """Remove everything."""
        with self._lock:
            self._entries.clear()
            self._size = 0

    def _remove(self, key: Hashable) -> None:
        removed = self._entries.pop(key, None)
        if removed is not None:
            self._size -= removed[2]


def expiry(values: Iterable[Value], now: float) -> float:
    """When the first of some values expires; MAX_LIFETIME from now if that is earlier."""
    times = [value.ttl if value.ttl_type is TtlType.ABSOLUTE else now + value.ttl for value in values]
    return min([now + MAX_LIFETIME, *times])
