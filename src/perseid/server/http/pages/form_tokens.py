"""Tokens that protect forms against cross-site request forgery.

A browser sends remembered passwords and certificates with every form that targets this server, whichever site the
form comes from. Every form that changes something therefore contains a token bound to one identity and a lifetime.
It is signed with a key derived from the ledger, so it is valid on every node and after restarts, and nothing is
stored. The random number in it differs in each form and identifies a form that is sent twice.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

PURPOSE: Final = b"forms of pages"
"""The purpose for which the key is derived from the ledger's secret."""

LIFETIME: Final = 7_200
"""Seconds for which a form can be sent: two hours."""

NUMBER_BYTES: Final = 16
"""Length of the random number in bytes; long enough to be unique."""

_TIME_BYTES: Final = 8
_TAG_BYTES: Final = hashlib.sha256().digest_size
_LENGTH: Final = _TIME_BYTES + NUMBER_BYTES + _TAG_BYTES
_MAX_TEXT: Final = 2 * _LENGTH  # longer than its base64 form


class InvalidFormToken(Exception):
    """A token that is forged, expired or for another identity; the message says what to do."""


class FormTokens:
    """Creates and checks tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, identity: str, now: float, random: Callable[[int], bytes]) -> str:
        """Create a token for an identity, valid from `now`."""
        head = (int(now) + LIFETIME).to_bytes(_TIME_BYTES, "big") + random(NUMBER_BYTES)
        return base64.urlsafe_b64encode(head + self._tag(head, identity)).rstrip(b"=").decode()

    def read(self, token: str, identity: str, now: float) -> bytes:
        """Return the random number of a valid token; raises `InvalidFormToken`."""
        data = _decode(token)
        head, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if len(data) != _LENGTH or not hmac.compare_digest(tag, self._tag(head, identity)):
            raise InvalidFormToken("the form was not issued to you by this server; use the new form below")
        if now >= int.from_bytes(head[:_TIME_BYTES], "big"):
            raise InvalidFormToken(f"the form is older than {LIFETIME // 3_600} hours; use the new form below")
        return head[_TIME_BYTES:]

    def _tag(self, head: bytes, identity: str) -> bytes:
        return hmac.digest(self._secret, head + identity.encode("utf-8", "surrogatepass"), hashlib.sha256)


def _decode(token: str) -> bytes:
    """Decode the text of a token; return no bytes if it is invalid."""
    try:
        if len(token) > _MAX_TEXT:
            return b""
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars="-_", validate=True)
    except ValueError:
        return b""
