"""Changes of many records as one unit: it has a name, is done in steps, can be watched, gone on with and undone.

Each step is a commit of at most `CHUNK` records, so nobody else waits for long, and says which unit it belongs to
(`perseid.ledger.store.jobs`). What was interrupted stays as far as it came, and `resume` does the rest; `undoing` takes
back what was done, by new entries.

Whoever runs the server sees all units, everybody else those that they began themselves, or that were begun with a token
of theirs, however they spell their handle. With a token one sees what was begun with that very token.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final, Self, TypeVar

import msgspec

from perseid.ledger.log.entry import Draft
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Operation, Steps, Undo, Whose
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS, MAX_GROUP_MEMBERS, Decision, Spent
from perseid.registry.access.permissions import Demand, shown
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous, Identity, KeyHolder, LocalOperator, handle_key, maker_of
from perseid.registry.policy import case_rules
from perseid.registry.queries.history import SEE_ALL, may
from perseid.registry.queries.paging import Room
from perseid.registry.registry import Registry, check_text
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts, Held
from perseid.wire.codes import ResponseCode

CHUNK: Final = 250
"""Records changed in one commit: some twenty milliseconds of work in which others cannot write."""

CHUNK_OCTETS: Final = 1 << 20
"""Octets of values beyond which a commit takes no more records: some twenty milliseconds again."""

MANY_LOOKUPS: Final = MAX_GROUP_LOOKUPS // 2
MANY_MEMBERS: Final = MAX_GROUP_MEMBERS // 2
"""References, and members of groups, that one commit follows to decide who may change what, and then takes no more
records. The limits are for each record; many of them must not be denied together what each alone is allowed. `Chunk`
ends before a record for which there is too little left all the same."""

LAST: Final = "last"
"""Means the unit that began last, of those that somebody sees."""

_NAME_OCTETS: Final = 8  # more units than one installation will ever have

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a unit has come; so far is durable."""

    operation: str
    done: int
    """Entries that it has made, those from before an interruption included."""
    total: int
    """Records that it is about, as counted beforehand; 0 if that is not known."""


def new_name() -> str:
    """A name for a unit that nobody has."""
    return secrets.token_hex(_NAME_OCTETS)


def begin(  # noqa: PLR0913 - what is written down
    registry: Registry,
    kind: str,
    asked: dict[str, object],
    who: Identity,
    door: str,
    note: str = "",
    *,
    total: int = 0,
    undoes: str = "",
) -> Operation:
    """Write down that a unit begins. Nobody in particular cannot begin one: nobody could go on with it.

    One that `undoes` another ends that; if there is such a unit already which has not ended, it is the answer.
    """
    if isinstance(who, Anonymous):
        reason = "who changes many records at once has to be known"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "answer a challenge, or use a session")
    check_text(note)
    text = msgspec.json.encode(asked).decode()
    made = Operation(new_name(), kind, text, undoes, door, str(who), note, total=total, maker=_name(maker_of(who)))
    return jobs.begin(registry.ledger.log, made)


def end(registry: Registry, operation: Operation) -> None:
    """Write down that nothing of a unit is left to do."""
    jobs.end(registry.ledger.log, operation.id)


def finish(registry: Registry, operation: Operation) -> None:
    """The same for a unit that cannot be gone on with, however it ended; if nothing was done it is forgotten."""
    end(registry, operation)
    jobs.forget(registry.ledger.log, operation.id)


def asked(operation: Operation) -> dict[str, object]:
    """What somebody asked for."""
    return msgspec.json.decode(operation.asked, type=dict[str, object])


class Later(Exception):
    """Of a record it cannot be decided in this commit whether somebody has a right: it is for the next one."""


class Chunk:
    """What becomes of the records of one commit, and how many it takes.

    Rights are asked for through its `context`. The records share what a request may search for them, and a search that
    had only what others left over tells nothing. So the commit ends before a record for which a right was not found
    with that. For the first one it is searched again, with all of it; there the next commit would come no further.
    """

    def __init__(self, context: Context) -> None:
        """`context` is under which circumstances they are decided."""
        who, door, now, note, reasons = context.who, context.door, context.now, context.note, context.reasons
        self.context: Context = _Sharing(context.facts, who, door, now, note, reasons, chunk=self)
        self.drafts: list[Draft] = []
        self.looked_at = 0
        """How many records, or entries, it was about."""
        self._octets = 0

    def take(self, items: Iterable[T], decide: Callable[[T], Iterable[Draft]]) -> bool:
        """Decide what becomes of some, one after the other; whether it took all. The first one it always takes."""
        for item in items:
            if self.looked_at and self.is_full:
                return False
            self.looked_at += 1
            try:
                drafts = tuple(decide(item))
            except Later:
                self.looked_at -= 1
                return False
            self.drafts += drafts
            self._octets += sum([len(value.data) for draft in drafts for value in draft.values])
        return True

    @property
    def is_full(self) -> bool:
        """Whether it takes no more: they are large, or it takes much to find out whether they may be changed."""
        spent = self.context.facts.spent
        return self._octets >= CHUNK_OCTETS or spent.lookups > MANY_LOOKUPS or spent.members > MANY_MEMBERS


@dataclass(frozen=True, slots=True)
class _Sharing(Context):
    """Under which circumstances the records of a chunk are decided."""

    chunk: Chunk = field(kw_only=True)

    def weighed(self, demand: Demand) -> Decision:
        """Whether somebody meets a demand. Raises `Later`."""
        spent = self.facts.spent
        was_fresh = spent == Spent()
        decision = Context.weighed(self, demand)
        if decision.allowed or was_fresh or not spent.is_used_up:
            return decision
        if self.chunk.looked_at > 1:
            raise Later
        spent.lookups = spent.members = 0
        return Context.weighed(self, demand)


