"""Numbers that are never given twice, whatever the clock does and however many threads ask."""

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
from perseid.names.allocator import (
    CHUNK_SIZE,
    DEFAULT_MAX_AHEAD,
    DEFAULT_MAX_WAIT,
    STRICT_CLOCK,
    Allocator,
    MemoryLease,
)
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.pilin import PilinScheme
from perseid.names.suffix_scheme import Source
from tests.names.support import NOON, World, misused

THREADS = 8
EACH = 20_000


def allocator(world: World, max_ahead: int = DEFAULT_MAX_AHEAD, lease: MemoryLease | None = None) -> Allocator:
    return Allocator(lease or MemoryLease(), world.clock, world.sleep, max_ahead=max_ahead)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads change places as often as Python lets them, so that a race would show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_p6_eight_threads_and_a_jumping_clock_mint_no_suffix_twice() -> None:
    """The clock jumps both ways, half an hour at most, between any two looks at it."""
    seconds = random.Random(6)

    def clock() -> int:
        return (NOON + seconds.randrange(-1_800_000, 1_800_000)) * 1_000_000

    # With two hours allowed nobody waits: the jumps and all names together stay within them.
    source = Source(clock, random.randbytes, MemoryLease(), lambda _: pytest.fail("no wait is due"), 7_200_000)
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[str]:
        sizes = random.Random(number)
        minted: list[str] = []
        start.wait(timeout=30)
        while len(minted) < EACH:
            minted += PilinScheme().mint(source, min(sizes.choice([1, 2, 50, 1500]), EACH - len(minted)))
        return minted

    with ThreadPoolExecutor(THREADS) as pool:
        minted = [suffix for suffixes in pool.map(work, range(THREADS)) for suffix in suffixes]
    assert len(minted) == THREADS * EACH
    assert len(set(minted)) == THREADS * EACH


def test_p6_a_lease_lets_one_thread_in_at_a_time() -> None:
    """Comparing with this number gives every other thread the chance to come between."""

    class Hesitant(int):
        def __gt__(self, other: int) -> bool:
            threading.Event().wait(0.001)
            return int(self) > other

    lease = MemoryLease()
    with ThreadPoolExecutor(THREADS) as pool:
        firsts = list(pool.map(lambda _: lease(1, Hesitant(0)), range(100)))
    assert sorted(firsts) == list(range(100))


@pytest.mark.parametrize(
    ("last", "count", "now", "first"), [(-1, 1, 0, 0), (-1, 5, 100, 100), (99, 5, 100, 100), (100, 5, 100, 101)]
)
def test_p6_a_lease_begins_at_the_clock_or_after_the_last_one(last: int, count: int, now: int, first: int) -> None:
    lease = MemoryLease(last)
    assert lease(count, now) == first
    assert lease(1, 0) == first + count


def test_p6_a_look_at_the_lease_takes_nothing() -> None:
    lease = MemoryLease()
    assert lease(0, 1_000) == 1_000
    assert lease(0, 5) == 5
    assert (lease(2, 7), lease(0, 7), lease(0, 7), lease(1, 7)) == (7, 9, 9, 9)


def test_p6_two_requests_in_one_millisecond_get_two_numbers() -> None:
    world = World()
    shared = allocator(world)
    assert shared.allocate(1) + shared.allocate(2) == [NOON, NOON + 1, NOON + 2]
    assert world.slept == []


def test_p6_a_clock_that_steps_back_does_not_bring_numbers_back() -> None:
    world = World()
    shared = allocator(world)
    before = shared.allocate(5)
    world.now -= 60_000
    assert shared.allocate(2) == [before[-1] + 1, before[-1] + 2]


def test_p6_numbers_are_leased_exactly_as_requested_in_chunks() -> None:
    world = World()
    sizes: list[int] = []
    lease = MemoryLease()

    def counted(count: int, now: int) -> int:
        sizes.append(count)
        return lease(count, now)

    taken = Allocator(counted, world.clock, world.sleep).allocate(2 * CHUNK_SIZE + 1)
    assert sizes == [0, CHUNK_SIZE, 0, CHUNK_SIZE, 0, 1], "each time a look first"
    assert taken == list(range(NOON, NOON + 2 * CHUNK_SIZE + 1))


@pytest.mark.parametrize("max_ahead", [0, 1, 250, 5_000])
def test_p6_no_number_is_handed_out_further_ahead_than_allowed(max_ahead: int) -> None:
    world = World()
    count = 8 * CHUNK_SIZE
    taken = allocator(world, max_ahead).allocate(count)
    assert taken == list(range(NOON, NOON + count))
    # It ran ahead as far as it may, and waited for the rest and not a millisecond longer.
    assert taken[-1] - world.now == max_ahead
    assert round(sum(world.slept) * 1000) == count - 1 - max_ahead


