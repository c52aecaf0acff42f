"""Forwarded datagrams: messages of several packets, short responses, and reflected responses."""

import asyncio
import os
import re
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import pytest

from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.server.limits.udp import TOO_LARGE_TEXT, TrafficLimit
from perseid.server.native.resolution import MAX_PACKETS
from perseid.server.native.steps import NativeResponse
from perseid.server.native.udp import TOO_LONG, UdpServer
from perseid.server.processes.datagrams import (
    MAX_FORWARDED_BYTES,
    Address,
    ForwardedDatagram,
    pack_datagram,
    unpack_datagram,
)
from perseid.wire.client import Client
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.fragments import MAX_PACKET, split
from perseid.wire.framing import Frame
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Header, Message
from perseid.wire.requests import ValuesRequest
from perseid.wire.responses import Failure
from perseid.wire.server import Reply
from tests.server.native.native_servers import make_server

NOW = 1_794_724_100.0
SOURCE: Address = ("192.0.2.1", 4_711)
LOCAL = socket.inet_aton("192.0.2.200")
ANSWER = Message.build(Envelope(request_id=7), Header(OpCode.CREATE_HANDLE, ResponseCode.SUCCESS), bytes(200))
LONG_ANSWER = Message.build(ANSWER.envelope, ANSWER.header, bytes(2_000))


@dataclass
class Service:
    """A service that sends the same response to everything."""

    answer: Message = ANSWER
    messages: int = 1
    served_frames: list[Frame] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    async def served(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]:
        assert (host, transport) == (SOURCE[0], Transport.UDP)
        self.served_frames.append(frame)
        for _ in range(self.messages):
            yield NativeResponse(Reply((Frame(self.answer.envelope, self.answer.payload()),)))

    def early_failure(self, code: ResponseCode, text: str, answered: Envelope | None = None) -> Reply:
        return make_server().early_failure(code, text, NOW, answered=answered)

    def log_invalid(self, problem: str, host: str, transport: Transport) -> None:
        self.lines.append(f"{problem}, from {host} over {transport.name}")

    def dropped(self, reason: str) -> None:
        self.drops[reason] += 1

    def time(self) -> float:
        return NOW


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = TrafficLimit.create(1)
    yield descriptor
    os.close(descriptor)


def forward(service: Service, traffic: TrafficLimit, *datagrams: bytes) -> list[ForwardedDatagram]:
    """Forward datagrams and return the responses."""
    control, resolver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def run() -> None:
        udp = UdpServer(service, [control], traffic)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        udp.start(loop)
        for datagram in datagrams:
            resolver.send(pack_datagram(asyncio.get_running_loop().time(), SOURCE, datagram, LOCAL))
        while not _is_read(control) or udp.in_flight:  # noqa: ASYNC110 - nobody else would tell
            await asyncio.sleep(0)
        udp.stop(loop)

    with control, resolver:
        asyncio.run(run())
        resolver.setblocking(False)
        found = []
        try:
            while True:
                found.append(unpack_datagram(resolver.recv(MAX_FORWARDED_BYTES)))
        except BlockingIOError:
            return found


def _is_read(control: socket.socket) -> bool:
    try:
        control.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


def long_request(flags: OpFlag = DEFAULT_FLAGS) -> tuple[Client, Message]:
    client = Client(lambda count: b"\x2a" * count)
    body = ValuesRequest(b"20.500.99999/long", (Value(1, "DATA", b"\xfe" * 1_200),))
    return client, client.request(OpCode.CREATE_HANDLE, body, NOW, flags=flags)


def test_response_leaves_from_the_requested_address(memory: int) -> None:
    _, request = long_request()
    service = Service()
    packets = split(request.envelope, request.payload(), request=True)
    (parcel,) = forward(service, TrafficLimit(memory, 0, 0), *packets)
    assert (parcel.address, parcel.local, parcel.datagram) == (SOURCE, LOCAL, ANSWER.to_bytes())
    (early,) = forward(service, TrafficLimit(memory, 0, 0), b"abc")
    assert (early.address, early.local) == (SOURCE, LOCAL)
    assert [frame.payload for frame in service.served_frames] == [request.payload()]


