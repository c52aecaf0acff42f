"""The log: append-only entries, numbered without gaps, the Merkle tree over them, and permanent redaction.

Requests are committed in groups, one transaction each, so that many callers share one disk sync. Within a group every
request succeeds or fails alone, except that a database error or a failed `StateChange` fails all. If the connection is
lost during a commit, the outcome is settled before any caller gets a result: the next attempt locks the head, which the
lost one can no longer hold, and checks whether the entry at that number has this commit's token.

The redaction of a value is an entry that says who redacted it and why. All values in the record's history with the same
data are redacted, whatever their time, TTL, permissions or index. The tree contains only commitments and does not
change.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, insert, update

from perseid.ledger.errors import Contention, LedgerError, LostEntries, OutcomeUnknown, StoreUnavailable, TooBusy
from perseid.ledger.merkle import Signer
from perseid.ledger.store import OLDEST_PROGRAM
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import clear_entry_cache, compile_statements, fetch_one, head, ledger, views
from perseid.proof.verifier import EMPTY_ROOT
from perseid.records.record import Value

from .clock import CheckedClock
from .commit import Commit, KnownRecords, check_mode
from .entry import Action, Change, Draft, Entry, Slot
from .reader import LogReader
from .requests import Append, Outcome, Request, StateChange

MAX_GROUP: Final = 10_000
"""The maximum number of requests in a commit: bounds memory, and how long others wait for the head."""

_RETRY_DELAYS: Final = (0.0, 0.05, 0.1, 0.2, 0.5, *(1.0 for _ in range(45)))
"""Seconds before each new attempt: enough for a database restart, and soon after another server has taken over."""

_RETRY_SECONDS: Final = 60.0
"""Seconds after which there are no more attempts, however long each of them takes to connect."""

_MAX_DELAY: Final = 0.2
"""The longest of these delays if nothing was written for certain: the caller gets an error soon and can retry. Each
attempt also waits up to five seconds for the head."""

MAX_EARLIER: Final = 100
"""Entries of other nodes that a commit reads for the views: more than arrive between two commits of a busy node."""

TOKEN_LENGTH: Final = 16
LARGE_GROUP: Final = 250
"""Entries in a commit from which batch optimizations pay off: as many as a step of a job has."""
SQL_VIEWS: Final = ("records", "search")


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of one commit."""

    outcomes: list[Outcome]
    """One for each request of the group."""
    changes: list[Change]
    """The entries, in the form that views use."""
    erased: bool
    """Whether data was redacted."""
    earlier: list[Change] = field(default_factory=list)
    """The entries of other nodes between `Log.known_end` and these, unless there are many."""


class UnsettledCommit(OutcomeUnknown):
    """A commit whose outcome is unknown and must be settled."""

    def __init__(self, attempt: tuple[int, CommitResult]) -> None:
        super().__init__("the database connection was lost during a commit")
        self.attempt = attempt


