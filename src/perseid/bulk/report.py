"""Reports of the rows with problems, and files with the handles that were minted for their rows.

A report has the rows with problems in the form of the file, so that it can be corrected and imported itself. A table
has the problems in columns of their own, JSON lines in a member, and a batch file as comments. In a table with one row
for each value, all rows of a record are in the report. That of a batch file which signs in does so too, but does not
have its secret: otherwise its operations would get the permissions of whoever imports it. Other formats give the
problems alone, as JSON lines.

A file is read a second time, and must be the same. Problems and handles come in the order of their lines.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import BinaryIO, Final

import msgspec

from perseid.schema.imports import RowProblem

from .batch import BLANKS, find_command
from .columns import find_handle_position
from .encodings import SAMPLE
from .formats import PROBLEM_COLUMNS, TABLES, Format, ReadOptions
from .jsonl import MAX_LINE, format_problem
from .rows import detect_format, open_table
from .tables import Table, TableRow, TableWriter, unquote_cell
from .value_table import is_value_table

HANDLE_COLUMN: Final = "handle"
"""The column that minted handles are written to."""

_MARK: Final = b"\xef\xbb\xbf"
_SIGN_IN: Final = b"""\
# Write the secret, or the name of the key file, in place of the three dots.
%b
...

"""
_NO_PROBLEM: Final = ("",) * len(PROBLEM_COLUMNS)


def write_report(problems: Iterator[RowProblem], file: BinaryIO, name: str, options: ReadOptions, to: BinaryIO) -> None:
    """Write the rows with problems in the form of the file, and the problems."""
    format_ = _rewind(file, name, options)
    if format_ in TABLES:
        table = open_table(file, name, options)
        (_report_values if is_value_table(table.header, options.columns) else _report_table)(
            problems, table, options, to
        )
    elif format_ == Format.JSONL:
        _report_lines(problems, file, to)
    elif format_ == Format.BATCH:
        _report_batch(problems, file, to)
    else:
        to.writelines(msgspec.json.encode(problem) + b"\n" for problem in problems)


def write_handles(
    handles: Iterable[tuple[int, str]], file: BinaryIO, name: str, options: ReadOptions, to: BinaryIO
) -> int:
    """Write the rows of a file again with their handles, given with the lines of the rows; return how many.

    A table gets a column, and is CSV then; other files are JSON lines.
    """
    if _rewind(file, name, options) not in TABLES:
        return _write_line_handles(handles, file, to)
    table = open_table(file, name, options)
    kept = _find_kept(table)
    header = [table.header[at] for at in kept]
    position = find_handle_position(header, options)
    header += [HANDLE_COLUMN] if position == len(header) else []
    writer = _open_writer(table, header, options, to)
    rows = _TableRows(table, options)
    count = 0
    for line, handle in handles:
        found = rows.find(line)
        cells = [found[at] for at in kept] if found else [""] * len(kept)
        cells[position : position + 1] = [handle]
        writer.write(cells)
        count += 1
    return count


def _rewind(file: BinaryIO, name: str, options: ReadOptions) -> Format:
    file.seek(0)
    sample = file.read(SAMPLE)
    file.seek(0)
    return options.format or detect_format(sample, name)


# Tables


class _TableRows:
    """The rows of a table as they are to be written, found by ascending lines."""

    def __init__(self, table: Table, options: ReadOptions) -> None:
        self._rows = table.rows
        self._raw = options.raw
        self._next: TableRow | None = None

    def find(self, line: int) -> list[str]:
        """Return the cells of a row; none if the row itself cannot be parsed."""
        while (row := self._next or next(self._rows, None)) is not None:
            at = _line_of(row)
            if at > line:
                self._next = row
                return []
            self._next = None
            if at == line:
                return [] if isinstance(row, RowProblem) else _literal(row[1], raw=self._raw)
        return []


def _line_of(row: TableRow) -> int:
    return row.line if isinstance(row, RowProblem) else row[0]


def _literal(cells: list[str], *, raw: bool) -> list[str]:
    """The texts that cells stand for, which a writer quotes again."""
    return cells if raw else [unquote_cell(cell) for cell in cells]


def _find_kept(table: Table) -> list[int]:
    """The positions of the columns of a table without those of an earlier report."""
    return [at for at, name in enumerate(table.header) if name.lower() not in PROBLEM_COLUMNS]


def _open_report(table: Table, options: ReadOptions, to: BinaryIO) -> tuple[TableWriter, list[int]]:
    """A writer, and the positions of the columns of the file; those of an earlier report are replaced."""
    kept = _find_kept(table)
    header = [table.header[at] for at in kept]
    return _open_writer(table, [*header, *PROBLEM_COLUMNS], options, to), kept


def _open_writer(table: Table, header: Sequence[str], options: ReadOptions, to: BinaryIO) -> TableWriter:
    """A writer with the delimiter of the file, which the user's spreadsheet program expects."""
    return TableWriter(to, header, raw=options.raw, mark=True, delimiter=table.detected.delimiter)


