"""New names: minted, reserved and generated, one or many in a call, as `perseid mint` and `perseid reserve` do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from perseid.records.value import Value, ValueRef
from perseid.registry.commands.minting import MAX_NAMES, Mint, MintInputs, Reserve
from perseid.registry.commands.namespaces import check_prefix
from perseid.registry.commands.records import PartialValue as GivenValue
from perseid.registry.commands.records import assign_indexes
from perseid.registry.context import Command, Context, Plan
from perseid.registry.queries import suffixes
from perseid.registry.queries.suffixes import MintMode
from perseid.registry.results import MintResult
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import CREATED, IdentityText, Name, location_header, replay
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, Note, RequestBody, ResponseBody, Seq
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.http.v1.values import Values, parse_value_ref, parse_values

SECTION: Final = Routes(
    "Minting", "New names, which nobody ever had before: with a record, reserved for later, or the names alone."
)

_PROBLEMS: Final = (401, 403, 404, 409, 422)

Where = Annotated[
    str,
    Doc(
        "The prefix; where the policy has no scheme also the beginning of the suffix, as in `12345/report-`.",
        min_length=1,
        max_length=4_096,
        examples=["12345"],
    ),
]
Count = Annotated[int, Doc("How many names.", ge=1, le=MAX_NAMES, examples=[1])]
Rows = Annotated[
    tuple[Values, ...],
    Doc("What each record holds besides: there is a name for each item, so `count` is left out.", max_length=MAX_NAMES),
]


class MintRequest(RequestBody, frozen=True):
    """Names that are to be made, with a record each."""

    prefix: Where
    count: Annotated[Count | None, Doc(f"How many names, {MAX_NAMES:,} at most; one if it is left out.")] = None
    values: Annotated[Values, Doc("What every record holds.")] = ()
    records: Rows = ()
    metadata: Annotated[
        Values | None,
        Doc(
            "Makes two names for each thing, which lead to each other: its own, and that of the record that describes "
            "it. These are the values of the second one; both names count."
        ),
    ] = None
    published: Annotated[bool, Doc("Whether everybody may see them at once.")] = True
    owner: Annotated[IdentityText | None, Doc("Who administers the new names; as the policy says if left out.")] = None
    note: Note = ""


class ReserveRequest(RequestBody, frozen=True):
    """Names that are to be reserved: new ones under a prefix, or such as you chose."""

    prefix: Annotated[Where | None, Doc("Where new names are to be made.")] = None
    count: Annotated[Count | None, Doc(f"How many new names, {MAX_NAMES:,} at most; one if left out.")] = None
    handles: Annotated[
        tuple[Name, ...],
        Doc("Names that you chose, in place of a prefix; all are reserved, or none.", max_length=MAX_NAMES),
    ] = ()
    owner: Annotated[IdentityText | None, Doc("Whose the names are; yours if it is left out.")] = None
    note: Note = ""


class GenerateRequest(RequestBody, frozen=True):
    """Names that are to be generated."""

    prefix: Where
    count: Count = 1


class MintedHandles(ResponseBody, frozen=True):
    """Names that are yours from now on."""

    handles: Annotated[
        tuple[str, ...],
        Doc(
            "The names, in the order in which they were made. They may be fewer than were asked for, where thousands "
            "that exist had to be passed over; ask again for the others.",
            examples=[["12345/D7J1G0DQH"]],
        ),
    ]
    metadata: Annotated[
        tuple[str, ...], Doc("The names of the records that describe the things, in the same order.")
    ] = ()
    seq: Annotated[Seq, Doc("The entry of the first name; those of the others follow. 0: there is none.")] = 0


@SECTION.add(
    "POST",
    "/mint",
    "mint",
    "Make new names",
    body=MintRequest,
    response=MintedHandles,
    status=CREATED,
    scope="mint",
    creates=True,
    problems=_PROBLEMS,
)
async def mint(call: ApiCall) -> Reply:
    """Make new names, one or many, and a record for each.

    How names look is the policy's matter; nobody ever had them before. All are made, or none: when the answer comes,
    they are durable and resolve. Where a policy binds names to the clock, many at once may have to wait for it; what
    would take long is refused with 503 and `Retry-After`.
    """
    new = call.payload(MintRequest)
    if new.records and new.count is not None:
        raise InvalidParameter("there is a name for each of the records; leave the count out", "$.count")
    order = await call.run_in_pool(lambda: _make_order(call, new))
    return await _mint(call, order.again, new.prefix, new.note, order.handles_per_item)


@SECTION.add(
    "POST",
    "/reserve",
    "reserve",
    "Reserve names",
    body=ReserveRequest,
    response=MintedHandles,
    status=CREATED,
    scope="mint",
    creates=True,
    problems=_PROBLEMS,
)
async def reserve(call: ApiCall) -> Reply:
    """Make names for later, which stand for nothing yet; or reserve names that you chose.

    They can be printed on paper, or put into files, now. Nobody else gets them, and nobody can resolve them until they
    are registered: make a record under such a name.
    """
    new = call.payload(ReserveRequest)
    owner = _parse_owner(new.owner)
    if (new.prefix is None) == (not new.handles):
        raise InvalidParameter("name a prefix for new names, or the handles that you chose, and not both", "$.prefix")
    if new.prefix is not None:
        order = _Order(MintMode.RESERVE, MintInputs.of(call.registry), new.prefix, new.count or 1, owner=owner)
        return await _mint(call, order.again, new.prefix, new.note)
    if new.count is not None:
        raise InvalidParameter("the handles say how many they are; leave the count out", "$.count")
    handles = [call.parse_handle(name, f"$.handles[{number}]", new=True) for number, name in enumerate(new.handles)]
    chosen = Reserve(tuple(handles), owner)
    return await _mint(call, lambda _: chosen, new.handles[0], new.note)


@SECTION.add(
    "POST",
    "/generate",
    "generate",
    "Generate names without records",
    body=GenerateRequest,
    response=MintedHandles,
    status=CREATED,
    scope="mint",
    creates=True,
    problems=_PROBLEMS,
)
async def generate(call: ApiCall) -> Reply:
    """Make names and nothing else: this service never gives them to anybody again, and keeps no record of them.

    For those who register names elsewhere, or later, and need them to be unique. Who may mint may generate.
    """
    new = call.payload(GenerateRequest)
    order = _Order(MintMode.GENERATE, MintInputs.of(call.registry), new.prefix, new.count)
    return await _mint(call, order.again, new.prefix, "")


@dataclass(frozen=True, slots=True)
class _Order:
    """An order for new names, whose values may be kept for as long as the namespace's policy says."""

    making: MintMode
    inputs: MintInputs
    where: str
    count: int
    common: tuple[GivenValue, ...] = ()
    each: tuple[tuple[GivenValue, ...], ...] = ()
    metadata: tuple[GivenValue, ...] | None = None
    published: bool = True
    owner: ValueRef | None = None
    since: int | None = None

    @property
    def handles_per_item(self) -> int:
        """How many names a thing gets."""
        return 1 if self.metadata is None else 2

    def again(self, since: int | None) -> "_Order":
        """The same, asked for again after a wait; `since` is what `MustWait` said, or None at first."""
        return replace(self, since=since)

    def decide(self, context: Context) -> Plan[MintResult]:
        """As such an order is decided."""
        prefix = self.where.partition("/")[0]
        check_prefix(prefix)
        ttl = context.snapshot.policy(prefix).default_ttl
        values = () if self.each else assign_indexes(self.common, ttl=ttl)
        order = suffixes.build_command(
            self.making, self.inputs, self.where, self.count, values=values, owner=self.owner
        )
        if isinstance(order, Mint):
            metadata = None if self.metadata is None else assign_indexes(self.metadata, ttl=ttl)
            order = replace(order, metadata=metadata, published=self.published)
            if self.each:
                order = replace(order, values=lambda _, number: self._values(number, ttl))
        return replace(order, since=self.since).decide(context)

    def _values(self, number: int, ttl: int) -> tuple[Value, ...]:
        return assign_indexes((*self.common, *self.each[number]), ttl=ttl)


