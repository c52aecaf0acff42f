"""Type registry (A6): types are handles, and resolve to their definition.

A type whose prefix is homed here is registered if its record exists, is public and describes it, in a `PERSEID_TYPE`
value for programs or at least in a `DESC` for people. A type that belongs elsewhere is accepted, because no write waits
for another server.

The policy decides what is checked: `registered_types` applies to types that are new in the record, `validate_types` to
values that are new or changed. A policy or a definition may change after a value was written, or a type may be deleted;
that must not block other corrections of the record.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from perseid.ledger.log.entry import PUBLIC_STATES
from perseid.ledger.views.search_keys import type_ranges
from perseid.names.errors import quote_text
from perseid.names.handle import Handle, describe_unseen, fold
from perseid.names.suggest import Typo, compare, did_you_mean, nearest
from perseid.records.data_types import Definition
from perseid.records.errors import InvalidData
from perseid.records.patterns import ValidationBudget
from perseid.records.record import Value, ascending
from perseid.records.types import (
    DEFINITION,
    DESC,
    HS_ADMIN,
    HS_ALIAS,
    HS_CERT,
    HS_NA_DELEGATE,
    HS_NAMESPACE,
    HS_PUBKEY,
    HS_SECKEY,
    HS_SERV,
    HS_SIGNATURE,
    HS_SITE,
    HS_VLIST,
    MAX_CACHED_TYPES,
    TypeQuery,
    has_type,
)
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from .policy import Policy, Refusal, Subject

BUILT_IN_TYPES: Final = frozenset({"URL", "EMAIL", DESC, "INET_HOST", "URN", DEFINITION})
"""Types that every deployed tool knows, and our own; with those that begin with `HS_` they need no definition (A6)."""

CITATION_TYPES: Final = frozenset(
    {"TITLE", "AUTHOR", "CREATOR", "DATE", "ISSUED", "PUBLISHER", "DESCRIPTION", "ABSTRACT", "DC", "DCTERMS"}
)
"""Types, or the beginnings of their names, that citations read (`queries.citation`)."""

_EXACT_TYPES: Final = BUILT_IN_TYPES | {
    *(HS_ADMIN, HS_VLIST, HS_PUBKEY, HS_SECKEY, HS_SITE, HS_NA_DELEGATE, HS_SERV, HS_NAMESPACE, HS_ALIAS),
    *(HS_SIGNATURE, HS_CERT),
}

_COMPARED_TYPES: Final = frozenset((_EXACT_TYPES | CITATION_TYPES) - {"DC", "DCTERMS"})
"""The well-known types that others are compared with; `dc.title` and `dcterms.title` are usual in lowercase."""

TYPO_SIMILARITY: Final = 0.8
"""How similar a type is to one that was probably meant: one letter of four or more differs, or is extra."""

_FOREIGN: Final = re.compile(r"(10320|[0-9]+(\.[0-9A-Za-z-]+)+)/.")  # 10320 has types of the Handle System
_WORD: Final = re.compile("[A-Za-z0-9_]{2,16}")  # no handle, and not much longer than the longest built-in type

MAX_COMPARED_TYPES: Final = 32
"""How many new types of a record are compared with the built-in ones: each takes some 30 µs, also in the writer."""

MAX_LISTED_TYPES: Final = 100
"""How many registered types a handle that is not one is compared with: each is read, which takes some 20 µs."""

MAX_CHECKED_TYPES: Final = 32
"""How many types with a definition can be checked in one change of a record: each definition is read and compiled."""


@dataclass(frozen=True, slots=True)
class RegisteredType:
    """The registered record of a type."""

    handle: Handle
    """The registered handle."""
    seq: int
    """Its latest entry."""
    description: str | None
    """For people: the text of the record's DESC, if there is one."""
    definition: Definition | None
    """For programs; None if the record has no valid one."""
    problem: str = ""
    """What is wrong with the definition, if it is invalid."""
    is_copy: bool = False
    """Whether another service hosts the type, and this is the copy that comes with Perseid."""


def definition_values(definition: Definition) -> tuple[Value, ...]:
    """The values of a type's record: DESC for people, and the definition for programs."""
    return (
        Value.text(1, DESC, f"{definition.name}: {definition.description}"),
        Value(2, DEFINITION, definition.to_bytes()),
    )


def check_definitions(before: Iterable[Value], values: Iterable[Value]) -> None:
    """Refuse a new or changed definition that is invalid, in any record."""
    defining = [value for value in values if len(value.type) >= len(DEFINITION) and has_type(value.type, DEFINITION)]
    existing = {value.data for value in before if has_type(value.type, DEFINITION)} if defining else set()
    for value in defining:
        if value.data not in existing:
            if len(defining) > 1:
                reason = (
                    f"Values {defining[0].index} and {defining[1].index} both define a type; a record can define one"
                )
                raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.SEPARATE_TYPES(), "A6")
            try:
                Definition.from_bytes(value.data).check()
            except InvalidData as problem:
                reason = f"Value {value.index} is not a valid type definition: {problem}"
                raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.SEE_TYPE_FORMAT(), "A6") from problem


