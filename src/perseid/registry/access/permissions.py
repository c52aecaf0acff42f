"""What each operation demands of whoever asks for it: which permissions, and on which record.

    create                    ADD_HANDLE on the prefix handle `0.NA/<prefix>`
    create a derived prefix   ADD_NA on the prefix handle of its parent
    delete                    DELETE_HANDLE (DELETE_NA is not consulted, as in deployed servers)
    add                       ADD_ADMIN for HS_ADMIN values, ADD_VALUE for others
    remove                    REMOVE_ADMIN, REMOVE_VALUE
    modify                    MODIFY_ADMIN, MODIFY_VALUE; REMOVE_ADMIN + MODIFY_VALUE if HS_ADMIN becomes something
                              else, MODIFY_VALUE + ADD_ADMIN the other way; nothing if everybody may write the value
    replace the whole record  what its differences need; or ADD_ADMIN; or DELETE_HANDLE with the right to create
    read private values       READ_VALUE
    list                      LIST_HANDLES on the prefix handle
    run the server            to be listed in the configuration

A demand without alternatives is met by nobody. That is what an operation gets that is not known here.

Each demand also says what a bearer token must be good for to meet it: its reach (see `scopes`).
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
from perseid.names.prefixes import parent
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission
from perseid.records.types import HS_ADMIN, has_type
from perseid.records.value import Permission, Value
from perseid.wire.codes import OpCode

from .scopes import NO_TOKEN, RequiredScope, Scope, scopes_for

_NO_PERMISSIONS: Final = AdminPermission(0)
Modification: TypeAlias = tuple[Value, Value]
"""A value as it is, and as it shall be."""


class Role(Enum):
    """A list of administrators in the configuration; the value is the name of the setting."""

    SERVER = "server_admins"
    HOME_ONLY = "home_only_admins"
    STATUS = "status_admins"
    BACKUP = "backup_admins"
    REPLICATION = "replication_admins"


@dataclass(frozen=True, slots=True)
class HasPermissions:
    """Permissions that one HS_ADMIN value of a record has to give, all together."""

    permissions: AdminPermission
    record: str
    """The handle whose administrators count."""
    on_prefix: bool = False
    """Whether it is a right over the handles of a prefix, which the setting `allow_na_admins` can switch off."""

    def __post_init__(self) -> None:
        if not 0 < self.permissions <= ALL_PERMISSIONS:
            raise ValueError(f"{int(self.permissions):#x} are not permissions that somebody can need")


@dataclass(frozen=True, slots=True)
class HasRole:
    """To be listed in the configuration, under at least one of these roles."""

    roles: tuple[Role, ...]


Criterion: TypeAlias = HasPermissions | HasRole


@dataclass(frozen=True, slots=True)
class Requirement:
    """What an operation demands. Whoever meets all requirements of one alternative may do it."""

    action: str
    """What is to be done, for people; what follows "may" or "may not"."""
    alternatives: tuple[tuple[Criterion, ...], ...] = ()
    """Without any, nobody may. An alternative without requirements is met by everybody who is known."""
    public: bool = False
    """Whether even the unknown may."""
    required_scope: RequiredScope = NO_TOKEN
    """What a bearer token must be good for."""


@dataclass(frozen=True, slots=True)
class Differences:
    """How a record differs from what it shall be. Timestamps do not count: the server sets them."""

    added: tuple[Value, ...]
    removed: tuple[Value, ...]
    modified: tuple[Modification, ...]
    kept: tuple[Value, ...]
    """Values that do not change, as they are: they keep their timestamps."""

    @classmethod
    def between(cls, old: Iterable[Value], new: Sequence[Value]) -> Self:
        """Compare index by index."""
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
        """What the differences need, taken together."""
        needed = [permission_to_add(value) for value in self.added] + [
            permission_to_remove(value) for value in self.removed
        ]
        return _union([*needed, *[permission_to_modify(old, new) for old, new in self.modified]])

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The words that a token needs for them."""
        return scopes_for([*self.added, *self.removed, *[value for pair in self.modified for value in pair]])


def is_admin(value: Value) -> bool:
    """Whether a value names an administrator: HS_ADMIN or a subtype, in any case of letters."""
    return has_type(value.type, HS_ADMIN)


def permission_to_add(value: Value) -> AdminPermission:
    """What adding a value needs."""
    return AdminPermission.ADD_ADMIN if is_admin(value) else AdminPermission.ADD_VALUE


def permission_to_remove(value: Value) -> AdminPermission:
    """What removing a value needs."""
    return AdminPermission.REMOVE_ADMIN if is_admin(value) else AdminPermission.REMOVE_VALUE


def permission_to_modify(old: Value, new: Value) -> AdminPermission:
    """What putting one value in the place of another needs; nothing if everybody may write the old one."""
    match is_admin(old), is_admin(new):
        case True, True:
            return AdminPermission.MODIFY_ADMIN
        case True, False:
            return AdminPermission.REMOVE_ADMIN | AdminPermission.MODIFY_VALUE
        case False, True:
            # Also where everybody may write the value: otherwise everybody could become an administrator.
            return AdminPermission.MODIFY_VALUE | AdminPermission.ADD_ADMIN
        case _:
            return _NO_PERMISSIONS if Permission.PUBLIC_WRITE in old.permissions else AdminPermission.MODIFY_VALUE


def create(handle: Handle) -> Requirement:
    """For a handle that does not exist; the administrators in its own values do not count."""
    return Requirement(
        f"create {display_name(handle)}",
        ((_create_permission(handle),),),
        required_scope=RequiredScope.of(handle, Scope.CREATE),
    )


