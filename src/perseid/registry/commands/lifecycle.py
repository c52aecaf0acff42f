"""The life of a record: publish, unpublish, tombstone, revive, redact.

The protocol knows records that exist and records that do not. Here a record can also be unpublished (the public gets
"not found", its administrators see it) or a tombstone, which says what became of the object. A tombstone consists of
ordinary public values of the types in the policy, so every protocol, export and mirror carries it. The other values
stay in the history, and the handle is never used for another object (S8).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.log import NothingToRedact, build_redaction
from perseid.ledger.log.requests import Append
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle, fold
from perseid.records.admin import AdminPermission
from perseid.records.encoding import to_iso
from perseid.records.record import Value
from perseid.records.types import HS_ADMIN
from perseid.registry.access import permissions as requirements
from perseid.registry.access.permissions import HasRole, RequiredScope, Requirement, Role, display_name, is_admin
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context, Deferrable, Plan, not_found, still_reserved
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import PartyStatus
from perseid.registry.policy.authority import values_of_exact_type as of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.resolution import find_party
from perseid.registry.results import ChangeResult, InvalidRequest, Refused, StateConflict, WarningKind
from perseid.registry.snapshot import SITE_PREFIX, StoredRecord, values_of_type
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from .composition import compose, reindex
from .records import plan_change, require_identity, require_unpublishable

FIRST_INDEX: Final = 9101
"""First index of values that the server adds for tombstones and links. Authority metadata starts at 9001, and people
number their values from 1."""


@dataclass(frozen=True, slots=True)
class Publish(Deferrable):
    """Publish an unpublished record. Nothing happens if it is public; a warning says that a tombstone stays one."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """MODIFY_VALUE: with it, the caller could change the public read permission of each value."""
        stored = get_record_for(context, self.handle, "publish", AdminPermission.MODIFY_VALUE, Scope.PUBLISH)
        if stored.is_public:
            if stored.state is State.TOMBSTONE:
                advice = AdviceKind.RESTORE(handle=stored.requested)
                context.warn(WarningKind.TOMBSTONE(advice, handle=stored.requested))
            unchanged = ChangeResult(stored.handle, stored.seq, warnings=tuple(context.warnings))
            return Plan(lambda _: unchanged, reason=context.reasons[-1])
        if stored.state is State.RESERVED:
            raise still_reserved(stored)
        return plan_change(context, stored, Action.PUBLISH, stored.values, State.NORMAL)


@dataclass(frozen=True, slots=True)
class Unpublish(Deferrable):
    """Hide a record from the public. Nothing happens if it is hidden."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """The same permission as to publish."""
        stored = get_record_for(context, self.handle, "unpublish", AdminPermission.MODIFY_VALUE, Scope.PUBLISH)
        if not stored.is_public:
            return Plan(lambda _: ChangeResult(stored.handle, stored.seq), reason=context.reasons[-1])
        require_unpublishable(stored)
        if stored.state is State.TOMBSTONE:
            reason = f"Handle {display_name(stored.requested)} is a tombstone, which must stay public"
            raise StateConflict(reason, AdviceKind.RESTORE(handle=stored.handle), "S8")
        return plan_change(context, stored, Action.UNPUBLISH, stored.values, State.UNPUBLISHED)


@dataclass(frozen=True, slots=True)
class Tombstone(Deferrable):
    """Replace a record by a tombstone: why and when the object went, and what to use instead; or update one."""

    handle: Handle
    reason: str
    replacement: Handle | Literal[""] | None = None
    """The handle to use instead; empty for none. If this is None, an existing tombstone keeps the one it has."""

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """DELETE_HANDLE, as for deletion; the policy's rule on deletion does not apply."""
        stored = get_record_for(
            context, self.handle, "create a tombstone for", AdminPermission.DELETE_HANDLE, Scope.TOMBSTONE
        )
        if stored.handle.is_prefix_handle:
            reason = f"{display_name(stored.requested)} is a prefix handle and cannot become a tombstone"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.STOP_HOSTING_OR_TRANSFER(), "H8")
        if stored.state is State.RESERVED:
            raise still_reserved(stored)
        text = _check_reason(self.reason, "A tombstone")
        policy = stored.policy
        values = tombstone_values(stored)
        values = add_value(values, policy, policy.tombstone_reason_type, text)
        values = add_value(values, policy, policy.tombstone_date_type, self._date(context, stored))
        if replacement := self._replacement(context, stored):
            values = add_value(values, policy, policy.tombstone_replacement_type, replacement)
        values = compose(context, stored, values, state=State.TOMBSTONE)
        return plan_change(context, stored, Action.TOMBSTONE, values, State.TOMBSTONE)

    def _date(self, context: Context, stored: StoredRecord) -> str:
        """The date of the first tombstone stays."""
        return _tombstone_text(stored, stored.policy.tombstone_date_type) or to_iso(context.now)

    def _replacement(self, context: Context, stored: StoredRecord) -> str:
        """The handle to use instead; empty if there is none. A new one is checked like a creator (A4)."""
        current = _tombstone_text(stored, stored.policy.tombstone_replacement_type)
        if self.replacement is None or str(self.replacement) == current:
            return current
        if self.replacement == "":
            return ""
        try:
            Handle.parse(str(self.replacement))
        except InvalidName as problem:
            reason = f"{display_name(self.replacement)} is not a valid replacement: {problem}"
            advice = AdviceKind.NAME_HANDLE()
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, advice, problem.rule) from problem
        other = context.snapshot.stored(self.replacement)
        if other.key == stored.key:
            reason = f"Handle {display_name(stored.requested)} cannot replace itself"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_OTHER_REPLACEMENT(), "S8")
        status, registered = find_party(context.snapshot, self.replacement)
        if status is PartyStatus.HERE_MISSING:
            reason = f"The replacement {display_name(self.replacement)} does not exist or is not public"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.CREATE_REPLACEMENT(), "S8")
        if status is PartyStatus.HERE_PUBLIC and other.state is State.TOMBSTONE:
            advice = AdviceKind.NAME_OTHER_REPLACEMENT()
            context.warn(WarningKind.REPLACEMENT_TOMBSTONE(advice, "S8", replacement=self.replacement))
        return str(registered)


