"""The life of a name between its creation and its end: publish, unpublish, tombstone, revive, redact.

The protocol knows records that exist and records that do not. Here a record may also be unpublished (the public gets
"not found", its administrators see it) or be a tombstone: the thing is gone, and the name says so. A tombstone is made
of ordinary public values of the types that the policy names, so every protocol, export and mirror carries it. What
else the record held is in its history, and the name is never used for another thing (S8).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.redaction import NothingToRedact, build_redaction
from perseid.ledger.log.requests import Append
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.records.encoding import to_iso
from perseid.records.types import HS_ADMIN
from perseid.records.value import Value
from perseid.registry.access import permissions as requirements
from perseid.registry.access.permissions import HasRole, Requirement, Role, display_name, is_admin
from perseid.registry.access.scopes import RequiredScope, Scope
from perseid.registry.context import Context, Plan, not_found, still_reserved
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import PartyStatus
from perseid.registry.policy.authority_metadata import values_of_exact_type as of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.results import ChangeResult, Refused
from perseid.registry.snapshot import SITE_PREFIX, StoredRecord, values_of_type
from perseid.wire.codes import ResponseCode

from .composition import compose, get_party_status, reindex
from .records import plan_change, require_identity, require_unpublishable, undo_tombstone_command

FIRST_INDEX: Final = 9101
"""Where the server looks for a free index for what it says in a record itself: tombstones and links. Authority
metadata stand from 9001 on, and people number their values from 1."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Let everybody resolve a record that was unpublished. Nothing happens if they can already."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """MODIFY_VALUE: who may take the right to be read from each value, or give it, may do so for all of them."""
        stored = get_record_for(context, self.handle, "publish", AdminPermission.MODIFY_VALUE, Scope.PUBLISH)
        if stored.is_public:
            return Plan(lambda _: ChangeResult(stored.handle, stored.seq), reason=context.reasons[-1])
        if stored.state is State.RESERVED:
            raise still_reserved(stored)
        return plan_change(context, stored, Action.PUBLISH, stored.values, State.NORMAL)


@dataclass(frozen=True, slots=True)
class Unpublish:
    """Keep a record, and let the public find nothing. Nothing happens if it is so already."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """The same right as to publish."""
        stored = get_record_for(context, self.handle, "unpublish", AdminPermission.MODIFY_VALUE, Scope.PUBLISH)
        if not stored.is_public:
            return Plan(lambda _: ChangeResult(stored.handle, stored.seq), reason=context.reasons[-1])
        require_unpublishable(stored)
        if stored.state is State.TOMBSTONE:
            reason = f"{display_name(stored.requested)} is a tombstone, and tells everybody what became of the thing"
            advice = (
                f"if the thing is not gone after all, take the tombstone away first: {undo_tombstone_command(stored)}"
            )
            raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "S8")
        return plan_change(context, stored, Action.UNPUBLISH, stored.values, State.UNPUBLISHED)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Say that a thing is gone, why, since when, and what to use instead; or say it better."""

    handle: Handle
    reason: str
    replacement: Handle | None = None
    """The name to use instead. Where a tombstone is there already and this is None, it keeps the one it has."""

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """DELETE_HANDLE, as for the end that the protocol knows; the policy's rule on deletion does not forbid it."""
        stored = get_record_for(
            context, self.handle, "put a tombstone on", AdminPermission.DELETE_HANDLE, Scope.TOMBSTONE
        )
        if stored.handle.is_prefix_handle:
            reason = (
                f"{display_name(stored.requested)} says who serves and administers a "
                "prefix, which does not end with a thing"
            )
            raise Refused(ResponseCode.INVALID_HANDLE, reason, "unhome the prefix, or transfer it", "H8")
        if stored.state is State.RESERVED:
            raise still_reserved(stored)
        text = _check_reason(self.reason, "a tombstone")
        policy = stored.policy
        values = tombstone_values(stored)
        values = add_value(values, policy, policy.tombstone_reason_type, text)
        values = add_value(values, policy, policy.tombstone_date_type, self._date(context, stored))
        if replacement := self._replacement(context, stored):
            values = add_value(values, policy, policy.tombstone_replacement_type, replacement)
        values = compose(context, stored, values, state=State.TOMBSTONE)
        return plan_change(context, stored, Action.TOMBSTONE, values, State.TOMBSTONE)

    def _date(self, context: Context, stored: StoredRecord) -> str:
        """The thing has been gone since the first tombstone said so."""
        return _tombstone_text(stored, stored.policy.tombstone_date_type) or to_iso(context.now)

    def _replacement(self, context: Context, stored: StoredRecord) -> str:
        """The name to use instead; it is checked as a creator is (A4)."""
        if self.replacement is None:
            return _tombstone_text(stored, stored.policy.tombstone_replacement_type)
        try:
            Handle.parse(str(self.replacement))
        except InvalidName as problem:
            reason = f"{display_name(self.replacement)} cannot replace anything: {problem}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name a handle", problem.rule) from problem
        if context.snapshot.stored(self.replacement).key == stored.key:
            reason = f"{display_name(stored.requested)} cannot replace itself"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name another handle, or none", "S8")
        if get_party_status(context.snapshot, self.replacement) is PartyStatus.HERE_MISSING:
            reason = f"nobody can resolve {display_name(self.replacement)} although its prefix is homed here"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "create and publish the replacement first", "S8")
        return str(self.replacement)


