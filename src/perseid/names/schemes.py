"""The protocol of suffix schemes, and the allocation of unique numbers from a clock (P6).

A scheme, built-in (`pilin`, `cordra`, `uuid`, `pattern`) or third-party, mints and validates the suffixes of a
namespace. It has no state: clock, randomness and leases come in a `Source`.

A *lease* guarantees uniqueness: `lease(count, now)` reserves `count` consecutive numbers and returns the first,
max(last leased + 1, now). `lease(0, now)` returns the next number without reserving it. `MemoryLease` works within one
process; durable leases belong to the ledger.

An `Allocator` keeps the numbers near the clock: they can run ahead by `max_ahead`; beyond that it waits. With
`STRICT_CLOCK` no number is returned before its time, so at most one per millisecond. If the clock steps back, numbers
continue from the last leased one. It waits before it leases, so that a refused request loses no numbers.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeAlias

from .errors import InvalidName, NameMisuse
from .handle import Handle

Lease: TypeAlias = Callable[[int, int], int]
"""`lease(count, now)` → the first of `count` reserved numbers ≥ `now`; a count of 0 reserves none."""

DEFAULT_MAX_AHEAD = 3_600_000
"""One hour in milliseconds: 3.6 million names can be minted at once before minting slows to the clock."""

STRICT_CLOCK = 0
"""The `max_ahead` of the policy setting `strict_clock`: exactly 1,000 names per second."""

CHUNK_SIZE = 1_000
"""Numbers leased at a time: one second's worth, so that a waiting caller reserves little."""

DEFAULT_MAX_WAIT = 60_000
"""Maximum wait for one chunk, in milliseconds. A longer wait means that the clock stepped back by more than
`max_ahead`, or that some sixty callers share one strict clock. An error is better than a command that hangs for days
because the clock is wrong by days."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """Allocates leased numbers near the clock. Thread-safe."""

    lease: Lease
    clock: Callable[[], int]
    """The time in milliseconds, on the scale of the numbers."""
    sleep: Callable[[float], None]
    """Waits for N seconds."""
    max_ahead: int = DEFAULT_MAX_AHEAD
    """Milliseconds that a returned number may be ahead of the clock."""
    max_wait: int | None = DEFAULT_MAX_WAIT
    """Maximum wait for one chunk, in milliseconds; None waits forever."""

    def allocate(self, count: int) -> list[int]:
        """Return `count` new numbers in ascending order; wait if the clock has to catch up."""
        if count < 0:
            raise NameMisuse("P6", f"cannot allocate {count} numbers")
        numbers: list[int] = []
        while len(numbers) < count:
            size = min(CHUNK_SIZE, count - len(numbers))
            now = self.clock()
            self._wait_for(self.lease(0, now) + size - 1)
            first = self.lease(size, now)
            self._wait_for(first + size - 1)  # another caller may have been faster
            numbers.extend(range(first, first + size))
        return numbers

    def _wait_for(self, number: int) -> None:
        earliest = number - self.max_ahead
        max_wait = inf if self.max_wait is None else self.max_wait
        while (delay := earliest - self.clock()) > 0:
            if delay > max_wait:
                message = (
                    f"names have been minted up to {(delay + self.max_ahead) / 1000:,.0f} s ahead of the clock; "
                    f"the maximum is {self.max_ahead / 1000:,.0f} s. Check the clock, then try again"
                )
                raise NameMisuse("P6", message)
            self.sleep(delay / 1000)
            max_wait -= delay


class MemoryLease:
    """A lease in memory, for tests, benchmarks and trying out schemes."""

    def __init__(self, last: int = -1) -> None:
        self._last = last
        self._lock = threading.Lock()

    def __call__(self, count: int, now: int) -> int:
        """Reserve `count` numbers from `now` on; 0 returns the next number without reserving it."""
        with self._lock:
            first = max(self._last + 1, now)
            if count:
                self._last = first + count - 1
        return first


Details: TypeAlias = Mapping[str, str | int | None]
"""Facts that a scheme derives from a suffix, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Source:
    """Clock, randomness and leases of a scheme."""

    clock: Callable[[], int]
    """Unix time in nanoseconds, like `time.time_ns`."""
    random: Callable[[int], bytes]
    """Returns N unpredictable bytes, like `secrets.token_bytes`."""
    lease: Lease
    """Reserves numbers for an `Allocator`."""
    sleep: Callable[[float], None]
    """Waits for N seconds, like `time.sleep`."""
    max_ahead: int = DEFAULT_MAX_AHEAD
    """Milliseconds that a time-based suffix may run ahead of the clock; see `STRICT_CLOCK`."""
    max_wait: int | None = DEFAULT_MAX_WAIT
    """Milliseconds to wait for the clock before giving up; None waits forever."""


class Scheme(Protocol):
    """A way to create suffixes. Methods other than `mint` take whole handles because a scheme may restrict prefixes.

    A scheme whose suffixes end with a check character can set `has_check = True`; suggestions then try more.
    """

    @property
    def name(self) -> str:
        """The name in policies, such as `pilin`."""
        ...

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Create `count` suffixes, none of which was minted before from the same source."""
        ...

    def validate(self, handle: Handle) -> None:
        """Raise InvalidName if the handle does not follow the scheme."""
        ...

    def normalize(self, handle: Handle) -> Handle:
        """The canonical spelling; raises like `validate`."""
        ...

    def describe(self, handle: Handle) -> Details:
        """Facts about a valid handle; raises like `validate`."""
        ...


def check_count(count: int) -> None:
    """Reject a negative number of names."""
    if count < 0:
        raise NameMisuse("P6", f"cannot mint {count} names")


def relocate_error(problem: InvalidName, handle: Handle) -> InvalidName:
    """Convert the position of an error from the suffix to the whole handle."""
    return problem.with_position(None if problem.position is None else len(handle.prefix) + 1 + problem.position)
