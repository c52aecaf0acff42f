"""Statistics of an installation, in an SQLite file of their own: sums by hour and day, and wanted identifiers.

The file is not part of the ledger and of no backup: it can be deleted, and the next process creates it again. Every
process of a server adds what it has counted, in one short transaction; a killed process loses what it has not added
yet. Changes are not counted by those who make them, but read from the ledger, each entry once, whoever wrote it: the
last counted entry is stored in the same transaction.

The file contains no addresses and no identities. Its size is bounded: sums have a retention, tables have a maximum of
rows, and of the wanted identifiers of a namespace the file keeps a fixed number (the space-saving algorithm: what was
requested more often than a share of all requests is never evicted).
"""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from perseid.names.handle import fold

from .log.entry import Action, State
from .log.record_keys import LOCAL

if TYPE_CHECKING:
    from .log.reader import LogReader

FILE_NAME: Final = "statistics.db"

HOUR: Final = 3_600
DAY: Final = 86_400

HOURS_KEPT: Final = 14 * DAY
"""Seconds for which sums by hour are kept: to look into the last days. Older ones are part of the sums by day."""

DAYS_KEPT: Final = 1_826 * DAY
"""Seconds for which sums by day are kept: five years, as funders ask for in reports."""

MAX_ROWS: Final = 250_000
"""Rows of a table of sums, of about 80 bytes each: 136 namespaces for five years. If there are more, the oldest are
deleted before their time."""

MAX_WANTED: Final = 200
"""Wanted identifiers kept of a namespace: more than a person reads, and enough to find the most wanted ones."""

MAX_WANTED_ROWS: Final = 20_000
"""Wanted identifiers of all namespaces, of at most 300 bytes each. If there are more, the least wanted go first."""

MAX_WANTED_BYTES: Final = 255
"""Bytes of a wanted identifier; longer ones are counted only as not found."""

WANTED_KEPT: Final = 90 * DAY
"""Seconds since the last request after which a wanted identifier is deleted."""

CHANGES_PER_STEP: Final = 2_000
"""Entries of the ledger counted in one transaction: some 40 ms, for which other processes wait."""

WAIT_SECONDS: Final = 5.0
"""Seconds to wait for the transaction of another process."""

READ_SECONDS: Final = 0.2
"""Seconds for which readers wait for a locked file. Transactions do not lock it for them: only its creation, or another
program, does. Pages are shown without statistics then."""

REQUESTS: Final = (
    *("native", "redirects", "json", "pages"),
    *("bot_redirects", "bot_json", "bot_pages"),
    *("not_found", "bot_not_found"),
    *("under_1ms", "under_10ms", "under_100ms", "under_1s", "slower"),
)
"""What is counted of requests; the last ones by their duration."""

CHANGES: Final = ("created", "updated", "deleted", "published", "withdrawn")
"""What is counted of changes. A record that becomes public is published, also if it is created so; one that is deleted,
hidden or replaced by a tombstone is withdrawn."""

COLUMNS: Final = (*REQUESTS, *CHANGES)

_VERSION = 3  # of the tables: those of another version are replaced
_UNINDEXED_VERSION = 2  # the same tables without indexes
_MODE = 0o600
_RETRY_SECONDS = 0.01
_COLUMN_LIST = ", ".join(COLUMNS)
_TABLE = f"""CREATE TABLE IF NOT EXISTS {{}} (
    start INTEGER NOT NULL, prefix TEXT NOT NULL, {", ".join(f"{each} INTEGER NOT NULL" for each in COLUMNS)},
    PRIMARY KEY (start, prefix)) WITHOUT ROWID"""
