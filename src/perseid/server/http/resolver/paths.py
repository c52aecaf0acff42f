"""Paths and parameters of the resolver, and the URLs of a handle.

A path is one of the server's own pages, or a name in one of the declared forms (U4):

    /{name}             if the settings declare the bare form
    /{segment}/{name}   for each segment that they declare; `/hdl/{name}` always works

A declared segment and the server's own paths take precedence over a prefix of the same name, which is reached as
`/hdl/{name}`. In a path `%2F` and `/` are the same, and all slashes before the name are dropped. In the bare form
whitespace around the name and a URI scheme before it are dropped too, as deployed resolvers do (§9.2). After a segment
the name is used as it is, so that every name can be reached there; see `RequestedName.alternative`. The look-up form
takes every form of a name that the command line takes (U7), and what people paste: labels, and URLs of any resolver.

In a query (§9.3) `&` and `;` separate, and `+` is a plus sign. (In a form, which a browser has encoded, `&` separates
and `+` is a space: see `messages.Parameters.parse`.) A flag is set if it is present, whatever its value. Unknown
parameters belong to the name, if names of its namespace have a query.

The URLs of a handle, for links in headers and documents:

    {name}                       its target; with `Accept-Datetime`, the redirect to a version (TimeGate)
    {name}?noredirect            its record, as a page
    {name}?action=json-ld …      its record in another form
    {name}?at=SEQ                its state after an entry (memento)
    /timemap/link/{name}         its versions (TimeMap)
    /timemap/json/{name}

All of them start with the public URL in the settings, never with the `Host` of a request. Without a public URL there
are no absolute URLs, and so no such links.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.names.uri import (
    BYTE_ORDER_MARK,
    KNOWN_RESOLVERS,
    STRIPPED_CHARACTERS,
    Resolver,
    encode_name,
    match_resolver,
    own_resolvers,
    parse_user_input,
    strip_scheme,
)
from perseid.registry.installation.sections import HANDLE_SEGMENT
from perseid.registry.queries.links import LINK_FORMAT, LINKSET, LINKSET_JSON, Link, format_headers
from perseid.registry.queries.memento import JSON, MementoUrls
from perseid.registry.queries.signposting import BIBLIOGRAPHY, BIBTEX, CSL_JSON, JSON_LD, AlternateForm
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import BadRequest, Parameters, encode_path, parse_name, percent_decode

TIME_MAPS: Final = "timemap"
"""The path of TimeMaps: `/timemap/link/{name}` and `/timemap/json/{name}`."""

PAGES: Final = frozenset(
    (
        *("", "generate", "console", "docs", "help.html", "ledger", "openapi.json", "robots.txt", "favicon.ico"),
        *("resolver.json", "sitemap.xml", "suggest"),
    )
)
"""The server's own pages and files; the front page is the empty path."""

RESERVED_SEGMENTS: Final = frozenset(
    ("api", "console", "docs", "healthz", "hrls", "namespaces", "readyz", "static", TIME_MAPS)
)
"""First segments under which all paths belong to the server."""

