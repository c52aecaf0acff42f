"""Clients: forwarding headers are trusted only from trusted networks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.http.clients import FORWARDING_HEADERS, Peer, find_client
from perseid.server.http.messages import Client
from perseid.server.limits.udp import NetworkSet

TRUSTED = NetworkSet(["10.0.0.0/8", "2001:db8::/32", "127.0.0.1"])
PROXY = "10.0.0.1"


def told(
    *headers: tuple[str, str], peer: str = PROXY, secure: bool = False, certificate: bytes | None = None
) -> Client:
    return find_client(peer, secure, certificate, headers, TRUSTED)


def forwarded(*values: str, peer: str = PROXY) -> Client:
    return told(*(("x-forwarded-for", value) for value in values), peer=peer)


# Untrusted peers


@pytest.mark.parametrize("name", sorted(FORWARDING_HEADERS))
@pytest.mark.parametrize("secure", [False, True])
def test_forwarding_headers_of_untrusted_peers_are_ignored(name: str, secure: bool) -> None:
    for value in ("127.0.0.1", "https", "for=127.0.0.1;proto=https"):
        client = told((name, value), peer="192.0.2.1", secure=secure, certificate=b"DER")
        assert client == Client("192.0.2.1", secure, certificate=b"DER")


def test_loopback_client_is_local() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1"):
        assert find_client(host, False, None, [("accept", "*/*")], NetworkSet(())) == Client(host, local=True)
    assert not find_client("192.0.2.1", False, None, (), NetworkSet(())).local


@pytest.mark.parametrize("name", sorted(FORWARDING_HEADERS))
@pytest.mark.parametrize("peer", ["127.0.0.2", "127.0.0.1", "::1"])
def test_forwarded_request_is_not_local(name: str, peer: str) -> None:
    """Neither from an untrusted program here (127.0.0.2, ::1), nor from a trusted proxy here."""
    for value in ("127.0.0.1", "", "x"):
        client = told((name, value), peer=peer)
        assert not client.local
        assert not client.private
        assert client.trusted is (peer == "127.0.0.1")


# Trusted proxies


@pytest.mark.parametrize(
    ("values", "host"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["198.51.100.9, 192.0.2.1"], "192.0.2.1"),
        (["rubbish, 192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1,10.0.0.2 ,\t10.0.0.3"], "192.0.2.1"),
        (["198.51.100.9", "192.0.2.1", "10.0.0.2"], "192.0.2.1"),
        (["192.0.2.1, 2001:db8::1"], "192.0.2.1"),
        (["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
        (["127.0.0.1"], "127.0.0.1"),
        (["2001:0DB9::0001"], "2001:db9::1"),
        (["[2001:db9::1]"], "2001:db9::1"),
        (["[2001:db9::1]:443"], "2001:db9::1"),
        (["192.0.2.1:50000"], "192.0.2.1"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1, ::ffff:10.0.0.2"], "192.0.2.1"),
    ],
)
def test_rightmost_untrusted_address_is_the_client(values: list[str], host: str) -> None:
    client = forwarded(*values)
    assert client == Client(host, trusted=True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "192.0.2.1,",
        "192.0.2.1, 10.0.0.2, x",
        "unknown",
        "_hidden",
        "192.0.2.256",
        "192.0.2.1.1",
        "192.0.2",
        "192.0.2.01",
        "192.0.2.1:",
        "192.0.2.1:port",
        "192.0.2.1:123456",
        "192.0.2.1 192.0.2.2",
        "fe80::1%eth0",
        "[::1",
        "::1]",
        "[192.0.2.1]",
        "[::1]x",
        "[::1]:",
        "[]",
        "for=192.0.2.1",
        "\xb2.0.0.1",
    ],
)
def test_invalid_address_means_insecure_peer(value: str) -> None:
    for secure in (False, True):
        client = told(("x-forwarded-for", value), ("x-forwarded-proto", "https"), secure=secure, certificate=b"DER")
        assert client == Client(PROXY, trusted=True)


@pytest.mark.parametrize(
    ("values", "secure"),
    [
        ((), False),
        (("https",), True),
        (("HTTPS",), True),
        (("http",), False),
        (("https, https",), True),
        (("https, http",), False),
        (("http", "https"), False),
        (("https,",), False),
        (("",), False),
        (("wss",), False),
    ],
)
@pytest.mark.parametrize("tls", [False, True])
def test_proxy_reports_protocol(values: tuple[str, ...], secure: bool, tls: bool) -> None:
    """TLS between the proxy and us says nothing about the connection from the client to the proxy."""
    headers = [("x-forwarded-for", "192.0.2.1"), *(("x-forwarded-proto", value) for value in values)]
    assert told(*headers, secure=tls) == Client("192.0.2.1", secure, trusted=True)


def test_certificate_of_proxy_is_not_the_clients() -> None:
    assert told(("x-forwarded-for", "192.0.2.1"), certificate=b"DER").certificate is None


def test_proxy_without_headers_is_the_client() -> None:
    assert told(secure=True, certificate=b"DER") == Client(PROXY, secure=True, trusted=True, certificate=b"DER")
    assert told(peer="127.0.0.1") == Client("127.0.0.1", trusted=True)  # a proxy that says nothing proves nothing


def test_proxy_may_report_protocol_only() -> None:
    assert told(("x-forwarded-proto", "https")) == Client(PROXY, secure=True, trusted=True)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(FORWARDING_HEADERS)), st.text(max_size=30)), max_size=4),
    st.sampled_from(["127.0.0.1", "127.0.0.2", PROXY, "192.0.2.1", "::1"]),
    st.booleans(),
)
def test_headers_never_make_a_client_local(headers: list[tuple[str, str]], peer: str, secure: bool) -> None:
    client = told(*headers, peer=peer, secure=secure)
    assert not (client.local and headers)
    if peer in ("192.0.2.1", "127.0.0.2", "::1"):
        assert (client.host, client.secure, client.trusted) == (peer, secure, False)


def test_peer_without_forwarding_is_the_client() -> None:
    peer = Peer("127.0.0.1", secure=True, certificate=b"DER", trusted_networks=TRUSTED)
    assert peer.alone == peer.client(()) == Client("127.0.0.1", True, False, True, b"DER")
    assert peer.client([("x-forwarded-for", "192.0.2.7")]) == Client("192.0.2.7", trusted=True)
