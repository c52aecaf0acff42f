"""Work has a price and sources have budgets; UDP never uses up what belongs to TCP."""

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.installation.settings import Config
from perseid.server.limits import budgets as module
from perseid.server.limits.buckets import MAX_BUDGETS, Buckets
from perseid.server.limits.budgets import (
    BURST_SECONDS,
    CUSTOMER_FACTOR,
    EXEMPT,
    NO_LIMIT,
    PRICES,
    SITE_FACTOR,
    Budget,
    Budgets,
    Connections,
    Rate,
    get_source,
)
from perseid.server.limits.connections import SharedConnections
from perseid.server.limits.guesses import KnownClients
from perseid.server.limits.udp import IncompatibleLayout, TrafficLimit
from perseid.server.native.work import WorkKind
from perseid.server.state.state import SharedState
from tests.server.shared_state import MAP_BYTES

START = 1_000.0
HOST, OTHER = "192.0.2.1", "198.51.100.1"


def configured(**settings: int) -> Config:
    lines = [f"{name} = {value}" for name, value in settings.items()]
    return Config.parse("\n".join(["[limits]", *lines]), {})


def make_budgets(config: Config, old: Budgets | None = None) -> Budgets:
    return Budgets(config, KnownClients(b"key") if old is None else old._known)


def test_source_is_an_address_or_an_ipv6_64_with_its_networks() -> None:
    assert get_source("192.0.2.1") == get_source("::ffff:192.0.2.1") != get_source("192.0.2.2")
    assert len(get_source("192.0.2.1")) == 1
    assert get_source("2001:db8::1") == get_source("2001:db8::ffff:1")
    host, customer, site = get_source("2001:db8:0:0::1")
    assert get_source("2001:db8:0:ff::1")[1:] == (customer, site)
    assert get_source("2001:db8:0:ff::1")[0] != host
    assert get_source("2001:db8:0:100::1")[2] == site
    assert get_source("2001:db8:0:100::1")[1] != customer
    assert get_source("2001:db8:1::1")[2] != site
    assert len({host, customer, site} | set(get_source("::1"))) == 6, "networks of different lengths are different"


# One budget

TAKES = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3), st.floats(0.01, 2)), max_size=40)


@given(TAKES, st.floats(0.1, 10), st.floats(2, 20), st.floats(0.1, 10), st.floats(2, 20))
def test_source_and_total_budgets_are_never_exceeded(
    takes: list[tuple[float, int, float]], rate: float, burst: float, rate_in_all: float, burst_in_all: float
) -> None:
    budget = Budget(Rate(rate, burst), Rate(rate_in_all, burst_in_all))
    now, given_out = START, dict.fromkeys(range(4), 0.0)
    for pause, source, cost in takes:
        now += pause
        expected = not budget.is_exhausted((source,), now, cost)
        assert budget.take((source,), now, cost) == expected
        given_out[source] += cost * expected
    passed = now - START
    assert all(spent <= burst + rate * passed + 1e-6 for spent in given_out.values())
    assert sum(given_out.values()) <= burst_in_all + rate_in_all * passed + 1e-6


def test_refusal_by_the_total_budget_costs_the_source_nothing() -> None:
    budget = Budget(Rate(1, 3), Rate(1, 4))
    assert budget.take((1,), START, 3)
    assert not budget.take((2,), START, 2)
    assert budget.take((2,), START, 1)
    assert budget.take((2,), START + 2, 2)


def test_actual_cost_is_settled() -> None:
    budget = Budget(Rate(1, 10), NO_LIMIT)
    assert budget.take((1,), START, 1)
    budget.settle((1,), 9)
    assert not budget.take((1,), START, 1)
    budget.settle((1,), -5)
    assert budget.take((1,), START, 5)


