"""Slots and failures of jobs, shared by all processes."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from perseid.records.record import ValueRef
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.identity import Identity, KeyIdentity, LocalIdentity, Proof, TokenIdentity
from perseid.registry.jobs.undo import Conflict, UndoConflict
from perseid.registry.results import Refused
from perseid.server.http.v1 import job_events
from perseid.server.limits.budgets import get_source
from perseid.server.native.authentication import Guard, ProvenIdentity
from perseid.server.state import jobs
from perseid.server.state.jobs import Credentials, JobFailure, LimitReached, RunningJobs
from perseid.server.state.state import SharedState, StateFull
from perseid.wire.codes import ResponseCode
from tests.server.shared_state import make_state

ANN = LocalIdentity("ann")
ANNS = Credentials.of(ANN, None, "http")
KEY = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.TOKEN)
TOKENS = [TokenIdentity(KEY, f"aaaaaaa{letter}", ScopeSet.of(["update"], ["12345"])) for letter in "abcd"]
GUARD = Guard(ProvenIdentity(b"0.NA/12345", 300, 300, Proof.SECRET_KEY, b"x" * 32), session=True)
FAILURE = JobFailure.of(ANN, Refused(ResponseCode.ERROR, "no"))


def test_tokens_share_the_job_limit_of_their_issuer() -> None:
    spelt = KeyIdentity(ValueRef(300, "0.na/12345"), Proof.SECRET_KEY, verified_index=300)
    running = RunningJobs()
    with ExitStack() as places:
        for token in TOKENS[:2]:
            places.enter_context(running.reserve(token))
        every: list[Identity] = [*TOKENS, KEY, spelt]
        for identity in every:
            with pytest.raises(LimitReached, match="per user"), running.reserve(identity):
                pass
        places.enter_context(running.reserve(ANN))
    running.stopping = True
    with pytest.raises(LimitReached, match="shutting down"), running.reserve(ANN):
        pass


def test_workers_share_jobs_limits_and_failures() -> None:
    state, woken = make_state(), []
    here, there = RunningJobs(state, lambda: woken.append(1)), RunningJobs(state)
    with here.reserve(ANN) as slot, there.reserve(ANN) as other:
        with pytest.raises(LimitReached, match="per user"), there.reserve(ANN):
            pass
        assert here.claim(slot, "u", ANNS)
        assert here.is_running("u")
        assert there.is_running("u")
        assert not there.claim(other, "u", ANNS)
        assert there.waiting() == []
        here.hand_over(slot)
    assert woken == [1]
    (waiting,) = there.waiting()
    assert (waiting.job, there.is_running("u")) == ("u", True)
    there.record_failure("u", FAILURE)
    there.slots.release(waiting.id)
    assert here.failure("u") == FAILURE
    with there.reserve(ANN) as slot:
        assert there.claim(slot, "u", ANNS)
        assert here.failure("u") is None, "it runs again"
    assert not there.is_running("u")


def test_jobs_of_a_killed_worker_wait_and_its_other_slots_are_void(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    here, there = RunningJobs(state), RunningJobs(state)
    with here.reserve(ANN) as slot, here.reserve(ANN):
        assert here.claim(slot, "u", ANNS)
        monkeypatch.setattr(jobs, "is_running", lambda _: False)
        assert [each.job for each in there.waiting()] == ["u"]
        assert len(there.slots.all()) == 1


@pytest.mark.parametrize("identity", [ANN, TOKENS[0], replace(KEY, proof=Proof.SECRET_KEY, verified_index=300)])
@pytest.mark.parametrize(
    "guard", [None, Guard(ProvenIdentity(b"0.NA/12345", 300, 300, Proof.SECRET_KEY, b"x" * 32), True)]
)
def test_credentials_round_trip(identity: Identity, guard: Guard | None) -> None:
    running = RunningJobs(make_state())
    with running.reserve(identity) as slot:
        assert running.claim(slot, "u", Credentials.of(identity, guard, "http"))
        running.hand_over(slot)
    stored = running.waiting()[0].credentials
    assert stored is not None
    assert (stored.identity, stored.guard, stored.interface) == (identity, guard, "http")


def test_jobs_with_the_longest_credentials_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_RUNNING_PER_IDENTITY", jobs.MAX_RUNNING)
    handle = "12345/" + "x" * 2_042
    proved = ProvenIdentity(handle.encode(), 300, 300, Proof.SECRET_KEY, b"x" * 32)
    identity = TokenIdentity(replace(KEY, reference=ValueRef(300, handle)), "a" * 8, ScopeSet.of(["update"], None))
    running = RunningJobs(make_state())
    for number in range(jobs.MAX_RUNNING):
        with running.reserve(identity) as slot:
            assert running.claim(slot, str(number), Credentials.of(identity, Guard(proved, False), "http"))
            running.hand_over(slot)
    assert len(running.waiting()) == jobs.MAX_RUNNING


def test_full_state_is_not_another_process_that_runs_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    running = RunningJobs(make_state(), lambda: woken.append(1))
    with running.reserve(ANN) as slot:
        with monkeypatch.context() as full:
            full.setattr(SharedState, "write", fail_for_lack_of_room)
            with pytest.raises(LimitReached, match="busy"):
                running.claim(slot, "u", ANNS)
        assert running.claim(slot, "u", ANNS)
        with monkeypatch.context() as full:
            full.setattr(SharedState, "write", fail_for_lack_of_room)
            assert not running.hand_over(slot)
        assert (running.waiting(), woken) == ([], [])
        assert running.hand_over(slot)
    assert (len(running.waiting()), woken) == (1, [1])


def fail_for_lack_of_room(*_: object) -> object:
    raise StateFull


def test_failed_undo_keeps_its_problem_type() -> None:
    reason = UndoConflict("j1", [Conflict("12345/x", 7, "changed later")])
    running = RunningJobs()
    running.record_failure("u", JobFailure.of(ANN, reason))
    failure = running.failure("u")
    assert failure is not None
    assert isinstance(failure.reason, UndoConflict)
    assert (failure.reason.problem_type, str(failure.reason)) == ("undo-conflict", str(reason))


def test_number_of_kept_failures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_FAILURES", 2)
    running = RunningJobs()
    for name in ("a", "b", "c"):
        running.record_failure(name, FAILURE)
    assert [running.failure(name) is None for name in ("a", "b", "c")] == [True, False, False]


def test_workers_share_the_limit_of_listeners() -> None:
    state, source = make_state(), get_source("192.0.2.1")
    here, there = job_events.Listeners(state), job_events.Listeners(state)
    listening = [here.add_listener(source) for _ in range(job_events.MAX_LISTENERS_PER_SOURCE)]
    with pytest.raises(LimitReached):
        there.add_listener(source)
    listening[0].leave()
    listening[0].leave()
    there.add_listener(source)
    with pytest.raises(LimitReached):
        here.add_listener(source)
