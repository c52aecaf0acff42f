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
from perseid.names.errors import quoted
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, Resolver
from perseid.records.encoding import from_iso, to_iso
from perseid.records.errors import InvalidData
from perseid.records.record import ascending
from perseid.records.value import MAX_VALUES, Value

from .authority_metadata import name_key, of_type, owners_of, read_moment, read_party
from .policy import Policy, Refusal, Subject

FIRST_INDEX: Final = 9001
"""Where the server looks for a free index (A8): people and tools number their values from 1, keys from 100 to 400."""

_NO_INDEX: Final = 0  # stored values have positive ones


class Known(Enum):
    """What is known here about a handle at the moment of writing (A4)."""

    HERE_PUBLIC = "public"
    """Its prefix is homed here and everyone can resolve it."""
    HERE_MISSING = "missing"
    """Its prefix is homed here, and there is no record that everyone can resolve."""
    FOREIGN = "foreign"
    """Its prefix is homed elsewhere; no write waits for another server to say more."""


IsKnown: TypeAlias = Callable[[Handle], Known]


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
class Completed:
    """What may be stored."""

    values: tuple[Value, ...]
    """The record's values; `timestamps.stamp` comes after."""
    unverified: tuple[Handle, ...] = ()
    """Creator and owners that this change names and that are homed elsewhere: accepted, for a later check to verify."""


def complete(
    policy: Policy, change: Change, is_known: IsKnown, resolvers: Sequence[Resolver] = KNOWN_RESOLVERS
) -> Completed | list[Refusal]:
    """What a record becomes under its namespace's policy, or all that the policy has against it.

    `resolvers` are those whose URLs may stand for a creator or owner. Where many records come at once, `is_known`
    counts those that come along with this one.
    """
    if not policy.authority:
        return Completed(change.wanted)
    return _Completion(policy, change, is_known, resolvers).outcome()


class _Fact(Enum):
    """What the server keeps in a record, with the policy's key for its type."""

    DATE = "creation_date_type", "date of creation"
    CREATOR = "creator_type", "creator"

    def __init__(self, key: str, noun: str) -> None:
        self.key = key
        self.noun = noun


