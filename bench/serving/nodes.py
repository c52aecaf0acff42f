"""Nodes on one PostgreSQL database, beside a ledger in a file.

    python -m bench.serving.nodes [--seconds 5] [--rounds 3] [--samples 200] [--only writes,visibility,recovery]

Writes: clients in sessions create records through kept connections, at one server or half of them at each of two nodes.
Servers, clients and the database, which waits for its disk, share the machine. CPU is that of the servers and of the
database. Visibility: from the response to a create at one node until the other one resolves the handle over UDP.
Recovery: from the promotion of a synchronous standby until a node acknowledges a change (`tests.server.failover`).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from bench.serving.installations import Filled
from bench.serving.writing import WriteOptions, Written
from perseid.server.benchmark.installation import PREFIX, three_values
from perseid.server.benchmark.processes import run_together
from perseid.wire.codes import ResponseCode
from tests.postgres import Cluster
from tests.server import failover
from tests.server.native.native_client import NativeClient, Serving, Via, serving

PARTS: Final = ("writes", "visibility", "recovery")
CLIENTS: Final = (1, 8)
QUIET: Final = {"PERSEID_LOG_ACCESS": "false"}
_DATABASE = "postgres"  # the name of its processes
_MICRO, _MILLI = 1e6, 1e3


def create(directory: Path, *options: str) -> Filled:
    """Create an installation."""
    made = json.loads(failover.perseid("init", directory, "--prefix", PREFIX, "--json", *options))
    return Filled(directory, 0, made["secret"])


def join(folder: Path, first: Path) -> Path:
    """Create another node."""
    passphrase, second = folder / "passphrase", folder / "second"
    passphrase.touch(0o600)
    passphrase.write_text("of a benchmark\n")
    failover.perseid("node", "export", folder / "node", "--passphrase-file", passphrase, "-d", first)
    failover.perseid("node", "join", folder / "node", "--passphrase-file", passphrase, "-d", second)
    return second


def writes(name: str, servers: Sequence[Serving], filled: Filled, seconds: float, database: Sequence[int] = ()) -> None:
    """Measure creates by clients that are spread over the servers; print a line for each number of clients."""
    for clients in CLIENTS:
        options = [
            WriteOptions(
                servers[number % len(servers)].native,
                str(filled.directory),
                filled.secret,
                "secret",
                in_session=True,
                via=Via.KEPT.value,
                label=f"{len(servers)}-{clients}-{number}",
                seconds=seconds,
            )
            for number in range(max(clients, len(servers)))
        ]
        first, *others = [server.pid for server in servers]
        result = run_together(first, "bench.serving.writing", options, *others, *database)
        written = [Written(**report) for report in result.reports]
        acknowledged = sum(one.acknowledged for one in written)
        if refused := sum(one.refused for one in written):
            raise RuntimeError(f"{refused} creates were refused")
        spent = result.cpu.get(_DATABASE, 0.0)
        print(
            f"{name}, {len(options)} clients: {acknowledged / max(one.seconds for one in written):,.0f} creates/s, "
            f"{(result.total - spent) / acknowledged * _MICRO:,.0f} µs CPU of servers, "
            f"{spent / acknowledged * _MICRO:,.0f} of the database",
            flush=True,
        )


def visibility(first: Serving, second: Serving, filled: Filled, samples: int) -> None:
    """Measure how soon the second node resolves what the first one has acknowledged."""
    waits = []
    identity, secret = filled.proof("secret")
    with NativeClient(first.native, Via.KEPT) as writing, NativeClient(second.native, Via.UDP) as reading:
        writing.act_as(identity, secret)
        writing.begin_session()
        for number in range(samples):
            name = f"{PREFIX}/visible-{number}"
            if writing.create(name, three_values(name)).code is not ResponseCode.SUCCESS:
                raise RuntimeError(f"{name} was not created")
            acknowledged = time.perf_counter()
            while reading.resolve(name).code is not ResponseCode.SUCCESS:
                pass
            waits.append((time.perf_counter() - acknowledged) * _MILLI)
    slow = quantiles(waits, n=100)[98]
    print(
        f"visible at the other node: median {median(waits):.1f} ms, 99 % {slow:.1f}, most {max(waits):.1f}", flush=True
    )


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description="Measure nodes on one PostgreSQL database.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if "writes" in options.only:
            file = create(folder / "file")
            with serving(file.directory, **QUIET) as server:
                writes("SQLite", [server], file, options.seconds)
        if {"writes", "visibility"} & set(options.only):
            cluster = stack.enter_context(Cluster())
            filled = create(folder / "first", "--database", cluster.database())
            second = join(folder, filled.directory)
            nodes = [stack.enter_context(serving(filled.directory, **QUIET))]
            if "writes" in options.only:
                writes("PostgreSQL, one node", nodes, filled, options.seconds, [cluster.pid])
            nodes.append(stack.enter_context(serving(second, **QUIET)))
            if "writes" in options.only:
                writes("PostgreSQL, two nodes", nodes, filled, options.seconds, [cluster.pid])
            if "visibility" in options.only:
                visibility(nodes[0], nodes[1], filled, options.samples)
    if "recovery" in options.only:
        recoveries = failover.run(options.rounds, seed=1)
        print(f"recovery after a promotion: median {median(recoveries):.2f} s, most {max(recoveries):.2f}")


if __name__ == "__main__":
    main()
