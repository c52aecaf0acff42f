"""Where a page ended, for whoever asks for the next one: sealed, so that it tells nothing and nobody can make one up.

A page may end at a record that its reader may not see, or at a private value of one. If such a place were told in the
open, or places could be made up, the answers would show which entries have something in a range of an index, and
private values could be guessed letter by letter.

A place is sealed for one search, with a key that follows from the ledger (`Reading.secret`): it is good on every node
and after every start, and nothing is kept for it.

How much a page holds: so many items, and so many octets.

Records may be large. A thousand of them could be a thousand megabytes, which nobody can be sent at once, and which a
process should not hold. So a page ends where its items or its octets are used up, whichever comes first, and the next
one goes on there. The first item of a page always has room: whoever goes from page to page comes to the end, however
large a record is.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from perseid.ledger.log.reader import LogReader
from perseid.records.value import Value

DIGEST_BYTES: Final = 8
"""Of a digest that tells the keys of one entry apart."""

_PURPOSE: Final = b"page ends"
_CURSOR = Struct(f">q{DIGEST_BYTES}s")
_CURSOR_DIGITS: Final = 2 * (_CURSOR.size + 16)  # of which 16 octets show that nobody changed it
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


class CursorCodec:
    """The ends of the pages of one search."""

    def __init__(self, reading: LogReader, search: object) -> None:
        """`search` is what the places belong to; its `repr` tells it from all others."""
        self._reading = reading
        self._search = repr(search).encode("utf-8", "surrogatepass")

    def told(self, seq: int, mark: bytes = b"") -> str:
        """An entry, and a mark of its key, as a reader gets them."""
        return self._cipher().encrypt(_CURSOR.pack(seq, mark), [self._search]).hex()

    def read(self, told: str) -> tuple[int, bytes] | None:
        """The entry and the mark; None if no page of this search ended there."""
        if len(told) != _CURSOR_DIGITS or not _HEXADECIMAL.issuperset(told):
            return None
        try:
            seq, mark = _CURSOR.unpack(self._cipher().decrypt(bytes.fromhex(told), [self._search]))
        except InvalidTag:
            return None
        return seq, mark

    def _cipher(self) -> AESSIV:
        return AESSIV(self._reading.secret(_PURPOSE))


def mark(number: int, key: bytes) -> bytes:
    """What tells a key in the range of this number from the others of an entry."""
    return blake2b(number.to_bytes(2, "big") + key, digest_size=DIGEST_BYTES).digest()


MAX_PAGE_BYTES: Final = 1 << 22
"""Octets on a page, as they are kept; in JSON binary data has a third more. A thousand usual records are a quarter of
it, so that only pages of large ones end here. It is written in a tenth of a second, and read over a slow line in some
seconds."""

ITEM_OVERHEAD: Final = 256
VALUE_OVERHEAD: Final = 128
REFERENCE_OVERHEAD: Final = 32
"""What an item, a value and a reference count besides their texts and data: names of members, numbers, times."""


class PageBudget:
    """What is left on a page."""

    __slots__ = ("_is_empty", "_items", "_octets")

    def __init__(self, items: int) -> None:
        self._items = items
        self._octets = MAX_PAGE_BYTES
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        """Whether nothing more has room."""
        return self._items <= 0 or self._octets <= 0

    def take(self, octets: int) -> bool:
        """Take an item of so many octets, if it has room; the first one has, whatever it takes."""
        octets += ITEM_OVERHEAD
        if self._items <= 0 or (octets > self._octets and not self._is_empty):
            return False
        self._is_empty = False
        self._items -= 1
        self._octets -= octets
        return True


def values_size(values: Iterable[Value]) -> int:
    """What values take on a page."""
    return sum([_value_size(value) for value in values])


def _value_size(value: Value) -> int:
    octets = VALUE_OVERHEAD + len(value.type) + len(value.data)
    if value.references:
        octets += sum([REFERENCE_OVERHEAD + len(reference.handle) for reference in value.references])
    return octets
