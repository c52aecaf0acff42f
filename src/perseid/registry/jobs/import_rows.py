"""Rows of an import as commands: each row is decided by the same command that an interface would execute for it.

Data in a row is literal: a text is the text form of its type and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from perseid.ledger.log.entry import Draft, State
from perseid.names.handle import Handle, fold
from perseid.names.uri import KNOWN_RESOLVERS, is_uri, parse_user_input
from perseid.records.admin import Admin
from perseid.records.data_types import check_data_length, data_from_cell
from perseid.records.encoding import from_iso, to_base64, to_iso
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.json_form import value_from_json
from perseid.records.record import DEFAULT_PERMISSIONS, PRIVATE_PERMISSIONS, Permission, ref_from_text
from perseid.records.types import HS_ADMIN, has_type
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.minting import Mint, Reserve
from perseid.registry.commands.records import (
    AddValues,
    CreateRecord,
    Delete,
    Home,
    Modify,
    PartialValue,
    Remove,
    SetValues,
    Ttl,
    assign_indexes,
)
from perseid.registry.context import Command, Context
from perseid.registry.policy.policy import Policy
from perseid.registry.results import InvalidRequest, Refused, StateConflict, WarningKind
from perseid.registry.snapshot import Rules
from perseid.schema.imports import ImportRow, OnExisting, RowOperation, RowOptions, RowOutcome
from perseid.schema.records import ValueInput
from perseid.wire.codes import ResponseCode

_PERMISSIONS: Final[dict[str | None, Permission | None]] = {
    None: None,
    "1110": DEFAULT_PERMISSIONS,
    "1100": PRIVATE_PERMISSIONS,
}
"""The usual permissions, which need no parser."""
_STATES: Final = {"": State.NORMAL} | {
    state.label: state for state in (State.NORMAL, State.UNPUBLISHED, State.RESERVED, State.TOMBSTONE)
}


class InvalidCell(InvalidRequest):
    """A value of a row that no record can have."""

    def __init__(self, problem: InvalidData, number: int) -> None:
        super().__init__(ResponseCode.INVALID_VALUE, str(problem), AdviceKind.FIX_VALUE())
        self.number = number
        """Which of the values it is, from 0."""


class InvalidState(InvalidRequest):
    """A state that no row can ask for."""


class InvalidDate(InvalidRequest):
    """A date of creation that no row can have."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What was decided for a row."""

    outcome: RowOutcome
    drafts: tuple[Draft, ...] = ()


def parse_values(values: Iterable[ValueInput], *, with_timestamps: bool = False) -> tuple[PartialValue, ...]:
    """Parse the values of a row; raises `InvalidCell`."""
    parsed = []
    for number, value in enumerate(values):
        try:
            parsed.append(parse_value(value, with_timestamp=with_timestamps))
        except InvalidData as problem:
            raise InvalidCell(problem, number) from problem
    return tuple(parsed)


def parse_value(item: ValueInput, *, with_timestamp: bool = False) -> PartialValue:
    """Parse a value of a row, whose text is literal; raises `InvalidData`."""
    if item.ttl is None and item.references is None and not with_timestamp and item.permissions in _PERMISSIONS:
        data = item.data
        if isinstance(data, str):
            return PartialValue(item.type, data_from_cell(item.type, data), item.index, _PERMISSIONS[item.permissions])
        if data.format == "string" and isinstance(data.value, str) and data.value.isascii():
            content = check_data_length(data.value.encode())
            return PartialValue(item.type, content, item.index, _PERMISSIONS[item.permissions])
    members: dict[str, Any] = {name: member for name, member in msgspec.to_builtins(item).items() if member is not None}
    if isinstance(item.data, str):
        members["data"] = {"format": "base64", "value": to_base64(data_from_cell(item.type, item.data))}
    if item.references is not None:
        members["references"] = [*members["references"]]
    if not with_timestamp:
        members.pop("timestamp", None)
    value = value_from_json({"index": 1, **members})
    return PartialValue(
        value.type,
        value.data,
        item.index,
        None if item.permissions is None else value.permissions,
        None if item.ttl is None else Ttl(value.ttl, value.ttl_type),
        None if item.references is None else value.references,
        value.timestamp,
    )


