"""The state file of the answers view, and its generations: LMDB environments and how entries are written to them.

The state file says whether there is a usable view, and where. It is one page, written once in full and then changed in
place through a memory map, which works on a full disk too. Readers map the same page and check it at every read, so it
is read and written in aligned 64-bit words, never byte by byte. Changes that depend on the current content are made
under a file lock, in such an order that a reader in between considers the view unusable rather than right.

A generation stores its position in the ledger in the same transaction as its data. It does not know whether it is the
current one; `answers` does.
"""

import fcntl
import mmap
import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from struct import Struct
from typing import Final, Self, TypeAlias
from uuid import UUID, uuid4

import lmdb

from perseid.ledger.errors import CorruptData, NewerFormat
from perseid.ledger.store.changes import Change, Source

from .answers_format import LAYOUT, HandleItem, PrefixPart, decode_handle, encode_item, is_local, merge_item, store_key

STATE_SIZE: Final = 4096
"""One page: the smallest file system block and memory map."""

MAGIC: Final = int.from_bytes(b"PRSDANSW", "little")
VERSION: Final = 1

# Positions of the 64-bit words.
WORD_MAGIC: Final = 0
WORD_VERSION: Final = 1
WORD_GENERATION: Final = 2
WORD_REQUIRED: Final = 3
WORD_NEWEST: Final = 4
WORD_CLEAN: Final = 5
WORD_INODE: Final = 8
_BOOT = slice(48, 64)  # bytes of words 6 and 7

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return the 16 bytes that identify the current boot of this machine."""
    return UUID(_BOOT_ID.read_text().strip()).bytes


class StateFile:
    """The state of the answers view in one folder."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            status = os.fstat(self._descriptor)
            self._inode = status.st_ino
            if status.st_size != STATE_SIZE:
                raise _invalid_state_file(path)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self._descriptor, STATE_SIZE, access=access)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.words = memoryview(self._map).cast("Q")
        """The file as 64-bit words in native byte order; see the `WORD_…` constants."""
        self._lock = threading.Lock()
        if self.words[WORD_MAGIC] != MAGIC:
            self.close()
            raise _invalid_state_file(path)
        if self.words[WORD_VERSION] != VERSION:
            self.close()
            raise NewerFormat(f"{path} was written by a newer program version; upgrade this one")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the file for writing; create it if it is missing."""
        if not path.exists():
            _create_state_file(path)
        return cls(path, writable=True)

    def close(self) -> None:
        self.words.release()
        self._map.close()
        os.close(self._descriptor)

    # Reading

    def usable_generation(self, boot: bytes) -> int:
        """Return the usable generation; 0 if there is none.

        LMDB writes without sync. Its data is complete if it was closed properly or if the machine has not rebooted
        since. A file
        with another inode is a copy, taken at an unknown time.
        """
        if not self.clean and self._map[_BOOT] != boot:
            return 0
        return self.words[WORD_GENERATION] if self.words[WORD_INODE] == self._inode else 0

    @property
    def clean(self) -> bool:
        """Whether everything LMDB wrote is on disk."""
        return bool(self.words[WORD_CLEAN])

    # Writing

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other threads and processes for a few instructions."""
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def discard_unusable(self, boot: bytes) -> None:
        """Invalidate an unusable generation for every process."""
        with self._locked():
            if self.usable_generation(boot) == 0:
                self.words[WORD_GENERATION] = 0
                self.words[WORD_INODE] = self._inode

    def invalidate(self, generation: int) -> None:
        """Invalidate a generation, unless another one has replaced it."""
        with self._locked():
            if self.words[WORD_GENERATION] == generation:
                self.words[WORD_GENERATION] = 0

    def require(self, seq: int) -> None:
        """Make the view unusable until it has an entry that was acknowledged."""
        with self._locked():
            self.words[WORD_REQUIRED] = max(seq, self.words[WORD_REQUIRED])

    def reached(self, seq: int) -> None:
        """Record that the view has everything up to an entry."""
        if self.words[WORD_REQUIRED]:
            with self._locked():
                if self.words[WORD_REQUIRED] <= seq:
                    self.words[WORD_REQUIRED] = 0

    def forget(self, required: int) -> None:
        """Drop a required entry that the ledger does not have: it was restored from an earlier state."""
        with self._locked():
            if self.words[WORD_REQUIRED] == required:
                self.words[WORD_REQUIRED] = 0

    def next_generation(self) -> int:
        """Return a number for a new generation, never used before."""
        with self._locked():
            self.words[WORD_NEWEST] += 1
            return self.words[WORD_NEWEST]

    def switch(self, generation: int) -> None:
        """Make a generation the current one."""
        self.words[WORD_GENERATION] = generation

    def mark_dirty(self, boot: bytes) -> None:
        """Record on disk that LMDB is about to write. The caller holds LMDB's write lock."""
        self._map[_BOOT] = boot
        self.words[WORD_CLEAN] = 0
        self._map.flush()

    def mark_clean(self) -> None:
        """Record that everything LMDB wrote is on disk. The caller holds LMDB's write lock."""
        self.words[WORD_CLEAN] = 1
        self._map.flush()


