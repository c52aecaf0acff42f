"""Whether a text is written in one script, from the table shipped with the package.

The Latin a (U+0061) and the Cyrillic one (U+0430) look alike, and a name that mixes them deceives. What counts as one
script is what Unicode calls so (UTS #39, 5.1): each character is used with certain scripts, most with one, digits and
signs with all, and there must be one with which all characters of the text are used. Chinese, Japanese and Korean are
written in several scripts each, which count as one there.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import chain

from ._unicode_scripts import CHARACTERS, SCRIPT_NAMES

# Systems of writing that are made of several scripts.
_SYSTEMS = {
    "Hani": ("Hanb", "Jpan", "Kore"),
    "Bopo": ("Hanb",),
    "Hira": ("Jpan",),
    "Kana": ("Jpan",),
    "Hang": ("Kore",),
}
_SYSTEM_NAMES = {"Hanb": "Chinese", "Jpan": "Japanese", "Kore": "Korean"}


@dataclass(frozen=True, slots=True)
class Mixture:
    """Where a text leaves the script in which it began."""

    position: int
    """Index of the first character that goes with no script of those before it."""
    script: str
    """The script of that character, for people; one of them if there are several."""
    before: str
    """The script of what stands before it."""


def mixture(text: str) -> Mixture | None:
    """Where a text mixes scripts; None if it is written in one, or in none at all."""
    common: frozenset[str] | None = None
    for position, character in enumerate(text):
        scripts = scripts_of(character)
        if scripts is None:
            continue
        if common is None or common & scripts:
            common = scripts if common is None else common & scripts
        else:
            return Mixture(position, _name(scripts), _name(common))
    return None


def scripts_of(character: str) -> frozenset[str] | None:
    """The scripts and systems of writing with which a character is used, in four letters each; None if with all."""
    starts, ends, scripts = _table()
    code_point = ord(character)
    at = bisect_right(starts, code_point) - 1
    return scripts[at] if at >= 0 and code_point <= ends[at] else None


def _name(scripts: frozenset[str]) -> str:
    """A script for people: a plain one, if there is one, as most know these."""
    plain = sorted(scripts - _SYSTEM_NAMES.keys())
    return _names()[plain[0]] if plain else _SYSTEM_NAMES[min(scripts)]


@cache
def _names() -> dict[str, str]:
    items = chain.from_iterable(line.split(" ") for line in SCRIPT_NAMES.split("\n"))
    pairs = (item.partition("=") for item in items if item)
    return {code: name.replace("_", " ") for code, _, name in pairs}


@cache
def _table() -> tuple[list[int], list[int], list[frozenset[str]]]:
    """Ranges of characters in order, and their scripts; made on first use, because it takes a millisecond."""
    rows = []
    for line in CHARACTERS.split("\n"):
        scripts, _, ranges = line.partition(": ")
        used = scripts.split(" ")
        all_ = frozenset([*used, *chain.from_iterable(_SYSTEMS.get(script, ()) for script in used)])
        for range_ in filter(None, ranges.split(" ")):
            first, _, last = range_.partition("-")
            rows.append((_code_point(first), _code_point(last or first), all_))
    rows.sort(key=lambda row: row[0])
    return [first for first, _, _ in rows], [last for _, last, _ in rows], [scripts for _, _, scripts in rows]


def _code_point(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "big")
