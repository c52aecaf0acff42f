"""Jobs: changes of many records, and their previews."""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from .common import Doc, IdentityText, NextCursor, Note, Paging, RequestBody, ResponseBody, Seq
from .problems import Problem
from .queries import FindQuery, Selectors
from .records import Data, Index, Type, Warnings

MAX_ADMINISTRATORS_SHOWN: Final = 20
"""Administrators shown per record in a preview; a record can have two thousand."""

MAX_CONFLICTS: Final = 1_000
"""Most undo conflicts in a response; the total is always given."""

MAX_UNDONE_SHOWN: Final = 10
"""Records in the preview of an undo whose changes are shown."""


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    UNFINISHED = "unfinished"
    DONE = "done"
    CANCELED = "canceled"
    BEING_UNDONE = "being_undone"
    UNDONE = "undone"


NewUrl = Annotated[
    str,
    Doc(
        "The new URL, with `*` if the current one has it or you give a host.",
        min_length=1,
        max_length=8_000,
        examples=["https://new.example/*"],
    ),
]


class RewriteQuery(FindQuery, frozen=True, kw_only=True):
    """Which URLs to rewrite, and to what. Either `url` or `host` is required."""

    to: NewUrl


class NewRewrite(Selectors, frozen=True, kw_only=True):
    """Which URLs to rewrite, and to what. Either `url` or `host` is required."""

    to: NewUrl
    note: Note = ""


class NewUndo(RequestBody, frozen=True):
    """The undo of a job."""

    note: Note = ""


class PlannedChange(ResponseBody, frozen=True):
    """A value that would change."""

    index: Index
    type: Type
    old: Annotated[Data | None, Doc("The current data; null if the value would be added.")]
    new: Annotated[Data | None, Doc("The new data; null if the value would be removed.")]
    warnings: Warnings = ()


class PlannedRecord(ResponseBody, frozen=True, omit_defaults=False):
    """The changes to one record."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    changes: Annotated[list[PlannedChange], Doc("The values that would change.")]
    remaining: Annotated[
        list[int],
        Doc("Indexes of values that match but cannot be rewritten without changing more of their XML."),
    ]


class RewritePlan(ResponseBody, frozen=True, omit_defaults=False):
    """The planned changes, in index order."""

    handles: Annotated[list[PlannedRecord], Doc("The handles of the page. It can be empty without being the last.")]
    next: NextCursor = None


class JobResponse(ResponseBody, frozen=True, omit_defaults=False):
    """A job: a change of many records."""

    job: Annotated[str, Doc("The id of the job.", examples=["0123456789abcdef"])]
    kind: Annotated[str, Doc("The kind: `rewrite`, `transfer`, `mint`, `reserve`, `undo` …", examples=["rewrite"])]
    state: Annotated[
        JobState,
        Doc(
            "`running` on this server; `unfinished`: not complete and not running on this server, because it failed, "
            "the server was restarted, or a command or another server runs it; resume it if it does not continue; "
            "`done`; `canceled`: stopped by a user, its changes remain; `being_undone`; `undone`."
        ),
    ]
    parameters: Annotated[dict[str, Any], Doc("The parameters of the job.")]
    done: Annotated[int, Doc("Number of completed changes.")]
    total: Annotated[int | None, Doc("Number of handles, counted at the start; null if there are too many to count.")]
    started_at: Annotated[str, Doc("Start time, in ISO 8601.")]
    ended_at: Annotated[str | None, Doc("End time, in ISO 8601; null until the job is complete or canceled.")]
    actor: Annotated[str, Doc("Who started it.", examples=["300:0.NA/12345"])]
    note: Annotated[str, Doc("The note given at the start.")]
    undone_by: Annotated[str | None, Doc("The job that undid it.")] = None
    problem: Annotated[
        Problem | None,
        Doc("Why the job is unfinished. Only the user who ran it sees the reason of a failure."),
    ] = None


class JobPage(ResponseBody, frozen=True, omit_defaults=False):
    """Jobs, latest first."""

    jobs: Annotated[list[JobResponse], Doc("The jobs of the page. It can be empty without being the last.")]
    next: NextCursor = None


class UndoConflictResponse(ResponseBody, frozen=True):
    """A record that prevents an undo."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    seq: Annotated[Seq | None, Doc("The conflicting ledger entry; null if you cannot see the history of the handle.")]
    reason: Annotated[str, Doc("The reason.", examples=["changed later, in entry 1234"])]
    changed_later: Annotated[bool, Doc("Whether a later change is in the way, which can be reverted.")]


class UndoneRecord(ResponseBody, frozen=True):
    """What an undo would change in a record."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    state: Annotated[str, Doc("The state now.", examples=["published"])]
    new_state: Annotated[str, Doc("The state after the undo.", examples=["tombstone"])]
    changes: Annotated[list[PlannedChange], Doc("The values that would change.")]


class UndoPlan(ResponseBody, frozen=True, omit_defaults=False):
    """What an undo would change, and its conflicts."""

    job: Annotated[str, Doc("The job to undo.")]
    total: Annotated[int, Doc("Number of handles it changed.")]
    possible: Annotated[bool, Doc("Whether there are no conflicts. All permissions are checked during the undo.")]
    conflict_count: Annotated[int, Doc("Number of conflicts.")]
    conflicts: Annotated[list[UndoConflictResponse], Doc(f"The conflicts; at most {MAX_CONFLICTS:,}.")]
    tombstones: Annotated[int, Doc("Number of records that the job created, and that become tombstones.")] = 0
    reserved: Annotated[int, Doc("Number of identifiers that the job reserved, and that stay reserved.")] = 0
    sample: Annotated[
        list[UndoneRecord],
        Doc(f"Records that would change, latest first: at most {MAX_UNDONE_SHOWN}, of those that you can read."),
    ] = msgspec.field(default_factory=list)
    problem: Annotated[
        Problem | None,
        Doc("Why you cannot undo one of the first records, such as a permission that you do not have."),
    ] = None


# Transfers

Where = Annotated[
    str,
    Doc(
        "A prefix, for all its handles and the prefix handle; or a beginning and `*`, as in `12345/maps-*`.",
        min_length=1,
        max_length=4_096,
        examples=["12345/maps-*"],
    ),
]

NewOwner = Annotated[IdentityText, Doc("The key or group that will own the handles, as `INDEX:HANDLE`.")]

Derived = Annotated[bool, Doc("With a prefix: include derived prefixes and their handles.")]


class TransferQuery(Paging, frozen=True, kw_only=True):
    """What to transfer, and to whom."""

    where: Where
    to: NewOwner
    derived: Derived = False


class NewTransfer(RequestBody, frozen=True):
    """A transfer of many handles."""

    where: Where
    to: NewOwner
    derived: Derived = False
    note: Note = ""


class PlannedTransfer(ResponseBody, frozen=True, omit_defaults=False):
    """A handle that would be transferred."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    administrators: Annotated[
        list[str],
        Doc(
            f"Its current administrators, as far as you can read them; at most {MAX_ADMINISTRATORS_SHOWN}.",
            examples=[["200:0.NA/12345"]],
        ),
    ]
    allowed: Annotated[
        bool, Doc("Whether you can transfer it. A transfer stops at the first handle that you cannot transfer.")
    ]
    reason: Annotated[str | None, Doc("Why you cannot transfer it.")] = None


class TransferPlan(ResponseBody, frozen=True, omit_defaults=False):
    """Handles in the order of the transfer. Handles that the new owner has already are omitted."""

    handles: Annotated[list[PlannedTransfer], Doc("The handles of the page. It can be empty without being the last.")]
    next: NextCursor = None
