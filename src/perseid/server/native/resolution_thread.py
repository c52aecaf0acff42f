"""The thread of the compiled module that reads the native sockets of a worker, as the event loop sees it.

The thread answers public resolution over UDP and TCP without Python. Everything else it puts into queues, from which
the event loop takes it as if it had read it from the sockets: also public resolution while there is no usable view,
because the event loop opens each generation of the view first. If the event loop leaves its queues alone for a tenth of
a second, the thread stops reading, and other workers serve the sockets. If the thread is stuck, the worker does not say
that it is alive.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final

from perseid.compiled import describe, native
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.server.limits.connections import ConnectionLimits
from perseid.server.limits.udp import TOO_MUCH_TEXT, TrafficLimit
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.metrics import WorkerCounters
from perseid.server.processes.datagrams import DatagramSocket, ReturnAddress, wrap_socket
from perseid.wire.codes import OpCode

from .resolution import ResolutionSettings

STUCK_SECONDS: Final = 1.0
"""Seconds without a sign of the thread after which it is considered stuck. It gives one at least every 0.1 s, and on a
busy machine it waits for the processor like the event loop."""

RETRY_SECONDS: Final = 0.05
"""Seconds until the queues are emptied further after an error, which the event loop logs."""

_EVENT_SIZE: Final = 8  # bytes of an eventfd
_logger = logging.getLogger(__name__)


class TakenDatagrams:
    """Datagrams that the thread has read, with the interface of a socket."""

    def __init__(self) -> None:
        self._datagrams: deque[tuple[bytes, ReturnAddress]] = deque()

    def __bool__(self) -> bool:
        return bool(self._datagrams)

    def add(self, datagrams: list[tuple[bytes, ReturnAddress]]) -> None:
        self._datagrams += datagrams

    def receive(self, _: int) -> tuple[bytes, ReturnAddress]:
        if not self._datagrams:
            raise BlockingIOError
        return self._datagrams.popleft()


class ResolutionThread:
    """The thread of a UDP socket, or none, and of listening TCP sockets. All methods are for the event loop."""

    def __init__(
        self,
        udp: socket.socket | None,
        listeners: Sequence[socket.socket],
        answers: AnswersReader,
        counts: WorkerCounters,
    ) -> None:
        for listener in listeners:
            listener.setblocking(False)
        self.sockets = frozenset((*listeners, *([] if udp is None else [udp])))
        """The sockets that it reads."""
        self._udp: DatagramSocket | None = None if udp is None else wrap_socket(udp)
        self.compiled = native.Loop(-1 if udp is None else udp.fileno(), [listener.fileno() for listener in listeners])
        self.access: dict[str, AccessLog | None] = {}
        """The access logs, by transport."""
        self._answers = answers
        self._is_running = False
        self._takes: list[Callable[[], bool]] = []
        self._datagrams = TakenDatagrams()
        self._can_resolve = True
        self._counts = counts
        counts.compiled = self.compiled

    def configure(self, settings: ResolutionSettings, limit: TrafficLimit, *, resolves: bool, logs: bool) -> None:
        """Replace the settings of resolution and of UDP. What the module cannot do is left to Python.

        These are sites with several servers, because Python knows who is responsible, and many exempt networks.
        """
        buckets = limit.buckets
        networks, several = len(buckets.exempt), settings.servers > 1
        can_resolve = networks <= native.MAX_NETWORKS and not several
        if self._can_resolve and not can_resolve:
            how = describe(enabled=True, exempt_networks=networks, several_servers=several)
            _logger.warning("public resolution over UDP and TCP runs %s", how)
        self._can_resolve = can_resolve
        if networks > native.MAX_NETWORKS:
            buckets = replace(buckets, exempt=())
        self.compiled.configure(settings, buckets, TOO_MUCH_TEXT, resolves=resolves and can_resolve, logs=logs)

    def configure_tcp(self, limits: ConnectionLimits, *, resolves: bool, logs: bool) -> None:
        """Replace the settings of TCP, after those of resolution."""
        self.compiled.configure_tcp(limits, resolves=resolves and self._can_resolve, logs=logs)

    def start(self, loop: asyncio.AbstractEventLoop, take: Callable[[], bool]) -> None:
        """Start reading; `take` is called when something waits, until it returns False."""
        if take not in self._takes:
            self._takes.append(take)
        if self._is_running:
            return
        has_more = False

        def take_some() -> None:
            nonlocal has_more
            has_more = True
            try:
                has_more = self._take()
            except Exception:
                # The thread says nothing more while its queues are not emptied.
                loop.call_later(RETRY_SECONDS, take_some)
                raise
            if has_more:
                loop.call_soon(take_some)

        def wake() -> None:
            with suppress(BlockingIOError):
                os.read(self.compiled.fileno(), _EVENT_SIZE)
            if not has_more:  # otherwise it is called anyway, and other work gets its turn in between
                take_some()

        loop.add_reader(self.compiled.fileno(), wake)
        self.compiled.start()
        self._is_running = True

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop reading all sockets; what was read is taken, and connections without a request are closed."""
        if not self._is_running:
            return
        self.compiled.stop()
        self._is_running = False
        loop.remove_reader(self.compiled.fileno())
        while self._take():
            pass

    def _take(self) -> bool:
        """Take some of what waits; return whether there may be more."""
        is_more = max([take() for take in self._takes])
        self.use_view()
        for transport, host, code, name, microseconds in (lines := self.compiled.take_log()):
            if (access := self.access.get(transport)) is not None:
                access.log_request(host, transport, OpCode.RESOLUTION, code, name, microseconds)
        return is_more or bool(lines)

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or should not."""
        return not self._is_running or monotonic() - self.compiled.last_beat < STUCK_SECONDS

    def take_datagrams(self) -> TakenDatagrams | None:
        """Take some datagrams for the event loop, unless it has left some of the last; None if there are none."""
        if not self._datagrams and self._udp is not None:
            find = self._udp.return_address
            self._datagrams.add([(each, find(sender, info)) for each, sender, info in self.compiled.take_datagrams()])
        return self._datagrams or None

    def use_view(self) -> None:
        """Have it answer from the generation of the view that is open."""
        self.compiled.use(self._answers.environment)

    def collect_tally(self) -> None:
        """Add what it has counted to the tally of the worker."""
        self._counts.tally.add(*self.compiled.take_tally())
