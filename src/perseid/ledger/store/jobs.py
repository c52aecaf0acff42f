"""Jobs: changes of many records with parameters, progress and the entries that belong to them.

A job runs in steps, each a commit of its own. The row of a step is written by the commit itself (`Append.job`,
`Mint.job`), so every entry of a job is recorded, and an interrupted job can be resumed. Notes could not record this,
because callers can write any note. Changes of a job itself are requests to the ledger, too (`StartJob` …).
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, delete, exists, func, insert, select, true, tuple_, update

from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.requests import StateChange

from .tables import jobs, steps

PAGE: Final = 1_000
"""Jobs read at a time."""

_UNDO_COLUMNS: Final = (jobs.c.id, jobs.c.undoes, jobs.c.ended_at)


@dataclass(frozen=True, slots=True)
class Job:
    """One job. The fields are the columns of the table `jobs`."""

    id: str
    kind: str
    """`rewrite`, `transfer`, `undo` …"""
    parameters: str
    """The parameters, as JSON."""
    undoes: str
    """The job that this one undoes; empty for all others."""
    interface: str
    actor: str
    note: str
    since: int = 0
    """The last entry before the start."""
    started_at: int = 0
    """The start, in microseconds since 1970."""
    ended_at: int = 0
    """The end, in microseconds since 1970; 0 while the job is not finished."""
    total: int = 0
    """How many records it will change, counted beforehand; 0 if unknown."""
    owner: str = ""
    """The owner: the actor, or the issuer of the actor's token, in normalized spelling. Empty if unknown, because the
    job comes from an old backup."""
    done: int = 0
    """How many entries it has appended."""


class JobSteps:
    """The entries of a job."""

    def __init__(self, rows: Iterable[tuple[int, int]] = (), until: int = 0) -> None:
        """`rows` are (first entry, count)."""
        self._rows = sorted(set(rows))
        self._firsts = [first for first, _ in self._rows]
        self.until = until
        """The entry of the ledger up to which the steps are complete."""

    def __contains__(self, seq: int) -> bool:
        position = bisect_right(self._firsts, seq) - 1
        return position >= 0 and seq < self._rows[position][0] + self._rows[position][1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return sum(count for _, count in self._rows)

    def with_step(self, first: int, count: int) -> "JobSteps":
        """Return a copy with another step."""
        return JobSteps([*self._rows, (first, count)], self.until) if count else self

    def merge(self, later: "JobSteps") -> "JobSteps":
        """Return a copy with those that were found later."""
        return JobSteps([*self._rows, *later], later.until)

    def refresh(self, reader: LogReader, job_id: str) -> "JobSteps":
        """Return a copy with the steps that other processes have added."""
        return JobSteps([*self._rows, *reader.steps(job_id, self.until)], reader.size)

    def newest_first(self) -> Iterator[int]:
        """Yield all entries, the last one first."""
        for first, count in reversed(self._rows):
            yield from range(first + count - 1, first - 1, -1)


@dataclass(frozen=True, slots=True)
class StartJob(StateChange):
    """Record the start of a job. The result is the job.

    A job that undoes another one ends that one: it accepts no more steps. If an undo of it is already running, that one
    is the result.
    """

    job: Job

    def apply(self, connection: Connection, head: int, at: int) -> Job:
        job = self.job
        is_known = jobs.c.id == job.id  # repeated
        if job.undoes:
            is_known |= (jobs.c.undoes == job.undoes) & (jobs.c.ended_at == 0)
        if (row := connection.execute(select(jobs).where(is_known)).first()) is not None:
            return _load_jobs(connection, [row])[0]
        if job.undoes:
            undone = update(jobs).where(jobs.c.id == job.undoes, jobs.c.ended_at == 0)
            connection.execute(undone.values(ended_at=at))
        started = replace(job, since=head, started_at=at, ended_at=0, done=0)
        values = {column.name: getattr(started, column.name) for column in jobs.columns}
        connection.execute(insert(jobs).values(values))
        return started


@dataclass(frozen=True, slots=True)
class EndJob(StateChange):
    """Record the end of a job, unless it has ended."""

    job_id: str
    discard: bool = False
    """Whether to remove the job if it has no steps."""

    def apply(self, connection: Connection, head: int, at: int) -> None:  # noqa: ARG002 - of every change
        if self.discard:
            is_step = exists().where(steps.c.job == self.job_id)
            connection.execute(delete(jobs).where(jobs.c.id == self.job_id, ~is_step))
        unfinished = update(jobs).where(jobs.c.id == self.job_id, jobs.c.ended_at == 0)
        connection.execute(unfinished.values(ended_at=at))


@dataclass(frozen=True, slots=True)
class UndoJob:
    """A job that undoes another one."""

    id: str
    undoes: str
    ended: bool


@dataclass(frozen=True, slots=True)
class ChangeJob(StateChange):
    """End a job, or open it again, with other parameters. The result is whether it is so now.

    That does not say which request did it: this one, when it was sent before, or another one with the same intent.
    """

    job_id: str
    ended_at: int
    """When it ended, as far as is known."""
    parameters: str
    ended: bool
    """Whether it has ended then."""
    undos: tuple[UndoJob, ...] | None = None
    """Its undos, transitively, as far as is known; None if they do not matter."""

    def apply(self, connection: Connection, head: int, at: int) -> bool:  # noqa: ARG002 - of every change
        is_changed = jobs.c.ended_at > 0 if self.ended else jobs.c.ended_at == 0
        changed = select(jobs.c.id).where(jobs.c.id == self.job_id, jobs.c.parameters == self.parameters, is_changed)
        if connection.execute(changed).first() is not None:
            return True  # repeated
        if self.undos is not None and set(self.undos) != set(_find_undos(connection, [self.job_id])):
            return False
        same = update(jobs).where(jobs.c.id == self.job_id, jobs.c.ended_at == self.ended_at)
        new = same.values(parameters=self.parameters, ended_at=at if self.ended else 0)
        return connection.execute(new).rowcount == 1


def find(log: Log, job_id: str) -> Job | None:
    """Find a job by its id."""
    with log.store.reading() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
        return None if row is None else _load_jobs(connection, [row])[0]


def list_undos(log: Log) -> list[UndoJob]:
    """Return all jobs that undo another one."""
    with log.store.reading() as connection:
        rows = connection.execute(select(*_UNDO_COLUMNS).where(jobs.c.undoes != ""))
        return [UndoJob(row.id, row.undoes, row.ended_at > 0) for row in rows]


def find_undos(log: Log, job_ids: Collection[str]) -> list[UndoJob]:
    """Return the jobs that undo the given ones, those that undo these, and so on."""
    with log.store.reading() as connection:
        return _find_undos(connection, job_ids)


def _find_undos(connection: Connection, job_ids: Collection[str]) -> list[UndoJob]:
    undos = select(*_UNDO_COLUMNS).where(jobs.c.undoes.in_([name for name in job_ids if name])).cte(recursive=True)
    undos = undos.union(select(*_UNDO_COLUMNS).where(jobs.c.undoes == undos.c.id))
    return [UndoJob(row.id, row.undoes, row.ended_at > 0) for row in connection.execute(select(undos))]


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Selects the jobs of an owner."""

    actor: str
    """Jobs started by this actor, in this spelling."""
    issuers: tuple[str, ...] = ()
    """Jobs with one of these owners, in normalized spelling."""

    def owns(self, job: Job) -> bool:
        return job.actor == self.actor or bool(job.owner and job.owner in self.issuers)


