"""Types whose data is text."""

import pytest

from perseid.names.handle import Handle
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.types import Alias, Email, ServiceHandle, Text, Url


def test_text_is_the_same_in_every_form() -> None:
    url = Url.from_bytes("https://example.org/日本".encode())
    assert url.to_text() == url.to_json() == "https://example.org/日本"
    assert url == Url.from_text("https://example.org/日本") == Url.from_json("https://example.org/日本")
    assert url != Text("https://example.org/日本")
    assert Email("a@example.org") == Email.from_bytes(b"a@example.org")


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidData, match="at byte 1: the data is not valid UTF-8"):
        Url.from_bytes(b"a\xff")
    for call in (Url.from_text, Url.from_json):
        with pytest.raises(InvalidData, match="surrogate"):
            call("\ud800")
    with pytest.raises(RecordMisuse, match="surrogate"):
        Url("\ud800")
    with pytest.raises(InvalidData, match="not a number"):
        Url.from_json(1)


def test_references_to_handles_are_parsed_if_valid() -> None:
    assert ServiceHandle("0.NA/0.NA").handle == Handle("0.NA", "0.NA")
    assert Alias("12345/x").handle == Handle("12345", "x")
    assert Alias("no slash").handle is None
