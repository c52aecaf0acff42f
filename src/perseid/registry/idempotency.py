"""Idempotency keys: a request that carries a key is executed once, however often it is sent.

A client that gets no response sends the request again with the same key, and gets the same response:

    keys = IdempotencyKeys(registry)                      # one for each process
    with keys.claim(identity, key, digest, to_response) as claim:      # digest: SHA-256 of method, path and body
        if isinstance(claim, NewClaim):
            claim = keys.execute(claim, command, identity, interface, to_response)
        ...                                               # Executed, Replayed: respond; KeyReused: 422; InProgress: 409

The row of the key is written by the commit of the change (`perseid.ledger.store.idempotency`), so a process that is
killed leaves both or neither. A refused request has changed nothing, and its key stays free; a retry may succeed.

The result is stored for a day, and each response is made from it. Permissions are not checked again for a repeated
request. Of a long result, and of all results once something was redacted in the ledger, only the sequence numbers of
the entries are kept.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.requests import (
    CALLER_LENGTH,
    KEY_LIFETIME,
    OWNER_LENGTH,
    Failed,
    IdempotencyRecord,
    IdempotentRequest,
    Remember,
    RepeatedRequest,
    StoredResponse,
)
from perseid.ledger.store import idempotency
from perseid.wire.codes import ResponseCode

from .advice import AdviceKind
from .codec import decode_result
from .context import Command
from .identity import Anonymous, Identity, quota_key
from .registry import AlreadyExecuted, Registry
from .results import Refused

MAX_KEY_LENGTH: Final = 255
"""Bytes of the longest key: enough for any id that programs generate, such as a UUID."""

DIGEST_LENGTH: Final = 32
"""Bytes of the digest of a request: SHA-256."""

CREATED: Final = 201
"""The status that is stored with a result, for when only that is left of it."""

RETENTION_HOURS: Final = KEY_LIFETIME // 3_600_000_000
"""How many hours a key is stored."""

CAPACITY_SECONDS: Final = 5.0
"""How long the counted keys of an owner are used: counting takes up to milliseconds of the event loop. Keys that other
processes store meanwhile may exceed the quota."""

MAX_OWNERS: Final = 1_000
"""Owners whose keys are counted at a time: bounds memory."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewClaim:
    """The key is new: execute the request."""

    caller: bytes
    key: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Executed:
    """The request was executed now."""

    answer: StoredResponse


@dataclass(frozen=True, slots=True)
class Replayed:
    """The request was executed before. Nothing was done now."""

    status: int
    body: bytes | None
    """The response; None if only `seq` and `count` are known."""
    seq: int
    """Its first entry; 0 if it has none."""
    count: int
    """How many entries it has, from `seq` on."""


