"""Bodies of responses: by opcode for success, by response code for failures.

The digest of the request comes first, if the RD flag is set.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from perseid.records.binary import Reader, Writer
from perseid.records.record import Value, read_values, write_values

from .codes import OpCode, OpFlag, ResponseCode, Version
from .message import DigestAlgorithm, Message, RequestDigest
from .requests import MAX_HANDLE_LENGTH, ExchangeMode

HANDLES_PER_MESSAGE: Final = 50
"""Handles per message of a list."""


class ResponseBody(Protocol):
    """Protocol of response bodies."""

    def write(self, writer: Writer) -> None:
        """Write the body."""
        ...


@dataclass(frozen=True, slots=True)
class Empty:
    """An empty body."""

    @classmethod
    def read(cls, _reader: Reader, _now: int) -> Self:
        return cls()

    def write(self, writer: Writer) -> None:
        pass


@dataclass(frozen=True, slots=True)
class UnknownBody:
    """A body of an unknown kind, as received."""

    raw: bytes = field(repr=False)

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.rest())

    def write(self, writer: Writer) -> None:
        writer.raw(self.raw)


@dataclass(frozen=True, slots=True)
class ResolutionResult:
    """RESOLUTION: the handle as requested, and its values."""

    handle: bytes
    values: tuple[Value, ...]

    @classmethod
    def read(cls, reader: Reader, now: int) -> Self:
        return cls(reader.bytes_(MAX_HANDLE_LENGTH), read_values(reader, now))

    def write(self, writer: Writer) -> None:
        write_values(writer.bytes_(self.handle), self.values)


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """GET_SITE_INFO: an encoded site."""

    site: bytes

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.rest())

    def write(self, writer: Writer) -> None:
        writer.raw(self.site)


@dataclass(frozen=True, slots=True)
class CreationResult:
    """CREATE_HANDLE: the created handle; old servers omit it."""

    handle: bytes | None

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.bytes_(MAX_HANDLE_LENGTH) if reader.remaining else None)

    def write(self, writer: Writer) -> None:
        if self.handle is not None:
            writer.bytes_(self.handle)


@dataclass(frozen=True, slots=True)
class HandleList:
    """LIST_HANDLES, LIST_HOMED_NAS: handles; with CN set more follow."""

    handles: tuple[bytes, ...]

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(tuple([reader.bytes_(MAX_HANDLE_LENGTH) for _ in range(reader.count(4))]))

    def write(self, writer: Writer) -> None:
        writer.i32(len(self.handles))
        for handle in self.handles:
            writer.bytes_(handle)


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """VERIFY_CHALLENGE: whether the answer was right."""

    flags: int

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.u8())

    def write(self, writer: Writer) -> None:
        writer.u8(self.flags)

    @property
    def is_valid(self) -> bool:
        """Only the lowest bit is used."""
        return bool(self.flags & 1)


@dataclass(frozen=True, slots=True)
class SessionSetupResult:
    """SESSION_SETUP: the server's part of the key exchange."""

    mode: ExchangeMode
    data: bytes

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(ExchangeMode(reader.i16()), reader.bytes_())

    def write(self, writer: Writer) -> None:
        # Two extra bytes, as in the request.
        writer.i16(self.mode).bytes_(self.data).raw(b"\0\0")


@dataclass(frozen=True, slots=True)
class NextTransactionId:
    """GET_NEXT_TXN_ID: a number."""

    number: int

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.i64())

    def write(self, writer: Writer) -> None:
        writer.i64(self.number)


@dataclass(frozen=True, slots=True)
class TransactionStream:
    """RETRIEVE_TXN_LOG: a stream follows this message."""

    flags: int = 0
    """Bit 0: the connection is kept alive."""

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.u8())

    def write(self, writer: Writer) -> None:
        writer.u8(self.flags)


@dataclass(frozen=True, slots=True)
class Challenge:
    """AUTHENTICATION_NEEDED: a challenge. The digest of the request is before it (2.1) or in it (2.0)."""

    nonce: bytes
    old_digest: bytes | None = None
    """2.0 only: the MD5 digest of the request."""

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        nonce = reader.bytes_()
        return cls(nonce, reader.bytes_() if reader.remaining else None)

    def write(self, writer: Writer) -> None:
        writer.bytes_(self.nonce)
        if self.old_digest is not None:
            writer.bytes_(self.old_digest)