_TABLES = (
    _TABLE.format("hours"),
    _TABLE.format("days"),
    """CREATE TABLE IF NOT EXISTS wanted (
    prefix TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (prefix, name)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS totals (prefix TEXT PRIMARY KEY, public INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), ledger BLOB, seq INTEGER)",
    "CREATE INDEX IF NOT EXISTS hours_of_prefix ON hours (prefix, start)",
    "CREATE INDEX IF NOT EXISTS days_of_prefix ON days (prefix, start)",
)
_ADD = f"""INSERT INTO {{}} VALUES (?, ?{", ?" * len(COLUMNS)})
ON CONFLICT DO UPDATE SET {", ".join(f"{each} = {each} + excluded.{each}" for each in COLUMNS)}"""  # noqa: S608 - constants

Counts: TypeAlias = Mapping[tuple[str, str], int]
"""Sums by prefix, with uppercase letters, and column."""

Unit: TypeAlias = Literal["hours", "days"]
_SECONDS: Final[Mapping[Unit, int]] = {"hours": HOUR, "days": DAY}
_KEPT: Final[Mapping[Unit, int]] = {"hours": HOURS_KEPT, "days": DAYS_KEPT}


class Sums(NamedTuple):
    """The sums of a period and a namespace."""

    start: int
    """In seconds since 1970."""
    prefix: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An identifier that was requested and not found."""

    name: str
    count: int
    """How often, at most: another one may have been counted for it."""
    last: int
    """The day of the last request, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Share:
    """The handles of one server of a site."""

    name: bytes = b""
    has: Callable[[str], bool] = bool


EVERYTHING: Final = Share()
"""The share of a server that is alone."""


class StatisticsStore:
    """The file, opened when first needed. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._pruned = 0

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    # Counting

    def add(self, now: int, counts: Counts, missing: Counts = {}) -> None:  # noqa: B006 - not changed
        """Add sums to the current hour and day; `missing` are wanted identifiers by prefix and name.

        Raises `OSError` if they could not be stored.
        """
        rows = _to_rows(counts)
        with self._write() as connection:
            for unit, seconds in _SECONDS.items():
                start = now - now % seconds
                connection.executemany(_ADD.format(unit), [(start, prefix, *row) for prefix, row in rows.items()])
            for (prefix, name), count in missing.items():
                _add_wanted(connection, prefix, name, count, now - now % DAY)
            if now // HOUR != self._pruned:
                _prune(connection, now)
                self._pruned = now // HOUR

    def count_changes(self, reader: "LogReader", now: int, share: Share = EVERYTHING) -> bool:
        """Count entries of the ledger that were not counted yet, a step of them; return whether there are more.

        After a restore from a backup, or with another share, all entries are counted again. Raises `OSError`.
        """
        with self._write() as connection:
            size, ledger = reader.size, reader.ledger_id + share.name
            row = connection.execute("SELECT ledger, seq FROM position").fetchone()
            if row is None or row[0] != ledger or row[1] > size:
                _clear_changes(connection)
                row = (ledger, 0)
            if row[1] == size:
                return False
            seq, hours, totals = _count_entries(reader, row[1], share)
            for unit, seconds in _SECONDS.items():
                sums: dict[int, Counter[tuple[str, str]]] = {}
                for (hour, prefix, column), count in hours.items():
                    if hour > now - _KEPT[unit]:
                        sums.setdefault(hour - hour % seconds, Counter())[prefix, column] += count
                for start, counts in sums.items():
                    added = [(start, prefix, *row) for prefix, row in _to_rows(counts).items()]
                    connection.executemany(_ADD.format(unit), added)
            connection.executemany(
                "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET public = public + excluded.public",
                totals.items(),
            )
            connection.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?)", (ledger, seq))
        return seq < size

    # Reading

    def read_sums(self, unit: Unit, first: int, end: int, prefix: str | None = None) -> list[Sums]:
        """Return the sums of periods that start from `first` up to, not including, `end`; of one prefix or all."""
        condition, values = ("", ()) if prefix is None else (" AND prefix = ?", (fold(prefix),))
        query = f"SELECT start, prefix, {_COLUMN_LIST} FROM {unit} WHERE start >= ? AND start < ?{condition}"  # noqa: S608
        rows = self._read(f"{query} ORDER BY start, prefix", (first, end, *values))
        return [Sums(row[0], row[1], dict(zip(COLUMNS, row[2:], strict=True))) for row in rows]

    def count_public(self, prefix: str | None = None) -> dict[str, int]:
        """Return the number of public identifiers by prefix, without tombstones, as far as the ledger was counted."""
        condition, values = ("", ()) if prefix is None else (" WHERE prefix = ?", (fold(prefix),))
        return {row[0]: row[1] for row in self._read(f"SELECT prefix, public FROM totals{condition}", values)}  # noqa: S608

    def read_wanted(self, prefix: str) -> list[Wanted]:
        """Return the wanted identifiers of a prefix, the most wanted first."""
        query = "SELECT name, count, last FROM wanted WHERE prefix = ? ORDER BY count DESC, name"
        return [Wanted(*row) for row in self._read(query, (fold(prefix),))]

    # The file

    def _read(self, query: str, values: Sequence[object]) -> list[Any]:
        """Return rows, from a connection of their own, which does not wait for transactions. Raises `OSError`."""
        if not self.path.exists():
            return []
        try:
            with closing(self._open_for_reading()) as connection:
                is_known = _read_version(connection) in (_VERSION, _UNINDEXED_VERSION)
                return connection.execute(query, values).fetchall() if is_known else []
        except sqlite3.Error as error:
            raise OSError(f"cannot read {self.path}: {error}") from error

    def _open_for_reading(self) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?mode=rw"  # it is not created
        return sqlite3.connect(address, timeout=READ_SECONDS, isolation_level=None, uri=True)

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction; a file that is damaged, or of another version, is replaced."""
        with self._lock:
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.rollback()
                    raise
                connection.commit()
            except sqlite3.OperationalError as error:  # full, locked or read-only
                self._disconnect()
                raise OSError(f"cannot write {self.path}: {error}") from error
            except sqlite3.DatabaseError as error:
                self._remove()
                raise OSError(f"{self.path} was damaged, and is created again: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode == _inode(self.path):
            return self._connection
        self._disconnect()  # somebody has deleted the file
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _MODE))
        connection = sqlite3.connect(
            self.path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        self._connection, self._inode = connection, _inode(self.path)
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")  # a power failure may lose the last transactions
        if _read_version(connection) != _VERSION:
            connection.execute("BEGIN IMMEDIATE")
            version = _read_version(connection)
            if version != _VERSION:  # nor has another process created them meanwhile, and added to them
                _create_tables(connection, replaces=version != _UNINDEXED_VERSION)
            connection.commit()
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _remove(self) -> None:
        self._disconnect()
        for end in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _use_wal(connection: sqlite3.Connection) -> None:
    """Use a write-ahead log. The first time this needs the file alone, for which SQLite does not wait."""
    deadline = monotonic() + WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            sleep(_RETRY_SECONDS)
        else:
            return


def _read_version(connection: sqlite3.Connection) -> int:
    """The version of the tables; 0 if there are none."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _create_tables(connection: sqlite3.Connection, *, replaces: bool) -> None:
    """Create the tables and indexes that are missing, or replace all tables."""
    if replaces:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            connection.execute(f'DROP TABLE "{table}"')
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _to_rows(counts: Counts) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for (prefix, column), count in counts.items():
        rows.setdefault(prefix, [0] * len(COLUMNS))[_POSITIONS[column]] += count
    return rows


