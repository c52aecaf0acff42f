"""The permissions that each command requires, and on which record.

    create                    ADD_HANDLE on the prefix handle `0.NA/<prefix>`
    create a derived prefix   ADD_NA on the prefix handle of its parent
    delete                    DELETE_HANDLE (DELETE_NA is not consulted, as in deployed servers)
    add                       ADD_ADMIN for HS_ADMIN values, ADD_VALUE for others
    remove                    REMOVE_ADMIN, REMOVE_VALUE
    modify                    MODIFY_ADMIN, MODIFY_VALUE; REMOVE_ADMIN + MODIFY_VALUE if HS_ADMIN becomes something
                              else, MODIFY_VALUE + ADD_ADMIN the other way; nothing if everybody can write the value
    replace the whole record  what its differences require; or ADD_ADMIN; or DELETE_HANDLE with the right to create
    read private values       READ_VALUE
    list                      LIST_HANDLES on the prefix handle
    run the server            an entry in the configuration

Nobody meets a requirement without alternatives, which unknown operations get.

Each requirement also names the scopes that a bearer token needs (see `scopes`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Final, Self, TypeAlias

from perseid.names.characters import fold
from perseid.names.errors import MAX_QUOTED_LENGTH, quote_text
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.names.prefixes import parent_prefix
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission
from perseid.records.record import Permission, Value
from perseid.records.types import HS_ADMIN, has_type
from perseid.schema.namespaces import Scope
from perseid.wire.codes import OpCode

from .scopes import NO_TOKEN, RequiredScope, scopes_for

_NO_PERMISSIONS: Final = AdminPermission(0)
Modification: TypeAlias = tuple[Value, Value]
"""The old value and the new one."""


class Role(Enum):
    """A list of administrators in the configuration; the value is the name of the setting."""

    SERVER = "server_admins"
    HOME_ONLY = "home_only_admins"
    STATUS = "status_admins"
    BACKUP = "backup_admins"
    REPLICATION = "replication_admins"


@dataclass(frozen=True, slots=True)
class HasPermissions:
    """Permissions that one HS_ADMIN value of a record must grant, all together."""

    permissions: AdminPermission
    record: str
    """The handle whose administrators are checked."""
    on_prefix: bool = False
    """Whether it is a permission over the handles of a prefix, which the setting `allow_na_admins` can switch off."""

    def __post_init__(self) -> None:
        if not 0 < self.permissions <= ALL_PERMISSIONS:
            raise ValueError(f"{int(self.permissions):#x} is not a set of admin permissions")


@dataclass(frozen=True, slots=True)
class HasRole:
    """An entry in the configuration, under at least one of these roles."""

    roles: tuple[Role, ...]


Criterion: TypeAlias = HasPermissions | HasRole


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a command requires. A caller who meets all criteria of one alternative is allowed."""

    action: str
    """What the caller wants to do, as it follows "can" or "cannot"."""
    alternatives: tuple[tuple[Criterion, ...], ...] = ()
    """If there are none, nobody is allowed. Every authenticated caller meets an alternative without criteria."""
    public: bool = False
    """Whether anonymous callers are allowed."""
    required_scope: RequiredScope = NO_TOKEN
    """What the scope of a bearer token must include."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between a record and its new values, without timestamps: the server sets those."""

    added: tuple[Value, ...]
    removed: tuple[Value, ...]
    modified: tuple[Modification, ...]
    kept: tuple[Value, ...]
    """Unchanged values, with their timestamps."""

    @classmethod
    def between(cls, old: Iterable[Value], new: Sequence[Value]) -> Self:
        """Compare by index."""
        before = {value.index: value for value in old}
        after = {value.index for value in new}
        pairs = [(before[value.index], value) for value in new if value.index in before]
        same = [former.with_timestamp(0) == value.with_timestamp(0) for former, value in pairs]
        return cls(
            added=tuple([value for value in new if value.index not in before]),
            removed=tuple([value for value in before.values() if value.index not in after]),
            modified=tuple([pair for pair, equal in zip(pairs, same, strict=True) if not equal]),
            kept=tuple([former for (former, _), equal in zip(pairs, same, strict=True) if equal]),
        )

    @property
    def permissions(self) -> AdminPermission:
        """The permissions that all differences require together."""
        needed = [permission_to_add(value) for value in self.added] + [
            permission_to_remove(value) for value in self.removed
        ]
        return _union([*needed, *[permission_to_modify(old, new) for old, new in self.modified]])

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that a token needs for them."""
        return scopes_for([*self.added, *self.removed, *[value for pair in self.modified for value in pair]])


def is_admin(value: Value) -> bool:
    """Whether a value names an administrator: HS_ADMIN or a subtype, in any case."""
    return has_type(value.type, HS_ADMIN)


def permission_to_add(value: Value) -> AdminPermission:
    """The permission to add a value."""
    return AdminPermission.ADD_ADMIN if is_admin(value) else AdminPermission.ADD_VALUE


def permission_to_remove(value: Value) -> AdminPermission:
    """The permission to remove a value."""
    return AdminPermission.REMOVE_ADMIN if is_admin(value) else AdminPermission.REMOVE_VALUE


def permission_to_modify(old: Value, new: Value) -> AdminPermission:
    """The permission to replace a value; none if everybody can write the old one."""
    match is_admin(old), is_admin(new):
        case True, True:
            return AdminPermission.MODIFY_ADMIN
        case True, False:
            return AdminPermission.REMOVE_ADMIN | AdminPermission.MODIFY_VALUE
        case False, True:
            # Also if everybody can write the value: otherwise everybody could become an administrator.
            return AdminPermission.MODIFY_VALUE | AdminPermission.ADD_ADMIN
        case _:
            return _NO_PERMISSIONS if Permission.PUBLIC_WRITE in old.permissions else AdminPermission.MODIFY_VALUE


def create(handle: Handle) -> Requirement:
    """The requirement to create a handle; the administrators in its new values are not consulted."""
    return Requirement(
        f"create {display_name(handle)}",
        ((_create_permission(handle),),),
        required_scope=RequiredScope.of(handle, Scope.CREATE),
    )


def overwrite(handle: Handle, old: Iterable[Value], new: Sequence[Value]) -> Requirement:
    """The requirement for CREATE with OW on an existing handle: any of three alternatives.

    A record without differences needs no permission. Whoever adds an administrator can become one, so ADD_ADMIN alone
    is enough (the second alternative) and is not combined with other permissions.
    """
    name = str(handle)
    action = f"replace {display_name(handle)}"
    differences = Differences.between(old, new)
    needed, required_scope = differences.permissions, RequiredScope.of(handle, *differences.scopes)
    if not needed:
        return Requirement(action, ((),), required_scope=required_scope)
    by_differences: tuple[tuple[Criterion, ...], ...] = ((HasPermissions(needed, name),),)
    if AdminPermission.ADD_ADMIN in needed:
        by_differences = ()
    by_adding_administrators = (HasPermissions(AdminPermission.ADD_ADMIN, name),)
    by_creating_again = (HasPermissions(AdminPermission.DELETE_HANDLE, name), _create_permission(handle))
    return Requirement(
        action, (*by_differences, by_adding_administrators, by_creating_again), required_scope=required_scope
    )


def delete(handle: Handle) -> Requirement:
    """The requirement to delete a handle with all its values."""
    return on_record(f"delete {display_name(handle)}", AdminPermission.DELETE_HANDLE, handle, Scope.DELETE)


def register(handle: Handle, values: Sequence[Value]) -> Requirement:
    """The requirement for the first values of a reserved handle: that of adding them."""
    return replace(add(handle, values), required_scope=RequiredScope.of(handle, Scope.CREATE))


def add(handle: Handle, values: Sequence[Value], existing: Iterable[Value] = ()) -> Requirement:
    """The requirement to add values. With OW, `existing` are the record's values; same indexes are replaced."""
    action = f"add values to {display_name(handle)}"
    if not values:
        return Requirement(action)
    indexes = {value.index for value in values}
    replaced = [value for value in existing if value.index in indexes]
    differences = Differences.between(replaced, values)
    needed, scopes = differences.permissions, differences.scopes
    return (
        on_record(action, needed, handle, *scopes)
        if needed
        else Requirement(action, ((),), required_scope=RequiredScope.of(handle, *scopes))
    )


