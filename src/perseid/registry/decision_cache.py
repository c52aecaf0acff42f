"""Cache of the entries that decisions depend on, to save a database transaction for most changes.

Policies, homed prefixes, prefix handles and creators hardly ever change, and a handle to create is nearly always new.
So a command is first decided on cached entries, and on the handle being new. The commit checks every precondition,
cached or not; if one fails the command is decided again from the ledger. Without a commit nothing is checked, so
refusals and results without a change that depend on the cache are decided again too.

An entry is cached with its leaf hash, which the commit compares: when an older state of the ledger is restored under a
running process, sequence numbers are reused for other entries.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Self

from perseid.ledger.log.entry import Entry
from perseid.ledger.log.reader import LogReader

from .snapshot import Rules, Snapshot

MAX_ENTRIES: Final = 1_024
"""How many entries are cached: enough for the namespaces that one process works with at a time."""

MAX_VALUES: Final = 50
"""Entries with more values are not cached: they are large, and rare among policies and prefix handles."""

MAX_BYTES: Final = 8_192
"""Entries with more data are not cached, so that the cache takes a few megabytes at most."""


class CachedEntry(NamedTuple):
    """An entry and its leaf hash."""

    entry: Entry
    leaf: bytes


class EntryCache:
    """The latest entries of records, as decisions of this process have seen them. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[bytes, CachedEntry] = {}
        self._changed = 0  # the last entry that changed a record
        self._lock = threading.Lock()  # for writers

    def get(self, key: bytes) -> CachedEntry | None:
        """The cached entry of a record; None if there is none."""
        return self._entries.get(key)

    def note(self, seen: Mapping[bytes, Entry | None], changed: Iterable[bytes], seq: int, *, erased: bool) -> None:
        """Cache what a committed decision has read, except what it changed or redacted.

        Other threads may have read the old entries before and arrive here later, so nothing is cached from decisions
        older than the last change.
        """
        with self._lock:
            if erased:
                self._entries.clear()
            gone = {key for key in changed if seen.get(key) is not None or key in self._entries}
            for key in gone:
                self._entries.pop(key, None)
            if seq < self._changed:
                return
            if gone or erased:
                self._changed = seq
            for key, entry in seen.items():
                if entry is not None and key not in gone and not self._has(key, entry) and _is_small(entry):
                    if len(self._entries) >= MAX_ENTRIES:
                        self._entries.clear()  # the few that matter are back at once
                    self._entries[key] = CachedEntry(entry, entry.leaf_hash())

    def _has(self, key: bytes, entry: Entry) -> bool:
        known = self._entries.get(key)
        return known is not None and known.entry is entry

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop entries that may have changed."""
        for key in keys:
            self._entries.pop(key, None)


def _is_small(entry: Entry) -> bool:
    if len(entry.values) > MAX_VALUES:
        return False
    return sum([len(slot.content) for slot in entry.slots() if slot.content is not None]) <= MAX_BYTES


class CachedSnapshot(Snapshot):
    """A snapshot from the cache; reads only what is not cached from the ledger."""

    def __init__(self, read: Callable[[], AbstractContextManager[LogReader]], rules: Rules, cache: EntryCache) -> None:
        super().__init__(None, rules)
        self._read = read
        self._entry_cache = cache
        self._entered: AbstractContextManager[LogReader] | None = None
        self.is_certain = True
        """Whether everything so far was read from one state of the ledger."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ledger's snapshot, if one was opened. It was only read, so errors do not matter."""
        if self._entered is not None:
            self._entered.__exit__(None, None, None)

    @property
    def reader(self) -> LogReader:
        """The ledger's snapshot, opened on first use."""
        if self._reader is None:
            self._entered = self._read()
            self._reader = self._entered.__enter__()
        return self._reader

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest known entry of a record; a `new` handle has none.

        Once the ledger's snapshot is open, entries are read from it: a cached entry may be newer, and a decision must
        not mix it with the history that ends before it.
        """
        if key in self._entries:
            return self._entries[key]
        cached = None if self._reader is not None else self._entry_cache.get(key)
        if cached is None:
            if self._reader is not None or not new:
                return super().entry(key)
            self._entries[key] = None
        else:
            self._entries[key] = cached.entry
            self.expected_leaves[key] = cached.leaf
        self.is_certain = False
        return self._entries[key]
