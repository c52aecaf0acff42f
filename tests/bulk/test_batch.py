"""Handle batch files: every operation and format is read, and records are written as far as the format allows."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk import batch
from perseid.bulk.batch import BLANKS, Loss, format_create
from perseid.bulk.formats import Format, InvalidFile, ReadOptions
from perseid.bulk.rows import open_rows
from perseid.cli._local_imports import _read_file
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.errors import InvalidData
from perseid.records.record import Permission, Record, TtlType, Value, ValueRef
from perseid.schema.imports import ImportRow, RowOperation
from tests.bulk.stored import problems, read, stored
from tests.record_strategies import I32, records

ALL = b"""AUTHENTICATE PUBKEY:300:0.NA/12345
keys/admpriv.bin|top secret

SESSIONSETUP
USESESSION:1
PASSPHRASE:top secret
OPTIONS:111

CREATE 12345/x
100 HS_ADMIN 86400 1110 ADMIN 300:111111111110:0.NA/12345
1 URL 86400 1100 UTF8  https://example.org/?a b \x20
2 HS_VLIST 60 rwr- LIST 300:12345/a;301:12345/b
3 EMAIL 86400 1110 utf8 @x

# a comment
create 12345/empty

ADD 12345/x
4 DESC 86400 1110 UTF8 base64:AAAA

MODIFY 12345/x
1 URL 86400 1110 UTF8 https://example.org/2
REMOVE 3, 4:12345/x
DELETE 12345/y

HOME 127.0.0.1:2641:TCP
0.NA/12345
0.NA/12346

