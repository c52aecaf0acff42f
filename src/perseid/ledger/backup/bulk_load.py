"""Sorting more than fits into memory: runs that are sorted each, and merged when they are read.

Rows gather in memory up to a bound; then they are sorted and written to a file as one run. The file has no name, so it
is gone with the process, however that ends, and nobody else can open it.

Putting entries into a store that exist already, many at a time, with everything that is computed from them.

What a commit does for one entry after the other is done here for a chunk of them: one question finds what came before
all their records, and every table is written in one go, in the order of its keys. Memory does not grow with the ledger.

Loading many new names at once: entries first, then every view once, from sorted runs.

Names in the order in which they were minted are often in no order to an index, so writing each of them into every view
costs more the larger the views are. A load appends its entries, which is cheap in any order, and gathers what the views
need; then it writes each view from its first key to its last.

All names of a load are new, and all of it happens in one transaction: it is there as a whole, with its views, or not at
all, however it ends. Nobody else can write meanwhile, so whoever has others to think of loads in several parts. The
answers view follows behind the commit, like with every write.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, Generic, Self, TypeVar

from sqlalchemy import Connection, bindparam, select

from perseid.ledger.errors import (
    Contention,
    CorruptData,
    LedgerError,
    OutcomeUnknown,
    PreconditionFailed,
    StorageFull,
    TooBusy,
)
from perseid.ledger.log.entry import Draft, Entry, Random, encode_entry, next_jump
from perseid.ledger.log.log import SQL_VIEWS, TOKEN_LENGTH, Log, gc_paused, retry_delays
from perseid.ledger.log.requests import Preconditions
from perseid.ledger.merkle import Frontier
from perseid.ledger.store.changes import Change
from perseid.ledger.store.rows import EntryRow, fetch_one
from perseid.ledger.store.store import IDLE_SECONDS
from perseid.ledger.store.tables import Statements, entries, records
from perseid.ledger.views.answers_format import encode_item, store_key
from perseid.ledger.views.answers_generation import PREFIX_RECORD_KEYS
from perseid.ledger.views.search_keys import index_keys
from perseid.proof.verifier import EMPTY_ROOT

RUN_SIZE: Final = 32 << 20
"""About how much memory the rows of one run take: a hundred thousand rows, so that runs are few."""

_BLOCK_ROWS = 256  # that are read at a time from each run while they are merged
_BLOCK_SIZE = 1 << 16  # the same for large rows: very many runs may be merged at a time
_ROW_OVERHEAD = 150  # that a row takes in memory besides its data
_LENGTH = Struct("<I")

Row = TypeVar("Row", bound=tuple[bytes, int] | tuple[bytes, bytes])
_T = TypeVar("_T")


def split_batches(rows: Iterable[_T], most: int, byte_count: int, size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Rows in parts that have so many of them at most, and end with the row that makes them so large.

    Both are needed: small rows cost by their number, and the memory of large ones is bounded by their octets only.
    """
    found = iter(rows)
    while part := list(islice(found, 1)):
        room = byte_count - size(part[0])
        while room > 0 and len(part) < most:
            row = next(found, None)
            if row is None:
                break
            part.append(row)
            room -= size(row)
        yield part


def row_size(row: tuple[bytes, int] | tuple[bytes, bytes]) -> int:
    """How many octets of data a row has."""
    key, rest = row
    return len(key) + (len(rest) if isinstance(rest, bytes) else 0)


