"""Reading records and their earlier versions over the API (http-api reference, 6.1).

Anonymous callers get the public values, with an entity tag and cacheable by their TTLs; authenticated callers get all
values that they may read, not cacheable. A POST is a GET with more room for parameters, and never creates. Suggestions
for unknown handles are returned with `suggest`.

    GET /api/handles/{handle}?at=TIME|SEQ      the record at a time
    GET … with Accept-Datetime                 the version of a time, without redirect (RFC 7089, pattern 1.2)

An earlier version is returned like the record, with the version. Its headers give the time, and links to the
neighboring versions. Anonymous callers get what is public of the history today (`registry.queries.history`). A record
at the API is an original resource with versions of its own, and its own TimeGate. Responses about the present have one
link that says so; there is no TimeMap, which lists the versions at the resolver.
"""

from dataclasses import dataclass, replace
from typing import Final

from perseid.names.handle import Handle, fold
from perseid.records.encoding import JsonObject
from perseid.records.json_form import value_to_json
from perseid.records.record import Value, select
from perseid.registry.access import permissions
from perseid.registry.commands.composition import entry_tag, public_tag
from perseid.registry.context import Context
from perseid.registry.policy.resolution import cache_lifetime
from perseid.registry.queries.history import as_of
from perseid.registry.queries.memento import Memento, MementoNeighbors, MementoUrls, find_deleted
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.queries.suggest import may_be_typo
from perseid.registry.results import ReferralError, Refused, Resolution
from perseid.registry.snapshot import SITE_PREFIX
from perseid.server.http import negotiation, responses
from perseid.server.http.messages import SAFE_METHODS, HeaderList, Name, Response
from perseid.server.http.negotiation import cache_headers
from perseid.server.http.resolver.paths import get_api_addresses
from perseid.server.http.resolver.problems import find_suggestions
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
from perseid.server.http.responses import NO_STORE, NOT_FOUND, Failure
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import UnstorableName
from perseid.server.native.operations import STATUS_SUFFIX, status_values
from perseid.wire.codes import ResponseCode

from .call import Call, full_name

NOT_MODIFIED: Final = 304

_VARY_HISTORY: Final = ("Vary", "Authorization")

PUT_CREATES: Final = "POST does not create a record; use PUT to create one"

