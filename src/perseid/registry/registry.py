"""The registry: the one entry point of every interface, so that a rule applies to all of them.

A command is decided on cached entries (see `CachedSnapshot`) or on one snapshot of the ledger, and committed with
everything it read as preconditions. If any of it has changed by then, the command is decided again, up to
`MAX_ATTEMPTS` times; after that it fails with `TooBusy`. Reads never wait.

Tokens are checked here before the command: the decision depends on the token's record.
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

from .advice import AdviceKind
from .context import Command, Context, Plan
from .identity import Identity, TokenIdentity
from .results import Explanation, Refused, Resolution
from .snapshot import CachedSnapshot, EntryCache, Rules, Snapshot

MAX_ATTEMPTS: Final = 20
"""How often a command is decided again because others changed what it read. Each time somebody else succeeded, so a
command that fails this often competes for one very busy record."""

_SECOND: Final = 1_000_000

T = TypeVar("T")
_Request: TypeAlias = Append | Mint


@dataclass(frozen=True, slots=True)
class IdempotentRequest(Generic[T]):
    """An idempotency key, with which a command is executed at most once: see `idempotency`."""

    caller: bytes
    key: bytes
    digest: bytes
    to_response: Callable[[T], StoredResponse]
    """Build the response from the result."""


class AlreadyExecuted(Exception):
    """A command with the same key was executed before; this one was not."""

    def __init__(self, record: IdempotencyRecord) -> None:
        super().__init__("a command with this key was already executed")
        self.record = record


class Registry:
    """The rules over one ledger. Thread-safe."""

    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self.ledger = ledger
        self.rules = rules
        self._entry_cache = EntryCache()

    def do(
        self,
        command: Command[T],
        identity: Identity,
        interface: str,
        note: str = "",
        preconditions: Preconditions | None = None,
        job_id: str = "",
        once: IdempotentRequest[T] | None = None,
    ) -> T:
        """Execute a command: when this returns, the change is durable and visible here. Raises `Refused`.

        `preconditions` is what the interface itself read: the record with the key that authenticated the caller, and
        its entry. `job_id` is the job that this change belongs to. With `once` the command is executed only if nothing
        with the same key was executed before; otherwise `AlreadyExecuted` is raised.
        """
        if not note.isascii():
            check_text(note)
        decided = self._decide_from_cache(command, identity, interface, note, preconditions)
        for _ in range(MAX_ATTEMPTS):
            if decided is None:
                decided = self._decide(command, identity, interface, note, preconditions)
            request = decided.to_request(job_id, once)
            if request is None:
                return decided.plan.result(0)
            outcome = self.ledger.append(request)[0]
            if isinstance(outcome, RepeatedRequest):
                raise AlreadyExecuted(outcome.record)
            if not isinstance(outcome, PreconditionFailed):
                seq = _first_entry(outcome)
                result = decided.plan.result(seq if decided.request is not None else 0)
                self._entry_cache.note(
                    decided.snapshot.seen, decided.changed(outcome), seq, erased=bool(decided.plan.redactions)
                )
                return result
            self._entry_cache.forget(request.preconditions)
            if outcome.actual <= outcome.expected:
                # Sequence numbers never go back, so the ledger was replaced by another one.
                self._entry_cache = EntryCache()
            if preconditions and outcome.key in preconditions:
                raise _authentication_changed()
            decided = None
        raise TooBusy("Other changes kept conflicting with this one; nothing was written. Retry shortly")

    def explain(self, command: Command[object], identity: Identity, interface: str) -> Explanation:
        """Whether a command would be executed, and why; nothing is written."""
        try:
            with self.snapshot() as snapshot:
                plan = _decide_command(command, Context(snapshot, identity, interface, self.now()))
                _try_build(plan, snapshot)
        except Refused as refused:
            return Explanation(False, refused.reason, refused.code, refused.advice, refused.rule, refused)
        return Explanation(True, plan.reason or "allowed")

    def _decide(
        self, command: Command[T], identity: Identity, interface: str, note: str, extra: Preconditions | None
    ) -> "_DecidedCommand[T]":
        """Decide on one snapshot of the ledger, which must match what the interface has read."""
        with self.snapshot() as snapshot:
            for key, seq in (extra or {}).items():
                if snapshot.latest(key) != seq:
                    raise _authentication_changed()
            plan = _decide_command(command, Context(snapshot, identity, interface, self.now(), note))
        return _DecidedCommand(plan, snapshot, _request(plan, snapshot, extra))

    def _decide_from_cache(
        self, command: Command[T], identity: Identity, interface: str, note: str, extra: Preconditions | None
    ) -> "_DecidedCommand[T] | None":
        """Decide on cached entries; None if only the ledger can tell: see `CachedSnapshot`."""
        with CachedSnapshot(self.ledger.open_reader, self.rules, self._entry_cache) as snapshot:
            try:
                plan = _decide_command(command, Context(snapshot, identity, interface, self.now(), note))
            except Exception:
                if snapshot.is_certain and not extra:
                    raise
                return None
        if extra and any(snapshot.latest(key) != seq for key, seq in extra.items() if key in snapshot.seen):
            self._entry_cache.forget(extra)  # one of the two is out of date; the ledger knows which
            return None
        request = _request(plan, snapshot, extra)
        # Without a commit nothing checks the cached entries, or what the interface has read.
        is_checked = request is not None or (snapshot.is_certain and not extra)
        return _DecidedCommand(plan, snapshot, request) if is_checked else None

    # Reading

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One state of the ledger."""
        with self.ledger.open_reader() as reader:
            yield Snapshot(reader, self.rules)

    def resolve(self, query: Query, identity: Identity, at: int | None = None) -> Resolution:
        """The record that a handle resolves to, now or after an earlier entry. Raises `Refused`."""
        with self.snapshot() as snapshot:
            context = Context(snapshot, identity, "read", self.now())
            check_token_identity(context)
            if at is not None:
                return as_of(snapshot, identity, query, at).resolved
            return resolve(query, context)

    def now(self) -> int:
        """Seconds since 1970, by the ledger's clock."""
        return self.ledger.log.clock.now() // _SECOND


