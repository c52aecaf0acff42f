"""Where the next page of a list begins: sealed, so that it tells nothing and nobody can make one up.

A page may end at something that its reader may not see. So a cursor is encrypted, with a key that follows from the
ledger: it is good on every node and after every start, and nothing is kept for it. It is bound to the list that it
belongs to, and to who reads it.

How many requests somebody may make in a minute, and what answers say about it.

What work costs is limited by the budgets of the pools. This limit is one that a client can see and keep to: every
answer says how much is left (RateLimit header fields for HTTP, a draft of the IETF):

    RateLimit-Policy: "requests";q=600;w=60
    RateLimit: "requests";r=597;t=1

Whoever has proved who they are is counted wherever they come from, and everybody else by their network. A token counts
for whoever made it (`registry.identity.counted_as`), so that many tokens give no more than one.

What our own API keeps between requests, in one process. It outlives a change of settings.
"""

import base64
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil
from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from perseid.registry.access.tokens import TokenAuthenticator
from perseid.registry.idempotency import IdempotencyKeys
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.http.messages import HeaderList

from .job_events import Listeners
from .job_runs import JobRunner

SECRET_PURPOSE: Final = b"API cursors"
"""Of the ledger's secret."""

MAX_CURSOR: Final = 8_000
"""Characters of the longest cursor that is looked at: more does not fit into the head of a request."""

T = TypeVar("T")


class InvalidCursor(ValueError):
    """A cursor that no page of this list has ended with."""


class CursorCipher:
    """Seals and opens cursors."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESSIV(secret)

    def seal(self, place: object, context: bytes) -> str:
        """The cursor for a place: a plain object."""
        return _encode(self._cipher.encrypt(msgspec.msgpack.encode(place), [context]))

    def open(self, cursor: str, context: bytes, type_: type[T]) -> T:
        """The place that a cursor stands for; raises `InvalidCursor`."""
        try:
            if len(cursor) > MAX_CURSOR:
                raise InvalidCursor
            data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
            if _encode(data) != cursor:
                raise InvalidCursor  # bits that mean nothing are set: nobody but a forger writes it so
            return msgspec.msgpack.decode(self._cipher.decrypt(data, [context]), type=type_)
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            message = "the cursor is not one that this list has given you; begin at the first page, without a cursor"
            raise InvalidCursor(message) from None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


WINDOW: Final = 60
"""Seconds that a limit is about."""

MAX_CLIENTS: Final = 10_000
"""Of whom it is kept how much they have left, some hundred octets each. The one who was silent for longest makes room,
and begins anew."""

POLICY_NAME: Final = "requests"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What somebody may do yet."""

    allowed: bool
    limit: int
    remaining: int
    reset: int
    """Seconds until there is more than that: until the whole limit is there again, or one request if none is."""

    @property
    def headers(self) -> HeaderList:
        """What an answer says about it."""
        if not self.limit:
            return ()
        return (
            ("RateLimit-Policy", f'"{POLICY_NAME}";q={self.limit};w={WINDOW}'),
            ("RateLimit", f'"{POLICY_NAME}";r={self.remaining};t={self.reset}'),
        )


NO_LIMIT: Final = Allowance(allowed=True, limit=0, remaining=0, reset=0)


class RateLimiter:
    """Counts requests."""

    def __init__(self) -> None:
        # For each the moment at which the whole limit will be there again; who was silent for longest comes first.
        self._due: dict[Hashable, float] = {}

    def take(self, client: Hashable, limit: int, now: float) -> Allowance:
        """Count a request of somebody who may make so many in a minute; none means that there is no limit."""
        if not limit:
            return NO_LIMIT
        cost = WINDOW / limit
        due = max(self._due.pop(client, 0.0), now)
        allowed = due + cost - now <= WINDOW
        if allowed:
            due += cost
        self._due[client] = due
        if len(self._due) > MAX_CLIENTS:
            del self._due[next(iter(self._due))]
        remaining = max(0, int((WINDOW - (due - now)) / cost + 1e-9))
        reset = due - now if remaining else due + cost - now - WINDOW
        return Allowance(allowed, limit, remaining, max(1, ceil(reset)))


@dataclass(slots=True)
class _RegistryState:
    """What belongs to one registry."""

    registry: Registry
    tokens: TokenAuthenticator
    keys: IdempotencyKeys
    cursors: CursorCipher | None = None


@dataclass(slots=True)
class ApiState:
    """What is kept; for any number of threads."""

    limiter: RateLimiter = field(default_factory=RateLimiter)
    """For the event loop alone."""
    runner: JobRunner = field(default_factory=JobRunner)
    """The changes of many records that are carried out; likewise."""
    listeners: Listeners = field(default_factory=Listeners)
    """Who is told how far they have come; likewise."""
    rules: Rules | None = None
    """What the settings say now, for what goes on when they are read again; None if they never were."""
    _state: _RegistryState | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def tokens(self, registry: Registry) -> TokenAuthenticator:
        """What recognises bearer tokens."""
        return self._state_for(registry).tokens

    def keys(self, registry: Registry) -> IdempotencyKeys:
        """The keys of requests that are carried out once."""
        return self._state_for(registry).keys

    def cursors(self, registry: Registry) -> CursorCipher:
        """What seals the places where pages begin. It may wait for the ledger, which is read the first time."""
        state = self._state_for(registry)
        if state.cursors is None:
            with registry.snapshot() as snapshot:
                state.cursors = CursorCipher(snapshot.reading.secret(SECRET_PURPOSE))
        return state.cursors

    def stop(self) -> None:
        """Have everything end that goes on by itself: the server is about to stop."""
        self.runner.stopping = self.listeners.stopping = True

    def _state_for(self, registry: Registry) -> _RegistryState:
        with self._lock:
            if self._state is None or self._state.registry is not registry:
                self._state = _RegistryState(registry, TokenAuthenticator(registry), IdempotencyKeys(registry))
            return self._state
