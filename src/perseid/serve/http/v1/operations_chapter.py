"""Changes of many names that are one: previewed, carried out in the background, watched, gone on with, undone.

They are the units of `perseid rewrite, undo, operations` (`registry.units`). What a call begins goes on after it was
answered (`unit_runs`); what the server did not come to the end of, because it was stopped or somebody lost a right, is
gone on with by a call. The first step is taken before the answer, so that whoever may not do it is told so.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from perseid.ledger.operations import Operation
from perseid.registry import resuming, rewriting, undoing, units
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import Refused
from perseid.registry.rewriting import PlannedPage, Rewrite
from perseid.registry.undoing import InTheWay, Look
from perseid.registry.units import Undos
from perseid.serve.budgets import source_of
from perseid.serve.http.asking import DOOR
from perseid.serve.http.failures import NO_STORE
from perseid.serve.http.paths import address_of
from perseid.serve.native_steps import Kind
from perseid.wire.codes import ResponseCode

from .acting import Acting
from .calls import ApiCall
from .operation_shapes import (
    MAX_OBSTACLES,
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
from .problems import Wrong, problem_of
from .routing import BASE, Reply, Routes
from .shapes import Paging
from .unit_events import MEDIA_TYPE, News, events
from .unit_runs import Place, TooMany, Unit, patiently

CHAPTER: Final = Routes(
    "Operations", "Changes of many names that are one: seen beforehand, watched, gone on with, and undone."
)

MAX_COUNTED: Final = 2_500
"""Names that are counted before a change of them begins: a quarter of a second. Of more it is not known how many."""

FIRST_PIECES: Final = 8
"""Pieces of work that are done before the answer: a quarter of a second, in which a change of some hundred names ends,
and one that cannot be made is refused."""

_ACCEPTED: Final = 202
_STEP: Final = {"operation": "The name of the operation, as `listOperations` shows it; or `last`."}
_BUSY: Final = (("Retry-After", "10"),)


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

    page = await call.read(read)
    following = await call.cursor(page.following)
    return Reply(Plan([planned_name(each) for each in page.items], following), next=following)


@CHAPTER.add(
    "POST",
    "/rewrites",
    "rewrite",
    "Move what many names lead to",
    body=NewRewrite,
    answer=OperationTold,
    status=_ACCEPTED,
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
    _check_known(call)
    acting = _acting(call)

    async def begun(place: Place) -> Operation:
        total = await _counted(call, acting, order)
        unit = await call.do(Kind.WRITE, lambda: rewriting.begin(acting, order, call.who, DOOR, new.note, total))
        await _started(call, acting, place, unit, forgets=True)
        return unit

    return await call.once(lambda: _begun(call, acting, begun))


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

    Those that were begun at the command line are among them. A token sees what was begun with it.
    """
    _check_known(call)
    limit, before = call.asked(Paging).limit, await call.after(tuple[int, str])
    acting = _acting(call)

    def read() -> tuple[units.UnitPage, Undos]:
        return units.page(acting, call.who, before, limit), Undos.of(acting)

    page, undos = await call.do(Kind.READ, read)
    runs = call.asking.place.api.runs
    following = await call.cursor(page.last)
    return Reply(Operations([operation_told(each, undos, runs) for each in page.items], following), next=following)


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
    _check_known(call)
    return Reply(await _shown(call, _acting(call), call.names["operation"]))


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
    _check_known(call)
    acting = _acting(call)
    first = await _shown(call, acting, call.names["operation"])
    listeners, source = call.asking.place.api.listeners, source_of(call.request.client.host)
    try:
        listeners.check(source)
    except TooMany as many:
        advice = "end one of yours, or ask for the operation itself"
        raise Wrong("too-many-requests", str(many), advice, headers=_BUSY) from many

    async def look() -> News:
        told = await _shown(call, acting, first.operation)
        here = told.state is State.RUNNING
        return News(told, told.done, told.ended is not None or told.problem is not None, here)

    headers = (NO_STORE, ("X-Accel-Buffering", "no"))  # a proxy that collects before it sends would send nothing
    stream = None if call.request.method == "HEAD" else events(look, listeners, source)
    return Reply(headers=headers, media_type=MEDIA_TYPE, stream=stream)


@CHAPTER.add(
    "POST",
    "/operations/{operation}/resume",
    "resumeOperation",
    "Go on with an operation",
    answer=OperationTold,
    status=_ACCEPTED,
    scope="update",
    problems=(401, 403, 404, 409, 422),
    parameters=_STEP,
)
async def resume_operation(call: ApiCall) -> Reply:
    """Go on with a change of many names that is unfinished, with your rights; what is done stays done.

    Nothing happens if this server is at it. A token needs the words of the single changes.
    """
    _check_known(call)
    acting, name = _acting(call), call.names["operation"]
    known = await call.do(Kind.READ, lambda: units.found(acting, call.who, name))
    if call.asking.place.api.runs.is_running(known.id):
        return _accepted(call, await _shown(call, acting, known.id))

    async def begun(place: Place) -> Operation:
        unit = await call.do(Kind.READ, lambda: resuming.unfinished(acting, known.id, call.who))
        if unit.kind == undoing.KIND:
            look = await _looked_at(call, acting, unit.undoes)
            await call.do(Kind.WRITE, lambda: look.begin(DOOR))
        await _started(call, acting, place, unit)
        return unit

    return await _begun(call, acting, begun)


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
    _check_known(call)
    acting = _acting(call)
    with _place(call, undoes=True):
        look = await _looked_at(call, acting, call.names["operation"])
    count = len(look.obstacles)
    obstacles = [ObstacleTold(each.handle, each.seq, each.why) for each in look.obstacles[:MAX_OBSTACLES]]
    return Reply(UndoPlan(look.meant.id, look.total, not count, count, obstacles))


