"""Handing over everything under a prefix, or all names that begin alike.

Each record gets the new owner as a single transfer would give it one (`transfer`). It is one unit (`units`), so it can
be watched, gone on with and undone. The names come first and their prefix handle after them, so that whoever hands over
can go on after an interruption; then the names once more, for those that were made meanwhile.

A record is handed over once. What its new owner makes of it while the others are handed over is theirs to decide, and
so are names that are made after the prefix handle was handed over, and prefixes that are derived from it then.

What is left to the new owner of a prefix: the groups in its prefix handle, and the default administrators in its
policy. Both are values that only they can judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Operation, Steps
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.names.prefixes import ancestors, is_derived, parent
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.value import Permission, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.permissions import Demand, Membership, Role, is_admin, shown
from perseid.registry.access.scopes import Reach, Word
from perseid.registry.commands.namespaces import checked_prefix, namespaces
from perseid.registry.commands.records import require_identity
from perseid.registry.commands.transfer import checked_owner, demand_transfer, handed_over, has_owner, with_owner
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.policy import case_rules
from perseid.registry.queries.paging import Room
from perseid.registry.registry import Registry, check_text
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts, Held
from perseid.wire.codes import ResponseCode

from . import jobs as units
from .jobs import Progress

KIND: Final = "transfer"
"""What the unit is called."""

ALL_THAT_BEGIN: Final = ("*", "…", "...")
"""What stands behind the beginning of names to mean all that begin so."""

MAX_TOLD: Final = 20
"""Administrators of a record that are told of; it may have two thousand."""

_Range = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class TransferAll:
    """Everything under a prefix, or all names that begin alike, for a new owner."""

    where: str
    """A prefix; or the beginning of names, as in `12345/abc`."""
    to: ValueRef
    derived: bool = False
    """Whether the prefixes derived from it go along, with all that is under them."""

    @property
    def prefix(self) -> str:
        return self.where.partition("/")[0]

    @property
    def lead(self) -> str:
        """How the suffixes begin; empty for everything under the prefix."""
        return self.where.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Handing(Progress):
    """How far a transfer has come."""

    looked_at: int = 0
    """Records, as often as they were looked at, since it was begun or gone on with."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A name that would be handed over."""

    handle: str
    administrators: tuple[str, ...]
    """Who would lose it, as far as that may be read; `MAX_TOLD` at most."""
    refused: Refused | None
    """Why whoever asks may not hand it over; None if they may, or that was not looked at."""


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """Some names that would be handed over."""

    items: tuple[Planned, ...]
    following: tuple[int, bytes] | None
    """Where the next page begins; None if this is the last one. A page may be empty and not the last."""


def beginning(text: str) -> str | None:
    """The prefix, or the beginning of names, that people mean by a text; None if they mean one name."""
    for mark in ALL_THAT_BEGIN:
        if text.endswith(mark):
            before = text.removesuffix(mark)
            return before.removesuffix("/") if before.count("/") == 1 else before
    bare = text.removesuffix("/")
    return None if "/" in bare or ":" in bare else bare


def begin(
    registry: Registry, order: TransferAll, who: Identity, door: str, note: str = "", total: int = 0
) -> Operation:
    """Begin to hand over; `run` does it. Raises `Refused`.

    It takes the right to see all names of the prefix together, and for the whole of it the right to hand over its
    prefix handle.
    """
    registry.do(_Start(order), who, door)
    asked: dict[str, object] = {"where": order.where, "to": str(order.to), "derived": order.derived}
    return units.begin(registry, KIND, asked, who, door, note, total=total)


def run(registry: Registry, operation: Operation, who: Identity) -> Iterator[Progress]:
    """Do what is left to do of a transfer, at most `units.CHUNK` records to a commit, and yield after each.

    Rights are asked for record by record, as for single changes: the first that is missing ends it with `Refused`, and
    what is done by then stays done.
    """
    return units.told(pieces(registry, operation, who))