def _create_state_file(path: Path) -> None:
    """Create a complete file atomically, unless another process was faster."""
    new = path.with_name(f"{path.name}.{uuid4().hex}")
    words = array("Q", bytes(STATE_SIZE))
    words[WORD_MAGIC], words[WORD_VERSION] = MAGIC, VERSION
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            words[WORD_INODE] = os.fstat(file.fileno()).st_ino
            file.write(words)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _invalid_state_file(path: Path) -> CorruptData:
    return CorruptData(f"{path} is not a valid state file; remove its folder, and the answers view will be rebuilt")


MAX_READERS: Final = 512
"""Reader slots. Each concurrently reading thread takes one, and a killed process leaves its own until the next check:
many times the cores of a large machine."""

SPARE_TRANSACTIONS: Final = 4
"""Read transactions that are kept for reuse; a resolver needs one, the control process a few."""

CHUNK: Final = 1_000
"""Maximum entries applied in one transaction while catching up: other writers wait for some milliseconds."""

BATCH: Final = 20_000
"""Maximum records written in one transaction while building, when nothing waits."""

_POSITION = Struct("<Q16sQ32s")  # layout, ledger, entry, leaf
_APPLIED = b"applied"
_BUILT = b"built"
_SEQ = Struct("<Q")
_NO_LEAF = bytes(32)
PREFIX_RECORD_KEYS: Final = (b"0.NA/", b"0.SITE/")
"""How the keys of records about prefixes start."""

_DATABASES = (b"handles", b"prefixes", b"meta")

CORRUPTION_ERRORS: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    CorruptData,
)
"""Errors of a generation that is corrupt; a retry does not help."""

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Progress: TypeAlias = Callable[[int], object]
"""Called from time to time with the number of written records."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a view in a ledger."""

    ledger_id: bytes
    """The ledger's id."""
    seq: int
    """The number of the last applied entry; 0 before the first."""
    leaf: bytes
    """The leaf hash of that entry; zeros before the first."""

    @classmethod
    def of(cls, source: Source) -> Self:
        """Return the end of a state of the ledger."""
        return cls(source.ledger_id, source.size, source.leaf(source.size) if source.size else _NO_LEAF)

    def is_in(self, source: Source) -> bool:
        """Whether a ledger has this very entry."""
        if self.ledger_id != source.ledger_id or self.seq > source.size:
            return False
        return self.leaf == (source.leaf(self.seq) if self.seq else _NO_LEAF)


