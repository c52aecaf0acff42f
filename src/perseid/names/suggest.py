"""Suggestions ("did you mean …?"): existing names near a text, and known words near a mistyped one.

People copy names from documents, mail and address bars, with spaces, punctuation, a resolver's address, typographic
dashes or double encoding. Each repair removes one such thing; repairs combine as long as new readings appear, the
outermost first. Then typos are tried in this order:

1. O for 0, I or l for 1, and wrong case: of the prefix or suffix, of the first letter, of any one letter;
2. two neighboring characters swapped; any two if names have a check character, which identifies the right ones;
3. one extra character, or one missing at either end;
4. one wrong character in the suffix, then one missing inside it, then the same in the prefix.

The most repaired readings are edited first. The work is limited to `MAX_TRIES` lookups. With a scheme, only
names valid in it are looked up, so that a check character rules out nearly all wrong candidates.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from itertools import combinations, islice, zip_longest
from typing import Final
from urllib.parse import unquote

from .errors import InvalidName, format_character
from .handle import CaseRule, Handle, fold
from .schemes import Scheme
from .uri import BYTE_ORDER_MARK, KNOWN_RESOLVERS, STRIPPED_CHARACTERS, Resolver, parse_user_input

MAX_TRIES = 4_000
"""Lookups per call: one wrong character in a 50-letter name needs some 3,500. At 2 µs each, 8 ms."""

MAX_CANDIDATES = 20_000
"""Names generated per call, valid in the scheme or not: the limit for schemes that rule out nearly everything."""

MAX_EDIT_LENGTH = 64
"""Maximum length of a name whose characters are edited: each character costs 65 tries."""

MAX_TEXT = 8_192
"""Maximum length of a text that is repaired: as long as a request can be."""

MAX_READINGS = 16
"""Maximum number of readings of a text (without brackets, without resolver …): a fourth repair hardly ever helps."""

WITHOUT_ADDRESS = "without the address before it"
"""The clause of a reading without what is either a resolver's address or the start of the handle."""

LOOKALIKES = {"O": "0", "o": "0", "I": "1", "i": "1", "l": "1"}
"""Letters that people confuse with digits; they are never replaced silently (P7)."""

