"""The settings by section, with types, defaults and descriptions.

A setting is named by section and key in `perseid.toml`, such as `native.port`; its environment variable is
`PERSEID_NATIVE_PORT`. Values are what a TOML parser returns, with tuples for lists. `docs/reference/limits.md` gives
the reasons of limits. Upper bounds catch typing errors.
"""

import ipaddress
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.uri import Resolver, own_resolvers
from perseid.records.errors import InvalidData
from perseid.records.record import ref_from_text
from perseid.records.types import URL_SCHEMES
from perseid.wire.codes import MAX_TIMEOUT

BARE: Final = "bare"
"""Resolver form `/{handle}`; the other forms are path segments."""

HANDLE_SEGMENT: Final = "hdl"
"""The segment under which every handle can be reached, whatever the server's own paths are."""

RESERVED_SEGMENTS: Final = frozenset(
    (
        *("api", "console", "docs", "favicon.ico", "generate", "healthz", "help.html", "hrls", "ledger"),
        *("namespaces", "openapi.json", "readyz", "robots.txt", "sitemap.xml", "static", "suggest", "timemap"),
    )
)
"""First segments of the server's own paths, which never resolve to handles."""

DANGEROUS_SCHEMES: Final = frozenset(("about", "blob", "data", "file", "filesystem", "javascript", "vbscript"))
"""Schemes that no setting allows: browsers execute such URLs, or access the reader's machine."""

MAX_URL: Final = 1_024
"""Maximum length of the public URL in characters; it appears in every page."""

MAX_DELIMITER: Final = 16
"""Maximum length of a template delimiter, in characters."""

MAX_SERVICE_NAME: Final = 80
"""Maximum length of the service's name in characters: one line of a page's header."""

MAX_SERVICE_TEXT: Final = 500
"""Maximum length of the other texts about the service, which appear in every page."""

MAX_SERVERS: Final = 1_000
"""Maximum number of servers of a site, to catch typing errors."""

MAX_WORKERS: Final = 1_024
"""Maximum number of worker processes: more than any machine has cores."""

MIN_SESSION: Final = 60
"""Shortest session lifetime in seconds, as in deployed servers: clients set one up for several requests."""

MAX_CHALLENGE: Final = 3_600
"""Longest challenge lifetime in seconds. Each is kept in memory with its request; programs answer at once."""

MAX_UDP_CHALLENGES: Final = 1_000
MAX_UDP_CHALLENGE_BYTES: Final = 16 << 20
"""Upper bounds for challenges over UDP and the bytes of their pending requests: a client with forged addresses can make
the server store them, so no setting allows more."""

MASK: Final = "***"
"""Shown instead of a secret."""

_DATABASES = ("postgresql://", "postgres://", "postgresql+psycopg://")
_PASSWORD = re.compile(r"^([^:]+://[^:/@]*):.*@", re.DOTALL)
_SECOND_AT = re.compile(r"^[^:]+://[^@/?]*@[^/?]*@")
_PASSWORD_OPTION = re.compile(r"((?:^|[?&])[^=&]*password=)[^&]*", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\.?")
_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,62}")
_COLOR = re.compile("#[0-9a-f]{6}")
_URL = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text must be, or each text of a list."""

    expects: str
    """Description of the setting's value, for errors and documentation."""
    check: Callable[[str], str]
    """Return the text in its normal form; raise `ValueError`, with a message that says more than `expects` or none."""
    mask: Callable[[str], str] | None = None
    """Hide the secret part of the text."""