@dataclass(frozen=True, slots=True)
class _DecidedCommand(Generic[T]):
    """A plan, and the snapshot it was decided on."""

    plan: Plan[T]
    snapshot: Snapshot
    request: _Request | None
    """The request to the ledger; None if there is nothing to append."""

    def to_request(self, job_id: str, once: IdempotentRequest[T] | None) -> _Request | None:
        """The request with job and idempotency key. A key is stored even if there is nothing to append."""
        request = self.request
        if request is None and once is not None:
            request = Mint(lambda _: (), self.snapshot.preconditions, expected_leaves=self.snapshot.expected_leaves)
        if request is None or not (job_id or once):
            return request
        return replace(request, job=job_id, once=None if once is None else self._with_key(once))

    def _with_key(self, once: IdempotentRequest[T]) -> OnceInLedger:
        changes = self.request is not None
        return OnceInLedger(
            once.caller, once.key, once.digest, lambda seq: once.to_response(self.plan.result(seq if changes else 0))
        )

    def changed(self, outcome: Outcome) -> Collection[bytes]:
        """The keys of the changed records; for minted handles, by both case rules."""
        if self.plan.build is None or not isinstance(outcome, MintedEntries):
            return [draft.key for draft in self.plan.drafts]
        return [record_key(name, exact=exact) for name in outcome.handles for exact in (False, True)]


def _decide_command(command: Command[T], context: Context) -> Plan[T]:
    """Decide a command, for a token only if it is active and the command required something.

    A command that changes something without requiring any permission is refused to tokens: deny by default.
    """
    check_token_identity(context)
    plan = command.decide(context)
    if isinstance(context.identity, TokenIdentity) and (plan.drafts or plan.build) and not context.reasons:
        raise Refused(
            ResponseCode.INSUFFICIENT_PERMISSIONS, "Tokens cannot do this", AdviceKind.AUTHENTICATE_WITH_KEY()
        )
    return plan


def _try_build(plan: Plan[object], snapshot: Snapshot) -> None:
    """Build the entries of a plan as its commit would. Raises `Refused`, but not if minting would only have to wait."""
    try:
        if plan.build is not None:
            plan.build(snapshot.reader)
    except Refused as refused:
        if refused.code != ResponseCode.SERVER_TOO_BUSY:
            raise


def _request(plan: Plan[object], snapshot: Snapshot, extra: Preconditions | None) -> _Request | None:
    """The request of a plan to the ledger; None if there is nothing to append."""
    preconditions = {**snapshot.preconditions, **extra} if extra else snapshot.preconditions
    if plan.build is not None:
        return Mint(plan.build, preconditions, expected_leaves=snapshot.expected_leaves)
    if not plan.drafts:
        return None
    if len(plan.drafts) == 1:
        return Append(plan.drafts[0], preconditions, plan.redactions, expected_leaves=snapshot.expected_leaves)
    drafts = plan.drafts
    return Mint(lambda _: drafts, preconditions, redactions=plan.redactions, expected_leaves=snapshot.expected_leaves)


def _authentication_changed() -> TooBusy:
    return TooBusy("The record that authenticated you has changed; nothing was written. Authenticate again")


def check_text(text: str) -> None:
    """Refuse text without a UTF-8 form, which some decoders accept."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(ResponseCode.INVALID_VALUE, "The note contains half of a surrogate pair", rule="H4") from None


def _first_entry(outcome: Outcome) -> int:
    """The sequence number of the first entry that a request appended; raises if it failed."""
    if isinstance(outcome, (Appended, MintedEntries)):
        return outcome.seq
    if isinstance(outcome, Failed):
        raise outcome.error
    if isinstance(outcome, LedgerError):
        raise outcome
    raise TypeError(f"unexpected outcome of a command: {outcome!r}")
