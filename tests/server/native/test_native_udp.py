"""UDP in the event loop: public resolution, messages of several packets, short and reflected responses."""

import asyncio
import os
import re
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.server.limits.udp import TOO_LARGE_TEXT, RateLimit, TrafficLimit
from perseid.server.native.resolution import MAX_PACKETS
from perseid.server.native.udp import MAX_BATCH, MAX_IN_FLIGHT, TOO_LONG, UdpLimits, UdpServer
from perseid.server.native.work import NativeResponse
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.metrics import WorkerCounters
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
NO_LIMIT = RateLimit(0, 0)
ANSWER = Message.build(Envelope(request_id=7), Header(OpCode.CREATE_HANDLE, ResponseCode.SUCCESS), bytes(200))
LONG_ANSWER = Message.build(ANSWER.envelope, ANSWER.header, bytes(2_000))


@dataclass
class Service:
    """A service that sends the same response to everything."""

    answer: Message = ANSWER
    access: AccessLog | None = None
    messages: int = 1
    delay: float = 0.0
    served_frames: list[Frame] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    counts: WorkerCounters = field(default_factory=WorkerCounters)
    public: dict[bytes, bytes] = field(default_factory=dict)
    """Public resolutions and their responses."""

    @property
    def native_server(self) -> SimpleNamespace:
        return SimpleNamespace(resolution_enabled={Transport.UDP: True})

    def public_resolver(self, datagram: bytes) -> bytes | None:
        return self.public.get(datagram)

    async def respond(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]:
        assert (host, transport) == ("127.0.0.1", Transport.UDP)
        self.served_frames.append(frame)
        await asyncio.sleep(self.delay)
        for _ in range(self.messages):
            yield NativeResponse(Reply((Frame(self.answer.envelope, self.answer.payload()),)))

    def early_failure(self, code: ResponseCode, text: str, answered: Envelope | None = None) -> Reply:
        return make_server().early_failure(code, text, NOW, answered=answered)

    def log_invalid(self, problem: str, host: str, transport: Transport) -> None:
        self.lines.append(f"{problem}, from {host} over {transport.name}")

    def count_drop(self, reason: str) -> None:
        self.drops[reason] += 1

    def time(self) -> float:
        return NOW


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = TrafficLimit.create(1)
    yield descriptor
    os.close(descriptor)


def ask(service: Service, traffic: TrafficLimit, *datagrams: bytes, all_requests: RateLimit = NO_LIMIT) -> list[bytes]:
    """Send datagrams and return the responses, in the order in which they arrive."""

    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        memory = TrafficLimit.create(1)
        served = UdpServer(service, UdpLimits(traffic, TrafficLimit(memory, 0, 0), all_requests), service.access)  # type: ignore[arg-type]
        served.start(loop, udp)
        for datagram in datagrams:
            client.send(datagram)
        while not _is_read(udp) or served.in_flight:  # noqa: ASYNC110 - nobody else would tell
            await asyncio.sleep(0)
        served.stop(loop, udp)
        os.close(memory)
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(client.recv(600))
        return found

    with socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket(type=socket.SOCK_DGRAM) as client:
        udp.bind(("127.0.0.1", 0))
        client.connect(udp.getsockname())
        client.setblocking(False)
        return asyncio.run(run())


def _is_read(udp: socket.socket) -> bool:
    try:
        udp.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    return False


def long_request(flags: OpFlag = DEFAULT_FLAGS) -> tuple[Client, Message]:
    client = Client(lambda count: b"\x2a" * count)
    body = ValuesRequest(b"20.500.99999/long", (Value(1, "DATA", b"\xfe" * 1_200),))
    return client, client.request(OpCode.CREATE_HANDLE, body, NOW, flags=flags)