UNHOME [::1]:2641:UDP
0.NA/12346
"""


def test_every_operation_is_read() -> None:
    reader = open_rows(io.BytesIO(ALL), "x.txt")
    assert reader.detected.format is Format.BATCH
    assert reader.detected.authentication == ("PUBKEY:300:0.NA/12345",)
    rows = list(reader)
    assert not problems(rows)
    assert [(row.line, row.operation, row.handle) for row in rows if isinstance(row, ImportRow)] == [
        (9, RowOperation.CREATE, "12345/x"),
        (16, RowOperation.CREATE, "12345/empty"),
        (18, RowOperation.ADD, "12345/x"),
        (21, RowOperation.MODIFY, "12345/x"),
        (23, RowOperation.REMOVE, "12345/x"),
        (24, RowOperation.DELETE, "12345/y"),
        (27, RowOperation.HOME, "0.NA/12345"),
        (28, RowOperation.HOME, "0.NA/12346"),
        (31, RowOperation.UNHOME, "0.NA/12346"),
    ]
    assert "secret" not in f"{reader.detected} {rows}"
    without_list = ALL_PERMISSIONS & ~AdminPermission.LIST_HANDLES
    assert stored(rows[0]) == (
        Value(100, "HS_ADMIN", Admin(ValueRef(300, "0.NA/12345"), without_list).to_bytes()),
        Value(1, "URL", b"https://example.org/?a b", permissions=Permission(0b1100)),
        Value(2, "HS_VLIST", ValueList((ValueRef(300, "12345/a"), ValueRef(301, "12345/b"))).to_bytes(), ttl=60),
        Value(3, "EMAIL", b"@x"),
    )
    assert stored(rows[2]) == (Value(4, "DESC", b"base64:AAAA"),)
    assert isinstance(rows[4], ImportRow)
    assert rows[4].indexes == (3, 4)


def test_files_are_read_only_for_a_caller_that_can() -> None:
    text = b"CREATE 1/a\n1 HS_PUBKEY 86400 1110 FILE key.bin\n2 HS_SITE 86400 1110 FILE site.json\n"
    assert problems(read(text)) == [(1, "invalid-value-line")]
    files = {"key.bin": b"\0\1", "site.json": b'{"version": 1, "servers": []}'}
    (row,) = open_rows(io.BytesIO(text), read_file=files.__getitem__)
    key, site = stored(row)
    assert key.data == b"\0\1"
    assert site.data[:2] == b"\0\1"
    for name in ("/nonexistent", "a\0b"):
        rows = open_rows(io.BytesIO(f"CREATE 1/a\n1 X 1 1110 FILE {name}\n".encode()), read_file=_read_file)
        assert problems([*rows]) == [(1, "invalid-value-line")]
    (row,) = open_rows(io.BytesIO(b"CREATE 1/a\n1 X 1 1110 FILE /dev/zero\n"), read_file=_read_file)
    with pytest.raises(InvalidData, match="maximum"):
        stored(row)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("NONSENSE 1/a", "unknown-operation"),
        ("DELETE", "missing-handle"),
        ("ADD 1/a", "missing-values"),
        ("REMOVE 1/a", "invalid-removal"),
        ("REMOVE 1,x:1/a", "invalid-removal"),
        ("CREATE 1/a\nnonsense", "invalid-value-line"),
        ("CREATE 1/a\n1 URL day 1110 UTF8 x", "invalid-value-line"),
        ("CREATE 1/a\n1 URL 1 2110 UTF8 x", "invalid-value-line"),
        ("CREATE 1/a\n1 URL 1 1110 HEX 00", "invalid-value-line"),
        ("CREATE 1/a\n1 HS_ADMIN 1 1110 ADMIN 300:1:1/a", "invalid-value-line"),
        ("CREATE 1/a\n1 HS_VLIST 1 1110 LIST 1/a", "invalid-value-line"),
        ("CREATE 1/a\n1 HS_VLIST 1 1110 LIST 9999999999:1/a", "invalid-value-line"),
        ("CREATE 1/a\n" + "1 URL 1 1110 UTF8 x\n" * 2_049, "too-many-values"),
    ],
)
def test_an_invalid_operation_is_a_problem_and_the_next_is_read(line: str, rule: str) -> None:
    rows = read(f"DELETE 1/first\n{line}\n\nDELETE 1/last\n".encode())
    assert [row.handle for row in rows if isinstance(row, ImportRow)] == ["1/first", "1/last"]
    assert [problem[1] for problem in problems(rows)] == [rule]


def test_a_record_that_is_too_large_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_RECORD", 100)
    lines = b"1 URL 1 1110 UTF8 " + b"x" * 40 + b"\n"
    rows = read(b"CREATE 1/a\n" + lines * 2 + b"\nCREATE 1/b\n" + lines + b"\n")
    assert [row.handle for row in rows if isinstance(row, ImportRow)] == ["1/b"]
    assert problems(rows) == [(1, "too-many-values")]


def test_what_is_not_a_batch_file_is_refused() -> None:
    for data, rule in [(b"DELETE \xff\n", "invalid-encoding"), (b"DELETE " + b"x" * 3_000_000, "line-too-long")]:
        with pytest.raises(InvalidFile) as caught:
            read(data)
        assert caught.value.problem.rule == rule
    with pytest.raises(InvalidFile):
        read(b"DELETE 1/a\n", ReadOptions(mint=True, prefix="1"))


@given(records())
def test_what_is_written_without_a_loss_is_read_exactly(record: Record) -> None:
    text, losses = format_create(str(record.handle), record.values)
    lost = {loss.index for loss in losses}
    kept = [Value(v.index, v.type, v.data, v.ttl, v.ttl_type, v.permissions) for v in record.values]
    if not text:
        assert lost == {0}
        return
    (row,) = read(text, ReadOptions(format=Format.BATCH))
    found = {value.index: value for value in stored(row)}
    omitted = {loss.index for loss in losses if loss.is_omitted}
    assert found.keys() == {value.index for value in kept} - omitted
    assert [found[value.index] for value in kept if value.index not in lost] == [v for v in kept if v.index not in lost]


LINES = st.text("ab :;/1é", max_size=9).map(lambda text: text.strip(BLANKS).encode())
USUAL = st.builds(Value, I32, st.sampled_from(["URL", "DESC", "x:y"]), LINES, I32)


@given(st.lists(USUAL, max_size=3, unique_by=lambda value: value.index))
def test_text_on_one_line_is_written(usual: list[Value]) -> None:
    text, losses = format_create("1/a", usual)
    assert losses == ()
    (row,) = read(text)
    assert stored(row) == tuple(usual)


def test_losses_are_reported() -> None:
    values_ = [
        Value(1, "URL", b"\xff"),
        Value(2, "URL", b"a\nb"),
        Value(3, "A B", b"x"),
        Value(4, "URL", b"x", 5, TtlType.ABSOLUTE),
        Value(5, "URL", b"x", references=(ValueRef(1, "1/a"),), permissions=Permission(0x1E)),
        Value(6, "HS_ADMIN", Admin(ValueRef(1, "1/a"), legacy_length=True).to_bytes()),
    ]
    text, losses = format_create("1/a", values_)
    assert text == b"CREATE 1/a\n5 URL 86400 1110 UTF8 x\n\n"
    assert [(loss.index, loss.is_omitted) for loss in losses] == [
        *((1, True), (2, True), (3, True), (4, True), (5, False), (6, True)),
    ]
    assert losses[4] == Loss("1/a", 5, "URL", "its references and unknown permissions", False)
    assert format_create(" 1/a", ())[1][0].is_omitted
