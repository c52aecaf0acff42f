"""The native protocol over TCP: connections, their time limits, and messages in both directions.

Most clients bring one public resolution and are answered before they get here; see `native_accept`. What is here is
what lasts longer. Public resolutions over a kept connection are answered at once too: the octets that came are tried as
they are. Everything else goes through the door, one message of a connection at a time; what the client sends meanwhile
waits in the kernel. A client that sets KC (keep the connection) may go on asking.

Time is looked at once a second for all connections together, which costs nothing where nothing is late.

Letting TCP connections in, and answering at once those that bring one public resolution.

Deployed clients make a connection for every request, and its making costs more than the answer. So a connection becomes
one of the event loop only if there is more to it. The kernel holds it back until something has come; then it is
accepted, read, answered and closed in one go. Whoever sent only a part, asks for more than the answers view can tell,
or wants to keep the connection gets a `Connection` with what came so far.
"""

import asyncio
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, cast

from perseid.records.site import Transport
from perseid.server.processes.accept import AcceptLoop
from perseid.wire.codes import ResponseCode
from perseid.wire.errors import RemoteProtocolError
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.server import NOT_UNDERSTOOD_TEXT

if TYPE_CHECKING:
    from .service import NativeService

LINGER_SECONDS: Final = 2.0
"""Seconds for a client to read a refusal and go, before the connection is cut."""

KEEP_ALIVE_OFFSET: Final = 28
KEEP_ALIVE_BIT: Final = 0x02
"""Where in a request the flag KC stands, and which bit of the octet it is."""

_NEVER = float("inf")


