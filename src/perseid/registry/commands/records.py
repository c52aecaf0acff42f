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
from perseid.names.errors import InvalidName, quoted
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.types import HS_ADMIN, has_type
from perseid.records.value import DEFAULT_PERMISSIONS, DEFAULT_TTL, Permission, TtlType, Value, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.authorization import may_write
from perseid.registry.access.minting_rights import demand_making
from perseid.registry.access.permissions import Differences, shown
from perseid.registry.access.scopes import Word
from perseid.registry.context import FIRST_ADMIN_INDEX, Context, Plan, check_indexes, not_found
from perseid.registry.identity import Anonymous
from perseid.registry.policy.aliases import check_aliases
from perseid.registry.policy.keys import Who
from perseid.registry.results import Changed, Refused
from perseid.registry.snapshot import SITE_PREFIX, Held, of_type
from perseid.wire.codes import OpCode, ResponseCode

from .composition import compose, kept_by_policy, moved_apart
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

    def decide(self, context: Context) -> Plan[Changed]:
        """§16.2: responsibility, name, indexes, existence, identity, right, policy."""
        held = context.own(self.handle, new=not self.overwrite)
        context.registrable(held)
        check_indexes(self.values)
        if held.exists and not held.is_public and not self._knows(context, held):
            # Who cannot see such a name, and may not make one here, is refused as if it were free, in the same words.
            self._demand_making(context, held)
            require_identity(context, f"create {shown(self.handle)}")
        if held.state is State.RESERVED:
            return self._register(context, held)
        if held.exists and not self.overwrite:
            raise already_exists(held)
        if held.exists:
            return self._replace(context, held)
        self._demand_making(context, held)
        if held.entry is not None:
            if not self.again:
                raise was_deleted(held)
            context.demand(permissions.create(held.handle))
        if not self.published:
            require_hideable(held)
        values = compose(context, held, self.values, creates=True)
        return written(context, held, Action.CREATE, values, self._state)

    @property
    def _state(self) -> State:
        return State.NORMAL if self.published else State.UNPUBLISHED

    def _knows(self, context: Context, held: Held) -> bool:
        """Whether somebody may know of a name that the public does not see: its readers, and who it is reserved for."""
        if held.state is State.RESERVED and context.may(permissions.register(held.handle, self.values or _ANY_VALUE)):
            return True
        return context.may(permissions.read(held.handle, Word.CREATE))

    def _demand_making(self, context: Context, held: Held) -> None:
        """The right to make a name: the protocol's, unless the policy has a rule of its own."""
        if held.policy.who_may_mint is Who.ADMINISTRATORS or held.handle.is_prefix_handle:
            context.demand(permissions.create(held.handle))
        else:
            demand_making(context, held.policy, held.handle.prefix, Word.CREATE)

    def _replace(self, context: Context, held: Held) -> Plan[Changed]:
        # What the namespace keeps, though the request leaves it out, is no removal: it needs no permission.
        kept = [value for value in kept_by_policy(held) if value.index not in {new.index for new in self.values}]
        context.demand(permissions.overwrite(held.handle, held.values, (*self.values, *kept)))
        require_living(held, (*self.values, *kept))
        if self.keeps_administrator and of_type(held.values, HS_ADMIN) and not of_type(self.values, HS_ADMIN):
            raise without_administrator(held)
        values = compose(context, held, self.values, whole=True)
        return written(context, held, Action.UPDATE, values, overwritten=True)

    def _register(self, context: Context, held: Held) -> Plan[Changed]:
        """Associate a reserved name with a thing: the right is with whom it was reserved for."""
        kept = () if of_type(self.values, HS_ADMIN) else of_type(held.values, HS_ADMIN)
        right = permissions.register(held.handle, self.values or _ANY_VALUE)
        if not context.may(right):
            raise already_exists(held)
        context.demand(right)
        values = compose(context, held, (*self.values, *moved_apart(kept, self.values)), creates=True)
        return written(context, held, Action.CREATE, values, self._state)


