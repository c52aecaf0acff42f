"""Changes of many names that are one: previewed, carried out in the background, watched, gone on with, undone.

They are the units of `perseid rewrite, undo, operations` (`registry.units`). What a call begins goes on after it was
answered (`unit_calls`); what the server did not come to the end of, because it was stopped or somebody lost a right, is
gone on with by a call.
"""

from typing import Final

from perseid.ledger.store.jobs import Operation
from perseid.registry.context import Context
from perseid.registry.jobs import jobs, resume, undo
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs.jobs import Undos
from perseid.registry.jobs.rewrite import PlannedPage, Rewrite
from perseid.server.http.context import DOOR
from perseid.server.http.responses import NO_STORE
from perseid.server.http.v1.authorized_registry import Acting
from perseid.server.http.v1.calls import ApiCall, written
from perseid.server.http.v1.job_calls import (
    ACCEPTED,
    BUSY,
    accepted,
    acting_for,
    begun,
    check_known,
    counted,
    looked_at,
    place_for,
    shown,
    started,
)
from perseid.server.http.v1.job_events import MEDIA_TYPE, Listener, News
from perseid.server.http.v1.job_runs import Place, TooMany
from perseid.server.http.v1.job_structures import (
    NewRewrite,
    NewUndo,
    ObstacleTold,
    Operations,
    OperationTold,
    Plan,
    RewriteQuery,
    State,
    UndoPlan,
    operation_told,
    planned_name,
)
from perseid.server.http.v1.problems import Wrong
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Paging
from perseid.server.limits.budgets import source_of
from perseid.server.native.steps import Kind

CHAPTER: Final = Routes(
    "Operations", "Changes of many names that are one: seen beforehand, watched, gone on with, and undone."
)

_STEP: Final = {"operation": "The name of the operation, as `listOperations` shows it; or `last`."}


# Rewriting


