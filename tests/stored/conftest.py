"""The clock of these tests: it shows the day on which the installation was left, so that its tokens still count."""

import time

import pytest

from perseid.ledger.log import clock
from tests.stored import stored


@pytest.fixture(autouse=True)
def _day_on_which_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock go on from a minute after the last entry; every later version was released after that."""
    real = time.time_ns
    ahead = (int(stored.expected()["now"]) + 60) * 1_000_000_000 - real()
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    monkeypatch.setattr(time, "time", lambda: (real() + ahead) / 1_000_000_000)
    monkeypatch.setattr(clock, "RELEASE_DATE", 0)
