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

from perseid.ledger.errors import Contention, OperationEnded, TooBusy
from perseid.registry.identity import Identity, counted_as
from perseid.registry.jobs.jobs import Progress, acts_for
from perseid.server.native.decisions import Busy
from perseid.server.native.steps import Kind

if TYPE_CHECKING:
    from .problems import Problem

MAX_RUNNING: Final = 8
"""Units that are carried out at the same time. There is one writer, so more of them are no faster."""

MAX_RUNNING_EACH: Final = 2
"""Of these, units of one identity, whichever of its tokens they were asked for with."""

MORE_FOR_UNDOS: Final = 2
"""So many more for what takes something back: whoever has begun too much must be able to end it."""

RETRY_SECONDS: Final = 1.0
"""After how long a piece is tried again for which there was no room."""

MAX_RETRIES: Final = 60
"""How often in a row: a ledger or a budget that has no room for a minute will have none."""

MAX_KEPT: Final = 1_000
"""Units of which it is kept why they ended early; the oldest makes room."""

LEAST_PAUSE: Final = 0.001
"""Seconds between two pieces at least."""

T = TypeVar("T")


class TooMany(Exception):
    """There is no room for one more; the message says of what."""


class Doing(Protocol):
    """Has work done in a pool; raises `Busy` where it is too much."""

    def __call__(self, kind: Kind, call: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that is to be carried out."""

    name: str
    pieces: Callable[[], Iterator[Progress]]
    """Makes what is left to do."""
    do: Doing
    who: Identity
    """Who carries it out, which need not be who began it."""
    explain: "Callable[[Exception], Problem]"
    """What an error is to them."""
    others: "Problem"
    """What everybody else is told who may see the unit: why somebody may not go on with it is for them to know."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why a unit ended early."""

    who: Identity
    problem: "Problem"
    others: "Problem"


@dataclass(slots=True)
class Runs:
    """The units that this process carries out."""

    stopping: bool = False
    """Whether the server is about to end."""
    _places: "dict[Place, str]" = field(default_factory=dict)  # who has each place among those that run
    _tasks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _early: dict[str, _Ended] = field(default_factory=dict)

    def is_running(self, unit: str) -> bool:
        """Whether a unit is being carried out."""
        return unit in self._tasks

    def problem(self, unit: str, who: Identity) -> "Problem | None":
        """Why a unit ended early, if it did so here, as far as it concerns whoever asks."""
        ended = self._early.get(unit)
        if ended is None:
            return None
        return ended.problem if acts_for(who, ended.who) else ended.others

    @contextmanager
    def place(self, who: Identity, *, undoes: bool = False) -> Iterator["Place"]:
        """Have a place among those that run, or raise `TooMany`. It is given up at the end, unless a unit has it."""
        whose = counted_as(who)
        more = MORE_FOR_UNDOS if undoes else 0
        if self.stopping:
            raise TooMany("the server is about to stop")
        if len(self._places) >= MAX_RUNNING + more:
            raise TooMany(f"{len(self._places)} operations are carried out already, which are as many as there can be")
        if sum(other == whose for other in self._places.values()) >= MAX_RUNNING_EACH + more:
            raise TooMany(f"{MAX_RUNNING_EACH + more} operations of yours are carried out already, which are the most")
        place = Place()
        self._places[place] = whose
        try:
            yield place
        finally:
            if not place.taken:
                del self._places[place]

    def start(self, place: "Place", unit: Unit, begun: Iterator[Progress]) -> None:
        """Carry out a unit in the background, in a place; `begun` is what is left of it at present."""
        if self.is_running(unit.name):
            return  # somebody else asked for it meanwhile; what two have begun is done once all the same
        self._early.pop(unit.name, None)
        place.taken = True
        task = asyncio.get_running_loop().create_task(self._run(unit, begun))
        self._tasks[unit.name] = task
        task.add_done_callback(partial(self._ended, place, unit.name))

    def _ended(self, place: "Place", name: str, _: "asyncio.Task[None]") -> None:
        del self._places[place], self._tasks[name]

    async def _run(self, unit: Unit, pieces: Iterator[Progress]) -> None:
        clock = asyncio.get_running_loop().time
        retries = 0
        while not self.stopping:
            began = clock()
            try:
                if await unit.do(Kind.WRITE, partial(next, pieces, None)) is None:
                    return
                retries = 0
            except (Busy, TooBusy, Contention) as error:
                retries += 1
                if retries > MAX_RETRIES:
                    self.note(unit, error)
                    return
                pieces = pieces if isinstance(error, Busy) else unit.pieces()  # what has raised something has ended
                await asyncio.sleep(RETRY_SECONDS)
            except OperationEnded:
                return  # others came to its end, or undo it
            except Exception as error:  # noqa: BLE001 - whoever asks is told
                self.note(unit, error)
                return
            await asyncio.sleep(max(LEAST_PAUSE, clock() - began))

    def note(self, unit: Unit, error: Exception) -> None:
        """Keep why a unit ended early."""
        self._early.pop(unit.name, None)
        self._early[unit.name] = _Ended(unit.who, unit.explain(error), unit.others)
        if len(self._early) > MAX_KEPT:
            del self._early[next(iter(self._early))]


@dataclass(slots=True, eq=False)
class Place:
    """A place among those that run."""

    taken: bool = False
    """Whether a unit has it, which gives it up when it ends."""


async def patiently(do: Callable[[], Awaitable[T]], runs: Runs) -> T:
    """Have a piece done that is one of many; where there is no room, it is tried again. Raises `Busy` at last."""
    for _ in range(MAX_RETRIES):
        try:
            return await do()
        except Busy:
            if runs.stopping:
                raise
            await asyncio.sleep(RETRY_SECONDS)
    raise Busy