def mask_password(url: str) -> str:
    """Mask the password in a database URL, rather too much than too little."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def strip_password(url: str) -> str:
    """Remove the password from a database URL, also among its options."""
    address, _, options = _PASSWORD.sub(r"\1@", url).partition("?")
    kept = [each for each in options.split("&") if each and not _PASSWORD_OPTION.match(each)]
    return f"{address}?{'&'.join(kept)}" if kept else address


def _require(condition: object, message: str = "") -> None:
    if not condition:
        raise ValueError(message)


def _check_printable(text: str) -> str:
    _require(text.isprintable())
    return text


def _check_host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        # Digits and dots are an IP address; an invalid one must not be looked up as a name.
        _require(_HOST.fullmatch(text) and not re.fullmatch("[0-9.]+", text))
    return text


def _check_database(text: str) -> str:
    _require(not text or (text.startswith(_DATABASES) and text.isprintable() and " " not in text))
    # The driver takes what follows the first @ as a host, and its errors would show that part of the password.
    _require(not _SECOND_AT.match(text), "The URL has a second @ before its path; in a password, write %40 instead")
    names = (each.partition("=")[0] for each in text.partition("?")[2].split("&"))
    _require(not any("%" in name for name in names), "Write the names of the URL's options without %")  # mask_password
    return text


def check_public_url(text: str) -> str:
    """Return a public URL without a / at its end; raise `ValueError` if it is invalid."""
    try:
        parts = urlsplit(text)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid IPv6 address or port
        known = False
    _require(not text or (known and len(text) <= MAX_URL and _URL.fullmatch(text)))
    return text.rstrip("/")


def _check_page_url(text: str) -> str:
    _require(not text or (_URL.fullmatch(text) and len(text) <= MAX_URL))
    return text


def _check_color(text: str) -> str:
    _require(not text or _COLOR.fullmatch(text.lower()))
    return text.lower()


def _check_type(text: str) -> str:
    _require(text and text.isprintable() and len(text) <= MAX_SERVICE_TEXT)
    return text


def _check_segment(text: str) -> str:
    _require(_SEGMENT.fullmatch(text))
    _require(
        text not in RESERVED_SEGMENTS, f"Segment {quote_text(text)} is reserved for the server; choose another one"
    )
    return text


def _check_scheme(text: str) -> str:
    _require(_SCHEME.fullmatch(text))
    reason = "a record could use it to attack users"
    _require(text not in DANGEROUS_SCHEMES, f"Scheme {quote_text(text)} is not allowed: {reason}")
    return text


def _check_identity(text: str) -> str:
    try:
        reference = ref_from_text(text)
        Handle.parse(reference.handle)
        _require(reference.index >= 0, "the index must not be negative; 0 means any key")
    except (InvalidData, InvalidName, ValueError) as problem:
        raise ValueError(f"Invalid administrator {quote_text(text)}: {problem}") from None
    return text


def _check_network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as problem:
        raise ValueError(f"Invalid network {quote_text(text)}: {problem}") from None


def _range(low: int, high: int, unit: str = "") -> Meta:
    return Meta(ge=low, le=high, extra={"unit": unit})


Listen = Literal["both", "http", "https"]
"""Protocols served at the HTTP port; both are distinguished by the first byte of a connection."""

_DATABASE = Rule("a URL such as postgresql://user@host/database, or an empty text", _check_database, mask_password)
_SECRET = Rule("a single line of text", _check_printable, lambda text: MASK if text else "")
_DELIMITER = Rule(f"a text of at most {MAX_DELIMITER} printable characters", _check_printable)
_PUBLIC_URL = Rule("a URL such as https://hdl.example.org, or an empty text", check_public_url)
_SERVICE_NAME = Rule(f"a text of at most {MAX_SERVICE_NAME} printable characters", _check_printable)
_SERVICE_TEXT = Rule(f"a text of at most {MAX_SERVICE_TEXT} printable characters", _check_printable)
_PAGE_URL = Rule("a URL such as https://example.org/terms, or an empty text", _check_page_url)
_COLOR_RULE = Rule('a color such as "#0b4f9e", or an empty text', _check_color)
_TITLE_TYPES = Rule('a list of types such as "10320/title"', _check_type)
_FORMS = Rule('a list of "bare" and of segments such as "hdl"', _check_segment)
_SCHEMES = Rule('a list of schemes such as "https", in lowercase', _check_scheme)

_Host = Annotated[str, Rule("an IP address or a host name", _check_host)]
_FileName = Annotated[str, Rule("a file name, or an empty text", _check_printable)]
_Networks = Annotated[tuple[str, ...], Rule("a list of addresses and networks such as 192.0.2.0/24", _check_network)]
_Identities = Annotated[tuple[str, ...], Rule('a list of "INDEX:HANDLE"', _check_identity)]
_Port = Annotated[int, _range(0, 65_535)]
_Count = Annotated[int, _range(1, 1_000_000)]
_Queue = Annotated[int, _range(4, 100_000)]
_Seconds = Annotated[int, _range(1, 86_400, "seconds")]
_CoreShare = Annotated[int, _range(1, 6_400, "percent of a core")]
_Percent = Annotated[int, _range(1, 100, "percent")]


class Section(Struct, frozen=True):
    """Settings with the same section; each field has a type and a description."""

    def __repr__(self) -> str:  # without secrets
        return f"<{type(self).__name__}>"


class LedgerSection(Section, frozen=True):
    """Section `ledger`."""

    database: Annotated[
        str,
        _DATABASE,
        "URL of a PostgreSQL database that nodes can share. Empty: the file ledger.db in this directory.",
    ] = ""


class SiteSection(Section, frozen=True):
    """Section `site`."""

    position: Annotated[
        int, _range(1, MAX_SERVERS), "Position of this server in the site information, counted from 1."
    ] = 1


class KeysSection(Section, frozen=True):
    """Section `keys`."""

    passphrase_file: Annotated[
        _FileName,
        "File with the passphrase of the server's private key, on one line, relative to this directory.",
    ] = ""
    passphrase: Annotated[
        str,
        _SECRET,
        "Passphrase of the server's private key, for use as an environment variable. It overrides the file.",
    ] = ""


class ServerSection(Section, frozen=True):
    """Section `server`."""

    listing_allowed: Annotated[
        bool, "Whether users with the permission can list the handles of a prefix over the network."
    ] = True
    workers: Annotated[int, _range(0, MAX_WORKERS), "Number of worker processes; 0 for one per core."] = 0


class NativeSection(Section, frozen=True):
    """Section `native`."""

    host: Annotated[_Host, "Address to listen on for the native protocol; 0.0.0.0 or :: for all."] = "127.0.0.1"
    port: Annotated[_Port, "Port of the native protocol, for UDP and TCP; 0 for any free port."] = 2641
    compiled: Annotated[
        bool,
        "Whether public resolution over UDP and TCP uses the compiled module, if it is installed. It then needs less "
        "of the processor.",
    ] = True


class HttpSection(Section, frozen=True):
    """Section `http`."""

    enabled: Annotated[bool, "Whether to serve HTTP."] = True
    host: Annotated[_Host, "Address to listen on for HTTP; 0.0.0.0 or :: for all."] = "127.0.0.1"
    port: Annotated[_Port, "Port for HTTP and HTTPS; 0 for any free port."] = 8000
    listen: Annotated[
        Listen,
        "Protocols at this port; both are told apart by the first byte of a connection. Secrets are accepted only over "
        "HTTPS or from this machine.",
    ] = "both"
    certificate_file: Annotated[
        _FileName,
        "PEM file with the certificate for HTTPS and its chain, relative to this directory. Empty: Perseid uses a "
        "self-signed certificate for the server's own key.",
    ] = ""
    key_file: Annotated[
        _FileName, "PEM file with the certificate's private key. Empty: it is in the certificate file."
    ] = ""
    client_certificates: Annotated[
        bool,
        "Whether to request a client certificate for authentication. It is optional; browsers ask users who have one "
        "to choose.",
    ] = True
    public_url: Annotated[
        str,
        _PUBLIC_URL,
        "Public URL of this server, used in links and citations. Empty: links have no host, and citations only the "
        "hdl: form.",
    ] = ""
    trusted_proxies: Annotated[
        _Networks,
        "Proxies whose forwarding headers (client address and protocol) are trusted. List every proxy in front of this "
        "server; headers from other addresses are ignored.",
    ] = ()
    resolver_forms: Annotated[
        tuple[str, ...],
        _FORMS,
        "URLs that resolve to handles: bare for /HANDLE, a segment for /SEGMENT/HANDLE. /hdl/HANDLE always works.",
    ] = (BARE, "hdl")
    redirect_status: Annotated[
        Literal[301, 302, 303, 307, 308], "Status code of redirects, unless the record chooses one."
    ] = 302
    schemes: Annotated[
        tuple[str, ...], _SCHEMES, "URL schemes to redirect to and to link on pages; others are shown as text."
    ] = URL_SCHEMES
    no_values_status: Annotated[
        Literal[200, 404],
        "Status code of the page for a handle without public values: 200 as in deployed servers, or 404, which link "
        "checkers report.",
    ] = 200
    weak_digests: Annotated[bool, "Whether to accept MD5 and SHA-1 for authentication, which deployed clients use."] = (
        True
    )
    api_requests: Annotated[
        int,
        _range(0, 1_000_000, "requests per minute"),
        "Rate limit of /api/v1 per identity, including all its tokens; 0 for no limit.",
    ] = 6_000
    api_requests_anonymous: Annotated[
        int,
        _range(0, 1_000_000, "requests per minute"),
        "Rate limit of /api/v1 per anonymous address (IPv6: /64); 0 for no limit.",
    ] = 600
    import_size: Annotated[
        int,
        _range(0, 1_000_000, "MiB"),
        "Largest file that a user can import over HTTP; 0 allows none.",
    ] = 1_024
    import_spool: Annotated[
        int,
        _range(0, 1_000_000, "MiB"),
        "Space for the uploaded files of all users, in the installation, until they are imported or a day old.",
    ] = 4_096

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments before handles."""
        return tuple(dict.fromkeys(form for form in (*self.resolver_forms, HANDLE_SEGMENT) if form != BARE))

    @property
    def resolvers(self) -> tuple[Resolver, ...]:
        """The resolvers at the public URL (U4), the one to cite first; none without a public URL."""
        return own_resolvers(self.public_url, (*([""] if BARE in self.resolver_forms else ()), *self.segments))


