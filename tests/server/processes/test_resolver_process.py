"""The loops of a resolver with its own sockets, without other processes: responses, forwarding and drops."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import pytest

from perseid.server.limits.udp import RateLimit, TrafficLimit
from perseid.server.observe.counters import CounterTotals, SharedCounters
from perseid.server.processes.datagrams import (
    MAX_FORWARDED_BYTES,
    MAX_LOCAL_ADDRESSES,
    ForwardedDatagram,
    SingleAddressSocket,
    WildcardSocket,
    pack_datagram,
    unpack_datagram,
    wrap_socket,
)
from perseid.server.processes.resolver import Resolver
from perseid.server.processes.sockets import bind
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.fragments import packet_count
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Header, Message

PATIENCE = 30.0
EVERYWHERE = ("0.0.0.0", "::")
HOSTS = pytest.mark.parametrize(
    ("bound", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.2"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.2")],
)


def message(code: ResponseCode, size: int = 0, request_id: int = 7) -> bytes:
    return Message.build(Envelope(request_id=request_id), Header(OpCode.RESOLUTION, code), bytes(size)).to_bytes()


ANSWERED, ANSWERED_AT_LENGTH, HANDED_OVER = (message(ResponseCode.RESERVED, size) for size in (1, 2, 3))
ANSWER, LONG_ANSWER = message(ResponseCode.SUCCESS), message(ResponseCode.SUCCESS, 1_200)
ANSWERS = {ANSWERED: ANSWER, ANSWERED_AT_LENGTH: LONG_ANSWER}


@dataclass
class Running:
    """A resolver and its sockets."""

    resolver: Resolver
    udp: socket.socket
    control: socket.socket
    """Control's end."""
    shared_counters: SharedCounters
    lifeline: int
    supervisor: int
    """The supervisor's end of the lifeline."""

    @property
    def port(self) -> int:
        port: int = self.udp.getsockname()[1]
        return port

    @property
    def count(self) -> CounterTotals:
        return self.shared_counters.total()

    def receive_forwarded(self) -> ForwardedDatagram:
        self.control.settimeout(PATIENCE)
        return unpack_datagram(self.control.recv(MAX_FORWARDED_BYTES))

    def wait_until(self, holds: Callable[[CounterTotals], bool]) -> CounterTotals:
        end = time.monotonic() + PATIENCE
        while not holds(count := self.count):
            assert time.monotonic() < end, count
            time.sleep(0.001)
        return count


