"""Sites: HS_SITE, HS_SITE.6, HS_SITE.PREFIX, HS_NA_DELEGATE, `siteinfo.bin`, `siteinfo.json`.

    0   i16    version of this format: 1
    2   u8 u8  protocol version, major and minor
    4   i16    serial number, incremented with every change
    6   u8     80 this site is a primary, 40 the service has several primaries
    7   u8     hash option
    8   bytes  hash filter, unused
    …   i32    count, then attributes: str name, bytes value
    …   i32    count, then servers; hashing selects them by position

    server     i32    id                      interface  u8   type: 1 admin, 2 query, 3 both, 0 out of service
               16     address                            u8   protocol
               bytes  public key                         i32  port
               i32    count, then interfaces

JSON and text are those of `siteinfo.json`. Variants of old software are read too:

- Members can begin with an uppercase letter, and `servers`, `interfaces` can be `serverList`, `interfaceList`.
- Attributes are an array of `{"name":…, "value":…}`, or an object of name → text or texts.
- A public key is `{"format": "key", "value": {…}}`, or bytes in base64 or hexadecimal; a bare string is hexadecimal.
- Protocols are names, or numbers if unknown.

Only the current form is written. Members that deployed readers ignore hold what it cannot express.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, Self

from . import encoding as codec
from .binary import Reader, Writer
from .encoding import (
    JsonObject,
    OpenEnum,
    decode_printable,
    from_hex,
    parse_json,
    require_bool,
    require_int,
    require_list,
    require_object,
    require_text,
    to_base64,
    write_json,
)
from .errors import InvalidData, RecordMisuse
from .keys import PublicKey
from .partition import HashOption

LEGACY_NAMES: Final = {"servers": "serverList", "interfaces": "interfaceList"}
"""Alternative names of members."""

ADDRESS_LENGTH: Final = 16
_JSON_KEY_TYPES = ("RSA", "DSA")
_V4_PADDING = bytes(12)
_MAPPED_V4 = bytes(10) + b"\xff\xff"
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")


def find_site_member(members: JsonObject, name: str) -> object:
    """Find a member by its name or legacy name, in lowercase or capitalized; None if missing."""
    for spelling in (name, LEGACY_NAMES.get(name, name)):
        for candidate in (spelling, spelling[0].upper() + spelling[1:]):
            if candidate in members:
                return members[candidate]
    return None


def require_site_member(members: JsonObject, name: str, label: str) -> object:
    """Return a required member that is not null."""
    value = find_site_member(members, name)
    if value is None:
        raise InvalidData(f'{label} has no "{name}"')
    return value


def attributes_from_json(obj: object) -> list[tuple[str, bytes]]:
    """Parse names and values from an array or an object."""
    if obj is None:
        return []
    pairs: list[tuple[object, object]] = []
    if isinstance(obj, dict):
        for name, values in obj.items():
            items = require_list(values, "an attribute's values") if isinstance(values, list) else [values]
            pairs += [(name, value) for value in items]
    else:
        for item in require_list(obj, "the attributes"):
            members = require_object(item, "an attribute")
            pairs.append(
                (
                    require_site_member(members, "name", "an attribute"),
                    require_site_member(members, "value", "an attribute"),
                )
            )
    return [
        (require_text(name, "an attribute's name"), codec.from_json(value, "an attribute's value"))
        for name, value in pairs
    ]


def attributes_to_json(attributes: list[tuple[str, bytes]]) -> list[JsonObject]:
    """Format an array of names and values."""
    return [{"name": name, "value": codec.to_json(value)} for name, value in attributes]


def key_from_json(obj: object) -> bytes:
    """Decode a public key in any of its formats."""
    if isinstance(obj, str):
        return from_hex(obj, "the public key")
    members = require_object(obj, "the public key")
    value = require_site_member(members, "value", "the public key")
    format_ = require_text(
        require_site_member(members, "format", "the public key"), "the format of the public key"
    ).lower()
    if format_ == "key":
        return PublicKey.from_json(value).to_bytes()
    return codec.decode(format_, require_text(value, "the public key"), "the public key")


def key_to_json(data: bytes) -> JsonObject:
    """Format a public key as a JSON key if that is exact, otherwise in base64."""
    key = key_for_json(data)
    if key is None:
        return {"format": "base64", "value": to_base64(data)}
    return {"format": "key", "value": key.to_json()}


def key_for_json(data: bytes) -> PublicKey | None:
    """Decode a public key if its JSON form is exact and deployed software can read it; None if not."""
    try:
        key = PublicKey.from_bytes(data)
    except InvalidData:
        return None
    return key if key.KTY in _JSON_KEY_TYPES and key.to_bytes() == data else None


def address_from_json(obj: object) -> bytes:
    """Parse an address to sixteen bytes; IPv4 follows twelve zeros."""
    text = require_text(obj, "the address")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidData(f"{text[:60]!r} is not an IP address") from None
    if "%" in text:
        raise InvalidData(f"the address {text[:60]!r} has a zone (%), which is not allowed in a site")
    return address.packed.rjust(ADDRESS_LENGTH, b"\0")


def address_to_json(data: bytes) -> str:
    """Format an address; twelve leading zeros mean IPv4."""
    if data.startswith(_V4_PADDING):
        return str(ipaddress.IPv4Address(data[len(_V4_PADDING) :]))
    if data.startswith(_MAPPED_V4):  # the format differs between versions of Python
        return f"::ffff:{ipaddress.IPv4Address(data[len(_MAPPED_V4) :])}"
    return str(ipaddress.IPv6Address(data))


def version_from_json(obj: object) -> tuple[int, int]:
    """Parse `"2.11"`, a string, because the number 2.10 would be 2.1."""
    match = _VERSION.fullmatch(require_text(obj, "the protocol version"))
    if match is None:
        raise InvalidData("the protocol version must have the form 2.11")
    return require_int(match[1], "the major version", 0, 0xFF), require_int(match[2], "the minor version", 0, 0xFF)


_MIN_INTERFACE_SIZE = 6


class Purpose(IntFlag):
    """Purpose of an interface; none is out of service. Unknown bits are preserved."""

    ADMIN = 1
    QUERY = 2


class Transport(OpenEnum):
    """Protocol of an interface."""

    UDP = 0
    TCP = 1
    HTTP = 2
    HTTPS = 3


_KNOWN_PURPOSES = Purpose.ADMIN | Purpose.QUERY
_TRANSPORT_BY_NAME = {member.name: member for member in Transport}
# A site can have thousands of interfaces with unknown protocols; they share their members.
_TRANSPORT_BY_NUMBER = [Transport(byte) for byte in range(0x100)]


@dataclass(frozen=True, slots=True)
class Interface:
    """A port on which a server listens."""

    purpose: Purpose
    transport: Transport
    port: int

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the binary form."""
        return cls(Purpose(reader.u8()), _TRANSPORT_BY_NUMBER[reader.u8()], reader.i32())

    def write(self, writer: Writer) -> None:
        """Write the binary form."""
        writer.u8(self.purpose).u8(self.transport).i32(self.port)

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse `{"query":…, "admin":…, "protocol":…, "port":…}`."""
        members = require_object(obj, "an interface")
        purpose = Purpose(0)
        for name, bit in (("query", Purpose.QUERY), ("admin", Purpose.ADMIN)):
            flag = find_site_member(members, name)
            if flag is not None and require_bool(flag, name):
                purpose |= bit
        if (extra := find_site_member(members, "type")) is not None:
            purpose |= Purpose(require_int(extra, "the type of an interface", 0, 0xFF))
        transport = _transport_from_json(require_site_member(members, "protocol", "an interface"))
        return cls(purpose, transport, require_int(require_site_member(members, "port", "an interface"), "the port"))

    def to_json(self) -> JsonObject:
        """The JSON form; `type` only if unknown bits are set."""
        obj: JsonObject = {
            "query": Purpose.QUERY in self.purpose,
            "admin": Purpose.ADMIN in self.purpose,
            "protocol": self.transport.name if self.transport.name in _TRANSPORT_BY_NAME else int(self.transport),
            "port": self.port,
        }
        if self.purpose > _KNOWN_PURPOSES:
            obj["type"] = int(self.purpose)
        return obj


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a site."""

    server_id: int
    """A label, matched against the server's own configuration."""
    address: bytes
    """Sixteen bytes: IPv6, or IPv4 after twelve zeros; all zeros if the site's attributes name a domain."""
    public_key: bytes
    """The server's signing key, encoded; `key` decodes it."""
    interfaces: tuple[Interface, ...] = ()

    def __post_init__(self) -> None:
        if len(self.address) != ADDRESS_LENGTH:
            raise RecordMisuse(f"an address must have {ADDRESS_LENGTH} bytes, not {len(self.address)}")

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address to connect to."""
        return ipaddress.ip_address(address_to_json(self.address))

    @property
    def key(self) -> PublicKey | None:
        """The public key; None if it is malformed or of an unknown kind."""
        try:
            return PublicKey.from_bytes(self.public_key)
        except InvalidData:
            return None

    def interface(self, transport: Transport, purpose: Purpose) -> Interface | None:
        """The first interface with a protocol and purpose."""
        return next((each for each in self.interfaces if each.transport == transport and purpose in each.purpose), None)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the binary form."""
        server_id = reader.i32()
        address = reader.raw(ADDRESS_LENGTH)
        public_key = reader.bytes_()
        interfaces = tuple([Interface.read(reader) for _ in range(reader.count(_MIN_INTERFACE_SIZE))])
        return cls(server_id, address, public_key, interfaces)

    def write(self, writer: Writer) -> None:
        """Write the binary form."""
        writer.i32(self.server_id).raw(self.address).bytes_(self.public_key).i32(len(self.interfaces))
        for interface in self.interfaces:
            interface.write(writer)

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse `{"serverId":…, "address":…, "publicKey":…, "interfaces":[…]}`, or an older spelling."""
        members = require_object(obj, "a server")
        interfaces = require_list(require_site_member(members, "interfaces", "a server"), "the interfaces")
        return cls(
            require_int(require_site_member(members, "serverId", "a server"), "the server's id"),
            address_from_json(require_site_member(members, "address", "a server")),
            key_from_json(require_site_member(members, "publicKey", "a server")),
            tuple([Interface.from_json(interface) for interface in interfaces]),
        )

    def to_json(self) -> JsonObject:
        """The JSON form."""
        return {
            "serverId": self.server_id,
            "address": address_to_json(self.address),
            "publicKey": key_to_json(self.public_key),
            "interfaces": [interface.to_json() for interface in self.interfaces],
        }


def _transport_from_json(obj: object) -> Transport:
    if isinstance(obj, str) and not obj.isdecimal():
        name = require_text(obj, "the protocol").upper()
        if name not in _TRANSPORT_BY_NAME:
            raise InvalidData(f"unknown protocol {name[:20]!r}; use {', '.join(_TRANSPORT_BY_NAME)} or a number")
        return _TRANSPORT_BY_NAME[name]
    return _TRANSPORT_BY_NUMBER[require_int(obj, "the protocol", 0, 0xFF)]


PROTOCOL_VERSION: Final = (2, 11)
"""The newest protocol version, and the default for JSON."""

_MIN_ATTRIBUTE_SIZE = 8
_MIN_SERVER_SIZE = 28  # an empty key, no interfaces
_BYTE_ORDER_MARK = "\ufeff"


class PrimaryMask(IntFlag):
    """Role of the site in its service. Unknown bits are preserved."""

    MULTI_PRIMARY = 0x40
    """The service has several primary sites."""
    PRIMARY = 0x80
    """This site accepts changes."""


MIRROR: Final = PrimaryMask(0)
"""A site that does not accept changes."""

_UNKNOWN_MASK = 0x3F


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a site: `desc`, `domain`, `alt_addr` …"""

    name: str
    value: bytes
    """Usually UTF-8 text."""


