"""The registry: every door asks here, so that a rule holds at all of them.

An operation is decided on what was seen of the ledger last (`recent` says how that is safe), or on one state of it, and
handed in with everything the decision rested on. If any of it has moved by the time it is committed, it is decided
again, a few times; after that the caller is told that the ledger is too busy. Reading waits for nobody.

Whoever shows a bearer token is looked at here, before the operation is: what is decided rests on the token's record.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeAlias, TypeVar

from perseid.ledger.errors import LedgerError, PreconditionFailed, TooBusy
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import (
    Append,
    Appended,
    Failed,
    IdempotencyRecord,
    Mint,
    Outcome,
    Preconditions,
    RepeatedRequest,
    StoredResponse,
)
from perseid.ledger.log.requests import IdempotentRequest as OnceInLedger
from perseid.ledger.log.requests import Minted as MintedEntries
from perseid.registry.access.token_records import check_token_identity
from perseid.registry.queries.history import as_of
from perseid.registry.queries.resolve import Query, resolve
from perseid.wire.codes import ResponseCode

from .context import Command, Context, Plan
from .decision_cache import CachedSnapshot, EntryCache
from .identity import Identity, TokenIdentity
from .results import Explanation, Refused, Resolution
from .snapshot import Rules, Snapshot

MAX_ATTEMPTS: Final = 20
"""How often an operation is decided again because others changed what it rested on. Each time somebody else has
succeeded, so this many in a row mean a name that many fight for."""

_SECOND: Final = 1_000_000

T = TypeVar("T")
_Request: TypeAlias = Append | Mint


@dataclass(frozen=True, slots=True)
class IdempotentRequest(Generic[T]):
    """That an operation is carried out once, however often it is asked for: see `idempotency`."""

    caller: bytes
    key: bytes
    digest: bytes
    to_response: Callable[[T], StoredResponse]
    """What is answered when it has been carried out."""


class AlreadyExecuted(Exception):
    """An operation with the same key was carried out before; this one was not."""

    def __init__(self, kept: IdempotencyRecord) -> None:
        super().__init__("that was carried out before")
        self.kept = kept


class Registry:
    """The rules over one ledger. For any number of threads."""

    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self.ledger = ledger
        self.rules = rules
        self._entry_cache = EntryCache()

    def do(
        self,
        operation: Command[T],
        identity: Identity,
        interface: str,
        note: str = "",
        preconditions: Preconditions | None = None,
        job_id: str = "",
        once: IdempotentRequest[T] | None = None,
    ) -> T:
        """Carry out an operation: when this returns, it is durable and visible here. Raises `Refused`.

        `rests_on` is what the door itself read: the record with the key that proved who asks, and its entry. `step_of`
        names the change of many records that this is a part of: see `units`. With `once` it is carried out only if
        nothing with the same key was before; otherwise `AlreadyDone` is raised.
        """
        if not note.isascii():
            check_text(note)
        decided = self._decide_from_cache(operation, identity, interface, note, preconditions)
        for _ in range(MAX_ATTEMPTS):
            if decided is None:
                decided = self._decide(operation, identity, interface, note, preconditions)
            request = decided.to_request(job_id, once)
            if request is None:
                return decided.plan.answer(0)
            outcome = self.ledger.append(request)[0]
            if isinstance(outcome, RepeatedRequest):
                raise AlreadyExecuted(outcome.kept)
            if not isinstance(outcome, PreconditionFailed):
                seq = _first_entry(outcome)
                answer = decided.plan.answer(seq if decided.request is not None else 0)
                self._entry_cache.note(
                    decided.snapshot.seen, decided.changed(outcome), seq, erased=bool(decided.plan.redactions)
                )
                return answer
            self._entry_cache.forget(request.preconditions)
            if outcome.found <= outcome.seen:
                self._entry_cache = (
                    EntryCache()
                )  # a record never goes back, so this is another history: nothing of it is known
            if preconditions and outcome.key in preconditions:
                raise _authentication_changed()
            decided = None
        raise TooBusy("others kept changing what this rests on; nothing was written, try again shortly")

    def explain(self, operation: Command[object], identity: Identity, interface: str) -> Explanation:
        """Whether an operation would be carried out, and why or why not; nothing is done."""
        try:
            decided = self._decide(operation, identity, interface, "", None)
        except Refused as refused:
            return Explanation(False, refused.reason, refused.code, refused.advice, refused.rule)
        return Explanation(True, decided.plan.reason or "it is allowed")

    def _decide(
        self, operation: Command[T], identity: Identity, interface: str, note: str, extra: Preconditions | None
    ) -> "_DecidedCommand[T]":
        """What is to be done, from one state of the ledger, which must be the one that the door has seen."""
        with self.snapshot() as snapshot:
            for key, seq in (extra or {}).items():
                if snapshot.latest(key) != seq:
                    raise _authentication_changed()
            plan = _decide_command(operation, Context(snapshot, identity, interface, self.now(), note))
        return _DecidedCommand(plan, snapshot, _request(plan, snapshot, extra))

    def _decide_from_cache(
        self, operation: Command[T], identity: Identity, interface: str, note: str, extra: Preconditions | None
    ) -> "_DecidedCommand[T] | None":
        """What is to be done, from what was seen last; None, if only the ledger can tell: see `recent`."""
        with CachedSnapshot(self.ledger.reading, self.rules, self._entry_cache) as snapshot:
            try:
                plan = _decide_command(operation, Context(snapshot, identity, interface, self.now(), note))
            except Exception:
                if snapshot.is_certain and not extra:
                    raise
                return None
        if extra and any(snapshot.latest(key) != seq for key, seq in extra.items() if key in snapshot.seen):
            self._entry_cache.forget(extra)  # either that is out of date or what the door has read; the ledger knows
            return None
        request = _request(plan, snapshot, extra)
        # What is not committed is checked by nobody, neither what is remembered nor what the door has read.
        is_checked = request is not None or (snapshot.is_certain and not extra)
        return _DecidedCommand(plan, snapshot, request) if is_checked else None

    # Reading

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One state of the ledger through the rules of names."""
        with self.ledger.reading() as reading:
            yield Snapshot(reading, self.rules)

    def resolve(self, query: Query, identity: Identity, at: int | None = None) -> Resolution:
        """What a name stands for, now or after an entry of the past. Raises `Refused`."""
        with self.snapshot() as snapshot:
            context = Context(snapshot, identity, "read", self.now())
            check_token_identity(context)
            if at is not None:
                return as_of(snapshot, identity, query, at).resolved
            return resolve(query, context)

    def now(self) -> int:
        """Seconds since 1970, as the ledger's clock shows them."""
        return self.ledger.log.clock.now() // _SECOND


