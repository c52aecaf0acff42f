"""Handles of a prefix, hosted prefixes, the site record, and reverse lookup (http-api reference, 6.6, 6.7 and 13).

    GET /api/handles?prefix=12345&page=0&pageSize=100     a page by number, as deployed clients request
    GET /api/handles?prefix=12345                         everything
    GET /api/handles?prefix=12345&after=0                 from the start, then `after` the value of `next`
    GET /hrls/handles/?URL=*example.org*&CHECKSUM=abc     ["12345/a", "12345/b"]
    GET /hrls/ping                                        OK

A page by number costs as much as all pages before it, and new handles shift the others. `after` has constant cost and
misses nothing. Long lists are streamed while they are read, so that they are never completely in memory.

Reverse lookup finds handles by their values, as an add-on to deployed servers does. Each parameter is a type and a
pattern for its value, with `*` for any characters; a record must match all of them. The registry decides who can find
what (`registry.queries.find`): users who can list the handles of a namespace, and for private values those who can read
them. If an anonymous caller finds nothing, the response is a challenge. Results are limited. If there may be more, a
`Link` header has the URL of the rest.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from perseid import __version__
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.encoding import JsonObject
from perseid.records.record import Permission, Value
from perseid.records.types import URL
from perseid.registry.access import permissions
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.records import Home
from perseid.registry.context import Context
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.listing import ListedHandle, count_handles, list_by_offset, list_handles, list_homed
from perseid.registry.queries.paging import DEFAULT_PAGE, MAX_PAGE, Page
from perseid.registry.results import NOT_A_PREFIX_HANDLE, Refused
from perseid.server.http import negotiation, responses
from perseid.server.http.auth.authentication import authenticate
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, Name, Parameters, Response
from perseid.server.http.responses import DEFAULT_FORMAT, NO_STORE, NOT_FOUND, encode_json
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from .call import Call
from .reading import NOT_MODIFIED

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_MAX_DIGITS: Final = 19  # of a 64-bit number


async def handle_listing(call: Call, prefix: str) -> Response:
    """List the handles of a prefix."""
    return await call.catching_errors(prefix, _handle_listing(call, prefix))


async def _handle_listing(call: Call, prefix: str) -> Response:
    try:
        if "after" in call.parameters:
            return await _list_after(call, prefix)
        return await _list_page(call, prefix)
    except Refused as refused:
        if refused.code == ResponseCode.INVALID_HANDLE:  # deployed servers report an unknown prefix
            raise Refused(ResponseCode.SERVER_NOT_RESP, refused.reason, refused.advice, refused.rule) from refused
        raise


async def _list_after(call: Call, prefix: str) -> Response:
    text = call.parameters.first("after") or ""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise BadRequest("the parameter after must be 0 or the value of next in the previous page")
    size = call.parameters.number("pageSize")
    limit = DEFAULT_PAGE if size is None or size <= 0 else min(size, MAX_PAGE)
    page = await call.read(lambda context: _read_page(context, prefix, int(text), limit), prefix)
    plain: JsonObject = {"responseCode": _SUCCESS, "prefix": prefix, "handles": _names(page.items)}
    if page.more:
        plain["next"] = str(page.last)
    return call.respond(plain, name=prefix)


async def _list_page(call: Call, prefix: str) -> Response:
    page, size = call.parameters.number("page"), call.parameters.number("pageSize")
    begin: JsonObject = {"responseCode": _SUCCESS, "prefix": prefix}
    if page is not None and size is not None and page >= 0 and size >= 0:
        skip, limit = page * size, size
        numbers: JsonObject = {"page": page, "pageSize": size}
    else:
        skip, limit, numbers = 0, None, {}
    first = await call.read(lambda context: _read_first_page(context, prefix, skip, limit), prefix)
    begin = begin | ({} if first.total is None else {"totalCount": str(first.total)}) | numbers
    if first.total is None or first.items is None:
        return _streaming_response(call, begin, _stream_pages(call, prefix, 0, skip, limit))
    remaining = first.total - skip if limit is None else min(limit, first.total - skip)
    if remaining <= MAX_PAGE:
        return call.respond(begin | {"handles": _names(first.items)}, name=prefix)
    return _streaming_response(call, begin, _stream_names(call, prefix, first.items, remaining))


def _streaming_response(call: Call, begin: JsonObject, pieces: "AsyncIterator[list[str]]") -> Response:
    """Create a response that is read while it is sent."""
    whole = call.respond(begin, name=str(begin["prefix"]))
    return replace(whole, body=b"", stream=_stream_json(call, begin, pieces))


async def _stream_json(call: Call, begin: JsonObject, pieces: "AsyncIterator[list[str]]") -> AsyncIterator[bytes]:
    """Encode in parts; the bytes are the same as for `encode_json`."""
    pretty = call.form.pretty
    before, after = call.form.wrap()
    head = encode_json(begin | {"handles": []}, pretty=pretty)
    opened = head[: head.rindex(b"[") + 1]
    separator, end = (b",\n    ", b"\n  ]\n}") if pretty else (b",", b"]}")
    yield before + opened + (separator[1:] if pretty else b"")
    is_first = True
    async for names in pieces:
        data = separator.join([encode_json(name) for name in names])
        yield data if is_first else separator + data
        is_first = False
    yield end + after


async def _stream_names(
    call: Call, prefix: str, first: tuple[ListedHandle, ...], remaining: int
) -> AsyncIterator[list[str]]:
    """The handles in order, page by page; the permission is checked for each page."""
    yield _names(first)
    async for names in _stream_pages(call, prefix, first[-1].seq, 0, remaining - len(first)):
        yield names


async def _stream_pages(
    call: Call, prefix: str, last: int, skip: int, remaining: int | None
) -> AsyncIterator[list[str]]:
    """The handles after an entry, without some; all of them if nothing else is `remaining`."""
    more = True
    while more and remaining != 0:
        page = await _next_page(call, prefix, last)
        last, more = page.last, page.more  # a page may be empty although there are more
        names = _names(page.items[skip:])[:remaining]
        skip = max(0, skip - len(page.items))
        if names:
            yield names
        remaining = None if remaining is None else remaining - len(names)


async def _next_page(call: Call, prefix: str, last: int) -> Page[ListedHandle]:
    return await call.read(lambda context: _read_page(context, prefix, last, MAX_PAGE), prefix)


@dataclass(frozen=True, slots=True)
class _FirstPage:
    """The total number of handles, and the first page of those requested, if they are known."""

    total: int | None
    """None if it is not known yet."""
    items: tuple[ListedHandle, ...] | None
    """None if pages have no numbers: see `list_by_offset`."""


def _read_first_page(context: Context, prefix: str, skip: int, limit: int | None) -> _FirstPage:
    total = count_handles(context.snapshot, context.identity, prefix)
    size = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    if not size or (total is not None and skip >= total):
        return _FirstPage(total, ())
    return _FirstPage(total, list_by_offset(context.snapshot, context.identity, prefix, skip, size))


def _read_page(context: Context, prefix: str, after: int, limit: int) -> Page[ListedHandle]:
    # Pages have numbers and a total, which handles that only their owners see are not part of.
    return list_handles(context.snapshot, context.identity, prefix, after, limit, owned=False)


def _names(items: tuple[ListedHandle, ...]) -> list[str]:
    return [item.handle for item in items]


_PREFIX_MARKER = f"{PREFIX_OF_PREFIXES}/"


async def handle_prefixes(call: Call, name: Name) -> Response:
    """List, home or unhome prefixes; a prefix in the query or the body takes precedence over the path."""
    if call.request.method in SAFE_METHODS:
        return await call.catching_errors(None, _list(call))
    parameters = call.parameters
    if call.request.method == "POST":
        parameters = parameters.plus(responses.parse_parameters(call.request))
    named = parameters.first("prefix")
    if not (prefix := name.text if named is None else named):
        raise BadRequest('the prefix is missing; add it to the path, or send {"prefix": "…"} in the body')
    return await call.catching_errors(prefix, _home(call, prefix, unhome=call.request.method == "DELETE"))


async def _list(call: Call) -> Response:
    page, size = call.parameters.number("page"), call.parameters.number("pageSize")
    prefixes = sorted(await call.read(lambda context: list_homed(context.snapshot, context.identity)))
    plain: JsonObject = {"responseCode": int(ResponseCode.SUCCESS), "totalCount": str(len(prefixes))}
    if page is not None and size is not None and page >= 0 and size >= 0:
        plain |= {"page": page, "pageSize": size}
        prefixes = prefixes[page * size :][:size]
    return call.respond(plain | {"prefixes": prefixes})


async def _home(call: Call, prefix: str, *, unhome: bool) -> Response:
    if "/" in prefix and not fold(prefix).startswith(_PREFIX_MARKER):
        raise Refused(ResponseCode.INVALID_HANDLE, NOT_A_PREFIX_HANDLE, AdviceKind.PREFIX_HANDLE_EXAMPLE())
    await call.change(lambda _: Home(prefix, unhome))
    return call.respond({"responseCode": int(ResponseCode.SUCCESS), "handle": prefix}, name=prefix)


LINKS: Final[JsonObject] = {
    "handles": "/api/handles/{handle}",
    "listing": "/api/handles?prefix={prefix}",
    "prefixes": "/api/prefixes",
    "site": "/api/site",
    "sessions": "/api/sessions",
    "verifications": "/api/verifications/{index}:{handle}",
    "search": "/hrls/handles/?URL={pattern}",
    "health": "/healthz",
    "readiness": "/readyz",
}
"""The paths of all resources."""


async def handle_site(call: Call) -> Response:
    """Return the site record."""
    return _public_response(call, {"site": call.request_context.server.site.to_json()})


async def handle_description(call: Call) -> Response:
    """Describe the API."""
    return _public_response(call, {"name": "Perseid", "version": __version__, "links": LINKS})


def _public_response(call: Call, plain: JsonObject) -> Response:
    """Create a response that is the same for everyone."""
    plain = {"responseCode": int(ResponseCode.SUCCESS)} | plain
    if not call.is_public:
        return call.respond(plain, headers=(NO_STORE,))
    tag = hashlib.sha256(encode_json(plain)).hexdigest()[:32]
    headers = (("Cache-Control", negotiation.NO_CACHE), negotiation.API_VARY, negotiation.etag_header(tag))
    if negotiation.matches_if_none_match(call.request, tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS))
    return call.respond(plain, headers=headers)


HANDLES: Final = b"/hrls/handles"
PING: Final = b"/hrls/ping"

MAX_RESULTS: Final = 10_000
"""Handles in one response: about a megabyte."""

MAX_INLINE_NAMES: Final = 100
"""Handles that are encoded in the event loop; longer lists may take milliseconds, and use a thread."""

MAX_STEPS: Final = 30
"""Registry pages that one request reads: some are empty, and each may take a second."""

MAX_TERMS: Final = 8
"""Terms in one query; each compares every record found by the first."""

WILDCARD: Final = "*"

_RESERVED_PARAMETERS: Final = frozenset(("after", "limit", "page", "prefix"))
"""Parameters that are not types."""


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on one value of a record."""

    type: str
    pattern: str

    @property
    def is_exact(self) -> bool:
        """Whether it has no wildcard."""
        return WILDCARD not in self.pattern

    @property
    def search(self) -> Search:
        """The search for records that may match."""
        if fold(self.type) == URL:
            return Search(url=self.pattern, type=self.type)
        return Search(type=self.type, value=self.pattern.encode("utf-8") if self.is_exact else None)

    def matches_value(self, value: Value) -> bool:
        """Whether a value matches."""
        return fold(value.type) == fold(self.type) and matches(self.pattern, value.data.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class ReverseQuery:
    """A parsed reverse lookup."""

    terms: tuple[Term, ...]
    """The first is searched, the others are compared."""
    prefix: str | None
    after: str | None
    limit: int

    @classmethod
    def of(cls, parameters: Parameters) -> "ReverseQuery":
        """Parse the parameters; raises `BadRequest`."""
        terms = [
            Term(type_, pattern) for type_, pattern in parameters.pairs if type_ and type_ not in _RESERVED_PARAMETERS
        ]
        if not 1 <= len(terms) <= MAX_TERMS:
            raise BadRequest(f"send 1 to {MAX_TERMS} search terms as TYPE=VALUE")
        # An exact value matches the fewest records, a URL pattern some, and a type alone very many.
        terms.sort(key=lambda term: (not term.is_exact, fold(term.type) != URL))
        limit = parameters.number("limit")
        if limit is not None and limit <= 0:
            raise BadRequest("the parameter limit must be a positive number")
        return cls(
            tuple(terms), parameters.first("prefix"), parameters.first("after"), min(limit or MAX_RESULTS, MAX_RESULTS)
        )


async def handle_search(request_context: RequestContext) -> Response:
    """Handle a reverse lookup."""
    path = request_context.request.path.rstrip(b"/")
    if path == PING:
        return Response(200, (("Content-Type", "text/plain;charset=utf-8"), NO_STORE), b"OK")
    call = Call(
        request_context,
        await authenticate(request_context),
        Parameters.parse(request_context.request.query),
        DEFAULT_FORMAT,
    )
    return await call.catching_errors(None, _handle_search(call, path))


async def _handle_search(call: Call, path: bytes) -> Response:
    if call.auth.problem is not None:
        return call.authentication_failed(None)
    if path != HANDLES:
        raise BadRequest("not found; use /hrls/handles/ or /hrls/ping", NOT_FOUND)
    query = ReverseQuery.of(call.parameters)
    results: dict[str, None] = {}
    after = query.after
    for _ in range(MAX_STEPS):
        names, after = await _find_page(call, query, after)
        results |= dict.fromkeys(names)
        if after is None or len(results) >= query.limit:
            break
    if not results and call.is_anonymous:
        reason = "no public results"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, AdviceKind.AUTHENTICATE_TO_SEARCH())
    names = list(results)
    if len(names) <= MAX_INLINE_NAMES:
        body = responses.encode_json(names)
    else:
        body = await call.request_context.do(WorkKind.READ, lambda: responses.encode_json(names))
    more = () if after is None else (("Link", f'<{_next_url(call.parameters, after)}>; rel="next"'),)
    return Response(
        200, (DEFAULT_FORMAT.content_type, NO_STORE, *more), body, code=int(ResponseCode.SUCCESS), identity=call.named
    )