class Generation:
    """One LMDB environment. It is closed when the last reference is dropped."""

    __slots__ = ("begin", "env", "handles", "meta", "number", "prefixes")

    def __init__(self, folder: Path, number: int, map_size: int, *, readonly: bool = False, new: bool = False) -> None:
        path = folder / str(number)
        if new:
            path.mkdir(mode=0o700)
        elif not (path / "data.mdb").exists():
            raise CorruptData(f"{path} is missing; the answers view will be rebuilt")
        self.number = number
        self.env = lmdb.open(
            str(path),
            map_size=map_size,
            readonly=readonly,
            sync=False,  # the state file tells when the data may be torn
            mode=0o600,
            create=new,
            max_readers=MAX_READERS,
            max_dbs=len(_DATABASES),
            max_spare_txns=SPARE_TRANSACTIONS,
        )
        self.env.reader_check()
        self.handles, self.prefixes, self.meta = [self.env.open_db(name, create=new) for name in _DATABASES]
        self.begin = self.env.begin
        if not new:
            with self.begin() as txn:
                self.position(txn)  # refuses another layout

    def position(self, txn: Transaction) -> Position:
        """Return how far the generation has come."""
        raw = txn.get(_APPLIED, db=self.meta)
        if raw is None or len(raw) != _POSITION.size:
            raise CorruptData("the answers view has no valid position. Run: perseid rebuild answers")
        layout, ledger_id, seq, leaf = _POSITION.unpack(raw)
        if layout != LAYOUT:
            raise CorruptData(f"the answers view has layout {layout} instead of {LAYOUT}. Run: perseid rebuild answers")
        return Position(ledger_id, seq, leaf)

    def _move(self, txn: Transaction, to: Position) -> None:
        txn.put(_APPLIED, _POSITION.pack(LAYOUT, to.ledger_id, to.seq, to.leaf), db=self.meta)

    # Entries

    def write(self, txn: Transaction, ledger_id: bytes, changes: Sequence[Change]) -> None:
        """Apply entries that follow the last applied one."""
        handles = self.handles
        cursor = txn.cursor(handles)
        last = cursor.key() if cursor.last() else b""
        for change in changes:
            record = change.key
            if not is_local(record):
                key = store_key(record)
                if key > last:
                    # Ascending keys, as of counters, are appended, which fills pages completely.
                    item = encode_item(change, key)
                    if item is not None:
                        txn.put(key, item, append=True, db=handles)
                        last = key
                else:
                    before = txn.get(key, db=handles)
                    after = encode_item(change, key) if before is None else _merge_change(key, before, change)
                    _put(txn, handles, key, after)
            if record.startswith(PREFIX_RECORD_KEYS):
                self._write_prefix(txn, change)
        self._move(txn, Position(ledger_id, changes[-1].seq, changes[-1].leaf))

    def _write_prefix(self, txn: Transaction, change: Change) -> None:
        part = PrefixPart.of(change)
        if part is not None:
            key = store_key(part.prefix)
            _put(txn, self.prefixes, key, part.merge(txn.get(key, db=self.prefixes)))

    def write_sorted(self, txn: Transaction, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Write items of new records, at least one, by ascending key. Does not move the position."""
        handles = self.handles
        cursor = txn.cursor(handles)
        appends = not cursor.last() or cursor.key() < items[0][0]
        if appends and len({key for key, _ in items}) == len(items):
            cursor.putmulti(items, append=True)
            return
        for key, raw in items:
            if not txn.put(key, raw, overwrite=False, db=handles):
                (item,) = decode_handle(key, raw)
                _put(txn, handles, key, merge_item(key, txn.get(key, db=handles), item.key, item))

    def move(self, txn: Transaction, seq: int, leaf: bytes) -> None:
        """Record that everything up to an entry has been written."""
        self._move(txn, Position(self.position(txn).ledger_id, seq, leaf))

    def follow(self, source: Source, until: int | None = None) -> int:
        """Apply new entries in chunks and return how many. For a generation that is not current yet."""
        end = source.size if until is None else until
        with self.begin() as txn:
            position = self.position(txn)
        seq = position.seq
        while seq < end:
            changes = source.changes(seq, min(CHUNK, end - seq))
            if not changes:
                raise CorruptData(f"entry {seq + 1} is missing. Run: perseid verify --all")
            with self.begin(write=True) as txn:
                self.write(txn, position.ledger_id, changes)
            seq = changes[-1].seq
        return seq - position.seq

    # Building and comparing

    def fill(self, source: Source, progress: Progress | None = None) -> None:
        """Write everything a ledger has into an empty generation."""
        records = source.current()
        done, last = 0, b""
        while batch := list(islice(records, BATCH)):
            with self.begin(write=True) as txn:
                for change in batch:
                    last = self._add(txn, change, last)
                    self._write_prefix(txn, change)
            done += len(batch)
            if progress is not None:
                progress(done)
        with self.begin(write=True) as txn:
            self._move(txn, Position.of(source))
            txn.put(_BUILT, _SEQ.pack(source.size), db=self.meta)

    def built(self, txn: Transaction) -> int:
        """Return the entry at which it was built: data redacted by then was never in its files."""
        return int(_SEQ.unpack(txn.get(_BUILT, _SEQ.pack(0), db=self.meta))[0])

    def _add(self, txn: Transaction, change: Change, last: bytes) -> bytes:
        """Write the item of a record, if it has one; return the highest key so far.

        Records come in the order of the ledger's keys, which is nearly always that of the view's; then they are
        appended, which
        fills pages completely. Exact handles and very long ones may be out of order, or share a key.
        """
        key = store_key(change.key)
        item = encode_item(change, key)
        if item is None:
            return last
        if key > last:
            txn.put(key, item, append=True, db=self.handles)
            return key
        before = txn.get(key, db=self.handles)
        _put(txn, self.handles, key, item if before is None else _merge_change(key, before, change))
        return last

    def difference(self, txn: Transaction, other: "Generation") -> str | None:
        """Return database and key of the first difference between this transaction and another generation."""
        with other.begin() as theirs:
            for name, mine, its in (
                ("handles", self.handles, other.handles),
                ("prefixes", self.prefixes, other.prefixes),
            ):
                for one, another in zip_longest(txn.cursor(mine), theirs.cursor(its)):
                    if one != another:
                        key = min(key for key, _ in filter(None, (one, another)))
                        return f"{name} {key.decode('utf-8', 'backslashreplace')}"
            return None if self.position(txn) == other.position(theirs) else "meta applied"


def _merge_change(key: bytes, before: bytes, change: Change) -> bytes | None:
    """Return the bytes under a non-empty key after an entry."""
    return merge_item(key, before, change.key, HandleItem.of(change))


def _put(txn: Transaction, database: "lmdb._Database", key: bytes, raw: bytes | None) -> None:
    if raw is None:
        txn.delete(key, db=database)
    else:
        txn.put(key, raw, db=database)
