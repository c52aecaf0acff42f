"""Records, their values, and references to values.

A record is a handle and its values, in the order in which they were stored. The order has no meaning; deployed tools
prefer ascending indexes (`ascending`). Indexes are unique. A record can exist without values, so it has no length and
is always true.

The binary form of a value (filters that do not decode rely on the offsets):

    0   i32    index
    4   u32    timestamp, seconds since 1970
    8   u8     TTL type: 0 relative, 1 absolute
    9   i32    TTL: seconds, or the time of expiry
    13  u8     permissions
    14  str    type
    …   bytes  data
    …   i32    number of references, then each: str handle, i32 index

A reference in JSON is `{"handle": "0.NA/12345", "index": 300}`, in text `300:0.NA/12345`.
"""

import re
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from operator import attrgetter
from typing import Final, Self

from perseid.names.handle import Handle

from .binary import MAX_BYTES, Reader, Writer
from .encoding import (
    JsonObject,
    OpenEnum,
    check_utf8,
    from_wire,
    require_int,
    require_member,
    require_object,
    require_text,
    to_wire,
)
from .errors import InvalidData, RecordMisuse
from .types import TypeQuery

DEFAULT_TTL: Final = 86_400
"""One day in seconds: the default of every deployed tool."""

MAX_VALUES: Final = 2048
"""Maximum number of values in a message: what deployed clients accept in a response."""

HEAD: Final = struct.Struct(">iIBiBi")
"""The start of an encoded value: index, timestamp, TTL type, TTL, permissions, length of the type; the type follows."""

PERMISSIONS_OFFSET: Final = 13
TYPE_LENGTH_OFFSET: Final = 14
TYPE_OFFSET: Final = HEAD.size
"""Offsets in an encoded value. The data follows the type, with its length in four bytes."""

_FIXED = struct.Struct(">iIBiB")  # HEAD without the length of the type
_LENGTH = struct.Struct(">i")
_NO_REFERENCES = bytes(4)
_MIN_VALUE_SIZE = 26  # an empty type, empty data, no references
_MIN_REFERENCE_SIZE = 8
_MAX_INDEX = 0x7FFF_FFFF
_MAX_INDEX_DIGITS = 10  # int() raises its own error for thousands of digits
_SIGNED_PART_OFFSET = 8  # signatures over values exclude index and timestamp
_SECRET_TYPE = "HS_SECKEY"  # noqa: S105 - the name of a type


class TtlType(OpenEnum):
    """Meaning of a TTL."""

    RELATIVE = 0
    """Seconds from now."""
    ABSOLUTE = 1
    """Time of expiry."""


class Permission(IntFlag):
    """Read and write permissions of a value. The upper four bits have no meaning and are preserved."""

    PUBLIC_WRITE = 0x01
    PUBLIC_READ = 0x02
    ADMIN_WRITE = 0x04
    ADMIN_READ = 0x08


PRIVATE_PERMISSIONS: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
DEFAULT_PERMISSIONS: Final = PRIVATE_PERMISSIONS | Permission.PUBLIC_READ
_PUBLIC_READ: Final = Permission.PUBLIC_READ.value
_LETTERS: Final = (
    (Permission.ADMIN_READ, "r"),
    (Permission.ADMIN_WRITE, "w"),
    (Permission.PUBLIC_READ, "r"),
    (Permission.PUBLIC_WRITE, "w"),
)


