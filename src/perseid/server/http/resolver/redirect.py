"""URLs of records as they go out in a header: checked, trimmed, and encoded (web resolver, §9.5).

Whoever writes a record may write anything where a URL is expected. Nobody is sent to it unless it begins with a scheme
that the settings permit, holds no control characters and is of a bearable length. An international host is written in
ASCII (IDNA); then every octet outside a fixed set is percent-encoded. Percent signs stay as they are: the text may be
encoded already, and to encode it twice would lead elsewhere.

Headers that a record asks for: `Link` from locations with a relation, and lines of `10320/headers` (§10.5).

A record may be anybody's, and what stands in a header is obeyed by browsers, caches and servers on the way. So there is
a short list of names that a record may set, each of which only says something about the thing; a value goes out if it
is printable ASCII; links lead to permitted schemes and have relations that only say what a thing is to another; and all
of it together has a bearable length. Lines for the head of a page, which `10320/headers` may hold too, are not put
there: they would be markup of strangers on our pages.

Where a name leads, and the answer that sends somebody there (§9.4 to §9.6, §10).

Everything here follows from its arguments: the values of a record, the places that they name, what the request wants,
and one random number. So a redirection can be made by whoever has the values, from wherever they come, and is the same.

A place that nobody may be sent to (see `urls`) counts as if it were not there: of several URLs the first that can be
used is. If none can be, there is no redirection, and the record is shown.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import islice
from typing import Final
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.location_choice import Address, SelectedLocation, SelectionCriteria, select_location
from perseid.records.locations import Candidate, Candidates, Location, Locations, expand_template
from perseid.records.record import ascending
from perseid.records.types import has_type
from perseid.records.value import Value
from perseid.records.xml import MAX_XML_BYTES, is_true
from perseid.registry.queries.signposting import RELATIONS
from perseid.server.http.caching import cache_headers, min_ttl
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import VARY, VARY_HISTORY, AcceptHeader, Preference
from perseid.wire.codes import ResponseCode

MAX_URL: Final = 8_192
"""Characters of the longest URL that goes out, encoded: what common browsers and servers take in a header."""

SAFE_CHARACTERS: Final = "-._~!$()*,:@/;=+&'?#[]%"
"""What stays as it is, besides letters and digits of ASCII."""

_WHITESPACE: Final = " \t\r\n\f\v"
_MAX_HOST: Final = 253  # octets of the longest name that DNS has; to convert a longer one costs time for nothing
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):")
_WITH_HOST: Final = frozenset(("http", "https", "ftp"))
_PARTS: Final = re.compile(r"(//(?:[^/?#\\]*@)?)([^/?#\\]*?)((?::[0-9]*)?)((?:[/?#\\].*)?)", re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\]")
_ASCII_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")


class InvalidTarget(ValueError):
    """Nobody is sent there; the text says why, as a clause."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where somebody can be sent."""

    text: str
    """As the record has it, without blanks around it."""
    location: str
    """As it goes out, in ASCII."""


def parse_target(text: str, schemes: Collection[str], appended: str = "") -> Target:
    """A URL of a record as it goes out, with what the request appends to it. Raises `Unsuitable`."""
    text = text.strip(_WHITESPACE)
    location = _encode_target(text, schemes)
    if appended:
        text += appended
        longer = _encode_target(text, schemes)
        if _get_authority(longer) != _get_authority(location):
            raise InvalidTarget("what is appended to the URL would lead to another host")
        location = longer
    return Target(text, location)


def encode_url(text: str) -> str:
    """Percent-encode every octet of a text in UTF-8 that does not belong in a URL; percent signs stay as they are."""
    return quote(text, safe=SAFE_CHARACTERS)


