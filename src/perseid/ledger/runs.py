"""Sorting more than fits into memory: runs that are sorted each, and merged when they are read.

Rows gather in memory up to a bound; then they are sorted and written to a file as one run. The file has no name, so it
is gone with the process, however that ends, and nobody else can open it.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Final, Generic, Self, TypeVar

from .errors import StorageFull

RUN_OCTETS: Final = 32 << 20
"""About how much memory the rows of one run take: a hundred thousand rows, so that runs are few."""

_BLOCK_ROWS = 256  # that are read at a time from each run while they are merged
_BLOCK_OCTETS = 1 << 16  # the same for large rows: very many runs may be merged at a time
_ROW_OCTETS = 150  # that a row takes in memory besides its data
_LENGTH = Struct("<I")

Row = TypeVar("Row", bound=tuple[bytes, int] | tuple[bytes, bytes])
_T = TypeVar("_T")


def parts(rows: Iterable[_T], most: int, octets: int, size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Rows in parts that have so many of them at most, and end with the row that makes them so large.

    Both are needed: small rows cost by their number, and the memory of large ones is bounded by their octets only.
    """
    found = iter(rows)
    while part := list(islice(found, 1)):
        room = octets - size(part[0])
        while room > 0 and len(part) < most:
            row = next(found, None)
            if row is None:
                break
            part.append(row)
            room -= size(row)
        yield part


def row_octets(row: tuple[bytes, int] | tuple[bytes, bytes]) -> int:
    """How many octets of data a row has."""
    key, rest = row
    return len(key) + (len(rest) if isinstance(rest, bytes) else 0)


class Runs(Generic[Row]):
    """Takes rows in any order and gives them back in ascending order, once."""

    def __init__(self, row: type[Row], folder: Path, limit: int = RUN_OCTETS) -> None:
        """`row` is the type of the rows; `folder` is where the file is, if there must be one."""
        import msgspec  # noqa: PLC0415 - resolver processes load this module, and never sort anything

        self._decoder = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
        self._encoder = msgspec.msgpack.Encoder()
        self._folder = folder
        self._limit = limit
        self._rows: list[Row] = []
        self._octets = 0
        self._file: int | None = None
        self._runs: list[tuple[int, int]] = []  # where each begins in the file and where it ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows = []
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def add(self, rows: list[Row], octets: int) -> None:
        """Take rows, which have so many octets of data."""
        self._rows += rows
        self._octets += octets + len(rows) * _ROW_OCTETS
        if self._octets > self._limit:
            try:
                self._write_run()
            except OSError as error:
                raise StorageFull(f"there is no room to sort what is to be written ({error.strerror})") from error

    def sorted(self) -> Iterator[Row]:
        """All rows, in ascending order."""
        self._rows.sort()
        return merge(*(self._read_run(*run) for run in self._runs), self._rows) if self._runs else iter(self._rows)

    def _write_run(self) -> None:
        if self._file is None:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._file = os.dup(file.fileno())
        self._rows.sort()
        begin = os.lseek(self._file, 0, os.SEEK_END)
        with os.fdopen(os.dup(self._file), "wb") as stream:
            for rows in self._blocks():
                block = self._encoder.encode(rows)
                stream.write(_LENGTH.pack(len(block)))
                stream.write(block)
        self._runs.append((begin, os.lseek(self._file, 0, os.SEEK_END)))
        self._rows, self._octets = [], 0

    def _blocks(self) -> Iterator[list[Row]]:
        """The rows as they are written: mostly so many at a time, and fewer where they are large."""
        for first in range(0, len(self._rows), _BLOCK_ROWS):
            rows = self._rows[first : first + _BLOCK_ROWS]
            if sum(map(row_octets, rows)) <= _BLOCK_OCTETS:
                yield rows
            else:
                yield from parts(rows, _BLOCK_ROWS, _BLOCK_OCTETS, row_octets)

    def _read_run(self, at: int, end: int) -> Iterator[Row]:
        assert self._file is not None  # noqa: S101 - it was written
        while at < end:
            (length,) = _LENGTH.unpack(os.pread(self._file, _LENGTH.size, at))
            at += _LENGTH.size
            yield from self._decoder.decode(os.pread(self._file, length, at))
            at += length
