"""Costs of migration from a SQL database: `python -m bench.serving.migration [--records N,N]`.

A database of PostgreSQL has the tables of a Handle server, with three values a record. It is copied into an empty
installation, copied again without changes, and compared. Each run is a process of its own, so that peak memory is that
of one task; it must not grow with the number of records.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import make_url

from tests.postgres import Cluster

PERSEID: Final = Path(sys.executable).with_name("perseid")

_SAMPLE_SECONDS: Final = 0.1

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


def fill(cluster: Cluster, records: int) -> str:
    """Fill a database, and return its URL."""
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


def anonymous_memory(pid: int) -> float:
    """The memory of a process in MB, without mapped files: the answers view is one, and grows with the records."""
    found = re.search(r"RssAnon:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measure(label: str, records: int, *arguments: str) -> None:
    """Run a command and print its cost."""
    started = time.monotonic()
    process = subprocess.Popen([PERSEID, *arguments, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    memory = 0.0
    while True:
        memory = max(memory, anonymous_memory(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(_SAMPLE_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"{label} failed with exit code {process.returncode}")
    cpu = (usage.ru_utime + usage.ru_stime) / records * 1e6
    print(f"{label:<8} {records:>10,} {records / seconds:>10,.0f} {cpu:>10,.0f} {memory:>10,.0f}")


def main() -> None:
    """Measure each number of records."""
    parser = argparse.ArgumentParser(description="Costs of migration from a SQL database.")
    parser.add_argument("--records", default="10000", help="numbers of records, separated by commas; default 10000")
    options = parser.parse_args()
    print(f"{'':<8} {'records':>10} {'records/s':>10} {'us of CPU':>10} {'peak MB':>10}")
    with Cluster() as cluster:
        for records in map(int, options.records.split(",")):
            url = fill(cluster, records)
            with tempfile.TemporaryDirectory() as folder:
                directory = str(Path(folder) / "installation")
                subprocess.run([PERSEID, "init", directory], check=True, capture_output=True)
                for label, command in (("copy", "copy"), ("again", "copy"), ("compare", "compare")):
                    measure(label, records, "migrate", command, url, "-d", directory)


if __name__ == "__main__":
    main()
