"""What this process saw last, and deciding by it without reading it again.

Most of what decisions rest on hardly ever changes: policies, homed prefixes, prefix handles, creators. And a name that
somebody wants to make is nearly always new. So an operation is first decided on what is remembered, and on the name
being new. The commit checks everything a decision rested on, whatever it was taken from: if something is not so any
more the operation is decided again, from the ledger. What is not committed is checked by nobody, so refusals, and
answers without a change, that rest on such facts are not given: those too are decided again.

Reading costs a transaction of the database, and this saves it to most changes.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Self

from perseid.ledger.entry import Entry
from perseid.ledger.reading import Reading

from .facts import Facts, Rules

MAX_ENTRIES: Final = 1_024
"""How many entries are remembered: as many as the namespaces that one process works with at a time."""

MAX_VALUES: Final = 50
"""Entries with more values are not: they would take much room, and are rare where rules and rights are kept."""


class Recent:
    """The latest entries of records, as decisions of this process have seen them. For any number of threads."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}

    def get(self, key: bytes) -> Entry | None:
        """The entry that a record had; None if that is not known."""
        return self._entries.get(key)

    def note(self, seen: Mapping[bytes, Entry | None], changed: frozenset[bytes]) -> None:
        """Remember what a decision has read, but for what it changes."""
        for key, entry in seen.items():
            if entry is not None and key not in changed and len(entry.values) <= MAX_VALUES:
                if len(self._entries) >= MAX_ENTRIES:
                    self._entries.clear()  # the few that matter are back at once
                self._entries[key] = entry

    def forget(self, keys: Mapping[bytes, object]) -> None:
        """Something of this has moved."""
        for key in keys:
            self._entries.pop(key, None)


class Expected(Facts):
    """Facts as they were last seen; only what is not known is read from the ledger."""

    def __init__(self, read: Callable[[], AbstractContextManager[Reading]], rules: Rules, recent: Recent) -> None:
        super().__init__(None, rules)
        self._read = read
        self._recent = recent
        self._entered: AbstractContextManager[Reading] | None = None
        self.is_certain = True
        """Whether everything so far was read from one state of the ledger."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the state of the ledger, if one was needed. It was only read, so how it ended is no matter."""
        if self._entered is not None:
            self._entered.__exit__(None, None, None)

    @property
    def reading(self) -> Reading:
        """One state of the ledger, which is entered when somebody needs it."""
        if self._reading is None:
            self._entered = self._read()
            self._reading = self._entered.__enter__()
        return self._reading

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, as far as is known; a `new` name has none."""
        if key in self._entries:
            return self._entries[key]
        found = self._recent.get(key)
        if found is None and not new:
            return super().entry(key)
        self.is_certain = False
        self._entries[key] = found
        return found
