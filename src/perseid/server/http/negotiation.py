"""Content negotiation, caching headers, conditional requests and CORS.

**Content negotiation** chooses the representation of a record, and which of several locations a client prefers.
`Accept` and `Accept-Language` are weighted lists. They are parsed leniently: an invalid entry is ignored, and a header
without valid entries counts as absent. Weights are integers in thousandths, their full precision. Of several entries
that match a media type the most specific one applies, and of two equally specific ones the higher one.

Representations, in the server's order of preference:

    redirection   to the target; matches any `Accept`
    page          the record as HTML
    JSON          the record as in the API
    other forms   metadata and citations: `registry.queries.signposting`

The client is redirected unless it names the media type of a form with a higher weight than HTML: programs that accept
anything besides JSON (`application/json, */*`) are redirected, and so are browsers. Of several such types the one with
the highest weight is returned. If there is no target, or the record itself is requested, the named form is returned; or
JSON, if its weight is higher than that of HTML; otherwise the page, even if the client accepts none of these: it says
more than an empty 406 would.

**Caching**: how long a response may be cached follows from its values (`registry.policy.resolution`). `Expires` is for
old caches, `Cache-Control` for all others. The state after an earlier ledger entry never changes, except when data is
hidden or redacted later, and that must disappear from caches too. It is cached for the same two days, whatever its
TTLs, without revalidation.

**Conditions** use entity tags (RFC 9110, 8.8.3 and 13.1). The tag of a page is computed from its bytes; a client that
sends it again gets 304. Redirects have no tag, because HTTP ignores conditions on them.

**CORS** (http-api reference, 3.6): scripts of other sites may read public data and request changes. No cookie or
remembered password is involved, as `Access-Control-Allow-Credentials` is never sent. So the origin does not matter, and
`*` works for all sites and caches.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from enum import Enum
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

from perseid.registry.commands.composition import Condition
from perseid.registry.policy.resolution import MAX_CACHE_LIFETIME
from perseid.registry.queries.signposting import FORMATTERS
from perseid.server.native.work import WorkKind

from .context import HttpSettings, RequestContext
from .messages import OPTIONS, SAFE_METHODS, BadRequest, HeaderList, Request, Response

MAX_ENTRIES: Final = 64
"""Entries of one header that are parsed: browsers send up to ten."""

MAX_CACHED_HEADERS: Final = 64
"""`Accept` headers that are parsed once: all clients of a kind send the same. One has at most a few KiB."""

MAX_WEIGHT: Final = 1_000
"""The highest weight, in thousandths."""

HTML: Final = "text/html"
XHTML: Final = "application/xhtml+xml"
JSON: Final = "application/json"
ANY_TYPE: Final = "*/*"

RECORD_FORMS: Final = (JSON, *FORMATTERS)
"""Media types of a record for programs, in the server's order of preference."""

API_VARY: Final = ("Vary", "Authorization, Accept-Datetime")
"""Of the JSON API: authenticated callers may get more, and `Accept-Datetime` selects another version."""

NO_CACHE: Final = "no-cache"
"""May be cached, and must be revalidated each time."""

VARY: Final = "Accept, Accept-Datetime"
"""Headers on which every response about a current record depends."""

VARY_HISTORY: Final = "Accept"
"""The same for a response at a fixed time, which ignores `Accept-Datetime`."""

_BROWSERS: Final = ("Mozilla/", "Opera/")
_BROWSER_TYPES: Final = frozenset(
    (
        HTML,
        "text/xhtml",
        XHTML,
        "application/pdf",
        "application/vnd.wap.xhtml+xml",
        "text/vnd.wap.wml",
    )
)
_BROWSER_KINDS: Final = ("image/", "audio/", "video/")
_HTML_PREFERENCES: Final = (("ctype", HTML), ("media-type", HTML))

