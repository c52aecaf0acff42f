"""State of the HTTP API: cursors, rate limits, idempotency keys, running jobs.

It survives a reload of the settings.

Cursors. A page may end at an item that its reader cannot see, so a cursor is encrypted, with a key derived from the
ledger: it is valid on every node and after a restart, and nothing is stored. It is bound to its list and its reader.

Rate limit. The budgets of the pools limit the cost of work; this limit is visible to clients (RateLimit header fields
for HTTP, an IETF draft):

    RateLimit-Policy: "requests";q=600;w=60
    RateLimit: "requests";r=597;t=1

Authenticated requests count per identity, those with a token for its issuer (`registry.identity.quota_key`), so more
tokens give no more requests. Anonymous requests count per network.
"""

import base64
import hashlib
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from time import monotonic
from typing import Final, Self, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from perseid.registry.access.tokens import TokenUses
from perseid.registry.idempotency import IdempotencyKeys, LocalClaims, NewClaim, PendingClaims
from perseid.registry.registry import Registry
from perseid.server.http.messages import HeaderList
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.guesses import Source
from perseid.server.state.jobs import RunningJobs
from perseid.server.state.state import Entry, SharedState, StateFull, is_running

from .job_events import Listeners

SECRET_PURPOSE: Final = b"API cursors"
"""Purpose for which the key is derived from the ledger's secret."""

MAX_CURSOR: Final = 8_000
"""Characters; a longer cursor does not fit into the head of a request."""

T = TypeVar("T")


class InvalidCursor(ValueError):
    """A cursor that this list did not issue to this reader."""


class CursorCipher:
    """Encryption of cursors."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESSIV(secret)

    def seal(self, position: object, context: bytes) -> str:
        """Encrypt a position, a plain object."""
        return _encode(self._cipher.encrypt(msgspec.msgpack.encode(position), [context]))

    def open(self, cursor: str, context: bytes, type_: type[T]) -> T:
        """Decrypt a cursor; raises `InvalidCursor`."""
        try:
            if len(cursor) > MAX_CURSOR:
                raise InvalidCursor
            data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
            if _encode(data) != cursor:
                raise InvalidCursor  # unused bits are set: not a canonical encoding
            return msgspec.msgpack.decode(self._cipher.decrypt(data, [context]), type=type_)
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            message = "The cursor is not valid for this list; repeat the request without cursor"
            raise InvalidCursor(message) from None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


WINDOW: Final = 60
"""Seconds of the rate limit window."""

SLOTS: Final = 1 << 17
"""Words in which the use of clients is tracked, two for each: 1 MiB."""

POLICY_NAME: Final = "requests"


_CLAIM_BYTES = 256  # of a claim in the table, with what its pages leave unused

ROUNDING: Final = 1e-9
"""The part of a request that sums of floating-point numbers may be off by."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The remaining requests of a client."""

    allowed: bool
    limit: int
    remaining: int
    reset: int
    """Seconds until the limit is fully restored, or until one request is allowed if none is left."""

    @property
    def headers(self) -> HeaderList:
        """The RateLimit headers."""
        if not self.limit:
            return ()
        return (
            ("RateLimit-Policy", f'"{POLICY_NAME}";q={self.limit};w={WINDOW}'),
            ("RateLimit", f'"{POLICY_NAME}";r={self.remaining};t={self.reset}'),
        )


NO_LIMIT: Final = Allowance(allowed=True, limit=0, remaining=0, reset=0)


