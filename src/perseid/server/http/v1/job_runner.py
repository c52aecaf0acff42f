"""Execution of jobs in the background, step by step, and their progress as server-sent events.

`registry.jobs.runner` runs a job; here it gets time, retries and limits. A job is durable after each step, so nothing
here needs to be stored: when the server stops, every job remains at its last step, and a request can resume it. Each
step runs in the pools, on the budget of the user who started it. The pause between two steps is as long as a step, so
that a large job leaves room for others. Everything else runs in the event loop. Which jobs run, why others failed, and
who listens is in the shared state, so every worker answers alike.

Browsers and simple programs can watch a job:

    event: progress
    id: 500
    data: {"job":"…","state":"running","done":500,…}

`progress` is sent on every change, `end` when nothing more will come: the job has ended, or no worker runs it. A
comment line in between keeps the connection alive. Every event is complete, so missed ones do not matter and
`Last-Event-ID` has no effect. Each listener costs a connection and one read of the ledger per second, so their number
is limited.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, Protocol, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perseid.ledger.errors import Contention, JobEnded, LedgerError, TooBusy
from perseid.registry.identity import Identity, quota_key
from perseid.registry.jobs.runner import JobRun, is_own_change
from perseid.registry.results import Refused
from perseid.schema.common import ResponseBody
from perseid.schema.problems import Problem
from perseid.server.limits.guesses import Source
from perseid.server.native.decisions import Busy
from perseid.server.native.work import WorkKind
from perseid.server.state.state import Entry, SharedState, StateFull, is_running

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
"""Seconds to wait for a job that no worker runs: a command or another node may."""

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
    """Whether a worker runs the job."""


SLOT_SECONDS: Final = 2 * MAX_SECONDS
"""Seconds after which a slot that is not renewed ends: longer than any listener stays. The slots of a killed process
are void at once, unless its id is in use again."""

_SLOTS_KEY = b"slots"
_SLOTS_BYTES = 64 << 10  # several times what all listeners take
_OWNER_BYTES = 16  # of the hash of an owner
_ID_BYTES = 16


class _StoredSlot(msgspec.Struct, array_like=True, frozen=True):
    """A slot in the shared state; a change of the fields is a new version of the tables."""

    id: bytes
    owner: bytes
    process: int
    expires: float
    job: str = ""


_decode_slots = msgspec.msgpack.Decoder(list[_StoredSlot]).decode


class SharedSlots:
    """The slots of all workers, in one entry of the shared state: there are few, and limits apply to all together."""

    def __init__(self, state: SharedState, name: str) -> None:
        self._table = state.table(name, version=1, max_entries=1, max_bytes=_SLOTS_BYTES)

    def all(self) -> list[_StoredSlot]:
        """Return the slots in use."""
        now = monotonic()
        return _load_slots(self._table.get(_SLOTS_KEY, now), now)

    def acquire(self, owner: str, check: Callable[[int, int], None]) -> bytes:
        """Add a slot and return its id; `check` gets the number of all slots and of the owner's, and may raise."""
        slot = _StoredSlot(secrets.token_bytes(_ID_BYTES), _hash_owner(owner), os.getpid(), monotonic() + SLOT_SECONDS)

        def add(slots: list[_StoredSlot]) -> list[_StoredSlot]:
            check(len(slots), sum(each.owner == slot.owner for each in slots))
            return [*slots, slot]

        if not self._change(add):
            raise LimitReached("The server is busy")
        return slot.id

    def renew(self, slot_id: bytes, job: str) -> bool:
        """Use a slot for a job from now on; return False if another slot is in use for it."""

        def use(slots: list[_StoredSlot]) -> list[_StoredSlot] | None:
            if any(each.job == job and each.id != slot_id for each in slots):
                return None
            expires = monotonic() + SLOT_SECONDS
            changed = [msgspec.structs.replace(each, job=job, expires=expires) for each in slots if each.id == slot_id]
            return [each for each in slots if each.id != slot_id] + changed

        return self._change(use)

    def release(self, slot_id: bytes) -> None:
        """Remove a slot."""
        self._change(lambda slots: [each for each in slots if each.id != slot_id])

    def _change(self, change: Callable[[list[_StoredSlot]], list[_StoredSlot] | None]) -> bool:
        now = monotonic()

        def run(old: bytes | None) -> Entry | None:
            slots = change(_load_slots(old, now))
            return None if slots is None else Entry(msgspec.msgpack.encode(slots), now + SLOT_SECONDS)

        return self._table.update(_SLOTS_KEY, now, run)


