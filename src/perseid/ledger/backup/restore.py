"""Restoring a ledger from a backup and its increments into an empty store.

Everything happens in one transaction: either the whole checked ledger is there, or the store is as empty as before,
even after a crash. Both back ends write a transaction of any size to disk as it grows, so memory does not grow with the
ledger; the price is disk space for a second copy until the end.

Nothing is trusted that can be computed: leaves from entries, the tree from leaves, the views from entries. What was
redacted after an entry was backed up is not written at all.

What was issued after the backup is unknown. So a restored ledger

- is a new one: it has a new id, a new origin and a new key (see `signing`);
- leases no number that may have been leased: numbers that are milliseconds continue ahead of the clock, and counters
  are closed until the operator sets them.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError

from perseid.ledger.errors import LeaseClosed, LedgerError
from perseid.ledger.log.commit import Commit
from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.log import SQL_VIEWS, TOKEN_LENGTH, Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.ledger.log.requests import Append, Appended
from perseid.ledger.log.signing import WrongKey, restored_origin
from perseid.ledger.merkle import Signer
from perseid.ledger.store import OLDEST_PROGRAM
from perseid.ledger.store.tables import (
    OTHER_SCOPES,
    SIDE_STATE,
    checkpoints,
    entries,
    fetch_one,
    head,
    leases,
    ledger,
    metadata,
    views,
)
from perseid.names import pilin
from perseid.names.schemes import DEFAULT_MAX_AHEAD
from perseid.proof.verifier import Branch, Checkpoint, open_checkpoint

from .archive import (
    ENTRY,
    REDACTED,
    STATE,
    ArchiveReader,
    BackupSource,
    InvalidBackup,
    Progress,
    decode_column,
    name_in_backup,
)
from .bulk_load import CHUNK, CHUNK_BYTES, BulkWriter, EncodedEntry


class StoreNotEmpty(LedgerError):
    """The store is not empty."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore."""

    branch: Branch
    """Which ledger this one continues, from which entry, and with which key."""
    seq: int
    """The BRANCH entry, which is the last one."""
    closed: tuple[bytes, ...]
    """The scopes that are closed until `reopen_lease` is called."""


def restore(
    files: Sequence[BackupSource],
    log: Log,
    signer: Callable[[str], Signer],
    by: tuple[str, str],
    max_ahead: int = DEFAULT_MAX_AHEAD,
    progress: Progress = lambda _: None,
) -> RestoreResult:
    """Restore a full backup and its increments, in order, into an empty store.

    `signer` creates and saves the new key for the origin it is given, just before the end. `by` is (interface, actor).
    `max_ahead` is the farthest, in milliseconds, that any namespace lets its identifiers run ahead of the clock.
    """
    if not files:
        raise InvalidBackup("no backup file given; name the full backup and its increments")
    try:
        with log.store.writing(limited=False) as connection:
            restored = _Restore(connection, log, progress).run(files, signer, by, max_ahead)
    finally:
        # The write-ahead log is now as large as the ledger, or full of rolled-back data.
        if log.store.dialect == "sqlite":
            with suppress(log.store.engine.dialect.loaded_dbapi.Error):
                log.store.purge_deleted()
    return restored


def reopen_lease(log: Log, scope: bytes, last: int) -> None:
    """Resume leasing in a scope after `last`, which the operator must know to be the last issued number."""
    with log.store.writing() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(log.statements.lock_head)
        lease = _load_lease(connection, scope)
        known = -1 if lease is None else lease.last
        if not (lease.closed if lease is not None else _load_lease(connection, OTHER_SCOPES)):
            raise LedgerError(f"{scope.decode('utf-8', 'replace')} is not closed; there is nothing to reopen")
        if last < known:
            raise LeaseClosed(scope, known)
        connection.execute(delete(leases).where(leases.c.scope == scope))
        connection.execute(insert(leases).values(scope=scope, last=last, clocked=0, closed=0))


