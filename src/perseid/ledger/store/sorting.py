"""External sorting: sorted runs in a temporary file, merged when they are read.

Rows collect in memory up to a limit; then they are sorted and written to the file as one run. The file has no name, so
it disappears with the process and no other process can open it.
"""

import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Final, Generic, Self, TypeVar

from perseid.ledger.errors import StorageFull

RUN_SIZE: Final = 32 << 20
"""Approximate memory of one run: a hundred thousand rows, so that there are few runs."""

_BLOCK_ROWS = 512  # rows read at a time from each run during the merge
_BLOCK_SIZE = 1 << 16  # bytes of large rows: many runs may be merged at a time
_ROW_OVERHEAD = 150  # memory of a row besides its data
_LENGTH = Struct("<I")

Row = TypeVar("Row", bound=tuple[bytes, int] | tuple[bytes, bytes])
_T = TypeVar("_T")


def split_batches(rows: Iterable[_T], most: int, byte_count: int, size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Split rows into batches of at most `most` rows that end with the row that exceeds `byte_count`.

    Both limits are needed: small rows cost by number, large ones by size.
    """
    remaining_rows = iter(rows)
    while batch := take_batch(remaining_rows, most, byte_count, size):
        yield batch


def take_batch(rows: Iterator[_T], most: int, byte_count: int, size: Callable[[_T], int]) -> list[_T]:
    """Take the next batch, as in `split_batches`; empty if there are no more rows."""
    batch = []
    for row in islice(rows, most):
        batch.append(row)
        byte_count -= size(row)
        if byte_count <= 0:
            break
    return batch


def row_size(row: tuple[bytes, int] | tuple[bytes, bytes]) -> int:
    """Return the bytes of data in a row."""
    key, rest = row
    return len(key) + (len(rest) if isinstance(rest, bytes) else 0)


def count_bytes(rows: Sequence[tuple[bytes, int] | tuple[bytes, bytes]]) -> int:
    """Return the bytes of data in rows."""
    if not rows:
        return 0
    columns = (0, 1) if isinstance(rows[0][1], bytes) else (0,)
    return sum([sum(map(len, map(itemgetter(column), rows))) for column in columns])


class ExternalSorter(Generic[Row]):
    """Takes rows in any order and returns them in ascending order, once."""

    def __init__(self, row: type[Row], folder: Path, limit: int = RUN_SIZE, *, by_key: bool = False) -> None:
        """`row` is the type of the rows; `folder` is where the temporary file is created if needed.

        If rows with the same key are added in ascending order, or if their order does not matter, they can be sorted
        `by_key` alone: to compare keys takes half as long as to compare rows.
        """
        import msgspec  # noqa: PLC0415 - most commands load this module but never sort

        self._decoder = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
        self._encoder = msgspec.msgpack.Encoder()
        self._folder = folder
        self._limit = limit
        self._order: Callable[[Row], bytes] | None = itemgetter(0) if by_key else None
        self._rows: list[Row] = []
        self._byte_count = 0
        self._file: int | None = None
        self._runs: list[tuple[int, int]] = []  # start and end in the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the rows, and release the file."""
        self._rows = []
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def add(self, rows: list[Row], byte_count: int) -> None:
        """Add rows with `byte_count` bytes of data in total."""
        self._rows += rows
        self._byte_count += byte_count + len(rows) * _ROW_OVERHEAD
        if self._byte_count > self._limit:
            try:
                self._write_run()
            except OSError as error:
                raise StorageFull(f"cannot write the temporary file for sorting ({error.strerror})") from error

    def unsorted(self) -> list[Row] | None:
        """Return the rows so far; None if some are in the file."""
        return None if self._runs else self._rows

    def sorted(self) -> Iterator[Row]:
        """Return all rows in ascending order."""
        return chain.from_iterable(self.sorted_blocks())

    def sorted_blocks(self) -> Iterator[list[Row]]:
        """Return all rows in ascending order, in blocks."""
        self._rows.sort(key=self._order)
        return _merge([*(self._read_run(*run) for run in self._runs), self._blocks()], self._order)

    def _write_run(self) -> None:
        if self._file is None:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._file = os.dup(file.fileno())
        self._rows.sort(key=self._order)
        begin = os.lseek(self._file, 0, os.SEEK_END)
        with os.fdopen(os.dup(self._file), "wb") as stream:
            for rows in self._blocks():
                block = self._encoder.encode(rows)
                stream.write(_LENGTH.pack(len(block)))
                stream.write(block)
        self._runs.append((begin, os.lseek(self._file, 0, os.SEEK_END)))
        self._rows, self._byte_count = [], 0

    def _blocks(self) -> Iterator[list[Row]]:
        """Yield the rows in the blocks in which they are written."""
        for first in range(0, len(self._rows), _BLOCK_ROWS):
            rows = self._rows[first : first + _BLOCK_ROWS]
            if count_bytes(rows) <= _BLOCK_SIZE:
                yield rows
            else:
                yield from split_batches(rows, _BLOCK_ROWS, _BLOCK_SIZE, row_size)

    def _read_run(self, at: int, end: int) -> Iterator[list[Row]]:
        """Yield the blocks of a run."""
        assert self._file is not None  # noqa: S101 - it was written
        while at < end:
            (length,) = _LENGTH.unpack(os.pread(self._file, _LENGTH.size, at))
            at += _LENGTH.size
            yield self._decoder.decode(os.pread(self._file, length, at))
            at += length


def _merge(runs: Iterable[Iterator[list[Row]]], order: Callable[[Row], bytes] | None) -> Iterator[list[Row]]:
    """Merge sorted runs, each in blocks.

    Every round takes from the current block of each run what is not above the lowest last row of all: nothing that
    comes later is below it. To sort a list made of a few sorted parts costs less than to compare row by row in Python.
    """
    current = [(block, 0, run) for run in runs if (block := next(run, None))]
    while current:
        limit = min([block[-1] for block, _, _ in current])
        merged: list[Row] = []
        remaining = []
        for block, start, run in current:
            end = len(block) if block[-1] == limit else bisect_right(block, limit, start)
            merged += block[start:end]
            if end < len(block):
                remaining.append((block, end, run))
            elif following := next(run, None):
                remaining.append((following, 0, run))
        current = remaining
        merged.sort(key=order)
        yield merged
