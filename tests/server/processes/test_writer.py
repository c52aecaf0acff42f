"""The writer process and the ledger of the processes that append through it."""

import asyncio
import itertools
import os
import random
import secrets
import signal
import socket
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from sqlalchemy import create_engine, delete, make_url, select
from sqlalchemy.exc import DatabaseError

from perseid.cli._arguments import open_installation
from perseid.ledger import ledger as ledger_module
from perseid.ledger.errors import (
    Contention,
    JobEnded,
    LedgerError,
    OutcomeUnknown,
    StorageFull,
    StoreUnavailable,
    TooBusy,
)
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.clock import CheckedClock
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Append, Appended, Failed, Lease, Leased, Outcome
from perseid.ledger.store import tables
from perseid.ledger.store.idempotency import RecordUse, last_used_days
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.record import Value
from perseid.registry import codec
from perseid.registry.codec import decode_outcome, encode_request
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Add, Create, Delete, Home
from perseid.registry.installation import installation as installations
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs import runner
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import MintResult, Refused
from perseid.registry.snapshot import Rules
from perseid.server.native.decisions import to_refusal
from perseid.server.observe import logs
from perseid.server.processes import remote_ledger, writer
from perseid.server.processes.child import ChildOptions, SupervisorLink
from perseid.server.processes.remote_ledger import (
    FRAME,
    SOCKET_NAME,
    STATE_NAME,
    FrameReader,
    RemoteLedger,
    WriterState,
    find_writer,
    frame,
)
from perseid.server.processes.writer import Journal, Writer, WriterServer
from perseid.server.state.runtime import WRITER_LINK
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import (
    SIGNER,
    change,
    log_of_today,
    open_store,
    postgres_with_tables,
    sqlite_with_tables,
    verified,
)
from tests.postgres import Cluster, postgres
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, handle

__all__ = ["postgres"]

