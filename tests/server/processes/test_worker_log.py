"""What a worker logs about refused changes and files that cannot be saved; its sign of life while it loads."""

import asyncio
import os
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from perseid.ledger.errors import ClockError, LostEntries, ReadOnlyMode, StorageFull, StoreUnavailable
from perseid.registry.installation.settings import Config
from perseid.server.limits.guesses import KnownClients
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.counters import SharedCounters
from perseid.server.observe.logs import LineStyle, Log, LogOutput
from perseid.server.processes.child import ChildOptions, SupervisorLink
from perseid.server.processes.worker import REMINDER_INTERVAL, KnownClientsFile, ProblemLog, Worker


def test_refused_changes_are_logged_once_and_again_after_recovery_or_a_long_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ProblemLog()
    full, wrong = StorageFull("the disk is full"), ClockError("the clock is wrong")
    steps = [
        (None, 0),
        (full, 1),
        (full, 2),
        (None, 3),
        (full, 4),
        (wrong, 5),
        (wrong, 6),
        (wrong, REMINDER_INTERVAL + 5),
        (StoreUnavailable("the database connection was lost; retry"), REMINDER_INTERVAL + 6),
        (ReadOnlyMode("the service is read-only for maintenance"), REMINDER_INTERVAL + 7),
        (LostEntries.after(9, 7), REMINDER_INTERVAL + 8),
    ]
    for problem, now in steps:
        log.update(problem, now)
    log.update(StorageFull("the disk is full"), REMINDER_INTERVAL + 9, resolves=False)
    no_view = "public resolution does not work, as the answers view is missing or behind the ledger"
    goes_on = "; public resolution continues"
    refused = f"changes are refused{goes_on}"
    hint = "To see what is wrong, run: perseid check"
    assert [record.message for record in caplog.records] == [
        f"{refused}: the disk is full. Free disk space",
        "changes are accepted again",
        f"{refused}: the disk is full. Free disk space",
        f"{refused}: the clock is wrong. {hint}",
        f"{refused}: the clock is wrong. {hint}",
        f"changes are refused until the database can be used{goes_on}: the database connection was lost. {hint}",
        f"{refused}: the service is read-only for maintenance. To accept changes again, run: perseid read-only off",
        f"{refused}: {LostEntries.after(9, 7)}",
        f"changes are refused; {no_view}: the disk is full. Free disk space",
    ]
    assert [record.levelname for record in caplog.records][-3:] == ["WARNING", "ERROR", "ERROR"]
    assert "accept the loss on every node: perseid rebuild answers" in caplog.records[-2].message


def test_failed_save_of_known_clients_is_retried_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    file = KnownClientsFile(folder / "known-clients")
    known = KnownClients(b"key")
    logged, changed = [], []

    def save() -> None:
        asyncio.run(file.save(known))
        logged.append(len(caplog.records))
        changed.append(known.changed)

    known.add((1,), udp=False)
    save()
    save()
    folder.mkdir()
    save()
    assert KnownClients.read(file.path, b"key").contains((1,), udp=False)
    file.path.unlink()
    save()
    assert not file.path.exists(), "nothing has changed"
    folder.rmdir()
    known.add((2,), udp=False)
    save()
    assert changed == [True, True, False, False, True]
    assert logged == [1, 1, 1, 1, 2]
    assert caplog.records[0].message == f"cannot save {file.path}: No such file or directory"


def test_known_clients_are_read_outside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, dump, threads = KnownClients(b"key"), KnownClients.dump, list[int]()

    def dump_here(self: KnownClients) -> bytes:
        threads.append(threading.get_ident())
        return dump(self)

    monkeypatch.setattr(KnownClients, "dump", dump_here)
    known.add((1,), udp=False)
    asyncio.run(KnownClientsFile(tmp_path / "known-clients").save(known))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_lines_logged_during_a_reload_are_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        worker = Worker.__new__(Worker)
        worker._service, worker._udp = Mock(), Mock()
        worker._log = Log(LineStyle("worker-1"), LogOutput(file.fileno()))
        worker._access = AccessLog(worker._log)
        worker._access.log_request("192.0.2.1", "tcp", 1, 1, b"12345/x", 10)
        worker._log.output.close()  # as `logs.configure` does
        worker._open_access_log(Config.parse("", {}))
    assert path.read_text().count("12345/x") == 1


def test_worker_counts_as_alive_while_it_loads_pages() -> None:
    counters = SharedCounters.create(1)
    beats: set[float] = set()

    def load() -> None:
        deadline = time.monotonic() + 30
        while len(beats) < 3 and time.monotonic() < deadline:
            beats.add(counters.last_beat(0))
            time.sleep(0.01)

    worker = Mock()
    worker._supervisor = SupervisorLink(
        ChildOptions(
            directory="",
            state="",
            name="worker-0",
            number=0,
            is_first=False,
            accept_clock=False,
            counters=counters.descriptor,
            status=-1,
            news=-1,
        )
    )
    Worker._load(worker, Mock(load=load))
    os.close(counters.descriptor)
    assert len(beats) == 3, "the event loop may wait for the pages, so a thread says that the worker is alive"
