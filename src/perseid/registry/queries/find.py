"""Search for records by target, value, type, words of a title, owner, prefix or latest change (S4, S5).

All criteria must match together, and all criteria about values must match one and the same value: a host and a type
select a value of that type whose URL is on that host. Words are about the record: all of them must be in one of its
titles. `PreparedSearch.plan` chooses the most selective index that can be known without looking: value, URL, words,
host, path, owner, latest change, prefix, type. Its records are then filtered.

Users who can list a namespace can search it (see `listing`): with LIST_HANDLES in every state, through an open policy
only public records. Users who can read a record, such as its owner, find it in every namespace and state. Private
values match only for users who can read them. Deleted handles are not found; the log has them.

Pages follow the keys of an index, so a page costs the same wherever it starts. Records that the caller may not see, or
that do not match, are skipped, a limited number per page: a page can be short or empty although there are more. A
record that changes between two pages can appear twice, or not at all if it moved to a position already passed.

Private data affects neither the order nor whether there is more: a record is placed by the values that the caller can
read, a full page continues only if something visible is left, and its cursor is encrypted (`paging`). The only thing
observable is that very much was skipped.

A URL pattern without a fixed start has no key range. Then all keys are scanned, for a limited time, and the page says
so.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import key_range
from perseid.ledger.views import search_keys
from perseid.ledger.views.search_keys import (
    KEY_LENGTH,
    KeyRange,
    index_keys,
    location_keys,
    owner_ranges,
    target_keys,
    type_ranges,
    value_ranges,
    word_range,
)
from perseid.ledger.views.url_glob import ALL_KEYS, UrlGlob
from perseid.names.handle import Handle, fold
from perseid.records.admin import Admin
from perseid.records.data_types import interpret_as
from perseid.records.errors import InvalidData
from perseid.records.record import Permission, Value
from perseid.records.titles import MIN_WORD, find_words, read_line, select_titles, title_rank
from perseid.records.types import HS_ADMIN, HS_SECKEY, TypeQuery, has_type
from perseid.registry.access.authorization import SearchUsage
from perseid.registry.access.permissions import RequiredScope, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import require_prefix
from perseid.registry.identity import Anonymous, Identity, TokenIdentity
from perseid.registry.policy.authority import first_valid, name_key, parse_stored_party, values_of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.results import InvalidQuery, Refused
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.schema.common import HandleState
from perseid.schema.namespaces import Scope
from perseid.schema.queries import Selectors

from .history import can_read, is_public, seq_at_time
from .listing import MAX_PAGE_LOOKUPS, MAX_SCANNED, Visibility, require_listing
from .paging import DEFAULT_PAGE, VALUE_OVERHEAD, CursorCodec, PageBudget, mark, page_size

EncodedValue = tuple[bytes, Value]
"""A value in its binary form, and parsed."""


class HasEntry(Protocol):
    """A record with its handle and the number of its entry, in any form."""

    @property
    def handle(self) -> str: ...

    @property
    def seq(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How to find candidate records."""

    ranges: tuple[KeyRange, ...] = ()
    """Key ranges of the search view, in order; they do not overlap."""
    names: tuple[bytes, bytes] | None = None
    """Or the record keys from the first up to the second."""
    since: int | None = None
    """Or everything that changed after this entry."""
    scans: UrlGlob | None = None
    """The pattern to compare all keys with, if no range narrows the search."""
    alternatives: bool = False
    """Whether each of the ranges has all matching records: the smallest one is enough."""


