"""Rebuilding an SQL view while the ledger is in use.

The new table is filled next to the old one, from the entries in order, one chunk per transaction, so that writers never
wait for long. When it has reached the last entry it replaces the old one, while the head is locked.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Connection, MetaData, Table, func, inspect, select, text, update

from perseid.ledger.errors import Contention, LedgerError, TooBusy
from perseid.ledger.log.entry import Change
from perseid.ledger.log.log import Log
from perseid.ledger.store.tables import (
    StatementCompiler,
    change_from_row,
    fetch_one,
    insert_rows,
    ledger,
    records,
    redactions,
    search,
    views,
)

from .search_keys import index_keys

CHUNK: Final = 2_000
"""Entries applied in one transaction: some ten milliseconds, during which writers wait."""

_T = TypeVar("_T")

ATTEMPTS: Final = 5
"""How often a chunk is retried after a conflict, each time after up to five seconds of waiting."""

_VIEWS: Final = {"records": records, "search": search}


def rebuild(log: Log, name: str, progress: Callable[[int], None] = lambda _: None) -> int:
    """Compute the view `records` or `search` from the entries and replace the old one; return how many entries.

    Only one table of a view is built at a time: a new attempt replaces one that is running or was interrupted, and that
    one ends with `Superseded`. If data is redacted meanwhile that the new table may contain, it starts again.
    """
    build = _APPLY[name]
    while True:
        table = _VIEWS[name].to_metadata(MetaData(), name=f"{name}_next_{log.random(4).hex()}")
        erased = _run_with_head(log, partial(_begin, name, table))
        done, reached_end = 0, False
        try:
            while not reached_end:
                done, reached_end = _run_with_head(log, partial(_step, log, table, build, done, erased))
                progress(done)
        except _ErasureDetected:
            continue
        return done


def rebuild_outdated(log: Log, progress: Callable[[int], None] = lambda _: None) -> None:
    """Rebuild the views that an upgrade of the tables has invalidated, because their rows changed."""
    with log.store.reading() as connection:
        outdated = (
            connection.execute(select(views.c.name).where(views.c.seq < 0).order_by(views.c.name)).scalars().all()
        )
    for name in outdated:
        rebuild(log, name, progress)


def drop_unfinished(log: Log) -> None:
    """Remove the tables of interrupted attempts: they may contain redacted data."""
    for name in _VIEWS:
        _run_with_head(log, partial(_drop_unfinished, name))


def _run_with_head(log: Log, work: Callable[[Connection, int], _T]) -> _T:
    """Run `work` with the number of entries while the head is locked."""
    for _ in range(ATTEMPTS):
        # Others may hold the head, or read from the old table.
        with suppress(Contention), log.store.writing() as connection:
            cursor = connection.connection.cursor()
            cursor.execute(log.statements.lock_head)
            return work(connection, fetch_one(cursor)[0])
    raise TooBusy("the ledger is locked by other processes. The view is unchanged; retry")


def _begin(name: str, table: Table, connection: Connection, size: int) -> int:
    """Create the table of a new attempt; return the last redaction so far."""
    _drop_unfinished(name, connection, size)
    table.create(connection)
    return _last_erasure(connection)


def _drop_unfinished(name: str, connection: Connection, _size: int) -> None:
    for unfinished in unfinished_tables(connection):
        if unfinished.startswith(f"{name}_next_"):
            connection.execute(text(f"DROP TABLE {unfinished}"))


def unfinished_tables(connection: Connection) -> list[str]:
    """Return the tables of running or interrupted attempts."""
    return [name for name in inspect(connection).get_table_names() if "_next_" in name]


def _last_erasure(connection: Connection) -> int:
    return int(connection.execute(select(func.max(redactions.c.by))).scalar() or 0)


class Superseded(LedgerError):
    """Another process started to build the same view, or removed the new table."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"another process rebuilds {name.partition('_')[0]} or redacted data; this attempt was stopped"
        )


class _ErasureDetected(Exception):
    """Data was redacted that the new table may contain."""


def _step(
    log: Log, table: Table, build: "_Apply", done: int, erased: int, connection: Connection, size: int
) -> tuple[int, bool]:
    """Apply a chunk after entry `done`; at the end of the log, switch."""
    if not inspect(connection).has_table(table.name):
        raise Superseded(table.name)
    if _last_erasure(connection) != erased:
        raise _ErasureDetected
    cursor: Any = connection.connection.cursor()
    cursor.execute(log.statements.following, (done, done + CHUNK))
    rows = cursor.fetchall()
    changes = [change_from_row(row) for row in rows]
    build(cursor, _TableStatements.of(log.store.dialect, table), changes, _previous_changes(log, cursor, rows))
    last = rows[-1][0] if rows else done
    if last == size:
        _switch(connection, table, last, rows[-1][6] if rows else None)
    return last, last == size


def _switch(connection: Connection, table: Table, seq: int, leaf: bytes | None) -> None:
    name = table.name.partition("_")[0]
    connection.execute(text(f"DROP TABLE {name}"))
    connection.execute(text(f"ALTER TABLE {table.name} RENAME TO {name}"))
    if connection.dialect.name != "sqlite":
        connection.execute(text(f"ALTER INDEX {table.name}_pkey RENAME TO {name}_pkey"))
    identity = connection.execute(select(ledger.c.id)).scalar_one()
    new = {"ledger": identity, "seq": seq} | ({} if leaf is None else {"leaf": leaf})
    connection.execute(update(views).where(views.c.name == name).values(**new))


@dataclass(frozen=True, slots=True)
class _TableStatements:
    """Statements that write to a table that is being built."""

    upsert: str
    insert: str
    delete: str

    @classmethod
    def of(cls, dialect: str, table: Table) -> Self:
        compiler = StatementCompiler(dialect)
        return cls(compiler.upsert(table, "seq"), compiler.text(table.insert()), compiler.delete(table))


_Apply = Callable[[Any, _TableStatements, Sequence[Change], "dict[int, Change]"], None]


def _previous_changes(log: Log, cursor: Any, rows: Iterable[Any]) -> dict[int, Change]:
    """Return the previous entry of the same record for each entry that has one."""
    known = {row[0]: row for row in rows}
    previous_changes = {}
    for row in known.values():
        if previous := row[2]:
            if previous not in known:
                cursor.execute(log.statements.entry, (previous,))
            previous_changes[row[0]] = change_from_row(known[previous] if previous in known else fetch_one(cursor))
    return previous_changes


def _apply_records(cursor: Any, statements: _TableStatements, changes: Sequence[Change], _: dict[int, Change]) -> None:
    insert_rows(cursor, statements.upsert, sorted({change.key: change.seq for change in changes}.items()))


def _apply_search(
    cursor: Any, statements: _TableStatements, changes: Sequence[Change], before: dict[int, Change]
) -> None:
    moved: dict[tuple[bytes, int], bool] = {}  # True to insert, False to delete
    for change in changes:
        if (old := before.get(change.seq)) is not None:
            for search_key in index_keys(old.contents):
                if moved.pop((search_key, old.seq), None) is None:
                    moved[search_key, old.seq] = False
        moved |= {(search_key, change.seq): True for search_key in index_keys(change.contents)}
    if gone := sorted([row for row, inserted in moved.items() if not inserted]):
        cursor.executemany(statements.delete, gone)
    insert_rows(cursor, statements.insert, sorted([row for row, inserted in moved.items() if inserted]))


_APPLY: Final[dict[str, _Apply]] = {"records": _apply_records, "search": _apply_search}
