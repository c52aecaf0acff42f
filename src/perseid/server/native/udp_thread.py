"""The thread of the compiled module that reads the UDP socket of a worker, as the event loop sees it.

The thread answers public resolution without Python. Everything else it puts into a queue, from which the event loop
takes it as if it had read it from the socket: also public resolution while there is no usable view, because the event
loop opens each generation of the view first. If the event loop leaves its queue alone for a tenth of a second, the
thread stops reading, and other workers serve the socket. If the thread is stuck, the worker does not say that it is
alive.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final

from perseid.compiled import describe, native
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.server.limits.udp import TOO_MUCH_TEXT, TrafficLimit
from perseid.server.observe.metrics import WorkerCounters
from perseid.server.processes.datagrams import ReturnAddress, wrap_socket

from .resolution import ResolutionSettings

STUCK_SECONDS: Final = 1.0
"""Seconds without a sign of the thread after which it is considered stuck. It gives one at least every 0.1 s, and on a
busy machine it waits for the processor like the event loop."""

_EVENT_SIZE: Final = 8  # bytes of an eventfd
_logger = logging.getLogger(__name__)


class TakenDatagrams:
    """Datagrams that the thread has read, with the interface of a socket."""

    def __init__(self, datagrams: list[tuple[bytes, ReturnAddress]]) -> None:
        self._datagrams = deque(datagrams)

    def receive(self, _: int) -> tuple[bytes, ReturnAddress]:
        if not self._datagrams:
            raise BlockingIOError
        return self._datagrams.popleft()


class UdpThread:
    """The thread of one socket. All methods are for the event loop."""

    def __init__(self, udp: socket.socket, answers: AnswersReader, counts: WorkerCounters) -> None:
        self.socket = udp
        self.wrapped = wrap_socket(udp)
        self.port: int = udp.getsockname()[1]
        self.compiled = native.UdpLoop(udp.fileno())
        self._answers = answers
        self._is_running = False
        self._can_resolve = True
        self._counts = counts
        counts.compiled = self.compiled

    def configure(self, settings: ResolutionSettings, limit: TrafficLimit, *, resolves: bool, logs: bool) -> None:
        """Replace the settings. What the module cannot do is left to Python, request by request.

        These are sites with several servers, because Python knows who is responsible, and many exempt networks.
        """
        buckets = limit.buckets
        networks, several = len(buckets.exempt), settings.servers > 1
        can_resolve = networks <= native.MAX_NETWORKS and not several
        if self._can_resolve and not can_resolve:
            how = describe(enabled=True, exempt_networks=networks, several_servers=several)
            _logger.warning("public resolution over UDP runs %s", how)
        self._can_resolve = can_resolve
        if networks > native.MAX_NETWORKS:
            buckets = replace(buckets, exempt=())
        self.compiled.configure(settings, buckets, TOO_MUCH_TEXT, resolves=resolves and can_resolve, logs=logs)

    def start(self, loop: asyncio.AbstractEventLoop, take: Callable[[], bool]) -> None:
        """Start reading; `take` is called when something waits, until it returns False."""
        has_more = False

        def take_some() -> None:
            nonlocal has_more
            has_more = False
            if take():
                has_more = True
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
        """Stop reading; what was read can be taken."""
        self.compiled.stop()
        self._is_running = False
        loop.remove_reader(self.compiled.fileno())

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or should not."""
        return not self._is_running or monotonic() - self.compiled.last_beat < STUCK_SECONDS

    def take(self) -> TakenDatagrams | None:
        """Take some datagrams for the event loop; None if there are none."""
        taken = self.compiled.take_datagrams()
        if not taken:
            return None
        find = self.wrapped.return_address
        return TakenDatagrams([(datagram, find(sender, info)) for datagram, sender, info in taken])

    def use_view(self) -> None:
        """Have it answer from the generation of the view that is open."""
        self.compiled.use(self._answers.environment)

    def collect_tally(self) -> None:
        """Add what it has counted to the tally of the worker."""
        self._counts.tally.add(*self.compiled.take_tally())
