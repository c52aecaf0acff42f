"""Native protocol over TCP: accepting connections, timeouts, and messages in both directions.

Deployed clients open a connection for every request, which costs more than the response. So a connection is attached to
the event loop only if necessary. The kernel holds it back until data has arrived; then it is accepted, read, answered
and closed at once. Clients that sent only a part, need more than the fast path, or keep the connection get a
`Connection` with the data read so far.

Public resolutions over a kept connection use the fast path too: the received data is tried as it is. Everything else
goes through `NativeService`, one message of a connection at a time; further data waits in the kernel. A client that
sets KC (keep the connection) may send more requests.

Deadlines of all connections are checked together, once a second.
"""

import asyncio
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, cast

from perseid.records.site import Transport
from perseid.server.processes.accept import AcceptLoop
from perseid.wire.codes import RemoteProtocolError, ResponseCode
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.server import NOT_UNDERSTOOD_TEXT

if TYPE_CHECKING:
    from .service import NativeService

LINGER_SECONDS: Final = 2.0
"""Seconds for a client to read a refusal before the connection is aborted."""

KEEP_ALIVE_OFFSET: Final = 28
KEEP_ALIVE_BIT: Final = 0x02
"""Offset of the byte with the KC flag in a request, and its bit."""

_NEVER = float("inf")


class Connection(asyncio.Protocol):
    """A TCP connection."""

    __slots__ = (
        "_closing",
        "_eof",
        "_keep",
        "_reader",
        "_recorded_size",
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
        """Create a connection for an admitted client.

        `unread` was received already; `unsent` is the rest of a response, after which the connection ends unless `keep`
        is set.
        """
        self._service = service
        self._unread, self._unsent, self._keep = unread, unsent, keep
        self._transport: asyncio.Transport | None = None
        self._reader: FrameReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closing = False
        self._eof = False
        self._recorded_size = 0  # bytes in the reader, as last recorded
        self.host = host
        self.deadline = _NEVER
        """When the connection is aborted unless something happens."""

    # Protocol callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
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
        if self._closing:
            return
        if self._reader is None:
            response = self._service.try_fast_path(data, self.host)
            if response is not None:
                self._send_fast_response(response, keep=bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT))
                return
            self._reader = FrameReader()
        self._reader.feed(data)
        if self._task is None:
            self._next()
        else:
            self._count_buffered()

    def _send_fast_response(self, response: bytes, *, keep: bool) -> None:
        assert self._transport is not None  # noqa: S101 - it received the request
        self._transport.write(response)
        if not keep:
            self._finish()
        elif self._writable is None:
            self.deadline = self._service.now() + self._service.connections.idle_timeout

    def eof_received(self) -> bool:
        """Keep the connection open for a response in progress."""
        if self._task is None:
            return False
        self._eof = True
        return True

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the connection. Started work is finished."""
        if self in self._service.open:
            self._service.open.discard(self)
            self._service.connections.leave(self.host)
        self._closing = True
        self._reader = None
        self._count_buffered()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Stop reading and responding while the client does not read."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()
        if self._task is None and self._transport is not None:
            self._transport.pause_reading()
            self.deadline = self._service.now() + self._service.connections.write_timeout

    def resume_writing(self) -> None:
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
        """Handle received messages, up to one that needs the service, and record what is left of them."""
        self._take_messages()
        self._count_buffered()

    def _count_buffered(self) -> None:
        """Record the buffered size, if it changed; the total of all connections is limited."""
        buffered = 0 if self._reader is None else self._reader.buffered
        if buffered != self._recorded_size:
            self._recorded_size = buffered
            for longest in self._service.connections.unfinished.note(self, buffered):
                self._service.counts.limited("unfinished_bytes")
                longest.cut()

    def _take_messages(self) -> None:
        assert self._reader is not None and self._transport is not None  # noqa: S101, PT018 - data was received
        try:
            for frame in self._reader.frames():
                data = frame.envelope.to_bytes() + frame.payload
                response = self._service.try_fast_path(data, self.host)
                if response is None:
                    self.deadline = _NEVER
                    self._transport.pause_reading()
                    self._task = asyncio.get_running_loop().create_task(self._serve(frame))
                    return
                self._send_fast_response(response, keep=bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT))
                if self._closing or self._writable is not None:
                    return  # closing, or the client must read its responses first
        except RemoteProtocolError:
            self._refuse()
            return
        if self._eof:
            self._finish()
        elif self._reader.is_idle:
            self._reader = None
        else:  # a started message must end soon, even on a kept connection
            self.deadline = min(self.deadline, self._service.now() + self._service.connections.message_timeout)

    async def _serve(self, frame: Frame) -> None:
        """Handle a message, then continue with the next one or close."""
        transport = self._transport
        assert transport is not None  # noqa: S101 - it received the message
        try:
            keep = await self._respond(frame, transport)
        except BaseException:
            transport.abort()  # nothing else would close it
            raise
        self._task = None
        if keep and not self._closing and not self._service.draining:
            self.deadline = self._service.now() + self._service.connections.idle_timeout
            if not transport.is_closing():
                transport.resume_reading()
                self._next()
        else:
            self._finish()

    async def _respond(self, frame: Frame, transport: asyncio.Transport) -> bool:
        """Send the responses to a message; return whether the client keeps the connection."""
        keep = False
        async with aclosing(self._service.served(frame, self.host, Transport.TCP)) as answers:
            async for served in answers:
                keep = served.keep_alive
                if transport.is_closing():
                    if served.more:
                        break  # the client has disconnected
                    continue
                transport.write(served.reply.to_stream())
                if (served.more or keep) and self._writable is not None:  # wait before more is created or read
                    self.deadline = self._service.now() + self._service.connections.write_timeout
                    await self._writable
                    self.deadline = _NEVER
        return keep

    def _refuse(self) -> None:
        """Respond to invalid data, and wait a moment: after an immediate abort the client might not see it."""
        assert self._transport is not None  # noqa: S101 - it received the data
        self._service.log_invalid("invalid message length", self.host, Transport.TCP)
        reply = self._service.early_failure(ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT)
        self._transport.write(reply.to_stream())
        self._closing = True
        self.deadline = self._service.now() + LINGER_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _finish(self) -> None:
        """Close when everything is sent, or when the client has not read it in time."""
        assert self._transport is not None  # noqa: S101 - it is connected
        self._closing = True
        self.deadline = self._service.now() + self._service.connections.write_timeout
        self._transport.close()

    def cut(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close, unless a message is being handled."""
        if self._task is None and self._transport is not None:
            self._transport.close()


_MAX_READ = 2_048  # more than a public resolution has; a connection reads the rest


class NativeAcceptLoop(AcceptLoop):
    """Accepts connections of the native protocol."""

    def __init__(self, service: "NativeService") -> None:
        super().__init__(service.connections, service.counts.limited)
        self._service = service

    def take(self, client: socket.socket, host: str) -> Connection | None:
        """Answer a client at once; return a connection if there is more to do."""
        try:
            data = client.recv(_MAX_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the kernel's time limit passed without data
            return Connection(self._service, host)
        if not data:
            return None
        response = self._service.try_fast_path(data, host)
        if response is None:
            return Connection(self._service, host, unread=data)
        sent = client.send(response, socket.MSG_DONTWAIT)
        keep = bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT)
        return (
            Connection(self._service, host, unsent=response[sent:], keep=keep) if keep or sent < len(response) else None
        )
