"""`/api/sessions` (HTTP API, 6.10): a session is begun, somebody proves in it who they are, and it ends.

    POST    /api/sessions         begins one; with Basic credentials or a certificate somebody is known in it at once
    GET     /api/sessions/this    what is known in it
    PUT     /api/sessions/this    proves who somebody is; POST does the same, which the browser tool sends
    DELETE  /api/sessions/this    ends it

The fields of the `Handle` scheme may stand in its header, in a JSON object, in a form and in the query; the header
counts before the body, and the body before the query. Only in the header is the id percent-encoded.

Better than deployed servers on purpose: a refusal says why, in the member `error`; a wrong proof in a session where
somebody is known is 401 and not 200, and they stay known; with the key that proved it a session ends.
Answers are never wrapped into a script (`callback`): they hold what only the client may know.
"""

from dataclasses import dataclass, field
from typing import Final

from perseid.names.errors import quoted
from perseid.records.json_parsing import JsonObject, kind
from perseid.server.http import bodies, clients, responses
from perseid.server.http.auth import authentication, handle_scheme
from perseid.server.http.auth.authentication import (
    Identified,
    begin_session,
    claimed,
    find_session,
    scheme_of,
    signature_fields,
)
from perseid.server.http.auth.handle_scheme import NotUnderstood
from perseid.server.http.auth.proofs import Shown, Unproved, by_certificate, by_secret
from perseid.server.http.auth.session_table import Session
from perseid.server.http.context import Asking
from perseid.server.http.messages import READING, HeaderList, Request, Response
from perseid.server.http.responses import Form
from perseid.server.http.targets import Malformed, Parameters
from perseid.server.native.authentication import Guard, KeyGone, asker
from perseid.server.native.steps import Kind

PATH: Final = b"/api/sessions"
LOCATION: Final = ("Location", "/api/sessions/this")

MAX_FIELDS: Final = 64
"""Fields of a body: there are a dozen that mean something."""

_ID: Final = "sessionid"


@dataclass(frozen=True, slots=True)
class _Told:
    """What a request says, wherever it says it."""

    fields: dict[str, str] = field(default_factory=dict, repr=False)
    """Names in small letters; the id as it is meant."""
    basic: str | None = field(default=None, repr=False)
    """What stands behind Basic in the header."""
    other: bool = False
    """Whether the header has a scheme that nobody knows."""


async def answer(asking: Asking) -> Response:
    """Answer what is asked about sessions, with a method that there is: POST to begin one, all but that within it."""
    request = asking.request
    where = request.path.removeprefix(PATH).removesuffix(b"/")
    if not request.client.private:
        return _refused(asking, responses.FORBIDDEN, responses.NOT_PRIVATE)
    if where not in (b"", b"/this"):
        return _refused(asking, responses.FORBIDDEN, "a session is reached as /api/sessions/this, with its sessionId")
    try:
        told = _told(request)
    except Malformed as problem:
        return _refused(asking, problem.status, problem.message)
    return await (_begin(asking, told) if where == b"" else _within(asking, told))


async def _begin(asking: Asking, told: _Told) -> Response:
    if _ID in told.fields:
        return _refused(asking, responses.BAD_REQUEST, "a new session has no sessionId yet; this server chooses it")
    session = begin_session(asking)
    identified = Identified(session=session)
    shown = await _prove(asking, session, told)
    identified = await _signed(asking, identified, told)
    plain = _object(session, identified, shown.reason if isinstance(shown, Unproved) else "")
    return _answer(asking, plain, 201, (LOCATION,), session)


async def _within(asking: Asking, told: _Told) -> Response:
    text = told.fields.get(_ID)
    method = asking.request.method
    session = None
    if text is not None:
        session = find_session(asking, text)
    if session is not None and method != "DELETE" and not await _is_alive(asking, session):
        return _refused(asking, responses.FORBIDDEN, "the session has ended: the key that proved it has changed")
    if session is None:
        if text is None and method != "DELETE":
            return _answer(asking, {"authenticated": False}, 200)
        return _refused(asking, responses.FORBIDDEN, "there is no such session, or it has ended")
    if method == "DELETE":
        asking.place.sessions.end(session)
        return Response(204, (responses.NO_STORE,))
    shown = None if method in READING else await _prove(asking, session, told)
    identified = await _signed(asking, Identified(session=session), told)
    if isinstance(shown, Unproved):
        problem = Identified(session=session, problem=shown, signature=identified.signature)
        headers = authentication.challenge_headers(asking, problem)
        return _answer(asking, _object(session, identified, shown.reason), responses.UNAUTHORISED, headers, session)
    return _answer(asking, _object(session, identified), 200, (), session)


