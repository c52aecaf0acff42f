"""A ledger with its views, as the rest of the program uses it.

A write is acknowledged when its entry and the views in SQL are on the disk and the answers view has it too, or is
marked as unable to follow. So whoever was told "done" finds it done, here and at once. A thread of its own looks after
the rest: it brings the answers view up to what other processes and nodes append, builds it when it is missing, erases
what was redacted, signs checkpoints, and removes what is kept for a time only.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from time import monotonic
from typing import Final, Self

from perseid.ledger.backup.bulk_load import BulkLoad, LoadResult, Progress
from perseid.ledger.log.entry import Draft
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import HOMED, POLICY, record_key
from perseid.ledger.log.requests import Outcome, Preconditions, Request
from perseid.ledger.log.signing import WrongKey, rotate_key, sign_checkpoint
from perseid.ledger.log.writer import INTERVAL, ChangeWatcher, Writer
from perseid.ledger.store.rows import change_from_entry, clear_entry_cache
from perseid.ledger.views.answers import Answers, ApplyResult
from perseid.ledger.views.answers_format import (
    EMPTY_PREFIX_ITEM,
    HandleItem,
    PrefixItem,
    PrefixPart,
    choose_item,
    is_local,
)
from perseid.ledger.views.answers_reader import AnswersUnavailable
from perseid.ledger.views.sql import drop_unfinished

from .errors import CorruptData
from .merkle import Signer
from .store import idempotency

RETRY_DELAY: Final = 1.0
"""Seconds before something is tried again that failed: a full disk, a database that is away."""

PURGE_INTERVAL: Final = 600.0
"""Seconds between two looks whether keys of requests have been kept for long enough: see `answered`."""

_logger = logging.getLogger(__name__)


class LedgerClosing(Exception):
    """Breaks off the building of a view when the ledger is closed; the next start builds it."""


class Ledger:
    """One process's access to a ledger: append, read, resolve. For any number of threads."""

    def __init__(
        self,
        log: Log,
        answers: Answers,
        signer: Signer | None = None,
        renew: Callable[[], Signer | None] = lambda: None,
    ) -> None:
        """`renew` looks for the key again, when another process has exchanged it."""
        self.log = log
        self.answers = answers
        self._signer = signer
        self._renew = renew
        self._signing = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()  # that the view must be looked at
        self._wake.set()
        self._builder: threading.Thread | None = None
        self._in_load = False
        answers.follow(log.reading)
        self._writer = Writer(self._commit)
        self._maintenance = threading.Thread(target=self._run_maintenance, name="ledger keeper")
        self._maintenance.start()

    def close(self) -> None:
        """Finish what was handed in, erase what was redacted, and give everything back."""
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
        """Whether everything is as it should be: the view follows, and somebody looks after it."""
        return self._maintenance.is_alive() and self.answers.ready

    # Writing

    def submit(self, *requests: Request) -> "list[Future[Outcome]]":
        """Hand requests in, all or none; a future is done when what it asked for is durable, and visible here."""
        return self._writer.submit(*requests)

    def append(self, *requests: Request) -> list[Outcome]:
        """Hand requests in and wait for them all."""
        return [future.result() for future in self.submit(*requests)]

    def load(
        self, drafts: Iterable[Draft], preconditions: Preconditions | None = None, progress: Progress = lambda _: None
    ) -> LoadResult:
        """Append entries of new names, very many, all or none: see `loading`. Whatever else is handed in waits."""
        with self._writer.locked(), self.answers.locked(), self._loading():
            with BulkLoad(self.log, self.answers.folder) as load:
                loaded = load.append(drafts, preconditions or {}, progress)
                if loaded.count:
                    self._follow_load(load, loaded)
            return loaded

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """While there is a load, after which the write-ahead log is made short again, whatever became of the load.

        Before it, too: on a disk that the load fills, what was in the log from earlier could not be copied any more,
        and then the log could not be made shorter either.
        """
        self._shorten_write_ahead_log()
        self._in_load = True
        try:
            yield
        finally:
            self._in_load = False
            self._shorten_write_ahead_log()

    def _shorten_write_ahead_log(self) -> None:
        """Try it now; where somebody reads an earlier state, or there is no room, the keeper tries it again."""
        if self.log.store.dialect == "sqlite":
            self.log.has_traces = True
            with suppress(Exception):
                self.log.erase_traces()

    def _follow_load(self, load: BulkLoad, loaded: LoadResult) -> None:
        """Bring the answers view to the end of a load, or have it resolved from the records."""
        try:
            items = load.items.sorted()
            if self.answers.apply_sorted(loaded.first - 1, loaded.last, load.leaf, items) is ApplyResult.BEHIND:
                self.answers.follow(self.log.reading)
        except Exception:
            _logger.exception("the answers view cannot follow a load")
            self.answers.mark_behind(loaded.last)

    def rotate_key(self, new: Signer, interface: str, actor: str) -> Outcome:
        """Sign checkpoints with another key from here on."""
        with self._signing:
            if self._signer is None:
                raise WrongKey("this process has no key to hand over from")
            outcome = rotate_key(self.log, self._signer, new, interface, actor)
            self._signer = new
        self._wake.set()
        return outcome

    def checkpoint(self) -> bool:
        """Have what was appended so far under a signed checkpoint; whether it is so.

        At most one is signed in a second, so this may wait for the next.
        """
        with self.reading() as reading:
            size = reading.size
        deadline = monotonic() + 2 * RETRY_DELAY
        while True:
            self._sign()
            with self.reading() as reading:
                if (reading.checkpoint_size() or 0) >= size:
                    return True
            if self._signer is None or monotonic() > deadline or self._stop.wait(INTERVAL):
                return False

    def wait_until_erased(self, timeout: float) -> bool:
        """Wait until what was erased from the ledger is in no other file either; whether it is so."""
        deadline = monotonic() + timeout
        while self.log.has_traces or self._erasure_due():
            if monotonic() > deadline:
                return False
            self._stop.wait(INTERVAL)
        return True

    def _commit(self, group: Sequence[Request]) -> list[Outcome]:
        committed = self.log.commit(group)
        # From here on the answer is success, whatever happens to the view.
        try:
            if self.answers.apply(committed.changes) is ApplyResult.BEHIND:
                self.answers.follow(self.log.reading)
        except Exception:
            _logger.exception("the answers view cannot follow")
            self.answers.mark_behind(committed.changes[-1].seq)
        if committed.erased:
            self._wake.set()
        return committed.outcomes

    # Reading

    def reading(self) -> AbstractContextManager[LogReader]:
        """One state of the log, to read and prove from."""
        return self.log.reading()

    def find(self, name: bytes) -> HandleItem | None:
        """What the public may know of a name: from the answers, or from the records while those cannot be used."""
        try:
            return self.answers.find(name)
        except AnswersUnavailable:
            return self._find_in_records(name)
        except CorruptData:
            self.answers.discard()
            return self._find_in_records(name)

    def prefix(self, prefix: bytes) -> PrefixItem | None:
        """What is known of a prefix, from where `find` takes it."""
        try:
            return self.answers.prefix(prefix)
        except AnswersUnavailable:
            return self._prefix_in_records(prefix)
        except CorruptData:
            self.answers.discard()
            return self._prefix_in_records(prefix)

    def _find_in_records(self, raw: bytes) -> HandleItem | None:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if is_local(raw):
            return None
        items = []
        with self.reading() as reading:
            for exact in (True, False):
                entry = reading.record(record_key(name, exact=exact))
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
        with self.reading() as reading:
            for before in ("0.NA/", POLICY, *homed):
                entry = reading.record(record_key(before + prefix))
                part = None if entry is None else PrefixPart.of(change_from_entry(entry))
                if part is not None:
                    merged = part.merge(merged)
        item = EMPTY_PREFIX_ITEM if merged is None else PrefixItem.from_bytes(merged)
        return None if item == EMPTY_PREFIX_ITEM else item

    # Keeping

    def _run_maintenance(self) -> None:
        """Look after views and checkpoints until the ledger is closed, whatever goes wrong on the way."""
        while not self._stop.is_set():
            try:
                with closing(ChangeWatcher(self.log)) as watch:
                    self._maintain(watch)
            except Exception as error:  # noqa: BLE001 - nobody else would do it
                _logger.warning("looking after the ledger is tried again: %s", error)
                self._stop.wait(RETRY_DELAY)
        self._finish()

    def _maintain(self, watch: ChangeWatcher) -> None:
        due = 0.0  # when to look without having been told to: at once, and then after each pause
        purge_due = monotonic() + PURGE_INTERVAL  # commands that are over in a moment leave it to those who serve
        while not self._stop.is_set():
            now = monotonic()
            if watch.wait(self._stop):
                self._wake.set()
            if self._in_load:  # it holds what would be waited for here, and brings the view to its own end
                continue
            if now >= due:
                self._erase_traces()  # first, for it may make the room that all else needs
            if self._wake.is_set() or now >= due:
                self._wake.clear()
                if not self.answers.follow(self.log.reading) or self._erasure_due():
                    self._start_building()
            if now >= due:
                due = now + RETRY_DELAY
                self._sign()
            if now >= purge_due:
                purge_due = now + PURGE_INTERVAL
                idempotency.purge(self.log)

    def _erase_traces(self) -> None:
        """Remove traces; what cannot be removed for want of room does not keep the view from following."""
        try:
            self.log.erase_traces()
        except Exception as error:  # noqa: BLE001 - it is tried again after a pause
            _logger.warning("what was erased leaves traces, and removing them is tried again: %s", error)

    def _start_building(self) -> None:
        """Have the answers view built, unless that is being done: others are followed meanwhile."""
        if self._builder is None or not self._builder.is_alive():
            self._builder = threading.Thread(target=self._build, name="answers builder")
            self._builder.start()

    def _build(self) -> None:
        try:
            self._stop.wait(0 if self._build_once() else RETRY_DELAY)
        except LedgerClosing:
            pass
        except Exception as error:  # noqa: BLE001 - the keeper starts it again
            _logger.warning("building the answers view is tried again: %s", error)
            self._stop.wait(RETRY_DELAY)

    def _build_once(self) -> bool:
        if not self.answers.catch_up(self.log.reading, self._check_closing):
            return False
        return self._erase(self._check_closing)

    def _erase(self, progress: Callable[[int], None]) -> bool:
        """Build the answers view anew if data was erased, here or by others, that may stand in it still."""
        last = self._erasure_due()
        if not last:
            return True
        clear_entry_cache()
        drop_unfinished(self.log)
        return self.answers.rebuild(self.log.reading, progress, last)

    def _erasure_due(self) -> int:
        """The last erasure that the answers view has not seen the end of; 0 if there is none."""
        with self.reading() as reading:
            last = reading.last_erasure()
        try:
            return last if last and last > self.answers.built else 0
        except AnswersUnavailable:
            return last

    def _finish(self) -> None:
        """What must be done before the end: erased data is gone, and the last entries are under a checkpoint."""
        if self._builder is not None:
            self._builder.join()
        try:
            self.log.erase_traces()
            self._erase(lambda _: None)
            self._sign()
        except Exception as error:  # noqa: BLE001 - the next start does it
            _logger.warning("the ledger is closed, and this is left for the next start: %s", error)

    def _sign(self) -> None:
        """Sign a checkpoint if there is something to sign; on a quiet ledger nobody has to wait for that."""
        with self._signing:
            if self._signer is None:
                return
            with self.reading() as reading:
                if reading.checkpoint_size() == reading.size:
                    return
            try:
                sign_checkpoint(self.log, self._signer)
            except WrongKey as error:
                self._signer = self._renew_signer(error)

    def _renew_signer(self, error: WrongKey) -> Signer | None:
        """The key that took the place of the one in use, if it is there."""
        new = self._renew()
        if new is None or self._signer is None or new.public == self._signer.public:
            _logger.warning("no more checkpoints are signed by this process: %s", error)
            return None
        return new

    def _check_closing(self, _done: int) -> None:
        if self._stop.is_set():
            raise LedgerClosing
