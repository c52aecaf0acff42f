"""One transaction that changes the log. It locks the head with its first statement.

Changes are collected and written in a few large statements at the end, entries and SQL views together. Later requests
of the same transaction see what earlier ones did; a request that is decided here reads through `CommitReader`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import DBAPICursor

from perseid.ledger.errors import (
    CorruptView,
    JobEnded,
    LeaseClosed,
    LostEntries,
    OutdatedProgram,
    PreconditionFailed,
    ReadOnlyMode,
)
from perseid.ledger.merkle import Frontier
from perseid.ledger.store import TABLES_VERSION
from perseid.ledger.store.tables import (
    EntryRow,
    Statements,
    entry_from_row,
    fetch_one,
    idempotency_from_row,
    insert_rows,
)
from perseid.ledger.views.search_keys import index_keys
from perseid.records.binary import MAX_BYTES

from .clock import CheckedClock
from .entry import Change, Draft, Entry, Kind, buffered_random, encode_entry, find_oversized, next_jump
from .reader import LogReader, find_latest, next_number
from .requests import (
    KEY_LIFETIME,
    MAX_BODY,
    Append,
    Appended,
    Changed,
    Decision,
    Execute,
    Executed,
    Failed,
    IdempotentRequest,
    LeafHashes,
    Lease,
    Leased,
    Outcome,
    Preconditions,
    Redactions,
    Remember,
    Remembered,
    RepeatedRequest,
    Request,
    StateChange,
)

_SECRET_TYPE = b"HS_SECKEY"
_TYPE_AT = 14  # offset of the type's length in an encoded value
_PERMISSIONS_AT = 13
_PUBLIC_READ = 0x02
_MAX_NUMBER = (1 << 63) - 1  # of a 64-bit column
_SQL_VIEWS = 2  # records and search


MIN_PREFETCH: Final = 64
"""Records that are looked up in one query for hundreds; fewer cost less one by one."""

MAX_KNOWN: Final = 64
"""Records that the next commit need not look up again: policies, prefixes and keys that many changes depend on."""


@dataclass(frozen=True, slots=True)
class KnownRecords:
    """Records that a commit has looked up, valid as long as nothing was appended after it."""

    head: tuple[int, bytes]
    """The size and the frontier of the tree, which no other entries have."""
    records: Mapping[bytes, tuple[int, bytes]]
    """The latest entry of each, by key, and its leaf hash."""


def check_mode(read_only: str | None, oldest_program: str) -> None:
    """Raise `ReadOnlyMode` or `OutdatedProgram` if changes are refused, as the head says."""
    if oldest_program > TABLES_VERSION:
        raise OutdatedProgram(
            f"the ledger was upgraded by a newer version of Perseid (tables {oldest_program}; this program has "
            f"{TABLES_VERSION}). Upgrade Perseid on this machine, then restart it"
        )
    if read_only is not None:
        raise ReadOnlyMode("the service is read-only for maintenance" + (f": {read_only}" if read_only else ""))


def check_end(cursor: DBAPICursor, statements: Statements, end: tuple[int, bytes] | None, size: int) -> None:
    """Raise `LostEntries` if the ledger, of `size` entries, does not have an entry with this leaf hash."""
    if end is None or not end[0]:
        return
    cursor.execute(statements.leaf, (end[0],))
    row = cursor.fetchone()
    if row is None or bytes(row[0]) != end[1]:
        raise LostEntries.after(end[0], size)


class Commit:
    """Applies requests one by one; `write` writes the result."""

    def __init__(
        self,
        cursor: DBAPICursor,
        statements: Statements,
        clock: CheckedClock,
        random: Callable[[int], bytes],
        token: bytes,
        connection: Connection | None = None,
        known: KnownRecords | None = None,
    ) -> None:
        """`connection` is that of the cursor, if there are requests that need it; `known` is of the last commit."""
        self._cursor = cursor
        self._connection = connection
        self._statements = statements
        self._random = buffered_random(random)
        self._token = token
        cursor.execute(statements.lock_head_for_changes)
        seq, at, raw, *self._mode = fetch_one(cursor)
        self._head = seq, raw
        self._frontier = Frontier.from_bytes(seq, raw)
        self._at = clock.date(at if seq else None)
        self.first = seq + 1
        self._written = seq  # the last entry that is in the database
        self._checked: dict[bytes, tuple[int, bytes]] = {}  # preconditions with a leaf hash
        if known is not None and self.follows(known):
            self._checked.update(known.records)
        self._latest = {key: latest for key, (latest, _) in self._checked.items()}  # read, set or known
        self._moved: dict[bytes, int] = {}  # those that were set
        self._leaves = dict(self._checked.values())  # leaf hashes by entry
        self._rows: dict[int, EntryRow] = {}  # of this transaction
        self._nodes: list[tuple[int, int, bytes]] = []
        self._search_keys: dict[tuple[bytes, int], bool] = {}  # True to insert, False to delete
        # Values that were encoded once for many records (`Draft.with_handle`), and their search keys.
        self._indexed: tuple[Sequence[bytes], set[bytes]] = (), set()
        self._redactions: list[tuple[int, int, int]] = []
        self._steps: list[tuple[str, int, int]] = []  # of jobs
        self._leaf = b""
        self._broken = False  # the transaction, by a database error
        self.changes: list[Change] = []
        self.erased = False
        """Whether data was redacted, so that its traces must be removed."""

    def follows(self, known: KnownRecords) -> bool:
        """Whether nothing was appended since."""
        return known.head == self._head

    def require(self, end: tuple[int, bytes] | None) -> None:
        """Raise `LostEntries` if the ledger does not have an entry with this leaf hash."""
        check_end(self._cursor, self._statements, end, self._written)

    def require_changes(self) -> None:
        """Raise `ReadOnlyMode` or `OutdatedProgram` if changes are refused."""
        check_mode(*self._mode)

    def was_committed(self, first: int) -> bool:
        """Whether an earlier attempt with the same token, starting at entry `first`, was committed."""
        self._cursor.execute(self._statements.token, (first,))
        row = self._cursor.fetchone()
        return row is not None and row[0] == self._token

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Load the latest entries of all records of a large group in a few queries."""
        # A handle without a UTF-8 form has no key, and fails later.
        drafts = (draft for one in requests if isinstance(one, Append) for draft in one.drafts)
        self.prefetch_keys({draft.key for draft in drafts if draft.handle.isascii()})

    def prefetch_keys(self, keys: set[bytes]) -> None:
        """Load the latest entries of many records in a few queries."""
        self._latest.update(find_latest(self._query, self._statements, keys - self._latest.keys()))

    def apply(self, request: Request) -> Outcome:
        """Execute a request, unless one of its preconditions no longer holds.

        An invalid request fails alone. A database error fails the whole transaction, and so does any error of a
        `StateChange`, which may have changed something before it.
        """
        try:
            if isinstance(request, Lease | StateChange):
                return self._lease(request) if isinstance(request, Lease) else self._change_state(request)
            # Repetition first: the first execution has invalidated the preconditions of the repeated request.
            if (repeated := self._find_repeated(request.once)) is not None:
                return repeated
            if isinstance(request, Remember):
                return self._remember(request.once)
            if (failed := self._check_preconditions(request.preconditions, request.expected_leaves)) is not None:
                return failed
            seq = self._frontier.size + 1
            decision, result, body = self._decide(request, seq)
            prepared = self._prepare(decision, request.job)
        except LeaseClosed as closed:
            return closed
        except Exception as error:
            if self._broken:
                raise
            return Failed(error)
        keys = self._append_all(prepared, decision.redactions, request.job)
        if request.once is not None:
            self._remember(request.once, seq, len(prepared), body)
        if isinstance(request, Append):
            return Appended(seq, self._at)
        return Executed(result, seq if prepared else 0, keys, bool(decision.redactions))

    def _lease(self, request: Lease) -> Leased:
        return Leased(self.lease(request.scope, request.count, request.now), request.count)

    def _change_state(self, request: StateChange) -> Changed:
        self.write()  # it may read what earlier requests did
        assert self._connection is not None  # noqa: S101 - see `Log.commit`
        self._broken = True
        result = request.apply(self._connection, self._frontier.size, self._at)
        self._broken = False
        return Changed(result)

    def _decide(self, request: Append | Execute, seq: int) -> tuple[Decision, object, bytes | None]:
        """The decision, the result and its stored form; `seq` will be the first entry."""
        if isinstance(request, Append):
            return Decision(request.drafts, lambda _: None, request.redactions), None, None
        decision = request.decide(CommitReader(self))
        result = decision.result(seq if decision.drafts else 0)
        return decision, result, None if request.encode is None else request.encode(result)

    def _prepare(self, decision: Decision, job: str) -> list[tuple[Draft, list[bytes]]]:
        """Do everything that can fail before anything is changed."""
        prepared = []
        for draft in decision.drafts:
            if not (
                draft.handle.isascii() and draft.note.isascii() and draft.actor.isascii() and draft.interface.isascii()
            ):
                f"{draft.handle}{draft.note}{draft.actor}{draft.interface}".encode()  # raises if it has no UTF-8 form
            contents = draft.contents()
            if (oversized := find_oversized(contents)) and not self._known(decision).issuperset(oversized):
                raise ValueError(f"a value of {draft.handle} is longer than {MAX_BYTES:,} bytes")
            prepared.append((draft, contents))
        if decision.redactions:
            handles = {draft.key: draft.handle for draft, _ in prepared}
            for old in decision.redactions:
                if not 0 < old < self.first or self._entry(old).key not in handles:
                    raise ValueError(f"cannot redact entry {old}: it does not belong to {', '.join(handles.values())}")
        if job and prepared:
            self._check_running(job)
        return prepared

    def _known(self, decision: Decision) -> set[bytes]:
        """The values that the records of a decision have already."""
        seqs = [self.latest(draft.key) for draft in decision.drafts]
        return {content for seq in seqs if seq for content in self._entry(seq).contents()}

    def _append_all(
        self, prepared: list[tuple[Draft, list[bytes]]], redactions: Redactions, job: str
    ) -> tuple[bytes, ...]:
        """Append the entries of a request, and return the keys of their records."""
        seq = self._frontier.size + 1
        for draft, contents in prepared:
            self._append(draft, contents)
        keys = {draft.key: number for number, (draft, _) in enumerate(prepared, seq)}
        if redactions:
            self._redact_all(redactions, keys)
        if job and prepared:
            self._steps.append((job, seq, len(prepared)))
        return tuple(keys)

    def _check_running(self, job: str) -> None:
        """Refuse a step of a job that has ended: an undo relies on there being no more steps."""
        row = self._query(self._statements.job_ended, (job,)).fetchone()
        if row is None or row[0]:
            raise JobEnded(job)

    def write(self) -> None:
        """Write the changes that were collected so far, and move the head."""
        if self._written == self._frontier.size:
            return
        statements, cursor = self._statements, self._cursor
        self._broken = True
        first = self._written + 1
        rows = self._rows.values() if first == self.first else [row for row in self._rows.values() if row[0] >= first]
        insert_rows(cursor, statements.insert_entry, list(rows))
        insert_rows(cursor, statements.insert_node, self._nodes)
        insert_rows(cursor, statements.upsert_record, sorted(self._moved.items()))
        removed = [row for row, is_new in self._search_keys.items() if not is_new]
        if removed:
            cursor.executemany(statements.delete_search_key, removed)
        added = sorted([row for row, is_new in self._search_keys.items() if is_new])
        insert_rows(cursor, statements.insert_search_key, added)
        if self._redactions:
            cursor.executemany(statements.insert_redaction, self._redactions)
            cursor.execute(statements.clear_responses)  # they may contain redacted data
        if self._steps:
            cursor.executemany(statements.insert_step, self._steps)
        cursor.execute(statements.move_head, (self._frontier.size, self._at, self._frontier.to_bytes()))
        cursor.execute(statements.move_views, (self._frontier.size, self._leaf, self._written))
        if cursor.rowcount != _SQL_VIEWS:
            raise CorruptView("an SQL view is behind the ledger")
        if statements.notify:
            cursor.execute(statements.notify)
        for collected in (self._nodes, self._moved, self._search_keys, self._redactions, self._steps):
            collected.clear()
        self._written = self._frontier.size
        self._broken = False

    # Appending

    def _check_preconditions(
        self, preconditions: Preconditions, expected_leaves: LeafHashes
    ) -> PreconditionFailed | None:
        for key, expected in preconditions.items():
            if (actual := self.latest(key)) != expected:
                return PreconditionFailed(key, expected, actual)
        for key, leaf in expected_leaves.items():
            if self._leaf_hash(seq := self.latest(key)) != leaf:
                return PreconditionFailed(key, seq, seq)  # another entry has this number
            self._checked[key] = seq, leaf
        return None

    def known(self) -> KnownRecords:
        """What the next commit need not look up if nothing is appended in between."""
        records = {key: checked for key, checked in self._checked.items() if self._latest[key] == checked[0]}
        return KnownRecords(
            (self._frontier.size, self._frontier.to_bytes()), records if len(records) <= MAX_KNOWN else {}
        )

    def _append(self, draft: Draft, contents: list[bytes]) -> None:
        key = draft.key
        previous = self.latest(key)
        seq = self._frontier.size + 1
        if previous:
            row = self.row(previous)
            before = Entry.from_body(previous, row[1], row[7])
            nth = row[4] + 1
            jump = next_jump(nth, previous, self._links)
            salts = before.salts()
        else:
            before, nth, jump, salts = None, 1, 0, {}
        body, leaf = encode_entry(draft, contents, seq, self._at, salts, self._random)
        self._nodes += self._frontier.append(leaf)
        self._rows[seq] = (seq, self._at, previous, jump, nth, b"" if self._rows else self._token, leaf, body)
        self._leaf = leaf
        self._latest[key] = self._moved[key] = seq
        self._move_search_keys(before, contents, seq, draft.search_keys)
        change = Change(seq, self._at, leaf, key, draft.handle, draft.exact, draft.state, contents)
        change.last_update = draft.summary(contents).last_update(None if before is None else before.summary())
        self.changes.append(change)
        if before is not None:
            self._redact_old_secrets(before, contents, seq)

    def _move_search_keys(
        self, before: Entry | None, contents: Sequence[bytes], seq: int, known: Sequence[bytes] | None
    ) -> None:
        if before is not None:
            for search_key in index_keys(before.contents()):
                if self._search_keys.pop((search_key, before.seq), None) is None:
                    self._search_keys[search_key, before.seq] = False
        if known is None and contents is not self._indexed[0]:
            self._indexed = contents, index_keys(contents)
        for search_key in self._indexed[1] if known is None else known:
            self._search_keys[search_key, seq] = True

    def latest(self, key: bytes) -> int:
        """The number of the latest entry of a record; 0 if there is none."""
        seq = self._latest.get(key)
        if seq is None:
            row = self._query(self._statements.record_seq, (key,)).fetchone()
            seq = self._latest[key] = int(row[0]) if row else 0
        return seq

    def _leaf_hash(self, seq: int) -> bytes:
        """The leaf hash of an entry; empty if there is none."""
        leaf = self._leaves.get(seq)
        if leaf is None:
            row = self._rows.get(seq)
            if row is None:
                stored = self._query(self._statements.leaf, (seq,)).fetchone()
                leaf = stored[0] if stored else b""
            else:
                leaf = row[6]
            self._leaves[seq] = leaf
        return leaf

    def row(self, seq: int) -> EntryRow:
        """The row of an entry, written or not."""
        row = self._rows.get(seq)
        if row is None:
            row = fetch_one(self._query(self._statements.entry, (seq,)))
        return row

    def _entry(self, seq: int) -> Entry:
        row = self.row(seq)
        return Entry.from_body(seq, row[1], row[7])

    def _query(self, statement: str, parameters: tuple[object, ...]) -> DBAPICursor:
        """Query the database; an error breaks the transaction."""
        self._broken = True
        self._cursor.execute(statement, parameters)
        self._broken = False
        return self._cursor

    def read(self, statement: str, parameters: tuple[object, ...]) -> DBAPICursor:
        """Query the database, with the changes so far."""
        self.write()
        return self._query(statement, parameters)

    def _links(self, seq: int) -> tuple[int, int]:
        row = self.row(seq)
        return row[2], row[3]

    # Idempotency

    def _find_repeated(self, once: IdempotentRequest | None) -> RepeatedRequest | None:
        """Find the stored result of a request with the same key; delete it if it has expired."""
        if once is None:
            return None
        row = self._query(self._statements.find_idempotency, (once.caller, once.key)).fetchone()
        if row is None:
            return None
        if row[4] <= self._at - KEY_LIFETIME:
            self._query(self._statements.delete_idempotency, (row[0],))
            return None
        return RepeatedRequest(idempotency_from_row(row))

    def _remember(
        self, once: IdempotentRequest, seq: int = 0, count: int = 0, result: bytes | None = None
    ) -> Remembered:
        """Store the idempotency key with the response, or with the result if there is none."""
        number = (fetch_one(self._query(self._statements.last_idempotency, ()))[0] or 0) + 1
        body = result if once.body is None else once.body
        if body is not None and len(body) > MAX_BODY:
            body = None
        first = seq if count else 0
        row = (number, once.caller, once.key, once.digest, self._at, first, count, once.status, body)
        self._query(self._statements.insert_idempotency, row)
        return Remembered()

    # Leasing

    def lease(self, scope: bytes, count: int, now: int) -> int:
        """Return the first of `count` numbers never leased in this scope; a count of 0 leases none."""
        if count < 0 or now < 0 or now + count > _MAX_NUMBER:
            raise ValueError(f"cannot lease {count} numbers from {now}: out of range")
        first = next_number(self._load_lease, scope, now)
        if count:
            self._query(self._statements.upsert_lease, (scope, first + count - 1, int(now > 0), 0))
        return first

    def _load_lease(self, scope: bytes) -> tuple[int, int] | None:
        return cast("tuple[int, int] | None", self._query(self._statements.lease, (scope,)).fetchone())

    # Redaction

    def _redact_old_secrets(self, before: Entry, contents: Iterable[bytes], by: int) -> None:
        """Redact secret keys that are no longer in the record from all entries that contain them.

        An old secret proves nothing and is a risk. A value has its salt, and so its commitment, in one run of
        consecutive
        entries only: the walk back stops where it is missing.
        """
        removed = frozenset(
            slot.commitment
            for slot in before.values
            if slot.content is not None and _is_secret(slot.content) and slot.content not in contents
        )
        seq = before.seq if removed else 0
        while seq and self._redact(seq, removed, by):
            seq = self.row(seq)[2]

    def _redact_all(self, redactions: Redactions, by: Mapping[bytes, int]) -> None:
        """Redact what a request names, each by the new entry of the same record."""
        for seq, commitments in redactions.items():
            self._redact(seq, commitments, by[self._entry(seq).key])

    def _redact(self, seq: int, commitments: frozenset[bytes], by: int) -> bool:
        """Redact the slots with these commitments from one entry; return whether there were any."""
        row, entry = self.row(seq), self._entry(seq)
        slots = [slot for slot in entry.slots() if slot.commitment in commitments]
        if not slots:
            return False
        public = any(_is_public(slot.content) for slot in slots if slot.kind is Kind.VALUE)
        body = entry.redacted(commitments).body()
        self._redactions.append((seq, by, int(public)))
        self.erased = True
        if seq in self._rows:
            self._rows[seq] = (*row[:7], body)
        if seq <= self._written:
            self._cursor.execute(self._statements.rewrite_body, (body, seq))
        return True


