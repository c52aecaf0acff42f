"""The small file beside the answers view that says whether, and where, there is a view to be used.

It is one page, written once in full and from then on changed in place through a memory map: that works on a full
disk too, which is when it matters most. Readers map the same page and look at it at every read, so a word of it is
read and written as a whole: through a memory view of aligned 64-bit words, never octet by octet.

What is changed depending on what was there is changed under a lock of the file. The order of changes is such that
whoever looks in between takes the view for unusable rather than for right.

A generation of the answers view: one LMDB environment, and how entries are written into it.

It knows how far it has come in which ledger, and moves that in the same transaction as what it holds. It does not know
whether it is in use; `answers` does.
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
"""One page: what the smallest file system block and the smallest memory map have in common."""

MAGIC: Final = int.from_bytes(b"PRSDANSW", "little")
VERSION: Final = 1

# Which 64-bit word is which.
WORD_MAGIC: Final = 0
WORD_VERSION: Final = 1
WORD_GENERATION: Final = 2
WORD_REQUIRED: Final = 3
WORD_NEWEST: Final = 4
WORD_CLEAN: Final = 5
WORD_INODE: Final = 8
_BOOT = slice(48, 64)  # octets: words 6 and 7

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Which start of this machine this is: 16 octets."""
    return UUID(_BOOT_ID.read_text().strip()).bytes


class StateFile:
    """The state of the answers view in one folder, as one process sees it."""

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
        """The file as 64-bit words in the machine's own order; the `WORD_…` constants say which is which."""
        self._lock = threading.Lock()
        if self.words[WORD_MAGIC] != MAGIC:
            self.close()
            raise _invalid_state_file(path)
        if self.words[WORD_VERSION] != VERSION:
            self.close()
            raise NewerFormat(f"{path} was written by a newer version of the program; upgrade this one")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the file for writing; make it if it is not there."""
        if not path.exists():
            _create_state_file(path)
        return cls(path, writable=True)

    def close(self) -> None:
        """Give the map and the file back."""
        self.words.release()
        self._map.close()
        os.close(self._descriptor)

    # What it says

    def usable_generation(self, boot: bytes) -> int:
        """The generation that may be used; 0 if there is none.

        LMDB writes without sync. What it wrote is whole if it was closed in an orderly way or if the machine has not
        been started anew since. A file in another place than where it was made is a copy, taken nobody knows when.
        """
        if not self.clean and self._map[_BOOT] != boot:
            return 0
        return self.words[WORD_GENERATION] if self.words[WORD_INODE] == self._inode else 0

    @property
    def clean(self) -> bool:
        """Whether everything LMDB wrote is on the disk."""
        return bool(self.words[WORD_CLEAN])

    # Changing it

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Between threads and between processes; held for a few instructions."""
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def discard_unusable(self, boot: bytes) -> None:
        """Give up a generation that may not be used, for every process."""
        with self._locked():
            if self.usable_generation(boot) == 0:
                self.words[WORD_GENERATION] = 0
                self.words[WORD_INODE] = self._inode

    def invalidate(self, generation: int) -> None:
        """Give up a generation, unless another one has taken its place."""
        with self._locked():
            if self.words[WORD_GENERATION] == generation:
                self.words[WORD_GENERATION] = 0

    def require(self, seq: int) -> None:
        """An entry counts that the view does not have: it may not be used before it has."""
        with self._locked():
            self.words[WORD_REQUIRED] = max(seq, self.words[WORD_REQUIRED])

    def reached(self, seq: int) -> None:
        """The view has everything up to this entry."""
        if self.words[WORD_REQUIRED]:
            with self._locked():
                if self.words[WORD_REQUIRED] <= seq:
                    self.words[WORD_REQUIRED] = 0

    def forget(self, needed: int) -> None:
        """An entry that was needed is not in the ledger any more: it was restored from before it."""
        with self._locked():
            if self.words[WORD_REQUIRED] == needed:
                self.words[WORD_REQUIRED] = 0

    def next_generation(self) -> int:
        """A number for a new generation, which no other has ever had: by it readers tell them apart."""
        with self._locked():
            self.words[WORD_NEWEST] += 1
            return self.words[WORD_NEWEST]

    def switch(self, generation: int) -> None:
        """Make a generation the one that is used."""
        self.words[WORD_GENERATION] = generation

    def mark_dirty(self, boot: bytes) -> None:
        """LMDB is about to write; this is on the disk when the call returns. The caller holds LMDB's write lock."""
        self._map[_BOOT] = boot
        self.words[WORD_CLEAN] = 0
        self._map.flush()

    def mark_clean(self) -> None:
        """Everything LMDB wrote is on the disk. The caller holds LMDB's write lock."""
        self.words[WORD_CLEAN] = 1
        self._map.flush()


def _create_state_file(path: Path) -> None:
    """Put a whole file in place, unless another process was faster; nobody ever sees half of it."""
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
    return CorruptData(f"{path} is not the state of an answers view; remove the folder, it will be built anew")


MAX_READERS: Final = 512
"""Places for readers. Each thread that reads at the same time as others of its process takes one, and a killed process
leaves its own behind until they are looked through: more than the cores of a large machine, many times."""

SPARE_TRANSACTIONS: Final = 4
"""Read transactions that are kept and used again; a resolver needs one, the control process a few."""

CHUNK: Final = 1_000
"""The most entries applied in one transaction while catching up: others that write wait so long, some milliseconds."""

BATCH: Final = 20_000
"""The most records written in one transaction while building, when nobody waits."""

