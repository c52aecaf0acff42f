"""Imports of files: the check of a file's rows, the report of its problems, and the file with its minted handles.

A report has the rows with problems in the form of the file, so that it can be corrected and imported itself. A table
has the problems in columns of their own, JSON lines in a member, and other formats before the row as comments.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from perseid.ledger.store.jobs import Job
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.identity import Identity
from perseid.registry.jobs.import_check import CheckSettings, ImportCheck, RenderAdvice
from perseid.registry.jobs.import_job import check_not_minted, minted_rows
from perseid.registry.jobs.spool import SpooledImport
from perseid.registry.policy.types import is_known_type
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.schema.imports import ImportQuery, ImportState, RowProblem

from .formats import (
    PROBLEM_COLUMNS,
    TABLES,
    Detected,
    FileReader,
    Format,
    InvalidFile,
    Profile,
    ReadOptions,
    TypeCheck,
    invalid_file,
)
from .jsonl import format_problem
from .rows import detect_format, open_rows, open_table
from .tables import Table, TableWriter

HANDLE_COLUMN: Final = "handle"
"""The column of minted handles; with a number if the file has one already."""

E = TypeVar("E", Format, Profile)
_BLOCK: Final = 1 << 20
_LENIENT: Final = frozenset({Format.BATCH, Format.EXCHANGE, Format.DUMP, Format.JDB})
"""Formats of Handle servers, whose records have what those servers accepted."""


class FileChanged(Exception):
    """A file is not what it was when it was checked."""


def to_read_options(query: ImportQuery) -> ReadOptions:
    """Return how a request wants a file to be read. Raises `InvalidFile`."""
    columns = {}
    for text in query.map:
        column, equals, meaning = text.partition("=")
        if not equals:
            raise invalid_file("invalid-mapping", f"{text!r} is not a mapping.", "Use COLUMN=TYPE, as in Link=URL.")
        columns[column.strip()] = meaning.strip()
    return ReadOptions(
        _choose(Format, query.format, "format"),
        query.delimiter,
        query.encoding,
        query.sheet,
        query.mint,
        query.prefix,
        columns,
        _choose(Profile, query.profile, "profile"),
        query.raw,
    )


def _choose(kind: type[E], text: str, what: str) -> E | None:
    if not text:
        return None
    try:
        return kind(text.lower())
    except ValueError:
        fix = f"Use {', '.join(each.value for each in kind)}."
        raise invalid_file(f"unknown-{what}", f"Unknown {what} {text!r}.", fix) from None


def _share(file: BinaryIO) -> BinaryIO:
    """Return the same file from its beginning, for a reader that closes it."""
    file.seek(0)
    return os.fdopen(os.dup(file.fileno()), "rb")


def hash_file(file: BinaryIO) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file, from its beginning."""
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while block := file.read(_BLOCK):
        digest.update(block)
        size += len(block)
    file.seek(0)
    return digest.hexdigest(), size


@dataclass(slots=True)
class FileCheck:
    """The check of a file that is being read, in pieces."""

    check: ImportCheck
    _spooled: SpooledImport
    _file: BinaryIO

    @classmethod
    def open(
        cls,
        registry: Registry,
        spooled: SpooledImport,
        file: BinaryIO,
        identity: Identity,
        interface: str,
        render: RenderAdvice,
        read_file: FileReader | None = None,
    ) -> "FileCheck":
        """Open a file that can be read twice. Raises `InvalidFile`."""
        if spooled.record.options.preserve_dates:
            with registry.snapshot() as snapshot:  # not to each row
                registry.context(snapshot, identity, interface).for_import()
        sha256, size = hash_file(file)
        options = msgspec.convert(spooled.record.reading, ReadOptions)
        if options.mint and not spooled.record.mint_again:
            check_not_minted(registry, identity, sha256)
        is_type = find_types(registry, options.prefix)
        shared = _share(file)
        try:
            reader = open_rows(shared, spooled.record.name, options, read_file=read_file, is_type=is_type)
        except InvalidFile as invalid:
            shared.close()
            spooled.update(sha256=sha256, size=size, state=ImportState.INVALID, problem=str(invalid))
            raise
        detected = reader.detected
        spooled.update(sha256=sha256, size=size, state=ImportState.CHECKING, detected=msgspec.to_builtins(detected))
        settings = CheckSettings(render, find_handle_column(detected), detected.format not in _LENIENT)
        return cls(ImportCheck(registry, spooled, iter(reader), identity, interface, settings), spooled, shared)

    def advance(self) -> bool:
        """Check some rows; return whether there may be more. Raises `InvalidFile`."""
        try:
            return self.check.advance()
        except InvalidFile as invalid:
            self.close()
            self.check.save(state=ImportState.INVALID, problem=str(invalid))
            raise

    def finish(self) -> None:
        """Make the result durable."""
        self.check.finish()
        self.close()

    def close(self) -> None:
        """Close all files."""
        self.check.close()
        self._file.close()


def find_types(registry: Registry, prefix: str) -> TypeCheck:
    """Return which types a column can be named after: those of the namespace, or of any without a prefix."""
    with registry.snapshot() as snapshot:
        prefixes = [prefix.partition("/")[0]] if prefix else [*namespaces(snapshot.reader)]

    def is_type(type_: str) -> bool:
        with registry.snapshot() as snapshot:
            for name in prefixes:
                try:
                    if is_known_type(snapshot, snapshot.policy(name), type_):
                        return True
                except Refused:
                    continue  # its policy cannot be read
            return is_known_type(snapshot, snapshot.rules.default_policy, type_)

    return is_type


