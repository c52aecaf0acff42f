"""Bounded thread pools of a worker, which refuse excess work at once.

Each kind of work has its own queue, so that none waits for another. Queues are bounded: a client is refused at once
when one is full, which is better than a response after the client has given up. One source can fill a quarter of a
queue, or half of it after somebody there has authenticated; part of each queue is reserved for such sources. All of UDP
together can fill a quarter, because its addresses can be forged: most of the queue is always left for TCP. In addition
to queues there are CPU budgets, see `limits.budgets`. Only attempts at a secret that many try to guess wait before they
are admitted, see `limits.guesses`.

Work that takes less time than the hand-over to a thread runs in the event loop, within the same budgets; and so do
changes, which only wait for the writer.

Signing and verifying release the interpreter lock while they compute. Key agreement does not (`pow()`), so it has the
smallest budget. No thread has a lower priority: it would hold the lock while it waits for a CPU, and block the loop.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from perseid.records.site import Transport
from perseid.registry.installation.settings import Config
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.budgets import LEVEL_FACTORS, PROOF_KINDS, Budgets
from perseid.server.limits.guesses import MAX_TURNS, MAX_WAIT, POLL_SECONDS, Attempt, GuessQueue, KnownClients, Source
from perseid.server.native.decisions import Busy, TooManyGuesses
from perseid.server.native.work import SecretGuess, Work, WorkKind
from perseid.server.state.state import SharedState

THREADS: Final[Mapping[WorkKind, int]] = {
    WorkKind.READ: 4,
    WorkKind.WRITE: 32,
    WorkKind.SIGN: 1,
    WorkKind.VERIFY: 1,
    WorkKind.AGREE: 1,
    WorkKind.HANDSHAKE: 1,
}
"""Threads of each kind. Reading is SQL, which releases the interpreter lock only in part. Writes in
threads, such as those with a large body, mostly wait for the writer. Arithmetic is limited to less than a core, so one
thread is enough."""

SOURCE_DIVISOR: Final = 4
KNOWN_DIVISOR: Final = 2
UDP_DIVISOR: Final = 4
"""The part of a queue that one source, one authenticated source, and all of UDP can fill: one divided by this."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counters of a pool."""

    busy: int = 0
    """Work that is running."""
    waiting: int = 0
    done: int = 0
    full: int = 0
    """Work refused because the queue was full."""
    over_budget: int = 0
    """Work refused because the budget of its source, or the total one, was used up."""
    seconds: float = 0.0
    """CPU seconds of finished work."""


@dataclass(slots=True, eq=False)
class _Task:
    kind: WorkKind
    call: Callable[[], object]
    source: Source
    udp: bool
    known: bool = False
    """Whether somebody at the source has authenticated."""
    price: float | None = None
    """The CPU seconds charged, if not the typical price of the kind."""
    started: bool = False
    seconds: float = 0.0
    result: object = None
    error: Exception | None = None

    def run(self) -> None:
        """Run in a thread of the pool."""
        self.started = True
        before = time.thread_time()
        try:
            self.result = self.call()
        except Exception as error:  # noqa: BLE001 - raised again by `Pools.do`
            self.error = error
        finally:
            self.seconds = time.thread_time() - before


