"""Known clients survive a restart as keyed hashes, and the next turn belongs to the network that failed least."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from perseid.server.limits.budgets import EXEMPT, get_source
from perseid.server.limits.guesses import (
    FAILURE_SECONDS,
    KNOWN_DAYS,
    MAX_TURNS,
    MAX_WAIT,
    MAX_WAITING,
    RECENT_SECONDS,
    GuessQueue,
    KnownClients,
)
from perseid.server.state.state import StateFull, Table
from tests.server.shared_state import make_state

HOME, OTHER = get_source("192.0.2.1"), get_source("2001:db8::1")
ADMIN = b"own 0.NA/12345"
DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000 * DAY

    def __call__(self) -> float:
        return self.now


def remembered(clock: Clock, key: bytes = b"key", max_size: int = 4) -> KnownClients:
    return KnownClients(key, clock, max_size)


def test_proof_is_remembered_for_its_address_identity_and_transport() -> None:
    known = remembered(Clock())
    known.add(HOME, ADMIN, udp=False)
    assert known.contains(HOME, ADMIN.lower(), udp=False)
    assert not known.contains(HOME, ADMIN, udp=True)
    assert not known.contains(HOME, b"own 0.NA/54321", udp=False)
    assert not any(known.contains(source, ADMIN, udp=False) for source in (OTHER, EXEMPT))
    assert not known.contains(HOME, udp=False)


def test_known_clients_survive_a_restart_until_they_expire() -> None:
    clock = Clock()
    known = remembered(clock)
    known.add(HOME, ADMIN, udp=False)
    changed = [known.changed]
    data = known.dump()
    known.add(HOME, ADMIN, udp=False)
    changed.append(known.changed)
    assert changed == [True, False], "nothing to save again on the same day"
    clock.now += (KNOWN_DAYS - 1) * DAY
    again = remembered(clock)
    again.load(data)
    assert again.contains(HOME, ADMIN, udp=False)
    clock.now += DAY
    assert not again.contains(HOME, ADMIN, udp=False)
    expired = remembered(clock)
    expired.load(data)
    assert len(expired) == 0
    assert len(again.dump()) == len(expired.dump()), "nor is it written again"


def test_all_processes_know_clients_and_save_those_of_others() -> None:
    state, clock = make_state(), Clock()
    one, two = (KnownClients(b"key", clock, state=state) for _ in range(2))
    one.add(HOME, ADMIN, udp=False)
    assert two.contains(HOME, ADMIN, udp=False)
    two.add(OTHER, ADMIN, udp=False)
    again = remembered(clock)
    again.load(one.dump())
    assert all(again.contains(source, ADMIN, udp=False) for source in (HOME, OTHER))


def test_wrong_guesses_are_counted_in_all_processes_for_a_day() -> None:
    state, clock = make_state(), Clock()
    one, two = (KnownClients(b"key", clock, max_size=4, state=state) for _ in range(2))
    for known in (one, two):
        known.add_failure(OTHER, ADMIN, udp=False)
    assert one.failures(OTHER, ADMIN.lower(), udp=False) == (2, 2, 2)
    assert one.failures(OTHER, ADMIN, udp=True) == (0, 0, 0)
    assert not one.contains(OTHER, ADMIN, udp=False)
    clock.now += 1
    for number in range(4):
        one.add_failure((number,), ADMIN, udp=False)
    assert one.failures(OTHER, ADMIN, udp=False) == (0, 0, 0), "the number is limited"
    two.forget_failures((1,), ADMIN, udp=False)
    assert [one.failures((number,), ADMIN, udp=False) for number in range(4)] == [(1,), (0,), (1,), (1,)]
    clock.now += FAILURE_SECONDS
    assert one.failures((2,), ADMIN, udp=False) == (0,)


def test_right_secret_is_accepted_if_the_state_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    known = KnownClients(b"key", Clock(), state=state)
    known.add_failure(HOME, ADMIN, udp=False)

    def fail(*_: object) -> None:
        raise StateFull

    monkeypatch.setattr(state, "write", fail)
    known.forget_failures(HOME, ADMIN, udp=False)
    assert known.failures(HOME, ADMIN, udp=False) == (1,)


def test_clock_that_was_set_back_extends_nothing() -> None:
    clock = Clock()
    known = remembered(clock)
    known.add(HOME, ADMIN, udp=False)
    clock.now -= 500 * DAY
    again = remembered(clock)
    again.load(known.dump())
    clock.now += KNOWN_DAYS * DAY
    assert not again.contains(HOME, ADMIN, udp=False)


def test_file_reveals_neither_handle_nor_address_and_belongs_to_one_installation() -> None:
    known = remembered(Clock())
    known.add(HOME, ADMIN, udp=False)
    data = known.dump()
    assert all(part not in data for part in (b"12345", bytes((192, 0, 2, 1)), b"192.0.2.1"))
    foreign = remembered(Clock(), key=b"another")
    foreign.load(data)
    assert len(foreign) == 0


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[1:], lambda data: data[:30] + b"x" + data[31:]]
)
def test_damaged_file_counts_as_empty(damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    known = remembered(Clock())
    known.add(HOME, ADMIN, udp=False)
    (path := tmp_path / "known").write_bytes(damage(known.dump()))
    assert len(KnownClients.read(path, b"key")) == 0
    assert len(KnownClients.read(tmp_path / "missing", b"key")) == 0


def test_number_of_known_clients_is_limited() -> None:
    known = remembered(clock := Clock())
    for number in (1, 2, 3, 4, 1, 5):
        known.add((number,), udp=False)
        clock.now += DAY
    assert [known.contains((number,), udp=False) for number in range(1, 6)] == [True, False, True, True, True]


def test_known_client_is_looked_up_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    known, lookups = remembered(clock := Clock()), list[bytes]()
    get = Table.get

    def count(table: Table, key: bytes, now: float) -> bytes | None:
        lookups.append(key)
        return get(table, key, now)

    monkeypatch.setattr(Table, "get", count)
    for number, expected in ((1, 1), (1, 1), (2, 2)):
        known.add((number,), ADMIN, udp=False)
        assert known.contains((number,), ADMIN, udp=False)
        assert len(lookups) == expected
    clock.now += RECENT_SECONDS
    assert known.contains((1,), ADMIN, udp=False)
    assert len(lookups) == 3
    clock.now += KNOWN_DAYS * DAY
    assert not known.contains((1,), ADMIN, udp=False)


def test_next_turn_belongs_to_the_network_that_failed_least() -> None:
    queue = GuessQueue()
    with queue.enter(ADMIN, (1,), (3,)) as guessing, queue.enter(ADMIN, (2,), (0,)) as first:
        assert queue.is_next(ADMIN, first)
        assert not queue.is_next(ADMIN, guessing)
        assert not queue.is_next(ADMIN), "nobody comes before those who wait"
        assert queue.is_next(b"own 1/other")
        with queue.enter(ADMIN, (3,), (0,)) as second, queue.enter(ADMIN, (2,), (0,)) as third:
            assert queue.is_next(ADMIN, first), "who comes first"
            assert (second.rank, third.rank) == ((0, 0, 0), (1, 1, 1)), "waiting twice counts"
    assert len(queue) == 0


def test_all_processes_have_one_queue() -> None:
    state, clock = make_state(), Clock()
    one, two = (GuessQueue(state, clock=clock) for _ in range(2))
    with ExitStack() as stack:
        guessing = [
            stack.enter_context((one, two)[number % 2].enter(ADMIN, (number,), (1,))) for number in range(MAX_TURNS)
        ]
        assert len(GuessQueue(state, udp=True, clock=clock)) == 0
        assert not two.is_next(ADMIN)
        assert two.is_next(ADMIN, guessing[0])
        admin = stack.enter_context(two.enter(ADMIN, HOME, (0,)))
        assert one.is_next(ADMIN, admin)
        assert (len(one), guessing[-1] in two) == (MAX_TURNS, False)
        clock.now += MAX_WAIT
        assert len(two) == 0, "those of a killed process expire"


def test_attempt_is_refused_if_the_state_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = GuessQueue(state := make_state())

    def fail(*_: object) -> None:
        raise StateFull

    monkeypatch.setattr(state, "write", fail)
    with queue.enter(ADMIN, HOME, (0,)) as attempt:
        assert attempt not in queue


def test_large_networks_are_compared_first() -> None:
    queue = GuessQueue()
    with queue.enter(ADMIN, OTHER, (0, 5, 9)) as guessing, queue.enter(ADMIN, HOME, (1,)) as home:
        assert guessing.rank == (9, 5, 0)
        assert queue.is_next(ADMIN, home)


def test_ipv4_and_ipv6_are_compared_on_equal_terms() -> None:
    queue = GuessQueue()
    with queue.enter(ADMIN, OTHER, (0, 0, 0)) as ipv6, queue.enter(ADMIN, HOME, (0,)) as ipv4:
        assert queue.is_next(ADMIN, ipv6), "of equal ones the first to come"
        assert ipv4.rank == ipv6.rank
    with queue.enter(ADMIN, HOME, (1,)), queue.enter(ADMIN, OTHER, (0, 0, 1)) as ipv6:
        assert queue.is_next(ADMIN, ipv6), "of its site another customer failed, but not this one"
    with queue.enter(ADMIN, OTHER, (1, 1, 1)), queue.enter(ADMIN, HOME, (0,)) as ipv4:
        assert queue.is_next(ADMIN, ipv4)


@pytest.mark.parametrize(("handles", "limit"), [(1, MAX_TURNS), (MAX_WAITING, MAX_WAITING)])
def test_full_queue_refuses_the_network_that_failed_most(handles: int, limit: int) -> None:
    queue = GuessQueue()
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(queue.enter(b"own 1/%d" % (number % handles), (number,), (number + 1,)))
            for number in range(limit)
        ]
        late = stack.enter_context(queue.enter(b"own 1/0", (1_000,), (limit,)))
        assert late not in queue, "of equal ones the last to come"
        fresh = stack.enter_context(queue.enter(b"own 1/0", (2_000,), (0,)))
        assert fresh in queue
        assert [attempt in queue for attempt in waiting] == [True] * (limit - 1) + [False]
        assert len(queue) == limit
    assert len(queue) == 0
