"""HTTP connections over TLS behave as over TCP."""

import socket
import ssl
from collections.abc import Iterator

import pytest

from perseid.server.http.connection import listener
from perseid.server.http.connection.connection import MAX_LINGER_BYTES
from perseid.server.http.messages import MAX_BODY
from tests.server.http.connections import LARGE, Running, running

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
NOW = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server() -> Iterator[Running]:
    with running(tls=True) as made:
        yield made


def test_requests_over_tls_are_secure(server: Running) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.send(GET)
            assert caller.answer().body == b"GET /x "
            caller.send(NOW)
            assert caller.answer().body == b"now\n"
    assert server.service.requests[0].client.secure
    assert server.service.requests[0].client.private


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    with server.connect() as caller:
        caller.send((GET + NOW) * 500)
        for _ in range(500):
            assert caller.answer().body == b"GET /x "
            assert caller.answer().body == b"now\n"


def test_input_waits_while_a_request_is_handled(server: Running) -> None:
    with server.connect() as caller:
        caller.send(GET.replace(b"/x", b"/wait"))
        server.until(lambda: len(server.service.requests) == 1)
        caller.send(GET.replace(b"Host", b"X: " + b"x" * 4_000 + b"\r\nHost") * 100)
        server.until(lambda: all(one._paused for one in server.manager.open))
        assert server.do(lambda: max(len(one._buffer) for one in server.manager.open)) <= 1 << 18
        server.do(server.service.go.set)
        assert caller.answer().body == b"GET /wait "
        for _ in range(100):
            assert caller.answer().body == b"GET /x "


def test_large_bodies_and_responses_are_complete(server: Running) -> None:
    body = bytes(range(256)) * (MAX_BODY // 256)
    with server.connect() as caller:
        caller.send(NOW)
        caller.answer()
        caller.send(b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert caller.answer().body == b"PUT /x " + body
        caller.send(GET.replace(b"/x", b"/large"))
        assert caller.answer().body == bytes(LARGE)
        caller.send(GET.replace(b"/x", b"/stream"))
        assert caller.answer().body == b"one two three"


def test_connection_ends_after_last_request(server: Running) -> None:
    with server.connect() as caller:
        caller.send(GET.replace(b"Host", b"Connection: close\r\nHost"))
        assert caller.answer().closes
        assert caller.is_closed()


def test_client_that_keeps_sending_can_read_refusal(server: Running) -> None:
    with server.connect() as caller:
        caller.send(NOW)
        caller.answer()
        caller.send(b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n")
        for _ in range(20):
            caller.send(bytes(100_000))
        assert caller.answer().status == 413
        assert caller.is_closed()


def test_client_that_keeps_sending_is_cut(server: Running) -> None:
    with server.connect() as caller:
        caller.send(b"X\r\n")
        with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            caller.sock.sendall(bytes(100 * MAX_LINGER_BYTES))
    server.until(lambda: not server.manager.open)


def test_half_closed_client_gets_response(server: Running) -> None:
    with server.connect() as caller:
        caller.send(GET.replace(b"/x", b"/wait"))
        server.until(lambda: len(server.service.requests) == 1)
        caller.sock.shutdown(socket.SHUT_WR)
        server.until(lambda: all(one._eof for one in server.manager.open))
        server.do(server.service.go.set)
        server.until(lambda: not server.manager.open)


def test_timeouts_are_the_same(server: Running) -> None:
    with server.connect() as idle, server.connect() as partial:
        idle.send(NOW)
        idle.answer()
        partial.send(b"GET /")
        server.until(lambda: server.manager.unfinished.total == 5)
        server.pass_time(listener.HEAD_TIMEOUT + 1)
        assert partial.answer().status == 408
        assert partial.is_closed()
        server.pass_time(listener.IDLE_TIMEOUT)
        assert idle.is_closed()


def test_client_that_does_not_receive_is_cut(server: Running) -> None:
    with server.connect() as caller:
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        caller.send(GET.replace(b"/x", b"/endless"))
        server.until(lambda: any(one._full for one in server.manager.open))
        server.pass_time(listener.WRITE_TIMEOUT + 1)
        server.until(lambda: not server.manager.open)
    server.until(lambda: server.service.streams_closed == 1)


def test_drain_closes_connections(server: Running) -> None:
    with server.connect() as idle, server.connect() as asking:
        idle.send(NOW)
        idle.answer()
        asking.send(GET.replace(b"/x", b"/wait"))
        server.until(lambda: len(server.service.requests) == 2)
        server.do(server.manager.drain)
        assert idle.is_closed()
        server.do(server.service.go.set)
        assert asking.answer().closes
        assert asking.is_closed()
