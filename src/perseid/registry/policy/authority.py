"""Authority metadata (A1–A8): when an identifier was created, who created it and who owns it.

Date of creation and creator are ordinary public values of the record, so every protocol, export and mirror carries
them. `complete_record` ensures that a record has exactly one of each: at creation it adds what the request omits, and
from then on they stay, even if a client that does not know them replaces the whole record. The date of the last update
is derived on request and never stored. Nothing else is recorded (A7).

A record that is older than the policy gets both at its next change. Its date of creation is then the oldest timestamp
of its values, as for an import without a date. Other values of the two types, a second date or an invalid one, are
removed from the record; the history keeps them.

`build_metadata` returns the metadata in one form for pages and interfaces. It assumes nothing: an imported record, or
one that is older than the policy, may contain anything or nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias, TypeVar

from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import CaseRule, Handle, fold
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_user_input, to_path
from perseid.records.admin import Admin
from perseid.records.data_types import Definition, interpret_as
from perseid.records.encoding import JsonObject, from_iso, to_iso
from perseid.records.errors import InvalidData
from perseid.records.record import MAX_VALUES, Record, Value, ascending
from perseid.records.types import DEFINITION, DESC, HS_ADMIN, Text, has_type
from perseid.registry.advice import Advice, AdviceKind

from .policy import DEFAULT_OWNER_TYPE, PROFILES, Policy, Refusal, Subject

FIRST_INDEX: Final = 9001
"""First index of these values (A8): people and tools number their values from 1, keys from 100 to 400."""

_NO_INDEX: Final = 0  # stored values have positive ones
_LAST_INSTANT: Final = 253_402_300_799  # 9999-12-31T23:59:59Z, after which ISO 8601 needs an agreement
# A date without a time, or a time without a zone, is ambiguous in UTC (A3).
_TIMESTAMP_RE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_T = TypeVar("_T")


class PartyStatus(Enum):
    """What is known here about a handle when a record is written (A4)."""

    HERE_PUBLIC = "public"
    """Its prefix is homed here and it is public."""
    HERE_MISSING = "missing"
    """Its prefix is homed here, and it does not exist or is not public."""
    FOREIGN = "foreign"
    """Its prefix is homed elsewhere; no write waits for another server."""


class FoundParty(NamedTuple):
    """A handle that a record names, as it is known here."""

    status: PartyStatus
    handle: Handle
    """As registered, if its prefix is homed here."""


PartyLookup: TypeAlias = Callable[[Handle], FoundParty]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A record as it is, and the requested values."""

    handle: Handle
    """The registered handle."""
    before: tuple[Value, ...] | None
    """The current values. None or empty for a creation, also for a reserved handle: its first association is the
    creation of its record (A3), and the values it has until then are ignored."""
    requested: tuple[Value, ...]
    """The requested values, complete, each with its own index."""
    now: int
    """Seconds since 1970."""
    whole: bool
    """Whether the request has the whole record (create, replace), so that omitted values may be unknown to the client.
    Otherwise it names values (add, modify, remove), and missing values were removed on purpose."""
    is_import: bool = False
    """Whether a server administrator imports it, so that its dates are accepted."""
    restored: tuple[Value, ...] = ()
    """Values of an earlier version, which an undo restores: their owners are not new."""


@dataclass(frozen=True, slots=True)
class CompletedRecord:
    """The values to store."""

    values: tuple[Value, ...]
    """The record's values, without the new timestamps."""
    unverified: tuple[Handle, ...] = ()
    """New creator and owners that are homed elsewhere: accepted, to be verified later."""


def complete_record(
    policy: Policy, change: Change, find_party: PartyLookup, resolvers: Sequence[Resolver] = KNOWN_RESOLVERS
) -> CompletedRecord | list[Refusal]:
    """The record as the policy completes it, or all refusals by the policy.

    `resolvers` are those whose URLs are accepted for a creator or owner. When many records are imported together,
    `find_party` must know them all.
    """
    if not policy.authority:
        return CompletedRecord(change.requested)
    return _Completion(policy, change, find_party, resolvers).outcome()


class _Field(Enum):
    """A value that the server maintains, with the policy's key for its type."""

    DATE = "creation_date_type", "date of creation"
    CREATOR = "creator_type", "creator"

    def __init__(self, key: str, noun: str) -> None:
        self.key = key
        self.noun = noun


