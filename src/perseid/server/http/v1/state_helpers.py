"""What our own API keeps between requests, in one process. It outlives a change of settings."""

import threading
from dataclasses import dataclass, field

from perseid.registry.access.tokens import Tokens
from perseid.registry.idempotency import IdempotencyKeys
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules

from .cursors import PURPOSE, Cursors
from .job_events import Listeners
from .job_runs import Runs
from .state import Limiter


@dataclass(slots=True)
class _Kept:
    """What belongs to one registry."""

    registry: Registry
    tokens: Tokens
    keys: IdempotencyKeys
    cursors: Cursors | None = None


@dataclass(slots=True)
class ApiState:
    """What is kept; for any number of threads."""

    limiter: Limiter = field(default_factory=Limiter)
    """For the event loop alone."""
    runs: Runs = field(default_factory=Runs)
    """The changes of many records that are carried out; likewise."""
    listeners: Listeners = field(default_factory=Listeners)
    """Who is told how far they have come; likewise."""
    rules: Rules | None = None
    """What the settings say now, for what goes on when they are read again; None if they never were."""
    _kept: _Kept | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def tokens(self, registry: Registry) -> Tokens:
        """What recognises bearer tokens."""
        return self._of(registry).tokens

    def keys(self, registry: Registry) -> IdempotencyKeys:
        """The keys of requests that are carried out once."""
        return self._of(registry).keys

    def cursors(self, registry: Registry) -> Cursors:
        """What seals the places where pages begin. It may wait for the ledger, which is read the first time."""
        kept = self._of(registry)
        if kept.cursors is None:
            with registry.facts() as facts:
                kept.cursors = Cursors(facts.reading.secret(PURPOSE))
        return kept.cursors

    def stop(self) -> None:
        """Have everything end that goes on by itself: the server is about to stop."""
        self.runs.stopping = self.listeners.stopping = True

    def _of(self, registry: Registry) -> _Kept:
        with self._lock:
            if self._kept is None or self._kept.registry is not registry:
                self._kept = _Kept(registry, Tokens(registry), IdempotencyKeys(registry))
            return self._kept
