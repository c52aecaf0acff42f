"""Exports of many records."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from .common import Cursor, Doc, Moment, ResponseBody, Seq
from .queries import Selectors

AS_OF_HEADER: Final = "Perseid-As-Of"
RECORDS_HEADER: Final = "Perseid-Records"
OMITTED_HEADER: Final = "Perseid-Omitted"
"""Headers of a part of an export: the ledger entry as of which it is, the number of its records, and how many records
and values it lacks because the format cannot express them."""


class ExportFormat(StrEnum):
    """Formats of exports."""

    JSONL = "jsonl"
    """One record on each line, in JSON; lossless."""
    CSV = "csv"
    """One row for each value."""
    BATCH = "batch"
    """A batch file of the Handle System, which creates the public records."""


class ExportQuery(Selectors, frozen=True):
    """What to export. Without criteria, everything that you can see."""

    format: Annotated[ExportFormat, Doc("The format.")] = ExportFormat.JSONL
    history: Annotated[bool, Doc("Every version, newest first, and deleted records; in the format `jsonl`.")] = False
    at: Annotated[Moment | None, Doc("Records at a time, or after a ledger entry; now if omitted.")] = None
    raw: Annotated[
        bool, Doc("CSV cells as they are. By default `'` is put before those that a spreadsheet would run as formulas.")
    ] = False
    cursor: Cursor = ""


class ExportPart(msgspec.Struct, frozen=True):
    """A part of an export, as the client returns it."""

    content: tuple[bytes, ...]
    """The bytes of the file."""
    records: int
    """Number of records, or of versions in a history."""
    as_of: int
    """The ledger entry as of which records are exported."""
    omitted: int = 0
    """Number of records and values that the format cannot express."""
    next: str | None = None
    """The cursor of the next part; None on the last one."""


class ExportSummary(ResponseBody, frozen=True):
    """What was exported."""

    format: Annotated[ExportFormat, Doc("The format.")]
    records: Annotated[int, Doc("Number of records, or of versions in a history.")]
    bytes: Annotated[int, Doc("Size in bytes.")]
    as_of: Annotated[Seq, Doc("The ledger entry as of which records were exported.")]
    omitted: Annotated[int, Doc("Number of records and values that the format cannot express.")] = 0
    file: Annotated[str | None, Doc("The file.")] = None