def get_scheme(text: str) -> str:
    """The scheme of a URL in lower case; empty if it has none."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def _encode_target(text: str, schemes: Collection[str]) -> str:
    if not text:
        raise InvalidTarget("it is empty")
    if _CONTROLS.search(text):
        raise InvalidTarget("it holds control characters")
    if len(text) > MAX_URL:
        raise InvalidTarget(f"it has {len(text):,} characters; {MAX_URL:,} are the most")
    scheme = get_scheme(text)
    if not scheme:
        raise InvalidTarget("it has no scheme, so it leads nowhere by itself")
    if scheme not in schemes:
        raise InvalidTarget("its scheme is not one of those that this server redirects to")
    location = encode_url(_with_ascii_host(text, scheme) if scheme in _WITH_HOST else text)
    if len(location) > MAX_URL:
        raise InvalidTarget(f"it has {len(location):,} characters; {MAX_URL:,} are the most")
    return location


def _with_ascii_host(text: str, scheme: str) -> str:
    """The URL with its host in ASCII."""
    parts = _PARTS.fullmatch(text, len(scheme) + 1)
    if parts is None or not parts[2]:
        raise InvalidTarget("it names no host")
    before, host, port, rest = parts.groups()
    if rest.startswith("\\"):
        raise InvalidTarget("its host ends in a backslash, which some take for a slash and some do not")
    if not host.isascii():
        return f"{text[: len(scheme) + 1]}{before}{_to_ascii(host)}{port}{rest}"
    if _HOST.fullmatch(host) is None:
        raise InvalidTarget("its host is no name of a host")
    return text


def _to_ascii(host: str) -> str:
    """The host by the rules of IDNA."""
    try:
        converted = host.encode("idna").decode("ascii") if len(host) <= _MAX_HOST else ""
    except UnicodeError:
        converted = ""
    # Characters that look like a slash or an at sign become one, and then the host would be another.
    if not _ASCII_HOST.fullmatch(converted):
        raise InvalidTarget("its host is no name of a host")
    return converted


def _get_authority(location: str) -> str:
    """What must stay the same when something is appended: scheme and host, or the addresses of a letter."""
    scheme = get_scheme(location)
    if scheme in _WITH_HOST:
        parts = _PARTS.fullmatch(location, len(scheme) + 1)
        return location[: parts.end(3)] if parts else location
    return re.split("[?#]", location, maxsplit=1)[0]


HEADERS: Final = "10320/headers"
LINKS: Final = "10320/links"

_LINK: Final = "Link"

ALLOWED_HEADERS: Final = {name.lower(): name for name in ("Deprecation", _LINK, "Sunset", "X-Robots-Tag")}
"""The headers that a record may set: what it is linked with, since when and until when it holds, whether it is to be
listed. None of them changes how the answer itself is read, kept or passed on. `Memento-Datetime` is not one of them:
with it the server itself says that an answer is about the past."""

ALLOWED_RELATIONS: Final = RELATIONS | {"canonical"}
"""The registered relations that a link of a record may have, besides those that are URIs. On others browsers act
(`stylesheet`, `preload`), or the server speaks for itself with them (`timegate`, `linkset`). By `canonical` records of
deployed servers say which of several places is the main one."""

MAX_HEADERS: Final = 50
"""Headers that a record may add to an answer."""

MAX_HEADER_BYTES: Final = 4_096
"""Octets of all of them together: servers on the way have room for 4 to 8 KiB of headers."""

# A link as a line may have it (RFC 8288, section 3), whole; of the names of parameters only those that are known.
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
_MAX_LISTS: Final = 20  # values of links that are read
_MAX_LOCATIONS: Final = 2_000  # locations that are looked at for a relation
_MAX_LINES: Final = 200  # lines of headers that are looked at

Header = tuple[str, str]


def extra_headers(
    handle: Handle, values: Iterable[Value], candidates: Candidates, schemes: Collection[str]
) -> tuple[Header, ...]:
    """The headers that a record asks for, lines first, as far as they may go out."""
    record = [value for value in ascending(values) if value.is_public]
    hrefs = {place.location.get("id"): place.href for place in reversed(candidates.places)}
    own = [place for place in candidates.places if not place.from_namespace]
    others = [place for place in candidates.places if place.from_namespace]
    found = [
        *_header_lines(handle, record, schemes),
        *_link_headers(_linked_locations(handle, record, own), hrefs, schemes),
    ]
    if not is_true(candidates.get("suppressNsHeaders")) and not (
        found and is_true(candidates.get("suppressNsHeadersIfLocalHeaders"))
    ):
        found += _link_headers([(place.href, place.location) for place in others], hrefs, schemes)
    room = MAX_HEADER_BYTES
    kept: list[Header] = []
    for name, value in found[:MAX_HEADERS]:
        room -= len(name) + len(value) + 4
        if room < 0:
            break
        kept.append((name, value))
    return tuple(kept)


def _header_lines(handle: Handle, record: list[Value], schemes: Collection[str]) -> Iterator[Header]:
    """Lines `Name: value` with permitted names."""
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


def _is_valid_link(content: str, schemes: Collection[str]) -> bool:
    """Whether every link of a `Link` line may go out: what cannot be read to its end may not, nor what names its
    relation twice, which is not one (RFC 8288, section 3.3).
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


