"""Memento time travel (RFC 7089): mementos, TimeGates and TimeMaps of a record.

    original resource   the handle at the resolver
    timegate            accepts `Accept-Datetime` and redirects to the memento of that time
    memento             one version of the record, addressed by its entry: it never changes
    timemap             the paginated list of mementos (section 5)

`history` decides which versions are visible: what was hidden since stays hidden, and a handle that is not public today
has no public history. A version without a record, after a deletion, is not a memento. The exact state of the ledger at
a time is available with `at` (`history.seq_at_time`).

Times are whole seconds. A version is valid from the second in which it was created, and of several in one second the
last is chosen, so asking for the time of a memento returns that memento.

A page of a TimeMap has the versions before an entry, oldest first, and links the next page of older ones. The first
page starts with the latest. Each page is a TimeMap itself, with the time ranges of itself and of the pages that it
links (section 5.1.1).
"""

import re
from calendar import timegm
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Final

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.records.encoding import JsonObject, to_iso, write_json
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import not_found
from perseid.registry.identity import Identity
from perseid.registry.policy import case_rules
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .history import MAX_VERSIONS_SCANNED, RecordHistory, VisibleVersion, is_public
from .links import LINK_FORMAT, Link, format_link_format
from .paging import DEFAULT_PAGE, MAX_PAGE, page_size

ACCEPT_DATETIME: Final = "Accept-Datetime"
MEMENTO_DATETIME: Final = "Memento-Datetime"

MAX_VERSIONS_SCANNED_BACK: Final = MAX_VERSIONS_SCANNED
"""Versions examined to find one, as many as the public sees. Earlier times get the earliest of these."""

MAX_VERSIONS_BEYOND: Final = MAX_PAGE
"""Versions examined only to name the first one; in a longer history it is not named."""

_MICROSECONDS: Final = 1_000_000
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# "IMF-fixdate = day-name "," SP date1 SP time-of-day SP GMT" (RFC 9110, section 5.6.7): "rfc1123-date" of RFC 7089.
_DATE: Final = re.compile(
    rf"(?:{'|'.join(_DAYS)}), ([0-9]{{2}}) ({'|'.join(_MONTHS)}) ([0-9]{{4}}) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
)


@dataclass(frozen=True, slots=True)
class Memento:
    """One version of a record."""

    seq: int
    """The entry that created it."""
    at: int
    """In microseconds since 1970."""

    @property
    def seconds(self) -> int:
        """Time in seconds, the resolution of the protocol."""
        return self.at // _MICROSECONDS

    @property
    def datetime(self) -> str:
        """Time as an HTTP date."""
        return format_http_date(self.seconds)


@dataclass(frozen=True, slots=True)
class MementoNeighbors:
    """A memento and its visible neighbors."""

    handle: Handle
    """The handle as registered; as requested if it is deleted and comes from `find_deleted`."""
    memento: Memento
    last: Memento
    previous: Memento | None = None
    next: Memento | None = None
    first: Memento | None = None
    """None if it is too far back, or not visible."""


@dataclass(frozen=True, slots=True)
class MementoUrls:
    """Absolute URLs of the resources of one handle, supplied by the interface."""

    original: str
    timegate: str
    timemap: Callable[[str, int | None], str] = field(compare=False)
    """The TimeMap in a media type, of the versions before an entry or from the latest on."""
    memento: Callable[[int], str] = field(compare=False)
    """The version created by an entry."""


