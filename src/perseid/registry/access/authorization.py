"""Authorization: the one place where permissions are decided, for every interface.

`authorize` checks an identity against a requirement (see `permissions`). The rules are the protocol's:

- All permissions of a criterion come from one HS_ADMIN value; two values with a part each grant nothing.
- An HS_ADMIN value names an identity directly, or through a group: an HS_VLIST value, whose entries are keys or further
  groups. Groups are searched level by level, each once, so loops are harmless.
- Server administrators in the configuration have all permissions on every handle if `server_admin_full_access` is set.
- An anonymous caller must authenticate (402); an authenticated caller without the permission is refused (400).
- A caller with a bearer token has the permissions that its issuer has now, within its scope: see `permissions`.

The default is to deny: data that cannot be read, a record that is not here, or a search that hits its limit do not
match. Records are read only through a `Lookup`, so that the commit can check that nothing of it has changed. Reasons
name permissions, indexes and handles, but never the data of a value; a refusal does not name administrators either,
because their values may be private.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, Protocol, TypeAlias

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.errors import InvalidData
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.types import HS_VLIST, has_type
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, TokenIdentity, handle_key
from perseid.wire.codes import ResponseCode

from . import permissions as requirements
from .permissions import Criterion, HasPermissions, HasRole, Requirement, Role, display_name

MAX_GROUP_LEVELS: Final = 10
"""How deep groups can be nested, counting the one that an HS_ADMIN value names. People nest two or three; more is a
mistake or an attack, and deployed servers stop after ten hops as well."""

MAX_GROUP_LOOKUPS: Final = 1_000
"""How many references one request can follow. An unverified caller can make the server search."""

MAX_GROUP_MEMBERS: Final = 100_000
"""How many members of groups one request can read: a quarter of a second of work. The limit on lookups is not enough,
because one group may fill a whole message."""

_MAX_CACHED_BYTES = 4_096  # larger groups are rare, and would take memory
_MAX_CACHED_ADMINS = 1_024  # enough for what one process works with at a time
_MAX_REMARKS = 5  # a reason is for people, and a record may have two thousand values to remark on


class Lookup(Protocol):
    """Access to records. An implementation notes every record that is read, with its entry."""

    def values(self, handle: str) -> tuple[Value, ...] | None:
        """All values of a record, also private ones; None if there is no such record here."""
        ...

    def group(self, handle: str) -> tuple[Value, ...] | None:
        """The same for a record that may contain a group; None also if its prefix is no longer hosted here."""
        ...


@dataclass(slots=True)
class SearchUsage:
    """How much one request has searched so far, in all its checks together."""

    lookups: int = 0
    members: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the search stops here, so that a match may have been missed."""
        return self.lookups >= MAX_GROUP_LOOKUPS or self.members >= MAX_GROUP_MEMBERS


