"""Many clients change one record at the same time, through the writer process: how long do they wait?

    python -m bench.serving.contention [--clients 32] [--processes 2] [--seconds 5]

Each client is a task of an event loop in one of several processes, like a worker, and changes the same value again as
soon as its last change is acknowledged. Prints the waits, the changes a second and the CPU of all processes a change.
Every change must succeed: nobody is told that the record is too busy.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, cast

from perseid.ledger.log.log import Log
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create, Home, Modify
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation, create
from perseid.registry.policy.policy import PROFILES
from perseid.server.processes.remote_ledger import RemoteLedger
from perseid.server.processes.writer import WriterServer

WHO: Final = LocalIdentity("bench")
HANDLE: Final = Handle("12345", "busy")


def write(folder: Path, runtime: Path, pipe: Connection) -> None:
    """Run the writer until it is told to stop."""
    with Installation.open(folder) as installation:
        registry = installation.registry()
        registry.do(Home("0.NA/0.NA"), WHO, "cli")
        registry.do(AddNamespace("12345", PROFILES["free"]), WHO, "cli")
        registry.do(Create(HANDLE, (Value.text(1, "URL", "https://example.org/"),)), WHO, "cli")
        with WriterServer(installation.ledger, registry, runtime) as server:
            server.watch(pipe.fileno(), lambda: signal.raise_signal(signal.SIGALRM))
            signal.signal(signal.SIGALRM, lambda *_: stopped.append(True))
            stopped: list[bool] = []
            pipe.send("ready")
            before = _cpu()
            while not stopped:
                server.step(1.0)
            pipe.recv()
        pipe.send(_cpu() - before)


def change(folder: Path, runtime: Path, pipe: Connection, clients: int, seconds: float) -> None:
    """Change the record from several clients; send the waits in seconds, and the CPU time."""

    def open_ledger(log: Log, answers: Path) -> RemoteLedger:
        return RemoteLedger(log, AnswersReader(answers), runtime)

    waits: list[float] = []
    with Installation.open(folder, open_ledger=open_ledger) as installation:
        registry = installation.registry()

        async def client(number: int, until: float) -> None:
            while time.monotonic() < until:
                started = time.perf_counter()
                value = Value.text(1, "URL", f"https://example.org/{number}/{started}")
                await registry.execute(Modify(HANDLE, (value,)), WHO, "http")
                waits.append(time.perf_counter() - started)

        async def run() -> None:
            until = time.monotonic() + seconds
            await asyncio.gather(*[client(number, until) for number in range(clients)])
            cast("RemoteLedger", registry.ledger).disconnect()

        pipe.recv()
        before = _cpu()
        asyncio.run(run())
        pipe.send((waits, _cpu() - before))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folder, runtime = Path(place) / "installation", Path(place) / "run"
        runtime.mkdir(0o700)
        create(folder, environ={})
        writing, writer_pipe = context.Pipe()
        writer = context.Process(target=write, args=(folder, runtime, writer_pipe))
        writer.start()
        writing.recv()
        workers = []
        for _ in range(options.processes):
            mine, theirs = context.Pipe()
            share = options.clients // options.processes
            worker = context.Process(target=change, args=(folder, runtime, theirs, share, options.seconds))
            worker.start()
            workers.append((worker, mine))
        for _, pipe in workers:
            pipe.send("go")
        results = [pipe.recv() for _, pipe in workers]
        writing.send("stop")
        cpu = writing.recv() + sum(used for _, used in results)
        for process in (writer, *[worker for worker, _ in workers]):
            process.join()
    waits = sorted(wait for each, _ in results for wait in each)
    p50, p99 = (1_000 * waits[int(len(waits) * share)] for share in (0.5, 0.99))
    print(
        f"{options.clients} clients on one record: {len(waits):,} changes, {len(waits) / options.seconds:,.0f}/s; "
        f"wait p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {1_000 * waits[-1]:.1f} ms; "
        f"CPU {1_000_000 * cpu / len(waits):.0f} µs a change, of all processes; load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
