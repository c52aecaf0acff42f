"""Turns of work in an event loop: one piece per iteration, so that everybody else waits for one piece at most.

Pages and searches take some tenths of a millisecond each. Many at once would delay the responses that take
microseconds. So the first piece of an iteration runs at once, and the others wait for the next iterations, in which the
loop also does everything else. Addresses take turns: a client waits for one piece of each other address, not for all
pieces of the busiest.
"""

import asyncio
from collections import deque
from typing import Final

MAX_WAITING: Final = 512
"""Pieces that wait in total: a quarter of a second of work."""

MAX_WAITING_PER_SOURCE: Final = 128
"""Pieces of one source that wait: a browser has six connections, and an office some dozens."""


class TooManyWaiting(Exception):
    """Too many pieces wait already, in total or of one source."""


class Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        self._count = 0
        self._is_taken = False

    @property
    def waiting(self) -> int:
        """Pieces that wait."""
        return self._count

    async def take(self, source: object) -> None:
        """Wait for a turn; the piece is what follows until the next `await`. Raises `TooManyWaiting`."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on)
            return
        queue = self._waiting.get(source)
        if self._count >= MAX_WAITING or (queue is not None and len(queue) >= MAX_WAITING_PER_SOURCE):
            raise TooManyWaiting
        turn = loop.create_future()
        if queue is None:
            queue = self._waiting[source] = deque()
        queue.append(turn)
        self._count += 1
        await turn

    def _pass_on(self) -> None:
        """Give the next turn to the source that has waited longest."""
        while self._waiting:
            source, queue = next(iter(self._waiting.items()))
            del self._waiting[source]
            turn = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[source] = queue  # behind the others
            if not turn.done():  # not cancelled
                turn.set_result(None)
                turn.get_loop().call_soon(self._pass_on)  # after the piece
                return
        self._is_taken = False
