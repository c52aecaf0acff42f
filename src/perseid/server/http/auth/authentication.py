"""Authentication over HTTP (HTTP API, 7): who makes a request, and the challenge if that is missing.

In this order; the first that applies is used:

    1.  Authorization: Handle with an unknown session                 refused, whatever else there is
    2.  Authorization: Basic, Bearer, or Handle with a claim          proved or refused, even for public data
    3.  the identity proved in the session
    4.  the session of the web console, with one of its tokens in `X-CSRF-Token`
    5.  the TLS client certificate
    6.  anonymous

Secrets are accepted only on private connections, over TLS or on the machine itself; elsewhere the header is ignored.
A proof is valid as long as its key exists: commands run under the `Guard` of the `AuthResult`, which checks the key in
the same snapshot in which they are decided.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from perseid.records.encoding import to_base64
from perseid.registry.advice import NO_TEXTS, Advice, AdviceKind, AdviceTexts, render
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import Refused
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.http.messages import HeaderList, Request
from perseid.server.http.responses import FORBIDDEN, UNAUTHORIZED, https_required
from perseid.server.native.authentication import Guard, caller_identity
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from . import handle_scheme, proofs
from .handle_scheme import InvalidFields
from .proofs import AuthFailure, ProvenIdentity, authenticate_basic, authenticate_certificate, authenticate_claim
from .session_table import Session

REALM: Final = "handle"
"""What browsers show in the password prompt, as in deployed servers."""

AUTHENTICATION_REQUIRED: Final = (
    "authentication required: send Basic or Handle credentials, a token, or a TLS client certificate"
)

_AUTHORIZATION: Final = "authorization"
_CHALLENGE: Final = "WWW-Authenticate"
_BASIC, _BEARER, _HANDLE = "basic", "bearer", "handle"
_TRUE: Final = ("true", "yes")


@dataclass(frozen=True, slots=True)
class AuthResult:
    """The caller of a request."""

    identity: Identity = field(default_factory=Anonymous)
    guard: Guard | None = None
    """Checks, when a command is decided, that the key of the identity still exists."""
    session: Session | None = None
    """The session of the request, or one that was started for it."""
    ambient: bool = False
    """Whether a browser may have sent the credentials automatically, for any page; a change requires more."""
    problem: AuthFailure | None = None
    """Why authentication failed; the identity is then anonymous, and the response 401."""
    signature: bytes | None = field(default=None, repr=False)
    """The server's proof of its own identity, if requested; it goes with the session's nonce."""


@dataclass(frozen=True, slots=True)
class Denial:
    """The response to a request without the identity it needs."""

    status: int
    code: ResponseCode
    message: str
    headers: HeaderList = ()
    advice: Advice | None = None

    def describe(self, texts: AdviceTexts = NO_TEXTS) -> str:
        """Return the message with the advice."""
        return ". ".join(filter(None, (self.message, render(self.advice, texts))))


async def authenticate(request_context: RequestContext, *, changes: bool = False) -> AuthResult:
    """Find the caller. Raises `Busy` under overload.

    `changes` means that nothing but the decision of a change follows, which checks the key or token again.
    """
    request = request_context.request
    if not request.client.private:
        return AuthResult()
    header = request.header(_AUTHORIZATION)
    if header is None:
        server = request_context.server
        web = server.web_sessions.find_for_script(request, server.time())
        if web is not None:
            return AuthResult(web.identity, web.guard)
        return await _authenticate_certificate(request_context, None, ambient=True)
    scheme, rest = parse_authorization(header)
    if scheme == _BASIC:
        return _to_auth_result(await authenticate_basic(request_context, rest, changes=changes), ambient=True)
    if scheme == _HANDLE:
        return await _authenticate_handle(request_context, header, rest)
    if scheme == _BEARER:
        identity = await proofs.authenticate_token(request_context, rest, changes=changes)
        # Every decision checks the token again, so it needs no guard.
        return AuthResult(problem=identity) if isinstance(identity, AuthFailure) else AuthResult(identity)
    reason = "the scheme of the Authorization header is not supported; use Basic, Bearer or Handle"
    return AuthResult(problem=AuthFailure(reason, in_challenge=False))


def parse_authorization(header: str) -> tuple[str, str]:
    """Split an Authorization header into its scheme, in lowercase, and the rest."""
    scheme, _, rest = header.replace("\t", " ").partition(" ")
    return scheme.lower(), rest.strip(" ")


async def _authenticate_handle(request_context: RequestContext, header: str, rest: str) -> AuthResult:
    fields = handle_scheme.parse_fields(rest)
    if fields is None:
        reason = 'the Authorization header is invalid; the format is Handle name="value", name="value" …'
        return AuthResult(problem=AuthFailure(reason, in_challenge=False))
    session = None
    if (text := fields.get("sessionid")) is not None:
        session = find_session(request_context, text)
        if session is None:
            return AuthResult(problem=AuthFailure("the session does not exist or has ended", in_challenge=False))
    try:
        handle_scheme.check_version(fields)
        cnonce = handle_scheme.client_nonce(fields)
        if handle_scheme.is_claim(fields):
            if "id" in fields:
                fields["id"] = handle_scheme.id_from_header(fields["id"])
            proof = await verify_claim(request_context, session, fields, header)
            return _to_auth_result(proof, session)
    except InvalidFields as problem:
        return AuthResult(session=session, problem=AuthFailure(str(problem)))
    auth = await _authenticate_session(request_context, session, wants_certificate=is_true(fields.get("clientcert")))
    return auth if cnonce is None else await with_server_signature(request_context, auth, cnonce)


async def verify_claim(
    request_context: RequestContext, session: Session | None, fields: dict[str, str], header: str
) -> ProvenIdentity | AuthFailure:
    """Verify the claim in decoded fields; raises `InvalidFields`. A proof is stored in the session.

    `header` is where they came from. The header that proved the session's identity needs no second verification.
    """
    table = request_context.server.sessions
    claim = handle_scheme.parse_claim(fields, weak_digests=request_context.server.settings.weak_digests)
    if session is None:
        return AuthFailure("a signature requires the nonce of a session; start a session and send its sessionId")
    if session.proved is not None and table.is_proved_by(session, header):
        return ProvenIdentity(session.proved, session.claimed)
    proof = await authenticate_claim(request_context, claim, session.nonce)
    if isinstance(proof, ProvenIdentity):
        table.prove(session, proof.proved, proof.written, header)
    return proof


async def _authenticate_session(
    request_context: RequestContext, session: Session | None, *, wants_certificate: bool
) -> AuthResult:
    """Find the caller by session or certificate. No browser sends the header automatically, so it is not ambient."""
    if session is not None and session.proved is not None:
        request_context.expect_proof(ProofResult(succeeded=True))
        return _to_auth_result(ProvenIdentity(session.proved, session.claimed), session)
    if wants_certificate and request_context.request.client.certificate is None:
        reason = "there is no client certificate; send one in the TLS handshake, where this server requests it"
        return AuthResult(session=session, problem=AuthFailure(reason, ResponseCode.AUTHENTICATION_NEEDED))
    return await _authenticate_certificate(request_context, session, ambient=False)


async def _authenticate_certificate(
    request_context: RequestContext, session: Session | None, *, ambient: bool
) -> AuthResult:
    data = request_context.request.client.certificate
    if data is None:
        return AuthResult(session=session)
    proof = await authenticate_certificate(request_context, data)
    if session is not None and isinstance(proof, ProvenIdentity):
        request_context.server.sessions.prove(session, proof.proved, proof.written)
    return _to_auth_result(proof, session, ambient=ambient)


def _to_auth_result(
    proof: ProvenIdentity | AuthFailure, session: Session | None = None, *, ambient: bool = False
) -> AuthResult:
    if isinstance(proof, AuthFailure):
        return AuthResult(session=session, problem=proof)
    # Not a session of the native protocol, in which even public values need a permission.
    identity = caller_identity(proof.proved, session=False)
    return AuthResult(identity, Guard(proof.proved, session is not None), session, ambient)


# Sessions


def find_session(request_context: RequestContext, text: str) -> Session | None:
    """Find the session of an id; None if there is none, which counts as a failed guess."""
    server = request_context.server
    session = server.sessions.find(text, server.time(), server.settings.session_timeout)
    if session is None:
        request_context.record_proof(ProofResult(succeeded=False))
    return session


def start_session(request_context: RequestContext) -> Session:
    """Start a session for the client."""
    server = request_context.server
    return server.sessions.begin(request_context.request.client.host, server.time(), server.settings.session_timeout)


async def with_server_signature(request_context: RequestContext, auth: AuthResult, cnonce: bytes) -> AuthResult:
    """Add the server's proof of identity for a client nonce; starts a session if there is none."""
    session = auth.session or start_session(request_context)
    key = request_context.server.key
    signature = await request_context.do(WorkKind.SIGN, lambda: handle_scheme.sign(key, session.nonce, cnonce))
    return replace(auth, session=session, signature=signature)


