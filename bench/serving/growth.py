"""How the costs of an installation grow: `python -m bench.serving.growth [--handles 10000,1000000] [--seconds S]`.

For each size an installation is filled with one load and served; the table has a column for each. Costs are CPU
microseconds of all processes of the server, for a request of one client. The time of the fastest request of a hundred
includes the client; other load hardly changes it. An installation of ten million handles needs 16 GB while it is
loaded. All are removed at the end.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.ledger_load import Stopwatch
from bench.serving.api import CASES, SETTINGS, Connection, measure, token_for
from bench.serving.faults import first_answer, resident, time_start
from bench.serving.installations import Filled, make
from bench.serving.resolving import WAYS, resolution
from perseid.cli._benchmark import LIMITS, QUIET
from perseid.registry.installation.installation import Installation
from tests.server.native.native_client import Via, serving

REQUESTS: Final = ("record", "history", "proof", "find by URL", "consistency proof", "set a value", "mint")
"""The requests of `bench.serving.api` that are measured."""

Figures = dict[str, float]


def figures(folder: Path, handles: int, seconds: float, generators: int) -> Figures:
    """Fill an installation, and measure everything."""
    directory, watch = folder / "installation", Stopwatch()
    with watch.running():
        filled = make(directory, handles)
    found = watch.figures("filled", handles, "handle") | _sizes(directory, handles)
    settings = LIMITS | QUIET
    time_start(directory, settings)  # compiles the modules
    started = time_start(directory, settings)
    found["start: s to the first response over UDP"] = started["start: s to the first response over UDP"]
    with serving(directory, **settings) as server:
        first_answer(server.native, Via.UDP)
        for way in WAYS[:2]:
            found[f"{way.name}: CPU µs"] = resolution(server, filled, way, seconds, generators)[f"{way.name}: CPU µs"]
        memory = "memory, after resolution: all together, MiB without mapped files"
        found[memory] = resident(server, "after resolution")[memory]
    return found | _requests(filled, seconds) | _checks(directory)


def _requests(filled: Filled, seconds: float) -> Figures:
    found: Figures = {}
    credentials = {"Bearer": token_for(filled.directory)}
    with serving(filled.directory, **SETTINGS) as server:
        for case in [case for case in CASES if case.name in REQUESTS]:
            with closing(Connection(server.http, credentials)) as ask:
                measured = measure(server.pid, [ask], case, filled.handles, seconds)
            found[f"{case.name}: CPU µs"] = measured.cpu
            found[f"{case.name}: fastest of a hundred, ms"] = measured.fastest
    return found


def _sizes(directory: Path, handles: int) -> Figures:
    """The size of all files per handle."""
    ledger = sum(path.stat().st_size for path in directory.glob("ledger.db*"))
    whole = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
    return {"disk: bytes per handle": whole / handles, "disk, ledger and SQL views: bytes per handle": ledger / handles}


def _checks(directory: Path) -> Figures:
    """Open the installation, as every local command does."""
    watch = Stopwatch()
    with watch.running(), Installation.open(directory):
        pass
    return {"open the installation: CPU ms": watch.cpu * 1e3}


def _print_table(sizes: Sequence[int], columns: Sequence[Figures]) -> None:
    width = max(map(len, columns[0]))
    print(f"{'handles':<{width}}", *(f"{size:>12,}" for size in sizes))
    for name in columns[0]:
        row = (column[name] for column in columns)
        print(f"{name:<{width}}", *(f"{figure:>12,.0f}" if figure >= 1_000 else f"{figure:>12,.2f}" for figure in row))


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print how the costs of an installation grow.")
    parser.add_argument("--handles", default="10000,1000000", help="sizes, comma-separated; default 10000,1000000")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each measurement; default 2")
    parser.add_argument("--generators", type=int, default=1, help="processes that request over UDP; default 1")
    options = parser.parse_args()
    sizes = sorted({int(size) for size in options.handles.split(",")})
    columns = []
    for handles in sizes:
        print(f"{handles:,} handles", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="perseid-growth-") as folder:
            columns.append(figures(Path(folder), handles, options.seconds, options.generators))
    _print_table(sizes, columns)


if __name__ == "__main__":
    main()