async def _is_alive(asking: Asking, session: Session) -> bool:
    """Whether the key is still there that proved who is known in a session; else the session ends."""
    if session.proved is None:
        return True
    guard, registry = Guard(session.proved, session=True), asking.place.registry

    def look() -> None:
        with registry.facts() as facts:
            guard.check(facts)

    try:
        await asking.do(Kind.READ, look)
    except KeyGone:
        asking.place.sessions.end(session)
        return False
    return True


async def _prove(asking: Asking, session: Session, told: _Told) -> Shown | Unproved | None:
    """Take what a request has to say about who asks; None if it has nothing to say."""
    shown = await _attempt(asking, session, told)
    if isinstance(shown, Shown):
        asking.place.sessions.prove(session, shown.proved, shown.written)
    return shown


async def _attempt(asking: Asking, session: Session, told: _Told) -> Shown | Unproved | None:
    certificate = asking.request.client.certificate
    try:
        handle_scheme.check_version(told.fields)
        if told.other:
            return Unproved("the scheme of the Authorization header is not known here; there are Basic and Handle")
        if told.basic is not None:
            return _by_itself(asking) or await by_secret(asking, told.basic)
        if handle_scheme.is_claim(told.fields):
            return await claimed(asking, session, told.fields, "")
    except NotUnderstood as problem:
        return Unproved(str(problem))
    if certificate is not None and session.proved is None:
        return _by_itself(asking) or await by_certificate(asking, certificate)
    return None


def _by_itself(asking: Asking) -> Unproved | None:
    """Why a proof does not count that a browser may have sent by itself.

    A page of somebody else could have it prove a session of which that somebody knows the id.
    """
    objection = clients.objection(asking)
    return None if objection is None else Unproved(objection)


async def _signed(asking: Asking, identified: Identified, told: _Told) -> Identified:
    """The same with the server's proof of itself, if it was asked for; what it was asked with may be no nonce."""
    try:
        cnonce = handle_scheme.client_nonce(told.fields)
    except NotUnderstood:
        cnonce = None
    return identified if cnonce is None else await authentication.signed(asking, identified, cnonce)


# What is read


def _told(request: Request) -> _Told:
    """What a request says; raises `Malformed`."""
    fields: dict[str, str] = {}
    basic, other = None, False
    header = request.header("authorization")
    if header is not None:
        scheme, rest = scheme_of(header)
        if scheme == "basic":
            basic = rest
        elif scheme == "handle":
            fields = _in_header(rest)
        else:
            other = True
    for name, value in (*_in_body(request), *Parameters.parse(request.query).pairs):
        fields.setdefault(name.lower(), value)
    return _Told(fields, basic, other)


def _in_header(text: str) -> dict[str, str]:
    fields = handle_scheme.parse(text)
    if fields is None:
        raise Malformed('the Authorization header cannot be read; it should be Handle name="value", name="value" …')
    if "id" in fields:
        try:
            fields["id"] = handle_scheme.id_from_header(fields["id"])
        except NotUnderstood as problem:
            raise Malformed(str(problem)) from None
    return fields


def _in_body(request: Request) -> tuple[tuple[str, str], ...]:
    if bodies.media_type(request) == bodies.FORM_TYPE:
        return bodies.form(request)
    members = bodies.plain_object(request)
    if len(members) > MAX_FIELDS:
        raise Malformed(f"the body has more than {MAX_FIELDS} members")
    return tuple([(name, _text(name, value)) for name, value in members.items() if value is not None])


def _text(name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
    raise Malformed(f"{quoted(name)} in the body should be a string, not {kind(value)}")


# What is answered


def _object(session: Session, identified: Identified, error: str = "") -> JsonObject:
    """What is known in a session."""
    plain: JsonObject = {"sessionId": session.id, "nonce": session.nonce_text}
    if identified.signature is not None:
        plain |= signature_fields(identified.signature)
    if session.proved is not None:
        plain |= {"authenticated": True, "id": session.claimed}
    if error:
        plain["error"] = error
    return plain


def _answer(
    asking: Asking, plain: JsonObject, status: int, headers: HeaderList = (), session: Session | None = None
) -> Response:
    who = "" if session is None or session.proved is None else str(asker(session.proved, session=False))
    form = Form(Parameters.parse(asking.request.query).flag("pretty"))
    return responses.json_response(plain, form, status, (*headers, responses.NO_STORE), who=who)


def _refused(asking: Asking, status: int, reason: str) -> Response:
    return _answer(asking, {"error": reason}, status)