class ExternalSorter(Generic[Row]):
    """Takes rows in any order and gives them back in ascending order, once."""

    def __init__(self, row: type[Row], folder: Path, limit: int = RUN_SIZE) -> None:
        """`row` is the type of the rows; `folder` is where the file is, if there must be one."""
        import msgspec  # noqa: PLC0415 - resolver processes load this module, and never sort anything

        self._decoder = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
        self._encoder = msgspec.msgpack.Encoder()
        self._folder = folder
        self._limit = limit
        self._rows: list[Row] = []
        self._byte_count = 0
        self._file: int | None = None
        self._runs: list[tuple[int, int]] = []  # where each begins in the file and where it ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows = []
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def add(self, rows: list[Row], byte_count: int) -> None:
        """Take rows, which have so many octets of data."""
        self._rows += rows
        self._byte_count += byte_count + len(rows) * _ROW_OVERHEAD
        if self._byte_count > self._limit:
            try:
                self._write_run()
            except OSError as error:
                raise StorageFull(f"there is no room to sort what is to be written ({error.strerror})") from error

    def sorted(self) -> Iterator[Row]:
        """All rows, in ascending order."""
        self._rows.sort()
        return merge(*(self._read_run(*run) for run in self._runs), self._rows) if self._runs else iter(self._rows)

    def _write_run(self) -> None:
        if self._file is None:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._file = os.dup(file.fileno())
        self._rows.sort()
        begin = os.lseek(self._file, 0, os.SEEK_END)
        with os.fdopen(os.dup(self._file), "wb") as stream:
            for rows in self._blocks():
                block = self._encoder.encode(rows)
                stream.write(_LENGTH.pack(len(block)))
                stream.write(block)
        self._runs.append((begin, os.lseek(self._file, 0, os.SEEK_END)))
        self._rows, self._byte_count = [], 0

    def _blocks(self) -> Iterator[list[Row]]:
        """The rows as they are written: mostly so many at a time, and fewer where they are large."""
        for first in range(0, len(self._rows), _BLOCK_ROWS):
            rows = self._rows[first : first + _BLOCK_ROWS]
            if sum(map(row_size, rows)) <= _BLOCK_SIZE:
                yield rows
            else:
                yield from split_batches(rows, _BLOCK_ROWS, _BLOCK_SIZE, row_size)

    def _read_run(self, at: int, end: int) -> Iterator[Row]:
        assert self._file is not None  # noqa: S101 - it was written
        while at < end:
            (length,) = _LENGTH.unpack(os.pread(self._file, _LENGTH.size, at))
            at += _LENGTH.size
            yield from self._decoder.decode(os.pread(self._file, length, at))
            at += length


CHUNK: Final = 2_000
"""Entries that are best written at a time: more are hardly faster, and SQLite takes 32,766 parameters at most."""

CHUNK_BYTES: Final = 8_388_608
"""Octets after which a chunk ends even if it has fewer entries: what is held in memory."""

EncodedEntry = tuple[Entry, bytes, bytes, bytes]
"""An entry with its token, its leaf hash and its body."""

_LATEST_ENTRIES = (
    select(records.c.key, entries.c.seq, entries.c.at, entries.c.previous, entries.c.jump, entries.c.nth)
    .add_columns(entries.c.body)
    .join(entries, entries.c.seq == records.c.seq)
    .where(records.c.key.in_(bindparam("keys", expanding=True)))
)


class BulkWriter:
    """Writes entries from the first one on, in their order, into a store that no other process uses."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._cursor: Any = connection.connection.cursor()
        self._statements = statements
        self._links: dict[int, tuple[int, int]] = {}  # of entries met in the present chunk
        self.frontier = Frontier()
        """The tree of the entries so far."""
        self.at = 0
        """The date of the last one."""
        self.leaf = EMPTY_ROOT
        """The leaf hash of the last one."""

    def write(self, chunk: Sequence[EncodedEntry]) -> None:
        """Write the entries that follow, at least one."""
        rows: list[EntryRow] = []
        nodes: list[tuple[int, int, bytes]] = []
        gone: list[tuple[bytes, int]] = []
        latest: dict[bytes, tuple[int, int]] = {}  # by key: the last entry, and its place in the record's chain
        self._links = {}
        keys = [entry.key for entry, *_ in chunk]
        for key, seq, at, previous, jump, nth, body in self._connection.execute(
            _LATEST_ENTRIES, {"keys": list(set(keys))}
        ):
            latest[key] = seq, nth
            self._links[seq] = previous, jump
            gone += [(target, seq) for target in index_keys(Entry.from_body(seq, at, body).contents())]
        current: dict[bytes, Entry] = {}
        for key, (entry, token, leaf, body) in zip(keys, chunk, strict=True):
            previous, nth = latest.get(key, (0, 0))
            jump = next_jump(nth + 1, previous, self._load_links)
            rows.append((entry.seq, entry.at, previous, jump, nth + 1, token, leaf, body))
            nodes += self.frontier.append(leaf)
            latest[key] = entry.seq, nth + 1
            self._links[entry.seq] = previous, jump
            current[key] = entry
        new = [(target, entry.seq) for entry in current.values() for target in index_keys(entry.contents())]
        statements = self._statements
        self._many(statements.insert_entry, rows)
        self._many(statements.insert_node, nodes)
        self._many(statements.upsert_record, sorted((key, entry.seq) for key, entry in current.items()))
        self._many(statements.delete_target, gone)
        self._many(statements.insert_target, sorted(new))
        self.at, self.leaf = rows[-1][1], rows[-1][6]

    def _many(self, statement: str, rows: Sequence[Any]) -> None:
        if rows:
            self._cursor.executemany(statement, rows)

    def _load_links(self, seq: int) -> tuple[int, int]:
        known = self._links.get(seq)
        if known is None:
            self._cursor.execute(self._statements.links, (seq,))
            previous, jump = fetch_one(self._cursor)
            known = self._links[seq] = previous, jump
        return known


"""Names that are worked on at a time."""

LOAD_CHUNK_BYTES: Final = 4 << 20
"""The same for large records, in octets of their values. A chunk is held some three times over: as values, as bodies,
as items of the answers."""

_RANDOM_BLOCK = 1 << 16  # octets that are asked for at a time: the system takes as long for a few as for many

Progress = Callable[[int], None]
"""Is told from time to time how many entries have been appended."""


class NameTaken(LedgerError):
    """A name of a load is not new, so nothing was loaded."""

    def __init__(self, key: bytes, why: str) -> None:
        super().__init__(f"{key.decode('utf-8', 'replace')} {why}; nothing was loaded")
        self.key = key


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Names were loaded: `count` entries, from `first` on."""

    first: int
    count: int
    at: int

    @property
    def last(self) -> int:
        """The number of the last entry."""
        return self.first + self.count - 1