@dataclass(frozen=True, slots=True)
class Search:
    """Search criteria; None matches anything."""

    url: str | None = None
    """A URL, with `*` for any characters: see `perseid.ledger.views.url_glob`."""
    host: str | None = None
    """A host, including its subdomains."""
    path: str | None = None
    """The start of a path, on any host."""
    type: str | None = None
    """As in resolution: a trailing dot includes subtypes."""
    value: bytes | None = None
    """The exact data of a value."""
    owner: str | None = None
    """The handle of the owner: see `find_owners`."""
    prefix: str | None = None
    since: int | None = None
    """The latest change is after this entry."""
    words: str | None = None
    """Words of a title, in any order, each from its start: see `perseid.records.titles`."""
    state: HandleState | None = None
    """The state of the handle; not enough on its own."""

    def prepare(self) -> "PreparedSearch":
        """Validate the criteria; raises `Refused`."""
        if replace(self, state=None) == Search():
            raise InvalidQuery("No search criterion given", AdviceKind.GIVE_CRITERION())
        if self.prefix is not None:
            require_prefix(self.prefix)
        try:
            owner = None if self.owner is None else Handle.for_lookup(self.owner)
            url_ranges = [] if self.host is None else [search_keys.host_range(self.host, subdomains=True)]
            url_ranges += [] if self.path is None else [search_keys.path_prefix_range(self.path)]
            glob = None if self.url is None else UrlGlob.parse(self.url)
            ranges = None if glob is None else glob.ranges()
        except InvalidData as problem:
            raise InvalidQuery(str(problem), AdviceKind.USE_URL_PATTERN()) from problem
        if self.owner is not None and owner is None:
            reason = f"Invalid owner handle {display_name(self.owner)}"
            raise InvalidQuery(reason, AdviceKind.OWNER_EXAMPLE())
        types = None if self.type is None else TypeQuery((self.type,))
        words = () if self.words is None else tuple(dict.fromkeys(find_words(self.words)))
        if self.words is not None and not words:
            reason = f"{display_name(self.words)} has no word of at least {MIN_WORD} letters or digits"
            raise InvalidQuery(reason, AdviceKind.WORDS_EXAMPLE())
        return PreparedSearch(self, glob, ranges, tuple(url_ranges), types, owner, words)


