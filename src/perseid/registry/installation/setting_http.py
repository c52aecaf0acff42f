"""The settings of the section `http`: where it is served, with which certificate, and how names are resolved there."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from perseid.names.errors import quote_text

from .setting_kinds import (
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
"""Among the forms of the resolver: `/{handle}`. The others are segments."""

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
"""First segments of the server's own paths, which lead to no handle."""

DANGEROUS_SCHEMES: Final = frozenset(("about", "blob", "data", "file", "filesystem", "javascript", "vbscript"))
"""Schemes that no setting allows: browsers run what stands in such a URL, or look into the reader's machine."""

MAX_URL: Final = 1_024
"""Characters of the longest public address: more than any that people have, and it stands in every page."""

_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,62}")
_URL = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?", re.IGNORECASE)


class Listen(Enum):
    """What is spoken at the port."""

    BOTH = "both"
    """HTTP and HTTPS; the first octet of a connection tells which."""
    HTTP = "http"
    HTTPS = "https"


class PublicUrl(SettingType):
    """The address of a server as others know it; none if it is empty."""

    expects = "an address such as https://hdl.example.org, or an empty text"

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
        except ValueError:  # brackets around no address, a port that is none
            known = False
        if not known:
            raise self.refuse(plain)
        return plain.rstrip("/")


class ResolverForms(TextList):
    """The forms of URLs that lead to handles: `bare`, and segments."""

    expects = 'a list of "bare" and of segments such as "hdl"'

    def item(self, plain: object) -> object:
        if not isinstance(plain, str) or not _SEGMENT.fullmatch(plain):
            raise InvalidSetting(f"{self.expects} is expected, and {self.shown(plain)} is in it")
        if plain in RESERVED_SEGMENTS:
            raise InvalidSetting(f"{quote_text(plain)} is a path of the server's own; choose another segment")
        return plain


class Schemes(TextList):
    """Schemes of URLs."""

    expects = 'a list of schemes such as "https"'

    def item(self, plain: object) -> object:
        if not isinstance(plain, str) or not _SCHEME.fullmatch(plain):
            raise InvalidSetting(f"{self.expects} in small letters is expected, and {self.shown(plain)} is in it")
        if plain in DANGEROUS_SCHEMES:
            raise InvalidSetting(f"{quote_text(plain)} is a scheme with which a record could attack whoever follows it")
        return plain


class Status(SettingType):
    """One of a few statuses of HTTP."""

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
    "http.enabled": Setting(Flag(), True, "Whether HTTP is served at all."),
    "http.host": Setting(
        Address(),
        "127.0.0.1",
        "The address at which HTTP is served; 0.0.0.0 or :: is every one.",
        deployed=("hdl_http_config.bind_address",),
    ),
    "http.port": Setting(
        Number(0, 65_535),
        8000,
        "The port of HTTP and HTTPS; 0 is any that is free.",
        deployed=("hdl_http_config.bind_port",),
    ),
    "http.listen": Setting(
        Choice({each.value: each for each in Listen}),
        Listen.BOTH.value,
        "What is spoken there: both (the first octet of a connection tells which), http or https. Secrets are taken "
        "over HTTPS only, or from this machine.",
    ),
    "http.certificate_file": Setting(
        FileName(),
        "",
        "The file with the certificate for HTTPS and those that it chains to, in PEM; a relative name is looked for in "
        "this directory. Empty for a self-signed one, which is made around the server's own key.",
    ),
    "http.key_file": Setting(
        FileName(), "", "The file with its private key, in PEM. Empty if that stands in the same file."
    ),
    "http.client_certificates": Setting(
        Flag(),
        True,
        "Whether clients are asked for a certificate, with which they may prove who they are; none has to have one. "
        "Browsers whose users have one ask them which to show.",
    ),
    "http.public_url": Setting(
        PublicUrl(),
        "",
        "The address of this server as others know it, with which links are made. Empty if there is none: links then "
        "have no host.",
    ),
    "http.trusted_proxies": Setting(
        Networks(),
        [],
        "Who is believed when they say for which client, and over which protocol, they ask. A proxy in front of this "
        "server has to be here; headers of others are ignored.",
    ),
    "http.resolver_forms": Setting(
        ResolverForms(),
        [BARE, "hdl"],
        "Which URLs lead to handles: bare for /HANDLE, a segment for /SEGMENT/HANDLE. /hdl/HANDLE always does.",
    ),
    "http.redirect_status": Setting(
        Status(301, 302, 303, 307, 308), 302, "The status of a redirection, where the record does not choose one."
    ),
    "http.schemes": Setting(
        Schemes(),
        ["http", "https", "ftp", "mailto"],
        "Schemes of URLs that are redirected to, and linked on pages; others are shown as text.",
    ),
    "http.no_values_status": Setting(
        Status(200, 404),
        200,
        "The status of the page for a name without public values: 200 as deployed servers have it, or 404, which link "
        "checkers notice.",
    ),
    "http.weak_digests": Setting(
        Flag(),
        True,
        "Whether MD5 and SHA-1 may be used to prove an identity over HTTP, as deployed clients do.",
    ),
    "http.api_requests": Setting(
        Number(0, 1_000_000),
        6_000,
        "How many requests a minute an identity may make to /api/v1, all its tokens together; 0 is no limit. Answers "
        "say how many are left.",
    ),
    "http.api_requests_anonymous": Setting(
        Number(0, 1_000_000),
        600,
        "The same for each network from which nobody says who they are: an address, or a /64 of IPv6.",
    ),
}
"""Every setting of the section by its name, in the order of the file."""
