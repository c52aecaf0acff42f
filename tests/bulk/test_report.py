"""Reports have the rows with problems and can be corrected and read again; minted handles are written to their rows."""

import io

import pytest

from perseid.bulk.batch import find_credential
from perseid.bulk.formats import ReadOptions
from perseid.bulk.report import write_handles, write_report
from perseid.bulk.rows import open_rows
from perseid.schema.imports import ImportRow, RowProblem
from tests.bulk.stored import problems, read, stored


def report(data: bytes, options: ReadOptions | None = None, *more: RowProblem) -> bytes:
    """The report of the problems of reading, and of some that are found later."""
    options = options or ReadOptions()
    file, to = io.BytesIO(data), io.BytesIO()
    found = [row for row in open_rows(file, "", options) if isinstance(row, RowProblem)]
    write_report(iter(sorted([*found, *more], key=lambda problem: problem.line)), file, "", options, to)
    assert not file.closed
    return to.getvalue()


def later(line: int) -> RowProblem:
    return RowProblem(line, "url", "x", "invalid-url", "It is not\na URL.", "Use https.")


def test_a_table_has_its_columns_and_the_problems() -> None:
    data = b"handle,url,state,DESC\n1/a,x,gone,'=1\n1/b,x,,\n1/c,x,,'x\n1/d,x,,,more\n1/e,x,,''=1\n"
    text = report(data, None, later(4), later(6)).decode("utf-8-sig")
    assert text.splitlines()[0].endswith(
        "DESC,problem_line,problem_column,problem_value,problem_rule,problem_message,problem_fix"
    )
    assert "1/a,x,gone,'=1,2,state,gone,unknown-state" in text
    assert "1/b" not in text
    again = read(text.replace("gone", "reserved", 1).encode())
    assert [row.handle for row in again if isinstance(row, ImportRow)] == ["1/a", "1/c", "1/e"]
    assert [stored(row)[-1].data for row in again if isinstance(row, ImportRow)] == [b"=1", b"'x", b"'=1"]
    assert [rule for _, rule in problems(again)] == ["empty-row"]
    twice = report(text.encode()).decode("utf-8-sig")
    assert twice.splitlines()[0] == text.splitlines()[0]


def test_names_of_columns_are_mapped_in_a_report_as_in_the_file() -> None:
    options = ReadOptions(columns={"@id": "handle", "'=x": "DESC"})
    data = b"@id,url,''=x\n1/a,x,y\n"
    for _ in range(2):
        data = report(data, options, later(2)).replace(b"\na URL", b" a URL")
        assert data.startswith(b"\xef\xbb\xbf'@id,url,''=x,problem_line"), "spreadsheets would run it"
        (row,) = read(data, options)
        assert isinstance(row, ImportRow)
        assert (row.handle, stored(row)[-1].type) == ("1/a", "DESC")


def test_literal_cells_stay_literal() -> None:
    raw = ReadOptions(raw=True)
    (row,) = read(report(b"handle,url,DESC\n1/a,x,'=1\n", raw, later(2)), raw)
    assert stored(row)[-1].data == b"'=1"


def test_a_table_of_values_has_all_rows_of_a_record() -> None:
    rows = ["1/a,1,URL,x", "1/a,2,URL,y", "1/b,1,URL,x", "1/c,x,URL,x", "1/c,2,URL,y", "1/d,1,URL,x", "1/d,2,URL,y"]
    data = "\n".join(["handle,index,type,data", *rows]).encode()
    text = report(data, None, later(2)).decode("utf-8-sig")
    lines = [line.split(",")[:3] for line in text.replace("\na URL", " a URL").splitlines()[1:]]
    assert [line[0] for line in lines] == ["1/a", "1/a", "1/c", "1/c"]
    again = read(text.replace("1/c,x", "1/c,1").encode())
    assert [(row.handle, len(row.values)) for row in again if isinstance(row, ImportRow)] == [("1/a", 2), ("1/c", 2)]


def test_lines_have_their_problems() -> None:
    data = b'\xef\xbb\xbf{"handle": "1/a", "state": "gone"}\n{"handle": "1/b"}\n\n{"handle": "1/c"}\n[]\n'
    text = report(data, None, later(4))
    assert len(text.splitlines()) == 3
    again = read(text.replace(b'"state":"gone"', b'"state":"reserved"'))
    assert [row.handle for row in again if isinstance(row, ImportRow)] == ["1/a", "1/c"]