@dataclass(frozen=True, slots=True, order=True)
class ValueRef:
    """A reference to a value, `300:0.NA/12345`; also the identity of an administrator."""

    index: int
    """The index of the value; 0 means any value of the handle."""
    handle: str
    """The handle, as spelled."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `INDEX:HANDLE`; a handle alone means index 0."""
        index, colon, handle = text.partition(":")
        if colon and index.isascii() and index.isdecimal() and handle:
            if len(index) > _MAX_INDEX_DIGITS or int(index) > _MAX_INDEX:
                raise InvalidData(f"the index {index[:20]} is too large; the maximum is {_MAX_INDEX:,}")
            return cls(int(index), handle)
        if not text or (colon and not handle):
            raise InvalidData(f"{text[:40]!r} does not have the form INDEX:HANDLE")
        return cls(0, text)

    def __str__(self) -> str:
        return f"{self.index}:{self.handle}"

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the binary form: handle first."""
        handle = reader.text()
        return cls(reader.i32(), handle)

    def write(self, writer: Writer) -> None:
        """Write the binary form."""
        writer.text(self.handle).i32(self.index)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a record."""

    index: int
    """Unique in the record; positive when stored."""
    type: str
    """The type: `URL`, `HS_ADMIN` …"""
    data: bytes
    """Encoded data; `data_types` decodes it."""
    ttl: int = DEFAULT_TTL
    """Seconds, or the time of expiry."""
    ttl_type: TtlType = TtlType.RELATIVE
    permissions: Permission = DEFAULT_PERMISSIONS
    timestamp: int = 0
    """Time of the last change, in seconds since 1970, set by the server; 0 is not set."""
    references: tuple[ValueRef, ...] = ()
    """References to other values; stored and returned, without effect."""

    @classmethod
    def text(cls, index: int, type_: str, data: str) -> Self:
        """Create a value with text as data and defaults for the rest."""
        return cls(index, type_, data.encode("utf-8"))

    @property
    def is_public(self) -> bool:
        """Whether everyone can read it."""
        return self.permissions._value_ & _PUBLIC_READ != 0  # three times as fast as with `in`

    @property
    def is_readable(self) -> bool:
        """Whether anybody can read it: everyone, or administrators."""
        return self.is_public or Permission.ADMIN_READ in self.permissions

    def with_timestamp(self, timestamp: int) -> Self:
        """Copy with another timestamp."""
        return type(self)(
            self.index, self.type, self.data, self.ttl, self.ttl_type, self.permissions, timestamp, self.references
        )

    @property
    def size(self) -> int:
        """Bytes of the binary form."""
        if not self.references and self.type.isascii():
            return _MIN_VALUE_SIZE + len(self.data) + len(self.type)
        texts = [self.type, *[reference.handle for reference in self.references]]
        fixed = _MIN_VALUE_SIZE + _MIN_REFERENCE_SIZE * len(self.references)
        return fixed + len(self.data) + sum([len(text.encode("utf-8", "surrogatepass")) for text in texts])

    @classmethod
    def read(cls, reader: Reader, now: int, limit: int = MAX_BYTES) -> Self:
        """Read the binary form; `now` resolves 32-bit times, and `limit` is the maximum length of the data."""
        index, seconds, byte, ttl, bits = reader.unpack(_FIXED)
        timestamp = from_wire(seconds, now)
        ttl_type = _TTL_TYPES[byte] if byte in _TTL_TYPES else TtlType(byte)
        if ttl_type is TtlType.ABSOLUTE:
            ttl = from_wire(to_wire(ttl), now)
        type_ = reader.text()
        data = reader.bytes_(limit)
        count = reader.count(_MIN_REFERENCE_SIZE)
        references = tuple([ValueRef.read(reader) for _ in range(count)]) if count else ()
        return cls(index, type_, data, ttl, ttl_type, _PERMISSIONS[bits], timestamp, references)

    def write(self, writer: Writer) -> None:
        """Write the binary form."""
        writer.i32(self.index).u32(to_wire(self.timestamp)).u8(self.ttl_type)
        if self.ttl_type is TtlType.ABSOLUTE:
            writer.u32(to_wire(self.ttl))
        else:
            writer.i32(self.ttl)
        writer.u8(self.permissions).text(self.type).bytes_(self.data).i32(len(self.references))
        for reference in self.references:
            reference.write(writer)

    @classmethod
    def from_bytes(cls, data: bytes, now: int) -> Self:
        """Decode a stored value, however long; trailing bytes are rejected."""
        try:  # nearly all values; errors are raised by the slow path
            index, seconds, ttl_type, ttl, bits, length = HEAD.unpack_from(data)
            start, end = TYPE_OFFSET + length + _LENGTH.size, len(data) - len(_NO_REFERENCES)
            if ttl_type == 0 and length >= 0 and start <= end and data.endswith(_NO_REFERENCES):
                (size,) = _LENGTH.unpack_from(data, start - _LENGTH.size)
                type_ = data[TYPE_OFFSET : start - _LENGTH.size].decode("utf-8")
                if size == end - start:
                    permissions, timestamp = _PERMISSIONS[bits], from_wire(seconds, now)
                    return cls(index, type_, data[start:end], ttl, TtlType.RELATIVE, permissions, timestamp)
        except (struct.error, UnicodeDecodeError):
            pass
        reader = Reader(data)
        value = cls.read(reader, now, len(data))
        reader.finish()
        return value

    def to_bytes(self) -> bytes:
        """The binary form."""
        if not (self.ttl_type or self.references):
            # The fast path for nearly all values, at a third of the cost: a relative TTL. The slow path raises errors.
            try:
                type_ = self.type.encode("utf-8")
                fixed = HEAD.pack(self.index, to_wire(self.timestamp), 0, self.ttl, self.permissions, len(type_))
                return b"".join((fixed, type_, _LENGTH.pack(len(self.data)), self.data, _NO_REFERENCES))
            except (struct.error, UnicodeEncodeError):
                pass
        writer = Writer()
        self.write(writer)
        return writer.getvalue()

    def signed_part(self) -> bytes:
        """The bytes that signatures cover: everything but index and timestamp."""
        return self.to_bytes()[_SIGNED_PART_OFFSET:]

    def __repr__(self) -> str:
        """Omit data that is not public."""
        secret = not self.is_public or self.type.upper().partition(".")[0] == _SECRET_TYPE
        data = f"<{len(self.data)} bytes>" if secret else repr(self.data)
        return (
            f"Value(index={self.index}, type={self.type!r}, data={data}, ttl={self.ttl}, ttl_type={self.ttl_type!s}, "
            f"permissions={permissions_to_text(self.permissions)!r}, timestamp={self.timestamp}, "
            f"references={self.references!r})"
        )


