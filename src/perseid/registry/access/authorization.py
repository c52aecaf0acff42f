"""Whether somebody may do something: the one place where rights are decided, for every door.

`authorise` weighs an identity against a demand (see `demands`). The rules are the protocol's:

- All permissions of a need come from one HS_ADMIN value; two values that each give a part give nothing.
- An HS_ADMIN value means an identity directly, or through a group: an HS_VLIST value, whose entries are keys or further
  groups. Groups are searched level by level; none is looked at twice, so loops are harmless.
- Server administrators of the configuration have all permissions on every handle if `server_admin_full_access` says so.
- Who is not known is asked to identify themselves (402); who is known and lacks the right is no administrator (400).
- Who shows a bearer token has the rights of its maker, as they are now, as far as its scope names them: see `scopes`.

Denial is what happens when nothing else does: data that cannot be read, a record that is not here, a search that has
reached its end are no match. Records are read through a `Lookup` only, so that the caller knows what a decision rests
on and the ledger can check at commit that none of it has moved. Reasons name permissions, indexes and names; never the
data of a value, and where something is refused not the administrators either, who may be in values that are private.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, Protocol, TypeAlias

from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.errors import InvalidData
from perseid.records.types import HS_VLIST, has_type
from perseid.records.value import Permission, Value, ValueRef
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, TokenIdentity, handle_key
from perseid.wire.codes import ResponseCode

from . import permissions as requirements
from .permissions import Criterion, HasPermissions, HasRole, Requirement, Role, display_name

MAX_GROUP_LEVELS: Final = 10
"""How deeply groups may stand in groups, the one that an administrator value names being the first. People nest two or
three; more is a mistake or an attack, and deployed servers give up on ten hops as well."""

MAX_GROUP_LOOKUPS: Final = 1_000
"""How many references one request may follow. Anybody can make a server search, by claiming to be somebody."""

MAX_GROUP_MEMBERS: Final = 100_000
"""How many entries of groups one request may read, after which no further group is opened: a quarter of a second of
work. Look-ups alone do not bound it, because one group may fill a whole message."""

_MAX_CACHED_ADMINS = 1_024  # as many as one process works with at a time
_MAX_REMARKS = 5  # a reason is for people, and a record may hold two thousand values to remark on


class Lookup(Protocol):
    """How records are read. An implementation notes what it was asked for, with the entry that it saw."""

    def values(self, handle: str) -> tuple[Value, ...] | None:
        """All values of a record, private ones included; None if there is no such record here."""
        ...

    def group(self, handle: str) -> tuple[Value, ...] | None:
        """The same for a record that may hold a group: None also if this server does not answer for it any more."""
        ...


@dataclass(slots=True)
class SearchUsage:
    """How much one request has searched so far, in all its questions about rights together."""

    lookups: int = 0
    members: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing more is searched, so that what was not found by then may be there all the same."""
        return self.lookups >= MAX_GROUP_LOOKUPS or self.members >= MAX_GROUP_MEMBERS


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says about administrators. Where nothing is said, nobody has a right."""

    server_admins: tuple[ValueRef, ...] = ()
    home_only_admins: tuple[ValueRef, ...] = ()
    status_admins: tuple[ValueRef, ...] = ()
    backup_admins: tuple[ValueRef, ...] = ()
    replication_admins: tuple[ValueRef, ...] = ()
    server_admin_full_access: bool = False
    """Whether server administrators have all permissions on every handle."""
    allow_na_admins: bool = True
    """Whether the administrators of a prefix may create and list its handles; otherwise server administrators do."""

    def holders(self, role: Role) -> tuple[ValueRef, ...]:
        """Whom the configuration lists under a role."""
        holders: tuple[ValueRef, ...] = getattr(self, role.value)
        return holders


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it is allowed, and why."""

    allowed: bool
    code: ResponseCode | None
    """What the protocol answers; None if it is allowed."""
    reason: str
    """Who may or may not, and what gave the right or is missing; a sentence for people."""
    advice: str = ""
    """What to do about a refusal."""
    read: tuple[str, ...] = ()
    """The handles of the records that were looked up, in that order; those that are not here included."""


