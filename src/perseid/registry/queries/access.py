"""Who can do what with a prefix or a record, through which value and group; and the users of a prefix.

Everybody sees what public values say; the rest is for users who can read private values. The entries come from the
HS_ADMIN values of the record, and from its groups, level by level, as `authorize` searches them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import key_range
from perseid.ledger.views.search_keys import owner_ranges, type_ranges
from perseid.names.handle import Handle, fold
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.data_types import interpret_as
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.types import DESC, EMAIL, HS_PUBKEY, HS_SECKEY, HS_VLIST
from perseid.registry.access import permissions
from perseid.registry.access.authorization import MAX_GROUP_LEVELS, MAX_GROUP_LOOKUPS
from perseid.registry.access.permissions import Role
from perseid.registry.access.roles import ROLES, find_role, has_keys_or_groups, is_key, is_role_group
from perseid.registry.commands.access import get_prefix_handle, reference_key
from perseid.registry.context import Context, not_found
from perseid.registry.identity import TokenIdentity, handle_key
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.schema.access import MAX_ENTRIES, AccessRole, KeyState

from .find import Search, find
from .paging import DEFAULT_PAGE

MAX_COUNTED: Final = 2_500
"""Records that are counted: a quarter of a second. Of more, the answer is "at least"."""

MAX_RECORDS_NAMING: Final = 250
"""Records that are read to find one that names an administrator: the first does, unless it is hidden."""

MAX_GROUPS: Final = 1_000
"""Groups that are searched for an administrator: a tenth of a second."""

_CHUNK: Final = 250


@dataclass(frozen=True, slots=True)
class Grantee:
    """An identity, what it can do, and why."""

    identity: ValueRef
    permissions: AdminPermission
    state: KeyState
    role: AccessRole | None = None
    value: int | None = None
    """The index of the HS_ADMIN value."""
    groups: tuple[ValueRef, ...] = ()
    setting: str | None = None
    """The setting that grants it instead."""


@dataclass(frozen=True, slots=True)
class WithoutGroup:
    """Records of a prefix that do not name the group of a role."""

    role: AccessRole
    group: ValueRef
    count: int
    is_complete: bool
    """Whether all records were counted."""


@dataclass(frozen=True, slots=True)
class AccessList:
    """Who can do what with a prefix or a record."""

    on: str
    handle: Handle
    grantees: tuple[Grantee, ...]
    is_truncated: bool
    without: tuple[WithoutGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user."""

    handle: str
    state: KeyState
    identities: tuple[str, ...]
    name: str
    email: str


# Access


def list_access(context: Context, on: str) -> AccessList:
    """Return who can do what with a prefix, or with a record. Raises `Refused`."""
    stored, search = _search_access(context, on)
    is_prefix = "/" not in on
    without: tuple[WithoutGroup, ...] = ()
    if is_prefix and context.is_allowed(permissions.list_handles(on)):
        roles = [role for role in ROLES if any(reference_key(ROLES[role].group(on)) == each for each in search.groups)]
        without = count_without(context.snapshot, on, roles)
    name = on if is_prefix else str(stored.handle)
    return AccessList(name, stored.handle, tuple(search.found), search.is_truncated, without)


def _search_access(context: Context, on: str) -> tuple[StoredRecord, "_AccessSearch"]:
    is_prefix = "/" not in on
    stored = get_prefix_handle(context, on) if is_prefix else context.get_hosted(Handle.parse_lenient(on))
    can_read = context.is_allowed(permissions.read(stored.handle))
    if not stored.exists or not (stored.is_public or can_read):
        raise not_found(stored)
    search = _AccessSearch(context, on_prefix=is_prefix)
    for value in _readable(stored, can_read=can_read):
        admin = interpret_as(value, Admin)
        if admin is not None:
            search.add(admin.administrator, admin.permissions, value.index)
    settings = context.snapshot.rules.administration
    if can_read and settings.server_admin_full_access:
        for reference in settings.server_admins:
            search.add(reference, ALL_PERMISSIONS, None, Role.SERVER.value)
    return stored, search


def access_of(context: Context, on: str, identity: ValueRef) -> tuple[Grantee, ...]:
    """Return what one identity can do; index 0 means all its keys. Raises `Refused`."""
    return tuple(
        [
            each
            for each in _search_access(context, on)[1].found
            if identity.index in (0, each.identity.index)
            and context.snapshot.is_same_record(each.identity.handle, identity.handle)
        ]
    )


def count_without(snapshot: Snapshot, prefix: str, roles: Sequence[AccessRole]) -> tuple[WithoutGroup, ...]:
    """Count the records of a prefix on which roles have no permissions, because they do not name the group."""
    counted = [WithoutGroup(role, ROLES[role].group(fold(prefix)), 0, True) for role in roles if ROLES[role].in_record]
    if not counted:
        return ()
    is_complete = True
    for number, stored in enumerate(records_of(snapshot, prefix)):
        if number == MAX_COUNTED:
            is_complete = False
            break
        counted = [
            replace(each, count=each.count + (not names_group(stored, each.role, each.group))) for each in counted
        ]
    return tuple([replace(each, is_complete=is_complete) for each in counted if each.count or not is_complete])


