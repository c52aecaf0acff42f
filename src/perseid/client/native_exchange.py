"""The native protocol with one server, without I/O: certified responses, sessions, challenges, many operations at once.

An operation is a generator: it yields messages to send and gets frames. `Exchange` runs many of them over a few
connections. The drivers, `native` and `native_async`, move the bytes.

A change whose connection is lost after it was sent may have been made: that is an `UnknownOutcome`, and it is never
repeated by itself. Deployed servers close the connection after each response; then each message has one of its own.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import ValueRef
from perseid.records.site import Site
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import (
    ASSUMED_VERSION,
    LocalProtocolError,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
    common_version,
    default_flags,
)
from perseid.wire.codes import ProtocolError as WireError
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import UNKNOWN_REQUEST_ID, UNKNOWN_SERIAL, Message
from perseid.wire.requests import HandleRequest, ValuesRequest
from perseid.wire.responses import Failure, SiteInfo, decode_response
from perseid.wire.sessions import Identity, Session

from .errors import ClientError, NotFound, ProtocolError, Refused, UnexpectedKey, UnknownOutcome, Unreachable
from .native_operations import Operation, body_of, read_site
from .options import parse_identity, read_key

CONNECTIONS: Final = 4
"""Connections of one client. A server handles the messages of one connection one after another, so several let it
commit changes together; more than a few bring little."""

WINDOW: Final = 64
"""Operations in progress. Below the 200 session counters that servers remember, so that none is too old on arrival."""

REFILL: Final = WINDOW // 2
"""Operations in progress at which more are started, so that they are sent together."""

ANSWERS_IN_HTTP: Final = "the server answers in HTTP, not in the native protocol: use its URL, https://HOST:PORT"
"""Why a connection ends to the port of the HTTP API."""

CLOSED: Final = "the client was closed"
"""Why operations end that run when their client is closed."""

MAX_KEPT: Final = 64 << 20
"""Bytes of the messages of one list that are kept until its end: a million handles. `on_part` keeps none. Other
responses have one message, so that all that are in progress fit in memory, whatever the server sends."""

MAX_CHALLENGES: Final = 2
"""Challenges answered per request: a second one comes if the first verifier is an old server (§13.5)."""

_LISTS: Final = frozenset((OpCode.LIST_HANDLES, OpCode.LIST_HOMED_NAS))
_SESSIONS_SINCE: Final = 1  # minor version
_ENCRYPTS_PRIVATE_SINCE: Final = 8  # newer servers encrypt private values in a session by themselves
_DEMANDED_FLAGS: Final = OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST | OpFlag.KEEP_CONNECTION
_UNPROVED_CODES: Final = frozenset(
    (
        ResponseCode.INVALID_ADMIN,
        ResponseCode.AUTHENTICATION_NEEDED,
        ResponseCode.AUTHENTICATION_FAILED,
        ResponseCode.INVALID_CREDENTIAL,
        ResponseCode.AUTHEN_TIMEOUT,
        ResponseCode.AUTHEN_ERROR,
    )
)
_FAILURES_OF_SERVERS: Final = frozenset((ResponseCode.ERROR, ResponseCode.SERVER_TOO_BUSY, ResponseCode.SERVER_BACKUP))

T = TypeVar("T")
OnPart: TypeAlias = Callable[[VerifiedResponse], None]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send."""

    request_id: int
    data: bytes = field(repr=False)
    changes: bool
    """Whether it must not be sent again if its outcome is unknown."""