@dataclass(frozen=True, slots=True)
class Add:
    """Add values to a record. With `overwrite` those at the same indexes are replaced."""

    handle: Handle
    values: tuple[Value, ...]
    overwrite: bool = False

    def decide(self, context: Context) -> Plan[Changed]:
        """§16.4: responsibility, indexes, identity, existence, conflicts, right, policy."""
        held = context.changeable(self.handle)
        if not self.values:
            raise Refused(ResponseCode.INVALID_VALUE, "Value list was empty")
        check_indexes(self.values)
        require_identity(context, f"add values to {shown(self.handle)}")
        require_record(context, held)
        new = {value.index for value in self.values}
        shared = [value.index for value in held.values if value.index in new]
        if shared and not self.overwrite:
            raise Refused(ResponseCode.VALUE_ALREADY_EXISTS, f"Index conflict for {shared[0]}")
        context.demand(permissions.add(held.handle, self.values, held.values if self.overwrite else ()))
        kept = [value for value in held.values if value.index not in new]
        require_living(held, (*kept, *self.values))
        values = compose(context, held, (*kept, *self.values))
        return written(context, held, Action.UPDATE, values, overwritten=bool(shared))


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the values with these indexes."""

    handle: Handle
    indexes: tuple[int, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """§16.5: responsibility, identity, existence of record and values, right, policy."""
        held = context.changeable(self.handle)
        require_identity(context, f"remove values of {shown(self.handle)}")
        require_record(context, held)
        gone = set(self.indexes)
        if missing := gone - {value.index for value in held.values}:
            reason = f"{shown(self.handle)} has no value with the index {min(missing)}"
            raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
        context.demand(permissions.remove(held.handle, [value for value in held.values if value.index in gone]))
        kept = [value for value in held.values if value.index not in gone]
        require_living(held, kept)
        values = compose(context, held, kept)
        return written(context, held, Action.UPDATE, values)


@dataclass(frozen=True, slots=True)
class Modify:
    """Put values in the place of those with the same indexes."""

    handle: Handle
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """§16.6: responsibility, existence, each value, right, duplicates, policy."""
        held = context.changeable(self.handle)
        require_record(context, held)
        before = {value.index: value for value in held.values}
        for value in self.values:
            old = before.get(value.index)
            if old is None:
                reason = f"{shown(self.handle)} has no value with the index {value.index}"
                raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
            decision = may_write(context.who, held.handle, old, value)
            if not decision.allowed:
                raise Refused.by_decision(decision)
        context.demand(permissions.modify(held.handle, [(before[value.index], value) for value in self.values]))
        after = {value.index: value for value in self.values}
        if len(after) < len(self.values):
            raise Refused(ResponseCode.INVALID_VALUE, "an index stands twice in the request")
        require_living(held, tuple((before | after).values()))
        values = compose(context, held, tuple((before | after).values()))
        return written(context, held, Action.UPDATE, values)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a record. The name is not free afterwards."""

    handle: Handle

    def decide(self, context: Context) -> Plan[Changed]:
        """§16.3: identity, existence, right; a prefix that is not homed here is tolerated, so that strays can go."""
        if fold(self.handle.prefix) == SITE_PREFIX or context.facts.is_responsible(self.handle):
            held = context.changeable(self.handle)
        else:
            held = context.facts.held(self.handle)
        require_identity(context, f"delete {shown(self.handle)}")
        require_record(context, held, Word.DELETE)
        context.demand(permissions.delete(held.handle))
        if refusals := held.policy.check_deletion(held.handle):
            raise Refused.by_policy(refusals)
        return written(context, held, Action.DELETE, (), State.ABSENT)


