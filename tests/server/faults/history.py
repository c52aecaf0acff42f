"""What names may say at a moment, kept by those who change them: the measure for what the server answers.

Each name belongs to one writer, who makes one change at a time. A change is begun, and ends in one of three ways: it
was acknowledged; it was refused, and never happened; or nobody knows, because the answer did not come. After the last
of these the name is left alone: the change may happen late, when a datagram is read that waited for a process, and
whatever was written after it would be no better known.
"""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

State = str | None
"""The token of the last change, or None where there is no record."""


class Outcome(Enum):
    """How a change ended."""

    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Change:
    """One change of a name."""

    state: State
    begun: float
    ended: float = math.inf
    outcome: Outcome = Outcome.OPEN


@dataclass(slots=True)
class History:
    """All changes of a name."""

    name: str
    changes: list[Change] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, state: State) -> Change:
        """Note that a change is about to be asked for."""
        change = Change(state, time.monotonic())
        with self.lock:
            self.changes.append(change)
        return change

    def end(self, change: Change, outcome: Outcome) -> None:
        """Note how it went."""
        with self.lock:
            change.ended, change.outcome = time.monotonic(), outcome

    @property
    def is_known(self) -> bool:
        """Whether it is certain what the name says."""
        return len(self.possible(math.inf, math.inf)) == 1

    @property
    def state(self) -> State:
        """What it says."""
        (state,) = self.possible(math.inf, math.inf)
        return state

    def possible(self, asked: float, answered: float) -> set[State]:
        """What an answer may say that was asked for and given at these moments."""
        found: set[State] = {None}
        with self.lock:
            for change in self.changes:
                if change.begun > answered:
                    break
                if change.outcome is Outcome.REFUSED:
                    continue
                if change.outcome is Outcome.DONE and change.ended <= asked:
                    found = set()
                found.add(change.state)
        return found

    def accepts(self, entries: Sequence[State]) -> bool:
        """Whether the ledger may hold these entries of the name: each acknowledged change once, in order."""
        with self.lock:
            wanted = [change.state for change in self.changes if change.outcome is Outcome.DONE]
            perhaps = [change.state for change in self.changes if change.outcome in (Outcome.UNKNOWN, Outcome.OPEN)]
        return list(entries) in (wanted, wanted + perhaps)


class Book:
    """The histories of all names."""

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
        """Begin the history of a name that nobody had before."""
        with self._lock:
            assert name not in self._histories, name
            self._histories[name] = History(name)
            self._names.append(name)
            return self._histories[name]

    def pick(self, chance: float, among_last: int = 0) -> History | None:
        """Some name, or some of the last ones; None while there is none."""
        with self._lock:
            names = self._names[-among_last:]
            return self._histories[names[int(chance * len(names))]] if names else None

    def count(self, outcome: Outcome) -> int:
        """How many changes ended so."""
        return sum(change.outcome is outcome for history in self for change in history.changes)