def normalize_handle(row: ImportRow, rules: Rules) -> ImportRow:
    """Return the row with the bare handle if it has a URI or a resolver URL; raises `InvalidName`."""
    if row.operation is RowOperation.MINT or not is_uri(row.handle):
        return row
    reference = parse_user_input(row.handle, [*rules.resolvers, *KNOWN_RESOLVERS], for_lookup=True)
    return msgspec.structs.replace(row, handle=str(reference.handle))


def decide_row(context: Context, row: ImportRow, options: RowOptions) -> RowPlan:
    """Decide what a row changes; raises `Refused`, or `InvalidName` for a name that no handle can have."""
    if row.operation is RowOperation.CREATE:
        return _create(context, row, options)
    command: Command[Any]
    outcome = RowOutcome.UPDATED
    if row.operation in (RowOperation.HOME, RowOperation.UNHOME):
        command = Home(row.handle, unhome=row.operation is RowOperation.UNHOME)
    else:
        handle = Handle.parse_lenient(row.handle)
        match row.operation:
            case RowOperation.ADD:
                command = AddValues(handle, parse_values(row.values))
            case RowOperation.MODIFY:
                command = _modify(context, handle, parse_values(row.values))
            case RowOperation.REMOVE:
                command = Remove(handle, row.indexes)
            case RowOperation.DELETE:
                command, outcome = Delete(handle), RowOutcome.DELETED
            case _:
                raise ValueError(f"{row.operation} is not decided alone")
    drafts = command.decide(context).drafts
    return RowPlan(outcome if drafts else RowOutcome.UNCHANGED, drafts)


def _create(context: Context, row: ImportRow, options: RowOptions) -> RowPlan:
    handle = Handle.parse_lenient(row.handle)
    values = parse_values(row.values, with_timestamps=options.preserve_dates)
    state = parse_state(row)
    if state is State.RESERVED:
        return _reserve(context, handle, values, options)
    policy = context.snapshot.policy(handle.prefix)
    if options.preserve_dates:
        values = _add_origin(context, policy, row, values)
    if state is State.TOMBSTONE:
        values = _name_reason(policy, handle, values)
    is_published, is_tombstone = state is not State.UNPUBLISHED, state is State.TOMBSTONE
    command = CreateRecord(
        handle, values, published=is_published, preserve_dates=options.preserve_dates, tombstone=is_tombstone
    )
    try:
        return RowPlan(RowOutcome.CREATED, command.decide(context).drafts)
    except Refused as refused:
        stored = context.snapshot.stored(handle)
        if refused.code is not ResponseCode.HANDLE_ALREADY_EXISTS or not stored.exists:
            raise
        if options.on_existing is OnExisting.FAIL:
            if stored.state is not State.TOMBSTONE:
                refused.advice = AdviceKind.CHOOSE_ON_EXISTING()
            raise
    if options.on_existing is OnExisting.SKIP:
        return RowPlan(RowOutcome.SKIPPED)
    return _update(context, handle, values, row)


def _update(context: Context, handle: Handle, values: tuple[PartialValue, ...], row: ImportRow) -> RowPlan:
    """Set the values of an existing record, whose state stays."""
    stored = context.snapshot.stored(handle)
    if row.state and _STATES[row.state] is not stored.state:
        reason = f"Handle {display_name(handle)} is {stored.state.label}, and an import does not change the state"
        raise StateConflict(reason, AdviceKind.CHANGE_STATE(handle=handle))
    if not values:
        return RowPlan(RowOutcome.UNCHANGED)
    drafts = SetValues(handle, values).decide(context).drafts
    return RowPlan(RowOutcome.UPDATED if drafts else RowOutcome.UNCHANGED, drafts)


def _modify(context: Context, handle: Handle, values: tuple[PartialValue, ...]) -> Command[Any]:
    """Values with an index replace those at that index, as in the protocol; others the only one of their type."""
    if any(value.index is None for value in values):
        return SetValues(handle, values)
    ttl = context.snapshot.policy(handle.prefix).default_ttl
    return Modify(handle, assign_indexes(values, (), ttl))


