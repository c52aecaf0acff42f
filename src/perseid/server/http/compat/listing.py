"""Listing the names of a prefix over the API (http-api reference, 6.6).

    ?prefix=12345&page=0&pageSize=100     a page by its number, as deployed clients ask
    ?prefix=12345                         everything
    ?prefix=12345&after=0                 from the beginning, and then `after` what `next` said

The first costs what stands before the page, and names that are made meanwhile move the others. The last costs the same
anywhere and misses nothing. What is long is sent while it is read, a part at a time, so that nobody holds all of it.

The prefixes that this server is responsible for, over the API (http-api reference, 6.7): list, home, unhome.

What this server says about itself over the API: its site record, and where everything is.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from perseid import __version__
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.json_parsing import JsonObject
from perseid.registry.commands.records import Home
from perseid.registry.context import Context
from perseid.registry.queries.history import DEFAULT_PAGE, MAX_PAGE
from perseid.registry.queries.listing import ListedHandle, Page, count_handles, list_by_offset, list_handles, list_homed
from perseid.registry.results import Refused
from perseid.server.http import bodies, caching
from perseid.server.http.messages import SAFE_METHODS, Response
from perseid.server.http.responses import NO_STORE, encode_json
from perseid.server.http.targets import BadRequest, Name
from perseid.wire.codes import ResponseCode

from .call import Call
from .reading import NO_CACHE, NOT_MODIFIED, VARY

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_MAX_DIGITS: Final = 19  # of a number of 64 bits


async def handle_request(call: Call, prefix: str) -> Response:
    """The names of a prefix."""
    return await call.catching_errors(prefix, _handle_request(call, prefix))


async def _handle_request(call: Call, prefix: str) -> Response:
    try:
        if "after" in call.parameters:
            return await _list_after(call, prefix)
        return await _list_page(call, prefix)
    except Refused as refused:
        if refused.code == ResponseCode.INVALID_HANDLE:  # to deployed servers it is a prefix that they do not have
            raise Refused(ResponseCode.SERVER_NOT_RESP, refused.reason, refused.advice, refused.rule) from refused
        raise


async def _list_after(call: Call, prefix: str) -> Response:
    text = call.parameters.first("after") or ""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise BadRequest("the parameter after should be 0, or what the page before gave as next")
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
    left = first.total - skip if limit is None else min(limit, first.total - skip)
    if left <= MAX_PAGE:
        return call.respond(begin | {"handles": _names(first.items)}, name=prefix)
    return _streaming_response(call, begin, _stream_names(call, prefix, first.items, left))


def _streaming_response(call: Call, begin: JsonObject, pieces: "AsyncIterator[list[str]]") -> Response:
    """An answer that is read while it is sent."""
    whole = call.respond(begin, name=str(begin["prefix"]))
    return replace(whole, body=b"", stream=_stream_json(call, begin, pieces))


async def _stream_json(call: Call, begin: JsonObject, pieces: "AsyncIterator[list[str]]") -> AsyncIterator[bytes]:
    """The same octets as if it were put together first."""
    pretty = call.form.pretty
    before, behind = call.form.wrap()
    head = encode_json(begin | {"handles": []}, pretty=pretty)
    opened = head[: head.rindex(b"[") + 1]
    separator, end = (b",\n    ", b"\n  ]\n}") if pretty else (b",", b"]}")
    yield before + opened + (separator[1:] if pretty else b"")
    is_first = True
    async for names in pieces:
        data = separator.join([encode_json(name) for name in names])
        yield data if is_first else separator + data
        is_first = False
    yield end + behind


async def _stream_names(
    call: Call, prefix: str, first: tuple[ListedHandle, ...], left: int
) -> AsyncIterator[list[str]]:
    """The names in their order, a part at a time; whoever asks has to have the right each time."""
    yield _names(first)
    left -= len(first)
    last, more = first[-1].seq, True
    while left > 0 and more:
        page = await _next_page(call, prefix, last)
        last, more = page.last, page.more  # a page may be empty although there are more
        if names := _names(page.items[:left]):
            yield names
        left -= len(names)


async def _next_page(call: Call, prefix: str, last: int) -> Page[ListedHandle]:
    return await call.read(lambda context: _read_page(context, prefix, last, MAX_PAGE), prefix)


@dataclass(frozen=True, slots=True)
class _FirstPage:
    """How many names there are, and the first of those that were asked for."""

    total: int
    items: tuple[ListedHandle, ...]


def _read_first_page(context: Context, prefix: str, skip: int, limit: int | None) -> _FirstPage:
    total = count_handles(context.snapshot, context.identity, prefix)
    wanted = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    if not wanted or skip >= total:
        return _FirstPage(total, ())
    return _FirstPage(total, list_by_offset(context.snapshot, context.identity, prefix, skip, wanted))


def _read_page(context: Context, prefix: str, after: int, limit: int) -> Page[ListedHandle]:
    return list_handles(context.snapshot, context.identity, prefix, after, limit)


def _names(items: tuple[ListedHandle, ...]) -> list[str]:
    return [item.handle for item in items]


_PREFIX_MARKER = f"{PREFIX_OF_PREFIXES}/"


async def handle_prefixes(call: Call, name: Name) -> Response:
    """List, home or unhome; a prefix that is named in the query or the body goes before the one in the path."""
    if call.request.method in SAFE_METHODS:
        return await call.catching_errors(None, _list(call))
    parameters = call.parameters
    if call.request.method == "POST":
        parameters = parameters.plus(bodies.parse_parameters(call.request))
    given = parameters.first("prefix")
    if not (prefix := name.text if given is None else given):
        raise BadRequest('no prefix is named: write it in the path, or as {"prefix": "…"} in the body')
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
        advice = f"a prefix is written as 12345, or as {_PREFIX_MARKER}12345"
        raise Refused(ResponseCode.INVALID_HANDLE, "Handle is not a prefix handle", advice)
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
"""Where everything is."""


async def handle_site(call: Call) -> Response:
    """The site record."""
    return _public_response(call, {"site": call.request_context.place.site.to_json()})


async def handle_description(call: Call) -> Response:
    """What this is, and where everything else is."""
    return _public_response(call, {"name": "Perseid", "version": __version__, "links": LINKS})


def _public_response(call: Call, plain: JsonObject) -> Response:
    """An answer that is the same for everybody."""
    plain = {"responseCode": int(ResponseCode.SUCCESS)} | plain
    if not call.is_public:
        return call.respond(plain, headers=(NO_STORE,))
    tag = hashlib.sha256(encode_json(plain)).hexdigest()[:32]
    headers = (("Cache-Control", NO_CACHE), VARY, caching.etag_header(tag))
    if caching.matches_if_none_match(call.request, tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS))
    return call.respond(plain, headers=headers)
