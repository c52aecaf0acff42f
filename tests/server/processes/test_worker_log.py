"""What a worker logs about changes that are refused, and files that cannot be saved."""

import asyncio
from pathlib import Path

import pytest

from perseid.ledger.errors import ClockError, StorageFull
from perseid.server.limits.guesses import KnownClients
from perseid.server.processes.worker import REMINDER_INTERVAL, KnownClientsFile, ProblemLog


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
    ]
    for problem, now in steps:
        log.update(problem, now)
    hint = "To see what is wrong, run: perseid check"
    assert [record.message for record in caplog.records] == [
        f"changes are refused: the disk is full. {hint}",
        "changes are accepted again",
        f"changes are refused: the disk is full. {hint}",
        f"changes are refused: the clock is wrong. {hint}",
        f"changes are refused: the clock is wrong. {hint}",
    ]


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
