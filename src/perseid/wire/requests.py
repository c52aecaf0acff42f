"""Bodies of requests, by opcode.

Handles are bytes: a server must be able to respond to a name that is not UTF-8. Bytes after the known fields are
ignored, as deployed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self

from perseid.records.binary import Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.records.record import Value, read_values, write_values

from .codes import OpCode, Version
from .message import DIGEST_LENGTHS

NO_HANDLE: Final = b"/"
"""The handle in requests without one."""

MAX_HANDLE_LENGTH: Final = 2048
"""Maximum length in bytes of the handle of an identity, or in a response. Requested names can be longer; the registry
reports that they do not exist."""

ANONYMOUS_INDEX: Final = -1
"""The index in the setup of an anonymous session."""


class RequestBody(Protocol):
    """Protocol of request bodies."""

    def write(self, writer: Writer, version: Version) -> None:
        """Write the body in a version."""
        ...


@dataclass(frozen=True, slots=True)
class Resolve:
    """RESOLUTION: the values of a handle; empty lists mean all."""

    handle: bytes
    indexes: tuple[int, ...] = ()
    types: tuple[str, ...] = ()

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        handle = reader.bytes_()
        indexes = _read_indexes(reader)
        return cls(handle, indexes, tuple([reader.text() for _ in range(reader.count(4))]))

    def write(self, writer: Writer, _version: Version) -> None:
        writer.bytes_(self.handle)
        _write_indexes(writer, self.indexes)
        writer.i32(len(self.types))
        for type_ in self.types:
            writer.text(type_)


@dataclass(frozen=True, slots=True)
class HandleRequest:
    """Requests with only a handle: GET_SITE_INFO, DELETE_HANDLE, LIST_HANDLES, HOME_NA …"""

    handle: bytes = NO_HANDLE

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        return cls(reader.bytes_())

    def write(self, writer: Writer, _version: Version) -> None:
        writer.bytes_(self.handle)


@dataclass(frozen=True, slots=True)
class ValuesRequest:
    """CREATE_HANDLE, ADD_VALUE, MODIFY_VALUE: a handle and values."""

    handle: bytes
    values: tuple[Value, ...]

    @classmethod
    def read(cls, reader: Reader, _version: Version, now: int) -> Self:
        return cls(reader.bytes_(), read_values(reader, now))

    def write(self, writer: Writer, _version: Version) -> None:
        write_values(writer.bytes_(self.handle), self.values)


@dataclass(frozen=True, slots=True)
class RemoveValues:
    """REMOVE_VALUE: a handle and indexes."""

    handle: bytes
    indexes: tuple[int, ...]

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        return cls(reader.bytes_(), _read_indexes(reader))

    def write(self, writer: Writer, _version: Version) -> None:
        _write_indexes(writer.bytes_(self.handle), self.indexes)


@dataclass(frozen=True, slots=True)
class ChallengeResponse:
    """RESPONSE_TO_CHALLENGE: an identity and its proof."""

    auth_type: str
    """`HS_PUBKEY` or `HS_SECKEY`."""
    handle: bytes
    index: int
    answer: bytes

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        return cls(reader.text(), reader.bytes_(MAX_HANDLE_LENGTH), reader.i32(), reader.bytes_())

    def write(self, writer: Writer, _version: Version) -> None:
        writer.text(self.auth_type).bytes_(self.handle).i32(self.index).bytes_(self.answer)


@dataclass(frozen=True, slots=True)
class VerifyChallenge:
    """VERIFY_CHALLENGE: check the challenge response of an identity."""

    handle: bytes
    index: int
    nonce: bytes
    digest: bytes
    answer: bytes

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        handle, index, nonce = reader.bytes_(MAX_HANDLE_LENGTH), reader.i32(), reader.bytes_()
        # 1, 2 or 3 is the algorithm of a bare digest; 0 begins the length of a byte string.
        first = reader.peek()
        digest = reader.raw(1 + DIGEST_LENGTHS[first])[1:] if first in DIGEST_LENGTHS else reader.bytes_()
        return cls(handle, index, nonce, digest, reader.bytes_())

    def write(self, writer: Writer, _version: Version) -> None:
        writer.bytes_(self.handle).i32(self.index).bytes_(self.nonce).bytes_(self.digest).bytes_(self.answer)


class ExchangeMode(OpenEnum):
    """Key exchange of a session."""

    CLIENT_KEY = 1
    """Encrypted with the client's RSA key."""
    SERVER_KEY = 2
    """Encrypted with the server's RSA key."""
    HANDLE_KEY = 3
    """Encrypted with an RSA key in a handle's record."""
    DIFFIE_HELLMAN = 4


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """SESSION_SETUP: a request for a session."""

    mode: ExchangeMode
    timeout: int
    """Idle timeout in seconds; 0 means the server's default."""
    handle: bytes = b""
    """The claimed identity; empty for an anonymous session."""
    index: int = ANONYMOUS_INDEX
    public_key: bytes = b""
    """Modes 1 and 4: the client's public key."""
    key_handle: bytes = b""
    """Mode 3: the handle of the key."""
    key_index: int = 0

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        mode, timeout = ExchangeMode(reader.i16()), reader.i32()
        handle, index = reader.bytes_(MAX_HANDLE_LENGTH), reader.i32()
        if mode in _MODES_WITH_KEY:
            return cls(mode, timeout, handle, index, public_key=reader.bytes_())
        if mode == ExchangeMode.HANDLE_KEY:
            return cls(
                mode, timeout, handle, index, key_handle=reader.bytes_(MAX_HANDLE_LENGTH), key_index=reader.i32()
            )
        return cls(mode, timeout, handle, index)

    def write(self, writer: Writer, _version: Version) -> None:
        writer.i16(self.mode).i32(self.timeout).bytes_(self.handle).i32(self.index)
        if self.mode in _MODES_WITH_KEY:
            writer.bytes_(self.public_key)
        elif self.mode == ExchangeMode.HANDLE_KEY:
            writer.bytes_(self.key_handle).i32(self.key_index)
        # Deployed software reserves four bytes for the mode and writes two; the rest ends up here.
        writer.raw(b"\0\0")


