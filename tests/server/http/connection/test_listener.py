"""One port for HTTP and HTTPS: what is told apart by the first octet, who is let in, and who is cut."""

import socket
import ssl
from contextlib import ExitStack

import pytest

from perseid.registry.installation.setting_http import Listen
from perseid.server.http.connection.listener import HTTPS_ONLY, LINGER_TIMEOUT, normalize_host
from perseid.server.http.connection.manager import HEAD_TIMEOUT
from tests.server.http.listeners import ask, client_context, fronted, line_from, plain_client, read_all, tls_client


def test_both_are_spoken_at_one_port() -> None:
    with fronted() as behind:
        with plain_client(behind.address) as client:
            assert ask(client, "who") == "127.0.0.1 False none"
            assert ask(client, "echo x") == "x"
        with tls_client(behind.address, client_context()) as client:
            assert ask(client, "who") == "127.0.0.1 True none"
        behind.until(lambda: not len(behind.front.connections), "both are gone")


def test_several_requests_may_come_with_the_first_octet() -> None:
    with fronted() as behind, plain_client(behind.address) as client:
        client.sendall(b"echo 1\necho 2\nwho\n")
        assert [line_from(client) for _ in range(3)] == ["1", "2", "127.0.0.1 False none"]


def test_where_only_https_is_spoken_http_is_told_so() -> None:
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


def test_where_only_http_is_spoken_https_is_told_so() -> None:
    with fronted(listen=Listen.HTTP) as behind:
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"), tls_client(behind.address, client_context()):
            pass
        with plain_client(behind.address) as client:
            assert ask(client, "echo x") == "x"
        assert not behind.failures


def test_without_a_certificate_there_is_no_tls_and_http_goes_on() -> None:
    with fronted() as behind:
        behind.front.context = None
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"), tls_client(behind.address, client_context()):
            pass
        with plain_client(behind.address) as client:
            assert ask(client, "echo x") == "x"


def test_who_was_refused_and_stays_is_cut() -> None:
    with fronted(listen=Listen.HTTPS) as behind, plain_client(behind.address) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        read_all(client)
        behind.later(LINGER_TIMEOUT - 1)
        assert len(behind.front.connections) == 1
        behind.later(LINGER_TIMEOUT + 1)
        behind.until(lambda: not len(behind.front.connections), "it is gone")


def test_who_says_nothing_is_cut() -> None:
    with fronted() as behind, plain_client(behind.address) as client:
        behind.until(lambda: behind.front.pending, "it was let in")
        behind.later(HEAD_TIMEOUT - 1)
        assert behind.front.pending
        behind.later(HEAD_TIMEOUT + 1)
        assert read_all(client) == b""
        behind.until(lambda: not len(behind.front.connections), "it is gone")
        assert behind.counts.limits() == {"slow_connection": 1}


def test_an_address_has_so_many_connections_and_no_more() -> None:
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


def test_draining_ends_what_has_not_begun_and_lets_handshakes_finish() -> None:
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


def test_who_comes_while_all_ends_is_not_let_in() -> None:
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
def test_an_address_of_ipv4_stays_one(host: str, written: str) -> None:
    assert normalize_host(host) == written


def test_every_address_of_the_machine_may_be_listened_at() -> None:
    with fronted(host="::") as behind:
        with plain_client(("127.0.0.1", behind.address[1])) as client:
            assert ask(client, "who") == "127.0.0.1 False none"
        with tls_client(("::1", behind.address[1]), client_context()) as client:
            assert ask(client, "who") == "::1 True none"
        behind.until(lambda: not len(behind.front.connections), "both are gone")


def test_connections_that_break_off_leave_nothing() -> None:
    with fronted() as behind:
        for number in range(50):
            client = socket.create_connection(behind.address)
            client.sendall([b"\x16", b"\x16\x03\x01", b"echo 1\n", b"e"][number % 4])
            if number % 3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            client.close()
        behind.until(lambda: behind.front.attaching == 0 and not len(behind.front.connections), "all are gone")
        assert not behind.front.pending
