"""The clock is checked, not trusted: one start with a wrong clock must not poison the ledger for ever.

Entries are dated max(now, the previous entry's date), so a date never goes back. If a clock that ran a year ahead had
dated one entry, all later ones would stand still for a year, and so would leased names. Hence a process refuses to
write, and says why, when the wall clock

- shows a time before this version of the program was released;
- is more than five minutes behind the last entry;
- has moved more than five minutes against the monotonic clock since the process started;
- lies, at the start, more than 400 days after the last entry.

An operator who has looked at the clock may accept it once. Smaller steps back are bridged (dates stand still) and
counted.
"""

from collections.abc import Callable
from typing import Final

from perseid.ledger.errors import ClockError

SECOND: Final = 1_000_000
"""All times here are microseconds."""

TOLERANCE: Final = 300 * SECOND
"""Five minutes: more than any clock that is kept by the network differs, and than an operator sets it by hand."""

MAX_GAP: Final = 400 * 86_400 * SECOND
"""400 days: an installation that is used at all writes once a year. A longer pause is more likely a wrong clock."""

RELEASE_DATE: Final = 1_793_664_000 * SECOND
"""2026-11-03: no honest clock shows an earlier time to this version of the program."""


class CheckedClock:
    """Tells the time for entries, or refuses to."""

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int], *, accepted: bool = False) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._accepted = accepted
        self._started = False
        self.clamped = 0
        """How often the clock stood behind the last entry by less than the tolerance."""

    def accept(self) -> None:
        """Take the clock as it stands, on an operator's word. Jumps from there on are noticed all the same."""
        self._accepted = True
        self._offset = self._wall() - self._monotonic()

    def now(self) -> int:
        """What the wall clock shows, unjudged: for what is not written into entries."""
        return self._wall()

    def date(self, last: int | None) -> int:
        """The date of the next entry, where the last one has the date `last`."""
        now = self._wall()
        drift = now - self._monotonic() - self._offset
        if abs(drift) > TOLERANCE:
            raise ClockError(f"the clock has jumped by {drift // SECOND:,} s while the program was running")
        if not self._accepted:
            self._check(now, last)
        self._started = True
        if last is None or now >= last:
            return now
        self.clamped += 1
        return last

    def _check(self, now: int, last: int | None) -> None:
        if now < RELEASE_DATE:
            raise ClockError("the clock shows a time before this version of the program was released")
        if last is None:
            return
        if now < last - TOLERANCE:
            raise ClockError(f"the clock is {(last - now) // SECOND:,} s behind the last entry of the ledger")
        if not self._started and now > last + MAX_GAP:
            days = (now - last) // (86_400 * SECOND)
            raise ClockError(f"the clock is {days:,} days ahead of the last entry of the ledger")
