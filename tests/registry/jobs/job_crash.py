"""Kill processes that run jobs, repeatedly; check that the rest is done and that everything can be undone.

`make crash`, or a few thousand records in the tests. Records with one host are created and rewritten to another as one
job, by processes that are killed with SIGKILL at random times; the last one completes it. Then every record must have
been rewritten once, by an entry of the job, and the ledger must verify. Undo is treated the same way.
"""

import argparse
import os
import random
import signal
import time
import traceback
from collections.abc import Callable

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job
from perseid.ledger.verify import verify
from perseid.registry.commands.records import Home
from perseid.registry.jobs import rewrite, runner, undo
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import JobRun, resume
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.ledger.crash import Place, given_place
from tests.ledger.ledgers import SIGNER, log_of_today, open_store, url
from tests.registry.jobs.runs import changes
from tests.registry.registries import OPERATOR

OLD, NEW = "http://old.example/", "https://new.example/maps/"
ORDER = Rewrite(f"{OLD}*", f"{NEW}*")
MORE_STEPS = 2
"""Steps that a process may do after the one at which it is to die: a busy machine kills it later."""
Start = Callable[[Registry], JobRun]


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


def start_rewrite(records: int) -> Start:
    def start(registry: Registry) -> JobRun:
        job = rewrite.start(registry, ORDER, OPERATOR, "cli", "", records)
        return JobRun(registry, job, OPERATOR)

    return start


def start_undo(name: str) -> Start:
    def start(registry: Registry) -> JobRun:
        job = undo.start(registry, name, OPERATOR, "cli")
        return JobRun(registry, job, OPERATOR)

    return start


def resume_last(registry: Registry) -> JobRun:
    return resume(registry, runner.LAST, OPERATOR)


def work(place: Place, start: Start, dies_after: int | None, chunk: int, chance: random.Random) -> list[int]:
    """Run a process, and kill it some time after this many steps; return the reported progress."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            runner.CHUNK_SIZE = chunk  # type: ignore[misc]
            with place.open() as ledger:
                for number, step in enumerate(changes(start(Registry(ledger, Rules()))), 1):
                    os.write(writing, f"{step.done}\n".encode())
                    if dies_after is not None and number >= dies_after + MORE_STEPS:
                        signal.pause()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent sees the exit status
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    progress: list[int] = []
    with os.fdopen(reading, encoding="utf-8") as pipe:
        for line in pipe:
            progress.append(int(line))
            if dies_after is not None and len(progress) >= dies_after:
                time.sleep(chance.uniform(0, 0.02))
                os.kill(pid, signal.SIGKILL)
                break
        progress += [int(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) if dies_after is not None else status == 0, f"the process ended with {status}"
    return progress


def run_with_kills(place: Place, start: Start, kills: int, chunk: int, chance: random.Random) -> Job:
    """Run a job with this many interruptions."""
    reached = 0
    for number in range(kills):
        progress = work(place, start if number == 0 else resume_last, chance.randint(1, 3), chunk, chance)
        assert progress[0] > reached, "work was repeated"
        reached = progress[-1]
        with place.open() as ledger:
            job = runner.find_job(Registry(ledger, Rules()), OPERATOR, runner.LAST)
            assert job.ended_at == 0
            assert job.done >= reached, "durable progress was lost"
    work(place, resume_last, None, chunk, chance)
    with place.open() as ledger:
        return runner.find_job(Registry(ledger, Rules()), OPERATOR, runner.LAST)


def check(place: Place, job: Job, records: int, expected: str, nth: int) -> None:
    """Check that every record has the expected target, by one entry of the job."""
    assert (job.done, job.total, job.ended_at > 0) == (records, records, True), job
    with place.open() as ledger:
        steps = jobs.load_steps(ledger.log, job.id)
        assert len(steps) == records
        count = 0
        with ledger.open_reader() as reader:
            for change in reader.current():
                if change.handle.startswith("12345/"):
                    count += 1
                    entry = reader.entry(change.seq)
                    assert entry.record()[0].data.decode() == expected + change.handle
                    assert entry.seq in steps
                    assert len(list(reader.history(entry.key))) == nth, f"{entry.handle} was changed twice"
        assert count == records


def run(place: Place, records: int, kills: int, chunk: int, seed: int, report: Callable[[str], None] = print) -> None:
    """Rewrite all records and undo it, with this many kills each."""
    chance = random.Random(seed)
    fill(place, records)
    started = time.monotonic()
    job = run_with_kills(place, start_rewrite(records), kills, chunk, chance)
    check(place, job, records, NEW, 2)
    report(f"seed {seed}: {records:,} records rewritten despite {kills} kills: {time.monotonic() - started:.1f} s")
    started = time.monotonic()
    undone = run_with_kills(place, start_undo(job.id), kills, chunk, chance)
    check(place, undone, records, OLD, 3)
    report(f"seed {seed}: {records:,} records restored despite {kills} kills: {time.monotonic() - started:.1f} s")
    with place.open() as ledger:
        request = Append(
            Draft(Action.UPDATE, State.NORMAL, "12345/0", "cli", "local:a", values=(url(f"{OLD}12345/0"),))
        )
        assert isinstance(ledger.append(request)[0], Appended)
        verify(ledger.log)


def main() -> None:
    parser = argparse.ArgumentParser(description="kill processes that run jobs, and check that the jobs can be resumed")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=runner.CHUNK_SIZE)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    with given_place() as place:
        run(place, options.records, options.kills, options.chunk, options.seed)


if __name__ == "__main__":
    main()
