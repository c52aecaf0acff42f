"""Changes of many names that are one: previewed, carried out in the background, watched, gone on with, undone.

They are the units of `perseid rewrite, undo, operations` (`registry.units`). What a call begins goes on after it was
answered (`unit_calls`); what the server did not come to the end of, because it was stopped or somebody lost a right, is
gone on with by a call.
"""

from typing import Final

from perseid.ledger.store.jobs import Job
from perseid.registry.context import Context
from perseid.registry.jobs import resume, undo
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs.runner import UndoIndex, find_job, jobs_page
from perseid.registry.jobs.rewrite import Rewrite, RewritePage
from perseid.server.http.context import INTERFACE
from perseid.server.http.responses import NO_STORE
from perseid.server.http.v1.authorized_registry import AuthorizedRegistry
from perseid.server.http.v1.calls import ApiCall, encode_reply
from perseid.server.http.v1.job_calls import (
    ACCEPTED,
    RETRY_LATER,
    accepted_reply,
    authorize_registry,
    check_authenticated,
    count_handles,
    load_job,
    load_undo_preview,
    reserve_slot,
    run_job,
    start_job,
)
from perseid.server.http.v1.job_events import MEDIA_TYPE, JobEvent, Listener
from perseid.server.http.v1.job_runs import LimitReached, Slot
from perseid.server.http.v1.job_structures import (
    JobPage,
    JobResponse,
    JobState,
    NewRewrite,
    NewUndo,
    RewritePlan,
    RewriteQuery,
    UndoConflictResponse,
    UndoPlan,
    to_job_response,
    to_planned_record,
)
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Paging
from perseid.server.limits.budgets import get_source
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes(
    "Operations", "Changes of many names that are one: seen beforehand, watched, gone on with, and undone."
)

_PARAMETERS: Final = {"operation": "The name of the operation, as `listOperations` shows it; or `last`."}


# Rewriting


@SECTION.add(
    "GET",
    "/rewrites/preview",
    "previewRewrite",
    "What a rewrite would change",
    response=RewritePlan,
    query=RewriteQuery,
    scope="find",
    problems=(422, 501),
)
async def preview_rewrite(call: ApiCall) -> Reply:
    """What many names lead to now, and would lead to. Nothing is done.

    Values of the type URL and places in 10320/loc are moved: what stands before the `*` is replaced, and what stands
    behind it stays. You see names of namespaces that you may list.
    """
    asked = call.asked(RewriteQuery)
    order = Rewrite(asked.url, asked.to, asked.prefix)
    after = await call.after(str)

    def read(context: Context) -> RewritePage:
        return rewriting.preview_page(context.snapshot, context.identity, order, after, asked.limit)

    def respond(page: RewritePage) -> Reply:
        following = call.seal(page.following)
        return Reply(RewritePlan([to_planned_record(each) for each in page.items], following), next=following)

    return await call.respond(read, respond)


@SECTION.add(
    "POST",
    "/rewrites",
    "rewrite",
    "Move what many names lead to",
    body=NewRewrite,
    response=JobResponse,
    status=ACCEPTED,
    scope="update",
    creates=True,
    problems=(401, 403, 422, 501),
)
async def rewrite(call: ApiCall) -> Reply:
    """Move what many names lead to: a host has another name, a path begins otherwise. See the preview first.

    It is one operation, which goes on in the background; a small one is done when the answer comes. `Location` is where
    to see how far it has come, and `/events` below it tells while it goes on. The first name that you may not change
    ends it: what is done by then stays done, and can be undone. A token needs `update` and `find`.
    """
    new = call.payload(NewRewrite)
    order = Rewrite(new.url, new.to, new.prefix)
    check_authenticated(call)
    registry = authorize_registry(call)

    async def begin(place: Slot) -> Job:
        total = await _count_rewrites(call, registry, order)
        job = await call.do(
            WorkKind.WRITE, lambda: rewriting.start(registry, order, call.identity, INTERFACE, new.note, total)
        )
        await run_job(call, registry, place, job, forgets=True)
        return job

    return await call.once(lambda: start_job(call, registry, begin))


async def _count_rewrites(call: ApiCall, registry: AuthorizedRegistry, order: Rewrite) -> int:
    """How many names a rewrite is about; 0 if they are very many. Raises `Wrong` if there are none."""

    def page(after: str | None) -> tuple[int, str | None]:
        with registry.snapshot() as snapshot:
            found = rewriting.preview_page(snapshot, call.identity, order, after)
        return sum(bool(each.changes) for each in found.items), found.following

    total = await count_handles(call, page)
    if total == 0:
        raise ApiError(
            "not-found", "no name that you may see leads there, or none that can be moved", "see the preview"
        )
    return total or 0


# Operations


@SECTION.add(
    "GET",
    "/operations",
    "listOperations",
    "Changes of many names",
    response=JobPage,
    query=Paging,
    problems=(401,),
)
async def list_jobs(call: ApiCall) -> Reply:
    """The changes of many names that you may see, the one that began last first: yours, or all if you run the server.

    Those that were begun at the command line, or with tokens of yours, are among them. A token sees what was begun with
    it.
    """
    check_authenticated(call)
    limit, before = call.asked(Paging).limit, await call.after(tuple[int, str])
    registry = authorize_registry(call)

    runner = call.request_context.place.api.runner

    def read() -> Reply:
        page = jobs_page(registry, call.identity, before, limit)
        undos, following = UndoIndex.of(registry, *[each.id for each in page.items]), call.seal(page.last)
        # Whether each is carried out is looked up, which any thread may do.
        result = JobPage([to_job_response(each, undos, runner, call.identity) for each in page.items], following)
        return encode_reply(Reply(result, next=following))

    return await call.do(WorkKind.READ, read)


