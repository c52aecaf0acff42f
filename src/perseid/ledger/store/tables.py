"""The tables of a ledger, for both back ends, the hot statements as compiled text, and the conversion of rows.

`entries` is the truth. `head` says where it ends and is locked to number new entries. `nodes`, `records` and `search`
are computed from entries; `views` has the positions of the latter two. `ledger`, `checkpoints`, `redactions`, `leases`,
`jobs`, `steps`, `idempotency` and `token_uses` cannot be computed again and are part of every backup
(docs/ARCHITECTURE.md lists such state). `node_reports` says which nodes run.

Statements are written once, in SQLAlchemy Core. Those of hot paths are compiled to text once per dialect and run on the
driver, which costs half as much as running them through Core. Hot paths read rows by position, so the order of columns
is defined once, here.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    null,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.expression import ClauseElement

from perseid.ledger.errors import CorruptData
from perseid.ledger.log.entry import Change, Entry, decode_summary
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import IdempotencyRecord

metadata = MetaData()

# Only an INTEGER primary key is SQLite's row id; it has 64 bits there.
_Number = BigInteger().with_variant(Integer, "sqlite")

ledger = Table(
    "ledger",
    metadata,
    Column("id", LargeBinary, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("signer", Text, nullable=False),
)
"""One row: the ledger's id, its origin (the name that signs checkpoints), and the current public key."""

