"""Costs of exports: `python -m bench.exports [--records N,N]`.

A ledger is filled with records of three values and random suffixes, and exported in every format by the local
administrator, and as JSON lines by an administrator of the namespace, each in a process of its own, so that peak memory
is that of one export. Speed is given twice: per second of wall-clock time, which other load distorts, and in
microseconds of CPU for a record.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from perseid.bulk.export import export_parts, open_writer
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.records.record import Value, ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Home
from perseid.registry.identity import Identity, KeyIdentity, LocalIdentity, Proof
from perseid.registry.installation.installation import new_log
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.export import Selection
from perseid.registry.queries.find import Search
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.schema.exports import ExportFormat

SIZES: Final = "10000"
PREFIX: Final = "12345"
PART: Final = 50_000
"""Records in a load."""
OPERATOR: Final = LocalIdentity("bench")
_OWNER = ValueRef(300, "0.NA/12345")
_ADMIN = Value(100, "HS_ADMIN", Admin(_OWNER, ALL_PERMISSIONS).to_bytes(), timestamp=1_794_700_000)
CASES: Final = (*[(format_.value, "local") for format_ in ExportFormat], ("jsonl", "administrator"))


@contextmanager
def open_registry(folder: Path, *, new: bool = False) -> Iterator[Registry]:
    """A registry over a ledger in a folder."""
    store = Store.sqlite(folder / "ledger.db")
    if new:
        store.upgrade()
    log = new_log(store)
    if new:
        log.create(Signer.generate("bench.example.org", bytes(32)))
    with Ledger(log, Answers(folder / "answers")) as ledger:
        yield Registry(ledger, Rules(Settings(server_admins=(ValueRef(300, "0.NA/0.NA"),))))


def fill(folder: Path, records: int) -> None:
    """Create a ledger."""
    with open_registry(folder, new=True) as registry:
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        lists = Value(100, "HS_ADMIN", Admin(_OWNER, AdminPermission.LIST_HANDLES).to_bytes())
        registry.do(AddNamespace(PREFIX, PROFILES["free"], (lists,)), OPERATOR, "cli")
        numbers = random.Random(1)
        for first in range(0, records, PART):
            registry.ledger.load(_draft(numbers, number) for number in range(first, min(records, first + PART)))


def _draft(numbers: random.Random, number: int) -> Draft:
    at = 1_794_700_000 + number // 100
    url = Value(1, "URL", b"https://example.org/objects/%d" % number, timestamp=at)
    values = (url, Value(2, "EMAIL", b"keeper@example.org", timestamp=at), _ADMIN)
    return Draft(
        Action.CREATE, State.NORMAL, f"{PREFIX}/{numbers.randbytes(8).hex()}", "bench", "local:bench", values=values
    )


def measure(folder: Path, format_: str, caller: str) -> dict[str, float]:
    """Export a ledger and return what it cost."""
    identity: Identity = OPERATOR
    if caller != "local":
        identity = KeyIdentity(_OWNER, Proof.SECRET_KEY, verified_index=_OWNER.index)
    with open_registry(folder) as registry, (folder / "export").open("wb") as file:
        base = peak = _used_memory()
        wall, cpu, count = time.perf_counter(), time.process_time(), 0
        writer = open_writer(ExportFormat(format_))
        for part in export_parts(registry, identity, Selection(Search(prefix=PREFIX)), writer):
            file.writelines(part.content)
            count += part.records
            peak = max(peak, _used_memory())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"records": count, "per_second": count / wall, "cpu_us": cpu / count * 1e6, "mib": (peak - base) / (1 << 20)}


def _used_memory() -> int:
    """Bytes of memory that this process uses now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure: a part of an export, a thousand records, in each format."""
    folder = Path(tempfile.mkdtemp(prefix="perseid-bench-"))
    fill(folder, 1_000)
    opened = ExitStack()
    opened.callback(shutil.rmtree, folder, ignore_errors=True)
    registry = opened.enter_context(open_registry(folder))
    threading.Thread(target=_close_at_the_end, args=(opened,)).start()
    selection = Selection(Search(prefix=PREFIX))

    def export(format_: ExportFormat) -> None:
        for _ in export_parts(registry, OPERATOR, selection, open_writer(format_)):
            pass

    return {f"export {format_}": partial(export, format_) for format_ in ExportFormat}


def _close_at_the_end(opened: ExitStack) -> None:
    """Close the ledger: the interpreter waits for its threads before it ends."""
    threading.main_thread().join()
    opened.close()


def main() -> None:
    """Fill ledgers and measure exports of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default=SIZES, help=f"sizes of ledgers, with commas between; {SIZES} by default")
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "FORMAT", "CALLER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(Path(given.measure[0]), *given.measure[1:])))
        return
    print(f"{'records':>10}  {'format':<7} {'caller':<14} {'records/s':>10} {'µs of CPU':>10} {'MiB more':>9}")
    for size in map(int, given.records.split(",")):
        with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder:
            fill(Path(folder), size)
            for case in CASES:
                command = [sys.executable, "-m", "bench.exports", "--measure", folder, *case]
                found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                figures = f"{found['per_second']:>10,.0f} {found['cpu_us']:>10.1f} {found['mib']:>9.1f}"
                print(f"{found['records']:>10,}  {case[0]:<7} {case[1]:<14} {figures}", flush=True)


if __name__ == "__main__":
    main()
