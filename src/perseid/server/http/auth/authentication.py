"""Who asks over HTTP (HTTP API, 7): what a request says about it, and what it is asked for where that is missing.

In this order, and the first that says something counts:

    1.  Authorization: Handle with a session that is not known        refused, whatever else there is
    2.  Authorization: Basic, Bearer, or Handle with a claim          proved, or refused: also what everybody may read
    3.  who has proved who they are in the session
    4.  the certificate that came with TLS
    5.  nobody in particular

Secrets count where nobody can read along, over TLS or on the machine itself; elsewhere the header is not even looked
at. A proof counts for as long as the key is there that it was made with: operations are carried out under the `Guard`
of `Identified`, which looks once more in the very state in which they are decided.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from perseid.records.encoding import to_base64
from perseid.registry.identity import Anonymous, Identity
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.http.messages import HeaderList, Request
from perseid.server.http.responses import FORBIDDEN, HTTPS_REQUIRED, UNAUTHORIZED
from perseid.server.native.authentication import Guard, KeyChanged, caller_identity
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from . import handle_scheme, proofs
from . import handle_scheme as handle_proofs
from .handle_scheme import InvalidFields
from .proofs import AuthFailure, ProvenIdentity, authenticate_basic, authenticate_certificate, authenticate_claim
from .session_table import Session

REALM: Final = "handle"
"""What browsers show when they ask for name and password, as deployed servers have it."""

AUTHENTICATION_REQUIRED: Final = (
    "this needs to know who you are: send Basic or Handle credentials, a token, or a TLS client certificate"
)

_AUTHORIZATION: Final = "authorization"
_CHALLENGE: Final = "WWW-Authenticate"
_BASIC, _BEARER, _HANDLE = "basic", "bearer", "handle"
_TRUE: Final = ("true", "yes")


@dataclass(frozen=True, slots=True)
class AuthResult:
    """What a request says about who asks."""

    identity: Identity = field(default_factory=Anonymous)
    guard: Guard | None = None
    """Under which operations are carried out for them: that their key is still there."""
    session: Session | None = None
    """The session that the request came in, or that was begun for it."""
    ambient: bool = False
    """Whether a browser may have sent the proof by itself, from a page of anybody: a change needs more than that."""
    problem: AuthFailure | None = None
    """Why they are not believed; then nobody is known, and the answer is 401."""
    signature: bytes | None = field(default=None, repr=False)
    """By what the server proves that it is itself, if it was asked to; it goes with the session's nonce."""


@dataclass(frozen=True, slots=True)
class Denial:
    """How a request is answered that needs an identity which it does not have."""

    status: int
    code: ResponseCode
    message: str
    headers: HeaderList = ()


async def authenticate(request_context: RequestContext) -> AuthResult:
    """Who asks. Raises `Busy` where there is too much to look at."""
    request = request_context.request
    if not request.client.private:
        return AuthResult()
    header = request.header(_AUTHORIZATION)
    if header is None:
        return await _authenticate_certificate(request_context, None, ambient=True)
    scheme, rest = parse_authorization(header)
    if scheme == _BASIC:
        return _to_auth_result(await authenticate_basic(request_context, rest), ambient=True)
    if scheme == _HANDLE:
        return await _authenticate_handle(request_context, header, rest)
    if scheme == _BEARER:
        bearer_of = await proofs.authenticate_token(request_context, rest)
        # Whether the token counts is looked up again where something is decided, so it needs no guard.
        return AuthResult(problem=bearer_of) if isinstance(bearer_of, AuthFailure) else AuthResult(bearer_of)
    reason = "the scheme of the Authorization header is not known here; there are Basic, Bearer and Handle"
    return AuthResult(problem=AuthFailure(reason, in_challenge=False))


def parse_authorization(header: str) -> tuple[str, str]:
    """The scheme of an Authorization header, in small letters, and what stands behind it."""
    scheme, _, rest = header.replace("\t", " ").partition(" ")
    return scheme.lower(), rest.strip(" ")


