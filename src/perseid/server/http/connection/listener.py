"""The HTTP listener: one socket for HTTP and HTTPS, distinguished by the first byte of a connection.

A TLS connection starts with the byte 0x16 and no HTTP request does. Deployed clients rely on it: they read at
`http://host:8000` and write at `https://host:8000`. An installation may allow only one of the two; clients of the other
get an error in their own protocol.

A connection is admitted by its address; a `_ProtocolDetector` waits for its first byte, then a `TlsTransport` or the
HTTP connection takes over. Silent clients, and those that do not complete a handshake, are cut at their deadline.

All HTTP connections share a `ConnectionManager`: timeouts, open connections, shutdown. It checks the deadlines of all
of them once per second.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Final, Protocol, cast

from OpenSSL import SSL

from perseid.registry.installation.sections import Listen
from perseid.server.limits.budgets import Connections
from perseid.server.native.authentication import UnfinishedMessages
from perseid.server.observe.limited_log import RateLimitedLogger
from perseid.server.observe.logs import fields
from perseid.server.processes.accept import AcceptLoop

from .tls import HANDSHAKE_RECORD, HandshakeFailure, ProtocolFactory, TlsTransport, WorkRunner

if TYPE_CHECKING:
    from perseid.server.observe.metrics import WorkerCounters
if TYPE_CHECKING:
    from .connection import Connection

HEAD_TIMEOUT: Final = 10.0
"""Seconds for a whole head, from its first byte, or for the first request of a connection: nearly always one packet."""

BODY_TIMEOUT: Final = 30.0
"""Seconds for a whole body: the largest one at 35 KB per second."""

BODY_GRACE: Final = 5.0
MIN_BODY_RATE: Final = 1_024
"""Bytes of a body per second that a client must send on average, after the seconds of grace. A client that sends
single bytes is not uploading anything."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds that a connection may be idle between two requests, as in deployed servers."""

WRITE_TIMEOUT: Final = 30.0
"""Seconds in which a client must receive a response, or the next `responses.WRITE_SIZE` bytes of it."""

LINGER_TIMEOUT: Final = 2.0
"""Seconds for a client to read an error and leave, before the connection is cut."""

MAX_UNFINISHED_BYTES: Final = 64 << 20
"""Bytes of incomplete requests over all connections together: sixty of the largest, or thousands of typical ones."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; see the constants."""

    head: float = HEAD_TIMEOUT
    body: float = BODY_TIMEOUT
    idle: float = IDLE_TIMEOUT
    take: float = WRITE_TIMEOUT
    linger: float = LINGER_TIMEOUT


