"""Commands on records: create, add, modify, remove and delete values; home and unhome prefixes.

Semantics, order of checks and response codes are those of deployed servers (native-protocol reference, §16); clients
observe the order and rely on it. The policy is checked where those servers have a local policy hook: after the
permission, before anything is stored. In addition, a deleted handle cannot be used again unless the caller confirms it,
and a reserved or unpublished handle exists only for its administrators.

Partial values leave out what the server can choose. Without an index a free one is used, from 1, for HS_ADMIN from 100
as in deployed tools; this needs the record, so it happens when a command is decided. Without permissions or TTL a new
value gets the defaults, and a replaced one keeps those it had.

A whole record without administrators keeps those of the existing record: otherwise only server administrators could
change it. To remove administrators, remove them by index.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import homed_name, record_key
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, check_prefix_syntax, fold
from perseid.records.record import (
    DEFAULT_PERMISSIONS,
    DEFAULT_TTL,
    PRIVATE_PERMISSIONS,
    Permission,
    TtlType,
    Value,
    ValueRef,
)
from perseid.records.types import HS_ADMIN, HS_SECKEY, has_type
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_write
from perseid.registry.access.permissions import Differences, RequiredScope, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import (
    FIRST_ADMIN_INDEX,
    Context,
    Deferrable,
    Plan,
    check_indexes,
    check_open,
    not_found,
    other_server,
    still_reserved,
)
from perseid.registry.identity import Anonymous, LocalIdentity, TokenIdentity
from perseid.registry.policy.policy import Audience
from perseid.registry.results import NOT_A_PREFIX_HANDLE, ChangeResult, Refused, StateConflict, WarningKind
from perseid.registry.snapshot import SITE_PREFIX, StoredRecord, values_of_type
from perseid.schema.namespaces import Scope
from perseid.wire.codes import OpCode, ResponseCode

from .composition import compose, policy_values, reindex, require_mint
from .namespaces import BY_DEFAULT, policy_draft


@dataclass(frozen=True, slots=True)
class Create(Deferrable):
    """Create a record. With `overwrite` an existing one is replaced as a whole."""

    handle: Handle
    values: tuple[Value, ...]
    overwrite: bool = False
    reuse_deleted: bool = False
    """Whether a deleted handle can be used again."""
    published: bool = True
    """Whether it is public at once; otherwise it waits to be published."""
    keeps_administrator: bool = False
    """Whether to refuse replacing a record that has administrators by one that has none."""
    tombstone: bool = False
    """Whether it is a tombstone from the start, as an import of one is; its values say why."""

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.2: responsibility, handle, indexes, existence, identity, permission, policy."""
        stored = context.get_hosted(self.handle, new=not self.overwrite)
        if isinstance(context.identity, TokenIdentity) and not context.identity.scope.includes_namespace(
            RequiredScope.of(stored.handle, Scope.CREATE).prefix
        ):
            self._require_create(context, stored)  # the policy of a namespace is of no use to tokens for others
        known = stored.exists and (stored.is_public or self._knows(context, stored))
        context.check_registrable(stored, known=known)
        check_indexes(self.values)
        if stored.exists and not known:
            # A caller who can neither see the handle nor create one here gets the same refusal as for a free handle.
            self._require_create(context, stored)
            require_identity(context, f"create {display_name(self.handle)}")
        if stored.state is State.RESERVED:
            return self._register(context, stored)
        if stored.exists and not self.overwrite:
            raise already_exists(stored)
        if stored.exists:
            return self._replace(context, stored)
        self._require_create(context, stored)
        check_open(stored.policy, self.handle.prefix)
        if stored.entry is not None:
            if not self.reuse_deleted:
                raise was_deleted(stored)
            context.require(permissions.create(stored.handle))
        if not self.published:
            require_unpublishable(stored)
        values = compose(context, stored, self.values, creates=True, state=self._state)
        return plan_change(context, stored, Action.CREATE, values, self._state)

    @property
    def _state(self) -> State:
        if self.tombstone:
            return State.TOMBSTONE
        return State.NORMAL if self.published else State.UNPUBLISHED

    def _knows(self, context: Context, stored: StoredRecord) -> bool:
        """Whether the caller can know of a handle that is not public: its readers, and the owner of a reservation."""
        if stored.state is State.RESERVED and context.is_allowed(
            permissions.register(stored.handle, self.values or _ANY_VALUE)
        ):
            return True
        return context.is_allowed(permissions.read(stored.handle, Scope.CREATE))

    def _require_create(self, context: Context, stored: StoredRecord) -> None:
        """The permission to create a handle: the protocol's, unless the policy has its own rule."""
        if stored.policy.who_may_mint is Audience.ADMINISTRATORS or stored.handle.is_prefix_handle:
            context.require(permissions.create(stored.handle))
        else:
            require_mint(context, stored.policy, stored.handle.prefix, Scope.CREATE)

    def _replace(self, context: Context, stored: StoredRecord) -> Plan[ChangeResult]:
        # Values that the namespace keeps although the request omits them are not removed: they need no permission.
        kept = [value for value in policy_values(stored) if value.index not in {new.index for new in self.values}]
        context.require(permissions.overwrite(stored.handle, stored.values, (*self.values, *kept)))
        require_changeable(stored, (*self.values, *kept))
        if (
            self.keeps_administrator
            and values_of_type(stored.values, HS_ADMIN)
            and not values_of_type(self.values, HS_ADMIN)
        ):
            raise no_administrator_left(stored)
        values = compose(context, stored, self.values, whole=True)
        return plan_change(context, stored, Action.UPDATE, values, overwritten=True)

    def _register(self, context: Context, stored: StoredRecord) -> Plan[ChangeResult]:
        """Create the record of a reserved handle: its owner has the permission."""
        kept = () if values_of_type(self.values, HS_ADMIN) else values_of_type(stored.values, HS_ADMIN)
        requirement = permissions.register(stored.handle, self.values or _ANY_VALUE)
        if not context.is_allowed(requirement):
            raise already_exists(stored)
        context.require(requirement)
        complete = (*self.values, *reindex(kept, self.values))
        values = compose(context, stored, complete, creates=True, state=self._state)
        return plan_change(context, stored, Action.CREATE, values, self._state)


