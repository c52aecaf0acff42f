"""Putting entries into a store that exist already, many at a time, with everything that is computed from them.

What a commit does for one entry after the other is done here for a chunk of them: one question finds what came before
all their records, and every table is written in one go, in the order of its keys. Memory does not grow with the ledger.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from perseid.ledger.log.entry import Entry
from perseid.ledger.store.rows import EntryRow, one_row
from perseid.ledger.store.tables import Statements, entries, records
from perseid.proof.verifier import EMPTY_ROOT

from .chain import jump_of_next
from .merkle import Frontier
from .value_keys import keys_of

CHUNK: Final = 2_000
"""Entries that are best written at a time: more are hardly faster, and SQLite takes 32,766 parameters at most."""

CHUNK_OCTETS: Final = 8_388_608
"""Octets after which a chunk ends even if it has fewer entries: what is held in memory."""

Sealed = tuple[Entry, bytes, bytes, bytes]
"""An entry with its token, its leaf hash and its body."""

_BEFORE = (
    select(records.c.key, entries.c.seq, entries.c.at, entries.c.previous, entries.c.jump, entries.c.nth)
    .add_columns(entries.c.body)
    .join(entries, entries.c.seq == records.c.seq)
    .where(records.c.key.in_(bindparam("keys", expanding=True)))
)


class Bulk:
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

    def write(self, chunk: Sequence[Sealed]) -> None:
        """Write the entries that follow, at least one."""
        rows: list[EntryRow] = []
        nodes: list[tuple[int, int, bytes]] = []
        gone: list[tuple[bytes, int]] = []
        latest: dict[bytes, tuple[int, int]] = {}  # by key: the last entry, and its place in the record's chain
        self._links = {}
        keys = [entry.key for entry, *_ in chunk]
        for key, seq, at, previous, jump, nth, body in self._connection.execute(_BEFORE, {"keys": list(set(keys))}):
            latest[key] = seq, nth
            self._links[seq] = previous, jump
            gone += [(target, seq) for target in keys_of(Entry.from_body(seq, at, body).contents())]
        current: dict[bytes, Entry] = {}
        for key, (entry, token, leaf, body) in zip(keys, chunk, strict=True):
            previous, nth = latest.get(key, (0, 0))
            jump = jump_of_next(nth + 1, previous, self._links_of)
            rows.append((entry.seq, entry.at, previous, jump, nth + 1, token, leaf, body))
            nodes += self.frontier.append(leaf)
            latest[key] = entry.seq, nth + 1
            self._links[entry.seq] = previous, jump
            current[key] = entry
        new = [(target, entry.seq) for entry in current.values() for target in keys_of(entry.contents())]
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

    def _links_of(self, seq: int) -> tuple[int, int]:
        known = self._links.get(seq)
        if known is None:
            self._cursor.execute(self._statements.links, (seq,))
            previous, jump = one_row(self._cursor)
            known = self._links[seq] = previous, jump
        return known
