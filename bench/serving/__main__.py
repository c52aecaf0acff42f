"""Benchmark of a running server: `python -m bench.serving [--handles N,N] [--seconds S] [--workers N] …`.

`perseid serve` serves a filled installation; clients run in other processes of the same machine and share its cores. So
rates are what clients and server reach together on one machine; the cost of a response is CPU time of the server's
processes alone (user and system, as the kernel counts it), and hardly depends on that. Every response is checked:
request id and code.

Resolution is measured with UDP limits that apply to this machine but are never reached; creates are measured with
default limits. Counters are on, and the access log is off unless the line says so. Bare sockets only receive and send:
the difference is the server's own work, and they show the current speed of the machine. The last two columns are the
target, and the measurement of the deployed server on such a machine.

    --handles 10000,1000000   one column for each size
    --kills 5                 kill each process this often, and show median and maximum (11 s each)
    --only resolution,…       some parts: resolution, access-log, creates, start, kills
    --profile FOLDER          profile every thread of the server, and print the slowest functions; figures are invalid
"""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.serving import profiles
from bench.serving.creating import creates
from bench.serving.faults import first_answer, kills, resident, start_up, udp_while_a_worker_dies
from bench.serving.installations import Filled, make
from bench.serving.resolving import WAYS, bare_sockets, resolution
from perseid.cli._benchmark import LIMITS, QUIET
from tests.server.native.native_client import Serving, Via, serving

Figures = dict[str, float]

PARTS: Final = ("resolution", "access-log", "creates", "start", "kills")

AIMS: Final[dict[str, tuple[str, str]]] = {
    "UDP, found: CPU µs": ("≤ 12", "8.9–9.5 tuned, 17 as shipped"),
    "TCP, a connection each: CPU µs": ("≤ 36", "28–29"),
    "TCP, kept open: CPU µs": ("≤ 15", ""),
    "1 client, session, a connection each: creates/s": ("≥ 1,000", "650"),
    "8 clients, sessions, a connection each: creates/s": ("≥ 2,500", "1,140"),
    "1 client, session, pipelined: creates/s": ("≥ 2,500", ""),
    "1 client, RSA each time: creates/s": ("", "230"),
    "8 clients, RSA each time: creates/s": ("", "340"),
    "start: s to the first response over UDP": ("≤ 0.5", "1.1–3.4"),
    "memory, after load: all together, MiB without mapped files": ("≤ 200", ""),
    "memory, after load: all together, MiB": ("", "690 with 1 M"),
}
"""Target, and figure of the deployed server, for some lines."""


LOGGED: Final = {"PERSEID_LOG_ACCESS": "true", "PERSEID_LOG_ACCESS_UDP": "true"}


def _figures(options: argparse.Namespace, handles: int, folder: Path) -> Figures:
    """All figures for a number of handles."""
    _say(f"{handles:,} handles are written")
    filled = make(folder / "installation", handles)
    plain = {"PERSEID_SERVER_WORKERS": str(options.workers)}
    if options.profile is not None:
        plain |= profiles.settings(options.profile)
    settings = LIMITS | plain
    found: Figures = {}
    if "resolution" in options.only:
        _say("bare sockets")
        found |= bare_sockets(filled, options.seconds, options.generators)
    if "start" in options.only:
        _say("start")
        found |= start_up(filled.directory, settings | QUIET)
    with serving(filled.directory, **settings, **QUIET) as server:
        first_answer(server.native, Via.UDP)
        if "resolution" in options.only:
            for way in WAYS:
                _say(f"resolution: {way.name}")
                found |= resolution(server, filled, way, options.seconds, options.generators)
            found |= resident(server, "after load")
        if "kills" in options.only:
            _say("kills")
            found |= udp_while_a_worker_dies(server, filled, options.generators)
            found |= kills(server, options.kills)
    if "creates" in options.only:
        with serving(filled.directory, **plain, **QUIET) as server:
            first_answer(server.native, Via.UDP)
            found |= creates(server, filled, options.seconds, _say)
    if "access-log" in options.only:
        with serving(filled.directory, **settings, **LOGGED) as server:
            first_answer(server.native, Via.UDP)
            found |= _logged(server, filled, options)
    return found


def _logged(server: Serving, filled: Filled, options: argparse.Namespace) -> Figures:
    found: Figures = {}
    for way in WAYS:
        if way.found:
            _say(f"resolution, logged: {way.name}")
            measured = resolution(server, filled, way, options.seconds, options.generators)
            found |= {name.replace(":", ", access log on:", 1): figure for name, figure in measured.items()}
    return found


# Printing


def _say(doing: str) -> None:
    """Show progress in one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing}", end="", file=sys.stderr, flush=True)


def _number(figure: float) -> str:
    if figure == int(figure) or figure >= 1_000:
        return f"{figure:,.0f}"
    return f"{figure:,.1f}" if figure >= 10 else f"{figure:,.2f}"


def _print_table(sizes: list[int], columns: list[Figures], options: argparse.Namespace) -> None:
    names = list(dict.fromkeys(name for column in columns for name in column))
    width = max(map(len, names))
    heads = (f"{size:>11,}" for size in sizes)
    print(f"{'handles':<{width}}", *heads, f"{'target':>9}", "  deployed")
    for name in names:
        figures = (f"{_number(column[name]) if name in column else '':>11}" for column in columns)
        aim, incumbent = AIMS.get(name, ("", ""))
        print(f"{name:<{width}}", *figures, f"{aim:>9}", f"  {incumbent}".rstrip())
    print(
        f"{options.workers} workers, {options.generators} generators, {options.seconds} s each,"
        f" {os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}"
    )


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print what a running server costs.")
    parser.add_argument("--handles", default="10000", help="number of handles, comma-separated; default 10000")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds for each measurement; default 1")
    parser.add_argument("--workers", type=int, default=1, help="worker processes; default 1")
    parser.add_argument("--generators", type=int, default=2, help="load generator processes; default 2")
    parser.add_argument("--kills", type=int, default=1, help="how often each process is killed; default 1")
    parser.add_argument("--profile", type=Path, help="a folder for profiles of the server's threads")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated; default all")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    sizes = [int(size) for size in options.handles.split(",")]
    columns = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder:
            columns.append(_figures(options, size, Path(folder)))
    _say("")
    _print_table(sizes, columns, options)
    if options.profile is not None:
        profiles.show(options.profile)


if __name__ == "__main__":
    main()
