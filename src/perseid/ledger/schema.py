"""The tables of a ledger, for both back ends, and the statements that run often as compiled text.

`entries` is the truth. `head` says where it ends and is locked to number new entries. `nodes` and `records` are
views: computed from entries, and computed again when they are lost. `ledger` and `checkpoints` cannot be computed again
and are part of every backup (docs/ARCHITECTURE.md lists such state).

Statements are written once, in SQLAlchemy Core. Those in the hot paths are compiled to text once for each dialect
and run on the driver, which costs half as much as running them through Core.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    bindparam,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.expression import ClauseElement

metadata = MetaData()

# SQLite makes only an INTEGER primary key the row's own number; there it has 64 bits anyway.
_Number = BigInteger().with_variant(Integer, "sqlite")

ledger = Table(
    "ledger",
    metadata,
    Column("id", LargeBinary, primary_key=True),
    Column("origin", Text, nullable=False),
)
"""One row: which ledger this is, and the name under which it signs checkpoints."""

head = Table(
    "head",
    metadata,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("seq", _Number, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("frontier", LargeBinary, nullable=False),
)
"""One row: the last entry's number and date, and the complete subtrees of the tree, 32 octets each."""

entries = Table(
    "entries",
    metadata,
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("previous", BigInteger, nullable=False),
    Column("token", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The log. `previous` is the entry before this one of the same record, 0 if there is none."""

nodes = Table(
    "nodes",
    metadata,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("position", _Number, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""Roots of complete runs of 256^level leaves."""

records = Table(
    "records",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The latest entry of each record. The key is the handle in UTF-8, folded by its namespace's case rule."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("size", _Number, primary_key=True, autoincrement=False),
    Column("note", Text, nullable=False),
)
"""Signed checkpoints; not computable again, because one key never signs two histories."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of the hot paths as text for one dialect; parameters go by position, in the order they stand."""

    insert_entry: str
    rewrite_body: str
    insert_node: str
    upsert_record: str
    move_head: str
    lock_head: str
    record_seq: str
    entry: str


def compile_statements(name: str) -> Statements:
    """Compile the hot statements for `sqlite` or `postgresql`."""
    insert: Callable[[Table], Any]
    if name == "sqlite":
        dialect, insert = cast("Dialect", sqlite.dialect(paramstyle="qmark")), sqlite.insert
    else:
        psycopg: Any = postgresql.psycopg
        dialect, insert = cast("Dialect", psycopg.dialect(paramstyle="format")), postgresql.insert

    def text(statement: ClauseElement) -> str:
        return str(statement.compile(dialect=dialect))

    upsert = insert(records).values(key=bindparam("key"), seq=bindparam("seq"))
    return Statements(
        insert_entry=text(entries.insert()),
        rewrite_body=text(
            update(entries).values(body=bindparam("new_body")).where(entries.c.seq == bindparam("wanted"))
        ),
        insert_node=text(nodes.insert()),
        upsert_record=text(upsert.on_conflict_do_update(index_elements=["key"], set_={"seq": upsert.excluded.seq})),
        move_head=text(
            update(head).values(seq=bindparam("new_seq"), at=bindparam("new_at"), frontier=bindparam("new_frontier"))
        ),
        lock_head=text(select(head.c.seq, head.c.at, head.c.frontier).with_for_update()),
        record_seq=text(select(records.c.seq).where(records.c.key == bindparam("wanted"))),
        entry=text(
            select(entries.c.at, entries.c.previous, entries.c.leaf, entries.c.body).where(
                entries.c.seq == bindparam("wanted")
            )
        ),
    )
