"""Listing the names of a prefix over the API (http-api reference, 6.6).

    ?prefix=12345&page=0&pageSize=100     a page by its number, as deployed clients ask
    ?prefix=12345                         everything
    ?prefix=12345&after=0                 from the beginning, and then `after` what `next` said

The first costs what stands before the page, and names that are made meanwhile move the others. The last costs the same
anywhere and misses nothing. What is long is sent while it is read, a part at a time, so that nobody holds all of it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from perseid.records.json_parsing import JsonObject
from perseid.registry.context import Context
from perseid.registry.queries.history import DEFAULT_PAGE, MAX_PAGE
from perseid.registry.queries.listing import Listed, Page, count_handles, list_handles, list_numbered
from perseid.registry.results import Refused
from perseid.server.http.json_answers import encoded
from perseid.server.http.messages import Response
from perseid.server.http.targets import Malformed
from perseid.wire.codes import ResponseCode

from .call import Call

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
