"""A ledger with its views, as the rest of the program uses it.

A write is acknowledged when its entry and the views in SQL are on the disk and the answers view has it too, or is
marked as unable to follow. So whoever was told "done" finds it done, here and at once. A thread of its own looks after
the rest: it brings the answers view up to what other processes and nodes append, builds it when it is missing, erases
what was redacted, and signs checkpoints.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Final, Self

from sqlalchemy.exc import DBAPIError

from . import signing
from .answer_format import NOTHING, HandleItem, PrefixItem, PrefixPart, choose, is_local
from .answers import Answers, Applied, Unavailable
from .checkpoint import Signer
from .errors import LedgerError
from .keys import HOMED, POLICY, record_key
from .log import Log
from .reading import Reading
from .requests import Outcome, Request
from .rows import change_of_entry
from .signing import WrongKey, sign_checkpoint
from .watch import INTERVAL, Watch
from .writer import Writer

PAUSE: Final = 1.0
"""Seconds before something is tried again that failed: a full disk, a database that is away."""

_MICROSECOND: Final = 1_000_000
_logger = logging.getLogger(__name__)


class Closing(Exception):
    """Breaks off the building of a view when the ledger is closed; the next start builds it."""


class Ledger:
    """One process's access to a ledger: append, read, resolve. For any number of threads."""

    def __init__(self, log: Log, answers: Answers, signer: Signer | None = None) -> None:
        self.log = log
        self.answers = answers
        self._signer = signer
        self._stop = threading.Event()
        self._erased = threading.Event()  # something, so that the answers view must be looked at
        self._erased.set()
        answers.follow(log.reading)
        self._writer = Writer(self._commit)
        self._keeper = threading.Thread(target=self._keep, name="ledger keeper")
        self._keeper.start()

    def close(self) -> None:
        """Finish what was handed in, erase what was redacted, and give everything back."""
        self._writer.close()
        self._stop.set()
        self._keeper.join()
        self.answers.close()
        self.log.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing

    def submit(self, request: Request) -> "Future[Outcome]":
        """Hand a request in; its future is done when what it asked for is durable, and visible here."""
        return self._writer.submit(request)

    def append(self, *requests: Request) -> list[Outcome]:
        """Hand requests in and wait for them all."""
        return [future.result() for future in [self.submit(request) for request in requests]]

    def wait_until_erased(self, timeout: float) -> bool:
        """Wait until what was erased from the ledger is in no file of the answers view either; whether it is so."""
        deadline = monotonic() + timeout
        while self._holds_erased():
            if monotonic() > deadline:
                return False
            self._stop.wait(INTERVAL)
        return True

    def _commit(self, group: Sequence[Request]) -> list[Outcome]:
        committed = self.log.commit(group)
        # From here on the answer is success, whatever happens to the view.
        if self.answers.apply(committed.changes) is Applied.BEHIND:
            self.answers.follow(self.log.reading)
        if committed.erased:
            self._erased.set()
        return committed.outcomes

    # Reading

    def reading(self) -> AbstractContextManager[Reading]:
        """One state of the log, to read and prove from."""
        return self.log.reading()

    def find(self, name: bytes) -> HandleItem | None:
        """What the public may know of a name: from the answers, or from the records while those cannot be used."""
        try:
            return self.answers.find(name)
        except Unavailable:
            return self._find_in_records(name)

    def prefix(self, prefix: bytes) -> PrefixItem | None:
        """What is known of a prefix, from where `find` takes it."""
        try:
            return self.answers.prefix(prefix)
        except Unavailable:
            return self._prefix_in_records(prefix)

    def _find_in_records(self, octets: bytes) -> HandleItem | None:
        try:
            name = octets.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if is_local(octets):
            return None
        items = []
        with self.reading() as reading:
            for exact in (True, False):
                entry = reading.record(record_key(name, exact=exact))
                item = None if entry is None or entry.exact != exact else HandleItem.of(change_of_entry(entry))
                if item is not None:
                    items.append(item)
        return choose(items, octets)

    def _prefix_in_records(self, octets: bytes) -> PrefixItem | None:
        try:
            prefix = octets.decode("utf-8")
        except UnicodeDecodeError:
            return None
        homed = (HOMED + before for before in ("0.NA/", "", "0.NA/0.NA/"))
        merged: bytes | None = None
        with self.reading() as reading:
            for before in ("0.NA/", POLICY, *homed):
                entry = reading.record(record_key(before + prefix))
                part = None if entry is None else PrefixPart.of(change_of_entry(entry))
                if part is not None:
                    merged = part.merge(merged)
        item = NOTHING if merged is None else PrefixItem.from_bytes(merged)
        return None if item == NOTHING else item

    # Keeping

    def _keep(self) -> None:
        """Look after views and checkpoints until the ledger is closed."""
        while not self._stop.is_set():
            try:
                with self._watching() as watch:
                    self._look_after(watch)
            except Closing:
                break
            except (LedgerError, DBAPIError, OSError) as error:
                _logger.warning("looking after the ledger is tried again: %s", error)
                self._stop.wait(PAUSE)
        self._erase(lambda _: None)

    @contextmanager
    def _watching(self) -> Iterator[Watch]:
        watch = Watch(self.log)
        try:
            yield watch
        finally:
            watch.close()

    def _look_after(self, watch: Watch) -> None:
        signed = monotonic() if self._signer is None else 0.0
        due = 0.0  # when to look without having been told to: at once, and then after each pause
        while not self._stop.is_set():
            now = monotonic()
            if watch.wait(self._stop) or now >= due:
                self.answers.catch_up(self.log.reading, self._unless_closing)
                self._erased.set()
                due = now + PAUSE
            self._erase(self._unless_closing)
            if self._signer is not None and now - signed >= signing.INTERVAL / _MICROSECOND:
                signed = now
                self._sign(self._signer)
        if self._signer is not None:
            self._sign(self._signer)

    def _sign(self, signer: Signer) -> None:
        try:
            sign_checkpoint(self.log, signer)
        except WrongKey as error:
            _logger.warning("no more checkpoints are signed by this process: %s", error)
            self._signer = None

    def _erase(self, progress: Callable[[int], None]) -> None:
        """Build the answers view anew if data was erased, here or by others, that may stand in it still."""
        if self._erased.is_set():
            self._erased.clear()
            if self._holds_erased() and not self.answers.rebuild(self.log.reading, progress):
                self._erased.set()

    def _holds_erased(self) -> bool:
        with self.reading() as reading:
            last = reading.last_erasure()
        try:
            return last > self.answers.built
        except Unavailable:
            return bool(last)

    def _unless_closing(self, _done: int) -> None:
        if self._stop.is_set():
            raise Closing