def check_types(
    snapshot: Snapshot, policy: Policy, values: Sequence[Value], before: Sequence[Value] = ()
) -> Iterator[Refusal]:
    """The violations of the policy by the types and data of values."""
    if policy.registered_types:
        yield from _check_registered(snapshot, policy, values, before)
    if policy.validate_types:
        yield from _check_data(snapshot, policy, values, before)


def find_type_problems(values: Iterable[Value], before: Iterable[Value]) -> Iterator[tuple[Value, str]]:
    """The values whose type contains a character that people do not see, and which; without types of `before`."""
    known = {value.type for value in before}
    for value in values:
        text = value.type
        if (text.isascii() and text.isprintable() and " " not in text) or text in known:
            continue
        for character in text:
            if what := describe_unseen(character):
                yield value, f"{what} (U+{ord(character):04X})"
                break


def find_type_typos(policy: Policy, values: Iterable[Value], before: Iterable[Value]) -> Iterator[tuple[Value, str]]:
    """The values whose type is nearly a well-known one, and which; without types of `before` and of the policy.

    Only the first `MAX_COMPARED_TYPES` new types are compared.
    """
    known: set[str] | None = None
    compared: set[str] = set()
    for value in values:
        base = value.type.partition(".")[0]
        if base in _COMPARED_TYPES or not _WORD.fullmatch(base):
            continue
        if known is None:
            known = {old.type for old in before}
        if value.type in known or fold(value.type) in policy.named_types:
            continue
        compared.add(base)
        if len(compared) > MAX_COMPARED_TYPES:
            return
        if meant := _get_meant_type(base):
            yield value, meant


def find_handle_typos(
    snapshot: Snapshot, policy: Policy, values: Iterable[Value], before: Iterable[Value]
) -> Iterator[tuple[Value, str]]:
    """The values whose type is a handle that is not registered here, but nearly one that is, and which.

    Without types of `before` and of the policy; only the first `MAX_COMPARED_TYPES` new types are looked up.
    """
    handles = {
        value.type: value for value in values if "/" in value.type and fold(value.type) not in policy.named_types
    }
    for type_ in {value.type for value in before} & handles.keys() if handles else ():
        del handles[type_]
    registered: list[Handle] | None = None
    for type_, value in islice(handles.items(), MAX_COMPARED_TYPES):
        handle = Handle.for_lookup(type_)
        if handle is None or _is_defined(snapshot, handle):
            continue
        registered = _list_registered(snapshot) if registered is None else registered
        if meant := _find_similar(handle, registered):
            yield value, meant


def _find_similar(handle: Handle, registered: Iterable[Handle]) -> str:
    """The registered type of the same prefix that is nearly this one; empty if there is none."""
    known = {fold(each.suffix): each for each in registered if fold(each.prefix) == fold(handle.prefix)}
    meant = nearest(fold(handle.suffix), known, TYPO_SIMILARITY)
    return display_name(known[meant]) if meant else ""


def _list_registered(snapshot: Snapshot) -> list[Handle]:
    """The types with a definition here, as far as they are compared."""
    (one,) = type_ranges(DEFINITION)
    rows, _ = snapshot.reader.find_by_keys(one.first, one.end, MAX_LISTED_TYPES)
    return [Handle.parse_lenient(entry.handle) for _, entry in rows if entry.state in PUBLIC_STATES]


@lru_cache(MAX_CACHED_TYPES)
def _get_meant_type(base: str) -> str:
    folded, known = fold(base), sorted(_COMPARED_TYPES)
    swapped = (name for name in known if compare(folded, name)[0] is Typo.SWAPPED)  # certain in short types, too: `ULR`
    return nearest(folded, known, TYPO_SIMILARITY) or next(swapped, "")


def _policy_types(policy: Policy) -> tuple[str, ...]:
    return (*policy.allowed_types, *policy.required_types, *policy.types_used)


def get_registered_type(stored: StoredRecord) -> RegisteredType | None:
    """The type that a record defines; None if it is not public or defines none."""
    if not stored.is_public:
        return None
    public = ascending(value for value in stored.values if value.is_public)
    description = next((value for value in public if has_type(value.type, DESC)), None)
    defining = next((value for value in public if has_type(value.type, DEFINITION)), None)
    if description is None and defining is None:
        return None
    text = None if description is None else description.data.decode("utf-8", "replace")
    if defining is None:
        return RegisteredType(stored.handle, stored.seq, text, None)
    try:
        return RegisteredType(stored.handle, stored.seq, text, Definition.from_bytes(defining.data))
    except InvalidData as problem:
        return RegisteredType(stored.handle, stored.seq, text, None, str(problem))