def end_stale_session(request_context: RequestContext, auth: AuthResult, gone: Refused) -> AuthResult:
    """Return the anonymous result after a decision found the key or token missing; the session ends.

    If the request had the key or token, and not only a session, that counts as a wrong guess.
    """
    request_context.settle_proof(succeeded=False if auth.session is None else None)
    if auth.session is not None:
        request_context.server.sessions.end(auth.session)
    return AuthResult(problem=AuthFailure(gone.reason))


# Responses


def denial(request_context: RequestContext, auth: AuthResult) -> Denial:
    """Describe the response to a request whose authentication failed or is missing."""
    if not request_context.request.client.private:
        return Denial(FORBIDDEN, ResponseCode.AUTHENTICATION_NEEDED, https_required(request_context.request))
    required = AuthFailure(AUTHENTICATION_REQUIRED, ResponseCode.AUTHENTICATION_NEEDED, AdviceKind.AUTHENTICATE())
    problem = auth.problem or required
    headers = challenge_headers(request_context, auth)
    return Denial(UNAUTHORIZED, problem.code, problem.reason, headers, problem.advice)


def challenge_headers(request_context: RequestContext, auth: AuthResult) -> HeaderList:
    """The challenges of a 401 response. They need a session, which is started if there is none.

    Connections that are not private get no challenge.
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
    """The server's proof of identity for responses other than 401, if requested."""
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
    """The fields of the server's proof of identity."""
    return {"serverAlg": handle_scheme.SERVER_ALGORITHM.spelling, "serverSignature": to_base64(signature)}


def _offers_basic(request: Request) -> bool:
    """Whether to offer Basic: not after another scheme, nor to scripts, as the browser would show a prompt."""
    header = request.header(_AUTHORIZATION)
    if header is not None:
        return parse_authorization(header)[0] == _BASIC
    return (request.header("x-requested-with") or "").lower() != "xmlhttprequest"


def _has_token(request: Request) -> bool:
    """Whether the client sent a token of ours, or tried to."""
    scheme, rest = parse_authorization(request.header(_AUTHORIZATION) or "")
    return scheme == _BEARER and proofs.is_token(rest)


def is_true(text: str | None) -> bool:
    """Whether a field is `true` or `yes`."""
    return text is not None and text.lower() in _TRUE
