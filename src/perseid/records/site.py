"""Sites: HS_SITE, HS_SITE.6, HS_SITE.PREFIX, HS_NA_DELEGATE, `siteinfo.bin`, `siteinfo.json`.

    0   i16    version of this format: 1
    2   u8 u8  protocol version, major and minor
    4   i16    serial number, to be raised with every change
    6   u8     80 this site is a primary, 40 the service has several primaries
    7   u8     hash option
    8   bytes  hash filter, unused
    …   i32    count, then attributes: str name, bytes value
    …   i32    count, then servers; their order counts, because hashing chooses by position

A site in JSON or text is what `siteinfo.json` holds; see `site_json` for its varieties.
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Final, Self

from . import encoding as octets_module
from .binary import Reader, Writer
from .encoding import clean_text
from .errors import RecordMisuse
from .json_parsing import JsonObject, a_flag, a_list, a_number, an_object, parse_json, write_json
from .openenum import OpenEnum
from .server import Server
from .site_json import attributes_from_json, attributes_to_json, find, need, version_from_json

PROTOCOL_VERSION: Final = (2, 11)
"""The newest protocol version; what a site in JSON means that does not say."""

_SMALLEST_ATTRIBUTE = 8
_SMALLEST_SERVER = 28  # an empty key, no interfaces
_BYTE_ORDER_MARK = "\ufeff"


class PrimaryMask(IntFlag):
    """The site's place in its service. Unknown bits are kept."""

    MULTI_PRIMARY = 0x40
    """The service has several primary sites."""
    PRIMARY = 0x80
    """This site takes changes."""


class HashOption(OpenEnum):
    """Which part of a handle chooses the server."""

    PREFIX = 0
    SUFFIX = 1
    ALL = 2


MIRROR: Final = PrimaryMask(0)
"""A site that takes no changes."""

_UNKNOWN_MASK = 0x3F


@dataclass(frozen=True, slots=True)
class Attribute:
    """A name and a value that describe a site: `desc`, `domain`, `alt_addr` …"""

    name: str
    """What it says."""
    value: bytes
    """Text in UTF-8, as far as anybody knows."""


