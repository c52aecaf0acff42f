"""Writing a backup: the whole ledger, or what was added behind an entry, as one stream of octets.

The stream is the same for both back ends, so a ledger moves from one to the other by a backup and a restore. It is made
in one read transaction: it shows one state of the ledger however many writers go on meanwhile, and never starts over.
Memory does not grow with the ledger.

Every entry is recomputed on its way out, and the tree over them as well. A backup that cannot be restored is worse than
none, because the last good one is thrown away for it; so damage is told when it can still be mended from there.

`archive` has the form of the stream, `restore` reads it.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

from sqlalchemy import Connection, select

from perseid.ledger.backup.archive import ArchiveWriter, Header, Rows
from perseid.ledger.log.entry import Entry
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import Reading
from perseid.ledger.store.directory import open_new, sync_directory
from perseid.ledger.store.tables import SIDE_STATE, Statements, entries, head, ledger, redactions

from .errors import Damaged, LedgerError
from .merkle import Frontier, Read, subtree_root

CHUNK: Final = 200
"""Rows read at a time: a record may have some megabytes, and asking costs little in comparison with a row."""

Progress = Callable[[int], None]
"""Is told from time to time which entry has been reached."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def save_backup(log: Log, path: Path, since: int = 0, progress: Progress = lambda _: None) -> Header:
    """Write a backup to a new file, which is on the disk when this returns. An existing file is not overwritten.

    It is written under another name beside it, so that what has the name is whole.
    """
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists; name another file")
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with open_new(partial) as stream:
            header = write_backup(log, stream, since, progress)
            stream.flush()
            os.fsync(stream.fileno())
        open_new(path).close()  # takes the name, or fails if somebody has taken it meanwhile; rename would not
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    return header


def write_backup(log: Log, stream: BinaryIO, since: int = 0, progress: Progress = lambda _: None) -> Header:
    """Write the entries behind `since`, with all that a restore needs, to a stream; what was written is answered."""
    with log.store.reading() as connection:
        reading = Reading(connection.connection.cursor(), log.statements)
        header = _header(connection, reading, since, log.clock.now())
        archive = ArchiveWriter(stream, header)
        for seq, body in _redacted(connection, since):
            archive.redacted(seq, body)
        tree = _frontier(connection, log.statements, since)
        for row in _entries(connection, log.statements, since, header.until):
            seq, at, *_, token, leaf, body = row
            _check(seq, at, body, leaf, tree)
            archive.entry(seq, at, token, leaf, body)
            if seq % CHUNK == 0:
                progress(seq)
        if (tree.size, tree.root()) != (header.until, header.root_until):
            raise Damaged("the tree is not that of the entries; verify the ledger")
        for rows in _side_state(connection):
            archive.rows(rows)
        if (note := reading.checkpoint()) is not None:
            archive.checkpoint(note)
        archive.end()
    progress(header.until)
    return header


def _header(connection: Connection, reading: Reading, since: int, now: int) -> Header:
    until = reading.size
    if not 0 <= since <= until:
        raise LedgerError(f"there is no entry {since} to go on from; the ledger has {until}")
    one = connection.execute(select(ledger)).one()
    made_at = (_EPOCH + timedelta(microseconds=now)).isoformat(timespec="seconds")
    try:
        roots = reading.root(since), reading.root(until)
    except IndexError:
        raise Damaged("entries, or nodes of the tree over them, are missing; verify the ledger") from None
    at = connection.execute(select(head.c.at)).scalar_one()
    return Header(one.id, one.origin, one.signer, since, until, at, *roots, made_at)


def _redacted(connection: Connection, since: int) -> Iterator[Any]:
    """Earlier entries from which data was erased by entries behind `since`."""
    erased = select(redactions.c.seq).where(redactions.c.by > since, redactions.c.seq <= since).distinct()
    wanted = select(entries.c.seq, entries.c.body).where(entries.c.seq.in_(erased)).order_by(entries.c.seq)
    yield from connection.execute(wanted, execution_options={"yield_per": CHUNK})


def _entries(connection: Connection, statements: Statements, after: int, until: int) -> Iterator[Any]:
    cursor: Any = connection.connection.cursor()
    for first in range(after, until, CHUNK):
        cursor.execute(statements.following, (first, min(first + CHUNK, until)))
        yield from cursor


def _check(seq: int, at: int, body: bytes, leaf: bytes, tree: Frontier) -> None:
    """Refuse to copy what could not be restored."""
    if seq != tree.size + 1:
        raise Damaged(f"entry {tree.size + 1} is missing; verify the ledger")
    try:
        found = Entry.from_body(seq, at, body).leaf_hash()
    except ValueError as error:
        raise Damaged(f"entry {seq} cannot be read: {error}") from error
    if found != leaf:
        raise Damaged(f"entry {seq} is not what was committed to the tree; restore it from an earlier backup")
    tree.append(leaf)


def _frontier(connection: Connection, statements: Statements, size: int) -> Frontier:
    """The tree of the first so many entries, to go on from."""
    cursor: Any = connection.connection.cursor()

    def read(level: int, first: int, count: int) -> list[bytes]:
        if level:
            cursor.execute(statements.nodes, (level, first, first + count))
        else:
            cursor.execute(statements.leaves, (first, first + count))
        return [row[0] for row in cursor.fetchall()]

    return Frontier(size, list(_complete_subtrees(read, size)))


def _complete_subtrees(read: Read, size: int) -> Iterator[bytes]:
    first = 0
    while first < size:
        end = first + (1 << (size - first).bit_length() - 1)
        yield subtree_root(read, first, end)
        first = end


def _side_state(connection: Connection) -> Iterator[Rows]:
    for table in SIDE_STATE:
        columns = [str(column.name) for column in table.columns]
        wanted = select(table).order_by(*table.primary_key)
        found = connection.execute(wanted, execution_options={"yield_per": CHUNK})
        for part in found.partitions():
            yield Rows(str(table.name), columns, [list(row) for row in part])
