"""What the chapters share that change records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Generic, TypeVar
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.registry.access.permissions import shown
from perseid.registry.commands.conditions import Conditional
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Operation, Plan
from perseid.registry.queries.history import keeping_past
from perseid.registry.results import Changed
from perseid.server.http import caching
from perseid.server.native.steps import Kind

from .calls import REPLAYED, ApiCall
from .routing import BASE, Reply
from .structures import HANDLE_STEP, About, DoneBefore, Given, Note, Seq, Told

CREATED: Final = 201
"""The status of an answer to what made something."""

PLACE: Final = {"handle": HANDLE_STEP}
"""The parameter of the paths of one name."""

Name = Annotated[str, About("A handle.", min_length=1, max_length=4_096, examples=["12345/x"])]

Party = Annotated[
    str,
    About(
        "Who holds a key, or a group, as `INDEX:HANDLE`.", min_length=1, max_length=4_096, examples=["300:12345/ann"]
    ),
]

KeepPast = Annotated[
    bool, About("Hide nothing of the past. Otherwise what was public before, and is hidden now, is hidden there too.")
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class Why(Given, frozen=True):
    """Why something is done."""

    note: Note = ""


class RecordChanged(Told, frozen=True):
    """That a record was changed, or was already what it should become."""

    handle: Annotated[str, About("The name as it is registered.", examples=["12345/x"])]
    seq: Annotated[Seq, About("The entry that did it, or the last one of the record if nothing had to be done.")]


class MadeRecord(Told, frozen=True):
    """A record that was made."""

    handle: Annotated[str, About("Its name, as it is registered.", examples=["12345/x"])]
    seq: Seq


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """An operation for those who are known, who are asked who they are before they learn whether a name is free."""

    operation: Operation[T]
    action: str

    def decide(self, context: Context) -> Plan[T]:
        """As the operation decides."""
        require_identity(context, self.action)
        return self.operation.decide(context)


def under(call: ApiCall, operation: Operation[T], handle: Handle) -> Operation[T]:
    """An operation on a record, under the condition that `If-Match` or `If-None-Match` makes; raises `Malformed`."""
    condition = caching.condition(call.request)
    return operation if condition is None else Conditional(operation, handle, condition)


async def change(
    call: ApiCall, operation: Operation[Changed], handle: Handle, note: str, *, keep_past: bool = False
) -> Reply:
    """Change a record, if it is in the state that the request asks for; and say so."""
    note = keeping_past(note) if keep_past else note
    return told(await call.change(under(call, operation, handle), handle, note))


def told(changed: Changed) -> Reply:
    """The answer to a change."""
    return told_of(str(changed.handle), changed.seq)


def told_of(name: str, seq: int) -> Reply:
    """The same, of the name and the entry."""
    return Reply(RecordChanged(name, seq), name=name)


def location(handle: str) -> tuple[str, str]:
    """The header that says where a new record is."""
    return "Location", f"{BASE}/handles/{quote(handle, safe='')}"


def iso_time(microseconds: int) -> str:
    """A time with all its digits: asked for with `at`, it gives that very entry."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def recalled(call: ApiCall, reply: Reply, tell: Callable[[Sequence[str], int], Reply]) -> Reply:
    """The answer to a request that was carried out before, also where it is not kept: `tell` makes it anew.

    It is given the names that the request was about, and the first entry that it made. They are told to whoever made
    them, by the same key; of what made no entries nothing is known.
    """
    before = reply.body
    if not isinstance(before, DoneBefore) or not before.count:
        return reply
    registry, seq, count = call.registry, before.seq, before.count

    def names() -> list[str]:
        with registry.facts() as facts:
            return [facts.reading.entry(number).handle for number in range(seq, seq + count)]

    again = tell(await call.do(Kind.READ, names), seq)
    return replace(again, headers=(*again.headers, REPLAYED))


async def make(call: ApiCall, operation: Operation[Changed], handle: Handle, note: str) -> Reply:
    """Make a record, once if the request has a key; and say where it is."""

    def tell(name: str, seq: int) -> Reply:
        return Reply(MadeRecord(name, seq), CREATED, (location(name),), name=name)

    known = Known(operation, f"create {shown(handle)}")
    reply = await call.create(lambda _: known, lambda made: tell(str(made.handle), made.seq), handle, note)
    return await recalled(call, reply, lambda names, seq: tell(names[0], seq))
