"""What HTTP handlers keep between requests: results of the current state of a view, and results for a time."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from perseid.registry.queries.suggest import Suggestions
from perseid.server.native.decisions import Busy

MAX_CACHED_SUGGESTIONS: Final = 256
"""Texts whose suggestions are cached: those that many people mistype, and a page that is reloaded."""

MAX_SHARED_PARTS: Final = 512
"""What pages of many records share: the contacts of prefixes, whether a type has a page, administrators as HTML."""

T = TypeVar("T")


class StateCache(Generic[T]):
    """Results that are the same as long as the view is in one state."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: tuple[object, dict[Hashable, T]] = (None, {})

    def results(self, state: object) -> Mapping[Hashable, T]:
        """All cached results of a state."""
        known, results = self._results
        return results if state == known else {}

    def get(self, key: Hashable, state: object) -> T | None:
        """Return a cached result; None if there is none for this state."""
        known, results = self._results
        return results.get(key) if state == known else None

    def add(self, key: Hashable, state: object, result: T) -> None:
        """Cache a result of a state; None is the state of no view."""
        known, results = self._results
        if state is None:
            return
        if state != known or len(results) >= self._size:
            results = {}
            self._results = state, results
        results[key] = result


MAX_KEPT_PAGES: Final = 256
"""Pages of records that a worker keeps, of at most 16 KiB: 4 MiB."""

MAX_REQUESTED_PAGES: Final = 512
"""Requests after which a worker forgets which pages were requested once: rarer ones are not worth their memory."""

MAX_KEPT_RESULTS: Final = 256
"""Results that take long to read and are kept for a time: the namespaces that people look at."""


class KeptResults:
    """Results that may be some time old. What several clients wait for is read once. Event loop only."""

    def __init__(self) -> None:
        self._results: dict[str, tuple[float, object]] = {}
        self._running: dict[str, asyncio.Future[object]] = {}

    async def get(self, key: str, seconds: float, read: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """Return a result that was read within so many seconds, or read it. Raises what `read` raises."""
        while True:
            until, known = self._results.get(key, (0.0, None))
            if until > monotonic():
                return known
            running = self._running.get(key)
            if running is None:
                return await self._read(key, seconds, read)
            try:
                return await asyncio.shield(running)
            except Busy:  # the limit of another client; until `finish` has run
                await asyncio.sleep(0)

    async def _read(self, key: str, seconds: float, read: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """Read something in a task, which goes on for the others if its client leaves."""

        def finish(task: asyncio.Future[object]) -> None:
            del self._running[key]
            if task.cancelled() or task.exception() is not None:
                return
            if len(self._results) >= MAX_KEPT_RESULTS:
                self._results.clear()
            self._results[key] = (monotonic() + seconds, task.result())

        task = self._running[key] = asyncio.ensure_future(read())
        task.add_done_callback(finish)
        return await asyncio.shield(task)

    def clear(self) -> None:
        self._results.clear()


class SuggestionCache(StateCache[Suggestions]):
    """The suggestions for texts, and the searches that are running."""

    def __init__(self) -> None:
        super().__init__(MAX_CACHED_SUGGESTIONS)
        self.running = 0
