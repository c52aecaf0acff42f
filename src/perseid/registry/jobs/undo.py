"""Undoing a change of many records: each becomes what it was, by a new entry. Nothing is taken out of the ledger.

It takes the rights for the inverse changes, and today's policies hold. What it does not do:

- A name that was made is not unmade: somebody may have it already. Its record becomes a tombstone, which says why (S8).
  A name that was only reserved stays reserved, for it stands for nothing.
- What others changed later is not lost: where there is such a change nothing is undone at all, and all are named. Of a
  record whose past somebody may not see they are told only that it stands in the way.
- Data that was erased does not come back: where some would be needed the record is named, and nothing is undone.

An undo is a unit itself (`units`): it is done in steps, gone on with after an interruption, and can be undone; then
what it undid can be undone anew. When it begins, the unit that is undone ends, even if something of it was left to do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import Reading
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Operation, Steps
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.registry.access import permissions
from perseid.registry.access.authorization import may_write
from perseid.registry.access.permissions import Demand, Differences, Need, shown
from perseid.registry.access.scopes import Reach, Word
from perseid.registry.commands.composition import compose
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.queries.history import SEE_ALL
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Held
from perseid.wire.codes import ResponseCode

from . import jobs as units
from .jobs import Progress

KIND: Final = "undo"

MAX_NAMED: Final = 20
"""How many records a refusal names; it says how many there are."""

MAX_LATER: Final = 1_000
"""Later changes of a record that are counted: one of them stands in the way, and somebody may have made millions."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a record cannot become what it was."""

    handle: str
    seq: int | None
    """The entry that stands in the way; None if that may not be known."""
    why: str


class InTheWay(Refused):
    """Nothing was undone, because something would be lost, or is lost already."""

    def __init__(self, operation: str, obstacles: list[Obstacle], count: int = 0) -> None:
        """`count` says how many there are, if they are more than these."""
        count = max(count, len(obstacles))
        reason = f"{operation} cannot be undone: {count:,} of its records stand in the way"
        named = [f"{shown(each.handle)}: {each.why}" for each in obstacles[:MAX_NAMED]]
        more = f"; and {count - len(named):,} more" if count > len(named) else ""
        super().__init__(ResponseCode.INVALID_VALUE, reason, "; ".join(named) + more)
        self.obstacles = obstacles
        """All of them that are kept."""


class Look:
    """What an undo is about, and what stands in its way; looked at in pieces, as it may be about millions."""

    def __init__(self, registry: Registry, name: str, who: Identity, most: int | None = None) -> None:
        """`most` is how many obstacles are kept; all, if it is not said.

        Raises `Refused` if there is no such unit that somebody may see, or it was undone already.
        """
        self._registry, self._who, self._most = registry, who, most
        self.meant = units.found(registry, who, name)
        """What would be undone."""
        undos = units.Undos.of(registry, self.meant.id)
        check_not_undone(undos, self.meant.id)
        self._running = undos.running(self.meant.id)
        self._past = _Past.of(registry.ledger.log, self.meant.id, self._running or "", undos)
        self._left = self._past.meant.newest_first()
        self._next: tuple[int, ...] = ()
        self.total = 0
        """How many records it is about, of those that were looked at."""
        self.in_the_way = 0
        """How many of these stand in its way."""
        self.obstacles: list[Obstacle] = []

    def go_on(self) -> bool:
        """Look at `units.CHUNK` entries more; whether some are left."""
        entries = (*self._next, *islice(self._left, units.CHUNK - len(self._next)))
        with self._registry.facts() as facts:
            chunk = units.Chunk(Context(facts, self._who, "read", self._registry.now()))
            chunk.take(entries, lambda seq: self._look(chunk.context, seq))
        self._next = entries[chunk.looked_at :]
        return len(entries) == units.CHUNK or bool(self._next)

    def _look(self, context: Context, seq: int) -> tuple[()]:
        """Look at the change that begins with an entry, if one does."""
        change = _Change.of(context.facts.reading, seq, self._past)
        if change is None:
            return ()
        if change.obstacle is not None:
            if self._most is None or len(self.obstacles) < self._most:
                self.obstacles.append(_told(context, change.obstacle))
            self.in_the_way += 1
        self.total += 1
        return ()

    def begin(self, door: str, note: str = "") -> Operation:
        """Begin the undo, or go on with the one that was begun; `run` does it. Raises `Refused`.

        It is not gone on with by whoever may not see it: they could not be told what becomes of it.
        """
        if self.in_the_way:
            raise InTheWay(self.meant.id, self.obstacles, self.in_the_way)
        registry, meant = self._registry, self.meant.id
        begun = None if self._running is None else jobs.find(registry.ledger.log, self._running)
        if begun is None:
            self._try_first_step(door, note)
            asked: dict[str, object] = {"operation": meant}
            begun = units.begin(registry, KIND, asked, self._who, door, note, total=self.total, undoes=meant)
        if not units.sees(registry, self._who, begun):
            reason = f"{meant} is being undone by {begun.id}, which somebody else began"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "have it gone on with by them, or by who runs the server")
        return begun

    def _try_first_step(self, door: str, note: str) -> None:
        """Decide the first step and do nothing. Raises `Refused`.

        With the beginning of its undo a unit ends, for whoever is at it; so that is not for those who may not undo it.
        """
        wanted = replace(self.meant, id="", undoes=self.meant.id)
        step = _Step(wanted, tuple(islice(self._past.meant.newest_first(), units.CHUNK)), self._past)
        with self._registry.facts() as facts:
            step.decide(Context(facts, self._who, door, self._registry.now(), note))


