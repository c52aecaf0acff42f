"""State that is not derived from the ledger: idempotency keys of requests, and the last use of bearer tokens.

A request with an idempotency key is executed once, however often it is sent. A client that gets no response cannot know
whether its request was executed, and sends it again with the same key. The row with the result and the response is
written by the commit itself (`Append.once`, `Execute.once`), so a change never exists without its key, even after a
crash. Two concurrent requests with the same key, to any processes, meet in the commit: the second one is not executed.

Rows are kept for a day and then purged by the maintenance thread. Their number is limited, per owner (who may use
several tokens) and in total; beyond that a new key is refused, and no row is dropped early.

The last use of a token is stored to find unused ones. A day is precise enough, so a use is written at most once per
day. It is not in the token's record, because that is part of the history forever.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, select

from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import CALLER_LENGTH, KEY_LIFETIME, OWNER_LENGTH, IdempotencyRecord, StateChange

from .tables import StatementCompiler, fetch_one, idempotency, idempotency_from_row, token_uses

MAX_KEYS_PER_OWNER: Final = 10_000
"""Keys that are kept for one owner, of all their callers: one every nine seconds. Clients with more requests should
combine many identifiers into one request."""

MAX_KEYS: Final = 100_000
"""Keys that are kept in total: some 50 MB if responses are short."""

_PURGE_BATCH: Final = 1_000  # rows deleted per transaction, so that writers do not wait for long


@dataclass(frozen=True, slots=True)
class KeyCapacity:
    """How many more keys can be stored."""

    owner: int
    """Of one owner."""
    total: int
    """Of all owners."""


def find(log: Log, caller: bytes, key: bytes) -> IdempotencyRecord | None:
    """Find the stored result of a caller's key."""
    with log.store.reading_cursor() as cursor:
        cursor.execute(log.statements.find_idempotency, (caller, key))
        row = cursor.fetchone()
    if row is None:
        return None
    record = idempotency_from_row(row)
    return record if record.at > log.clock.now() - KEY_LIFETIME else None


def check_capacity(log: Log, caller: bytes) -> KeyCapacity:
    """Check how many more keys can be stored for a caller's owner. It counts the stored ones.

    Concurrent callers may all get the same result.
    """
    owner = caller[:OWNER_LENGTH]
    last_caller = owner + b"\xff" * (CALLER_LENGTH - OWNER_LENGTH)
    with log.store.reading_cursor() as cursor:
        cursor.execute(log.statements.idempotency_range, ())
        first, last = fetch_one(cursor)
        cursor.execute(log.statements.count_idempotency, (owner, last_caller, MAX_KEYS_PER_OWNER, 0))
        (count,) = fetch_one(cursor)
    return KeyCapacity(MAX_KEYS_PER_OWNER - count, MAX_KEYS - (0 if first is None else last - first + 1))


def purge(log: Log) -> int:
    """Delete expired rows; return how many."""
    until = log.clock.now() - KEY_LIFETIME
    old = (
        select(idempotency.c.number).where(idempotency.c.at <= until).order_by(idempotency.c.number).limit(_PURGE_BATCH)
    )
    removed = 0
    while True:
        with log.store.reading() as connection:
            numbers = connection.execute(old).scalars().all()
        if not numbers:
            return removed
        with log.store.writing() as connection:
            # Numbers restart once all rows are deleted, so the date is checked again.
            connection.execute(delete(idempotency).where(idempotency.c.number.in_(numbers), idempotency.c.at <= until))
        removed += len(numbers)


def last_used_days(log: Log) -> dict[str, int]:
    """Return the last day of use, in days since 1970, by token; unused tokens are missing."""
    with log.store.reading() as connection:
        return {row.id: row.day for row in connection.execute(select(token_uses))}


@dataclass(frozen=True, slots=True)
class RecordUse(StateChange):
    """Record that a token was used on a day, in days since 1970."""

    token: str
    day: int

    def apply(self, connection: Connection, head: int, at: int) -> None:  # noqa: ARG002 - of every change
        values = StatementCompiler(connection.dialect.name).insert(token_uses).values(id=self.token, day=self.day)
        statement = values.on_conflict_do_update(
            index_elements=["id"], set_={"day": values.excluded.day}, where=token_uses.c.day < values.excluded.day
        )
        connection.execute(statement)