def pieces(registry: Registry, operation: Operation, who: Identity) -> Iterator[Handing]:
    """The same in pieces of bounded work, whether or not anything was changed; the first one does nothing yet."""
    order = _order(operation)
    steps = jobs.steps_of(registry.ledger.log, operation.id)
    ranges = registry.do(_Start(order, operation, steps), who, operation.door)
    looked_at = 0
    yield Handing(operation.id, len(steps), operation.total, looked_at)
    for first, end in ranges:
        at: bytes | None = first
        while at is not None:
            step = _Step(order, operation, steps, at, end)
            done = registry.do(step, who, operation.door, units.noted(operation), step_of=operation.id)
            steps, at = done.steps, done.following
            looked_at += done.looked_at
            yield Handing(operation.id, len(steps), operation.total, looked_at)
    units.end(registry, operation)


def planned(
    context: Context, order: TransferAll, after: tuple[int, bytes] | None, limit: int = 0, *, judges: bool = True
) -> PlannedPage:
    """A page of the names that would be handed over, by the state of now, from where it begins; nothing is done.

    It has `units.CHUNK` names, unless it says. With `judges` it is looked whether each of them may be. Raises `Refused`
    where the transfer as a whole would be.
    """
    ranges = _Start(order).decide(context).answer(0)
    chunk = units.Chunk(context)
    owner = checked_owner(chunk.context, order.to)
    names = [*dict.fromkeys(ranges)]  # once is enough here
    number, first = after or (0, b"")
    room = Room(limit or units.CHUNK)
    items: list[Planned] = []

    def look(entry: Entry) -> tuple[()]:
        """Note what would become of a record, if the page has room for that."""
        held = _held(context, entry)
        item = None if held is None else _planned(chunk.context, held, owner, judges=judges)
        if item is not None:
            if not room.take(len(item.handle) + sum(map(len, item.administrators))):
                raise units.Later
            items.append(item)
        return ()

    while number < len(names):
        entries, more = context.facts.reading.some_names(max(first, names[number][0]), names[number][1], units.CHUNK)
        before = chunk.looked_at
        chunk.take(entries[: units.CHUNK - before], look)
        if (taken := chunk.looked_at - before) < len(entries):
            return PlannedPage(tuple(items), (number, entries[taken].key))
        number, first = (number, entries[-1].key + b"\0") if more and entries else (number + 1, b"")
    return PlannedPage(tuple(items), None)


def _planned(context: Context, held: Held, owner: Admin, *, judges: bool) -> Planned | None:
    """What would become of a record; None if it has that owner already."""
    refused: Refused | None = None
    if has_owner(held, owner):
        return None
    if judges:
        try:
            handed_over(context, held, owner)
        except Refused as problem:
            refused = problem
    return Planned(str(held.handle), _administrators(context, held) if judges else (), refused)


def _administrators(context: Context, held: Held) -> tuple[str, ...]:
    """Who administers a record, as far as whoever asks may read that."""
    found: list[str] = []
    for value in filter(is_admin, held.values):
        if len(found) == MAX_TOLD:
            break
        readable = Permission.ADMIN_READ in value.permissions and context.may(permissions.read(held.handle))
        if value.is_public or readable:
            try:
                found.append(str(Admin.from_bytes(value.data).administrator))
            except InvalidData:
                continue  # it means nobody
    return tuple(found)


def _order(operation: Operation) -> TransferAll:
    """What a transfer is about. Raises `Refused` if that cannot be read any more."""
    asked = units.asked(operation)
    try:
        return TransferAll(str(asked["where"]), ValueRef.parse(str(asked["to"])), bool(asked["derived"]))
    except (KeyError, InvalidData) as problem:
        reason = f"what {operation.id} is about cannot be read"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "undo what was done, or begin anew") from problem


# Deciding