async def _authenticate_handle(request_context: RequestContext, header: str, rest: str) -> AuthResult:
    fields = handle_scheme.parse_fields(rest)
    if fields is None:
        reason = 'the Authorization header cannot be read; it should be Handle name="value", name="value" …'
        return AuthResult(problem=AuthFailure(reason, in_challenge=False))
    session = None
    if (text := fields.get("sessionid")) is not None:
        session = find_session(request_context, text)
        if session is None:
            return AuthResult(problem=AuthFailure("there is no such session, or it has ended", in_challenge=False))
    try:
        handle_scheme.check_version(fields)
        cnonce = handle_scheme.client_nonce(fields)
        if handle_scheme.is_claim(fields):
            if "id" in fields:
                fields["id"] = handle_scheme.id_from_header(fields["id"])
            shown = await verify_claim(request_context, session, fields, header)
            return _to_auth_result(shown, session)
    except InvalidFields as problem:
        return AuthResult(session=session, problem=AuthFailure(str(problem)))
    found = await _authenticate_session(request_context, session, wants_certificate=is_true(fields.get("clientcert")))
    return found if cnonce is None else await with_server_signature(request_context, found, cnonce)


async def verify_claim(
    request_context: RequestContext, session: Session | None, fields: dict[str, str], header: str
) -> ProvenIdentity | AuthFailure:
    """Take the claim that fields make, the id as it is meant; raises `NotUnderstood`. A success stays in the session.

    `header` is what they were read from. The one that proved who is known in the session needs no second proof.
    """
    table = request_context.place.sessions
    claim = handle_scheme.parse_claim(fields, weak_digests=request_context.place.settings.weak_digests)
    if session is None:
        return AuthFailure("a signature is about the nonce of a session; begin one, and send its sessionId")
    if session.proved is not None and table.is_proved_by(session, header):
        return ProvenIdentity(session.proved, session.claimed)
    shown = await authenticate_claim(request_context, claim, session.nonce)
    if isinstance(shown, ProvenIdentity):
        table.prove(session, shown.proved, shown.written, header)
    return shown


async def _authenticate_session(
    request_context: RequestContext, session: Session | None, *, wants_certificate: bool
) -> AuthResult:
    """Who asks in a session, or with a certificate. The header came from no browser by itself, so none is ambient."""
    if session is not None and session.proved is not None:
        request_context.place.record_proof(ProofResult(succeeded=True), request_context.request.client)
        return _to_auth_result(ProvenIdentity(session.proved, session.claimed), session)
    if wants_certificate and request_context.request.client.certificate is None:
        reason = "there is no certificate: send one in the TLS handshake, where this server asks for it"
        return AuthResult(session=session, problem=AuthFailure(reason, ResponseCode.AUTHENTICATION_NEEDED))
    return await _authenticate_certificate(request_context, session, ambient=False)


async def _authenticate_certificate(
    request_context: RequestContext, session: Session | None, *, ambient: bool
) -> AuthResult:
    data = request_context.request.client.certificate
    if data is None:
        return AuthResult(session=session)
    shown = await authenticate_certificate(request_context, data)
    if session is not None and isinstance(shown, ProvenIdentity):
        request_context.place.sessions.prove(session, shown.proved, shown.written)
    return _to_auth_result(shown, session, ambient=ambient)


def _to_auth_result(
    shown: ProvenIdentity | AuthFailure, session: Session | None = None, *, ambient: bool = False
) -> AuthResult:
    if isinstance(shown, AuthFailure):
        return AuthResult(session=session, problem=shown)
    # To the registry this is no session of the native protocol, in which even public values need a permission.
    identity = caller_identity(shown.proved, session=False)
    return AuthResult(identity, Guard(shown.proved, session is not None), session, ambient)


# Sessions


def find_session(request_context: RequestContext, text: str) -> Session | None:
    """The session of an id; None if there is none, which counts as a guess."""
    place = request_context.place
    session = place.sessions.find(text, place.time(), place.settings.session_timeout)
    if session is None:
        place.record_proof(ProofResult(succeeded=False), request_context.request.client)
    return session


