"""What the control process logs about changes that are refused."""

import pytest

from perseid.ledger.errors import ClockError, StorageFull
from perseid.server.processes.control import REMINDER_INTERVAL, ProblemLog


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