@CHAPTER.add(
    "POST",
    "/operations/{operation}/undo",
    "undoOperation",
    "Undo an operation",
    body=NewUndo,
    answer=OperationTold,
    status=_ACCEPTED,
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
    _check_known(call)
    acting, note = _acting(call), call.given(NewUndo).note

    async def begun(place: Place) -> Operation:
        look = await _looked_at(call, acting, call.names["operation"])
        unit = await call.do(Kind.WRITE, lambda: look.begin(DOOR, note))
        if not call.asking.place.api.runs.is_running(unit.id):
            await _started(call, acting, place, unit)
        return unit

    return await call.once(lambda: _begun(call, acting, begun, undoes=True))


# Carrying out


def _check_known(call: ApiCall) -> None:
    """Refuse nobody in particular."""
    if isinstance(call.who, Anonymous):
        reason = "who changes many records at once has to be known"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "send a token, or prove who you are otherwise")


def _acting(call: ApiCall) -> Acting:
    return Acting(call.registry, call.who, call.call.identified.guard)


@contextmanager
def _place(call: ApiCall, *, undoes: bool = False) -> Iterator[Place]:
    """A place among those that are carried out; raises `Wrong` if there is none."""
    try:
        with call.asking.place.api.runs.place(call.who, undoes=undoes) as place:
            yield place
    except TooMany as many:
        raise Wrong("busy", str(many), "ask again when one has ended", headers=_BUSY) from many


async def _begun(
    call: ApiCall, acting: Acting, begin: Callable[[Place], Awaitable[Operation]], *, undoes: bool = False
) -> Reply:
    """Begin an operation, which goes on by itself, and say so."""
    call.call.check_changing()
    try:
        with _place(call, undoes=undoes) as place:
            unit = await begin(place)
    except InTheWay as problem:
        raise Wrong("in-the-way", problem.reason, problem.advice, code=int(problem.code)) from problem
    return _accepted(call, await _shown(call, acting, unit.id))


async def _started(call: ApiCall, acting: Acting, place: Place, unit: Operation, *, forgets: bool = False) -> None:
    """Take the first steps of an operation, and have the rest done in the background.

    Raises what the first step raises; with `forgets` the operation is forgotten then, as nothing of it was done.
    """
    runs = call.asking.place.api.runs
    make = partial(resuming.pieces, acting, unit, call.who)
    run = Unit(unit.id, make, call.do, lambda error: problem_of(error, call.asking).problem)
    pieces = make()
    step = partial(call.do, Kind.WRITE, partial(next, pieces, None))
    is_begun = False
    try:
        for _ in range(FIRST_PIECES):
            piece = await patiently(step, runs)
            if piece is None:
                return
            is_begun = is_begun or piece.done > unit.done
    except Exception as error:
        if is_begun:
            runs.note(run, error)
            return
        if forgets:
            await call.do(Kind.WRITE, lambda: units.finish(acting, unit))
        raise
    runs.start(place, run, pieces)


async def _counted(call: ApiCall, acting: Acting, order: Rewrite) -> int:
    """How many names a rewrite is about; 0 if they are very many. Raises `Wrong` if there are none."""
    total = 0
    after: str | None = None
    for _ in range(MAX_COUNTED // units.CHUNK):
        page = await call.do(Kind.READ, partial(_page, acting, call.who, order, after))
        total += sum(bool(each.changes) for each in page.items)
        after = page.following
        if after is None:
            break
    else:
        return 0
    if not total:
        raise Wrong("not-found", "no name that you may see leads there, or none that can be moved", "see the preview")
    return total


def _page(acting: Acting, who: Identity, order: Rewrite, after: str | None) -> PlannedPage:
    with acting.facts() as facts:
        return rewriting.planned(facts, who, order, after)


async def _looked_at(call: ApiCall, acting: Acting, name: str) -> Look:
    """What an undo of an operation is about, all of it looked at."""
    runs = call.asking.place.api.runs
    look = await call.do(Kind.READ, lambda: Look(acting, name, call.who))
    while await patiently(lambda: call.do(Kind.READ, look.go_on), runs):
        pass
    return look


# What is told


async def _shown(call: ApiCall, acting: Acting, name: str) -> OperationTold:
    def read() -> tuple[Operation, Undos]:
        return units.found(acting, call.who, name), Undos.of(acting)

    unit, undos = await call.do(Kind.READ, read)
    return operation_told(unit, undos, call.asking.place.api.runs)


def _accepted(call: ApiCall, told: OperationTold) -> Reply:
    where = address_of(f"{BASE}/operations/{told.operation}", call.settings)
    return Reply(told, _ACCEPTED, (("Location", where),))
