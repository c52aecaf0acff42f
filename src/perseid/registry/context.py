"""Deciding an operation: what it reads, who asks, and the plan that comes of it.

An operation is a frozen value with one method, `decide`. It reads facts, refuses by raising `Refused`, or answers with
a plan: the entries to append. It does nothing itself, so the same method explains an operation without doing it, and
runs again when what it read has moved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import LeaseProvider, Redactions
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_BYTES, Handle
from perseid.records.admin import Admin
from perseid.records.record import ascending
from perseid.records.types import HS_ADMIN
from perseid.records.value import MAX_VALUES, Value, ValueRef
from perseid.registry.access.authorization import Decision, authorize
from perseid.registry.access.permissions import HasRole, Requirement, Role, display_name
from perseid.registry.policy.keys import Audience
from perseid.registry.policy.policy import Policy
from perseid.wire.codes import ResponseCode

from .identity import Identity, KeyIdentity, effective_identity
from .results import ReferralError, Refused
from .snapshot import SITE_PREFIX, Snapshot, StoredRecord, values_of_type

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
    make: Callable[[LeaseProvider], Sequence[Draft]] | None = None
    """Makes the entries while nobody else can write: for new names."""
    reason: str = ""
    """Why it is allowed."""
    redactions: Redactions = field(default_factory=dict)
    """What is erased from earlier entries."""


@dataclass(frozen=True, slots=True)
class Context:
    """Under which circumstances an operation is decided."""

    snapshot: Snapshot
    identity: Identity
    interface: str
    """Where it came in: `native`, `http`, `cli`, `import` …"""
    now: int
    """Seconds since 1970."""
    note: str = ""
    """Why, or where from; kept with the entry."""
    reasons: list[str] = field(default_factory=list)

    # Rights

    def require(self, require: Requirement) -> None:
        """Refuse whoever does not meet a demand."""
        decision = self.check(require)
        if not decision.allowed:
            raise Refused.from_decision(decision)
        self.reasons.append(decision.reason)

    def is_allowed(self, require: Requirement) -> bool:
        """Whether somebody meets a demand."""
        return self.check(require).allowed

    def check(self, require: Requirement) -> Decision:
        """Whether somebody meets a demand, and why."""
        return authorize(self.identity, require, self.snapshot, self.snapshot.rules.administration, self.snapshot.usage)

    @property
    def is_import(self) -> bool:
        """Whether records of another server are brought in, with their dates: server administrators may."""
        return self.interface == IMPORT and self.is_allowed(
            Requirement("import records", ((HasRole((Role.SERVER,)),),))
        )

    # Names

    def get_hosted(self, handle: Handle, *, refer: bool = True, new: bool = False) -> StoredRecord:
        """What is under a name that this server answers for; refused, or referred elsewhere, if it does not.

        `new` says that nothing is expected to be there.
        """
        if fold(handle.prefix) == SITE_PREFIX:
            reason = f"{display_name(handle)} belongs to the installation itself, and is no handle"
            raise Refused(ResponseCode.SERVER_NOT_RESP, reason)
        if not self.snapshot.is_responsible(handle):
            advice = f"ask the service of the prefix {display_name(handle.prefix)}, or home the prefix here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, "That prefix doesn't live here", advice)
        stored = self.snapshot.stored(handle, new=new)
        if refer and not stored.exists and (values := self.snapshot.referral(handle)):
            raise ReferralError(values)
        return stored

    def existing(self, handle: Handle) -> StoredRecord:
        """What is under a name that has a record."""
        stored = self.get_hosted(handle)
        if not stored.exists:
            raise not_found(stored)
        return stored

    def get_for_update(self, handle: Handle) -> StoredRecord:
        """What is under a name whose record is to be changed: its bare name, for a part has no record (C5)."""
        stored = self.get_hosted(handle)
        if stored.query is not None or stored.fragment is not None:
            raise Refused.from_refusals(stored.policy.check_name(handle))
        return stored

    def check_registrable(self, stored: StoredRecord) -> None:
        """Refuse a name that may not be registered: by the rules for all names, or by the namespace's policy."""
        try:
            if self.is_import:
                Handle.parse_lenient(str(stored.requested))  # what another server registered is kept (H3)
            else:
                Handle.parse(str(stored.requested))
        except InvalidName as problem:
            raise Refused(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
        if refusals := stored.policy.check_name(stored.requested):
            raise Refused.from_refusals(refusals)

    # Entries

    def draft(
        self,
        stored: StoredRecord,
        action: Action,
        values: Sequence[Value],
        state: State = State.NORMAL,
        note: str | None = None,
    ) -> Draft:
        """The entry that makes a record what it shall be."""
        return Draft(
            action,
            state,
            str(stored.handle),
            self.interface,
            str(self.identity),
            self.note if note is None else note,
            ascending(values),
            stored.exact,
        )


class Command(Protocol[T_co]):
    """Something that can be asked for."""

    def decide(self, context: Context) -> "Plan[T_co]":
        """What is to be done; raises `Refused`."""
        ...


def not_found(stored: StoredRecord) -> Refused:
    """There is no such record."""
    return Refused(ResponseCode.HANDLE_NOT_FOUND, f"there is no record of {display_name(stored.requested)}")


def name_too_long(name: str) -> Refused:
    """There is no such record, here or elsewhere: the name that was asked for is too long for any (H9)."""
    reason = f"there is no record of {display_name(name)}: a handle has {MAX_BYTES:,} octets at most"
    return Refused(ResponseCode.HANDLE_NOT_FOUND, reason, "look whether more than the name was copied", "H9")


def still_reserved(stored: StoredRecord) -> Refused:
    """The name has no thing yet."""
    reason = f"{display_name(stored.requested)} is reserved, and stands for nothing yet"
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


def add_administrators(context: Context, stored: StoredRecord, values: Sequence[Value]) -> tuple[Value, ...]:
    """A new record, with the policy's administrators if it brings none.

    The protocol allows a record without any, which only server administrators can ever change. Where everybody may make
    names that would be a trap: who made a name there could neither mend nor end it. So whoever makes it administers it.
    """
    if values_of_type(tuple(values), HS_ADMIN):
        return tuple(values)
    admins: Sequence[Admin] = stored.policy.administrators(stored.handle.prefix)
    if not admins and stored.policy.who_may_mint is Audience.AUTHENTICATED:
        admins = caller_as_administrator(context)
    return (*values, *admin_values(values, stored.policy, admins))


def admin_values(values: Sequence[Value], policy: Policy, admins: Sequence[Admin]) -> list[Value]:
    """HS_ADMIN values for a record that has the given ones."""
    if not admins:
        return []
    taken = {value.index for value in values}
    free = (index for index in range(FIRST_ADMIN_INDEX, 1 << 31) if index not in taken)
    return [Value(next(free), HS_ADMIN, admin.to_bytes(), ttl=policy.default_ttl) for admin in admins]


def caller_as_administrator(context: Context) -> list[Admin]:
    """Whoever asks, who has proved to be somebody; an operator has no key to name, nor has a token."""
    identity = effective_identity(context.identity)
    return [Admin(ValueRef.parse(str(identity)))] if isinstance(identity, KeyIdentity) else []
