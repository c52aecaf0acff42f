"""Selection of values from the answers view, as raw bytes.

A request selects values by index and type (§9.3 of the protocol). The view stores values in wire format, so they are
selected and copied without parsing: an index is compared as its four bytes, a type as its bytes with folded case.
Folding changes ASCII letters only, so on UTF-8 this matches what `records.types.TypeQuery` matches on text; a test
compares them.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from perseid.records.value import TYPE_LENGTH_OFFSET, TYPE_OFFSET

INDEX_SIZE: Final = 4

MAX_CACHED_SELECTIONS: Final = 256
"""Cached selections: clients use a handful, over and over. One needs at most some 15 KiB."""

_NUMBER = Struct(">i")
_FAMILY = b"."  # at the end of a query: the type and all below it


class FastPathMiss(Exception):
    """A request that the fast path does not handle."""


class Selection:
    """The values that a request selects, by index or by type."""

    __slots__ = ("_exact", "_families", "_indexes", "_lengths")

    def __init__(self, indexes: frozenset[bytes], types: list[bytes]) -> None:
        folded = [type_.upper() for type_ in types]
        self._indexes = indexes
        self._exact = frozenset([type_.removesuffix(_FAMILY) for type_ in folded])
        self._families = frozenset([type_ for type_ in folded if type_.endswith(_FAMILY)])
        self._lengths = frozenset([len(type_) for type_ in self._families])

    def choose(self, data: bytes, at: int, lengths: Sequence[int]) -> list[bytes]:
        """Return the matching values; all of them are contiguous from `at` on and have these lengths."""
        indexes, exact, families = self._indexes, self._exact, self._families
        chosen = []
        for length in lengths:
            end = at + length
            if data[at : at + INDEX_SIZE] in indexes:
                chosen.append(data[at:end])
            elif exact:
                start = at + TYPE_OFFSET
                type_end = start + int.from_bytes(data[at + TYPE_LENGTH_OFFSET : start], "big")
                folded = data[start : min(type_end, end)].upper()
                if folded in exact or (families and any(folded[:size] in families for size in self._lengths)):
                    chosen.append(data[at:end])
            at = end
        return chosen


@lru_cache(MAX_CACHED_SELECTIONS)
def parse_selection(lists: bytes) -> Selection | None:
    """Parse the lists of indexes and types of a request; None if they are empty, which selects everything.

    What follows them in the body is ignored, as deployed.
    """
    count, at = _read_count(lists, 0)
    after = at + INDEX_SIZE * count
    indexes = frozenset([lists[start : start + INDEX_SIZE] for start in range(at, after, INDEX_SIZE)])
    count, at = _read_count(lists, after)
    types = []
    for _ in range(count):
        length, start = _read_int(lists, at)
        at = start + length
        type_ = lists[start:at]
        if len(type_) < length or not is_utf8(type_):
            raise FastPathMiss("a type is truncated, or not UTF-8")
        types.append(type_)
    return Selection(indexes, types) if indexes or types else None


def is_utf8(data: bytes) -> bool:
    """Whether data is valid UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# Lists of a request


def _read_int(lists: bytes, at: int) -> tuple[int, int]:
    """A length or a count, and its end."""
    after = at + _NUMBER.size
    if after > len(lists):
        raise FastPathMiss("a list is truncated")
    number: int = _NUMBER.unpack_from(lists, at)[0]
    if number < 0:
        raise FastPathMiss("a length or a count is negative")
    return number, after


def _read_count(lists: bytes, at: int) -> tuple[int, int]:
    """The number of items, each of at least four bytes; never more than fit."""
    count, at = _read_int(lists, at)
    if at + INDEX_SIZE * count > len(lists):
        raise FastPathMiss("a list is shorter than its count")
    return count, at
