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
from perseid.server.observe.control_counts import ControlCounts
from perseid.server.processes.pools import Pools
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply

from .resolution import Answerer
from .server import NativeDoor
from .steps import Served, Work, drive_in_loop

if TYPE_CHECKING:
    from .tcp import Connection

_CODE = slice(24, 28)
_NAME = 48

_logger = logging.getLogger(__name__)


class NativeService:
    """The native protocol in the control process."""

    def __init__(
        self,
        door: NativeDoor,
        answerer: Answerer,
        pools: Pools,
        connections: Connections,
        counts: ControlCounts,
        access: AccessLog | None = None,
    ) -> None:
        self.door = door
        self.pools = pools
        self.connections = connections
        """Who is let in."""
        self.open: set[Connection] = set()
        """Connections, for those who look after them."""
        self.draining = False
        """Whether no connection is kept after its answer, because all is to end."""
        self.counts = counts
        self.access = access
        self.answerer = answerer
        self.now: Callable[[], float] = monotonic
        self.time: Callable[[], float] = time

    def answer_at_once(self, octets: bytes, host: str) -> bytes | None:
        """The answer to what came over TCP, if it is one whole public resolution; None if it is anything else."""
        if not self.door.resolves_over[Transport.TCP]:
            return None
        access = self.access
        began = perf_counter_ns() if access is not None else 0
        answer = self.answerer(octets)
        if answer is not None:
            code = answer[_CODE]
            self.counts.answered_at_once(code)
            if access is not None:
                end = _NAME + int.from_bytes(octets[44:_NAME], "big")
                took = (perf_counter_ns() - began) // 1000
                access.note(host, "tcp", OpCode.RESOLUTION, int.from_bytes(code, "big"), octets[_NAME:end], took)
        return answer

    async def served(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[Served, None]:
        """The answers to a message, as they are made; each is counted and noted."""
        began = perf_counter_ns()

        def do(work: Work) -> Awaitable[object]:
            return self.pools.do(work, host, transport)

        steps = self.door.steps(frame, host, self.time(), transport=transport)
        async with aclosing(drive_in_loop(steps, do)) as answers:
            async for served in answers:
                self._judge(served, host, transport)  # before the client knows, who might be quicker with the next one
                yield served
                if not served.more:
                    self._note(served, host, transport, (perf_counter_ns() - began) // 1000)

    def _judge(self, served: Served, host: str, transport: Transport) -> None:
        """Note what an answer says about those at an address: that they are who they say, or that they are not."""
        if served.guess is not None:
            self.pools.guessed(served.guess, host, transport)
        elif served.is_failed_proof:
            self.pools.failed_proof(host, transport)
        elif served.who:
            self.pools.proved(host, transport)

    def _note(self, served: Served, host: str, transport: Transport, microseconds: int) -> None:
        self.counts.served(transport, served.opcode, served.code, microseconds)
        if self.access is not None:
            how, opcode = transport.name.lower(), served.opcode
            self.access.note(host, how, opcode, served.code, served.name, microseconds, served.who)

    def early_failure(self, code: ResponseCode, text: str) -> Reply:
        """What is answered to something that is no message."""
        return self.door.server.early_failure(code, text, self.time())

    def dropped(self, reason: str) -> None:
        """Something over UDP gets no answer, or a shorter one."""
        self.counts.dropped(reason)

    def look_after_connections(self) -> None:
        """Cut connections whose time is up; about once a second."""
        now = self.now()
        for connection in [one for one in self.open if one.deadline < now]:
            self.counts.limited("slow connection")
            connection.cut()
