"""Transfer of a record to a new owner, and links between records. `jobs.transfer` transfers many records.

A transfer replaces all administrators of a record by one, a key or group written `INDEX:HANDLE`, so that the
permissions of the earlier ones end. Creator and date of creation stay (A8).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perseid.ledger.log.entry import Action, Draft, State
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.admin import Admin, AdminPermission
from perseid.records.data_types import interpret_as
from perseid.records.record import Permission, Value, ValueRef, ascending
from perseid.records.types import HS_ADMIN
from perseid.registry.access import permissions
from perseid.registry.access.permissions import Differences, Requirement, display_name, is_admin, permission_to_add
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context, Deferrable, Plan, admin_values, not_found, still_reserved
from perseid.registry.identity import KeyIdentity, effective_identity
from perseid.registry.policy.authority import first_valid, name_key, parse_stored_party, values_of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.results import ChangeResult, InvalidRequest, Refused, StateConflict
from perseid.registry.snapshot import StoredRecord
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from .composition import compose
from .lifecycle import add_value, get_record_for
from .records import plan_change, require_identity


@dataclass(frozen=True, slots=True)
class Transfer(Deferrable):
    """Transfer one record to a new owner."""

    handle: Handle
    to: ValueRef

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """Require the permissions to change the administrators: MODIFY_ADMIN, and REMOVE_ADMIN if there are several."""
        stored = context.get_hosted(self.handle)
        require_identity(context, f"transfer {display_name(self.handle)}")
        owner = parse_owner(self.to)
        if not stored.exists:
            raise not_found(stored)
        # Once, because the search per request is limited; and before anything about the new owner's record is revealed.
        decision = context.check(transfer_requirement(stored, replace_owner(stored, owner)))
        if not (decision.allowed or stored.is_public or context.is_allowed(permissions.read(stored.handle))):
            raise not_found(stored)
        if has_owner(stored, owner):
            check_owner(context, self.to)
            return Plan(
                lambda _: ChangeResult(stored.handle, stored.seq),
                reason=f"{display_name(stored.requested)} already has this owner",
            )
        if not decision.allowed:
            raise Refused.from_decision(decision)
        context.reasons.append(decision.reason)
        owner = check_owner(context, self.to)
        return plan_change(
            context, stored, Action.UPDATE, compose(context, stored, replace_owner(stored, owner)), stored.state
        )


@dataclass(frozen=True, slots=True)
class LinkResult:
    """Two linked handles."""

    handles: tuple[Handle, Handle]
    seq: int
    """The first entry of the link; 0 if it existed already."""


@dataclass(frozen=True, slots=True)
class LinkVersion(Deferrable):
    """Link a work, whose handle resolves to the latest version, with one fixed version, an expression (S3)."""

    work: Handle
    expression: Handle

    def decide(self, context: Context) -> Plan[LinkResult]:
        """ADD_VALUE on both. A work has many expressions, an expression has one work."""
        work, expression = _linkable(context, self.work, self.expression)
        directions = (
            _LinkDirection(work, expression, "expression_type", many=True),
            _LinkDirection(expression, work, "work_type", many=False),
        )
        return _plan_links(context, directions)


@dataclass(frozen=True, slots=True)
class LinkMetadata(Deferrable):
    """Link the handle of an object with that of its metadata record (S12)."""

    resource: Handle
    metadata: Handle

    def decide(self, context: Context) -> Plan[LinkResult]:
        """ADD_VALUE on both. Each has one link to the other."""
        resource, metadata = _linkable(context, self.resource, self.metadata)
        directions = (
            _LinkDirection(resource, metadata, "metadata_type", many=False),
            _LinkDirection(metadata, resource, "object_type", many=False),
        )
        return _plan_links(context, directions)


# Owners


def parse_owner(owner: ValueRef) -> Admin:
    """An administrator with all permissions; refused if the handle is invalid."""
    try:
        Handle.parse(owner.handle)
    except InvalidName as problem:
        reason = f"{display_name(str(owner))} is not a valid owner: {problem}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_OWNER(), problem.rule) from problem
    return Admin(owner)


def check_owner(context: Context, owner: ValueRef) -> Admin:
    """The same; refused also if the key or group does not exist. The caller must have permission to transfer.

    A record that the caller cannot see is treated as missing.
    """
    admin = parse_owner(owner)
    handle = Handle.parse(owner.handle)
    if context.snapshot.is_responsible(handle):
        stored = context.snapshot.stored(handle)
        is_known = stored.exists and (stored.is_public or may_know(context, stored))
        missing = "" if is_known else f"handle {display_name(handle)} does not exist"
        if is_known and owner.index and owner.index not in {value.index for value in stored.values}:
            missing = f"{display_name(handle)} has no value with index {owner.index}"
        if missing:
            reason = f"{display_name(str(owner))} is not a valid owner: {missing}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_EXISTING_OWNER(), "S1")
    return admin


def may_know(context: Context, stored: StoredRecord) -> bool:
    """Whether the caller can know of a record that is not public: its readers, and the holder of a key in it."""
    identity = effective_identity(context.identity)
    if isinstance(identity, KeyIdentity) and fold(identity.reference.handle) == fold(str(stored.handle)):
        return True
    return any(
        context.is_allowed(permissions.read(stored.handle, scope))
        for scope in (Scope.TRANSFER, Scope.MINT, Scope.CREATE)
    )


def find_minters(context: Context, prefix: str) -> list[Admin]:
    """The identities that can create handles under a prefix, as owners of handles without another owner."""
    values = context.snapshot.stored(Handle(PREFIX_OF_PREFIXES, prefix)).values
    admins = filter(None, (interpret_as(value, Admin) for value in values))  # invalid data grants nothing
    return [Admin(admin.administrator) for admin in admins if AdminPermission.ADD_HANDLE in admin.permissions]


# Transfer


def has_owner(stored: StoredRecord, owner: Admin) -> bool:
    """Whether a transfer to this owner would change nothing."""
    return ascending(replace_owner(stored, owner)) == ascending(stored.values)


def transfer_values(context: Context, stored: StoredRecord, owner: Admin) -> Sequence[Value] | None:
    """The values of a record with its new owner, if the caller can transfer it; None if nothing changes."""
    if has_owner(stored, owner):
        return None
    values = replace_owner(stored, owner)
    context.require(transfer_requirement(stored, values))
    return compose(context, stored, values)


def transfer_requirement(stored: StoredRecord, values: Sequence[Value]) -> Requirement:
    """The permissions to change the administrators; never empty, so that nobody is let in by mistake."""
    needed = Differences.between(stored.values, values).permissions or permission_to_add(Value(1, HS_ADMIN, b""))
    return permissions.on_record(f"transfer {display_name(stored.handle)}", needed, stored.handle, Scope.TRANSFER)


def replace_owner(stored: StoredRecord, owner: Admin) -> tuple[Value, ...]:
    """The values with the owner as only administrator, and as only owner value if the policy has a type for it.

    The value takes the place of the first administrator, with its TTL and permissions; owners are public where the
    policy requires authority metadata (A2).
    """
    former = [value for value in stored.values if is_admin(value)]
    rest = [value for value in stored.values if not is_admin(value)]
    admins = [replace(former[0], data=owner.to_bytes())] if former else admin_values(rest, stored.policy, [owner])
    if stored.policy.authority:
        admins = [replace(value, permissions=value.permissions | Permission.PUBLIC_READ) for value in admins]
    return (*_replace_owner_value(stored, rest, owner.administrator.handle), *admins)


def _replace_owner_value(stored: StoredRecord, values: Sequence[Value], owner: str) -> Sequence[Value]:
    """Replace the owner values, if the policy has a type for them; none is needed if the owner is the creator."""
    policy = stored.policy
    if not (policy.authority and policy.owner_type) or stored.state is State.RESERVED:
        return values
    former = values_of_exact_type(values, policy.owner_type)
    others = [value for value in values if value not in former]
    creator = first_valid(values_of_exact_type(values, policy.creator_type), parse_stored_party)
    party = Handle.parse_lenient(owner)
    if creator is not None and name_key(policy, stored.handle, creator) == name_key(policy, stored.handle, party):
        return others
    if former:
        return [*others, replace(former[0], data=owner.encode())]
    return add_value(others, policy, policy.owner_type, owner)


# Links


@dataclass(frozen=True, slots=True)
class _LinkDirection:
    """One direction of a link."""

    stored: StoredRecord
    to: StoredRecord
    key: str
    """The policy's key for the type of the value."""
    many: bool
    """Whether a record can have several links of the type."""

    @property
    def type(self) -> str:
        """The type of the value, by the policy of the record that contains it."""
        type_: str = getattr(self.stored.policy, self.key)
        return type_