def _is_valid_target(address: str, schemes: Collection[str]) -> bool:
    try:
        return parse_target(address, schemes).location == address
    except InvalidTarget:
        return False


def _is_allowed_relation(relation: str) -> bool:
    """Whether all words of a relation may go out."""
    return bool(relation.strip()) and _allowed_relations(relation) == " ".join(relation.split())


def _allowed_relations(relation: str) -> str:
    """The words of a relation that may go out."""
    return " ".join([word for word in relation.split() if ":" in word or word.lower() in ALLOWED_RELATIONS])


def _linked_locations(handle: Handle, record: list[Value], places: list[Candidate]) -> Iterator[tuple[str, Location]]:
    """The locations of a record, and those that are there to be linked and nothing else."""
    yield from ((place.href, place.location) for place in places)
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
    locations: Iterable[tuple[str, Location]], hrefs: Mapping[str | None, str], schemes: Collection[str]
) -> list[Header]:
    """A header for each location with a relation that may be linked."""
    with_relation = [pair for pair in islice(locations, _MAX_LOCATIONS) if pair[1].get("rel")][:MAX_HEADERS]
    found = [_link(href, location, hrefs, schemes) for href, location in with_relation]
    return [(_LINK, value) for value in found if value is not None]


def _link(href: str, location: Location, hrefs: Mapping[str | None, str], schemes: Collection[str]) -> str | None:
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
    """A title; in the long form where it is not ASCII, or has a language."""
    if not language and _PRINTABLE.fullmatch(title):
        return f"title={_quote(title)}"
    tag = language if re.fullmatch("[A-Za-z0-9-]{0,35}", language) else ""
    return f"title*=UTF-8'{tag}'{quote(title, safe='')}"


def _quote(text: str) -> str:
    """A quoted string of HTTP."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


STATUSES: Final = frozenset((301, 302, 303, 307, 308))
"""What a record may choose as the status of a redirection."""

OLD_STATUSES: Final = frozenset((301, 302))
"""Those that clients of HTTP/1.0 know."""

_CONTENT_TYPE: Final = ("Content-Type", "text/html;charset=utf-8")
_BY_PLACE: Final = ("addresses", "country")  # attributes by which it matters where the client is
_BY_AGENT: Final = ("http_role", "ctype", "media-type")


@dataclass(frozen=True, slots=True)
class RedirectRequest:
    """What a request wants, as far as it decides where somebody is sent."""

    accepted: AcceptHeader = field(default_factory=lambda: AcceptHeader(()))
    own: tuple[Preference, ...] = ()
    """Attributes that the request names itself (`locatt`)."""
    derived: tuple[Preference, ...] = ()
    """Attributes that follow from its headers."""
    append: str = ""
    """What is appended to the URL."""
    country: str | None = None
    address: Address | None = None
    force_redirect: bool = False
    """Whether it asks for a redirection in so many words, so that its headers do not turn it into something else."""
    headers_only: bool = False
    """Whether the headers of the redirection are wanted with status 200."""
    no_cache: bool = False
    """Whether the answer is wanted from the source, and not from caches."""
    is_http10: bool = False
    """Whether it is a client of HTTP/1.0."""

    @property
    def preferences(self) -> SelectionCriteria:
        """All attributes, those named first."""
        return SelectionCriteria((*self.own, *self.derived), self.country, self.address)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where somebody is sent, and what was looked at on the way."""

    chosen: SelectedLocation | None
    target: Target | None
    status: int
    status_from: str
    """What chose the status: the location, its list, or the settings."""
    invalid_targets: Mapping[str, str]
    """Places that nobody is sent to, and why."""


def choose_redirect(candidates: Candidates, wanted: RedirectRequest, settings: HttpSettings, number: float) -> Redirect:
    """Where a request is sent. `number` is random, from 0 up to but without 1."""
    targets: dict[str, Target] = {}
    invalid_targets: dict[str, str] = {}
    for place in candidates.places:
        if place.href in targets or place.href in invalid_targets:
            continue
        try:
            targets[place.href] = parse_target(place.href, settings.schemes)
        except InvalidTarget as problem:
            invalid_targets[place.href] = str(problem)
    if invalid_targets:
        kept = tuple([place for place in candidates.places if place.href in targets])
        candidates = replace(candidates, places=kept)
    chosen = select_location(candidates, wanted.preferences, number)
    status, status_from = _status(candidates, chosen, wanted, settings)
    return Redirect(
        chosen, None if chosen is None else targets[chosen.place.href], status, status_from, invalid_targets
    )