@dataclass(frozen=True, slots=True)
class ExchangeKey:
    """SESSION_EXCHANGEKEY: the second step of mode 2."""

    encrypted_key: bytes

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        return cls(reader.bytes_())

    def write(self, writer: Writer, _version: Version) -> None:
        writer.bytes_(self.encrypted_key)


@dataclass(frozen=True, slots=True)
class MirrorShare:
    """The share of handles of a mirror's server."""

    hash_option: int
    servers: int
    position: int

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(reader.u8(), reader.i32(), reader.i32())

    def write(self, writer: Writer) -> None:
        writer.u8(self.hash_option).i32(self.servers).i32(self.position)


@dataclass(frozen=True, slots=True)
class RetrieveTransactions:
    """RETRIEVE_TXN_LOG: transactions since a number in one queue, or (2.9) since a JSON state of all queues."""

    receiver: MirrorShare
    last_id: int = 0
    last_date: int = 0
    """Milliseconds since 1970."""
    state: str | None = None
    """The receiver's state of every queue, as JSON; replaces the two numbers."""

    @classmethod
    def read(cls, reader: Reader, version: Version, _now: int) -> Self:
        if version.at_least(9) and (kind := reader.u8()) != 0:
            if kind != 1:
                raise reader.problem(f"unknown kind of transaction request {kind}")
            state = reader.text()
            return cls(MirrorShare.read(reader), state=state)
        last_id, last_date = reader.i64(), reader.i64()
        return cls(MirrorShare.read(reader), last_id, last_date)

    def write(self, writer: Writer, version: Version) -> None:
        if version.at_least(9):
            writer.u8(0 if self.state is None else 1)
        if self.state is not None and version.at_least(9):
            writer.text(self.state)
        else:
            writer.i64(self.last_id).i64(self.last_date)
        self.receiver.write(writer)


@dataclass(frozen=True, slots=True)
class DumpHandles:
    """DUMP_HANDLES: all records, or all after a starting point."""

    receiver: MirrorShare
    start: bytes | None = None
    """The key of the last record received."""
    start_kind: int = 0
    """0 handle dates, 1 prefix dates, 2 handles, 3 prefixes."""

    @classmethod
    def read(cls, reader: Reader, _version: Version, _now: int) -> Self:
        receiver = MirrorShare.read(reader)
        return cls(receiver, reader.bytes_(), reader.i32()) if reader.remaining else cls(receiver)

    def write(self, writer: Writer, _version: Version) -> None:
        self.receiver.write(writer)
        if self.start is not None:
            writer.bytes_(self.start).i32(self.start_kind)


_MODES_WITH_KEY = frozenset((ExchangeMode.CLIENT_KEY, ExchangeMode.DIFFIE_HELLMAN))

REQUEST_DECODERS: dict[OpCode, Callable[[Reader, Version, int], RequestBody]] = {
    OpCode.RESOLUTION: Resolve.read,
    OpCode.GET_SITE_INFO: HandleRequest.read,
    OpCode.CREATE_HANDLE: ValuesRequest.read,
    OpCode.DELETE_HANDLE: HandleRequest.read,
    OpCode.ADD_VALUE: ValuesRequest.read,
    OpCode.REMOVE_VALUE: RemoveValues.read,
    OpCode.MODIFY_VALUE: ValuesRequest.read,
    OpCode.LIST_HANDLES: HandleRequest.read,
    OpCode.RESPONSE_TO_CHALLENGE: ChallengeResponse.read,
    OpCode.VERIFY_CHALLENGE: VerifyChallenge.read,
    OpCode.HOME_NA: HandleRequest.read,
    OpCode.UNHOME_NA: HandleRequest.read,
    OpCode.LIST_HOMED_NAS: HandleRequest.read,
    OpCode.SESSION_SETUP: SessionSetup.read,
    OpCode.SESSION_TERMINATE: HandleRequest.read,
    OpCode.SESSION_EXCHANGEKEY: ExchangeKey.read,
    OpCode.GET_NEXT_TXN_ID: HandleRequest.read,
    OpCode.RETRIEVE_TXN_LOG: RetrieveTransactions.read,
    OpCode.DUMP_HANDLES: DumpHandles.read,
    OpCode.BACKUP_SERVER: HandleRequest.read,
}
"""Decoders of request bodies, for all opcodes of the protocol."""


def encode_request(body: RequestBody, version: Version) -> bytes:
    """Encode the body of a request."""
    writer = Writer()
    body.write(writer, version)
    return writer.getvalue()


def _read_indexes(reader: Reader) -> tuple[int, ...]:
    return tuple([reader.i32() for _ in range(reader.count(4))])


def _write_indexes(writer: Writer, indexes: tuple[int, ...]) -> None:
    writer.i32(len(indexes))
    for index in indexes:
        writer.i32(index)
