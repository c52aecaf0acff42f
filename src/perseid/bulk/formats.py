"""The formats of files with many records, how to read them, and what was found out about a file.

A file is read as a stream: memory is bounded by the longest row, whatever the size of the file. What is wrong with one
row is a `RowProblem`, and reading continues; what makes a whole file unreadable is raised as `InvalidFile`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from perseid.registry.advice import Advice, AdviceKind, advise_row
from perseid.schema.imports import ImportRow, RowOperation, RowProblem

MAX_COLUMNS_SHOWN: Final = 20
"""Unknown columns that a problem names; a table that is not one can have a thousand."""

MAX_SHOWN: Final = 200
"""Characters of a value in a problem: enough to find it in the file."""

MAX_RECORD: Final = 16 << 20
"""Bytes of the values of one record, which are in memory: several times what a message can transport."""

STATES: Final = ("published", "unpublished", "reserved", "tombstone")
"""States of a record in a file."""

PROBLEM_COLUMNS: Final = (
    *("problem_line", "problem_column", "problem_value", "problem_rule", "problem_message", "problem_fix"),
)
"""Columns that a report adds; a corrected report can be read again, and they are ignored."""

Row: TypeAlias = ImportRow | RowProblem
"""What a reader yields for each row."""

FileReader: TypeAlias = Callable[[str], bytes]
"""Returns the content of a file that a batch file names; only the command line has one."""

TypeCheck: TypeAlias = Callable[[str], bool]
"""Whether a type is known, for columns that are named after it."""


class Format(StrEnum):
    """A format of files with many records."""

    CSV = "csv"
    XLSX = "xlsx"
    ODS = "ods"
    JSONL = "jsonl"
    BATCH = "batch"
    EXCHANGE = "exchange"
    DUMP = "dump"
    """The text dump of a Handle server's database."""
    JDB = "jdb"
    """The legacy storage of a Handle server."""
    ANVL = "anvl"


TABLES: Final = frozenset({Format.CSV, Format.XLSX, Format.ODS})
"""Formats with columns."""


class Profile(StrEnum):
    """A column mapping for the exports of other services."""

    EZID = "ezid"
    ARKLET = "arklet"


class ReadOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to read a file; what is omitted is detected."""

    format: Format | None = None
    delimiter: str = ""
    """The character between cells, such as `;`."""
    encoding: str = ""
    """The encoding of a table, such as `utf-8` or `cp1252`."""
    sheet: str = ""
    """The sheet of a spreadsheet; the first if omitted."""
    mint: bool = False
    """Mint a handle under `prefix` for each row."""
    prefix: str = ""
    """The prefix in which to mint, and of handles that have no slash."""
    columns: dict[str, str] = {}
    """The meaning of columns, by header: `handle`, `state`, a type such as `URL!private`, or `-` to ignore."""
    profile: Profile | None = None
    raw: bool = False
    """Whether cells are literal; otherwise the `'` that exports put before a formula is removed."""


class ColumnUse(msgspec.Struct, frozen=True):
    """What a column of a table is used for."""

    header: str
    meaning: str
    """`handle`, `state`, `created`, a type with its options, … or `-` if it is ignored."""


class Detected(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found out about a file, to be shown before anything is changed."""

    format: Format
    encoding: str = ""
    delimiter: str = ""
    line_ends: str = ""
    """`LF`, `CRLF`, `CR` or `mixed`."""
    sheet: str = ""
    columns: tuple[ColumnUse, ...] = ()
    authentication: tuple[str, ...] = ()
    """Identities in the header of a batch file, such as `PUBKEY:300:0.NA/12345`; only the command line uses one."""
    session_setup: bool = False
    """Whether the header of a batch file sets up a session, which has no effect."""
    skipped_sheets: tuple[str, ...] = ()
    profile: Profile | None = None


