"""The operations of the protocol: create, add, modify, remove, delete, home and unhome, list.

Semantics, order of checks and response codes are those of deployed servers (native-protocol reference, §16); the order
can be observed, and clients rely on it. What a namespace's policy demands is checked where those servers have a local
policy hook: after the right to do it, before anything is stored. Beyond them, a name has a life here: one that was
deleted is not free again unless somebody says so, and one that is reserved or unpublished exists for its
administrators only.

Values as somebody gives them, with open ends: where a value is to stand may depend on what is there.

Where no index is given a free one is chosen, from 1, for HS_ADMIN from 100 as deployed tools do. That needs the record,
so it happens while an operation is decided, on the state of the ledger on which it is decided. What is said of neither
permissions nor TTL is as usual for new values, and stays as it is where a value takes the place of another.

Who gives a whole record means its content. Where they name no administrators, those of the record stay: without any,
nobody but who runs the server could change it again. Who means that removes them, by their indexes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import homed_name, policy_name, record_key
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.types import HS_ADMIN, has_type
from perseid.records.value import DEFAULT_PERMISSIONS, DEFAULT_TTL, Permission, TtlType, Value, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_write
from perseid.registry.access.minting_rights import require_mint
from perseid.registry.access.permissions import Differences, display_name
from perseid.registry.access.scopes import Scope
from perseid.registry.context import FIRST_ADMIN_INDEX, Context, Plan, check_indexes, not_found
from perseid.registry.identity import Anonymous
from perseid.registry.policy.aliases import check_aliases
from perseid.registry.policy.keys import Audience
from perseid.registry.results import ChangeResult, Refused
from perseid.registry.snapshot import SITE_PREFIX, StoredRecord, values_of_type
from perseid.wire.codes import OpCode, ResponseCode

from .composition import compose, policy_values, reindex
from .namespaces import BY_DEFAULT, policy_draft


@dataclass(frozen=True, slots=True)
class Create:
    """Make a record. With `overwrite` one that exists is replaced, as a whole."""

    handle: Handle
    values: tuple[Value, ...]
    overwrite: bool = False
    again: bool = False
    """Whether a name that was deleted may be used again."""
    published: bool = True
    """Whether the public may see it; otherwise it waits to be published."""
    keeps_administrator: bool = False
    """Whether a record that has administrators is not replaced by one without any: nobody could change that again."""

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.2: responsibility, name, indexes, existence, identity, right, policy."""
        stored = context.get_hosted(self.handle, new=not self.overwrite)
        context.check_registrable(stored)
        check_indexes(self.values)
        if stored.exists and not stored.is_public and not self._knows(context, stored):
            # Who cannot see such a name, and may not make one here, is refused as if it were free, in the same words.
            self._demand_making(context, stored)
            require_identity(context, f"create {display_name(self.handle)}")
        if stored.state is State.RESERVED:
            return self._register(context, stored)
        if stored.exists and not self.overwrite:
            raise already_exists(stored)
        if stored.exists:
            return self._replace(context, stored)
        self._demand_making(context, stored)
        if stored.entry is not None:
            if not self.again:
                raise was_deleted(stored)
            context.require(permissions.create(stored.handle))
        if not self.published:
            require_unpublishable(stored)
        values = compose(context, stored, self.values, creates=True)
        return plan_change(context, stored, Action.CREATE, values, self._state)

    @property
    def _state(self) -> State:
        return State.NORMAL if self.published else State.UNPUBLISHED

    def _knows(self, context: Context, stored: StoredRecord) -> bool:
        """Whether somebody may know of a name that the public does not see: its readers, and who it is reserved for."""
        if stored.state is State.RESERVED and context.is_allowed(
            permissions.register(stored.handle, self.values or _ANY_VALUE)
        ):
            return True
        return context.is_allowed(permissions.read(stored.handle, Scope.CREATE))

    def _demand_making(self, context: Context, stored: StoredRecord) -> None:
        """The right to make a name: the protocol's, unless the policy has a rule of its own."""
        if stored.policy.who_may_mint is Audience.ADMINISTRATORS or stored.handle.is_prefix_handle:
            context.require(permissions.create(stored.handle))
        else:
            require_mint(context, stored.policy, stored.handle.prefix, Scope.CREATE)

    def _replace(self, context: Context, stored: StoredRecord) -> Plan[ChangeResult]:
        # What the namespace keeps, though the request leaves it out, is no removal: it needs no permission.
        kept = [value for value in policy_values(stored) if value.index not in {new.index for new in self.values}]
        context.require(permissions.overwrite(stored.handle, stored.values, (*self.values, *kept)))
        require_not_tombstone(stored, (*self.values, *kept))
        if (
            self.keeps_administrator
            and values_of_type(stored.values, HS_ADMIN)
            and not values_of_type(self.values, HS_ADMIN)
        ):
            raise no_administrator_left(stored)
        values = compose(context, stored, self.values, whole=True)
        return plan_change(context, stored, Action.UPDATE, values, overwritten=True)

    def _register(self, context: Context, stored: StoredRecord) -> Plan[ChangeResult]:
        """Associate a reserved name with a thing: the right is with whom it was reserved for."""
        kept = () if values_of_type(self.values, HS_ADMIN) else values_of_type(stored.values, HS_ADMIN)
        right = permissions.register(stored.handle, self.values or _ANY_VALUE)
        if not context.is_allowed(right):
            raise already_exists(stored)
        context.require(right)
        values = compose(context, stored, (*self.values, *reindex(kept, self.values)), creates=True)
        return plan_change(context, stored, Action.CREATE, values, self._state)