class _Completion:
    """The completion of one change; collects all refusals."""

    def __init__(self, policy: Policy, change: Change, find_party: PartyLookup, resolvers: Sequence[Resolver]) -> None:
        self._policy, self._change, self._find_party, self._resolvers = policy, change, find_party, resolvers
        self._before = change.before or ()
        self._known = (*self._before, *change.restored)
        self._unchanged = {value.with_timestamp(0) for value in self._known}
        self._refusals: list[Refusal] = []
        self._unverified: dict[str, Handle] = {}

    def outcome(self) -> CompletedRecord | list[Refusal]:
        types = {fold(self._type(field)) for field in _Field}
        others = [value for value in self._change.requested if fold(value.type) not in types]
        date, creator_value = self._settle_field(_Field.DATE), self._settle_field(_Field.CREATOR)
        creator = None if creator_value is None else Handle.parse_lenient(creator_value.data)
        fields = [field for field in (date, creator_value) if field is not None]
        values = _assign_indexes([self._owner_value(value, creator) for value in others], fields)
        self._check_administrators(values, creator)
        if len(values) > MAX_VALUES:
            message = f"the record would have {len(values):,} values; the limit is {MAX_VALUES:,}"
            self._refuse("authority", message, AdviceKind.REMOVE_VALUES())
        return self._refusals or CompletedRecord(ascending(values), tuple(self._unverified.values()))

    def _settle_field(self, field: _Field) -> Value | None:
        """The value to store, without an index if the server adds it; None if it is refused."""
        stored = values_of_exact_type(self._before, self._type(field))
        kept = next((value for value in stored if self._parse(field, value) is not None), None)
        stale = {value.with_timestamp(0) for value in stored if value is not kept}
        sent = [
            value
            for value in values_of_exact_type(self._change.requested, self._type(field))
            if value.with_timestamp(0) not in stale  # surplus values are dropped at the next change
        ]
        if len(sent) > 1:
            indexes = ", ".join([str(value.index) for value in sent[:5]])
            message = f"values {indexes} are all of the type of the {field.noun}"
            self._refuse(field.key, message, AdviceKind.KEEP_ONE_VALUE())
            return None
        new = sent[0] if sent else None
        if kept is not None:
            settled = self._keep(field, kept, new)
        else:
            settled = self._set_date(new) if field is _Field.DATE else self._set_creator(new)
        if settled is not None and not settled.is_public:
            message = f"value {settled.index}, the {field.noun}, is not public"
            self._refuse("authority", message, AdviceKind.MAKE_PUBLIC())
        return settled

    def _keep(self, field: _Field, kept: Value, new: Value | None) -> Value | None:
        """Keep the stored data; other properties, such as the TTL, may change."""
        parsed = self._parse(field, kept)
        advice = AdviceKind.KEEP_UNCHANGED()
        if new is None and not self._change.whole:
            message = f"value {kept.index}, the {field.noun}, cannot be removed"
            self._refuse(field.key, message, advice)
            return None
        if new is not None and not self._is_same(field, parsed, self._parse(field, new)):
            self._refuse(field.key, f"value {new.index}, the {field.noun}, cannot be changed", advice)
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
            message = f"value {new.index} is a date of creation, which only the server sets"
            self._refuse(key, message, AdviceKind.OMIT_DATE())
        elif parsed is None:
            message = f"value {new.index} is not a valid date of creation"
            self._refuse(key, message, AdviceKind.WRITE_DATE(example=expected))
        elif from_iso(parsed) > self._change.now:
            message = f"value {new.index} is a date of creation in the future, {parsed}"
            self._refuse(key, message, AdviceKind.CORRECT_DATE())
        else:
            return replace(new, data=parsed.encode())
        return None

    def _first_association(self) -> int:
        """When the handle was first associated: now, or the earliest known time of an older record."""
        imported = self._change.requested if self._change.is_import else ()
        times = [value.timestamp for value in (*self._before, *imported) if value.timestamp > 0]
        return min([self._change.now, *times])

    def _set_creator(self, new: Value | None) -> Value | None:
        if new is None:
            return self._default_creator()
        named = self._read_party(new, _Field.CREATOR.key, "creator")
        subject = f"value {new.index}, the creator"
        party = None if named is None else self._find_registered(named, _Field.CREATOR.key, subject)
        return None if party is None else replace(new, data=party.to_bytes())

    def _default_creator(self) -> Value | None:
        key = "default_creator"
        if not self._policy.default_creator:
            message = "the record has no creator, and the namespace has no default creator"
            self._refuse(key, message, AdviceKind.ADD_CREATOR(type=self._type(_Field.CREATOR)))
            return None
        party = self._find_registered(Handle.parse_lenient(self._policy.default_creator), key, "the default creator")
        return None if party is None else self._new(_Field.CREATOR, str(party))

    def _owner_value(self, value: Value, creator: Handle | None) -> Value:
        """An owner value, with the handle bare; other values unchanged."""
        key = "owner_type"
        if not values_of_exact_type([value], self._policy.owner_type):
            return value
        if value.with_timestamp(0) in self._unchanged:
            return value  # unchanged; the party may have gone since
        owner = self._read_party(value, key, "owner")
        if owner is None:
            return value
        if not value.is_public:
            message = f"value {value.index}, an owner, is not public"
            self._refuse(key, message, AdviceKind.MAKE_PUBLIC())
        if creator is not None and self._name_key(owner) == self._name_key(creator):
            self._refuse(key, f"value {value.index} names the creator as owner", AdviceKind.OMIT_OWNER())
        else:
            owner = self._find_registered(owner, key, f"value {value.index}, the owner") or owner
        return replace(value, data=owner.to_bytes())

    def _check_administrators(self, values: Sequence[Value], creator: Handle | None) -> None:
        """If administrators are the owners, new ones must resolve and be public (A2)."""
        if self._policy.owner_type:
            return
        find = partial(find_owners, self._policy, self._change.handle)
        former = set(map(self._name_key, find(self._known, None)))
        for owner in find(values, creator):
            if self._name_key(owner) not in former:
                self._find_registered(owner, "authority", "the owner in an HS_ADMIN value")
        public = set(map(self._name_key, find([value for value in values if value.is_public], creator)))
        for value in values:
            owners = () if value.is_public or value.with_timestamp(0) in self._unchanged else find([value], creator)
            if not public.issuperset(map(self._name_key, owners)):
                message = f"value {value.index}, an owner, is not public"
                self._refuse("authority", message, AdviceKind.MAKE_PUBLIC())

    def _find_registered(self, party: Handle, key: str, subject: str) -> Handle | None:
        """A party as registered; None if it cannot be named (A4). A record can name itself: the first creator does."""
        if self._name_key(party) == self._name_key(self._change.handle):
            return self._change.handle
        status, registered = self._find_party(party)
        if status is PartyStatus.HERE_MISSING:
            message = f"{subject}, {quote_text(str(party))}, does not exist or is not public"
            self._refuse(key, message, AdviceKind.CREATE_PARTY())
            return None
        if status is PartyStatus.FOREIGN:
            self._unverified[self._name_key(party)] = party
        return registered

    def _read_party(self, value: Value, key: str, noun: str) -> Handle | None:
        try:
            return parse_party(value.data, self._resolvers, for_lookup=self._change.is_import)
        except InvalidData as problem:
            message = f"value {value.index} is not a valid {noun}: {problem}"
            self._refuse(key, message, AdviceKind.NAME_PARTY(role=noun))
            return None

    def _parse(self, field: _Field, value: Value) -> str | None:
        """The stored form of a value; None if it is invalid."""
        try:
            if field is _Field.DATE:
                return to_iso(parse_timestamp(value.data))
            # An existing party need not be legal here.
            return str(parse_party(value.data, self._resolvers, for_lookup=True))
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

    def _refuse(self, key: str, message: str, advice: Advice) -> None:
        self._refusals.append(Refusal(Subject.VALUES, key, self._policy.line(key), message, advice))