_POSITIONS: Final = {column: position for position, column in enumerate(COLUMNS)}


def _add_wanted(connection: sqlite3.Connection, prefix: str, name: str, count: int, day: int) -> None:
    """Count a wanted identifier. If there are too many of its prefix, it replaces the least wanted, and inherits its
    count.
    """
    update = "UPDATE wanted SET count = count + ?, last = max(last, ?) WHERE prefix = ? AND name = ?"
    if connection.execute(update, (count, day, prefix, name)).rowcount:
        return
    (known,) = connection.execute("SELECT count(*) FROM wanted WHERE prefix = ?", (prefix,)).fetchone()
    if known >= MAX_WANTED:
        least = "SELECT name, count FROM wanted WHERE prefix = ? ORDER BY count, last, name LIMIT 1"
        evicted, inherited = connection.execute(least, (prefix,)).fetchone()
        connection.execute("DELETE FROM wanted WHERE prefix = ? AND name = ?", (prefix, evicted))
        count += inherited
    connection.execute("INSERT INTO wanted VALUES (?, ?, ?, ?)", (prefix, name, count, day))


def _prune(connection: sqlite3.Connection, now: int) -> None:
    """Delete what is too old, and the oldest of what is too much."""
    for unit, kept in _KEPT.items():
        connection.execute(f"DELETE FROM {unit} WHERE start <= ?", (now - kept,))  # noqa: S608
        (rows,) = connection.execute(f"SELECT count(*) FROM {unit}").fetchone()  # noqa: S608
        if rows > MAX_ROWS:
            oldest = f"SELECT start FROM {unit} ORDER BY start LIMIT 1 OFFSET ?"  # noqa: S608
            (start,) = connection.execute(oldest, (rows - MAX_ROWS - 1,)).fetchone()
            connection.execute(f"DELETE FROM {unit} WHERE start <= ?", (start,))  # noqa: S608
    connection.execute("DELETE FROM wanted WHERE last <= ?", (now - WANTED_KEPT,))
    (rows,) = connection.execute("SELECT count(*) FROM wanted").fetchone()
    if rows > MAX_WANTED_ROWS:
        least = "SELECT prefix, name FROM wanted ORDER BY count, last LIMIT ?"
        excess = connection.execute(least, (rows - MAX_WANTED_ROWS,)).fetchall()
        connection.executemany("DELETE FROM wanted WHERE prefix = ? AND name = ?", excess)


def _clear_changes(connection: sqlite3.Connection) -> None:
    """Forget which entries were counted."""
    for unit in _SECONDS:
        connection.execute(f"UPDATE {unit} SET {', '.join(f'{each} = 0' for each in CHANGES)}")  # noqa: S608
    connection.execute("DELETE FROM totals")


def _count_entries(
    reader: "LogReader", after: int, share: Share
) -> tuple[int, Counter[tuple[int, str, str]], Counter[str]]:
    """Count a step of entries: the last one, sums by hour, prefix and column, and the growth of each prefix."""
    sums: Counter[tuple[int, str, str]] = Counter()
    totals: Counter[str] = Counter()
    last = after
    for change in reader.transitions(after, after + CHANGES_PER_STEP):
        last = change.seq
        if change.handle.upper().startswith(LOCAL) or not share.has(change.handle):
            continue  # the installation's own records, and copies of what another server has
        prefix = fold(change.handle.partition("/")[0])
        hour = change.at // 1_000_000
        hour -= hour % HOUR
        for column in _columns(change.action, change.before, change.after):
            sums[hour, prefix, column] += 1
        totals[prefix] += (change.after is State.NORMAL) - (change.before is State.NORMAL)
    return last, sums, totals


def _columns(action: Action, before: State, after: State) -> Iterable[str]:
    if after is State.ABSENT:
        yield "deleted" if before is not State.ABSENT and action is not Action.REDACT else "updated"
    else:
        yield "created" if before is State.ABSENT else "updated"
    if (after is State.NORMAL) != (before is State.NORMAL):
        yield "published" if after is State.NORMAL else "withdrawn"
