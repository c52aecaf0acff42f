"""What everybody can see of namespaces without naming a handle: for pages, suggestions and sitemaps.

Nothing here shows more than a listing, the log or the history would: handles are named only where the policy lets
everybody list them (`who_may_list = "public"`), and changes as the public log has them.
"""

from dataclasses import dataclass
from typing import Final

from perseid.ledger.log.entry import State
from perseid.ledger.log.record_keys import key_range, record_key
from perseid.ledger.statistics import DAY, StatisticsStore
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, fold
from perseid.names.uri import Resolver, parse_user_input
from perseid.records.encoding import to_iso
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.policy.policy import Audience, Policy
from perseid.registry.results import Refused, StatisticsUnavailable
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.schema.statistics import StatisticsQuery

from .listing import LogEntry, count_handles
from .log import list_recent
from .namespaces import get_policy
from .statistics import read_statistics

MAX_NAMESPACES: Final = 200
"""Namespaces that the front page lists: more would be a catalog of its own."""

MAX_COMPLETIONS: Final = 8
"""Handles that complete a text: as many as people read."""

MAX_SCANNED: Final = 32
"""Records that are read for them: some may not be public. Together they take less than a millisecond."""

MIN_SUFFIX: Final = 1
"""Characters of a suffix before handles are suggested."""

RECENT_ENTRIES: Final = 1_000
"""Entries at the end of the ledger that are searched for changes of a namespace."""

MAX_RECENT: Final = 10
"""Changes of a namespace that are shown."""

GROWTH_DAYS: Final = 365
"""Days of the growth that is shown."""

_SECOND: Final = 1_000_000
_PUBLIC: Final = (State.NORMAL, State.TOMBSTONE)


@dataclass(frozen=True, slots=True)
class ListedNamespace:
    """A namespace whose handles everybody can list."""

    prefix: str
    purpose: str
    retired: bool


@dataclass(frozen=True, slots=True)
class NamespaceOverview:
    """What everybody can see of a namespace."""

    prefix: str
    policy: Policy
    count: int | None
    """Its public handles; None unless everybody can list them, and while `count_handles` does not know."""
    recent: tuple[LogEntry, ...] = ()
    """Its last changes, newest first; none unless everybody can list handles."""
    growth: tuple[tuple[str, int], ...] = ()
    """Days such as `2026-11-18`, and the number of its public handles at their end; none unless everybody can list
    handles and see the past."""
    listed: bool = True
    """Whether everybody can list its handles."""


def is_listed(snapshot: Snapshot, prefix: str) -> bool:
    """Whether everybody can list the handles of a prefix."""
    if not snapshot.rules.listing_allowed or fold(prefix) in (SITE_PREFIX, PREFIX_OF_PREFIXES):
        return False
    try:
        is_public = snapshot.policy(prefix).who_may_list is Audience.PUBLIC
    except Refused:
        return False  # an unreadable policy opens nothing
    return is_public and snapshot.hosts_prefix(prefix)


def list_namespaces(snapshot: Snapshot) -> list[ListedNamespace]:
    """The namespaces whose handles everybody can list, by prefix."""
    found: list[ListedNamespace] = []
    for prefix in namespaces(snapshot.reader):
        if len(found) < MAX_NAMESPACES and is_listed(snapshot, prefix):
            policy = snapshot.policy(prefix)
            found.append(ListedNamespace(prefix, policy.purpose, policy.retired))
    return found


def list_parts(snapshot: Snapshot, prefix: str, size: int, limit: int) -> list[str]:
    """The first handle of each part of a listed namespace; a part has `size` public handles. It reads them all.

    Handles that belong to other servers of the site count, and are not listed.
    """
    first, end = key_range(f"{prefix}/")
    found: list[str] = []
    while len(found) < limit:
        entries, _ = snapshot.reader.names_in_states(first, end, _PUBLIC, 1, size if found else 0)
        while entries and snapshot.is_misplaced(entries[0].handle):
            entries, _ = snapshot.reader.names_in_states(entries[0].key + b"\0", end, _PUBLIC, 1)
        if not entries:
            break
        found.append(entries[0].handle)
        first = entries[0].key
    return found


def list_part(snapshot: Snapshot, prefix: str, start: str, size: int) -> list[str]:
    """The public handles of a listed namespace from one on, in the order of `list_parts`."""
    first, end = key_range(f"{prefix}/")
    is_exact = snapshot.policy(prefix).case is CaseRule.SENSITIVE
    first = max(first, record_key(start, exact=is_exact))
    found: list[str] = []
    more = True
    while more and len(found) < size:
        entries, more = snapshot.reader.names_in_states(first, end, _PUBLIC, size - len(found))
        found += [entry.handle for entry in entries]
        first = entries[-1].key + b"\0" if entries else first
    return [each for each in found if not snapshot.is_misplaced(each)]


def get_overview(context: Context, prefix: str, store: StatisticsStore | None) -> NamespaceOverview:
    """Describe a namespace to an anonymous caller. Raises `Refused`."""
    snapshot = context.snapshot
    policy = get_policy(snapshot, prefix)
    if not is_listed(snapshot, prefix):
        return NamespaceOverview(prefix, policy, None, listed=False)
    count = count_handles(snapshot, Anonymous(), prefix)
    page = list_recent(snapshot, Anonymous(), limit=RECENT_ENTRIES)
    recent = [entry for entry in page.items if fold(entry.handle.partition("/")[0]) == fold(prefix)]
    growth = _read_growth(context, prefix, store) if policy.show_past else ()
    return NamespaceOverview(prefix, policy, count, tuple(recent[:MAX_RECENT]), growth)


def _read_growth(context: Context, prefix: str, store: StatisticsStore | None) -> tuple[tuple[str, int], ...]:
    """The growth since the day before the first change in the last `GROWTH_DAYS`; none if nothing changed, or if the
    statistics cannot be read: the page does without them.
    """
    query = StatisticsQuery(prefix, since=to_iso(context.now - GROWTH_DAYS * DAY))
    try:
        rows = read_statistics(context, store, query, context.now * _SECOND).rows
    except StatisticsUnavailable:
        return ()
    levels = [((row.start or "")[:10], row.identifiers) for row in rows]
    start = next((position for position, level in enumerate(levels) if level[1] != levels[0][1]), len(levels) + 1)
    return tuple(levels[start - 1 :])


def complete(snapshot: Snapshot, text: str, resolvers: tuple[Resolver, ...]) -> list[str]:
    """Public handles that start with what somebody has typed so far, in any form; none where listing is not public."""
    try:
        handle = parse_user_input(text, resolvers, for_lookup=True).handle
    except InvalidName:
        return []
    if len(handle.suffix) < MIN_SUFFIX or not is_listed(snapshot, handle.prefix):
        return []
    is_exact = snapshot.policy(handle.prefix).case is CaseRule.SENSITIVE
    entries, _ = snapshot.reader.names_page(*key_range(str(handle), exact=is_exact), MAX_SCANNED)
    public = [entry.handle for entry in entries if entry.state is State.NORMAL]
    public = [each for each in public if not snapshot.is_misplaced(each)]
    return public[:MAX_COMPLETIONS]