def _assign_indexes(others: list[Value], fields: list[Value]) -> list[Value]:
    """All values with an index each. A maintained value whose index a client uses is moved."""
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


# Metadata


NOT_VERIFIED: Final = "not verified: it has no public record here"
"""The remark about a party that is not verified."""


@dataclass(frozen=True, slots=True)
class Party:
    """The creator or an owner of an identifier."""

    handle: Handle
    verified: bool
    """Whether the handle is known to resolve."""

    def to_json(self) -> JsonObject:
        return {"uri": to_path(Reference(self.handle)), "verified": self.verified}


@dataclass(frozen=True, slots=True)
class AuthorityMetadata:
    """The public metadata of an identifier (A1).

    What a record does not have, or not in a valid form, is None.
    """

    created: int | None
    """When the handle was first associated with its object, in seconds since 1970."""
    updated: int | None
    """When the record last changed, in seconds since 1970."""
    creator: Party | None
    owners: tuple[Party, ...] = ()
    """Without the creator."""

    def to_json(self) -> JsonObject:
        """Dates in ISO 8601, parties as `hdl:`."""
        return {
            "created": None if self.created is None else to_iso(self.created),
            "updated": None if self.updated is None else to_iso(self.updated),
            "creator": None if self.creator is None else self.creator.to_json(),
            "owners": [owner.to_json() for owner in self.owners],
        }