def test_p6_within_the_lead_nobody_waits() -> None:
    world = World()
    allocator(world).allocate(10 * CHUNK_SIZE)
    assert world.slept == []


def test_p6_a_strict_clock_gives_a_thousand_a_second() -> None:
    world = World()
    strict = allocator(world, STRICT_CLOCK)
    taken = [number for _ in range(3_000) for number in strict.allocate(1)]
    assert taken == list(range(NOON, NOON + 3_000))
    assert world.now == taken[-1]


def test_p6_a_clock_that_is_far_off_is_an_error_instead_of_a_long_wait() -> None:
    world = World()
    shared = allocator(world, 1_000)
    shared.allocate(1)
    world.now -= 1_000 + DEFAULT_MAX_WAIT
    problem = misused(shared.allocate, 2)
    assert problem.rule == "P6"
    assert "61 s ahead" in problem.message
    assert "the maximum is 1 s" in problem.message
    assert world.slept == []
    world.now += 1
    assert shared.allocate(1) == [NOON + 1], "what was refused is not lost"


def test_p6_a_clock_that_stands_still_exhausts_max_wait() -> None:
    slept: list[float] = []
    lease = MemoryLease()
    frozen = Allocator(lease, lambda: NOON, slept.append, max_ahead=STRICT_CLOCK)
    assert misused(frozen.allocate, 101).rule == "P6"
    assert slept == [0.1] * (DEFAULT_MAX_WAIT // 100)
    assert lease(0, 0) == 0, "nothing was leased"


@pytest.mark.parametrize("days", [1, 100])
def test_p6_without_max_wait_the_minter_waits_as_long_as_it_takes(days: int) -> None:
    """So the document says; the default is a minute, for the reason that stands there."""
    world = World()
    patient = Allocator(MemoryLease(), world.clock, world.sleep, STRICT_CLOCK, max_wait=None)
    patient.allocate(1)
    world.now -= days * 86_400_000
    assert patient.allocate(1) == [NOON + 1]
    assert world.now == NOON + 1


def test_p6_a_source_says_the_max_wait_of_its_minter() -> None:
    world = World()
    source = world.source(max_ahead=STRICT_CLOCK)
    (first,) = PilinScheme().mint(source)
    world.now -= 86_400_000
    assert misused(PilinScheme().mint, source).rule == "P6"
    (second,) = PilinScheme().mint(replace(source, max_wait=None))
    assert pilin.decode(second) == pilin.decode(first) + 1


def test_p6_max_wait_is_configurable() -> None:
    world = World()
    hasty = Allocator(MemoryLease(), world.clock, world.sleep, STRICT_CLOCK, max_wait=10)
    assert hasty.allocate(11) == list(range(NOON, NOON + 11))
    assert misused(hasty.allocate, 12).rule == "P6"
    assert hasty.allocate(1) == [NOON + 11]


def test_p6_another_caller_between_look_and_lease_costs_a_second_wait_and_no_number_twice() -> None:
    world = World()
    lease = MemoryLease()

    def crowded(count: int, now: int) -> int:
        if count:
            lease(50, now)  # another caller
        return lease(count, now)

    strict = Allocator(crowded, world.clock, world.sleep, STRICT_CLOCK)
    assert strict.allocate(10) == list(range(NOON + 50, NOON + 60))
    assert world.now == NOON + 59


def test_p6_a_negative_number_of_names_is_misuse() -> None:
    assert misused(allocator(World()).allocate, -1).rule == "P6"
    assert allocator(World()).allocate(0) == []
    assert not issubclass(NameMisuse, InvalidName)


@given(
    st.lists(st.tuples(st.integers(0, 2_500), st.integers(-200_000, 200_000)), max_size=12),
    st.sampled_from([0, 10, 1_000, 100_000]),
)
def test_p6_over_any_clock_numbers_are_new_ascending_and_near(requests: list[tuple[int, int]], max_ahead: int) -> None:
    world = World(now=10**9)
    lease = MemoryLease()
    shared = allocator(world, max_ahead, lease)
    given_out: set[int] = set()
    for count, jump in requests:
        world.now += jump
        asked_at, last = world.now, lease._last
        try:
            taken = shared.allocate(count)
        except NameMisuse:
            # Only a clock that fell behind by more than the lead and a minute's patience may lead here.
            assert last + min(count, CHUNK_SIZE) - max_ahead - world.now > DEFAULT_MAX_WAIT
            assert lease._last == last, "what was refused is not lost"
            continue
        assert taken == sorted(set(taken))
        assert len(taken) == count
        assert given_out.isdisjoint(taken)
        assert all(number >= asked_at for number in taken)
        assert all(number <= world.now + max_ahead for number in taken)
        given_out.update(taken)
