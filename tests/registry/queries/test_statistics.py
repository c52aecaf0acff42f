"""Statistics as callers see them: permissions, periods, growth, and wanted identifiers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.statistics import DAY, DAYS_KEPT, HOUR, StatisticsStore
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries.statistics import list_wanted, read_statistics
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidQuery, Refused
from perseid.schema.statistics import StatisticsPeriod, StatisticsQuery, StatisticsResponse
from perseid.wire.codes import ResponseCode
from tests.registry.commands.records_in_every_state import (
    ANN,
    LISTER,
    SERVER,
    STRANGER,
    delete,
    policy,
    put,
    reserve,
    rules,
    site,
    unpublish,
)
from tests.registry.registries import NOBODY, OPERATOR

NOON = 1_794_744_000  # 2026-11-15T12:00:00Z
TODAY = NOON - NOON % DAY
REFUSALS = (ResponseCode.AUTHENTICATION_NEEDED, ResponseCode.INSUFFICIENT_PERMISSIONS, ResponseCode.INVALID_ADMIN)
HOURLY = StatisticsPeriod.HOUR
BY_NAMESPACE = StatisticsPeriod.NAMESPACE


@pytest.fixture
def registry() -> Iterator[Registry]:
    with site(rules=rules()) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> StatisticsStore:
    return StatisticsStore(tmp_path)


def read(
    registry: Registry, store: StatisticsStore | None, identity: Identity = OPERATOR, **query: object
) -> StatisticsResponse:
    with registry.snapshot() as snapshot:
        context = registry.context(snapshot, identity, "read")
        return read_statistics(context, store, StatisticsQuery(**query), NOON * 1_000_000)  # type: ignore[arg-type]


def wanted(registry: Registry, store: StatisticsStore | None, identity: Identity = OPERATOR) -> list[str]:
    with registry.snapshot() as snapshot:
        found = list_wanted(registry.context(snapshot, identity, "read"), store, "12345")
        return [each.handle for each in found.handles]


def test_every_day_has_a_row_and_kinds_are_added_up(registry: Registry, store: StatisticsStore) -> None:
    counts = {"native": 1, "redirects": 2, "pages": 3, "json": 4, "bot_redirects": 5, "bot_pages": 6, "bot_json": 7}
    store.add(TODAY - DAY, {("12345", kind): count for kind, count in counts.items()})
    found = read(registry, store, namespace="12345", since="2026-11-13")
    assert (found.since, found.until) == ("2026-11-13T00:00:00Z", "2026-11-16T00:00:00Z")
    assert [row.start for row in found.rows] == [f"2026-11-{day}T00:00:00Z" for day in (13, 14, 15)]
    assert [(row.resolutions, row.bots) for row in found.rows] == [(0, 0), (10, 18), (0, 0)]
    assert len(read(registry, store).rows) == 31
    assert len(read(registry, store, by=HOURLY).rows) == 49
    assert len(read(registry, store, since="1970-01-01").rows) == DAYS_KEPT // DAY + 1


def test_growth_is_the_present_number_less_later_changes(registry: Registry, store: StatisticsStore) -> None:
    with registry.snapshot() as snapshot:
        while store.count_changes(snapshot.reader, NOON):
            pass
    before = store.count_public("12345").get("12345", 0)
    for name in ("a", "b", "c"):
        put(registry, name=f"12345/{name}")
    reserve(registry, name="12345/d")
    unpublish(registry, name="12345/a")
    with registry.snapshot() as snapshot:
        store.count_changes(snapshot.reader, NOON)
        when = next(iter(snapshot.reader.log(snapshot.reader.size - 1))).at
        context = registry.context(snapshot, OPERATOR, "read")
        found = read_statistics(context, store, StatisticsQuery("12345"), when)
    assert found.rows[-1].identifiers == before + 2
    assert found.rows[-1].published - found.rows[-1].withdrawn == before + 2
    assert found.rows[0].identifiers == 0
    assert found.rows[-1].activity is not None
    assert (found.rows[-1].activity.created, found.rows[-1].activity.updated) == (before + 4, 1)


def test_statistics_by_namespace(registry: Registry, store: StatisticsStore) -> None:
    store.add(TODAY - 2 * DAY, {("12345", "native"): 1, ("", "native"): 2})
    store.add(TODAY, {("12345", "native"): 2, ("0.NA", "native"): 1, (".ENV", "native"): 3, ("WP-LOGIN", "native"): 5})
    assert [(row.namespace, row.native) for row in read(registry, store, by=BY_NAMESPACE).rows] == [
        ("", 10),  # not hosted
        ("0.NA", 1),
        ("12345", 3),
    ]
    found = read(registry, store, by=BY_NAMESPACE, until="2026-11-14")
    assert [(row.namespace, row.native) for row in found.rows] == [("", 2), ("12345", 1)]


def test_statistics_by_hour(registry: Registry, store: StatisticsStore) -> None:
    store.add(NOON - HOUR, {("12345", "native"): 1})
    found = read(registry, store, by=HOURLY, since="2026-11-15T10:30:00Z")
    assert [(row.start, row.native) for row in found.rows] == [
        ("2026-11-15T10:00:00Z", 0),
        ("2026-11-15T11:00:00Z", 1),
        ("2026-11-15T12:00:00Z", 0),
    ]


@pytest.mark.parametrize("identity", [LISTER, SERVER, OPERATOR])
def test_administrators_see_everything(registry: Registry, store: StatisticsStore, identity: Identity) -> None:
    store.add(NOON, {("12345", "not_found"): 3, ("12345", "slower"): 1}, {("12345", "12345/none"): 3})
    activity = read(registry, store, identity, namespace="12345").rows[-1].activity
    assert activity is not None
    assert (activity.not_found, activity.durations.slower) == (3, 1)
    assert wanted(registry, store, identity) == ["12345/none"]


@pytest.mark.parametrize("identity", [NOBODY, STRANGER, ANN])
def test_others_see_what_the_policy_lets_them_count(
    registry: Registry, store: StatisticsStore, identity: Identity
) -> None:
    store.add(NOON, {("12345", "native"): 7}, {("12345", "12345/none"): 3})
    for refused in (read, wanted):
        with pytest.raises(Refused, match="12345"):
            refused(registry, store, identity, **({"namespace": "12345"} if refused is read else {}))
    registry.do(SetPolicy("12345", policy(who_may_list=Audience.PUBLIC)), OPERATOR, "cli")
    row = read(registry, store, identity, namespace="12345").rows[-1]
    assert (row.native, row.activity) == (7, None)
    with pytest.raises(Refused, match="12345"):
        wanted(registry, store, identity)


@pytest.mark.parametrize("by", StatisticsPeriod)
def test_growth_is_hidden_where_the_policy_hides_the_past(
    registry: Registry, store: StatisticsStore, by: StatisticsPeriod
) -> None:
    put(registry, name="12345/a")
    put(registry, name="12345/b")
    delete(registry, name="12345/b")
    with registry.snapshot() as snapshot:
        while store.count_changes(snapshot.reader, registry.now()):
            pass
    store.add(NOON - 2 * DAY, {("12345", "published"): 2, ("12345", "native"): 5})
    store.add(NOON - DAY, {("12345", "withdrawn"): 2})
    (public,) = store.count_public("12345").values()

    def seen(identity: Identity, *, show_past: bool) -> set[tuple[int, int, int]]:
        registry.do(SetPolicy("12345", policy(who_may_list=Audience.PUBLIC, show_past=show_past)), OPERATOR, "cli")
        rows = read(registry, store, identity, namespace="12345", by=by, since="2026-11-12").rows
        assert sum(row.native for row in rows) == 5
        return {(row.published, row.withdrawn, row.identifiers) for row in rows}

    everything = seen(OPERATOR, show_past=True)
    assert sum(row[0] for row in everything) >= 2
    assert sum(row[1] for row in everything) >= 2
    for administrator in (LISTER, SERVER, OPERATOR):
        assert seen(administrator, show_past=False) == everything
    for other in (NOBODY, STRANGER, ANN):
        assert seen(other, show_past=True) == everything
        assert seen(other, show_past=False) == {(0, 0, public)}


def test_a_server_without_lists_shows_statistics_to_administrators_only(store: StatisticsStore) -> None:
    with site(rules=rules(listing_allowed=False), who_may_list=Audience.PUBLIC) as registry:
        assert read(registry, store, LISTER, namespace="12345").rows[0].activity is not None
        with pytest.raises(Refused, match="12345"):
            read(registry, store, NOBODY, namespace="12345")


@pytest.mark.parametrize("identity", [NOBODY, STRANGER, ANN, LISTER])
def test_all_namespaces_require_a_server_administrator(
    registry: Registry, store: StatisticsStore, identity: Identity
) -> None:
    for by in StatisticsPeriod:
        with pytest.raises(Refused) as refused:
            read(registry, store, identity, by=by)
        assert refused.value.code in REFUSALS
    assert read(registry, store, SERVER).rows


def test_hidden_identifiers_are_never_wanted(registry: Registry, store: StatisticsStore) -> None:
    put(registry, name="12345/public")
    reserve(registry, name="12345/reserved")
    put(registry, name="12345/hidden")
    unpublish(registry, name="12345/hidden")
    put(registry, name="12345/deleted")
    delete(registry, name="12345/deleted")
    names = ("public", "RESERVED", "hidden", "deleted", "unknown")
    store.add(NOON, {}, {("12345", f"12345/{name}"): 9 - number for number, name in enumerate(names)})
    assert wanted(registry, store) == ["12345/deleted", "12345/unknown"]
    reserve(registry, name="12345/unknown")
    assert wanted(registry, store) == ["12345/deleted"]


def test_invalid_queries_are_refused(registry: Registry, store: StatisticsStore) -> None:
    with pytest.raises(InvalidQuery, match="Invalid time"):
        read(registry, store, since="yesterday")
    with pytest.raises(InvalidQuery, match="after the last one"):
        read(registry, store, since="2026-11-14", until="2026-11-13")
    with pytest.raises(Refused, match="not a prefix"):
        read(registry, store, namespace="12345/x")
    with pytest.raises(Refused, match="not found"):
        read(registry, store, namespace="54321")


def test_a_registry_without_a_file_has_no_statistics(registry: Registry) -> None:
    assert {row.resolutions for row in read(registry, None).rows} == {0}
    assert wanted(registry, None) == []
