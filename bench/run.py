"""Print what things cost: `make bench`, or `bench/run.py [--only BENCH]... [--rounds N] [--json]`.

Every other file in this folder is a bench: a module with a function `benches()` that gives, by name, functions
without arguments to call. A figure is CPU time of this process, so that other work on the machine counts little,
and the best of several rounds, so that cold caches and a slow moment do not count either. Each round calls every
function in turn, so figures of one run can be compared with each other. Those of two runs cannot, unless the
machine is quiet and the same.

The first line is the cost of calling a function that does nothing; it is contained in every other figure. The last
column says how many octets one call has allocated at its height, its result included.
"""

import argparse
import gc
import importlib
import json
import platform
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

ROUND_NS = 20_000_000
"""How long one function is called in one round: far more than the resolution of the clock."""
ROUNDS = 7

Function = Callable[[], object]


@dataclass(slots=True)
class Measured:
    """One function and what it has cost so far."""

    bench: str
    name: str
    function: Function
    calls: int = 1
    best: float = field(default=float("inf"))
    """Nanoseconds a call."""
    octets: int = 0
    """Allocated at the height of a call."""

    def calibrate(self) -> None:
        """Find out how many calls fill a round."""
        while (spent := _spent(self.function, self.calls)) < ROUND_NS / 10:
            self.calls *= 10
        self.calls = max(1, round(self.calls * ROUND_NS / spent))

    def measure(self) -> None:
        """Go one round."""
        self.best = min(self.best, _spent(self.function, self.calls) / self.calls)

    def weigh(self) -> None:
        """See what one call allocates; tracing slows everything, so this comes after the measuring."""
        tracemalloc.start()
        try:
            base, _ = tracemalloc.get_traced_memory()
            kept = self.function()
            _, height = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        del kept
        self.octets = height - base


def _spent(function: Function, calls: int) -> int:
    """The CPU time, in nanoseconds, of so many calls."""
    start = time.process_time_ns()
    for _ in repeat(None, calls):
        function()
    return time.process_time_ns() - start


def _nothing() -> None:
    pass


def _found() -> list[str]:
    here = Path(__file__)
    return sorted(path.stem for path in here.parent.glob("*.py") if path.name != here.name)


def measure(benches: Sequence[str], rounds: int) -> list[Measured]:
    """Load the named benches and measure all their functions, and an empty call first."""
    rows = [Measured("", "empty call", _nothing)]
    for bench in benches:
        functions = importlib.import_module(bench).benches()
        rows += [Measured(bench, name, function) for name, function in functions.items()]
    gc.disable()
    try:
        for row in rows:
            row.calibrate()
        for _ in range(rounds):
            for row in rows:
                row.measure()
            gc.collect()
    finally:
        gc.enable()
    for row in rows:
        row.weigh()
    return rows


def _print_table(rows: Sequence[Measured], rounds: int) -> None:
    labels = [f"{row.bench}: {row.name}" if row.bench else row.name for row in rows]
    width = max(map(len, labels))
    print(f"{'':<{width}}  {'ns a call':>12}  {'calls a second':>16}  {'octets':>9}")
    for label, row in zip(labels, rows, strict=True):
        print(f"{label:<{width}}  {row.best:>12,.0f}  {1e9 / row.best:>16,.0f}  {row.octets:>9,}")
    print(f"CPU time, best of {rounds} rounds, {platform.python_implementation()} {platform.python_version()}")


def _print_json(rows: Sequence[Measured], rounds: int) -> None:
    figures = [
        {"bench": row.bench or None, "name": row.name, "nanoseconds": round(row.best, 1), "octets": row.octets}
        for row in rows
    ]
    about = {"implementation": platform.python_implementation(), "python": platform.python_version()}
    print(json.dumps({**about, "rounds": rounds, "figures": figures}))


def main() -> None:
    """Read the options, measure, print."""
    found = _found()
    parser = argparse.ArgumentParser(description="Print what things cost.")
    parser.add_argument("--only", action="append", choices=found, help="this bench; may be repeated; default all")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each is measured; default {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = measure(options.only or found, options.rounds)
    (_print_json if options.json else _print_table)(rows, options.rounds)


if __name__ == "__main__":
    main()