async def _mint(
    call: ApiCall, make: Callable[[int | None], Command[MintResult]], where: str, note: str, handles_per_item: int = 1
) -> Reply:
    """Have names made, once if the request has a key, and tell them."""

    def respond(minted: MintResult) -> Reply:
        return _minted_reply([str(handle) for handle in minted.handles], minted.seq, handles_per_item)

    reply = await call.create(make, respond, where, note)
    return await replay(call, reply, lambda names, seq: _minted_reply(names, seq, handles_per_item))


def _minted_reply(names: Sequence[str], seq: int, handles_per_item: int) -> Reply:
    things, about = names[::handles_per_item], names[1::handles_per_item] if handles_per_item > 1 else ()
    made = MintedHandles(tuple(things), tuple(about), seq)
    if len(names) == 1 and seq:
        return Reply(made, CREATED, (location_header(names[0]),), name=names[0])
    return Reply(made, CREATED)


def _parse_owner(text: str | None) -> ValueRef | None:
    return None if text is None else parse_value_ref(text, "$.owner")


def _make_order(call: ApiCall, new: MintRequest) -> _Order:
    return _Order(
        MintMode.MINT,
        MintInputs.of(call.registry),
        new.prefix,
        len(new.records) or new.count or 1,
        parse_values(new.values),
        tuple([parse_values(row, f"$.records[{number}]") for number, row in enumerate(new.records)]),
        None if new.metadata is None else parse_values(new.metadata, "$.metadata"),
        new.published,
        _parse_owner(new.owner),
    )
