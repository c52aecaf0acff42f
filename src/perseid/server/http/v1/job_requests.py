"""Shared steps of the routes that start, resume and undo jobs.

The first steps of a job run before the response, so that a refusal reaches the caller, and small jobs complete. The
process of jobs does the rest (`server.processes.jobs`).

`ApiCall.change` guards a command of one commit. Longer work uses an `AuthorizedRegistry`, bound to the caller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from perseid.ledger.errors import JobEnded
from perseid.ledger.store.jobs import Job
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.minting import RetryLater
from perseid.registry.identity import Anonymous
from perseid.registry.jobs.runner import (
    CHUNK_SIZE,
    WITHHELD_REASON,
    JobRun,
    UndoIndex,
    complete_or_discard,
    find_interruption,
    find_job,
    is_own_change,
)
from perseid.registry.jobs.undo import UndoPreview
from perseid.registry.responses import to_job
from perseid.registry.results import Refused
from perseid.schema.jobs import MAX_CONFLICTS, JobResponse
from perseid.schema.problems import Problem, make_problem
from perseid.server.http.context import INTERFACE
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.native.decisions import AuthorizedRegistry, Busy, to_refusal
from perseid.server.native.work import WorkKind
from perseid.server.state.jobs import Credentials, JobFailure, LimitReached, RunningJobs, Slot
from perseid.wire.codes import ResponseCode

from .api_call import ApiCall
from .problems import ApiError, to_problem
from .routing import BASE, Reply

T = TypeVar("T")


MAX_COUNT: Final = 2_500
"""Handles counted before a job starts: a quarter of a second. Beyond that the total is unknown."""

FIRST_STEPS: Final = 8
"""Steps run before the response: a quarter of a second, in which a job of 2,000 handles usually completes."""

RETRY_SECONDS: Final = 1.0
"""Seconds before a step is retried when the server is busy."""

MAX_RETRIES: Final = 60
"""Retries in a row; after a minute the request fails."""

ACCEPTED: Final = 202

RETRY_LATER: Final = (("Retry-After", "10"),)

P = TypeVar("P")


def authorize_registry(call: ApiCall) -> AuthorizedRegistry:
    """Bind the registry to the identity of a call. Anonymous callers are refused."""
    if isinstance(call.identity, Anonymous):
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, "Jobs require authentication", AdviceKind.AUTHENTICATE())
    return AuthorizedRegistry(call.registry, call.identity, call.call.auth.guard)


@contextmanager
def reserve_slot(call: ApiCall, *, undoes: bool = False) -> Iterator[Slot]:
    """Reserve a slot for a job; raises `ApiError` if there is none."""
    try:
        with call.request_context.server.api.jobs.reserve(call.identity, undoes=undoes) as slot:
            yield slot
    except LimitReached as error:
        raise ApiError("busy", str(error), "Retry when a job has ended", headers=RETRY_LATER) from error


async def run_job(
    call: ApiCall,
    registry: AuthorizedRegistry,
    start: Callable[[], Awaitable[Job]],
    *,
    undoes: bool = False,
    discard: bool = False,
) -> Reply[JobResponse]:
    """Start a job, run its first steps, and build the reply; the process of jobs does the rest.

    Raises the error of the first step; with `discard` the job is then discarded, because it changed nothing.
    """
    call.call.check_can_change()
    with reserve_slot(call, undoes=undoes) as slot:
        job = await start()
        await _run_first_steps(call, registry, slot, job, discard=discard)
    return accepted_reply(call, await load_job(call, registry, job.id))


async def _run_first_steps(call: ApiCall, registry: AuthorizedRegistry, slot: Slot, job: Job, *, discard: bool) -> None:
    run = JobRun(registry, replace(job, interface=INTERFACE), call.identity)
    jobs = call.request_context.server.api.jobs
    try:
        if not jobs.claim(slot, job.id, Credentials.of(call.identity, call.call.auth.guard, INTERFACE)):
            return
        for _ in range(FIRST_STEPS):
            if not await retry_when_busy(lambda: call.do(WorkKind.WRITE, run.advance), jobs):
                return
    except JobEnded:
        return  # somebody canceled it, or undoes it
    except RetryLater:
        pass  # minting waits for the clock
    except Exception as error:
        if run.done > job.done:
            jobs.record_failure(job.id, JobFailure.of(call.identity, to_refusal(error)))
            return
        if discard:
            await call.do(WorkKind.WRITE, lambda: complete_or_discard(registry, job))
        raise
    if not jobs.hand_over(slot):
        reason = "The server is busy, so the job stopped before its end"
        refused = Refused(ResponseCode.SERVER_TOO_BUSY, reason, AdviceKind.RESUME_JOB(job=job.id))
        jobs.record_failure(job.id, JobFailure.of(call.identity, refused))


async def retry_when_busy(do: Callable[[], Awaitable[T]], jobs: RunningJobs) -> T:
    """Run one step of several, and retry while the server is busy. Raises `Busy` in the end."""
    for _ in range(MAX_RETRIES):
        try:
            return await do()
        except Busy:
            if jobs.stopping:
                raise
            await asyncio.sleep(RETRY_SECONDS)
    raise Busy


async def count_handles(call: ApiCall, page: Callable[[P | None], tuple[int, P | None]]) -> int | None:
    """Count the handles of a job, page by page; None if there are very many.

    `page` returns the number of handles on the page after a position, and the position of the next page.
    """
    total = 0
    after: P | None = None
    for _ in range(MAX_COUNT // CHUNK_SIZE):
        count, after = await call.do(WorkKind.READ, partial(page, after))
        total += count
        if after is None:
            return total
    return None


async def load_undo_preview(call: ApiCall, registry: AuthorizedRegistry, job_id: str) -> UndoPreview:
    """Load the complete preview of an undo."""
    jobs = call.request_context.server.api.jobs
    preview = await call.do(WorkKind.READ, lambda: UndoPreview(registry, job_id, call.identity, MAX_CONFLICTS))
    while await retry_when_busy(lambda: call.do(WorkKind.READ, preview.advance), jobs):
        pass
    return preview


# Responses


async def load_job(call: ApiCall, registry: AuthorizedRegistry, job_id: str) -> JobResponse:
    """Load a job as the caller can see it."""

    def read() -> tuple[Job, UndoIndex]:
        job = find_job(registry, call.identity, job_id)
        return job, UndoIndex.of(registry, job.id)

    job, undos = await call.do(WorkKind.READ, read)
    return to_job_response(call, job, undos)


def to_job_response(call: ApiCall, job: Job, undos: UndoIndex) -> JobResponse:
    """Convert a job as the caller can see it. Safe in any thread."""
    jobs = call.request_context.server.api.jobs
    failure = jobs.failure(job.id)
    interrupted = to_problem(find_interruption(job, call.identity), call.request_context).problem
    problem = interrupted if failure is None else _to_problem(call, failure)
    return to_job(job, undos, is_running=jobs.is_running(job.id), problem=problem)


def _to_problem(call: ApiCall, failure: JobFailure) -> Problem:
    """Convert the reason of a failure, as far as the caller can see it."""
    if is_own_change(failure.actor, call.identity):
        return to_problem(failure.reason, call.request_context).problem
    return make_problem("job-failed", WITHHELD_REASON, call.settings.public_url)


def accepted_reply(call: ApiCall, response: JobResponse) -> Reply[JobResponse]:
    """Build the reply for an accepted job."""
    location = absolute_url(f"{BASE}/jobs/{response.job}", call.settings)
    return Reply(response, ACCEPTED, (("Location", location),))
