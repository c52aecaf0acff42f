"""The JSON API of deployed Handle servers (http-api reference, 3 to 6): which resource a path is, and what it can do.

    /api                          what there is
    /api/handles/{handle}         a record
    /api/handles?prefix={prefix}  the names of a prefix
    /api/prefixes[/{prefix}]      the prefixes of this server
    /api/site                     its site record
    /api/sessions…                sessions, in which somebody has proved who they are
    /api/verifications/…          whether an answer to another server's challenge is right

Whoever fails to prove who they say they are is refused on every path, also where everybody may read.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from perseid.registry.access.permissions import shown
from perseid.registry.results import Refused
from perseid.server.http import bodies, responses
from perseid.server.http.auth.authentication import Identified, identify
from perseid.server.http.context import Asking
from perseid.server.http.messages import KNOWN, OPTIONS, READING, HeaderList, Request, Response, allow
from perseid.server.http.responses import METHOD_NOT_ALLOWED, NO_STORE, NOT_FOUND, NOT_IMPLEMENTED, Form
from perseid.server.http.targets import API, Malformed, Name, Parameters, name_of
from perseid.wire.codes import ResponseCode

from . import changing, listing, reading, sessions, verifications
from . import listing as api_prefixes
from . import listing as api_site
from .call import Call

Answering = Callable[[Call, Name], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that a path leads to."""

    methods: tuple[str, ...] = ()
    answer: Answering | None = None
    rest: bytes = b""
    """What stands behind the name of the resource in the path, as it came."""
    is_handle: bool = False
    """Whether the rest is a handle, which all answers repeat."""
    session: bool = False
    """Whether it is about sessions, which have their own answers to who asks."""


async def answer(asking: Asking) -> Response:
    """Answer a request of the API."""
    request = asking.request
    form = Form.of(Parameters.parse(request.query))
    resource = _resource(request)
    if request.method not in KNOWN:
        message = f"Unknown method {shown(request.method)}"
        return _refused(form, NOT_IMPLEMENTED, message)
    if request.method == OPTIONS:
        return Response(200, (allow(resource.methods),))
    if request.method not in resource.methods and resource.answer is not None:
        return _refused(form, METHOD_NOT_ALLOWED, _unknown(request), (allow(resource.methods),))
    if resource.session:
        return await sessions.answer(asking)
    identified = await identify(asking)
    call = Call(asking, identified, Parameters.parse(request.query), form)
    return await call.refusing(None, _called(call, resource))


async def _called(call: Call, resource: Resource) -> Response:
    name = name_of(resource.rest) if resource.answer is not None else Name("")
    if call.identified.problem is not None:
        return call.unproved(name.text if resource.is_handle and name.text else None)
    if resource.answer is None:
        raise Malformed(_unknown(call.request), NOT_FOUND)
    if call.form.callback is not None and call.identified.ambient:
        # A script of any page may ask so, and a browser would send along what it remembers: that must show nothing.
        call = replace(call, identified=Identified())
    return await resource.answer(call, name)


# Resources


def _resource(request: Request) -> Resource:
    first, slash, rest = request.path[len(API) + 1 :].partition(b"/")
    match first:
        case b"":
            return Resource() if rest or slash else Resource(READING, _description)
        case b"handles":
            return Resource((*READING, "POST", "PUT", "DELETE"), _handles, rest, is_handle=True)
        case b"prefixes" if not rest:
            return Resource((*READING, "POST", "DELETE"), api_prefixes.answer_prefixes)
        case b"prefixes":
            return Resource(("POST", "DELETE"), api_prefixes.answer_prefixes, rest)
        case b"site" if not rest:
            return Resource(READING, _site)
        case b"verifications":
            return Resource((*READING, "POST"), verifications.answer, rest)
        case b"sessions" if not rest:
            return Resource(("POST",), _never, session=True)
        case b"sessions":
            return Resource((*READING, "POST", "PUT", "DELETE"), _never, session=True)
    return Resource()


async def _handles(call: Call, name: Name) -> Response:
    match call.request.method:
        case "PUT":
            return await changing.put(call, name)
        case "DELETE":
            return await changing.delete(call, name)
        case "POST":
            call = with_body_parameters(call)
    prefix = call.parameters.first("prefix")
    if name.text:
        return await reading.answer(call, name)
    if prefix is None:
        raise Refused(ResponseCode.INVALID_HANDLE, changing.EMPTY)
    return await listing.answer(call, prefix)


def with_body_parameters(call: Call) -> Call:
    """A POST that is a GET, with the parameters of its body behind those of the query; raises `Malformed`."""
    try:
        parameters = call.parameters.plus(bodies.parameters(call.request))
    except Malformed as problem:
        raise Malformed(f"{problem.message}. {reading.PUT_CREATES}", problem.status) from problem
    return replace(call, parameters=parameters, form=Form.of(parameters))


async def _site(call: Call, _: Name) -> Response:
    return await api_site.site(call)


async def _description(call: Call, _: Name) -> Response:
    return await api_site.description(call)


async def _never(_call: Call, _name: Name) -> Response:
    raise AssertionError("sessions answer for themselves")


def _unknown(request: Request) -> str:
    path = request.path.decode("utf-8", "replace")
    method = "GET" if request.method == "HEAD" else request.method  # the answers to both have the same length
    return f"Unknown HTTP API endpoint {method} {shown(path)}"


def _refused(form: Form, status: int, message: str, headers: HeaderList = ()) -> Response:
    plain = responses.refusal(ResponseCode.PROTOCOL_ERROR, message, None)
    return responses.json_response(plain, form, status, (*headers, NO_STORE))
