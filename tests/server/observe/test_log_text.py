"""Untrusted data becomes printable text within its limit, and can be read back."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.observe.logs import ELLIPSIS, MAX_TEXT, decode_text, escape_text, format_field, format_json

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)
ANY_OCTETS = st.binary(max_size=80)


def unescaped(shown: str) -> bytes:
    """The bytes of an escaped field."""

    def character(found: re.Match[str]) -> str:
        short, number = found["short"], int(found["number"] or "0", 16)
        if short:
            return {"n": "\n", "r": "\r", "t": "\t"}.get(short, short)
        return chr(number + 0xDC00) if found["octet"] and number >= 0x80 else chr(number)

    inner = shown[1:-1] if shown.startswith('"') else shown
    pattern = r'\\(?:(?P<short>[nrt"\\])|(?:(?P<octet>x)|u|U)(?P<number>(?<=x)..|(?<=u).{4}|(?<=U).{8}))'
    return re.sub(pattern, character, inner).encode("utf-8", "surrogateescape")


@given(ANY_TEXT, st.integers(8, 400))
def test_any_text_becomes_printable_and_stays_within_its_limit(text: str, limit: int) -> None:
    for shown in (escape_text(text, limit), format_field(text, limit), format_json(text, limit)):
        assert shown.isprintable()
        assert len(shown.encode()) <= limit


@given(ANY_OCTETS)
def test_field_that_is_not_truncated_is_lossless(raw: bytes) -> None:
    assert unescaped(format_field(decode_text(raw), 10_000)) == raw


@given(ANY_TEXT)
def test_json_text_is_lossless(text: str) -> None:
    written = format_json(text, 10_000)
    assert written.isascii()
    json.loads(written).encode("utf-8")  # no surrogates, which strict readers refuse
    if not re.search("[\ud800-\udfff]", text):
        assert json.loads(written) == text


@given(ANY_TEXT, st.integers(8, 100))
def test_truncated_json_is_valid(text: str, limit: int) -> None:
    found = json.loads(format_json(text, limit))
    assert found.removesuffix(ELLIPSIS) in found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.1/abc", "10.1/abc"),
        ("", '""'),
        ("a b", '"a b"'),
        ('say "x"\\', '"say \\"x\\"\\\\"'),
        ("a\r\n\tb", '"a\\r\\n\\tb"'),
        ("\x1b[31mred", '"\\x1b[31mred"'),
        ("\x7f", '"\\x7f"'),
        ("a\u202eb\u2028c\x85\xa0", '"a\\u202eb\\u2028c\\u0085\\u00a0"'),
        ("\U000e0001", '"\\U000e0001"'),
        ("Zürich", '"Zürich"'),
        ("x" * 600, '"' + "x" * (MAX_TEXT - 5) + '…"'),
    ],
)
def test_field_is_quoted_and_escaped_if_necessary(text: str, shown: str) -> None:
    assert format_field(text) == shown


def test_invalid_utf8_is_shown_as_bytes() -> None:
    assert format_field(decode_text(b"10.1/\xff\xfe")) == '"10.1/\\xff\\xfe"'
    assert json.loads(format_json(decode_text(b"10.1/\xff"))) == "10.1/\\xff"
    assert format_json("\x7f") == '"\\u007f"'


def test_long_message_is_truncated() -> None:
    assert escape_text('nothing to escape: \\ and "') == 'nothing to escape: \\ and "'
    assert escape_text("ä" * 1000, 20) == "ä" * 8 + ELLIPSIS
    assert escape_text("ä" * 10, 20) == "ä" * 10
