"""What whoever watches over the server asks: whether it is alive, and whether it should get requests.

    GET /healthz   200 as long as there is somebody to say so
    GET /readyz    200 if requests should come; 503 with the reason if they should go elsewhere

The first is for who restarts what hangs, the second for who distributes requests. The answer is a line of text, or JSON
for those who accept that and say so. It holds nothing that strangers may not know, so anybody may ask.

Which part answers a request, and what every answer has in common.

    /api/v1…                   our own API, with its description and pages about it
    /api…                      the JSON API of deployed servers
    /hrls/…                    finding names by what their records hold
    /healthz, /readyz          for whoever watches over the server
    POST of a native message   the native protocol, in another envelope
    everything else            resolution and its pages

Nothing that goes wrong gets past here: it becomes an answer, in JSON below `/api` and as text elsewhere. What nobody
expected is told to the operator in the log, and to the client as a number under which the log has it.

What answers requests, with a note of each answer: for counters, for the access log, and in what time.

Each connection has an `Observed` of its own, which knows from where it comes; all of them share one `Observing`, which
is told when settings have changed. What can be answered at once is answered here, before the service is asked, and
counted in as little time.
"""

import json
from collections.abc import Callable, Container
from time import perf_counter_ns
from typing import Final

from perseid.records.site import Transport
from perseid.server.http.compat.tunnel import NATIVE_TYPE
from perseid.server.http.connection.requests import ParsedRequest
from perseid.server.observe.access_log import AccessLog, HttpExchange
from perseid.server.observe.control_counts import ControlCounters
from perseid.wire.codes import ResponseCode

from . import caching, responses
from .compat import api, reverse, tunnel
from .context import RequestContext, ServerContext
from .messages import KNOWN_METHODS, OPTIONS, SAFE_METHODS, HeaderList, Request, Response, allow_header
from .resolver import resolver
from .targets import BadRequest, is_api
from .v1 import application
from .v1 import problems as v1_problems

ALIVE_PATH: Final = b"/healthz"
READY_PATH: Final = b"/readyz"

RETRY_AFTER: Final = 5
"""Seconds after which it is worth asking again: a view that follows the ledger again, or another server."""

_JSON = "application/json"
_NO_STORE_HEADERS: HeaderList = (("Cache-Control", "no-store"),)


async def handle_health(request_context: RequestContext) -> Response:
    """The answer to one of the two paths, for any method that reads."""
    if request_context.request.path == READY_PATH:
        reason = request_context.place.ready()
        facts: dict[str, object] = {"ready": not reason} | ({"reason": reason} if reason else {})
        return _health_response(
            request_context, 503 if reason else 200, facts, f"not ready: {reason}" if reason else "ready"
        )
    return _health_response(request_context, 200, {"alive": True}, "alive")


def _health_response(request_context: RequestContext, status: int, facts: dict[str, object], line: str) -> Response:
    as_json = _JSON in request_context.request.get_joined("accept").lower()
    body = json.dumps(facts) if as_json else line
    kind = f"{_JSON};charset=utf-8" if as_json else "text/plain;charset=utf-8"
    headers: HeaderList = (("Content-Type", kind), *_NO_STORE_HEADERS)
    if status == 503:
        headers += (("Retry-After", str(RETRY_AFTER)),)
    return Response(status, headers, body.encode() + b"\n")


HEALTH_PATHS: Final = (b"/healthz", b"/readyz")

REVERSE_LOOKUP_PATH: Final = b"/hrls/"
"""Below it names are found by what their records hold, as in an add-on to deployed servers."""

