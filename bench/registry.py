"""What the registry costs: deciding, creating, modifying and resolving, on SQLite, synced.

The table has CPU time of all threads, without the waiting for the disk. What that waiting leaves is the other figure,
which is said beside the table: how many durable creates a second 32 callers get done together.
`bench/registry.py --profile` shows what their CPU time is spent on.
"""

import argparse
import cProfile
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from perseid.ledger.ledger import Ledger
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, ValueList
from perseid.records.record import Value, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.authorization import Decision, authorize
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Add, Create, Home, Modify
from perseid.registry.identity import Anonymous, KeyIdentity, LocalIdentity, Proof
from perseid.registry.installation.installation import new_log
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules

PREFIX = "20.500.99999"
CALLERS = 32
CREATES_EACH = 100
RECORDS = 2_000
GROUP_SIZE = 100
URL = Value.text(1, "URL", "https://example.org/a/typical/address")
EMAIL = Value.text(4, "EMAIL", "someone@example.org")
ADMIN = Value(100, "HS_ADMIN", Admin(ValueRef(300, f"0.NA/{PREFIX}"), ALL_PERMISSIONS).to_bytes())
BY_GROUP = Value(100, "HS_ADMIN", Admin(ValueRef(200, f"{PREFIX}/group"), ALL_PERMISSIONS).to_bytes())
VALUES = (URL, EMAIL, ADMIN)

OPERATOR = LocalIdentity("bench")
NOBODY = Anonymous()
KEY_HOLDER = KeyIdentity(ValueRef(300, f"0.NA/{PREFIX}"), Proof.PUBLIC_KEY, verified_index=300)
MEMBER = KeyIdentity(ValueRef(300, f"{PREFIX}/member-{GROUP_SIZE - 1}"), Proof.PUBLIC_KEY, verified_index=300)

_folder = tempfile.TemporaryDirectory()
_numbers = count()
_ledgers: list[Ledger] = []


def _registry(name: str) -> Registry:
    """A registry of its own with one namespace, which stays open as long as the process measures."""
    folder = Path(_folder.name) / name
    folder.mkdir()
    store = Store.sqlite(folder / "ledger.db")
    store.upgrade()
    log = new_log(store)
    log.create(Signer.generate("bench.example.org", bytes(32)))
    ledger = Ledger(log, Answers(folder / "answers"))
    _ledgers.append(ledger)
    registry = Registry(ledger, Rules())
    registry.do(Home("0.NA/0.NA"), OPERATOR, "bench")
    registry.do(AddNamespace(PREFIX, PROFILES["free"], (ADMIN,)), OPERATOR, "bench")
    return registry


def _close() -> None:
    while _ledgers:
        _ledgers.pop().close()


def _close_at_the_end() -> None:
    """A ledger has threads, and the interpreter waits for those before it ends: somebody has to close it by then."""
    threading.main_thread().join()
    _close()


def _new_name() -> Handle:
    return Handle(PREFIX, f"{next(_numbers):012d}")


def create(registry: Registry) -> object:
    """Create a record of three values, by an administrator of the prefix."""
    return registry.do(Create(_new_name(), VALUES), KEY_HOLDER, "bench")


def modify(registry: Registry, handle: Handle) -> object:
    """Give a record another URL."""
    new = Value.text(1, "URL", f"https://example.org/{next(_numbers)}")
    return registry.do(Modify(handle, (new,)), KEY_HOLDER, "bench")


def authorise_on(registry: Registry, handle: Handle, identity: KeyIdentity) -> Decision:
    """Decide whether somebody may delete a record; what the decision rests on is read from the ledger."""
    with registry.snapshot() as snapshot:
        decision = authorize(identity, permissions.delete(handle), snapshot, registry.rules.administration)
    if not decision.allowed:
        raise ValueError(decision.reason)
    return decision


def durable_creates(registry: Registry, each: int = CREATES_EACH) -> float:
    """How many creates a second so many callers get done, each waiting for its own to be durable and visible."""
    start = threading.Barrier(CALLERS + 1)

    def call() -> None:
        start.wait()
        for _ in range(each):
            create(registry)

    with ThreadPoolExecutor(CALLERS, thread_name_prefix="caller") as callers:
        waiting = [callers.submit(call) for _ in range(CALLERS)]
        start.wait()
        begun = time.perf_counter()
        for future in waiting:
            future.result()
        return CALLERS * each / (time.perf_counter() - begun)


def say_rate(rounds: int = 2, each: int = CREATES_EACH) -> None:
    """Tell the best of several rounds: beside the table, for it is no CPU time."""
    registry = _registry(f"rate-{next(_numbers)}")
    rates = [durable_creates(registry, each) for _ in range(rounds)]
    said = ", ".join(f"{rate:,.0f}" for rate in rates)
    figure = f"{max(rates):,.0f} durable creates a second with {CALLERS} callers on SQLite (of {said})"
    print(f"registry: {figure}", file=sys.stderr)


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure, on a registry of some thousand records in a temporary folder."""
    threading.Thread(target=_close_at_the_end).start()
    say_rate()
    registry = _registry("registry")
    durable_creates(registry, RECORDS // CALLERS)
    record = Handle(PREFIX, "record")
    registry.do(Create(record, VALUES), KEY_HOLDER, "bench")
    members = ValueList(tuple(ValueRef(300, f"{PREFIX}/member-{number}") for number in range(GROUP_SIZE)))
    registry.do(Create(Handle(PREFIX, "group"), (Value(200, "HS_VLIST", members.to_bytes()),)), KEY_HOLDER, "bench")
    by_group = Handle(PREFIX, "by-group")
    registry.do(Create(by_group, (URL, BY_GROUP)), KEY_HOLDER, "bench")
    by_type = Query(record, types=("URL",))
    octets = record.to_bytes()
    return {
        "create": lambda: create(registry),
        "create, decision alone": lambda: registry.explain(Create(_new_name(), VALUES), KEY_HOLDER, "bench"),
        "modify": lambda: modify(registry, record),
        "add, nothing to do": lambda: registry.do(Add(record, (EMAIL,), overwrite=True), KEY_HOLDER, "bench"),
        "resolve, from records": lambda: registry.resolve(Query(record), NOBODY),
        "resolve, from records, by type": lambda: registry.resolve(by_type, NOBODY),
        "find, from answers": lambda: registry.ledger.find(octets),
        "authorise": lambda: authorise_on(registry, record, KEY_HOLDER),
        f"authorise, the last of a group of {GROUP_SIZE}": lambda: authorise_on(registry, by_group, MEMBER),
    }


def profile() -> None:
    """Show what the CPU time of the callers, and of the writer for whom they wait, is spent on."""
    profiles: dict[str, list[cProfile.Profile]] = {}

    def begin(*_: object) -> None:
        """Every thread profiles itself, from its first call on."""
        sys.setprofile(None)
        kind = threading.current_thread().name.split("_")[0]
        own = cProfile.Profile(time.thread_time)
        profiles.setdefault(kind, []).append(own)
        own.enable()

    threading.setprofile(begin)
    registry = _registry("profile")
    durable_creates(registry)
    threading.setprofile(None)
    _close()
    for kind, parts in profiles.items():
        statistics = pstats.Stats(*parts)
        print(f"\n{kind}: {len(parts)} threads")
        statistics.sort_stats("tottime").print_stats(25)


def main() -> None:
    """Say the rate; with --profile also what it is made of."""
    parser = argparse.ArgumentParser(description="Durable creates a second through the registry.")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    try:
        say_rate(rounds=5, each=250)
        if options.profile:
            profile()
    finally:
        _close()


if __name__ == "__main__":
    main()
