"""Sites of a service: from values to sites, and the choice of site, server and address (native protocol §11.3–11.5).

A site is a group of servers that together hold all handles of a service; the hash of a handle selects the server. All
sites of a service have the same handles: a client asks the site that answered fastest, and another one if that fails.
"""

import ipaddress
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import Final

from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.partition import find_server_index
from perseid.records.record import Value
from perseid.records.site import ADDRESS_LENGTH, Purpose, Server, Site, Transport, address_from_json
from perseid.records.types import (
    HS_NA_DELEGATE,
    HS_SERV,
    HS_SERV_PREFIX,
    HS_SITE_PREFIX,
    SITE_TYPES,
)
from perseid.wire.codes import Version

from .transport import Address

UDP_WAITS: Final = (0.5, 1.0, 1.5)
"""Seconds to wait for a response by UDP, one for each attempt, as deployed."""

STREAM_WAIT: Final = 10.0
"""Seconds to wait for a response by TCP or HTTP: deployed clients wait 60, but have no other site to try meanwhile."""

TRANSPORTS: Final = (Transport.UDP, Transport.TCP, Transport.HTTP, Transport.HTTPS)
"""The order of attempts (§2.7)."""

MAX_SITES: Final = 64
"""Sites of one service: the global root has about a dozen. More would only cost time when all of them fail."""

_MAX_KEYS = 256  # decoded keys of servers that are kept
_MAX_MEASURED = 1_024  # servers whose response times are kept
_JITTER = 0.128  # seconds, in both directions, so that sites share the load, as deployed
_HALF_LIFE = 60.0  # seconds after which a measured time counts half, so that slow sites are tried again
_FAILURE = 10.0  # seconds that a failure counts

_HTTP_PORTS = {Transport.HTTP: 80, Transport.HTTPS: 443}
_NO_ADDRESS = bytes(ADDRESS_LENGTH)
_UNSPECIFIED = "0.0.0.0"  # noqa: S104 - what a server without an address has
_DELEGATED_SITES = frozenset((HS_SITE_PREFIX, HS_NA_DELEGATE))


def read_sites(values: Iterable[Value], *, delegated: bool = False) -> tuple[list[Site], list[str]]:
    """Find the sites and service handles among values: those for handles of a prefix, or for prefixes derived from it.

    Values that cannot be decoded are skipped, as deployed.
    """
    site_types, service_type = (_DELEGATED_SITES, HS_SERV_PREFIX) if delegated else (SITE_TYPES, HS_SERV)
    sites: list[Site] = []
    services: list[str] = []
    for value in values:
        try:
            if value.type in site_types:
                sites.append(Site.from_bytes(value.data))
            elif value.type == service_type:
                services.append(value.data.decode("utf-8"))
        except (InvalidData, UnicodeDecodeError):
            continue
    return list(dict.fromkeys(sites)), list(dict.fromkeys(services))


