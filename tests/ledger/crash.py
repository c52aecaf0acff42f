"""Kill processes that work on a ledger at random times and check the result: `make crash`, or a few rounds in the
tests.

Each round starts writers, one process that only follows, and one that rebuilds views, all on one ledger and one answers
view, and kills them with SIGKILL at random times. Then every acknowledged write must be there, none may be partial, the
whole ledger must verify, and the answers view must match the records.

A round is identified by its seed, which determines the processes and when each is killed, but not what they do until
then.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perseid.ledger import ledger as ledgers
from perseid.ledger.ledger import Ledger
from perseid.ledger.log import signing
from perseid.ledger.log.entry import Draft
from perseid.ledger.log.requests import Appended, Execute, Executed, LeaseProvider
from perseid.ledger.verify import verify
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.rebuild import Superseded, rebuild
from tests.ledger.ledgers import SIGNER, change, execute, key, log_of_today, open_store, secret, url

PAIR = 3  # entries minted together, all or none
LONGEST = 1.0  # maximum lifetime of a worker, in seconds
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """The location of the ledger."""

    where: str
    folder: Path

    def open(self) -> Ledger:
        return Ledger(log_of_today(open_store(self.where)), Answers(self.folder / "answers"), SIGNER)


def write(place: Place, identity: str, chance: random.Random, tell: Callable[[str], None]) -> None:
    """Append forever: single changes, minted groups, replaced secrets."""
    with place.open() as ledger:
        for number in range(1_000_000):
            kind = chance.random()
            if kind < 0.3:
                outcome = ledger.append(_pair(f"{identity}-{number}"))[0]
                assert isinstance(outcome, Executed)
                tell(f"pair {identity}-{number} {outcome.seq}")
            else:
                name = f"shared-{chance.randrange(20)}" if kind < 0.6 else f"{identity}-{number}"
                label = f"{identity}-{number}"
                request = change(name, url(f"https://example.org/{label}"), secret(label.encode()))
                done = ledger.append(request)[0]
                assert isinstance(done, Appended)
                tell(f"one {label} {done.seq}")
            item = ledger.find(b"10.1/shared-1")
            assert item is None or item.values


def _pair(label: str) -> Execute:
    def make(lender: LeaseProvider) -> Sequence[Draft]:
        first = lender.lease(b"crash", PAIR, 0)
        handles = [f"10.1/pair-{first + number}" for number in range(PAIR)]
        assert not any(lender.exists(handle.upper().encode()) for handle in handles)
        return [change("", url(f"https://example.org/{label}"), handle=handle).draft for handle in handles]

    return execute(make)


def follow(place: Place, _identity: str, _chance: random.Random, tell: Callable[[str], None]) -> None:
    """Only read, and keep the view up to date."""
    with place.open() as ledger:
        while True:
            ledger.find(b"10.1/shared-1")
            tell("looked")
            time.sleep(0.01)


def build(place: Place, _identity: str, chance: random.Random, tell: Callable[[str], None]) -> None:
    """Rebuild views forever."""
    with place.open() as ledger:
        while True:
            view = chance.choice(["answers", "records", "search"])
            if view == "answers":
                ledger.answers.rebuild(ledger.log.open_reader)
            else:
                with contextlib.suppress(Superseded):
                    rebuild(ledger.log, view)
            tell(f"built {view}")


WORKERS = {"write": write, "follow": follow, "build": build}


@dataclass
class Worker:
    """A process that works until it is killed."""

    role: str
    pid: int
    pipe: int
    dies_after: float


def start(place: Place, role: str, identity: str, chance: random.Random) -> Worker:
    seed, dies_after = chance.random(), chance.uniform(0.02, LONGEST)
    reader, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Worker(role, pid, reader, dies_after)
    try:
        os.close(reader)
        # Sign continuously, so that some workers are killed while signing.
        signing.INTERVAL = 1_000  # type: ignore[misc]
        ledgers.RETRY_DELAY = 0.005  # type: ignore[misc]
        WORKERS[role](place, identity, random.Random(seed), lambda text: _tell(writing, text))
    except BaseException:  # noqa: BLE001 - the parent sees the exit status
        traceback.print_exc()
    os._exit(1)


def _tell(pipe: int, text: str) -> None:
    os.write(pipe, f"{text}\n".encode())


def work(place: Place, chance: random.Random, number: int) -> list[str]:
    """Run workers, kill them, and return what they acknowledged."""
    roles = ["write", "write", chance.choice(["write", "follow", "build"]), chance.choice(["follow", "build", "build"])]
    workers = [start(place, role, f"r{number}w{which}", chance) for which, role in enumerate(roles)]
    started = time.monotonic()
    for worker in sorted(workers, key=lambda one: one.dies_after):
        time.sleep(max(0.0, started + worker.dies_after - time.monotonic()))
        os.kill(worker.pid, signal.SIGKILL)
    reported: list[str] = []
    for worker in workers:
        _, status = os.waitpid(worker.pid, 0)
        with os.fdopen(worker.pipe, encoding="utf-8") as pipe:
            said = pipe.read()
        assert os.WIFSIGNALED(status), f"a worker ({worker.role}) failed before it was killed"
        reported += [line for line in said.splitlines(keepends=True) if line.endswith("\n")]
    return reported


def check(place: Place, acknowledged: Sequence[str]) -> int:
    """Check that nothing is missing or partial; return the number of entries."""
    with place.open() as ledger:
        size = verify(ledger.log).entries
        with ledger.open_reader() as reader:
            for line in acknowledged:
                what, *rest = line.split()
                if what not in {"one", "pair"}:
                    continue
                label, seq = rest[0], int(rest[1])
                for entry in reader.log(seq - 1, seq + (PAIR if what == "pair" else 1) - 1):
                    assert f"https://example.org/{label}" in str(entry.record()[0].data), f"{line} is entry {entry}"
            pairs = [entry.seq for entry in reader.log(0) if entry.handle.startswith("10.1/pair-")]
            assert len(pairs) % PAIR == 0, "a minted group is partial"
            assert reader.latest(key("shared-1")) <= size
        assert ledger.answers.catch_up(ledger.log.open_reader)
        difference = ledger.answers.differences(ledger.log.open_reader)
        assert difference is None, f"the answers view differs from the records: {difference}"
    return size


def run(place: Place, seed: int, rounds: int, say: Callable[[str], None] = print) -> int:
    """Run rounds; return the number of acknowledged writes."""
    log = log_of_today(open_store(place.where))
    log.store.upgrade()
    log.create(SIGNER)
    log.store.close()
    total = 0
    for number in range(rounds):
        chance = random.Random(f"{seed}-{number}")
        acknowledged = work(place, chance, number)
        size = check(place, acknowledged)
        total += len([line for line in acknowledged if line.startswith(("one", "pair"))])
        say(f"seed {seed}, round {number}: {len(acknowledged)} acknowledged, {size} entries, all valid")
    return total


@contextlib.contextmanager
def given_place(where: str | None = None, folder: Path | None = None) -> Iterator[Place]:
    """The place that the options name, or a temporary one."""
    if where is not None and folder is not None:
        yield Place(where, folder)
        return
    with tempfile.TemporaryDirectory(prefix="perseid-crash-") as temporary:
        yield Place(str(Path(temporary) / "ledger.db"), Path(temporary))


def run_module(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a module in its own process: it forks, which is safe only if no other thread can hold a lock of SQLite."""
    command = [sys.executable, "-m", name, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="kill processes that work on a ledger, and check the result")
    parser.add_argument("--where", help="an empty store; without it, temporary ones")
    parser.add_argument("--folder", type=Path, help="the folder of the answers view; required with --where")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rounds-per-ledger", type=int, default=25)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    print(f"seed {options.seed}: repeat with --seed {options.seed}")
    total = 0
    each = options.rounds if options.where else options.rounds_per_ledger
    for part, first in enumerate(range(0, options.rounds, each)):
        with given_place(options.where, options.folder) as place:
            total += run(place, options.seed + part, min(each, options.rounds - first))
    print(f"{options.rounds} rounds, {total} acknowledged writes, none lost")


if __name__ == "__main__":
    main()
