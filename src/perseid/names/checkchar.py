"""Base 31 in the PILIN alphabet (P2), and a check character over it.

The check character of a body d₁…dₙ is the digit (1·d₁ + 2·d₂ + … + n·dₙ) mod 31. Since 31 is prime, every
single wrong character and every swap of two characters, neighbours or not, the check character included, changes
the sum, as long as no position reaches 30: a body has at most 29 characters.
"""

from .errors import InvalidName, NameMisuse, show

ALPHABET = "0123456789BCDFGHJKLMNPQRSTVWXYZ"
"""The PILIN digits by value: no vowel, so no accidental words (P2, P4)."""

BASE = len(ALPHABET)
VALUES = {spelling: value for value, letter in enumerate(ALPHABET) for spelling in (letter, letter.lower())}
"""The value of each digit, in either case."""

LOOKALIKES = {"O": "0", "o": "0", "I": "1", "i": "1", "l": "1"}
"""Letters that people write and read for digits; none is ever read so silently (P7)."""

MAX_BODY = 29
"""The longest body (without its check character) in which every swap is detected."""


def check_character(body: str) -> str:
    """The check character of a body written in the PILIN alphabet, in either case."""
    if len(body) > MAX_BODY:
        message = f"a check character serves at most {MAX_BODY} characters, not {len(body)}"
        raise NameMisuse("P4", message)
    return ALPHABET[sum(place * value for place, value in enumerate(values(body), 1)) % BASE]


def has_valid_check(text: str) -> bool:
    """Whether the last character is the check character of the others."""
    # By value, not by str.upper: that also makes an S of a letter outside ASCII.
    return VALUES.get(text[-1:]) == VALUES[check_character(text[:-1])]


def values(text: str) -> list[int]:
    """The digits' values; a foreign letter is named (P7)."""
    try:
        return [VALUES[letter] for letter in text]
    except KeyError:
        raise foreign_letter(text) from None


def wrong_check(text: str) -> InvalidName:
    """The objection to a text whose check character does not fit."""
    message = "the check character does not fit: one character is wrong, or two are swapped"
    return InvalidName("P7", message, position=len(text) - 1, character=text[-1])


def foreign_letter(text: str) -> InvalidName:
    """The objection to the first character of `text` that is not in the alphabet (P7)."""
    position, letter = next((i, c) for i, c in enumerate(text) if c not in VALUES)
    digit = LOOKALIKES.get(letter)
    hint = f"; did you mean the digit {digit}?" if digit else f": it has only {ALPHABET}"
    message = f"{show(letter)} is not in the PILIN alphabet{hint}"
    return InvalidName("P7", message, position=position, character=letter)
