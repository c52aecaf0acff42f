"""Native protocol over UDP in the control process: datagrams that resolvers forward.

Responses go back through the same resolver. Messages of several datagrams are reassembled here, whichever resolvers
received the parts.
"""

import asyncio
import socket
from time import monotonic
from typing import TYPE_CHECKING, Final

from perseid.records.site import Transport
from perseid.server.limits.udp import TrafficLimit, short_response
from perseid.server.processes.datagrams import (
    MAX_AGE,
    MAX_FORWARDED_BYTES,
    ForwardedDatagram,
    pack_datagram,
    unpack_datagram,
)
from perseid.wire import message as envelope_module
from perseid.wire.codes import ResponseCode
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope
from perseid.wire.server import INVALID_LENGTH_TEXT, Reply

from .resolution import MAX_PACKETS

if TYPE_CHECKING:
    from .service import NativeService

MAX_BATCH: Final = 4
"""Datagrams read from one resolver before others get their turn, above all TCP: a message costs the loop up to half a
millisecond, and datagrams can wait in the kernel."""

MAX_IN_FLIGHT: Final = 128
"""Messages over UDP handled at a time: as many as fit in the longest queue. More would only be refused there, which
costs more than dropping them."""

_CODE = slice(4, 8)  # the response code in a message


class UdpServer:
    """Handles datagrams that resolvers forward."""

    def __init__(self, service: "NativeService", sockets: list[socket.socket], traffic: TrafficLimit) -> None:
        self._service = service
        self._sockets = sockets
        self.traffic = traffic
        """Byte limits of networks."""
        self._reassembler = Reassembler()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals = 0

    @property
    def in_flight(self) -> int:
        """Number of messages being handled."""
        return len(self._tasks)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        for sock in self._sockets:
            sock.setblocking(False)
            loop.add_reader(sock.fileno(), self._readable, sock)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read nothing more; started work continues."""
        for sock in self._sockets:
            loop.remove_reader(sock.fileno())

    def purge_expired(self, now: float) -> None:
        """Drop messages whose remaining packets never arrived."""
        self._reassembler.expire(now)

    def _readable(self, resolver: socket.socket) -> None:
        now = monotonic()
        for _ in range(MAX_BATCH):
            try:
                data = resolver.recv(MAX_FORWARDED_BYTES)
            except BlockingIOError:
                return
            if not data:  # the supervisor has ended
                asyncio.get_running_loop().remove_reader(resolver.fileno())
                return
            forwarded = unpack_datagram(data)
            if now - forwarded.at > MAX_AGE:
                self._service.dropped("late")
            else:
                self._take(resolver, forwarded, now)

    def _take(self, resolver: socket.socket, forwarded: ForwardedDatagram, now: float) -> None:
        datagram, host = forwarded.datagram, forwarded.address[0]
        if len(datagram) < envelope_module.ENVELOPE_LENGTH:
            reply = self._service.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT)
            self._send(resolver, forwarded, reply)
            return
        frame = Frame(Envelope.from_bytes(datagram), datagram[envelope_module.ENVELOPE_LENGTH :])
        if frame.envelope.truncated and frame.envelope.has_valid_length:
            whole = self._reassembler.receive(host, datagram, now)
            if whole is None:
                return
            frame = Frame(*whole)
            if not frame.envelope.encrypted and any(frame.payload[_CODE]):
                # A reflected response: its packets alone look like those of a request.
                self._service.dropped("response")
                return
        if len(self._tasks) >= MAX_IN_FLIGHT:
            self._service.dropped("in_flight")
            return
        task = asyncio.get_running_loop().create_task(self._serve(resolver, forwarded, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, resolver: socket.socket, forwarded: ForwardedDatagram, frame: Frame) -> None:
        async for served in self._service.served(frame, forwarded.address[0], Transport.UDP):
            self._send(resolver, forwarded, served.reply, frame.payload)

    def _send(self, resolver: socket.socket, forwarded: ForwardedDatagram, reply: Reply, request: bytes = b"") -> None:
        """Send a reply, unless it is more than a possibly forged address should get (2.7).

        `forwarded` is the datagram of the request, or the last of its packets; `request` is the whole request.
        """
        packets = reply.to_packets()
        size = sum(map(len, packets))
        now = monotonic()
        if len(packets) > MAX_PACKETS or not self.traffic.allows(forwarded.address[0], size, now):
            self._service.dropped("rate_limit")
            self._refusals += 1
            packets = [] if (short := self._short_response(forwarded, request)) is None else [short]
        for packet in packets:
            try:
                resolver.send(pack_datagram(now, forwarded.address, packet, forwarded.local))
            except OSError:  # the resolver is not running or overloaded; the client retries
                self._service.dropped("resolver_busy")
                return

    def _short_response(self, forwarded: ForwardedDatagram, request: bytes) -> bytes | None:
        """A short response for every other request over the limit. It echoes the header in the first packet."""
        if not self._refusals & 1:
            return None
        return short_response(forwarded.datagram[: envelope_module.ENVELOPE_LENGTH] + request, self._service.time())
