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
from perseid.server.http.context import Asking, Verdict
from perseid.server.http.messages import HeaderList, Request
from perseid.server.http.responses import FORBIDDEN, NOT_PRIVATE, UNAUTHORISED
from perseid.server.native.authentication import Guard, KeyGone, asker
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from . import handle_scheme, proofs
from . import handle_scheme as handle_proofs
from .handle_scheme import NotUnderstood
from .proofs import Shown, Unproved, by_certificate, by_claim, by_secret
from .session_table import Session

REALM: Final = "handle"
"""What browsers show when they ask for name and password, as deployed servers have it."""

NEEDED: Final = "this needs to know who you are: send Basic or Handle credentials, a token, or a TLS client certificate"

_AUTHORIZATION: Final = "authorization"
_CHALLENGE: Final = "WWW-Authenticate"
_BASIC, _BEARER, _HANDLE = "basic", "bearer", "handle"
_YES: Final = ("true", "yes")


@dataclass(frozen=True, slots=True)
class Identified:
    """What a request says about who asks."""

    who: Identity = field(default_factory=Anonymous)
    guard: Guard | None = None
    """Under which operations are carried out for them: that their key is still there."""
    session: Session | None = None
    """The session that the request came in, or that was begun for it."""
    ambient: bool = False
    """Whether a browser may have sent the proof by itself, from a page of anybody: a change needs more than that."""
    problem: Unproved | None = None
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


async def identify(asking: Asking) -> Identified:
    """Who asks. Raises `Busy` where there is too much to look at."""
    request = asking.request
    if not request.client.private:
        return Identified()
    header = request.header(_AUTHORIZATION)
    if header is None:
        return await _by_certificate(asking, None, ambient=True)
    scheme, rest = scheme_of(header)
    if scheme == _BASIC:
        return _result(await by_secret(asking, rest), ambient=True)
    if scheme == _HANDLE:
        return await _by_handle(asking, header, rest)
    if scheme == _BEARER:
        bearer_of = await proofs.by_token(asking, rest)
        # Whether the token counts is looked up again where something is decided, so it needs no guard.
        return Identified(problem=bearer_of) if isinstance(bearer_of, Unproved) else Identified(bearer_of)
    reason = "the scheme of the Authorization header is not known here; there are Basic, Bearer and Handle"
    return Identified(problem=Unproved(reason, told=False))


def scheme_of(header: str) -> tuple[str, str]:
    """The scheme of an Authorization header, in small letters, and what stands behind it."""
    scheme, _, rest = header.replace("\t", " ").partition(" ")
    return scheme.lower(), rest.strip(" ")


async def _by_handle(asking: Asking, header: str, rest: str) -> Identified:
    fields = handle_scheme.parse(rest)
    if fields is None:
        reason = 'the Authorization header cannot be read; it should be Handle name="value", name="value" …'
        return Identified(problem=Unproved(reason, told=False))
    session = None
    if (text := fields.get("sessionid")) is not None:
        session = find_session(asking, text)
        if session is None:
            return Identified(problem=Unproved("there is no such session, or it has ended", told=False))
    try:
        handle_scheme.check_version(fields)
        cnonce = handle_scheme.client_nonce(fields)
        if handle_scheme.is_claim(fields):
            if "id" in fields:
                fields["id"] = handle_scheme.id_from_header(fields["id"])
            shown = await claimed(asking, session, fields, header)
            return _result(shown, session)
    except NotUnderstood as problem:
        return Identified(session=session, problem=Unproved(str(problem)))
    found = await _without_claim(asking, session, wants_certificate=is_true(fields.get("clientcert")))
    return found if cnonce is None else await signed(asking, found, cnonce)


async def claimed(asking: Asking, session: Session | None, fields: dict[str, str], header: str) -> Shown | Unproved:
    """Take the claim that fields make, the id as it is meant; raises `NotUnderstood`. A success stays in the session.

    `header` is what they were read from. The one that proved who is known in the session needs no second proof.
    """
    table = asking.place.sessions
    claim = handle_scheme.claim_of(fields, weak_digests=asking.place.settings.weak_digests)
    if session is None:
        return Unproved("a signature is about the nonce of a session; begin one, and send its sessionId")
    if session.proved is not None and table.is_proved_by(session, header):
        return Shown(session.proved, session.claimed)
    shown = await by_claim(asking, claim, session.nonce)
    if isinstance(shown, Shown):
        table.prove(session, shown.proved, shown.written, header)
    return shown


async def _without_claim(asking: Asking, session: Session | None, *, wants_certificate: bool) -> Identified:
    """Who asks in a session, or with a certificate. The header came from no browser by itself, so none is ambient."""
    if session is not None and session.proved is not None:
        asking.place.judge(Verdict(right=True), asking.request.client)
        return _result(Shown(session.proved, session.claimed), session)
    if wants_certificate and asking.request.client.certificate is None:
        reason = "there is no certificate: send one in the TLS handshake, where this server asks for it"
        return Identified(session=session, problem=Unproved(reason, ResponseCode.AUTHENTICATION_NEEDED))
    return await _by_certificate(asking, session, ambient=False)


