"""Native protocol in a worker: the server, its work and its counters, shared by all transports.

Everything here runs in the event loop and never blocks. `try_fast_path` handles public resolution, which the answers
view answers in microseconds. `NativeServer` does everything else; `Pools` runs its work in the loop if it is short or
only waits for the writer, else in a thread.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic, perf_counter_ns, time
from typing import TYPE_CHECKING

from perseid.records.site import Transport
from perseid.server.limits.budgets import Connections
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.limited_log import RateLimitedLogger
from perseid.server.observe.metrics import WorkerCounters
from perseid.server.processes.pools import Pools
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.message import BODY_OFFSET, RESPONSE_CODE, Envelope
from perseid.wire.server import Reply

from .resolution import PublicResolver
from .server import Call, NativeServer
from .work import NativeResponse

if TYPE_CHECKING:
    from .tcp import Connection

_NAME_OFFSET = BODY_OFFSET + 4

_logger = logging.getLogger(__name__)


class NativeService:
    """The native protocol in a worker."""

    def __init__(
        self,
        native_server: NativeServer,
        public_resolver: PublicResolver,
        pools: Pools,
        connections: Connections,
        counts: WorkerCounters,
        access: AccessLog | None = None,
    ) -> None:
        self.native_server = native_server
        self.pools = pools
        self.connections = connections
        """Limits of connections."""
        self.open: set[Connection] = set()
        """Open connections."""
        self.waiting = 0
        """Connections with received messages that wait for their turn."""
        self.draining = False
        """Whether connections are closed after their response, because the server is stopping."""
        self.counts = counts
        self.access = access
        self.public_resolver = public_resolver
        self._invalid_log = RateLimitedLogger()
        self.now: Callable[[], float] = monotonic
        self.time: Callable[[], float] = time

    def try_fast_path(self, data: bytes, host: str) -> bytes | None:
        """Return the response to data from TCP if it is exactly one public resolution, else None."""
        if not self.native_server.resolution_enabled[Transport.TCP]:
            return None
        access = self.access
        started = perf_counter_ns() if access is not None else 0
        response = self.public_resolver(data)
        if response is not None:
            code = response[RESPONSE_CODE]
            self.counts.count_fast_response(code)
            if access is not None:
                end = _NAME_OFFSET + int.from_bytes(data[BODY_OFFSET:_NAME_OFFSET], "big")
                elapsed = (perf_counter_ns() - started) // 1000
                access.log_request(
                    host, "tcp", OpCode.RESOLUTION, int.from_bytes(code, "big"), data[_NAME_OFFSET:end], elapsed
                )
        return response

    def begin(
        self,
        frame: Frame,
        host: str,
        transport: Transport,
        earlier: Callable[[], Awaitable[object]] | None = None,
    ) -> "Exchange":
        """Start to handle a message; `earlier` waits for those before it, if they are not finished."""
        return Exchange(self, frame, Call(frame.envelope, host, self.time(), transport, earlier=earlier))

    async def respond(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]:
        """Yield the responses to a message; each is counted and logged."""
        exchange = self.begin(frame, host, transport)
        while (response := await exchange.next()).more:
            yield response
        yield response
        exchange.finish(response)

    def record_outcome(self, response: NativeResponse, host: str, transport: Transport) -> None:
        """Record whether somebody at an address has authenticated, or failed to."""
        if response.guess is not None:
            self.pools.record_guess(response.guess, host, transport)
        elif response.is_authentication_failure:
            self.pools.record_failed_proof(host, transport)
        if response.identity:
            self.pools.record_proof(host, transport)

    def log_request(self, response: NativeResponse, host: str, transport: Transport, microseconds: int) -> None:
        if response.opcode is OpCode.RESERVED and response.code is ResponseCode.ERROR:
            self.log_invalid("invalid message", host, transport)
        self.counts.count_request(transport, response.opcode, response.code, microseconds)
        is_resolution = response.opcode is OpCode.RESOLUTION
        self.counts.tally.count_served(response.name, response.code, microseconds, resolution=is_resolution)
        if self.access is not None:
            transport_name, opcode = transport.name.lower(), response.opcode
            self.access.log_request(
                host, transport_name, opcode, response.code, response.name, microseconds, response.identity
            )

    def early_failure(self, code: ResponseCode, text: str, answered: Envelope | None = None) -> Reply:
        """Return the reply to something that is not a message; it echoes the ids of `answered`."""
        return self.native_server.server.early_failure(code, text, self.time(), answered=answered)

    def log_invalid(self, problem: str, host: str, transport: Transport) -> None:
        """Log what cannot be parsed: the text of the reply refers to the log."""
        self._invalid_log.info(_logger, self.now(), f"{problem}, from {host} over {transport.name}")

    def count_drop(self, reason: str) -> None:
        """Count a datagram that gets no response, or a short one."""
        self.counts.count_drop(reason)

    def close_expired_connections(self) -> None:
        """Abort connections whose deadline has passed; call about once a second."""
        now = self.now()
        for connection in [one for one in self.open if one.deadline < now]:
            self.counts.count_limit("slow_connection")
            connection.cut()


class Exchange:
    """A message that is being handled, and its responses."""

    __slots__ = ("_call", "_frame", "_service", "_started")

    def __init__(self, service: NativeService, frame: Frame, call: Call) -> None:
        self._service = service
        self._frame: Frame | None = frame
        self._call = call
        self._started = perf_counter_ns()

    async def next(self) -> NativeResponse:
        """Return the first response, or the next one after a response with `more`."""
        service, call, frame = self._service, self._call, self._frame
        self._frame = None
        if frame is not None:
            response = await service.native_server.respond(call, frame)
        else:
            response = await service.native_server.continue_list(call)
        # Before the client sees it, because its next request might arrive first.
        service.record_outcome(response, call.source, call.transport)
        return response

    def finish(self, response: NativeResponse) -> None:
        """Count and log the last response, after it was sent."""
        call, elapsed = self._call, (perf_counter_ns() - self._started) // 1000
        self._service.log_request(response, call.source, call.transport, elapsed)
