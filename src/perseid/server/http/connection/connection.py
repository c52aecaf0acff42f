"""One HTTP/1.1 or HTTP/1.0 connection: bytes become requests, responses become bytes.

Requests of a connection are handled one at a time and in order. What the client sends meanwhile waits: one buffer
here, the rest in the kernel. Most requests arrive whole, in one read and without a body, while the connection is idle,
and the service answers them at once; that path is kept short. See `requests` for parsing, `responses` for sending.

Bodies are collected, and handled when they are complete. Uploaded files are streamed: the handler starts at once, and
the connection reads as fast as it processes them. A client must send each `MAX_BODY` bytes in the time for a body.

Invalid input gets an error response, and the connection ends: the start of the next request is unknown. The client
gets a moment to read the response, because data that it keeps sending would make the system discard it.

Works on any asyncio transport, plain or TLS; `listener.ConnectionManager` enforces timeouts.
"""

import asyncio
from collections.abc import Callable
from secrets import token_hex
from typing import Final, cast

from perseid.server.http.clients import Peer
from perseid.server.http.messages import MAX_BODY, MAX_HEAD
from perseid.server.native.decisions import internal_error

from .listener import BODY_GRACE, MIN_BODY_RATE, ConnectionManager
from .requests import (
    CHUNKED,
    END_OF_HEAD,
    Body,
    BodyStream,
    ChunkedBody,
    HeadParser,
    ParsedRequest,
    ProtocolError,
    SizedBody,
    body_too_large,
    guess_target,
)
from .responses import CONTINUE, Service, encode_error, encode_head, has_body, send, send_stream, to_protocol_error

MAX_REQUESTS_PER_TURN: Final = 32
"""Pipelined requests that are answered in one go, before other connections have their turn. Connections with more of
them share this number, so that another client waits for few of each."""

MAX_LINGER_BYTES: Final = 4 * MAX_BODY
"""Bytes that a client may send after an error response before the connection is cut."""

_NEVER = float("inf")
_CUT_SHORT = "was incomplete when the connection ended"
_LATE = "did not arrive in time"

_IDLE = 0  # nothing of the next request has arrived
_READING = 1  # a part has arrived, or is not processed yet
_ANSWERING = 2  # a task handles a request
_WAITING = 3  # the client must receive what is written before more is handled
_CLOSING = 4  # input is discarded
_CLOSED = 5


