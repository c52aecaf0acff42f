"""UUIDs (RFC 9562) as names: their text form (the scheme `uuid`), and CORDRA identifiers (C1–C4).

Version 4 is random. Version 1 is the time with a random node id, never the machine's address. Version 7 starts with the
time, so that names sort by age; it is not a DCE UUID and therefore not for CORDRA (C3).

A CORDRA identifier is a handle with a numeric prefix and a UUID without hyphens as local name:

    handle     = authority "/" path [ "?" query ] [ "#" fragment ]
    authority  = 1*DIGIT *( "." 1*DIGIT )
    path       = 32HEXDIG

Query and fragment follow the URI query syntax (RFC 3986 §3.4). The path is normalized to uppercase first; query and
fragment stay exact.
"""

import re
from dataclasses import dataclass
from typing import Literal, Self, cast
from uuid import UUID

from .errors import InvalidName, NameMisuse, format_character
from .handle import Handle, find_empty_segment
from .schemes import Details, Source, check_count
from .uri import QUERY, Reference

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
            raise _make_uuid_error(handle)

    def normalize(self, handle: Handle) -> Handle:
        """Convert the suffix to lowercase."""
        self.validate(handle)
        return Handle(handle.prefix, handle.suffix.lower())

    def describe(self, handle: Handle) -> Details:
        """The UUID version; None if it is not a standard one."""
        self.validate(handle)
        return {"version": UUID(handle.suffix).version}


def _make_uuid_error(handle: Handle) -> InvalidName:
    start = len(handle.prefix) + 1
    for position, character in enumerate(handle.suffix[:_TEXT_LENGTH]):
        if character != "-" if position in _HYPHENS else character not in HEX_DIGITS:
            message = f"{format_character(character)} is not allowed here: a UUID is 8-4-4-4-12 hexadecimal digits"
            return InvalidName("P8", message, position=start + position, character=character)
    message = f"the suffix has {len(handle.suffix)} characters; a UUID with hyphens has {_TEXT_LENGTH}"
    return InvalidName("P8", message, position=start + min(len(handle.suffix), _TEXT_LENGTH))


LENGTH = 32

_AUTHORITY = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_LOCAL_NAME = re.compile(rf"([0-9A-Fa-f]{{{LENGTH}}})(?:\?({QUERY}))?(?:#({QUERY}))?")
_QUERY = re.compile(QUERY)
_BARE = re.compile(rf"{_AUTHORITY.pattern}/[0-9A-F]{{{LENGTH}}}")


@dataclass(frozen=True, slots=True)
class CordraName:
    """The parts of a CORDRA identifier, the path in uppercase."""

    authority: str
    """The naming authority: digits and dots."""
    path: str
    """32 hexadecimal digits."""
    query: str | None = None
    fragment: str | None = None

    def __post_init__(self) -> None:
        if (
            not _BARE.fullmatch(f"{self.authority}/{self.path}")
            or (self.query is not None and not _QUERY.fullmatch(self.query))
            or (self.fragment is not None and not _QUERY.fullmatch(self.fragment))
        ):
            raise NameMisuse("C2", f"{self!r} is not a CORDRA identifier; use CordraName.parse for untrusted names")

    @classmethod
    def parse(cls, handle: Handle) -> Self:
        """Parse a CORDRA identifier."""
        local_name = _LOCAL_NAME.fullmatch(handle.suffix)
        if local_name is None or not _AUTHORITY.fullmatch(handle.prefix):
            raise _make_error(handle)
        path, query, fragment = local_name.groups()
        return cls(handle.prefix, path.upper(), query, fragment)

    @property
    def bare(self) -> Handle:
        """The registered handle, without query and fragment."""
        return Handle(self.authority, self.path)

    @property
    def handle(self) -> Handle:
        """The whole identifier as a handle, with query and fragment."""
        tail = Reference(self.bare, self.query, self.fragment).tail
        return Handle(self.authority, self.path + tail)


def split_reference(reference: Reference) -> Reference:
    """The bare handle of a CORDRA identifier with its query and fragment, in the local name or in the URI (U6)."""
    name = CordraName.parse(join_reference(reference))
    return Reference(name.bare, name.query, name.fragment)


def join_reference(reference: Reference) -> Handle:
    """Append the query and fragment of a URI to the local name of a CORDRA identifier (U6)."""
    name = CordraName.parse(reference.handle)
    if not reference.tail:
        return name.handle
    if name.query is not None or name.fragment is not None:
        mark = reference.handle.suffix[LENGTH]
        position = len(name.authority) + 1 + LENGTH
        message = "the name already has a query or fragment"
        raise InvalidName("C2", message, position=position, character=mark)
    return Handle.parse(str(name.bare) + reference.tail)


@dataclass(frozen=True, slots=True)
class CordraScheme:
    """The scheme `cordra`."""

    version: Literal[1, 4] = 4
    """Version of new UUIDs: 4 (random) or 1 (time and random node). Any 32 digits are valid (C3)."""

    name = "cordra"

    def __post_init__(self) -> None:
        if self.version not in {1, 4}:
            message = f"CORDRA does not support UUID version {self.version}; use version 1 or 4"
            raise NameMisuse("C3", message)

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Create new paths."""
        check_count(count)
        return [generate_uuid(self.version, source).hex.upper() for _ in range(count)]

    def validate(self, handle: Handle) -> None:
        """Reject handles that are not CORDRA identifiers."""
        CordraName.parse(handle)

    def normalize(self, handle: Handle) -> Handle:
        """Convert the path to uppercase; query and fragment stay exact (C4)."""
        return CordraName.parse(handle).handle

    def describe(self, handle: Handle) -> Details:
        """The parts, and the UUID with hyphens."""
        name = CordraName.parse(handle)
        return {
            "path": name.path,
            "query": name.query,
            "fragment": name.fragment,
            "uuid": str(UUID(name.path)),
        }


def _make_error(handle: Handle) -> InvalidName:
    start = len(handle.prefix) + 1
    for position, character in enumerate(handle.prefix):
        if character not in "0123456789.":
            message = (
                f"{format_character(character)} is not allowed: the prefix of a CORDRA identifier is digits and dots"
            )
            return InvalidName("C1", message, position=position, character=character)
    if (dot := find_empty_segment(handle.prefix)) is not None:
        message = "the naming authority has an empty segment; write one dot between groups of digits"
        return InvalidName("C1", message, position=dot, character=".")
    path = re.split("[?#]", handle.suffix, maxsplit=1)[0]
    for position, character in enumerate(path):
        if character not in HEX_DIGITS:
            message = (
                f"{format_character(character)} is not a hexadecimal digit; the path is 32 of them, without hyphens"
            )
            return InvalidName("C2", message, position=start + position, character=character)
    if len(path) != LENGTH:
        message = f"the path has {len(path)} hexadecimal digits; {LENGTH} are required"
        return InvalidName("C2", message, position=start + min(len(path), LENGTH))
    # The match ends at the first wrong character.
    position = cast("re.Match[str]", _LOCAL_NAME.match(handle.suffix)).end()
    character = handle.suffix[position]
    message = f"{format_character(character)} is not allowed here: query and fragment follow the URI query syntax"
    return InvalidName("C2", message, position=start + position, character=character)
