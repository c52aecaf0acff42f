"""Tables that all processes of a server share: sessions, challenges, budgets, replies.

They are in an LMDB environment of the runtime directory, which is never synced: what is in it may be lost with the
machine, but not with a process. Every process opens it once, after it was started. A table has a maximum number of
entries and of bytes; every entry expires, and the one that expires first is evicted. Entries may belong to groups, such
as the network of a client, with a limit of their own. Times are those of the table's clock, in seconds.

    state = SharedState(directory)
    sessions = state.table("http_sessions", version=1, max_entries=10_000, max_bytes=16 << 20)
    sessions.put(key, Entry(value, now + 1_800))
    sessions.get(key, now)

Values are bytes, normally MessagePack of a msgspec structure; a table of another version is another table, so that a
process of a new release that is started by a running server does not read what it cannot understand.

A change is one short transaction, and never lasts across an `await`: other processes wait for it. If a process is
killed inside one, the next goes on, as the mutex is robust. If one is stopped, everybody waits until the supervisor
kills it: `RuntimeDirectory.last_writer` tells which one it is.
"""

import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

import lmdb
import msgspec

from .runtime import CONTROL_NAME

MAP_BYTES: Final = 512 << 20
"""Size of the map: more than all tables together. Only what is used takes memory."""

MAX_KEY_BYTES: Final = 64
"""Bytes of the longest key: a SHA-512 hash."""

MAX_EVICTIONS: Final = 16
"""Entries that one change evicts at most, in some 50 µs. If that is too few, the change is refused."""

SWEEP_ENTRIES: Final = 64
"""Expired entries that one transaction of a sweep removes at most: others wait for it, some 200 µs."""

SWEEP_BYTES: Final = 2 << 20
"""More than the pages that such a transaction touches."""

KEY_BYTES: Final = 32
"""Bytes of the random key of an environment."""

_DATA_NAME = "data.mdb"
_MAX_TABLES = 64
_MAX_READERS = 256
_SPARE_TRANSACTIONS = 4
_RESERVE_STEP = 4 << 20  # bytes by which the allocated part of the file grows
_WRITE_BYTES = 512 << 10  # more than the pages that a change and its evictions touch, without those of a long value
_CONTROL_WORDS = 3
_LAST_WRITER, _USED, _RESERVED = range(_CONTROL_WORDS)  # a process; bytes that may be used; bytes allocated
_WORD_BYTES = 8
_PAGE_BYTES = 4096  # LMDB uses that of the system

_TIME_BYTES = 8  # when an entry expires, in microseconds
_LENGTH_BYTES = 2  # of the list of its groups, which follows
_HEAD_BYTES = _TIME_BYTES + _LENGTH_BYTES
_MAX_TIME = (1 << 63) - 1
_ALL = b"\0"  # the group of all entries of a table
_GROUP_PREFIX = b"\1"
_KEY_NAME = b"\0key"  # in the main database, beside the names of the tables

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
T = TypeVar("T")


class StateUnavailable(OSError):
    """The environment cannot be opened: its server has ended and removed it."""


class StateFull(Exception):
    """There is no room for a change: the map or the file system is full."""


class Entry(NamedTuple):
    """What is stored under a key."""

    value: bytes
    expires: float
    groups: Sequence[tuple[bytes, int]] = ()
    """Groups that the entry belongs to, each with its maximum number of entries."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table, for the metrics."""

    entries: int
    bytes: int


