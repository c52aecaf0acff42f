"""`perseid bench`: measure this machine."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from perseid.schema.benchmark import BenchmarkReport

from . import _benchmark
from ._arguments import printable
from ._output import AsJson, CommandFailed, print_json, print_message, print_text

_HEADINGS = ("measurement", "per second", "CPU µs", "ratio", "failed")


def bench(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="A folder on the disk to measure.")] = Path(),
    *,
    records: Annotated[
        int, typer.Option("--records", metavar="N", min=1, max=10_000_000, help="Records in the scratch installation.")
    ] = 10_000,
    seconds: Annotated[
        int | None, typer.Option("--seconds", metavar="S", min=1, max=3_600, help="Seconds of load in all (24).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure how fast Perseid is on this machine, in about 30 seconds.

    The command creates a scratch installation in FOLDER, fills it, runs a server on it, sends requests from this
    machine, and removes everything. It does not touch your installation. CPU µs is the processor time of the server for
    each request, and the ratio compares it with bare UDP sockets of the same run. Run it on an idle machine.

    For example:
        perseid bench . --json
    """
    if not folder.is_dir():
        raise typer.BadParameter(f"{printable(str(folder))} is not a folder", param_hint="FOLDER")
    signal.signal(signal.SIGTERM, _exit)
    try:
        report = _benchmark.measure(
            folder, records, seconds or _benchmark.SECONDS, lambda name: print_message(f"Measuring: {name}")
        )
    except RuntimeError as problem:
        raise CommandFailed(f"The measurement failed: {problem}.") from problem
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if json:
        print_json(report)
    else:
        print_table(report)


def _exit(number: int, _frame: object) -> None:
    """Stop the server and remove the installation on the way out."""
    raise SystemExit(128 + number)


def print_table(report: BenchmarkReport) -> None:
    """Print the measurements for people."""
    floor = next(row.cpu_microseconds for row in report.rows if row.name == _benchmark.FLOOR)
    rows = [
        (
            row.name,
            f"{row.per_second:,.0f}",
            f"{row.cpu_microseconds:,.1f}",
            f"{row.cpu_microseconds / floor:.1f}" if floor else "–",
            f"{row.failed:,}",
        )
        for row in report.rows
    ]
    first, *widths = (max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True))
    for name, *cells in (_HEADINGS, *rows):
        print_text("  ".join((f"{name:<{first}}", *(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True)))))
    print_text(
        f"\n{report.records:,} records, {report.cores} cores; start {report.start_seconds:.2f} s; "
        f"memory {report.memory_mib:.0f} MiB"
    )


commands: dict[str, Callable[..., None] | typer.Typer] = {"bench": bench}
