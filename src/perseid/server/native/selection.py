"""Selection of values from the answers view, as raw bytes.

A request selects values by index and type (§9.3 of the protocol). The view stores values in wire format, so they are
selected and copied without parsing: an index is compared as its four bytes, a type as its bytes with folded case.
Folding changes ASCII letters only, so on UTF-8 this matches what `records.types.TypeQuery` matches on text; a test
compares them.

Items are read as docs/reference/answers-format.md says. Nearly always there is one item under a key, which is read
here; several items, or invalid ones, are left to `ledger.views.answers_format`.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import choose_item, decode_handle, store_key

INDEX_SIZE: Final = 4
TYPE_LENGTH_OFFSET: Final = 14
"""Offset of the length of the type in a value."""
TYPE_OFFSET: Final = 18
"""Offset of the type."""

MAX_CACHED_SELECTIONS: Final = 256
"""Cached selections: clients use a handful, over and over. One needs at most some 15 KiB."""

_NUMBER = Struct(">i")
_FAMILY = b"."  # at the end of a query: the type and all below it


# The first byte of a handle's item.
_EXACT, _SPELLED = 0x08, 0x80
_STATE, _NORMAL = 0x07, State.NORMAL.value
_NOT_PLAIN = 0x10 | _EXACT  # has private values, or is case-sensitive

_COUNTS = [count.to_bytes(4, "big") for count in range(0x80)]
_CONTINUED = 0x80  # another byte of the number follows
_MAX_SHIFT = 28  # numbers have at most five bytes


class FastPathMiss(Exception):
    """A request, or an item of the view, that the fast path does not handle."""


class Selection:
    """The values that a request selects, by index or by type."""

    __slots__ = ("_exact", "_families", "_indexes", "_lengths")

    def __init__(self, indexes: frozenset[bytes], types: list[bytes]) -> None:
        folded = [type_.upper() for type_ in types]
        self._indexes = indexes
        self._exact = frozenset([type_.removesuffix(_FAMILY) for type_ in folded])
        self._families = frozenset([type_ for type_ in folded if type_.endswith(_FAMILY)])
        self._lengths = frozenset([len(type_) for type_ in self._families])

    def choose(self, data: bytes, at: int, lengths: list[int]) -> list[bytes]:
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


# Items of the view


def read_item(name: bytes, data: bytes, *, sensitive: bool) -> tuple[int, bytes, int, list[int]] | None:
    """Return the matching item: its head, data, offset of its values, and the length of each; None if there is none.

    Raises `FastPathMiss` for an item stored under another case rule than the namespace has now.
    """
    head = data[0]
    start, at = 1, 1
    if head & _SPELLED:
        length, start = _read_varint(data, 1)
        at = start + length
    lengths, values_at = read_lengths(data, at)
    if values_at + sum(lengths) != len(data):
        return _read_matching_item(name, data, sensitive)
    if bool(head & _EXACT) is not sensitive:
        raise FastPathMiss("the record was stored under another case rule")
    if sensitive:
        # Both fold to the same letters, so they have the same length; the case of the prefix is ignored.
        spelling = data[start:at] if head & _SPELLED else name.upper()
        slash = name.index(b"/")
        if spelling[slash:] != name[slash:]:
            return None
    return head, data, values_at, lengths


def read_plain_record(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the number of values as in a response, and the values, if the item is plain; else None.

    Plain means: a single published item without private values, in a namespace that ignores case, with only one-byte
    numbers. Anything else, or a damaged item, is left to `read_item`.
    """
    head = data[0]
    at = 1
    if head & _SPELLED:
        at = data[1]
        if at & _CONTINUED:
            return None
        at += 2
    if head & _NOT_PLAIN or head & _STATE != _NORMAL:
        return None
    count = data[at]
    at += 1
    values_at = at + count
    lengths = data[at:values_at]
    if not 0 < count < _CONTINUED or not lengths.isascii() or values_at + sum(lengths) != len(data):
        return None
    return _COUNTS[count], data[values_at:]


def read_scheme(data: bytes) -> bytes:
    """Return the suffix scheme in the item of a prefix."""
    length, at = _read_varint(data, 1)
    return data[at : at + length]


def _read_matching_item(name: bytes, data: bytes, sensitive: bool) -> tuple[int, bytes, int, list[int]] | None:
    """The same for names that differ in case alone."""
    items = decode_handle(store_key(name), data)
    if not sensitive or not all(item.exact for item in items):
        raise FastPathMiss("the record was stored under another case rule")
    item = choose_item(items, name)
    if item is None:
        return None
    whole = item.to_bytes(item.spelling)  # so that it is left out
    lengths, at = read_lengths(whole, 1)
    return whole[0], whole, at, lengths


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of the view, and its end."""
    byte = data[at]
    number, shift, at = byte & 0x7F, 0, at + 1
    while byte & _CONTINUED:
        shift += 7
        if shift > _MAX_SHIFT:
            raise FastPathMiss("a number of the view is too long")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
    return number, at


def read_lengths(data: bytes, at: int) -> tuple[list[int], int]:
    """Return the lengths of a run of values, and the offset of the values."""
    count, at = _read_varint(data, at)
    lengths = []
    for _ in range(count):
        length = data[at]
        at += 1
        if length & _CONTINUED:
            length, at = _read_varint(data, at - 1)
        lengths.append(length)
    return lengths, at


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
