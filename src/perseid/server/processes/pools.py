"""Where the control process does what takes long: bounded pools of threads, and a refusal at once for what is too much.

Each kind of work has a queue of its own, so that none waits for another, and the queue has an end: whoever comes when
it is full is told so at once, which is better than an answer after the client has given up. No source may fill more
than a quarter of a queue, or half of it if somebody there has proved who they are; for such sources some of it is
reserved. Everything that comes over UDP together may fill no more than a quarter, as its addresses can be forged: there
is always room for somebody else, and always most of it for TCP. Beside the queue there is a budget, see `budgets`.

Signing and verifying release the interpreter's lock while they compute, so their threads run beside the event loop and
have a low priority: on a busy machine resolution comes first. Agreeing on a session's key does not, for `pow()` keeps
the lock. A thread of low priority would hold it while it waits for a processor, and make the loop wait too; so that
thread has the priority of the loop and the smallest budget. TLS handshakes have that priority too: whoever waits for
one wants to resolve a name, most likely.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from perseid.records.site import Transport
from perseid.registry.installation.settings import Config
from perseid.server.limits.budgets import LEVEL_FACTORS, Budgets, Source
from perseid.server.native.decisions import Busy
from perseid.server.native.steps import SecretGuess, Work, WorkKind

THREADS: Final[Mapping[WorkKind, int]] = {
    WorkKind.READ: 4,
    WorkKind.WRITE: 32,
    WorkKind.SIGN: 1,
    WorkKind.VERIFY: 1,
    WorkKind.AGREE: 1,
    WorkKind.HANDSHAKE: 1,
}
"""Threads of each kind. Reading is SQL, which releases the interpreter's lock only in part. A change waits for the
disk, and those that wait at the same time share one commit. Arithmetic may take less than a core, so one is enough."""

NICE: Final[Mapping[WorkKind, int]] = {WorkKind.SIGN: 10, WorkKind.VERIFY: 10}
"""How far the priority of some threads is lowered: beside a resolver that wants a whole core they get a tenth of it."""

SOURCE_DIVISOR: Final = 4
KNOWN_DIVISOR: Final = 2
UDP_DIVISOR: Final = 4
"""Which part of a queue one source may fill, one from which somebody has proved who they are, and UDP in all: one
over this."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What is done in a pool."""

    busy: int = 0
    """Work that is being done."""
    waiting: int = 0
    done: int = 0
    full: int = 0
    """Work that was refused because too much of it waited."""
    over_budget: int = 0
    """Work that was refused because its source, or all together, had used up their share."""
    seconds: float = 0.0
    """What the work that was done has cost, in seconds of a processor."""


@dataclass(slots=True, eq=False)
class _Task:
    """Work on its way, and what came of it."""

    kind: WorkKind
    call: Callable[[], object]
    source: Source
    """Whose it is."""
    udp: bool
    known: bool = False
    """Whether somebody there has proved who they are."""
    price: float | None = None
    """What was paid for it, if it is not what such work costs."""
    started: bool = False
    seconds: float = 0.0
    result: object = None
    error: Exception | None = None

    def run(self) -> None:
        """Do it, in a thread of the pool."""
        self.started = True
        before = time.thread_time()
        try:
            self.result = self.call()
        except Exception as error:  # noqa: BLE001 - it is raised again where somebody waits for it
            self.error = error
        finally:
            self.seconds = time.thread_time() - before


@dataclass(slots=True, eq=False)
class _Queue:
    """What is known about a pool. Everything but the work itself happens in the event loop."""

    threads: int
    tasks: set[_Task] = field(default_factory=set)
    by_source: dict[int, int] = field(default_factory=dict)
    over_udp: int = 0
    done: int = 0
    full: int = 0
    over_budget: int = 0
    seconds: float = 0.0

    def has_room(self, task: _Task, limit: "_QueueLimit") -> bool:
        """Whether another one may wait, where so many may."""
        if len(self.tasks) < self.threads and not task.udp:
            return True
        is_unknown = bool(task.source) and not task.known
        if len(self.tasks) >= self.threads + limit.length - is_unknown * limit.reserved:
            return False
        part = limit.length // (KNOWN_DIVISOR if task.known else SOURCE_DIVISOR)
        for network, factor in zip(task.source, LEVEL_FACTORS, strict=False):
            if self.by_source.get(network, 0) >= part * factor:
                return False
        return not task.udp or self.over_udp < limit.length // UDP_DIVISOR

    def add(self, task: _Task) -> None:
        self.tasks.add(task)
        self.over_udp += task.udp
        for network in task.source:
            self.by_source[network] = self.by_source.get(network, 0) + 1

    def remove(self, task: _Task) -> None:
        self.tasks.remove(task)
        self.over_udp -= task.udp
        for network in task.source:
            self.by_source[network] -= 1
            if not self.by_source[network]:
                del self.by_source[network]


