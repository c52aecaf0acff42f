"""Costs of the ledger: appending (SQLite, synced), reading, proving. CPU time only, without disk waits."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.requests import Append
from perseid.ledger.log.signing import sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.proof.verifier import check_inclusion
from perseid.records.record import Value
from perseid.registry.installation.installation import new_log

VALUES = (
    Value.text(1, "URL", "https://example.org/a/typical/address"),
    Value.text(4, "EMAIL", "someone@example.org"),
    Value(100, "HS_ADMIN", bytes.fromhex("0fff0000000a302e4e412f31323334350000012c")),
)
RECORDS = 10_000

_T = TypeVar("_T")

_folder = tempfile.TemporaryDirectory()
_numbers = count()


def _requests(number: int) -> list[Append]:
    names = [f"10.1/{next(_numbers):012d}" for _ in range(number)]
    return [Append(Draft(Action.CREATE, State.NORMAL, name, "bench", "local:bench", values=VALUES)) for name in names]


def _read(log: Log, read: Callable[[LogReader], _T]) -> _T:
    with log.open_reader() as reader:
        return read(reader)


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure, on a ledger of some thousand records in a temporary folder."""
    store = Store.sqlite(Path(_folder.name) / "ledger.db")
    store.upgrade()
    log = new_log(store)
    signer = Signer.generate("bench.example.org", bytes(32))
    log.create(signer)
    log.append(_requests(RECORDS))
    root, leaf = _read(log, lambda reader: (reader.root(RECORDS), reader.entry(5_000).leaf_hash()))
    path = _read(log, lambda reader: reader.inclusion(5_000, RECORDS))
    return {
        "append, one entry": lambda: log.append(_requests(1)),
        "append, 100 entries in a commit": lambda: log.append(_requests(100)),
        "read an entry": lambda: _read(log, lambda reader: reader.entry(5_000)),
        "prove an entry": lambda: _read(log, lambda reader: reader.inclusion(5_000, RECORDS)),
        "check a proof": lambda: check_inclusion(4_999, RECORDS, root, leaf, path),
        "sign a checkpoint": lambda: (log.append(_requests(1)), sign_checkpoint(log, signer)),
    }
