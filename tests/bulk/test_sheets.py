"""Spreadsheets and CSV files that LibreOffice made give the same rows; damaged and hostile ones are refused."""

import gzip
import io
import sys
import zipfile
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pytest

from perseid.bulk import sheets
from perseid.bulk.formats import Format, InvalidFile, MissingLibrary, ReadOptions
from perseid.bulk.rows import open_rows, open_table
from perseid.bulk.sheets import dump_sheet, format_cell
from perseid.schema.imports import ImportRow

FILES = Path(__file__).parent / "files"
HEADER = ("handle", "url", "title", "date", "DESC", "created", "Nr")
ROWS = [
    (
        *("12345/a", "https://example.org/a?x=1;y=2", "Bücher – “eins”, zwei", "2024-03-05", "00123"),
        *("2024-03-05 12:30:00", "2024"),
    ),
    ("12345/b", "https://example.org/b", 'two\nlines with "quotes"', "", "=1+1", "", "0.1"),
    ("12345/c", "", "'quoted", "1999-12-31", "007", "", "1234567890123"),
]


@pytest.mark.parametrize(
    ("name", "encoding", "delimiter"),
    [
        ("table.xlsx", "", ""),
        ("table.ods", "", ""),
        ("comma-utf8.csv", "UTF-8", ","),
        ("tab-utf16.csv", "UTF-16", "\t"),
        ("semicolon-cp1252.csv.gz", "Windows Latin-1 (cp1252)", ";"),
    ],
)
def test_files_of_libreoffice_give_the_same_rows(name: str, encoding: str, delimiter: str) -> None:
    data = (FILES / name).read_bytes()
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    table = open_table(io.BytesIO(data))
    assert table.header == HEADER
    rows = [row for row in table.rows if isinstance(row, tuple)]
    assert [tuple(cells) for _, cells in rows] == ROWS
    assert (table.detected.encoding, table.detected.delimiter) == (encoding, delimiter)
    assert [line for line, _ in rows] == ([3, 4, 5] if not encoding else [3, 4, 6])
    reader = open_rows(io.BytesIO(data), name, ReadOptions(columns={"nr": "-"}))
    assert [row.handle for row in reader if isinstance(row, ImportRow)] == [row[0] for row in ROWS]


def test_the_sheet_is_the_first_or_the_one_that_is_named() -> None:
    data = (FILES / "table.ods").read_bytes()
    table = open_table(io.BytesIO(data), options=ReadOptions(sheet="table"))
    assert (table.detected.format, table.detected.sheet, table.detected.skipped_sheets) == (Format.ODS, "table", ())
    with pytest.raises(InvalidFile, match="no sheet 'x'; its sheets are table") as raised:
        open_table(io.BytesIO(data), options=ReadOptions(sheet="x"))
    assert raised.value.problem.fix == "Use one of these sheets."


def test_sheets_that_are_not_read_are_named() -> None:
    found = open_table(io.BytesIO(with_second_sheet())).detected
    assert (found.sheet, found.skipped_sheets) == ("table", ("Books",))


def test_cells_are_the_text_that_a_person_sees() -> None:
    cells = (
        *("00123", True, False, 2024.0, -3.0, 0.1, 0.1 + 0.2, 1e20, 7, float("nan")),
        *(datetime(2024, 3, 5), datetime(2024, 3, 5, 12, 30), date(2024, 3, 5), time(1, 2)),  # noqa: DTZ001
        timedelta(hours=30, seconds=5),
    )
    assert [format_cell(cell) for cell in cells] == [
        *("00123", "TRUE", "FALSE", "2024", "-3", "0.1", "0.3", "1e+20", "7", "nan"),
        *("2024-03-05", "2024-03-05 12:30:00", "2024-03-05", "01:02:00", "30:00:05"),
    ]


def test_the_process_and_the_library_give_the_same() -> None:
    with (FILES / "table.xlsx").open("rb") as file:
        opened, *rows = dump_sheet(file, "")
    assert opened == sheets._Opened("table", ["table"])
    assert rows[0] == (2, list(HEADER))
    (failed,) = dump_sheet(io.BytesIO(b"PK\x03\x04nonsense"), "")
    assert isinstance(failed, sheets._Failed)


