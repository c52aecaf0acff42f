"""Files of other servers: the exchange format, dumps and JDB files, batch files, and exports of ARK services.

The first three have every record of a server, with all its values. A batch file has what somebody wrote into it, and
the exports of EZID and arklet have what these services know; `ark:/99999/x` becomes a handle, and the ARK a value.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from perseid.bulk.encodings import SAMPLE
from perseid.bulk.formats import Format, InvalidFile, ReadOptions, Row, RowReader, UnknownColumns
from perseid.bulk.rows import detect_format, open_rows
from perseid.ledger.log.entry import State
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.encoding import from_iso
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json
from perseid.records.record import Value
from perseid.registry.commands.records import assign_indexes
from perseid.registry.jobs.import_rows import InvalidCell, parse_values
from perseid.registry.jobs.migration import MigrationProblem, Outcome, SourceRecord
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from perseid.schema.records import ValueInput

from .source import SourceError, SourceItem, collect_prefixes, unreadable

JDB_FILE: Final = "handles.jdb"
"""The file with the records in the directory of a server with the legacy storage."""

_MAP_COLUMNS: Final = "Say what they mean: perseid import FILE --map COLUMN=TYPE"
_COMPLETE: Final = frozenset({Format.EXCHANGE, Format.DUMP, Format.JDB})
_WITHOUT_PREFIXES: Final = frozenset({Format.CSV, Format.XLSX, Format.ODS, Format.ANVL, Format.JSONL})
_HANDLES, _PREFIXES = "handles", "nas"  # the names of the two files of a database
_STATES: Final = {
    "": State.NORMAL,
    "published": State.NORMAL,
    "unpublished": State.UNPUBLISHED,
    "reserved": State.RESERVED,
    "tombstone": State.TOMBSTONE,
}


class FileSource:
    """A file that another server has written; with its file of prefixes, if it has one of its own."""

    def __init__(self, path: Path, prefixes: tuple[str, ...] = (), format_: Format | None = None) -> None:
        """`prefixes` are those that the user chose; ARKs become handles of the only one."""
        if path.is_dir():
            path /= JDB_FILE
        self._path, self._given = path, prefixes
        self._options = ReadOptions(format=format_, prefix=prefixes[0] if len(prefixes) == 1 else "")
        self.label = path.name
        self.origin = str(Path(os.path.abspath(path)))  # noqa: PTH100 - a link can point to another file each time
        self._format: Format | None = None
        self._has_problems = False
        """Whether a row could not be read: its handle is not known then."""

    @property
    def is_complete(self) -> bool:
        """Whether the file has all records of the server, and all that were read so far could be."""
        return self._detect() in _COMPLETE and not self._has_problems

    @property
    def lists_prefixes(self) -> bool:
        """Whether the file has the prefixes of the server; a batch file has those that somebody wrote into it."""
        return self._detect() in _COMPLETE

    def prefixes(self) -> list[str]:
        """Find the hosted prefixes in the file, or in the file beside it."""
        given = [f"{PREFIX_OF_PREFIXES}/{prefix}" for prefix in self._given]
        if self._detect() in _WITHOUT_PREFIXES:
            return given
        path, name = self._path, self._path.name
        if name.startswith(_HANDLES) and (beside := path.with_name(name.replace(_HANDLES, _PREFIXES, 1))).exists():
            path = beside
        with self._open(path) as reader:
            rows = (row for row in reader if isinstance(row, ImportRow))
            homed = (row.handle for row in rows if row.operation is RowOperation.HOME)
            found = collect_prefixes(self.label, homed)
        return found or given if self.lists_prefixes else [*dict.fromkeys([*found, *given])]

    def records(self) -> Iterator[SourceItem]:
        """Yield the records of the file."""
        self._has_problems = False
        with self._open(self._path) as reader:
            for row in reader:
                self._has_problems |= isinstance(row, RowProblem)
                item = to_item(row)
                if item is not None:
                    yield item

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _detect(self) -> Format:
        if self._options.format is not None:
            return self._options.format
        if self._format is None:
            with self._translate_errors(self._path), self._path.open("rb") as file:
                self._format = detect_format(file.read(SAMPLE), self._path.name)
        return self._format

    @contextmanager
    def _open(self, path: Path) -> Iterator[RowReader]:
        with self._translate_errors(path), path.open("rb") as file:
            # A reader may close what it wraps when it is collected; that must not be this file.
            wrapped = io.BufferedReader(io.FileIO(_require_regular(file).fileno(), closefd=False))
            yield open_rows(wrapped, path.name, self._options)

    @contextmanager
    def _translate_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SourceError(f"Cannot read {path}: {error.strerror}") from error
        except UnknownColumns as problem:
            raise SourceError(f"{path}: {problem}", _MAP_COLUMNS) from problem
        except InvalidFile as problem:
            raise SourceError(f"{path}: {problem}", problem.problem.fix) from problem


def _require_regular(file: BinaryIO) -> BinaryIO:
    if not file.seekable():
        raise SourceError("The file is read several times, so it cannot be a pipe", "Write it to a file first")
    return file


def to_item(row: Row) -> SourceItem | None:
    """Convert a row; None if it is about a prefix."""
    if isinstance(row, RowProblem):
        column, value = f"{row.column}: " if row.column else "", f" ({row.value})" if row.value else ""
        return MigrationProblem(f"line {row.line}", Outcome.REJECTED, f"{column}{row.message}{value}", is_nameless=True)
    if row.operation in (RowOperation.HOME, RowOperation.UNHOME):
        return None
    if row.operation is not RowOperation.CREATE or row.state not in _STATES:
        message = f"line {row.line}: only complete records can be migrated; use perseid import for other operations"
        return unreadable(row.handle, message)
    try:
        return SourceRecord(row.handle, to_values(row), _STATES[row.state])
    except (InvalidData, InvalidCell) as problem:
        return unreadable(row.handle, f"line {row.line}: {problem}")


def to_values(row: ImportRow) -> tuple[Value, ...]:
    """Convert the values of a row exactly; those without an index get one. Raises `InvalidData` and `InvalidCell`."""
    if all(value.index is not None and not isinstance(value.data, str) for value in row.values):
        return tuple([_to_value(value) for value in row.values])
    partial = parse_values(row.values, with_timestamps=True)
    created = from_iso(row.created) if row.created else 0
    values = assign_indexes(partial)
    return tuple([value if value.timestamp else value.with_timestamp(created) for value in values])


def _to_value(item: ValueInput) -> Value:
    members = {name: member for name, member in msgspec.to_builtins(item).items() if member is not None}
    if "references" in members:
        members["references"] = [*members["references"]]
    return value_from_json(members)
