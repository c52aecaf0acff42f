"""The backup format, and writing backups: the whole ledger, or what was added after an entry.

A backup is one stream: three lines of text that say what it is and that it contains secrets, then frames with kind and
length, and at the end the hash of everything before. docs/reference/backup-format.md specifies it; `restore` reads it.

The stream is the same for both back ends, so a backup and a restore move a ledger from one to the other. It is written
in one read transaction: it shows one state of the ledger while writers continue. Memory does not grow with the ledger.

Every entry and the tree are recomputed while writing. A backup that cannot be restored is worse than none, because it
replaces the last good one; so damage is reported while that one still exists.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final, Literal, Protocol

import msgspec
from sqlalchemy import Column, Connection, Table, select

from perseid.ledger.errors import CorruptData, LedgerError
from perseid.ledger.log.entry import Entry
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.merkle import Frontier, ReadHashes, subtree_root
from perseid.ledger.store.directory import open_new, sync_directory
from perseid.ledger.store.tables import SIDE_STATE, Statements, entries, head, ledger, redactions
from perseid.proof.verifier import HASH_LENGTH, MAX_NOTE, Checkpoint, LogKey

from .encryption import Output

FIRST_LINE: Final = b"perseid ledger backup 1\n"
SECOND_LINE: Final = (
    b"It contains secrets (keys, private values, names not yet published): keep it as safe as the ledger itself.\n"
)

REDACTED: Final = b"R"
"""An entry of an earlier file, after data was redacted from it."""
ENTRY: Final = b"E"
STATE: Final = b"S"
"""Rows of a table that cannot be computed from entries."""
CHECKPOINT: Final = b"C"
END: Final = b"Z"

MAX_LINE: Final = 65_536
"""Bytes of the longest line before the frames."""

MAX_FRAME: Final = 1 << 30
"""Bytes of the longest entry: neither SQLite nor PostgreSQL stores a longer value."""

MAX_STATE: Final = 1 << 28
"""Bytes of the longest frame with table rows: some hundred rows."""

_LIMITS: Final = {REDACTED: MAX_FRAME, ENTRY: MAX_FRAME, STATE: MAX_STATE, CHECKPOINT: MAX_NOTE, END: HASH_LENGTH}
"""The frames in their order, and the maximum bytes of each."""

_NAMES: Final = {
    "jobs": "operations",
    "jobs.parameters": "asked",
    "jobs.interface": "door",
    "jobs.started_at": "begun",
    "jobs.ended_at": "ended",
    "jobs.owner": "maker",
    "steps.job": "operation",
}
"""Tables and columns that have another name in backups: those were never renamed, so all versions can be read."""

_ORDER: Final = {kind: position for position, kind in enumerate(_LIMITS)}
_FRAME = Struct(">cI")  # kind, length
_ENTRY = Struct(">qq32sB")  # seq, at, leaf, length of the token; the token and the body follow
_REDACTED = Struct(">q")  # seq; the body follows
_READ_SIZE = 1 << 20  # a length may be false, so memory is allocated only for data that exists
_MAX_NUMBER = (1 << 63) - 1


class InvalidBackup(LedgerError):
    """A backup is damaged, incomplete or out of order; the message names the file and the entry."""


class BackupSource(Protocol):
    """A file with a backup, such as a path; it is opened several times."""

    @property
    def name(self) -> str: ...

    def open(self, mode: Literal["rb"], /) -> BinaryIO: ...


class Header(msgspec.Struct, frozen=True):
    """What a backup contains: its third line, in JSON, with bytes in base64."""

    ledger: bytes
    """The ledger's id."""
    origin: str
    """The name under which it signs checkpoints."""
    signer: str
    """The public key that signs them."""
    since: int
    """Entries up to this one are in earlier files; 0 in a full backup."""
    until: int
    """The last entry."""
    at: int
    """The date of the last entry, in microseconds since 1970; 0 if there is none."""
    root_since: bytes
    """The root of the tree of the first `since` entries."""
    root_until: bytes
    """The root of the tree of the first `until` entries."""
    made_at: str
    """When the backup was written, for people."""


class Rows(msgspec.Struct, frozen=True):
    """Rows of a table, in JSON, with bytes in base64."""

    table: str
    columns: list[str]
    rows: list[list[Any]]


def name_in_backup(item: Table | Column[Any]) -> str:
    """Return the name of a table or a column in backups."""
    return _NAMES.get(str(item), str(item.name))


