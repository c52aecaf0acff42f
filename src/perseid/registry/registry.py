"""The registry: the one entry point of every interface, so that a rule applies to all of them.

A command is decided on cached entries (see `CachedSnapshot`) or on one snapshot of the ledger, and committed with
everything it read as preconditions. If any of it has changed by then, the command is decided again. A command whose
preconditions failed twice is deferred: it is decided inside the commit, where nothing can change, so that nobody waits
forever for a busy record. What must be decided there anyway, such as minting, is deferred at once. Reads never wait.

Tokens are checked here before the command: the decision depends on the token's record.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar, cast

from perseid.ledger.errors import AnswersUnavailable, CorruptData, LedgerError, PreconditionFailed, TooBusy
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.commit import CommitReader
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.requests import (
    Append,
    Appended,
    Decision,
    Execute,
    Executed,
    Failed,
    IdempotencyRecord,
    IdempotentRequest,
    Outcome,
    Preconditions,
    RepeatedRequest,
)
from perseid.ledger.statistics import StatisticsStore
from perseid.ledger.views.answers_format import is_local
from perseid.registry.access.token_records import check_token_identity
from perseid.registry.queries.history import as_of
from perseid.registry.queries.resolve import Query, resolve
from perseid.wire.codes import ResponseCode

from .advice import AdviceKind
from .context import Command, Context, Deferrable, Plan, Stage
from .identity import Identity, TokenIdentity
from .results import Explanation, Refused, Resolution, find_refusal
from .snapshot import CachedSnapshot, EntryCache, LedgerNeeded, PublicSnapshot, Rules, ShortSnapshot, Snapshot

MAX_ATTEMPTS: Final = 20
"""How often a command is decided again because others changed what it read. Each time somebody else succeeded, so a
command that fails this often cannot be deferred, or wraps one and reads a very busy record itself."""

ATTEMPTS_BEFORE_DEFERRING: Final = 2
"""How often the preconditions of a command may fail before it is decided inside the commit. Deciding there keeps others
from writing, so a first conflict, or an outdated cache, is not a reason yet."""

_SECOND: Final = 1_000_000

T = TypeVar("T")


class AlreadyExecuted(Exception):
    """A command with the same key was executed before; this one was not."""

    def __init__(self, record: IdempotencyRecord) -> None:
        super().__init__("a command with this key was already executed")
        self.record = record


@dataclass(frozen=True, slots=True)
class DeferredCommand:
    """A command to decide inside the commit, as data."""

    command: Deferrable
    identity: Identity
    interface: str
    note: str


class Registry:
    """The rules over one ledger. Thread-safe."""

    def __init__(
        self, ledger: Ledger, rules: Rules, spool: Path | None = None, statistics: StatisticsStore | None = None
    ) -> None:
        """`spool` is the folder of imports, and `statistics` the file of statistics, if there are any."""
        self.statistics = statistics
        self.ledger = ledger
        self.rules = rules
        self.spool = spool
        self.entry_cache = EntryCache()

    def do(
        self,
        command: Command[T],
        identity: Identity,
        interface: str,
        note: str = "",
        preconditions: Preconditions | None = None,
        job_id: str = "",
        once: IdempotentRequest | None = None,
    ) -> T:
        """Execute a command: when this returns, the change is durable and visible here. Raises `Refused`.

        `preconditions` is what the interface itself read: the record with the key that authenticated the caller, and
        its entry. `job_id` is the job that this change belongs to. With `once` the command is executed only if nothing
        with the same key was executed before; otherwise `AlreadyExecuted` is raised.
        """
        return self.execution(command, identity, interface, note, preconditions, job_id, once).complete()

    def execution(
        self,
        command: Command[T],
        identity: Identity,
        interface: str,
        note: str = "",
        preconditions: Preconditions | None = None,
        job_id: str = "",
        once: IdempotentRequest | None = None,
    ) -> "Execution[T]":
        """Return the execution of a command, which `complete` does; the parameters are those of `do`."""
        prepared = self.prepare(command)
        return Execution(self, prepared, identity, interface, note, preconditions or {}, job_id, once)

    async def execute(
        self,
        command: Command[T],
        identity: Identity,
        interface: str,
        note: str = "",
        once: IdempotentRequest | None = None,
    ) -> T:
        """Like `do`, in an event loop: it decides at once, and waits for the commit without blocking the loop."""
        import asyncio  # noqa: PLC0415 - commands do not need it

        execution = self.execution(command, identity, interface, note, once=once)
        while (request := execution.decide()) is not None:
            execution.finish(await asyncio.wrap_future(self.ledger.submit(request)[0]))
        return execution.result

    def prepare(self, command: Command[T]) -> Command[T]:
        """What is executed for a command: the command itself, unless a subclass adds checks to it."""
        return command

    def explain(self, command: Command[object], identity: Identity, interface: str) -> Explanation:
        """Whether a command would be executed, and why; nothing is written."""
        explanation = Explanation(True, "allowed")
        try:
            with self.snapshot() as snapshot:
                context = self.context(snapshot, identity, interface, stage=Stage.COMMIT)
                plan = decide_command(command, context)
                explanation = Explanation(True, plan.reason or "allowed", warnings=tuple(context.warnings))
        except Refused as refused:
            if refused.code != ResponseCode.SERVER_TOO_BUSY:  # minting would have to wait, but is allowed
                return _explain_refusal(refused)
        try:
            self.ledger.log.check_mode()
        except LedgerError as error:
            if (refusal := find_refusal(error)) is None:
                raise
            return _explain_refusal(refusal)
        return explanation

    def context(
        self, snapshot: Snapshot, identity: Identity, interface: str, note: str = "", stage: Stage = Stage.EARLY
    ) -> Context:
        """The context of a decision by the ledger's clock."""
        log = self.ledger.log
        return Context(
            snapshot, identity, interface, self.now(), note, [], [], stage, lambda: log.clock.now() * 1_000, log.random
        )

    def decide_deferred(self, deferred: DeferredCommand, reader: CommitReader) -> Decision:
        """Decide a deferred command inside the commit."""
        snapshot = Snapshot(reader, self.rules)
        context = self.context(snapshot, deferred.identity, deferred.interface, deferred.note, Stage.COMMIT)
        plan: Plan[object] = decide_command(cast("Command[object]", deferred.command), context)
        return Decision(plan.drafts, plan.result, plan.redactions)

    # Reading

    @contextmanager
    def snapshot(self, *, short_only: bool = False) -> Iterator[Snapshot]:
        """One state of the ledger; with `short_only`, reading a record that is long raises `LongRecord`."""
        with self.ledger.open_reader() as reader:
            yield (ShortSnapshot if short_only else Snapshot)(reader, self.rules)

    def cached_snapshot(self) -> CachedSnapshot:
        """The state as far as it is cached, and the ledger for the rest. Valid only if a commit checks it."""
        return CachedSnapshot(self.ledger.open_reader, self.rules, self.entry_cache, self._seems_new)

    def _seems_new(self, key: bytes) -> bool:
        """Whether the answers view knows no entries of a record; it does not have all of them."""
        try:
            with self.ledger.answers.snapshot() as view:
                return not is_local(key) and view.find(key) is None and view.deleted(key) is None
        except (AnswersUnavailable, CorruptData):
            return False

    def recent_snapshot(self) -> CachedSnapshot:
        """What is cached, and nothing else: any other read raises `LedgerNeeded`.

        It may be out of date, so it is for what the decision of a change checks again, such as a key.
        """
        return CachedSnapshot(_no_ledger, self.rules, self.entry_cache, lambda _: False)

    @contextmanager
    def public_snapshot(self, *, short_only: bool = True) -> Iterator[PublicSnapshot]:
        """The current state as the public sees it; raises `LedgerNeeded` if the answers view cannot be used."""
        try:
            with self.ledger.answers.snapshot() as view:
                yield PublicSnapshot(view, self.rules, short_only=short_only)
        except (AnswersUnavailable, CorruptData) as problem:
            raise LedgerNeeded from problem

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


