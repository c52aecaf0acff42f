"""Reader and writer for the binary structures of the protocol.

Integers are big-endian and, as in the deployed implementation, signed; there is no padding. A `Reader` never reads past
its end and never allocates more than its input justifies: a count or length that exceeds the remaining bytes is
rejected first.
"""

from struct import Struct
from typing import Final, Self

from .errors import InvalidData, RecordMisuse

MAX_BYTES: Final = 1_048_576
"""Maximum length of a byte string and of a list: the limit of the deployed implementation."""

MAX_DEPTH: Final = 16
"""Maximum nesting of structures. The protocol needs four levels (message, credential, signed information, signature);
the rest is for records inside values inside messages."""

_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
_U32 = Struct(">I")


class Reader:
    """Reads a structure from the front. Methods are named after the types in the protocol specification."""

    __slots__ = ("_data", "_depth", "_end", "_position", "_start")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None, *, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise InvalidData(f"structures are nested more than {MAX_DEPTH} levels deep", 0)
        self._data = data
        self._start = start
        self._position = start
        self._end = len(data) if end is None else end
        self._depth = depth

    @property
    def remaining(self) -> int:
        """Number of unread bytes."""
        return self._end - self._position

    @property
    def offset(self) -> int:
        """Number of bytes read."""
        return self._position - self._start

    def u8(self) -> int:
        """One byte."""
        position = self._take(1)
        return self._data[position]

    def i16(self) -> int:
        """Two bytes, signed."""
        value: int = _I16.unpack_from(self._data, self._take(2))[0]
        return value

    def i32(self) -> int:
        """Four bytes, signed."""
        value: int = _I32.unpack_from(self._data, self._take(4))[0]
        return value

    def u32(self) -> int:
        """Four bytes, unsigned: for times, which are modulo 2³²."""
        value: int = _U32.unpack_from(self._data, self._take(4))[0]
        return value

    def i64(self) -> int:
        """Eight bytes, signed."""
        value: int = _I64.unpack_from(self._data, self._take(8))[0]
        return value

    def unpack(self, fields: Struct) -> tuple[int, ...]:
        """Several numbers at once, which is faster than one by one."""
        return fields.unpack_from(self._data, self._take(fields.size))

    def peek(self) -> int:
        """The next byte, without consuming it."""
        position = self._take(1)
        self._position = position
        return self._data[position]

    def raw(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        position = self._take(count)
        return self._data[position : position + count]

    def bytes_(self, limit: int = MAX_BYTES) -> bytes:
        """A byte string after its length."""
        start = self._position + 4
        if start <= self._end:  # the usual case without calls: most of a message consists of strings
            length: int = _I32.unpack_from(self._data, start - 4)[0]
            end = start + length
            if 0 <= length <= limit and end <= self._end:
                self._position = end
                return self._data[start:end]
        length = self.i32()
        if not 0 <= length <= limit:
            raise self.problem(f"a length of {length} is not between 0 and {limit}")
        position = self._take(length)
        return self._data[position : position + length]

    def text(self, limit: int = MAX_BYTES) -> str:
        """A UTF-8 string after its length."""
        data = self.bytes_(limit)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.problem(f"a string is not valid UTF-8 (byte {error.start} of {len(data)})") from None

    def count(self, size: int, limit: int = MAX_BYTES) -> int:
        """The number of items that follow, each of at least `size` bytes."""
        count = self.i32()
        if not 0 <= count <= limit:
            raise self.problem(f"a count of {count} is not between 0 and {limit}")
        if count * size > self.remaining:
            raise self.problem(f"a count of {count} items exceeds the {self.remaining} bytes left")
        return count

    def rest(self) -> bytes:
        """All unread bytes."""
        return self.raw(self.remaining)

    def inner(self, length: int) -> "Reader":
        """A reader for the next `length` bytes, which this one skips."""
        position = self._take(length)
        return Reader(self._data, position, position + length, depth=self._depth + 1)

    def finish(self) -> None:
        """Reject trailing bytes."""
        if self.remaining:
            raise self.problem(f"{self.remaining} trailing bytes")

    def problem(self, message: str) -> InvalidData:
        """Error at the current position."""
        return InvalidData(message, self.offset)

    def _take(self, count: int) -> int:
        position = self._position
        after = position + count
        if after > self._end or count < 0:
            raise self.problem(f"{count} bytes required, {self.remaining} left")
        self._position = after
        return position


class Writer:
    """Writes a structure; the counterpart of `Reader`."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def u8(self, value: int) -> Self:
        """One byte."""
        if not 0 <= value <= 0xFF:
            raise RecordMisuse(f"{value} does not fit in one byte")
        self._buffer.append(value)
        return self

    def i16(self, value: int) -> Self:
        """Two bytes, signed."""
        if not -0x8000 <= value <= 0x7FFF:
            raise RecordMisuse(f"{value} does not fit in 16 bits")
        self._buffer += _I16.pack(value)
        return self

    def i32(self, value: int) -> Self:
        """Four bytes, signed."""
        if not -0x8000_0000 <= value <= 0x7FFF_FFFF:
            raise RecordMisuse(f"{value} does not fit in 32 bits")
        self._buffer += _I32.pack(value)
        return self

    def u32(self, value: int) -> Self:
        """Four bytes, modulo 2³²."""
        self._buffer += _U32.pack(value & 0xFFFF_FFFF)
        return self

    def i64(self, value: int) -> Self:
        """Eight bytes, signed."""
        if not -(1 << 63) <= value < 1 << 63:
            raise RecordMisuse(f"{value} does not fit in 64 bits")
        self._buffer += _I64.pack(value)
        return self

    def raw(self, value: bytes) -> Self:
        """Bytes without a length."""
        self._buffer += value
        return self

    def bytes_(self, value: bytes) -> Self:
        """A byte string after its length."""
        if len(value) > MAX_BYTES:
            raise RecordMisuse(f"a string of {len(value):,} bytes is too long; the maximum is {MAX_BYTES:,}")
        self._buffer += _I32.pack(len(value))
        self._buffer += value
        return self

    def text(self, value: str) -> Self:
        """A UTF-8 string after its length."""
        try:
            return self.bytes_(value.encode("utf-8"))
        except UnicodeEncodeError:
            raise RecordMisuse("the text contains a surrogate and cannot be encoded in UTF-8") from None

    def getvalue(self) -> bytes:
        """The written bytes."""
        return bytes(self._buffer)
