"""Requests that come twice over UDP: the second gets what the first one got, and nothing is done again.

A client that hears nothing sends its request again, under the same request id. Deployed servers execute it again; here
a change, or the wish for a session, is remembered for a minute with its answer. Two messages are one request if they
come from the same address and are the same octets; or if they come in the same session, say the same under the same
id, and differ in the MAC only, because clients count each attempt. While the first is still being worked on, the second
gets nothing: the client will ask once more.

Only what was done is remembered, never a challenge or a refusal of somebody unknown. So strangers cannot fill the table
with requests that cost them nothing.

The native protocol over UDP as far as it needs state: what the resolvers do not answer themselves.

They hand it over with the address it came from, and the answers go back through them. Messages of several datagrams are
put together here, whichever resolvers their parts came by.
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
"""Datagrams that are taken from one resolver before others get their turn, TCP above all: a message costs the loop up
to half a millisecond, and what waits in the kernel waits for nobody else."""

MAX_IN_FLIGHT: Final = 128
"""Messages over UDP that are being answered at a time: as many as may wait in the longest queue. More would only be
refused there, which costs more than dropping them."""

_CODE = slice(4, 8)  # where the response code stands in a message


class UdpServer:
    """Answers what resolvers hand over."""

    def __init__(self, service: "NativeService", sockets: list[socket.socket], traffic: TrafficLimit) -> None:
        self._service = service
        self._sockets = sockets
        self.traffic = traffic
        """What networks may draw."""
        self._reassembler = Reassembler()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals = 0

    @property
    def in_flight(self) -> int:
        """Messages that are being answered."""
        return len(self._tasks)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the resolvers."""
        for one in self._sockets:
            one.setblocking(False)
            loop.add_reader(one.fileno(), self._readable, one)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take nothing more; what was begun goes on."""
        for one in self._sockets:
            loop.remove_reader(one.fileno())

    def purge_expired(self, now: float) -> None:
        """Forget messages of which the rest never came."""
        self._reassembler.expire(now)

    def _readable(self, resolver: socket.socket) -> None:
        now = monotonic()
        for _ in range(MAX_BATCH):
            try:
                octets = resolver.recv(MAX_FORWARDED_BYTES)
            except BlockingIOError:
                return
            if not octets:  # nobody is there any more, not even the supervisor
                asyncio.get_running_loop().remove_reader(resolver.fileno())
                return
            forwarded = unpack_datagram(octets)
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
                # An answer that came back: by its packets alone it could not be told from a request.
                self._service.dropped("answer")
                return
        if len(self._tasks) >= MAX_IN_FLIGHT:
            self._service.dropped("in flight")
            return
        task = asyncio.get_running_loop().create_task(self._serve(resolver, forwarded, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, resolver: socket.socket, forwarded: ForwardedDatagram, frame: Frame) -> None:
        async for served in self._service.served(frame, forwarded.address[0], Transport.UDP):
            self._send(resolver, forwarded, served.reply, frame.payload)

    def _send(self, resolver: socket.socket, forwarded: ForwardedDatagram, reply: Reply, asked: bytes = b"") -> None:
        """Send an answer, unless it is more than an address that may be forged should draw (2.7).

        The parcel is the one by which a request came, or the last of its packets; `asked` is the whole request.
        """
        packets = reply.to_packets()
        octets = sum(map(len, packets))
        now = monotonic()
        if len(packets) > MAX_PACKETS or not self.traffic.allows(forwarded.address[0], octets, now):
            self._service.dropped("octets")
            self._refusals += 1
            packets = [] if (short := self._short_response(forwarded, asked)) is None else [short]
        for packet in packets:
            try:
                resolver.send(pack_datagram(now, forwarded.address, packet, forwarded.local))
            except OSError:  # the resolver is away or has its hands full; the client asks again
                self._service.dropped("resolver")
                return

    def _short_response(self, forwarded: ForwardedDatagram, asked: bytes) -> bytes | None:
        """A word for every other request that draws too much. It echoes the header, which only the first packet has."""
        if not self._refusals & 1:
            return None
        return short_response(forwarded.datagram[: envelope_module.ENVELOPE_LENGTH] + asked, self._service.time())