def told(pieces: Iterable[Progress]) -> Iterator[Progress]:
    """The progress of those pieces of a unit that changed something; the first piece only says where it begins."""
    done = -1
    for piece in pieces:
        if 0 <= done < piece.done:
            yield piece
        done = piece.done


def noted(operation: Operation) -> str:
    """The note of the unit's entries, for people who read the log."""
    return f"{operation.kind} {operation.id}" + (f": {operation.note}" if operation.note else "")


def listed(registry: Registry, who: Identity) -> Iterator[Operation]:
    """The units that somebody may see, the one that began last first."""
    return jobs.newest_first(registry.ledger.log, whose=_whose(registry, who))


@dataclass(frozen=True, slots=True)
class UnitPage:
    """Some units, the one that began last first."""

    items: tuple[Operation, ...]
    last: tuple[int, str] | None
    """Where the page ended: when the last one of it began, and its name; None if this is the last page."""


def page(registry: Registry, who: Identity, before: tuple[int, str] | None, limit: int) -> UnitPage:
    """A page of the units that somebody may see, behind where one ended."""
    room = Room(limit)
    items: list[Operation] = []
    for operation in jobs.newest_first(registry.ledger.log, before, _whose(registry, who), limit + 1):
        if not room.take(len(operation.asked) + len(operation.actor) + len(operation.note)):
            return UnitPage(tuple(items), (items[-1].begun, items[-1].id))
        items.append(operation)
    return UnitPage(tuple(items), None)


def found(registry: Registry, who: Identity, name: str) -> Operation:
    """The unit of a name, if there is one that somebody may see. Raises `Refused`."""
    whose = _whose(registry, who)
    if name == LAST:
        operation = next(jobs.newest_first(registry.ledger.log, whose=whose, at_once=1), None)
    else:
        operation = jobs.find(registry.ledger.log, name) if name.isascii() and name.isalnum() else None
    if operation is None or not (whose is None or whose.has(operation)):
        reason = "there is no operation yet" if name == LAST else f"there is no operation {shown(name)}"
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, reason, "look at: perseid operations")
    return operation


def sees(registry: Registry, who: Identity, operation: Operation) -> bool:
    """Whether somebody may see a unit."""
    whose = _whose(registry, who)
    return whose is None or whose.has(operation)


def is_own(operation: Operation, who: Identity) -> bool:
    """Whether somebody began a unit, themselves or with a token of theirs."""
    return Whose(str(who), _names(who)).has(operation)


def acts_for(who: Identity, other: Identity) -> bool:
    """Whether somebody is another, or made the token that the other shows."""
    return str(who) == str(other) or _name(maker_of(other)) in _names(who)


def changed_at(facts: Facts, held: Held, operation: Operation, steps: Steps) -> int:
    """The last entry with which a unit has changed a record, whoever changed it afterwards; 0 if there is none."""
    for entry in case_rules.history(facts, held) if held.seq > operation.since else ():
        if entry.seq <= operation.since:
            return 0
        if entry.seq in steps:
            return entry.seq
    return 0


class Undos:
    """Which units undo which, and whether that still counts: an undo may have been undone itself."""

    def __init__(self, undos: Iterable[Undo]) -> None:
        self._by: dict[str, list[Undo]] = {}
        for each in undos:
            self._by.setdefault(each.undoes, []).append(each)
        ids = {name: [each.id for each in found] for name, found in self._by.items()}
        self._stands: dict[str, bool] = {}
        for name in TopologicalSorter(ids).static_order():
            self._stands[name] = self.standing(name) is None

    @classmethod
    def of(cls, registry: Registry, *names: str) -> Self:
        """What undoes some units, and what undoes that, and so on."""
        return cls(jobs.undos_of(registry.ledger.log, names) if names else ())

    @classmethod
    def all(cls, registry: Registry) -> Self:
        """All there are."""
        return cls(jobs.undos(registry.ledger.log))

    def standing(self, name: str) -> str | None:
        """The unit that has undone this one, and was not undone itself."""
        return next((each.id for each in self._by.get(name, ()) if each.ended and self._stands[each.id]), None)

    def running(self, name: str) -> str | None:
        """The unit that is undoing this one."""
        return next((each.id for each in self._by.get(name, ()) if not each.ended), None)

    def ended(self, name: str) -> list[str]:
        """All units that undid this one, or one of these. If none stands, they have come to nothing together."""
        found: list[str] = []
        wanted = [name]
        while wanted:
            ids = [each.id for each in self._by.get(wanted.pop(), ()) if each.ended]
            found += ids
            wanted += ids
        return found


def _whose(registry: Registry, who: Identity) -> Whose | None:
    """Which units somebody may see; None for all."""
    with registry.facts() as facts:
        if may(facts, who, SEE_ALL):
            return None
    return Whose(str(who), _names(who))


def _name(who: Anonymous | KeyHolder | LocalOperator) -> str:
    """The name under which a unit is somebody's: the same however they spell their handle."""
    if not isinstance(who, KeyHolder):
        return str(who)
    index, _, handle = str(who).partition(":")
    return f"{index}:{handle_key(handle)}"


def _names(who: Identity) -> tuple[str, ...]:
    """The names under which units are somebody's. With a token one has none: what was begun with it says so itself.

    Who names no key is known by the one that verified, and makes tokens as somebody who names none.
    """
    if isinstance(who, KeyHolder):
        return tuple({_name(who): None, f"{who.index}:{handle_key(who.reference.handle)}": None})
    return (str(who),) if isinstance(who, LocalOperator) else ()
