"""`/api/sessions` (HTTP API, 6.10): start, authenticate and end sessions.

    POST    /api/sessions         starts one; Basic credentials or a certificate authenticate it at once
    GET     /api/sessions/this    shows its state
    PUT     /api/sessions/this    authenticates it; POST does the same, which the browser tool sends
    DELETE  /api/sessions/this    ends it

The fields of the `Handle` scheme may be in its header, in a JSON object, in a form or in the query; the header takes
precedence over the body, and the body over the query. Only in the header is the id percent-encoded.

Beyond deployed servers: a refusal has a reason in the member `error`; a wrong proof in an authenticated session gets
401, not 200, and the session stays authenticated; a session ends with the key that proved it. JSONP (`callback`) is
not supported: responses contain secrets of the client.
"""

from dataclasses import dataclass, field
from typing import Final

from perseid.names.errors import quote_text
from perseid.records.encoding import JsonObject, json_type_name
from perseid.server.http import clients, responses
from perseid.server.http.auth import authentication, handle_scheme
from perseid.server.http.auth.authentication import (
    AuthResult,
    find_session,
    parse_authorization,
    signature_fields,
    start_session,
    verify_claim,
)
from perseid.server.http.auth.handle_scheme import InvalidFields
from perseid.server.http.auth.proofs import AuthFailure, ProvenIdentity, authenticate_basic, authenticate_certificate
from perseid.server.http.auth.session_table import Session
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, HeaderList, Parameters, Request, Response
from perseid.server.http.responses import JsonFormat
from perseid.server.native.authentication import Guard, KeyChanged, caller_identity
from perseid.server.native.work import WorkKind

PATH: Final = b"/api/sessions"
LOCATION: Final = ("Location", "/api/sessions/this")

MAX_FIELDS: Final = 64
"""Fields of a body: a dozen are used."""

_SESSION_ID: Final = "sessionid"


@dataclass(frozen=True, slots=True)
class _SessionRequest:
    """The fields of a request, wherever they are."""

    fields: dict[str, str] = field(default_factory=dict, repr=False)
    """Names in lowercase; the id is decoded."""
    basic: str | None = field(default=None, repr=False)
    """The Basic credentials in the header."""
    other: bool = False
    """Whether the header has an unknown scheme."""


async def handle_request(request_context: RequestContext) -> Response:
    """Handle a request about sessions; the method is already checked."""
    request = request_context.request
    path = request.path.removeprefix(PATH).removesuffix(b"/")
    if not request.client.private:
        return _error_response(request_context, responses.FORBIDDEN, responses.https_required(request))
    if path not in (b"", b"/this"):
        return _error_response(
            request_context, responses.FORBIDDEN, "use /api/sessions/this with the sessionId of the session"
        )
    try:
        parsed = _parse_request(request)
    except BadRequest as problem:
        return _error_response(request_context, problem.status, problem.message)
    return await (
        _create_session(request_context, parsed) if path == b"" else _handle_existing(request_context, parsed)
    )


async def _create_session(request_context: RequestContext, parsed: _SessionRequest) -> Response:
    if _SESSION_ID in parsed.fields:
        return _error_response(
            request_context, responses.BAD_REQUEST, "do not send a sessionId for a new session; the server chooses it"
        )
    session = start_session(request_context)
    auth = AuthResult(session=session)
    proof = await _prove(request_context, session, parsed)
    auth = await _with_signature(request_context, auth, parsed)
    plain = _session_body(session, auth, proof.reason if isinstance(proof, AuthFailure) else "")
    return _json_response(request_context, plain, 201, (LOCATION,), session)


async def _handle_existing(request_context: RequestContext, parsed: _SessionRequest) -> Response:
    text = parsed.fields.get(_SESSION_ID)
    method = request_context.request.method
    session = None
    if text is not None:
        session = find_session(request_context, text)
    if session is not None and method != "DELETE" and not await _is_alive(request_context, session):
        return _error_response(
            request_context, responses.FORBIDDEN, "the session has ended because the key that proved it has changed"
        )
    if session is None:
        if text is None and method != "DELETE":
            return _json_response(request_context, {"authenticated": False}, 200)
        return _error_response(request_context, responses.FORBIDDEN, "the session does not exist or has ended")
    if method == "DELETE":
        request_context.server.sessions.end(session)
        return Response(204, (responses.NO_STORE,))
    proof = None if method in SAFE_METHODS else await _prove(request_context, session, parsed)
    auth = await _with_signature(request_context, AuthResult(session=session), parsed)
    if isinstance(proof, AuthFailure):
        problem = AuthResult(session=session, problem=proof, signature=auth.signature)
        headers = authentication.challenge_headers(request_context, problem)
        return _json_response(
            request_context, _session_body(session, auth, proof.reason), responses.UNAUTHORIZED, headers, session
        )
    return _json_response(request_context, _session_body(session, auth), 200, (), session)


