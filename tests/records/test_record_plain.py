"""Plain JSON objects: limits and type checks."""

import time
from collections.abc import Callable

import pytest

from perseid.records.encoding import (
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_ITEMS,
    check_bounds,
    decode_printable,
    from_base64,
    from_json,
    json_type_name,
    parse_json,
    require_bool,
    require_int,
    require_list,
    require_object,
    require_text,
    to_base64,
    to_json,
    write_json,
)
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.record import ValueRef, ref_from_json, ref_from_text


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_nesting_depth_is_limited() -> None:
    assert parse_json(nested(MAX_JSON_DEPTH)) is not None
    for depth in (MAX_JSON_DEPTH + 1, 1_000, 1_000_000):
        with pytest.raises(InvalidData, match="nested more than 16 levels deep"):
            parse_json(nested(depth))
    with pytest.raises(InvalidData, match="nested more than 16 levels deep"):
        parse_json('{"a":' * 17 + "1" + "}" * 17)


def test_length_is_limited() -> None:
    longest = '"' + "x" * (MAX_JSON_BYTES - 2) + '"'
    assert parse_json(longest) == "x" * (MAX_JSON_BYTES - 2)
    for text in (longest + " ", '"' + "é" * (MAX_JSON_BYTES // 2) + '"'):
        with pytest.raises(InvalidData, match="the JSON has 4,194,30"):
            parse_json(text)


def test_number_of_items_is_limited() -> None:
    check_bounds([None] * (MAX_JSON_ITEMS - 1))
    with pytest.raises(InvalidData, match=r"^the JSON has more than 2,097,152 items$"):
        check_bounds([None] * MAX_JSON_ITEMS)


def test_longest_json_is_parsed_in_seconds() -> None:
    text = "[" + "1," * (MAX_JSON_BYTES // 2 - 2) + "1]"
    started = time.process_time()
    parse_json(text)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", "{'a':1}", "nul", "1 2", '"\\ud800"', '"\ud800"', b'"\xff"', b"\xff", "\ufeff{}", "NaN"]
)
def test_invalid_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidData):
        parse_json(text)


def test_json_is_compact_and_in_order() -> None:
    assert write_json({"b": [1, True, None], "a": "é"}) == '{"b":[1,true,null],"a":"é"}'
    with pytest.raises(RecordMisuse, match=r"^the text contains a surrogate and cannot be encoded in UTF-8$"):
        write_json("\ud800")


@pytest.mark.parametrize(
    ("call", "wrong", "message"),
    [
        (require_object, [], "the part must be a JSON object, not an array"),
        (require_object, None, "the part must be a JSON object, not null"),
        (require_list, {}, "the part must be a JSON array, not an object"),
        (require_list, [1, None], "the part contains null; remove it, or a trailing comma"),
        (require_text, 1, "the part must be a string, not a number"),
        (require_text, "x\ud800", r"the part contains a surrogate \(character 2\)"),
        (require_bool, "true", "the part must be true or false, not a string"),
        (require_bool, 1, "the part must be true or false, not a number"),
        (require_int, True, "the part must be an integer, not true"),
        (require_int, "secret", "the part must be an integer, not a string"),
        (require_int, 1 << 31, "the part must be between -2147483648 and 2147483647"),
        (require_int, 1e300, "the part must be an integer"),
        (require_int, "--1", "the part must be an integer"),
    ],
)
def test_error_names_the_part_and_the_reason_but_not_the_content(
    call: Callable[[object, str], object], wrong: object, message: str
) -> None:
    with pytest.raises(InvalidData, match=message):
        call(wrong, "the part")


def test_integers_are_accepted_in_the_forms_of_clients() -> None:
    assert [require_int(number, "x") for number in (5, "5", "-5", 5.9, -5.9, "007")] == [5, 5, -5, 5, -5, 7]


def test_json_types_have_names() -> None:
    plain: list[object] = [None, True, False, 1, 1.5, "x", [], {}]
    assert [json_type_name(one) for one in plain] == [
        *("null", "true", "false", "a number", "a number", "a string", "an array", "an object")
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"\t\n\r\x13", "\t\n\r\x13"),
        ("\u0080\u009f".encode(), "\u0080\u009f"),
        (b"\x08", None),
        (b"\x14", None),
        (b"\x1f", None),
        (b"\x7f", None),
        (b"\0", None),
        (b"\xff", None),
        (b"\xed\xa0\x80", None),
    ],
)
def test_printable_text_is_decoded(data: bytes, text: str | None) -> None:
    assert decode_printable(data) == text


def test_bytes_are_written_as_string_or_base64() -> None:
    assert to_json("é\0".encode()) == "é\0"
    assert to_json(b"\xff") == {"format": "base64", "value": "/w=="}
    for data in (b"", b"x", b"\xff", bytes(range(256))):
        assert from_json(to_json(data), "x") == data
        assert from_base64(to_base64(data), "x") == data


def test_value_references_require_index_and_handle_in_text_and_json() -> None:
    assert ref_from_text("300:0.NA/1") == ValueRef(300, "0.NA/1")
    assert ref_from_json({"handle": "0.NA/1", "index": "300"}, "x") == ValueRef(300, "0.NA/1")
    for text in ("", "x", ":x", "1", "1.5:x", "99999999999:x", "2147483648:x", "1:\ud800", "\uff11:x"):
        with pytest.raises(InvalidData):
            ref_from_text(text)