def newest_first(
    log: Log,
    before: tuple[int, str] | None = None,
    owner: JobOwner | None = None,
    page_size: int = PAGE,
    *,
    kind: str = "",
) -> Iterator[Job]:
    """Yield all jobs, or those of an owner or kind, the latest start first; `page_size` are read at a time.

    `before` is the (start, id) of the last job already returned.
    """
    while True:
        with log.store.reading() as connection:
            conditions = [condition & (jobs.c.kind == kind if kind else true()) for condition in _conditions(owner)]
            queries = [_newest_query(condition, before, page_size) for condition in conditions]
            rows = {_cursor(row): row for query in queries for row in connection.execute(query)}
            page = _load_jobs(connection, [rows[cursor] for cursor in sorted(rows, reverse=True)[:page_size]])
        yield from page
        if len(rows) < page_size:
            return
        before = _cursor(page[-1])


def _conditions(owner: JobOwner | None) -> list[ColumnElement[bool]]:
    """Return the alternative conditions for an owner's jobs; an index serves each, but not all together."""
    if owner is None:
        return [true()]
    return [jobs.c.actor == owner.actor, *[jobs.c.owner == issuer for issuer in owner.issuers if issuer]]


def _newest_query(condition: ColumnElement[bool], before: tuple[int, str] | None, limit: int) -> Select[Any]:
    started_at, job_id = jobs.c.started_at, jobs.c.id
    query = select(jobs).where(condition).order_by(started_at.desc(), job_id.desc()).limit(limit)
    return query if before is None else query.where(tuple_(started_at, job_id) < tuple_(*before))


def _cursor(row: Any) -> tuple[int, str]:
    return row.started_at, row.id


def load_steps(log: Log, job_id: str) -> JobSteps:
    """Load the entries of a job."""
    with log.store.reading() as connection:
        rows = connection.execute(select(steps.c.seq, steps.c.count).where(steps.c.job == job_id)).all()
    return JobSteps((row.seq, row[1]) for row in rows)


def _load_jobs(connection: Connection, rows: Sequence[Any]) -> list[Job]:
    names = [row.id for row in rows]
    query = select(steps.c.job, func.sum(steps.c.count)).where(steps.c.job.in_(names))
    done = {name: int(count) for name, count in connection.execute(query.group_by(steps.c.job))}
    return [replace(Job(*row), done=done.get(row.id, 0)) for row in rows]