@lru_cache(_MAX_KEYS)
def _decode_key(data: bytes) -> PublicKey | None:
    try:
        return PublicKey.from_bytes(data)
    except InvalidData:
        return None


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of a site, with what a request to it needs."""

    version: Version
    """The highest protocol version of the site."""
    serial: int
    """Serial number of the site."""
    is_primary: bool
    host: str
    """The IP address, or a domain to look up."""
    ports: Mapping[Transport, int]
    """The ports for queries."""
    key_bytes: bytes = field(repr=False)
    http_host: str = ""
    """The domain for HTTP requests; empty for the address."""
    http_path: str = ""
    """Prefix of the path of HTTP requests."""
    is_domain: bool = False
    """Whether the host must be looked up."""

    @property
    def key(self) -> PublicKey | None:
        """The key that signs the responses; None if it is malformed or of an unknown kind."""
        return _decode_key(self.key_bytes)

    def address(self, transport: Transport) -> Address | None:
        """Where it listens."""
        port = self.ports.get(transport)
        return None if port is None else Address(transport, self.host, port)

    def http_authority(self, address: Address) -> str:
        """The Host field of HTTP requests."""
        literal = f"[{address.host}]" if ":" in address.host else address.host
        is_default = address.port == _HTTP_PORTS.get(address.transport)
        return (self.http_host or literal) + ("" if is_default else f":{address.port}")

    def at(self, host: str) -> "Peer":
        """The same server at another address."""
        return replace(self, host=host, is_domain=False)


@dataclass(frozen=True, slots=True)
class _SitePeers:
    """A site as a client uses it."""

    site: Site
    peers: tuple[Peer, ...]


class Service:
    """The sites of a service."""

    __slots__ = ("_sites", "sites")

    def __init__(self, sites: Iterable[Site], local_addresses: Mapping[str, str] | None = None) -> None:
        self.sites = tuple(sites)[:MAX_SITES]
        """The sites as published."""
        usable = [site for site in self.sites if site.servers]
        all_sites = [*usable, *[other for site in usable if (other := _alternative(site)) is not None]]
        self._sites = [
            _SitePeers(
                site,
                tuple(
                    [
                        _make_peer(site, server, position, local_addresses or {})
                        for position, server in enumerate(site.servers)
                    ]
                ),
            )
            for site in dict.fromkeys(all_sites)
        ]

    def __bool__(self) -> bool:
        return bool(self._sites)

    @property
    def has_primary(self) -> bool:
        """Whether one of the sites accepts changes."""
        return any(site.is_primary for site in self.sites)

    def find_peers(self, handle: bytes, *, primary_only: bool = False) -> list[Peer]:
        """The servers that are responsible for a handle, one of each site."""
        return [
            each.peers[find_server_index(handle, each.site.hash_option, len(each.peers))]
            for each in self._sites
            if each.site.is_primary or not primary_only
        ]


def _make_peer(site: Site, server: Server, position: int, local_addresses: Mapping[str, str]) -> Peer:
    domain = site.attribute(f"domain.{position}") or site.attribute("domain") or ""
    host = domain if server.address == _NO_ADDRESS and domain else str(server.ip)
    ports = {
        interface.transport: interface.port
        for interface in reversed(server.interfaces)
        if Purpose.QUERY in interface.purpose and 0 < interface.port <= 0xFFFF
    }
    if host == _UNSPECIFIED:  # neither an address nor a domain: a connection to it would reach this machine
        ports = {}
    return Peer(
        Version(*site.protocol_version),
        site.serial,
        site.is_primary,
        local_addresses.get(host, host),
        ports,
        server.public_key,
        domain,
        site.attribute(f"path.{position}") or site.attribute("path") or "",
        host == domain and not _is_ip(host),
    )


def _alternative(site: Site) -> Site | None:
    """The site at its alternative addresses, if its attributes name some."""
    servers = []
    for server in site.servers:
        text = site.attribute(f"alt_addr.{server.server_id}")
        if text is None and len(site.servers) == 1:
            text = site.attribute("alt_addr")
        try:
            servers.append(server if text is None else replace(server, address=address_from_json(text)))
        except InvalidData:
            return None
    return replace(site, servers=tuple(servers)) if tuple(servers) != site.servers else None


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class ResponseTimes:
    """Measured response times of servers, by host; used to choose the site."""

    def __init__(self) -> None:
        self._measured: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def record(self, host: str, seconds: float, now: float) -> None:
        """Remember how long a response took."""
        with self._lock:  # threads share a resolver
            self._measured[host] = seconds, now
            self._measured.move_to_end(host)
            if len(self._measured) > _MAX_MEASURED:
                self._measured.popitem(last=False)

    def record_failure(self, host: str, now: float) -> None:
        """Remember that a server did not answer."""
        self.record(host, _FAILURE, now)

    def order(self, peers: list[Peer], now: float) -> list[Peer]:
        """Sort servers by expected response time; those that were never asked come early."""
        if len(peers) < 2:
            return peers
        return sorted(peers, key=lambda peer: self._expect(peer.host, now) + random.uniform(-_JITTER, _JITTER))  # noqa: S311 - not for security

    def _expect(self, host: str, now: float) -> float:
        seconds, at = self._measured.get(host, (0.0, now))
        return float(seconds * 0.5 ** ((now - at) / _HALF_LIFE))


def plan_attempts(
    peers: list[Peer], transports: Iterable[Transport] = TRANSPORTS
) -> Iterator[tuple[Peer, Address, float]]:
    """List the attempts in order, each with the seconds to wait: UDP, TCP, HTTP, HTTPS (§2.7).

    By UDP, each round asks every site once before the next round waits longer, so that a dead site costs half a second
    and not three.
    """
    for transport in transports:
        usable = [(peer, address) for peer in peers if (address := peer.address(transport)) is not None]
        for wait in UDP_WAITS if transport is Transport.UDP else (STREAM_WAIT,):
            for peer, address in usable:
                yield peer, address, wait
