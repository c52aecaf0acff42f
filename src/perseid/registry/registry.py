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

from perseid.ledger.errors import LedgerError, Moved, TooBusy
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import Answer, Append, Appended, Failed, Kept, Mint, Outcome, Repeated, RestsOn
from perseid.ledger.log.requests import Minted as MintedEntries
from perseid.ledger.log.requests import Once as OnceInLedger
from perseid.registry.access.token_records import require_counting
from perseid.registry.queries.history import as_of
from perseid.registry.queries.resolve import Query, resolve
from perseid.wire.codes import ResponseCode

from .context import Context, Operation, Plan
from .decision_cache import Expected, Recent
from .identity import Identity, Tokened
from .results import Explained, Refused, Resolved
from .snapshot import Facts, Rules

ATTEMPTS: Final = 20
"""How often an operation is decided again because others changed what it rested on. Each time somebody else has
succeeded, so this many in a row mean a name that many fight for."""

_SECOND: Final = 1_000_000

T = TypeVar("T")
_Request: TypeAlias = Append | Mint


@dataclass(frozen=True, slots=True)
class Once(Generic[T]):
    """That an operation is carried out once, however often it is asked for: see `idempotency`."""

    caller: bytes
    key: bytes
    digest: bytes
    told: Callable[[T], Answer]
    """What is answered when it has been carried out."""


class AlreadyDone(Exception):
    """An operation with the same key was carried out before; this one was not."""

    def __init__(self, kept: Kept) -> None:
        super().__init__("that was carried out before")
        self.kept = kept


class Registry:
    """The rules over one ledger. For any number of threads."""

    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self.ledger = ledger
        self.rules = rules
        self._recent = Recent()

    def do(
        self,
        operation: Operation[T],
        who: Identity,
        door: str,
        note: str = "",
        rests_on: RestsOn | None = None,
        step_of: str = "",
        once: Once[T] | None = None,
    ) -> T:
        """Carry out an operation: when this returns, it is durable and visible here. Raises `Refused`.

        `rests_on` is what the door itself read: the record with the key that proved who asks, and its entry. `step_of`
        names the change of many records that this is a part of: see `units`. With `once` it is carried out only if
        nothing with the same key was before; otherwise `AlreadyDone` is raised.
        """
        if not note.isascii():
            check_text(note)
        decided = self._expect(operation, who, door, note, rests_on)
        for _ in range(ATTEMPTS):
            if decided is None:
                decided = self._decide(operation, who, door, note, rests_on)
            request = decided.asked(step_of, once)
            if request is None:
                return decided.plan.answer(0)
            outcome = self.ledger.append(request)[0]
            if isinstance(outcome, Repeated):
                raise AlreadyDone(outcome.kept)
            if not isinstance(outcome, Moved):
                seq = _first_entry(outcome)
                answer = decided.plan.answer(seq if decided.request is not None else 0)
                self._recent.note(decided.facts.seen, decided.changed(outcome), seq, erased=bool(decided.plan.redacts))
                return answer
            self._recent.forget(request.rests_on)
            if outcome.found <= outcome.seen:
                self._recent = Recent()  # a record never goes back, so this is another history: nothing of it is known
            if rests_on and outcome.key in rests_on:
                raise _prove_again()
            decided = None
        raise TooBusy("others kept changing what this rests on; nothing was written, try again shortly")

    def explain(self, operation: Operation[object], who: Identity, door: str) -> Explained:
        """Whether an operation would be carried out, and why or why not; nothing is done."""
        try:
            decided = self._decide(operation, who, door, "", None)
        except Refused as refused:
            return Explained(False, refused.reason, refused.code, refused.advice, refused.rule)
        return Explained(True, decided.plan.reason or "it is allowed")

    def _decide(
        self, operation: Operation[T], who: Identity, door: str, note: str, also: RestsOn | None
    ) -> "_Decided[T]":
        """What is to be done, from one state of the ledger, which must be the one that the door has seen."""
        with self.facts() as facts:
            for key, seq in (also or {}).items():
                if facts.latest(key) != seq:
                    raise _prove_again()
            plan = _decided(operation, Context(facts, who, door, self.now(), note))
        return _Decided(plan, facts, _request(plan, facts, also))

    def _expect(
        self, operation: Operation[T], who: Identity, door: str, note: str, also: RestsOn | None
    ) -> "_Decided[T] | None":
        """What is to be done, from what was seen last; None, if only the ledger can tell: see `recent`."""
        with Expected(self.ledger.reading, self.rules, self._recent) as facts:
            try:
                plan = _decided(operation, Context(facts, who, door, self.now(), note))
            except Exception:
                if facts.is_certain and not also:
                    raise
                return None
        if also and any(facts.latest(key) != seq for key, seq in also.items() if key in facts.seen):
            self._recent.forget(also)  # either that is out of date or what the door has read; the ledger knows
            return None
        request = _request(plan, facts, also)
        # What is not committed is checked by nobody, neither what is remembered nor what the door has read.
        is_checked = request is not None or (facts.is_certain and not also)
        return _Decided(plan, facts, request) if is_checked else None

    # Reading

    @contextmanager
    def facts(self) -> Iterator[Facts]:
        """One state of the ledger through the rules of names."""
        with self.ledger.reading() as reading:
            yield Facts(reading, self.rules)

    def resolve(self, query: Query, who: Identity, at: int | None = None) -> Resolved:
        """What a name stands for, now or after an entry of the past. Raises `Refused`."""
        with self.facts() as facts:
            context = Context(facts, who, "read", self.now())
            require_counting(context)
            if at is not None:
                return as_of(facts, who, query, at).resolved
            return resolve(query, context)

    def now(self) -> int:
        """Seconds since 1970, as the ledger's clock shows them."""
        return self.ledger.log.clock.now() // _SECOND