def records_of(snapshot: Snapshot, prefix: str) -> Iterator[StoredRecord]:
    """Iterate over all existing records of a prefix."""
    at, end = key_range(f"{prefix}/")
    more = True
    while more:
        entries, more = snapshot.reader.names_page(at, end, _CHUNK)
        for entry in entries:
            stored = find_stored(snapshot, entry)
            if stored is not None:
                yield stored
            at = entry.key + b"\0"
        more = more and bool(entries)


def find_stored(snapshot: Snapshot, entry: Entry) -> StoredRecord | None:
    """Return the existing record of an entry; None if there is none.

    Nor is there one if it belongs to an earlier case rule, or this server is not responsible for it.
    """
    if entry.state is State.ABSENT:
        return None
    stored = snapshot.stored(Handle.parse_lenient(entry.handle))
    is_current = stored.key == entry.key and stored.exists  # under another key it belongs to an earlier case rule
    return stored if is_current and snapshot.is_responsible(stored.handle) else None


def names_group(stored: StoredRecord, role: AccessRole, group: ValueRef) -> bool:
    """Whether a record names the group of a role, with its permissions; or must not (`roles`).

    Owners may have fewer permissions than all, as on the prefix.
    """
    if role is not AccessRole.OWNER and has_keys_or_groups(stored.values):
        return True
    admins = filter(None, (interpret_as(value, Admin) for value in stored.values))
    needed = AdminPermission.MODIFY_ADMIN if role is AccessRole.OWNER else ROLES[role].in_record
    return any(
        reference_key(admin.administrator) == reference_key(group) and needed in admin.permissions for admin in admins
    )


def is_named(snapshot: Snapshot, handle: str) -> bool:
    """Whether a setting, the HS_ADMIN value of a public record, or a group names a key of this handle.

    Any other identity has no permissions here that everybody could know about. Of the groups, the first ones are read.
    """
    key = handle_key(handle)
    settings = snapshot.rules.administration
    if any(handle_key(each.handle) == key for role in Role for each in settings.holders(role)):
        return True
    admins, groups = owner_ranges(handle)[0], type_ranges(HS_VLIST)[0]
    for keys, limit in ((admins, MAX_RECORDS_NAMING), (groups, MAX_GROUPS)):
        found = 0
        after, more = (b"", 0), True
        while more and found < limit:
            rows, more = snapshot.reader.find_by_keys(keys.first, keys.end, _CHUNK, after)
            more = more and bool(rows)
            for search_key, entry in rows:
                after, found = (search_key, entry.seq), found + 1
                stored = find_stored(snapshot, entry)
                if stored is None or not stored.is_public:
                    continue
                if any(handle_key(name) == key for name in _named_handles(stored.values)):
                    return True
    return False


def _named_handles(values: Sequence[Value]) -> Iterator[str]:
    """The handles that a record names as administrators, and as members of its groups."""
    for value in values:
        admin, group = interpret_as(value, Admin), interpret_as(value, ValueList)
        if admin is not None:
            yield admin.administrator.handle
        elif group is not None:
            yield from [member.handle for member in group.entries]


