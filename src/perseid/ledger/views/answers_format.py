"""The layout of the answers view: keys and items, byte by byte. No other module knows it.

The view has one store of handles and one of prefixes. Both are keyed by the case-folded name, whatever the case rule,
so one lookup serves them all. A handle's key has one *item* per record, a prefix's key one item that is composed from
several records. Values are in wire encoding, one after another, preceded by a list of their lengths: a whole record is
copied into a response at once, and a reader that looks for a type or an index skips from value to value. Two
small stores have the policies of prefixes, which only pages need, and digests of records that were deleted.

Every content has exactly one form, so two views are equal if their bytes are. Items contain public data only, because
processes that face the network have these files open. docs/reference/answers-format.md is the specification.

Items are decoded in two ways: `decode_handle` and `decode_prefix` return objects; `read_plain_item` and `read_item`,
which run for every request, only say where the values of a handle are, so that responses can copy them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple, Self, TypeAlias

from perseid.ledger.errors import AnswersUnavailable, CorruptView
from perseid.ledger.log.entry import PUBLIC_STATES, Change, LastUpdate, State
from perseid.ledger.log.record_keys import LOCAL
from perseid.names.handle import CaseRule
from perseid.records.record import PERMISSIONS_OFFSET, TYPE_LENGTH_OFFSET, TYPE_OFFSET, Permission
from perseid.records.types import HS_ALIAS, LOCATIONS

LAYOUT: Final = 6
"""The version of this layout; a view of another version is rebuilt."""

MAX_PLAIN_KEY: Final = 400
"""Bytes of the longest name that is its own key. LMDB keys end at 511 bytes, names at 2,048."""

DIGEST_LENGTH: Final = 16
"""Bytes of a SHA-256 in the keys of longer names and of the store `past`: enough to be collision-free."""

MAX_CACHED_PREFIXES: Final = 1_024
"""Cached items of prefixes: more than a site serves."""

SEQ_LENGTH: Final = 6
"""Bytes of the number of an entry in an item: 280 million million entries."""

TIME_LENGTH: Final = 7
"""Bytes of its time in microseconds since 1970, until the year 2540, and of two more bits."""

_BODY = 1 + SEQ_LENGTH + TIME_LENGTH  # where the spelling or the values of an item start
_TIME_SHIFT = 8 * SEQ_LENGTH
_SEQ_BITS = (1 << _TIME_SHIFT) - 1
_UPDATE_SHIFT = 8 * (SEQ_LENGTH + TIME_LENGTH) - 2
_TIME_BITS = (1 << 8 * TIME_LENGTH - 2) - 1

# The first byte of a handle's item.
_STATE_BITS = 0x07
_OTHER_STATE = 7  # a state of a newer program version: its values are not shown
_CASE_SENSITIVE = 0x08
PRIVATE: Final = 0x10
"""The record has values that are not public."""
ALIAS: Final = 0x20
"""There is a public HS_ALIAS value."""
LOCATION: Final = 0x40
"""There is a public 10320/loc value."""
_SPELLED = 0x80

_NOT_PLAIN = _STATE_BITS | _CASE_SENSITIVE
_PLAIN = State.NORMAL.value

# The first byte of a prefix's item.
_HOMED = 0x01
_HOMED_BARE = 0x02
_MARKER = 0x04
_TEMPLATES = 0x08
_CASE_SHIFT = 4
_UNUSED = 0xC0
_CASE_RULES = (None, CaseRule.SENSITIVE, CaseRule.INSENSITIVE, CaseRule.PATH)

HIDDEN_STATES: Final = (State.RESERVED, State.UNPUBLISHED)
"""States of a record that looks missing to the public."""

_LOCAL = LOCAL.encode()

_PUBLIC_READ = int(Permission.PUBLIC_READ)

_FLAG_PREFIX_LENGTH = 5  # enough to distinguish HS_ALIAS from HS_ADMIN, which nearly every record has
_FLAGGED_TYPES = frozenset(
    type_.upper().encode()[:_FLAG_PREFIX_LENGTH] for type_ in (HS_ALIAS, LOCATIONS)
)  # first bytes of the types that have flags
_CONTINUED = 0x80  # another byte of the number follows
_SINGLE = [bytes((number,)) for number in range(0x80)]
_MAX_SHIFT = 28  # numbers have at most five bytes


def store_key(name: bytes) -> bytes:
    """Return the key of a name or prefix in its store."""
    folded = name.upper()  # for bytes: ASCII letters only
    if len(folded) <= MAX_PLAIN_KEY:
        return folded
    return folded[:MAX_PLAIN_KEY] + sha256(folded).digest()[:DIGEST_LENGTH]


def past_key(record: bytes) -> bytes:
    """Return the key of a record in the store `past`, from its key in the ledger: names are not kept."""
    return sha256(record).digest()[:DIGEST_LENGTH]


def record_key(name: bytes, *, exact: bool) -> bytes:
    """Return a record's key in the ledger from bytes, like `record_keys.record_key`."""
    if not exact:
        return name.upper()
    prefix, slash, suffix = name.partition(b"/")
    return prefix.upper() + slash + suffix


