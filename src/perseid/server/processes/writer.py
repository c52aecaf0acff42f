"""Writer process: appends for all other processes, signs checkpoints and maintains the views.

It reads requests from a Unix socket in the runtime directory and commits everything that waits in one transaction; what
arrives meanwhile is the next group. So one thread does it all: reading, committing and replying in turn.

Killing it loses no acknowledged change, and no request is executed twice: before each commit, the replies are written
to a journal in the runtime directory, in memory, and kept until the clients have confirmed them. The next writer
replies from there to the clients that connect again; requests of a commit that has not happened are executed now.
"""

import errno
import logging
import math
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Final, Self

import msgspec

from perseid import __version__
from perseid.ledger.errors import Contention, LedgerError, StorageFull
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Outcome, Request
from perseid.ledger.store.node_reports import REPORT_SECONDS, remove_report, save_report
from perseid.records.errors import InvalidData
from perseid.registry.codec import MAX_MESSAGE, InvalidMessage, decode_request, encode_outcome
from perseid.registry.installation.installation import DatabaseUnreachable, Installation
from perseid.registry.installation.settings import Config, InvalidConfig
from perseid.registry.registry import Registry
from perseid.server.observe import logs
from perseid.server.state.jobs import read_running
from perseid.server.state.runtime import WRITER_LINK

from . import unblock_signals
from .child import BEAT_SECONDS, START_SECONDS, ChildOptions, SupervisorLink, parse_options
from .remote_ledger import CLIENT_LENGTH, SOCKET_NAME, STATE_NAME, FrameReader, WriterState, frame

JOURNAL_NAME: Final = "writer.journal"
"""The replies that clients have not confirmed, in the runtime directory."""

MAX_REPLY_BYTES: Final = 16 << 20
"""Bytes of unconfirmed replies that are kept: far more than processes leave unread. One that has ended confirms
nothing, so the replies to the client that has been silent for longest are dropped first."""

JOURNAL_BYTES: Final = 4 << 20
"""Bytes that are appended to the journal before it is written again without what is confirmed: some 20,000 replies."""

MAX_GROUP: Final = 2_000
"""Requests in one commit: a fifth of a second of work, for which the others wait."""

MAX_GROUP_BYTES: Final = 32 << 20
"""Bytes of requests in one commit."""

MAX_PER_CONNECTION: Final = 500
"""Requests of one connection in a commit, so that one busy process does not delay the others."""

BACKLOG: Final = 128
"""Connections that wait to be accepted: a few for each process of the server, and local commands."""

MAX_STEP_SECONDS: Final = 90.0
"""Seconds without progress after which the writer is stuck: longer than it tries to reach a database."""

ORPHAN_SECONDS: Final = 2.0
"""Seconds to write for the workers after the supervisor has ended: more than they take to finish started work."""

TICK_SECONDS: Final = 0.5
"""Seconds between two looks at the state of the ledger: less than the second for which `redact` waits at a time."""

_REPORT_END_SECONDS: Final = 2.0  # to remove the report of a node that stops, if the database responds

_READ_BYTES: Final = 256 << 10
_STARTUP_ERRORS = (InvalidConfig, InvalidData, LedgerError, OSError)
_CREDENTIALS = Struct("3i")  # process, user, group
_JOURNAL = Struct(">II")  # length and checksum
_logger = logging.getLogger("perseid.server.processes.writer")  # run as a program, its __name__ is __main__


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    token: bytes
    """Of the commit; empty if these replies are known to be committed."""
    first: int
    replies: dict[bytes, bytes]
    follows_commit: bool
    """Whether the commit of the entry before has happened."""