def _linkable(context: Context, one: Handle, other: Handle) -> tuple[StoredRecord, StoredRecord]:
    """Two records that the caller can link."""
    records = []
    for handle in (one, other):
        stored = get_record_for(context, handle, "link", permission_to_add(Value.text(1, "URL", "")), Scope.UPDATE)
        if stored.state is State.RESERVED:
            raise still_reserved(stored)
        if stored.state is State.TOMBSTONE:
            reason = f"Handle {display_name(handle)} is a tombstone and cannot be linked"
            raise StateConflict(reason, AdviceKind.LINK_REPLACEMENT(), "S8")
        records.append(stored)
    if records[0].key == records[1].key:
        reason = f"Handle {display_name(one)} cannot be linked with itself"
        raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_TWO_HANDLES(), "S3")
    return records[0], records[1]


def _plan_links(context: Context, directions: tuple[_LinkDirection, _LinkDirection]) -> Plan[LinkResult]:
    """Add the missing values, in one commit."""
    drafts: list[Draft] = []
    for direction in directions:
        stored, policy = direction.stored, direction.stored.policy
        present = values_of_exact_type(stored.values, direction.type)
        if any(_links_to(context, value, direction.to) for value in present):
            continue
        if present and not direction.many:
            raise _already_linked(stored, policy, direction.key, present[0])
        values = compose(context, stored, add_value(stored.values, policy, direction.type, str(direction.to.handle)))
        drafts.append(context.draft(stored, Action.UPDATE, values, stored.state))
    handles = (directions[0].stored.handle, directions[1].stored.handle)
    return Plan(lambda seq: LinkResult(handles, seq), tuple(drafts), reason=context.reasons[-1])


def _links_to(context: Context, value: Value, to: StoredRecord) -> bool:
    target = first_valid([value], parse_stored_party)
    return target is not None and context.snapshot.stored(target).key == to.key


def _already_linked(stored: StoredRecord, policy: Policy, key: str, value: Value) -> Refused:
    name, line = display_name(stored.requested), policy.line(key)
    reason = (
        f"{name} is already linked to another handle, in value {value.index}; the policy of this namespace says: {line}"
    )
    return StateConflict(reason, AdviceKind.REMOVE_LINK(), line)
