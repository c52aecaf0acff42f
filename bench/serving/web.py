"""Benchmark of HTTP, compared with nginx: `python -m bench.serving.web [--handles N] [--seconds S] [--flood]`.

`wrk` (Debian's package) requests random handles from `perseid serve`; the access log is off unless the line says so. In
the same run nginx (Debian's, one worker) answers every request with a fixed redirect. Measured are the CPU time of the
server's processes for a response, user and system, and the ratio of the two; the rate is that of a machine that also
runs `wrk`. There is one worker unless the line says so: with two, each finds fewer requests whenever it looks.

With `--flood` one client requests a redirect every ten milliseconds, first alone, then while `wrk` requests pages of
handles that do not exist over 64 connections. Measured are the times that this client waits.
"""

import argparse
import http.client
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.installations import Filled, make
from bench.serving.resolving import until_answered
from perseid.ledger.log.entry import Action, Draft, State
from perseid.records.record import Value
from perseid.registry.installation.installation import Installation
from perseid.server.benchmark.installation import INTERFACE, PREFIX, three_values
from perseid.server.benchmark.processes import CpuMeter
from tests.server.native.native_client import serving
from tests.server.running import free_port

QUIET: Final = {"PERSEID_LOG_ACCESS": "false", "PERSEID_SERVER_WORKERS": "1", "PERSEID_HTTP_PORT": "0"}
LOGGED: Final = {**QUIET, "PERSEID_LOG_ACCESS": "true"}
TWO_WORKERS: Final = {**QUIET, "PERSEID_SERVER_WORKERS": "2"}
PUBLIC: Final = {**QUIET, "PERSEID_HTTP_PUBLIC_URL": "https://hdl.example.org"}
WARM_UP: Final = 2
"""Seconds of requests that are not counted: workers load pages and the API after they have started to serve."""
MAX_LOG_COST: Final = 3
"""Microseconds that the access log may add to a response."""
MAX_WORKER_RATIO: Final = 1.15
"""How much more a response may cost with two workers than with one."""

_NGINX: Final = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error warn;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder}; keepalive_requests 100000000;
  server {{ listen 127.0.0.1:{port}; return 302 https://example.org/items/1; }}
}}
"""
_SCRIPT: Final = """
local n, path, close = {handles}, "{path}", "{close}"
function init(args) math.randomseed(os.time()) end
function request()
  local headers = {{ ["Accept"] = "*/*", ["Host"] = "localhost" }}
  if close ~= "" then headers["Connection"] = "close" end
  return wrk.format("GET", string.format(path, math.random(0, n - 1)), headers)
end
"""
_LATENCY: Final = re.compile(r"99%\s+([\d.]+)(us|ms|s)")
_REFUSED: Final = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_SOCKET_ERRORS: Final = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")
_REQUESTS: Final = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m)")
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class Way:
    """A request."""

    name: str
    path: str
    secure: bool = False
    close: bool = False
    aim: str = ""
    status: int = 302
    most: int = 0
    """The number of handles that are requested; 0 for all."""


NAME: Final = f"{PREFIX}/%07d"
WAYS: Final = (
    Way("redirect", f"/{NAME}", aim="≤ 22"),
    Way("record as JSON", f"/api/handles/{NAME}", aim="≤ 28", status=200),
    Way("JSON, ?type=URL", f"/api/handles/{NAME}?type=URL", aim="≤ 32", status=200),
    Way("JSON, ?index=1", f"/api/handles/{NAME}?index=1", aim="≤ 32", status=200),
    Way("JSON, ?pretty", f"/api/handles/{NAME}?pretty", aim="≤ 40", status=200),
    Way("JSON, ?callback=f", f"/api/handles/{NAME}?callback=f", status=200),
    Way("JSON, not found", f"/api/handles/{PREFIX}/none%07d", aim="≤ 25", status=404),
    Way("redirect, ?auth", f"/{NAME}?auth"),
    Way("redirect, ?urlappend=%%2Fx", f"/{NAME}?urlappend=%%2Fx"),
    Way("redirect, ?locatt=x:y", f"/{NAME}?locatt=x:y"),
    Way("record page", f"/{NAME}?noredirect", aim="≤ 300", status=200),
    Way("record page, seven values", f"/{PREFIX}/described%07d?noredirect", status=200),
    Way("record page, kept", f"/{NAME}?noredirect", status=200, most=100),
    Way("page, not found", f"/{PREFIX}/none%07d", aim="≤ 500", status=404),
    Way("suggestions while typing", f"/suggest?q={PREFIX}/%07d", aim="≤ 1,000", status=200),
    Way("redirect, TLS", f"/{NAME}", secure=True),
    Way("record as JSON, TLS", f"/api/handles/{NAME}", secure=True, status=200),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Results."""

    cpu: float
    """CPU microseconds of the server for a response."""
    rate: float
    slowest: float
    """Milliseconds: 99th percentile."""
    failed: int
    """Requests without a response, or with success instead of refusal, or the other way round."""