class ArchiveWriter:
    """Writes a backup to a stream."""

    def __init__(self, stream: Output, header: Header) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._write(FIRST_LINE + SECOND_LINE + msgspec.json.encode(header) + b"\n")

    def redacted(self, seq: int, body: bytes) -> None:
        """Write an entry of an earlier file."""
        self._frame(REDACTED, _REDACTED.pack(seq), body)

    def entry(self, seq: int, at: int, token: bytes, leaf: bytes, body: bytes) -> None:
        self._frame(ENTRY, _ENTRY.pack(seq, at, leaf, len(token)), token, body)

    def rows(self, rows: Rows) -> None:
        self._frame(STATE, msgspec.json.encode(rows))

    def checkpoint(self, note: str) -> None:
        """Write the latest checkpoint."""
        self._frame(CHECKPOINT, note.encode())

    def end(self) -> None:
        """Write the end frame."""
        self._frame(END, self._hash.digest())

    def _frame(self, kind: bytes, *parts: bytes) -> None:
        self._write(b"".join((_FRAME.pack(kind, sum(map(len, parts))), *parts)))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._stream.write(data)


class ArchiveReader:
    """Reads a backup from a stream, from start to end."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream
        self._hash = hashlib.sha256()
        if self._read_line() != FIRST_LINE:
            raise self.problem("not a ledger backup, or written by a newer program version")
        self._read_line()  # the warning about secrets
        try:
            self.header = msgspec.json.decode(self._read_line(), type=Header)
            self.signer = LogKey.parse(self.header.signer)
            self.end = Checkpoint(self.header.origin, self.header.until, self.header.root_until)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.problem(f"invalid header (third line): {error}") from None

    def problem(self, message: str, seq: int | None = None) -> InvalidBackup:
        """Build the error for the file, or for an entry in it."""
        location = "" if seq is None else f"entry {seq}: "
        return InvalidBackup(f"{self._name}: {location}{message}; nothing was restored")

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames as (kind, content). The hash is checked at the end."""
        position = 0
        while True:
            head = self._read_exactly(_FRAME.size)
            kind, length = _FRAME.unpack(head)
            if _ORDER.get(kind, -1) < position:
                raise self.problem("damaged: unexpected frame")
            if length > _LIMITS[kind]:
                raise self.problem("damaged: frame too long")
            position = _ORDER[kind]
            content = self._read_exactly(length)
            if kind == END:
                break
            self._hash.update(head)
            self._hash.update(content)
            yield kind, content
        if content != self._hash.digest():
            raise self.problem("damaged: wrong hash")
        if self._stream.read(1):
            raise self.problem("damaged: data after the end")

    def redacted(self, content: bytes) -> tuple[int, bytes]:
        """Parse the number and the body of an entry of an earlier file."""
        if len(content) < _REDACTED.size:
            raise self.problem("damaged: redacted entry too short")
        (seq,) = _REDACTED.unpack_from(content)
        if not 0 < seq <= self.header.since:
            raise self.problem("redacted here, but not in an earlier file", seq)
        return seq, content[_REDACTED.size :]

    def entry(self, content: bytes, expected: int) -> tuple[int, bytes, bytes, bytes]:
        """Parse date, token, leaf hash and body of the next entry, which must have the expected number."""
        if len(content) < _ENTRY.size:
            raise self.problem("too short", expected)
        seq, at, leaf, length = _ENTRY.unpack_from(content)
        if seq != expected:
            raise self.problem(f"found entry {seq} instead", expected)
        if seq > self.header.until:
            raise self.problem(f"after the last entry of its header, {self.header.until}", expected)
        start = _ENTRY.size + length
        return at, content[_ENTRY.size : start], leaf, content[start:]

    def rows(self, content: bytes) -> Rows:
        """Parse rows of a table; bytes are still in base64, see `decode_column`."""
        try:
            return msgspec.json.decode(content, type=Rows)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.problem(f"damaged: {error}") from None

    def _read_line(self) -> bytes:
        line = self._stream.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise self.problem("not a ledger backup, or incomplete")
        self._hash.update(line)
        return line

    def _read_exactly(self, count: int) -> bytes:
        piece = self._stream.read(min(count, _READ_SIZE))
        if len(piece) == count:
            return piece
        pieces = [piece]
        while piece and (count := count - len(piece)):
            piece = self._stream.read(min(count, _READ_SIZE))
            pieces.append(piece)
        if count:
            raise self.problem("incomplete: unexpected end")
        return b"".join(pieces)


def decode_column(kind: type, value: object) -> object:
    """Decode a value of a column type; raise ValueError if it does not fit."""
    if kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__}")
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise ValueError("number too large")
    return value


CHUNK: Final = 200
"""Rows read at a time: a record may have some megabytes, and a query costs little in comparison."""

