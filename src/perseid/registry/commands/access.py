"""Grant and revoke roles and permissions: see `access.roles` for the values that these commands write.

Nobody can grant more than they have: all permissions that are granted, and those to change the values, must come from
one HS_ADMIN value that names the caller. Granting what somebody has, or revoking what they do not have, changes
nothing. Members are never added to a group that has other permissions than those of the role.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from perseid.ledger.log.entry import Action, Draft
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.names.suggest import did_you_mean, find_candidates
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.data_types import interpret_as
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_VLIST, has_type
from perseid.registry.access import permissions
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS
from perseid.registry.access.permissions import Differences, HasPermissions, RequiredScope, Requirement, display_name
from perseid.registry.access.roles import (
    KEY_INDEX,
    NO_PERMISSIONS,
    ROLES,
    Rights,
    is_group,
    is_key,
    is_role_group,
    own_indexes,
)
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.context import Context, Deferrable, Plan, admin_values, not_found, not_hosted
from perseid.registry.identity import handle_key
from perseid.registry.policy.policy import Audience, Policy
from perseid.registry.results import InvalidRequest, PrefixNotHosted, Refused, StateConflict
from perseid.registry.snapshot import StoredRecord
from perseid.schema.access import AccessRole
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from .composition import compose
from .namespaces import check_prefix, policy_draft
from .records import no_administrator_left, plan_change, require_changeable, require_identity, require_record
from .transfer import may_know


@dataclass(frozen=True, slots=True)
class AccessChange:
    """The result of granting or revoking."""

    on: str
    """The prefix or handle."""
    identity: ValueRef
    roles: tuple[AccessRole, ...]
    handles: tuple[str, ...]
    """The handles whose records change."""
    policy: bool
    """Whether the policy changes, so that new records name the groups."""
    seq: int
    """The first entry; 0 if nothing changed."""

    @property
    def is_changed(self) -> bool:
        """Whether anything changed."""
        return bool(self.handles or self.policy)


@dataclass(frozen=True, slots=True)
class Grant(Deferrable):
    """Give an identity or group roles or permissions on a prefix, or in a record."""

    identity: ValueRef
    """The key or group; index 0 means the only key of the handle."""
    rights: tuple[str, ...]
    """Names of roles and permissions."""
    on: str
    """A prefix, or a handle."""

    def decide(self, context: Context) -> Plan[AccessChange]:
        """Require ADD_ADMIN in the record, or MODIFY_ADMIN on the prefix, and everything that is granted."""
        rights = Rights.parse(self.rights)
        rights.check(self.on)
        require_identity(context, f"grant rights on {display_name(self.on)}")
        return self._in_record(context, rights) if "/" in self.on else self._on_prefix(context, rights)

    def _in_record(self, context: Context, rights: Rights) -> Plan[AccessChange]:
        stored = _get_record(context, self.on)
        granted = rights.in_record()
        require_rights(context, stored, AdminPermission.ADD_ADMIN | granted)
        identity = find_identity(context, self.identity)
        values = add_administrator(stored.values, stored.policy, identity, granted)
        require_rights(context, stored, Differences.between(stored.values, values).permissions | granted)
        return _plan(context, stored, values, AccessChange(str(stored.handle), identity, rights.roles, (), False, 0))

    def _on_prefix(self, context: Context, rights: Rights) -> Plan[AccessChange]:
        stored = get_prefix_handle(context, self.on)
        granted = rights.permissions
        for role in rights.roles:
            granted |= require_group(stored, role, may_be_missing=True) | (
                NO_PERMISSIONS if _is_owner(role) else ROLES[role].in_record
            )
        require_rights(context, stored, AdminPermission.MODIFY_ADMIN | granted, on_prefix=True)
        identity = find_identity(context, self.identity)
        values: Sequence[Value] = stored.values
        for role in rights.roles:
            values = _add_member(stored, values, role, identity)
        if rights.permissions:
            values = add_administrator(values, stored.policy, identity, rights.permissions)
        needed = Differences.between(stored.values, values).permissions | AdminPermission.MODIFY_ADMIN | granted
        require_rights(context, stored, needed, on_prefix=True)
        policy = self._policy_drafts(context, values, rights.roles)
        return _plan(context, stored, values, AccessChange(self.on, identity, rights.roles, (), False, 0), policy)

    def _policy_drafts(
        self, context: Context, values: Sequence[Value], roles: Sequence[AccessRole]
    ) -> tuple[Draft, ...]:
        """The policy whose default administrators include the groups, so that new records name them.

        Where every user can mint and the policy names no administrators, they own what they mint, and it stays so.
        """
        policy = context.snapshot.policy(self.on)
        if not policy.default_administrators and policy.who_may_mint is Audience.AUTHENTICATED:
            return ()
        named = {reference_key(admin.administrator) for admin in policy.administrators(self.on)}
        if not named and _find_value(values, ROLES[AccessRole.OWNER].group_index) is not None:
            roles = (AccessRole.OWNER, *roles)
        missing = {
            ROLES[role].default_administrator: None
            for role in roles
            if ROLES[role].in_record and reference_key(ROLES[role].group(self.on)) not in named
        }
        if not missing:
            return ()
        policy = replace(policy, default_administrators=(*policy.default_administrators, *missing))
        action = Action.CREATE if context.snapshot.policy_entry(self.on) is None else Action.UPDATE
        return (policy_draft(context, self.on, policy, action),)


@dataclass(frozen=True, slots=True)
class Revoke(Deferrable):
    """Take roles or permissions from an identity or group. The groups themselves stay."""

    identity: ValueRef
    """The key or group; index 0 means every key of the handle, and no group."""
    rights: tuple[str, ...]
    """Names of roles and permissions; everything if empty."""
    on: str
    """A prefix, or a handle."""

    def decide(self, context: Context) -> Plan[AccessChange]:
        """Require MODIFY_ADMIN, and what the differences require. An administrator must remain."""
        rights = Rights.parse(self.rights)
        is_all, is_record = rights == Rights(), "/" in self.on
        # Not all of these could be granted on a prefix, but its HS_ADMIN values can have them.
        revoked = rights.in_record() if is_record else rights.permissions
        require_identity(context, f"revoke rights on {display_name(self.on)}")
        stored = _get_record(context, self.on) if is_record else get_prefix_handle(context, self.on)
        values: list[Value] = []
        for value in stored.values:
            admin, group = interpret_as(value, Admin), interpret_as(value, ValueList)
            if admin is not None and self._matches(context, admin.administrator) and (is_all or revoked):
                left = NO_PERMISSIONS if is_all else admin.permissions & ~revoked
                values += [replace(value, data=replace(admin, permissions=left).to_bytes())] if left else []
            elif group is not None and not is_record and (is_all or value.index in _group_indexes(rights.roles)):
                members = tuple([member for member in group.entries if not self._matches(context, member)])
                values.append(value if members == group.entries else _with_members(value, members))
            else:
                values.append(value)
        needed = Differences.between(stored.values, values).permissions | AdminPermission.MODIFY_ADMIN
        require_rights(context, stored, needed, "revoke", on_prefix=not is_record)
        for role in () if is_record else rights.roles:
            require_group(stored, role, may_be_missing=True)
        if _has_administrator(stored, stored.values) and not _has_administrator(stored, values):
            raise no_administrator_left(stored)
        change = AccessChange(str(stored.handle) if is_record else self.on, self.identity, rights.roles, (), False, 0)
        return _plan(context, stored, values, change)

    def _matches(self, context: Context, reference: ValueRef) -> bool:
        """Whether a reference names the identity, in any spelling of its handle.

        In the record of a user, a group at the index of their own identity is in place of their key.
        """
        if not context.snapshot.is_same_record(reference.handle, self.identity.handle):
            return False
        if self.identity.index:
            return self.identity.index == reference.index
        values = context.snapshot.group(reference.handle) or ()
        value = _find_value(values, reference.index)
        if value is None or not is_group(value):
            return True
        name = Handle.for_lookup(reference.handle)
        is_prefix_handle = name is not None and name.is_prefix_handle
        return not is_prefix_handle and reference.index in own_indexes(reference.handle, values)


def get_prefix_handle(context: Context, prefix: str) -> StoredRecord:
    """The record of a prefix handle that is hosted here. Raises `Refused`."""
    check_prefix(prefix)
    if not context.snapshot.hosts_prefix(prefix):
        raise not_hosted(prefix)
    handle = Handle(PREFIX_OF_PREFIXES, fold(prefix))
    if not context.snapshot.is_responsible(handle):
        reason = f"Another service hosts {handle}, which names the administrators of the prefix"
        raise PrefixNotHosted(ResponseCode.SERVER_NOT_RESP, reason, AdviceKind.CHANGE_AT_HOST(handle=handle))
    stored = context.snapshot.stored(handle)
    if not stored.exists:
        raise not_found(stored)
    return stored


def find_identity(context: Context, identity: ValueRef) -> ValueRef:
    """The identity in the registered spelling, by which its holder authenticates, and with the index of its key.

    Refused if there is no such key or group. Another service may host it: that is not checked.
    """
    try:
        handle = Handle.parse(identity.handle)
    except InvalidName as problem:
        reason = f"{display_name(str(identity))} is not a valid identity: {problem}"
        raise InvalidRequest(
            ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_KEY_OR_GROUP(), problem.rule
        ) from problem
    if not context.snapshot.is_responsible(handle):
        if identity.index:
            return identity
        partition = context.snapshot.rules.partition
        other = "" if partition is None else partition.describe_other(handle)
        why = f"it belongs to {other}" if other else "another service hosts it"
        advice = AdviceKind.NAME_USUAL_KEY(key=f"{KEY_INDEX}:{handle}")
        raise _not_an_identity(identity, f"{why}, so its key must be named", advice)
    stored = context.snapshot.stored(handle)
    if not stored.exists or not (stored.is_public or may_know(context, stored)):
        meant = _find_similar_user(context, handle)
        why = f"handle {display_name(handle)} does not exist" + (f"; {did_you_mean(meant)}" if meant else "")
        raise _not_an_identity(identity, why, AdviceKind.ADD_USER(prefix=handle.prefix, name=handle.suffix))
    keys = [value.index for value in stored.values if is_key(value)]
    if not identity.index and len(keys) > 1:
        reason = f"{display_name(handle)} has {len(keys)} keys"
        advice = AdviceKind.NAME_KEY(keys=tuple([f"{index}:{stored.handle}" for index in keys]))
        raise Refused(ResponseCode.INVALID_VALUE, reason, advice)
    index = identity.index or next(iter(keys), 0)
    value = _find_value(stored.values, index)
    if value is None or not (is_key(value) or has_type(value.type, HS_VLIST)):
        raise _not_an_identity(identity, f"{display_name(handle)} has no {'key or group' if index else 'key'} there")
    return ValueRef(index, str(stored.handle))


MAX_SIMILAR_USERS: Final = 500
"""Similar handles that are looked up for one that does not exist: all within one typo of a short name."""


def _find_similar_user(context: Context, handle: Handle) -> str:
    """A user whose handle was probably meant, for callers who can list the prefix; empty if there is none."""
    if not context.is_allowed(permissions.list_handles(handle.prefix)):
        return ""
    case = context.snapshot.policy(handle.prefix).case
    for candidate in islice(find_candidates(str(handle), case=case), MAX_SIMILAR_USERS):
        if context.snapshot.is_responsible(candidate):
            stored = context.snapshot.stored(candidate)
            if stored.exists and any(map(is_key, stored.values)):
                return display_name(stored.handle)
    return ""


def reference_key(reference: ValueRef) -> tuple[str, int]:
    """What all spellings of a reference share."""
    return handle_key(reference.handle), reference.index


def _not_an_identity(identity: ValueRef, why: str, advice: Advice | None = None) -> Refused:
    name = str(identity) if identity.index else identity.handle
    reason = f"{display_name(name)} is not a valid identity: {why}"
    return Refused(ResponseCode.INVALID_VALUE, reason, advice or AdviceKind.NAME_KEY_OR_GROUP())


def _get_record(context: Context, on: str) -> StoredRecord:
    stored = context.get_for_update(Handle.parse_lenient(on))
    require_record(context, stored, Scope.TRANSFER)
    return stored


def require_rights(
    context: Context, stored: StoredRecord, needed: AdminPermission, verb: str = "grant", *, on_prefix: bool = False
) -> None:
    """Require all permissions in one HS_ADMIN value."""
    action = f"{verb} these rights on {display_name(stored.handle.suffix if on_prefix else stored.handle)}"
    criterion = HasPermissions(needed, str(stored.handle), on_prefix=on_prefix)
    context.require(
        Requirement(action, ((criterion,),), required_scope=RequiredScope.of(stored.handle, Scope.TRANSFER))
    )


def _plan(
    context: Context,
    stored: StoredRecord,
    values: Sequence[Value],
    change: AccessChange,
    policy_drafts: tuple[Draft, ...] = (),
) -> Plan[AccessChange]:
    """Change the record, and the policy, in one commit."""
    require_changeable(stored, values)
    drafts = plan_change(context, stored, Action.UPDATE, compose(context, stored, values)).drafts
    handles = tuple([draft.handle for draft in drafts])
    result: Callable[[int], AccessChange] = lambda seq: replace(  # noqa: E731
        change, handles=handles, policy=bool(policy_drafts), seq=seq
    )
    return Plan(result, (*drafts, *policy_drafts), reason=context.reasons[-1])


# Values


def _find_value(values: Sequence[Value], index: int) -> Value | None:
    return next((value for value in values if value.index == index), None)


def add_administrator(
    values: Sequence[Value], policy: Policy, identity: ValueRef, permissions: AdminPermission
) -> Sequence[Value]:
    """Add permissions to the HS_ADMIN value that names an identity, or add such a value."""
    for number, value in enumerate(values):
        admin = interpret_as(value, Admin)
        if admin is not None and reference_key(admin.administrator) == reference_key(identity):
            data = replace(admin, permissions=admin.permissions | permissions).to_bytes()
            return (*values[:number], replace(value, data=data), *values[number + 1 :])
    return (*values, *admin_values(values, policy, [Admin(identity, permissions)]))


def _add_member(stored: StoredRecord, values: Sequence[Value], role: AccessRole, identity: ValueRef) -> Sequence[Value]:
    """Add an identity to the group of a role; the group is created if there is none."""
    index = ROLES[role].group_index
    value = _find_value(values, index)
    group = None if value is None else interpret_as(value, ValueList)
    if value is None or group is None:
        data = ValueList((identity,)).to_bytes()
        values = (*values, Value(index, HS_VLIST, data, ttl=stored.policy.default_ttl))
        return add_administrator(values, stored.policy, ValueRef(index, str(stored.handle)), ROLES[role].on_prefix)
    if reference_key(identity) in map(reference_key, group.entries):
        return values
    changed = _with_members(value, (*group.entries, identity))
    return [changed if each.index == index else each for each in values]


def _with_members(value: Value, members: tuple[ValueRef, ...]) -> Value:
    return replace(value, data=ValueList(members).to_bytes())


def require_group(stored: StoredRecord, role: AccessRole, *, may_be_missing: bool = False) -> AdminPermission:
    """The permissions on the prefix of the group of a role; refused if its index is used for something else."""
    its = ROLES[role]
    value = _find_value(stored.values, its.group_index)
    found = _permissions_of(stored, its.group_index)
    if value is None and not found:
        if may_be_missing:
            return its.on_prefix
        reason = f"Nobody has the role {role} on {display_name(stored.handle.suffix)} yet"
        raise StateConflict(reason, AdviceKind.GRANT_ROLE())
    is_list = value is not None and interpret_as(value, ValueList) is not None
    if not (is_list and is_role_group(role, found)):
        reason = f"Value {its.group_index} of {stored.handle} is not the group of the role {role}"
        raise StateConflict(reason, AdviceKind.MOVE_VALUE(index=its.group_index, handle=stored.handle))
    return found


def _permissions_of(stored: StoredRecord, index: int) -> AdminPermission:
    """The permissions of all HS_ADMIN values that name a group of the same record."""
    key = reference_key(ValueRef(index, str(stored.handle)))
    found = NO_PERMISSIONS
    for admin in filter(None, (interpret_as(value, Admin) for value in stored.values)):
        if reference_key(admin.administrator) == key:
            found |= admin.permissions
    return found


def _is_owner(role: AccessRole) -> bool:
    return role is AccessRole.OWNER


def _group_indexes(roles: Sequence[AccessRole]) -> set[int]:
    return {ROLES[role].group_index for role in roles}


def _has_administrator(stored: StoredRecord, values: Sequence[Value]) -> bool:
    """Whether somebody can add administrators, except through an empty group of the same record."""
    own = handle_key(str(stored.handle))
    groups = {value.index: interpret_as(value, ValueList) for value in values if has_type(value.type, HS_VLIST)}
    empty = {index for index, group in groups.items() if group is None or not group.entries}
    admins = filter(None, (interpret_as(value, Admin) for value in values))
    return any(
        AdminPermission.ADD_ADMIN in admin.permissions
        and not (handle_key(admin.administrator.handle) == own and admin.administrator.index in empty)
        for admin in admins
    )


def has_active_administrator(context: Context, handle: Handle, user: StoredRecord, values: Sequence[Value]) -> bool:
    """Whether somebody with a key can add administrators to a record, if the record of a user has these values.

    An identity on another server counts, and so does what is beyond the limits of a search.
    """
    snapshot = context.snapshot

    def get_values(name: str) -> Sequence[Value] | None:
        return values if snapshot.is_same_record(name, str(user.handle)) else snapshot.group(name)

    admins = filter(None, (interpret_as(value, Admin) for value in get_values(str(handle)) or ()))
    level = [admin.administrator for admin in admins if AdminPermission.ADD_ADMIN in admin.permissions]
    seen: set[tuple[str, int]] = set()
    while level:
        reference = level.pop()
        if reference_key(reference) in seen:
            continue
        seen.add(reference_key(reference))
        name = Handle.for_lookup(reference.handle)
        if len(seen) > MAX_GROUP_LOOKUPS or (name is not None and not snapshot.is_responsible(name)):
            return True
        named = [value for value in get_values(reference.handle) or () if reference.index in (0, value.index)]
        if any(map(is_key, named)):
            return True
        groups = filter(None, (interpret_as(value, ValueList) for value in named if reference.index))
        level += [member for group in groups for member in group.entries]
    return False
