"""The front of HTTP: one listening socket for HTTP and HTTPS, told apart by the first octet of a connection.

A TLS connection begins with the octet 0x16 and no HTTP request does; deployed clients rely on it, for they read at
`http://host:8000` and write at `https://host:8000`. An installation may allow one of the two only; whoever comes with
the other is told so, in the language in which they came.

A connection is admitted by its address, then it is `_First` until its first octet has come, then `Tls` or HTTP itself.
Whoever says nothing, or does not get to the end of a handshake, is cut when its time is up.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, cast

from OpenSSL import SSL

from perseid.registry.installation.setting_http import Listen
from perseid.server.limits.budgets import Connections
from perseid.server.limits.udp import RateLimit
from perseid.server.observe.logs import fields
from perseid.server.processes.accept import AcceptLoop

from .manager import HEAD_TIMEOUT
from .tls import HANDSHAKE_RECORD, ProtocolFactory, TlsTransport, WorkRunner
from .tls_handshake import HandshakeFailure

if TYPE_CHECKING:
    from perseid.server.observe.control_counts import ControlCounters

LOGGED_PER_SECOND: Final = 5.0
LOGGED_BURST: Final = 50.0
"""Handshakes that came to nothing and are logged, a second and at once; all are counted. Scanners try many."""

HTTPS_ONLY: Final = b"HTTPS is spoken here, and nothing else.\n"
"""What a client is told that comes with HTTP where only HTTPS is spoken."""

LINGER_TIMEOUT: Final = 2.0
"""Seconds for a client to read a refusal and go, before the connection is cut."""

_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (len(HTTPS_ONLY), HTTPS_ONLY)
)
_ALERT = bytes.fromhex("15 0301 0002 02 28")  # TLS: handshake_failure, fatal
_NEVER = float("inf")
_IPV4_MAPPED = "::ffff:"  # how an address of IPv4 begins on a socket of IPv6

_logger = logging.getLogger(__name__)


class PendingConnection(Protocol):
    """A connection that somebody has to look after."""

    @property
    def deadline(self) -> float:
        """When it is cut unless something happens."""

    def cut(self) -> None:
        """End it now."""

    def close_if_idle(self) -> None:
        """End it, unless something of it is being answered."""


class HttpListener(AcceptLoop):
    """Lets HTTP connections in, up to where HTTP begins."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        counts: "ControlCounters",
        *,
        make: ProtocolFactory,
        work: WorkRunner,
        context: SSL.Context | None,
        listen: Listen = Listen.BOTH,
    ) -> None:
        """Serve at a listening socket. Without a context there is no TLS."""
        super().__init__(listener, connections, counts.limited)
        self.connections = connections
        self.make, self.work = make, work
        self.context = context
        """With which certificate handshakes are made from now on."""
        self.listen = listen
        self.draining = False
        self.pending: set[PendingConnection] = set()
        """Connections on which HTTP has not begun."""
        self.failures: Counter[HandshakeFailure] = Counter()
        """Handshakes that came to nothing."""
        self.handshakes = 0
        """Handshakes that were made."""
        self.now: Callable[[], float] = monotonic
        self._counts = counts
        self._pace = RateLimit(LOGGED_PER_SECOND, LOGGED_BURST)
        self._unlogged = 0

    def take(self, client: socket.socket, host: str) -> asyncio.Protocol:  # noqa: ARG002 - it says nothing by itself
        """Wait for the first octet."""
        return _ProtocolDetector(self, normalize_host(host))

    def check_deadlines(self) -> None:
        """Cut connections whose time is up; about once a second."""
        now = self.now()
        for connection in [one for one in self.pending if one.deadline < now]:
            self._counts.limited("slow_connection")
            connection.cut()

    def drain(self) -> None:
        """End what has not begun; handshakes that have may come to their end."""
        self.draining = True
        for connection in list(self.pending):
            connection.close_if_idle()

    # What connections say on which HTTP has not begun

    def connection_closed(self, host: str) -> None:
        """A connection is lost."""
        self.connections.leave(host)

    def handshake_started(self, tls: TlsTransport) -> None:
        """A handshake has begun."""
        self.pending.add(tls)

    def handshake_finished(self, tls: TlsTransport, *, done: bool) -> None:
        """A handshake has ended."""
        self.pending.discard(tls)
        self.handshakes += done

    def handshake_failed(self, failure: HandshakeFailure, reason: str, host: str) -> None:
        """A handshake came to nothing: count it, and log it if there are not too many of them."""
        self.failures[failure] += 1
        if not self._pace.take(self.now()):
            self._unlogged += 1
            return
        more = {"not_logged": self._unlogged} if self._unlogged else {}
        self._unlogged = 0
        _logger.info("a TLS handshake failed: %s", reason, extra=fields(address=host, **more))


class _ProtocolDetector(asyncio.Protocol):
    """A connection whose first octet has not come."""

    __slots__ = ("_front", "_host", "_refused", "_transport", "deadline")

    def __init__(self, front: HttpListener, host: str) -> None:
        self._front = front
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._refused = False
        self.deadline = _NEVER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait, but not for ever."""
        self._transport = cast("asyncio.Transport", transport)
        self.deadline = self._front.now() + HEAD_TIMEOUT
        self._front.pending.add(self)
        if self._front.draining:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Find out what is spoken, and hand over."""
        front, transport = self._front, self._transport
        if transport is None or self._refused:
            return
        context = front.context
        if data[0] == HANDSHAKE_RECORD:
            if context is None or front.listen is Listen.HTTP:
                self._refuse(_ALERT)
            else:
                tls = TlsTransport(context, self._host, make=front.make, work=front.work, owner=front)
                self._hand_over(tls, data)
        elif front.listen is Listen.HTTPS:
            self._refuse(_REFUSAL)
        else:
            self._hand_over(front.make(self._host, secure=False, certificate=None), data)

    def _hand_over(self, protocol: asyncio.Protocol, data: bytes) -> None:
        assert self._transport is not None  # noqa: S101 - it brought the octets
        self._front.pending.discard(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def _refuse(self, raw: bytes) -> None:
        """Say what cannot be, and wait a moment: cut at once, it might not be read."""
        assert self._transport is not None  # noqa: S101 - it brought the octets
        self._refused = True
        self.deadline = self._front.now() + LINGER_TIMEOUT
        self._transport.write(raw)
        self._transport.write_eof()

    def connection_lost(self, _: Exception | None) -> None:
        """It is over before it began."""
        self._front.pending.discard(self)
        self._front.connection_closed(self._host)

    def cut(self) -> None:
        """Its time is up."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Nothing was asked."""
        if self._transport is not None:
            self._transport.close()


def normalize_host(host: str) -> str:
    """An address as people write it: one of IPv4 stays one, also on a socket of IPv6."""
    return host.removeprefix(_IPV4_MAPPED) if host.startswith(_IPV4_MAPPED) and "." in host else host
