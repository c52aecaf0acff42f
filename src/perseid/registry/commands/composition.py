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
from perseid.registry.context import Context, add_administrators, check_count
from perseid.registry.policy.authority import Change, CompletedRecord, PartyStatus, complete_record
from perseid.registry.policy.templates import check_namespaces
from perseid.registry.policy.types import check_definitions, check_types
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord


def set_timestamps(
    before: Iterable[Value] | None, wanted: Iterable[Value], now: int, *, is_import: bool = False
) -> tuple[Value, ...]:
    """The wanted values with their timestamps: those that are new or changed get `now`.

    A value is the same if the record had it at this index, with everything but the timestamp equal. An import brings
    timestamps of its own and these are kept; 0 means that it says none.
    """
    former = {value.index: value for value in before or ()}
    return tuple([_with_timestamp(former.get(value.index), value, now, is_import) for value in wanted])


def _with_timestamp(former: Value | None, value: Value, now: int, is_import: bool) -> Value:
    if is_import and value.timestamp:
        return value
    if former is not None and value.with_timestamp(former.timestamp) == former:
        return former
    return value.with_timestamp(now)


MAX_INDEX = 0x7FFF_FFFF
"""The largest index there is."""


def compose(
    context: Context,
    stored: StoredRecord,
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
    after = (State.NORMAL if creates else stored.state) if state is None else state
    values = add_administrators(context, stored, wanted) if creates else tuple(wanted)
    if after is not State.RESERVED:
        change = Change(
            handle=stored.handle,
            before=None if creates else stored.values,
            wanted=values,
            now=context.now,
            whole=whole or creates,
            is_import=is_import,
        )
        completed = complete_record(stored.policy, change, lambda handle: get_party_status(context.snapshot, handle))
        if not isinstance(completed, CompletedRecord):
            raise Refused.from_refusals(completed)
        values = completed.values
    check_count(values)
    if not is_import:
        check_namespaces(stored.values, values)
    if refusals := stored.policy.check_values(values, complete=after not in (State.RESERVED, State.TOMBSTONE)):
        raise Refused.from_refusals(refusals)
    check_definitions(stored.values, values)
    if refusals := list(check_types(context.snapshot, stored.policy, values, stored.values)):
        raise Refused.from_refusals(refusals)
    return set_timestamps(stored.values, values, context.now, is_import=is_import)


def reindex(kept: Iterable[Value], others: Iterable[Value]) -> list[Value]:
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


def policy_values(stored: StoredRecord) -> tuple[Value, ...]:
    """The values that stay in a record although a request for the whole of it leaves them out (A8)."""
    if not stored.policy.authority:
        return ()
    types = {fold(stored.policy.creation_date_type), fold(stored.policy.creator_type)}
    return tuple([value for value in stored.values if fold(value.type) in types])


def get_party_status(snapshot: Snapshot, handle: Handle) -> PartyStatus:
    """What this server knows of a handle that a record names as its creator."""
    if not snapshot.is_responsible(handle):
        return PartyStatus.FOREIGN
    stored = snapshot.stored(handle)
    return PartyStatus.HERE_PUBLIC if stored.is_public else PartyStatus.HERE_MISSING
