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
from perseid.ledger.log.reader import LogReader
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_write
from perseid.registry.access.permissions import Differences, HasPermissions, Requirement, display_name
from perseid.registry.access.scopes import RequiredScope, Scope
from perseid.registry.commands.composition import compose
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.queries.history import SEE_ALL
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import StoredRecord
from perseid.wire.codes import ResponseCode

from . import runner
from .runner import Progress

KIND: Final = "undo"

MAX_CONFLICTS_SHOWN: Final = 20
"""How many records a refusal names; it says how many there are."""

MAX_LATER_CHANGES: Final = 1_000
"""Later changes of a record that are counted: one of them stands in the way, and somebody may have made millions."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a record cannot become what it was."""

    handle: str
    seq: int | None
    """The entry that stands in the way; None if that may not be known."""
    why: str


class UndoConflict(Refused):
    """Nothing was undone, because something would be lost, or is lost already."""

    def __init__(self, operation: str, conflicts: list[Conflict], count: int = 0) -> None:
        """`count` says how many there are, if they are more than these."""
        count = max(count, len(conflicts))
        reason = f"{operation} cannot be undone: {count:,} of its records stand in the way"
        named = [f"{display_name(each.handle)}: {each.why}" for each in conflicts[:MAX_CONFLICTS_SHOWN]]
        more = f"; and {count - len(named):,} more" if count > len(named) else ""
        super().__init__(ResponseCode.INVALID_VALUE, reason, "; ".join(named) + more)
        self.conflicts = conflicts
        """All of them that are kept."""


class UndoPreview:
    """What an undo is about, and what stands in its way; looked at in pieces, as it may be about millions."""

    def __init__(self, registry: Registry, name: str, identity: Identity, most: int | None = None) -> None:
        """`most` is how many obstacles are kept; all, if it is not said.

        Raises `Refused` if there is no such unit that somebody may see, or it was undone already.
        """
        self._registry, self._identity, self._max_conflicts = registry, identity, most
        self.original = runner.find_job(registry, identity, name)
        """What would be undone."""
        undos = runner.UndoIndex.of(registry, self.original.id)
        check_not_undone(undos, self.original.id)
        self._running = undos.running(self.original.id)
        self._past = _JobSteps.of(registry.ledger.log, self.original.id, self._running or "", undos)
        self._remaining = self._past.original.newest_first()
        self._next: tuple[int, ...] = ()
        self.total = 0
        """How many records it is about, of those that were looked at."""
        self.conflict_count = 0
        """How many of these stand in its way."""
        self.conflicts: list[Conflict] = []

    def advance(self) -> bool:
        """Look at `units.CHUNK` entries more; whether some are left."""
        entries = (*self._next, *islice(self._remaining, runner.CHUNK_SIZE - len(self._next)))
        with self._registry.snapshot() as snapshot:
            chunk = runner.Chunk(Context(snapshot, self._identity, "read", self._registry.now()))
            chunk.take(entries, lambda seq: self._check_change(chunk.context, seq))
        self._next = entries[chunk.processed :]
        return len(entries) == runner.CHUNK_SIZE or bool(self._next)

    def _check_change(self, context: Context, seq: int) -> tuple[()]:
        """Look at the change that begins with an entry, if one does."""
        change = _Change.of(context.snapshot.reading, seq, self._past)
        if change is None:
            return ()
        if change.conflict is not None:
            if self._max_conflicts is None or len(self.conflicts) < self._max_conflicts:
                self.conflicts.append(_redact_conflict(context, change.conflict))
            self.conflict_count += 1
        self.total += 1
        return ()

    def begin(self, door: str, note: str = "") -> Job:
        """Begin the undo, or go on with the one that was begun; `run` does it. Raises `Refused`.

        It is not gone on with by whoever may not see it: they could not be told what becomes of it.
        """
        if self.conflict_count:
            raise UndoConflict(self.original.id, self.conflicts, self.conflict_count)
        registry, original = self._registry, self.original.id
        begun = None if self._running is None else jobs.find(registry.ledger.log, self._running)
        if begun is None:
            self._try_first_step(door, note)
            asked: dict[str, object] = {"operation": original}
            begun = runner.start_job(
                registry, KIND, asked, self._identity, door, note, total=self.total, undoes=original
            )
        if not runner.can_see_job(registry, self._identity, begun):
            reason = f"{original} is being undone by {begun.id}, which somebody else began"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "have it gone on with by them, or by who runs the server")
        return begun

    def _try_first_step(self, door: str, note: str) -> None:
        """Decide the first step and do nothing. Raises `Refused`.

        With the beginning of its undo a unit ends, for whoever is at it; so that is not for those who may not undo it.
        """
        wanted = replace(self.original, id="", undoes=self.original.id)
        step = _Step(wanted, tuple(islice(self._past.original.newest_first(), runner.CHUNK_SIZE)), self._past)
        with self._registry.snapshot() as snapshot:
            step.decide(Context(snapshot, self._identity, door, self._registry.now(), note))


