"""The log: entries appended once, in order, numbered without gaps, and the tree over them.

Appending happens in groups, one transaction each, so that many callers share one sync of the disk. Within a group
every request succeeds or fails alone. A request names the records on which its decision rested, with the entry at
which it saw each; if one has moved, the request is answered `Moved` and its author decides again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.engine.interfaces import DBAPICursor

from .checkpoint import Signer
from .clock import CheckedClock
from .entry import Draft, Entry, seal
from .errors import Damaged, Moved
from .schema import Statements, checkpoints, compile_statements, entries, head, ledger, nodes, records
from .store import Store
from .tree import Frontier, consistency_path, inclusion_path, subtree_root
from .verification import EMPTY_ROOT, HASH_LENGTH, Checkpoint

MAX_GROUP: Final = 10_000
"""The most requests in one commit: what one transaction may hold in memory, and how long others wait for the head."""

TOKEN_LENGTH: Final = 16
_SECRET = b"HS_SECKEY"
_TYPE_AT = 14  # where a value's type stands in its binary form, behind its length
_ONE = 1


@dataclass(frozen=True, slots=True)
class Append:
    """A request to append an entry."""

    key: bytes
    """Where the record is kept: the handle in UTF-8, folded by its namespace's case rule."""
    draft: Draft
    """What to append."""
    rests_on: Mapping[bytes, int] = field(default_factory=dict)
    """The records that the decision read, by key, each with the number of its latest entry; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a request."""

    seq: int
    at: int


Outcome = Appended | Moved


