"""JSON lines and tables of values express every record exactly."""

import io
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk.formats import Format, InvalidFile, ReadOptions, UnknownColumns
from perseid.bulk.jsonl import format_problem, format_record
from perseid.bulk.tables import TableWriter
from perseid.bulk.value_table import VALUE_COLUMNS, value_rows
from perseid.records.record import Record as StoredRecord
from perseid.records.record import Value
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from perseid.schema.records import Data, Record
from tests.bulk.stored import read, stored
from tests.record_strategies import records

STATES = st.sampled_from(["published", "unpublished", "reserved", "tombstone"])


@given(records(), STATES)
def test_every_record_survives_as_a_line(record: StoredRecord, state: str) -> None:
    line = format_record(str(record.handle), state, record.values, created="2001-02-03T04:05:06Z", owner="300:0.NA/1")
    (row,) = read(line)
    assert isinstance(row, ImportRow)
    assert (row.operation, row.handle, row.state) == (RowOperation.CREATE, str(record.handle), state)
    assert (row.created, row.owner) == ("2001-02-03T04:05:06Z", "300:0.NA/1")
    assert stored(row) == record.values


def _as_table(rows: Sequence[Sequence[str]], *, raw: bool) -> bytes:
    file = io.BytesIO()
    TableWriter(file, VALUE_COLUMNS, raw=raw).write_many(rows)
    return file.getvalue()


@given(records(), STATES)
def test_every_record_survives_as_a_table_of_values(record: StoredRecord, state: str) -> None:
    values, handle = record.values, str(record.handle)
    other = Value.text(1, "URL", "https://x.org/")
    rows = [*value_rows(handle, state, values, owner="1:2"), *value_rows("1/other", state, [other])]
    found = read(_as_table(rows, raw=False))
    assert [row.handle for row in found if isinstance(row, ImportRow)] == [handle, "1/other"]
    row = found[0]
    assert isinstance(row, ImportRow)
    assert (row.state, row.owner, stored(row)) == (state, "1:2", values)


def test_a_record_with_an_invalid_value_is_a_problem_of_all_its_rows() -> None:
    rows = [list(row) for row in value_rows("1/a", "published", [Value.text(n, "URL", "x") for n in range(1, 5)])]
    rows[0][2], rows[1][6], rows[2][5] = "x", "rw", "hex"
    rows += [list(row) for row in value_rows("1/b", "gone", [])]
    rows += [["1/c", "", "", "HS_ADMIN", "nonsense:", "text"], ["1/d", "", "", "URL", "x", "", "", "", "", "x"]]
    rows += [["1/e", "", "", "", "x"], ["", "", "", "URL", "x"], ["1/f", "", "", "URL", "@x"]]
    found = read(_as_table([[*row, *[""] * (12 - len(row))] for row in rows], raw=True))
    assert [(row.line, row.rule) for row in found if isinstance(row, RowProblem)] == [
        *((2, "invalid-index"), (3, "invalid-permissions"), (4, "unknown-format"), (5, "invalid-record")),
        *((6, "unknown-state"), (7, "invalid-data"), (8, "invalid-references"), (9, "missing-type")),
        (10, "missing-handle"),
    ]
    assert [row.handle for row in found if isinstance(row, ImportRow)] == ["1/f"]


def test_tables_of_values_have_no_other_columns() -> None:
    for header, rule in [("x,", "unknown-columns"), ("handle,", "duplicate-column")]:
        with pytest.raises(InvalidFile) as caught:
            read(f"{header}handle,type,data\n".encode())
        assert caught.value.problem.rule == rule
    with pytest.raises(InvalidFile):
        read(b"handle,type,data\n", ReadOptions(mint=True, prefix="1"))
    with pytest.raises(UnknownColumns, match="'dtaa' is probably data"):
        read(b"handle,type,data,dtaa\n")


def test_columns_of_a_table_of_values_can_be_ignored() -> None:
    table = b"handle,type,data,Shelf\n1/a,URL,x,7b\n"
    ignored = ReadOptions(columns={"shelf": "-"})
    (row,) = read(table, ignored)
    assert isinstance(row, ImportRow)
    assert [(value.type, value.data) for value in row.values] == [("URL", Data("string", "x"))]
    with pytest.raises(InvalidFile, match="does not have the column 'x'"):
        read(table, ReadOptions(columns={"shelf": "-", "x": "-"}))
    (row,) = read(table, ReadOptions(columns={"shelf": "-", "type": "-", "data": "TITLE"}))
    assert isinstance(row, ImportRow)
    assert [value.type for value in row.values] == ["TITLE"], "as any other table"


def test_record_is_read_as_the_api_returns_it() -> None:
    record = Record("1/a", "published", [], 7, "2026-11-15T10:00:00.123456Z", 9)
    assert read(msgspec.json.encode(record)) == [ImportRow(1, RowOperation.CREATE, "1/a", state="published")]


def test_invalid_lines_are_problems_and_the_others_are_read() -> None:
    lines = [
        *('\ufeff{"handle": "1/a"}', "", "{", '{"handle": 1}', '{"handle": "1/b", "x": 1}', "[]", '{"values": []}'),
        *('{"handle": "1/c", "state": "gone"}', '{"handle": "1/d", "values": [{"type": "URL", "data": "@x"}]}'),
        *("[" * 100_000, '{"handle": "1/e", "state": "deleted"}'),
    ]
    rows = read("\n".join(lines).encode(), ReadOptions(format=Format.JSONL))
    assert [(row.line, row.handle) for row in rows if isinstance(row, ImportRow)] == [(1, "1/a"), (9, "1/d")]
    assert [(row.line, row.rule) for row in rows if isinstance(row, RowProblem)] == [
        *((3, "invalid-json"), (4, "invalid-record"), (5, "invalid-record"), (6, "invalid-record")),
        *((7, "missing-handle"), (8, "unknown-state"), (10, "invalid-record"), (11, "unknown-state")),
    ]


def test_invalid_json_has_one_line_and_a_column() -> None:
    (row,) = read(b'{"handle": "1/a"; "values": []}\n', ReadOptions(format=Format.JSONL))
    assert isinstance(row, RowProblem)
    assert (row.line, row.message) == (1, "The line is invalid JSON at column 17.")


def test_lines_of_a_report_can_be_read_again() -> None:
    text = b'{"handle": "1/c", "state": "gone", "values": [{"type": "URL", "data": "x", "big": 12345678901234567890}]}'
    (problem,) = read(text)
    assert isinstance(problem, RowProblem)
    line = format_problem(text, [problem])
    corrected = line.replace(b"gone", b"reserved").replace(b"12345678901234567890", b"1")
    (row,) = read(corrected)
    assert isinstance(row, ImportRow)
    assert row.state == "reserved"


def test_handles_can_be_minted_for_lines() -> None:
    rows = read(b'{"values": []}\n{"handle": "1/a"}', ReadOptions(mint=True, prefix="12345"))
    assert rows[0] == ImportRow(1, RowOperation.MINT, "12345")
    assert isinstance(rows[1], RowProblem)