def _load_slots(data: bytes | None, now: float) -> list[_StoredSlot]:
    slots = [] if data is None else _decode_slots(data)
    return [each for each in slots if each.expires > now and is_running(each.process)]


def _hash_owner(owner: str) -> bytes:
    return hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=_OWNER_BYTES).digest()


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

FAILURE_SECONDS: Final = 7 * 24 * 3_600
"""Seconds for which a failure is kept: a week, in which the user asks for the job again."""

_FAILURE_BYTES = 4 << 10  # of a failure in the table; most are far shorter

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


class _Failure(msgspec.Struct, array_like=True, frozen=True):
    """Why a job failed, in the shared state."""

    actor: str
    problem: Problem
    public_problem: Problem


class JobRunner:
    """The jobs that this process runs, and what all workers know of those of the others."""

    def __init__(self, state: SharedState | None = None) -> None:
        """`state` is that of all processes; without, only this process counts."""
        state = SharedState.private() if state is None else state
        self.stopping = False
        """Whether the server is shutting down."""
        self._slots = SharedSlots(state, "running_jobs")
        self._failures = state.table(
            "job_failures", version=1, max_entries=MAX_FAILURES, max_bytes=MAX_FAILURES * _FAILURE_BYTES
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def is_running(self, job: str) -> bool:
        """Return whether a worker runs a job. Safe in any thread."""
        return any(each.job == job for each in self._slots.all())

    def problem(self, job: str, identity: Identity) -> "Problem | None":
        """Return why a job failed, as far as the identity can see it. Safe in any thread."""
        data = self._failures.get(job.encode(), monotonic())
        if data is None:
            return None
        failure = msgspec.msgpack.decode(data, type=_Failure)
        return failure.problem if is_own_change(failure.actor, identity) else failure.public_problem

    @contextmanager
    def reserve(self, identity: Identity, *, undoes: bool = False) -> Iterator["Slot"]:
        """Reserve a slot, or raise `LimitReached`. It is released at the end unless a job uses it."""
        extra = EXTRA_FOR_UNDO if undoes else 0
        if self.stopping:
            raise LimitReached("The server is shutting down")

        def check(total: int, of_owner: int) -> None:
            if total >= MAX_RUNNING + extra:
                raise LimitReached(f"Limit of {MAX_RUNNING + extra} running jobs reached")
            if of_owner >= MAX_RUNNING_PER_IDENTITY + extra:
                raise LimitReached(f"Limit of {MAX_RUNNING_PER_IDENTITY + extra} running jobs per user reached")

        slot = Slot(self._slots.acquire(quota_key(identity), check))
        try:
            yield slot
        finally:
            if not slot.in_use:
                self._slots.release(slot.id)

    def claim(self, slot: "Slot", job: str) -> bool:
        """Use a slot for a job; return False if another request or worker runs it."""
        if not self._slots.renew(slot.id, job):
            return False
        with suppress(StateFull):
            self._failures.delete(job.encode())
        return True

    def start(self, slot: "Slot", job: BackgroundJob) -> None:
        """Run a job in the background, in a slot."""
        name = job.run.job.id
        if not self.claim(slot, name):
            return
        slot.in_use = True
        task = asyncio.get_running_loop().create_task(self._run(slot, job))
        self._tasks[name] = task
        task.add_done_callback(partial(self._on_done, slot, name))

    def _on_done(self, slot: "Slot", name: str, _: "asyncio.Task[None]") -> None:
        del self._tasks[name]
        self._slots.release(slot.id)

    async def _run(self, slot: "Slot", job: BackgroundJob) -> None:
        clock = asyncio.get_running_loop().time
        retries = 0
        while not self.stopping:
            started_at = clock()
            self._slots.renew(slot.id, job.run.job.id)
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
        failure = _Failure(str(job.run.identity), job.explain(error), job.public_problem)
        entry = Entry(msgspec.msgpack.encode(failure), monotonic() + FAILURE_SECONDS)
        self._failures.put(job.run.job.id.encode(), entry)


@dataclass(slots=True, eq=False)
class Slot:
    """A slot for a running job."""

    id: bytes
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
