"""Fast responses are limited per address; further requests use the normal path."""

from perseid.server.http.clients import Peer
from perseid.server.http.connection.requests import HeadParser, ParsedRequest
from perseid.server.http.service import FastResponse, HttpService, MonitoredService, ServiceMonitor
from perseid.server.limits.udp import NetworkSet
from perseid.server.observe.metrics import WorkerCounters
from tests.server.http.contexts import Harness

ANSWER = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"


def arrived(host: str) -> ParsedRequest:
    return HeadParser(Peer(host)).read(b"GET /12345/n1 HTTP/1.1\r\nHost: x\r\n\r\n")


def observing(service: HttpService) -> ServiceMonitor:
    made = ServiceMonitor(service, WorkerCounters(), lambda _: FastResponse(ANSWER, b"12345/n1"))
    made.max_fast = 3
    return made


def test_fast_responses_per_address_are_limited(shared: Harness) -> None:
    every = observing(shared.service)
    one, other = (MonitoredService(every, host, secure=False) for host in ("192.0.2.1", "192.0.2.2"))
    assert [one.handle_fast(arrived("192.0.2.1")) for _ in range(5)] == [ANSWER] * 3 + [None] * 2
    assert other.handle_fast(arrived("192.0.2.2")) == ANSWER
    assert every.counts.limits() == {"concurrent_requests": 2}
    every.fast_counts.clear()  # as is done each second
    assert one.handle_fast(arrived("192.0.2.1")) == ANSWER


def test_exempt_address_is_not_limited(shared: Harness) -> None:
    every = observing(shared.service)
    every.exempt = NetworkSet(("192.0.2.0/24",))
    one = MonitoredService(every, "192.0.2.1", secure=False)
    assert [one.handle_fast(arrived("192.0.2.1")) for _ in range(5)] == [ANSWER] * 5