def read_values(reader: Reader, now: int, limit: int = MAX_VALUES) -> tuple[Value, ...]:
    """Read a counted list of values."""
    return tuple([Value.read(reader, now) for _ in range(reader.count(_MIN_VALUE_SIZE, limit))])


def write_values(writer: Writer, values: tuple[Value, ...]) -> None:
    """Write a counted list of values."""
    writer.i32(len(values))
    for value in values:
        value.write(writer)


def permissions_to_text(permissions: Permission) -> str:
    """Format permissions as `rwr-`: admin read, admin write, public read, public write."""
    return "".join(letter if bit in permissions else "-" for bit, letter in _LETTERS)


def permissions_from_text(text: str) -> Permission:
    """Parse `rwr-`, `1110`, or `*` for all."""
    if text == "*":
        return Permission(0x0F)
    permissions = Permission(0)
    if len(text) != len(_LETTERS):
        raise InvalidData(f"permissions are four characters such as rwr- or 1110, not {text[:20]!r}")
    for character, (bit, letter) in zip(text, _LETTERS, strict=True):
        if character in ("1", letter):
            permissions |= bit
        elif character not in ("0", "-"):
            raise InvalidData(f"permissions are four characters such as rwr- or 1110, not {text[:20]!r}")
    return permissions


# Looking up a member is several times faster than creating it.
_PERMISSIONS = [Permission(byte) for byte in range(0x100)]
_TTL_TYPES = {member.value: member for member in TtlType}

_REF_TEXT = re.compile(r"(-?[0-9]{1,10}):(.*)", re.DOTALL)


def ref_from_json(obj: object, label: str) -> ValueRef:
    """Parse the JSON form; the index can be a string."""
    members = require_object(obj, label)
    handle = require_text(require_member(members, "handle", label), f"the handle of {label}")
    return ValueRef(require_int(require_member(members, "index", label), f"the index of {label}"), handle)


def ref_to_json(ref: ValueRef) -> JsonObject:
    """The JSON form."""
    return {"handle": ref.handle, "index": ref.index}


def ref_from_text(text: str) -> ValueRef:
    """Parse `INDEX:HANDLE`; both parts are required. For an optional index see `ValueRef.parse`."""
    match = _REF_TEXT.fullmatch(text)
    if match is None:
        raise InvalidData(f"{text[:60]!r} does not have the form INDEX:HANDLE")
    index = require_int(int(match[1]), "the index")
    check_utf8(match[2], "the handle")
    return ValueRef(index, match[2])


@dataclass(frozen=True, slots=True)
class Record:
    """A handle and its values."""

    handle: Handle
    values: tuple[Value, ...] = ()
    """The values, with unique indexes."""
    _by_index: dict[int, Value] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if problem := _find_problem(self.values):
            raise RecordMisuse(problem)
        object.__setattr__(self, "_by_index", {value.index: value for value in self.values})

    @classmethod
    def from_untrusted(cls, handle: Handle, values: Iterable[Value]) -> Self:
        """Create a record from untrusted values; raises InvalidData instead of RecordMisuse."""
        values = tuple(values)
        if problem := _find_problem(values):
            raise InvalidData(problem)
        return cls(handle, values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def value(self, index: int) -> Value | None:
        """The value with this index, or None."""
        return self._by_index.get(index)

    def select(self, indexes: Collection[int] = (), types: Collection[str] = ()) -> tuple[Value, ...]:
        """The values that match a query, in the order of the record."""
        return select(self.values, indexes, types)

    def public(self) -> Self:
        """Copy with the public values."""
        return type(self)(self.handle, tuple([value for value in self.values if value.is_public]))

    def ascending(self) -> Self:
        """Copy with values by ascending index."""
        return type(self)(self.handle, ascending(self.values))


def select(values: Iterable[Value], indexes: Collection[int], types: Collection[str]) -> tuple[Value, ...]:
    """The values whose index is listed or whose type matches; all if both lists are empty."""
    if not indexes and not types:
        return tuple(values)
    index_set = frozenset(indexes)
    query = TypeQuery(types)
    return tuple([value for value in values if value.index in index_set or query.finds(value.type)])


_BY_INDEX = attrgetter("index")


def ascending(values: Iterable[Value]) -> tuple[Value, ...]:
    """Sort values by index."""
    return tuple(sorted(values, key=_BY_INDEX))


def values_from_bytes(data: bytes, now: int) -> tuple[Value, ...]:
    """Decode a file of values (`root_info`, `resolver_service`): length in bytes, then a counted list."""
    reader = Reader(data)
    inner = reader.inner(reader.i32())
    reader.finish()
    values = read_values(inner, now)
    inner.finish()
    return values


def values_to_bytes(values: tuple[Value, ...]) -> bytes:
    """Encode a file of values."""
    writer = Writer()
    write_values(writer, values)
    return Writer().bytes_(writer.getvalue()).getvalue()


def _find_problem(values: tuple[Value, ...]) -> str | None:
    if len(values) > MAX_VALUES:
        return f"the record has {len(values):,} values; the maximum that clients accept is {MAX_VALUES:,}"
    seen: set[int] = set()
    for value in values:
        if value.index in seen:
            return f"two values have index {value.index}"
        seen.add(value.index)
    return None
