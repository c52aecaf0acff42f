"""Figures of this machine for `perseid bench`: a scratch installation is filled, served, asked and removed.

Every figure of a run is made under the same conditions, so the figures of one run can be compared. CPU time is that of
the server's processes alone; rates are what clients and server reach together, because they share the machine.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final

from perseid.client import NativeClient
from perseid.client.native_operations import create as create_operation
from perseid.registry.installation.installation import Installation
from perseid.schema.benchmark import BenchmarkReport, BenchmarkRow
from perseid.server.benchmark import load
from perseid.server.benchmark.bare import UDP, bare
from perseid.server.benchmark.installation import ADMINISTRATOR, FORMAT, PREFIX, fill, three_values
from perseid.server.benchmark.processes import CpuMeter, find_processes, memory, run_together
from perseid.wire.codes import ResponseCode

SECONDS: Final = 24
"""Seconds of load in all, unless the caller chooses: with start and warm-up, half a minute."""
WARM_UP: Final = 0.2
"""Seconds of load before each measurement: caches fill, code is specialized."""
IDLE_INTERVAL: Final = 0.3
"""Seconds after which a server that has used less than a tenth of them is idle."""
MAX_IDLE_WAIT: Final = 6.0
"""Seconds to wait for that; on a busy machine the figures are worse."""
SOCKETS: Final = 8
LIMITS: Final = {
    "PERSEID_LIMITS_EXEMPT_NETWORKS": "192.0.2.0/24",
    "PERSEID_LIMITS_HTTP_AT_ONCE": "1000000",
    "PERSEID_LIMITS_UDP_OCTETS": "1000000000",
    "PERSEID_LIMITS_UDP_BURST": "1000000000",
    "PERSEID_LIMITS_UDP_OCTETS_IN_ALL": "1000000000",
}
"""Limits that apply to this machine but are never reached."""
QUIET: Final = {
    "PERSEID_LOG_ACCESS": "false",
    "PERSEID_LOG_ACCESS_UDP": "false",
    "PERSEID_LOG_LEVEL": "warning",
}
"""No access log, which could be on a slow terminal."""

STOP_SECONDS: Final = 30
"""How long a server may take to stop before it is killed."""

_PROGRAM = (sys.executable, "-P", "-c", "from perseid.cli import main; main()")
_MICRO = 1e6
_FOUND, _MISSING = FORMAT, PREFIX + "/none-%07d"

_LOADS: Final = (
    ("UDP resolution", load.UDP, _FOUND, ResponseCode.SUCCESS),
    ("UDP resolution, not found", load.UDP, _MISSING, ResponseCode.HANDLE_NOT_FOUND),
    ("TCP resolution, a connection each", load.TCP, _FOUND, ResponseCode.SUCCESS),
    ("TCP resolution, kept open", load.KEPT, _FOUND, ResponseCode.SUCCESS),
    ("HTTP redirect", load.HTTP, f"/{_FOUND}", 302),
    ("HTTP JSON record", load.HTTP, f"/api/handles/{_FOUND}", 200),
)
FLOOR: Final = "bare UDP sockets"
"""The measurement that shows the speed of the machine."""
PARTS: Final = len(_LOADS) + 2
"""Measurements that share the time: the loads, bare sockets and creates."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that was started to be measured."""

    pid: int
    native: tuple[str, int]
    http: tuple[str, int]
    start_seconds: float
    """From the start of the program to its message that it is ready."""