@dataclass(frozen=True, slots=True)
class Revive:
    """Undo a tombstone: the record holds what it held before, with the administrators that it has now."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """DELETE_HANDLE and ADD_VALUE from one administrator value: who may end it and fill it. Today's policy holds.

        Secret keys do not come back: they were erased when the record lost them.
        """
        both = AdminPermission.DELETE_HANDLE | AdminPermission.ADD_VALUE
        stored = get_record_for(context, self.handle, "take the tombstone from", both, Scope.TOMBSTONE)
        if stored.state is not State.TOMBSTONE:
            reason = f"{display_name(stored.requested)} is no tombstone"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "change its values as they are", "S8")
        before = _before_tombstone(context, stored)
        earlier = _other_values(before.record(), _permanent_types(stored.policy))
        values = compose(context, stored, (*earlier, *reindex(tombstone_values(stored), earlier)), state=before.state)
        return plan_change(context, stored, Action.UPDATE, values, before.state)


@dataclass(frozen=True, slots=True)
class Redact:
    """Erase a value of the past for good, wherever it was copied. That it was erased, by whom and why, is kept."""

    handle: Handle
    index: int
    seq: int
    """An entry at which the record had the value."""
    reason: str

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """Server administrators only, local operators among them: it destroys evidence, also of what others did."""
        if fold(self.handle.prefix) == SITE_PREFIX:
            context.get_hosted(self.handle)
        action = f"erase values of {display_name(self.handle)}"
        require_identity(context, action)
        servers = HasRole((Role.SERVER,))
        context.require(Requirement(action, ((servers,),), required_scope=RequiredScope.of(self.handle, Scope.ADMIN)))
        reason = _check_reason(self.reason, "a redaction")
        stored = context.snapshot.stored(self.handle)
        if stored.entry is None:
            raise not_found(stored)
        try:
            requests = self._requests(context, stored, reason)
        except NothingToRedact as problem:
            advice = "the history of the handle says which entries hold the value"
            raise Refused(ResponseCode.VALUES_NOT_FOUND, str(problem), advice) from problem
        handle = stored.handle
        drafts = tuple([request.draft for request in requests])
        redactions = {seq: found for request in requests for seq, found in request.redactions.items()}
        return Plan(lambda seq: ChangeResult(handle, seq), drafts, reason=context.reasons[-1], redactions=redactions)

    def _requests(self, context: Context, stored: StoredRecord, reason: str) -> list[Append]:
        """What erases the value under each key that the name has had by the case rules of its namespace (H5).

        All of it is one commit: if something were left, the entry that was named would be empty by then, and could not
        say any more what was meant.
        """
        reading = context.snapshot.reading
        meant = case_rules.as_of(context.snapshot, stored, self.seq)
        places = {stored.key if meant is None else meant.key: (self.seq, self.index)}
        if meant is not None:
            data = {value.data for value in meant.record() if value.index == self.index}
            if meant.key != stored.key:
                _check_removed(stored, data, self.index)
            for entry in case_rules.history(context.snapshot, stored):
                for value in entry.record():
                    if value.data in data:
                        places.setdefault(entry.key, (entry.seq, value.index))
        by = (context.interface, str(context.identity))
        for key in places:
            if (latest := reading.record(key)) is not None:
                context.snapshot.track(latest)  # whose values are copied, so the commit rests on it
        return [build_redaction(reading, key, *place, by, reason) for key, place in places.items()]


# What the operations share


def get_record_for(
    context: Context, handle: Handle, verb: str, permissions: AdminPermission, scope: Scope
) -> StoredRecord:
    """The record that somebody wants to do something to, if its administrators let them.

    A record that the public does not know of is not found by those who may neither do it nor read the record.
    """
    stored = context.get_hosted(handle)
    action = f"{verb} {display_name(handle)}"
    require_identity(context, action)
    require = requirements.on_record(action, permissions, stored.handle, scope)
    if not stored.exists or not (
        stored.is_public or context.is_allowed(require) or context.is_allowed(requirements.read(stored.handle))
    ):
        raise not_found(stored)
    context.require(require)
    return stored


def add_value(values: Sequence[Value], policy: Policy, type_: str, text: str) -> tuple[Value, ...]:
    """The values, with one that the server says."""
    taken = {value.index for value in values}
    index = FIRST_INDEX
    while index in taken:
        index += 1
    return (*values, replace(Value.text(index, type_, text), ttl=policy.default_ttl))


def tombstone_values(stored: StoredRecord) -> tuple[Value, ...]:
    """What a tombstone keeps of a record: who administers it, and its authority metadata."""
    lasting = [value for type_ in _permanent_types(stored.policy) for value in of_exact_type(stored.values, type_)]
    return (*values_of_type(stored.values, HS_ADMIN), *lasting)


def _permanent_types(policy: Policy) -> tuple[str, ...]:
    if not policy.authority:
        return ()
    return tuple(filter(None, (policy.creation_date_type, policy.creator_type, policy.owner_type)))


def _other_values(values: Iterable[Value], types: Iterable[str]) -> tuple[Value, ...]:
    """The values that are neither administrators nor of the types."""
    lasting = {fold(type_) for type_ in types}
    return tuple([value for value in values if fold(value.type) not in lasting and not is_admin(value)])


def _tombstone_text(stored: StoredRecord, type_: str) -> str:
    """What a tombstone says under a type; nothing, if there is none or it cannot be read."""
    values = of_exact_type(stored.values, type_) if stored.state is State.TOMBSTONE else []
    return values[0].data.decode("utf-8", "replace") if values else ""


def _before_tombstone(context: Context, stored: StoredRecord) -> Entry:
    """The last entry of the record that was no tombstone."""
    for entry in case_rules.history(context.snapshot, stored):
        if entry.state is not State.TOMBSTONE:
            if entry.state in (State.NORMAL, State.UNPUBLISHED):
                return entry
            break
    reason = (
        f"{display_name(stored.requested)} has been a tombstone since it came here, so there is nothing to go back to"
    )
    raise Refused(ResponseCode.VALUES_NOT_FOUND, reason, "replace the record as a whole", "S8")


def _check_removed(stored: StoredRecord, data: set[bytes], index: int) -> None:
    """Refuse to erase what the record still holds, though under another key."""
    if any(value.data in data for value in stored.values):
        message = f"what value {index} held is part of the record of {stored.handle} still; remove or replace it first"
        raise NothingToRedact(message)


def _check_reason(reason: str, what: str) -> str:
    """A reason that people can read."""
    text = reason.strip()
    if not text:
        raise Refused(ResponseCode.INVALID_VALUE, f"{what} says why; the reason is empty", "give a reason", "S8")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        problem = "the reason holds half of a surrogate pair and has no UTF-8 form"
        raise Refused(ResponseCode.INVALID_VALUE, problem, "write it anew", "H4") from None
    return text