# An entry ends at a comma outside quotation marks.
_QUOTED: Final = r'"(?>(?:[^"\\]|\\.)*)"?'  # to the end if nothing closes it, so that nothing is scanned twice
_ENTRY: Final = re.compile(rf'(?>[^",]+|{_QUOTED})+')
_PARAMETER: Final = re.compile(rf';[ \t]*([^;="]*)(?:=[ \t]*({_QUOTED}|[^;]*))?')
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 - not a secret
_MEDIA_RANGE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9*]{1,8}(?:-[A-Za-z0-9*]{1,8})*")
_WEIGHT: Final = re.compile(r"([01]?)(?:\.([0-9]{0,9}))?")

Preference: TypeAlias = tuple[str, str | None]


class Representation(Enum):
    """A kind of response about a handle."""

    REDIRECTION = "redirection"
    PAGE = "page"
    JSON = "json"
    OTHER = "other"
    """One of `FORMATTERS`; `AcceptHeader.named_form` is its media type."""


@dataclass(frozen=True, slots=True)
class AcceptEntry:
    """An entry of `Accept` or `Accept-Language`."""

    name: str
    """A media range in lowercase, or a language as written."""
    weight: int
    """From 0, which is a refusal, to `MAX_WEIGHT`."""

    @property
    def is_wildcard(self) -> bool:
        """Whether it matches several media types."""
        return self.name.endswith("/*")


@dataclass(frozen=True)
class AcceptHeader:
    """The media types that a client accepts. What follows from them is found once: `parse_accept` keeps it."""

    entries: tuple[AcceptEntry, ...]
    """In the order received; if there are none, everything is accepted."""

    def weight(self, type_: str) -> int:
        """The weight of a media type without wildcard; 0 if it is not accepted."""
        if not self.entries:
            return MAX_WEIGHT
        for name in (type_, f"{type_.partition('/')[0]}/*", ANY_TYPE):
            weights = [entry.weight for entry in self.entries if entry.name == name]
            if weights:
                return max(weights)
        return 0

    @property
    def accepts_anything(self) -> bool:
        """Whether the header expresses no preference."""
        return all(entry.name == ANY_TYPE for entry in self.entries if entry.weight)

    @cached_property
    def prefers_json(self) -> bool:
        """Whether JSON has a higher weight than HTML."""
        return self.weight(JSON) > max(self.weight(HTML), self.weight(XHTML))

    @cached_property
    def named_form(self) -> str | None:
        """The media type of a record form that is named and has a higher weight than HTML; None if there is none."""
        if not self.entries:
            return None
        html = max(self.weight(HTML), self.weight(XHTML))
        names = {entry.name for entry in self.entries}
        named = [type_ for type_ in RECORD_FORMS if type_ in names and self.weight(type_) > html]
        return max(named, key=self.weight, default=None)  # the first of those with the same weight

    @cached_property
    def prefers_json_errors(self) -> bool:
        """Whether errors are returned as JSON: for clients that prefer JSON or a form based on it."""
        return self.prefers_json or (self.named_form or "").endswith("json")

    @cached_property
    def record_form(self) -> str:
        """The media type in which a record is shown."""
        return self.named_form or (JSON if self.prefers_json else HTML)

    def choose(self, *, has_target: bool) -> Representation:
        """Choose a representation; `has_target`: whether there is a target to redirect to."""
        if has_target and self.named_form is None:
            return Representation.REDIRECTION
        return {HTML: Representation.PAGE, JSON: Representation.JSON}.get(self.record_form, Representation.OTHER)


def parse_accept(lines: Iterable[str]) -> AcceptHeader:
    """Parse all `Accept` headers of a request."""
    return _parse_accept(tuple(lines))


@lru_cache(MAX_CACHED_HEADERS)
def _parse_accept(lines: tuple[str, ...]) -> AcceptHeader:
    entries = []
    for name, weight in _parse_entries(lines):
        range_ = ANY_TYPE if name == "*" else name.lower()  # an old library sends * for */*
        if _MEDIA_RANGE.fullmatch(range_) and not (range_.startswith("*/") and range_ != ANY_TYPE):
            entries.append(AcceptEntry(range_, weight))
    return AcceptHeader(tuple(entries))