def test_message_of_several_packets_is_answered(memory: int) -> None:
    _, request = long_request()
    service = Service()
    packets = split(request.envelope, request.payload(), request=True)
    (datagram,) = ask(service, TrafficLimit(memory, 0, 0), *packets)
    assert datagram == ANSWER.to_bytes()
    (early,) = ask(service, TrafficLimit(memory, 0, 0), b"abc")
    assert int.from_bytes(early[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big") == ResponseCode.PROTOCOL_ERROR
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
    (datagram,) = ask(service, TrafficLimit(memory, 1e-9, 1), *packets)
    answer = client.read(Frame(Envelope.from_bytes(datagram), datagram[ENVELOPE_LENGTH:]), request, NOW)
    assert answer.message.header.opcode is OpCode.CREATE_HANDLE
    assert answer.code is ResponseCode.ERROR
    assert (answer.digest is not None) == (OpFlag.REQUEST_DIGEST in flags), "and that it is right is checked"
    assert service.drops == {"rate_limit": 1}


def test_every_request_for_too_large_a_response_gets_a_short_one(memory: int) -> None:
    client, request = long_request()
    packets = split(request.envelope, request.payload(), request=True)
    service = Service(Message.build(ANSWER.envelope, ANSWER.header, bytes(MAX_PACKETS * MAX_PACKET)))
    answers = ask(service, TrafficLimit(memory, 1e-9, 1), *packets * 4)
    assert len(answers) == 4
    for datagram in answers:
        frame = Frame(Envelope.from_bytes(datagram), datagram[ENVELOPE_LENGTH:])
        answer = client.read(frame, request, NOW)
        assert answer.body == Failure.of(TOO_LARGE_TEXT.decode())
        assert answer.code is ResponseCode.ERROR
    encrypted = bytearray(packets[0][: MAX_PACKET - 1])
    encrypted[2] = 0x40
    (datagram,) = ask(service, TrafficLimit(memory, 1e-9, 1), bytes(encrypted))
    assert Envelope.from_bytes(datagram).request_id == request.envelope.request_id
    assert TOO_LARGE_TEXT in datagram
    assert service.drops == {"too_large": 5}


def test_datagram_longer_than_a_packet_is_refused_with_the_limit(memory: int) -> None:
    client, request = long_request()
    raw = request.to_bytes()
    tc = split(request.envelope, request.payload(), request=True)[0] + b"x"
    service = Service()
    for oversized in (raw, tc):
        (datagram,) = ask(service, TrafficLimit(memory, 1e-9, 1), oversized)
        envelope = Envelope.from_bytes(datagram)
        assert envelope.request_id == request.envelope.request_id
        with pytest.raises(RemoteProtocolError, match=re.escape(TOO_LONG)):
            client.read(Frame(envelope, datagram[ENVELOPE_LENGTH:]), request, NOW)
        assert len(datagram) < MAX_PACKET
    assert "512 bytes" in TOO_LONG
    assert service.lines == ["datagram of more than 512 bytes, from 127.0.0.1 over UDP"] * 2
    assert service.served_frames == []


def test_response_is_charged_for_what_it_has_more_than_the_request(memory: int) -> None:
    _, request = long_request()
    packets = split(request.envelope, request.payload(), request=True)
    traffic = TrafficLimit(memory, 1e-9, 1)
    assert len(ask(Service(), traffic, *packets, *packets)) == 2, "the responses are shorter than the request"
    size = sum(map(len, split(LONG_ANSWER.envelope, LONG_ANSWER.payload(), request=False)))
    excess = size - ENVELOPE_LENGTH - len(request.payload())
    assert len(ask(Service(LONG_ANSWER), TrafficLimit(memory, 1e-9, excess), *packets)) == 5
    short = ask(Service(LONG_ANSWER), TrafficLimit(memory, 1e-9, excess), *packets)
    assert len(short) == 1


def test_request_is_deducted_from_one_message_of_a_response(memory: int) -> None:
    _, request = long_request()
    packets = split(request.envelope, request.payload(), request=True)
    service = Service(messages=4)
    burst = 2 * len(ANSWER.to_bytes())
    assert len(ask(service, TrafficLimit(memory, 1e-9, burst), *packets)) == 3 + 1, "the last one is short"
    assert service.drops == {"rate_limit": 1}


def test_invalid_message_gets_no_short_response(memory: int) -> None:
    service = Service()
    assert ask(service, TrafficLimit(memory, 1e-9, 1), b"abc") == []
    assert service.drops == {"rate_limit": 1}


def test_reflected_response_of_several_packets_gets_no_response(memory: int) -> None:
    """It echoes the TC flag of its request."""
    answer = Message.build(Envelope(request_id=7), Header(OpCode.RESOLUTION, ResponseCode.SUCCESS), bytes(1_200))
    service = Service()
    assert ask(service, TrafficLimit(memory, 0, 0), *split(answer.envelope, answer.payload(), request=True)) == []
    assert service.served_frames == []
    assert service.drops == {"response": 1}


# Public resolution

QUESTION = Message.build(Envelope(request_id=8), Header(OpCode.RESOLUTION, ResponseCode.RESERVED), bytes(60)).to_bytes()
LONG_QUESTION = QUESTION[:-1] + b"x"
RESPONSE = Message.build(Envelope(request_id=8), Header(OpCode.RESOLUTION, ResponseCode.SUCCESS), bytes(80)).to_bytes()
LONG_RESPONSE = Message.build(
    Envelope(request_id=8), Header(OpCode.RESOLUTION, ResponseCode.SUCCESS), bytes(1_200)
).to_bytes()
PUBLIC = {QUESTION: RESPONSE, LONG_QUESTION: LONG_RESPONSE}


def test_public_resolution_is_answered_at_once_and_counted(memory: int) -> None:
    service = Service(public=PUBLIC)
    count = MAX_BATCH + 10  # in several turns
    assert ask(service, TrafficLimit(memory, 0, 0), *[QUESTION] * count) == [RESPONSE] * count
    packets = ask(service, TrafficLimit(memory, 0, 0), LONG_QUESTION)
    assert len(packets) == 3
    assert b"".join(packet[ENVELOPE_LENGTH:] for packet in packets) == LONG_RESPONSE[ENVELOPE_LENGTH:]
    assert service.counts.requests() == {("udp", "resolution", "success"): count + 1}
    assert service.counts.udp_bytes == count * len(RESPONSE) + sum(map(len, packets))
    assert service.served_frames == []


def test_network_over_its_limit_gets_every_other_time_a_short_response(memory: int) -> None:
    service = Service(public=PUBLIC)
    excess = len(RESPONSE) - len(QUESTION)
    found = ask(service, TrafficLimit(memory, 1e-9, 2 * excess), *[QUESTION] * 6)
    assert found[:2] == [RESPONSE] * 2
    assert [answer[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8] for answer in found[2:]] == [b"\0\0\0\2"] * 2
    assert service.drops == {"rate_limit": 4}


def test_requests_beyond_the_limit_are_dropped_before_they_cost_anything(memory: int) -> None:
    _, request = long_request()
    packet = Message.build(request.envelope, request.header, bytes(100)).to_bytes()
    service = Service(public=PUBLIC)
    found = ask(service, TrafficLimit(memory, 0, 0), *[packet] * 6, QUESTION, all_requests=RateLimit(1e-9, 2))
    assert len(service.served_frames) == 2
    assert RESPONSE in found, "public resolution has no such limit"
    assert service.drops == {"rate_limit": 4}


def test_public_resolution_comes_before_what_costs_more(memory: int) -> None:
    _, request = long_request()
    packet = Message.build(request.envelope, request.header, bytes(100)).to_bytes()
    service = Service(public=PUBLIC)
    found = ask(service, TrafficLimit(memory, 0, 0), *[packet] * 20, *[QUESTION] * 5)
    assert found[:5] == [RESPONSE] * 5
    assert len(found) == 25


def test_excess_messages_are_dropped(memory: int) -> None:
    _, request = long_request()
    packet = Message.build(request.envelope, request.header, bytes(100)).to_bytes()
    service = Service(delay=0.05)
    found = ask(service, TrafficLimit(memory, 0, 0), *[packet] * (MAX_IN_FLIGHT + 7))
    assert len(found) == MAX_IN_FLIGHT
    assert service.drops == {"in_flight": 7}


def test_responses_and_datagrams_of_the_socket_itself_are_dropped(memory: int) -> None:
    service = Service(public=PUBLIC)
    assert ask(service, TrafficLimit(memory, 0, 0), RESPONSE, QUESTION) == [RESPONSE]
    assert service.drops == {"response": 1}

    async def echo() -> None:
        loop = asyncio.get_running_loop()
        limit = TrafficLimit(memory, 0, 0)
        served = UdpServer(service, UdpLimits(limit, limit, NO_LIMIT))  # type: ignore[arg-type]
        with socket.socket(type=socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", 0))
            udp.sendto(QUESTION, udp.getsockname())
            served.start(loop, udp)
            while not service.drops["forged"]:  # noqa: ASYNC110 - nobody else would tell
                await asyncio.sleep(0)
            served.stop(loop, udp)

    asyncio.run(echo())
