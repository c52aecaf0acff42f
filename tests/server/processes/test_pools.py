"""Bounded thread pools: excess work is refused at once, and never because of UDP."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from perseid.records.site import Transport
from perseid.registry.installation.settings import Config
from perseid.server.limits.budgets import BURST_SECONDS
from perseid.server.native.decisions import Busy, TooManyGuesses
from perseid.server.native.work import SecretGuess, Work, WorkKind
from perseid.server.processes import pools as module
from perseid.server.processes.pools import THREADS, Pools, PoolStats

TCP, UDP = Transport.TCP, Transport.UDP
HOST, OTHER = "192.0.2.1", "198.51.100.1"
LONG = 60.0  # a bound on waiting for what happens at once


def configured(**settings: int) -> Config:
    lines = [f"{name} = {value}" for name, value in settings.items()]
    return Config.parse("\n".join(["[limits]", *lines]), {})


class Gate:
    """Work that blocks until the gate is opened."""

    def __init__(self, kind: WorkKind) -> None:
        self._open = threading.Event()
        self.work = Work(kind, self._wait)

    def _wait(self) -> str:
        assert self._open.wait(LONG)
        return "done"

    def open(self) -> None:
        self._open.set()


@asynccontextmanager
async def opened(**settings: int) -> AsyncIterator[Pools]:
    pools = Pools(configured(**settings), lambda: 1_000.0)
    try:
        yield pools
    finally:
        pools.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), LONG))


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - threads tell nobody
        await asyncio.sleep(0.001)


async def begin(pools: Pools, work: Work, host: str, transport: Transport) -> "asyncio.Task[object]":
    task = asyncio.create_task(pools.do(work, host, transport))
    await asyncio.sleep(0)  # it is let in, or refused
    return task


async def working_and_waiting(pools: Pools, gate: Gate) -> "tuple[asyncio.Task[object], asyncio.Task[object]]":
    """Work that is being done by the only thread, and work that waits for it."""
    working = await begin(pools, gate.work, HOST, TCP)
    await until(lambda: pools.stats()[WorkKind.SIGN].busy == 1)
    return working, await begin(pools, gate.work, HOST, TCP)


def refused(task: "asyncio.Task[object]") -> bool:
    return task.done() and isinstance(task.exception(), Busy)


@pytest.mark.parametrize("kind", WorkKind)
def test_results_and_errors_are_returned(kind: WorkKind) -> None:
    async def test() -> None:
        async with opened() as pools:
            assert await pools.do(Work(kind, lambda: 42), HOST, TCP) == 42
            with pytest.raises(ZeroDivisionError):
                await pools.do(Work(kind, lambda: 1 // 0), HOST, UDP)
            stats = pools.stats()[kind]
            assert (stats.busy, stats.waiting, stats.done) == (0, 0, 2)
            assert stats.seconds >= 0

    run(test)


def use_cpu() -> None:
    """Use more than the burst of one percent of a core."""
    end = time.thread_time() + 0.01 * BURST_SECONDS
    while time.thread_time() < end:
        pass


def test_short_work_runs_in_the_event_loop_within_its_budget() -> None:
    async def test() -> None:
        async with opened(read_share=1, source_share=100, reserved_share=0) as pools:
            here = Work(WorkKind.READ, threading.get_ident, is_short=True)
            assert await pools.do(here, HOST, TCP) == threading.get_ident()
            with pytest.raises(ZeroDivisionError):
                await pools.do(replace(here, call=lambda: 1 // 0), HOST, TCP)
            assert pools.stats()[WorkKind.READ].done == 2
            await pools.do(replace(here, call=use_cpu), HOST, TCP)
            with pytest.raises(Busy):
                await pools.do(here, HOST, TCP)
            assert pools.stats()[WorkKind.READ].over_budget == 1

    run(test)


def test_coroutine_waits_in_the_event_loop_and_is_charged_for_its_own_time() -> None:
    async def test() -> None:
        async with opened(write_share=1, source_share=100, reserved_share=0) as pools:
            gate = asyncio.Event()
            found: list[int] = []

            async def change() -> int:
                await gate.wait()
                found.append(threading.get_ident())
                return 42

            work = Work(WorkKind.WRITE, lambda: 1 // 0, coroutine=change)
            waiting = [await begin(pools, work, HOST, TCP) for _ in range(3)]
            assert pools.stats()[WorkKind.WRITE].busy == 3
            use_cpu()  # of others
            gate.set()
            assert await asyncio.gather(*waiting) == [42] * 3
            assert {*found} == {threading.get_ident()}
            stats = pools.stats()[WorkKind.WRITE]
            assert (stats.busy, stats.done, stats.over_budget) == (0, 3, 0)
            assert stats.seconds < 0.01

            async def fail() -> None:
                await asyncio.sleep(0)
                use_cpu()
                raise ValueError("failed")

            with pytest.raises(ValueError, match="failed"):
                await pools.do(replace(work, coroutine=fail), HOST, TCP)
            with pytest.raises(Busy):
                await pools.do(work, HOST, TCP)
            gate.clear()

    run(test)


def test_cancelled_coroutine_leaves_its_queue() -> None:
    async def test() -> None:
        async with opened() as pools:
            ended: list[str] = []

            async def wait() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("ended")

            task = await begin(pools, Work(WorkKind.WRITE, lambda: None, coroutine=wait), HOST, TCP)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (ended, pools.stats()[WorkKind.WRITE].busy) == (["ended"], 0)

    run(test)


@pytest.mark.parametrize("kind", WorkKind)
def test_work_runs_in_threads_of_its_kind(kind: WorkKind) -> None:
    async def test() -> None:
        async with opened() as pools:
            found = await pools.do(Work(kind, lambda: threading.current_thread().name), HOST, TCP)
            assert found == f"perseid-{kind.value}_0"

    run(test)


def test_full_queue_refuses_at_once_and_leaves_room_for_others() -> None:
    async def test() -> None:
        async with opened(arithmetic_queue=8, source_share=100, reserved_share=25) as pools:
            gate = Gate(WorkKind.SIGN)
            first = [await begin(pools, gate.work, HOST, TCP) for _ in range(4)]
            assert [refused(task) for task in first] == [False] * 2 + [True] * 2  # a quarter of the queue
            others = [await begin(pools, gate.work, f"203.0.113.{number}", TCP) for number in range(8)]
            assert [refused(task) for task in others] == [False] * 5 + [True] * 3  # one works, six wait, two may yet
            pools.record_proof(OTHER, TCP)
            known = [await begin(pools, gate.work, OTHER, TCP) for _ in range(4)]
            assert [refused(task) for task in known] == [False] * 2 + [True] * 2
            await until(lambda: pools.stats()[WorkKind.SIGN].busy == 1)
            stats = pools.stats()[WorkKind.SIGN]
            assert stats == PoolStats(busy=1, waiting=8, full=7)
            gate.open()
            done = [task for task in (*first, *others, *known) if not refused(task)]
            assert await asyncio.gather(*done) == ["done"] * 9
            assert await pools.do(gate.work, HOST, TCP) == "done"

    run(test)


def test_udp_fills_at_most_a_quarter_of_a_queue() -> None:
    async def test() -> None:
        async with opened(arithmetic_queue=8) as pools:
            gate = Gate(WorkKind.VERIFY)
            flood = [await begin(pools, gate.work, f"203.0.113.{number}", UDP) for number in range(20)]
            assert sum(map(refused, flood)) == 18
            honest = await begin(pools, gate.work, "203.0.113.0", TCP)
            assert not refused(honest)
            gate.open()
            assert await honest == "done"
            await asyncio.gather(*(task for task in flood if not refused(task)))

    run(test)


def test_kinds_do_not_wait_for_each_other() -> None:
    async def test() -> None:
        async with opened(arithmetic_queue=4) as pools:
            gate = Gate(WorkKind.AGREE)
            waiting = [await begin(pools, gate.work, f"203.0.113.{number}", TCP) for number in range(9)]
            for kind in set(WorkKind) - {WorkKind.AGREE}:
                assert await pools.do(Work(kind, lambda: 1), HOST, TCP) == 1
            gate.open()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(test)


def test_source_over_budget_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", itertools.count(step=10).__next__)  # everything takes ten seconds

    async def test() -> None:
        async with opened() as pools:
            work = Work(WorkKind.AGREE, lambda: 1)
            assert await pools.do(work, HOST, UDP) == 1
            with pytest.raises(Busy):
                await pools.do(work, HOST, UDP)
            assert pools.stats()[WorkKind.AGREE] == PoolStats(done=1, over_budget=1, seconds=10)
            assert await pools.do(work, HOST, TCP) == 1
            pools.configure(configured())
            with pytest.raises(Busy):  # what was used stays used
                await pools.do(work, HOST, UDP)

    run(test)


def test_failed_authentications_lock_out_on_that_transport_only() -> None:
    async def test() -> None:
        async with opened(failed_proofs=2) as pools:
            for _ in range(2):
                pools.record_failed_proof(HOST, UDP)
            with pytest.raises(Busy):
                await pools.do(Work(WorkKind.VERIFY, lambda: 1), HOST, UDP)
            assert await pools.do(Work(WorkKind.VERIFY, lambda: 1), HOST, TCP) == 1
            assert await pools.do(Work(WorkKind.READ, lambda: 1), HOST, UDP) == 1

    run(test)


def test_known_source_fills_half_of_a_queue_and_an_ipv6_site_not_all() -> None:
    async def test() -> None:
        async with opened(arithmetic_queue=16, source_share=100, reserved_share=0) as pools:
            gate = Gate(WorkKind.SIGN)
            pools.record_proof(HOST, TCP)
            known = [await begin(pools, gate.work, HOST, TCP) for _ in range(10)]
            assert [refused(task) for task in known] == [False] * 8 + [True] * 2
            customer = [await begin(pools, gate.work, f"2001:db8:0:{number}::1", TCP) for number in range(10)]
            assert [refused(task) for task in customer] == [False] * 8 + [True] * 2
            gate.open()
            await asyncio.gather(*known, *customer, return_exceptions=True)

    run(test)


def test_attempts_at_a_guessed_secret_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that failed waits behind one that did not; other work and other transports do not wait."""
    now = 1_000.0
    ticks = asyncio.Condition()

    async def sleep(_: float) -> None:
        async with ticks:
            await ticks.wait()

    async def advance(seconds: float) -> None:
        nonlocal now
        await asyncio.sleep(0)
        now += seconds
        async with ticks:
            ticks.notify_all()
        await asyncio.sleep(0)

    async def test() -> None:
        pools = Pools(configured(failed_proofs=2), lambda: now, sleep=sleep)
        work = Work(WorkKind.READ, lambda: 1, secret_of=b"1/A")
        failing = "203.0.113.1"
        for secret in (b"1/A", b"1/a"):
            assert await pools.do(work, failing, TCP) == 1
            pools.record_guess(SecretGuess(secret, right=False), failing, TCP)
        with pytest.raises(TooManyGuesses) as refused_address:
            await pools.do(work, failing, TCP)
        assert refused_address.value.seconds == pytest.approx(30)
        assert await pools.do(work, OTHER, UDP) == 1
        assert await pools.do(Work(WorkKind.VERIFY, lambda: 1), OTHER, TCP) == 1
        with pytest.raises(TooManyGuesses):
            await pools.do(Work(WorkKind.AGREE, lambda: 1), failing, TCP)
        now_waiting = [await begin(pools, work, host, TCP) for host in (HOST, OTHER)]
        await advance(29)
        assert not any(task.done() for task in now_waiting)
        await advance(1)
        first, second = now_waiting
        assert await first == 1
        pools.record_guess(SecretGuess(b"1/A", right=True), HOST, TCP)
        assert await pools.do(work, HOST, TCP) == 1, "no longer unknown"
        third = await begin(pools, work, failing, TCP)
        await advance(0.1)
        assert await second == 1, "a right secret costs nothing, so this is its turn"
        await advance(60)
        assert await third == 1, "the one that failed is last"
        monkeypatch.setattr(module, "MAX_WAIT", 20.0)
        assert await pools.do(work, OTHER, TCP) == 1
        fourth = await begin(pools, work, OTHER, TCP)
        await advance(20)
        with pytest.raises(TooManyGuesses):
            await fourth
        assert pools.stats()[WorkKind.READ].over_budget == 2
        pools.close()

    run(test)