class Log:
    """The log of one ledger in one store. One thread at a time appends; each reader uses its own `open_reader()`."""

    def __init__(self, store: Store, clock: CheckedClock, random: Callable[[int], bytes]) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self.statements = compile_statements(store.dialect)
        self.has_traces = store.dialect == "sqlite"
        """Whether redacted data may have left traces: a reader held an earlier state, or a process was killed."""
        self._known: KnownRecords | None = None
        self.known_end: tuple[int, bytes] | None = None
        """An entry that the ledger must have, with its leaf hash: the last one that this process knows of. Otherwise
        nothing is appended."""
        self.journal: Callable[[bytes, int, list[Outcome]], None] | None = None
        """Called with the token of a commit, its first entry and the outcomes, before it is committed."""

    def create(self, signer: Signer) -> None:
        """Create a ledger in an empty store. The signer's name is the log's origin; its key signs checkpoints."""
        identity = self.random(TOKEN_LENGTH)
        with self.store.writing() as connection:
            connection.execute(insert(ledger).values(id=identity, origin=signer.name, signer=str(signer.public)))
            connection.execute(insert(head).values(one=1, seq=0, at=0, frontier=b"", oldest_program=OLDEST_PROGRAM))
            rows = [{"name": name, "ledger": identity, "seq": 0, "leaf": EMPTY_ROOT} for name in SQL_VIEWS]
            connection.execute(insert(views), rows)

    def append(self, group: Sequence[Request]) -> list[Outcome]:
        """Execute a group of requests in one durable transaction."""
        return self.commit(group).outcomes

    def commit(self, group: Sequence[Request], callback: Callable[[Connection], None] | None = None) -> CommitResult:
        """Execute a group of requests; also return what views need. `callback` runs in the same transaction."""
        if len(group) > MAX_GROUP:
            raise ValueError(f"too many requests in a group: {len(group):,}, maximum {MAX_GROUP:,}")
        token = self.random(TOKEN_LENGTH)
        unsettled: tuple[int, CommitResult] | None = None  # first entry and result
        delays = retry_delays()
        committed: CommitResult | None = None
        while committed is None:
            try:
                committed = self._attempt(group, callback, token, unsettled)
            except (Contention, OutcomeUnknown, StoreUnavailable) as problem:
                if isinstance(problem, StoreUnavailable) and (unsettled is None or isinstance(problem, LostEntries)):
                    raise
                if isinstance(problem, UnsettledCommit):
                    unsettled = problem.attempt
                pause = next(delays, None)
                if pause is None or (unsettled is None and pause > _MAX_DELAY):
                    raise self._retries_exhausted(problem, is_settled=unsettled is None) from problem
                time.sleep(pause)
        if committed.erased:
            clear_entry_cache()
            self.has_traces = True
            if self.store.dialect == "sqlite":
                with suppress(Exception):  # the commit has succeeded; the traces are removed later
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
            with self._writing(group, callback) as (cursor, connection):
                known, self._known = self._known, None
                commit = Commit(cursor, self.statements, self.clock, self.random, token, connection, known)
                if known is None or not commit.follows(known):
                    commit.require(self.known_end)
                earlier = self._find_earlier(cursor, commit)
                if unsettled is not None and commit.was_committed(unsettled[0]):
                    return unsettled[1]
                commit.require_changes()
                entries = sum([len(each.drafts) if isinstance(each, Append) else 1 for each in group])
                with gc_paused():
                    if entries >= LARGE_GROUP:
                        commit.prefetch(group)
                    outcomes = [commit.apply(request) for request in group]
                    commit.write()
                if callback is not None and connection is not None:
                    callback(connection)
                if self.journal is not None:
                    self.journal(token, commit.first, outcomes)
                attempt = commit.first, CommitResult(outcomes, commit.changes, commit.erased, earlier)
            self._known = commit.known()
            return attempt[1]
        except OutcomeUnknown as error:
            # Nothing can have been committed before everything was written.
            if attempt is None:
                raise
            raise UnsettledCommit(attempt) from error

    def _find_earlier(self, cursor: Any, commit: Commit) -> list[Change]:
        """Read what other nodes have appended, so that views need not ask for it after the commit."""
        if self.known_end is None:
            return []
        count = commit.first - 1 - self.known_end[0]
        return LogReader(cursor, self.statements).changes(self.known_end[0], count) if 0 < count <= MAX_EARLIER else []

    def was_committed(self, token: bytes, first: int) -> bool:
        """Whether a commit with this token, starting at entry `first`, has happened. Waits until none is under way."""
        with self.store.writing_cursor() as cursor:
            cursor.execute(self.statements.lock_head)
            cursor.fetchall()
            cursor.execute(self.statements.token, (first,))
            return [row[0] for row in cursor.fetchall()] == [token]

    @contextmanager
    def _writing(
        self, group: Sequence[Request], callback: Callable[[Connection], None] | None
    ) -> Iterator[tuple[Any, Connection | None]]:
        """Open a transaction: a cursor, and the connection if anything needs it."""
        if callback is None and not any(isinstance(each, StateChange) for each in group):
            with self.store.writing_cursor() as cursor:
                yield cursor, None
        else:
            with self.store.writing() as connection:
                yield connection.connection.cursor(), connection

    @staticmethod
    def _retries_exhausted(problem: LedgerError, *, is_settled: bool) -> LedgerError:
        if not is_settled:
            return OutcomeUnknown(
                "the database connection was lost during a commit, and the outcome is unknown; "
                "check whether the change was made before you retry"
            )
        if isinstance(problem, OutcomeUnknown):
            return StoreUnavailable(f"{problem}. Nothing was written; retry")
        return TooBusy(f"{problem}. Nothing was written; retry")

    def check_clock(self) -> None:
        """Raise `ClockError` if no entry could be dated now."""
        with self.open_reader() as reader:
            size = reader.size
            self.clock.date(reader.entry(size).at if size else None)

    def check_mode(self) -> None:
        """Raise `ReadOnlyMode` or `OutdatedProgram` if changes are refused for all callers."""
        with self.store.reading_cursor() as cursor:
            cursor.execute(self.statements.mode)
            check_mode(*fetch_one(cursor))

    def read_only(self) -> str | None:
        """Why all changes are refused, which may be empty; None if they are accepted."""
        with self.store.reading_cursor() as cursor:
            cursor.execute(self.statements.mode)
            reason: str | None = fetch_one(cursor)[0]
        return reason

    def set_read_only(self, reason: str | None) -> None:
        """Refuse all changes, with a reason, or accept them again (None), on all nodes.

        Commits in progress have ended when this returns.
        """
        with self.store.writing() as connection:
            connection.execute(update(head).values(read_only=reason))

    def erase_traces(self) -> None:
        """Remove traces of redacted data, if any; what a reader still sees is removed by a later call."""
        if self.has_traces:
            self.has_traces = not self.store.purge_deleted()

    @contextmanager
    def open_reader(self) -> Iterator[LogReader]:
        """Open a consistent snapshot of the log to read and prove from."""
        with self.store.reading_cursor() as cursor:
            yield LogReader(cursor, self.statements)