class Log:
    """The log of one ledger in one store. Not for several threads at once."""

    def __init__(self, store: Store, clock: CheckedClock, random: Callable[[int], bytes]) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._statements = compile_statements(store.dialect)
        self._traces_left = False  # of erased data, because a reader held an earlier state

    def create(self, origin: str) -> None:
        """Begin a ledger in an empty store; `origin` is the name under which it signs checkpoints."""
        with self._store.writing() as connection:
            connection.execute(insert(ledger).values(id=self._random(TOKEN_LENGTH), origin=origin))
            connection.execute(insert(head).values(one=_ONE, seq=0, at=0, frontier=b""))

    @property
    def origin(self) -> str:
        """The name under which the ledger signs checkpoints."""
        with self._store.reading() as connection:
            return str(connection.execute(select(ledger.c.origin)).scalar_one())

    # Writing

    def append(self, group: Sequence[Append]) -> list[Outcome]:
        """Append a group in one transaction; when this returns, what was appended is on the disk."""
        if len(group) > MAX_GROUP:
            raise ValueError(f"a group has at most {MAX_GROUP:,} requests, not {len(group):,}")
        with self._store.writing() as connection:
            commit = _Commit(connection.connection.cursor(), self._statements, self._clock, self._random)
            outcomes = [commit.append(request) for request in group]
            commit.finish()
        if commit.redacted or self._traces_left:
            self._traces_left = not self._store.forget_deleted()
        return outcomes

    # Reading

    def latest(self, key: bytes) -> int:
        """The number of the latest entry of a record; 0 if there is none."""
        with self._store.reading() as connection:
            found = connection.execute(select(records.c.seq).where(records.c.key == key)).scalar()
        return int(found or 0)

    def entry(self, seq: int) -> Entry:
        """The entry of a number."""
        with self._store.reading() as connection:
            row = connection.execute(select(entries.c.at, entries.c.body).where(entries.c.seq == seq)).one_or_none()
        if row is None:
            raise KeyError(seq)
        return Entry.from_body(seq, row.at, row.body)

    def history(self, key: bytes) -> Iterator[Entry]:
        """The entries of a record, newest first."""
        seq = self.latest(key)
        with self._store.reading() as connection:
            while seq:
                wanted = select(entries.c.at, entries.c.body, entries.c.previous).where(entries.c.seq == seq)
                row = connection.execute(wanted).one()
                yield Entry.from_body(seq, row.at, row.body)
                seq = row.previous

    def as_of(self, key: bytes, seq: int) -> Entry | None:
        """The last entry of a record up to and including an entry of the log; None if there was none yet."""
        return next((entry for entry in self.history(key) if entry.seq <= seq), None)

    @property
    def size(self) -> int:
        """How many entries there are."""
        with self._store.reading() as connection:
            return int(connection.execute(select(head.c.seq)).scalar_one())

    # Proving

    def checkpoint(self, signer: Signer) -> str:
        """Sign the present size and root, and keep the note; unchanged, the kept one is given again."""
        with self._store.writing() as connection:
            row = connection.execute(select(head.c.seq, head.c.frontier)).one()
            kept = connection.execute(select(checkpoints.c.note).where(checkpoints.c.size == row.seq)).scalar()
            if kept is not None:
                return str(kept)
            origin = connection.execute(select(ledger.c.origin)).scalar_one()
            note = signer.sign(Checkpoint(origin, row.seq, _frontier(row.seq, row.frontier).root()))
            connection.execute(insert(checkpoints).values(size=row.seq, note=note))
        return note

    def root(self, size: int) -> bytes:
        """The root of the tree of the first so many entries."""
        return subtree_root(self._read_hashes, 0, size) if size else EMPTY_ROOT

    def inclusion(self, seq: int, size: int) -> list[bytes]:
        """The proof that an entry is in the tree of a size."""
        return inclusion_path(self._read_hashes, seq - 1, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the tree of a size continues a smaller one."""
        return consistency_path(self._read_hashes, old, new)

    def _read_hashes(self, level: int, first: int, count: int) -> list[bytes]:
        if level == 0:
            column, position = entries.c.leaf, entries.c.seq - 1
            wanted = select(column).where(entries.c.seq > first, entries.c.seq <= first + count)
        else:
            column, position = nodes.c.hash, nodes.c.position
            wanted = select(column).where(nodes.c.level == level, position >= first, position < first + count)
        with self._store.reading() as connection:
            return list(connection.execute(wanted.order_by(position)).scalars())

    def verify(self) -> int:
        """Recompute every leaf, the tree and the records; refuse, naming the first difference. How many entries."""
        with self._store.reading() as connection:
            size = _verify_entries(connection)
            firsts = connection.execute(select(func.count()).where(entries.c.previous == 0)).scalar_one()
            kept = connection.execute(select(func.count()).select_from(records)).scalar_one()
            later = entries.alias()
            old = select(records.c.seq).join(later, later.c.previous == records.c.seq).limit(1)
            stale = connection.execute(old).scalar()
        if kept != firsts or stale is not None:
            where = "" if stale is None else f": one points to entry {stale}, which is not the latest"
            raise Damaged(f"the records are not those of the entries ({kept} for {firsts}){where}; rebuild them")
        return size


def _verify_entries(connection: Connection) -> int:
    frontier, last = Frontier(), 0
    rows = connection.execute(select(nodes.c.level, nodes.c.position, nodes.c.hash))
    tree = {(row.level, row.position): row.hash for row in rows}
    wanted = select(entries.c.seq, entries.c.at, entries.c.leaf, entries.c.body).order_by(entries.c.seq)
    for seq, at, leaf, body in connection.execute(wanted.execution_options(yield_per=1000)):
        if seq != frontier.size + 1:
            raise Damaged(f"entry {frontier.size + 1} is missing")
        if at < last:
            raise Damaged(f"entry {seq} is dated before the one in front of it")
        if _leaf_of(seq, at, body) != leaf:
            raise Damaged(f"entry {seq} is not what was committed to the tree")
        last = at
        for level, position, node in frontier.append(leaf):
            if tree.pop((level, position), None) != node:
                raise Damaged(f"the tree over entry {seq} is not that of the entries")
    end = connection.execute(select(head.c.seq, head.c.frontier)).one()
    if (end.seq, end.frontier) != (frontier.size, b"".join(frontier.hashes)) or tree:
        raise Damaged(f"the head says {end.seq} entries, with a tree of its own; there are {frontier.size}")
    return frontier.size


def _leaf_of(seq: int, at: int, body: bytes) -> bytes:
    try:
        return Entry.from_body(seq, at, body).leaf_hash()
    except ValueError as error:
        raise Damaged(f"entry {seq} cannot be read: {error}") from error


class _Commit:
    """One transaction that appends. It holds the head from its first statement on."""

    def __init__(
        self, cursor: DBAPICursor, statements: Statements, clock: CheckedClock, random: Callable[[int], bytes]
    ) -> None:
        self._cursor = cursor
        self._statements = statements
        self._random = random
        cursor.execute(statements.lock_head)
        seq, at, octets = _row(cursor)
        self._frontier = _frontier(seq, octets)
        self._at = clock.date(at if seq else None)
        self._token = random(TOKEN_LENGTH)
        self._latest: dict[bytes, int] = {}  # of this transaction
        self._rows: dict[int, tuple[int, int, int, bytes, bytes, bytes]] = {}  # not written yet
        self._nodes: list[tuple[int, int, bytes]] = []
        self.redacted = False

    def append(self, request: Append) -> Outcome:
        """Append one entry, unless something that its decision rested on has moved."""
        for key, seen in request.rests_on.items():
            if (found := self._latest_of(key)) != seen:
                return Moved(key, seen, found)
        previous = self._latest_of(request.key)
        before = self._entry(previous)[0] if previous else None
        seq = self._frontier.size + 1
        kept = {} if before is None else before.salts()
        body, leaf = seal(request.draft, seq, self._at, kept, self._random)
        self._nodes += self._frontier.append(leaf)
        self._rows[seq] = (seq, self._at, previous, self._token, leaf, body)
        self._latest[request.key] = seq
        if before is not None:
            self._redact_secrets(before, {value.to_bytes() for value in request.draft.values})
        return Appended(seq, self._at)

    def finish(self) -> None:
        """Write what has been collected and move the head."""
        if not self._latest:
            return
        statements, cursor = self._statements, self._cursor
        cursor.executemany(statements.insert_entry, list(self._rows.values()))
        if self._nodes:
            cursor.executemany(statements.insert_node, self._nodes)
        cursor.executemany(statements.upsert_record, list(self._latest.items()))
        octets = b"".join(self._frontier.hashes)
        cursor.execute(statements.move_head, (self._frontier.size, self._at, octets))

    def _latest_of(self, key: bytes) -> int:
        found = self._latest.get(key)
        if found is not None:
            return found
        self._cursor.execute(self._statements.record_seq, (key,))
        row = self._cursor.fetchone()
        return int(row[0]) if row else 0

    def _entry(self, seq: int) -> tuple[Entry, int]:
        """An entry, written or not, and the one before it of the same record."""
        row = self._rows.get(seq)
        if row is not None:
            return Entry.from_body(seq, row[1], row[5]), row[2]
        self._cursor.execute(self._statements.entry, (seq,))
        at, previous, _, body = _row(self._cursor)
        return Entry.from_body(seq, at, body), previous

    def _redact_secrets(self, before: Entry, contents: set[bytes]) -> None:
        """Erase secret keys that are no longer in the record from every entry that holds them.

        An old secret proves nothing and endangers much.
        """
        gone = {
            slot.commitment
            for slot in before.values
            if slot.content is not None and slot.content not in contents and _is_secret(slot.content)
        }
        seq = before.seq if gone else 0
        while seq:
            entry, previous = self._entry(seq)
            slots = tuple(slot.redacted() if slot.commitment in gone else slot for slot in entry.values)
            if slots != entry.values:
                self._rewrite(replace(entry, values=slots))
            seq = previous

    def _rewrite(self, entry: Entry) -> None:
        self.redacted = True
        row = self._rows.get(entry.seq)
        if row is not None:
            self._rows[entry.seq] = (*row[:5], entry.body())
        else:
            self._cursor.execute(self._statements.rewrite_body, (entry.body(), entry.seq))


def _row(cursor: DBAPICursor) -> Sequence[Any]:
    """The one row that must be there."""
    row = cursor.fetchone()
    if row is None:
        raise Damaged("a row of the ledger is missing; verify it")
    return cast("Sequence[Any]", row)


def _is_secret(content: bytes) -> bool:
    """Whether a value in its binary form is a secret key, or a subtype of one."""
    start = _TYPE_AT + 4
    length = int.from_bytes(content[_TYPE_AT:start], "big")
    type_ = content[start : start + length].upper()
    return type_ == _SECRET or type_.startswith(_SECRET + b".")


def _frontier(seq: int, octets: bytes) -> Frontier:
    return Frontier(seq, [octets[i : i + HASH_LENGTH] for i in range(0, len(octets), HASH_LENGTH)])
