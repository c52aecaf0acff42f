"""Tokens in forms, by which a form of ours is told from one that a page of somebody else has a browser send.

A browser sends a remembered password or a certificate along with every form that leads here, whoever has written it.
So each form in which somebody can change something has a token in it, which only they can have got: it names nobody,
and is good for one identity, for a while. It is signed with a key that follows from the ledger, so it is good on every
node and after every start, and nothing is kept for it. The number in it is different in each form; by that a form that
is sent twice is known.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

PURPOSE: Final = b"forms of pages"
"""Of the ledger's secret."""

LIFETIME: Final = 7_200
"""Seconds for which a form can be sent: two hours. Who comes back to it later gets a new one."""

NUMBER_BYTES: Final = 16
"""Octets of the number: enough that no two forms have the same."""

_TIME_BYTES: Final = 8
_TAG_BYTES: Final = hashlib.sha256().digest_size
_LENGTH: Final = _TIME_BYTES + NUMBER_BYTES + _TAG_BYTES
_MAX_TEXT: Final = 2 * _LENGTH  # more than its base64 has


class InvalidFormToken(Exception):
    """A token that was not made here, not for this identity, or too long ago; the text says what to do."""


class FormTokens:
    """Makes tokens and reads them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, identity: str, now: float, random: Callable[[int], bytes]) -> str:
        """A token for an identity, from now on."""
        head = (int(now) + LIFETIME).to_bytes(_TIME_BYTES, "big") + random(NUMBER_BYTES)
        return base64.urlsafe_b64encode(head + self._tag(head, identity)).rstrip(b"=").decode()

    def read(self, token: str, identity: str, now: float) -> bytes:
        """The number of a token that is good; raises `NotOurs`."""
        data = _decode(token)
        head, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if len(data) != _LENGTH or not hmac.compare_digest(tag, self._tag(head, identity)):
            raise InvalidFormToken("the form is not one that this server has given you; here is a new one")
        if now >= int.from_bytes(head[:_TIME_BYTES], "big"):
            raise InvalidFormToken(f"the form is older than {LIFETIME // 3_600} hours; here is a new one")
        return head[_TIME_BYTES:]

    def _tag(self, head: bytes, identity: str) -> bytes:
        return hmac.digest(self._secret, head + identity.encode("utf-8", "surrogatepass"), hashlib.sha256)


def _decode(token: str) -> bytes:
    """What the text of a token stands for; nothing, if it cannot be read."""
    try:
        if len(token) > _MAX_TEXT:
            return b""
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars="-_", validate=True)
    except ValueError:
        return b""
