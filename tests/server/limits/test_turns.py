"""Longer pieces of work in an event loop take turns, and so do their sources."""

import asyncio
from itertools import pairwise

import pytest

from perseid.server.limits.turns import MAX_WAITING, MAX_WAITING_PER_SOURCE, TooManyWaiting, Turns


async def work(turns: Turns, source: str, done: list[str]) -> None:
    await turns.take(source)
    done.append(source)


def test_other_work_of_the_loop_runs_between_two_pieces() -> None:
    async def run() -> None:
        turns, done = Turns(), list[str]()
        pieces = [asyncio.create_task(work(turns, "a", done)) for _ in range(5)]
        counts = []
        while len(done) < len(pieces):
            await asyncio.sleep(0)
            counts.append(len(done))
        assert {after - before for before, after in pairwise(counts)} == {0, 1}
        await asyncio.gather(*pieces)
        await work(turns, "b", done)  # at once: nobody waits

    asyncio.run(run())


def test_sources_take_turns() -> None:
    async def run() -> None:
        turns, done = Turns(), list[str]()
        sources = [*"aaaaaa", *"bb", "c"]
        await asyncio.gather(*[work(turns, source, done) for source in sources])
        assert "".join(done) == "aabcabaaa"

    asyncio.run(run())


def test_too_many_pieces_are_refused() -> None:
    async def run() -> None:
        turns, done = Turns(), list[str]()
        waiting = [asyncio.create_task(work(turns, "a", done)) for _ in range(1 + MAX_WAITING_PER_SOURCE)]
        waiting += [
            asyncio.create_task(work(turns, f"b{number}", done))
            for number in range(MAX_WAITING - MAX_WAITING_PER_SOURCE)
        ]
        await asyncio.sleep(0)
        assert turns.waiting == MAX_WAITING
        for source in ("a", "c"):
            with pytest.raises(TooManyWaiting):
                await work(turns, source, done)
        for task in waiting[1:101]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(done) == 1 + MAX_WAITING - 100
        assert turns.waiting == 0
        await work(turns, "a", done)

    asyncio.run(run())