# Handles


@dataclass(frozen=True, slots=True)
class HandleItem:
    """What resolution needs of one record."""

    spelling: bytes
    """The handle as spelled."""
    state: State
    """The handle's state. Only normal handles and tombstones have values here."""
    exact: bool = False
    """Whether the suffix is case-sensitive."""
    private: bool = False
    """Whether the record has values that are not public."""
    alias: bool = False
    """Whether there is a public HS_ALIAS value."""
    location: bool = False
    """Whether there is a public 10320/loc value."""
    values: tuple[bytes, ...] = ()
    """The public values in wire encoding, by ascending index."""
    seq: int = 0
    """The number of the record's latest entry; 0 unless the state is public."""
    at: int = 0
    """The time of that entry, in microseconds since 1970; 0 unless the state is public."""
    last_update: LastUpdate = LastUpdate.UNKNOWN
    """What that entry tells about when the values last changed."""

    @classmethod
    def of(cls, change: Change) -> Self | None:
        """Build the item of a record after a change; None if deleted or one of the installation's own."""
        spelling = change.handle.encode("utf-8")
        if change.state == State.ABSENT or is_local(spelling):
            return None
        if change.state not in PUBLIC_STATES:
            state = change.state if change.state < _OTHER_STATE else State(_OTHER_STATE)
            return cls(spelling, state, change.exact, private=True)
        values = tuple([content for content in change.contents if is_public(content)])
        alias = location = False
        for content in values:
            if content[TYPE_OFFSET : TYPE_OFFSET + _FLAG_PREFIX_LENGTH].upper() in _FLAGGED_TYPES:
                types = (value_type(content).upper(),)
                alias = alias or has_type(types, HS_ALIAS)
                location = location or has_type(types, LOCATIONS)
        private = len(values) < len(change.contents)
        entry = change.seq, change.at, change.last_update
        return cls(spelling, change.state, change.exact, private, alias, location, values, *entry)

    @property
    def key(self) -> bytes:
        """The record's key in the ledger: unique among the items under one key of the view."""
        return record_key(self.spelling, exact=self.exact)

    def to_bytes(self, key: bytes) -> bytes:
        """Encode the item for a key of the store; a spelling equal to the key is not repeated."""
        head = self.state | self.exact * _CASE_SENSITIVE | self.private * PRIVATE
        head |= self.alias * ALIAS | self.location * LOCATION
        if self.spelling == key:
            return b"".join((_pack_head(head, self), *_pack_values(self.values)))
        spelled = (_pack_head(head | _SPELLED, self), _pack_number(len(self.spelling)), self.spelling)
        return b"".join((*spelled, *_pack_values(self.values)))


