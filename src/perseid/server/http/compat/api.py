"""Routes of the JSON API of deployed Handle servers (http-api reference, 3 to 6).

    /api                          description
    /api/handles/{handle}         a record
    /api/handles?prefix={prefix}  the handles of a prefix
    /api/prefixes[/{prefix}]      the prefixes of this server
    /api/site                     its site record
    /api/sessions…                authenticated sessions
    /api/verifications/…          verification of responses to another server's challenge

Failed authentication is refused on every path, even for public data.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from perseid.registry.access.permissions import display_name
from perseid.registry.results import Refused
from perseid.server.http import bodies, responses
from perseid.server.http.auth.authentication import AuthResult, authenticate
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import (
    KNOWN_METHODS,
    OPTIONS,
    SAFE_METHODS,
    HeaderList,
    Request,
    Response,
    allow_header,
)
from perseid.server.http.responses import METHOD_NOT_ALLOWED, NO_STORE, NOT_FOUND, NOT_IMPLEMENTED, JsonFormat
from perseid.server.http.targets import API_PATH, BadRequest, Name, Parameters, parse_name
from perseid.wire.codes import ResponseCode

from . import listing, reading, sessions, verifications, writing
from .call import Call

Handler = Callable[[Call, Name], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API."""

    methods: tuple[str, ...] = ()
    handle_request: Handler | None = None
    rest: bytes = b""
    """The rest of the path, as received."""
    is_handle: bool = False
    """Whether the rest is a handle, which all responses repeat."""
    session: bool = False
    """Whether it is about sessions, which authenticate in their own way."""


async def handle_request(request_context: RequestContext) -> Response:
    """Handle a request to the API."""
    request = request_context.request
    form = JsonFormat.of(Parameters.parse(request.query))
    resource = _find_resource(request)
    if request.method not in KNOWN_METHODS:
        message = f"Unknown method {display_name(request.method)}"
        return _error_response(form, NOT_IMPLEMENTED, message)
    if request.method == OPTIONS:
        return Response(200, (allow_header(resource.methods),))
    if request.method not in resource.methods and resource.handle_request is not None:
        return _error_response(form, METHOD_NOT_ALLOWED, _unknown_endpoint(request), (allow_header(resource.methods),))
    if resource.session:
        return await sessions.handle_request(request_context)
    auth = await authenticate(request_context)
    call = Call(request_context, auth, Parameters.parse(request.query), form)
    return await call.catching_errors(None, _call_resource(call, resource))


async def _call_resource(call: Call, resource: Resource) -> Response:
    name = parse_name(resource.rest) if resource.handle_request is not None else Name("")
    if call.auth.problem is not None:
        return call.authentication_failed(name.text if resource.is_handle and name.text else None)
    if resource.handle_request is None:
        raise BadRequest(_unknown_endpoint(call.request), NOT_FOUND)
    if call.form.callback is not None and call.auth.ambient:
        # A script of any page can use JSONP, and a browser would send remembered credentials: ignore them.
        call = replace(call, auth=AuthResult())
    return await resource.handle_request(call, name)


# Resources


def _find_resource(request: Request) -> Resource:
    first, slash, rest = request.path[len(API_PATH) + 1 :].partition(b"/")
    match first:
        case b"":
            return Resource() if rest or slash else Resource(SAFE_METHODS, _description)
        case b"handles":
            return Resource((*SAFE_METHODS, "POST", "PUT", "DELETE"), _handles, rest, is_handle=True)
        case b"prefixes" if not rest:
            return Resource((*SAFE_METHODS, "POST", "DELETE"), listing.handle_prefixes)
        case b"prefixes":
            return Resource(("POST", "DELETE"), listing.handle_prefixes, rest)
        case b"site" if not rest:
            return Resource(SAFE_METHODS, _site)
        case b"verifications":
            return Resource((*SAFE_METHODS, "POST"), verifications.handle_request, rest)
        case b"sessions" if not rest:
            return Resource(("POST",), _unreachable, session=True)
        case b"sessions":
            return Resource((*SAFE_METHODS, "POST", "PUT", "DELETE"), _unreachable, session=True)
    return Resource()


async def _handles(call: Call, name: Name) -> Response:
    match call.request.method:
        case "PUT":
            return await writing.put(call, name)
        case "DELETE":
            return await writing.delete(call, name)
        case "POST":
            call = with_body_parameters(call)
    prefix = call.parameters.first("prefix")
    if name.text:
        return await reading.handle_request(call, name)
    if prefix is None:
        raise Refused(ResponseCode.INVALID_HANDLE, writing.EMPTY_HANDLE)
    return await listing.handle_request(call, prefix)


def with_body_parameters(call: Call) -> Call:
    """Append the body's parameters to those of the query, for a POST that acts as a GET; raises `BadRequest`."""
    try:
        parameters = call.parameters.plus(bodies.parse_parameters(call.request))
    except BadRequest as problem:
        raise BadRequest(f"{problem.message}. {reading.PUT_CREATES}", problem.status) from problem
    return replace(call, parameters=parameters, form=JsonFormat.of(parameters))


async def _site(call: Call, _: Name) -> Response:
    return await listing.handle_site(call)


async def _description(call: Call, _: Name) -> Response:
    return await listing.handle_description(call)


async def _unreachable(_call: Call, _name: Name) -> Response:
    raise AssertionError("sessions are handled before")


def _unknown_endpoint(request: Request) -> str:
    path = request.path.decode("utf-8", "replace")
    method = "GET" if request.method == "HEAD" else request.method  # both responses have the same length
    return f"Unknown HTTP API endpoint {method} {display_name(path)}"


def _error_response(form: JsonFormat, status: int, message: str, headers: HeaderList = ()) -> Response:
    plain = responses.error_body(ResponseCode.PROTOCOL_ERROR, message, None)
    return responses.json_response(plain, form, status, (*headers, NO_STORE))