class Journal:
    """The replies that clients have not confirmed: in memory, and in a file for the next writer."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._replies: dict[bytes, dict[bytes, bytes]] = {}  # by client and id
        self._bytes = 0
        self._pending: dict[bytes, bytes] = {}  # of the last entry
        self._is_committed = False  # the last entry
        self._end = 0
        self._limit = -1  # the end from which it is written again: the first time at once
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._load(log)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file; what is in it stays."""
        os.close(self._file)

    def find(self, request_id: bytes) -> bytes | None:
        """The reply to a request that was committed."""
        return self._replies.get(request_id[:CLIENT_LENGTH], {}).get(request_id)

    def confirm(self, oldest: bytes) -> None:
        """Forget the replies to a client that are older than a request."""
        client = oldest[:CLIENT_LENGTH]
        replies = self._replies.pop(client, {})
        self._bytes -= sum(map(len, replies.values()))
        for request_id, reply in replies.items():
            if request_id >= oldest:
                self._keep(request_id, reply)

    def write(self, token: bytes, first: int, replies: dict[bytes, bytes]) -> None:
        """Store the replies of a commit that is about to happen."""
        try:
            if self._end > self._limit:
                self._rewrite()
            self._append(_Entry(token, first, replies, self._is_committed))
        except OSError as error:
            self._limit = -1
            _logger.warning("cannot write the journal: %s", error.strerror)
        self._pending, self._is_committed = replies, False

    def commit(self) -> None:
        """Keep the replies that were written last: their commit has happened."""
        for request_id, reply in self._pending.items():
            self._keep(request_id, reply)
        self._pending, self._is_committed = {}, True
        while self._bytes > MAX_REPLY_BYTES:
            self._bytes -= sum(map(len, self._replies.pop(next(iter(self._replies))).values()))

    def _keep(self, request_id: bytes, reply: bytes) -> None:
        self._replies.setdefault(request_id[:CLIENT_LENGTH], {})[request_id] = reply
        self._bytes += len(reply)

    def _append(self, entry: _Entry) -> None:
        data = msgspec.msgpack.encode(entry)
        data = _JOURNAL.pack(len(data), zlib.crc32(data)) + data
        if os.pwrite(self._file, data, self._end) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end += len(data)

    def _rewrite(self) -> None:
        """Replace the file by one without the replies that are confirmed."""
        new = self._path.with_suffix(".new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.close(self._file)
        self._file, self._end = file, 0
        replies = {request_id: reply for each in self._replies.values() for request_id, reply in each.items()}
        self._append(_Entry(b"", 0, replies, follows_commit=False))
        new.replace(self._path)
        self._is_committed, self._limit = True, 2 * self._end + JOURNAL_BYTES

    def _load(self, log: Log) -> None:
        """Read the entries of an earlier writer. An incomplete one was never committed."""
        data = self._path.read_bytes()
        last: _Entry | None = None
        while len(data) >= self._end + _JOURNAL.size:
            length, checksum = _JOURNAL.unpack_from(data, self._end)
            start = self._end + _JOURNAL.size
            content = data[start : start + length]
            if not content or zlib.crc32(content) != checksum:
                break
            try:
                entry = msgspec.msgpack.decode(content, type=_Entry)
            except msgspec.MsgspecError as problem:
                _logger.warning("the journal of another release is ignored: %s", problem)
                break
            if entry.follows_commit:
                self.commit()
            last, self._pending, self._end = entry, entry.replies, start + length
        if last is not None and (not last.token or log.was_committed(last.token, last.first)):
            self.commit()


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection of another process."""

    socket: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)
    requests: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    """Ids and messages that were read and wait."""
    output: bytearray = field(default_factory=bytearray)
    """Replies that the process has not read yet."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request of the current group."""

    connection: _Connection
    request_id: bytes
    request: Request


def write_state(runtime: Path, state: WriterState) -> bool:
    """Tell the other processes whether changes are possible; return whether that succeeded."""
    path, new = runtime / STATE_NAME, runtime / f"{STATE_NAME}.new"
    try:
        new.write_bytes(msgspec.msgpack.encode(state))
        new.replace(path)
    except OSError as error:
        _logger.warning("cannot write %s: %s", path, error.strerror)
        return False
    return True


class WriterServer:
    """Commits the requests of all connections."""

    def __init__(self, ledger: Ledger, registry: Registry, runtime: Path) -> None:
        self.ledger = ledger
        self.registry = registry
        self._runtime = runtime
        self._journal = Journal(runtime / JOURNAL_NAME, ledger.log)
        ledger.log.journal = self._write_journal
        self._group: list[_Waiting] = []
        self._encoded: dict[bytes, bytes] = {}
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        path = runtime / SOCKET_NAME
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._state: WriterState | None = None
        self._writing_state = threading.Lock()
        self.write_state()
        ledger.on_problem = self.write_state  # also while a commit waits for the database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Reply to what is committed, and release everything."""
        self.ledger.log.journal, self.ledger.on_problem = None, lambda: None
        for connection in list(self._connections):
            self._flush(connection)
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        self._journal.close()
        (self._runtime / SOCKET_NAME).unlink(missing_ok=True)

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call a function whenever a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, lambda *_: callback())

    def unwatch(self, descriptor: int) -> None:
        """Ignore a descriptor from now on."""
        self._selector.unregister(descriptor)

    @property
    def has_connections(self) -> bool:
        """Whether a process is connected."""
        return bool(self._connections)

    def step(self, timeout: float) -> None:
        """Wait for requests and commit those that have arrived."""
        has_more = any(connection.requests for connection in self._connections)
        for key, _ in self._selector.select(0 if has_more else timeout):
            key.data(key)
        self._take_group()
        if self._group:
            self._commit()

    def write_state(self) -> None:
        """Tell the other processes whether changes are possible, and up to which entry redacted data is erased."""
        with self._writing_state:
            erased = 0 if self._state is None else self._state.erased
            with suppress(LedgerError, OSError):
                with self.ledger.open_reader() as reader:
                    size = reader.size
                erased = size if self.ledger.is_erased else erased
            state = WriterState.of(self.ledger.write_problem, erased)
            if state != self._state and write_state(self._runtime, state):
                self._state = state

    # Connections

    def _accept(self, _: selectors.SelectorKey) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return  # it has gone
        _, user, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user not in (0, os.geteuid()):
            _logger.warning("refused a connection of system user %d", user)
            accepted.close()
            return
        accepted.setblocking(False)
        connection = _Connection(accepted)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, lambda key: self._on_event(connection, key))

    def _on_event(self, connection: _Connection, key: selectors.SelectorKey) -> None:
        if key.events & selectors.EVENT_WRITE:
            self._flush(connection)
        if connection.requests or connection not in self._connections:
            return  # it waits in the socket until these are done
        try:
            data = connection.socket.recv(_READ_BYTES)
            connection.reader.feed(data)
            while (received := connection.reader.next()) is not None:
                connection.requests.append(received)
            self._journal.confirm(connection.reader.oldest)
        except BlockingIOError:
            return
        except (OSError, ValueError) as problem:
            data = b""
            _logger.warning("a connection to the writer failed: %s", problem)
        if not data:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.requests.clear()

    def _send(self, connection: _Connection, request_id: bytes, reply: bytes) -> None:
        connection.output += frame(request_id, reply)

    def _flush(self, connection: _Connection) -> None:
        """Send as much as the process reads; the rest follows when it reads on."""
        if connection not in self._connections:
            return
        try:
            sent = connection.socket.send(connection.output) if connection.output else 0
            del connection.output[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if len(connection.output) > MAX_MESSAGE:
            _logger.warning("a process does not read its replies; its connection is closed")
            self._drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.output else 0)
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    # Commits

    def _take_group(self) -> None:
        size = 0
        for connection in list(self._connections):
            count = min(len(connection.requests), MAX_PER_CONNECTION, MAX_GROUP - len(self._group))
            for _ in range(count):
                if size >= MAX_GROUP_BYTES:
                    return
                request_id, message = connection.requests.popleft()
                size += len(message)
                self._take(connection, request_id, message)

    def _take(self, connection: _Connection, request_id: bytes, message: bytes) -> None:
        if (known := self._journal.find(request_id)) is not None:  # committed before its connection was lost
            self._send(connection, request_id, known)
            self._flush(connection)
            return
        try:
            request = decode_request(message, self.registry)
        except InvalidMessage as problem:
            _logger.error("a message to the writer is invalid: %s", problem)  # noqa: TRY400 - the message is complete
            failed = LedgerError(f"the writer cannot read the request: {problem}. Nothing was written")
            self._send(connection, request_id, encode_outcome(failed))
            self._flush(connection)
            return
        self._group.append(_Waiting(connection, request_id, request))

    def _commit(self) -> None:
        group, self._encoded = self._group, {}
        try:
            outcomes: Sequence[Outcome | Exception] = self.ledger.commit([each.request for each in group])
            self._journal.commit()
        except Exception as error:  # noqa: BLE001 - every process gets the error
            outcomes, self._encoded = [error] * len(group), {}
            self.write_state()
        for each, outcome in zip(group, outcomes, strict=True):
            self._send(each.connection, each.request_id, self._encoded.get(each.request_id) or encode_outcome(outcome))
        self._group = []
        for connection in {each.connection for each in group}:
            self._flush(connection)

    def _write_journal(self, token: bytes, first: int, outcomes: list[Outcome]) -> None:
        ids = [each.request_id for each in self._group]
        self._encoded = dict(zip(ids, map(encode_outcome, outcomes), strict=True))
        self._journal.write(token, first, self._encoded)


