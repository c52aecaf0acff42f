"""Statistics, as far as a caller can see them, and wanted identifiers.

Administrators of a namespace (those who can list all of its handles) see everything about it, server administrators
about all. If the policy lets others list the handles (`who_may_list`), they see resolutions and growth: what they
could count themselves. The number of hidden identifiers is not part of the growth. If the policy hides the past
(`show_past = false`), they see only how many identifiers there are now: growth would reveal deletions.

Wanted identifiers are for administrators only. One that has a record in any state, hidden ones too, is not among them:
whether it has one is looked up in the ledger when the list is read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from perseid.ledger.statistics import DAY, DAYS_KEPT, HOUR, HOURS_KEPT, StatisticsStore, Sums, Unit
from perseid.names.handle import Handle
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.results import InvalidQuery, Refused, StatisticsUnavailable
from perseid.registry.snapshot import Snapshot
from perseid.schema.statistics import (
    Activity,
    Durations,
    StatisticsPeriod,
    StatisticsQuery,
    StatisticsResponse,
    StatisticsRow,
    WantedHandle,
    WantedHandles,
)
from perseid.wire.codes import ResponseCode

from .history import SEE_ALL, parse_time
from .listing import listing_requirement, require_listing
from .namespaces import get_policy

DEFAULT_DAYS: Final = 30
DEFAULT_HOURS: Final = 48
"""Periods before now that are returned by default: a month, or two days."""

_SECOND: Final = 1_000_000
_KINDS: Final = ("native", "redirects", "pages", "json")
_BOTS: Final = ("bot_redirects", "bot_pages", "bot_json")
_ACTIVITY: Final = ("not_found", "bot_not_found", "created", "updated", "deleted")
_NO_GROWTH: Final = {"published": 0, "withdrawn": 0}
_DURATIONS: Final = ("under_1ms", "under_10ms", "under_100ms", "under_1s", "slower")


def read_statistics(
    context: Context, store: StatisticsStore | None, query: StatisticsQuery, now: int
) -> StatisticsResponse:
    """Return statistics of a namespace or of all; `now` is in microseconds. Raises `Refused`."""
    administers = _check_access(context, query.namespace)
    unit: Unit = "hours" if query.by is StatisticsPeriod.HOUR else "days"
    first, end, size = _range(query, unit, now // _SECOND)
    sums: list[Sums] = []
    public: dict[str, int] = {}
    if store is not None:
        with _readable():
            # Later periods too, to get from the present number of identifiers to earlier ones.
            sums = store.read_sums(unit, first, now // _SECOND + size, query.namespace)
            public = store.count_public(query.namespace)
    if not (administers or query.namespace is None or get_policy(context.snapshot, query.namespace).show_past):
        sums = [Sums(each.start, each.prefix, {**each.counts, **_NO_GROWTH}) for each in sums]
    if query.by is StatisticsPeriod.NAMESPACE:
        # Earlier versions stored each prefix that clients asked for.
        prefixes = {each.prefix for each in sums}
        known = {prefix for prefix in prefixes if prefix in public or context.snapshot.hosts_prefix(prefix)}
        merged = [each if each.prefix in known else each._replace(prefix="") for each in sums if each.start < end]
        rows = _rows_by_namespace(merged, public, administers=administers)
    else:
        rows = _rows_by_time(sums, sum(public.values()), range(first, end, size), administers=administers)
    return StatisticsResponse(query.namespace, query.by, _to_iso(first), _to_iso(end), rows)


def list_wanted(context: Context, store: StatisticsStore | None, prefix: str) -> WantedHandles:
    """Return the wanted identifiers of a namespace. Raises `Refused`."""
    if not _check_access(context, prefix):
        raise Refused.from_decision(context.check(listing_requirement(prefix)))
    if store is None:
        return WantedHandles(prefix, [])
    with _readable():
        wanted = store.read_wanted(prefix)
    found = [
        WantedHandle(each.name, each.count, _to_iso(each.last)[:10])
        for each in wanted
        if _is_unknown(context.snapshot, each.name)
    ]
    return WantedHandles(prefix, found)


@contextmanager
def _readable() -> Iterator[None]:
    """Refuse what cannot be read from the file."""
    try:
        yield
    except OSError as error:
        raise StatisticsUnavailable from error


def _check_access(context: Context, prefix: str | None) -> bool:
    """Whether the caller administers a namespace, or sees a part of its statistics. Raises `Refused`."""
    if prefix is None:
        context.require(SEE_ALL)
        return True
    if "/" in prefix:
        reason = f"{display_name(prefix)} is not a prefix"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.PREFIX_EXAMPLE(), "H2")
    get_policy(context.snapshot, prefix)
    if context.is_allowed(listing_requirement(prefix)):
        return True
    if not context.snapshot.rules.listing_allowed:
        raise Refused.from_decision(context.check(listing_requirement(prefix)))
    require_listing(context.snapshot, context.identity, prefix)
    return False


def _is_unknown(snapshot: Snapshot, name: str) -> bool:
    handle = Handle.for_lookup(name)
    return handle is not None and not snapshot.stored(handle).exists


def _range(query: StatisticsQuery, unit: Unit, now: int) -> tuple[int, int, int]:
    """The start of the first period, the end of the last one, and the seconds of a period."""
    size, kept, default = (HOUR, HOURS_KEPT, DEFAULT_HOURS) if unit == "hours" else (DAY, DAYS_KEPT, DEFAULT_DAYS)
    last = now if query.until is None else min(now, _parse_date(query.until))
    first = last - default * size if query.since is None else _parse_date(query.since)
    if first > last:
        reason = f"The first day ({_to_iso(first)}) is after the last one ({_to_iso(last)})"
        raise InvalidQuery(reason, AdviceKind.SWAP_VERSIONS())
    first = max(first, now - kept)
    return first - first % size, max(first, last) - max(first, last) % size + size, size


def _parse_date(text: str) -> int:
    try:
        return parse_time(text) // _SECOND
    except InvalidQuery as error:
        raise InvalidQuery(error.reason, AdviceKind.USE_DATE()) from error


def _rows_by_time(sums: Iterable[Sums], public: int, starts: range, *, administers: bool) -> list[StatisticsRow]:
    totals: dict[int, Counter[str]] = {}
    for each in sums:
        totals.setdefault(each.start, Counter()).update(each.counts)
    level = public - sum(_growth(counts) for start, counts in totals.items() if start >= starts.stop)
    rows: list[StatisticsRow] = []
    for start in reversed(starts):
        counts = totals.get(start, Counter())
        rows.append(_to_row(counts, level, administers=administers, start=_to_iso(start)))
        level -= _growth(counts)
    return rows[::-1]


def _rows_by_namespace(sums: Iterable[Sums], public: Mapping[str, int], *, administers: bool) -> list[StatisticsRow]:
    totals: dict[str, Counter[str]] = {prefix: Counter() for prefix in public}
    for each in sums:
        totals.setdefault(each.prefix, Counter()).update(each.counts)
    return [
        _to_row(totals[prefix], public.get(prefix, 0), administers=administers, namespace=prefix)
        for prefix in sorted(totals)
    ]


def _growth(counts: Mapping[str, int]) -> int:
    return counts["published"] - counts["withdrawn"]


def _to_row(
    counts: Counter[str], identifiers: int, *, administers: bool, start: str | None = None, namespace: str | None = None
) -> StatisticsRow:
    activity = None
    if administers:
        durations = Durations(**{column: counts[column] for column in _DURATIONS})
        activity = Activity(**{column: counts[column] for column in _ACTIVITY}, durations=durations)
    kinds = {kind: counts[kind] for kind in _KINDS}
    return StatisticsRow(
        resolutions=sum(kinds.values()),
        **kinds,
        bots=sum(counts[kind] for kind in _BOTS),
        published=counts["published"],
        withdrawn=counts["withdrawn"],
        identifiers=max(0, identifiers),
        start=start,
        namespace=namespace,
        activity=activity,
    )


def _to_iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