def measure(pid: int, address: str, way: Way, handles: int, seconds: float) -> Measured:
    """Load a server for some seconds."""
    script = _SCRIPT.format(handles=way.most or handles, path=way.path, close="close" if way.close else "")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()

        def load(seconds: float) -> Measured | None:
            command = ["wrk", "-t1", "-c16", f"-d{max(1, round(seconds))}s", "--latency", "-s", file.name, address]
            meter = CpuMeter(pid)
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            return parse_output(text, sum(meter.spent().values()), way)

        return until_answered(load, seconds)


def parse_output(text: str, cpu: float, way: Way) -> Measured | None:
    """What `wrk` says, with the CPU seconds of the server; nothing if there was no response."""
    requests, duration = _REQUESTS.search(text), _LATENCY.search(text)
    if requests is None or duration is None:
        raise RuntimeError(f"wrk says:\n{text}")
    count, length = int(requests[1]), float(requests[2]) * _UNITS[requests[3]]
    refused = int(found[1]) if (found := _REFUSED.search(text)) else 0
    failed = refused if way.status < 400 else count - refused
    failed += sum(map(int, errors.groups())) if (errors := _SOCKET_ERRORS.search(text)) else 0
    slowest = float(duration[1]) * _UNITS[duration[2]] * 1e3
    return Measured(cpu / count * 1e6, count / length, slowest, failed) if count else None