class _Measured:
    """A coroutine whose CPU time is measured, without that of others that run while it waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], task: _Task) -> None:
        self._coroutine = coroutine
        self._task = task

    def __await__(self) -> Generator[Any, Any, object]:
        task, error = self._task, None
        task.started = True
        while True:
            before = time.thread_time()
            try:
                future = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                task.seconds += time.thread_time() - before
            try:
                yield future
                error = None
            except BaseException as problem:  # noqa: BLE001 - above all cancellation, which is passed on
                error = problem


@dataclass(slots=True, eq=False)
class _Queue:
    """State of a pool. Everything but the work itself happens in the event loop."""

    threads: int
    tasks: set[_Task] = field(default_factory=set)
    by_source: dict[int, int] = field(default_factory=dict)
    over_udp: int = 0
    done: int = 0
    full: int = 0
    over_budget: int = 0
    seconds: float = 0.0

    def has_room(self, task: _Task, limit: "_QueueLimit") -> bool:
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
    length: int
    reserved: int
    """The part reserved for sources where somebody has authenticated."""


class Pools:
    """The pools of a worker, one for each kind of work; used by its event loop only."""

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float] = time.monotonic,
        *,
        known: KnownClients | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        state: SharedState | None = None,
    ) -> None:
        """`state` has the budgets and the queues for guesses of all processes; without, they are of this process."""
        self._clock = clock
        self._sleep = sleep
        self.known = KnownClients(secrets.token_bytes(32)) if known is None else known
        """Where identities were proved."""
        self._guesses = {udp: GuessQueue(state, udp=udp, clock=clock) for udp in (False, True)}
        self._queues = {kind: _Queue(THREADS[kind]) for kind in WorkKind}
        self._executors = {kind: ThreadPoolExecutor(THREADS[kind], f"perseid-{kind.value}") for kind in WorkKind}
        self._buckets = Buckets.private() if state is None else Buckets.shared(state, "budgets")
        self._budgets = Budgets(config, self.known, self._buckets)
        self._queue_limits = _queue_limits(config)

    def configure(self, config: Config) -> None:
        """Apply new settings. What was used of the budgets, waiting work and known sources stay."""
        self._budgets = Budgets(config, self.known, self._buckets)
        self._queue_limits = _queue_limits(config)

    async def do(self, work: Work, host: str, transport: Transport) -> object:
        """Run work for a client address; raise `Busy` at once if it is too much.

        An attempt at a secret may have to wait for its turn first. It costs nothing if the work fails.
        """
        if work.secret_of is None:
            return await self._run(work, host, transport)
        secret_of, udp = work.secret_of.upper(), transport == Transport.UDP
        source = self._budgets.source_for(host)
        await self._admit_guess(work.kind, secret_of, source, udp=udp)
        is_charged = not self._budgets.is_proved(secret_of, source, udp=udp)
        try:
            return await self._run(work, host, transport)
        except BaseException:  # including cancellation: there is no result that could be recorded
            if is_charged:
                self._budgets.refund_guess(secret_of, udp=udp)
            raise

    async def _run(self, work: Work, host: str, transport: Transport) -> object:
        if work.is_short:
            return self._run_here(work, host, udp=transport == Transport.UDP)
        task, budgets = self._admit(work, host, udp=transport == Transport.UDP)
        queue = self._queues[work.kind]
        if work.coroutine is not None:
            queue.add(task)
            try:
                return await _Measured(work.coroutine(), task)
            finally:
                self._on_done(task, budgets)
        try:
            thread_future = self._executors[work.kind].submit(task.run)
        except RuntimeError:  # the pools are closed
            raise Busy from None
        queue.add(task)
        done_future = asyncio.wrap_future(thread_future)
        # The caller may be cancelled; the task stays in the queue until its thread has finished.
        done_future.add_done_callback(partial(self._on_done, task, budgets))
        try:
            await asyncio.shield(done_future)
        except asyncio.CancelledError:
            if thread_future.cancelled():  # by `close`, before it started
                raise Busy from None
            thread_future.cancel()
            raise
        if task.error is not None:
            raise task.error
        return task.result

    def _run_here(self, work: Work, host: str, *, udp: bool) -> object:
        """Run short work in the event loop. It needs no queue, and its budget applies."""
        budgets, queue = self._budgets, self._queues[work.kind]
        source = budgets.source_for(host)
        self._charge(work, source, udp=udp)
        before = time.thread_time()
        try:
            return work.call()
        finally:
            seconds = time.thread_time() - before
            queue.done += 1
            queue.seconds += seconds
            budgets.settle(work.kind, source, seconds, udp=udp, price=work.price)

    def record_failed_proof(self, host: str, transport: Transport) -> None:
        """Record a failed authentication."""
        budgets = self._budgets
        budgets.record_failure(budgets.source_for(host), udp=transport == Transport.UDP, now=self._clock())

    def record_guess(self, guess: SecretGuess, host: str, transport: Transport) -> None:
        """Record the result of an attempt at a secret."""
        budgets, udp = self._budgets, transport == Transport.UDP
        budgets.record_guess(guess.secret_of, budgets.source_for(host), right=guess.right, udp=udp, now=self._clock())

    def record_proof(self, host: str, transport: Transport) -> None:
        """Record a successful authentication."""
        self._budgets.record_proof(self._budgets.source_for(host), udp=transport == Transport.UDP)

    def stats(self) -> Mapping[WorkKind, PoolStats]:
        """Return the counters by kind, for the metrics."""
        return MappingProxyType({kind: _get_stats(queue) for kind, queue in self._queues.items()})

    def close(self) -> None:
        """Finish running work, cancel the rest and accept nothing more. Waits for the threads."""
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)
        for executor in self._executors.values():
            executor.shutdown(wait=True)

    async def _admit_guess(self, kind: WorkKind, secret_of: bytes, source: Source, *, udp: bool) -> None:
        """Wait until an attempt at a secret is within its budget; raise `TooManyGuesses` if that takes too long."""
        if self._take_guess(secret_of, source, None, udp=udp):
            return
        queue, seconds = self._guesses[udp], min(MAX_TURNS * self._budgets.turn_seconds, MAX_WAIT)
        end, failures = self._clock() + seconds, self._budgets.failed_guesses(secret_of, source, udp=udp)
        with queue.enter(secret_of, source, failures, seconds) as attempt:
            while attempt in queue and self._clock() < end and not self._is_locked_out(source, udp=udp):
                await self._sleep(POLL_SECONDS)
                if self._take_guess(secret_of, source, attempt, udp=udp):
                    return
        self._queues[kind].over_budget += 1
        raise TooManyGuesses(self._budgets.guess_delay(secret_of, source, udp=udp, now=self._clock()))

    def _take_guess(self, secret_of: bytes, source: Source, attempt: Attempt | None, *, udp: bool) -> bool:
        """Charge an attempt if it is next; addresses where the secret was proved need no turn."""
        if self._is_locked_out(source, udp=udp):
            return False
        if self._budgets.is_proved(secret_of, source, udp=udp):
            return True
        is_next = self._guesses[udp].is_next(secret_of, attempt)
        return is_next and self._budgets.take_guess(secret_of, udp=udp, now=self._clock())

    def _is_locked_out(self, source: Source, *, udp: bool) -> bool:
        return self._budgets.is_locked_out(source, udp=udp, now=self._clock())

    def _admit(self, work: Work, host: str, *, udp: bool) -> tuple[_Task, Budgets]:
        """Return the task if the queue has room and the budget is sufficient."""
        budgets, queue = self._budgets, self._queues[work.kind]
        source = budgets.source_for(host)
        task = _Task(work.kind, work.call, source, udp, budgets.is_known(source, udp=udp), work.price)
        if not queue.has_room(task, self._queue_limits[work.kind]):
            queue.full += 1
            raise Busy
        self._charge(work, source, udp=udp)
        return task, budgets

    def _charge(self, work: Work, source: Source, *, udp: bool) -> None:
        """Charge the budgets; raise `Busy` if one is used up."""
        budgets, now = self._budgets, self._clock()
        if not budgets.take(work.kind, source, udp=udp, now=now, price=work.price):
            self._queues[work.kind].over_budget += 1
            if work.kind in PROOF_KINDS and budgets.is_locked_out(source, udp=udp, now=now):
                raise TooManyGuesses(budgets.failure_delay(source, udp=udp, now=now))
            raise Busy

    def _on_done(self, task: _Task, budgets: Budgets, _: "asyncio.Future[None] | None" = None) -> None:
        queue = self._queues[task.kind]
        queue.remove(task)
        queue.done += task.started
        queue.seconds += task.seconds
        budgets.settle(task.kind, task.source, task.seconds, udp=task.udp, price=task.price)


def _queue_limits(config: Config) -> dict[WorkKind, _QueueLimit]:
    lengths = dict.fromkeys(WorkKind, config.limits.arithmetic_queue) | {
        WorkKind.READ: config.limits.read_queue,
        WorkKind.WRITE: config.limits.write_queue,
    }
    percent = config.limits.reserved_share
    return {kind: _QueueLimit(length, length * percent // 100) for kind, length in lengths.items()}


def _get_stats(queue: _Queue) -> PoolStats:
    started = sum(task.started for task in queue.tasks)
    waiting = len(queue.tasks) - started
    return PoolStats(started, waiting, queue.done, queue.full, queue.over_budget, queue.seconds)