def begin(registry: Registry, name: str, who: Identity, door: str, note: str = "") -> Operation:
    """Begin to undo a unit, or go on with doing so; `run` does it. Raises `Refused`.

    Everything is looked at beforehand, so that what cannot be undone is left as it is.
    """
    look = Look(registry, name, who)
    while look.go_on():
        pass
    return look.begin(door, note)


def check_not_undone(undos: units.Undos, name: str) -> None:
    """Refuse what has been undone, as long as that counts."""
    by = undos.standing(name)
    if by is not None and (again := undos.running(by)) is not None:
        reason = f"{by} is being undone by {again}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, f"go on with that: perseid operations resume {again}")
    if by is not None:
        reason = f"{name} was undone by {by}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, f"to have it again, undo that: perseid undo {by}")


def run(registry: Registry, operation: Operation, who: Identity) -> Iterator[Progress]:
    """Do what is left to do of an undo, newest entries first, in steps of `units.CHUNK`, and yield after each."""
    return units.told(pieces(registry, operation, who))


def pieces(registry: Registry, operation: Operation, who: Identity) -> Iterator[Progress]:
    """The same in pieces of bounded work, whether or not anything was changed; the first one does nothing yet."""
    past = _Past.of(registry.ledger.log, operation.undoes, operation.id, units.Undos.of(registry, operation.undoes))
    yield Progress(operation.id, len(past.undo), operation.total)
    entries = past.meant.newest_first()
    chunk: tuple[int, ...] = ()
    while chunk := (*chunk, *islice(entries, units.CHUNK - len(chunk))):
        step = _Step(operation, chunk, past)
        steps, looked_at = registry.do(step, who, operation.door, units.noted(operation), step_of=operation.id)
        chunk = chunk[looked_at:]
        past = replace(past, undo=steps)
        yield Progress(operation.id, len(steps), operation.total)
    units.end(registry, operation)


@dataclass(frozen=True, slots=True)
class _Past:
    """Which entries belong to what."""

    meant: Steps
    """To the unit that is undone."""
    undo: Steps
    """To what undoes it."""
    settled: Steps
    """To earlier undos of it and to what undid these: together they have changed nothing."""

    @classmethod
    def of(cls, log: Log, meant: str, undo: str, undos: units.Undos) -> "_Past":
        settled = Steps([row for name in undos.ended(meant) for row in jobs.steps_of(log, name)])
        return cls(jobs.steps_of(log, meant), jobs.steps_of(log, undo), settled)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a unit made of one record."""

    entry: Entry
    """The unit's first entry of the record."""
    before: Entry | None
    """What the record was before it; None if there was none, or it is undone."""
    obstacle: Obstacle | None
    is_undone: bool

    @classmethod
    def of(cls, reading: Reading, seq: int, past: _Past) -> "_Change | None":
        """The change that begins with an entry; None if an earlier entry of the unit began it."""
        previous = reading.previous(seq)
        before = reading.entry(previous) if previous and previous not in past.meant else None
        if _changed_before(reading, previous, before) in past.meant:
            return None
        entry = reading.entry(seq)
        later: list[int] = []
        at = reading.latest(entry.key)
        while at > seq:
            if at in past.undo:
                return cls(entry, None, None, is_undone=True)
            is_own = at in past.meant or at in past.settled
            # A redaction erases from the past only, and leaves the record as it is.
            if len(later) < MAX_LATER and not is_own and reading.entry(at).action is not Action.REDACT:
                later.append(at)
            if len(later) == MAX_LATER and not past.undo:
                break  # that is enough, and nothing of it can have been undone
            at = reading.previous(at)
        return cls(entry, before, _obstacle(entry, before, later), is_undone=False)

    @property
    def made_the_name(self) -> bool:
        """Whether the name stood for nothing before, and was to stand for something, or be reserved, after that."""
        before = State.ABSENT if self.before is None else self.before.state
        return before is State.ABSENT or (before is State.RESERVED and self.entry.state is not State.RESERVED)


def _changed_before(reading: Reading, previous: int, before: Entry | None) -> int:
    """The entry that last changed a record before another one. A redaction leaves it as it is."""
    while before is not None and before.action is Action.REDACT:
        previous = reading.previous(previous)
        before = reading.entry(previous) if previous else None
    return previous


