"""What a load computes: the entries, and the rows of the views in sorted runs; for large loads in a second process.

Encoding and hashing need more than half of the time of a load, in Python, so a thread would not help. The second
process gets chunks of drafts over a pipe, returns entries, keeps the rows of the views, and returns those in order at
the end. It opens nothing of the ledger: only the process that loads writes, in one transaction. If that one ends, the
second one does; if the second one ends, nothing is loaded.
"""

import fcntl
import gc
import os
import subprocess
import sys
import termios
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import IO, Any, Final, NamedTuple, TypeAlias

import msgspec

from perseid.ledger.errors import LedgerError, StorageFull
from perseid.ledger.log.entry import Action, Change, Draft, LastUpdate, State, Summary, encode_fields
from perseid.ledger.store.sorting import ExternalSorter, count_bytes
from perseid.ledger.views.answers_format import encode_item, record_key, store_key
from perseid.ledger.views.search_keys import index_keys

BLOCK_ROWS: Final = 2_000
"""Rows of an SQL view that are written at a time."""

SLICE: Final = 128
"""Drafts that this process encodes before it looks again whether the other one is ready; four inserts."""

MAX_LATER: Final = 8 << 20
"""Bytes of entries after the chunk that waits for the other process: so many are in memory, and as many before it. That
is as much as this process encodes while the other one starts."""

MAX_FRAME: Final = 1 << 30
"""Bytes of the longest message between the two processes: a chunk has a few megabytes, and values of one each."""

PIPE_SIZE: Final = 1 << 20
"""Bytes between the two processes, for most chunks: neither waits until the other one reads."""

_ARGUMENTS = ("-P", "-m", "perseid.ledger.backup.load_encoding")
_STATES = {int(state): state for state in State}  # several times as fast as `State`
_FRAME = Struct("<cI")  # what follows, and its length
_MESSAGE, _FULL = b"M", b"F"

PackedDraft: TypeAlias = tuple[str, int, int, bool, str, str, list[bytes]]
"""Handle, action, state, case rule, origin, note and encoded values of a new record."""


def pack_draft(draft: Draft, contents: list[bytes]) -> PackedDraft:
    """Convert a draft to the form that can be sent to another process."""
    origin = f"{draft.interface} {draft.actor}"
    return draft.handle, int(draft.action), int(draft.state), draft.exact, origin, draft.note, contents


class EncodedChunk(NamedTuple):
    """Entries, in order."""

    leaves: list[bytes]
    """Their leaf hashes."""
    bodies: list[bytes]
    """Their stored forms."""


class ViewRows(NamedTuple):
    """Rows of the views, in the order of the entries."""

    records: list[tuple[bytes, int]]
    search_keys: list[tuple[bytes, int]]
    items: list[tuple[bytes, bytes]]


def encode_chunk(chunk: Iterable[PackedDraft], first: int, at: int, random: bytes) -> tuple[EncodedChunk, ViewRows]:
    """Encode new records as the entries from `first` on, with the rows of the views."""
    encoded, rows = EncodedChunk([], []), ViewRows([], [], [])
    leaves, bodies = encoded
    records, search_keys, items = rows
    start = 0
    for seq, (handle, action, state, exact, origin, note, contents) in enumerate(chunk, first):
        name = handle.encode("utf-8")
        end = start + random_size(contents)
        body, leaf = encode_fields(
            (action, state, exact), (name, origin.encode(), note.encode()), contents, seq, at, {}, random[start:end]
        )
        start = end
        leaves.append(leaf)
        bodies.append(body)
        key = record_key(name, exact=exact)
        records.append((key, seq))
        search_keys += [(search_key, seq) for search_key in index_keys(contents)]
        item_key = store_key(key)
        change = Change(seq, at, leaf, key, handle, exact, _STATES[state], contents, _first_update(action, origin))
        item = encode_item(change, item_key)
        if item is not None:
            items.append((item_key, item))
    return encoded, rows


