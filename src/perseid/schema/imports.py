"""Rows of an import: what a file says about each identifier, whatever its format.

A reader of a format (`perseid.bulk`) makes rows; a job of the registry (`perseid.registry.jobs`) validates and applies
them. Data in a row is literal: nothing is read from files, and a text that begins with `@` or `base64:` is that text.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from .common import Doc, NextCursor, Note, RequestBody, ResponseBody
from .jobs import JobResponse, PlannedRecord
from .records import ValueInput, Warnings


class RowOperation(StrEnum):
    """What a row does."""

    CREATE = "create"
    """Create a record; whether an existing one is an error, is skipped or updated is an option of the import."""
    MINT = "mint"
    """Mint a handle under the prefix `handle`."""
    ADD = "add"
    MODIFY = "modify"
    REMOVE = "remove"
    """Remove the values at `indexes`."""
    DELETE = "delete"
    HOME = "home"
    """Host the prefix of the prefix handle `handle`."""
    UNHOME = "unhome"


class ImportRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of an import."""

    line: int
    """Line of the file, or row of the spreadsheet, on which it starts; the first is 1."""
    operation: RowOperation
    handle: str
    """The handle, the prefix in which to mint, or a prefix handle."""
    values: tuple[ValueInput, ...] = ()
    columns: tuple[str, ...] = ()
    """The column of each value, for reports; empty if the format has no columns."""
    indexes: tuple[int, ...] = ()
    state: str = ""
    """`published`, `unpublished`, `reserved` or `tombstone`; empty if the file does not say."""
    created: str = ""
    """When the handle was created, as the file says; used if dates are preserved."""
    owner: str = ""
    """The owner, `INDEX:HANDLE`, as the file says; used if dates are preserved."""


class RowProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with one row of a file."""

    line: int
    """Line of the file, or row of the spreadsheet, on which the row starts; 0 for the file as a whole."""
    column: str
    """The column, as the file names it; empty for the row as a whole."""
    value: str
    """The value, shortened."""
    rule: str
    """The broken rule, a slug such as `unknown-columns`."""
    message: str
    """What is wrong, as a sentence."""
    fix: str = ""
    """How to fix it, as a sentence, in the terms of no interface."""
    advice_kind: str = ""
    """The kind of that advice, for interfaces that phrase it themselves."""
    advice_parameters: dict[str, Any] = {}


class OnExisting(StrEnum):
    """What happens to a row whose handle exists."""

    FAIL = "fail"
    SKIP = "skip"
    UPDATE = "update"
    """Set the values of the row, as `perseid set` does; other values of the record stay."""


class RowOutcome(StrEnum):
    """What becomes of a row."""

    CREATED = "created"
    MINTED = "minted"
    UPDATED = "updated"
    DELETED = "deleted"
    UNCHANGED = "unchanged"
    """The record is already as the row says."""
    SKIPPED = "skipped"
    """The handle exists, and existing records are skipped."""


def has_changes(outcomes: Iterable[str]) -> bool:
    """Whether rows with these outcomes change anything."""
    return not {RowOutcome.UNCHANGED, RowOutcome.SKIPPED}.issuperset(outcomes)


class RowOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an import does with its rows."""

    on_existing: OnExisting = OnExisting.FAIL
    preserve_dates: bool = False
    """Keep creation dates, owners and timestamps: for server administrators."""


# The interface

MAX_MAPPED: Final = 200
"""Columns that a request can map; a table can have more."""


class ImportState(StrEnum):
    """How far an import has come."""

    UPLOADING = "uploading"
    CHECKING = "checking"
    INVALID = "invalid"
    """Some rows are invalid, and are not to be skipped; or the file cannot be read."""
    READY = "ready"
    STARTED = "started"
    """A job was started: it tells the rest."""


class ImportQuery(RequestBody, frozen=True, kw_only=True):
    """How to read an uploaded file, and what to do with its rows. What is omitted is detected."""

    name: Annotated[
        str, Doc("The name of the file; its extension helps to detect the format.", max_length=255, examples=["a.csv"])
    ] = ""
    format: Annotated[
        str, Doc("The format: `csv`, `xlsx`, `ods`, `jsonl` or `batch`.", max_length=20, examples=["csv"])
    ] = ""
    delimiter: Annotated[str, Doc("The character between cells.", max_length=1, examples=[";"])] = ""
    encoding: Annotated[str, Doc("The encoding of a text file.", max_length=40, examples=["cp1252"])] = ""
    sheet: Annotated[str, Doc("The sheet of a spreadsheet; the first if omitted.", max_length=255)] = ""
    prefix: Annotated[
        str, Doc("The prefix in which to mint, and of handles without one.", max_length=2_048, examples=["12345"])
    ] = ""
    map: Annotated[
        tuple[str, ...],
        Doc(
            "The meaning of a column, `COLUMN=MEANING`: `handle`, `state`, a type such as `URL` or `EMAIL!private`, or "
            "`-` to ignore it. Can be repeated.",
            max_length=MAX_MAPPED,
            examples=[["Link=URL"]],
        ),
    ] = ()
    profile: Annotated[str, Doc("The columns of another service: `ezid` or `arklet`.", max_length=20)] = ""
    raw: Annotated[
        bool, Doc("Take cells as they are. By default, the `'` is removed that exports put before formulas.")
    ] = False
    mint: Annotated[bool, Doc("Mint a handle under `prefix` for each row.")] = False
    mint_again: Annotated[bool, Doc("Mint although the handles of this file were minted before.")] = False
    on_existing: Annotated[
        OnExisting,
        Doc(
            "A row whose handle exists: `fail` is a problem, `skip` ignores the row, `update` sets the values of the "
            "row and keeps the others."
        ),
    ] = OnExisting.FAIL
    skip_invalid: Annotated[bool, Doc("Import the valid rows although others are invalid.")] = False