_POSITION = Struct("<Q16sQ32s")  # layout, ledger, entry, leaf
_APPLIED = b"applied"
_BUILT = b"built"
_SEQ = Struct("<Q")
_NO_LEAF = bytes(32)
PREFIX_RECORD_KEYS: Final = (b"0.NA/", b"0.SITE/")
"""How the keys of records begin that say something about prefixes."""

_DATABASES = (b"handles", b"prefixes", b"meta")

CORRUPTION_ERRORS: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    CorruptData,
)
"""What says that a generation is not, or no longer, what was written; it does not get better by trying again."""

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Progress: TypeAlias = Callable[[int], object]
"""Told now and then how many records have been written."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a view has come, and in which ledger."""

    ledger_id: bytes
    """Which ledger."""
    seq: int
    """The number of the last entry applied; 0 before the first."""
    leaf: bytes
    """The hash of its leaf; zeros before the first."""

    @classmethod
    def of(cls, source: Source) -> Self:
        """Where a state of the ledger ends."""
        return cls(source.ledger_id, source.size, source.leaf(source.size) if source.size else _NO_LEAF)

    def is_in(self, source: Source) -> bool:
        """Whether a ledger has this very entry."""
        if self.ledger_id != source.ledger_id or self.seq > source.size:
            return False
        return self.leaf == (source.leaf(self.seq) if self.seq else _NO_LEAF)


class Generation:
    """One LMDB environment. It closes itself when the last thread that works with it lets it go."""

    __slots__ = ("begin", "env", "handles", "meta", "number", "prefixes")

    def __init__(self, folder: Path, number: int, map_size: int, *, readonly: bool = False, new: bool = False) -> None:
        path = folder / str(number)
        if new:
            path.mkdir(mode=0o700)
        elif not (path / "data.mdb").exists():
            raise CorruptData(f"{path} is not there; the answers view will be built anew")
        self.number = number
        self.env = lmdb.open(
            str(path),
            map_size=map_size,
            readonly=readonly,
            sync=False,  # the state file tells when what was written may be torn
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
                self.position(txn)  # which refuses another layout

    def position(self, txn: Transaction) -> Position:
        """How far it has come."""
        raw = txn.get(_APPLIED, db=self.meta)
        if raw is None or len(raw) != _POSITION.size:
            raise CorruptData("the answers view does not say how far it has come; rebuild it")
        layout, ledger_id, seq, leaf = _POSITION.unpack(raw)
        if layout != LAYOUT:
            raise CorruptData(f"the answers view has layout {layout}, not {LAYOUT}; rebuild it")
        return Position(ledger_id, seq, leaf)

    def _move(self, txn: Transaction, to: Position) -> None:
        txn.put(_APPLIED, _POSITION.pack(LAYOUT, to.ledger_id, to.seq, to.leaf), db=self.meta)

    # Entries

    def write(self, txn: Transaction, ledger_id: bytes, changes: Sequence[Change]) -> None:
        """Apply entries which follow on the last one applied."""
        handles = self.handles
        cursor = txn.cursor(handles)
        last = cursor.key() if cursor.last() else b""
        for change in changes:
            record = change.key
            if not is_local(record):
                key = store_key(record)
                if key > last:
                    # Behind all others it is appended, which fills pages to the brim; names are often counted.
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
        """Write items of new records, at least one, by ascending key. This does not say how far it has come."""
        handles = self.handles
        cursor = txn.cursor(handles)
        behind = not cursor.last() or cursor.key() < items[0][0]
        if behind and len({key for key, _ in items}) == len(items):
            cursor.putmulti(items, append=True)
            return
        for key, raw in items:
            if not txn.put(key, raw, overwrite=False, db=handles):
                (item,) = decode_handle(key, raw)
                _put(txn, handles, key, merge_item(key, txn.get(key, db=handles), item.key, item))

    def move(self, txn: Transaction, seq: int, leaf: bytes) -> None:
        """Say that everything up to an entry has been written."""
        self._move(txn, Position(self.position(txn).ledger_id, seq, leaf))

    def follow(self, source: Source, until: int | None = None) -> int:
        """Apply what a ledger has more, in chunks; how many entries that were. For a generation not yet in use."""
        end = source.size if until is None else until
        with self.begin() as txn:
            position = self.position(txn)
        seq = position.seq
        while seq < end:
            changes = source.changes(seq, min(CHUNK, end - seq))
            if not changes:
                raise CorruptData(f"the ledger has no entry {seq + 1}; verify it")
            with self.begin(write=True) as txn:
                self.write(txn, position.ledger_id, changes)
            seq = changes[-1].seq
        return seq - position.seq

    # Everything

    def fill(self, source: Source, progress: Progress | None = None) -> None:
        """Write everything a ledger has, from nothing."""
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
        """At which entry it was built: nothing that was erased from the ledger by then was ever in its files."""
        return int(_SEQ.unpack(txn.get(_BUILT, _SEQ.pack(0), db=self.meta))[0])

    def _add(self, txn: Transaction, change: Change, last: bytes) -> bytes:
        """Write the item of a record, if it has one; the highest key so far.

        Records come in the order of the ledger's keys, which is nearly always that of the view's: then they are
        appended, and pages are filled to the brim. Exact names and very long ones may come out of order, or meet
        others under one key.
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
        """Where another generation differs from what a transaction of this one sees: database and key, or None."""
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
    """What stands under a key, where there was something, after an entry."""
    return merge_item(key, before, change.key, HandleItem.of(change))


def _put(txn: Transaction, database: "lmdb._Database", key: bytes, raw: bytes | None) -> None:
    if raw is None:
        txn.delete(key, db=database)
    else:
        txn.put(key, raw, db=database)
