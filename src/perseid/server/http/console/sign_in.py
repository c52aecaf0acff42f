"""Sign-in and sign-out.

A user proves an identity by its secret, by a key file or by a token. The key file stays in the browser: a script
(`static/sign-in.js`) gets the nonce of a session of the API and signs it, and the form sends the signature. Each
sign-in starts a session under a new id, so a cookie that somebody else has set is worth nothing.
"""

import base64
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from perseid.names.errors import quote_text
from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef
from perseid.registry.advice import AdviceKind
from perseid.server.http.auth import handle_scheme
from perseid.server.http.auth.authentication import find_session, verify_claim
from perseid.server.http.auth.handle_scheme import InvalidFields
from perseid.server.http.auth.proofs import AuthFailure, authenticate_basic, authenticate_token, is_token
from perseid.server.http.auth.web_sessions import WebSession, delete_cookie, set_cookie
from perseid.server.http.context import INTERFACE
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _, mark
from perseid.server.native.authentication import Guard, caller_identity
from perseid.server.native.work import WorkKind
from perseid.server.state.state import StateFull

from .advice import API_LANGUAGE, render_advice
from .requests import SEE_OTHER, ConsoleRequest, ProblemView
from .routing import BASE, Pages, link

SIGN_IN: Final = Pages("sign-in")

MAX_QUOTED: Final = 100
"""Characters of an invalid identity that the page repeats."""

_ADVICE: Final = {
    AdviceKind.CHECK_KEY: mark(
        "Check the identity and its secret or key. If you have lost them, ask an administrator of your namespace for "
        "new ones"
    ),
    AdviceKind.SEND_WHOLE_TOKEN: mark("Enter the whole token, as it was shown when it was created"),
}
_METHODS: Final = ("secret", "key", "token")
_CLAIM_FIELDS: Final = ("id", "cnonce", "alg", "signature")


@SIGN_IN.get("/sign-in", public=True)
async def show_sign_in(console: ConsoleRequest) -> Response:
    """Show the form, or go on if the user has signed in."""
    if console.session is not None:
        return Response(SEE_OTHER, (("Location", _next_path(console)),))
    return _form(console, "secret")


@SIGN_IN.post("/sign-in", public=True)
async def sign_in(console: ConsoleRequest) -> Response:
    """Check the proof and start a session."""
    method = console.text("method")
    if method not in _METHODS:
        return _form(console, "secret", ProblemView(400, _("Sign-in failed"), _("Choose how you want to sign in.")))
    try:
        result = await (_check_token(console) if method == "token" else _check_key(console, method))
    except StateFull:
        view = ProblemView(503, _("Too many sessions"), _("There are too many sessions."), _("Try again in a minute."))
        return _form(console, method, view)
    if isinstance(result, ProblemView):
        return _form(console, method, result)
    if isinstance(result, AuthFailure):
        own = None if result.advice is None else _ADVICE.get(result.advice.kind)
        advice, language = render_advice(result.advice) if own is None else (_(own), "")
        reason, reason_language = result.reason, API_LANGUAGE
        if result.advice is not None and result.advice.kind is AdviceKind.CHECK_KEY and method != "token":
            reason = (
                _("The identity or the key is wrong") if method == "key" else _("The identity or the secret is wrong")
            )
            reason_language = ""
        view = ProblemView(403, _("Sign-in failed"), reason, advice, reason_language, language)
        return _form(console, method, view)
    server = console.request_context.server
    if console.session is not None:
        server.web_sessions.end(console.session)
    headers = (("Location", _next_path(console)), set_cookie(console.request, result.id))
    return Response(SEE_OTHER, headers, identity=str(result.identity))


@SIGN_IN.post("/sign-out")
async def sign_out(console: ConsoleRequest) -> Response:
    """End the session, or all sessions of the identity."""
    sessions, session = console.request_context.server.web_sessions, console.session
    assert session is not None  # noqa: S101 - the route needs one
    everywhere = bool(console.text("everywhere"))
    if everywhere:
        now = console.request_context.server.time()
        await console.request_context.do(WorkKind.READ, lambda: sessions.end_all(session.identity, now))
    sessions.end(session)
    done = "signed-out-everywhere" if everywhere else "signed-out"
    return console.redirect("sign-in", done=done, headers=(delete_cookie(console.request),))


def _form(console: ConsoleRequest, method: str, problem: ProblemView | None = None) -> Response:
    return console.render(
        "sign_in.html",
        title=_("Sign in"),
        scripts=("sign-in.js",),
        problem=problem,
        method=method,
        identity=console.text("identity")[:4_096],
        next=_next_path(console),
    )


def _fail(reason: str, advice: str) -> ProblemView:
    """The refusal of something that cannot be right."""
    return ProblemView(403, _("Sign-in failed"), reason, advice)


async def _check_key(console: ConsoleRequest, method: str) -> WebSession | AuthFailure | ProblemView:
    """Check an identity with its secret, or with a signature of its key."""
    context = console.request_context
    identity = console.text("identity")
    try:
        is_identity = "/" in ValueRef.parse(identity).handle
    except InvalidData:
        is_identity = False
    if not is_identity:
        reason = _("{text} is not an identity").format(text=quote_text(identity[:MAX_QUOTED]))
        return _fail(reason, _("Write INDEX:HANDLE, such as 300:12345/ann"))
    if method == "secret":
        secret = console.form.first("secret") or ""  # whitespace may be a part of it
        pair = f"{quote(identity, safe='/')}:{secret}".encode()
        proof = await authenticate_basic(context, base64.b64encode(pair).decode())
    else:
        session = find_session(context, console.text("sessionId"))
        if session is None:
            return _fail(_("The challenge has expired"), _("Choose the key file again"))
        fields = {name: console.text(name) for name in _CLAIM_FIELDS} | {"type": "HS_PUBKEY"}
        try:
            handle_scheme.client_nonce(fields)
            proof = await verify_claim(context, session, fields, "")
        except InvalidFields as problem:
            return AuthFailure(str(problem))
        finally:
            context.server.sessions.end(session)
    if isinstance(proof, AuthFailure):
        return proof
    server, who = context.server, caller_identity(proof.proved, session=False)
    return server.web_sessions.begin(who, Guard(proof.proved, session=True), method, server.time(), INTERFACE)


async def _check_token(console: ConsoleRequest) -> WebSession | AuthFailure | ProblemView:
    context = console.request_context
    token = (console.form.first("secret") or "").strip()
    if not is_token(token):
        return _fail(_("This is not a token"), _("Enter the whole token, which starts with perseid_"))
    proof = await authenticate_token(context, token)
    if isinstance(proof, AuthFailure):
        return proof
    server = context.server
    return server.web_sessions.begin(proof, None, "token", server.time(), INTERFACE)


def _next_path(console: ConsoleRequest) -> str:
    """The page of the console that the user wanted; never another address."""
    wanted = console.text("next")
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return link()
    is_own = not parts.scheme and not parts.netloc and (parts.path == BASE or parts.path.startswith(f"{BASE}/"))
    is_plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted
    leaves = any(segment in (".", "..") for segment in unquote(parts.path).split("/"))
    return wanted if is_own and is_plain and not leaves else link()
