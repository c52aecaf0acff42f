"""Cost of the HTTP API: `python -m bench.serving.api [--records N,N] [--clients N] [--seconds S] [--only NAME]...`.

`perseid serve` serves an installation of N records, without access log and rate limit. Each client, by default one, has
a token and sends requests one after the other over a loopback connection of its own. The result is the CPU time of the
server processes per response, user and system, and the median and 99th percentile of the response time. A change waits
for the disk.

Earlier versions are requested anonymously: at the resolver, in the compatible API, and as TimeMaps. Every record has
one version; one record has many.
"""

import argparse
import http.client
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench.serving.installations import make, renew
from perseid.server.benchmark.installation import FORMAT, PREFIX
from perseid.server.benchmark.processes import CpuMeter
from tests.server.running import Address, serving

SETTINGS: Final = {
    "PERSEID_LOG_ACCESS": "false",
    "PERSEID_SERVER_WORKERS": "1",
    "PERSEID_HTTP_API_REQUESTS": "0",
    "PERSEID_HTTP_PUBLIC_URL": "https://hdl.example.org",
}
SCOPES: Final = "mint,find,read,update,create"
BATCH: Final = 1_000
"""Handles minted in one request."""
MIN_CALLS: Final = 5
"""Minimum number of requests, however long they take."""
VERSIONS: Final = 250
"""Versions of the record with many: three pages of a TimeMap."""
OLD: Final = 0
"""The number of that record."""
BASE: Final = "/api/v1"
COMPATIBLE: Final = "/api/handles"
"""The base paths of both APIs."""
URL: Final = [{"type": "URL", "data": "https://example.org/items/new"}]

RECORD: Final = [{"index": 1, **URL[0]}, {"index": 4, "type": "EMAIL", "data": "someone@example.org"}]

_chance = random.Random(7)
_new = itertools.count()


@dataclass(frozen=True, slots=True)
class Case:
    """A request."""

    name: str
    method: str
    path: Callable[[int], str]
    """The path for a record, by its number."""
    plain: object = None
    status: int = 200
    each: int = 1
    """Number of handles in one request."""
    below: str = BASE
    scheme: str = "Bearer"
    """How the client authenticates; empty for anonymous requests."""


def _name(number: int) -> str:
    return quote(FORMAT % number, safe="")


def _new_name(_: int) -> str:
    return f"/{PREFIX}/new-{next(_new)}"


CASES: Final = (
    Case("record", "GET", lambda number: f"/handles/{_name(number)}"),
    Case("history", "GET", lambda number: f"/handles/{_name(number)}/history"),
    Case("proof", "GET", lambda number: f"/handles/{_name(number)}/proof"),
    Case("find by URL", "GET", lambda number: f"/find?url=https://example.org/items/{number}"),
    Case("find by path, page of 100", "GET", lambda number: f"/find?path=/items/{number // 1000}&limit=100"),
    Case("find by type, page of 100", "GET", lambda _: "/find?type=EMAIL&limit=100"),
    Case("handles of a prefix, page of 100", "GET", lambda _: f"/namespaces/{PREFIX}/handles?limit=100"),
    Case("checkpoint", "GET", lambda _: "/ledger/checkpoint"),
    Case("consistency proof", "GET", lambda number: f"/ledger/consistency?old={number}"),
    Case("set a value", "PUT", lambda number: f"/handles/{_name(number)}/values", {"values": URL}),
    Case("PUT, with a token", "PUT", _new_name, RECORD, 201, below=COMPATIBLE),
    Case("PUT, with Basic", "PUT", _new_name, RECORD, 201, below=COMPATIBLE, scheme="Basic"),
    Case("mint", "POST", lambda _: "/mint", {"prefix": PREFIX, "values": URL}, 201),
    Case(
        f"mint {BATCH:,} in a call",
        "POST",
        lambda _: "/mint",
        {"prefix": PREFIX, "values": URL, "count": BATCH},
        201,
        BATCH,
    ),
)


def past(first: int, last: int, time_: str) -> tuple[Case, ...]:
    """Requests for history: after the last entry, at a later time, and after the first of many."""
    requests = (
        ("resolver, at an entry", lambda number: f"/{_name(number)}?at={last}", 302),
        ("resolver, at a time", lambda number: f"/{_name(number)}?at={time_}", 302),
        (f"resolver, first of {VERSIONS} versions", lambda _: f"/{_name(OLD)}?at={first}", 302),
        ("record page, at an entry", lambda number: f"/{_name(number)}?noredirect&at={last}", 200),
        ("JSON, at an entry", lambda number: f"/api/handles/{_name(number)}?at={last}", 200),
        ("JSON, at a time", lambda number: f"/api/handles/{_name(number)}?at={time_}", 200),
        ("TimeMap, 1 version", lambda number: f"/timemap/link/{_name(number)}", 200),
        (f"TimeMap, page of {VERSIONS} versions", lambda _: f"/timemap/link/{_name(OLD)}", 200),
    )
    return tuple([Case(name, "GET", path, status=status, below="", scheme="") for name, path, status in requests])


