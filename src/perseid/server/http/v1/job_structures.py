"""What is said over the network about changes of many names."""

from enum import StrEnum
from typing import Annotated, Any, Final

from perseid.ledger.store.jobs import Operation
from perseid.records.value import Value
from perseid.registry.identity import Identity
from perseid.registry.jobs import jobs
from perseid.registry.jobs.jobs import Undos
from perseid.registry.jobs.rewrite import Planned

from .changes import iso_time
from .job_runs import Runs
from .problems import Problem
from .structures import About, Given, NextCursor, Note, Paging, Seq, Told
from .values import Data, Index, Type, told_values

MAX_OBSTACLES: Final = 1_000
"""Names that an answer tells of which stand in the way of an undo; it says how many there are."""


class State(StrEnum):
    """How it is with an operation."""

    RUNNING = "running"
    UNFINISHED = "unfinished"
    DONE = "done"
    BEING_UNDONE = "being-undone"
    UNDONE = "undone"


Url = Annotated[
    str,
    About(
        "What they lead to now: a URL, or how it begins and `*`.",
        min_length=1,
        max_length=8_000,
        examples=["http://old.example/*"],
    ),
]
To = Annotated[
    str,
    About(
        "What they lead to then, with `*` where that has one.",
        min_length=1,
        max_length=8_000,
        examples=["https://new.example/*"],
    ),
]
Prefix = Annotated[str | None, About("Only names of this namespace.", examples=["12345"])]


class RewriteQuery(Paging, frozen=True, kw_only=True):
    """What many names lead to, and what they shall lead to."""

    url: Url
    to: To
    prefix: Prefix = None


class NewRewrite(Given, frozen=True):
    """What many names lead to, and what they shall lead to."""

    url: Url
    to: To
    prefix: Prefix = None
    note: Note = ""


class NewUndo(Given, frozen=True):
    """That an operation is to be undone."""

    note: Note = ""


class PlannedChange(Told, frozen=True):
    """A value that would be changed."""

    index: Index
    type: Type
    old: Annotated[Data, About("What it says now.")]
    new: Annotated[Data, About("What it would say.")]


class PlannedName(Told, frozen=True, omit_defaults=False):
    """What would become of one name."""

    handle: Annotated[str, About("The name.", examples=["12345/x"])]
    changes: Annotated[list[PlannedChange], About("The values that would be changed.")]
    left: Annotated[
        list[int],
        About("The indexes of values that lead there and cannot be moved without touching more of their XML."),
    ]


class Plan(Told, frozen=True, omit_defaults=False):
    """What would be changed, in the order of the index."""

    names: Annotated[list[PlannedName], About("The names of the page. It may have none, and not be the last.")]
    next: NextCursor = None


class OperationTold(Told, frozen=True, omit_defaults=False):
    """A change of many names."""

    operation: Annotated[str, About("Its name.", examples=["0123456789abcdef"])]
    kind: Annotated[str, About("What it is: `rewrite`, `undo`, `mint`, `transfer` …", examples=["rewrite"])]
    state: Annotated[
        State,
        About(
            "`running`: this server is at it. `unfinished`: something is left to do, and this server is not at it. "
            "`done`, `being-undone`, `undone`."
        ),
    ]
    asked: Annotated[dict[str, Any], About("What was asked for.")]
    done: Annotated[int, About("How many changes it has made, durably.")]
    total: Annotated[int | None, About("How many names it is about, as counted beforehand; null if nobody knows.")]
    begun: Annotated[str, About("When it began, in ISO 8601.")]
    ended: Annotated[str | None, About("When it ended; null while something is left to do.")]
    actor: Annotated[str, About("Who began it.", examples=["300:0.NA/12345"])]
    note: Annotated[str, About("Why, in their words.")]
    undone_by: Annotated[str | None, About("The operation that has undone it.")] = None
    problem: Annotated[
        Problem | None,
        About(
            "That it ended early, if this server was at it. Why, is told to whoever carried it out, and to nobody else."
        ),
    ] = None


class Operations(Told, frozen=True, omit_defaults=False):
    """Changes of many names, the one that began last first."""

    operations: Annotated[list[OperationTold], About("Those of the page. It may have none, and not be the last.")]
    next: NextCursor = None


class ObstacleTold(Told, frozen=True):
    """Why a record cannot become what it was."""

    handle: Annotated[str, About("The name.", examples=["12345/x"])]
    seq: Annotated[Seq | None, About("The entry that stands in the way; null if you may not see the name's past.")]
    why: Annotated[str, About("Why it does.", examples=["changed later, in entry 1234"])]


class UndoPlan(Told, frozen=True, omit_defaults=False):
    """What an undo would be about, and what stands in its way."""

    operation: Annotated[str, About("What would be undone.")]
    names: Annotated[int, About("How many names it is about.")]
    possible: Annotated[bool, About("Whether nothing stands in its way. Rights are looked at when it is done.")]
    in_the_way: Annotated[int, About("How many names stand in its way.")]
    obstacles: Annotated[list[ObstacleTold], About(f"These; {MAX_OBSTACLES:,} of them at most.")]


def operation_told(unit: Operation, undos: Undos, runs: Runs, who: Identity) -> OperationTold:
    """An operation as it is told to somebody."""
    state = _state(unit, undos, running=runs.is_running(unit.id))
    return OperationTold(
        unit.id,
        unit.kind,
        state,
        jobs.asked(unit),
        unit.done,
        unit.total or None,
        iso_time(unit.begun),
        iso_time(unit.ended) if unit.ended else None,
        unit.actor,
        unit.note,
        undos.standing(unit.id),
        runs.problem(unit.id, who) if state is State.UNFINISHED else None,
    )


def _state(unit: Operation, undos: Undos, *, running: bool) -> State:
    if undos.running(unit.id):
        return State.BEING_UNDONE
    if undos.standing(unit.id):
        return State.UNDONE
    if unit.ended:
        return State.DONE
    return State.RUNNING if running else State.UNFINISHED


def planned_name(planned: Planned) -> PlannedName:
    """What would become of a name, as it is told."""
    changes = [_change(old, new) for old, new in planned.changes]
    return PlannedName(planned.handle, changes, [value.index for value in planned.left])


def _change(old: Value, new: Value) -> PlannedChange:
    before, after = told_values((old, new))
    return PlannedChange(new.index, new.type, before.data, after.data)
