"""Shared steps of the routes that start, resume and undo jobs, and the registry that these steps use.

The first steps of a job run before the response, so that a refusal reaches the caller. The rest runs in the background
(`job_runner`).

`ApiCall.change` guards a command of one commit. Longer work, some of it after the response was sent, uses an
`AuthorizedRegistry`, which is bound to one identity: every step, reads included, checks that the key or token is still
valid and applies the current settings.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from perseid.ledger.store.jobs import Job
from perseid.registry.access.token_records import check_token_identity
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Command, Context
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.jobs.runner import CHUNK_SIZE, JobRun, UndoIndex, complete_or_discard, find_job
from perseid.registry.jobs.undo import UndoPreview
from perseid.registry.registry import Registry
from perseid.registry.responses import to_job
from perseid.registry.results import Refused
from perseid.registry.snapshot import Rules, Snapshot
from perseid.schema.jobs import MAX_CONFLICTS, JobResponse
from perseid.schema.problems import make_problem
from perseid.server.http.context import INTERFACE
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.native.authentication import Guard
from perseid.server.native.decisions import GuardedCommand
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from .api_call import ApiCall
from .job_runner import BackgroundJob, LimitReached, Slot, retry_when_busy
from .problems import ApiError, to_problem
from .routing import BASE, Reply

T = TypeVar("T")


class AuthorizedRegistry(Registry):
    """A view of a registry for one identity."""

    def __init__(
        self, registry: Registry, identity: Identity, guard: Guard | None, rules: Callable[[], Rules] | None = None
    ) -> None:
        """`rules` returns the current settings; by default those of the registry."""
        super().__init__(registry.ledger, registry.rules)
        self._identity = identity
        self._guard = guard
        self._rules_now = rules or (lambda: registry.rules)

    def prepare(self, command: Command[T]) -> Command[T]:
        """Execute a command only if the credentials are still valid."""
        self.rules = self._rules_now()
        return GuardedCommand(command, self._guard, allow_referrals=True)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Read one state of the ledger. Raises `Refused` if the credentials are no longer valid."""
        self.rules = self._rules_now()
        with super().snapshot() as snapshot:
            if self._guard is not None:
                self._guard.check(snapshot)
            check_token_identity(Context(snapshot, self._identity, INTERFACE, self.now()))
            yield snapshot


MAX_COUNT: Final = 2_500
"""Handles counted before a job starts: a quarter of a second. Beyond that the total is unknown."""

FIRST_STEPS: Final = 8
"""Steps run before the response: a quarter of a second, in which a job of some hundred handles completes."""

ACCEPTED: Final = 202

RETRY_LATER: Final = (("Retry-After", "10"),)

P = TypeVar("P")


def authorize_registry(call: ApiCall) -> AuthorizedRegistry:
    """Bind the registry to the identity of a call. Anonymous callers are refused."""
    if isinstance(call.identity, Anonymous):
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, "Jobs require authentication", AdviceKind.AUTHENTICATE())
    api, registry = call.request_context.server.api, call.registry
    return AuthorizedRegistry(registry, call.identity, call.call.auth.guard, lambda: api.rules or registry.rules)


@contextmanager
def reserve_slot(call: ApiCall, *, undoes: bool = False) -> Iterator[Slot]:
    """Reserve a slot for a job; raises `ApiError` if there is none."""
    try:
        with call.request_context.server.api.runner.reserve(call.identity, undoes=undoes) as slot:
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
    """Start a job, run its first steps, and build the reply; the job continues in the background.

    Raises the error of the first step; with `discard` the job is then discarded, because it changed nothing.
    """
    call.call.check_can_change()
    with reserve_slot(call, undoes=undoes) as slot:
        job = await start()
        if call.request_context.server.api.runner.claim(slot, job.id):
            await _run_first_steps(call, registry, slot, job, discard=discard)
    return accepted_reply(call, await load_job(call, registry, job.id))


async def _run_first_steps(call: ApiCall, registry: AuthorizedRegistry, slot: Slot, job: Job, *, discard: bool) -> None:
    runner = call.request_context.server.api.runner
    run = JobRun(registry, replace(job, interface=INTERFACE), call.identity)
    public_problem = make_problem(
        "job-failed", "The user who ran the job could not complete it", call.settings.public_url
    )
    background = BackgroundJob(
        run, call.do, lambda error: to_problem(error, call.request_context).problem, public_problem
    )
    try:
        for _ in range(FIRST_STEPS):
            if not await retry_when_busy(lambda: call.do(WorkKind.WRITE, run.advance), runner):
                return
    except Exception as error:
        if run.done > job.done:
            runner.record_failure(background, error)
            return
        if discard:
            await call.do(WorkKind.WRITE, lambda: complete_or_discard(registry, job))
        raise
    runner.start(slot, background)


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
    runner = call.request_context.server.api.runner
    preview = await call.do(WorkKind.READ, lambda: UndoPreview(registry, job_id, call.identity, MAX_CONFLICTS))
    while await retry_when_busy(lambda: call.do(WorkKind.READ, preview.advance), runner):
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
    runner = call.request_context.server.api.runner
    problem = runner.problem(job.id, call.identity)
    return to_job(job, undos, is_running=runner.is_running(job.id), problem=problem)


def accepted_reply(call: ApiCall, response: JobResponse) -> Reply[JobResponse]:
    """Build the reply for an accepted job."""
    location = absolute_url(f"{BASE}/jobs/{response.job}", call.settings)
    return Reply(response, ACCEPTED, (("Location", location),))
