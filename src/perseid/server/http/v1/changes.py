"""Schemas and helpers shared by the routes that change records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Generic, TypeVar
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.conditions import Conditional
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Command, Context, Plan
from perseid.registry.queries.history import keep_history_note
from perseid.registry.results import ChangeResult
from perseid.server.http import caching
from perseid.server.native.steps import WorkKind

from .api_call import REPLAYED_HEADER, ApiCall
from .routing import BASE, Reply
from .schemas import HANDLE_PARAMETER, AlreadyDone, Doc, Note, RequestBody, ResponseBody, Seq

CREATED: Final = 201

HANDLE_PARAMETERS: Final = {"handle": HANDLE_PARAMETER}

Name = Annotated[str, Doc("A handle.", min_length=1, max_length=4_096, examples=["12345/x"])]

IdentityText = Annotated[
    str,
    Doc("A key or group, as `INDEX:HANDLE`.", min_length=1, max_length=4_096, examples=["300:12345/ann"]),
]

KeepHistory = Annotated[
    bool,
    Doc("Keep earlier versions public. By default, values that become private are hidden in earlier versions too."),
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class ChangeNote(RequestBody, frozen=True):
    """A note about a change."""

    note: Note = ""


class RecordChanged(ResponseBody, frozen=True):
    """A changed record, or one that needed no change."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    seq: Annotated[Seq, Doc("The ledger entry of the change; the latest entry of the record if nothing changed.")]


class CreatedRecord(ResponseBody, frozen=True):
    """A created record."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    seq: Seq


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
    return changed_reply(str(result.handle), result.seq)


def changed_reply(name: str, seq: int) -> Reply:
    """Build the reply to a change from handle and entry."""
    return Reply(RecordChanged(name, seq), name=name)


def location_header(handle: str) -> tuple[str, str]:
    """Build the `Location` header of a new record."""
    return "Location", f"{BASE}/handles/{quote(handle, safe='')}"


def iso_time(microseconds: int) -> str:
    """Format a time with microseconds, so that `at` finds exactly that entry."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


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
