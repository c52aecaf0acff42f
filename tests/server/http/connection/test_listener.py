"""One port for HTTP and HTTPS: detection by the first byte, admission and timeouts."""

import socket
import ssl
from contextlib import ExitStack

import pytest

from perseid.server.http.connection.listener import HEAD_TIMEOUT, HTTPS_ONLY, LINGER_TIMEOUT, normalize_host
from tests.server.http.listeners import ask, client_context, line_from, plain_client, read_all, run_listener, tls_client


def test_http_and_https_on_one_port() -> None:
    with run_listener() as running:
        with plain_client(running.address) as client:
            assert ask(client, "who") == "127.0.0.1 False none"
            assert ask(client, "echo x") == "x"
        with tls_client(running.address, client_context()) as client:
            assert ask(client, "who") == "127.0.0.1 True none"
        running.until(lambda: not len(running.front.connections), "both are gone")


def test_several_requests_may_arrive_with_first_byte() -> None:
    with run_listener() as running, plain_client(running.address) as client:
        client.sendall(b"echo 1\necho 2\nwho\n")
        assert [line_from(client) for _ in range(3)] == ["1", "2", "127.0.0.1 False none"]


def test_http_client_is_refused_by_https_only() -> None:
    with run_listener(listen="https") as running:
        with plain_client(running.address) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = read_all(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b"Connection: close" in head
            assert body == HTTPS_ONLY
            client.sendall(b"GET /more HTTP/1.1\r\n\r\n")
        running.until(lambda: not len(running.front.connections), "it is gone")
        with tls_client(running.address, client_context()) as client:
            assert ask(client, "echo x") == "x"


def test_https_client_is_refused_by_http_only() -> None:
    with run_listener(listen="http") as running:
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"), tls_client(running.address, client_context()):
            pass
        with plain_client(running.address) as client:
            assert ask(client, "echo x") == "x"
        assert not running.failures


def test_http_works_without_certificate() -> None:
    with run_listener() as running:
        running.front.context = None
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"), tls_client(running.address, client_context()):
            pass
        with plain_client(running.address) as client:
            assert ask(client, "echo x") == "x"


def test_refused_client_that_stays_is_cut() -> None:
    with run_listener(listen="https") as running, plain_client(running.address) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        read_all(client)
        running.later(LINGER_TIMEOUT - 1)
        assert len(running.front.connections) == 1
        running.later(LINGER_TIMEOUT + 1)
        running.until(lambda: not len(running.front.connections), "it is gone")


def test_silent_client_is_cut() -> None:
    with run_listener() as running, plain_client(running.address) as client:
        running.until(lambda: running.front.pending, "it was let in")
        running.later(HEAD_TIMEOUT - 1)
        assert running.front.pending
        running.later(HEAD_TIMEOUT + 1)
        assert read_all(client) == b""
        running.until(lambda: not len(running.front.connections), "it is gone")
        assert running.counts.limits() == {"slow_connection": 1}


def test_connections_per_address_are_limited() -> None:
    with (
        run_listener(LIMITS_CONNECTIONS_PER_ADDRESS="3", LIMITS_EXEMPT_NETWORKS="[]") as running,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(plain_client(running.address)) for _ in range(3)]
        assert [ask(client, "echo x") for client in clients] == ["x"] * 3
        with plain_client(running.address) as client:
            client.sendall(b"echo x\n")
            assert read_all(client) == b""
        assert running.front.connections.refused == 1
        clients[0].close()
        running.until(lambda: len(running.front.connections) == 2, "one is gone")
        with tls_client(running.address, client_context()) as client:
            assert ask(client, "echo x") == "x"


def test_drain_ends_pending_connections_and_lets_handshakes_finish() -> None:
    with run_listener() as running, plain_client(running.address) as silent, plain_client(running.address) as begun:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        inside = client_context().wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            inside.do_handshake()
        hello = outgoing.read()
        begun.sendall(hello[:100])
        running.until(lambda: len(running.front.pending) == 2, "both were let in")
        running.call(running.front.drain)
        assert read_all(silent) == b""
        begun.sendall(hello[100:])
        while not inside.version() or not running.open:
            incoming.write(begun.recv(65_536))
            try:
                inside.do_handshake()
            except ssl.SSLWantReadError:
                continue
            begun.sendall(outgoing.read())
            running.until(lambda: running.open, "the handshake is done")
        assert running.front.handshakes == 1


def test_new_connections_are_refused_during_drain() -> None:
    with run_listener() as running:
        running.call(running.front.drain)
        with plain_client(running.address) as client:
            client.sendall(b"echo x\n")
            assert read_all(client) in (b"", b"x\n")
        running.until(lambda: not len(running.front.connections), "it is gone")


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:0:1", "::ffff:0:1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_ipv4_mapped_address_is_normalized(host: str, written: str) -> None:
    assert normalize_host(host) == written


def test_listening_on_all_addresses() -> None:
    with run_listener(host="::") as running:
        with plain_client(("127.0.0.1", running.address[1])) as client:
            assert ask(client, "who") == "127.0.0.1 False none"
        with tls_client(("::1", running.address[1]), client_context()) as client:
            assert ask(client, "who") == "::1 True none"
        running.until(lambda: not len(running.front.connections), "both are gone")


def test_reset_connections_leave_nothing() -> None:
    with run_listener() as running:
        for number in range(50):
            client = socket.create_connection(running.address)
            client.sendall([b"\x16", b"\x16\x03\x01", b"echo 1\n", b"e"][number % 4])
            if number % 3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            client.close()
        running.until(lambda: running.front.attaching == 0 and not len(running.front.connections), "all are gone")
        assert not running.front.pending