head = Table(
    "head",
    metadata,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("seq", _Number, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("frontier", LargeBinary, nullable=False),
    Column("read_only", Text),
    Column("oldest_program", Text, nullable=False),
)
"""One row: the last entry's number and date, and the frontier of the tree, 32 bytes per hash. `read_only` is why
changes are refused, null if they are accepted; `oldest_program` is the tables' version of the oldest program that may
write."""

entries = Table(
    "entries",
    metadata,
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("previous", BigInteger, nullable=False),
    Column("jump", BigInteger, nullable=False),
    Column("nth", BigInteger, nullable=False),
    Column("token", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The log. `nth` counts the entries of the same record from 1; `previous` is the one before, `jump` one further back
(see `entry.next_jump`), 0 if there is none. `token` identifies a commit; it is in the commit's first row."""

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

search = Table(
    "search",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("seq", _Number, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""The search view: a key made from a URL, type, value, owner or title word of a record (see `search_keys`), and the
record's latest entry."""

views = Table(
    "views",
    metadata,
    Column("name", Text, primary_key=True),
    Column("ledger", LargeBinary, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
)
"""The position of each SQL view: the last applied entry, its leaf hash, and the ledger."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("size", _Number, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
)
"""Signed checkpoints; not computable again, because one key never signs two histories."""

redactions = Table(
    "redactions",
    metadata,
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("by", BigInteger, primary_key=True, autoincrement=False),
    Column("public", SmallInteger, nullable=False),
)
"""Entries from which data was redacted, the entry that did it, and whether the data was public. Needed for increments
of backups, and to rebuild views that contained the data."""

leases = Table(
    "leases",
    metadata,
    Column("scope", LargeBinary, primary_key=True),
    Column("last", BigInteger, nullable=False),
    Column("clocked", SmallInteger, nullable=False),
    Column("closed", SmallInteger, nullable=False),
)
"""The last number leased in each scope; whether numbers are milliseconds; whether a restore has closed it."""

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("undoes", Text, nullable=False),
    Column("interface", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("owner", Text, nullable=False, server_default=""),
    Index("jobs_started_at", "started_at", "id"),
    Index("jobs_actor", "actor", "started_at", "id"),
    Index("jobs_owner", "owner", "started_at", "id"),
    Index("jobs_undoes", "undoes"),
)
"""Jobs: see `jobs`."""

steps = Table(
    "steps",
    metadata,
    Column("job", Text, primary_key=True),
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The entries of a job: `count` from `seq` on, for each of its commits."""

idempotency = Table(
    "idempotency",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=False),
    Column("caller", LargeBinary, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary),
    Index("idempotency_key", "caller", "key", unique=True),
    Index("idempotency_at", "at"),
)
"""Results of requests with an idempotency key: see `idempotency`. Rows are numbered in order, so that the first and
the last number give their count."""

token_uses = Table(
    "token_uses",
    metadata,
    Column("id", Text, primary_key=True),
    Column("day", BigInteger, nullable=False),
)
"""The last day on which each bearer token was used, in days since 1970. Everything else about a token is in its
record."""

node_reports = Table(
    "node_reports",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("clock_difference", BigInteger, nullable=False),
    Column("behind", BigInteger, nullable=False),
)
"""The running nodes of a PostgreSQL database: see `node_reports`. Not part of a backup."""

OTHER_SCOPES: Final = b""
"""The scope of the lease row in which a restore stores how far scopes unknown to the backup may have come."""

CHANNEL: Final = "perseid_ledger"
"""The PostgreSQL channel that notifies other nodes of new entries."""

SIDE_STATE: Final = (ledger, checkpoints, redactions, leases, jobs, steps, idempotency, token_uses)
"""Tables that cannot be computed from entries."""


STATES_PER_QUERY: Final = 4
"""States that `names_in_states` and `count_in_states` take; fewer are repeated."""

KEYS_PER_QUERY: Final = 500
"""Keys that `record_seqs` takes: one query for all costs a third of one per key."""


ROWS_PER_INSERT: Final = 32
"""Rows that one INSERT takes: a row costs half as much as alone, and more rows save little."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The hot statements as text for one dialect; parameters are positional, in the order of occurrence."""

    insert_entry: str
    insert_new_entry: str
    rewrite_body: str
    insert_redaction: str
    insert_step: str
    steps: str
    job_ended: str
    insert_node: str
    insert_record: str
    upsert_record: str
    insert_search_key: str
    delete_search_key: str
    move_head: str
    move_views: str
    lock_head: str
    lock_head_for_changes: str
    mode: str
    head: str
    record_seq: str
    record_seqs: str
    any_record: str
    token: str
    entry: str
    entry_at: str
    links: str
    entry_of_key: str
    leaf: str
    following: str
    leaves: str
    nodes: str
    lease: str
    upsert_lease: str
    find_idempotency: str
    last_idempotency: str
    idempotency_range: str
    count_idempotency: str
    insert_idempotency: str
    delete_idempotency: str
    clear_responses: str
    notify: str
    identity: str
    names: str
    names_in_states: str
    count_in_states: str
    find_by_keys: str
    search_rows: str
    last_erasure: str
    current: str
    checkpoint: str


class StatementCompiler:
    """Compiles statements to text, for `sqlite` or `postgresql`."""

    def __init__(self, name: str) -> None:
        self.insert: Callable[[Table], Any]
        if name == "sqlite":
            self._dialect, self.insert = cast("Dialect", sqlite.dialect(paramstyle="qmark")), sqlite.insert
        else:
            # Imported here, because most ledgers are in a file and do not need it.
            from sqlalchemy.dialects import postgresql  # noqa: PLC0415

            psycopg: Any = postgresql.psycopg
            self._dialect, self.insert = cast("Dialect", psycopg.dialect(paramstyle="format")), postgresql.insert

    def text(self, statement: ClauseElement) -> str:
        """Compile a statement; its parameters are positional."""
        return str(statement.compile(dialect=self._dialect))

    def repeat(self, statement: ClauseElement, count: int) -> str:
        """Compile a statement whose only parameter is a list of one; take `count` parameters in its place.

        To compile that many takes nearly as long as all other statements together.
        """
        before, parameter, after = self.text(statement).rpartition("?" if self._dialect.name == "sqlite" else "%s")
        return before + ", ".join([parameter] * count) + after

    def upsert(self, table: Table, *changing: str) -> str:
        """Compile an insert that updates some columns if the key exists."""
        new = self.insert(table).values({column.name: bindparam(column.name) for column in table.columns})
        keys = [column.name for column in table.primary_key]
        return self.text(
            new.on_conflict_do_update(index_elements=keys, set_={name: new.excluded[name] for name in changing})
        )

    def delete(self, table: Table) -> str:
        """Compile the deletion of a row by its key."""
        return self.text(delete(table).where(*[column == bindparam(column.name) for column in table.primary_key]))


def insert_rows(cursor: Any, statement: str, rows: Sequence[Sequence[object]]) -> None:
    """Insert many rows with a statement for one, in their order; without rows, do nothing."""
    if rows:
        insert_values(cursor, statement, list(chain.from_iterable(rows)), len(rows[0]))


def insert_values(cursor: Any, statement: str, values: list[object], columns: int) -> None:
    """The same with the values of all rows in one list."""
    size = columns * ROWS_PER_INSERT
    end = len(values) - len(values) % size
    if end:
        cursor.executemany(_for_several_rows(statement), (values[at : at + size] for at in range(0, end, size)))
    if end < len(values):
        cursor.executemany(statement, [values[at : at + columns] for at in range(end, len(values), columns)])


@cache
def _for_several_rows(statement: str) -> str:
    """The statement for `ROWS_PER_INSERT` rows."""
    return re.sub(r"(?<= VALUES )(\([^()]*\))", lambda row: ", ".join([row[0]] * ROWS_PER_INSERT), statement, count=1)


@cache
def compile_statements(name: str) -> Statements:
    """Compile the hot statements for `sqlite` or `postgresql`."""
    compiler = StatementCompiler(name)
    text, upsert, insert = compiler.text, compiler.upsert, compiler.insert
    key: Any = bindparam("lookup")
    first: Any = bindparam("first")
    last: Any = bindparam("last")
    limit: Any = bindparam("limit", type_=Integer)
    offset: Any = bindparam("offset", type_=Integer)  # SQLite's dialect would add one by itself, unnamed
    after = tuple_(bindparam("key", type_=LargeBinary), bindparam("seq", type_=BigInteger))
    position = tuple_(search.c.key, search.c.seq)
    latest = select(entries).join(records, records.c.seq == entries.c.seq)
    # The third byte of a body is the handle's state: see `entry`.
    state_byte: Any = func.substr(entries.c.body, literal_column("3"), literal_column("1"), type_=LargeBinary)
    in_states = state_byte.in_([bindparam(f"state_{number}", type_=LargeBinary) for number in range(STATES_PER_QUERY)])
    state = select(head.c.seq, head.c.at, head.c.frontier)
    mode = head.c.read_only, head.c.oldest_program

    def select_after(columns: Any) -> Any:
        """Select a range after a position. The position is the only lower bound, so that an index finds it at once."""
        within = columns.where(after < position, search.c.key < last).order_by(search.c.key, search.c.seq)
        return within.limit(limit).offset(offset)

    return Statements(
        insert_entry=text(entries.insert()),
        # The first entry of a record, without a token: number, date, leaf and body. An empty string is bytes here.
        insert_new_entry=text(
            insert(entries).values(
                seq=bindparam("seq"),
                at=bindparam("at"),
                previous=literal_column("0"),
                jump=literal_column("0"),
                nth=literal_column("1"),
                token=literal_column("x''" if name == "sqlite" else "''"),
                leaf=bindparam("leaf"),
                body=bindparam("body"),
            )
        ),
        rewrite_body=text(update(entries).values(body=bindparam("new_body")).where(entries.c.seq == key)),
        insert_redaction=text(
            insert(redactions)
            .values(seq=bindparam("seq"), by=bindparam("by"), public=bindparam("public"))
            .on_conflict_do_nothing()
        ),
        insert_step=text(steps.insert()),
        steps=text(
            select(steps.c.seq, steps.c.count).where(steps.c.job == key, steps.c.seq > first).order_by(steps.c.seq)
        ),
        job_ended=text(select(jobs.c.ended_at).where(jobs.c.id == key)),
        insert_node=text(nodes.insert()),
        insert_record=text(records.insert()),
        upsert_record=upsert(records, "seq"),
        insert_search_key=text(search.insert()),
        delete_search_key=compiler.delete(search),
        move_head=text(
            update(head).values(seq=bindparam("new_seq"), at=bindparam("new_at"), frontier=bindparam("new_frontier"))
        ),
        move_views=text(
            update(views).values(seq=bindparam("new_seq"), leaf=bindparam("new_leaf")).where(views.c.seq == last)
        ),
        lock_head=text(state.with_for_update()),
        lock_head_for_changes=text(state.add_columns(*mode).with_for_update()),
        mode=text(select(*mode)),
        head=text(state),
        record_seq=text(select(records.c.seq).where(records.c.key == key)),
        record_seqs=compiler.repeat(
            select(records.c.key, records.c.seq).where(records.c.key.in_([key])), KEYS_PER_QUERY
        ),
        any_record=text(select(exists().where(records.c.key >= first, records.c.key < last))),
        token=text(select(entries.c.token).where(entries.c.seq == key)),
        entry=text(select(entries).where(entries.c.seq == key)),
        entry_at=text(select(entries.c.at).where(entries.c.seq == key)),
        links=text(select(entries.c.previous, entries.c.jump).where(entries.c.seq == key)),
        entry_of_key=text(select(entries).join(records, records.c.seq == entries.c.seq).where(records.c.key == key)),
        leaf=text(select(entries.c.leaf).where(entries.c.seq == key)),
        following=text(select(entries).where(entries.c.seq > first, entries.c.seq <= last).order_by(entries.c.seq)),
        leaves=text(select(entries.c.leaf).where(entries.c.seq > first, entries.c.seq <= last).order_by(entries.c.seq)),
        nodes=text(
            select(nodes.c.hash)
            .where(nodes.c.level == key, nodes.c.position >= first, nodes.c.position < last)
            .order_by(nodes.c.position)
        ),
        lease=text(select(leases.c.last, leases.c.closed).where(leases.c.scope == key)),
        upsert_lease=upsert(leases, "last"),
        find_idempotency=text(select(idempotency).where(idempotency.c.caller == key, idempotency.c.key == last)),
        last_idempotency=text(select(func.max(idempotency.c.number))),
        # Two queries in one: SQLite finds the first or the last number at once, but scans the table for both.
        idempotency_range=text(
            select(
                select(func.min(idempotency.c.number)).scalar_subquery(),
                select(func.max(idempotency.c.number)).scalar_subquery(),
            )
        ),
        count_idempotency=text(
            select(func.count()).select_from(
                select(idempotency.c.caller)
                .where(idempotency.c.caller >= first, idempotency.c.caller <= last)
                .limit(limit)
                .offset(offset)
                .subquery()
            )
        ),
        insert_idempotency=text(idempotency.insert()),
        delete_idempotency=compiler.delete(idempotency),
        clear_responses=text(update(idempotency).values(body=null()).where(idempotency.c.body.is_not(None))),
        notify="" if name == "sqlite" else f"NOTIFY {CHANNEL}",
        identity=text(select(ledger.c.id, ledger.c.origin, ledger.c.signer)),
        names=text(
            latest.where(records.c.key >= first, records.c.key < last)
            .order_by(records.c.key)
            .limit(limit)
            .offset(offset)
        ),
        names_in_states=text(
            latest.where(records.c.key >= first, records.c.key < last, in_states)
            .order_by(records.c.key)
            .limit(limit)
            .offset(offset)
        ),
        count_in_states=text(
            select(func.count())
            .select_from(records)
            .join(entries, entries.c.seq == records.c.seq)
            .where(records.c.key >= first, records.c.key < last, in_states)
        ),
        find_by_keys=text(select_after(select(search.c.key, entries).join(entries, entries.c.seq == search.c.seq))),
        search_rows=text(select_after(select(search.c.key, search.c.seq))),
        last_erasure=text(select(func.max(redactions.c.by)).where(redactions.c.public == literal_column("1"))),
        current=text(
            select(records.c.key, entries)
            .join(entries, entries.c.seq == records.c.seq)
            .where(records.c.key > first)
            .order_by(records.c.key)
            .limit(limit)
            .offset(offset)
        ),
        checkpoint=text(
            select(checkpoints.c.note, checkpoints.c.size)
            .order_by(checkpoints.c.size.desc())
            .limit(limit)
            .offset(offset)
        ),
    )


_CACHE_SIZE: Final = 256  # of 2 KiB each if small; a process also keeps what it decides with (`EntryCache`)
_MAX_CACHED_BODY: Final = 8_192  # bounds the cache to a few megabytes

EntryRow: TypeAlias = tuple[int, int, int, int, int, bytes, bytes, bytes]
"""seq, at, previous, jump, nth, token, leaf, body: all columns of `entries`."""


def fetch_one(cursor: DBAPICursor) -> Any:
    """Fetch a row that must exist."""
    row = cursor.fetchone()
    if row is None:
        raise CorruptData("a row of the ledger is missing. Run: perseid verify --all")
    return cast("Sequence[Any]", row)


def idempotency_from_row(row: Sequence[Any]) -> IdempotencyRecord:
    """Convert a row of `idempotency`."""
    _, _, _, digest, at, seq, count, status, body = row
    return IdempotencyRecord(bytes(digest), at, seq, count, status, None if body is None else bytes(body))


def entry_from_row(row: Sequence[Any]) -> Entry:
    """Convert a row of `entries`. Small entries, such as policies and prefix handles, are cached."""
    body = row[7]
    return (
        _cached_entry(row[0], row[1], body) if len(body) <= _MAX_CACHED_BODY else Entry.from_body(row[0], row[1], body)
    )


@lru_cache(_CACHE_SIZE)
def _cached_entry(seq: int, at: int, body: bytes) -> Entry:
    return Entry.from_body(seq, at, body)


def clear_entry_cache() -> None:
    """Clear the cache, because an entry in it may contain data that was redacted."""
    _cached_entry.cache_clear()


def change_from_row(row: Sequence[Any], load_row: Callable[[int], Sequence[Any]] | None = None) -> Change:
    """Convert a row of `entries` to the form that views use.

    `load_row` loads another row, for views that need to know when values last changed.
    """
    summary = decode_summary(row[0], row[1], row[7])
    key = record_key(summary.handle, exact=summary.exact)
    change = Change(row[0], row[1], row[6], key, summary.handle, summary.exact, summary.state, summary.contents)
    if load_row is not None:
        before = load_row(row[2]) if row[2] else None
        change.last_update = summary.last_update(None if before is None else decode_summary(row[2], 0, before[7]))
    return change


def change_from_entry(entry: Entry) -> Change:
    """Convert an entry to the form that views use."""
    leaf = entry.leaf_hash()
    return Change(entry.seq, entry.at, leaf, entry.key, entry.handle, entry.exact, entry.state, entry.contents())
