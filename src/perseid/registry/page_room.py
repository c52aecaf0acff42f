"""How much a page holds: so many items, and so many octets.

Records may be large. A thousand of them could be a thousand megabytes, which nobody can be sent at once, and which a
process should not hold. So a page ends where its items or its octets are used up, whichever comes first, and the next
one goes on there. The first item of a page always has room: whoever goes from page to page comes to the end, however
large a record is.
"""

from collections.abc import Iterable
from typing import Final

from perseid.records.value import Value

MAX_PAGE_OCTETS: Final = 1 << 22
"""Octets on a page, as they are kept; in JSON binary data has a third more. A thousand usual records are a quarter of
it, so that only pages of large ones end here. It is written in a tenth of a second, and read over a slow line in some
seconds."""

OF_ITEM: Final = 256
OF_VALUE: Final = 128
OF_REFERENCE: Final = 32
"""What an item, a value and a reference count besides their texts and data: names of members, numbers, times."""


class Room:
    """What is left on a page."""

    __slots__ = ("_is_empty", "_items", "_octets")

    def __init__(self, items: int) -> None:
        self._items = items
        self._octets = MAX_PAGE_OCTETS
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        """Whether nothing more has room."""
        return self._items <= 0 or self._octets <= 0

    def take(self, octets: int) -> bool:
        """Take an item of so many octets, if it has room; the first one has, whatever it takes."""
        octets += OF_ITEM
        if self._items <= 0 or (octets > self._octets and not self._is_empty):
            return False
        self._is_empty = False
        self._items -= 1
        self._octets -= octets
        return True


def octets_of(values: Iterable[Value]) -> int:
    """What values take on a page."""
    return sum([_octets(value) for value in values])


def _octets(value: Value) -> int:
    octets = OF_VALUE + len(value.type) + len(value.data)
    if value.references:
        octets += sum([OF_REFERENCE + len(reference.handle) for reference in value.references])
    return octets
