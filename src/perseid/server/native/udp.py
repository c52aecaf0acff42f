"""Native protocol over UDP: public resolution, other messages, and replies to repeated requests.

The event loop reads the sockets, except that of its worker if there is a compiled module (`resolution_thread`). The
kernel gives all datagrams of a client to one socket, so a worker gets every packet of a message.

A client without a response sends its request again under the same request id. Deployed servers execute it again; here a
change, or a session setup, is remembered for a minute with its reply, by all processes. Two messages are one request if
they come from the same address and are the same bytes; or if they are in the same session, have the same content and
id, and differ in the MAC only, because clients count each attempt. While the first is executed, the second gets no
reply: the client will retry. If the process that executed the first was killed, nobody knows whether the change was
made: the second is told so, and changes nothing.

Only executed requests are remembered, never a challenge or the refusal of an anonymous client. So the table cannot be
filled with requests that cost the sender nothing.
"""

import asyncio
import hashlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from perseid.ledger.errors import OutcomeUnknown
from perseid.records.site import Transport
from perseid.server.limits.udp import TOO_LARGE_TEXT, RateLimit, TrafficLimit, short_response
from perseid.server.observe.access_log import AccessLog
from perseid.server.processes.datagrams import DatagramSocket, ReturnAddress, is_response, wrap_socket
from perseid.server.state.state import Entry, SharedState, StateFull, Transaction, is_running
from perseid.wire import message as envelope_module
from perseid.wire.codes import ResponseCode
from perseid.wire.fragments import MAX_PACKET, Reassembler
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope, Message
from perseid.wire.server import INVALID_LENGTH_TEXT, Reply

from .resolution import MAX_PACKETS
from .resolution import packets as split_response
from .resolution_thread import ResolutionThread

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
        self,
        state: SharedState,
        name: str = "udp_changes",
        limit: int = MAX_REPLIES,
        size: int = MAX_TOTAL_BYTES,
        *,
        is_repeatable: bool = False,
    ) -> None:
        """`is_repeatable`: whether a request may be executed again if it is unknown whether it was."""
        self._state = state
        self._is_repeatable = is_repeatable
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
        return _to_reply(_decode(self._table.get(key, now)), own_attempts)

    def begin(self, keys: tuple[Key, ...], now: float, unless: tuple[Key, ...] = ()) -> Reply | None:
        """Mark a request as running, and return None: `end` must follow.

        If one of the keys `unless` is known, return what `find` does instead. So of two attempts at once, one begins.
        Raises `OutcomeUnknown` if a process was killed while it executed the request, unless that may be repeated.
        """
        process = os.getpid()

        def run(txn: Transaction) -> Reply | None:
            for key in unless:
                attempts = _decode(self._table.read(txn, key, now))
                if (previous := _to_reply(attempts)) is not None:
                    return previous
                if attempts.running and not self._is_repeatable:
                    raise OutcomeUnknown("the process that executed the request was killed")
            for key in keys:
                attempts = _decode(self._table.read(txn, key, now))
                self._store(txn, key, _Attempts((*_running(attempts), process), attempts.frames), now)
            return None

        with suppress(StateFull):  # a repeated request may then be executed again
            return self._state.write(run)
        return None

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

        with suppress(StateFull):
            self._state.write(run)

    def _store(self, txn: Transaction, key: Key, attempts: _Attempts, now: float) -> None:
        if attempts.running or attempts.frames is not None:
            self._table.write(txn, key, Entry(msgspec.msgpack.encode(attempts), now + RETENTION_SECONDS))
        else:
            self._table.remove(txn, key)


def _decode(data: bytes | None) -> _Attempts:
    return _Attempts(()) if data is None else _decode_attempts(data)


def _running(attempts: _Attempts) -> tuple[int, ...]:
    """The processes that are executing a request; those that were killed are not."""
    return tuple(process for process in attempts.running if is_running(process))


def _to_reply(attempts: _Attempts, own_attempts: int = 0) -> Reply | None:
    if attempts.frames is not None:
        return Reply(tuple(_to_frame(data) for data in attempts.frames))
    return Reply(()) if len(_running(attempts)) > own_attempts else None


def _to_frame(data: bytes) -> Frame:
    return Frame(Envelope.from_bytes(data), data[envelope_module.ENVELOPE_LENGTH :])


if TYPE_CHECKING:
    from .service import NativeService

MAX_BATCH: Final = 64
"""Datagrams read before others get their turn, above all TCP: half a millisecond of public resolution."""

MAX_SLOW_BATCH: Final = 4
"""Other messages started before the sockets are read again: each costs the loop up to half a millisecond, and public
resolution comes first."""

MAX_IN_FLIGHT: Final = 128
"""Other messages handled at a time, or waiting for it: as many as fit in the longest queue. More would only be refused
there, which costs more than dropping them."""

TOO_LONG: Final = (
    f"the datagram has more than {MAX_PACKET} bytes, the maximum over UDP; send the message over TCP, or in several "
    "packets"
)
"""Text for a datagram that is longer than any packet. With RC_ERROR, clients use another transport."""

