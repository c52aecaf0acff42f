"""Clients: the address and security of the other end, and whether a browser makes a request for another site.

Forwarding headers are trusted only from networks that the operator lists, since anyone can send them. From other
peers they have one effect: a request from this machine with such a header was forwarded by something running here, so
it does not get the rights of the local machine.

Browsers send some credentials (remembered passwords, certificates) with every request to this server, including
requests that pages of other sites trigger. Such ambient credentials authorize a change only if the request is declared
as JSON, which no form can send and no script of another site without a preflight, and if it is not cross-site.
`Sec-Fetch-Site` shows this, or `Origin` in older browsers; programs send neither. The `Handle` header and its
sessions are written by the caller and always accepted.

A DELETE, and a POST that homes a prefix, may have no body. No form can send a DELETE, and a script of another site
needs a preflight. A script of another site can send a POST without body and type, but then every browser sends its
origin; so such a POST is accepted only without an origin, that is, not from a browser.
"""

import ipaddress
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from perseid.server.limits.udp import NetworkSet

from .context import RequestContext
from .messages import Client, is_loopback
from .responses import JSON_TYPE, media_type

FORWARDING_HEADERS: Final = frozenset(
    ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")
)
"""Headers that proxies add to forwarded requests."""

_NO_NETWORKS: Final = NetworkSet(())
_is_local = lru_cache(maxsize=1_024)(is_loopback)  # addresses repeat, and parsing one takes microseconds


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as known before the first request."""

    host: str
    """Its address."""
    secure: bool = False
    """Whether the connection is TLS."""
    certificate: bytes | None = None
    """The certificate whose key the peer has proved to hold, in DER."""
    trusted_networks: Container[str] = _NO_NETWORKS
    """Networks whose forwarding headers are trusted."""
    alone: Client = field(init=False)
    """The client of a request without forwarding headers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", self.client(()))

    def client(self, headers: Iterable[tuple[str, str]]) -> Client:
        """Find the client of a request by its headers."""
        return find_client(self.host, self.secure, self.certificate, headers, self.trusted_networks)


def find_client(
    peer: str,
    secure: bool,
    certificate: bytes | None,
    headers: Iterable[tuple[str, str]],
    trusted_networks: Container[str],
) -> Client:
    """Find the client of a request from a peer; header names are lowercase.

    Behind a trusted peer, the client is the right-most address in X-Forwarded-For that is not itself trusted: what is
    left of it was written by that client and could be anything. It is secure if X-Forwarded-Proto is https for every
    hop. If a trusted peer sends an invalid address, the peer is the client and the request is not secure. A
    certificate is the peer's own and says nothing about the clients for which it forwards requests.
    """
    forwarded = [(name, value) for name, value in headers if name in FORWARDING_HEADERS]
    trusted = peer in trusted_networks
    if not forwarded or not trusted:
        # A trusted peer is a proxy: without forwarding headers it still does not act for itself.
        return Client(peer, secure, not forwarded and not trusted and _is_local(peer), trusted, certificate)
    addresses = _split_header(forwarded, "x-forwarded-for")
    protocols = _split_header(forwarded, "x-forwarded-proto")
    host = _rightmost_untrusted(addresses, trusted_networks) if addresses else peer
    if host is None:
        return Client(peer, trusted=True)
    return Client(host, bool(protocols) and all(one.lower() == "https" for one in protocols), trusted=True)


def _split_header(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """Split all headers of a name into their items, in order."""
    return [part.strip(" \t") for key, value in headers if key == name for part in value.split(",")]


def _rightmost_untrusted(addresses: list[str], trusted_networks: Container[str]) -> str | None:
    """The right-most untrusted address, or the first if all are trusted; None if an address on the way is invalid."""
    host = None
    for text in reversed(addresses):
        host = _parse_address(text)
        if host is None or host not in trusted_networks:
            break
    return host


def _parse_address(text: str) -> str | None:
    """Parse an address as proxies write it: plain, with a port, or in brackets; None if it is invalid."""
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
    if "%" in text:  # a zone, which is meaningful only on the machine that wrote it
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_port(text: str) -> bool:
    return text[:1] == ":" and 1 <= len(text) - 1 <= 5 and text[1:].isascii() and text[1:].isdigit()


OWN_SITE_VALUES: Final = frozenset(("same-origin", "none"))
"""Values of `Sec-Fetch-Site` for requests from our own pages or from the address bar."""

FALLBACK_URL: Final = "https://server.example"
"""The server address shown if a request does not name a valid one."""

_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)


def request_base_url(request_context: RequestContext) -> str:
    """The address at which a request was made, to be shown to its sender only.

    It comes from `Host`, so nothing may be decided by it and no other links are built from it. It contains no
    characters special to HTML or a shell.
    """
    named = request_context.request.header("host") or ""
    if _HOST.fullmatch(named) is None:
        return FALLBACK_URL
    return f"{'https' if request_context.request.client.secure else 'http'}://{named}"


def is_cross_site(request_context: RequestContext) -> bool:
    """Whether a page of another site triggers the request."""
    request = request_context.request
    site = request.header("sec-fetch-site")
    if site is not None and site.lower() not in OWN_SITE_VALUES:
        return True
    origin = request.header("origin")
    return origin is not None and not _is_same_origin(origin, request_context)


def _is_same_origin(origin: str, request_context: RequestContext) -> bool:
    """Whether an origin is this server, as named in the settings or in the request."""
    declared = urlsplit(request_context.server.settings.public_url)
    named = request_context.request.header("host")
    own = {f"{declared.scheme}://{declared.netloc}"} if declared.netloc else set()
    if named:
        own.add(f"{'https' if request_context.request.client.secure else 'http'}://{named}")
    return origin.lower() in {each.lower() for each in own}


PREFLIGHTED_TYPES: Final = frozenset(
    (
        *(JSON_TYPE, "application/octet-stream", "application/jsonl", "application/x-ndjson"),
        *("text/csv", "text/tab-separated-values", "application/vnd.oasis.opendocument.spreadsheet"),
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    )
)
"""Media types that no form of a page can send, and scripts of other sites only if this server allows it."""

AMBIENT_CREDENTIALS_REASON: Final = (
    "credentials that a browser sends automatically are not accepted for this request, because {}; "
    "use a session or the Handle scheme, or send Content-Type: application/json (for a file application/octet-stream) "
    "from this site"
)


def check_ambient_credentials(request_context: RequestContext) -> str | None:
    """Why ambient credentials are not accepted for a change; None if they are."""
    request = request_context.request
    if is_cross_site(request_context):
        return AMBIENT_CREDENTIALS_REASON.format("it was made by a page of another site")
    is_typed = request.header("content-type") is not None
    if media_type(request) in PREFLIGHTED_TYPES or (request.method == "DELETE" and not is_typed):
        return None
    is_from_browser = any(request.header(name) is not None for name in ("origin", "sec-fetch-site"))
    if not is_typed and not request.body and not is_from_browser:
        return None
    return AMBIENT_CREDENTIALS_REASON.format("a form of another site can send its Content-Type")