class _Restore:
    def __init__(self, connection: Connection, log: Log, progress: Progress) -> None:
        self._connection = connection
        self._cursor: Any = connection.connection.cursor()
        self._log = log
        self._progress = progress
        self._bulk = BulkWriter(connection, log.statements)
        self._last_key_change = 0  # the last entry that changed the key
        self._redacted = False  # whether later files erase from earlier ones
        self._last: ArchiveReader | None = None

    def run(
        self, files: Sequence[BackupSource], signer: Callable[[str], Signer], by: tuple[str, str], max_ahead: int
    ) -> RestoreResult:
        self._begin()
        for number, file in enumerate(files, 1):
            with file.open("rb") as stream:
                archive = ArchiveReader(file.name, stream)
                if number == len(files) and archive.header.until:
                    self._log.clock.date(archive.header.at)  # refuses a wrong clock early
                self._store_redacted(archive)
        for number, file in enumerate(files, 1):
            with file.open("rb") as stream:
                archive = ArchiveReader(file.name, stream)
                self._check_follows(archive)
                self._restore_archive(archive, is_last=number == len(files))
                self._last = archive
        return self._start_branch(signer, by, max_ahead)

    def _begin(self) -> None:
        """Check that the store is empty, and write the head."""
        for table in metadata.sorted_tables:
            if self._connection.execute(select(table).limit(1)).first() is not None:
                raise StoreNotEmpty("the store already contains a ledger; restore into an empty one")
        self._connection.execute(insert(head).values(one=1, seq=0, at=0, frontier=b"", oldest_program=OLDEST_PROGRAM))

    # Files

    def _store_redacted(self, archive: ArchiveReader) -> None:
        """Store the entries that a later file has in redacted form.

        They replace the full ones, and are checked when those are read.
        """
        statements, cursor = self._log.statements, self._cursor
        for kind, content in archive.frames():
            if kind != REDACTED:
                break
            seq, body = archive.redacted(content)
            cursor.execute(statements.rewrite_body, (body, seq))
            if cursor.rowcount == 0:
                cursor.execute(statements.insert_entry, (seq, 0, 0, 0, 0, b"", b"", body))
            self._redacted = True

    def _check_follows(self, archive: ArchiveReader) -> None:
        """Refuse a file that does not continue where the one before it ended."""
        header, tree = archive.header, self._bulk.frontier
        if self._last is not None:
            before = self._last.header
            if (header.ledger, header.origin) != (before.ledger, before.origin):
                raise archive.problem(f"belongs to another ledger ({header.origin}) than the file before it")
        if header.since != tree.size:
            follows = (
                f"the next file must be the increment that starts after entry {tree.size}"
                if tree.size
                else (f"name the backups with entries 1 to {header.since} before it")
            )
            raise archive.problem(f"starts after entry {header.since}; {follows}")
        if header.root_since != tree.root():
            raise archive.problem(f"continues other entries than the first {tree.size} of the files before it")

    def _restore_archive(self, archive: ArchiveReader, *, is_last: bool) -> None:
        header = archive.header
        chunk: list[EncodedEntry] = []
        size = 0
        note: bytes | None = None
        for kind, content in archive.frames():
            if kind == ENTRY:
                chunk.append(self._entry(archive, content, self._bulk.frontier.size + len(chunk) + 1))
                size += len(content)
                if len(chunk) == CHUNK or size > CHUNK_BYTES:
                    self._write(archive, chunk)
                    chunk, size = [], 0
            elif kind == REDACTED:
                self._check_redacted(archive, *archive.redacted(content))
            elif kind == STATE:
                self._restore_rows(archive, content, keep=is_last)
            else:
                note = content
        self._write(archive, chunk)
        tree = self._bulk.frontier
        if (tree.size, self._bulk.at) != (header.until, header.at):
            raise archive.problem(f"ends with entry {tree.size}; its header says {header.until}")
        if tree.root() != header.root_until:
            raise archive.problem(f"the tree root of its entries up to {tree.size} does not match its header")
        if note is not None:
            self._check_checkpoint(archive, note)

    def _check_redacted(self, archive: ArchiveReader, seq: int, body: bytes) -> None:
        """Check that a redacted entry is the one that was restored from an earlier file."""
        self._cursor.execute(self._log.statements.entry, (seq,))
        _, at, *_, leaf, _ = fetch_one(self._cursor)
        _parse_entry(archive, seq, at, body, leaf)

    def _entry(self, archive: ArchiveReader, content: bytes, expected: int) -> EncodedEntry:
        """Parse an entry and check it against its leaf hash."""
        at, token, leaf, body = archive.entry(content, expected)
        entry = _parse_entry(archive, expected, at, body, leaf)
        if entry.action in (Action.ROTATE_KEY, Action.BRANCH) and entry.key == record_key(LEDGER):
            self._last_key_change = expected
        return entry, token, leaf, body

    def _write(self, archive: ArchiveReader, chunk: list[EncodedEntry]) -> None:
        """Write entries, in redacted form where a later file has that."""
        if not chunk:
            return
        last = self._bulk.at
        for entry, *_ in chunk:
            if entry.at < last:
                raise archive.problem("dated before the previous entry", entry.seq)
            last = entry.at
        if self._redacted:
            first = chunk[0][0].seq
            in_chunk = entries.c.seq.between(first, chunk[-1][0].seq)
            for seq, body in self._connection.execute(select(entries.c.seq, entries.c.body).where(in_chunk)).all():
                whole, token, leaf, _ = chunk[seq - first]
                redacted = _parse_entry(archive, seq, whole.at, body, leaf, "as redacted in a later file, ")
                chunk[seq - first] = redacted, token, leaf, body
            self._connection.execute(delete(entries).where(in_chunk))
        self._bulk.write(chunk)
        self._progress(self._bulk.frontier.size)

    def _restore_rows(self, archive: ArchiveReader, content: bytes, *, keep: bool) -> None:
        """Restore rows of a table that cannot be computed; only those of the last file are kept."""
        state = archive.rows(content)
        table = next((table for table in SIDE_STATE if name_in_backup(table) == state.table), None)
        known = {} if table is None else {name_in_backup(column): column for column in table.columns}
        if table is None or not set(state.columns) <= set(known):
            raise archive.problem("written by a newer program version; upgrade this one")
        columns = [known[name] for name in state.columns]
        types = [column.type.python_type for column in columns]
        try:
            rows = [[decode_column(*pair) for pair in zip(types, row, strict=True)] for row in state.rows]
            if keep and rows and table is not ledger:
                names = [column.name for column in columns]
                self._connection.execute(insert(table), [dict(zip(names, row, strict=True)) for row in rows])
        except (ValueError, IntegrityError, DataError):
            raise archive.problem(f"damaged: invalid rows of table {state.table}") from None

    def _check_checkpoint(self, archive: ArchiveReader, note: bytes) -> None:
        """Check that the backup's checkpoint is about these entries."""
        try:
            text = note.decode("utf-8")
            # The key before a rotation is unknown from the backup alone; what it signed about the tree can be checked.
            before = Checkpoint.parse(text.rpartition("\n\n")[0] + "\n")
            handed_over = before.size < self._last_key_change
            checkpoint = before if handed_over else open_checkpoint(text, archive.signer)
        except ValueError as error:
            raise archive.problem(f"invalid checkpoint: {error}") from None
        size = checkpoint.size
        if checkpoint.origin != archive.header.origin or size > archive.header.until:
            raise archive.problem("its checkpoint belongs to another ledger")
        if LogReader(self._cursor, self._log.statements).root(size) != checkpoint.root:
            raise archive.problem(f"its checkpoint at entry {size} does not match the entries")

    # The new ledger

    def _start_branch(self, signer: Callable[[str], Signer], by: tuple[str, str], max_ahead: int) -> RestoreResult:
        assert self._last is not None  # noqa: S101 - there is at least one file
        connection, log, tree = self._connection, self._log, self._bulk.frontier
        identity = log.random(TOKEN_LENGTH)
        origin = restored_origin(self._last.header.origin, identity)
        rows = [{"name": name, "ledger": identity, "seq": tree.size, "leaf": self._bulk.leaf} for name in SQL_VIEWS]
        connection.execute(insert(views), rows)
        connection.execute(update(head).values(seq=tree.size, at=self._bulk.at, frontier=tree.to_bytes()))
        commit = Commit(self._cursor, log.statements, log.clock, log.random, log.random(TOKEN_LENGTH))
        new = signer(origin)
        if new.name != origin:
            raise WrongKey(f"the new key is named {new.name}; it must be named {origin}")
        if new.public.public == self._last.signer.public:
            raise WrongKey("the new key is the old one; a restored ledger needs another key")
        branch = Branch(self._last.end, self._last.signer, new.public)
        appended = commit.apply(Append(Draft(Action.BRANCH, State.ABSENT, LEDGER, *by, branch.note())))
        assert isinstance(appended, Appended), appended  # noqa: S101 - the request has no preconditions
        commit.write()
        connection.execute(insert(ledger).values(id=identity, origin=origin, signer=str(new.public)))
        # The newest checkpoint is one of this ledger from the start.
        seq, at = appended.seq, appended.at
        note = new.sign(Checkpoint(origin, seq, LogReader(self._cursor, log.statements).root(seq)))
        connection.execute(insert(checkpoints).values(size=seq, at=at, note=note))
        return RestoreResult(branch, seq, tuple(self._close_leases(pilin.from_unix_ns(at * 1000) + max_ahead)))

    def _close_leases(self, ahead: int) -> Iterable[bytes]:
        """Make sure that no number is leased that may have been leased after the backup."""
        connection = self._connection
        if _load_lease(connection, OTHER_SCOPES) is None:
            connection.execute(insert(leases).values(scope=OTHER_SCOPES, last=ahead, clocked=1, closed=0))
        connection.execute(update(leases).where(leases.c.clocked != 0, leases.c.last < ahead).values(last=ahead))
        connection.execute(update(leases).where(leases.c.clocked == 0).values(closed=1))
        return connection.execute(select(leases.c.scope).where(leases.c.closed != 0).order_by(leases.c.scope)).scalars()


def _parse_entry(archive: ArchiveReader, seq: int, at: int, body: bytes, leaf: bytes, which: str = "") -> Entry:
    try:
        entry = Entry.from_body(seq, at, body)
    except ValueError as error:
        raise archive.problem(f"{which}cannot be read: {error}", seq) from None
    if entry.leaf_hash() != leaf:
        raise archive.problem(f"{which}does not match its leaf hash", seq)
    return entry


def _load_lease(connection: Connection, scope: bytes) -> Any:
    return connection.execute(select(leases).where(leases.c.scope == scope)).one_or_none()
