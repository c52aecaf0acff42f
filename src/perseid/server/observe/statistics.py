"""Counting of requests for statistics: by namespace, kind and duration, without addresses or identities.

The event loop of a worker counts in plain dictionaries (`RequestTally`); every few seconds a thread adds them to the
file of the installation (`StatisticsRecorder`). What a killed worker has not added is lost.

A request for a handle of a hosted namespace is counted once: found, with its kind, or not found. Responses of the fast
paths are counted as shorter than a millisecond without being measured: they take some microseconds. Over UDP the
requests are counted, also those whose responses exceed the rate limit of a network.

Bots are told apart by the User-Agent of HTTP (`BOTS`). The native protocol does not tell its clients apart.
"""

import asyncio
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from time import monotonic, time
from typing import Final

from perseid.ledger.errors import LedgerError
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.record_keys import LOCAL
from perseid.ledger.statistics import MAX_WANTED_BYTES, StatisticsStore
from perseid.names.handle import fold
from perseid.wire.codes import ResponseCode

FLUSH_SECONDS: Final = 5
"""Seconds between additions to the file: what a killed worker loses, and how old the numbers are."""

FINISH_SECONDS: Final = 1.0
"""Seconds to count the rest of the ledger when a worker ends: some 50,000 entries. The supervisor waits two seconds
after the last request."""

MAX_COUNTED: Final = 1_000
"""Namespaces, in each spelling and kind, that are counted between two additions; the rest is counted together, without
a namespace. Clients choose the spelling, so it must be bounded."""

MAX_MISSING: Final = 1_000
"""Identifiers not found that are counted one by one between two additions: a client can invent any number."""

OTHER: Final = ""
"""The namespace of what is counted together."""

BOTS: Final[Mapping[str, str]] = {
    r"bot\b": "crawlers that call themselves so: Googlebot, bingbot, GPTBot, Applebot",
    r"crawl|spider|slurp": "other crawlers: Baiduspider, Yahoo! Slurp, commoncrawl",
    r"archiv|heritrix": "web archives: archive.org_bot, ia_archiver, heritrix",
    r"link-?check|checklink|deadlink": "link checkers, which request every link of a site",
    r"facebookexternalhit|preview|embedly": "previews in messengers and social networks",
    r"uptime|pingdom|statuscake|monitor|nagios": "monitoring, which requests the same identifier all day",
}
"""Patterns of the User-Agent of bots, and whom they match. Libraries and tools such as curl are not bots: they resolve
identifiers for somebody."""

MAX_AGENT: Final = 512
"""Characters of a User-Agent that are searched."""

_BOT: Final = re.compile("|".join(BOTS), re.IGNORECASE)
_CACHED_AGENTS: Final = 512
_BOUNDS: Final = (1_000, 10_000, 100_000, 1_000_000)  # microseconds
_DURATIONS: Final = ("under_1ms", "under_10ms", "under_100ms", "under_1s", "slower")
_FOUND: Final = frozenset((ResponseCode.SUCCESS, ResponseCode.VALUES_NOT_FOUND))
_READS: Final = frozenset(("GET", "HEAD"))
_REDIRECT: Final = ord("3")  # the first digit of a status
_LOCAL: Final = LOCAL.encode()
_RETRY_SECONDS: Final = 0.1
_logger = logging.getLogger(__name__)


@lru_cache(_CACHED_AGENTS)
def is_bot(agent: str) -> bool:
    """Whether a User-Agent names a bot."""
    return _BOT.search(agent[:MAX_AGENT]) is not None


