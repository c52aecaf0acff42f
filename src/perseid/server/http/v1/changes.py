"""What the chapters share that change records."""

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

from .calls import REPLAYED_HEADER, ApiCall
from .routing import BASE, Reply
from .structures import HANDLE_PARAMETER, AlreadyDone, Doc, Note, RequestBody, ResponseBody, Seq

CREATED: Final = 201
"""The status of an answer to what made something."""

HANDLE_PARAMETERS: Final = {"handle": HANDLE_PARAMETER}
"""The parameter of the paths of one name."""

Name = Annotated[str, Doc("A handle.", min_length=1, max_length=4_096, examples=["12345/x"])]

IdentityText = Annotated[
    str,
    Doc("Who holds a key, or a group, as `INDEX:HANDLE`.", min_length=1, max_length=4_096, examples=["300:12345/ann"]),
]

KeepHistory = Annotated[
    bool, Doc("Hide nothing of the past. Otherwise what was public before, and is hidden now, is hidden there too.")
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class ChangeNote(RequestBody, frozen=True):
    """Why something is done."""

    note: Note = ""


class RecordChanged(ResponseBody, frozen=True):
    """That a record was changed, or was already what it should become."""

    handle: Annotated[str, Doc("The name as it is registered.", examples=["12345/x"])]
    seq: Annotated[Seq, Doc("The entry that did it, or the last one of the record if nothing had to be done.")]


class CreatedRecord(ResponseBody, frozen=True):
    """A record that was made."""

    handle: Annotated[str, Doc("Its name, as it is registered.", examples=["12345/x"])]
    seq: Seq


@dataclass(frozen=True, slots=True)
class RequireIdentity(Generic[T]):
    """An operation for those who are known, who are asked who they are before they learn whether a name is free."""

    command: Command[T]
    action: str

    def decide(self, context: Context) -> Plan[T]:
        """As the operation decides."""
        require_identity(context, self.action)
        return self.command.decide(context)


def with_condition(call: ApiCall, command: Command[T], handle: Handle) -> Command[T]:
    """An operation on a record, under the condition that `If-Match` or `If-None-Match` makes; raises `Malformed`."""
    condition = caching.parse_condition(call.request)
    return command if condition is None else Conditional(command, handle, condition)


async def change_record(
    call: ApiCall, command: Command[ChangeResult], handle: Handle, note: str, *, keep_past: bool = False
) -> Reply:
    """Change a record, if it is in the state that the request asks for; and say so."""
    note = keep_history_note(note) if keep_past else note
    return to_reply(await call.change(with_condition(call, command, handle), handle, note))


def to_reply(changed: ChangeResult) -> Reply:
    """The answer to a change."""
    return changed_reply(str(changed.handle), changed.seq)


def changed_reply(name: str, seq: int) -> Reply:
    """The same, of the name and the entry."""
    return Reply(RecordChanged(name, seq), name=name)


def location_header(handle: str) -> tuple[str, str]:
    """The header that says where a new record is."""
    return "Location", f"{BASE}/handles/{quote(handle, safe='')}"


def iso_time(microseconds: int) -> str:
    """A time with all its digits: asked for with `at`, it gives that very entry."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def replay(call: ApiCall, reply: Reply, respond: Callable[[Sequence[str], int], Reply]) -> Reply:
    """The answer to a request that was carried out before, also where it is not kept: `tell` makes it anew.

    It is given the names that the request was about, and the first entry that it made. They are told to whoever made
    them, by the same key; of what made no entries nothing is known.
    """
    before = reply.body
    if not isinstance(before, AlreadyDone) or not before.count:
        return reply
    registry, seq, count = call.registry, before.seq, before.count

    def names() -> list[str]:
        with registry.snapshot() as snapshot:
            return [snapshot.reading.entry(number).handle for number in range(seq, seq + count)]

    again = respond(await call.do(WorkKind.READ, names), seq)
    return replace(again, headers=(*again.headers, REPLAYED_HEADER))


async def create_record(call: ApiCall, command: Command[ChangeResult], handle: Handle, note: str) -> Reply:
    """Make a record, once if the request has a key; and say where it is."""

    def respond(name: str, seq: int) -> Reply:
        return Reply(CreatedRecord(name, seq), CREATED, (location_header(name),), name=name)

    known = RequireIdentity(command, f"create {display_name(handle)}")
    reply = await call.create(lambda _: known, lambda made: respond(str(made.handle), made.seq), handle, note)
    return await replay(call, reply, lambda names, seq: respond(names[0], seq))
