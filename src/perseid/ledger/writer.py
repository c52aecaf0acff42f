"""The writer: one thread that appends for everybody, many requests to a commit.

A commit costs a sync of the disk however many entries it holds. While one is under way requests gather, and the next
commit takes them all: the busier the ledger, the larger its groups, and nobody waits for a timer.

Handing a request to another thread and being woken by it costs a fifth of what a commit takes. So who waits for a
single write anyway, while nobody else has anything under way, does the work of the writer in its own thread.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from .errors import TooBusy
from .log import MAX_GROUP
from .requests import Append, Outcome, Request

MAX_WAITING: Final = 20_000
"""Requests that may wait: at 20,000 a second one second's worth. Who comes later is told at once to come back."""

MAX_OCTETS_WAITING: Final = 256 << 20
"""Octets of data that may wait: records may be large, and memory is not."""

MAX_OCTETS_IN_GROUP: Final = 32 << 20
"""Octets of data in one commit, about: what others wait for, and what is held twice while it is written."""

_SMALL = 1_000  # a request without large data
_ALONE = 16  # requests that somebody writes without the writer; those who bring more gain nothing by it
_Waiting = tuple[Request, int, "Future[Outcome]"]


class Writer:
    """Appends for several threads. `append` is `Log.append`, and is called by one thread at a time only."""

    def __init__(self, append: Callable[[Sequence[Request]], list[Outcome]], limit: int = MAX_WAITING) -> None:
        self._append = append
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._limit = limit
        self._octets = 0  # that wait, about
        self._under_way = 0  # requests that were handed in and are not answered yet
        self._turn = threading.Lock()  # of those who call `append`
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ledger writer")
        self._thread.start()

    def submit(self, *requests: Request) -> "list[Future[Outcome]]":
        """Hand requests in, all of them or none; each future is done when its request is on the disk, or has failed."""
        waiting: list[_Waiting] = [(request, _octets(request), Future()) for request in requests]
        octets = sum(size for _, size, _ in waiting)
        with self._lock:
            if self._closing:
                raise TooBusy("the ledger is being closed; nothing was written")
            full = self._waiting.qsize() + len(waiting) > self._limit or self._octets + octets > MAX_OCTETS_WAITING
            if full and (self._waiting.qsize() or len(waiting) > self._limit):
                raise TooBusy("too many changes are waiting; nothing was written, try again shortly")
            self._octets += octets
            self._under_way += len(waiting)
            for one in waiting:
                self._waiting.put(one)
        return [future for _, _, future in waiting]

    def append(self, *requests: Request) -> list[Outcome]:
        """Hand requests in and wait until they are on the disk, or have failed; in the order of handing in."""
        with self._lock:
            if self._closing:
                raise TooBusy("the ledger is being closed; nothing was written")
            alone = not self._under_way and len(requests) <= _ALONE and self._turn.acquire(blocking=False)
        if not alone:
            return [future.result() for future in self.submit(*requests)]
        try:
            return self._append(requests)
        finally:
            self._turn.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While somebody writes by other means: what is handed in waits."""
        with self._turn:
            yield

    def close(self) -> None:
        """Take no more requests, finish those that wait, and end the thread."""
        with self._lock:
            first, self._closing = not self._closing, True
        if first:
            self._waiting.put(None)
        self._thread.join()
        with self._turn:  # somebody may be doing the work of the writer
            pass

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            with self._turn:
                group = self._group(first)
                # Whoever has given up waiting does not get an entry either.
                wanted = [(request, future) for request, _, future in group if future.set_running_or_notify_cancel()]
                outcomes, error = self._commit([request for request, _ in wanted], len(group))
            # Only now, so that who is answered and writes again finds nothing under way.
            for _, future in wanted if error is not None else ():
                future.set_exception(error)
            for (_, future), outcome in zip(wanted, outcomes, strict=error is None):
                future.set_result(outcome)

    def _group(self, first: _Waiting) -> list[_Waiting]:
        """A request and everything that waits behind it."""
        group = [first]
        octets = first[1]
        while len(group) < MAX_GROUP and octets < MAX_OCTETS_IN_GROUP:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._waiting.put(None)  # for the next round
                break
            group.append(following)
            octets += following[1]
        with self._lock:
            self._octets -= octets
        return group

    def _commit(self, requests: list[Request], taken: int) -> tuple[list[Outcome], Exception | None]:
        """What became of requests, or why nothing did."""
        try:
            return self._append(requests), None
        except Exception as error:  # noqa: BLE001 - each of them must know why
            return [], error
        finally:
            with self._lock:
                self._under_way -= taken


def _octets(request: Request) -> int:
    """About how much memory a request takes."""
    if isinstance(request, Append):
        return _SMALL + sum(len(value.data) for value in request.draft.values)
    return _SMALL
