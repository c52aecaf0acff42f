"""A server of a site, and the interfaces it listens on.

server     i32    id                      interface  u8   type: 1 admin, 2 query, 3 both, 0 out of service
           16     address                            u8   protocol
           bytes  public key                         i32  port
           i32    count, then interfaces
"""

import ipaddress
from dataclasses import dataclass
from enum import IntFlag
from typing import Self

from .binary import Reader, Writer
from .errors import InvalidData, RecordMisuse
from .json_parsing import JsonObject, a_flag, a_list, a_number, a_text, an_object
from .openenum import OpenEnum
from .public_keys import PublicKey
from .site_json import (
    ADDRESS_LENGTH,
    address_from_json,
    address_to_json,
    find,
    key_from_json,
    key_to_json,
    need,
)

_SMALLEST_INTERFACE = 6


class Purpose(IntFlag):
    """What an interface serves; none is out of service. Unknown bits are kept."""

    ADMIN = 1
    QUERY = 2


class Transport(OpenEnum):
    """How an interface is spoken to."""

    UDP = 0
    TCP = 1
    HTTP = 2
    HTTPS = 3


_KNOWN_PURPOSES = Purpose.ADMIN | Purpose.QUERY
_BY_NAME = {member.name: member for member in Transport}
# A site may hold thousands of interfaces that nobody has heard of; they share their protocols.
_BY_NUMBER = [Transport(octet) for octet in range(0x100)]


@dataclass(frozen=True, slots=True)
class Interface:
    """Where and for what a server listens."""

    purpose: Purpose
    """What it serves."""
    transport: Transport
    """How it is spoken to."""
    port: int
    """Where, at the server's address."""

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take it from the binary form."""
        return cls(Purpose(reader.u8()), _BY_NUMBER[reader.u8()], reader.i32())

    def write(self, writer: Writer) -> None:
        """Add the binary form."""
        writer.u8(self.purpose).u8(self.transport).i32(self.port)

    @classmethod
    def from_json(cls, plain: object) -> Self:
        """Take `{"query":…, "admin":…, "protocol":…, "port":…}`."""
        members = an_object(plain, "an interface")
        purpose = Purpose(0)
        for name, bit in (("query", Purpose.QUERY), ("admin", Purpose.ADMIN)):
            given = find(members, name)
            if given is not None and a_flag(given, name):
                purpose |= bit
        if (extra := find(members, "type")) is not None:
            purpose |= Purpose(a_number(extra, "the type of an interface", 0, 0xFF))
        transport = _transport_from_json(need(members, "protocol", "an interface"))
        return cls(purpose, transport, a_number(need(members, "port", "an interface"), "the port"))

    def to_json(self) -> JsonObject:
        """The JSON form; `type` only if it says more than the rest."""
        plain: JsonObject = {
            "query": Purpose.QUERY in self.purpose,
            "admin": Purpose.ADMIN in self.purpose,
            "protocol": self.transport.name if self.transport.name in _BY_NAME else int(self.transport),
            "port": self.port,
        }
        if self.purpose > _KNOWN_PURPOSES:
            plain["type"] = int(self.purpose)
        return plain


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a site."""

    server_id: int
    """A label, matched against the server's own configuration."""
    address: bytes
    """Sixteen octets: IPv6, or IPv4 behind twelve zeros; all zeros if the site's attributes name a domain."""
    public_key: bytes
    """What the server signs with, as octets; `key` reads them."""
    interfaces: tuple[Interface, ...] = ()
    """Where it listens."""

    def __post_init__(self) -> None:
        if len(self.address) != ADDRESS_LENGTH:
            raise RecordMisuse(f"an address has {ADDRESS_LENGTH} octets, not {len(self.address)}")

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address to connect to."""
        return ipaddress.ip_address(address_to_json(self.address))

    @property
    def key(self) -> PublicKey | None:
        """The public key; None if the octets are no key that we know."""
        try:
            return PublicKey.from_bytes(self.public_key)
        except InvalidData:
            return None

    def interface(self, transport: Transport, purpose: Purpose) -> Interface | None:
        """The first interface of a protocol that serves a purpose."""
        return next((one for one in self.interfaces if one.transport == transport and purpose in one.purpose), None)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take it from the binary form."""
        server_id = reader.i32()
        address = reader.octets(ADDRESS_LENGTH)
        public_key = reader.bytes_()
        interfaces = tuple([Interface.read(reader) for _ in range(reader.count(_SMALLEST_INTERFACE))])
        return cls(server_id, address, public_key, interfaces)

    def write(self, writer: Writer) -> None:
        """Add the binary form."""
        writer.i32(self.server_id).octets(self.address).bytes_(self.public_key).i32(len(self.interfaces))
        for interface in self.interfaces:
            interface.write(writer)

    @classmethod
    def from_json(cls, plain: object) -> Self:
        """Take `{"serverId":…, "address":…, "publicKey":…, "interfaces":[…]}`, or an older spelling."""
        members = an_object(plain, "a server")
        interfaces = a_list(need(members, "interfaces", "a server"), "the interfaces")
        return cls(
            a_number(need(members, "serverId", "a server"), "the server's id"),
            address_from_json(need(members, "address", "a server")),
            key_from_json(need(members, "publicKey", "a server")),
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


def _transport_from_json(plain: object) -> Transport:
    if isinstance(plain, str) and not plain.isdecimal():
        name = a_text(plain, "the protocol").upper()
        if name not in _BY_NAME:
            raise InvalidData(f"{name[:20]!r} is not a protocol; there are {', '.join(_BY_NAME)}, or a number")
        return _BY_NAME[name]
    return _BY_NUMBER[a_number(plain, "the protocol", 0, 0xFF)]
