"""Reading a record over the API (http-api reference, 6.1).

Without authentication what everybody may read is given, with an entity tag and for as long as its TTLs say; with it all
that whoever asks may read, for nobody to keep. A POST is a GET with more room for its parameters, and never creates.
What a name was at another time is a matter of `api_past`; what may have been meant by one that is not there is told to
those who ask with `suggest`.
"""

from dataclasses import dataclass, replace
from typing import Final

from perseid.names.characters import fold
from perseid.records.json_form import value_to_json
from perseid.records.record import select
from perseid.records.value import TtlType, Value
from perseid.registry.access import permissions
from perseid.registry.commands.conditions import entry_tag, public_tag
from perseid.registry.context import Context
from perseid.registry.queries.memento import Around
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.results import Refused, Resolved
from perseid.registry.snapshot import SITE_PREFIX
from perseid.server.http import caching, responses
from perseid.server.http.messages import READING, HeaderList, Response
from perseid.server.http.resolver.problems import ABOUT, suggested
from perseid.server.http.resolver.time_travel import versions_at
from perseid.server.http.responses import NO_STORE, failure_of
from perseid.server.http.targets import Name
from perseid.server.native.decisions import Unkeepable
from perseid.server.native.operations import STATUS, status_values
from perseid.wire.codes import ResponseCode

from . import history
from .call import Call, full_name

NOT_MODIFIED: Final = 304

VARIES: Final = history.VARIES

NO_CACHE: Final = "no-cache"
"""May be kept, and is asked about each time."""

PUT_CREATES: Final = "POST reads a record and does not create one: use PUT for that"

_PUBLIC_ONLY: Final = "ask with publicOnly=true for what everybody may read"


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, and the tag of the state in which it was."""

    values: tuple[Value, ...]
    tag: str
    """Empty for what is never in the same state again."""
    has_past: bool = True
    """Whether it can be asked for as it was."""


@dataclass(slots=True)
class _Seen:
    """What was found out about a name that is not there."""

    versions: Around | None = None
    """Those that there were, if everybody may know of them."""


async def answer(call: Call, name: Name) -> Response:
    """What a name stands for."""
    return await call.refusing(name.text, _answer(call, name))


async def _answer(call: Call, name: Name) -> Response:
    parameters = call.parameters
    indexes, types = tuple(parameters.numbers("index")), tuple(parameters.all("type"))
    public_only = parameters.flag("publicOnly", absent=call.is_anonymous)
    seen = _Seen()
    try:
        if fold(name.text) == f"{SITE_PREFIX}/{STATUS}":
            found = await call.read(lambda context: _status(call, context, indexes, types, public_only=public_only))
        elif history.is_asked(call):
            asked = call.handle(name)
            if not isinstance(asked, Unkeepable):
                return await history.answer(call, name, Query(asked, types, indexes, public_only, call.refers))
            found = await call.look(asked, full_name(name.text))
        else:
            found = await _found(call, name, indexes, types, seen, public_only=public_only)
    except Refused as refused:
        return await _nothing(call, name, refused, seen)
    is_tagged = _is_get(call) and found.tag != ""
    headers = (*_kept_for(call, found.values), *((caching.header(found.tag),) if is_tagged else ()))
    if found.has_past:
        headers = (*headers, *history.gate_headers(call, name))
    if is_tagged and caching.is_known(call.request, found.tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS), name=name.text, who=call.named)

    def write() -> Response:
        values = [value_to_json(value) for value in found.values]
        plain = {"responseCode": int(ResponseCode.SUCCESS), "handle": name.text, "values": values}
        return call.answer(plain, headers=headers, name=name.text)

    return await call.written(found.values, write)


async def _nothing(call: Call, name: Name, refused: Refused, seen: _Seen) -> Response:
    """What is answered where there is nothing to give."""
    gone = history.gone_headers(call, seen.versions)
    if refused.code in ABOUT and call.parameters.flag("suggest"):
        return await _suggesting(call, name, _advised(refused, call), gone)
    if gone:
        failure = failure_of(_advised(refused, call), call.asking)
        return call.failed(replace(failure, headers=(*failure.headers, *gone)), name.text)
    if refused.code != ResponseCode.VALUES_NOT_FOUND:
        raise _advised(refused, call) from refused
    headers = (*_kept_for(call, ()), *history.gate_headers(call, name))
    return call.answer(history.empty(name), headers=headers, name=name.text)


async def _found(
    call: Call, name: Name, indexes: tuple[int, ...], types: tuple[str, ...], seen: _Seen, *, public_only: bool
) -> Found:
    handle = call.handle(name)
    if isinstance(handle, Unkeepable):
        return await call.look(handle, full_name(name.text))
    query = Query(handle, types, indexes, public_only, call.refers)
    shows_all = not public_only and not call.is_anonymous

    def read(context: Context) -> Found:
        try:
            resolved = resolve(query, context)
        except Refused as refused:
            if refused.code is ResponseCode.HANDLE_NOT_FOUND and _is_get(call):
                seen.versions = versions_at(context.facts, handle, context.facts.reading.size)
            raise
        return Found(resolved.values, _tag(context, resolved, shows_all=shows_all))

    return await call.read(read, full_name(name.text))


async def _suggesting(call: Call, name: Name, refused: Refused, headers: HeaderList) -> Response:
    """That there is no such name, with names that may have been meant; for those who ask for them."""
    failure = failure_of(refused, call.asking)
    plain = responses.refusal(failure.code, failure.message, name.text)
    found = await suggested(call.asking, name.text)
    plain |= found.to_json() if found else {}
    return call.answer(plain, failure.status, (NO_STORE, *headers), name=name.text)


def _tag(context: Context, resolved: Resolved, *, shows_all: bool) -> str:
    if resolved.by_template:
        return public_tag(resolved.values)  # they come of several records
    if shows_all:
        return entry_tag(resolved.seq)
    return public_tag(context.facts.held(resolved.handle).values)


def _status(
    call: Call, context: Context, indexes: tuple[int, ...], types: tuple[str, ...], *, public_only: bool
) -> Found:
    """What the server says about itself, to its administrators."""
    if public_only:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "what this server says about itself is not public")
    context.demand(permissions.status())
    values = select(status_values(call.asking.place.registry), indexes, types)
    if not values:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "the status has no such values")
    return Found(values, "", has_past=False)


def _advised(refused: Refused, call: Call) -> Refused:
    """A refusal with what can be done about it here."""
    if refused.code == ResponseCode.HANDLE_NOT_FOUND:
        # Nothing needs to be said about that, and most who ask so read nothing but the code.
        return Refused(refused.code, "") if _is_get(call) else Refused(refused.code, refused.reason, PUT_CREATES)
    if refused.code in (ResponseCode.INVALID_ADMIN, ResponseCode.INSUFFICIENT_PERMISSIONS):
        return Refused(refused.code, refused.reason, f"{refused.advice}; or {_PUBLIC_ONLY}", refused.rule)
    return refused


def _is_get(call: Call) -> bool:
    return call.request.method in READING


def _kept_for(call: Call, values: tuple[Value, ...]) -> HeaderList:
    """How long an answer may be kept, and by whom."""
    if not call.is_public:
        return (NO_STORE,)
    if call.parameters.flag("auth") or any(value.ttl_type != TtlType.RELATIVE for value in values) or not values:
        return ("Cache-Control", NO_CACHE), VARIES
    seconds = max(0, min(value.ttl for value in values))
    return ("Cache-Control", f"public, max-age={seconds}"), VARIES
