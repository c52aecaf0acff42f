"""Changes of many records as one operation: what was asked for, how far it has come, which entries belong to it.

An operation is carried out in steps, each a commit of its own. The row of a step is written by the commit itself
(`Append.operation`, `Mint.operation`), so an entry belongs to its operation or is not there. Whoever was killed goes on
with what is left. A note could not say so much, because everybody writes notes.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, delete, exists, func, insert, select, true, tuple_, update

from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader

from .tables import head, operations, steps

PAGE: Final = 1_000
"""Operations that are read at a time."""

_UNDO_COLUMNS: Final = (operations.c.id, operations.c.undoes, operations.c.ended)


@dataclass(frozen=True, slots=True)
class Job:
    """One operation."""

    id: str
    kind: str
    """What is done: `rewrite`, `transfer`, `undo` …"""
    asked: str
    """What exactly, as JSON."""
    undoes: str
    """The operation that this one undoes; empty for all others."""
    door: str
    actor: str
    note: str
    since: int = 0
    """The last entry before it began."""
    begun: int = 0
    """In microseconds since 1970."""
    ended: int = 0
    """The same; 0 while something is left to do."""
    total: int = 0
    """How many records it is about, counted beforehand; 0 if that is not known."""
    maker: str = ""
    """Whose it is: who began it, or who made the token with which it was begun, in the form in which all spellings of
    their handle meet. Empty if that is not known, because it comes from an old backup."""
    done: int = 0
    """How many entries it has made."""


class JobSteps:
    """Which entries belong to an operation."""

    def __init__(self, rows: Iterable[tuple[int, int]] = (), until: int = 0) -> None:
        """Each first entry, and how many it is the first of."""
        self._rows = sorted(set(rows))
        self._firsts = [first for first, _ in self._rows]
        self.until = until
        """Up to which entry of the ledger it is known that there are no others."""

    def __contains__(self, seq: int) -> bool:
        place = bisect_right(self._firsts, seq) - 1
        return place >= 0 and seq < self._rows[place][0] + self._rows[place][1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return sum(count for _, count in self._rows)

    def with_step(self, first: int, count: int) -> "JobSteps":
        """The same and one step more."""
        return JobSteps([*self._rows, (first, count)], self.until) if count else self

    def refresh(self, reading: LogReader, identity: str) -> "JobSteps":
        """The same and what others have done meanwhile."""
        return JobSteps([*self._rows, *reading.steps(identity, self.until)], reading.size)

    def newest_first(self) -> Iterator[int]:
        """All entries, from the last back."""
        for first, count in reversed(self._rows):
            yield from range(first + count - 1, first - 1, -1)


def start(log: Log, operation: Job) -> Job:
    """Write down that an operation begins; nothing of it is done yet.

    With one that undoes another the other ends: it takes no more steps. If somebody is undoing that already, theirs is
    the answer.
    """
    with log.store.writing() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(log.statements.lock_head)
        since = int(connection.execute(select(head.c.seq)).scalar_one())
        begun = replace(operation, since=since, begun=log.clock.now(), ended=0, done=0)
        if operation.undoes:
            running = select(operations).where(operations.c.undoes == operation.undoes, operations.c.ended == 0)
            if (found := connection.execute(running).first()) is not None:
                return _load_jobs(connection, [found])[0]
            meant = update(operations).where(operations.c.id == operation.undoes, operations.c.ended == 0)
            connection.execute(meant.values(ended=begun.begun))
        row = {column.name: getattr(begun, column.name) for column in operations.columns}
        connection.execute(insert(operations).values(row))
    return begun


def finish(log: Log, identity: str) -> None:
    """Write down that nothing is left to do."""
    with log.store.writing() as connection:
        connection.execute(update(operations).where(operations.c.id == identity).values(ended=log.clock.now()))


def discard(log: Log, identity: str) -> None:
    """Remove an operation of which nothing was done."""
    with log.store.writing() as connection:
        is_step = exists().where(steps.c.operation == identity)
        connection.execute(delete(operations).where(operations.c.id == identity, ~is_step))


def find(log: Log, identity: str) -> Job | None:
    """The operation with this name."""
    with log.store.reading() as connection:
        found = connection.execute(select(operations).where(operations.c.id == identity)).one_or_none()
        return None if found is None else _load_jobs(connection, [found])[0]


@dataclass(frozen=True, slots=True)
class UndoJob:
    """An operation that undoes another."""

    id: str
    undoes: str
    ended: bool


def list_undos(log: Log) -> list[UndoJob]:
    """All operations that undo another."""
    with log.store.reading() as connection:
        found = connection.execute(select(*_UNDO_COLUMNS).where(operations.c.undoes != ""))
        return [UndoJob(row.id, row.undoes, row.ended > 0) for row in found]


def find_undos(log: Log, identities: Collection[str]) -> list[UndoJob]:
    """The operations that undo some others, and those that undo these, and so on."""
    found = (
        select(*_UNDO_COLUMNS).where(operations.c.undoes.in_([name for name in identities if name])).cte(recursive=True)
    )
    found = found.union(select(*_UNDO_COLUMNS).where(operations.c.undoes == found.c.id))
    with log.store.reading() as connection:
        return [UndoJob(row.id, row.undoes, row.ended > 0) for row in connection.execute(select(found))]


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Operations of somebody."""

    actor: str
    """Those that they began under this name, spelt so."""
    issuers: tuple[str, ...] = ()
    """And those that are somebody's under one of these, however that is spelt."""

    def owns(self, operation: Job) -> bool:
        """Whether an operation is one of these."""
        return operation.actor == self.actor or bool(operation.maker and operation.maker in self.issuers)