def test_attempts_without_a_result_cost_nothing() -> None:
    """Whether the work fails, is refused or cancelled."""

    async def test() -> None:
        async with opened(failed_proofs=2, arithmetic_queue=8) as pools:
            target = b"1/a"
            for _ in range(5):
                with pytest.raises(ZeroDivisionError):
                    await pools.do(Work(WorkKind.READ, lambda: 1 // 0, secret_of=target), HOST, TCP)
            gate = Gate(WorkKind.VERIFY)
            busy = await begin(pools, gate.work, HOST, TCP)
            attempt = Work(WorkKind.VERIFY, lambda: 1, secret_of=target)
            for _ in range(5):
                waiting = await begin(pools, attempt, HOST, TCP)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            full = await begin(pools, gate.work, HOST, TCP)
            for _ in range(5):
                with pytest.raises(Busy) as refusal:
                    await pools.do(attempt, HOST, TCP)
                assert not isinstance(refusal.value, TooManyGuesses)
            gate.open()
            await asyncio.gather(busy, full)
            for _ in range(2):
                assert await pools.do(attempt, HOST, TCP) == 1
                pools.record_guess(SecretGuess(target, right=False), HOST, TCP)
            with pytest.raises(TooManyGuesses):
                await pools.do(attempt, HOST, TCP)

    run(test)


def test_failed_work_at_a_proved_address_refunds_nothing() -> None:
    async def test() -> None:
        async with opened(failed_proofs=2) as pools:
            target = b"1/a"
            pools.record_guess(SecretGuess(target, right=True), HOST, TCP)
            for number in range(2):
                await pools.do(Work(WorkKind.READ, lambda: 1, secret_of=target), f"203.0.113.{number}", TCP)
            with pytest.raises(ZeroDivisionError):
                await pools.do(Work(WorkKind.READ, lambda: 1 // 0, secret_of=target), HOST, TCP)
            assert not pools._budgets.take_guess(target, udp=False, now=1_000.0)

    run(test)


def test_cancelled_work_leaves_the_queue_but_not_the_thread() -> None:
    async def test() -> None:
        async with opened() as pools:
            gate = Gate(WorkKind.SIGN)
            working = await begin(pools, gate.work, HOST, TCP)
            await until(lambda: pools.stats()[WorkKind.SIGN].busy == 1)
            waiting = await begin(pools, gate.work, HOST, TCP)
            for task in (working, waiting):
                task.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)
            assert working.cancelled()
            assert waiting.cancelled()
            await until(lambda: pools.stats()[WorkKind.SIGN].waiting == 0)
            assert pools.stats()[WorkKind.SIGN].busy == 1
            gate.open()
            await until(lambda: pools.stats()[WorkKind.SIGN].busy == 0)
            assert pools.stats()[WorkKind.SIGN].done == 1

    run(test)


def test_close_finishes_running_work_and_refuses_the_rest() -> None:
    async def test() -> None:
        pools, gate = Pools(configured()), Gate(WorkKind.SIGN)
        working, waiting = await working_and_waiting(pools, gate)
        gate.open()
        await asyncio.to_thread(pools.close)
        assert await working == "done"
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert outcome == "done" or isinstance(outcome, Busy)  # as the thread was quicker or slower
        with pytest.raises(Busy):
            await pools.do(gate.work, HOST, TCP)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("perseid-sign")]

    run(test)


def test_waiting_work_is_refused_on_close() -> None:
    async def test() -> None:
        pools, gate = Pools(configured()), Gate(WorkKind.SIGN)
        working, waiting = await working_and_waiting(pools, gate)
        closing = asyncio.create_task(asyncio.to_thread(pools.close))
        with pytest.raises(Busy):
            await waiting
        gate.open()
        assert await working == "done"
        await closing

    run(test)


def test_every_kind_has_threads() -> None:
    assert set(THREADS) == set(WorkKind)
