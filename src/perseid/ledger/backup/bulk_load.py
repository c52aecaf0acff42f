"""Bulk writing of entries: existing ones from a backup, or many new handles at once.

`BulkWriter` writes entries that exist already, a chunk at a time: one query finds the previous entries of all their
records, and every table is written at once, in key order.

`BulkLoad` appends new handles. Minted handles are often in no order to an index, so writing each into every view costs
more the larger the views are. A load appends its entries first, collects the rows of the views in sorted runs, and then
writes each view in key order. All of it is one transaction: it succeeds as a whole or not at all. Other writers wait,
so a load next to other traffic should be split. The answers view follows after the commit, as with every write.

Memory does not grow with the ledger.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Connection, bindparam, select

from perseid.ledger.errors import (
    Contention,
    CorruptView,
    LedgerError,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TooBusy,
)
from perseid.ledger.log.commit import check_end, check_mode
from perseid.ledger.log.entry import Draft, Entry, find_oversized, next_jump
from perseid.ledger.log.log import SQL_VIEWS, TOKEN_LENGTH, Log, retry_delays
from perseid.ledger.log.requests import Preconditions
from perseid.ledger.merkle import Frontier
from perseid.ledger.store.sorting import RUN_SIZE, take_batch
from perseid.ledger.store.store import IDLE_SECONDS
from perseid.ledger.store.tables import (
    EntryRow,
    Statements,
    entries,
    fetch_one,
    insert_rows,
    insert_values,
    records,
    search,
)
from perseid.ledger.views.answers_generation import PREFIX_RECORD_KEYS
from perseid.ledger.views.search_keys import index_keys
from perseid.proof.verifier import EMPTY_ROOT
from perseid.records.binary import MAX_BYTES

from .load_encoding import EncodedChunk, LoadEncoding, PackedDraft, pack_draft, random_size

CHUNK: Final = 2_000
"""Entries written at a time: more are hardly faster, and SQLite allows at most 32,766 parameters."""

CHUNK_BYTES: Final = 8_388_608
"""Bytes at which a chunk ends even if it has fewer entries, to bound memory."""

EncodedEntry = tuple[Entry, bytes, bytes, bytes]
"""An entry with its token, leaf hash and body."""

_LATEST_ENTRIES = (
    select(records.c.key, entries.c.seq, entries.c.at, entries.c.previous, entries.c.jump, entries.c.nth)
    .add_columns(entries.c.body)
    .join(entries, entries.c.seq == records.c.seq)
    .where(records.c.key.in_(bindparam("keys", expanding=True)))
)


class BulkWriter:
    """Writes existing entries in order, from the first one, into a store that no other process uses."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._cursor: Any = connection.connection.cursor()
        self._statements = statements
        self._links: dict[int, tuple[int, int]] = {}  # of entries in the current chunk
        self.frontier = Frontier()
        """The tree of the entries so far."""
        self.at = 0
        """The date of the last entry."""
        self.leaf = EMPTY_ROOT
        """The leaf hash of the last entry."""

    def write(self, chunk: Sequence[EncodedEntry]) -> None:
        """Write the next entries, at least one."""
        rows: list[EntryRow] = []
        nodes: list[tuple[int, int, bytes]] = []
        gone: list[tuple[bytes, int]] = []
        latest: dict[bytes, tuple[int, int]] = {}  # by key: the last entry, and its position in the record's chain
        self._links = {}
        keys = [entry.key for entry, *_ in chunk]
        for key, seq, at, previous, jump, nth, body in self._connection.execute(
            _LATEST_ENTRIES, {"keys": list(set(keys))}
        ):
            latest[key] = seq, nth
            self._links[seq] = previous, jump
            gone += [(search_key, seq) for search_key in index_keys(Entry.from_body(seq, at, body).contents())]
        current: dict[bytes, Entry] = {}
        for key, (entry, token, leaf, body) in zip(keys, chunk, strict=True):
            previous, nth = latest.get(key, (0, 0))
            jump = next_jump(nth + 1, previous, self._load_links)
            rows.append((entry.seq, entry.at, previous, jump, nth + 1, token, leaf, body))
            nodes += self.frontier.append(leaf)
            latest[key] = entry.seq, nth + 1
            self._links[entry.seq] = previous, jump
            current[key] = entry
        new = [(search_key, entry.seq) for entry in current.values() for search_key in index_keys(entry.contents())]
        statements = self._statements
        cursor = self._cursor
        insert_rows(cursor, statements.insert_entry, rows)
        insert_rows(cursor, statements.insert_node, nodes)
        insert_rows(cursor, statements.upsert_record, sorted([(key, entry.seq) for key, entry in current.items()]))
        if gone:
            cursor.executemany(statements.delete_search_key, gone)
        insert_rows(cursor, statements.insert_search_key, sorted(new))
        self.at, self.leaf = rows[-1][1], rows[-1][6]

    def _load_links(self, seq: int) -> tuple[int, int]:
        known = self._links.get(seq)
        if known is None:
            self._cursor.execute(self._statements.links, (seq,))
            previous, jump = fetch_one(self._cursor)
            known = self._links[seq] = previous, jump
        return known


