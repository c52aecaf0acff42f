"""Redirects: target URLs, the choice of a location, and headers from records (§9.4 to §9.6, §10).

Everything follows from the arguments: the values of a record, their locations, the request, and one random number.

Target URLs (§9.5) are untrusted: a record may contain anything. A URL is used only if it has a permitted scheme, no
control characters and a limited length. An international host is converted to ASCII (IDNA); then every byte outside a
fixed set is percent-encoded. Percent signs stay, as the text may already be encoded. A location that is not a valid
target is ignored; without a valid one, the record is shown instead of a redirect.

A record can add headers (§10.5): `Link` from locations with a relation, and lines of `10320/headers`. Browsers, caches
and proxies obey headers, so a record may set only a few names, each of which only describes the resource. Values must
be printable ASCII; links need a permitted scheme and a descriptive relation; the total length is limited. HTML in
`10320/headers` is ignored: it would be untrusted markup on our pages.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from itertools import islice
from typing import Final
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.locations import (
    Address,
    Candidate,
    Candidates,
    Location,
    Locations,
    SelectedLocation,
    SelectionCriteria,
    expand_template,
    select_location,
)
from perseid.records.record import Value, ascending
from perseid.records.types import has_type
from perseid.records.xml import MAX_XML_BYTES, is_true
from perseid.registry.policy.resolution import cache_lifetime
from perseid.registry.queries.signposting import RELATIONS
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import VARY, VARY_HISTORY, AcceptHeader, Preference, cache_headers
from perseid.wire.codes import ResponseCode

MAX_URL: Final = 8_192
"""Length of the longest encoded URL in a header: what common browsers and servers accept."""

SAFE_CHARACTERS: Final = "-._~!$()*,:@/;=+&'?#[]%"
"""Characters that stay as they are, besides ASCII letters and digits."""

_WHITESPACE: Final = " \t\r\n\f\v"
_MAX_HOST: Final = 253  # bytes of the longest DNS name; converting a longer one is a waste
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):")
_WITH_HOST: Final = frozenset(("http", "https", "ftp"))
_PARTS: Final = re.compile(r"(//(?:[^/?#\\]*@)?)([^/?#\\]*?)((?::[0-9]*)?)((?:[/?#\\].*)?)", re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\]")
_ASCII_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_CACHED_TARGETS: Final = 64  # a page needs a URL several times


class InvalidTarget(ValueError):
    """A URL that is not used as target; the message is a clause that says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target URL."""

    text: str
    """As in the record, without surrounding whitespace."""
    location: str
    """As sent, in ASCII."""


def parse_target(text: str, schemes: frozenset[str], appended: str = "") -> Target:
    """Check and encode a URL, with what the request appends to it. Raises `InvalidTarget`."""
    text = text.strip(_WHITESPACE)
    location = _encode_target(text, schemes)
    if appended:
        text += appended
        longer = _encode_target(text, schemes)
        if _get_authority(longer) != _get_authority(location):
            raise InvalidTarget("the appended text would change the host")
        location = longer
    return Target(text, location)


def encode_url(text: str) -> str:
    """Percent-encode every UTF-8 byte that is not allowed in a URL; percent signs stay."""
    return quote(text, safe=SAFE_CHARACTERS)


def get_scheme(text: str) -> str:
    """The scheme of a URL in lowercase; empty if it has none."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else ""


@lru_cache(_CACHED_TARGETS)
def _encode_target(text: str, schemes: frozenset[str]) -> str:
    if not text:
        raise InvalidTarget("it is empty")
    if _CONTROLS.search(text):
        raise InvalidTarget("it contains control characters")
    if len(text) > MAX_URL:
        raise InvalidTarget(f"it has {len(text):,} characters; the maximum is {MAX_URL:,}")
    scheme = get_scheme(text)
    if not scheme:
        raise InvalidTarget("it has no scheme, such as https:")
    if scheme not in schemes:
        raise InvalidTarget(f"this server does not redirect to its scheme; use one of {', '.join(sorted(schemes))}")
    location = encode_url(_with_ascii_host(text, scheme) if scheme in _WITH_HOST else text)
    if len(location) > MAX_URL:
        raise InvalidTarget(f"it has {len(location):,} characters; the maximum is {MAX_URL:,}")
    return location


