"""What the chapters share that change many names: how such a change is begun, carried out and told of.

The first steps are taken before the answer, so that whoever may not do it is told so. The rest goes on after it, in the
background (`unit_runs`).
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from perseid.ledger.store.jobs import Job
from perseid.registry.identity import Anonymous
from perseid.registry.jobs import resume
from perseid.registry.jobs.runner import CHUNK_SIZE, UndoIndex, complete_or_discard, find_job
from perseid.registry.jobs.undo import UndoConflict, UndoPreview
from perseid.registry.results import Refused
from perseid.server.http.context import INTERFACE
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from .authorized_registry import AuthorizedRegistry
from .calls import ApiCall
from .job_runs import JobRun, LimitReached, Slot, retry_when_busy
from .job_structures import MAX_CONFLICTS, JobResponse, to_job_response
from .problems import ApiError, make_problem, to_problem
from .routing import BASE, Reply

MAX_COUNT: Final = 2_500
"""Names that are counted before a change of them begins: a quarter of a second. Of more it is not known how many."""

FIRST_PIECES: Final = 8
"""Pieces of work that are done before the answer: a quarter of a second, in which a change of some hundred names ends,
and one that cannot be made is refused."""

ACCEPTED: Final = 202
"""The status of an answer about what goes on."""

RETRY_LATER: Final = (("Retry-After", "10"),)
"""With what somebody is sent away for whom there is no room."""

P = TypeVar("P")


def check_authenticated(call: ApiCall) -> None:
    """Refuse nobody in particular."""
    if isinstance(call.identity, Anonymous):
        reason = "who changes many records at once has to be known"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "send a token, or prove who you are otherwise")


def authorize_registry(call: ApiCall) -> AuthorizedRegistry:
    """The registry for whoever asks, over several steps."""
    api, registry = call.request_context.place.api, call.registry
    return AuthorizedRegistry(registry, call.identity, call.call.auth.guard, lambda: api.rules or registry.rules)


@contextmanager
def reserve_slot(call: ApiCall, *, undoes: bool = False) -> Iterator[Slot]:
    """A place among those that are carried out; raises `Wrong` if there is none."""
    try:
        with call.request_context.place.api.runner.place(call.identity, undoes=undoes) as place:
            yield place
    except LimitReached as many:
        raise ApiError("busy", str(many), "ask again when one has ended", headers=RETRY_LATER) from many


async def start_job(
    call: ApiCall, registry: AuthorizedRegistry, begin: Callable[[Slot], Awaitable[Job]], *, undoes: bool = False
) -> Reply:
    """Begin an operation, which goes on by itself, and say so."""
    call.call.check_can_change()
    try:
        with reserve_slot(call, undoes=undoes) as place:
            job = await begin(place)
    except UndoConflict as problem:
        raise ApiError("in-the-way", problem.reason, problem.advice, code=int(problem.code)) from problem
    return accepted_reply(call, await load_job(call, registry, job.id))


async def run_job(call: ApiCall, registry: AuthorizedRegistry, place: Slot, job: Job, *, forgets: bool = False) -> None:
    """Take the first steps of an operation, and have the rest done in the background.

    Raises what the first step raises; with `forgets` the operation is forgotten then, as nothing of it was done.
    """
    runner = call.request_context.place.api.runner
    work = partial(resume.run_steps, registry, replace(job, door=INTERFACE), call.identity)
    public_problem = make_problem(call.settings, "ended-early", "whoever carried it out could not go on with it")
    run = JobRun(
        job.id,
        work,
        call.do,
        call.identity,
        lambda error: to_problem(error, call.request_context).problem,
        public_problem,
    )
    pieces = work()
    step = partial(call.do, WorkKind.WRITE, partial(next, pieces, None))
    has_started = False
    try:
        for _ in range(FIRST_PIECES):
            piece = await retry_when_busy(step, runner)
            if piece is None:
                return
            has_started = has_started or piece.done > job.done
    except Exception as error:
        if has_started:
            runner.note(run, error)
            return
        if forgets:
            await call.do(WorkKind.WRITE, lambda: complete_or_discard(registry, job))
        raise
    runner.start(place, run, pieces)


async def count_handles(call: ApiCall, page: Callable[[P | None], tuple[int, P | None]]) -> int | None:
    """How many names a change is about, page by page; None if they are very many.

    `page` tells how many there are on the page that begins somewhere, and where the next one begins.
    """
    total = 0
    after: P | None = None
    for _ in range(MAX_COUNT // CHUNK_SIZE):
        count, after = await call.do(WorkKind.READ, partial(page, after))
        total += count
        if after is None:
            return total
    return None


async def load_undo_preview(call: ApiCall, registry: AuthorizedRegistry, name: str) -> UndoPreview:
    """What an undo of an operation is about, all of it looked at."""
    runner = call.request_context.place.api.runner
    preview = await call.do(WorkKind.READ, lambda: UndoPreview(registry, name, call.identity, MAX_CONFLICTS))
    while await retry_when_busy(lambda: call.do(WorkKind.READ, preview.advance), runner):
        pass
    return preview


# What is told


async def load_job(call: ApiCall, registry: AuthorizedRegistry, name: str) -> JobResponse:
    """An operation as whoever asks may see it."""

    def read() -> tuple[Job, UndoIndex]:
        job = find_job(registry, call.identity, name)
        return job, UndoIndex.of(registry, job.id)

    job, undos = await call.do(WorkKind.READ, read)
    return to_job_response(job, undos, call.request_context.place.api.runner, call.identity)


def accepted_reply(call: ApiCall, told: JobResponse) -> Reply:
    """That an operation is carried out, and where it can be seen."""
    where = absolute_url(f"{BASE}/operations/{told.operation}", call.settings)
    return Reply(told, ACCEPTED, (("Location", where),))
