"""Answers that take no time are limited by address, and those that are too many take the usual way."""

from perseid.server.http.clients import Peer
from perseid.server.http.connection.requests import Arrived, HeadReader
from perseid.server.http.service import HttpService, Observed, Observing
from perseid.server.limits.udp import Networks
from perseid.server.observe.control_counts import ControlCounts
from tests.server.http.contexts import Harness

ANSWER = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"


def arrived(host: str) -> Arrived:
    return HeadReader(Peer(host)).read(b"GET /12345/n1 HTTP/1.1\r\nHost: x\r\n\r\n")


def observing(service: HttpService) -> Observing:
    made = Observing(service, ControlCounts(), lambda _: (ANSWER, b"12345/n1"))
    made.most = 3
    return made


def test_an_address_has_so_many_answers_at_once_in_a_second(shared: Harness) -> None:
    every = observing(shared.service)
    one, other = (Observed(every, host, secure=False) for host in ("192.0.2.1", "192.0.2.2"))
    assert [one.at_once(arrived("192.0.2.1")) for _ in range(5)] == [ANSWER] * 3 + [None] * 2
    assert other.at_once(arrived("192.0.2.2")) == ANSWER
    assert every.counts.limits() == {"requests at once": 2}
    every.taken.clear()  # as is done each second
    assert one.at_once(arrived("192.0.2.1")) == ANSWER


def test_who_is_exempt_has_as_many_as_there_are(shared: Harness) -> None:
    every = observing(shared.service)
    every.exempt = Networks(("192.0.2.0/24",))
    one = Observed(every, "192.0.2.1", secure=False)
    assert [one.at_once(arrived("192.0.2.1")) for _ in range(5)] == [ANSWER] * 5