def _with_ascii_host(text: str, scheme: str) -> str:
    """Convert the host to ASCII."""
    parts = _PARTS.fullmatch(text, len(scheme) + 1)
    if parts is None or not parts[2]:
        raise InvalidTarget("it has no host")
    before, host, port, rest = parts.groups()
    if rest.startswith("\\"):
        raise InvalidTarget("a backslash follows its host, which some clients read as a slash")
    if not host.isascii():
        return f"{text[: len(scheme) + 1]}{before}{_to_ascii(host)}{port}{rest}"
    if _HOST.fullmatch(host) is None:
        raise InvalidTarget("its host is not a valid host name")
    return text


def _to_ascii(host: str) -> str:
    """Convert a host by the rules of IDNA."""
    try:
        converted = host.encode("idna").decode("ascii") if len(host) <= _MAX_HOST else ""
    except UnicodeError:
        converted = ""
    # Characters that look like a slash or an at sign become one, which would change the host.
    if not _ASCII_HOST.fullmatch(converted):
        raise InvalidTarget("its host is not a valid host name")
    return converted


def _get_authority(location: str) -> str:
    """What appended text must not change: scheme and host, or the addresses of an email."""
    scheme = get_scheme(location)
    if scheme in _WITH_HOST:
        parts = _PARTS.fullmatch(location, len(scheme) + 1)
        return location[: parts.end(3)] if parts else location
    return re.split("[?#]", location, maxsplit=1)[0]


HEADERS: Final = "10320/headers"
LINKS: Final = "10320/links"

_LINK: Final = "Link"

ALLOWED_HEADERS: Final = {name.lower(): name for name in ("Deprecation", _LINK, "Sunset", "X-Robots-Tag")}
"""The headers that a record may set: links, deprecation dates, and indexing by search engines. None of them changes how
the response itself is read, cached or forwarded. `Memento-Datetime` is reserved for the server, which marks earlier
versions with it."""

ALLOWED_RELATIONS: Final = RELATIONS | {"canonical"}
"""The registered relations that a link of a record may have, besides URIs. Browsers act on others (`stylesheet`,
`preload`), or the server uses them itself (`timegate`, `linkset`). With `canonical` records of deployed servers mark
the main one of several locations."""

MAX_HEADERS: Final = 50
"""Headers that a record may add to a response."""

MAX_HEADER_BYTES: Final = 4_096
"""Bytes of all of them together: proxies allow 4 to 8 KiB of headers."""

# A complete link (RFC 8288, section 3), with known parameters only.
_PARAMETER: Final = re.compile(
    r"""[ \t]*;[ \t]*(rel|anchor|type|target-type|media|hreflang|title\*?)[ \t]*=[ \t]*"""
    r"""(?:"((?:[^"\\]|\\.)*)"|([!#$%&'*+.^_`|~0-9A-Za-z:/-]+))""",
    re.IGNORECASE,
)
_TARGET: Final = re.compile(r"[ \t]*<([^<>]*)>")
_NEXT: Final = re.compile(r"[ \t]*,")
_PRINTABLE: Final = re.compile("[\x20-\x7e]*")
_ATTRIBUTES: Final = (
    ("type", "media-type"),
    ("target-type", "target-type"),
    ("media", "media"),
    ("hreflang", "hreflang"),
)
_MAX_LISTS: Final = 20  # link values that are parsed
_MAX_LOCATIONS: Final = 2_000  # locations that are checked for a relation
_MAX_LINES: Final = 200  # header lines that are parsed

Header = tuple[str, str]


