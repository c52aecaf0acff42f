"""The log: the entries of the ledger that a caller can see, in order or newest first, all of them or filtered.

What is visible is decided as in all listings (`listing`), and a filter compares only what the caller is shown: nobody
finds entries by an actor or an action that is withheld from them. So a filtered log is the log, filtered.

No index has the actors: a filtered page compares a limited number of entries and then ends, whether or not it is full.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from perseid.ledger.log.entry import Action, Entry
from perseid.ledger.log.reader import LogReader
from perseid.ledger.store.jobs import JobSteps
from perseid.names.errors import InvalidName
from perseid.names.handle import fold
from perseid.names.uri import parse_user_input
from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import require_prefix
from perseid.registry.identity import Anonymous, Identity, handle_key
from perseid.registry.results import InvalidQuery
from perseid.registry.snapshot import Snapshot
from perseid.schema.queries import LogQuery

from .history import seq_at_time, seq_until
from .listing import MAX_SCANNED, LogEntry, Visibility
from .paging import DEFAULT_PAGE, Page, PageBudget, page_size

MAX_COMPARED: Final = 5_000
"""Entries that a page compares with its filters: 10 µs each. Of those that match, `MAX_SCANNED` are examined."""

_BATCH: Final = 50  # entries per read of a log that is read backward
_MAX_ACTORS: Final = 1_024  # whose names are cached

TOKEN_ACTOR, _LOCAL_ACTOR = "token:", "local:"
BY_ISSUER: Final = " by "
"""Between a token and its issuer."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which entries of the visible log to return; None matches all."""

    actor: str | None = None
    """One of the names of the actor: see `get_actor_names`."""
    action: Action | None = None
    prefix: str | None = None
    """The prefix of the handle, folded."""

    @classmethod
    def of(cls, query: LogQuery) -> "LogFilter":
        """Return the filters of a query. Raises `Refused`."""
        return cls(
            None if query.actor is None else parse_actor(query.actor),
            None if query.action is None else Action[query.action.name],
            None if query.prefix is None else require_prefix(query.prefix),
        )

    def covers(self, handle: str) -> bool:
        """Whether a handle has the prefix."""
        return self.prefix is None or fold(handle.partition("/")[0]) == self.prefix

    def may_match(self, entry: Entry, *, shows_actors: bool) -> bool:
        """Whether an entry can match in its visible form, which costs more to find out."""
        if self.action not in (None, entry.action) and entry.action is not Action.PUBLISH:  # shown as another one
            return False
        if self.actor is None:
            return True
        return shows_actors and entry.origin is not None and self.actor in get_actor_names(entry.origin[1])

    def matches(self, shown: LogEntry) -> bool:
        """Whether an entry matches by its visible action and actor."""
        if self.action not in (None, shown.action):
            return False
        return self.actor is None or (shown.actor is not None and self.actor in get_actor_names(shown.actor))


@dataclass(frozen=True, slots=True)
class LogSearch:
    """Which part of the log to read, and how."""

    filters: LogFilter = LogFilter()
    since: int = 0
    """Only entries after this one."""
    until: int | None = None
    """Only entries up to this one."""
    newest: bool = False
    """Newest first."""
    steps: JobSteps | None = None
    """Only the entries of a job."""

    @classmethod
    def of(cls, reader: LogReader, query: LogQuery, now: int, steps: JobSteps | None = None) -> "LogSearch":
        """Return the search of a query; `steps` are those of its job, `now` is in microseconds. Raises `Refused`."""
        since = seq_at_time(reader, query.since, now)
        until = None if query.until is None else seq_until(reader, query.until, now)
        if until is not None and until < since:
            reason = f"`since` (entry {since}) is after `until` (entry {until})"
            raise InvalidQuery(reason, AdviceKind.SWAP_VERSIONS())
        return cls(LogFilter.of(query), since, until, query.newest, steps)


_WHOLE_LOG: Final = LogSearch()
_NEWEST_FIRST: Final = LogSearch(newest=True)