@dataclass(frozen=True, slots=True)
class Add(Deferrable):
    """Add values to a record. With `overwrite` those at the same indexes are replaced."""

    handle: Handle
    values: tuple[Value, ...]
    overwrite: bool = False

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.4: responsibility, indexes, identity, existence, conflicts, permission, policy."""
        stored = context.get_for_update(self.handle)
        if not self.values:
            raise Refused(ResponseCode.INVALID_VALUE, "Value list was empty")
        check_indexes(self.values)
        require_identity(context, f"add values to {display_name(self.handle)}")
        require_record(context, stored)
        new = {value.index for value in self.values}
        shared = [value.index for value in stored.values if value.index in new]
        if shared and not self.overwrite:
            raise Refused(ResponseCode.VALUE_ALREADY_EXISTS, f"Index conflict for {shared[0]}")
        context.require(permissions.add(stored.handle, self.values, stored.values if self.overwrite else ()))
        kept = [value for value in stored.values if value.index not in new]
        require_changeable(stored, (*kept, *self.values))
        values = compose(context, stored, (*kept, *self.values))
        return plan_change(context, stored, Action.UPDATE, values, overwritten=bool(shared))


@dataclass(frozen=True, slots=True)
class Remove(Deferrable):
    """Remove the values with these indexes."""

    handle: Handle
    indexes: tuple[int, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.5: responsibility, identity, existence of record and values, permission, policy."""
        stored = context.get_for_update(self.handle)
        require_identity(context, f"remove values from {display_name(self.handle)}")
        require_record(context, stored)
        gone = set(self.indexes)
        if missing := gone - {value.index for value in stored.values}:
            reason = f"{display_name(self.handle)} has no value with index {min(missing)}"
            raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
        context.require(permissions.remove(stored.handle, [value for value in stored.values if value.index in gone]))
        kept = [value for value in stored.values if value.index not in gone]
        require_changeable(stored, kept)
        values = compose(context, stored, kept)
        return plan_change(context, stored, Action.UPDATE, values)