def _reserve(context: Context, handle: Handle, values: tuple[PartialValue, ...], options: RowOptions) -> RowPlan:
    """Reserve a handle, with the administrators of the row if it has any."""
    if not all(has_type(value.type, HS_ADMIN) for value in values):
        reason = "A reserved handle cannot have values"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.MINT_WITHOUT_RESERVING(), "S1")
    owner = Admin.from_bytes(values[0].data).administrator if values else None
    try:
        (draft,) = Reserve((handle,), owner).decide(context).drafts
    except Refused as refused:
        # Decided first: users who cannot mint here do not learn which hidden handles exist.
        is_taken = refused.code is ResponseCode.HANDLE_ALREADY_EXISTS and context.snapshot.stored(handle).exists
        if is_taken and options.on_existing is OnExisting.SKIP:
            return RowPlan(RowOutcome.SKIPPED)
        raise
    if options.preserve_dates and values:
        context.for_import()
        draft = replace(draft, values=assign_indexes(values, (), context.snapshot.policy(handle.prefix).default_ttl))
    return RowPlan(RowOutcome.CREATED, (draft,))


def _add_origin(
    context: Context, policy: Policy, row: ImportRow, values: tuple[PartialValue, ...]
) -> tuple[PartialValue, ...]:
    """Add what columns of their own say about a record: when it was created, and who owns it."""
    types = {fold(value.type) for value in values}
    created = _parse_created(row.created) if row.created else ""
    if created and policy.authority and fold(policy.creation_date_type) not in types:
        values = (*values, PartialValue(policy.creation_date_type, created.encode()))
    elif created and not policy.authority:
        context.warn(WarningKind.CREATION_DATES(AdviceKind.SET_AUTHORITY(prefix=row.handle.partition("/")[0])))
    if row.owner and not any(has_type(value.type, HS_ADMIN) for value in values):
        try:
            owner = Admin(ref_from_text(row.owner))
        except InvalidData as problem:
            raise InvalidRequest(ResponseCode.INVALID_VALUE, str(problem), AdviceKind.NAME_KEY_OR_GROUP()) from problem
        values = (*values, PartialValue(HS_ADMIN, owner.to_bytes()))
    return values


def _parse_created(text: str) -> str:
    """Return a date of creation with time and zone: tables have dates, and times without a zone, which are UTC."""
    try:
        return to_iso(from_iso(text))
    except (InvalidData, RecordMisuse):
        reason = f"{display_name(text)} is not a date"
        raise InvalidDate(ResponseCode.INVALID_VALUE, reason, AdviceKind.WRITE_CREATED()) from None


def _name_reason(policy: Policy, handle: Handle, values: tuple[PartialValue, ...]) -> tuple[PartialValue, ...]:
    """A tombstone says why the object is gone (S8), in the type of the policy. Other services write the default type.

    Raises `InvalidRequest`.
    """
    name, default = policy.tombstone_reason_type, fold(Policy().tombstone_reason_type)
    types = {fold(value.type) for value in values}
    if fold(name) in types:
        return values
    if default not in types:
        reason = f"The tombstone of {display_name(handle)} has no value of type {name}"
        raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.ADD_REASON(type=name), "S8")
    return tuple([replace(value, type=name) if fold(value.type) == default else value for value in values])


def parse_state(row: ImportRow) -> State:
    """Return the state that a row asks for. Raises `InvalidRequest`."""
    state = _STATES.get(row.state)
    if state is None:
        reason = f"Unknown state {display_name(row.state)}"
        raise InvalidState(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_STATE())
    return state


def build_mint(policy: Policy, rows: Sequence[ImportRow]) -> Mint:
    """Build the command that mints a handle for each of some rows with the same prefix and state.

    Raises `Refused`.
    """
    state = parse_state(rows[0])
    if state is State.TOMBSTONE:
        reason = "A minted handle cannot be a tombstone"
        raise InvalidState(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_STATE(), "S8")
    each = tuple([assign_indexes(parse_values(row.values), ttl=policy.default_ttl) for row in rows])
    reserve, published = state is State.RESERVED, state is State.NORMAL
    return Mint(rows[0].handle, len(rows), each=each, reserve=reserve, published=published)
