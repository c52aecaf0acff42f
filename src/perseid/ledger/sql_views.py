"""Building a view in SQL anew, while the ledger is in use.

The new table grows beside the old one, from the entries in their order, a chunk to a transaction, so that writers never
wait for long. When it has come to the last entry it takes the old one's place, while the head is held.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Connection, MetaData, Table, delete, inspect, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from .entry import Entry
from .errors import Contention, TooBusy
from .log import ATTEMPTS, Log
from .rows import entry_of, one_row
from .schema import ledger, records, targets, views
from .target_keys import targets_of

CHUNK: Final = 2_000
"""Entries applied in one transaction: some ten milliseconds, which a writer can wait."""

_VIEWS: Final = {"records": records, "targets": targets}


def rebuild(log: Log, name: str, progress: Callable[[int], None] = lambda _: None) -> int:
    """Compute the view `records` or `targets` from the entries, and put it in the old one's place; how many entries."""
    table = _VIEWS[name].to_metadata(MetaData(), name=f"{name}_next")
    build = {"records": _apply_records, "targets": _apply_targets}[name]
    with log.store.writing() as connection:
        table.drop(connection, checkfirst=True)  # of a rebuild that was broken off
        table.create(connection)
    done, reached_end = 0, False
    while not reached_end:
        done, reached_end = _step(log, table, build, done)
        progress(done)
    return done


def _step(log: Log, table: Table, build: "_Apply", done: int) -> tuple[int, bool]:
    """Apply a chunk behind entry `done`; at the end of the log, switch."""
    for _ in range(ATTEMPTS):
        with suppress(Contention), log.store.writing() as connection:
            # Others may hold the head, or read from the table that is to go.
            cursor = connection.connection.cursor()
            cursor.execute(log.statements.lock_head)
            size = one_row(cursor)[0]
            cursor.execute(log.statements.following, (done, done + CHUNK))
            rows = cursor.fetchall()
            build(connection, table, [entry_of(row) for row in rows], _previous_of(log, cursor, rows))
            last = rows[-1][0] if rows else done
            if last == size:
                _switch(connection, table, last, rows[-1][6] if rows else None)
            return last, last == size
    raise TooBusy("others kept the ledger from being changed; the view is as it was, try again")


def _switch(connection: Connection, table: Table, seq: int, leaf: bytes | None) -> None:
    name = table.name.removesuffix("_next")
    connection.execute(text(f"DROP TABLE {name}"))
    connection.execute(text(f"ALTER TABLE {table.name} RENAME TO {name}"))
    if connection.dialect.name != "sqlite":
        connection.execute(text(f"ALTER INDEX {table.name}_pkey RENAME TO {name}_pkey"))
    identity = connection.execute(select(ledger.c.id)).scalar_one()
    new = {"ledger": identity, "seq": seq} | ({} if leaf is None else {"leaf": leaf})
    connection.execute(update(views).where(views.c.name == name).values(**new))


_Apply = Callable[[Connection, Table, Sequence[Entry], "dict[int, Entry]"], None]


def _previous_of(log: Log, cursor: Any, rows: Iterable[Any]) -> dict[int, Entry]:
    """For each entry that has one, the entry before it of the same record."""
    known = {row[0]: row for row in rows}
    found = {}
    for row in known.values():
        if previous := row[2]:
            if previous not in known:
                cursor.execute(log.statements.entry, (previous,))
            found[row[0]] = entry_of(known[previous] if previous in known else one_row(cursor))
    return found


def _apply_records(connection: Connection, table: Table, entries: Sequence[Entry], _: dict[int, Entry]) -> None:
    rows = [{"key": key, "seq": seq} for key, seq in {entry.key: entry.seq for entry in entries}.items()]
    if rows:
        new: Any = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
        connection.execute(new.on_conflict_do_update(index_elements=["key"], set_={"seq": new.excluded.seq}), rows)


def _apply_targets(connection: Connection, table: Table, entries: Sequence[Entry], before: dict[int, Entry]) -> None:
    for entry in entries:
        if (old := before.get(entry.seq)) is not None and (gone := targets_of(old.contents())):
            connection.execute(delete(table).where(table.c.seq == old.seq, table.c.target.in_(gone)))
        if new := targets_of(entry.contents()):
            connection.execute(table.insert(), [{"target": target, "seq": entry.seq} for target in new])


def tables_of_rebuilds(connection: Connection) -> list[str]:
    """Tables that a rebuild left when it was broken off; the next one removes them."""
    return [name for name in inspect(connection).get_table_names() if name.endswith("_next")]
