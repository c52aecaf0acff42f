"""The ledger in a process that does not write it: it reads by itself, and appends through the writer process.

A request is sent over the writer's Unix socket with an id that nothing else has, and its outcome comes back with the
same id. If the connection is lost, the writer is being restarted: the process connects again and sends what has no
outcome yet, with the same ids. The new writer knows the replies of the old one that may not have arrived
(`writer.Journal`), so each request is executed once. Each request says which replies have arrived: all before the
client's oldest request without an outcome.

Threads use `append`, each over a connection of its own. An event loop uses `submit`; its requests share one connection
and are answered in any order.
"""

import asyncio
import itertools
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Final, cast, get_args
from weakref import WeakSet

import msgspec

from perseid.ledger.errors import Contention, LedgerError, OutcomeUnknown, TooBusy, WriteProblem
from perseid.ledger.ledger import RETRY_DELAY, Ledger
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Append, Outcome, Request
from perseid.ledger.log.writer import INTERVAL, MAX_WAITING, MAX_WAITING_BYTES
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.registry.codec import MAX_MESSAGE, InvalidMessage, OtherVersion, decode_outcome, encode_request
from perseid.server.state.runtime import WRITER_LINK

SOCKET_NAME: Final = "writer"
"""The writer's socket in the runtime directory."""

STATE_NAME: Final = "writer.state"
"""Whether the writer can write, in the runtime directory."""

FRAME: Final = Struct(">I16s16s")
"""What comes before each message: its length, the id of the request, and the id of its client's oldest request without
an outcome."""

CLIENT_LENGTH: Final = 8
"""Bytes of an id that name the client, which is one connection; the others are its number."""

RECONNECT_SECONDS: Final = 10.0
"""Seconds to wait for a writer that is being restarted, which takes less than one, before a request is refused."""

LOST_SECONDS: Final = 30.0
"""The same for a request that was sent, whose outcome only the next writer knows: longer than it takes to notice that
the process that forks it is stuck, and to replace both."""

RECONNECT_INTERVAL: Final = 0.02
"""Seconds between two attempts to connect."""

OUTCOME_SECONDS: Final = 90.0
"""Seconds to wait for an outcome: longer than the writer tries to reach a database."""

MAX_UNSENT: Final = 16
"""Requests of one iteration of an event loop that are sent together: the writer is woken once, and commits them
together. If there are more, it starts with these while the loop decides the others."""

STATE_SECONDS: Final = 0.5
"""Seconds for which the writer's state is cached. The writer checks it as often."""

_READ_BYTES: Final = 256 << 10
_WRITE_BYTES: Final = 64 << 10
_UNKNOWN = "the outcome is unknown; check whether the change was made before you retry"
_LOST = f"the connection to the writer was lost, and {_UNKNOWN}"


def find_writer(directory: Path) -> "Callable[[Log, Path], RemoteLedger] | None":
    """How to open the ledger of an installation through the writer of its running server; None if there is none."""
    try:
        path = (directory / WRITER_LINK).readlink()
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.connect(str(path))
    except OSError:
        return None
    return lambda log, answers: RemoteLedger(log, AnswersReader(answers), path.parent)


class WriterState(msgspec.Struct, frozen=True):
    """Why the writer cannot write; an empty kind if it can."""

    kind: str = ""
    message: str = ""
    erased: int = 0
    """The entry up to which redacted data is gone from every file."""

    @classmethod
    def of(cls, problem: Exception | None, erased: int = 0) -> "WriterState":
        """The state for a problem of the ledger."""
        kind, message = ("", "") if problem is None else (type(problem).__name__, str(problem))
        return cls(kind, message, erased)

    @property
    def problem(self) -> WriteProblem | None:
        """The problem of the ledger."""
        kinds: dict[str, type[WriteProblem]] = {kind.__name__: kind for kind in get_args(WriteProblem)}
        return kinds[self.kind](self.message) if self.kind in kinds else None


