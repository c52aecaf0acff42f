"""TimeMaps (RFC 7089, section 5): which versions of a name there are, as links or as JSON, page by page.

    /timemap/link/{name}              application/link-format
    /timemap/json/{name}              the same as JSON
    …?before=SEQ                      the page with the versions before an entry; each page names the next

They list addresses, so a server that has declared none has no TimeMaps. What a TimeMap is about its headers say too
(section 5.1.2). It is as it is now: no time that a header names counts for it.
"""

import re
from dataclasses import replace
from typing import Final

from perseid.registry.identity import Anonymous
from perseid.registry.queries.links import Link, header_values
from perseid.registry.queries.memento import JSON, time_map
from perseid.registry.results import Refused
from perseid.server.http.context import Asking, HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.negotiation import Accepted
from perseid.server.http.targets import Malformed
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from . import problems
from .addresses import MAX_LINK_OCTETS, TIME_MAP_FORMS, addresses_of
from .lookup import Lost, Reading
from .paths import Named, read_query
from .problems import NO_CACHE, Problem

_NUMBER: Final = re.compile("[0-9]{1,18}")
_NO_ADDRESS: Final = "This server has declared no address of its own (http.public_url), so it can list none."


async def answer(asking: Asking, path: str, accepted: Accepted) -> Response:
    """The TimeMap at a path without the slash before it."""
    settings = asking.place.settings
    form, _, name = path.partition("/")[2].partition("/")
    media_type = TIME_MAP_FORMS.get(form)
    name = name.lstrip("/")
    if media_type is None or not name:
        return _refused(problems.no_page(path, settings), accepted, settings)
    before = read_query(asking.request.query).first("before")
    if before is not None and not _NUMBER.fullmatch(before):
        raise Malformed("the parameter before should be the number of an entry; take the address of a page as it is")
    if not settings.public_url:
        problem = Problem(404, "Not Found", ResponseCode.HANDLE_NOT_FOUND, name, sentences=(_NO_ADDRESS,))
        return _refused(problem, accepted, settings)
    first = None if before is None else int(before)
    return await asking.do(Kind.READ, lambda: _made(asking, Named(name), media_type, first, accepted))


def _made(asking: Asking, named: Named, media_type: str, before: int | None, accepted: Accepted) -> Response:
    place = asking.place
    settings = place.settings
    with place.registry.facts() as facts:
        reading = Reading(facts, place, place.registry.now())
        try:
            handle = reading.handle_of(named)
            space = reading.space(handle)
            if space.inactive is not None:
                return _refused(problems.inactive(named.name, space), accepted, settings)
            found = time_map(facts, Anonymous(), handle, before)
        except Lost as lost:
            return _refused(problems.lost(lost, named.name, settings), accepted, settings)
        except Refused as refused:
            return _refused(problems.lost(Lost(refused, named.name), named.name, settings), accepted, settings)
    addresses = addresses_of(str(found.handle), settings)
    assert addresses is not None  # noqa: S101 - there is a declared address
    if media_type == JSON:
        text, type_ = found.to_json(addresses), f"{JSON};charset=utf-8"
    else:
        text, type_ = found.to_link_format(addresses), media_type
    itself = Link(addresses.timemap(media_type, before), "timemap", addresses.original, media_type)
    links = [("Link", value) for value in header_values([itself], octets=MAX_LINK_OCTETS)]
    headers = (NO_CACHE, *links, ("Content-Type", type_))
    return Response(200, headers, text.encode(), code=int(ResponseCode.SUCCESS), name=named.name)


def _refused(problem: Problem, accepted: Accepted, settings: HttpSettings) -> Response:
    return problems.answer(replace(problem, past=True), accepted, settings)
