"""Files of any format are detected, and read as a stream with bounded memory."""

import io
import re
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk import batch, jsonl, sheets, tables
from perseid.bulk.batch import format_create
from perseid.bulk.formats import Format, InvalidFile, ReadOptions
from perseid.bulk.jsonl import format_record
from perseid.bulk.rows import detect_format, open_rows
from perseid.bulk.value_table import VALUE_COLUMNS
from perseid.records.record import MAX_VALUES, Value
from perseid.schema.imports import ImportRow, RowProblem

URL = Value.text(1, "URL", "https://example.org/")

STARTS = {
    Format.CSV: (b"handle,url\n", b"1/a,https://example.org/\n"),
    Format.JSONL: (b"", format_record("1/a", "published", [URL])),
    Format.BATCH: (b"", format_create("1/a", [URL])[0]),
    Format.EXCHANGE: (b'{"handleRecords": {', b'"1/a": {"values": []},\n'),
    Format.DUMP: (b"VERSION=3\nHEADER=END\n", b" 312f61\n 00000000\n"),
    Format.ANVL: (b"", b":: ark:/99999/a\n_target: https://example.org/\n\n"),
}


class Endless(io.RawIOBase):
    """A pipe that never ends: the first bytes, then others, again and again."""

    def __init__(self, first: bytes, then: bytes) -> None:
        self._chunks: Iterator[bytes] = chain([first] if first else [], repeat(then))
        self._rest = b""
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]
        while len(self._rest) < len(target):
            self._rest += next(self._chunks)
        target[:] = self._rest[: len(target)]
        self._rest = self._rest[len(target) :]
        self.count += len(target)
        return len(target)


@pytest.mark.parametrize("format_", STARTS)
def test_rows_are_read_as_they_come(format_: Format) -> None:
    pipe = Endless(*STARTS[format_])
    reader = open_rows(pipe)  # type: ignore[arg-type]
    assert reader.detected.format is format_
    rows = list(islice(reader, 100))
    assert all(isinstance(row, ImportRow) for row in rows)
    assert pipe.count < 2_000_000


@pytest.mark.parametrize("junk", [b"x", b'"', b"\0"], ids=repr)
@pytest.mark.parametrize("format_", STARTS)
def test_what_never_ends_is_refused(format_: Format, junk: bytes) -> None:
    start, row = STARTS[format_]
    pipe = Endless(start + row, junk * 65_536)
    with pytest.raises(InvalidFile) as caught:
        deque(open_rows(pipe, "", ReadOptions(format=format_)), maxlen=0)  # type: ignore[arg-type]
    assert caught.value.problem.rule
    assert pipe.count < 100_000_000


@pytest.mark.parametrize(
    ("sample", "name", "expected"),
    [
        (b"handle,url\n", "", Format.CSV),
        (b"create date,handle\n", "x.csv", Format.CSV),
        (b"CREATE 1/a\n", "x.txt", Format.BATCH),
        (b"\xef\xbb\xbf# a comment\n\nauthenticate PUBKEY:1:2\n", "", Format.BATCH),
        (b'{"handle": "1/a"}\n', "x.csv", Format.JSONL),
        (b' {"homedPrefixes": []', "x.json", Format.EXCHANGE),
        (b"PK\x03\x04\x14\0" + b"\0" * 24 + b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", "", Format.ODS),
        (b"PK\x03\x04", "", Format.XLSX),
        (b"x\n", "x.anvl", Format.ANVL),
    ],
)
def test_the_format_is_found_from_content_and_name(sample: bytes, name: str, expected: Format) -> None:
    assert detect_format(sample, name) is expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"handle,URL\n", ReadOptions(sheet="Maps"), "Files in the format csv have no sheets."),
        (b"{}\n", ReadOptions(delimiter=";"), "Files in the format jsonl have no delimiter."),
        (b"{}\n", ReadOptions(encoding="cp1252"), "The encoding of files in the format jsonl cannot be chosen."),
        (b"{}\n", ReadOptions(columns={"a": "URL"}), "Files in the format jsonl have no columns that can be mapped."),
    ],
)
def test_options_that_have_no_effect_are_refused(text: bytes, options: ReadOptions, message: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        open_rows(io.BytesIO(text), "", options)
    assert (caught.value.problem.rule, str(caught.value)) == ("unused-option", message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"handle": "1/a"}]', "The file is a JSON array."),
        (' [\n  {"handle": "1/a"}\n]', "The file is a JSON array."),
        ('{\n  "handle": "1/a"\n}\n', "The file is JSON with records on several lines."),
        ('\ufeff{"handle": "1/a"}\n'.encode("utf-16-le"), "The file is UTF-16."),
        ("\ufeffDELETE 1/a\n".encode("utf-16-be"), "The file is UTF-16."),
    ],
)
def test_files_that_are_nearly_readable_are_refused_as_what_they_are(text: str | bytes, message: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    name = "a.batch" if b"D" in data else "a.jsonl"
    with pytest.raises(InvalidFile) as caught:
        open_rows(io.BytesIO(data), name)
    assert str(caught.value) == message
    assert caught.value.problem.fix


def test_exchange_format_can_have_several_lines() -> None:
    assert detect_format(b'{\n  "homedPrefixes": []\n}\n', "old.json") is Format.EXCHANGE


@given(st.binary(max_size=200), st.sampled_from([None, *STARTS, Format.JDB]), st.booleans())
def test_arbitrary_bytes_give_rows_problems_or_a_refusal(data: bytes, format_: Format | None, mint: bool) -> None:
    options = ReadOptions(format=format_, mint=mint, prefix="12345")
    try:
        rows = list(open_rows(io.BytesIO(data), "", options))
    except InvalidFile:
        return
    assert all(isinstance(row, ImportRow | RowProblem) for row in rows)


def test_the_documented_limits_and_columns_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "import-formats.md").read_text(encoding="utf-8")
    section = text.partition("## Limits")[2]
    found = [int(number.replace(",", "")) for number in re.findall(r"\| ([0-9,]+) \|", section)]
    of_tables = (tables.MAX_COLUMNS, tables.MAX_NAME, tables.MAX_CELL, tables.MAX_ROW)
    limits = (jsonl.MAX_ITEMS, *of_tables, jsonl.MAX_LINE, batch.MAX_LINE)
    assert found == [*limits, sheets.MAX_SPREADSHEET, MAX_VALUES]
    words = {
        word for line in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for word in re.findall("`([^`]+)`", line)
    }
    assert words >= set(VALUE_COLUMNS) | {"handle", "url", "title", "state", "created", "updated", "owner"}
