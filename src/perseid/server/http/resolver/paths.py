"""What a path asks for: one of the server's own pages, or a name in one of the forms that this server declares (U4).

    /{name}             if the settings declare the bare form
    /{segment}/{name}   for each segment that they declare; `/hdl/{name}` always works

A declared segment and the server's own paths go before a prefix of the same name, which is reached as `/hdl/{name}`.
In a path `%2F` and `/` are the same, and all slashes before the name are dropped. In the bare form blanks around the
name and the scheme of a URI before it are dropped as well, as deployed resolvers do (§9.2). Behind a segment the name
is taken as it is, so that every name can be reached there; see `Named.otherwise`.

The parameters of the resolver (§9.3), in a query or a form, and what they mean.

In a query `&` and `;` separate, and `+` is a plus. (In a form, which a browser has written, `&` separates and `+` is a
blank: that is `targets.Parameters.parse`.) Flags count by being there, whatever they say. What is not ours belongs to
the name, where a name has a query of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote

from perseid.names.errors import NameProblem
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.names.uri import KNOWN_RESOLVERS, Resolver, match_resolver
from perseid.registry.queries.links import LINKSET, LINKSET_JSON
from perseid.registry.queries.signposting import BIBLIOGRAPHY, BIBTEX, CSL_JSON, JSON_LD
from perseid.server.http.context import HANDLE_SEGMENT, HttpSettings
from perseid.server.http.targets import Parameters, parse_name, percent_decode

GENERATOR: Final = "generate"
"""The page at which new names are made."""

TIME_MAPS: Final = "timemap"
"""Below it is told which versions of a name there are: `/timemap/link/{name}` and `/timemap/json/{name}`."""

PAGES: Final = frozenset(
    ("", GENERATOR, "docs", "help.html", "openapi.json", "robots.txt", "favicon.ico", "resolver.json")
)
"""The server's own pages and files; the front page has no name."""

RESERVED_SEGMENTS: Final = frozenset(("api", "docs", "healthz", "hrls", "readyz", "static", TIME_MAPS))
"""First segments below which everything is the server's own."""