def remove(handle: Handle, values: Sequence[Value]) -> Requirement:
    """The requirement to remove values."""
    needed = _union([permission_to_remove(value) for value in values])
    return on_record(f"remove values from {display_name(handle)}", needed, handle, *scopes_for(values))


def modify(handle: Handle, changes: Sequence[Modification]) -> Requirement:
    """The requirement for MODIFY_VALUE; none if everybody can write the values. See also `authorize_write`."""
    action = f"modify values of {display_name(handle)}"
    needed = _union([permission_to_modify(old, new) for old, new in changes])
    scopes = scopes_for([value for pair in changes for value in pair])
    if changes and not needed:
        return Requirement(action, public=True, required_scope=RequiredScope.of(handle, *scopes))
    return on_record(action, needed, handle, *scopes)


def read(handle: Handle, scope: Scope = Scope.READ) -> Requirement:
    """The requirement to read private values; with another scope, to know that there is such a record."""
    return on_record(f"read the private values of {display_name(handle)}", AdminPermission.READ_VALUE, handle, scope)


def list_handles(prefix: str) -> Requirement:
    """The requirement to list the handles of a prefix."""
    need = HasPermissions(AdminPermission.LIST_HANDLES, _prefix_handle(prefix), on_prefix=True)
    return Requirement(
        f"list the handles of {display_name(prefix)}",
        ((need,),),
        required_scope=RequiredScope.for_namespace(prefix, Scope.FIND),
    )