def overwrite(handle: Handle, old: Iterable[Value], new: Sequence[Value]) -> Requirement:
    """For CREATE with OW on a handle that exists: three ways, the first that authorises wins.

    No difference at all needs no permission. Whoever adds an administrator can become one, so such a difference
    counts as the right to do anything (the second way) rather than as one permission among others.
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
    by_making_anew = (HasPermissions(AdminPermission.DELETE_HANDLE, name), _create_permission(handle))
    return Requirement(
        action, (*by_differences, by_adding_administrators, by_making_anew), required_scope=required_scope
    )


def delete(handle: Handle) -> Requirement:
    """For a handle with all its values."""
    return on_record(f"delete {display_name(handle)}", AdminPermission.DELETE_HANDLE, handle, Scope.DELETE)


def register(handle: Handle, values: Sequence[Value]) -> Requirement:
    """For the first values of a name that was reserved: what adding them takes."""
    return replace(add(handle, values), required_scope=RequiredScope.of(handle, Scope.CREATE))


def add(handle: Handle, values: Sequence[Value], existing: Iterable[Value] = ()) -> Requirement:
    """For values to add. With OW `existing` holds the record's values, and those at the same indexes are replaced."""
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
    """For values to remove."""
    needed = _union([permission_to_remove(value) for value in values])
    return on_record(f"remove values of {display_name(handle)}", needed, handle, *scopes_for(values))


def modify(handle: Handle, changes: Sequence[Modification]) -> Requirement:
    """For MODIFY_VALUE. Values that everybody may write need no identity; `may_write` looks at each value first."""
    action = f"modify values of {display_name(handle)}"
    needed = _union([permission_to_modify(old, new) for old, new in changes])
    scopes = scopes_for([value for pair in changes for value in pair])
    if changes and not needed:
        return Requirement(action, public=True, required_scope=RequiredScope.of(handle, *scopes))
    return on_record(action, needed, handle, *scopes)


def read(handle: Handle, scope: Scope = Scope.READ) -> Requirement:
    """For values that not everybody may read; with another word, for knowing that there is such a record."""
    return on_record(f"read the private values of {display_name(handle)}", AdminPermission.READ_VALUE, handle, scope)


def list_handles(prefix: str) -> Requirement:
    """For the names under a prefix."""
    need = HasPermissions(AdminPermission.LIST_HANDLES, _prefix_handle(prefix), on_prefix=True)
    return Requirement(
        f"list the handles of {display_name(prefix)}",
        ((need,),),
        required_scope=RequiredScope.for_namespace(prefix, Scope.FIND),
    )


def status() -> Requirement:
    """For `0.SITE/status`, what a server says about itself."""
    roles = (Role.SERVER, Role.STATUS)
    return Requirement(
        "see the server's status", ((HasRole(roles),),), required_scope=RequiredScope.for_server(Scope.ADMIN)
    )


def server_operation(operation: OpCode, prefix: str = "") -> Requirement:
    """For an operation on the server itself, or on a prefix as a whole."""
    known = _SERVER_OPERATIONS.get(operation)
    if known is None:
        return Requirement(f"do {operation}")
    action, roles, scope = known
    return Requirement(action, ((HasRole(roles),),), required_scope=RequiredScope.for_namespace(prefix, scope))


_SERVER_OPERATIONS: Final = MappingProxyType(
    {
        OpCode.HOME_NA: ("home a prefix", (Role.SERVER, Role.HOME_ONLY), Scope.NAMESPACES),
        OpCode.UNHOME_NA: ("unhome a prefix", (Role.SERVER, Role.HOME_ONLY), Scope.NAMESPACES),
        OpCode.LIST_HOMED_NAS: ("list the homed prefixes", (Role.SERVER, Role.HOME_ONLY), Scope.FIND),
        OpCode.RETRIEVE_TXN_LOG: ("follow the transactions", (Role.SERVER, Role.REPLICATION), Scope.ADMIN),
        OpCode.DUMP_HANDLES: ("copy all handles", (Role.SERVER, Role.REPLICATION), Scope.ADMIN),
        OpCode.BACKUP_SERVER: ("back the server up", (Role.SERVER, Role.BACKUP), Scope.ADMIN),
    }
)


def display_name(name: Handle | str) -> str:
    """A name as it is, unless it is long or would not show: then in quotes, cut and escaped."""
    text = str(name)
    return text if len(text) <= MAX_QUOTED_LENGTH and text.isprintable() else quote_text(text)


def _create_permission(handle: Handle) -> HasPermissions:
    """The right to create a handle: its prefix's administrators give it, or those of the parent of a derived prefix."""
    above = parent(handle.suffix) if handle.is_prefix_handle else None
    if above is None:
        return HasPermissions(AdminPermission.ADD_HANDLE, _prefix_handle(handle.prefix), on_prefix=True)
    return HasPermissions(AdminPermission.ADD_NA, _prefix_handle(above), on_prefix=True)


def _prefix_handle(prefix: str) -> str:
    return f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"


def on_record(action: str, needed: AdminPermission, handle: Handle, *scopes: Scope) -> Requirement:
    """A demand on the handle's own administrators; met by nobody if there is nothing to need."""
    needs = ((HasPermissions(needed, str(handle)),),) if needed else ()
    return Requirement(action, needs, required_scope=RequiredScope.of(handle, *scopes))


def _union(permissions: Iterable[AdminPermission]) -> AdminPermission:
    return reduce(or_, permissions, _NO_PERMISSIONS)