_SLASHES_AFTER_ADDRESS: Final = 2  # one after the address, one in the handle
_DIGITS: Final = frozenset(string.digits)
OPENING: Final = "([{<\"'«“‘„‹"  # noqa: RUF001 - quotation marks of several languages
_CLOSING: Final = ")]}>\"'»”’“›.,;:!?…"  # noqa: RUF001
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SLASHES: Final = "\u2044\u2215\u29f8\uff0f"
_BLANKS: Final = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE: Final = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060" + BYTE_ORDER_MARK
_TO_ASCII: Final = str.maketrans(
    dict.fromkeys(_DASHES, "-")
    | dict.fromkeys(_SLASHES, "/")
    | dict.fromkeys(_BLANKS, " ")
    | dict.fromkeys(_INVISIBLE, "")
    # Fullwidth letters and digits from East Asian keyboards.
    | {chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(0x5E) if chr(0xFF01 + offset) not in _DASHES}
)
_BLANK: Final = re.compile(r"\s+")
_TAIL: Final = re.compile("[?#]")
_NUMERIC: Final = re.compile("[0-9.]+")
_TO_DIGITS: Final = str.maketrans(LOOKALIKES)
_FOLDED_TO_DIGITS: Final = str.maketrans({fold(letter): digit for letter, digit in LOOKALIKES.items()})


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known word that is most similar to a mistyped one, at least to the `cutoff`; empty if none is."""
    return "".join(get_close_matches(word, known, 1, cutoff))


def did_you_mean(meant: str, otherwise: str = "") -> str:
    """Return the hint for what was probably meant; `otherwise` if that is empty."""
    return f"did you mean {meant}?" if meant else otherwise


def suggest(
    name: str,
    exists: Callable[[str], bool],
    *,
    scheme: Scheme | None = None,
    case: CaseRule = CaseRule.SENSITIVE,
    resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
    limit: int = 5,
) -> list[str]:
    """Up to `limit` existing names near `name`, nearest first, without `name` itself; see `find_candidates`."""
    suggestions: dict[str, str] = {}
    for handle in find_candidates(name, scheme=scheme, case=case, resolvers=resolvers):
        if len(suggestions) == limit:
            break
        if case.key(handle) not in suggestions and exists(str(handle)):
            suggestions[case.key(handle)] = str(handle)
    return list(suggestions.values())


def find_candidates(
    name: str,
    *,
    scheme: Scheme | None = None,
    case: CaseRule = CaseRule.SENSITIVE,
    resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
) -> Iterator[Handle]:
    """Names near `name`, nearest first, without `name` itself.

    `case` is the case rule of the namespace: no name is tried in two spellings. With a `scheme`, names are in its
    canonical spelling.
    """

    def key(handle: Handle) -> str:
        # If case matters, a lookup may be exact about prefixes too, although these always fold (H5).
        return str(handle) if case is CaseRule.SENSITIVE else case.key(handle)

    original = Handle.for_lookup(name)
    tried = set() if original is None else {key(original)}
    before = len(tried)
    is_folded = scheme is None and case is CaseRule.INSENSITIVE
    for candidate in islice(_candidates(name, resolvers, getattr(scheme, "has_check", False)), MAX_CANDIDATES):
        if is_folded and fold(candidate) in tried:
            continue  # half of them: parsing takes longer than anything else here
        handle = _parse_candidate(candidate, scheme)
        if handle is None or (known := key(handle)) in tried:
            continue
        if len(tried) - before == MAX_TRIES:
            break
        tried.add(known)
        yield handle


# Readings


@dataclass(frozen=True, slots=True)
class Reading:
    """A possible reading of a text."""

    text: str
    done: tuple[str, ...] = ()
    """The repairs, as clauses for people; empty for the text itself."""

    @property
    def why(self) -> str:
        """How it follows from the text, as a clause."""
        return f"your text {', '.join(self.done)}"


def find_readings(text: str, resolvers: Sequence[Resolver]) -> tuple[Reading, ...]:
    """Return the text itself, then its repaired forms, without duplicates."""
    readings = [Reading(text)]
    if len(text) > MAX_TEXT:
        return tuple(readings)
    known = {text}
    for reading in readings:  # grows while iterating
        for other, clause in _repairs(reading.text, resolvers):
            if len(readings) < MAX_READINGS and other and other not in known:
                known.add(other)
                readings.append(Reading(other, reading.done if clause in reading.done else (*reading.done, clause)))
    return tuple(readings)


def find_bare_handle(text: str) -> Handle | None:
    """Return the handle in a text that begins with a part of a URL, as in `doi.org/10.1000/1`; None if there is none.

    Prefixes begin with a digit, unless an installation has chosen others; hosts, paths and schemes hardly do.
    """
    if text[:1] in _DIGITS or text.count("/") < _SLASHES_AFTER_ADDRESS:
        return None
    handles = [Handle.for_lookup(reading.text) for reading in find_readings(text, KNOWN_RESOLVERS)[1:]]
    return next((each for each in reversed(handles) if each is not None and each.prefix[:1] in _DIGITS), None)


def _repairs(text: str, resolvers: Sequence[Resolver]) -> Iterator[tuple[str, str]]:
    yield text.strip(STRIPPED_CHARACTERS), "without surrounding spaces"
    yield text.translate(_TO_ASCII), "with plain hyphens, slashes, spaces and letters"
    yield text.lstrip(OPENING).rstrip(_CLOSING), "without surrounding punctuation"
    yield text.rstrip("/"), "without the trailing slash"
    with suppress(InvalidName):
        yield str(parse_user_input(text, resolvers, for_lookup=True).handle), "without the rest of the URI"
    if "%" in text:
        with suppress(UnicodeDecodeError):
            yield unquote(text, errors="strict"), "with percent-encoding decoded again"
    yield _TAIL.split(text, maxsplit=1)[0], "without the query or fragment"
    yield from _without_address(text)
    yield _BLANK.sub("", text), "without spaces inside"


def _without_address(text: str) -> Iterator[tuple[str, str]]:
    """Remove a resolver's address without scheme, or of an unknown resolver: the host, or host and segment."""
    address = text.partition("://")[2]
    first, _, path = (address or text).partition("/")
    if "/" in path.strip("/") and (address or not _NUMERIC.fullmatch(first)):  # digits and dots are a prefix
        yield path, WITHOUT_ADDRESS


# Typos


class Typo(Enum):
    """How two spellings differ."""

    CASE = "only uppercase and lowercase differ"
    LOOKALIKE = "0 and O, or 1, I and l, are easily confused"
    SWAPPED = "two characters are swapped"
    ONE = "one character differs"
    MORE = "one character is missing"
    LESS = "one character is extra"
    OTHER = "the spelling is similar"


def compare(requested: Handle | str, found: Handle | str) -> tuple[Typo, str]:
    """Compare a handle or a type with the text; return the kind of typo and an explanation."""
    one, other = fold(str(requested)), fold(str(found))
    if one == other:
        return Typo.CASE, Typo.CASE.value
    if one.translate(_FOLDED_TO_DIGITS) == other.translate(_FOLDED_TO_DIGITS):
        return Typo.LOOKALIKE, Typo.LOOKALIKE.value
    positions = [position for position, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1]]
    position = positions[0]
    if one == other[:position] + other[position + 1 :]:
        return Typo.MORE, f"it has an extra character {position + 1}: {format_character(str(found)[position])}"
    if other == one[:position] + one[position + 1 :]:
        return Typo.LESS, f"it lacks character {position + 1}: {format_character(str(requested)[position])}"
    typo, why = Typo.OTHER, ""
    if len(one) == len(other) and len(positions) == 1:
        right, wrong = format_character(str(found)[position]), format_character(str(requested)[position])
        typo, why = Typo.ONE, f"character {position + 1} is {right} instead of {wrong}"
    elif len(one) == len(other) and len(positions) == 2:
        first, second = positions
        if (one[first], one[second]) == (other[second], other[first]):
            typo = Typo.SWAPPED
    return typo, why or typo.value


