"""What somebody looks for, and whether a record is it: by where it leads, what it holds, whose it is, when it changed.

All that is asked for has to hold together, and what is asked about values has to hold of one and the same value: a
host and a type mean a value of the type that leads to the host.

`Search.plan` says how it is found. Of several things the one is looked up that leads to the fewest records, as far as
that can be known without looking: a value, a URL, a host, a path, an owner, a moment, a prefix, a type. The records
that come of it are looked at for the rest.

Finding names by what their records hold: which lead to this URL, which are whose, what has changed (S4, S5).

Whoever may list the names of a namespace finds them (see `past_names`): with LIST_HANDLES in every state, by an open
policy those that the public may know. A value that is not public is found by those only who may read it. Deleted names
are not found: they are nothing any more; the log tells of them.

Pages are by the key of an index, so a page costs the same wherever it begins, and there is no end to how many there
can be. What may not be seen, or is not what was looked for after all, is passed over, so much of it at a time: a page
may be short, or empty, although there are more. A record that is changed between two pages may be seen twice, or, if it
moved to a place that was passed, not at all.

What is private has no part in the order, nor in whether there is more: a record stands where the values have it that
may be read, a full page goes on only if something is left that may be seen, and its end is sealed (`page_ends`). What
remains to be noticed is that very much was passed over.

A pattern for URLs without a beginning has no range of keys. Then all keys are looked through, for some time, and the
page says so.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.views import search_keys
from perseid.ledger.views.search_keys import (
    KEY_LENGTH,
    KeyRange,
    index_keys,
    location_keys,
    owner_ranges,
    type_ranges,
    value_ranges,
)
from perseid.ledger.views.url_glob import ALL_KEYS, UrlGlob
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.types import HS_ADMIN, HS_SECKEY, TypeQuery, has_type
from perseid.records.value import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS, SearchUsage, authorize
from perseid.registry.access.permissions import display_name
from perseid.registry.identity import Identity
from perseid.registry.policy.authority_metadata import first_valid, name_key, parse_stored_party, values_of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.results import InvalidQuery, Refused
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.wire.codes import ResponseCode

from .history import DEFAULT_PAGE, is_allowed, is_public, page_size
from .listing import MAX_SCANNED, Visibility, listing_requirement
from .paging import VALUE_OVERHEAD, CursorCodec, PageBudget, mark

EncodedValue = tuple[bytes, Value]
"""A value in its binary form, and taken apart."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How records are found that may be what is looked for."""

    ranges: tuple[KeyRange, ...] = ()
    """Keys of the view by which records are found, one range after the other; no two have a key in common."""
    names: tuple[bytes, bytes] | None = None
    """Or else the keys of records from the first up to the second."""
    since: int | None = None
    """Or else all that changed behind this entry."""
    scans: UrlGlob | None = None
    """Whether no range is narrower than everything, so that all keys are compared with this."""


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody looks for; what is left out may be anything."""

    url: str | None = None
    """A URL, with `*` for any characters: see `target_globs`."""
    host: str | None = None
    """A host, with its subdomains."""
    path: str | None = None
    """How a path begins, on any host."""
    type: str | None = None
    """As in resolution: with a dot at its end, its subtypes as well."""
    value: bytes | None = None
    """The data of a value, exactly."""
    owner: str | None = None
    """The handle of whom it belongs to: see `owners`."""
    prefix: str | None = None
    since: int | None = None
    """The latest change is behind this entry."""

    def prepared(self) -> "PreparedSearch":
        """The same, checked and ready to be compared; raises `Refused`."""
        if self == Search():
            raise InvalidQuery("nothing to look for is named", "name a URL, a host, a type …")
        if self.prefix is not None and ("/" in self.prefix or _prefix_handle(self.prefix) is None):
            reason = f"{display_name(self.prefix)} is no prefix"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, "name a prefix, such as 12345", "H2")
        try:
            owner = None if self.owner is None else Handle.for_lookup(self.owner)
            places = [] if self.host is None else [search_keys.host_range(self.host, subdomains=True)]
            places += [] if self.path is None else [search_keys.path_prefix_range(self.path)]
            glob = None if self.url is None else UrlGlob.parse(self.url)
            ranges = None if glob is None else glob.ranges()
        except InvalidData as problem:
            raise InvalidQuery(str(problem), "write it as in https://example.org/*") from problem
        if self.owner is not None and owner is None:
            reason = f"{display_name(self.owner)} is no handle"
            raise InvalidQuery(reason, "name whom it belongs to, as in 12345/ann")
        types = None if self.type is None else TypeQuery((self.type,))
        return PreparedSearch(self, glob, ranges, tuple(places), types, owner)


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """What somebody looks for, ready to be compared with records."""

    search: Search
    glob: UrlGlob | None
    _glob_ranges: tuple[KeyRange, ...] | None
    _places: tuple[KeyRange, ...]
    """Each of which holds a key of the place."""
    _types: TypeQuery | None
    _owner: Handle | None

    @property
    def is_about_values(self) -> bool:
        """Whether some value has to be as asked for."""
        search = self.search
        asked = (search.url, search.host, search.path, search.type, search.value)
        return any(each is not None for each in asked)

    def plan(self) -> SearchPlan:
        """How to find it."""
        search = self.search
        if search.value is not None:
            return SearchPlan(value_ranges(search.value))
        if self._glob_ranges is not None:
            return SearchPlan(self._glob_ranges)
        if self._places:
            return SearchPlan(self._places[:1])
        if search.owner is not None:
            return SearchPlan(owner_ranges(search.owner))
        if search.since is not None:
            return SearchPlan(since=search.since)
        if search.prefix is not None:
            first = record_key(f"{search.prefix}/")
            return SearchPlan(names=(first, first[:-1] + bytes((first[-1] + 1,))))
        ranges = ALL_KEYS if search.type is None else type_ranges(search.type)
        return SearchPlan(ranges, scans=self.glob if ranges == ALL_KEYS else None)

    def may_match(self, entry: Entry) -> bool:
        """Whether a record can be it, by its name and its latest change."""
        search = self.search
        if search.since is not None and entry.seq <= search.since:
            return False
        return search.prefix is None or fold(entry.handle.partition("/")[0]) == fold(search.prefix)

    def meets(self, policy: Policy, entry: Entry, values: Sequence[EncodedValue]) -> tuple[Value, ...] | None:
        """Those of some values of a record that are as asked for; None if the record is not it.

        Where nothing is asked about values, none are named.
        """
        if self._owner is not None and not is_owner(policy, entry.handle, [value for _, value in values], self._owner):
            return None
        if not self.is_about_values:
            return ()
        found = tuple([value for content, value in values if self._matches_value(content, value)])
        return found or None

    def _matches_value(self, content: bytes, value: Value) -> bool:
        search = self.search
        if self._types is not None and not self._types.finds(value.type):
            return False
        if search.value is not None and (value.data != search.value or _is_unsearchable(value)):
            return False
        if self.glob is None and not self._places:
            return True
        return any(self._matches_url(keys) for keys in location_keys(content))

    def _matches_url(self, keys: tuple[bytes, ...]) -> bool:
        if self.glob is not None and not self.glob.matches(keys[0]):
            return False
        return all(place.contains_any(keys) for place in self._places)


def _prefix_handle(prefix: str) -> Handle | None:
    return Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{prefix}")


_UNSEARCHABLE_TYPES: Final = (HS_ADMIN, HS_SECKEY)


def _is_unsearchable(value: Value) -> bool:
    """Secrets are found by nobody, and administrators by their names."""
    return any(has_type(value.type, base) for base in _UNSEARCHABLE_TYPES)


def is_owner(policy: Policy, handle: str, values: Sequence[Value], owner: Handle) -> bool:
    """Whether a record belongs to somebody, by the values given."""
    name = Handle.parse_lenient(handle)
    wanted = name_key(policy, name, owner)
    return any(name_key(policy, name, each) == wanted for each in find_owners(policy, values))


def find_owners(policy: Policy, values: Sequence[Value]) -> list[Handle]:
    """To whom a record belongs: whom it names as owner where the policy tells owners from managers, otherwise its
    administrators. Where these are no parties but prefix handles, or nobody is named, its creator too (A5).
    """
    named = _parties(values_of_exact_type(values, policy.owner_type)) if policy.owner_type else _administrators(values)
    if policy.authority and all(each.is_prefix_handle for each in named):
        named += _parties(values_of_exact_type(values, policy.creator_type))
    return named


def _parties(values: Iterable[Value]) -> list[Handle]:
    """The handles that values name, in the bare form in which they are kept."""
    found = []
    for value in values:
        party = first_valid([value], parse_stored_party)
        if party is not None and str(party).encode() == value.data:
            found.append(party)
    return found


def _administrators(values: Iterable[Value]) -> list[Handle]:
    found = []
    for value in values:
        if has_type(value.type, HS_ADMIN):
            try:
                name = Handle.for_lookup(Admin.from_bytes(value.data).administrator.handle)
            except InvalidData:
                continue
            found += [] if name is None else [name]
    return found


SCAN_SECONDS: Final = 1.0
"""How long one page looks through everything: others wait for an answer too."""

_MIN_BATCH: Final = 50
_MAX_BATCH: Final = 1_000
_SCAN_BATCH: Final = 5_000

Position = tuple[int, bytes, int]
"""Where somebody is on the way: the number of a range, a key in it, an entry. Without ranges, only the entry counts."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A name whose record is what was looked for."""

    handle: str
    state: State
    seq: int
    """Its latest entry."""
    at: int
    """When it last changed, in microseconds since 1970."""
    values: tuple[Value, ...]
    """The values that are as asked for; none if nothing was asked about values."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Some of what was found, in the order of the index."""

    items: tuple[SearchResult, ...]
    following: str | None
    """Where the next page begins; None if this is the last one."""
    scans: bool
    """Whether everything had to be looked through, for lack of an index; then a page ends when its time is over."""


