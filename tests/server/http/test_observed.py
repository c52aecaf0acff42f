"""Fast responses are limited per address; further requests use the normal path."""

import asyncio

import pytest

from bench.serving.modules import of_http
from perseid.server.http import service as service_module
from perseid.server.http.clients import Peer
from perseid.server.http.connection.requests import HeadParser, ParsedRequest
from perseid.server.http.messages import Client, Request
from perseid.server.http.service import FastResponse, HttpService, MonitoredService, ServiceMonitor
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.udp import NetworkSet
from perseid.server.observe.metrics import WorkerCounters
from tests.server.http.contexts import Harness

ANSWER = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"


def arrived(host: str) -> ParsedRequest:
    return HeadParser(Peer(host)).read(b"GET /12345/n1 HTTP/1.1\r\nHost: x\r\n\r\n")


def observing(service: HttpService, buckets: Buckets | None = None) -> ServiceMonitor:
    made = ServiceMonitor(service, WorkerCounters(), lambda _: FastResponse(ANSWER, b"12345/n1"), buckets=buckets)
    made.limit_fast(4)
    return made


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still."""
    now = [1_000.0]
    monkeypatch.setattr(service_module, "monotonic", lambda: now[0])
    return now


def test_fast_responses_per_address_are_limited(shared: Harness, clock: list[float]) -> None:
    every = observing(shared.service)
    one, other = (MonitoredService(every, host, secure=False) for host in ("192.0.2.1", "192.0.2.2"))
    assert [one.handle_fast(arrived("192.0.2.1")) for _ in range(6)] == [ANSWER] * 4 + [None] * 2
    assert other.handle_fast(arrived("192.0.2.2")) == ANSWER
    assert every.counts.limits() == {"concurrent_requests": 2}
    clock[0] += 1
    every.end_second()
    assert one.handle_fast(arrived("192.0.2.1")) == ANSWER


def test_requests_without_a_fast_response_are_not_charged(shared: Harness) -> None:
    every = observing(shared.service)
    fast, every.fast = every.fast, lambda _: None
    one = MonitoredService(every, "192.0.2.1", secure=False)
    assert [one.handle_fast(arrived("192.0.2.1")) for _ in range(6)] == [None] * 6
    every.fast = fast
    assert one.handle_fast(arrived("192.0.2.1")) == ANSWER
    assert every.counts.limits() == {}


def test_fast_responses_are_limited_in_all_processes_together(shared: Harness) -> None:
    buckets = Buckets.private()
    monitors = [observing(shared.service, buckets) for _ in range(2)]
    for monitor in monitors:
        monitor.limit_fast(80)  # in blocks of two
    given = [monitor.take_fast("192.0.2.1") for _ in range(60) for monitor in monitors]
    assert sum(given) == 80
    assert all(monitor.take_fast("192.0.2.2") for monitor in monitors)


def test_exempt_address_is_not_limited(shared: Harness) -> None:
    every = observing(shared.service)
    every.exempt = NetworkSet(("192.0.2.0/24",))
    one = MonitoredService(every, "192.0.2.1", secure=False)
    assert [one.handle_fast(arrived("192.0.2.1")) for _ in range(5)] == [ANSWER] * 5


def test_look_ups_by_the_form_are_counted_as_views_of_pages(shared: Harness) -> None:
    every = observing(shared.service)
    one = MonitoredService(every, "192.0.2.1", secure=False)
    form = [("content-type", "application/x-www-form-urlencoded")]

    def post(path: bytes, body: bytes, agent: str = "Firefox") -> None:
        request = Request("POST", path, [*form, ("user-agent", agent)], body, Client("192.0.2.1"))
        asyncio.run(one.handle(request))

    post(b"/", b"hdl=12345%2Fn1&page=yes")
    post(b"/", b"hdl=12345%2Fnone&page=yes")
    post(b"/", b"hdl=12345%2Fn1&page=yes", "Googlebot")
    post(b"/", b"")
    post(b"/api/handles/12345%2Fn1", b"")
    sums = every.counts.tally.sums()
    found = {column: sums["12345", column] for column in ("pages", "redirects", "json", "bot_pages", "not_found")}
    assert found == {"pages": 1, "redirects": 0, "json": 0, "bot_pages": 1, "not_found": 1}
    assert every.counts.tally.missing == {b"12345/none": 1}


@pytest.mark.parametrize("path", ["/12345/n1", "/api/handles/12345/n1"])
def test_public_reads_need_neither_rules_nor_sql(shared: Harness, path: str) -> None:
    modules = asyncio.run(of_http(shared, [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()] * 2))
    parts = {module.split(".")[1] for module in modules}
    assert parts == {"ledger", "server"} | ({"records"} if "api" in path else set())
    assert {module for module in modules if ".ledger." in module} == {
        "perseid.ledger.views.answers_format",
        "perseid.ledger.views.answers_reader",
    }