class InvalidFile(Exception):
    """A file that cannot be read, or not further."""

    problem_type = "invalid-value"

    def __init__(self, problem: RowProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem

    def __str__(self) -> str:
        start = f"line {self.problem.line}: " if self.problem.line else ""
        return f"{start}{self.problem.message}"


def advise_columns(columns: Mapping[str, str], *, needs_handle: bool = False) -> Advice:
    """What to do about unknown columns, by header, with what was probably meant; one of them is the example."""
    wanted = ("handle", "") if needs_handle else tuple(filter(None, columns.values()))
    found = [each for meaning in wanted for each in columns.items() if each[1] == meaning]
    column, meaning = (found or [*columns.items()])[0]
    default = "handle" if needs_handle else "TYPE"
    return AdviceKind.MAP_COLUMN(column=column, meaning=meaning or default)


class UnknownColumns(InvalidFile):
    """A table with columns that mean nothing."""

    problem_type = "unknown-columns"

    def __init__(self, columns: dict[str, str], fix: str | Advice) -> None:
        shown = [*islice(columns.items(), MAX_COLUMNS_SHOWN)]
        more = f" and {len(columns) - len(shown):,} more" if len(columns) > len(shown) else ""
        names = ", ".join([f"{name!r}" for name, _ in shown]) + more
        meant = [f"{name!r} is probably {known}" for name, known in shown if known]
        message = f"Unknown columns: {names}." + (f" {'; '.join(meant)}." if meant else "")
        super().__init__(row_problem(0, next(iter(columns)), "", "unknown-columns", message, fix))
        self.columns = columns
        """What was probably meant, by header; empty if unknown."""


class MissingLibrary(InvalidFile):
    """A format that requires an optional library."""


@dataclass(slots=True)
class RowReader:
    """The rows of an open file. It can be iterated once."""

    detected: Detected
    rows: Iterator[Row]
    header: tuple[str, ...] = ()
    """The columns of a table, as the file names them."""

    def __iter__(self) -> Iterator[Row]:
        return self.rows


def shorten(text: str) -> str:
    """Shorten a value for a problem."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def invalid_file(rule: str, message: str, fix: str | Advice = "", line: int = 0, column: str = "") -> InvalidFile:
    """Create the error for a file that cannot be read."""
    return InvalidFile(row_problem(line, column, "", rule, message, fix))


def row_problem(line: int, column: str, value: str, rule: str, message: str, fix: str | Advice = "") -> RowProblem:
    """Create the problem of a row. A fix that interfaces phrase in their own terms is advice."""
    if isinstance(fix, Advice):
        return advise_row(RowProblem(line, column, value, rule, message), fix)
    return RowProblem(line, column, value, rule, message, fix)


_WITH_PREFIX: Final = frozenset("/:%")
"""Characters of which a handle with a prefix has one, also in a URI."""


def find_handle(line: int, handle: str, column: str, options: ReadOptions) -> tuple[RowOperation, str] | RowProblem:
    """What to do for a row with this handle, or without one, and the handle or prefix."""
    if options.mint:
        if handle:
            message = "The row has a handle, but handles are minted."
            return RowProblem(line, column, shorten(handle), "handle-not-empty", message, "Leave the handle empty.")
        return RowOperation.MINT, options.prefix
    if not handle:
        fix = AdviceKind.MINT_OR_ENTER_HANDLE()
        return row_problem(line, column, "", "missing-handle", "The handle is missing.", fix)
    if options.prefix and "/" not in handle:
        return RowOperation.CREATE, f"{options.prefix}/{handle}"
    if not _WITH_PREFIX & set(handle):
        fix = AdviceKind.NAME_ROW_PREFIX()
        return row_problem(line, column, shorten(handle), "H1", "The handle has no prefix.", fix)
    return RowOperation.CREATE, handle


def check_state(line: int, column: str, state: str) -> RowProblem | None:
    """What is wrong with a state."""
    if state in STATES:
        return None
    message, fix = f"{shorten(state)!r} is not a state.", f"Use {', '.join(STATES)}."
    return RowProblem(line, column, shorten(state), "unknown-state", message, fix)