class BulkLoad:
    """One load. When `append` has returned, `items` are for the answers view, with `leaf`, that of the last entry."""

    def __init__(self, log: Log, folder: Path, run_size: int = RUN_SIZE) -> None:
        """`folder` is where temporary files are made, which have no names."""
        self._log = log
        self._random = _buffered_random(log.random)
        self._token = log.random(TOKEN_LENGTH)
        self._records = ExternalSorter(tuple[bytes, int], folder, run_size)
        self._targets = ExternalSorter(tuple[bytes, int], folder, run_size)
        self.items = ExternalSorter(tuple[bytes, bytes], folder, run_size)
        self.leaf = b""
        self._frontier = Frontier()
        self._first = 1
        self._at = 0
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for runs in (self._records, self._targets, self.items):
            self._open.enter_context(runs)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def append(
        self, drafts: Iterable[Draft], preconditions: Preconditions, progress: Progress = lambda _: None
    ) -> LoadResult:
        """Append all entries with the views in SQL; it is on the disk when this returns."""
        written = False
        try:
            with self._log.store.writing_cursor(limited=False) as cursor:
                self._begin(cursor, preconditions)
                for chunk in split_batches(drafts, CHUNK, LOAD_CHUNK_BYTES, _draft_size):
                    with gc_paused(len(chunk)):
                        self._append(cursor, chunk)
                    # PostgreSQL does not begin to count how long a transaction stands still behind many rows that came
                    # in one go, but does behind a single statement.
                    cursor.execute("SELECT 1")
                    progress(self._frontier.size - self._first + 1)
                if self._frontier.size >= self._first:
                    self._write_views(cursor)
                    self._move(cursor)
                written = True
        except Contention as error:
            raise TooBusy("the ledger is held by another writer; nothing was loaded, try again") from error
        except OutcomeUnknown as error:
            # Before everything was written nothing can have been committed.
            if not written or not self._was_committed():
                raise TooBusy(
                    f"the connection to the database was lost, or nothing came for {IDLE_SECONDS} s, which is as long "
                    "as others are made to wait; nothing was loaded, try again"
                ) from error
        return LoadResult(self._first, self._frontier.size - self._first + 1, self._at)

    def _begin(self, cursor: Any, preconditions: Preconditions) -> None:
        statements = self._log.statements
        cursor.execute(statements.lock_head)
        seq, at, byte_count = fetch_one(cursor)
        self._frontier = Frontier.from_bytes(seq, byte_count)
        self._at = self._log.clock.date(at if seq else None)
        self._first = seq + 1
        for key, seen in preconditions.items():
            cursor.execute(statements.record_seq, (key,))
            row = cursor.fetchone()
            if (found := row[0] if row else 0) != seen:
                raise PreconditionFailed(key, seen, found)

    def _append(self, cursor: Any, chunk: list[Draft]) -> None:
        frontier, at, random = self._frontier, self._at, self._random
        rows: list[EntryRow] = []
        nodes: list[tuple[int, int, bytes]] = []
        records: list[tuple[bytes, int]] = []
        targets: list[tuple[bytes, int]] = []
        items: list[tuple[bytes, bytes]] = []
        token = self._token if frontier.size < self._first else b""
        leaf = b""
        for seq, draft in enumerate(chunk, frontier.size + 1):
            key = draft.key
            if key.startswith(PREFIX_RECORD_KEYS):
                raise ValueError(f"{draft.handle} is about a prefix; such records are not loaded, but appended")
            contents = [value.to_bytes() for value in draft.values]
            body, leaf = encode_entry(draft, contents, seq, at, {}, random)
            nodes += frontier.append(leaf)
            rows.append((seq, at, 0, 0, 1, token, leaf, body))
            token = b""
            records.append((key, seq))
            targets += [(target, seq) for target in index_keys(contents)]
            place = store_key(key)
            item = encode_item(Change(seq, leaf, key, draft.handle, draft.exact, draft.state, contents), place)
            if item is not None:
                items.append((place, item))
        self.leaf = leaf
        cursor.executemany(self._log.statements.insert_entry, rows)
        if nodes:
            cursor.executemany(self._log.statements.insert_node, nodes)
        self._records.add(records, sum([len(key) for key, _ in records]))
        self._targets.add(targets, sum([len(target) for target, _ in targets]))
        self.items.add(items, sum([len(place) + len(item) for place, item in items]))

    def _write_views(self, cursor: Any) -> None:
        statements = self._log.statements
        last = b""
        for chunk in _chunks(self._records.sorted()):
            for key, _ in chunk:
                if key == last:
                    raise NameTaken(key, "is twice in the load")
                last = key
            self._check_new(cursor, chunk)
            cursor.executemany(statements.insert_record, chunk)
        for targets in _chunks(self._targets.sorted()):
            cursor.executemany(statements.insert_target, targets)

    def _check_new(self, cursor: Any, records: list[tuple[bytes, int]]) -> None:
        """Refuse names that are there already. Mostly there is nothing between the first and the last one."""
        statements = self._log.statements
        cursor.execute(statements.any_record, (records[0][0], records[-1][0] + b"\0"))
        if not fetch_one(cursor)[0]:
            return
        for key, _ in records:
            cursor.execute(statements.record_seq, (key,))
            if (row := cursor.fetchone()) is not None:
                raise NameTaken(key, f"has been there since entry {row[0]} or longer")

    def _move(self, cursor: Any) -> None:
        statements, frontier = self._log.statements, self._frontier
        cursor.execute(statements.move_head, (frontier.size, self._at, frontier.to_bytes()))
        cursor.execute(statements.move_views, (frontier.size, self.leaf, self._first - 1))
        if cursor.rowcount != len(SQL_VIEWS):
            raise CorruptData("a view has not come to the last entry of the ledger; rebuild records and targets")
        if statements.notify:
            cursor.execute(statements.notify)

    def _was_committed(self) -> bool:
        """Whether a load was committed whose end was not heard of; asked until there is an answer, or for long."""
        waits = retry_delays()
        while True:
            try:
                return self._has_token()
            except (Contention, OutcomeUnknown) as problem:
                pause = next(waits, None)
                if pause is None:
                    raise OutcomeUnknown(
                        "the connection to the database was lost at the end of a load, and it cannot be asked whether "
                        "that was written; look before you try again"
                    ) from problem
                time.sleep(pause)

    def _has_token(self) -> bool:
        """Whether the first entry of this load is there: then it has its token."""
        with self._log.store.writing_cursor() as cursor:
            cursor.execute(self._log.statements.lock_head)  # which the lost transaction no longer holds, then
            cursor.execute(self._log.statements.token, (self._first,))
            row = cursor.fetchone()
        return row is not None and row[0] == self._token


def _chunks(keys: Iterable[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """Rows of a view in SQL; their keys are of limited length."""
    found = iter(keys)
    while chunk := list(islice(found, CHUNK)):
        yield chunk


def _draft_size(draft: Draft) -> int:
    """About how much data an entry will have."""
    return len(draft.note) + sum([len(value.data) for value in draft.values])


def _buffered_random(random: Random) -> Random:
    """The same randomness, asked for in large blocks; every octet is given once."""
    block, at = b"", 0

    def take(byte_count: int) -> bytes:
        nonlocal block, at
        if at + byte_count > len(block):
            block, at = random(max(_RANDOM_BLOCK, byte_count)), 0
        at += byte_count
        return block[at - byte_count : at]

    return take
