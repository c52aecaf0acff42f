"""Authority metadata of a record (A1), in one form for pages and interfaces.

`authority` ensures that records under the policy have these values. Here they are read, with no assumptions: an
imported record, or one that is older than the policy, may contain anything or nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from perseid.names.characters import fold
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import CaseRule, Handle
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_user_input, to_path
from perseid.records.admin import Admin
from perseid.records.data_types import Definition, interpret_as
from perseid.records.encoding import from_iso, to_iso
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject
from perseid.records.record import Record, ascending
from perseid.records.types import HS_ADMIN, Text, has_type
from perseid.records.value import Value

from .policy import Policy

_LAST_INSTANT: Final = 253_402_300_799  # 9999-12-31T23:59:59Z, after which ISO 8601 needs an agreement
# A date without a time, or a time without a zone, is ambiguous in UTC (A3).
_TIMESTAMP_RE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)


_T = TypeVar("_T")


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
    """The authority metadata of a record, from its public values; None if the policy does not require any.

    `changed` is the time (seconds since 1970) of the latest entry that changed values, removals included, but not of
    the import of the record (A3).
    """
    if not policy.authority:
        return None
    values = record.public().values
    times = [time for time in (changed, *[value.timestamp for value in values]) if time and 0 < time <= _LAST_INSTANT]
    created = first_valid(values_of_exact_type(values, policy.creation_date_type), parse_timestamp)
    creator = first_valid(values_of_exact_type(values, policy.creator_type), parse_stored_party)
    owners = find_owners(policy, record.handle, values, creator)
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


def type_definitions(policy: Policy) -> tuple[TypeDefinition, ...]:
    """The types of the values that the server writes under a policy."""
    definitions = {getattr(policy, key): definition for key, definition in _DEFINITIONS.items()}
    return tuple([TypeDefinition(type_, definitions[type_][0], *definitions[type_][1]) for type_ in policy.types_used])


def find_owners(policy: Policy, handle: Handle, values: Iterable[Value], creator: Handle | None) -> tuple[Handle, ...]:
    """The owners in public values, each once, without the creator (A5)."""
    public = ascending(value for value in values if value.is_public)
    if policy.owner_type:
        named = [first_valid([value], parse_stored_party) for value in values_of_exact_type(public, policy.owner_type)]
    else:
        named = [_administrator(value) for value in public if has_type(value.type, HS_ADMIN)]
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
