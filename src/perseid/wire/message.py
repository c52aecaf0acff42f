"""Messages: envelope, header, body and credential, and the digest of a request.

The envelope, twenty bytes before every message and every UDP packet, never encrypted:

    0   u8   major version          2   u8   flags (CP 80, EC 40, TC 20) and, in 03, the suggested major version
    1   u8   minor version          3   u8   suggested minor version
    4   i32  session id             8   i32  request id
    12  i32  sequence number        16  i32  message length, envelope excluded

The message after the envelope:

    header (24) ‖ body (length in the header) ‖ i32 credential length ‖ credential

The header:

    0   i32  opcode                 12  i16  site information serial number, -1 for unknown
    4   i32  response code          14  u8   recursion count        15  u8  reserved
    8   u32  flags                  16  u32  expiration time        20  i32 body length

Header and body are kept as received: digests, signatures and MACs cover these bytes, and encoding a parsed message
again would lose what this version does not understand.

A response with the RD flag begins with the digest of the request's header and body. The algorithm depends on the
version of the response: SHA-256 from 2.7 on, SHA-1 from 2.1 on, MD5 before.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Self

from perseid.records.binary import Reader, Writer
from perseid.records.encoding import OpenEnum, from_wire, to_wire
from perseid.records.errors import InvalidData

from .codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    LocalProtocolError,
    OpCode,
    OpFlag,
    ResponseCode,
    Version,
    response_code_from_wire,
    response_code_to_wire,
)

ENVELOPE_LENGTH: Final = 20
"""Size of an envelope in bytes."""

MAX_MESSAGE: Final = 262_144
"""Maximum size of a message without envelope: deployed clients and servers reject longer ones."""

UNKNOWN_REQUEST_ID: Final = -1
"""The request id of a response to an unreadable request, as in deployed servers."""

_ENVELOPE = Struct(">BBBBiiii")
_COMPRESSED, _ENCRYPTED, _TRUNCATED = 0x80, 0x40, 0x20
_SUGGESTED_MAJOR = 0x03


@dataclass(frozen=True, slots=True)
class Envelope:
    """The envelope of a message."""

    version: Version = CURRENT_VERSION
    """The version in which the message is encoded."""
    suggested: Version = CURRENT_VERSION
    """The highest version that the sender supports."""
    session_id: int = 0
    """The session, or the challenge that is answered; 0 for none."""
    request_id: int = 0
    """Chosen by the client, echoed by the server."""
    sequence: int = 0
    """Number of the packet of a UDP message."""
    length: int = 0
    """Size of the whole message after the envelope, in bytes."""
    encrypted: bool = False
    """EC: what follows is encrypted under the session's key."""
    truncated: bool = False
    """TC: a request in several packets."""
    compressed: bool = False
    """CP: ignored, as deployed; echoed."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the envelope at the front."""
        if len(data) < ENVELOPE_LENGTH:
            raise InvalidData(f"an envelope must have {ENVELOPE_LENGTH} bytes, not {len(data)}", len(data))
        major, minor, flags, suggested_minor, session_id, request_id, sequence, length = _ENVELOPE.unpack_from(data)
        version = Version(major, minor)
        suggested_major = flags & _SUGGESTED_MAJOR
        return cls(
            version,
            # An old peer suggests nothing and means the version that it uses.
            Version(suggested_major, suggested_minor) if suggested_major else version,
            session_id,
            request_id,
            sequence,
            length,
            bool(flags & _ENCRYPTED),
            bool(flags & _TRUNCATED),
            bool(flags & _COMPRESSED),
        )

    def to_bytes(self) -> bytes:
        """Encode the envelope."""
        flags = self.suggested.major & _SUGGESTED_MAJOR
        flags |= _ENCRYPTED * self.encrypted | _TRUNCATED * self.truncated | _COMPRESSED * self.compressed
        return _ENVELOPE.pack(
            *self.version, flags, self.suggested.minor, self.session_id, self.request_id, self.sequence, self.length
        )

    def with_length(self, length: int) -> Self:
        """The envelope of a payload of a length; too long ones are rejected."""
        if length > MAX_MESSAGE:
            raise LocalProtocolError(f"the message has {length:,} bytes; the maximum is {MAX_MESSAGE:,}")
        # Like `replace`, which takes three times as long.
        return type(self)(
            self.version,
            self.suggested,
            self.session_id,
            self.request_id,
            self.sequence,
            length,
            self.encrypted,
            self.truncated,
            self.compressed,
        )

    @property
    def has_valid_length(self) -> bool:
        """Whether a message can have the stated length."""
        return 0 <= self.length <= MAX_MESSAGE


