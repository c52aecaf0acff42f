"""Settings of the section `http`."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from perseid.names.errors import quote_text

from .setting_types import (
    Address,
    Choice,
    FileName,
    Flag,
    InvalidSetting,
    Networks,
    Number,
    Setting,
    SettingType,
    TextList,
)

BARE: Final = "bare"
"""Resolver form `/{handle}`; the other forms are path segments."""

RESERVED_SEGMENTS: Final = frozenset(
    (
        "api",
        "docs",
        "favicon.ico",
        "generate",
        "healthz",
        "help.html",
        "hrls",
        "openapi.json",
        "readyz",
        "robots.txt",
        "static",
        "timemap",
    )
)
"""First segments of the server's own paths, which never resolve to handles."""

DANGEROUS_SCHEMES: Final = frozenset(("about", "blob", "data", "file", "filesystem", "javascript", "vbscript"))
"""Schemes that no setting allows: browsers execute such URLs, or access the reader's machine."""

MAX_URL: Final = 1_024
"""Maximum length of the public URL in characters; it appears in every page."""

_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,62}")
_URL = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?", re.IGNORECASE)


class Listen(Enum):
    """Protocols served at the port."""

    BOTH = "both"
    """HTTP and HTTPS, distinguished by the first byte of a connection."""
    HTTP = "http"
    HTTPS = "https"


class PublicUrl(SettingType):
    """The server's public URL; may be empty."""

    expects = "a URL such as https://hdl.example.org, or an empty text"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str):
            raise self.refuse(plain)
        if not plain:
            return ""
        if len(plain) > MAX_URL or not _URL.fullmatch(plain):
            raise self.refuse(plain)
        try:
            parts = urlsplit(plain)
            known = bool(parts.hostname) and parts.port != 0
        except ValueError:  # an invalid IPv6 address or port
            known = False
        if not known:
            raise self.refuse(plain)
        return plain.rstrip("/")


class ResolverForms(TextList):
    """The forms of URLs that resolve to handles: `bare`, and segments."""

    expects = 'a list of "bare" and of segments such as "hdl"'

    def item(self, plain: object) -> object:
        if not isinstance(plain, str) or not _SEGMENT.fullmatch(plain):
            raise InvalidSetting(f"Expected {self.expects}; it contains {self.shown(plain)}")
        if plain in RESERVED_SEGMENTS:
            raise InvalidSetting(f"Segment {quote_text(plain)} is reserved for the server; choose another one")
        return plain


class Schemes(TextList):
    """URL schemes."""

    expects = 'a list of schemes such as "https"'

    def item(self, plain: object) -> object:
        if not isinstance(plain, str) or not _SCHEME.fullmatch(plain):
            raise InvalidSetting(f"Expected {self.expects} in lowercase; it contains {self.shown(plain)}")
        if plain in DANGEROUS_SCHEMES:
            raise InvalidSetting(f"Scheme {quote_text(plain)} is not allowed: a record could use it to attack users")
        return plain


class Status(SettingType):
    """One of several HTTP status codes."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses
        *others, last = map(str, statuses)
        self.expects = f"{', '.join(others)} or {last}"

    def read(self, plain: object) -> int:
        if not isinstance(plain, int) or isinstance(plain, bool) or plain not in self._statuses:
            raise self.refuse(plain)
        return plain

    def from_variable(self, text: str) -> object:
        digits = text.strip()
        return int(digits) if re.fullmatch("[0-9]{3}", digits) else text


HTTP: Final[Mapping[str, Setting]] = {
    "http.enabled": Setting(Flag(), True, "Whether to serve HTTP."),
    "http.host": Setting(
        Address(),
        "127.0.0.1",
        "Address to listen on for HTTP; 0.0.0.0 or :: for all addresses.",
        deployed=("hdl_http_config.bind_address",),
    ),
    "http.port": Setting(
        Number(0, 65_535),
        8000,
        "Port for HTTP and HTTPS; 0 for any free port.",
        deployed=("hdl_http_config.bind_port",),
    ),
    "http.listen": Setting(
        Choice({each.value: each for each in Listen}),
        Listen.BOTH.value,
        "Protocols at this port: both (distinguished by the first byte of a connection), http or https. Secrets are "
        "accepted only over HTTPS or from this machine.",
    ),
    "http.certificate_file": Setting(
        FileName(),
        "",
        "PEM file with the certificate for HTTPS and its chain; a relative name refers to this directory. Empty: "
        "Perseid uses a self-signed certificate for the server's own key.",
    ),
    "http.key_file": Setting(
        FileName(), "", "PEM file with the private key of the certificate. Empty: the key is in the certificate file."
    ),
    "http.client_certificates": Setting(
        Flag(),
        True,
        "Whether to request a client certificate for authentication. It is optional; browsers ask users who have one "
        "to choose.",
    ),
    "http.public_url": Setting(
        PublicUrl(),
        "",
        "Public URL of this server, used in links. Empty: links have no host.",
    ),
    "http.trusted_proxies": Setting(
        Networks(),
        [],
        "Proxies whose forwarding headers (client address and protocol) are trusted. List every proxy in front of this "
        "server; headers from other addresses are ignored.",
    ),
    "http.resolver_forms": Setting(
        ResolverForms(),
        [BARE, "hdl"],
        "URLs that resolve to handles: bare for /HANDLE, a segment for /SEGMENT/HANDLE. /hdl/HANDLE always works.",
    ),
    "http.redirect_status": Setting(
        Status(301, 302, 303, 307, 308), 302, "Status code of redirects, unless the record chooses one."
    ),
    "http.schemes": Setting(
        Schemes(),
        ["http", "https", "ftp", "mailto"],
        "URL schemes that are redirected to and linked on pages; others are shown as text.",
    ),
    "http.no_values_status": Setting(
        Status(200, 404),
        200,
        "Status code of the page for a handle without public values: 200 as in deployed servers, or 404, which link "
        "checkers report.",
    ),
    "http.weak_digests": Setting(
        Flag(),
        True,
        "Whether to accept MD5 and SHA-1 for authentication over HTTP, which deployed clients use.",
    ),
    "http.api_requests": Setting(
        Number(0, 1_000_000),
        6_000,
        "Rate limit of /api/v1 per identity, including all its tokens; 0 for no limit. Responses report the remaining "
        "requests.",
        unit="requests per minute",
    ),
    "http.api_requests_anonymous": Setting(
        Number(0, 1_000_000),
        600,
        "Rate limit of /api/v1 for anonymous requests per address (IPv6: per /64); 0 for no limit.",
        unit="requests per minute",
    ),
}
"""Settings of the section by name, in the order of the file."""