class RowSorters:
    """Sorts the rows of the views."""

    def __init__(self, folder: Path, run_size: int) -> None:
        """`folder` is where unnamed temporary files are created."""
        self._records = ExternalSorter(tuple[bytes, int], folder, run_size, by_key=True)
        self._search_keys = ExternalSorter(tuple[bytes, int], folder, run_size, by_key=True)
        self._items = ExternalSorter(tuple[bytes, bytes], folder, run_size, by_key=True)

    def close(self) -> None:
        """Release the temporary files."""
        for sorter in (self._records, self._search_keys, self._items):
            sorter.close()

    def add(self, rows: ViewRows) -> None:
        """Add rows of entries after those before."""
        self._records.add(rows.records, count_bytes(rows.records))
        self._search_keys.add(rows.search_keys, count_bytes(rows.search_keys))
        self._items.add(rows.items, count_bytes(rows.items))

    def unsorted(self) -> ViewRows | None:
        """Return all rows; None if some are in a file."""
        records, keys, items = self._records.unsorted(), self._search_keys.unsorted(), self._items.unsorted()
        return None if records is None or keys is None or items is None else ViewRows(records, keys, items)

    def records(self) -> Iterator[list[Any]]:
        """Yield the rows of `records` by ascending key, once, in blocks: key, entry, key, entry …"""
        return _flat_blocks(self._records.sorted_blocks())

    def search_keys(self) -> Iterator[list[Any]]:
        """The same for `search`."""
        return _flat_blocks(self._search_keys.sorted_blocks())

    def item_blocks(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the items of the answers view by ascending key, once, in blocks."""
        return self._items.sorted_blocks()


def random_size(contents: Sequence[bytes]) -> int:
    """Return how many random bytes a new entry needs: a nonce, and salts of the actor, the note and each value."""
    return (3 + len(contents)) * 16


@lru_cache(256)
def _first_update(action: int, origin: str) -> LastUpdate:
    """What the first entry of a record tells about when its values changed."""
    interface = origin.partition(" ")[0]
    return Summary(Action(action), State.NORMAL, False, "", interface, [], []).last_update(None)


def _flat_blocks(blocks: Iterable[list[tuple[bytes, int]]]) -> Iterator[list[Any]]:
    """Join the rows of an SQL view into lists of about `BLOCK_ROWS` rows; their keys have a limited length."""
    flat: list[Any] = []
    for block in blocks:
        flat += chain.from_iterable(block)
        if len(flat) >= 2 * BLOCK_ROWS:
            yield flat
            flat = []
    if flat:
        yield flat


class EncodingFailed(LedgerError):
    """The second process has ended, so nothing was loaded."""


class EncoderProcess:
    """A second process that encodes chunks, one at a time, and sorts the rows of the views."""

    def __init__(self, folder: Path, run_size: int, at: int, rows: ViewRows) -> None:
        """`at` is the time of all entries; `rows` are those of the entries before."""
        # In a group of its own: Ctrl-C in a terminal is for this process, which ends the other one.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, *_ARGUMENTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._requests, self._results = self._process.stdin, self._process.stdout
        for pipe in (self._requests, self._results):
            with suppress(OSError):  # there is a limit for each user
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._is_busy = False  # with a chunk whose result was not taken
        self._send((str(folder), run_size, at, rows))

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._results):
            with suppress(BrokenPipeError):  # what it did not read
                pipe.close()

    @property
    def is_working(self) -> bool:
        """Whether it would have to be waited for."""
        return self._is_busy and not any(fcntl.ioctl(self._results, termios.FIONREAD, bytes(4)))

    def submit(self, chunk: list[PackedDraft], first: int, random: bytes, rows: list[ViewRows]) -> None:
        """Encode a chunk as the entries from `first` on; after their rows, add `rows` to those of the views."""
        self._send((chunk, first, random, rows))
        self._is_busy = True

    def results(self) -> list[EncodedChunk]:
        """Take what was submitted last, if it was not taken yet; wait for it."""
        if not self._is_busy:
            return []
        self._is_busy = False
        return [self._receive(_ENCODED)]

    def finish(self, rows: list[ViewRows]) -> None:
        """Add the last rows. Then each of the following methods is called once, in this order, and read to its end."""
        self._send(((), 0, b"", rows))

    def records(self) -> Iterator[list[Any]]:
        """See `RowSorters`."""
        return self._blocks(_FLAT)

    def search_keys(self) -> Iterator[list[Any]]:
        """See `RowSorters`."""
        return self._blocks(_FLAT)

    def item_blocks(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """See `RowSorters`."""
        return self._blocks(_ITEMS)

    def _blocks(self, decoder: "msgspec.msgpack.Decoder[list[Any]]") -> Iterator[list[Any]]:
        while block := self._receive(decoder):
            yield block

    def _send(self, message: object) -> None:
        try:
            _write_frame(self._requests, _MESSAGE, message)
        except BrokenPipeError:
            self._receive(_FLAT)  # it may have said why
            raise EncodingFailed(_ENDED) from None

    def _receive(self, decoder: "msgspec.msgpack.Decoder[Any]") -> Any:
        frame = _read_frame(self._results)
        if frame is None:
            raise EncodingFailed(_ENDED)
        kind, message = frame
        if kind == _FULL:
            raise StorageFull(message.decode())
        return decoder.decode(message)


class LoadEncoding:
    """Encodes the chunks of a load in order, with two processes if there are many of them."""

    def __init__(self, folder: Path, run_size: int, chunk_size: int, chunks_alone: int) -> None:
        """After `chunks_alone` chunks a second process starts, if there is another core."""
        self._folder = folder
        self._run_size = run_size
        self._chunk_size = chunk_size
        self._chunks_alone = chunks_alone
        self._sorters = RowSorters(folder, run_size)
        self._process: EncoderProcess | None = None
        self._next = 1
        self._at = 0
        self._after = EncodedChunk([], [])  # after the chunk that the process has
        self._waiting: tuple[list[PackedDraft], int, bytes] | None = None  # the chunk that it gets next, without delay
        self._later = EncodedChunk([], [])  # after that
        self._later_size = 0
        self._rows: list[ViewRows] = []  # which the process does not have yet

    def close(self) -> None:
        """End the second process, and release the temporary files."""
        if self._process is not None:
            self._process.close()
        self._sorters.close()

    def start(self, first: int, at: int) -> None:
        """Set the number of the first entry, and the time of all."""
        self._next, self._at = first, at

    @property
    def chunk_size(self) -> int:
        """How many drafts to take next: a chunk for the other process, or a few, as it should not wait for this one."""
        return self._chunk_size if self._waiting is None else SLICE

    def _start_process(self) -> None:
        rows = self._sorters.unsorted()
        if rows is not None and len(os.sched_getaffinity(0)) > 1:
            self._process = EncoderProcess(self._folder, self._run_size, self._at, rows)

    def encode(self, chunk: list[PackedDraft], random: bytes) -> Iterator[EncodedChunk]:
        """Encode the next drafts, and return what is ready and was not returned yet, in order."""
        first, self._next = self._next, self._next + len(chunk)
        if self._chunks_alone == 0:
            self._start_process()
        self._chunks_alone -= 1
        process = self._process
        if process is None:
            encoded, rows = encode_chunk(chunk, first, self._at, random)
            self._sorters.add(rows)
            yield encoded
            return
        if self._waiting is None:
            self._waiting = chunk, first, random
        else:
            encoded, rows = encode_chunk(chunk, first, self._at, random)
            self._later.leaves.extend(encoded.leaves)
            self._later.bodies.extend(encoded.bodies)
            self._later_size += sum(map(len, encoded.bodies))
            self._rows.append(rows)
        if not process.is_working or self._later_size >= MAX_LATER:
            yield from self._submit(process, *self._waiting)

    def _submit(
        self, process: EncoderProcess, chunk: list[PackedDraft], first: int, random: bytes
    ) -> list[EncodedChunk]:
        """Give the other process what waits for it; return what it had, and what comes before what it gets."""
        ready = [each for each in (*process.results(), self._after) if each.bodies]
        process.submit(chunk, first, random, self._rows)
        self._after, self._waiting, self._later, self._rows = self._later, None, EncodedChunk([], []), []
        self._later_size = 0
        return ready

    def finish(self) -> list[EncodedChunk]:
        """Return what is left."""
        process = self._process
        if process is None:
            return []
        ready = [] if self._waiting is None else self._submit(process, *self._waiting)
        ready += [each for each in (*process.results(), self._after) if each.bodies]
        process.finish(self._rows)
        return ready

    def records(self) -> Iterator[list[Any]]:
        """Yield the rows of `records` by ascending key, in blocks. This and the following are read once, in order."""
        return (self._process or self._sorters).records()

    def search_keys(self) -> Iterator[list[Any]]:
        """Yield the rows of `search` by ascending key, in blocks."""
        return (self._process or self._sorters).search_keys()

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items of the answers view by ascending key."""
        return chain.from_iterable((self._process or self._sorters).item_blocks())


_ENDED = "the process that encodes the entries of a load has ended. Nothing was loaded; retry"

_encode = msgspec.msgpack.Encoder().encode
_START = msgspec.msgpack.Decoder(tuple[str, int, int, ViewRows])
_REQUEST = msgspec.msgpack.Decoder(tuple[list[PackedDraft], int, bytes, list[ViewRows]])
_ENCODED = msgspec.msgpack.Decoder(EncodedChunk)
_FLAT: "msgspec.msgpack.Decoder[list[Any]]" = msgspec.msgpack.Decoder(list[Any])
_ITEMS: "msgspec.msgpack.Decoder[list[Any]]" = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


def _write_frame(pipe: IO[bytes], kind: bytes, message: object) -> None:
    raw = message if isinstance(message, bytes) else _encode(message)
    pipe.write(_FRAME.pack(kind, len(raw)))
    pipe.write(raw)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Read a message; None if there are no more."""
    head = pipe.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    kind, length = _FRAME.unpack(head)
    raw = pipe.read(length) if length <= MAX_FRAME else b""
    return (kind, raw) if len(raw) == length else None


def serve(requests: IO[bytes], results: IO[bytes]) -> None:
    """Encode what comes, until the other process ends or has everything."""
    frame = _read_frame(requests)
    if frame is None:
        return
    folder, run_size, at, before = _START.decode(frame[1])
    try:
        with closing(RowSorters(Path(folder), run_size)) as sorters:
            sorters.add(before)
            while (frame := _read_frame(requests)) is not None:
                chunk, first, random, others = _REQUEST.decode(frame[1])
                if chunk:
                    encoded, rows = encode_chunk(chunk, first, at, random)
                    _write_frame(results, _MESSAGE, encoded)
                    sorters.add(rows)
                for rows in others:
                    sorters.add(rows)
                if not chunk:
                    _send_rows(sorters, results)
                    return
    except StorageFull as problem:
        _write_frame(results, _FULL, str(problem).encode())


def _send_rows(sorters: RowSorters, results: IO[bytes]) -> None:
    for blocks in (sorters.records(), sorters.search_keys(), sorters.item_blocks()):
        for block in blocks:
            _write_frame(results, _MESSAGE, block)
        _write_frame(results, _MESSAGE, ())


def main() -> None:
    """Run the second process."""
    gc.disable()  # there are no cycles
    with suppress(BrokenPipeError), os.fdopen(0, "rb") as requests, os.fdopen(1, "wb") as results:
        serve(requests, results)


if __name__ == "__main__":
    main()