def extra_headers(
    handle: Handle, values: Iterable[Value], candidates: Candidates, schemes: frozenset[str]
) -> tuple[Header, ...]:
    """The headers that a record adds, lines first, as far as they are allowed."""
    record = [value for value in ascending(values) if value.is_public]
    hrefs = {each.location.get("id"): each.href for each in reversed(candidates.locations)}
    own = [each for each in candidates.locations if not each.from_namespace]
    others = [each for each in candidates.locations if each.from_namespace]
    headers = [
        *_header_lines(handle, record, schemes),
        *_link_headers(_linked_locations(handle, record, own), hrefs, schemes),
    ]
    if not is_true(candidates.get("suppressNsHeaders")) and not (
        headers and is_true(candidates.get("suppressNsHeadersIfLocalHeaders"))
    ):
        headers += _link_headers([(each.href, each.location) for each in others], hrefs, schemes)
    remaining = MAX_HEADER_BYTES
    allowed: list[Header] = []
    for name, value in headers[:MAX_HEADERS]:
        remaining -= len(name) + len(value) + 4
        if remaining < 0:
            break
        allowed.append((name, value))
    return tuple(allowed)


def _header_lines(handle: Handle, record: list[Value], schemes: frozenset[str]) -> Iterator[Header]:
    """Lines `Name: value` with allowed names."""
    for value in record:
        if not has_type(value.type, HEADERS):
            continue
        text = value.data[:MAX_XML_BYTES].decode("utf-8", "replace")
        for line in text.splitlines()[:_MAX_LINES]:
            name, colon, content = line.partition(":")
            known = ALLOWED_HEADERS.get(name.strip().lower())
            content = content.strip()
            if colon and known and len(content) <= MAX_HEADER_BYTES:
                content = expand_template(content, handle)
                if content and _PRINTABLE.fullmatch(content) and (known != _LINK or _is_valid_link(content, schemes)):
                    yield known, content


def _is_valid_link(content: str, schemes: frozenset[str]) -> bool:
    """Whether every link of a `Link` line is allowed: it must be completely parsed, and each link have exactly one
    relation (RFC 8288, section 3.3).
    """
    at = 0
    while True:
        target = _TARGET.match(content, at)
        if target is None or not _is_valid_target(target[1], schemes):
            return False
        at, relations = target.end(), 0
        while parameter := _PARAMETER.match(content, at):
            at = parameter.end()
            name, text = parameter[1].lower(), parameter[2] if parameter[2] is not None else parameter[3]
            if name == "rel":
                relations += 1
                if not _is_allowed_relation(text):
                    return False
            elif name == "anchor" and not _is_valid_target(text, schemes):
                return False
        if relations != 1:
            return False
        if not content[at:].strip(" \t"):
            return True
        following = _NEXT.match(content, at)
        if following is None:
            return False
        at = following.end()


def _is_valid_target(address: str, schemes: frozenset[str]) -> bool:
    try:
        return parse_target(address, schemes).location == address
    except InvalidTarget:
        return False


def _is_allowed_relation(relation: str) -> bool:
    """Whether all words of a relation are allowed."""
    return bool(relation.strip()) and _allowed_relations(relation) == " ".join(relation.split())


def _allowed_relations(relation: str) -> str:
    """The allowed words of a relation."""
    return " ".join([word for word in relation.split() if ":" in word or word.lower() in ALLOWED_RELATIONS])


def _linked_locations(
    handle: Handle, record: list[Value], candidates: list[Candidate]
) -> Iterator[tuple[str, Location]]:
    """The locations of a record, and those of its `10320/links` values."""
    yield from ((each.href, each.location) for each in candidates)
    for value in [value for value in record if has_type(value.type, LINKS)][:_MAX_LISTS]:
        try:
            locations = Locations.from_bytes(value.data).locations
        except InvalidData:
            continue
        for location in locations:
            href, template = location.href, location.href_template
            if href is None and template is not None and len(template) <= MAX_HEADER_BYTES:
                href = expand_template(template, handle)
            if href is not None:
                yield href, location


def _link_headers(
    locations: Iterable[tuple[str, Location]], hrefs: Mapping[str | None, str], schemes: frozenset[str]
) -> list[Header]:
    """A header for each location with an allowed relation."""
    with_relation = [pair for pair in islice(locations, _MAX_LOCATIONS) if pair[1].get("rel")][:MAX_HEADERS]
    links = [_link(href, location, hrefs, schemes) for href, location in with_relation]
    return [(_LINK, value) for value in links if value is not None]


