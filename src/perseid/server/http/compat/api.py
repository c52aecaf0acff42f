"""The JSON API of deployed Handle servers (http-api reference, 3 to 6): routes, tunneled messages and verifications.

    /api                          description
    /api/handles/{handle}         a record
    /api/handles?prefix={prefix}  the handles of a prefix
    /api/prefixes[/{prefix}]      the prefixes of this server
    /api/site                     its site record
    /api/sessions…                authenticated sessions
    /api/verifications/…          verification of responses to another server's challenge

Failed authentication is refused on every path, even for public data.

A native message can be tunneled in HTTP, for clients that can reach only HTTP: the body of a POST is a message with its
envelope, and so is the response. `Accept` and `Content-Type` identify such a request; the path is ignored. Errors are
native messages too, as deployed clients look at neither status nor headers: they read the body at once, so a response
must never be chunked or compressed. A list has several messages, concatenated in one body as on TCP.

A verification (6.9) is of a signature made with a secret key. Another server requests it when a user whose record is
here authenticates there; it corresponds to VERIFY_CHALLENGE of the native protocol. Request and response are not
secret, so plain HTTP is enough. To limit guessing, the budgets know whose secret is checked, before the work and after
it. Failures count for the calling address and for the handle, together with those of the native protocol.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef
from perseid.records.site import Transport
from perseid.registry.access.permissions import display_name
from perseid.registry.identity import Proof
from perseid.registry.results import Refused
from perseid.server.http import responses
from perseid.server.http.auth import handle_scheme
from perseid.server.http.auth.authentication import AuthResult, authenticate
from perseid.server.http.auth.handle_scheme import Claim, InvalidFields
from perseid.server.http.context import NativeProtocol, ProofResult, RequestContext
from perseid.server.http.messages import (
    API_PATH,
    KNOWN_METHODS,
    OPTIONS,
    SAFE_METHODS,
    BadRequest,
    HeaderList,
    Name,
    Parameters,
    Request,
    Response,
    allow_header,
    parse_name,
)
from perseid.server.http.responses import METHOD_NOT_ALLOWED, NO_STORE, NOT_FOUND, NOT_IMPLEMENTED, JsonFormat
from perseid.server.native.operations import NativeContext, find_secrets
from perseid.server.native.work import WorkKind, verified_secret_id
from perseid.wire import message
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import MEDIA_TYPE, Frame, is_native, unwrap_http_body
from perseid.wire.message import Envelope
from perseid.wire.requests import VerifyChallenge
from perseid.wire.server import INVALID_LENGTH_TEXT

from . import listing, reading, sessions, writing
from .call import Call, full_name

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
    changes = resource.is_handle and request.method in ("PUT", "DELETE")
    auth = await authenticate(request_context, changes=changes)
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
            return Resource((*SAFE_METHODS, "POST"), _verify, rest)
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
    return await listing.handle_listing(call, prefix)


def with_body_parameters(call: Call) -> Call:
    """Append the body's parameters to those of the query, for a POST that acts as a GET; raises `BadRequest`."""
    try:
        parameters = call.parameters.plus(responses.parse_parameters(call.request))
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


# Native messages

NATIVE_TYPE: Final = MEDIA_TYPE
"""The media type of native messages."""

MAX_RESPONSE_BYTES: Final = 16 << 20
"""Bytes of the longest response: lists of about 400,000 handles. They are built before they are sent, since the length
comes first; longer lists need TCP."""

_HEADERS: HeaderList = (("Content-Type", NATIVE_TYPE), ("Cache-Control", "no-store"))
_TOO_LONG = "The list is too long for HTTP; ask over TCP"


def is_message(request: Request) -> bool:
    """Whether a request contains a native message: both headers must say so."""
    return request.method == "POST" and is_native(request.get_joined("accept"), request.get_joined("content-type"))


async def handle_message(request_context: RequestContext) -> Response:
    """Handle a native message; the status is always 200."""
    native = request_context.server.native
    if native is None:
        return Response(404, (("Content-Type", "text/plain;charset=utf-8"),), b"native messages are not supported\n")
    frame = _parse_frame(request_context.request.body)
    if frame is None:
        return Response(
            200, _HEADERS, native.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT).to_stream()
        )
    return Response(200, _HEADERS, await _run_message(native, frame, request_context))


def _parse_frame(body: bytes) -> Frame | None:
    """Parse the message in a body; None if it is missing or incomplete. Bytes after it are ignored."""
    data = unwrap_http_body(body)
    if len(data) < message.ENVELOPE_LENGTH:
        return None
    envelope = Envelope.from_bytes(data[: message.ENVELOPE_LENGTH])
    end = message.ENVELOPE_LENGTH + envelope.length
    if not envelope.has_valid_length or len(data) < end:
        return None
    return Frame(envelope, data[message.ENVELOPE_LENGTH : end])