class ConnectionManager:
    """The HTTP connections of the process."""

    __slots__ = ("count_limit", "draining", "now", "open", "time", "times", "unfinished", "waiting")

    def __init__(
        self,
        *,
        times: Timeouts | None = None,
        max_unfinished: int = MAX_UNFINISHED_BYTES,
        now: Callable[[], float] = monotonic,
        time: Callable[[], float] = time,
        count_limit: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start without connections. `count_limit` counts a limit that was reached, by its name."""
        self.open: set[Connection] = set()
        """The open connections."""
        self.waiting = 0
        """Connections with received requests that wait for their turn."""
        self.draining = False
        """Whether connections are closed after their response, because the server stops."""
        self.times = times or Timeouts()
        self.unfinished: UnfinishedMessages[Connection] = UnfinishedMessages(max_unfinished)
        self.now = now
        self.time = time
        self.count_limit = count_limit

    def check_deadlines(self) -> None:
        """Handle connections whose deadline has passed; called about once per second."""
        now = self.now()
        for connection in [one for one in self.open if one.deadline < now]:
            connection.on_timeout()

    def drain(self) -> None:
        """Close idle connections now, and the others after their response."""
        self.draining = True
        for connection in list(self.open):
            connection.close_if_idle()

    def note_buffered(self, connection: "Connection", size: int) -> None:
        """Note how much incomplete data a connection buffers; above the total limit the largest is cut."""
        for longest in self.unfinished.note(connection, size):
            self.count_limit("unfinished_bytes")
            longest.cut()


HTTPS_ONLY: Final = b"This server accepts HTTPS only.\n"
"""The response to plain HTTP if only HTTPS is enabled."""

_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (len(HTTPS_ONLY), HTTPS_ONLY)
)
_ALERT = bytes.fromhex("15 0301 0002 02 28")  # TLS: handshake_failure, fatal
_NEVER = float("inf")
_IPV4_MAPPED = "::ffff:"  # prefix of an IPv4 address on an IPv6 socket

_logger = logging.getLogger(__name__)


class PendingConnection(Protocol):
    """A connection on which HTTP has not started."""

    @property
    def deadline(self) -> float:
        """When it is cut unless something happens."""

    def cut(self) -> None:
        """Close the connection immediately."""

    def close_if_idle(self) -> None:
        """Close the connection unless something has started."""


class HttpListener(AcceptLoop):
    """Accepts connections, up to where HTTP starts."""

    def __init__(
        self,
        connections: Connections,
        counts: "WorkerCounters",
        *,
        make: ProtocolFactory,
        work: WorkRunner,
        context: SSL.Context | None,
        listen: Listen = "both",
    ) -> None:
        """Without a context there is no TLS."""
        super().__init__(connections, counts.count_limit)
        self.connections = connections
        self.make, self.work = make, work
        self.context = context
        """The TLS context of new connections."""
        self.listen = listen
        self.draining = False
        self.pending: set[PendingConnection] = set()
        """Connections on which HTTP has not started."""
        self.failures: Counter[HandshakeFailure] = Counter()
        """Failed handshakes."""
        self.handshakes = 0
        """Successful handshakes."""
        self.now: Callable[[], float] = monotonic
        self._counts = counts
        self._failure_log = RateLimitedLogger()  # scanners try many

    def take(self, client: socket.socket, host: str) -> asyncio.Protocol:  # noqa: ARG002 - part of the interface
        """Wait for the first byte."""
        return _ProtocolDetector(self, normalize_host(host))

    def check_deadlines(self) -> None:
        """Cut connections whose deadline has passed; called about once per second."""
        now = self.now()
        for connection in [one for one in self.pending if one.deadline < now]:
            self._counts.count_limit("slow_connection")
            connection.cut()

    def drain(self) -> None:
        """Close connections that have not started; handshakes in progress continue."""
        self.draining = True
        for connection in list(self.pending):
            connection.close_if_idle()

    # Events of pending connections

    def connection_closed(self, host: str) -> None:
        """A connection was lost."""
        self.connections.leave(host)

    def handshake_started(self, tls: TlsTransport) -> None:
        """A handshake has started."""
        self.pending.add(tls)

    def handshake_finished(self, tls: TlsTransport, *, done: bool) -> None:
        """A handshake has ended."""
        self.pending.discard(tls)
        self.handshakes += done

    def handshake_failed(self, failure: HandshakeFailure, reason: str, host: str) -> None:
        """Count a failed handshake, and log it within the rate limit."""
        self.failures[failure] += 1
        self._failure_log.info(_logger, self.now(), f"TLS handshake failed: {reason}", fields(address=host))


class _ProtocolDetector(asyncio.Protocol):
    """A connection whose first byte has not arrived."""

    __slots__ = ("_host", "_listener", "_refused", "_transport", "deadline")

    def __init__(self, listener: HttpListener, host: str) -> None:
        self._listener = listener
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._refused = False
        self.deadline = _NEVER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte until the deadline."""
        self._transport = cast("asyncio.Transport", transport)
        self.deadline = self._listener.now() + HEAD_TIMEOUT
        self._listener.pending.add(self)
        if self._listener.draining:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Detect the protocol, and hand over."""
        listener, transport = self._listener, self._transport
        if transport is None or self._refused:
            return
        context = listener.context
        if data[0] == HANDSHAKE_RECORD:
            if context is None or listener.listen == "http":
                self._refuse(_ALERT)
            else:
                tls = TlsTransport(context, self._host, make=listener.make, work=listener.work, owner=listener)
                self._hand_over(tls, data)
        elif listener.listen == "https":
            self._refuse(_REFUSAL)
        else:
            self._hand_over(listener.make(self._host, secure=False, certificate=None), data)

    def _hand_over(self, protocol: asyncio.Protocol, data: bytes) -> None:
        assert self._transport is not None  # noqa: S101 - data has arrived
        self._listener.pending.discard(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def _refuse(self, raw: bytes) -> None:
        """Send an error and wait a moment: after an immediate close it might not be read."""
        assert self._transport is not None  # noqa: S101 - data has arrived
        self._refused = True
        self.deadline = self._listener.now() + LINGER_TIMEOUT
        self._transport.write(raw)
        self._transport.write_eof()

    def connection_lost(self, _: Exception | None) -> None:
        """Clean up a connection that was lost before HTTP started."""
        self._listener.pending.discard(self)
        self._listener.connection_closed(self._host)

    def cut(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection: nothing has arrived."""
        if self._transport is not None:
            self._transport.close()


def normalize_host(host: str) -> str:
    """Write an IPv4 address as such, also on an IPv6 socket."""
    return host.removeprefix(_IPV4_MAPPED) if host.startswith(_IPV4_MAPPED) and "." in host else host
