"""A consistent snapshot of the log.

All reads of one decision, page or proof use one `LogReader`, so they see one state. Views catch up from it as well
(`entry.Source`).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple, cast

from perseid.ledger.errors import CorruptData, LeaseClosed, LongEntry
from perseid.ledger.merkle import Frontier, consistency_path, inclusion_path, subtree_root
from perseid.ledger.store.tables import (
    KEYS_PER_QUERY,
    OTHER_SCOPES,
    STATES_PER_QUERY,
    Statements,
    change_from_row,
    entry_from_row,
    fetch_one,
)
from perseid.proof.verifier import EMPTY_ROOT

from .entry import PUBLIC_STATES, Action, Change, Entry, State, decode_head, find_latest_until
from .record_keys import key_range

CHUNK: Final = 1_000
"""Rows read at a time where there may be millions."""

CHUNK_BYTES: Final = 1 << 23
"""Maximum bytes of such rows, because a thousand large records do not fit into memory."""

_MAX_SEQ: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Difference:
    """A record that differs between two points of the log."""

    before: Entry | None
    """Its last entry at the earlier point; None if it had none yet."""
    after: Entry
    """Its last entry at the later point."""


class Transition(NamedTuple):
    """What an entry did to its record."""

    seq: int
    at: int
    """In microseconds since 1970."""
    action: Action
    handle: str
    before: State
    """The state before it; absent if there was no entry."""
    after: State


def next_number(load: Callable[[bytes], tuple[int, int] | None], scope: bytes, now: int) -> int:
    """Return the next number of a scope, or raise `LeaseClosed`. `load` returns the last number and if it is closed."""
    lease = load(scope)
    if lease is None and (restored := load(OTHER_SCOPES)) is not None:
        # Unknown to the backup: numbers by the clock continue ahead of it; a counter may have come to any number.
        lease = restored if now > 0 else (-1, 1)
    last, closed = lease or (-1, 0)
    if closed:
        raise LeaseClosed(scope, last)
    return int(max(last + 1, now))


def find_latest(
    query: Callable[[str, tuple[object, ...]], Any], statements: Statements, keys: Collection[bytes]
) -> dict[bytes, int]:
    """Return the numbers of the latest entries of records, 0 for those without entries, in a few queries."""
    found = dict.fromkeys(keys, 0)
    ordered = sorted(found)
    for first in range(0, len(ordered), KEYS_PER_QUERY):
        batch = ordered[first : first + KEYS_PER_QUERY]
        padded = (*batch, *(batch[-1:] * (KEYS_PER_QUERY - len(batch))))
        found.update(query(statements.record_seqs, padded).fetchall())
    return found


class LogReader:
    """One state of the log."""

    def __init__(self, cursor: Any, statements: Statements) -> None:
        """`cursor` is a driver cursor in a transaction that sees one state throughout."""
        self._cursor = cursor
        self._statements = statements

    # Entries and records

    @property
    def ledger_id(self) -> bytes:
        """The ledger's id."""
        return bytes(self._identity()[0])

    @property
    def origin(self) -> str:
        """The name under which the ledger signs checkpoints."""
        return str(self._identity()[1])

    @property
    def signer(self) -> str:
        """The current public key for checkpoints."""
        return str(self._identity()[2])

    def secret(self, purpose: bytes) -> bytes:
        """Derive 32 bytes for a purpose: the same for everyone with the ledger, unknown to anyone else.

        They follow from the salts of the first entry and the token of its commit, which are never shown together.
        """
        row = self._row(self._statements.entry, 1) or (b"",) * 8
        return blake2b(row[5] + row[7], digest_size=32, person=purpose).digest()

    @property
    def size(self) -> int:
        """The number of entries, which is the number of the last one."""
        self._cursor.execute(self._statements.head)
        return int(fetch_one(self._cursor)[0])

    def latest(self, key: bytes) -> int:
        """Return the number of the latest entry of a record; 0 if there is none."""
        row = self._row(self._statements.record_seq, key)
        return int(row[0]) if row else 0

    def latest_of(self, keys: Collection[bytes]) -> dict[bytes, int]:
        """Return the same for many records, at a third of the cost."""

        def query(statement: str, parameters: tuple[object, ...]) -> Any:
            self._cursor.execute(statement, parameters)
            return self._cursor

        return find_latest(query, self._statements, keys)

    def lease(self, scope: bytes, count: int, now: int) -> int:  # noqa: ARG002 - as in `LeaseProvider`
        """Return the number that a lease would start at, or raise `LeaseClosed`; nothing is leased."""
        return next_number(lambda of: self._row(self._statements.lease, of), scope, now)

    def prefetch(self, keys: set[bytes]) -> None:
        """Tell which records are looked up next; inside a commit, many are then read at once."""

    def exists(self, key: bytes) -> bool:
        """Whether a handle has, or ever had, an entry."""
        return bool(self.latest(key))

    def any_between(self, first: bytes, end: bytes) -> bool:
        """Whether any key from `first` up to, not including, `end` has, or ever had, an entry."""
        self._cursor.execute(self._statements.any_record, (first, end))
        return bool(fetch_one(self._cursor)[0])

    def record(self, key: bytes) -> Entry | None:
        """Return the latest entry of a record; None if there never was one."""
        row = self._row(self._statements.entry_of_key, key)
        return None if row is None else entry_from_row(row)

    def short_record(self, key: bytes, max_bytes: int) -> Entry | None:
        """Return the same, or raise `LongEntry` instead of parsing one with more bytes."""
        row = self._row(self._statements.entry_of_key, key)
        if row is not None and len(row[7]) > max_bytes:
            raise LongEntry
        return None if row is None else entry_from_row(row)

    def entry(self, seq: int) -> Entry:
        """Return the entry with a number."""
        row = self._row(self._statements.entry, seq)
        if row is None:
            raise KeyError(seq)
        return entry_from_row(row)

    def previous(self, seq: int) -> int:
        """Return the number of the previous entry of the same record; 0 if there is none."""
        return self._links(seq)[0]

    def as_of(self, key: bytes, seq: int) -> Entry | None:
        """Return the last entry of a record up to and including `seq`; None if there was none yet."""
        latest = find_latest_until(self.latest(key), seq, self._links)
        return self.entry(latest) if latest else None

    def seq_at(self, instant: int) -> int:
        """Return the last entry dated at or before an instant (microseconds since 1970); 0 if there is none."""
        # Dates never go back, so this is a binary search.
        low, high = 0, self.size
        while low < high:
            middle = (low + high + 1) // 2
            self._cursor.execute(self._statements.entry_at, (middle,))
            if fetch_one(self._cursor)[0] <= instant:
                low = middle
            else:
                high = middle - 1
        return low

    def history(self, key: bytes, until: int = _MAX_SEQ) -> Iterator[Entry]:
        """Yield the entries of a record, newest first, starting with the last one up to `until`."""
        seq = find_latest_until(self.latest(key), until, self._links)
        while seq:
            row = self._entry_row(seq)
            yield entry_from_row(row)
            seq = row[2]

    def log(self, after: int, until: int = _MAX_SEQ) -> Iterator[Entry]:
        """Iterate over the entries after `after`, up to and including `until`."""
        return map(entry_from_row, self._rows(after, until))

    def differences(self, before: int, after: int) -> Iterator[Difference]:
        """Yield the records that changed between two points, in the order of their first change."""
        for row in self._rows(before, after):
            seq, previous = row[0], row[2]
            if previous > before:
                continue  # already covered by the record's first change
            entry = entry_from_row(row)
            last = find_latest_until(self.latest(entry.key), after, self._links)
            yield Difference(self.entry(previous) if previous else None, entry if last == seq else self.entry(last))

    def transitions(self, after: int, until: int) -> Iterator[Transition]:
        """Iterate over the entries after `after`, up to and including `until`, without values."""
        for row in self._rows(after, until):
            action, state, handle = decode_head(row[0], row[1], row[7])
            before = decode_head(row[2], 0, self._entry_row(row[2])[7])[1] if row[2] else State.ABSENT
            yield Transition(row[0], row[1], action, handle, before, state)

    def names(self, first: bytes, end: bytes, limit: int) -> list[Entry]:
        """Return the latest entries of up to `limit` records by ascending key, from `first` up to, not including,
        `end`.

        The next page starts at the last entry's key plus a zero byte, so a page costs the same at any depth.
        """
        self._cursor.execute(self._statements.names, (first, end, limit, 0))
        return [entry_from_row(row) for row in self._cursor.fetchall()]

    def all_names(self, start: str) -> Iterator[Entry]:
        """Iterate over the latest entries of all records whose handle starts like this, deleted ones too."""
        first, end = key_range(start)
        while page := self.names(first, end, CHUNK):
            yield from page
            first = page[-1].key + b"\0"

    def names_page(self, first: bytes, end: bytes, limit: int) -> tuple[list[Entry], bool]:
        """Like `names`, but a page also ends at `CHUNK_BYTES`; also return whether there may be more."""
        self._cursor.execute(self._statements.names, (first, end, limit, 0))
        rows, is_truncated = self._fetch_rows()
        return [entry_from_row(row) for row in rows], is_truncated or len(rows) == limit

    def changes_by_key(self, first: bytes, end: bytes, limit: int) -> tuple[list[Change], bool]:
        """Like `names_page`, in the form that views use, which costs a third."""
        self._cursor.execute(self._statements.names, (first, end, limit, 0))
        rows, is_truncated = self._fetch_rows()
        return [change_from_row(row) for row in rows], is_truncated or len(rows) == limit

    def change_as_of(self, latest: int, seq: int) -> Change | None:
        """Return the last entry up to and including `seq` in the chain that ends at `latest`; None if there is none."""
        number = find_latest_until(latest, seq, self._links)
        return change_from_row(self._entry_row(number)) if number else None

    def names_in_states(
        self, first: bytes, end: bytes, states: Collection[State], limit: int, skip: int = 0
    ) -> tuple[list[Entry], bool]:
        """Like `names_page`, for some states, without the first `skip` records.

        A page with a number costs as much as all pages before it.
        """
        self._cursor.execute(self._statements.names_in_states, (first, end, *_state_bytes(states), limit, skip))
        rows, is_truncated = self._fetch_rows()
        return [entry_from_row(row) for row in rows], is_truncated or len(rows) == limit

    def count_names(self, first: bytes, end: bytes, states: Collection[State]) -> int:
        """Count the records in some states with keys from `first` up to, not including, `end`."""
        self._cursor.execute(self._statements.count_in_states, (first, end, *_state_bytes(states)))
        return int(fetch_one(self._cursor)[0])

    def find_by_keys(
        self, first: bytes, end: bytes, limit: int, after: tuple[bytes, int] = (b"", 0)
    ) -> tuple[list[tuple[bytes, Entry]], bool]:
        """Return records by search keys (see `search_keys`) from `first` up to `end`, after a position.

        At most `limit`, fewer if they are large (`CHUNK_BYTES`); also return whether there may be more.
        """
        self._cursor.execute(self._statements.find_by_keys, (*max(after, (first, 0)), end, limit, 0))
        rows, is_truncated = self._fetch_rows()
        return [(row[0], entry_from_row(row[1:])) for row in rows], is_truncated or len(rows) == limit

    def search_rows(
        self, first: bytes, end: bytes, limit: int, after: tuple[bytes, int] = (b"", 0)
    ) -> list[tuple[bytes, int]]:
        """Like `find_by_keys` without the records: each search key and the entry's number."""
        self._cursor.execute(self._statements.search_rows, (*max(after, (first, 0)), end, limit, 0))
        return [(row[0], row[1]) for row in self._cursor.fetchall()]

    def steps(self, job_id: str, after: int = 0) -> list[tuple[int, int]]:
        """Return the steps of a job after an entry, as (first entry, count)."""
        self._cursor.execute(self._statements.steps, (job_id, after))
        return [(row[0], row[1]) for row in self._cursor.fetchall()]

    def last_erasure(self) -> int:
        """Return the last entry that redacted public data; 0 if there is none."""
        self._cursor.execute(self._statements.last_erasure)
        return int(fetch_one(self._cursor)[0] or 0)

    # For views

    def leaf(self, seq: int) -> bytes:
        """Return the leaf hash of an entry."""
        self._cursor.execute(self._statements.leaf, (seq,))
        return cast("bytes", fetch_one(self._cursor)[0])

    def changes(self, after: int, limit: int) -> list[Change]:
        """Return up to `limit` entries after `after`, in the form that views use."""
        self._cursor.execute(self._statements.following, (after, after + limit))
        return [change_from_row(row, self._entry_row) for row in self._cursor.fetchall()]

    def current(self) -> Iterator[Change]:
        """Yield the latest entry of every record by ascending key, in the form that views use."""
        last = b""
        while rows := self._page(last):
            for row in rows:
                change = change_from_row(row[1:], self._entry_row)
                if change.state == State.ABSENT and row[3]:
                    before = next(self.history(change.key, change.seq - 1), None)
                    if before is not None and before.state != State.ABSENT:
                        change.last_version = (before.seq, before.at) if before.state in PUBLIC_STATES else (0, 0)
                yield change
            last = rows[-1][0]

    # Proofs

    def root(self, size: int) -> bytes:
        """Compute the root of the tree of the first `size` entries."""
        return subtree_root(self._hashes, 0, size) if size else EMPTY_ROOT

    def frontier(self) -> Frontier:
        """Load the frontier of the tree of all entries."""
        self._cursor.execute(self._statements.head)
        size, _, data = fetch_one(self._cursor)
        return Frontier.from_bytes(size, data)

    def inclusion(self, seq: int, size: int) -> list[bytes]:
        """Prove that an entry is in the tree of a size."""
        return inclusion_path(self._hashes, seq - 1, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """Prove that the tree of size `new` extends that of size `old`."""
        return consistency_path(self._hashes, old, new)

    def checkpoint(self) -> str | None:
        """Return the latest signed checkpoint; None if there is none."""
        row = self._checkpoint()
        return None if row is None else str(row[0])

    def checkpoint_size(self) -> int | None:
        """Return the size of the latest signed checkpoint; None if there is none."""
        row = self._checkpoint()
        return None if row is None else int(row[1])

    def _hashes(self, level: int, first: int, count: int) -> list[bytes]:
        if level:
            self._cursor.execute(self._statements.nodes, (level, first, first + count))
        else:
            self._cursor.execute(self._statements.leaves, (first, first + count))
        return [row[0] for row in self._cursor.fetchall()]

    # Rows

    def _identity(self) -> Any:
        self._cursor.execute(self._statements.identity)
        return fetch_one(self._cursor)

    def _checkpoint(self) -> Any:
        self._cursor.execute(self._statements.checkpoint, (1, 0))
        return self._cursor.fetchone()

    def _page(self, after: bytes) -> list[Any]:
        self._cursor.execute(self._statements.current, (after, CHUNK, 0))
        return cast("list[Any]", self._cursor.fetchall())

    def _entry_row(self, seq: int) -> Any:
        row = self._row(self._statements.entry, seq)
        if row is None:
            raise CorruptData(f"entry {seq} is missing")
        return row

    def _row(self, statement: str, parameter: object) -> Any:
        self._cursor.execute(statement, (parameter,))
        return self._cursor.fetchone()

    def _rows(self, after: int, until: int) -> Iterator[Any]:
        while after < until:
            self._cursor.execute(self._statements.following, (after, min(until, after + CHUNK)))
            rows, _ = self._fetch_rows()
            if not rows:
                return
            yield from rows
            after = rows[-1][0]

    def _fetch_rows(self) -> tuple[list[Any], bool]:
        """Fetch rows whose last column is a body, up to `CHUNK_BYTES`; also return whether the limit was reached.

        The rest is not read: the next statement, or the end of the transaction, ends this one.
        """
        rows: list[Any] = []
        size = 0
        for row in self._cursor:
            if size >= CHUNK_BYTES:
                return rows, True
            rows.append(row)
            size += len(row[-1])
        return rows, False

    def _links(self, seq: int) -> tuple[int, int]:
        self._cursor.execute(self._statements.links, (seq,))
        previous, jump = fetch_one(self._cursor)
        return previous, jump


def _state_bytes(states: Collection[State]) -> list[bytes]:
    """Encode states as query parameters, repeated to a fixed number."""
    encoded = [bytes((state,)) for state in states]
    return [encoded[number % len(encoded)] for number in range(STATES_PER_QUERY)]
