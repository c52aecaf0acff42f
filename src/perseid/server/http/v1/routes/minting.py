"""Mint, reserve and generate handles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perseid.records.record import ValueRef
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import check_prefix
from perseid.registry.commands.records import PartialValue, assign_indexes
from perseid.registry.context import Command, Context, Plan
from perseid.registry.queries import namespaces
from perseid.registry.queries.namespaces import MintMode
from perseid.registry.responses import to_minted
from perseid.registry.results import MintResult
from perseid.schema.records import GenerateRequest, MintedHandles, MintRequest, ReserveRequest, WarningInfo
from perseid.server.http.v1.api_call import (
    CREATED,
    ApiCall,
    location_header,
    parse_value_ref,
    parse_values,
    replay_handles,
)
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter

MINTING: Final = Routes(
    "Minting",
    "Create unique handles: with records, reserved for later, or without records.",
    defaults={"status": CREATED, "scope": "mint", "creates": True, "problems": (401, 403, 404, 409, 422)},
)


@MINTING.add("POST", "/mint", "Mint handles")
async def mint(call: ApiCall, new: MintRequest) -> Reply[MintedHandles]:
    """Mint one or many handles, each with a record.

    The policy defines the form of the handles; they are unique. Either all are created or none, and they are durable
    and resolve when the response arrives. If the policy binds handles to the clock, minting many at once can take time;
    long waits are refused with 503 and `Retry-After`.
    """
    if new.records and new.count is not None:
        raise InvalidParameter("`count` cannot be combined with `records`; omit it", "$.count")
    order = await call.run_in_pool(lambda: _make_order(new))
    return await _mint(call, order.retry, new.prefix, new.note, order.handles_per_item)


@MINTING.add("POST", "/reserve", "Reserve handles")
async def reserve(call: ApiCall, new: ReserveRequest) -> Reply[MintedHandles]:
    """Reserve handles for later use: new ones, or chosen ones.

    They can be printed or stored in files now. No one else gets them, and they do not resolve until you create their
    records.
    """
    owner = _parse_owner(new.owner)
    if (new.prefix is None) == (not new.handles):
        raise InvalidParameter("Give either `prefix` or `handles`", "$.prefix")
    if new.prefix is not None:
        order = _Order(MintMode.RESERVE, new.prefix, new.count or 1, owner=owner)
        return await _mint(call, order.retry, new.prefix, new.note)
    if new.count is not None:
        raise InvalidParameter("`count` cannot be combined with `handles`; omit it", "$.count")
    handles = [call.parse_handle(name, f"$.handles[{number}]", new=True) for number, name in enumerate(new.handles)]
    chosen = Reserve(tuple(handles), owner)
    return await _mint(call, lambda _: chosen, new.handles[0], new.note)


@MINTING.add("POST", "/generate", "Generate handles without records")
async def generate(call: ApiCall, new: GenerateRequest) -> Reply[MintedHandles]:
    """Generate unique handles without records. This service never assigns them again and keeps no record of them.

    Use it to register handles elsewhere or later. Requires the same permission as minting.
    """
    order = _Order(MintMode.GENERATE, new.prefix, new.count)
    return await _mint(call, order.retry, new.prefix, "")


@dataclass(frozen=True, slots=True)
class _Order:
    """A request for new handles. The TTL of values comes from the policy of the namespace."""

    mode: MintMode
    where: str
    count: int
    common: tuple[PartialValue, ...] = ()
    each: tuple[tuple[PartialValue, ...], ...] = ()
    metadata: tuple[PartialValue, ...] | None = None
    published: bool = True
    owner: ValueRef | None = None
    since: int | None = None

    @property
    def handles_per_item(self) -> int:
        """Handles per object."""
        return 1 if self.metadata is None else 2

    def retry(self, since: int | None) -> "_Order":
        """Repeat the request after a wait; `since` is the time of `RetryLater`, or None at first."""
        return self if since is None else replace(self, since=since)

    def decide(self, context: Context) -> Plan[MintResult]:
        prefix = self.where.partition("/")[0]
        check_prefix(prefix)
        ttl = context.snapshot.policy(prefix).default_ttl
        order = namespaces.build_command(
            self.mode,
            self.where,
            self.count,
            values=() if self.each else assign_indexes(self.common, ttl=ttl),
            each=tuple([assign_indexes((*self.common, *row), ttl=ttl) for row in self.each]),
            metadata=None if self.metadata is None else assign_indexes(self.metadata, ttl=ttl),
            published=self.published,
            owner=self.owner,
            since=self.since,
        )
        return context.decide(order)


async def _mint(
    call: ApiCall, make: Callable[[int | None], Command[MintResult]], where: str, note: str, handles_per_item: int = 1
) -> Reply[MintedHandles]:
    """Mint handles, once per idempotency key, and build the reply."""

    def respond(minted: MintResult) -> Reply[MintedHandles]:
        return _minted_reply(minted.handles, minted.seq, handles_per_item, minted.warnings)

    replay = replay_handles(lambda handles, seq: _minted_reply(handles, seq, handles_per_item))
    return await call.create(make, respond, where, note, replay)


def _minted_reply(
    handles: Sequence[object], seq: int, handles_per_item: int, warnings: tuple[WarningInfo, ...] = ()
) -> Reply[MintedHandles]:
    minted = to_minted(handles, seq, handles_per_item, warnings)
    if len(handles) == 1 and seq:
        return Reply(minted, CREATED, (location_header(minted.handles[0]),), name=minted.handles[0])
    return Reply(minted, CREATED)


def _parse_owner(text: str | None) -> ValueRef | None:
    return None if text is None else parse_value_ref(text, "$.owner")


def _make_order(new: MintRequest) -> _Order:
    return _Order(
        MintMode.MINT,
        new.prefix,
        len(new.records) or new.count or 1,
        parse_values(new.values),
        tuple([parse_values(row, f"$.records[{number}]") for number, row in enumerate(new.records)]),
        None if new.metadata is None else parse_values(new.metadata, "$.metadata"),
        new.published,
        _parse_owner(new.owner),
    )