class FrameReader:
    """Splits a stream of bytes into messages with their ids."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.oldest = bytes(2 * CLIENT_LENGTH)
        """The client's oldest request without an outcome, as the last message says."""

    def feed(self, data: bytes) -> None:
        """Add bytes that were received."""
        self._data += data

    def next(self) -> tuple[bytes, bytes] | None:
        """Take the next (id, message); None if it is not complete. Raises `ValueError` if it is too long."""
        if len(self._data) < FRAME.size:
            return None
        length, request_id, oldest = FRAME.unpack_from(self._data)
        if length > MAX_MESSAGE:
            raise ValueError(f"a message of {length:,} bytes is too long")
        end = FRAME.size + length
        if len(self._data) < end:
            return None
        message = bytes(memoryview(self._data)[FRAME.size : end])
        del self._data[:end]
        self.oldest = oldest
        return request_id, message


def frame(request_id: bytes, message: bytes, oldest: bytes = b"") -> bytes:
    """Put the length and the ids before a message."""
    return FRAME.pack(len(message), request_id, oldest) + message


def _encode(request: Request) -> bytes:
    """Encode a request, unless it was prepared."""
    message = request.message if isinstance(request, Append) else None
    return encode_request(request) if message is None else message


def _decode_reply(reply: bytes) -> Outcome:
    """Decode the reply to a request; raises an error of the ledger."""
    try:
        return decode_outcome(reply)
    except OtherVersion as problem:  # so the writer cannot have read the request either
        message = f"this process and the writer are of different releases: {problem}. Nothing was written"
        raise LedgerError(f"{message}; restart the server") from problem
    except InvalidMessage as problem:
        raise OutcomeUnknown(f"the reply of the writer is invalid ({problem}), and {_UNKNOWN}") from problem


def _nothing() -> None:
    """Do nothing."""


def _request_ids() -> Iterator[bytes]:
    """Ids for the requests of one connection, in ascending order."""
    client = secrets.token_bytes(CLIENT_LENGTH)
    return (client + number.to_bytes(8, "big") for number in itertools.count(1))


class RemoteLedger(Ledger):
    """A ledger that the writer process writes."""

    def __init__(self, log: Log, answers: AnswersReader, runtime: Path) -> None:
        self.log = log
        self.answers = cast("Answers", answers)  # it is only read
        self._runtime = runtime
        self._threads = threading.local()
        self._connections: WeakSet[_ThreadConnection] = WeakSet()  # each lives as long as its thread
        self._lock = threading.Lock()
        self._in_loop: _LoopConnection | None = None
        self._stop = threading.Event()
        self._state = WriterState()
        self._state_until = 0.0

    def close(self) -> None:
        """Release everything."""
        self.disconnect()
        with self._lock:
            for connection in self._connections:
                connection.close()
        self.answers.close()
        self.log.store.close()

    def disconnect(self) -> None:
        """Wait for the writer no more, before the event loop is closed; what has no outcome fails."""
        self._stop.set()
        with self._lock:
            for connection in self._connections:
                connection.abort()
        if self._in_loop is not None:
            self._in_loop.close()
            self._in_loop = None

    @property
    def ready(self) -> bool:
        """Whether the answers view is up to date."""
        return self.answers.ready

    @property
    def write_problem(self) -> WriteProblem | None:
        """Why changes are refused, as the writer says; None if they are accepted."""
        now = monotonic()
        if now >= self._state_until:
            self._state_until = now + STATE_SECONDS
            self._load_state()
        return self._state.problem

    def _load_state(self) -> WriterState:
        with suppress(OSError, msgspec.MsgspecError):
            self._state = msgspec.msgpack.decode((self._runtime / STATE_NAME).read_bytes(), type=WriterState)
        return self._state

    # Writing

    def prepare(self, request: Append) -> Append:
        """Encode a request, so that the writer does not wait for that after the commit before it."""
        return replace(request, message=encode_request(request))

    def append(self, *requests: Request, meanwhile: Callable[[], None] = lambda: None) -> list[Outcome]:
        """Send requests and wait for all of them. `meanwhile` is called while they are committed; it never raises."""
        connection: _ThreadConnection | None = getattr(self._threads, "connection", None)
        if connection is None:
            connection = self._threads.connection = _ThreadConnection(
                self._runtime / SOCKET_NAME, self._unreachable, self._stop
            )
            with self._lock:
                self._connections.add(connection)
        self._check_stalled()
        messages = {next(connection.ids): _encode(request) for request in requests}
        replies = connection.exchange(messages, meanwhile)
        return [_decode_reply(replies[request_id]) for request_id in messages]

    def submit(self, *requests: Request) -> "list[Future[Outcome]]":
        """Send requests from the event loop. The futures belong to the loop."""
        self._check_stalled()
        loop = asyncio.get_running_loop()
        if self._in_loop is None or self._in_loop.loop is not loop:
            self._in_loop = _LoopConnection(self._runtime / SOCKET_NAME, loop, self._unreachable)
        futures = [self._in_loop.submit(encode_request(request)) for request in requests]
        return cast("list[Future[Outcome]]", futures)

    def load(self, *_: object) -> "None":  # type: ignore[override]
        """Refuse: a load locks the whole ledger."""
        raise LedgerError("large imports need the ledger for themselves; stop the server first")

    def checkpoint(self) -> bool:
        """Wait until the writer's next checkpoint covers everything appended so far; False if it does not in time."""
        with self.open_reader() as reader:
            size = reader.size
        deadline = monotonic() + 4 * RETRY_DELAY
        while monotonic() < deadline and not self._stop.wait(INTERVAL):
            with self.open_reader() as reader:
                if (reader.checkpoint_size() or 0) >= size:
                    return True
        return False

    def wait_until_erased(self, timeout: float) -> bool:
        """Wait until the writer says that redacted data is gone from every file; False after the timeout."""
        with self.open_reader() as reader:
            size = reader.size
        deadline = monotonic() + timeout
        while self._load_state().erased < size:
            if monotonic() > deadline:
                return False
            self._stop.wait(INTERVAL)
        return True

    def _check_stalled(self) -> None:
        """Refuse a request that would wait behind a commit for which the database keeps the writer waiting."""
        if isinstance(problem := self.write_problem, Contention):
            raise problem

    def _unreachable(self) -> LedgerError:
        """The error for a request that was not sent."""
        return self.write_problem or TooBusy("the writer is not running. Nothing was written; retry shortly")

    def _discard_answers(self) -> None:
        """Leave a corrupt view to the writer, which checks it."""


