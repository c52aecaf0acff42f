"""Counts for statistics, added to the file of the installation.

A worker counts in memory (`tally.RequestTally`); every few seconds a thread adds that to the file, and counts the
changes in the ledger. What a killed worker has not added is lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from time import monotonic, time
from typing import Final

from perseid.ledger.errors import LedgerError, StoreUnavailable
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import LOCAL, homed_name, record_key
from perseid.ledger.statistics import EVERYTHING, Share, StatisticsStore
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.registry.partition import Partition

from .tally import DURATIONS, MAX_COUNTED, MAX_MISSING, OTHER, RequestTally, to_prefix

FLUSH_SECONDS: Final = 5
"""Seconds between additions to the file: what a killed worker loses, and how old the numbers are."""

FINISH_SECONDS: Final = 1.0
"""Seconds to count the rest of the ledger when a worker ends: some 50,000 entries. The supervisor waits two seconds
after the last request."""

_LOCAL: Final = LOCAL.encode()
_RETRY_SECONDS: Final = 0.1
_logger = logging.getLogger(__name__)


class StatisticsRecorder:
    """Adds what a worker has counted to the file of the installation, in a thread."""

    def __init__(self, tally: RequestTally, store: StatisticsStore, ledger: Ledger, reads_ledger: bool) -> None:
        """`reads_ledger` is whether this worker counts the changes: one of them does."""
        self.enabled = True
        self.collect: Callable[[], object] = bool
        """Called before the tally is taken, to add what others have counted."""
        self.partition: Partition | None = None
        """The share of this server, if the site has several: changes of other handles are not counted."""
        self._tally = tally
        self._store = store
        self._ledger = ledger
        self._reads_ledger = reads_ledger
        self._sums: Counter[tuple[str, str]] = Counter()
        self._missing: Counter[bytes] = Counter()
        """What is not stored yet."""
        self._running: asyncio.Task[None] | None = None
        self._is_behind = False
        self._has_failed = False
        self._is_busy = False  # the file could not be written, at the last attempt

    def tick(self, number: int) -> None:
        """Once a second: add what was counted, if it is time, in the background; the ledger in steps, one a second."""
        if number % FLUSH_SECONDS and not self._is_behind:
            return
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._flush())

    async def finish(self) -> None:
        """Add the rest, when the worker ends. What remains of the ledger is counted after the next start."""
        if self._running is not None:
            await self._running
        deadline = monotonic() + FINISH_SECONDS
        await self._flush()
        while (self._is_behind or self._is_busy) and monotonic() < deadline:
            await asyncio.sleep(_RETRY_SECONDS if self._is_busy else 0)
            await self._flush()
        self._store.close()

    async def _flush(self) -> None:
        self.collect()
        taken = self._tally.take()
        if not self.enabled:
            self._is_behind = self._is_busy = False
            return
        try:
            self._is_behind = await asyncio.to_thread(self._add, taken)
        except (OSError, LedgerError) as error:
            if not self._has_failed and not isinstance(error, StoreUnavailable):  # which others report
                _logger.warning("statistics are incomplete: %s", str(error).removesuffix("; retry"))
            self._has_failed = not isinstance(error, StoreUnavailable)
            self._is_behind = False  # the ledger is tried again when it is time, not at once
            self._is_busy = isinstance(error, OSError)
        else:
            self._has_failed = self._is_busy = False

    def _add(self, taken: RequestTally) -> bool:
        """Add sums, and count a step of the ledger; return whether it has more. What is not stored is added later."""
        self._sums.update(taken.sums())
        self._missing.update(taken.missing)
        if len(self._sums) > MAX_COUNTED * len(DURATIONS):  # the file has not been writable for long
            self._sums.clear()
        if len(self._missing) > 2 * MAX_MISSING:
            self._missing.clear()
        if not (self._sums or self._missing or self._reads_ledger):
            return False
        with self._ledger.open_reader() as reader:
            if self._sums or self._missing:
                prefixes = {prefix for prefix, _ in self._sums}
                hosted = {prefix for prefix in prefixes if _is_hosted(reader, prefix)}
                sums: Counter[tuple[str, str]] = Counter()
                for (prefix, column), count in self._sums.items():
                    sums[prefix if prefix in hosted else OTHER, column] += count
                self._store.add(int(time()), sums, self._unknown(self._missing, hosted))
                self._sums.clear()
                self._missing.clear()
            return self._reads_ledger and self._store.count_changes(reader, int(time()), self._share())

    def _share(self) -> Share:
        partition = self.partition
        if partition is None:
            return EVERYTHING
        return Share(partition.name, lambda handle: partition.find_other(Handle.parse_lenient(handle)) is None)

    def _unknown(self, missing: Mapping[bytes, int], hosted: Collection[str]) -> dict[tuple[str, str], int]:
        """Return the handles of hosted prefixes without any record: a reserved or unpublished one is hidden."""
        unknown: dict[tuple[str, str], int] = {}
        answers = self._ledger.answers
        for name, count in missing.items():
            if b"/" not in name or name.upper().startswith(_LOCAL) or answers.get(name) is not None:
                continue
            try:
                text = name.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if (prefix := to_prefix(name.partition(b"/")[0])) in hosted:
                unknown[prefix, text] = count
        return unknown


def _is_hosted(reader: LogReader, prefix: str) -> bool:
    """Whether this server hosts a prefix, or all prefix handles: clients ask for any text."""
    entries = [reader.record(record_key(homed_name(name))) for name in (f"{PREFIX_OF_PREFIXES}/{prefix}", prefix)]
    return prefix == PREFIX_OF_PREFIXES or any(entry is not None and entry.state is State.NORMAL for entry in entries)
