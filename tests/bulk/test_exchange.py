"""The exchange format, text dumps and JDB files of Handle servers."""

import hashlib
import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk import exchange, jsonl
from perseid.bulk.dumps import JDB_MARK
from perseid.bulk.exchange import ExchangeWriter
from perseid.bulk.formats import Format, InvalidFile
from perseid.bulk.rows import open_rows
from perseid.records.binary import Writer
from perseid.records.record import Record, Value
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from tests.bulk.stored import NOW, problems, read, stored
from tests.record_strategies import records

URL = Value.text(1, "URL", "https://example.org/")


@given(st.lists(records(), max_size=3), st.lists(st.text("0.NA/1é", min_size=1), max_size=2), st.integers(1, 100))
def test_every_record_survives_the_exchange_format(found: list[Record], prefixes: list[str], chunk: int) -> None:
    file = io.BytesIO()
    writer = ExchangeWriter(file, prefixes)
    for record in found:
        writer.write(str(record.handle), record.values)
    writer.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_CHUNK", chunk)
        rows = read(file.getvalue())
    assert [row.handle for row in rows if isinstance(row, ImportRow)] == [*prefixes, *[str(r.handle) for r in found]]
    first = max(2, len(prefixes) + 1)
    lines = [row.line for row in rows if isinstance(row, ImportRow)]
    assert lines == [*range(1, len(prefixes) + 1), *range(first, first + len(found))]
    assert [stored(row) for row in rows[len(prefixes) :]] == [record.values for record in found]


def test_records_of_other_writers_are_read() -> None:
    rows = read(
        b'\xef\xbb\xbf { "handleRecords" : {"1/A": {"responseCode": 1, "values": [{"index": 1, "type": "URL",'
        b'"data": "x"}]}, "1/B": {"values": 1}}, "version": 12, "homedPrefixes": ["0.NA/1"]}\n'
    )
    assert stored(rows[0]) == (Value.text(1, "URL", "x"),)
    assert problems(rows) == [(2, "invalid-record")]
    assert rows[2] == ImportRow(3, RowOperation.HOME, "0.NA/1")
    assert problems(read(b'{"homedPrefixes": [""]}')) == [(1, "missing-handle")]


@pytest.mark.parametrize(
    "text",
    [
        b'{"handleRecords": [',
        b'{"handleRecords": {"1/a": {"values": []}',
        b'{"handleRecords": {"1/a": {"values": []}}} x',
        b'{"handleRecords": {"1/a": {"values": []},}}',
        b'{"homedPrefixes": [1]}',
        b'{"homedPrefixes": ["a" "b"]}',
        b'{"handleRecords": {1: 2}}',
        b'{"handleRecords": {"a": \xff}}',
        b'{"handleRecords": {"a": ' + b"[" * 100_000,
        b'{"handleRecords": {"a": 1' + b"1" * 10_000 + b"}",
    ],
)
def test_what_is_not_the_exchange_format_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidFile) as caught:
        read(text)
    assert caught.value.problem.rule in ("invalid-json", "invalid-encoding")


def test_a_record_of_many_items_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_ITEMS", 500)
    text = b'{"handleRecords":{"1/x":{"values":[%b]}}}'
    value = b'{"index":1,"type":"DESC","data":"%b"}'
    (row,) = read(text % (value % (b'[{,\\"\\\\' * 500)))
    assert stored(row)[0].data == b'[{,"\\' * 500, "what is in strings does not count"
    for items in (b"[],", b"[[[[", b'{"a":'):
        with pytest.raises(InvalidFile, match="more than 500 items"):
            read(text % (items * 501))
    lines = b'{"handle":"1/x","values":[{"index":1,"type":"X","data":{"format":"x","value":[%b[]]}}]}' % (b"[]," * 500)
    assert problems(read(lines)) == [(1, "too-many-values")]


def test_items_of_the_records_that_follow_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_ITEMS", 100)
    record = b'"1/%d":{"values":[{"index":1,"type":"X","data":"]}[{\\"x"},{"index":2,"type":"X","data":"x"}]}'
    found = read(b'{"handleRecords":{%b},"version":1,"more":[]}' % b",".join([record % at for at in range(50)]))
    assert [len(stored(row)) for row in found] == [2] * 50


def test_a_record_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_LINE", 1_000_000)
    with pytest.raises(InvalidFile) as caught:
        read(b'{"handleRecords": {"a": "' + b"x" * 3_000_000)
    assert caught.value.problem.rule == "line-too-long"


# Dumps


def _encode(values: tuple[Value, ...]) -> bytes:
    writer = Writer().i32(len(values))
    for value in values:
        writer.bytes_(value.to_bytes())
    return writer.getvalue()


def _dump(*entries: tuple[bytes, bytes]) -> bytes:
    lines = [b"VERSION=3", b"format=bytevalue", b"type=btree", b"HEADER=END"]
    for key, data in entries:
        lines += [b" " + key.hex().encode(), b" " + data.hex().encode()]
    return b"\n".join([*lines, b"DATA=END", b""])