def test_exempt_source_uses_the_total_budget() -> None:
    budget = Budget(Rate(1, 1), Rate(1, 5))
    assert [budget.take(EXEMPT, START) for _ in range(6)] == [True] * 5 + [False]
    assert budget.is_exhausted(EXEMPT, START)
    budget.settle(EXEMPT, -2)
    assert budget.take(EXEMPT, START)


def test_ipv6_customer_has_twice_and_a_site_four_times_the_budget() -> None:
    budget = Budget(Rate(1, 10), NO_LIMIT)

    def drawn(*hosts: str) -> int:
        return sum(budget.take(get_source(host), START) for host in hosts for _ in range(20))

    assert drawn("2001:db8::1") == 10
    assert drawn(*[f"2001:db8:0:{number:x}::1" for number in range(1, 256)]) == 10 * (CUSTOMER_FACTOR - 1)
    assert drawn(*[f"2001:db8:0:{number:x}00::1" for number in range(1, 256)]) == 10 * (SITE_FACTOR - CUSTOMER_FACTOR)
    assert drawn("2001:db8:1::1") == 10
    assert drawn(*[f"192.0.2.{number}" for number in range(8)]) == 80


def test_settling_includes_the_surrounding_networks() -> None:
    budget = Budget(Rate(1, 10), NO_LIMIT)
    assert budget.take(get_source("2001:db8::1"), START, 1)
    budget.settle(get_source("2001:db8::1"), 9.0 + 30.0)
    assert not budget.take(get_source("2001:db8:0:100::1"), START, 1), "all of the site is used up"
    budget.settle(get_source("2001:db8::1"), -30.0)
    assert budget.take(get_source("2001:db8:0:100::1"), START, 1)


def test_known_sources_have_a_reserved_part_and_a_larger_share() -> None:
    budget = Budget(Rate(1, 8), Rate(8, 64), known_factor=4, reserved=0.5)
    strangers = sum(budget.take((number,), START) for number in range(50) for _ in range(11))
    assert strangers == 32
    assert budget.is_exhausted((77,), START)
    assert not budget.is_exhausted((77,), START, known=True)
    assert [budget.take((78,), START, 5, known=True) for _ in range(4)] == [True] * 4
    budget.settle((78,), -4, known=True)
    assert budget.is_exhausted((77,), START), "that was none of the strangers'"
    assert budget.take(EXEMPT, START, 16), "who is exempt may have all of it"
    assert not budget.take((79,), START, known=True), "64 is the whole"
    assert budget.take((77,), START + 1)


def test_known_sources_are_limited_too() -> None:
    budget = Budget(Rate(1, 8), NO_LIMIT, known_factor=4)
    assert sum(budget.take((1,), START, known=True) for _ in range(50)) == 32


def test_many_sources_hardly_affect_others() -> None:
    """Memory is fixed: a source is affected only if others use both of its words."""
    budget = Budget(Rate(1, 1), NO_LIMIT, buckets=Buckets.private(1 << 14))
    used_up = range(1_000)
    assert sum(not budget.take((source,), START) for source in used_up) < 20
    assert all(budget.is_exhausted((source,), START) for source in used_up)
    assert sum(budget.is_exhausted((source,), START) for source in range(10_000, 11_000)) < 40
    assert not any(budget.is_exhausted((source,), START + 1) for source in used_up)


def test_budgets_do_not_affect_each_other() -> None:
    buckets = Buckets.private()
    one, two = (Budget(Rate(1, 1), Rate(1, 2), buckets=buckets, number=number) for number in (0, 1))
    assert one.take((1,), START)
    assert [two.take((source,), START) for source in (1, 2, 3)] == [True, True, False]
    assert one.take((2,), START)
    with pytest.raises(ValueError, match="no words"):
        Budget(Rate(1, 1), NO_LIMIT, number=MAX_BUDGETS)


