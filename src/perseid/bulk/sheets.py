"""Spreadsheets (`.xlsx`, `.ods`) as tables of text, as a person sees them.

They are read with python-calamine (`pip install 'perseid[spreadsheets]'`) in a process of its own with limited memory
and time: a small file can describe billions of cells, and what reads it would run out of memory. Rows come over a pipe.

Numbers and dates become the text that a spreadsheet shows: 2024.0 is `2024`, a date is in ISO 8601, a duration has
hours. Text stays as it is, `00123` included. How a number is padded (a format such as `00000`) is not known here.
"""

import importlib.util
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

import msgspec

from perseid.schema.imports import RowProblem

from .formats import Detected, Format, MissingLibrary, ReadOptions, invalid_file
from .tables import MAX_ROW, Table, TableRow, open_cells

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook

MAX_SPREADSHEET: Final = 268_435_456
"""Bytes of the largest spreadsheet; a million rows of ten cells have 50 MB."""

MAX_MEMORY: Final = 4_294_967_296
"""Bytes of address space of the process that reads a spreadsheet: a million rows of ten cells need a fourth of it."""

MAX_SECONDS: Final = 600
"""Processor time of that process, which reads some 100,000 rows a second."""

Cell: TypeAlias = int | float | str | bool | time | date | datetime | timedelta
"""What the library gives for a cell."""

INSTALL: Final = "pip install 'perseid[spreadsheets]'"

_MAX_EXACT: Final = 10**15  # larger integers have no exact number in a spreadsheet
_LIBRARY: Final = "python_calamine"


class _Opened(msgspec.Struct, tag=True):
    """The first message of the process."""

    sheet: str
    sheets: list[str]


class _Failed(msgspec.Struct, tag=True):
    """The only message if the file cannot be read."""

    message: str
    fix: str = "Save it again as .xlsx or .ods without a password, or as CSV."


_HEADS: Final = msgspec.json.Decoder(_Opened | _Failed)
_ROWS: Final = msgspec.json.Decoder(tuple[int, list[str]])


def open_sheet(file: BinaryIO, format_: Format, options: ReadOptions | None = None) -> Table:
    """Open a sheet of a spreadsheet: the first with content, or the one that is named."""
    if importlib.util.find_spec(_LIBRARY) is None:
        message = "Reading spreadsheets requires the library python-calamine."
        raise MissingLibrary(RowProblem(0, "", "", "missing-library", message, f"Install it: {INSTALL}"))
    lines = _run(file, (options or ReadOptions()).sheet)
    head = _HEADS.decode(next(lines, b'{"type":"_Failed","message":"it cannot be read"}'))
    if isinstance(head, _Failed):
        raise invalid_file("invalid-spreadsheet", f"The spreadsheet is invalid: {head.message}.", head.fix)
    skipped = tuple([name for name in head.sheets if name != head.sheet])
    return open_cells(_read(lines), Detected(format_, sheet=head.sheet, skipped_sheets=skipped))


def _read(lines: Iterator[bytes]) -> Iterator[TableRow]:
    for line in lines:
        number, cells = _ROWS.decode(line)
        yield number, cells


def _run(file: BinaryIO, sheet: str) -> Iterator[bytes]:
    """The lines that the process writes."""
    with tempfile.TemporaryFile() as copy:
        _copy(file, copy)
        command = [sys.executable, "-P", "-m", "perseid.bulk.sheets", sheet]
        with subprocess.Popen(command, stdin=copy, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: S603
            try:
                assert process.stdout is not None  # noqa: S101 - as asked
                while line := process.stdout.readline(MAX_ROW):
                    if not line.endswith(b"\n"):
                        raise invalid_file("row-too-long", f"A row has more than {MAX_ROW:,} bytes.")
                    yield line
            except BaseException:
                process.kill()
                raise
    if process.returncode != 0:
        message = "The spreadsheet could not be read: it is damaged, or needs too much memory or time."
        raise invalid_file("invalid-spreadsheet", message, "Save it as CSV.")


def _copy(file: BinaryIO, copy: BinaryIO) -> None:
    """Copy a file so that the process can read it in any order."""
    left = MAX_SPREADSHEET
    while chunk := file.read(min(1 << 20, left + 1)):
        left -= len(chunk)
        if left < 0:
            message = f"The spreadsheet has more than {MAX_SPREADSHEET >> 20:,} MiB."
            raise invalid_file("spreadsheet-too-large", message, "Save it as CSV.")
        copy.write(chunk)
    copy.flush()
    copy.seek(0)


def format_cell(cell: Cell) -> str:
    """The text of a cell as a person sees it."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < _MAX_EXACT else f"{cell:.15g}"
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat(" ", "seconds")
    if isinstance(cell, timedelta):
        minutes, seconds = divmod(round(cell.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)


# The process


def main(sheet: str) -> None:
    """Write the cells of a spreadsheet, which is standard input, as JSON lines to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    write = sys.stdout.buffer.write
    encode = msgspec.json.Encoder().encode
    for message in dump_sheet(sys.stdin.buffer, sheet):
        write(encode(message) + b"\n")


def dump_sheet(file: BinaryIO, wanted: str) -> Iterator[_Opened | _Failed | tuple[int, list[str]]]:
    """Messages with the sheet that was opened, and the number and cells of each row."""
    import python_calamine as calamine  # noqa: PLC0415 - optional

    try:
        book = calamine.CalamineWorkbook.from_filelike(file)
        names = book.sheet_names
        if wanted and wanted not in names:
            message = f"it has no sheet {wanted[:40]!r}; its sheets are {', '.join(names)[:200]}"
            yield _Failed(message, "Use one of these sheets.")
            return
        sheet = book.get_sheet_by_name(wanted) if wanted else _find_sheet(book)
    except (calamine.CalamineError, OSError, ValueError, IndexError) as error:
        yield _Failed(str(error)[:200] or type(error).__name__)
        return
    yield _Opened(sheet.name, names)
    for number, cells in enumerate(sheet.iter_rows(), 1):
        row = [cell if isinstance(cell, str) else format_cell(cell) for cell in cells]
        if any(row):
            yield number, row


def _find_sheet(book: "CalamineWorkbook") -> "CalamineSheet":
    """The first sheet that is visible and not empty; the first if there is none."""
    from python_calamine import SheetTypeEnum, SheetVisibleEnum  # noqa: PLC0415 - see above

    for about in book.sheets_metadata:
        if about.visible == SheetVisibleEnum.Visible and about.typ == SheetTypeEnum.WorkSheet:
            sheet = book.get_sheet_by_name(about.name)
            if sheet.height:
                return sheet
    return book.get_sheet_by_index(0)


if __name__ == "__main__":
    main(sys.argv[1])
