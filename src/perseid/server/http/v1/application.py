"""Answering a request of our own API: which route it is of, whether its form is right, and what comes of it.

The order is that of what a client can do about it: the path, the method, who asks, how often, then what was said.
Whatever goes wrong is a problem (`problems`), in JSON; what nobody expected is in the log.
"""

from dataclasses import replace
from functools import cache
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from perseid.registry.access.permissions import display_name
from perseid.registry.identity import quota_key
from perseid.registry.policy.aliases import AliasError
from perseid.server.http.auth.authentication import (
    AuthResult,
    authenticate,
    challenge_headers,
    denial,
    end_stale_session,
    proof_headers,
)
from perseid.server.http.context import RequestContext
from perseid.server.http.long_responses import with_etag
from perseid.server.http.messages import OPTIONS, SAFE_METHODS, HeaderList, Response, allow_header
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.http.responses import NO_STORE, UNAUTHORIZED
from perseid.server.http.targets import Parameters
from perseid.server.limits.budgets import get_source
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.steps import WorkKind

from . import problems
from .calls import LARGE_BODY, ApiCall, encode_body, make_call
from .problems import ApiError, ProblemResponse
from .routing import BASE, Reply, Route, RouteMatch, Router
from .state import Allowance
from .validation import decode_body, decode_query, path_parameters, split_path

BEARER_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="handle"')
"""What is offered first to whoever has to say who they are: a token is what programs should have."""

_SLASH_ADVICE: Final = "in a path a handle is one step: write its slash as %2F, as in {}/handles/12345%2Fx"
_CURSOR_PARAMETER: Final = "cursor"
_TIME_PARAMETERS: Final = ("at", "earlier", "later")
_SAFE_CHARACTERS: Final = "/%!$&'()*+,;=:@~"  # what stands in the path as it came


def is_api_path(path: bytes) -> bool:
    """Whether a path is of this API."""
    base = BASE.encode()
    return path == base or path.startswith(base + b"/")


@cache
def get_router() -> Router:
    """All routes. They are loaded when a service is made, as chapters need nearly everything there is."""
    from . import route_table  # noqa: PLC0415

    return Router(route_table.SECTIONS)


async def handle(request_context: RequestContext) -> Response:
    """Answer a request.

    What is not there counts as well: whoever looks for it costs as much as others.
    """
    wanted: tuple[Route, tuple[str, ...]] | Exception
    try:
        found = _match_path(request_context)
        if request_context.request.method == OPTIONS:
            return Response(204, (allow_header(_allowed_methods(found)), NO_STORE))
        wanted = _select_route(request_context, found), found.parameters
    except Exception as error:  # noqa: BLE001 - somebody waits for an answer
        wanted = error
    auth = await authenticate(request_context)
    allowance = _count_request(request_context, auth)
    if isinstance(wanted, Exception):
        wrong = wanted if allowance.allowed else _rate_limit_error(allowance)
        response = problems.problem_response(problems.to_problem(wrong, request_context))
    else:
        response = await _call_route(request_context, *wanted, auth, allowance)
    return response.with_headers(*allowance.headers, *proof_headers(auth))


def _match_path(request_context: RequestContext) -> RouteMatch:
    path = request_context.request.path
    steps = split_path(path)
    found = get_router().find(steps)
    if found is None:
        text = path.decode("utf-8", "replace")
        advice = _SLASH_ADVICE.format(BASE) if "handles" in steps else "what there is stands in /docs and /openapi.json"
        raise ApiError("no-such-path", f"there is nothing at {display_name(text)}", advice)
    return found


def _allowed_methods(found: RouteMatch) -> list[str]:
    methods = [method for method in ("GET", "POST", "PUT", "DELETE") if method in found.routes]
    return [*methods[:1], "HEAD", *methods[1:]] if "GET" in methods else methods


def _select_route(request_context: RequestContext, found: RouteMatch) -> Route:
    method = "GET" if request_context.request.method == "HEAD" else request_context.request.method
    route = found.routes.get(method)
    if route is not None:
        return route
    methods = _allowed_methods(found)
    detail = f"the path is there, and cannot be asked for {display_name(method)}"
    raise ApiError("method-not-allowed", detail, f"it has {', '.join(methods)}", headers=(allow_header(methods),))


def _rate_limit_error(allowance: Allowance) -> ApiError:
    retry = (("Retry-After", str(allowance.reset)),)
    return ApiError("too-many-requests", f"{allowance.limit:,} requests in a minute are the most", headers=retry)


def _count_request(request_context: RequestContext, auth: AuthResult) -> Allowance:
    """Count a request for whoever makes it; one with a token for whoever made the token."""
    settings, limiter = request_context.place.settings, request_context.place.api.limiter
    call = make_call(request_context, auth)
    if call.is_anonymous:
        return limiter.take(
            get_source(request_context.request.client.host)[:1],
            settings.api_requests_anonymous,
            request_context.place.time(),
        )
    return limiter.take(quota_key(auth.identity), settings.api_requests, request_context.place.time())


