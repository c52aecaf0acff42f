"""The process of jobs: steps, retries, failures, and what happens when a process is killed."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from perseid.ledger.errors import Contention, JobEnded, LedgerError, OutcomeUnknown, ReadOnlyMode, StorageFull, TooBusy
from perseid.ledger.store.jobs import Job
from perseid.registry.identity import LocalIdentity
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.processes import jobs
from perseid.server.processes.child import ChildOptions
from perseid.server.processes.jobs import JobExecutor, JobsProcess
from perseid.server.state.jobs import Credentials, RunningJobs
from perseid.wire.codes import ResponseCode
from tests.server.shared_state import make_state

PIECES = 5
ANN = LocalIdentity("ann")
REGISTRY = cast("Registry", SimpleNamespace(ledger=SimpleNamespace(log=None), rules=None, spool=None))


class Work:
    """The jobs of a ledger, each of some steps; errors occur before the steps of their numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[int] = []
        self.errors: dict[int, list[BaseException]] = {}
        self.ended_at = 0
        self.running = RunningJobs(make_state())
        monkeypatch.setattr(jobs, "RETRY_SECONDS", 0)
        monkeypatch.setattr(jobs, "MAX_RETRIES", 3)
        monkeypatch.setattr(jobs, "JobRun", self._make_run)
        monkeypatch.setattr(jobs, "jobs", SimpleNamespace(find=self._find))

    def _find(self, _log: object, name: str) -> Job | None:
        return None if name == "discarded" else Job(name, "rewrite", "{}", "", "cli", "ann", "", ended_at=self.ended_at)

    def _make_run(self, _registry: Registry, job: Job, identity: object) -> Any:
        assert (job.interface, identity) == ("http", ANN)
        return SimpleNamespace(job=job, identity=identity, advance=self._advance)

    def _advance(self) -> bool:
        if waiting := self.errors.get(len(self.done)):
            raise waiting.pop()
        if len(self.done) < PIECES:
            self.done.append(len(self.done))
            return True
        return False

    def hand_over(self, name: str = "u") -> None:
        with self.running.reserve(ANN) as slot:
            assert self.running.claim(slot, name, Credentials.of(ANN, None, "http"))
            self.running.hand_over(slot)

    def executor(self) -> JobExecutor:
        return JobExecutor(REGISTRY, self.running, pause=lambda _: None)

    def run(self) -> Exception | None:
        """Run a job to its end; return why it failed."""
        self.hand_over()
        executor = self.executor()
        while executor.advance():
            pass
        assert executor.is_idle
        assert self.running.slots.all() == []
        failure = self.running.failure("u")
        return None if failure is None else failure.reason


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def test_steps_run_in_order(work: Work) -> None:
    assert work.run() is None
    assert work.done == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "error", [TooBusy("x"), Contention("x"), OutcomeUnknown("x"), StorageFull("x"), ReadOnlyMode("x")]
)
def test_step_is_retried_while_the_ledger_cannot_be_written(work: Work, error: LedgerError) -> None:
    work.errors = {2: [error], 4: [error] * 3}
    assert work.run() is None
    assert work.done == [0, 1, 2, 3, 4]
    work.done, work.errors = [], {2: [error] * 4}
    reason = work.run()
    assert isinstance(reason, Refused)
    assert work.done == [0, 1]


