"""Files with many records: any bytes give rows, problems or a refusal, whatever the format.

The first byte of the input says the format, and whether it is detected. Tables of any cells that are written are read
as they were. Spreadsheets are read in a process of their own, by a library, and not here.
"""

import io
from itertools import islice
from typing import Final

from perseid.bulk.dumps import JDB_MARK
from perseid.bulk.formats import Format, InvalidFile, ReadOptions
from perseid.bulk.rows import detect_format, open_rows, open_table
from perseid.bulk.tables import TableWriter, unquote_cell
from perseid.schema.imports import ImportRow, RowProblem

NOW: Final = 1_794_700_800
MAX_ROWS: Final = 1_000

FORMATS: Final = (
    *(None, Format.CSV, Format.JSONL, Format.BATCH, Format.EXCHANGE, Format.DUMP, Format.JDB, Format.ANVL),
)


def fuzz(data: bytes) -> None:
    """Read a file."""
    if not data:
        return
    format_, content = FORMATS[data[0] % len(FORMATS)], data[1:]
    options = ReadOptions(format=format_, prefix="12345", mint=bool(data[0] & 0x40), raw=bool(data[0] & 0x80))
    try:
        if format_ is None and detect_format(content) in (Format.XLSX, Format.ODS):
            return
        reader = open_rows(io.BytesIO(content), "", options, now=NOW)
        for row in islice(reader, MAX_ROWS):
            if isinstance(row, RowProblem):
                _check(row)
            else:
                assert isinstance(row, ImportRow)
                assert row.handle
                assert not row.columns or len(row.columns) == len(row.values)
        if format_ is Format.CSV:
            _write_again(content)
    except InvalidFile as invalid:
        _check(invalid.problem)


def _check(problem: RowProblem) -> None:
    """A problem is short and can be printed."""
    assert problem.rule
    for text in (problem.message, problem.fix):
        assert len(text) < 2_000, problem
        assert text.isprintable(), problem


def _write_again(content: bytes) -> None:
    """What is written from a table is the same table."""
    table = open_table(io.BytesIO(content), options=ReadOptions(format=Format.CSV))
    rows = [row[1] for row in islice(table.rows, MAX_ROWS) if not isinstance(row, RowProblem)]
    file = io.BytesIO()
    TableWriter(file, table.header, mark=True).write_many(rows)
    again = open_table(io.BytesIO(file.getvalue()), options=ReadOptions(format=Format.CSV, delimiter=","))
    found = [[unquote_cell(cell) for cell in row[1]] for row in again.rows if not isinstance(row, RowProblem)]
    assert found == rows
    assert tuple(map(unquote_cell, again.header)) == table.header


SEEDS: Final = [
    b'\1handle,url,2:EMAIL!private,state\r\n12345/a,https://example.org/,a@b.org,published\r\n12345/b,\'=1,"a\n""b",\r\n',
    b"\1sep=;\nhandle;type;index;data;format\n1/a;URL;1;x;string\n1/a;HS_ADMIN;2;300:0.NA/1;text\n",
    b"\1\xff\xfe" + "handle\turl\n1/a\té\n".encode("utf-16-le"),
    b"\1_id,_target,_status\nark:/99999/x,https://example.org/,public\n",
    b'\2{"handle":"1/a","state":"reserved","values":[{"index":1,"type":"URL","data":{"format":"string","value":"x"}}]}\n',
    b"\3AUTHENTICATE SECKEY:300:0.NA/1\nsecret\n\nCREATE 1/a\n1 URL 86400 1110 UTF8 x\n",
    b"\3CREATE 1/a\n100 HS_ADMIN 86400 1110 ADMIN 300:111111111111:0.NA/1\n2 HS_VLIST 1 1110 LIST 300:1/a;301:1/b\n",
    b"\3REMOVE 1,2:1/a\nDELETE 1/b\nHOME 1:2:TCP\n0.NA/1\n\nADD 1/c\n1 URL 1 rwr- FILE x\n",
    b'\4{"homedPrefixes":["0.NA/1"],"handleRecords":{"1/A":{"handle":"1/A","values":[]}}}',
    b"\5VERSION=3\nHEADER=END\n 312f61\n 00000000\nDATA=END\n",
    b"\6" + JDB_MARK + b"\0\0\0\1" + bytes(8),
    b"\7:: ark:/99999/x\n_target: https://example.org/\n_status: unavailable | gone\nerc.what: a%0Ab\n",
    b"\0handle,url\n1/a,b\n",
]

WORDS: Final = [
    b"handle",
    b"problem_line",
    b"!base64",
    b"!ttl=",
    b'"',
    b"''=",
    b"\r",
    b";",
    b"CREATE ",
    b"UTF8",
    b"LIST",
]
