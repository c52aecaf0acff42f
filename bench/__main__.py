"""Perseid beside other servers, in one table: `python -m bench [--only PARTS] [--quick] [--handles N] …`.

Every row is compared with an anchor of the same run: an echo in C, Knot, NSD, nginx, or SQLite alone. So figures of two
machines, or of a busy machine, can be compared by their ratios. All rounds call every measurement in turn; the table
has medians. It is printed, and written to `bench/results/` as Markdown and as JSON with the figures of each round.

    --only udp,http      some parts: udp, tcp, http, creates, bulk, memory, start
    --quick              one second for each sample, two rounds, 10,000 records: some minutes
    --handles 1000000    handles in the installations, and names in the zones of the DNS servers

Ctrl-C stops everything that was started.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from bench.table import anchors
from bench.table.probes import PARTS, Lab, Plan
from bench.table.report import Report, Sample, describe_machine, row

RESULTS: Final = Path(__file__).resolve().parent / "results"
QUICK: Final = Plan(records=10_000, seconds=1.0, rounds=2)
_WIDTH: Final = 72


def run(plan: Plan, only: tuple[str, ...] = tuple(PARTS)) -> Report:
    """Measure; servers run in a new folder that is removed."""
    programs = frozenset[str]().union(*(PARTS[part].programs for part in only))
    if problem := anchors.missing(set(programs)):
        raise SystemExit(problem)
    started = time.monotonic()
    machine = describe_machine(_version(), {name: anchors.version(name) for name in sorted(programs)})
    samples: dict[tuple[str, str], list[Sample]] = {}
    with tempfile.TemporaryDirectory(prefix="perseid-table-") as folder, ExitStack() as stack:
        Path(folder).chmod(0o755)  # the worker of nginx is another user
        lab = Lab(Path(folder), plan, stack)
        probes = []
        for part in only:
            _say(f"{part}: servers are started")
            probes += list(PARTS[part].probes(lab))
        for number in range(plan.rounds):
            for place, probe in enumerate(probes, number * len(probes) + 1):
                _say(f"{place}/{plan.rounds * len(probes)} {probe.part}: {probe.name}")
                samples.setdefault((probe.part, probe.name), []).append(probe.sample())
        _say("servers are stopped")
    rows = tuple(
        row(
            probe.part,
            probe.name,
            probe.unit,
            samples[probe.part, probe.name],
            probe.anchor,
            samples[probe.part, probe.anchor],
        )
        for probe in probes
    )
    _say("")
    return Report(machine, asdict(plan), round(time.monotonic() - started, 1), rows)


def _version() -> str:
    """The commit that is measured."""
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "without a repository"


def _say(doing: str) -> None:
    """Show progress: on a terminal in one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing[:_WIDTH]}", end="", file=sys.stderr, flush=True)
    elif doing:
        print(doing, file=sys.stderr, flush=True)


def _stop(number: int, _frame: object) -> None:
    """Leave, and stop all servers on the way out, which a second signal does not interrupt."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    """Parse the options, measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare Perseid with other servers.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated; default all")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--handles", type=int, help=f"handles in each installation; default {Plan().handles}")
    parser.add_argument("--records", type=int, help=f"records of bulk work; default {Plan().records}")
    parser.add_argument("--seconds", type=float, help=f"seconds of each sample; default {Plan().seconds:g}")
    parser.add_argument("--rounds", type=int, help=f"samples of each row; default {Plan().rounds}")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER", help="where the results are written")
    options = parser.parse_args()
    only = tuple(options.only.split(","))
    if unknown := set(only) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    chosen = {name: getattr(options, name) for name in ("handles", "records", "seconds", "rounds")}
    plan = replace(QUICK if options.quick else Plan(), **{name: one for name, one in chosen.items() if one is not None})
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _stop)
    report = run(plan, only)
    print(report.to_markdown(), end="")
    print(f"\nWritten: {report.save(options.output)}")


if __name__ == "__main__":
    main()