@dataclass(frozen=True, slots=True)
class Modify(Deferrable):
    """Replace the values with the same indexes."""

    handle: Handle
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.6: responsibility, existence, each value, permission, duplicates, policy."""
        stored = context.get_for_update(self.handle)
        require_record(context, stored)
        before = {value.index: value for value in stored.values}
        for value in self.values:
            old = before.get(value.index)
            if old is None:
                reason = f"{display_name(self.handle)} has no value with index {value.index}"
                raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
            _require_writable(context, stored, old, value)
        context.require(permissions.modify(stored.handle, [(before[value.index], value) for value in self.values]))
        after = {value.index: value for value in self.values}
        if len(after) < len(self.values):
            raise Refused(ResponseCode.INVALID_VALUE, "The request contains an index twice")
        require_changeable(stored, tuple((before | after).values()))
        values = compose(context, stored, tuple((before | after).values()))
        return plan_change(context, stored, Action.UPDATE, values)


@dataclass(frozen=True, slots=True)
class Delete(Deferrable):
    """Delete a record. The handle is not free afterwards."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.3: identity, existence, permission. The prefix need not be homed, so that strays can be deleted.

        A handle that belongs to another server of this site is deleted there; an operator can delete its copy here.
        """
        if fold(self.handle.prefix) == SITE_PREFIX or context.snapshot.is_responsible(self.handle):
            stored = context.get_for_update(self.handle)
        else:
            stored = context.snapshot.stored(self.handle)
            if (other := other_server(context.snapshot, self.handle)) is not None:
                if not (stored.exists and isinstance(context.identity, LocalIdentity)):
                    raise other
                context.warn(WarningKind.OTHER_SERVER(other.advice, handle=self.handle))
        require_identity(context, f"delete {display_name(self.handle)}")
        require_record(context, stored, Scope.DELETE)
        context.require(permissions.delete(stored.handle))
        if refusals := stored.policy.check_deletion(stored.handle):
            raise Refused.from_refusals(refusals)
        return plan_change(context, stored, Action.DELETE, (), State.ABSENT)


@dataclass(frozen=True, slots=True)
class Home(Deferrable):
    """Become responsible for a prefix, or stop."""

    name: str
    """The entry of the table of homed prefixes: `0.NA/12345`, a bare prefix, or a marker `0.NA/0.NA/12345`."""
    unhome: bool = False

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.8: a prefix handle, a server administrator. Nothing happens if the prefix is already in that state."""
        names = self._names()
        before, _, prefix = names[0].rpartition("/")
        about = "" if "/" in before else prefix  # a marker covers more than one prefix
        context.require(permissions.server_operation(OpCode.UNHOME_NA if self.unhome else OpCode.HOME_NA, about))
        action, state = (Action.UNHOME, State.ABSENT) if self.unhome else (Action.HOME, State.NORMAL)
        drafts = tuple(
            [
                Draft(action, state, homed_name(name), context.interface, str(context.identity), context.note)
                for name in names
                if context.snapshot.is_homed(name) is self.unhome
            ]
        )
        if drafts and not self.unhome:
            drafts += self._default_policy(context, names[0])
        handle = Handle.parse_lenient(homed_name(names[0]))
        entry = context.snapshot.entry(record_key(str(handle)))
        last = 0 if entry is None else entry.seq
        return Plan(lambda seq: ChangeResult(handle, seq or last), drafts, reason=context.reasons[-1])

    def _default_policy(self, context: Context, name: str) -> tuple[Draft, ...]:
        """The policy of a prefix that has none. It is stored, so that a later default does not change it."""
        prefix = name.partition("/")[2]
        if "/" in prefix or fold(prefix) == PREFIX_OF_PREFIXES:
            return ()
        if context.snapshot.policy_entry(prefix) is not None:
            return ()
        policy = context.snapshot.rules.default_policy
        return (policy_draft(context, prefix, policy, Action.CREATE, BY_DEFAULT),)

    def _names(self) -> tuple[str, ...]:
        """The entries of the table: a bare prefix means its prefix handle, and is unhomed as such too."""
        prefix = self.name
        for _ in range(2):  # a marker has the prefix of prefixes twice
            if fold(prefix).startswith(f"{PREFIX_OF_PREFIXES}/"):
                prefix = prefix.partition("/")[2]
        try:
            check_prefix_syntax(prefix)
        except InvalidName as problem:
            advice = AdviceKind.PREFIX_HANDLE_EXAMPLE()
            raise Refused(ResponseCode.INVALID_HANDLE, NOT_A_PREFIX_HANDLE, advice, problem.rule) from problem
        if fold(prefix) == SITE_PREFIX:
            raise Refused(ResponseCode.INVALID_HANDLE, f"{SITE_PREFIX} is reserved for the installation")
        if "/" in self.name:
            return (self.name,)
        expanded = f"{PREFIX_OF_PREFIXES}/{self.name}"
        return (expanded, self.name) if self.unhome else (expanded,)


