"""Native protocol over TCP: accepting connections, timeouts, and messages in both directions.

Deployed clients open a connection for every request, which costs more than the response. So a connection is attached to
the event loop only if necessary. The kernel holds it back until data has arrived; then it is accepted, read, answered
and closed at once. Clients that sent only a part, need more than the fast path, or keep the connection get a
`Connection` with the data read so far. A thread of the compiled module does the same for the sockets of its worker
(`resolution_thread`); it keeps connections until they send something that it cannot answer.

Public resolutions over a kept connection use the fast path too: the received data is tried as it is. Everything else
goes through `NativeService`. A client that sets KC (keep the connection) may send more requests, also before it has the
responses to earlier ones. Changes of different records are then made at the same time, so that one commit takes several
of them; a change that is refused meanwhile is decided again after those before it. Everything else is handled one
message at a time. Responses come in the order of the requests, and further data waits in the kernel.

Deadlines of all connections are checked together, once a second.
"""

import asyncio
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.site import Transport
from perseid.server.processes.accept import AcceptLoop
from perseid.wire.codes import OpCode, RemoteProtocolError, ResponseCode
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import ENVELOPE_LENGTH, HEADER_LENGTH
from perseid.wire.server import NOT_UNDERSTOOD_TEXT

from .work import verified_secret_id

if TYPE_CHECKING:
    from .resolution_thread import ResolutionThread
    from .service import NativeService

LINGER_SECONDS: Final = 2.0
"""Seconds for a client to read a refusal before the connection is aborted."""

KEEP_ALIVE_OFFSET: Final = 28
KEEP_ALIVE_BIT: Final = 0x02
"""Offset of the byte with the KC flag in a request, and its bit."""

MAX_CONCURRENT: Final = 16
"""Changes of one connection that are made at the same time: as many as a worker sends to the writer at once."""

MAX_MESSAGES_PER_TURN: Final = 32
"""Pipelined messages that are taken in one go, before other connections have their turn. Connections with more of them
share this number, so that another client waits for few of each."""

_CONCURRENT_OPCODES: Final = frozenset(
    int(opcode).to_bytes(4, "big")
    for opcode in (
        *(OpCode.CREATE_HANDLE, OpCode.DELETE_HANDLE, OpCode.ADD_VALUE, OpCode.REMOVE_VALUE, OpCode.MODIFY_VALUE),
    )
)
_PREFIX_HANDLES: Final = f"{PREFIX_OF_PREFIXES}/".encode()
_KEEP_ALIVE_AT: Final = KEEP_ALIVE_OFFSET - ENVELOPE_LENGTH
_NAME_AT: Final = HEADER_LENGTH + 4
_LENGTH: Final = slice(16, 20)
_NEVER = float("inf")


class _Message:
    """A message that is being handled."""

    __slots__ = ("done", "output", "record", "task")

    def __init__(self, record: bytes | None) -> None:
        self.record = record
        """The record that it changes; None if it must be alone."""
        self.output: list[bytes] = []
        """Responses that wait for those to earlier messages."""
        self.task: asyncio.Task[None] | None = None
        self.done: bool | None = None
        """Whether the client keeps the connection, once the message is handled."""


def _is_one_message(data: bytes) -> bool:
    """Whether data is one complete message."""
    return len(data) == ENVELOPE_LENGTH + int.from_bytes(data[_LENGTH], "big")


def _changed_record(frame: Frame) -> bytes | None:
    """The record that a message changes; None unless changes of other records can be made at the same time.

    A client without a session is challenged for each change, and the records of prefixes affect all others.
    """
    payload = frame.payload
    if (
        payload[:4] not in _CONCURRENT_OPCODES
        or frame.envelope.encrypted
        or frame.envelope.session_id <= 0
        or len(payload) < _NAME_AT
        or not payload[_KEEP_ALIVE_AT] & KEEP_ALIVE_BIT
    ):
        return None
    name = payload[_NAME_AT : _NAME_AT + int.from_bytes(payload[HEADER_LENGTH:_NAME_AT], "big")].upper()
    return None if name.startswith(_PREFIX_HANDLES) else verified_secret_id(name)