def newest_first(
    log: Log, before: tuple[int, str] | None = None, owner: JobOwner | None = None, at_once: int = PAGE
) -> Iterator[Job]:
    """All operations, or somebody's, the one that began last first; they are read so many at a time.

    With `before` those behind one, of which that is the beginning and the name.
    """
    while True:
        with log.store.reading() as connection:
            wanted = [_newest_query(each, before, at_once) for each in _conditions(owner)]
            rows = {_cursor(row): row for each in wanted for row in connection.execute(each)}
            found = _load_jobs(connection, [rows[place] for place in sorted(rows, reverse=True)[:at_once]])
        yield from found
        if len(rows) < at_once:
            return
        before = _cursor(found[-1])


def _conditions(owner: JobOwner | None) -> list[ColumnElement[bool]]:
    """What somebody's operations meet one of; an index answers each, and none would answer all together."""
    if owner is None:
        return [true()]
    return [operations.c.actor == owner.actor, *[operations.c.maker == maker for maker in owner.issuers if maker]]


def _newest_query(wanted: ColumnElement[bool], before: tuple[int, str] | None, limit: int) -> Select[Any]:
    begun, identity = operations.c.begun, operations.c.id
    found = select(operations).where(wanted).order_by(begun.desc(), identity.desc()).limit(limit)
    return found if before is None else found.where(tuple_(begun, identity) < tuple_(*before))


def _cursor(row: Any) -> tuple[int, str]:
    return row.begun, row.id


def load_steps(log: Log, identity: str) -> JobSteps:
    """Which entries belong to an operation."""
    with log.store.reading() as connection:
        rows = connection.execute(select(steps.c.seq, steps.c.count).where(steps.c.operation == identity)).all()
    return JobSteps((row.seq, row[1]) for row in rows)


def _load_jobs(connection: Connection, rows: Sequence[Any]) -> list[Job]:
    names = [row.id for row in rows]
    wanted = select(steps.c.operation, func.sum(steps.c.count)).where(steps.c.operation.in_(names))
    done = {name: int(count) for name, count in connection.execute(wanted.group_by(steps.c.operation))}
    return [replace(Job(*row), done=done.get(row.id, 0)) for row in rows]