def test_failure_is_kept_until_the_job_resumes(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.errors = {3: [Refused(ResponseCode.INSUFFICIENT_PERMISSIONS, "no")]}
    reason = work.run()
    assert isinstance(reason, Refused)
    assert (reason.code, reason.reason) == (ResponseCode.INSUFFICIENT_PERMISSIONS, "no")
    assert "job u stopped before its end" in caplog.text
    assert work.run() is None


def test_unexpected_error_is_logged_and_its_text_is_not_shown(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.errors = {3: [ValueError("a secret")]}
    reason = str(work.run())
    assert "Internal Error (reference " in reason
    assert reason.partition("reference ")[2][:12] in caplog.text
    assert "secret" not in reason + caplog.text


@pytest.mark.parametrize(("name", "ended_at"), [("discarded", 0), ("u", 1)])
def test_job_that_has_ended_is_not_run(work: Work, name: str, ended_at: int) -> None:
    work.ended_at = ended_at
    work.hand_over(name)
    executor = work.executor()
    assert not executor.advance()
    assert (work.done, work.running.slots.all(), work.running.failure(name)) == ([], [], None)


def test_job_ended_by_somebody_else_is_no_failure(work: Work) -> None:
    work.errors = {1: [JobEnded("u")]}
    assert work.run() is None
    assert work.done == [0]


def test_stopping_process_runs_no_steps_and_keeps_its_jobs(work: Work) -> None:
    work.hand_over()
    executor = work.executor()
    executor.is_stopping = True
    executor.advance()
    assert work.done == []
    assert work.running.is_running("u")


def test_stopping_process_waits_neither_for_the_writer_nor_in_a_pause(
    work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entered, disconnected = threading.Event(), threading.Event()

    def wait_for_the_writer() -> bool:
        entered.set()
        assert disconnected.wait(30)
        raise OutcomeUnknown("x")

    def open_installation(*_: object, open_ledger: Any, **__: object) -> Any:
        open_ledger(None, tmp_path)
        return installation

    installation = MagicMock()
    installation.registry.return_value = REGISTRY
    monkeypatch.setattr(work, "_advance", wait_for_the_writer)
    monkeypatch.setattr(jobs, "MIN_PAUSE", 60.0)
    monkeypatch.setattr(jobs, "Installation", SimpleNamespace(open=open_installation))
    monkeypatch.setattr(jobs, "RemoteLedger", lambda *_: SimpleNamespace(disconnect=disconnected.set))
    monkeypatch.setattr(jobs, "RunningJobs", lambda _: work.running)
    for name in ("AnswersReader", "SharedState", "logs", "_lower_priority", "unblock_signals"):
        monkeypatch.setattr(jobs, name, MagicMock())
    monkeypatch.setattr(signal, "signal", MagicMock())
    work.hand_over()
    news, writer = os.pipe()
    options = SimpleNamespace(name="jobs", directory="", state="", accept_clock=False, news=news)
    process = JobsProcess(cast("ChildOptions", options), MagicMock())
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    assert entered.wait(30)
    process._stop()
    thread.join(30)
    assert not thread.is_alive()
    assert work.running.is_running("u"), "a request can resume it"
    os.close(news)
    os.close(writer)


def test_next_process_resumes_the_jobs_of_a_killed_one(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.hand_over()
    work.executor().advance()
    assert work.done == [0]
    assert work.running.is_running("u")
    following = work.executor()
    while following.advance():
        pass
    assert work.done == [0, 1, 2, 3, 4]
    assert work.running.failure("u") is None
    assert "job u" not in caplog.text, "it had completed a step"


def test_job_that_ends_its_processes_fails_with_the_reason(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.errors = {0: [KeyboardInterrupt()] * jobs.MAX_STARTS}  # what `except Exception` does not see, like SIGKILL
    work.hand_over()
    for _ in range(jobs.MAX_STARTS):
        with pytest.raises(KeyboardInterrupt):
            work.executor().advance()
    assert caplog.text.count("job u is resumed") == jobs.MAX_STARTS - 1
    assert not work.executor().advance()
    failure = work.running.failure("u")
    assert failure is not None
    assert "The process that ran the job ended 3 times" in str(failure.reason)
    assert not work.running.is_running("u")
    assert work.run() is None, "it can be resumed"


def test_job_that_ends_its_processes_fails_alone(work: Work) -> None:
    work.errors = {0: [KeyboardInterrupt()] * jobs.MAX_STARTS}
    for name in ("u", "other"):
        work.hand_over(name)
    for _ in range(jobs.MAX_STARTS):
        with pytest.raises(KeyboardInterrupt):
            work.executor().advance()
    following = work.executor()
    while following.advance():
        pass
    assert work.running.failure("u") is not None
    assert work.running.failure("other") is None
    assert work.done == [0, 1, 2, 3, 4]


def test_process_that_ends_while_the_ledger_is_busy_is_not_counted(work: Work) -> None:
    work.errors = {0: [TooBusy("x")] * jobs.MAX_STARTS}
    work.hand_over()
    for _ in range(jobs.MAX_STARTS):
        work.executor().advance()
    assert work.running.waiting()[0].starts == 0


@pytest.mark.parametrize("is_reachable", [True, False])
def test_slow_steps_are_progress_and_pauses_are_short(
    work: Work, monkeypatch: pytest.MonkeyPatch, *, is_reachable: bool
) -> None:
    now, pauses, ages = 1_000.0, list[float](), list[float]()

    def advance_slowly() -> bool:
        nonlocal now
        ages.append(now - executor.progress)
        now += 90
        if not is_reachable:
            raise TooBusy("x")
        return True

    monkeypatch.setattr(jobs, "monotonic", lambda: now)
    monkeypatch.setattr(work, "_advance", advance_slowly)
    executor = JobExecutor(REGISTRY, work.running, pause=pauses.append)
    for name in ("a", "b"):
        work.hand_over(name)
    executor.advance()
    assert ages == [0, 0]
    assert now == executor.progress
    assert pauses == ([jobs.MAX_PAUSE] * 2 if is_reachable else [])


def test_job_waits_while_the_ledger_cannot_be_read(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, reads = 1_000.0, list[str]()

    def fail(_log: object, name: str) -> Job | None:
        reads.append(name)
        raise TooBusy("x")

    monkeypatch.setattr(jobs, "monotonic", lambda: now)
    monkeypatch.setattr(jobs, "RETRY_SECONDS", 1)
    executor = work.executor()
    work.hand_over()
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "jobs", SimpleNamespace(find=fail))
        for seconds in (0, 0.1, 0.9):
            now += seconds
            assert not executor.advance()
            assert not executor.is_idle
    assert reads == ["u"] * 2
    assert caplog.text.count("job u waits") == 1
    now += 1
    while executor.advance():
        pass
    assert executor.is_idle
    assert work.done == [0, 1, 2, 3, 4]


def test_jobs_take_turns(work: Work) -> None:
    names = ["a", "b"]
    for name in names:
        work.hand_over(name)
    executor = work.executor()
    executor.advance()
    assert work.done == [0, 1], "one step of each"


def test_late_process_of_a_server_that_has_ended_ends_quietly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The shared state is removed with the server; nobody reads why the process cannot start."""
    options = SimpleNamespace(name="jobs", directory=str(tmp_path), state=str(tmp_path / "removed"), accept_clock=False)
    process, supervisor = JobsProcess.__new__(JobsProcess), MagicMock()
    process._options, process._supervisor = cast("ChildOptions", options), supervisor
    assert process.run() == 1
    ((kind, problem), _) = supervisor.report.call_args
    assert (kind, problem.startswith("cannot open the shared state")) == ("problem", True)
    assert caplog.messages == []
