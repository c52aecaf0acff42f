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

TimeMaps: which mementos there are of a name (RFC 7089, section 5), page by page.

A page has the versions before an entry, oldest first, and says where the next page of older ones is. The first page
begins with the latest. Each page is a TimeMap of its own, and tells of itself and of those that it links from which
time and until which they reach (section 5.1.1).
"""

import re
from calendar import timegm
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.records.encoding import to_iso
from perseid.records.json_parsing import JsonObject, write_json
from perseid.registry.access.permissions import display_name
from perseid.registry.context import not_found
from perseid.registry.identity import Identity
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .history import DEFAULT_PAGE, MAX_PAGE, MAX_VERSIONS_SCANNED, RecordHistory, VisibleVersion, page_size
from .links import LINK_FORMAT, Link, format_link_format

ACCEPT_DATETIME: Final = "Accept-Datetime"
MEMENTO_DATETIME: Final = "Memento-Datetime"

MAX_VERSIONS_SCANNED_BACK: Final = MAX_VERSIONS_SCANNED
"""Versions that are looked at to find one: as many as the public is shown of anything. Who asks for an earlier time is
given the earliest of these."""

MAX_VERSIONS_BEYOND: Final = MAX_PAGE
"""Versions that are looked at only to name the first one; of a longer past it is not named."""

_MICROSECONDS: Final = 1_000_000
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
        return self.at // _MICROSECONDS

    @property
    def datetime(self) -> str:
        """When, as headers say it."""
        return format_http_date(self.seconds)


@dataclass(frozen=True, slots=True)
class MementoNeighbors:
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
class MementoUrls:
    """Where everything about one name is to be had; absolute addresses. The door knows them."""

    original: str
    timegate: str
    timemap: Callable[[str, int | None], str] = field(compare=False)
    """The list in a media type, of the versions before an entry, or from the latest on."""
    memento: Callable[[int], str] = field(compare=False)
    """The version that an entry made."""


def parse_http_date(text: str) -> int:
    """The time that `Accept-Datetime` names, in seconds since 1970. Raises `Refused`."""
    found = _DATE.fullmatch(text.strip(" "))
    if found is None:
        raise _invalid_datetime(f"{display_name(text)} is not a time of HTTP")
    # The date decides, whatever day of the week is named: that follows from it, and the RFC itself has wrong ones.
    month = _MONTHS.index(found[2]) + 1
    year, date, hour, minute, second = (int(found[group]) for group in (3, 1, 4, 5, 6))
    try:
        # Clocks may show a leap second, which has no number of its own: it is the beginning of the next.
        moment = datetime(year, month, date, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        moment = None
    if moment is None or second > 60:
        raise _invalid_datetime(f"there is no such time as {display_name(text)}")
    return timegm(moment.timetuple()) + (second == 60)


def format_http_date(seconds: int) -> str:
    """A time as headers say it, whatever the language of the machine."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day}, {moment.day:02} {month} {moment.year:04} {moment.hour:02}:{moment.minute:02}:{moment.second:02} GMT"


def find_at_time(snapshot: Snapshot, identity: Identity, handle: Handle, seconds: int | None) -> MementoNeighbors:
    """The memento of a time: the version that was there then. Raises `Refused` if there is no past to be seen.

    As the protocol demands, somebody who asks for a time before the first memento is given the first, and for one
    behind the last, be it in the future, the last; so is who names no time (None).
    """
    return _find_memento(snapshot, identity, handle, lambda version: seconds is None or version.seconds <= seconds)


def find_at_entry(snapshot: Snapshot, identity: Identity, handle: Handle, seq: int) -> MementoNeighbors:
    """The version of an entry, for answers about the past that were asked for otherwise. Raises `Refused`."""
    return _find_memento(snapshot, identity, handle, lambda version: version.seq <= seq)


def present_links(addresses: MementoUrls, *, with_map: bool = True) -> tuple[Link, ...]:
    """What is said with an answer about the present: where the past is to be had.

    Without a TimeMap where there is none, or where what it lists has other addresses.
    """
    gate = "original timegate" if addresses.timegate == addresses.original else "timegate"
    timemap = Link(addresses.timemap(LINK_FORMAT, None), "timemap", type=LINK_FORMAT)
    return Link(addresses.timegate, gate), *((timemap,) if with_map else ())


