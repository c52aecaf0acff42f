"""Request handling of the HTTP API: routing, authentication, rate limit, validation, response.

Errors are reported in this order: path, method, authentication, rate limit, request content. Every error becomes a
problem document (`problems`); unexpected ones are logged.
"""

from dataclasses import replace
from functools import cache
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from perseid.registry.access.permissions import display_name
from perseid.registry.identity import quota_key
from perseid.registry.queries.aliases import AliasError
from perseid.registry.results import NotPublic
from perseid.schema.problems import make_problem
from perseid.server.http.auth.authentication import (
    AuthResult,
    authenticate,
    challenge_headers,
    denial,
    end_stale_session,
    proof_headers,
)
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import OPTIONS, SAFE_METHODS, HeaderList, Parameters, Response, allow_header
from perseid.server.http.negotiation import with_etag_in_pool
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.http.responses import NO_STORE, UNAUTHORIZED
from perseid.server.limits.budgets import get_source
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.steps import WorkKind

from . import problems
from .api_call import LARGE_BODY, ApiCall, encode_body, make_call
from .problems import ApiError, ProblemResponse
from .routing import BASE, Reply, Route, RouteMatch, Router
from .state import Allowance
from .validation import decode_body, decode_query, path_parameters, split_path

BEARER_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="handle"')
"""The first authentication method offered: programs should use tokens."""

_SLASH_ADVICE: Final = "Write the slash of a handle as %2F, as in {}/handles/12345%2Fx"
_CURSOR_PARAMETER: Final = "cursor"
_TIME_PARAMETERS: Final = ("at", "earlier", "later")
_SAFE_CHARACTERS: Final = "/%!$&'()*+,;=:@~"  # not escaped again in the URL of the next page


def is_api_path(path: bytes) -> bool:
    """Return whether a path belongs to this API."""
    base = BASE.encode()
    return path == base or path.startswith(base + b"/")


@cache
def get_router() -> Router:
    """Load all routes, on first use: they import most of the package."""
    from . import route_table  # noqa: PLC0415

    return Router(route_table.SECTIONS)


async def handle(request_context: RequestContext) -> Response:
    """Handle a request.

    Requests for missing paths count toward the rate limit too.
    """
    target: tuple[Route, tuple[str, ...]] | Exception
    try:
        match = _match_path(request_context)
        if request_context.request.method == OPTIONS:
            return Response(204, (allow_header(_allowed_methods(match)), NO_STORE))
        target = _select_route(request_context, match), match.parameters
    except Exception as error:  # noqa: BLE001 - the client needs a response
        target = error
    auth = await authenticate(request_context)
    allowance = _count_request(request_context, auth)
    if isinstance(target, Exception):
        problem = target if allowance.allowed else _rate_limit_error(allowance)
        response = problems.problem_response(problems.to_problem(problem, request_context))
    else:
        response = await _call_route(request_context, *target, auth, allowance)
    return response.with_headers(*allowance.headers, *proof_headers(auth))


def _match_path(request_context: RequestContext) -> RouteMatch:
    path = request_context.request.path
    steps = split_path(path)
    match = get_router().find(steps)
    if match is None:
        text = path.decode("utf-8", "replace")
        advice = _SLASH_ADVICE.format(BASE) if "handles" in steps else "See /docs or /openapi.json for all paths"
        raise ApiError("no-such-path", f"Path {display_name(text)} does not exist", advice)
    return match


def _allowed_methods(match: RouteMatch) -> list[str]:
    methods = [method for method in ("GET", "POST", "PUT", "DELETE") if method in match.routes]
    return [*methods[:1], "HEAD", *methods[1:]] if "GET" in methods else methods


def _select_route(request_context: RequestContext, match: RouteMatch) -> Route:
    method = "GET" if request_context.request.method == "HEAD" else request_context.request.method
    route = match.routes.get(method)
    if route is not None:
        return route
    methods = _allowed_methods(match)
    detail = f"The path does not support {display_name(method)}"
    raise ApiError("method-not-allowed", detail, f"Use {', '.join(methods)}", headers=(allow_header(methods),))


def _rate_limit_error(allowance: Allowance) -> ApiError:
    retry = (("Retry-After", str(allowance.reset)),)
    detail = f"Rate limit of {allowance.limit:,} requests per minute reached"
    return ApiError("too-many-requests", detail, f"Retry in {allowance.reset} s", headers=retry)


