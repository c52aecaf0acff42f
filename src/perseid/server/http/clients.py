"""Who is at the other end of a connection, and who that peer says it asks for.

A header that says for whom a request was passed on is believed if it comes from a network that the operator lists as
trusted, and from nobody else: anybody can write such headers. From a stranger they change nothing, with one exception.
A request from this machine that carries one was passed on by something that runs here, so it is not the machine's own,
and what only the machine itself may do is not for it.
"""

import ipaddress
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from perseid.server.limits.udp import Networks

from .messages import Client, is_loopback

FORWARDING: Final = frozenset(
    ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")
)
"""Headers that whoever passes requests on adds to them."""

_NOBODY: Final = Networks(())
_is_local = lru_cache(maxsize=1_024)(is_loopback)  # addresses come again and again, and reading them takes microseconds


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as it is known before any request has come."""

    host: str
    """Its address."""
    secure: bool = False
    """Whether the connection is TLS."""
    certificate: bytes | None = None
    """The certificate that it has proved to hold the key of, in DER."""
    trusted_networks: Container[str] = _NOBODY
    """From where headers are believed that say for whom a request was passed on."""
    alone: Client = field(init=False)
    """The client of a request that nobody has passed on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", self.client(()))

    def client(self, headers: Iterable[tuple[str, str]]) -> Client:
        """Whose request it is, by its headers."""
        return client_of(self.host, self.secure, self.certificate, headers, self.trusted_networks)


def client_of(
    peer: str,
    secure: bool,
    certificate: bytes | None,
    headers: Iterable[tuple[str, str]],
    trusted_networks: Container[str],
) -> Client:
    """Whose request it is that came from a peer; names of headers are lower case.

    The client that a trusted peer asks for is the right-most address of X-Forwarded-For that is no trusted peer itself:
    what stands left of it was written by that client, who may write anything. It was secure if X-Forwarded-Proto says
    https of every hop. A peer that says something unreadable is taken for the client, and the request for one that
    others could read. The certificate is the peer's own: it proves nothing about those for whom it passes requests on.
    """
    forwarded = [(name, value) for name, value in headers if name in FORWARDING]
    trusted = peer in trusted_networks
    if not forwarded or not trusted:
        # A trusted peer passes requests on, so one that does not say for whom is not believed to ask for itself.
        return Client(peer, secure, not forwarded and not trusted and _is_local(peer), trusted, certificate)
    said = _listed(forwarded, "x-forwarded-for")
    protocols = _listed(forwarded, "x-forwarded-proto")
    host = _right_most(said, trusted_networks) if said else peer
    if host is None:
        return Client(peer, trusted=True)
    return Client(host, bool(protocols) and all(one.lower() == "https" for one in protocols), trusted=True)


def _listed(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """What all headers of a name list, in the order in which it was added."""
    return [part.strip(" \t") for key, value in headers if key == name for part in value.split(",")]


def _right_most(said: list[str], trusted_networks: Container[str]) -> str | None:
    """The right-most address that is not trusted, or the first of all if each is; None if one on the way is none."""
    host = None
    for text in reversed(said):
        host = _address(text)
        if host is None or host not in trusted_networks:
            break
    return host


def _address(text: str) -> str | None:
    """An address as a proxy writes it: alone, with a port, or in brackets as in a URL; None if it is none of these."""
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
        if ":" not in text:
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    if "%" in text:  # a zone, which means something only on the machine that wrote it
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_port(text: str) -> bool:
    return text[:1] == ":" and 1 <= len(text) - 1 <= 5 and text[1:].isascii() and text[1:].isdigit()
