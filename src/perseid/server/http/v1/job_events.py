"""How far a unit has come, told while it goes on: server-sent events, as browsers and simple programs read them.

    event: progress
    id: 500
    data: {"operation":"…","state":"running","done":500,…}

`progress` is sent whenever something is new, and `end` when nothing more is to come: the unit has ended, or nobody is
at it. A line with a colon goes out in between, so that nobody on the way takes the connection for dead. All there is to
say is in each event, so whoever has missed some has missed nothing: `Last-Event-ID` changes nothing.

Each listener costs a connection and a look at the ledger a second, so there is a limit to how many there are.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.registry.results import Refused
from perseid.server.limits.budgets import Source
from perseid.server.native.decisions import Busy

from .job_runs import LimitReached
from .structures import ResponseBody

MEDIA_TYPE: Final = "text/event-stream"

MAX_LISTENERS: Final = 64
"""Listeners in all."""

MAX_LISTENERS_PER_SOURCE: Final = 4
"""Listeners at one address: a browser has six connections to a server in all."""

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether something is new."""

HEARTBEAT_SECONDS: Final = 15
"""After how long without news a line goes out all the same; proxies wait for a minute, mostly."""

SILENT_SECONDS: Final = 60
"""For how long a unit is listened to at which nobody here is: another process may be."""

MAX_SECONDS: Final = 3_600
"""How long a listener may stay; a browser then comes again by itself."""

RETRY_FIELD: Final = b"retry: 2000\n\n"
"""After how many milliseconds it does."""

HEARTBEAT: Final = b":\n\n"

PROGRESS: Final = "progress"
END: Final = "end"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """How far a unit has come."""

    response: ResponseBody
    done: int
    ended: bool
    """Whether it has come to its end, or ended early."""
    is_running_here: bool
    """Whether this process carries it out."""


@dataclass(slots=True)
class Listeners:
    """Who listens; for the event loop alone."""

    stopping: bool = False
    """Whether the server is about to end."""
    _all: "WeakSet[Listener]" = field(default_factory=WeakSet)  # who is forgotten somewhere on the way has left

    def add_listener(self, source: Source) -> "Listener":
        """Somebody who listens from now on, until they leave; raises `TooMany` if there is no room."""
        source_count = sum(source == other.source for other in self._all)
        if len(self._all) >= MAX_LISTENERS or source_count >= MAX_LISTENERS_PER_SOURCE:
            raise LimitReached(
                f"{MAX_LISTENERS_PER_SOURCE} listeners at an address, and {MAX_LISTENERS} in all, are the most"
            )
        listener = Listener(self, source)
        self._all.add(listener)
        return listener

    def remove_listener(self, listener: "Listener") -> None:
        """Somebody listens no more."""
        self._all.discard(listener)


class Listener(AsyncIterator[bytes]):
    """Somebody who listens, and what they are sent. They count from when they ask, before anything is looked up."""

    def __init__(self, listeners: Listeners, source: Source) -> None:
        self.source = source
        self._listeners = listeners
        self._events: AsyncGenerator[bytes, None] | None = None

    def listen(self, poll: Callable[[], Awaitable[JobEvent]]) -> None:
        """Be told what looking finds."""
        self._events = stream_events(poll, self._listeners)

    def leave(self) -> None:
        """Listen no more. Nothing happens if they have left."""
        self._listeners.remove_listener(self)

    async def __anext__(self) -> bytes:
        assert self._events is not None  # noqa: S101 - whoever is sent something listens
        try:
            return await anext(self._events)
        except BaseException:  # the end, too
            self.leave()
            raise

    async def aclose(self) -> None:
        """Leave, wherever it is."""
        self.leave()
        if self._events is not None:
            await self._events.aclose()


async def stream_events(poll: Callable[[], Awaitable[JobEvent]], listeners: Listeners) -> AsyncGenerator[bytes, None]:
    """What a listener is sent. It begins when it is first asked for something.

    An empty piece says that nothing is new, so that whoever sends it can see whether the client is still there.
    """
    yield RETRY_FIELD
    event: JobEvent | None = None
    idle_polls = 0  # looks without news
    for _ in range(int(MAX_SECONDS / LOOK_SECONDS)):
        last = event
        try:
            event = await poll()
        except Busy:
            pass  # what was known counts until there is time to look again
        except (Refused, LedgerError):
            return  # who listens may not know it any more, or nobody can look; who comes again is told why
        is_new = event is not None and (last is None or event.response != last.response)
        idle_polls = 0 if is_new else idle_polls + 1
        if event is None:
            yield b""
        elif event.ended or (not event.is_running_here and idle_polls * LOOK_SECONDS >= SILENT_SECONDS):
            yield format_event(END, event)
            return
        elif is_new:
            yield format_event(PROGRESS, event)
        else:
            yield HEARTBEAT if idle_polls % round(HEARTBEAT_SECONDS / LOOK_SECONDS) == 0 else b""
        if listeners.stopping:
            return
        await asyncio.sleep(LOOK_SECONDS)


def format_event(name: str, event: JobEvent) -> bytes:
    """One event."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), event.done, msgspec.json.encode(event.response))