@dataclass(frozen=True, slots=True)
class Revive(Deferrable):
    """Undo a tombstone: restore the earlier values, with the current administrators."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """DELETE_HANDLE and ADD_VALUE from one HS_ADMIN value. The current policy applies.

        Secret keys are not restored: they were redacted when the record lost them.
        """
        both = AdminPermission.DELETE_HANDLE | AdminPermission.ADD_VALUE
        stored = get_record_for(context, self.handle, "remove the tombstone from", both, Scope.TOMBSTONE)
        if stored.state is not State.TOMBSTONE:
            reason = f"Handle {display_name(stored.requested)} is not a tombstone"
            raise StateConflict(reason, AdviceKind.CHANGE_VALUES(), "S8")
        before = _before_tombstone(context, stored)
        earlier = _other_values(before.record(), _permanent_types(stored.policy))
        values = (*earlier, *reindex(tombstone_values(stored), earlier))
        values = compose(context, stored, values, state=before.state, restored=earlier)
        return plan_change(context, stored, Action.UPDATE, values, before.state)


@dataclass(frozen=True, slots=True)
class Redact(Deferrable):
    """Permanently redact an earlier value, wherever it was copied. Who redacted it, when and why stays recorded."""

    handle: Handle
    index: int
    seq: int
    """An entry in which the record had the value."""
    reason: str

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """Server administrators only, including local users: it destroys evidence, also of what others did."""
        if fold(self.handle.prefix) == SITE_PREFIX:
            context.get_hosted(self.handle)
        action = f"redact values of {display_name(self.handle)}"
        require_identity(context, action)
        servers = HasRole((Role.SERVER,))
        context.require(Requirement(action, ((servers,),), required_scope=RequiredScope.of(self.handle, Scope.ADMIN)))
        reason = _check_reason(self.reason, "A redaction")
        stored = context.snapshot.stored(self.handle)
        if stored.entry is None:
            raise not_found(stored)
        try:
            requests = self._requests(context, stored, reason)
        except NothingToRedact as problem:
            raise Refused(
                ResponseCode.VALUES_NOT_FOUND, str(problem), AdviceKind.SEE_HISTORY(handle=stored.requested)
            ) from problem
        handle = stored.handle
        drafts = tuple([draft for request in requests for draft in request.drafts])
        redactions = {seq: slots for request in requests for seq, slots in request.redactions.items()}
        return Plan(lambda seq: ChangeResult(handle, seq), drafts, reason=context.reasons[-1], redactions=redactions)

    def _requests(self, context: Context, stored: StoredRecord, reason: str) -> list[Append]:
        """The requests that redact the value under each key that the handle has had by the case rules (H5).

        They are one commit: after a partial redaction the named entry would be empty, and could not identify the value.
        """
        reader = context.snapshot.reader
        named = case_rules.as_of(context.snapshot, stored, self.seq)
        positions = {stored.key if named is None else named.key: (self.seq, self.index)}
        if named is not None:
            data = {value.data for value in named.record() if value.index == self.index}
            if named.key != stored.key:
                _check_removed(stored, data, self.index)
            for entry in case_rules.history(context.snapshot, stored):
                for value in entry.record():
                    if value.data in data:
                        positions.setdefault(entry.key, (entry.seq, value.index))
        by = (context.interface, str(context.identity))
        for key in positions:
            if (latest := reader.record(key)) is not None:
                context.snapshot.track(latest)  # its values are copied, so the commit depends on it
        return [build_redaction(reader, key, *position, by, reason) for key, position in positions.items()]


# Shared by the commands


def get_record_for(
    context: Context, handle: Handle, verb: str, permissions: AdminPermission, scope: Scope
) -> StoredRecord:
    """The record that the caller wants to change, if its administrators allow it.

    A record that is not public does not exist for callers who can neither change nor read it.
    """
    stored = context.get_hosted(handle)
    action = f"{verb} {display_name(handle)}"
    require_identity(context, action)
    requirement = requirements.on_record(action, permissions, stored.handle, scope)
    if not stored.exists or not (
        stored.is_public or context.is_allowed(requirement) or context.is_allowed(requirements.read(stored.handle))
    ):
        raise not_found(stored)
    context.require(requirement)
    return stored


def add_value(values: Sequence[Value], policy: Policy, type_: str, text: str) -> tuple[Value, ...]:
    """The values, with one that the server adds."""
    taken = {value.index for value in values}
    index = FIRST_INDEX
    while index in taken:
        index += 1
    return (*values, replace(Value.text(index, type_, text), ttl=policy.default_ttl))


def tombstone_values(stored: StoredRecord) -> tuple[Value, ...]:
    """What a tombstone keeps of a record: its administrators and authority metadata."""
    permanent = [value for type_ in _permanent_types(stored.policy) for value in of_exact_type(stored.values, type_)]
    return (*values_of_type(stored.values, HS_ADMIN), *permanent)


def _permanent_types(policy: Policy) -> tuple[str, ...]:
    if not policy.authority:
        return ()
    return tuple(filter(None, (policy.creation_date_type, policy.creator_type, policy.owner_type)))


def _other_values(values: Iterable[Value], types: Iterable[str]) -> tuple[Value, ...]:
    """The values that are neither administrators nor of the types."""
    excluded = {fold(type_) for type_ in types}
    return tuple([value for value in values if fold(value.type) not in excluded and not is_admin(value)])


def _tombstone_text(stored: StoredRecord, type_: str) -> str:
    """The value of a type in a tombstone; empty if there is none."""
    values = of_exact_type(stored.values, type_) if stored.state is State.TOMBSTONE else []
    return values[0].data.decode("utf-8", "replace") if values else ""


def _before_tombstone(context: Context, stored: StoredRecord) -> Entry:
    """The last entry of the record before it became a tombstone."""
    for entry in case_rules.history(context.snapshot, stored):
        if entry.state is not State.TOMBSTONE:
            if entry.state in (State.NORMAL, State.UNPUBLISHED):
                return entry
            break
    reason = f"Handle {display_name(stored.requested)} has no version before the tombstone"
    raise Refused(ResponseCode.VALUES_NOT_FOUND, reason, AdviceKind.REPLACE_RECORD(), "S8")


def _check_removed(stored: StoredRecord, data: set[bytes], index: int) -> None:
    """Refuse to redact what the record still has, though under another key."""
    if any(value.data in data for value in stored.values):
        message = f"the data of value {index} is still in the record of {stored.handle}; remove or replace it first"
        raise NothingToRedact(message)


def _check_reason(reason: str, what: str) -> str:
    """Return the reason without surrounding blanks; refuse an empty or invalid one."""
    text = reason.strip()
    if not text:
        raise InvalidRequest(ResponseCode.INVALID_VALUE, f"{what} requires a reason", AdviceKind.GIVE_REASON(), "S8")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        problem = "The reason contains half of a surrogate pair and has no UTF-8 form"
        raise Refused(ResponseCode.INVALID_VALUE, problem, AdviceKind.CHANGE_REASON(), "H4") from None
    return text
