"""Noticing what other processes and nodes append.

SQLite counts the commits of others (`data_version`); asking costs microseconds, so it is asked twenty times a second.
PostgreSQL sends a notification with every commit; should one be lost with its connection, the same interval of asking
finds the entries all the same.

The writer: one thread that appends for everybody, many requests to a commit.

A commit costs a sync of the disk however many entries it holds. While one is under way requests gather, and the next
commit takes them all: the busier the ledger, the larger its groups, and nobody waits for a timer.

A caller that waits, while nobody else writes, could do the work itself. That saves a tenth where nothing else is to be
done. Where others work, too, a thread that both computes and waits for the disk is made to wait for a core after every
sync: measured, 0.4 ms a write became 3 ms. So it is not done.
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

from .entry import Entry
from .log import MAX_GROUP, Log
from .requests import Append, Outcome, Request

INTERVAL: Final = 0.05
"""Seconds between two looks."""


class ChangeWatcher:
    """Tells when there may be new entries of others. Belongs to one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connection = log.store.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._is_listening = log.store.dialect != "sqlite"
        if self._is_listening:
            self._connection.execute(text(f"LISTEN {CHANNEL}"))
        self._version = self._data_version()

    def close(self) -> None:
        """End the connection; it is not given back to others, for it listens."""
        self._connection.invalidate()
        self._connection.close()

    def wait(self, stop: threading.Event) -> bool:
        """Wait one interval at most; whether others have committed something, as far as can be told."""
        if self._is_listening:
            driver: Any = self._connection.connection.dbapi_connection
            return any(True for _ in driver.notifies(timeout=INTERVAL, stop_after=1))
        stop.wait(INTERVAL)
        version = self._data_version()
        moved, self._version = version != self._version, version
        return moved

    def _data_version(self) -> int:
        if self._is_listening:
            return 0
        cursor = self._connection.connection.cursor()
        cursor.execute("PRAGMA data_version")
        row: Any = cursor.fetchone()
        return int(row[0])


def follow(log: Log, after: int, stop: threading.Event) -> Iterator[Entry]:
    """The entries behind one, in order, and then those that are appended, as they come, until `stop` is set."""
    watch = ChangeWatcher(log)
    try:
        while not stop.is_set():
            with log.reading() as reading:
                found = list(reading.log(after, after + 1_000))
            yield from found
            if found:
                after = found[-1].seq
            else:
                watch.wait(stop)
    finally:
        watch.close()


MAX_WAITING: Final = 20_000
"""Requests that may wait: at 20,000 a second one second's worth. Who comes later is told at once to come back."""

MAX_WAITING_BYTES: Final = 256 << 20
"""Octets of data that may wait: records may be large, and memory is not."""

MAX_GROUP_BYTES: Final = 32 << 20
"""Octets of data in one commit, about: what others wait for, and what is held twice while it is written."""

_REQUEST_OVERHEAD = 1_000  # a request without large data
_QueuedRequest = tuple[Request, int, "Future[Outcome]"]


class Writer:
    """Appends for several threads. `append` is `Log.append`, and is called by the writer's own thread only."""

    def __init__(self, append: Callable[[Sequence[Request]], list[Outcome]], limit: int = MAX_WAITING) -> None:
        self._append = append
        self._waiting: queue.SimpleQueue[_QueuedRequest | None] = queue.SimpleQueue()
        self._limit = limit
        self._waiting_bytes = 0  # that wait, about
        self._turn = threading.Lock()  # of those who write
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ledger writer")
        self._thread.start()

    def submit(self, *requests: Request) -> "list[Future[Outcome]]":
        """Hand requests in, all of them or none; each future is done when its request is on the disk, or has failed."""
        waiting: list[_QueuedRequest] = [(request, _request_size(request), Future()) for request in requests]
        size = sum(size for _, size, _ in waiting)
        with self._lock:
            if self._closing:
                raise TooBusy("the ledger is being closed; nothing was written")
            full = self._waiting.qsize() + len(waiting) > self._limit or self._waiting_bytes + size > MAX_WAITING_BYTES
            if full and (self._waiting.qsize() or len(waiting) > self._limit):
                raise TooBusy("too many changes are waiting; nothing was written, try again shortly")
            self._waiting_bytes += size
            for one in waiting:
                self._waiting.put(one)
        return [future for _, _, future in waiting]

    @contextmanager
    def locked(self) -> Iterator[None]:
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
        with self._turn:  # somebody may be writing by other means
            pass

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            with self._turn:
                self._commit(self._group(first))

    def _group(self, first: _QueuedRequest) -> list[_QueuedRequest]:
        """A request and everything that waits behind it."""
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
        # Whoever has given up waiting does not get an entry either.
        wanted = [(request, future) for request, _, future in group if future.set_running_or_notify_cancel()]
        try:
            outcomes = self._append([request for request, _ in wanted])
        except Exception as error:  # noqa: BLE001 - each of them must know why
            for _, future in wanted:
                future.set_exception(error)
            return
        for (_, future), outcome in zip(wanted, outcomes, strict=True):
            future.set_result(outcome)


def _request_size(request: Request) -> int:
    """About how much memory a request takes."""
    if isinstance(request, Append):
        return _REQUEST_OVERHEAD + sum(len(value.data) for value in request.draft.values)
    return _REQUEST_OVERHEAD
