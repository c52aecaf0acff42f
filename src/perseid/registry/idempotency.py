"""Changes that are carried out once, however often they are asked for: requests that carry a key of their own.

A client that hears nothing asks again with the same key, and is answered what it would have been answered. For a door:

    keys = IdempotencyKeys(registry)                      # one for each process
    with keys.claim(who, key, digest) as claim:           # digest: SHA-256 of method, path and body
        if isinstance(claim, Fresh):
            claim = keys.carry_out(claim, operation, who, DOOR, told)
        ...                                               # Done, Known: answer it; Differs: 422; Pending: 409

The row that keeps the key is written by the commit that makes the change (`perseid.ledger.store.idempotency`), so a
process that is killed leaves both or neither. What was refused has changed nothing, and its key is free; a later try
may succeed.

The answer is kept for a day. Who repeats a request is not asked for rights again: it is their own answer. Of a long
answer, and of all answers once something was erased from the ledger, only the entries are known that were made.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.requests import (
    CALLER_LENGTH,
    KEY_LIFETIME,
    OWNER_LENGTH,
    Failed,
    IdempotencyRecord,
    Mint,
    Preconditions,
    RepeatedRequest,
    StoredResponse,
)
from perseid.ledger.log.requests import IdempotentRequest as OnceInLedger
from perseid.ledger.store import idempotency
from perseid.ledger.store.idempotency import KeyCapacity
from perseid.wire.codes import ResponseCode

from .context import Command
from .identity import Anonymous, Identity, quota_key
from .registry import AlreadyExecuted, IdempotentRequest, Registry
from .results import Refused

MAX_KEY_LENGTH: Final = 255
"""Octets of the longest key: room for every name that programs make, such as a UUID."""

DIGEST_LENGTH: Final = 32
"""Octets of a digest of a request: SHA-256."""

RETENTION_HOURS: Final = KEY_LIFETIME // 3_600_000_000
"""For how many hours a key is kept."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewClaim:
    """Nothing with that key was carried out: it is this request's turn."""

    caller: bytes
    key: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Executed:
    """It has been carried out now."""

    answer: StoredResponse


@dataclass(frozen=True, slots=True)
class Replayed:
    """It was carried out when it came before. Nothing was done now."""

    status: int
    body: bytes | None
    """What was answered; None if only `seq` and `count` are known."""
    seq: int
    """The first entry that it made; 0 if it made none."""
    count: int
    """How many it made, from `seq` on."""


@dataclass(frozen=True, slots=True)
class KeyReused:
    """Another request with that key was carried out. Nothing was done."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """A request with that key is being carried out. Nothing was done; ask again shortly."""


Claim: TypeAlias = NewClaim | Replayed | KeyReused | InProgress


class IdempotencyKeys:
    """The keys of requests, in one process. For any number of threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._pending: set[tuple[bytes, bytes]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def claim(self, identity: Identity, key: bytes, digest: bytes) -> Iterator[Claim]:
        """Say what is known of a key; if nothing is, it is the caller's until the block ends. Raises `Refused`.

        `Pending` is about this process. Where another one carries out the same request, the ledger decides which of
        them is the first, and `carry_out` answers the other one with its answer.
        """
        fresh = _new_claim(identity, key, digest)
        slot = fresh.caller, fresh.key
        with self._lock:
            is_mine = slot not in self._pending
            self._pending.add(slot)
        if not is_mine:
            yield InProgress()
            return
        try:
            yield self._find(fresh) or self._check_capacity(fresh)
        finally:
            with self._lock:
                self._pending.discard(slot)

    def execute(
        self,
        claim: NewClaim,
        command: Command[T],
        identity: Identity,
        interface: str,
        to_response: Callable[[T], StoredResponse],
        note: str = "",
        preconditions: Preconditions | None = None,
    ) -> Executed | Replayed | KeyReused:
        """Carry out an operation that is one commit, and keep its key with it. Raises `Refused`.

        `told` makes the answer of the result. It runs while others cannot write, so it should be quick.
        """
        once = IdempotentRequest(claim.caller, claim.key, claim.digest, to_response)
        try:
            result = self._registry.do(command, identity, interface, note, preconditions, once=once)
        except AlreadyExecuted as done:
            return _compare(done.kept, claim)
        except (Refused, LedgerError):
            # Another process may have carried out the same meanwhile, and then this is why it was refused here.
            if (known := self._find(claim)) is not None:
                return known
            raise
        return Executed(to_response(result))

    def keep(self, claim: NewClaim, answer: StoredResponse) -> Executed | Replayed | KeyReused:
        """Keep the answer to what was done in several commits, or elsewhere, after it was done.

        Who is killed before this leaves the key free, so what was done should bear to be asked for again: a unit that
        is gone on with, say.
        """
        once = OnceInLedger(claim.caller, claim.key, claim.digest, lambda _: answer)
        (outcome,) = self._registry.ledger.append(Mint(lambda _: (), once=once))
        if isinstance(outcome, RepeatedRequest):
            return _compare(outcome.kept, claim)
        if isinstance(outcome, Failed):
            raise outcome.error
        return Executed(answer)

    def _find(self, claim: NewClaim) -> Replayed | KeyReused | None:
        kept = idempotency.find(self._registry.ledger.log, claim.caller, claim.key)
        return None if kept is None else _compare(kept, claim)

    def _check_capacity(self, claim: NewClaim) -> NewClaim:
        """Refuse a key where there is no room for it."""
        room = idempotency.check_capacity(self._registry.ledger.log, claim.caller)
        if room is KeyCapacity.AVAILABLE:
            return claim
        whose = "for you" if room is KeyCapacity.OWNER_LIMIT_REACHED else "for everybody together"
        reason = f"as many keys of requests are kept {whose} as can be; each is kept for {RETENTION_HOURS} hours"
        advice = "ask for more in one request, ask without a key, or wait"
        raise Refused(ResponseCode.SERVER_TOO_BUSY, reason, advice)


def caller_id(identity: Identity) -> bytes:
    """What stands for an identity where its keys are kept: first for whoever its keys are counted for, then for itself.

    Each token has keys of its own, and all tokens of one maker together as much room as the maker has.
    """
    return _truncated_digest(quota_key(identity), OWNER_LENGTH) + _truncated_digest(
        str(identity), CALLER_LENGTH - OWNER_LENGTH
    )


def _truncated_digest(text: str, length: int) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:length]


def _new_claim(identity: Identity, key: bytes, digest: bytes) -> NewClaim:
    if isinstance(identity, Anonymous):
        reason = "a key of a request is that of somebody, and nobody has identified themselves"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "identify yourself, or leave the key out")
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        reason = f"the key of a request has 1 to {MAX_KEY_LENGTH} octets, not {len(key)}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "make one at random, such as a UUID")
    if len(digest) != DIGEST_LENGTH:
        raise ValueError(f"a digest has {DIGEST_LENGTH} octets")
    return NewClaim(caller_id(identity), key, digest)


def _compare(kept: IdempotencyRecord, claim: NewClaim) -> Replayed | KeyReused:
    """What a kept request is to one with the same key."""
    if kept.digest != claim.digest:
        return KeyReused()
    return Replayed(kept.status, kept.body, kept.seq, kept.count)
