"""The writer as a process: how it starts, reports and ends, and how commands find it."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from perseid.cli._arguments import open_installation
from perseid.ledger.errors import Contention, LedgerError, StorageFull, TooBusy
from perseid.registry.commands.records import Create, Delete, Home
from perseid.registry.installation import installation as installations
from perseid.registry.installation.installation import Installation
from perseid.registry.queries.resolve import Query
from perseid.server.observe import logs
from perseid.server.processes import writer
from perseid.server.processes.child import ChildOptions, SupervisorLink
from perseid.server.processes.remote_ledger import SOCKET_NAME, STATE_NAME, RemoteLedger, WriterState, find_writer
from perseid.server.processes.writer import Writer, WriterServer
from perseid.server.state.runtime import WRITER_LINK
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, handle
from tests.server.processes.writers import URL, fork, kill, until


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
