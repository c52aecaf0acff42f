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
import hashlib
import socket
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from perseid.records.site import Transport
from perseid.server.limits.udp import Traffic, short_answer
from perseid.server.processes.datagrams import MAX_AGE, MAX_PARCEL, Parcel, pack, unpack
from perseid.wire import message as envelope_module
from perseid.wire.codes import ResponseCode
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope, Message
from perseid.wire.server import INVALID_LENGTH, Reply

from .resolution import MAX_PACKETS

LIFE: Final = 60.0
"""Seconds for which an answer is remembered: deployed clients give up after three."""

MAX_ANSWERS: Final = 16_384
"""Answers to remember: changes normally go over TCP, so this is a minute of a busy client. The oldest makes room."""

MAX_OCTETS: Final = 8 << 20
"""Octets of all remembered answers. An answer to a change has some dozens."""

MAX_REPLY: Final = 4_096
"""Octets of the longest answer that is remembered; what a change or a wish for a session gets is far shorter."""

MAX_SETUPS: Final = 1_000
"""Answers to wishes for sessions, which anybody can send: as many as there may be sessions in which nobody has proved
anything. They have a table of their own, so that they never take the place of changes."""

_OVERHEAD = 256  # octets that remembering costs beside the answer

Key: TypeAlias = tuple[Hashable, int, int, bytes]
"""Where a request came from, its session and request id, and a hash of what it says."""


def key_of_frame(source: Hashable, frame: Frame) -> Key:
    """What a message as it came is known by."""
    envelope = frame.envelope
    digest = hashlib.sha256(envelope.to_bytes() + frame.payload).digest()
    return source, envelope.session_id, envelope.request_id, digest


def key_of_content(source: Hashable, message: Message) -> Key:
    """What a request in a session is known by, whatever its MAC."""
    envelope = message.envelope
    return source, envelope.session_id, envelope.request_id, hashlib.sha256(message.octets).digest()


@dataclass(slots=True, eq=False)
class _Answer:
    keys: tuple[Key, ...]
    reply: Reply
    since: float
    octets: int


class Repeats:
    """What requests got, oldest first."""

    def __init__(self, limit: int = MAX_ANSWERS, octets: int = MAX_OCTETS) -> None:
        self._limit = limit
        self._max_octets = octets
        self._answers: OrderedDict[int, _Answer] = OrderedDict()
        self._by_key: dict[Key, int] = {}
        self._working: dict[Key, int] = {}
        self._octets = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def octets(self) -> int:
        """What remembering costs."""
        return self._octets

    def find(self, key: Key, now: float) -> Reply | None:
        """What the request got; nothing at all while it is worked on; None if it has not been seen."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._answers[number].reply
        return Reply(()) if key in self._working else None

    def found_by_others(self, key: Key, now: float) -> Reply | None:
        """The same for one who works on it: what another attempt got; nothing at all while another is worked on."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._answers[number].reply
        return Reply(()) if self._working.get(key, 0) > 1 else None

    def begin(self, keys: tuple[Key, ...]) -> None:
        """Note that a request is worked on. `end` must follow."""
        for key in keys:
            self._working[key] = self._working.get(key, 0) + 1

    def end(self, keys: tuple[Key, ...], reply: Reply | None, now: float) -> None:
        """Note what it got, or with None that it may come again."""
        for key in keys:
            self._working[key] -= 1
            if not self._working[key]:
                del self._working[key]
        if reply is None:
            return
        octets = _OVERHEAD + sum(len(frame.payload) for frame in reply.frames)
        if octets > MAX_REPLY or any(key in self._by_key for key in keys):
            return
        self._count += 1
        self._answers[self._count] = _Answer(keys, reply, now, octets)
        self._by_key.update(dict.fromkeys(keys, self._count))
        self._octets += octets
        while len(self._answers) > self._limit or self._octets > self._max_octets:
            self._drop()

    def purge(self, now: float) -> None:
        """Forget what is too old."""
        while self._answers:
            oldest = next(iter(self._answers.values()))
            if abs(now - oldest.since) <= LIFE:
                return
            self._drop()

    def _drop(self) -> None:
        _, answer = self._answers.popitem(last=False)
        self._octets -= answer.octets
        for key in answer.keys:
            del self._by_key[key]