def retry_delays() -> Iterator[float]:
    """Yield the delays before each attempt to settle a commit."""
    end = time.monotonic() + _RETRY_SECONDS
    for delay in _RETRY_DELAYS:
        if time.monotonic() > end:
            return
        yield delay


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection during a commit.

    A commit creates about ten objects per entry that all live until its end; scanning them repeatedly takes a seventh
    of the time of a large one.
    """
    pause = gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


class NothingToRedact(LedgerError):
    """The value does not exist, or is still part of the record."""


def build_redaction(reader: LogReader, key: bytes, seq: int, index: int, by: tuple[str, str], reason: str) -> Append:
    """Build the request that redacts the value with `index` at entry `seq`, and all copies of its data.

    `by` is (interface, actor). A value that the record still has is not redacted: remove or replace it first.
    """
    if seq > reader.size:
        raise NothingToRedact(f"entry {seq} does not exist; the last one is {reader.size}")
    latest = reader.record(key)
    entry = reader.as_of(key, seq)
    if latest is None or entry is None:
        raise NothingToRedact(f"the record had no values at entry {seq}")
    data = _value_data(entry, index)
    copies: dict[int, frozenset[bytes]] = {}
    for one in reader.history(key):
        commitments = frozenset(slot.commitment for slot in one.values if _contains_data(slot, data))
        if commitments:
            copies[one.seq] = commitments
    if latest.seq in copies:
        message = f"value {index} is still in the current record of {latest.handle}; remove or replace it first"
        raise NothingToRedact(message)
    note = f"value {index} of entry {entry.seq}: {reason}"
    draft = Draft(Action.REDACT, latest.state, latest.handle, *by, note, latest.record(), latest.exact)
    return Append(draft, {key: latest.seq}, copies)


def _value_data(entry: Entry, index: int) -> bytes:
    for value in entry.record():
        if value.index == index:
            return value.data
    raise NothingToRedact(f"entry {entry.seq} of {entry.handle} has no value {index}, or it is already redacted")


def _contains_data(slot: Slot, data: bytes) -> bool:
    return slot.content is not None and data in slot.content and Value.from_bytes(slot.content, 0).data == data