@dataclass(frozen=True, slots=True)
class _DecidedCommand(Generic[T]):
    """A plan, and what it was decided on."""

    plan: Plan[T]
    snapshot: Snapshot
    request: _Request | None
    """What is asked of the ledger; None if nothing has to be appended."""

    def to_request(self, job_id: str, once: IdempotentRequest[T] | None) -> _Request | None:
        """The same as a step of something, or with a key, which is kept also where nothing has to be appended."""
        request = self.request
        if request is None and once is not None:
            request = Mint(lambda _: (), self.snapshot.preconditions, expected_leaves=self.snapshot.expected_leaves)
        if request is None or not (job_id or once):
            return request
        return replace(request, operation=job_id, once=None if once is None else self._with_key(once))

    def _with_key(self, once: IdempotentRequest[T]) -> OnceInLedger:
        changes = self.request is not None
        return OnceInLedger(
            once.caller, once.key, once.digest, lambda seq: once.to_response(self.plan.answer(seq if changes else 0))
        )

    def changed(self, outcome: Outcome) -> Collection[bytes]:
        """The keys of the records that were changed; where names were made, those that they have by either rule."""
        if self.plan.make is None or not isinstance(outcome, MintedEntries):
            return [draft.key for draft in self.plan.drafts]
        return [record_key(name, exact=exact) for name in outcome.handles for exact in (False, True)]


def _decide_command(operation: Command[T], context: Context) -> Plan[T]:
    """What an operation comes to, for somebody who may show a token: one that counts, and of which something was asked.

    An operation that changes something without having demanded anything is open to nobody with a token: what nobody
    has thought of is denied.
    """
    check_token_identity(context)
    plan = operation.decide(context)
    if isinstance(context.identity, TokenIdentity) and (plan.drafts or plan.make) and not context.reasons:
        raise Refused(
            ResponseCode.INSUFFICIENT_PERMISSIONS, "no token is good for that", "identify yourself with a key"
        )
    return plan


def _request(plan: Plan[object], snapshot: Snapshot, extra: Preconditions | None) -> _Request | None:
    """What a plan asks of the ledger; None if nothing has to be appended."""
    preconditions = {**snapshot.preconditions, **extra} if extra else snapshot.preconditions
    if plan.make is not None:
        return Mint(plan.make, preconditions, expected_leaves=snapshot.expected_leaves)
    if not plan.drafts:
        return None
    if len(plan.drafts) == 1:
        return Append(plan.drafts[0], preconditions, plan.redactions, expected_leaves=snapshot.expected_leaves)
    drafts = plan.drafts
    return Mint(lambda _: drafts, preconditions, redactions=plan.redactions, expected_leaves=snapshot.expected_leaves)


def _authentication_changed() -> TooBusy:
    return TooBusy("the record that proved who asks has changed since; nothing was written, prove it again")


def check_text(text: str) -> None:
    """Refuse text without a UTF-8 form, which some decoders let through."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(ResponseCode.INVALID_VALUE, "the note holds half of a surrogate pair", rule="H4") from None


def _first_entry(outcome: Outcome) -> int:
    """The number of the first entry that a request appended; what failed is raised."""
    if isinstance(outcome, (Appended, MintedEntries)):
        return outcome.seq
    if isinstance(outcome, Failed):
        raise outcome.error
    if isinstance(outcome, LedgerError):
        raise outcome
    raise TypeError(f"{outcome!r} is not what an operation of the registry can come to")