def test_a_batch_file_has_whole_operations_and_comments() -> None:
    data = (
        b"DELETE 1/a\nDELETE 1/b\nCREATE 1/c\n1 URL 1 1110 UTF8 x\n2 URL nonsense\n\nNONSENSE\nmore\n\n"
        b"HOME 127.0.0.1:2641:TCP\n0.NA/1\n0.NA/2\n\nCREATE 1/d\n1 URL 1 1110 UTF8 x\nCREATE 1/e\n"
    )
    text = report(data, None, later(2), later(12), later(14))
    assert text == (
        b"# line 2: It is not a URL. Use https.\nDELETE 1/b\n\n"
        b"# line 3: The value on line 5 is invalid: it does not have the form INDEX TYPE TTL PERMISSIONS FORMAT DATA.\n"
        b"CREATE 1/c\n1 URL 1 1110 UTF8 x\n2 URL nonsense\n\n"
        b"# line 7: The line does not start an operation."
        b" Use CREATE, ADD, MODIFY, REMOVE, DELETE, HOME or UNHOME, after a blank line.\nNONSENSE\nmore\n\n"
        b"# line 12: It is not a URL. Use https.\nHOME 127.0.0.1:2641:TCP\n0.NA/2\n\n"
        b"# line 14: It is not a URL. Use https.\nCREATE 1/d\n1 URL 1 1110 UTF8 x\n\n"
    )
    assert [row.handle for row in read(text) if isinstance(row, ImportRow)] == ["1/b", "0.NA/2", "1/d"]


def test_report_of_a_batch_file_signs_in_without_the_secret() -> None:
    data = b"# A\nAUTHENTICATE SECKEY:300:1/a\nsecret\n\nDELETE 1/b\nDELETE 1/c\n"
    text = report(data, None, later(5))
    assert b"secret\n" not in text
    credential = find_credential(io.BytesIO(text))
    assert credential is not None
    assert (credential.kind, credential.reference, credential.content) == ("SECKEY", "300:1/a", "...")
    assert [row.handle for row in read(text) if isinstance(row, ImportRow)] == ["1/b"]


def test_other_formats_give_the_problems_alone() -> None:
    text = report(b'{"handleRecords": {"1/a": {"values": 1}}}')
    assert b'"rule":"invalid-record"' in text


@pytest.mark.parametrize("header", ["url,handle,DESC", "url,DESC"])
def test_minted_handles_are_written_next_to_their_rows(header: str) -> None:
    has_column = "handle" in header
    data = f"{header}\nx,{',' if has_column else ''}'=1\ny,\nz,\n".encode()
    to = io.BytesIO()
    assert write_handles([(2, "1/a"), (4, "1/c")], io.BytesIO(data), "", ReadOptions(), to) == 2
    rows = read(to.getvalue())
    assert [row.handle for row in rows if isinstance(row, ImportRow)] == ["1/a", "1/c"]
    assert [value.data for value in stored(rows[0])] == [b"x", b"=1"]


@pytest.mark.parametrize("header", ["url,PID", "url,Nr"])
def test_minted_handles_are_written_to_the_column_for_handles(header: str) -> None:
    options, to = ReadOptions(columns={"Nr": "handle"} if "Nr" in header else {}), io.BytesIO()
    assert write_handles([(2, "1/a")], io.BytesIO(f"{header}\nx,\n".encode()), "", options, to) == 1
    assert to.getvalue().decode("utf-8-sig") == f"{header}\r\nx,1/a\r\n"


def test_file_with_minted_handles_has_no_problems_of_a_report() -> None:
    options, to = ReadOptions(mint=True, prefix="1"), io.BytesIO()
    text = report(b"url,state\nx,gone\n", options).replace(b"gone", b"reserved", 1)
    assert write_handles([(2, "1/a")], io.BytesIO(text), "", options, to) == 1
    assert to.getvalue().decode("utf-8-sig") == "url,state,handle\r\nx,reserved,1/a\r\n"


def test_minted_handles_are_written_to_their_lines() -> None:
    data = b'{"values": []}\n\n{"values": [{"type": "URL", "data": "x"}]}\n'
    to = io.BytesIO()
    assert write_handles([(1, "1/a"), (3, "1/b")], io.BytesIO(data), "", ReadOptions(), to) == 2
    assert [row.handle for row in read(to.getvalue()) if isinstance(row, ImportRow)] == ["1/a", "1/b"]
