"""PILIN suffixes (P1–P4, P7): the millisecond of the request, in base 31, least significant digit first.

    suffix = reverse(base31(milliseconds since 1582-10-15T00:00:00Z))

A suffix has nine characters: from 1609-10-24 to 2420-08-16 the number has exactly nine digits in base 31.

The check character of a body d₁…dₙ is the digit (1·d₁ + 2·d₂ + … + n·dₙ) mod 31. Since 31 is prime, any single wrong
character and any swap of two characters, including the check character, changes the sum, as long as no position
reaches 30: a body has at most 29 characters.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from .errors import InvalidName, NameMisuse, format_character
from .handle import Handle
from .schemes import Allocator, Details, Source, relocate_error
from .suggest import LOOKALIKES, did_you_mean

ALPHABET = "0123456789BCDFGHJKLMNPQRSTVWXYZ"
"""The PILIN digits by value, without vowels (P2, P4)."""

BASE = len(ALPHABET)
DIGIT_VALUES = {spelling: value for value, letter in enumerate(ALPHABET) for spelling in (letter, letter.lower())}
"""Value of each digit, in either case."""

MAX_BODY_LENGTH = 29
"""Maximum length of a body (without check character) in which every swap is detected."""


def check_character(body: str) -> str:
    """Compute the check character of a body in the PILIN alphabet, in either case."""
    if len(body) > MAX_BODY_LENGTH:
        message = f"a check character covers at most {MAX_BODY_LENGTH} characters, not {len(body)}"
        raise NameMisuse("P4", message)
    return ALPHABET[sum(position * value for position, value in enumerate(digit_values(body), 1)) % BASE]


def has_valid_check(text: str) -> bool:
    """Whether the last character is the check character of the others."""
    # Compare values: str.upper would also turn U+017F into an S.
    return DIGIT_VALUES.get(text[-1:]) == DIGIT_VALUES[check_character(text[:-1])]


def digit_values(text: str) -> list[int]:
    """Values of the digits; InvalidName for a character outside the alphabet (P7)."""
    try:
        return [DIGIT_VALUES[letter] for letter in text]
    except KeyError:
        raise alphabet_error(text) from None


def check_character_error(text: str) -> InvalidName:
    """Error for a wrong check character."""
    message = "the check character does not match: one character is wrong, or two are swapped"
    return InvalidName("P7", message, position=len(text) - 1, character=text[-1])


def alphabet_error(text: str) -> InvalidName:
    """Error for the first character of `text` that is not in the alphabet (P7)."""
    position, letter = next((i, c) for i, c in enumerate(text) if c not in DIGIT_VALUES)
    digit = LOOKALIKES.get(letter)
    hint = f"; {did_you_mean(f'the digit {digit}')}" if digit else f" ({ALPHABET})"
    message = f"{format_character(letter)} is not in the PILIN alphabet{hint}"
    return InvalidName("P7", message, position=position, character=letter)


LENGTH = 9
MIN_MILLISECONDS = BASE ** (LENGTH - 1)
"""The first millisecond whose suffix has nine characters."""
END_MILLISECONDS = BASE**LENGTH
"""The first millisecond that would need ten: 2420-08-16T03:29:20.671Z."""
UUID_EPOCH = datetime(1582, 10, 15, tzinfo=UTC)
"""Time zero of PILIN and of UUID version 1."""

_UNIX_EPOCH_MS = (datetime(1970, 1, 1, tzinfo=UTC) - UUID_EPOCH) // timedelta(milliseconds=1)
_PAIRS = [low + high for high in ALPHABET for low in ALPHABET]  # two digits at once, the low one first
_SUFFIX = re.compile(rf"[{ALPHABET}{ALPHABET.lower()}]{{{LENGTH}}}")
# Python reads base 31 itself, with the digits 0–9 and a–u.
_TO_PYTHON_DIGITS = str.maketrans(ALPHABET + ALPHABET.lower(), "0123456789abcdefghijklmnopqrstu" * 2)


def encode(milliseconds: int) -> str:
    """Encode milliseconds since 1582-10-15T00:00:00Z as a suffix (P1)."""
    if not MIN_MILLISECONDS <= milliseconds < END_MILLISECONDS:
        message = f"millisecond {milliseconds} has no {LENGTH}-character suffix: they cover the years 1609 to 2420"
        raise NameMisuse("P3", message)
    rest, first = divmod(milliseconds, 961)
    rest, second = divmod(rest, 961)
    rest, third = divmod(rest, 961)
    last, fourth = divmod(rest, 961)
    return _PAIRS[first] + _PAIRS[second] + _PAIRS[third] + _PAIRS[fourth] + ALPHABET[last]


def decode(suffix: str) -> int:
    """Decode a suffix, in either case, to milliseconds since 1582 (P7)."""
    if not _SUFFIX.fullmatch(suffix):
        raise _make_error(suffix, LENGTH)
    milliseconds = int(suffix[::-1].translate(_TO_PYTHON_DIGITS), BASE)
    if milliseconds < MIN_MILLISECONDS:
        message = 'a PILIN suffix cannot end with "0": that would be a time before 1609'
        raise InvalidName("P3", message, position=LENGTH - 1, character="0")
    return milliseconds


def from_unix_ns(nanoseconds: int) -> int:
    """Convert a Unix time in nanoseconds (`time.time_ns`) to milliseconds since 1582."""
    return nanoseconds // 1_000_000 + _UNIX_EPOCH_MS


def from_time(time: datetime) -> int:
    """Convert a time to milliseconds since 1582, rounded down."""
    if time.tzinfo is None:
        raise NameMisuse("P1", f"the time {time.isoformat()} has no time zone")
    return (time - UUID_EPOCH) // timedelta(milliseconds=1)


def to_time(milliseconds: int) -> datetime:
    """Convert milliseconds since 1582 to a time in UTC."""
    try:
        return UUID_EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        message = f"millisecond {milliseconds} is outside the years 1 to 9999"
        raise NameMisuse("P1", message) from None


def format_time(milliseconds: int) -> str:
    """Format milliseconds since 1582 as `2007-09-17T07:14:50.919Z`."""
    return to_time(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class PilinScheme:
    """The scheme `pilin`: exactly nine characters (P3)."""

    name = "pilin"

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Mint suffixes, one leased millisecond each."""
        return [encode(ms) for ms in self._milliseconds(source, count)]

    def _milliseconds(self, source: Source, count: int) -> list[int]:
        def clock() -> int:
            return from_unix_ns(source.clock())

        return Allocator(source.lease, clock, source.sleep, source.max_ahead, source.max_wait).allocate(count)

    def validate(self, handle: Handle) -> None:
        """Reject suffixes that do not follow the scheme."""
        try:
            self._check(handle.suffix)
        except InvalidName as problem:
            raise relocate_error(problem, handle) from None

    def _check(self, suffix: str) -> None:
        decode(suffix)

    def normalize(self, handle: Handle) -> Handle:
        """Convert the suffix to uppercase."""
        self.validate(handle)
        return Handle(handle.prefix, handle.suffix.upper())

    def describe(self, handle: Handle) -> Details:
        """The time at which the suffix was minted."""
        self.validate(handle)
        milliseconds = decode(handle.suffix)
        return {"milliseconds": milliseconds, "time": format_time(milliseconds)}


