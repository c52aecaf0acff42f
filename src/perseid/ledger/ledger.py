"""A ledger with its views, as the rest of the program uses it.

A write is acknowledged when its entry and the SQL views are on disk and the answers view has applied it, or is marked
as behind. So a caller that gets a result can read its own write at once. The maintenance thread does the rest: it
updates the answers view with entries of other processes and nodes, builds the view when it is missing, removes traces
of redacted data, signs checkpoints, and purges expired rows.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from time import monotonic
from typing import Any, Final, Self

from sqlalchemy.exc import DBAPIError

from perseid.ledger.backup.bulk_load import BulkLoad, LoadResult, Progress
from perseid.ledger.log.entry import Draft
from perseid.ledger.log.log import Log, gc_paused
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import HOMED, POLICY, record_key
from perseid.ledger.log.requests import Append, Outcome, Preconditions, Request, StateChange, changed_result
from perseid.ledger.log.signing import WrongKey, rotate_key, sign_checkpoint
from perseid.ledger.log.writer import INTERVAL, ChangeWatcher, Writer
from perseid.ledger.store.tables import change_from_entry, clear_entry_cache
from perseid.ledger.views.answers import Answers, ApplyResult
from perseid.ledger.views.answers_format import (
    EMPTY_PREFIX_ITEM,
    HandleItem,
    PrefixItem,
    choose_item,
    is_local,
)
from perseid.ledger.views.answers_generation import PrefixPart
from perseid.ledger.views.rebuild import drop_unfinished

from .errors import (
    AnswersUnavailable,
    ClockError,
    Contention,
    CorruptData,
    LedgerError,
    LostEntries,
    OutdatedProgram,
    ReadOnlyMode,
    StorageFull,
    StoreUnavailable,
    WriteProblem,
)
from .merkle import Signer
from .store import idempotency
from .store.store import BUSY_SECONDS, LOCKED

STALL_SECONDS: Final = float(BUSY_SECONDS)
"""How long a commit may wait for the database before it is reported; it usually takes milliseconds."""

RETRY_DELAY: Final = 1.0
"""Seconds before a failed task is retried, such as after a full disk or a lost database."""

PURGE_INTERVAL: Final = 600.0
"""Seconds between two purges of expired idempotency keys."""

_logger = logging.getLogger(__name__)


class LedgerClosing(Exception):
    """Stops building a view when the ledger is closed; the next start builds it."""


class Ledger:
    """Access of one process to a ledger: append, read, resolve. Thread-safe."""

    def __init__(
        self,
        log: Log,
        answers: Answers,
        signer: Signer | None = None,
        renew: Callable[[], Signer | None] = lambda: None,
    ) -> None:
        """`renew` loads the signing key again, after another process has rotated it."""
        self.log = log
        self.answers = answers
        self._signer = signer
        self._renew = renew
        self._signing = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()  # the answers view must be updated
        self._wake.set()
        self._builder: threading.Thread | None = None
        self._in_load = False
        self._write_problem: WriteProblem | None = None
        self.on_problem: Callable[[], None] = lambda: None
        """Called by the maintenance thread after `write_problem` has changed."""
        self._commit_started: float | None = None
        answers.is_shared = log.store.is_remote
        try:
            answers.follow(log.open_reader)
        except LostEntries as problem:
            self._write_problem = problem
        self._writer = Writer(self._commit)
        self._maintenance = threading.Thread(target=self._run_maintenance, name="ledger maintenance")
        self._maintenance.start()

    def close(self) -> None:
        """Finish the submitted requests, remove traces of redacted data, and release everything."""
        self._writer.close()
        self._stop.set()
        self._maintenance.join()
        self.answers.close()
        self.log.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> bool:
        """Whether the answers view is up to date and the maintenance thread is running."""
        return self._maintenance.is_alive() and self.answers.ready

    # Writing

    @property
    def write_problem(self) -> WriteProblem | None:
        """Why changes are refused; None if they are accepted."""
        return self._write_problem

    def _check_write_problem(self) -> None:
        """Find out whether changes can be written, even if nobody tries.

        This alone ends a problem: on a nearly full disk a small change may succeed between others that fail.
        """
        before = self._write_problem
        self._update_write_problem()
        if type(self._write_problem) is not type(before):
            self.on_problem()

    def _update_write_problem(self) -> None:
        if self._write_problem is None and self._is_stalled:
            self._write_problem = Contention(LOCKED.format(""))
            return
        try:
            self.log.check_clock()
            self.log.check_mode()
            self.log.store.check_space(thorough=self._write_problem is not None)
            if self.log.store.is_remote:
                self.answers.check_history(self.log.open_reader)
        except LedgerError as error:
            problem = self.log.store.translate_read_error(error)
            if not isinstance(problem, WriteProblem):
                raise
            self._write_problem = problem
        else:
            self._write_problem = None

    @property
    def _is_stalled(self) -> bool:
        """Whether a commit has waited for another node or for a standby for too long."""
        started = self._commit_started
        return started is not None and self.log.store.is_remote and monotonic() > started + STALL_SECONDS

    def submit(self, *requests: Request) -> "list[Future[Outcome]]":
        """Submit requests, all or none. A future is done when its request is durable and visible here."""
        return self._writer.submit(*requests)

    def append(self, *requests: Request, meanwhile: Callable[[], None] = lambda: None) -> list[Outcome]:
        """Submit requests and wait for all of them. `meanwhile` is called while they are committed; it never raises."""
        futures = self.submit(*requests)
        meanwhile()
        return [future.result() for future in futures]

    def prepare(self, request: Append) -> Append:
        """Do what can be done before a request is appended, and return the request to append."""
        return request

    def change(self, request: StateChange) -> Any:
        """Change state that is not derived from entries, and return the result."""
        return changed_result(self.append(request)[0])

    def commit(self, group: Sequence[Request]) -> list[Outcome]:
        """Commit a group of requests at once, in this thread: for the one that gets the requests of all processes."""
        with self._writer.locked():
            return self._commit(group)

    def load(
        self, drafts: Iterable[Draft], preconditions: Preconditions | None = None, progress: Progress = lambda _: None
    ) -> LoadResult:
        """Append a large number of new handles, all or none (see `BulkLoad`). Other requests wait."""
        with self._writer.locked():
            self._note_end()
            return self._load(drafts, preconditions or {}, progress)

    def _load(self, drafts: Iterable[Draft], preconditions: Preconditions, progress: Progress) -> LoadResult:
        with self.answers.locked(), self._loading(), gc_paused():
            with BulkLoad(self.log, self.answers.folder) as load:
                loaded = load.append(drafts, preconditions, progress)
                if loaded.count:
                    self._follow_load(load, loaded)
            return loaded

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Shorten the write-ahead log before and after a load.

        Before it as well: if the load fills the disk, older content of the log could no longer be copied, and then the
        log
        could not be shortened either.
        """
        self._shorten_write_ahead_log()
        self._in_load = True
        try:
            yield
        finally:
            self._in_load = False
            self._shorten_write_ahead_log()

    def _shorten_write_ahead_log(self) -> None:
        """Try once; if a reader or a full disk prevents it, maintenance retries."""
        if self.log.store.dialect == "sqlite":
            self.log.has_traces = True
            with suppress(Exception):
                self.log.erase_traces()

    def _follow_load(self, load: BulkLoad, loaded: LoadResult) -> None:
        """Bring the answers view to the end of a load, or mark it as behind."""
        try:
            applied = self.answers.apply_sorted(loaded.first - 1, loaded.last, load.leaf, load.items())
            if applied is ApplyResult.BEHIND:
                self.answers.follow(self.log.open_reader)
        except Exception:
            _logger.exception("cannot update the answers view after a load")
            self.answers.mark_behind(loaded.last)

    def rotate_key(self, new: Signer, interface: str, actor: str) -> Outcome:
        """Sign checkpoints with another key from now on."""
        with self._signing:
            if self._signer is None:
                raise WrongKey("this process has no signing key to rotate")
            self._note_end()
            outcome = rotate_key(self.log, self._signer, new, interface, actor)
            self._signer = new
        self._wake.set()
        return outcome

    def checkpoint(self) -> bool:
        """Make a signed checkpoint cover everything appended so far; False if that was not possible.

        At most one checkpoint is signed per second, so this may wait.
        """
        with self.open_reader() as reader:
            size = reader.size
        deadline = monotonic() + 2 * RETRY_DELAY
        while True:
            self._sign()
            with self.open_reader() as reader:
                if (reader.checkpoint_size() or 0) >= size:
                    return True
            if self._signer is None or monotonic() > deadline or self._stop.wait(INTERVAL):
                return False

    @property
    def is_erased(self) -> bool:
        """Whether redacted data is gone from every file."""
        return not (self.log.has_traces or self._erasure_due() or self.answers.has_unused)

    def wait_until_erased(self, timeout: float) -> bool:
        """Wait until redacted data is gone from every file; False after the timeout."""
        deadline = monotonic() + timeout
        while not self.is_erased:
            if monotonic() > deadline:
                return False
            self._stop.wait(INTERVAL)
        return True

    def _note_end(self) -> None:
        """Note the entry that the database must have before anything is appended."""
        if self.log.store.is_remote:
            self.log.known_end = self.answers.end

    def _commit(self, group: Sequence[Request]) -> list[Outcome]:
        self._note_end()
        self._commit_started = monotonic()
        try:
            committed = self.log.commit(group)
        except (StorageFull, ClockError, LostEntries, OutdatedProgram, ReadOnlyMode) as problem:
            self._write_problem = problem
            raise
        finally:
            self._commit_started = None
        # The requests have succeeded, whatever happens to the view.
        try:
            if self.answers.apply([*committed.earlier, *committed.changes]) is ApplyResult.BEHIND:
                self.answers.follow(self.log.open_reader)
        except Exception:
            _logger.exception("cannot update the answers view")
            self.answers.mark_behind(committed.changes[-1].seq)
        if committed.erased:
            self._wake.set()
        return committed.outcomes

    # Reading

    def open_reader(self) -> AbstractContextManager[LogReader]:
        """Open a consistent snapshot of the log to read and prove from."""
        return self.log.open_reader()

    def find(self, name: bytes) -> HandleItem | None:
        """Find the public data of a handle: in the answers view, or in the records if that is unavailable."""
        try:
            return self.answers.find(name)
        except AnswersUnavailable:
            return self._find_in_records(name)
        except CorruptData:
            self._discard_answers()
            return self._find_in_records(name)

    def prefix(self, prefix: bytes) -> PrefixItem | None:
        """Find the data of a prefix, from the same sources as `find`."""
        try:
            return self.answers.prefix(prefix)
        except AnswersUnavailable:
            return self._prefix_in_records(prefix)
        except CorruptData:
            self._discard_answers()
            return self._prefix_in_records(prefix)

    def _discard_answers(self) -> None:
        """Do not use a corrupt view until it is rebuilt."""
        self.answers.discard()

    def _find_in_records(self, raw: bytes) -> HandleItem | None:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if is_local(raw):
            return None
        items = []
        with self.open_reader() as reader:
            for exact in (True, False):
                entry = reader.record(record_key(name, exact=exact))
                item = None if entry is None or entry.exact != exact else HandleItem.of(change_from_entry(entry))
                if item is not None:
                    items.append(item)
        return choose_item(items, raw)

    def _prefix_in_records(self, raw: bytes) -> PrefixItem | None:
        try:
            prefix = raw.decode("utf-8")
        except UnicodeDecodeError:
            return None
        homed = (HOMED + before for before in ("0.NA/", "", "0.NA/0.NA/"))
        merged: bytes | None = None
        with self.open_reader() as reader:
            for before in ("0.NA/", POLICY, *homed):
                entry = reader.record(record_key(before + prefix))
                part = None if entry is None else PrefixPart.of(change_from_entry(entry))
                if part is not None:
                    merged = part.merge(merged)
        item = EMPTY_PREFIX_ITEM if merged is None else PrefixItem.from_bytes(merged)
        return None if item == EMPTY_PREFIX_ITEM else item

    # Maintenance

    def _run_maintenance(self) -> None:
        """Maintain views and checkpoints until the ledger is closed, whatever fails."""
        while not self._stop.is_set():
            try:
                with closing(ChangeWatcher(self.log)) as watcher:
                    self._maintain(watcher)
            except Exception as error:  # noqa: BLE001 - maintenance must continue
                if not self._in_load:  # a load holds the locks
                    self._warn("ledger maintenance failed, retrying", error)
                self._stop.wait(RETRY_DELAY)
        self._finish()

    def _maintain(self, watcher: ChangeWatcher) -> None:
        due = 0.0  # next run without a notification
        purge_due = monotonic() + PURGE_INTERVAL  # short commands leave it to the servers
        while not self._stop.is_set():
            now = monotonic()
            if watcher.wait(self._stop):
                self._wake.set()
            if self._in_load:  # the load holds the locks and updates the view itself
                continue
            if now >= due:
                self._check_write_problem()
                self._erase_traces()  # before the rest, because it may free the space that the rest needs
            if self._wake.is_set() or now >= due:
                self._wake.clear()
                followed = self.answers.follow(self.log.open_reader)
                if not followed or self._erasure_due() or self.answers.has_unused:
                    self._start_building()
            if now >= due:
                due = now + RETRY_DELAY
                self._sign()
            if now >= purge_due and self._write_problem is None:  # in read-only mode nothing is deleted
                purge_due = now + PURGE_INTERVAL
                idempotency.purge(self.log)

    def _erase_traces(self) -> None:
        """Remove traces; a failure, such as a full disk, does not keep the view from being updated."""
        try:
            self.log.erase_traces()
        except Exception as error:  # noqa: BLE001 - retried after a pause
            self._warn("cannot remove traces of redacted data yet, retrying", error)

    def _warn(self, message: str, error: Exception) -> None:
        """Log a failure of maintenance, unless changes are refused too: that is reported once, by others."""
        error = self.log.store.translate_read_error(error)
        if isinstance(error, StorageFull) or (isinstance(error, StoreUnavailable) and self.log.store.is_remote):
            self._write_problem = error
        elif self._write_problem is None:
            _logger.warning("%s: %s", message, error)

    def _start_building(self) -> None:
        """Build the answers view in its own thread, so that maintenance continues meanwhile."""
        if self._builder is None or not self._builder.is_alive():
            self._builder = threading.Thread(target=self._build, name="answers builder")
            self._builder.start()

    def _build(self) -> None:
        try:
            self._stop.wait(0 if self._build_once() else RETRY_DELAY)
        except LedgerClosing:
            pass
        except Exception as error:  # noqa: BLE001 - maintenance restarts it
            self._warn("building the answers view failed, retrying", error)
            self._stop.wait(RETRY_DELAY)

    def _build_once(self) -> bool:
        if not self.answers.catch_up(self.log.open_reader, self._check_closing):
            return False
        if not self._erase(self._check_closing):
            return False
        if self.answers.has_unused:  # left over by a process that was killed during a rebuild
            self.answers.remove_unused(self._check_closing)
        return True

    def _erase(self, progress: Callable[[int], None]) -> bool:
        """Rebuild the answers view if it may contain data that was redacted, here or by another process."""
        last = self._erasure_due()
        if not last:
            return True
        clear_entry_cache()
        drop_unfinished(self.log)
        return self.answers.rebuild(self.log.open_reader, progress, last)

    def _erasure_due(self) -> int:
        """The last redaction that the answers view was not rebuilt after; 0 if there is none."""
        with self.open_reader() as reader:
            last = reader.last_erasure()
        try:
            return last if last and last > self.answers.built else 0
        except AnswersUnavailable:
            return last

    def _finish(self) -> None:
        """Before the end, remove redacted data and sign a checkpoint over the last entries."""
        if self._builder is not None:
            self._builder.join()
        try:
            self.log.erase_traces()
            self._erase(lambda _: None)
            self._sign()
        except Exception as error:  # noqa: BLE001 - the next start does it
            self._warn("maintenance is left to the next start", error)

    def _sign(self) -> None:
        """Sign a checkpoint if there are new entries."""
        with self._signing:
            if self._signer is None:
                return
            with self.open_reader() as reader:
                if reader.checkpoint_size() == reader.size:
                    return
            try:
                sign_checkpoint(self.log, self._signer)
            except WrongKey as error:
                self._signer = self._renew_signer(error)

    def _renew_signer(self, error: WrongKey) -> Signer | None:
        """Load the key that replaced the current one; None if it is not available."""
        new = self._renew()
        if new is None or self._signer is None or new.public == self._signer.public:
            _logger.warning("this process stops signing checkpoints: %s", error)
            return None
        return new

    def _check_closing(self, _done: int) -> None:
        if self._stop.is_set():
            raise LedgerClosing


