"""The `Basic` scheme of the Authorization header (HTTP API, 7.2): a key, `INDEX:HANDLE`, and its secret.

    Basic base64( 300%3A12345/user : secret )

The name ends at the first colon, so the colon between index and handle has to be percent-encoded, and so has every
other one in the name, and every percent sign. The secret is the octets that follow, colons included.

Better than deployed servers on purpose: octets in the name that are not percent-encoded are UTF-8; and where the colon
behind the index was not encoded, `300:12345/user:secret`, which is the most common mistake, the name that was meant is
taken. A name of digits alone is no handle, so nobody else can be meant.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from perseid.records.encoding import from_base64
from perseid.records.errors import InvalidData
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import shown

from .handle_proofs import NOBODYS

FORM: Final = "the user name is INDEX:HANDLE, the colon written as %3A: 300%3A12345/user"
"""What a user name looks like."""

_COLON = b":"


class NotUnderstood(Exception):
    """A header that names nobody; the message says what is wrong, and holds nothing of what it held."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a secret."""

    written: str
    """The name, percent signs decoded."""
    reference: ValueRef
    """The key that it means; index 0 if it is to be found."""
    secret: bytes = field(repr=False)
    guessed: bool = False
    """Whether the colon behind the index was not encoded, so that where the handle ends had to be guessed."""

    @property
    def remark(self) -> str:
        """How the name was read, for a refusal: it is the name that most often is wrong."""
        if not self.guessed:
            return f"the name was read as {shown(str(self.reference))}"
        cut = "the handle ends at its first colon unless that is written as %3A"
        return f"the name was read as {shown(str(self.reference))}; {cut}"


def parse(text: str) -> Credentials:
    """What stands behind the name of the scheme; raises `NotUnderstood`."""
    try:
        octets = from_base64(text, "the header")
    except InvalidData:
        raise NotUnderstood(f"the Basic credentials are not base64; {FORM}") from None
    name, colon, secret = octets.partition(_COLON)
    if not colon:
        raise NotUnderstood(f"the Basic credentials have no colon before the secret; {FORM}")
    guessed = name.isdigit()
    if guessed:
        handle, colon, secret = secret.partition(_COLON)
        if not colon:
            raise NotUnderstood(f"the Basic credentials name an index and no handle; {FORM}")
        name = name + _COLON + handle
    try:
        written = unquote_to_bytes(name).decode("utf-8")
        return Credentials(written, ValueRef.parse(written), secret, guessed)
    except UnicodeDecodeError:
        raise NotUnderstood(f"the user name is not UTF-8; {FORM}") from None
    except InvalidData:
        raise NotUnderstood(f"the user name is not the name of a key; {FORM}") from None


def write(name: str, secret: bytes) -> str:
    """A name and a secret as they stand behind the name of the scheme."""
    return base64.b64encode(quote(name, safe="/").encode("ascii") + _COLON + secret).decode("ascii")


def proving(credentials: Credentials, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that is the secret; None if it is none of them.

    All are looked at, and one that nobody has if there are none: time does not tell who exists.
    """
    given = _hash(credentials.secret)
    candidates = [key for key in keys if key.data]  # an empty secret everybody knows
    equal = [key for key in candidates or [NOBODYS] if hmac.compare_digest(_hash(key.data), given)]
    return equal[0] if candidates and equal else None


def _hash(secret: bytes) -> bytes:
    """Of one length, so that the comparison does not tell how long a secret is."""
    return hashlib.sha256(secret).digest()
