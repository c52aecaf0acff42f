"""SQLite transactions directly on the driver: one connection that writes, and several that read.

A decision reads a few rows and a commit writes a few, and each statement takes some microseconds. Taking a connection
from SQLAlchemy and beginning a transaction takes forty, more than all the statements of a read. So what runs for every
request runs here, with the text of the same statements (`tables.Statements`); everything else uses SQLAlchemy.
"""

import errno
import os
import resource
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from perseid.ledger.errors import Contention, StoreUnavailable, TooBusy
from perseid.ledger.store import TABLES_VERSION

READERS: Final = 32
"""Concurrent read connections; further readers wait for one, and fail after a while."""

CACHE_BYTES: Final = 4 << 20
"""The page cache of a connection, so at most 128 MiB for all readers. More is hardly ever used: a commit of another
connection empties it, and what it lacks is in the memory of the operating system. It costs nothing: 400,000 entries
with random handles take the same time with 4, 16 and 64 MiB, but with 64 the writer grows for as long as the ledger."""

_PROBE_SIZE = 1 << 16  # bytes; SQLite extends a file by less at a time
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


_END = """SELECT version_num, id, head.seq, leaf
FROM alembic_version, ledger, head JOIN entries ON entries.seq = head.seq
WHERE NOT EXISTS (SELECT 1 FROM views WHERE seq < 0)"""
"""Tables whose upgrade was not completed have a view with a negative number."""


def find_end(path: Path) -> tuple[bytes, int, bytes] | None:
    """The id of a ledger, its last entry and the leaf of it; None if only `Store` can tell. Loads no SQLAlchemy."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute(_END).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None or row[0] != TABLES_VERSION else row[1:]


class SqliteDriver:
    """The connections of one process to one file, opened when first needed."""

    def __init__(self, path: str, pragmas: Sequence[str], wait_seconds: float) -> None:
        """`pragmas` configure a connection; `wait_seconds` is the maximum wait for one."""
        self._path = path
        self._process = os.getpid()
        self._pragmas = pragmas
        self.wait_seconds = wait_seconds
        self._slots = threading.Semaphore(READERS)
        self._idle: list[sqlite3.Connection] = []  # readers; last in, first out
        self._write_lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close all connections; those in use, when they are returned. Later calls open new ones."""
        idle, self._idle = self._idle, []
        while idle:
            idle.pop().close()
        with self._write_lock:
            self._drop_writer()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Cursor]:
        """Open a transaction that sees one state; the cursor is invalid after the block."""
        self._check_process()
        if not self._slots.acquire(timeout=self.wait_seconds):
            raise TooBusy("too many concurrent readers; retry later")
        idle = self._idle
        try:
            try:
                connection = idle.pop()
            except IndexError:
                connection = self._open()
            ended = False
            try:
                cursor = connection.cursor()
                cursor.execute("BEGIN")
                try:
                    yield cursor
                finally:
                    # An unfinished statement would keep the snapshot; this ends it first.
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
        """Open a transaction that may write; it is durable when the block ends without an error."""
        self._check_process()
        if not self._write_lock.acquire(timeout=self.wait_seconds):
            raise Contention("the ledger is locked by another writer")
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
        """Roll back after a failure. Some failures end the transaction by themselves, some break the connection."""
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

        There SQLite believes that it holds the locks of its parent, even for connections that are opened later, and
        destroys the
        file when both write at the same time.
        """
        if os.getpid() != self._process:
            raise StoreUnavailable("the ledger was opened before this process was forked; start a new process instead")

    def _open(self) -> sqlite3.Connection:
        # None: the driver must not begin transactions by itself.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in self._pragmas:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection


def looks_full(path: str | None) -> bool:
    """Whether the disk of a database has hardly any space, as far as the file system tells."""
    if path is None:
        return False
    status = os.statvfs(Path(path).parent)
    return status.f_bavail * status.f_frsize < _PROBE_SIZE


def has_free_space(path: str | None) -> bool:
    """Whether the files of a database can grow: on this disk, and within this process's file size limit."""
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
