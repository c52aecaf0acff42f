"""Changes of many records as one unit: it has a name, is done in steps, can be watched, gone on with and undone.

Each step is a commit of at most `CHUNK` records, so nobody else waits for long, and says which unit it belongs to
(`perseid.ledger.operations`). What was interrupted stays as far as it came, and `resume` does the rest; `undoing` takes
back what was done, by new entries.

Whoever runs the server sees all units, everybody else those that they began themselves.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Final, Self

import msgspec

from perseid.ledger import operations
from perseid.ledger.entry import Draft
from perseid.ledger.operations import Operation, Undo
from perseid.wire.codes import ResponseCode

from .demands import shown
from .facts import Facts
from .identity import Anonymous, Identity
from .past import SEE_ALL, may
from .registry import Registry
from .results import Refused

CHUNK: Final = 250
"""Records changed in one commit: some twenty milliseconds of work in which others cannot write."""

CHUNK_OCTETS: Final = 1 << 20
"""Octets of values beyond which a commit takes no more records: some twenty milliseconds again."""

MAX_LOOKED_AT: Final = 1_000
"""Units that are looked at for one page: those that somebody may not see cost as much as the others."""

LAST: Final = "last"
"""Means the unit that began last, of those that somebody sees."""

_NAME_OCTETS: Final = 8  # more units than one installation will ever have


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
    name: str = "",
) -> Operation:
    """Write down that a unit begins. Nobody in particular cannot begin one: nobody could go on with it.

    One that `undoes` another ends that; if there is such a unit already which has not ended, it is the answer.
    """
    if isinstance(who, Anonymous):
        reason = "who changes many records at once has to be known"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "answer a challenge, or use a session")
    text = msgspec.json.encode(asked).decode()
    made = Operation(name or new_name(), kind, text, undoes, door, str(who), note, total=total)
    return operations.begin(registry.ledger.log, made)


def end(registry: Registry, operation: Operation) -> None:
    """Write down that nothing of a unit is left to do."""
    operations.end(registry.ledger.log, operation.id)


def finish(registry: Registry, operation: Operation) -> None:
    """The same for a unit that cannot be gone on with, however it ended; if nothing was done it is forgotten."""
    end(registry, operation)
    operations.forget(registry.ledger.log, operation.id)


def asked(operation: Operation) -> dict[str, object]:
    """What somebody asked for."""
    return msgspec.json.decode(operation.asked, type=dict[str, object])


class Chunk:
    """What becomes of the records of one commit."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._octets = 0

    def add(self, *drafts: Draft) -> None:
        """Take one more."""
        self.drafts += drafts
        self._octets += sum([len(value.data) for draft in drafts for value in draft.values])

    @property
    def is_full(self) -> bool:
        """Whether it takes no more, because they are large."""
        return self._octets >= CHUNK_OCTETS


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
    with registry.facts() as facts:
        sees_all = may(facts, who, SEE_ALL)
    for operation in operations.newest_first(registry.ledger.log):
        if sees_all or operation.actor == str(who):
            yield operation


@dataclass(frozen=True, slots=True)
class UnitPage:
    """Some units, the one that began last first."""

    items: tuple[Operation, ...]
    last: tuple[int, str] | None
    """Where the page ended: when the last one began that was looked at, and its name; None if this is the last page."""


def page(registry: Registry, who: Identity, before: tuple[int, str] | None, limit: int) -> UnitPage:
    """A page of the units that somebody may see, behind where one ended. It may be short, and not the last."""
    with registry.facts() as facts:
        sees_all = may(facts, who, SEE_ALL)
    items: list[Operation] = []
    last: Operation | None = None
    for looked_at, operation in enumerate(operations.newest_first(registry.ledger.log, before)):
        if looked_at == MAX_LOOKED_AT or len(items) == limit:
            break
        last = operation
        if sees_all or operation.actor == str(who):
            items.append(operation)
    else:
        last = None  # it was the last of all
    return UnitPage(tuple(items), None if last is None else (last.begun, last.id))


def found(registry: Registry, who: Identity, name: str) -> Operation:
    """The unit of a name, if there is one that somebody may see. Raises `Refused`."""
    if name == LAST:
        operation = next(listed(registry, who), None)
    else:
        operation = operations.find(registry.ledger.log, name)
        with registry.facts() as facts:
            if operation is not None and not _sees(facts, who, operation):
                operation = None
    if operation is None:
        reason = "there is no operation yet" if name == LAST else f"there is no operation {shown(name)}"
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, reason, "look at: perseid operations")
    return operation


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
    def of(cls, registry: Registry) -> Self:
        """All there are."""
        return cls(operations.undos(registry.ledger.log))

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


def _sees(facts: Facts, who: Identity, operation: Operation) -> bool:
    return operation.actor == str(who) or may(facts, who, SEE_ALL)