_ANY_VALUE = (Value(1, "", b""),)  # for a permission that does not depend on the value


def require_identity(context: Context, action: str) -> None:
    """Refuse anonymous callers."""
    if isinstance(context.identity, Anonymous):
        reason = f"Authentication required to {action}"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, AdviceKind.AUTHENTICATE())


def require_record(context: Context, stored: StoredRecord, *scopes: Scope) -> None:
    """Refuse a handle without a record; one that is not public exists only for its administrators.

    For a token it exists if the token has one of the scopes, by default one that changes values.
    """
    alternatives = (permissions.read(stored.handle, scope) for scope in scopes or (Scope.UPDATE, Scope.TRANSFER))
    if not stored.exists or not (stored.is_public or any(map(context.is_allowed, alternatives))):
        raise not_found(stored)


def require_changeable(stored: StoredRecord, values: Sequence[Value]) -> None:
    """Refuse changes that the state does not allow.

    A tombstone keeps its values, except for its administrators and its own types. A reserved handle gets values when
    its record is created; until then only administrators, who own it.
    """
    if stored.state not in (State.TOMBSTONE, State.RESERVED):
        return
    differences = Differences.between(stored.values, values)
    written = (*differences.added, *[one for pair in differences.modified for one in pair])
    if stored.state is State.RESERVED:
        if not all(map(permissions.is_admin, written)):
            raise still_reserved(stored)
        return
    policy = stored.policy
    types = (policy.tombstone_reason_type, policy.tombstone_date_type, policy.tombstone_replacement_type)
    allowed = {fold(type_) for type_ in types}
    kept = {fold(value.type) for value in values}
    lost = {fold(value.type) for value in differences.removed} & {fold(type_) for type_ in types[:2]} - kept
    changed = (*written, *differences.removed)
    if lost or not all(permissions.is_admin(value) or fold(value.type) in allowed for value in changed):
        reason = f"Handle {display_name(stored.requested)} is a tombstone and cannot be changed"
        raise StateConflict(reason, AdviceKind.RESTORE(handle=stored.handle), "S8")


def require_unpublishable(stored: StoredRecord) -> None:
    """Refuse to hide a prefix handle, with which clients find the service of all its handles."""
    if stored.handle.is_prefix_handle:
        reason = (
            f"{display_name(stored.requested)} is a prefix handle and must stay public: clients find the service by it"
        )
        raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.STOP_HOSTING_OR_KEEP_PUBLIC(), "H8")


def already_exists(stored: StoredRecord, *, can_replace: bool = True) -> Refused:
    """The refusal for a handle that already exists. `can_replace` if a record is created."""
    reason = f"Handle {display_name(stored.requested)} already exists"
    if can_replace and stored.state is State.TOMBSTONE:  # replacing it would be refused
        reason += ", as a tombstone"
        advice = AdviceKind.RESTORE(handle=stored.requested)
    elif can_replace and stored.is_public:
        advice = AdviceKind.OVERWRITE(handle=stored.requested)
    else:
        advice = AdviceKind.CHOOSE_HANDLE()
    return Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, advice, "H7")


def no_administrator_left(stored: StoredRecord) -> Refused:
    """The refusal for a record that nobody could change any more."""
    reason = f"Handle {display_name(stored.requested)} would have no administrator, and nobody could change it again"
    return Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.KEEP_ADMINISTRATOR())


def was_deleted(stored: StoredRecord, *, can_reuse: bool = True) -> Refused:
    """The refusal for a deleted handle, which may have been cited. `can_reuse` if a record is created."""
    advice = AdviceKind.REUSE_DELETED(handle=stored.requested) if can_reuse else AdviceKind.CHOOSE_HANDLE()
    reason = f"Handle {display_name(stored.requested)} was deleted, and a deleted handle is not reused by default"
    return Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, advice, "S8")


