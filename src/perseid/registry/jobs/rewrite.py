"""Moving what many names lead to, at once: a host has another name, a path begins otherwise.

The names are found by the index of where records lead, as far as whoever asks may see them (`finding`), and changed as
single changes would be: with the right to modify their values, under their policies. It is one unit (`units`), so it
can be watched, gone on with and undone. What is changed by others meanwhile is moved as well, as it is then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Operation, Steps
from perseid.names.handle import Handle
from perseid.records.value import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.access.authorization import may_write
from perseid.registry.access.permissions import Modification, shown
from perseid.registry.commands.composition import compose
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.moving import Move
from perseid.registry.page_room import octets_of
from perseid.registry.queries.find import Found, find
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.searching import Search
from perseid.registry.snapshot import Facts, Held

from . import jobs as units
from .jobs import Progress

KIND = "rewrite"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Move everything that leads to some URLs to others."""

    url: str
    """Which: a URL, or how they begin and a `*`."""
    to: str
    """Where to: a URL, or how they begin then and a `*`."""
    prefix: str | None = None
    """Only names of this namespace."""

    @property
    def search(self) -> Search:
        """What is looked for."""
        return Search(url=self.url, prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class Planned:
    """What becomes of one name."""

    handle: str
    changes: tuple[Modification, ...]
    """Values as they are, and as they will be."""
    left: tuple[Value, ...]
    """Values that lead there and cannot be moved."""


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """What becomes of some names."""

    items: tuple[Planned, ...]
    following: str | None
    """Where the next page begins; None if this is the last one. A page may be empty and not the last."""


def preview(registry: Registry, order: Rewrite, who: Identity) -> Iterator[Planned]:
    """What would be changed, by the state of now; nothing is done. Raises `Refused`."""
    after: str | None = None
    while True:
        with registry.facts() as facts:
            page = planned(facts, who, order, after)
        yield from page.items
        after = page.following
        if after is None:
            return


def planned(facts: Facts, who: Identity, order: Rewrite, after: str | None = None, limit: int = 0) -> PlannedPage:
    """A page of the same, behind where one ended; of `units.CHUNK` names, unless it says. Raises `Refused`."""
    move = Move.parse(order.url, order.to)
    items: dict[str, Planned] = {}

    def weigh(found: Found) -> int:
        """What becomes of a name takes room too; it is worked out here, for a page that it may not fit on."""
        made = items[found.handle] = _planned(move, found.handle, found.values)
        return octets_of([new for _, new in made.changes])

    found, following = _leading(facts, who, order, after, limit or units.CHUNK, weigh)
    return PlannedPage(tuple([items[handle] for handle, _ in found]), following)


def _planned(move: Move, handle: str, values: tuple[Value, ...]) -> Planned:
    pairs = [(value, move.moved(value)) for value in values]
    changes = tuple([(old, new) for old, new in pairs if new is not None and new != old])
    return Planned(handle, changes, tuple([old for old, new in pairs if new == old]))


def begin(registry: Registry, order: Rewrite, who: Identity, door: str, note: str, total: int) -> Operation:
    """Begin to move; `run` does it."""
    Move.parse(order.url, order.to)
    order.search.prepared()
    asked: dict[str, object] = {"url": order.url, "to": order.to, "prefix": order.prefix}
    return units.begin(registry, KIND, asked, who, door, note, total=total)


def run(registry: Registry, operation: Operation, who: Identity) -> Iterator[Progress]:
    """Do what is left to do of a rewrite, at most `units.CHUNK` records to a commit, and yield after each.

    The first record that somebody may not change ends it with `Refused`; what is done by then stays done. Everything
    is gone through until nothing is left, for there may be new records meanwhile.
    """
    return units.told(pieces(registry, operation, who))


def pieces(registry: Registry, operation: Operation, who: Identity) -> Iterator[Progress]:
    """The same in pieces of bounded work, whether or not anything was changed; the first one does nothing yet."""
    asked = units.asked(operation)
    order = Rewrite(str(asked["url"]), str(asked["to"]), None if asked["prefix"] is None else str(asked["prefix"]))
    move = Move.parse(order.url, order.to)
    steps = jobs.steps_of(registry.ledger.log, operation.id)
    yield Progress(operation.id, len(steps), operation.total)
    changed = 1
    while changed:
        changed = 0
        for names in _names(registry, order, who):
            while names:
                step = _Step(move, names, operation, steps)
                done = registry.do(step, who, operation.door, units.noted(operation), step_of=operation.id)
                steps, names = done.steps, names[done.looked_at :]  # noqa: PLW2901 - the rest, if they are large
                changed += done.changed
                yield Progress(operation.id, len(steps), operation.total)
            yield Progress(operation.id, len(steps), operation.total)
    units.end(registry, operation)


def _names(registry: Registry, order: Rewrite, who: Identity) -> Iterator[tuple[str, ...]]:
    """The names that lead there, as far as somebody may see them; page by page, some of which may be empty."""
    after: str | None = None
    while True:
        with registry.facts() as facts:
            found, after = _leading(facts, who, order, after, units.CHUNK)
        yield tuple([handle for handle, _ in found])
        if after is None:
            return


def _leading(
    facts: Facts,
    who: Identity,
    order: Rewrite,
    after: str | None,
    limit: int,
    weigh: Callable[[Found], int] | None = None,
) -> tuple[list[tuple[str, tuple[Value, ...]]], str | None]:
    """A page of the names that lead there, with the values that do, and where the next one begins."""
    page = find(facts, who, order.search, after, limit, weigh=weigh)
    # A tombstone leads nowhere; what it still holds is a matter of its past.
    living = [each for each in page.items if each.state is not State.TOMBSTONE]
    here = [each for each in living if facts.is_responsible(Handle.keepable(each.handle))]
    return [(found.handle, found.values) for found in here], page.following


@dataclass(frozen=True, slots=True)
class _Done:
    """What a step came to."""

    steps: Steps
    looked_at: int
    """Of the names that were given, from the first on."""
    changed: int


@dataclass(frozen=True, slots=True)
class _Step:
    """Move some names, as far as one commit takes them."""

    move: Move
    names: tuple[str, ...]
    unit: Operation
    known: Steps
    """What of it has been done, as far as is known."""

    def decide(self, context: Context) -> Plan[_Done]:
        """For each record what modifying its values takes."""
        require_identity(context, f"move {shown(self.names[0])}")
        done = self.known
        if self.move.repeats:  # then it counts what has been moved already, by others at the same time, too
            done = done.of_now(context.facts.reading, self.unit.id)
        chunk = units.Chunk(context)
        chunk.take(self.names, lambda name: self._drafts(chunk.context, name, done))
        reason = context.reasons[-1] if context.reasons else ""
        count = len(chunk.drafts)
        drafts, looked_at = tuple(chunk.drafts), chunk.looked_at
        return Plan(lambda seq: _Done(done.with_step(seq, count), looked_at, count), drafts, reason=reason)

    def _drafts(self, context: Context, name: str, done: Steps) -> tuple[Draft, ...]:
        """The entry that moves a name; none if there is nothing to move."""
        handle = Handle.keepable(name)
        if not context.facts.is_responsible(handle):
            return ()
        held = context.facts.held(handle)
        if not held.exists or held.state is State.TOMBSTONE or self._is_done(context, held, done):
            return ()
        changes: dict[int, Value] = {}
        pairs: list[Modification] = []
        for value in held.values:
            new = self.move.moved(value)
            if new is None or new == value:
                continue
            if not (value.is_public or self._reads(context, held, value)):
                continue  # whoever may not read it has not seen where it leads
            decision = may_write(context.who, held.handle, value, new)
            if not decision.allowed:
                raise Refused.by_decision(decision)
            changes[value.index] = new
            pairs.append((value, new))
        if not pairs:
            return ()
        context.demand(permissions.modify(held.handle, pairs))
        values = compose(context, held, tuple([changes.get(value.index, value) for value in held.values]))
        return (context.draft(held, Action.UPDATE, values, held.state),)

    def _reads(self, context: Context, held: Held, value: Value) -> bool:
        """Whether somebody may read a value that is not public; some nobody may."""
        return Permission.ADMIN_READ in value.permissions and context.may(permissions.read(held.handle))

    def _is_done(self, context: Context, held: Held, done: Steps) -> bool:
        """Whether a record has been moved by this unit, whoever changed it afterwards."""
        return self.move.repeats and units.changed_at(context.facts, held, self.unit, done) > 0