class Connection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_at",
        "_blank",
        "_body",
        "_body_since",
        "_body_start",
        "_buffer",
        "_discarded",
        "_eof",
        "_full",
        "_head_parser",
        "_manager",
        "_noted_size",
        "_on_lost",
        "_partial",
        "_paused",
        "_peer",
        "_request",
        "_service",
        "_state",
        "_stream",
        "_stream_paused",
        "_task",
        "_transport",
        "_turn",
        "_writable",
        "deadline",
    )

    def __init__(
        self, service: Service, manager: ConnectionManager, peer: Peer, *, ended: Callable[[], None] | None = None
    ) -> None:
        """Serve a client that was admitted; `ended` is called when the connection is lost."""
        self._service, self._manager, self._peer, self._on_lost = service, manager, peer, ended
        self._transport: asyncio.Transport | None = None
        self._head_parser = HeadParser(peer)
        self._state = _IDLE
        self._buffer, self._at = b"", 0  # received bytes, and the offset of the unprocessed ones
        self._blank = False  # whether an empty line before the request was skipped
        self._partial = False  # whether a part of a head has arrived
        self._request: ParsedRequest | None = None  # the one whose body is being received
        self._body: Body | None = None
        self._body_since, self._body_start = 0.0, 0  # when its deadline began, and after how many bytes
        self._stream: BodyStream | None = None  # a body that is handled while it arrives
        self._stream_paused = 0.0  # since when the handler processes a part of it
        self._noted_size = 0  # bytes waiting here, as last reported
        self._discarded = 0
        self._paused = False  # whether reading is paused
        self._full = False  # whether the client receives slowly
        self._eof = False  # whether the client has finished sending
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._turn: asyncio.Handle | None = None
        self.deadline = _NEVER
        """When `on_timeout` is called unless something happens."""

    @property
    def host(self) -> str:
        """The address of the peer."""
        return self._peer.host

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._manager.open.add(self)
        self.deadline = self._manager.now() + self._manager.times.head

    def data_received(self, data: bytes) -> None:
        """Receive data: most often one whole request without a body, with the headers of the one before."""
        if self._state == _IDLE:
            request = self._head_parser.parse_repeated(data)
            if request is not None:
                self._blank = False
                self._start_request(request)
                return
            end = len(data) - len(END_OF_HEAD)
            if (
                data.endswith(END_OF_HEAD)
                and data.find(END_OF_HEAD) == end
                and len(data) <= MAX_HEAD
                and not data.startswith(b"\r")
            ):
                self._blank = False
                self._parse_and_start(data)
                return
        self._receive(data)

    def eof_received(self) -> bool:
        """The client has finished sending; pending responses are still sent."""
        self._eof = True
        if self._state == _READING and self._turn is None:
            self._reject_incomplete()
            return True
        if self._stream is not None and self._stream.is_waiting:
            self._stream.fail(self._incomplete_error(400, _CUT_SHORT))
        return self._state in (_READING, _ANSWERING, _WAITING)

    def connection_lost(self, _: Exception | None) -> None:
        """Clean up. Work in progress continues."""
        self._state = _CLOSED
        self._forget()
        self._full = False
        self._wake()
        self._manager.open.discard(self)
        if self._on_lost is not None:
            self._on_lost()
            self._on_lost = None

    def pause_writing(self) -> None:
        """The client receives slowly: stop handling requests."""
        self._full = True
        if self._state in (_IDLE, _READING):
            self._state = _WAITING
            self._pause_reading()
            self.deadline = self._manager.now() + self._manager.times.take

    def resume_writing(self) -> None:
        """Resume handling requests."""
        self._full = False
        self._wake()
        if self._state == _WAITING:
            self._resume_processing()

    # Requests

    def _receive(self, data: bytes) -> None:
        """Receive any data: a part of a request, several requests, or data to discard."""
        if self._state >= _CLOSING:
            self._discarded += len(data)
            if self._discarded > MAX_LINGER_BYTES:
                self.cut()
            return
        rest = self._buffer[self._at :]
        self._buffer, self._at = rest + data if rest else data, 0
        if self._state <= _READING and self._turn is None:
            self._state = _READING
            self._process_buffer()
        elif self._stream is not None and self._stream.is_waiting:
            self._feed_stream(self._stream)
        else:
            self._pause_reading()
            self._count()

    def _process_buffer(self) -> None:
        """Process the buffer until a request needs time, or other connections have their turn."""
        self._cancel_turn()
        for _ in range(max(1, MAX_REQUESTS_PER_TURN // (1 + self._manager.waiting))):
            if self._state != _READING or not (self._read_head() if self._body is None else self._read_body()):
                break
        else:
            if self._state == _READING:
                self._pause_reading()
                self._turn = asyncio.get_running_loop().call_soon(self._take_turn)
                self._manager.waiting += 1
        self._update_state()

    def _take_turn(self) -> None:
        self._turn = None
        self._manager.waiting -= 1
        self._process_buffer()

    def _cancel_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            self._manager.waiting -= 1

    def _update_state(self) -> None:
        """Update the state after processing."""
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0
            if self._state == _READING and self._body is None:
                self._state = _IDLE
        self._count()
        if self._state > _READING or self._turn is not None:
            return
        if not self._eof:
            self._resume_reading()
        elif self._state == _IDLE:
            self._finish()
        else:
            self._reject_incomplete()

    def _read_head(self) -> bool:
        """Process a whole head in the buffer; return whether there was one."""
        if not self._blank and self._buffer.startswith(b"\r\n", self._at):  # one empty line: RFC 9112, 2.2
            self._blank = True
            self._at += 2
        at = self._at
        end = self._buffer.find(END_OF_HEAD, at, at + MAX_HEAD)
        if end >= 0:
            self._at = end + len(END_OF_HEAD)
            self._partial = self._blank = False
            self._parse_and_start(self._buffer[at : self._at])
            return True
        start = self._buffer[at : at + MAX_HEAD + 1]
        if start and not self._partial:
            self._partial = True
            self.deadline = self._manager.now() + self._manager.times.head
        try:
            self._head_parser.check_partial(start)
        except ProtocolError as problem:
            self._refuse(problem)
        return False

    def _parse_and_start(self, head: bytes) -> None:
        """Handle a request whose head has arrived, or wait for its body."""
        try:
            request = self._head_parser.read(head)
        except ProtocolError as problem:
            self._refuse(problem)
            return
        except Exception as error:  # noqa: BLE001 - the client must get a response
            self._refuse(to_protocol_error(error, *guess_target(head)))
            return
        self._start_request(request)

    def _start_request(self, request: ParsedRequest) -> None:
        if self._manager.draining:
            request.keep = False
        fields = request.fields
        if fields.length == 0:
            self._respond(request)
            return
        is_streamed = self._service.is_streamed(request)
        if fields.length > MAX_BODY and not is_streamed:
            problem = body_too_large()
            problem.path, problem.method = request.path, request.method
            self._refuse(problem)
            return
        self._request = request
        self._body = ChunkedBody(is_streamed=is_streamed) if fields.length == CHUNKED else SizedBody(fields.length)
        self._body_since = self._stream_paused = self._manager.now()
        self._body_start = 0
        if is_streamed:
            self._stream = request.stream = BodyStream(self._receive_stream)
            self._start(request)
            return
        self._state = _READING
        self._set_body_deadline(self._body)
        if fields.expects and self._at == len(self._buffer):
            self.write(CONTINUE)

    def _read_body(self) -> bool:
        """Process a part of a body; return whether it is complete."""
        body, request = self._body, self._request
        assert body is not None and request is not None  # noqa: S101, PT018 - set together
        try:
            self._at = body.take(self._buffer, self._at)
        except ProtocolError as problem:
            problem.path, problem.method = request.path, request.method
            self._refuse(problem)
            return False
        if not body.whole:
            self._set_body_deadline(body)
            return False
        request.body = bytes(body.data)
        self._body = self._request = None
        self._start(request)
        return True

    def _set_body_deadline(self, body: Body) -> None:
        times = self._manager.times
        received = body.received - self._body_start
        self.deadline = self._body_since + min(times.body, BODY_GRACE + received / MIN_BODY_RATE)

    # Streamed bodies

    def _receive_stream(self) -> None:
        """Receive the next part of a streamed body: its handler waits for it."""
        stream, request, body = self._stream, self._request, self._body
        if stream is None or request is None or body is None:
            return  # it has failed
        self._body_since += self._manager.now() - self._stream_paused  # the client is not to blame for this time
        if request.fields.expects and not body.received and self._at == len(self._buffer):
            self.write(CONTINUE)
        self._feed_stream(stream)

    def _feed_stream(self, stream: BodyStream) -> None:
        """Pass on what has arrived of a streamed body, or wait for more."""
        body = self._body
        assert body is not None  # noqa: S101 - set together
        try:
            self._at = body.take(self._buffer, self._at)
        except ProtocolError as problem:
            stream.fail(problem)
            return
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0
        data = bytes(body.data)
        body.data.clear()
        if data or body.whole:
            stream.feed(data, is_last=body.whole)
            self.deadline = _NEVER
            self._pause_reading()
        if body.whole:
            self._body = self._request = self._stream = None
        elif data:
            self._stream_paused = self._manager.now()
            if body.received - self._body_start >= MAX_BODY:
                self._body_since, self._body_start = self._stream_paused, body.received
        elif self._eof:
            stream.fail(self._incomplete_error(400, _CUT_SHORT))
        else:
            self._set_body_deadline(body)
            self._resume_reading()
        self._count()

    # Responses

    def _respond(self, request: ParsedRequest) -> None:
        """Handle a request without a body: at once, if possible."""
        try:
            data = self._service.handle_fast(request)
        except Exception as error:  # noqa: BLE001 - other connections must go on
            self._refuse(to_protocol_error(error, request.path, request.method))
            return
        if data is None:
            self._start(request)
        elif request.keep:
            self.deadline = self._manager.now() + self._manager.times.idle  # first: writing may set another one
            self.write(data)
        else:
            self.write(data)
            self._finish()

    def _start(self, request: ParsedRequest) -> None:
        """Start a task that handles a request."""
        request.headers = list(request.headers)  # a copy: the next request may share the fields
        self._state = _ANSWERING
        self.deadline = _NEVER
        self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: ParsedRequest) -> None:
        """Handle a request, then the next one, or close."""
        keep = False
        try:
            keep = await self._answer(request)
        except Exception as error:  # noqa: BLE001 - other connections must go on
            internal_error(error, token_hex(4))
            self.cut()  # a response that was started must not look complete
        except BaseException:
            self.cut()
            raise
        self._task = None
        if self._state != _ANSWERING:
            return
        if keep:
            self._resume_processing()
        elif self._stream is not None:
            self._linger()  # the client still sends
        else:
            self._finish()

    async def _answer(self, request: ParsedRequest) -> bool:
        """Handle a request; return whether the connection stays open."""
        try:
            response = await self._service.handle(request)
            keep = request.keep and not response.close and not self._manager.draining
            keep = keep and self._stream is None  # otherwise the rest of the body follows
            with_body = has_body(response.status, request.method)
            if response.stream is not None and with_body and request.version != "1.1":
                keep = False  # the end of the connection is the end of the body
            head = encode_head(response, version=request.version, keep=keep, seconds=self._manager.time())
        except Exception as error:  # noqa: BLE001 - other connections must go on
            self._refuse(to_protocol_error(error, request.path, request.method))
            return False
        if response.stream is not None:
            await send_stream(self, head, response.stream, with_body=with_body, chunked=request.version == "1.1")
        else:
            await send(self, head, response.body if with_body else b"")
        return keep and await self.drain()  # before the next request

    async def drain(self) -> bool:
        """Wait until the client has received what was sent; return whether it is still connected."""
        if self._full:
            self.deadline = self._manager.now() + self._manager.times.take
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable
            self.deadline = _NEVER
        return self._transport is not None and not self._transport.is_closing()

    def _wake(self) -> None:
        """Resume `drain`."""
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    def write(self, data: bytes) -> None:
        """Send data, unless the client has gone."""
        assert self._transport is not None  # noqa: S101 - a request has arrived
        if not self._transport.is_closing():
            self._transport.write(data)

    # Closing

    def _refuse(self, problem: ProtocolError) -> None:
        """Send an error and wait a moment: after an immediate close it might not be read."""
        if self._state == _CLOSED:
            return
        self._linger(encode_error(self._service, problem, self._manager.time()))

    def _linger(self, data: bytes = b"") -> None:
        """Send the rest of a response, and close when the client has had a moment to read it."""
        assert self._transport is not None  # noqa: S101 - data has arrived
        self._state = _CLOSING
        self._forget()
        self.write(data)
        self.deadline = self._manager.now() + self._manager.times.linger
        if self._eof:
            self._transport.close()
        elif not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._resume_reading()

    def _reject_incomplete(self) -> None:
        """Refuse a request that the client did not finish."""
        self._refuse(self._incomplete_error(400, _CUT_SHORT))

    def _incomplete_error(self, status: int, what: str) -> ProtocolError:
        request = self._request
        if request is None:
            start = self._buffer[self._at : self._at + MAX_HEAD]
            return ProtocolError(status, f"the head of the request {what}", *guess_target(start))
        return ProtocolError(status, f"the body of the request {what}", request.path, request.method)

    def _finish(self) -> None:
        """Close when everything is sent, or the client does not receive it in time."""
        assert self._transport is not None  # noqa: S101 - the connection was made
        self._state = _CLOSING
        self._forget()
        self.deadline = self._manager.now() + self._manager.times.take
        self._transport.close()

    def on_timeout(self) -> None:
        """Handle a missed deadline, with an error response if possible."""
        if self._state == _IDLE:
            self._finish()
            return
        self._manager.count_limit("slow_connection")
        if self._state == _READING:
            self._refuse(self._incomplete_error(408, _LATE))
        elif self._stream is not None and self._stream.is_waiting:
            self.deadline = _NEVER
            self._stream.fail(self._incomplete_error(408, _LATE))
        else:
            self.cut()

    def cut(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection unless a request has started."""
        if self._state == _IDLE and self._transport is not None:
            self._finish()

    # Buffering

    def _resume_processing(self) -> None:
        self._state = _READING
        self.deadline = self._manager.now() + self._manager.times.idle
        self._partial = False
        self._process_buffer()

    def _forget(self) -> None:
        """Discard unprocessed input."""
        if self._stream is not None:
            self._stream.fail(self._incomplete_error(400, _CUT_SHORT))
        self._buffer, self._at = b"", 0
        self._body = self._request = self._stream = None
        self._cancel_turn()
        self._count()

    def _count(self) -> None:
        """Report the size of the waiting data if it has changed; the total is limited."""
        size = len(self._buffer) - self._at + (0 if self._body is None else len(self._body.data))
        if size != self._noted_size:
            self._noted_size = size
            self._manager.note_buffered(self, size)

    def _pause_reading(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
