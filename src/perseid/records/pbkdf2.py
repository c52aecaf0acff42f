"""Keys from passwords: PBKDF2 with HMAC-SHA1, as deployed, within bounds.

Whoever sends or writes the parameters makes us do the work, so their numbers are judged before anything is computed.
The deployed code hands PBKDF2 a character string, one character for each octet of the password, and that is encoded
in UTF-8 before it is used (native protocol, 13.5, "password quirk"): see `widened`.
"""

import hashlib
from typing import Final

from .errors import InvalidData

MAX_ITERATIONS: Final = 100_000
"""The most iterations: ten times what is deployed. With the longest derived key they cost 0.1 s."""

MAX_BITS: Final = 512
"""The longest derived key: every 160 bits cost all iterations once more, and no cipher here takes more than 256."""

MIN_BITS: Final = 128
"""The shortest derived key. Its length is the peer's choice too: an answer made with a derived key of eight bits could
be guessed by somebody who does not know the password."""

ITERATIONS: Final = 10_000
"""What deployed software writes, in answers and in key files."""


def derive(password: bytes, salt: bytes, iterations: int, bits: int, *, most: int = MAX_ITERATIONS) -> bytes:
    """The derived key; parameters out of bounds are refused, more iterations than the `most` among them."""
    if not 1 <= iterations <= most:
        raise InvalidData(f"{iterations} iterations of PBKDF2 are not between 1 and {most:,}")
    if not MIN_BITS <= bits <= MAX_BITS or bits % 8:
        raise InvalidData(f"a derived key has {MIN_BITS} to {MAX_BITS} bits, in whole octets; not {bits}")
    return hashlib.pbkdf2_hmac("sha1", password, salt, iterations, bits // 8)


def widened(octets: bytes) -> bytes:
    """Every octet taken for a character and encoded in UTF-8: `80` becomes `c2 80`, ASCII stays what it is."""
    return octets.decode("latin-1").encode("utf-8")
