"""Verification of a whole ledger: every leaf, the tree, the SQL views, and every checkpoint.

The first difference is reported. Redacted values are accepted, because the tree contains their commitments, and listed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound

from perseid.ledger.log.entry import Entry, jump_target
from perseid.ledger.log.log import SQL_VIEWS, Log
from perseid.ledger.log.signing import KeyChain
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import (
    checkpoints,
    entries,
    entry_from_row,
    head,
    ledger,
    nodes,
    records,
    redactions,
    search,
    views,
)
from perseid.ledger.views.search_keys import index_keys
from perseid.proof.verifier import EMPTY_ROOT, Checkpoint, InvalidProof, parse_note

from .errors import CorruptData, CorruptView, LedgerError
from .merkle import Frontier

CHUNK: Final = 1_000
"""Rows read at a time."""

MAX_LISTED: Final = 1_000
"""How many redacted values are listed; all are counted."""


_TYPE_ERRORS = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    NoResultFound,
    MultipleResultsFound,
)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result for a valid ledger."""

    entries: int
    """The number of entries."""
    root: bytes
    """The root of their tree."""
    redacted: int
    """The number of redacted values, actors and notes."""
    named: tuple[str, ...]
    """The first of them."""


def verify(log: Log, progress: Callable[[int], None] = lambda _: None) -> VerifyReport:
    """Recompute everything from the entries; raise `CorruptData` at the first difference."""
    location = _Location()
    unreadable = partial(_translate_read_errors, log.store, location)
    # Outside, because a table may be missing at the start; inside, to add the location before the store translates it.
    with unreadable(), log.store.reading() as connection, unreadable():
        check = _Verifier(connection, progress, location)
        check.entries()
        check.head()
        check.records()
        return VerifyReport(check.frontier.size, check.frontier.root(), check.redacted, tuple(check.named))


@dataclass(slots=True)
class _Location:
    """What is being read, for error messages."""

    now: str = "the ledger's origin"


@contextmanager
def _translate_read_errors(store: Store, location: _Location) -> Iterator[None]:
    """Turn errors of reading, and fields of the wrong type, into `CorruptData`."""
    try:
        yield
    except DBAPIError as error:
        translated = store.translate_read_error(error)
        if isinstance(translated, LedgerError) and not isinstance(translated, CorruptData):
            raise translated from error  # unavailable, not corrupt
        raise CorruptData(f"{location.now} cannot be read: {error.orig}") from error
    except _TYPE_ERRORS as error:
        raise CorruptData(f"{location.now} cannot be read: a field has the wrong type: {error}") from error