class DeletedItem(NamedTuple):
    """What is known of a deleted record."""

    exact: bool
    """Whether the suffix was case-sensitive at the end."""
    last: tuple[int, int] | None
    """Entry and time of the version that the latest entry deleted, zeros if that was not public; None if there was none
    under this key just before: then only the ledger tells."""

    def to_bytes(self) -> bytes:
        """Encode the stored form: like the start of a handle's item, with the state of an absent record."""
        seq, at = self.last or (0, 0)
        head = self.exact * _CASE_SENSITIVE | (self.last is not None and not seq) * PRIVATE
        return (head | (seq | at << _TIME_SHIFT) << 8).to_bytes(_BODY, "little")

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Decode the stored form."""
        if len(raw) != _BODY or raw[0] & ~(_CASE_SENSITIVE | PRIVATE):
            raise CorruptView("the answers view has an invalid item of a deleted record", "answers")
        entry = int.from_bytes(raw[1:], "little")
        last = entry & _SEQ_BITS, entry >> _TIME_SHIFT
        return cls(bool(raw[0] & _CASE_SENSITIVE), last if entry or raw[0] & PRIVATE else None)


def encode_item(change: Change, key: bytes) -> bytes | None:
    """Encode `HandleItem.of(change)` for a key; None if there is no item.

    Runs for every entry, so the common case has a fast path.
    """
    spelling = change.handle.encode("utf-8")
    head = int(change.state)
    contents = change.contents
    values = [
        content
        for content in contents
        if len(content) > PERMISSIONS_OFFSET and content[PERMISSIONS_OFFSET] & _PUBLIC_READ
    ]
    types = [content[TYPE_OFFSET : TYPE_OFFSET + _FLAG_PREFIX_LENGTH].upper() for content in values]
    if head not in PUBLIC_STATES or is_local(spelling) or not _FLAGGED_TYPES.isdisjoint(types):
        item = HandleItem.of(change)
        return None if item is None else item.to_bytes(key)
    if change.exact:
        head |= _CASE_SENSITIVE
    if len(values) < len(contents):
        head |= PRIVATE
    lengths = [_pack_number(len(value)) for value in values]
    if spelling == key:
        return b"".join((_pack_head(head, change), _pack_number(len(values)), *lengths, *values))
    spelled = (_pack_head(head | _SPELLED, change), _pack_number(len(spelling)), spelling)
    return b"".join((*spelled, _pack_number(len(values)), *lengths, *values))


def decode_handle(key: bytes, raw: bytes) -> tuple[HandleItem, ...]:
    """Decode the items under a key of the store of handles."""
    items = []
    at = 0
    try:
        while True:
            head = raw[at]
            entry = int.from_bytes(raw[at + 1 : at + _BODY], "little")
            spelling, at = key, at + _BODY
            if head & _SPELLED:
                length, at = _unpack_number(raw, at)
                spelling, at = _read_bytes(raw, at, length)
                if spelling == key or store_key(spelling) != key:
                    raise CorruptView("the answers view has an item under the wrong key", "answers")
            values, at = _unpack_values(raw, at)
            if not head & _STATE_BITS:
                raise CorruptView("the answers view has an item of an absent record", "answers")
            items.append(
                HandleItem(
                    spelling,
                    _STATES[head & _STATE_BITS],
                    bool(head & _CASE_SENSITIVE),
                    bool(head & PRIVATE),
                    bool(head & ALIAS),
                    bool(head & LOCATION),
                    values,
                    entry & _SEQ_BITS,
                    entry >> _TIME_SHIFT & _TIME_BITS,
                    LastUpdate(entry >> _UPDATE_SHIFT),
                )
            )
            if at == len(raw):
                break
    except IndexError:
        raise _truncated_error() from None
    if len(items) > 1:
        keys = [item.key for item in items]
        if any(first >= second for first, second in pairwise(keys)):
            raise CorruptView("items of the answers view are out of order", "answers")
    return tuple(items)


StoredItem: TypeAlias = tuple[int, bool, bytes, int, Sequence[int]]
"""A record's state, whether it has private values, and its public values: the bytes with them, their offset, their
lengths."""


def read_plain_item(raw: bytes, refused: int = 0) -> tuple[int, Sequence[int]] | None:
    """Return where the values under a key start, and the length of each, if there is one plain item; else None.

    Plain means: a single published record with values, in a namespace that ignores case, without the flags `refused`
    (of `PRIVATE`, `ALIAS` and `LOCATION`). Raises `IndexError` or `CorruptView` if the item is damaged.
    """
    head = raw[0]
    if head & refused or head & _NOT_PLAIN != _PLAIN:
        return None
    at = _BODY
    if head & _SPELLED:
        at = raw[_BODY]
        if at & _CONTINUED:
            return None
        at += _BODY + 1
    count = raw[at]
    values_at = at + 1 + count
    lengths: Sequence[int] = (numbers := raw[at + 1 : values_at])
    if count & _CONTINUED or not numbers.isascii():
        lengths, values_at = _unpack_lengths(raw, at)
    if not lengths or values_at + sum(lengths) != len(raw):
        return None
    return values_at, lengths


def is_hidden(key: bytes, raw: bytes) -> bool:
    """Whether all records under a key are hidden."""
    return raw[0] & _STATE_BITS in HIDDEN_STATES and all(
        item.state in HIDDEN_STATES for item in decode_handle(key, raw)
    )


def read_item(name: bytes, raw: bytes, *, sensitive: bool) -> StoredItem | None:
    """Return the item under a key that a name refers to; None if there is none.

    Raises `AnswersUnavailable` for an item stored under another case rule than the namespace has now, `IndexError` or
    `CorruptView` if it is damaged.
    """
    head = raw[0]
    start = at = _BODY
    if head & _SPELLED:
        length, start = _unpack_number(raw, _BODY)
        at = start + length
    lengths, values_at = _unpack_lengths(raw, at)
    if values_at + sum(lengths) != len(raw):
        return _read_one_of_several(name, raw, sensitive)
    if bool(head & _CASE_SENSITIVE) is not sensitive:
        raise _other_case_rule()
    if sensitive:
        # Both fold to the same letters, so they have the same length; the case of the prefix is ignored.
        spelling = raw[start:at] if head & _SPELLED else name.upper()
        slash = name.index(b"/")
        if spelling[slash:] != name[slash:]:
            return None
    return head & _STATE_BITS, bool(head & PRIVATE), raw, values_at, lengths


def _read_one_of_several(name: bytes, raw: bytes, sensitive: bool) -> StoredItem | None:
    """The same for names that differ in case alone."""
    items = decode_handle(store_key(name), raw)
    if not sensitive or not all(item.exact for item in items):
        raise _other_case_rule()
    item = choose_item(items, name)
    if item is None:
        return None
    return item.state.value, item.private, b"".join(item.values), 0, [len(value) for value in item.values]


def _other_case_rule() -> AnswersUnavailable:
    return AnswersUnavailable("the record was stored under another case rule")


def choose_item(items: Iterable[HandleItem], name: bytes) -> HandleItem | None:
    """Choose the item that a name refers to: the exact suffix if there is one, else the case-insensitive one."""
    exact = record_key(name, exact=True)
    chosen = None
    for item in items:
        if not item.exact:
            chosen = item
        elif item.key == exact:
            return item
    return chosen


def merge_item(key: bytes, raw: bytes | None, record: bytes, item: HandleItem | None) -> bytes | None:
    """Return the bytes under a key after one of its records has changed; None if it is empty."""
    if raw is None:
        return None if item is None else item.to_bytes(key)
    items = {other.key: other for other in decode_handle(key, raw)}
    items.pop(record, None)
    if item is not None:
        items[record] = item
    return b"".join([items[each].to_bytes(key) for each in sorted(items)]) or None


def is_local(name: bytes) -> bool:
    """Whether a name is one of the installation's own records, which are not handles."""
    return name[: len(_LOCAL)].upper() == _LOCAL


