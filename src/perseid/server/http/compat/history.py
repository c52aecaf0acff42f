"""History over the compatible API.

    GET /api/handles/{handle}?at=TIME|SEQ      the record at a time
    GET … with Accept-Datetime                 the version of a time, without redirect (RFC 7089, pattern 1.2)

The response is that of the API plus the version. Its headers give the time, and links to the neighboring versions.
Anonymous callers get what is public of the history today (`registry.queries.history`).

A record at the API is an original resource with versions of its own, and its own TimeGate. Responses about the present
have one link that says so; there is no TimeMap, which lists the versions at the resolver.
"""

from dataclasses import dataclass, replace
from typing import Final

from perseid.names.handle import Handle
from perseid.records.json_form import value_to_json
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.commands.conditions import public_tag
from perseid.registry.context import Context
from perseid.registry.policy.resolution import cache_lifetime
from perseid.registry.queries.history import as_of
from perseid.registry.queries.memento import Memento, MementoNeighbors, MementoUrls
from perseid.registry.queries.resolve import Query
from perseid.registry.results import Refused, Resolution
from perseid.server.http import caching
from perseid.server.http.caching import cache_headers
from perseid.server.http.messages import SAFE_METHODS, HeaderList, Response
from perseid.server.http.resolver.addresses import get_api_addresses
from perseid.server.http.resolver.time_travel import (
    AT_PARAMETER,
    Moment,
    datetime_headers,
    find_versions,
    gate_links,
    memento_json,
    negotiate_entry,
    parse_accept_datetime,
    parse_moment,
    version_links,
)
from perseid.server.http.responses import NO_STORE, NOT_FOUND
from perseid.server.http.targets import Name
from perseid.wire.codes import ResponseCode

from .call import Call, full_name

NOT_MODIFIED: Final = 304

VARY: Final = ("Vary", "Authorization, Accept-Datetime")
"""Authenticated callers may get more, and `Accept-Datetime` selects another version: caches must distinguish them."""

_VARY_HISTORY: Final = ("Vary", "Authorization")


@dataclass(frozen=True, slots=True)
class _HistoryResult:
    """What was found in the history."""

    moment: Moment
    resolved: Resolution | None
    """None if the handle, or the requested values, did not exist at that time."""
    versions: MementoNeighbors | None
    is_empty: bool = False
    """Whether the handle existed, but not the values."""


def is_history_request(call: Call) -> bool:
    """Whether a call is about the history."""
    return AT_PARAMETER in call.parameters or (
        call.request.method in SAFE_METHODS and call.request.header("accept-datetime") is not None
    )


def gate_headers(call: Call, name: Name) -> HeaderList:
    """Links to the history of a record, for a response to a read of the present."""
    if call.request.method not in SAFE_METHODS:
        return ()
    return gate_links(get_api_addresses(name.text, call.request_context.server.settings))


def gone_headers(call: Call, versions: MementoNeighbors | None) -> HeaderList:
    """The same for a deleted handle; none for one that never existed (RFC 7089, section 4.5.2)."""
    return () if versions is None else version_links(versions, _addresses(call, versions.handle), with_map=False)


async def handle_request(call: Call, name: Name, query: Query) -> Response:
    """Return an earlier version of a record. Raises `Refused`."""
    at = call.parameters.first(AT_PARAMETER)
    try:
        time = parse_accept_datetime(call.request) if at is None else None
    except Refused as refused:  # it is a TimeGate nevertheless (RFC 7089, section 4.5.3)
        failure = call.to_failure(refused)
        headers = (*failure.headers, VARY, *gate_headers(call, name))
        return call.failure_response(replace(failure, headers=headers), name.text)
    found = await call.read(lambda context: _find(call, context, query, at, time), full_name(name.text))
    resolved, versions = found.resolved, found.versions
    if resolved is None and not found.is_empty:
        return _missing_response(call, name, found)
    values = () if resolved is None else resolved.values
    shown = _shown_version(resolved, versions)
    headers = (
        *_cache_headers(call, values, fixed=found.moment.fixed, is_negotiated=time is not None),
        *_memento_headers(call, name, found, shown, is_negotiated=time is not None),
    )
    if resolved is None:
        return call.respond(empty_body(name), headers=headers, name=name.text)

    def write() -> Response:
        response_headers = headers
        if call.request.method in SAFE_METHODS:
            tag = f"{public_tag(resolved.values)}-{shown.seq}"  # the response contains the version
            response_headers = (*headers, caching.etag_header(tag))
            if caching.matches_if_none_match(call.request, tag):
                return Response(
                    NOT_MODIFIED, response_headers, code=int(ResponseCode.SUCCESS), name=name.text, identity=call.named
                )
        plain: JsonObject = {
            "responseCode": int(ResponseCode.SUCCESS),
            "handle": name.text,
            "values": [value_to_json(value) for value in resolved.values],
            "version": memento_json(shown),
        }
        return call.respond(plain, headers=response_headers, name=name.text)

    return await call.render_values(resolved.values, write)


