"""The answers view: everything a resolver needs to answer public requests, ready to send, in LMDB.

Workers open an `AnswersReader`, which reads and never waits. Processes that append to the ledger open
`Answers`, which also updates the view. LMDB allows one of them per process and folder: threads share it, and a child of
`fork` opens its own.

The view is stored in *generations*: folders with an LMDB environment each. The state file names the current one; a
rebuild creates a new one and switches. A generation stores its position in the ledger in the same transaction as its
data, so any process may apply any entry, twice or after a crash, and nothing is lost or applied out of order.

LMDB runs without sync, because the view can be rebuilt. A killed process loses nothing, since the pages belong to the
operating system by then; after a machine crash the state file tells that the view may be torn.

A view that cannot be updated (a full disk, a full map) never fails a write of the ledger. It is marked as behind, and
readers get `AnswersUnavailable` and use the records, slower but never wrong, until it has caught up.
"""

import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import lmdb

from perseid.ledger.errors import AnswersUnavailable, LedgerError, LostEntries, StorageFull
from perseid.ledger.log.entry import Change, Source
from perseid.ledger.store.sorting import row_size, split_batches
from perseid.ledger.store.sqlite import has_free_space

from .answers_generation import BATCH, CHUNK, CORRUPTION_ERRORS, Generation, Position, Progress, Transaction
from .answers_reader import MAP_SIZE, WORD_GENERATION, WORD_REQUIRED, AnswersReader, StateFile

BATCH_BYTES: Final = 32 << 20
"""Approximate maximum bytes of a load in one transaction: its pages are in memory until the commit."""

MAX_CATCH_UP_ROUNDS: Final = 8
"""How often a rebuild applies new entries before it makes writers wait."""

READER_CHECK_EVERY: Final = 1_024
"""Transactions between two checks for killed readers: one killed during a read keeps old pages in use."""

_LOCK_INTERVAL = 0.02  # seconds between two attempts to lock
_FAILURES = (lmdb.Error, OSError, LedgerError)
_logger = logging.getLogger(__name__)

OpenSource: TypeAlias = Callable[[], AbstractContextManager[Source]]
"""Opens the current state of the ledger."""


class ApplyResult(Enum):
    """The result of applying entries; true if they are in the view."""

    DONE = "done"
    """New reads see the entries."""
    BEHIND = "behind"
    """Nothing was done: earlier entries are missing. Call `catch_up` first."""
    FAILED = "failed"
    """The view could not be written; readers do not use it until it has caught up."""

    def __bool__(self) -> bool:
        return self is ApplyResult.DONE


