"""What a worker counts for statistics: requests by namespace, kind and duration, without addresses or identities.

The event loop counts in plain dictionaries (`RequestTally`); `statistics.StatisticsRecorder` adds them to the file of
the installation. A process that only resolves counts too, so this module imports little.

A request for a handle of a hosted namespace is counted once: found, with its kind, or not found. Responses of the fast
paths are counted as shorter than a millisecond without being measured: they take some microseconds. Over UDP the
requests are counted, also those whose responses exceed the rate limit of a network.

Bots are told apart by the User-Agent of HTTP (`BOTS`). The native protocol does not tell its clients apart.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from perseid.ledger.statistics import MAX_WANTED_BYTES
from perseid.names.handle import fold
from perseid.wire.codes import ResponseCode

MAX_COUNTED: Final = 1_000
"""Namespaces, in each spelling and kind, that are counted between two additions; the rest is counted together, without
a namespace. Clients choose the spelling, so it must be bounded."""

MAX_MISSING: Final = 1_000
"""Identifiers not found that are counted one by one between two additions: a client can invent any number."""

OTHER: Final = ""
"""The namespace of what is counted together: requests for prefixes that are not hosted here (`StatisticsRecorder`), and
the rest of too many."""

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
DURATIONS: Final = ("under_1ms", "under_10ms", "under_100ms", "under_1s", "slower")
_FOUND: Final = frozenset((ResponseCode.SUCCESS, ResponseCode.VALUES_NOT_FOUND))
_READS: Final = frozenset(("GET", "HEAD"))
_REDIRECT: Final = ord("3")  # the first digit of a status


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

    def add(self, found: Mapping[bytes, int], unknown: Mapping[bytes, int], missing: Mapping[bytes, int]) -> None:
        """Add what the compiled module has counted: records found and not found by prefix, names not found."""
        for counts, added in ((self.native, found), (self.unknown, unknown)):
            for prefix, count in added.items():
                key = prefix if prefix in counts or len(counts) < MAX_COUNTED else b""
                counts[key] = counts.get(key, 0) + count
        for requested, count in missing.items():
            name = requested if b"/" in requested else b"0.NA/" + requested
            if name in self.missing or (len(self.missing) < MAX_MISSING and len(name) <= MAX_WANTED_BYTES):
                self.missing[name] = self.missing.get(name, 0) + count

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
        prefix = to_prefix(name.partition(b"/")[0])
        if len(self.others) >= MAX_COUNTED and (prefix, column) not in self.others:
            prefix = OTHER
        if column:
            self.others[prefix, column] += 1
        self.others[prefix, DURATIONS[bisect_right(_BOUNDS, microseconds)]] += 1

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
            sums[to_prefix(prefix), "native"] += count
            sums[to_prefix(prefix), "under_1ms"] += count
        for prefix, count in self.unknown.items():
            sums[to_prefix(prefix), "not_found"] += count
            sums[to_prefix(prefix), "under_1ms"] += count
        for (prefix, digit, bot), count in self.http.items():
            kind = "redirects" if digit == _REDIRECT else "json"
            sums[to_prefix(prefix), f"{'bot_' if bot else ''}{kind}"] += count
            sums[to_prefix(prefix), "under_1ms"] += count
        return sums


def to_prefix(prefix: bytes) -> str:
    """The namespace of a prefix as spelled."""
    return fold(prefix.decode("utf-8", "replace"))


def response_kind(status: int, content_type: str, path: bytes) -> str:
    """Return the kind of a response to a read: a redirect, a page, or data."""
    if content_type.startswith("text/html") and status // 100 != 3:
        return "pages"
    if 300 < status < 400 and status != 304:
        return "redirects"
    return "json" if path.startswith(b"/api/") or content_type else "pages"
