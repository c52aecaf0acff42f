"""Authority metadata (A1–A8): since when an identifier exists, who created it and who answers for it.

Date of creation and creator are ordinary public values of the record, so every protocol, export and mirror carries
them. `complete` makes a record that is about to be stored have both, exactly one of each: at creation it adds what the
request does not bring, and from then on they stay. A client that has never heard of them replaces the whole record and
they are still there. The date of the last update is derived whenever somebody asks and never stored. Nothing else is
recorded (A7).

A record that is older than the policy gets both at its next change. Its date of creation is then the oldest timestamp
of its values: by that time the name had its thing, and nothing says more. So it is with an import that brings no date.
What else such a record holds under the two types, a second date or something that is none, does not stay in the
record; the history has it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from typing import Final, TypeAlias

from perseid.names.characters import fold
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, Resolver
from perseid.records.encoding import from_iso, to_iso
from perseid.records.errors import InvalidData
from perseid.records.record import ascending
from perseid.records.value import MAX_VALUES, Value

from .authority_metadata import find_owners, name_key, parse_party, parse_timestamp, values_of_exact_type
from .policy import Policy, Refusal, Subject

FIRST_INDEX: Final = 9001
"""Where the server looks for a free index (A8): people and tools number their values from 1, keys from 100 to 400."""

_NO_INDEX: Final = 0  # stored values have positive ones


class PartyStatus(Enum):
    """What is known here about a handle at the moment of writing (A4)."""

    HERE_PUBLIC = "public"
    """Its prefix is homed here and everyone can resolve it."""
    HERE_MISSING = "missing"
    """Its prefix is homed here, and there is no record that everyone can resolve."""
    FOREIGN = "foreign"
    """Its prefix is homed elsewhere; no write waits for another server to say more."""


PartyLookup: TypeAlias = Callable[[Handle], PartyStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A record as it is and as somebody wants it."""

    handle: Handle
    """The name, as it is registered."""
    before: tuple[Value, ...] | None
    """The values as they are. None or empty where this is the creation: a reserved name has no thing yet, so
    registering it is its first association (A3), and what it holds meanwhile does not count."""
    wanted: tuple[Value, ...]
    """The values as they shall be, complete, each with an index of its own."""
    now: int
    """Seconds since 1970."""
    whole: bool
    """Whether the request gave the whole record (create, replace), so that what it leaves out may be unknown to it.
    Otherwise it named values (add, modify, remove), and what is missing was removed on purpose."""
    is_import: bool = False
    """Whether a server administrator imports it: dates from elsewhere are then believed."""


@dataclass(frozen=True, slots=True)
class CompletedRecord:
    """What may be stored."""

    values: tuple[Value, ...]
    """The record's values; `timestamps.stamp` comes after."""
    unverified: tuple[Handle, ...] = ()
    """Creator and owners that this change names and that are homed elsewhere: accepted, for a later check to verify."""


def complete_record(
    policy: Policy, change: Change, find_party: PartyLookup, resolvers: Sequence[Resolver] = KNOWN_RESOLVERS
) -> CompletedRecord | list[Refusal]:
    """What a record becomes under its namespace's policy, or all that the policy has against it.

    `resolvers` are those whose URLs may stand for a creator or owner. Where many records come at once, `is_known`
    counts those that come along with this one.
    """
    if not policy.authority:
        return CompletedRecord(change.wanted)
    return _Completion(policy, change, find_party, resolvers).outcome()


class _Field(Enum):
    """What the server keeps in a record, with the policy's key for its type."""

    DATE = "creation_date_type", "date of creation"
    CREATOR = "creator_type", "creator"

    def __init__(self, key: str, noun: str) -> None:
        self.key = key
        self.noun = noun