_WHITESPACE: Final = " \t\r\n\f\v"
# What a segment of a URI may hold unencoded (U5), so that no client on the way sees a reason to change it.
_SAFE: Final = "!$&'()*+,;=:@"
_INFO: Final = re.compile("info:(?:doi|hdl)/", re.IGNORECASE | re.ASCII)
_SCHEME: Final = re.compile("(?:hdl|doi):", re.IGNORECASE | re.ASCII)
_URN: Final = re.compile("urn:(?:hdl|doi|eidr):", re.IGNORECASE | re.ASCII)
_WEB: Final = re.compile("https?://", re.IGNORECASE | re.ASCII)
_LABEL: Final = re.compile(r"(?:hdl\.|(?:hdl|doi|handle):)\s*(?=[^\s/]+/)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class OwnPage:
    """One of the server's own pages; `path` has no slash before it."""

    path: str


@dataclass(frozen=True, slots=True)
class RequestedName:
    """A name, as it is written."""

    name: str
    """Without what stood before it; never empty."""
    segment: str = ""
    """The declared segment behind which it stood; empty for the bare form."""

    @property
    def handle(self) -> str:
        """The handle that it means: a name without a slash is a prefix, whose record is the prefix handle."""
        return self.name if "/" in self.name else f"{PREFIX_OF_PREFIXES}/{self.name}"

    @property
    def alternative(self) -> "RequestedName | None":
        """What else may be meant where no such prefix is served here: people write `/hdl/hdl:{name}`."""
        name = strip_scheme(self.name.strip(_WHITESPACE))
        return RequestedName(name, self.segment) if name not in ("", self.name) else None


@dataclass(frozen=True, slots=True)
class UnknownPath:
    """A path that is neither; behind the segment `hdl` it would be a name."""

    path: str


def parse_path(path: bytes, settings: HttpSettings) -> OwnPage | RequestedName | UnknownPath:
    """What a path asks for. Raises `Malformed`."""
    given = parse_name(path).text.lstrip("/")
    first, slash, rest = given.partition("/")
    text = given.strip(_WHITESPACE)
    if first in get_segments(settings):
        name = rest.lstrip("/")
        return RequestedName(name, first) if name else OwnPage("")
    if text in PAGES:
        return OwnPage(text)
    if first in ("docs", "static") and slash:
        return OwnPage(text)
    if first == TIME_MAPS and slash:
        return OwnPage(given)  # with a name in it, of which a blank at the end may be a part
    if first in RESERVED_SEGMENTS or not settings.bare:
        return UnknownPath(text)
    name = strip_scheme(text)
    return RequestedName(name) if name else OwnPage("")


def parse_search_input(field: str, settings: HttpSettings) -> RequestedName | None:
    """What somebody has typed or pasted into the form; None if nothing. Raises `Malformed`."""
    text = field.strip(_WHITESPACE + "\N{ZERO WIDTH NO-BREAK SPACE}").lstrip("/")
    web = _WEB.match(text)
    if web is not None or _begins_with_known_host(text):
        # What stands behind the host is a path of whatever resolver it is, with its escapes.
        path = text[web.end() :].partition("/")[2] if web else text.partition("/")[2]
        path = re.split("[?#]", path, maxsplit=1)[0]
        text = parse_name(path.encode("utf-8", "replace")).text
        first, _, rest = text.partition("/")
        if first in get_segments(settings):
            text = rest
    else:
        text = _LABEL.sub("", text, count=1)
    name = strip_scheme(text.lstrip("/").strip(_WHITESPACE))
    return RequestedName(name, "" if is_bare(name, settings) else HANDLE_SEGMENT) if name else None


def strip_scheme(name: str) -> str:
    """A name without the scheme of a URI before it (§9.2)."""
    for form in (_INFO, _SCHEME):
        if found := form.match(name):
            return name[found.end() :]
    if found := _URN.match(name):
        name = name[found.end() :]
        colon, slash = name.find(":"), name.find("/")
        if colon >= 0 and (slash < 0 or colon < slash):
            return f"{name[:colon]}/{name[colon + 1 :]}"
    return name


def get_segments(settings: HttpSettings) -> tuple[str, ...]:
    """The segments behind which names stand; the one that always works comes last if nobody declared it."""
    return settings.segments if HANDLE_SEGMENT in settings.segments else (*settings.segments, HANDLE_SEGMENT)


def is_bare(name: str, settings: HttpSettings) -> bool:
    """Whether a name can be reached without a segment before it."""
    first = name.partition("/")[0]
    if not settings.bare or name in PAGES or first in RESERVED_SEGMENTS or first in get_segments(settings):
        return False
    return strip_scheme(name.lstrip("/").strip(_WHITESPACE)) == name


def path_to(name: str, settings: HttpSettings, segment: str = "") -> str:
    """The path at which this server resolves a name: behind a declared segment, or bare where that is possible."""
    if not segment and not is_bare(name, settings):
        segment = HANDLE_SEGMENT
    return f"/{quote(segment, safe=_SAFE)}/{encode_name(name)}" if segment else f"/{encode_name(name)}"


def encode_name(name: str) -> str:
    """A name as it stands at the end of a path.

    Slashes of the suffix are encoded (U5). A suffix of dots alone would be taken for a step up in the path, encoded or
    not, so there the slash before it is encoded as well.
    """
    prefix, slash, suffix = name.partition("/")
    if suffix in (".", ".."):
        slash = "%2F"
    return f"{quote(prefix, safe=_SAFE)}{slash}{quote(suffix, safe=_SAFE)}"


def absolute_url(path: str, settings: HttpSettings) -> str:
    """A path of this server as others can use it: with the declared address before it, if there is one."""
    return settings.public_url + path


def get_resolvers(settings: HttpSettings) -> tuple[Resolver, ...]:
    """The forms that this server declares, with its address (U4); none if it has no address."""
    if not settings.public_url:
        return ()
    found = [settings.public_url] if settings.bare else []
    found += [f"{settings.public_url}/{segment}" for segment in get_segments(settings)]
    try:
        return tuple([Resolver.parse(text) for text in found])
    except NameProblem:
        return ()  # an address with a path: names stand behind it all the same


def encode_query(query: bytes) -> str:
    """A query as it came, as it can stand in a header."""
    return quote(query, safe="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") if query else ""


def _begins_with_known_host(text: str) -> bool:
    """Whether somebody has left out the scheme of a resolver's address."""
    return match_resolver(f"https://{text}", KNOWN_RESOLVERS) is not None


MAX_PARAMETERS: Final = 200
"""Parameters of a query that are looked at: a request for many kinds of values names a dozen."""

MAX_FORM: Final = 16_384
"""Octets of the longest form: the longest name in it, percent-encoded, needs 6,144."""

RESOLVER_PARAMETERS: Final = frozenset(
    (
        "action",
        "at",
        "auth",
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
"""What the resolver understands; the rest of a query is the name's own."""

_INDEX: Final = re.compile("[0-9]{1,10}")
_LARGEST_INDEX: Final = 0x7FFF_FFFF
_SEPARATOR: Final = re.compile(b"[&;]")


class Action(Enum):
    """What is to be done with a name."""

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


FORMS: Final[Mapping[Action, str]] = {
    Action.JSON_LD: JSON_LD,
    Action.LINKSET_JSON: LINKSET_JSON,
    Action.LINKSET: LINKSET,
    Action.CSL_JSON: CSL_JSON,
    Action.BIBTEX: BIBTEX,
    Action.CITATION: BIBLIOGRAPHY,
}
"""The actions that give a record in a form of `registry.record_forms`: so that each form has an address of its own."""

_ACTIONS: Final = {action.value: action for action in Action}


def parse_query(query: bytes) -> Parameters:
    """The parameters of a query; there may be more than anybody reads, and those do not count."""
    parts = [part.partition(b"=") for part in _SEPARATOR.split(query, MAX_PARAMETERS)[:MAX_PARAMETERS] if part]
    return Parameters(tuple([(_decode(name), _decode(value)) for name, _, value in parts]))


def parse_indexes(parameters: Parameters) -> tuple[int, ...]:
    """The indexes that are asked for; one that cannot be read does not count."""
    found = [int(text) for text in parameters.all("index") if _INDEX.fullmatch(text)]
    return tuple([index for index in found if index <= _LARGEST_INDEX])


def parse_action(parameters: Parameters) -> Action | None:
    """What is asked for in so many words: an unknown word is a redirection. None if nothing is."""
    named = parameters.first("action")
    if named is not None:
        return _ACTIONS.get(named, Action.REDIRECT)
    return Action.VALUES if "noredirect" in parameters else None


def strip_parameters(query: bytes) -> bytes:
    """A query without the parameters of the resolver, and otherwise as it was."""
    rest = b""
    start = 0
    for end in (*[found.start() for found in _SEPARATOR.finditer(query)], len(query)):
        part = query[start:end]
        if part and _decode(part.partition(b"=")[0]) not in RESOLVER_PARAMETERS:
            rest += (query[start - 1 : start] if rest else b"") + part
        start = end + 1
    return rest


def _decode(data: bytes) -> str:
    """Percent-decoded once; what is no escape stays, and what is no UTF-8 becomes a replacement character."""
    return percent_decode(data).decode("utf-8", "replace")
