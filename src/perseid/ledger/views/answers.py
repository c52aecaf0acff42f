"""The answers view: everything a resolver needs to answer the public, ready to send, in LMDB.

Resolver processes open an `AnswersReader`; it reads and never waits. Processes that append to the ledger open
`Answers`, which reads too and brings the view up to date. LMDB allows one of them for each process and folder: its
threads share it, and a child of `fork` opens its own.

The view lives in *generations*: folders with an LMDB environment each, of which the state file names the one in use. A
rebuild makes a new one beside it and switches. Inside a generation, how far it has come is moved in the same
transaction as what it holds, so any process may apply any entry, twice or after a crash, and nothing is lost or
applied out of order.

LMDB runs without sync, for the view can always be made again: a killed process loses nothing, since the pages are the
system's by then, and after a crash of the machine the state file tells that the view may be torn.

A view that cannot follow (a full disk, a full map) never fails a write of the ledger. It is marked as behind instead;
readers are refused with `Unavailable` and resolve from the records, slower and never wrong, until it has caught up.
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

from perseid.ledger.backup.bulk_load import row_size, split_batches
from perseid.ledger.errors import LedgerError
from perseid.ledger.store.changes import Change, Source

from .answers_generation import (
    BATCH,
    CHUNK,
    CORRUPTION_ERRORS,
    WORD_GENERATION,
    WORD_REQUIRED,
    Generation,
    Progress,
    StateFile,
    Transaction,
)
from .answers_reader import MAP_SIZE, AnswersReader, AnswersUnavailable

BATCH_BYTES: Final = 32 << 20
"""The most octets of a load in one transaction, about: its pages are held in memory until it is committed."""

MAX_CATCH_UP_ROUNDS: Final = 8
"""How often a rebuild runs after what was appended meanwhile before it makes those who append wait."""

READER_CHECK_EVERY: Final = 1_024
"""After so many transactions the places of killed readers are freed: one killed in a read keeps old pages in use."""

_LOCK_INTERVAL = 0.02  # seconds between two looks whether another process still builds
_FAILURES = (lmdb.Error, OSError, LedgerError)
_logger = logging.getLogger(__name__)

OpenSource: TypeAlias = Callable[[], AbstractContextManager[Source]]
"""Opens the present state of the ledger."""


class ApplyResult(Enum):
    """What became of entries that were to be applied; true when they are in the view."""

    DONE = "done"
    """Every reader that looks from now on sees them."""
    BEHIND = "behind"
    """Nothing was done: entries before them are missing. Call `catch_up` before the entries count."""
    FAILED = "failed"
    """The view could not be written; readers do not use it until it has caught up."""

    def __bool__(self) -> bool:
        return self is ApplyResult.DONE


class Answers(AnswersReader):
    """Reads the view and brings it up to date. Threads may share it; one of them writes at a time."""

    _readonly = False

    def __init__(self, folder: Path, *, map_size: int = MAP_SIZE, boot: bytes | None = None) -> None:
        super().__init__(folder, map_size=map_size, boot=boot)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = self._state = StateFile.create(folder / "state")
        self._words = self._file.words
        self._file.discard_unusable(self._boot)
        (folder / "lock").touch(0o600)  # now, for there may be no room later
        self._turn = threading.RLock()  # a load holds it over several transactions
        self._checked = False  # that the view belongs to the ledger
        self._transactions = 0

    def close(self) -> None:
        """Make everything durable, say so, and give everything back; the next start of the machine keeps the view."""
        with suppress(*_FAILURES):
            if self._words[WORD_GENERATION] and not self._file.clean:
                with self._writing() as (generation, _):
                    generation.env.sync(True)
                    self._file.mark_clean()
        super().close()

    # Following the ledger

    def apply(self, changes: Sequence[Change]) -> ApplyResult:
        """Apply entries that were appended, in order and without gaps; those already applied are skipped.

        This never raises for want of room. Before the first call `follow` or `catch_up` must have found that the view
        belongs to the ledger; until then every call is answered `BEHIND`.
        """
        if not changes:
            return ApplyResult.DONE
        return self._apply(changes) if self._checked else ApplyResult.BEHIND

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While no other thread of this process writes the view; readers and other processes do not notice."""
        with self._turn:
            yield

    def apply_sorted(self, after: int, last: int, leaf: bytes, items: Iterable[tuple[bytes, bytes]]) -> ApplyResult:
        """Apply the entries behind `after` up to `last`, all of new names, given as items by ascending key.

        They are written in several transactions, and only the last one says that they are there: were the others torn
        from it, the same entries would be applied again. If another process applies them meanwhile, it is left to it.
        """
        if not self._checked:
            return ApplyResult.BEHIND
        found = split_batches(items, BATCH, BATCH_BYTES, row_size)
        with self._turn:
            while True:
                batch = next(found, [])
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
        """Apply everything the ledger has more, which is done soon.

        False if that cannot be, for want of room or because the view must be built first (`catch_up`); it is then
        not used, so that what has been appended may count all the same.
        """
        number = self._words[WORD_GENERATION]
        followed = self._follow(open_source)
        if followed is None:
            self._file.invalidate(number)
            with open_source() as source:
                self._file.require(source.size)
        return bool(followed)

    def catch_up(self, open_source: OpenSource, progress: Progress | None = None) -> bool:
        """Apply everything the ledger has; build the view if there is none, or if it is not that of this ledger.

        Building takes as long as the ledger is large; meanwhile others append, and the view is not used. False if
        there was no room.
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
        """Build the view anew while the old one is in use, and leave nothing of that: it also erases.

        With `since`, only if it was built before that entry; another process may have done it meanwhile. False if there
        was no room; the old view, if there was one, then stays in use.
        """
        with self._build_lock(progress):
            if since is not None:
                with suppress(AnswersUnavailable):
                    if self.built >= since:
                        return True
            return self._build(open_source, progress)

    def mark_behind(self, seq: int) -> None:
        """Have readers resolve from the records until the view has come to an entry."""
        self._file.require(seq)

    def discard(self) -> None:
        """Have readers resolve from the records until the view has been built anew: it is not what was written."""
        self._file.invalidate(self._words[WORD_GENERATION])

    def differences(self, open_source: OpenSource) -> str | None:
        """Where the view is not what the ledger says: database and key of the first difference; None if nowhere.

        The view is built a second time beside the first, brought to the same entry, and compared octet by octet.
        """
        with self._build_lock():
            try:
                return self._compare(
                    Generation(self.folder, self._file.next_generation(), self._map_size, new=True), open_source
                )
            except (lmdb.Error, OSError) as error:
                raise AnswersUnavailable(f"the answers view cannot be compared: {error}") from error
            finally:
                self._remove_unused()

    def _compare(self, copy: Generation, open_source: OpenSource) -> str | None:
        with open_source() as source:
            copy.fill(source)
        followed = self._follow(open_source)
        if followed is None:
            return "meta applied"
        if not followed:
            raise AnswersUnavailable("the answers view cannot follow the ledger, so it was not compared")
        generation = self._current()
        with generation.begin() as txn:
            with open_source() as source:
                copy.follow(source, generation.position(txn).seq)
            return generation.difference(txn, copy)

    @contextmanager
    def _writing(self) -> Iterator[tuple[Generation, Transaction]]:
        """A write transaction of the generation in use, which stays in use meanwhile; committed if all goes well."""
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
        """Do something in a write transaction; it tells whether it could. If that fails, entry `last` is waited for."""
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
            _logger.warning("the answers view cannot follow entry %d: %s", last, str(error))
        return ApplyResult.FAILED

    def _mark_dirty(self) -> None:
        if self._file.clean:
            self._file.mark_dirty(self._boot)

    def _follow(self, open_source: OpenSource) -> bool | None:
        """Apply what the ledger has more; whether that went well. None if this is no view of it."""
        # Both are read before the ledger is looked at: what had been appended by then is in what is seen.
        needed = self._words[WORD_REQUIRED]
        try:
            position = self._position()
        except (*CORRUPTION_ERRORS, AnswersUnavailable):
            return None
        except (lmdb.Error, OSError) as error:
            self._drop_generation(error)
            _logger.warning("the answers view cannot be opened: %s", str(error))
            with open_source() as source:
                self._file.require(source.size)
            return False
        with open_source() as source:
            if not position.is_in(source):
                return None
            self._checked = True
            if needed > source.size:
                self._file.forget(needed)
            seq = position.seq
            while seq < source.size:
                changes = source.changes(seq, CHUNK)
                if not changes or not self._apply(changes):
                    self._file.require(source.size)
                    return False
                seq = changes[-1].seq
                # Others may have applied very much while this one waited for its turn.
                position = self._position()
                if position.seq > seq and position.is_in(source):
                    seq = position.seq
        self._file.reached(seq)
        return True

    # Generations

    @contextmanager
    def _build_lock(self, progress: Progress | None = None) -> Iterator[None]:
        """While this process is the only one that makes or removes generations. Who waits is told now and then."""
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

    def _remove_unused(self) -> None:
        """Remove all generations but the one in use: old ones, and those of which nothing became."""
        kept = str(self._words[WORD_GENERATION])
        for path in self.folder.iterdir():
            if path.name.isdecimal() and path.name != kept:
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
            _logger.warning("the answers view cannot be built: %s", str(error))
            return False
        finally:
            self._remove_unused()
        # What was appended while there was no generation was not applied by those who appended it.
        return self._follow(open_source) is True

    def _switch(self, new: Generation, open_source: OpenSource) -> None:
        """Bring a new generation to the end of the ledger and put it in use.

        Who applies an entry holds the lock of the generation in use, and looks whether it still is. So, while that
        lock is held here, whatever has been applied is in the ledger that is looked at. Where there is no generation,
        or none whose lock can be had, it is given up first: then nothing is applied that might be missed.
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