@dataclass(frozen=True, slots=True)
class Add:
    """Add values to a record. With `overwrite` those at the same indexes are replaced."""

    handle: Handle
    values: tuple[Value, ...]
    overwrite: bool = False

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.4: responsibility, indexes, identity, existence, conflicts, right, policy."""
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
        require_not_tombstone(stored, (*kept, *self.values))
        values = compose(context, stored, (*kept, *self.values))
        return plan_change(context, stored, Action.UPDATE, values, overwritten=bool(shared))


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the values with these indexes."""

    handle: Handle
    indexes: tuple[int, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.5: responsibility, identity, existence of record and values, right, policy."""
        stored = context.get_for_update(self.handle)
        require_identity(context, f"remove values of {display_name(self.handle)}")
        require_record(context, stored)
        gone = set(self.indexes)
        if missing := gone - {value.index for value in stored.values}:
            reason = f"{display_name(self.handle)} has no value with the index {min(missing)}"
            raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
        context.require(permissions.remove(stored.handle, [value for value in stored.values if value.index in gone]))
        kept = [value for value in stored.values if value.index not in gone]
        require_not_tombstone(stored, kept)
        values = compose(context, stored, kept)
        return plan_change(context, stored, Action.UPDATE, values)


@dataclass(frozen=True, slots=True)
class Modify:
    """Put values in the place of those with the same indexes."""

    handle: Handle
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.6: responsibility, existence, each value, right, duplicates, policy."""
        stored = context.get_for_update(self.handle)
        require_record(context, stored)
        before = {value.index: value for value in stored.values}
        for value in self.values:
            old = before.get(value.index)
            if old is None:
                reason = f"{display_name(self.handle)} has no value with the index {value.index}"
                raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
            decision = authorize_write(context.identity, stored.handle, old, value)
            if not decision.allowed:
                raise Refused.from_decision(decision)
        context.require(permissions.modify(stored.handle, [(before[value.index], value) for value in self.values]))
        after = {value.index: value for value in self.values}
        if len(after) < len(self.values):
            raise Refused(ResponseCode.INVALID_VALUE, "an index stands twice in the request")
        require_not_tombstone(stored, tuple((before | after).values()))
        values = compose(context, stored, tuple((before | after).values()))
        return plan_change(context, stored, Action.UPDATE, values)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a record. The name is not free afterwards."""

    handle: Handle

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.3: identity, existence, right; a prefix that is not homed here is tolerated, so that strays can go."""
        if fold(self.handle.prefix) == SITE_PREFIX or context.snapshot.is_responsible(self.handle):
            stored = context.get_for_update(self.handle)
        else:
            stored = context.snapshot.stored(self.handle)
        require_identity(context, f"delete {display_name(self.handle)}")
        require_record(context, stored, Scope.DELETE)
        context.require(permissions.delete(stored.handle))
        if refusals := stored.policy.check_deletion(stored.handle):
            raise Refused.from_refusals(refusals)
        return plan_change(context, stored, Action.DELETE, (), State.ABSENT)


@dataclass(frozen=True, slots=True)
class Home:
    """Become responsible for a prefix, or cease to be."""

    name: str
    """The entry of the table of homed prefixes: `0.NA/12345`, a bare prefix, or a marker `0.NA/0.NA/12345`."""
    unhome: bool = False

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """§16.8: a prefix handle, a server administrator. Nothing happens if it is so already."""
        names = self._names()
        before, _, prefix = names[0].rpartition("/")
        about = "" if "/" in before else prefix  # a marker is about more than one prefix
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
        """The policy of a prefix that has none: it is written down, so that a later default changes nothing here."""
        prefix = name.partition("/")[2]
        if "/" in prefix or fold(prefix) == PREFIX_OF_PREFIXES:
            return ()
        if context.snapshot.entry(record_key(policy_name(prefix))) is not None:
            return ()
        policy = context.snapshot.rules.default_policy
        return (policy_draft(context, prefix, policy, Action.CREATE, BY_DEFAULT),)

    def _names(self) -> tuple[str, ...]:
        """The entries of the table: a prefix alone means its prefix handle, and is unhomed as such too."""
        prefix = self.name
        for _ in range(2):  # a marker has the prefix of prefixes twice
            if fold(prefix).startswith(f"{PREFIX_OF_PREFIXES}/"):
                prefix = prefix.partition("/")[2]
        try:
            prefixes.check_prefix(prefix)
        except InvalidName as problem:
            raise Refused(ResponseCode.INVALID_HANDLE, "Handle is not a prefix handle", str(problem)) from problem
        if fold(prefix) == SITE_PREFIX:
            raise Refused(ResponseCode.INVALID_HANDLE, f"{SITE_PREFIX} is the installation's own, in every one")
        if "/" in self.name:
            return (self.name,)
        expanded = f"{PREFIX_OF_PREFIXES}/{self.name}"
        return (expanded, self.name) if self.unhome else (expanded,)


_ANY_VALUE = (Value(1, "", b""),)  # for a right that does not depend on which


def require_identity(context: Context, action: str) -> None:
    """Ask whoever is unknown to say who they are."""
    if isinstance(context.identity, Anonymous):
        advice = "answer a challenge, or use a session"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, f"who wants to {action} has to be known", advice)