Progress = Callable[[int], None]
"""Called from time to time with the number of the entry that was reached."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def save_backup(log: Log, path: Path, since: int = 0, progress: Progress = lambda _: None) -> Header:
    """Write a backup to a new file, durably. An existing file is not overwritten."""
    with create_file(path) as stream:
        return write_backup(log, stream, since, progress)


@contextmanager
def create_file(path: Path) -> Iterator[BinaryIO]:
    """Write a new file, durably. An existing file is not overwritten.

    It is written under a temporary name in the same folder, so the file with the final name is complete.
    """
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} already exists; choose another file name")
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with open_new(partial) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        open_new(path).close()  # fails if the name was taken meanwhile; rename would not
        partial.rename(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(partial)):
            error.filename = str(path)  # the name that the user knows
        raise
    sync_directory(path.parent)


def write_backup(log: Log, stream: Output, since: int = 0, progress: Progress = lambda _: None) -> Header:
    """Write the entries after `since`, with everything that a restore needs, to a stream."""
    with log.store.reading() as connection:
        reader = LogReader(connection.connection.cursor(), log.statements)
        header = _build_header(connection, reader, since, log.clock.now())
        archive = ArchiveWriter(stream, header)
        for seq, body in _redacted_entries(connection, since):
            archive.redacted(seq, body)
        tree = _load_frontier(connection, log.statements, since)
        for row in _entries(connection, log.statements, since, header.until):
            seq, at, *_, token, leaf, body = row
            _check_entry(seq, at, body, leaf, tree)
            archive.entry(seq, at, token, leaf, body)
            if seq % CHUNK == 0:
                progress(seq)
        if (tree.size, tree.root()) != (header.until, header.root_until):
            raise CorruptData("the tree does not match the entries. Run: perseid verify --all")
        for rows in _side_state(connection):
            archive.rows(rows)
        if (note := reader.checkpoint()) is not None:
            archive.checkpoint(note)
        archive.end()
    progress(header.until)
    return header


def _build_header(connection: Connection, reader: LogReader, since: int, now: int) -> Header:
    until = reader.size
    if not 0 <= since <= until:
        raise LedgerError(f"entry {since} does not exist; the last entry is {until}")
    one = connection.execute(select(ledger)).one()
    made_at = (_EPOCH + timedelta(microseconds=now)).isoformat(timespec="seconds")
    try:
        roots = reader.root(since), reader.root(until)
    except IndexError:
        raise CorruptData("entries or tree nodes are missing. Run: perseid verify --all") from None
    at = connection.execute(select(head.c.at)).scalar_one()
    return Header(one.id, one.origin, one.signer, since, until, at, *roots, made_at)


def _redacted_entries(connection: Connection, since: int) -> Iterator[Any]:
    """Yield earlier entries from which entries after `since` redacted data."""
    erased = select(redactions.c.seq).where(redactions.c.by > since, redactions.c.seq <= since).distinct()
    query = select(entries.c.seq, entries.c.body).where(entries.c.seq.in_(erased)).order_by(entries.c.seq)
    yield from connection.execute(query, execution_options={"yield_per": CHUNK})


def _entries(connection: Connection, statements: Statements, after: int, until: int) -> Iterator[Any]:
    cursor: Any = connection.connection.cursor()
    for first in range(after, until, CHUNK):
        cursor.execute(statements.following, (first, min(first + CHUNK, until)))
        yield from cursor


def _check_entry(seq: int, at: int, body: bytes, leaf: bytes, tree: Frontier) -> None:
    """Refuse to copy what could not be restored."""
    if seq != tree.size + 1:
        raise CorruptData(f"entry {tree.size + 1} is missing. Run: perseid verify --all")
    try:
        actual = Entry.from_body(seq, at, body).leaf_hash()
    except ValueError as error:
        raise CorruptData(f"entry {seq} cannot be read: {error}") from error
    if actual != leaf:
        raise CorruptData(f"entry {seq} does not match its leaf hash; restore the ledger from an earlier backup")
    tree.append(leaf)


def _load_frontier(connection: Connection, statements: Statements, size: int) -> Frontier:
    """Compute the frontier of the tree of the first `size` entries."""
    cursor: Any = connection.connection.cursor()

    def read(level: int, first: int, count: int) -> list[bytes]:
        if level:
            cursor.execute(statements.nodes, (level, first, first + count))
        else:
            cursor.execute(statements.leaves, (first, first + count))
        return [row[0] for row in cursor.fetchall()]

    return Frontier(size, list(_complete_subtrees(read, size)))


def _complete_subtrees(read: ReadHashes, size: int) -> Iterator[bytes]:
    first = 0
    while first < size:
        end = first + (1 << (size - first).bit_length() - 1)
        yield subtree_root(read, first, end)
        first = end


def _side_state(connection: Connection) -> Iterator[Rows]:
    for table in SIDE_STATE:
        columns = list(map(name_in_backup, table.columns))
        query = select(table).order_by(*table.primary_key)
        result = connection.execute(query, execution_options={"yield_per": CHUNK})
        for part in result.partitions():
            yield Rows(name_in_backup(table), columns, [list(row) for row in part])
