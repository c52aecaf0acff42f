"""Allocated numbers are unique whatever the clock does and however many threads request them."""

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names import pilin
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.pilin import PilinScheme
from perseid.names.schemes import (
    CHUNK_SIZE,
    DEFAULT_MAX_AHEAD,
    DEFAULT_MAX_WAIT,
    STRICT_CLOCK,
    Allocator,
    MemoryLease,
    Source,
)
from tests.names.support import NOON, FakeClock, misuse_error

THREADS = 8
SUFFIXES_PER_THREAD = 20_000


def allocator(fake_clock: FakeClock, max_ahead: int = DEFAULT_MAX_AHEAD, lease: MemoryLease | None = None) -> Allocator:
    return Allocator(lease or MemoryLease(), fake_clock.clock, fake_clock.sleep, max_ahead=max_ahead)


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Switch threads as often as Python allows, so that a race would show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_p6_eight_threads_with_a_jumping_clock_mint_unique_suffixes() -> None:
    """The clock jumps up to half an hour in either direction between two readings."""
    seconds = random.Random(6)

    def clock() -> int:
        return (NOON + seconds.randrange(-1_800_000, 1_800_000)) * 1_000_000

    # A maximum lead of two hours covers the jumps and all names together, so no wait is needed.
    source = Source(clock, random.randbytes, MemoryLease(), lambda _: pytest.fail("no wait is due"), 7_200_000)
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[str]:
        sizes = random.Random(number)
        minted: list[str] = []
        start.wait(timeout=30)
        while len(minted) < SUFFIXES_PER_THREAD:
            minted += PilinScheme().mint(source, min(sizes.choice([1, 2, 50, 1500]), SUFFIXES_PER_THREAD - len(minted)))
        return minted

    with ThreadPoolExecutor(THREADS) as pool:
        minted = [suffix for suffixes in pool.map(work, range(THREADS)) for suffix in suffixes]
    assert len(minted) == THREADS * SUFFIXES_PER_THREAD
    assert len(set(minted)) == THREADS * SUFFIXES_PER_THREAD


def test_p6_lease_is_thread_safe() -> None:
    """A comparison with this number lets other threads run in between."""

    class SlowInt(int):
        def __gt__(self, other: int) -> bool:
            threading.Event().wait(0.001)
            return int(self) > other

    lease = MemoryLease()
    with ThreadPoolExecutor(THREADS) as pool:
        firsts = list(pool.map(lambda _: lease(1, SlowInt(0)), range(100)))
    assert sorted(firsts) == list(range(100))


@pytest.mark.parametrize(
    ("last", "count", "now", "first"), [(-1, 1, 0, 0), (-1, 5, 100, 100), (99, 5, 100, 100), (100, 5, 100, 101)]
)
def test_p6_lease_starts_at_the_clock_or_after_the_last_lease(last: int, count: int, now: int, first: int) -> None:
    lease = MemoryLease(last)
    assert lease(count, now) == first
    assert lease(1, 0) == first + count


def test_p6_reading_the_lease_allocates_nothing() -> None:
    lease = MemoryLease()
    assert lease(0, 1_000) == 1_000
    assert lease(0, 5) == 5
    assert (lease(2, 7), lease(0, 7), lease(0, 7), lease(1, 7)) == (7, 9, 9, 9)


def test_p6_requests_in_one_millisecond_get_different_numbers() -> None:
    fake_clock = FakeClock()
    shared = allocator(fake_clock)
    assert shared.allocate(1) + shared.allocate(2) == [NOON, NOON + 1, NOON + 2]
    assert fake_clock.slept == []


def test_p6_numbers_are_not_reused_when_the_clock_steps_back() -> None:
    fake_clock = FakeClock()
    shared = allocator(fake_clock)
    before = shared.allocate(5)
    fake_clock.now -= 60_000
    assert shared.allocate(2) == [before[-1] + 1, before[-1] + 2]


def test_p6_numbers_are_leased_exactly_as_requested_in_chunks() -> None:
    fake_clock = FakeClock()
    sizes: list[int] = []
    lease = MemoryLease()

    def counting_lease(count: int, now: int) -> int:
        sizes.append(count)
        return lease(count, now)

    allocated = Allocator(counting_lease, fake_clock.clock, fake_clock.sleep).allocate(2 * CHUNK_SIZE + 1)
    assert sizes == [0, CHUNK_SIZE, 0, CHUNK_SIZE, 0, 1], "each time a look first"
    assert allocated == list(range(NOON, NOON + 2 * CHUNK_SIZE + 1))


@pytest.mark.parametrize("max_ahead", [0, 1, 250, 5_000])
def test_p6_no_number_is_further_ahead_than_max_ahead(max_ahead: int) -> None:
    fake_clock = FakeClock()
    count = 8 * CHUNK_SIZE
    allocated = allocator(fake_clock, max_ahead).allocate(count)
    assert allocated == list(range(NOON, NOON + count))
    # The allocator runs ahead as far as allowed and waits for exactly the rest.
    assert allocated[-1] - fake_clock.now == max_ahead
    assert round(sum(fake_clock.slept) * 1000) == count - 1 - max_ahead