def memento_links(found: MementoNeighbors, addresses: MementoUrls, *, with_map: bool = True) -> tuple[Link, ...]:
    """What is said with a memento, and with the answer that leads to it."""
    said: dict[Memento, list[str]] = {found.memento: []}
    roles = (("first", found.first), ("prev", found.previous), ("next", found.next), ("last", found.last))
    for role, version in roles:
        if version is not None:
            said.setdefault(version, []).append(role)
    before = () if addresses.timegate == addresses.original else (Link(addresses.original, "original"),)
    mementos = [memento_link(version, addresses, *said[version]) for version in sorted(said, key=_seq)]
    return (*before, *present_links(addresses, with_map=with_map), *mementos)


def memento_link(version: Memento, addresses: MementoUrls, *roles: str) -> Link:
    """The link to a memento; `first`, `prev` … are its roles."""
    relation = " ".join((*roles, "memento"))
    return Link(addresses.memento(version.seq), relation, others=(("datetime", version.datetime),))


def to_memento(seen: VisibleVersion) -> Memento | None:
    """A version as a memento; None if there was no record."""
    return None if seen.entry.state is State.ABSENT else Memento(seen.entry.seq, seen.entry.at)


def _find_memento(
    snapshot: Snapshot, identity: Identity, handle: Handle, matches: Callable[[Memento], bool]
) -> MementoNeighbors:
    """Walk back from today to the first version that is meant, and to the one before it."""
    past = RecordHistory(snapshot, identity, handle)
    last = chosen = previous = later = earliest = second = None
    is_whole = True
    for walked, seen in enumerate(past.versions()):
        if walked >= (MAX_VERSIONS_SCANNED_BACK if previous is None else MAX_VERSIONS_BEYOND):
            is_whole = False
            break
        version = to_memento(seen)
        if version is None:
            continue
        last = last or version
        second, earliest = earliest, version
        if chosen is not None:
            previous = previous or version
        elif matches(version):
            chosen = version
        else:
            later = version
    if last is None or earliest is None:
        raise not_found(past.stored)
    if chosen is None:  # all of them are later than what was asked for
        chosen, later = earliest, second
    first = earliest if is_whole and not past.truncated else None
    return MementoNeighbors(past.stored.handle, chosen, last, previous, later, first)


def _seq(version: Memento) -> int:
    return version.seq


def _invalid_datetime(reason: str) -> Refused:
    advice = f"write {ACCEPT_DATETIME}: {_EXAMPLE}"
    return Refused(ResponseCode.INVALID_VALUE, reason, advice, "RFC 7089")


JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The times over which a page reaches: those of its earliest and latest memento."""

    earliest: Memento
    latest: Memento | None
    """None where later ones may be added."""

    def ends(self) -> Iterator[tuple[str, Memento]]:
        """Both ends, by the names that they have in links."""
        yield "from", self.earliest
        if self.latest is not None:
            yield "until", self.latest

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """As a link says it."""
        return tuple([(name, end.datetime) for name, end in self.ends()])

    def to_object(self) -> JsonObject:
        """As JSON says it."""
        return {name: to_iso(end.seconds) for name, end in self.ends()}

    @classmethod
    def of(cls, mementos: Sequence[Memento]) -> "TimeRange | None":
        """That of mementos, latest first; None if there are none."""
        return cls(mementos[-1], mementos[0]) if mementos else None


@dataclass(frozen=True, slots=True)
class TimeMap:
    """A page of the mementos of a name."""

    handle: Handle
    """The name as it is registered."""
    mementos: tuple[Memento, ...]
    """Oldest first."""
    before: int | None
    """Only those before this entry are meant; None on the first page, which begins with the latest."""
    older: TimeRange | None
    """That of the next page; None on the last page."""
    complete: bool
    """Whether, on the last page, the oldest one is the first that there was: otherwise the rest is not shown."""
    newest: TimeRange | None = None
    """That of the first page, to which later ones are added; None if it was not looked at."""

    @property
    def next_before(self) -> int | None:
        """Where the next page begins; None on the last."""
        return None if self.older is None or not self.mementos else self.mementos[0].seq

    def links(self, addresses: MementoUrls) -> tuple[Link, ...]:
        """The page as links."""

        def page(relation: str, before: int | None, required_scope: TimeRange | None) -> Link:
            others = () if required_scope is None else required_scope.attributes
            return Link(addresses.timemap(LINK_FORMAT, before), relation, type=LINK_FORMAT, others=others)

        return (
            Link(addresses.original, "original"),
            page("self", self.before, TimeRange.of(self.mementos[::-1])),
            Link(addresses.timegate, "timegate"),
            *[page("timemap", before, required_scope) for before, required_scope in self._others()],
            *[memento_link(version, addresses, *self._roles(version)) for version in self.mementos],
        )

    def to_link_format(self, addresses: MementoUrls) -> str:
        """The page as a document of the type `application/link-format`."""
        return format_link_format(self.links(addresses))

    def to_json(self, addresses: MementoUrls) -> str:
        """The page as JSON, with the names that clients of this protocol know."""
        return write_json(self.to_object(addresses))

    def to_object(self, addresses: MementoUrls) -> JsonObject:
        """The same as a plain object."""
        listed = [_memento_object(version, addresses) for version in self.mementos]
        mementos: JsonObject = {"list": listed}
        for version, item in zip(self.mementos, listed, strict=True):
            mementos |= dict.fromkeys(self._roles(version), item)
        pages: list[JsonObject] = [
            {"uri": addresses.timemap(JSON, before)} | ({} if required_scope is None else required_scope.to_object())
            for before, required_scope in self._others()
        ]
        plain: JsonObject = {
            "original_uri": addresses.original,
            "timegate_uri": addresses.timegate,
            "timemap_uri": {
                "link_format": addresses.timemap(LINK_FORMAT, self.before),
                "json_format": addresses.timemap(JSON, self.before),
            },
            "mementos": mementos,
            "complete": self.complete,
        }
        return plain | ({"timemap_index": pages} if pages else {})

    def _others(self) -> list[tuple[int | None, TimeRange | None]]:
        """The pages that this one links, the first and the next: where each begins, and over which times it reaches."""
        first: list[tuple[int | None, TimeRange | None]] = [] if self.before is None else [(None, self.newest)]
        return first if self.older is None else [*first, (self.next_before, self.older)]

    def _roles(self, version: Memento) -> tuple[str, ...]:
        """Whether a memento is the first or the last of all."""
        roles = []
        if self.older is None and self.complete and version == self.mementos[0]:
            roles.append("first")
        if self.before is None and version == self.mementos[-1]:
            roles.append("last")
        return tuple(roles)


def get_time_map(
    snapshot: Snapshot, identity: Identity, handle: Handle, before: int | None = None, limit: int = DEFAULT_PAGE
) -> TimeMap:
    """A page of the mementos of a name, those before an entry. Raises `Refused`.

    What has been hidden since is found by walking back from today, so a page further back costs more; see `past`. The
    next page is walked through as well, to tell over which times it reaches.
    """
    if before is not None and before < 1:
        raise Refused(
            ResponseCode.INVALID_VALUE, f"there is nothing before entry {before}", "take the address of a page"
        )
    past = RecordHistory(snapshot, identity, handle)
    limit = page_size(limit)
    walked: list[Memento] = []
    found: list[Memento] = []
    known = False
    for seen in past.versions(before):
        known = True
        version = to_memento(seen)
        if version is None:
            continue
        if len(walked) < limit:
            walked.append(version)
        if before is None or version.seq < before:
            found.append(version)
        if len(found) == 2 * limit:
            break
    if not known and (before is None or not past.administers or past.stored.entry is None):
        raise not_found(past.stored)
    # Whoever may read everything has not been shown it from today back.
    newest = None if past.can_read or not walked else TimeRange(walked[-1], None)
    mementos, older = tuple(found[:limit][::-1]), TimeRange.of(found[limit:])
    return TimeMap(past.stored.handle, mementos, before, older, not past.truncated, newest)


def _memento_object(version: Memento, addresses: MementoUrls) -> JsonObject:
    return {"datetime": to_iso(version.seconds), "uri": addresses.memento(version.seq), "seq": version.seq}
