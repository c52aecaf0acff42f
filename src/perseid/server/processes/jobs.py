"""Process of jobs: does the rest of long changes, with low priority, and appends through the writer like a worker.

The supervisor starts it when a worker hands the first job over (`server.state.jobs`), and it ends when there has been
none for a while. It advances all jobs in turn, one step each. A step is durable, and what a job needs to continue is in
the ledger and in the shared state: if this process is killed, the next one resumes its jobs. When the server stops,
every job remains at its last step, and a request can resume it.
"""

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final

from perseid.ledger.errors import JobEnded, LedgerError
from perseid.ledger.log.log import Log
from perseid.ledger.store import jobs
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.errors import InvalidData
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.minting import RetryLater
from perseid.registry.identity import Identity
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.settings import Config, InvalidConfig
from perseid.registry.jobs.runner import JobRun
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.native.decisions import AuthorizedRegistry, to_refusal
from perseid.server.observe import logs
from perseid.server.state.jobs import SLOT_SECONDS, JobFailure, RunningJobs, StoredSlot
from perseid.server.state.state import SharedState
from perseid.wire.codes import ResponseCode

from . import unblock_signals
from .child import BEAT_SECONDS, ChildOptions, SupervisorLink, parse_options
from .remote_ledger import RemoteLedger

NICENESS: Final = 10
"""Added to the niceness: beside busy workers it gets a tenth of a core. With less it might be stopped for long inside a
change of the shared state, for which all others wait."""

IDLE_SECONDS: Final = 60.0
"""Seconds without a job after which the process ends: starting it takes less than one, and it has some 60 MB."""

POLL_SECONDS: Final = 0.1
"""Seconds between two looks for new jobs, if there is nothing else to do."""

MIN_PAUSE: Final = 0.001
"""Shortest pause between two steps, in seconds. A pause is as long as the step before: half of the writer's time is
left for others."""

MAX_PAUSE: Final = 1.0
"""Longest pause, in seconds: after a step that took longer the ledger was slow, and others had time meanwhile."""

RETRY_SECONDS: Final = 1.0
"""Seconds before a step is retried when the ledger is busy or cannot be reached."""

MAX_RETRIES: Final = 60
"""Retries in a row; after a minute the job fails."""

MAX_STARTS: Final = 3
"""Processes that may end before a job completes a step; then the job fails: it may be what ends them."""

MAX_STEP_SECONDS: Final = 120.0
"""Seconds without progress after which the process is stuck: longer than it waits for the writer."""

_STARTUP_ERRORS = (InvalidConfig, InvalidData, LedgerError, OSError)
_logger = logging.getLogger("perseid.server.processes.jobs")  # run as a program, its __name__ is __main__


@dataclass(slots=True)
class _Run:
    """A job that runs here."""

    slot: StoredSlot
    run: JobRun
    due: float = 0.0
    retries: int = 0
    renew_at: float = 0.0
    """When to renew the slot; 0 before the first step."""


class JobExecutor:
    """Runs the jobs that were handed over."""

    def __init__(self, registry: Registry, running: RunningJobs, pause: Callable[[float], object] = time.sleep) -> None:
        self.registry = registry
        """Replaced when the settings change."""
        self._running = running
        self._pause = pause
        self._runs: dict[bytes, _Run] = {}
        self._retry_at: dict[bytes, float] = {}
        """When to take slots whose job could not be read."""
        self.progress = monotonic()
        """When it was last between two steps."""
        self.is_stopping = False

    @property
    def is_idle(self) -> bool:
        """Whether there is no job."""
        return not self._runs and not self._retry_at

    def advance(self) -> bool:
        """Take over new jobs, and advance each by one step; return whether there was any step to do."""
        waiting = {slot.id: slot for slot in self._running.waiting() if slot.id not in self._runs}
        self._retry_at = {slot: at for slot, at in self._retry_at.items() if slot in waiting}
        for slot in waiting.values():
            self.progress = monotonic()
            if self._retry_at.get(slot.id, 0.0) <= self.progress:
                self._take(slot)
        due = [each for each in self._runs.values() if each.due <= monotonic()]
        for each in due:
            if self.is_stopping:
                break
            self.progress = started = monotonic()
            self._advance(each)
            if not each.retries:  # otherwise it waits already
                self._pause(min(max(MIN_PAUSE, monotonic() - started), MAX_PAUSE))
        self.progress = monotonic()
        return bool(due)

    def _take(self, slot: StoredSlot) -> None:
        credentials = slot.credentials
        assert credentials is not None  # noqa: S101 - it waits
        identity = credentials.identity
        if slot.starts >= MAX_STARTS:
            reason = f"The process that ran the job ended {slot.starts} times before the job completed a step"
            self._fail(slot, identity, Refused(ResponseCode.ERROR, reason, AdviceKind.RESUME_JOB(job=slot.job)))
            return
        self._running.slots.renew(slot.id, process=0)
        try:
            job = jobs.find(self.registry.ledger.log, slot.job)
        except LedgerError as error:
            if slot.id not in self._retry_at:
                _logger.warning("job %s waits: the ledger cannot be read (%s)", slot.job, type(error).__name__)
            self._retry_at[slot.id] = monotonic() + RETRY_SECONDS
            return
        self._retry_at.pop(slot.id, None)
        if job is None or job.ended_at:
            self._running.slots.release(slot.id)
            return
        if slot.starts:
            _logger.warning("job %s is resumed: the process that ran it has ended", slot.job)
        registry = AuthorizedRegistry(self.registry, identity, credentials.guard, lambda: self.registry.rules)
        self._runs[slot.id] = _Run(slot, JobRun(registry, replace(job, interface=credentials.interface), identity))

    def _advance(self, each: _Run) -> None:
        is_first = not each.renew_at
        if is_first:  # counted here, so that a job that ends the process counts for no other
            self._running.slots.renew(each.slot.id, starts=each.slot.starts + 1)
        try:
            has_more = each.run.advance()
        except JobEnded:
            has_more = False  # somebody canceled it, or undoes it
        except RetryLater as wait:  # minting waits for the clock
            each.due = monotonic() + wait.seconds
            return
        except LedgerError as error:  # what was done is known, so the step can be repeated
            each.retries += 1
            each.due = monotonic() + RETRY_SECONDS
            if is_first:
                self._running.slots.renew(each.slot.id, starts=each.slot.starts)
            if each.retries > MAX_RETRIES:
                self._fail(each.slot, each.run.identity, to_refusal(error))
            return
        except Exception as error:  # noqa: BLE001 - reported with the job
            self._fail(each.slot, each.run.identity, to_refusal(error))
            return
        each.retries = 0
        if not has_more:
            self._end(each.slot)
        elif monotonic() >= each.renew_at:
            each.renew_at = monotonic() + SLOT_SECONDS / 4
            self._running.slots.renew(each.slot.id, starts=0)

    def _fail(self, slot: StoredSlot, identity: Identity, reason: Refused) -> None:
        _logger.warning("job %s stopped before its end, with response code %d", slot.job, reason.code)
        self._running.record_failure(slot.job, JobFailure.of(identity, reason))
        self._end(slot)

    def _end(self, slot: StoredSlot) -> None:
        self._runs.pop(slot.id, None)
        self._running.slots.release(slot.id)