class _AccessSearch:
    """Expands references to identities, within the limits of a request."""

    def __init__(self, context: Context, *, on_prefix: bool) -> None:
        self._context, self._on_prefix = context, on_prefix
        self._records: dict[str, tuple[Value, ...] | None] = {}
        self.found: list[Grantee] = []
        self.groups: set[tuple[str, int]] = set()
        self.is_truncated = False

    def add(self, reference: ValueRef, granted: AdminPermission, value: int | None, setting: str | None = None) -> None:
        """Add an identity, or the members of a group."""
        role = find_role(granted, on_prefix=self._on_prefix)
        if self._on_prefix:  # two roles have the same permissions there, and the owners may have fewer than all
            groups = {reference_key(its.group(self._prefix_of(reference))): name for name, its in ROLES.items()}
            its_role = groups.get(reference_key(reference))
            role = its_role if its_role is not None and is_role_group(its_role, granted) else role
        level: list[tuple[ValueRef, tuple[ValueRef, ...]]] = [(reference, ())]
        seen: set[tuple[str, int]] = set()
        for _ in range(MAX_GROUP_LEVELS + 1):
            below: list[tuple[ValueRef, tuple[ValueRef, ...]]] = []
            for each, path in level:
                if reference_key(each) in seen:
                    continue
                seen.add(reference_key(each))
                if len(self.found) >= MAX_ENTRIES or len(self._records) >= MAX_GROUP_LOOKUPS:
                    self.is_truncated = True
                    return
                members = self._members(each)
                if members is None:
                    self.found.append(Grantee(each, granted, self._state(each), role, value, path, setting))
                    continue
                self.groups.add(reference_key(each))
                below += [(member, (*path, each)) for member in members]
            level = below

    def _prefix_of(self, reference: ValueRef) -> str:
        return reference.handle.partition("/")[2]

    def _members(self, reference: ValueRef) -> tuple[ValueRef, ...] | None:
        """Return the members of a group; None if it is none, or not visible."""
        values = self._values(reference.handle) or ()
        value = next((value for value in values if value.index == reference.index), None)
        group = None if value is None else interpret_as(value, ValueList)
        return None if group is None else group.entries

    def _state(self, reference: ValueRef) -> KeyState:
        values = self._values(reference.handle, keys=True)
        if values is None:
            return KeyState.UNKNOWN
        has_key = any(is_key(value) and reference.index in (0, value.index) for value in values)
        return KeyState.ACTIVE if has_key else KeyState.DISABLED

    def _values(self, handle: str, *, keys: bool = False) -> tuple[Value, ...] | None:
        """Return the values of a record that the caller can know; None if the record is not here or hidden.

        That a public record has a key is no secret: everybody can try to authenticate with it.
        """
        if handle not in self._records:
            self._records[handle] = self._context.snapshot.group(handle)
        values = self._records[handle]
        if values is None:
            return None
        stored = self._context.snapshot.stored(Handle.parse_lenient(handle))
        if stored.is_public and keys:
            return values
        can_read = self._context.is_allowed(permissions.read(stored.handle))
        if not (stored.is_public or can_read):
            return None
        return values if keys else tuple(_readable(stored, can_read=can_read))


def _readable(stored: StoredRecord, *, can_read: bool) -> list[Value]:
    return [
        value for value in stored.values if value.is_public or (can_read and Permission.ADMIN_READ in value.permissions)
    ]


# Users


_KEY_TYPES: Final = (HS_PUBKEY, HS_SECKEY)

UserCursor = tuple[int, str | None]
"""Which of the types is searched, and the cursor in it."""


def list_users(
    context: Context, prefix: str = "", after: UserCursor | None = None, limit: int = DEFAULT_PAGE
) -> tuple[tuple[UserInfo, ...], UserCursor | None]:
    """Return a page of the users that the caller can see, of a prefix or of all; and where the next one starts.

    A user is a record with a key. The first page for a prefix also has the members of its groups that have none.
    Raises `Refused`.
    """
    limits = context.identity.scope.namespaces if isinstance(context.identity, TokenIdentity) else None
    context.require(permissions.list_users(prefix or next(iter(limits or ()), "")))  # all: those of its namespaces
    users: list[UserInfo] = []
    if prefix:
        get_prefix_handle(context, prefix)
        users += _disabled_members(context, prefix) if after is None else []
    number, cursor = after or (0, None)
    while True:
        page = find(context.snapshot, context.identity, Search(type=_KEY_TYPES[number]), cursor, limit)
        for item in page.items:
            stored = context.snapshot.stored(Handle.parse_lenient(item.handle))
            home = stored.handle.suffix if stored.handle.is_prefix_handle else stored.handle.prefix
            was_found = number and any(value.type == _KEY_TYPES[0] and value.is_public for value in stored.values)
            if not was_found and fold(prefix) in ("", fold(home)):
                users.append(_to_user(context, stored))
        if page.following is not None:
            return tuple(users), (number, page.following)
        number, cursor, limit = number + 1, None, limit - len(page.items)
        if number == len(_KEY_TYPES):
            return tuple(users), None
        if limit < 1:
            return tuple(users), (number, cursor)


def _disabled_members(context: Context, prefix: str) -> list[UserInfo]:
    """Return the members of groups of a prefix that have no key."""
    _, search = _search_access(context, prefix)
    disabled = [each.identity.handle for each in search.found if each.state is KeyState.DISABLED]
    records = [context.snapshot.stored(Handle.parse_lenient(handle)) for handle in disabled]
    users = {record.key: record for record in records if not any(map(is_key, record.values))}  # in any spelling
    return [_to_user(context, record) for record in users.values()]


def _to_user(context: Context, stored: StoredRecord) -> UserInfo:
    can_read = context.is_allowed(permissions.read(stored.handle))
    values = _readable(stored, can_read=can_read)
    keys = tuple([f"{value.index}:{stored.handle}" for value in stored.values if is_key(value)])
    state = KeyState.ACTIVE if keys else KeyState.DISABLED
    return UserInfo(str(stored.handle), state, keys, _first_text(values, DESC), _first_text(values, EMAIL))


def _first_text(values: Sequence[Value], type_: str) -> str:
    data = next((value.data for value in values if value.type == type_), b"")
    return data.decode("utf-8", "replace")