URL = Value.text(1, "URL", "https://example.org/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ledger with a namespace 12345, and a runtime directory."""
    return fill(tmp_path, sqlite_with_tables(tmp_path / "ledger.db"))


@pytest.fixture
def postgres_folder(tmp_path: Path, postgres: Cluster) -> Path:
    """The same with PostgreSQL."""
    where = postgres_with_tables(postgres)
    (tmp_path / "database").write_text(where)
    return fill(tmp_path, open_store(where))


def fill(tmp_path: Path, store: Store) -> Path:
    log_of_today(store).create(SIGNER)
    store.close()
    (tmp_path / "run").mkdir(0o700)
    with opened(tmp_path) as ledger:
        registry = Registry(ledger, Rules())
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        add_namespace(registry, "12345", "free")
    return tmp_path


def address(folder: Path) -> str:
    """The address of the store: that in a file of this name, or the file of the ledger."""
    path = folder / "database"
    return path.read_text() if path.exists() else str(folder / "ledger.db")


@contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    with Ledger(log_of_today(open_store(address(folder))), Answers(folder / "answers")) as ledger:
        yield ledger


def serve(folder: Path) -> None:
    """Run a writer until this process is killed."""
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        while True:
            server.step(writer.TICK_SECONDS)
            server.write_state()


@contextmanager
def writing(folder: Path) -> Iterator[list[int]]:
    """A writer in a process of its own, whose id may be replaced."""
    children = [start(folder)]
    try:
        yield children
    finally:
        kill(children[0])


def start(folder: Path) -> int:
    return fork(lambda: serve(folder))


def fork(work: Callable[[], None]) -> int:
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            work()
        os._exit(1)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@contextmanager
def remote(folder: Path) -> Iterator[Registry]:
    """A registry that appends through the writer."""
    log = log_of_today(open_store(address(folder), read_only=True))
    ledger = RemoteLedger(log, AnswersReader(folder / "answers"), folder / "run")
    try:
        yield Registry(ledger, Rules())
    finally:
        ledger.close()


def test_redacted_data_is_not_reported_as_erased_while_a_reader_keeps_it(folder: Path) -> None:
    secret = "planted-" + "7" * 40
    with writing(folder), remote(folder) as registry:
        made = registry.do(Create(handle("12345/x"), (URL, Value.text(2, "DESC", secret))), OPERATOR, "cli")
        registry.do(Delete(handle("12345/x")), OPERATOR, "cli")
        assert registry.ledger.wait_until_erased(10)
        with closing(sqlite3.connect(folder / "ledger.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entries").fetchone()
            registry.do(Redact(handle("12345/x"), 2, made.seq, "a reason"), OPERATOR, "cli")
            assert not registry.ledger.wait_until_erased(2)
        assert registry.ledger.wait_until_erased(10)
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert secret.encode() not in b"".join(files)


def test_other_processes_append_through_the_writer(folder: Path) -> None:
    """Decided here or in the writer: the result is the same, and visible here at once."""
    with writing(folder), remote(folder) as registry:
        made = registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        assert registry.resolve(Query(handle("12345/x")), NOBODY).seq == made.seq
        assert registry.ledger.find(b"12345/x") is not None
        minted = registry.do(Mint("12345", 2, values=(URL,)), OPERATOR, "cli")
        assert isinstance(minted, MintResult)
        assert minted.seq == made.seq + 1
        assert all(registry.ledger.find(str(name).encode()) for name in minted.handles)
        with pytest.raises(Refused, match="already exists"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with pytest.raises(Refused) as refused:
            registry.do(Mint("12345/", 2, values=(URL, URL)), OPERATOR, "cli")
        assert refused.value.code is ResponseCode.VALUE_ALREADY_EXISTS
        assert registry.ledger.append(Lease(b"scope", 5, 0), change("y")) == [
            Leased(0, 5),
            Appended(minted.seq + 2, now(registry)),
        ]
        (failed,) = registry.ledger.append(Append(change("z").draft, job="none"))
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, JobEnded)
        assert registry.ledger.write_problem is None
        until(lambda: registry.ledger.ready)  # the writer builds the view
        assert verified(registry.ledger.log) == minted.seq + 2


def disconnect(registry: Registry) -> None:
    assert isinstance(registry.ledger, RemoteLedger)
    registry.ledger.disconnect()


def now(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.entry(reader.size).at


def test_jobs_and_uses_of_tokens_are_written_by_the_writer(folder: Path) -> None:
    """The database of the other processes refuses every change."""
    with writing(folder) as children, remote(folder) as registry:
        log = registry.ledger.log
        job = runner.start_job(registry, "rewrite", {"n": 1}, OPERATOR, "cli", "a note", total=7)
        assert (job, job.total, job.done) == (runner.find_job(registry, OPERATOR, job.id), 7, 0)
        with pytest.raises(DatabaseError, match="readonly"), log.store.writing() as connection:
            connection.execute(delete(tables.jobs))
        with pytest.raises(sqlite3.Error, match="readonly"), log.store.writing_cursor() as cursor:
            cursor.execute("DELETE FROM jobs")
        kill(children[0])
        children[0] = start(folder)
        assert runner.is_canceled(runner.cancel(registry, job.id, OPERATOR))
        assert runner.reopen(registry, runner.find_job(registry, OPERATOR, job.id)).ended_at == 0
        undo = runner.start_job(registry, "undo", {}, OPERATOR, "cli", undoes=job.id)
        assert runner.start_job(registry, "undo", {}, OPERATOR, "cli", undoes=job.id).id == undo.id
        runner.complete_or_discard(registry, undo)
        assert [each.id for each in runner.list_jobs(registry, OPERATOR)] == [job.id]
        registry.ledger.change(RecordUse("abcdefgh", 7))
        assert last_used_days(log) == {"abcdefgh": 7}


@contextmanager
def lost(where: str) -> Iterator[None]:
    """A database that cannot be reached."""
    name = str(make_url(where).database)
    admin = create_engine(make_url(where).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with closing(admin.connect()) as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    admin.dispose()


def test_postgresql_behind_the_writer(postgres_folder: Path) -> None:
    """While the database cannot be reached, the server is busy; then everything works again without a restart."""
    folder = postgres_folder
    with writing(folder), remote(folder) as registry:
        made = registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        assert registry.resolve(Query(handle("12345/x")), NOBODY).seq == made.seq
        until(lambda: registry.ledger.ready)
        job = runner.start_job(registry, "rewrite", {}, OPERATOR, "cli")
        with pytest.raises(StoreUnavailable, match="read-only"), registry.ledger.log.store.writing() as connection:
            connection.execute(delete(tables.jobs))
        with lost(address(folder)):
            with pytest.raises(LedgerError) as failed:
                registry.do(Add(handle("12345/x"), (Value.text(2, "DESC", "new"),)), OPERATOR, "cli")
            assert to_refusal(failed.value).code == ResponseCode.SERVER_TOO_BUSY
            with pytest.raises(StoreUnavailable, match="Nothing was written"):
                registry.ledger.append(change("y"))
            assert registry.ledger.find(b"12345/x") is not None, "resolution continues"
            until(lambda: isinstance(registry.ledger.write_problem, StoreUnavailable))
        until(lambda: registry.ledger.write_problem is None)
        minted = registry.do(Mint("12345", 2, values=(URL,)), OPERATOR, "cli")
        assert isinstance(minted, MintResult)
        assert minted.seq == made.seq + 1

        async def create(number: int) -> None:
            await registry.execute(Create(handle(f"12345/l{number}"), (URL,)), OPERATOR, "http")

        async def scenario() -> None:
            await asyncio.gather(*(create(number) for number in range(20)))
            disconnect(registry)

        runner.complete_or_discard(registry, job)
        asyncio.run(scenario())
        assert verified(registry.ledger.log) == minted.seq + 21


def test_changes_are_refused_at_once_while_the_database_keeps_one_waiting(
    postgres_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a synchronous standby; the one that waits is made when the database goes on."""
    folder = postgres_folder
    monkeypatch.setattr(ledger_module, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(ledger_module, "RETRY_DELAY", 0.05)
    with writing(folder), remote(folder) as registry, ThreadPoolExecutor(1) as threads:
        with closing(open_store(address(folder))) as other, other.writing(limited=False) as connection:
            connection.execute(select(tables.head).with_for_update())
            waiting = threads.submit(registry.ledger.append, change("x"))
            until(lambda: isinstance(registry.ledger.write_problem, Contention))
            with pytest.raises(Contention, match="may be waiting for a synchronous standby"):
                registry.ledger.append(change("y"))
            with pytest.raises(Contention, match="may be waiting for a synchronous standby"):
                asyncio.run(registry.execute(Home("0.NA/1"), OPERATOR, "http"))
            assert not waiting.done()
        assert isinstance(waiting.result(30)[0], Appended)
        until(lambda: registry.ledger.write_problem is None)
        assert isinstance(registry.ledger.append(change("y"))[0], Appended)


def test_event_loop_and_threads_append_at_the_same_time(folder: Path) -> None:
    """32 clients add to one record: nobody is refused, and nothing is lost."""
    with writing(folder), remote(folder) as registry:
        registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")

        def add(number: int) -> None:
            registry.do(Add(handle("12345/x"), (Value.text(number, "DESC", ""),)), OPERATOR, "cli")

        async def add_all() -> None:
            commands = [Add(handle("12345/x"), (Value.text(number, "DESC", ""),)) for number in range(200, 216)]
            in_threads = [asyncio.to_thread(add, number) for number in range(300, 316)]
            in_loop = [registry.execute(command, OPERATOR, "cli") for command in commands]
            await asyncio.gather(*in_threads, *in_loop)
            disconnect(registry)

        asyncio.run(add_all())
        found = [value.index for value in registry.resolve(Query(handle("12345/x")), NOBODY).values]
        assert found == [1, *range(200, 216), *range(300, 316)]


def test_requests_of_one_iteration_of_the_loop_are_committed_together(folder: Path) -> None:
    """The writer is woken once for all of them; of many it gets a part early, so that it does not wait for the last."""
    with writing(folder), remote(folder) as registry:

        def submit(count: int) -> "Iterator[asyncio.Future[Outcome]]":
            for number in range(count):
                yield as_loop_future(registry.ledger.submit(change(f"{count}-{number}"))[0])
                time.sleep(0.02)  # long enough to commit it alone

        async def commits(count: int) -> int:
            outcomes = await asyncio.gather(*submit(count))
            return len({outcome.at for outcome in outcomes if isinstance(outcome, Appended)})

        async def scenario() -> None:
            assert [await commits(1), await commits(4), await commits(remote_ledger.MAX_UNSENT + 2)] == [1, 1, 2]
            disconnect(registry)

        asyncio.run(scenario())


def test_connection_of_a_thread_ends_with_it(folder: Path) -> None:
    def count_sockets() -> int:
        return sum(
            os.path.realpath(file).rpartition("/")[2].startswith("socket:") for file in os.scandir("/proc/self/fd")
        )

    with writing(folder), remote(folder) as registry:
        before = count_sockets()
        for number in range(2):
            create = Create(handle(f"12345/{number}"), (URL,))
            thread = threading.Thread(target=registry.do, args=(create, OPERATOR, "cli"))
            thread.start()
            thread.join()
            assert registry.ledger.find(b"12345/%d" % number) is not None
        until(lambda: count_sockets() == before)


def create_in_threads(registry: Registry, done: list[str], stop: threading.Event) -> None:
    """Create and mint handles from two threads."""

    def work(me: int) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            registry.do(Create(handle(f"12345/{me}-{number}"), (URL,)), OPERATOR, "cli")
            done.append(f"12345/{me}-{number}")
            done.append(str(registry.do(Mint("12345", values=(URL,)), OPERATOR, "cli").handles[0]))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


def create_in_a_loop(registry: Registry, done: list[str], stop: threading.Event) -> None:
    """Create handles from an event loop, four at a time."""

    async def work(me: int) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            await registry.execute(Create(handle(f"12345/{me}-{number}"), (URL,)), OPERATOR, "cli")
            done.append(f"12345/{me}-{number}")

    async def work_all() -> None:
        await asyncio.gather(*map(work, range(4)))
        disconnect(registry)

    asyncio.run(work_all())


@pytest.mark.parametrize("create", [create_in_threads, create_in_a_loop])
def test_killed_writer_loses_and_repeats_nothing(
    folder: Path, create: Callable[[Registry, list[str], threading.Event], None]
) -> None:
    """Requests under way are executed once, by the old writer or by the new one."""
    chance = random.Random(7)
    done: list[str] = []
    stop = threading.Event()
    with writing(folder) as children, remote(folder) as registry, ThreadPoolExecutor(1) as pool:
        work = pool.submit(create, registry, done, stop)
        for _ in range(4):
            before = len(done)
            until(lambda: len(done) > before + 5 or work.done())  # noqa: B023
            time.sleep(chance.random() / 50)
            kill(children[0])
            children[0] = start(folder)
        stop.set()
        work.result()
        with registry.ledger.open_reader() as reader:
            names = [reader.entry(seq).handle for seq in range(1, reader.size + 1)]
        created = [name for name in names if name.startswith("12345/")]
        assert sorted(created) == sorted(done), "each acknowledged once, and nothing else"
        assert verified(registry.ledger.log) == len(names)


class Client:
    """A process that sends and reads single messages."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(folder / "run" / SOCKET_NAME))

    def __del__(self) -> None:
        self.socket.close()

    def exchange(self, server: WriterServer, *frames: bytes) -> list[tuple[bytes, bytes]]:
        """Send messages, let the writer work, and return its replies."""
        self.socket.sendall(b"".join(frames))
        for _ in range(3):
            server.step(0)
        self.socket.setblocking(False)
        reader = FrameReader()
        with suppress(BlockingIOError):
            while data := self.socket.recv(1 << 20):
                reader.feed(data)
        return list(iter(reader.next, None))


def request_id(client: bytes, number: int) -> bytes:
    return client * 8 + number.to_bytes(8, "big")


def size_of(ledger: Ledger) -> int:
    with ledger.open_reader() as reader:
        return reader.size


def test_replies_are_kept_until_they_are_confirmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later commits of others do not displace them, nor does the replacement of the journal."""
    monkeypatch.setattr(writer, "JOURNAL_BYTES", 200)
    first, second = request_id(b"a", 1), request_id(b"a", 2)
    with opened(folder) as ledger, ExitStack() as stack:

        def restart() -> WriterServer:
            """A new writer after one that was killed."""
            return stack.enter_context(WriterServer(ledger, Registry(ledger, Rules()), folder / "run"))

        server = restart()
        before = size_of(ledger)
        message = encode_request(change("a"))
        ((_, reply),) = Client(folder).exchange(server, frame(first, message, first))
        other = Client(folder)
        for number in range(1, 20):
            latest = request_id(b"b", number)
            other.exchange(server, frame(latest, encode_request(change(f"b{number}")), latest))
        for _ in range(2):
            server = restart()
            assert Client(folder).exchange(server, frame(first, message, first)) == [(first, reply)]
        assert size_of(ledger) == before + 20
        Client(folder).exchange(server, frame(second, message, second))
        assert server._journal.find(first) is None
        assert server._journal.find(second) is not None
        monkeypatch.setattr(writer, "MAX_REPLY_BYTES", 0)
        Client(folder).exchange(server, frame(request_id(b"b", 20), message, request_id(b"b", 20)))
        assert server._journal.find(second) is None, "what was silent for longest is dropped"


@pytest.mark.parametrize("failure", ["short", "error"])
def test_journal_that_cannot_be_written_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A short write is an error too: later entries are still found."""
    write = os.pwrite

    def fail(file: int, data: bytes, offset: int) -> int:
        if failure == "error":
            raise OSError(28, "No space left on device")
        return write(file, data[:10], offset)

    keys = [request_id(b"a", number) for number in range(1, 4)]
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        client = Client(folder)
        for number, key in enumerate(keys):
            monkeypatch.setattr(os, "pwrite", fail if number == 1 else write)
            client.exchange(server, frame(key, encode_request(change(f"a{number}")), keys[0]))
        assert "cannot write the journal: No space left on device" in caplog.text
        found = Journal(folder / "run" / writer.JOURNAL_NAME, ledger.log)
        assert all(found.find(key) for key in keys)
        found.close()


def test_writer_starts_with_a_wrong_clock(folder: Path) -> None:
    """It still replies to what the earlier one has committed."""
    key, message = request_id(b"a", 1), encode_request(change("a"))
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        replies = Client(folder).exchange(server, frame(key, message, key))
    store = open_store(str(folder / "ledger.db"))
    clock = CheckedClock(lambda: time.time_ns() // 1000 - 86_400_000_000, lambda: time.monotonic_ns() // 1000)
    log = Log(store, clock, secrets.token_bytes)
    with (
        Ledger(log, Answers(folder / "answers")) as ledger,
        WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server,
    ):
        assert Client(folder).exchange(server, frame(key, message, key)) == replies


def test_journal_of_another_release_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = b"\x01"
    data = struct.pack(">II", len(content), zlib.crc32(content)) + content
    (folder / "run" / writer.JOURNAL_NAME).write_bytes(data)
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run"):
        assert "the journal of another release is ignored" in caplog.text


def test_link_to_another_server_is_not_removed(tmp_path: Path) -> None:
    link, own = tmp_path / WRITER_LINK, tmp_path / "own"
    writer._link(link, tmp_path / "other")
    writer._unlink(link, own)
    assert link.is_symlink()
    writer._link(link, own)
    writer._unlink(link, own)
    assert not link.is_symlink()
    writer._unlink(link, own)


class _Supervisor:
    """A supervisor that has ended."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, object]] = []

    def beat(self) -> None:
        """Nobody reads it."""

    def report(self, kind: str, value: object = True) -> None:
        self.reports.append((kind, value))

    def read_news(self) -> None:
        """The end of the file."""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[writer.Writer, _Supervisor]]:
    """A writer process whose supervisor has ended."""
    with created(tmp_path, monkeypatch) as (one, supervisor, end):
        os.close(end)
        yield one, supervisor


@contextmanager
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[writer.Writer, _Supervisor, int]]:
    """A writer process, and the supervisor's end of its pipe."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    pipes: list[int] = []
    monkeypatch.setattr(signal, "set_wakeup_fd", pipes.append)
    monkeypatch.setattr(writer, "unblock_signals", lambda: None)
    news, end = os.pipe()
    supervisor = _Supervisor()
    options = ChildOptions(
        name="writer", number=0, is_first=True, accept_clock=False, counters=-1, status=-1, news=news,
        directory=str(tmp_path), state=str(tmp_path),
    )  # fmt: skip
    one = writer.Writer(options, cast("SupervisorLink", supervisor))
    yield one, supervisor, end
    one._stopping.set()
    for pipe in (*pipes, one._signals, news):
        os.close(pipe)


def test_writer_on_a_full_disk_ends_with_its_supervisor(
    process: tuple[writer.Writer, _Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageFull("full")

    monkeypatch.setattr(Installation, "open", fail)
    assert process[0].run() == 0
    assert process[1].reports == [("ready", False)]


def test_writer_serves_the_workers_until_they_end_after_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they wait for another writer, and keep the ports of the next server in use."""
    directory = tmp_path / "installation"
    installations.create(directory, environ={})
    monkeypatch.setattr(writer, "ORPHAN_SECONDS", 30)
    monkeypatch.setattr(logs, "configure", lambda *_, **__: None)
    (tmp_path / "run").mkdir(0o700)
    with created(directory, monkeypatch) as (one, supervisor, end), ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(one, "_runtime", tmp_path / "run")
        ended = threads.submit(one.run)
        until(lambda: ("ready", True) in supervisor.reports)
        with open_installation(directory) as session:
            assert session.do(Home("0.NA/0.NA")).seq
            os.close(end)
            until(lambda: one._is_orphan)
            assert session.do(Home("0.NA/1")).seq
        assert ended.result(30) == 0
    assert not (tmp_path / "run").exists()


def fail_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LedgerError) -> None:
    """Let the next writer fail with an error when it opens the ledger of a new installation."""

    def fail(*_: object) -> None:
        raise error

    installations.create(tmp_path / "installation", environ={})
    installation = Installation.open(tmp_path / "installation")
    monkeypatch.setattr(Installation, "open", lambda *_, **__: installation)
    monkeypatch.setattr(writer, "WriterServer", fail)
    monkeypatch.setattr(logs, "configure", lambda *_, **__: None)


def test_writer_that_cannot_start_reports_why(
    process: tuple[writer.Writer, _Supervisor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_start(tmp_path, monkeypatch, TooBusy("locked"))
    assert process[0].run() == 1
    assert process[1].reports == [("problem", "locked")]


def test_writer_waits_for_a_transaction_that_keeps_the_ledger_locked(
    process: tuple[writer.Writer, _Supervisor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that was killed in a commit leaves it to the database, which may wait for a standby."""
    fail_at_start(tmp_path, monkeypatch, Contention("locked"))
    assert process[0].run() == 0
    assert process[1].reports == [("ready", False)]
    state = msgspec.msgpack.decode((tmp_path / STATE_NAME).read_bytes(), type=WriterState)
    assert str(state.problem) == "locked"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_without_a_writer_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 0.05)
    with remote(folder) as registry:
        with pytest.raises(TooBusy, match="the writer is not running"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with pytest.raises(TooBusy, match="the writer is not running"):
            asyncio.run(registry.execute(Create(handle("12345/x"), (URL,)), OPERATOR, "cli"))
        (folder / "run" / "writer.state").write_bytes(b"\x82\xa4kind\xabStorageFull\xa7message\xa4full")
        registry.ledger._state_until = 0.0  # type: ignore[attr-defined]
        monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 1e9)  # a known problem is reported at once
        with pytest.raises(StorageFull, match="full"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with pytest.raises(StorageFull, match="full"):
            asyncio.run(registry.execute(Create(handle("12345/x"), (URL,)), OPERATOR, "cli"))


def test_too_long_message_closes_its_connection_alone(folder: Path) -> None:
    with writing(folder), remote(folder) as registry:
        registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(30)
            other.connect(str(folder / "run" / SOCKET_NAME))
            other.sendall(FRAME.pack(1 << 31, bytes(16), b""))
            assert other.recv(1) == b""
        registry.do(Delete(handle("12345/x")), OPERATOR, "cli")


def test_invalid_message_fails_alone(folder: Path) -> None:
    """The other requests of its connection are executed once, and get their replies."""
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        before = size_of(ledger)
        keys = [request_id(b"a", number) for number in range(1, 4)]
        messages = [encode_request(change("a")), b"hello", encode_request(change("b"))]
        replies = dict(
            Client(folder).exchange(server, *[frame(*each, keys[0]) for each in zip(keys, messages, strict=True)])
        )
        assert [type(decode_outcome(replies[key])) for key in (keys[0], keys[2])] == [Appended, Appended]
        with pytest.raises(LedgerError, match=r"cannot read the request: .* Nothing was written"):
            decode_outcome(replies[keys[1]])
        assert size_of(ledger) == before + 2


def test_writer_of_another_release_is_reported_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(folder), remote(folder) as registry:
        until((folder / "run" / SOCKET_NAME).exists)
        monkeypatch.setattr(codec, "VERSION", codec.VERSION + 1)
        with pytest.raises(LedgerError, match=r"different releases: .* Nothing was written"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")

        async def create() -> None:
            with pytest.raises(LedgerError, match=r"different releases: .* Nothing was written"):
                await registry.execute(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
            disconnect(registry)

        asyncio.run(create())


@contextmanager
def silent_writer(folder: Path, *, closes: bool = False) -> Iterator[list[bytes]]:
    """A writer that never replies, and what it has read."""
    read: list[bytes] = []

    async def serve_connection(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        read.append(b"")
        try:
            while data := await reader.read(1 << 20):
                read[-1] += data
                if closes:
                    break
        finally:
            out.transport.abort()

    async def end() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_unix_server(serve_connection, folder / "run" / SOCKET_NAME))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield read
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_reconnects_without_a_reply_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(remote_ledger, "LOST_SECONDS", 0.1)
    with silent_writer(folder, closes=True) as read, remote(folder) as registry:

        async def submit() -> None:
            (future,) = registry.ledger.submit(change("a"))
            with pytest.raises(OutcomeUnknown, match="the connection to the writer was lost"):
                await as_loop_future(future)

        asyncio.run(submit())
        assert 1 < len(read) <= 5


def test_sent_request_waits_for_the_next_writer_longer_than_one_that_can_be_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a writer knows the outcome of the first; nothing happens to the second, which can be repeated."""
    monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 0.05)
    with remote(folder) as registry, ExitStack() as stack:
        read = stack.enter_context(silent_writer(folder))

        async def submit() -> None:
            (sent,) = map(as_loop_future, registry.ledger.submit(change("a")))
            await asyncio.to_thread(until, lambda: bool(read and read[0]))
            stack.close()
            await asyncio.sleep(0.1)  # what is sent before the loop knows that the writer has gone counts as sent
            for _ in range(2):
                (refused,) = map(as_loop_future, registry.ledger.submit(change("b")))
                with pytest.raises(TooBusy, match=r"the writer is not running\. Nothing was written"):
                    await refused
            assert not sent.done()
            with writing(folder):
                assert isinstance(await sent, Appended)
                disconnect(registry)

        asyncio.run(submit())


def test_disconnecting_fails_what_has_no_outcome(folder: Path) -> None:
    """Nothing is sent again to the writer, which still runs; a canceled request is never sent."""
    with silent_writer(folder) as read, remote(folder) as registry:

        async def submit() -> None:
            canceled, future = map(as_loop_future, registry.ledger.submit(change("a"), change("b")))
            canceled.cancel()
            await asyncio.to_thread(until, lambda: bool(read and read[0]))
            disconnect(registry)
            with pytest.raises(OutcomeUnknown):
                await future
            await asyncio.sleep(2 * remote_ledger.RECONNECT_INTERVAL)

        asyncio.run(submit())
        reader = FrameReader()
        reader.feed(read[0])
        with ThreadPoolExecutor(1) as threads:  # a thread that waits for the writer, too
            failed = threads.submit(registry.ledger.append, change("c"))
            until(lambda: len(read) == 2 and bool(read[1]))
            disconnect(registry)
            with pytest.raises(OutcomeUnknown):
                failed.result(30)
        assert [message for _, message in iter(reader.next, None)] == [encode_request(change("b"))]
        assert len(read) == 2


def as_loop_future(future: object) -> "asyncio.Future[Outcome]":
    assert isinstance(future, asyncio.Future)
    return future


def test_bytes_that_wait_for_the_writer_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the writer does not read stays out of the buffer of the transport, and is sent later."""
    message = encode_request(change("a"))
    monkeypatch.setattr(remote_ledger, "MAX_WAITING_BYTES", 5_000 * len(message))
    with remote(folder) as registry:

        async def submit() -> None:
            futures = [as_loop_future(registry.ledger.submit(change("a"))[0]) for _ in range(5_000)]
            with pytest.raises(TooBusy, match="queued"):
                registry.ledger.submit(change("a"))
            with writing(folder):
                assert all(isinstance(outcome, Appended) for outcome in await asyncio.gather(*futures))
                registry.ledger.submit(change("a"))
                disconnect(registry)

        asyncio.run(submit())


def test_writer_refuses_other_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        assert (folder / "run" / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(writer, "_CREDENTIALS", _Credentials())
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(folder / "run" / SOCKET_NAME))
            server.step(1.0)
            other.settimeout(30)
            assert other.recv(1) == b""


class _Credentials:
    """Says that another user has connected."""

    size = 12

    def unpack(self, _: bytes) -> tuple[int, int, int]:
        return 1, os.geteuid() + 1, 1


def test_local_commands_append_through_a_running_writer(tmp_path: Path) -> None:
    """Without one, or with a link that a killed one left behind, they have the ledger themselves."""
    directory = tmp_path / "installation"
    installations.create(directory, environ={})
    assert find_writer(directory) is None
    with Installation.open(directory) as installation:
        registry = installation.registry()
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        add_namespace(registry, "12345", "free")
    run = tmp_path / "run"
    run.mkdir(0o700)
    (directory / WRITER_LINK).symlink_to(run / SOCKET_NAME)
    assert find_writer(directory) is None

    def serve_installation() -> None:
        with Installation.open(directory) as writing, WriterServer(writing.ledger, writing.registry(), run) as server:
            while True:
                server.step(1.0)

    child = fork(serve_installation)
    try:
        until(lambda: find_writer(directory) is not None)
        with open_installation(directory) as session:
            assert isinstance(session.registry.ledger, RemoteLedger)
            made = session.do(Create(handle("12345/x"), (URL,)))
            assert session.registry.resolve(Query(handle("12345/x")), NOBODY).seq == made.seq
        with open_installation(directory, maintains=True) as session:
            assert not isinstance(session.registry.ledger, RemoteLedger)
    finally:
        kill(child)
    with open_installation(directory) as session:
        assert session.do(Delete(handle("12345/x"))).seq == made.seq + 1


def test_node_reports_again_after_an_unexpected_error_which_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[bool] = []
    reported = threading.Event()

    def save(*_: object) -> None:
        reports.append(True)
        if len(reports) < 3:
            raise ValueError("an error")
        reported.set()

    def fail_later() -> None:
        assert reported.wait(30)
        raise KeyError

    store = SimpleNamespace(is_remote=True, translate_errors=nullcontext)
    ledger = SimpleNamespace(answers=SimpleNamespace(applied=1))
    installation = SimpleNamespace(directory="", log=SimpleNamespace(store=store), ledger=ledger)
    process = SimpleNamespace(_stopping=threading.Event())
    monkeypatch.setattr(writer, "save_report", save)
    monkeypatch.setattr(writer, "REPORT_SECONDS", 0.001)
    before = threading.active_count()
    with pytest.raises(KeyError), Writer._reporting(cast("Writer", process), cast("Installation", installation)):
        fail_later()
    assert threading.active_count() == before, "the thread has ended"
    assert caplog.messages == ["cannot report this node to the others: ValueError: an error"]