async def _find_page(call: Call, query: ReverseQuery, after: str | None) -> tuple[list[str], str | None]:
    return await call.read(lambda context: _find_names(context, query, after))


def _find_names(context: Context, query: ReverseQuery, after: str | None) -> tuple[list[str], str | None]:
    """Find a page of handles, and the cursor of the next; None at the end."""
    first, *others = query.terms
    search = replace(first.search, prefix=query.prefix)
    page = find(context.snapshot, context.identity, search, after, min(query.limit, MAX_PAGE))
    terms = others if first.is_exact or fold(first.type) == URL else query.terms
    names = [item.handle for item in page.items if not terms or _matches_terms(context, item.handle, terms)]
    return names, page.following


def _matches_terms(context: Context, name: str, terms: Sequence[Term]) -> bool:
    """Whether values of a record that the caller can read match all terms."""
    handle = Handle.parse_lenient(name)
    values = context.snapshot.stored(handle).values
    public = [value for value in values if value.is_public]
    missing = [term for term in terms if not any(map(term.matches_value, public))]
    if not missing:
        return True
    private = [value for value in values if not value.is_public and Permission.ADMIN_READ in value.permissions]
    if not all(any(map(term.matches_value, private)) for term in missing):
        return False
    return context.is_allowed(permissions.read(handle))


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with `*` for any characters; in linear time."""
    first, *parts = pattern.split(WILDCARD)
    if not parts:
        return text == first
    *middle, last = parts
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    start, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


def _next_url(parameters: Parameters, after: str) -> str:
    pairs = [pair for pair in parameters.pairs if pair[0] != "after"]
    return f"{HANDLES.decode()}/?{urlencode([*pairs, ('after', after)])}"
