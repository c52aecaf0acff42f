"""CSV files as other programs write them, and those that we write."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk.encodings import SAMPLE
from perseid.bulk.formats import InvalidFile, ReadOptions
from perseid.bulk.rows import open_table
from perseid.bulk.tables import MAX_CELL, MAX_COLUMNS, MAX_NAME, MAX_ROW, TableWriter, quote_cell, unquote_cell
from perseid.schema.imports import RowProblem

CELLS = st.text("=+-@\t\r\n'\",;|\0 é1", max_size=5) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def rows_of(data: bytes, options: ReadOptions | None = None, name: str = "") -> list[tuple[int, list[str]]]:
    table = open_table(io.BytesIO(data), name, options)
    rows = list(table.rows)
    assert not [row for row in rows if isinstance(row, RowProblem)]
    return [row for row in rows if not isinstance(row, RowProblem)]


@pytest.mark.parametrize(
    ("encoding", "label"),
    [
        ("utf-8", "UTF-8"),
        ("utf-8-sig", "UTF-8 with BOM"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16-LE"),
        ("utf-16-be", "UTF-16-BE"),
        ("cp1252", "Windows Latin-1 (cp1252)"),
    ],
)
@pytest.mark.parametrize(("end", "ends"), [("\n", "LF"), ("\r\n", "CRLF"), ("\r", "CR")])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_encoding_delimiter_and_line_ends_are_detected(
    encoding: str, label: str, end: str, ends: str, delimiter: str
) -> None:
    lines = [("handle", "url", "title"), ("1/a", "https://x.org/", "Bücher – “eins”"), ("1/b", "", f'a{delimiter}"b"')]
    quoted = [
        "".join([delimiter.join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row), end]) for row in lines
    ]
    table = open_table(io.BytesIO("".join(quoted).encode(encoding)))
    assert table.header == lines[0]
    assert list(table.rows) == [(2, list(lines[1])), (3, list(lines[2]))]
    detected = table.detected
    assert (detected.encoding, detected.line_ends, detected.delimiter) == (label, ends, delimiter)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_mark_decides_whatever_the_user_chose(encoding: str) -> None:
    """A report is in UTF-8, and is imported with the options of the file."""
    for chosen in ("cp1252", "utf-8", "utf-16-le"):
        table = open_table(io.BytesIO("handle,ü\n1/a,é\n".encode(encoding)), "", ReadOptions(encoding=chosen))
        assert (table.header, [*table.rows]) == (("handle", "ü"), [(2, ["1/a", "é"])])


def test_the_line_of_excel_sets_the_delimiter() -> None:
    table = open_table(io.BytesIO(b"sep=;\r\nhandle;url\r\n1/a,b;x\r\n"))
    assert (table.header, table.detected.delimiter) == (("handle", "url"), ";")
    assert list(table.rows) == [(3, ["1/a,b", "x"])]


def test_the_name_and_the_option_set_the_delimiter() -> None:
    assert open_table(io.BytesIO(b"handle\n1/a\n"), "x.tsv").detected.delimiter == "\t"
    assert rows_of(b"a:b\n1:2\n", ReadOptions(delimiter=":")) == [(2, ["1", "2"])]
    with pytest.raises(InvalidFile, match="delimiter"):
        open_table(io.BytesIO(b"a:b\n"), options=ReadOptions(delimiter="::"))


def test_rows_have_the_line_on_which_they_start_and_as_many_cells_as_the_header() -> None:
    data = b'\n,,\nhandle,url,\n1/a,"two\nlines"\n,,\n\n1/b,x,,,\n1/c\n'
    assert rows_of(data) == [(4, ["1/a", "two\nlines"]), (8, ["1/b", "x"]), (9, ["1/c", ""])]


def test_invalid_rows_are_reported_and_the_others_are_read() -> None:
    data = b'handle,url\n1/a,x,y\n1/b,"x"y\n1/c,z\n1/d,"open\n1/e,z\n'
    rows = list(open_table(io.BytesIO(data)).rows)
    assert [row.rule if isinstance(row, RowProblem) else row for row in rows] == [
        *("too-many-cells", "invalid-csv", (4, ["1/c", "z"]), "invalid-csv"),
    ]
    assert [row.line for row in rows if isinstance(row, RowProblem)] == [2, 3, 5]


def test_single_row_with_one_more_empty_cell_has_a_delimiter_in_a_cell() -> None:
    """Its last column is empty, so all cells after that delimiter are shifted; other programs end rows like that."""
    head, good, shifted = b"a;b;c\n", b"1;x;y\n", b"1;x; y;z;\n"
    for data, rules in (
        (head + good + b"1;x;y;\n" + good, [None, "too-many-cells", None]),
        (head + good + b"1;x;y;\n", [None, "too-many-cells"]),
        (head + b"1;x;y;\n" + good, ["too-many-cells", None]),
        (head + b"1;x;y;\n" * 2 + good, [None, None, None]),
        (b"a;b;c;\n" + b"1;x;y;\n" + good, [None, None]),
        (b"a;b;c;d\n" + good + shifted + good, [None, "too-many-cells", None]),
    ):
        rows = list(open_table(io.BytesIO(data), options=ReadOptions(delimiter=";")).rows)
        assert [row.rule if isinstance(row, RowProblem) else None for row in rows] == rules, data


def test_a_file_that_is_mostly_utf8_is_not_read_as_another_encoding() -> None:
    with pytest.raises(InvalidFile) as caught:
        open_table(io.BytesIO("handle,title\n1/a,é\n1/b,".encode() + b"\xe9\n"))
    assert (caught.value.problem.rule, caught.value.problem.line) == ("invalid-encoding", 3)
    table = open_table(io.BytesIO(b"handle,title\n1/a,\xe9\n"), options=ReadOptions(encoding="latin-1"))
    assert list(table.rows) == [(2, ["1/a", "é"])]


@pytest.mark.parametrize("name", ["nonsense", "hex", "punycode", "undefined"])
def test_codec_that_is_no_encoding_of_files_is_refused(name: str) -> None:
    with pytest.raises(InvalidFile, match="Unknown encoding"):
        open_table(io.BytesIO(b"a"), options=ReadOptions(encoding=name))


def test_latin_1_after_the_sample_is_found() -> None:
    data = b"handle,title\n" + b"1/a,e\n" * SAMPLE + b"1/b,\xe9\n"
    assert rows_of(data)[-1][1] == ["1/b", "é"]
    for at in (1 << 20) - 1, (1 << 20) - 2, 1 << 20:
        data = b"handle,title\n" + b"1/a," + b"e" * (at - 17) + "é".encode() + b"\n"
        assert open_table(io.BytesIO(data)).detected.encoding == "UTF-8"


def test_byte_that_no_text_has_is_named() -> None:
    with pytest.raises(InvalidFile, match=r"not Windows Latin-1 \(cp1252\): byte 0x81 is invalid\.$"):
        open_table(io.BytesIO(b"\x81\xfc,b\n"))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "empty-file"),
        (b"\n,,\n", "empty-file"),
        (b"a," * (MAX_COLUMNS + 1) + b"a\n", "too-many-columns"),
        (b"a," + b"b" * (MAX_NAME + 1) + b"\n1/a,b\n", "name-too-long"),
        (b'a,b\n"' + b"x" * (MAX_CELL + 1), "cell-too-long"),
        (b"a,b\n" + b"x" * (MAX_ROW + 1), "row-too-long"),
        (b"a,b\n" + b'"\n",' * (MAX_ROW // 2), "row-too-long"),
        (b"\xff\xfe\0\0a\0\0\0", "unknown-encoding"),
    ],
    ids=["nothing", "no-header", "columns", "name", "cell", "line", "row", "utf-32"],
)
def test_what_cannot_be_read_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        list(open_table(io.BytesIO(data)).rows)
    assert caught.value.problem.rule == rule


@given(CELLS)
def test_no_cell_is_a_formula_and_every_cell_survives(cell: str) -> None:
    quoted = quote_cell(cell)
    assert quoted[:1] not in tuple("=+-@\t\r")
    assert unquote_cell(quoted) == cell


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=5), st.booleans(), st.booleans())
def test_every_table_survives(rows: list[list[str]], raw: bool, mark: bool) -> None:
    file = io.BytesIO()
    writer = TableWriter(file, ("handle", "url", "title"), raw=raw, mark=mark)
    writer.write_many(rows[:2])
    for row in rows[2:]:
        writer.write(row)
    table = open_table(io.BytesIO(file.getvalue()), options=ReadOptions(delimiter=",", encoding="utf-8"))
    undo = (lambda cell: cell) if raw else unquote_cell
    found = [[undo(cell) for cell in row[1]] for row in table.rows if not isinstance(row, RowProblem)]
    assert table.header == ("handle", "url", "title")
    assert found == [row for row in rows if any(row)]