def start(registry: Registry, name: str, identity: Identity, door: str, note: str = "") -> Job:
    """Begin to undo a unit, or go on with doing so; `run` does it. Raises `Refused`.

    Everything is looked at beforehand, so that what cannot be undone is left as it is.
    """
    look = UndoPreview(registry, name, identity)
    while look.advance():
        pass
    return look.begin(door, note)


def check_not_undone(undos: runner.UndoIndex, name: str) -> None:
    """Refuse what has been undone, as long as that counts."""
    by = undos.effective_undo(name)
    if by is not None and (again := undos.running(by)) is not None:
        reason = f"{by} is being undone by {again}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, f"go on with that: perseid operations resume {again}")
    if by is not None:
        reason = f"{name} was undone by {by}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, f"to have it again, undo that: perseid undo {by}")


def run(registry: Registry, operation: Job, identity: Identity) -> Iterator[Progress]:
    """Do what is left to do of an undo, newest entries first, in steps of `units.CHUNK`, and yield after each."""
    return runner.skip_unchanged(run_steps(registry, operation, identity))


def run_steps(registry: Registry, operation: Job, identity: Identity) -> Iterator[Progress]:
    """The same in pieces of bounded work, whether or not anything was changed; the first one does nothing yet."""
    past = _JobSteps.of(
        registry.ledger.log, operation.undoes, operation.id, runner.UndoIndex.of(registry, operation.undoes)
    )
    yield Progress(operation.id, len(past.undo), operation.total)
    entries = past.original.newest_first()
    chunk: tuple[int, ...] = ()
    while chunk := (*chunk, *islice(entries, runner.CHUNK_SIZE - len(chunk))):
        step = _Step(operation, chunk, past)
        steps, processed = registry.do(
            step, identity, operation.door, runner.entry_note(operation), job_id=operation.id
        )
        chunk = chunk[processed:]
        past = replace(past, undo=steps)
        yield Progress(operation.id, len(steps), operation.total)
    runner.complete_job(registry, operation)


@dataclass(frozen=True, slots=True)
class _JobSteps:
    """Which entries belong to what."""

    original: JobSteps
    """To the unit that is undone."""
    undo: JobSteps
    """To what undoes it."""
    reverted: JobSteps
    """To earlier undos of it and to what undid these: together they have changed nothing."""

    @classmethod
    def of(cls, log: Log, original: str, undo: str, undos: runner.UndoIndex) -> "_JobSteps":
        reverted = JobSteps([row for name in undos.ended(original) for row in jobs.load_steps(log, name)])
        return cls(jobs.load_steps(log, original), jobs.load_steps(log, undo), reverted)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a unit made of one record."""

    entry: Entry
    """The unit's first entry of the record."""
    before: Entry | None
    """What the record was before it; None if there was none, or it is undone."""
    conflict: Conflict | None
    is_undone: bool

    @classmethod
    def of(cls, reading: LogReader, seq: int, past: _JobSteps) -> "_Change | None":
        """The change that begins with an entry; None if an earlier entry of the unit began it."""
        previous = reading.previous(seq)
        before = reading.entry(previous) if previous and previous not in past.original else None
        if _last_change_before(reading, previous, before) in past.original:
            return None
        entry = reading.entry(seq)
        later: list[int] = []
        at = reading.latest(entry.key)
        while at > seq:
            if at in past.undo:
                return cls(entry, None, None, is_undone=True)
            is_own = at in past.original or at in past.reverted
            # A redaction erases from the past only, and leaves the record as it is.
            if len(later) < MAX_LATER_CHANGES and not is_own and reading.entry(at).action is not Action.REDACT:
                later.append(at)
            if len(later) == MAX_LATER_CHANGES and not past.undo:
                break  # that is enough, and nothing of it can have been undone
            at = reading.previous(at)
        return cls(entry, before, _find_conflict(entry, before, later), is_undone=False)

    @property
    def created_handle(self) -> bool:
        """Whether the name stood for nothing before, and was to stand for something, or be reserved, after that."""
        before = State.ABSENT if self.before is None else self.before.state
        return before is State.ABSENT or (before is State.RESERVED and self.entry.state is not State.RESERVED)


def _last_change_before(reading: LogReader, previous: int, before: Entry | None) -> int:
    """The entry that last changed a record before another one. A redaction leaves it as it is."""
    while before is not None and before.action is Action.REDACT:
        previous = reading.previous(previous)
        before = reading.entry(previous) if previous else None
    return previous


def _redact_conflict(context: Context, conflict: Conflict) -> Conflict:
    """An obstacle as somebody may know it: how often and when a record was changed is for those who see its past."""
    if context.is_allowed(permissions.read(Handle.parse_lenient(conflict.handle))) or context.is_allowed(SEE_ALL):
        return conflict
    return Conflict(conflict.handle, None, "you may not see why")


