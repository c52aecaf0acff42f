"""The checked clock: what is accepted and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.errors import ClockError
from perseid.ledger.log.clock import MAX_GAP, RELEASE_DATE, SECOND, TOLERANCE
from tests.ledger.ledgers import NOW, Machine

YEAR = 365 * 86_400 * SECOND


def test_correct_clock_dates_entries() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.date(None) == NOW
    machine.run(7)
    assert clock.date(NOW) == NOW + 7


@pytest.mark.parametrize("back", [1, TOLERANCE])
def test_small_step_back_keeps_the_last_date(back: int) -> None:
    clock = Machine(NOW - back).clock()
    assert clock.date(NOW) == NOW
    assert clock.date(NOW) == NOW


@pytest.mark.parametrize(
    ("wall", "last", "words"),
    [
        (0, None, "before the release"),
        (RELEASE_DATE - 1, None, "before the release"),
        (NOW - TOLERANCE - 1, NOW, "behind the last entry"),
        (NOW + MAX_GAP + 1, NOW, "ahead of the last entry"),
        (NOW + 64 * YEAR, NOW, "ahead of the last entry"),
    ],
)
def test_wrong_clock_is_refused(wall: int, last: int | None, words: str) -> None:
    with pytest.raises(ClockError, match=words):
        Machine(wall).clock().date(last)


@pytest.mark.parametrize(("wall", "last"), [(RELEASE_DATE, None), (NOW + MAX_GAP, NOW)])
def test_the_limits_themselves_are_allowed(wall: int, last: int | None) -> None:
    assert Machine(wall).clock().date(last) == wall


@pytest.mark.parametrize("jump", [TOLERANCE + 1, -TOLERANCE - 1, YEAR, -YEAR // 2])
def test_jump_while_running_is_detected_by_the_monotonic_clock(jump: int) -> None:
    machine = Machine()
    clock = machine.clock()
    clock.date(None)
    machine.wall += jump
    with pytest.raises(ClockError, match=r"jumped|behind"):
        clock.date(NOW)
    machine.wall -= jump
    assert clock.date(NOW) == NOW


def test_a_long_pause_is_suspicious_at_the_start_only() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.date(None)
    machine.run(MAX_GAP + SECOND)
    assert clock.date(NOW) == machine.wall


def test_operator_can_accept_the_clock() -> None:
    machine = Machine(NOW + 64 * YEAR)
    clock = machine.clock()
    with pytest.raises(ClockError, match=r"^the clock is 23,360 days ahead of the last entry of the ledger$"):
        clock.date(NOW)
    clock.accept()
    assert clock.date(NOW) == NOW + 64 * YEAR
    assert machine.clock(accepted=True).date(NOW) == NOW + 64 * YEAR


def test_an_accepted_clock_that_jumps_later_is_refused() -> None:
    machine = Machine(wall=0)
    clock = machine.clock(accepted=True)
    assert clock.date(NOW) == NOW
    machine.wall += 20 * 365 * 86_400 * SECOND
    with pytest.raises(ClockError, match=r"^the clock jumped by 630,720,000 s while the program was running$"):
        clock.date(NOW)


@pytest.mark.parametrize("year", [2039, 2056, 2090])
def test_any_year_after_the_release_is_an_ordinary_year(year: int) -> None:
    wall = (year - 1970) * 31_556_952 * SECOND
    assert Machine(wall).clock().date(wall - SECOND) == wall


@given(st.lists(st.integers(-2 * TOLERANCE, 2 * TOLERANCE), max_size=30))
def test_dates_never_go_back_with_any_clock(jumps: list[int]) -> None:
    machine = Machine()
    clock = machine.clock()
    last = clock.date(None)
    for jump in jumps:
        machine.wall += jump
        try:
            date = clock.date(last)
        except ClockError:
            continue
        assert date >= last
        assert date - machine.wall <= TOLERANCE
        last = date
