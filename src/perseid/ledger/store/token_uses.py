"""When bearer tokens were last used, by the day: it tells which of them nobody needs any more.

A day is enough for that, so a use is written down at most once a day, and costs nothing otherwise. It is the one thing
about a token that is not in its record: the record is part of the history for ever, and a use is no part of it.
"""

from sqlalchemy import select

from perseid.ledger.log.log import Log

from .tables import StatementCompiler, token_uses


def last_used_days(log: Log) -> dict[str, int]:
    """The last day, counted from 1970, on which each token was used; tokens that never were are not in it."""
    with log.store.reading() as connection:
        return {row.id: row.day for row in connection.execute(select(token_uses))}


def record_use(log: Log, token: str, day: int) -> bool:
    """Write down that a token was used on a day; whether there was anything to write."""
    with log.store.reading() as connection:
        known = connection.execute(select(token_uses.c.day).where(token_uses.c.id == token)).scalar()
    if known is not None and known >= day:
        return False
    insert = StatementCompiler(log.store.dialect).insert(token_uses).values(id=token, day=day)
    later = insert.on_conflict_do_update(
        index_elements=["id"], set_={"day": insert.excluded.day}, where=token_uses.c.day < insert.excluded.day
    )
    with log.store.writing() as connection:
        connection.execute(later)
    return True
