"""Costs of filling a ledger: `python -m bench.ledger_load [--records N,N] [--orders O,O] [--only-load] …`.

A ledger is filled with records of three values in three orders of handles (counters, PILIN suffixes, which are random
to
a B-tree, and UUIDs), and measured at each size under real conditions: SQLite syncs every commit, the tree grows, all
views are updated. Every figure is taken in its own process, so that peak memory is that of one task. Speed is given
twice: per second of wall-clock time, which other load distorts, and in microseconds of CPU, which it hardly does.
Creating the requests is not measured.

The last column is the growth of a figure from the smallest to the largest ledger. The last lines estimate the cost of
10⁸ handles at the cost of the last ones of the largest ledger.
"""

import argparse
import json
import os
import random
import resource
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, islice
from math import log10
from pathlib import Path
from typing import Final
from uuid import UUID

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import Append, Lease, Leased
from perseid.ledger.log.signing import sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.ledger.views.rebuild import rebuild
from perseid.names import pilin
from perseid.names.schemes import Source
from perseid.proof.verifier import check_inclusion
from perseid.records.record import Value
from perseid.registry.installation.installation import new_log

ROOT: Final = Path(__file__).resolve().parent.parent

SIZES: Final = "10000"
"""Records, unless told otherwise."""
TEN_MILLION: Final = 10_000_000
MANY: Final = 100_000_000
"""The names of a large agency: what the last lines are about."""

GROUP: Final = 5_000
"""Requests in a commit of the bulk load."""
SECONDS: Final = 2.0
"""How long whatever is counted by the second goes on."""
WRITERS: Final = 32
CHANGES: Final = (100, 100_000)
"""The lengths of two histories in which moments are looked up."""
SUFFIXES: Final = 10_000
"""Minted by each process."""
PREFIX: Final = "10.1"

_QUESTIONS = 2_000
_EMAIL = Value.text(4, "EMAIL", "someone@example.org")
_ADMIN = Value(100, "HS_ADMIN", bytes.fromhex("0fff0000000a302e4e412f31323334350000012c"))
_SIGNER = Signer.generate("bench.example.org", bytes(32))
_MICRO = 1e6

Figures = dict[str, float]


# Names and requests


def _sequential(start: int) -> Iterator[str]:
    return (f"{number:012d}" for number in count(start))


def _pilin(start: int) -> Iterator[str]:
    """One suffix per millisecond, as minted."""
    first = pilin.from_unix_ns(1_794_724_100 * 1_000_000_000)
    return (pilin.encode(first + number) for number in count(start))


def _uuid(start: int) -> Iterator[str]:
    bits = random.Random(start).getrandbits
    while True:
        yield str(UUID(int=bits(128), version=4))


ORDERS: Final[dict[str, Callable[[int], Iterator[str]]]] = {"sequential": _sequential, "pilin": _pilin, "uuid": _uuid}


def _request(suffix: str, address: str = "") -> Append:
    values = (Value.text(1, "URL", f"https://example.org/items/{address or suffix}"), _EMAIL, _ADMIN)
    handle = f"{PREFIX}/{suffix}"
    return Append(Draft(Action.CREATE, State.NORMAL, handle, "bench", "local:bench", values=values))


def _groups(suffixes: Iterable[str], size: int) -> Iterator[list[Append]]:
    found = iter(suffixes)
    while group := [_request(suffix) for suffix in islice(found, size)]:
        yield group