class ServiceSection(Section, frozen=True):
    """Section `service`: who runs the service, for its web pages."""

    name: Annotated[
        str,
        Meta(max_length=MAX_SERVICE_NAME),
        _SERVICE_NAME,
        "Name of the service in the header of every page. Empty: the host of http.public_url.",
    ] = ""
    description: Annotated[
        str,
        Meta(max_length=MAX_SERVICE_TEXT),
        _SERVICE_TEXT,
        "A sentence on the front page: who runs the service, and for whom.",
    ] = ""
    logo_file: Annotated[
        _FileName,
        "Image for the header of every page, relative to this directory: SVG, PNG, JPEG or WebP of at most 32 KiB. "
        "Empty: Perseid's.",
    ] = ""
    contact: Annotated[
        str,
        Meta(max_length=MAX_SERVICE_TEXT),
        _SERVICE_TEXT,
        "Email address or URL for questions about the service, linked on every page.",
    ] = ""
    terms_url: Annotated[str, _PAGE_URL, "URL of the terms of use, linked on every page."] = ""
    footer: Annotated[
        str,
        Meta(max_length=MAX_SERVICE_TEXT),
        _SERVICE_TEXT,
        "Text at the bottom of every page, such as the name and address of the operator.",
    ] = ""
    accent_color: Annotated[
        str,
        _COLOR_RULE,
        "Color of links and buttons. Pages use the nearest shade with enough contrast, in light and in dark mode.",
    ] = ""
    title_types: Annotated[
        tuple[str, ...],
        _TITLE_TYPES,
        "Types of values with the title of a record, the preferred first. Without such a value: as in citations, TITLE "
        "or DESC, also of Dublin Core, DataCite or a type registry.",
    ] = ()