def _require_writable(context: Context, stored: StoredRecord, old: Value, new: Value) -> None:
    """Refuse to replace a read-only value."""
    decision = authorize_write(context.identity, stored.handle, old, new)
    if not decision.allowed:
        raise Refused.from_decision(decision)


def plan_change(
    context: Context,
    stored: StoredRecord,
    action: Action,
    values: Sequence[Value],
    state: State | None = None,
    *,
    overwritten: bool = False,
) -> Plan[ChangeResult]:
    """The plan that stores the values; nothing is appended if nothing changes."""
    after = (State.NORMAL if action is Action.CREATE else stored.state) if state is None else state
    reason = context.reasons[-1] if context.reasons else ""
    draft = context.draft(stored, action, values, after)
    if stored.exists and after is stored.state and not _differs(stored, draft.values):
        return Plan(lambda _: ChangeResult(stored.handle, stored.seq, overwritten), reason=reason)
    warnings = tuple(context.warnings)
    return Plan(lambda seq: ChangeResult(stored.handle, seq, overwritten, warnings), (draft,), reason=reason)


def _differs(stored: StoredRecord, values: tuple[Value, ...]) -> bool:
    differences = Differences.between(stored.values, values)
    return bool(differences.added or differences.removed or differences.modified)


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a value may be cached."""

    seconds: int
    kind: TtlType = TtlType.RELATIVE


@dataclass(frozen=True, slots=True)
class PartialValue:
    """A value from a request; the server chooses what it leaves out."""

    type: str
    data: bytes
    index: int | None = None
    permissions: Permission | None = None
    ttl: Ttl | None = None
    references: tuple[ValueRef, ...] | None = None
    timestamp: int = 0
    """Kept by an import only; 0 for none."""

    def __post_init__(self) -> None:
        if self.permissions is None and has_type(self.type, HS_SECKEY):  # never published by accident
            object.__setattr__(self, "permissions", PRIVATE_PERMISSIONS)

    @property
    def first_index(self) -> int:
        """Where the search for a free index starts."""
        return FIRST_ADMIN_INDEX if has_type(self.type, HS_ADMIN) else 1

    def at(self, index: int, ttl: int) -> Value:
        """The value at an index, with a default TTL."""
        permissions = DEFAULT_PERMISSIONS if self.permissions is None else self.permissions
        seconds, kind = (ttl, TtlType.RELATIVE) if self.ttl is None else (self.ttl.seconds, self.ttl.kind)
        return Value(index, self.type, self.data, seconds, kind, permissions, self.timestamp, self.references or ())

    def replacing(self, old: Value) -> Value:
        """The value in place of another, with what it leaves out taken from that one."""
        life = self.ttl or Ttl(old.ttl, old.ttl_type)
        return replace(
            old,
            type=self.type,
            data=self.data,
            permissions=old.permissions if self.permissions is None else self.permissions,
            ttl=life.seconds,
            ttl_type=life.kind,
            references=old.references if self.references is None else self.references,
        )


def assign_indexes(
    values: Sequence[PartialValue], taken: Iterable[Value] = (), ttl: int | None = None
) -> tuple[Value, ...]:
    """Give each value a free index beside those that are taken."""
    used = {value.index for value in taken} | {value.index for value in values if value.index is not None}
    default_ttl = DEFAULT_TTL if ttl is None else ttl
    free: dict[int, int] = {}
    result = []
    for value in values:
        index = value.index
        if index is None:
            # The search for each start continues where it stopped: earlier indexes are taken by now.
            first = value.first_index
            index = free.get(first, first)
            while index in used:
                index += 1
            free[first] = index + 1
            used.add(index)
        result.append(value.at(index, default_ttl))
    return tuple(result)


def merge_values(
    values: Sequence[PartialValue], existing: Sequence[Value], ttl: int | None = None
) -> tuple[Value, ...]:
    """Replace existing values at the same index, or the only value of the same type; give others a free index.

    Where a type has several values, the request must name the index.
    """
    before = {value.index: value for value in existing}
    replaced: list[Value] = []
    new: list[PartialValue] = []
    for value in values:
        index = value.index if value.index is not None else _only_index(value.type, existing)
        if index in before:
            replaced.append(value.replacing(before[index]))
        else:
            new.append(value)
    return (*replaced, *assign_indexes(new, (*existing, *replaced), ttl))


def _only_index(type_: str, existing: Sequence[Value]) -> int | None:
    indexes = [value.index for value in existing if fold(value.type) == fold(type_)]
    if len(indexes) > 1:
        shown = ", ".join(map(str, indexes[:5]))
        reason = f"The record has {len(indexes)} values of type {quote_text(type_)}, at the indexes {shown}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_INDEX())
    return indexes[0] if indexes else None


# Commands with partial values


@dataclass(frozen=True, slots=True)
class CreateRecord(Deferrable):
    """Create a record of partial values."""

    handle: Handle
    values: tuple[PartialValue, ...] = ()
    complete: tuple[Value, ...] = ()
    overwrite: bool = False
    """Whether an existing record is replaced, except for its administrators if the values name none."""
    reuse_deleted: bool = False
    published: bool = True
    preserve_dates: bool = False
    """Whether the date of creation and the timestamps of the values are kept (A3): an import, by a server
    administrator."""
    tombstone: bool = False

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Create`."""
        if self.preserve_dates:
            context = context.for_import()
        ttl = context.snapshot.policy(self.handle.prefix).default_ttl
        values = (*self.complete, *assign_indexes(self.values, self.complete, ttl))
        if self.overwrite:
            values = keep_administrators(context.get_hosted(self.handle), values)
        command = Create(self.handle, values, self.overwrite, self.reuse_deleted, self.published)
        return (replace(command, tombstone=True) if self.tombstone else command).decide(context)


