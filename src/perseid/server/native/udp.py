"""Native protocol over UDP in the control process: datagrams that resolvers forward, and replies to repeated requests.

Responses go back through the same resolver. Messages of several datagrams are reassembled here, whichever resolvers
received the parts.

A client without a response sends its request again under the same request id. Deployed servers execute it again; here a
change, or a session setup, is remembered for a minute with its reply. Two messages are one request if they come from
the same address and are the same bytes; or if they are in the same session, have the same content and id, and differ in
the MAC only, because clients count each attempt. While the first is executed, the second gets no reply: the client will
retry.

Only executed requests are remembered, never a challenge or the refusal of an anonymous client. So the table cannot be
filled with requests that cost the sender nothing.
"""

import asyncio
import hashlib
import socket
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from perseid.records.site import Transport
from perseid.server.limits.udp import TOO_LARGE_TEXT, TrafficLimit, short_response
from perseid.server.processes.datagrams import (
    MAX_AGE,
    MAX_FORWARDED_BYTES,
    ForwardedDatagram,
    pack_datagram,
    unpack_datagram,
)
from perseid.wire import message as envelope_module
from perseid.wire.codes import ResponseCode
from perseid.wire.fragments import MAX_PACKET, Reassembler
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope, Message
from perseid.wire.server import INVALID_LENGTH_TEXT, Reply

from .resolution import MAX_PACKETS

RETENTION_SECONDS: Final = 60.0
"""Seconds for which a reply is remembered: deployed clients give up after three."""

MAX_REPLIES: Final = 16_384
"""Replies remembered: changes normally use TCP, so this is a minute of a busy client. The oldest is evicted."""

MAX_TOTAL_BYTES: Final = 8 << 20
"""Bytes of all remembered replies. A reply to a change has some dozens."""

MAX_REPLY_BYTES: Final = 4_096
"""Bytes of the longest remembered reply; replies to changes and session setups are far shorter."""

MAX_SETUPS: Final = 1_000
"""Replies to session setups, which anybody can send: as many as there may be unauthenticated sessions. They have their
own table, so that they never evict changes."""

_OVERHEAD = 256  # bytes for each reply besides its content

Key: TypeAlias = tuple[Hashable, int, int, bytes]
"""Source, session id, request id, and a hash of the content."""


def frame_key(source: Hashable, frame: Frame) -> Key:
    """Return the key of a message as it arrived."""
    envelope = frame.envelope
    digest = hashlib.sha256(envelope.to_bytes() + frame.payload).digest()
    return source, envelope.session_id, envelope.request_id, digest


def content_key(source: Hashable, message: Message) -> Key:
    """Return the key of a request in a session, regardless of its MAC."""
    envelope = message.envelope
    return source, envelope.session_id, envelope.request_id, hashlib.sha256(message.raw).digest()


@dataclass(slots=True, eq=False)
class _CachedReply:
    keys: tuple[Key, ...]
    reply: Reply
    since: float
    size: int


class ReplyCache:
    """Replies to requests, oldest first."""

    def __init__(self, limit: int = MAX_REPLIES, size: int = MAX_TOTAL_BYTES) -> None:
        self._limit = limit
        self._max_bytes = size
        self._replies: OrderedDict[int, _CachedReply] = OrderedDict()
        self._by_key: dict[Key, int] = {}
        self._in_progress: dict[Key, int] = {}
        self._total_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def size(self) -> int:
        """Bytes used."""
        return self._total_bytes

    def find(self, key: Key, now: float) -> Reply | None:
        """Return the reply to a request; an empty one while it is executed; None if it is unknown."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._replies[number].reply
        return Reply(()) if key in self._in_progress else None

    def find_concurrent(self, key: Key, now: float) -> Reply | None:
        """The same for a running attempt: whether another attempt has a reply or is running."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._replies[number].reply
        return Reply(()) if self._in_progress.get(key, 0) > 1 else None

    def begin(self, keys: tuple[Key, ...]) -> None:
        """Mark a request as running. `end` must follow."""
        for key in keys:
            self._in_progress[key] = self._in_progress.get(key, 0) + 1

    def end(self, keys: tuple[Key, ...], reply: Reply | None, now: float) -> None:
        """Store the reply, or None if the request may be executed again."""
        for key in keys:
            self._in_progress[key] -= 1
            if not self._in_progress[key]:
                del self._in_progress[key]
        if reply is None:
            return
        size = _OVERHEAD + sum(len(frame.payload) for frame in reply.frames)
        if size > MAX_REPLY_BYTES or any(key in self._by_key for key in keys):
            return
        self._count += 1
        self._replies[self._count] = _CachedReply(keys, reply, now, size)
        self._by_key.update(dict.fromkeys(keys, self._count))
        self._total_bytes += size
        while len(self._replies) > self._limit or self._total_bytes > self._max_bytes:
            self._drop()

    def purge(self, now: float) -> None:
        while self._replies:
            oldest = next(iter(self._replies.values()))
            if abs(now - oldest.since) <= RETENTION_SECONDS:
                return
            self._drop()

    def _drop(self) -> None:
        _, dropped = self._replies.popitem(last=False)
        self._total_bytes -= dropped.size
        for key in dropped.keys:
            del self._by_key[key]


