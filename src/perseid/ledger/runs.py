"""Sorting more than fits into memory: runs that are sorted each, and merged when they are read.

Rows gather in memory up to a bound; then they are sorted and written to a file as one run. The file has no name, so it
is gone with the process, however that ends, and nobody else can open it.
"""

import os
import tempfile
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from struct import Struct
from typing import Final, Generic, Self, TypeVar

import msgspec

from .errors import StorageFull

RUN_OCTETS: Final = 32 << 20
"""About how much memory the rows of one run take: a hundred thousand rows, so that runs are few."""

_BLOCK_ROWS = 256  # that are read at a time from each run while they are merged
_ROW_OCTETS = 150  # that a row takes in memory besides its data
_LENGTH = Struct("<I")

Row = TypeVar("Row", bound=tuple[bytes, int] | tuple[bytes, bytes])


class Runs(Generic[Row]):
    """Takes rows in any order and gives them back in ascending order, once."""

    def __init__(self, row: type[Row], folder: Path, limit: int = RUN_OCTETS) -> None:
        """`row` is the type of the rows; `folder` is where the file is, if there must be one."""
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
            for first in range(0, len(self._rows), _BLOCK_ROWS):
                block = self._encoder.encode(self._rows[first : first + _BLOCK_ROWS])
                stream.write(_LENGTH.pack(len(block)))
                stream.write(block)
        self._runs.append((begin, os.lseek(self._file, 0, os.SEEK_END)))
        self._rows, self._octets = [], 0

    def _read_run(self, at: int, end: int) -> Iterator[Row]:
        assert self._file is not None  # noqa: S101 - it was written
        while at < end:
            (length,) = _LENGTH.unpack(os.pread(self._file, _LENGTH.size, at))
            at += _LENGTH.size
            yield from self._decoder.decode(os.pread(self._file, length, at))
            at += length