class _Completion:
    """The work of `complete` on one change; it collects refusals instead of ending at the first."""

    def __init__(self, policy: Policy, change: Change, is_known: IsKnown, resolvers: Sequence[Resolver]) -> None:
        self._policy, self._change, self._is_known, self._resolvers = policy, change, is_known, resolvers
        self._before = change.before or ()
        self._unchanged = {value.with_timestamp(0) for value in self._before}
        self._refusals: list[Refusal] = []
        self._unverified: dict[str, Handle] = {}

    def outcome(self) -> Completed | list[Refusal]:
        types = {fold(self._type(fact)) for fact in _Fact}
        others = [value for value in self._change.wanted if fold(value.type) not in types]
        date, creator_value = self._settle(_Fact.DATE), self._settle(_Fact.CREATOR)
        creator = None if creator_value is None else Handle.keepable(creator_value.data)
        facts = [fact for fact in (date, creator_value) if fact is not None]
        values = _placed([self._owner_value(value, creator) for value in others], facts)
        self._check_administrators(values, creator)
        if len(values) > MAX_VALUES:
            message = f"with date of creation and creator these are {len(values):,} values; {MAX_VALUES:,} are the most"
            self._refuse("authority", message, "Leave some out.")
        return self._refusals or Completed(ascending(values), tuple(self._unverified.values()))

    def _settle(self, fact: _Fact) -> Value | None:
        """The value that the record shall have, without an index where the server adds it; None if it is refused."""
        held = of_type(self._before, self._type(fact))
        kept = next((value for value in held if self._said(fact, value) is not None), None)
        stale = {value.with_timestamp(0) for value in held if value is not kept}
        sent = [
            value
            for value in of_type(self._change.wanted, self._type(fact))
            if value.with_timestamp(0) not in stale  # what was there besides goes when something changes
        ]
        if len(sent) > 1:
            indexes = ", ".join([str(value.index) for value in sent[:5]])
            self._refuse(fact.key, f"more than one value ({indexes}) is of the type of the {fact.noun}", "Keep one.")
            return None
        given = sent[0] if sent else None
        if kept is not None:
            settled = self._keep(fact, kept, given)
        else:
            settled = self._set_date(given) if fact is _Fact.DATE else self._set_creator(given)
        if settled is not None and not settled.is_public:
            message = f"value {settled.index}, the {fact.noun}, could not be read by everyone"
            self._refuse("authority", message, "Give it the permission to be read by the public, as in rwr-.")
        return settled

    def _keep(self, fact: _Fact, kept: Value, given: Value | None) -> Value | None:
        """What is there stays, in the form in which it is stored; how long caches keep it, say, may change."""
        said = self._said(fact, kept)
        remedy = "Leave it as it is. Who gives a whole record may also leave it out."
        if given is None and not self._change.whole:
            message = f"value {kept.index}, the {fact.noun}, would be removed or become something else"
            self._refuse(fact.key, message, remedy)
            return None
        if given is not None and not self._is_same(fact, said, self._said(fact, given)):
            self._refuse(fact.key, f"value {given.index} would change the {fact.noun}", remedy)
            return None
        return replace(given or kept, type=kept.type, data=str(said).encode())

    def _set_date(self, given: Value | None) -> Value | None:
        due = to_iso(self._first_association())
        if given is None:
            return self._new(_Fact.DATE, due)
        said = self._said(_Fact.DATE, given)
        key = _Fact.DATE.key
        if not self._change.is_import:
            if said == due:
                return replace(given, data=due.encode())
            message = f"value {given.index} gives a date of creation, and the service sets that itself"
            self._refuse(key, message, "Leave it out. Only an import by a server administrator brings dates.")
        elif said is None:
            message = f"value {given.index} is no date of creation"
            self._refuse(key, message, f"Write date, time and zone as in {due}.")
        elif from_iso(said) > self._change.now:
            message = f"value {given.index} gives {said} as date of creation, which is still to come"
            self._refuse(key, message, "Mend the date, or the clock of this machine.")
        else:
            return replace(given, data=said.encode())
        return None

    def _first_association(self) -> int:
        """When the name came to have its thing: now, or for what existed before, the earliest time that is known."""
        brought = self._change.wanted if self._change.is_import else ()
        times = [value.timestamp for value in (*self._before, *brought) if value.timestamp > 0]
        return min([self._change.now, *times])

    def _set_creator(self, given: Value | None) -> Value | None:
        if given is None:
            return self._default_creator()
        party = self._read_party(given, _Fact.CREATOR.key, "creator")
        if party is None or not self._resolves(party, _Fact.CREATOR.key, f"value {given.index} names the creator"):
            return None
        return replace(given, data=party.to_octets())

    def _default_creator(self) -> Value | None:
        key, type_ = "default_creator", self._type(_Fact.CREATOR)
        if not self._policy.default_creator:
            remedy = f"Add a value of the type {type_} with the creator's handle, or set default_creator in the policy."
            self._refuse(key, "the record names no creator, and there is none by default", remedy)
            return None
        party = Handle.parse(self._policy.default_creator)
        if not self._resolves(party, key, "the record names no creator, and the default is"):
            return None
        return self._new(_Fact.CREATOR, str(party))

    def _owner_value(self, value: Value, creator: Handle | None) -> Value:
        """A value of the policy's type for owners, with the handle bare; every other value as it is."""
        key = "owner_type"
        if not of_type([value], self._policy.owner_type):
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
        return replace(value, data=owner.to_octets())

    def _check_administrators(self, values: Iterable[Value], creator: Handle | None) -> None:
        """Where administrators are owners, those who are new must resolve."""
        if self._policy.owner_type:
            return
        former = {self._name_key(owner) for owner in owners_of(self._policy, self._change.handle, self._before, None)}
        for owner in owners_of(self._policy, self._change.handle, values, creator):
            if self._name_key(owner) not in former:
                self._resolves(owner, "authority", "an HS_ADMIN value names the owner")

    def _resolves(self, party: Handle, key: str, clause: str) -> bool:
        """Whether a party may be named (A4). The record itself may: so the first creator comes to be."""
        if self._name_key(party) == self._name_key(self._change.handle):
            return True
        known = self._is_known(party)
        if known is Known.HERE_MISSING:
            message = f"{clause} {quoted(str(party))}, which nobody can resolve although its prefix is homed here"
            self._refuse(key, message, "Create and publish that record first, or name a handle that resolves.")
        elif known is Known.FOREIGN:
            self._unverified[self._name_key(party)] = party
        return known is not Known.HERE_MISSING

    def _read_party(self, value: Value, key: str, noun: str) -> Handle | None:
        try:
            return read_party(value.data, self._resolvers, for_lookup=self._change.is_import)
        except InvalidData as problem:
            remedy = f"Name the {noun} by a handle, bare or as hdl:PREFIX/SUFFIX."
            self._refuse(key, f"value {value.index} names no {noun}: {problem}", remedy)
            return None

    def _said(self, fact: _Fact, value: Value) -> str | None:
        """What a value says, in the form in which it is stored; None if it cannot be read."""
        try:
            if fact is _Fact.DATE:
                return to_iso(read_moment(value.data))
            return str(read_party(value.data, self._resolvers, for_lookup=True))  # what is there need not be legal here
        except InvalidData:
            return None

    def _is_same(self, fact: _Fact, one: str | None, other: str | None) -> bool:
        if fact is _Fact.DATE or one is None or other is None:
            return one == other
        return self._name_key(Handle.keepable(one)) == self._name_key(Handle.keepable(other))

    def _name_key(self, party: Handle) -> str:
        return name_key(self._policy, self._change.handle, party)

    def _type(self, fact: _Fact) -> str:
        return self._policy.creator_type if fact is _Fact.CREATOR else self._policy.creation_date_type

    def _new(self, fact: _Fact, text: str) -> Value:
        return replace(Value.text(_NO_INDEX, self._type(fact), text), ttl=self._policy.default_ttl)

    def _refuse(self, key: str, message: str, remedy: str) -> None:
        self._refusals.append(Refusal(Subject.VALUES, key, self._policy.line(key), message, remedy))


def _placed(others: list[Value], facts: list[Value]) -> list[Value]:
    """All values with an index each. Where a client uses the index of a value it does not know of, that value moves."""
    placed, moving = list(others), []
    taken = {value.index for value in others}
    for fact in facts:
        if fact.index == _NO_INDEX or fact.index in taken:
            moving.append(fact)
        else:
            taken.add(fact.index)
            placed.append(fact)
    free = (index for index in count(FIRST_INDEX) if index not in taken)
    return placed + [replace(fact, index=next(free)) for fact in moving]