class Answers(AnswersReader):
    """Reads and updates the view. Thread-safe; one thread writes at a time."""

    _readonly = False

    def __init__(self, folder: Path, *, map_size: int = MAP_SIZE, boot: bytes | None = None) -> None:
        super().__init__(folder, map_size=map_size, boot=boot)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = self._state = StateFile.create(folder / "state")
        self._words = self._file.words
        self._file.discard_unusable(self._boot)
        (folder / "lock").touch(0o600)  # now, because the disk may be full later
        self._turn = threading.RLock()  # a load holds it over several transactions
        self.is_shared = False
        """Whether other nodes write the ledger too. It can be replaced by an old copy then, which must not be followed
        silently."""
        self._checked = False  # whether the view belongs to the ledger
        self._is_reported = False  # that it cannot be updated
        self._transactions = 0

    def close(self) -> None:
        """Sync everything, mark the view as clean, and release everything; the view survives a reboot."""
        with suppress(*_FAILURES):
            if self._words[WORD_GENERATION] and not self._file.clean:
                with self._writing() as (generation, _):
                    generation.env.sync(True)
                    self._file.mark_clean()
        super().close()

    # Following the ledger

    def apply(self, changes: Sequence[Change]) -> ApplyResult:
        """Apply appended entries, in order and without gaps; those already applied are skipped.

        Never raises for lack of space. Returns `BEHIND` until `follow` or `catch_up` has checked that the view belongs
        to the
        ledger.
        """
        if not changes:
            return ApplyResult.DONE
        return self._apply(changes) if self._checked else ApplyResult.BEHIND

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads of this process from writing the view."""
        with self._turn:
            yield

    def apply_sorted(self, after: int, last: int, leaf: bytes, items: Iterable[tuple[bytes, bytes]]) -> ApplyResult:
        """Apply the entries after `after` up to `last`, all of new handles, as items by ascending key.

        They are written in several transactions, and only the last one moves the position: after a crash in between,
        the same
        entries are applied again. Stops if another process applies them meanwhile.
        """
        if not self._checked:
            return ApplyResult.BEHIND
        batches = split_batches(items, BATCH, BATCH_BYTES, row_size)
        with self._turn:
            while True:
                batch = next(batches, [])
                applied = self._write(last, partial(self._apply_batch, after, last, leaf, batch))
                if applied is not ApplyResult.DONE:
                    return applied
                if not batch:
                    break
        self._file.reached(last)
        return ApplyResult.DONE

    def _apply_batch(
        self,
        after: int,
        last: int,
        leaf: bytes,
        batch: Sequence[tuple[bytes, bytes]],
        generation: Generation,
        txn: Transaction,
    ) -> bool:
        if generation.position(txn).seq != after:
            return False
        self._mark_dirty()
        if batch:
            generation.write_sorted(txn, batch)
        else:
            generation.move(txn, last, leaf)
        return True

    def follow(self, open_source: OpenSource) -> bool:
        """Apply the new entries of the ledger.

        False if there is no space or if the view must be built first (`catch_up`). Then the view is not used, so that
        the
        entries can be acknowledged.
        """
        number = self._words[WORD_GENERATION]
        followed = self._follow(open_source)
        if followed is None:
            self._file.invalidate(number)
            with open_source() as source:
                self._file.require(source.size)
        return bool(followed)

    def catch_up(self, open_source: OpenSource, progress: Progress | None = None) -> bool:
        """Apply all entries of the ledger; build the view if it is missing or belongs to another ledger.

        Building takes time in proportion to the ledger; writers continue, and the view is not used. False if there was
        no space.
        """
        followed = self._follow(open_source)
        if followed is None:
            with self._build_lock(progress):
                followed = self._follow(open_source)  # another process may have built it meanwhile
                if followed is None:
                    self._file.invalidate(self._words[WORD_GENERATION])
                    followed = self._build(open_source, progress)
        return followed

    def rebuild(self, open_source: OpenSource, progress: Progress | None = None, since: int | None = None) -> bool:
        """Build a new view while the old one is in use, then remove the old one, with all redacted data.

        With `since`, only if the view was built before that entry. False if there was no space; the old view stays in
        use.
        """
        with self._build_lock(progress):
            if since is not None:
                with suppress(AnswersUnavailable):
                    if self.built >= since:
                        return True
                self.check_history(open_source)
            return self._build(open_source, progress)

    @property
    def has_unused(self) -> bool:
        """Whether there are generations besides the current one: being built, or left over by a killed process."""
        return bool(self._unused())

    def remove_unused(self, progress: Progress | None = None) -> None:
        """Remove what earlier views left over, with all redacted data; wait for a view that is being built."""
        with self._build_lock(progress):
            self._remove_unused()

    def mark_behind(self, seq: int) -> None:
        """Make readers use the records until the view has reached an entry."""
        self._file.require(seq)

    def discard(self) -> None:
        """Make readers use the records until the view was rebuilt, because it is corrupt."""
        self._file.invalidate(self._words[WORD_GENERATION])

    def differences(self, open_source: OpenSource) -> str | None:
        """Return database and key of the first difference from the ledger; None if there is none.

        Builds a second view, brings it to the same entry, and compares byte by byte.
        """
        with self._build_lock():
            try:
                return self._compare(
                    Generation(self.folder, self._file.next_generation(), self._map_size, new=True), open_source
                )
            except (lmdb.Error, OSError) as error:
                if isinstance(error, lmdb.DiskError) or not has_free_space(str(self.folder / "state")):
                    raise StorageFull(
                        f"the disk of {self.folder} is full; comparing the answers view needs space for a copy of it"
                    ) from error
                raise AnswersUnavailable(f"cannot compare the answers view: {error}") from error
            finally:
                self._remove_unused()

    def _compare(self, copy: Generation, open_source: OpenSource) -> str | None:
        with open_source() as source:
            copy.fill(source)
        followed = self._follow(open_source)
        if followed is None:
            return "meta applied"
        if not followed:
            raise AnswersUnavailable("cannot compare the answers view: it is behind the ledger")
        generation = self._current()
        with generation.begin() as txn:
            with open_source() as source:
                copy.follow(source, generation.position(txn).seq)
            return generation.difference(txn, copy)

    @contextmanager
    def _writing(self) -> Iterator[tuple[Generation, Transaction]]:
        """Open a write transaction of the current generation, which stays current meanwhile."""
        with self._turn:
            while True:
                generation = self._current()
                with generation.begin(write=True) as txn:
                    if self._words[WORD_GENERATION] == generation.number:
                        yield generation, txn
                        break
        self._transactions += 1
        if self._transactions % READER_CHECK_EVERY == 0:
            generation.env.reader_check()

    def _apply(self, changes: Sequence[Change]) -> ApplyResult:
        applied = self._write(changes[-1].seq, partial(self._apply_changes, changes))
        if applied is ApplyResult.DONE:
            self._file.reached(changes[-1].seq)
        return applied

    def _apply_changes(self, changes: Sequence[Change], generation: Generation, txn: Transaction) -> bool:
        position = generation.position(txn)
        new = [change for change in changes if change.seq > position.seq]
        reached = next((change for change in changes if change.seq == position.seq), None)
        if reached is not None and reached.leaf != position.leaf:
            self._checked = False
            return False
        if new:
            if changes[-1].seq != position.seq + len(new):
                return False
            self._mark_dirty()
            generation.write(txn, position.ledger_id, new)
        return True

    def _write(self, last: int, work: Callable[[Generation, Transaction], bool]) -> ApplyResult:
        """Run `work` in a write transaction; it returns whether the entries follow. If it fails, require `last`."""
        number = self._words[WORD_GENERATION]
        try:
            with self._writing() as (generation, txn):
                return ApplyResult.DONE if work(generation, txn) else ApplyResult.BEHIND
        except AnswersUnavailable:
            self._file.require(last)
        except _FAILURES as error:
            self._file.require(last)
            if isinstance(error, CORRUPTION_ERRORS):
                self._file.invalidate(number)
            self._drop_generation(error)
            self._report(error)
        return ApplyResult.FAILED

    def _mark_dirty(self) -> None:
        if self._file.clean:
            self._file.mark_dirty(self._boot)

    def _follow(self, open_source: OpenSource) -> bool | None:
        """Apply new entries; return whether that succeeded, or None if this is not a view of the ledger."""
        # Both are read before the ledger, so that everything required is in the state that is read.
        required = self._words[WORD_REQUIRED]
        try:
            position = self._position()
        except (*CORRUPTION_ERRORS, AnswersUnavailable):
            return None
        except (lmdb.Error, OSError) as error:
            self._drop_generation(error)
            self._report(error)
            with open_source() as source:
                self._file.require(source.size)
            return False
        with open_source() as source:
            if not position.is_in(source):
                self._check_history(position, source)
                return None
            self._checked = True
            if required > source.size:
                self._file.forget(required)
            seq = position.seq
            while seq < source.size:
                changes = source.changes(seq, CHUNK)
                if not changes or not self._apply(changes):
                    self._file.require(source.size)
                    return False
                seq = changes[-1].seq
                # Other processes may have applied many entries meanwhile.
                position = self._position()
                if position.seq > seq and position.is_in(source):
                    seq = position.seq
        self._file.reached(seq)
        self._is_reported = False
        return True

    def check_history(self, open_source: OpenSource) -> None:
        """Raise `LostEntries` if a shared ledger does not have the entries of the view any more."""
        try:
            position = self._position()
        except (*CORRUPTION_ERRORS, AnswersUnavailable, lmdb.Error, OSError):
            return  # it is built again
        with open_source() as source:
            if not position.is_in(source):
                self._check_history(position, source)

    def _check_history(self, position: Position, source: Source) -> None:
        if self.is_shared and position.ledger_id == source.ledger_id:
            raise LostEntries.after(position.seq, source.size)

    @property
    def end(self) -> tuple[int, bytes] | None:
        """The last applied entry and its leaf hash; None if the view cannot tell."""
        try:
            position = self._position()
        except (*CORRUPTION_ERRORS, AnswersUnavailable, lmdb.Error, OSError):
            return None
        return position.seq, position.leaf

    def _report(self, error: Exception) -> None:
        """Log that the view cannot be updated, once until it has caught up."""
        if not self._is_reported:
            self._is_reported = True
            _logger.warning(
                "the answers view cannot be updated: %s. Resolution uses the records until it can. "
                "To see what is wrong, run: perseid check",
                str(error),
            )

    # Generations

    @contextmanager
    def _build_lock(self, progress: Progress | None = None) -> Iterator[None]:
        """Lock out other processes that create or remove generations; report progress while waiting."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if progress is not None:
                        progress(0)
                    time.sleep(_LOCK_INTERVAL)
            yield
        finally:
            os.close(descriptor)

    def _unused(self) -> list[Path]:
        """The folders of all generations but the current one."""
        current = str(self._words[WORD_GENERATION])
        return [path for path in self.folder.iterdir() if path.name.isdecimal() and path.name != current]

    def _remove_unused(self) -> None:
        for path in self._unused():
            shutil.rmtree(path, ignore_errors=True)

    def _build(self, open_source: OpenSource, progress: Progress | None) -> bool:
        try:
            self._remove_unused()
            new = Generation(self.folder, self._file.next_generation(), self._map_size, new=True)
            with open_source() as source:
                new.fill(source, progress)
            for _ in range(MAX_CATCH_UP_ROUNDS):
                with open_source() as source:
                    if new.follow(source) < CHUNK:
                        break
            self._switch(new, open_source)
        except _FAILURES as error:
            self._report(error)
            return False
        finally:
            self._remove_unused()
        # Entries appended while there was no generation have not been applied.
        return self._follow(open_source) is True

    def _switch(self, new: Generation, open_source: OpenSource) -> None:
        """Bring a new generation to the end of the ledger and make it the current one.

        A process that applies an entry holds the write lock of the current generation, and checks that it still is. So
        while
        that lock is held here, everything applied is in the ledger that is read. If there is no generation, or its lock
        cannot
        be acquired, it is invalidated first, so that nothing can be applied and missed.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._writing())
            except _FAILURES:
                self._file.invalidate(self._words[WORD_GENERATION])
            with open_source() as source:
                new.follow(source)
            self._file.mark_dirty(self._boot)
            with self._opening:
                self._file.switch(new.number)
                self._generation = new
