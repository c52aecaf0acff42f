"""The state file of the answers view, and read access as workers use it; see `answers`.

The state file says whether there is a usable view, and where. It is one page, written once in full and then changed in
place through a memory map, which works on a full disk too. Readers map the same page and check it at every read, so it
is read and written in aligned 64-bit words, never byte by byte. Changes that depend on the current content are made
under a file lock, in such an order that a reader in between considers the view unusable rather than right.

A reader opens the generation that the state file names, switches to the next one when that changes, and raises
`AnswersUnavailable` while the view must not be used. LMDB allows one reader per process and folder.
"""

import fcntl
import mmap
import os
import threading
import traceback
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID, uuid4

import lmdb

from perseid.ledger.errors import AnswersUnavailable, CorruptData, NewerFormat

from .answers_format import (
    EMPTY_PREFIX_ITEM,
    DeletedItem,
    HandleItem,
    PrefixItem,
    choose_item,
    decode_handle,
    decode_prefix,
    past_key,
    record_key,
    store_key,
)
from .answers_generation import Generation, Position, Transaction

if TYPE_CHECKING:
    from perseid.compiled import native

STATE_SIZE: Final = 4096
"""One page: the smallest file system block and memory map."""

MAGIC: Final = int.from_bytes(b"PRSDANSW", "little")
VERSION: Final = 1

# Positions of the 64-bit words.
WORD_MAGIC: Final = 0
WORD_VERSION: Final = 1
WORD_GENERATION: Final = 2
WORD_REQUIRED: Final = 3
WORD_NEWEST: Final = 4
WORD_CLEAN: Final = 5
WORD_INODE: Final = 8
_BOOT = slice(48, 64)  # bytes of words 6 and 7

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return the 16 bytes that identify the current boot of this machine."""
    return UUID(_BOOT_ID.read_text().strip()).bytes


class StateFile:
    """The state of the answers view in one folder."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self.descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        """Of the open file; it stays this object's."""
        try:
            status = os.fstat(self.descriptor)
            self._inode = status.st_ino
            if status.st_size != STATE_SIZE:
                raise _invalid_state_file(path)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self.descriptor, STATE_SIZE, access=access)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.words = memoryview(self._map).cast("Q")
        """The file as 64-bit words in native byte order; see the `WORD_…` constants."""
        self._lock = threading.Lock()
        if self.words[WORD_MAGIC] != MAGIC:
            self.close()
            raise _invalid_state_file(path)
        if self.words[WORD_VERSION] != VERSION:
            self.close()
            raise NewerFormat(f"{path} was written by a newer program version; upgrade this one")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the file for writing; create it if it is missing."""
        if not path.exists():
            _create_state_file(path)
        return cls(path, writable=True)

    def close(self) -> None:
        self.words.release()
        self._map.close()
        os.close(self.descriptor)

    # Reading

    def usable_generation(self, boot: bytes) -> int:
        """Return the usable generation; 0 if there is none.

        LMDB writes without sync. Its data is complete if it was closed properly or if the machine has not rebooted
        since. A file
        with another inode is a copy, taken at an unknown time.
        """
        if not self.clean and self._map[_BOOT] != boot:
            return 0
        return self.words[WORD_GENERATION] if self.words[WORD_INODE] == self._inode else 0

    @property
    def clean(self) -> bool:
        """Whether everything LMDB wrote is on disk."""
        return bool(self.words[WORD_CLEAN])

    # Writing

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other threads and processes for a few instructions."""
        with self._lock:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def discard_unusable(self, boot: bytes) -> None:
        """Invalidate an unusable generation for every process."""
        with self._locked():
            if self.usable_generation(boot) == 0:
                self.words[WORD_GENERATION] = 0
                self.words[WORD_INODE] = self._inode

    def invalidate(self, generation: int) -> None:
        """Invalidate a generation, unless another one has replaced it."""
        with self._locked():
            if self.words[WORD_GENERATION] == generation:
                self.words[WORD_GENERATION] = 0

    def require(self, seq: int) -> None:
        """Make the view unusable until it has an entry that was acknowledged."""
        with self._locked():
            self.words[WORD_REQUIRED] = max(seq, self.words[WORD_REQUIRED])

    def reached(self, seq: int) -> None:
        """Record that the view has everything up to an entry."""
        if self.words[WORD_REQUIRED]:
            with self._locked():
                if self.words[WORD_REQUIRED] <= seq:
                    self.words[WORD_REQUIRED] = 0

    def forget(self, required: int) -> None:
        """Drop a required entry that the ledger does not have: it was restored from an earlier state."""
        with self._locked():
            if self.words[WORD_REQUIRED] == required:
                self.words[WORD_REQUIRED] = 0

    def next_generation(self) -> int:
        """Return a number for a new generation, never used before."""
        with self._locked():
            self.words[WORD_NEWEST] += 1
            return self.words[WORD_NEWEST]

    def switch(self, generation: int) -> None:
        """Make a generation the current one."""
        self.words[WORD_GENERATION] = generation

    def mark_dirty(self, boot: bytes) -> None:
        """Record on disk that LMDB is about to write. The caller holds LMDB's write lock."""
        self._map[_BOOT] = boot
        self.words[WORD_CLEAN] = 0
        self._map.flush()

    def mark_clean(self) -> None:
        """Record that everything LMDB wrote is on disk. The caller holds LMDB's write lock."""
        self.words[WORD_CLEAN] = 1
        self._map.flush()


