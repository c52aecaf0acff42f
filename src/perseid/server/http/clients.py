"""Who is at the other end of a connection, and who that peer says it asks for.

A header that says for whom a request was passed on is believed if it comes from a network that the operator lists as
trusted, and from nobody else: anybody can write such headers. From a stranger they change nothing, with one exception.
A request from this machine that carries one was passed on by something that runs here, so it is not the machine's own,
and what only the machine itself may do is not for it.

Where a request was made: whether a page of another site has a browser make it, and at which address of this server.

A browser sends some proofs by itself, whoever's page it is that makes the request: a password that it remembers, a
certificate. So a request that comes with one of them and from a page of somebody else is not what its owner asked for.
Browsers say where a request comes from in `Sec-Fetch-Site`, and older ones in `Origin`; programs say nothing, and it is
theirs.

Credentials that a browser sends by itself, and what they may not do.

A browser remembers passwords and certificates and sends them with every request to this server, also with one that a
page of somebody else makes it send. So for a change they count only if the request says that it is JSON, which no form
can say and no script of another site without being allowed to, and if nothing says that it comes from another site.
The proof of a `Handle` header or its session is written by whoever makes the request, and always counts.

A DELETE, and a POST that homes a prefix, may have no body. No form sends a DELETE, and a script of another site has to
ask first. A POST without a body and without a type can be sent by such a script unasked, but every browser says then
where it comes from; so that counts only from where nothing is said, which is no browser.
"""

import ipaddress
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from perseid.server.limits.udp import NetworkSet

from .bodies import JSON_TYPE, media_type
from .context import RequestContext
from .messages import Client, is_loopback

FORWARDING_HEADERS: Final = frozenset(
    ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")
)
"""Headers that whoever passes requests on adds to them."""

_NO_NETWORKS: Final = NetworkSet(())
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
    trusted_networks: Container[str] = _NO_NETWORKS
    """From where headers are believed that say for whom a request was passed on."""
    alone: Client = field(init=False)
    """The client of a request that nobody has passed on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", self.client(()))

    def client(self, headers: Iterable[tuple[str, str]]) -> Client:
        """Whose request it is, by its headers."""
        return find_client(self.host, self.secure, self.certificate, headers, self.trusted_networks)


def find_client(
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
    forwarded = [(name, value) for name, value in headers if name in FORWARDING_HEADERS]
    trusted = peer in trusted_networks
    if not forwarded or not trusted:
        # A trusted peer passes requests on, so one that does not say for whom is not believed to ask for itself.
        return Client(peer, secure, not forwarded and not trusted and _is_local(peer), trusted, certificate)
    addresses = _split_header(forwarded, "x-forwarded-for")
    protocols = _split_header(forwarded, "x-forwarded-proto")
    host = _rightmost_untrusted(addresses, trusted_networks) if addresses else peer
    if host is None:
        return Client(peer, trusted=True)
    return Client(host, bool(protocols) and all(one.lower() == "https" for one in protocols), trusted=True)


def _split_header(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """What all headers of a name list, in the order in which it was added."""
    return [part.strip(" \t") for key, value in headers if key == name for part in value.split(",")]


def _rightmost_untrusted(addresses: list[str], trusted_networks: Container[str]) -> str | None:
    """The right-most address that is not trusted, or the first of all if each is; None if one on the way is none."""
    host = None
    for text in reversed(addresses):
        host = _parse_address(text)
        if host is None or host not in trusted_networks:
            break
    return host


def _parse_address(text: str) -> str | None:
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


OWN_SITE_VALUES: Final = frozenset(("same-origin", "none"))
"""What `Sec-Fetch-Site` says where no other page is behind it: one of ours, or somebody who typed the address."""

FALLBACK_URL: Final = "https://server.example"
"""What stands for the address of the server where a request does not name it, or not so that it could be shown."""

_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)


def request_base_url(request_context: RequestContext) -> str:
    """The address at which a request was made, to be shown to whoever made it and to nobody else.

    It is what they say themselves in `Host`, so nothing may be decided by it, and no other links are made of it. There
    is nothing in it that HTML or a shell would take for something else.
    """
    named = request_context.request.header("host") or ""
    if _HOST.fullmatch(named) is None:
        return FALLBACK_URL
    return f"{'https' if request_context.request.client.secure else 'http'}://{named}"


def is_cross_site(request_context: RequestContext) -> bool:
    """Whether a request is made by a page of another site."""
    request = request_context.request
    site = request.header("sec-fetch-site")
    if site is not None and site.lower() not in OWN_SITE_VALUES:
        return True
    origin = request.header("origin")
    return origin is not None and not _is_same_origin(origin, request_context)


def _is_same_origin(origin: str, request_context: RequestContext) -> bool:
    """Whether an origin is this server: as the settings name it, or as the browser does that made the request."""
    declared = urlsplit(request_context.place.settings.public_url)
    named = request_context.request.header("host")
    own = {f"{declared.scheme}://{declared.netloc}"} if declared.netloc else set()
    if named:
        own.add(f"{'https' if request_context.request.client.secure else 'http'}://{named}")
    return origin.lower() in {each.lower() for each in own}


AMBIENT_CREDENTIALS_REASON: Final = (
    "credentials that a browser sends by itself do not count here, because {}; "
    "use a session or the Handle scheme, or send Content-Type: application/json from this site itself"
)


def check_ambient_credentials(request_context: RequestContext) -> str | None:
    """Why ambient credentials do not count for a change; None if they do."""
    request = request_context.request
    if is_cross_site(request_context):
        return AMBIENT_CREDENTIALS_REASON.format("the request was made by a page of another site")
    is_typed = request.header("content-type") is not None
    if media_type(request) == JSON_TYPE or (request.method == "DELETE" and not is_typed):
        return None
    is_from_browser = any(request.header(name) is not None for name in ("origin", "sec-fetch-site"))
    if not is_typed and not request.body and not is_from_browser:
        return None
    return AMBIENT_CREDENTIALS_REASON.format("the request does not say that it is JSON")