def status() -> Requirement:
    """The requirement for `0.SITE/status`."""
    roles = (Role.SERVER, Role.STATUS)
    return Requirement(
        "see the server's status", ((HasRole(roles),),), required_scope=RequiredScope.for_server(Scope.ADMIN)
    )


def server_operation(operation: OpCode, prefix: str = "") -> Requirement:
    """The requirement for an operation on the server itself, or on a prefix as a whole."""
    known = _SERVER_OPERATIONS.get(operation)
    if known is None:
        return Requirement(f"run {operation}")
    action, roles, scope = known
    return Requirement(action, ((HasRole(roles),),), required_scope=RequiredScope.for_namespace(prefix, scope))


_SERVER_OPERATIONS: Final = MappingProxyType(
    {
        OpCode.HOME_NA: ("home a prefix", (Role.SERVER, Role.HOME_ONLY), Scope.NAMESPACES),
        OpCode.UNHOME_NA: ("unhome a prefix", (Role.SERVER, Role.HOME_ONLY), Scope.NAMESPACES),
        OpCode.LIST_HOMED_NAS: ("list the homed prefixes", (Role.SERVER, Role.HOME_ONLY), Scope.FIND),
        OpCode.RETRIEVE_TXN_LOG: ("follow the transactions", (Role.SERVER, Role.REPLICATION), Scope.ADMIN),
        OpCode.DUMP_HANDLES: ("copy all handles", (Role.SERVER, Role.REPLICATION), Scope.ADMIN),
        OpCode.BACKUP_SERVER: ("back up the server", (Role.SERVER, Role.BACKUP), Scope.ADMIN),
    }
)


def display_name(name: Handle | str) -> str:
    """The name as it is; quoted, truncated and escaped if it is long or not printable."""
    text = str(name)
    return text if len(text) <= MAX_QUOTED_LENGTH and text.isprintable() else quote_text(text)


def _create_permission(handle: Handle) -> HasPermissions:
    """ADD_HANDLE on the prefix handle, or ADD_NA on that of the parent for a derived prefix."""
    above = parent_prefix(handle.suffix) if handle.is_prefix_handle else None
    if above is None:
        return HasPermissions(AdminPermission.ADD_HANDLE, _prefix_handle(handle.prefix), on_prefix=True)
    return HasPermissions(AdminPermission.ADD_NA, _prefix_handle(above), on_prefix=True)


def _prefix_handle(prefix: str) -> str:
    return f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"


def on_record(action: str, needed: AdminPermission, handle: Handle, *scopes: Scope) -> Requirement:
    """A requirement on the administrators of the handle; nobody meets it if no permission is needed."""
    needs = ((HasPermissions(needed, str(handle)),),) if needed else ()
    return Requirement(action, needs, required_scope=RequiredScope.of(handle, *scopes))


def _union(permissions: Iterable[AdminPermission]) -> AdminPermission:
    return reduce(or_, permissions, _NO_PERMISSIONS)
