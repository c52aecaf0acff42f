"""Cost of the state that processes share; as a program, with several processes that write at the same time.

    python -m bench.state [--writers N] [--seconds S]

It prints the microseconds of wall-clock time that each process takes for a change, and how soon the next process
goes on after one was killed inside a transaction.
"""

import argparse
import atexit
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from perseid.server.state.runtime import SHARED_MEMORY
from perseid.server.state.state import Entry, SharedState, Table, Transaction

VALUE: Final = bytes(300)
"""About as long as a session."""
LIMIT: Final = 10_000
MAX_BYTES: Final = 64 << 20
KILLS: Final = 5


def _open(path: Path) -> tuple[SharedState, Table]:
    state = SharedState(path)
    return state, state.table("bench", version=1, max_entries=LIMIT, max_bytes=MAX_BYTES)


def benches() -> dict[str, Callable[[], object]]:
    """Return functions by name."""
    path = Path(tempfile.mkdtemp(prefix="perseid-bench-", dir=SHARED_MEMORY))
    atexit.register(shutil.rmtree, path)
    _, table = _open(path)
    numbers = count()
    key = os.urandom(32)
    table.put(key, Entry(VALUE, 1e9))

    def put(groups: tuple[tuple[bytes, int], ...] = ()) -> None:
        table.put(os.urandom(32), Entry(VALUE, float(next(numbers)), groups))

    return {
        "get": lambda: table.get(key, 0.0),
        "put, full table": put,
        "put in a group, full table": lambda: put(((b"192.0.2.1", 1_000),)),
        "update": lambda: table.update(key, 0.0, lambda value: Entry(value or VALUE, 1e9)),
    }


def _write(path: Path, seconds: float, result: Connection) -> None:
    _, table = _open(path)
    changes, end = 0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        table.put(os.urandom(32), Entry(VALUE, now))
        changes += 1
    result.send(seconds / changes * 1e6)


def _hang(path: Path, ready: Connection) -> None:
    state, table = _open(path)

    def change(txn: Transaction) -> None:
        table.write(txn, b"never", Entry(VALUE, 1e9))
        ready.send(None)
        time.sleep(60)

    state.write(change)


def main() -> None:
    """Measure several processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="perseid-bench-", dir=SHARED_MEMORY) as folder:
        path = Path(folder)
        for writers in range(1, options.writers + 1):
            pipes = [spawn.Pipe(duplex=False) for _ in range(writers)]
            processes = [spawn.Process(target=_write, args=(path, options.seconds, pipe)) for _, pipe in pipes]
            for process in processes:
                process.start()
            costs = [f"{receiver.recv():.1f}" for receiver, _ in pipes]
            for process in processes:
                process.join()
            print(f"{writers} writing: {', '.join(costs)} µs a put")
        _, table = _open(path)
        delays = []
        for _ in range(KILLS):
            receiver, ready = spawn.Pipe(duplex=False)
            process = spawn.Process(target=_hang, args=(path, ready))
            process.start()
            receiver.recv()
            os.kill(process.pid or 0, signal.SIGKILL)
            before = time.monotonic()
            table.put(b"next", Entry(VALUE, 1e9))
            delays.append(f"{(time.monotonic() - before) * 1e3:.2f}")
            process.join()
        print(f"the next change after a kill: {', '.join(delays)} ms")


if __name__ == "__main__":
    main()