class AdministratorsSection(Section, frozen=True):
    """Section `administrators`."""

    server: Annotated[
        _Identities,
        "Server administrators: keys or groups of keys. They can do what no record grants permission for.",
    ] = ()
    home_only: Annotated[
        _Identities, "Identities that can start and stop hosting prefixes, in addition to server administrators."
    ] = ()
    status: Annotated[
        _Identities, "Identities that can read the server status, in addition to server administrators."
    ] = ()
    backup: Annotated[
        _Identities, "Identities that can request a checkpoint, in addition to server administrators."
    ] = ()
    replication: Annotated[
        _Identities, "Identities of mirrors. It has no effect: this server does not replicate to mirrors."
    ] = ()
    full_access: Annotated[bool, "Whether server administrators have all permissions on every handle."] = False
    prefix_administrators: Annotated[
        bool,
        "Whether administrators of a prefix handle can create and list its handles; otherwise only server "
        "administrators can.",
    ] = True


class IdentitiesSection(Section, frozen=True):
    """Section `identities`."""

    root: Annotated[
        _FileName,
        "Whose identities can authenticate here besides those with keys in this installation: global (all of the "
        "global Handle System), or a file with the site information of a root, relative to this directory. Empty: "
        "global if root is global, else none.",
    ] = ""
    networks: Annotated[
        _Networks,
        "Networks that are not public, such as 10.0.0.0/8, whose servers may be asked about identities. Servers at "
        "public addresses always may.",
    ] = ()


