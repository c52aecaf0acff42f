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
from perseid.ledger.log.redaction import NothingToRedact, redaction
from perseid.ledger.log.requests import Append
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.records.encoding import to_iso
from perseid.records.types import HS_ADMIN
from perseid.records.value import Value
from perseid.registry.access import permissions as demands
from perseid.registry.access.permissions import Demand, Membership, Role, is_admin, shown
from perseid.registry.access.scopes import Reach, Word
from perseid.registry.context import Context, Plan, not_found, still_reserved
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import Known
from perseid.registry.policy.authority_metadata import of_type as of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Changed, Refused
from perseid.registry.snapshot import SITE_PREFIX, Held, of_type
from perseid.wire.codes import ResponseCode

from .composition import compose, known, moved_apart
from .records import require_hideable, require_identity, revival, written

FIRST_INDEX: Final = 9101
"""Where the server looks for a free index for what it says in a record itself: tombstones and links. Authority
metadata stand from 9001 on, and people number their values from 1."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Let everybody resolve a record that was unpublished. Nothing happens if they can already."""

    handle: Handle

    def decide(self, context: Context) -> Plan[Changed]:
        """MODIFY_VALUE: who may take the right to be read from each value, or give it, may do so for all of them."""
        held = held_for(context, self.handle, "publish", AdminPermission.MODIFY_VALUE, Word.PUBLISH)
        if held.is_public:
            return Plan(lambda _: Changed(held.handle, held.seq), reason=context.reasons[-1])
        if held.state is State.RESERVED:
            raise still_reserved(held)
        return written(context, held, Action.PUBLISH, held.values, State.NORMAL)


@dataclass(frozen=True, slots=True)
class Unpublish:
    """Keep a record, and let the public find nothing. Nothing happens if it is so already."""

    handle: Handle

    def decide(self, context: Context) -> Plan[Changed]:
        """The same right as to publish."""
        held = held_for(context, self.handle, "unpublish", AdminPermission.MODIFY_VALUE, Word.PUBLISH)
        if not held.is_public:
            return Plan(lambda _: Changed(held.handle, held.seq), reason=context.reasons[-1])
        require_hideable(held)
        if held.state is State.TOMBSTONE:
            reason = f"{shown(held.asked)} is a tombstone, and tells everybody what became of the thing"
            advice = f"if the thing is not gone after all, take the tombstone away first: {revival(held)}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "S8")
        return written(context, held, Action.UNPUBLISH, held.values, State.UNPUBLISHED)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Say that a thing is gone, why, since when, and what to use instead; or say it better."""

    handle: Handle
    reason: str
    replacement: Handle | None = None
    """The name to use instead. Where a tombstone is there already and this is None, it keeps the one it has."""

    def decide(self, context: Context) -> Plan[Changed]:
        """DELETE_HANDLE, as for the end that the protocol knows; the policy's rule on deletion does not forbid it."""
        held = held_for(context, self.handle, "put a tombstone on", AdminPermission.DELETE_HANDLE, Word.TOMBSTONE)
        if held.handle.is_prefix_handle:
            reason = f"{shown(held.asked)} says who serves and administers a prefix, which does not end with a thing"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, "unhome the prefix, or transfer it", "H8")
        if held.state is State.RESERVED:
            raise still_reserved(held)
        text = _checked_reason(self.reason, "a tombstone")
        policy = held.policy
        values = kept_values(held)
        values = with_value(values, policy, policy.tombstone_reason_type, text)
        values = with_value(values, policy, policy.tombstone_date_type, self._date(context, held))
        if replacement := self._replacement(context, held):
            values = with_value(values, policy, policy.tombstone_replacement_type, replacement)
        values = compose(context, held, values, state=State.TOMBSTONE)
        return written(context, held, Action.TOMBSTONE, values, State.TOMBSTONE)

    def _date(self, context: Context, held: Held) -> str:
        """The thing has been gone since the first tombstone said so."""
        return _said(held, held.policy.tombstone_date_type) or to_iso(context.now)

    def _replacement(self, context: Context, held: Held) -> str:
        """The name to use instead; it is checked as a creator is (A4)."""
        if self.replacement is None:
            return _said(held, held.policy.tombstone_replacement_type)
        try:
            Handle.parse(str(self.replacement))
        except InvalidName as problem:
            reason = f"{shown(self.replacement)} cannot replace anything: {problem}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name a handle", problem.rule) from problem
        if context.facts.held(self.replacement).key == held.key:
            reason = f"{shown(held.asked)} cannot replace itself"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name another handle, or none", "S8")
        if known(context.facts, self.replacement) is Known.HERE_MISSING:
            reason = f"nobody can resolve {shown(self.replacement)} although its prefix is homed here"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "create and publish the replacement first", "S8")
        return str(self.replacement)


@dataclass(frozen=True, slots=True)
class Revive:
    """Undo a tombstone: the record holds what it held before, with the administrators that it has now."""

    handle: Handle

    def decide(self, context: Context) -> Plan[Changed]:
        """DELETE_HANDLE and ADD_VALUE from one administrator value: who may end it and fill it. Today's policy holds.

        Secret keys do not come back: they were erased when the record lost them.
        """
        both = AdminPermission.DELETE_HANDLE | AdminPermission.ADD_VALUE
        held = held_for(context, self.handle, "take the tombstone from", both, Word.TOMBSTONE)
        if held.state is not State.TOMBSTONE:
            reason = f"{shown(held.asked)} is no tombstone"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "change its values as they are", "S8")
        before = _before_tombstone(context, held)
        earlier = _besides(before.record(), _lasting_types(held.policy))
        values = compose(context, held, (*earlier, *moved_apart(kept_values(held), earlier)), state=before.state)
        return written(context, held, Action.UPDATE, values, before.state)


