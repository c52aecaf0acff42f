"""Work has a price and sources have budgets; what comes over UDP never counts against anybody over TCP."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.config import Config
from perseid.serve import budgets as module
from perseid.serve.budgets import BURST_SECONDS, NO_LIMIT, PRICES, Budget, Budgets, Connections, Rate, source_of
from perseid.serve.native_steps import Kind

START = 1_000.0
HOST, OTHER = "192.0.2.1", "198.51.100.1"


def configured(**settings: int) -> Config:
    lines = [f"{name} = {value}" for name, value in settings.items()]
    return Config.parse("\n".join(["[limits]", *lines]), {})


def test_sources_are_addresses_and_halves_of_ipv6_addresses() -> None:
    assert source_of("192.0.2.1") == source_of("::ffff:192.0.2.1") != source_of("192.0.2.2")
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1") != source_of("2001:db8:0:1::1")


# One budget

TAKES = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3), st.floats(0.01, 2)), max_size=40)


@given(TAKES, st.floats(0.1, 10), st.floats(2, 20), st.floats(0.1, 10), st.floats(2, 20))
def test_nobody_gets_more_than_their_budget_and_all_not_more_than_theirs(
    takes: list[tuple[float, int, float]], rate: float, burst: float, rate_in_all: float, burst_in_all: float
) -> None:
    budget = Budget(Rate(rate, burst), Rate(rate_in_all, burst_in_all))
    now, given_out = START, dict.fromkeys(range(4), 0.0)
    for pause, source, cost in takes:
        now += pause
        expected = not budget.is_used_up(source, now, cost)
        assert budget.take(source, now, cost) == expected
        given_out[source] += cost * expected
    passed = now - START
    assert all(spent <= burst + rate * passed + 1e-6 for spent in given_out.values())
    assert sum(given_out.values()) <= burst_in_all + rate_in_all * passed + 1e-6


def test_a_refusal_by_the_whole_budget_costs_the_source_nothing() -> None:
    budget = Budget(Rate(1, 3), Rate(1, 4))
    assert budget.take(1, START, 3)
    assert not budget.take(2, START, 2)
    assert budget.take(2, START, 1)
    assert budget.take(2, START + 2, 2)


def test_what_something_cost_in_the_end_is_settled() -> None:
    budget = Budget(Rate(1, 10), NO_LIMIT)
    assert budget.take(1, START, 1)
    budget.settle(1, 9)
    assert not budget.take(1, START, 1)
    budget.settle(1, -5)
    assert budget.take(1, START, 5)
    budget.settle(77, 1)  # has been forgotten meanwhile
    assert len(budget) == 1


def test_somebody_without_a_budget_uses_the_whole_one() -> None:
    budget = Budget(Rate(1, 1), Rate(1, 5))
    assert [budget.take(None, START) for _ in range(6)] == [True] * 5 + [False]
    assert budget.is_used_up(None, START)
    budget.settle(None, -2)
    assert budget.take(None, START)
    assert len(budget) == 0


def test_the_sources_that_are_remembered_have_an_end() -> None:
    budget = Budget(Rate(1, 1), NO_LIMIT, max_sources=3)
    assert all(budget.take(source, START) for source in (1, 2, 3))
    assert not budget.take(1, START)
    assert budget.take(1, START + 1)  # seen just now, so 2 is the one to go
    assert budget.take(4, START + 1)
    assert len(budget) == 3
    assert not budget.take(1, START + 1)


# All budgets


def drain(budgets: Budgets, kind: Kind, host: str, *, udp: bool) -> int:
    """How much work one gets until it is refused, if each costs its price."""
    count = 0
    while budgets.take(kind, budgets.whose(host), udp=udp, now=START):
        count += 1
        assert count < 1_000_000
    return count


@pytest.mark.parametrize("kind", Kind)
def test_a_flood_over_udp_leaves_everything_to_tcp(kind: Kind) -> None:
    budgets, untouched = Budgets(configured()), Budgets(configured())
    assert drain(budgets, kind, HOST, udp=True) > 0  # with the address of the one who comes over TCP
    for number in range(10):
        drain(budgets, kind, f"203.0.113.{number}", udp=True)
    assert drain(budgets, kind, HOST, udp=False) == drain(untouched, kind, HOST, udp=False)


@pytest.mark.parametrize("kind", Kind)
def test_one_address_leaves_something_to_the_others(kind: Kind) -> None:
    budgets = Budgets(configured(source_share=50))
    first, second = (drain(budgets, kind, host, udp=False) for host in (HOST, OTHER))
    assert first > 0
    assert abs(first - second) <= 1
    assert drain(budgets, kind, "203.0.113.1", udp=False) <= 2  # what rounding leaves


def test_shares_are_those_of_the_settings() -> None:
    budgets = Budgets(configured(sign_share=10, source_share=100, udp_share=50))
    expected = 0.1 * BURST_SECONDS / PRICES[Kind.SIGN]
    assert drain(budgets, Kind.SIGN, HOST, udp=False) == pytest.approx(expected, abs=1)
    assert drain(budgets, Kind.SIGN, HOST, udp=True) == pytest.approx(expected / 2, abs=1)


def test_work_that_was_dear_leaves_less() -> None:
    budgets = Budgets(configured())
    source = budgets.whose(HOST)
    assert budgets.take(Kind.VERIFY, source, udp=False, now=START)
    budgets.settle(Kind.VERIFY, source, 60.0, udp=False)
    assert not budgets.take(Kind.VERIFY, source, udp=False, now=START + 1)
    assert budgets.take(Kind.VERIFY, source, udp=True, now=START + 1)
    assert budgets.take(Kind.SIGN, source, udp=False, now=START + 1)


def test_exempt_addresses_have_the_whole_budget() -> None:
    budgets = Budgets(configured(source_share=10))
    assert budgets.whose("127.0.0.1") is None
    assert drain(budgets, Kind.AGREE, "127.0.0.1", udp=False) > 5 * drain(
        Budgets(configured(source_share=10)), Kind.AGREE, HOST, udp=False
    )


def test_failed_proofs_lock_an_address_out_for_a_while_on_that_transport_alone() -> None:
    budgets = Budgets(configured(failed_proofs=3))
    source, other = budgets.whose(HOST), budgets.whose(OTHER)
    for _ in range(3):
        assert not budgets.is_locked_out(source, udp=True, now=START)
        budgets.failed(source, udp=True, now=START)
    assert budgets.is_locked_out(source, udp=True, now=START)
    assert not budgets.is_locked_out(source, udp=False, now=START)
    assert not budgets.is_locked_out(other, udp=True, now=START)
    for kind in (Kind.VERIFY, Kind.AGREE):
        assert not budgets.take(kind, source, udp=True, now=START)
        assert budgets.take(kind, source, udp=False, now=START)
    assert budgets.take(Kind.READ, source, udp=True, now=START)
    for _ in range(100):  # trying on does not make it longer
        budgets.failed(source, udp=True, now=START)
    assert not budgets.is_locked_out(source, udp=True, now=START + 21)


def test_exempt_addresses_are_never_locked_out() -> None:
    budgets = Budgets(configured(failed_proofs=1))
    for _ in range(5):
        budgets.failed(budgets.whose("127.0.0.1"), udp=False, now=START)
    assert not budgets.is_locked_out(budgets.whose("127.0.0.1"), udp=False, now=START)


# Connections


def test_connections_have_an_end_by_address_and_in_all() -> None:
    connections = Connections(configured(connections=4, connections_per_address=2))
    assert [connections.admit(HOST) for _ in range(3)] == [True, True, False]
    assert connections.admit(OTHER)
    connections.leave(HOST)
    assert connections.admit("::ffff:192.0.2.1")
    assert connections.admit("127.0.0.1")
    assert not connections.admit(OTHER)
    assert (len(connections), connections.refused) == (4, 2)
    for host in (HOST, HOST, OTHER, "127.0.0.1"):
        connections.leave(host)
    assert len(connections) == 0
    assert connections._count == {}


def test_exempt_addresses_have_as_many_connections_as_there_are() -> None:
    connections = Connections(configured(connections=5, connections_per_address=1))
    assert [connections.admit("127.0.0.1") for _ in range(6)] == [True] * 5 + [False]


def test_other_settings_count_for_the_next_connection() -> None:
    connections = Connections(configured(connections_per_address=1))
    assert connections.admit(HOST)
    connections.configure(configured(connections_per_address=2, message_time=7, idle_time=8, take_time=9))
    assert [connections.admit(HOST), connections.admit(HOST)] == [True, False]
    assert (connections.message_time, connections.idle_time, connections.take_time) == (7, 8, 9)
    connections.leave(HOST)
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("soft", "hard", "asked_for", "limit"),
    [
        (1_024, 1 << 20, 4_096 + module.OTHER_DESCRIPTORS, 4_096),
        (1_024, 2_048, 2_048, 2_048 - module.OTHER_DESCRIPTORS),
        (1_024, resource.RLIM_INFINITY, 4_096 + module.OTHER_DESCRIPTORS, 4_096),
        (1 << 16, 1 << 16, None, 4_096),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 4_096),
    ],
)
def test_there_are_no_more_connections_than_descriptors(
    soft: int, hard: int, asked_for: int | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    assert Connections(configured(connections=4_096)).limit == limit
    assert asked == ([] if asked_for is None else [(asked_for, hard)])
