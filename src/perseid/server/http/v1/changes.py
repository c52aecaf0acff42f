"""Helpers shared by the routes that change records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.data_types import data_from_text
from perseid.records.encoding import to_base64
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json
from perseid.records.json_parsing import json_type_name
from perseid.records.value import ValueRef, ref_from_text
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.conditions import Conditional
from perseid.registry.commands.records import PartialValue, Ttl, require_identity
from perseid.registry.context import Command, Context, Plan
from perseid.registry.queries.history import keep_history_note
from perseid.registry.responses import to_changed
from perseid.registry.results import ChangeResult
from perseid.schema.common import HANDLE_PARAMETER, AlreadyDone
from perseid.schema.records import CreatedRecord, Data, RecordChanged, ValueInput
from perseid.server.http import caching
from perseid.server.native.steps import WorkKind

from .api_call import REPLAYED_HEADER, ApiCall
from .routing import BASE, Reply
from .validation import InvalidParameter

CREATED: Final = 201

HANDLE_PARAMETERS: Final = {"handle": HANDLE_PARAMETER}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequireIdentity(Generic[T]):
    """A command that requires an identity before it reveals whether a handle is free."""

    command: Command[T]
    action: str

    def decide(self, context: Context) -> Plan[T]:
        require_identity(context, self.action)
        return self.command.decide(context)


def with_condition(call: ApiCall, command: Command[T], handle: Handle) -> Command[T]:
    """Add the `If-Match` or `If-None-Match` condition of the request to a command; raises `BadRequest`."""
    condition = caching.parse_condition(call.request)
    return command if condition is None else Conditional(command, handle, condition)


async def change_record(
    call: ApiCall, command: Command[ChangeResult], handle: Handle, note: str, *, keep_history: bool = False
) -> Reply:
    """Change a record under the conditions of the request, and build the reply."""
    note = keep_history_note(note) if keep_history else note
    return to_reply(await call.change(with_condition(call, command, handle), handle, note))


def to_reply(result: ChangeResult) -> Reply:
    """Build the reply to a change."""
    return changed_reply(to_changed(result))


def changed_reply(changed: RecordChanged) -> Reply:
    """Build the reply to a change from its response."""
    return Reply(changed, name=changed.handle)


def location_header(handle: str) -> tuple[str, str]:
    """Build the `Location` header of a new record."""
    return "Location", f"{BASE}/handles/{quote(handle, safe='')}"


async def replay(call: ApiCall, reply: Reply, respond: Callable[[Sequence[str], int], Reply]) -> Reply:
    """Build the reply to a repeated request whose stored response was dropped.

    `respond` gets the handles and the first entry of the original request. Without entries nothing is known, and the
    reply stays `AlreadyDone`.
    """
    before = reply.body
    if not isinstance(before, AlreadyDone) or not before.count:
        return reply
    registry, seq, count = call.registry, before.seq, before.count

    def handles() -> list[str]:
        with registry.snapshot() as snapshot:
            return [snapshot.reader.entry(number).handle for number in range(seq, seq + count)]

    repeated = respond(await call.do(WorkKind.READ, handles), seq)
    return replace(repeated, headers=(*repeated.headers, REPLAYED_HEADER))


async def create_record(call: ApiCall, command: Command[ChangeResult], handle: Handle, note: str) -> Reply:
    """Create a record, once per idempotency key, and build the reply."""

    def respond(name: str, seq: int) -> Reply:
        return Reply(CreatedRecord(name, seq), CREATED, (location_header(name),), name=name)

    guarded = RequireIdentity(command, f"create {display_name(handle)}")
    reply = await call.create(
        lambda _: guarded, lambda created: respond(str(created.handle), created.seq), handle, note
    )
    return await replay(call, reply, lambda handles, seq: respond(handles[0], seq))


# Requests


_TEXT_FORMATS: Final = frozenset(("string", "base64", "hex"))
"""Formats whose value is a string."""


def parse_value_ref(text: str, where: str) -> ValueRef:
    """Parse a key or group, `INDEX:HANDLE`; raises `InvalidParameter`."""
    try:
        reference = ref_from_text(text)
        Handle.parse(reference.handle)
    except (InvalidData, InvalidName) as problem:
        raise InvalidParameter(str(problem), where, "Use INDEX:HANDLE, as in 300:0.NA/12345") from problem
    return reference


def parse_values(values: Iterable[ValueInput], where: str = "$.values") -> tuple[PartialValue, ...]:
    """Parse the values of a request; raises `InvalidParameter` with their path."""
    return tuple([_parse_value(value, f"{where}[{number}]") for number, value in enumerate(values)])


def _check_data(data: str | Data, where: str) -> None:
    """Refuse non-string data in a string format: its meaning would be a guess."""
    if isinstance(data, Data) and data.format.lower() in _TEXT_FORMATS and not isinstance(data.value, str):
        message = f"Data in the format {data.format} must be a string, not {json_type_name(data.value)}"
        raise InvalidParameter(message, f"{where}.data.value", "Write it as a string, in quotes")


def _parse_value(item: ValueInput, where: str) -> PartialValue:
    _check_data(item.data, where)
    plain = {name: member for name, member in msgspec.to_builtins(item).items() if member is not None}
    try:
        if item.references is not None:
            plain["references"] = [*plain["references"]]
        if isinstance(item.data, str):
            plain["data"] = {"format": "base64", "value": to_base64(data_from_text(item.type, item.data))}
        value = value_from_json({"index": 1, **plain, "timestamp": 0})
    except InvalidData as problem:
        advice = "See /docs/schemas#ValueInput"
        raise InvalidParameter(f"Invalid value: {problem}", where, advice) from problem
    return PartialValue(
        value.type,
        value.data,
        item.index,
        None if item.permissions is None else value.permissions,
        None if item.ttl is None else Ttl(value.ttl, value.ttl_type),
        None if item.references is None else value.references,
    )