class UnopenedLedger(Ledger):
    """A ledger whose database cannot be opened, for lack of space or because it cannot be reached.

    Handles are found in the answers view, which was complete when it was last written. Everything else raises the
    problem, until a new `Ledger` is opened.
    """

    def __init__(self, log: Log, answers: Answers, problem: StorageFull | StoreUnavailable) -> None:
        self.log = log
        self.answers = answers
        kind = StorageFull if isinstance(problem, StorageFull) else StoreUnavailable
        self._problem = kind(f"{problem}. The ledger cannot be opened")
        self._write_problem = self._problem

    def can_open(self) -> bool:
        """Whether there is space again, or the database can be reached."""
        try:
            self.log.store.check_space(thorough=True)
            with self.open_reader() as reader:
                return reader.size >= 0
        except (LedgerError, DBAPIError):  # such as tables that are missing, or a standby
            return False

    def close(self) -> None:
        """Release everything."""
        self.answers.close()
        self.log.store.close()

    @property
    def ready(self) -> bool:
        """Whether the answers view can be used."""
        return self.answers.ready

    def submit(self, *_: Request) -> "list[Future[Outcome]]":
        """Refuse all requests."""
        raise self._problem

    def load(self, *_: object) -> LoadResult:
        """Refuse all requests."""
        raise self._problem

    def checkpoint(self) -> bool:
        """Return False: nothing can be signed."""
        return False
