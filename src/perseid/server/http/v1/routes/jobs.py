"""Routes of jobs: preview, start, watch, resume and undo rewrites and transfers of many records.

They do what `perseid rewrite`, `transfer`, `undo` and `jobs` do (`registry.jobs`). A job continues after the response
(`job_requests`). If it does not complete, because the server stopped or the user lost a permission, a request can
resume it. `routes.records` transfers a single handle.
"""

from collections.abc import AsyncGenerator
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perseid.ledger.store.jobs import Job
from perseid.registry.context import Context
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs import transfer, undo
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import UndoIndex, cancel, find_job, get_unfinished_job, jobs_page, reopen
from perseid.registry.jobs.transfer import TransferAll, parse_range
from perseid.registry.responses import to_planned_record, to_planned_transfer, to_undo_plan
from perseid.schema.common import Paging
from perseid.schema.jobs import (
    JobPage,
    JobResponse,
    JobState,
    NewRewrite,
    NewTransfer,
    NewUndo,
    RewritePlan,
    RewriteQuery,
    TransferPlan,
    TransferQuery,
    UndoPlan,
)
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.api_call import ApiCall, parse_value_ref
from perseid.server.http.v1.job_events import MEDIA_TYPE, JobEvent, Listener, stream_events
from perseid.server.http.v1.job_requests import (
    ACCEPTED,
    RETRY_LATER,
    accepted_reply,
    authorize_registry,
    count_handles,
    load_job,
    load_undo_preview,
    reserve_slot,
    run_job,
    to_job_response,
)
from perseid.server.http.v1.problems import ApiError, to_problem
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.limits.budgets import get_source
from perseid.server.native.decisions import AuthorizedRegistry
from perseid.server.native.work import WorkKind
from perseid.server.state.jobs import LimitReached

from .queries import select

JOBS: Final = Routes("Jobs", "Preview, start, watch, cancel, resume and undo changes of many records.")

_UNDO_PARAMETERS: Final = {"job": "The id of the job, as in `listJobs`, or `last`, if your last change is a job."}


class EventResponse(StreamingResponse):
    """The events of one listener."""

    def __init__(self, events: AsyncGenerator[bytes, None], listener: Listener) -> None:
        # Buffering proxies would hold events back.
        headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers)
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listener.leave()


# Rewrites


@JOBS.add("GET", "/rewrites/preview", "Preview a rewrite", scope="find", problems=(422, 501))
async def preview_rewrite(call: ApiCall, query: RewriteQuery) -> Reply[RewritePlan]:
    """Show which URLs would change. Nothing is changed.

    Values of the type URL and locations in 10320/loc are rewritten: the part before `*` is replaced, the rest is kept.
    You see handles of namespaces that you can list.
    """

    def read(context: Context) -> Reply[RewritePlan]:
        since, after = call.after(tuple[int | None, str]) or (None, None)
        order = Rewrite.of(select(call, context, query, since), query.to)
        page = rewriting.preview_page(context.snapshot, context.identity, order, after, query.limit)
        cursor = call.seal(None if page.following is None else (order.changed_since, page.following))
        return call.page(RewritePlan([to_planned_record(each) for each in page.items], cursor))

    return await call.read(read)


@JOBS.add(
    "POST",
    "/rewrites",
    "Rewrite the URLs of many records",
    status=ACCEPTED,
    scope="update",
    creates=True,
    problems=(401, 403, 422, 501),
)
async def rewrite(call: ApiCall, new: NewRewrite) -> Reply[JobResponse]:
    """Rewrite the URLs of many records, for example after a host or path has changed. Use the preview first.

    This is one job. It continues in the background; a small one is complete when the response arrives. `Location` is
    the URL of the job, and `/events` under it streams its progress. The job stops at the first record that you cannot
    change; completed changes remain and can be undone. A token needs `update` and `find`.
    """
    registry = authorize_registry(call)
    order = await call.read(lambda context: Rewrite.of(select(call, context, new, path="$."), new.to))

    async def start() -> Job:
        total = await _count_rewrites(call, registry, order)
        return await call.do(
            WorkKind.WRITE, lambda: rewriting.start(registry, order, call.identity, INTERFACE, new.note, total)
        )

    return await call.once(lambda: run_job(call, registry, start, discard=True))


async def _count_rewrites(call: ApiCall, registry: AuthorizedRegistry, order: Rewrite) -> int:
    """Count the handles of a rewrite; 0 if there are very many. Raises `Refused` if there are none."""

    def page(after: str | None) -> tuple[int, str | None]:
        with registry.snapshot() as snapshot:
            preview = rewriting.preview_page(snapshot, call.identity, order, after)
        return sum(bool(each.changes) for each in preview.items), preview.following

    total = await count_handles(call, page)
    if total == 0:
        raise rewriting.nothing_matches(order)
    return total or 0