def build_search(reader: LogReader, selectors: Selectors, parse_owner: Callable[[str], str], now: int) -> Search:
    """Return the search for selectors. `parse_owner` reads a handle as the interface does; `now` is in microseconds.

    The time of `changed_since` becomes the number of an entry, so that a job and all pages select the same records.
    """
    return Search(
        url=selectors.url,
        host=selectors.host,
        path=selectors.path,
        type=selectors.type,
        value=None if selectors.value is None else selectors.value.encode("utf-8", "surrogateescape"),
        owner=None if selectors.owner is None else parse_owner(selectors.owner),
        prefix=selectors.prefix,
        since=None if selectors.changed_since is None else seq_at_time(reader, selectors.changed_since, now),
        words=selectors.words,
    )


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """Validated criteria that records can be compared with."""

    search: Search
    glob: UrlGlob | None
    _glob_ranges: tuple[KeyRange, ...] | None
    _url_ranges: tuple[KeyRange, ...]
    """A matching URL has a key in each of them."""
    _types: TypeQuery | None
    _owner: Handle | None
    _words: tuple[str, ...]
    """A matching title has for each of them a word that starts with it."""

    @property
    def is_about_values(self) -> bool:
        """Whether some value must match."""
        search = self.search
        criteria = (search.url, search.host, search.path, search.type, search.value)
        return any(each is not None for each in criteria)

    def plan(self) -> SearchPlan:
        search = self.search
        if search.value is not None:
            return SearchPlan(value_ranges(search.value))
        if self._glob_ranges is not None:
            return SearchPlan(self._glob_ranges)
        if self._words:
            return SearchPlan(tuple([word_range(word) for word in self._words]), alternatives=True)
        if self._url_ranges:
            return SearchPlan(self._url_ranges[:1])
        if search.owner is not None:
            return SearchPlan(owner_ranges(search.owner))
        if search.since is not None:
            return SearchPlan(since=search.since)
        if search.prefix is not None:
            return SearchPlan(names=key_range(f"{search.prefix}/"))
        ranges = ALL_KEYS if search.type is None else type_ranges(search.type)
        return SearchPlan(ranges, scans=self.glob if ranges == ALL_KEYS else None)

    def may_match(self, entry: HasEntry) -> bool:
        """Whether a record can match, by its handle and latest change."""
        search = self.search
        if search.since is not None and entry.seq <= search.since:
            return False
        return search.prefix is None or fold(entry.handle.partition("/")[0]) == fold(search.prefix)

    def meets(self, policy: Policy, entry: HasEntry, values: Sequence[EncodedValue]) -> tuple[Value, ...] | None:
        """Return the matching values of a record; None if the record does not match.

        Without criteria about values these are the titles with the words, if any are wanted.
        """
        if self._owner is not None and not is_owner(policy, entry.handle, [value for _, value in values], self._owner):
            return None
        titles = self._find_titles(policy, values) if self._words else ()
        if titles is None or not self.is_about_values:
            return titles
        matching = tuple([value for content, value in values if self.matches_value(content, value)])
        return matching or None

    def _find_titles(self, policy: Policy, values: Sequence[EncodedValue]) -> tuple[Value, ...] | None:
        """Return the titles that have all words; None if there are none."""
        candidates = []
        for _, value in values:
            rank = title_rank(value.type.encode().lower())
            if rank is not None and (text := read_line(value.data)) is not None:
                candidates.append((rank, value.is_public, (value, text)))
        return (
            tuple(
                [
                    value
                    for value, text in select_titles(candidates)
                    if self._has_words(find_words(text)) and fold(value.type) not in policy.identifier_types
                ]
            )
            or None
        )

    def _has_words(self, title: list[str]) -> bool:
        return all(any(word.startswith(start) for word in title) for start in self._words)

    def matches_value(self, content: bytes, value: Value) -> bool:
        """Whether a value, in its binary form and parsed, matches all criteria about values."""
        if not self.matches_type_and_data(value):
            return False
        if self.glob is None and not self._url_ranges:
            return True
        return any(self.matches_url(keys) for keys in location_keys(content))

    def matches_type_and_data(self, value: Value) -> bool:
        """Whether a value matches all criteria about values besides those about URLs."""
        if self._types is not None and not self._types.finds(value.type):
            return False
        search = self.search
        return search.value is None or (value.data == search.value and not _is_unsearchable(value))

    def matches_url(self, keys: tuple[bytes, ...]) -> bool:
        """Whether the URL with these full keys matches all criteria about URLs."""
        if self.glob is not None and not self.glob.matches(keys[0]):
            return False
        return all(each.contains_any(keys) for each in self._url_ranges)


_UNSEARCHABLE_TYPES: Final = (HS_ADMIN, HS_SECKEY)


def _is_unsearchable(value: Value) -> bool:
    """Secrets are never searchable; administrators are found by their handles."""
    return any(has_type(value.type, base) for base in _UNSEARCHABLE_TYPES)


def is_owner(policy: Policy, handle: str, values: Sequence[Value], owner: Handle) -> bool:
    """Whether a record has this owner, by the given values."""
    name = Handle.parse_lenient(handle)
    key = name_key(policy, name, owner)
    return any(name_key(policy, name, each) == key for each in find_owners(policy, values))


def find_owners(policy: Policy, values: Sequence[Value]) -> list[Handle]:
    """Return the owners of a record: those it names if the policy separates owners from managers, otherwise its
    administrators. If all of them are prefix handles, or there are none, its creator too (A5).
    """
    owners = _parties(values_of_exact_type(values, policy.owner_type)) if policy.owner_type else _administrators(values)
    if policy.authority and all(each.is_prefix_handle for each in owners):
        owners += _parties(values_of_exact_type(values, policy.creator_type))
    return owners


def _parties(values: Iterable[Value]) -> list[Handle]:
    """Return the handles in values of the bare stored form."""
    parties = []
    for value in values:
        party = first_valid([value], parse_stored_party)
        if party is not None and str(party).encode() == value.data:
            parties.append(party)
    return parties


def _administrators(values: Iterable[Value]) -> list[Handle]:
    admins = filter(None, (interpret_as(value, Admin) for value in values))
    return list(filter(None, (Handle.for_lookup(admin.administrator.handle) for admin in admins)))