class SessionsSection(Section, frozen=True):
    """Section `sessions`."""

    required: Annotated[bool, "Whether authenticated requests require a session."] = False
    challenge_life: Annotated[
        int, _range(1, MAX_CHALLENGE, "seconds"), "Time limit for a client to answer a challenge."
    ] = 60
    life: Annotated[
        int,
        _range(MIN_SESSION, MAX_TIMEOUT, "seconds"),
        "Time after which an unused session ends, unless the client requests another.",
    ] = MAX_TIMEOUT
    cipher: Annotated[
        Literal["aes", "3des", "des"],
        "Encryption of sessions. Only aes is secure; the others are for clients that support nothing else.",
    ] = "aes"


class TemplatesSection(Section, frozen=True):
    """Section `templates`."""

    delimiter: Annotated[
        str,
        Meta(max_length=MAX_DELIMITER),
        _DELIMITER,
        "Separator of handle and extension in namespaces without their own; empty for none.",
    ] = ""


class LogSection(Section, frozen=True):
    """Section `log`."""

    format: Annotated[
        Literal["text", "json"], "Log format: text for people, json (one object per line) for programs."
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], "Lowest level of messages to log. Request logging is separate."
    ] = "info"
    access: Annotated[
        bool, "Whether to log requests over TCP and HTTP: client, request, response code, microseconds."
    ] = True
    access_udp: Annotated[bool, "Whether to log resolution over UDP too, which slows down every response."] = False

    @property
    def level_number(self) -> int:
        """The level as `logging` has it."""
        return logging.getLevelNamesMapping()[self.level.upper()]


class MetricsSection(Section, frozen=True):
    """Section `metrics`."""

    enabled: Annotated[bool, "Whether to serve Prometheus metrics and the health checks /ready and /live."] = True
    host: Annotated[_Host, "Address to listen on for metrics. They need no authentication and contain no handles."] = (
        "127.0.0.1"
    )
    port: Annotated[_Port, "Port of the metrics; 0 for any free port."] = 8641


class StatisticsSection(Section, frozen=True):
    """Section `statistics`."""

    enabled: Annotated[
        bool, "Whether to count requests and changes by day and namespace, without addresses or identities."
    ] = True


