"""What a name was at a time, as the web asks for it: Memento (RFC 7089).

    original resource   the name at the resolver
    timegate            takes `Accept-Datetime` and leads to the memento of that time
    memento             one version of the record, under the number of its entry: it stays the same for ever
    timemap             the list of all mementos: see `time_maps`

Which versions there are, and what of them may be seen, is decided in `past`: what was hidden since stays hidden, and a
name that is not public today has no past for the public. A version without a record, after a deletion, is no memento:
there is nothing to see. Who wants the exact state of the ledger at a moment asks with `at` (`past.moment`), and is told
that there was none.

Times of this protocol are whole seconds. A version counts from the second in which it was made, and of several in one
second the last is chosen, so that whoever asks for the time of a memento is given it.
"""

import re
from calendar import timegm
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.registry.access.permissions import shown
from perseid.registry.context import not_found
from perseid.registry.identity import Identity
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts
from perseid.registry.veil import MAX_SEARCHED
from perseid.wire.codes import ResponseCode

from .history import MAX_PAGE, Past, Seen
from .links import LINK_FORMAT, Link

ACCEPT_DATETIME: Final = "Accept-Datetime"
MEMENTO_DATETIME: Final = "Memento-Datetime"

MAX_WALKED: Final = MAX_SEARCHED
"""Versions that are looked at to find one: as many as the public is shown of anything. Who asks for an earlier time is
given the earliest of these."""

MAX_BEYOND: Final = MAX_PAGE
"""Versions that are looked at only to name the first one; of a longer past it is not named."""

_MICROSECOND: Final = 1_000_000
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# "IMF-fixdate = day-name "," SP date1 SP time-of-day SP GMT" (RFC 9110, section 5.6.7): "rfc1123-date" of RFC 7089.
_DATE: Final = re.compile(
    rf"(?:{'|'.join(_DAYS)}), ([0-9]{{2}}) ({'|'.join(_MONTHS)}) ([0-9]{{4}}) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
)
_EXAMPLE: Final = "Sun, 15 Nov 2026 10:00:00 GMT"


@dataclass(frozen=True, slots=True)
class Memento:
    """One version of a record."""

    seq: int
    """The entry that made it."""
    at: int
    """When, in microseconds since 1970."""

    @property
    def seconds(self) -> int:
        """When, as this protocol counts."""
        return self.at // _MICROSECOND

    @property
    def datetime(self) -> str:
        """When, as headers say it."""
        return http_date(self.seconds)


@dataclass(frozen=True, slots=True)
class Around:
    """A memento, and those before and behind it that may be seen."""

    handle: Handle
    """The name as it is registered."""
    memento: Memento
    last: Memento
    previous: Memento | None = None
    next: Memento | None = None
    first: Memento | None = None
    """None if it is too far back to be looked for, or may not be seen."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything about one name is to be had; absolute addresses. The door knows them."""

    original: str
    timegate: str
    timemap: Callable[[str, int | None], str] = field(compare=False)
    """The list in a media type, of the versions before an entry, or from the latest on."""
    memento: Callable[[int], str] = field(compare=False)
    """The version that an entry made."""


