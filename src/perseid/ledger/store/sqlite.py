"""Transactions of SQLite on its driver itself: one connection that writes, and some that read.

A decision reads a handful of rows and a commit writes a handful, and each statement takes some microseconds. To take a
connection from SQLAlchemy and to begin a transaction on it takes forty, more than all the statements of a read. So what
is done for every request runs here, with the text of the same statements (`schema.Statements`); everything else goes
through SQLAlchemy.
"""

import errno
import os
import resource
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from perseid.ledger.errors import Contention, StoreUnavailable, TooBusy

READERS: Final = 32
"""Connections for reading at the same time; who comes later waits for one, and is told after a while."""

_READER_CACHE = "PRAGMA cache_size = -4096"
"""4 MiB, so all readers have 128 at most. A commit of anybody empties it, so more is hardly ever used."""

_PROBE_SIZE = 1 << 16  # octets; what SQLite makes a file longer by at a time is less
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class SqliteDriver:
    """The connections of one process to one file. They are opened when they are needed first."""

    def __init__(self, path: str, pragmas: Sequence[str], wait_seconds: float) -> None:
        """`pragmas` prepare a connection; `patience` is how many seconds somebody waits for one."""
        self._path = path
        self._process = os.getpid()
        self._pragmas = pragmas
        self.wait_seconds = wait_seconds
        self._slots = threading.Semaphore(READERS)
        self._idle: list[sqlite3.Connection] = []  # readers; the one used last is the next
        self._write_lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close all connections; those in use, when they are given back. Whoever comes later opens new ones."""
        idle, self._idle = self._idle, []
        while idle:
            idle.pop().close()
        with self._write_lock:
            self._drop_writer()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Cursor]:
        """A transaction that sees one state throughout, and ends with the block: its cursor is of no use later."""
        self._check_process()
        if not self._slots.acquire(timeout=self.wait_seconds):
            raise TooBusy("too many are reading at the same time; try again shortly")
        idle = self._idle
        try:
            try:
                connection = idle.pop()
            except IndexError:
                connection = self._open(_READER_CACHE)
            ended = False
            try:
                cursor = connection.cursor()
                cursor.execute("BEGIN")
                try:
                    yield cursor
                finally:
                    # A statement that was not read to its end would go on holding the state; this ends it first.
                    cursor.execute("COMMIT")
                    cursor.close()
                    ended = True
            finally:
                if ended and idle is self._idle:
                    idle.append(connection)
                else:
                    connection.close()
        finally:
            self._slots.release()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Cursor]:
        """A transaction that may write; it is committed, and on the disk, when the block ends well."""
        self._check_process()
        if not self._write_lock.acquire(timeout=self.wait_seconds):
            raise Contention("the ledger is held by another writer")
        try:
            if self._writer is None:
                self._writer = self._open()
            cursor = self._writer.cursor()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            cursor.close()
        finally:
            self._write_lock.release()

    def _roll_back(self) -> None:
        """End a transaction that failed. Some failures end it by themselves; some leave a connection of no use."""
        if self._writer is not None and self._writer.in_transaction:
            try:
                self._writer.rollback()
            except sqlite3.Error:
                self._drop_writer()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.close()
            self._writer = None

    def _check_process(self) -> None:
        """Refuse to work in a child of `fork`.

        SQLite believes there that it holds the locks of its parent, even through connections that are opened later. So
        it would work until the two write at the same time, and then destroy the file.
        """
        if os.getpid() != self._process:
            raise StoreUnavailable(
                "the ledger was opened before this process was forked off; start it as a new program"
            )

    def _open(self, *more: str) -> sqlite3.Connection:
        # The driver would begin transactions by itself, at moments of its own choice.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in (*self._pragmas, *more):
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection


def has_free_space(path: str | None) -> bool:
    """Whether the files of a database can grow at all: on this disk, and as large as this process may make them."""
    if path is None:
        return True
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest != resource.RLIM_INFINITY:
        for name in (path, f"{path}-wal", f"{path}-shm"):
            with suppress(OSError):
                if Path(name).stat().st_size + _PROBE_SIZE > largest:
                    return False
    try:
        with tempfile.TemporaryFile(dir=Path(path).parent, buffering=0) as file:
            return file.write(bytes(_PROBE_SIZE)) == _PROBE_SIZE
    except OSError as error:
        return error.errno not in _DISK_FULL