def is_known_type(snapshot: Snapshot, policy: Policy, type_: str) -> bool:
    """Whether a type is built in, in this spelling, used by citations, named by the policy, or a registered handle.

    Every type can be stored. This is for files whose columns may mean something else.
    """
    if is_named_type(policy, type_):
        return True
    handle = Handle.for_lookup(type_)
    if handle is not None and not snapshot.hosts_prefix(handle.prefix):
        return is_foreign_type(type_)
    return _is_defined(snapshot, handle)


def is_foreign_type(type_: str) -> bool:
    """Whether a type that is not of this server looks like one of another: `21.T11148/x`, not `Name/Title` or a URL."""
    return bool(_FOREIGN.match(type_))


def is_named_type(policy: Policy, type_: str) -> bool:
    """Whether a type is built in, in this spelling, used by citations, or named by the policy."""
    is_built_in = type_.startswith("HS_") or type_.partition(".")[0] in BUILT_IN_TYPES | CITATION_TYPES
    return is_built_in or TypeQuery(_policy_types(policy)).finds(type_)


def nearest_type(policy: Policy, type_: str) -> str:
    """Return the known type that is most similar to an unknown one; empty if none is."""
    names = (*BUILT_IN_TYPES, *CITATION_TYPES, *policy.allowed_types, *policy.required_types)
    known = {fold(name): name for name in names}
    return known.get(nearest(fold(type_), known), "")


def _check_registered(
    snapshot: Snapshot, policy: Policy, values: Sequence[Value], before: Sequence[Value]
) -> Iterator[Refusal]:
    """Check that new types are registered. Those that the policy names need no definition: the server writes them."""
    # Existing types may stay: they are older than the policy, or their type was deleted.
    seen = {fold(type_) for type_ in (*policy.types_used, *[value.type for value in before])}
    for value in values:
        type_ = fold(value.type)
        if type_ in seen or _is_built_in(type_):
            continue
        seen.add(type_)
        handle = Handle.for_lookup(value.type)
        if _is_defined(snapshot, handle):
            continue
        meant = "" if handle is None else _find_similar(handle, _list_registered(snapshot))
        message = f"the type {quote_text(value.type)} is not registered" + (f"; {did_you_mean(meant)}" if meant else "")
        advice = AdviceKind.LIST_TYPES() if handle is None else AdviceKind.DEFINE_TYPE(type=value.type)
        yield Refusal(Subject.VALUES, "registered_types", policy.line("registered_types"), message, advice)


def _check_data(
    snapshot: Snapshot, policy: Policy, values: Sequence[Value], before: Sequence[Value]
) -> Iterator[Refusal]:
    """The first value whose data violates the definition of its type.

    Only one is reported, and a definition that is unusable or exceeds the budget is not cached: it would be tried again
    for each of its values.
    """
    existing = {(fold(value.type), value.data) for value in before}
    types: dict[str, RegisteredType | None] = {}
    defined = 0
    budget = ValidationBudget()
    for value in values:
        type_ = fold(value.type)
        if (type_, value.data) in existing or _is_built_in(type_):
            continue
        if type_ not in types:
            registered = types[type_] = _find_type(snapshot, value.type)
            defined += registered is not None and registered.definition is not None
        if defined > MAX_CHECKED_TYPES:
            message = f"the change has new values of more than {MAX_CHECKED_TYPES} types with a definition"
            advice = AdviceKind.WRITE_IN_STEPS()
        elif why := _describe_problem(types[type_], value.data, budget):
            message = f"value {value.index} does not match its type {quote_text(value.type)}: {why}"
            advice = AdviceKind.SEE_TYPE(type=value.type)
        else:
            continue
        yield Refusal(Subject.VALUES, "validate_types", policy.line("validate_types"), message, advice)
        return


def _is_defined(snapshot: Snapshot, handle: Handle | None) -> bool:
    """Whether a type is registered here, or belongs elsewhere."""
    return handle is not None and (
        not snapshot.is_responsible(handle) or get_registered_type(snapshot.stored(handle)) is not None
    )


def _find_type(snapshot: Snapshot, type_: str) -> RegisteredType | None:
    handle = Handle.for_lookup(type_)
    return (
        None if handle is None or not snapshot.is_responsible(handle) else get_registered_type(snapshot.stored(handle))
    )


def _describe_problem(registered: RegisteredType | None, data: bytes, budget: ValidationBudget) -> str:
    """What is wrong with data of a type; empty if nothing is, or if there is no definition."""
    if registered is None:
        return ""
    if registered.definition is None:
        return f"its definition is invalid: {registered.problem}" if registered.problem else ""
    return str(registered.definition.violation(data, budget) or "")


def _is_built_in(folded: str) -> bool:
    return folded.startswith("HS_") or folded.partition(".")[0] in BUILT_IN_TYPES