def _told(context: Context, obstacle: Obstacle) -> Obstacle:
    """An obstacle as somebody may know it: how often and when a record was changed is for those who see its past."""
    if context.may(permissions.read(Handle.keepable(obstacle.handle))) or context.may(SEE_ALL):
        return obstacle
    return Obstacle(obstacle.handle, None, "you may not see why")


def _obstacle(entry: Entry, before: Entry | None, later: list[int]) -> Obstacle | None:
    if later:
        of = f"{len(later):,}" if len(later) < MAX_LATER else f"{MAX_LATER:,} or more"
        times = "" if len(later) == 1 else f", the last of {of}"
        return Obstacle(entry.handle, later[0], f"changed later, in entry {later[0]}{times}")
    if before is not None and any(slot.is_redacted for slot in before.values):
        return Obstacle(entry.handle, before.seq, f"what it held at entry {before.seq} was erased for good")
    return None


@dataclass(frozen=True, slots=True)
class _Step:
    """Undo some entries, as far as one commit takes them."""

    undo: Operation
    entries: tuple[int, ...]
    past: _Past

    @property
    def operation(self) -> str:
        """What is undone."""
        return self.undo.undoes

    def decide(self, context: Context) -> Plan[tuple[Steps, int]]:
        """For each record what the inverse change takes. Others may be at the same, so their steps count.

        The answer is what has been done then, and of how many entries.
        """
        require_identity(context, f"undo {self.operation}")
        reading = context.facts.reading
        steps = self.past.undo.of_now(reading, self.undo.id)
        past = replace(self.past, undo=steps)
        chunk = units.Chunk(context)
        chunk.take(self.entries, lambda seq: self._drafts(chunk.context, seq, past))
        reason = (context.reasons or [""])[-1]
        drafts = tuple(chunk.drafts)
        return Plan(lambda first: (steps.with_step(first, len(drafts)), chunk.looked_at), drafts, reason=reason)

    def _drafts(self, context: Context, seq: int, past: _Past) -> tuple[Draft, ...]:
        """The entry that takes back the change that begins with one; none if none does, or it was taken back."""
        change = _Change.of(context.facts.reading, seq, past)
        if change is None or change.is_undone:
            return ()
        held = context.facts.held(Handle.keepable(change.entry.handle))
        if change.obstacle is not None:
            raise InTheWay(self.operation, [_told(context, change.obstacle)])
        if held.key != change.entry.key or not context.facts.is_responsible(held.handle):
            why = "its namespace has another case rule now, or is no longer homed here"
            raise InTheWay(self.operation, [_told(context, Obstacle(change.entry.handle, held.seq, why))])
        return self._inverse(context, held, change)

    def _inverse(self, context: Context, held: Held, change: _Change) -> tuple[Draft, ...]:
        """The entry that takes a change back; none if there is nothing to take back."""
        if change.made_the_name:
            if held.state in (State.RESERVED, State.TOMBSTONE, State.ABSENT):
                return ()
            return Tombstone(held.handle, f"made by {self.operation}, which was undone").decide(context).drafts
        before = change.before
        assert before is not None  # noqa: S101 - else the name was made
        wanted = before.record()
        differences = Differences.between(held.values, wanted)
        if held.state is before.state and not (differences.added or differences.removed or differences.modified):
            return ()
        for old, new in differences.modified:
            decision = may_write(context.who, held.handle, old, new)
            if not decision.allowed:
                raise Refused.by_decision(decision)
        needed = differences.permissions | _for_state(held.state, before.state)
        if not held.exists:
            context.demand(permissions.create(held.handle))
        else:  # where nothing is needed everybody may, but a token takes the words all the same
            needs = ((Need(needed, str(held.handle)),),) if needed else ()
            reach = Reach.of(held.handle, *differences.words, *_word_for_state(held.state, before.state))
            action = f"undo the change of {shown(held.handle)}"
            context.demand(Demand(action, needs, public=not needed, reach=reach))
        values = compose(context, held, wanted, creates=not held.exists, state=before.state)
        return (context.draft(held, _action(held.state, before.state), values, before.state),)


def _for_state(now: State, then: State) -> AdminPermission:
    """What it takes to make a name what it was: the same as in `life`."""
    if now is then:
        return AdminPermission(0)
    if State.TOMBSTONE in (now, then):
        return AdminPermission.DELETE_HANDLE | AdminPermission.ADD_VALUE
    return AdminPermission.MODIFY_VALUE


def _word_for_state(now: State, then: State) -> tuple[Word, ...]:
    """The word that a token needs for it."""
    if now is then:
        return ()
    return (Word.TOMBSTONE,) if State.TOMBSTONE in (now, then) else (Word.PUBLISH,)


def _action(now: State, then: State) -> Action:
    if then is State.TOMBSTONE and now is not then:
        return Action.TOMBSTONE
    if now is State.ABSENT:
        return Action.CREATE
    if State.UNPUBLISHED in (now, then) and now is not then:
        return Action.PUBLISH if now is State.UNPUBLISHED else Action.UNPUBLISH
    return Action.UPDATE
