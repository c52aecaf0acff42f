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
from perseid.registry.identity import Anonymous, Identity, KeyHolder, LocalOperator, Tokened, handle_key
from perseid.wire.codes import ResponseCode

from . import permissions as demands
from .permissions import Demand, Membership, Need, Requirement, Role, shown

MAX_GROUP_LEVELS: Final = 10
"""How deeply groups may stand in groups, the one that an administrator value names being the first. People nest two or
three; more is a mistake or an attack, and deployed servers give up on ten hops as well."""

MAX_GROUP_LOOKUPS: Final = 1_000
"""How many references one request may follow. Anybody can make a server search, by claiming to be somebody."""

MAX_GROUP_MEMBERS: Final = 100_000
"""How many entries of groups one request may read, after which no further group is opened: a quarter of a second of
work. Look-ups alone do not bound it, because one group may fill a whole message."""

_KEPT_ADMINISTRATORS = 1_024  # as many as one process works with at a time
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
class Spent:
    """How much one request has searched so far, in all its questions about rights together."""

    lookups: int = 0
    members: int = 0

    @property
    def is_used_up(self) -> bool:
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


def authorise(
    identity: Identity, demand: Demand, lookup: Lookup, settings: Settings, spent: Spent | None = None
) -> Decision:
    """Decide whether somebody may do something. For a key holder the answer counts once the key is verified."""
    if isinstance(identity, Tokened):
        if not (demand.public and demand.reach.only_reads) and (lack := identity.scope.lacks(demand.reach)):
            return _out_of_scope(identity, demand.action, lack)
        return authorise(identity.maker, demand, lookup, settings, spent)
    if demand.public:
        return Decision(True, None, f"everybody may {demand.action}")
    if isinstance(identity, Anonymous):
        return _unknown(demand.action)
    who = shown(str(identity))
    if not demand.alternatives:
        reason = f"{who} may not {demand.action}: no rule says that anybody may"
        return Decision(False, ResponseCode.INVALID_ADMIN, reason)
    if isinstance(identity, LocalOperator):
        # Also without full access: who may write the files may write that setting, so a refusal would stop nobody.
        return Decision(True, None, f"{who} may {demand.action}: server administrator by file permission")
    search = _Search(identity, lookup, Spent() if spent is None else spent)
    # Direct matches first, in all alternatives: they rest on fewer records, and most administrators are listed so.
    for means in (search.direct, search.through_groups):
        for alternative in demand.alternatives:
            grounds = _grounds(alternative, means, search, settings)
            if grounds is not None:
                why = "; ".join(grounds) or "it needs no permission"
                return Decision(True, None, f"{who} may {demand.action}: {why}", read=tuple(search.read))
    return _denied(who, demand, search, settings)


def may_read(
    identity: Identity,
    handle: Handle,
    selected: Iterable[Value],
    lookup: Lookup,
    settings: Settings,
    spent: Spent | None = None,
) -> Decision:
    """Decide whether somebody gets the selected values of a record, when they did not ask for public ones only.

    Within a session the permission is demanded even for public values: deployed clients ask so only when they mean
    to identify themselves.
    """
    if not identity.session:
        private = next((value for value in selected if not value.is_public), None)
        if private is None:
            return Decision(True, None, f"everybody may read these values of {shown(handle)}")
        if Permission.ADMIN_READ not in private.permissions:
            reason = f"the value at index {private.index} of {shown(handle)} may not be read by anybody"
            advice = "ask for other values, or for public ones only"
            return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, reason, advice)
    return authorise(identity, demands.read(handle), lookup, settings, spent)


def may_write(identity: Identity, handle: Handle, old: Value, new: Value) -> Decision:
    """Decide what MODIFY_VALUE asks of each single value, before the permissions of all are weighed together."""
    value = f"the value at index {old.index} of {shown(handle)}"
    if Permission.ADMIN_WRITE not in old.permissions:
        advice = f"remove {value} and add another, which the permission to write does not restrict"
        return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, "Value is read-only", advice)
    if isinstance(identity, Anonymous) and demands.modification(old, new):
        return _unknown(f"modify {value}")
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


_Means: TypeAlias = Callable[[Sequence[_Candidate]], str | None]


class _Search:
    """Looks for one identity among references, during one request: the limits are for all that is searched."""

    def __init__(self, identity: KeyHolder, lookup: Lookup, spent: Spent) -> None:
        self.identity = identity
        self._lookup = lookup
        self._spent = spent
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

    def direct(self, candidates: Sequence[_Candidate]) -> str | None:
        """The first reference that means the identity itself, for people."""
        return next((str(candidate) for candidate in candidates if self.is_meant_by(candidate.reference)), None)

    def through_groups(self, candidates: Sequence[_Candidate]) -> str | None:
        """The same, with the entries of groups and of the groups in them, level by level."""
        found = self.direct(candidates)
        if found is not None:
            return found
        seen: set[tuple[str, int]] = set()
        level = [(group, each) for each in candidates for group in _unseen([each.reference], seen)]
        for _ in range(MAX_GROUP_LEVELS):
            below: list[tuple[ValueRef, _Candidate]] = []
            for reference, origin in level:
                members = self._members_of(reference, origin)
                if members is None:
                    return None
                if any(self.is_meant_by(member) for member in members):
                    return f"{origin} through the group {shown(str(reference))}"
                below += [(group, origin) for group in _unseen(members, seen)]
            level = below
        if level:
            self.ended = f"groups are followed over {MAX_GROUP_LEVELS} levels and no further"
        return None

    def remark(self, remark: str) -> None:
        """Keep what a refusal should mention; once."""
        self.remarks[remark] = None

    def is_meant_by(self, reference: ValueRef) -> bool:
        """Whether a reference means the identity; notes where only the index is missing."""
        identity = self.identity
        if identity.reference.index <= 0 < reference.index != identity.index:
            self.lacks_index |= handle_key(reference.handle) == handle_key(identity.reference.handle)
            return False
        return identity.is_meant_by(reference)

    def _members_of(self, reference: ValueRef, origin: _Candidate) -> tuple[ValueRef, ...] | None:
        """The entries of a group; none if it is no group; None if the search has reached its end."""
        key = _key(reference)
        if key not in self._groups:
            if self._spent.lookups >= MAX_GROUP_LOOKUPS:
                self.ended = f"a request may follow {MAX_GROUP_LOOKUPS:,} references and no more"
                return None
            if self._spent.members >= MAX_GROUP_MEMBERS:
                self.ended = f"a request may read {MAX_GROUP_MEMBERS:,} members of groups and no more"
                return None
            self._spent.lookups += 1
            self._groups[key] = self._resolve(reference, origin)
            self._spent.members += len(self._groups[key])
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