def require_record(context: Context, stored: StoredRecord, *scopes: Scope) -> None:
    """Refuse a name without a record; one that is not public exists for its administrators only.

    To a token it exists if it is good for one of the words, by which values are changed if nothing is said.
    """
    ways = (permissions.read(stored.handle, scope) for scope in scopes or (Scope.UPDATE, Scope.TRANSFER))
    if not stored.exists or not (stored.is_public or any(map(context.is_allowed, ways))):
        raise not_found(stored)


def require_not_tombstone(stored: StoredRecord, wanted: Sequence[Value]) -> None:
    """Refuse to give values to a name whose thing is gone. Administrators may change, and what the tombstone says."""
    if stored.state is State.TOMBSTONE:
        policy = stored.policy
        says = (policy.tombstone_reason_type, policy.tombstone_date_type, policy.tombstone_replacement_type)
        allowed = {fold(type_) for type_ in says}
        differences = Differences.between(stored.values, wanted)
        changed = (*differences.added, *differences.removed, *[one for pair in differences.modified for one in pair])
        kept = {fold(value.type) for value in wanted}
        lost = {fold(value.type) for value in differences.removed} & {fold(type_) for type_ in says[:2]} - kept
        if lost or not all(permissions.is_admin(value) or fold(value.type) in allowed for value in changed):
            reason = f"{display_name(stored.requested)} has a tombstone: what it stood for is gone"
            advice = f"if the thing has come back, take the tombstone away first: {undo_tombstone_command(stored)}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "S8")