@dataclass(frozen=True, slots=True)
class PilinCheckScheme(PilinScheme):
    """The scheme `pilin-check`: a PILIN suffix and its check character, ten characters."""

    name = "pilin-check"
    has_check = True

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Mint suffixes with check characters."""
        bodies = map(encode, self._milliseconds(source, count))
        return [body + check_character(body) for body in bodies]

    def _check(self, suffix: str) -> None:
        if not _SUFFIX.fullmatch(suffix[:-1]) or suffix[-1] not in DIGIT_VALUES:
            raise _make_error(suffix, LENGTH + 1)
        decode(suffix[:-1])
        if not has_valid_check(suffix):
            raise check_character_error(suffix)

    def describe(self, handle: Handle) -> Details:
        """The time at which the suffix was minted, and its check character."""
        self.validate(handle)
        milliseconds = decode(handle.suffix[:-1])
        return {
            "milliseconds": milliseconds,
            "time": format_time(milliseconds),
            "check": handle.suffix[-1].upper(),
        }


def _make_error(suffix: str, length: int) -> InvalidName:
    if all(letter in DIGIT_VALUES for letter in suffix):
        message = f"the suffix has {len(suffix)} characters; the scheme requires exactly {length}"
        return InvalidName("P3", message, position=min(len(suffix), length))
    return alphabet_error(suffix)
