"""TimeMaps (RFC 7089, section 5): the versions of a handle, as links or as JSON, page by page.

    /timemap/link/{name}              application/link-format
    /timemap/json/{name}              the same as JSON
    …?before=SEQ                      the page with the versions before an entry; each page links the next

They list absolute URLs, so there are none without a public URL. Their headers name the original (section 5.1.2). A
TimeMap is always current: `Accept-Datetime` is ignored.
"""

import re
from dataclasses import replace
from typing import Final

from perseid.registry.identity import Anonymous
from perseid.registry.queries.links import Link, format_headers
from perseid.registry.queries.memento import JSON, get_time_map
from perseid.registry.results import Refused
from perseid.server.http.context import HttpSettings, RequestContext
from perseid.server.http.messages import Response
from perseid.server.http.negotiation import AcceptHeader
from perseid.server.http.targets import BadRequest
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from . import problems
from .addresses import MAX_LINK_BYTES, TIME_MAP_FORMS, get_addresses
from .lookup import LookupFailure, RecordReader
from .paths import RequestedName, parse_query
from .problems import NO_CACHE, Problem

_NUMBER: Final = re.compile("[0-9]{1,18}")
_NO_PUBLIC_URL: Final = "TimeMaps are not available: this server has no public URL. Set http.public_url."


async def handle_request(request_context: RequestContext, path: str, accepted: AcceptHeader) -> Response:
    """Return the TimeMap for a path without leading slash."""
    settings = request_context.server.settings
    form, _, name = path.partition("/")[2].partition("/")
    media_type = TIME_MAP_FORMS.get(form)
    name = name.lstrip("/")
    if media_type is None or not name:
        return _error_response(problems.page_not_found(path, settings), accepted, settings)
    before = parse_query(request_context.request.query).first("before")
    if before is not None and not _NUMBER.fullmatch(before):
        raise BadRequest("the parameter before must be an entry number; use the URL in the TimeMap unchanged")
    if not settings.public_url:
        problem = Problem(404, "Not Found", ResponseCode.HANDLE_NOT_FOUND, name, sentences=(_NO_PUBLIC_URL,))
        return _error_response(problem, accepted, settings)
    first = None if before is None else int(before)
    return await request_context.do(
        WorkKind.READ, lambda: _build_response(request_context, RequestedName(name), media_type, first, accepted)
    )


def _build_response(
    request_context: RequestContext, named: RequestedName, media_type: str, before: int | None, accepted: AcceptHeader
) -> Response:
    server = request_context.server
    settings = server.settings
    with server.registry.snapshot() as snapshot:
        reader = RecordReader(snapshot, server, server.registry.now())
        try:
            handle = reader.find_handle(named)
            space = reader.space(handle)
            if space.inactive is not None:
                return _error_response(problems.inactive_namespace(named.name, space), accepted, settings)
            found = get_time_map(snapshot, Anonymous(), handle, before)
        except LookupFailure as failure:
            return _error_response(problems.from_lookup_failure(failure, named.name, settings), accepted, settings)
        except Refused as refused:
            return _error_response(
                problems.from_lookup_failure(LookupFailure(refused, named.name), named.name, settings),
                accepted,
                settings,
            )
    addresses = get_addresses(str(found.handle), settings)
    assert addresses is not None  # noqa: S101 - there is a public URL
    if media_type == JSON:
        text, type_ = found.to_json(addresses), f"{JSON};charset=utf-8"
    else:
        text, type_ = found.to_link_format(addresses), media_type
    itself = Link(addresses.timemap(media_type, before), "timemap", addresses.original, media_type)
    links = [("Link", value) for value in format_headers([itself], max_bytes=MAX_LINK_BYTES)]
    headers = (NO_CACHE, *links, ("Content-Type", type_))
    return Response(200, headers, text.encode(), code=int(ResponseCode.SUCCESS), name=named.name)


def _error_response(problem: Problem, accepted: AcceptHeader, settings: HttpSettings) -> Response:
    return problems.to_response(replace(problem, past=True), accepted, settings)
