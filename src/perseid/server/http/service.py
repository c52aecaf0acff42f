"""Handling of HTTP requests (`dispatch`), and counting and logging of responses.

Each connection has a `MonitoredService`, which knows the peer; all of them share one `ServiceMonitor`, which is
updated on reload. It tries the fast path first, before the service.
"""

from collections.abc import Callable, Container
from time import monotonic, perf_counter_ns
from typing import Final, NamedTuple

from perseid.records.site import Transport
from perseid.server.http.connection.requests import ParsedRequest
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.budgets import NO_LIMIT, Budget, Rate, get_source
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.metrics import WorkerCounters
from perseid.server.observe.tally import response_kind
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import MEDIA_TYPE as NATIVE_TYPE

from . import negotiation
from .context import RequestContext, ServerContext
from .messages import Request, Response, is_api, is_console

CONTENT_SECURITY_POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""The default policy of a response: a browser may do nothing with it."""

REFERRER_POLICY: Final = "strict-origin-when-cross-origin"
"""Other sites learn the address of this server, but not which handle was looked up. Redirects have no such header:
a visitor who followed a link through the resolver comes from the page with the link."""

_REDIRECTIONS: Final = range(300, 400)


class HttpService:
    """Handles requests; shared by all connections."""

    def __init__(self, server: ServerContext) -> None:
        self.server = server
        """The server's settings and state; replaced on reload."""

    def handle_fast(self, request: ParsedRequest) -> bytes | None:  # noqa: ARG002 - part of the protocol
        """Return None: this service has no fast path."""
        return None

    def is_streamed(self, request: ParsedRequest) -> bool:
        """Whether the route of a request processes the body while it arrives."""
        from .dispatch import is_streamed  # noqa: PLC0415 - loaded when the server has started, see `HttpServer.load`

        return is_streamed(request)

    async def handle(self, request: Request) -> Response:
        """Handle a request; never raises."""
        from .dispatch import respond  # noqa: PLC0415

        return with_default_headers(request, await respond(RequestContext(request, self.server)))

    def reject(self, status: int, problem: str, path: bytes) -> Response:
        """Create the response for bytes that are not a valid request."""
        from .dispatch import rejection  # noqa: PLC0415

        request = Request("GET", path)
        return with_default_headers(request, rejection(request, self.server.settings, status, problem))


def with_default_headers(request: Request, response: Response) -> Response:
    """Add the headers that every response has."""
    present = {name.lower() for name, _ in response.headers}
    defaults: list[tuple[str, str]] = []
    if not is_console(request.path):  # its pages are for one user only
        defaults += negotiation.cors_headers(request, response, exposes=is_api(request.path))
    defaults.append(("X-Content-Type-Options", "nosniff"))
    if response.status not in _REDIRECTIONS:
        defaults.append(("Referrer-Policy", REFERRER_POLICY))
        defaults.append(("Content-Security-Policy", CONTENT_SECURITY_POLICY))
    return response.with_headers(*[header for header in defaults if header[0].lower() not in present])


class FastResponse(NamedTuple):
    """A response of the fast path."""

    data: bytes
    """The head and the body."""
    name: bytes
    """The handle."""
    code: int = ResponseCode.SUCCESS
    bot: bool = False
    """Whether a bot has sent the request."""


FastHandler = Callable[[ParsedRequest], FastResponse | None]
"""Returns None if there is no fast response: `resolver.fast_path`."""

MAX_FAST_PER_SECOND: Final = 2_000
"""Fast responses per second and address, unless the settings say otherwise."""

FAST_BLOCKS: Final = 40
"""Blocks in which a process takes them from the limit of all processes, so that most requests only count down."""

_STATUS = slice(9, 12)  # in the status line
_STATUS_CLASS = 9
_STATUSES: Final = {b"%d" % status: status for status in range(100, 600)}  # faster than int()


