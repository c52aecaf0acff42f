"""The writer: one thread that appends for everybody, many requests to a commit.

A commit costs a sync of the disk however many entries it holds. While one is under way requests gather, and the next
commit takes them all: the busier the ledger, the larger its groups, and nobody waits for a timer.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from .errors import TooBusy
from .log import MAX_GROUP
from .requests import Failed, Outcome, Request

MAX_WAITING: Final = 20_000
"""Requests that may wait: at 20,000 a second one second's worth. Who comes later is told at once to come back."""

_Waiting = tuple[Request, "Future[Outcome]"]


class Writer:
    """Appends for several threads. `append` is `Log.append`, and is called by the writer's own thread only."""

    def __init__(self, append: Callable[[Sequence[Request]], list[Outcome]], limit: int = MAX_WAITING) -> None:
        self._append = append
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(limit)
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ledger writer")
        self._thread.start()

    def submit(self, request: Request) -> "Future[Outcome]":
        """Hand a request in; its future is done when the entry is on the disk, or when it has failed."""
        future: Future[Outcome] = Future()
        with self._lock:
            if self._closing:
                raise TooBusy("the ledger is being closed")
            try:
                self._waiting.put_nowait((request, future))
            except queue.Full:
                raise TooBusy("too many changes are waiting; try again shortly") from None
        return future

    def close(self) -> None:
        """Take no more requests, finish those that wait, and end the thread."""
        with self._lock:
            first, self._closing = not self._closing, True
        if first:
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            self._commit(group)

    def _next_group(self) -> list[_Waiting] | None:
        """Everything that waits, at least one request; None when there will be no more."""
        first = self._waiting.get()
        if first is None:
            return None
        group = [first]
        while len(group) < MAX_GROUP:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._waiting.put(None)  # for the next round
                break
            group.append(following)
        return group

    def _commit(self, group: list[_Waiting]) -> None:
        # Whoever has given up waiting does not get an entry either.
        group = [(request, future) for request, future in group if future.set_running_or_notify_cancel()]
        try:
            outcomes = self._append([request for request, _ in group])
        except Exception as error:  # noqa: BLE001 - nothing was written, and each of them must know why
            for _, future in group:
                future.set_exception(error)
            return
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Failed):
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome)
