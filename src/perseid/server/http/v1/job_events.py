"""Progress of a job as server-sent events, for browsers and simple programs.

    event: progress
    id: 500
    data: {"job":"…","state":"running","done":500,…}

`progress` is sent on every change, `end` when nothing more will come: the job has ended, or no process runs it. A
comment line in between keeps the connection alive. Every event is complete, so missed ones do not matter and
`Last-Event-ID` has no effect.

Each listener costs a connection and one read of the ledger per second, so their number is limited.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.registry.results import Refused
from perseid.schema.common import ResponseBody
from perseid.server.limits.budgets import Source
from perseid.server.native.decisions import Busy

from .job_runner import LimitReached

MEDIA_TYPE: Final = "text/event-stream"

MAX_LISTENERS: Final = 64
"""Listeners in total."""

MAX_LISTENERS_PER_SOURCE: Final = 4
"""Listeners per address: a browser has six connections to a server."""

POLL_SECONDS: Final = 1.0
"""Seconds between two reads of the job."""

HEARTBEAT_SECONDS: Final = 15
"""Seconds without change after which a comment is sent; most proxies wait for a minute."""

SILENT_SECONDS: Final = 60
"""Seconds to wait for a job that this process does not run: another process may."""

MAX_SECONDS: Final = 3_600
"""Longest connection in seconds; a browser then reconnects by itself."""

RETRY_FIELD: Final = b"retry: 2000\n\n"
"""Milliseconds after which a browser reconnects."""

HEARTBEAT: Final = b":\n\n"

PROGRESS: Final = "progress"
END: Final = "end"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """The state of a job."""

    response: ResponseBody
    done: int
    ended: bool
    """Whether the job is complete or failed."""
    is_running_here: bool
    """Whether this process runs the job."""


@dataclass(slots=True)
class Listeners:
    """All listeners. Event loop only."""

    stopping: bool = False
    """Whether the server is shutting down."""
    _all: "WeakSet[Listener]" = field(default_factory=WeakSet)  # a dropped listener no longer counts

    def add_listener(self, source: Source) -> "Listener":
        """Add a listener; raises `LimitReached`."""
        source_count = sum(source == other.source for other in self._all)
        if len(self._all) >= MAX_LISTENERS or source_count >= MAX_LISTENERS_PER_SOURCE:
            raise LimitReached(
                f"Limit of {MAX_LISTENERS_PER_SOURCE} listeners per address and {MAX_LISTENERS} in total reached"
            )
        listener = Listener(self, source)
        self._all.add(listener)
        return listener

    def remove_listener(self, listener: "Listener") -> None:
        """Remove a listener."""
        self._all.discard(listener)


class Listener(AsyncIterator[bytes]):
    """One listener and its events. It counts from the request on, before the job is read."""

    def __init__(self, listeners: Listeners, source: Source) -> None:
        self.source = source
        self._listeners = listeners
        self._events: AsyncGenerator[bytes, None] | None = None

    def listen(self, poll: Callable[[], Awaitable[JobEvent]]) -> None:
        """Send the events that polling finds."""
        self._events = stream_events(poll, self._listeners)

    def leave(self) -> None:
        """Stop listening. Does nothing the second time."""
        self._listeners.remove_listener(self)

    async def __anext__(self) -> bytes:
        assert self._events is not None  # noqa: S101 - `listen` comes first
        try:
            return await anext(self._events)
        except BaseException:  # also at the end of the stream
            self.leave()
            raise

    async def aclose(self) -> None:
        self.leave()
        if self._events is not None:
            await self._events.aclose()


async def stream_events(poll: Callable[[], Awaitable[JobEvent]], listeners: Listeners) -> AsyncGenerator[bytes, None]:
    """Generate the events of a listener.

    An empty chunk means no change; sending it shows whether the client is still connected.
    """
    yield RETRY_FIELD
    event: JobEvent | None = None
    idle_polls = 0
    for _ in range(int(MAX_SECONDS / POLL_SECONDS)):
        last = event
        try:
            event = await poll()
        except Busy:
            pass  # keep the last state until the next poll
        except (Refused, LedgerError):
            return  # no longer visible or readable; a new request gets the reason
        is_new = event is not None and (last is None or event.response != last.response)
        idle_polls = 0 if is_new else idle_polls + 1
        if event is None:
            yield b""
        elif event.ended or (not event.is_running_here and idle_polls * POLL_SECONDS >= SILENT_SECONDS):
            yield format_event(END, event)
            return
        elif is_new:
            yield format_event(PROGRESS, event)
        else:
            yield HEARTBEAT if idle_polls % round(HEARTBEAT_SECONDS / POLL_SECONDS) == 0 else b""
        if listeners.stopping:
            return
        await asyncio.sleep(POLL_SECONDS)


def format_event(name: str, event: JobEvent) -> bytes:
    """Format one event."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), event.done, msgspec.json.encode(event.response))