class FileQuery(RequestBody, frozen=True, kw_only=True):
    """Which part of a file to return."""

    offset: Annotated[int, Doc("The bytes before it.", ge=0, le=1 << 50)] = 0


class ImportResponse(ResponseBody, frozen=True, omit_defaults=False):
    """An uploaded file and the result of its check. Nothing is changed until it is applied."""

    id: Annotated[str, Doc("The id of the import.", examples=["0123456789abcdef"])]
    state: Annotated[
        ImportState,
        Doc(
            "`uploading`, `checking`, `ready` to be applied, `invalid`: some rows are, or the file cannot be read; "
            "`started`: `job` says how far it has come."
        ),
    ]
    name: Annotated[str, Doc("The name of the file.")]
    sha256: Annotated[str, Doc("The SHA-256 of the file, in hexadecimal digits.")]
    size: Annotated[int, Doc("Bytes of the file.")]
    detected: Annotated[
        dict[str, Any], Doc("What was found out about the file: format, encoding, delimiter, columns …")
    ]
    checked: Annotated[int, Doc("Rows checked so far.")]
    valid: Annotated[int, Doc("Valid rows.")]
    invalid: Annotated[int, Doc("Invalid rows; `listImportProblems` says why.")]
    outcomes: Annotated[
        dict[str, int],
        Doc(
            "How many rows will be `created`, `minted`, `updated`, `deleted`, `unchanged` and `skipped`.",
            examples=[{"created": 100}],
        ),
    ]
    changes: Annotated[int, Doc("Existing records that will change; `listImportChanges` shows them.")]
    sample: Annotated[tuple[str, ...], Doc("The first handles; those that will be minted are not known yet.")]
    warnings: Warnings = ()
    problem: Annotated[str | None, Doc("Why the file as a whole cannot be imported.")] = None
    job: Annotated[str | None, Doc("The job that imports the rows.")] = None
    advice: Annotated[str | None, Doc("How to fix `problem`, or all rows whose records exist.")] = None
    advice_kind: Annotated[str, Doc("The kind of advice, for programs that phrase it themselves.")] = ""
    advice_parameters: Annotated[dict[str, Any], Doc("The parameters of that kind.")] = msgspec.field(
        default_factory=dict
    )
    problem_type: Annotated[
        str | None, Doc("The type of `problem`, the end of its URI.", examples=["unknown-columns"])
    ] = None
    options: Annotated[
        dict[str, Any],
        Doc("The parameters of the last check that differ from their defaults.", examples=[{"prefix": "12345"}]),
    ] = msgspec.field(default_factory=dict)
    check: Annotated[int, Doc("The number of the last check, from 0. `applyImport` takes it.")] = 0


class PendingImports(ResponseBody, frozen=True, omit_defaults=False):
    """The imports that a user has uploaded and not applied."""

    imports: Annotated[list[ImportResponse], Doc("The imports, the oldest first.")]


class ImportResult(JobResponse, frozen=True, kw_only=True, omit_defaults=False):
    """The job of an import, and how many rows it had."""

    checked: Annotated[int, Doc("Rows of the file.")]
    valid: Annotated[int, Doc("Rows that were imported.")]
    invalid: Annotated[int, Doc("Rows that were skipped because they are invalid.")]
    outcomes: Annotated[
        dict[str, int],
        Doc(
            "How many rows were `created`, `minted`, `updated`, `deleted`, `unchanged` and `skipped`.",
            examples=[{"created": 100}],
        ),
    ]
    handles: Annotated[str | None, Doc("The file with the minted handles.")] = None
    warnings: Warnings = ()


class RowProblemResponse(ResponseBody, frozen=True, omit_defaults=False):
    """What is wrong with one row of a file."""

    line: Annotated[int, Doc("The line of the file, or row of the spreadsheet, on which the row starts.")]
    column: Annotated[str, Doc("The column, as the file names it; empty for the row as a whole.")]
    value: Annotated[str, Doc("The value, shortened.")]
    rule: Annotated[str, Doc("The broken rule.")]
    message: Annotated[str, Doc("What is wrong.")]
    fix: Annotated[str, Doc("How to fix it.")]
    advice_kind: Annotated[str, Doc("The kind of advice, for programs that phrase it themselves.")] = ""
    advice_parameters: Annotated[dict[str, Any], Doc("The parameters of that kind.")] = msgspec.field(
        default_factory=dict
    )


class ProblemPage(ResponseBody, frozen=True, omit_defaults=False):
    """Problems of an import, in the order of the lines."""

    problems: Annotated[list[RowProblemResponse], Doc("The problems of the page.")]
    next: NextCursor = None


class ImportChanges(ResponseBody, frozen=True, omit_defaults=False):
    """Existing records that an import will change."""

    handles: Annotated[list[PlannedRecord], Doc("The changes of each record. An absent value is empty.")]
    next: NextCursor = None


class NewImportJob(RequestBody, frozen=True):
    """The start of an import that was checked."""

    note: Note = ""
    sha256: Annotated[
        str, Doc("The SHA-256 that the file must have, to be sure that it is the one you mean.", max_length=64)
    ] = ""
    check: Annotated[
        int | None,
        Doc("The number of the check whose result you have seen. It is refused if there was another one since."),
    ] = None
