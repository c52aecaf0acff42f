"""A message: envelope, header, body and credential, with the very octets it was made of.

    header (24) ‖ body (as long as the header says) ‖ i32 credential length ‖ credential

The octets of header and body are kept as they came: digests, signatures and MACs are over them, and encoding a
parsed message anew would lose what this version does not understand.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Self

from perseid.records.binary import Reader, Writer
from perseid.records.errors import InvalidData

from . import header as header_module
from .codes import Version
from .envelope import MAX_MESSAGE, Envelope
from .errors import LocalProtocolError
from .header import Header

MAX_CREDENTIAL: Final = 4_096
"""Octets of the longest credential: the signature of the longest key has 1,024, names and lengths some dozens."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Who vouches for a message, and how."""

    type: str
    """`HS_SIGNED` (public key) or `HS_MAC` (session key)."""
    algorithm: bytes
    """The hash or MAC, in one of its spellings."""
    signature: bytes = field(repr=False)
    """The signature or MAC."""
    counter: int = 0
    """The session counter; it stands where the signer's index would."""
    signer: bytes = b""
    """The signer's handle: always empty as deployed, kept if not."""
    version: int = 0
    reserved: int = 0
    options: int = 0

    @classmethod
    def from_bytes(cls, octets: bytes) -> Self:
        """Take a credential without its length word."""
        reader = Reader(octets)
        version, reserved, options = reader.u8(), reader.u8(), reader.i16()
        signer, counter, type_ = reader.bytes_(), reader.i32(), reader.text()
        signed = reader.inner(reader.i32())
        reader.finish()
        algorithm, signature = signed.bytes_(), signed.bytes_()
        signed.finish()
        return cls(type_, algorithm, signature, counter, signer, version, reserved, options)

    def to_bytes(self) -> bytes:
        """The octets without their length word."""
        writer = Writer().u8(self.version).u8(self.reserved).i16(self.options)
        writer.bytes_(self.signer).i32(self.counter).text(self.type)
        signed = Writer().bytes_(self.algorithm).bytes_(self.signature).done()
        return writer.bytes_(signed).done()


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a response. Make one with `build` or `from_bytes`, so that its parts agree."""

    envelope: Envelope
    """How it travels."""
    header: Header
    """What it is about."""
    octets: bytes = field(repr=False)
    """Header and body exactly as transmitted (decrypted): what digests and signatures cover."""
    credential: Credential | None = None
    """The signature or MAC, if there is one."""

    @classmethod
    def build(cls, envelope: Envelope, header: Header, body: bytes, credential: Credential | None = None) -> Self:
        """Put a message together; the lengths follow from the parts."""
        octets = header.to_bytes(envelope.version, len(body)) + body
        message = cls(envelope, header, octets, credential)
        return replace(message, envelope=message.fitting_envelope())

    @classmethod
    def from_bytes(cls, envelope: Envelope, payload: bytes, now: int) -> Self:
        """Take the message that followed an envelope; an encrypted one must have been decrypted before."""
        header, length = Header.from_bytes(payload, envelope.version, now)
        end = header_module.LENGTH + length
        if length < 0 or end > len(payload):
            raise InvalidData(f"the body has {length} octets by its header, which the message does not hold", 20)
        credential = None
        if end < len(payload):
            reader = Reader(payload, end)
            octets = reader.bytes_(MAX_CREDENTIAL)
            # Nothing protects what would follow, so nothing may.
            reader.finish()
            credential = Credential.from_bytes(octets) if octets else None
        return cls(envelope, header, payload[:end], credential)

    @property
    def version(self) -> Version:
        """The version in which the message is encoded."""
        return self.envelope.version

    @property
    def body(self) -> bytes:
        """The body alone."""
        return self.octets[header_module.LENGTH :]

    def body_reader(self) -> Reader:
        """A reader of the body."""
        return Reader(self.octets, header_module.LENGTH)

    def with_credential(self, credential: Credential) -> Self:
        """The same message, signed."""
        message = replace(self, credential=credential)
        return replace(message, envelope=message.fitting_envelope())

    def payload(self) -> bytes:
        """Everything behind the envelope. The credential's length word is always there."""
        credential = b"" if self.credential is None else self.credential.to_bytes()
        return self.octets + len(credential).to_bytes(4, "big") + credential

    def fitting_envelope(self) -> Envelope:
        """The envelope with the length of what follows it; a message longer than any peer accepts is refused."""
        length = len(self.payload())
        if length > MAX_MESSAGE:
            raise LocalProtocolError(f"the message has {length:,} octets; {MAX_MESSAGE:,} are the most")
        return replace(self.envelope, length=length)

    def to_bytes(self) -> bytes:
        """Envelope and message, unencrypted, as they go over TCP."""
        return self.envelope.to_bytes() + self.payload()
