"""HTTP listener for metrics, on the loopback interface by default.

    GET /metrics   all metrics, in the text format of Prometheus or, if requested, as OpenMetrics
    GET /ready     200 if the server should get requests, 503 with the reason if not; for load balancers
    GET /live      200 if all event loops are running, 503 if one is stuck

It has its own thread and event loop. Collecting takes milliseconds and reads the database, and requests of clients must
not wait for it; and it must respond when the worker's loop is stuck. All workers accept from one socket: whichever is
asked answers for all. h11 parses HTTP strictly and within limits. At most
`MAX_CONNECTIONS` connections are open, each with one request, for at most `TIMEOUT` seconds. There is no
authentication, so responses contain no secrets: numbers, and no handles.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

import h11

from .metrics import MetricSources

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAX_CONNECTIONS: Final = 16
"""Connections at a time: some scrapers and load balancers. Further ones are closed without a response."""

TIMEOUT: Final = 5.0
"""Seconds for a connection, from start to end."""

MAX_REQUEST_BYTES: Final = 8_192
"""Bytes of the longest request."""

MAX_TICK_AGE: Final = 10.0
"""Seconds without a sign of life after which an event loop is reported as stuck."""

_PLAIN = "text/plain; charset=utf-8"
_JOIN_TIMEOUT = 2.0  # seconds for the thread to end

_logger = logging.getLogger(__name__)

Response = tuple[int, str, bytes]


class MetricsListener:
    """Serves metrics while it is entered as a context."""

    def __init__(self, sources: MetricSources, sock: socket.socket | None) -> None:
        """Serve at a listening socket, which other processes may have too; None disables it."""
        self._sources = sources
        self._socket = sock
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._pages: dict[str, Callable[[h11.Request], Response]] = {
            "/metrics": self._metrics,
            "/ready": self._ready,
            "/live": self._live,
        }

    @property
    def address(self) -> str | None:
        """The URL of the metrics; None if disabled."""
        if self._socket is None:
            return None
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def __enter__(self) -> Self:
        if self._socket is not None:
            started: Future[None] = Future()
            self._thread = threading.Thread(target=self._run, args=(self._socket, started), name="metrics", daemon=True)
            self._thread.start()
            started.result()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_TIMEOUT)
            self._thread = None

    def _run(self, sock: socket.socket, started: "Future[None]") -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            loop = self._loop = runner.get_loop()
            server = loop.run_until_complete(
                asyncio.start_server(self._on_connection, sock=sock, limit=MAX_REQUEST_BYTES)
            )
            started.set_result(None)
            loop.run_forever()
            server.close()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._serve(reader, writer)
        except (TimeoutError, OSError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and respond."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        request: h11.Request | None = None
        try:
            request = await _read_request(connection, reader)
            if request is None:
                return
            # In a thread: a database that hangs must not block requests for /live.
            status, kind, text = await asyncio.to_thread(self._respond, request)
        except h11.RemoteProtocolError as error:
            status, kind, text = error.error_status_hint, _PLAIN, b"invalid request\n"
        headers = [("Content-Type", kind), ("Content-Length", str(len(text))), ("Connection", "close")]
        if status == 405:
            headers.append(("Allow", "GET, HEAD"))
        data = [] if request is not None and request.method == b"HEAD" else [h11.Data(data=text)]
        for event in (h11.Response(status_code=status, headers=headers), *data, h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        writer.write_eof()
        await reader.read(MAX_REQUEST_BYTES)  # until the client has closed too: a reset could overtake the response

    def _respond(self, request: h11.Request) -> Response:
        page = self._pages.get(request.target.decode("ascii").partition("?")[0])
        if page is None:
            return 404, _PLAIN, b"not found; available: /metrics, /ready, /live\n"
        if request.method not in (b"GET", b"HEAD"):
            return 405, _PLAIN, b"method not allowed; use GET or HEAD\n"
        try:
            return page(request)
        except Exception as error:  # noqa: BLE001 - reported to this client; others are served
            _logger.warning("cannot respond to %s: %s", page.__name__, type(error).__qualname__)
            return 503, _PLAIN, b"internal error; see the log\n"

    def _metrics(self, request: h11.Request) -> Response:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - see `collector`

        accept = b",".join([value for name, value in request.headers if name == b"accept"])
        try:
            encode, content_type = choose_encoder(accept.decode("latin-1"))
        except (TypeError, ValueError):  # an invalid version
            encode, content_type = choose_encoder("")
        return 200, content_type, encode(self._registry)

    @cached_property
    def _registry(self) -> "CollectorRegistry":
        from .collector import create_registry  # noqa: PLC0415 - see there

        return create_registry(self._sources)

    def _ready(self, _: h11.Request) -> Response:
        reason = self._stuck() or self._sources.ready()
        return (503, _PLAIN, f"not ready: {reason}\n".encode()) if reason else (200, _PLAIN, b"ready\n")

    def _live(self, _: h11.Request) -> Response:
        reason = self._stuck()
        return (503, _PLAIN, f"{reason}\n".encode()) if reason else (200, _PLAIN, b"live\n")

    def _stuck(self) -> str:
        age = self._sources.tick_age()
        return f"the event loop has been stuck for {age:.0f} s" if age > MAX_TICK_AGE else ""


async def _read_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the request; None if the client disconnected."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(MAX_REQUEST_BYTES))
