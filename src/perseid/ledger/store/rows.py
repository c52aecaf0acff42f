"""What a view is told of an entry, and where views that live outside the ledger's store get it from.

Rows as the driver gives them: hot paths read them by position, so their order is said once, here.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from perseid.ledger.errors import CorruptData
from perseid.ledger.log.entry import Entry, decode_summary
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import IdempotencyRecord
from perseid.ledger.store.changes import Change

_CACHE_SIZE: Final = 1_024
_MAX_CACHED_BODY: Final = 8_192  # so that they take some megabytes at most

EntryRow: TypeAlias = tuple[int, int, int, int, int, bytes, bytes, bytes]
"""seq, at, previous, jump, nth, token, leaf, body: all columns of `entries`."""


def fetch_one(cursor: DBAPICursor) -> Any:
    """The one row that must be there."""
    row = cursor.fetchone()
    if row is None:
        raise CorruptData("a row of the ledger is missing; verify it")
    return cast("Sequence[Any]", row)


def idempotency_from_row(row: Sequence[Any]) -> IdempotencyRecord:
    """What a row of `idempotency` says of a request."""
    _, _, _, digest, at, seq, count, status, body = row
    return IdempotencyRecord(bytes(digest), at, seq, count, status, None if body is None else bytes(body))


def entry_from_row(row: Sequence[Any]) -> Entry:
    """The entry in a row. Those that decisions read over and over (policies, prefix handles) are taken apart once."""
    body = row[7]
    return (
        _cached_entry(row[0], row[1], body) if len(body) <= _MAX_CACHED_BODY else Entry.from_body(row[0], row[1], body)
    )


@lru_cache(_CACHE_SIZE)
def _cached_entry(seq: int, at: int, body: bytes) -> Entry:
    return Entry.from_body(seq, at, body)


def clear_entry_cache() -> None:
    """Keep no entries any more: something was erased, and one of them may still have it."""
    _cached_entry.cache_clear()


def change_from_row(row: Sequence[Any]) -> Change:
    """What views are told of the entry in a row."""
    handle, exact, state, contents = decode_summary(row[0], row[1], row[7])
    return Change(row[0], row[6], record_key(handle, exact=exact), handle, exact, state, contents)


def change_from_entry(entry: Entry) -> Change:
    """What views are told of an entry."""
    return Change(entry.seq, entry.leaf_hash(), entry.key, entry.handle, entry.exact, entry.state, entry.contents())
