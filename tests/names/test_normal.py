"""Normalization form C according to the pinned Unicode data; a namespace can require it of names."""

import unicodedata2
from hypothesis import given
from hypothesis import strategies as st

import unicode_table
from perseid.names._unicode_normal import CLASSES
from perseid.names.unicode import nfc
from tests.strategies import BMP

# Characters that decompose, compose or are reordered are drawn much more often than by an even choice.
_AFFECTED = [
    character
    for character in BMP
    if unicodedata2.combining(character) or unicodedata2.normalize("NFD", character) != character
]
_LETTERS = sorted({unicodedata2.normalize("NFD", character)[0] for character in _AFFECTED})
_HANGUL = [chr(code_point) for code_point in (*range(0x1100, 0x1200), 0xAC00, 0xAC01, 0xAC1B, 0xAC1C, 0xD7A3)]
TEXTS = st.lists(st.sampled_from(_AFFECTED) | st.sampled_from(_LETTERS) | st.sampled_from(_HANGUL), max_size=8).map(
    "".join
)


def test_table_matches_the_pinned_unicode_data() -> None:
    assert unicode_table.NORMAL.read_text() == unicode_table.normal()
    assert 0 not in CLASSES


def test_every_character_is_normalized_as_unicode_specifies() -> None:
    characters = [character for character in BMP if not 0xD800 <= ord(character) < 0xE000]
    assert [c for c in characters if nfc(c) != unicodedata2.normalize("NFC", c)] == []


def test_every_decomposed_character_is_composed() -> None:
    decomposed = [unicodedata2.normalize("NFD", character) for character in BMP]
    assert [text for text in decomposed if nfc(text) != unicodedata2.normalize("NFC", text)] == []


@given(TEXTS)
def test_every_text_is_normalized_as_unicode_specifies(text: str) -> None:
    assert nfc(text) == unicodedata2.normalize("NFC", text)


@given(TEXTS, TEXTS)
def test_prefix_and_suffix_are_normalized_independently(prefix: str, suffix: str) -> None:
    """A slash composes with no character, so the suffix can be checked alone."""
    assert nfc(f"{prefix}/{suffix}") == f"{nfc(prefix)}/{nfc(suffix)}"


@given(TEXTS)
def test_normalizing_twice_changes_nothing(text: str) -> None:
    assert nfc(nfc(text)) == nfc(text)


def test_characters_outside_the_first_plane_are_unchanged() -> None:
    assert nfc("\U00011099\U000110ba") == "\U00011099\U000110ba"
    assert nfc("\U0001f600e\u0301") == "\U0001f600\u00e9"
    assert nfc("\ufacf") == "\U0002284a", "a few characters of the plane are replaced by one beyond it"