@dataclass(frozen=True, slots=True)
class Measurement:
    """Results."""

    calls: int
    cpu: float
    """CPU microseconds of the server per request."""
    fastest: float
    middle: float
    slowest: float
    """Milliseconds: first percentile, median and 99th percentile."""


class Connection:
    """One connection with sequential requests."""

    def __init__(self, address: Address, credentials: Mapping[str, str]) -> None:
        """`credentials` are those of each scheme."""
        self._connection = http.client.HTTPConnection(*address, timeout=120)
        self._credentials = credentials

    def __call__(self, case: Case, number: int) -> Any:
        body = None if case.plain is None else json.dumps(case.plain)
        headers = {"Content-Type": "application/json"}
        if case.scheme:
            headers["Authorization"] = f"{case.scheme} {self._credentials[case.scheme]}"
        self._connection.request(case.method, f"{case.below}{case.path(number)}", body, headers)
        response = self._connection.getresponse()
        body_read = response.read()
        if response.status != case.status:
            raise RuntimeError(f"{case.name}: {response.status} {body_read[:500]!r}")
        return body_read

    def close(self) -> None:
        self._connection.close()


def measure(pid: int, clients: Sequence[Connection], case: Case, records: int, seconds: float) -> Measurement:
    """Send requests for some seconds, each client one after the other."""

    def ask_repeatedly(ask: Connection) -> list[float]:
        waits: list[float] = []
        for call in itertools.count(1):
            before = time.perf_counter()
            ask(case, _chance.randrange(1, records))
            after = time.perf_counter()
            waits.append(after - before)
            if after > end and call >= MIN_CALLS:
                break
        return waits

    with ThreadPoolExecutor(len(clients)) as pool:
        for ask in clients:
            ask(case, 1)  # warm up
        meter, end = CpuMeter(pid), time.perf_counter() + seconds
        waits = sorted(itertools.chain.from_iterable(pool.map(ask_repeatedly, clients)))
        cpu = sum(meter.spent().values())
    fastest, middle, slowest = (1e3 * waits[len(waits) * percent // 100] for percent in (1, 50, 99))
    return Measurement(len(waits), cpu / len(waits) * 1e6, fastest, middle, slowest)


def token_for(directory: Path) -> str:
    """Create a token."""
    command = [sys.executable, "-c", "from perseid.cli import main; main()", "token", "create", "-d", str(directory)]
    words = ["--scope", SCOPES, "--namespace", PREFIX, "--label", "bench", "--expires-in", "1d"]
    done = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print the cost of API requests and of earlier versions.")
    parser.add_argument("--records", default="10000", help="number of records, comma-separated; default 10000")
    parser.add_argument("--clients", type=int, default=1, help="clients that send requests at a time; default 1")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each measurement; default 2")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a line to measure; default all")
    options = parser.parse_args()
    for records in map(int, options.records.split(",")):
        with tempfile.TemporaryDirectory(prefix="perseid-api-") as folder:
            filled = make(Path(folder, "installation"), records)
            first, last = renew(filled.directory, OLD, VERSIONS - 1)
            cases = (*past(first, last, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")), *CASES)
            identity, _ = filled.proof("secret")
            basic = b64encode(f"{quote(identity)}:{filled.secret}".encode()).decode()
            credentials = {"Bearer": token_for(filled.directory), "Basic": basic}
            print(f"{records:,} records", flush=True)
            with serving(filled.directory, **SETTINGS) as server, ExitStack() as stack:
                opened = [closing(Connection(server.http, credentials)) for _ in range(options.clients)]
                clients = [stack.enter_context(each) for each in opened]
                for case in [case for case in cases if not options.only or case.name in options.only]:
                    _print(case, measure(server.pid, clients, case, records, options.seconds))


def _print(case: Case, result: Measurement) -> None:
    each = f"  {result.cpu / case.each:8.1f} µs CPU for a handle" if case.each > 1 else ""
    figures = f"{result.cpu:10.0f} µs CPU  50 % in {result.middle:8.2f} ms  99 % in {result.slowest:8.2f} ms"
    print(f"  {case.name:<34}{figures}{each}", flush=True)


if __name__ == "__main__":
    main()