class Connection(asyncio.Protocol):
    """A TCP connection."""

    __slots__ = (
        "_closing",
        "_eof",
        "_has_turn",
        "_is_paused",
        "_keep",
        "_messages",
        "_next_frame",
        "_reader",
        "_recorded_size",
        "_service",
        "_transport",
        "_tried",
        "_unread",
        "_unsent",
        "_writable",
        "deadline",
        "host",
    )

    def __init__(
        self,
        service: "NativeService",
        host: str,
        *,
        unread: bytes = b"",
        unsent: bytes | None = None,
        keep: bool = True,
    ) -> None:
        """Create a connection for an admitted client.

        `unread` was received already; `unsent` is the rest of the response to the first message, after which the
        connection ends unless `keep` is set.
        """
        self._service = service
        self._unread, self._unsent, self._keep = unread, unsent, keep
        self._transport: asyncio.Transport | None = None
        self._reader: FrameReader | None = None
        self._messages: deque[_Message] = deque()  # that are being handled, in order
        self._next_frame: Frame | None = None  # waits until it can be handled
        self._tried = False  # the first message is not for the fast path
        self._is_paused = False  # reading
        self._has_turn = False  # whether received messages wait for their turn
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
        limits = self._service.connections
        is_new = self._unsent is None
        self.deadline = self._service.now() + (limits.message_timeout if is_new else limits.idle_timeout)
        self._service.open.add(self)
        if self._unsent:
            self._transport.write(self._unsent)
        if not self._keep:
            self._finish()
        elif self._unread:
            self._tried = _is_one_message(self._unread)
            self._reader = FrameReader()
            self._reader.feed(self._unread)
            self._next()
        self._unread, self._unsent = b"", None

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reader is None:
            response = self._service.try_fast_path(data, self.host)
            if response is not None:
                self._send_fast_response(response, keep=bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT))
                return
            self._tried = _is_one_message(data)
            self._reader = FrameReader()
        self._reader.feed(data)
        if self._is_paused:
            self._count_buffered()
        else:
            self._next()

    def _send_fast_response(self, response: bytes, *, keep: bool) -> None:
        assert self._transport is not None  # noqa: S101 - it received the request
        self._transport.write(response)
        if not keep:
            self._finish()
        elif self._writable is None:
            self.deadline = self._service.now() + self._service.connections.idle_timeout

    def eof_received(self) -> bool:
        """Keep the connection open for responses in progress."""
        if not self._messages and not self._has_turn:
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
        if not self._messages and self._transport is not None:
            self._pause()
            self.deadline = self._service.now() + self._service.connections.write_timeout

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None
            transport = self._transport
            if not self._messages and not self._closing and transport is not None and not transport.is_closing():
                self.deadline = self._service.now() + self._service.connections.idle_timeout
                self._resume()

    def _pause(self) -> None:
        """Leave further data in the kernel."""
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        """Handle what was received, and read on."""
        self._resume_reading()
        if self._reader is not None:
            self._next()

    def _resume_reading(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    # Messages

    def _next(self) -> bool:
        """Handle received messages, up to one that needs the service, and record what is left of them.

        Return whether more can be read.
        """
        reads_on = self._take_messages()
        self._count_buffered()
        return reads_on

    def _count_buffered(self) -> None:
        """Record the buffered size, if it changed; the total of all connections is limited."""
        buffered = 0 if self._reader is None else self._reader.buffered
        if buffered != self._recorded_size:
            self._recorded_size = buffered
            for longest in self._service.connections.unfinished.note(self, buffered):
                self._service.counts.count_limit("unfinished_bytes")
                longest.cut()

    def _take_messages(self) -> bool:
        """Start to handle received messages, as many as possible at the same time; return whether to read more."""
        reader = self._reader
        assert reader is not None  # noqa: S101 - data was received
        left = max(1, MAX_MESSAGES_PER_TURN // (1 + self._service.waiting))
        try:
            while (frame := self._next_frame or reader.next()) is not None:
                self._next_frame = None
                if (self._messages or self._answer_at_once(frame)) and not self._start(frame):
                    self._pause()
                    return False
                if self._closing or self._writable is not None:
                    return False  # closing, or the client must read its responses first
                left -= 1
                if not left and not reader.is_idle:
                    self._wait_for_turn()
                    return False
        except RemoteProtocolError:
            if not self._messages:  # else after the responses to the messages before it
                self._refuse()
            return True
        if self._messages:
            return True
        if self._eof:
            self._finish()
        elif reader.is_idle:
            self._reader = None
        else:  # a started message must end soon, even on a kept connection
            self.deadline = min(self.deadline, self._service.now() + self._service.connections.message_timeout)
        return True

    def _wait_for_turn(self) -> None:
        """Take the next messages after those of other connections."""
        self._pause()
        if not self._has_turn:
            self._has_turn = True
            self._service.waiting += 1
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        self._service.waiting -= 1
        if self._closing or self._writable is not None or self._reader is None:
            return  # the client must read its responses first
        if self._next() and self._transport is not None and not self._transport.is_closing():
            self._resume_reading()

    def _answer_at_once(self, frame: Frame) -> bool:
        """Answer a public resolution; return whether the message needs the service."""
        if self._tried:  # as it was received
            self._tried = False
            return True
        data = frame.envelope.to_bytes() + frame.payload
        response = self._service.try_fast_path(data, self.host)
        if response is None:
            return True
        self._send_fast_response(response, keep=bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT))
        return False

    def _start(self, frame: Frame) -> bool:
        """Handle a message now, or after those before it; return whether more can be handled at the same time."""
        messages, record = self._messages, _changed_record(frame)
        if messages:
            is_last = not self._keep or self._service.draining or len(messages) >= MAX_CONCURRENT
            if is_last or record is None or any(one.record in (None, record) for one in messages):
                self._next_frame = frame
                return False
        message = _Message(record)
        is_first = not messages
        messages.append(message)
        self.deadline = _NEVER
        message.task = asyncio.get_running_loop().create_task(self._serve(message, frame, is_first=is_first))
        return record is not None

    async def _serve(self, message: _Message, frame: Frame, *, is_first: bool) -> None:
        """Handle a message, then continue with the next one or close."""
        transport = self._transport
        assert transport is not None  # noqa: S101 - it received the message
        try:
            message.done = await self._respond(message, frame, transport, is_first=is_first)
        except BaseException:
            transport.abort()  # nothing else would close it
            raise
        if message is self._messages[0]:
            self._finish_messages(transport)

    def _finish_messages(self, transport: asyncio.Transport) -> None:
        """Send the responses that are complete, in order; then continue, or close."""
        messages, service = self._messages, self._service
        while messages and messages[0].done is not None:
            message = messages.popleft()
            self._keep = self._keep and message.done is True
            if message.output and not transport.is_closing():
                transport.write(b"".join(message.output))
        if not self._keep or self._closing or service.draining:
            if not messages:
                self._finish()
        elif self._writable is None:
            if not messages:
                self.deadline = service.now() + service.connections.idle_timeout
            if not transport.is_closing():
                self._resume()
        elif not messages:
            self.deadline = service.now() + service.connections.write_timeout

    async def _respond(self, message: _Message, frame: Frame, transport: asyncio.Transport, *, is_first: bool) -> bool:
        """Send the responses to a message; return whether the client keeps the connection."""
        earlier = None if is_first else lambda: self._wait_for_earlier(message)
        exchange = self._service.begin(frame, self.host, Transport.TCP, earlier)
        while True:
            response = await exchange.next()
            if transport.is_closing():
                if response.more:
                    return False  # the client has disconnected
            elif message is not self._messages[0]:
                message.output.append(response.reply.to_stream())
            else:
                transport.write(response.reply.to_stream())
                if (response.more or response.keep_alive) and self._writable is not None:
                    # Wait before more is created or read.
                    self.deadline = self._service.now() + self._service.connections.write_timeout
                    await self._writable
                    self.deadline = _NEVER
            if not response.more:
                exchange.finish(response)
                return response.keep_alive

    async def _wait_for_earlier(self, message: _Message) -> None:
        """Wait until the messages before one are handled."""
        tasks = []
        for one in self._messages:
            if one is message:
                break
            if one.task is not None and one.done is None:
                tasks.append(one.task)
        if tasks:
            await asyncio.wait(tasks)

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
        if not self._messages and self._transport is not None:
            self._transport.close()


_MAX_READ = 2_048  # more than a public resolution has; a connection reads the rest


class NativeAcceptLoop(AcceptLoop):
    """Accepts connections of the native protocol."""

    def __init__(self, service: "NativeService") -> None:
        super().__init__(service.connections, service.counts.count_limit)
        self._service = service
        self._thread: ResolutionThread | None = None

    def add_thread(self, thread: "ResolutionThread") -> None:
        """Have a thread of the compiled module accept from its listening sockets, when they are started."""
        self._thread = thread
        self.configure()

    def configure(self) -> None:
        """Apply changed limits, settings and access log."""
        if self._thread is not None:
            service = self._service
            enabled = service.native_server.resolution_enabled[Transport.TCP]
            self._thread.access["tcp"] = service.access
            limits = service.connections.for_thread()
            self._thread.configure_tcp(limits, resolves=enabled, logs=service.access is not None)

    def start(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        if self._thread is not None and listener in self._thread.sockets:
            self._thread.start(loop, self._take_from_thread)
        else:
            super().start(loop, listener)

    def stop(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        if self._thread is not None and listener in self._thread.sockets:
            self._thread.stop(loop)
        else:
            super().stop(loop, listener)

    def _take_from_thread(self) -> bool:
        """Serve some of the clients that the thread has left to the event loop; return whether there may be more."""
        if self._thread is None:
            return False
        taken = self._thread.compiled.take_connections()
        clients = deque([socket.socket(each[1], socket.SOCK_STREAM, 0, each[0]) for each in taken])
        try:
            for _, _, host, is_admitted, received, unsent, keep in taken:
                client = clients.popleft()
                if is_admitted:
                    self._connections.count_admitted(host)
                    self._serve(client, host, partial(self._continue, received=received, unsent=unsent, keep=keep))
                else:
                    self._take(client, host)
        finally:
            for client in clients:  # after an error
                client.close()
        return bool(taken)

    def _continue(
        self, client: socket.socket, host: str, *, received: bytes, unsent: bytes | None, keep: bool
    ) -> Connection | None:
        """Serve a client of the thread; return a connection if there is more to do."""
        if unsent is not None:
            return Connection(self._service, host, unsent=unsent, keep=keep)
        return self._answer(client, host, received) if received else Connection(self._service, host)

    def take(self, client: socket.socket, host: str) -> Connection | None:
        """Answer a client at once; return a connection if there is more to do."""
        try:
            data = client.recv(_MAX_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the kernel's time limit passed without data
            return Connection(self._service, host)
        return self._answer(client, host, data) if data else None

    def _answer(self, client: socket.socket, host: str, data: bytes) -> Connection | None:
        """Answer what a client has sent; return a connection if there is more to do."""
        response = self._service.try_fast_path(data, host)
        if response is None:
            return Connection(self._service, host, unread=data)
        sent = client.send(response, socket.MSG_DONTWAIT)
        keep = bool(data[KEEP_ALIVE_OFFSET] & KEEP_ALIVE_BIT)
        return (
            Connection(self._service, host, unsent=response[sent:], keep=keep) if keep or sent < len(response) else None
        )
