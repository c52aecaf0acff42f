"""Did you mean …? Given a name that does not exist, the nearest ones that do.

The slips of people who copy names, in the order in which they are tried:

1. something was left on: blanks, punctuation, brackets, `hdl:`, a resolver's address, an escape too many;
2. O for 0, I or l for 1, and the wrong case: of prefix or suffix, of a first letter, of one letter anywhere;
3. two neighbours swapped; where names have a check character, which finds out the right ones, any two;
4. one character too many, or one missing at either end, where copying begins and stops too late or too early;
5. one wrong character in the suffix, then one missing inside it, then the same in the prefix.

Of several readings the innermost, with the least left on, is varied first. The work is bounded whatever the name: at
most `MAX_TRIES` membership tests. When the namespace's scheme is given, only names valid in it are tried, so that a
check character rules out nearly all wrong candidates before they cost a look-up.
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
"""Membership tests a call: one wrong character in a 50-letter name needs some 3,500, and one wrong or missing in a name
of half that length fewer. At 2 µs each, 8 ms."""

MAX_CANDIDATES = 20_000
"""Names considered a call, valid in the scheme or not: the bound for schemes that rule out nearly everything."""

MAX_EDIT_LENGTH = 64
"""The longest name whose characters are varied; nobody types longer ones, and every character costs 65 tries."""

MAX_READINGS = 12
"""The most readings of what was typed (without its brackets, without its resolver …) to start from."""

_OPENING = "([{<\"'«“‘„‹"  # noqa: RUF001 - the quotation marks of several languages are meant
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
    """Up to `limit` existing names near `name`, the nearest first; `name` itself is not among them.

    `case` is the namespace's rule, by which `exists` tells names apart: no name is proposed in two spellings. With a
    `scheme` names are asked for and proposed in the spelling it prefers.
    """

    def identity(handle: Handle) -> str:
        # Where case counts, `exists` may be exact about prefixes too, although these always fold (H5).
        return str(handle) if case is CaseRule.SENSITIVE else case.key(handle)

    original = Handle.for_lookup(name)
    seen = set() if original is None else {identity(original)}
    found: dict[str, str] = {}
    tries = 0
    for candidate in islice(_candidates(name, resolvers, getattr(scheme, "has_check", False)), MAX_CANDIDATES):
        if len(found) == limit or tries == MAX_TRIES:
            break
        handle = _parse_candidate(candidate, scheme)
        if handle is None or identity(handle) in seen or case.key(handle) in found:
            continue
        seen.add(identity(handle))
        tries += 1
        if exists(str(handle)):
            found[case.key(handle)] = str(handle)
    return list(found.values())


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
    """What may have been meant by the text as a whole, `name` first; each step is applied to all before it."""
    readings = [name]
    for reading in readings:  # grows while it is walked
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
    # A resolver's address without its scheme, or one that is not known: what follows the host, or host and segment.
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
    """One letter in the wrong case, beside the rest as it is, all small, all capital, or with a capital first."""
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
    """Without one character; the slash that ends the prefix stays, and something behind it."""
    middle = reading.index("/")
    for position in _suffix_first(reading, len(reading)):
        if position != middle and (position < middle or len(reading) > middle + 2):
            yield reading[:position] + reading[position + 1 :]


def _insert_at_ends(reading: str) -> Iterator[str]:
    yield from _insert_at(reading, (len(reading), reading.index("/") + 1), _letters(reading.partition("/")[2]))


def _insert_in_suffix(reading: str) -> Iterator[str]:
    """With one character more inside the suffix."""
    inside = range(reading.index("/") + 2, len(reading))
    yield from _insert_at(reading, inside, _letters(reading.partition("/")[2]))


def _insert_in_prefix(reading: str) -> Iterator[str]:
    """With one digit more in the prefix, or a dot: hardly any has letters."""
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
    """Positions in the suffix, where slips happen, and then those in the prefix."""
    start = reading.index("/") + 1
    return (*range(start, end), *range(min(start, end)))


def _letters(suffix: str) -> str:
    """What a wrong or missing character may be: digits, letters, those first whose case the suffix uses, and marks."""
    small_first = any(character in string.ascii_lowercase for character in suffix)
    small, capital = string.ascii_lowercase, string.ascii_uppercase
    return string.digits + (small + capital if small_first else capital + small) + "-._"
