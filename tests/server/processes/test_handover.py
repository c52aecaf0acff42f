"""Forwarded datagrams arrive unchanged, and responses are told from requests."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.processes.datagrams import (
    MAX_FORWARDED_BYTES,
    Address,
    ForwardedDatagram,
    is_response,
    pack_datagram,
    unpack_datagram,
)
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.fragments import MAX_PACKET, split
from perseid.wire.message import Envelope, Header, Message
from tests.wire.recorded import WIRE_FILES, Vector, exchanges

PORTS = st.integers(0, 65_535)
IPV4: st.SearchStrategy[Address] = st.tuples(st.ip_addresses(v=4).map(str), PORTS)
IPV6: st.SearchStrategy[Address] = st.tuples(
    st.ip_addresses(v=6).map(str), PORTS, st.just(0), st.integers(0, 2**32 - 1)
)


LOCAL = st.one_of(st.just(b""), st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
OVER_UDP = [vector for vector in exchanges(*WIRE_FILES) if vector.transport == "udp"]


@given(st.floats(0, 2**40, allow_nan=False), st.one_of(IPV4, IPV6), st.binary(max_size=MAX_PACKET + 1), LOCAL)
def test_packed_datagram_is_unpacked(at: float, address: Address, datagram: bytes, local: bytes) -> None:
    raw = pack_datagram(at, address, datagram, local)
    assert len(raw) <= MAX_FORWARDED_BYTES
    assert unpack_datagram(raw) == ForwardedDatagram(at, address, datagram, local)


def test_address_is_valid_for_the_socket_module() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as receiver, socket.socket(family, socket.SOCK_DGRAM) as sender:
            receiver.bind((host, 0))
            receiver.settimeout(5)
            sender.sendto(b"x", unpack_datagram(pack_datagram(1.0, receiver.getsockname(), b"")).address)
            assert receiver.recv(10) == b"x"


# Answers


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
        (answer, True, [True, False, False]),  # as a request of several packets is answered: control sees the rest
    ):
        packets = split(one.envelope, one.payload(), request=as_request)
        assert [is_response(packet) for packet in packets] == expected


@given(st.binary(max_size=19))
def test_short_datagram_is_not_a_response(datagram: bytes) -> None:
    assert not is_response(datagram)


@given(st.binary(max_size=MAX_PACKET + 1))
def test_any_datagram_is_classified(datagram: bytes) -> None:
    assert is_response(datagram) in (True, False)
