"""Native protocol over UDP in the control process: datagrams that resolvers forward, and replies to repeated requests.

Responses go back through the same resolver. Messages of several datagrams are reassembled here, whichever resolvers
received the parts.

A client without a response sends its request again under the same request id. Deployed servers execute it again; here a
change, or a session setup, is remembered for a minute with its reply, by all processes. Two messages are one request if
they come from the same address and are the same bytes; or if they are in the same session, have the same content and
id, and differ in the MAC only, because clients count each attempt. While the first is executed, the second gets no
reply: the client will retry.

Only executed requests are remembered, never a challenge or the refusal of an anonymous client. So the table cannot be
filled with requests that cost the sender nothing.
"""

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from perseid.records.site import Transport
from perseid.server.limits.udp import TOO_LARGE_TEXT, TrafficLimit, short_response
from perseid.server.processes.datagrams import (
    MAX_AGE,
    MAX_FORWARDED_BYTES,
    ForwardedDatagram,
    pack_datagram,
    unpack_datagram,
)
from perseid.server.state.state import Entry, SharedState, StateFull, Transaction, is_running
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
"""Replies remembered: changes normally use TCP, so this is a minute of a busy client. The oldest is evicted. One to a
request in a session counts twice."""

MAX_TOTAL_BYTES: Final = 8 << 20
"""Bytes of all remembered replies. A reply to a change has some dozens."""

MAX_REPLY_BYTES: Final = 4_096
"""Bytes of the longest remembered reply; replies to changes and session setups are far shorter."""

MAX_SETUPS: Final = 1_000
"""Replies to session setups, which anybody can send: as many as there may be unauthenticated sessions. They have their
own table, so that they never evict changes."""

Key: TypeAlias = bytes
"""A hash of source, session id, request id and content."""


def frame_key(source: str, frame: Frame) -> Key:
    """Return the key of a message as it arrived."""
    envelope = frame.envelope
    return _key(b"frame", source, envelope, envelope.to_bytes() + frame.payload)


def content_key(source: str, message: Message) -> Key:
    """Return the key of a request in a session, regardless of its MAC."""
    return _key(b"content", source, message.envelope, message.raw)


def _key(kind: bytes, source: str, envelope: Envelope, content: bytes) -> Key:
    head = f"{kind.decode()} {source} {envelope.session_id} {envelope.request_id} ".encode()
    return hashlib.sha256(head + content).digest()


class _Attempts(msgspec.Struct, array_like=True, frozen=True):
    """What is stored of a request; a change of the fields is a new version of the tables."""

    running: tuple[int, ...]
    """The processes that are executing it, once for each attempt."""
    frames: tuple[bytes, ...] | None = None
    """The messages of its reply, once there is one."""


_VERSION = 1
_decode_attempts = msgspec.msgpack.Decoder(_Attempts).decode


class ReplyCache:
    """Replies to requests, in the shared state. A request has one key or two; its reply is stored under each."""

    def __init__(
        self, state: SharedState, name: str = "udp_changes", limit: int = MAX_REPLIES, size: int = MAX_TOTAL_BYTES
    ) -> None:
        self._state = state
        self._table = state.table(name, version=_VERSION, max_entries=limit, max_bytes=size, clock=time.time)

    def __len__(self) -> int:
        return self._table.size().entries

    def find(self, key: Key, now: float) -> Reply | None:
        """Return the reply to a request; an empty one while it is executed; None if it is unknown."""
        return self._find(key, now, own_attempts=0)

    def find_concurrent(self, key: Key, now: float) -> Reply | None:
        """The same for a running attempt: whether another attempt has a reply or is running."""
        return self._find(key, now, own_attempts=1)

    def _find(self, key: Key, now: float, *, own_attempts: int) -> Reply | None:
        attempts = _decode(self._table.get(key, now))
        if attempts.frames is not None:
            return Reply(tuple(_to_frame(data) for data in attempts.frames))
        return Reply(()) if len(_running(attempts)) > own_attempts else None

    def begin(self, keys: tuple[Key, ...], now: float) -> None:
        """Mark a request as running. `end` must follow."""
        process = os.getpid()

        def run(txn: Transaction) -> None:
            for key in keys:
                attempts = _decode(self._table.read(txn, key, now))
                self._store(txn, key, _Attempts((*_running(attempts), process), attempts.frames), now)

        self._write(run)

    def end(self, keys: tuple[Key, ...], reply: Reply | None, now: float) -> None:
        """Store the reply, or None if the request may be executed again."""
        frames = None if reply is None else tuple(frame.envelope.to_bytes() + frame.payload for frame in reply.frames)
        if frames is not None and sum(map(len, frames)) > MAX_REPLY_BYTES:
            frames = None
        process = os.getpid()

        def run(txn: Transaction) -> None:
            for key in keys:
                attempts = _decode(self._table.read(txn, key, now))
                running = list(attempts.running)
                if process in running:
                    running.remove(process)
                self._store(txn, key, _Attempts(tuple(running), attempts.frames or frames), now)

        self._write(run)

    def _store(self, txn: Transaction, key: Key, attempts: _Attempts, now: float) -> None:
        if attempts.running or attempts.frames is not None:
            self._table.write(txn, key, Entry(msgspec.msgpack.encode(attempts), now + RETENTION_SECONDS))
        else:
            self._table.remove(txn, key)

    def _write(self, change: Callable[[Transaction], None]) -> None:
        with suppress(StateFull):  # a repeated request may then be executed again
            self._state.write(change)


def _decode(data: bytes | None) -> _Attempts:
    return _Attempts(()) if data is None else _decode_attempts(data)


def _running(attempts: _Attempts) -> tuple[int, ...]:
    """The processes that are executing a request; those that were killed are not."""
    return tuple(process for process in attempts.running if is_running(process))


def _to_frame(data: bytes) -> Frame:
    return Frame(Envelope.from_bytes(data), data[envelope_module.ENVELOPE_LENGTH :])


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