def _environ() -> dict[str, str]:
    """The environment without settings: they belong to another installation, and could name its database."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PERSEID_")}


def create(directory: Path) -> str:
    """Create an installation with a namespace; return the secret of its administrator."""
    command = [*_PROGRAM, "init", str(directory), "--prefix", PREFIX, "--json"]
    done = subprocess.run(command, env=_environ(), check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this program
    if done.returncode:
        raise RuntimeError("the scratch installation was not created; see the messages of perseid init")
    return str(json.loads(done.stdout)["secret"])


@contextmanager
def serving(directory: Path, environ: Mapping[str, str]) -> Iterator[RunningServer]:
    """Run a server on free ports of this machine during the block."""
    ports = ("--host", "127.0.0.1", "--native-port", "0", "--http-port", "0", "--metrics-port", "0")
    command = [*_PROGRAM, "serve", "-d", str(directory), *ports, "--json"]
    started = time.monotonic()
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this program
        try:
            if process.stdout is None or not (line := process.stdout.readline()):
                raise RuntimeError("the server did not start; see its messages")
            ready: dict[str, Any] = json.loads(line)
            yield RunningServer(
                process.pid, _address(ready["native"]), _address(ready["http"]), time.monotonic() - started
            )
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(ready: dict[str, Any]) -> tuple[str, int]:
    return ready["host"], ready["port"]


def measure(folder: Path, records: int, seconds: float, step: Callable[[str], None]) -> BenchmarkReport:
    """Measure in a new directory inside `folder`, on its file system; `step` gets the name of each measurement."""
    share = seconds / PARTS
    with tempfile.TemporaryDirectory(prefix=".perseid-bench-", dir=folder) as scratch:
        directory = Path(scratch) / "installation"
        step(f"{records:,} records")
        secret = create(directory)
        bulk = _fill(directory, records)
        step(FLOOR)
        with bare(UDP) as echo:
            floor = _load(
                "bare UDP sockets", echo.pid, echo.native, load.UDP, _FOUND, ResponseCode.SUCCESS, records, share
            )
        step("start")
        with serving(directory, _environ() | LIMITS | QUIET) as server:
            _wait_until_idle(server.pid)
            rows = [bulk, floor]
            for name, mode, format_, code in _LOADS:
                step(name)
                address = server.http if mode == load.HTTP else server.native
                rows.append(_load(name, server.pid, address, mode, format_, code, records, share))
            step("creates")
            rows.append(_creates(server, secret, share))
            used = sum(memory(pid).own for pid in find_processes(server.pid))
        return BenchmarkReport(records, len(os.sched_getaffinity(0)), server.start_seconds, used, tuple(rows))


def _wait_until_idle(pid: int) -> None:
    """Wait until the workers have loaded pages and the API, which they do after they have started to serve."""
    for _ in range(int(MAX_IDLE_WAIT / IDLE_INTERVAL)):
        meter = CpuMeter(pid)
        time.sleep(IDLE_INTERVAL)
        if sum(meter.spent().values()) < IDLE_INTERVAL / 10:
            return


def _fill(directory: Path, records: int) -> BenchmarkRow:
    started, cpu = time.monotonic(), _cpu_seconds()
    with Installation.open(directory, environ=_environ()) as installation:
        fill(installation, records)
    took = time.monotonic() - started
    return BenchmarkRow("records appended in groups", records / took, (_cpu_seconds() - cpu) / records * _MICRO, 0)


def _cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and that have ended: a load uses a second one."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum([each.ru_utime + each.ru_stime for each in used])


def _load(  # noqa: PLR0913, PLR0917 - options
    name: str,
    pid: int,
    address: tuple[str, int],
    mode: str,
    format_: str,
    code: int,
    records: int,
    seconds: float,
) -> BenchmarkRow:
    window = SOCKETS if mode == load.UDP else 1
    tally, cpu = load.Tally(), 0.0
    for duration in filter(None, (WARM_UP, seconds)):
        options = load.LoadOptions(mode, address, format_, records, duration, int(code), SOCKETS, window)
        result = run_together(pid, load.__name__, [options])
        tally, cpu = load.Tally(**result.reports[0]), result.total
    if not tally.answered:
        raise RuntimeError(f"{name}: no correct response, {tally}")
    return BenchmarkRow(name, tally.answered / tally.seconds, cpu / tally.answered * _MICRO, tally.lost + tally.wrong)


def _creates(server: RunningServer, secret: str, seconds: float) -> BenchmarkRow:
    """Records created over the native protocol by one client, many at once in one session."""
    names = (f"{PREFIX}/new-{number:07d}" for number in count())
    with NativeClient(*server.native, identity=str(ADMINISTRATOR), key=secret.encode()) as client:
        client.create(name := next(names), three_values(name))  # authenticate once
        meter, started = CpuMeter(server.pid), time.monotonic()
        wanted: Iterator[str] = takewhile(lambda _: time.monotonic() - started < seconds, names)
        results = list(client.do_many(create_operation(name, three_values(name)) for name in wanted))
        took, cpu = time.monotonic() - started, sum(meter.spent().values())
    created = sum(isinstance(result, str) for result in results)
    if not created:
        raise RuntimeError(f"creates: no record was created, {results[:1]}")
    return BenchmarkRow("creates in one session", created / took, cpu / created * _MICRO, len(results) - created)
