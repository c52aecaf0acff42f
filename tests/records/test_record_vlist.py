"""HS_VLIST: groups of administrators."""

import pytest

from perseid.records.admin import ValueList
from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef

PAIR = ValueList((ValueRef(300, "0.NA/12345"), ValueRef(301, "0.NA/12345")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ValueList()),
        ("300:0.NA/12345,301:0.NA/12345", PAIR),
        ("0:", ValueList((ValueRef(0, ""),))),
        ("1:,2:", ValueList((ValueRef(1, ""), ValueRef(2, "")))),
        (r"1:a/b\,2:c", ValueList((ValueRef(1, "a/b,2:c"),))),
        (r"1:a\\,-2:b", ValueList((ValueRef(1, "a\\"), ValueRef(-2, "b")))),
        ("1:a/b:c", ValueList((ValueRef(1, "a/b:c"),))),
        ("1:a\n", ValueList((ValueRef(1, "a\n"),))),
    ],
)
def test_text_is_entries_separated_by_commas(text: str, found: ValueList) -> None:
    assert ValueList.from_text(text) == found
    assert found.to_text() == text


@pytest.mark.parametrize("text", [",", "1:a,", ",1:a", "1:a,b", "a", "1:a\\", "1:a,,2:b", "9999999999:a", "1:\ud800"])
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidData):
        ValueList.from_text(text)


def test_backslash_escapes_any_character() -> None:
    assert ValueList.from_text(r"1:\a\:") == ValueList((ValueRef(1, "a:"),))


def test_json_is_a_list_of_handles_and_indexes() -> None:
    plain = [{"handle": "0.NA/12345", "index": 300}, {"handle": "0.NA/12345", "index": 301}]
    assert PAIR.to_json() == plain
    assert ValueList.from_json([plain[0], {"index": "301", "handle": "0.NA/12345", "more": None}]) == PAIR


@pytest.mark.parametrize("plain", [None, {}, [None], [1], [{"handle": "x"}], [{"handle": "x", "index": 1}, None]])
def test_invalid_json_is_refused(plain: object) -> None:
    with pytest.raises(InvalidData):
        ValueList.from_json(plain)


def test_impossible_count_is_refused() -> None:
    for data in ("7fffffff", "ffffffff", "00000002 00000000 00000001"):
        with pytest.raises(InvalidData):
            ValueList.from_bytes(bytes.fromhex(data))
