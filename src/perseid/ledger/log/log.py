"""The log: entries appended once, in order, numbered without gaps, and the tree over them.

Appending happens in groups, one transaction each, so that many callers share one sync of the disk. Within a group
every request succeeds or fails alone. Where the outcome of a transaction is unknown because the connection was lost,
it is settled before anybody is answered: the next attempt locks the head, which the lost one can no longer hold, and
looks whether the entry at the number in question carries this commit's token.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, insert

from perseid.ledger.errors import Contention, LedgerError, OutcomeUnknown, TooBusy
from perseid.ledger.merkle import Signer
from perseid.ledger.store.changes import Change
from perseid.ledger.store.rows import clear_entry_cache
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import compile_statements, head, ledger, views
from perseid.proof.verifier import EMPTY_ROOT

from .clock import CheckedClock
from .commit import Commit
from .reader import LogReader
from .requests import Outcome, Request

MAX_GROUP: Final = 10_000
"""The most requests in one commit: what one transaction may hold in memory, and how long others wait for the head."""

_RETRY_DELAYS: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0)
"""Seconds before each new attempt: enough for a database that is started again."""

_MAX_DELAY: Final = 0.2
"""The longest of these pauses where it is known that nothing was written: then the caller is told soon, and may try
again. Each attempt waits up to five seconds for the head besides."""

TOKEN_LENGTH: Final = 16
LARGE_GROUP: Final = 500
"""Requests in a commit from which on it is worth the trouble to do things for all of them at once."""
SQL_VIEWS: Final = ("records", "targets")


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What one commit did."""

    outcomes: list[Outcome]
    """For each request of the group."""
    changes: list[Change]
    """The entries, as views are told of them."""
    erased: bool
    """Whether data was erased."""


class UnsettledCommit(OutcomeUnknown):
    """A commit whose end was not heard of, and which must be settled."""

    def __init__(self, attempt: tuple[int, CommitResult]) -> None:
        super().__init__("the connection to the database was lost during a commit")
        self.attempt = attempt


class Log:
    """The log of one ledger in one store. One thread at a time appends; each reads in a `reading` of its own."""

    def __init__(self, store: Store, clock: CheckedClock, random: Callable[[int], bytes]) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self.statements = compile_statements(store.dialect)
        self.has_traces = store.dialect == "sqlite"
        """Whether erased data may have left traces: a reader held an earlier state, or somebody was killed."""

    def create(self, signer: Signer) -> None:
        """Begin a ledger in an empty store. The signer's name is the log's origin; its key signs checkpoints."""
        identity = self.random(TOKEN_LENGTH)
        with self.store.writing() as connection:
            connection.execute(insert(ledger).values(id=identity, origin=signer.name, signer=str(signer.public)))
            connection.execute(insert(head).values(one=1, seq=0, at=0, frontier=b""))
            rows = [{"name": name, "ledger": identity, "seq": 0, "leaf": EMPTY_ROOT} for name in SQL_VIEWS]
            connection.execute(insert(views), rows)

    def append(self, group: Sequence[Request]) -> list[Outcome]:
        """Carry out a group of requests in one transaction; when this returns, what was appended is on the disk."""
        return self.commit(group).outcomes

    def commit(self, group: Sequence[Request], callback: Callable[[Connection], None] | None = None) -> CommitResult:
        """The same, with what views must be told; `also` is done in the same transaction."""
        if len(group) > MAX_GROUP:
            raise ValueError(f"a group has at most {MAX_GROUP:,} requests, not {len(group):,}")
        token = self.random(TOKEN_LENGTH)
        unsettled: tuple[int, CommitResult] | None = None  # an attempt whose end was not heard of, and its first entry
        waits = retry_delays()
        committed: CommitResult | None = None
        while committed is None:
            try:
                committed = self._attempt(group, callback, token, unsettled)
            except (Contention, OutcomeUnknown) as problem:
                if isinstance(problem, UnsettledCommit):
                    unsettled = problem.attempt
                pause = next(waits, None)
                if pause is None or (unsettled is None and pause > _MAX_DELAY):
                    raise self._retries_exhausted(unsettled is not None) from problem
                time.sleep(pause)
        if committed.erased:
            clear_entry_cache()
            self.has_traces = True
            if self.store.dialect == "sqlite":
                with suppress(Exception):  # it is committed, whatever happens now; the traces are removed later
                    self.erase_traces()
        return committed

    def _attempt(
        self,
        group: Sequence[Request],
        callback: Callable[[Connection], None] | None,
        token: bytes,
        unsettled: tuple[int, CommitResult] | None,
    ) -> CommitResult:
        attempt: tuple[int, CommitResult] | None = None
        try:
            with self._writing(callback) as (cursor, finish):
                commit = Commit(cursor, self.statements, self.clock, self.random, token)
                if unsettled is not None and commit.was_committed(unsettled[0]):
                    return unsettled[1]
                with gc_paused(len(group)):
                    if len(group) >= LARGE_GROUP:
                        commit.prefetch(group)
                    outcomes = [commit.apply(request) for request in group]
                    commit.finish()
                finish()
                attempt = commit.first, CommitResult(outcomes, commit.changes, commit.erased)
            return attempt[1]
        except OutcomeUnknown as error:
            # Before everything was written nothing can have been committed.
            if attempt is None:
                raise
            raise UnsettledCommit(attempt) from error

    @contextmanager
    def _writing(self, callback: Callable[[Connection], None] | None) -> Iterator[tuple[Any, Callable[[], None]]]:
        """A transaction: a cursor to write with, and what is to be done when everything is written."""
        if callback is None:
            with self.store.writing_cursor() as cursor:
                yield cursor, _no_op
        else:
            with self.store.writing() as connection:
                yield connection.connection.cursor(), partial(callback, connection)

    @staticmethod
    def _retries_exhausted(unsettled: bool) -> LedgerError:
        if unsettled:
            return OutcomeUnknown(
                "the connection to the database was lost during a commit, and it cannot be asked whether that was "
                "written; look before you try again"
            )
        return TooBusy("the ledger is held by another writer, or cannot be reached; nothing was written, try again")

    def erase_traces(self) -> None:
        """Remove the traces of what was erased, if there are any; what a reader still sees goes the next time."""
        if self.has_traces:
            self.has_traces = not self.store.purge_deleted()

    @contextmanager
    def reading(self) -> Iterator[LogReader]:
        """One state of the log, to read and prove from."""
        with self.store.reading_cursor() as cursor:
            yield LogReader(cursor, self.statements)


def retry_delays() -> Iterator[float]:
    """How long to wait before each new attempt to learn what became of a commit; they end when it is given up."""
    return iter(_RETRY_DELAYS)


def _no_op() -> None:
    """What is to be done besides, mostly."""


@contextmanager
def gc_paused(requests: int) -> Iterator[None]:
    """Do without the collection of garbage during a large commit.

    It makes some ten objects a request that all live until the end, and the collector would look through them over and
    over: a seventh of the time.
    """
    retry_delays = requests >= LARGE_GROUP and gc.isenabled()
    if retry_delays:
        gc.disable()
    try:
        yield
    finally:
        if retry_delays:
            gc.enable()
