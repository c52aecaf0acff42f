"""Titles: which values of a record are titles of what it identifies, and their words for searches.

A title is a value of the type `TITLE`, plain, after `DC.` or `DATACITE.`, or as the suffix of a registered
type (`12345/TITLE`). Without one, a description serves as title. Citations and the index of title words share these
rules.

The words of a title are compared without case and accents: `Straße, Åre` has the words `strasse` and `are`. They are
stored in an index, so they must not depend on the Unicode version of an interpreter: characters are decomposed and
classified by Unicode 3.2, which Python keeps, and folded, which later versions never change. A character that is newer
is kept as a letter.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeVar
from unicodedata import ucd_3_2_0

from perseid.names.handle import Handle, fold

TITLES: Final = ("TITLE",)
DESCRIPTIONS: Final = ("DESC", "DESCRIPTION", "ABSTRACT")
"""Types by meaning; earlier ones take precedence."""
TITLE_KEYWORDS: Final = (*TITLES, *DESCRIPTIONS)
"""Without a title, the description serves as title."""

MIN_WORD: Final = 2
"""Letters and digits of the shortest word: single ones are in most titles and find nothing in particular."""
MAX_WORD: Final = 32
"""Letters and digits of a word that count. Longer words are text without spaces, and nobody types more of them."""
MAX_WORDS: Final = 32
"""Words of a title that count. Each has a row in the index; hardly any title is longer, but descriptions are."""
MAX_TITLE: Final = 1_024
"""Characters of a title that are read: enough for its words, in limited time however large the value is."""

_ENDINGS: Final = tuple([keyword.lower().encode() for keyword in TITLE_KEYWORDS])  # a quick check
_VOCABULARIES: Final = ("DC.", "DCTERMS.", "DATACITE.")
_CACHED_TYPES: Final = 1_024  # more types than records of one installation have
_CACHED_CHARACTERS: Final = 4_096
_SOFT_HYPHEN: Final = "\xad"  # a dash in Unicode 3.2, invisible since
# Characters that a terminal or a citation reader would interpret instead of showing.
_BLANKS: Final = re.compile("[\x00-\x20\x7f-\x9f\u2028\u2029]+")
_BIDI_CONTROLS: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ASCII_WORD: Final = re.compile(f"[a-z0-9]{{{MIN_WORD},}}")

_T = TypeVar("_T")


def to_single_line(text: str) -> str:
    """Remove line ends, control characters and bidirectional marks from a text."""
    if not text.isprintable() or "  " in text:  # most texts are printable, which is found out faster
        text = _BLANKS.sub(" ", _BIDI_CONTROLS.sub("", text))
    return text.strip(" ")


def read_line(data: bytes) -> str | None:
    """Return the data of a value as one line; None if it is not UTF-8 or has no visible text."""
    try:
        return to_single_line(data.decode("utf-8")) or None
    except UnicodeDecodeError:
        return None


@lru_cache(_CACHED_TYPES)
def type_keyword(type_: str) -> str:
    """Return a type's keyword: its name without the prefix of a registry or vocabulary."""
    handle = Handle.for_lookup(type_)
    name = fold(type_ if handle is None else handle.suffix)
    for prefix in _VOCABULARIES:
        name = name.removeprefix(prefix)
    return name


def title_rank(type_: bytes) -> int | None:
    """Return the precedence of a lowercase type among those of titles, 0 first; None for other types."""
    if not type_.endswith(_ENDINGS):
        return None
    keyword = type_keyword(type_.decode("utf-8", "replace"))
    return TITLE_KEYWORDS.index(keyword) if keyword in TITLE_KEYWORDS else None


def select_titles(candidates: Iterable[tuple[int, bool, _T]]) -> list[_T]:
    """Return the titles among values with text, given by rank, whether everyone can read them, and value.

    These are the public values of the first rank that has any, and the private ones up to it: for those who can only
    read public values, a private title is not there, so what is a title for them is one for everybody.
    """
    ranked = sorted(candidates, key=lambda each: each[0])
    last = next((rank for rank, is_public, _ in ranked if is_public), len(TITLE_KEYWORDS))
    return [value for rank, _, value in ranked if rank <= last]


def find_words(text: str) -> list[str]:
    """Return the words of a title, in order, without case and accents."""
    text = text[:MAX_TITLE]
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
    else:
        folded = "".join(map(_fold_character, ucd_3_2_0.normalize("NFKD", text)))
        words = [word for word in folded.split(" ") if len(word) >= MIN_WORD]
    return [word[:MAX_WORD] for word in words[:MAX_WORDS]]


@lru_cache(_CACHED_CHARACTERS)
def _fold_character(character: str) -> str:
    """Return a character as it is compared: nothing for accents and invisible ones, a space between words."""
    category = ucd_3_2_0.category(character)
    if category == "Cf" or character == _SOFT_HYPHEN or ucd_3_2_0.combining(character):
        return ""
    if category == "Cn":
        return character  # newer than these tables
    return character.casefold() if category[0] in "LNM" else " "
