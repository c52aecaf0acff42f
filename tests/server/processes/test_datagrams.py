"""UDP sockets respond from the address that was asked, and responses are told from requests."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.processes.datagrams import (
    MAX_LOCAL_ADDRESSES,
    SingleAddressSocket,
    WildcardSocket,
    is_response,
    wrap_socket,
)
from perseid.server.processes.sockets import bind
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.fragments import MAX_PACKET, split
from perseid.wire.message import Envelope, Header, Message
from tests.wire.recorded import WIRE_FILES, Vector, exchanges

OVER_UDP = [vector for vector in exchanges(*WIRE_FILES) if vector.transport == "udp"]


def message(code: ResponseCode, size: int = 0) -> Message:
    return Message.build(Envelope(request_id=7), Header(OpCode.RESOLUTION, code), bytes(size))


@pytest.mark.parametrize("vector", OVER_UDP, ids=str)
def test_recorded_requests_and_responses_are_distinguished(vector: Vector) -> None:
    with_a_code = str(vector) == "malformed:malformed.response-as-request.udp"
    assert [is_response(packet) for packet in vector.request] == [with_a_code] * len(vector.request)
    for packet in vector.response:
        envelope = Envelope.from_bytes(packet)
        first_of_encrypted = envelope.encrypted and not envelope.sequence
        further_of_request = envelope.truncated and envelope.sequence > 0
        assert is_response(packet) == (not first_of_encrypted and not further_of_request)


@pytest.mark.parametrize("code", list(ResponseCode), ids=lambda code: code.name)
def test_message_with_a_response_code_is_a_response(code: ResponseCode) -> None:
    assert is_response(message(code).to_bytes()) == (code != ResponseCode.RESERVED)


def test_further_packets_are_classified_by_their_envelope() -> None:
    request, answer = message(ResponseCode.RESERVED, 1_200), message(ResponseCode.SUCCESS, 1_200)
    for one, as_request, expected in (
        (request, True, [False, False, False]),
        (answer, False, [True, True, True]),
        (
            answer,
            True,
            [True, False, False],
        ),  # as a request of several packets is answered: the rest is seen after reassembly
    ):
        packets = split(one.envelope, one.payload(), request=as_request)
        assert [is_response(packet) for packet in packets] == expected


@given(st.binary(max_size=19))
def test_short_datagram_is_not_a_response(datagram: bytes) -> None:
    assert not is_response(datagram)


@given(st.binary(max_size=MAX_PACKET + 1))
def test_any_datagram_is_classified(datagram: bytes) -> None:
    assert is_response(datagram) in (True, False)


# Sockets

PATIENCE = 30.0
EVERYWHERE = ("0.0.0.0", "::")
HOSTS = pytest.mark.parametrize(
    ("bound", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.2"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.2")],
)


@contextmanager
def bound_socket(host: str) -> Iterator[socket.socket]:
    """A UDP socket as workers have."""
    with ExitStack() as stack:
        (udp,), (tcp,) = bind(host, 0, 1)
        stack.enter_context(tcp)
        udp.settimeout(PATIENCE)
        yield stack.enter_context(udp)


@contextmanager
def client_of(host: str, port: int) -> Iterator[socket.socket]:
    """A connected socket, as deployed clients have."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect((host, port))
        made.settimeout(PATIENCE)
        yield made


@HOSTS
def test_response_comes_from_the_requested_address(bound: str, asked: str) -> None:
    with bound_socket(bound) as udp, client_of(asked, udp.getsockname()[1]) as client:
        made = wrap_socket(udp)
        client.send(b"question")
        datagram, return_address = made.receive(600)
        assert (datagram, return_address[1]) == (b"question", client.getsockname()[1])
        made.send(b"answer", return_address)
        assert client.recv(600) == b"answer"
        assert not made.is_own(return_address)


def test_one_socket_responds_from_many_addresses_with_a_bounded_cache() -> None:
    with bound_socket(EVERYWHERE[0]) as udp:
        made = wrap_socket(udp)
        for number in range(MAX_LOCAL_ADDRESSES + 10):
            with client_of(f"127.1.{number // 250}.{number % 250 + 1}", udp.getsockname()[1]) as client:
                client.send(b"question")
                made.send(b"answer", made.receive(600)[1])
                assert client.recv(600) == b"answer"
        assert isinstance(made, WildcardSocket)
        assert len(made._local_addresses) < MAX_LOCAL_ADDRESSES


@HOSTS
def test_only_a_wildcard_socket_reads_local_addresses(bound: str, asked: str) -> None:
    """Other sockets use the plain system calls."""
    with bound_socket(bound) as udp, client_of(asked, udp.getsockname()[1]) as client:
        client.send(b"x")
        _, ancillary, flags, _ = udp.recvmsg(10, 100)
        made = wrap_socket(udp)
        assert not flags & socket.MSG_CTRUNC
        if bound in EVERYWHERE:
            assert isinstance(made, WildcardSocket)
            assert len(ancillary) == 1
        else:
            assert isinstance(made, SingleAddressSocket)
            assert ancillary == []


def test_response_is_sent_if_the_local_address_is_unknown() -> None:
    """A datagram that arrived before the option was set."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((EVERYWHERE[0], 0))
        udp.settimeout(PATIENCE)
        made = wrap_socket(udp)
        with client_of("127.0.0.1", udp.getsockname()[1]) as client:
            client.send(b"question")
            made.send(b"answer", made.receive(600)[1])
            assert client.recv(600) == b"answer"


@HOSTS
def test_datagram_from_the_server_itself_is_recognized(bound: str, asked: str) -> None:
    with bound_socket(bound) as udp:
        made, port = wrap_socket(udp), udp.getsockname()[1]
        to = f"::ffff:{asked}" if udp.family == socket.AF_INET6 and ":" not in asked else asked
        udp.sendto(b"x", (to, port))
        assert made.is_own(made.receive(10)[1])
        # Another server, for example, which sends from the port at which it serves.
        other = ("192.0.2.1", port) if udp.family == socket.AF_INET else ("::ffff:192.0.2.1", port, 0, 0)
        assert not made.is_own((*other[:2], other, []))
        another = (udp.getsockname()[0], port - 1, *other[2:])
        assert not made.is_own((*another[:2], another, []))