def test_all_processes_share_budgets(tmp_path: Path) -> None:
    state = SharedState(tmp_path, MAP_BYTES)
    buckets = [Buckets.shared(state, "budgets") for _ in range(2)]  # each maps the file
    one, two = (Budgets(configured(failed_proofs=3), KnownClients(b"key"), each) for each in buckets)
    assert [guess(budgets, f"203.0.113.{number}") for number, budgets in enumerate((one, two) * 3)] == [True] * 3 + [
        False
    ] * 3
    for number, budgets in enumerate((one, two) * 3):
        guess(budgets, HOST, b"1/%d" % number)
    assert all(budgets.is_locked_out(budgets.source_for(HOST), udp=False, now=START) for budgets in (one, two))
    both = [drain(budgets, WorkKind.VERIFY, "203.0.113.77", udp=False) for budgets in (one, two)]
    assert both[0] > 0
    assert both[1] == 0
    state.close()


# All budgets


def drain(budgets: Budgets, kind: WorkKind, host: str, *, udp: bool) -> int:
    """How much work a source gets until it is refused, if each costs its price."""
    count = 0
    while budgets.take(kind, budgets.source_for(host), udp=udp, now=START):
        count += 1
        assert count < 1_000_000
    return count


@pytest.mark.parametrize("kind", WorkKind)
def test_udp_flood_does_not_affect_tcp(kind: WorkKind) -> None:
    budgets, untouched = make_budgets(configured()), make_budgets(configured())
    assert drain(budgets, kind, HOST, udp=True) > 0  # with the address of the one who comes over TCP
    for number in range(10):
        drain(budgets, kind, f"203.0.113.{number}", udp=True)
    assert drain(budgets, kind, HOST, udp=False) == drain(untouched, kind, HOST, udp=False)


@pytest.mark.parametrize("kind", WorkKind)
def test_one_address_cannot_use_the_total_budget(kind: WorkKind) -> None:
    budgets = make_budgets(configured(source_share=50, reserved_share=0))
    first, second = (drain(budgets, kind, host, udp=False) for host in (HOST, OTHER))
    assert first > 0
    assert abs(first - second) <= 1
    assert drain(budgets, kind, "203.0.113.1", udp=False) <= 2  # what rounding leaves


def test_shares_are_those_of_the_settings() -> None:
    budgets = make_budgets(configured(sign_share=10, source_share=100, udp_share=50, reserved_share=0))
    expected = 0.1 * BURST_SECONDS / PRICES[WorkKind.SIGN]
    assert drain(budgets, WorkKind.SIGN, HOST, udp=False) == pytest.approx(expected, abs=1)
    assert drain(budgets, WorkKind.SIGN, HOST, udp=True) == pytest.approx(expected / 2, abs=1)


def test_expensive_work_uses_more_budget() -> None:
    budgets = make_budgets(configured())
    source = budgets.source_for(HOST)
    assert budgets.take(WorkKind.VERIFY, source, udp=False, now=START)
    budgets.settle(WorkKind.VERIFY, source, 60.0, udp=False)
    assert not budgets.take(WorkKind.VERIFY, source, udp=False, now=START + 1)
    assert budgets.take(WorkKind.VERIFY, source, udp=True, now=START + 1)
    assert budgets.take(WorkKind.SIGN, source, udp=False, now=START + 1)


def test_work_known_to_be_expensive_is_charged_in_advance() -> None:
    """An idle source may have it done once, although it costs more than the burst."""
    budgets = make_budgets(configured())  # one source has 0.25 s at once, strangers together 1.875 s
    first, second, third, known = (budgets.source_for(f"203.0.113.{number}") for number in range(4))
    budgets.record_proof(known, udp=False)
    assert budgets.take(WorkKind.VERIFY, first, udp=False, now=START, price=0.8)
    assert not budgets.take(WorkKind.VERIFY, first, udp=False, now=START, price=0.8)
    assert not budgets.take(WorkKind.VERIFY, first, udp=False, now=START)
    assert budgets.take(WorkKind.VERIFY, second, udp=False, now=START, price=0.8)
    assert not budgets.take(WorkKind.VERIFY, third, udp=False, now=START, price=0.8), "it is too much for strangers"
    assert budgets.take(WorkKind.VERIFY, third, udp=False, now=START)
    assert budgets.take(WorkKind.VERIFY, known, udp=False, now=START, price=0.8)
    budgets.settle(WorkKind.VERIFY, first, 0.0, udp=False, price=0.8)
    assert budgets.take(WorkKind.VERIFY, first, udp=False, now=START, price=0.8)