# Prefixes


@dataclass(frozen=True, slots=True)
class PrefixItem:
    """What resolution needs of one prefix. Its parts come from records that change independently."""

    homed: bool = False
    """This server is responsible for it: `0.NA/<prefix>` is homed."""
    homed_bare: bool = False
    """The same, from an entry with the prefix alone, which deployed servers also accept."""
    marker: bool = False
    """This server has the prefix handles of derived prefixes: `0.NA/0.NA/<prefix>` is homed."""
    templates: bool = False
    """Whether a template may create values for handles without a record."""
    case: CaseRule | None = None
    """The case rule, if a policy has one."""
    scheme: str = ""
    """The suffix scheme, if a policy has one."""
    referrals: tuple[bytes, ...] = ()
    """The public values of the prefix handle that delegate derived prefixes, in wire encoding."""

    @property
    def hosted(self) -> bool:
        """Whether this server answers for the prefix."""
        return self.homed or self.homed_bare

    @property
    def sensitive(self) -> bool:
        """Whether suffixes are case-sensitive."""
        return self.case is CaseRule.SENSITIVE

    def to_bytes(self) -> bytes:
        """Encode the stored form."""
        head = self.homed * _HOMED | self.homed_bare * _HOMED_BARE | self.marker * _MARKER
        head |= self.templates * _TEMPLATES | _CASE_RULES.index(self.case) << _CASE_SHIFT
        scheme = self.scheme.encode("utf-8")
        return b"".join((bytes((head,)), _pack_number(len(scheme)), scheme, *_pack_values(self.referrals)))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Decode the stored form."""
        try:
            head = raw[0]
            length, at = _unpack_number(raw, 1)
            scheme, at = _read_bytes(raw, at, length)
            referrals, at = _unpack_values(raw, at)
            text = scheme.decode("utf-8")
        except (IndexError, UnicodeDecodeError):
            raise _truncated_error() from None
        if at != len(raw) or head & _UNUSED:
            raise CorruptView("the answers view has an invalid prefix item", "answers")
        return cls(
            bool(head & _HOMED),
            bool(head & _HOMED_BARE),
            bool(head & _MARKER),
            bool(head & _TEMPLATES),
            _CASE_RULES[head >> _CASE_SHIFT],
            text,
            referrals,
        )


decode_prefix = lru_cache(MAX_CACHED_PREFIXES)(PrefixItem.from_bytes)
"""Decode the bytes under a prefix: few prefixes serve nearly all requests."""

EMPTY_PREFIX_ITEM: Final = PrefixItem()
"""The item of an unknown prefix; it is not stored."""


# Encoded values


def is_public(content: bytes) -> bool:
    """Whether everyone may read an encoded value."""
    return len(content) > PERMISSIONS_OFFSET and bool(content[PERMISSIONS_OFFSET] & _PUBLIC_READ)


def value_type(content: bytes) -> bytes:
    """Return the type of an encoded value."""
    length = int.from_bytes(content[TYPE_LENGTH_OFFSET:TYPE_OFFSET], "big")
    return content[TYPE_OFFSET : TYPE_OFFSET + length]


def has_type(folded: Iterable[bytes], base: str) -> bool:
    """Whether one of the case-folded types is the given one or a subtype of it."""
    name = base.upper().encode()
    return any(type_ == name or type_.startswith(name + b".") for type_ in folded)


# Numbers and runs of values


def _pack_head(head: int, entry: HandleItem | Change) -> bytes:
    """Encode the start of a handle's item."""
    number = entry.seq | entry.at << _TIME_SHIFT | entry.last_update << _UPDATE_SHIFT
    return (head | number << 8).to_bytes(_BODY, "little")


