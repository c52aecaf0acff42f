"""Records: ordered, frozen, unique indexes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.record import (
    MAX_VALUES,
    Permission,
    Record,
    Value,
    ascending,
    select,
    values_from_bytes,
    values_to_bytes,
)
from tests.record_strategies import NOWS, records, values

HANDLE = Handle.parse("20.500.99999/vec-std")
URL = Value.text(1, "URL", "https://example.org/a")
US = Value.text(2, "URL.us", "https://us.example.org/a")
EMAIL = Value.text(4, "EMAIL", "a@example.org")
NOTE = Value(50, "NOTE", b"admins only", permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)
RECORD = Record(HANDLE, (EMAIL, US, NOTE, URL))


def test_values_are_found_by_index() -> None:
    assert RECORD.value(50) is NOTE
    assert RECORD.value(3) is None
    assert list(RECORD) == [EMAIL, US, NOTE, URL]


@pytest.mark.parametrize(
    ("indexes", "types", "found"),
    [
        ([], [], (EMAIL, US, NOTE, URL)),
        ([1], [], (URL,)),
        ([], ["url"], (URL,)),
        ([], ["URL."], (US, URL)),
        ([4], ["URL"], (EMAIL, URL)),
        ([4, 4, 99], ["X"], (EMAIL,)),
        ([99], [], ()),
        ([], ["NOTHING"], ()),
        ([], [""], ()),
    ],
)
def test_query_finds_the_union_of_indexes_and_types(
    indexes: list[int], types: list[str], found: tuple[Value, ...]
) -> None:
    assert RECORD.select(indexes, types) == found
    assert select(iter(RECORD.values), indexes, types) == found


def test_records_filter_by_visibility_and_sort_by_index() -> None:
    assert RECORD.public() == Record(HANDLE, (EMAIL, US, URL))
    assert RECORD.ascending().values == (URL, US, EMAIL, NOTE)
    assert ascending([]) == ()


def test_record_can_be_empty() -> None:
    empty = Record(HANDLE)
    assert bool(empty)
    assert empty.select() == ()
    assert empty.public() == empty.ascending() == empty


def test_duplicate_index_is_refused() -> None:
    duplicates = (URL, US, Value.text(1, "EMAIL", "x"))
    with pytest.raises(RecordMisuse, match="two values have index 1"):
        Record(HANDLE, duplicates)
    with pytest.raises(InvalidData, match="two values have index 1"):
        Record.from_untrusted(HANDLE, duplicates)


def test_number_of_values_is_limited() -> None:
    allowed = [Value(index, "X", b"") for index in range(MAX_VALUES)]
    assert Record.from_untrusted(HANDLE, allowed).value(MAX_VALUES - 1) is not None
    with pytest.raises(InvalidData, match="2,049 values; the maximum"):
        Record.from_untrusted(HANDLE, [*allowed, Value(-1, "X", b"")])


@given(records(), st.data())
def test_selected_values_are_in_the_order_of_the_record(record: Record, data: st.DataObject) -> None:
    known = [value.index for value in record.values]
    indexes = data.draw(st.lists(st.sampled_from(known) if known else st.integers(), max_size=3))
    types = [value.type for value in record.values][:1]
    found = record.select(indexes, types)
    assert [value for value in record.values if value in found] == list(found)
    assert all(value.index in indexes or value.type.upper() == types[0].upper() for value in found if indexes or types)


def test_records_and_values_are_frozen_and_equal_by_contents() -> None:
    assert Record(HANDLE, (URL,)) == Record(HANDLE, (Value.text(1, "URL", "https://example.org/a"),))
    assert len({RECORD, Record(HANDLE, RECORD.values), Record(HANDLE)}) == 2
    with pytest.raises(AttributeError):
        RECORD.values = ()  # type: ignore[misc]


def test_repr_hides_values_that_are_not_public() -> None:
    secret = Value(301, "HS_SECKEY", b"opensesame")
    shown = repr(Record(HANDLE, (NOTE, secret, URL)))
    assert "admins only" not in shown
    assert "opensesame" not in shown
    assert "<10 bytes>" in shown
    assert "https://example.org/a" in shown


@pytest.mark.parametrize("now", NOWS)
@given(st.data())
def test_value_files_round_trip(now: int, data: st.DataObject) -> None:
    file_values = tuple(data.draw(st.lists(values(now), max_size=3)))
    raw = values_to_bytes(file_values)
    assert values_from_bytes(raw, now) == file_values
    for wrong in (raw[:-1], raw + b"\0", b"\xff" * 4 + raw[4:]):
        with pytest.raises(InvalidData):
            values_from_bytes(wrong, now)
