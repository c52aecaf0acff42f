"""Requests that carry a key of their own, so that they are carried out once however often they come.

A client that hears nothing cannot know whether its request was carried out, and asks again with the same key. The row
that says what was done, and what was answered, is written by the commit that does it (`Append.once`, `Mint.once`). So
there is no moment at which a change is there and its key is not, whoever is killed when. Two requests with the same key
that come at once, to whichever processes, meet in the commit: the second one is not carried out.

Rows are kept for a day and then removed by whoever looks after the ledger. They are bounded in number, for one owner,
who may call as several (with several tokens, say), and for all; beyond that a key is refused, and nothing is forgotten
early.
"""

from enum import Enum
from typing import Final

from sqlalchemy import delete, func, select

from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import CALLER_LENGTH, KEY_LIFETIME, OWNER_LENGTH, IdempotencyRecord

from .rows import idempotency_from_row
from .tables import idempotency

MAX_KEYS_PER_OWNER: Final = 10_000
"""Keys that are kept for one owner, of all callers that are theirs: one every nine seconds, day and night. Who makes
more names than that asks for many in one request."""

MAX_KEYS: Final = 100_000
"""Keys that are kept for all callers together: some 50 MB where answers are short."""

_PURGE_BATCH: Final = 1_000  # rows removed in one transaction, so that nobody waits for long


class KeyCapacity(Enum):
    """Whether another key can be kept."""

    AVAILABLE = "there"
    OWNER_LIMIT_REACHED = "none for this caller"
    NONE = "none for anybody"


def find(log: Log, caller: bytes, key: bytes) -> IdempotencyRecord | None:
    """What is kept of the request of a caller with a key."""
    with log.store.reading_cursor() as cursor:
        cursor.execute(log.statements.find_idempotency, (caller, key))
        row = cursor.fetchone()
    if row is None:
        return None
    kept = idempotency_from_row(row)
    return kept if kept.at > log.clock.now() - KEY_LIFETIME else None


def check_capacity(log: Log, caller: bytes) -> KeyCapacity:
    """Whether a key more can be kept for a caller, or anybody else with the same owner.

    Those who ask at the same moment may each be told so.
    """
    owner = caller[:OWNER_LENGTH]
    last_caller = owner + b"\xff" * (CALLER_LENGTH - OWNER_LENGTH)
    with log.store.reading() as connection:
        first, last = connection.execute(select(func.min(idempotency.c.number), func.max(idempotency.c.number))).one()
        if first is not None and last - first + 1 >= MAX_KEYS:
            return KeyCapacity.NONE
        own = select(idempotency.c.number).where(idempotency.c.caller >= owner, idempotency.c.caller <= last_caller)
        count = connection.execute(
            select(func.count()).select_from(own.limit(MAX_KEYS_PER_OWNER).subquery())
        ).scalar_one()
    return KeyCapacity.OWNER_LIMIT_REACHED if count >= MAX_KEYS_PER_OWNER else KeyCapacity.AVAILABLE


def purge(log: Log) -> int:
    """Remove what has been kept for long enough; how many rows that was."""
    until = log.clock.now() - KEY_LIFETIME
    old = (
        select(idempotency.c.number).where(idempotency.c.at <= until).order_by(idempotency.c.number).limit(_PURGE_BATCH)
    )
    removed = 0
    while True:
        with log.store.reading() as connection:
            found = connection.execute(old).scalars().all()
        if not found:
            return removed
        with log.store.writing() as connection:
            # Once all rows are gone, numbers begin again; so what may be a newer row is left alone.
            connection.execute(delete(idempotency).where(idempotency.c.number.in_(found), idempotency.c.at <= until))
        removed += len(found)