async def _call_route(
    request_context: RequestContext, route: Route, parameters: tuple[str, ...], auth: AuthResult, allowance: Allowance
) -> Response:
    call = make_call(request_context, auth)
    names = path_parameters(route, parameters)
    suggests = False
    try:
        if auth.problem is not None:
            return _unauthenticated(request_context, auth)
        if not allowance.allowed:
            raise _rate_limit_error(allowance)
        request = request_context.request
        made = ApiCall(
            call, route, names, decode_query(request, route.query), await _decode_body(request_context, route)
        )
        suggests = request.method == "GET" and _is_current(made.query) and getattr(made.query, "suggest", True)
        return await _build_response(made, await route.handler(made))
    except Exception as error:  # noqa: BLE001 - somebody waits for an answer
        return await _error_response(request_context, auth, error, names.get("handle", ""), suggests=suggests)


def _is_current(query: msgspec.Struct) -> bool:
    """Whether something is asked about the present: a name that was not there at another time may well be right."""
    return not any(getattr(query, name, None) for name in _TIME_PARAMETERS)


async def _decode_body(request_context: RequestContext, route: Route) -> object:
    """What the body says; of a long one it is found out in a pool, so that nobody else waits for it."""
    request = request_context.request
    if len(request.body) <= LARGE_BODY:
        return decode_body(request, route.body)
    return await request_context.do(WorkKind.READ, lambda: decode_body(request, route.body))


async def _build_response(call: ApiCall, reply: Reply) -> Response:
    """The answer that a route gives, with what all of them have."""
    named = {name.lower() for name, _ in reply.headers}
    headers = list(reply.headers)
    if "cache-control" not in named:
        headers.append(_cache_control(call))
    if reply.next is not None:
        headers.append(("Link", f'<{_next_page_url(call, reply.next)}>; rel="next"'))
    if reply.body is not None or reply.stream is not None:
        headers.append(("Content-Type", reply.media_type))
    if call.request.method in SAFE_METHODS:
        headers.append(("Vary", "Authorization"))
    made = Response(
        reply.status,
        tuple(headers),
        encode_body(reply),
        reply.stream,
        name=reply.name,
        identity=call.call.named,
        code=1,
    )
    if call.request.method not in SAFE_METHODS or reply.body is None:
        return made
    return await with_etag(call.request_context, made, reply.tag)


def _cache_control(call: ApiCall) -> tuple[str, str]:
    """How long an answer may be kept: it is asked for again each time, and not sent again if nothing has changed."""
    if call.request.method not in SAFE_METHODS:
        return NO_STORE
    return "Cache-Control", "no-cache" if call.call.is_public else "private, no-cache"


def _next_page_url(call: ApiCall, cursor: str) -> str:
    """The address of the next page."""
    request = call.request
    given = Parameters.parse(request.query).pairs
    pairs = [(name, value) for name, value in given if name != _CURSOR_PARAMETER]
    query = urlencode([*pairs, (_CURSOR_PARAMETER, cursor)])
    return absolute_url(f"{quote(request.path, safe=_SAFE_CHARACTERS)}?{query}", call.request_context.place.settings)


# What is not done


def _unauthenticated(request_context: RequestContext, auth: AuthResult) -> Response:
    """The answer to somebody who is not believed."""
    denied = denial(request_context, auth)
    slug = "authentication-failed" if denied.status == UNAUTHORIZED else "not-private"
    made = problems.make_problem(request_context.place.settings, slug, denied.message, code=int(denied.code))
    return problems.problem_response(ProblemResponse(made, _with_bearer(denied.headers)))


async def _error_response(
    request_context: RequestContext, auth: AuthResult, error: Exception, name: str, *, suggests: bool
) -> Response:
    """The answer where something was not done; whoever is not known is asked who they are.

    Whoever reads what is at a name that is not there is told what may have been meant. A name that leads to another
    one, which is not there, is there itself.
    """
    if isinstance(error, KeyChanged):
        auth = end_stale_session(request_context, auth, error)
    result = problems.to_problem(error, request_context)
    if result.problem.status == UNAUTHORIZED:
        headers = (*result.headers, *_with_bearer(challenge_headers(request_context, auth)))
        result = replace(result, headers=headers)
    if suggests and name and not isinstance(error, AliasError):
        result = await problems.add_suggestions(request_context, result, name)
    identity = make_call(request_context, auth).named
    return problems.problem_response(result, name=name, identity=identity)


def _with_bearer(headers: HeaderList) -> HeaderList:
    """What somebody is asked for: where anything is, a token too."""
    is_offered = not headers or any(value.startswith("Bearer ") for _, value in headers)
    return headers if is_offered else (BEARER_CHALLENGE, *headers)
