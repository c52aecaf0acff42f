"""What a resolution asks for and what the answers view has, as octets: which values, of which item.

A request names values by index and type (§9.3 of the protocol). The view keeps values as the wire has them, so they are
chosen and copied without taking any apart: an index is compared as its four octets, a type as its octets with folded
letters. Folding touches ASCII letters only, so on UTF-8 this finds what `records.types.TypeQuery` finds on text; a test
compares them.

Items are read as docs/reference/answers-format.md says. Nearly always one stands alone under its key, and that is read
here; several, or what is none, are left to `ledger.answer_format`.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import choose_item, decode_handle, store_key

INDEX_SIZE: Final = 4
TYPE_LENGTH_OFFSET: Final = 14
"""Where the length of its type stands in a value."""
TYPE_OFFSET: Final = 18
"""Where the type itself stands."""

MAX_CACHED_SELECTIONS: Final = 256
"""How many are kept to be used again: clients ask for a handful, over and over. One takes at most some 15 KiB."""

_NUMBER = Struct(">i")
_FAMILY = b"."  # at the end of a query: the type and all below it


# The first octet of a handle's item.
_EXACT, _SPELLED = 0x08, 0x80
_STATE, _NORMAL = 0x07, State.NORMAL.value
_NOT_PLAIN = 0x10 | _EXACT  # private values exist, or letters are told apart

_COUNTS = [count.to_bytes(4, "big") for count in range(0x80)]
_CONTINUED = 0x80  # of an octet of a number in the view: another one follows
_MAX_SHIFT = 28  # numbers have at most five octets


class FastPathMiss(Exception):
    """Somebody else shall judge this: a request, or an item of the view, that is not of a kind known here."""


class Selection:
    """The values that a request names; a value qualifies by its index or by its type."""

    __slots__ = ("_exact", "_families", "_indexes", "_lengths")

    def __init__(self, indexes: frozenset[bytes], types: list[bytes]) -> None:
        folded = [type_.upper() for type_ in types]
        self._indexes = indexes
        self._exact = frozenset([type_.removesuffix(_FAMILY) for type_ in folded])
        self._families = frozenset([type_ for type_ in folded if type_.endswith(_FAMILY)])
        self._lengths = frozenset([len(type_) for type_ in self._families])

    def choose(self, data: bytes, at: int, lengths: list[int]) -> list[bytes]:
        """Those of the values that qualify; they stand side by side from `at` on and have these lengths."""
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
    """Take the lists of indexes and types of a request; None if they are empty: then everything is asked for.

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
            raise FastPathMiss("a type is cut, or not UTF-8")
        types.append(type_)
    return Selection(indexes, types) if indexes or types else None


def is_utf8(data: bytes) -> bool:
    """Whether octets are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# Items of the view


def read_item(name: bytes, data: bytes, *, sensitive: bool) -> tuple[int, bytes, int, list[int]] | None:
    """The item that a name means: its head, octets, where in them its values begin, and how long each is.

    None if there is none. An item that was kept under another case rule than the namespace has now is not for us.
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
        raise FastPathMiss("the record was kept under another case rule")
    if sensitive:
        # Both have the same folded letters, so they are alike in length; of the prefix letters never count.
        spelling = data[start:at] if head & _SPELLED else name.upper()
        slash = name.index(b"/")
        if spelling[slash:] != name[slash:]:
            return None
    return head, data, values_at, lengths


def read_plain_record(data: bytes) -> tuple[bytes, bytes] | None:
    """How many values an item has, as an answer says it, and the values, if the item is as most are.

    That is: a single published one without private values, in a namespace that does not tell letters apart, with no
    number in it that takes more than an octet. None if it is anything else, or damaged: `read_item` then has a look.
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
    """The suffix scheme that the item of a prefix names."""
    length, at = _read_varint(data, 1)
    return data[at : at + length]


def _read_matching_item(name: bytes, data: bytes, sensitive: bool) -> tuple[int, bytes, int, list[int]] | None:
    """The same where names differ in their letters alone."""
    items = decode_handle(store_key(name), data)
    if not sensitive or not all(item.exact for item in items):
        raise FastPathMiss("the record was kept under another case rule")
    item = choose_item(items, name)
    if item is None:
        return None
    whole = item.to_bytes(item.spelling)  # which is then left out
    lengths, at = read_lengths(whole, 1)
    return whole[0], whole, at, lengths


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of the view, and where it ends."""
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
    """The lengths of a run of values, and where the values begin."""
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
    """A length or a count, and where it ends."""
    after = at + _NUMBER.size
    if after > len(lists):
        raise FastPathMiss("a list is cut")
    number: int = _NUMBER.unpack_from(lists, at)[0]
    if number < 0:
        raise FastPathMiss("a length or a count is negative")
    return number, after


def _read_count(lists: bytes, at: int) -> tuple[int, int]:
    """How many items follow, each of at least four octets; never more than there is room for."""
    count, at = _read_int(lists, at)
    if at + INDEX_SIZE * count > len(lists):
        raise FastPathMiss("more items are announced than there are")
    return count, at