def find(  # noqa: PLR0913 - the last ones are for those who know better
    snapshot: Snapshot,
    identity: Identity,
    search: Search,
    after: str | None = None,
    limit: int = DEFAULT_PAGE,
    seconds: float = SCAN_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    *,
    weigh: Callable[[SearchResult], int] | None = None,
) -> SearchPage:
    """The names that somebody may see and that are what is looked for, behind where a page ended. Raises `Refused`.

    A page ends early where the records are large: see `page_room`. Who tells more of a record than it holds says with
    `weigh` how many octets more that is.
    """
    wanted = search.prepared()
    seen = _ResultFilter(snapshot, identity, wanted)
    walk = _IndexScan(snapshot.reading, search, wanted.plan(), min(max(_MIN_BATCH, limit), _MAX_BATCH))
    budget = PageBudget(page_size(limit))
    found: list[SearchResult] = []
    begun = clock()
    steps = walk.steps(after)
    last: Position | None = None
    more, passed = False, 0
    for place, entry in steps:
        try:
            item = None if entry is None else seen.look(entry)
        except _PageLimitReached:
            more = True
            break
        is_visible = item is not None and walk.is_first(place, item.contents)
        if item is not None and is_visible:
            if not budget.take(item.octets + (0 if weigh is None else weigh(item.found))):
                more = True
                break
            found.append(item.found)
            last = place
        elif not budget.is_full:
            last = place  # a full page ends with what it tells
        passed += not is_visible
        over = clock() - begun > seconds if walk.plan.scans else passed >= MAX_SCANNED
        if over or snapshot.usage.lookups > _MAX_PAGE_LOOKUPS:
            more = next(steps, None) is not None
            break
    following = walk.told(last) if more and last is not None else None
    return SearchPage(tuple(found), following, walk.plan.scans is not None)