def _count_request(request_context: RequestContext, auth: AuthResult) -> Allowance:
    """Count a request for its identity; requests with a token count for the issuer of the token."""
    settings, limiter = request_context.server.settings, request_context.server.api.limiter
    call = make_call(request_context, auth)
    if call.is_anonymous:
        return limiter.take(
            get_source(request_context.request.client.host)[:1],
            settings.api_requests_anonymous,
            request_context.server.time(),
        )
    return limiter.take(quota_key(auth.identity), settings.api_requests, request_context.server.time())


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
        api_call = ApiCall(
            call, route, names, decode_query(request, route.query), await _decode_body(request_context, route)
        )
        suggests = request.method == "GET" and _is_current(api_call.query) and getattr(api_call.query, "suggest", True)
        return await _build_response(api_call, await route.handler(api_call))
    except Exception as error:  # noqa: BLE001 - the client needs a response
        return await _error_response(request_context, auth, error, names.get("handle", ""), suggests=suggests)


def _is_current(query: msgspec.Struct) -> bool:
    """Return whether a query is about the present: suggestions make no sense for other times."""
    return not any(getattr(query, name, None) for name in _TIME_PARAMETERS)


async def _decode_body(request_context: RequestContext, route: Route) -> object:
    """Decode the body; a large one in a pool, so that it does not block the event loop."""
    request = request_context.request
    if len(request.body) <= LARGE_BODY:
        return decode_body(request, route.body)
    return await request_context.do(WorkKind.READ, lambda: decode_body(request, route.body))


async def _build_response(call: ApiCall, reply: Reply) -> Response:
    """Build the response from a route's reply and add the common headers."""
    header_names = {name.lower() for name, _ in reply.headers}
    headers = list(reply.headers)
    if "cache-control" not in header_names:
        headers.append(_cache_control(call))
    if reply.next is not None:
        headers.append(("Link", f'<{_next_page_url(call, reply.next)}>; rel="next"'))
    if reply.body is not None or reply.stream is not None:
        headers.append(("Content-Type", reply.media_type))
    if call.request.method in SAFE_METHODS:
        headers.append(("Vary", "Authorization"))
    response = Response(
        reply.status,
        tuple(headers),
        encode_body(reply),
        reply.stream,
        name=reply.name,
        identity=call.call.named,
        code=1,
    )
    if call.request.method not in SAFE_METHODS or reply.body is None:
        return response
    return await with_etag_in_pool(call.request_context, response, reply.tag)


def _cache_control(call: ApiCall) -> tuple[str, str]:
    """Caches may store responses to reads, but must revalidate them each time."""
    if call.request.method not in SAFE_METHODS:
        return NO_STORE
    return "Cache-Control", "no-cache" if call.call.is_public else "private, no-cache"


def _next_page_url(call: ApiCall, cursor: str) -> str:
    request = call.request
    parameters = Parameters.parse(request.query).pairs
    pairs = [(name, value) for name, value in parameters if name != _CURSOR_PARAMETER]
    query = urlencode([*pairs, (_CURSOR_PARAMETER, cursor)])
    return absolute_url(f"{quote(request.path, safe=_SAFE_CHARACTERS)}?{query}", call.request_context.server.settings)


# Errors


def _unauthenticated(request_context: RequestContext, auth: AuthResult) -> Response:
    denied = denial(request_context, auth)
    slug = "authentication-failed" if denied.status == UNAUTHORIZED else "https-required"
    url, advice = request_context.server.settings.public_url, problems.render_advice(denied.advice)
    problem = make_problem(slug, denied.message, url, advice=advice, code=int(denied.code))
    return problems.problem_response(ProblemResponse(problem, _with_bearer(denied.headers)))


async def _error_response(
    request_context: RequestContext, auth: AuthResult, error: Exception, name: str, *, suggests: bool
) -> Response:
    """Build the response to an error.

    Anonymous callers are asked to authenticate. Reading a missing handle adds suggestions, unless it exists: as an
    alias whose target is missing, or for this caller.
    """
    if isinstance(error, KeyChanged):
        auth = end_stale_session(request_context, auth, error)
    result = problems.to_problem(error, request_context)
    if result.problem.status == UNAUTHORIZED:
        headers = (*result.headers, *_with_bearer(challenge_headers(request_context, auth)))
        result = replace(result, headers=headers)
    if suggests and name and not isinstance(error, AliasError | NotPublic):
        result = await problems.add_suggestions(request_context, result, name)
    identity = make_call(request_context, auth).named
    return problems.problem_response(result, name=name, identity=identity)


def _with_bearer(headers: HeaderList) -> HeaderList:
    """Offer a bearer token wherever another method is offered."""
    is_offered = not headers or any(value.startswith("Bearer ") for _, value in headers)
    return headers if is_offered else (BEARER_CHALLENGE, *headers)
