"""Carrying out changes of many records in the background, piece by piece, while the server does everything else.

A unit (`registry.units`) is durable piece by piece, so nothing is kept here that matters: when the server stops, every
unit stands where its last piece ended, and a call goes on with it. Each piece is work of the pools like any other, on
the budget of whoever asked for it; and between two of them there is a pause as long as a piece takes, so that a unit,
however large, leaves room for others.

All of this happens in the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from perseid.ledger.errors import Contention, JobEnded, TooBusy
from perseid.registry.identity import Identity, quota_key
from perseid.registry.jobs.runner import Progress, acts_for
from perseid.server.native.decisions import Busy
from perseid.server.native.steps import WorkKind

if TYPE_CHECKING:
    from .problems import Problem

MAX_RUNNING: Final = 8
"""Units that are carried out at the same time. There is one writer, so more of them are no faster."""

MAX_RUNNING_PER_IDENTITY: Final = 2
"""Of these, units of one identity, whichever of its tokens they were asked for with."""

EXTRA_FOR_UNDO: Final = 2
"""So many more for what takes something back: whoever has begun too much must be able to end it."""

RETRY_SECONDS: Final = 1.0
"""After how long a piece is tried again for which there was no room."""

MAX_RETRIES: Final = 60
"""How often in a row: a ledger or a budget that has no room for a minute will have none."""

MAX_KEPT: Final = 1_000
"""Units of which it is kept why they ended early; the oldest makes room."""

MIN_PAUSE: Final = 0.001
"""Seconds between two pieces at least."""

T = TypeVar("T")


class LimitReached(Exception):
    """There is no room for one more; the message says of what."""


class RunInPool(Protocol):
    """Has work done in a pool; raises `Busy` where it is too much."""

    def __call__(self, kind: WorkKind, call: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class JobRun:
    """A unit that is to be carried out."""

    name: str
    pieces: Callable[[], Iterator[Progress]]
    """Makes what is left to do."""
    do: RunInPool
    identity: Identity
    """Who carries it out, which need not be who began it."""
    explain: "Callable[[Exception], Problem]"
    """What an error is to them."""
    public_problem: "Problem"
    """What everybody else is told who may see the unit: why somebody may not go on with it is for them to know."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a unit ended early."""

    identity: Identity
    problem: "Problem"
    public_problem: "Problem"


@dataclass(slots=True)
class JobRunner:
    """The units that this process carries out."""

    stopping: bool = False
    """Whether the server is about to end."""
    _slots: "dict[Slot, str]" = field(default_factory=dict)  # who has each place among those that run
    _tasks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _failures: dict[str, _Failure] = field(default_factory=dict)

    def is_running(self, job: str) -> bool:
        """Whether a unit is being carried out."""
        return job in self._tasks

    def problem(self, job: str, identity: Identity) -> "Problem | None":
        """Why a unit ended early, if it did so here, as far as it concerns whoever asks."""
        failure = self._failures.get(job)
        if failure is None:
            return None
        return failure.problem if acts_for(identity, failure.identity) else failure.public_problem

    @contextmanager
    def place(self, identity: Identity, *, undoes: bool = False) -> Iterator["Slot"]:
        """Have a place among those that run, or raise `TooMany`. It is given up at the end, unless a unit has it."""
        owner = quota_key(identity)
        extra = EXTRA_FOR_UNDO if undoes else 0
        if self.stopping:
            raise LimitReached("the server is about to stop")
        if len(self._slots) >= MAX_RUNNING + extra:
            raise LimitReached(
                f"{len(self._slots)} operations are carried out already, which are as many as there can be"
            )
        if sum(other == owner for other in self._slots.values()) >= MAX_RUNNING_PER_IDENTITY + extra:
            raise LimitReached(
                f"{MAX_RUNNING_PER_IDENTITY + extra} operations of yours are carried out already, which are the most"
            )
        place = Slot()
        self._slots[place] = owner
        try:
            yield place
        finally:
            if not place.in_use:
                del self._slots[place]

    def start(self, place: "Slot", job: JobRun, steps: Iterator[Progress]) -> None:
        """Carry out a unit in the background, in a place; `begun` is what is left of it at present."""
        if self.is_running(job.name):
            return  # somebody else asked for it meanwhile; what two have begun is done once all the same
        self._failures.pop(job.name, None)
        place.in_use = True
        task = asyncio.get_running_loop().create_task(self._run(job, steps))
        self._tasks[job.name] = task
        task.add_done_callback(partial(self._on_done, place, job.name))

    def _on_done(self, place: "Slot", name: str, _: "asyncio.Task[None]") -> None:
        del self._slots[place], self._tasks[name]

    async def _run(self, job: JobRun, pieces: Iterator[Progress]) -> None:
        clock = asyncio.get_running_loop().time
        retries = 0
        while not self.stopping:
            started_at = clock()
            try:
                if await job.do(WorkKind.WRITE, partial(next, pieces, None)) is None:
                    return
                retries = 0
            except (Busy, TooBusy, Contention) as error:
                retries += 1
                if retries > MAX_RETRIES:
                    self.note(job, error)
                    return
                pieces = pieces if isinstance(error, Busy) else job.pieces()  # what has raised something has ended
                await asyncio.sleep(RETRY_SECONDS)
            except JobEnded:
                return  # others came to its end, or undo it
            except Exception as error:  # noqa: BLE001 - whoever asks is told
                self.note(job, error)
                return
            await asyncio.sleep(max(MIN_PAUSE, clock() - started_at))

    def note(self, job: JobRun, error: Exception) -> None:
        """Keep why a unit ended early."""
        self._failures.pop(job.name, None)
        self._failures[job.name] = _Failure(job.identity, job.explain(error), job.public_problem)
        if len(self._failures) > MAX_KEPT:
            del self._failures[next(iter(self._failures))]


@dataclass(slots=True, eq=False)
class Slot:
    """A place among those that run."""

    in_use: bool = False
    """Whether a unit has it, which gives it up when it ends."""


async def retry_when_busy(do: Callable[[], Awaitable[T]], runner: JobRunner) -> T:
    """Have a piece done that is one of many; where there is no room, it is tried again. Raises `Busy` at last."""
    for _ in range(MAX_RETRIES):
        try:
            return await do()
        except Busy:
            if runner.stopping:
                raise
            await asyncio.sleep(RETRY_SECONDS)
    raise Busy