def _pack_number(number: int) -> bytes:
    """Encode a number as LEB128: seven bits per byte, lowest first, high bit set on all bytes but the last."""
    if number < 0x80:
        return _SINGLE[number]
    raw = bytearray()
    while number >= 0x80:
        raw.append(number & 0x7F | 0x80)
        number >>= 7
    raw.append(number)
    return bytes(raw)


def _unpack_number(raw: bytes, at: int) -> tuple[int, int]:
    """Decode a number; also return where it ends."""
    byte = raw[at]
    number, shift = byte & 0x7F, 0
    while byte & _CONTINUED:
        at, shift = at + 1, shift + 7
        byte = raw[at]
        number |= (byte & 0x7F) << shift
        if shift > _MAX_SHIFT or not byte:
            raise CorruptView("the answers view has an invalid number", "answers")
    return number, at + 1


def _pack_values(values: tuple[bytes, ...]) -> list[bytes]:
    return [_pack_number(len(values)), *[_pack_number(len(value)) for value in values], *values]


def _unpack_lengths(raw: bytes, at: int) -> tuple[list[int], int]:
    """Decode the lengths of a run of values; also return where the values start."""
    count, at = _unpack_number(raw, at)
    lengths: list[int] = []
    while len(lengths) < count:
        length = raw[at]
        at += 1
        if length & _CONTINUED:
            length, at = _unpack_number(raw, at - 1)
        lengths.append(length)
    return lengths, at


def _unpack_values(raw: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    """Decode a run of values; also return where it ends."""
    lengths, at = _unpack_lengths(raw, at)
    values = []
    for length in lengths:
        value, at = _read_bytes(raw, at, length)
        values.append(value)
    return tuple(values), at


def _read_bytes(raw: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(raw):
        raise _truncated_error()
    return raw[at:end], end


def _truncated_error() -> CorruptView:
    return CorruptView("the answers view has a truncated or invalid item", "answers")


_STATES = [State(code) for code in range(_STATE_BITS + 1)]