class RateLimiter:
    """A rate limiter for requests."""

    def __init__(self, buckets: Buckets | None = None) -> None:
        """`buckets` are those of all processes, with the clock of `take`; without, only this process counts."""
        self._buckets = Buckets.private() if buckets is None else buckets

    @classmethod
    def shared(cls, state: SharedState) -> Self:
        """Return a limiter that counts in all processes with that state."""
        return cls(Buckets.shared(state, "api_limits", SLOTS))

    def take(self, client: Source | str, limit: int, now: float) -> Allowance:
        """Count a request of a client, a network or an identity, with a limit per minute; 0 means no limit."""
        if not limit:
            return NO_LIMIT
        cost = WINDOW / limit
        slots = self._buckets.slots(0, _client_number(client))
        old = self._buckets.due(slots)
        due = max(old, now)
        remaining = max(0, int((WINDOW - (due - now)) / cost + ROUNDING))
        allowed = remaining > 0
        if allowed:
            due += cost
            remaining -= 1
        self._buckets.change(slots, old, due)
        reset = due - now if remaining else due + cost - now - WINDOW
        return Allowance(allowed, limit, remaining, max(1, ceil(reset)))


def _client_number(client: Source | str) -> int:
    if not isinstance(client, str):
        return client[0]
    return int.from_bytes(hashlib.blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "big")


CLAIM_SECONDS: Final = 3_600
"""Seconds after which a claim ends in any case; a request is executed in far less."""

MAX_CLAIMS: Final = 10_000
"""Requests with an idempotency key that are executed at a time: more than there can be connections."""


class SharedClaims:
    """The requests with an idempotency key that any process of the server is executing.

    A claim has the id of its process: those of a process that was killed are void.
    """

    def __init__(self, state: SharedState) -> None:
        self._table = state.table(
            "idempotency_claims", version=1, max_entries=MAX_CLAIMS, max_bytes=MAX_CLAIMS * _CLAIM_BYTES
        )

    def acquire(self, claim: NewClaim) -> bool:
        """Note a claim; return False if the same caller has claimed the same key."""
        now, pending = monotonic(), False

        def note(old: bytes | None) -> Entry | None:
            nonlocal pending
            pending = old is not None and is_running(int(old))
            return None if pending else Entry(str(os.getpid()).encode(), now + CLAIM_SECONDS)

        self._table.update(_claim_key(claim), now, note)
        return not pending  # without room for the claim, the ledger decides which request is first

    def release(self, claim: NewClaim) -> None:
        """Remove a claim that was acquired."""
        with suppress(StateFull):
            self._table.delete(_claim_key(claim))


def _claim_key(claim: NewClaim) -> bytes:
    return hashlib.sha256(claim.caller + claim.key).digest()


@dataclass(slots=True)
class _RegistryState:
    """State that belongs to one registry."""

    registry: Registry
    tokens: TokenUses
    keys: IdempotencyKeys
    cursors: CursorCipher | None = None


@dataclass(slots=True)
class ApiState:
    """State of the API; thread-safe unless noted."""

    limiter: RateLimiter = field(default_factory=RateLimiter)
    """Event loop only."""
    claims: PendingClaims = field(default_factory=LocalClaims)
    """The requests with an idempotency key that are being executed."""
    jobs: RunningJobs = field(default_factory=RunningJobs)
    """Running jobs."""
    listeners: Listeners = field(default_factory=Listeners)
    """Listeners for job progress. Event loop only."""
    _state: _RegistryState | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def tokens(self, registry: Registry) -> TokenUses:
        """Return the token authenticator."""
        return self._state_for(registry).tokens

    def keys(self, registry: Registry) -> IdempotencyKeys:
        """Return the idempotency keys."""
        return self._state_for(registry).keys

    def cursors(self, registry: Registry) -> CursorCipher:
        """Return the cursor cipher. The first call reads the ledger and may wait."""
        state = self._state_for(registry)
        if state.cursors is None:
            with registry.snapshot() as snapshot:
                state.cursors = CursorCipher(snapshot.reader.secret(SECRET_PURPOSE))
        return state.cursors

    def stop(self) -> None:
        """Start no more jobs, and end listeners: the server is shutting down."""
        self.jobs.stopping = self.listeners.stopping = True

    def _state_for(self, registry: Registry) -> _RegistryState:
        with self._lock:
            if self._state is None or self._state.registry is not registry:
                self._state = _RegistryState(registry, TokenUses(registry), IdempotencyKeys(registry, self.claims))
            return self._state