SCAN_SECONDS: Final = 1.0
"""Time limit for one page of a full scan: other requests wait."""

_MIN_BATCH: Final = 50
"""Records read at a time: at least these, and else those of a page and one more, which tells whether there are more."""
_MAX_BATCH: Final = 1_000
_SCAN_BATCH: Final = 5_000
_MAX_COUNTED: Final = 500  # keys of a word: fewer are checked as quickly as they are counted

Position = tuple[int, bytes, int]
"""Position of a scan: number of the range, key in it, entry. Without ranges only the entry matters."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A matching record."""

    handle: str
    state: State
    seq: int
    """Its latest entry."""
    at: int
    """Time of its latest change, in microseconds since 1970."""
    values: tuple[Value, ...]
    """The matching values, or titles; empty without criteria about values or words."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of results, in the order of the index."""

    items: tuple[SearchResult, ...]
    following: str | None
    """Cursor of the next page; None if this is the last one."""
    scans: bool
    """Whether a full scan was needed for lack of an index; such a page ends at its time limit."""


def find(  # noqa: PLR0913 - the last ones are for tests and jobs
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
    """Return the page of visible matching records after a cursor. Raises `Refused`.

    A page ends early where records are large (`PageBudget`). A caller that returns more than the record itself passes
    the additional bytes with `weigh`.
    """
    prepared = search.prepare()
    results = _ResultFilter(snapshot, identity, prepared)
    scan = _IndexScan(snapshot.reader, search, prepared.plan(), min(max(_MIN_BATCH, limit + 1), _MAX_BATCH))
    budget = PageBudget(page_size(limit))
    items: list[SearchResult] = []
    started = clock()
    steps = scan.steps(after)
    last: Position | None = None
    more, skipped = False, 0
    for position, entry in steps:
        try:
            item = None if entry is None else results.match(entry)
        except _PageLimitReached:
            more = True
            break
        is_visible = item is not None and scan.is_first(position, item.contents)
        if item is not None and is_visible:
            if not budget.take(item.size + (0 if weigh is None else weigh(item.result))):
                more = True
                break
            items.append(item.result)
            last = position
        elif not budget.is_full:
            last = position  # a full page ends with its last visible record
        skipped += not is_visible
        is_over = clock() - started > seconds if scan.plan.scans else skipped >= MAX_SCANNED
        if is_over or snapshot.usage.lookups > MAX_PAGE_LOOKUPS:
            more = next(steps, None) is not None
            break
    following = scan.encode_cursor(last) if more and last is not None else None
    return SearchPage(tuple(items), following, scan.plan.scans is not None)


class _PageLimitReached(Exception):
    """The page has no budget left to decide whether a record is visible."""


class _ResultFilter:
    """Filters candidates by what the caller can see."""

    def __init__(self, snapshot: Snapshot, identity: Identity, prepared: PreparedSearch) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._prepared = prepared
        self._visibility = Visibility(snapshot, identity)
        self._matches: dict[int, _Match | None] = {}  # a record has a step for each of its keys
        prefix = prepared.search.prefix
        if prefix is not None and (prepared.search.owner is None or isinstance(identity, Anonymous)):
            # A search in one namespace is refused; elsewhere, and among the records of an owner, invisible records are
            # skipped.
            require_listing(snapshot, identity, prefix)

    def match(self, entry: Entry) -> "_Match | None":
        """Return the visible match of an entry; None if it does not match. Raises `_PageLimitReached`.

        Lookups for authorization are limited per request, so a negative result from a nearly spent budget is
        inconclusive: the page ends before that record. On the next page it comes first, with a full budget.
        """
        if entry.seq not in self._matches:
            usage = self._snapshot.usage
            was_fresh = usage == SearchUsage()
            item = self._match_visible(entry)
            if usage.is_exhausted and not was_fresh:
                if self._matches:
                    raise _PageLimitReached
                usage.lookups = usage.members = 0
                self._visibility = Visibility(self._snapshot, self._identity)
                item = self._match_visible(entry)
            self._matches[entry.seq] = item
        return self._matches[entry.seq]

    def _match_visible(self, entry: Entry) -> "_Match | None":
        if entry.state is State.ABSENT or not self._prepared.may_match(entry):
            return None
        if self._prepared.search.state not in (None, entry.state.label):
            return None
        if fold(entry.handle.partition("/")[0]) == SITE_PREFIX:
            return None  # the installation's own records are not handles
        access = self._visibility.access(entry.handle)
        if access is None:
            raise _PageLimitReached
        match = self._match_entry(entry)
        if match is None or (access.lists and (access.administers or is_public(entry.state))):
            return match
        name = Handle.parse_lenient(entry.handle)
        is_visible = self._has_scope(name) and self._snapshot.is_responsible(name)
        return match if is_visible and can_read(self._snapshot, self._identity, name) else None

    def _has_scope(self, name: Handle) -> bool:
        """Whether the caller can find a record at all: to read it is another scope of a token."""
        if not isinstance(self._identity, TokenIdentity):
            return True
        namespace = name.suffix if name.is_prefix_handle else name.prefix
        return not self._identity.scope.describe_missing(RequiredScope.for_namespace(namespace, Scope.FIND))

    def _match_entry(self, entry: Entry) -> "_Match | None":
        """Return the match among the values that the caller can read."""
        try:
            policy = self._snapshot.policy(entry.handle.partition("/")[0])
        except Refused:
            return None  # the policy is unreadable
        encoded: list[EncodedValue] = list(zip(entry.contents(), entry.record(), strict=True))
        public = [each for each in encoded if each[1].is_public]
        readable = [each for each in encoded if each[1].is_public or Permission.ADMIN_READ in each[1].permissions]
        matching = all_matching = self._prepared.meets(policy, entry, public)
        if len(readable) > len(public):
            all_matching = self._prepared.meets(policy, entry, readable)
        visible = public
        if all_matching != matching and can_read(self._snapshot, self._identity, Handle.parse_lenient(entry.handle)):
            matching, visible = all_matching, readable
        if matching is None:
            return None
        return _Match(
            SearchResult(entry.handle, entry.state, entry.seq, entry.at, matching), [content for content, _ in visible]
        )


@dataclass(frozen=True, slots=True)
class _Match:
    """A record that matches."""

    result: SearchResult
    contents: list[bytes]
    """The visible values in binary form, which place the record in the order."""

    @property
    def size(self) -> int:
        """Its size on a page; all of it is held in memory until the page ends."""
        return len(self.result.handle) + sum([VALUE_OVERHEAD + len(content) for content in self.contents])


class _IndexScan:
    """Iterates over candidate records in the order of an index."""

    def __init__(self, reader: LogReader, search: Search, plan: SearchPlan, batch_size: int) -> None:
        self._reader = reader
        self._batch_size = batch_size
        self._cursors = CursorCodec(reader, search)
        self._first: dict[int, tuple[int, bytes] | None] = {}  # where an entry is met first
        self._chosen: int | None = None  # the number of the range, of alternatives
        self.plan = plan
        self._find_keys = target_keys if all(each.is_of_urls for each in plan.ranges) else index_keys

    def steps(self, after: str | None) -> Iterator[tuple[Position, Entry | None]]:
        """Yield positions after a cursor, each with its record; None where a position has no record."""
        position = (0, b"", 0) if after is None else self._decode_cursor(after)
        if self.plan.alternatives:
            self._chosen = self._choose_range() if after is None else position[0]
        if self.plan.ranges:
            return self._by_scan(position) if self.plan.scans else self._by_keys(position)
        return self._by_names(position) if self.plan.names else self._by_log(position)

    def is_first(self, position: Position, contents: list[bytes]) -> bool:
        """Whether a record with these visible values is met at this position for the first time."""
        if not self.plan.ranges:
            return True
        number, key, seq = position
        if seq not in self._first:
            candidates = (each for each in self._keys(contents) if not self.plan.scans or self._is_candidate(each[1]))
            self._first[seq] = next(candidates, None)
        return self._first[seq] == (number, key)

    def encode_cursor(self, position: Position) -> str:
        """Encode a position as a cursor."""
        number, key, seq = position
        return self._cursors.encode(seq, mark(number, key)) if self.plan.ranges else self._cursors.encode(seq)

    def _decode_cursor(self, cursor: str) -> Position:
        decoded = self._cursors.decode(cursor)
        if decoded is None or decoded[0] > self._reader.size:  # an older backup was restored
            raise _unknown_cursor(cursor)
        entry = self._reader.entry(decoded[0])
        if not self.plan.ranges:
            return 0, entry.key, entry.seq
        for number, key in self._keys(entry.contents()):
            if mark(number, key) == decoded[1]:
                return number, key, entry.seq
        raise _unknown_cursor(cursor)  # its value has been redacted since

    def _choose_range(self) -> int:
        """Return the number of the range with the fewest keys, as far as they are counted."""
        counts = [len(self._reader.search_rows(each.first, each.end, _MAX_COUNTED)) for each in self.plan.ranges]
        return counts.index(min(counts))

    def _keys(self, contents: list[bytes]) -> list[tuple[int, bytes]]:
        """Return the keys of values within the ranges, in the order of the scan."""
        keys = self._find_keys(contents)
        ranges = [each for each in enumerate(self.plan.ranges) if self._chosen in (None, each[0])]
        return sorted((number, key) for number, one in ranges for key in keys if one.first <= key < one.end)

    def _by_keys(self, position: Position) -> Iterator[tuple[Position, Entry | None]]:
        number, key, seq = position
        for index, one in enumerate(self.plan.ranges):
            if index < number or self._chosen not in (None, index):
                continue
            after = (key, seq) if index == number else (b"", 0)
            more = True
            while more:
                rows, more = self._reader.find_by_keys(one.first, one.end, self._batch_size, after)
                yield from (((index, found_key, entry.seq), entry) for found_key, entry in rows)
                after = (rows[-1][0], rows[-1][1].seq) if rows else after

    def _by_scan(self, position: Position) -> Iterator[tuple[Position, Entry | None]]:
        number, key, seq = position
        for index, one in enumerate(self.plan.ranges):
            if index < number:
                continue
            after = (key, seq) if index == number else (b"", 0)
            while rows := self._reader.search_rows(one.first, one.end, _SCAN_BATCH, after):
                for found_key, found_seq in rows:
                    entry = self._reader.entry(found_seq) if self._is_candidate(found_key) else None
                    yield (index, found_key, found_seq), entry
                if len(rows) < _SCAN_BATCH:
                    break
                after = rows[-1]

    def _is_candidate(self, key: bytes) -> bool:
        """Whether a key, which may be truncated, can match the pattern."""
        glob = self.plan.scans
        return glob is None or len(key) >= KEY_LENGTH or glob.matches(key)

    def _by_names(self, position: Position) -> Iterator[tuple[Position, Entry | None]]:
        assert self.plan.names is not None  # noqa: S101 - checked by the caller
        first, end = self.plan.names
        if position[1]:
            first = position[1] + b"\0"
        more = True
        while more:
            entries, more = self._reader.names_page(first, end, self._batch_size)
            yield from (((0, entry.key, entry.seq), entry) for entry in entries)
            first = entries[-1].key + b"\0" if entries else first

    def _by_log(self, position: Position) -> Iterator[tuple[Position, Entry | None]]:
        since, size = max(self.plan.since or 0, position[2]), self._reader.size
        for first in range(since, size, self._batch_size):
            for entry in self._reader.log(first, min(first + self._batch_size, size)):
                is_latest = self._reader.latest(entry.key) == entry.seq
                yield (0, entry.key, entry.seq), entry if is_latest else None


def _unknown_cursor(cursor: str) -> Refused:
    reason = f"Cursor {display_name(cursor)} is not valid for this search"
    return InvalidQuery(reason, AdviceKind.START_AGAIN())
