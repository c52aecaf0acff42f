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
from perseid.registry.queries.listing import Listed, Page, count_handles, list_handles, list_homed, list_numbered
from perseid.registry.results import Refused
from perseid.server.http import bodies, caching
from perseid.server.http.messages import READING, Response
from perseid.server.http.responses import NO_STORE, encoded
from perseid.server.http.targets import Malformed, Name
from perseid.wire.codes import ResponseCode

from .call import Call
from .reading import NO_CACHE, NOT_MODIFIED, VARIES

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_MOST_DIGITS: Final = 19  # of a number of 64 bits


async def answer(call: Call, prefix: str) -> Response:
    """The names of a prefix."""
    return await call.refusing(prefix, _answer(call, prefix))


async def _answer(call: Call, prefix: str) -> Response:
    try:
        if "after" in call.parameters:
            return await _behind(call, prefix)
        return await _numbered(call, prefix)
    except Refused as refused:
        if refused.code == ResponseCode.INVALID_HANDLE:  # to deployed servers it is a prefix that they do not have
            raise Refused(ResponseCode.SERVER_NOT_RESP, refused.reason, refused.advice, refused.rule) from refused
        raise


async def _behind(call: Call, prefix: str) -> Response:
    text = call.parameters.first("after") or ""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise Malformed("the parameter after should be 0, or what the page before gave as next")
    size = call.parameters.number("pageSize")
    limit = DEFAULT_PAGE if size is None or size <= 0 else min(size, MAX_PAGE)
    page = await call.read(lambda context: _page(context, prefix, int(text), limit), prefix)
    plain: JsonObject = {"responseCode": _SUCCESS, "prefix": prefix, "handles": _names(page.items)}
    if page.more:
        plain["next"] = str(page.last)
    return call.answer(plain, name=prefix)


async def _numbered(call: Call, prefix: str) -> Response:
    page, size = call.parameters.number("page"), call.parameters.number("pageSize")
    begin: JsonObject = {"responseCode": _SUCCESS, "prefix": prefix}
    if page is not None and size is not None and page >= 0 and size >= 0:
        skip, limit = page * size, size
        numbers: JsonObject = {"page": page, "pageSize": size}
    else:
        skip, limit, numbers = 0, None, {}
    first = await call.read(lambda context: _first(context, prefix, skip, limit), prefix)
    begin = begin | {"totalCount": str(first.total)} | numbers
    left = first.total - skip if limit is None else min(limit, first.total - skip)
    if left <= MAX_PAGE:
        return call.answer(begin | {"handles": _names(first.items)}, name=prefix)
    return _streamed(call, begin, _pieces(call, prefix, first.items, left))


def _streamed(call: Call, begin: JsonObject, pieces: "AsyncIterator[list[str]]") -> Response:
    """An answer that is read while it is sent."""
    whole = call.answer(begin, name=str(begin["prefix"]))
    return replace(whole, body=b"", stream=_json(call, begin, pieces))


async def _json(call: Call, begin: JsonObject, pieces: "AsyncIterator[list[str]]") -> AsyncIterator[bytes]:
    """The same octets as if it were put together first."""
    pretty = call.form.pretty
    before, behind = call.form.wrap()
    head = encoded(begin | {"handles": []}, pretty=pretty)
    opened = head[: head.rindex(b"[") + 1]
    separator, end = (b",\n    ", b"\n  ]\n}") if pretty else (b",", b"]}")
    yield before + opened + (separator[1:] if pretty else b"")
    is_first = True
    async for names in pieces:
        octets = separator.join([encoded(name) for name in names])
        yield octets if is_first else separator + octets
        is_first = False
    yield end + behind


async def _pieces(call: Call, prefix: str, first: tuple[Listed, ...], left: int) -> AsyncIterator[list[str]]:
    """The names in their order, a part at a time; whoever asks has to have the right each time."""
    yield _names(first)
    left -= len(first)
    last, more = first[-1].seq, True
    while left > 0 and more:
        page = await _following(call, prefix, last)
        last, more = page.last, page.more  # a page may be empty although there are more
        if names := _names(page.items[:left]):
            yield names
        left -= len(names)


async def _following(call: Call, prefix: str, last: int) -> Page[Listed]:
    return await call.read(lambda context: _page(context, prefix, last, MAX_PAGE), prefix)


@dataclass(frozen=True, slots=True)
class _Begun:
    """How many names there are, and the first of those that were asked for."""

    total: int
    items: tuple[Listed, ...]


def _first(context: Context, prefix: str, skip: int, limit: int | None) -> _Begun:
    total = count_handles(context.facts, context.who, prefix)
    wanted = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    if not wanted or skip >= total:
        return _Begun(total, ())
    return _Begun(total, list_numbered(context.facts, context.who, prefix, skip, wanted))


def _page(context: Context, prefix: str, after: int, limit: int) -> Page[Listed]:
    return list_handles(context.facts, context.who, prefix, after, limit)


def _names(items: tuple[Listed, ...]) -> list[str]:
    return [item.handle for item in items]


_MARKER = f"{PREFIX_OF_PREFIXES}/"


async def answer_prefixes(call: Call, name: Name) -> Response:
    """List, home or unhome; a prefix that is named in the query or the body goes before the one in the path."""
    if call.request.method in READING:
        return await call.refusing(None, _list(call))
    parameters = call.parameters
    if call.request.method == "POST":
        parameters = parameters.plus(bodies.parameters(call.request))
    given = parameters.first("prefix")
    if not (prefix := name.text if given is None else given):
        raise Malformed('no prefix is named: write it in the path, or as {"prefix": "…"} in the body')
    return await call.refusing(prefix, _home(call, prefix, unhome=call.request.method == "DELETE"))


async def _list(call: Call) -> Response:
    page, size = call.parameters.number("page"), call.parameters.number("pageSize")
    prefixes = sorted(await call.read(lambda context: list_homed(context.facts, context.who)))
    plain: JsonObject = {"responseCode": int(ResponseCode.SUCCESS), "totalCount": str(len(prefixes))}
    if page is not None and size is not None and page >= 0 and size >= 0:
        plain |= {"page": page, "pageSize": size}
        prefixes = prefixes[page * size :][:size]
    return call.answer(plain | {"prefixes": prefixes})


async def _home(call: Call, prefix: str, *, unhome: bool) -> Response:
    if "/" in prefix and not fold(prefix).startswith(_MARKER):
        advice = f"a prefix is written as 12345, or as {_MARKER}12345"
        raise Refused(ResponseCode.INVALID_HANDLE, "Handle is not a prefix handle", advice)
    await call.change(lambda _: Home(prefix, unhome))
    return call.answer({"responseCode": int(ResponseCode.SUCCESS), "handle": prefix}, name=prefix)


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


async def site(call: Call) -> Response:
    """The site record."""
    return _public(call, {"site": call.asking.place.site.to_json()})


async def description(call: Call) -> Response:
    """What this is, and where everything else is."""
    return _public(call, {"name": "Perseid", "version": __version__, "links": LINKS})


def _public(call: Call, plain: JsonObject) -> Response:
    """An answer that is the same for everybody."""
    plain = {"responseCode": int(ResponseCode.SUCCESS)} | plain
    if not call.is_public:
        return call.answer(plain, headers=(NO_STORE,))
    tag = hashlib.sha256(encoded(plain)).hexdigest()[:32]
    headers = (("Cache-Control", NO_CACHE), VARIES, caching.header(tag))
    if caching.is_known(call.request, tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS))
    return call.answer(plain, headers=headers)