LOAD_CHUNK_BYTES: Final = 4 << 20
"""The same for a load, in bytes of values. A chunk is in memory three times: as values, bodies and answers items."""

MAX_GARBAGE: Final = 20_000
"""Objects created during a load, and not released, after which unused ones are looked for."""

CHUNKS_ALONE: Final = 4
"""Chunks that are encoded in this process. If there are more, a second process does the rest; its start takes as long
as some thousand entries."""

Progress = Callable[[int], None]
"""Called from time to time with the number of appended entries."""


class NameTaken(LedgerError):
    """A handle of a load is not new, so nothing was loaded."""

    def __init__(self, key: bytes, why: str) -> None:
        super().__init__(f"{key.decode('utf-8', 'replace')} {why}; nothing was loaded")
        self.key = key


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`count` entries were loaded, from `first` on."""

    first: int
    count: int
    at: int

    @property
    def last(self) -> int:
        """The number of the last entry."""
        return self.first + self.count - 1


class BulkLoad:
    """One load. After `append`, the answers view needs `items` and `leaf`, the hash of the last entry."""

    def __init__(self, log: Log, folder: Path, run_size: int = RUN_SIZE) -> None:
        """`folder` is where unnamed temporary files are created."""
        self._log = log
        self._token = log.random(TOKEN_LENGTH)
        self.leaf = b""
        self._encoding = LoadEncoding(folder, run_size, CHUNK, CHUNKS_ALONE)
        self._frontier = Frontier()
        self._first = 1
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoding.close()

    def append(
        self, drafts: Iterable[Draft], preconditions: Preconditions, progress: Progress = lambda _: None
    ) -> LoadResult:
        """Append all entries and write the SQL views, durably."""
        written = False
        try:
            with self._log.store.writing_cursor(limited=False) as cursor:
                self._begin(cursor, preconditions)
                self._append_all(cursor, drafts, progress)
                if self._frontier.size >= self._first:
                    self._write_views(cursor)
                    self._move(cursor)
                written = True
        except Contention as error:
            raise TooBusy("the ledger is locked by another writer. Nothing was loaded; retry") from error
        except OutcomeUnknown as error:
            # Nothing can have been committed before everything was written.
            if not written or not self._was_committed():
                raise TooBusy(
                    f"the database connection was lost, or the input paused for more than {IDLE_SECONDS} s. "
                    "Nothing was loaded; retry"
                ) from error
        return LoadResult(self._first, self._frontier.size - self._first + 1, self._at)

    def _begin(self, cursor: Any, preconditions: Preconditions) -> None:
        statements = self._log.statements
        cursor.execute(statements.lock_head_for_changes)
        seq, at, raw, *mode = fetch_one(cursor)
        check_end(cursor, statements, self._log.known_end, seq)
        check_mode(*mode)
        self._frontier = Frontier.from_bytes(seq, raw)
        self._at = self._log.clock.date(at if seq else None)
        self._first = seq + 1
        for key, expected in preconditions.items():
            cursor.execute(statements.record_seq, (key,))
            row = cursor.fetchone()
            if (actual := row[0] if row else 0) != expected:
                raise PreconditionFailed(key, expected, actual)

    def _append_all(self, cursor: Any, drafts: Iterable[Draft], progress: Progress) -> None:
        source, encoding = iter(drafts), self._encoding
        encoding.start(self._first, self._at)
        while chunk := take_batch(source, encoding.chunk_size, LOAD_CHUNK_BYTES, _draft_size):
            packed = [_pack(draft) for draft in chunk]
            random = self._log.random(sum([random_size(draft[-1]) for draft in packed]))
            for encoded in encoding.encode(packed, random):
                self._insert(cursor, encoded)
                progress(self._frontier.size - self._first + 1)
            if gc.get_count()[0] > MAX_GARBAGE:
                gc.collect(1)  # what the source may have left: collection is paused
        for encoded in encoding.finish():
            self._insert(cursor, encoded)
            progress(self._frontier.size - self._first + 1)

    def _insert(self, cursor: Any, chunk: EncodedChunk) -> None:
        """Write entries and the nodes of the tree."""
        leaves, bodies = chunk
        first, at, statements = self._frontier.size + 1, self._at, self._log.statements
        nodes = self._frontier.append(*leaves)
        rows = zip(range(first, first + len(leaves)), repeat(at), leaves, bodies)
        if first == self._first:
            seq, at, leaf, body = next(rows)
            cursor.execute(statements.insert_entry, (seq, at, 0, 0, 1, self._token, leaf, body))
        insert_values(cursor, statements.insert_new_entry, list(chain.from_iterable(rows)), 4)
        insert_rows(cursor, statements.insert_node, nodes)
        self.leaf = leaves[-1]
        # PostgreSQL starts its idle timeout after a single statement, but not after a pipeline of many rows.
        cursor.execute("SELECT 1")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the items of the answers view by ascending key, once."""
        return self._encoding.items()

    def _write_views(self, cursor: Any) -> None:
        statements = self._log.statements
        last = b""
        for rows in self._encoding.records():
            keys = rows[::2]
            if keys[0] == last or len(set(keys)) < len(keys):
                raise NameTaken(
                    next(key for before, key in pairwise([last, *keys]) if before == key), "occurs twice in the load"
                )
            last = keys[-1]
            self._check_new(cursor, keys)
            insert_values(cursor, statements.insert_record, rows, len(records.columns))
        for rows in self._encoding.search_keys():
            insert_values(cursor, statements.insert_search_key, rows, len(search.columns))

    def _check_new(self, cursor: Any, keys: list[bytes]) -> None:
        """Refuse handles that exist. Usually one query over the whole range is enough."""
        statements = self._log.statements
        cursor.execute(statements.any_record, (keys[0], keys[-1] + b"\0"))
        if not fetch_one(cursor)[0]:
            return
        for key in keys:
            cursor.execute(statements.record_seq, (key,))
            if (row := cursor.fetchone()) is not None:
                raise NameTaken(key, f"already exists (entry {row[0]})")

    def _move(self, cursor: Any) -> None:
        statements, frontier = self._log.statements, self._frontier
        cursor.execute(statements.move_head, (frontier.size, self._at, frontier.to_bytes()))
        cursor.execute(statements.move_views, (frontier.size, self.leaf, self._first - 1))
        if cursor.rowcount != len(SQL_VIEWS):
            raise CorruptView("an SQL view is behind the ledger")
        if statements.notify:
            cursor.execute(statements.notify)

    def _was_committed(self) -> bool:
        """Find out whether a load with a lost connection was committed; retry for a while."""
        delays = retry_delays()
        while True:
            try:
                return self._has_token()
            except (Contention, OutcomeUnknown, StoreUnavailable) as error:
                delay = next(delays, None)
                if delay is None:
                    raise OutcomeUnknown(
                        "the database connection was lost at the end of a load, and the outcome is unknown; "
                        "check whether the handles exist before you retry"
                    ) from error
                time.sleep(delay)

    def _has_token(self) -> bool:
        """Whether the first entry of this load exists, which then has its token."""
        with self._log.store.writing_cursor() as cursor:
            cursor.execute(self._log.statements.lock_head)  # so the lost transaction no longer holds it
            cursor.execute(self._log.statements.token, (self._first,))
            row = cursor.fetchone()
        return row is not None and row[0] == self._token


def _pack(draft: Draft) -> PackedDraft:
    """Check and encode the record of a draft."""
    if draft.handle.startswith("0.") and draft.key.startswith(PREFIX_RECORD_KEYS):
        raise ValueError(f"{draft.handle} is a prefix record, which cannot be loaded in bulk")
    contents = draft.contents()
    if find_oversized(contents):
        raise ValueError(f"a value of {draft.handle} is longer than {MAX_BYTES:,} bytes")
    return pack_draft(draft, contents)


def _draft_size(draft: Draft) -> int:
    """Estimate the bytes of data of an entry."""
    return len(draft.note) + sum([len(value.data) for value in draft.values])
