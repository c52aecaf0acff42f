"""Request bodies: lenient parsing, and errors that name the place."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.admin import Admin
from perseid.records.json_form import value_to_json
from perseid.records.record import MAX_VALUES, Permission, TtlType, Value
from perseid.server.http import responses
from perseid.server.http.messages import BadRequest, Request
from tests.record_strategies import NOWS, values

NOW = NOWS[0]
URL = {"index": 1, "type": "URL", "data": {"format": "string", "value": "https://example.org/"}}


def put(body: object, content_type: str | None = "application/json") -> Request:
    octets = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return Request("PUT", b"/", [] if content_type is None else [("content-type", content_type)], octets)


def read(body: object) -> responses.Submission:
    return responses.parse_submission(put(body))


def one(**members: object) -> Value:
    (value,) = read([URL | members]).values
    return value


def refusal(body: object, content_type: str | None = "application/json") -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        responses.parse_submission(put(body, content_type))
    return refused.value


# Forms


@pytest.mark.parametrize("body", [{"values": [URL]}, [URL], URL, {"responseCode": 1, "values": [URL], "x": [None]}])
def test_three_body_forms(body: object) -> None:
    assert read(body) == responses.Submission((Value.text(1, "URL", "https://example.org/"),))


def test_body_may_have_handle() -> None:
    assert read({"handle": "12345/x", "values": []}) == responses.Submission((), "12345/x")


@given(st.lists(values(NOW), max_size=3, unique_by=lambda value: value.index))
def test_round_trip(stored: list[Value]) -> None:
    """Except for negative TTLs, which records may have but clients may not send."""
    usual = tuple([replace(value, ttl=value.ttl & 0x7FFF_FFFF) if value.ttl_type == 0 else value for value in stored])
    assert read({"values": [value_to_json(value) for value in usual]}).values == usual


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"values": None}, '"values" must be an array of values; it is null'),
        ({"values": {}}, '"values" must be an array of values; it is an object'),
        ({}, '"values" must be an array of values; it is missing'),
        ({"index": 1, "type": "URL"}, "is missing"),
        (None, "not null"),
        ("1", "not a number"),
        ('"text"', "not a string"),
        ({"handle": 5, "values": []}, '"handle" must be a string'),
        ([URL, URL | {"index": 2, "ttl": None}], "value 2 (index 2): the TTL must be an integer, not null"),
        (
            [URL | {"permissions": None}],
            "value 1 (index 1): permissions as a number must be an integer, not null",
        ),
        ([URL | {"timestamp": None}], "value 1 (index 1): the timestamp must be an integer, not null"),
        ([URL | {"data": None}], "value 1 (index 1): the data must be an object or a string, not null"),
        ([{"index": 7, "data": "x"}], 'value 1 (index 7): a value has no "type"'),
        ([{"type": "URL", "data": "x"}], 'value 1: a value has no "index"'),
        ([{"index": 7, "type": "URL"}], 'value 1 (index 7): a value has no "data"'),
        ([URL | {"index": 2_147_483_648}], "must be between"),
        ([URL | {"index": True}], "must be an integer"),
        ([URL | {"index": "x"}], "must be an integer"),
        ([URL | {"timestamp": "yesterday"}], "not an ISO 8601 time"),
        ([URL | {"data": {"format": "hex", "value": "0"}}], "value 1 (index 1)"),
        ([URL | {"data": {"format": "base64", "value": "!!"}}], "value 1 (index 1)"),
        ([URL | {"data": {"format": "nope", "value": ""}}], "value 1 (index 1)"),
        ([URL | {"data": {"value": ""}}], 'the data has no "format"'),
        ([None], "value 1: a value must be a JSON object, not null"),
    ],
)
def test_errors_name_value_and_property(body: object, problem: str) -> None:
    refused = refusal(body if body is not None else "null")
    assert problem in refused.message
    assert (refused.status, refused.code, refused.echo_name) == (400, 4, False)


@pytest.mark.parametrize(
    "body",
    [
        "",
        " ",
        "{nope",
        '[{"index":1},]',
        "[] x",
        "[][]",
        "{'values':[]}",
        "/* */[]",
        "{values:[]}",
        "[NaN]",
        "\ufeff\ufeff[]",
    ],
)
def test_invalid_json_is_refused(body: str) -> None:
    assert "the body cannot be parsed" in refusal(body).message


def test_deep_nesting_is_refused() -> None:
    assert refusal("[" * 100_000).status == 400
    assert refusal('{"values":' + "[" * 50 + "]" * 50 + "}").status == 400


def test_too_many_values_are_refused() -> None:
    assert len(read([URL] * MAX_VALUES).values) == MAX_VALUES
    assert "too many values: 2,049" in refusal([URL] * (MAX_VALUES + 1)).message


# Lenient parsing


def test_numbers_may_be_text_and_fractions_are_cut() -> None:
    assert one(index="200").index == 200
    assert one(index=7.9).index == 7
    assert one(ttl="3600") == Value(1, "URL", b"https://example.org/", 3600)
    admin = {"format": "admin", "value": {"handle": "0.NA/12345", "index": "200", "permissions": "011111110011"}}
    assert Admin.from_bytes(one(type="HS_ADMIN", data=admin).data).administrator.index == 200


@pytest.mark.parametrize(("data", "octets"), [("bare", b"bare"), (12.5, b"12.5"), (True, b"true"), (7, b"7")])
def test_data_may_be_a_bare_value(data: object, octets: bytes) -> None:
    assert one(data=data).data == octets


def test_timestamp_may_have_any_zone() -> None:
    value = one(ttl="2030-01-01T02:00:00.500+02:00")
    assert (value.ttl, value.ttl_type) == (1_893_456_000, TtlType.ABSOLUTE)


@pytest.mark.parametrize(
    ("written", "meant"), [("0110", 0x06), ("1100", 0x0C), ("*", 0x0F), ("01", 0x0D), ("10000", 0x00), (1100, 0x0C)]
)
def test_permissions_as_binary_text(written: object, meant: int) -> None:
    assert one(permissions=written).permissions == Permission(meant)


# Media types and charsets


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_only_json_is_accepted(content_type: str | None) -> None:
    refused = refusal([URL], content_type)
    assert (refused.status, refused.code) == (415, 4)
    assert "application/json" in refused.message


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("Application/JSON", "utf-8"),
        ("application/json; charset=UTF-8", "utf-8"),
        ('application/json;Charset="utf-8"', "utf-8"),
        ("application/json; charset=ISO-8859-1", "latin-1"),
        ("application/json; charset=utf-16", "utf-16"),
        ("application/json; x=y ;charset=windows-1252; z", "cp1252"),
    ],
)
def test_charset_is_honored(content_type: str, encoding: str) -> None:
    body = json.dumps([URL | {"data": "dürr"}], ensure_ascii=False).encode(encoding)
    (value,) = responses.parse_submission(put(body, content_type)).values
    assert value.data.decode() == "dürr"


def test_byte_order_mark_is_skipped() -> None:
    assert read("\ufeff" + json.dumps([URL])).values


@pytest.mark.parametrize("charset", ["rot13", "zlib", "idna", "unicode_escape", "utf-7", "x" * 2_000])
def test_other_charsets_are_refused(charset: str) -> None:
    refused = refusal([URL], f"application/json; charset={charset}")
    assert refused.status == 415
    assert len(refused.message) < 200


def test_bytes_outside_charset_are_refused() -> None:
    assert "byte 2" in refusal(b'"\xff"', "application/json; charset=utf-8").message
    assert refusal(b'["\xff"]').status == 400


# Parameters of a POST that acts as a GET


def post(body: object, content_type: str) -> list[tuple[str, str]]:
    return list(responses.parse_parameters(put(body, content_type)))


def test_parameters_in_json_object() -> None:
    found = post({"index": [1, "2"], "type": "URL", "pretty": True, "x": 1.5}, "application/json")
    assert found == [("index", "1"), ("index", "2"), ("type", "URL"), ("pretty", "true"), ("x", "1.5")]


def test_parameters_in_form() -> None:
    assert post("index=1&type=a+b", "application/x-www-form-urlencoded; charset=x") == [("index", "1"), ("type", "a b")]


def test_other_bodies_have_no_parameters() -> None:
    assert post("index=1", "text/plain") == []
    assert post(b"", "application/json") == []


@pytest.mark.parametrize("body", ["[]", "5", "null", '{"a":{}}', '{"a":null}', '{"a":[[]]}', '{"a":[null]}', "{"])
def test_invalid_parameter_body_is_refused(body: str) -> None:
    with pytest.raises(BadRequest) as refused:
        post(body, "application/json")
    assert refused.value.status == 400
