"""Databases of Handle servers: text dumps of the current storage, and files of the legacy storage (JDB).

Both contain records in binary form: the handle, then a counted list of values. Prefixes are in files of their own
(`nas…`), with prefix handles as keys and no data; they become rows that host the prefix.

A dump has header lines up to `HEADER=END`, then pairs of lines with the key and the data in hexadecimal, each after one
space, and `DATA=END`. A JDB file is a hash table on disk: chains of blocks of 1024 bytes. It is updated in place, so a
copy must be made while the server is stopped.
"""

import hashlib
import io
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.schema.imports import ImportRow, RowOperation, RowProblem

from .formats import MAX_RECORD, Detected, Format, Row, RowReader, invalid_file, shorten
from .jsonl import make_row

JDB_MARK: Final = b"\x00\x0cJDBHash v0.1"
"""The first bytes of a JDB file."""

_MAX_TABLE: Final = 1_000_000  # chains; servers have 5,000
_BLOCK: Final = 1_024
_START, _CONTINUATION = 1, 2
_HEAD: Final = struct.Struct(">Biiq")
_NEXT: Final = struct.Struct(">q")
_MORE: Final = struct.Struct(">Bi")
_VALUE_SIZE: Final = 4


def read_record(handle: str, data: bytes, now: int, line: int = 0) -> Row:
    """A record in binary form; `now` resolves 32-bit times."""
    try:
        reader = Reader(data)
        values = [
            Value.from_bytes(reader.bytes_(MAX_RECORD), now) for _ in range(reader.count(_VALUE_SIZE, MAX_RECORD))
        ]
        reader.finish()
        return make_row(handle, values, line)
    except InvalidData as problem:
        return RowProblem(line, "", shorten(handle), "invalid-record", f"The record is invalid: {problem}.")


def _read_entry(key: bytes, data: bytes, now: int, line: int) -> Row:
    try:
        handle = key.decode("utf-8")
    except UnicodeDecodeError:
        return RowProblem(line, "", shorten(repr(key[:200])), "invalid-handle", "The handle is not UTF-8.")
    if not handle:
        return RowProblem(line, "", "", "missing-handle", "The handle is missing.")
    if not data:
        return ImportRow(line, RowOperation.HOME, handle)
    return read_record(handle, data, now, line)


def read_dump(file: BinaryIO, now: int) -> RowReader:
    """The records, or prefixes, of a text dump."""
    return RowReader(Detected(Format.DUMP), _read_dump(file, now))


def _read_dump(file: BinaryIO, now: int) -> Iterator[Row]:
    lines = _numbered_lines(file)
    if not any(line == b"HEADER=END" for _, line in lines):
        raise invalid_file("invalid-dump", "The dump has no line HEADER=END.")
    for number, line in lines:
        if line == b"DATA=END":
            return
        _, data = next(lines, (number, b""))
        if data[:1] not in (b" ", b"") or data == b"DATA=END":
            raise invalid_file("invalid-dump", "The line with the data of a record is missing.", line=number)
        try:
            key, value = bytes.fromhex(line.decode("ascii")), bytes.fromhex(data.decode("ascii"))
        except ValueError:
            yield RowProblem(number, "", "", "invalid-dump", "The line does not have hexadecimal digits.")
            continue
        yield _read_entry(key, value, now, number)
    raise invalid_file("invalid-dump", "The dump ends too early: it has no line DATA=END.", "Copy the file again.")


def _numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_RECORD * 2 + 1):
        number += 1
        if len(line) > MAX_RECORD * 2:
            raise invalid_file("line-too-long", f"A record has more than {MAX_RECORD:,} bytes.", line=number)
        yield number, line.rstrip(b"\r\n")


def read_jdb(file: BinaryIO, now: int) -> RowReader:
    """The records, or prefixes, of a JDB file, which must be seekable."""
    if not file.seekable():
        raise invalid_file("not-seekable", "A JDB file cannot be read from a pipe.", "Use the name of the file.")
    return RowReader(Detected(Format.JDB), _read_jdb(_Jdb(file), now))


def _read_jdb(jdb: "_Jdb", now: int) -> Iterator[Row]:
    for number, (key, data) in enumerate(jdb.records(), 1):
        yield _read_entry(key, data, now, number)


class _Jdb:
    """The hash table on disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.seek(0, io.SEEK_END)
        self._blocks = file.tell() // _BLOCK + 1
        file.seek(0)
        head = file.read(len(JDB_MARK) + 4)
        self._size = int.from_bytes(head[len(JDB_MARK) :], "big")
        if not head.startswith(JDB_MARK) or not 0 < self._size <= _MAX_TABLE:
            raise invalid_file("invalid-jdb", "The file is not a JDB file.")
        heads = self._take(8 * self._size)
        self._heads: tuple[int, ...] = struct.unpack(f">{self._size}q", heads)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and data in all chains; remains of deleted records, which are in a wrong chain, are skipped."""
        left = self._blocks  # each record has a block: more are a loop
        for bucket, head in enumerate(self._heads):
            position = head
            while position:
                if left == 0:
                    raise invalid_file("invalid-jdb", "The file is damaged: a chain has a loop.")
                left -= 1
                key, data, position = self._read(position)
                digest = int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest()[-4:], "big")
                if (digest & 0x7FFF_FFFF) % self._size == bucket:
                    yield key, data

    def _read(self, position: int) -> tuple[bytes, bytes, int]:
        self._seek(position)
        kind, key_size, size, following = _HEAD.unpack(self._take(_HEAD.size))
        if kind != _START or key_size < 0 or size < 0 or key_size + size > MAX_RECORD:
            raise invalid_file("invalid-jdb", f"The file is damaged at byte {position:,}.")
        left = key_size + size
        payload = bytearray()
        used, continuation = _HEAD.size, 0
        if used + left > _BLOCK:
            (continuation,) = _NEXT.unpack(self._take(_NEXT.size))
            used += _NEXT.size
        payload += self._take(min(left, _BLOCK - used))
        while left > len(payload):
            continuation = self._continue(payload, continuation, left)
        return bytes(payload[:key_size]), bytes(payload[key_size:]), following

    def _continue(self, payload: bytearray, position: int, total: int) -> int:
        """Read a continuation block; returns the position of the next."""
        self._seek(position)
        kind, remaining = _MORE.unpack(self._take(_MORE.size))
        if kind != _CONTINUATION or remaining != total - len(payload):
            raise invalid_file("invalid-jdb", f"The file is damaged at byte {position:,}.")
        used, following = _MORE.size, 0
        if used + remaining > _BLOCK:
            (following,) = _NEXT.unpack(self._take(_NEXT.size))
            used += _NEXT.size
        payload += self._take(min(remaining, _BLOCK - used))
        return int(following)

    def _seek(self, position: int) -> None:
        if position <= 0:
            raise invalid_file("invalid-jdb", "The file is damaged: a block is missing.")
        self._file.seek(position)

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise invalid_file("invalid-jdb", "The file ends too early.", "Copy it while the server is stopped.")
        return data
