"""Timeouts and memory limits of connections, and draining. The tests control the clock."""

import gc
import socket
from collections.abc import Iterator

import pytest

from perseid.server.http.connection import listener
from perseid.server.http.connection.connection import Connection
from tests.server.http.connections import LARGE, MEDIUM, Running, running

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
NOW = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"
PUT = b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"

SMALL = 1 << 16
"""Octets that the system takes for a client that does not read, if the client says so."""


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as made:
        yield made


def only(server: Running) -> Connection:
    (connection,) = server.manager.open
    return connection


def until_read(server: Running, octets: int) -> None:
    """Wait until this much of a request has arrived."""
    server.until(lambda: server.manager.unfinished.total == octets)


# Time


def test_connection_without_request_is_closed(server: Running) -> None:
    with server.connect() as caller:
        server.until(lambda: len(server.manager.open) == 1)
        server.pass_time(listener.HEAD_TIMEOUT - 1)
        assert server.do(lambda: len(server.manager.open)) == 1
        server.pass_time(2)
        assert caller.is_closed()
    assert not server.limited


@pytest.mark.parametrize("request_", [GET, NOW])
def test_idle_connection_is_closed(server: Running, request_: bytes) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.send(request_)
            assert caller.answer().status == 200
            server.pass_time(listener.IDLE_TIMEOUT - 1)
        server.pass_time(2)
        assert caller.is_closed()
    assert not server.limited


@pytest.mark.parametrize("first", [b"", NOW, GET])
def test_head_timeout_starts_at_first_byte(server: Running, first: bytes) -> None:
    with server.connect() as caller:
        if first:
            caller.send(first)
            assert caller.answer().status == 200
            server.pass_time(listener.IDLE_TIMEOUT - 1)
        for count, octet in enumerate((b"G", b"E", b"T", b" ", b"/"), 1):
            caller.send(octet)
            until_read(server, count)
            server.pass_time(listener.HEAD_TIMEOUT / 5)
        assert server.do(lambda: len(server.manager.open)) == 1
        server.pass_time(0.1)
        answer = caller.answer()
        assert (answer.status, answer.closes) == (408, True)
        assert caller.is_closed()
    assert server.limited == ["slow_connection"]


def test_body_has_total_timeout(server: Running) -> None:
    with server.connect() as caller:
        caller.send(PUT)
        for step in range(1, 6):
            caller.send(bytes(6_000))
            until_read(server, step * 6_000)
            server.pass_time(listener.BODY_TIMEOUT / 5 - 0.1)
        assert not server.limited
        server.pass_time(0.6)
        answer = caller.answer()
        assert (answer.status, answer.closes) == (408, True)
        assert b"body" in answer.body
        assert server.service.refusals == [(408, answer.body.decode(), b"/x")]
        assert caller.is_closed()


def test_slow_body_times_out_earlier(server: Running) -> None:
    with server.connect() as caller:
        caller.send(PUT)
        caller.send(bytes(1_024))
        until_read(server, 1_024)
        server.pass_time(listener.BODY_GRACE + 0.9)
        assert not server.limited
        caller.send(bytes(1))
        until_read(server, 1_025)
        server.pass_time(0.2)
        assert caller.answer().status == 408


