"""The log: entries appended once, in order, numbered without gaps, and the tree over them.

Appending happens in groups, one transaction each, so that many callers share one sync of the disk. Within a group
every request succeeds or fails alone. Where the outcome of a transaction is unknown because the connection was lost,
it is settled before anybody is answered: the next attempt locks the head, which the lost one can no longer hold, and
looks whether the entry at the number in question carries this commit's token.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, insert

from .change import Change
from .checkpoint import Signer
from .clock import CheckedClock
from .commit import Commit
from .errors import Contention, LedgerError, OutcomeUnknown, TooBusy
from .reading import Reading
from .requests import Outcome, Request
from .schema import compile_statements, head, ledger, views
from .store import Store
from .verification import EMPTY_ROOT

MAX_GROUP: Final = 10_000
"""The most requests in one commit: what one transaction may hold in memory, and how long others wait for the head."""

ATTEMPTS: Final = 5
"""How often a commit is tried again that others stood in the way of, each time after up to five seconds of waiting."""

TOKEN_LENGTH: Final = 16
SQL_VIEWS: Final = ("records", "targets")


@dataclass(frozen=True, slots=True)
class Committed:
    """What one commit did."""

    outcomes: list[Outcome]
    """For each request of the group."""
    changes: list[Change]
    """The entries, as views are told of them."""
    erased: bool
    """Whether data was erased."""


class Log:
    """The log of one ledger in one store. One thread at a time appends; each reads in a `reading` of its own."""

    def __init__(self, store: Store, clock: CheckedClock, random: Callable[[int], bytes]) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self.statements = compile_statements(store.dialect)
        self._traces_left = False  # of erased data, because a reader held an earlier state

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

    def commit(self, group: Sequence[Request], also: Callable[[Connection], None] | None = None) -> Committed:
        """The same, with what views must be told; `also` is done in the same transaction."""
        if len(group) > MAX_GROUP:
            raise ValueError(f"a group has at most {MAX_GROUP:,} requests, not {len(group):,}")
        token = self.random(TOKEN_LENGTH)
        done: tuple[int, Committed] | None = None  # of an attempt whose outcome is not known
        problem: LedgerError | None = None
        for _ in range(ATTEMPTS):
            try:
                with self.store.writing() as connection:
                    cursor = connection.connection.cursor()
                    commit = Commit(cursor, self.statements, self.clock, self.random, token)
                    if done is None or not commit.was_committed(done[0]):
                        outcomes = [commit.take(request) for request in group]
                        commit.finish()
                        if also is not None:
                            also(connection)
                        done = (commit.first, Committed(outcomes, commit.changes, commit.erased))
                break
            except (Contention, OutcomeUnknown) as error:
                problem = error
        else:
            raise TooBusy("the ledger is held by another writer; nothing was written, try again shortly") from problem
        if done[1].erased or self._traces_left:
            self._traces_left = not self.store.forget_deleted()
        return done[1]

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """One state of the log, to read and prove from."""
        with self.store.reading() as connection:
            yield Reading(connection, self.statements)