class CommitReader(LogReader):
    """The state inside a commit, with the changes of earlier requests. It can lease numbers."""

    def __init__(self, commit: Commit) -> None:
        super().__init__(_CommitCursor(commit), commit._statements)  # noqa: SLF001 - they are one subject
        self._commit = commit

    def lease(self, scope: bytes, count: int, now: int) -> int:
        """Return the first of `count` new numbers; see `Lease`."""
        return self._commit.lease(scope, count, now)

    def latest(self, key: bytes) -> int:
        """Return the number of the latest entry of a record; 0 if there is none."""
        return self._commit.latest(key)

    def prefetch(self, keys: set[bytes]) -> None:
        if len(keys) >= MIN_PREFETCH:
            self._commit.prefetch_keys(keys)

    def record(self, key: bytes) -> Entry | None:
        """Return the latest entry of a record; None if there never was one."""
        seq = self._commit.latest(key)
        return entry_from_row(self._commit.row(seq)) if seq else None


class _CommitCursor:
    """A cursor that sees the collected changes, because it writes them first."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._cursor: Any = None

    def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> None:
        self._cursor = self._commit.read(statement, parameters)

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return list(self._cursor.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)


def _is_secret(content: bytes) -> bool:
    """Whether an encoded value is a secret key, or a subtype of one."""
    start = _TYPE_AT + 4
    length = int.from_bytes(content[_TYPE_AT:start], "big")
    type_ = content[start : start + length].upper()
    return type_ == _SECRET_TYPE or type_.startswith(_SECRET_TYPE + b".")


def _is_public(content: bytes | None) -> bool:
    """Whether an encoded value is publicly readable."""
    return content is not None and bool(content[_PERMISSIONS_AT] & _PUBLIC_READ)
