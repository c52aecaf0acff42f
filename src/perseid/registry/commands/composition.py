"""When values were changed: the timestamps of a record that is about to be stored.

The server sets them, whatever a request says, and an unchanged value keeps its own. So a client that replaces a whole
record with what it read moves no date, and authority metadata can take the last update from the values (A3).

What a record becomes: the values that were asked for, with what the namespace adds, demands and forbids.

One way for every change at every door, so that no door is weaker than another: administrators for a new record that
brings none, authority metadata, the policy's types, timestamps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.value import Value
from perseid.registry.context import Context, check_count, with_administrators
from perseid.registry.policy.authority import Change, Completed, Known, complete
from perseid.registry.policy.templates import check_namespaces
from perseid.registry.policy.types import check_definitions, type_refusals
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts, Held


def stamp(
    before: Iterable[Value] | None, wanted: Iterable[Value], now: int, *, is_import: bool = False
) -> tuple[Value, ...]:
    """The wanted values with their timestamps: those that are new or changed get `now`.

    A value is the same if the record had it at this index, with everything but the timestamp equal. An import brings
    timestamps of its own and these are kept; 0 means that it says none.
    """
    former = {value.index: value for value in before or ()}
    return tuple([_stamped(former.get(value.index), value, now, is_import) for value in wanted])


def _stamped(former: Value | None, value: Value, now: int, is_import: bool) -> Value:
    if is_import and value.timestamp:
        return value
    if former is not None and value.with_timestamp(former.timestamp) == former:
        return former
    return value.with_timestamp(now)


MAX_INDEX = 0x7FFF_FFFF
"""The largest index there is."""


def compose(
    context: Context,
    held: Held,
    wanted: Sequence[Value],
    *,
    whole: bool = False,
    creates: bool = False,
    state: State | None = None,
) -> tuple[Value, ...]:
    """The values of the record after a change; refused where the policy has something against them.

    `whole` says that the request gave the whole record, and `creates` that its name gets a thing with it. `state` is
    what the name is afterwards. A reserved name has no thing yet, hence neither a date of creation nor what the policy
    requires; nor need a tombstone have what is required of others.
    """
    is_import = context.is_import
    after = (State.NORMAL if creates else held.state) if state is None else state
    values = with_administrators(context, held, wanted) if creates else tuple(wanted)
    if after is not State.RESERVED:
        change = Change(
            handle=held.handle,
            before=None if creates else held.values,
            wanted=values,
            now=context.now,
            whole=whole or creates,
            is_import=is_import,
        )
        completed = complete(held.policy, change, lambda handle: known(context.facts, handle))
        if not isinstance(completed, Completed):
            raise Refused.by_policy(completed)
        values = completed.values
    check_count(values)
    if not is_import:
        check_namespaces(held.values, values)
    if refusals := held.policy.check_values(values, complete=after not in (State.RESERVED, State.TOMBSTONE)):
        raise Refused.by_policy(refusals)
    check_definitions(held.values, values)
    if refusals := list(type_refusals(context.facts, held.policy, values, held.values)):
        raise Refused.by_policy(refusals)
    return stamp(held.values, values, context.now, is_import=is_import)


def moved_apart(kept: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Values that stand beside others: where an index is taken they move to a free one behind it."""
    taken = {value.index for value in others}
    found = []
    for value in kept:
        index = value.index
        while index in taken:
            index = index + 1 if index < MAX_INDEX else 1
        taken.add(index)
        found.append(replace(value, index=index))
    return found


def kept_by_policy(held: Held) -> tuple[Value, ...]:
    """The values that stay in a record although a request for the whole of it leaves them out (A8)."""
    if not held.policy.authority:
        return ()
    types = {fold(held.policy.creation_date_type), fold(held.policy.creator_type)}
    return tuple([value for value in held.values if fold(value.type) in types])


def known(facts: Facts, handle: Handle) -> Known:
    """What this server knows of a handle that a record names as its creator."""
    if not facts.is_responsible(handle):
        return Known.FOREIGN
    held = facts.held(handle)
    return Known.HERE_PUBLIC if held.is_public else Known.HERE_MISSING
