"""HTTP/1.1 and HTTP/1.0 over one connection: octets become requests, answers become octets.

Requests of a connection are answered one at a time and in order. What the client sends meanwhile waits: one piece of it
here, as the loop has read it, and the rest in the kernel. Most requests come whole, in one piece and without a body,
while nothing else is going on, and the service answers them at once; that path is kept short. See `heads` for how a
head is judged, `incoming` for bodies, `sending` for answers.

What is no request gets a refusal, and the connection ends with it: nobody could say where the next request begins. The
client has a moment to read it, for what it goes on sending would make the system throw the refusal away.

It works on any transport of asyncio, plain or TLS; `keeping` looks at the time.
"""

import asyncio
from collections.abc import Callable
from secrets import token_hex
from typing import Final, cast

from perseid.server.http.clients import Peer
from perseid.server.http.messages import MAX_BODY, MAX_HEAD
from perseid.server.native.decisions import internal_error

from .manager import BODY_GRACE, MIN_BODY_RATE, ConnectionManager
from .requests import (
    CHUNKED,
    END_OF_HEAD,
    Body,
    ChunkedBody,
    HeadParser,
    ParsedRequest,
    ProtocolError,
    SizedBody,
    check_partial_head,
    guess_target,
)
from .responses import CONTINUE, Service, encode_error, encode_head, has_body, send, send_stream, to_protocol_error

MAX_REQUESTS_PER_TURN: Final = 32
"""Requests that are answered at once, of all that a client has sent together, before others have their turn."""

MAX_LINGER_BYTES: Final = 4 * MAX_BODY
"""Octets that a client may go on sending after a refusal before it is cut off."""

_NEVER = float("inf")

_IDLE = 0  # nothing has come of the next request
_READING = 1  # something has, and there is more to come, or to look at
_ANSWERING = 2  # a task answers
_WAITING = 3  # the client has to take what is written before more is answered
_CLOSING = 4  # nothing is answered any more; what comes is thrown away
_CLOSED = 5