def with_second_sheet() -> bytes:
    """The spreadsheet with a copy of its sheet, called `Books`."""
    file = io.BytesIO()
    with zipfile.ZipFile(FILES / "table.xlsx") as old, zipfile.ZipFile(file, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename == "xl/worksheets/sheet1.xml":
                new.writestr("xl/worksheets/sheet2.xml", content)
            for end, more in SECOND_SHEET.get(item.filename, ()):
                assert end in content
                content = content.replace(end, more + end)
            new.writestr(item.filename, content)
    return file.getvalue()


SECOND_SHEET = {
    "xl/workbook.xml": [(b"</sheets>", b'<sheet name="Books" sheetId="99" r:id="rId99"/>')],
    "xl/_rels/workbook.xml.rels": [
        (
            b"</Relationships>",
            (
                b'<Relationship Id="rId99" Target="worksheets/sheet2.xml" '
                b'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"/>'
            ),
        )
    ],
    "[Content_Types].xml": [
        (
            b"</Types>",
            (
                b'<Override PartName="/xl/worksheets/sheet2.xml" '
                b'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
            ),
        )
    ],
}


def test_the_process_runs_no_python_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("perseid", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working directory')")
    monkeypatch.chdir(tmp_path)
    assert open_table(io.BytesIO((FILES / "table.xlsx").read_bytes())).header == HEADER


def _with_sheet(xml: bytes) -> bytes:
    """The spreadsheet with another first sheet."""
    file = io.BytesIO()
    with zipfile.ZipFile(FILES / "table.xlsx") as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            content = xml if item.filename == "xl/worksheets/sheet1.xml" else old.read(item)
            new.writestr(item.filename, content)
    return file.getvalue()


def test_a_small_file_with_billions_of_cells_is_refused() -> None:
    cells = b'<row r="%d"><c r="%b%d"><v>1</v></c></row>'
    xml = (
        b'<?xml version="1.0"?><worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
        + cells % (1, b"A", 1)
        + cells % (1_048_576, b"XFD", 1_048_576)
        + b"</sheetData></worksheet>"
    )
    with pytest.raises(InvalidFile) as caught:
        open_table(io.BytesIO(_with_sheet(xml)))
    assert caught.value.problem.rule == "invalid-spreadsheet"
    assert "memory" in caught.value.problem.message


@pytest.mark.parametrize("data", [b"PK\x03\x04" + b"x" * 500, (FILES / "table.ods").read_bytes()[:5_000]])
def test_damaged_spreadsheets_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidFile) as caught:
        open_table(io.BytesIO(data))
    assert caught.value.problem.rule == "invalid-spreadsheet"


@pytest.mark.parametrize("data", [b"", b"handle,URL\n", b"\x8f\xff\x00 no workbook"])
def test_file_that_is_named_like_a_workbook_and_is_none_is_refused(data: bytes) -> None:
    for name in ("t.xlsx", "t.ODS"):
        with pytest.raises(InvalidFile, match=f"is not a workbook, although its name ends with {name[1:].lower()}"):
            open_table(io.BytesIO(data), name)
    with pytest.raises(InvalidFile, match="The spreadsheet is invalid"):
        open_table(io.BytesIO(data), "t.xlsx", ReadOptions(format=Format.XLSX))
    open_table(io.BytesIO(b"handle,URL\n"), "t.xlsx", ReadOptions(format=Format.CSV))


def test_large_and_old_spreadsheets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidFile, match="old or encrypted Excel"):
        open_table(io.BytesIO(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"))
    with pytest.raises(InvalidFile, match="is a PDF"):
        open_table(io.BytesIO(b"%PDF-1.7\n"))
    with pytest.raises(InvalidFile, match="is compressed"):
        open_table(io.BytesIO((FILES / "semicolon-cp1252.csv.gz").read_bytes()))
    monkeypatch.setattr(sheets, "MAX_SPREADSHEET", 1_000)
    with pytest.raises(InvalidFile, match="more than"):
        open_table(io.BytesIO((FILES / "table.ods").read_bytes()))


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "_LIBRARY", "python_calamine_that_is_missing")
    with pytest.raises(MissingLibrary) as caught:
        open_table(io.BytesIO((FILES / "table.ods").read_bytes()))
    assert "pip install 'perseid[spreadsheets]'" in caught.value.problem.fix
    assert "python_calamine_that_is_missing" not in sys.modules