@dataclass(frozen=True, slots=True)
class AddValues(Deferrable):
    """Add partial values, at free indexes."""

    handle: Handle
    values: tuple[PartialValue, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Add`."""
        stored = context.get_hosted(self.handle)
        values = assign_indexes(self.values, stored.values, stored.policy.default_ttl)
        return Add(self.handle, values).decide(context)


@dataclass(frozen=True, slots=True)
class SetValues(Deferrable):
    """Replace values by partial values; see `merge_values`."""

    handle: Handle
    values: tuple[PartialValue, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Modify` if every value replaces another, otherwise as for `Add`; never replaces read-only values."""
        stored = context.get_hosted(self.handle)
        require_record(context, stored)
        values = merge_values(self.values, stored.values, stored.policy.default_ttl)
        before = {value.index: value for value in stored.values}
        if all(value.index in before for value in values):
            return Modify(self.handle, values).decide(context)
        for value in values:
            if value.index in before:
                _require_writable(context, stored, before[value.index], value)
        return Add(self.handle, values, overwrite=True).decide(context)


@dataclass(frozen=True, slots=True)
class ReplaceRecord(Deferrable):
    """Replace an existing record, except for its administrators if the values name none."""

    handle: Handle
    complete: tuple[Value, ...] = ()
    values: tuple[PartialValue, ...] = ()
    keep_unreadable: bool = False
    """Whether values stay that nobody can read: a caller who has read the record cannot repeat them."""

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Create` with `overwrite`; a record that does not exist is not created."""
        stored = context.get_hosted(self.handle)
        require_record(context, stored)
        kept = [value for value in stored.values if self.keep_unreadable and not value.is_readable]
        taken = (*self.complete, *kept)
        values = (*self.complete, *assign_indexes(self.values, taken, stored.policy.default_ttl))
        used = {value.index for value in values}
        values += tuple([value for value in kept if value.index not in used])
        values = keep_administrators(stored, values)
        return Create(self.handle, values, overwrite=True).decide(context)


def keep_administrators(stored: StoredRecord, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values of a whole record, with its existing administrators if the values name none.

    `Create` itself keeps the owner of a reserved handle.
    """
    return values if stored.state is State.RESERVED else with_administrators(stored.values, values)


def with_administrators(existing: tuple[Value, ...], values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values of a whole record, with the administrators of the existing one if they name none."""
    if values_of_type(values, HS_ADMIN):
        return values
    return (*values, *reindex(values_of_type(existing, HS_ADMIN), values))
