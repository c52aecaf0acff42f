"""Blocking connections against servers that keep, close, cut and delay them, and through a proxy."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import perseid
from perseid.client import Unreachable, api_http
from perseid.client.api_exchange import Failure, HttpRequest, NoResponse, Origin
from perseid.client.api_http import Connections, Proxy, ResponseStream

HOST = "127.0.0.1"
KEPT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok"
CUT_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok"


class Listener:
    """A server that gives prepared answers; None ends the connection, and b"" is silence until it ends."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]

    def run(self) -> None:
        while self.answers:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        while self.answers:
            request = b""
            while b"\r\n\r\n" not in request:
                data = connection.recv(65_536)
                if not data:
                    return
                request += data
            self.requests.append(request)
            answer = self.answers.pop(0)
            if answer is None:
                return
            connection.sendall(answer)
            if answer == b"":
                connection.recv(1)  # until the client has gone
                return
            if answer in (CLOSED, CUT, CUT_CHUNK):
                return


@contextmanager
def listening(*answers: bytes | None) -> Iterator[Listener]:
    server = Listener(*answers)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join()


def connections_to(port: int, **options: Any) -> Connections:
    return Connections(Origin.parse(f"http://{HOST}:{port}"), options.get("context"), options.get("proxy"))


def read_all(response: ResponseStream) -> bytes:
    return b"".join(response.pieces)


def get(
    connections: Connections,
    port: int,
    timeout: float = 30.0,
    use: Callable[[ResponseStream], bytes] = read_all,
) -> bytes:
    with connections.open(HttpRequest("GET", f"http://{HOST}:{port}/a?b", {"X-Own": "1"}), timeout) as response:
        assert response.status == 200
        return use(response)


@pytest.mark.parametrize(("answer", "opened"), [(KEPT, 1), (CHUNKED, 1), (CLOSED, 3)])
def test_connections_are_kept_if_the_server_keeps_them(answer: bytes, opened: int) -> None:
    with listening(*[answer] * 3) as server:
        connections = connections_to(server.port)
        for _ in range(3):
            assert get(connections, server.port) == b"ok"
        connections.close()
    assert server.connections == opened
    assert server.requests[0].startswith(b"GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % server.port)
    assert b"X-Own: 1\r\n" in server.requests[0]


def test_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    with listening(KEPT, KEPT) as server:
        connections = connections_to(server.port)
        get(connections, server.port)
        ((idle, _),) = connections._idle
        idle.sock.shutdown(socket.SHUT_RDWR)
        assert get(connections, server.port) == b"ok"
        connections.close()
    assert server.connections == 2


def test_response_that_is_not_read_to_its_end_closes_its_connection() -> None:
    with listening(KEPT, KEPT) as server:
        connections = connections_to(server.port)
        assert get(connections, server.port, use=lambda _: b"") == b""
        assert connections._idle == []
        assert get(connections, server.port) == b"ok"
        connections.close()
    assert server.connections == 2


@pytest.mark.parametrize("answer", [None, CUT, CUT_CHUNK, b"nonsense\r\n\r\n"])
def test_lost_response_is_a_failure_of_a_request_that_was_sent(answer: bytes | None) -> None:
    with listening(answer) as server, pytest.raises(NoResponse) as caught:
        get(connections_to(server.port), server.port)
    assert caught.value.failure.sent
    assert caught.value.failure.reason


def test_server_of_another_protocol_is_described_in_words() -> None:
    with listening(b"\x02\x03\x00\xff binary\r\n\r\n") as server, pytest.raises(NoResponse) as caught:
        get(connections_to(server.port), server.port)
    assert caught.value.failure.reason == "the answer is not HTTP"
    with listening(b"") as server, pytest.raises(NoResponse) as caught:
        get(connections_to(server.port, context=ssl.create_default_context()), server.port, timeout=0.05)
    assert caught.value.failure == Failure("no answer within 0.05 s", sent=False)


def test_port_without_tls_is_described_in_words() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.recv(65_536)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(NoResponse) as caught:
            get(connections_to(port, context=ssl.create_default_context()), port)
        thread.join()
    assert caught.value.failure.reason == "no TLS connection (wrong version number)"
    assert "port" in caught.value.failure.advice


def test_asynchronous_client_describes_failures_in_the_same_words() -> None:
    async def fail(url: str) -> str:
        async with perseid.connect_async(url, retries=0) as client:
            with pytest.raises(Unreachable) as caught:
                await client.overview()
            return str(caught.value)

    with listening(b"\x02\x03\x00\xff binary\r\n\r\n") as server:
        url = f"http://{HOST}:{server.port}"
        assert asyncio.run(fail(url)) == (
            f"{url} cannot be reached: the answer is not HTTP. Check the port: it may be that of the native protocol"
        )
    refused = f"{url} cannot be reached: Connection refused. Check that the server is running, and its port"
    assert asyncio.run(fail(url)) == refused
    with perseid.connect(url, retries=0) as client, pytest.raises(Unreachable) as caught:
        client.overview()
    assert str(caught.value) == refused


def test_silent_server_is_given_up() -> None:
    with listening(b"") as server, pytest.raises(NoResponse) as caught:
        get(connections_to(server.port), server.port, timeout=0.05)
    assert caught.value.failure.reason == "no answer within 0.05 s"
    assert caught.value.failure.sent


def test_server_that_does_not_run_did_not_get_the_request() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoResponse) as caught:
        get(connections_to(port), port)
    assert not caught.value.failure.sent
    assert caught.value.failure.reason == "Connection refused"


def test_proxy_reads_plain_requests_and_tunnels_others() -> None:
    proxy_url = "http://user:p%40ss@127.0.0.1:{}"
    with listening(KEPT) as server:
        connections = connections_to(9, proxy=Proxy.parse(proxy_url.format(server.port)))
        assert get(connections, 9) == b"ok"
        connections.close()
    assert server.requests[0].startswith(b"GET http://127.0.0.1:9/a?b HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in server.requests[0]
    with listening(b"HTTP/1.1 407 Who?\r\n\r\n") as server:
        connections = Connections(
            Origin.parse("https://id.example.org"),
            ssl.create_default_context(),
            Proxy.parse(proxy_url.format(server.port)),
        )
        with pytest.raises(NoResponse) as caught:
            get(connections, 443)
    assert server.requests[0].startswith(b"CONNECT id.example.org:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in server.requests[0]
    assert not caught.value.failure.sent
    assert "407" in caught.value.failure.reason
    with pytest.raises(ValueError, match="Use http://HOST:PORT") as refused:
        Proxy.parse("socks5://user:secret@proxy.example.org")
    assert "secret" not in str(refused.value)


def test_idle_connections_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_http, "MAX_IDLE", 0)
    with listening(KEPT, KEPT) as server:
        connections = connections_to(server.port)
        get(connections, server.port)
        get(connections, server.port)
        assert connections._idle == []
    assert server.connections == 2