@dataclass(frozen=True, slots=True)
class Settings:
    """Administrators in the configuration. By default nobody has a permission."""

    server_admins: tuple[ValueRef, ...] = ()
    home_only_admins: tuple[ValueRef, ...] = ()
    status_admins: tuple[ValueRef, ...] = ()
    backup_admins: tuple[ValueRef, ...] = ()
    replication_admins: tuple[ValueRef, ...] = ()
    server_admin_full_access: bool = False
    """Whether server administrators have all permissions on every handle."""
    allow_na_admins: bool = True
    """Whether the administrators of a prefix can create and list its handles; otherwise server administrators do."""

    def holders(self, role: Role) -> tuple[ValueRef, ...]:
        """The administrators with a role."""
        holders: tuple[ValueRef, ...] = getattr(self, f"{role.name.lower()}_admins")
        return holders


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a requirement is met, and why."""

    allowed: bool
    code: ResponseCode | None
    """The response code of the protocol; None if allowed."""
    reason: str
    """What grants the permission, or what is missing."""
    advice: Advice | None = None
    """How to fix a refusal."""
    read: tuple[str, ...] = ()
    """The handles that were looked up, in that order, whether or not they exist here."""


def authorize(
    identity: Identity, requirement: Requirement, lookup: Lookup, settings: Settings, usage: SearchUsage | None = None
) -> Decision:
    """Check a requirement. For a key, the decision is valid only after the key was verified."""
    if isinstance(identity, TokenIdentity):
        if not (requirement.public and requirement.required_scope.is_read_only) and (
            missing := identity.scope.describe_missing(requirement.required_scope)
        ):
            return _scope_denied(identity, requirement, missing)
        return authorize(identity.issuer, requirement, lookup, settings, usage)
    if requirement.public:
        return Decision(True, None, f"everybody can {requirement.action}")
    if isinstance(identity, Anonymous):
        return _authentication_required(requirement.action)
    caller = display_name(str(identity))
    if not requirement.alternatives:
        reason = f"{caller} cannot {requirement.action}: no rule allows it"
        return Decision(False, ResponseCode.INVALID_ADMIN, reason)
    if isinstance(identity, LocalIdentity):
        # Also without full access: a user who can write the files can change that setting.
        return Decision(True, None, f"{caller} can {requirement.action}: server administrator by file permission")
    search = _Search(identity, lookup, SearchUsage() if usage is None else usage)
    # Direct matches first, in all alternatives: they need fewer records, and most administrators are named directly.
    for match in (search.match_directly, search.match_through_groups):
        for alternative in requirement.alternatives:
            grounds = _find_grounds(alternative, match, search, settings)
            if grounds is not None:
                why = "; ".join(grounds) or "no permission is required"
                return Decision(True, None, f"{caller} can {requirement.action}: {why}", read=tuple(search.read))
    return _denied(caller, requirement, search, settings)


def authorize_read(
    identity: Identity,
    handle: Handle,
    selected: Iterable[Value],
    lookup: Lookup,
    settings: Settings,
    usage: SearchUsage | None = None,
) -> Decision:
    """Check that the caller can read the selected values of a record, unless only public ones were requested.

    The first private value decides whether anybody can. Within a session the permission is required even for public
    values: deployed clients do not restrict a request to public values only when they want to authenticate.
    """
    private = next((value for value in selected if not value.is_public), None)
    if private is None and not identity.session:
        return Decision(True, None, f"everybody can read these values of {display_name(handle)}")
    if private is not None and Permission.ADMIN_READ not in private.permissions:
        reason = f"Value {private.index} of {display_name(handle)} is not readable by anybody"
        return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, reason, AdviceKind.READ_OTHER_VALUES())
    return authorize(identity, requirements.read(handle), lookup, settings, usage)


def authorize_write(identity: Identity, handle: Handle, old: Value, new: Value) -> Decision:
    """Check what MODIFY_VALUE requires of a single value, before the permissions of all values together."""
    value = f"value {old.index} of {display_name(handle)}"
    if Permission.ADMIN_WRITE not in old.permissions:
        advice = AdviceKind.REPLACE_VALUE(index=old.index)
        return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, "Value is read-only", advice)
    if isinstance(identity, Anonymous) and requirements.permission_to_modify(old, new):
        return _authentication_required(f"modify {value}")
    return Decision(True, None, f"{value} is not read-only")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A reference that grants the permission to the identity it names."""

    reference: ValueRef
    source: str
    """Where it is, for people."""
    grant: str
    """What it does there: it lists the caller, or grants permissions."""

    def __str__(self) -> str:
        return f"{self.source} {self.grant}"


_Matcher: TypeAlias = Callable[[Sequence[_Candidate]], str | None]


