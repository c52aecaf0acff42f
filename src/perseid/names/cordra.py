"""CORDRA identifiers (C1–C4): handles with a numeric prefix and a UUID without hyphens as local name.

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
from .handle import Handle
from .prefixes import find_empty_segment
from .schemes import Details, Source, check_count
from .uri import QUERY, Reference
from .uuids import HEX_DIGITS, generate_uuid

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


def join_reference(reference: Reference) -> Handle:
    """Append the query and fragment of a URI to the local name of a CORDRA identifier (U6)."""
    name = CordraName.parse(reference.handle)
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
