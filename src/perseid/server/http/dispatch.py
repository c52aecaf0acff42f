"""HTTP dispatch and health checks.

    /api/v1…                   version 1 API, with its description and documentation pages
    /api…                      JSON API of deployed servers
    /console…                  web console
    /hrls/…                    reverse lookup: finding handles by their values
    /healthz                   200 while the process responds; for a process supervisor
    /readyz                    200 if ready, and if changes are accepted; 503 with a reason if not; for a load balancer
    POST of a native message   the native protocol, tunneled
    everything else            resolution and its pages

Every exception becomes a response: JSON below `/api`, plain text elsewhere. An unexpected exception is logged under a
number, and the client gets the number. Health checks return a line of text, or JSON if accepted, and are public.

This module imports all handlers, and the fast path needs none of them. So a worker loads it when it has started
(`HttpServer.load`).
"""

import json
from typing import Final

from perseid.registry.results import find_refusal

from . import negotiation, responses
from .compat import api, listing
from .console import application as console
from .console.routing import STREAMED
from .context import HttpSettings, RequestContext
from .messages import (
    KNOWN_METHODS,
    OPTIONS,
    SAFE_METHODS,
    BadRequest,
    HeaderList,
    Request,
    Response,
    allow_header,
    is_api,
    is_console,
)
from .resolver import resolver
from .v1 import application
from .v1 import problems as v1_problems

ALIVE_PATH: Final = b"/healthz"
READY_PATH: Final = b"/readyz"

RETRY_AFTER: Final = 5
"""Seconds until a retry makes sense: a view has caught up, or another server is chosen."""

DATABASE_UNAVAILABLE: Final = "database-unavailable"
"""The reason if changes fail with "busy" until the database can be reached again."""

_JSON = "application/json"
_NO_STORE_HEADERS: HeaderList = (("Cache-Control", "no-store"),)


async def handle_health(request_context: RequestContext) -> Response:
    """Handle a health check."""
    if request_context.request.path == READY_PATH:
        reason = request_context.server.ready()
        write_problem = request_context.server.registry.ledger.write_problem
        refused = find_refusal(write_problem)
        problem = refused.problem_type if refused else DATABASE_UNAVAILABLE if write_problem else ""
        fields: dict[str, object] = {"ready": not reason, "accepts_changes": not (reason or problem)}
        line = f"not ready: {reason}" if reason else f"ready, changes are refused: {problem}" if problem else "ready"
        fields |= {"reason": reason or problem} if reason or problem else {}
        return _health_response(request_context, 503 if reason else 200, fields, line)
    return _health_response(request_context, 200, {"alive": True}, "alive")


def _health_response(request_context: RequestContext, status: int, fields: dict[str, object], line: str) -> Response:
    as_json = _JSON in request_context.request.get_joined("accept").lower()
    body = json.dumps(fields) if as_json else line
    kind = f"{_JSON};charset=utf-8" if as_json else "text/plain;charset=utf-8"
    headers: HeaderList = (("Content-Type", kind), *_NO_STORE_HEADERS)
    if status == 503:
        headers += (("Retry-After", str(RETRY_AFTER)),)
    return Response(status, headers, body.encode() + b"\n")


HEALTH_PATHS: Final = (ALIVE_PATH, READY_PATH)

REVERSE_LOOKUP_PATH: Final = b"/hrls/"
"""Reverse lookup, as in an add-on to deployed servers."""

_IDENTITY: Final = ("", "identity")


async def respond(request_context: RequestContext) -> Response:
    """Return the response to a request; never raises."""
    try:
        return await _choose(request_context)
    except Exception as problem:  # noqa: BLE001 - every exception must become a response
        if application.is_api_path(request_context.request.path):
            return v1_problems.problem_response(v1_problems.to_problem(problem, request_context))
        return responses.failure_response(request_context, problem)
    finally:
        request_context.settle_proof(succeeded=None)


def is_streamed(request: Request) -> bool:
    """Return whether the route of a request processes the body while it arrives."""
    path = request.path
    if is_console(path):
        return (request.method, path) in STREAMED
    return application.is_api_path(path) and application.get_api().is_streamed(request.method, path)


def rejection(request: Request, settings: HttpSettings, status: int, problem: str) -> Response:
    """Return the response to bytes that are not a valid request."""
    if application.is_api_path(request.path):
        return v1_problems.error_response(settings, status, problem)
    return responses.plain(request, status, problem)


async def _choose(request_context: RequestContext) -> Response:
    request = request_context.request
    if negotiation.is_preflight(request):
        return negotiation.preflight_response(request)
    if request.body and request.get_joined("content-encoding").strip().lower() not in _IDENTITY:
        # A small compressed body can expand without limit, and no known client compresses.
        raise BadRequest(
            "Content-Encoding is not supported; send the body uncompressed",
            responses.UNSUPPORTED_MEDIA_TYPE,
            advice="Send the body without Content-Encoding",
        )
    if application.is_api_path(request.path):
        return await application.handle(request_context)
    if is_api(request.path):
        return await api.handle_request(request_context)
    if is_console(request.path):
        return _check_method(request, (*SAFE_METHODS, "POST")) or await console.handle(request_context)
    if api.is_message(request):
        return await api.handle_message(request_context)
    if request.path in HEALTH_PATHS:
        return _check_method(request, SAFE_METHODS) or await handle_health(request_context)
    if request.path.startswith(REVERSE_LOOKUP_PATH):
        return _check_method(request, SAFE_METHODS) or await listing.handle_search(request_context)
    return _check_method(request, (*SAFE_METHODS, "POST")) or await resolver.handle_request(request_context)


def _check_method(request: Request, methods: tuple[str, ...]) -> Response | None:
    """Return the response to a method that is not one of these; None if it is."""
    if request.method in methods:
        return None
    if request.method == OPTIONS:
        return Response(200, (allow_header(methods),))
    if request.method not in KNOWN_METHODS:
        return Response(responses.NOT_IMPLEMENTED)
    return Response(responses.METHOD_NOT_ALLOWED, (allow_header(methods),))