class _Search:
    """A search for one identity among references; the limits apply to the whole request."""

    def __init__(self, identity: KeyIdentity, lookup: Lookup, usage: SearchUsage) -> None:
        self.identity = identity
        self._lookup = lookup
        self._usage = usage
        self._groups: dict[tuple[str, int], tuple[ValueRef, ...]] = {}
        self._candidates: dict[HasPermissions, list[_Candidate]] = {}
        self._records: dict[str, tuple[Value, ...] | None] = {}
        self._group_records: dict[str, tuple[Value, ...] | None] = {}
        self.read: dict[str, None] = {}  # what was looked up, in that order
        self.remarks: dict[str, None] = {}
        self.ended = ""
        self.lacks_index = False

    def record(self, handle: str) -> tuple[Value, ...] | None:
        """All values of a record, looked up once; invalid handles are not looked up."""
        if handle not in self._records:
            if Handle.for_lookup(handle) is None:
                return None
            self.read[handle] = None
            self._records[handle] = self._lookup.values(handle)
        return self._records[handle]

    def _group(self, handle: str) -> tuple[Value, ...] | None:
        if handle not in self._group_records:
            if Handle.for_lookup(handle) is None:
                return None
            self.read[handle] = None
            self._group_records[handle] = self._lookup.group(handle)
        return self._group_records[handle]

    def candidates(self, need: HasPermissions) -> list[_Candidate]:
        """The administrators of a record that have all the permissions, found once for both matches."""
        if need not in self._candidates:
            self._candidates[need] = _record_candidates(need, self)
        return self._candidates[need]

    def match_directly(self, candidates: Sequence[_Candidate]) -> str | None:
        """The first reference that names the identity itself, for people."""
        return next((str(candidate) for candidate in candidates if self.matches(candidate.reference)), None)

    def match_through_groups(self, candidates: Sequence[_Candidate]) -> str | None:
        """The same, including the members of groups and nested groups, level by level."""
        direct = self.match_directly(candidates)
        if direct is not None:
            return direct
        seen: set[tuple[str, int]] = set()
        level = [(group, each) for each in candidates for group in _new_groups([each.reference], seen)]
        for _ in range(MAX_GROUP_LEVELS):
            below: list[tuple[ValueRef, _Candidate]] = []
            for reference, origin in level:
                members = self._members_of(reference, origin)
                if members is None:
                    return None
                if any(self.matches(member) for member in members):
                    return f"{origin} through the group {display_name(str(reference))}"
                below += [(group, origin) for group in _new_groups(members, seen)]
            level = below
        if level:
            self.ended = f"groups are followed up to {MAX_GROUP_LEVELS} levels"
        return None

    def remark(self, remark: str) -> None:
        """Keep a remark for the refusal, once."""
        self.remarks[remark] = None

    def matches(self, reference: ValueRef) -> bool:
        """Whether a reference names the identity; notes if only the index is missing."""
        identity = self.identity
        if identity.reference.index <= 0 < reference.index != identity.index:
            self.lacks_index |= handle_key(reference.handle) == handle_key(identity.reference.handle)
            return False
        return identity.matches(reference)

    def _members_of(self, reference: ValueRef, origin: _Candidate) -> tuple[ValueRef, ...] | None:
        """The members of a group; empty if it is not a group; None if the search hits its limit."""
        key = _key(reference)
        if key not in self._groups:
            if self._usage.lookups >= MAX_GROUP_LOOKUPS:
                self.ended = f"a request can follow at most {MAX_GROUP_LOOKUPS:,} references"
                return None
            if self._usage.members >= MAX_GROUP_MEMBERS:
                self.ended = f"a request can read at most {MAX_GROUP_MEMBERS:,} members of groups"
                return None
            self._usage.lookups += 1
            self._groups[key] = self._resolve(reference, origin)
            self._usage.members += len(self._groups[key])
        return self._groups[key]

    def _resolve(self, reference: ValueRef, origin: _Candidate) -> tuple[ValueRef, ...]:
        values = self._group(reference.handle)
        if values is None:
            self.remark(f"{origin.source} refers to a record that is not stored here")
            return ()
        value = next((value for value in values if value.index == reference.index), None)
        if value is None or not has_type(value.type, HS_VLIST):
            return ()
        try:
            data = value.data
            return _parse_group(data) if len(data) <= _MAX_CACHED_BYTES else ValueList.from_bytes(data).entries
        except InvalidData:
            self.remark(f"{origin.source} refers to a group whose data is invalid")
            return ()


def _new_groups(references: Iterable[ValueRef], seen: set[tuple[str, int]]) -> Iterator[ValueRef]:
    """The references that may be groups and are new in this search; adds them to `seen`.

    Index 0 does not name a value, so it is not a group. One more than the limit is enough to detect it.
    """
    for reference in references:
        if len(seen) > MAX_GROUP_LOOKUPS:
            return
        if reference.index > 0 and _key(reference) not in seen:
            seen.add(_key(reference))
            yield reference


def _key(reference: ValueRef) -> tuple[str, int]:
    return handle_key(reference.handle), reference.index


def _find_grounds(
    alternative: tuple[Criterion, ...], match: _Matcher, search: _Search, settings: Settings
) -> list[str] | None:
    """What meets each criterion; None if one is not met."""
    grounds = []
    for criterion in alternative:
        # The configuration first: filling a record with groups must not keep out a server administrator.
        ground = match(_config_candidates(_roles(criterion, settings), settings))
        if ground is None and isinstance(criterion, HasPermissions) and _uses_record_admins(criterion, settings):
            ground = match(search.candidates(criterion))
        if ground is None:
            return None
        grounds.append(ground)
    return grounds


def _uses_record_admins(need: HasPermissions, settings: Settings) -> bool:
    return settings.allow_na_admins or not need.on_prefix


def _roles(criterion: Criterion, settings: Settings) -> tuple[Role, ...]:
    """The roles of the configuration that meet a criterion."""
    if isinstance(criterion, HasRole):
        return criterion.roles
    if settings.server_admin_full_access or not _uses_record_admins(criterion, settings):
        return (Role.SERVER,)
    return ()