@dataclass(frozen=True, slots=True)
class Redact:
    """Erase a value of the past for good, wherever it was copied. That it was erased, by whom and why, is kept."""

    handle: Handle
    index: int
    seq: int
    """An entry at which the record had the value."""
    reason: str

    def decide(self, context: Context) -> Plan[Changed]:
        """Server administrators only, local operators among them: it destroys evidence, also of what others did."""
        if fold(self.handle.prefix) == SITE_PREFIX:
            context.own(self.handle)
        action = f"erase values of {shown(self.handle)}"
        require_identity(context, action)
        servers = Membership((Role.SERVER,))
        context.demand(Demand(action, ((servers,),), reach=Reach.of(self.handle, Word.ADMIN)))
        reason = _checked_reason(self.reason, "a redaction")
        held = context.facts.held(self.handle)
        if held.entry is None:
            raise not_found(held)
        try:
            requests = self._requests(context, held, reason)
        except NothingToRedact as problem:
            advice = "the history of the handle says which entries hold the value"
            raise Refused(ResponseCode.VALUES_NOT_FOUND, str(problem), advice) from problem
        handle = held.handle
        drafts = tuple([request.draft for request in requests])
        redacts = {seq: found for request in requests for seq, found in request.redacts.items()}
        return Plan(lambda seq: Changed(handle, seq), drafts, reason=context.reasons[-1], redacts=redacts)

    def _requests(self, context: Context, held: Held, reason: str) -> list[Append]:
        """What erases the value under each key that the name has had by the case rules of its namespace (H5).

        All of it is one commit: if something were left, the entry that was named would be empty by then, and could not
        say any more what was meant.
        """
        reading = context.facts.reading
        meant = case_rules.as_of(context.facts, held, self.seq)
        places = {held.key if meant is None else meant.key: (self.seq, self.index)}
        if meant is not None:
            data = {value.data for value in meant.record() if value.index == self.index}
            if meant.key != held.key:
                _check_gone(held, data, self.index)
            for entry in case_rules.history(context.facts, held):
                for value in entry.record():
                    if value.data in data:
                        places.setdefault(entry.key, (entry.seq, value.index))
        by = (context.door, str(context.who))
        for key in places:
            if (latest := reading.record(key)) is not None:
                context.facts.saw(latest)  # whose values are copied, so the commit rests on it
        return [redaction(reading, key, *place, by, reason) for key, place in places.items()]


# What the operations share


def held_for(context: Context, handle: Handle, verb: str, permissions: AdminPermission, word: Word) -> Held:
    """The record that somebody wants to do something to, if its administrators let them.

    A record that the public does not know of is not found by those who may neither do it nor read the record.
    """
    held = context.own(handle)
    action = f"{verb} {shown(handle)}"
    require_identity(context, action)
    demand = demands.on_record(action, permissions, held.handle, word)
    if not held.exists or not (held.is_public or context.may(demand) or context.may(demands.read(held.handle))):
        raise not_found(held)
    context.demand(demand)
    return held


def with_value(values: Sequence[Value], policy: Policy, type_: str, text: str) -> tuple[Value, ...]:
    """The values, with one that the server says."""
    taken = {value.index for value in values}
    index = FIRST_INDEX
    while index in taken:
        index += 1
    return (*values, replace(Value.text(index, type_, text), ttl=policy.default_ttl))


def kept_values(held: Held) -> tuple[Value, ...]:
    """What a tombstone keeps of a record: who administers it, and its authority metadata."""
    lasting = [value for type_ in _lasting_types(held.policy) for value in of_exact_type(held.values, type_)]
    return (*of_type(held.values, HS_ADMIN), *lasting)


def _lasting_types(policy: Policy) -> tuple[str, ...]:
    if not policy.authority:
        return ()
    return tuple(filter(None, (policy.creation_date_type, policy.creator_type, policy.owner_type)))


def _besides(values: Iterable[Value], types: Iterable[str]) -> tuple[Value, ...]:
    """The values that are neither administrators nor of the types."""
    lasting = {fold(type_) for type_ in types}
    return tuple([value for value in values if fold(value.type) not in lasting and not is_admin(value)])


def _said(held: Held, type_: str) -> str:
    """What a tombstone says under a type; nothing, if there is none or it cannot be read."""
    values = of_exact_type(held.values, type_) if held.state is State.TOMBSTONE else []
    return values[0].data.decode("utf-8", "replace") if values else ""


def _before_tombstone(context: Context, held: Held) -> Entry:
    """The last entry of the record that was no tombstone."""
    for entry in case_rules.history(context.facts, held):
        if entry.state is not State.TOMBSTONE:
            if entry.state in (State.NORMAL, State.UNPUBLISHED):
                return entry
            break
    reason = f"{shown(held.asked)} has been a tombstone since it came here, so there is nothing to go back to"
    raise Refused(ResponseCode.VALUES_NOT_FOUND, reason, "replace the record as a whole", "S8")


def _check_gone(held: Held, data: set[bytes], index: int) -> None:
    """Refuse to erase what the record still holds, though under another key."""
    if any(value.data in data for value in held.values):
        message = f"what value {index} held is part of the record of {held.handle} still; remove or replace it first"
        raise NothingToRedact(message)


def _checked_reason(reason: str, what: str) -> str:
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
