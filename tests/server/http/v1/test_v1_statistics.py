"""Statistics over HTTP: JSON, CSV, and wanted identifiers."""

import csv
import io
import time
from pathlib import Path

import pytest

from perseid.bulk.export import statistics_csv
from perseid.ledger.statistics import StatisticsStore
from perseid.schema.statistics import StatisticsPeriod, StatisticsResponse, StatisticsRow
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import with_token


@pytest.fixture
def store(server: Harness, tmp_path: Path) -> StatisticsStore:
    """The file of the server, with some counts of today."""
    made = server.registry.statistics = StatisticsStore(tmp_path)
    counts = {("12345", "native"): 3, ("12345", "bot_pages"): 2, ("=1+1", "json"): 1}
    made.add(int(time.time()), counts, {("12345", "12345/none"): 4})
    return made


@pytest.mark.usefixtures("store")
def test_statistics_are_returned_to_administrators(server: Harness) -> None:
    found = got(send(server, "GET", "/statistics?namespace=12345", headers=basic()))
    assert (found["namespace"], found["by"], len(found["rows"])) == ("12345", "day", 31)
    last = found["rows"][-1]
    assert (last["resolutions"], last["native"], last["bots"]) == (3, 3, 2)
    assert last["activity"]["not_found"] == 0
    assert len(got(send(server, "GET", "/statistics?by=hour", headers=basic()))["rows"]) == 49


@pytest.mark.usefixtures("store")
def test_a_table_has_all_columns_and_no_formulas(server: Harness) -> None:
    answer = send(server, "GET", "/statistics/csv?by=namespace", headers=basic())
    assert header_of(answer, "Content-Type") == "text/csv; charset=utf-8"
    head, *rows = csv.reader(io.StringIO(answer.body.decode()))
    assert head[:3] == ["namespace", "resolutions", "native"]
    assert head[-5:] == ["under_1ms", "under_10ms", "under_100ms", "under_1s", "slower"]
    assert [row[:3] for row in rows] == [["", "1", "0"], ["12345", "3", "3"]]
    row = StatisticsRow(
        resolutions=0, native=0, redirects=0, pages=0, json=0, bots=0, published=0, withdrawn=0, identifiers=0,
        namespace="=1+1",
    )  # fmt: skip
    table = statistics_csv(StatisticsResponse(None, StatisticsPeriod.NAMESPACE, "", "", [row]))
    assert table.splitlines()[1].startswith(b"'=1+1,0,")
    assert {len(row) for row in rows} == {len(head)}


@pytest.mark.usefixtures("store")
def test_wanted_identifiers_are_listed(server: Harness) -> None:
    found = got(send(server, "GET", "/statistics/wanted?namespace=12345", headers=basic()))
    assert [(each["handle"], each["count"]) for each in found["handles"]] == [("12345/none", 4)]
    problem(send(server, "GET", "/statistics/wanted", headers=basic()), "invalid-request")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("path", ["/statistics?namespace=12345", "/statistics", "/statistics/csv"])
def test_anonymous_callers_see_nothing_of_a_closed_namespace(server: Harness, path: str) -> None:
    problem(send(server, "GET", path), "authentication-required")
    problem(send(server, "GET", "/statistics/wanted?namespace=12345"), "authentication-required")


@pytest.mark.usefixtures("store")
def test_a_token_needs_the_scope_find(server: Harness) -> None:
    path = "/statistics?namespace=12345"
    assert got(send(server, "GET", path, headers=with_token(server, "find", where=("12345",))))["rows"]
    problem(send(server, "GET", path, headers=with_token(server, "mint", where=("12345",))), "permission-denied")


@pytest.mark.parametrize("path", ["/statistics", "/statistics/csv", "/statistics/wanted?namespace=12345"])
def test_a_damaged_file_is_a_typed_problem(server: Harness, store: StatisticsStore, path: str) -> None:
    store.close()
    store.path.write_bytes(b"damaged " * 1_000)
    answer = send(server, "GET", path, headers=basic())
    found = problem(answer, "statistics-unavailable")
    assert (answer.status, bool(header_of(answer, "Retry-After"))) == (503, True)
    assert "statistics.db" in found["advice"]
    assert str(store.path.parent) not in answer.body.decode()


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("by=week", "invalid-request"),
        ("since=yesterday", "invalid-query"),
        ("since=2026-11-02&until=2026-11-01", "invalid-query"),
        ("namespace=54321", "prefix-not-hosted"),
    ],
)
def test_invalid_queries_are_refused(server: Harness, query: str, slug: str) -> None:
    problem(send(server, "GET", f"/statistics?{query}", headers=basic()), slug)
