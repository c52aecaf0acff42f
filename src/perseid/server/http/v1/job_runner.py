"""Execution of jobs in the background, step by step, and their progress as server-sent events.

`registry.jobs.runner` runs a job; here it gets time, retries and limits. A job is durable after each step, so nothing
here needs to be stored: when the server stops, every job remains at its last step, and a request can resume it. Each
step runs in the pools, on the budget of the user who started it. The pause between two steps is as long as a step, so
that a large job leaves room for others. Everything else runs in the event loop.

Browsers and simple programs can watch a job:

    event: progress
    id: 500
    data: {"job":"…","state":"running","done":500,…}

`progress` is sent on every change, `end` when nothing more will come: the job has ended, or no process runs it. A
comment line in between keeps the connection alive. Every event is complete, so missed ones do not matter and
`Last-Event-ID` has no effect. Each listener costs a connection and one read of the ledger per second, so their number
is limited.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perseid.ledger.errors import Contention, JobEnded, LedgerError, TooBusy
from perseid.registry.identity import Identity, quota_key
from perseid.registry.jobs.runner import JobRun, acts_for
from perseid.registry.results import Refused
from perseid.schema.common import ResponseBody
from perseid.schema.problems import Problem
from perseid.server.limits.guesses import Source
from perseid.server.native.decisions import Busy
from perseid.server.native.work import WorkKind

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
    all: "set[Listener]" = field(default_factory=set)

    def add_listener(self, source: Source) -> "Listener":
        """Add a listener; raises `LimitReached`."""
        source_count = sum(source == other.source for other in self.all)
        if len(self.all) >= MAX_LISTENERS or source_count >= MAX_LISTENERS_PER_SOURCE:
            raise LimitReached(
                f"Limit of {MAX_LISTENERS_PER_SOURCE} listeners per address and {MAX_LISTENERS} in total reached"
            )
        listener = Listener(source, self)
        self.all.add(listener)
        return listener


@dataclass(eq=False)
class Listener:
    """One listener. It counts from the request on, before the job is read."""

    source: Source
    listeners: Listeners

    def leave(self) -> None:
        """Count no longer."""
        self.listeners.all.discard(self)


class EventResponse(StreamingResponse):
    """The events of one listener."""

    def __init__(self, events: AsyncGenerator[bytes, None], listener: Listener) -> None:
        # Buffering proxies would hold events back.
        headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers)
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listener.leave()


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


MAX_RUNNING: Final = 8
"""Jobs that run at the same time. There is one writer, so more would not be faster."""

MAX_RUNNING_PER_IDENTITY: Final = 2
"""Running jobs of one identity, all its tokens together."""

EXTRA_FOR_UNDO: Final = 2
"""Additional jobs for undo, so that a user at the limit can still undo."""

RETRY_SECONDS: Final = 1.0
"""Seconds before a step is retried when the server is busy."""

MAX_RETRIES: Final = 60
"""Retries in a row; after a minute the job fails."""

MAX_FAILURES: Final = 1_000
"""Failures that are kept; the oldest is dropped."""

MIN_PAUSE: Final = 0.001
"""Shortest pause between two steps, in seconds."""

T = TypeVar("T")


class LimitReached(Exception):
    """A limit is reached; the message says which."""


class RunInPool(Protocol):
    """Runs work in a pool; raises `Busy`."""

    def __call__(self, kind: WorkKind, call: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A job to run in the background."""

    run: JobRun
    do: RunInPool
    explain: "Callable[[Exception], Problem]"
    """Converts an error for this identity."""
    public_problem: Problem
    """What other users see: the reason can reveal permissions of the identity."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a job failed."""

    identity: Identity
    problem: Problem
    public_problem: Problem


@dataclass(slots=True)
class JobRunner:
    """The jobs that this process runs."""

    stopping: bool = False
    """Whether the server is shutting down."""
    _slots: "dict[Slot, str]" = field(default_factory=dict)  # the owner of each slot
    _tasks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _failures: dict[str, _Failure] = field(default_factory=dict)

    def is_running(self, job: str) -> bool:
        """Return whether a job is running here."""
        return job in self._tasks

    def problem(self, job: str, identity: Identity) -> "Problem | None":
        """Return why a job failed here, as far as the identity can see it."""
        failure = self._failures.get(job)
        if failure is None:
            return None
        return failure.problem if acts_for(identity, failure.identity) else failure.public_problem

    @contextmanager
    def reserve(self, identity: Identity, *, undoes: bool = False) -> Iterator["Slot"]:
        """Reserve a slot, or raise `LimitReached`. It is released at the end unless a job uses it."""
        owner = quota_key(identity)
        extra = EXTRA_FOR_UNDO if undoes else 0
        if self.stopping:
            raise LimitReached("The server is shutting down")
        if len(self._slots) >= MAX_RUNNING + extra:
            raise LimitReached(f"Limit of {MAX_RUNNING + extra} running jobs reached")
        if sum(other == owner for other in self._slots.values()) >= MAX_RUNNING_PER_IDENTITY + extra:
            raise LimitReached(f"Limit of {MAX_RUNNING_PER_IDENTITY + extra} running jobs per user reached")
        slot = Slot()
        self._slots[slot] = owner
        try:
            yield slot
        finally:
            if not slot.in_use:
                del self._slots[slot]

    def start(self, slot: "Slot", job: BackgroundJob) -> None:
        """Run a job in the background, in a slot."""
        name = job.run.job.id
        if self.is_running(name):
            return  # started by another request in the meantime
        self._failures.pop(name, None)
        slot.in_use = True
        task = asyncio.get_running_loop().create_task(self._run(job))
        self._tasks[name] = task
        task.add_done_callback(partial(self._on_done, slot, name))

    def _on_done(self, slot: "Slot", name: str, _: "asyncio.Task[None]") -> None:
        del self._slots[slot], self._tasks[name]

    async def _run(self, job: BackgroundJob) -> None:
        clock = asyncio.get_running_loop().time
        retries = 0
        while not self.stopping:
            started_at = clock()
            try:
                if not await job.do(WorkKind.WRITE, job.run.advance):
                    return
                retries = 0
            except (Busy, TooBusy, Contention) as error:
                retries += 1
                if retries > MAX_RETRIES:
                    self.record_failure(job, error)
                    return
                await asyncio.sleep(RETRY_SECONDS)
            except JobEnded:
                return  # another process completed it, or undoes it
            except Exception as error:  # noqa: BLE001 - reported with the job
                self.record_failure(job, error)
                return
            await asyncio.sleep(max(MIN_PAUSE, clock() - started_at))

    def record_failure(self, job: BackgroundJob, error: Exception) -> None:
        """Remember why a job failed."""
        self._failures.pop(job.run.job.id, None)
        self._failures[job.run.job.id] = _Failure(job.run.identity, job.explain(error), job.public_problem)
        if len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]


@dataclass(slots=True, eq=False)
class Slot:
    """A slot for a running job."""

    in_use: bool = False
    """Whether a job uses it and releases it at its end."""


async def retry_when_busy(do: Callable[[], Awaitable[T]], runner: JobRunner) -> T:
    """Run one step of several, and retry while the server is busy. Raises `Busy` in the end."""
    for _ in range(MAX_RETRIES):
        try:
            return await do()
        except Busy:
            if runner.stopping:
                raise
            await asyncio.sleep(RETRY_SECONDS)
    raise Busy
