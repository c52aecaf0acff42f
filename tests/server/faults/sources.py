"""Clients with their own addresses: all of 127.0.0.0/8 is local, so one machine can be many networks.

For limits by source, the loopback network must not be exempt.
"""

import socket
import time
from contextlib import closing, suppress
from typing import Final
from urllib.request import urlopen

from perseid.wire.codes import OpCode, OpFlag
from perseid.wire.fragments import Reassembler, packet_count, split
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Message
from perseid.wire.requests import RequestBody
from perseid.wire.sessions import Session
from tests.server.native.native_client import RECEIVED, Frames, NativeClient, NoAnswer, Via
from tests.server.running import Address, Serving

PATIENCE: Final = 30.0
NOBODY_EXEMPT: Final = {"PERSEID_LIMITS_EXEMPT_NETWORKS": "192.0.2.0/24"}
"""A network that no client uses."""


class SourceClient(NativeClient):
    """A client at an address. Over UDP it sends once, without retries."""

    def __init__(self, server: Address, host: str, via: Via = Via.TCP, *, timeout: float = PATIENCE) -> None:
        super().__init__(server, via, timeout=timeout, attempts=1)
        self.host = host

    def exchange(self, request: Message, session: Session | None = None) -> Frames:
        frame = self.client.pack(request, session)
        if self.via is Via.UDP:
            yield self._once(frame)
        else:
            with closing(self._over_tcp(frame)) as frames:
                yield from frames

    def packed(self, opcode: OpCode, body: RequestBody, flags: OpFlag | None = None) -> bytes:
        """An encoded request."""
        return frame_bytes(self.client.pack(self.request(opcode, body, flags=flags), None))

    def _once(self, frame: Frame) -> Frame:
        unfinished = Reassembler()
        with datagrams(self.host, self.address) as sending:
            for packet in split(frame.envelope, frame.payload, request=True):
                sending.send(packet)
            sending.settimeout(self.timeout)
            try:
                while True:
                    packet = sending.recv(RECEIVED)
                    envelope = Envelope.from_bytes(packet)
                    if packet_count(envelope.length) == 1:
                        return Frame(envelope, packet[ENVELOPE_LENGTH:])
                    if (whole := unfinished.receive("server", packet, time.monotonic())) is not None:
                        return Frame(*whole)
            except TimeoutError:
                raise NoAnswer("one attempt over UDP, no answer") from None

    def _connected(self) -> socket.socket:
        kept, self._stream = self._stream, None
        if kept is not None:
            return kept
        self.connections += 1
        return connected(self.host, self.address, self.timeout)


def frame_bytes(frame: Frame) -> bytes:
    return frame.envelope.to_bytes() + frame.payload


def datagrams(host: str, server: Address) -> socket.socket:
    """A UDP socket at an address."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    sock.connect(server)
    return sock


def connected(host: str, server: Address, timeout: float = PATIENCE) -> socket.socket:
    """A TCP connection from an address."""
    sock = socket.create_connection(server, timeout, source_address=(host, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def frames_in(raw: bytes) -> list[Frame]:
    """The complete messages in received data."""
    reader = FrameReader()
    reader.feed(raw)
    return list(reader.frames())


def read_frames(connection: socket.socket, count: int) -> list[Frame]:
    """Read `count` messages, or fewer if the connection ends."""
    reader, received = FrameReader(), list[Frame]()
    while len(received) < count and (raw := connection.recv(RECEIVED)):
        reader.feed(raw)
        received += reader.frames()
    return received


def until_cut(connection: socket.socket) -> int:
    """Read until the connection ends; return the number of bytes."""
    total = 0
    with suppress(ConnectionError):
        while raw := connection.recv(RECEIVED):
            total += len(raw)
    return total


def metrics(server: Serving) -> dict[str, float]:
    """All metrics by name and labels."""
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in metrics_page(server).splitlines())
        if not name.startswith("#")
    }


def metrics_page(server: Serving) -> str:
    """The text of the metrics page."""
    assert server.metrics is not None
    host, port = server.metrics
    with urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text
