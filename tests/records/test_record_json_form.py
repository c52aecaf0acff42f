"""Values and records as JSON: exact round trips, and every form that clients send."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.encoding import parse_json, write_json
from perseid.records.errors import InvalidData
from perseid.records.json_form import (
    record_from_json,
    record_to_json,
    value_from_json,
    value_to_json,
    values_from_json,
)
from perseid.records.record import MAX_VALUES, Permission, Record, TtlType, Value, ValueRef
from tests.record_strategies import NOWS, plain_objects, records, values
from tests.vector_files import load, read_bytes

URL = {"index": 1, "type": "URL", "data": {"format": "string", "value": "https://example.org/"}}


def changed_url(**changes: object) -> dict[str, Any]:
    return URL | changes


def data_of(plain: object) -> bytes:
    return value_from_json(changed_url(data=plain)).data


@pytest.mark.parametrize("now", NOWS)
@given(st.data())
def test_every_value_round_trips_through_json(now: int, data: st.DataObject) -> None:
    value = data.draw(values(now))
    plain = value_to_json(value)
    assert value_from_json(plain) == value
    assert value_from_json(parse_json(write_json(plain))) == value


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_instants_outside_the_calendar_round_trip(timestamp: int, expiry: int) -> None:
    value = Value(1, "X", b"", timestamp=timestamp, ttl=expiry, ttl_type=TtlType.ABSOLUTE)
    assert value_from_json(parse_json(write_json(value_to_json(value)))) == value


@given(records())
def test_every_record_round_trips_through_json(record: Record) -> None:
    assert record_from_json(record_to_json(record)) == record
    assert record_from_json(parse_json(write_json(record_to_json(record)))) == record
    assert values_from_json(record_to_json(record)) == record.values


def test_record_has_the_deployed_form() -> None:
    value = Value(
        1,
        "URL",
        b"https://example.com/",
        timestamp=1_500_000_000,
        references=(ValueRef(2, "12345/y"),),
        permissions=Permission(0x0C),
    )
    assert write_json(record_to_json(Record(Handle("12345", "x"), (value,)))) == (
        '{"handle":"12345/x","values":[{"index":1,"type":"URL","data":{"format":"string",'
        '"value":"https://example.com/"},"permissions":"1100","ttl":86400,"timestamp":"2017-07-14T02:40:00Z",'
        '"references":[{"handle":"12345/y","index":2}]}]}'
    )


def test_default_members_are_omitted() -> None:
    assert value_to_json(Value.text(1, "URL", "https://example.org/")) == URL | {"ttl": 86_400}
    assert record_to_json(Record(Handle("1", "x"))) == {"handle": "1/x", "values": []}


def test_unusual_permissions_and_times_have_extended_forms() -> None:
    assert value_to_json(Value(1, "X", b"", permissions=Permission(0xAE)))["permissions"] == "10101110"
    assert value_to_json(Value(1, "X", b"", permissions=Permission(0x1E)))["permissions"] == "00011110"
    odd = value_to_json(Value(1, "X", b"", ttl=-1, ttl_type=TtlType(7)))
    assert (odd["ttl"], odd["ttlType"]) == (-1, 7)
    far = value_to_json(Value(1, "X", b"", ttl=1 << 40, ttl_type=TtlType.ABSOLUTE, timestamp=1 << 40))
    assert (far["ttl"], far["ttlType"], far["timestamp"]) == (1 << 40, 1, 1 << 40)


@pytest.mark.parametrize(
    ("type_", "data", "written"),
    [
        ("URL", b"", {"format": "string", "value": ""}),
        ("URL", "é\t\n\x13\u0080".encode(), {"format": "string", "value": "é\t\n\x13\u0080"}),
        ("URL", b"\0\xff", {"format": "base64", "value": "AP8="}),
        ("URL", b"\x08", {"format": "base64", "value": "CA=="}),
        ("URL", b"\x14", {"format": "base64", "value": "FA=="}),
        ("URL", b"\x7f", {"format": "base64", "value": "fw=="}),
        ("URL", b"\xed\xa0\x80", {"format": "base64", "value": "7aCA"}),
        ("hs_admin.x", Admin(ValueRef(2, "a"), AdminPermission(1)).to_bytes(), None),
        ("HS_ADMIN", b"none", {"format": "string", "value": "none"}),
        ("HS_VLIST", bytes(4), {"format": "vlist", "value": []}),
        ("HS_NA_DELEGATE", b"\0\1\2\x0b\0\1\0\2" + bytes(12), None),
        ("HS_SITE.6", b"\0\1\2\x0b\0\1\0\2" + bytes(12), None),
        ("HS_PUBKEY", read_bytes("keys/rsapub.bin"), None),
        ("HS_SERV", b"0.NA/0.NA", {"format": "string", "value": "0.NA/0.NA"}),
        ("HS_SECKEY", b"open", {"format": "string", "value": "open"}),
        ("10320/loc", b"<locations/>", {"format": "string", "value": "<locations/>"}),
    ],
)
def test_data_has_the_format_of_its_type(type_: str, data: bytes, written: object) -> None:
    plain: Any = value_to_json(Value(1, type_, data))["data"]
    if written is None:
        formats = {"hs_admin.x": "admin", "HS_NA_DELEGATE": "site", "HS_SITE.6": "site", "HS_PUBKEY": "key"}
        assert plain["format"] == formats[type_]
    else:
        assert plain == written
    assert data_of(plain) == data


def test_key_that_would_not_round_trip_is_written_in_base64() -> None:
    data = read_bytes("keys/rsapub.bin")
    assert value_to_json(Value(1, "HS_PUBKEY", data))["data"]["format"] == "key"  # type: ignore[index]
    dh = bytes.fromhex(next(v["encoded_hex"] for v in load("codec-records.json") if v["name"] == "hs-pubkey-dh"))
    for odd in (data[:-4], data + b"\0", data[:15] + b"\1" + data[16:], dh):
        plain = value_to_json(Value(1, "HS_PUBKEY", odd))
        assert plain["data"]["format"] == "base64"  # type: ignore[index]
        assert value_from_json(plain).data == odd


@pytest.mark.parametrize(
    ("argument", "data"),
    [
        ("bare", b"bare"),
        ("", b""),
        (12.5, b"12.5"),
        (7, b"7"),
        (True, b"true"),
        (False, b"false"),
        ({"format": "STRING", "value": "x"}, b"x"),
        ({"format": "string", "value": 12.5}, b"12.5"),
        ({"format": "hex", "value": "00Ff"}, b"\0\xff"),
        ({"format": "BASE64", "value": "-_8"}, b"\xfb\xff"),
        ({"format": "base64", "value": "+/8="}, b"\xfb\xff"),
        ({"format": "base64", "value": "+/\n8= "}, b"\xfb\xff"),
        ({"format": "base64", "value": ""}, b""),
        ({"format": "vlist", "value": []}, bytes(4)),
    ],
)
def test_data_is_read_in_every_format_for_every_type(argument: object, data: bytes) -> None:
    assert data_of(argument) == data


@pytest.mark.parametrize(
    "argument",
    [
        None,
        [],
        {},
        {"format": "string"},
        {"value": "x"},
        {"format": None, "value": "x"},
        {"format": "rot13", "value": "x"},
        {"format": "string", "value": None},
        {"format": "string", "value": "\ud800"},
        {"format": "hex", "value": "0"},
        {"format": "hex", "value": "0g"},
        {"format": "hex", "value": "00 ff"},
        {"format": "base64", "value": "!!"},
        {"format": "base64", "value": "A"},
        {"format": "base64", "value": "é"},
        {"format": "base64", "value": "AA=A"},
        {"format": "admin", "value": {}},
        {"format": "vlist", "value": {}},
        {"format": "site", "value": {}},
        {"format": "key", "value": {}},
        10**400,
    ],
)
def test_invalid_data_is_refused(argument: object) -> None:
    with pytest.raises(InvalidData):
        data_of(argument)


@pytest.mark.parametrize(
    ("argument", "bits"),
    [
        ("1110", 0x0E),
        ("0110", 0x06),  # the deployed reader would return 1110
        ("1100", 0x0C),
        ("*", 0x0F),
        ("01", 0x0D),
        ("1", 0x0F),
        ("", 0x0E),
        ("000", 0x08),
        ("10000", 0x00),
        ("00011110", 0x1E),
        ("100011110", 0x0E),
        ("11110000", 0xF0),
        ("1111111100001110", 0x0E),
        ("1x10", 0x0A),
        ("rw--", 0x0C),
        ("rwrw", 0x0F),
        (1110, 0x0E),
        (110, 0x0E),
        (0, 0x0E),
        (1, 0x0F),
    ],
)
def test_permissions_are_read_as_digits_from_the_right(argument: object, bits: int) -> None:
    assert value_from_json(changed_url(permissions=argument)).permissions == bits


@pytest.mark.parametrize(
    ("argument", "ttl", "ttl_type"),
    [
        (3600, 3600, TtlType.RELATIVE),
        ("3600", 3600, TtlType.RELATIVE),
        (0, 0, TtlType.RELATIVE),
        (-1, -1, TtlType.RELATIVE),
        (1.9, 1, TtlType.RELATIVE),
        ("2030-01-01T02:00:00.500+02:00", 1_893_456_000, TtlType.ABSOLUTE),
        ("2040-01-01T00:00:00Z", 2_208_988_800, TtlType.ABSOLUTE),
    ],
)
def test_ttl_is_seconds_or_an_instant(argument: object, ttl: int, ttl_type: TtlType) -> None:
    value = value_from_json(changed_url(ttl=argument))
    assert (value.ttl, value.ttl_type) == (ttl, ttl_type)


@pytest.mark.parametrize(
    "changes",
    [
        {"index": None},
        {"index": "x"},
        {"index": 1 << 31},
        {"index": True},
        {"index": float("nan")},
        {"index": float("inf")},
        {"index": "9" * 5_000},
        {"index": "१"},
        {"type": None},
        {"type": 1},
        {"type": "\ud800"},
        {"permissions": None},
        {"permissions": True},
        {"permissions": -1},
        {"permissions": 10**5_000},
        {"ttl": None},
        {"ttl": 1 << 31},
        {"ttl": "soon"},
        {"ttl": "2147483648"},
        {"ttl": []},
        {"ttl": 1 << 40, "ttlType": 7},
        {"ttl": "x", "ttlType": 1},
        {"ttl": 1, "ttlType": 256},
        {"timestamp": None},
        {"timestamp": "yesterday"},
        {"timestamp": {}},
        {"timestamp": 1 << 63},
        {"references": None},
        {"references": [None]},
        {"references": [{"handle": "x"}]},
    ],
)
def test_invalid_values_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidData):
        value_from_json(changed_url(**changes))


def test_nesting_depth_is_limited() -> None:
    deep: object = []
    for _ in range(14):
        deep = [deep]
    read: list[Callable[[object], object]] = [value_from_json, values_from_json]
    for call in read:
        assert call(changed_url(more=deep))
        with pytest.raises(InvalidData, match=r"^the JSON is nested more than 16 levels deep$"):
            call(changed_url(more=[deep]))
    record = {"handle": "1/x", "values": []}
    assert record_from_json(record | {"more": deep}).values == ()
    with pytest.raises(InvalidData, match=r"^the JSON is nested more than 16 levels deep$"):
        record_from_json(record | {"more": [deep]})


@pytest.mark.parametrize("missing", ["index", "type", "data"])
def test_index_type_and_data_are_required(missing: str) -> None:
    with pytest.raises(InvalidData, match=f'no "{missing}"'):
        value_from_json({name: plain for name, plain in URL.items() if name != missing})


def test_lenient_forms_from_clients_are_accepted() -> None:
    value = value_from_json(
        {"index": "5", "type": "T", "data": "bare", "timestamp": "2001-01-01T00:00:00.123+01:00", "more": [None]}
    )
    assert value == Value(5, "T", b"bare", timestamp=978_303_600)
    assert value_from_json(changed_url(index=7.9)).index == 7
    assert value_from_json(changed_url(timestamp=5)).timestamp == 5
    # not validated here: existing records must pass
    assert value_from_json(changed_url(index=-5)).index == -5


@pytest.mark.parametrize("plain", [{"values": [URL]}, [URL], URL, {"values": [URL], "handle": "1/x", "x": 1}])
def test_values_are_accepted_in_three_forms(plain: object) -> None:
    assert [value.index for value in values_from_json(plain)] == [1]


@pytest.mark.parametrize("plain", [None, "x", {}, {"values": {}}, {"values": [None]}, {"index": 1, "type": "URL"}])
def test_invalid_submissions_are_refused(plain: object) -> None:
    with pytest.raises(InvalidData):
        values_from_json(plain)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        {"values": []},
        {"handle": "1/x"},
        {"handle": "no slash", "values": []},
        {"handle": "1/", "values": []},
        {"handle": "1/" + "x" * 2_047, "values": []},
        {"handle": "1/\ud800", "values": []},
        {"handle": "1/x", "values": [URL, URL]},
    ],
)
def test_invalid_records_are_refused(plain: object) -> None:
    with pytest.raises(InvalidData):
        record_from_json(plain)


def test_record_from_another_server_is_unchanged() -> None:
    # two dots, a control character: this name cannot be registered here, but it exists elsewhere
    assert str(record_from_json({"handle": "1..2/a\x01 ", "values": []}).handle) == "1..2/a\x01 "


def test_number_of_values_is_limited() -> None:
    too_many = [changed_url(index=index) for index in range(1, MAX_VALUES + 2)]
    assert len(values_from_json(too_many[1:])) == MAX_VALUES
    with pytest.raises(InvalidData, match="2,049 values; the maximum"):
        values_from_json(too_many)


def test_data_length_is_limited() -> None:
    value = Value(1, "X", b"\xff" * 1_048_576)
    assert value_from_json(parse_json(write_json(value_to_json(value)))) == value
    with pytest.raises(InvalidData, match=r"^the data has 1,048,57[78] bytes; the maximum is 1,048,576$"):
        data_of("x" * 1_048_577)
    with pytest.raises(InvalidData, match=r"^the data has 1,048,57[78] bytes; the maximum is 1,048,576$"):
        data_of({"format": "base64", "value": "A" * (1_048_576 // 3 * 4 + 4)})
    with pytest.raises(InvalidData, match=r"^the data has 1,048,57[78] bytes; the maximum is 1,048,576$"):
        data_of({"format": "hex", "value": "00" * 1_048_577})


@given(plain_objects)
def test_any_json_is_converted_or_refused(plain: object) -> None:
    for read, write in ((value_from_json, value_to_json), (record_from_json, record_to_json)):
        try:
            found: Any = read(plain)
        except InvalidData:
            continue
        assert read(write(found)) == found
    with suppress(InvalidData):
        values_from_json(plain)


@given(st.binary(max_size=60) | st.text(st.characters(), max_size=60))
def test_any_text_is_a_record_or_refused(text: str | bytes) -> None:
    with suppress(InvalidData):
        record_from_json(parse_json(text))


def test_recorded_http_put_returns_the_recorded_response() -> None:
    # put-formats and get-formats of the recorded HTTP exchanges, without timestamps
    put = parse_json(
        '{"handle": "20.500.99999/VEC-H-W", "values": [{"index": 100, "type": "HS_ADMIN", "data": {"format": "admin",'
        ' "value": {"handle": "0.NA/20.500.99999", "index": "200", "permissions": "*"}}}, {"index": "5", "type": "T",'
        ' "data": "bare", "ttl": "2030-01-01T02:00:00.500+02:00"}, {"index": 1, "type": "T", "data": 12.5}, {"index":'
        ' 2, "type": "T", "data": {"format": "hex", "value": "00ff"}}, {"index": 3, "type": "T", "data": {"format":'
        ' "BASE64", "value": "-_8"}}, {"index": 4, "type": "T", "data": {"format": "hex", "value": "41090a0d13"}},'
        ' {"index": 6, "type": "T", "data": "", "permissions": "*", "timestamp": "2001-01-01T00:00:00Z"}]}'
    )
    got = parse_json(
        '[{"index":100,"type":"HS_ADMIN","data":{"format":"admin","value":{"handle":"0.NA/20.500.99999","index":200,'
        '"permissions":"111111111111"}},"ttl":86400},{"index":5,"type":"T","data":{"format":"string","value":"bare"},'
        '"ttl":"2030-01-01T00:00:00Z"},{"index":1,"type":"T","data":{"format":"string","value":"12.5"},"ttl":86400},'
        '{"index":2,"type":"T","data":{"format":"base64","value":"AP8="},"ttl":86400},{"index":3,"type":"T","data":'
        '{"format":"base64","value":"+/8="},"ttl":86400},{"index":4,"type":"T","data":{"format":"string","value":'
        '"A\\t\\n\\r\\u0013"},"ttl":86400},{"index":6,"type":"T","data":{"format":"string","value":""},'
        '"permissions":"1111","ttl":86400}]'
    )
    assert [value_to_json(value.with_timestamp(0)) for value in record_from_json(put).values] == got
