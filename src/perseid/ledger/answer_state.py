"""The small file beside the answers view that says whether, and where, there is a view to be used.

It is one page, written once in full and from then on changed in place through a memory map: that works on a full
disk too, which is when it matters most. Readers map the same page and look at it at every read, so a word of it is
read and written as a whole: through a memory view of aligned 64-bit words, never octet by octet.

What is changed depending on what was there is changed under a lock of the file. The order of changes is such that
whoever looks in between takes the view for unusable rather than for right.
"""

import fcntl
import mmap
import os
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self
from uuid import UUID, uuid4

from .errors import Damaged, NewerFormat

STATE_OCTETS: Final = 4096
"""One page: what the smallest file system block and the smallest memory map have in common."""

MAGIC: Final = int.from_bytes(b"PRSDANSW", "little")
VERSION: Final = 1

# Which 64-bit word is which.
WORD_MAGIC: Final = 0
WORD_VERSION: Final = 1
WORD_GENERATION: Final = 2
WORD_NEEDED: Final = 3
WORD_NEWEST: Final = 4
WORD_CLEAN: Final = 5
WORD_PLACE: Final = 8
_BOOT = slice(48, 64)  # octets: words 6 and 7

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Which start of this machine this is: 16 octets."""
    return UUID(_BOOT_ID.read_text().strip()).bytes


class StateFile:
    """The state of the answers view in one folder, as one process sees it."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            status = os.fstat(self._descriptor)
            self._inode = status.st_ino
            if status.st_size != STATE_OCTETS:
                raise _foreign(path)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self._descriptor, STATE_OCTETS, access=access)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.words = memoryview(self._map).cast("Q")
        """The file as 64-bit words in the machine's own order; the `WORD_…` constants say which is which."""
        self._lock = threading.Lock()
        if self.words[WORD_MAGIC] != MAGIC:
            self.close()
            raise _foreign(path)
        if self.words[WORD_VERSION] != VERSION:
            self.close()
            raise NewerFormat(f"{path} was written by a newer version of the program; upgrade this one")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the file for writing; make it if it is not there."""
        if not path.exists():
            _make(path)
        return cls(path, writable=True)

    def close(self) -> None:
        """Give the map and the file back."""
        self.words.release()
        self._map.close()
        os.close(self._descriptor)

    # What it says

    def usable(self, boot: bytes) -> int:
        """The generation that may be used; 0 if there is none.

        LMDB writes without sync. What it wrote is whole if it was closed in an orderly way or if the machine has not
        been started anew since. A file in another place than where it was made is a copy, taken nobody knows when.
        """
        if not self.clean and self._map[_BOOT] != boot:
            return 0
        return self.words[WORD_GENERATION] if self.words[WORD_PLACE] == self._inode else 0

    @property
    def clean(self) -> bool:
        """Whether everything LMDB wrote is on the disk."""
        return bool(self.words[WORD_CLEAN])

    # Changing it

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Between threads and between processes; held for a few instructions."""
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def distrust(self, boot: bytes) -> None:
        """Give up a generation that may not be used, for every process."""
        with self._locked():
            if self.usable(boot) == 0:
                self.words[WORD_GENERATION] = 0
                self.words[WORD_PLACE] = self._inode

    def invalidate(self, generation: int) -> None:
        """Give up a generation, unless another one has taken its place."""
        with self._locked():
            if self.words[WORD_GENERATION] == generation:
                self.words[WORD_GENERATION] = 0

    def need(self, seq: int) -> None:
        """An entry counts that the view does not have: it may not be used before it has."""
        with self._locked():
            self.words[WORD_NEEDED] = max(seq, self.words[WORD_NEEDED])

    def met(self, seq: int) -> None:
        """The view has everything up to this entry."""
        if self.words[WORD_NEEDED]:
            with self._locked():
                if self.words[WORD_NEEDED] <= seq:
                    self.words[WORD_NEEDED] = 0

    def forget(self, needed: int) -> None:
        """An entry that was needed is not in the ledger any more: it was restored from before it."""
        with self._locked():
            if self.words[WORD_NEEDED] == needed:
                self.words[WORD_NEEDED] = 0

    def allot(self) -> int:
        """A number for a new generation, which no other has ever had: by it readers tell them apart."""
        with self._locked():
            self.words[WORD_NEWEST] += 1
            return self.words[WORD_NEWEST]

    def switch(self, generation: int) -> None:
        """Make a generation the one that is used."""
        self.words[WORD_GENERATION] = generation

    def mark_dirty(self, boot: bytes) -> None:
        """LMDB is about to write; this is on the disk when the call returns. The caller holds LMDB's write lock."""
        self._map[_BOOT] = boot
        self.words[WORD_CLEAN] = 0
        self._map.flush()

    def mark_clean(self) -> None:
        """Everything LMDB wrote is on the disk. The caller holds LMDB's write lock."""
        self.words[WORD_CLEAN] = 1
        self._map.flush()


def _make(path: Path) -> None:
    """Put a whole file in place, unless another process was faster; nobody ever sees half of it."""
    new = path.with_name(f"{path.name}.{uuid4().hex}")
    words = array("Q", bytes(STATE_OCTETS))
    words[WORD_MAGIC], words[WORD_VERSION] = MAGIC, VERSION
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            words[WORD_PLACE] = os.fstat(file.fileno()).st_ino
            file.write(words)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _foreign(path: Path) -> Damaged:
    return Damaged(f"{path} is not the state of an answers view; remove the folder, it will be built anew")
