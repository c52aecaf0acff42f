"""UUIDs (RFC 9562) and the scheme `uuid`, their text form.

Version 4 is random. Version 1 is the time with a random node id, never the machine's address. Version 7 starts with
the time, so that names sort by age; it is not a DCE UUID and therefore not for CORDRA (C3).
"""

import re
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from .errors import InvalidName, NameMisuse, format_character
from .handle import Handle
from .schemes import Details, Source, check_count

UuidVersion = Literal[1, 4, 7]

HEX_DIGITS = frozenset("0123456789ABCDEFabcdef")

_TEXT = re.compile("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_HYPHENS = frozenset((8, 13, 18, 23))
_TEXT_LENGTH = 36
_UUID_EPOCH_TICKS = 0x01B21DD213814000  # from 1582-10-15 to 1970-01-01, in units of 100 ns
_MULTICAST = 1 << 40  # marks a node id as not a machine's address (RFC 9562 §6.10)


def generate_uuid(version: UuidVersion, source: Source) -> UUID:
    """Generate a UUID of the given version."""
    if version == 4:
        return UUID(bytes=source.random(16), version=4)
    if version == 1:
        ticks = source.clock() // 100 + _UUID_EPOCH_TICKS
        node = int.from_bytes(source.random(6), "big") | _MULTICAST
        sequence = int.from_bytes(source.random(2), "big")
        fields = (
            ticks & 0xFFFFFFFF,
            ticks >> 32 & 0xFFFF,
            ticks >> 48 & 0xFFF,
            sequence >> 8,
            sequence & 0xFF,
            node,
        )
        return UUID(fields=fields, version=1)
    milliseconds = source.clock() // 1_000_000
    # uuid.UUID of Python 3.11 supports versions 1 to 5 only.
    number = milliseconds << 80 | int.from_bytes(source.random(10), "big")
    number = number & ~(0xF << 76) | 7 << 76
    return UUID(int=number & ~(0x3 << 62) | 0x2 << 62)


@dataclass(frozen=True, slots=True)
class UuidScheme:
    """The scheme `uuid`: lowercase, with hyphens, as deployed servers mint them."""

    version: UuidVersion = 4
    """Version of new UUIDs; every version is valid."""

    name = "uuid"

    def __post_init__(self) -> None:
        if self.version not in {1, 4, 7}:
            raise NameMisuse("P8", f"UUID version {self.version} is not supported; use version 1, 4 or 7")

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Mint new UUIDs."""
        check_count(count)
        return [str(generate_uuid(self.version, source)) for _ in range(count)]

    def validate(self, handle: Handle) -> None:
        """Reject suffixes that are not UUIDs with hyphens."""
        if not _TEXT.fullmatch(handle.suffix):
            raise _make_error(handle)

    def normalize(self, handle: Handle) -> Handle:
        """Convert the suffix to lowercase."""
        self.validate(handle)
        return Handle(handle.prefix, handle.suffix.lower())

    def describe(self, handle: Handle) -> Details:
        """The UUID version; None if it is not a standard one."""
        self.validate(handle)
        return {"version": UUID(handle.suffix).version}


def _make_error(handle: Handle) -> InvalidName:
    start = len(handle.prefix) + 1
    for position, character in enumerate(handle.suffix[:_TEXT_LENGTH]):
        if character != "-" if position in _HYPHENS else character not in HEX_DIGITS:
            message = f"{format_character(character)} is not allowed here: a UUID is 8-4-4-4-12 hexadecimal digits"
            return InvalidName("P8", message, position=start + position, character=character)
    message = f"the suffix has {len(handle.suffix)} characters; a UUID with hyphens has {_TEXT_LENGTH}"
    return InvalidName("P8", message, position=start + min(len(handle.suffix), _TEXT_LENGTH))
