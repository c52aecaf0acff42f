"""Normal form C, as the pinned Unicode data has it, on every machine; a namespace may demand it of names."""

import unicodedata2
from hypothesis import given
from hypothesis import strategies as st

import unicode_table
from perseid.names._unicode_normal import CLASSES
from perseid.names.unicode import nfc
from tests.strategies import BMP

# What is taken apart, put together or put in order comes up much more often than among 65,536 equals.
_MOVING = [
    character
    for character in BMP
    if unicodedata2.combining(character) or unicodedata2.normalize("NFD", character) != character
]
_LETTERS = sorted({unicodedata2.normalize("NFD", character)[0] for character in _MOVING})
_HANGUL = [chr(code_point) for code_point in (*range(0x1100, 0x1200), 0xAC00, 0xAC01, 0xAC1B, 0xAC1C, 0xD7A3)]
TEXTS = st.lists(st.sampled_from(_MOVING) | st.sampled_from(_LETTERS) | st.sampled_from(_HANGUL), max_size=8).map(
    "".join
)


def test_the_table_is_what_the_pinned_unicode_data_gives() -> None:
    assert unicode_table.NORMAL.read_text() == unicode_table.normal()
    assert 0 not in CLASSES


def test_every_character_has_the_form_that_unicode_gives_it() -> None:
    characters = [character for character in BMP if not 0xD800 <= ord(character) < 0xE000]
    assert [c for c in characters if nfc(c) != unicodedata2.normalize("NFC", c)] == []


def test_every_character_is_composed_again() -> None:
    apart = [unicodedata2.normalize("NFD", character) for character in BMP]
    assert [text for text in apart if nfc(text) != unicodedata2.normalize("NFC", text)] == []


@given(TEXTS)
def test_every_text_has_the_form_that_unicode_gives_it(text: str) -> None:
    assert nfc(text) == unicodedata2.normalize("NFC", text)


@given(TEXTS, TEXTS)
def test_the_form_of_a_name_is_that_of_its_parts(prefix: str, suffix: str) -> None:
    """A slash goes together with nothing, so the suffix can be judged alone."""
    assert nfc(f"{prefix}/{suffix}") == f"{nfc(prefix)}/{nfc(suffix)}"


@given(TEXTS)
def test_a_form_is_unchanged(text: str) -> None:
    assert nfc(nfc(text)) == nfc(text)


def test_what_is_beyond_the_plane_is_unchanged() -> None:
    assert nfc("\U00011099\U000110ba") == "\U00011099\U000110ba"
    assert nfc("\U0001f600e\u0301") == "\U0001f600\u00e9"
    assert nfc("\ufacf") == "\U0002284a", "a few characters of the plane are replaced by one beyond it"
