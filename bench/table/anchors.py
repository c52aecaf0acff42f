"""Servers of others that the table compares with: echo in C, Knot, NSD and nginx, each with one worker.

They are Debian's packages as they are, without access log and without NSD's rate limit. A DNS server answers TXT
queries for random names of a zone with as many names as the installation has handles; `dnsperf` sends them, with as
many outstanding as the load generator of the native protocol has.
"""

import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.resolving import Load, until_answered
from perseid.server.benchmark.processes import children, cpu_seconds, memory
from tests.server.running import free_port

PACKAGES: Final = {
    "cc": "gcc libc6-dev",
    "knotd": "knot",
    "nsd": "nsd",
    "dnsperf": "dnsperf",
    "nginx": "nginx-light",
    "wrk": "wrk",
}
"""Programs and Debian's packages with them."""
VERSIONS: Final = {
    "cc": ("--version",),
    "knotd": ("--version",),
    "nsd": ("-v",),
    "dnsperf": ("-h",),
    "nginx": ("-v",),
    "wrk": ("-v",),
}
"""Arguments with which each program prints its version, some among other text."""
ZONE: Final = "bench.example"
QUERIES: Final = 10_000
"""Queries that `dnsperf` repeats."""
CLIENTS: Final = 16
OUTSTANDING: Final = 128
"""Sockets, and queries on all of them: those of hdlbench."""
START_SECONDS: Final = 60.0

_KNOT = """
server:
    listen: 127.0.0.1@{port}
    rundir: "{folder}"
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
log:
  - target: stderr
    any: error
database:
    storage: "{folder}"
zone:
  - domain: {zone}
    file: "{folder}/zone"
    zonefile-load: whole
    journal-content: none
"""
_NSD = """
server:
    ip-address: 127.0.0.1@{port}
    server-count: 1
    rrl-ratelimit: 0
    rrl-whitelist-ratelimit: 0
    username: ""
    chroot: ""
    zonesdir: "{folder}"
    database: ""
    pidfile: "{folder}/pid"
    xfrdfile: "{folder}/xfrd"
    xfrdir: "{folder}"
    zonelistfile: "{folder}/zones"
remote-control:
    control-enable: no
zone:
    name: {zone}
    zonefile: "{folder}/zone"
"""
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_COUNTS = re.compile(r"(Queries sent:|NOERROR) +(\d+)")
_RATE = re.compile(r"Queries per second: +([\d.]+)")
_PROBE_SECONDS = 0.02


def find(program: str) -> str | None:
    """The path of a program, also of those that only root has in its path."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def missing(programs: set[str]) -> str:
    """The command that installs missing programs; empty if there are none."""
    absent = sorted(program for program in programs if find(program) is None)
    packages = " ".join(PACKAGES[program] for program in absent)
    return f"{', '.join(absent)} not found. Run: apt-get install {packages}" if absent else ""


def version(program: str) -> str:
    """The version that a program prints."""
    done = subprocess.run([find(program) or program, *VERSIONS[program]], check=False, capture_output=True, text=True)
    found = _VERSION.search(re.sub(r"\(.*?\)", "", done.stdout + done.stderr))
    return found[0] if found else "unknown"


@dataclass(frozen=True, slots=True)
class DnsServer:
    """A running DNS server."""

    pid: int
    port: int
    queries: Path
    start_seconds: float
    """From the start of the program to its first response."""

    def load(self, seconds: float) -> Load:
        """Send queries, and check the code of each response."""
        command = ["dnsperf", "-s", "127.0.0.1", "-p", str(self.port), "-d", str(self.queries)]
        command += ["-c", str(CLIENTS), "-q", str(OUTSTANDING), "-W"]
        processes = family(self.pid)

        def measure(seconds: float) -> Load | None:
            before = sum(map(cpu_seconds, processes))
            text = subprocess.run([*command, "-l", f"{seconds:g}"], check=True, capture_output=True, text=True).stdout
            cpu = sum(map(cpu_seconds, processes)) - before
            counts = {name: int(number) for name, number in _COUNTS.findall(text)}
            if not (correct := counts.get("NOERROR", 0)):
                return None
            return Load(cpu / correct * 1e6, float(_RATE.findall(text)[0]), counts["Queries sent:"] - correct)

        return until_answered(measure, seconds)

    def memory(self) -> float:
        """MiB of all processes, without mapped files."""
        return sum(memory(pid).own for pid in family(self.pid))


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(descendant for child in children(pid) for descendant in family(child))]


def write_zone(folder: Path, names: int) -> None:
    """Write a zone, and queries for random names of it."""
    with (folder / "zone").open("w") as file:
        file.write(f"$ORIGIN {ZONE}.\n$TTL 86400\n@ SOA ns hostmaster 1 86400 7200 3600000 3600\n@ NS ns\n")
        file.write("ns A 127.0.0.1\n")
        file.writelines(f'{number:07d} TXT "https://example.org/items/{number}"\n' for number in range(names))
    chance = random.Random(7)
    queries = [f"{chance.randrange(names):07d}.{ZONE} TXT\n" for _ in range(min(QUERIES, names))]
    (folder / "queries").write_text("".join(queries))


@contextmanager
def knot(folder: Path, names: int) -> Iterator[DnsServer]:
    """Run Knot."""
    with _dns(folder, names, _KNOT, lambda path: [str(find("knotd")), "-c", path]) as server:
        yield server


@contextmanager
def nsd(folder: Path, names: int) -> Iterator[DnsServer]:
    """Run NSD."""
    with _dns(folder, names, _NSD, lambda path: [str(find("nsd")), "-d", "-c", path]) as server:
        yield server


@contextmanager
def _dns(folder: Path, names: int, text: str, command: Callable[[str], list[str]]) -> Iterator[DnsServer]:
    folder.mkdir(exist_ok=True)
    if not (folder / "zone").exists():
        write_zone(folder, names)
    port = free_port()
    (folder / "conf").write_text(text.format(folder=folder, port=port, zone=ZONE))
    started = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command(str(folder / "conf")), stdout=log, stderr=log)
    try:
        _wait_for_answer(port, process, folder / "log")
        yield DnsServer(process.pid, port, folder / "queries", time.monotonic() - started)
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_answer(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a query is answered with success."""
    name = b"".join(bytes([len(label)]) + label.encode() for label in (f"{0:07d}", *ZONE.split("."), ""))
    query = bytes.fromhex("002a00000001000000000000") + name + bytes.fromhex("00100001")
    end = time.monotonic() + START_SECONDS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_PROBE_SECONDS)
        sock.connect(("127.0.0.1", port))
        while time.monotonic() < end and process.poll() is None:
            try:
                sock.send(query)
                answer = sock.recv(512)
            except (TimeoutError, ConnectionRefusedError):
                time.sleep(0.002)
                continue
            if answer[:2] == query[:2] and not answer[3] & 15:
                return
    raise RuntimeError(f"{process.args!r} does not answer:\n{log.read_text()}")