def parse_http_date(text: str) -> int:
    """Parse `Accept-Datetime` to seconds since 1970. Raises `Refused`."""
    match = _DATE.fullmatch(text.strip(" "))
    if match is None:
        raise _invalid_datetime(f"Invalid HTTP date {display_name(text)}")
    # The day of the week is ignored: it follows from the date, and the RFC itself has wrong ones.
    month = _MONTHS.index(match[2]) + 1
    year, date, hour, minute, second = (int(match[group]) for group in (3, 1, 4, 5, 6))
    try:
        # A leap second has no timestamp of its own: it equals the start of the next second.
        time = datetime(year, month, date, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        time = None
    if time is None or second > 60:
        raise _invalid_datetime(f"Invalid HTTP date {display_name(text)}: no such time")
    return timegm(time.timetuple()) + (second == 60)


def format_http_date(seconds: int) -> str:
    """Format a time as an HTTP date, independent of the locale."""
    return formatdate(seconds, usegmt=True)


def find_at_time(snapshot: Snapshot, identity: Identity, handle: Handle, seconds: int | None) -> MementoNeighbors:
    """Return the memento at a time. Raises `Refused` if there is no visible history.

    As the protocol requires, a time before the first memento returns the first; a time after the last, or None, the
    last.
    """
    return _find_memento(snapshot, identity, handle, lambda version: seconds is None or version.seconds <= seconds)


def find_at_entry(snapshot: Snapshot, identity: Identity, handle: Handle, seq: int) -> MementoNeighbors:
    """Return the version as of an entry. Raises `Refused`."""
    return _find_memento(snapshot, identity, handle, lambda version: version.seq <= seq)


def find_deleted(snapshot: Snapshot, handle: Handle) -> MementoNeighbors | None:
    """Return the last version of a deleted handle; None if it has a record, or nothing that everybody may see.

    The handle is in the requested spelling: the answers view keeps no names of deleted records.
    """
    stored = snapshot.stored(handle)
    if stored.exists or not stored.policy.show_past:
        return None
    known = snapshot.last_version(stored)
    if known is None:
        entries = case_rules.history(snapshot, stored)
        entry = next((entry for entry in entries if entry.state is not State.ABSENT), None)
        known = (entry.seq, entry.at) if entry is not None and is_public(entry.state) else (0, 0)
    last = Memento(*known)
    bare, _, _ = stored.policy.lookup_form(handle)
    return MementoNeighbors(stored.policy.normalize(bare), last, last) if last.seq else None


def present_links(urls: MementoUrls, *, with_map: bool = True) -> tuple[Link, ...]:
    """Return the links of a response about the present version.

    Without a TimeMap where there is none, or where it lists other addresses.
    """
    gate = "original timegate" if urls.timegate == urls.original else "timegate"
    timemap = Link(urls.timemap(LINK_FORMAT, None), "timemap", type=LINK_FORMAT)
    return Link(urls.timegate, gate), *((timemap,) if with_map else ())


def memento_links(neighbors: MementoNeighbors, urls: MementoUrls, *, with_map: bool = True) -> tuple[Link, ...]:
    """Return the links of a memento and of the redirect to it."""
    roles_by_memento: dict[Memento, list[str]] = {neighbors.memento: []}
    roles = (
        ("first", neighbors.first),
        ("prev", neighbors.previous),
        ("next", neighbors.next),
        ("last", neighbors.last),
    )
    for role, version in roles:
        if version is not None:
            roles_by_memento.setdefault(version, []).append(role)
    original = () if urls.timegate == urls.original else (Link(urls.original, "original"),)
    mementos = [
        memento_link(version, urls, *roles_by_memento[version]) for version in sorted(roles_by_memento, key=_seq)
    ]
    return (*original, *present_links(urls, with_map=with_map), *mementos)


def memento_link(version: Memento, urls: MementoUrls, *roles: str) -> Link:
    """Return the link to a memento; `first`, `prev` … are its roles."""
    relation = " ".join((*roles, "memento"))
    return Link(urls.memento(version.seq), relation, others=(("datetime", version.datetime),))


def to_memento(version: VisibleVersion) -> Memento | None:
    """Convert a version to a memento; None if there was no record."""
    return None if version.entry.state is State.ABSENT else Memento(version.entry.seq, version.entry.at)


def _find_memento(
    snapshot: Snapshot, identity: Identity, handle: Handle, matches: Callable[[Memento], bool]
) -> MementoNeighbors:
    """Walk back from today to the first matching version and the one before it."""
    history = RecordHistory(snapshot, identity, handle)
    last = chosen = previous = later = earliest = second = None
    is_complete = True
    for count, visible in enumerate(history.versions()):
        if count >= (MAX_VERSIONS_SCANNED_BACK if previous is None else MAX_VERSIONS_BEYOND):
            is_complete = False
            break
        version = to_memento(visible)
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
        raise not_found(history.stored)
    if chosen is None:  # all of them are later than requested
        chosen, later = earliest, second
    first = earliest if is_complete and not history.truncated else None
    return MementoNeighbors(history.stored.handle, chosen, last, previous, later, first)


def _seq(version: Memento) -> int:
    return version.seq


def _invalid_datetime(reason: str) -> Refused:
    return Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.USE_ACCEPT_DATETIME(), "RFC 7089")


JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time range of a page: its earliest and latest memento."""

    earliest: Memento
    latest: Memento | None
    """None where later ones may be added."""

    def ends(self) -> Iterator[tuple[str, Memento]]:
        """Yield both ends with their names in links."""
        yield "from", self.earliest
        if self.latest is not None:
            yield "until", self.latest

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        return tuple([(name, end.datetime) for name, end in self.ends()])

    def to_object(self) -> JsonObject:
        return {name: to_iso(end.seconds) for name, end in self.ends()}

    @classmethod
    def of(cls, mementos: Sequence[Memento]) -> "TimeRange | None":
        """Return the range of mementos, latest first; None if there are none."""
        return cls(mementos[-1], mementos[0]) if mementos else None


@dataclass(frozen=True, slots=True)
class TimeMap:
    """A page of mementos."""

    handle: Handle
    """The handle as registered."""
    mementos: tuple[Memento, ...]
    """Oldest first."""
    before: int | None
    """Only mementos before this entry; None on the first page, which starts with the latest."""
    older: TimeRange | None
    """Range of the next page; None on the last page."""
    complete: bool
    """Whether the oldest memento of the last page is the first version: otherwise the rest is hidden."""
    newest: TimeRange | None = None
    """Range of the first page, which grows; None if not examined."""

    @property
    def next_before(self) -> int | None:
        """Cursor of the next page; None on the last."""
        return None if self.older is None or not self.mementos else self.mementos[0].seq

    def links(self, urls: MementoUrls) -> tuple[Link, ...]:
        """Return the page as links."""

        def page(relation: str, before: int | None, time_range: TimeRange | None) -> Link:
            others = () if time_range is None else time_range.attributes
            return Link(urls.timemap(LINK_FORMAT, before), relation, type=LINK_FORMAT, others=others)

        return (
            Link(urls.original, "original"),
            page("self", self.before, TimeRange.of(self.mementos[::-1])),
            Link(urls.timegate, "timegate"),
            *[page("timemap", before, time_range) for before, time_range in self._others()],
            *[memento_link(version, urls, *self._roles(version)) for version in self.mementos],
        )

    def to_link_format(self, urls: MementoUrls) -> str:
        """Format as `application/link-format`."""
        return format_link_format(self.links(urls))

    def to_json(self, urls: MementoUrls) -> str:
        """Format as JSON, with the member names that Memento clients know."""
        return write_json(self.to_object(urls))

    def to_object(self, urls: MementoUrls) -> JsonObject:
        listed = [_memento_object(version, urls) for version in self.mementos]
        mementos: JsonObject = {"list": listed}
        for version, item in zip(self.mementos, listed, strict=True):
            mementos |= dict.fromkeys(self._roles(version), item)
        pages: list[JsonObject] = [
            {"uri": urls.timemap(JSON, before)} | ({} if time_range is None else time_range.to_object())
            for before, time_range in self._others()
        ]
        plain: JsonObject = {
            "original_uri": urls.original,
            "timegate_uri": urls.timegate,
            "timemap_uri": {
                "link_format": urls.timemap(LINK_FORMAT, self.before),
                "json_format": urls.timemap(JSON, self.before),
            },
            "mementos": mementos,
            "complete": self.complete,
        }
        return plain | ({"timemap_index": pages} if pages else {})

    def _others(self) -> list[tuple[int | None, TimeRange | None]]:
        """Return the linked pages, the first and the next: their cursors and time ranges."""
        first: list[tuple[int | None, TimeRange | None]] = [] if self.before is None else [(None, self.newest)]
        return first if self.older is None else [*first, (self.next_before, self.older)]

    def _roles(self, version: Memento) -> tuple[str, ...]:
        """Return whether a memento is the first or last of all."""
        roles = []
        if self.older is None and self.complete and version == self.mementos[0]:
            roles.append("first")
        if self.before is None and version == self.mementos[-1]:
            roles.append("last")
        return tuple(roles)


def get_time_map(
    snapshot: Snapshot, identity: Identity, handle: Handle, before: int | None = None, limit: int = DEFAULT_PAGE
) -> TimeMap:
    """Return a page of the mementos of a handle before an entry. Raises `Refused`.

    What has been hidden since is found by walking back from today, so older pages cost more; see `history`. The next
    page is examined too, for its time range.
    """
    if before is not None and before < 1:
        reason = f"Invalid entry {before}: entries start at 1"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.USE_PAGE_URL())
    history = RecordHistory(snapshot, identity, handle)
    limit = page_size(limit)
    newest_page: list[Memento] = []
    mementos_found: list[Memento] = []
    exists = False
    for visible in history.versions(before):
        exists = True
        version = to_memento(visible)
        if version is None:
            continue
        if len(newest_page) < limit:
            newest_page.append(version)
        if before is None or version.seq < before:
            mementos_found.append(version)
        if len(mementos_found) == 2 * limit:
            break
    if not exists:
        history.check_empty_page(before)
    # With full access the walk does not start from today.
    newest = None if history.can_read or not newest_page else TimeRange(newest_page[-1], None)
    mementos, older = tuple(mementos_found[:limit][::-1]), TimeRange.of(mementos_found[limit:])
    return TimeMap(history.stored.handle, mementos, before, older, not history.truncated, newest)


def _memento_object(version: Memento, urls: MementoUrls) -> JsonObject:
    return {"datetime": to_iso(version.seconds), "uri": urls.memento(version.seq), "seq": version.seq}
