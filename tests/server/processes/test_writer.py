"""The writer process and the ledger of the processes that append through it."""

import asyncio
import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, delete, make_url, select
from sqlalchemy.exc import DatabaseError

from perseid.ledger import ledger as ledger_module
from perseid.ledger.errors import Contention, JobEnded, LedgerError, StoreUnavailable
from perseid.ledger.log.requests import Append, Appended, Failed, Lease, Leased
from perseid.ledger.store import tables
from perseid.ledger.store.idempotency import RecordUse, last_used_days
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Add, Create, Delete, Home
from perseid.registry.jobs import runner
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import MintResult, Refused
from perseid.server.native.decisions import to_refusal
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import change, open_store, postgres_with_tables, verified
from tests.postgres import Cluster, postgres
from tests.registry.registries import NOBODY, OPERATOR, handle
from tests.server.processes.writers import URL, address, disconnect, fill, folder, kill, remote, start, until, writing

__all__ = ["folder", "postgres"]


@pytest.fixture
def postgres_folder(tmp_path: Path, postgres: Cluster) -> Path:
    """The same with PostgreSQL."""
    where = postgres_with_tables(postgres)
    (tmp_path / "database").write_text(where)
    return fill(tmp_path, open_store(where))


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
