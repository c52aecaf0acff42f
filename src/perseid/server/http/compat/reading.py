"""Reading records over the API (http-api reference, 6.1).

Anonymous callers get the public values, with an entity tag and cacheable by their TTLs; authenticated callers get all
values that they may read, not cacheable. A POST is a GET with more room for parameters, and never creates. Earlier
versions are in `history`; suggestions for unknown handles are returned with `suggest`.
"""

from dataclasses import dataclass, replace
from typing import Final

from perseid.names.characters import fold
from perseid.records.json_form import value_to_json
from perseid.records.record import select
from perseid.records.value import Value
from perseid.registry.access import permissions
from perseid.registry.commands.conditions import entry_tag, public_tag
from perseid.registry.context import Context
from perseid.registry.policy.resolution import cache_lifetime
from perseid.registry.queries.memento import MementoNeighbors
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.results import ReferralError, Refused, Resolution
from perseid.registry.snapshot import SITE_PREFIX
from perseid.server.http import caching, responses
from perseid.server.http.messages import SAFE_METHODS, HeaderList, Response
from perseid.server.http.resolver.problems import SUGGESTION_CODES, find_suggestions
from perseid.server.http.resolver.time_travel import find_versions
from perseid.server.http.responses import NO_STORE, Failure
from perseid.server.http.targets import Name
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import UnstorableName
from perseid.server.native.operations import STATUS_SUFFIX, status_values
from perseid.wire.codes import ResponseCode

from . import history
from .call import Call, full_name

NOT_MODIFIED: Final = 304

VARY: Final = history.VARY

NO_CACHE: Final = "no-cache"
"""May be cached, and must be revalidated each time."""

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
    """Its earlier versions, if they are public."""


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
        elif history.is_history_request(call):
            handle = call.handle(name)
            if not isinstance(handle, UnstorableName):
                return await history.handle_request(
                    call, name, Query(handle, types, indexes, public_only, call.allow_referrals)
                )
            result = await call.run_read(handle, full_name(name.text))
        else:
            result = await _find(call, name, indexes, types, deleted, public_only=public_only)
    except Refused as refused:
        return await _not_found_response(call, name, refused, deleted)
    is_tagged = _is_read(call) and result.tag != ""
    headers = (*_cache_headers(call, result.values), *((caching.etag_header(result.tag),) if is_tagged else ()))
    if result.has_past:
        headers = (*headers, *history.gate_headers(call, name))
    if is_tagged and caching.matches_if_none_match(call.request, result.tag):
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
        headers = (*_cache_headers(call, ()), *history.gate_headers(call, name))
        return call.respond(history.empty_body(name), headers=headers, name=name.text)
    failure, gone = _to_failure(call, refused), history.gone_headers(call, deleted.versions)
    if refused.code in SUGGESTION_CODES and call.parameters.flag("suggest"):
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
                deleted.versions = find_versions(context.snapshot, handle, context.snapshot.reader.size)
            raise
        return ReadResult(resolved.values, _compute_etag(context, resolved, shows_all=shows_all))

    return await call.read(read, full_name(name.text))


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
        return ("Cache-Control", NO_CACHE), VARY
    return ("Cache-Control", f"public, max-age={seconds}"), VARY
