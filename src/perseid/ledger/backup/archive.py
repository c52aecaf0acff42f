"""The form of a backup: a stream of octets that says what it is, and by which every part of it can be checked.

Three lines of text come first, so that whoever finds the file knows what it is and that it holds secrets. Then come
frames, each with its kind and its length, and at the end the hash of everything before it. No name of a file is in it.

docs/reference/backup-format.md specifies it; `backup` fills it, `restore` reads it.

Writing a backup: the whole ledger, or what was added behind an entry, as one stream of octets.

The stream is the same for both back ends, so a ledger moves from one to the other by a backup and a restore. It is made
in one read transaction: it shows one state of the ledger however many writers go on meanwhile, and never starts over.
Memory does not grow with the ledger.

Every entry is recomputed on its way out, and the tree over them as well. A backup that cannot be restored is worse than
none, because the last good one is thrown away for it; so damage is told when it can still be mended from there.

`archive` has the form of the stream, `restore` reads it.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

import msgspec
from sqlalchemy import Connection, select

from perseid.ledger.errors import CorruptData, LedgerError
from perseid.ledger.log.entry import Entry
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.merkle import Frontier, ReadHashes, subtree_root
from perseid.ledger.store.directory import open_new, sync_directory
from perseid.ledger.store.tables import SIDE_STATE, Statements, entries, head, ledger, redactions
from perseid.proof.verifier import HASH_LENGTH, MAX_NOTE, Checkpoint, LogKey

FIRST_LINE: Final = b"perseid ledger backup 1\n"
SECOND_LINE: Final = (
    b"It contains secrets (keys, private values, names not yet published): keep it as safe as the ledger itself.\n"
)

REDACTED: Final = b"R"
"""An entry of an earlier file as it is now, after data was erased from it."""
ENTRY: Final = b"E"
STATE: Final = b"S"
"""Rows of a table that cannot be computed from entries."""
CHECKPOINT: Final = b"C"
END: Final = b"Z"

MAX_LINE: Final = 65_536
"""Octets of the longest line before the frames."""

MAX_FRAME: Final = 1 << 30
"""Octets of the longest entry: neither SQLite nor PostgreSQL keeps a longer value."""

MAX_STATE: Final = 1 << 28
"""Octets of the longest frame with side state: some hundred rows."""

_LIMITS: Final = {REDACTED: MAX_FRAME, ENTRY: MAX_FRAME, STATE: MAX_STATE, CHECKPOINT: MAX_NOTE, END: HASH_LENGTH}
"""The frames in the order in which they stand, and the most octets in each."""

_ORDER: Final = {kind: place for place, kind in enumerate(_LIMITS)}
_FRAME = Struct(">cI")  # what it is, and how many octets follow
_ENTRY = Struct(">qq32sB")  # seq, at, leaf, length of the token; the token and the body follow
_REDACTED = Struct(">q")  # seq; the body follows
_READ_SIZE = 1 << 20  # a length may lie, so memory is taken only for what is really there
_MAX_NUMBER = (1 << 63) - 1


class InvalidBackup(LedgerError):
    """A backup is damaged, incomplete or not the one that follows; the message names the file and the entry."""


class Header(msgspec.Struct, frozen=True):
    """What a backup is of: its third line, in JSON, with octets in base64."""

    ledger: bytes
    """Which ledger."""
    origin: str
    """The name under which it signs checkpoints."""
    signer: str
    """The public key with which it does."""
    since: int
    """The entries up to this one are in earlier files; 0 in a full backup."""
    until: int
    """The last entry."""
    at: int
    """The date of the last entry, in microseconds since 1970; 0 if there is none."""
    root_since: bytes
    """The root of the tree of the first `since` entries."""
    root_until: bytes
    """The root of the tree of the first `until` entries."""
    made_at: str
    """For people: when it was made."""


class Rows(msgspec.Struct, frozen=True):
    """Some rows of a table, in JSON, with octets in base64."""

    table: str
    columns: list[str]
    rows: list[list[Any]]


class ArchiveWriter:
    """Writes a backup to a stream."""

    def __init__(self, stream: BinaryIO, header: Header) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._write(FIRST_LINE + SECOND_LINE + msgspec.json.encode(header) + b"\n")

    def redacted(self, seq: int, body: bytes) -> None:
        """Add an entry of an earlier file."""
        self._frame(REDACTED, _REDACTED.pack(seq), body)

    def entry(self, seq: int, at: int, token: bytes, leaf: bytes, body: bytes) -> None:
        """Add an entry."""
        self._frame(ENTRY, _ENTRY.pack(seq, at, leaf, len(token)), token, body)

    def rows(self, rows: Rows) -> None:
        """Add rows of a table."""
        self._frame(STATE, msgspec.json.encode(rows))

    def checkpoint(self, note: str) -> None:
        """Add the latest checkpoint."""
        self._frame(CHECKPOINT, note.encode())

    def end(self) -> None:
        """Say that this was all."""
        self._frame(END, self._hash.digest())

    def _frame(self, kind: bytes, *parts: bytes) -> None:
        self._write(b"".join((_FRAME.pack(kind, sum(map(len, parts))), *parts)))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._stream.write(data)


class ArchiveReader:
    """Reads a backup from a stream, from its beginning to its end."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream
        self._hash = hashlib.sha256()
        if self._read_line() != FIRST_LINE:
            raise self.problem("this is not a ledger backup, or one of a newer version of the program")
        self._read_line()  # says that there are secrets
        try:
            self.header = msgspec.json.decode(self._read_line(), type=Header)
            self.signer = LogKey.parse(self.header.signer)
            self.end = Checkpoint(self.header.origin, self.header.until, self.header.root_until)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.problem(f"its third line does not say what it is of: {error}") from None

    def problem(self, message: str, seq: int | None = None) -> InvalidBackup:
        """What is wrong with the file, or with an entry in it."""
        place = "" if seq is None else f"entry {seq}: "
        return InvalidBackup(f"{self._name}: {place}{message}; nothing was restored")

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """What the file holds: kind and content. Its hash is checked when all has been taken."""
        place = 0
        while True:
            head = self._read_exactly(_FRAME.size)
            kind, length = _FRAME.unpack(head)
            if _ORDER.get(kind, -1) < place:
                raise self.problem("it is damaged: it holds something that does not belong there")
            if length > _LIMITS[kind]:
                raise self.problem("it is damaged: it holds something that is too long")
            place = _ORDER[kind]
            content = self._read_exactly(length)
            if kind == END:
                break
            self._hash.update(head)
            self._hash.update(content)
            yield kind, content
        if content != self._hash.digest():
            raise self.problem("it is damaged: its hash is another one")
        if self._stream.read(1):
            raise self.problem("it is damaged: there is more behind its end")

    def redacted(self, content: bytes) -> tuple[int, bytes]:
        """The number and the body of an entry of an earlier file."""
        if len(content) < _REDACTED.size:
            raise self.problem("it is damaged: a redacted entry is too short")
        (seq,) = _REDACTED.unpack_from(content)
        if not 0 < seq <= self.header.since:
            raise self.problem("it is redacted here, but is in no earlier file", seq)
        return seq, content[_REDACTED.size :]

    def entry(self, content: bytes, expected: int) -> tuple[int, bytes, bytes, bytes]:
        """The date, the token, the leaf hash and the body of the entry that must come next."""
        if len(content) < _ENTRY.size:
            raise self.problem("it is too short", expected)
        seq, at, leaf, length = _ENTRY.unpack_from(content)
        if seq != expected or seq > self.header.until:
            raise self.problem(f"there is entry {seq} in its place", expected)
        start = _ENTRY.size + length
        return at, content[_ENTRY.size : start], leaf, content[start:]

    def rows(self, content: bytes) -> Rows:
        """Rows of a table; octets stand there in base64 still, see `from_json`."""
        try:
            return msgspec.json.decode(content, type=Rows)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.problem(f"it is damaged: {error}") from None

    def _read_line(self) -> bytes:
        line = self._stream.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise self.problem("this is not a ledger backup, or it is incomplete")
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
            raise self.problem("it is incomplete: it ends too early")
        return b"".join(pieces)


