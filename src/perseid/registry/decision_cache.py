"""What this process saw last, and deciding by it without reading it again.

Most of what decisions rest on hardly ever changes: policies, homed prefixes, prefix handles, creators. And a name that
somebody wants to make is nearly always new. So an operation is first decided on what is remembered, and on the name
being new. The commit checks everything a decision rested on, whatever it was taken from: if something is not so any
more the operation is decided again, from the ledger. What is not committed is checked by nobody, so refusals, and
answers without a change, that rest on such facts are not given: those too are decided again.

An entry is remembered with its leaf hash, and that is what the commit compares: where an older state of the ledger is
put back under a running process, numbers are given a second time, to other entries.

Reading costs a transaction of the database, and this saves it to most changes.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Self

from perseid.ledger.log.entry import Entry
from perseid.ledger.log.reader import LogReader

from .snapshot import Rules, Snapshot

MAX_ENTRIES: Final = 1_024
"""How many entries are remembered: as many as the namespaces that one process works with at a time."""

MAX_VALUES: Final = 50
"""Entries with more values are not: they would take much room, and are rare where rules and rights are kept."""

MAX_BYTES: Final = 8_192
"""Nor are entries with more data, so that all of them together take some megabytes at most."""


class CachedEntry(NamedTuple):
    """An entry, and by what it is told from every other one."""

    entry: Entry
    leaf: bytes


class EntryCache:
    """The latest entries of records, as decisions of this process have seen them. For any number of threads."""

    def __init__(self) -> None:
        self._entries: dict[bytes, CachedEntry] = {}
        self._changed = 0  # the last entry that changed a record
        self._lock = threading.Lock()  # of those who note

    def get(self, key: bytes) -> CachedEntry | None:
        """The entry that a record had; None if that is not known."""
        return self._entries.get(key)

    def note(self, seen: Mapping[bytes, Entry | None], changed: Iterable[bytes], seq: int, *, erased: bool) -> None:
        """Remember what a decision has read that was committed as an entry, but for what it changes.

        What it changed or erased is not kept here either. Others may have read that before, and come only now to note
        it; so what was decided before the last such change is not noted any more.
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
        """Something of this has moved."""
        for key in keys:
            self._entries.pop(key, None)


def _is_small(entry: Entry) -> bool:
    if len(entry.values) > MAX_VALUES:
        return False
    return sum([len(slot.content) for slot in entry.slots() if slot.content is not None]) <= MAX_BYTES


class CachedSnapshot(Snapshot):
    """Facts as they were last seen; only what is not known is read from the ledger."""

    def __init__(self, read: Callable[[], AbstractContextManager[LogReader]], rules: Rules, recent: EntryCache) -> None:
        super().__init__(None, rules)
        self._read = read
        self._entry_cache = recent
        self._entered: AbstractContextManager[LogReader] | None = None
        self.is_certain = True
        """Whether everything so far was read from one state of the ledger."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the state of the ledger, if one was needed. It was only read, so how it ended is no matter."""
        if self._entered is not None:
            self._entered.__exit__(None, None, None)

    @property
    def reading(self) -> LogReader:
        """One state of the ledger, which is entered when somebody needs it."""
        if self._reading is None:
            self._entered = self._read()
            self._reading = self._entered.__enter__()
        return self._reading

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, as far as is known; a `new` name has none.

        Where a state of the ledger is being read anyway, it is read there. What is remembered may be newer by now, and
        then a decision could rest on the new entry, and copy from the history that ends before it.
        """
        if key in self._entries:
            return self._entries[key]
        found = None if self._reading is not None else self._entry_cache.get(key)
        if found is None:
            if self._reading is not None or not new:
                return super().entry(key)
            self._entries[key] = None
        else:
            self._entries[key] = found.entry
            self.expected_leaves[key] = found.leaf
        self.is_certain = False
        return self._entries[key]