@dataclass(frozen=True, slots=True)
class KeyReused:
    """Another request with this key was executed. Nothing was done."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """A request with this key is being executed. Nothing was done; retry shortly."""


Claim: TypeAlias = NewClaim | Replayed | KeyReused | InProgress


class PendingClaims(Protocol):
    """The claims of requests that are being executed."""

    def acquire(self, claim: NewClaim) -> bool:
        """Note a claim; return False if the same caller has claimed the same key."""

    def release(self, claim: NewClaim) -> None:
        """Remove a claim that was acquired."""


class LocalClaims:
    """The pending claims of one process. Thread-safe."""

    def __init__(self) -> None:
        self._pending: set[tuple[bytes, bytes]] = set()
        self._lock = threading.Lock()

    def acquire(self, claim: NewClaim) -> bool:
        with self._lock:
            is_new = (claim.caller, claim.key) not in self._pending
            self._pending.add((claim.caller, claim.key))
            return is_new

    def release(self, claim: NewClaim) -> None:
        with self._lock:
            self._pending.discard((claim.caller, claim.key))


class IdempotencyKeys:
    """The idempotency keys. Thread-safe."""

    def __init__(self, registry: Registry, pending: PendingClaims | None = None) -> None:
        """`pending` are the claims of all processes; without, those of this process."""
        self._registry = registry
        self._pending = LocalClaims() if pending is None else pending
        self._capacity: dict[bytes, tuple[int, float]] = {}  # by owner: how many more keys, and until when that is used

    @contextmanager
    def claim(
        self, identity: Identity, key: bytes, digest: bytes, to_response: Callable[[T], StoredResponse] | None = None
    ) -> Iterator[Claim]:
        """Look up a key; if it is new, it belongs to the caller until the block ends. Raises `Refused`.

        `to_response` builds the response from a stored result, as for `execute`.

        `InProgress` covers the processes of one server. If another server executes the same request, the ledger decides
        which one is first, and `execute` returns its response to the other.
        """
        new_claim = _new_claim(identity, key, digest)
        if not self._pending.acquire(new_claim):
            yield InProgress()
            return
        try:
            yield self._find(new_claim, to_response) or self._check_capacity(new_claim)
        finally:
            self._pending.release(new_claim)

    def execute(
        self,
        claim: NewClaim,
        command: Command[T],
        identity: Identity,
        interface: str,
        to_response: Callable[[T], StoredResponse],
        note: str = "",
    ) -> Executed | Replayed | KeyReused:
        """Execute a command that is one commit, and store its key with it. Raises `Refused`.

        `to_response` builds the response from the result.
        """
        try:
            result = self._registry.do(command, identity, interface, note, once=_once(claim))
        except (AlreadyExecuted, Refused, LedgerError) as error:
            return self._explain(error, claim, to_response)
        return Executed(to_response(result))

    async def execute_in_loop(
        self,
        claim: NewClaim,
        command: Command[T],
        identity: Identity,
        interface: str,
        to_response: Callable[[T], StoredResponse],
        note: str = "",
    ) -> Executed | Replayed | KeyReused:
        """Like `execute`, in an event loop: it waits for the commit without blocking the loop."""
        try:
            result = await self._registry.execute(command, identity, interface, note, _once(claim))
        except (AlreadyExecuted, Refused, LedgerError) as error:
            return self._explain(error, claim, to_response)
        return Executed(to_response(result))

    def _explain(
        self, error: Exception, claim: NewClaim, to_response: Callable[[T], StoredResponse]
    ) -> Replayed | KeyReused:
        """Return what was executed in place of a request, or raise the error that it failed with."""
        if isinstance(error, AlreadyExecuted):
            return _compare(error.record, claim, to_response)
        # Another process may have executed the same request meanwhile, which would explain the refusal.
        if (known := self._find(claim, to_response)) is not None:
            return known
        raise error

    def keep(self, claim: NewClaim, answer: StoredResponse) -> Executed | Replayed | KeyReused:
        """Store the response to what was done in several commits, or elsewhere, after it was done.

        A process that is killed before this leaves the key free, so the work must be safe to repeat: resuming a job,
        for example.
        """
        once = IdempotentRequest(claim.caller, claim.key, claim.digest, answer.status, answer.body)
        (outcome,) = self._registry.ledger.append(Remember(once))
        if isinstance(outcome, RepeatedRequest):
            return _compare(outcome.record, claim, None)
        if isinstance(outcome, Failed):
            raise outcome.error
        return Executed(answer)

    def _find(self, claim: NewClaim, to_response: Callable[[T], StoredResponse] | None) -> Replayed | KeyReused | None:
        record = idempotency.find(self._registry.ledger.log, claim.caller, claim.key)
        return None if record is None else _compare(record, claim, to_response)

    def _check_capacity(self, claim: NewClaim) -> NewClaim:
        """Refuse a new key when the quota is used up."""
        owner, now = claim.caller[:OWNER_LENGTH], monotonic()
        left, until = self._capacity.get(owner, (0, 0.0))
        if not left or now >= until:
            capacity = idempotency.check_capacity(self._registry.ledger.log, claim.caller)
            left, until = min(capacity.owner, capacity.total), now + CAPACITY_SECONDS
            if left <= 0:
                subject = "The server has" if capacity.total <= 0 else "You have"
                reason = f"{subject} too many stored idempotency keys; each is kept for {RETENTION_HOURS} hours"
                raise Refused(ResponseCode.SERVER_TOO_BUSY, reason, AdviceKind.SEND_FEWER_KEYS())
            if len(self._capacity) >= MAX_OWNERS:
                self._capacity.clear()
        self._capacity[owner] = left - 1, until
        return claim


def caller_id(identity: Identity) -> bytes:
    """The stored id of a caller: a digest of the identity whose quota applies, then one of the caller itself.

    Each token has its own keys; all tokens of one issuer share the issuer's quota.
    """
    return _truncated_digest(quota_key(identity), OWNER_LENGTH) + _truncated_digest(
        str(identity), CALLER_LENGTH - OWNER_LENGTH
    )


def _truncated_digest(text: str, length: int) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:length]


def _new_claim(identity: Identity, key: bytes, digest: bytes) -> NewClaim:
    if isinstance(identity, Anonymous):
        reason = "Idempotency keys require authentication"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, AdviceKind.AUTHENTICATE_OR_OMIT_KEY())
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        reason = f"An idempotency key has 1 to {MAX_KEY_LENGTH} bytes; this one has {len(key)}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.USE_RANDOM_KEY())
    if len(digest) != DIGEST_LENGTH:
        raise ValueError(f"the digest must have {DIGEST_LENGTH} bytes")
    return NewClaim(caller_id(identity), key, digest)


def _once(claim: NewClaim) -> IdempotentRequest:
    return IdempotentRequest(claim.caller, claim.key, claim.digest, CREATED)


def _compare(
    record: IdempotencyRecord, claim: NewClaim, to_response: Callable[[T], StoredResponse] | None
) -> Replayed | KeyReused:
    if record.digest != claim.digest:
        return KeyReused()
    result: Any = decode_result(record.body)
    if result is None:  # a response, or nothing
        return Replayed(record.status, record.body, record.seq, record.count)
    if to_response is None:
        return Replayed(record.status, None, record.seq, record.count)
    response = to_response(result)
    return Replayed(response.status, response.body, record.seq, record.count)