def decode_column(kind: type, value: object) -> object:
    """A value of a column of a type. What cannot be one is refused with ValueError."""
    if kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{kind.__name__} is expected")
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise ValueError("the number is too large")
    return value


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
        reading = LogReader(connection.connection.cursor(), log.statements)
        header = _build_header(connection, reading, since, log.clock.now())
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
            raise CorruptData("the tree is not that of the entries; verify the ledger")
        for rows in _side_state(connection):
            archive.rows(rows)
        if (note := reading.checkpoint()) is not None:
            archive.checkpoint(note)
        archive.end()
    progress(header.until)
    return header


def _build_header(connection: Connection, reading: LogReader, since: int, now: int) -> Header:
    until = reading.size
    if not 0 <= since <= until:
        raise LedgerError(f"there is no entry {since} to go on from; the ledger has {until}")
    one = connection.execute(select(ledger)).one()
    made_at = (_EPOCH + timedelta(microseconds=now)).isoformat(timespec="seconds")
    try:
        roots = reading.root(since), reading.root(until)
    except IndexError:
        raise CorruptData("entries, or nodes of the tree over them, are missing; verify the ledger") from None
    at = connection.execute(select(head.c.at)).scalar_one()
    return Header(one.id, one.origin, one.signer, since, until, at, *roots, made_at)


def _redacted_entries(connection: Connection, since: int) -> Iterator[Any]:
    """Earlier entries from which data was erased by entries behind `since`."""
    erased = select(redactions.c.seq).where(redactions.c.by > since, redactions.c.seq <= since).distinct()
    wanted = select(entries.c.seq, entries.c.body).where(entries.c.seq.in_(erased)).order_by(entries.c.seq)
    yield from connection.execute(wanted, execution_options={"yield_per": CHUNK})


def _entries(connection: Connection, statements: Statements, after: int, until: int) -> Iterator[Any]:
    cursor: Any = connection.connection.cursor()
    for first in range(after, until, CHUNK):
        cursor.execute(statements.following, (first, min(first + CHUNK, until)))
        yield from cursor


def _check_entry(seq: int, at: int, body: bytes, leaf: bytes, tree: Frontier) -> None:
    """Refuse to copy what could not be restored."""
    if seq != tree.size + 1:
        raise CorruptData(f"entry {tree.size + 1} is missing; verify the ledger")
    try:
        found = Entry.from_body(seq, at, body).leaf_hash()
    except ValueError as error:
        raise CorruptData(f"entry {seq} cannot be read: {error}") from error
    if found != leaf:
        raise CorruptData(f"entry {seq} is not what was committed to the tree; restore it from an earlier backup")
    tree.append(leaf)


def _load_frontier(connection: Connection, statements: Statements, size: int) -> Frontier:
    """The tree of the first so many entries, to go on from."""
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
        columns = [str(column.name) for column in table.columns]
        wanted = select(table).order_by(*table.primary_key)
        found = connection.execute(wanted, execution_options={"yield_per": CHUNK})
        for part in found.partitions():
            yield Rows(str(table.name), columns, [list(row) for row in part])
