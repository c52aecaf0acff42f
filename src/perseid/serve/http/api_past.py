"""The past over the compatible API: a record as it was, for whoever may see it.

    GET /api/handles/{handle}?at=TIME|SEQ      what it was at a moment
    GET … with Accept-Datetime                 the version of a time, at once (RFC 7089, pattern 1.2)

The answer is that of the API, with the version that is shown. Its headers say when that was, and where the versions
before and behind it are. Without authentication it is what everybody may see of the past today (`registry.past`).
"""

from dataclasses import dataclass
from typing import Final

from perseid.names import Handle
from perseid.records.json_form import value_to_json
from perseid.records.plain import JsonObject
from perseid.registry.conditions import public_tag
from perseid.registry.context import Context
from perseid.registry.memento import MEMENTO_DATETIME, Addresses, Around, Memento
from perseid.registry.past import as_of
from perseid.registry.resolving import Query
from perseid.registry.results import Refused, Resolved
from perseid.wire.codes import ResponseCode

from . import entity_tags
from .addresses import api_addresses_of
from .api_call import Call, full_name
from .caching import age_headers, least_ttl
from .failures import NO_STORE, NOT_FOUND
from .messages import HeaderList, Response
from .methods import READING
from .targets import Name
from .travelling import AT, Moment, entry_for, memento_json, moment_of, past_links, versions_at, wanted_time

NOT_MODIFIED: Final = 304

VARIES: Final = ("Vary", "Authorization, Accept-Datetime")
"""Whoever says who they are may get more, and whoever names a time something else: no cache gives one the answer to the
other."""

_VARIES_IN_THE_PAST: Final = ("Vary", "Authorization")


@dataclass(frozen=True, slots=True)
class _Past:
    """What was found of the past."""

    moment: Moment
    resolved: Resolved | None
    """None if there was no such name at that moment."""
    versions: Around | None


def is_asked(call: Call) -> bool:
    """Whether a call is about the past."""
    return AT in call.parameters or (
        call.request.method in READING and call.request.header("accept-datetime") is not None
    )


async def answer(call: Call, name: Name, query: Query) -> Response:
    """What a name stood for. Raises `Refused`."""
    at = call.parameters.first(AT)
    time = wanted_time(call.request) if at is None else None
    found = await call.read(lambda context: _found(call, context, query, at, time), full_name(name.text))
    resolved, versions = found.resolved, found.versions
    if resolved is None:
        return _not_then(call, name, found)
    shown = Memento(resolved.seq, resolved.at) if versions is None else versions.memento
    headers = (
        *_kept_for(call, resolved, fixed=found.moment.fixed, is_negotiated=time is not None),
        *_past_headers(call, versions, shown, is_negotiated=time is not None),
    )
    if call.request.method in READING:
        tag = f"{public_tag(resolved.values)}-{shown.seq}"  # the version is told too
        headers = (*headers, entity_tags.header(tag))
        if entity_tags.is_known(call.request, tag):
            return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS), name=name.text, who=call.named)

    def write() -> Response:
        plain: JsonObject = {
            "responseCode": int(ResponseCode.SUCCESS),
            "handle": name.text,
            "values": [value_to_json(value) for value in resolved.values],
            "version": memento_json(shown),
        }
        return call.answer(plain, headers=headers, name=name.text)

    return await call.written(resolved.values, write)


def _found(call: Call, context: Context, query: Query, at: str | None, time: int | None) -> _Past:
    facts, who, handle = context.facts, context.who, query.handle
    if time is not None:
        seq, versions = entry_for(context, handle, time)
        moment = Moment(seq, fixed=True)
    else:
        moment = moment_of(at or "", facts, call.asking.place.registry)
        versions = versions_at(facts, handle, moment.seq, who)
    try:
        resolved = as_of(facts, who, query, moment.seq).resolved
    except Refused as refused:
        if refused.code is not ResponseCode.HANDLE_NOT_FOUND or versions is None:
            raise
        resolved = None
    if resolved is not None and resolved.by_template:
        versions = None
    return _Past(moment, resolved, versions)


def _not_then(call: Call, name: Name, found: _Past) -> Response:
    """There was no such name at that moment; what there was before, or later."""
    versions = found.versions
    assert versions is not None  # noqa: S101 - otherwise it was refused
    version = versions.memento
    plain: JsonObject = {"responseCode": int(ResponseCode.HANDLE_NOT_FOUND), "handle": name.text}
    plain["first" if version.seq > found.moment.seq else "previous"] = memento_json(version)
    links = past_links(versions, _addresses(call, versions.handle), with_map=False)
    return call.answer(plain, NOT_FOUND, (NO_STORE, *links), name=name.text)


def _past_headers(call: Call, versions: Around | None, shown: Memento, *, is_negotiated: bool) -> HeaderList:
    if versions is None:
        return ()
    addresses = _addresses(call, versions.handle)
    located: HeaderList = ()
    if is_negotiated and addresses is not None:
        located = (("Content-Location", addresses.memento(shown.seq)),)
    return ((MEMENTO_DATETIME, shown.datetime), *located, *past_links(versions, addresses, with_map=False))


def _addresses(call: Call, handle: Handle) -> Addresses | None:
    return api_addresses_of(str(handle), call.asking.place.settings)


def _kept_for(call: Call, resolved: Resolved, *, fixed: bool, is_negotiated: bool) -> HeaderList:
    """How long an answer may be kept, and by whom."""
    if not call.is_public:
        return (NO_STORE,)
    if is_negotiated:  # there may be another version of that time, until the time has passed
        return ("Cache-Control", "no-cache"), VARIES
    now = call.asking.place.time()
    age = age_headers(least_ttl(resolved.values, now), now, again=call.parameters.flag("auth"), fixed=fixed)
    return (*age, _VARIES_IN_THE_PAST)
