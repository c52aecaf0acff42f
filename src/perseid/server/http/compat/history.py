"""The past over the compatible API: a record as it was, for whoever may see it.

    GET /api/handles/{handle}?at=TIME|SEQ      what it was at a moment
    GET … with Accept-Datetime                 the version of a time, at once (RFC 7089, pattern 1.2)

The answer is that of the API, with the version that is shown. Its headers say when that was, and where the versions
before and behind it are. Without authentication it is what everybody may see of the past today (`registry.past`).

A record at the API is an original resource with versions of its own, and its own TimeGate. Answers about the present
say so in one link; there is no TimeMap, for that lists the versions at the resolver.
"""

from dataclasses import dataclass, replace
from typing import Final

from perseid.names.handle import Handle
from perseid.records.json_form import value_to_json
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.commands.conditions import public_tag
from perseid.registry.context import Context
from perseid.registry.queries.history import as_of
from perseid.registry.queries.memento import Addresses, Around, Memento
from perseid.registry.queries.resolve import Query
from perseid.registry.results import Refused, Resolved
from perseid.server.http import caching
from perseid.server.http.caching import age_headers, least_ttl
from perseid.server.http.messages import READING, HeaderList, Response
from perseid.server.http.resolver.addresses import api_addresses_of
from perseid.server.http.resolver.time_travel import (
    AT,
    Moment,
    entry_for,
    gate_links,
    memento_json,
    moment_of,
    past_links,
    versions_at,
    wanted_time,
    when_headers,
)
from perseid.server.http.responses import NO_STORE, NOT_FOUND, failure_of
from perseid.server.http.targets import Name
from perseid.wire.codes import ResponseCode

from .call import Call, full_name

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
    """None if there was no such name at that moment, or it had no such values."""
    versions: Around | None
    is_empty: bool = False
    """Whether it was the values that were not there."""


def is_asked(call: Call) -> bool:
    """Whether a call is about the past."""
    return AT in call.parameters or (
        call.request.method in READING and call.request.header("accept-datetime") is not None
    )


def gate_headers(call: Call, name: Name) -> HeaderList:
    """Where the past of a record is to be had, for an answer about the present to somebody who reads."""
    if call.request.method not in READING:
        return ()
    return gate_links(api_addresses_of(name.text, call.asking.place.settings))


def gone_headers(call: Call, versions: Around | None) -> HeaderList:
    """The same for a name that is not there any more; nothing of one that never was (RFC 7089, section 4.5.2)."""
    return () if versions is None else past_links(versions, _addresses(call, versions.handle), with_map=False)


async def answer(call: Call, name: Name, query: Query) -> Response:
    """What a name stood for. Raises `Refused`."""
    at = call.parameters.first(AT)
    try:
        time = wanted_time(call.request) if at is None else None
    except Refused as refused:  # it is a TimeGate all the same (RFC 7089, section 4.5.3)
        failure = failure_of(refused, call.asking)
        headers = (*failure.headers, VARIES, *gate_headers(call, name))
        return call.failed(replace(failure, headers=headers), name.text)
    found = await call.read(lambda context: _found(call, context, query, at, time), full_name(name.text))
    resolved, versions = found.resolved, found.versions
    if resolved is None and not found.is_empty:
        return _not_then(call, name, found)
    values = () if resolved is None else resolved.values
    shown = _shown(resolved, versions)
    headers = (
        *_kept_for(call, values, fixed=found.moment.fixed, is_negotiated=time is not None),
        *_past_headers(call, name, found, shown, is_negotiated=time is not None),
    )
    if resolved is None:
        return call.answer(empty(name), headers=headers, name=name.text)

    def write() -> Response:
        told = headers
        if call.request.method in READING:
            tag = f"{public_tag(resolved.values)}-{shown.seq}"  # the version is told too
            told = (*headers, caching.header(tag))
            if caching.is_known(call.request, tag):
                return Response(NOT_MODIFIED, told, code=int(ResponseCode.SUCCESS), name=name.text, who=call.named)
        plain: JsonObject = {
            "responseCode": int(ResponseCode.SUCCESS),
            "handle": name.text,
            "values": [value_to_json(value) for value in resolved.values],
            "version": memento_json(shown),
        }
        return call.answer(plain, headers=told, name=name.text)

    return await call.written(resolved.values, write)


def empty(name: Name) -> JsonObject:
    """What is answered where a record has nothing of what was asked for."""
    return {"responseCode": int(ResponseCode.VALUES_NOT_FOUND), "values": [], "handle": name.text}


def _shown(resolved: Resolved | None, versions: Around | None) -> Memento:
    """The version that an answer is about."""
    if versions is not None:
        return versions.memento
    assert resolved is not None  # noqa: S101 - what has no versions of its own was made by a template
    return Memento(resolved.seq, resolved.at)


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
        is_empty = refused.code is ResponseCode.VALUES_NOT_FOUND
        if versions is None or not (is_empty or refused.code is ResponseCode.HANDLE_NOT_FOUND):
            raise
        return _Past(moment, None, versions, is_empty)
    return _Past(moment, resolved, None if resolved.by_template else versions)


def _not_then(call: Call, name: Name, found: _Past) -> Response:
    """There was no such name at that moment; what there was before, or later."""
    versions = found.versions
    assert versions is not None  # noqa: S101 - otherwise it was refused
    version = versions.memento
    plain: JsonObject = {"responseCode": int(ResponseCode.HANDLE_NOT_FOUND), "handle": name.text}
    plain["first" if version.seq > found.moment.seq else "previous"] = memento_json(version)
    links = past_links(versions, _addresses(call, versions.handle), with_map=False)
    return call.answer(plain, NOT_FOUND, (NO_STORE, *links), name=name.text)


def _past_headers(call: Call, name: Name, found: _Past, shown: Memento, *, is_negotiated: bool) -> HeaderList:
    versions = found.versions
    if versions is None:
        addresses, seq = api_addresses_of(name.text, call.asking.place.settings), found.moment.seq
        links = gate_links(addresses)
    else:
        addresses, seq = _addresses(call, versions.handle), shown.seq
        links = past_links(versions, addresses, with_map=False)
    located: HeaderList = ()
    if is_negotiated and addresses is not None:
        located = (("Content-Location", addresses.memento(seq)),)
    return (*when_headers(shown), *located, *links)


def _addresses(call: Call, handle: Handle) -> Addresses | None:
    return api_addresses_of(str(handle), call.asking.place.settings)


def _kept_for(call: Call, values: tuple[Value, ...], *, fixed: bool, is_negotiated: bool) -> HeaderList:
    """How long an answer may be kept, and by whom."""
    if not call.is_public:
        return (NO_STORE,)
    if is_negotiated:  # there may be another version of that time, until the time has passed
        return ("Cache-Control", "no-cache"), VARIES
    now = call.asking.place.time()
    age = age_headers(least_ttl(values, now), now, again=call.parameters.flag("auth"), fixed=fixed)
    return (*age, _VARIES_IN_THE_PAST)
