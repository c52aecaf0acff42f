"""Answering a request of our own API: which route it is of, whether its form is right, and what comes of it.

The order is that of what a client can do about it: the path, the method, who asks, how often, then what was said.
Whatever goes wrong is a problem (`problems`), in JSON; what nobody expected is in the log.
"""

from dataclasses import replace
from functools import cache
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from perseid.registry.access.permissions import shown
from perseid.registry.identity import counted_as
from perseid.registry.policy.aliases import Astray
from perseid.server.http.auth.authentication import (
    Identified,
    challenge_headers,
    denial,
    identify,
    key_gone,
    proof_headers,
)
from perseid.server.http.context import Asking
from perseid.server.http.long_responses import tagged
from perseid.server.http.messages import OPTIONS, READING, HeaderList, Response, allow
from perseid.server.http.resolver.paths import address_of
from perseid.server.http.responses import NO_STORE, UNAUTHORISED
from perseid.server.http.targets import Parameters
from perseid.server.limits.budgets import source_of
from perseid.server.native.authentication import KeyGone
from perseid.server.native.steps import Kind

from . import problems
from .calls import LONG_BODY, ApiCall, calling, octets_of
from .problems import Answered, Wrong
from .routing import BASE, Found, Reply, Route, Table
from .state import Allowance
from .validation import body_of, parameters_of, query_of, steps_of

BEARER: Final = ("WWW-Authenticate", 'Bearer realm="handle"')
"""What is offered first to whoever has to say who they are: a token is what programs should have."""

_SLASH: Final = "in a path a handle is one step: write its slash as %2F, as in {}/handles/12345%2Fx"
_PAGE_PARAMETER: Final = "cursor"
_MOMENTS: Final = ("at", "earlier", "later")
_SAFE: Final = "/%!$&'()*+,;=:@~"  # what stands in the path as it came


def is_own(path: bytes) -> bool:
    """Whether a path is of this API."""
    base = BASE.encode()
    return path == base or path.startswith(base + b"/")


@cache
def table() -> Table:
    """All routes. They are loaded when a service is made, as chapters need nearly everything there is."""
    from . import route_table  # noqa: PLC0415

    return Table(route_table.CHAPTERS)


async def answer(asking: Asking) -> Response:
    """Answer a request.

    What is not there counts as well: whoever looks for it costs as much as others.
    """
    wanted: tuple[Route, tuple[str, ...]] | Exception
    try:
        found = _found(asking)
        if asking.request.method == OPTIONS:
            return Response(204, (allow(_methods(found)), NO_STORE))
        wanted = _route(asking, found), found.parameters
    except Exception as error:  # noqa: BLE001 - somebody waits for an answer
        wanted = error
    identified = await identify(asking)
    allowance = _counted(asking, identified)
    if isinstance(wanted, Exception):
        wrong = wanted if allowance.allowed else _too_many(allowance)
        response = problems.response(problems.problem_of(wrong, asking))
    else:
        response = await _called(asking, *wanted, identified, allowance)
    return response.with_headers(*allowance.headers, *proof_headers(identified))


def _found(asking: Asking) -> Found:
    path = asking.request.path
    steps = steps_of(path)
    found = table().find(steps)
    if found is None:
        text = path.decode("utf-8", "replace")
        advice = _SLASH.format(BASE) if "handles" in steps else "what there is stands in /docs and /openapi.json"
        raise Wrong("no-such-path", f"there is nothing at {shown(text)}", advice)
    return found


def _methods(found: Found) -> list[str]:
    methods = [method for method in ("GET", "POST", "PUT", "DELETE") if method in found.routes]
    return [*methods[:1], "HEAD", *methods[1:]] if "GET" in methods else methods


def _route(asking: Asking, found: Found) -> Route:
    method = "GET" if asking.request.method == "HEAD" else asking.request.method
    route = found.routes.get(method)
    if route is not None:
        return route
    methods = _methods(found)
    detail = f"the path is there, and cannot be asked for {shown(method)}"
    raise Wrong("method-not-allowed", detail, f"it has {', '.join(methods)}", headers=(allow(methods),))


def _too_many(allowance: Allowance) -> Wrong:
    retry = (("Retry-After", str(allowance.reset)),)
    return Wrong("too-many-requests", f"{allowance.limit:,} requests in a minute are the most", headers=retry)