@given(st.lists(records(NOW), max_size=3))
def test_every_record_of_a_dump_is_read(found: list[Record]) -> None:
    rows = read(_dump(*[(str(record.handle).encode(), _encode(record.values)) for record in found]))
    assert [(row.handle, stored(row)) for row in rows if isinstance(row, ImportRow)] == [
        (str(record.handle), record.values) for record in found
    ]


def test_prefixes_of_a_dump_are_hosted_and_damage_is_reported() -> None:
    rows = read(
        _dump((b"0.NA/1", b""), (b"1/a", b"\0\0\0\1\0"), (b"\xff", _encode(())), (b"1/b", _encode((URL,))), (b"", b""))
    )
    assert rows[0] == ImportRow(5, RowOperation.HOME, "0.NA/1")
    assert problems(rows) == [(7, "invalid-record"), (9, "invalid-handle"), (13, "missing-handle")]
    assert stored(rows[3]) == (URL,)
    whole = _dump((b"1/b", _encode((URL,))))
    for cut in (b"DATA=END\n", b"HEADER=END\n"):
        with pytest.raises(InvalidFile):
            read(whole.replace(cut, b""), name="x.dump")
    with pytest.raises(InvalidFile):
        read(whole.replace(b" " + _encode((URL,)).hex().encode() + b"\n", b""))
    assert problems(read(whole.replace(b" 312f62", b" xx"))) == [(5, "invalid-dump")]


# JDB


def _bucket(key: bytes, size: int) -> int:
    return (int.from_bytes(hashlib.md5(key).digest()[-4:], "big") & 0x7FFF_FFFF) % size


def _jdb(entries: list[tuple[bytes, bytes]], size: int, *, misplaced: bool = False) -> bytes:
    """A JDB file with these records; each is the head of its chain."""
    heads = [0] * size
    start = len(JDB_MARK) + 4 + 8 * size
    blocks: list[bytes] = []

    def position(number: int) -> int:
        return start + 1024 * number

    for key, data in entries:
        bucket = (_bucket(key, size) + misplaced) % size
        payload = key + data
        long = 17 + len(payload) > 1024
        here, following = len(blocks), heads[bucket]
        head = struct.pack(">Biiq", 1, len(key), len(data), following)
        if long:
            head += struct.pack(">q", position(here + 1))
        blocks.append((head + payload[: 1024 - len(head)]).ljust(1024, b"\0"))
        payload = payload[1024 - len(head) :]
        while payload:
            more = struct.pack(">Bi", 2, len(payload))
            if 5 + len(payload) > 1024:
                more += struct.pack(">q", position(len(blocks) + 1))
            blocks.append((more + payload[: 1024 - len(more)]).ljust(1024, b"\0"))
            payload = payload[1024 - len(more) :]
        heads[bucket] = position(here)
    return JDB_MARK + struct.pack(">i", size) + struct.pack(f">{size}q", *heads) + b"".join(blocks)


@pytest.mark.parametrize("size", [1, 7, 5_000])
def test_records_of_every_length_are_read_from_a_jdb_file(size: int) -> None:
    lengths = [
        0,
        1,
        900,
        960,
        961,
        962,
        963,
        964,
        965,
        970,
        980,
        1_024,
        1_990,
        2_000,
        2_010,
        2_020,
        2_030,
        5_000,
        99_999,
    ]
    found = {f"1/{length}": (Value(1, "URL", b"x" * length),) for length in lengths}
    data = _jdb([(handle.encode(), _encode(values)) for handle, values in found.items()], size)
    reader = open_rows(io.BytesIO(data), now=NOW)
    assert reader.detected.format is Format.JDB
    assert {row.handle: stored(row) for row in reader if isinstance(row, ImportRow)} == found


def test_deleted_records_of_a_jdb_file_are_skipped_and_prefixes_hosted() -> None:
    assert read(_jdb([(b"1/a", _encode((URL,)))], 7, misplaced=True)) == []
    assert read(_jdb([(b"0.NA/1", b"")], 7)) == [ImportRow(1, RowOperation.HOME, "0.NA/1")]


def test_a_damaged_jdb_file_is_refused() -> None:
    data = _jdb([(b"1/a", b"x" * 5_000), (b"1/b", b"y")], 1)
    loop = bytearray(_jdb([(b"1/a", b"")], 1))
    start = len(JDB_MARK) + 4 + 8
    loop[start + 9 : start + 17] = struct.pack(">q", start)
    for damaged in (data[:-1024], data[:60], data[: start + 1024], bytes(loop), JDB_MARK + b"\0\0\0\0"):
        with pytest.raises(InvalidFile) as caught:
            read(damaged)
        assert caught.value.problem.rule == "invalid-jdb"


@given(st.binary(max_size=200), st.integers(0, 2_000), st.binary(max_size=20))
def test_arbitrary_bytes_in_a_jdb_file_are_no_crash(tail: bytes, at: int, patch: bytes) -> None:
    data = bytearray(_jdb([(b"1/a", _encode((URL,)) + tail * 9), (b"1/b", b"y")], 2))
    data[at : at + len(patch)] = patch
    try:
        rows = read(bytes(data), name="x.jdb")
    except InvalidFile:
        return
    assert all(isinstance(row, ImportRow | RowProblem) for row in rows)
