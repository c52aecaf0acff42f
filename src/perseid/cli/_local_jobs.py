"""Jobs of an installation, with the methods of `perseid.client.Client`: the command itself runs them."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.ledger.store.jobs import Job
from perseid.records.record import ref_from_text
from perseid.registry.commands.minting import RetryLater
from perseid.registry.context import Context
from perseid.registry.jobs import rewrite, runner, transfer
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import JobRun, UndoIndex
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.jobs.undo import UndoPreview
from perseid.registry.queries.find import build_search
from perseid.registry.responses import (
    to_job,
    to_planned_record,
    to_planned_transfer,
    to_undo_plan,
    with_advice_kind,
)
from perseid.registry.results import Refused
from perseid.schema.jobs import JobResponse, PlannedRecord, PlannedTransfer, UndoPlan
from perseid.schema.problems import Problem, make_problem, slug_of_code
from perseid.schema.queries import Selectors

from ._advice import render_advice
from ._arguments import INTERFACE, OpenInstallation


@dataclass
class LocalJobs:
    """The jobs of an open installation."""

    session: OpenInstallation
    _runs: dict[str, JobRun] = field(default_factory=dict)
    """Jobs that were started or resumed here, until `wait` runs them."""
    _undos: dict[str, UndoPreview] = field(default_factory=dict)
    """Previews, so that an undo does not examine its records twice."""
    _planned: int = 0
    """Records that the last complete preview of a rewrite would change."""

    def preview_rewrite(self, selectors: Selectors, to: str) -> Iterator[PlannedRecord]:
        """Yield what a rewrite would change. `rewrite` uses their number."""
        planned = 0
        for each in rewrite.preview(self.session.registry, self._to_rewrite(selectors, to), self.session.identity):
            planned += bool(each.changes)
            yield to_planned_record(each)
        self._planned = planned

    def rewrite(self, selectors: Selectors, to: str, *, note: str = "") -> JobResponse:
        """Start a rewrite."""
        registry, order = self.session.registry, self._to_rewrite(selectors, to)
        return self.start(rewrite.start(registry, order, self.session.identity, INTERFACE, note, self._planned))

    def preview_transfer(self, where: str, to: str, *, derived: bool = False) -> Iterator[PlannedTransfer]:
        """Yield the handles that a transfer would change."""
        order, after = self._to_transfer(where, to, derived), None
        while True:
            with self.session.registry.snapshot() as snapshot:
                context = Context(snapshot, self.session.identity, INTERFACE, self.session.registry.now())
                page = transfer.preview_page(context, order, after)
            yield from map(to_planned_transfer, page.items)
            after = page.following
            if after is None:
                return

    def transfer_all(self, where: str, to: str, *, derived: bool = False, note: str = "") -> JobResponse:
        """Start a transfer."""
        order = self._to_transfer(where, to, derived)
        return self.start(transfer.start(self.session.registry, order, self.session.identity, INTERFACE, note))

    def jobs(self) -> Iterator[JobResponse]:
        """Yield the jobs, latest first."""
        undos = UndoIndex.all(self.session.registry)
        for job in runner.list_jobs(self.session.registry, self.session.identity):
            yield to_job_response(self.session, job, undos)

    def job(self, job: str = runner.LAST) -> JobResponse:
        """Return a job."""
        return self._to_response(runner.find_job(self.session.registry, self.session.identity, job))

    def resume(self, job: str = runner.LAST) -> JobResponse:
        """Resume a job; `wait` runs it."""
        run = runner.resume(self.session.registry, job, self.session.identity, INTERFACE)
        self._runs[run.job.id] = run
        return self._to_response(run.job)

    def cancel(self, job: str) -> JobResponse:
        """Cancel a job."""
        return self._to_response(runner.cancel(self.session.registry, job, self.session.identity))

    def preview_undo(self, job: str) -> UndoPlan:
        """Return the extent of an undo, a sample of its changes, and its conflicts."""
        preview = UndoPreview(self.session.registry, job, self.session.identity)
        while preview.advance():
            pass
        self._undos[preview.original.id] = preview
        return to_undo_plan(preview, None if preview.refused is None else _to_problem(preview.refused))

    def undo(self, job: str, *, note: str = "") -> JobResponse:
        """Start the undo of a job of which there is a preview."""
        return self.start(self._undos[job].start(INTERFACE, note))

    def wait(self, job: str = runner.LAST, progress: Callable[[JobResponse], None] | None = None) -> JobResponse:
        """Run a job to its end and return it. `progress` gets its changes, or its records if there is no total."""
        current = self.job(job)
        run = self._runs.pop(current.job)
        try:
            while _advance(run):
                if progress is not None:
                    progress(msgspec.structs.replace(current, done=run.done if run.job.total else run.processed))
        except Refused as refused:
            with suppress(LedgerError):
                runner.record_refusal(run.registry, run.job, run.identity, refused)
            raise
        return self.job(current.job)

    def _to_rewrite(self, selectors: Selectors, to: str) -> Rewrite:
        with self.session.registry.snapshot() as snapshot:
            now = self.session.registry.ledger.log.clock.now()
            return Rewrite.of(build_search(snapshot.reader, selectors, str, now), to)

    def _to_transfer(self, where: str, to: str, derived: bool) -> TransferAll:
        key_range = transfer.parse_range(where)
        assert key_range is not None  # noqa: S101 - the command has checked it
        return TransferAll(key_range, ref_from_text(to), derived)

    def start(self, job: Job) -> JobResponse:
        """Run a job when `wait` is called."""
        self._runs[job.id] = JobRun(self.session.registry, job, self.session.identity)
        return self._to_response(job)

    def _to_response(self, job: Job) -> JobResponse:
        return to_job_response(self.session, job, UndoIndex.of(self.session.registry, job.id))


def _advance(run: JobRun) -> bool:
    """Do the next piece of the work; if minting has to wait for the clock, wait."""
    while True:
        try:
            return run.advance()
        except RetryLater as wait:
            time.sleep(wait.seconds)


def to_job_response(session: OpenInstallation, job: Job, undos: UndoIndex) -> JobResponse:
    """Convert a job, which a server may be running."""
    is_running, failure, runtime = False, None, session.find_runtime()
    if runtime is not None and not job.ended_at:
        from perseid.server.state.jobs import read_failure, read_running  # noqa: PLC0415 - only beside a server

        is_running, failure = job.id in read_running(runtime), read_failure(runtime, job.id)
    reason = runner.find_interruption(job, session.identity) if failure is None else failure.reason
    assert isinstance(reason, Refused)  # noqa: S101 - as it was recorded
    return to_job(job, undos, is_running=is_running, problem=_to_problem(reason))


def _to_problem(refused: Refused) -> Problem:
    slug, advice = refused.problem_type or slug_of_code(refused.code), render_advice(refused.advice)
    problem = make_problem(slug, refused.reason, advice=advice, rule=refused.rule, code=int(refused.code))
    return with_advice_kind(problem, refused.advice)