@contextmanager
def nginx(folder: Path) -> Iterator[tuple[int, str]]:
    """Serve a fixed redirect; return the process and its address."""
    port = free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port))
    command = [shutil.which("nginx") or "/usr/sbin/nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield process.pid, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


FLOOD_CONNECTIONS: Final = 64
CALM_INTERVAL: Final = 0.01
"""Seconds between two requests of the client that is measured."""


def waits(address: tuple[str, int], handles: int, seconds: float) -> list[float]:
    """Request redirects at a steady rate; return the milliseconds until each response, in order of size."""
    found, chance, end = [], random.Random(7), time.monotonic() + seconds
    with closing(http.client.HTTPConnection(*address)) as connection:
        while time.monotonic() < end:
            started = time.perf_counter()
            connection.request("GET", "/" + NAME % chance.randrange(handles))
            response = connection.getresponse()
            response.read()
            found.append((time.perf_counter() - started) * 1e3)
            if response.status != 302:
                raise RuntimeError(f"status {response.status}")
            time.sleep(CALM_INTERVAL)
    return sorted(found)


def flood(address: tuple[str, int], pid: int, handles: int, seconds: int) -> None:
    """Print how long a client waits, alone and during a flood of requests for handles that do not exist."""
    _print_waits("redirect, alone", waits(address, handles, seconds))
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(_SCRIPT.format(handles=handles, path=f"/{PREFIX}/none%07d", close=""))
        file.flush()
        where = f"http://{address[0]}:{address[1]}"
        command = ["wrk", "-t1", f"-c{FLOOD_CONNECTIONS}", f"-d{seconds + 2}s", "-s", file.name, where]
        meter = CpuMeter(pid)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            time.sleep(1)
            _print_waits("redirect, during a flood of 404", waits(address, handles, seconds))
            text = process.communicate()[0]
    requests = _REQUESTS.search(text)
    if requests is None:
        raise RuntimeError(f"wrk says:\n{text}")
    cpu = sum(meter.spent().values()) / int(requests[1]) * 1e6
    print(f"{'the flood':<36}{cpu:8.1f} µs CPU {int(requests[1]) / (seconds + 2):9,.0f}/s")


def _print_waits(name: str, found: list[float]) -> None:
    median, slowest = found[len(found) // 2], found[len(found) * 99 // 100]
    print(f"{name:<36}{median:8.2f} ms median  99 % in {slowest:6.2f} ms  maximum {found[-1]:6.1f} ms", flush=True)


def wait_for(port: int) -> None:
    """Wait until something accepts connections."""
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"nothing serves at port {port}")


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print what HTTP costs, beside nginx.")
    parser.add_argument("--handles", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=3, help="seconds for each measurement; default 3")
    parser.add_argument("--flood", action="store_true", help="measure waits during a flood of requests instead")
    options = parser.parse_args()
    if missing := [name for name in ("wrk", "nginx") if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]:
        sys.exit(f"{' and '.join(missing)} not found. Run: apt-get install {' '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="perseid-web-") as folder:
        if options.flood:
            filled = make(Path(folder, "installation"), options.handles)
            with serving(filled.directory, **QUIET) as server:
                flood(server.http, server.pid, options.handles, options.seconds)
            return
        Path(folder, "nginx").mkdir()
        Path(folder).chmod(0o755)
        with nginx(Path(folder, "nginx")) as (pid, address):
            bare = measure(pid, address, WAYS[0], options.handles, options.seconds)
            _print("nginx, return 302", bare, bare, "")
        filled = make(Path(folder, "installation"), options.handles)
        _add_described(filled)
        _let_everybody_list(filled.directory)
        plain: dict[str, float] = {}
        pages = [way for way in WAYS if "page" in way.name]
        for settings, label, ways in (
            (QUIET, "", WAYS),
            (PUBLIC, ", public URL", pages),
            (LOGGED, ", access log on", WAYS[:2]),
            (TWO_WORKERS, ", two workers", WAYS[:2]),
        ):
            with serving(filled.directory, **settings) as server:
                measure(server.pid, "http://{}:{}".format(*server.http), pages[0], options.handles, WARM_UP)
                for way in ways:
                    where = f"{'https' if way.secure else 'http'}://{server.http[0]}:{server.http[1]}"
                    found = measure(server.pid, where, way, options.handles, options.seconds)
                    cost = plain.setdefault(way.name, found.cpu)
                    aims = {", access log on": cost + MAX_LOG_COST, ", two workers": cost * MAX_WORKER_RATIO}
                    _print(way.name + label, found, bare, f"≤ {aims[label]:.1f}" if label in aims else way.aim)


def _add_described(filled: Filled) -> None:
    """Load records that also describe their targets."""
    described = (
        ("TITLE", "Annual report, volume {}"),
        ("DESC", "Maps, tables and measurements of one year."),
        ("CREATOR", "Example Library"),
        ("DATE", "2024-05-17"),
    )

    def draft(number: int) -> Draft:
        texts = [Value.text(10 + at, type_, text.format(number)) for at, (type_, text) in enumerate(described)]
        values, handle = (*three_values(str(number)), *texts), f"{PREFIX}/described{number:07d}"
        return Draft(Action.CREATE, State.NORMAL, handle, INTERFACE, f"local:{INTERFACE}", values=values)

    with Installation.open(filled.directory) as installation:
        installation.ledger.load(draft(number) for number in range(filled.handles))


def _let_everybody_list(directory: Path) -> None:
    """Change the policy of the namespace: there are suggestions where everybody can list handles."""
    program = [sys.executable, "-c", "from perseid.cli import main; main()"]
    policy = 'who_may_list = "public"\n'
    command = [*program, "namespace", "policy", PREFIX, "--file", "-", "-d", str(directory)]
    subprocess.run(command, input=policy, check=True, capture_output=True, text=True)


def _print(name: str, found: Measured, bare: Measured, aim: str) -> None:
    ratio = bare.cpu / found.cpu
    if found.failed:
        raise RuntimeError(f"{name}: {found.failed} wrong responses")
    figures = f"{found.cpu:8.1f} µs CPU {found.rate:9,.0f}/s  99 % in {found.slowest:6.1f} ms  {ratio:5.2f} of nginx"
    print(f"{name:<36}{figures}  {aim and f'target {aim}'}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
