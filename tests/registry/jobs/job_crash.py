"""Kill whoever moves many names, again and again, and see that the rest is done, and that it can all be undone.

`make crash`, or a few thousand names in the tests. Names are made that lead to one host, and moved to another as one
operation, by processes that are killed with SIGKILL at random moments; the last one comes to the end. Then every name
must have been moved once, by an entry of the operation, and the ledger must verify. Undoing is treated likewise.
"""

import argparse
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job
from perseid.ledger.verify import verify
from perseid.registry.commands.records import Home
from perseid.registry.jobs import runner
from perseid.registry.jobs import rewrite, undo
from perseid.registry.jobs.runner import Progress
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.ledger.crash import Place, sqlite_place
from tests.ledger.ledgers import SIGNER, log_of_today, open_store, url
from tests.registry.registries import OPERATOR

OLD, NEW = "http://old.example/", "https://new.example/maps/"
ORDER = Rewrite(f"{OLD}*", f"{NEW}*")
Begin = Callable[[Registry], tuple[Job, Iterator[Progress]]]


def fill(place: Place, records: int) -> None:
    store = open_store(place.where)
    store.upgrade()
    log_of_today(store).create(SIGNER)
    store.close()
    with place.open() as ledger:
        registry = Registry(ledger, Rules())
        registry.do(Home("0.NA/12345"), OPERATOR, "cli")
        names = (f"12345/{number}" for number in range(records))
        ledger.load(
            Draft(Action.CREATE, State.NORMAL, name, "cli", "local:a", values=(url(f"{OLD}{name}"),)) for name in names
        )


def begin_rewrite(records: int) -> Begin:
    def begin(registry: Registry) -> tuple[Job, Iterator[Progress]]:
        operation = rewrite.start(registry, ORDER, OPERATOR, "cli", "", records)
        return operation, rewrite.run(registry, operation, OPERATOR)

    return begin


def begin_undo(name: str) -> Begin:
    def begin(registry: Registry) -> tuple[Job, Iterator[Progress]]:
        operation = undo.start(registry, name, OPERATOR, "cli")
        return operation, undo.run(registry, operation, OPERATOR)

    return begin


def go_on(registry: Registry) -> tuple[Job, Iterator[Progress]]:
    return resume(registry, runner.LAST, OPERATOR)


def work(place: Place, begin: Begin, dies_after: int | None, chunk: int, chance: random.Random) -> list[int]:
    """Have a process work, and kill it some time after so many steps; how far each step came that it told of."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            runner.CHUNK_SIZE = chunk  # type: ignore[misc]
            with place.open() as ledger:
                for step in begin(Registry(ledger, Rules()))[1]:
                    os.write(writing, f"{step.done}\n".encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent is told by the end of the process
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    told: list[int] = []
    with os.fdopen(reading, encoding="utf-8") as pipe:
        for line in pipe:
            told.append(int(line))
            if dies_after is not None and len(told) >= dies_after:
                time.sleep(chance.uniform(0, 0.02))
                os.kill(pid, signal.SIGKILL)
                break
        told += [int(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) if dies_after is not None else status == 0, f"the process ended with {status}"
    return told


def carry_out(place: Place, begin: Begin, kills: int, chunk: int, chance: random.Random) -> Job:
    """An operation, with that many interruptions."""
    reached = 0
    for number in range(kills):
        told = work(place, begin if number == 0 else go_on, chance.randint(1, 3), chunk, chance)
        assert told[0] > reached, "what was done before was done again"
        reached = told[-1]
        with place.open() as ledger:
            operation = runner.find_job(Registry(ledger, Rules()), OPERATOR, runner.LAST)
            assert operation.ended == 0
            assert operation.done >= reached, "what was told to be durable is not there"
    work(place, go_on, None, chunk, chance)
    with place.open() as ledger:
        return runner.find_job(Registry(ledger, Rules()), OPERATOR, runner.LAST)


def check(place: Place, operation: Job, records: int, expected: str, nth: int) -> None:
    """Every name leads where it should, by one entry of the operation."""
    assert (operation.done, operation.total, operation.ended > 0) == (records, records, True), operation
    with place.open() as ledger:
        steps = jobs.load_steps(ledger.log, operation.id)
        assert len(steps) == records
        found = 0
        with ledger.reading() as reading:
            for change in reading.current():
                if change.handle.startswith("12345/"):
                    found += 1
                    entry = reading.entry(change.seq)
                    assert entry.record()[0].data.decode() == expected + change.handle
                    assert entry.seq in steps
                    assert len(list(reading.history(entry.key))) == nth, f"{entry.handle} was changed twice"
        assert found == records


def run(place: Place, records: int, kills: int, chunk: int, seed: int, say: Callable[[str], None] = print) -> None:
    """Move all names and undo it, with so many kills each."""
    chance = random.Random(seed)
    fill(place, records)
    began = time.monotonic()
    operation = carry_out(place, begin_rewrite(records), kills, chunk, chance)
    check(place, operation, records, NEW, 2)
    say(f"seed {seed}: {records:,} names moved in spite of {kills} kills: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    undone = carry_out(place, begin_undo(operation.id), kills, chunk, chance)
    check(place, undone, records, OLD, 3)
    say(f"seed {seed}: {records:,} names moved back in spite of {kills} kills: {time.monotonic() - began:.1f} s")
    with place.open() as ledger:
        request = Append(
            Draft(Action.UPDATE, State.NORMAL, "12345/0", "cli", "local:a", values=(url(f"{OLD}12345/0"),))
        )
        assert isinstance(ledger.append(request)[0], Appended)
        verify(ledger.log)


def main() -> None:
    parser = argparse.ArgumentParser(description="kill whoever moves many names, and see that it can be gone on with")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    with sqlite_place() as place:
        run(place, options.records, options.kills, runner.CHUNK_SIZE, options.seed)


if __name__ == "__main__":
    main()