def read_datetime(text: str) -> int:
    """The time that `Accept-Datetime` names, in seconds since 1970. Raises `Refused`."""
    found = _DATE.fullmatch(text.strip(" "))
    if found is None:
        raise _unreadable(f"{shown(text)} is not a time of HTTP")
    # The date decides, whatever day of the week is named: that follows from it, and the RFC itself has wrong ones.
    month = _MONTHS.index(found[2]) + 1
    year, date, hour, minute, second = (int(found[group]) for group in (3, 1, 4, 5, 6))
    try:
        # Clocks may show a leap second, which has no number of its own: it is the beginning of the next.
        moment = datetime(year, month, date, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        moment = None
    if moment is None or second > 60:
        raise _unreadable(f"there is no such time as {shown(text)}")
    return timegm(moment.timetuple()) + (second == 60)


def http_date(seconds: int) -> str:
    """A time as headers say it, whatever the language of the machine."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day}, {moment.day:02} {month} {moment.year:04} {moment.hour:02}:{moment.minute:02}:{moment.second:02} GMT"


def negotiated(facts: Facts, who: Identity, handle: Handle, seconds: int | None) -> Around:
    """The memento of a time: the version that was there then. Raises `Refused` if there is no past to be seen.

    As the protocol demands, somebody who asks for a time before the first memento is given the first, and for one
    behind the last, be it in the future, the last; so is who names no time (None).
    """
    return _around(facts, who, handle, lambda version: seconds is None or version.seconds <= seconds)


def around(facts: Facts, who: Identity, handle: Handle, seq: int) -> Around:
    """The version of an entry, for answers about the past that were asked for otherwise. Raises `Refused`."""
    return _around(facts, who, handle, lambda version: version.seq <= seq)


def present_links(addresses: Addresses, *, with_map: bool = True) -> tuple[Link, ...]:
    """What is said with an answer about the present: where the past is to be had.

    Without a TimeMap where there is none, or where what it lists has other addresses.
    """
    gate = "original timegate" if addresses.timegate == addresses.original else "timegate"
    timemap = Link(addresses.timemap(LINK_FORMAT, None), "timemap", type=LINK_FORMAT)
    return Link(addresses.timegate, gate), *((timemap,) if with_map else ())


def memento_links(found: Around, addresses: Addresses, *, with_map: bool = True) -> tuple[Link, ...]:
    """What is said with a memento, and with the answer that leads to it."""
    said: dict[Memento, list[str]] = {found.memento: []}
    roles = (("first", found.first), ("prev", found.previous), ("next", found.next), ("last", found.last))
    for role, version in roles:
        if version is not None:
            said.setdefault(version, []).append(role)
    before = () if addresses.timegate == addresses.original else (Link(addresses.original, "original"),)
    mementos = [memento_link(version, addresses, *said[version]) for version in sorted(said, key=_by_number)]
    return (*before, *present_links(addresses, with_map=with_map), *mementos)


def memento_link(version: Memento, addresses: Addresses, *roles: str) -> Link:
    """The link to a memento; `first`, `prev` … are its roles."""
    relation = " ".join((*roles, "memento"))
    return Link(addresses.memento(version.seq), relation, others=(("datetime", version.datetime),))


def version_of(seen: Seen) -> Memento | None:
    """A version as a memento; None if there was no record."""
    return None if seen.entry.state is State.ABSENT else Memento(seen.entry.seq, seen.entry.at)


def _around(facts: Facts, who: Identity, handle: Handle, is_meant: Callable[[Memento], bool]) -> Around:
    """Walk back from today to the first version that is meant, and to the one before it."""
    past = Past(facts, who, handle)
    last = chosen = previous = later = earliest = second = None
    is_whole = True
    for walked, seen in enumerate(past.versions()):
        if walked >= (MAX_WALKED if previous is None else MAX_BEYOND):
            is_whole = False
            break
        version = version_of(seen)
        if version is None:
            continue
        last = last or version
        second, earliest = earliest, version
        if chosen is not None:
            previous = previous or version
        elif is_meant(version):
            chosen = version
        else:
            later = version
    if last is None or earliest is None:
        raise not_found(past.held)
    if chosen is None:  # all of them are later than what was asked for
        chosen, later = earliest, second
    first = earliest if is_whole and not past.cut else None
    return Around(past.held.handle, chosen, last, previous, later, first)


def _by_number(version: Memento) -> int:
    return version.seq


def _unreadable(reason: str) -> Refused:
    advice = f"write {ACCEPT_DATETIME}: {_EXAMPLE}"
    return Refused(ResponseCode.INVALID_VALUE, reason, advice, "RFC 7089")
