"""Handing a name over, and linking names with each other. `transferring` hands over very many.

A transfer gives a record a new owner: all its administrators are replaced by one, whose key or group is named
`INDEX:HANDLE`, so that the rights of the old ones end. Creator and date of creation stay (A8).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perseid.ledger.log.entry import Action, Draft, State
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.errors import InvalidData
from perseid.records.record import ascending
from perseid.records.types import HS_ADMIN
from perseid.records.value import Value, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.permissions import Demand, Differences, addition, is_admin, shown
from perseid.registry.access.scopes import Word
from perseid.registry.context import Context, Plan, administrators, not_found, still_reserved
from perseid.registry.identity import KeyHolder, maker_of
from perseid.registry.policy.authority_metadata import first_readable, name_key, of_type, read_stored_party
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Changed, Refused
from perseid.registry.snapshot import Held
from perseid.registry.snapshot import of_type as of_base_type
from perseid.wire.codes import ResponseCode

from .composition import compose
from .lifecycle import held_for, with_value
from .records import require_identity, written


@dataclass(frozen=True, slots=True)
class Transfer:
    """Give one record a new owner."""

    handle: Handle
    to: ValueRef

    def decide(self, context: Context) -> Plan[Changed]:
        """What the change of administrators needs on the record: MODIFY_ADMIN, and REMOVE_ADMIN if there are more."""
        held = context.own(self.handle)
        require_identity(context, f"transfer {shown(self.handle)}")
        owner = named_owner(self.to)
        if not held.exists:
            raise not_found(held)
        # Once, because a request may search only so much; and before anything is told of the new owner's record.
        decision = context.weighed(demand_transfer(held, with_owner(held, owner)))
        if not (decision.allowed or held.is_public or context.may(permissions.read(held.handle))):
            raise not_found(held)
        if has_owner(held, owner):
            checked_owner(context, self.to)
            return Plan(lambda _: Changed(held.handle, held.seq), reason=f"{shown(held.asked)} has that owner already")
        if not decision.allowed:
            raise Refused.by_decision(decision)
        context.reasons.append(decision.reason)
        owner = checked_owner(context, self.to)
        return written(context, held, Action.UPDATE, compose(context, held, with_owner(held, owner)), held.state)


@dataclass(frozen=True, slots=True)
class Linked:
    """Two names that lead to each other."""

    handles: tuple[Handle, Handle]
    seq: int
    """The first entry that made it so; 0 if it was so already."""


@dataclass(frozen=True, slots=True)
class LinkVersion:
    """Link a work, whose name leads to the latest version, with one fixed version of it, an expression (S3)."""

    work: Handle
    expression: Handle

    def decide(self, context: Context) -> Plan[Linked]:
        """ADD_VALUE on both. A work has many expressions, an expression one work."""
        work, expression = _linkable(context, self.work, self.expression)
        ways = (
            _Way(work, expression, "expression_type", many=True),
            _Way(expression, work, "work_type", many=False),
        )
        return _linking(context, ways)


@dataclass(frozen=True, slots=True)
class LinkMetadata:
    """Link the name of a thing with the name of its metadata record (S12)."""

    thing: Handle
    metadata: Handle

    def decide(self, context: Context) -> Plan[Linked]:
        """ADD_VALUE on both. Each has one of the other."""
        thing, metadata = _linkable(context, self.thing, self.metadata)
        ways = (_Way(thing, metadata, "metadata_type", many=False), _Way(metadata, thing, "object_type", many=False))
        return _linking(context, ways)


# Owners


def named_owner(owner: ValueRef) -> Admin:
    """An administrator with all permissions; refused if that is no name."""
    try:
        Handle.parse(owner.handle)
    except InvalidName as problem:
        reason = f"{shown(str(owner))} cannot own anything: {problem}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "name an owner as INDEX:HANDLE", problem.rule) from problem
    return Admin(owner)


def checked_owner(context: Context, owner: ValueRef) -> Admin:
    """The same; refused also if nobody could prove to be it. Whoever asks must have the right to transfer.

    A record that they may not know of is refused as if it were not there.
    """
    admin = named_owner(owner)
    handle = Handle.parse(owner.handle)
    if context.facts.is_responsible(handle):
        held = context.facts.held(handle)
        is_known = held.exists and (held.is_public or _knows(context, held))
        missing = "" if is_known else f"there is no record of {shown(handle)}, whose prefix is homed here"
        if is_known and owner.index and owner.index not in {value.index for value in held.values}:
            missing = f"{shown(handle)} has no value with the index {owner.index}"
        if missing:
            reason = f"{shown(str(owner))} cannot own anything: {missing}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name a key or a group that exists", "S1")
    return admin


def _knows(context: Context, held: Held) -> bool:
    """Whether somebody may know of a record that is not public: those who read it, and whose own key is in it."""
    who = maker_of(context.who)
    if isinstance(who, KeyHolder) and fold(who.reference.handle) == fold(str(held.handle)):
        return True
    return any(context.may(permissions.read(held.handle, word)) for word in (Word.TRANSFER, Word.MINT, Word.CREATE))


def makers_of(context: Context, prefix: str) -> list[Admin]:
    """Those who may make names under a prefix, as owners of names that nobody else is named for."""
    found = []
    for value in of_base_type(context.facts.held(Handle(PREFIX_OF_PREFIXES, prefix)).values, HS_ADMIN):
        try:
            admin = Admin.from_bytes(value.data)
        except InvalidData:
            continue  # as authorisation does: what cannot be read gives nobody a right
        if AdminPermission.ADD_HANDLE in admin.permissions:
            found.append(Admin(admin.administrator))
    return found


# Transferring


def has_owner(held: Held, owner: Admin) -> bool:
    """Whether a record is what it would be if it were handed over."""
    return ascending(with_owner(held, owner)) == ascending(held.values)


def handed_over(context: Context, held: Held, owner: Admin) -> Sequence[Value] | None:
    """The values of a record with its new owner, if whoever asks may give it one; None if it has that one already."""
    if has_owner(held, owner):
        return None
    values = with_owner(held, owner)
    context.demand(demand_transfer(held, values))
    return compose(context, held, values)


def demand_transfer(held: Held, values: Sequence[Value]) -> Demand:
    """The permissions that each single change of administrators needs; never none, so that nobody is let in."""
    needed = Differences.between(held.values, values).permissions or addition(Value(1, HS_ADMIN, b""))
    return permissions.on_record(f"transfer {shown(held.handle)}", needed, held.handle, Word.TRANSFER)


def with_owner(held: Held, owner: Admin) -> tuple[Value, ...]:
    """A record whose only administrator is the owner, and whose only owner that is where the policy tells them apart.

    The value takes the place of the first administrator, with its life and who may read it.
    """
    former = [value for value in held.values if is_admin(value)]
    rest = [value for value in held.values if not is_admin(value)]
    admins = [replace(former[0], data=owner.to_bytes())] if former else administrators(rest, held.policy, [owner])
    return (*_with_owner_value(held, rest, owner.administrator.handle), *admins)


def _with_owner_value(held: Held, values: Sequence[Value], owner: str) -> Sequence[Value]:
    """Where owners have a type of their own: the new one in the place of the others, unless it is the creator."""
    policy = held.policy
    if not (policy.authority and policy.owner_type) or held.state is State.RESERVED:
        return values
    former = of_type(values, policy.owner_type)
    others = [value for value in values if value not in former]
    creator = first_readable(of_type(values, policy.creator_type), read_stored_party)
    party = Handle.keepable(owner)
    if creator is not None and name_key(policy, held.handle, creator) == name_key(policy, held.handle, party):
        return others
    if former:
        return [*others, replace(former[0], data=owner.encode())]
    return with_value(others, policy, policy.owner_type, owner)


# Linking


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction of a link."""

    held: Held
    to: Held
    key: str
    """The policy's key for the type of the value."""
    many: bool
    """Whether a record may have several links of the type."""

    @property
    def type(self) -> str:
        """The type of the value, by the policy of the record that holds it."""
        type_: str = getattr(self.held.policy, self.key)
        return type_