def _unseen(references: Iterable[ValueRef], seen: set[tuple[str, int]]) -> Iterator[ValueRef]:
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


def _grounds(
    alternative: tuple[Requirement, ...], means: _Means, search: _Search, settings: Settings
) -> list[str] | None:
    """What meets each requirement; None if one is not met."""
    grounds = []
    for requirement in alternative:
        # The configuration first: nobody can keep a server administrator out by filling a record with groups.
        ground = means(_listed(_roles(requirement, settings), settings))
        if ground is None and isinstance(requirement, Need) and _heeds_administrators(requirement, settings):
            ground = means(_administrators(requirement, search))
        if ground is None:
            return None
        grounds.append(ground)
    return grounds


def _heeds_administrators(need: Need, settings: Settings) -> bool:
    return settings.allow_na_admins or not need.on_prefix


def _roles(requirement: Requirement, settings: Settings) -> tuple[Role, ...]:
    """The roles of the configuration that meet a requirement."""
    if isinstance(requirement, Membership):
        return requirement.roles
    if settings.server_admin_full_access or not _heeds_administrators(requirement, settings):
        return (Role.SERVER,)
    return ()


def _listed(roles: tuple[Role, ...], settings: Settings) -> list[_Candidate]:
    """Everybody whom the configuration lists under the roles."""
    return [
        _Candidate(reference, f"the setting {role.value}", "lists them")
        for role in roles
        for reference in settings.holders(role)
    ]


def _administrators(need: Need, search: _Search) -> list[_Candidate]:
    """The administrators of a record who have all the permissions."""
    record = shown(need.record)
    values = search.record(need.record)
    if values is None:
        search.remark(f"{record} is not held here")
        return []
    administrators = [value for value in values if demands.is_admin(value)]
    if not administrators:
        search.remark(f"{record} has no administrators")
    candidates = []
    for value in administrators:
        source = f"the HS_ADMIN value at index {value.index} of {record}"
        try:
            admin = _admin(value.data)
        except InvalidData:
            search.remark(f"{source} cannot be read and is ignored")
            continue
        if need.permissions in admin.permissions:
            candidates.append(_Candidate(admin.administrator, source, f"gives {_words(need.permissions)}"))
        elif value.is_public and search.identity.is_meant_by(admin.administrator):
            search.remark(f"{source} does not give {_words(need.permissions & ~admin.permissions)}")
    return candidates


def _unknown(action: str) -> Decision:
    reason = f"only administrators may {action}, and nobody has identified themselves"
    advice = "identify yourself with a key that an administrator value names"
    return Decision(False, ResponseCode.AUTHENTICATION_NEEDED, reason, advice)


def _out_of_scope(identity: Tokened, action: str, lack: str) -> Decision:
    reason = f"{shown(str(identity))} may not {action}: {lack}"
    advice = "use a token that is good for it, or identify yourself with a key"
    return Decision(False, ResponseCode.INSUFFICIENT_PERMISSIONS, reason, advice)


def _denied(who: str, demand: Demand, search: _Search, settings: Settings) -> Decision:
    ways = [" and ".join([_missing(item, settings) for item in alternative]) for alternative in demand.alternatives]
    remarks = list(search.remarks)[:_MAX_REMARKS]
    if search.ended:
        remarks.insert(0, f"the search ended early: {search.ended}")
    reason = "; ".join([f"{who} may not {demand.action}: it takes {', or '.join(ways)}", *remarks])
    advice = "ask an administrator to give you the right, or identify yourself as somebody who has it"
    if search.lacks_index:
        advice = "an identity with index 0 is not enough here: identify yourself with the index of your key"
    return Decision(False, ResponseCode.INVALID_ADMIN, reason, advice, tuple(search.read))


def _missing(requirement: Requirement, settings: Settings) -> str:
    """What would meet a requirement, for people."""
    if isinstance(requirement, Need) and _heeds_administrators(requirement, settings):
        return f"{_words(requirement.permissions)} in one HS_ADMIN value of {shown(requirement.record)}"
    return f"to be listed in {' or '.join([role.value for role in _roles(requirement, settings)])}"


@lru_cache(_KEPT_ADMINISTRATORS)
def _admin(data: bytes) -> Admin:
    """What an HS_ADMIN value says; the same few stand in all records of a namespace."""
    return Admin.from_bytes(data)


@cache
def _words(permissions: AdminPermission) -> str:
    """The names of permissions, in the order of their bits."""
    return " + ".join([str(bit.name) for bit in AdminPermission if bit in permissions])
