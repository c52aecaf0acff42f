"""Rows as the driver gives them: hot paths read them by position, so their order is said once, here."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from .change import Change
from .entry import Entry
from .errors import Damaged

EntryRow: TypeAlias = tuple[int, int, int, int, int, bytes, bytes, bytes]
"""seq, at, previous, jump, nth, token, leaf, body: all columns of `entries`."""


def one_row(cursor: DBAPICursor) -> Any:
    """The one row that must be there."""
    row = cursor.fetchone()
    if row is None:
        raise Damaged("a row of the ledger is missing; verify it")
    return cast("Sequence[Any]", row)


def entry_of(row: Sequence[Any]) -> Entry:
    """The entry in a row."""
    return Entry.from_body(row[0], row[1], row[7])


def change_of(row: Sequence[Any]) -> Change:
    """What views are told of the entry in a row."""
    return change_of_entry(entry_of(row), row[6])


def change_of_entry(entry: Entry, leaf: bytes | None = None) -> Change:
    """What views are told of an entry."""
    leaf = entry.leaf_hash() if leaf is None else leaf
    return Change(entry.seq, leaf, entry.key, entry.handle, entry.exact, entry.state, entry.contents())
