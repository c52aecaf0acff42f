"""Requests to the console: the session, the token of a form, the page, and what is shown if something goes wrong.

Only private connections are served. Without a session every page leads to the sign-in page, and back.
"""

from collections.abc import AsyncGenerator
from functools import cache
from typing import Final

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from perseid.client.errors import ClientError
from perseid.server.http.auth.web_sessions import CSRF_FIELD, delete_cookie, read_cookie
from perseid.server.http.clients import is_cross_site
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, HeaderList, Parameters, Response, allow_header
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import FORM_TYPE, NO_STORE, https_required, media_type, to_failure
from perseid.server.native.decisions import Busy

from .requests import SEE_OTHER, ConsoleRequest, ProblemView, SessionEnded, UploadedFile
from .routing import BASE, Match, Pages, Route, Router, link

MULTIPART: Final = "multipart/form-data"

MAX_FIELDS: Final = 2_000
"""Fields of a form: a record of some hundred values, with five fields for each."""

_ERRORS: Final = Pages("")


@cache
def get_router() -> Router:
    """Load all pages, on first use: they import the client."""
    from . import pages  # noqa: PLC0415

    return Router(pages.SECTIONS)


async def handle(request_context: RequestContext) -> Response:
    """Handle a request."""
    request = request_context.request
    path = request.path.decode("latin-1").removeprefix(BASE).rstrip("/") or "/"
    method = "GET" if request.method in SAFE_METHODS else request.method
    router = get_router()
    if not request.client.private:
        return _error(request_context, ProblemView(403, _("HTTPS required"), https_required(request)))
    match = router.find(method, path)
    if match is None:
        return _not_found(request_context, router.methods(path))
    server = request_context.server
    session = server.web_sessions.find_for(request, server.time())
    if session is None and not match.route.public:
        return _sign_in_first(request_context)
    console = ConsoleRequest(request_context, match, session)
    try:
        if method == "POST":
            await _read_form(console)
        return await match.route.handler(console)
    except SessionEnded:
        assert session is not None  # noqa: S101 - it has ended
        server.web_sessions.end(session)
        return _sign_in_first(request_context, "ended")
    except ClientError as error:
        return console.render("problem.html", title=error.problem.title if error.problem else "", problem=error)
    except (BadRequest, Busy) as error:
        failure = to_failure(error, request_context)
        view = ProblemView(failure.status, "", failure.message)
        return console.render("problem.html", title=_("Invalid request"), problem=view)


async def _read_form(console: ConsoleRequest) -> None:
    """Read the form and check that it comes from a page of this session; raises `BadRequest`."""
    context, request = console.request_context, console.request
    if is_cross_site(context):
        raise BadRequest(_("The form was sent from another site. Open the page again and repeat your input"), 403)
    if media_type(request) == MULTIPART:
        await _read_multipart(console)
    elif media_type(request) == FORM_TYPE:
        console.form = Parameters.parse(request.body)
    if console.session is None:
        return  # a public form; the check above is all that a form before the session can have
    number = console.session.read_form_token(console.form.first(CSRF_FIELD) or "")
    if number is None:
        raise BadRequest(
            "The form was not issued to you by this server. Open the page again and repeat your input", 403
        )
    console.key = number


async def _read_multipart(console: ConsoleRequest) -> None:
    request = console.request

    async def stream() -> AsyncGenerator[bytes, None]:
        yield request.body

    headers = Headers(raw=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers])
    try:
        parsed = await MultiPartParser(headers, stream(), max_fields=MAX_FIELDS).parse()
    except MultiPartException as error:
        raise BadRequest(f"The form cannot be read: {error.message}") from None
    pairs, files = [], {}
    for name, value in parsed.multi_items():
        if isinstance(value, UploadFile):
            files[name] = UploadedFile(value.filename or "", await value.read())
        else:
            pairs.append((name, value))
    await parsed.close()
    console.form, console.files = Parameters(tuple(pairs)), files


def _sign_in_first(request_context: RequestContext, done: str = "") -> Response:
    """Redirect to the sign-in page, which leads back to a page that was requested by GET."""
    request = request_context.request
    back = request.target.decode("ascii", "replace") if request.method in SAFE_METHODS else BASE
    headers: HeaderList = (("Location", link("sign-in", next=back if back != BASE else "", done=done)), NO_STORE)
    if read_cookie(request) is not None:
        headers += (delete_cookie(request),)
    return Response(SEE_OTHER, headers)


def _not_found(request_context: RequestContext, methods: list[str]) -> Response:
    if methods:
        view = ProblemView(405, _("Method not allowed"), _("The page does not support this method."))
        return _error(request_context, view).with_headers(allow_header(methods))
    return _error(request_context, ProblemView(404, _("Page not found"), _("The console has no such page.")))


def _error(request_context: RequestContext, view: ProblemView) -> Response:
    server = request_context.server
    session = server.web_sessions.find_for(request_context.request, server.time())
    match = Match(Route("GET", "", _no_handler, "", public=True), {})
    return ConsoleRequest(request_context, match, session).render("problem.html", title=view.title, problem=view)


async def _no_handler(console: ConsoleRequest) -> Response:
    raise AssertionError(f"{console.request.target!r} has no handler")
