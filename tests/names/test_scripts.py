"""Scripts of a text according to the pinned Unicode data; a namespace can require a single script."""

import pytest
from fontTools.unicodedata import script_extension
from hypothesis import given
from hypothesis import strategies as st

import unicode_table
from perseid.names.unicode import MixedScripts, find_mixed_scripts, get_scripts
from tests.strategies import BMP, LEGAL

_SYSTEMS = {"Hanb", "Jpan", "Kore"}


def test_table_matches_the_pinned_unicode_data() -> None:
    assert unicode_table.SCRIPTS.read_text() == unicode_table.scripts()


def test_data_of_another_unicode_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unicode_table, "getsource", lambda _: "# Scripts-17.0.0.txt")
    with pytest.raises(ValueError, match="is not of Unicode"):
        unicode_table.scripts()


def test_scripts_of_each_legal_character_match_unicode() -> None:
    wrong = []
    for character in LEGAL:
        expected, found = script_extension(character), get_scripts(character)
        if expected & {"Zyyy", "Zinh"}:
            expected = None
        if (None if found is None else found - _SYSTEMS) != expected:
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
        "東京タワーへ",  # Japanese uses three scripts
        "漢字ㄅㄆ",
        "한국漢字",
        "e\u0301",  # an accent combines with the preceding character
        "a\u200bb",
        "\ue000\ue001",
        "カタカナひらがなー",
    ],
    ids=ascii,
)
def test_single_script_text_is_accepted(text: str) -> None:
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
def test_mixed_scripts_are_reported_with_position_and_both_scripts(text: str, found: MixedScripts) -> None:
    assert find_mixed_scripts(text) == found


@given(st.text(BMP, max_size=8))
def test_text_is_mixed_exactly_when_its_characters_share_no_script(text: str) -> None:
    sets = [scripts for character in text if (scripts := get_scripts(character)) is not None]
    found = find_mixed_scripts(text)
    assert (found is not None) == (bool(sets) and not frozenset.intersection(*sets))
    if found is not None:
        assert find_mixed_scripts(text[: found.position]) is None