@CHAPTER.add(
    "GET",
    "/rewrites/preview",
    "previewRewrite",
    "What a rewrite would change",
    answer=Plan,
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

    def read(context: Context) -> PlannedPage:
        return rewriting.planned(context.facts, context.who, order, after, asked.limit)

    def tell(page: PlannedPage) -> Reply:
        following = call.sealed(page.following)
        return Reply(Plan([planned_name(each) for each in page.items], following), next=following)

    return await call.tell(read, tell)


@CHAPTER.add(
    "POST",
    "/rewrites",
    "rewrite",
    "Move what many names lead to",
    body=NewRewrite,
    answer=OperationTold,
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
    new = call.given(NewRewrite)
    order = Rewrite(new.url, new.to, new.prefix)
    check_known(call)
    acting = acting_for(call)

    async def begin(place: Place) -> Operation:
        total = await _counted(call, acting, order)
        unit = await call.do(Kind.WRITE, lambda: rewriting.begin(acting, order, call.who, DOOR, new.note, total))
        await started(call, acting, place, unit, forgets=True)
        return unit

    return await call.once(lambda: begun(call, acting, begin))


async def _counted(call: ApiCall, acting: Acting, order: Rewrite) -> int:
    """How many names a rewrite is about; 0 if they are very many. Raises `Wrong` if there are none."""

    def page(after: str | None) -> tuple[int, str | None]:
        with acting.facts() as facts:
            found = rewriting.planned(facts, call.who, order, after)
        return sum(bool(each.changes) for each in found.items), found.following

    total = await counted(call, page)
    if total == 0:
        raise Wrong("not-found", "no name that you may see leads there, or none that can be moved", "see the preview")
    return total or 0


# Operations


@CHAPTER.add(
    "GET",
    "/operations",
    "listOperations",
    "Changes of many names",
    answer=Operations,
    query=Paging,
    problems=(401,),
)
async def list_operations(call: ApiCall) -> Reply:
    """The changes of many names that you may see, the one that began last first: yours, or all if you run the server.

    Those that were begun at the command line, or with tokens of yours, are among them. A token sees what was begun with
    it.
    """
    check_known(call)
    limit, before = call.asked(Paging).limit, await call.after(tuple[int, str])
    acting = acting_for(call)

    runs = call.asking.place.api.runs

    def read() -> Reply:
        page = jobs.page(acting, call.who, before, limit)
        undos, following = Undos.of(acting, *[each.id for each in page.items]), call.sealed(page.last)
        # Whether each is carried out is looked up, which any thread may do.
        told = Operations([operation_told(each, undos, runs, call.who) for each in page.items], following)
        return written(Reply(told, next=following))

    return await call.do(Kind.READ, read)


@CHAPTER.add(
    "GET",
    "/operations/{operation}",
    "showOperation",
    "A change of many names",
    answer=OperationTold,
    problems=(401, 404),
    parameters=_STEP,
)
async def show_operation(call: ApiCall) -> Reply:
    """What a change of many names is, how far it has come, and whether it was undone."""
    check_known(call)
    return Reply(await shown(call, acting_for(call), call.names["operation"]))


@CHAPTER.add(
    "GET",
    "/operations/{operation}/events",
    "watchOperation",
    "How far an operation has come, while it goes on",
    media_types=(MEDIA_TYPE,),
    problems=(401, 404),
    parameters=_STEP,
)
async def watch_operation(call: ApiCall) -> Reply:
    """Server-sent events, each with all there is to say about the operation, as `showOperation` says it.

    `progress` comes whenever something is new. With `end` nothing more is to come: the operation has ended, or nobody
    is at it any more. If the connection ends without it, ask again; `Last-Event-ID` is not needed for that.
    """
    check_known(call)
    acting = acting_for(call)
    listener = _listener(call)  # before anything is waited for, or many would be let in at once
    try:
        first = await shown(call, acting, call.names["operation"])
    except BaseException:
        listener.leave()
        raise

    async def look() -> News:
        told = await shown(call, acting, first.operation)
        here = told.state is State.RUNNING
        return News(told, told.done, told.ended is not None or told.problem is not None, here)

    listener.listen(look)
    if call.request.method == "HEAD":
        await listener.aclose()  # the head is that of GET, and nothing comes behind it
    headers = (NO_STORE, ("X-Accel-Buffering", "no"))  # a proxy that collects before it sends would send nothing
    return Reply(headers=headers, media_type=MEDIA_TYPE, stream=listener)


def _listener(call: ApiCall) -> Listener:
    """Somebody more who listens; raises `Wrong` if there is no room."""
    try:
        return call.asking.place.api.listeners.one_more(source_of(call.request.client.host))
    except TooMany as many:
        advice = "end one of yours, or ask for the operation itself"
        raise Wrong("too-many-requests", str(many), advice, headers=BUSY) from many


@CHAPTER.add(
    "POST",
    "/operations/{operation}/resume",
    "resumeOperation",
    "Go on with an operation",
    answer=OperationTold,
    status=ACCEPTED,
    scope="update",
    problems=(401, 403, 404, 409, 422),
    parameters=_STEP,
)
async def resume_operation(call: ApiCall) -> Reply:
    """Go on with a change of many names that is unfinished, with your rights; what is done stays done.

    Nothing happens if this server is at it. A token needs the words of the single changes.
    """
    check_known(call)
    acting, name = acting_for(call), call.names["operation"]
    known = await call.do(Kind.READ, lambda: jobs.found(acting, call.who, name))
    if call.asking.place.api.runs.is_running(known.id):
        return accepted(call, await shown(call, acting, known.id))

    async def begin(place: Place) -> Operation:
        unit = await call.do(Kind.READ, lambda: resume.unfinished(acting, known.id, call.who))
        if unit.kind == undo.KIND:
            look = await looked_at(call, acting, unit.undoes)
            await call.do(Kind.WRITE, lambda: look.begin(DOOR))
        await started(call, acting, place, unit)
        return unit

    return await begun(call, acting, begin, undoes=known.kind == undo.KIND)


@CHAPTER.add(
    "GET",
    "/operations/{operation}/undo",
    "previewUndo",
    "What an undo would be about",
    answer=UndoPlan,
    problems=(401, 404, 422),
    parameters=_STEP,
)
async def preview_undo(call: ApiCall) -> Reply:
    """How many names an undo would be about, and which of them stand in its way. Nothing is done.

    What others changed later is not lost, and what was erased does not come back: where there is any such name nothing
    is undone at all.
    """
    check_known(call)
    acting = acting_for(call)
    with place_for(call, undoes=True):
        look = await looked_at(call, acting, call.names["operation"])
    obstacles = [ObstacleTold(each.handle, each.seq, each.why) for each in look.obstacles]
    return Reply(UndoPlan(look.meant.id, look.total, not look.in_the_way, look.in_the_way, obstacles))


@CHAPTER.add(
    "POST",
    "/operations/{operation}/undo",
    "undoOperation",
    "Undo an operation",
    body=NewUndo,
    answer=OperationTold,
    status=ACCEPTED,
    scope="update",
    creates=True,
    problems=(401, 403, 404, 409, 422),
    parameters=_STEP,
)
async def undo_operation(call: ApiCall) -> Reply:
    """Undo a change of many names: each becomes what it was, by a new entry. It is an operation of its own.

    Names that were made become tombstones, for somebody may have them already. Nothing is undone where later changes
    would be lost, or where data has been erased; `previewUndo` tells which names that are. An undo can be undone. A
    token needs the words of the inverse changes.
    """
    check_known(call)
    acting, note = acting_for(call), call.given(NewUndo).note

    async def begin(place: Place) -> Operation:
        look = await looked_at(call, acting, call.names["operation"])
        unit = await call.do(Kind.WRITE, lambda: look.begin(DOOR, note))
        if not call.asking.place.api.runs.is_running(unit.id):
            await started(call, acting, place, unit)
        return unit

    return await call.once(lambda: begun(call, acting, begin, undoes=True))