@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST])
@pytest.mark.parametrize("last", [0, 1, 2])
def test_short_response_to_several_packets_answers_the_whole_request(memory: int, last: int, flags: OpFlag) -> None:
    """Whichever packet arrives last: two of them have no header."""
    client, request = long_request(flags)
    packets = split(request.envelope, request.payload(), request=True)
    assert len(packets) == 3
    packets.append(packets.pop(last))
    service = Service(LONG_ANSWER)
    (parcel,) = forward(service, TrafficLimit(memory, 1e-9, 1), *packets)
    answer = client.read(Frame(Envelope.from_bytes(parcel.datagram), parcel.datagram[ENVELOPE_LENGTH:]), request, NOW)
    assert answer.message.header.opcode is OpCode.CREATE_HANDLE
    assert answer.code is ResponseCode.ERROR
    assert (answer.digest is not None) == (OpFlag.REQUEST_DIGEST in flags), "and that it is right is checked"
    assert parcel.local == LOCAL
    assert service.drops == {"rate_limit": 1}


def test_every_request_for_too_large_a_response_gets_a_short_one(memory: int) -> None:
    client, request = long_request()
    packets = split(request.envelope, request.payload(), request=True)
    service = Service(Message.build(ANSWER.envelope, ANSWER.header, bytes(MAX_PACKETS * MAX_PACKET)))
    parcels = forward(service, TrafficLimit(memory, 1e-9, 1), *packets * 4)
    assert len(parcels) == 4
    for parcel in parcels:
        frame = Frame(Envelope.from_bytes(parcel.datagram), parcel.datagram[ENVELOPE_LENGTH:])
        answer = client.read(frame, request, NOW)
        assert answer.body == Failure.of(TOO_LARGE_TEXT.decode())
        assert answer.code is ResponseCode.ERROR
    encrypted = bytearray(packets[0][: MAX_PACKET - 1])
    encrypted[2] = 0x40
    (parcel,) = forward(service, TrafficLimit(memory, 1e-9, 1), bytes(encrypted))
    assert Envelope.from_bytes(parcel.datagram).request_id == request.envelope.request_id
    assert TOO_LARGE_TEXT in parcel.datagram
    assert service.drops == {"too_large": 5}


def test_datagram_longer_than_a_packet_is_refused_with_the_limit(memory: int) -> None:
    client, request = long_request()
    raw = request.to_bytes()
    tc = split(request.envelope, request.payload(), request=True)[0] + b"x"
    service = Service()
    for datagram in (raw[: MAX_PACKET + 1], tc):  # no more is forwarded
        (parcel,) = forward(service, TrafficLimit(memory, 1e-9, 1), datagram)
        envelope = Envelope.from_bytes(parcel.datagram)
        assert envelope.request_id == request.envelope.request_id
        with pytest.raises(RemoteProtocolError, match=re.escape(TOO_LONG)):
            client.read(Frame(envelope, parcel.datagram[ENVELOPE_LENGTH:]), request, NOW)
        assert len(parcel.datagram) < MAX_PACKET
    assert "512 bytes" in TOO_LONG
    assert service.lines == ["datagram of more than 512 bytes, from 192.0.2.1 over UDP"] * 2
    assert service.served_frames == []


def test_response_is_charged_for_what_it_has_more_than_the_request(memory: int) -> None:
    _, request = long_request()
    packets = split(request.envelope, request.payload(), request=True)
    traffic = TrafficLimit(memory, 1e-9, 1)
    assert len(forward(Service(), traffic, *packets, *packets)) == 2, "the responses are shorter than the request"
    size = sum(map(len, split(LONG_ANSWER.envelope, LONG_ANSWER.payload(), request=False)))
    excess = size - ENVELOPE_LENGTH - len(request.payload())
    assert len(forward(Service(LONG_ANSWER), TrafficLimit(memory, 1e-9, excess), *packets)) == 5
    short = forward(Service(LONG_ANSWER), TrafficLimit(memory, 1e-9, excess), *packets)
    assert len(short) == 1


def test_request_is_deducted_from_one_message_of_a_response(memory: int) -> None:
    _, request = long_request()
    packets = split(request.envelope, request.payload(), request=True)
    service = Service(messages=4)
    burst = 2 * len(ANSWER.to_bytes())
    assert len(forward(service, TrafficLimit(memory, 1e-9, burst), *packets)) == 3 + 1, "the last one is short"
    assert service.drops == {"rate_limit": 1}


def test_invalid_message_gets_no_short_response(memory: int) -> None:
    service = Service()
    assert forward(service, TrafficLimit(memory, 1e-9, 1), b"abc") == []
    assert service.drops == {"rate_limit": 1}


def test_reflected_response_of_several_packets_gets_no_response(memory: int) -> None:
    """It echoes the TC flag of its request."""
    answer = Message.build(Envelope(request_id=7), Header(OpCode.RESOLUTION, ResponseCode.SUCCESS), bytes(1_200))
    service = Service()
    assert forward(service, TrafficLimit(memory, 0, 0), *split(answer.envelope, answer.payload(), request=True)) == []
    assert service.served_frames == []
    assert service.drops == {"response": 1}