class Connection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_at",
        "_blank",
        "_body",
        "_body_since",
        "_buffer",
        "_discarded",
        "_ended",
        "_full",
        "_gone",
        "_heads",
        "_keeping",
        "_kept",
        "_partial",
        "_paused",
        "_peer",
        "_request",
        "_service",
        "_state",
        "_taken",
        "_task",
        "_transport",
        "_turn",
        "deadline",
    )

    def __init__(
        self, service: Service, manager: ConnectionManager, peer: Peer, *, ended: Callable[[], None] | None = None
    ) -> None:
        """Take on a client that was admitted; `ended` is called when the connection is lost."""
        self._service, self._keeping, self._peer, self._gone = service, manager, peer, ended
        self._transport: asyncio.Transport | None = None
        self._heads = HeadParser(peer)
        self._state = _IDLE
        self._buffer, self._at = b"", 0  # what has come, and where that begins that was not looked at
        self._blank = False  # whether an empty line was passed over before the request
        self._partial = False  # whether a part of a head has come
        self._request: ParsedRequest | None = None  # the one whose body comes
        self._body: Body | None = None
        self._body_since = 0.0
        self._kept = 0  # octets that wait here, as they were counted last
        self._discarded = 0
        self._paused = False  # whether nothing is read
        self._full = False  # whether the client takes its answers slowly
        self._ended = False  # whether the client has said everything
        self._task: asyncio.Task[None] | None = None
        self._taken: asyncio.Future[None] | None = None
        self._turn: asyncio.Handle | None = None
        self.deadline = _NEVER
        """When `late` is to be called unless something happens."""

    @property
    def host(self) -> str:
        """The address of the peer."""
        return self._peer.host

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._keeping.open.add(self)
        self.deadline = self._keeping.now() + self._keeping.times.head

    def data_received(self, data: bytes) -> None:
        """Take what came: most often one whole request without a body, with the headers of the one before."""
        if self._state == _IDLE:
            request = self._heads.parse_repeated(data)
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
        self._take(data)

    def eof_received(self) -> bool:
        """The client has said everything; what it has asked for still goes out."""
        self._ended = True
        if self._state == _READING and self._turn is None:
            self._reject_incomplete()
            return True
        return self._state in (_READING, _ANSWERING, _WAITING)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the connection. What was begun for it is done all the same."""
        self._state = _CLOSED
        self._forget()
        self._full = False
        self._wake()
        self._keeping.open.discard(self)
        if self._gone is not None:
            self._gone()
            self._gone = None

    def pause_writing(self) -> None:
        """The client takes its answers slowly: make no more of them, and take no more requests."""
        self._full = True
        if self._state in (_IDLE, _READING):
            self._state = _WAITING
            self._pause_reading()
            self.deadline = self._keeping.now() + self._keeping.times.take

    def resume_writing(self) -> None:
        """Go on."""
        self._full = False
        self._wake()
        if self._state == _WAITING:
            self._resume_processing()

    # Requests

    def _take(self, data: bytes) -> None:
        """Take anything: a part of a request, several of them, or what nobody waits for."""
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
        else:
            self._pause_reading()
            self._count()

    def _process_buffer(self) -> None:
        """Go on with what has come, up to a request that takes time, or until others have their turn."""
        self._turn = None
        for _ in range(MAX_REQUESTS_PER_TURN):
            if self._state != _READING or not (self._take_head() if self._body is None else self._take_body()):
                break
        else:
            if self._state == _READING:
                self._pause_reading()
                self._turn = asyncio.get_running_loop().call_soon(self._process_buffer)
        self._update_state()

    def _update_state(self) -> None:
        """See what is left, and for what the connection waits now."""
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0
            if self._state == _READING and self._body is None:
                self._state = _IDLE
        self._count()
        if self._state > _READING or self._turn is not None:
            return
        if not self._ended:
            self._resume_reading()
        elif self._state == _IDLE:
            self._finish()
        else:
            self._reject_incomplete()

    def _take_head(self) -> bool:
        """Take a whole head out of what has come; whether it was there."""
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
        beginning = self._buffer[at : at + MAX_HEAD + 1]
        if beginning and not self._partial:
            self._partial = True
            self.deadline = self._keeping.now() + self._keeping.times.head
        try:
            check_partial_head(beginning)
        except ProtocolError as problem:
            self._refuse(problem)
        return False

    def _parse_and_start(self, head: bytes) -> None:
        """Answer a request of which the head has come, or wait for its body."""
        try:
            request = self._heads.read(head)
        except ProtocolError as problem:
            self._refuse(problem)
            return
        self._start_request(request)

    def _start_request(self, request: ParsedRequest) -> None:
        if self._keeping.draining:
            request.keep = False
        fields = request.fields
        if fields.length == 0:
            self._respond(request)
            return
        self._state = _READING
        self._request = request
        self._body = ChunkedBody() if fields.length == CHUNKED else SizedBody(fields.length)
        self._body_since = self._keeping.now()
        self._set_body_deadline(self._body)
        if fields.expects and self._at == len(self._buffer):
            self.write(CONTINUE)

    def _take_body(self) -> bool:
        """Take what has come of a body; whether it is whole now."""
        body, request = self._body, self._request
        assert body is not None and request is not None  # noqa: S101, PT018 - they come together
        try:
            self._at = body.take(self._buffer, self._at)
        except ProtocolError as problem:
            problem.path, problem.method = request.path, request.method
            self._refuse(problem)
            return False
        if not body.whole:
            self._set_body_deadline(body)
            return False
        request.body = bytes(body.octets)
        self._body = self._request = None
        self._start(request)
        return True

    def _set_body_deadline(self, body: Body) -> None:
        times = self._keeping.times
        self.deadline = self._body_since + min(times.body, BODY_GRACE + len(body.octets) / MIN_BODY_RATE)

    # Answers

    def _respond(self, request: ParsedRequest) -> None:
        """Answer a request without a body: at once, if it can be."""
        try:
            octets = self._service.handle_fast(request)
        except Exception as error:  # noqa: BLE001 - whatever it was, the others go on
            self._refuse(to_protocol_error(error, request))
            return
        if octets is None:
            self._start(request)
        elif request.keep:
            self.deadline = self._keeping.now() + self._keeping.times.idle  # first, for writing may set another one
            self.write(octets)
        else:
            self.write(octets)
            self._finish()

    def _start(self, request: ParsedRequest) -> None:
        """Have a request answered, for which there is time."""
        request.headers = list(request.headers)  # its own from now on: the next request may have the same fields
        self._state = _ANSWERING
        self.deadline = _NEVER
        self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: ParsedRequest) -> None:
        """Answer a request, then take the next one or end."""
        keep = False
        try:
            keep = await self._answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it was, the others go on
            internal_error(error, token_hex(4))
            self.cut()  # an answer that was begun cannot be taken back, and must not look whole
        except BaseException:
            self.cut()
            raise
        self._task = None
        if self._state != _ANSWERING:
            return
        if keep:
            self._resume_processing()
        else:
            self._finish()

    async def _answer(self, request: ParsedRequest) -> bool:
        """Answer a request; whether the connection goes on."""
        try:
            response = await self._service.answer(request)
            keep = request.keep and not response.close and not self._keeping.draining
            with_body = has_body(response.status, request.method)
            if response.stream is not None and with_body and request.version != "1.1":
                keep = False  # the end of the connection is the end of the body
            head = encode_head(response, version=request.version, keep=keep, seconds=self._keeping.time())
        except Exception as error:  # noqa: BLE001 - whatever it was, the others go on
            self._refuse(to_protocol_error(error, request))
            return False
        if response.stream is not None:
            await send_stream(self, head, response.stream, with_body=with_body, chunked=request.version == "1.1")
        else:
            await send(self, head, response.body if with_body else b"")
        return keep and await self.drain()  # before more is asked for

    async def drain(self) -> bool:
        """Wait until the client has taken what was sent; whether it is still there."""
        if self._full:
            self.deadline = self._keeping.now() + self._keeping.times.take
            self._taken = asyncio.get_running_loop().create_future()
            await self._taken
            self.deadline = _NEVER
        return self._transport is not None and not self._transport.is_closing()

    def _wake(self) -> None:
        """Let go on who waits for the client."""
        if self._taken is not None:
            if not self._taken.done():
                self._taken.set_result(None)
            self._taken = None

    def write(self, octets: bytes) -> None:
        """Send something, unless the client has gone."""
        assert self._transport is not None  # noqa: S101 - it brought the request
        if not self._transport.is_closing():
            self._transport.write(octets)

    # The end

    def _refuse(self, problem: ProtocolError) -> None:
        """Say why something is not answered, and wait a moment: cut at once, that might not be read."""
        assert self._transport is not None  # noqa: S101 - it brought the octets
        if self._state == _CLOSED:
            return
        self._state = _CLOSING
        self._forget()
        self.write(encode_error(self._service, problem, self._keeping.time()))
        self.deadline = self._keeping.now() + self._keeping.times.linger
        if self._ended:
            self._transport.close()
        elif not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._resume_reading()

    def _reject_incomplete(self) -> None:
        """The client has gone in the middle of a request."""
        self._refuse(self._incomplete_error(400, "was not whole when the connection ended"))

    def _incomplete_error(self, status: int, what: str) -> ProtocolError:
        request = self._request
        if request is None:
            beginning = self._buffer[self._at : self._at + MAX_HEAD]
            return ProtocolError(status, f"the head of the request {what}", *guess_target(beginning))
        return ProtocolError(status, f"the body of the request {what}", request.path, request.method)

    def _finish(self) -> None:
        """Close when everything is sent, or when the client has not taken it in time."""
        assert self._transport is not None  # noqa: S101 - it was made
        self._state = _CLOSING
        self._forget()
        self.deadline = self._keeping.now() + self._keeping.times.take
        self._transport.close()

    def on_timeout(self) -> None:
        """The time is up for whatever the connection waits for. That it is too late is said where it can be said."""
        if self._state == _IDLE:
            self._finish()
            return
        self._keeping.limited("slow_connection")
        if self._state == _READING:
            self._refuse(self._incomplete_error(408, "did not come in time"))
        else:
            self.cut()

    def cut(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """End it, unless something has come of a request, or is being answered."""
        if self._state == _IDLE and self._transport is not None:
            self._finish()

    # What waits here

    def _resume_processing(self) -> None:
        self._state = _READING
        self.deadline = self._keeping.now() + self._keeping.times.idle
        self._partial = False
        self._process_buffer()

    def _forget(self) -> None:
        """Let go of what has come and is not answered."""
        self._buffer, self._at = b"", 0
        self._body = self._request = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._count()

    def _count(self) -> None:
        """Have it counted what waits here, if that has changed; together there may be too much of it."""
        kept = len(self._buffer) - self._at + (0 if self._body is None else len(self._body.octets))
        if kept != self._kept:
            self._kept = kept
            self._keeping.note_buffered(self, kept)

    def _pause_reading(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
