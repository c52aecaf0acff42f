"""Connections of the SQLite driver: always returned, limited, and closed in time."""

import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from perseid.ledger.errors import Contention, TooBusy
from perseid.ledger.store.sqlite import READERS, SqliteDriver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[SqliteDriver]:
    new_driver = SqliteDriver(
        str(tmp_path / "some.db"), ("PRAGMA journal_mode = WAL", "PRAGMA busy_timeout = 50"), 0.05
    )
    with new_driver.writing() as cursor:
        cursor.execute("CREATE TABLE numbers (number INTEGER)")
    yield new_driver
    new_driver.close()


def numbers(driver: SqliteDriver) -> list[int]:
    with driver.reading() as cursor:
        return [row[0] for row in cursor.execute("SELECT number FROM numbers ORDER BY number")]


def add(driver: SqliteDriver, *new: int) -> None:
    with driver.writing() as cursor:
        cursor.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in new])


def fail(driver: SqliteDriver) -> None:
    with driver.writing() as cursor:
        cursor.execute("INSERT INTO numbers VALUES (99)")
        raise KeyError


def test_failed_transaction_is_rolled_back_and_the_next_one_writes(driver: SqliteDriver) -> None:
    add(driver, 1)
    with pytest.raises(KeyError):
        fail(driver)
    add(driver, 2)
    assert numbers(driver) == [1, 2]


def test_read_transaction_sees_one_state_until_the_block_ends(driver: SqliteDriver) -> None:
    add(driver, 1, 2, 3)
    with driver.reading() as cursor:
        assert next(cursor.execute("SELECT number FROM numbers")) == (1,)  # the result is not read completely
        add(driver, 4)
        assert cursor.execute("SELECT count(*) FROM numbers").fetchone() == (3,)
        cursor.execute("SELECT number FROM numbers")
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchone()
    with driver.writing() as writer:
        writer.execute("INSERT INTO numbers VALUES (5)")
    plain = sqlite3.connect(driver._path)
    assert plain.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "nobody holds an earlier state"
    plain.close()
    assert numbers(driver) == [1, 2, 3, 4, 5]


def test_connections_are_returned_after_errors(driver: SqliteDriver) -> None:
    for problem in [KeyError] * READERS * 2:
        with pytest.raises(problem), driver.reading():
            raise problem
    for _ in range(READERS * 2):
        with pytest.raises(sqlite3.OperationalError), driver.reading() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
    assert numbers(driver) == []
    assert len(driver._idle) == 1


def test_concurrent_readers_are_limited(driver: SqliteDriver) -> None:
    with ExitStack() as readings:
        for _ in range(READERS):
            readings.enter_context(driver.reading())
        add(driver, 1)
        with pytest.raises(TooBusy, match=r"^too many concurrent readers; retry later$"):
            numbers(driver)
    assert numbers(driver) == [1]


def test_one_writes_at_a_time(driver: SqliteDriver) -> None:
    with driver.writing():
        found: list[Exception] = []

        def write() -> None:
            try:
                add(driver, 1)
            except Contention as error:
                found.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert len(found) == 1
    add(driver, 1)
    assert numbers(driver) == [1]


def test_a_connection_that_cannot_be_prepared_is_closed(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    new_driver = SqliteDriver(str(tmp_path / "some.db"), ("PRAGMA journal_mode = WAL", "nonsense"), 0.05)
    # The frames of the error reference what was not closed.
    with pytest.raises(sqlite3.OperationalError) as caught, new_driver.reading():
        pass
    assert "nonsense" in str(caught.value)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


FORKED = textwrap.dedent(
    """
    import os, sys
    from perseid.ledger.errors import StoreUnavailable
    from perseid.ledger.store.sqlite import SqliteDriver

    driver = SqliteDriver(sys.argv[1], (), 1.0)
    with driver.reading():
        pass
    if not os.fork():
        for open_one in (driver.reading, driver.writing):
            try:
                with open_one():
                    os._exit(1)
            except StoreUnavailable as error:
                print(error, flush=True)
        os._exit(0)
    print(os.wait()[1])
    """
)


def test_forked_child_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "some.db")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert len(said) == 3
    assert all("was forked" in one for one in said[:2])
    assert said[2] == "0"


def test_connections_are_reopened_after_close(driver: SqliteDriver, tmp_path: Path) -> None:
    add(driver, 1)
    with driver.reading() as cursor:
        driver.close()
        assert cursor.execute("SELECT number FROM numbers").fetchall() == [(1,)]
    assert driver._idle == []
    assert not (tmp_path / "some.db-wal").exists(), "the last connection is closed"
    add(driver, 2)
    assert numbers(driver) == [1, 2]
