"""Costs of bulk work: `python -m bench.serving.bulk [--records N,N] [--only import,migration]`.

Beside a server that appends for it, the command checks a CSV file with a URL and a title in each row (`--dry-run`),
imports it, exports it in two formats and rewrites every URL. Then, without a server, a PostgreSQL database with the
tables of a Handle server and three values a record is copied into an empty installation, copied again without changes,
and compared.

Each task is a command in a process of its own, so that peak memory is that of one task; it must not grow with the
number of records. Records a second are those of the whole command, with its start, which takes about a second. CPU is
in microseconds for a record: of the command, and of all processes of the server. Progress goes to standard error, and
all files are removed at the end.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import make_url

from perseid.server.benchmark.processes import CpuMeter, find_processes
from tests.postgres import Cluster

PERSEID: Final = str(Path(sys.executable).with_name("perseid"))
PREFIX: Final = "12345"
PARTS: Final = "import,migration"

_SAMPLE_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 10.0
_START_SECONDS: Final = 120.0
_TABLES: Final = """
CREATE TABLE nas (na bytea NOT NULL PRIMARY KEY);
CREATE TABLE handles (handle bytea NOT NULL, idx int4 NOT NULL, type bytea, data bytea, ttl_type int2, ttl int4,
    timestamp int4, refs text, admin_read bool, admin_write bool, pub_read bool, pub_write bool,
    PRIMARY KEY (handle, idx));
INSERT INTO nas VALUES ('0.NA/12345');
"""
_VALUES: Final = (
    (1, "URL", "'https://repository.example.org/items/' || n"),
    (2, "EMAIL", "'curator@example.org'"),
    (100, "HS_ADMIN", "'an administrator'"),
)


def write_table(path: Path, records: int) -> None:
    """Write a table to import."""
    with path.open("w", encoding="utf-8") as file:
        file.write("handle,URL,TITLE\n")
        file.writelines(
            f"{PREFIX}/item-{number},https://example.org/items/{number},Title {number}\n" for number in range(records)
        )


def fill_database(cluster: Cluster, records: int) -> str:
    """Fill a database to migrate from, and return its URL."""
    url = make_url(cluster.database())
    with psycopg.connect(host=str(cluster.folder), user=url.username, dbname=url.database) as connection:
        connection.execute(_TABLES.encode())
        for index, type_, data in _VALUES:
            statement = (
                f"INSERT INTO handles SELECT convert_to('12345/ITEM-' || n, 'UTF8'), {index}, '{type_}', "  # noqa: S608
                f"convert_to({data}, 'UTF8'), 0, 86400, 1500000000 + n, NULL, true, true, true, false "
                f"FROM generate_series(1, {records}) AS n"
            )
            connection.execute(statement.encode())
    return f"postgresql://{url.username}@/{url.database}?host={cluster.folder}"


@contextmanager
def serve(directory: Path) -> Iterator[int]:
    """Run a server on an installation; the result is the id of its first process."""
    ports = [f"--{name}-port=0" for name in ("http", "native", "metrics")]
    command = [PERSEID, "serve", "-d", str(directory), *ports]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (directory / "writer").is_symlink():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(_SAMPLE_SECONDS)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def anonymous_memory(pid: int) -> float:
    """The memory of a process in MB, without mapped files: the answers view is one, and grows with the records."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(r"RssAnon:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """The cost of a command: CPU in microseconds for a record, memory in MB."""

    seconds: float
    cpu: float
    server_cpu: float
    memory: float
    server_memory: float


def run_task(label: str, records: int, *arguments: str, server: int | None = None) -> Task:
    """Run a command; stop it if this program is stopped."""
    meter = None if server is None else CpuMeter(server)
    processes = [] if server is None else [*find_processes(server)]
    started = reported = time.monotonic()
    process = subprocess.Popen([PERSEID, *arguments, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    memory = server_memory = 0.0
    try:
        while True:
            memory = max(memory, anonymous_memory(process.pid))
            server_memory = max([server_memory, *map(anonymous_memory, processes)])
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - reported >= _PROGRESS_SECONDS:
                reported = time.monotonic()
                print(f"{label}: {reported - started:,.0f} s, {memory:,.0f} MB", file=sys.stderr, flush=True)
            time.sleep(_SAMPLE_SECONDS)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"{label} failed with exit code {process.returncode}")
    cpu = (usage.ru_utime + usage.ru_stime) / records * 1e6
    server_cpu = 0.0 if meter is None else sum(meter.spent().values()) / records * 1e6
    return Task(seconds, cpu, server_cpu, memory, server_memory)


def measure(label: str, records: int, *arguments: str, server: int | None = None) -> None:
    """Run a command and print its cost."""
    task = run_task(label, records, *arguments, server=server)
    figures = f"{task.seconds:>9,.1f} {records / task.seconds:>10,.0f} {task.cpu:>8,.0f} {task.server_cpu:>11,.0f}"
    print(f"{label:<13} {records:>10,} {figures} {task.memory:>8,.0f} {task.server_memory:>10,.0f}", flush=True)


def create(directory: Path) -> None:
    """Create an empty installation for the table."""
    command = [PERSEID, "init", str(directory), "--prefix", PREFIX, "--profile", "free"]
    subprocess.run(command, check=True, capture_output=True)


def measure_import(folder: Path, records: int) -> None:
    """Import, export and rewrite."""
    directory, table = folder / "installation", folder / "table.csv"
    write_table(table, records)
    create(directory)
    with serve(directory) as server:

        def run(label: str, *arguments: str) -> None:
            measure(label, records, *arguments, "-d", str(directory), server=server)

        run("import check", "import", str(table), "--dry-run")
        run("import", "import", str(table), "--yes")
        for format_ in ("jsonl", "csv"):
            run(f"export {format_}", "export", PREFIX, "--format", format_, "-o", str(folder / "export"))
        run("rewrite", "rewrite", "--url", "https://example.org/*", "--to", "https://example.net/*", "--yes")


def measure_migration(folder: Path, cluster: Cluster, records: int) -> None:
    """Migrate from a SQL database."""
    url, directory = fill_database(cluster, records), str(folder / "migrated")
    subprocess.run([PERSEID, "init", directory], check=True, capture_output=True)
    for label, command in (("copy", "copy"), ("copy again", "copy"), ("compare", "compare")):
        measure(label, records, "migrate", command, url, "-d", directory)


def main() -> None:
    """Measure each number of records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="10000", help="numbers of records, separated by commas; default 10000")
    parser.add_argument("--only", default=PARTS, help=f"what to measure; default {PARTS}")
    options = parser.parse_args()
    titles = f"{'seconds':>9} {'records/s':>10} {'CPU us':>8} {'server CPU':>11} {'peak MB':>8} {'server MB':>10}"
    print(f"{'':<13} {'records':>10} {titles}", flush=True)
    for records in map(int, options.records.split(",")):
        if "import" in options.only:
            with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder:
                measure_import(Path(folder), records)
        if "migration" in options.only:
            with tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder, Cluster() as cluster:
                measure_migration(Path(folder), cluster, records)


if __name__ == "__main__":
    main()