def require_unpublishable(stored: StoredRecord) -> None:
    """Refuse to keep the public from a prefix handle, by which clients find the service of all names under it."""
    if stored.handle.is_prefix_handle:
        reason = f"{display_name(stored.requested)} says who serves a prefix, and everybody needs it to find the names"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, "leave it public, or unhome the prefix", "H8")


def undo_tombstone_command(stored: StoredRecord) -> str:
    """The command that takes a tombstone away."""
    return f"perseid tombstone {quote_text(str(stored.handle))} --undo"


def already_exists(stored: StoredRecord) -> Refused:
    """The name is taken."""
    advice = "choose another name, or replace the record (overwrite)" if stored.is_public else "choose another name"
    return Refused(ResponseCode.HANDLE_ALREADY_EXISTS, f"{display_name(stored.requested)} exists already", advice, "H7")


def no_administrator_left(stored: StoredRecord) -> Refused:
    """Nobody could change the record any more."""
    reason = (
        f"{display_name(stored.requested)} would be left without any administrator, and nobody could change it again"
    )
    return Refused(ResponseCode.INVALID_VALUE, reason, "give it an HS_ADMIN value, as it has now")


def was_deleted(stored: StoredRecord) -> Refused:
    """The name was used once, and stands in somebody's citation."""
    reason = f"{display_name(stored.requested)} was deleted, and a name is not given a second time"
    return Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "choose another name, or say that it is meant", "S8")


def plan_change(
    context: Context,
    stored: StoredRecord,
    action: Action,
    values: Sequence[Value],
    state: State | None = None,
    *,
    overwritten: bool = False,
) -> Plan[ChangeResult]:
    """The plan that makes a record what it shall be; nothing is appended if it is that already."""
    after = (State.NORMAL if action is Action.CREATE else stored.state) if state is None else state
    reason = context.reasons[-1] if context.reasons else ""
    draft = context.draft(stored, action, values, after)
    if stored.exists and after is stored.state and not _differs(stored, draft.values):
        return Plan(lambda _: ChangeResult(stored.handle, stored.seq, overwritten), reason=reason)
    return Plan(lambda seq: ChangeResult(stored.handle, seq, overwritten), (draft,), reason=reason)