@dataclass(slots=True)
class Execution(Generic[T]):
    """The execution of a command: `decide` until it returns None, and `finish` with the outcome of each request."""

    registry: Registry
    command: Command[T]
    identity: Identity
    interface: str
    note: str = ""
    preconditions: Preconditions = field(default_factory=dict)
    job: str = ""
    once: IdempotentRequest | None = None
    result: T = field(init=False)
    """The result, once `decide` has returned None."""
    _attempts: int = field(default=0, init=False)
    _ahead: Append | None = field(default=None, init=False)
    _is_done: bool = field(default=False, init=False)
    _plan: Plan[T] = field(init=False)
    _snapshot: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        if not self.note.isascii():
            check_text(self.note)

    def complete(self, meanwhile: Callable[[], None] | None = None) -> T:
        """Execute the command and return the result. `meanwhile` is called during the first commit; it never raises."""
        while (request := self.decide()) is not None:
            append = self.registry.ledger.append
            self.finish((append(request) if meanwhile is None else append(request, meanwhile=meanwhile))[0])
            meanwhile = None
        return self.result

    def decide_ahead(self) -> bool:
        """Decide before an earlier command is committed; return whether `decide` can use that then. Raises `Refused`.

        What the earlier one changes fails the preconditions. So a decision that has none, because nothing is appended,
        is not used; nor is one inside the commit.
        """
        request = self.decide()
        if not isinstance(request, Append):
            return False
        self._ahead = self.registry.ledger.prepare(request)
        return True

    @property
    def expected(self) -> T | None:
        """The result of what was decided, but with entries that have no numbers yet; None if the commit decides."""
        return None if self._plan.deferred is not None else self._plan.result(0)

    def decide(self) -> Append | Execute | None:
        """Decide the command: the request to the ledger, or None if there is nothing to do. Raises `Refused`."""
        if self._ahead is not None:
            request, self._ahead = self._ahead, None
            return request
        if self._is_done:
            return None
        if self._attempts == MAX_ATTEMPTS:
            raise TooBusy("Other changes kept conflicting with this one; nothing was written. Retry shortly")
        defers = self.once is not None or self._attempts >= ATTEMPTS_BEFORE_DEFERRING
        stage = Stage.DEFERRING if defers else Stage.EARLY
        if self._attempts or not self._decide_from_cache(stage):
            self._decide_on_ledger(stage)
        self._attempts += 1
        if self._has_request:
            return self._request()
        self.result = self._plan.result(0)
        return None

    def finish(self, outcome: Outcome) -> None:
        """Take the outcome of the request; raises what the command failed with."""
        cache, plan, snapshot = self.registry.entry_cache, self._plan, self._snapshot
        if isinstance(outcome, PreconditionFailed):
            cache.forget((*snapshot.preconditions, *self.preconditions))
            if outcome.actual <= outcome.expected:
                # Sequence numbers never go back, so the ledger was replaced by another one.
                self.registry.entry_cache = EntryCache()
            if outcome.key in self.preconditions:
                raise _authentication_changed()
            return
        match outcome:
            case Executed():
                self.result = plan.result(outcome.result)
                cache.note(snapshot.seen, outcome.changed, outcome.seq, erased=outcome.erased)
            case Appended():
                self.result = plan.result(outcome.seq)
                changed = [draft.key for draft in plan.drafts]
                cache.note(snapshot.seen, changed, outcome.seq, erased=bool(plan.redactions))
            case RepeatedRequest():
                raise AlreadyExecuted(outcome.record)
            case Failed():
                if isinstance(outcome.error, Refused) and plan.deferred is not cast("object", self.command):
                    self._explain_refusal(outcome.error)
                raise outcome.error
            case LedgerError():
                raise outcome
            case _:
                raise TypeError(f"unexpected outcome of a command: {outcome!r}")
        self._is_done = True

    def _explain_refusal(self, refused: Refused) -> None:
        """Raise the refusal in the terms of the commands that wrap the deferred one."""
        if refused.code != ResponseCode.SERVER_TOO_BUSY:
            self._decide_on_ledger(Stage.COMMIT)

    @property
    def _has_request(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self._plan.drafts or self._plan.deferred)

    def _request(self) -> Append | Execute:
        plan, snapshot = self._plan, self._snapshot
        preconditions = {**snapshot.preconditions, **self.preconditions}
        if plan.deferred is None:
            return Append(
                plan.drafts[0],
                preconditions,
                plan.redactions,
                self.job,
                snapshot.expected_leaves,
                self.once,
                plan.drafts[1:],
            )
        deferred = DeferredCommand(plan.deferred, self.identity, self.interface, self.note)
        registry = self.registry
        return Execute(
            lambda reader: registry.decide_deferred(deferred, reader),
            deferred,
            preconditions,
            self.job,
            snapshot.expected_leaves,
            self.once,
            None if self.once is None else encode_stored_result,
        )

    def _decide_on_ledger(self, stage: Stage) -> None:
        """Decide on one snapshot of the ledger, which must match what the interface has read."""
        with self.registry.snapshot() as snapshot:
            for key, seq in self.preconditions.items():
                if snapshot.latest(key) != seq:
                    raise _authentication_changed()
            self._plan, self._snapshot = self._decide_on(snapshot, stage), snapshot

    def _decide_from_cache(self, stage: Stage) -> bool:
        """Decide on cached entries; False if only the ledger can tell: see `CachedSnapshot`."""
        registry, extra = self.registry, self.preconditions
        with registry.cached_snapshot() as snapshot:
            try:
                self._plan, self._snapshot = self._decide_on(snapshot, stage), snapshot
            except Exception:
                if snapshot.is_certain and not extra:
                    raise
                return False
        if extra and any(snapshot.latest(key) != seq for key, seq in extra.items() if key in snapshot.seen):
            registry.entry_cache.forget(extra)  # one of the two is out of date; the ledger knows which
            return False
        # Without a commit nothing checks the cached entries, or what the interface has read.
        return self._has_request or (snapshot.is_certain and not extra)

    def _decide_on(self, snapshot: Snapshot, stage: Stage) -> Plan[T]:
        context = self.registry.context(snapshot, self.identity, self.interface, self.note, stage)
        return decide_command(self.command, context)