def test_exempt_addresses_have_the_total_budget() -> None:
    budgets = make_budgets(configured(source_share=10))
    assert budgets.source_for("127.0.0.1") == EXEMPT
    assert drain(budgets, WorkKind.AGREE, "127.0.0.1", udp=False) > 5 * drain(
        make_budgets(configured(source_share=10)), WorkKind.AGREE, HOST, udp=False
    )


def test_failed_authentications_lock_out_an_address_on_that_transport_only() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    source, other = budgets.source_for(HOST), budgets.source_for(OTHER)
    for _ in range(3):
        assert not budgets.is_locked_out(source, udp=True, now=START)
        budgets.record_failure(source, udp=True, now=START)
    assert budgets.is_locked_out(source, udp=True, now=START)
    assert not budgets.is_locked_out(source, udp=False, now=START)
    assert not budgets.is_locked_out(other, udp=True, now=START)
    for kind in (WorkKind.VERIFY, WorkKind.AGREE):
        assert not budgets.take(kind, source, udp=True, now=START)
        assert budgets.take(kind, source, udp=False, now=START)
    assert budgets.take(WorkKind.READ, source, udp=True, now=START)
    for _ in range(100):  # trying on does not make it longer
        budgets.record_failure(source, udp=True, now=START)
    assert not budgets.is_locked_out(source, udp=True, now=START + 21)


def test_exempt_addresses_are_never_locked_out() -> None:
    budgets = make_budgets(configured(failed_proofs=1))
    for _ in range(5):
        budgets.record_failure(budgets.source_for("127.0.0.1"), udp=False, now=START)
    assert not budgets.is_locked_out(budgets.source_for("127.0.0.1"), udp=False, now=START)


@pytest.mark.parametrize("kind", WorkKind)
def test_unknown_addresses_leave_enough_to_others_and_to_known_ones(kind: WorkKind) -> None:
    budgets, untouched = make_budgets(configured()), make_budgets(configured())
    for number in range(3):
        drain(budgets, kind, f"203.0.113.{number}", udp=False)
    assert drain(budgets, kind, HOST, udp=False) == drain(untouched, kind, HOST, udp=False) > 0
    for number in range(3, 100):
        drain(budgets, kind, f"203.0.113.{number}", udp=False)
    assert not budgets.take(kind, budgets.source_for(OTHER), udp=False, now=START)
    budgets.record_proof(budgets.source_for(OTHER), udp=False)
    assert drain(budgets, kind, OTHER, udp=False) >= 2 * drain(untouched, kind, OTHER, udp=False)


def test_known_source_keeps_its_larger_share_after_a_reload() -> None:
    config = configured(source_share=10, proved_source_share=50, reserved_share=0)
    budgets = make_budgets(config)
    source = budgets.source_for(HOST)
    once = drain(budgets, WorkKind.WRITE, HOST, udp=False)
    budgets.record_proof(source, udp=False)
    budgets.record_proof(EXEMPT, udp=False)
    again = make_budgets(config, budgets)
    assert drain(again, WorkKind.WRITE, HOST, udp=False) == pytest.approx(5 * once, abs=5)
    assert (again.is_known(source, udp=False), again.is_known(source, udp=True)) == (True, False)
    assert not again.is_known(budgets.source_for(OTHER), udp=False)
    assert not again.is_known(EXEMPT, udp=False)


# Guesses

TARGET = b"0.NA/12345"