def _link(href: str, location: Location, hrefs: Mapping[str | None, str], schemes: frozenset[str]) -> str | None:
    relation = _allowed_relations(location.get("rel") or "")
    if not relation or not _PRINTABLE.fullmatch(relation):
        return None
    try:
        parts = [f"<{parse_target(href, schemes).location}>"]
        anchor = hrefs.get(location.get("anchor-id")) if location.get("anchor-id") else None
        if anchor is not None:
            parts.append(f"anchor={_quote(parse_target(anchor, schemes).location)}")
    except InvalidTarget:
        return None
    parts.append(f"rel={_quote(relation)}")
    for name, attribute in _ATTRIBUTES:
        text = location.get(attribute)
        if text and _PRINTABLE.fullmatch(text):
            parts.append(f"{name}={_quote(text)}")
    if title := location.get("title"):
        parts.append(_title(title, location.get("titlelang") or ""))
    return "; ".join(parts)


def _title(title: str, language: str) -> str:
    """A title; in the extended form if it is not ASCII or has a language."""
    if not language and _PRINTABLE.fullmatch(title):
        return f"title={_quote(title)}"
    tag = language if re.fullmatch("[A-Za-z0-9-]{0,35}", language) else ""
    return f"title*=UTF-8'{tag}'{quote(title, safe='')}"