def authorize(
    identity: Identity, requirement: Requirement, lookup: Lookup, settings: Settings, usage: SearchUsage | None = None
) -> Decision:
    """Decide whether somebody may do something. For a key holder the answer counts once the key is verified."""
    if isinstance(identity, TokenIdentity):
        if not (requirement.public and requirement.required_scope.is_read_only) and (
            lack := identity.scope.describe_missing(requirement.required_scope)
        ):
            return _scope_denied(identity, requirement.action, lack)
        return authorize(identity.issuer, requirement, lookup, settings, usage)
    if requirement.public:
        return Decision(True, None, f"everybody may {requirement.action}")
    if isinstance(identity, Anonymous):
        return _authentication_required(requirement.action)
    caller = display_name(str(identity))
    if not requirement.alternatives:
        reason = f"{caller} may not {requirement.action}: no rule says that anybody may"
        return Decision(False, ResponseCode.INVALID_ADMIN, reason)
    if isinstance(identity, LocalIdentity):
        # Also without full access: who may write the files may write that setting, so a refusal would stop nobody.
        return Decision(True, None, f"{caller} may {requirement.action}: server administrator by file permission")
    search = _Search(identity, lookup, SearchUsage() if usage is None else usage)
    # Direct matches first, in all alternatives: they rest on fewer records, and most administrators are listed so.
    for match in (search.match_directly, search.match_through_groups):
        for alternative in requirement.alternatives:
            grounds = _find_grounds(alternative, match, search, settings)
            if grounds is not None:
                why = "; ".join(grounds) or "it needs no permission"
                return Decision(True, None, f"{caller} may {requirement.action}: {why}", read=tuple(search.read))
    return _denied(caller, requirement, search, settings)


def authorize_read(
    identity: Identity,
    handle: Handle,
    selected: Iterable[Value],
    lookup: Lookup,
    settings: Settings,
    usage: SearchUsage | None = None,
) -> Decision:
    """Decide whether somebody gets the selected values of a record, when they did not ask for public ones only.

    Within a session the permission is demanded even for public values: deployed clients ask so only when they mean
    to identify themselves.
    """
    if not identity.session:
        private = next((value for value in selected if not value.is_public), None)
        if private is None:
            return Decision(True, None, f"everybody may read these values of {display_name(handle)}")
        if Permission.ADMIN_READ not in private.permissions:
            reason = f"the value at index {private.index} of {display_name(handle)} may not be read by anybody"
            advice = "ask for other values, or for public ones only"
            return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, reason, advice)
    return authorize(identity, requirements.read(handle), lookup, settings, usage)