def _sample(order: str, records: int, size: int) -> list[bytes]:
    """Handles from the whole ledger, in random order."""
    step = max(1, records // size)
    found = [f"{PREFIX}/{suffix}".encode() for suffix in islice(ORDERS[order](0), 0, records, step)]
    random.Random(2).shuffle(found)
    return found


# Measuring


class Stopwatch:
    """Measures wall-clock time and CPU time of this process, with all threads and ended children, while it runs."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count while the block runs."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += _cpu_seconds() - cpu

    def figures(self, name: str, number: int, unit: str) -> Figures:
        """Return the rate and the CPU time per unit."""
        return {f"{name}: {unit}s/s": number / self.wall, f"{name}: CPU µs per {unit}": self.cpu / number * _MICRO}


def _cpu_seconds() -> float:
    """The CPU time of this process, and of its children that have ended; theirs is counted in hundredths."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _peak() -> float:
    """The peak memory of this process in MiB, with all touched pages of mapped files."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _own() -> float:
    """The memory of this process and its children in MiB, without mapped files, which the system can reclaim."""
    return sum(_private_memory(process) for process in ("self", *_children()))


def _children() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            yield from (task / "children").read_text().split()


def _private_memory(process: str) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        status = Path("/proc", process, "status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) / 1024
    return 0.0


def _log(where: str) -> Log:
    store = Store.postgres(where) if where.startswith("postgresql") else Store.sqlite(Path(where))
    return new_log(store)


def _create_log(where: str) -> Log:
    log = _log(where)
    log.store.upgrade()
    log.create(_SIGNER)
    return log


def _file(folder: str) -> str:
    return str(Path(folder) / "ledger.db")


def _answers(folder: str) -> Path:
    return Path(folder) / "answers"


def _ledger(folder: str) -> Ledger:
    return Ledger(_log(_file(folder)), Answers(_answers(folder)))


def _file_sizes(folder: str, records: int, when: str) -> Figures:
    """The size of the files per record."""
    sql = sum(path.stat().st_size for path in Path(folder).glob("ledger.db*"))
    answers = sum(path.stat().st_size for path in _answers(folder).rglob("data.mdb"))
    found = {"ledger": sql, "answers": answers, "both": sql + answers}
    return {f"bytes per record, {when}: {what}": size / records for what, size in found.items()}


# The parts, each in a process of its own. `where` is the folder of the ledger.


def load(where: str, records: int, order: str) -> Figures:
    """Append in groups: entries, tree and SQL views in one commit, then the answers view; one checkpoint per second."""
    log = _create_log(_file(where))
    answers = Answers(_answers(where))
    answers.catch_up(log.open_reader)
    answers.apply(log.commit([_request("first")]).changes)  # warm-up
    own = [_own()]
    whole, tenth = Stopwatch(), Stopwatch()
    signed, done, start = time.monotonic(), 0, 0
    for group in _groups(islice(ORDERS[order](0), records), GROUP):
        if done <= records * 9 // 10:
            tenth, start = Stopwatch(), done
        with whole.running(), tenth.running():
            answers.apply(log.commit(group).changes)
            if time.monotonic() - signed >= 1:
                sign_checkpoint(log, _SIGNER)
                signed = time.monotonic()
        done += len(group)
        own.append(_own())
    memory = {"bulk append: peak memory, MiB": max(own), "bulk append: with mapped files, MiB": _peak()}
    answers.close()
    log.store.close()  # SQLite empties the write-ahead log with its last connection
    last = {"bulk append: CPU µs per record of the last tenth": tenth.cpu / (done - start) * _MICRO}
    return whole.figures("bulk append", records, "record") | last | memory | _file_sizes(where, records, "loaded")


def load_new(where: str, records: int, order: str) -> Figures:
    """Load into an empty namespace: entries first, then each view once, from sorted runs."""
    _create_log(_file(where)).store.close()
    watch = Stopwatch()
    with _ledger(where) as ledger:
        ledger.append(Append(replace(_request("first").draft, handle="1/first")))  # warm-up
        drafts = [_request(suffix).draft for suffix in islice(ORDERS[order](0), records)]
        own = [_own()]
        cpu = time.process_time()
        with watch.running():
            ledger.load(drafts, progress=lambda _: own.append(_own()))
        writing = (time.process_time() - cpu) / records * _MICRO
    memory = {
        "load of new handles: CPU µs per record, of the process that writes": writing,
        "load of new handles: memory that it takes, MiB": max(own) - own[0],
    }
    return watch.figures("load of new handles", records, "record") | memory | _file_sizes(where, records, "new names")


def prove(where: str, records: int, order: str) -> Figures:
    """Prove entries of the loaded ledger, and check the proofs."""
    log = _log(_file(where))
    wanted = [record_key(name.decode()) for name in _sample(order, records, _QUESTIONS)]
    proving, checking, consistent = Stopwatch(), Stopwatch(), Stopwatch()
    with log.open_reader() as reader:
        size = reader.size
        root = reader.root(size)
        for key in wanted:
            entry = reader.record(key)
            if entry is None:
                raise RuntimeError("a record is missing")
            with proving.running():
                path = reader.inclusion(entry.seq, size)
            with checking.running():
                check_inclusion(entry.seq - 1, size, root, entry.leaf_hash(), path)
            with consistent.running():
                reader.consistency(entry.seq, size)
    log.store.close()
    return {
        "proof of an entry: CPU µs": proving.cpu / len(wanted) * _MICRO,
        "proof of an entry, checked: CPU µs": checking.cpu / len(wanted) * _MICRO,
        "proof of consistency: CPU µs": consistent.cpu / len(wanted) * _MICRO,
    }


def build(where: str, records: int, _order: str) -> Figures:
    """Rebuild every view, then compact everything."""
    found: Figures = {}
    log = _log(_file(where))
    for view in ("records", "search"):
        watch = Stopwatch()
        with watch.running():
            rebuild(log, view)
        found |= watch.figures(f"rebuild {view}", records, "record")
    log.store.close()
    connection = sqlite3.connect(_file(where))
    connection.execute("VACUUM")
    connection.close()
    log, watch = _log(_file(where)), Stopwatch()
    with Answers(_answers(where)) as answers, watch.running():
        if not answers.rebuild(log.open_reader):
            raise RuntimeError("the answers could not be built")
    found |= watch.figures("rebuild answers", records, "record")
    log.store.close()
    return found | {"rebuild: peak memory with mapped files, MiB": _peak()} | _file_sizes(where, records, "compacted")


def single(where: str, records: int, order: str) -> Figures:
    """Durable writes, one after another."""
    watch, done = Stopwatch(), 0
    suffixes = ORDERS[order](records + 1)
    with _ledger(where) as ledger:
        while watch.wall < SECONDS:
            request = _request(next(suffixes))
            with watch.running():
                ledger.append(request)
            done += 1
    return watch.figures("single durable writes", done, "write")


def concurrent(where: str, records: int, order: str) -> Figures:
    """Many threads, each waiting until its write is durable."""
    watch = Stopwatch()
    suffixes = ORDERS[order](records + 10_000_000)
    lock = threading.Lock()
    done: list[int] = []
    with _ledger(where) as ledger:
        end = time.monotonic() + SECONDS

        def write() -> None:
            number = 0
            while time.monotonic() < end:
                with lock:
                    suffix = next(suffixes)
                ledger.append(_request(suffix))
                number += 1
            done.append(number)

        threads = [threading.Thread(target=write) for _ in range(WRITERS)]
        with watch.running():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return watch.figures(f"{WRITERS} concurrent writers", sum(done), "write")


def keep_writing(where: str, records: int, order: str) -> Figures:
    """Write like concurrent writers and report progress, until there is a file `stop`."""
    done = 0
    with _ledger(where) as ledger:
        for group in _groups(ORDERS[order](records + 20_000_000), WRITERS):
            ledger.append(*group)
            done += len(group)
            (Path(where) / "written").write_text(str(done))
            if (Path(where) / "stop").exists():
                break
    return {}


def read(where: str, records: int, order: str) -> Figures:
    """Read answers while another process writes."""
    names = _sample(order, records, 10 * _QUESTIONS)
    progress = Path(where) / "written"
    writer = subprocess.Popen(_command("keep_writing", where, records, order), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        watch, done, start = Stopwatch(), 0, _written(progress, writer)
        with AnswersReader(_answers(where)) as reader:
            while watch.wall < SECONDS:
                with watch.running():
                    found = sum(reader.get(name) is not None for name in names)
                if found != len(names):
                    raise RuntimeError(f"{len(names) - found} handles were not found")
                done += found
        written = _written(progress, writer) - start
    finally:
        (Path(where) / "stop").touch()
        writer.wait()
    return watch.figures("answers beside a writer", done, "read") | {
        f"the writer beside it ({WRITERS} at once): writes/s": written / watch.wall
    }


def _written(progress: Path, writer: "subprocess.Popen[bytes]") -> int:
    """The number of writes that the writer has reported; waits for the first report."""
    while not progress.exists() or not (found := progress.read_text()):
        if writer.poll() is not None:
            raise RuntimeError("the writer has failed")
        time.sleep(0.01)
    return int(found)


def history(where: str, _records: int, _order: str) -> Figures:
    """Look up records as of a point: one with a hundred changes, and one with far more."""
    log = _create_log(_file(where))
    watch = Stopwatch()
    for changes in CHANGES:
        for first in range(0, changes, GROUP):
            numbers = range(first, min(changes, first + GROUP))
            group = [_request(f"changed-{changes}", str(number)) for number in numbers]
            with watch.running():
                log.append(group)
    found = watch.figures("changes of one record", sum(CHANGES), "change")
    for changes in CHANGES:
        found[f"as of, {changes:,} changes: CPU µs"] = _as_of(log, changes)
    log.store.close()
    return found


def _as_of(log: Log, changes: int) -> float:
    """The time to find a record as of an entry."""
    key, watch = record_key(f"{PREFIX}/changed-{changes}"), Stopwatch()
    with log.open_reader() as reader:
        latest = reader.latest(key)
        moments = [random.Random(number).randint(latest - changes + 1, latest) for number in range(_QUESTIONS)]
        for moment in moments:
            with watch.running():
                entry = reader.as_of(key, moment)
            if entry is None or entry.seq != moment:
                raise RuntimeError("another entry was found")
    return watch.cpu / len(moments) * _MICRO


def mint(where: str, suffixes: int, _order: str) -> Figures:
    """Mint suffixes; `where` is the ledger's address."""
    log = _log(where)

    def lease(number: int, now: int) -> int:
        outcome = log.append([Lease(PREFIX.encode(), number, now)])[0]
        if not isinstance(outcome, Leased):
            raise TypeError(outcome)
        return outcome.first

    source = Source(clock=time.time_ns, random=secrets.token_bytes, lease=lease, sleep=time.sleep)
    lease(0, 1)
    start, watch = time.time(), Stopwatch()
    with watch.running():
        made = pilin.PilinScheme().mint(source, suffixes)
    return {"start": start, "end": time.time(), "cpu": watch.cpu, "made": len(set(made))}


PARTS: Final = {
    part.__name__: part
    for part in (load, load_new, prove, build, read, single, concurrent, keep_writing, history, mint)
}
LOADED: Final = ("load", "prove", "build", "read", "single", "concurrent")
"""What is done with each loaded ledger; its size is measured before more is written."""


# Running the parts


def _command(part: str, where: str, records: int, order: str) -> list[str]:
    return [sys.executable, "-m", "bench.ledger_load", "--part", part, where, str(records), order]


def _start(part: str, where: str, records: int, order: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(_command(part, where, records, order), cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _result(part: "subprocess.Popen[str]") -> Figures:
    try:
        written = part.communicate()[0]
    except BaseException:
        part.kill()
        raise
    if part.returncode:
        raise SystemExit(part.returncode)
    found: Figures = json.loads(written)
    return found


def run_part(part: str, where: str, records: int, order: str = "pilin") -> Figures:
    """Run a part in a process of its own."""
    return _result(_start(part, where, records, order))


def _loaded(records: int, order: str, groups: Sequence[Sequence[str]]) -> Figures:
    found: Figures = {}
    for parts in groups:
        with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder:
            for part in parts:
                _say(f"{records:,} records, {order}: {part}")
                found |= run_part(part, folder, records, order)
    return found


def _minted(where: str, name: str, processes: int, suffixes: int) -> Figures:
    parts = [_start("mint", where, suffixes, "-") for _ in range(processes)]
    found = [_result(part) for part in parts]
    total = sum(one["made"] for one in found)
    if total != processes * suffixes:
        raise RuntimeError("suffixes were minted twice")
    wall = max(one["end"] for one in found) - min(one["start"] for one in found)
    return {
        f"leases, {name}: suffixes/s": total / wall,
        f"leases, {name}: CPU µs per suffix": sum(one["cpu"] for one in found) / total * _MICRO,
    }


def _leases() -> Figures:
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder:
        _create_log(_file(folder)).store.close()
        found |= _minted(_file(folder), "SQLite, 1 process", 1, SUFFIXES)
        found |= _minted(_file(folder), "SQLite, 8 processes", 8, SUFFIXES)
    from tests.postgres import Cluster, PostgresMissing  # noqa: PLC0415 - of no use where only functions are measured

    try:
        with Cluster() as cluster:
            where = cluster.database()
            _create_log(where).store.close()
            found |= _minted(where, "PostgreSQL, 2 nodes", 2, SUFFIXES)
    except PostgresMissing as missing:
        print(missing, file=sys.stderr)
    return found


def _general() -> Figures:
    _say("histories and leases")
    with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder:
        found = _result(_start("history", folder, 0, "-"))
    short, long = (found[f"as of, {changes:,} changes: CPU µs"] for changes in CHANGES)
    return found | {f"as of, {CHANGES[1] // CHANGES[0]:,} times the changes: times the cost": long / short} | _leases()


# Printing


def _say(doing: str) -> None:
    """Show the current task in one transient line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing}", end="", file=sys.stderr, flush=True)


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1_000 else f"{figure:,.1f}"


def _print_table(sizes: Sequence[int], loaded: dict[str, list[Figures]], general: Figures) -> None:
    rows = [
        (f"{order}: {name}", [figures[name] for figures in found])
        for order, found in loaded.items()
        for name in found[0]
    ]
    width = max(len(name) for name, _ in (*rows, *((name, None) for name in general)))
    print(f"{'':<{width}}", *(f"{size:>12,}" for size in sizes), f"{'growth':>8}" if len(sizes) > 1 else "")
    for name, row in rows:
        growth = f"{row[-1] / row[0]:>7.2f}×" if len(row) > 1 and row[0] else ""
        print(f"{name:<{width}}", *(f"{_number(figure):>12}" for figure in row), growth)
    for name, figure in general.items():
        print(f"{name:<{width}} {_number(figure):>12}")


def _print_outlook(sizes: Sequence[int], loaded: dict[str, list[Figures]]) -> None:
    """Estimate the cost of very many handles: at the last cost, and with growing costs."""
    for order, found in loaded.items():
        first, last = found[0], found[-1]
        gigabytes = [last[f"bytes per record, {when}: both"] * MANY / 1e9 for when in ("loaded", "compacted")]
        name = "bulk append: CPU µs per record of the last tenth"
        hours = last[name] * MANY / _MICRO / 3_600
        size = f"{gigabytes[0]:,.0f} GB, {gigabytes[1]:,.0f} GB compacted"
        line = f"10⁸ handles, {order}: {size}; {hours:.1f} h of CPU to append"
        if len(sizes) > 1:
            tenfold = (last[name] / first[name]) ** (1 / log10(sizes[-1] / sizes[0]))
            later = hours * tenfold ** log10(MANY / sizes[-1])
            line += f", {later:.1f} h if each tenfold continues to cost {tenfold:.2f} times as much"
        load_hours = last["load of new handles: CPU µs per record"] * MANY / _MICRO / 3_600
        line += f"; {load_hours:.1f} h to load into an empty ledger"
        rebuilt = sum(last[f"rebuild {view}: CPU µs per record"] for view in ("records", "search", "answers"))
        print(f"{line}; {rebuilt * MANY / _MICRO / 3_600:.1f} h to rebuild all views")


def main() -> None:
    """Read the options, run the parts, print."""
    parser = argparse.ArgumentParser(description="Print what a ledger costs when it is filled.")
    parser.add_argument("--records", default=SIZES, help=f"numbers of records, separated by commas; default {SIZES}")
    parser.add_argument("--orders", default=",".join(ORDERS), help="orders of handles; default all")
    parser.add_argument("--ten-million", action="store_true", help="also 10,000,000: some 8 GB, and slow")
    parser.add_argument("--only-load", action="store_true", help="only the load of new handles")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)  # how the program starts itself
    options = parser.parse_args()
    if options.part:
        part, where, records, order = options.part
        print(json.dumps(PARTS[part](where, int(records), order)))
        return
    sizes = sorted(
        {int(size) for size in options.records.split(",")} | ({TEN_MILLION} if options.ten_million else set())
    )
    orders = options.orders.split(",")
    if unknown := set(orders) - set(ORDERS):
        parser.error(f"unknown order {', '.join(sorted(unknown))}; choose from {', '.join(ORDERS)}")
    groups = (("load_new",),) if options.only_load else (("load_new",), LOADED)
    loaded = {order: [_loaded(size, order, groups) for size in sizes] for order in orders}
    general = {} if options.only_load else _general()
    _say("")
    _print_table(sizes, loaded, general)
    if not options.only_load:
        _print_outlook(sizes, loaded)


# For bench/run.py


_folder = tempfile.TemporaryDirectory()


def benches() -> dict[str, Callable[[], object]]:
    """Single functions on a ledger of some thousand records."""
    records = 5_000
    log = _create_log(_file(_folder.name))
    for group in _groups(islice(_pilin(0), records), GROUP):
        log.append(group)
    log.append([_request("changed", str(number)) for number in range(1_000)])
    answers = Answers(_answers(_folder.name))
    answers.catch_up(log.open_reader)
    name = f"{PREFIX}/{next(_pilin(77))}".encode()
    key = record_key(f"{PREFIX}/changed")

    def as_of() -> object:
        with log.open_reader() as reader:
            return reader.as_of(key, records + 77)

    return {
        "answer": lambda: answers.get(name),
        "answer, taken apart": lambda: answers.find(name),
        "as of, 1,000 changes": as_of,
    }


if __name__ == "__main__":
    main()
