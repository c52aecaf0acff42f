"""Migration from the SQL database of a Handle server: real MariaDB and PostgreSQL with the documented tables."""

import json
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serving import bulk
from perseid.bulk.migration import source as source_module
from perseid.bulk.migration import sql
from perseid.bulk.migration.sql import decode_references, encode_references
from perseid.ledger.log.entry import Entry, State
from perseid.records.record import Value
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs.migration import is_migrated
from tests.bulk.handle_databases import (
    PREFIX,
    RECORDS,
    HandleDatabase,
    MariadbDatabase,
    PostgresDatabase,
    fill,
)
from tests.cli.installation import Site, refused, site
from tests.cli.program import ENVIRON, PERSEID
from tests.mariadb import MariadbServer, mariadb
from tests.postgres import Cluster, postgres

__all__ = ["mariadb", "postgres"]


@pytest.fixture(params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[HandleDatabase]:
    server = request.getfixturevalue(request.param)
    with closing(MariadbDatabase(server) if isinstance(server, MariadbServer) else PostgresDatabase(server)) as made:
        yield made


@pytest.fixture
def on_mariadb(mariadb: MariadbServer) -> Iterator[HandleDatabase]:
    with closing(MariadbDatabase(mariadb)) as made:
        yield made


@pytest.fixture
def target(tmp_path: Path) -> Site:
    return site(tmp_path)


def stored(target: Site) -> dict[str, list[bytes]]:
    """The records of the prefix, and of its prefix handle, as they are in the ledger."""
    with Installation.open(target.directory, writable=False) as installation, installation.log.open_reader() as reader:
        entries: list[Entry] = [*reader.all_names(f"{PREFIX}/"), *reader.all_names(f"0.NA/{PREFIX}")]
    assert all(is_migrated(entry) for entry in entries)
    return {entry.handle: entry.contents() for entry in entries if entry.state is State.NORMAL}


def expected(records: Mapping[str, tuple[Value, ...]]) -> dict[str, list[bytes]]:
    return {handle: [value.to_bytes() for value in values] for handle, values in records.items()}


def test_every_record_is_copied_byte_for_byte_and_followed(database: HandleDatabase, target: Site) -> None:
    fill(database)
    first = target.ok(f"migrate {database.url!r} --json --dry-run").json
    assert (first["created"], first["job"]) == (len(RECORDS), None)
    done = target.ok(f"migrate {database.url!r} --json").json
    assert done["created"] == len(RECORDS)
    assert done["prefixes"] == [f"0.NA/{PREFIX}"]
    assert stored(target) == expected(RECORDS)
    assert target.lines(f"resolve {PREFIX}/everything --type URL") == ["1  URL  https://example.org/"]
    # A second run changes nothing, and leaves no job.
    again = target.ok(f"migrate {database.url!r} --json").json
    assert (again["unchanged"], again["created"]) == (len(RECORDS), 0)
    assert len(target.lines("jobs list")) == 1
    assert "done 6" in target.lines("jobs list")[0]  # without the prefix handle
    # The old server is still in use.
    changed = RECORDS | {f"{PREFIX}/PLAIN": (Value(1, "URL", b"https://example.org/2", timestamp=1_600_000_000),)}
    changed |= {f"{PREFIX}/NEW": (Value(5, "URL", b"https://example.org/5", timestamp=1_600_000_001),)}
    del changed[f"{PREFIX}/NO ADMINISTRATOR "]
    database.put(f"{PREFIX}/PLAIN", changed[f"{PREFIX}/PLAIN"])
    database.put(f"{PREFIX}/NEW", changed[f"{PREFIX}/NEW"])
    database.delete(f"{PREFIX}/NO ADMINISTRATOR ")
    compared = target(f"migrate compare {database.url!r} --json")
    assert compared.code == 4
    *lines, summary = map(json.loads, compared.out.splitlines())
    assert {(line["handle"], line["difference"]) for line in lines} == {
        (f"{PREFIX}/PLAIN", "different"),
        (f"{PREFIX}/NEW", "missing"),
        (f"{PREFIX}/NO ADMINISTRATOR ", "extra"),
    }
    assert (summary["missing"], summary["extra"], summary["different"]) == (1, 1, 1)
    third = target.ok(f"migrate {database.url!r} --json").json
    assert (third["created"], third["updated"], third["deleted"]) == (1, 1, 1)
    assert stored(target) == expected(changed)
    assert target.ok(f"migrate compare {database.url!r} --json").json["records"] == len(changed)


def test_compare_shows_each_byte_that_differs_and_hides_secrets(on_mariadb: HandleDatabase, target: Site) -> None:
    database = on_mariadb
    fill(database)
    target.ok(f"migrate {database.url!r}")
    old, *others = RECORDS[f"{PREFIX}/EVERYTHING"]
    database.put(f"{PREFIX}/EVERYTHING", (old.with_timestamp(1_500_000_009), *others))
    secret = RECORDS[f"0.NA/{PREFIX}"]
    database.put(f"0.NA/{PREFIX}", (secret[0], Value(300, "HS_SECKEY", b"another", permissions=secret[1].permissions)))
    report = target.directory.parent / "report"
    compared = target(f"migrate compare {database.url!r} --report {report}")
    assert compared.code == 4
    assert "- 1  URL  rwr-  TTL 3600  time 1500000009  https://example.org/" in compared.out
    assert "+ 1  URL  rwr-  TTL 3600  time 1500000001  https://example.org/" in compared.out
    assert "another" not in compared.out
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    (value,) = next(line["values"] for line in lines if line["handle"] == f"{PREFIX}/EVERYTHING")
    assert (value["source"]["timestamp"], value["here"]["timestamp"]) == (
        "2017-07-14T02:40:09Z",
        "2017-07-14T02:40:01Z",
    )


def test_records_that_were_changed_here_are_not_overwritten(on_mariadb: HandleDatabase, target: Site) -> None:
    database = on_mariadb
    fill(database)
    target.ok(f"migrate {database.url!r}")
    target.ok(f"set {PREFIX}/PLAIN URL=https://example.org/here")
    database.put(f"{PREFIX}/PLAIN", (Value(1, "URL", b"https://example.org/there"),))
    database.put(f"{PREFIX}/x/", (Value(1, "URL", b"https://example.org/x"),))
    database.put("no-slash", (Value(1, "URL", b"https://example.org/x"),))
    database.put("0.SITE/POLICY/1", (Value(1, "URL", b"https://example.org/x"),))
    done = target(f"migrate {database.url!r} --json")
    assert done.code == 4
    *issues, summary = map(json.loads, done.out.splitlines())
    assert {(issue["handle"], issue["outcome"]) for issue in issues} == {
        (f"{PREFIX}/PLAIN", "conflict"),
        ("no-slash", "rejected"),
        ("0.SITE/POLICY/1", "rejected"),
    }
    assert (summary["created"], summary["conflicts"], summary["rejected"]) == (1, 1, 2)
    assert "example.org/here" in target.ok(f"resolve {PREFIX}/PLAIN").out
    target(f"migrate {database.url!r} --overwrite")
    assert "example.org/there" in target.ok(f"resolve {PREFIX}/PLAIN").out


def test_an_emptied_source_does_not_delete_the_copy(on_mariadb: HandleDatabase, target: Site) -> None:
    database = on_mariadb
    database.home(f"0.NA/{PREFIX}")
    handles = [f"{PREFIX}/{number}" for number in range(150)]
    database.insert(dict.fromkeys(handles, (Value(1, "URL", b"https://example.org/"),)))
    target.ok(f"migrate {database.url!r}")
    for handle in handles[1:]:
        database.delete(handle)
    refused(target(f"migrate {database.url!r}"), "lacks more than 100 records", "--delete-many", code=1)
    database.delete(handles[0])
    refused(target(f"migrate {database.url!r}"), "has none of the records", "--delete-many", code=1)
    assert len(stored(target)) == 150
    assert target.ok(f"migrate {database.url!r} --json --delete-many").json["deleted"] == 150


def test_a_hostile_database_is_read_in_bounded_memory(
    database: HandleDatabase, target: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    database.home("0.NA/20.500.1")
    monkeypatch.setattr(sql, "MAX_PREFIXES", 1)
    monkeypatch.setattr(source_module, "MAX_PREFIXES", 1)
    refused(target(f"migrate {database.url!r}"), "hosts more than 1 prefixes", code=1)
    monkeypatch.undo()
    monkeypatch.setattr(sql, "MAX_RECORD", 100)
    large = tuple([Value(index, "URL", b"x" * 60) for index in (1, 2)])
    database.put(f"{PREFIX}/LARGE", large)
    done = target(f"migrate {database.url!r} --json")
    issues = {issue["handle"]: issue["reason"] for issue in map(json.loads, done.out.splitlines()[:-1])}
    assert issues[f"{PREFIX}/LARGE"] == "the record has more than 100 bytes"
    assert f"{PREFIX}/PLAIN" in stored(target)


def test_a_row_without_an_end_does_not_exhaust_memory(target: Site) -> None:
    """A PostgreSQL server announces a row of 1.5 GB: the driver would wait for all of it."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        sent = threads.submit(_announce_a_large_row, listener)
        port = listener.getsockname()[1]
        refused(target(f"migrate 'postgresql://u@127.0.0.1:{port}/x?sslmode=disable'"), "Cannot read", code=1)
        assert sent.result(30) < 64 << 20
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def _announce_a_large_row(listener: socket.socket) -> int:
    """Return how many bytes of the row were sent."""

    def message(kind: bytes, content: bytes, size: int = 0) -> bytes:
        return kind + struct.pack(">i", size or 4 + len(content)) + content

    column = message(b"T", b"\0\1na\0" + struct.pack(">ihihih", 0, 0, 17, -1, -1, 0))
    ready = message(b"Z", b"T")
    connection, _ = listener.accept()
    size = 0
    with connection, suppress(OSError):
        connection.settimeout(30)
        connection.recv(65_536)
        connection.sendall(message(b"R", bytes(4)) + message(b"Z", b"I"))
        while b"FETCH" not in (request := connection.recv(65_536)) and request:
            describes = request.startswith(b"D")
            answer = column if describes else message(b"1", b"") + message(b"2", b"") + message(b"C", b"BEGIN\0")
            connection.sendall(answer + ready)
        connection.sendall(column + message(b"D", b"\0\1", 0x6000_0000))
        while size < 0x6000_0000:
            size += connection.send(bytes(65_536))
    return size


def test_passwords_come_from_files_and_unusable_databases_are_reported(mariadb: MariadbServer, target: Site) -> None:
    refused(target("migrate mysql://u:hunter2@localhost/x"), "--password-file", code=1)
    refused(target("migrate mysql://localhost/x"), "mysql://handle@db.example.org/handles", code=1)
    refused(target("migrate 'postgresql://u@/x?host=/nonexistent'"), "Cannot connect to", code=5)
    empty = mariadb.url(mariadb.database())
    refused(target(f"migrate {empty!r}"), "nas", code=1)
    refused(target("migrate oracle://x/y"), "mysql://USER@HOST/DATABASE", code=1)
    for url in (
        "mysql://u:hunter2#@h/x",
        "postgresql+x://u:hunter2@h/x",
        "hdl://u:hunter2@h",
        "jdbc:mysql://u:hunter2@h",
    ):
        ended = target(f"migrate {url!r}")
        assert (ended.code, "hunter2" in ended.out + ended.err) == (1, False), url


def test_a_killed_copy_is_continued(on_mariadb: HandleDatabase, target: Site) -> None:
    database = on_mariadb
    database.home(f"0.NA/{PREFIX}")
    records = {f"{PREFIX}/{number}": (Value(1, "URL", b"x" * 2_000, timestamp=5),) for number in range(2_500)}
    database.insert(records)
    environ = ENVIRON | {"PERSEID_DIR": str(target.directory)}
    job = ""
    for _ in range(2):
        before = _count(target)
        process = subprocess.Popen([PERSEID, "migrate", database.url, "--json"], env=environ, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while process.poll() is None and _count(target) < before + 400 and time.monotonic() < until:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = json.loads(target.lines("jobs list --json")[0])
        job = job or found["job"]
        assert found["job"] == job
    assert target.ok(f"migrate {database.url!r} --json").json["job"] == job
    assert stored(target) == expected(records)
    shown = target.ok(f"jobs show {job} --json").json
    assert (shown["state"], shown["done"]) == ("done", len(records))


def test_the_benchmark_copies_and_compares(postgres: Cluster, target: Site, capsys: pytest.CaptureFixture[str]) -> None:
    url = bulk.fill_database(postgres, 300)
    for command in ("copy", "compare"):
        bulk.measure(command, 300, "migrate", command, url, "-d", str(target.directory))
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["copy", "300"], ["compare", "300"]]
    assert len(target.lines("list 12345")) == 300


def _count(target: Site) -> int:
    with Installation.open(target.directory, writable=False) as installation, installation.log.open_reader() as reader:
        return reader.size


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())))
def test_references_have_a_round_trip(texts: list[str]) -> None:
    encoded = encode_references(texts)
    assert encoded.isascii()
    assert decode_references(encoded.encode()) == texts


def test_references_are_encoded_as_documented() -> None:
    assert encode_references(["1:a/b", "2:c/\td%ü"]) == r"1:a/b%00092:c/\td%0025%00FC"
