"""Tables as text: CSV and TSV files as other programs write them, and CSV files that spreadsheets open safely.

Encoding, delimiter and line ends are detected and reported. A first line `sep=;`, as Excel writes it, sets the
delimiter. The first row with content has the names of the columns. Empty rows are skipped, and short rows are padded.

A spreadsheet would run a cell that begins with `=`, `+`, `-`, `@`, a tab or a carriage return as a formula. A
`TableWriter` puts `'` before such a cell, and also before a cell that would look as if that had been done: one in which
only `'` precedes such a character. `unquote_cell` removes one `'` from exactly these cells, so every text survives.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Final, TypeAlias

from perseid.registry.advice import AdviceKind
from perseid.schema.imports import RowProblem

from .encodings import SAMPLE, buffer, detect_encoding, find_codec, find_mark, get_label, peek
from .formats import Detected, Format, ReadOptions, invalid_file, shorten

MAX_COLUMNS: Final = 1_024
"""Columns of a table: far more than a record has kinds of values."""

MAX_NAME: Final = 1_000
"""Characters of the longest name of a column: what is longer is not a table, or has no names in its first row."""

MAX_CELL: Final = 2_097_152
"""Characters of the longest cell: a value has at most half as many bytes, base64 needs more."""

MAX_ROW: Final = 4 * MAX_CELL
"""Characters of the longest row, which bounds the memory that a reader needs."""

DELIMITERS: Final = (",", ";", "\t", "|")
"""Delimiters that are detected, the usual ones first."""

_SNIFFED_ROWS: Final = 50
_SEPARATOR: Final = re.compile("sep=(.)\r?\n?", re.IGNORECASE)
_SUSPECT: Final = frozenset("=+-@\t\r'")  # first characters of cells that are looked at
_FORMULA: Final = re.compile("'*[=+\\-@\t\r]")
_QUOTED_FORMULA: Final = re.compile("'+[=+\\-@\t\r]")


def quote_cell(cell: str) -> str:
    """Put `'` before a cell that a spreadsheet would run as a formula."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unquote_cell(cell: str) -> str:
    """Undo `quote_cell`."""
    return cell[1:] if cell.startswith("'") and _QUOTED_FORMULA.match(cell) else cell


TableRow: TypeAlias = tuple[int, list[str]] | RowProblem
"""The line on which a row starts and its cells, or what is wrong with it."""


@dataclass(slots=True)
class Table:
    """An open table. Its rows can be iterated once."""

    header: tuple[str, ...]
    rows: Iterator[TableRow]
    """Rows with as many cells as the header has."""
    detected: Detected


def open_text_table(file: BinaryIO, options: ReadOptions | None = None, name: str = "") -> Table:
    """Open a CSV or TSV file."""
    options = options or ReadOptions()
    buffered = buffer(file)
    sample = peek(buffered)
    chosen = find_codec(options.encoding) if options.encoding else ""
    encoding = find_mark(sample) or chosen or detect_encoding(buffered, sample)
    if encoding == "utf-32":
        raise invalid_file("unknown-encoding", "The file is UTF-32.", "Save it as UTF-8.")
    text = sample.decode(encoding, "replace")
    is_cut = len(sample) >= SAMPLE
    separator = _SEPARATOR.match(text.removeprefix("\ufeff"))
    delimiter = options.delimiter or (separator[1] if separator else _sniff(text, is_cut, name))
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise invalid_file("invalid-delimiter", f"{delimiter[:20]!a} cannot be a delimiter.", "Use one character.")
    lines = _Lines(_TextFile(buffered, encoding, newline=""), label=get_label(encoding))
    if separator:
        next(lines)
    detected = Detected(Format.CSV, get_label(encoding), delimiter, _find_line_ends(text))
    return open_cells(_parse(lines, delimiter, 1 if separator else 0), detected)


def open_cells(cells: Iterator[TableRow], detected: Detected) -> Table:
    """A table from the cells of all rows: the first with content is the header."""
    for row in cells:
        if isinstance(row, RowProblem):
            raise invalid_file(row.rule, row.message, row.fix, row.line)
        line, names = row
        if any(name.strip() for name in names):
            usual = len(names)
            while not names[-1].strip():
                names.pop()
            if len(names) > MAX_COLUMNS:
                message = f"The table has {len(names):,} columns; the maximum is {MAX_COLUMNS:,}."
                raise invalid_file("too-many-columns", message, line=line)
            header = tuple([name.strip() for name in names])
            if (longest := max(map(len, header))) > MAX_NAME:
                message = f"The name of a column has {longest:,} characters; the maximum is {MAX_NAME:,}."
                raise invalid_file("name-too-long", message, "The first row must have the names of the columns.", line)
            return Table(header, _fit(cells, len(header), usual), detected)
    raise invalid_file("empty-file", "The file is empty.", "The first row must have the names of the columns.")


