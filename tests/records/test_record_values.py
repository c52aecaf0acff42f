"""Values: bytes, permissions, and times beyond 32 bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.binary import Reader
from perseid.records.encoding import from_iso, from_wire, to_iso, to_wire
from perseid.records.errors import InvalidData
from perseid.records.record import (
    DEFAULT_PERMISSIONS,
    HEAD,
    Permission,
    TtlType,
    Value,
    ValueRef,
    permissions_from_text,
    permissions_to_text,
)
from tests.record_strategies import NOWS, values
from tests.vector_files import Vector, fields, load, parameters

VECTOR_FILES = ("codec-values.json",)
NOW = 1_794_700_800


@pytest.mark.parametrize("vector", parameters("codec-values.json"))
def test_vector_of_a_value(vector: Vector) -> None:
    data = bytes.fromhex(vector["encoded_hex"])
    value = Value.from_bytes(data, NOW)
    assert value.to_bytes() == data
    expected = fields(vector)
    assert value.index == expected["v.index"]
    assert to_wire(value.timestamp) == expected["v.timestamp"]
    assert f"{value.ttl_type:d} ({value.ttl_type.name.lower()})" == expected["v.ttlType"]
    assert value.ttl == expected["v.ttl"]
    assert value.permissions == int(str(expected["v.permissions"]).split()[0], 16)
    assert value.type == expected["v.type"]
    assert expected["v.data"] in (value.data.hex(), value.data.decode("latin-1"))
    assert len(value.references) == expected["v.referenceCount"]
    for number, reference in enumerate(value.references):
        assert reference.handle == expected[f"v.reference[{number}].handle"]
        assert reference.index == expected[f"v.reference[{number}].index"]
    if "perm" in vector:
        assert permissions_to_text(value.permissions) == vector["perm"]
    if "value" in vector:
        source = vector["value"]
        assert value == Value(
            source["index"],
            source["type"],
            bytes.fromhex(source["data_hex"]),
            source["ttl"],
            TtlType(source["ttlType"]),
            permissions_from_text(source["perm"]),
            # one vector has -1 here and 4294967295 in its description: the same 32 bits
            from_wire(source["timestamp"] % (1 << 32), NOW),
            tuple([ValueRef.parse(reference) for reference in source["references"]]),
        )


def test_vectors_of_values_cover_every_permission() -> None:
    vectors = load("codec-values.json")
    assert len(vectors) == 21
    assert {vector["perm"] for vector in vectors if "perm" in vector} == {
        permissions_to_text(Permission(byte)) for byte in range(16)
    }


@pytest.mark.parametrize("now", NOWS)
@given(st.data())
def test_value_round_trips_through_bytes_at_any_time(now: int, data: st.DataObject) -> None:
    value = data.draw(values(now))
    raw = value.to_bytes()
    assert (Value.from_bytes(raw, now), value.size) == (value, len(raw))
    truncated = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(InvalidData):
        Value.from_bytes(truncated, now)
    with pytest.raises(InvalidData):
        Value.from_bytes(raw + b"\0", now)


@pytest.mark.parametrize("now", NOWS)
@given(data=st.binary(min_size=26, max_size=60))
def test_any_bytes_round_trip_or_are_refused(now: int, data: bytes) -> None:
    try:
        value = Value.from_bytes(data, now)
    except InvalidData:
        return
    assert value.to_bytes() == data


@pytest.mark.parametrize("now", NOWS)
@pytest.mark.parametrize("distance", [-(1 << 31), -1, 0, 1, (1 << 31) - 1])
def test_32_bits_are_the_instant_nearest_to_now(now: int, distance: int) -> None:
    assert from_wire(to_wire(now + distance), now) == now + distance


def test_32_bits_beyond_half_a_cycle_are_a_different_instant() -> None:
    now = NOWS[1]
    assert from_wire(to_wire(now + (1 << 31)), now) == now - (1 << 31)
    assert from_wire(0, now) == 0
    # 2106: its 32 bits are zero, which means "not set" on the wire
    assert from_wire(to_wire(1 << 32), NOWS[2]) == 0


def test_value_written_in_2039_has_the_correct_year() -> None:
    value = Value(1, "X", b"", timestamp=NOWS[1], ttl=NOWS[1] + 60, ttl_type=TtlType.ABSOLUTE)
    read = Value.from_bytes(value.to_bytes(), NOWS[1])
    assert to_iso(read.timestamp) == "2039-01-01T00:00:00Z"
    assert to_iso(read.ttl) == "2039-01-01T00:01:00Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2017-07-14T02:40:00Z", 1_500_000_000),
        ("2017-07-14T02:40:00.999Z", 1_500_000_000),
        ("2017-07-14T04:40:00+02:00", 1_500_000_000),
        ("2017-07-14 02:40", 1_500_000_000),
        ("20170714T024000", 1_500_000_000),
        ("2017-07-14", 1_499_990_400),
        ("1969-12-31T23:59:59.5Z", -1),
        ("9999-12-31T23:59:59Z", 253_402_300_799),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140),
    ],
)
def test_iso_times_are_parsed_in_every_form(text: str, seconds: int) -> None:
    assert from_iso(text) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "2017-13-01", "2017-07-14T25:00Z", "3600", "\ud800", "٢٠١٧-07-14"])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidData, match="ISO 8601"):
        from_iso(text)


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_every_second_of_ten_thousand_years_round_trips(instant: int) -> None:
    assert from_iso(to_iso(instant)) == instant


@pytest.mark.parametrize(("text", "bits"), [("rwr-", 0x0E), ("1110", 0x0E), ("*", 0x0F), ("rw--", 0x0C), ("0001", 1)])
def test_permissions_are_letters_or_digits(text: str, bits: int) -> None:
    assert permissions_from_text(text) == bits
    assert permissions_from_text(permissions_to_text(Permission(bits))) == bits


@pytest.mark.parametrize("text", ["", "rwr", "rwr--", "wrwr", "1112", "****", "r w-"])
def test_invalid_permissions_are_refused(text: str) -> None:
    with pytest.raises(InvalidData, match="four characters"):
        permissions_from_text(text)


def test_defaults_of_a_value_match_deployed_tools() -> None:
    value = Value.text(1, "URL", "x")
    assert (value.ttl, value.ttl_type, value.permissions, value.timestamp) == (86_400, 0, DEFAULT_PERMISSIONS, 0)
    assert value.is_public
    assert value.with_timestamp(5).timestamp == 5


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("300:0.NA/12345", ValueRef(300, "0.NA/12345")),
        ("0.NA/12345", ValueRef(0, "0.NA/12345")),
        ("a/b:c", ValueRef(0, "a/b:c")),
        ("2147483647:x", ValueRef(2_147_483_647, "x")),
        ("7:8:x", ValueRef(7, "8:x")),
    ],
)
def test_identities_are_written_as_index_and_handle(text: str, ref: ValueRef) -> None:
    assert ValueRef.parse(text) == ref


@pytest.mark.parametrize("text", ["", "300:", "2147483648:x", "9" * 5_000 + ":x", "00000000300:x"])
def test_invalid_identities_are_refused(text: str) -> None:
    with pytest.raises(InvalidData):
        ValueRef.parse(text)


@given(data=st.binary(max_size=8), length=st.integers(-9, 9), tail=st.binary(max_size=2))
def test_stored_value_is_read_like_one_of_a_message(data: bytes, length: int, tail: bytes) -> None:
    """The usual values are decoded faster, and refused alike."""
    whole = HEAD.pack(1, 5, 0, 60, 2, 3) + b"URL" + length.to_bytes(4, "big", signed=True) + data + bytes(4) + tail
    reader = Reader(whole)
    try:
        expected = Value.read(reader, NOW)
        reader.finish()
    except InvalidData:
        with pytest.raises(InvalidData):
            Value.from_bytes(whole, NOW)
    else:
        assert Value.from_bytes(whole, NOW) == expected
