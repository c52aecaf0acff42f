"""Pagination: encrypted cursors and the size limit of pages.

A page can end at a record, or a private value, that the caller may not see. If cursors were readable or could be
forged, responses would reveal which entries have something in a range of an index, and private values could be guessed
byte by byte. So a cursor is encrypted for one search with a key derived from the ledger (`LogReader.secret`): it works
on every node and after a restart, and nothing is stored for it.

Records can be large: a thousand of them could be a thousand megabytes. So a page ends when its number of items or its
bytes are used up, and the next one continues there. The first item of a page always fits, so every listing reaches its
end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from perseid.records.record import Value
from perseid.registry.advice import AdviceKind
from perseid.registry.results import InvalidQuery
from perseid.schema.common import MAX_PAGE_BYTES

if TYPE_CHECKING:  # only cursors need them
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    from perseid.ledger.log.reader import LogReader

MAX_PAGE: Final = 1_000
"""Maximum number of items on a page, which limits the cost of one request."""

DEFAULT_PAGE: Final = 100

DIGEST_BYTES: Final = 8
"""Length of the digest that distinguishes the keys of one entry."""

_PURPOSE: Final = b"page ends"
_CURSOR = Struct(f">q{DIGEST_BYTES}s")
_CURSOR_DIGITS: Final = 2 * (_CURSOR.size + 16)  # 16 bytes are the authentication tag
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """A page of items, in order."""

    items: tuple[T_co, ...]
    last: int
    """The entry at which the page ended, as the cursor of the next one."""
    more: bool
    """Whether there may be a next page."""


def page_size(limit: int) -> int:
    """Return the number of items on a page for a requested limit."""
    if limit < 1:
        raise InvalidQuery(f"Invalid limit {limit}", AdviceKind.USE_LIMIT())
    return min(limit, MAX_PAGE)


class CursorCodec:
    """Encodes and decodes the cursors of one search."""

    def __init__(self, reader: "LogReader", search: object) -> None:
        """`search` identifies the search by its `repr`."""
        self._reader = reader
        self._search = repr(search).encode("utf-8", "surrogatepass")

    def encode(self, seq: int, mark: bytes = b"") -> str:
        """Encode an entry and the digest of its key."""
        return self._cipher().encrypt(_CURSOR.pack(seq, mark), [self._search]).hex()

    def decode(self, cursor: str) -> tuple[int, bytes] | None:
        """Decode the entry and the digest; None if the cursor does not belong to this search."""
        if len(cursor) != _CURSOR_DIGITS or not _HEXADECIMAL.issuperset(cursor):
            return None
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see above

        try:
            seq, mark = _CURSOR.unpack(self._cipher().decrypt(bytes.fromhex(cursor), [self._search]))
        except InvalidTag:
            return None
        return seq, mark

    def _cipher(self) -> "AESSIV":
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415 - see above

        return AESSIV(self._reader.secret(_PURPOSE))


def mark(number: int, key: bytes) -> bytes:
    """Return the digest that distinguishes a key of this range from the other keys of an entry."""
    return blake2b(number.to_bytes(2, "big") + key, digest_size=DIGEST_BYTES).digest()


ITEM_OVERHEAD: Final = 256
VALUE_OVERHEAD: Final = 128
REFERENCE_OVERHEAD: Final = 32
"""Bytes for an item, a value and a reference in addition to texts and data: field names, numbers, times."""


class PageBudget:
    """Remaining items and bytes of a page."""

    __slots__ = ("_bytes", "_is_empty", "_items")

    def __init__(self, items: int) -> None:
        self._items = items
        self._bytes = MAX_PAGE_BYTES
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        return self._items <= 0 or self._bytes <= 0

    def take(self, size: int) -> bool:
        """Add an item of this size in bytes if it fits; the first one always does."""
        size += ITEM_OVERHEAD
        if self._items <= 0 or (size > self._bytes and not self._is_empty):
            return False
        self._is_empty = False
        self._items -= 1
        self._bytes -= size
        return True


def values_size(values: Iterable[Value]) -> int:
    """Return the size of values on a page, in bytes."""
    return sum([_value_size(value) for value in values])


def _value_size(value: Value) -> int:
    size = VALUE_OVERHEAD + len(value.type) + len(value.data)
    if value.references:
        size += sum([REFERENCE_OVERHEAD + len(reference.handle) for reference in value.references])
    return size
