"""The progress of jobs as server-sent events.

Browsers and simple programs can watch a job:

    event: progress
    id: 500
    data: {"job":"…","state":"running","done":500,…}

`progress` is sent on every change, `end` when nothing more will come: the job has ended, or this server does not run
it. A comment line in between keeps the connection alive. Every event is complete, so missed ones do not matter and
`Last-Event-ID` has no effect. Each listener costs a connection and one read of the ledger per second, so their number
is limited, for all workers together.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.registry.results import Refused
from perseid.schema.common import ResponseBody
from perseid.server.limits.guesses import Source
from perseid.server.native.decisions import Busy
from perseid.server.state.jobs import LimitReached, SharedSlots
from perseid.server.state.state import SharedState

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
"""Seconds to wait for a job that this server does not run: a command or another node may."""

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
    is_running: bool
    """Whether this server runs the job."""


class Listeners:
    """The listeners of this process, and the number of all. Event loop only."""

    def __init__(self, state: SharedState | None = None) -> None:
        """`state` is that of all processes; without, only this process counts."""
        self.stopping = False
        """Whether the server is shutting down."""
        self.all: set[Listener] = set()
        self.slots = SharedSlots(SharedState.private() if state is None else state, "job_listeners")

    def add_listener(self, source: Source) -> "Listener":
        """Add a listener; raises `LimitReached`."""

        def check(total: int, of_source: int) -> None:
            if total >= MAX_LISTENERS or of_source >= MAX_LISTENERS_PER_SOURCE:
                raise LimitReached(
                    f"Limit of {MAX_LISTENERS_PER_SOURCE} listeners per address and {MAX_LISTENERS} in total reached"
                )

        listener = Listener(self.slots.acquire(repr(source), check), self)
        self.all.add(listener)
        return listener


@dataclass(eq=False)
class Listener:
    """One listener. It counts from the request on, before the job is read."""

    slot_id: bytes
    listeners: Listeners

    def leave(self) -> None:
        """Count no longer."""
        if self in self.listeners.all:
            self.listeners.all.discard(self)
            self.listeners.slots.release(self.slot_id)


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
        elif event.ended or (not event.is_running and idle_polls * POLL_SECONDS >= SILENT_SECONDS):
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
