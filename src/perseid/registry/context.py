"""Deciding an operation: what it reads, who asks, and the plan that comes of it.

An operation is a frozen value with one method, `decide`. It reads facts, refuses by raising `Refused`, or answers with
a plan: the entries to append. It does nothing itself, so the same method explains an operation without doing it, and
runs again when what it read has moved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Lender, Redacts
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_OCTETS, Handle
from perseid.records.admin import Admin
from perseid.records.record import ascending
from perseid.records.types import HS_ADMIN
from perseid.records.value import MAX_VALUES, Value, ValueRef
from perseid.registry.access.authorization import Decision, authorise
from perseid.registry.access.permissions import Demand, Membership, Role, shown
from perseid.registry.policy.keys import Who
from perseid.registry.policy.policy import Policy
from perseid.wire.codes import ResponseCode

from .identity import Identity, KeyHolder, maker_of
from .results import Referred, Refused
from .snapshot import SITE_PREFIX, Facts, Held, of_type

T_co = TypeVar("T_co", covariant=True)

IMPORT = "import"
"""The door through which records of other servers come, with their dates."""

FIRST_ADMIN_INDEX = 100
"""Where administrators stand that the policy adds: deployed tools put them there too."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[T_co]):
    """What is to be appended, and what is answered then."""

    answer: Callable[[int], T_co]
    """The result, given the number of the first entry appended, or 0 if there is none to append."""
    drafts: tuple[Draft, ...] = ()
    """The entries: all of them are appended, or none."""
    make: Callable[[Lender], Sequence[Draft]] | None = None
    """Makes the entries while nobody else can write: for new names."""
    reason: str = ""
    """Why it is allowed."""
    redacts: Redacts = field(default_factory=dict)
    """What is erased from earlier entries."""