def _differs(stored: StoredRecord, values: tuple[Value, ...]) -> bool:
    differences = Differences.between(stored.values, values)
    return bool(differences.added or differences.removed or differences.modified)


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a value may be kept."""

    seconds: int
    kind: TtlType = TtlType.RELATIVE


@dataclass(frozen=True, slots=True)
class PartialValue:
    """A value as somebody gave it: what they left out is open."""

    type: str
    data: bytes
    index: int | None = None
    permissions: Permission | None = None
    ttl: Ttl | None = None
    references: tuple[ValueRef, ...] | None = None

    @property
    def first_index(self) -> int:
        """From where on a free index is looked for."""
        return FIRST_ADMIN_INDEX if has_type(self.type, HS_ADMIN) else 1

    def at(self, index: int, ttl: int) -> Value:
        """The value at an index, kept for so long if nothing else is said."""
        permissions = DEFAULT_PERMISSIONS if self.permissions is None else self.permissions
        life = self.ttl or Ttl(ttl)
        return Value(
            index, self.type, self.data, life.seconds, life.kind, permissions, references=self.references or ()
        )

    def instead_of(self, old: Value) -> Value:
        """The value in the place of another, which keeps what nobody spoke of."""
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
    given: Sequence[PartialValue], taken: Iterable[Value] = (), ttl: int | None = None
) -> tuple[Value, ...]:
    """The values to add beside those that are there, each with an index."""
    used = {value.index for value in taken} | {each.index for each in given if each.index is not None}
    life = DEFAULT_TTL if ttl is None else ttl
    free: dict[int, Iterator[int]] = {}
    found = []
    for each in given:
        index = each.index
        if index is None:
            # Each beginning has a row of its own that goes on where it was: those before are taken by now.
            row = free.setdefault(each.first_index, count(each.first_index))
            index = next(number for number in row if number not in used)
            used.add(index)
        found.append(each.at(index, life))
    return tuple(found)


def merge_values(given: Sequence[PartialValue], there: Sequence[Value], ttl: int | None = None) -> tuple[Value, ...]:
    """The values in the place of those that are there: at their index, or where the one value of their type stands.

    What has no place yet gets one. Where a type has several values, it has to be said which is meant.
    """
    before = {value.index: value for value in there}
    instead: list[Value] = []
    new: list[PartialValue] = []
    for each in given:
        index = each.index if each.index is not None else _only_index(each.type, there)
        if index in before:
            instead.append(each.instead_of(before[index]))
        else:
            new.append(each)
    return (*instead, *assign_indexes(new, (*there, *instead), ttl))


def _only_index(type_: str, there: Sequence[Value]) -> int | None:
    found = [value.index for value in there if fold(value.type) == fold(type_)]
    if len(found) > 1:
        indexes = ", ".join(map(str, found[:5]))
        reason = f"there are {len(found)} values of the type {quote_text(type_)}, at {indexes}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "say which is meant, by its index")
    return found[0] if found else None


# Operations


@dataclass(frozen=True, slots=True)
class CreateRecord:
    """Make a record of values as they were given."""

    handle: Handle
    given: tuple[PartialValue, ...] = ()
    whole: tuple[Value, ...] = ()
    """Values that are complete."""
    overwrite: bool = False
    """Whether a record that exists is replaced, but for its administrators, if these values name none."""
    again: bool = False
    published: bool = True

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Create`."""
        ttl = context.snapshot.policy(self.handle.prefix).default_ttl
        values = (*self.whole, *assign_indexes(self.given, self.whole, ttl))
        if self.overwrite:
            values = keep_administrators(context.get_hosted(self.handle), values)
        plan = Create(self.handle, values, self.overwrite, self.again, self.published).decide(context)
        check_aliases(context.snapshot, self.handle, values)
        return plan


@dataclass(frozen=True, slots=True)
class AddValues:
    """Add values as they were given, where there is room."""

    handle: Handle
    given: tuple[PartialValue, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Add`."""
        stored = context.get_hosted(self.handle)
        values = assign_indexes(self.given, stored.values, stored.policy.default_ttl)
        plan = Add(self.handle, values).decide(context)
        check_aliases(context.snapshot, self.handle, values)
        return plan


@dataclass(frozen=True, slots=True)
class SetValues:
    """Put values, as they were given, in the place of others; those that have no place yet get one."""

    handle: Handle
    given: tuple[PartialValue, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Modify` where every value has its place, otherwise as for `Add`."""
        stored = context.get_hosted(self.handle)
        require_record(context, stored)
        values = merge_values(self.given, stored.values, stored.policy.default_ttl)
        fits = {value.index for value in values} <= {value.index for value in stored.values}
        change = Modify(self.handle, values) if fits else Add(self.handle, values, overwrite=True)
        plan = change.decide(context)
        check_aliases(context.snapshot, self.handle, values)
        return plan


@dataclass(frozen=True, slots=True)
class ReplaceRecord:
    """Replace a record that exists, but for its administrators, if these values name none."""

    handle: Handle
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `Create` that overwrites; what does not exist is not made."""
        stored = context.get_hosted(self.handle)
        require_record(context, stored)
        values = keep_administrators(stored, self.values)
        plan = Create(self.handle, values, overwrite=True).decide(context)
        check_aliases(context.snapshot, self.handle, values)
        return plan


def keep_administrators(stored: StoredRecord, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values of a whole record, with the administrators that it has if they name none.

    A reserved name has nothing that is replaced: whom it is reserved for stays by itself (`Create`).
    """
    if values_of_type(values, HS_ADMIN) or stored.state is State.RESERVED:
        return values
    return (*values, *reindex(values_of_type(stored.values, HS_ADMIN), values))
