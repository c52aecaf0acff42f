"""The type registry (A6): types are handles, and resolve to their definition.

A type is registered where its record is: one whose prefix is homed here must exist, be public and say what it is, in a
`PERSEID_TYPE` value for programs or at least in a `DESC` for people. One that belongs elsewhere is believed, as no
write waits for another server.

What a namespace asks of types stands in its policy: `registered_types`, and `validate_types`, by which the data of a
value has to be what the definition of its type says. The first is asked of types that are new in the record, the second
of values that are new or changed. A policy or a definition may change after a value was written, or the record of the
type go, and who then corrects something else in the record is not at fault.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perseid.names.characters import fold
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.patterns import ValidationBudget
from perseid.records.record import ascending
from perseid.records.type_definition import Definition
from perseid.records.types import DEFINITION, DESC, has_type
from perseid.records.value import Value
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from .policy import Policy, Refusal, Subject

BUILT_IN_TYPES: Final = frozenset({"URL", "EMAIL", DESC, "INET_HOST", "URN", DEFINITION})
"""Types that every deployed tool knows, and our own; with those that begin with `HS_` they need no definition (A6)."""

MAX_CHECKED_TYPES: Final = 32
"""Of how many different types with a definition the data is checked in one change of a record: for each, the definition
is read and made ready."""


@dataclass(frozen=True, slots=True)
class RegisteredType:
    """What the record of a type here says."""

    handle: Handle
    """The name as it is registered."""
    seq: int
    """The entry that says so."""
    description: str | None
    """What it is, for people: the text of the record's DESC, if there is one."""
    definition: Definition | None
    """The same for programs; None, if the record has none that can be read."""
    problem: str = ""
    """What is wrong with the definition, if it cannot be read."""


def definition_values(definition: Definition) -> tuple[Value, ...]:
    """The values of a type's record: what it is for people, whom DESC serves everywhere, and for programs."""
    return (
        Value.text(1, DESC, f"{definition.name}: {definition.description}"),
        Value(2, DEFINITION, definition.to_bytes()),
    )


def check_definitions(before: Iterable[Value], values: Iterable[Value]) -> None:
    """Refuse a definition that is new or changed and could not be used, in whichever record it stands."""
    defining = [value for value in values if len(value.type) >= len(DEFINITION) and has_type(value.type, DEFINITION)]
    there = {value.data for value in before if has_type(value.type, DEFINITION)} if defining else set()
    for value in defining:
        if value.data not in there:
            if len(defining) > 1:
                reason = f"values {defining[0].index} and {defining[1].index} both define a type, and a record is one"
                raise Refused(ResponseCode.INVALID_VALUE, reason, "make a record for each type", "A6")
            try:
                Definition.from_bytes(value.data).check()
            except InvalidData as problem:
                reason = f"value {value.index} does not define a type: {problem}"
                advice = "what a definition looks like stands in docs/reference/types.md"
                raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "A6") from problem


def check_types(
    snapshot: Snapshot, policy: Policy, values: Sequence[Value], before: Sequence[Value] = ()
) -> Iterator[Refusal]:
    """What the policy of a namespace has against the types of values, and against their data."""
    if policy.registered_types:
        yield from _check_registered(snapshot, policy, values, before)
    if policy.validate_types:
        yield from _check_data(snapshot, policy, values, before)


def get_registered_type(stored: StoredRecord) -> RegisteredType | None:
    """What a record says about the type that it is; None if it is none that everybody may see, or says nothing."""
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


def _check_registered(
    snapshot: Snapshot, policy: Policy, values: Sequence[Value], before: Sequence[Value]
) -> Iterator[Refusal]:
    """Types without a definition. Those that the policy itself names need none: the service writes them."""
    # What the record has already it may keep: it came before the policy, or its type had a record then.
    seen = {fold(type_) for type_ in (*policy.types_used, *[value.type for value in before])}
    for value in values:
        type_ = fold(value.type)
        if type_ in seen or _is_built_in(type_):
            continue
        seen.add(type_)
        handle = Handle.for_lookup(value.type)
        if handle is not None and (
            not snapshot.is_responsible(handle) or get_registered_type(snapshot.stored(handle)) is not None
        ):
            continue
        message = f"the type {quote_text(value.type)} has no definition"
        if handle is None:
            remedy = "It is no handle, and only handles are registered: use one that is (perseid type list)."
        else:
            remedy = f"Define it first (perseid type add {quote_text(value.type)} …), or use a type that is registered."
        yield Refusal(Subject.VALUES, "registered_types", policy.line("registered_types"), message, remedy)


def _check_data(
    snapshot: Snapshot, policy: Policy, values: Sequence[Value], before: Sequence[Value]
) -> Iterator[Refusal]:
    """The first data that is not what the definition of its type says.

    There it ends. Nobody is told of more than one, and a definition that cannot be used, or not within bounds, would
    otherwise be tried anew for each of its values: it is not kept as those are that can.
    """
    there = {(fold(value.type), value.data) for value in before}
    found: dict[str, RegisteredType | None] = {}
    defined = 0
    budget = ValidationBudget()
    for value in values:
        type_ = fold(value.type)
        if (type_, value.data) in there or _is_built_in(type_):
            continue
        if type_ not in found:
            here = found[type_] = _find_type(snapshot, value.type)
            defined += here is not None and here.definition is not None
        if defined > MAX_CHECKED_TYPES:
            message = f"new values of more than {MAX_CHECKED_TYPES} different types are not checked together"
            remedy = "Write them one after the other: what the record has already is not checked anew."
        elif why := _describe_problem(found[type_], value.data, budget):
            message = f"value {value.index} is not of its type {quote_text(value.type)}: {why}"
            remedy = f"Give what the type asks for: perseid type show {quote_text(value.type)}."
        else:
            continue
        yield Refusal(Subject.VALUES, "validate_types", policy.line("validate_types"), message, remedy)
        return


def _find_type(snapshot: Snapshot, type_: str) -> RegisteredType | None:
    """What is registered here about a type."""
    handle = Handle.for_lookup(type_)
    return (
        None if handle is None or not snapshot.is_responsible(handle) else get_registered_type(snapshot.stored(handle))
    )


def _describe_problem(found: RegisteredType | None, data: bytes, budget: ValidationBudget) -> str:
    """What is wrong with data of a type; empty if nothing is, or if nothing is said about it."""
    if found is None:
        return ""
    if found.definition is None:
        return f"its definition cannot be read: {found.problem}" if found.problem else ""
    return str(found.definition.violation(data, budget) or "")


def _is_built_in(folded: str) -> bool:
    return folded.startswith("HS_") or folded.partition(".")[0] in BUILT_IN_TYPES