def list_log(
    snapshot: Snapshot,
    identity: Identity,
    position: int | None = None,
    limit: int = DEFAULT_PAGE,
    search: LogSearch = _WHOLE_LOG,
) -> Page[LogEntry]:
    """Return a page of entries after one, in order, or before one, newest first. Raises `Refused`."""
    since = search.since
    until = snapshot.reader.size if search.until is None else min(search.until, snapshot.reader.size)
    if position is not None and search.newest:
        until = min(until, position - 1)
    elif position is not None:
        since = max(since, position)
    steps = [(since + 1, until - since)] if search.steps is None else search.steps
    parts = [(max(first - 1, since), min(first + count - 1, until)) for first, count in steps]
    ranges = [(after, end) for after, end in parts if after < end]
    most = MAX_SCANNED if search.filters == LogFilter() else MAX_COMPARED
    entries = islice(_read(snapshot.reader, ranges, most, newest=search.newest), most)
    start = until + 1 if search.newest else since
    items, last = _take_visible(snapshot, identity, entries, start, limit, search.filters)
    if not ranges:
        return Page(items, last, more=False)
    return Page(items, last, more=last > ranges[0][0] + 1 if search.newest else last < ranges[-1][1])


def list_recent(
    snapshot: Snapshot, identity: Identity, before: int | None = None, limit: int = DEFAULT_PAGE
) -> Page[LogEntry]:
    """Return a page of entries before one, newest first. Raises `Refused`."""
    return list_log(snapshot, identity, before, limit, _NEWEST_FIRST)


def _read(reader: LogReader, ranges: list[tuple[int, int]], most: int, *, newest: bool) -> Iterator[Entry]:
    """Iterate over the entries of ranges, which are read in batches; at least `most` of them."""
    if not newest:
        for after, end in ranges:
            yield from reader.log(after, min(end, after + most))
        return
    for after, end in reversed(ranges):
        for last in range(end, after, -_BATCH):
            yield from reversed(list(reader.log(max(after, last - _BATCH), last)))


def _take_visible(
    snapshot: Snapshot, identity: Identity, entries: Iterable[Entry], last: int, limit: int, filters: LogFilter
) -> tuple[tuple[LogEntry, ...], int]:
    """Return the visible entries that fit on a page, and the number of the last one that was read, or `last`."""
    visibility = Visibility(snapshot, identity)
    budget = PageBudget(page_size(limit))
    items: list[LogEntry] = []
    examined = 0
    for entry in entries:
        if filters.covers(entry.handle):
            access = visibility.access(entry.handle)
            if access is None or examined == MAX_SCANNED:
                break
            if access.lists and filters.may_match(entry, shows_actors=access.shows_actors):
                examined += 1
                if visibility.shows(entry, access):
                    log_entry = visibility.to_log_entry(entry, access)
                    if filters.matches(log_entry):
                        if not budget.take(log_entry.size):
                            break
                        items.append(log_entry)
        last = entry.seq
        if budget.is_full:
            break
    return tuple(items), last


# Actors


def parse_actor(text: str) -> str:
    """Return the name to find an actor by, from its form in the log or from a handle, which means each of its keys.

    Raises `Refused`.
    """
    actor = text.strip()
    if actor.startswith(TOKEN_ACTOR):
        actor = actor.partition(BY_ISSUER)[0]  # the id of a token is unique
        if actor != TOKEN_ACTOR:
            return actor
    elif actor == str(Anonymous()) or (actor.startswith(_LOCAL_ACTOR) and actor != _LOCAL_ACTOR):
        return actor
    else:
        try:
            reference = ValueRef.parse(actor)
            handle = handle_key(str(parse_user_input(reference.handle, for_lookup=True).handle))
        except (InvalidData, InvalidName):
            pass
        else:
            return f"{reference.index}:{handle}" if reference.index else handle
    raise InvalidQuery(f"Invalid actor {display_name(text)}", AdviceKind.ACTOR_EXAMPLE())


@lru_cache(_MAX_ACTORS)
def get_actor_names(actor: str) -> frozenset[str]:
    """Return the names that an actor is found by: a key and its handle, and for a token also those of its issuer."""
    token, by, issuer = actor.partition(BY_ISSUER) if actor.startswith(TOKEN_ACTOR) else ("", "", actor)
    index, colon, handle = issuer.partition(":")
    names = {issuer}
    if colon and index.isdecimal():
        names = {f"{index}:{handle_key(handle)}", handle_key(handle)}
    return frozenset({token, *names} if by else names)