@dataclass(frozen=True, slots=True)
class Context:
    """Under which circumstances an operation is decided."""

    facts: Facts
    who: Identity
    door: str
    """Where it came in: `native`, `http`, `cli`, `import` …"""
    now: int
    """Seconds since 1970."""
    note: str = ""
    """Why, or where from; kept with the entry."""
    reasons: list[str] = field(default_factory=list)

    # Rights

    def demand(self, demand: Demand) -> None:
        """Refuse whoever does not meet a demand."""
        decision = self.weighed(demand)
        if not decision.allowed:
            raise Refused.by_decision(decision)
        self.reasons.append(decision.reason)

    def may(self, demand: Demand) -> bool:
        """Whether somebody meets a demand."""
        return self.weighed(demand).allowed

    def weighed(self, demand: Demand) -> Decision:
        """Whether somebody meets a demand, and why."""
        return authorise(self.who, demand, self.facts, self.facts.rules.administration, self.facts.spent)

    @property
    def is_import(self) -> bool:
        """Whether records of another server are brought in, with their dates: server administrators may."""
        return self.door == IMPORT and self.may(Demand("import records", ((Membership((Role.SERVER,)),),)))

    # Names

    def own(self, handle: Handle, *, refer: bool = True, new: bool = False) -> Held:
        """What is under a name that this server answers for; refused, or referred elsewhere, if it does not.

        `new` says that nothing is expected to be there.
        """
        if fold(handle.prefix) == SITE_PREFIX:
            reason = f"{shown(handle)} belongs to the installation itself, and is no handle"
            raise Refused(ResponseCode.SERVER_NOT_RESP, reason)
        if not self.facts.is_responsible(handle):
            advice = f"ask the service of the prefix {shown(handle.prefix)}, or home the prefix here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, "That prefix doesn't live here", advice)
        held = self.facts.held(handle, new=new)
        if refer and not held.exists and (values := self.facts.referral(handle)):
            raise Referred(values)
        return held

    def existing(self, handle: Handle) -> Held:
        """What is under a name that has a record."""
        held = self.own(handle)
        if not held.exists:
            raise not_found(held)
        return held

    def changeable(self, handle: Handle) -> Held:
        """What is under a name whose record is to be changed: its bare name, for a part has no record (C5)."""
        held = self.own(handle)
        if held.query is not None or held.fragment is not None:
            raise Refused.by_policy(held.policy.check_name(handle))
        return held

    def registrable(self, held: Held) -> None:
        """Refuse a name that may not be registered: by the rules for all names, or by the namespace's policy."""
        try:
            if self.is_import:
                Handle.keepable(str(held.asked))  # what another server registered is kept (H3)
            else:
                Handle.parse(str(held.asked))
        except InvalidName as problem:
            raise Refused(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
        if refusals := held.policy.check_name(held.asked):
            raise Refused.by_policy(refusals)

    # Entries

    def draft(
        self, held: Held, action: Action, values: Sequence[Value], state: State = State.NORMAL, note: str | None = None
    ) -> Draft:
        """The entry that makes a record what it shall be."""
        return Draft(
            action,
            state,
            str(held.handle),
            self.door,
            str(self.who),
            self.note if note is None else note,
            ascending(values),
            held.exact,
        )


class Operation(Protocol[T_co]):
    """Something that can be asked for."""

    def decide(self, context: Context) -> "Plan[T_co]":
        """What is to be done; raises `Refused`."""
        ...


def not_found(held: Held) -> Refused:
    """There is no such record."""
    return Refused(ResponseCode.HANDLE_NOT_FOUND, f"there is no record of {shown(held.asked)}")


def over_long(name: str) -> Refused:
    """There is no such record, here or elsewhere: the name that was asked for is too long for any (H9)."""
    reason = f"there is no record of {shown(name)}: a handle has {MAX_OCTETS:,} octets at most"
    return Refused(ResponseCode.HANDLE_NOT_FOUND, reason, "look whether more than the name was copied", "H9")


def still_reserved(held: Held) -> Refused:
    """The name has no thing yet."""
    reason = f"{shown(held.asked)} is reserved, and stands for nothing yet"
    return Refused(ResponseCode.INVALID_VALUE, reason, "register it first: create it with its values", "S1")


def check_indexes(values: Sequence[Value]) -> None:
    """Refuse indexes that no value can have, or that two have."""
    if any(value.index <= 0 for value in values):
        raise Refused(ResponseCode.INVALID_VALUE, "Value indexes must be positive")
    seen: set[int] = set()
    for value in values:
        if value.index in seen:
            raise Refused(ResponseCode.VALUE_ALREADY_EXISTS, f"Index conflict for {value.index}")
        seen.add(value.index)


def check_count(values: Sequence[Value]) -> None:
    """Refuse a record that no client could read."""
    if len(values) > MAX_VALUES:
        reason = f"{len(values):,} values are too many for a record: no client reads more than {MAX_VALUES:,}"
        raise Refused(ResponseCode.INVALID_VALUE, reason)


def with_administrators(context: Context, held: Held, values: Sequence[Value]) -> tuple[Value, ...]:
    """A new record, with the policy's administrators if it brings none.

    The protocol allows a record without any, which only server administrators can ever change. Where everybody may make
    names that would be a trap: who made a name there could neither mend nor end it. So whoever makes it administers it.
    """
    if of_type(tuple(values), HS_ADMIN):
        return tuple(values)
    admins: Sequence[Admin] = held.policy.administrators(held.handle.prefix)
    if not admins and held.policy.who_may_mint is Who.AUTHENTICATED:
        admins = own_administrators(context)
    return (*values, *administrators(values, held.policy, admins))


def administrators(values: Sequence[Value], policy: Policy, admins: Sequence[Admin]) -> list[Value]:
    """HS_ADMIN values for a record that has the given ones."""
    if not admins:
        return []
    taken = {value.index for value in values}
    free = (index for index in range(FIRST_ADMIN_INDEX, 1 << 31) if index not in taken)
    return [Value(next(free), HS_ADMIN, admin.to_bytes(), ttl=policy.default_ttl) for admin in admins]


def own_administrators(context: Context) -> list[Admin]:
    """Whoever asks, who has proved to be somebody; an operator has no key to name, nor has a token."""
    who = maker_of(context.who)
    return [Admin(ValueRef.parse(str(who)))] if isinstance(who, KeyHolder) else []
