"""Requests to the console: the session, the token of a form, the page, and what is shown if something goes wrong.

Only private connections are served. Without a session every page leads to the sign-in page, and back.
"""

from dataclasses import replace
from functools import cache
from typing import Final

from perseid.client.errors import ClientError
from perseid.server.http.auth.web_sessions import delete_cookie, read_cookie
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, HeaderList, Response, allow_header
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import NO_STORE, https_required, to_failure
from perseid.server.native.decisions import Busy

from .advice import API_LANGUAGE
from .forms import read_form
from .requests import SEE_OTHER, ConsoleRequest, ProblemView, SessionEnded
from .routing import BASE, Match, Pages, Route, Router, link

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
    response = await _handle_page(ConsoleRequest(request_context, match, session))
    return response if session is None or response.identity else replace(response, identity=str(session.identity))


async def _handle_page(console: ConsoleRequest) -> Response:
    request_context, session = console.request_context, console.session
    try:
        if console.match.route.method == "POST":
            await read_form(console)
        return await console.match.route.handler(console)
    except SessionEnded:
        assert session is not None  # noqa: S101 - it has ended
        request_context.server.web_sessions.end(session)
        return _sign_in_first(request_context, "ended")
    except ClientError as error:
        title = _("Not found") if error.problem is not None and error.problem.status == 404 else _("Request refused")
        return console.render("problem.html", title=title, problem=error)
    except (BadRequest, Busy) as error:
        failure = to_failure(error, request_context)
        view = ProblemView(failure.status, "", failure.message, language=API_LANGUAGE)
        return console.render("problem.html", title=_("Invalid request"), problem=view)
    finally:
        for file in console.files.values():
            file.file.close()


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
    request = request_context.request
    session = server.web_sessions.find_for(request, server.time()) if request.client.private else None
    match = Match(Route("GET", "", _no_handler, "", public=True), {})
    return ConsoleRequest(request_context, match, session).render("problem.html", title=view.title, problem=view)


async def _no_handler(console: ConsoleRequest) -> Response:
    raise AssertionError(f"{console.request.target!r} has no handler")