async def _run_message(native: NativeProtocol, frame: Frame, request_context: RequestContext) -> bytes:
    """Run a message and join all messages of the response."""
    client = request_context.request.client
    transport = Transport.HTTPS if client.secure else Transport.HTTP
    parts, length = [], 0
    async with aclosing(native.respond(frame, client.host, transport)) as native_responses:
        async for native_response in native_responses:
            data = native_response.reply.to_stream()
            length += len(data)
            if length > MAX_RESPONSE_BYTES:
                # Nothing was sent yet, so this is the whole response, and not a truncated list.
                return native.early_failure(ResponseCode.ERROR, _TOO_LONG).to_stream()
            parts.append(data)
    return b"".join(parts)


_REQUIRED_FIELDS: Final = ("nonce", "cnonce", "alg", "signature")
_FIELDS: Final = (*_REQUIRED_FIELDS, "salt", "iterations", "length")
_WITH_INDEX: Final = re.compile(r"[0-9]+:")


# Verifications


@dataclass(frozen=True, slots=True)
class _Verification:
    """A parsed request."""

    claim: Claim
    nonce: bytes

    @property
    def handle(self) -> str:
        return self.claim.reference.handle


async def _verify(call: Call, name: Name) -> Response:
    """Verify a signature. Raises what `Call` converts to a response."""
    request, parameters = call.request, call.parameters
    if request.method == "POST":
        parameters = parameters.plus(responses.parse_parameters(request))
        call = replace(call, parameters=parameters, form=JsonFormat.of(parameters))
    verification = _parse_verification(
        name.text, parameters, weak_digests=call.request_context.server.settings.weak_digests
    )
    try:
        is_valid = await _is_valid(call.request_context, verification)
    except Refused as problem:
        return call.error_response(problem, verification.handle)
    plain = {"responseCode": int(ResponseCode.SUCCESS), "isValid": is_valid, "handle": verification.handle}
    return call.respond(plain, name=verification.handle)


async def _is_valid(request_context: RequestContext, verification: _Verification) -> bool:
    server, reference = request_context.server, verification.claim.reference
    handle = full_name(reference.handle).encode("utf-8", "replace")
    secret_of = verified_secret_id(handle)
    native = NativeContext(server.registry, server.site, server.position, tuple)
    challenge = VerifyChallenge(handle, reference.index, b"", b"", b"")
    load_keys = partial(find_secrets, native, challenge, refer=False)
    keys = await request_context.do(WorkKind.READ, load_keys)
    check = partial(handle_scheme.matching_signature_key, verification.claim, verification.nonce, keys)
    price = handle_scheme.verification_cost(verification.claim)
    is_valid = await request_context.do(WorkKind.VERIFY, check, secret_of=secret_of, price=price) is not None
    server.record_proof(ProofResult(is_valid, secret_of, own=False), request_context.request.client)
    return is_valid


def _parse_verification(name: str, parameters: Parameters, *, weak_digests: bool) -> _Verification:
    """Parse the parameters; raises `BadRequest`."""
    reference = _parse_reference(name, parameters)
    fields = {name: value for name in _FIELDS if (value := parameters.first(name)) is not None}
    if missing := [name for name in _REQUIRED_FIELDS if name not in fields]:
        raise BadRequest(f"parameters are missing: {', '.join(missing)}")
    try:
        algorithm = handle_scheme.parse_algorithm(fields["alg"], Proof.SECRET_KEY, weak_digests=weak_digests)
        nonce, cnonce = (handle_scheme.decode_base64(fields[name], name) for name in ("nonce", "cnonce"))
        signature = handle_scheme.decode_base64(fields["signature"], "signature")
        derivation = handle_scheme.parse_derivation(fields, algorithm)
    except InvalidFields as problem:
        raise BadRequest(str(problem)) from None
    claim = Claim(str(reference), reference, Proof.SECRET_KEY, algorithm, cnonce, signature, *derivation)
    return _Verification(claim, nonce)


def _parse_reference(text: str, parameters: Parameters) -> ValueRef:
    """The key, from the path, or from the path and one index."""
    indexes = parameters.numbers("index")
    if len(indexes) > 1 or (indexes and _WITH_INDEX.match(text)):
        raise BadRequest("send the index either in the path or as one parameter")
    try:
        reference = ValueRef.parse(text)
    except InvalidData as problem:
        raise BadRequest(f"the path is not INDEX:HANDLE: {problem}") from None
    return ValueRef(max(indexes[0], 0), reference.handle) if indexes else reference
