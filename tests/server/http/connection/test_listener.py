"""One port for HTTP and HTTPS: what is told apart by the first octet, who is let in, and who is cut."""

import socket
import ssl
from contextlib import ExitStack

import pytest

from perseid.registry.installation.setting_http import Listen
from perseid.server.http.connection.listener import HTTPS_ONLY, LINGER_TIMEOUT, normalize_host
from perseid.server.http.connection.manager import HEAD_TIMEOUT
from tests.server.http.listeners import ask, client_context, fronted, line_from, plain_client, read_all, tls_client


def test_http_and_https_on_one_port() -> None:
    with fronted() as behind:
        with plain_client(behind.address) as client:
            assert ask(client, "who") == "127.0.0.1 False none"
            assert ask(client, "echo x") == "x"
        with tls_client(behind.address, client_context()) as client:
            assert ask(client, "who") == "127.0.0.1 True none"
        behind.until(lambda: not len(behind.front.connections), "both are gone")


def test_several_requests_may_arrive_with_first_byte() -> None:
    with fronted() as behind, plain_client(behind.address) as client:
        client.sendall(b"echo 1\necho 2\nwho\n")
        assert [line_from(client) for _ in range(3)] == ["1", "2", "127.0.0.1 False none"]


def test_http_client_is_refused_by_https_only() -> None:
    with fronted(listen=Listen.HTTPS) as behind:
        with plain_client(behind.address) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = read_all(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b"Connection: close" in head
            assert body == HTTPS_ONLY
            client.sendall(b"GET /more HTTP/1.1\r\n\r\n")
        behind.until(lambda: not len(behind.front.connections), "it is gone")
        with tls_client(behind.address, client_context()) as client:
            assert ask(client, "echo x") == "x"


def test_https_client_is_refused_by_http_only() -> None:
    with fronted(listen=Listen.HTTP) as behind:
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"), tls_client(behind.address, client_context()):
            pass
        with plain_client(behind.address) as client:
            assert ask(client, "echo x") == "x"
        assert not behind.failures


def test_http_works_without_certificate() -> None:
    with fronted() as behind:
        behind.front.context = None
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"), tls_client(behind.address, client_context()):
            pass
        with plain_client(behind.address) as client:
            assert ask(client, "echo x") == "x"


def test_refused_client_that_stays_is_cut() -> None:
    with fronted(listen=Listen.HTTPS) as behind, plain_client(behind.address) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        read_all(client)
        behind.later(LINGER_TIMEOUT - 1)
        assert len(behind.front.connections) == 1
        behind.later(LINGER_TIMEOUT + 1)
        behind.until(lambda: not len(behind.front.connections), "it is gone")


def test_silent_client_is_cut() -> None:
    with fronted() as behind, plain_client(behind.address) as client:
        behind.until(lambda: behind.front.pending, "it was let in")
        behind.later(HEAD_TIMEOUT - 1)
        assert behind.front.pending
        behind.later(HEAD_TIMEOUT + 1)
        assert read_all(client) == b""
        behind.until(lambda: not len(behind.front.connections), "it is gone")
        assert behind.counts.limits() == {"slow_connection": 1}


def test_connections_per_address_are_limited() -> None:
    with (
        fronted(LIMITS_CONNECTIONS_PER_ADDRESS="3", LIMITS_EXEMPT_NETWORKS="[]") as behind,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(plain_client(behind.address)) for _ in range(3)]
        assert [ask(client, "echo x") for client in clients] == ["x"] * 3
        with plain_client(behind.address) as client:
            client.sendall(b"echo x\n")
            assert read_all(client) == b""
        assert behind.front.connections.refused == 1
        clients[0].close()
        behind.until(lambda: len(behind.front.connections) == 2, "one is gone")
        with tls_client(behind.address, client_context()) as client:
            assert ask(client, "echo x") == "x"


def test_drain_ends_pending_connections_and_lets_handshakes_finish() -> None:
    with fronted() as behind, plain_client(behind.address) as silent, plain_client(behind.address) as begun:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        inside = client_context().wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            inside.do_handshake()
        hello = outgoing.read()
        begun.sendall(hello[:100])
        behind.until(lambda: len(behind.front.pending) == 2, "both were let in")
        behind.call(behind.front.drain)
        assert read_all(silent) == b""
        begun.sendall(hello[100:])
        while not inside.version() or not behind.open:
            incoming.write(begun.recv(65_536))
            try:
                inside.do_handshake()
            except ssl.SSLWantReadError:
                continue
            begun.sendall(outgoing.read())
            behind.until(lambda: behind.open, "the handshake is done")
        assert behind.front.handshakes == 1


def test_new_connections_are_refused_during_drain() -> None:
    with fronted() as behind:
        behind.call(behind.front.drain)
        with plain_client(behind.address) as client:
            client.sendall(b"echo x\n")
            assert read_all(client) in (b"", b"x\n")
        behind.call(behind.front.stop, behind.loop)
        behind.until(lambda: not len(behind.front.connections), "it is gone")


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
    with fronted(host="::") as behind:
        with plain_client(("127.0.0.1", behind.address[1])) as client:
            assert ask(client, "who") == "127.0.0.1 False none"
        with tls_client(("::1", behind.address[1]), client_context()) as client:
            assert ask(client, "who") == "::1 True none"
        behind.until(lambda: not len(behind.front.connections), "both are gone")


def test_reset_connections_leave_nothing() -> None:
    with fronted() as behind:
        for number in range(50):
            client = socket.create_connection(behind.address)
            client.sendall([b"\x16", b"\x16\x03\x01", b"echo 1\n", b"e"][number % 4])
            if number % 3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            client.close()
        behind.until(lambda: behind.front.attaching == 0 and not len(behind.front.connections), "all are gone")
        assert not behind.front.pending