def empty_body(name: Name) -> JsonObject:
    """The body of a response without the requested values."""
    return {"responseCode": int(ResponseCode.VALUES_NOT_FOUND), "values": [], "handle": name.text}


def _shown_version(resolved: Resolution | None, versions: MementoNeighbors | None) -> Memento:
    """The version that a response shows."""
    if versions is not None:
        return versions.memento
    assert resolved is not None  # noqa: S101 - a handle without versions of its own comes from a template
    return Memento(resolved.seq, resolved.at)


def _find(call: Call, context: Context, query: Query, at: str | None, time: int | None) -> _HistoryResult:
    snapshot, identity, handle = context.snapshot, context.identity, query.handle
    if time is not None:
        seq, versions = negotiate_entry(context, handle, time)
        moment = Moment(seq, fixed=True)
    else:
        moment = parse_moment(at or "", snapshot, call.request_context.server.registry)
        versions = find_versions(snapshot, handle, moment.seq, identity)
    try:
        resolved = as_of(snapshot, identity, query, moment.seq).resolved
    except Refused as refused:
        is_empty = refused.code is ResponseCode.VALUES_NOT_FOUND
        if versions is None or not (is_empty or refused.code is ResponseCode.HANDLE_NOT_FOUND):
            raise
        return _HistoryResult(moment, None, versions, is_empty)
    return _HistoryResult(moment, resolved, None if resolved.by_template else versions)


def _missing_response(call: Call, name: Name, found: _HistoryResult) -> Response:
    """Create the response for a handle that did not exist at that time, with the version before or after."""
    versions = found.versions
    assert versions is not None  # noqa: S101 - otherwise it was refused
    version = versions.memento
    plain: JsonObject = {"responseCode": int(ResponseCode.HANDLE_NOT_FOUND), "handle": name.text}
    plain["first" if version.seq > found.moment.seq else "previous"] = memento_json(version)
    links = version_links(versions, _addresses(call, versions.handle), with_map=False)
    return call.respond(plain, NOT_FOUND, (NO_STORE, *links), name=name.text)


def _memento_headers(
    call: Call, name: Name, found: _HistoryResult, shown: Memento, *, is_negotiated: bool
) -> HeaderList:
    versions = found.versions
    if versions is None:
        addresses, seq = get_api_addresses(name.text, call.request_context.server.settings), found.moment.seq
        links = gate_links(addresses)
    else:
        addresses, seq = _addresses(call, versions.handle), shown.seq
        links = version_links(versions, addresses, with_map=False)
    located: HeaderList = ()
    if is_negotiated and addresses is not None:
        located = (("Content-Location", addresses.memento(seq)),)
    return (*datetime_headers(shown), *located, *links)


def _addresses(call: Call, handle: Handle) -> MementoUrls | None:
    return get_api_addresses(str(handle), call.request_context.server.settings)


def _cache_headers(call: Call, values: tuple[Value, ...], *, fixed: bool, is_negotiated: bool) -> HeaderList:
    if not call.is_public:
        return (NO_STORE,)
    if is_negotiated:  # the version of that time can change until the time has passed
        return ("Cache-Control", "no-cache"), VARY
    now = call.request_context.server.time()
    age = cache_headers(cache_lifetime(values, now), now, no_cache=call.parameters.flag("auth"), fixed=fixed)
    return (*age, _VARY_HISTORY)
