"""Roles: sets of permissions in plain words, and the groups that have them.

    role     in a record                                          on a prefix
    owner    all permissions                                      all permissions
    editor   add, modify and remove values; read private ones     create and list handles
    minter   –                                                    create and list handles
    reader   read private values                                  list handles

A role on one record is an HS_ADMIN value of it. A role on a prefix is a group in the prefix handle, because an HS_ADMIN
value there grants nothing on the records: each record has its own. The prefix handle names the group with the
permissions on the prefix, and the records name it with those in a record:

    0.NA/12345   200 HS_VLIST   owners      12345/x   100 HS_ADMIN   200:0.NA/12345
                 201 HS_VLIST   editors               101 HS_ADMIN   201:0.NA/12345:add_value,modify_value,…
                 202 HS_VLIST   minters
                 203 HS_VLIST   readers               102 HS_ADMIN   203:0.NA/12345:read_value

On the prefix handle itself only owners can read private values or change anything: it contains the groups, and perhaps
keys. For the same reason editors and readers of a prefix are not added to records that contain keys or groups: with the
key of somebody else they would have all their permissions. A record that names them before it gets a key keeps them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.records.data_types import interpret_as
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_PUBKEY, HS_SECKEY, HS_VLIST, has_any_type, has_type
from perseid.registry.advice import AdviceKind
from perseid.registry.identity import handle_key
from perseid.registry.policy.policy import PREFIX_PLACEHOLDER
from perseid.registry.results import InvalidRequest
from perseid.schema.access import MAX_RIGHTS, AccessRole
from perseid.wire.codes import ResponseCode

from .permissions import display_name

KEY_INDEX: Final = 300
"""The index of a user's key, as in deployed tools."""

_KEYS_AND_GROUPS: Final = (HS_PUBKEY, HS_SECKEY, HS_VLIST)

NO_PERMISSIONS: Final = AdminPermission(0)

PREFIX_PERMISSIONS: Final = (
    AdminPermission.ADD_HANDLE | AdminPermission.LIST_HANDLES | AdminPermission.ADD_NA | AdminPermission.DELETE_NA
)
"""The permissions that apply to a prefix as a whole, and so need no group."""


@dataclass(frozen=True, slots=True)
class RolePermissions:
    """The permissions of a role."""

    in_record: AdminPermission
    """In an HS_ADMIN value of a record."""
    on_prefix: AdminPermission
    """In the HS_ADMIN value of a prefix handle."""
    group_index: int
    """The index of its group in a prefix handle; deployed tools put groups at 200."""

    def group(self, prefix: str) -> ValueRef:
        """The group of the role on a prefix."""
        return ValueRef(self.group_index, f"{PREFIX_OF_PREFIXES}/{prefix}")

    @property
    def default_administrator(self) -> str:
        """The group as the default administrators of a policy name it."""
        return Admin(self.group(PREFIX_PLACEHOLDER), self.in_record).to_text()


_CREATE = AdminPermission.ADD_HANDLE | AdminPermission.LIST_HANDLES
_EDIT = (
    AdminPermission.ADD_VALUE | AdminPermission.MODIFY_VALUE | AdminPermission.REMOVE_VALUE | AdminPermission.READ_VALUE
)

ROLES: Final = MappingProxyType(
    {
        AccessRole.OWNER: RolePermissions(ALL_PERMISSIONS, ALL_PERMISSIONS, 200),
        AccessRole.EDITOR: RolePermissions(_EDIT, _CREATE, 201),
        AccessRole.MINTER: RolePermissions(NO_PERMISSIONS, _CREATE, 202),
        AccessRole.READER: RolePermissions(AdminPermission.READ_VALUE, AdminPermission.LIST_HANDLES, 203),
    }
)


