"""The fast path: redirects and records served directly from the answers view, in the event loop.

Most requests are alike: a plain GET for a simple name, with the same headers as the request before, for a record with
one target. Those are answered here in a few microseconds. For all others the fast path returns None, and the normal
path handles them, which reads the ledger and knows all rules. The bytes are the same; tests compare the two for
generated records and requests.

Conditions:

- The path is `/{name}`, `/{segment}/{name}` or `/api/handles/{name}`, without escapes. The prefix starts with a digit,
  so it is not one of the server's own paths. A query selects values by type and index, or the format of the API; of a
  redirect it may also append to the URL, or name attributes of locations, which such a record does not have.
- The headers have no condition, no `Accept-Datetime` and, for the API, no credentials. The result of this check is
  cached for requests of a connection that have the same headers.
- The record is published, under the current case rule of its namespace; or, for the API, the handle never existed, and
  no template applies.
- A redirect goes to the first URL, if that is plain ASCII and nothing else affects it: no alias, locations or headers
  in the record, and no namespace with locations or a status of its own.

Records as JSON are formatted from the bytes of their values, like `records.json_form` does. Most values are simple:
ASCII text that needs no JSON escape, a relative TTL, no references. `records.json_form` formats all others. The JSON of
structured types, mostly administrators, repeats in many records and is cached.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, whatever its module calls it
from typing import Final, NamedTuple, Protocol

from perseid.ledger.errors import LedgerError
from perseid.ledger.views.answers_format import ALIAS, LOCATION, decode_prefix, is_hidden, read_plain_item, store_key
from perseid.records.encoding import from_wire, to_iso
from perseid.records.json_form import value_to_json
from perseid.records.record import DEFAULT_PERMISSIONS, HEAD, TYPE_OFFSET, TtlType, Value
from perseid.registry.commands.composition import TAG_LENGTH
from perseid.registry.installation.sections import HANDLE_SEGMENT
from perseid.registry.policy.resolution import MAX_CACHE_LIFETIME, value_lifetime
from perseid.server.http import responses
from perseid.server.http.connection.requests import ParsedRequest
from perseid.server.http.connection.responses import encode_head, format_date
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import BadRequest, HeaderList, Parameters, Request, Response
from perseid.server.http.negotiation import API_VARY, NO_CACHE, etag_header, parse_accept
from perseid.server.http.negotiation import VARY as VARIES_BY
from perseid.server.http.responses import JsonFormat, encode_json
from perseid.server.http.service import FastResponse, with_default_headers
from perseid.server.native.resolution import (
    CORDRA,
    MAX_LEVELS,
    MAX_PLAIN_PREFIXES,
    FastPathMiss,
    ResolutionSettings,
    Selection,
    is_case_sensitive,
    may_inherit_template,
)
from perseid.server.observe.tally import is_bot
from perseid.wire.codes import ResponseCode

from .paths import (
    API_HANDLES_PATH,
    MAX_SIGNPOSTED_NAME,
    RESOLVER_PARAMETERS,
    get_segments,
    link_pieces,
    parse_indexes,
    parse_query,
    strip_parameters,
)
from .redirect import MAX_URL, OLD_STATUSES, redirect_page

CACHED_DATES: Final = 256
"""Cached date texts: the current second, and one for each TTL in use."""

# Characters that are literal in a path (RFC 3986): nothing that starts a query or an escape.
_PATH: Final = re.compile(
    rb"/(?:(api/handles)/|([A-Za-z]+)/)?(([1-9][0-9A-Za-z.]*)/[!$&-;=@-Z_a-z~]+)(?:\?(.*))?", re.DOTALL
)
_AUTHORITY: Final = rb"://[A-Za-z0-9._~-]+(?::[0-9]*)?"
_REST: Final = rb"(?:[/?#][A-Za-z0-9\-._~!$()*,:@/;=+&'?#\[\]%]*)?"
_HTML_SPECIAL: Final = re.compile(rb"[&']")  # allowed in such a URL, escaped in HTML
_NEEDS_ESCAPE: Final = re.compile(rb"&|/\.{0,2}(?:/|\Z)")  # escaped in API links to the name

_CONDITIONS: Final = frozenset(
    ("accept-datetime", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "range")
)
_IDENTITY_HEADERS: Final = frozenset(("authorization", "origin"))

_RELATIVE: Final = int(TtlType.RELATIVE)
_URL_TYPES: Final = frozenset((b"URL", b"0.TYPE/URL"))
_SPECIAL_TYPE_PREFIX: Final = b"10320/"  # types that affect responses
_NAMESPACE: Final = b"HS_NAMESPACE"

_CLOSE: Final = b"\r\nConnection: close\r\n\r\n"
_KEEP_ALIVE: Final = b"\r\nConnection: keep-alive\r\n\r\n"  # of HTTP/1.0
_FALLBACK_ERRORS: Final = (LedgerError, OSError, IndexError, ValueError, StructError, FastPathMiss)
"""Errors after which the normal path is used: no view, a damaged view, an invalid value."""

_Stamp = tuple[int, int]


class View(Protocol):
    """The part of the answers view that is used; `ledger.views.answers_reader.AnswersReader` has it."""

    def get_pair_stamped(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None, _Stamp]:
        """Return the item of a prefix and the items of a handle in one state of the view, and that state."""
        ...

    def get(self, name: bytes) -> bytes | None:
        """Return the items of a handle."""
        ...

    def get_prefix(self, prefix: bytes) -> bytes | None:
        """Return the item of a prefix."""
        ...

    def has_past(self, name: bytes) -> bool:
        """Whether a deleted record with this name may have been public."""
        ...


MAX_CACHED_QUERIES: Final = 256
"""Cached queries: clients use a handful, over and over."""

MAX_QUERY: Final = 1_024
"""Bytes of the longest query that is parsed here, so that cached ones take a few hundred kilobytes."""

_PARAMETERS: Final = frozenset(("type", "index", "pretty", "callback", "auth", "publicOnly", "doNotRefer"))
_INDEX: Final = Struct(">i")


class ApiQuery(NamedTuple):
    """What the query of a request to the API selects."""

    selection: Selection | None
    """The values; None for all."""
    form: JsonFormat
    no_cache: bool
    """Whether caches must be bypassed."""


@lru_cache(MAX_CACHED_QUERIES)
def parse_api_query(query: bytes) -> ApiQuery | None:
    """Parse a query; None if the normal path must be used."""
    try:
        parameters = Parameters.parse(query)
        indexes, types = parameters.numbers("index"), parameters.all("type")
    except BadRequest:
        return None
    if not _PARAMETERS.issuperset([name for name, _ in parameters.pairs]) or not parameters.flag(
        "publicOnly", default=True
    ):
        return None
    return ApiQuery(_to_selection(indexes, types), JsonFormat.of(parameters), parameters.flag("auth"))


_REDIRECT_PARAMETERS: Final = frozenset(("auth", "cert", "ignore_aliases", "index", "locatt", "type", "urlappend"))
_APPENDED: Final = re.compile(r"[A-Za-z0-9\-._~!$()*,:@/;=+&'?#\[\]%]*")
_LOCATT: Final = re.compile(r"(?!(?i:mode|weight|href):)[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+")  # those of URL values


class RedirectQuery(NamedTuple):
    """What the query of a redirect asks for."""

    selection: Selection | None = None
    """The values; None for all."""
    no_cache: bool = False
    """Whether caches must be bypassed."""
    appended: bytes = b""
    """What is appended to the URL."""
    has_rest: bool = False
    """Whether a part belongs to the name itself, in namespaces whose names have a query."""


@lru_cache(MAX_CACHED_QUERIES)
def parse_redirect_query(query: bytes) -> RedirectQuery | None:
    """Parse a query; None if the normal path must be used."""
    parameters = parse_query(query)
    appended = parameters.first("urlappend") or ""
    if (
        not _REDIRECT_PARAMETERS.issuperset({name for name, _ in parameters.pairs} & RESOLVER_PARAMETERS)
        or _APPENDED.fullmatch(appended) is None
        or not all(map(_LOCATT.fullmatch, parameters.all("locatt")))
    ):
        return None
    selection = _to_selection(parse_indexes(parameters), parameters.all("type"))
    return RedirectQuery(selection, "auth" in parameters, appended.encode(), bool(strip_parameters(query)))


def _to_selection(indexes: Sequence[int], types: Sequence[str]) -> Selection | None:
    if not indexes and not types:
        return None
    return Selection(frozenset(map(_INDEX.pack, indexes)), [type_.encode() for type_ in types])


_NO_QUERY: Final = RedirectQuery()
_EVERYTHING: Final = ApiQuery(None, responses.DEFAULT_FORMAT, no_cache=False)
_ApiParts = tuple[ResponseCode, bytes, tuple[bytes, ...], bytes]  # code, head, its fields, compact body


class HeaderHints(NamedTuple):
    """What the headers of a request allow."""

    api: bool
    """Whether the API may use the fast path."""
    redirect: bool
    """Whether a redirect may use the fast path."""
    bot: bool = False
    """Whether a bot has sent it."""


class FastPath:
    """Serves requests that need only the answers view."""

    def __init__(self, view: View, site: ResolutionSettings, settings: HttpSettings, time: Callable[[], float]) -> None:
        self._view = view
        self._time = time
        self._single_server = site.servers == 1
        self._site = site
        self._bare = settings.bare
        self._segments = frozenset([segment.encode() for segment in get_segments(settings)])
        web = b"|".join([scheme for scheme in (b"https", b"http") if scheme.decode() in settings.schemes])
        self._url = re.compile(b"(?:%b)%b%b" % (web, _AUTHORITY, _REST)) if web else None
        self._plain: dict[bytes, bytes] = {}
        self._no_namespace: dict[bytes, _Stamp] = {}
        self._no_template: dict[bytes, _Stamp] = {}
        pieces = link_pieces("/" if settings.bare else f"/{HANDLE_SEGMENT}/", settings) if settings.public_url else ()
        self._links = [piece.encode() for piece in pieces]
        self._api_link = f"<{settings.public_url}{API_HANDLES_PATH}".encode() if settings.public_url else b""
        self._api_heads = {
            is_script: _ApiHeads.make(JsonFormat(callback="f" if is_script else None), linked=bool(self._api_link))
            for is_script in (False, True)
        }
        age = ("Expires", _PLACEHOLDERS[1]), ("Cache-Control", f"public, max-age={_PLACEHOLDERS[2]}")
        self._redirection = self._redirect_template(settings.redirect_status, age)
        self._uncached_redirection = self._redirect_template(settings.redirect_status, (("Cache-Control", NO_CACHE),))
        self._is_old_status = settings.redirect_status in OLD_STATUSES

    def _redirect_template(self, status: int, age: HeaderList) -> bytes:
        links = [("Link", _PLACEHOLDERS[3])] if self._links else []
        varies, type_ = ("Vary", VARIES_BY), ("Content-Type", "text/html;charset=utf-8")
        return _template(Response(status, (("Location", _PLACEHOLDERS[0]), *age, varies, *links, type_)), b"/x")

    def __call__(self, request: ParsedRequest) -> FastResponse | None:
        """Return the response; None if the normal path must be used."""
        if not self._single_server:
            return None
        is_get = request.method == "GET"
        if not is_get and request.method != "HEAD":
            return None
        path = _PATH.fullmatch(request.target)
        if path is None:
            return None
        hints = request.fields.noted
        if not isinstance(hints, HeaderHints):
            hints = request.fields.noted = _read_hints(request)
        api, segment, name, prefix, query = path.groups()
        try:
            if api is not None:
                response = self._api_response(prefix, name, query, hints.bot, with_body=is_get) if hints.api else None
            elif hints.redirect and (segment in self._segments if segment else self._bare):
                is_known = request.version == "1.1" or self._is_old_status
                response = self._redirect(prefix, name, query, hints.bot, with_body=is_get) if is_known else None
            else:
                response = None
        except _FALLBACK_ERRORS:
            return None
        if response is not None and (not request.keep or request.version != "1.1"):
            data = response.data.replace(b"\r\n\r\n", _KEEP_ALIVE if request.keep else _CLOSE, 1)
            return response._replace(data=data)
        return response

    # Responses

    def _api_response(
        self, prefix: bytes, name: bytes, query: bytes | None, bot: bool, *, with_body: bool
    ) -> FastResponse | None:
        wanted: ApiQuery | None = _EVERYTHING
        if query:
            wanted = parse_api_query(query) if len(query) <= MAX_QUERY else None
        if wanted is None or len(name) > MAX_SIGNPOSTED_NAME or _NEEDS_ESCAPE.search(name):
            return None
        prefix_item, items, stamp = self._view.get_pair_stamped(prefix, name)
        if prefix_item is None:
            return None
        if prefix_item != self._plain.get(prefix) and not self._is_plain(prefix, prefix_item):
            return None
        second = int(self._time())
        if items is None or is_hidden(store_key(name), items):
            parts = self._missing_parts(prefix, name, wanted, prefix_item, stamp)
        else:
            parts = self._record_parts(name, wanted, items, second)
        if parts is None:
            return None
        code, head, fields, body = parts
        if wanted.form is not responses.DEFAULT_FORMAT:
            body = wanted.form.finish(body)
        data = head % (*fields, _date(second), b"%d" % len(body))
        return FastResponse(data + body if with_body else data, name, code, bot)

    def _missing_parts(
        self, prefix: bytes, name: bytes, wanted: ApiQuery, prefix_item: bytes, stamp: _Stamp
    ) -> _ApiParts | None:
        """The response for a handle without public versions: a hidden one is as fast as a missing one."""
        if self._view.has_past(name):
            return None
        if self._no_template.get(prefix) != stamp and not self._has_no_template(prefix, prefix_item, stamp):
            return None
        head = self._api_heads[wanted.form.callback is not None].missing
        return ResponseCode.HANDLE_NOT_FOUND, head, (), b'{"responseCode":100,"handle":"%b"}' % name

    def _record_parts(self, name: bytes, wanted: ApiQuery, items: bytes, second: int) -> _ApiParts | None:
        """The response for a record."""
        plain = read_plain_item(items) if len(items) <= responses.MAX_INLINE_BYTES else None
        if plain is None:
            return None
        at, lengths = plain
        heads = self._api_heads[wanted.form.callback is not None]
        link = (b'%b%b>; rel="original timegate"' % (self._api_link, name),) if self._api_link else ()
        values, start = items, at
        if wanted.selection is not None:
            chosen = wanted.selection.choose(items, at, lengths)
            values, start, lengths = b"".join(chosen), 0, [len(value) for value in chosen]
            if not chosen:
                body = b'{"responseCode":200,"values":[],"handle":"%b"}' % name
                return ResponseCode.VALUES_NOT_FOUND, heads.empty, link, body
        body, lifetime = record_json(name, values, start, lengths, second)
        tag = hashlib.sha256(items[at:]).hexdigest()[:TAG_LENGTH].encode()
        if wanted.no_cache:
            return ResponseCode.SUCCESS, heads.uncached, (tag, *link), body
        return ResponseCode.SUCCESS, heads.cached, (b"%d" % lifetime, tag, *link), body

    def _redirect(
        self, prefix: bytes, name: bytes, query: bytes | None, bot: bool, *, with_body: bool
    ) -> FastResponse | None:
        wanted: RedirectQuery | None = _NO_QUERY
        if query:
            wanted = parse_redirect_query(query) if len(query) <= MAX_QUERY else None
        if wanted is None or prefix in self._segments:
            return None
        prefix_item, items, stamp = self._view.get_pair_stamped(prefix, name)
        if items is None or prefix_item is None:
            return None
        if prefix_item != self._plain.get(prefix) and not self._is_plain(prefix, prefix_item):
            return None
        if wanted.has_rest and self._may_have_query(prefix_item):
            return None
        if self._no_namespace.get(prefix) != stamp and not self._has_no_namespace(prefix, stamp):
            return None
        first = self._find_target(items, wanted)
        encoded = prefix + b"/" + name[len(prefix) + 1 :].replace(b"/", b"%2F")
        if first is None or len(encoded) > MAX_SIGNPOSTED_NAME or encoded.endswith((b"/.", b"/..")):
            return None
        url, seconds = first
        now = int(self._time())
        shown = escape(url.decode("ascii")).encode() if _HTML_SPECIAL.search(url) else url
        body = redirect_page(shown, shown)
        end = (*((encoded.join(self._links),) if self._links else ()), _date(now), b"%d" % len(body))
        if wanted.no_cache:
            head = self._uncached_redirection % (url, *end)
        else:
            head = self._redirection % (url, _date(now + seconds), b"%d" % seconds, *end)
        return FastResponse(head + body if with_body else head, name, ResponseCode.SUCCESS, bot)

    def _find_target(self, items: bytes, wanted: RedirectQuery) -> tuple[bytes, int] | None:
        """Return the URL of a redirect and its cache lifetime; None if the normal path must be used."""
        plain = read_plain_item(items, ALIAS | LOCATION) if len(items) <= responses.MAX_INLINE_BYTES else None
        if plain is None or self._url is None:
            return None
        if wanted.selection is None:
            first = _first_url(items, *plain)
        else:
            chosen = wanted.selection.choose(items, *plain)
            first = _first_url(b"".join(chosen), 0, [len(value) for value in chosen])
        if first is None:
            return None
        url, seconds = first
        if wanted.appended:
            if url.find(b"/", len(b"https://")) < 0:
                return None  # it might become a part of the host
            url += wanted.appended
        return None if len(url) > MAX_URL or self._url.fullmatch(url) is None else (url, seconds)

    # Namespaces

    def _is_plain(self, prefix: bytes, item: bytes) -> bool:
        """Whether a prefix is hosted here and case-insensitive; noted while its item is the same."""
        namespace = decode_prefix(item)
        if not namespace.hosted or is_case_sensitive(namespace, self._site):
            return False
        if len(self._plain) >= MAX_PLAIN_PREFIXES:
            self._plain.clear()
        self._plain[prefix] = item
        return True

    def _may_have_query(self, item: bytes) -> bool:
        """Whether handles of a namespace can have a query."""
        namespace = decode_prefix(item)
        return (self._site.default_scheme if namespace.case is None else namespace.scheme) == CORDRA

    def _has_no_namespace(self, prefix: bytes, stamp: _Stamp) -> bool:
        """Whether no HS_NAMESPACE value can affect redirects of a prefix; noted while the view is in this state."""
        if any(_NAMESPACE in (self._view.get(b"0.NA/" + each) or b"").upper() for each in _with_ancestors(prefix)):
            return False
        _note(self._no_namespace, prefix, stamp)
        return True

    def _has_no_template(self, prefix: bytes, item: bytes, stamp: _Stamp) -> bool:
        """Whether no template can apply to handles of a prefix; noted while the view is in this state."""
        if decode_prefix(item).templates or may_inherit_template(self._view.get_prefix, prefix, self._site):
            return False
        _note(self._no_template, prefix, stamp)
        return True


def _note(noted: dict[bytes, _Stamp], prefix: bytes, stamp: _Stamp) -> None:
    if len(noted) >= MAX_PLAIN_PREFIXES:
        noted.clear()
    noted[prefix] = stamp


def _read_hints(request: ParsedRequest) -> HeaderHints:
    """Find what the headers allow, whatever the target is."""
    names = {name for name, _ in request.headers}
    if names & _CONDITIONS:
        return HeaderHints(api=False, redirect=False)
    is_anonymous = not names & _IDENTITY_HEADERS and request.client.certificate is None
    is_redirect = parse_accept(request.all("accept")).named_form is None
    return HeaderHints(is_anonymous, is_redirect, is_bot(" ".join(request.all("user-agent"))))


def _first_url(data: bytes, at: int, lengths: Sequence[int]) -> tuple[bytes, int] | None:
    """Return the first URL and the cache lifetime in seconds; None if other values affect the redirect."""
    url: bytes | None = None
    lifetime = MAX_CACHE_LIFETIME
    unpack = HEAD.unpack_from
    for length in lengths:
        _, _, ttl_type, ttl, _, size = unpack(data, at)
        type_at = at + TYPE_OFFSET
        type_end = type_at + size
        type_ = data[type_at:type_end].upper()
        if ttl_type != _RELATIVE or type_.startswith(_SPECIAL_TYPE_PREFIX):
            return None
        if ttl < lifetime:  # noqa: PLR1730 - a call per value would take longer than everything else here
            lifetime = ttl
        if url is None and type_ in _URL_TYPES:
            data_at = type_end + 4
            url = data[data_at : data_at + int.from_bytes(data[type_end:data_at], "big")]
        at += length
    return None if url is None else (url, max(0, lifetime))


def _with_ancestors(prefix: bytes) -> list[bytes]:
    """Return a prefix and its ancestors; raises `ValueError` if there are more than any real prefix has."""
    parts = prefix.split(b".")
    prefixes = [b".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    if len(prefixes) > MAX_LEVELS:
        raise ValueError("the prefix has too many parts")
    return prefixes


# Response heads, as the normal path writes them


@lru_cache(CACHED_DATES)
def _date(second: int) -> bytes:
    return format_date(second).encode()


_PLACEHOLDERS: Final = ("mark-0", "mark-1", "mark-2", "mark-3")


def _template(response: Response, path: bytes) -> bytes:
    """The head of a response with a slot for each placeholder, the date and the length, in order of appearance."""
    data = encode_head(with_default_headers(Request("GET", path), response), version="1.1", keep=True, seconds=0)
    for text in (*_PLACEHOLDERS, format_date(0), "Content-Length: 0"):
        slot = b"Content-Length: \0" if text.startswith("Content-Length") else b"\0"
        data = data.replace(text.encode(), slot)
    return data.replace(b"%", b"%%").replace(b"\0", b"%b")


class _ApiHeads(NamedTuple):
    """The heads of responses in one format."""

    cached: bytes
    uncached: bytes
    """Of a record for a client that bypasses caches."""
    empty: bytes
    """Of a record without the requested values."""
    missing: bytes

    @classmethod
    def make(cls, form: JsonFormat, *, linked: bool) -> "_ApiHeads":
        tag = etag_header(_PLACEHOLDERS[1])
        links: HeaderList = (("Link", _PLACEHOLDERS[3]),) if linked else ()
        no_cache = ("Cache-Control", NO_CACHE)

        def head(status: int, *headers: tuple[str, str]) -> bytes:
            return _template(Response(status, (*headers, form.content_type)), b"/api/handles/1/x")

        return cls(
            head(200, ("Cache-Control", f"public, max-age={_PLACEHOLDERS[0]}"), API_VARY, tag, *links),
            head(200, no_cache, API_VARY, tag, *links),
            head(200, no_cache, API_VARY, *links),
            head(404, responses.NO_STORE),
        )


# Records as JSON

CACHED_FORMS: Final = 1_024
"""Cached JSON of structured data: the administrators and groups of a busy server. An administrator has 300 bytes of
JSON; a site with a key 2,000."""

MAX_CACHED_DATA: Final = 4_096
"""Bytes of the longest data that is cached."""

_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")  # printable ASCII without quotation marks and backslashes
_STRUCTURED: Final = b"HS_"  # prefix of the system's own types
_NO_REFERENCES: Final = bytes(4)
_LENGTH: Final = 4
_PERMISSIONS: Final = [
    b"" if bits == DEFAULT_PERMISSIONS else b',"permissions":"%b"' % f"{bits:0{4 if bits <= 0x0F else 8}b}".encode()
    for bits in range(256)
]


def record_json(name: bytes, raw: bytes, at: int, lengths: Sequence[int], now: int) -> tuple[bytes, int]:
    """The API response for a name without special characters, and its cache lifetime.

    The values are consecutive in `raw` from `at` on and have these lengths.
    """
    parts = []
    lifetime = MAX_CACHE_LIFETIME
    for length in lengths:
        end = at + length
        index, stamp, ttl_type, ttl, permissions, size = HEAD.unpack_from(raw, at)
        type_end = at + TYPE_OFFSET + size
        data_at = type_end + _LENGTH
        data_end = data_at + int.from_bytes(raw[type_end:data_at], "big")
        type_ = raw[at + TYPE_OFFSET : type_end]
        if ttl_type == _RELATIVE:
            if ttl < lifetime:  # noqa: PLR1730 - a call per value would take longer
                lifetime = ttl
            if raw[data_end:end] == _NO_REFERENCES and _PLAIN.fullmatch(type_):
                data = raw[data_at:data_end]
                parts.append(
                    b'{"index":%d,"type":"%b","data":%b%b,"ttl":%d%b}'
                    % (
                        index,
                        type_,
                        _encode_value_data(type_, data),
                        _PERMISSIONS[permissions],
                        ttl,
                        _timestamp_member(stamp, now),
                    )
                )
                at = end
                continue
        value = Value.from_bytes(raw[at:end], now)
        lifetime = min(lifetime, value_lifetime(value, now))
        parts.append(encode_json(value_to_json(value)))
        at = end
    body = b'{"responseCode":1,"handle":"%b","values":[%b]}' % (name, b",".join(parts))
    return body, max(0, lifetime)


def _timestamp_member(stamp: int, now: int) -> bytes:
    return _timestamp(from_wire(stamp, now)) if stamp else b""


@lru_cache(CACHED_FORMS)
def _timestamp(instant: int) -> bytes:
    return b',"timestamp":"%b"' % to_iso(instant).encode()


def _encode_value_data(type_: bytes, data: bytes) -> bytes:
    if type_[:3].upper() == _STRUCTURED:
        return (_encode_structured if len(data) <= MAX_CACHED_DATA else _encode_data)(type_, data)
    if _PLAIN.fullmatch(data):
        return b'{"format":"string","value":"%b"}' % data
    return _encode_data(type_, data)


def _encode_data(type_: bytes, data: bytes) -> bytes:
    return encode_json(value_to_json(Value(1, type_.decode("ascii"), data))["data"])


_encode_structured = lru_cache(CACHED_FORMS)(_encode_data)