def guess(budgets: Budgets, host: str, target: bytes = TARGET, *, right: bool = False, udp: bool = False) -> bool:
    """Whether a source can try a right or wrong secret at once."""
    source = budgets.source_for(host)
    if budgets.is_locked_out(source, udp=udp, now=START):
        return False
    if not budgets.is_proved(target, source, udp=udp) and not budgets.take_guess(target, udp=udp, now=START):
        return False
    budgets.record_guess(target, source, right=right, udp=udp, now=START)
    return True


def test_wrong_guesses_lock_out_an_address() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    assert [guess(budgets, HOST, b"1/%d" % number) for number in range(5)] == [True] * 3 + [False] * 2
    source = budgets.source_for(HOST)
    assert not budgets.take(WorkKind.VERIFY, source, udp=False, now=START)
    assert budgets.guess_delay(b"1/new", source, udp=False, now=START) == pytest.approx(20)
    assert budgets.take(WorkKind.READ, source, udp=False, now=START), "who only reads need not wait"
    assert guess(budgets, OTHER, b"1/new")


def test_right_secrets_cost_nothing() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    assert all(guess(budgets, f"203.0.113.{number}", right=True) for number in range(20))


def test_many_addresses_do_not_give_many_guesses_at_one_handle() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    spelled = (b"0.NA/12345", b"0.na/12345", b"0.Na/12345")
    assert [guess(budgets, f"203.0.113.{number}", spelled[number % 3]) for number in range(9)] == [True] * 3 + [
        False
    ] * 6
    assert guess(budgets, "203.0.113.200", b"0.NA/54321"), "another handle"
    assert guess(budgets, "203.0.113.201", udp=True), "another transport"
    assert not guess(budgets, "127.0.0.1"), "proxies have no limit by source, but this is none"
    source = budgets.source_for(OTHER)
    assert budgets.take(WorkKind.VERIFY, source, udp=False, now=START), "other proofs are looked at"
    assert budgets.guess_delay(TARGET, source, udp=False, now=START) == pytest.approx(20)
    assert budgets.take_guess(TARGET, udp=False, now=START + 21), "after a while"


def test_attempts_at_the_same_time_are_charged_before_their_results() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    assert [budgets.take_guess(TARGET, udp=False, now=START) for _ in range(4)] == [True] * 3 + [False]
    budgets.record_guess(TARGET, budgets.source_for(HOST), right=True, udp=False, now=START)
    assert budgets.take_guess(TARGET, udp=False, now=START), "a right one is not counted"


def test_attempts_without_a_result_are_refunded_and_do_not_reset_a_limit() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    assert [guess(budgets, f"203.0.113.{number}") for number in range(4)] == [True] * 3 + [False]
    for number in range(20):
        assert budgets.take_guess(b"1/%d" % number, udp=False, now=START)
        budgets.refund_guess(b"1/%d" % number, udp=False)
    assert not guess(budgets, OTHER)


def test_address_with_a_right_secret_needs_no_budget() -> None:
    budgets = make_budgets(configured(failed_proofs=3))
    assert guess(budgets, OTHER, right=True)
    assert guess(budgets, "203.0.113.100", b"1/own", right=True)
    for number in range(9):
        guess(budgets, f"203.0.113.{number}")
    assert guess(budgets, OTHER, right=True)
    assert not guess(budgets, "203.0.113.100"), "a secret of one's own gives no right to guess at others"
    assert [guess(budgets, OTHER) for _ in range(5)] == [True] * 3 + [False] * 2, "not more than any address may"


def test_exempt_source_with_a_right_secret_needs_no_budget() -> None:
    """A local administrator continues while others guess."""
    budgets = make_budgets(configured(failed_proofs=3))
    assert guess(budgets, "127.0.0.1", right=True)
    for number in range(9):
        guess(budgets, f"203.0.113.{number}")
    assert guess(budgets, "127.0.0.1", right=True)
    assert not guess(budgets, HOST, right=True)


