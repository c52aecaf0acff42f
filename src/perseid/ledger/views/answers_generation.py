"""A generation of the answers view: one LMDB environment, and how entries are written into it.

It knows how far it has come in which ledger, and moves that in the same transaction as what it holds. It does not know
whether it is in use; `answers` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from struct import Struct
from typing import Final, Self, TypeAlias

import lmdb

from perseid.ledger.change import Change, Source
from perseid.ledger.errors import Damaged

from .answers_format import LAYOUT, HandleItem, PrefixPart, decode_handle, is_local, item_octets, merge, store_key

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
ABOUT_PREFIXES: Final = (b"0.NA/", b"0.SITE/")
"""How the keys of records begin that say something about prefixes."""

_DATABASES = (b"handles", b"prefixes", b"meta")

BROKEN: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    Damaged,
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

    def lies_in(self, source: Source) -> bool:
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
            raise Damaged(f"{path} is not there; the answers view will be built anew")
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
        octets = txn.get(_APPLIED, db=self.meta)
        if octets is None or len(octets) != _POSITION.size:
            raise Damaged("the answers view does not say how far it has come; rebuild it")
        layout, ledger_id, seq, leaf = _POSITION.unpack(octets)
        if layout != LAYOUT:
            raise Damaged(f"the answers view has layout {layout}, not {LAYOUT}; rebuild it")
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
                    item = item_octets(change, key)
                    if item is not None:
                        txn.put(key, item, append=True, db=handles)
                        last = key
                else:
                    before = txn.get(key, db=handles)
                    after = item_octets(change, key) if before is None else _merged(key, before, change)
                    _put(txn, handles, key, after)
            if record.startswith(ABOUT_PREFIXES):
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
        for key, octets in items:
            if not txn.put(key, octets, overwrite=False, db=handles):
                (item,) = decode_handle(key, octets)
                _put(txn, handles, key, merge(key, txn.get(key, db=handles), item.key, item))

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
                raise Damaged(f"the ledger has no entry {seq + 1}; verify it")
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
        item = item_octets(change, key)
        if item is None:
            return last
        if key > last:
            txn.put(key, item, append=True, db=self.handles)
            return key
        before = txn.get(key, db=self.handles)
        _put(txn, self.handles, key, item if before is None else _merged(key, before, change))
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


def _merged(key: bytes, before: bytes, change: Change) -> bytes | None:
    """What stands under a key, where there was something, after an entry."""
    return merge(key, before, change.key, HandleItem.of(change))


def _put(txn: Transaction, database: "lmdb._Database", key: bytes, octets: bytes | None) -> None:
    if octets is None:
        txn.delete(key, db=database)
    else:
        txn.put(key, octets, db=database)