def parse_accept_language(lines: Iterable[str]) -> tuple[AcceptEntry, ...]:
    """Parse all `Accept-Language` headers of a request."""
    return tuple([AcceptEntry(name, weight) for name, weight in _parse_entries(lines) if _LANGUAGE.fullmatch(name)])


def location_preferences(
    accepted: AcceptHeader, languages: Sequence[AcceptEntry], user_agent: str, *, metadata: bool = False
) -> tuple[Preference, ...]:
    """The location attributes that the headers prefer, the most important first.

    With `metadata` the `http_role` is ignored: the request has named a role itself.
    """
    preferences = (*_content_preferences(accepted, user_agent), *_language_preferences(languages))
    return tuple([each for each in preferences if each[0] != "http_role"]) if metadata else preferences


def _content_preferences(accepted: AcceptHeader, user_agent: str) -> tuple[Preference, ...]:
    entries = [entry for entry in accepted.entries if entry.weight]
    if accepted.accepts_anything:
        if user_agent.startswith(_BROWSERS):
            return (("http_role", "browser"), *_HTML_PREFERENCES)
        return (("http_role", "no_conneg"),)
    best = max(entry.weight for entry in entries)
    if max((entry.weight for entry in entries if _is_for_browsers(entry)), default=0) < best:
        preferences: list[Preference] = []
        for entry in sorted(entries, key=lambda entry: -entry.weight):
            if entry.is_wildcard:
                break
            preferences += [("ctype", entry.name), ("media-type", entry.name)]
        return (*preferences, ("http_role", "conneg"))
    accepts_html = any(entry.name in (HTML, "text/*", ANY_TYPE) for entry in entries)
    return (("http_role", "browser"), *(_HTML_PREFERENCES if accepts_html else ()))


def _is_for_browsers(entry: AcceptEntry) -> bool:
    return entry.is_wildcard or entry.name in _BROWSER_TYPES or entry.name.startswith(_BROWSER_KINDS)


def _language_preferences(languages: Sequence[AcceptEntry]) -> tuple[Preference, ...]:
    entries = sorted([entry for entry in languages if entry.weight], key=lambda entry: -entry.weight)
    return tuple([("language", entry.name) for entry in entries if "*" not in entry.name])


def _parse_entries(lines: Iterable[str]) -> list[tuple[str, int]]:
    """Parse the valid entries of a header, as names and weights."""
    entries: list[tuple[str, int]] = []
    for line in lines:
        for match in _ENTRY.finditer(line):
            if len(entries) >= MAX_ENTRIES:
                return entries
            name, _, rest = match.group().partition(";")
            weight = _parse_weight(f";{rest}")
            if weight is not None and name.strip():
                entries.append((name.strip(), weight))
    return entries


def _parse_weight(parameters: str) -> int | None:
    """Parse the weight among the parameters of an entry; None if it is invalid."""
    for name, value in _PARAMETER.findall(parameters):
        if name.strip().lower() != "q":
            continue
        match = _WEIGHT.fullmatch(value.strip())
        if match is None or not (match[1] or match[2]):
            return None
        return min(int(match[1] or "0") * MAX_WEIGHT + int((match[2] or "").ljust(3, "0")[:3]), MAX_WEIGHT)
    return MAX_WEIGHT


ANY: Final = "*"

_TAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_LIST: Final = re.compile(rf"\s*(?:{_TAG.pattern}\s*)?(?:,\s*(?:{_TAG.pattern}\s*)?)*")


def etag_header(tag: str) -> tuple[str, str]:
    """The `ETag` header for a tag."""
    return "ETag", f'"{tag}"'


def matches_if_none_match(request: Request, tag: str) -> bool:
    """Whether `If-None-Match` names this tag, so that 304 can be returned."""
    text = request.get_joined("if-none-match")
    return text.strip() == ANY or tag in _TAG.findall(text)


