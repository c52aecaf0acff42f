"""The tests' own PostgreSQL: separate databases, and no server left after its process has ended."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests import postgres as module
from tests.postgres import BINARIES, Cluster, PostgresFailed, PostgresMissing

ROOT = Path(__file__).resolve().parents[1]
GONE_SECONDS = 30

# A process that starts a cluster, says where, and waits to be killed.
HOLDER = """
import time
from tests.postgres import Cluster
cluster = Cluster()
cluster.start()
print(cluster.pid, cluster._supervisor.pid, cluster.folder, cluster.database(), flush=True)
time.sleep(600)
"""

cluster = module.postgres  # an alias that no test parameter shadows


def query(url: str, *statements: str) -> object:
    """Run statements in a new connection; return the result of the last one."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        return results[-1].scalar() if results[-1].returns_rows else None


def wait_until_gone(*pids: int) -> None:
    until = time.monotonic() + GONE_SECONDS
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until, f"one of {pids} is still there"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not re.search(r"^State:\s+Z", status, re.MULTILINE)


def test_two_databases_are_separate(cluster: Cluster) -> None:
    one, other = cluster.database(), cluster.database()
    query(one, "CREATE TABLE here (number int)", "INSERT INTO here VALUES (7)")
    assert query(one, "SELECT number FROM here") == 7
    assert query(other, "SELECT to_regclass('here')") is None


def test_a_database_is_utf8(cluster: Cluster) -> None:
    url = cluster.database()
    assert query(url, "SELECT current_setting('server_encoding')") == "UTF8"
    version = query(url, "SELECT current_setting('server_version_num')::int / 10000")
    program = subprocess.run([BINARIES / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
    assert f" {version}." in program
    assert version == 15 or "TEST_POSTGRES" in os.environ


def test_server_uses_only_its_socket_and_does_not_run_as_root(cluster: Cluster) -> None:
    assert query(cluster.database(), "SELECT current_setting('listen_addresses')") == ""
    assert cluster.folder.stat().st_mode & 0o077 == 0
    assert Path(f"/proc/{cluster.pid}").stat().st_uid == cluster.folder.stat().st_uid != 0


def test_nothing_is_left_after_stop_and_it_can_be_started_again() -> None:
    again = Cluster()
    for _ in range(2):
        with again:
            pid, folder, url = again.pid, again.folder, again.database()
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                assert query(url, f"SELECT current_setting('{setting}')") == "on", "commits reach the disk"
            assert any((folder / "data" / "pg_dynshmem").iterdir()), "also its shared memory is in the folder"
        assert not is_running(pid)
        assert not folder.exists()
    again.stop()


@pytest.mark.parametrize("victim", ["the process with the fixture", "the supervisor"])
def test_the_server_is_gone_after_a_kill(victim: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        words = holder.stdout.readline().split()
        server, supervisor = int(words[0]), int(words[1])
        folder, url = Path(words[2]), words[3]
        try:
            assert query(url, "SELECT 1") == 1
            if victim == "the supervisor":
                os.kill(supervisor, signal.SIGKILL)
            else:
                holder.kill()
            wait_until_gone(server, supervisor)
        finally:
            holder.kill()
    with pytest.raises(OperationalError):
        query(url, "SELECT 1")
    if victim == "the supervisor":
        shutil.rmtree(folder)
    assert not folder.exists()


def test_a_missing_postgresql_is_an_error_that_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(PostgresMissing, match=f"no PostgreSQL in {tmp_path}.*apt-get install postgresql-15"):
        Cluster(binaries=tmp_path).start()


@pytest.mark.parametrize(("program", "message"), [("initdb", "initdb failed"), ("postgres", "server did not start")])
def test_failing_program_is_quoted_and_leaves_nothing(program: str, message: str) -> None:
    # In a folder that the server's user can reach, unlike pytest's.
    binaries = Path(tempfile.mkdtemp(prefix="perseid-bin-", dir="/tmp"))
    try:
        binaries.chmod(0o755)
        for name in ("initdb", "postgres"):
            (binaries / name).symlink_to(BINARIES / name)
        (binaries / program).unlink()
        (binaries / program).write_text("#!/bin/sh\necho these are my last words\nexit 1\n")
        (binaries / program).chmod(0o755)
        failing = Cluster(binaries=binaries)
        with pytest.raises(PostgresFailed, match=f"{message}(?s:.*)these are my last words"):
            failing.start()
        assert failing.folder == Path()
    finally:
        shutil.rmtree(binaries)
