"""Which part answers a request, and what every answer has in common.

    /api/v1…                   our own API, with its description and pages about it
    /api…                      the JSON API of deployed servers
    /hrls/…                    finding names by what their records hold
    /healthz, /readyz          for whoever watches over the server
    POST of a native message   the native protocol, in another envelope
    everything else            resolution and its pages

Nothing that goes wrong gets past here: it becomes an answer, in JSON below `/api` and as text elsewhere. What nobody
expected is told to the operator in the log, and to the client as a number under which the log has it.
"""

from typing import Final

from perseid.server.http.connection.requests import Arrived

from . import cors, health, responses
from .compat import api, reverse, tunnel
from .context import Asking, Place
from .messages import Request, Response
from .methods import KNOWN, OPTIONS, READING, allow
from .resolver import resolver
from .targets import Malformed, is_api
from .v1 import application
from .v1 import problems as v1_problems

HEALTH_PATHS: Final = (b"/healthz", b"/readyz")

REVERSE: Final = b"/hrls/"
"""Below it names are found by what their records hold, as in an add-on to deployed servers."""

POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""What an answer may do in a browser that does not say so itself: nothing."""

REFERRER: Final = "strict-origin-when-cross-origin"
"""What others learn of where somebody came from: the address of this server, and not which name they looked at. A
redirection says nothing about it: whoever followed a link through here comes from where the link was."""

_IDENTITY: Final = ("", "identity")
_REDIRECTIONS: Final = range(300, 400)


class HttpService:
    """Answers requests; one for all connections."""

    def __init__(self, place: Place) -> None:
        self.place = place
        """What the server is; replaced when settings are read again."""
        application.table()  # loaded now, so that no request waits for it

    def at_once(self, request: Arrived) -> bytes | None:  # noqa: ARG002 - there may be one to some requests
        """The octets of the answer, if it can be given without waiting; None if not."""
        return None

    async def answer(self, request: Request) -> Response:
        """The answer to a request, whatever comes of it."""
        asking = Asking(request, self.place)
        try:
            response = await _answer(asking)
        except Exception as problem:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            if application.is_own(request.path):
                response = v1_problems.response(v1_problems.problem_of(problem, asking))
            else:
                response = responses.answer(asking, problem)
        return completed(request, response)

    def refused(self, status: int, problem: str, path: bytes) -> Response:
        """The answer to what never became a request."""
        request = Request("GET", path)
        if application.is_own(request.path):
            return completed(request, v1_problems.plain(self.place.settings, status, problem))
        return completed(request, responses.plain(request, status, problem))


def completed(request: Request, response: Response) -> Response:
    """An answer with the headers that every answer has."""
    named = {name.lower() for name, _ in response.headers}
    wanted = list(cors.headers(request, response, exposes=is_api(request.path)))
    wanted.append(("X-Content-Type-Options", "nosniff"))
    if response.status not in _REDIRECTIONS:
        wanted.append(("Referrer-Policy", REFERRER))
        wanted.append(("Content-Security-Policy", POLICY))
    return response.with_headers(*[header for header in wanted if header[0].lower() not in named])


async def _answer(asking: Asking) -> Response:
    request = asking.request
    if cors.is_preflight(request):
        return cors.preflight(request)
    if request.body and request.joined("content-encoding").strip().lower() not in _IDENTITY:
        # What is small on the way may be endless when it is unpacked, and no client is known that packs.
        raise Malformed("bodies are taken as they are, without Content-Encoding", responses.UNSUPPORTED_MEDIA_TYPE)
    if application.is_own(request.path):
        return await application.answer(asking)
    if is_api(request.path):
        return await api.answer(asking)
    if tunnel.is_message(request):
        return await tunnel.answer(asking)
    if request.path in HEALTH_PATHS:
        return _by_method(request, READING) or await health.answer(asking)
    if request.path.startswith(REVERSE):
        return _by_method(request, READING) or await reverse.answer(asking)
    return _by_method(request, (*READING, "POST")) or await resolver.answer(asking)


def _by_method(request: Request, methods: tuple[str, ...]) -> Response | None:
    """The answer to a method that is not one of these; None if it is."""
    if request.method in methods:
        return None
    if request.method == OPTIONS:
        return Response(200, (allow(methods),))
    if request.method not in KNOWN:
        return Response(responses.NOT_IMPLEMENTED)
    return Response(responses.METHOD_NOT_ALLOWED, (allow(methods),))