class RequestTally:
    """What a worker has counted since the last addition. Event loop only; `take` ends a period."""

    __slots__ = ("http", "missing", "native", "others", "unknown")

    def __init__(self) -> None:
        self.native: dict[bytes, int] = {}
        """Records found by the fast path of the native protocol, by prefix as spelled."""
        self.http: dict[tuple[bytes, int, bool], int] = {}
        """Records found by that of HTTP: prefix, first digit of the status, whether a bot asked."""
        self.unknown: dict[bytes, int] = {}
        """Handles that a fast path has not found, by prefix as spelled."""
        self.others: Counter[tuple[str, str]] = Counter()
        """Everything else, by prefix and column."""
        self.missing: dict[bytes, int] = {}
        """Handles not found."""

    def count_native(self, prefix: bytes) -> None:
        """Count the first record of a prefix; the caller counts further ones in `native` itself."""
        if len(self.native) >= MAX_COUNTED:
            prefix = b""
        self.native[prefix] = self.native.get(prefix, 0) + 1

    def count_http(self, name: bytes, digit: int, bot: bool) -> None:
        """Count a record that the fast path of HTTP has found; `digit` is the first one of the status."""
        key = (name[: name.find(b"/")], digit, bot)
        try:
            self.http[key] += 1
        except KeyError:
            if len(self.http) >= MAX_COUNTED:
                key = (b"", digit, bot)
            self.http[key] = self.http.get(key, 0) + 1

    def count_unknown(self, prefix: bytes, name: bytes) -> None:
        """Count a handle of a hosted namespace that a fast path has not found."""
        unknown = self.unknown
        count = unknown.get(prefix)
        if count is None:
            if len(unknown) >= MAX_COUNTED:
                prefix = b""
            count = unknown.get(prefix, 0)
        unknown[prefix] = count + 1
        self._count_name(name)

    def count_missing(self, name: bytes, *, bot: bool = False, microseconds: int = 0) -> None:
        """Count a handle of a hosted namespace that was not found otherwise."""
        self._add(name, "bot_not_found" if bot else "not_found", microseconds)
        if not bot:
            self._count_name(name)

    def _count_name(self, name: bytes) -> None:
        missing = self.missing
        count = missing.get(name)
        if count is not None:
            missing[name] = count + 1
        elif len(missing) < MAX_MISSING and len(name) <= MAX_WANTED_BYTES:
            missing[name] = 1

    def count_served(self, name: bytes, code: int | None, microseconds: int, *, resolution: bool) -> None:
        """Count a request of the native protocol that the fast path did not answer."""
        if code == ResponseCode.HANDLE_NOT_FOUND and resolution:
            self.count_missing(name, microseconds=microseconds)
        elif code in _FOUND and name:
            self._add(name, "native" if resolution else "", microseconds)

    def count_response(self, name: bytes, code: int, microseconds: int, method: str, kind: str, agent: str) -> None:
        """Count an HTTP request that the fast path did not answer; `kind` as `response_kind` returns it."""
        bot = is_bot(agent)
        if code == ResponseCode.HANDLE_NOT_FOUND and method in _READS:
            self.count_missing(name, bot=bot, microseconds=microseconds)
        elif code in _FOUND and name:
            column = f"{'bot_' if bot else ''}{kind}" if method in _READS else ""
            self._add(name, column, microseconds)

    def _add(self, name: bytes, column: str, microseconds: int) -> None:
        prefix = _to_prefix(name.partition(b"/")[0])
        if len(self.others) >= MAX_COUNTED and (prefix, column) not in self.others:
            prefix = OTHER
        if column:
            self.others[prefix, column] += 1
        self.others[prefix, _DURATIONS[bisect_right(_BOUNDS, microseconds)]] += 1

    def take(self) -> "RequestTally":
        """Return everything counted so far, and start again."""
        taken = RequestTally()
        for name in self.__slots__:
            mine, empty = getattr(self, name), getattr(taken, name)
            setattr(taken, name, mine)
            setattr(self, name, empty)
        return taken

    def sums(self) -> Counter[tuple[str, str]]:
        """Return the sums by prefix and column."""
        sums = Counter(self.others)
        for prefix, count in self.native.items():
            sums[_to_prefix(prefix), "native"] += count
            sums[_to_prefix(prefix), "under_1ms"] += count
        for prefix, count in self.unknown.items():
            sums[_to_prefix(prefix), "not_found"] += count
            sums[_to_prefix(prefix), "under_1ms"] += count
        for (prefix, digit, bot), count in self.http.items():
            kind = "redirects" if digit == _REDIRECT else "json"
            sums[_to_prefix(prefix), f"{'bot_' if bot else ''}{kind}"] += count
            sums[_to_prefix(prefix), "under_1ms"] += count
        return sums


def _to_prefix(prefix: bytes) -> str:
    return fold(prefix.decode("utf-8", "replace"))


def response_kind(status: int, content_type: str, path: bytes) -> str:
    """Return the kind of a response to a read: a redirect, a page, or data."""
    if content_type.startswith("text/html") and status // 100 != 3:
        return "pages"
    if 300 < status < 400 and status != 304:
        return "redirects"
    return "json" if path.startswith(b"/api/") or content_type else "pages"


class StatisticsRecorder:
    """Adds what a worker has counted to the file of the installation, in a thread."""

    def __init__(self, tally: RequestTally, store: StatisticsStore, ledger: Ledger, reads_ledger: bool) -> None:
        """`reads_ledger` is whether this worker counts the changes: one of them does."""
        self.enabled = True
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
        taken = self._tally.take()
        if not self.enabled:
            self._is_behind = self._is_busy = False
            return
        try:
            self._is_behind = await asyncio.to_thread(self._add, taken)
        except (OSError, LedgerError) as error:
            if not self._has_failed:
                _logger.warning("statistics are incomplete: %s", error)
            self._has_failed = True
            self._is_behind = False  # the ledger is tried again when it is time, not at once
            self._is_busy = isinstance(error, OSError)
        else:
            self._has_failed = self._is_busy = False

    def _add(self, taken: RequestTally) -> bool:
        """Add sums, and count a step of the ledger; return whether it has more. What is not stored is added later."""
        self._sums.update(taken.sums())
        self._missing.update(taken.missing)
        if len(self._sums) > MAX_COUNTED * len(_DURATIONS):  # the file has not been writable for long
            self._sums.clear()
        if len(self._missing) > 2 * MAX_MISSING:
            self._missing.clear()
        if self._sums or self._missing:
            self._store.add(int(time()), self._sums, self._unknown(self._missing))
            self._sums.clear()
            self._missing.clear()
        if not self._reads_ledger:
            return False
        with self._ledger.open_reader() as reader:
            return self._store.count_changes(reader, int(time()))

    def _unknown(self, missing: Mapping[bytes, int]) -> dict[tuple[str, str], int]:
        """Return the handles without any record: a reserved or unpublished one is not wanted, but hidden."""
        unknown: dict[tuple[str, str], int] = {}
        answers = self._ledger.answers
        for name, count in missing.items():
            if b"/" not in name or name.upper().startswith(_LOCAL) or answers.get(name) is not None:
                continue
            try:
                text = name.decode("utf-8")
            except UnicodeDecodeError:
                continue
            unknown[_to_prefix(name.partition(b"/")[0]), text] = count
        return unknown
