"""What the table measures: probes, each of which takes one sample when it is called.

All servers of a part run at the same time, and the rounds call every probe in turn, so that anchors and Perseid are
measured under the same conditions. Each server of Perseid has one worker and serves a copy of one installation.
"""

import importlib
import shutil
import sqlite3
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bench.ledger_load import run_part
from bench.serving import api, bulk, web
from bench.serving.creating import Manner, commit_alone, create
from bench.serving.faults import time_start
from bench.serving.installations import Filled, make
from bench.serving.resolving import MeasuredServer, Way, compile_program, echo, load_independently
from bench.table import anchors
from bench.table.report import CPU, MEMORY, TIME, Sample
from perseid.cli._benchmark import LIMITS, QUIET
from perseid.server.benchmark import load
from perseid.server.benchmark.bare import TCP, UDP
from perseid.server.benchmark.processes import find_processes, memory
from tests.server.running import Serving, serving

ECHO: Final = "echo in C"
KNOT: Final = "Knot"
NGINX: Final = "nginx, return 302"
COMMIT: Final = "SQLite, a durable commit"
ROWS: Final = "SQLite, rows of one table"
ROW_BYTES: Final = 400
"""Data of a row: about that of a record of three values."""
DEFAULT_LIMITS: Final = {"PERSEID_HTTP_API_REQUESTS": "0"}
"""This machine is exempt from the others."""
WEB: Final = ("redirect", "record as JSON", "JSON, not found", "record page", "page, not found")
TOUCH_SECONDS: Final = 0.3
"""Load before memory is measured."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    handles: int = 10_000
    """Handles in each installation, and names in the zones."""
    records: int = 100_000
    """Records that are loaded, imported and exported."""
    seconds: float = 4.0
    """Duration of a sample under load."""
    rounds: int = 3
    clients: tuple[int, ...] = (1, 8, 32)
    """Clients that create at the same time."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement that can be repeated."""

    part: str
    name: str
    anchor: str
    """The probe of the same part that it is compared with."""
    sample: Callable[[], Sample]
    unit: str = CPU


def paths() -> dict[str, dict[str, str]]:
    """The settings of each implementation of public resolution: Python, and the compiled module where it is built."""
    try:
        compiled = importlib.import_module("perseid.compiled")
    except ModuleNotFoundError:
        return {"Python": {}}
    found = {"Python": {"PERSEID_NATIVE_COMPILED": "false"}}
    return found if compiled.PROBLEM else found | {"compiled": {"PERSEID_NATIVE_COMPILED": "true"}}


class Lab:
    """The servers of a run, each started when it is first used, and stopped with the stack."""

    def __init__(self, folder: Path, plan: Plan, stack: ExitStack) -> None:
        self.folder = folder
        self.plan = plan
        self.stack = stack
        self._numbers = count()

    def place(self, name: str) -> Path:
        """The path of something new."""
        return self.folder / f"{name}-{next(self._numbers)}"

    @cached_property
    def _template(self) -> Filled:
        return make(self.folder / "installation", self.plan.handles)

    def installation(self) -> Filled:
        """A copy of the filled installation."""
        directory = self.place("copy")
        shutil.copytree(self._template.directory, directory)
        return replace(self._template, directory=directory)

    def serve(self, filled: Filled, settings: dict[str, str]) -> Serving:
        """A server with one worker."""
        return self.stack.enter_context(serving(filled.directory, **QUIET, **settings))

    @cached_property
    def resolvers(self) -> dict[str, Serving]:
        """A server with limits that are never reached for each path."""
        return {path: self.serve(self.installation(), LIMITS | settings) for path, settings in paths().items()}

    @cached_property
    def filled(self) -> Filled:
        """The installation of `server`."""
        return self.installation()

    @cached_property
    def server(self) -> Serving:
        """A server with default limits."""
        return self.serve(self.filled, DEFAULT_LIMITS)

    @cached_property
    def generator(self) -> Path:
        """The load generator in C."""
        return compile_program("hdlbench", self.folder)

    @cached_property
    def _echo(self) -> Path:
        return compile_program("cecho", self.folder)

    def echo(self, kind: str) -> MeasuredServer:
        """An echo in C."""
        return self.stack.enter_context(echo(self._echo, kind))

    @cached_property
    def knot(self) -> anchors.DnsServer:
        """Knot with as many names."""
        return self.stack.enter_context(anchors.knot(self.place("knot"), self.plan.handles))

    def resolve(self, server: MeasuredServer, way: Way, code: int | None = None) -> Sample:
        """Load a server over the native protocol."""
        found = load_independently(self.generator, server, way, self.plan.handles, self.plan.seconds, code)
        return Sample(found.cpu, found.rate, found.failed)


