"""The registry: every door asks here, so that a rule holds at all of them.

An operation is decided on what was seen of the ledger last (`recent` says how that is safe), or on one state of it, and
handed in with everything the decision rested on. If any of it has moved by the time it is committed, it is decided
again, a few times; after that the caller is told that the ledger is too busy. Reading waits for nobody.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from perseid.ledger import Append, Failed, Ledger, LedgerError, Mint, Moved, TooBusy
from perseid.ledger import Minted as MintedEntries
from perseid.ledger.requests import Appended, Outcome, RestsOn
from perseid.wire.codes import ResponseCode

from .context import Context, Operation, Plan
from .facts import Facts, Rules
from .identity import Identity
from .past import as_of
from .recent import Expected, Recent
from .resolving import Query, resolve
from .results import Explained, Refused, Resolved

ATTEMPTS: Final = 20
"""How often an operation is decided again because others changed what it rested on. Each time somebody else has
succeeded, so this many in a row mean a name that many fight for."""

_SECOND: Final = 1_000_000

T = TypeVar("T")
_Request: TypeAlias = Append | Mint


class Registry:
    """The rules over one ledger. For any number of threads."""

    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self.ledger = ledger
        self.rules = rules
        self._recent = Recent()

    def do(
        self, operation: Operation[T], who: Identity, door: str, note: str = "", rests_on: RestsOn | None = None
    ) -> T:
        """Carry out an operation: when this returns, it is durable and visible here. Raises `Refused`.

        `rests_on` is what the door itself read: the record with the key that proved who asks, and its entry.
        """
        if not note.isascii():
            _check_text(note)
        decided = self._expect(operation, who, door, note, rests_on)
        for _ in range(ATTEMPTS):
            if decided is None:
                decided = self._decide(operation, who, door, note, rests_on)
            if decided.request is None:
                return decided.plan.answer(0)
            outcome = self.ledger.append(decided.request)[0]
            if not isinstance(outcome, Moved):
                answer = decided.plan.answer(_first_entry(outcome))
                self._recent.note(decided.facts.seen, decided.changed)
                return answer
            self._recent.forget(decided.request.rests_on)
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
        """What is to be done, from one state of the ledger."""
        with self.facts() as facts:
            plan = operation.decide(Context(facts, who, door, self.now(), note))
        return _Decided(plan, facts, _request(plan, facts, also))

    def _expect(
        self, operation: Operation[T], who: Identity, door: str, note: str, also: RestsOn | None
    ) -> "_Decided[T] | None":
        """What is to be done, from what was seen last; None, if only the ledger can tell: see `recent`."""
        with Expected(self.ledger.reading, self.rules, self._recent) as facts:
            try:
                plan = operation.decide(Context(facts, who, door, self.now(), note))
            except Exception:
                if facts.is_certain:
                    raise
                return None
        request = _request(plan, facts, also)
        return None if request is None and not facts.is_certain else _Decided(plan, facts, request)

    # Reading

    @contextmanager
    def facts(self) -> Iterator[Facts]:
        """One state of the ledger through the rules of names."""
        with self.ledger.reading() as reading:
            yield Facts(reading, self.rules)

    def resolve(self, query: Query, who: Identity, at: int | None = None) -> Resolved:
        """What a name stands for, now or after an entry of the past. Raises `Refused`."""
        with self.facts() as facts:
            if at is not None:
                return as_of(facts, who, query, at).resolved
            return resolve(query, Context(facts, who, "read", self.now()))

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

    @property
    def changed(self) -> frozenset[bytes]:
        """The records that the plan changes, as far as that is known beforehand."""
        return frozenset([draft.key for draft in self.plan.drafts])


def _request(plan: Plan[object], facts: Facts, also: RestsOn | None) -> _Request | None:
    """What a plan asks of the ledger; None if nothing has to be appended."""
    rests_on = {**facts.rests_on, **also} if also else facts.rests_on
    if plan.make is not None:
        return Mint(plan.make, rests_on)
    if not plan.drafts:
        return None
    if len(plan.drafts) == 1:
        return Append(plan.drafts[0], rests_on, plan.redacts)
    drafts = plan.drafts
    assert not plan.redacts, "what is erased goes with a single entry"  # noqa: S101 - for whoever plans
    return Mint(lambda _: drafts, rests_on)


def _check_text(text: str) -> None:
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