@dataclass(frozen=True, slots=True)
class RedirectSource:
    """What is known of a name."""

    handle: Handle
    values: tuple[Value, ...]
    """Those that were asked for and everybody may read."""
    candidates: Candidates
    """The places that they name."""
    used: tuple[Value, ...]
    """All values that an answer rests on: those of aliases on the way too."""
    signposts: HeaderList = ()
    """What goes with every answer about the name: links, and when that was."""
    past: bool = False
    """Whether it is told what was."""
    fixed: bool = False
    """Whether it is told what was after an entry, which never changes."""


def redirect_response(
    known: RedirectSource, wanted: RedirectRequest, settings: HttpSettings, number: float, now: float
) -> Response | None:
    """The answer that sends somebody to where a name leads; None if it leads nowhere, or the record is wanted.

    Raises `Unsuitable` if what the request appends to the URL cannot be.
    """
    candidates = known.candidates
    redirect = choose_redirect(candidates, wanted, settings, number)
    if redirect.chosen is None or redirect.target is None or _is_record_wanted(redirect.chosen.place, wanted):
        return None
    target = parse_target(redirect.target.text, settings.schemes, wanted.append) if wanted.append else redirect.target
    place_matters = any(place.location.get(name) is not None for place in candidates.places for name in _BY_PLACE)
    age = cache_headers(
        min_ttl(known.used, now), now, shared=not place_matters, no_cache=wanted.no_cache, fixed=known.fixed
    )
    return Response(
        200 if wanted.headers_only else redirect.status,
        (
            ("Location", target.location),
            *age,
            ("Vary", vary_header(candidates, wanted.accepted, past=known.past)),
            *extra_headers(known.handle, known.values, candidates, settings.schemes),
            *known.signposts,
            _CONTENT_TYPE,
        ),
        _body(target),
        code=ResponseCode.SUCCESS,
        name=str(known.handle),
    )


def vary_header(candidates: Candidates, accepted: AcceptHeader, *, past: bool = False) -> str:
    """Which headers of a request an answer depends on."""
    named = {name for place in candidates.places for name, _ in place.location.attributes}
    found = [VARY_HISTORY if past else VARY]
    if "language" in named:
        found.append("Accept-Language")
    if named.intersection(_BY_AGENT) and accepted.accepts_anything:
        found.append("User-Agent")  # by which it is told whether somebody browses
    return ", ".join(found)


def alias_redirect(location: str, age: HeaderList, name: str, signposts: HeaderList, *, past: bool) -> Response:
    """The answer that tells a client the name that the one it asked for is an alias of."""
    varies = ("Vary", VARY_HISTORY if past else VARY)
    headers: HeaderList = (("Location", location), *age, varies, *signposts)
    return Response(301, headers, code=ResponseCode.SUCCESS, name=name)


def _status(
    candidates: Candidates, chosen: SelectedLocation | None, wanted: RedirectRequest, settings: HttpSettings
) -> tuple[int, str]:
    """The status of a redirection, and what chose it."""
    written = (
        (None if chosen is None else chosen.place.location.get("http_sc"), "location"),
        (candidates.get("http_sc"), "list"),
    )
    found = [(int(text), where) for text, where in written if text is not None and text.strip() in _STATUS_TEXTS]
    status, where = found[0] if found else (settings.redirect_status, "settings")
    return (302, "HTTP/1.0") if wanted.is_http10 and status not in OLD_STATUSES else (status, where)


_STATUS_TEXTS: Final = frozenset(str(status) for status in STATUSES)


def _is_record_wanted(place: Candidate, wanted: RedirectRequest) -> bool:
    """Whether the record is given in a form for programs instead: a location that is meant for such goes before it."""
    form = wanted.accepted.named_form
    if wanted.force_redirect or form is None:
        return False
    location = place.location
    is_meant = form in (location.get("media-type"), location.get("ctype")) or location.get("http_role") == "conneg"
    return not is_meant


def _body(target: Target) -> bytes:
    """A page with the link, in the words of deployed resolvers, for clients that do not follow by themselves."""
    return redirect_page(escape(target.location).encode(), escape(target.text).encode())


def redirect_page(href: bytes, text: bytes) -> bytes:
    """That page, of what is escaped already."""
    return b'<html><head><title>Handle Redirect</title></head>\n<body><a href="%b">%b</a></body></html>' % (href, text)
