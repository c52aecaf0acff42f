"""The text of a bearer token: what its holder keeps, and shows with every request.

    perseid_ k7qpx2ma 3vK…(43)…9Qd 0aBcD1
    prefix   id       secret       checksum

The prefix lets people, and programs that look for secrets where none should be, see what it is. The id is public: logs
and lists name a token by it. The secret is 32 random octets in base 62, of which a double click selects all. The
checksum tells a slip of the hand from a token that is not known, without asking anybody; it proves nothing.

Of the secret, a server keeps the SHA-256 and nothing else. That cannot be turned round: there is nothing to guess in 32
random octets, so no slow function is needed either.
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

PREFIX: Final = "perseid_"
"""With what the text of every token begins."""

ID_LENGTH: Final = 8
"""Characters of an id: 40 bits, so that two of a million tokens hardly ever share one. A second one is refused."""

SECRET_OCTETS: Final = 32
"""Octets of randomness: what nobody guesses, ever."""

PATTERN: Final = rf"{PREFIX}[a-z2-7]{{{ID_LENGTH}}}[0-9A-Za-z]{{49}}"
"""What a token looks like, as a regular expression for those who look for secrets."""

_IDS: Final = "abcdefghijklmnopqrstuvwxyz234567"  # one case, for ids are names of records too; no 0 and 1
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_SECRET_LENGTH: Final = 43  # 62⁴³ > 2²⁵⁶
_SUM_LENGTH: Final = 6  # 62⁶ > 2³²
_SHAPE: Final = re.compile(PATTERN)
_LENGTH: Final = len(PREFIX) + ID_LENGTH + _SECRET_LENGTH + _SUM_LENGTH


class InvalidToken(ValueError):
    """A text that is no token. The message never holds any of it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A token as its holder has it. Whoever prints it by mistake prints the id only."""

    id: str
    octets: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not is_id(self.id) or len(self.octets) != SECRET_OCTETS:
            raise ValueError("a token has an id of eight characters and 32 octets of secret")

    @classmethod
    def new(cls, random: Callable[[int], bytes]) -> Self:
        """A token that nobody has."""
        numbers = int.from_bytes(random(5), "big")
        name = "".join([_IDS[numbers >> 5 * place & 31] for place in range(ID_LENGTH)])
        return cls(name, random(SECRET_OCTETS))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a token; raises `InvalidToken`."""
        if not text.startswith(PREFIX):
            raise InvalidToken(f"a token begins with {PREFIX}")
        if len(text) != _LENGTH:
            much = "more" if len(text) > _LENGTH else "less"
            raise InvalidToken(f"a token has {_LENGTH} characters, and this text has {much}: was it cut or doubled?")
        if _SHAPE.fullmatch(text) is None:
            raise InvalidToken("the text has a character that no token has")
        body, checksum = text[:-_SUM_LENGTH], text[-_SUM_LENGTH:]
        if not hmac.compare_digest(_checksum(body), checksum):
            raise InvalidToken("the token is mistyped: its last characters do not fit the others")
        number = 0
        for digit in body[len(PREFIX) + ID_LENGTH :]:
            number = number * len(_DIGITS) + _VALUES[digit]
        if number >> 8 * SECRET_OCTETS:
            raise InvalidToken("the text is no token: its secret is too large")
        return cls(body[len(PREFIX) : len(PREFIX) + ID_LENGTH], number.to_bytes(SECRET_OCTETS, "big"))

    def text(self) -> str:
        """The text, to be shown once."""
        body = f"{PREFIX}{self.id}{_written(int.from_bytes(self.octets, 'big'), _SECRET_LENGTH)}"
        return body + _checksum(body)

    def digest(self) -> bytes:
        """What a server keeps."""
        return hashlib.sha256(self.octets).digest()

    def matches(self, digest: bytes) -> bool:
        """Whether this is the token of which a server has kept that; takes as long for every wrong one."""
        return hmac.compare_digest(self.digest(), digest)


def is_id(text: str) -> bool:
    """Whether a text has the form of a token's id."""
    return len(text) == ID_LENGTH and all(character in _IDS for character in text)


def _written(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _checksum(body: str) -> str:
    return _written(zlib.crc32(body.encode("ascii")), _SUM_LENGTH)
