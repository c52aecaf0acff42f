"""Possible states of handles over time, recorded by their writers: the reference for the server's responses.

Each handle belongs to one writer, who makes one change at a time. A change ends in one of three ways: acknowledged;
refused, so that it never happened; or unknown, because there was no response. After an unknown result the handle is not
used any more: the change may happen late, when a waiting datagram is read.
"""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

State = str | None
"""The token of the last change, or None without a record."""


class Outcome(Enum):
    """How a change ended."""

    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Change:
    """A change of a handle."""

    state: State
    started: float
    ended: float = math.inf
    outcome: Outcome = Outcome.OPEN


@dataclass(slots=True)
class History:
    """All changes of a handle."""

    name: str
    changes: list[Change] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, state: State) -> Change:
        """Record that a change is about to be sent."""
        change = Change(state, time.monotonic())
        with self.lock:
            self.changes.append(change)
        return change

    def end(self, change: Change, outcome: Outcome) -> None:
        """Record its result."""
        with self.lock:
            change.ended, change.outcome = time.monotonic(), outcome

    @property
    def is_known(self) -> bool:
        """Whether the state is certain."""
        return len(self.possible(math.inf, math.inf)) == 1

    @property
    def state(self) -> State:
        (state,) = self.possible(math.inf, math.inf)
        return state

    def possible(self, asked: float, answered: float) -> set[State]:
        """The possible states of a response between these times."""
        found: set[State] = {None}
        with self.lock:
            for change in self.changes:
                if change.started > answered:
                    break
                if change.outcome is Outcome.REFUSED:
                    continue
                if change.outcome is Outcome.DONE and change.ended <= asked:
                    found = set()
                found.add(change.state)
        return found

    def accepts(self, entries: Sequence[State]) -> bool:
        """Whether these ledger entries are possible: each acknowledged change once, in order."""
        with self.lock:
            done = [change.state for change in self.changes if change.outcome is Outcome.DONE]
            maybe = [change.state for change in self.changes if change.outcome in (Outcome.UNKNOWN, Outcome.OPEN)]
        return list(entries) in (done, done + maybe)


class Book:
    """The histories of all handles."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}
        self._names: list[str] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> History:
        return self._histories[name]

    def __iter__(self) -> Iterator[History]:
        with self._lock:
            return iter(list(self._histories.values()))

    def new(self, name: str) -> History:
        """Start the history of a new handle."""
        with self._lock:
            assert name not in self._histories, name
            self._histories[name] = History(name)
            self._names.append(name)
            return self._histories[name]

    def pick(self, chance: float, among_last: int = 0) -> History | None:
        """A random handle, or one of the last ones; None if there is none."""
        with self._lock:
            names = self._names[-among_last:]
            return self._histories[names[int(chance * len(names))]] if names else None

    def count(self, outcome: Outcome) -> int:
        """The number of changes with an outcome."""
        return sum(change.outcome is outcome for history in self for change in history.changes)