class SharedState:
    """The environment in one process, opened once after a fork. Thread-safe."""

    def __init__(self, path: Path, map_size: int = MAP_BYTES) -> None:
        """Open the environment in a directory of this user; the first process creates it, but not the directory:
        a process that is late must not bring back that of a server which has ended.
        """
        try:
            self._env = lmdb.open(
                str(path / _DATA_NAME),
                subdir=False,
                map_size=map_size,
                mode=0o600,
                max_dbs=2 * _MAX_TABLES,
                max_readers=_MAX_READERS,
                max_spare_txns=_SPARE_TRANSACTIONS,
                writemap=True,
                sync=False,
                metasync=False,
            )
        except lmdb.Error as error:
            raise StateUnavailable(f"cannot open the shared state: {error}") from error
        self._path = path
        self._map_size = map_size
        self._process = os.getpid()  # a system call less for each change
        self._file = os.open(path / _DATA_NAME, os.O_RDWR | os.O_CLOEXEC)
        self._close_file = weakref.finalize(self, os.close, self._file)
        self._control = _map_file(path / CONTROL_NAME, _CONTROL_WORDS * _WORD_BYTES).cast("q")
        self._tables: weakref.WeakValueDictionary[str, Table] = weakref.WeakValueDictionary()
        """Weak, so that the state goes with its last user, without the garbage collector."""
        self.key = self.write(self._create_key)
        """A random key of this environment, the same in all processes."""

    @classmethod
    def private(cls, map_size: int = MAP_BYTES) -> Self:
        """Return a state of this process alone, which goes with the object."""
        with tempfile.TemporaryDirectory(prefix="perseid-state-") as folder:
            return cls(Path(folder), map_size)

    def table(
        self,
        name: str,
        *,
        version: int,
        max_entries: int,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Table":
        """Return a table; calling this again changes its limits. A longer entry than `max_bytes` is refused.

        The clock is that of the times that its users pass; both clocks of a machine are the same in all processes.
        """
        full_name = f"{name}.{version}"
        table = self._tables.get(full_name)
        if table is None:
            table = self._tables[full_name] = Table(self, self._env, full_name, clock)
        table.max_entries, table.max_bytes = max_entries, max_bytes
        return table

    def memory(self, name: str, size: int) -> memoryview:
        """Return memory that all processes share, for numbers that are changed without locks; it starts with zeros."""
        return _map_file(self._path / f"{name}.{size}", size)

    def write(self, change: Callable[[Transaction], T], size: int = 0) -> T:
        """Run a change that writes up to `size` bytes in one transaction; raise `StateFull` if there is no room.

        It may run twice, if the first transaction is aborted.
        """
        for is_last in (False, True):
            try:
                with self._env.begin(write=True) as txn:
                    self._control[_LAST_WRITER] = self._process
                    self._reserve(size)
                    return change(txn)
            except lmdb.MapFullError:
                if is_last:
                    raise StateFull from None
                self._env.reader_check()  # pages that killed processes were reading are free now
        raise AssertionError("unreachable")

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run a function that only reads in one transaction."""
        try:
            with self._env.begin() as txn:
                return look(txn)
        except lmdb.ReadersFullError:
            self._env.reader_check()  # killed processes
            with self._env.begin() as txn:
                return look(txn)

    def find(self, tables: Iterable["Table"], key: bytes, now: float) -> bytes | None:
        """Return the value under a key in the first of some tables that has one, unless it has expired."""

        def look(txn: Transaction) -> bytes | None:
            for table in tables:
                if (value := table.read(txn, key, now)) is not None:
                    return value
            return None

        return self.read(look)

    def sweep(self) -> None:
        """Remove expired entries from all tables, a bounded number for each; called once a second."""
        self._env.reader_check()
        for table in list(self._tables.values()):
            with suppress(StateFull):
                table.sweep(table.clock())

    def sizes(self) -> dict[str, TableSize]:
        """Return the sizes of the tables of this process by name."""
        return {name.partition(".")[0]: table.size() for name, table in self._tables.items()}

    def close(self) -> None:
        self._control.release()
        self._close_file()
        self._env.close()

    def _reserve(self, size: int) -> None:
        """Allocate what a change may use of the file before it is touched through the map.

        A file system that is full then gives an error here, not a signal that ends the process. Runs under the lock of
        the environment, so that all processes count together.
        """
        control, needed = self._control, _WRITE_BYTES + 2 * size
        control[_USED] += needed
        if control[_USED] <= control[_RESERVED]:
            return
        used = (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES + needed
        reserved = control[_RESERVED]
        if used > reserved < self._map_size:
            end = min(used + _RESERVE_STEP, self._map_size)
            try:
                os.posix_fallocate(self._file, reserved, end - reserved)
            except OSError as error:
                raise StateFull(error.strerror) from error
            control[_RESERVED] = end
        control[_USED] = used

    def _create_key(self, txn: Transaction) -> bytes:
        key = txn.get(_KEY_NAME) or os.urandom(KEY_BYTES)
        txn.put(_KEY_NAME, key)
        return key


def read_entry(path: Path, name: str, version: int, key: bytes, now: float) -> bytes | None:
    """Read an entry of a table of a running server from another process, which changes and locks nothing.

    Return None if there is no server, table or entry.
    """
    with suppress(lmdb.Error), lmdb.open(str(path / _DATA_NAME), subdir=False, readonly=True, max_dbs=1) as env:
        table = env.open_db(f"{name}.{version}".encode(), create=False)
        with env.begin(table) as txn:
            return _unpack(txn.get(key), now)
    return None


class Table:
    """A table in one process; see `SharedState.table`."""

    max_entries: int
    max_bytes: int

    def __init__(self, state: SharedState, env: "lmdb.Environment", name: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._state = state
        self._env = env
        self._entries = state.write(lambda txn: env.open_db(name.encode(), txn))
        # By group and then by time: every entry is in the group of all, and in its own ones.
        self._groups = state.write(lambda txn: env.open_db(f"{name}.groups".encode(), txn, dupsort=True))

    def get(self, key: bytes, now: float) -> bytes | None:
        """Return a value, unless it has expired."""
        return self._state.find((self,), key, now)

    def items(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return all keys and values that have not expired, in the order of the keys; for small tables."""
        with self._env.begin() as txn, txn.cursor(self._entries) as cursor:
            found = [(key, _unpack(data, now)) for key, data in cursor]
        return [(key, value) for key, value in found if value is not None]

    def put(self, key: bytes, entry: Entry) -> bool:
        """Store an entry, and evict others if necessary; return whether there was room."""
        try:
            return self._state.write(lambda txn: self.write(txn, key, entry), len(entry.value))
        except StateFull:
            return False

    def update(self, key: bytes, now: float, change: Callable[[bytes | None], Entry | None], size: int = 0) -> bool:
        """Replace the value under a key by what `change` makes of it; None leaves it. Return whether it was written.

        `size` is the maximum length of the new value, if that is more than a few kilobytes.
        """

        def run(txn: Transaction) -> bool:
            entry = change(self.read(txn, key, now))
            return entry is not None and self.write(txn, key, entry)

        try:
            return self._state.write(run, size)
        except StateFull:
            return False

    def take(self, key: bytes, now: float) -> bytes | None:
        """Remove an entry; return its value, unless it has expired. Only one process gets it."""

        def run(txn: Transaction) -> bytes | None:
            value = self.read(txn, key, now)
            self.remove(txn, key)
            return value

        return self._state.write(run)

    def delete(self, key: bytes) -> bool:
        """Remove an entry; return whether it existed."""
        return self._state.write(lambda txn: self.remove(txn, key))

    def sweep(self, now: float) -> int:
        """Remove entries that have expired; return how many. Bounded per call."""

        def run(txn: Transaction) -> int:
            count, end = 0, _pack_time(now)
            while (
                count < SWEEP_ENTRIES and (first := self._first(txn, _ALL)) is not None and first[:_TIME_BYTES] <= end
            ):
                self.remove(txn, first[_TIME_BYTES:])
                count += 1
            return count

        # A look that changes nothing is enough most of the time, and does not wait for others.
        first = self._state.read(lambda txn: self._first(txn, _ALL))
        return (
            self._state.write(run, SWEEP_BYTES) if first is not None and first[:_TIME_BYTES] <= _pack_time(now) else 0
        )

    def size(self) -> TableSize:
        """Return the current size."""
        with self._env.begin() as txn:
            return self._size(txn)

    # Parts of a change, for `SharedState.write`

    def read(self, txn: Transaction, key: bytes, now: float) -> bytes | None:
        """Return a value in a transaction."""
        return _unpack(txn.get(key, db=self._entries), now)

    def has_any(self, txn: Transaction, first: bytes, last: bytes) -> bool:
        """Whether there is an entry from one key to another, both included, even one that has expired."""
        with txn.cursor(self._entries) as cursor:
            return cursor.set_range(first) and cursor.key() <= last

    def write(self, txn: Transaction, key: bytes, entry: Entry) -> bool:
        """Store an entry in a transaction; return whether there was room. Otherwise an earlier one stays."""
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes; this one has {len(key)}")
        expires = _pack_time(entry.expires)
        groups = [_GROUP_PREFIX + name for name, _ in entry.groups]
        names = msgspec.msgpack.encode(groups) if groups else b""
        head = expires + len(names).to_bytes(_LENGTH_BYTES, "big") + names
        data = head + entry.value
        old = txn.get(key, db=self._entries)
        if old is not None and old.startswith(head) and len(old) >= len(data):  # nothing but the value changes
            txn.put(key, data, db=self._entries)
            return True
        if old is not None:
            self.remove(txn, key)
        has_room = self._make_room(txn, entry, len(data))
        stored = data if has_room else old
        if stored is not None:
            txn.put(key, stored, db=self._entries)
            for group in _groups_of(stored):
                txn.put(group, stored[:_TIME_BYTES] + key, db=self._groups)
        return has_room

    def remove(self, txn: Transaction, key: bytes) -> bool:
        """Remove an entry in a transaction; return whether it existed."""
        data = txn.pop(key, db=self._entries)
        if data is None:
            return False
        for group in _groups_of(data):
            txn.delete(group, data[:_TIME_BYTES] + key, db=self._groups)
        return True

    def _make_room(self, txn: Transaction, entry: Entry, size: int) -> bool:
        """Evict what expires first: of each group that is full, then of all."""
        evictions = 0
        for name, limit in entry.groups:
            group = _GROUP_PREFIX + name
            with txn.cursor(self._groups) as cursor:
                excess = (cursor.count() if cursor.set_key(group) else 0) - limit + 1
            for _ in range(excess):
                evictions += self._evict(txn, group)
        pages = -(-size // _PAGE_BYTES)
        if pages * _PAGE_BYTES > self.max_bytes:
            return False
        while True:
            used = self._size(txn)
            if used.entries < self.max_entries and used.bytes + pages * _PAGE_BYTES <= self.max_bytes:
                return True
            if evictions >= MAX_EVICTIONS or not self._evict(txn, _ALL):
                return False
            evictions += 1

    def _evict(self, txn: Transaction, group: bytes) -> bool:
        first = self._first(txn, group)
        return first is not None and self.remove(txn, first[_TIME_BYTES:])

    def _first(self, txn: Transaction, group: bytes) -> bytes | None:
        """When the entry of a group that expires first does so, and its key."""
        return txn.get(group, db=self._groups)

    def _size(self, txn: Transaction) -> TableSize:
        stat = txn.stat(self._entries)
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return TableSize(stat["entries"], pages * stat["psize"])


def is_running(process: int) -> bool:
    """Whether a process of this user is running."""
    try:
        os.kill(process, 0)
    except OSError:  # it has ended, and its id may be that of somebody else's process
        return False
    return True


def _map_file(path: Path, size: int) -> memoryview:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)  # see `SharedState._reserve`
        return memoryview(mmap(descriptor, size))
    finally:
        os.close(descriptor)


def _pack_time(seconds: float) -> bytes:
    return min(max(int(seconds * 1_000_000), 0), _MAX_TIME).to_bytes(_TIME_BYTES, "big")


def _value_start(data: bytes) -> int:
    return _HEAD_BYTES + int.from_bytes(data[_TIME_BYTES:_HEAD_BYTES], "big")


def _groups_of(data: bytes) -> Sequence[bytes]:
    """The groups that an entry belongs to."""
    names = data[_HEAD_BYTES : _value_start(data)]
    return (_ALL, *msgspec.msgpack.decode(names, type=list[bytes])) if names else (_ALL,)


def _unpack(data: bytes | None, now: float) -> bytes | None:
    """Return the value of an entry, unless it has expired."""
    return None if data is None or data[:_TIME_BYTES] <= _pack_time(now) else data[_value_start(data) :]
