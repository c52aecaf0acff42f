"""Execution of jobs: retries, failures, limits."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest

from perseid.ledger.errors import Contention, JobEnded, TooBusy
from perseid.records.record import ValueRef
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.identity import Identity, KeyIdentity, LocalIdentity, Proof, TokenIdentity
from perseid.registry.jobs.runner import JobRun
from perseid.schema.problems import Problem
from perseid.server.http.v1 import job_runner
from perseid.server.http.v1.job_runner import BackgroundJob, JobRunner
from perseid.server.limits.budgets import get_source
from perseid.server.native.decisions import Busy
from perseid.server.native.work import WorkKind
from tests.server.shared_state import make_state

T = TypeVar("T")
PIECES = 5
ANN = LocalIdentity("ann")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runner, "RETRY_SECONDS", 0)
    monkeypatch.setattr(job_runner, "MAX_RETRIES", 3)


def explained(error: Exception) -> Problem:
    return Problem("x", "x", 500, type(error).__name__)


OTHERS = Problem("x", "x", 424, "for others")


class Work:
    """A job of some steps, each executed once; errors occur before the steps of their numbers."""

    def __init__(self, errors: dict[int, list[Exception]] | None = None, no_room: int = 0) -> None:
        self.done: list[int] = []
        self._errors = errors or {}
        self._no_room = no_room

    def advance(self) -> bool:
        if waiting := self._errors.get(len(self.done)):
            raise waiting.pop()
        if len(self.done) < PIECES:
            self.done.append(len(self.done))
            return True
        return False

    async def do(self, kind: WorkKind, call: Callable[[], T], /) -> T:
        assert kind is WorkKind.WRITE
        if self._no_room:
            self._no_room -= 1
            raise Busy
        return call()

    def job(self, name: str = "u", identity: Identity = ANN) -> BackgroundJob:
        run = SimpleNamespace(job=SimpleNamespace(id=name), identity=identity, advance=self.advance)
        return BackgroundJob(cast("JobRun", run), self.do, explained, OTHERS)

    def run(self, runner: JobRunner) -> None:
        async def scenario() -> None:
            with runner.reserve(ANN) as slot:
                runner.start(slot, self.job())
            while runner.is_running("u"):
                await asyncio.gather(*runner._tasks.values())
                await asyncio.sleep(0)  # what is done when a task ends comes after it

        asyncio.run(scenario())
        assert runner._slots.all() == []


def test_steps_run_in_order() -> None:
    work, runner = Work(), JobRunner()
    work.run(runner)
    assert (work.done, runner.problem("u", ANN)) == ([0, 1, 2, 3, 4], None)


def test_busy_pool_retries_the_step() -> None:
    work, runner = Work(no_room=3), JobRunner()
    work.run(runner)
    assert (work.done, runner.problem("u", ANN)) == ([0, 1, 2, 3, 4], None)
    work = Work(no_room=4)
    work.run(runner)
    assert (work.done, runner.problem("u", ANN)) == ([], explained(Busy()))


@pytest.mark.parametrize("error", [TooBusy("x"), Contention("x")])
def test_busy_ledger_retries_the_step(error: Exception) -> None:
    work, runner = Work({2: [error], 4: [error, error, error]}), JobRunner()
    work.run(runner)
    assert (work.done, runner.problem("u", ANN)) == ([0, 1, 2, 3, 4], None)
    work = Work({2: [error] * 4})
    work.run(runner)
    assert (work.done, runner.problem("u", ANN)) == ([0, 1], explained(error))


def test_failure_is_kept_until_the_job_resumes() -> None:
    runner = JobRunner()
    Work({3: [ValueError("x")]}).run(runner)
    assert runner.problem("u", ANN) == explained(ValueError())
    Work().run(runner)
    assert runner.problem("u", ANN) is None


def test_job_ended_by_another_process_is_no_failure() -> None:
    work, runner = Work({1: [JobEnded("u")]}), JobRunner()
    work.run(runner)
    assert (work.done, runner.problem("u", ANN)) == ([0], None)


def test_stopping_server_runs_no_steps() -> None:
    work, runner = Work(), JobRunner()

    async def scenario() -> None:
        with runner.reserve(ANN) as slot:
            runner.start(slot, work.job())
        runner.stopping = True
        await asyncio.gather(*runner._tasks.values())

    asyncio.run(scenario())
    assert work.done == []
    with pytest.raises(job_runner.LimitReached), runner.reserve(ANN):
        pass


def test_number_of_kept_failures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runner, "MAX_FAILURES", 2)
    runner, work = JobRunner(), Work()
    for name in ("a", "b", "c"):
        runner.record_failure(work.job(name), ValueError())
    assert [runner.problem(name, ANN) is None for name in ("a", "b", "c")] == [True, False, False]


def test_tokens_share_the_job_limit_of_their_issuer() -> None:
    key = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.TOKEN)
    tokens = [TokenIdentity(key, f"aaaaaaa{letter}", ScopeSet.of(["update"], None)) for letter in "abcd"]
    spelt = KeyIdentity(ValueRef(300, "0.na/12345"), Proof.SECRET_KEY, verified_index=300)
    runner = JobRunner()
    with ExitStack() as places:
        for token in tokens[:2]:
            places.enter_context(runner.reserve(token))
        every: list[Identity] = [*tokens, key, spelt]
        for identity in every:
            with pytest.raises(job_runner.LimitReached, match="per user"), runner.reserve(identity):
                pass
        places.enter_context(runner.reserve(ANN))


def test_workers_share_jobs_limits_and_failures() -> None:
    state = make_state()
    here, there, work = JobRunner(state), JobRunner(state), Work({3: [ValueError("x")]})

    async def scenario() -> None:
        with here.reserve(ANN) as slot, there.reserve(ANN) as other:
            with pytest.raises(job_runner.LimitReached, match="per user"), there.reserve(ANN):
                pass
            here.start(slot, work.job())
            assert here.is_running("u")
            assert there.is_running("u")
            assert not there.claim(other, "u")
            there.start(other, work.job())
            assert there._tasks == {}
        await asyncio.gather(*here._tasks.values())
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert not there.is_running("u")
    assert there.problem("u", ANN) == explained(ValueError())
    Work().run(there)
    assert here.problem("u", ANN) is None


def test_slots_of_a_killed_worker_are_void(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    here, there = JobRunner(state), JobRunner(state)
    with here.reserve(ANN) as slot:
        assert here.claim(slot, "u")
        assert there.is_running("u")
        monkeypatch.setattr(job_runner, "is_running", lambda _: False)
        assert not there.is_running("u")
        with there.reserve(ANN) as other:
            assert there.claim(other, "u")


def test_workers_share_the_limit_of_listeners() -> None:
    state, source = make_state(), get_source("192.0.2.1")
    here, there = job_runner.Listeners(state), job_runner.Listeners(state)
    listening = [here.add_listener(source) for _ in range(job_runner.MAX_LISTENERS_PER_SOURCE)]
    with pytest.raises(job_runner.LimitReached):
        there.add_listener(source)
    listening[0].leave()
    listening[0].leave()
    there.add_listener(source)
    with pytest.raises(job_runner.LimitReached):
        here.add_listener(source)


def test_failure_is_shown_to_the_right_identities() -> None:
    """Visible to the identity that ran the job, and to the issuer of its token."""
    maker = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY)
    one, other = [
        TokenIdentity(replace(maker, proof=Proof.TOKEN), name * 8, ScopeSet.of(["find"], None)) for name in "ab"
    ]
    work = Work()
    cases: list[tuple[Identity, set[Identity]]] = [(one, {one, maker}), (maker, {maker}), (ANN, {ANN})]
    every: list[Identity] = [one, other, maker, ANN, replace(maker, reference=ValueRef(301, "0.NA/12345"))]
    for identity, told in cases:
        runner = JobRunner()
        runner.record_failure(work.job(identity=identity), ValueError())
        for each in every:
            assert runner.problem("u", each) == (explained(ValueError()) if each in told else OTHERS), (identity, each)
        assert runner.problem("v", identity) is None
