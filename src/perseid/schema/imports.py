"""Rows of an import: what a file says about each identifier, whatever its format.

A reader of a format (`perseid.bulk`) makes rows; a job of the registry (`perseid.registry.jobs`) validates and applies
them. Data in a row is literal: nothing is read from files, and a text that begins with `@` or `base64:` is that text.
"""

from enum import StrEnum

import msgspec

from .records import ValueInput


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
    seq: int = 0
    """The ledger entry of this version, in an export with history; 0 otherwise."""
    time: str = ""
    """When this version was written, in an export with history."""


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
    """How to fix it, as a sentence."""


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


class RowOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an import does with its rows."""

    on_existing: OnExisting = OnExisting.FAIL
    preserve_dates: bool = False
    """Keep creation dates, owners and timestamps: for server administrators."""