class JobsProcess:
    """The process of jobs."""

    def __init__(self, options: ChildOptions, supervisor: SupervisorLink) -> None:
        self._options = options
        self._supervisor = supervisor
        self._executor: JobExecutor | None = None
        self._ledger: RemoteLedger | None = None
        self._is_stopping = self._reloads = False
        self._interrupt = threading.Event()
        """Ends pauses."""
        self._started = monotonic()
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to all processes
        signal.signal(signal.SIGHUP, lambda *_: self._note_reload())
        unblock_signals()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def run(self) -> int:
        """Run jobs until there are none, or until told to stop; return the exit code."""
        runtime = Path(self._options.state)

        def open_ledger(log: Log, answers: Path) -> RemoteLedger:
            self._ledger = RemoteLedger(log, AnswersReader(answers), runtime)
            return self._ledger

        try:
            directory, accept_clock = Path(self._options.directory), self._options.accept_clock
            state = SharedState(runtime)
            installation = Installation.open(directory, accept_clock=accept_clock, open_ledger=open_ledger)
        except _STARTUP_ERRORS as problem:
            self._supervisor.report("problem", str(problem))
            return 1
        with installation:
            config = installation.config
            logs.configure(self._options.name, config.log.format, level=config.log.level_number)
            _lower_priority()  # not before: the user waits for the start
            running = RunningJobs(state)
            self._executor = JobExecutor(installation.registry(), running, self._interrupt.wait)
            self._supervisor.report("ready", True)
            self._serve(self._executor, installation)
        return 0

    def _serve(self, executor: JobExecutor, installation: Installation) -> None:
        idle_since = monotonic()
        while not self._is_stopping and monotonic() < idle_since + IDLE_SECONDS:
            if self._reloads:
                self._reloads = False
                self._reload(executor, installation)
            was_busy = executor.advance()
            if not executor.is_idle:
                idle_since = executor.progress
            if select.select([self._options.news], [], [], 0 if was_busy else POLL_SECONDS)[0]:
                self._on_news()

    def _stop(self) -> None:
        self._is_stopping = True
        if self._executor is not None:
            self._executor.is_stopping = True

    def _note_reload(self) -> None:
        self._reloads = True

    def _on_news(self) -> None:
        if self._supervisor.read_news() is None:  # the supervisor has ended, so nothing would restart this process
            self._stop()

    def _beat(self) -> None:
        """Tell the supervisor that this process is not stuck; when it stops, end its waiting.

        A signal handler could not do this: the code that it interrupts may hold the locks.
        """
        while not self._is_stopping:
            progress = self._started if self._executor is None else self._executor.progress
            if monotonic() - progress < MAX_STEP_SECONDS:
                self._supervisor.beat()
            time.sleep(BEAT_SECONDS)
        self._interrupt.set()
        if self._ledger is not None:
            self._ledger.disconnect()

    def _reload(self, executor: JobExecutor, installation: Installation) -> None:
        """Reload the settings; on an error nothing changes."""
        try:
            config = Config.load(installation.directory, os.environ)
            logs.configure(self._options.name, config.log.format, level=config.log.level_number)
            executor.registry = installation.registry(config)
        except _STARTUP_ERRORS as problem:
            _logger.error("reload failed, nothing was changed: %s", problem)  # noqa: TRY400 - the message is complete
        self._supervisor.report("reloaded")


def _lower_priority() -> None:
    os.nice(NICENESS)
    with suppress(OSError):  # forbidden in some containers
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main(text: str) -> int:
    """Run the process of jobs."""
    options = parse_options(ChildOptions, text)
    return JobsProcess(options, SupervisorLink(options)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
