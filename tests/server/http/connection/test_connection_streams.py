"""Bodies that are handled while they arrive: any size, bounded memory, time limits, interruptions. Plain and TLS."""

from collections.abc import Iterator

import pytest

from perseid.server.http.connection import listener
from perseid.server.http.connection.requests import MAX_FRAMING_BYTES
from perseid.server.http.messages import MAX_BODY
from tests.server.http.connections import Running, running

NOW = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"
SIZE = 8 * MAX_BODY + 5


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(tls=request.param) as made:
        yield made


def head(size: int, query: bytes = b"", more: bytes = b"") -> bytes:
    return b"POST /upload%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (query, size, more)


def chunked(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    framed = b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts])
    return b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def until_waiting(server: Running, received: int) -> None:
    """Wait until the handler has this much of the body, and waits for more."""

    def is_waiting() -> bool:
        for connection in server.manager.open:
            body, stream = connection._body, connection._stream
            return body is not None and stream is not None and stream.is_waiting and body.received == received
        return False

    server.until(is_waiting)


def test_large_body_is_streamed_and_the_next_request_follows(server: Running) -> None:
    with server.connect() as caller:
        caller.send(head(SIZE) + bytes(SIZE - 1) + b"e" + NOW)
        assert caller.answer().body == b"%d e" % SIZE
        assert caller.answer().body == b"now\n"
    assert server.service.requests[0].body == b"", "it is not collected"
    assert server.service.largest < MAX_BODY


@pytest.mark.parametrize("size", [0, 1, 10])
def test_small_bodies_are_streamed_too(server: Running, size: int) -> None:
    with server.connect() as caller:
        for by in (0, 1):
            caller.send(head(size) + b"e" * size, by=by)
            assert caller.answer().body == b"%d %b" % (size, b"e" if size else b"")


@pytest.mark.parametrize("size", [256, MAX_BODY + 1])
def test_chunked_body_is_streamed(server: Running, size: int) -> None:
    with server.connect() as caller:
        caller.send(chunked(bytes(SIZE), size) + NOW)
        assert caller.answer().body == b"%d \0" % SIZE
        assert caller.answer().body == b"now\n"


def test_framing_of_a_streamed_body_is_limited(server: Running) -> None:
    with server.connect() as caller:
        caller.send(chunked(bytes(MAX_FRAMING_BYTES), 1)[: MAX_FRAMING_BYTES * 6])
        answer = caller.answer()
    assert (answer.status, answer.closes, b"framing" in answer.body) == (400, True, True)


def test_client_waits_while_the_handler_does(server: Running) -> None:
    """What a slow handler does not take stays in the system: the client cannot send."""
    with server.connect() as caller:
        caller.send(head(64 * MAX_BODY, b"?wait"))
        until_waiting(server, 0)
        caller.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            caller.sock.sendall(bytes(64 * MAX_BODY))
        assert server.do(lambda: server.manager.unfinished.total) <= MAX_BODY
        server.pass_time(listener.BODY_TIMEOUT * 10)  # the client is not to blame
        assert not server.limited


def test_slow_client_gets_408(server: Running) -> None:
    with server.connect() as caller:
        caller.send(head(SIZE) + bytes(1_024))
        until_waiting(server, 1_024)
        server.pass_time(listener.BODY_GRACE + 0.9)
        assert not server.limited
        server.pass_time(0.2)
        answer = caller.answer()
        assert (answer.status, answer.closes) == (408, True)
    assert server.limited == ["slow_connection"]
    assert server.service.upload_problems == [(408, 1_024)]


def test_every_mebibyte_has_the_time_of_a_body(server: Running) -> None:
    with server.connect() as caller:
        caller.send(head(SIZE))
        for step in range(1, 4):
            caller.send(bytes(MAX_BODY))
            until_waiting(server, step * MAX_BODY)
            server.pass_time(listener.BODY_GRACE - 0.1)
        assert not server.limited
        for step in range(1, 6):
            caller.send(bytes(6_000))
            until_waiting(server, 3 * MAX_BODY + step * 6_000)
            server.pass_time(listener.BODY_TIMEOUT / 5 - 1)
        assert not server.limited
        server.pass_time(5)
        assert caller.answer().status == 408


@pytest.mark.parametrize("start", [head(SIZE), chunked(bytes(SIZE), SIZE)[:100]], ids=["sized", "chunked"])
def test_handler_learns_that_the_client_has_gone(server: Running, start: bytes) -> None:
    with server.connect() as caller:
        caller.send(start)
        server.until(lambda: bool(server.service.requests))
    server.until(lambda: bool(server.service.upload_problems))
    ((status, received),) = server.service.upload_problems
    assert (status, received < SIZE) == (400, True)
    server.until(lambda: not server.manager.open)


def test_body_that_ends_too_early_is_refused() -> None:
    with running() as server, server.connect() as caller:
        caller.send(head(100) + bytes(99))
        until_waiting(server, 99)
        caller.sock.shutdown(1)
        answer = caller.answer()
        assert (answer.status, answer.closes) == (400, True)
        assert b"incomplete" in answer.body


def test_refusal_arrives_although_the_client_still_sends(server: Running) -> None:
    """The rest of the body is never taken for a request."""
    server.service.refused_uploads = True
    with server.connect() as caller:
        caller.send(head(SIZE) + NOW * 1_000)
        answer = caller.answer()
        assert (answer.status, answer.closes) == (403, True)
        assert caller.is_closed()
    assert len(server.service.requests) == 1


def test_client_that_expects_100_is_refused_before_it_sends(server: Running) -> None:
    with server.connect() as caller:
        caller.send(head(SIZE, more=b"Expect: 100-continue\r\n"))
        assert caller.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(bytes(SIZE))
        assert caller.answer().status == 200
    server.service.refused_uploads = True
    with server.connect() as caller:
        caller.send(head(SIZE, more=b"Expect: 100-continue\r\n"))
        assert caller.answer().status == 403