if TYPE_CHECKING:
    from .service import NativeService

MAX_AT_ONCE: Final = 4
"""Datagrams that are taken from one resolver before others get their turn, TCP above all: a message costs the loop up
to half a millisecond, and what waits in the kernel waits for nobody else."""

MAX_IN_FLIGHT: Final = 128
"""Messages over UDP that are being answered at a time: as many as may wait in the longest queue. More would only be
refused there, which costs more than dropping them."""

_CODE = slice(4, 8)  # where the response code stands in a message


class HandedOver:
    """Answers what resolvers hand over."""

    def __init__(self, service: "NativeService", sockets: list[socket.socket], traffic: Traffic) -> None:
        self._service = service
        self._sockets = sockets
        self.traffic = traffic
        """What networks may draw."""
        self._unfinished = Reassembler()
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

    def tidy(self, now: float) -> None:
        """Forget messages of which the rest never came."""
        self._unfinished.expire(now)

    def _readable(self, resolver: socket.socket) -> None:
        now = monotonic()
        for _ in range(MAX_AT_ONCE):
            try:
                octets = resolver.recv(MAX_PARCEL)
            except BlockingIOError:
                return
            if not octets:  # nobody is there any more, not even the supervisor
                asyncio.get_running_loop().remove_reader(resolver.fileno())
                return
            parcel = unpack(octets)
            if now - parcel.at > MAX_AGE:
                self._service.dropped("late")
            else:
                self._take(resolver, parcel, now)

    def _take(self, resolver: socket.socket, parcel: Parcel, now: float) -> None:
        datagram, host = parcel.datagram, parcel.address[0]
        if len(datagram) < envelope_module.ENVELOPE_LENGTH:
            reply = self._service.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH)
            self._send(resolver, parcel, reply)
            return
        frame = Frame(Envelope.from_bytes(datagram), datagram[envelope_module.ENVELOPE_LENGTH :])
        if frame.envelope.truncated and frame.envelope.has_valid_length:
            whole = self._unfinished.receive(host, datagram, now)
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
        task = asyncio.get_running_loop().create_task(self._serve(resolver, parcel, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, resolver: socket.socket, parcel: Parcel, frame: Frame) -> None:
        async for served in self._service.served(frame, parcel.address[0], Transport.UDP):
            self._send(resolver, parcel, served.reply, frame.payload)

    def _send(self, resolver: socket.socket, parcel: Parcel, reply: Reply, asked: bytes = b"") -> None:
        """Send an answer, unless it is more than an address that may be forged should draw (2.7).

        The parcel is the one by which a request came, or the last of its packets; `asked` is the whole request.
        """
        packets = reply.to_packets()
        octets = sum(map(len, packets))
        now = monotonic()
        if len(packets) > MAX_PACKETS or not self.traffic.allows(parcel.address[0], octets, now):
            self._service.dropped("octets")
            self._refusals += 1
            packets = [] if (short := self._short_answer(parcel, asked)) is None else [short]
        for packet in packets:
            try:
                resolver.send(pack(now, parcel.address, packet, parcel.local))
            except OSError:  # the resolver is away or has its hands full; the client asks again
                self._service.dropped("resolver")
                return

    def _short_answer(self, parcel: Parcel, asked: bytes) -> bytes | None:
        """A word for every other request that draws too much. It echoes the header, which only the first packet has."""
        if not self._refusals & 1:
            return None
        return short_answer(parcel.datagram[: envelope_module.ENVELOPE_LENGTH] + asked, self._service.time())
