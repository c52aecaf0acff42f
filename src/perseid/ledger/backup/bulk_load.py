"""Loading many new names at once: entries first, then every view once, from sorted runs.

Names in the order in which they were minted are often in no order to an index, so writing each of them into every view
costs more the larger the views are. A load appends its entries, which is cheap in any order, and gathers what the views
need; then it writes each view from its first key to its last.

All names of a load are new, and all of it happens in one transaction: it is there as a whole, with its views, or not at
all, however it ends. Nobody else can write meanwhile, so whoever has others to think of loads in several parts. The
answers view follows behind the commit, like with every write.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from perseid.ledger.change import Change
from perseid.ledger.errors import Contention, Damaged, LedgerError, Moved, OutcomeUnknown, TooBusy
from perseid.ledger.log.entry import Draft, Random, seal
from perseid.ledger.log.log import SQL_VIEWS, TOKEN_LENGTH, Log, pauses, without_collecting
from perseid.ledger.log.requests import RestsOn
from perseid.ledger.merkle import Frontier
from perseid.ledger.runs import RUN_OCTETS, Runs, parts
from perseid.ledger.store.rows import EntryRow, one_row
from perseid.ledger.store.store import IDLE_SECONDS
from perseid.ledger.value_keys import keys_of
from perseid.ledger.views.answers_format import item_octets, store_key
from perseid.ledger.views.answers_generation import ABOUT_PREFIXES

CHUNK: Final = 2_000
"""Names that are worked on at a time."""

CHUNK_OCTETS: Final = 4 << 20
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
class Loaded:
    """Names were loaded: `count` entries, from `first` on."""

    first: int
    count: int
    at: int

    @property
    def last(self) -> int:
        """The number of the last entry."""
        return self.first + self.count - 1


class Load:
    """One load. When `append` has returned, `items` are for the answers view, with `leaf`, that of the last entry."""

    def __init__(self, log: Log, folder: Path, run_octets: int = RUN_OCTETS) -> None:
        """`folder` is where temporary files are made, which have no names."""
        self._log = log
        self._random = _in_blocks(log.random)
        self._token = log.random(TOKEN_LENGTH)
        self._records = Runs(tuple[bytes, int], folder, run_octets)
        self._targets = Runs(tuple[bytes, int], folder, run_octets)
        self.items = Runs(tuple[bytes, bytes], folder, run_octets)
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

    def append(self, drafts: Iterable[Draft], rests_on: RestsOn, progress: Progress = lambda _: None) -> Loaded:
        """Append all entries with the views in SQL; it is on the disk when this returns."""
        written = False
        try:
            with self._log.store.writing_cursor(limited=False) as cursor:
                self._begin(cursor, rests_on)
                for chunk in parts(drafts, CHUNK, CHUNK_OCTETS, _octets):
                    with without_collecting(len(chunk)):
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
        return Loaded(self._first, self._frontier.size - self._first + 1, self._at)

    def _begin(self, cursor: Any, rests_on: RestsOn) -> None:
        statements = self._log.statements
        cursor.execute(statements.lock_head)
        seq, at, octets = one_row(cursor)
        self._frontier = Frontier.from_octets(seq, octets)
        self._at = self._log.clock.date(at if seq else None)
        self._first = seq + 1
        for key, seen in rests_on.items():
            cursor.execute(statements.record_seq, (key,))
            row = cursor.fetchone()
            if (found := row[0] if row else 0) != seen:
                raise Moved(key, seen, found)

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
            if key.startswith(ABOUT_PREFIXES):
                raise ValueError(f"{draft.handle} is about a prefix; such records are not loaded, but appended")
            contents = [value.to_bytes() for value in draft.values]
            body, leaf = seal(draft, contents, seq, at, {}, random)
            nodes += frontier.append(leaf)
            rows.append((seq, at, 0, 0, 1, token, leaf, body))
            token = b""
            records.append((key, seq))
            targets += [(target, seq) for target in keys_of(contents)]
            place = store_key(key)
            item = item_octets(Change(seq, leaf, key, draft.handle, draft.exact, draft.state, contents), place)
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
        for records in _chunks(self._records.sorted()):
            for key, _ in records:
                if key == last:
                    raise NameTaken(key, "is twice in the load")
                last = key
            self._check_new(cursor, records)
            cursor.executemany(statements.insert_record, records)
        for targets in _chunks(self._targets.sorted()):
            cursor.executemany(statements.insert_target, targets)

    def _check_new(self, cursor: Any, records: list[tuple[bytes, int]]) -> None:
        """Refuse names that are there already. Mostly there is nothing between the first and the last one."""
        statements = self._log.statements
        cursor.execute(statements.any_record, (records[0][0], records[-1][0] + b"\0"))
        if not one_row(cursor)[0]:
            return
        for key, _ in records:
            cursor.execute(statements.record_seq, (key,))
            if (row := cursor.fetchone()) is not None:
                raise NameTaken(key, f"has been there since entry {row[0]} or longer")

    def _move(self, cursor: Any) -> None:
        statements, frontier = self._log.statements, self._frontier
        cursor.execute(statements.move_head, (frontier.size, self._at, frontier.to_octets()))
        cursor.execute(statements.move_views, (frontier.size, self.leaf, self._first - 1))
        if cursor.rowcount != len(SQL_VIEWS):
            raise Damaged("a view has not come to the last entry of the ledger; rebuild records and targets")
        if statements.notify:
            cursor.execute(statements.notify)

    def _was_committed(self) -> bool:
        """Whether a load was committed whose end was not heard of; asked until there is an answer, or for long."""
        waits = pauses()
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


def _octets(draft: Draft) -> int:
    """About how much data an entry will have."""
    return len(draft.note) + sum([len(value.data) for value in draft.values])


def _in_blocks(random: Random) -> Random:
    """The same randomness, asked for in large blocks; every octet is given once."""
    block, at = b"", 0

    def take(octets: int) -> bytes:
        nonlocal block, at
        if at + octets > len(block):
            block, at = random(max(_RANDOM_BLOCK, octets)), 0
        at += octets
        return block[at - octets : at]

    return take
