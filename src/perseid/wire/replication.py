"""The streams of replication, which follow the responses to RETRIEVE_TXN_LOG and DUMP_HANDLES on the same connection.

A stream begins with a word that says how the rest is protected: by TLS, with the key of the server, or (before 2.8) by
a signature after each block. The payload is a head and records; each record ends a block.

    transactions   i32 format, i32 status; then records
                   1  i64 id, bytes handle, u8 action, i64 date; for a create or update i32 count, each bytes value
                   2  str queue                    (format 2: the following transactions belong to it)
                   3  i64 date                     (format 2: end of the queue)
                   0  i64 date                     (format 1; nothing in format 2: end of the stream)
    dump           i32 format; then records
                   5  str state of other servers, in .dct syntax
                   0  i64 date, i64 last id        (format 1: end of the stream)
                   3  bytes handle, i64 date, i32 priority; 4 the same for a prefix
                   1  bytes handle, i32 count, each bytes value
                   2  bytes prefix handle
                   255  end of the stream          (format 2; not signed)

Transactions carry no data of their own: the server sends the record as it is now. Readers get bytes by a function, so
that nothing here uses a connection. What a server sends is bounded by `MAX_RECORD` per block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from perseid.records.binary import MAX_BYTES, Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData

from .codes import RemoteProtocolError

TLS_MARK: Final = 0x544C5300
"""The first word of a stream in TLS: `TLS` and a zero."""

SIGNED_MARK: Final = 0
"""The first word of a stream with signed blocks."""

MAX_RECORD: Final = 16 << 20
"""Bytes of a block: several times what one message can transport."""

MAX_STATE: Final = 1 << 20
"""Bytes of the state of other servers."""

MAX_SIGNATURE: Final = 4_096
"""Bytes of a signature."""

_MAX_VALUES: Final = 1 << 16  # of a record; no client reads more than a few thousand

Read: TypeAlias = Callable[[int], bytes]
"""Returns exactly so many bytes, or raises."""


class TransactionAction(OpenEnum):
    """What a transaction did."""

    PLACEHOLDER = 0
    CREATE = 1
    DELETE = 2
    UPDATE = 3
    HOME = 4
    UNHOME = 5


class StreamStatus(OpenEnum):
    """Whether transactions follow."""

    DUMP_NEEDED = 1
    """The server no longer has the transactions: the receiver needs a dump."""
    TRANSACTIONS = 2


@dataclass(frozen=True, slots=True)
class TransactionHead:
    """The head of a stream of transactions."""

    format: int
    status: StreamStatus


@dataclass(frozen=True, slots=True)
class Transaction:
    """A change of a record or of a hosted prefix."""

    id: int
    handle: bytes
    action: TransactionAction
    date: int
    """Milliseconds since 1970."""
    values: tuple[bytes, ...] | None = None
    """The encoded values of the record as it is now; None for other actions than create and update."""


@dataclass(frozen=True, slots=True)
class QueueStart:
    """The following transactions belong to this queue."""

    name: str


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """The end of a queue."""

    date: int


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream of transactions."""

    date: int | None = None
    """The date to ask for the next time; None in format 2."""


@dataclass(frozen=True, slots=True)
class OtherStates:
    """What the server knows of the transactions of others."""

    text: str


@dataclass(frozen=True, slots=True)
class ServerState:
    """The last transaction before the dump."""

    date: int
    last_id: int


@dataclass(frozen=True, slots=True)
class ChangeDate:
    """When a record or a hosted prefix was last changed."""

    handle: bytes
    date: int
    priority: int
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """A record."""

    handle: bytes
    values: tuple[bytes, ...]
    """Encoded values."""


@dataclass(frozen=True, slots=True)
class DumpedPrefix:
    """A hosted prefix."""

    handle: bytes


@dataclass(frozen=True, slots=True)
class DumpEnd:
    """The end of a dump, which is complete."""


TransactionItem: TypeAlias = Transaction | QueueStart | QueueEnd | StreamEnd
DumpItem: TypeAlias = OtherStates | ServerState | ChangeDate | DumpedRecord | DumpedPrefix | DumpEnd

_TRANSACTION, _QUEUE_START, _QUEUE_END, _STREAM_END = 1, 2, 3, 0
_SERVER_STATE, _RECORD, _PREFIX, _HANDLE_DATE, _PREFIX_DATE, _OTHER_STATES, _DUMP_END = 0, 1, 2, 3, 4, 5, 0xFF
_WITH_VALUES: Final = (TransactionAction.CREATE, TransactionAction.UPDATE)


