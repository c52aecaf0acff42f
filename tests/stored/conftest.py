"""A clock that shows the day after the installation was created, so that its tokens are still valid."""

import time

import pytest

from perseid.ledger.log import clock
from tests.stored import stored


@pytest.fixture(autouse=True)
def _clock_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the clock a minute after the last entry; every later version was released after that."""
    real = time.time_ns
    ahead = (int(stored.expected()["now"]) + 60) * 1_000_000_000 - real()
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    monkeypatch.setattr(time, "time", lambda: (real() + ahead) / 1_000_000_000)
    monkeypatch.setattr(clock, "RELEASE_DATE", 0)
