"""What a running server costs: `python -m bench.serving [--handles N,N] [--seconds S] [--resolvers N] …`.

An installation is filled, served by `perseid serve` as anybody would, and loaded from other processes of the same
machine, which share its cores with the server. So the rate is what is left when clients and server are on one machine;
what an answer costs is CPU time of the server's processes alone (user and system, as the kernel counts it), and hardly
depends on that. Every answer is checked: request id and code.

Resolution is measured with this machine under the limits of UDP like any other, which are set so high that they are
never reached; creates are measured with the limits as they come. Counters are on, and the access log is off except
where the line says so. Bare sockets do nothing for an answer but receive and send: what is above them is the server's
own work, and they tell how fast the machine is at the moment. The last two columns are what the server shall reach,
and what the incumbent was measured at on such a machine.

    --handles 10000,1000000   one column for each size
    --hdlbench PATH           the source of an independent load generator: compiled, and its figures beside ours
    --kills 5                 kill each process so often, and give median and longest (11 s each)
    --only resolution,…       some parts: resolution, access-log, creates, start, kills
    --profile FOLDER          profile every thread of the server, and print what takes longest; no figure counts then
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
from bench.serving.faults import first_answer, kills, resident, start_up, udp_while_control_dies
from bench.serving.installations import Filled, make
from bench.serving.resolving import WAYS, bare_sockets, compiled, cross_check, resolution
from tests.server.native.native_client import Serving, Via, serving

Figures = dict[str, float]

PARTS: Final = ("resolution", "access-log", "creates", "start", "kills")

AIMS: Final[dict[str, tuple[str, str]]] = {
    "UDP, found: CPU µs": ("≤ 12", "8.9–9.5 tuned, 17 as shipped"),
    "TCP, a connection each: CPU µs": ("≤ 36", "28–29"),
    "TCP, kept open: CPU µs": ("≤ 15", ""),
    "1 client, session, a connection each: creates/s": ("≥ 1,000", "650"),
    "8 clients, sessions, a connection each: creates/s": ("≥ 2,500", "1,140"),
    "1 client, RSA each time: creates/s": ("", "230"),
    "8 clients, RSA each time: creates/s": ("", "340"),
    "start: s to the first answer over UDP": ("", "1.1–3.4"),
    "memory, after load: all together, MiB": ("", "690 with 1 M"),
}
"""Of some lines: the aim, and the incumbent."""


LIMITS: Final = {
    "PERSEID_LIMITS_EXEMPT_NETWORKS": "192.0.2.0/24",
    "PERSEID_LIMITS_UDP_OCTETS": "1000000000",
    "PERSEID_LIMITS_UDP_BURST": "1000000000",
}
"""Settings with which this machine is limited like any other, by more than it can do."""

LOGGED: Final = {"PERSEID_LOG_ACCESS": "true", "PERSEID_LOG_ACCESS_UDP": "true"}
QUIET: Final = {"PERSEID_LOG_ACCESS": "false", "PERSEID_LOG_ACCESS_UDP": "false"}


def _figures(options: argparse.Namespace, handles: int, folder: Path) -> Figures:
    """All figures with so many handles."""
    _say(f"{handles:,} handles are written")
    filled = make(folder / "installation", handles)
    plain = {"PERSEID_SERVER_RESOLVERS": str(options.resolvers)}
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
            found |= _resolution(server, filled, options, folder)
            found |= resident(server, "after load")
        if "kills" in options.only:
            _say("kills")
            found |= udp_while_control_dies(server, filled, options.generators)
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


def _resolution(server: Serving, filled: Filled, options: argparse.Namespace, folder: Path) -> Figures:
    found: Figures = {}
    other = None if options.hdlbench is None else compiled(options.hdlbench, folder)
    for way in WAYS:
        _say(f"resolution: {way.name}")
        found |= resolution(server, filled, way, options.seconds, options.generators)
        if other is not None:
            found |= cross_check(other, server, filled, way, options.seconds)
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
    """Tell whoever waits what is being done, in one line that does not stay."""
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
    print(f"{'handles':<{width}}", *heads, f"{'aim':>9}", "  incumbent")
    for name in names:
        figures = (f"{_number(column[name]) if name in column else '':>11}" for column in columns)
        aim, incumbent = AIMS.get(name, ("", ""))
        print(f"{name:<{width}}", *figures, f"{aim:>9}", f"  {incumbent}".rstrip())
    print(
        f"{options.resolvers} resolvers, {options.generators} generators, {options.seconds} s each,"
        f" {os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}"
    )


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print what a running server costs.")
    parser.add_argument("--handles", default="10000", help="how many, several with commas between; default 10000")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each thing is measured; default 1")
    parser.add_argument("--resolvers", type=int, default=1, help="resolver processes; default 1")
    parser.add_argument("--generators", type=int, default=2, help="processes that load the server; default 2")
    parser.add_argument("--hdlbench", type=Path, help="the source of an independent load generator")
    parser.add_argument("--kills", type=int, default=1, help="how often each process is killed; default once")
    parser.add_argument("--profile", type=Path, help="a folder for profiles of the server's threads")
    parser.add_argument("--only", default=",".join(PARTS), help="parts with commas between; default all")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
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