# Protection


class Payload(Protocol):
    """The payload of a stream."""

    def take(self, count: int) -> bytes:
        """Return exactly so many bytes. Raises `RemoteProtocolError`."""

    def end_block(self) -> None:
        """Check the block that ends here. Raises `RemoteProtocolError`."""


class PlainPayload:
    """A payload that something else protects, such as TLS."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._remaining = MAX_RECORD

    def take(self, count: int) -> bytes:
        self._remaining -= count
        if self._remaining < 0:
            raise RemoteProtocolError(f"a record of the stream has more than {MAX_RECORD:,} bytes")
        return self._read(count)

    def end_block(self) -> None:
        self._remaining = MAX_RECORD


class SignedPayload:
    """A payload in blocks, each followed by a signature of the server."""

    def __init__(self, read: Read, verify: Callable[[str, bytes, bytes], bool]) -> None:
        """`verify` gets the name of the hash, the signature and the data."""
        self._read, self._verify = read, verify
        self._block = bytearray()
        self._hash = _read_bytes(read, 64).decode("ascii", "replace")

    def take(self, count: int) -> bytes:
        if len(self._block) + count > MAX_RECORD:
            raise RemoteProtocolError(f"a record of the stream has more than {MAX_RECORD:,} bytes")
        data = self._read(count)
        self._block += data
        return data

    def end_block(self) -> None:
        signature = _read_bytes(self._read, MAX_SIGNATURE)
        if not self._verify(self._hash, signature, bytes(self._block)):
            raise RemoteProtocolError("a block of the stream is not signed by the server")
        self._block.clear()


def read_mark(read: Read) -> int:
    """Read the first word of a stream, which says how the rest is protected."""
    return int.from_bytes(read(4), "big", signed=True)


def _read_bytes(read: Read, limit: int) -> bytes:
    length = int.from_bytes(read(4), "big", signed=True)
    if not 0 <= length <= limit:
        raise RemoteProtocolError(f"a length of {length} in the stream is not between 0 and {limit}")
    return read(length)


# Reading


class _Fields:
    """Reads the fields of a block."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    def number(self, size: int) -> int:
        return int.from_bytes(self._payload.take(size), "big", signed=size > 1)

    def bytes_(self, limit: int = MAX_BYTES) -> bytes:
        return _read_bytes(self._payload.take, limit)

    def text(self, limit: int = MAX_BYTES) -> str:
        try:
            return self.bytes_(limit).decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("a text of the stream is not UTF-8") from None

    def values(self) -> tuple[bytes, ...]:
        count = self.number(4)
        if not 0 <= count <= _MAX_VALUES:
            raise RemoteProtocolError(f"a record of the stream has {count} values")
        return tuple([self.bytes_() for _ in range(count)])


def read_transactions(payload: Payload) -> tuple[TransactionHead, Iterator[TransactionItem]]:
    """Read a stream of transactions. The last item is `StreamEnd`."""
    fields = _Fields(payload)
    head = TransactionHead(fields.number(4), StreamStatus(fields.number(4)))
    payload.end_block()
    if head.format not in (1, 2):
        raise RemoteProtocolError(f"unknown format {head.format} of a stream of transactions")
    return head, _read_transactions(payload, head.format)


def _read_transactions(payload: Payload, format_: int) -> Iterator[TransactionItem]:
    fields = _Fields(payload)
    while True:
        kind = fields.number(1)
        item: TransactionItem
        if kind == _TRANSACTION:
            id_, handle = fields.number(8), fields.bytes_()
            action, date = TransactionAction(fields.number(1)), fields.number(8)
            item = Transaction(id_, handle, action, date, fields.values() if action in _WITH_VALUES else None)
        elif kind == _QUEUE_START:
            item = QueueStart(fields.text())
        elif kind == _QUEUE_END:
            item = QueueEnd(fields.number(8))
        elif kind == _STREAM_END:
            item = StreamEnd(fields.number(8) if format_ == 1 else None)
        else:
            raise RemoteProtocolError(f"unknown record {kind} in a stream of transactions")
        payload.end_block()
        yield item
        if isinstance(item, StreamEnd):
            return


def read_dump(payload: Payload) -> tuple[int, Iterator[DumpItem]]:
    """Read a dump: its format, and its items. The last one is `DumpEnd`, in format 1 `ServerState`."""
    fields = _Fields(payload)
    format_ = fields.number(4)
    payload.end_block()
    if format_ not in (1, 2):
        raise RemoteProtocolError(f"unknown format {format_} of a dump")
    return format_, _read_dump(payload, format_)