HEADER_LENGTH: Final = 24
"""Size of a header in bytes."""

OPCODE: Final = slice(ENVELOPE_LENGTH, ENVELOPE_LENGTH + 4)
RESPONSE_CODE: Final = slice(ENVELOPE_LENGTH + 4, ENVELOPE_LENGTH + 8)
BODY_OFFSET: Final = ENVELOPE_LENGTH + HEADER_LENGTH
"""Positions in a message with its envelope, for programs that do not decode it."""

MESSAGE_LIFETIME: Final = 43_200
"""Seconds after which clients reject a response: twelve hours, as in deployed servers."""

UNKNOWN_SERIAL: Final = -1
"""The site serial of a sender without a site record."""

_HEADER = Struct(">iiIhBBIi")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a message."""

    opcode: OpCode
    response_code: ResponseCode = ResponseCode.RESERVED
    """The result; RESERVED marks a request."""
    flags: OpFlag = DEFAULT_FLAGS
    site_serial: int = UNKNOWN_SERIAL
    """Serial number of the sender's site record."""
    recursion: int = 0
    """Number of servers that have forwarded the request."""
    expires: int = 0
    """Time of expiry, in seconds since 1970."""
    reserved: int = 0
    """Unused, preserved."""

    @classmethod
    def from_bytes(cls, data: bytes, version: Version, now: int) -> tuple[Self, int]:
        """Decode the header at the front; also return the length of the body, which is not checked here."""
        if len(data) < HEADER_LENGTH:
            raise InvalidData(f"a header must have {HEADER_LENGTH} bytes, not {len(data)}", len(data))
        opcode, code, flags, serial, recursion, reserved, expires, length = _HEADER.unpack_from(data)
        header = cls(
            OpCode(opcode),
            response_code_from_wire(code, version),
            OpFlag(flags),
            serial,
            recursion,
            from_wire(expires, now),
            reserved,
        )
        return header, length

    def to_bytes(self, version: Version, body_length: int) -> bytes:
        """Encode the header."""
        return _HEADER.pack(
            self.opcode,
            response_code_to_wire(self.response_code, version),
            self.flags,
            self.site_serial,
            self.recursion,
            self.reserved,
            to_wire(self.expires),
            body_length,
        )

    @property
    def is_request(self) -> bool:
        """Whether this is a request."""
        return self.response_code == ResponseCode.RESERVED


