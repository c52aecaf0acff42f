"""Cost of resolution: with our load generator, and with an independent one for comparison."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from bench.serving.installations import Filled
from perseid.server.benchmark import load
from perseid.server.benchmark.bare import TCP, UDP, Bare, bare
from perseid.server.benchmark.installation import FORMAT, PREFIX
from perseid.server.benchmark.processes import CpuMeter, run_together
from perseid.wire.codes import ResponseCode
from tests.server.native.native_client import Address

WARM_UP: Final = 0.3
"""Seconds of load before the measurement: caches fill, code is specialized."""
PATIENCE: Final = 60.0
"""Seconds after which a server without a response has failed."""
CONNECTIONS: Final = 16
"""TCP connections of a generator, each with one outstanding request."""
ECHO_BYTES: Final = 300
"""Bytes that the echo sends: about a response with three values."""

_MISSING = PREFIX + "/none-%07d"
_MICRO = 1e6

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to send requests."""

    name: str
    mode: str
    found: bool = True
    """Whether the handles exist."""
    window: int = 1
    """Requests outstanding on each socket."""
    is_like_bare: bool = True
    """Whether a bare server supports it: that treats pipelined requests as one."""


WAYS: Final = (
    Way("UDP, found", load.UDP, window=8),
    Way("UDP, not found", load.UDP, found=False, window=8, is_like_bare=False),
    Way("TCP, a connection each", load.TCP),
    Way("TCP, kept open", load.KEPT),
    Way("TCP, kept open, 4 at a time", load.KEPT, window=4, is_like_bare=False),
)


class MeasuredServer(Protocol):
    """The interface of a measured server."""

    @property
    def pid(self) -> int:
        """The process; its children are included."""

    @property
    def native(self) -> Address:
        """Its address."""


def resolution(server: MeasuredServer, filled: Filled, way: Way, seconds: float, generators: int) -> Figures:
    """Measure one way; return CPU time and rate."""
    ask(server, filled, way, WARM_UP, generators)
    tally, cpu = ask(server, filled, way, seconds, generators)
    found = {
        f"{way.name}: CPU µs": cpu / tally.answered * _MICRO,
        f"{way.name}: responses/s": tally.answered / tally.seconds,
        f"{way.name}: lost or wrong": tally.lost + tally.wrong,
    }
    return found | ({f"{way.name}: closed by the server": tally.reopened} if way.mode == load.KEPT else {})


def ask(server: MeasuredServer, filled: Filled, way: Way, seconds: float, generators: int) -> tuple[load.Tally, float]:
    """Send requests one way; return the results and the CPU seconds of the server."""
    by_udp = way.mode == load.UDP
    options = [
        load.LoadOptions(
            way.mode,
            server.native,
            FORMAT if way.found else _MISSING,
            filled.handles,
            seconds,
            ResponseCode.SUCCESS if way.found else ResponseCode.HANDLE_NOT_FOUND,
            sockets=8 if by_udp else CONNECTIONS,
            window=way.window,
            seed=number,
        )
        for number in range(generators)
    ]
    result = run_together(server.pid, load.__name__, options)
    tally = sum((load.Tally(**report) for report in result.reports), load.Tally())
    if not tally.answered:
        raise RuntimeError(f"{way.name}: no correct response, {tally}")
    return tally, result.total


def bare_sockets(filled: Filled, seconds: float, generators: int) -> Figures:
    """Cost of the same requests for bare servers."""
    found: Figures = {}
    for way in WAYS:
        if way.is_like_bare:
            with bare(UDP if way.mode == load.UDP else TCP) as server:
                ask(server, filled, way, WARM_UP, generators)
                tally, cpu = ask(server, filled, way, seconds, generators)
            found[f"{way.name}, bare sockets: CPU µs"] = cpu / tally.answered * _MICRO
    return found


# The independent generator, and the least that a server in C costs


def compile_program(name: str, folder: Path) -> Path:
    """Compile `hdlbench` or `cecho`; needs a C compiler."""
    program = folder / name
    source = Path(__file__).with_name(f"{name}.c")
    command = ["cc", "-O2", "-o", str(program), str(source)]
    environ = os.environ | {"TMPDIR": str(folder)}  # an interrupted compiler leaves its files
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ, process_group=0) as process:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        try:
            errors = process.stderr.read()
        except BaseException:
            # All parts of the compiler hold the pipe: after its end, none of them writes into the folder.
            os.killpg(process.pid, signal.SIGKILL)
            process.stderr.read()
            raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{errors}")
    return program


@contextmanager
def echo(program: Path, kind: str = UDP) -> Iterator[Bare]:
    """Run `cecho` during the block."""
    command = [str(program), str(ECHO_BYTES) if kind == UDP else kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            yield Bare(process.pid, ("127.0.0.1", int(process.stdout.readline())))
        finally:
            process.kill()


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Load:
    """Results of a load."""

    cpu: float
    """CPU microseconds of the server for a correct response."""
    rate: float
    failed: int
    """Requests that were lost, or have a wrong response."""


def load_independently(
    program: Path, server: MeasuredServer, way: Way, handles: int, seconds: float, code: int | None = None
) -> Load:
    """Load a server by `hdlbench`; `code` is the expected response code."""
    mode = {load.UDP: "udp", load.TCP: "tcp", load.KEPT: "tcpka"}[way.mode]
    host, port = server.native
    command = [str(program), "-j", "-H", host, "-p", str(port), "-m", mode, "-n", str(handles)]
    if code is None:
        code = ResponseCode.SUCCESS if way.found else ResponseCode.HANDLE_NOT_FOUND
    command += ["-f", FORMAT if way.found else _MISSING, "-R", str(int(code))]
    command += ["-c", "16" if way.mode == load.UDP else str(2 * CONNECTIONS), "-w", str(way.window)]
    subprocess.run([*command, "-d", str(WARM_UP)], check=False, capture_output=True)

    def measure(seconds: float) -> Load | None:
        meter = CpuMeter(server.pid)
        done = subprocess.run([*command, "-d", str(seconds)], check=False, capture_output=True, text=True)
        cpu = sum(meter.spent().values())
        found = json.loads(done.stdout)
        return Load(cpu / found["ok"] * _MICRO, found["rps"], found["errors"]) if found["ok"] else None

    return until_answered(measure, seconds)


def until_answered(measure: Callable[[float], _Result | None], seconds: float) -> _Result:
    """Measure; while there is no response, which a busy machine may have, again for twice as long."""
    while (found := measure(seconds)) is None:
        if seconds > PATIENCE:
            raise RuntimeError("no correct response")
        seconds *= 2
    return found