class Connection(asyncio.Protocol):
    """One TCP connection."""

    __slots__ = (
        "_closing",
        "_ended",
        "_keep",
        "_kept",
        "_reader",
        "_service",
        "_task",
        "_transport",
        "_unread",
        "_unsent",
        "_writable",
        "deadline",
        "host",
    )

    def __init__(
        self, service: "NativeService", host: str, *, unread: bytes = b"", unsent: bytes = b"", keep: bool = True
    ) -> None:
        """Take on a client that was admitted.

        `unread` has come already; `unsent` is the rest of an answer, after which the connection ends unless the client
        wants to `keep` it.
        """
        self._service = service
        self._unread, self._unsent, self._keep = unread, unsent, keep
        self._transport: asyncio.Transport | None = None
        self._reader: FrameReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closing = False
        self._ended = False
        self._kept = 0  # octets that wait in the reader, as they were counted last
        self.host = host
        self.deadline = _NEVER
        """When the connection is cut unless something happens."""

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with what came before."""
        self._transport = cast("asyncio.Transport", transport)
        self.deadline = self._service.now() + self._service.connections.message_timeout
        self._service.open.add(self)
        if self._unsent:
            self._transport.write(self._unsent)
        if not self._keep:
            self._finish()
        elif self._unread:
            self._reader = FrameReader()
            self._reader.feed(self._unread)
            self._next()
        self._unread = self._unsent = b""

    def data_received(self, data: bytes) -> None:
        """Take what came: at once, if it is one public resolution."""
        if self._closing:
            return
        if self._reader is None:
            answer = self._service.try_fast_path(data, self.host)
            if answer is not None:
                self._send_fast_response(answer, keep=bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT))
                return
            self._reader = FrameReader()
        self._reader.feed(data)
        if self._task is None:
            self._next()
        else:
            self._count_buffered()

    def _send_fast_response(self, answer: bytes, *, keep: bool) -> None:
        """Send an answer that took no time; the connection ends unless the client wants to keep it."""
        assert self._transport is not None  # noqa: S101 - it brought the request
        self._transport.write(answer)
        if not keep:
            self._finish()
        elif self._writable is None:
            self.deadline = self._service.now() + self._service.connections.idle_timeout

    def eof_received(self) -> bool:
        """The client has said everything; what is being answered still goes out."""
        if self._task is None:
            return False
        self._ended = True
        return True

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the connection. What was begun for it is done all the same."""
        if self in self._service.open:
            self._service.open.discard(self)
            self._service.connections.leave(self.host)
        self._closing = True
        self._reader = None
        self._count_buffered()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The client takes its answers slowly: make no more of them, and take no more requests."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()
        if self._task is None and self._transport is not None:
            self._transport.pause_reading()
            self.deadline = self._service.now() + self._service.connections.write_timeout

    def resume_writing(self) -> None:
        """Go on."""
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None
            transport = self._transport
            if self._task is None and not self._closing and transport is not None and not transport.is_closing():
                self.deadline = self._service.now() + self._service.connections.idle_timeout
                transport.resume_reading()
                if self._reader is not None:
                    self._next()

    # Messages

    def _next(self) -> None:
        """Go on with the messages that have come, up to one that takes time; what is left of them then counts."""
        self._take_messages()
        self._count_buffered()

    def _count_buffered(self) -> None:
        """Have it counted what waits here, if that has changed; together there may be too much of it."""
        buffered = 0 if self._reader is None else self._reader.buffered
        if buffered != self._kept:
            self._kept = buffered
            for longest in self._service.connections.unfinished.note(self, buffered):
                self._service.counts.limited("unfinished octets")
                longest.cut()

    def _take_messages(self) -> None:
        assert self._reader is not None and self._transport is not None  # noqa: S101, PT018 - there is data
        try:
            for frame in self._reader.frames():
                data = frame.envelope.to_bytes() + frame.payload
                answer = self._service.try_fast_path(data, self.host)
                if answer is None:
                    self.deadline = _NEVER
                    self._transport.pause_reading()
                    self._task = asyncio.get_running_loop().create_task(self._serve(frame))
                    return
                self._send_fast_response(answer, keep=bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT))
                if self._closing or self._writable is not None:
                    return  # nobody reads more; or not before these answers are taken
        except RemoteProtocolError:
            self._refuse()
            return
        if self._ended:
            self._finish()
        elif self._reader.is_idle:
            self._reader = None
        else:  # what has begun must end soon, however long the connection may be silent in between
            self.deadline = min(self.deadline, self._service.now() + self._service.connections.message_timeout)

    async def _serve(self, frame: Frame) -> None:
        """Answer a message, then take the next one or end."""
        transport = self._transport
        assert transport is not None  # noqa: S101 - it brought the message
        try:
            keep = await self._answer(frame, transport)
        except BaseException:
            transport.abort()  # nobody would look after it any more
            raise
        self._task = None
        if keep and not self._closing and not self._service.draining:
            self.deadline = self._service.now() + self._service.connections.idle_timeout
            if not transport.is_closing():
                transport.resume_reading()
                self._next()
        else:
            self._finish()

    async def _answer(self, frame: Frame, transport: asyncio.Transport) -> bool:
        """Answer a message; whether the client wants to keep the connection."""
        keep = False
        async with aclosing(self._service.served(frame, self.host, Transport.TCP)) as answers:
            async for served in answers:
                keep = served.keep_alive
                if transport.is_closing():
                    if served.more:
                        break  # nobody listens any more
                    continue
                transport.write(served.reply.to_stream())
                if (served.more or keep) and self._writable is not None:  # before more is made, or asked for
                    self.deadline = self._service.now() + self._service.connections.write_timeout
                    await self._writable
                    self.deadline = _NEVER
        return keep

    def _refuse(self) -> None:
        """Answer what cannot be a message, and wait a moment: cut at once, the answer might not be read."""
        assert self._transport is not None  # noqa: S101 - it brought the octets
        reply = self._service.early_failure(ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT)
        self._transport.write(reply.to_stream())
        self._closing = True
        self.deadline = self._service.now() + LINGER_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _finish(self) -> None:
        """Close when everything is sent, or when the client has not taken it in time."""
        assert self._transport is not None  # noqa: S101 - it is being answered
        self._closing = True
        self.deadline = self._service.now() + self._service.connections.write_timeout
        self._transport.close()

    def cut(self) -> None:
        """End it now: it took too long."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """End it, unless a message of it is being answered."""
        if self._task is None and self._transport is not None:
            self._transport.close()


if TYPE_CHECKING:
    from .service import NativeService

_MAX_READ = 2_048  # more than a public resolution has; what is longer is read on by the connection


class NativeAcceptLoop(AcceptLoop):
    """Takes connections from a listening socket."""

    def __init__(self, service: "NativeService", listener: socket.socket) -> None:
        super().__init__(listener, service.connections, service.counts.limited)
        self._service = service

    def take(self, client: socket.socket, host: str) -> Connection | None:
        """Answer what a client has sent; the connection to be, if there is more to come."""
        try:
            data = client.recv(_MAX_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:  # it was held back as long as can be, and still nothing came
            return Connection(self._service, host)
        if not data:
            return None
        answer = self._service.try_fast_path(data, host)
        if answer is None:
            return Connection(self._service, host, unread=data)
        sent = client.send(answer, socket.MSG_DONTWAIT)
        keep = bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT)
        return Connection(self._service, host, unsent=answer[sent:], keep=keep) if keep or sent < len(answer) else None
