"""Values as somebody gives them, with open ends: where a value is to stand may depend on what is there.

Where no index is given a free one is chosen, from 1, for HS_ADMIN from 100 as deployed tools do. That needs the record,
so it happens while an operation is decided, on the state of the ledger on which it is decided. What is said of neither
permissions nor TTL is as usual for new values, and stays as it is where a value takes the place of another.

Who gives a whole record means its content. Where they name no administrators, those of the record stay: without any,
nobody but who runs the server could change it again. Who means that removes them, by their indexes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.errors import quoted
from perseid.names.handle import Handle
from perseid.records.types import HS_ADMIN, has_type
from perseid.records.value import DEFAULT_PERMISSIONS, DEFAULT_TTL, Permission, TtlType, Value, ValueRef
from perseid.registry.commands.composition import moved_apart
from perseid.registry.commands.records import Add, Create, Modify, require_record
from perseid.registry.policy.aliases import check_aliases
from perseid.wire.codes import ResponseCode

from .context import FIRST_ADMIN_INDEX, Context, Plan
from .results import Changed, Refused
from .snapshot import Held, of_type


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