def udp(lab: Lab) -> Iterator[Probe]:
    """Resolution over UDP, and what C and DNS servers take for a response."""
    found, missing = Way("found", load.UDP, window=8), Way("not found", load.UDP, found=False, window=8)
    yield Probe("udp", ECHO, ECHO, partial(lab.resolve, lab.echo(UDP), found, 0))
    nsd = lab.stack.enter_context(anchors.nsd(lab.place("nsd"), lab.plan.handles))
    for name, server in ((KNOT, lab.knot), ("NSD", nsd)):
        yield Probe("udp", f"{name}, DNS", ECHO, partial(_query, server, lab.plan.seconds))
    for way in (found, missing):
        for path, serving_ in lab.resolvers.items():
            yield Probe("udp", f"{way.name}, {path}", ECHO, partial(lab.resolve, serving_, way))


def _query(server: anchors.DnsServer, seconds: float) -> Sample:
    found = server.load(seconds)
    return Sample(found.cpu, found.rate, found.failed)


def tcp(lab: Lab) -> Iterator[Probe]:
    """Resolution over TCP, each way compared with an echo."""
    echoing = lab.echo(TCP)
    for way in (Way("a connection each", load.TCP), Way("kept open", load.KEPT)):
        anchor = f"{ECHO}, {way.name}"
        yield Probe("tcp", anchor, anchor, partial(lab.resolve, echoing, way, 0))
        for path, server in lab.resolvers.items():
            yield Probe("tcp", f"{way.name}, {path}", anchor, partial(lab.resolve, server, way))


def http(lab: Lab) -> Iterator[Probe]:
    """HTTP, compared with nginx."""
    folder = lab.place("nginx")
    folder.mkdir()
    pid, address = lab.stack.enter_context(web.nginx(folder))
    ways = {way.name: way for way in web.WAYS if way.name in WEB}
    own = "http://{}:{}".format(*lab.server.http)
    yield Probe("http", NGINX, NGINX, partial(_request, lab.plan, pid, address, ways[WEB[0]]))
    page = api.Case("record page", "GET", lambda _: ways["record page"].path % 0, below="", scheme="")
    with closing(api.Connection(lab.server.http, {})) as ask:
        ask(page, 0)  # a worker loads pages after it has started to serve
    for name in WEB:
        yield Probe("http", name, NGINX, partial(_request, lab.plan, lab.server.pid, own, ways[name]))


def _request(plan: Plan, pid: int, address: str, way: web.Way) -> Sample:
    found = web.measure(pid, address, way, plan.handles, plan.seconds)
    return Sample(found.cpu, found.rate, found.failed)


def creates(lab: Lab) -> Iterator[Probe]:
    """Creates, durable before the response, compared with a commit of SQLite."""
    yield Probe("creates", COMMIT, COMMIT, lambda: _commit(lab))
    clients = lab.plan.clients
    for number in clients:
        manner = Manner(f"native, {_clients(number)} in sessions", number, in_session=True, proof="secret")
        yield Probe("creates", manner.name, COMMIT, partial(_create, lab, manner))
    for number in clients[:2]:
        manner = Manner(f"native, {_clients(number)}, RSA each time", number, in_session=False, proof="rsa")
        yield Probe("creates", manner.name, COMMIT, partial(_create, lab, manner))
    identity, _ = lab.filled.proof("secret")
    basic = b64encode(f"{quote(identity)}:{lab.filled.secret}".encode()).decode()
    credentials = {"Bearer": api.token_for(lab.filled.directory), "Basic": basic}
    for case in api.CASES:
        if case.name in {"PUT, with a token", "PUT, with Basic", "mint"}:
            for number in clients[:2]:
                name = f"HTTP, {case.name}, {_clients(number)}"
                yield Probe("creates", name, COMMIT, partial(_call, lab, case, credentials, number))


def _clients(number: int) -> str:
    return f"{number} client{'s' if number > 1 else ''}"


def _commit(lab: Lab) -> Sample:
    found = commit_alone(lab.folder, lab.plan.seconds)
    return Sample(found.cpu, found.rate)


def _create(lab: Lab, manner: Manner) -> Sample:
    found = create(lab.server, lab.filled, lab.plan.seconds, manner, lab.place("n").name)
    return Sample(found.cpu, found.rate, found.failed)


def _call(lab: Lab, case: api.Case, credentials: dict[str, str], number: int) -> Sample:
    with ExitStack() as stack:
        opened = [closing(api.Connection(lab.server.http, credentials)) for _ in range(number)]
        clients = [stack.enter_context(each) for each in opened]
        started = time.monotonic()
        found = api.measure(lab.server.pid, clients, case, lab.plan.handles, lab.plan.seconds)
        return Sample(found.cpu, found.calls / (time.monotonic() - started))