MAX_CREDENTIAL: Final = 4_096
"""Maximum size of a credential in bytes: the signature of the longest key has 1,024, names and lengths some dozens."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The signature or MAC of a message."""

    type: str
    """`HS_SIGNED` (public key) or `HS_MAC` (session key)."""
    algorithm: bytes
    """The hash or MAC, in one of its spellings."""
    signature: bytes = field(repr=False)
    """The signature or MAC."""
    counter: int = 0
    """The session counter, in the field of the signer's index."""
    signer: bytes = b""
    """The signer's handle: empty as deployed, preserved if not."""
    version: int = 0
    reserved: int = 0
    options: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode a credential without its length."""
        reader = Reader(data)
        version, reserved, options = reader.u8(), reader.u8(), reader.i16()
        signer, counter, type_ = reader.bytes_(), reader.i32(), reader.text()
        signed = reader.inner(reader.i32())
        reader.finish()
        algorithm, signature = signed.bytes_(), signed.bytes_()
        signed.finish()
        return cls(type_, algorithm, signature, counter, signer, version, reserved, options)

    def to_bytes(self) -> bytes:
        """Encode the credential without its length."""
        writer = Writer().u8(self.version).u8(self.reserved).i16(self.options)
        writer.bytes_(self.signer).i32(self.counter).text(self.type)
        signed = Writer().bytes_(self.algorithm).bytes_(self.signature).getvalue()
        return writer.bytes_(signed).getvalue()


@dataclass(frozen=True, slots=True)
class Message:
    """A request or response. Create it with `build` or `from_bytes`, so that its parts are consistent."""

    envelope: Envelope
    header: Header
    raw: bytes = field(repr=False)
    """Header and body exactly as transmitted (decrypted): what digests and signatures cover."""
    credential: Credential | None = None
    """The signature or MAC, if there is one."""

    @classmethod
    def build(cls, envelope: Envelope, header: Header, body: bytes, credential: Credential | None = None) -> Self:
        """Build a message and compute its lengths."""
        data = header.to_bytes(envelope.version, len(body)) + body
        return cls(envelope.with_length(_payload_length(data, credential)), header, data, credential)

    @classmethod
    def from_bytes(cls, envelope: Envelope, payload: bytes, now: int) -> Self:
        """Decode the (decrypted) message after an envelope."""
        header, length = Header.from_bytes(payload, envelope.version, now)
        end = HEADER_LENGTH + length
        if length < 0 or end > len(payload):
            raise InvalidData(f"the body length {length} in the header exceeds the message", 20)
        credential = None
        if end < len(payload):
            reader = Reader(payload, end)
            data = reader.bytes_(MAX_CREDENTIAL)
            # Trailing bytes would not be protected by the credential.
            reader.finish()
            credential = Credential.from_bytes(data) if data else None
        return cls(envelope, header, payload[:end], credential)

    @property
    def version(self) -> Version:
        """The version in which the message is encoded."""
        return self.envelope.version

    @property
    def body(self) -> bytes:
        """The body alone."""
        return self.raw[HEADER_LENGTH:]

    def body_reader(self) -> Reader:
        """A reader for the body."""
        return Reader(self.raw, HEADER_LENGTH)

    def with_credential(self, credential: Credential) -> Self:
        """Copy with a credential."""
        envelope = self.envelope.with_length(_payload_length(self.raw, credential))
        return type(self)(envelope, self.header, self.raw, credential)

    def payload(self) -> bytes:
        """Encode everything after the envelope; the length of the credential is always present."""
        credential = b"" if self.credential is None else self.credential.to_bytes()
        return self.raw + len(credential).to_bytes(4, "big") + credential

    def to_bytes(self) -> bytes:
        """Encode envelope and message, unencrypted, for TCP."""
        return self.envelope.to_bytes() + self.payload()


def _payload_length(raw: bytes, credential: Credential | None) -> int:
    """The size of header, body and credential, whose length is always present."""
    return len(raw) + 4 + (0 if credential is None else len(credential.to_bytes()))


class DigestAlgorithm(OpenEnum):
    """Hash algorithms by their code."""

    MD5 = 1
    SHA1 = 2
    SHA256 = 3


DIGEST_LENGTHS: Final = {1: 16, 2: 20, 3: 32}
"""Size of a digest in bytes, by algorithm."""

_HASH_NAMES = {DigestAlgorithm.MD5: "md5", DigestAlgorithm.SHA1: "sha1", DigestAlgorithm.SHA256: "sha256"}


def hash_bytes(algorithm: DigestAlgorithm, data: bytes) -> bytes:
    """Compute a hash."""
    return hashlib.new(_HASH_NAMES[algorithm], data, usedforsecurity=False).digest()


def digest_algorithm_for(version: Version) -> DigestAlgorithm:
    """The algorithm for responses of a version."""
    if version.at_least(7):
        return DigestAlgorithm.SHA256
    return DigestAlgorithm.SHA1 if version.at_least(1) else DigestAlgorithm.MD5


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """A digest and its algorithm."""

    algorithm: DigestAlgorithm
    digest: bytes

    @classmethod
    def of(cls, request_bytes: bytes, version: Version) -> Self:
        """Compute the digest of a request (header and body) for a response of a version."""
        algorithm = digest_algorithm_for(version)
        return cls(algorithm, hash_bytes(algorithm, request_bytes))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read a digest: algorithm and bytes, or the older form, a byte string (MD5)."""
        if reader.peek() == 0:
            return cls(DigestAlgorithm.MD5, reader.bytes_(DIGEST_LENGTHS[1]))
        algorithm = DigestAlgorithm(reader.u8())
        if algorithm not in DIGEST_LENGTHS:
            raise reader.problem(f"unknown digest algorithm {algorithm.value}")
        return cls(algorithm, reader.raw(DIGEST_LENGTHS[algorithm]))

    def write(self, writer: Writer) -> None:
        """Write algorithm and digest."""
        writer.u8(self.algorithm).raw(self.digest)

    def matches(self, request_bytes: bytes) -> bool:
        """Whether this is the digest of a request."""
        return hmac.compare_digest(hash_bytes(self.algorithm, request_bytes), self.digest)