class _ThreadConnection:
    """The connection of one thread, which waits for each outcome."""

    def __init__(self, path: Path, unreachable: Callable[[], LedgerError], stop: threading.Event) -> None:
        self.ids = _request_ids()
        self._path = path
        self._unreachable = unreachable
        self._stop = stop
        self._socket: socket.socket | None = None
        self._reader = FrameReader()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def abort(self) -> None:
        """Wake the thread that waits for an outcome."""
        if (connection := self._socket) is not None:  # that thread may close it meanwhile
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self.close()

    def exchange(self, messages: dict[bytes, bytes], meanwhile: Callable[[], None]) -> dict[bytes, bytes]:
        """Send messages and return the replies, by id; `meanwhile` is called before waiting for them.

        Raises an error of the ledger.
        """
        replies: dict[bytes, bytes] = {}
        lost_at: float | None = None
        is_sent = False
        while True:
            try:
                connection = self._connect()
                is_sent = True
                waiting = [(key, message) for key, message in messages.items() if key not in replies]
                connection.sendall(b"".join(frame(key, message, waiting[0][0]) for key, message in waiting))
                meanwhile()
                meanwhile = _nothing
                for key, reply in self._receive(connection):
                    if key in messages:
                        replies[key] = reply
                    if len(replies) == len(messages):
                        return replies
            except OSError as error:
                self.close()
                now = monotonic()
                lost_at = lost_at or now
                unreachable = self._unreachable()
                is_known = not is_sent and not isinstance(unreachable, TooBusy)  # waiting does not help
                patience = LOST_SECONDS if is_sent else RECONNECT_SECONDS
                is_over = now > lost_at + patience or isinstance(error, TimeoutError) or self._stop.is_set()
                if is_known or is_over:
                    raise (OutcomeUnknown(_LOST) if is_sent else unreachable) from error
                self._stop.wait(RECONNECT_INTERVAL)

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._reader = FrameReader()
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(OUTCOME_SECONDS)
            self._socket.connect(str(self._path))
        return self._socket

    def _receive(self, connection: socket.socket) -> Iterator[tuple[bytes, bytes]]:
        while True:
            while (received := self._reader.next()) is not None:
                yield received
            data = connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the writer has closed the connection")
            self._reader.feed(data)