def test_p6_allocation_within_max_ahead_does_not_wait() -> None:
    fake_clock = FakeClock()
    allocator(fake_clock).allocate(10 * CHUNK_SIZE)
    assert fake_clock.slept == []


def test_p6_strict_clock_allocates_a_thousand_numbers_per_second() -> None:
    fake_clock = FakeClock()
    strict = allocator(fake_clock, STRICT_CLOCK)
    allocated = [number for _ in range(3_000) for number in strict.allocate(1)]
    assert allocated == list(range(NOON, NOON + 3_000))
    assert fake_clock.now == allocated[-1]


def test_p6_clock_that_is_far_behind_raises_an_error_instead_of_waiting() -> None:
    fake_clock = FakeClock()
    shared = allocator(fake_clock, 1_000)
    shared.allocate(1)
    fake_clock.now -= 1_000 + DEFAULT_MAX_WAIT
    problem = misuse_error(shared.allocate, 2)
    assert problem.rule == "P6"
    assert "61 s ahead" in problem.message
    assert "the maximum is 1 s" in problem.message
    assert fake_clock.slept == []
    fake_clock.now += 1
    assert shared.allocate(1) == [NOON + 1], "what was refused is not lost"


def test_p6_stopped_clock_exhausts_max_wait() -> None:
    slept: list[float] = []
    lease = MemoryLease()
    frozen = Allocator(lease, lambda: NOON, slept.append, max_ahead=STRICT_CLOCK)
    assert misuse_error(frozen.allocate, 101).rule == "P6"
    assert slept == [0.1] * (DEFAULT_MAX_WAIT // 100)
    assert lease(0, 0) == 0, "nothing was leased"


@pytest.mark.parametrize("days", [1, 100])
def test_p6_without_max_wait_the_allocator_waits_without_limit(days: int) -> None:
    """As documented; the default limit is one minute."""
    fake_clock = FakeClock()
    unlimited = Allocator(MemoryLease(), fake_clock.clock, fake_clock.sleep, STRICT_CLOCK, max_wait=None)
    unlimited.allocate(1)
    fake_clock.now -= days * 86_400_000
    assert unlimited.allocate(1) == [NOON + 1]
    assert fake_clock.now == NOON + 1


def test_p6_source_sets_max_wait_of_the_allocator() -> None:
    fake_clock = FakeClock()
    source = fake_clock.source(max_ahead=STRICT_CLOCK)
    (first,) = PilinScheme().mint(source)
    fake_clock.now -= 86_400_000
    assert misuse_error(PilinScheme().mint, source).rule == "P6"
    (second,) = PilinScheme().mint(replace(source, max_wait=None))
    assert pilin.decode(second) == pilin.decode(first) + 1


def test_p6_max_wait_is_configurable() -> None:
    fake_clock = FakeClock()
    limited = Allocator(MemoryLease(), fake_clock.clock, fake_clock.sleep, STRICT_CLOCK, max_wait=10)
    assert limited.allocate(11) == list(range(NOON, NOON + 11))
    assert misuse_error(limited.allocate, 12).rule == "P6"
    assert limited.allocate(1) == [NOON + 11]


def test_p6_concurrent_lease_causes_a_second_wait_and_no_duplicates() -> None:
    fake_clock = FakeClock()
    lease = MemoryLease()

    def contended_lease(count: int, now: int) -> int:
        if count:
            lease(50, now)  # another caller
        return lease(count, now)

    strict = Allocator(contended_lease, fake_clock.clock, fake_clock.sleep, STRICT_CLOCK)
    assert strict.allocate(10) == list(range(NOON + 50, NOON + 60))
    assert fake_clock.now == NOON + 59


def test_p6_negative_count_is_misuse() -> None:
    assert misuse_error(allocator(FakeClock()).allocate, -1).rule == "P6"
    assert allocator(FakeClock()).allocate(0) == []
    assert not issubclass(NameMisuse, InvalidName)


@given(
    st.lists(st.tuples(st.integers(0, 2_500), st.integers(-200_000, 200_000)), max_size=12),
    st.sampled_from([0, 10, 1_000, 100_000]),
)
def test_p6_numbers_are_unique_ascending_and_near_the_clock(requests: list[tuple[int, int]], max_ahead: int) -> None:
    fake_clock = FakeClock(now=10**9)
    lease = MemoryLease()
    shared = allocator(fake_clock, max_ahead, lease)
    earlier: set[int] = set()
    for count, jump in requests:
        fake_clock.now += jump
        requested_at, last = fake_clock.now, lease._last
        try:
            allocated = shared.allocate(count)
        except NameMisuse:
            # Only a clock that fell behind by more than max_ahead and max_wait leads here.
            assert last + min(count, CHUNK_SIZE) - max_ahead - fake_clock.now > DEFAULT_MAX_WAIT
            assert lease._last == last, "what was refused is not lost"
            continue
        assert allocated == sorted(set(allocated))
        assert len(allocated) == count
        assert earlier.isdisjoint(allocated)
        assert all(number >= requested_at for number in allocated)
        assert all(number <= fake_clock.now + max_ahead for number in allocated)
        earlier.update(allocated)
