"""The form of a backup: a stream of octets that says what it is, and by which every part of it can be checked.

Three lines of text come first, so that whoever finds the file knows what it is and that it holds secrets. Then come
frames, each with its kind and its length, and at the end the hash of everything before it. No name of a file is in it.

docs/reference/backup-format.md specifies it; `backup` fills it, `restore` reads it.
"""

import base64
import hashlib
from collections.abc import Iterator
from struct import Struct
from typing import Any, BinaryIO, Final

import msgspec

from perseid.ledger.errors import LedgerError
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
_PIECE = 1 << 20  # a length may lie, so memory is taken only for what is really there
_LARGEST_NUMBER = (1 << 63) - 1


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
        self._put(FIRST_LINE + SECOND_LINE + msgspec.json.encode(header) + b"\n")

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
        self._put(b"".join((_FRAME.pack(kind, sum(map(len, parts))), *parts)))

    def _put(self, octets: bytes) -> None:
        self._hash.update(octets)
        self._stream.write(octets)


class ArchiveReader:
    """Reads a backup from a stream, from its beginning to its end."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream
        self._hash = hashlib.sha256()
        if self._line() != FIRST_LINE:
            raise self.problem("this is not a ledger backup, or one of a newer version of the program")
        self._line()  # says that there are secrets
        try:
            self.header = msgspec.json.decode(self._line(), type=Header)
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
            head = self._exactly(_FRAME.size)
            kind, length = _FRAME.unpack(head)
            if _ORDER.get(kind, -1) < place:
                raise self.problem("it is damaged: it holds something that does not belong there")
            if length > _LIMITS[kind]:
                raise self.problem("it is damaged: it holds something that is too long")
            place = _ORDER[kind]
            content = self._exactly(length)
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

    def _line(self) -> bytes:
        line = self._stream.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise self.problem("this is not a ledger backup, or it is incomplete")
        self._hash.update(line)
        return line

    def _exactly(self, count: int) -> bytes:
        piece = self._stream.read(min(count, _PIECE))
        if len(piece) == count:
            return piece
        pieces = [piece]
        while piece and (count := count - len(piece)):
            piece = self._stream.read(min(count, _PIECE))
            pieces.append(piece)
        if count:
            raise self.problem("it is incomplete: it ends too early")
        return b"".join(pieces)


def from_json(kind: type, value: object) -> object:
    """A value of a column of a type. What cannot be one is refused with ValueError."""
    if kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{kind.__name__} is expected")
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        raise ValueError("the number is too large")
    return value
