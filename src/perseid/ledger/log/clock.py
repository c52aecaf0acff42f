"""A clock for entries that refuses to work when the system time is wrong.

An entry is dated max(now, date of the previous entry), so dates never go back. One entry dated a year ahead would stop
all later dates, and leased identifiers, for a year. So a process refuses to write when the wall clock

- shows a time before this version of the program was released;
- is more than five minutes behind the last entry;
- has moved more than five minutes against the monotonic clock since the process started;
- is, at the start, more than 400 days after the last entry.

The operator can accept the clock once. Smaller steps back are clamped to the last date and counted.
"""

from collections.abc import Callable
from typing import Final

from perseid.ledger.errors import ClockError

SECOND: Final = 1_000_000
"""All times here are in microseconds."""

TOLERANCE: Final = 300 * SECOND
"""Five minutes: more than the error of a synchronized clock or of one set by hand."""

MAX_GAP: Final = 400 * 86_400 * SECOND
"""400 days: an installation in use writes at least once a year. A longer gap is more likely a wrong clock."""

RELEASE_DATE: Final = 1_793_664_000 * SECOND
"""2026-11-03: no correct clock shows an earlier time to this version of the program."""


class CheckedClock:
    """Returns dates for entries, or raises `ClockError`."""

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int], *, accepted: bool = False) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._accepted = accepted
        self._started = False

    def accept(self) -> None:
        """Accept the current time. Later jumps are still detected."""
        self._accepted = True
        self._offset = self._wall() - self._monotonic()

    def now(self) -> int:
        """Return the wall-clock time unchecked, for anything that is not written to entries."""
        return self._wall()

    def date(self, last: int | None) -> int:
        """Return the date of the next entry; `last` is the date of the last one."""
        now = self._wall()
        drift = now - self._monotonic() - self._offset
        if abs(drift) > TOLERANCE:
            raise ClockError(f"the clock jumped by {drift // SECOND:,} s while the program was running")
        if not self._accepted:
            self._check(now, last)
        self._started = True
        return now if last is None else max(now, last)

    def _check(self, now: int, last: int | None) -> None:
        if now < RELEASE_DATE:
            raise ClockError("the clock shows a time before the release of this program version")
        if last is None:
            return
        if now < last - TOLERANCE:
            raise ClockError(f"the clock is {(last - now) // SECOND:,} s behind the last entry of the ledger")
        if not self._started and now > last + MAX_GAP:
            days = (now - last) // (86_400 * SECOND)
            raise ClockError(f"the clock is {days:,} days ahead of the last entry of the ledger")
