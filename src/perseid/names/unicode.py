"""Unicode's normal form C, from the table shipped with the package.

Many letters can be written in two ways: é is one character, or an e and an accent. The two look alike and are different
names (H5 folds ASCII letters and nothing else). In normal form C everything is put together that can be, so that there
is one way; a namespace may demand it.

The table is that of one Unicode version, never the interpreter's, so that a name has the same form on every machine.
It knows the Basic Multilingual Plane, which names are made of; a character from beyond stays as it is.
"""

from collections.abc import Iterator
from functools import cache

from ._unicode_normal import CLASSES, COMPOSED, REPLACED

_ALWAYS_NORMAL = 0x300  # below it nothing is taken apart or put together, unless something from above follows

# Hangul syllables are made of two or three letters by arithmetic (The Unicode Standard, 3.12).
_SYLLABLES, _LEADS, _VOWELS, _TRAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
_VOWEL_COUNT, _TRAIL_COUNT = 21, 28
_LEAD_COUNT = 19
_SYLLABLE_COUNT = _LEAD_COUNT * _VOWEL_COUNT * _TRAIL_COUNT


def nfc(text: str) -> str:
    """The text in normal form C."""
    if all(ord(character) < _ALWAYS_NORMAL for character in text):
        return text
    return "".join(_together(_ordered(text)))


def _ordered(text: str) -> list[str]:
    """Everything taken apart, and the signs behind each letter in the order of their classes."""
    classes = _classes()
    done: list[str] = []
    waiting: list[str] = []
    for character in text:
        for part in _apart(character):
            if classes.get(part, 0):
                waiting.append(part)
                continue
            done += sorted(waiting, key=classes.__getitem__)  # those of one class stay as they came
            waiting = []
            done.append(part)
    return done + sorted(waiting, key=classes.__getitem__)


def _apart(character: str) -> Iterator[str]:
    """What a character is made of, down to what cannot be taken apart."""
    syllable = ord(character) - _SYLLABLES
    if 0 <= syllable < _SYLLABLE_COUNT:
        yield chr(_LEADS + syllable // (_VOWEL_COUNT * _TRAIL_COUNT))
        yield chr(_VOWELS + syllable % (_VOWEL_COUNT * _TRAIL_COUNT) // _TRAIL_COUNT)
        if trail := syllable % _TRAIL_COUNT:
            yield chr(_TRAILS + trail)
        return
    parts = _parts().get(character)
    if parts is None:
        yield character
        return
    for part in parts:
        yield from _apart(part)


def _together(parts: list[str]) -> list[str]:
    """Each letter with the signs behind it that have a character in common with it."""
    classes = _classes()
    done: list[str] = []
    letter: int | None = None  # where the last letter stands
    blocked = -1  # the class of what stands between, which a sign of the same class cannot pass
    for part in parts:
        class_ = classes.get(part, 0)
        if letter is not None and (blocked < class_ or blocked == -1):
            one = _one(done[letter], part)
            if one is not None:
                done[letter] = one
                continue
        if not class_:
            letter, blocked = len(done), -1
        else:
            blocked = class_
        done.append(part)
    return done


def _one(first: str, second: str) -> str | None:
    """The character that two make; None if there is none."""
    lead, vowel = ord(first) - _LEADS, ord(second) - _VOWELS
    if 0 <= lead < _LEAD_COUNT and 0 <= vowel < _VOWEL_COUNT:
        return chr(_SYLLABLES + (lead * _VOWEL_COUNT + vowel) * _TRAIL_COUNT)
    syllable, trail = ord(first) - _SYLLABLES, ord(second) - _TRAILS
    if 0 <= syllable < _SYLLABLE_COUNT and syllable % _TRAIL_COUNT == 0 and 0 < trail < _TRAIL_COUNT:
        return chr(ord(first) + trail)
    return _composites().get((first, second))


@cache
def _classes() -> dict[str, int]:
    """The combining class of each character that has one; made on first use, as the other tables are."""
    return {
        chr(code_point): class_
        for class_, ranges in CLASSES.items()
        for first, last in ranges
        for code_point in range(first, last + 1)
    }


@cache
def _parts() -> dict[str, str]:
    """What characters are made of."""
    return dict(_read(COMPOSED)) | dict(_read(REPLACED))


@cache
def _composites() -> dict[tuple[str, str], str]:
    """What pairs of characters make."""
    return {(parts[0], parts[1]): character for character, parts in _read(COMPOSED)}


def _read(table: str) -> Iterator[tuple[str, str]]:
    for line in table.split("\n"):
        for item in filter(None, line.split(" ")):
            character, _, parts = item.partition("=")
            yield _character(character), "".join(map(_character, parts.split("+")))


def _character(digits: str) -> str:
    return chr(int.from_bytes(bytes.fromhex(digits.zfill(6)), "big"))