@dataclass(frozen=True, slots=True)
class _QueueLimit:
    """How much may wait in a queue."""

    length: int
    reserved: int
    """So much of it for sources from which somebody has proved who they are."""


class Pools:
    """The pools of the control process, one for each kind of work; for its event loop alone."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues = {kind: _Queue(THREADS[kind]) for kind in WorkKind}
        self._executors = {kind: _create_executor(kind) for kind in WorkKind}
        self._budgets = Budgets(config)
        self._queue_limits = _queue_limits(config)

    def configure(self, config: Config) -> None:
        """Take other settings. Budgets begin anew; what waits goes on waiting, and who is known is known."""
        self._budgets = Budgets(config, self._budgets)
        self._queue_limits = _queue_limits(config)

    async def do(self, work: Work, host: str, transport: Transport) -> object:
        """Have work done for somebody at an address; `Busy` at once if it is too much."""
        task, budgets = self._admit(work, host, udp=transport == Transport.UDP)
        queue = self._queues[work.kind]
        try:
            thread_future = self._executors[work.kind].submit(task.run)
        except RuntimeError:  # the pools are closed
            raise Busy from None
        queue.add(task)
        done_future = asyncio.wrap_future(thread_future)
        # Whoever waits may go away; the job stays in the queue until the thread has let go of it.
        done_future.add_done_callback(partial(self._on_done, task, budgets))
        try:
            await asyncio.shield(done_future)
        except asyncio.CancelledError:
            if thread_future.cancelled():  # by `close`, before it was begun
                raise Busy from None
            thread_future.cancel()
            raise
        if task.error is not None:
            raise task.error
        return task.result

    def record_failed_proof(self, host: str, transport: Transport) -> None:
        """Note that somebody at an address failed to prove who they are."""
        budgets = self._budgets
        budgets.failed(budgets.source_for(host), udp=transport == Transport.UDP, now=self._clock())

    def record_guess(self, guess: SecretGuess, host: str, transport: Transport) -> None:
        """Note what an answer came to that somebody at an address had verified."""
        budgets, udp = self._budgets, transport == Transport.UDP
        budgets.record_guess(guess.secret_of, budgets.source_for(host), right=guess.right, udp=udp, now=self._clock())

    def proved(self, host: str, transport: Transport) -> None:
        """Note that somebody at an address has proved who they are."""
        self._budgets.proved(self._budgets.source_for(host), udp=transport == Transport.UDP)

    def stats(self) -> Mapping[WorkKind, PoolStats]:
        """What is done, by kind, for the metrics."""
        return MappingProxyType({kind: _get_stats(queue) for kind, queue in self._queues.items()})

    def close(self) -> None:
        """Finish what was begun and give up the rest; nothing is taken any more. Waits for the threads."""
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)
        for executor in self._executors.values():
            executor.shutdown(wait=True)

    def _admit(self, work: Work, host: str, *, udp: bool) -> tuple[_Task, Budgets]:
        """The job, if there is room in the queue and something left of the budget."""
        budgets, queue = self._budgets, self._queues[work.kind]
        source = budgets.source_for(host)
        task = _Task(work.kind, work.call, source, udp, budgets.is_known(source, udp=udp), work.price)
        if not queue.has_room(task, self._queue_limits[work.kind]):
            queue.full += 1
            raise Busy
        now = self._clock()
        if not budgets.take(work.kind, source, udp=udp, now=now, secret_of=work.secret_of, price=work.price):
            queue.over_budget += 1
            raise Busy
        return task, budgets

    def _on_done(self, task: _Task, budgets: Budgets, _: "asyncio.Future[None]") -> None:
        queue = self._queues[task.kind]
        queue.remove(task)
        queue.done += task.started
        queue.seconds += task.seconds
        budgets.settle(task.kind, task.source, task.seconds, udp=task.udp, price=task.price)


def _queue_limits(config: Config) -> dict[WorkKind, _QueueLimit]:
    lengths = dict.fromkeys(WorkKind, config.limits_arithmetic_queue) | {
        WorkKind.READ: config.limits_read_queue,
        WorkKind.WRITE: config.limits_write_queue,
    }
    percent = config.limits_reserved_share
    return {kind: _QueueLimit(length, length * percent // 100) for kind, length in lengths.items()}


def _create_executor(kind: WorkKind) -> ThreadPoolExecutor:
    nice = NICE.get(kind, 0)
    return ThreadPoolExecutor(THREADS[kind], f"perseid-{kind.value}", partial(_lower_priority, nice) if nice else None)


def _lower_priority(nice: int) -> None:
    """Lower the priority of this thread alone, which Linux allows; a sandbox may forbid it, and then it stays."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def _get_stats(queue: _Queue) -> PoolStats:
    started = sum(task.started for task in queue.tasks)
    waiting = len(queue.tasks) - started
    return PoolStats(started, waiting, queue.done, queue.full, queue.over_budget, queue.seconds)
