"""One script or several, as the pinned Unicode data has it, on every machine; a namespace may demand one of names."""

import pytest
from fontTools.unicodedata import script_extension
from hypothesis import given
from hypothesis import strategies as st

import unicode_table
from perseid.names.unicode import MixedScripts, find_mixed_scripts, get_scripts
from tests.strategies import BMP, LEGAL

_SYSTEMS = {"Hanb", "Jpan", "Kore"}


def test_the_table_is_what_the_pinned_unicode_data_gives() -> None:
    assert unicode_table.SCRIPTS.read_text() == unicode_table.scripts()


def test_data_of_another_version_makes_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unicode_table, "getsource", lambda _: "# Scripts-17.0.0.txt")
    with pytest.raises(ValueError, match="is not of Unicode"):
        unicode_table.scripts()


def test_each_legal_character_goes_with_the_scripts_that_unicode_says() -> None:
    wrong = []
    for character in LEGAL:
        said, found = script_extension(character), get_scripts(character)
        if said & {"Zyyy", "Zinh"}:
            said = None
        if (None if found is None else found - _SYSTEMS) != said:
            wrong.append(character)
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-07",
        "paypal",
        "паспорт",
        "Ελλάδα-7",
        "東京タワーへ",  # Japanese is written in three scripts
        "漢字ㄅㄆ",
        "한국漢字",
        "e\u0301",  # an accent goes with what stands before it
        "a\u200bb",
        "\ue000\ue001",
        "カタカナひらがなー",
    ],
    ids=ascii,
)
def test_what_is_written_in_one_script(text: str) -> None:
    assert find_mixed_scripts(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("p\u0430ypal", MixedScripts(1, "Cyrillic", "Latin")),
        ("\u0437\u043d\u0430t", MixedScripts(3, "Latin", "Cyrillic")),
        ("2024-\u03b1-b", MixedScripts(7, "Latin", "Greek")),
        ("ㄅあ", MixedScripts(1, "Hiragana", "Bopomofo")),
        ("한あ", MixedScripts(1, "Hiragana", "Hangul")),
        ("漢あ한", MixedScripts(2, "Hangul", "Japanese")),
        ("a\ue000", MixedScripts(1, "Unknown", "Latin")),
        ("\u0915\u0301", MixedScripts(1, "Cherokee", "Devanagari")),
    ],
    ids=ascii,
)
def test_where_scripts_are_mixed_the_place_and_both_are_told(text: str, found: MixedScripts) -> None:
    assert find_mixed_scripts(text) == found


@given(st.text(BMP, max_size=8))
def test_a_text_is_mixed_exactly_when_no_script_goes_with_all_of_it(text: str) -> None:
    sets = [scripts for character in text if (scripts := get_scripts(character)) is not None]
    found = find_mixed_scripts(text)
    assert (found is not None) == (bool(sets) and not frozenset.intersection(*sets))
    if found is not None:
        assert find_mixed_scripts(text[: found.position]) is None