def parse_condition(request: Request) -> Condition | None:
    """Parse the precondition of a change; None if there is none. Raises `BadRequest`."""
    if_match, if_none_match = request.get_joined("if-match").strip(), request.get_joined("if-none-match").strip()
    if not if_match and not if_none_match:
        return None
    exists = True if if_match == ANY else False if if_none_match == ANY else None
    return Condition(
        any_of=_parse_tags("If-Match", if_match) if if_match not in ("", ANY) else None,
        none_of=_parse_tags("If-None-Match", if_none_match) if if_none_match not in ("", ANY) else (),
        exists=exists,
    )


def _parse_tags(name: str, text: str) -> tuple[str, ...]:
    if _LIST.fullmatch(text) is None:
        raise BadRequest(f'the header {name} is invalid; it must be * or quoted tags, such as "abc", "def"')
    return tuple(_TAG.findall(text))


PAGE_AGE: Final = 300
"""Seconds for which the server's own pages are cached; they change with the settings."""

STATIC_AGE: Final = 86_400
"""Seconds for which static files are cached."""

_TAG_DIGITS: Final = 32
_CACHED_TIMES: Final = 64  # those of one second, for as many lifetimes
_AGE_HEADERS: Final = frozenset(("Cache-Control", "Expires"))
_NOT_MODIFIED_HEADERS: Final = frozenset(
    ("cache-control", "content-location", "etag", "expires", "link", "memento-datetime", "vary")
)


def cache_headers(
    seconds: int | None, now: float, *, shared: bool = True, no_cache: bool = False, fixed: bool = False
) -> HeaderList:
    """Caching headers for a response that may be cached for some seconds.

    `shared` is False for a response that depends on the client. `no_cache` requires revalidation each time, for
    clients that bypass caches. `fixed` is for an earlier state, which does not change.
    """
    if no_cache or (seconds is None and not fixed):
        return (("Cache-Control", "no-cache"),)
    if seconds is None or fixed:
        seconds = MAX_CACHE_LIFETIME
    scope = "public" if shared else "private"
    return (
        ("Expires", _format_time(int(now) + seconds)),
        ("Cache-Control", f"{scope}, max-age={seconds}{', immutable' if fixed else ''}"),
    )


