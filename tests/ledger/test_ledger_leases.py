"""Leases: no number twice, with any callers and any clock (P5, P6)."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.errors import ClockError, PreconditionFailed
from perseid.ledger.log.clock import SECOND, TOLERANCE
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Execute, Executed, Failed, Lease, Leased, LeaseProvider, Outcome
from perseid.ledger.store.store import Store
from perseid.names import pilin
from perseid.records.record import Value
from tests.ledger.ledgers import SIGNER, Machine, appended, change, execute, key, log_of_today, look, verified
from tests.ledger.memory import memory_log

SCOPE = b"10.1 pilin"
ROOT = Path(__file__).resolve().parents[2]


def lease(log: Log, count: int, now: int) -> int:
    outcome = log.append([Lease(SCOPE, count, now)])[0]
    assert isinstance(outcome, Leased)
    assert outcome.count == count
    return outcome.first


def test_numbers_follow_the_clock_or_the_last_lease(log: Log) -> None:
    assert lease(log, 5, 1_000) == 1_000
    assert lease(log, 5, 1_000) == 1_005
    assert lease(log, 1, 2_000) == 2_000
    assert lease(log, 1, 50) == 2_001, "the clock stepped back"
    assert look(log).size == 0, "a lease is no entry"


def test_lease_of_zero_numbers_takes_nothing(log: Log) -> None:
    assert [lease(log, 0, 100), lease(log, 0, 100), lease(log, 3, 100), lease(log, 0, 100)] == [100, 100, 100, 103]


def test_scopes_are_independent(log: Log) -> None:
    outcomes = log.append([Lease(b"one", 1, 0), Lease(b"two", 1, 0), Lease(b"one", 1, 0)])
    assert [outcome.first for outcome in outcomes if isinstance(outcome, Leased)] == [0, 0, 1]


def names(lender: LeaseProvider, count: int, now: int) -> list[str]:
    """New handles from numbers; existing ones are skipped, as in the registry."""
    found: list[str] = []
    while len(found) < count:
        first = lender.lease(SCOPE, count - len(found), now)
        minted = [str(number) for number in range(first, first + count - len(found))]
        found += [name for name in minted if not lender.exists(key(name))]
    return found


def mint(count: int, now: int, **preconditions: int) -> Execute:
    def make(lender: LeaseProvider) -> list[Draft]:
        return [
            Draft(Action.CREATE, State.NORMAL, f"10.1/{name}", "cli", "local:alice")
            for name in names(lender, count, now)
        ]

    return execute(make, {key(name): seq for name, seq in preconditions.items()})


def minted_by(outcome: Outcome) -> tuple[tuple[str, ...], int]:
    """The handles that a request has minted, and the number of the first entry."""
    assert isinstance(outcome, Executed)
    result = outcome.result
    assert isinstance(result, tuple)
    assert outcome.seq == result[1]
    return result


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 200)), max_size=20), st.sets(st.integers(0, 300)))
def test_no_handle_is_minted_twice_or_over_an_existing_one(steps: list[tuple[int, int]], taken: set[int]) -> None:
    log = memory_log()
    log.append([change(str(number)) for number in taken])
    minted: list[str] = []
    for count, now in steps:
        outcome = log.append([mint(count, now)])[0]
        handles, _ = minted_by(outcome)
        assert len(handles) == count
        minted += handles
    assert len(set(minted)) == len(minted)
    assert not set(minted) & {f"10.1/{number}" for number in taken}
    log.store.close()


def test_minting_leases_and_appends_in_one_commit(log: Log) -> None:
    log.append([change("11"), change("12"), change("12", action=Action.DELETE, state=State.ABSENT)])
    outcomes = log.append([mint(3, 10), mint(2, 0, policy=0), mint(1, 0, policy=7)])
    first, second = minted_by(outcomes[0]), minted_by(outcomes[1])
    assert first == (("10.1/10", "10.1/13", "10.1/14"), 4), "the others exist, or did"
    assert second == (("10.1/15", "10.1/16"), 7)
    assert isinstance(outcomes[2], PreconditionFailed)
    assert [look(log).entry(seq).handle for seq in range(4, 9)] == [*first[0], *second[0]]
    assert verified(log) == 8


def test_invalid_request_fails_alone_and_loses_only_numbers(log: Log) -> None:
    values = (Value(1, "URL", b"x", ttl=1 << 40),)  # larger than any TTL

    def make(lender: LeaseProvider) -> list[Draft]:
        return [replace(change(name).draft, values=values) for name in names(lender, 2, 10)]

    def give_up(lender: LeaseProvider) -> list[Draft]:
        raise RuntimeError(f"no names from {lender.lease(SCOPE, 0, 0)}")

    outcomes = log.append([execute(make), change("a", *values), execute(give_up), change("b")])
    assert [isinstance(outcome, Failed) for outcome in outcomes] == [True, True, True, False]
    assert isinstance(outcomes[2], Failed)
    assert str(outcomes[2].error) == "no names from 12"
    assert appended(outcomes[3]).seq == 1
    assert lease(log, 1, 10) == 12
    assert verified(log) == 1


def test_a_wrong_clock_leases_nothing(log: Log, machine: Machine) -> None:
    log.append([change("a")])
    machine.wall += TOLERANCE + SECOND
    with pytest.raises(ClockError):
        lease(log, 1, 1_000)
    machine.wall -= TOLERANCE + SECOND
    assert lease(log, 1, 5) == 5


@pytest.mark.parametrize(("count", "now"), [(-1, 5), (1, -5), (1, 1 << 63), (1 << 63, 0)])
def test_numbers_out_of_range_are_not_leased(log: Log, count: int, now: int) -> None:
    outcomes = log.append([Lease(SCOPE, 10, 0), Lease(SCOPE, count, now), Lease(SCOPE, 1, 0), change("a")])
    assert [isinstance(outcome, Failed) for outcome in outcomes] == [False, True, False, False]
    assert lease(log, 1, 0) == 11


@pytest.mark.parametrize("back_end", ["postgresql"], indirect=True)
def test_database_error_fails_the_whole_transaction(log: Log) -> None:
    def make(lender: LeaseProvider) -> list[Draft]:
        return [change(str(lender.lease({}, 1, 0))).draft]  # type: ignore[arg-type]

    with pytest.raises(Exception, match="adapt"):
        log.append([Lease(SCOPE, 10, 0), execute(make)])
    assert lease(log, 1, 0) == 0, "the whole transaction was undone"


MINTER = textwrap.dedent(
    """
    import secrets, sys, time
    from perseid.ledger.log.requests import Lease
    from perseid.names import pilin
    from perseid.names.schemes import Source
    from tests.ledger.ledgers import log_of_today, open_store

    log = log_of_today(open_store(sys.argv[1]))

    def lease(count, now):
        return log.append([Lease(b"10.1 pilin", count, now)])[0].first

    source = Source(clock=time.time_ns, random=secrets.token_bytes, lease=lease, sleep=time.sleep)
    for suffix in pilin.PilinScheme().mint(source, int(sys.argv[2])):
        print(suffix)
    """
)


def _minters(where: str, processes: int, count: int) -> list[str]:
    command = [sys.executable, "-c", MINTER, where, str(count)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    found = [line for one in running for line in one.communicate()[0].split()]
    assert [one.returncode for one in running] == [0] * processes
    return found


@pytest.mark.parametrize("processes", [8])
@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_eight_processes_mint_ten_thousand_suffixes_each_without_a_duplicate(
    store: Store, where: str, processes: int
) -> None:
    log_of_today(store).create(SIGNER)
    found = _minters(where, processes, 10_000)
    assert len(found) == len(set(found)) == processes * 10_000
    assert all(pilin.decode(suffix) for suffix in found[:100])


@pytest.mark.parametrize("back_end", ["postgresql"], indirect=True)
def test_two_nodes_mint_without_a_duplicate(store: Store, where: str) -> None:
    log_of_today(store).create(SIGNER)
    found = _minters(where, 2, 10_000)
    assert len(found) == len(set(found)) == 20_000