_CODE = slice(4, 8)  # the response code in a message
_MAX_READ = MAX_PACKET + 1  # one more than any peer sends, to detect longer ones
_NAME_OFFSET = envelope_module.BODY_OFFSET + 4


@dataclass(frozen=True, slots=True)
class UdpLimits:
    """Rate limits over UDP, where addresses can be forged."""

    traffic: TrafficLimit
    """Bytes sent, by network and in total."""
    requests: TrafficLimit
    """Requests that the answers view does not answer, by network."""
    all_requests: RateLimit
    """The same of all networks, for this process."""


class UdpServer:
    """Reads datagrams in the event loop; answers public resolution at once, and the rest by the service."""

    def __init__(self, service: "NativeService", limits: UdpLimits, access: AccessLog | None = None) -> None:
        self._service = service
        self.limits = limits
        self.access = access
        """The access log of public resolution."""
        self._reassembler = Reassembler()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[Callable[[], Coroutine[None, None, None]]] = deque()
        self._refusals = 0
        self._thread: ResolutionThread | None = None
        self._thread_socket: tuple[DatagramSocket, int] | None = None  # and its port

    @property
    def in_flight(self) -> int:
        """Number of messages being handled, or waiting for it."""
        return len(self._tasks) + len(self._waiting)

    def add_thread(self, thread: ResolutionThread, udp: socket.socket | None) -> None:
        """Have a thread of the compiled module read a socket, when it is started."""
        self._thread = thread
        self._thread_socket = None if udp is None else (wrap_socket(udp), udp.getsockname()[1])
        self.configure()

    def configure(self) -> None:
        """Apply changed limits, settings and access log."""
        if self._thread is not None:
            enabled = self._service.native_server.resolution_enabled[Transport.UDP]
            settings = self._service.public_resolver.settings
            self._thread.access["udp"] = self.access
            self._thread.configure(settings, self.limits.traffic, resolves=enabled, logs=self.access is not None)

    def collect_tally(self) -> None:
        """Add what the thread has counted to the tally of the worker."""
        if self._thread is not None:
            self._thread.collect_tally()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is not stuck, if there is one."""
        return self._thread is None or self._thread.is_alive

    def start(self, loop: asyncio.AbstractEventLoop, udp: socket.socket) -> None:
        """Read a socket, too."""
        if self._thread is not None and udp in self._thread.sockets:
            self._thread.start(loop, self._take_from_thread)
        else:
            wrapped = wrap_socket(udp)
            loop.add_reader(udp.fileno(), self._readable, wrapped, udp.getsockname()[1], wrapped.receive)

    def stop(self, loop: asyncio.AbstractEventLoop, udp: socket.socket) -> None:
        """Stop reading a socket; started work continues."""
        if self._thread is not None and udp in self._thread.sockets:
            self._thread.stop(loop)
        else:
            loop.remove_reader(udp.fileno())

    def _take_from_thread(self) -> bool:
        """Handle some of what the thread has left to the event loop; return whether there may be more."""
        if self._thread is None or self._thread_socket is None:
            return False
        datagrams = self._thread.take_datagrams()
        if datagrams is not None:
            self._readable(*self._thread_socket, datagrams.receive)
        return datagrams is not None

    def purge_expired(self, now: float) -> None:
        """Drop messages whose remaining packets never arrived."""
        self._reassembler.expire(now)

    def _readable(  # noqa: C901 - one loop is fastest
        self, udp: DatagramSocket, own_port: int, receive: Callable[[int], tuple[bytes, ReturnAddress]]
    ) -> None:
        service, access, allows = self._service, self.access, self.limits.traffic.allows
        send, count = udp.send, self._service.counts.count_udp_response
        respond = service.public_resolver if service.native_server.resolution_enabled[Transport.UDP] else _resolve_none
        started = 0
        for _ in range(MAX_BATCH):
            try:
                datagram, return_address = receive(_MAX_READ)
            except BlockingIOError:
                return
            except OSError:  # an error of an earlier response
                continue
            try:
                # A forged sender: a response would only come back to this socket.
                if return_address[1] == own_port and udp.is_own(return_address):
                    service.count_drop("forged")
                    continue
                if access is not None:
                    started = perf_counter_ns()
                response = respond(datagram)
                if response is None:
                    self._take(udp, datagram, return_address)
                    continue
                if len(response) <= MAX_PACKET and allows(
                    return_address[0], len(response) - len(datagram), monotonic()
                ):
                    send(response, return_address)
                    count(response, len(response))
                else:
                    self._send_packets(udp, datagram, response, return_address)
            except OSError:  # unreachable address, or full buffers
                service.count_drop("unsent")
            else:
                if access is not None:
                    self._log_request(access, datagram, response, return_address, started)

    def _send_packets(self, udp: DatagramSocket, datagram: bytes, response: bytes, address: ReturnAddress) -> None:
        """Send a response of several packets, or a short refusal if its network is over the limit."""
        packets = split_response(response)
        size = sum(map(len, packets))
        if not self.limits.traffic.allows(address[0], size - len(datagram), monotonic()):
            self._service.count_drop("rate_limit")
            refusal = self._short_response(datagram)
            if refusal is None:
                return
            response, packets, size = refusal, [refusal], len(refusal)
        for packet in packets:
            udp.send(packet, address)
        self._service.counts.count_udp_response(response, size)

    def _log_request(
        self, access: AccessLog, datagram: bytes, response: bytes, address: ReturnAddress, started: int
    ) -> None:
        length = int.from_bytes(datagram[envelope_module.BODY_OFFSET : _NAME_OFFSET], "big")
        access.log_request(
            address[0],
            "udp",
            int.from_bytes(datagram[envelope_module.OPCODE], "big"),
            int.from_bytes(response[envelope_module.RESPONSE_CODE], "big"),
            datagram[_NAME_OFFSET : _NAME_OFFSET + length],
            (perf_counter_ns() - started) // 1000,
        )

    def _take(self, udp: DatagramSocket, datagram: bytes, address: ReturnAddress) -> None:
        """Have handled what is not public resolution."""
        host, now = address[0], monotonic()
        # First what gets no response anyway: forged datagrams must not use up the limit of others. Port 0 is invalid.
        if not address[1] or is_response(datagram):
            self._service.count_drop("response")
            return
        if not (self.limits.all_requests.take(now) and self.limits.requests.allows(host, 1, now)):
            self._service.count_drop("rate_limit")
            return
        if len(datagram) < envelope_module.ENVELOPE_LENGTH:
            reply = self._service.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT)
            self._send(udp, address, datagram, reply)
            return
        frame = Frame(Envelope.from_bytes(datagram), datagram[envelope_module.ENVELOPE_LENGTH :])
        if len(datagram) > MAX_PACKET:
            self._service.log_invalid(f"datagram of more than {MAX_PACKET} bytes", host, Transport.UDP)
            reply = self._service.early_failure(ResponseCode.ERROR, TOO_LONG, frame.envelope)
            self._send(udp, address, datagram, reply)
            return
        if frame.envelope.truncated and frame.envelope.has_valid_length:
            whole = self._reassembler.receive(host, datagram, now)
            if whole is None:
                return
            frame = Frame(*whole)
            if not frame.envelope.encrypted and any(frame.payload[_CODE]):
                # A reflected response: its packets alone look like those of a request.
                self._service.count_drop("response")
                return
        if self.in_flight >= MAX_IN_FLIGHT:
            self._service.count_drop("in_flight")
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._start_waiting)
        self._waiting.append(partial(self._serve, udp, address, datagram, frame))

    def _start_waiting(self) -> None:
        """Start some of the messages that wait; the others after the sockets have been read again."""
        loop = asyncio.get_running_loop()
        for _ in range(min(MAX_SLOW_BATCH, len(self._waiting))):
            task = loop.create_task(self._waiting.popleft()())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._waiting:
            loop.call_soon(self._start_waiting)

    async def _serve(self, udp: DatagramSocket, address: ReturnAddress, datagram: bytes, frame: Frame) -> None:
        is_first = True
        async for response in self._service.respond(frame, address[0], Transport.UDP):
            self._send(udp, address, datagram, response.reply, frame.payload, is_first=is_first)
            is_first = False

    def _send(
        self,
        udp: DatagramSocket,
        address: ReturnAddress,
        datagram: bytes,
        reply: Reply,
        payload: bytes = b"",
        *,
        is_first: bool = True,
    ) -> None:
        """Send a reply, unless it is more than a possibly forged address should get (2.7).

        `datagram` is the request, or the last of its packets; `payload` is that of the whole request. Its bytes are
        deducted from the first message of a response only.
        """
        packets = reply.to_packets()
        request = datagram[: envelope_module.ENVELOPE_LENGTH] + payload
        excess = sum(map(len, packets)) - (max(len(datagram), len(request)) if is_first else 0)
        if len(packets) > MAX_PACKETS:
            self._service.count_drop("too_large")
            packets = self._refuse_large(request)
        elif not self.limits.traffic.allows(address[0], excess, monotonic()):
            self._service.count_drop("rate_limit")
            packets = [] if (short := self._short_response(request)) is None else [short]
        for packet in packets:
            try:
                udp.send(packet, address)
            except OSError:  # unreachable address, or full buffers; the client retries
                self._service.count_drop("unsent")
                return
            self._service.counts.udp_bytes += len(packet)

    def _refuse_large(self, request: bytes) -> list[bytes]:
        """A short response to every request for too large a response; to an encrypted one, without its header."""
        if (short := short_response(request, self._service.time(), TOO_LARGE_TEXT)) is not None:
            return [short]
        envelope = Envelope.from_bytes(request)
        return self._service.early_failure(ResponseCode.ERROR, TOO_LARGE_TEXT.decode(), envelope).to_packets()

    def _short_response(self, request: bytes) -> bytes | None:
        """A short response for every other request over the limit. It echoes the header in the first packet."""
        self._refusals += 1
        return short_response(request, self._service.time()) if self._refusals & 1 else None


def _resolve_none(_: bytes) -> None:
    """Leave everything to the service, which refuses what the site record does not offer."""
