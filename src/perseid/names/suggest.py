"""Suggestions ("did you mean …?") for a name that does not exist.

Typos are tried in this order:

1. extra text: spaces, punctuation, brackets, `hdl:`, a resolver's address, double encoding;
2. O for 0, I or l for 1, and wrong case: of the prefix or suffix, of the first letter, of any one letter;
3. two neighboring characters swapped; any two if names have a check character, which identifies the right ones;
4. one extra character, or one missing at either end;
5. one wrong character in the suffix, then one missing inside it, then the same in the prefix.

Readings with the least extra text are edited first. The work is limited to `MAX_TRIES` lookups. With a scheme, only
names valid in it are looked up, so that a check character rules out nearly all wrong candidates.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations, islice
from urllib.parse import unquote

from .errors import InvalidName
from .handle import CaseRule, Handle
from .pilin import LOOKALIKES
from .suffix_scheme import Scheme
from .uri import KNOWN_RESOLVERS, STRIPPED_CHARACTERS, Resolver, parse_user_input

MAX_TRIES = 4_000
"""Lookups per call: one wrong character in a 50-letter name needs some 3,500. At 2 µs each, 8 ms."""

MAX_CANDIDATES = 20_000
"""Names generated per call, valid in the scheme or not: the limit for schemes that rule out nearly everything."""

MAX_EDIT_LENGTH = 64
"""Maximum length of a name whose characters are edited: each character costs 65 tries."""

MAX_READINGS = 12
"""Maximum number of readings of the input (without brackets, without resolver …) to start from."""

_OPENING = "([{<\"'«“‘„‹"  # noqa: RUF001 - quotation marks of several languages
_CLOSING = ")]}>\"'»”’“›.,;:!?"  # noqa: RUF001
_TO_DIGITS = str.maketrans(LOOKALIKES)
_NUMERIC = re.compile("[0-9.]+")


def suggest(
    name: str,
    exists: Callable[[str], bool],
    *,
    scheme: Scheme | None = None,
    case: CaseRule = CaseRule.SENSITIVE,
    resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
    limit: int = 5,
) -> list[str]:
    """Up to `limit` existing names near `name`, nearest first, without `name` itself.

    `case` is the case rule of the namespace: no name is suggested in two spellings. With a `scheme`, names are looked
    up and suggested in its canonical spelling.
    """

    def key(handle: Handle) -> str:
        # If case matters, `exists` may be exact about prefixes too, although these always fold (H5).
        return str(handle) if case is CaseRule.SENSITIVE else case.key(handle)

    original = Handle.for_lookup(name)
    tried = set() if original is None else {key(original)}
    suggestions: dict[str, str] = {}
    tries = 0
    for candidate in islice(_candidates(name, resolvers, getattr(scheme, "has_check", False)), MAX_CANDIDATES):
        if len(suggestions) == limit or tries == MAX_TRIES:
            break
        handle = _parse_candidate(candidate, scheme)
        if handle is None or key(handle) in tried or case.key(handle) in suggestions:
            continue
        tried.add(key(handle))
        tries += 1
        if exists(str(handle)):
            suggestions[case.key(handle)] = str(handle)
    return list(suggestions.values())


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
    readings = _readings(name, resolvers)
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


def _readings(name: str, resolvers: Sequence[Resolver]) -> list[str]:
    """Possible readings of the whole text, `name` first; each step is applied to all before it."""
    readings = [name]
    for reading in readings:  # the list grows during the loop
        for other in _strip_wrapping(reading, resolvers):
            if other and other not in readings and len(readings) < MAX_READINGS:
                readings.append(other)
    return readings


def _strip_wrapping(text: str, resolvers: Sequence[Resolver]) -> Iterator[str]:
    yield text.strip(STRIPPED_CHARACTERS)
    yield text.lstrip(_OPENING).rstrip(_CLOSING)
    with suppress(InvalidName):
        yield str(parse_user_input(text, resolvers).handle)
    if "%" in text:
        with suppress(UnicodeDecodeError):
            yield unquote(text, errors="strict")
    # A resolver's address without scheme, or an unknown one: keep what follows the host, or host and segment.
    address = text.partition("://")[2]
    first, _, path = (address or text).partition("/")
    if "/" in path.strip("/") and (address or not _NUMERIC.fullmatch(first)):  # digits and dots are a prefix
        yield path


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
