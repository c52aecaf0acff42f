"""Clients with addresses of their own: all of 127.0.0.0/8 is this machine, so one machine can be many networks.

Limits by source need several of them. The server has to be told that the loopback network is not exempt from limits.
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
"""Some network that nobody here has."""


class SourceClient(NativeClient):
    """A client at an address. Over UDP it sends once: what it does not get, nobody asks for again."""

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
        """A request as it is sent."""
        return octets_of(self.client.pack(self.request(opcode, body, flags=flags), None))

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


def octets_of(frame: Frame) -> bytes:
    return frame.envelope.to_bytes() + frame.payload


def datagrams(host: str, server: Address) -> socket.socket:
    """A socket for UDP at an address."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((host, 0))
    made.connect(server)
    return made


def connected(host: str, server: Address, timeout: float = PATIENCE) -> socket.socket:
    """A TCP connection from an address."""
    made = socket.create_connection(server, timeout, source_address=(host, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def frames_in(octets: bytes) -> list[Frame]:
    """The whole messages in octets that came."""
    reader = FrameReader()
    reader.feed(octets)
    return list(reader.frames())


def read_frames(connection: socket.socket, count: int) -> list[Frame]:
    """So many messages from a connection, or fewer if it ends before."""
    reader, found = FrameReader(), list[Frame]()
    while len(found) < count and (octets := connection.recv(RECEIVED)):
        reader.feed(octets)
        found += reader.frames()
    return found


def until_cut(connection: socket.socket) -> int:
    """Read until the other side ends the connection, one way or the other; how many octets came."""
    total = 0
    with suppress(ConnectionError):
        while octets := connection.recv(RECEIVED):
            total += len(octets)
    return total


def metrics(server: Serving) -> dict[str, float]:
    """All metrics by name and labels, as the page has them."""
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in metrics_page(server).splitlines())
        if not name.startswith("#")
    }


def metrics_page(server: Serving) -> str:
    """What Prometheus would read."""
    assert server.metrics is not None
    host, port = server.metrics
    with urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text