def _parse_candidate(candidate: str, scheme: Scheme | None) -> Handle | None:
    try:
        handle = Handle.parse(candidate)
        if scheme is None:
            return handle
        scheme.validate(handle)
        return scheme.normalize(handle)
    except InvalidName:
        return None


def _candidates(name: str, resolvers: Sequence[Resolver], has_check: bool) -> Iterator[str]:
    readings = [reading.text for reading in find_readings(name, resolvers)]
    yield from readings
    readings.reverse()  # the innermost first
    for reading in readings:
        yield from _respell(reading)
    short = [reading for reading in readings if "/" in reading and len(reading) <= MAX_EDIT_LENGTH]
    swap = _swap_any if has_check else _swap_neighbors
    suffix_edits, prefix_edits = (_replace_in_suffix, _insert_in_suffix), (_replace_in_prefix, _insert_in_prefix)
    for edit in (_change_case, swap, _delete_one, _insert_at_ends, *suffix_edits, *prefix_edits):
        for reading in short:
            yield from edit(reading)


def _respell(reading: str) -> Iterator[str]:
    prefix, slash, suffix = reading.partition("/")
    suffixes = (suffix, suffix.upper(), suffix.lower(), suffix.translate(_TO_DIGITS))
    for variant in (*suffixes, suffix.upper().translate(_TO_DIGITS)):
        yield prefix + slash + variant
    for variant in suffixes:
        yield prefix.upper() + slash + variant
        yield prefix.lower() + slash + variant
    for position, character in enumerate(reading[:MAX_EDIT_LENGTH]):
        for pair in LOOKALIKES.items():
            if character in pair:
                other = pair[1] if character == pair[0] else pair[0]
                yield reading[:position] + other + reading[position + 1 :]


def _change_case(reading: str) -> Iterator[str]:
    """One letter in the wrong case; the rest unchanged, lowercase, uppercase or capitalized."""
    prefix, slash, suffix = reading.partition("/")
    for variant in (suffix, suffix.lower(), suffix.upper(), suffix.capitalize()):
        whole = prefix + slash + variant
        for position in _suffix_first(whole, len(whole)):
            yield whole[:position] + whole[position].swapcase() + whole[position + 1 :]


def _swap_neighbors(reading: str) -> Iterator[str]:
    for position in _suffix_first(reading, len(reading) - 1):
        yield from _swap(reading, position, position + 1)


def _swap_any(reading: str) -> Iterator[str]:
    yield from _swap_neighbors(reading)
    for first, second in combinations(range(reading.index("/") + 1, len(reading)), 2):
        yield from _swap(reading, first, second)


def _swap(reading: str, first: int, second: int) -> Iterator[str]:
    one, other = reading[first], reading[second]
    if one != other and "/" not in (one, other):
        yield reading[:first] + other + reading[first + 1 : second] + one + reading[second + 1 :]


def _delete_one(reading: str) -> Iterator[str]:
    """Delete one character; the slash after the prefix and at least one character after it stay."""
    middle = reading.index("/")
    for position in _suffix_first(reading, len(reading)):
        if position != middle and (position < middle or len(reading) > middle + 2):
            yield reading[:position] + reading[position + 1 :]


def _insert_at_ends(reading: str) -> Iterator[str]:
    yield from _insert_at(reading, (len(reading), reading.index("/") + 1), _letters(reading.partition("/")[2]))


def _insert_in_suffix(reading: str) -> Iterator[str]:
    inside = range(reading.index("/") + 2, len(reading))
    yield from _insert_at(reading, inside, _letters(reading.partition("/")[2]))


def _insert_in_prefix(reading: str) -> Iterator[str]:
    """Insert a digit or dot in the prefix: hardly any prefix has letters."""
    yield from _insert_at(reading, range(reading.index("/") + 1), f"{string.digits}.")


def _insert_at(reading: str, positions: Iterable[int], letters: str) -> Iterator[str]:
    for position in positions:
        for letter in letters:
            yield reading[:position] + letter + reading[position:]


def _replace_in_suffix(reading: str) -> Iterator[str]:
    start = reading.index("/") + 1
    yield from _replace_at(reading, range(start, len(reading)))


def _replace_in_prefix(reading: str) -> Iterator[str]:
    yield from _replace_at(reading, range(reading.index("/")))


def _replace_at(reading: str, positions: Iterable[int]) -> Iterator[str]:
    letters = _letters(reading.partition("/")[2])
    for position in positions:
        if reading[position] != "/":
            for letter in letters:
                yield reading[:position] + letter + reading[position + 1 :]


def _suffix_first(reading: str, end: int) -> Iterable[int]:
    """Positions in the suffix, where most typos happen, then those in the prefix."""
    start = reading.index("/") + 1
    return (*range(start, end), *range(min(start, end)))


def _letters(suffix: str) -> str:
    """Replacement characters: digits, letters (first in the case that the suffix uses) and separators."""
    has_lowercase = any(character in string.ascii_lowercase for character in suffix)
    lower, upper = string.ascii_lowercase, string.ascii_uppercase
    return string.digits + (lower + upper if has_lowercase else upper + lower) + "-._"
