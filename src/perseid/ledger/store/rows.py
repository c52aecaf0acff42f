"""Conversion of database rows. Hot paths read rows by position, so their order is defined once, here."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from perseid.ledger.errors import CorruptData
from perseid.ledger.log.entry import Change, Entry, decode_summary
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import IdempotencyRecord

_CACHE_SIZE: Final = 1_024
_MAX_CACHED_BODY: Final = 8_192  # bounds the cache to some megabytes

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


def change_from_row(row: Sequence[Any]) -> Change:
    """Convert a row of `entries` to the form that views use."""
    handle, exact, state, contents = decode_summary(row[0], row[1], row[7])
    return Change(row[0], row[6], record_key(handle, exact=exact), handle, exact, state, contents)


def change_from_entry(entry: Entry) -> Change:
    """Convert an entry to the form that views use."""
    return Change(entry.seq, entry.leaf_hash(), entry.key, entry.handle, entry.exact, entry.state, entry.contents())