def _create_state_file(path: Path) -> None:
    """Create a complete file atomically, unless another process was faster."""
    new = path.with_name(f"{path.name}.{uuid4().hex}")
    words = array("Q", bytes(STATE_SIZE))
    words[WORD_MAGIC], words[WORD_VERSION] = MAGIC, VERSION
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            words[WORD_INODE] = os.fstat(file.fileno()).st_ino
            file.write(words)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _invalid_state_file(path: Path) -> CorruptData:
    return CorruptData(f"{path} is not a valid state file; remove its folder, and the answers view will be rebuilt")


MAP_SIZE: Final = 1 << 38
"""The maximum size of a generation: 256 GiB, about a thousand million records. It is address space, not disk space; two
generations exist during a rebuild, and a process has 128 TiB."""

_MAX_OPEN_ATTEMPTS = 3  # a generation may be replaced while it is opened
_NO_STATE = memoryview(bytes(64)).cast("Q")  # like a state file without a view

_T = TypeVar("_T")


class AnswersReader:
    """Reads the view in a process that never writes it. The folder may be created later."""

    _readonly = True

    def __init__(
        self, folder: Path, *, map_size: int = MAP_SIZE, boot: bytes | None = None, compiled: bool = False
    ) -> None:
        """`compiled`: open LMDB by the compiled module, for threads of its own; see `environment`."""
        self.folder = folder
        self.compiled = compiled
        self._map_size = map_size
        self._boot = boot_id() if boot is None else boot
        self._state: StateFile | None = None
        self._words = _NO_STATE
        self._generation: Generation | None = None
        self._opening = threading.Lock()

    def close(self) -> None:
        """Release everything. No thread may be reading."""
        self._generation = None
        self._words = _NO_STATE
        if self._state is not None:
            self._state.close()
            self._state = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, name: bytes) -> bytes | None:
        """Return the bytes under a handle's key, for `answers_format.decode_handle`; None if there are none."""
        return self._get(name, prefixes=False)

    def get_prefix(self, prefix: bytes) -> bytes | None:
        """Return the bytes under a prefix's key, for `PrefixItem.from_bytes`; None if there are none."""
        return self._get(prefix, prefixes=True)

    def get_pair(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None]:
        """Return the bytes of a prefix and a handle, both not empty, in one state of the view.

        Every resolution needs both, and one transaction costs less than two.
        """
        prefix, name = store_key(prefix), store_key(name)
        try:
            return self._fetch_pair(prefix, name)
        except (lmdb.Error, CorruptData) as error:
            self._drop_generation(error)
            return self._read_or_unavailable(lambda: self._fetch_pair(prefix, name))

    def get_pair_stamped(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None, tuple[int, int]]:
        """Like `get_pair`, with a stamp of the view's state: equal stamps mean equal content."""
        prefix, name = store_key(prefix), store_key(name)
        try:
            return self._fetch_stamped(prefix, name)
        except (lmdb.Error, CorruptData) as error:
            self._drop_generation(error)
            return self._read_or_unavailable(lambda: self._fetch_stamped(prefix, name))

    @contextmanager
    def snapshot(self) -> "Iterator[AnswersSnapshot]":
        """Open one state of the view, for a moment: meanwhile no pages are reused."""
        try:
            generation, txn = self._begin()
        except (lmdb.Error, CorruptData) as error:
            self._drop_generation(error)
            generation, txn = self._read_or_unavailable(self._begin)
        snapshot = AnswersSnapshot(generation, txn)
        try:
            yield snapshot
        finally:
            txn.abort()
            snapshot.release()

    def _begin(self) -> tuple[Generation, Transaction]:
        generation = self._generation
        if generation is None or self._words[WORD_GENERATION] != generation.number:
            generation = self._current()
        txn = generation.begin(generation.handles)
        try:
            self._check(generation, txn)
        except BaseException:
            txn.abort()
            raise
        return generation, txn

    def has_past(self, name: bytes) -> bool:
        """Whether a deleted record with a name may have been public, under one of the case rules."""
        with self.snapshot() as snapshot:
            deleted = [snapshot.deleted(record_key(name, exact=exact)) for exact in (True, False)]
        return any(item is not None and item.last != (0, 0) for item in deleted)

    def find(self, name: bytes) -> HandleItem | None:
        """Find the record of a handle; None if there is none."""
        raw = self._get(name, prefixes=False)
        return None if raw is None else choose_item(decode_handle(store_key(name), raw), name)

    def prefix(self, prefix: bytes) -> PrefixItem | None:
        """Find the data of a prefix; None if there are none."""
        raw = self._get(prefix, prefixes=True)
        return None if raw is None else PrefixItem.from_bytes(raw)

    @property
    def stamp(self) -> tuple[int, int] | None:
        """The view's state, as in `get_pair_stamped`; None if the view cannot be used."""
        try:
            generation, txn = self._read_or_unavailable(self._begin)
        except AnswersUnavailable:
            return None
        try:
            return generation.number, txn.id()
        finally:
            txn.abort()

    @property
    def environment(self) -> "native.Environment | None":
        """The open environment, if the compiled module has opened it. It is closed with its last reference."""
        generation = self._generation
        return generation.env if generation is not None and self.compiled else None

    @property
    def applied(self) -> int:
        """The number of the last entry in the view, whether or not the view is usable."""
        return self._read_or_unavailable(self._position).seq

    @property
    def built(self) -> int:
        """The entry at which the view was built: data redacted by then is not in its files."""
        return self._read_or_unavailable(self._built)

    @property
    def ready(self) -> bool:
        """Whether the view can be used."""
        try:
            self.get(b"0.NA/0.NA")
        except AnswersUnavailable:
            return False
        return True

    def _get(self, name: bytes, *, prefixes: bool) -> bytes | None:
        if not name:
            return None  # LMDB has no empty key
        key = store_key(name)
        try:
            return self._fetch(key, prefixes)
        except (lmdb.Error, CorruptData) as error:
            self._drop_generation(error)
            return self._read_or_unavailable(lambda: self._fetch(key, prefixes))

    def _fetch(self, key: bytes, prefixes: bool) -> bytes | None:
        generation = self._generation
        if generation is None or self._words[WORD_GENERATION] != generation.number:
            generation = self._current()
        # LMDB reuses finished read transactions; a snapshot lives for one read only.
        txn = generation.begin(generation.prefixes if prefixes else generation.handles)
        try:
            self._check(generation, txn)
            return txn.get(key)
        finally:
            txn.abort()

    def _fetch_pair(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None]:
        generation = self._generation
        if generation is None or self._words[WORD_GENERATION] != generation.number:
            generation = self._current()
        txn = generation.begin(generation.handles)
        try:
            if self._words[WORD_REQUIRED]:
                self._check(generation, txn)
            return txn.get(prefix, None, generation.prefixes), txn.get(name)
        finally:
            txn.abort()

    def _fetch_stamped(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None, tuple[int, int]]:
        generation = self._generation
        if generation is None or self._words[WORD_GENERATION] != generation.number:
            generation = self._current()
        txn = generation.begin(generation.handles)
        try:
            if self._words[WORD_REQUIRED]:
                self._check(generation, txn)
            return txn.get(prefix, None, generation.prefixes), txn.get(name), (generation.number, txn.id())
        finally:
            txn.abort()

    def _check(self, generation: Generation, txn: Transaction) -> None:
        """Refuse a view that is behind the entry that the state file requires."""
        required = self._words[WORD_REQUIRED]
        if required and generation.position(txn).seq < required:
            raise AnswersUnavailable("the answers view is behind the ledger")

    def _position(self) -> Position:
        generation = self._current()
        with generation.begin() as txn:
            return generation.position(txn)

    def _built(self) -> int:
        generation = self._current()
        with generation.begin() as txn:
            return generation.built(txn)

    def _read_or_unavailable(self, read: Callable[[], _T]) -> _T:
        """Read, and turn every storage error into `AnswersUnavailable`."""
        try:
            return read()
        except (lmdb.Error, OSError, CorruptData) as error:
            self._drop_generation(error)
            raise AnswersUnavailable(f"cannot read the answers view: {error}") from error

    def _drop_generation(self, error: BaseException) -> None:
        """Drop the generation so that it is opened again, as some failures require.

        It must be closed before it can be opened again, so the frames of the error must not keep it alive.
        """
        self._generation = None
        traceback.clear_frames(error.__traceback__)

    def _current(self) -> Generation:
        """Return the current generation; open it if necessary."""
        with self._opening:
            if self._state is None:
                self._state = self._open_state()
                self._words = self._state.words
            for _ in range(_MAX_OPEN_ATTEMPTS):
                number = self._state.usable_generation(self._boot)
                if self._generation is not None and self._generation.number == number:
                    return self._generation
                self._generation = None
                if not number:
                    break
                try:
                    self._generation = Generation(
                        self.folder,
                        number,
                        self._map_size,
                        readonly=self._readonly,
                        state_file=self._state.descriptor if self.compiled else None,
                    )
                except (lmdb.Error, CorruptData):
                    if self._words[WORD_GENERATION] == number:
                        raise
        raise AnswersUnavailable("there is no answers view at the moment")

    def _open_state(self) -> StateFile:
        try:
            return StateFile(self.folder / "state", writable=False)
        except FileNotFoundError:
            raise AnswersUnavailable("there is no answers view yet") from None