if TYPE_CHECKING:
    from .service import NativeService

MAX_BATCH: Final = 4
"""Datagrams read from one resolver before others get their turn, above all TCP: a message costs the loop up to half a
millisecond, and datagrams can wait in the kernel."""

MAX_IN_FLIGHT: Final = 128
"""Messages over UDP handled at a time: as many as fit in the longest queue. More would only be refused there, which
costs more than dropping them."""

TOO_LONG: Final = (
    f"the datagram has more than {MAX_PACKET} bytes, the maximum over UDP; send the message over TCP, or in several "
    "packets"
)
"""Text for a datagram that is longer than any packet. With RC_ERROR, clients use another transport."""

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
        if len(datagram) > MAX_PACKET:
            self._service.log_invalid(f"datagram of more than {MAX_PACKET} bytes", host, Transport.UDP)
            self._send(resolver, forwarded, self._service.early_failure(ResponseCode.ERROR, TOO_LONG, frame.envelope))
            return
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
        is_first = True
        async for served in self._service.served(frame, forwarded.address[0], Transport.UDP):
            self._send(resolver, forwarded, served.reply, frame.payload, is_first=is_first)
            is_first = False

    def _send(
        self,
        resolver: socket.socket,
        forwarded: ForwardedDatagram,
        reply: Reply,
        request: bytes = b"",
        *,
        is_first: bool = True,
    ) -> None:
        """Send a reply, unless it is more than a possibly forged address should get (2.7).

        `forwarded` is the datagram of the request, or the last of its packets; `request` is the whole request. Its
        bytes are deducted from the first message of a response only.
        """
        packets = reply.to_packets()
        request_size = max(len(forwarded.datagram), envelope_module.ENVELOPE_LENGTH + len(request))
        excess = sum(map(len, packets)) - (request_size if is_first else 0)
        now = monotonic()
        if len(packets) > MAX_PACKETS:
            self._service.dropped("too_large")
            packets = self._refuse_large(forwarded, request)
        elif not self.traffic.allows(forwarded.address[0], excess, now):
            self._service.dropped("rate_limit")
            self._refusals += 1
            packets = [] if (short := self._short_response(forwarded, request)) is None else [short]
        for packet in packets:
            try:
                resolver.send(pack_datagram(now, forwarded.address, packet, forwarded.local))
            except OSError:  # the resolver is not running or overloaded; the client retries
                self._service.dropped("resolver_busy")
                return

    def _refuse_large(self, forwarded: ForwardedDatagram, request: bytes) -> list[bytes]:
        """A short response to every request for too large a response; to an encrypted one, without its header."""
        whole = forwarded.datagram[: envelope_module.ENVELOPE_LENGTH] + request
        if (short := short_response(whole, self._service.time(), TOO_LARGE_TEXT)) is not None:
            return [short]
        envelope = Envelope.from_bytes(whole)
        return self._service.early_failure(ResponseCode.ERROR, TOO_LARGE_TEXT.decode(), envelope).to_packets()

    def _short_response(self, forwarded: ForwardedDatagram, request: bytes) -> bytes | None:
        """A short response for every other request over the limit. It echoes the header in the first packet."""
        if not self._refusals & 1:
            return None
        return short_response(forwarded.datagram[: envelope_module.ENVELOPE_LENGTH] + request, self._service.time())