@dataclass(frozen=True, slots=True)
class _Start:
    """Find out what a transfer has to go through, and whether somebody may begin it, or go on with it."""

    order: TransferAll
    unit: Operation | None = None
    """What is gone on with."""
    steps: Steps | None = None

    def decide(self, context: Context) -> Plan[list[_Range]]:
        """The right to see the names together: what is refused later names them, reserved ones included."""
        order, facts = self.order, context.facts
        check_text(order.where)
        checked_prefix(order.prefix)
        require_identity(context, f"transfer {shown(order.where)}")
        if not facts.is_responsible(Handle(order.prefix, "…")):
            advice = f"ask the service of the prefix {shown(order.prefix)}, or home the prefix here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", advice)
        policy = facts.policy(order.prefix)
        chunk = units.Chunk(context)
        sight = _Sight(chunk.context, order, self.unit, self.steps or Steps())
        sight.demand(order.prefix)
        if order.lead and order.derived:
            reason = f"{shown(order.where)} is no prefix, so no prefix is derived from it"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, f"transfer {shown(order.prefix)} as a whole", "H6")
        owner = checked_owner(chunk.context, order.to)

        def demand(prefix: str) -> tuple[()]:
            """What handing over a prefix takes."""
            sight.demand(prefix)
            self._demand_handle(chunk.context, sight, prefix, owner)
            return ()

        if not order.lead:  # as many as can be looked at at once; steps look at theirs again
            chunk.take(self._prefixes(facts, sight), demand)
        exact = policy.case is CaseRule.SENSITIVE
        ranges = [_beginning(record_key(order.where, exact=exact))] if order.lead else _ranges(order)
        return Plan(lambda _: ranges, reason=context.reasons[-1])

    def _prefixes(self, facts: Facts, sight: "_Sight") -> Iterator[str]:
        """The prefixes that are handed over."""
        yield self.order.prefix
        for below in namespaces(facts.reading) if self.order.derived else ():
            if is_derived(below, self.order.prefix) and not sight.is_new_owners(below):
                yield below

    def _demand_handle(self, context: Context, sight: "_Sight", prefix: str, owner: Admin) -> None:
        """What handing over the prefix handle takes: whoever may not would find out when all else is done."""
        handle = Handle(PREFIX_OF_PREFIXES, fold(prefix))
        if not context.facts.is_responsible(handle) or sight.handed_over_at(prefix):
            return
        held = context.facts.held(handle)
        if held.exists and not has_owner(held, owner):
            context.demand(demand_transfer(held, with_owner(held, owner)))


@dataclass(frozen=True, slots=True)
class _Done:
    """What a step came to."""

    steps: Steps
    looked_at: int
    following: bytes | None
    """Where the next step begins; None if there is none in this range."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Give the next records of a range a new owner, as far as one commit takes them."""

    order: TransferAll
    unit: Operation
    known: Steps
    """What of it has been done, as far as is known."""
    first: bytes
    end: bytes

    def decide(self, context: Context) -> Plan[_Done]:
        """For each record what changing its administrators takes."""
        require_identity(context, f"transfer {shown(self.order.where)}")
        reading = context.facts.reading
        done = self.known.of_now(reading, self.unit.id)
        chunk = units.Chunk(context)
        sight = _Sight(chunk.context, self.order, self.unit, done)
        sight.demand(self.order.prefix)
        owner = checked_owner(chunk.context, self.order.to)
        entries, more = reading.some_names(self.first, self.end, units.CHUNK)
        following = entries[-1].key + b"\0" if more and entries else None
        found: list[Held] = []

        def hand_over(entry: Entry) -> Iterator[Draft]:
            """The entry that gives a record its new owner, if it is to have one."""
            held = _held(context, entry)
            if held is None:
                return
            if sight.is_left(held, owner):
                values = handed_over(chunk.context, held, owner)
                if values is not None:
                    yield context.draft(held, Action.UPDATE, values, held.state)
            found.append(held)

        if not chunk.take(entries, hand_over):
            following = entries[chunk.looked_at].key
        drafts, looked_at = tuple(chunk.drafts), len(found)
        reason = context.reasons[-1]
        return Plan(lambda seq: _Done(done.with_step(seq, len(drafts)), looked_at, following), drafts, reason=reason)