def _no_ledger() -> AbstractContextManager[LogReader]:
    raise LedgerNeeded


def _explain_refusal(refused: Refused) -> Explanation:
    return Explanation(False, refused.reason, refused.code, refused.advice, refused.rule, refused)


def decide_command(command: Command[T], context: Context) -> Plan[T]:
    """Decide a command, for a token only if it is active and the command required something.

    A command that changes something without requiring any permission is refused to tokens: deny by default.
    """
    check_token_identity(context)
    plan = context.decide(command)
    if isinstance(context.identity, TokenIdentity) and plan.drafts and not context.reasons:
        raise Refused(
            ResponseCode.INSUFFICIENT_PERMISSIONS, "Tokens cannot do this", AdviceKind.AUTHENTICATE_WITH_KEY()
        )
    return plan


def encode_stored_result(result: object) -> bytes:
    """Encode the result of a command for its idempotency key."""
    from .codec import encode_result  # noqa: PLC0415 - it imports all commands

    return encode_result(result)


def _authentication_changed() -> TooBusy:
    return TooBusy("The record that authenticated you has changed; nothing was written. Authenticate again")


def check_text(text: str) -> None:
    """Refuse text without a UTF-8 form, which some decoders accept."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(ResponseCode.INVALID_VALUE, "The note contains half of a surrogate pair", rule="H4") from None
