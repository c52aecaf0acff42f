"""Did you mean …? Given a name that does not exist, the nearest ones that do.

The slips of people who copy names, in the order in which they are tried:

1. something was left on: blanks, punctuation, brackets, `hdl:`, a resolver's address, an escape too many;
2. O for 0, I or l for 1, and the wrong case;
3. two neighbours swapped;
4. one wrong character.

The work is bounded whatever the name: at most `MAX_TRIES` membership tests. When the namespace's scheme is given,
only names valid in it are tried, so that a check character rules out nearly all wrong candidates before they cost
a look-up.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from urllib.parse import unquote

from ._unicode_table import BLANKS
from .errors import InvalidName
from .handle import Handle
from .human import KNOWN_RESOLVERS, parse_human
from .scheme import Scheme
from .uri import Resolver

MAX_TRIES = 4_000
"""Membership tests a call: one wrong character in a 50-letter name needs some 3,100. At 2 µs each, 8 ms."""

MAX_CANDIDATES = 20_000
"""Names considered a call, valid in the scheme or not: the bound for schemes that rule out nearly everything."""

MAX_EDITED = 64
"""The longest name whose characters are varied; nobody types longer ones, and every character costs 60 tries."""

MAX_READINGS = 12
"""The most readings of what was typed (without its brackets, without its resolver …) to start from."""

_OPENING = "([{<\"'«“‘„‹"  # noqa: RUF001 - the quotation marks of several languages are meant
_CLOSING = ")]}>\"'»”’“›.,;:!?"  # noqa: RUF001
_LOOKALIKES = (("O", "0"), ("o", "0"), ("I", "1"), ("i", "1"), ("l", "1"))
_TO_DIGITS = str.maketrans(dict(_LOOKALIKES))


def suggest(
    name: str,
    exists: Callable[[str], bool],
    *,
    scheme: Scheme | None = None,
    resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
    limit: int = 5,
) -> list[str]:
    """Up to `limit` existing names near `name`, the nearest first; `name` itself is not among them."""
    seen = {name}
    found: list[str] = []
    tries = 0
    for candidate in islice(_candidates(name, resolvers), MAX_CANDIDATES):
        if len(found) == limit or tries == MAX_TRIES:
            break
        if candidate in seen or not _possible(candidate, scheme):
            continue
        seen.add(candidate)
        tries += 1
        if exists(candidate):
            found.append(candidate)
    return found


def _possible(candidate: str, scheme: Scheme | None) -> bool:
    try:
        handle = Handle.parse(candidate)
        if scheme is not None:
            scheme.validate(handle)
    except InvalidName:
        return False
    return True


def _candidates(name: str, resolvers: Sequence[Resolver]) -> Iterator[str]:
    readings = _readings(name, resolvers)
    yield from readings
    for reading in readings:
        yield from _respelled(reading)
    short = [reading for reading in readings if "/" in reading and len(reading) <= MAX_EDITED]
    for reading in short:
        yield from _swapped(reading)
    for reading in short:
        yield from _replaced(reading)


def _readings(name: str, resolvers: Sequence[Resolver]) -> list[str]:
    """What may have been meant by the text as a whole, `name` first; each step is applied to all before it."""
    readings = [name]
    for reading in readings:  # grows while it is walked
        for other in _without_wrapping(reading, resolvers):
            if other and other not in readings and len(readings) < MAX_READINGS:
                readings.append(other)
    return readings


def _without_wrapping(text: str, resolvers: Sequence[Resolver]) -> Iterator[str]:
    yield text.strip(BLANKS + "\t\r\n")
    yield text.lstrip(_OPENING).rstrip(_CLOSING)
    with suppress(InvalidName):
        yield str(parse_human(text, resolvers).handle)
    if "%" in text:
        yield unquote(text, errors="replace")
    # A resolver's address without its scheme, or one that is not known: what follows the host, or host and segment.
    _, _, path = text.partition("://")[2].partition("/") if "://" in text else text.partition("/")
    if "/" in path.strip("/"):
        yield path


def _respelled(reading: str) -> Iterator[str]:
    prefix, slash, suffix = reading.partition("/")
    for respelled in (suffix.upper(), suffix.lower(), suffix.translate(_TO_DIGITS)):
        yield prefix + slash + respelled
    yield prefix + slash + suffix.upper().translate(_TO_DIGITS)
    yield reading.upper()
    yield reading.lower()
    for position, character in enumerate(reading[:MAX_EDITED]):
        for pair in _LOOKALIKES:
            if character in pair:
                other = pair[1] if character == pair[0] else pair[0]
                yield reading[:position] + other + reading[position + 1 :]


def _swapped(reading: str) -> Iterator[str]:
    for position in _suffix_first(reading, len(reading) - 1):
        first, second = reading[position], reading[position + 1]
        if first != second and "/" not in (first, second):
            yield reading[:position] + second + first + reading[position + 2 :]


def _replaced(reading: str) -> Iterator[str]:
    letters = _letters(reading.partition("/")[2])
    for position in _suffix_first(reading, len(reading)):
        if reading[position] != "/":
            for letter in letters:
                yield reading[:position] + letter + reading[position + 1 :]


def _suffix_first(reading: str, end: int) -> Iterable[int]:
    """Positions in the suffix, where slips happen, and then those in the prefix."""
    start = reading.index("/") + 1
    return (*range(start, end), *range(min(start, end)))


def _letters(suffix: str) -> str:
    """What a wrong character may have been: digits, and letters in the cases that the suffix uses."""
    lower = any(character in string.ascii_lowercase for character in suffix)
    upper = any(character in string.ascii_uppercase for character in suffix)
    letters = string.ascii_lowercase * lower + string.ascii_uppercase * (upper or not lower)
    return string.digits + letters + "-._"