def _find_conflict(entry: Entry, before: Entry | None, later: list[int]) -> Conflict | None:
    if later:
        of = f"{len(later):,}" if len(later) < MAX_LATER_CHANGES else f"{MAX_LATER_CHANGES:,} or more"
        times = "" if len(later) == 1 else f", the last of {of}"
        return Conflict(entry.handle, later[0], f"changed later, in entry {later[0]}{times}")
    if before is not None and any(slot.is_redacted for slot in before.values):
        return Conflict(entry.handle, before.seq, f"what it held at entry {before.seq} was erased for good")
    return None


@dataclass(frozen=True, slots=True)
class _Step:
    """Undo some entries, as far as one commit takes them."""

    undo: Job
    entries: tuple[int, ...]
    past: _JobSteps

    @property
    def operation(self) -> str:
        """What is undone."""
        return self.undo.undoes

    def decide(self, context: Context) -> Plan[tuple[JobSteps, int]]:
        """For each record what the inverse change takes. Others may be at the same, so their steps count.

        The answer is what has been done then, and of how many entries.
        """
        require_identity(context, f"undo {self.operation}")
        reading = context.snapshot.reading
        steps = self.past.undo.refresh(reading, self.undo.id)
        past = replace(self.past, undo=steps)
        chunk = runner.Chunk(context)
        chunk.take(self.entries, lambda seq: self._drafts(chunk.context, seq, past))
        reason = (context.reasons or [""])[-1]
        drafts = tuple(chunk.drafts)
        return Plan(lambda first: (steps.with_step(first, len(drafts)), chunk.processed), drafts, reason=reason)

    def _drafts(self, context: Context, seq: int, past: _JobSteps) -> tuple[Draft, ...]:
        """The entry that takes back the change that begins with one; none if none does, or it was taken back."""
        change = _Change.of(context.snapshot.reading, seq, past)
        if change is None or change.is_undone:
            return ()
        stored = context.snapshot.stored(Handle.parse_lenient(change.entry.handle))
        if change.conflict is not None:
            raise UndoConflict(self.operation, [_redact_conflict(context, change.conflict)])
        if stored.key != change.entry.key or not context.snapshot.is_responsible(stored.handle):
            why = "its namespace has another case rule now, or is no longer homed here"
            raise UndoConflict(
                self.operation, [_redact_conflict(context, Conflict(change.entry.handle, stored.seq, why))]
            )
        return self._inverse(context, stored, change)

    def _inverse(self, context: Context, stored: StoredRecord, change: _Change) -> tuple[Draft, ...]:
        """The entry that takes a change back; none if there is nothing to take back."""
        if change.created_handle:
            if stored.state in (State.RESERVED, State.TOMBSTONE, State.ABSENT):
                return ()
            return Tombstone(stored.handle, f"made by {self.operation}, which was undone").decide(context).drafts
        before = change.before
        assert before is not None  # noqa: S101 - else the name was made
        wanted = before.record()
        differences = Differences.between(stored.values, wanted)
        if stored.state is before.state and not (differences.added or differences.removed or differences.modified):
            return ()
        for old, new in differences.modified:
            decision = authorize_write(context.identity, stored.handle, old, new)
            if not decision.allowed:
                raise Refused.from_decision(decision)
        needed = differences.permissions | _state_permissions(stored.state, before.state)
        if not stored.exists:
            context.require(permissions.create(stored.handle))
        else:  # where nothing is needed everybody may, but a token takes the words all the same
            needs = ((HasPermissions(needed, str(stored.handle)),),) if needed else ()
            required_scope = RequiredScope.of(
                stored.handle, *differences.scopes, *_state_scopes(stored.state, before.state)
            )
            action = f"undo the change of {display_name(stored.handle)}"
            context.require(Requirement(action, needs, public=not needed, required_scope=required_scope))
        values = compose(context, stored, wanted, creates=not stored.exists, state=before.state)
        return (context.draft(stored, _inverse_action(stored.state, before.state), values, before.state),)


def _state_permissions(now: State, then: State) -> AdminPermission:
    """What it takes to make a name what it was: the same as in `life`."""
    if now is then:
        return AdminPermission(0)
    if State.TOMBSTONE in (now, then):
        return AdminPermission.DELETE_HANDLE | AdminPermission.ADD_VALUE
    return AdminPermission.MODIFY_VALUE


def _state_scopes(now: State, then: State) -> tuple[Scope, ...]:
    """The word that a token needs for it."""
    if now is then:
        return ()
    return (Scope.TOMBSTONE,) if State.TOMBSTONE in (now, then) else (Scope.PUBLISH,)


def _inverse_action(now: State, then: State) -> Action:
    if then is State.TOMBSTONE and now is not then:
        return Action.TOMBSTONE
    if now is State.ABSENT:
        return Action.CREATE
    if State.UNPUBLISHED in (now, then) and now is not then:
        return Action.PUBLISH if now is State.UNPUBLISHED else Action.UNPUBLISH
    return Action.UPDATE
