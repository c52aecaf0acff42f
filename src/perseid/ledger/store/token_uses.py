"""The last use of each bearer token, by day, to find unused tokens.

A day is precise enough, so a use is written at most once per day. It is not in the token's record, because that is part
of the history forever.
"""

from sqlalchemy import select

from perseid.ledger.log.log import Log

from .tables import StatementCompiler, token_uses


def last_used_days(log: Log) -> dict[str, int]:
    """Return the last day of use, in days since 1970, by token; unused tokens are missing."""
    with log.store.reading() as connection:
        return {row.id: row.day for row in connection.execute(select(token_uses))}


def record_use(log: Log, token: str, day: int) -> bool:
    """Record that a token was used on a day; return whether anything was written."""
    with log.store.reading() as connection:
        known = connection.execute(select(token_uses.c.day).where(token_uses.c.id == token)).scalar()
    if known is not None and known >= day:
        return False
    insert = StatementCompiler(log.store.dialect).insert(token_uses).values(id=token, day=day)
    statement = insert.on_conflict_do_update(
        index_elements=["id"], set_={"day": insert.excluded.day}, where=token_uses.c.day < insert.excluded.day
    )
    with log.store.writing() as connection:
        connection.execute(statement)
    return True