def _quote(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


STATUSES: Final = frozenset((301, 302, 303, 307, 308))
"""Redirect statuses that a record may choose."""

OLD_STATUSES: Final = frozenset((301, 302))
"""Those that HTTP/1.0 clients know."""

_CONTENT_TYPE: Final = ("Content-Type", "text/html;charset=utf-8")
_BY_LOCATION: Final = ("addresses", "country")  # attributes that depend on where the client is
_BY_AGENT: Final = ("http_role", "ctype", "media-type")


@dataclass(frozen=True, slots=True)
class RedirectRequest:
    """The parts of a request that affect the redirect."""

    accepted: AcceptHeader = field(default_factory=lambda: AcceptHeader(()))
    own: tuple[Preference, ...] = ()
    """Attributes that the request names (`locatt`)."""
    derived: tuple[Preference, ...] = ()
    """Attributes derived from its headers."""
    append: str = ""
    """Text appended to the URL."""
    country: str | None = None
    address: Address | None = None
    force_redirect: bool = False
    """Whether a redirect is requested explicitly, so that `Accept` does not matter."""
    headers_only: bool = False
    """Whether the headers of the redirect are requested with status 200."""
    no_cache: bool = False
    """Whether caches must be bypassed."""
    is_http10: bool = False
    """Whether the client uses HTTP/1.0."""

    @property
    def preferences(self) -> SelectionCriteria:
        """All attributes, named ones first."""
        return SelectionCriteria((*self.own, *self.derived), self.country, self.address)


@dataclass(frozen=True, slots=True)
class Redirect:
    """The chosen target, and how it was chosen."""

    chosen: SelectedLocation | None
    target: Target | None
    status: int
    status_from: str
    """What determined the status: the location, its list, or the settings."""
    invalid_targets: Mapping[str, str]
    """Locations that are not valid targets, and why."""


def choose_redirect(candidates: Candidates, wanted: RedirectRequest, settings: HttpSettings, number: float) -> Redirect:
    """Choose the target of a request. `number` is random, in [0, 1)."""
    targets: dict[str, Target] = {}
    invalid_targets: dict[str, str] = {}
    for candidate in candidates.locations:
        if candidate.href in targets or candidate.href in invalid_targets:
            continue
        try:
            targets[candidate.href] = parse_target(candidate.href, settings.schemes)
        except InvalidTarget as problem:
            invalid_targets[candidate.href] = str(problem)
    if invalid_targets:
        valid = tuple([candidate for candidate in candidates.locations if candidate.href in targets])
        candidates = replace(candidates, locations=valid)
    chosen = select_location(candidates, wanted.preferences, number)
    status, status_from = _status(candidates, chosen, wanted, settings)
    return Redirect(
        chosen, None if chosen is None else targets[chosen.candidate.href], status, status_from, invalid_targets
    )


@dataclass(frozen=True, slots=True)
class RedirectSource:
    """The record that a redirect is based on."""

    handle: Handle
    values: tuple[Value, ...]
    """The requested public values."""
    candidates: Candidates
    """Their locations."""
    used: tuple[Value, ...]
    """All values that the response depends on, including aliases on the way."""
    signposts: HeaderList = ()
    """Links and time headers of every response about the handle."""
    past: bool = False
    """Whether it is an earlier state."""
    fixed: bool = False
    """Whether it is the state after an entry, which never changes."""


def redirect_response(
    source: RedirectSource, wanted: RedirectRequest, settings: HttpSettings, number: float, now: float
) -> Response | None:
    """Create the redirect; None if there is no target, or the record is requested.

    Raises `InvalidTarget` if the appended text is invalid.
    """
    candidates = source.candidates
    redirect = choose_redirect(candidates, wanted, settings, number)
    if redirect.chosen is None or redirect.target is None or _is_record_wanted(redirect.chosen.candidate, wanted):
        return None
    target = parse_target(redirect.target.text, settings.schemes, wanted.append) if wanted.append else redirect.target
    is_private = any(each.location.get(name) is not None for each in candidates.locations for name in _BY_LOCATION)
    age = cache_headers(
        cache_lifetime(source.used, now), now, shared=not is_private, no_cache=wanted.no_cache, fixed=source.fixed
    )
    return Response(
        200 if wanted.headers_only else redirect.status,
        (
            ("Location", target.location),
            *age,
            ("Vary", vary_header(candidates, wanted.accepted, past=source.past)),
            *extra_headers(source.handle, source.values, candidates, settings.schemes),
            *source.signposts,
            _CONTENT_TYPE,
        ),
        _body(target),
        code=ResponseCode.SUCCESS,
        name=str(source.handle),
    )


def vary_header(candidates: Candidates, accepted: AcceptHeader, *, past: bool = False) -> str:
    """The `Vary` header of a response."""
    attributes = {name for each in candidates.locations for name, _ in each.location.attributes}
    headers = [VARY_HISTORY if past else VARY]
    if "language" in attributes:
        headers.append("Accept-Language")
    if attributes.intersection(_BY_AGENT) and accepted.accepts_anything:
        headers.append("User-Agent")  # which distinguishes browsers
    return ", ".join(headers)


def alias_redirect(location: str, age: HeaderList, name: str, signposts: HeaderList, *, past: bool) -> Response:
    """Redirect from an alias to the name it stands for."""
    varies = ("Vary", VARY_HISTORY if past else VARY)
    headers: HeaderList = (("Location", location), *age, varies, *signposts)
    return Response(301, headers, code=ResponseCode.SUCCESS, name=name)


def _status(
    candidates: Candidates, chosen: SelectedLocation | None, wanted: RedirectRequest, settings: HttpSettings
) -> tuple[int, str]:
    """The status of a redirect, and what determined it."""
    texts = (
        (None if chosen is None else chosen.candidate.location.get("http_sc"), "location"),
        (candidates.get("http_sc"), "list"),
    )
    valid = [(int(text), origin) for text, origin in texts if text is not None and text.strip() in _STATUS_TEXTS]
    status, origin = valid[0] if valid else (settings.redirect_status, "settings")
    return (302, "HTTP/1.0") if wanted.is_http10 and status not in OLD_STATUSES else (status, origin)


_STATUS_TEXTS: Final = frozenset(str(status) for status in STATUSES)


def _is_record_wanted(candidate: Candidate, wanted: RedirectRequest) -> bool:
    """Whether the record is returned in a form for programs; a location with that media type or role has priority."""
    form = wanted.accepted.named_form
    if wanted.force_redirect or form is None:
        return False
    location = candidate.location
    return form not in (location.get("media-type"), location.get("ctype")) and location.get("http_role") != "conneg"


def _body(target: Target) -> bytes:
    """A page with the link, in the words of deployed resolvers, for clients that do not follow redirects."""
    return redirect_page(escape(target.location).encode(), escape(target.text).encode())


def redirect_page(href: bytes, text: bytes) -> bytes:
    """The same for parts that are already escaped."""
    return b'<html><head><title>Handle Redirect</title></head>\n<body><a href="%b">%b</a></body></html>' % (href, text)