_CACHED_SETTINGS: Final = 4  # a process has one, or two during a reload
_CACHED_QUOTED: Final = 256  # a page needs that of its handle twice, and those of prefixes again
_WHITESPACE: Final = " \t\r\n\f\v"
# Characters that a segment of a URI may contain unencoded (U5), so that no client or proxy changes them.
_SAFE: Final = "!$&'()*+,;=:@"
_WEB: Final = re.compile("https?://", re.IGNORECASE | re.ASCII)
_LABEL: Final = re.compile(r"\A(?:hdl\.|handle:)\s*(?=[^\s/]+/)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class OwnPage:
    """One of the server's own pages; `path` has no leading slash."""

    path: str


@dataclass(frozen=True, slots=True)
class RequestedName:
    """A name as written in a request."""

    name: str
    """Without scheme or segment; never empty."""
    segment: str = ""
    """The declared segment before it; empty for the bare form."""
    query: str | None = None
    fragment: str | None = None
    """Of a URI in the look-up form, encoded; the query of a request is in `lookup.Selection`."""

    @property
    def handle(self) -> str:
        """The handle: a name without a slash is a prefix, whose record is the prefix handle."""
        return self.name if "/" in self.name else f"{PREFIX_OF_PREFIXES}/{self.name}"

    @property
    def alternative(self) -> "RequestedName | None":
        """Another reading, for a prefix that is not hosted here: people write `/hdl/hdl:{name}`."""
        name = strip_scheme(self.name.strip(_WHITESPACE))
        return replace(self, name=name) if name not in ("", self.name) else None


@dataclass(frozen=True, slots=True)
class UnknownPath:
    """A path that is neither; after the segment `hdl` it would be a name."""

    path: str


def parse_path(path: bytes, settings: HttpSettings) -> OwnPage | RequestedName | UnknownPath:
    """Parse a path. Raises `BadRequest`."""
    decoded = parse_name(path).text.lstrip("/")
    first, slash, rest = decoded.partition("/")
    text = decoded.strip(_WHITESPACE)
    if first in get_segments(settings):
        name = rest.lstrip("/")
        return RequestedName(name, first) if name else OwnPage("")
    if text in PAGES:
        return OwnPage(text)
    if first in ("docs", "namespaces", "static") and slash:
        return OwnPage(text)
    if first == TIME_MAPS and slash:
        return OwnPage(decoded)  # contains a name, which may end in a space
    if first in RESERVED_SEGMENTS or not settings.bare:
        return UnknownPath(text)
    name = strip_scheme(text)
    return RequestedName(name) if name else OwnPage("")


def parse_search_input(field: str, settings: HttpSettings) -> RequestedName | None:
    """Parse what a user has typed or pasted into the form; None if it is empty. Raises `BadRequest`."""
    text = field.strip(STRIPPED_CHARACTERS + BYTE_ORDER_MARK).lstrip("/")
    known = (*get_resolvers(settings), *KNOWN_RESOLVERS)
    if match_resolver(f"https://{text}", KNOWN_RESOLVERS):  # the URL of a known resolver without its scheme
        text = f"https://{text}"
    if web := _WEB.match(text):
        match = match_resolver(text, known)
        path = text[match[1] :] if match else text[web.end() :].partition("/")[2]
        first, slash, rest = path.partition("/")
        path = (rest if slash and first in get_segments(settings) else path).lstrip("/")
        text = "hdl:" + re.sub("/|%2[Ff]", "/", path, count=1)  # resolvers read both alike
    else:
        text = _LABEL.sub("", text)
    query: str | None = None
    fragment: str | None = None
    try:
        reference = parse_user_input(text, known, for_lookup=True)
        name, query, fragment = str(reference.handle), reference.query, reference.fragment
    except InvalidName as problem:
        if problem.rule == "U5":
            raise BadRequest(problem.message) from problem
        # A prefix, or a name that cannot exist; the response says so.
        bare = strip_scheme(text)
        name = (bare if bare == text else re.split("[?#]", bare, maxsplit=1)[0]).lstrip("/").strip(_WHITESPACE)
    if web and query is not None:
        query = strip_parameters(query.encode()).decode() or None
    segment = "" if is_bare(name, settings) else HANDLE_SEGMENT
    return RequestedName(name, segment, query, fragment) if name else None


def get_segments(settings: HttpSettings) -> tuple[str, ...]:
    """The segments before names; the one that always works is last if it is not declared."""
    return settings.segments if HANDLE_SEGMENT in settings.segments else (*settings.segments, HANDLE_SEGMENT)


def is_bare(name: str, settings: HttpSettings) -> bool:
    """Whether a name can be reached without a segment."""
    first = name.partition("/")[0]
    if not settings.bare or name in PAGES or first in RESERVED_SEGMENTS or first in get_segments(settings):
        return False
    return strip_scheme(name.lstrip("/").strip(_WHITESPACE)) == name


@lru_cache(_CACHED_QUOTED)
def path_to(name: str, settings: HttpSettings, segment: str = "") -> str:
    """The path at which this server resolves a name: after a segment, or bare if possible."""
    if not segment and not is_bare(name, settings):
        segment = HANDLE_SEGMENT
    return f"/{quote(segment, safe=_SAFE)}/{encode_name(name)}" if segment else f"/{encode_name(name)}"


@lru_cache(_CACHED_QUOTED)
def quote_name(name: str) -> str:
    """A name or prefix as one segment of a path."""
    return quote(name, safe="")


def absolute_url(path: str, settings: HttpSettings) -> str:
    """A path with the public URL of this server, if there is one."""
    return settings.public_url + path


@lru_cache(_CACHED_SETTINGS)
def get_resolvers(settings: HttpSettings) -> tuple[Resolver, ...]:
    """The resolvers at the public URL (U4), the one to cite first; none without a public URL."""
    return own_resolvers(settings.public_url, (*([""] if settings.bare else ()), *get_segments(settings)))


def get_cited_resolver(settings: HttpSettings) -> Resolver | None:
    """The resolver in citations: this server, if it has a public URL."""
    return next(iter(get_resolvers(settings)), None)


def encode_query(query: bytes) -> str:
    """Encode a query as received for use in a header."""
    return quote(query, safe="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") if query else ""


MAX_PARAMETERS: Final = 200
"""Parameters of a query that are parsed: typical requests have at most a dozen."""

MAX_FORM: Final = 16_384
"""Bytes of the longest form: the longest name, percent-encoded, needs 6,144."""

RESOLVER_PARAMETERS: Final = frozenset(
    (
        "action",
        "at",
        "auth",
        "before",
        "cert",
        "country",
        "ignore_aliases",
        "index",
        "ip",
        "locatt",
        "noredirect",
        "redirectionHeaders",
        "type",
        "urlappend",
    )
)
"""The resolver's own parameters; the rest of a query belongs to the name."""

_INDEX: Final = re.compile("[0-9]{1,10}")
_LARGEST_INDEX: Final = 0x7FFF_FFFF
_SEPARATOR: Final = re.compile(b"[&;]")


class Action(Enum):
    """What to do with a name."""

    REDIRECT = "redirect"
    VALUES = "showvalues"
    LOCATIONS = "showurls"
    METADATA = "metadata"
    API = "api"
    EXPLAIN = "explain"
    JSON_LD = "json-ld"
    LINKSET_JSON = "linkset-json"
    LINKSET = "linkset"
    CSL_JSON = "csl-json"
    BIBTEX = "bibtex"
    CITATION = "citation"
    HISTORY = "history"
    FEED = "feed"
    QR = "qr"


FORMS: Final[Mapping[Action, str]] = {
    Action.JSON_LD: JSON_LD,
    Action.LINKSET_JSON: LINKSET_JSON,
    Action.LINKSET: LINKSET,
    Action.CSL_JSON: CSL_JSON,
    Action.BIBTEX: BIBTEX,
    Action.CITATION: BIBLIOGRAPHY,
}
"""The actions that return a record in another form, so that each form has a URL of its own."""

_FORM_QUERIES: Final = tuple([(f"?action={action.value}", media_type) for action, media_type in FORMS.items()])
_ACTIONS: Final = {action.value: action for action in Action}


def parse_query(query: bytes) -> Parameters:
    """Parse the parameters of a query; those after `MAX_PARAMETERS` are ignored."""
    parts = [part.partition(b"=") for part in _SEPARATOR.split(query, MAX_PARAMETERS)[:MAX_PARAMETERS] if part]
    return Parameters(tuple([(_decode(name), _decode(value)) for name, _, value in parts]))


def parse_indexes(parameters: Parameters) -> tuple[int, ...]:
    """Parse the requested indexes; invalid ones are ignored."""
    indexes = [int(text) for text in parameters.all("index") if _INDEX.fullmatch(text)]
    return tuple([index for index in indexes if index <= _LARGEST_INDEX])


def parse_action(parameters: Parameters) -> Action | None:
    """Parse the requested action: an unknown one is a redirect. None if there is none."""
    text = parameters.first("action")
    if text is not None:
        return _ACTIONS.get(text, Action.REDIRECT)
    return Action.VALUES if "noredirect" in parameters else None


def strip_parameters(query: bytes) -> bytes:
    """Remove the resolver's own parameters from a query."""
    rest = b""
    start = 0
    for end in (*[match.start() for match in _SEPARATOR.finditer(query)], len(query)):
        part = query[start:end]
        if part and _decode(part.partition(b"=")[0]) not in RESOLVER_PARAMETERS:
            rest += (query[start - 1 : start] if rest else b"") + part
        start = end + 1
    return rest


def _decode(data: bytes) -> str:
    """Percent-decode once; invalid escapes stay, and invalid UTF-8 becomes replacement characters."""
    return percent_decode(data).decode("utf-8", "replace")


# URLs of a handle

API_HANDLES_PATH: Final = "/api/handles/"

TIME_MAP_FORMS: Final[Mapping[str, str]] = {"link": LINK_FORMAT, "json": JSON}
"""Forms in the path of a TimeMap, and their media types."""

MAX_SIGNPOSTED_NAME: Final = 256
"""Length of the longest encoded name whose redirects carry all links: they repeat it three times, and proxies allow 4
to 8 KiB of headers. Longer names get only the first link, which RFC 7089 requires. Nearly all names are shorter
than a hundred characters."""

MAX_LINK_BYTES: Final = 2_048
"""Bytes of all links to versions in headers: half of the limit for all links. If the first does not fit, there are
none."""


def record_url(name: str, settings: HttpSettings, *parameters: str) -> str:
    """The URL of a name, with parameters that are already encoded."""
    url = absolute_url(path_to(name, settings), settings)
    return f"{url}?{'&'.join(parameters)}" if parameters else url


def get_forms(name: str, settings: HttpSettings, at: int | None = None) -> tuple[AlternateForm, ...]:
    """The other forms of a record, now or after an entry; none without a public URL."""
    if not settings.public_url:
        return ()
    url, then = record_url(name, settings), "" if at is None else f"at={at}"
    tail = then and f"&{then}"
    forms = [AlternateForm(f"{url}{query}{tail}", media_type) for query, media_type in _FORM_QUERIES]
    plain = absolute_url(API_HANDLES_PATH + encode_path(name), settings)
    return (*forms, AlternateForm(f"{plain}?{then}" if then else plain, JSON))


def get_addresses(name: str, settings: HttpSettings) -> MementoUrls | None:
    """The URLs of a handle's history; None without a public URL."""
    if not settings.public_url:
        return None
    original = record_url(name, settings)
    return MementoUrls(
        original,
        original,
        lambda media_type, before: time_map_url(name, settings, media_type, before),
        lambda seq: record_url(name, settings, f"at={seq}"),
    )


def get_api_addresses(name: str, settings: HttpSettings) -> MementoUrls | None:
    """The same for the record in the API."""
    if not settings.public_url:
        return None
    original = absolute_url(API_HANDLES_PATH + encode_path(name), settings)
    return MementoUrls(
        original,
        original,
        lambda media_type, before: time_map_url(name, settings, media_type, before),
        lambda seq: f"{original}?at={seq}",
    )


def time_map_url(name: str, settings: HttpSettings, media_type: str, before: int | None = None) -> str:
    """The URL of a TimeMap: of the versions before an entry, or of the latest."""
    form = next(form for form, type_ in TIME_MAP_FORMS.items() if type_ == media_type)
    url = absolute_url(f"/{TIME_MAPS}/{form}/{encode_name(name)}", settings)
    return url if before is None else f"{url}?before={before}"


def redirect_links(name: str, settings: HttpSettings, *, with_map: bool = True) -> str | None:
    """The links of a redirect as one header: to the history and to the linkset, which has all other links.

    Redirects are the most frequent responses and should stay small. `with_map` is False for a name without TimeMap.
    """
    if not settings.public_url:
        return None
    original, is_short = record_url(name, settings), len(encode_name(name)) <= MAX_SIGNPOSTED_NAME
    if len(original) > MAX_LINK_BYTES:
        return None
    links = [Link(original, "original timegate")]
    if is_short and with_map:
        links.append(Link(time_map_url(name, settings, LINK_FORMAT), "timemap", type=LINK_FORMAT))
    if is_short:
        linkset = record_url(name, settings, f"action={Action.LINKSET_JSON.value}")
        links.append(Link(linkset, "linkset", type=LINKSET_JSON))
    return ", ".join(format_headers(links))


def link_pieces(path: str, settings: HttpSettings) -> tuple[str, ...]:
    """The parts of that header around the name, for the fast path; `path` precedes the name in URLs."""
    original, time_map = f"{settings.public_url}{path}", f"{settings.public_url}/{TIME_MAPS}/link/"
    return (
        f"<{original}",
        f'>; rel="original timegate", <{time_map}',
        f'>; rel="timemap"; type="{LINK_FORMAT}", <{original}',
        f'?action={Action.LINKSET_JSON.value}>; rel="linkset"; type="{LINKSET_JSON}"',
    )