def start_session(request_context: RequestContext) -> Session:
    """Begin a session for whoever asks."""
    place = request_context.place
    return place.sessions.begin(request_context.request.client.host, place.time(), place.settings.session_timeout)


async def with_server_signature(request_context: RequestContext, auth: AuthResult, cnonce: bytes) -> AuthResult:
    """The same with the proof that the server is itself, for a nonce of the client; in a session, begun if need be."""
    session = auth.session or start_session(request_context)
    key = request_context.place.key
    signature = await request_context.do(WorkKind.SIGN, lambda: handle_proofs.sign(key, session.nonce, cnonce))
    return replace(auth, session=session, signature=signature)


def end_stale_session(request_context: RequestContext, auth: AuthResult, gone: KeyChanged) -> AuthResult:
    """What is known after a `Guard` has found that the key is no longer there: nobody. Their session ends."""
    if auth.session is not None:
        request_context.place.sessions.end(auth.session)
    return AuthResult(problem=AuthFailure(gone.reason))


# What is answered


def denial(request_context: RequestContext, auth: AuthResult, reason: str = AUTHENTICATION_REQUIRED) -> Denial:
    """How a request is answered whose identity was not believed, or that has none and needs one."""
    if not request_context.request.client.private:
        return Denial(FORBIDDEN, ResponseCode.AUTHENTICATION_NEEDED, HTTPS_REQUIRED)
    problem = auth.problem or AuthFailure(reason, ResponseCode.AUTHENTICATION_NEEDED)
    return Denial(UNAUTHORIZED, problem.code, problem.reason, challenge_headers(request_context, auth))


def challenge_headers(request_context: RequestContext, auth: AuthResult) -> HeaderList:
    """By what somebody is asked who they are, with 401. It needs a session, which is begun if there is none.

    Nobody is asked over plain HTTP.
    """
    if not request_context.request.client.private:
        return ()
    session = auth.session or start_session(request_context)
    lines = [(_CHALLENGE, f'Basic realm="{REALM}"')] if _offers_basic(request_context.request) else []
    if _has_token(request_context.request):
        lines.append((_CHALLENGE, proofs.INVALID_TOKEN_CHALLENGE))
    problem = auth.problem
    error = problem.reason if problem is not None and problem.in_challenge else None
    return (*lines, _handle_challenge(session, auth.signature, error))


def proof_headers(auth: AuthResult) -> HeaderList:
    """What an answer other than 401 has: the proof that the server is itself, if it was asked for."""
    if auth.session is None or auth.signature is None:
        return ()
    return (_handle_challenge(auth.session, auth.signature, None),)


def _handle_challenge(session: Session, signature: bytes | None, error: str | None) -> tuple[str, str]:
    fields = {"sessionId": session.id, "nonce": session.nonce_text}
    if signature is not None:
        fields |= signature_fields(signature)
    if error:
        fields["error"] = handle_scheme.encode_error(error)
    return _CHALLENGE, f"Handle {handle_scheme.format_fields(fields)}"


def signature_fields(signature: bytes) -> dict[str, str]:
    """The fields that prove that the server is itself."""
    return {"serverAlg": handle_proofs.SERVER_ALGORITHM.spelling, "serverSignature": to_base64(signature)}


def _offers_basic(request: Request) -> bool:
    """Whether Basic is offered: not to who sent something else, nor to scripts, for which a browser would ask."""
    header = request.header(_AUTHORIZATION)
    if header is not None:
        return parse_authorization(header)[0] == _BASIC
    return (request.header("x-requested-with") or "").lower() != "xmlhttprequest"


def _has_token(request: Request) -> bool:
    """Whether somebody has shown a token of ours, or tried to."""
    scheme, rest = parse_authorization(request.header(_AUTHORIZATION) or "")
    return scheme == _BEARER and proofs.is_token(rest)


def is_true(text: str | None) -> bool:
    """Whether a field says yes."""
    return text is not None and text.lower() in _TRUE
