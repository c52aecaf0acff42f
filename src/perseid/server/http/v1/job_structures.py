"""What is said over the network about changes of many names."""

from enum import StrEnum
from typing import Annotated, Any, Final

from perseid.ledger.store.jobs import Job
from perseid.records.value import Value
from perseid.registry.identity import Identity
from perseid.registry.jobs.runner import UndoIndex, load_parameters
from perseid.registry.jobs.rewrite import PlannedRewrite

from .changes import iso_time
from .job_runs import JobRunner
from .problems import Problem
from .structures import Doc, NextCursor, Note, Paging, RequestBody, ResponseBody, Seq
from .values import Data, Index, Type, dump_values

MAX_CONFLICTS: Final = 1_000
"""Names that an answer tells of which stand in the way of an undo; it says how many there are."""


class JobState(StrEnum):
    """How it is with an operation."""

    RUNNING = "running"
    UNFINISHED = "unfinished"
    DONE = "done"
    BEING_UNDONE = "being-undone"
    UNDONE = "undone"


Url = Annotated[
    str,
    Doc(
        "What they lead to now: a URL, or how it begins and `*`.",
        min_length=1,
        max_length=8_000,
        examples=["http://old.example/*"],
    ),
]
NewUrl = Annotated[
    str,
    Doc(
        "What they lead to then, with `*` where that has one.",
        min_length=1,
        max_length=8_000,
        examples=["https://new.example/*"],
    ),
]
Prefix = Annotated[str | None, Doc("Only names of this namespace.", examples=["12345"])]


class RewriteQuery(Paging, frozen=True, kw_only=True):
    """What many names lead to, and what they shall lead to."""

    url: Url
    to: NewUrl
    prefix: Prefix = None


class NewRewrite(RequestBody, frozen=True):
    """What many names lead to, and what they shall lead to."""

    url: Url
    to: NewUrl
    prefix: Prefix = None
    note: Note = ""


class NewUndo(RequestBody, frozen=True):
    """That an operation is to be undone."""

    note: Note = ""


class PlannedChange(ResponseBody, frozen=True):
    """A value that would be changed."""

    index: Index
    type: Type
    old: Annotated[Data, Doc("What it says now.")]
    new: Annotated[Data, Doc("What it would say.")]


class PlannedRecord(ResponseBody, frozen=True, omit_defaults=False):
    """What would become of one name."""

    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    changes: Annotated[list[PlannedChange], Doc("The values that would be changed.")]
    left: Annotated[
        list[int],
        Doc("The indexes of values that lead there and cannot be moved without touching more of their XML."),
    ]


class RewritePlan(ResponseBody, frozen=True, omit_defaults=False):
    """What would be changed, in the order of the index."""

    names: Annotated[list[PlannedRecord], Doc("The names of the page. It may have none, and not be the last.")]
    next: NextCursor = None


class JobResponse(ResponseBody, frozen=True, omit_defaults=False):
    """A change of many names."""

    operation: Annotated[str, Doc("Its name.", examples=["0123456789abcdef"])]
    kind: Annotated[str, Doc("What it is: `rewrite`, `undo`, `mint`, `transfer` …", examples=["rewrite"])]
    state: Annotated[
        JobState,
        Doc(
            "`running`: this server is at it. `unfinished`: something is left to do, and this server is not at it. "
            "`done`, `being-undone`, `undone`."
        ),
    ]
    asked: Annotated[dict[str, Any], Doc("What was asked for.")]
    done: Annotated[int, Doc("How many changes it has made, durably.")]
    total: Annotated[int | None, Doc("How many names it is about, as counted beforehand; null if nobody knows.")]
    begun: Annotated[str, Doc("When it began, in ISO 8601.")]
    ended: Annotated[str | None, Doc("When it ended; null while something is left to do.")]
    actor: Annotated[str, Doc("Who began it.", examples=["300:0.NA/12345"])]
    note: Annotated[str, Doc("Why, in their words.")]
    undone_by: Annotated[str | None, Doc("The operation that has undone it.")] = None
    problem: Annotated[
        Problem | None,
        Doc(
            "That it ended early, if this server was at it. Why, is told to whoever carried it out, and to nobody else."
        ),
    ] = None


class JobPage(ResponseBody, frozen=True, omit_defaults=False):
    """Changes of many names, the one that began last first."""

    operations: Annotated[list[JobResponse], Doc("Those of the page. It may have none, and not be the last.")]
    next: NextCursor = None


class UndoConflictResponse(ResponseBody, frozen=True):
    """Why a record cannot become what it was."""

    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    seq: Annotated[Seq | None, Doc("The entry that stands in the way; null if you may not see the name's past.")]
    why: Annotated[str, Doc("Why it does.", examples=["changed later, in entry 1234"])]


class UndoPlan(ResponseBody, frozen=True, omit_defaults=False):
    """What an undo would be about, and what stands in its way."""

    operation: Annotated[str, Doc("What would be undone.")]
    names: Annotated[int, Doc("How many names it is about.")]
    possible: Annotated[bool, Doc("Whether nothing stands in its way. Rights are looked at when it is done.")]
    in_the_way: Annotated[int, Doc("How many names stand in its way.")]
    obstacles: Annotated[list[UndoConflictResponse], Doc(f"These; {MAX_CONFLICTS:,} of them at most.")]


def to_job_response(job: Job, undos: UndoIndex, runner: JobRunner, identity: Identity) -> JobResponse:
    """An operation as it is told to somebody."""
    state = _job_state(job, undos, running=runner.is_running(job.id))
    return JobResponse(
        job.id,
        job.kind,
        state,
        load_parameters(job),
        job.done,
        job.total or None,
        iso_time(job.begun),
        iso_time(job.ended) if job.ended else None,
        job.actor,
        job.note,
        undos.effective_undo(job.id),
        runner.problem(job.id, identity) if state is JobState.UNFINISHED else None,
    )


def _job_state(job: Job, undos: UndoIndex, *, running: bool) -> JobState:
    if undos.running(job.id):
        return JobState.BEING_UNDONE
    if undos.effective_undo(job.id):
        return JobState.UNDONE
    if job.ended:
        return JobState.DONE
    return JobState.RUNNING if running else JobState.UNFINISHED


def to_planned_record(planned: PlannedRewrite) -> PlannedRecord:
    """What would become of a name, as it is told."""
    changes = [_planned_change(old, new) for old, new in planned.changes]
    return PlannedRecord(planned.handle, changes, [value.index for value in planned.left])


def _planned_change(old: Value, new: Value) -> PlannedChange:
    before, after = dump_values((old, new))
    return PlannedChange(new.index, new.type, before.data, after.data)
