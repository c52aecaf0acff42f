"""Helpers of the ledger tests: a machine with clocks, stores of both kinds, and requests."""

import atexit
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perseid.ledger.log.clock import RELEASE_DATE, SECOND, CheckedClock
from perseid.ledger.log.commit import CommitReader
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import (
    Append,
    Appended,
    Decision,
    Execute,
    IdempotentRequest,
    Outcome,
    Preconditions,
    StateChange,
    changed_result,
)
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.ledger.verify import verify
from perseid.records.record import Permission, Value

if TYPE_CHECKING:
    from tests.postgres import Cluster

ORIGIN = "ledger.example.org"
SIGNER = Signer.generate(ORIGIN, bytes(range(32)))
DEADLINE = 60.0
NOW = RELEASE_DATE + 365 * 86_400 * SECOND


class Machine:
    """A machine whose wall clock can be set; the monotonic one cannot."""

    def __init__(self, wall: int = NOW) -> None:
        self.wall, self.monotonic = wall, 5 * SECOND

    def run(self, microseconds: int) -> None:
        self.wall += microseconds
        self.monotonic += microseconds

    def clock(self, *, accepted: bool = False) -> CheckedClock:
        return CheckedClock(lambda: self.wall, lambda: self.monotonic, accepted=accepted)


def open_store(where: str, *, read_only: bool = False) -> Store:
    """Open the store at an address: a PostgreSQL URL or a file."""
    if where.startswith("postgresql"):
        return Store.postgres(where, read_only=read_only)
    return Store.sqlite(Path(where), read_only=read_only)


@cache
def _tables_in_a_file() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perseid-tables-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = Store.sqlite(folder / "ledger.db")
    store.upgrade()
    store.close()
    return folder / "ledger.db"


def sqlite_with_tables(path: Path) -> Store:
    """Create an upgraded store in a new file, as a copy: creating tables takes longer than most tests."""
    shutil.copyfile(_tables_in_a_file(), path)
    return Store.sqlite(path)


@cache
def _tables_in_a_database(cluster: "Cluster") -> str:
    address = cluster.database()
    store = Store.postgres(address)
    store.upgrade()
    store.close()
    return address


def postgres_with_tables(cluster: "Cluster") -> str:
    """Create an upgraded database, as a copy, and return its address."""
    return cluster.database(_tables_in_a_database(cluster))


def log_of_today(store: Store) -> Log:
    """A log with the system's clock and randomness, as other processes have them."""
    clock = CheckedClock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000)
    return Log(store, clock, secrets.token_bytes)


class Look:
    """Reads from a log; every access opens a new reader."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        with self._log.open_reader() as reader:
            attribute = getattr(reader, name)
            if not callable(attribute):
                return attribute

        def call(*arguments: object) -> Any:
            with self._log.open_reader() as reader:
                result = getattr(reader, name)(*arguments)
                return list(result) if isinstance(result, Iterator) else result

        return call


def look(log: Log) -> Look:
    return Look(log)


def verified(log: Log) -> int:
    """Verify the ledger and return the number of entries."""
    return verify(log).entries


def url(data: str, index: int = 1) -> Value:
    return Value.text(index, "URL", data)


def secret(data: bytes, index: int = 300) -> Value:
    return Value(index, "HS_SECKEY", data, permissions=Permission(0x0C))


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def change(
    name: str,
    *values: Value,
    action: Action = Action.UPDATE,
    state: State = State.NORMAL,
    handle: str | None = None,
    exact: bool = False,
    **preconditions: int,
) -> Append:
    """A request about `10.1/name`, or the given handle; `preconditions` are by name."""
    draft = Draft(action, state, handle or f"10.1/{name}", "cli", "local:alice", values=values, exact=exact)
    return Append(draft, {key(other): seq for other, seq in preconditions.items()})


def change_state(log: Log, request: StateChange) -> Any:
    """Change state that is not derived from entries, and return the result."""
    return changed_result(log.append([request])[0])


def key(name: str) -> bytes:
    return record_key(f"10.1/{name}")


def appended(outcome: Outcome) -> Appended:
    assert isinstance(outcome, Appended)
    return outcome


def execute(
    make: Callable[[CommitReader], Sequence[Draft]],
    preconditions: Preconditions | None = None,
    once: IdempotentRequest | None = None,
) -> Execute:
    """A request whose entries are made inside the commit; its result is their handles and the first number."""

    def decide(reader: CommitReader) -> Decision:
        drafts = tuple(make(reader))
        return Decision(drafts, lambda seq: (tuple([draft.handle for draft in drafts]), seq))

    def encode(result: object) -> bytes:
        return repr(result).encode()

    return Execute(decide, None, preconditions or {}, once=once, encode=None if once is None else encode)