def _linkable(context: Context, one: Handle, other: Handle) -> tuple[Held, Held]:
    """Two records of this server, for whose administrators somebody acts."""
    found = []
    for handle in (one, other):
        held = held_for(context, handle, "link", addition(Value.text(1, "URL", "")), Word.UPDATE)
        if held.state is State.RESERVED:
            raise still_reserved(held)
        if held.state is State.TOMBSTONE:
            reason = f"{shown(handle)} is a tombstone, and leads nowhere but to its replacement"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "link the replacement", "S8")
        found.append(held)
    if found[0].key == found[1].key:
        reason = f"{shown(one)} cannot be linked with itself"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "name two handles", "S3")
    return found[0], found[1]


def _linking(context: Context, ways: tuple[_Way, _Way]) -> Plan[Linked]:
    """The values that are missing, in one commit."""
    drafts: list[Draft] = []
    for way in ways:
        held, policy = way.held, way.held.policy
        present = of_type(held.values, way.type)
        if any(_leads_to(context, value, way.to) for value in present):
            continue
        if present and not way.many:
            raise _linked_otherwise(held, policy, way.key, present[0])
        values = compose(context, held, with_value(held.values, policy, way.type, str(way.to.handle)))
        drafts.append(context.draft(held, Action.UPDATE, values, held.state))
    handles = (ways[0].held.handle, ways[1].held.handle)
    return Plan(lambda seq: Linked(handles, seq), tuple(drafts), reason=context.reasons[-1])


def _leads_to(context: Context, value: Value, to: Held) -> bool:
    target = first_readable([value], read_stored_party)
    return target is not None and context.facts.held(target).key == to.key


def _linked_otherwise(held: Held, policy: Policy, key: str, value: Value) -> Refused:
    reason = f"value {value.index} of {shown(held.asked)} leads to another handle already, and there is one such link"
    advice = f"remove that value first; the policy of this namespace says: {policy.line(key)}"
    return Refused(ResponseCode.INVALID_VALUE, reason, advice, policy.line(key))