class AnswersSnapshot:
    """One state of the view. Raises `CorruptView` for damaged items, and errors of LMDB."""

    __slots__ = ("_generation", "_txn")

    def __init__(self, generation: Generation, txn: Transaction) -> None:
        self._generation = generation
        self._txn = txn

    def release(self) -> None:
        """Drop the generation, which is closed with its last reference."""
        del self._generation, self._txn

    @property
    def stamp(self) -> tuple[int, int]:
        """The state that is read: equal stamps mean equal content."""
        return self._generation.number, self._txn.id()

    @property
    def position(self) -> Position:
        """How far the view has come."""
        return self._generation.position(self._txn)

    def find(self, record: bytes) -> HandleItem | None:
        """Find a record by its key in the ledger; None if it does not exist."""
        key = store_key(record)
        raw = self._txn.get(key)
        items = () if raw is None else decode_handle(key, raw)
        return next((item for item in items if item.key == record), None)

    def prefix(self, prefix: bytes) -> PrefixItem:
        """Return the data of a prefix, which is not empty."""
        raw = self._txn.get(store_key(prefix), None, self._generation.prefixes)
        return EMPTY_PREFIX_ITEM if raw is None else decode_prefix(raw)

    def policy(self, prefix: bytes) -> bytes | None:
        """Return the text of the policy of a prefix, readable or not; None if there is none."""
        return self._txn.get(store_key(prefix), None, self._generation.policies)

    def deleted(self, record: bytes) -> DeletedItem | None:
        """Return what is known of a deleted record, by its key in the ledger; None if it was not deleted."""
        raw = self._txn.get(past_key(record), None, self._generation.past)
        return None if raw is None else DeletedItem.from_bytes(raw)