@dataclass(frozen=True, slots=True)
class Site:
    """A group of servers that hold all handles of a service together."""

    servers: tuple[Server, ...]
    """In the order in which hashing counts them."""
    attributes: tuple[Attribute, ...] = ()
    """What describes the site, in order; a name may come twice."""
    serial: int = 1
    """Raised with every change of this record; 16 bits with a sign, as deployed software reads it."""
    primary: PrimaryMask = MIRROR
    """Whether it takes changes."""
    hash_option: HashOption = HashOption.ALL
    """How a handle finds its server."""
    hash_filter: bytes = b""
    """Unused, kept."""
    protocol_version: tuple[int, int] = PROTOCOL_VERSION
    """The highest version that the servers speak."""
    version: int = 1
    """The version of this format."""

    def __post_init__(self) -> None:
        if not all(0 <= octet <= 0xFF for octet in (*self.protocol_version, self.primary, self.hash_option)):
            raise RecordMisuse("protocol version, primary mask and hash option of a site are octets")

    def attribute(self, name: str) -> str | None:
        """The first attribute of this name as text; None if there is none or it is no text."""
        found = next((attribute.value for attribute in self.attributes if attribute.name == name), None)
        return None if found is None else clean_text(found)

    @property
    def is_primary(self) -> bool:
        """Whether it takes changes."""
        return PrimaryMask.PRIMARY in self.primary

    @classmethod
    def from_bytes(cls, octets: bytes) -> Self:
        """Take the data of a value, or a file; nothing may follow."""
        reader = Reader(octets)
        version = reader.i16()
        protocol_version = (reader.u8(), reader.u8())
        serial = reader.i16()
        primary = PrimaryMask(reader.u8())
        hash_option = HashOption(reader.u8())
        hash_filter = reader.bytes_()
        attributes = [Attribute(reader.text(), reader.bytes_()) for _ in range(reader.count(_SMALLEST_ATTRIBUTE))]
        servers = [Server.read(reader) for _ in range(reader.count(_SMALLEST_SERVER))]
        reader.finish()
        return cls(
            tuple(servers), tuple(attributes), serial, primary, hash_option, hash_filter, protocol_version, version
        )

    def to_bytes(self) -> bytes:
        """The data of a value, or a file."""
        major, minor = self.protocol_version
        writer = Writer().i16(self.version).u8(major).u8(minor).i16(self.serial)
        writer.u8(self.primary).u8(self.hash_option).bytes_(self.hash_filter).i32(len(self.attributes))
        for attribute in self.attributes:
            writer.text(attribute.name).bytes_(attribute.value)
        writer.i32(len(self.servers))
        for server in self.servers:
            server.write(writer)
        return writer.done()

    @classmethod
    def from_json(cls, plain: object) -> Self:
        """Take a JSON object; everything but the servers may be missing."""
        members = an_object(plain, "the site")
        servers = a_list(need(members, "servers", "the site"), "the servers")
        version, protocol = find(members, "version"), find(members, "protocolVersion")
        option, filter_ = find(members, "hashOption"), find(members, "hashFilter")
        return cls(
            tuple([Server.from_json(server) for server in servers]),
            tuple([Attribute(*pair) for pair in attributes_from_json(find(members, "attributes"))]),
            _serial_from_json(find(members, "serialNumber")),
            _primary_from_json(members),
            HashOption.ALL if option is None else HashOption(a_number(option, "the hash option", 0, 0xFF)),
            b"" if filter_ is None else octets_module.from_json(filter_, "the hash filter"),
            PROTOCOL_VERSION if protocol is None else version_from_json(protocol),
            1 if version is None else a_number(version, "the version", -0x8000, 0x7FFF),
        )

    def to_json(self) -> JsonObject:
        """A JSON object, members in the order in which deployed software writes them."""
        major, minor = self.protocol_version
        plain: JsonObject = {
            "version": self.version,
            "protocolVersion": f"{major}.{minor}",
            "serialNumber": self.serial,
            "primarySite": self.is_primary,
            "multiPrimary": PrimaryMask.MULTI_PRIMARY in self.primary,
        }
        if self.primary & _UNKNOWN_MASK:
            plain["primaryMask"] = int(self.primary)
        if self.hash_option != HashOption.ALL:
            plain["hashOption"] = int(self.hash_option)
        if self.hash_filter:
            plain["hashFilter"] = octets_module.to_json(self.hash_filter)
        plain["attributes"] = attributes_to_json([(one.name, one.value) for one in self.attributes])
        plain["servers"] = [server.to_json() for server in self.servers]
        return plain

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Take the text of a `siteinfo.json`."""
        return cls.from_json(parse_json(text.removeprefix(_BYTE_ORDER_MARK)))

    def to_text(self) -> str:
        """The JSON in one line."""
        return write_json(self.to_json())

    @classmethod
    def from_file(cls, octets: bytes) -> Self:
        """Take the contents of a file: JSON if it is clean text, binary if not."""
        text = clean_text(octets)
        return cls.from_bytes(octets) if text is None else cls.from_text(text)


def _serial_from_json(plain: object) -> int:
    """Sixteen bits; whoever counts them without a sign means the same octets."""
    if plain is None:
        return 0
    number = a_number(plain, "the serial number", -0x8000, 0xFFFF)
    return number if number <= 0x7FFF else number - 0x1_0000


def _primary_from_json(members: JsonObject) -> PrimaryMask:
    mask = find(members, "primaryMask")
    primary = PrimaryMask(0 if mask is None else a_number(mask, "the primary mask", 0, 0xFF))
    for name, bit in (("primarySite", PrimaryMask.PRIMARY), ("multiPrimary", PrimaryMask.MULTI_PRIMARY)):
        given = find(members, name)
        if given is not None and a_flag(given, name):
            primary |= bit
    return primary