class _Sight:
    """What somebody who hands over may see, and what is left for them."""

    def __init__(self, context: Context, order: TransferAll, unit: Operation | None, steps: Steps) -> None:
        self._context, self._order, self._unit, self._steps = context, order, unit, steps
        self._seen: set[str] = set()
        self._handed_over: dict[str, int] = {}

    def demand(self, prefix: str) -> None:
        """Refuse whoever may not see all names under a prefix, reserved and unpublished ones included.

        Also where the policy opens the list: what is refused names records that no list shows. Whoever has handed over
        the prefix handle with this very unit, and lost the right by that, sees what they saw until then.
        """
        prefix = fold(prefix)
        if prefix in self._seen:
            return
        self._seen.add(prefix)
        listing = permissions.list_handles(prefix)
        reach = Reach.under(prefix, Word.TRANSFER)
        seeing = replace(listing, alternatives=(*listing.alternatives, (Membership((Role.SERVER,)),)), reach=reach)
        is_own = self._unit is not None and units.is_own(self._unit, self._context.who)
        if is_own and not self._context.may(seeing) and self.handed_over_at(prefix):
            seeing = Demand(f"go on with handing over {shown(prefix)}", ((),), reach=reach)
        self._context.demand(seeing)

    def handed_over_at(self, prefix: str) -> int:
        """The entry with which the unit has handed over the handle of a prefix; 0 if it has not."""
        prefix = fold(prefix)
        if self._unit is None:
            return 0
        if prefix not in self._handed_over:
            held = self._context.facts.held(Handle(PREFIX_OF_PREFIXES, prefix))
            self._handed_over[prefix] = units.changed_at(self._context.facts, held, self._unit, self._steps)
        return self._handed_over[prefix]

    def is_new_owners(self, prefix: str) -> bool:
        """Whether a derived prefix came to be when the one above it was the new owner's already."""
        since = self._given_at(parent(prefix) or "")
        return since > 0 and self._context.facts.reading.as_of(record_key(policy_name(prefix)), since) is None

    def is_left(self, held: Held, owner: Admin) -> bool:
        """Whether a record is still to be handed over; refuses whoever may not know of it."""
        if has_owner(held, owner):
            return False
        assert self._unit is not None  # noqa: S101 - a step has one
        facts, name = self._context.facts, held.handle
        since = self._given_at((parent(name.suffix) or "") if name.is_prefix_handle else name.prefix)
        before = case_rules.as_of(facts, held, since) if 0 < since < held.seq else held.entry
        if before is None or before.state is State.ABSENT:
            return False  # it was made when the prefix was the new owner's already
        if not name.is_prefix_handle:
            self.demand(name.prefix)
        return not units.changed_at(facts, held, self._unit, self._steps)

    def _given_at(self, prefix: str) -> int:
        """The entry with which the unit has handed over a prefix, or else the nearest above it; 0 if it has none.

        Whoever has that prefix makes names under it, and derives others from it.
        """
        for each in (prefix, *ancestors(prefix)):
            if fold(each) != fold(self._order.prefix) and not is_derived(each, self._order.prefix):
                break
            if at := self.handed_over_at(each):
                return at
        return 0


def _held(context: Context, entry: Entry) -> Held | None:
    """The record of an entry that was met under a key; None if there is none that can be handed over."""
    held = context.facts.held(Handle.keepable(entry.handle))
    # What stands under another key ends that of another era.
    if held.key != entry.key or not held.exists or not context.facts.is_responsible(held.handle):
        return None
    return held


# Ranges of keys


def _ranges(order: TransferAll) -> list[_Range]:
    """What is gone through for a prefix, one after the other."""
    # Keys have folded prefixes, so all that is derived from `12345` begins with `12345.`
    above = record_key(f"{PREFIX_OF_PREFIXES}/{order.prefix}")
    names, handles = [_beginning(record_key(f"{order.prefix}/"))], [(above, above + b"\0")]
    if order.derived:
        names.append(_beginning(record_key(f"{order.prefix}.")))
        handles.insert(0, _beginning(record_key(f"{PREFIX_OF_PREFIXES}/{order.prefix}.")))
    return [*names, *handles, *names]


def _beginning(octets: bytes) -> _Range:
    """The range of keys that begin so. The last octet of UTF-8 is never the highest there is."""
    return octets, octets[:-1] + bytes((octets[-1] + 1,))