# Jobs


@JOBS.add("GET", "/jobs", "List jobs", problems=(401,))
async def list_jobs(call: ApiCall, query: Paging) -> Reply[JobPage]:
    """List the jobs that you can see, latest first: your own, or all jobs if you are a server administrator.

    Jobs that you started at the command line or with your tokens are included. A token sees the jobs started with it.
    """
    registry = authorize_registry(call)

    def read() -> Reply[JobPage]:
        page = jobs_page(registry, call.identity, call.after(tuple[int, str]), query.limit)
        undos, cursor = UndoIndex.of(registry, *[each.id for each in page.items]), call.seal(page.last)
        return call.page(JobPage([to_job_response(call, each, undos) for each in page.items], cursor))

    return await call.do(WorkKind.READ, read)


@JOBS.add("GET", "/jobs/{job}", "Get a job", problems=(401, 404))
async def show_job(call: ApiCall) -> Reply[JobResponse]:
    """Return a job: its parameters, its progress, and whether it was undone."""
    return Reply(await load_job(call, authorize_registry(call), call.names["job"]))


@JOBS.add("GET", "/jobs/{job}/events", "Watch a job", media_types=(MEDIA_TYPE,), problems=(401, 404))
async def watch_job(call: ApiCall) -> EventResponse:
    """Stream the progress of a job as server-sent events; each contains the whole job, as `showJob` returns it.

    `progress` is sent on every change. `end` is the last event: the job has ended or no longer runs. If the connection
    closes without it, repeat the request; `Last-Event-ID` is not needed.
    """
    registry = authorize_registry(call)
    listener = _add_listener(call)  # before any await, so that the limit holds
    try:
        first = await load_job(call, registry, call.names["job"])
    except BaseException:
        listener.leave()
        raise

    async def poll() -> JobEvent:
        job = await load_job(call, registry, first.job)
        # One that was interrupted may be resumed, or run elsewhere.
        has_failed = (
            job.state is JobState.UNFINISHED and call.request_context.server.api.jobs.failure(job.job) is not None
        )
        ended = job.ended_at is not None or has_failed
        return JobEvent(job, job.done, ended, job.state is JobState.RUNNING)

    return EventResponse(stream_events(poll, listener.listeners), listener)


def _add_listener(call: ApiCall) -> Listener:
    try:
        return call.request_context.server.api.listeners.add_listener(get_source(call.request.client.host))
    except LimitReached as error:
        advice = "Close another connection, or poll GET /api/v1/jobs/{job}"
        raise ApiError("too-many-requests", str(error), advice, headers=RETRY_LATER) from error


@JOBS.add(
    "POST", "/jobs/{job}/resume", "Resume a job", status=ACCEPTED, scope="update", problems=(401, 403, 404, 409, 422)
)
async def resume_job(call: ApiCall) -> Reply[JobResponse]:
    """Resume an unfinished or canceled job with your permissions. Completed changes are not repeated.

    Does nothing if the job is running on this server. A token needs the scopes of the individual changes.
    """
    registry, name = authorize_registry(call), call.names["job"]
    known = await call.do(WorkKind.READ, lambda: find_job(registry, call.identity, name))
    if not known.ended_at and call.request_context.server.api.jobs.is_running(known.id):
        return accepted_reply(call, await load_job(call, registry, known.id))

    async def start() -> Job:
        job = await call.do(WorkKind.READ, lambda: get_unfinished_job(registry, known.id, call.identity))
        if job.kind == undo.KIND:
            preview = await load_undo_preview(call, registry, job.undoes)
            await call.do(WorkKind.WRITE, lambda: preview.start(INTERFACE))
        return await call.do(WorkKind.WRITE, lambda: reopen(registry, job))

    return await run_job(call, registry, start, undoes=known.kind == undo.KIND)


@JOBS.add("POST", "/jobs/{job}/cancel", "Cancel a job", scope="update", problems=(401, 403, 404, 409))
async def cancel_job(call: ApiCall) -> Reply[JobResponse]:
    """Cancel an unfinished job: it stops before its next step. Completed changes remain.

    `resumeJob` does the rest, `undoJob` undoes the changes. An undo cannot be canceled.
    """
    registry, name = authorize_registry(call), call.names["job"]
    call.call.check_can_change()
    canceled = await call.do(WorkKind.WRITE, lambda: cancel(registry, name, call.identity))
    return Reply(await load_job(call, registry, canceled.id))