# The process


def _link(link: Path, path: Path) -> None:
    """Let local commands find the socket."""
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    except OSError as error:  # a full disk; they write by themselves then
        _logger.warning("cannot create %s: %s", link, error.strerror)


def _unlink(link: Path, path: Path) -> None:
    """Remove the link, unless it leads to the socket of another server by now."""
    with suppress(OSError):
        if link.readlink() == path:
            link.unlink()


def _report_node(installation: Installation, ended: threading.Event, stopping: threading.Event) -> None:
    """Report until the end. A node that is told to stop is not missed by the others, one that fails is."""
    name = f"{socket.gethostname()}:{installation.directory}"
    store, has_failed = installation.log.store, False
    while not ended.is_set():
        try:
            with suppress(LedgerError), store.translate_errors():  # a database that is away is reported by others
                save_report(store, name, __version__, installation.ledger.answers.applied)
        except Exception as error:  # noqa: BLE001 - the next report may succeed
            if not has_failed:
                _logger.error("cannot report this node to the others: %s: %s", type(error).__qualname__, error)  # noqa: TRY400 - once
            has_failed = True
        ended.wait(REPORT_SECONDS)
    if stopping.is_set():
        with suppress(LedgerError), store.translate_errors():
            remove_report(store, name)


class Writer:
    """The writer process."""

    def __init__(self, options: ChildOptions, supervisor: SupervisorLink) -> None:
        self._options = options
        self._supervisor = supervisor
        self._runtime = Path(options.state)
        self._stopping = threading.Event()
        self._orphan_deadline = math.inf
        self._progress = monotonic()
        self._max_step = START_SECONDS
        self._signals, wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # handled by `_on_signal`
        unblock_signals()

    def run(self) -> int:
        """Write until told to stop; return the exit code."""
        beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        beating.start()
        try:
            installation = self._open()
        except _STARTUP_ERRORS as problem:
            self._supervisor.report("problem", str(problem))
            return 1
        if installation is None:
            return 0
        config = installation.config
        logs.configure(self._options.name, config.log.format, level=config.log.level_number)
        with installation:
            try:
                server = self._create_server(installation)
            except _STARTUP_ERRORS as problem:
                self._supervisor.report("problem", str(problem))
                return 1
            if server is None:
                return 0
            self._serve(server, installation)
        if self._is_orphan or self._supervisor.news.is_stopping:
            self._log_interrupted_jobs()
        if self._is_orphan:
            shutil.rmtree(self._runtime, ignore_errors=True)  # as the supervisor would
        return 0

    def _create_server(self, installation: Installation) -> WriterServer | None:
        """Create the server as soon as no other transaction keeps the ledger locked; None if told to stop."""
        while not self._stopping.is_set():
            try:
                return WriterServer(installation.ledger, installation.registry(), self._runtime)
            except Contention as problem:
                write_state(self._runtime, WriterState.of(problem))
                self._supervisor.report("ready", False)
            self._progress, self._max_step = monotonic(), MAX_STEP_SECONDS
            self._wait_for_signals()
        return None

    def _serve(self, server: WriterServer, installation: Installation) -> None:
        with server, self._reporting(installation):
            _link(installation.directory / WRITER_LINK, self._runtime / SOCKET_NAME)
            server.watch(self._signals, lambda: self._on_signal(server, installation))
            server.watch(self._options.news, lambda: self._on_news(server))
            self._progress, self._max_step = monotonic(), MAX_STEP_SECONDS
            self._supervisor.report("ready", True)
            _logger.info("ready for changes")
            due = monotonic() + TICK_SECONDS
            while not self._stopping.is_set():
                server.step(TICK_SECONDS)
                self._progress = monotonic()
                if self._progress >= due:
                    due = self._progress + TICK_SECONDS
                    server.write_state()
                if self._is_orphan and (self._progress > self._orphan_deadline or not server.has_connections):
                    break
            _unlink(installation.directory / WRITER_LINK, self._runtime / SOCKET_NAME)

    @contextmanager
    def _reporting(self, installation: Installation) -> Iterator[None]:
        """Report the state of this node to the others, if the ledger is in a database that nodes can share."""
        if not installation.log.store.is_remote:
            yield
            return
        ended = threading.Event()
        reporter = threading.Thread(target=_report_node, args=(installation, ended, self._stopping), daemon=True)
        reporter.start()
        try:
            yield
        finally:
            ended.set()
            reporter.join(_REPORT_END_SECONDS)

    def _log_interrupted_jobs(self) -> None:
        """Log which jobs stop with the server: the other processes have ended."""
        for job in sorted(read_running(self._runtime)):
            _logger.warning("job %s is interrupted; to resume it: perseid jobs resume %s", job, job)

    @property
    def _is_orphan(self) -> bool:
        """Whether the supervisor has ended."""
        return self._orphan_deadline < math.inf

    def _open(self) -> Installation | None:
        """Open the installation as soon as there is space and the database responds; None if told to stop."""
        is_reported = False
        while not self._stopping.is_set():
            try:
                return Installation.open(Path(self._options.directory), accept_clock=self._options.accept_clock)
            except (StorageFull, DatabaseUnreachable) as problem:
                if not is_reported:
                    known = problem if isinstance(problem, StorageFull) else problem.write_problem
                    is_reported = write_state(self._runtime, WriterState.of(known))
                    self._supervisor.report("ready", False)
            self._progress, self._max_step = monotonic(), MAX_STEP_SECONDS
            self._wait_for_signals()
        return None

    def _wait_for_signals(self) -> None:
        """Notice that the process is told to stop, or that the supervisor has ended, before the server exists."""
        readable, _, _ = select.select([self._signals, self._options.news], [], [], TICK_SECONDS)
        if self._options.news in readable and self._supervisor.read_news() is None:
            self._stopping.set()
        if self._signals in readable and signal.SIGTERM in os.read(self._signals, 64):
            self._stopping.set()

    def _beat(self) -> None:
        """Tell the supervisor that this process is not stuck."""
        while True:
            if monotonic() - self._progress < self._max_step:
                self._supervisor.beat()
            if self._stopping.wait(BEAT_SECONDS):
                return

    def _on_news(self, server: WriterServer) -> None:
        if self._supervisor.read_news() is None:  # the supervisor has ended; the workers finish started work and end
            server.unwatch(self._options.news)
            self._orphan_deadline = monotonic() + ORPHAN_SECONDS

    def _on_signal(self, server: WriterServer, installation: Installation) -> None:
        for number in os.read(self._signals, 64):
            if number == signal.SIGTERM:
                self._stopping.set()
            elif number == signal.SIGHUP:
                self._reload(server, installation)

    def _reload(self, server: WriterServer, installation: Installation) -> None:
        """Reload the settings; on an error nothing changes."""
        try:
            config = Config.load(installation.directory, os.environ)
            logs.configure(self._options.name, config.log.format, level=config.log.level_number)
            server.registry = installation.registry(config)
        except _STARTUP_ERRORS as problem:
            _logger.error("reload failed, nothing was changed: %s", problem)  # noqa: TRY400 - the message is complete
        self._supervisor.report("reloaded")


def main(text: str) -> int:
    """Run the writer process."""
    options = parse_options(ChildOptions, text)
    return Writer(options, SupervisorLink(options)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
