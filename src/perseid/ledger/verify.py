"""Checking a whole ledger: every leaf from its body, the tree over them, the views in SQL, every checkpoint kept.

The first difference is named. Redacted values are accepted, because the tree holds their commitments, and named.
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
from perseid.ledger.store.rows import entry_from_row
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import checkpoints, entries, head, ledger, nodes, records, redactions, targets, views
from perseid.ledger.views.search_keys import index_keys
from perseid.proof.verifier import EMPTY_ROOT, Checkpoint, InvalidProof, parse_note

from .errors import CorruptData, LedgerError
from .merkle import Frontier

CHUNK: Final = 1_000
"""Rows read at a time."""

MAX_LISTED: Final = 1_000
"""How many redacted values are named; all are counted."""


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
    """What was found in a ledger that holds."""

    entries: int
    """How many entries were checked."""
    root: bytes
    """The root of their tree."""
    redacted: int
    """How many values, actors and notes have been redacted."""
    named: tuple[str, ...]
    """The first of them."""


def verify(log: Log, progress: Callable[[int], None] = lambda _: None) -> VerifyReport:
    """Recompute everything from the entries; refuse with `Damaged`, naming the first difference."""
    where = _Location()
    unreadable = partial(_translate_read_errors, log.store, where)
    # Around the beginning, too, where a table may be found missing; inside, before a sentence without a place is made.
    with unreadable(), log.store.reading() as connection, unreadable():
        check = _Verifier(connection, progress, where)
        check.entries()
        check.head()
        check.records()
        return VerifyReport(check.frontier.size, check.frontier.root(), check.redacted, tuple(check.named))


@dataclass(slots=True)
class _Location:
    """What is being read, for whoever must say that it cannot be read."""

    now: str = "the name of the ledger"


@contextmanager
def _translate_read_errors(store: Store, where: _Location) -> Iterator[None]:
    """What the database cannot read, or what is not of its kind, was not written by this program."""
    try:
        yield
    except DBAPIError as error:
        translated = store.translate_read_error(error)
        if isinstance(translated, LedgerError) and not isinstance(translated, CorruptData):
            raise translated from error  # it may be as it should, and cannot be had
        raise CorruptData(f"{where.now} cannot be read: {error.orig}") from error
    except _TYPE_ERRORS as error:
        raise CorruptData(f"{where.now} cannot be read, for a field is not of its kind: {error}") from error


class _Verifier:
    def __init__(self, connection: Connection, progress: Callable[[int], None], where: _Location) -> None:
        self._location = where
        self._connection = connection
        self._stream = connection.execution_options(yield_per=CHUNK)
        self._progress = progress
        self.frontier = Frontier()
        self.redacted = 0
        self.named: list[str] = []
        self._last = (0, EMPTY_ROOT)  # date and leaf of the last entry
        self._keys = KeyChain(connection.execute(select(ledger.c.signer)).scalar_one())

    def entries(self) -> None:
        """Every entry against its leaf, number, date and links; the tree's nodes; the checkpoints on the way."""
        self._location.now = "the tree"
        kept = {(row.level, row.position): row.hash for row in self._connection.execute(select(nodes))}
        self._location.now = "a checkpoint"
        signed = self._checkpoints()
        self._location.now = "entry 1"
        with self._stream.execute(select(entries).order_by(entries.c.seq)) as rows:
            for row in rows:
                self._check_entry(row)
                self._last = row.at, row.leaf
                for level, position, node in self.frontier.append(row.leaf):
                    if kept.pop((level, position), None) != node:
                        raise CorruptData(f"the tree over entry {row.seq} is not that of the entries")
                if row.seq in signed and signed[row.seq][0].root != self.frontier.root():
                    raise CorruptData(f"the checkpoint signed at entry {row.seq} is not about these entries")
                if row.seq % CHUNK == 0:
                    self._progress(row.seq)
                self._location.now = f"entry {row.seq + 1}"
        self._location.now = "a checkpoint"
        if kept:
            raise CorruptData(f"the tree has nodes of entries that are not there: {min(kept)}")
        if signed and max(signed) > self.frontier.size:
            raise CorruptData(f"a checkpoint was signed over {max(signed)} entries; there are {self.frontier.size}")
        for checkpoint, note in signed.values():
            self._keys.check(checkpoint, note)
        self._keys.finish()

    def _check_entry(self, row: Any) -> None:
        if row.seq != self.frontier.size + 1:
            raise CorruptData(f"entry {self.frontier.size + 1} is missing")
        if row.at < self._last[0]:
            raise CorruptData(f"entry {row.seq} is dated before the one in front of it")
        try:
            entry = Entry.from_body(row.seq, row.at, row.body)
        except ValueError as error:
            raise CorruptData(f"entry {row.seq} cannot be read: {error}") from error
        if entry.leaf_hash() != row.leaf:
            raise CorruptData(f"entry {row.seq} is not what was committed to the tree")
        self._check_redacted(entry)
        self._keys.add(entry)
        self._check_links(row, entry)

    def _check_redacted(self, entry: Entry) -> None:
        """What was erased was erased by an entry that says so."""
        gone = [
            what for slot, what in zip(entry.slots(), _slot_names(len(entry.values)), strict=True) if slot.is_redacted
        ]
        if gone:
            by = select(func.max(redactions.c.by)).where(redactions.c.seq == entry.seq)
            if not (self._connection.execute(by).scalar() or 0) > entry.seq:
                raise CorruptData(f"{gone[0]} of entry {entry.seq} is gone, and no entry says that it was redacted")
        self.redacted += len(gone)
        room = MAX_LISTED - len(self.named)
        self.named += [f"entry {entry.seq}, {entry.handle}: {what}" for what in gone[:room]]

    def _check_links(self, row: Any, entry: Entry) -> None:
        """The chain of the record: the entry before it, its place, and where it jumps."""
        for seq, place in ((row.previous, row.nth - 1), (row.jump, jump_target(row.nth))):
            if seq == place == 0:
                continue
            found = self._connection.execute(
                select(entries.c.nth, entries.c.at, entries.c.body).where(entries.c.seq == seq)
            ).one_or_none()
            if not 0 < seq < row.seq or found is None or found.nth != place or _entry_key(seq, found) != entry.key:
                raise CorruptData(f"entry {row.seq} is not linked to the entries of its record before it")

    def _checkpoints(self) -> dict[int, tuple[Checkpoint, str]]:
        """The checkpoints kept, by the number of entries that each is about."""
        found: dict[int, tuple[Checkpoint, str]] = {}
        for note, size in self._connection.execute(select(checkpoints.c.note, checkpoints.c.size)).all():
            try:
                checkpoint = Checkpoint.parse(parse_note(note)[0])
            except InvalidProof as error:
                raise CorruptData(f"the checkpoint kept for entry {size} cannot be read: {error}") from error
            if checkpoint.size != size:
                raise CorruptData(f"the checkpoint kept for entry {size} is about entry {checkpoint.size}")
            found[size] = checkpoint, note
        return found

    def head(self) -> None:
        """The head and how far the views say they have come."""
        self._location.now = "the head"
        end = self._connection.execute(select(head.c.seq, head.c.at, head.c.frontier)).one()
        at, leaf = self._last
        if tuple(end) != (self.frontier.size, at, self.frontier.to_bytes()):
            raise CorruptData(
                f"the head says {end.seq} entries, with a tree of its own; there are {self.frontier.size}"
            )
        one = self._connection.execute(select(ledger)).one()
        if one.origin != self._keys.current.name:
            raise CorruptData(f"the ledger is called {one.origin}, and signs as {self._keys.current.name}")
        found = {row.name: (row.ledger, row.seq, row.leaf) for row in self._connection.execute(select(views))}
        for name in SQL_VIEWS:
            if found.get(name) != (one.id, self.frontier.size, leaf):
                raise CorruptData(f"the view {name} has not come to the last entry of this ledger; rebuild it")

    def records(self) -> None:
        """Each record points to its latest entry, and every entry's record is there; likewise where they lead."""
        self._location.now = "the view of records"
        firsts = self._count(select(func.count()).where(entries.c.previous == 0))
        kept = self._count(select(func.count()).select_from(records))
        if kept != firsts:
            raise CorruptData(f"the records are not those of the entries ({kept} for {firsts}); rebuild them")
        # Every entry but the last of its record has one behind it: else a chain forks, or leaves entries out.
        followed = self._count(select(func.count(entries.c.previous.distinct())).where(entries.c.previous > 0))
        if followed != self.frontier.size - firsts:
            raise CorruptData(
                "two entries say that they follow the same one, so entries are left out of a record's history"
            )
        later = entries.alias()
        stale = select(records.c.seq).join(later, later.c.previous == records.c.seq).limit(1)
        if (seq := self._connection.execute(stale).scalar()) is not None:
            raise CorruptData(
                f"a record points to entry {seq}, which is not the latest of its name; rebuild the records"
            )
        wanted = select(records.c.key, entries).join(entries, entries.c.seq == records.c.seq, isouter=True)
        leading = 0
        with self._stream.execute(wanted) as rows:
            for row in rows:
                name = row.key.decode("utf-8", "replace")
                self._location.now = f"the record {name}, entry {row.seq},"
                if row.seq is None or (entry := entry_from_row(row[1:])).key != row.key:
                    raise CorruptData(f"the record {name} points to an entry of another name; rebuild the records")
                leading += self._check_targets(name, entry)
        self._location.now = "the view of targets"
        found = self._count(select(func.count()).select_from(targets))
        if found != leading:
            raise CorruptData(f"there are {found - leading} targets that no record has; rebuild the targets")

    def _check_targets(self, name: str, entry: Entry) -> int:
        """How many keys lead to a record; refused if one is missing."""
        wanted = index_keys(entry.contents())
        if wanted:
            there = select(targets.c.target).where(targets.c.seq == entry.seq, targets.c.target.in_(wanted))
            if set(self._connection.execute(there).scalars()) != wanted:
                raise CorruptData(f"the targets of {name} (entry {entry.seq}) are not all there; rebuild the targets")
        return len(wanted)

    def _count(self, statement: Any) -> int:
        return int(self._connection.execute(statement).scalar_one())


def _entry_key(seq: int, row: Any) -> bytes:
    try:
        return Entry.from_body(seq, row.at, row.body).key
    except ValueError as error:
        raise CorruptData(f"entry {seq} cannot be read: {error}") from error


def _slot_names(values: int) -> Iterator[str]:
    yield from ("its actor", "its note")
    yield from (f"value {number} of {values}" for number in range(1, values + 1))