CONTENT_SECURITY_POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""What an answer may do in a browser that does not say so itself: nothing."""

REFERRER_POLICY: Final = "strict-origin-when-cross-origin"
"""What others learn of where somebody came from: the address of this server, and not which name they looked at. A
redirection says nothing about it: whoever followed a link through here comes from where the link was."""

_IDENTITY: Final = ("", "identity")
_REDIRECTIONS: Final = range(300, 400)


class HttpService:
    """Answers requests; one for all connections."""

    def __init__(self, place: ServerContext) -> None:
        self.place = place
        """What the server is; replaced when settings are read again."""
        application.get_router()  # loaded now, so that no request waits for it

    def handle_fast(self, request: ParsedRequest) -> bytes | None:  # noqa: ARG002 - there may be one to some requests
        """The octets of the answer, if it can be given without waiting; None if not."""
        return None

    async def answer(self, request: Request) -> Response:
        """The answer to a request, whatever comes of it."""
        request_context = RequestContext(request, self.place)
        try:
            response = await _dispatch(request_context)
        except Exception as problem:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            if application.is_api_path(request.path):
                response = v1_problems.problem_response(v1_problems.to_problem(problem, request_context))
            else:
                response = responses.failure_response(request_context, problem)
        return with_default_headers(request, response)

    def refused(self, status: int, problem: str, path: bytes) -> Response:
        """The answer to what never became a request."""
        request = Request("GET", path)
        if application.is_api_path(request.path):
            return with_default_headers(request, v1_problems.error_response(self.place.settings, status, problem))
        return with_default_headers(request, responses.plain(request, status, problem))


def with_default_headers(request: Request, response: Response) -> Response:
    """An answer with the headers that every answer has."""
    named = {name.lower() for name, _ in response.headers}
    wanted = list(caching.cors_headers(request, response, exposes=is_api(request.path)))
    wanted.append(("X-Content-Type-Options", "nosniff"))
    if response.status not in _REDIRECTIONS:
        wanted.append(("Referrer-Policy", REFERRER_POLICY))
        wanted.append(("Content-Security-Policy", CONTENT_SECURITY_POLICY))
    return response.with_headers(*[header for header in wanted if header[0].lower() not in named])


async def _dispatch(request_context: RequestContext) -> Response:
    request = request_context.request
    if caching.is_preflight(request):
        return caching.preflight_response(request)
    if request.body and request.get_joined("content-encoding").strip().lower() not in _IDENTITY:
        # What is small on the way may be endless when it is unpacked, and no client is known that packs.
        raise BadRequest("bodies are taken as they are, without Content-Encoding", responses.UNSUPPORTED_MEDIA_TYPE)
    if application.is_api_path(request.path):
        return await application.handle(request_context)
    if is_api(request.path):
        return await api.handle_request(request_context)
    if tunnel.is_message(request):
        return await tunnel.handle_request(request_context)
    if request.path in HEALTH_PATHS:
        return _check_method(request, SAFE_METHODS) or await handle_health(request_context)
    if request.path.startswith(REVERSE_LOOKUP_PATH):
        return _check_method(request, SAFE_METHODS) or await reverse.handle_request(request_context)
    return _check_method(request, (*SAFE_METHODS, "POST")) or await resolver.handle_request(request_context)


def _check_method(request: Request, methods: tuple[str, ...]) -> Response | None:
    """The answer to a method that is not one of these; None if it is."""
    if request.method in methods:
        return None
    if request.method == OPTIONS:
        return Response(200, (allow_header(methods),))
    if request.method not in KNOWN_METHODS:
        return Response(responses.NOT_IMPLEMENTED)
    return Response(responses.METHOD_NOT_ALLOWED, (allow_header(methods),))


FastHandler = Callable[[ParsedRequest], tuple[bytes, bytes] | None]
"""The octets of an answer and the name that it is about, if it takes no time; see `fast`."""

MAX_FAST_PER_SECOND: Final = 2_000
"""Answers at once for one address in a second, where the settings say nothing."""

_STATUS = slice(9, 12)  # in the first line of an answer
_STATUS_CLASS = 9
_NO_LIMIT = -(1 << 62)


class ServiceMonitor:
    """What answers, and where it is noted; for all connections."""

    __slots__ = ("access", "counts", "exempt", "fast", "most", "service", "taken")

    def __init__(
        self,
        service: HttpService,
        counts: ControlCounters,
        fast: FastHandler | None = None,
        access: AccessLog | None = None,
    ) -> None:
        self.service = service
        self.counts = counts
        self.fast = fast
        self.access = access
        self.taken: dict[str, int] = {}
        """What was answered at once in this second, by address."""
        self.most = MAX_FAST_PER_SECOND
        """How much of it an address may have."""
        self.exempt: Container[str] = ()
        """Addresses that may have more."""


class MonitoredService:
    """What answers the requests of one connection."""

    __slots__ = ("_all", "_host", "_transport")

    def __init__(self, observing: ServiceMonitor, host: str, *, secure: bool) -> None:
        self._all = observing
        self._host = host
        self._transport = Transport.HTTPS if secure else Transport.HTTP

    def handle_fast(self, request: ParsedRequest) -> bytes | None:
        """The whole answer, if it takes no time."""
        every = self._all
        if every.fast is None:
            return every.service.handle_fast(request)
        host = request.client.host
        taken = every.taken.get(host, 0)
        if taken >= every.most:
            if host not in every.exempt:
                every.counts.limited("requests at once")
                return every.service.handle_fast(request)  # the usual way has a budget
            taken = _NO_LIMIT  # for the rest of the second, as looking it up takes time
        access = every.access
        began = perf_counter_ns() if access is not None else 0
        found = every.fast(request)
        if found is None:
            return every.service.handle_fast(request)
        every.taken[host] = taken + 1
        data, name = found
        key = (request.client.secure, request.method, data[_STATUS_CLASS])
        counted = every.counts.http_fast_responses
        counted[key] = counted.get(key, 0) + 1
        if access is not None:
            took = (perf_counter_ns() - began) // 1000
            exchange = HttpExchange(request.method, int(data[_STATUS]), name, is_name=True, code=ResponseCode.SUCCESS)
            access.log_http_request(request.client.host, _transport(request).name.lower(), exchange, took)
        return data

    async def answer(self, request: Request) -> Response:
        """The answer to a request."""
        began = perf_counter_ns()
        response = await self._all.service.answer(request)
        took = (perf_counter_ns() - began) // 1000
        transport = _transport(request)
        self._all.counts.http(transport, request.method, response.status)
        if next(response.values("Content-Type"), "") == NATIVE_TYPE:
            return response  # the native protocol has noted what is in it
        self._all.counts.durations[transport].add(took)
        if self._all.access is not None:
            name = response.name.encode("utf-8", "replace")
            exchange = HttpExchange(request.method, response.status, name or request.path, bool(name), response.code)
            self._all.access.log_http_request(
                request.client.host, transport.name.lower(), exchange, took, response.identity
            )
        return response

    def refused(self, status: int, problem: str, path: bytes) -> Response:
        """What is said about something that is no request."""
        response = self._all.service.refused(status, problem, path)
        self._all.counts.http(self._transport, "", response.status)
        if self._all.access is not None:
            exchange = HttpExchange("-", response.status, path, is_name=False, code=response.code)
            self._all.access.log_http_request(self._host, self._transport.name.lower(), exchange, 0)
        return response


def _transport(request: Request) -> Transport:
    return Transport.HTTPS if request.client.secure else Transport.HTTP
