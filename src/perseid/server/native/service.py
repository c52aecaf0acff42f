"""What the transports of the native protocol share in the control process: the door, its work, and what is noted.

Everything here runs in the event loop and never waits. `answer_at_once` is for public resolution, which the answers
view settles in microseconds; everything else goes through the door, whose work is done in the pools.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import monotonic, perf_counter_ns, time
from typing import TYPE_CHECKING

from perseid.records.site import Transport
from perseid.server.limits.budgets import Connections
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.control_counts import ControlCounters
from perseid.server.processes.pools import Pools
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply

from .resolution import PublicResolver
from .server import NativeServer
from .steps import NativeResponse, Work, run_steps_async

if TYPE_CHECKING:
    from .tcp import Connection

_CODE = slice(24, 28)
_NAME_OFFSET = 48

_logger = logging.getLogger(__name__)


class NativeService:
    """The native protocol in the control process."""

    def __init__(
        self,
        native_server: NativeServer,
        public_resolver: PublicResolver,
        pools: Pools,
        connections: Connections,
        counts: ControlCounters,
        access: AccessLog | None = None,
    ) -> None:
        self.native_server = native_server
        self.pools = pools
        self.connections = connections
        """Who is let in."""
        self.open: set[Connection] = set()
        """Connections, for those who look after them."""
        self.draining = False
        """Whether no connection is kept after its answer, because all is to end."""
        self.counts = counts
        self.access = access
        self.public_resolver = public_resolver
        self.now: Callable[[], float] = monotonic
        self.time: Callable[[], float] = time

    def try_fast_path(self, data: bytes, host: str) -> bytes | None:
        """The answer to what came over TCP, if it is one whole public resolution; None if it is anything else."""
        if not self.native_server.resolution_enabled[Transport.TCP]:
            return None
        access = self.access
        started = perf_counter_ns() if access is not None else 0
        answer = self.public_resolver(data)
        if answer is not None:
            code = answer[_CODE]
            self.counts.count_fast_response(code)
            if access is not None:
                end = _NAME_OFFSET + int.from_bytes(data[44:_NAME_OFFSET], "big")
                elapsed = (perf_counter_ns() - started) // 1000
                access.log_request(
                    host, "tcp", OpCode.RESOLUTION, int.from_bytes(code, "big"), data[_NAME_OFFSET:end], elapsed
                )
        return answer

    async def served(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]:
        """The answers to a message, as they are made; each is counted and noted."""
        started = perf_counter_ns()

        def do(work: Work) -> Awaitable[object]:
            return self.pools.do(work, host, transport)

        steps = self.native_server.steps(frame, host, self.time(), transport=transport)
        async with aclosing(run_steps_async(steps, do)) as answers:
            async for served in answers:
                self._record_outcome(
                    served, host, transport
                )  # before the client knows, who might be quicker with the next one
                yield served
                if not served.more:
                    self._log_request(served, host, transport, (perf_counter_ns() - started) // 1000)

    def _record_outcome(self, served: NativeResponse, host: str, transport: Transport) -> None:
        """Note what an answer says about those at an address: that they are who they say, or that they are not."""
        if served.guess is not None:
            self.pools.record_guess(served.guess, host, transport)
        elif served.is_authentication_failure:
            self.pools.record_failed_proof(host, transport)
        elif served.identity:
            self.pools.proved(host, transport)

    def _log_request(self, served: NativeResponse, host: str, transport: Transport, microseconds: int) -> None:
        self.counts.served(transport, served.opcode, served.code, microseconds)
        if self.access is not None:
            how, opcode = transport.name.lower(), served.opcode
            self.access.log_request(host, how, opcode, served.code, served.name, microseconds, served.identity)

    def early_failure(self, code: ResponseCode, text: str) -> Reply:
        """What is answered to something that is no message."""
        return self.native_server.server.early_failure(code, text, self.time())

    def dropped(self, reason: str) -> None:
        """Something over UDP gets no answer, or a shorter one."""
        self.counts.dropped(reason)

    def close_expired_connections(self) -> None:
        """Cut connections whose time is up; about once a second."""
        now = self.now()
        for connection in [one for one in self.open if one.deadline < now]:
            self.counts.limited("slow connection")
            connection.cut()