def build_metadata(
    policy: Policy, record: Record, changed: int | None, is_verified: Callable[[Handle], bool]
) -> AuthorityMetadata | None:
    """The authority metadata of a record; None if the policy does not require any.

    Dates and creator are public values. Owners are public even if their value is not (A2): a record may be older than
    the rule that refuses this.

    `changed` is the time (seconds since 1970) of the latest entry that changed values, removals included, but not of
    the import of the record (A3).
    """
    if not policy.authority:
        return None
    values = record.public().values
    times = [time for time in (changed, *[value.timestamp for value in values]) if time and 0 < time <= _LAST_INSTANT]
    created = first_valid(values_of_exact_type(values, policy.creation_date_type), parse_timestamp)
    creator = first_valid(values_of_exact_type(values, policy.creator_type), parse_stored_party)
    owners = find_owners(policy, record.handle, record.values, creator)
    return AuthorityMetadata(
        created=created,
        updated=max(times, default=None),
        creator=None if creator is None else Party(creator, is_verified(creator)),
        owners=tuple([Party(owner, is_verified(owner)) for owner in owners]),
    )


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """The record of a type (A6): types are handles and resolve to their definition."""

    type: str
    """The type, as in the policy."""
    description: str
    """What values of the type mean."""
    syntax: str
    """The format of their data, for people."""
    pattern: str | None = None
    """The same as a regular expression; None for any text."""
    example: str | None = None

    @property
    def handle(self) -> Handle | None:
        """The handle of the definition; None for a plain word, which has no record."""
        return Handle.for_lookup(self.type)

    @property
    def name(self) -> str:
        """The type's name in its registry."""
        return self.type if self.handle is None else self.handle.suffix

    @property
    def text(self) -> str:
        """The description, for people."""
        return f"{self.name}: {self.description} Syntax: {self.syntax}"

    @property
    def definition(self) -> Definition | None:
        """The definition, for programs; None if its name is too long."""
        try:
            return Definition.make(self.name, self.description, pattern=self.pattern, example=self.example)
        except InvalidData:
            return None

    @property
    def values(self) -> tuple[Value, ...]:
        """The description and, if there is one, the definition."""
        description = Value.text(1, DESC, self.text)
        return (
            (description,)
            if self.definition is None
            else (description, Value(2, DEFINITION, self.definition.to_bytes()))
        )


def type_definitions(policy: Policy) -> tuple[TypeDefinition, ...]:
    """The types of the values that the server writes under a policy."""
    definitions = {getattr(policy, key): definition for key, definition in _DEFINITIONS.items()}
    return tuple([TypeDefinition(type_, definitions[type_][0], *definitions[type_][1]) for type_ in policy.types_used])


def find_handle_types(policy: Policy) -> frozenset[str]:
    """The types, folded, whose values are one handle each under a policy."""
    types = [getattr(policy, key) for key, (_, form) in _DEFINITIONS.items() if form is _HANDLE]
    return frozenset([fold(type_) for type_ in types if type_])


@cache
def _built_in_definitions() -> Mapping[str, TypeDefinition]:
    """The definitions of all types that the built-in profiles use, by the folded type."""
    policies = [replace(policy, authority=True, owner_type=DEFAULT_OWNER_TYPE) for policy in PROFILES.values()]
    return {fold(each.type): each for policy in policies for each in type_definitions(policy) if each.handle}


def find_built_in_definition(handle: Handle) -> TypeDefinition | None:
    """The definition of a type that a built-in profile uses (A6).

    Its prefix may be hosted elsewhere. Then this is a copy, and is marked as such wherever it is shown. Interfaces
    without such a mark, the native protocol and the compatible API, do not return it: there, a response means that this
    server is responsible for the handle.
    """
    return _built_in_definitions().get(fold(str(handle)))