@dataclass(frozen=True, slots=True)
class Referral:
    """SERVICE_REFERRAL, PREFIX_REFERRAL: the service to ask instead."""

    handle: bytes = b""
    """The handle with the sites; can be empty if the values have them."""
    values: tuple[Value, ...] | None = None

    @classmethod
    def read(cls, reader: Reader, now: int) -> Self:
        handle = reader.bytes_(MAX_HANDLE_LENGTH)
        return cls(handle, read_values(reader, now) if reader.remaining else None)

    def write(self, writer: Writer) -> None:
        writer.bytes_(self.handle)
        if self.values is not None:
            write_values(writer, self.values)


@dataclass(frozen=True, slots=True)
class Failure:
    """Other failures, with an optional message."""

    text: bytes | None = b""
    """Should be UTF-8; None if the field is missing, which 2.0 allows."""

    @classmethod
    def of(cls, sentence: str) -> Self:
        """Create a failure with a message."""
        return cls(sentence.encode("utf-8"))

    @classmethod
    def read(cls, reader: Reader, _now: int) -> Self:
        return cls(reader.bytes_() if reader.remaining else None)

    def write(self, writer: Writer) -> None:
        if self.text is not None:
            writer.bytes_(self.text)

    @property
    def sentence(self) -> str:
        """The message; invalid UTF-8 is replaced."""
        return (self.text or b"").decode("utf-8", "replace")


_Decoder = Callable[[Reader, int], ResponseBody]

_SUCCESS_DECODERS: dict[OpCode, _Decoder] = {
    OpCode.RESOLUTION: ResolutionResult.read,
    OpCode.GET_SITE_INFO: SiteInfo.read,
    OpCode.CREATE_HANDLE: CreationResult.read,
    OpCode.DELETE_HANDLE: Empty.read,
    OpCode.ADD_VALUE: Empty.read,
    OpCode.REMOVE_VALUE: Empty.read,
    OpCode.MODIFY_VALUE: Empty.read,
    OpCode.LIST_HANDLES: HandleList.read,
    OpCode.VERIFY_CHALLENGE: VerificationResult.read,
    OpCode.HOME_NA: Empty.read,
    OpCode.UNHOME_NA: Empty.read,
    OpCode.LIST_HOMED_NAS: HandleList.read,
    OpCode.SESSION_SETUP: SessionSetupResult.read,
    OpCode.SESSION_TERMINATE: Empty.read,
    OpCode.SESSION_EXCHANGEKEY: Empty.read,
    OpCode.GET_NEXT_TXN_ID: NextTransactionId.read,
    OpCode.RETRIEVE_TXN_LOG: TransactionStream.read,
    OpCode.DUMP_HANDLES: Empty.read,
    OpCode.BACKUP_SERVER: Empty.read,
}

_FAILURE_DECODERS: dict[ResponseCode, _Decoder] = {
    ResponseCode.AUTHENTICATION_NEEDED: Challenge.read,
    ResponseCode.SERVICE_REFERRAL: Referral.read,
    ResponseCode.PREFIX_REFERRAL: Referral.read,
}


def decode_response(message: Message, now: int) -> tuple[RequestDigest | None, ResponseBody]:
    """Decode the body of a response: the request's digest, if present, and the body."""
    reader = message.body_reader()
    header = message.header
    digest = RequestDigest.read(reader) if OpFlag.REQUEST_DIGEST in header.flags else None
    read: _Decoder
    if digest is not None and header.response_code == ResponseCode.AUTHENTICATION_NEEDED:
        # With a digest before the challenge, bytes after the nonce are not a digest.
        return digest, Challenge(reader.bytes_())
    if header.response_code == ResponseCode.SUCCESS:
        read = _SUCCESS_DECODERS.get(header.opcode, UnknownBody.read)
    else:
        read = _FAILURE_DECODERS.get(header.response_code, Failure.read)
    body = read(reader, now)
    if isinstance(body, Challenge) and digest is None and body.old_digest is not None:
        digest = RequestDigest(DigestAlgorithm.MD5, body.old_digest)
    return digest, body


def encode_response(body: ResponseBody, digest: RequestDigest | None) -> bytes:
    """Encode the body of a response."""
    writer = Writer()
    if digest is not None:
        digest.write(writer)
    body.write(writer)
    return writer.getvalue()


def encode_challenge(nonce: bytes, digest: RequestDigest, version: Version) -> bytes:
    """Encode a challenge: before 2.1 the digest follows the nonce, without algorithm."""
    if version.at_least(1):
        return encode_response(Challenge(nonce), digest)
    return encode_response(Challenge(nonce, digest.digest), None)