class _Completion:
    """The work of `complete` on one change; it collects refusals instead of ending at the first."""

    def __init__(self, policy: Policy, change: Change, find_party: PartyLookup, resolvers: Sequence[Resolver]) -> None:
        self._policy, self._change, self._find_party, self._resolvers = policy, change, find_party, resolvers
        self._before = change.before or ()
        self._unchanged = {value.with_timestamp(0) for value in self._before}
        self._refusals: list[Refusal] = []
        self._unverified: dict[str, Handle] = {}

    def outcome(self) -> CompletedRecord | list[Refusal]:
        types = {fold(self._type(field)) for field in _Field}
        others = [value for value in self._change.wanted if fold(value.type) not in types]
        date, creator_value = self._settle_field(_Field.DATE), self._settle_field(_Field.CREATOR)
        creator = None if creator_value is None else Handle.parse_lenient(creator_value.data)
        fields = [field for field in (date, creator_value) if field is not None]
        values = _assign_indexes([self._owner_value(value, creator) for value in others], fields)
        self._check_administrators(values, creator)
        if len(values) > MAX_VALUES:
            message = f"with date of creation and creator these are {len(values):,} values; {MAX_VALUES:,} are the most"
            self._refuse("authority", message, "Leave some out.")
        return self._refusals or CompletedRecord(ascending(values), tuple(self._unverified.values()))

    def _settle_field(self, field: _Field) -> Value | None:
        """The value that the record shall have, without an index where the server adds it; None if it is refused."""
        stored = values_of_exact_type(self._before, self._type(field))
        kept = next((value for value in stored if self._parse(field, value) is not None), None)
        stale = {value.with_timestamp(0) for value in stored if value is not kept}
        sent = [
            value
            for value in values_of_exact_type(self._change.wanted, self._type(field))
            if value.with_timestamp(0) not in stale  # what was there besides goes when something changes
        ]
        if len(sent) > 1:
            indexes = ", ".join([str(value.index) for value in sent[:5]])
            self._refuse(field.key, f"more than one value ({indexes}) is of the type of the {field.noun}", "Keep one.")
            return None
        new = sent[0] if sent else None
        if kept is not None:
            settled = self._keep(field, kept, new)
        else:
            settled = self._set_date(new) if field is _Field.DATE else self._set_creator(new)
        if settled is not None and not settled.is_public:
            message = f"value {settled.index}, the {field.noun}, could not be read by everyone"
            self._refuse("authority", message, "Give it the permission to be read by the public, as in rwr-.")
        return settled

    def _keep(self, field: _Field, kept: Value, new: Value | None) -> Value | None:
        """What is there stays, in the form in which it is stored; how long caches keep it, say, may change."""
        parsed = self._parse(field, kept)
        remedy = "Leave it as it is. Who gives a whole record may also leave it out."
        if new is None and not self._change.whole:
            message = f"value {kept.index}, the {field.noun}, would be removed or become something else"
            self._refuse(field.key, message, remedy)
            return None
        if new is not None and not self._is_same(field, parsed, self._parse(field, new)):
            self._refuse(field.key, f"value {new.index} would change the {field.noun}", remedy)
            return None
        return replace(new or kept, type=kept.type, data=str(parsed).encode())

    def _set_date(self, new: Value | None) -> Value | None:
        expected = to_iso(self._first_association())
        if new is None:
            return self._new(_Field.DATE, expected)
        parsed = self._parse(_Field.DATE, new)
        key = _Field.DATE.key
        if not self._change.is_import:
            if parsed == expected:
                return replace(new, data=expected.encode())
            message = f"value {new.index} gives a date of creation, and the service sets that itself"
            self._refuse(key, message, "Leave it out. Only an import by a server administrator brings dates.")
        elif parsed is None:
            message = f"value {new.index} is no date of creation"
            self._refuse(key, message, f"Write date, time and zone as in {expected}.")
        elif from_iso(parsed) > self._change.now:
            message = f"value {new.index} gives {parsed} as date of creation, which is still to come"
            self._refuse(key, message, "Mend the date, or the clock of this machine.")
        else:
            return replace(new, data=parsed.encode())
        return None

    def _first_association(self) -> int:
        """When the name came to have its thing: now, or for what existed before, the earliest time that is known."""
        brought = self._change.wanted if self._change.is_import else ()
        times = [value.timestamp for value in (*self._before, *brought) if value.timestamp > 0]
        return min([self._change.now, *times])

    def _set_creator(self, new: Value | None) -> Value | None:
        if new is None:
            return self._default_creator()
        party = self._read_party(new, _Field.CREATOR.key, "creator")
        if party is None or not self._resolves(party, _Field.CREATOR.key, f"value {new.index} names the creator"):
            return None
        return replace(new, data=party.to_bytes())

    def _default_creator(self) -> Value | None:
        key, type_ = "default_creator", self._type(_Field.CREATOR)
        if not self._policy.default_creator:
            remedy = f"Add a value of the type {type_} with the creator's handle, or set default_creator in the policy."
            self._refuse(key, "the record names no creator, and there is none by default", remedy)
            return None
        party = Handle.parse(self._policy.default_creator)
        if not self._resolves(party, key, "the record names no creator, and the default is"):
            return None
        return self._new(_Field.CREATOR, str(party))

    def _owner_value(self, value: Value, creator: Handle | None) -> Value:
        """A value of the policy's type for owners, with the handle bare; every other value as it is."""
        key = "owner_type"
        if not values_of_exact_type([value], self._policy.owner_type):
            return value
        if value.with_timestamp(0) in self._unchanged:
            return value  # as it was; the party may have gone since
        owner = self._read_party(value, key, "owner")
        if owner is None:
            return value
        if not value.is_public:
            message = f"value {value.index}, an owner, could not be read by everyone"
            self._refuse(key, message, "Give it the permission to be read by the public, as in rwr-.")
        if creator is not None and self._name_key(owner) == self._name_key(creator):
            remedy = "Leave it out: who created an identifier owns it unless somebody else is named."
            self._refuse(key, f"value {value.index} names the creator as owner", remedy)
        else:
            self._resolves(owner, key, f"value {value.index} names the owner")
        return replace(value, data=owner.to_bytes())

    def _check_administrators(self, values: Iterable[Value], creator: Handle | None) -> None:
        """Where administrators are owners, those who are new must resolve."""
        if self._policy.owner_type:
            return
        former = {self._name_key(owner) for owner in find_owners(self._policy, self._change.handle, self._before, None)}
        for owner in find_owners(self._policy, self._change.handle, values, creator):
            if self._name_key(owner) not in former:
                self._resolves(owner, "authority", "an HS_ADMIN value names the owner")

    def _resolves(self, party: Handle, key: str, clause: str) -> bool:
        """Whether a party may be named (A4). The record itself may: so the first creator comes to be."""
        if self._name_key(party) == self._name_key(self._change.handle):
            return True
        known = self._find_party(party)
        if known is PartyStatus.HERE_MISSING:
            message = f"{clause} {quote_text(str(party))}, which nobody can resolve although its prefix is homed here"
            self._refuse(key, message, "Create and publish that record first, or name a handle that resolves.")
        elif known is PartyStatus.FOREIGN:
            self._unverified[self._name_key(party)] = party
        return known is not PartyStatus.HERE_MISSING

    def _read_party(self, value: Value, key: str, noun: str) -> Handle | None:
        try:
            return parse_party(value.data, self._resolvers, for_lookup=self._change.is_import)
        except InvalidData as problem:
            remedy = f"Name the {noun} by a handle, bare or as hdl:PREFIX/SUFFIX."
            self._refuse(key, f"value {value.index} names no {noun}: {problem}", remedy)
            return None

    def _parse(self, field: _Field, value: Value) -> str | None:
        """What a value says, in the form in which it is stored; None if it cannot be read."""
        try:
            if field is _Field.DATE:
                return to_iso(parse_timestamp(value.data))
            return str(
                parse_party(value.data, self._resolvers, for_lookup=True)
            )  # what is there need not be legal here
        except InvalidData:
            return None

    def _is_same(self, field: _Field, one: str | None, other: str | None) -> bool:
        if field is _Field.DATE or one is None or other is None:
            return one == other
        return self._name_key(Handle.parse_lenient(one)) == self._name_key(Handle.parse_lenient(other))

    def _name_key(self, party: Handle) -> str:
        return name_key(self._policy, self._change.handle, party)

    def _type(self, field: _Field) -> str:
        return self._policy.creator_type if field is _Field.CREATOR else self._policy.creation_date_type

    def _new(self, field: _Field, text: str) -> Value:
        return replace(Value.text(_NO_INDEX, self._type(field), text), ttl=self._policy.default_ttl)

    def _refuse(self, key: str, message: str, remedy: str) -> None:
        self._refusals.append(Refusal(Subject.VALUES, key, self._policy.line(key), message, remedy))


def _assign_indexes(others: list[Value], fields: list[Value]) -> list[Value]:
    """All values with an index each. Where a client uses the index of a value it does not know of, that value moves."""
    placed, moving = list(others), []
    taken = {value.index for value in others}
    for field in fields:
        if field.index == _NO_INDEX or field.index in taken:
            moving.append(field)
        else:
            taken.add(field.index)
            placed.append(field)
    free = (index for index in count(FIRST_INDEX) if index not in taken)
    return placed + [replace(field, index=next(free)) for field in moving]