_PUBLIC_ONLY: Final = "use publicOnly=true to read the public values"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Values, and the tag of their state."""

    values: tuple[Value, ...]
    tag: str
    """Empty for data that has no tag."""
    has_past: bool = True
    """Whether it has a history."""


@dataclass(slots=True)
class _DeletedVersions:
    """What was found about a handle without record."""

    versions: MementoNeighbors | None = None
    """Its last version, if that is public."""


async def handle_request(call: Call, name: Name) -> Response:
    """Read a record."""
    return await call.catching_errors(name.text, _handle_request(call, name))


async def _handle_request(call: Call, name: Name) -> Response:
    parameters = call.parameters
    indexes, types = tuple(parameters.numbers("index")), tuple(parameters.all("type"))
    public_only = parameters.flag("publicOnly", default=call.is_anonymous)
    deleted = _DeletedVersions()
    try:
        if fold(name.text) == f"{SITE_PREFIX}/{STATUS_SUFFIX}":
            result = await call.read(lambda context: _status(call, context, indexes, types, public_only=public_only))
        elif _is_history_request(call):
            handle = call.handle(name)
            if not isinstance(handle, UnstorableName):
                return await _respond_version(
                    call, name, Query(handle, types, indexes, public_only, call.allow_referrals)
                )
            result = await call.run_read(handle, full_name(name.text))
        else:
            result = await _find(call, name, indexes, types, deleted, public_only=public_only)
    except Refused as refused:
        return await _not_found_response(call, name, refused, deleted)
    is_tagged = _is_read(call) and result.tag != ""
    headers = (*_cache_headers(call, result.values), *((negotiation.etag_header(result.tag),) if is_tagged else ()))
    if result.has_past:
        headers = (*headers, *_gate_headers(call, name))
    if is_tagged and negotiation.matches_if_none_match(call.request, result.tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS), name=name.text, identity=call.named)

    def write() -> Response:
        values = [value_to_json(value) for value in result.values]
        plain = {"responseCode": int(ResponseCode.SUCCESS), "handle": name.text, "values": values}
        return call.respond(plain, headers=headers, name=name.text)

    return await call.render_values(result.values, write)


async def _not_found_response(call: Call, name: Name, refused: Refused, deleted: _DeletedVersions) -> Response:
    """Create the response if there is nothing to return."""
    if isinstance(refused, ReferralError | KeyChanged):
        raise refused
    if refused.code == ResponseCode.VALUES_NOT_FOUND:
        headers = (*_cache_headers(call, ()), *_gate_headers(call, name))
        return call.respond(_empty_body(name), headers=headers, name=name.text)
    failure, gone = _to_failure(call, refused), _gone_headers(call, deleted.versions)
    if may_be_typo(refused) and call.parameters.flag("suggest"):
        return await _suggestion_response(call, name, failure, gone)
    return call.failure_response(replace(failure, headers=(*failure.headers, *gone)), name.text)


async def _find(
    call: Call,
    name: Name,
    indexes: tuple[int, ...],
    types: tuple[str, ...],
    deleted: _DeletedVersions,
    *,
    public_only: bool,
) -> ReadResult:
    handle = call.handle(name)
    if isinstance(handle, UnstorableName):
        return await call.run_read(handle, full_name(name.text))
    query = Query(handle, types, indexes, public_only, call.allow_referrals)
    shows_all = not public_only and not call.is_anonymous

    def read(context: Context) -> ReadResult:
        try:
            resolved = resolve(query, context)
        except Refused as refused:
            if refused.code is ResponseCode.HANDLE_NOT_FOUND and _is_read(call):
                deleted.versions = find_deleted(context.snapshot, handle)
            raise
        return ReadResult(resolved.values, _compute_etag(context, resolved, shows_all=shows_all))

    return await call.read(read, full_name(name.text), public=public_only and call.is_anonymous)


async def _suggestion_response(call: Call, name: Name, failure: Failure, headers: HeaderList) -> Response:
    """Create the not-found response with suggestions."""
    plain = responses.error_body(failure.code, failure.message, name.text)
    found = await find_suggestions(call.request_context, name.text)
    plain |= found.to_json() if found else {}
    return call.respond(plain, failure.status, (NO_STORE, *headers), name=name.text)


def _compute_etag(context: Context, resolved: Resolution, *, shows_all: bool) -> str:
    if resolved.by_template:
        return public_tag(resolved.values)  # they come from several records
    if shows_all:
        return entry_tag(resolved.seq)
    return public_tag(context.snapshot.stored(resolved.handle).values)


def _status(
    call: Call, context: Context, indexes: tuple[int, ...], types: tuple[str, ...], *, public_only: bool
) -> ReadResult:
    """Read the server's status values, for its administrators."""
    if public_only:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "the server status is not public")
    context.require(permissions.status())
    values = select(status_values(call.request_context.server.registry), indexes, types)
    if not values:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "the server status has no values of these types or indexes")
    return ReadResult(values, "", has_past=False)


def _to_failure(call: Call, refused: Refused) -> Failure:
    """Convert a refusal to read, with what to do about it."""
    failure = call.to_failure(refused)
    if refused.code == ResponseCode.HANDLE_NOT_FOUND:
        # A GET needs no message: most clients use only the code.
        return replace(failure, message="" if _is_read(call) else f"{refused.reason}. {PUT_CREATES}")
    if refused.code in (ResponseCode.INVALID_ADMIN, ResponseCode.INSUFFICIENT_PERMISSIONS):
        return replace(failure, message=f"{failure.message}; or {_PUBLIC_ONLY}")
    return failure


def _is_read(call: Call) -> bool:
    return call.request.method in SAFE_METHODS


