"""What the chapters share that change many names: how such a change is begun, carried out and told of.

The first steps are taken before the answer, so that whoever may not do it is told so. The rest goes on after it, in the
background (`unit_runs`).
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from perseid.ledger.store.jobs import Operation
from perseid.registry.identity import Anonymous
from perseid.registry.jobs import jobs, resume
from perseid.registry.jobs.jobs import Undos
from perseid.registry.jobs.undo import InTheWay, Look
from perseid.registry.results import Refused
from perseid.server.http.context import DOOR
from perseid.server.http.resolver.paths import address_of
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from .authorized_registry import Acting
from .calls import ApiCall
from .job_runs import Place, TooMany, Unit, patiently
from .job_structures import MAX_OBSTACLES, OperationTold, operation_told
from .problems import Wrong, make, problem_of
from .routing import BASE, Reply

MAX_COUNTED: Final = 2_500
"""Names that are counted before a change of them begins: a quarter of a second. Of more it is not known how many."""

FIRST_PIECES: Final = 8
"""Pieces of work that are done before the answer: a quarter of a second, in which a change of some hundred names ends,
and one that cannot be made is refused."""

ACCEPTED: Final = 202
"""The status of an answer about what goes on."""

BUSY: Final = (("Retry-After", "10"),)
"""With what somebody is sent away for whom there is no room."""

P = TypeVar("P")


def check_known(call: ApiCall) -> None:
    """Refuse nobody in particular."""
    if isinstance(call.who, Anonymous):
        reason = "who changes many records at once has to be known"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "send a token, or prove who you are otherwise")


def acting_for(call: ApiCall) -> Acting:
    """The registry for whoever asks, over several steps."""
    api, registry = call.asking.place.api, call.registry
    return Acting(registry, call.who, call.call.identified.guard, lambda: api.rules or registry.rules)


@contextmanager
def place_for(call: ApiCall, *, undoes: bool = False) -> Iterator[Place]:
    """A place among those that are carried out; raises `Wrong` if there is none."""
    try:
        with call.asking.place.api.runs.place(call.who, undoes=undoes) as place:
            yield place
    except TooMany as many:
        raise Wrong("busy", str(many), "ask again when one has ended", headers=BUSY) from many


async def begun(
    call: ApiCall, acting: Acting, begin: Callable[[Place], Awaitable[Operation]], *, undoes: bool = False
) -> Reply:
    """Begin an operation, which goes on by itself, and say so."""
    call.call.check_changing()
    try:
        with place_for(call, undoes=undoes) as place:
            unit = await begin(place)
    except InTheWay as problem:
        raise Wrong("in-the-way", problem.reason, problem.advice, code=int(problem.code)) from problem
    return accepted(call, await shown(call, acting, unit.id))


async def started(call: ApiCall, acting: Acting, place: Place, unit: Operation, *, forgets: bool = False) -> None:
    """Take the first steps of an operation, and have the rest done in the background.

    Raises what the first step raises; with `forgets` the operation is forgotten then, as nothing of it was done.
    """
    runs = call.asking.place.api.runs
    work = partial(resume.pieces, acting, replace(unit, door=DOOR), call.who)
    others = make(call.settings, "ended-early", "whoever carried it out could not go on with it")
    run = Unit(unit.id, work, call.do, call.who, lambda error: problem_of(error, call.asking).problem, others)
    pieces = work()
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
            await call.do(Kind.WRITE, lambda: jobs.finish(acting, unit))
        raise
    runs.start(place, run, pieces)


async def counted(call: ApiCall, page: Callable[[P | None], tuple[int, P | None]]) -> int | None:
    """How many names a change is about, page by page; None if they are very many.

    `page` tells how many there are on the page that begins somewhere, and where the next one begins.
    """
    total = 0
    after: P | None = None
    for _ in range(MAX_COUNTED // jobs.CHUNK):
        count, after = await call.do(Kind.READ, partial(page, after))
        total += count
        if after is None:
            return total
    return None


async def looked_at(call: ApiCall, acting: Acting, name: str) -> Look:
    """What an undo of an operation is about, all of it looked at."""
    runs = call.asking.place.api.runs
    look = await call.do(Kind.READ, lambda: Look(acting, name, call.who, MAX_OBSTACLES))
    while await patiently(lambda: call.do(Kind.READ, look.go_on), runs):
        pass
    return look


# What is told


async def shown(call: ApiCall, acting: Acting, name: str) -> OperationTold:
    """An operation as whoever asks may see it."""

    def read() -> tuple[Operation, Undos]:
        unit = jobs.found(acting, call.who, name)
        return unit, Undos.of(acting, unit.id)

    unit, undos = await call.do(Kind.READ, read)
    return operation_told(unit, undos, call.asking.place.api.runs, call.who)


def accepted(call: ApiCall, told: OperationTold) -> Reply:
    """That an operation is carried out, and where it can be seen."""
    where = address_of(f"{BASE}/operations/{told.operation}", call.settings)
    return Reply(told, ACCEPTED, (("Location", where),))
