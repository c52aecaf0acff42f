"""What the ledger costs: appending (SQLite, synced), reading, proving. CPU only: waiting for the disk is not in it."""

import secrets
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from perseid.ledger import Action, Append, CheckedClock, Draft, Log, Signer, State, Store
from perseid.ledger.verification import check_inclusion
from perseid.records import Value

VALUES = (
    Value.text(1, "URL", "https://example.org/a/typical/address"),
    Value.text(4, "EMAIL", "someone@example.org"),
    Value(100, "HS_ADMIN", bytes.fromhex("0fff0000000a302e4e412f31323334350000012c")),
)
RECORDS = 10_000

_folder = tempfile.TemporaryDirectory()
_numbers = count()


def _requests(number: int) -> list[Append]:
    names = [f"10.1/{next(_numbers):012d}" for _ in range(number)]
    return [
        Append(name.encode(), Draft(Action.CREATE, State.NORMAL, name, "bench", "local:bench", values=VALUES))
        for name in names
    ]


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure, on a ledger of some thousand records in a temporary folder."""
    store = Store.sqlite(Path(_folder.name) / "ledger.db")
    store.upgrade()
    clock = CheckedClock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000)
    log = Log(store, clock, secrets.token_bytes)
    log.create("bench.example.org")
    log.append(_requests(RECORDS))
    signer = Signer.generate("bench.example.org", bytes(32))
    root, leaf = log.root(RECORDS), log.entry(5_000).leaf_hash()
    path = log.inclusion(5_000, RECORDS)
    return {
        "append, one entry": lambda: log.append(_requests(1)),
        "append, 100 entries in a commit": lambda: log.append(_requests(100)),
        "read an entry": lambda: log.entry(5_000),
        "prove an entry": lambda: log.inclusion(5_000, RECORDS),
        "check a proof": lambda: check_inclusion(4_999, RECORDS, root, leaf, path),
        "sign a checkpoint": lambda: (log.append(_requests(1)), log.checkpoint(signer)),
    }