def _cache_headers(call: Call, values: tuple[Value, ...]) -> HeaderList:
    if not call.is_public:
        return (NO_STORE,)
    seconds = cache_lifetime(values, call.request_context.server.time())
    if seconds is None or call.parameters.flag("auth"):
        return ("Cache-Control", negotiation.NO_CACHE), negotiation.API_VARY
    return ("Cache-Control", f"public, max-age={seconds}"), negotiation.API_VARY


# Earlier versions


@dataclass(frozen=True, slots=True)
class _HistoryResult:
    """What was found in the history."""

    moment: Moment
    resolved: Resolution | None
    """None if the handle, or the requested values, did not exist at that time."""
    versions: MementoNeighbors | None
    is_empty: bool = False
    """Whether the handle existed, but not the values."""


def _is_history_request(call: Call) -> bool:
    """Whether a call is about the history."""
    return AT_PARAMETER in call.parameters or (
        call.request.method in SAFE_METHODS and call.request.header("accept-datetime") is not None
    )


def _gate_headers(call: Call, name: Name) -> HeaderList:
    """Links to the history of a record, for a response to a read of the present."""
    if call.request.method not in SAFE_METHODS:
        return ()
    return gate_links(get_api_addresses(name.text, call.request_context.server.settings))


def _gone_headers(call: Call, versions: MementoNeighbors | None) -> HeaderList:
    """The same for a deleted handle; none for one that never existed (RFC 7089, section 4.5.2)."""
    return () if versions is None else version_links(versions, _addresses(call, versions.handle), with_map=False)


async def _respond_version(call: Call, name: Name, query: Query) -> Response:
    """Return an earlier version of a record. Raises `Refused`."""
    at = call.parameters.first(AT_PARAMETER)
    try:
        time = parse_accept_datetime(call.request) if at is None else None
    except Refused as refused:  # it is a TimeGate nevertheless (RFC 7089, section 4.5.3)
        failure = call.to_failure(refused)
        headers = (*failure.headers, negotiation.API_VARY, *_gate_headers(call, name))
        return call.failure_response(replace(failure, headers=headers), name.text)
    found = await call.read(lambda context: _find_version(call, context, query, at, time), full_name(name.text))
    resolved, versions = found.resolved, found.versions
    if resolved is None and not found.is_empty:
        return _missing_response(call, name, found)
    values = () if resolved is None else resolved.values
    shown = _shown_version(resolved, versions)
    headers = (
        *_version_cache_headers(call, values, fixed=found.moment.fixed, is_negotiated=time is not None),
        *_memento_headers(call, name, found, shown, is_negotiated=time is not None),
    )
    if resolved is None:
        return call.respond(_empty_body(name), headers=headers, name=name.text)

    def write() -> Response:
        response_headers = headers
        if call.request.method in SAFE_METHODS:
            tag = f"{public_tag(resolved.values)}-{shown.seq}"  # the response contains the version
            response_headers = (*headers, negotiation.etag_header(tag))
            if negotiation.matches_if_none_match(call.request, tag):
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


def _empty_body(name: Name) -> JsonObject:
    """The body of a response without the requested values."""
    return {"responseCode": int(ResponseCode.VALUES_NOT_FOUND), "values": [], "handle": name.text}


def _shown_version(resolved: Resolution | None, versions: MementoNeighbors | None) -> Memento:
    """The version that a response shows."""
    if versions is not None:
        return versions.memento
    assert resolved is not None  # noqa: S101 - a handle without versions of its own comes from a template
    return Memento(resolved.seq, resolved.at)


def _find_version(call: Call, context: Context, query: Query, at: str | None, time: int | None) -> _HistoryResult:
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


def _version_cache_headers(call: Call, values: tuple[Value, ...], *, fixed: bool, is_negotiated: bool) -> HeaderList:
    if not call.is_public:
        return (NO_STORE,)
    if is_negotiated:  # the version of that time can change until the time has passed
        return ("Cache-Control", "no-cache"), negotiation.API_VARY
    now = call.request_context.server.time()
    age = cache_headers(cache_lifetime(values, now), now, no_cache=call.parameters.flag("auth"), fixed=fixed)
    return (*age, _VARY_HISTORY)
