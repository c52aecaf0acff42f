"""Exports: the records of an installation in a format, slice by slice, and the file that they are written to.

The registry decides what is exported (`registry.queries.export`). Memory is bounded by one slice. A file has its final
name only when it is complete and on disk.
"""

import csv
import io
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from perseid.ledger.store.directory import open_new, sync_directory
from perseid.registry.advice import AdviceKind
from perseid.registry.identity import Identity
from perseid.registry.queries.export import (
    ExportedRecord,
    Position,
    Selection,
    check_export,
    find_as_of,
    read_slice,
)
from perseid.registry.queries.history import is_public
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidQuery
from perseid.schema.exports import ExportFormat, ExportPart
from perseid.schema.statistics import Activity, Durations, StatisticsPeriod, StatisticsResponse, StatisticsRow

from .batch import format_create
from .record_json import encode_lines
from .tables import TableWriter, quote_cell
from .value_table import VALUE_COLUMNS, value_rows

_COLUMNS: Final = VALUE_COLUMNS[:10]  # without those that only the exports of other services have
_PARTIAL_SUFFIX: Final = ".part"

Encoder = Callable[[list[ExportedRecord]], tuple[bytes, int]]
"""Returns the bytes of records, and how many records and values the format cannot express."""


@dataclass(frozen=True, slots=True)
class ExportWriter:
    """How records are written in a format."""

    header: bytes
    """What precedes the first record."""
    encode: Encoder


def open_writer(format_: ExportFormat, *, history: bool = False, raw: bool = False) -> ExportWriter:
    """Return the writer of a format. Raises `Refused` if the format has no history, or no cells."""
    if history and format_ is not ExportFormat.JSONL:
        raise InvalidQuery(f"The format {format_} has no history", AdviceKind.USE_JSON_LINES())
    if raw and format_ is not ExportFormat.CSV:
        raise InvalidQuery(f"The format {format_} has no cells that could be raw", AdviceKind.EXPORT_CSV())
    if format_ is ExportFormat.JSONL:
        return ExportWriter(b"", lambda records: (encode_lines(records), 0))
    return _csv_writer(raw=raw) if format_ is ExportFormat.CSV else ExportWriter(b"", _encode_batch)


def _csv_writer(*, raw: bool) -> ExportWriter:
    buffer = io.BytesIO()
    table = TableWriter(buffer, _COLUMNS, raw=raw)
    header = buffer.getvalue()

    def encode(records: list[ExportedRecord]) -> tuple[bytes, int]:
        buffer.seek(0)
        buffer.truncate()
        rows = [value_rows(record.handle, record.state.label, record.values) for record in records]
        table.write_many([row[: len(_COLUMNS)] for each in rows for row in each])
        return buffer.getvalue(), 0

    return ExportWriter(header, encode)


def _encode_batch(records: list[ExportedRecord]) -> tuple[bytes, int]:
    """Encode public records only: a batch file has no states, so other servers would publish the rest."""
    public = [record for record in records if is_public(record.state)]
    formatted = [format_create(record.handle, record.values) for record in public]
    losses = sum([len(each) for _, each in formatted])
    return b"".join([text for text, _ in formatted]), losses + len(records) - len(public)


def export_parts(
    registry: Registry, identity: Identity, selection: Selection, writer: ExportWriter, at: str | None = None
) -> Iterator[ExportPart]:
    """Yield the parts of an export as of a time, or of now; at least one. Raises `Refused`."""
    with registry.snapshot() as snapshot:
        check_export(snapshot, identity, selection)
        as_of = find_as_of(snapshot.reader, at, registry.ledger.log.clock.now())
    header: tuple[bytes, ...] = (writer.header,) if writer.header else ()
    position: Position | None = None
    while True:
        with registry.snapshot() as snapshot:
            found = read_slice(snapshot, identity, selection, as_of, position)
        body, omitted = writer.encode(found.records)
        yield ExportPart((*header, body), len(found.records), as_of.seq, omitted)
        header, position = (), found.position
        if position is None:
            return


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when it is complete and on disk; on errors it is removed.

    Only its owner can read it: exports can contain private values and secrets. A pipe or device is written to directly.
    What killed processes left for the same name is removed: a file that is being written is locked.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    target = path.resolve()  # the link stays, and the file that it points to is replaced
    name = f".{target.name[:_MAX_NAME]}."
    for left in target.parent.glob(f"{escape(name)}*{_PARTIAL_SUFFIX}"):
        _remove_abandoned(left)
    partial = target.with_name(f"{name}{secrets.token_hex(8)}{_PARTIAL_SUFFIX}")
    try:
        with open_new(partial) as stream:
            flock(stream, LOCK_EX)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
        sync_directory(target.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(partial):
            error.filename = str(path)  # the name that the user knows
        raise


def _remove_abandoned(path: Path) -> None:
    """Remove a file that nobody is writing. One that is not locked yet is too new to be abandoned."""
    with suppress(OSError), path.open("rb") as file:  # another process was faster, or it is not ours
        flock(file, LOCK_EX | LOCK_NB)
        if time.time() - os.fstat(file.fileno()).st_mtime > _NEW_SECONDS:
            path.unlink()


_NEW_SECONDS: Final = 1.0  # between the creation of a file and its lock
_MAX_NAME: Final = 60  # characters of the name in that of the partial file, which has at most 255 bytes


def statistics_csv(statistics: StatisticsResponse) -> bytes:
    """Return statistics as a table; columns that the caller cannot see are empty."""
    plain = [_flatten(msgspec.to_builtins(row)) for row in statistics.rows]
    first = "namespace" if statistics.by is StatisticsPeriod.NAMESPACE else "start"
    columns = [first, *[name for name in _STATISTICS_COLUMNS if name not in ("start", "namespace")]]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in plain:
        writer.writerow([quote_cell(str(row.get(name, ""))) for name in columns])
    return text.getvalue().encode()


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    activity: dict[str, Any] = row.pop("activity") or {}
    durations: dict[str, Any] = activity.pop("durations", {})
    return row | activity | durations


_STATISTICS_COLUMNS: Final = tuple(
    name
    for struct in (StatisticsRow, Activity, Durations)
    for name in struct.__struct_fields__
    if name not in ("activity", "durations")
)