class Lost(Exception):
    """The connection of a message ended before its response."""

    def __init__(self, reason: str, *, sent: bool, reconnect: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        """Whether the server may have received the message."""
        self.reconnect = reconnect
        """Whether another connection may work: this one did before."""


class SessionEnded(Exception):
    """The server no longer knows the session; the request was not executed."""


Flow: TypeAlias = Generator[Outgoing | None, Frame, T]
"""An operation in progress: it yields a message to send, or None for the next frame of the same response."""


class NativeProtocol:
    """What a client knows about one server: its key, its version, and the session."""

    def __init__(
        self,
        identity: str | ValueRef | None,
        key: PrivateKey | Path | bytes | str | None,
        *,
        server_key: PublicKey | None = None,
        sessions: bool = True,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        if (identity is None) != (key is None):
            raise ValueError("an identity needs its key, and a key its identity")
        reference = None if identity is None else parse_identity(identity)
        if isinstance(key, Path):
            key = read_key(key)
        self.identity = None if reference is None else Identity(reference.handle.encode(), reference.index)
        self._proof: PrivateKey | bytes = key.encode() if isinstance(key, str) else key or b""
        self.server_key = server_key
        self._sessions = sessions
        self.site = None
        self.session: Session | None = None
        self._clock = clock
        self._client = Client(random)

    @property
    def is_ready(self) -> bool:
        """Whether operations can run side by side: before, the first one must prove the identity of the session."""
        if self.site is None:
            return False
        return not self._uses_sessions or (self.session is not None and self.session.proved is not None)

    @property
    def site(self) -> Site | None:
        """What the server says about its site; None until it was asked."""
        return self._site

    @site.setter
    def site(self, site: Site | None) -> None:
        self._site = site
        self._version = ASSUMED_VERSION if site is None else common_version(Version(*site.protocol_version))
        self._uses_sessions = self._sessions and self.identity is not None and self._version.at_least(_SESSIONS_SINCE)

    def perform(self, operation: Operation[T]) -> Flow[T]:
        """Perform an operation; raises `ClientError`, or `SessionEnded` if it must be performed again."""
        if self.site is None:
            yield from self._identify_server()
        if self._uses_sessions and self.session is None:
            yield from self._begin_session()
        session = self.session
        request = self._request(operation)
        responses = yield from self._ask_authenticated(
            request, session, changes=operation.changes, on_part=operation.on_part
        )
        code = responses[0].code
        if session is not None and code >= ResponseCode.SESSION_TIMEOUT:
            if self.session is session:
                self.session = None
            raise SessionEnded
        if code is not ResponseCode.SUCCESS:
            raise refusal(responses[0])
        return operation.read(responses)

    def _request(self, operation: Operation[T]) -> Message:
        flags = _combine_flags(operation.opcode, _DEMANDED_FLAGS | operation.flags, operation.without)
        body = operation.body
        if isinstance(body, ValuesRequest) and not all(value.is_public for value in body.values):
            if self.session is None:
                raise ProtocolError(
                    "Private values are sent only in a session, where they are encrypted", advice="Authenticate"
                )
            flags |= OpFlag.ENCRYPT
        elif (
            self.session is not None
            and OpFlag.PUBLIC_ONLY in operation.without
            and not self._version.at_least(_ENCRYPTS_PRIVATE_SINCE)
        ):
            flags |= OpFlag.ENCRYPT
        return self._client.request(
            operation.opcode,
            body,
            self._clock(),
            flags=flags,
            peer_version=self._version,
            site_serial=UNKNOWN_SERIAL if self.site is None else self.site.serial,
            session=self.session,
        )

    def _ask_authenticated(
        self, request: Message, session: Session | None, *, changes: bool, on_part: OnPart | None
    ) -> Flow[list[VerifiedResponse]]:
        """Send a request, and answer the challenge to it."""
        responses = yield from self._ask(request, session, changes=changes, on_part=on_part)
        for _ in range(MAX_CHALLENGES):
            challenge = responses[0]
            if challenge.code is not ResponseCode.AUTHENTICATION_NEEDED or self.identity is None:
                break
            try:
                answer = self._client.answer_challenge(challenge, request, self.identity, self._proof, self._clock())
            except WireError as error:
                raise _protocol_error(error, changes=False) from error
            responses = yield from self._ask(answer, session, changes=changes, about=request, on_part=on_part)
            if session is not None and responses[0].code not in _UNPROVED_CODES:
                session.proved = self.identity
        return responses

    def _identify_server(self) -> Flow[None]:
        """Read the site information, and check that it is signed by the pinned key, or by a key that it names."""
        flags = default_flags(OpCode.GET_SITE_INFO) | _DEMANDED_FLAGS
        request = self._client.request(OpCode.GET_SITE_INFO, HandleRequest(), self._clock(), flags=flags)
        frame = yield from self._send(request, None, changes=False)
        now = self._clock()
        try:
            message = Message.from_bytes(frame.envelope, frame.payload, int(now))
            _, body = decode_response(message, int(now))
        except InvalidData as error:
            raise ProtocolError(f"The site information of the server is invalid: {error}") from error
        named = [server.key for server in read_site(body).servers] if isinstance(body, SiteInfo) else []
        keys = [key for key in ([self.server_key] if self.server_key else named) if key is not None]
        failure: WireError | None = None
        for key in keys:
            try:
                response = self._client.read(frame, request, now, server_key=key)
            except WireError as error:
                failure = error
                continue
            if response.code is not ResponseCode.SUCCESS:
                raise refusal(response)
            self.server_key, self.site = key, read_site(body_of(response, SiteInfo))
            return
        if self.server_key is not None:
            raise UnexpectedKey(
                "The server does not have the expected key",
                advice="Check the address; if the server has a new key, confirm that key and pin it",
            ) from failure
        if isinstance(body, Failure):
            raise _refusal_of(message.header.response_code, body.sentence)
        raise ProtocolError("The site information is not signed by a key of the server") from failure

    def _begin_session(self) -> Flow[None]:
        pending = self._client.begin_session(
            self.identity,
            self._clock(),
            peer_version=self._version,
            flags=default_flags(OpCode.SESSION_SETUP) | _DEMANDED_FLAGS,
        )
        (response,) = yield from self._ask(pending.request, None, changes=False)
        if response.code is not ResponseCode.SUCCESS:
            raise refusal(response)
        try:
            self.session = self._client.finish_session(pending, response)
        except WireError as error:
            raise _protocol_error(error, changes=False) from error

    def _ask(
        self,
        request: Message,
        session: Session | None,
        *,
        changes: bool,
        about: Message | None = None,
        on_part: OnPart | None = None,
    ) -> Flow[list[VerifiedResponse]]:
        """Send a request, and verify all messages of its response; `on_part` as in `Operation`."""
        frame = yield from self._send(request, session, changes=changes, repeat=about is None)
        responses: list[VerifiedResponse] = []
        kept = 0
        while True:
            try:
                response = self._client.read(
                    frame, request, self._clock(), server_key=self.server_key, session=session, about=about
                )
            except WireError as error:
                raise _protocol_error(error, changes=changes) from error
            if on_part is not None and response.code is ResponseCode.SUCCESS:
                responses.clear()
                kept = 0
                on_part(response)
            responses.append(response)
            kept += len(frame.payload)
            if kept > MAX_KEPT:
                raise ProtocolError(f"The response has more than {MAX_KEPT >> 20} MiB")
            if not response.more_follows:
                return responses
            if (about or request).header.opcode not in _LISTS:
                raise ProtocolError("The response has several messages, which only a list can have")
            try:
                following = yield None
            except Lost as lost:
                raise Unreachable(f"The connection ended in the middle of the response: {lost.reason}") from None
            frame = following

    def _send(self, request: Message, session: Session | None, *, changes: bool, repeat: bool = True) -> Flow[Frame]:
        """Send a request, once more if a kept connection turns out to be closed and that is harmless."""
        message = request
        while True:
            packed = self._client.pack(message, session, check_values=False)  # `_request` has looked at them
            data = packed.envelope.to_bytes() + packed.payload
            try:
                return (yield Outgoing(message.envelope.request_id, data, changes))
            except Lost as lost:
                if changes and lost.sent:
                    raise UnknownOutcome(
                        f"The change was sent, but its response did not arrive: {lost.reason}",
                        advice="It may have been made: resolve the handle before you repeat it",
                    ) from None
                if not (lost.reconnect and repeat):
                    raise Unreachable(lost.reason) from None
                repeat = False
                message = self._client.repeat(request, session)


@lru_cache(64)
def _combine_flags(opcode: OpCode, flags: OpFlag, without: OpFlag) -> OpFlag:
    return (default_flags(opcode) | flags) & ~without


def _protocol_error(error: WireError, *, changes: bool) -> ClientError:
    if error.code in _FAILURES_OF_SERVERS and isinstance(error, RemoteProtocolError):
        return _refusal_of(error.code, error.message)
    code = 0 if error.code == ResponseCode.PROTOCOL_ERROR else int(error.code)
    advice = "The change may have been made: resolve the handle before you repeat it" if changes else ""
    return ProtocolError(f"Invalid response: {error.message}", code=code, advice=advice)


def refusal(response: VerifiedResponse) -> ClientError:
    """Return the error for a response that is not a success."""
    text = response.body.sentence if isinstance(response.body, Failure) else ""
    return _refusal_of(response.code, text)


def _refusal_of(code: ResponseCode, text: str) -> ClientError:
    """The error for a response code."""
    from perseid.schema.problems import PROBLEM_TYPES, slug_of_code  # noqa: PLC0415 - errors only; it loads msgspec

    slug = slug_of_code(int(code))
    kind: type[ClientError] = Refused
    if code in (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND):
        kind = NotFound
    elif code in _FAILURES_OF_SERVERS:
        kind = ClientError
    detail = text.rstrip(".") or f"{PROBLEM_TYPES[slug].title}: the server answered with code {int(code)}"
    return kind(detail, code=int(code), problem_type=slug)


# Operations side by side, without I/O


@dataclass(slots=True, eq=False)
class Connection:
    """A connection and the messages that wait for a response on it."""

    waiting: "dict[int, _Task]" = field(default_factory=dict)
    """By request id."""
    queue: list[Outgoing] = field(default_factory=list)
    """Messages that are not sent yet."""
    reader: FrameReader = field(default_factory=FrameReader)
    answered: int = 0
    """Number of responses."""
    is_open: bool = False
    progress: float = 0.0
    """When something last arrived or was sent on an idle connection."""
    channel: Any = None
    """The socket or transport of the driver."""

    def take(self) -> bytes:
        """What is to be sent; from now on it may have arrived."""
        data = b"".join([message.data for message in self.queue])
        self.queue.clear()
        return data


@dataclass(slots=True, eq=False)
class _Task:
    operation: Operation[Any]
    flow: Flow[Any]
    done: Callable[[Any], None]
    """Called with the result or a `ClientError`."""
    is_repeated: bool = False


class Exchange:
    """The operations of one client, side by side over its connections, without I/O.

    A driver provides three functions: `connect` opens a connection and then calls `opened` or `lost`, `write` sends
    what a connection has queued, and `close` closes it.
    """

    def __init__(
        self,
        protocol: NativeProtocol,
        *,
        connect: Callable[[Connection], None],
        write: Callable[[Connection], None],
        close: Callable[[Connection], None],
        connections: int = CONNECTIONS,
    ) -> None:
        self.protocol = protocol
        self._connect, self._write, self._close = connect, write, close
        self._limit = connections
        self.connections: list[Connection] = []
        self._waiting: deque[_Task] = deque()
        self._running: set[_Task] = set()
        self._keeps: bool | None = None  # whether the server keeps connections open; None until it has shown that
        self._dirty: set[Connection] = set()
        self._is_pumping = False
        self._is_closed = False

    @property
    def in_progress(self) -> int:
        """Number of operations that are not done."""
        return len(self._waiting) + len(self._running)

    def submit(self, operation: Operation[Any], done: Callable[[Any], None]) -> None:
        """Perform an operation; `done` gets its result or the `ClientError`."""
        self.submit_many(((operation, done),))

    def submit_many(self, wanted: Iterable[tuple[Operation[Any], Callable[[Any], None]]]) -> None:
        """Perform operations that are sent together."""
        for operation, done in wanted:
            if self._is_closed:
                done(Unreachable(CLOSED))
            else:
                self._waiting.append(_Task(operation, self.protocol.perform(operation), done))
        self.pump()

    def pump(self) -> None:
        """Start what can be started, and send what is queued."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._waiting and len(self._running) < (WINDOW if self.protocol.is_ready else 1):
                task = self._waiting.popleft()
                self._running.add(task)
                self._advance(task, partial(next, task.flow))
            while self._dirty:
                connection = self._dirty.pop()
                if connection.is_open and connection.queue:
                    self._write(connection)
        finally:
            self._is_pumping = False

    def opened(self, connection: Connection) -> None:
        """A connection is open: send what waits for it."""
        connection.is_open = True
        self._dirty.add(connection)
        self.pump()

    def received(self, connection: Connection, data: bytes, now: float) -> None:
        """Handle received data."""
        connection.progress = now
        if not connection.answered and connection.reader.is_idle and data.startswith(b"HTTP/"):
            self.lost(connection, ANSWERS_IN_HTTP)
            return
        connection.reader.feed(data)
        try:
            for frame in connection.reader.frames():
                self._dispatch(connection, frame)
                if connection not in self.connections:
                    break
        except WireError as error:  # no frame; what a frame contains is the task's
            self.lost(connection, f"the server sent invalid data: {error.message}")
        self.pump()

    def lost(self, connection: Connection, reason: str, *, is_final: bool = False) -> None:
        """A connection has ended, or could not be opened; `is_final`: its operations must not use another one."""
        self._drop(connection)
        if connection.waiting and connection.answered and self._keeps is None:
            self._keeps = False
        unsent = {message.request_id for message in connection.queue}
        waiting, connection.waiting = connection.waiting, {}
        for request_id, task in waiting.items():
            error = Lost(
                reason,
                sent=connection.is_open and request_id not in unsent,
                reconnect=connection.answered > 0 and not is_final,
            )
            self._advance(task, partial(task.flow.throw, error))
        self.pump()

    def expire(self, oldest: float, reason: str) -> None:
        """Give up connections where nothing has arrived since a time."""
        for connection in [each for each in self.connections if each.waiting and each.progress < oldest]:
            self.lost(connection, reason)

    def cancel(self, last: Operation[Any] | None = None, done: Callable[[Any], None] = lambda _: None) -> None:
        """End all operations with an error, and accept no others: what was sent may still be done.

        Idle connections stay open. `last` is an operation that is performed nevertheless.
        """
        self._is_closed = True
        waiting, self._waiting = self._waiting, deque()
        for connection in [each for each in self.connections if each.waiting]:
            self.lost(connection, CLOSED, is_final=True)
        for task in waiting:
            self._finish(task, Unreachable(CLOSED))
        if last is not None:
            self._waiting.append(_Task(last, self.protocol.perform(last), done))
            self.pump()

    def close(self) -> None:
        """End all operations with an error, and close all connections."""
        self.cancel()
        for connection in list(self.connections):
            self.lost(connection, CLOSED)

    def _dispatch(self, connection: Connection, frame: Frame) -> None:
        request_id = frame.envelope.request_id
        if request_id == UNKNOWN_REQUEST_ID and connection.waiting:  # the server could not read the oldest message
            request_id = next(iter(connection.waiting))
        task = connection.waiting.pop(request_id, None)
        if task is None:
            self.lost(connection, "the server answered a request that was not sent")
            return
        connection.answered += 1
        if connection.answered > 1:
            self._keeps = True
        if self._advance(task, partial(task.flow.send, frame)):
            connection.waiting[request_id] = task
            connection.answered -= 1
        elif not self._reuses(connection) and not connection.waiting:
            self._drop(connection)

    def _advance(self, task: _Task, step: Callable[[], Outgoing | None]) -> bool:
        """Continue a task; return whether it waits for another frame of the same response."""
        try:
            message = step()
        except StopIteration as end:
            self._finish(task, end.value)
        except SessionEnded:
            if task.is_repeated:
                reason = "The server ended the session, and the one after it"
                self._finish(task, Refused(reason, code=int(ResponseCode.SESSION_TIMEOUT)))
            else:
                task.is_repeated = True
                task.flow = self.protocol.perform(task.operation)
                self._running.discard(task)
                self._waiting.appendleft(task)
        except ClientError as error:
            self._finish(task, error)
        except (LocalProtocolError, RecordMisuse) as error:  # a value that is too large, an index out of range …
            self._finish(task, ClientError(f"The request cannot be sent: {error}", problem_type="invalid-value"))
        except (WireError, InvalidData) as error:
            self._finish(task, ProtocolError(f"The server sent invalid data: {error}"))
        except BaseException:  # of `on_part`: the operation has ended, and its caller gets this
            self._running.discard(task)
            raise
        else:
            if message is not None:
                self._queue(task, message)
            return message is None
        return False

    def _queue(self, task: _Task, message: Outgoing) -> None:
        """Queue a message of a task on a connection."""
        connection = self._choose(message)
        if not connection.waiting:
            connection.progress = time.monotonic()
        connection.waiting[message.request_id] = task
        connection.queue.append(message)
        self._dirty.add(connection)

    def _finish(self, task: _Task, result: object) -> None:
        self._running.discard(task)
        task.done(result)

    def _reuses(self, connection: Connection) -> bool:
        return self._keeps is not False and connection in self.connections

    def _choose(self, message: Outgoing) -> Connection:
        """The connection for a message: the least busy one, or a new one."""
        limit = self._limit if self._keeps else 1
        usable = self.connections if self._keeps or (self._keeps is None and not message.changes) else []
        best = min(usable, key=lambda each: len(each.waiting), default=None)
        if best is not None and (not best.waiting or len(self.connections) >= limit):
            return best
        connection = Connection()
        self.connections.append(connection)
        self._connect(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self._close(connection)