async def _by_certificate(asking: Asking, session: Session | None, *, ambient: bool) -> Identified:
    octets = asking.request.client.certificate
    if octets is None:
        return Identified(session=session)
    shown = await by_certificate(asking, octets)
    if session is not None and isinstance(shown, Shown):
        asking.place.sessions.prove(session, shown.proved, shown.written)
    return _result(shown, session, ambient=ambient)


def _result(shown: Shown | Unproved, session: Session | None = None, *, ambient: bool = False) -> Identified:
    if isinstance(shown, Unproved):
        return Identified(session=session, problem=shown)
    # To the registry this is no session of the native protocol, in which even public values need a permission.
    who = asker(shown.proved, session=False)
    return Identified(who, Guard(shown.proved, session is not None), session, ambient)


# Sessions


def find_session(asking: Asking, text: str) -> Session | None:
    """The session of an id; None if there is none, which counts as a guess."""
    place = asking.place
    session = place.sessions.find(text, place.time(), place.settings.session_timeout)
    if session is None:
        place.judge(Verdict(right=False), asking.request.client)
    return session


def begin_session(asking: Asking) -> Session:
    """Begin a session for whoever asks."""
    place = asking.place
    return place.sessions.begin(asking.request.client.host, place.time(), place.settings.session_timeout)


async def signed(asking: Asking, identified: Identified, cnonce: bytes) -> Identified:
    """The same with the proof that the server is itself, for a nonce of the client; in a session, begun if need be."""
    session = identified.session or begin_session(asking)
    key = asking.place.key
    signature = await asking.do(Kind.SIGN, lambda: handle_proofs.sign(key, session.nonce, cnonce))
    return replace(identified, session=session, signature=signature)


def key_gone(asking: Asking, identified: Identified, gone: KeyGone) -> Identified:
    """What is known after a `Guard` has found that the key is no longer there: nobody. Their session ends."""
    if identified.session is not None:
        asking.place.sessions.end(identified.session)
    return Identified(problem=Unproved(gone.reason))


# What is answered


def denial(asking: Asking, identified: Identified, reason: str = NEEDED) -> Denial:
    """How a request is answered whose identity was not believed, or that has none and needs one."""
    if not asking.request.client.private:
        return Denial(FORBIDDEN, ResponseCode.AUTHENTICATION_NEEDED, NOT_PRIVATE)
    problem = identified.problem or Unproved(reason, ResponseCode.AUTHENTICATION_NEEDED)
    return Denial(UNAUTHORISED, problem.code, problem.reason, challenge_headers(asking, identified))


def challenge_headers(asking: Asking, identified: Identified) -> HeaderList:
    """By what somebody is asked who they are, with 401. It needs a session, which is begun if there is none.

    Nobody is asked over plain HTTP.
    """
    if not asking.request.client.private:
        return ()
    session = identified.session or begin_session(asking)
    lines = [(_CHALLENGE, f'Basic realm="{REALM}"')] if _offers_basic(asking.request) else []
    if _shows_token(asking.request):
        lines.append((_CHALLENGE, proofs.INVALID))
    problem = identified.problem
    error = problem.reason if problem is not None and problem.told else None
    return (*lines, _handle_line(session, identified.signature, error))


def proof_headers(identified: Identified) -> HeaderList:
    """What an answer other than 401 has: the proof that the server is itself, if it was asked for."""
    if identified.session is None or identified.signature is None:
        return ()
    return (_handle_line(identified.session, identified.signature, None),)


def _handle_line(session: Session, signature: bytes | None, error: str | None) -> tuple[str, str]:
    fields = {"sessionId": session.id, "nonce": session.nonce_text}
    if signature is not None:
        fields |= signature_fields(signature)
    if error:
        fields["error"] = handle_scheme.error_text(error)
    return _CHALLENGE, f"Handle {handle_scheme.write(fields)}"


def signature_fields(signature: bytes) -> dict[str, str]:
    """The fields that prove that the server is itself."""
    return {"serverAlg": handle_proofs.SERVER_ALGORITHM.spelling, "serverSignature": to_base64(signature)}


def _offers_basic(request: Request) -> bool:
    """Whether Basic is offered: not to who sent something else, nor to scripts, for which a browser would ask."""
    header = request.header(_AUTHORIZATION)
    if header is not None:
        return scheme_of(header)[0] == _BASIC
    return (request.header("x-requested-with") or "").lower() != "xmlhttprequest"


def _shows_token(request: Request) -> bool:
    """Whether somebody has shown a token of ours, or tried to."""
    scheme, rest = scheme_of(request.header(_AUTHORIZATION) or "")
    return scheme == _BEARER and proofs.is_token(rest)


def is_true(text: str | None) -> bool:
    """Whether a field says yes."""
    return text is not None and text.lower() in _YES
