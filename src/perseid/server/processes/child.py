"""What every child process of the supervisor has: its options, its heartbeat, and messages in both directions.

options = parse_options(WorkerOptions, sys.argv[1])
supervisor = SupervisorLink(options)
with supervisor.starting():        # while it opens files and databases
    ...
supervisor.report("ready", True)   # after that, call beat() every BEAT_SECONDS
news = supervisor.read_news()      # when options.news is readable; None at the end of the supervisor
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, TypeVar

from perseid.server.observe.counters import SharedCounters

BEAT_SECONDS: Final = 0.1
"""Seconds between two heartbeats: two within the time after which a worker is considered silent."""

START_SECONDS: Final = 600.0
"""Seconds for a process to start: opening databases may be slow. It says meanwhile that it is alive."""

_MAX_NEWS_BYTES = 1 << 20  # far more than the supervisor ever sends at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """Options that the supervisor passes to each child process. Integers without a comment are descriptors."""

    directory: str
    """The installation."""
    state: str
    """The runtime directory, with the shared state."""
    name: str
    """Its name in the log and the metrics."""
    number: int
    """Its slot in the shared counters."""
    is_first: bool
    """Whether the whole server is starting, and not only this process."""
    accept_clock: bool
    counters: int
    status: int
    """Pipe to the supervisor."""
    news: int
    """Pipe from the supervisor; end of file means that the supervisor has ended."""
    lock: int = -1
    """Keeps the runtime directory in use as long as the process runs."""


OptionsT = TypeVar("OptionsT", bound=ChildOptions)


def parse_options(kind: type[OptionsT], text: str) -> OptionsT:
    """Parse the command line argument of a child process."""
    return kind(**json.loads(text))


@dataclass(frozen=True, slots=True)
class News:
    """State of the server's processes."""

    processes: dict[str, int] = field(default_factory=dict)
    """Process ids by name."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Number of restarts by kind of process."""
    silent: tuple[int, ...] = ()
    """Workers whose sockets the others serve, too."""
    has_writer: bool = False
    """Whether the writer is ready."""
    is_stopping: bool = False
    """Whether the whole server stops."""


class SupervisorLink:
    """The connection to the supervisor."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self.counters = SharedCounters(options.counters)
        self.news = News()
        """The last news."""
        self._unread = b""

    def beat(self) -> None:
        """Say that this process is alive."""
        self.counters.beat(self._options.number, monotonic())

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Say that this process is alive, from a thread, while the block opens files and databases."""
        ended, deadline = threading.Event(), monotonic() + START_SECONDS

        def beat() -> None:
            while monotonic() < deadline:
                self.beat()
                if ended.wait(BEAT_SECONDS):
                    return

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def report(self, kind: str, value: Any = True) -> None:
        """Send a message: `ready` with whether the ledger is open, `reloaded`, `jobs`, or a `problem` with its text."""
        with suppress(BrokenPipeError):  # the supervisor has ended; `read_news` notices too
            os.write(self._options.status, json.dumps({kind: value}).encode() + b"\n")

    def wait_for_writer(self) -> bool:
        """Wait until the writer is ready; False if the supervisor has ended."""
        while not self.news.has_writer:
            if self.read_news() is None:
                return False
        return True

    def read_news(self) -> News | None:
        """Read the supervisor's lines, of which only the last one matters; return None if it has ended."""
        data = os.read(self._options.news, _MAX_NEWS_BYTES)
        *lines, self._unread = (self._unread + data).split(b"\n")
        if lines:
            self.news = News(**json.loads(lines[-1]))
        return self.news if data else None
