"""Numbers that are never given twice, tied to a clock (P6).

A *lease* is the one place where uniqueness is decided: `lease(count, now)` answers the first of `count`
consecutive numbers that were never leased before and are not below `now`; that is max(last leased + 1, now).
`lease(0, now)` is a look: it answers the number that would come next and takes none. `MemoryLease` does so within one
process; durable leases belong to the ledger.

The *allocator* keeps the numbers near the clock: it may run ahead by `max_ahead` and waits beyond that. With
`STRICT_CLOCK` no number is handed out before its moment, so at most one a millisecond. A clock that stepped back is
treated alike: the numbers go on from the last leased one. It looks and waits before it leases, so that numbers which
it then refuses to give are not lost.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from .errors import NameMisuse

Lease: TypeAlias = Callable[[int, int], int]
"""`lease(count, now)` → the first of `count` numbers ≥ `now` that nobody else gets; a count of 0 takes none."""

DEFAULT_MAX_AHEAD = 3_600_000
"""One hour in milliseconds: 3.6 million names may be minted at once before the minter slows to the clock's pace."""

STRICT_CLOCK = 0
"""The `max_ahead` that allows no lead at all (the policy setting `strict_clock`): exactly 1,000 names a second."""

CHUNK_SIZE = 1_000
"""Numbers leased at a time: one second's worth, so that a waiting caller never holds more than it soon gives out."""

DEFAULT_MAX_WAIT = 60_000
"""The longest wait for one chunk, in milliseconds. Longer means that the clock is wrong (it stepped back by more than
`max_ahead`), or that some sixty callers share one strict clock. A clock that is wrong by days would hang a command for
days without a word, so an error now serves better; who wants to wait all the same says so."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """Hands out leased numbers, none further ahead of the clock than allowed. Safe to share between threads."""

    lease: Lease
    """Where the numbers come from."""
    clock: Callable[[], int]
    """The time in milliseconds, on the scale of the numbers."""
    sleep: Callable[[float], None]
    """Waits for so many seconds."""
    max_ahead: int = DEFAULT_MAX_AHEAD
    """How far, in milliseconds, a number may lie ahead of the clock when it is handed out."""
    max_wait: int | None = DEFAULT_MAX_WAIT
    """The longest wait for one chunk, in milliseconds; None waits without end."""

    def allocate(self, count: int) -> list[int]:
        """So many new numbers, ascending within this call; waits where the clock has to catch up."""
        if count < 0:
            raise NameMisuse("P6", f"{count} numbers cannot be taken")
        numbers: list[int] = []
        while len(numbers) < count:
            size = min(CHUNK_SIZE, count - len(numbers))
            now = self.clock()
            self._wait_for(self.lease(0, now) + size - 1)
            first = self.lease(size, now)
            self._wait_for(first + size - 1)  # somebody else may have been faster
            numbers.extend(range(first, first + size))
        return numbers

    def _wait_for(self, number: int) -> None:
        """Wait until the number may be handed out."""
        earliest = number - self.max_ahead
        max_wait = inf if self.max_wait is None else self.max_wait
        while (delay := earliest - self.clock()) > 0:
            if delay > max_wait:
                message = (
                    f"names have been given out up to {(delay + self.max_ahead) / 1000:,.0f} s ahead of the clock; "
                    f"{self.max_ahead / 1000:,.0f} s are allowed. Check the clock, then try again"
                )
                raise NameMisuse("P6", message)
            self.sleep(delay / 1000)
            max_wait -= delay


class MemoryLease:
    """A lease for one process, which forgets when the process ends: tests, benches, and schemes tried by hand."""

    def __init__(self, last: int = -1) -> None:
        self._last = last
        self._lock = threading.Lock()

    def __call__(self, count: int, now: int) -> int:
        """Lease `count` numbers from `now` on; with 0 only look which one is next."""
        with self._lock:
            first = max(self._last + 1, now)
            if count:
                self._last = first + count - 1
        return first
