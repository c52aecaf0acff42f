"""Signposting: typed links in headers, records in other forms, and TimeMaps.

A redirect has only a few links, which depend on the name alone (`paths.redirect_links`). The page of a record and
its JSON have those of `registry.queries.signposting` as far as they fit into headers; the linkset has all of them. A
description in another form names what it describes and its linkset. All have links to the history, or to the versions
around the one shown.

A TimeMap (RFC 7089, section 5) has the versions of a handle, as links or as JSON, page by page:

    /timemap/link/{name}              application/link-format
    /timemap/json/{name}              the same as JSON
    …?before=SEQ                      the page with the versions before an entry; each page links the next

They list absolute URLs, so there are none without a public URL. Their headers name the original (section 5.1.2). A
TimeMap is always current: `Accept-Datetime` is ignored.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from markupsafe import Markup

from perseid.registry.identity import Anonymous
from perseid.registry.queries.links import MAX_HEADER_BYTES, Link, format_headers
from perseid.registry.queries.memento import JSON, Memento, get_time_map
from perseid.registry.queries.signposting import (
    ABOUT_PAGE,
    BIBLIOGRAPHY,
    BIBTEX,
    FORMATTERS,
    DescribedRecord,
    build_links,
    format_json_ld,
    format_link_headers,
)
from perseid.registry.results import Refused, Resolution
from perseid.server.http.context import HttpSettings, RequestContext
from perseid.server.http.messages import BadRequest, HeaderList, Response
from perseid.server.http.negotiation import AcceptHeader
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from . import problems
from .lookup import LookupFailure, LookupResult, RecordReader
from .paths import (
    MAX_LINK_BYTES,
    TIME_MAP_FORMS,
    RequestedName,
    get_addresses,
    get_cited_resolver,
    get_forms,
    parse_query,
    record_url,
    redirect_links,
)
from .problems import NO_CACHE, Problem
from .time_travel import datetime_headers, gate_links, memento_headers

MAX_EMBEDDED: Final = 65_536
"""Characters of the longest description that is embedded in a page, so that it does not double the page."""

_OF_FORMS: Final = ("cite-as", "linkset")  # relations of a description itself
_CHARSETS: Final = frozenset((BIBTEX, BIBLIOGRAPHY))  # types that need a charset


def describe(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> DescribedRecord:
    """Collect everything known about a record."""
    resolved, name = found.resolved, found.registered_name
    then = () if reader.at is None else (f"at={reader.at}",)
    return DescribedRecord(
        reader.policy(found),
        resolved,
        found.reference,
        get_cited_resolver(settings),
        reader.authority(found),
        lambda: reader.candidates(found).locations,
        record_url(name, settings, "noredirect", *then) if settings.public_url else None,
        get_forms(name, settings, reader.at),
        fixed=reader.at is not None,
    )


def record_headers(
    described: DescribedRecord, found: LookupResult, reader: RecordReader, settings: HttpSettings, *, is_page: bool
) -> HeaderList:
    """The headers of a record's page or JSON: all links that fit."""
    own = (Link(ABOUT_PAGE, "type"),) if is_page else ()

    def format_own(max_bytes: int) -> tuple[str, ...]:
        return format_link_headers(described, own, max_bytes)

    return _headers(format_own, found, reader, settings)


def form_headers(
    described: DescribedRecord, found: LookupResult, reader: RecordReader, settings: HttpSettings
) -> HeaderList:
    """The headers of a record in another form."""
    own = [link for link in build_links(described) if link.relations[0] in _OF_FORMS]
    with suppress(ValueError):
        own.append(Link(described.address, "describes"))
    return _headers(lambda max_bytes: format_headers(own, max_bytes=max_bytes), found, reader, settings)


def _headers(
    format_own: Callable[[int], tuple[str, ...]], found: LookupResult, reader: RecordReader, settings: HttpSettings
) -> HeaderList:
    """Links that take at most so many bytes, and the time headers; only the latter without a public URL."""
    times = time_headers(found.resolved, reader, settings)
    if not settings.public_url:
        return times
    remaining = max(0, MAX_HEADER_BYTES - sum(len(name) + len(value) + 4 for name, value in times))
    return (*[("Link", value) for value in format_own(remaining)], *times)


def time_headers(resolved: Resolution, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The headers about other times: links to the history, or to the versions around this one.

    A handle made by a template has no versions of its own, and so no TimeMap. The start of its state is known.
    """
    addresses = get_addresses(str(resolved.registered), settings)
    if reader.at is None:
        return gate_links(addresses, with_map=not resolved.by_template)
    versions = reader.versions(resolved)
    if versions is not None:
        return memento_headers(versions, addresses)
    return (*datetime_headers(Memento(resolved.seq, resolved.at)), *gate_links(addresses))


def redirect_headers(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The links of a redirect."""
    return _redirect_headers(found.name, found.resolved, reader, settings)


def alias_headers(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The links of a redirect from an alias; they are about the alias."""
    return _redirect_headers(found.aliases[0], found.first, reader, settings)


def _redirect_headers(name: str, resolved: Resolution, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    if reader.at is not None:
        return time_headers(resolved, reader, settings)
    value = redirect_links(name, settings, with_map=not resolved.by_template)
    return () if value is None else (("Link", value),)


def form_response(media_type: str, described: DescribedRecord, status: int, headers: HeaderList) -> Response:
    """Create the response with a record in another form."""
    body = FORMATTERS[media_type](described).encode("utf-8", "replace")
    type_ = f"{media_type};charset=utf-8" if media_type in _CHARSETS else media_type
    return Response(status, (*headers, ("Content-Type", type_)), body)


def embedded_json_ld(described: DescribedRecord, settings: HttpSettings) -> Markup | None:
    """The description embedded in a record's page; None if it is too long, or without a public URL.

    It is data, not a script: browsers do not run JSON-LD, and its text cannot close the element. See
    `registry.queries.signposting`.
    """
    if not settings.public_url:
        return None
    text = format_json_ld(described)
    return Markup(text) if len(text) <= MAX_EMBEDDED else None  # noqa: S704 - it contains no markup


# TimeMaps

_NUMBER: Final = re.compile("[0-9]{1,18}")
_NO_PUBLIC_URL: Final = "TimeMaps are not available: this server has no public URL. Set http.public_url."


async def time_map_response(request_context: RequestContext, path: str, accepted: AcceptHeader) -> Response:
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
        problem = Problem(404, "Not found", ResponseCode.HANDLE_NOT_FOUND, name, sentences=(_NO_PUBLIC_URL,))
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
            namespace = reader.describe_namespace(handle)
            if namespace.inactive is not None:
                return _error_response(problems.inactive_namespace(named.name, namespace), accepted, settings)
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
