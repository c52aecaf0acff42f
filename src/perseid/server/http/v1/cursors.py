"""Where the next page of a list begins: sealed, so that it tells nothing and nobody can make one up.

A page may end at something that its reader may not see. So a cursor is encrypted, with a key that follows from the
ledger: it is good on every node and after every start, and nothing is kept for it. It is bound to the list that it
belongs to, and to who reads it.
"""

import base64
from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

PURPOSE: Final = b"API cursors"
"""Of the ledger's secret."""

MAX_CURSOR: Final = 8_000
"""Characters of the longest cursor that is looked at: more does not fit into the head of a request."""

T = TypeVar("T")


class InvalidCursor(ValueError):
    """A cursor that no page of this list has ended with."""


class Cursors:
    """Seals and opens cursors."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESSIV(secret)

    def seal(self, place: object, belongs_to: bytes) -> str:
        """The cursor for a place: a plain object."""
        return _written(self._cipher.encrypt(msgspec.msgpack.encode(place), [belongs_to]))

    def open(self, cursor: str, belongs_to: bytes, type_: type[T]) -> T:
        """The place that a cursor stands for; raises `InvalidCursor`."""
        try:
            if len(cursor) > MAX_CURSOR:
                raise InvalidCursor
            octets = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
            if _written(octets) != cursor:
                raise InvalidCursor  # bits that mean nothing are set: nobody but a forger writes it so
            return msgspec.msgpack.decode(self._cipher.decrypt(octets, [belongs_to]), type=type_)
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            message = "the cursor is not one that this list has given you; begin at the first page, without a cursor"
            raise InvalidCursor(message) from None


def _written(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()
