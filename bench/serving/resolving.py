"""What resolution costs: by our own load generator, and by an independent one for comparison."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench.serving import load
from bench.serving.bare import TCP, UDP, bare
from bench.serving.crew import at_work
from bench.serving.installations import FORMAT, PREFIX, Filled
from bench.serving.processes import Watch
from perseid.wire.codes import ResponseCode
from tests.server.native.native_client import Address

WARM_UP: Final = 0.3
"""Seconds for which a server is asked before what it takes is counted: caches fill, code is specialised."""
CONNECTIONS: Final = 16
"""Connections of a generator over TCP, each with one request outstanding."""

_MISSING = PREFIX + "/none-%07d"
_MICRO = 1e6

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask."""

    name: str
    mode: str
    found: bool = True
    """Whether what is asked for exists."""
    window: int = 1
    """Requests outstanding on each socket."""
    is_like_bare: bool = True
    """Whether a bare server can be asked in the same way: it takes what comes together for one request."""


WAYS: Final = (
    Way("UDP, found", load.UDP, window=8),
    Way("UDP, not found", load.UDP, found=False, window=8, is_like_bare=False),
    Way("TCP, a connection each", load.TCP),
    Way("TCP, kept open", load.KEPT),
    Way("TCP, kept open, 4 at a time", load.KEPT, window=4, is_like_bare=False),
)


class Asked(Protocol):
    """A server, as far as it is asked."""

    @property
    def pid(self) -> int:
        """The process whose children count as well."""

    @property
    def native(self) -> Address:
        """Where it answers."""


def resolution(server: Asked, filled: Filled, way: Way, seconds: float, generators: int) -> Figures:
    """Ask in one way, and see what an answer takes of the server."""
    ask(server, filled, way, WARM_UP, generators)
    tally, cpu = ask(server, filled, way, seconds, generators)
    found = {
        f"{way.name}: CPU µs": cpu / tally.answered * _MICRO,
        f"{way.name}: answers/s": tally.answered / tally.seconds,
        f"{way.name}: lost or wrong": tally.lost + tally.wrong,
    }
    return found | ({f"{way.name}: closed by the server": tally.reopened} if way.mode == load.KEPT else {})


def ask(server: Asked, filled: Filled, way: Way, seconds: float, generators: int) -> tuple[load.Tally, float]:
    """Ask in one way; what came, and the CPU seconds of the server."""
    by_udp = way.mode == load.UDP
    orders = [
        load.Order(
            way.mode,
            server.native,
            FORMAT if way.found else _MISSING,
            filled.handles,
            seconds,
            ResponseCode.SUCCESS if way.found else ResponseCode.HANDLE_NOT_FOUND,
            sockets=8 if by_udp else CONNECTIONS,
            window=way.window,
            seed=number,
        ).to_json()
        for number in range(generators)
    ]
    effort = at_work(server.pid, "bench.serving.load", orders)
    tally = sum((load.Tally(**report) for report in effort.reports), load.Tally())
    if not tally.answered:
        raise RuntimeError(f"{way.name}: no right answer at all, {tally}")
    return tally, effort.total


def bare_sockets(filled: Filled, seconds: float, generators: int) -> Figures:
    """What the same questions take of servers that do nothing for the answers."""
    found: Figures = {}
    for way in WAYS:
        if way.is_like_bare:
            with bare(UDP if way.mode == load.UDP else TCP) as server:
                ask(server, filled, way, WARM_UP, generators)
                tally, cpu = ask(server, filled, way, seconds, generators)
            found[f"{way.name}, bare sockets: CPU µs"] = cpu / tally.answered * _MICRO
    return found


# The independent generator


def compiled(source: Path, folder: Path) -> Path:
    """Compile it."""
    program = folder / "hdlbench"
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)  # noqa: S607 - the system's compiler
    return program


def cross_check(program: Path, server: Asked, filled: Filled, way: Way, seconds: float) -> Figures:
    """The same question, asked by the other generator: one process, as many requests outstanding."""
    mode = {load.UDP: "udp", load.TCP: "tcp", load.KEPT: "tcpka"}[way.mode]
    host, port = server.native
    command = [str(program), "-j", "-H", host, "-p", str(port), "-m", mode, "-n", str(filled.handles)]
    command += ["-f", FORMAT if way.found else _MISSING, "-R", "1" if way.found else "100"]
    command += ["-c", "16" if way.mode == load.UDP else str(2 * CONNECTIONS), "-w", str(way.window)]
    subprocess.run([*command, "-d", str(WARM_UP)], check=False, capture_output=True)
    watch = Watch(server.pid)
    done = subprocess.run([*command, "-d", str(seconds)], check=False, capture_output=True, text=True)
    cpu = sum(watch.spent().values())
    found = json.loads(done.stdout)
    return {
        f"{way.name}, hdlbench: CPU µs": cpu / found["ok"] * _MICRO,
        f"{way.name}, hdlbench: answers/s": found["rps"],
        f"{way.name}, hdlbench: lost or wrong": found["errors"],
    }