class _Verifier:
    def __init__(self, connection: Connection, progress: Callable[[int], None], location: _Location) -> None:
        self._location = location
        self._connection = connection
        self._stream = connection.execution_options(yield_per=CHUNK)
        self._progress = progress
        self.frontier = Frontier()
        self.redacted = 0
        self.named: list[str] = []
        self._last = (0, EMPTY_ROOT)  # date and leaf of the last entry
        self._keys = KeyChain(connection.execute(select(ledger.c.signer)).scalar_one())

    def entries(self) -> None:
        """Check every entry against its leaf, number, date and links; the tree's nodes; the checkpoints."""
        self._location.now = "the tree"
        stored = {(row.level, row.position): row.hash for row in self._connection.execute(select(nodes))}
        self._location.now = "a checkpoint"
        signed = self._checkpoints()
        self._location.now = "entry 1"
        with self._stream.execute(select(entries).order_by(entries.c.seq)) as rows:
            for row in rows:
                self._check_entry(row)
                self._last = row.at, row.leaf
                for level, position, node in self.frontier.append(row.leaf):
                    if stored.pop((level, position), None) != node:
                        raise CorruptData(f"the tree over entry {row.seq} does not match the entries")
                if row.seq in signed and signed[row.seq][0].root != self.frontier.root():
                    raise CorruptData(f"the checkpoint at entry {row.seq} does not match the entries")
                if row.seq % CHUNK == 0:
                    self._progress(row.seq)
                self._location.now = f"entry {row.seq + 1}"
        self._location.now = "a checkpoint"
        if stored:
            raise CorruptData(f"the tree has nodes of missing entries: {min(stored)}")
        if signed and max(signed) > self.frontier.size:
            raise CorruptData(f"a checkpoint covers {max(signed)} entries; the ledger has {self.frontier.size}")
        for checkpoint, note in signed.values():
            self._keys.check(checkpoint, note)
        self._keys.finish()

    def _check_entry(self, row: Any) -> None:
        if row.seq != self.frontier.size + 1:
            raise CorruptData(f"entry {self.frontier.size + 1} is missing")
        if row.at < self._last[0]:
            raise CorruptData(f"entry {row.seq} is dated before the previous entry")
        try:
            entry = Entry.from_body(row.seq, row.at, row.body)
        except ValueError as error:
            raise CorruptData(f"entry {row.seq} cannot be read: {error}") from error
        if entry.leaf_hash() != row.leaf:
            raise CorruptData(f"entry {row.seq} does not match its leaf hash")
        self._check_redacted(entry)
        self._keys.add(entry)
        self._check_links(row, entry)

    def _check_redacted(self, entry: Entry) -> None:
        """Check that a later entry says what was redacted."""
        redacted = [
            name for slot, name in zip(entry.slots(), _slot_names(len(entry.values)), strict=True) if slot.is_redacted
        ]
        if redacted:
            by = select(func.max(redactions.c.by)).where(redactions.c.seq == entry.seq)
            if not (self._connection.execute(by).scalar() or 0) > entry.seq:
                raise CorruptData(f"{redacted[0]} of entry {entry.seq} is missing, and no entry redacts it")
        self.redacted += len(redacted)
        remaining = MAX_LISTED - len(self.named)
        self.named += [f"entry {entry.seq}, {entry.handle}: {name}" for name in redacted[:remaining]]

    def _check_links(self, row: Any, entry: Entry) -> None:
        """Check the previous entry of the record, the position in its chain, and the jump."""
        for seq, position in ((row.previous, row.nth - 1), (row.jump, jump_target(row.nth))):
            if seq == position == 0:
                continue
            linked = self._connection.execute(
                select(entries.c.nth, entries.c.at, entries.c.body).where(entries.c.seq == seq)
            ).one_or_none()
            if (
                not 0 < seq < row.seq
                or linked is None
                or linked.nth != position
                or _entry_key(seq, linked) != entry.key
            ):
                raise CorruptData(f"entry {row.seq} has wrong links to earlier entries of its record")

    def _checkpoints(self) -> dict[int, tuple[Checkpoint, str]]:
        """Load the checkpoints by the number of entries they cover."""
        signed: dict[int, tuple[Checkpoint, str]] = {}
        for note, size in self._connection.execute(select(checkpoints.c.note, checkpoints.c.size)).all():
            try:
                checkpoint = Checkpoint.parse(parse_note(note)[0])
            except InvalidProof as error:
                raise CorruptData(f"the checkpoint at entry {size} cannot be read: {error}") from error
            if checkpoint.size != size:
                raise CorruptData(f"the checkpoint at entry {size} covers {checkpoint.size} entries")
            signed[size] = checkpoint, note
        return signed

    def head(self) -> None:
        """Check the head and the positions of the views."""
        self._location.now = "the head"
        end = self._connection.execute(select(head.c.seq, head.c.at, head.c.frontier)).one()
        at, leaf = self._last
        if tuple(end) != (self.frontier.size, at, self.frontier.to_bytes()):
            raise CorruptData(f"the head ({end.seq} entries) does not match the {self.frontier.size} entries")
        one = self._connection.execute(select(ledger)).one()
        if one.origin != self._keys.current.name:
            raise CorruptData(f"the ledger's origin is {one.origin}, but its key is named {self._keys.current.name}")
        positions = {row.name: (row.ledger, row.seq, row.leaf) for row in self._connection.execute(select(views))}
        for name in SQL_VIEWS:
            if positions.get(name) != (one.id, self.frontier.size, leaf):
                raise CorruptView(f"the view {name} is not at the last entry")

    def records(self) -> None:
        """Check that each record points to its latest entry, that none is missing, and the search view."""
        self._location.now = "the records view"
        firsts = self._count(select(func.count()).where(entries.c.previous == 0))
        stored = self._count(select(func.count()).select_from(records))
        if stored != firsts:
            raise CorruptView(f"{stored} records instead of {firsts}", "records")
        # Every entry but the last of its record has exactly one successor: else a chain forks or skips entries.
        followed = self._count(select(func.count(entries.c.previous.distinct())).where(entries.c.previous > 0))
        if followed != self.frontier.size - firsts:
            raise CorruptData("two entries follow the same one, so a record's history skips entries")
        later = entries.alias()
        stale = select(records.c.seq).join(later, later.c.previous == records.c.seq).limit(1)
        if (seq := self._connection.execute(stale).scalar()) is not None:
            raise CorruptView(f"a record points to entry {seq}, which is not its latest", "records")
        query = select(records.c.key, entries).join(entries, entries.c.seq == records.c.seq, isouter=True)
        expected = 0
        with self._stream.execute(query) as rows:
            for row in rows:
                name = row.key.decode("utf-8", "replace")
                self._location.now = f"the record {name}, entry {row.seq},"
                if row.seq is None or (entry := entry_from_row(row[1:])).key != row.key:
                    raise CorruptView(f"the record {name} points to an entry of another handle", "records")
                expected += self._check_search_keys(name, entry)
        self._location.now = "the search view"
        actual = self._count(select(func.count()).select_from(search))
        if actual != expected:
            raise CorruptView(f"the search view has {actual - expected} keys of no record", "search")

    def _check_search_keys(self, name: str, entry: Entry) -> int:
        """Return the number of search keys of a record; fail if one is missing."""
        keys = index_keys(entry.contents())
        if keys:
            stored = select(search.c.key).where(search.c.seq == entry.seq, search.c.key.in_(keys))
            if set(self._connection.execute(stored).scalars()) != keys:
                raise CorruptView(f"search keys of {name} (entry {entry.seq}) are missing", "search")
        return len(keys)

    def _count(self, statement: Any) -> int:
        return int(self._connection.execute(statement).scalar_one())


def _entry_key(seq: int, row: Any) -> bytes:
    try:
        return Entry.from_body(seq, row.at, row.body).key
    except ValueError as error:
        raise CorruptData(f"entry {seq} cannot be read: {error}") from error


def _slot_names(values: int) -> Iterator[str]:
    yield from ("actor", "note")
    yield from (f"value {number} of {values}" for number in range(1, values + 1))