class LimitsSection(Section, frozen=True):
    """Section `limits`."""

    exempt_networks: Annotated[
        _Networks,
        "Networks without limits per source, such as this machine and your own proxies. Limits for all clients "
        "together still apply, except that of bytes over UDP.",
    ] = ("127.0.0.0/8", "::1/128")
    udp_octets: Annotated[
        int,
        _range(0, 1 << 40, "bytes per second"),
        "UDP response rate per network (IPv4 /24, IPv6 /56), beyond the bytes of its requests; 0 for no limit. Above "
        "it, clients switch to TCP.",
    ] = 64 << 10
    udp_burst: Annotated[int, _range(1 << 16, 1 << 40, "bytes"), "UDP response burst per network."] = 256 << 10
    udp_octets_in_all: Annotated[
        int,
        _range(0, 1 << 40, "bytes per second"),
        "UDP response rate of all networks together that are not exempt, beyond the bytes of their requests; 0 for no "
        "limit.",
    ] = 1 << 20
    udp_handovers: Annotated[
        int,
        _range(0, 1_000_000, "datagrams per second"),
        "UDP datagrams per network other than public resolution; 0 for no limit.",
    ] = 1_000
    udp_handovers_in_all: Annotated[
        int,
        _range(10, 1_000_000, "datagrams per second"),
        "UDP datagrams of all networks other than public resolution.",
    ] = 1_000
    udp_challenges: Annotated[int, _range(1, MAX_UDP_CHALLENGES), "Maximum pending challenges over UDP."] = (
        MAX_UDP_CHALLENGES
    )
    udp_challenge_octets: Annotated[
        int,
        _range(1 << 16, MAX_UDP_CHALLENGE_BYTES, "bytes"),
        "Maximum size of the requests with pending challenges over UDP.",
    ] = MAX_UDP_CHALLENGE_BYTES
    tcp_challenges: Annotated[_Count, "Maximum pending challenges over TCP and HTTP."] = 10_000
    tcp_challenge_octets: Annotated[
        int,
        _range(1 << 18, 1 << 32, "bytes"),
        "Maximum size of the requests with pending challenges over TCP and HTTP.",
    ] = 64 << 20
    tcp_unfinished_octets: Annotated[
        int,
        _range(1 << 20, 1 << 40, "bytes"),
        "Maximum size of incomplete messages over TCP. Beyond it, the client with most of it is disconnected.",
    ] = 64 << 20
    sessions: Annotated[_Count, "Maximum number of sessions; beyond it, the oldest one ends."] = 10_000
    unproved_sessions: Annotated[_Count, "Maximum number of unauthenticated sessions."] = 1_000
    connections: Annotated[_Count, "Maximum number of TCP connections, if the system allows as many."] = 4_096
    connections_per_address: Annotated[
        _Count,
        "Maximum number of TCP connections per address (IPv6: /64; a /56 has twice as many, a /48 four times).",
    ] = 256
    http_at_once: Annotated[
        int,
        _range(1, 1_000_000, "requests per second"),
        "HTTP requests per address that are answered directly from the answers view; further ones use the regular "
        "path, which has a work budget.",
    ] = 2_000
    message_time: Annotated[_Seconds, "Time limit for receiving a complete message over TCP."] = 30
    idle_time: Annotated[_Seconds, "Idle time after which a connection is closed."] = 300
    take_time: Annotated[_Seconds, "Time limit for a client to receive its response."] = 30
    failed_proofs: Annotated[
        int,
        _range(1, 1_000_000, "attempts per minute"),
        "Failed authentication attempts per address before it is locked out, and of all addresses per handle before "
        "unknown addresses must wait. Failures over UDP do not affect TCP.",
    ] = 30
    read_share: Annotated[_CoreShare, "CPU share for reading the ledger."] = 100
    write_share: Annotated[_CoreShare, "CPU share for deciding changes."] = 100
    sign_share: Annotated[_CoreShare, "CPU share for signing responses."] = 50
    verify_share: Annotated[_CoreShare, "CPU share for verifying signatures and secrets."] = 50
    agree_share: Annotated[_CoreShare, "CPU share for setting up sessions."] = 20
    handshake_share: Annotated[_CoreShare, "CPU share for TLS handshakes."] = 50
    udp_share: Annotated[_Percent, "Part of each CPU share available to all UDP clients."] = 40
    source_share: Annotated[_Percent, "Part of each CPU share available to one address."] = 10
    proved_source_share: Annotated[
        _Percent, "Part of each CPU share available to one address with an authenticated client."
    ] = 50
    reserved_share: Annotated[
        int, _range(0, 90, "percent"), "Part of each CPU share and queue reserved for authenticated addresses."
    ] = 25
    read_queue: Annotated[_Queue, "Maximum queued ledger requests."] = 256
    write_queue: Annotated[_Queue, "Maximum queued changes."] = 512
    arithmetic_queue: Annotated[_Queue, "Maximum queued signatures, verifications and session setups, each."] = 64


class AllSettings(Section, frozen=True):
    """All settings; those without a section come first, as TOML requires."""

    root: Annotated[
        Literal["self", "global"],
        "Where prefix handles come from: self (this installation is its own root and serves them) or global (the "
        "global Handle System serves them; copies here are used for authorization only).",
    ] = "self"
    default_profile: Annotated[
        Literal["pilin", "cordra", "free", "exact"], "Policy profile of a prefix that is homed without a policy."
    ] = "free"
    ledger: LedgerSection = LedgerSection()
    site: SiteSection = SiteSection()
    keys: KeysSection = KeysSection()
    server: ServerSection = ServerSection()
    native: NativeSection = NativeSection()
    http: HttpSection = HttpSection()
    service: ServiceSection = ServiceSection()
    administrators: AdministratorsSection = AdministratorsSection()
    identities: IdentitiesSection = IdentitiesSection()
    sessions: SessionsSection = SessionsSection()
    templates: TemplatesSection = TemplatesSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    statistics: StatisticsSection = StatisticsSection()
    limits: LimitsSection = LimitsSection()