@dataclass(frozen=True, slots=True)
class Rights:
    """Roles and single permissions."""

    roles: tuple[AccessRole, ...] = ()
    permissions: AdminPermission = NO_PERMISSIONS

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "Rights":
        """Parse names of roles and permissions. Raises `InvalidRequest`."""
        if len(texts) > MAX_RIGHTS:
            reason = f"{len(texts):,} roles and permissions are named. At most {MAX_RIGHTS} are allowed"
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_RIGHTS_ONCE())
        roles: dict[AccessRole, None] = {}
        permissions = NO_PERMISSIONS
        for text in texts:
            if text in PERMISSION_NAMES:
                permissions |= PERMISSION_NAMES[text]
            elif text in _ROLE_NAMES:
                roles[_ROLE_NAMES[text]] = None
            else:
                raise _invalid_rights(f"'{display_name(text)}' is neither a role nor a permission")
        return cls(tuple(roles), permissions)

    def check(self, on: str) -> None:
        """Refuse rights that cannot be granted on a prefix, or in a record. Raises `InvalidRequest`."""
        if self == Rights():
            raise _invalid_rights("No role or permission is named")
        if "/" in on:
            self.in_record()
        elif other := self.permissions & ~PREFIX_PERMISSIONS:
            reason = f"The permission {permission_names(other)[0]} applies to records, not to a prefix"
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.GRANT_ROLE())

    def in_record(self) -> AdminPermission:
        """The permissions in a record. Raises `InvalidRequest` for a role that has none there."""
        permissions = self.permissions
        for role in self.roles:
            if not ROLES[role].in_record:
                reason = f"The role {role} is for a prefix, not for a single record"
                raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_PREFIX())
            permissions |= ROLES[role].in_record
        return permissions


PERMISSION_NAMES: Final = MappingProxyType({str(bit.name).lower(): bit for bit in AdminPermission})
"""The permissions by their names at all interfaces."""


def _invalid_rights(reason: str) -> InvalidRequest:
    advice = AdviceKind.NAME_RIGHTS(roles=tuple(_ROLE_NAMES), permissions=tuple(PERMISSION_NAMES))
    return InvalidRequest(ResponseCode.INVALID_VALUE, reason, advice)


_ROLE_NAMES: Final = {role.value: role for role in AccessRole}


def permission_names(permissions: AdminPermission) -> tuple[str, ...]:
    """The names of permissions, in the order of their bits."""
    return tuple([name for name, bit in PERMISSION_NAMES.items() if bit in permissions])


def find_role(permissions: AdminPermission, *, on_prefix: bool) -> AccessRole | None:
    """The role with exactly these permissions; None if no role has.

    On a prefix editors and readers must be in the group, which the records name.
    """
    for role, its in ROLES.items():
        if on_prefix and role in (AccessRole.EDITOR, AccessRole.READER):
            continue
        if permissions == (its.on_prefix if on_prefix else its.in_record):
            return role
    return None


def is_role_group(role: AccessRole, permissions: AdminPermission) -> bool:
    """Whether a group with these permissions on a prefix is that of a role.

    The owners may have fewer permissions than all: deployed tools leave out some.
    """
    if role is AccessRole.OWNER:
        return AdminPermission.MODIFY_ADMIN in permissions
    return permissions == ROLES[role].on_prefix


def is_key(value: Value) -> bool:
    """Whether a value is a key."""
    return has_type(value.type, HS_PUBKEY) or has_type(value.type, HS_SECKEY)


def is_group(value: Value) -> bool:
    """Whether a value is a group."""
    return has_type(value.type, HS_VLIST)


def own_indexes(handle: str, values: Sequence[Value]) -> list[int]:
    """The indexes that a record itself names as its administrators: in the record of a user, that of their identity."""
    admins = [admin.administrator for admin in (interpret_as(value, Admin) for value in values) if admin is not None]
    return [each.index for each in admins if each.index and handle_key(each.handle) == handle_key(handle)]


def has_keys_or_groups(values: Sequence[Value]) -> bool:
    """Whether a record contains keys or groups: who can change or read them can act as others."""
    return any(has_any_type(value.type, _KEYS_AND_GROUPS) for value in values)