def bulk_work(lab: Lab) -> Iterator[Probe]:
    """Loading, importing and exporting many records, compared with rows of SQLite in one transaction."""
    records, importing = lab.plan.records, _Importing(lab)
    yield Probe("bulk", ROWS, ROWS, partial(_insert, lab.folder / "rows.db", records))
    yield Probe("bulk", "load into an empty ledger", ROWS, partial(_load, lab, records))
    yield Probe("bulk", "import of CSV", ROWS, importing.sample_import)
    yield Probe("bulk", "export as JSON lines", ROWS, importing.sample_export)


def _insert(path: Path, records: int) -> Sample:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (key BLOB PRIMARY KEY, data BLOB)")
        started, cpu = time.monotonic(), time.process_time()
        connection.execute("BEGIN")
        rows = ((b"%012d" % number, bytes(ROW_BYTES)) for number in range(records))
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        connection.execute("COMMIT")
        return Sample((time.process_time() - cpu) / records * 1e6, records / (time.monotonic() - started))


def _load(lab: Lab, records: int) -> Sample:
    folder = lab.place("load")
    folder.mkdir()
    found = run_part("load_new", str(folder), records)
    shutil.rmtree(folder)
    return Sample(found["load of new handles: CPU µs per record"], found["load of new handles: records/s"])


class _Importing:
    """An installation beside whose server a table is imported and exported; each import has a new one."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._stack = lab.stack.enter_context(ExitStack())
        self._table = lab.folder / "table.csv"
        bulk.write_table(self._table, lab.plan.records)

    def sample_import(self) -> Sample:
        self._stack.close()
        self._directory = self._lab.place("import")
        bulk.create(self._directory)
        self._server = self._stack.enter_context(bulk.serve(self._directory))
        return self._run("import", str(self._table), "--yes")

    def sample_export(self) -> Sample:
        return self._run("export", bulk.PREFIX, "--format", "jsonl", "-o", str(self._lab.place("export")))

    def _run(self, *arguments: str) -> Sample:
        records = self._lab.plan.records
        task = bulk.run_task(arguments[0], records, *arguments, "-d", str(self._directory), server=self._server)
        return Sample(task.cpu + task.server_cpu, records / task.seconds)


def memory_use(lab: Lab) -> Iterator[Probe]:
    """Memory of all processes after a load, without mapped files, compared with Knot."""
    yield Probe("memory", KNOT, KNOT, lambda: _dns_memory(lab.knot), MEMORY)
    for path, server in lab.resolvers.items():
        yield Probe("memory", f"Perseid, {path}", KNOT, partial(_own_memory, lab, server), MEMORY)


def _dns_memory(server: anchors.DnsServer) -> Sample:
    failed = server.load(TOUCH_SECONDS).failed
    return Sample(server.memory(), failed=failed)


def _own_memory(lab: Lab, server: Serving) -> Sample:
    way = Way("found", load.UDP, window=8)
    failed = load_independently(lab.generator, server, way, lab.plan.handles, TOUCH_SECONDS).failed
    return Sample(sum(memory(pid).own for pid in find_processes(server.pid)), failed=failed)


def start(lab: Lab) -> Iterator[Probe]:
    """The time from the start of a server to its first response over UDP, compared with Knot."""
    directory = lab.installation().directory
    yield Probe("start", KNOT, KNOT, lambda: _start_dns(lab), TIME)
    for path, settings in paths().items():
        environ = LIMITS | QUIET | settings | {"PYTHONDONTWRITEBYTECODE": ""}
        yield Probe("start", f"Perseid, {path}", KNOT, partial(_start, directory, environ), TIME)


def _start_dns(lab: Lab) -> Sample:
    with anchors.knot(lab.place("knot"), lab.plan.handles) as server:
        return Sample(server.start_seconds)


def _start(directory: Path, environ: dict[str, str]) -> Sample:
    return Sample(time_start(directory, environ)["start: s to the first response over UDP"])


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the table."""

    probes: Callable[[Lab], Iterator[Probe]]
    programs: frozenset[str]
    """Programs that it needs."""


PARTS: Final = {
    "udp": Part(udp, frozenset({"cc", "knotd", "nsd", "dnsperf"})),
    "tcp": Part(tcp, frozenset({"cc"})),
    "http": Part(http, frozenset({"nginx", "wrk"})),
    "creates": Part(creates, frozenset()),
    "bulk": Part(bulk_work, frozenset()),
    "memory": Part(memory_use, frozenset({"cc", "knotd", "dnsperf"})),
    "start": Part(start, frozenset({"knotd"})),
}