class ServiceMonitor:
    """The service with its counters and access log, shared by all connections."""

    __slots__ = ("_block", "_buckets", "_budget", "_left", "access", "counts", "exempt", "fast", "service")

    def __init__(
        self,
        service: HttpService,
        counts: WorkerCounters,
        fast: FastHandler | None = None,
        access: AccessLog | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        """`buckets` are those of all processes; without, fast responses are limited in this process."""
        self.service = service
        self.counts = counts
        self.fast = fast
        self.access = access
        self.exempt: Container[str] = ()
        """Addresses without a limit of fast responses."""
        self._buckets = Buckets.private() if buckets is None else buckets
        self._left: dict[str, int] = {}  # fast responses of a block that are left, by address
        self.limit_fast(MAX_FAST_PER_SECOND)

    def limit_fast(self, per_second: int) -> None:
        """Set the number of fast responses per second for an address, in all processes together."""
        self._budget = Budget(Rate(per_second, per_second), NO_LIMIT, buckets=self._buckets)
        self._block = max(1, per_second // FAST_BLOCKS)
        self.end_second()

    def end_second(self) -> None:
        """Forget what is left of blocks; called once per second."""
        self._left.clear()

    def take_fast(self, host: str) -> bool:
        """Count a fast response; return whether it is within the limit of its address."""
        left = self._left.get(host, 0)
        if not left:
            if self._budget.take(get_source(host), monotonic(), self._block):
                left = self._block
            elif host in self.exempt:
                left = -1  # for the rest of the second, as the lookup is slow
            else:
                self.counts.count_limit("concurrent_requests")
                return False
        self._left[host] = left - 1
        return True


class MonitoredService:
    """The service for one connection."""

    __slots__ = ("_host", "_monitor", "_transport")

    def __init__(self, monitor: ServiceMonitor, host: str, *, secure: bool) -> None:
        self._monitor = monitor
        self._host = host
        self._transport = Transport.HTTPS if secure else Transport.HTTP

    def handle_fast(self, request: ParsedRequest) -> bytes | None:
        """Return the bytes of a response if the fast path has one."""
        monitor = self._monitor
        if monitor.fast is None:
            return monitor.service.handle_fast(request)
        access = monitor.access
        started = perf_counter_ns() if access is not None else 0
        result = monitor.fast(request)
        # Only fast responses are charged: the normal path has its own budget.
        if result is None or not monitor.take_fast(request.client.host):
            return monitor.service.handle_fast(request)
        data, name, code, bot = result
        key = (request.client.secure, request.method, data[_STATUS_CLASS])
        counts = monitor.counts.http_fast_responses
        counts[key] = counts.get(key, 0) + 1
        if code == ResponseCode.HANDLE_NOT_FOUND:
            if bot:
                monitor.counts.tally.count_missing(name, bot=True)
            else:
                monitor.counts.tally.count_unknown(name[: name.find(b"/")], name)
        else:
            monitor.counts.tally.count_http(name, data[_STATUS_CLASS], bot)
        if access is not None:
            duration = (perf_counter_ns() - started) // 1000
            transport = "https" if request.client.secure else "http"
            status = _STATUSES[data[_STATUS]]
            access.log_request(request.client.host, transport, request.method, code, name, duration, "", status)
        return data

    def is_streamed(self, request: ParsedRequest) -> bool:
        """Whether a request is handled while its body arrives."""
        return self._monitor.service.is_streamed(request)

    async def handle(self, request: Request) -> Response:
        """Handle a request; count and log the response."""
        started = perf_counter_ns()
        response = await self._monitor.service.handle(request)
        duration = (perf_counter_ns() - started) // 1000
        transport = _transport(request)
        self._monitor.counts.count_http_request(transport, request.method, response.status)
        content_type = next(response.values("Content-Type"), "")
        if content_type == NATIVE_TYPE:
            return response  # the native protocol has counted and logged it
        self._monitor.counts.durations[transport].add(duration)
        name = response.name.encode("utf-8", "replace")
        kind = response_kind(response.status, content_type, request.path)
        agent = " ".join(request.all("user-agent"))
        method = "GET" if _is_form(request) else request.method
        self._monitor.counts.tally.count_response(name, response.code, duration, method, kind, agent)
        if self._monitor.access is not None:
            self._monitor.access.log_request(
                request.client.host,
                transport.name.lower(),
                request.method,
                response.code,
                name or request.path,
                duration,
                response.identity,
                response.status,
                is_name=bool(name),
            )
        return response

    def reject(self, status: int, problem: str, path: bytes) -> Response:
        """Create, count and log the response for bytes that are not a valid request."""
        response = self._monitor.service.reject(status, problem, path)
        self._monitor.counts.count_http_request(self._transport, "", response.status)
        if self._monitor.access is not None:
            transport, status = self._transport.name.lower(), response.status
            self._monitor.access.log_request(
                self._host, transport, "-", response.code, path, 0, status=status, is_name=False
            )
        return response


def _is_form(request: Request) -> bool:
    """Whether a request is a look-up by the form of the front page: nothing else is posted beside API and console."""
    return request.method == "POST" and not (is_api(request.path) or is_console(request.path))


def _transport(request: Request) -> Transport:
    return Transport.HTTPS if request.client.secure else Transport.HTTP