@dataclass(frozen=True, slots=True)
class Site:
    """A group of servers that together hold all handles of a service."""

    servers: tuple[Server, ...]
    """In the order that hashing uses."""
    attributes: tuple[Attribute, ...] = ()
    """In order; names can repeat."""
    serial: int = 1
    """Incremented with every change of this record; 16 bits, signed, as deployed software reads it."""
    primary: PrimaryMask = MIRROR
    hash_option: HashOption = HashOption.ALL
    hash_filter: bytes = b""
    """Unused, preserved."""
    protocol_version: tuple[int, int] = PROTOCOL_VERSION
    """The highest version that the servers support."""
    version: int = 1
    """The version of this format."""

    def __post_init__(self) -> None:
        if not all(0 <= byte <= 0xFF for byte in (*self.protocol_version, self.primary, self.hash_option)):
            raise RecordMisuse("protocol version, primary mask and hash option of a site must fit in one byte each")

    def attribute(self, name: str) -> str | None:
        """The first attribute of this name as text; None if it is missing or not text."""
        value = next((attribute.value for attribute in self.attributes if attribute.name == name), None)
        return None if value is None else decode_printable(value)

    def purposes(self, position: int, ports: Mapping[Transport, int]) -> dict[Transport, Purpose]:
        """The purposes of those interfaces of a server that the record lists, by its listening ports."""
        listed: dict[Transport, Purpose] = {}
        interfaces = self.servers[position].interfaces if position < len(self.servers) else ()
        for interface in interfaces:
            if ports.get(interface.transport) == interface.port:
                listed[interface.transport] = listed.get(interface.transport, Purpose(0)) | interface.purpose
        if Transport.HTTP in listed and ports.get(Transport.HTTPS) == ports.get(Transport.HTTP):
            listed.setdefault(Transport.HTTPS, listed[Transport.HTTP])  # one port for both, so the same purposes
        return listed

    @property
    def is_primary(self) -> bool:
        """Whether the site accepts changes."""
        return PrimaryMask.PRIMARY in self.primary

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the data of a value, or a file."""
        reader = Reader(data)
        version = reader.i16()
        protocol_version = (reader.u8(), reader.u8())
        serial = reader.i16()
        primary = PrimaryMask(reader.u8())
        hash_option = HashOption(reader.u8())
        hash_filter = reader.bytes_()
        attributes = [Attribute(reader.text(), reader.bytes_()) for _ in range(reader.count(_MIN_ATTRIBUTE_SIZE))]
        servers = [Server.read(reader) for _ in range(reader.count(_MIN_SERVER_SIZE))]
        reader.finish()
        return cls(
            tuple(servers), tuple(attributes), serial, primary, hash_option, hash_filter, protocol_version, version
        )

    def to_bytes(self) -> bytes:
        """Encode the data of a value, or a file."""
        major, minor = self.protocol_version
        writer = Writer().i16(self.version).u8(major).u8(minor).i16(self.serial)
        writer.u8(self.primary).u8(self.hash_option).bytes_(self.hash_filter).i32(len(self.attributes))
        for attribute in self.attributes:
            writer.text(attribute.name).bytes_(attribute.value)
        writer.i32(len(self.servers))
        for server in self.servers:
            server.write(writer)
        return writer.getvalue()

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse a JSON object; only `servers` is required."""
        members = require_object(obj, "the site")
        servers = require_list(require_site_member(members, "servers", "the site"), "the servers")
        version, protocol = find_site_member(members, "version"), find_site_member(members, "protocolVersion")
        option, filter_ = find_site_member(members, "hashOption"), find_site_member(members, "hashFilter")
        return cls(
            tuple([Server.from_json(server) for server in servers]),
            tuple([Attribute(*pair) for pair in attributes_from_json(find_site_member(members, "attributes"))]),
            _serial_from_json(find_site_member(members, "serialNumber")),
            _primary_from_json(members),
            HashOption.ALL if option is None else HashOption(require_int(option, "the hash option", 0, 0xFF)),
            b"" if filter_ is None else codec.from_json(filter_, "the hash filter"),
            PROTOCOL_VERSION if protocol is None else version_from_json(protocol),
            1 if version is None else require_int(version, "the version", -0x8000, 0x7FFF),
        )

    def to_json(self) -> JsonObject:
        """The JSON form, with members in the order of deployed software."""
        major, minor = self.protocol_version
        obj: JsonObject = {
            "version": self.version,
            "protocolVersion": f"{major}.{minor}",
            "serialNumber": self.serial,
            "primarySite": self.is_primary,
            "multiPrimary": PrimaryMask.MULTI_PRIMARY in self.primary,
        }
        if self.primary & _UNKNOWN_MASK:
            obj["primaryMask"] = int(self.primary)
        if self.hash_option != HashOption.ALL:
            obj["hashOption"] = int(self.hash_option)
        if self.hash_filter:
            obj["hashFilter"] = codec.to_json(self.hash_filter)
        obj["attributes"] = attributes_to_json([(each.name, each.value) for each in self.attributes])
        obj["servers"] = [server.to_json() for server in self.servers]
        return obj

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the text of a `siteinfo.json`."""
        return cls.from_json(parse_json(text.removeprefix(_BYTE_ORDER_MARK)))

    def to_text(self) -> str:
        """The JSON on one line."""
        return write_json(self.to_json())

    @classmethod
    def from_file(cls, data: bytes) -> Self:
        """Decode a file: JSON if it is printable text, otherwise binary."""
        text = decode_printable(data)
        return cls.from_bytes(data) if text is None else cls.from_text(text)


def _serial_from_json(obj: object) -> int:
    """Parse 16 bits, signed or unsigned."""
    if obj is None:
        return 0
    number = require_int(obj, "the serial number", -0x8000, 0xFFFF)
    return number if number <= 0x7FFF else number - 0x1_0000


def _primary_from_json(members: JsonObject) -> PrimaryMask:
    mask = find_site_member(members, "primaryMask")
    primary = PrimaryMask(0 if mask is None else require_int(mask, "the primary mask", 0, 0xFF))
    for name, bit in (("primarySite", PrimaryMask.PRIMARY), ("multiPrimary", PrimaryMask.MULTI_PRIMARY)):
        flag = find_site_member(members, name)
        if flag is not None and require_bool(flag, name):
            primary |= bit
    return primary