@contextmanager
def idle_resolver_at(host: str, rate: float = 0, burst: float = 0) -> Iterator[Running]:
    """A resolver whose loops do not run."""
    listener, (udp,) = bind(host, 0, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifeline, supervisor = os.pipe()
    memory = TrafficLimit.create(1)
    shared_counters, no_limit = SharedCounters.create(1), TrafficLimit(memory, 0, 0)
    traffic = TrafficLimit(memory, rate, burst)
    made = Resolver(
        udp, theirs, ANSWERS.get, shared_counters.counters(0), traffic, no_limit, total_forward_limit=RateLimit(0, 0)
    )
    with listener, udp, ours, theirs:
        yield Running(made, udp, ours, shared_counters, lifeline, supervisor)
    for descriptor in (lifeline, supervisor, memory, shared_counters.descriptor):
        os.close(descriptor)


@contextmanager
def resolver_at(host: str, rate: float = 0, burst: float = 0) -> Iterator[Running]:
    """A resolver whose two loops run in threads of the test."""
    with idle_resolver_at(host, rate, burst) as running:
        made = running.resolver
        threads = [threading.Thread(target=made.run), threading.Thread(target=made.forward, args=(running.lifeline,))]
        for thread in threads:
            thread.start()
        try:
            yield running
        finally:
            made.stop()
            running.control.send(pack_datagram(0.0, ("127.0.0.1", 9), b"the last word, which ends the loop"))
            for thread in threads:
                thread.join(PATIENCE)


@contextmanager
def client_of(host: str, port: int) -> Iterator[socket.socket]:
    """A connected socket, as deployed clients have."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect((host, port))
        made.settimeout(PATIENCE)
        yield made


# Where answers come from


@HOSTS
def test_response_comes_from_the_requested_address(bound: str, asked: str) -> None:
    with resolver_at(bound) as running, client_of(asked, running.port) as client:
        client.send(ANSWERED)
        assert client.recv(600) == ANSWER
        client.send(ANSWERED_AT_LENGTH)
        packets = [client.recv(600) for _ in range(packet_count(len(LONG_ANSWER) - ENVELOPE_LENGTH))]
        assert len(packets) == 3
        assert b"".join(packet[ENVELOPE_LENGTH:] for packet in packets) == LONG_ANSWER[ENVELOPE_LENGTH:]
        client.send(HANDED_OVER)
        forwarded = running.receive_forwarded()
        assert forwarded.datagram == HANDED_OVER
        assert bool(forwarded.local) == (bound in EVERYWHERE)
        running.control.send(pack_datagram(forwarded.at, forwarded.address, b"said by control", forwarded.local))
        assert client.recv(600) == b"said by control"
        # All that was sent is counted, whoever said it.
        size = len(ANSWER) + sum(map(len, packets)) + len(b"said by control")
        count = running.wait_until(lambda count: count.bytes_sent >= size and count.received == 3)
        assert count.bytes_sent == size
        assert (count.answered, count.forwarded, count.dropped) == (2, 1, 0)


def test_response_is_charged_for_what_it_has_more_than_the_request() -> None:
    count = packet_count(len(LONG_ANSWER) - ENVELOPE_LENGTH)
    excess = len(LONG_ANSWER) + (count - 1) * ENVELOPE_LENGTH - len(ANSWERED_AT_LENGTH)
    excess += 2 * max(0, len(ANSWER) - len(ANSWERED))
    with resolver_at("127.0.0.1", 1e-9, excess) as running, client_of("127.0.0.1", running.port) as client:
        for request, packets in ((ANSWERED, 1), (ANSWERED_AT_LENGTH, count), (ANSWERED, 1)):
            client.send(request)
            for _ in range(packets):
                client.recv(600)
        client.send(ANSWERED_AT_LENGTH)
        running.wait_until(lambda count: count.received == 4)
        assert running.count.bytes_sent < excess + 1_000, "a short response, or none"


def test_one_socket_responds_from_many_addresses_with_a_bounded_cache() -> None:
    with resolver_at(EVERYWHERE[0]) as running:
        for number in range(MAX_LOCAL_ADDRESSES + 10):
            with client_of(f"127.1.{number // 250}.{number % 250 + 1}", running.port) as client:
                client.send(ANSWERED)
                assert client.recv(600) == ANSWER


@HOSTS
def test_only_a_wildcard_socket_reads_local_addresses(bound: str, asked: str) -> None:
    """Other sockets use the plain system calls."""
    listener, (udp,) = bind(bound, 0, 1)
    with listener, udp, client_of(asked, udp.getsockname()[1]) as client:
        client.send(b"x")
        _, ancillary, flags, _ = udp.recvmsg(10, 100)
        made = wrap_socket(udp)
        assert not flags & socket.MSG_CTRUNC
        if bound in EVERYWHERE:
            assert isinstance(made, WildcardSocket)
            assert len(ancillary) == 1
        else:
            assert isinstance(made, SingleAddressSocket)
            assert made.receive == udp.recvfrom
            assert made.send == udp.sendto
            assert ancillary == []


def test_response_is_sent_if_the_local_address_is_unknown() -> None:
    """A datagram that arrived before the option was set."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((EVERYWHERE[0], 0))
        udp.settimeout(PATIENCE)
        made = wrap_socket(udp)
        with client_of("127.0.0.1", udp.getsockname()[1]) as client:
            client.send(ANSWERED)
            datagram, return_address = made.receive(600)
            assert datagram == ANSWERED
            assert made.split_address(return_address) == (client.getsockname(), b"")
            made.send(ANSWER, made.join_address(*made.split_address(return_address)))
            assert client.recv(600) == ANSWER


# What gets nothing


@HOSTS
def test_datagram_from_the_server_itself_is_dropped(bound: str, asked: str) -> None:
    with resolver_at(bound) as running:
        to = f"::ffff:{asked}" if running.udp.family == socket.AF_INET6 and ":" not in asked else asked
        kinds = (ANSWERED, ANSWERED_AT_LENGTH, HANDED_OVER, b"abc")
        for datagram in kinds:  # from the socket that the server reads, so the address is its own
            running.udp.sendto(datagram, (to, running.port))
        count = running.wait_until(lambda count: count.received >= len(kinds))
        with client_of(asked, running.port) as client:
            client.send(ANSWERED)
            assert client.recv(600) == ANSWER
        assert (count.answered, count.forwarded, count.dropped) == (0, 0, len(kinds))
        assert running.wait_until(lambda count: count.answered > 0).received == len(kinds) + 1, "nothing came of it"


@pytest.mark.parametrize("bound", ["127.0.0.1", *EVERYWHERE])
def test_another_sender_with_the_same_port_is_answered(bound: str) -> None:
    """For example another server, which sends from the port at which it serves."""
    with idle_resolver_at(bound) as running:
        made = wrap_socket(running.udp)
        host = "192.0.2.1" if bound != "::" else "::ffff:192.0.2.1"
        address = (host, running.port) if bound != "::" else (host, running.port, 0, 0)
        assert not made.is_own(made.join_address(address, b""))
        another = (running.udp.getsockname()[0], running.port - 1, *address[2:])
        assert not made.is_own(made.join_address(another, b""))


@HOSTS
def test_responses_are_dropped_and_not_forwarded(bound: str, asked: str) -> None:
    with resolver_at(bound) as running, client_of(asked, running.port) as client:
        client.send(ANSWERED_AT_LENGTH)
        reflected = [client.recv(600) for _ in range(3)] + [ANSWER]
        for packet in (*reflected, ANSWERED):
            client.send(packet)
        assert client.recv(600) == ANSWER
        count = running.wait_until(lambda count: count.answered == 2)
        assert (count.forwarded, count.dropped) == (0, len(reflected))


def test_datagram_from_port_0_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a datagram is forged, and nothing can be sent there."""
    came = iter([(ANSWERED, ("127.0.0.1", 0)), (HANDED_OVER, ("127.0.0.1", 0))])
    with idle_resolver_at("127.0.0.1") as running:

        def receive(_: int) -> tuple[bytes, tuple[str, int]]:
            try:
                return next(came)
            except StopIteration:
                running.resolver.stop()
                raise BlockingIOError from None

        monkeypatch.setattr(running.resolver._datagrams, "receive", receive)
        running.resolver.run()
        assert (running.count.answered, running.count.forwarded, running.count.dropped) == (0, 0, 2)
        running.control.setblocking(False)
        with pytest.raises(BlockingIOError):
            running.control.recv(MAX_FORWARDED_BYTES)


# When control's answers cannot be sent


class Ended(BaseException):
    """The process would have ended."""


@pytest.fixture
def ended_with(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The code with which the process would have ended."""
    codes: list[int] = []

    def end(code: int) -> NoReturn:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return codes


def test_process_ends_if_control_responses_cannot_be_sent(
    ended_with: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with idle_resolver_at("127.0.0.1") as running:
        running.control.send(b"no parcel")
        with pytest.raises(Ended):
            running.resolver.forward(running.lifeline)
    assert ended_with == [1], "the supervisor starts it again"
    assert "cannot send the responses of control; exiting" in caplog.text


def test_one_unsendable_response_is_lost_alone(ended_with: list[int]) -> None:
    with idle_resolver_at("127.0.0.1") as running, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind(("127.0.0.1", 0))
        client.settimeout(PATIENCE)
        running.control.send(pack_datagram(0.0, ("127.0.0.1", 0), b"to nobody"))
        running.control.send(pack_datagram(0.0, client.getsockname(), b"next"))
        running.control.shutdown(socket.SHUT_WR)  # as when the supervisor has ended
        with pytest.raises(Ended):
            running.resolver.forward(running.lifeline)
        assert client.recv(600) == b"next"
        assert running.count.bytes_sent == len(b"next")
    assert ended_with == [0]