async def _is_alive(request_context: RequestContext, session: Session) -> bool:
    """Whether the key that proved the session's identity still exists; otherwise the session ends."""
    if session.proved is None:
        return True
    guard, registry = Guard(session.proved, session=True), request_context.server.registry

    def check_key() -> None:
        with registry.snapshot() as snapshot:
            guard.check(snapshot, registry.now())

    try:
        await request_context.do(WorkKind.READ, check_key)
    except KeyChanged:
        request_context.server.sessions.end(session)
        return False
    return True


async def _prove(
    request_context: RequestContext, session: Session, parsed: _SessionRequest
) -> ProvenIdentity | AuthFailure | None:
    """Check the credentials of a request; None if it has none."""
    proof = await _authenticate(request_context, session, parsed)
    if isinstance(proof, ProvenIdentity):
        request_context.server.sessions.prove(session, proof.proved, proof.written)
    return proof


async def _authenticate(
    request_context: RequestContext, session: Session, parsed: _SessionRequest
) -> ProvenIdentity | AuthFailure | None:
    certificate = request_context.request.client.certificate
    try:
        handle_scheme.check_version(parsed.fields)
        if parsed.other:
            return AuthFailure("the scheme of the Authorization header is not supported; use Basic or Handle")
        if parsed.basic is not None:
            return _check_ambient(request_context) or await authenticate_basic(request_context, parsed.basic)
        if handle_scheme.is_claim(parsed.fields):
            return await verify_claim(request_context, session, parsed.fields, "")
    except InvalidFields as problem:
        return AuthFailure(str(problem))
    if certificate is not None and session.proved is None:
        return _check_ambient(request_context) or await authenticate_certificate(request_context, certificate)
    return None


def _check_ambient(request_context: RequestContext) -> AuthFailure | None:
    """Refuse credentials that a browser may have sent automatically.

    Otherwise a page of an attacker could authenticate a session whose id the attacker knows.
    """
    reason = clients.check_ambient_credentials(request_context)
    return None if reason is None else AuthFailure(reason)


async def _with_signature(request_context: RequestContext, auth: AuthResult, parsed: _SessionRequest) -> AuthResult:
    """Add the server's proof of identity if requested; an invalid nonce is ignored."""
    try:
        cnonce = handle_scheme.client_nonce(parsed.fields)
    except InvalidFields:
        cnonce = None
    return auth if cnonce is None else await authentication.with_server_signature(request_context, auth, cnonce)


# Parsing


def _parse_request(request: Request) -> _SessionRequest:
    """Parse a request; raises `BadRequest`."""
    fields: dict[str, str] = {}
    basic, other = None, False
    header = request.header("authorization")
    if header is not None:
        scheme, rest = parse_authorization(header)
        if scheme == "basic":
            basic = rest
        elif scheme == "handle":
            fields = _header_fields(rest)
        else:
            other = True
    for name, value in (*_body_fields(request), *Parameters.parse(request.query).pairs):
        fields.setdefault(name.lower(), value)
    return _SessionRequest(fields, basic, other)


def _header_fields(text: str) -> dict[str, str]:
    fields = handle_scheme.parse_fields(text)
    if fields is None:
        raise BadRequest('the Authorization header is invalid; the format is Handle name="value", name="value" …')
    if "id" in fields:
        try:
            fields["id"] = handle_scheme.id_from_header(fields["id"])
        except InvalidFields as problem:
            raise BadRequest(str(problem)) from None
    return fields


def _body_fields(request: Request) -> tuple[tuple[str, str], ...]:
    if responses.media_type(request) == responses.FORM_TYPE:
        return responses.parse_form(request)
    members = responses.parse_json_object(request)
    if len(members) > MAX_FIELDS:
        raise BadRequest(f"the body has more than {MAX_FIELDS} members")
    return tuple([(name, _to_text(name, value)) for name, value in members.items() if value is not None])


def _to_text(name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
    raise BadRequest(f"{quote_text(name)} in the body must be a string, not {json_type_name(value)}")


# Responses


def _session_body(session: Session, auth: AuthResult, error: str = "") -> JsonObject:
    """The state of a session."""
    plain: JsonObject = {"sessionId": session.id, "nonce": session.nonce_text}
    if auth.signature is not None:
        plain |= signature_fields(auth.signature)
    if session.proved is not None:
        plain |= {"authenticated": True, "id": session.claimed}
    if error:
        plain["error"] = error
    return plain


def _json_response(
    request_context: RequestContext,
    plain: JsonObject,
    status: int,
    headers: HeaderList = (),
    session: Session | None = None,
) -> Response:
    identity = "" if session is None or session.proved is None else str(caller_identity(session.proved, session=False))
    form = JsonFormat(Parameters.parse(request_context.request.query).flag("pretty"))
    return responses.json_response(plain, form, status, (*headers, responses.NO_STORE), identity=identity)


def _error_response(request_context: RequestContext, status: int, reason: str) -> Response:
    return _json_response(request_context, {"error": reason}, status)