@lru_cache(_CACHED_TIMES)
def _format_time(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def with_etag(request: Request, response: Response, tag: str = "") -> Response:
    """Add a tag to a response, or return 304 if the client has the same tag.

    `tag` is the tag if it is already known. For long responses use `with_etag_in_pool`.
    """
    if not needs_etag(response):
        return response
    tag = tag or compute_etag(next(response.values("content-type"), ""), response.body)
    if request.method in SAFE_METHODS and matches_if_none_match(request, tag):
        headers = tuple([each for each in response.headers if each[0].lower() in _NOT_MODIFIED_HEADERS])
        return Response(
            304, (*headers, etag_header(tag)), code=response.code, name=response.name, identity=response.identity
        )
    return response.with_headers(etag_header(tag))


@dataclass(frozen=True, slots=True)
class KeptPage:
    """A page that is kept for later requests, without the headers that depend on the time."""

    settings: HttpSettings
    """The page belongs to these very settings."""
    response: Response
    tag: str
    get_lifetime: Callable[[float], int | None]
    """Returns for how many seconds it may be cached, at a time."""

    @classmethod
    def of(cls, response: Response, settings: HttpSettings, get_lifetime: Callable[[float], int | None]) -> "KeptPage":
        """Keep a page with status 200."""
        tag = compute_etag(next(response.values("content-type"), ""), response.body)
        headers = tuple([header for header in response.headers if header[0] not in _AGE_HEADERS])
        return cls(settings, replace(response, headers=headers), tag, get_lifetime)

    def respond(self, request: Request, now: float, *, no_cache: bool) -> Response:
        """Return the page, or 304 if the client has it."""
        page, age = self.response, cache_headers(self.get_lifetime(now), now, no_cache=no_cache)
        response = Response(page.status, (*age, *page.headers), page.body, code=page.code, name=page.name)
        return with_etag(request, response, self.tag)


def needs_etag(response: Response) -> bool:
    """Whether a response gets the tag of its bytes: conditions apply to status 200 only, and some have another tag."""
    return response.status == 200 and next(response.values("etag"), None) is None


def compute_etag(type_: str, data: bytes) -> str:
    """Compute the tag of a response from its bytes and media type."""
    digest = hashlib.sha256(type_.encode("latin-1") + b"\0")
    digest.update(data)
    return digest.hexdigest()[:_TAG_DIGITS]


ALLOWED_METHODS: Final = ("GET", "POST", "HEAD", "PUT", "DELETE")
ALLOWED_HEADERS: Final = (
    "X-Requested-With",
    "Authorization",
    "Origin",
    "Accept",
    "Content-Type",
    "If-Match",
    "If-None-Match",
    "Idempotency-Key",
    "Accept-Datetime",
)
"""Headers that scripts may send: those of deployed servers, plus conditions, idempotency keys and `Accept-Datetime`."""

PREFLIGHT_MAX_AGE: Final = 86_400
"""Seconds for which browsers may cache the preflight response: a day, as in deployed servers."""

ALLOW_ANY_ORIGIN: Final = ("Access-Control-Allow-Origin", "*")

_SIMPLE_HEADERS: Final = frozenset(
    ("cache-control", "content-language", "content-type", "expires", "last-modified", "pragma", "content-length")
)
_UNEXPOSED_HEADERS: Final = frozenset(("vary", "allow"))
_LOWER_HEADERS: Final = frozenset(name.lower() for name in ALLOWED_HEADERS)
_REQUEST_METHOD: Final = "access-control-request-method"


def is_preflight(request: Request) -> bool:
    """Whether a request is a CORS preflight."""
    return (
        request.method == OPTIONS
        and request.header("origin") is not None
        and request.header(_REQUEST_METHOD) is not None
    )


def preflight_response(request: Request) -> Response:
    """Answer a preflight; the response grants nothing if a method or header is not allowed."""
    requested = [name.strip().lower() for name in request.get_joined("access-control-request-headers").split(",")]
    if request.header(_REQUEST_METHOD) not in ALLOWED_METHODS or not _LOWER_HEADERS.issuperset(filter(None, requested)):
        return Response(200, (("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers"),))
    return Response(
        200,
        (
            ALLOW_ANY_ORIGIN,
            ("Access-Control-Allow-Methods", ",".join(ALLOWED_METHODS)),
            ("Access-Control-Allow-Headers", ",".join(ALLOWED_HEADERS)),
            ("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE)),
        ),
    )


def cors_headers(request: Request, response: Response, *, exposes: bool) -> HeaderList:
    """CORS headers of a response; `exposes`: whether scripts may read headers that are not CORS-safelisted."""
    if is_preflight(request):
        return ()
    if not exposes or request.header("origin") is None:
        return (ALLOW_ANY_ORIGIN,)
    names = dict.fromkeys([*_exposed_headers(response), "Content-Length"])
    return (ALLOW_ANY_ORIGIN, ("Access-Control-Expose-Headers", ",".join(names)))


def _exposed_headers(response: Response) -> Iterator[str]:
    return (name for name, _ in response.headers if name.lower() not in _SIMPLE_HEADERS | _UNEXPOSED_HEADERS)


LONG_BODY_BYTES: Final = 65_536
"""Bytes of a body above which its tag is not computed in the event loop; that takes tenths of a millisecond."""


async def with_etag_in_pool(request_context: RequestContext, response: Response, tag: str = "") -> Response:
    """Add a tag to a response, or return 304; see `with_etag`."""
    if tag or len(response.body) <= LONG_BODY_BYTES or not needs_etag(response):
        return with_etag(request_context.request, response, tag)
    return await request_context.do(WorkKind.READ, lambda: with_etag(request_context.request, response))