def _config_candidates(roles: tuple[Role, ...], settings: Settings) -> list[_Candidate]:
    return [
        _Candidate(reference, f"the setting {role.value}", "lists the caller")
        for role in roles
        for reference in settings.holders(role)
    ]


def _record_candidates(need: HasPermissions, search: _Search) -> list[_Candidate]:
    """The administrators of a record that have all the permissions."""
    record = display_name(need.record)
    values = search.record(need.record)
    if values is None:
        search.remark(f"{record} is not stored here")
        return []
    administrators = [value for value in values if requirements.is_admin(value)]
    if not administrators:
        search.remark(f"{record} has no administrators")
    candidates = []
    for value in administrators:
        source = f"HS_ADMIN value {value.index} of {record}"
        try:
            admin = _parse_admin(value.data)
        except InvalidData:
            search.remark(f"{source} is invalid and ignored")
            continue
        if need.permissions in admin.permissions:
            candidates.append(_Candidate(admin.administrator, source, f"grants {_permission_names(need.permissions)}"))
        elif value.is_public and search.identity.matches(admin.administrator):
            search.remark(f"{source} does not grant {_permission_names(need.permissions & ~admin.permissions)}")
    return candidates


def _authentication_required(action: str) -> Decision:
    reason = f"Authentication required to {action}"
    return Decision(False, ResponseCode.AUTHENTICATION_NEEDED, reason, AdviceKind.AUTHENTICATE())


def _scope_denied(identity: TokenIdentity, requirement: Requirement, missing: str) -> Decision:
    reason = f"{display_name(str(identity))} cannot {requirement.action}: {missing}"
    required = requirement.required_scope
    if not required.scopes:
        advice = AdviceKind.AUTHENTICATE_WITH_KEY()
    elif required.scopes - identity.scope.scopes:
        advice = AdviceKind.USE_SCOPED_TOKEN()
    elif required.prefix:
        advice = AdviceKind.USE_NAMESPACE_TOKEN(prefix=required.prefix)
    else:
        advice = AdviceKind.USE_SERVER_TOKEN()
    return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, reason, advice)


def _denied(caller: str, requirement: Requirement, search: _Search, settings: Settings) -> Decision:
    alternatives = [
        " and ".join([_describe_criterion(item, settings) for item in alternative])
        for alternative in requirement.alternatives
    ]
    remarks = list(search.remarks)[:_MAX_REMARKS]
    if search.ended:
        remarks.insert(0, f"the search ended early: {search.ended}")
    reason = "; ".join([f"{caller} cannot {requirement.action}: requires {', or '.join(alternatives)}", *remarks])
    needed = [item for alternative in requirement.alternatives for item in alternative]
    record = next(
        (item.record for item in needed if isinstance(item, HasPermissions) and _uses_record_admins(item, settings)), ""
    )
    advice = AdviceKind.ASK_WHO_HAS_ACCESS(on=record.removeprefix(f"{PREFIX_OF_PREFIXES}/"))
    if search.lacks_index:
        advice = AdviceKind.AUTHENTICATE_WITH_INDEX()
    elif not record:
        advice = AdviceKind.ASK_ADMINISTRATOR()
    return Decision(False, ResponseCode.INVALID_ADMIN, reason, advice, tuple(search.read))


def _describe_criterion(criterion: Criterion, settings: Settings) -> str:
    """What would meet a criterion, for people."""
    if isinstance(criterion, HasPermissions) and _uses_record_admins(criterion, settings):
        names, record = _permission_names(criterion.permissions), display_name(criterion.record)
        return (
            f"permissions {names} in one HS_ADMIN value of {record}"
            if "+" in names
            else f"permission {names} on {record}"
        )
    return f"an entry in the setting {' or '.join([role.value for role in _roles(criterion, settings)])}"


@lru_cache(_MAX_CACHED_ADMINS)
def _parse_admin(data: bytes) -> Admin:
    """Parse an HS_ADMIN value; all records of a namespace have the same few."""
    return Admin.from_bytes(data)


@lru_cache(_MAX_CACHED_ADMINS)
def _parse_group(data: bytes) -> tuple[ValueRef, ...]:
    """Parse an HS_VLIST value; all records of a namespace refer to the same few."""
    return ValueList.from_bytes(data).entries


@cache
def _permission_names(permissions: AdminPermission) -> str:
    """The names of permissions, in the order of their bits."""
    return " + ".join([str(bit.name) for bit in AdminPermission if bit in permissions])
