"""The header: twenty-four octets at the front of every message.

0   i32  opcode                 12  i16  site information serial number, -1 for unknown
4   i32  response code          14  u8   recursion count        15  u8  reserved
8   u32  flags                  16  u32  expiration time        20  i32 body length
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from perseid.records.encoding import from_wire, to_wire
from perseid.records.errors import InvalidData

from .codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version, response_code_from_wire, response_code_to_wire

LENGTH: Final = 24
"""Octets of a header."""

LIFETIME: Final = 43_200
"""Seconds after which clients reject a response: twelve hours, as every deployed server sets it."""

UNKNOWN_SERIAL: Final = -1
"""The site serial of somebody who has no site record."""

_LAYOUT = Struct(">iiIhBBIi")


@dataclass(frozen=True, slots=True)
class Header:
    """What a message is about."""

    opcode: OpCode
    """The operation."""
    response_code: ResponseCode = ResponseCode.RESERVED
    """The result; RESERVED marks a request."""
    flags: OpFlag = DEFAULT_FLAGS
    """How to do it, or how it was done."""
    site_serial: int = UNKNOWN_SERIAL
    """Serial number of the site record that the sender has."""
    recursion: int = 0
    """How many servers have handed the request on."""
    expires: int = 0
    """When the message stops being valid, in seconds since 1970."""
    reserved: int = 0
    """An octet without meaning, kept."""

    @classmethod
    def from_bytes(cls, octets: bytes, version: Version, now: int) -> tuple[Self, int]:
        """Take the header at the front of the octets; also the body's length, which is not judged here."""
        if len(octets) < LENGTH:
            raise InvalidData(f"a header has {LENGTH} octets, not {len(octets)}", len(octets))
        opcode, code, flags, serial, recursion, reserved, expires, length = _LAYOUT.unpack_from(octets)
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
        """The twenty-four octets."""
        return _LAYOUT.pack(
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
        """Whether this asks rather than answers."""
        return self.response_code == ResponseCode.RESERVED