def authorize_write(identity: Identity, handle: Handle, old: Value, new: Value) -> Decision:
    """Decide what MODIFY_VALUE asks of each single value, before the permissions of all are weighed together."""
    value = f"the value at index {old.index} of {display_name(handle)}"
    if Permission.ADMIN_WRITE not in old.permissions:
        advice = f"remove {value} and add another, which the permission to write does not restrict"
        return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, "Value is read-only", advice)
    if isinstance(identity, Anonymous) and requirements.permission_to_modify(old, new):
        return _authentication_required(f"modify {value}")
    return Decision(True, None, f"{value} is not read-only")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A reference that would give the right, to whomever it means."""

    reference: ValueRef
    source: str
    """Where it stands, for people."""
    grant: str
    """What it does there: it lists somebody, or gives permissions."""

    def __str__(self) -> str:
        return f"{self.source} {self.grant}"


_Matcher: TypeAlias = Callable[[Sequence[_Candidate]], str | None]


class _Search:
    """Looks for one identity among references, during one request: the limits are for all that is searched."""

    def __init__(self, identity: KeyIdentity, lookup: Lookup, usage: SearchUsage) -> None:
        self.identity = identity
        self._lookup = lookup
        self._usage = usage
        self._groups: dict[tuple[str, int], tuple[ValueRef, ...]] = {}
        self._records: dict[str, tuple[Value, ...] | None] = {}
        self._group_records: dict[str, tuple[Value, ...] | None] = {}
        self.read: dict[str, None] = {}  # what was looked up, in that order
        self.remarks: dict[str, None] = {}
        self.ended = ""
        self.lacks_index = False

    def record(self, handle: str) -> tuple[Value, ...] | None:
        """All values of a record, looked up once; what is no name of a record is not looked up at all."""
        if Handle.for_lookup(handle) is None:
            return None
        if handle not in self._records:
            self.read[handle] = None
            self._records[handle] = self._lookup.values(handle)
        return self._records[handle]

    def _group(self, handle: str) -> tuple[Value, ...] | None:
        if Handle.for_lookup(handle) is None:
            return None
        if handle not in self._group_records:
            self.read[handle] = None
            self._group_records[handle] = self._lookup.group(handle)
        return self._group_records[handle]

    def match_directly(self, candidates: Sequence[_Candidate]) -> str | None:
        """The first reference that means the identity itself, for people."""
        return next((str(candidate) for candidate in candidates if self.matches(candidate.reference)), None)

    def match_through_groups(self, candidates: Sequence[_Candidate]) -> str | None:
        """The same, with the entries of groups and of the groups in them, level by level."""
        found = self.match_directly(candidates)
        if found is not None:
            return found
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
            self.ended = f"groups are followed over {MAX_GROUP_LEVELS} levels and no further"
        return None

    def remark(self, remark: str) -> None:
        """Keep what a refusal should mention; once."""
        self.remarks[remark] = None

    def matches(self, reference: ValueRef) -> bool:
        """Whether a reference means the identity; notes where only the index is missing."""
        identity = self.identity
        if identity.reference.index <= 0 < reference.index != identity.index:
            self.lacks_index |= handle_key(reference.handle) == handle_key(identity.reference.handle)
            return False
        return identity.matches(reference)

    def _members_of(self, reference: ValueRef, origin: _Candidate) -> tuple[ValueRef, ...] | None:
        """The entries of a group; none if it is no group; None if the search has reached its end."""
        key = _key(reference)
        if key not in self._groups:
            if self._usage.lookups >= MAX_GROUP_LOOKUPS:
                self.ended = f"a request may follow {MAX_GROUP_LOOKUPS:,} references and no more"
                return None
            if self._usage.members >= MAX_GROUP_MEMBERS:
                self.ended = f"a request may read {MAX_GROUP_MEMBERS:,} members of groups and no more"
                return None
            self._usage.lookups += 1
            self._groups[key] = self._resolve(reference, origin)
            self._usage.members += len(self._groups[key])
        return self._groups[key]

    def _resolve(self, reference: ValueRef, origin: _Candidate) -> tuple[ValueRef, ...]:
        values = self._group(reference.handle)
        if values is None:
            self.remark(f"{origin.source} leads to a record that is not held here, which counts as no match")
            return ()
        value = next((value for value in values if value.index == reference.index), None)
        if value is None or not has_type(value.type, HS_VLIST):
            return ()
        try:
            return ValueList.from_bytes(value.data).entries
        except InvalidData:
            self.remark(f"{origin.source} leads to a group whose data cannot be read, which counts as no match")
            return ()


def _new_groups(references: Iterable[ValueRef], seen: set[tuple[str, int]]) -> Iterator[ValueRef]:
    """Those that may be groups and have not been seen in this search; from now on they have.

    Index 0 is no particular value, so it is no group. One more than may be followed is enough to find the limit.
    """
    for reference in references:
        if len(seen) > MAX_GROUP_LOOKUPS:
            return
        if reference.index > 0 and _key(reference) not in seen:
            seen.add(_key(reference))
            yield reference


def _key(reference: ValueRef) -> tuple[str, int]:
    """What two references to the same value have in common."""
    return handle_key(reference.handle), reference.index


def _find_grounds(
    alternative: tuple[Criterion, ...], match: _Matcher, search: _Search, settings: Settings
) -> list[str] | None:
    """What meets each requirement; None if one is not met."""
    grounds = []
    for criterion in alternative:
        # The configuration first: nobody can keep a server administrator out by filling a record with groups.
        ground = match(_config_candidates(_roles(criterion, settings), settings))
        if ground is None and isinstance(criterion, HasPermissions) and _uses_record_admins(criterion, settings):
            ground = match(_record_candidates(criterion, search))
        if ground is None:
            return None
        grounds.append(ground)
    return grounds


def _uses_record_admins(need: HasPermissions, settings: Settings) -> bool:
    return settings.allow_na_admins or not need.on_prefix


def _roles(criterion: Criterion, settings: Settings) -> tuple[Role, ...]:
    """The roles of the configuration that meet a requirement."""
    if isinstance(criterion, HasRole):
        return criterion.roles
    if settings.server_admin_full_access or not _uses_record_admins(criterion, settings):
        return (Role.SERVER,)
    return ()


def _config_candidates(roles: tuple[Role, ...], settings: Settings) -> list[_Candidate]:
    """Everybody whom the configuration lists under the roles."""
    return [
        _Candidate(reference, f"the setting {role.value}", "lists them")
        for role in roles
        for reference in settings.holders(role)
    ]


def _record_candidates(need: HasPermissions, search: _Search) -> list[_Candidate]:
    """The administrators of a record who have all the permissions."""
    record = display_name(need.record)
    values = search.record(need.record)
    if values is None:
        search.remark(f"{record} is not held here")
        return []
    administrators = [value for value in values if requirements.is_admin(value)]
    if not administrators:
        search.remark(f"{record} has no administrators")
    candidates = []
    for value in administrators:
        source = f"the HS_ADMIN value at index {value.index} of {record}"
        try:
            admin = _parse_admin(value.data)
        except InvalidData:
            search.remark(f"{source} cannot be read and is ignored")
            continue
        if need.permissions in admin.permissions:
            candidates.append(_Candidate(admin.administrator, source, f"gives {_permission_names(need.permissions)}"))
        elif value.is_public and search.identity.matches(admin.administrator):
            search.remark(f"{source} does not give {_permission_names(need.permissions & ~admin.permissions)}")
    return candidates


def _authentication_required(action: str) -> Decision:
    reason = f"only administrators may {action}, and nobody has identified themselves"
    advice = "identify yourself with a key that an administrator value names"
    return Decision(False, ResponseCode.AUTHENTICATION_NEEDED, reason, advice)


def _scope_denied(identity: TokenIdentity, action: str, lack: str) -> Decision:
    reason = f"{display_name(str(identity))} may not {action}: {lack}"
    advice = "use a token that is good for it, or identify yourself with a key"
    return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, reason, advice)


def _denied(caller: str, requirement: Requirement, search: _Search, settings: Settings) -> Decision:
    ways = [
        " and ".join([_describe_criterion(item, settings) for item in alternative])
        for alternative in requirement.alternatives
    ]
    remarks = list(search.remarks)[:_MAX_REMARKS]
    if search.ended:
        remarks.insert(0, f"the search ended early: {search.ended}")
    reason = "; ".join([f"{caller} may not {requirement.action}: it takes {', or '.join(ways)}", *remarks])
    advice = "ask an administrator to give you the right, or identify yourself as somebody who has it"
    if search.lacks_index:
        advice = "an identity with index 0 is not enough here: identify yourself with the index of your key"
    return Decision(False, ResponseCode.INVALID_ADMIN, reason, advice, tuple(search.read))


def _describe_criterion(criterion: Criterion, settings: Settings) -> str:
    """What would meet a requirement, for people."""
    if isinstance(criterion, HasPermissions) and _uses_record_admins(criterion, settings):
        return f"{_permission_names(criterion.permissions)} in one HS_ADMIN value of {display_name(criterion.record)}"
    return f"to be listed in {' or '.join([role.value for role in _roles(criterion, settings)])}"


@lru_cache(_MAX_CACHED_ADMINS)
def _parse_admin(data: bytes) -> Admin:
    """What an HS_ADMIN value says; the same few stand in all records of a namespace."""
    return Admin.from_bytes(data)


@cache
def _permission_names(permissions: AdminPermission) -> str:
    """The names of permissions, in the order of their bits."""
    return " + ".join([str(bit.name) for bit in AdminPermission if bit in permissions])
