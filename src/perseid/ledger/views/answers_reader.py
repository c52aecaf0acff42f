"""Read access to the answers view, as resolver processes use it; see `answers`.

A reader opens the generation that the state file names, switches to the next one when that changes, and raises
`AnswersUnavailable` while the view must not be used. LMDB allows one reader per process and folder.
"""

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar

import lmdb

from perseid.ledger.errors import AnswersUnavailable, CorruptData

from .answers_format import HandleItem, PrefixItem, choose_item, decode_handle, store_key
from .answers_generation import WORD_GENERATION, WORD_REQUIRED, Generation, Position, StateFile, Transaction, boot_id

MAP_SIZE: Final = 1 << 38
"""The maximum size of a generation: 256 GiB, about a thousand million records. It is address space, not disk space; two
generations exist during a rebuild, and a process has 128 TiB."""

_MAX_OPEN_ATTEMPTS = 3  # a generation may be replaced while it is opened
_NO_STATE = memoryview(bytes(64)).cast("Q")  # like a state file without a view

_T = TypeVar("_T")


class AnswersReader:
    """Reads the view in a process that never writes it. The folder may be created later."""

    _readonly = True

    def __init__(self, folder: Path, *, map_size: int = MAP_SIZE, boot: bytes | None = None) -> None:
        self.folder = folder
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

    def find(self, name: bytes) -> HandleItem | None:
        """Find the record of a handle; None if there is none."""
        raw = self._get(name, prefixes=False)
        return None if raw is None else choose_item(decode_handle(store_key(name), raw), name)

    def prefix(self, prefix: bytes) -> PrefixItem | None:
        """Find the data of a prefix; None if there are none."""
        raw = self._get(prefix, prefixes=True)
        return None if raw is None else PrefixItem.from_bytes(raw)

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
                    self._generation = Generation(self.folder, number, self._map_size, readonly=self._readonly)
                except (lmdb.Error, CorruptData):
                    if self._words[WORD_GENERATION] == number:
                        raise
        raise AnswersUnavailable("there is no answers view at the moment")

    def _open_state(self) -> StateFile:
        try:
            return StateFile(self.folder / "state", writable=False)
        except FileNotFoundError:
            raise AnswersUnavailable("there is no answers view yet") from None