def _format_problem(problem: RowProblem) -> Sequence[str]:
    return (str(problem.line), problem.column, problem.value, problem.rule, problem.message, problem.fix)


def _report_table(problems: Iterator[RowProblem], table: Table, options: ReadOptions, to: BinaryIO) -> None:
    writer, kept = _open_report(table, options, to)
    rows = _TableRows(table, options)
    for problem in problems:
        cells = rows.find(problem.line)
        own = [cells[at] for at in kept] if cells else [""] * len(kept)
        writer.write([*own, *_format_problem(problem)])


def _report_values(problems: Iterator[RowProblem], table: Table, options: ReadOptions, to: BinaryIO) -> None:
    """Write all rows of the records with problems: a record is replaced or created as a whole."""
    writer, kept = _open_report(table, options, to)
    position = [name.lower() for name in table.header].index(HANDLE_COLUMN)
    next_problem = next(problems, None)
    for _, group in groupby(table.rows, lambda row: row.line if isinstance(row, RowProblem) else row[1][position]):
        rows = list(group)
        last = _line_of(rows[-1])
        found: dict[int, RowProblem] = {}
        while next_problem is not None and next_problem.line <= last:
            found[next_problem.line] = next_problem
            next_problem = next(problems, None)
        for row in rows if found else ():
            cells = [""] * len(table.header) if isinstance(row, RowProblem) else _literal(row[1], raw=options.raw)
            problem = found.get(_line_of(row))
            writer.write([*[cells[at] for at in kept], *(_format_problem(problem) if problem else _NO_PROBLEM)])
        if next_problem is None:
            return


# Lines


class _Lines:
    """The lines of a file, found by ascending numbers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._number = 0
        self._text = b""

    def find(self, number: int) -> bytes:
        """The line with a number, which is at least the last one."""
        while self._number < number:
            self.advance()
        return self._text

    def advance(self) -> bytes:
        """The next line; empty at the end."""
        self._text = self._file.readline(MAX_LINE).removeprefix(b"" if self._number else _MARK)
        self._number += 1
        return self._text


def _report_lines(problems: Iterator[RowProblem], file: BinaryIO, to: BinaryIO) -> None:
    lines = _Lines(file)
    to.writelines(format_problem(lines.find(problem.line), [problem]) for problem in problems)


def _report_batch(problems: Iterator[RowProblem], file: BinaryIO, to: BinaryIO) -> None:
    if identity := _find_sign_in(file):
        to.write(_SIGN_IN % identity)
    file.seek(0)
    lines = _Operations(file)
    for problem in problems:
        comment = f"# line {problem.line}: {problem.message} {problem.fix}".strip().replace("\n", " ")
        to.write(comment.encode("utf-8", "replace") + b"\n")
        to.writelines(line.rstrip(b"\r\n") + b"\n" for line in lines.find(problem.line))
        to.write(b"\n")


def _find_sign_in(file: BinaryIO) -> bytes:
    """Find the line with which a batch file signs in; empty if it does not."""
    lines = _Lines(file)
    while line := lines.advance():
        word = _command_of(line)
        if word == "AUTHENTICATE":
            return line.strip()
        if word and word != "SESSIONSETUP":
            break
    return b""


class _Operations:
    """The operations of a batch file, found by ascending lines on which they start."""

    def __init__(self, file: BinaryIO) -> None:
        self._lines = _Lines(file)
        self._number = 0
        self._hosting = b""
        """The line HOME or UNHOME above the prefixes that follow."""

    def find(self, number: int) -> Iterator[bytes]:
        """The lines of an operation; those of a prefix are its line, and the one with the address."""
        while self._number < number:
            self._advance()
        line = self._lines.find(number)
        word = _command_of(line)
        if self._hosting and not word:
            yield self._hosting
            yield line
            return
        while line.strip(BLANKS.encode()):
            yield line
            line = self._advance()
            if word in ("DELETE", "REMOVE") or _command_of(line):
                return

    def _advance(self) -> bytes:
        line = self._lines.advance()
        self._number += 1
        word = _command_of(line)
        if word in ("HOME", "UNHOME"):
            self._hosting = line
        elif word or not line.strip():
            self._hosting = b""
        return line


def _command_of(line: bytes) -> str:
    return find_command(line.decode("utf-8", "replace"))


def _write_line_handles(handles: Iterable[tuple[int, str]], file: BinaryIO, to: BinaryIO) -> int:
    lines = _Lines(file)
    count = 0
    for line, handle in handles:
        record = msgspec.json.decode(lines.find(line), type=dict[str, msgspec.Raw])
        to.write(msgspec.json.encode({**record, "handle": handle}) + b"\n")
        count += 1
    return count