@JOBS.add("GET", "/jobs/{job}/undo", "Preview an undo", problems=(401, 404, 409, 422), parameters=_UNDO_PARAMETERS)
async def preview_undo(call: ApiCall) -> Reply[UndoPlan]:
    """Count the records of an undo, show what would change in some of them, and list its conflicts. Nothing is changed.

    An undo never discards later changes or restores redacted data: with any conflict, nothing is undone.
    """
    registry = authorize_registry(call)
    with reserve_slot(call, undoes=True):
        preview = await load_undo_preview(call, registry, call.names["job"])
    problem = None if preview.refused is None else to_problem(preview.refused, call.request_context).problem
    return Reply(to_undo_plan(preview, problem))


@JOBS.add(
    "POST",
    "/jobs/{job}/undo",
    "Undo a job",
    status=ACCEPTED,
    scope="update",
    creates=True,
    problems=(401, 403, 404, 409, 422),
    parameters=_UNDO_PARAMETERS,
)
async def undo_job(call: ApiCall, new: NewUndo) -> Reply[JobResponse]:
    """Undo a job: every record returns to its earlier state, by new ledger entries. The undo is a job itself.

    Created handles become tombstones, because they may be in use. With any conflict nothing is undone: later changes
    would be discarded, or data was redacted; see `previewUndo`. An undo can be undone. A token needs the scopes of the
    inverse changes.
    """
    registry, note = authorize_registry(call), new.note

    async def start() -> Job:
        preview = await load_undo_preview(call, registry, call.names["job"])
        return await call.do(WorkKind.WRITE, lambda: preview.start(INTERFACE, note))

    return await call.once(lambda: run_job(call, registry, start, undoes=True))


TRANSFERS: Final = Routes(
    "Transfers", "Transfer all handles of a prefix, or all with the same beginning, to another owner."
)


@TRANSFERS.add("GET", "/transfers/preview", "Preview a transfer", scope="transfer", problems=(401, 403, 404, 422))
async def preview_transfer(call: ApiCall, query: TransferQuery) -> Reply[TransferPlan]:
    """List the handles that would be transferred, their administrators, and whether you can transfer them.

    Nothing is changed. Requires the same permissions as the transfer, because the list includes reserved and
    unpublished handles.
    """
    order = _parse_order(query.where, query.to, derived=query.derived)

    def read(context: Context) -> Reply[TransferPlan]:
        page = transfer.preview_page(context, order, call.after(tuple[int, bytes]), query.limit)
        return call.page(TransferPlan([to_planned_transfer(each) for each in page.items], call.seal(page.following)))

    return await call.read(read)


@TRANSFERS.add(
    "POST",
    "/transfers",
    "Transfer many handles",
    status=ACCEPTED,
    scope="transfer",
    creates=True,
    problems=(401, 403, 404, 422),
)
async def transfer_all(call: ApiCall, new: NewTransfer) -> Reply[JobResponse]:
    """Transfer all handles of a prefix, or all with the same beginning, to another owner. Use the preview first.

    The new owner replaces all administrators. Creator and creation date stay, and so do the groups in a prefix handle
    and the policy. The prefix handle is transferred last.

    This is one job. It continues in the background; a small one is complete when the response arrives. `Location` is
    the URL of the job, and `/events` under it streams its progress. The job stops at the first handle that you cannot
    transfer; completed changes remain, and users with the permissions can undo them. You need permission to list the
    handles. A token needs `transfer`, and for a whole prefix `namespaces` too.
    """
    order = _parse_order(new.where, new.to, derived=new.derived, path="$.")
    registry = authorize_registry(call)

    def page(after: tuple[int, bytes] | None) -> tuple[int, tuple[int, bytes] | None]:
        with registry.snapshot() as snapshot:
            context = Context(snapshot, call.identity, INTERFACE, registry.now())
            found = transfer.preview_page(context, order, after, check_permissions=False)
        return len(found.items), found.following

    async def start() -> Job:
        total = await count_handles(call, page) or 0
        return await call.do(
            WorkKind.WRITE, lambda: transfer.start(registry, order, call.identity, INTERFACE, new.note, total)
        )

    return await call.once(lambda: run_job(call, registry, start, discard=True))


def _parse_order(where: str, to: str, *, derived: bool, path: str = "") -> TransferAll:
    """Build the transfer; raises `InvalidParameter` for a single handle. `path` precedes the field names in errors."""
    handle_range = parse_range(where)
    if handle_range is None:
        advice = "Use POST /api/v1/handles/{handle}/transfer, or give a prefix or a beginning and *"
        raise InvalidParameter("This is a single handle", f"{path}where", advice)
    return TransferAll(handle_range, parse_value_ref(to, f"{path}to"), derived)