_MAX_PAGE_LOOKUPS: Final = MAX_GROUP_LOOKUPS // 2
"""References that one page follows to decide who may see what, and then ends: nothing is denied for lack of them."""


class _PageLimitReached(Exception):
    """Of one prefix, or record, more cannot be decided on this page whether it may be seen."""


class _ResultFilter:
    """What one who asks may see of what was found."""

    def __init__(self, snapshot: Snapshot, identity: Identity, wanted: PreparedSearch) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._wanted = wanted
        self._visibility = Visibility(snapshot, identity)
        self._matches: dict[int, _Match | None] = {}  # a record has a step for each of its keys
        prefix = wanted.search.prefix
        if prefix is not None:
            # Who asks about one namespace is told that they may not; elsewhere what may not be seen is passed over.
            requirement = listing_requirement(prefix, snapshot.policy(prefix))
            decision = authorize(identity, requirement, snapshot, snapshot.rules.administration, snapshot.usage)
            if not decision.allowed:
                raise Refused.from_decision(decision)

    def look(self, entry: Entry) -> "_Match | None":
        """The record of an entry as it may be told; None if it is not what is looked for. Raises `_Enough`.

        What a request may search for rights is limited. A search that had only what others left over tells nothing, so
        the page ends before such a record; on the next one it is the first, for which it is searched with all of it.
        """
        if entry.seq not in self._matches:
            usage = self._snapshot.usage
            was_fresh = usage == SearchUsage()
            item = self._look(entry)
            if usage.is_exhausted and not was_fresh:
                if self._matches:
                    raise _PageLimitReached
                usage.lookups = usage.members = 0
                self._visibility = Visibility(self._snapshot, self._identity)
                item = self._look(entry)
            self._matches[entry.seq] = item
        return self._matches[entry.seq]

    def _look(self, entry: Entry) -> "_Match | None":
        if entry.state is State.ABSENT or not self._wanted.may_match(entry):
            return None
        if fold(entry.handle.partition("/")[0]) == SITE_PREFIX:
            return None  # the installation's own records are no names
        right = self._visibility.right(entry.handle)
        if right is None:
            raise _PageLimitReached
        if not right.lists or not (right.administers or is_public(entry.state)):
            return None
        return self._match_entry(entry)

    def _match_entry(self, entry: Entry) -> "_Match | None":
        """The values that are as asked for, of those that may be read."""
        try:
            policy = self._snapshot.policy(entry.handle.partition("/")[0])
        except Refused:
            return None  # of a namespace whose policy cannot be read nothing is known
        every: list[EncodedValue] = list(zip(entry.contents(), entry.record(), strict=True))
        public = [each for each in every if each[1].is_public]
        readable = [each for each in every if each[1].is_public or Permission.ADMIN_READ in each[1].permissions]
        by_all, met = self._wanted.meets(policy, entry, readable), self._wanted.meets(policy, entry, public)
        by = public
        if by_all != met and is_allowed(
            self._snapshot, self._identity, permissions.read(Handle.parse_lenient(entry.handle))
        ):
            met, by = by_all, readable
        if met is None:
            return None
        return _Match(SearchResult(entry.handle, entry.state, entry.seq, entry.at, met), [content for content, _ in by])


