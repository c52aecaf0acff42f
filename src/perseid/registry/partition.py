"""Partition of a site: which of its servers is responsible for a handle, and where that server is.

A site of several servers divides its handles by the protocol's hash (`records.partition`); each server has a ledger of
its own. Prefix handles and policies are not divided: each server needs them for its decisions and has its own copies.
Over the native protocol only one server answers for each prefix handle, as deployed (`server.native.operations`).
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from perseid.names.handle import Handle
from perseid.records.partition import HashOption, find_server_index
from perseid.records.site import Site, Transport

from .installation.sections import check_public_url

URL_ATTRIBUTE: Final = "url"
"""The attribute of a site with the public URL of the HTTP interface: `url.0` of the first server, and so on."""

_ANY_ADDRESS = bytes(16)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class MisplacedCount:
    """How many copies of handles of other servers there are, as far as they were counted."""

    seq: int
    """The size of the ledger that it is about."""
    first: bytes
    """The first key that was not examined."""
    count: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A site of several servers, as one of them sees it."""

    site: Site
    position: int
    """The position of this server, from 0."""
    misplaced: dict[object, MisplacedCount] = field(default_factory=dict, compare=False, repr=False)
    """Numbers of copies that were left here."""

    @property
    def name(self) -> bytes:
        """What this share is called in the file of statistics."""
        return f" {self.site.hash_option}.{len(self.site.servers)}.{self.position}".encode()

    def find_other(self, handle: Handle) -> int | None:
        """The position of the other server that is responsible for a handle; None if this one is."""
        if handle.is_prefix_handle:
            return None
        found = find_server_index(
            str(handle).encode("utf-8", "surrogateescape"), self.site.hash_option, len(self.site.servers)
        )
        return None if found == self.position else found

    def find_other_of_prefix(self, prefix: str) -> int | None:
        """The position of the other server that is responsible for all handles of a prefix, if there is one."""
        return self.find_other(Handle(prefix, "…")) if self.site.hash_option == HashOption.PREFIX else None

    def describe_other(self, handle: Handle) -> str:
        """The other server that is responsible for a handle, with its address; empty if this one is."""
        position = self.find_other(handle)
        return "" if position is None else f"server {position + 1} of this site, {self.address(position)}"

    def address(self, position: int) -> str:
        """Where a server is: the URL of its HTTP interface, else host and port of the native protocol."""
        if url := self.url(position):
            return url
        ports = [each.port for each in self.site.servers[position].interfaces if each.transport == Transport.TCP]
        return f"{self._host(position)}:{ports[0]}" if ports else self._host(position)

    def url(self, position: int) -> str:
        """The URL of a server's HTTP interface, without a slash at its end; empty if it has none.

        Anything else in its attribute is ignored: redirects there would be relative, and never end.
        """
        with suppress(ValueError):
            if url := check_public_url(self.site.attribute(f"{URL_ATTRIBUTE}.{position}") or ""):
                return url
        for interface in self.site.servers[position].interfaces:
            if interface.transport in (Transport.HTTP, Transport.HTTPS):
                scheme = interface.transport.name.lower()
                port = "" if interface.port == _DEFAULT_PORTS[scheme] else f":{interface.port}"
                return f"{scheme}://{self._host(position)}{port}"
        return ""

    def _host(self, position: int) -> str:
        server = self.site.servers[position]
        domain = self.site.attribute(f"domain.{position}") or self.site.attribute("domain")
        if domain and server.address == _ANY_ADDRESS:
            return domain
        return f"[{server.ip}]" if server.ip.version == 6 else str(server.ip)