def test_chunked_body_needs_data_not_only_chunks(server: Running) -> None:
    with server.connect() as caller:
        caller.send(PUT.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked"))
        server.until(lambda: len(server.manager.open) == 1 and only(server)._body is not None)
        for step in range(1, 5):
            caller.send(b"1\r\nx\r\n")
            until_read(server, step)
            server.pass_time(listener.BODY_GRACE / 4)
        server.pass_time(0.1)
        assert caller.answer().status == 408


def test_handling_has_no_timeout(server: Running) -> None:
    with server.connect() as caller:
        caller.send(GET.replace(b"/x", b"/wait"))
        server.until(lambda: len(server.service.requests) == 1)
        server.pass_time(3_600)
        server.do(server.service.go.set)
        assert caller.answer().status == 200


@pytest.mark.parametrize("target", [b"/large", b"/endless"])
def test_client_that_does_not_receive_is_cut(server: Running, target: bytes) -> None:
    with server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        caller.send(GET.replace(b"/x", target))
        server.until(lambda: len(server.manager.open) == 1 and only(server)._full)
        server.pass_time(listener.WRITE_TIMEOUT - 1)
        assert server.do(lambda: len(server.manager.open)) == 1
        server.pass_time(2)
        server.until(lambda: not server.manager.open)
    assert server.limited == ["slow_connection"]


def test_slow_client_gets_response(server: Running) -> None:
    with server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        caller.send(GET.replace(b"/x", b"/large"))
        server.until(lambda: len(server.manager.open) == 1 and only(server)._full)
        octets = 0
        for _ in range(5):  # each takes nearly all the time that there is for a piece
            deadline = server.do(lambda: only(server).deadline)
            server.pass_time(deadline - server.clock.seconds - 0.1)
            while server.do(lambda: only(server).deadline) == deadline:
                octets += len(caller.receive())
            server.until(lambda: only(server)._full)
        while octets < LARGE:
            octets += len(caller.receive())
    assert not server.limited


@pytest.mark.parametrize(("target", "octets"), [(b"/now?large", 100_000), (b"/medium", MEDIUM)])
def test_unreceived_responses_pause_reading(server: Running, target: bytes, octets: int) -> None:
    with server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        caller.send(NOW.replace(b"/now", target) * 500)
        server.until(lambda: any(one._full for one in server.manager.open))
        assert server.do(lambda: only(server)._paused) or target == b"/medium"  # then, when something comes
        answered = server.do(lambda: len(server.service.requests))
        caller.send(NOW)
        server.pass_time(listener.WRITE_TIMEOUT - 1)
        assert server.do(lambda: len(server.service.requests)) == answered < 400
        assert {len(caller.answer().body) for _ in range(500)} == {octets}
        assert caller.answer().body == b"now\n"
    assert not server.limited


def test_client_that_does_not_receive_fast_responses_is_cut() -> None:
    with running(times=listener.Timeouts(idle=1_000)) as server, server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        caller.send(NOW.replace(b"/now", b"/now?large"))
        while not server.do(lambda: any(one._full for one in server.manager.open)):
            caller.send(NOW.replace(b"/now", b"/now?large"))
        assert server.do(lambda: only(server)._paused)
        server.pass_time(listener.WRITE_TIMEOUT + 1)
        server.until(lambda: not server.manager.open)


def test_client_that_disconnects_during_response_is_removed(server: Running) -> None:
    with server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        caller.send(GET.replace(b"/x", b"/endless"))
        server.until(lambda: len(server.manager.open) == 1 and only(server)._full)
    server.until(lambda: not server.manager.open and server.service.streams_closed == 1)


# Memory


def test_connection_with_most_unfinished_data_is_cut() -> None:
    with running(max_unfinished=250_000) as server:
        small, middle, large = server.connect(), server.connect(), server.connect()
        small.send(PUT + bytes(10_000))
        until_read(server, 10_000)
        large.send(PUT.replace(b"100000", b"200000") + bytes(150_000))
        until_read(server, 160_000)
        middle.send(PUT + bytes(99_999))
        until_read(server, 109_999)
        assert large.is_closed()
        small.send(bytes(90_000))
        middle.send(bytes(1))
        assert small.answer().status == 200
        assert middle.answer().status == 200
        assert server.limited == ["unfinished_bytes"]
        for caller in (small, middle, large):
            caller.sock.close()


def test_ended_connection_leaves_no_buffers(server: Running) -> None:
    with server.connect() as caller:
        caller.send(GET + NOW + PUT + bytes(100_000) + GET.replace(b"/x", b"/stream"))
        for _ in range(4):
            caller.answer()
        server.do(server.service.requests.clear)
        kind, address = server.do(lambda: (type(only(server)), id(only(server))))  # others may get the same address
        gc.disable()  # it has to go by itself, and at once
        try:
            caller.sock.close()
            server.until(lambda: not server.manager.open)
            server.until(lambda: not any(type(one) is kind and id(one) == address for one in gc.get_objects()))
        finally:
            gc.enable()


# Draining


def test_drain_closes_idle_connections_and_others_after_response(server: Running) -> None:
    idle, asking, partial, fresh = (server.connect() for _ in range(4))
    idle.send(NOW)
    idle.answer()
    asking.send(GET.replace(b"/x", b"/wait"))
    partial.send(NOW[:10])
    server.until(lambda: len(server.manager.open) == 4 and len(server.service.requests) == 2)
    until_read(server, 10)
    server.do(server.manager.drain)
    assert idle.is_closed()
    assert fresh.is_closed()
    server.do(server.service.go.set)
    assert asking.answer().closes
    assert asking.is_closed()
    partial.send(NOW[10:])
    assert partial.answer().closes
    assert partial.is_closed()
    for caller in (idle, asking, partial, fresh):
        caller.sock.close()
    server.until(lambda: not server.manager.open)


def test_request_during_drain_is_the_last(server: Running) -> None:
    with server.connect() as caller, server.connect() as streaming:
        for _ in range(2):
            caller.send(NOW)
            assert not caller.answer().closes
        server.until(lambda: len(server.manager.open) == 2)

        def draining() -> None:
            server.manager.draining = True

        server.do(draining)
        caller.send(NOW)
        assert caller.answer().closes
        assert caller.is_closed()
        streaming.send(GET.replace(b"/x", b"/stream"))
        assert streaming.answer().closes
        assert streaming.is_closed()


def test_closing_connection_is_cut_after_timeout(server: Running) -> None:
    with server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        caller.send(GET.replace(b"/x", b"/large").replace(b"Host", b"Connection: close\r\nHost"))
        server.until(lambda: len(server.manager.open) == 1 and only(server)._full)
        server.do(lambda: only(server)._finish())
        server.pass_time(listener.WRITE_TIMEOUT + 1)
        server.until(lambda: not server.manager.open)