@dataclass(frozen=True, slots=True)
class Home:
    """Become responsible for a prefix, or cease to be."""

    name: str
    """The entry of the table of homed prefixes: `0.NA/12345`, a bare prefix, or a marker `0.NA/0.NA/12345`."""
    unhome: bool = False

    def decide(self, context: Context) -> Plan[Changed]:
        """§16.8: a prefix handle, a server administrator. Nothing happens if it is so already."""
        names = self._names()
        before, _, prefix = names[0].rpartition("/")
        about = "" if "/" in before else prefix  # a marker is about more than one prefix
        context.demand(permissions.serve(OpCode.UNHOME_NA if self.unhome else OpCode.HOME_NA, about))
        action, state = (Action.UNHOME, State.ABSENT) if self.unhome else (Action.HOME, State.NORMAL)
        drafts = tuple(
            [
                Draft(action, state, homed_name(name), context.door, str(context.who), context.note)
                for name in names
                if context.facts.is_homed(name) is self.unhome
            ]
        )
        if drafts and not self.unhome:
            drafts += self._default_policy(context, names[0])
        handle = Handle.keepable(homed_name(names[0]))
        entry = context.facts.entry(record_key(str(handle)))
        last = 0 if entry is None else entry.seq
        return Plan(lambda seq: Changed(handle, seq or last), drafts, reason=context.reasons[-1])

    def _default_policy(self, context: Context, name: str) -> tuple[Draft, ...]:
        """The policy of a prefix that has none: it is written down, so that a later default changes nothing here."""
        prefix = name.partition("/")[2]
        if "/" in prefix or fold(prefix) == PREFIX_OF_PREFIXES:
            return ()
        if context.facts.entry(record_key(policy_name(prefix))) is not None:
            return ()
        policy = context.facts.rules.default_policy
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
    if isinstance(context.who, Anonymous):
        advice = "answer a challenge, or use a session"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, f"who wants to {action} has to be known", advice)


def require_record(context: Context, held: Held, *words: Word) -> None:
    """Refuse a name without a record; one that is not public exists for its administrators only.

    To a token it exists if it is good for one of the words, by which values are changed if nothing is said.
    """
    ways = (permissions.read(held.handle, word) for word in words or (Word.UPDATE, Word.TRANSFER))
    if not held.exists or not (held.is_public or any(map(context.may, ways))):
        raise not_found(held)


def require_living(held: Held, wanted: Sequence[Value]) -> None:
    """Refuse to give values to a name whose thing is gone. Administrators may change, and what the tombstone says."""
    if held.state is State.TOMBSTONE:
        policy = held.policy
        says = (policy.tombstone_reason_type, policy.tombstone_date_type, policy.tombstone_replacement_type)
        allowed = {fold(type_) for type_ in says}
        differences = Differences.between(held.values, wanted)
        changed = (*differences.added, *differences.removed, *[one for pair in differences.modified for one in pair])
        kept = {fold(value.type) for value in wanted}
        lost = {fold(value.type) for value in differences.removed} & {fold(type_) for type_ in says[:2]} - kept
        if lost or not all(permissions.is_admin(value) or fold(value.type) in allowed for value in changed):
            reason = f"{shown(held.asked)} has a tombstone: what it stood for is gone"
            advice = f"if the thing has come back, take the tombstone away first: {revival(held)}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "S8")


def require_hideable(held: Held) -> None:
    """Refuse to keep the public from a prefix handle, by which clients find the service of all names under it."""
    if held.handle.is_prefix_handle:
        reason = f"{shown(held.asked)} says who serves a prefix, and everybody needs it to find the names"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, "leave it public, or unhome the prefix", "H8")


def revival(held: Held) -> str:
    """The command that takes a tombstone away."""
    return f"perseid tombstone {quoted(str(held.handle))} --undo"


def already_exists(held: Held) -> Refused:
    """The name is taken."""
    advice = "choose another name, or replace the record (overwrite)" if held.is_public else "choose another name"
    return Refused(ResponseCode.HANDLE_ALREADY_EXISTS, f"{shown(held.asked)} exists already", advice, "H7")


def without_administrator(held: Held) -> Refused:
    """Nobody could change the record any more."""
    reason = f"{shown(held.asked)} would be left without any administrator, and nobody could change it again"
    return Refused(ResponseCode.INVALID_VALUE, reason, "give it an HS_ADMIN value, as it has now")


def was_deleted(held: Held) -> Refused:
    """The name was used once, and stands in somebody's citation."""
    reason = f"{shown(held.asked)} was deleted, and a name is not given a second time"
    return Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "choose another name, or say that it is meant", "S8")


def written(
    context: Context,
    held: Held,
    action: Action,
    values: Sequence[Value],
    state: State | None = None,
    *,
    overwritten: bool = False,
) -> Plan[Changed]:
    """The plan that makes a record what it shall be; nothing is appended if it is that already."""
    after = (State.NORMAL if action is Action.CREATE else held.state) if state is None else state
    reason = context.reasons[-1] if context.reasons else ""
    draft = context.draft(held, action, values, after)
    if held.exists and after is held.state and not _differs(held, draft.values):
        return Plan(lambda _: Changed(held.handle, held.seq, overwritten), reason=reason)
    return Plan(lambda seq: Changed(held.handle, seq, overwritten), (draft,), reason=reason)