def _read_dump(payload: Payload, format_: int) -> Iterator[DumpItem]:
    fields = _Fields(payload)
    while True:
        kind = fields.number(1)
        if kind == _DUMP_END and format_ > 1:
            yield DumpEnd()
            return
        item = _read_dump_item(fields, kind)
        payload.end_block()
        yield item
        if isinstance(item, ServerState) and format_ == 1:
            return


def _read_dump_item(fields: _Fields, kind: int) -> DumpItem:
    if kind == _RECORD:
        return DumpedRecord(fields.bytes_(), fields.values())
    if kind == _PREFIX:
        return DumpedPrefix(fields.bytes_())
    if kind in (_HANDLE_DATE, _PREFIX_DATE):
        return ChangeDate(fields.bytes_(), fields.number(8), fields.number(4), kind == _PREFIX_DATE)
    if kind == _SERVER_STATE:
        return ServerState(fields.number(8), fields.number(8))
    if kind == _OTHER_STATES:
        return OtherStates(fields.text(MAX_STATE))
    raise RemoteProtocolError(f"unknown record {kind} in a dump")


# Writing


class StreamWriter:
    """Writes the blocks of a stream, each with its signature if the stream is signed."""

    def __init__(self, write: Callable[[bytes], object], sign: Callable[[bytes], bytes] | None = None) -> None:
        self._write, self._sign = write, sign

    def begin_signed(self, hash_name: str) -> None:
        """Write the start of a stream with signed blocks."""
        self._write(Writer().i32(SIGNED_MARK).bytes_(hash_name.encode()).getvalue())

    def write(self, block: bytes, *, signed: bool = True) -> None:
        """Write a block."""
        self._write(block)
        if self._sign is not None and signed:
            self._write(Writer().bytes_(self._sign(block)).getvalue())


def write_transactions(
    writer: StreamWriter, head: TransactionHead, items: Iterator[TransactionItem] | tuple[TransactionItem, ...]
) -> None:
    """Write a stream of transactions."""
    writer.write(Writer().i32(head.format).i32(head.status).getvalue())
    for item in items:
        writer.write(_encode_transaction_item(item))


def write_dump(writer: StreamWriter, format_: int, items: Iterator[DumpItem] | tuple[DumpItem, ...]) -> None:
    """Write a dump."""
    writer.write(Writer().i32(format_).getvalue())
    for item in items:
        writer.write(encode_dump_item(item), signed=not isinstance(item, DumpEnd))


def _encode_transaction_item(item: TransactionItem) -> bytes:
    writer = Writer()
    match item:
        case Transaction():
            writer.u8(_TRANSACTION).i64(item.id).bytes_(item.handle).u8(item.action).i64(item.date)
            if item.values is not None:
                _write_values(writer, item.values)
        case QueueStart():
            writer.u8(_QUEUE_START).text(item.name)
        case QueueEnd():
            writer.u8(_QUEUE_END).i64(item.date)
        case StreamEnd():
            writer.u8(_STREAM_END)
            if item.date is not None:
                writer.i64(item.date)
    return writer.getvalue()


def encode_dump_item(item: DumpItem) -> bytes:
    """Encode one record of a dump."""
    writer = Writer()
    match item:
        case OtherStates():
            writer.u8(_OTHER_STATES).text(item.text)
        case ServerState():
            writer.u8(_SERVER_STATE).i64(item.date).i64(item.last_id)
        case ChangeDate():
            writer.u8(_PREFIX_DATE if item.is_prefix else _HANDLE_DATE)
            writer.bytes_(item.handle).i64(item.date).i32(item.priority)
        case DumpedRecord():
            _write_values(writer.u8(_RECORD).bytes_(item.handle), item.values)
        case DumpedPrefix():
            writer.u8(_PREFIX).bytes_(item.handle)
        case DumpEnd():
            writer.u8(_DUMP_END)
    return writer.getvalue()


def _write_values(writer: Writer, values: tuple[bytes, ...]) -> None:
    writer.i32(len(values))
    for value in values:
        writer.bytes_(value)


def read_buffer(data: bytes) -> Read:
    """Return a function that reads from a buffer, for streams in memory. It raises `RemoteProtocolError` at the end."""
    reader = Reader(data)

    def read(count: int) -> bytes:
        try:
            return reader.raw(count)
        except InvalidData as error:
            raise RemoteProtocolError(f"the stream ends early: {error}") from error

    return read