@SECTION.add(
    "GET",
    "/operations/{operation}",
    "showOperation",
    "A change of many names",
    response=JobResponse,
    problems=(401, 404),
    parameters=_PARAMETERS,
)
async def show_job(call: ApiCall) -> Reply:
    """What a change of many names is, how far it has come, and whether it was undone."""
    check_authenticated(call)
    return Reply(await load_job(call, authorize_registry(call), call.names["operation"]))


@SECTION.add(
    "GET",
    "/operations/{operation}/events",
    "watchOperation",
    "How far an operation has come, while it goes on",
    media_types=(MEDIA_TYPE,),
    problems=(401, 404),
    parameters=_PARAMETERS,
)
async def watch_job(call: ApiCall) -> Reply:
    """Server-sent events, each with all there is to say about the operation, as `showOperation` says it.

    `progress` comes whenever something is new. With `end` nothing more is to come: the operation has ended, or nobody
    is at it any more. If the connection ends without it, ask again; `Last-Event-ID` is not needed for that.
    """
    check_authenticated(call)
    registry = authorize_registry(call)
    listener = _add_listener(call)  # before anything is waited for, or many would be let in at once
    try:
        first = await load_job(call, registry, call.names["operation"])
    except BaseException:
        listener.leave()
        raise

    async def look() -> JobEvent:
        result = await load_job(call, registry, first.operation)
        here = result.state is JobState.RUNNING
        return JobEvent(result, result.done, result.ended is not None or result.problem is not None, here)

    listener.listen(look)
    if call.request.method == "HEAD":
        await listener.aclose()  # the head is that of GET, and nothing comes behind it
    headers = (NO_STORE, ("X-Accel-Buffering", "no"))  # a proxy that collects before it sends would send nothing
    return Reply(headers=headers, media_type=MEDIA_TYPE, stream=listener)


def _add_listener(call: ApiCall) -> Listener:
    """Somebody more who listens; raises `Wrong` if there is no room."""
    try:
        return call.request_context.place.api.listeners.add_listener(get_source(call.request.client.host))
    except LimitReached as many:
        advice = "end one of yours, or ask for the operation itself"
        raise ApiError("too-many-requests", str(many), advice, headers=RETRY_LATER) from many


@SECTION.add(
    "POST",
    "/operations/{operation}/resume",
    "resumeOperation",
    "Go on with an operation",
    response=JobResponse,
    status=ACCEPTED,
    scope="update",
    problems=(401, 403, 404, 409, 422),
    parameters=_PARAMETERS,
)
async def resume_job(call: ApiCall) -> Reply:
    """Go on with a change of many names that is unfinished, with your rights; what is done stays done.

    Nothing happens if this server is at it. A token needs the words of the single changes.
    """
    check_authenticated(call)
    registry, name = authorize_registry(call), call.names["operation"]
    known = await call.do(WorkKind.READ, lambda: find_job(registry, call.identity, name))
    if call.request_context.place.api.runner.is_running(known.id):
        return accepted_reply(call, await load_job(call, registry, known.id))

    async def begin(place: Slot) -> Job:
        job = await call.do(WorkKind.READ, lambda: resume.get_unfinished_job(registry, known.id, call.identity))
        if job.kind == undo.KIND:
            look = await load_undo_preview(call, registry, job.undoes)
            await call.do(WorkKind.WRITE, lambda: look.begin(INTERFACE))
        await run_job(call, registry, place, job)
        return job

    return await start_job(call, registry, begin, undoes=known.kind == undo.KIND)


@SECTION.add(
    "GET",
    "/operations/{operation}/undo",
    "previewUndo",
    "What an undo would be about",
    response=UndoPlan,
    problems=(401, 404, 422),
    parameters=_PARAMETERS,
)
async def preview_undo(call: ApiCall) -> Reply:
    """How many names an undo would be about, and which of them stand in its way. Nothing is done.

    What others changed later is not lost, and what was erased does not come back: where there is any such name nothing
    is undone at all.
    """
    check_authenticated(call)
    registry = authorize_registry(call)
    with reserve_slot(call, undoes=True):
        look = await load_undo_preview(call, registry, call.names["operation"])
    conflicts = [UndoConflictResponse(each.handle, each.seq, each.why) for each in look.conflicts]
    return Reply(UndoPlan(look.original.id, look.total, not look.conflict_count, look.conflict_count, conflicts))


@SECTION.add(
    "POST",
    "/operations/{operation}/undo",
    "undoOperation",
    "Undo an operation",
    body=NewUndo,
    response=JobResponse,
    status=ACCEPTED,
    scope="update",
    creates=True,
    problems=(401, 403, 404, 409, 422),
    parameters=_PARAMETERS,
)
async def undo_job(call: ApiCall) -> Reply:
    """Undo a change of many names: each becomes what it was, by a new entry. It is an operation of its own.

    Names that were made become tombstones, for somebody may have them already. Nothing is undone where later changes
    would be lost, or where data has been erased; `previewUndo` tells which names that are. An undo can be undone. A
    token needs the words of the inverse changes.
    """
    check_authenticated(call)
    registry, note = authorize_registry(call), call.payload(NewUndo).note

    async def begin(place: Slot) -> Job:
        look = await load_undo_preview(call, registry, call.names["operation"])
        job = await call.do(WorkKind.WRITE, lambda: look.begin(INTERFACE, note))
        if not call.request_context.place.api.runner.is_running(job.id):
            await run_job(call, registry, place, job)
        return job

    return await call.once(lambda: start_job(call, registry, begin, undoes=True))