@dataclass(frozen=True, slots=True)
class _Decided(Generic[T]):
    """A plan, and what it was decided on."""

    plan: Plan[T]
    facts: Facts
    request: _Request | None
    """What is asked of the ledger; None if nothing has to be appended."""

    def asked(self, step_of: str, once: Once[T] | None) -> _Request | None:
        """The same as a step of something, or with a key, which is kept also where nothing has to be appended."""
        request = self.request
        if request is None and once is not None:
            request = Mint(lambda _: (), self.facts.rests_on, remembered=self.facts.remembered)
        if request is None or not (step_of or once):
            return request
        return replace(request, operation=step_of, once=None if once is None else self._with_key(once))

    def _with_key(self, once: Once[T]) -> OnceInLedger:
        changes = self.request is not None
        return OnceInLedger(
            once.caller, once.key, once.digest, lambda seq: once.told(self.plan.answer(seq if changes else 0))
        )

    def changed(self, outcome: Outcome) -> Collection[bytes]:
        """The keys of the records that were changed; where names were made, those that they have by either rule."""
        if self.plan.make is None or not isinstance(outcome, MintedEntries):
            return [draft.key for draft in self.plan.drafts]
        return [record_key(name, exact=exact) for name in outcome.handles for exact in (False, True)]


def _decided(operation: Operation[T], context: Context) -> Plan[T]:
    """What an operation comes to, for somebody who may show a token: one that counts, and of which something was asked.

    An operation that changes something without having demanded anything is open to nobody with a token: what nobody
    has thought of is denied.
    """
    require_counting(context)
    plan = operation.decide(context)
    if isinstance(context.who, Tokened) and (plan.drafts or plan.make) and not context.reasons:
        raise Refused(
            ResponseCode.INSUFFICIENT_PERMISSIONS, "no token is good for that", "identify yourself with a key"
        )
    return plan


def _request(plan: Plan[object], facts: Facts, also: RestsOn | None) -> _Request | None:
    """What a plan asks of the ledger; None if nothing has to be appended."""
    rests_on = {**facts.rests_on, **also} if also else facts.rests_on
    if plan.make is not None:
        return Mint(plan.make, rests_on, remembered=facts.remembered)
    if not plan.drafts:
        return None
    if len(plan.drafts) == 1:
        return Append(plan.drafts[0], rests_on, plan.redacts, remembered=facts.remembered)
    drafts = plan.drafts
    return Mint(lambda _: drafts, rests_on, redacts=plan.redacts, remembered=facts.remembered)


def _prove_again() -> TooBusy:
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
