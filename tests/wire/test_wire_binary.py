"""The bounded reader and its writer."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.binary import MAX_BYTES, MAX_DEPTH, Reader, Writer
from perseid.records.errors import InvalidData, RecordMisuse, RecordProblem
from tests.wire.strategies import BYTES, EXAMPLES, I16, I32, I64, TEXTS, U8

_SIZES = {"u8": 1, "i16": 2, "i32": 4, "u32": 4, "i64": 8}


@EXAMPLES
@given(U8, I16, I32, I64, BYTES, TEXTS, st.integers(0, 0xFFFF_FFFF))
def test_writer_and_reader_round_trip(u8: int, i16: int, i32: int, i64: int, data: bytes, text: str, u32: int) -> None:
    writer = Writer().u8(u8).i16(i16).i32(i32).i64(i64).bytes_(data).text(text).u32(u32).raw(data)
    reader = Reader(writer.getvalue())
    assert reader.peek() == u8
    assert (reader.u8(), reader.i16(), reader.i32(), reader.i64()) == (u8, i16, i32, i64)
    assert (reader.bytes_(), reader.text(), reader.u32()) == (data, text, u32)
    assert reader.remaining == len(data)
    assert reader.rest() == data
    assert reader.offset == len(writer)
    reader.finish()


def test_integers_are_big_endian_and_signed() -> None:
    reader = Reader(bytes.fromhex("ff fffe 01020304 fffffffd 80000000 ffffffffffffffff"))
    assert [reader.u8(), reader.i16(), reader.i32(), reader.i32(), reader.u32(), reader.i64()] == [
        255,
        -2,
        0x01020304,
        -3,
        0x8000_0000,
        -1,
    ]


@pytest.mark.parametrize("method", _SIZES)
def test_truncated_number_is_refused_with_its_position(method: str) -> None:
    size = _SIZES[method]
    reader = Reader(bytes(3 + size - 1))
    reader.raw(3)
    with pytest.raises(InvalidData, match=f"{size} bytes required, {size - 1} left") as caught:
        getattr(reader, method)()
    assert caught.value.offset == 3


def test_peeking_at_the_end_is_refused() -> None:
    with pytest.raises(InvalidData):
        Reader(b"").peek()


@pytest.mark.parametrize("length", [-1, -0x8000_0000, MAX_BYTES + 1, 0x7FFF_FFFF])
def test_length_outside_the_limits_is_refused_before_reading(length: int) -> None:
    with pytest.raises(InvalidData, match="is not between 0 and"):
        Reader(Writer().i32(length).getvalue()).bytes_()


def test_byte_string_length_is_limited_for_reading_and_writing() -> None:
    longest = bytes(MAX_BYTES)
    written = Writer().bytes_(longest).getvalue()
    assert Reader(written).bytes_() == longest
    with pytest.raises(RecordMisuse, match="is too long"):
        Writer().bytes_(longest + b"\0")
    with pytest.raises(InvalidData):
        Reader((MAX_BYTES + 1).to_bytes(4, "big") + longest + b"\0").bytes_()


def test_smaller_limit_of_the_caller_applies() -> None:
    written = Writer().bytes_(b"12345").getvalue()
    assert Reader(written).bytes_(5) == b"12345"
    with pytest.raises(InvalidData, match="not between 0 and 4"):
        Reader(written).bytes_(4)


def test_string_longer_than_the_remaining_bytes_is_refused() -> None:
    with pytest.raises(InvalidData, match="5 bytes required, 4 left"):
        Reader(Writer().i32(5).raw(b"1234").getvalue()).bytes_()


def test_count_larger_than_the_remaining_bytes_is_refused_at_once() -> None:
    data = Writer().i32(3).raw(bytes(24)).getvalue()
    assert Reader(data).count(8) == 3
    with pytest.raises(InvalidData, match="a count of 3 items exceeds the 24 bytes left"):
        Reader(data).count(9)
    with pytest.raises(InvalidData, match="a count of -1"):
        Reader(Writer().i32(-1).getvalue()).count(1)
    with pytest.raises(InvalidData, match="not between 0 and 2"):
        Reader(data).count(8, 2)


def test_invalid_utf_8_is_not_read_and_lone_surrogate_is_not_written() -> None:
    with pytest.raises(InvalidData, match="not valid UTF-8"):
        Reader(Writer().bytes_(b"ab\xff").getvalue()).text()
    with pytest.raises(RecordMisuse, match=r"^the text contains a surrogate and cannot be encoded in UTF-8$"):
        Writer().text("\ud800")


def test_trailing_bytes_are_refused_when_the_structure_must_end() -> None:
    reader = Reader(b"12")
    reader.u8()
    with pytest.raises(InvalidData, match="1 trailing bytes") as caught:
        reader.finish()
    assert caught.value.offset == 1


def test_inner_reader_ends_with_its_structure_and_the_outer_continues() -> None:
    outer = Reader(b"abcdef")
    outer.u8()
    inner = outer.inner(3)
    assert inner.raw(3) == b"bcd"
    with pytest.raises(InvalidData):
        inner.u8()
    assert outer.rest() == b"ef"
    with pytest.raises(InvalidData):
        Reader(b"ab").inner(3)
    with pytest.raises(InvalidData):
        Reader(b"ab").inner(-1)


def test_nesting_is_limited_to_sixteen_levels() -> None:
    reader = Reader(b"x")
    for _ in range(MAX_DEPTH):
        reader = reader.inner(1)
    assert MAX_DEPTH == 16
    with pytest.raises(InvalidData, match="nested more than 16 levels deep"):
        reader.inner(1)


@pytest.mark.parametrize(
    ("write", "smallest", "greatest"),
    [
        (Writer.u8, 0, 0xFF),
        (Writer.i16, -0x8000, 0x7FFF),
        (Writer.i32, -0x8000_0000, 0x7FFF_FFFF),
        (Writer.i64, -(1 << 63), (1 << 63) - 1),
    ],
)
def test_number_out_of_range_is_not_written(
    write: Callable[[Writer, int], Writer], smallest: int, greatest: int
) -> None:
    write(Writer(), smallest)
    write(Writer(), greatest)
    for wrong in (smallest - 1, greatest + 1):
        with pytest.raises(RecordMisuse, match="does not fit"):
            write(Writer(), wrong)


def test_times_are_written_modulo_2_to_the_32() -> None:
    assert Writer().u32((1 << 32) + 5).u32(-1).getvalue() == bytes.fromhex("00000005ffffffff")


@EXAMPLES
@given(st.binary(max_size=30), st.lists(st.sampled_from([*_SIZES, "bytes_", "text", "peek", "rest"]), max_size=8))
def test_reading_arbitrary_bytes_returns_a_value_or_raises(data: bytes, methods: list[str]) -> None:
    reader = Reader(data)
    for method in methods:
        before, offset = reader.offset, None
        try:
            getattr(reader, method)()
        except InvalidData as problem:
            offset = problem.offset
            assert offset is not None, "the place is always known"
        assert before <= (reader.offset if offset is None else offset) <= len(data)


def test_error_base_class_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match=r"^raise InvalidData or RecordMisuse instead$"):
        RecordProblem("neither")
    assert str(InvalidData("no")) == "no"
    assert str(InvalidData("no", 3)) == "at byte 3: no"
    assert str(RecordMisuse("no")) == "no"
