"""Lists over the API: the handles of a prefix (http-api reference, 6.6), hosted prefixes (6.7), the site record.

    ?prefix=12345&page=0&pageSize=100     a page by number, as deployed clients request
    ?prefix=12345                         everything
    ?prefix=12345&after=0                 from the start, then `after` the value of `next`

A page by number costs as much as all pages before it, and new handles shift the others. `after` has constant cost and
misses nothing. Long lists are streamed while they are read, so that they are never completely in memory.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from perseid import __version__
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.encoding import JsonObject
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.records import Home
from perseid.registry.context import Context
from perseid.registry.queries.listing import ListedHandle, count_handles, list_by_offset, list_handles, list_homed
from perseid.registry.queries.paging import DEFAULT_PAGE, MAX_PAGE, Page
from perseid.registry.results import NOT_A_PREFIX_HANDLE, Refused
from perseid.server.http import negotiation, responses
from perseid.server.http.messages import SAFE_METHODS, BadRequest, Name, Response
from perseid.server.http.responses import NO_STORE, encode_json
from perseid.wire.codes import ResponseCode

from .call import Call
from .reading import NO_CACHE, NOT_MODIFIED, VARY

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_MAX_DIGITS: Final = 19  # of a 64-bit number


async def handle_request(call: Call, prefix: str) -> Response:
    """List the handles of a prefix."""
    return await call.catching_errors(prefix, _handle_request(call, prefix))


async def _handle_request(call: Call, prefix: str) -> Response:
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
    begin = begin | {"totalCount": str(first.total)} | numbers
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
    remaining -= len(first)
    last, more = first[-1].seq, True
    while remaining > 0 and more:
        page = await _next_page(call, prefix, last)
        last, more = page.last, page.more  # a page may be empty although there are more
        if names := _names(page.items[:remaining]):
            yield names
        remaining -= len(names)


async def _next_page(call: Call, prefix: str, last: int) -> Page[ListedHandle]:
    return await call.read(lambda context: _read_page(context, prefix, last, MAX_PAGE), prefix)


@dataclass(frozen=True, slots=True)
class _FirstPage:
    """The total number of handles, and the first page of those requested."""

    total: int
    items: tuple[ListedHandle, ...]


def _read_first_page(context: Context, prefix: str, skip: int, limit: int | None) -> _FirstPage:
    total = count_handles(context.snapshot, context.identity, prefix)
    size = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    if not size or skip >= total:
        return _FirstPage(total, ())
    return _FirstPage(total, list_by_offset(context.snapshot, context.identity, prefix, skip, size))


def _read_page(context: Context, prefix: str, after: int, limit: int) -> Page[ListedHandle]:
    return list_handles(context.snapshot, context.identity, prefix, after, limit)


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
    headers = (("Cache-Control", NO_CACHE), VARY, negotiation.etag_header(tag))
    if negotiation.matches_if_none_match(call.request, tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS))
    return call.respond(plain, headers=headers)
