"""Unicode normalization form C and detection of mixed scripts, for namespaces that require them.

Both use tables of one Unicode version shipped with the package, never the interpreter's, so that results are the same
on every machine. The tables cover the Basic Multilingual Plane; other characters stay unchanged.

NFC: é can be one character, or an e and an accent, which look alike but are different names (H5 folds only ASCII).

Mixed scripts: Latin U+0061 and Cyrillic U+0430 look alike. A text has a single script (UTS #39 §5.1) if its
characters have a script in common; digits and punctuation belong to all scripts, and the scripts of Chinese, Japanese
and Korean count as one each.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from ._unicode_normal import CLASSES, COMPOSED, REPLACED
from ._unicode_scripts import CHARACTERS, SCRIPT_NAMES

_ALWAYS_NORMAL = 0x300  # text without characters from here on is already in NFC

# Hangul syllables are composed of two or three letters by arithmetic (The Unicode Standard, 3.12).
_SYLLABLES, _LEADS, _VOWELS, _TRAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
_VOWEL_COUNT, _TRAIL_COUNT = 21, 28
_LEAD_COUNT = 19
_SYLLABLE_COUNT = _LEAD_COUNT * _VOWEL_COUNT * _TRAIL_COUNT


def nfc(text: str) -> str:
    """Convert text to normalization form C."""
    if all(ord(character) < _ALWAYS_NORMAL for character in text):
        return text
    return "".join(_compose(_decompose(text)))


def _decompose(text: str) -> list[str]:
    """Decompose everything, and sort the combining marks after each starter by class."""
    classes = _combining_classes()
    result: list[str] = []
    pending: list[str] = []
    for character in text:
        for part in _decompose_character(character):
            if classes.get(part, 0):
                pending.append(part)
                continue
            result += sorted(pending, key=classes.__getitem__)  # stable: marks of one class keep their order
            pending = []
            result.append(part)
    return result + sorted(pending, key=classes.__getitem__)


def _decompose_character(character: str) -> Iterator[str]:
    syllable = ord(character) - _SYLLABLES
    if 0 <= syllable < _SYLLABLE_COUNT:
        yield chr(_LEADS + syllable // (_VOWEL_COUNT * _TRAIL_COUNT))
        yield chr(_VOWELS + syllable % (_VOWEL_COUNT * _TRAIL_COUNT) // _TRAIL_COUNT)
        if trail := syllable % _TRAIL_COUNT:
            yield chr(_TRAILS + trail)
        return
    parts = _decompositions().get(character)
    if parts is None:
        yield character
        return
    for part in parts:
        yield from _decompose_character(part)


def _compose(parts: list[str]) -> list[str]:
    """Compose each starter with the marks after it, where a composed character exists."""
    classes = _combining_classes()
    result: list[str] = []
    starter: int | None = None  # position of the last starter
    blocked = -1  # class of the last mark in between, which blocks marks of the same class
    for part in parts:
        class_ = classes.get(part, 0)
        if starter is not None and (blocked < class_ or blocked == -1):
            composed = _compose_pair(result[starter], part)
            if composed is not None:
                result[starter] = composed
                continue
        if not class_:
            starter, blocked = len(result), -1
        else:
            blocked = class_
        result.append(part)
    return result


def _compose_pair(first: str, second: str) -> str | None:
    lead, vowel = ord(first) - _LEADS, ord(second) - _VOWELS
    if 0 <= lead < _LEAD_COUNT and 0 <= vowel < _VOWEL_COUNT:
        return chr(_SYLLABLES + (lead * _VOWEL_COUNT + vowel) * _TRAIL_COUNT)
    syllable, trail = ord(first) - _SYLLABLES, ord(second) - _TRAILS
    if 0 <= syllable < _SYLLABLE_COUNT and syllable % _TRAIL_COUNT == 0 and 0 < trail < _TRAIL_COUNT:
        return chr(ord(first) + trail)
    return _compositions().get((first, second))


@cache
def _combining_classes() -> dict[str, int]:
    """Combining class of each character that has one; built on first use, like the other tables."""
    return {
        chr(code_point): class_
        for class_, ranges in CLASSES.items()
        for first, last in ranges
        for code_point in range(first, last + 1)
    }


@cache
def _decompositions() -> dict[str, str]:
    return dict(_parse_table(COMPOSED)) | dict(_parse_table(REPLACED))


@cache
def _compositions() -> dict[tuple[str, str], str]:
    return {(parts[0], parts[1]): character for character, parts in _parse_table(COMPOSED)}


def _parse_table(table: str) -> Iterator[tuple[str, str]]:
    for line in table.split("\n"):
        for item in filter(None, line.split(" ")):
            character, _, parts = item.partition("=")
            yield _parse_character(character), "".join(map(_parse_character, parts.split("+")))


def _parse_character(digits: str) -> str:
    return chr(int.from_bytes(bytes.fromhex(digits.zfill(6)), "big"))


# Writing systems that use several scripts.
_WRITING_SYSTEMS = {
    "Hani": ("Hanb", "Jpan", "Kore"),
    "Bopo": ("Hanb",),
    "Hira": ("Jpan",),
    "Kana": ("Jpan",),
    "Hang": ("Kore",),
}
_WRITING_SYSTEM_NAMES = {"Hanb": "Chinese", "Jpan": "Japanese", "Kore": "Korean"}


@dataclass(frozen=True, slots=True)
class MixedScripts:
    """The first character that does not belong to the script of the text before it."""

    position: int
    script: str
    """Name of the script of that character; one of them if there are several."""
    before: str
    """Name of the script of the text before it."""


def find_mixed_scripts(text: str) -> MixedScripts | None:
    """Find where a text mixes scripts; None if it has one script or none."""
    common: frozenset[str] | None = None
    for position, character in enumerate(text):
        scripts = get_scripts(character)
        if scripts is None:
            continue
        if common is None or common & scripts:
            common = scripts if common is None else common & scripts
        else:
            return MixedScripts(position, _script_name(scripts), _script_name(common))
    return None


def get_scripts(character: str) -> frozenset[str] | None:
    """Four-letter codes of the scripts and writing systems of a character; None if it belongs to all."""
    starts, ends, scripts = _script_table()
    code_point = ord(character)
    index = bisect_right(starts, code_point) - 1
    return scripts[index] if index >= 0 and code_point <= ends[index] else None


def _script_name(scripts: frozenset[str]) -> str:
    """Display name of one of the scripts; a single script is preferred to a writing system."""
    plain = sorted(scripts - _WRITING_SYSTEM_NAMES.keys())
    return _script_names()[plain[0]] if plain else _WRITING_SYSTEM_NAMES[min(scripts)]


@cache
def _script_names() -> dict[str, str]:
    items = chain.from_iterable(line.split(" ") for line in SCRIPT_NAMES.split("\n"))
    pairs = (item.partition("=") for item in items if item)
    return {code: name.replace("_", " ") for code, _, name in pairs}


@cache
def _script_table() -> tuple[list[int], list[int], list[frozenset[str]]]:
    """Sorted ranges of characters, and their scripts; built on first use, which takes a millisecond."""
    rows = []
    for line in CHARACTERS.split("\n"):
        scripts, _, ranges = line.partition(": ")
        used = scripts.split(" ")
        all_ = frozenset([*used, *chain.from_iterable(_WRITING_SYSTEMS.get(script, ()) for script in used)])
        for range_ in filter(None, ranges.split(" ")):
            first, _, last = range_.partition("-")
            rows.append((_parse_code_point(first), _parse_code_point(last or first), all_))
    rows.sort(key=lambda row: row[0])
    return [first for first, _, _ in rows], [last for _, last, _ in rows], [scripts for _, _, scripts in rows]


def _parse_code_point(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "big")