def find_handle_column(detected: Detected) -> str:
    """Return the name of the column with the handles."""
    return next((column.header for column in detected.columns if column.meaning == HANDLE_COLUMN), HANDLE_COLUMN)


def read_problems(path: Path, after: int = 0) -> Iterator[RowProblem]:
    """Yield the problems of an import, in the order of the lines, after one of them."""
    with path.open("rb") as file:
        for line in file:
            problem = msgspec.json.decode(line, type=RowProblem)
            if problem.line > after:
                yield problem


# Reports


def write_report(problems: Iterator[RowProblem], file: BinaryIO, name: str, options: ReadOptions, to: BinaryIO) -> None:
    """Write the rows with problems in the form of the file, and the problems."""
    file.seek(0)
    format_ = options.format or detect_format(_read_start(file), name)
    if format_ in TABLES:
        with _share(file) as shared:
            _report_table(problems, open_table(shared, name, options), to)
    elif format_ in (Format.JSONL, Format.BATCH):
        _report_lines(problems, file, format_, to)
    else:
        to.writelines(msgspec.json.encode(problem) + b"\n" for problem in problems)


def _report_table(problems: Iterator[RowProblem], table: Table, to: BinaryIO) -> None:
    header = [name for name in table.header if name.lower() not in PROBLEM_COLUMNS]
    kept = [at for at, name in enumerate(table.header) if name.lower() not in PROBLEM_COLUMNS]
    writer = TableWriter(to, [*header, *PROBLEM_COLUMNS], mark=True)
    rows = _TableRows(table)
    for problem in problems:
        cells = rows.find(problem.line)
        own = [cells[at] if at < len(cells) else "" for at in kept]
        writer.write([*own, str(problem.line), *msgspec.structs.astuple(problem)[1:]])


class _TableRows:
    """The rows of a table, to be found by ascending lines."""

    def __init__(self, table: Table) -> None:
        self._rows = table.rows
        self._next: tuple[int, list[str]] | RowProblem | None = None

    def find(self, line: int) -> list[str]:
        """Return the cells of a row; none if the row itself cannot be parsed."""
        while (row := self._next or next(self._rows, None)) is not None:
            at = row.line if isinstance(row, RowProblem) else row[0]
            if at > line:
                self._next = row
                return []
            self._next = None
            if at == line:
                return [] if isinstance(row, RowProblem) else row[1]
        return []


def _report_lines(problems: Iterator[RowProblem], file: BinaryIO, format_: Format, to: BinaryIO) -> None:
    number = 0
    file.seek(0)
    lines = iter(file)
    for problem in problems:
        text = b""
        while number < problem.line:
            text = next(lines, b"")
            number += 1
        if format_ == Format.JSONL:
            to.write(format_problem(text.removeprefix(b"\xef\xbb\xbf"), [problem]))
            continue
        comment = f"# line {problem.line}: {problem.message} {problem.fix}".strip().replace("\n", " ")
        to.write(f"{comment}\n".encode())
        while text.strip():  # an operation ends with an empty line
            to.write(text.rstrip(b"\r\n") + b"\n")
            text = next(lines, b"")
            number += 1
        to.write(b"\n")


def _read_start(file: BinaryIO) -> bytes:
    start = file.read(_BLOCK >> 4)
    file.seek(0)
    return start


# Minted handles


def write_minted(registry: Registry, job: Job, file: BinaryIO, name: str, options: ReadOptions, to: BinaryIO) -> int:
    """Write the file again with the handle of each row that a job has minted; return how many.

    A table gets a column, and is CSV then. The ledger has the handles, so this can be repeated.
    """
    handles = minted_rows(registry, job)
    file.seek(0)
    format_ = options.format or detect_format(_read_start(file), name)
    if format_ not in TABLES:
        return _write_minted_lines(handles, file, to)
    with _share(file) as shared:
        return _write_minted_table(handles, open_table(shared, name, options), to)


def _write_minted_table(handles: Iterator[tuple[int, str]], table: Table, to: BinaryIO) -> int:
    at = next((number for number, each in enumerate(table.header) if each.lower() == HANDLE_COLUMN), None)
    header = [*table.header] if at is not None else [*table.header, HANDLE_COLUMN]
    writer = TableWriter(to, header, mark=True)
    rows = _TableRows(table)
    count = 0
    for line, handle in handles:
        cells = rows.find(line)
        cells = [*cells, *[""] * (len(table.header) - len(cells))]
        if at is None:
            cells.append(handle)
        else:
            cells[at] = handle
        writer.write(cells)
        count += 1
    return count


def _write_minted_lines(handles: Iterator[tuple[int, str]], file: BinaryIO, to: BinaryIO) -> int:
    """Write JSON lines with their handles."""
    file.seek(0)
    count, number = 0, 0
    lines = iter(file)
    for line, handle in handles:
        text = b""
        while number < line:
            text = next(lines, b"")
            number += 1
        record = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=dict[str, msgspec.Raw])
        to.write(msgspec.json.encode({**record, "handle": handle}) + b"\n")
        count += 1
    return count
