"""Statistics of a running server: every interface is counted, by all workers, and survives a kill."""

import asyncio
import http.client
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perseid.ledger.errors import LedgerError
from perseid.ledger.statistics import StatisticsStore
from perseid.names.handle import Handle
from perseid.registry.commands.lifecycle import Unpublish
from perseid.registry.installation.installation import Installation
from perseid.server.observe.statistics import StatisticsRecorder
from perseid.server.observe.tally import RequestTally
from tests.server.installations import NAMES, OPERATOR, PREFIX, copy_to
from tests.server.live_servers import client_of
from tests.server.native.native_client import Serving, Via
from tests.server.running import serving, start

DEADLINE = 30.0
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64) Firefox/130.0"
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1)"
HIDDEN = f"{PREFIX}/n9"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def get(server: Serving, path: str, agent: str = FIREFOX, accept: str = "*/*") -> int:
    connection = http.client.HTTPConnection(*server.http, timeout=DEADLINE)
    try:
        connection.request("GET", path, headers={"User-Agent": agent, "Accept": accept})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def sums(directory: Path) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in StatisticsStore(directory).read_sums("days", 0, 1 << 40, PREFIX):
        total.update(each.counts)
    return total


def use_every_interface(server: Serving) -> None:
    for via in (Via.UDP, Via.TCP):
        with client_of(server, via) as client:
            for number in range(3):
                client.resolve(f"{PREFIX}/n{number}")
            client.resolve(f"{PREFIX}/wanted")
            client.resolve("10.9999/elsewhere")
    assert get(server, f"/{PREFIX}/n1") == 302
    assert get(server, f"/{PREFIX}/n1", GOOGLEBOT) == 302
    assert get(server, f"/api/handles/{PREFIX}/n1") == 200
    assert get(server, f"/{PREFIX}/n1?noredirect", accept="text/html") == 200
    assert get(server, f"/{PREFIX}/wanted", accept="text/html") == 404
    assert get(server, f"/api/handles/{PREFIX}/wanted", GOOGLEBOT) == 404
    assert get(server, f"/api/handles/{HIDDEN}") == 404


EXPECTED = {
    "native": 6,
    "redirects": 1,
    "bot_redirects": 1,
    "json": 1,
    "pages": 1,
    "not_found": 4,
    "bot_not_found": 1,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = copy_to(tmp_path)
    with Installation.open(made) as installation:
        installation.registry().do(Unpublish(Handle.parse(HIDDEN)), OPERATOR, "cli")
    return made


def test_all_interfaces_are_counted_and_a_kill_loses_nothing_that_was_stored(directory: Path, tmp_path: Path) -> None:
    server = start(directory, tmp_path, PERSEID_SERVER_WORKERS="2")
    try:
        use_every_interface(server)
        until(lambda: all(sums(directory)[column] >= count for column, count in EXPECTED.items()))
        until(lambda: sums(directory)["withdrawn"] > 0)
    finally:
        server.kill()
    store, found = StatisticsStore(directory), sums(directory)
    assert {column: found[column] for column in EXPECTED} == EXPECTED
    assert found["published"] - found["withdrawn"] == store.count_public(PREFIX)[PREFIX] >= NAMES - 1
    assert [(each.name, each.count) for each in store.read_wanted(PREFIX)] == [(f"{PREFIX}/wanted", 3)]
    assert store.read_wanted("10.9999") == []
    assert store.read_sums("days", 0, 1 << 40, "10.9999") == []


def test_a_stopped_server_has_stored_everything(directory: Path) -> None:
    with serving(directory) as server:
        assert get(server, f"/{PREFIX}/n1") == 302
    assert sums(directory)["redirects"] == 1


def test_at_the_end_the_whole_ledger_is_counted_and_a_failure_is_retried(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StatisticsStore(tmp_path)
    with Installation.open(directory) as installation, installation.ledger.open_reader() as reader:
        assert not whole.count_changes(reader, int(time.time()))
    monkeypatch.setattr("perseid.ledger.statistics.CHANGES_PER_STEP", 5)
    store, tally = StatisticsStore(directory), RequestTally()
    add, failures = store.add, iter((OSError("locked"),))

    def fail_once(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        add(*arguments)

    monkeypatch.setattr(store, "add", fail_once)
    with Installation.open(directory) as installation:
        until(lambda: installation.ledger.ready)
        for name in (f"{PREFIX}/wanted", ".env", "WP-LOGIN.PHP/x", "99/x", "0.NA/99"):
            tally.count_missing(name.encode())
        asyncio.run(StatisticsRecorder(tally, store, installation.ledger, reads_ledger=True).finish())
    assert store.count_public() == whole.count_public()
    assert sums(directory) == sums(tmp_path) + Counter(not_found=1, under_1ms=1)
    assert [(each.name, each.count) for each in store.read_wanted(PREFIX)] == [(f"{PREFIX}/wanted", 1)]
    requested = {each.prefix: each.counts["not_found"] for each in store.read_sums("days", 0, 1 << 40)}
    assert {prefix: count for prefix, count in requested.items() if count} == {"": 3, "0.NA": 1, PREFIX: 1}
    assert store.read_wanted("99") == []


def test_a_ledger_that_fails_while_it_is_counted_is_not_tried_again_at_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, steps = StatisticsStore(directory), 0

    def fail_later(*_: Any) -> bool:
        nonlocal steps
        steps += 1
        if steps > 1:
            raise LedgerError("closed")
        return True

    monkeypatch.setattr(store, "count_changes", fail_later)
    with Installation.open(directory) as installation:
        until(lambda: installation.ledger.ready)
        asyncio.run(StatisticsRecorder(RequestTally(), store, installation.ledger, reads_ledger=True).finish())
    assert steps == 2


def test_nothing_is_counted_if_disabled(directory: Path) -> None:
    with serving(directory, PERSEID_STATISTICS_ENABLED="false") as server:
        assert get(server, f"/{PREFIX}/n1") == 302
    assert not StatisticsStore(directory).path.exists()