@dataclass(frozen=True, slots=True)
class _Match:
    """A record that is what was looked for."""

    found: SearchResult
    contents: list[bytes]
    """The values, in their binary form, that may be known: by these it has its place in the order."""

    @property
    def octets(self) -> int:
        """What it takes on a page: all of it is held until the page ends, also what is not told."""
        return len(self.found.handle) + sum([VALUE_OVERHEAD + len(content) for content in self.contents])


class _IndexScan:
    """Goes through the records that may be what is looked for, in the order of an index."""

    def __init__(self, reading: LogReader, search: Search, plan: SearchPlan, at_once: int) -> None:
        self._reading = reading
        self._at_once = at_once
        self._ends = CursorCodec(reading, search)
        self._first: dict[int, tuple[int, bytes] | None] = {}  # where an entry is met first, found out once
        self.plan = plan

    def steps(self, after: str | None) -> Iterator[tuple[Position, Entry | None]]:
        """The records behind where a page ended, each with its place; None where a place leads to nothing."""
        place = (0, b"", 0) if after is None else self._place(after)
        if self.plan.ranges:
            return self._by_scan(place) if self.plan.scans else self._by_keys(place)
        return self._by_names(place) if self.plan.names else self._by_log(place)

    def is_first(self, place: Position, contents: list[bytes]) -> bool:
        """Whether a record whose values may be known so far is met here for the first time."""
        if not self.plan.ranges:
            return True
        number, key, seq = place
        if seq not in self._first:
            candidates = (each for each in self._keys(contents) if not self.plan.scans or self._is_candidate(each[1]))
            self._first[seq] = next(candidates, None)
        return self._first[seq] == (number, key)

    def told(self, place: Position) -> str:
        """A place, for whoever may not know it."""
        number, key, seq = place
        return self._ends.told(seq, mark(number, key)) if self.plan.ranges else self._ends.told(seq)

    def _place(self, told: str) -> Position:
        found = self._ends.read(told)
        if found is None or found[0] > self._reading.size:  # where an older state of the ledger was put back
            raise _unknown_cursor(told)
        entry = self._reading.entry(found[0])
        if not self.plan.ranges:
            return 0, entry.key, entry.seq
        for number, key in self._keys(entry.contents()):
            if mark(number, key) == found[1]:
                return number, key, entry.seq
        raise _unknown_cursor(told)  # what it was has been erased since

    def _keys(self, contents: list[bytes]) -> list[tuple[int, bytes]]:
        """The keys of values in the ranges, in the order in which they are met."""
        keys = index_keys(contents)
        ranges = enumerate(self.plan.ranges)
        return sorted((number, key) for number, one in ranges for key in keys if one.first <= key < one.end)

    def _by_keys(self, place: Position) -> Iterator[tuple[Position, Entry | None]]:
        number, key, seq = place
        for which, one in enumerate(self.plan.ranges):
            if which < number:
                continue
            after = (key, seq) if which == number else (b"", 0)
            more = True
            while more:
                rows, more = self._reading.find_by_keys(one.first, one.end, self._at_once, after)
                yield from (((which, found, entry.seq), entry) for found, entry in rows)
                after = (rows[-1][0], rows[-1][1].seq) if rows else after

    def _by_scan(self, place: Position) -> Iterator[tuple[Position, Entry | None]]:
        number, key, seq = place
        for which, one in enumerate(self.plan.ranges):
            if which < number:
                continue
            after = (key, seq) if which == number else (b"", 0)
            while rows := self._reading.target_rows(one.first, one.end, _SCAN_BATCH, after):
                for found, seq_found in rows:
                    entry = self._reading.entry(seq_found) if self._is_candidate(found) else None
                    yield (which, found, seq_found), entry
                if len(rows) < _SCAN_BATCH:
                    break
                after = rows[-1]

    def _is_candidate(self, key: bytes) -> bool:
        """Whether a key, which may be cut, can be that of a place that is looked for."""
        glob = self.plan.scans
        return glob is None or len(key) >= KEY_LENGTH or glob.matches(key)

    def _by_names(self, place: Position) -> Iterator[tuple[Position, Entry | None]]:
        assert self.plan.names is not None  # noqa: S101 - it is asked before
        first, end = self.plan.names
        if place[1]:
            first = place[1] + b"\0"
        more = True
        while more:
            entries, more = self._reading.names_page(first, end, self._at_once)
            yield from (((0, entry.key, entry.seq), entry) for entry in entries)
            first = entries[-1].key + b"\0" if entries else first

    def _by_log(self, place: Position) -> Iterator[tuple[Position, Entry | None]]:
        since, size = max(self.plan.since or 0, place[2]), self._reading.size
        for first in range(since, size, self._at_once):
            for entry in self._reading.log(first, min(first + self._at_once, size)):
                is_latest = self._reading.latest(entry.key) == entry.seq
                yield (0, entry.key, entry.seq), entry if is_latest else None


def _unknown_cursor(told: str) -> Refused:
    reason = f"no page of this search ended at {display_name(told)}"
    return InvalidQuery(reason, "begin anew, and go on where a page says that it ended")
