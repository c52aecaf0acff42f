"""Composition of a record: the requested values, with what the policy adds, requires and forbids, and timestamps.

All changes of every interface go through `compose`: administrators for a new record without any, authority metadata,
the policy's types, aliases, TTLs, timestamps. Rules for aliases and TTLs do not apply to values that the record has or
had, nor to an import: what another server accepted stays, and does not block other corrections of the record.

The server sets timestamps, and an unchanged value keeps its own. So a client that replaces a whole record with what it
read changes no date, and authority metadata can derive the last update from the values (A3).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.value import Value
from perseid.registry.context import Context, add_administrators, check_count
from perseid.registry.policy.authority import Change, CompletedRecord, PartyStatus, complete_record
from perseid.registry.policy.resolution import check_aliases, check_namespaces, check_ttls
from perseid.registry.policy.types import check_definitions, check_types
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord


def set_timestamps(
    before: Iterable[Value] | None, values: Iterable[Value], now: int, *, is_import: bool = False
) -> tuple[Value, ...]:
    """The values with their timestamps: those that are new or changed get `now`.

    A value is unchanged if the record had it at this index, with everything except the timestamp equal. An import keeps
    its own timestamps; 0 means none.
    """
    former = {value.index: value for value in before or ()}
    return tuple([_with_timestamp(former.get(value.index), value, now, is_import) for value in values])


def _with_timestamp(former: Value | None, value: Value, now: int, is_import: bool) -> Value:
    if is_import and value.timestamp:
        return value
    if former is not None and value.with_timestamp(former.timestamp) == former:
        return former
    return value.with_timestamp(now)


MAX_INDEX = 0x7FFF_FFFF
"""The largest index."""


def compose(
    context: Context,
    stored: StoredRecord,
    requested: Sequence[Value],
    *,
    whole: bool = False,
    creates: bool = False,
    state: State | None = None,
    restored: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """The values of the record after a change; refused if they violate the policy.

    `whole` means that the request has the whole record, `creates` that it creates the record, `state` is the state
    afterwards, and `restored` are values of an earlier version, which are not new. A reserved handle has neither a date
    of creation nor the required values; a tombstone need not have the required values either.
    """
    is_import = context.is_import
    after = (State.NORMAL if creates else stored.state) if state is None else state
    values = add_administrators(context, stored, requested) if creates else tuple(requested)
    if after is not State.RESERVED:
        change = Change(
            handle=stored.handle,
            before=None if creates else stored.values,
            requested=values,
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
        known = (*stored.values, *restored)
        check_aliases(context.snapshot, stored, values, known)
        check_ttls(values, known, context.now)
    if refusals := stored.policy.check_values(values, complete=after not in (State.RESERVED, State.TOMBSTONE)):
        raise Refused.from_refusals(refusals)
    check_definitions(stored.values, values)
    if refusals := list(check_types(context.snapshot, stored.policy, values, stored.values)):
        raise Refused.from_refusals(refusals)
    return set_timestamps(stored.values, values, context.now, is_import=is_import)


def reindex(values: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Move values whose index is taken by others to the next free one."""
    taken = {value.index for value in others}
    result = []
    for value in values:
        index = value.index
        while index in taken:
            index = index + 1 if index < MAX_INDEX else 1
        taken.add(index)
        result.append(replace(value, index=index))
    return result


def policy_values(stored: StoredRecord) -> tuple[Value, ...]:
    """The values that stay in a record although a request for the whole record omits them (A8)."""
    if not stored.policy.authority:
        return ()
    types = {fold(stored.policy.creation_date_type), fold(stored.policy.creator_type)}
    return tuple([value for value in stored.values if fold(value.type) in types])


def get_party_status(snapshot: Snapshot, handle: Handle) -> PartyStatus:
    """What is known here about a handle that a record names as its creator."""
    if not snapshot.is_responsible(handle):
        return PartyStatus.FOREIGN
    stored = snapshot.stored(handle)
    return PartyStatus.HERE_PUBLIC if stored.is_public else PartyStatus.HERE_MISSING