class _LoopConnection(asyncio.Protocol):
    """The connection of an event loop, with any number of requests under way."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, unreachable: Callable[[], LedgerError]) -> None:
        self.loop = loop
        self._ids = _request_ids()
        self._path = path
        self._unreachable = unreachable
        self._transport: asyncio.WriteTransport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._attempts = 0  # to connect, since the last reply
        self._is_closed = False
        self._is_paused = False  # the transport has enough to send
        self._reader = FrameReader()
        self._waiting: dict[bytes, _Sent] = {}
        self._bytes = 0  # of the messages that wait
        self._unsent: deque[bytes] = deque()
        self._is_flushing = False  # the loop will call `_flush`

    def close(self) -> None:
        """Close the connection for good; what has no outcome fails."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._fail()

    def submit(self, message: bytes) -> "asyncio.Future[Outcome]":
        """Send a message; the future gets its outcome, or an error of the ledger."""
        if len(self._waiting) >= MAX_WAITING or self._bytes + len(message) > MAX_WAITING_BYTES:
            raise TooBusy("too many changes are queued. Nothing was written; retry later")
        request_id = next(self._ids)
        sent = self._waiting[request_id] = _Sent(message, self.loop.create_future())
        self._bytes += len(message)
        self._unsent.append(request_id)
        if self._transport is not None:
            if len(self._unsent) >= MAX_UNSENT:
                self._flush()
            elif not self._is_flushing:
                self._is_flushing = True
                self.loop.call_soon(self._flush)
        elif self._connecting is None:
            self._connecting = self.loop.create_task(self._connect())
        return sent.future

    def _flush(self) -> None:
        """Send what waits, except canceled requests, until the transport has enough."""
        self._is_flushing = False
        while self._transport is not None and self._unsent and not self._is_paused:
            data = bytearray()
            oldest = next(iter(self._waiting))
            while self._unsent and len(data) < _WRITE_BYTES:
                request_id = self._unsent.popleft()
                sent = self._waiting[request_id]
                if sent.future.done():
                    self._remove(request_id)
                else:
                    sent.was_sent = True
                    data += frame(request_id, sent.message, oldest)
            self._transport.write(data)

    def _remove(self, request_id: bytes) -> "_Sent | None":
        sent = self._waiting.pop(request_id, None)
        self._bytes -= 0 if sent is None else len(sent.message)
        return sent

    async def _connect(self) -> None:
        """Connect, and send everything that has no outcome; fail it if that takes too long."""
        while self._transport is None:
            if self._attempts:
                await asyncio.sleep(RECONNECT_INTERVAL)
            self._attempts += 1
            seconds = self._attempts * RECONNECT_INTERVAL
            if seconds > RECONNECT_SECONDS:
                self._fail(including_sent=seconds > LOST_SECONDS)
            if not self._waiting:
                break
            try:
                await self.loop.create_unix_connection(lambda: self, str(self._path))
            except OSError:
                is_sent = any(sent.was_sent for sent in self._waiting.values())
                if not is_sent and not isinstance(self._unreachable(), TooBusy):  # waiting does not help
                    self._fail()
                    break
        self._connecting = None

    def _fail(self, *, including_sent: bool = True) -> None:
        self._unsent.clear()
        for request_id, sent in list(self._waiting.items()):
            if sent.was_sent and not including_sent:
                continue
            self._remove(request_id)
            if not sent.future.done():
                sent.future.set_exception(OutcomeUnknown(_LOST) if sent.was_sent else self._unreachable())
        if not self._waiting:
            self._attempts = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._reader = cast("asyncio.WriteTransport", transport), FrameReader()
        self._is_paused, self._unsent = False, deque(self._waiting)
        self._flush()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._waiting and self._connecting is None and not self._is_closed:
            self._connecting = self.loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (received := self._reader.next()) is not None:
            self._attempts = 0
            sent = self._remove(received[0])
            if sent is None or sent.future.done():
                continue
            try:
                sent.future.set_result(_decode_reply(received[1]))
            except Exception as error:  # noqa: BLE001 - the error of the commit
                sent.future.set_exception(error)


@dataclass(slots=True)
class _Sent:
    """A request without an outcome."""

    message: bytes
    future: "asyncio.Future[Outcome]"
    was_sent: bool = False