def test_failures_at_a_handle_are_counted_for_each_network_until_a_right_secret() -> None:
    budgets = make_budgets(configured(failed_proofs=30))
    near, far = "2001:db8:0:1::1", "2001:db8:0:100::1"
    for _ in range(2):
        guess(budgets, near)
    guess(budgets, near, b"1/other")

    def failures(host: str) -> tuple[int, ...]:
        return make_budgets(configured(), budgets).failed_guesses(TARGET, budgets.source_for(host), udp=False)

    assert (failures(near), failures(far)) == ((2, 2, 2), (0, 0, 2))
    guess(budgets, near, right=True)
    assert failures(near) == (0, 0, 0)


# Connections


def test_ipv6_customer_and_site_have_limited_connections() -> None:
    connections = Connections(configured(connections=100, connections_per_address=3))
    hosts = [f"2001:db8:0:{number:x}::1" for number in range(256)]
    assert sum(connections.admit(host) for host in hosts) == 3 * CUSTOMER_FACTOR
    others = [f"2001:db8:0:{number:x}00::1" for number in range(1, 256)]
    assert sum(connections.admit(host) for host in others) == 3 * (SITE_FACTOR - CUSTOMER_FACTOR)
    assert connections.admit("2001:db8:1::1")
    connections.leave(hosts[0])
    assert connections.admit(hosts[255])
    for host in (*hosts[1:6], hosts[255], *others[:6], "2001:db8:1::1"):
        connections.leave(host)
    assert connections._count == {}


def test_connections_are_limited_by_address_and_in_total() -> None:
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


def test_limits_of_connections_hold_over_all_workers() -> None:
    memory = SharedConnections.create(2)
    try:
        config = configured(connections=4, connections_per_address=2)
        first, second = (Connections(config, SharedConnections(memory, worker)) for worker in (0, 1))
        assert [first.admit(HOST), second.admit(HOST)] == [True, True]
        assert [first.admit(HOST), second.admit(HOST)] == [False, False]
        assert [first.admit(OTHER), second.admit("127.0.0.1"), first.admit("127.0.0.1")] == [True, True, False]
        second.leave(HOST)
        assert first.admit(HOST)
        # A restarted worker has no connections.
        again = Connections(config, SharedConnections(memory, 0))
        assert [again.admit(HOST) for _ in range(3)] == [True, True, False]
        again.configure(configured(tcp_unfinished_octets=4 << 20))
        assert again.unfinished.limit == 2 << 20
        again.configure(configured(tcp_unfinished_octets=1 << 20))
        assert again.unfinished.limit == 1 << 20, "the longest message"
        with pytest.raises(IncompatibleLayout):
            SharedConnections(TrafficLimit.create(1), 0)
    finally:
        os.close(memory)


def test_exempt_addresses_have_only_the_total_connection_limit() -> None:
    connections = Connections(configured(connections=5, connections_per_address=1))
    assert [connections.admit("127.0.0.1") for _ in range(6)] == [True] * 5 + [False]


def test_new_settings_apply_to_the_next_connection() -> None:
    connections = Connections(configured(connections_per_address=1))
    assert connections.admit(HOST)
    connections.configure(configured(connections_per_address=2, message_time=7, idle_time=8, take_time=9))
    assert [connections.admit(HOST), connections.admit(HOST)] == [True, False]
    assert (connections.message_timeout, connections.idle_timeout, connections.write_timeout) == (7, 8, 9)
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
def test_connections_are_limited_by_descriptors(
    soft: int, hard: int, asked_for: int | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    assert Connections(configured(connections=4_096)).limit == limit
    assert asked == ([] if asked_for is None else [(asked_for, hard)])


def test_descriptors_of_connections_that_a_thread_has_accepted_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    needed = 4_096 + module.OTHER_DESCRIPTORS + 200
    for hard in (needed, needed - 1):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (1_024, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
        limit = Connections(configured(connections=4_096), unadmitted=200).limit
        assert limit == 4_096 - (needed - hard)
    assert asked == [(needed, needed), (needed - 1, needed - 1)]
