"""The envelope: twenty octets before every message and every UDP packet, never encrypted.

0   u8   major version          2   u8   flags (CP 80, EC 40, TC 20) and, in 03, the suggested major version
1   u8   minor version          3   u8   suggested minor version
4   i32  session id             8   i32  request id
12  i32  sequence number        16  i32  message length, envelope excluded
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from perseid.records.errors import InvalidData

from .codes import CURRENT, Version

LENGTH: Final = 20
"""Octets of an envelope."""

MAX_MESSAGE: Final = 262_144
"""The longest message, envelope excluded: both sides of the deployed protocol refuse longer ones."""

EARLY_REQUEST_ID: Final = -1
"""The request id of an answer to what was not understood, as deployed servers write it."""

_LAYOUT = Struct(">BBBBiiii")
_COMPRESSED, _ENCRYPTED, _TRUNCATED = 0x80, 0x40, 0x20
_SUGGESTED_MAJOR = 0x03


@dataclass(frozen=True, slots=True)
class Envelope:
    """How a message is delivered."""

    version: Version = CURRENT
    """The version in which the message is encoded."""
    suggested: Version = CURRENT
    """The highest version that the sender speaks."""
    session_id: int = 0
    """The session, or the challenge that is answered; 0 for none."""
    request_id: int = 0
    """Chosen by the client, echoed by the server."""
    sequence: int = 0
    """Which packet of a UDP message."""
    length: int = 0
    """Octets of the whole message behind the envelope."""
    encrypted: bool = False
    """EC: what follows is encrypted under the session's key."""
    truncated: bool = False
    """TC: a request that comes in several packets."""
    compressed: bool = False
    """CP: never acted on, as deployed; kept so that it can be echoed."""

    @classmethod
    def from_bytes(cls, octets: bytes) -> Self:
        """Take the envelope at the front of the octets."""
        if len(octets) < LENGTH:
            raise InvalidData(f"an envelope has {LENGTH} octets, not {len(octets)}", len(octets))
        major, minor, flags, suggested_minor, session_id, request_id, sequence, length = _LAYOUT.unpack_from(octets)
        version = Version(major, minor)
        suggested_major = flags & _SUGGESTED_MAJOR
        return cls(
            version,
            # A peer that suggests nothing is old: it means the version it uses.
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
        """The twenty octets."""
        flags = self.suggested.major & _SUGGESTED_MAJOR
        flags |= _ENCRYPTED * self.encrypted | _TRUNCATED * self.truncated | _COMPRESSED * self.compressed
        return _LAYOUT.pack(
            *self.version, flags, self.suggested.minor, self.session_id, self.request_id, self.sequence, self.length
        )

    @property
    def has_valid_length(self) -> bool:
        """Whether the announced length is one that a message can have at all."""
        return 0 <= self.length <= MAX_MESSAGE
