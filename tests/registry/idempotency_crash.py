"""Kill processes that execute requests with idempotency keys, and repeat the requests: each is executed once.

In each round a process creates handles, each with its own key, and is killed at a random time: before, during or after
the commit, before or after the response. Another process then repeats the requests with the same keys. Every key must
have created one handle, and every response must be the same again.
"""

import argparse
import hashlib
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from perseid.ledger.log.requests import Outcome, Request, StoredResponse
from perseid.ledger.verify import verify
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Home
from perseid.registry.idempotency import Executed, IdempotencyKeys, NewClaim, Replayed
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.registry import Registry
from perseid.registry.results import MintResult
from perseid.registry.snapshot import Rules
from tests.ledger.crash import Place, given_place
from tests.ledger.ledgers import SIGNER, log_of_today, open_store
from tests.registry.registries import OPERATOR, add_namespace, admin

WHO = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY, verified_index=300)
LONGEST = 0.4  # seconds that anybody works


def create(place: Place) -> None:
    """A ledger with a namespace."""
    store = open_store(place.where)
    store.upgrade()
    log_of_today(store).create(SIGNER)
    store.close()
    with place.open() as ledger:
        registry = Registry(ledger, Rules())
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        add_namespace(registry, "12345", "free", admin(100, "300:0.NA/12345"))


def told(minted: MintResult) -> StoredResponse:
    return StoredResponse(201, " ".join(map(str, minted.handles)).encode())


def ask(keys: IdempotencyKeys, number: int) -> str:
    """Create a handle with the key of this number and return it."""
    key = b"key-%d" % number
    order = Mint("12345", values=(Value.text(1, "URL", f"https://example.org/{number}"),))
    with keys.claim(WHO, key, hashlib.sha256(key).digest(), told) as claim:
        found = keys.execute(claim, order, WHO, "http", told) if isinstance(claim, NewClaim) else claim
    if isinstance(found, Executed):
        return found.answer.body.decode()
    assert isinstance(found, Replayed), found
    assert found.body is not None
    return found.body.decode()


def work(place: Place, first: int, count: int, dies_after: float | None) -> dict[int, str]:
    """Run a process that creates handles, kill it after a while, and return the responses so far."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            with place.open() as ledger:
                registry = Registry(ledger, Rules())
                keys = IdempotencyKeys(registry)
                os.write(writing, b"ready\n")
                for number in range(first, first + count):
                    os.write(writing, f"{number} {ask(keys, number)}\n".encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent is told by the end of the process
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    answers: dict[int, str] = {}
    with os.fdopen(reading, encoding="utf-8") as pipe:
        assert pipe.readline() == "ready\n"
        if dies_after is not None:
            time.sleep(dies_after)
            os.kill(pid, signal.SIGKILL)
        for line in pipe:
            if line.endswith("\n"):
                key, name = line.split()
                answers[int(key)] = name
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"the process ended with {status}"
    return answers


def die_after_commit(place: Place, number: int) -> None:
    """Execute a request; this process is killed after the commit and before the response."""
    with place.open() as ledger:
        append = ledger.append

        def append_and_die(*requests: Request, meanwhile: Callable[[], None] = lambda: None) -> list[Outcome]:
            append(*requests, meanwhile=meanwhile)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("the process was killed")

        ledger.append = append_and_die  # type: ignore[method-assign]
        registry = Registry(ledger, Rules())
        ask(IdempotencyKeys(registry), number)


def check(place: Place, answers: dict[int, str]) -> None:
    """Every key has created one handle, the one in the response."""
    with place.open() as ledger:
        with ledger.open_reader() as reader:
            leads = {
                change.handle: reader.entry(change.seq).record()[0].data.decode()
                for change in reader.current()
                if change.handle.startswith("12345/")
            }
        assert {name: f"https://example.org/{number}" for number, name in answers.items()} == leads
        verify(ledger.log)


def run(place: Place, rounds: int, seed: int, say: Callable[[str], None] = print) -> None:
    """Kill several processes; each continues the work of the one before."""
    chance = random.Random(seed)
    answers: dict[int, str] = {}
    each = 10_000  # more than anybody gets to
    for number in range(rounds):
        first = max(0, len(answers) - 2)  # what was told last is asked for again, too
        found = work(place, first, each, chance.uniform(0, LONGEST))
        for key, name in found.items():
            assert answers.setdefault(key, name) == name, f"key {key} was answered otherwise"
        say(f"round {number}: {len(answers)} names")
    last = work(place, 0, len(answers) + 1, None)
    assert all(last[key] == name for key, name in answers.items())
    check(place, last)


def main() -> None:
    parser = argparse.ArgumentParser(description="kill processes that execute requests with keys, and repeat them")
    parser.add_argument("--where", help="an empty store; without it, a temporary one")
    parser.add_argument("--folder", type=Path, help="the folder of the answers view; required with --where")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--die-at", type=int, help="only execute the request of this number, and die after its commit")
    options = parser.parse_args()
    with given_place(options.where, options.folder) as place:
        create(place)
        if options.die_at is not None:
            die_after_commit(place, options.die_at)
        run(place, options.rounds, options.seed)


if __name__ == "__main__":
    main()