def _counted(asking: Asking, identified: Identified) -> Allowance:
    """Count a request for whoever makes it; one with a token for whoever made the token."""
    settings, limiter = asking.place.settings, asking.place.api.limiter
    call = calling(asking, identified)
    if call.is_anonymous:
        return limiter.take(
            source_of(asking.request.client.host)[:1], settings.api_requests_anonymous, asking.place.time()
        )
    return limiter.take(counted_as(identified.who), settings.api_requests, asking.place.time())


async def _called(
    asking: Asking, route: Route, parameters: tuple[str, ...], identified: Identified, allowance: Allowance
) -> Response:
    call = calling(asking, identified)
    names = parameters_of(route, parameters)
    suggests = False
    try:
        if identified.problem is not None:
            return _unproved(asking, identified)
        if not allowance.allowed:
            raise _too_many(allowance)
        request = asking.request
        made = ApiCall(call, route, names, query_of(request, route.query), await _body(asking, route))
        suggests = request.method == "GET" and _is_of_now(made.query) and getattr(made.query, "suggest", True)
        return await _completed(made, await route.handler(made))
    except Exception as error:  # noqa: BLE001 - somebody waits for an answer
        return await _refused(asking, identified, error, names.get("handle", ""), suggests=suggests)


def _is_of_now(query: msgspec.Struct) -> bool:
    """Whether something is asked about the present: a name that was not there at another time may well be right."""
    return not any(getattr(query, name, None) for name in _MOMENTS)


async def _body(asking: Asking, route: Route) -> object:
    """What the body says; of a long one it is found out in a pool, so that nobody else waits for it."""
    request = asking.request
    if len(request.body) <= LONG_BODY:
        return body_of(request, route.body)
    return await asking.do(Kind.READ, lambda: body_of(request, route.body))


async def _completed(call: ApiCall, reply: Reply) -> Response:
    """The answer that a route gives, with what all of them have."""
    named = {name.lower() for name, _ in reply.headers}
    headers = list(reply.headers)
    if "cache-control" not in named:
        headers.append(_kept_how(call))
    if reply.next is not None:
        headers.append(("Link", f'<{_next_page(call, reply.next)}>; rel="next"'))
    if reply.body is not None or reply.stream is not None:
        headers.append(("Content-Type", reply.media_type))
    if call.request.method in READING:
        headers.append(("Vary", "Authorization"))
    made = Response(
        reply.status, tuple(headers), octets_of(reply), reply.stream, name=reply.name, who=call.call.named, code=1
    )
    if call.request.method not in READING or reply.body is None:
        return made
    return await tagged(call.asking, made, reply.tag)


def _kept_how(call: ApiCall) -> tuple[str, str]:
    """How long an answer may be kept: it is asked for again each time, and not sent again if nothing has changed."""
    if call.request.method not in READING:
        return NO_STORE
    return "Cache-Control", "no-cache" if call.call.is_public else "private, no-cache"


def _next_page(call: ApiCall, cursor: str) -> str:
    """The address of the next page."""
    request = call.request
    given = Parameters.parse(request.query).pairs
    pairs = [(name, value) for name, value in given if name != _PAGE_PARAMETER]
    query = urlencode([*pairs, (_PAGE_PARAMETER, cursor)])
    return address_of(f"{quote(request.path, safe=_SAFE)}?{query}", call.asking.place.settings)


# What is not done


def _unproved(asking: Asking, identified: Identified) -> Response:
    """The answer to somebody who is not believed."""
    denied = denial(asking, identified)
    slug = "authentication-failed" if denied.status == UNAUTHORISED else "not-private"
    made = problems.make(asking.place.settings, slug, denied.message, code=int(denied.code))
    return problems.response(Answered(made, _challenges(denied.headers)))


async def _refused(asking: Asking, identified: Identified, error: Exception, name: str, *, suggests: bool) -> Response:
    """The answer where something was not done; whoever is not known is asked who they are.

    Whoever reads what is at a name that is not there is told what may have been meant. A name that leads to another
    one, which is not there, is there itself.
    """
    if isinstance(error, KeyGone):
        identified = key_gone(asking, identified, error)
    answered = problems.problem_of(error, asking)
    if answered.problem.status == UNAUTHORISED:
        headers = (*answered.headers, *_challenges(challenge_headers(asking, identified)))
        answered = replace(answered, headers=headers)
    if suggests and name and not isinstance(error, Astray):
        answered = await problems.told(asking, answered, name)
    who = calling(asking, identified).named
    return problems.response(answered, name=name, who=who)


def _challenges(headers: HeaderList) -> HeaderList:
    """What somebody is asked for: where anything is, a token too."""
    is_offered = not headers or any(value.startswith("Bearer ") for _, value in headers)
    return headers if is_offered else (BEARER, *headers)
