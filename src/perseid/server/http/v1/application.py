"""Request handling of the HTTP API: authentication, rate limit, routing, validation, response.

Errors are reported in this order: authentication, rate limit, path, method, request content. Every error becomes a
problem document (`problems`); unexpected ones are logged.

The routes are Starlette's, behind our front (`server.http.asgi`). Those with the same first segment have a router of
their own: trying all regular expressions in turn would cost up to 59 µs.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from time import monotonic
from typing import Any, Final

import msgspec
from starlette import routing as starlette
from starlette.responses import Response as StarletteResponse
from starlette.types import Receive, Scope, Send

from perseid.names.errors import MAX_QUOTED_LENGTH
from perseid.names.suggest import nearest
from perseid.registry.access.permissions import display_name
from perseid.registry.access.token_records import InactiveToken
from perseid.registry.identity import quota_key
from perseid.registry.queries.aliases import AliasError
from perseid.registry.responses import with_advice_kind
from perseid.registry.results import NotPublic, OtherServer, Refused
from perseid.schema.problems import make_problem
from perseid.server.http.asgi import call_app
from perseid.server.http.auth.authentication import (
    AuthResult,
    authenticate,
    challenge_headers,
    denial,
    end_stale_session,
    proof_headers,
)
from perseid.server.http.compat.call import Call
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import OPTIONS, SAFE_METHODS, HeaderList, Parameters, Request, Response, allow_header
from perseid.server.http.negotiation import with_etag
from perseid.server.http.responses import DEFAULT_FORMAT, NO_STORE, UNAUTHORIZED
from perseid.server.limits.budgets import get_source
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from . import problems
from .api_call import KEY_HEADER, LARGE_BODY, ApiCall
from .problems import ApiError, ProblemResponse
from .routing import BASE, EmptyQuery, Reply, Route, Routes
from .state import Allowance
from .validation import decode_body, decode_query

BEARER_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="handle"')
"""The first authentication method offered: programs should use tokens."""

_SLASH_ADVICE: Final = "Write the slash of a handle as %2F, as in {}/handles/12345%2Fx"
_BASE: Final = BASE.encode()
_BASE_FOLDER: Final = _BASE + b"/"
_MINT_PATH: Final = _BASE_FOLDER + b"mint"
_TIME_PARAMETERS: Final = ("at", "earlier", "later")


def is_api_path(path: bytes) -> bool:
    """Return whether a path belongs to this API."""
    return path == _BASE or path.startswith(_BASE_FOLDER)


@cache
def get_api() -> "Api":
    """Load all routes, on first use: they import most of the package."""
    from .routes import SECTIONS  # noqa: PLC0415

    return Api(SECTIONS)


class Api:
    """All routes, as an ASGI application. It raises what is wrong with a request."""

    def __init__(self, sections: Iterable[Routes]) -> None:
        self.sections = tuple(sections)
        self.routes = tuple([route for section in self.sections for route in section.routes])
        self._streamed = {(route.method, f"{BASE}{route.path}".encode()) for route in self.routes if route.is_streamed}
        resources: dict[str, Resource] = {}
        for route in self.routes:
            resources.setdefault(route.path, Resource()).add(route)
        self._routers: dict[str, starlette.Router] = {}
        for path, resource in resources.items():
            router = self._routers.setdefault(
                _first_segment(path), starlette.Router(redirect_slashes=False, default=self._raise_no_such_path)
            )
            router.routes.append(starlette.Route(path, resource))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = scope["path"].removeprefix(BASE) or "/"
        router = self._routers.get(_first_segment(scope["path"]))
        await (self._raise_no_such_path if router is None else router.app)(scope, receive, send)

    def is_streamed(self, method: str, path: bytes) -> bool:
        """Whether a request is handled while its body arrives."""
        return (method, path) in self._streamed

    async def _raise_no_such_path(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as Starlette calls it
        path, first = scope["raw_path"], _first_segment(scope["path"])[:MAX_QUOTED_LENGTH]
        advice = "See /docs or /openapi.json for all paths"
        if b"/handles/" in path:
            advice = _SLASH_ADVICE.format(BASE)
        elif first not in self._routers and (meant := _OTHER_WORDS.get(first) or nearest(first, self._routers)):
            advice = f"Did you mean {BASE}/{meant}? {advice}"
        raise ApiError("no-such-path", f"Path {display_name(path.decode('utf-8', 'replace'))} does not exist", advice)


_OTHER_WORDS: Final = {"search": "find", "query": "find", "lookup": "handles", "records": "handles"}
"""Words that other services use in their paths, and ours."""


def _first_segment(path: str) -> str:
    return path.split("/", 2)[1]


class Resource:
    """The methods of one path, as an ASGI application."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}

    def add(self, route: Route) -> None:
        """Add a method."""
        if route.method in self.routes:
            raise ValueError(f"{route.method} {route.path} ({route.operation}) is defined twice")
        self.routes[route.method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        route = self.routes.get("GET" if method == "HEAD" else method)
        if route is not None:
            call = scope["state"]["api_call"] = ApiCall(scope, receive, send, route)
            reply = scope["state"]["reply"] = await _call_handler(call)
        elif method == OPTIONS:
            reply = Reply(status_code=204, headers=(allow_header(self.methods), NO_STORE))
        else:
            detail = f"The path does not support {display_name(method)}"
            advice = f"Use {', '.join(self.methods)}"
            raise ApiError("method-not-allowed", detail, advice, headers=(allow_header(self.methods),))
        await reply(scope, receive, send)

    @property
    def methods(self) -> list[str]:
        """The methods, in a fixed order."""
        known = {**self.routes, "HEAD": None} if "GET" in self.routes else self.routes
        return [method for method in ("GET", "HEAD", "POST", "PUT", "DELETE") if method in known]


async def _call_handler(call: ApiCall) -> StarletteResponse:
    """Decode query and body, the latter in a pool if it is large, so that it does not block the event loop."""
    route, request = call.route, call.request
    arguments: dict[str, Any] = {}
    call.query = decode_query(request, route.query)
    if route.query is not EmptyQuery:
        arguments["query"] = call.query
    if len(request.body) <= LARGE_BODY:
        body = decode_body(request, route.body)
    else:
        body = await call.do(WorkKind.READ, lambda: decode_body(request, route.body))
    if route.body is not None:
        arguments[route.body_name] = body
    return await route.handler(call, **arguments)


async def handle(request_context: RequestContext) -> Response:
    """Handle a request. Those for missing paths count toward the rate limit too."""
    if request_context.request.method == OPTIONS:
        return await _call_api(Call(request_context, AuthResult(), Parameters(), DEFAULT_FORMAT))
    auth = await authenticate(request_context, changes=_mints(request_context.request))
    return await handle_authenticated(request_context, auth)


async def handle_authenticated(request_context: RequestContext, auth: AuthResult) -> Response:
    """Handle a request of a known caller."""
    call = Call(request_context, auth, Parameters(), DEFAULT_FORMAT)
    allowance = _count_request(call)
    if auth.problem is not None:
        response = _unauthenticated(request_context, auth)
    elif not allowance.allowed:
        response = problems.problem_response(problems.to_problem(_rate_limit_error(allowance), request_context))
    elif request_context.request.header("authorization") is not None and not request_context.request.client.private:
        # An anonymous response could lack what the caller can see, without a word.
        refused = Refused(ResponseCode.AUTHENTICATION_NEEDED, "The credentials were not read")
        response = problems.problem_response(problems.to_problem(refused, request_context))
    else:
        response = await _call_api(call)
    return response.with_headers(*allowance.headers, *proof_headers(auth))


def _mints(request: Request) -> bool:
    """Whether a request only mints: with an idempotency key, it may repeat a response without a decision."""
    return request.method == "POST" and request.path == _MINT_PATH and not request.all(KEY_HEADER)


def _rate_limit_error(allowance: Allowance) -> ApiError:
    retry = (("Retry-After", str(allowance.reset)),)
    detail = f"Rate limit of {allowance.limit:,} requests per minute reached"
    return ApiError("too-many-requests", detail, f"Retry in {allowance.reset} s", headers=retry)


def _count_request(call: Call) -> Allowance:
    """Count a request for its identity; requests with a token count for the issuer of the token."""
    server = call.request_context.server
    settings, now = server.settings, monotonic()
    if call.is_anonymous:
        source = get_source(call.request.client.host)[:1]
        return server.api.limiter.take(source, settings.api_requests_anonymous, now)
    return server.api.limiter.take(quota_key(call.identity), settings.api_requests, now)


async def _call_api(call: Call) -> Response:
    """Get the response of a route, with the common headers, or a problem."""
    state: dict[str, Any] = {"call": call}
    try:
        response = await call_app(get_api(), call.request, state)
    except Exception as error:  # noqa: BLE001 - the client needs a response
        return await _error_response(call, error, state.get("api_call"))
    finally:
        reply = state.get("reply")
        state.clear()  # it is part of a reference cycle, which would wait for the garbage collector
    if reply is None:
        return response
    headers: HeaderList = ()
    if next(response.values("Cache-Control"), None) is None:
        headers += (_cache_control(call),)
    if call.request.method in SAFE_METHODS:
        headers += (("Vary", "Authorization"),)
    headers += response.headers
    name, tag = (reply.name, reply.tag) if isinstance(reply, Reply) else ("", "")
    response = Response(
        response.status, headers, response.body, response.stream, code=1, name=name, identity=call.named
    )
    return with_etag(call.request, response, tag) if tag and call.request.method in SAFE_METHODS else response


def _cache_control(call: Call) -> tuple[str, str]:
    """Caches may store responses to reads, but must revalidate them each time."""
    if call.request.method not in SAFE_METHODS:
        return NO_STORE
    return "Cache-Control", "no-cache" if call.is_public else "private, no-cache"


# Errors


def _unauthenticated(request_context: RequestContext, auth: AuthResult) -> Response:
    denied = denial(request_context, auth)
    slug = "authentication-failed" if denied.status == UNAUTHORIZED else "https-required"
    url, advice = request_context.server.settings.public_url, problems.render_advice(denied.advice)
    problem = make_problem(slug, denied.message, url, advice=advice, code=int(denied.code))
    problem = with_advice_kind(problem, denied.advice)
    return problems.problem_response(ProblemResponse(problem, _with_bearer(denied.headers)))


async def _error_response(call: Call, error: Exception, api_call: ApiCall | None) -> Response:
    """Build the response to an error.

    Anonymous callers are asked to authenticate. Reading a missing handle adds suggestions, unless it exists: as an
    alias whose target is missing, or for this caller.
    """
    request_context, auth = call.request_context, call.auth
    if isinstance(error, KeyChanged | InactiveToken):
        auth = end_stale_session(request_context, auth, error)
    result = problems.to_problem(error, request_context)
    if result.problem.status == UNAUTHORIZED:
        headers = (*result.headers, *_with_bearer(challenge_headers(request_context, auth)))
        result = replace(result, headers=headers)
    name, query = ("", EmptyQuery()) if api_call is None else (api_call.names.get("handle", ""), api_call.query)
    if name and not isinstance(error, AliasError | NotPublic | OtherServer) and _suggests(call, query):
        result = await problems.add_suggestions(request_context, result, name)
    return problems.problem_response(result, name=name, identity=replace(call, auth=auth).named)


def _suggests(call: Call, query: msgspec.Struct) -> bool:
    """Return whether a caller wants suggestions; they make no sense for other times than the present."""
    is_current = not any(getattr(query, name, None) for name in _TIME_PARAMETERS)
    return call.request.method == "GET" and is_current and getattr(query, "suggest", True)


def _with_bearer(headers: HeaderList) -> HeaderList:
    """Offer a bearer token wherever another method is offered."""
    is_offered = not headers or any(value.startswith("Bearer ") for _, value in headers)
    return headers if is_offered else (BEARER_CHALLENGE, *headers)