def _differs(held: Held, values: tuple[Value, ...]) -> bool:
    differences = Differences.between(held.values, values)
    return bool(differences.added or differences.removed or differences.modified)


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a value may be kept."""

    seconds: int
    kind: TtlType = TtlType.RELATIVE


@dataclass(frozen=True, slots=True)
class Given:
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


def placed(given: Sequence[Given], taken: Iterable[Value] = (), ttl: int | None = None) -> tuple[Value, ...]:
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


def put(given: Sequence[Given], there: Sequence[Value], ttl: int | None = None) -> tuple[Value, ...]:
    """The values in the place of those that are there: at their index, or where the one value of their type stands.

    What has no place yet gets one. Where a type has several values, it has to be said which is meant.
    """
    before = {value.index: value for value in there}
    instead: list[Value] = []
    new: list[Given] = []
    for each in given:
        index = each.index if each.index is not None else _only_index(each.type, there)
        if index in before:
            instead.append(each.instead_of(before[index]))
        else:
            new.append(each)
    return (*instead, *placed(new, (*there, *instead), ttl))


def _only_index(type_: str, there: Sequence[Value]) -> int | None:
    found = [value.index for value in there if fold(value.type) == fold(type_)]
    if len(found) > 1:
        indexes = ", ".join(map(str, found[:5]))
        reason = f"there are {len(found)} values of the type {quoted(type_)}, at {indexes}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "say which is meant, by its index")
    return found[0] if found else None


# Operations


@dataclass(frozen=True, slots=True)
class CreateGiven:
    """Make a record of values as they were given."""

    handle: Handle
    given: tuple[Given, ...] = ()
    whole: tuple[Value, ...] = ()
    """Values that are complete."""
    overwrite: bool = False
    """Whether a record that exists is replaced, but for its administrators, if these values name none."""
    again: bool = False
    published: bool = True

    def decide(self, context: Context) -> Plan[Changed]:
        """As for `Create`."""
        ttl = context.facts.policy(self.handle.prefix).default_ttl
        values = (*self.whole, *placed(self.given, self.whole, ttl))
        if self.overwrite:
            values = with_former_administrators(context.own(self.handle), values)
        plan = Create(self.handle, values, self.overwrite, self.again, self.published).decide(context)
        check_aliases(context.facts, self.handle, values)
        return plan


@dataclass(frozen=True, slots=True)
class AddGiven:
    """Add values as they were given, where there is room."""

    handle: Handle
    given: tuple[Given, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """As for `Add`."""
        held = context.own(self.handle)
        values = placed(self.given, held.values, held.policy.default_ttl)
        plan = Add(self.handle, values).decide(context)
        check_aliases(context.facts, self.handle, values)
        return plan


@dataclass(frozen=True, slots=True)
class SetGiven:
    """Put values, as they were given, in the place of others; those that have no place yet get one."""

    handle: Handle
    given: tuple[Given, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """As for `Modify` where every value has its place, otherwise as for `Add`."""
        held = context.own(self.handle)
        require_record(context, held)
        values = put(self.given, held.values, held.policy.default_ttl)
        fits = {value.index for value in values} <= {value.index for value in held.values}
        change = Modify(self.handle, values) if fits else Add(self.handle, values, overwrite=True)
        plan = change.decide(context)
        check_aliases(context.facts, self.handle, values)
        return plan


@dataclass(frozen=True, slots=True)
class ReplaceWhole:
    """Replace a record that exists, but for its administrators, if these values name none."""

    handle: Handle
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """As for `Create` that overwrites; what does not exist is not made."""
        held = context.own(self.handle)
        require_record(context, held)
        values = with_former_administrators(held, self.values)
        plan = Create(self.handle, values, overwrite=True).decide(context)
        check_aliases(context.facts, self.handle, values)
        return plan


def with_former_administrators(held: Held, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values of a whole record, with the administrators that it has if they name none.

    A reserved name has nothing that is replaced: whom it is reserved for stays by itself (`Create`).
    """
    if of_type(values, HS_ADMIN) or held.state is State.RESERVED:
        return values
    return (*values, *moved_apart(of_type(held.values, HS_ADMIN), values))
