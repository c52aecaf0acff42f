"""The thread that appends for all callers, and the detection of entries that other processes and nodes append.

A commit costs one disk sync however many entries it has. While one is under way, requests queue up, and the next commit
takes them all: the busier the ledger, the larger the groups, and no caller waits for a timer.

A caller could commit by itself while no other thread writes. That saves a tenth on an idle machine, but with other
threads at work, one that both computes and syncs waits for a core after every sync: measured, a write took 3 ms instead
of 0.4 ms.

SQLite counts the commits of other connections (`data_version`); reading it takes microseconds, so it is polled 20 times
per second. PostgreSQL sends a notification with every commit; if one is lost with its connection, callers find the
entries at the next poll.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import text

from perseid.ledger.errors import TooBusy
from perseid.ledger.store.tables import CHANNEL

from .log import MAX_GROUP, Log
from .requests import Append, Outcome, Request

MAX_WAITING: Final = 20_000
"""Maximum queued requests: one second's worth at 20,000 per second. Further requests fail with `TooBusy`."""

MAX_WAITING_BYTES: Final = 256 << 20
"""Maximum bytes of queued data, because records may be large."""

MAX_GROUP_BYTES: Final = 32 << 20
"""Approximate bytes of data in one commit: bounds the wait of others, and the memory, which holds it twice."""

_REQUEST_OVERHEAD = 1_000  # a request without large data
_QueuedRequest = tuple[Request, int, "Future[Outcome]"]


class Writer:
    """Appends for several threads. `append` is `Log.append`; only the writer's own thread calls it."""

    def __init__(self, append: Callable[[Sequence[Request]], list[Outcome]], limit: int = MAX_WAITING) -> None:
        self._append = append
        self._waiting: queue.SimpleQueue[_QueuedRequest | None] = queue.SimpleQueue()
        self._limit = limit
        self._waiting_bytes = 0  # approximate
        self._turn = threading.Lock()  # held while writing
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ledger writer")
        self._thread.start()

    def submit(self, *requests: Request) -> "list[Future[Outcome]]":
        """Queue requests, all or none. A future is done when its request is on disk or has failed."""
        waiting: list[_QueuedRequest] = [(request, _request_size(request), Future()) for request in requests]
        size = sum(size for _, size, _ in waiting)
        with self._lock:
            if self._closing:
                raise TooBusy("the ledger is closing; nothing was written")
            full = self._waiting.qsize() + len(waiting) > self._limit or self._waiting_bytes + size > MAX_WAITING_BYTES
            if full and (self._waiting.qsize() or len(waiting) > self._limit):
                raise TooBusy("too many changes are queued. Nothing was written; retry later")
            self._waiting_bytes += size
            for one in waiting:
                self._waiting.put(one)
        return [future for _, _, future in waiting]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold back the queue while the caller writes by other means."""
        with self._turn:
            yield

    def close(self) -> None:
        """Refuse new requests, finish the queued ones, and end the thread."""
        with self._lock:
            first, self._closing = not self._closing, True
        if first:
            self._waiting.put(None)
        self._thread.join()
        with self._turn:  # wait for a load
            pass

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            with self._turn:
                self._commit(self._group(first))

    def _group(self, first: _QueuedRequest) -> list[_QueuedRequest]:
        """Take a request and everything queued after it, up to the limits."""
        group = [first]
        size = first[1]
        while len(group) < MAX_GROUP and size < MAX_GROUP_BYTES:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._waiting.put(None)  # for the next round
                break
            group.append(following)
            size += following[1]
        with self._lock:
            self._waiting_bytes -= size
        return group

    def _commit(self, group: list[_QueuedRequest]) -> None:
        # A request that was canceled is not executed.
        active = [(request, future) for request, _, future in group if future.set_running_or_notify_cancel()]
        try:
            outcomes = self._append([request for request, _ in active])
        except Exception as error:  # noqa: BLE001 - every caller gets the error
            for _, future in active:
                future.set_exception(error)
            return
        for (_, future), outcome in zip(active, outcomes, strict=True):
            future.set_result(outcome)


def _request_size(request: Request) -> int:
    """Estimate the memory of a request."""
    if isinstance(request, Append):
        return _REQUEST_OVERHEAD + sum(len(value.data) for draft in request.drafts for value in draft.values)
    return _REQUEST_OVERHEAD


INTERVAL: Final = 0.05
"""Seconds between two polls."""


class ChangeWatcher:
    """Reports when other processes may have appended entries. Belongs to one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connection = log.store.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._is_listening = log.store.dialect != "sqlite"
        if self._is_listening:
            self._connection.execute(text(f"LISTEN {CHANNEL}"))
        self._version = self._data_version()

    def close(self) -> None:
        """Close the connection; it is not returned to the pool, because it listens."""
        self._connection.invalidate()
        self._connection.close()

    def wait(self, stop: threading.Event) -> bool:
        """Wait for at most one interval; return whether other processes have committed."""
        if self._is_listening:
            driver: Any = self._connection.connection.dbapi_connection
            return any(True for _ in driver.notifies(timeout=INTERVAL, stop_after=1))
        stop.wait(INTERVAL)
        version = self._data_version()
        has_changed, self._version = version != self._version, version
        return has_changed

    def _data_version(self) -> int:
        if self._is_listening:
            return 0
        cursor = self._connection.connection.cursor()
        cursor.execute("PRAGMA data_version")
        row: Any = cursor.fetchone()
        return int(row[0])