def _fit(cells: Iterator[TableRow], width: int, usual: int) -> Iterator[TableRow]:
    """Skip empty rows, pad short ones, and report long ones. `usual` is how many cells the row of the header has.

    Empty cells after the last column are ignored, as programs write them in some rows or all. But one more cell in a
    single row comes from a delimiter in another cell, which has shifted what follows.
    """
    previous = usual
    ahead: list[TableRow] = []
    while (row := ahead.pop() if ahead else next(cells, None)) is not None:
        if not isinstance(row, tuple):
            yield row
            continue
        line, found = row
        count = len(found)
        if count > width:
            extra = next((cell for cell in found[width:] if cell.strip()), None)
            if extra is None and count == usual + 1 != previous:
                ahead += islice(cells, 1)
                is_single = not any(isinstance(each, tuple) and len(each[1]) == count for each in ahead)
                extra = "" if is_single and any(found) else None
            if extra is not None:
                message = f"The row has {count} cells, but the header has {width} columns."
                fix = 'Put a cell that contains the delimiter in quotes: "a, b".'
                yield RowProblem(line, "", shorten(extra), "too-many-cells", message, fix)
                continue
            del found[width:]
        elif count < width:
            found += [""] * (width - count)
        previous = count
        if any(found):
            yield row


def _parse(lines: "_Lines", delimiter: str, skipped: int) -> Iterator[TableRow]:
    """The cells of all rows with the line on which each starts."""
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = skipped + 1
    while True:
        lines.size = 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if "field larger" in str(error):
                message = f"A cell has more than {MAX_CELL:,} characters."
                raise invalid_file("cell-too-long", message, "Check for a quote that is not closed.", line) from None
            if "unexpected end" in str(error):
                yield RowProblem(line, "", "", "invalid-csv", "A quote is not closed.", 'Write " in a cell as "".')
                return
            fix = 'Put a cell with quotes in quotes, and write each quote in it twice: "a ""b"" c".'
            yield RowProblem(line, "", "", "invalid-csv", f"The row is invalid CSV: {error}.", fix)
        else:
            if cells is None:
                return
            yield line, cells
        line = reader.line_num + skipped + 1


class _TextFile(io.TextIOWrapper):
    """The text of a file, which stays open."""

    def close(self) -> None:
        """Leave the file to the caller, also when this is forgotten."""
        with suppress(ValueError):  # detached already
            self.detach()


class _Lines:
    """The lines of a text file, with a limit on what the caller reads between two resets of `size`."""

    def __init__(self, file: io.TextIOWrapper, label: str) -> None:
        self._file = file
        self._label = label
        self._number = 0
        self.size = 0
        """Characters read since it was set to 0."""

    def __del__(self) -> None:
        with suppress(ValueError):  # it is closed
            self._file.detach()  # the file belongs to the caller

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        try:
            line = self._file.readline(MAX_ROW)
        except UnicodeError as error:
            why = str(error)
            if isinstance(error, UnicodeDecodeError):
                why = f"byte 0x{error.object[error.start]:02X} is invalid"
            message = f"The file is not {self._label}: {why}."
            raise invalid_file("invalid-encoding", message, AdviceKind.CHOOSE_ENCODING(), self._number + 1) from None
        if not line:
            raise StopIteration
        self._number += 1
        self.size += len(line)
        if self.size >= MAX_ROW:
            message = f"A row has more than {MAX_ROW:,} characters."
            raise invalid_file("row-too-long", message, "Check for a quote that is not closed.", self._number)
        return line


def _sniff(text: str, is_cut: bool, name: str) -> str:
    """The delimiter with which most rows have as many cells as the first, and most cells."""
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if is_cut:
        lines = lines[:-1] or lines
    best, best_score = "\t" if name.lower().endswith((".tsv", ".tab")) else ",", (0.0, 1)
    for delimiter in DELIMITERS:
        rows = [row for row in _sniff_rows(lines, delimiter) if row]
        if not rows or len(rows[0]) < 2:
            continue
        width = len(rows[0])
        score = (sum(len(row) == width for row in rows) / len(rows), width)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _sniff_rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    rows: list[list[str]] = []
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        for row in reader:
            rows.append(row)
            if len(rows) == _SNIFFED_ROWS:
                break
    except csv.Error:
        pass
    return rows


def _find_line_ends(text: str) -> str:
    both = text.count("\r\n")
    counts = {"CRLF": both, "LF": text.count("\n") - both, "CR": text.rstrip("\r").count("\r") - both}
    found = [name for name, count in counts.items() if count > 0]
    return found[0] if len(found) == 1 else "mixed" if found else ""


# Writing


class TableWriter:
    """Writes a CSV file in UTF-8, with a byte order mark if asked, for programs that would otherwise guess."""

    def __init__(
        self, file: BinaryIO, header: Sequence[str], *, raw: bool = False, mark: bool = False, delimiter: str = ""
    ) -> None:
        self._file = file
        self._raw = raw
        self._buffer = io.StringIO()
        self._writer = csv.writer(self._buffer, delimiter=delimiter or ",", lineterminator="\r\n")
        if mark:
            file.write(b"\xef\xbb\xbf")
        self._put([header])

    def write(self, cells: Sequence[str]) -> None:
        """Write one row."""
        self._put([cells])

    def write_many(self, rows: Iterable[Sequence[str]]) -> None:
        """Write rows; faster than one by one."""
        self._put(rows)

    def _put(self, rows: Iterable[Sequence[str]]) -> None:
        if not self._raw:
            rows = [[quote_cell(cell) if cell[:1] in _SUSPECT else cell for cell in row] for row in rows]
        self._writer.writerows(rows)
        self._file.write(self._buffer.getvalue().encode("utf-8", "surrogateescape"))
        self._buffer.seek(0)
        self._buffer.truncate()
