"""The permissions that each command requires, on which record, and the scopes that a bearer token needs for it.

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

A token acts as its issuer; its scopes (`ScopeSet`) only restrict what it can do, and in which namespaces. Every
requirement names its scopes and its namespace (`Requirement.required_scope`), and a token meets it only if it has all
of these scopes there. No token meets a requirement without scopes: so it is with new commands, and with creating
tokens.

    read        private values, unpublished handles, and the history as administrators see it
    find        the handles of a namespace: list, find, log; with `read` also users
    mint        mint, reserve and generate handles
    create      create a record under a chosen or a reserved handle
    update      add, change and remove values; link; rewrite
    publish     publish and unpublish
    tombstone   replace a record by a tombstone, and undo that
    delete      delete records
    transfer    change who administers: transfer, and all changes of administrators, groups and keys in records
    namespaces  create namespaces, set their policies, home prefixes, change prefix handles
    admin       what requires a server administrator: read the whole ledger, redact, status, backups

`update` and `transfer` are separate because somebody who finds a token with `transfer` could give themselves
permissions that outlive it. The administrators of a new record are part of creating it. A job needs the scopes of its
single changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache, reduce
from operator import or_
from types import MappingProxyType
from typing import Final, Self, TypeAlias

from perseid.names.errors import MAX_QUOTED_LENGTH, InvalidName, quote_text
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, check_prefix_syntax, fold, is_derived, parent_prefix
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission
from perseid.records.record import Permission, Value
from perseid.records.types import HS_ADMIN, HS_PUBKEY, HS_SECKEY, HS_VLIST, has_any_type, has_type
from perseid.schema.namespaces import MAX_NAMESPACES, SCOPES, Scope
from perseid.wire.codes import OpCode

DERIVED_SUFFIX: Final = ".*"
"""After a prefix in a scope: all prefixes derived from it, without itself."""

_ACCESS_TYPES: Final = (HS_ADMIN, HS_VLIST, HS_PUBKEY, HS_SECKEY)
_MAX_CACHED_PREFIXES: Final = 64  # those that a process works with at a time


READ_SCOPES: Final = frozenset((Scope.READ, Scope.FIND))
"""The scopes that change nothing. A token can read public data without them."""


class InvalidScope(ValueError):
    """An invalid scope; the message says how to fix it."""


@dataclass(frozen=True, slots=True)
class RequiredScope:
    """The scopes that a requirement needs, and the namespace."""

    scopes: frozenset[Scope] = frozenset()
    """All of them are needed. If empty, no token is allowed."""
    prefix: str = ""
    """The namespace; empty for the server as a whole."""

    @classmethod
    def of(cls, handle: Handle, *scopes: Scope) -> Self:
        """For a record. A prefix handle belongs to its namespace, and changing it needs the scope `namespaces`."""
        if not handle.is_prefix_handle:
            return cls._of_namespace(handle.prefix, scopes)
        kept = [scope for scope in scopes if scope in (Scope.READ, Scope.TRANSFER, Scope.ADMIN)]
        return cls(frozenset(kept if Scope.READ in kept else (*kept, Scope.NAMESPACES)), handle.suffix)

    @classmethod
    def for_namespace(cls, prefix: str, *scopes: Scope) -> Self:
        """For a namespace as a whole."""
        return cls._of_namespace(prefix, scopes)

    @classmethod
    @lru_cache(_MAX_CACHED_PREFIXES)
    def _of_namespace(cls, prefix: str, scopes: tuple[Scope, ...]) -> Self:
        return cls(frozenset(scopes), prefix)

    @classmethod
    def for_server(cls, *scopes: Scope) -> Self:
        """For the server as a whole, which needs a scope for all namespaces."""
        return cls(frozenset(scopes))

    @property
    def is_read_only(self) -> bool:
        """Whether the scopes change nothing."""
        return bool(self.scopes) and self.scopes <= READ_SCOPES


NO_TOKEN: Final = RequiredScope()
"""For what no token can do."""


@dataclass(frozen=True, slots=True)
class ScopeSet:
    """Scopes and namespaces of a token. Use `ScopeSet.of`, which validates both."""

    scopes: frozenset[Scope]
    namespaces: tuple[str, ...] | None = field(default=None)
    """Folded prefixes, in order; `12345.*` means those derived from 12345. None for all namespaces."""

    @classmethod
    def of(cls, scopes: Iterable[str | Scope], namespaces: Iterable[str] | None) -> Self:
        """Parse scopes and prefixes; raises `InvalidScope`."""
        parsed = frozenset(map(_parse_scope, scopes))
        if not parsed:
            raise InvalidScope(f"A token needs at least one scope: {', '.join(SCOPES)}")
        if namespaces is None:
            return cls(parsed)
        allowed = tuple(sorted({_check_prefix(prefix) for prefix in namespaces}))
        if not allowed:
            raise InvalidScope("A token needs at least one namespace. Name one, or choose all namespaces")
        if len(allowed) > MAX_NAMESPACES:
            raise InvalidScope(f"A token can have at most {MAX_NAMESPACES} namespaces; this one has {len(allowed):,}")
        if Scope.ADMIN in parsed:
            raise InvalidScope("The scope admin applies to the whole server. Remove it, or choose all namespaces")
        return cls(parsed, allowed)

    def includes_namespace(self, prefix: str) -> bool:
        """Whether a namespace is included; the empty prefix means the server as a whole."""
        if self.namespaces is None:
            return True
        prefix = fold(prefix)
        for allowed in self.namespaces:
            above = allowed.removesuffix(DERIVED_SUFFIX)
            if prefix == allowed or (above != allowed and is_derived(prefix, above)):
                return True
        return False

    def describe_missing(self, required_scope: RequiredScope) -> str:
        """What is missing for a requirement, for people; empty if nothing is."""
        if not required_scope.scopes:
            return "tokens cannot do this"
        if missing := required_scope.scopes - self.scopes:
            return f"its scopes do not include {', '.join([scope.value for scope in Scope if scope in missing])}"
        if not self.includes_namespace(required_scope.prefix):
            return f"it is limited to {', '.join(self.namespaces or ())}"
        return ""

    @property
    def scope_names(self) -> list[str]:
        """The scopes, in the order of `Scope`."""
        return [scope.value for scope in Scope if scope in self.scopes]


def controls_access(value: Value) -> bool:
    """Whether a value controls permissions: administrators, groups and keys."""
    return has_any_type(value.type, _ACCESS_TYPES)


def scopes_for(values: Iterable[Value]) -> tuple[Scope, ...]:
    """The scopes that changing these values needs; at least one."""
    scopes = {Scope.TRANSFER if controls_access(value) else Scope.UPDATE for value in values}
    return tuple(scopes) or (Scope.UPDATE,)


def _parse_scope(text: str | Scope) -> Scope:
    if isinstance(text, Scope):
        return text
    try:
        return Scope(text)
    except ValueError:
        raise InvalidScope(f"{text[:40]!r} is not a scope. Scopes: {', '.join(SCOPES)}") from None


def _check_prefix(prefix: str) -> str:
    """Return a folded prefix of a scope; raises `InvalidScope`."""
    try:
        check_prefix_syntax(prefix.removesuffix(DERIVED_SUFFIX))
    except InvalidName as problem:
        raise InvalidScope(
            f"{problem}. Write a prefix, or a prefix with {DERIVED_SUFFIX} for those derived from it"
        ) from problem
    return fold(prefix)


_NO_PERMISSIONS: Final = AdminPermission(0)
Modification: TypeAlias = tuple[Value, Value]
"""The old value and the new one."""


class Role(Enum):
    """A list of administrators in the configuration; the value is the name of the setting."""

    SERVER = "administrators.server"
    HOME_ONLY = "administrators.home_only"
    STATUS = "administrators.status"
    BACKUP = "administrators.backup"
    REPLICATION = "administrators.replication"


@dataclass(frozen=True, slots=True)
class HasPermissions:
    """Permissions that one HS_ADMIN value of a record must grant, all together."""

    permissions: AdminPermission
    record: str
    """The handle whose administrators are checked."""
    on_prefix: bool = False
    """Whether it is a permission over the handles of a prefix, which the setting
    `administrators.prefix_administrators` can switch off."""

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


def list_users(prefix: str) -> Requirement:
    """The requirement to list users, of a prefix or of all: any key. Each record has its own requirement.

    A token must be able to find records and to read private values, because most keys are private.
    """
    required_scope = RequiredScope.for_namespace(prefix, Scope.READ, Scope.FIND)
    return Requirement("list users", ((),), required_scope=required_scope)


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
        OpCode.HOME_NA: ("host a prefix", (Role.SERVER, Role.HOME_ONLY), Scope.NAMESPACES),
        OpCode.UNHOME_NA: ("stop hosting a prefix", (Role.SERVER, Role.HOME_ONLY), Scope.NAMESPACES),
        OpCode.LIST_HOMED_NAS: ("list the hosted prefixes", (Role.SERVER, Role.HOME_ONLY), Scope.FIND),
        OpCode.RETRIEVE_TXN_LOG: ("follow the transactions", (Role.SERVER, Role.REPLICATION), Scope.ADMIN),
        OpCode.DUMP_HANDLES: ("copy all handles", (Role.SERVER, Role.REPLICATION), Scope.ADMIN),
        OpCode.BACKUP_SERVER: ("back up the server", (Role.SERVER, Role.BACKUP), Scope.ADMIN),
    }
)


def display_name(name: Handle | str) -> str:
    """The name as it is; quoted, truncated and escaped if it is long, not printable, or has blanks at an end."""
    text = str(name)
    is_plain = len(text) <= MAX_QUOTED_LENGTH and text.isprintable() and text == text.strip()
    return text if is_plain else quote_text(text)


def _create_permission(handle: Handle) -> HasPermissions:
    """ADD_HANDLE on the prefix handle, or ADD_NA on that of the parent for a derived prefix."""
    above = parent_prefix(handle.suffix) if handle.is_prefix_handle else None
    if above is None:
        return _add_handle(handle.prefix)
    return HasPermissions(AdminPermission.ADD_NA, _prefix_handle(above), on_prefix=True)


@lru_cache(_MAX_CACHED_PREFIXES)
def _add_handle(prefix: str) -> HasPermissions:
    return HasPermissions(AdminPermission.ADD_HANDLE, _prefix_handle(prefix), on_prefix=True)


def _prefix_handle(prefix: str) -> str:
    return f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"


def on_record(action: str, needed: AdminPermission, handle: Handle, *scopes: Scope) -> Requirement:
    """A requirement on the administrators of the handle; nobody meets it if no permission is needed."""
    needs = ((HasPermissions(needed, str(handle)),),) if needed else ()
    return Requirement(action, needs, required_scope=RequiredScope.of(handle, *scopes))


def _union(permissions: Iterable[AdminPermission]) -> AdminPermission:
    return reduce(or_, permissions, _NO_PERMISSIONS)