def find_owners(policy: Policy, handle: Handle, values: Iterable[Value], creator: Handle | None) -> tuple[Handle, ...]:
    """The owners, each once, without the creator (A5)."""
    if policy.owner_type:
        named = [first_valid([value], parse_stored_party) for value in values_of_exact_type(values, policy.owner_type)]
    else:
        named = [_administrator(value) for value in ascending(values) if has_type(value.type, HS_ADMIN)]
    seen = set() if creator is None else {name_key(policy, handle, creator)}
    owners = []
    for owner in named:
        if owner is not None and (key := name_key(policy, handle, owner)) not in seen:
            seen.add(key)
            owners.append(owner)
    return tuple(owners)


def _administrator(value: Value) -> Handle | None:
    """The administrator in a value. A prefix handle means the namespace, which is not an owner."""
    admin = interpret_as(value, Admin)
    handle = None if admin is None else Handle.for_lookup(admin.administrator.handle)
    return None if handle is None or handle.is_prefix_handle else handle


def name_key(policy: Policy, handle: Handle, party: Handle) -> str:
    """A key that all spellings of a party share. A policy knows the case rule of its own namespace only."""
    rule = policy.case if fold(party.prefix) == fold(handle.prefix) else CaseRule.SENSITIVE
    return rule.key(party)


def values_of_exact_type(values: Iterable[Value], type_: str) -> list[Value]:
    """The values of exactly this type, by ascending index; none if it is empty."""
    folded = fold(type_)
    return list(ascending(value for value in values if folded and fold(value.type) == folded))


def parse_timestamp(data: bytes) -> int:
    """The time of a date of creation, in seconds since 1970."""
    text = Text.from_bytes(data).text
    instant = from_iso(text) if _TIMESTAMP_RE.fullmatch(text) else 0
    if not 0 < instant <= _LAST_INSTANT:  # there was no identifier before 1970
        raise InvalidData(f"{quote_text(text)} is not a time such as 2017-07-14T02:40:00Z")
    return instant


def parse_party(data: bytes, resolvers: Sequence[Resolver], *, for_lookup: bool) -> Handle:
    """The handle in a value, in any form of U. It is stored bare, which must be read as the same handle."""
    text = Text.from_bytes(data).text
    try:
        reference = parse_user_input(text, resolvers, for_lookup=for_lookup)
        bare = parse_user_input(str(reference.handle), resolvers, for_lookup=for_lookup)
    except InvalidName as problem:
        raise InvalidData(f"{quote_text(text)} is not a handle: {problem}") from None
    if reference.tail:
        raise InvalidData(f"{quote_text(text)} has a query or fragment")
    if bare != Reference(reference.handle):
        raise InvalidData(
            f"{quote_text(str(reference.handle))} is ambiguous: it can be read as {quote_text(str(bare.handle))}"
        )
    return reference.handle


def parse_stored_party(data: bytes) -> Handle:
    """The handle in a stored value."""
    return parse_party(data, KNOWN_RESOLVERS, for_lookup=True)


def first_valid(values: Iterable[Value], parse: Callable[[bytes], _T]) -> _T | None:
    """The first value that can be parsed."""
    for value in values:
        try:
            return parse(value.data)
        except InvalidData:
            continue
    return None


_TEXT = ("Text in UTF-8.", None, None)
_DATE = (
    "A moment in ISO 8601, in UTC, to the second: YYYY-MM-DDThh:mm:ssZ.",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z",
    "2007-06-22T02:53:46Z",
)
_HANDLE = ("One handle, bare: PREFIX/SUFFIX, in UTF-8.", "[^/]+/(?s:.+)", "102.100.272/0N8J991QH")
_DEFINITIONS: Final[Mapping[str, tuple[str, tuple[str, str | None, str | None]]]] = {
    "creation_date_type": ("When the identifier was first associated with the thing it identifies.", _DATE),
    "creator_type": ("The party that created the identifier.", _HANDLE),
    "owner_type": ("A party that answers for the identifier, if it is not the creator.", _HANDLE),
    "tombstone_reason_type": ("Why the identified thing is gone.", _TEXT),
    "tombstone_date_type": ("Since when the identified thing is gone.", _DATE),
    "tombstone_replacement_type": ("The identifier to use instead, now that the thing is gone.", _HANDLE),
    "work_type": ("The work of which the identified thing is one fixed version.", _HANDLE),
    "expression_type": ("A fixed version of the identified work.", _HANDLE),
    "object_type": ("The thing that the identified metadata record describes.", _HANDLE),
    "metadata_type": ("The metadata record that describes the identified thing.", _HANDLE),
}
