"""Benchmarks of functions: `bench/run.py [--only BENCH]... [--rounds N] [--json]`.

Every other file in this folder, except `__main__.py`, is a benchmark: a module with a function `benches()` that returns
functions without arguments by name. A figure is CPU time of this process, so that other work on the machine matters
little, and the best of several rounds, so that cold caches do not matter. Each round calls every function in turn, so
figures of one run can be compared. Those of two runs cannot, unless the machine is idle and the same.

The first line is the cost of calling an empty function, which is part of every other figure. The last column is the
peak of allocated bytes of one call, including its result.
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
"""Duration of one function in one round: far more than the resolution of the clock."""
ROUNDS = 7

Function = Callable[[], object]


@dataclass(slots=True)
class Measured:
    """A function and its cost."""

    bench: str
    name: str
    function: Function
    calls: int = 1
    best: float = field(default=float("inf"))
    """Nanoseconds for a call."""
    bytes_allocated: int = 0
    """Peak allocation of a call."""

    def calibrate(self) -> None:
        """Find the number of calls in a round."""
        while (spent := _spent(self.function, self.calls)) < ROUND_NS / 10:
            self.calls *= 10
        self.calls = max(1, round(self.calls * ROUND_NS / spent))

    def measure(self) -> None:
        """Run one round."""
        self.best = min(self.best, _spent(self.function, self.calls) / self.calls)

    def measure_memory(self) -> None:
        """Measure the allocation of one call; tracing is slow, so this comes last."""
        tracemalloc.start()
        try:
            base, _ = tracemalloc.get_traced_memory()
            result = self.function()
            _, height = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        del result
        self.bytes_allocated = height - base


def _spent(function: Function, calls: int) -> int:
    """CPU nanoseconds of some calls."""
    start = time.process_time_ns()
    for _ in repeat(None, calls):
        function()
    return time.process_time_ns() - start


def _nothing() -> None:
    pass


def _found() -> list[str]:
    here = Path(__file__)
    return sorted(path.stem for path in here.parent.glob("*.py") if path.stem not in {here.stem, "__main__"})


def measure(benches: Sequence[str], rounds: int) -> list[Measured]:
    """Measure all functions of the named benchmarks, and an empty call first."""
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
        row.measure_memory()
    return rows


def _print_table(rows: Sequence[Measured], rounds: int) -> None:
    labels = [f"{row.bench}: {row.name}" if row.bench else row.name for row in rows]
    width = max(map(len, labels))
    print(f"{'':<{width}}  {'ns a call':>12}  {'calls a second':>16}  {'bytes':>9}")
    for label, row in zip(labels, rows, strict=True):
        print(f"{label:<{width}}  {row.best:>12,.0f}  {1e9 / row.best:>16,.0f}  {row.bytes_allocated:>9,}")
    print(f"CPU time, best of {rounds} rounds, {platform.python_implementation()} {platform.python_version()}")


def _print_json(rows: Sequence[Measured], rounds: int) -> None:
    figures = [
        {"bench": row.bench or None, "name": row.name, "nanoseconds": round(row.best, 1), "bytes": row.bytes_allocated}
        for row in rows
    ]
    about = {"implementation": platform.python_implementation(), "python": platform.python_version()}
    print(json.dumps({**about, "rounds": rounds, "figures": figures}))


def main() -> None:
    """Parse the options, measure, print."""
    found = _found()
    parser = argparse.ArgumentParser(description="Print what things cost.")
    parser.add_argument("--only", action="append", choices=found, help="benchmark to run; may be repeated; default all")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds; default {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = measure(options.only or found, options.rounds)
    (_print_json if options.json else _print_table)(rows, options.rounds)


if __name__ == "__main__":
    main()
