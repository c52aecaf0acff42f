"""Undo jobs: revert another job with new entries. Nothing is removed from the ledger.

An undo requires the permissions for the inverse changes, under today's policies. Its limits:

- A created handle is not removed: someone may already use it. Its record becomes a tombstone that says why (S8). A
  handle that was only reserved stays reserved.
- Later changes by others are never lost: if there are any, nothing is undone and all of them are listed, unless the
  record was set back to what the job wrote. For a record whose history the caller cannot see, only the conflict itself
  is reported.
- Redacted data does not come back: if any is needed, the record is listed and nothing is undone.

- A prefix that the job hosted is no longer hosted, unless handles were registered under it: they keep resolving.
- `last` is the caller's last change. If that is not a job, nothing is undone: an older job is undone by its id only.

An undo is itself a job: it runs in steps, can be resumed, and can be undone; after that the original job can be undone
again. Starting an undo ends the original job, even if it was unfinished.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import HOMED, LOCAL, key_range
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.records.record import ascending
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_write
from perseid.registry.access.permissions import Differences, HasPermissions, RequiredScope, Requirement, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.composition import compose
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.queries.history import SEE_ALL
from perseid.registry.queries.paging import PageBudget, values_size
from perseid.registry.registry import Registry
from perseid.registry.results import Refused, StateConflict
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.schema.jobs import MAX_UNDONE_SHOWN, UndoneRecord
from perseid.schema.namespaces import Scope
from perseid.wire.codes import OpCode, ResponseCode

from . import runner
from .differences import plan_changes
from .runner import JobRun

KIND: Final = "undo"

UNDONE_REASON: Final = "created by a change that was undone"
"""The public reason of a tombstone. Which job it was is in the note of the entry, for administrators."""

MAX_CONFLICTS_SHOWN: Final = 20
"""Records that a refusal lists; it also gives their total number."""

MAX_LATER_CHANGES: Final = 1_000
"""Later changes of a record that are counted: one is a conflict already, and there can be millions."""

MAX_ENTRIES_AFTER_LAST: Final = 10_000
"""Entries after the last job that are searched for later changes by the caller: some tenths of a second."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a record cannot be reverted."""

    handle: str
    seq: int | None
    """The conflicting entry; None if the caller may not know it."""
    why: str
    changed_later: bool = False
    """Whether a later change is in the way, which can be reverted."""


class UndoConflict(Refused):
    """Nothing was undone, because data would be lost or is already lost."""

    problem_type = "undo-conflict"

    def __init__(self, job_id: str, conflicts: list[Conflict], count: int = 0) -> None:
        """`count` is the total number of conflicts, if there are more than listed."""
        count = max(count, len(conflicts))
        records = "1 record has" if count == 1 else f"{count:,} records have"
        lines = [f"{display_name(each.handle)}: {each.why}" for each in conflicts[:MAX_CONFLICTS_SHOWN]]
        more = f"; and {count - len(lines):,} more" if count > len(lines) else ""
        reason = f"Job {job_id} cannot be undone: {records} conflicting changes: {'; '.join(lines)}{more}"
        first = next((each for each in conflicts if each.changed_later), None)
        advice = None if first is None else AdviceKind.SET_BACK(handle=first.handle)
        super().__init__(ResponseCode.INVALID_VALUE, reason, advice)
        self.conflicts = conflicts


class UndoPreview:
    """The extent of an undo and its conflicts, examined in pieces because a job can cover millions of records."""

    def __init__(self, registry: Registry, name: str, identity: Identity, max_conflicts: int | None = None) -> None:
        """Keep at most `max_conflicts` conflicts; all by default.

        Raises `Refused` if the caller can see no such job, or it was undone already.
        """
        self._registry, self._identity, self._max_conflicts = registry, identity, max_conflicts
        self.original = _find_original(registry, identity, name)
        """The job to undo."""
        undos = runner.UndoIndex.of(registry, self.original.id)
        undos.check_not_undone(self.original.id)
        self._running = undos.running(self.original.id)
        self._past = _JobSteps.of(registry.ledger.log, self.original.id, self._running or "", undos)
        self._remaining = self._past.original.newest_first()
        self._next: tuple[int, ...] = ()
        self.total = 0
        """Affected records among those examined."""
        self.conflict_count = 0
        """How many of them have a conflict."""
        self.tombstones = 0
        """How many of them become tombstones: the job created them."""
        self.reserved = 0
        """How many of them stay reserved: the job reserved them."""
        self.sample: list[UndoneRecord] = []
        """What would change in some of them, as far as the caller can read it."""
        self.refused: Refused | None = None
        """Why the caller cannot undo one of those that were decided for the sample."""
        self._tried = 0
        self._page = PageBudget(MAX_UNDONE_SHOWN)
        self.conflicts: list[Conflict] = []

    def advance(self) -> bool:
        """Examine `CHUNK_SIZE` more entries; return whether some are left."""
        entries = (*self._next, *islice(self._remaining, runner.CHUNK_SIZE - len(self._next)))
        with self._registry.snapshot() as snapshot:
            chunk = runner.Chunk(Context(snapshot, self._identity, "read", self._registry.now(), quiet=True))
            chunk.take(entries, lambda seq: self._check_change(chunk.context, seq))
        self._next = entries[chunk.processed :]
        return len(entries) == runner.CHUNK_SIZE or bool(self._next)

    def _check_change(self, context: Context, seq: int) -> tuple[()]:
        """Examine the change that starts with an entry, if one does."""
        change = _Change.of(context.snapshot.reader, seq, self._past)
        if change is None:
            return ()
        conflict = change.conflict
        if conflict is None and not change.is_undone:
            conflict = _find_other_place(context.snapshot, change.entry)
        if conflict is None and self._tried < MAX_UNDONE_SHOWN:
            self._show_change(context, change)
        if conflict is not None:
            if self._max_conflicts is None or len(self.conflicts) < self._max_conflicts:
                self.conflicts.append(_redact_conflict(context, conflict))
            self.conflict_count += 1
        self.total += 1
        now = context.snapshot.entry(change.entry.key)
        if now is not None and not change.entry.handle.startswith(LOCAL):
            ends = (State.TOMBSTONE,) if change.is_undone else (State.NORMAL, State.UNPUBLISHED)
            self.tombstones += change.created_handle and now.state in ends
            self.reserved += change.created_handle and now.state is State.RESERVED
        return ()

    def _show_change(self, context: Context, change: "_Change") -> None:
        """Add what reverting a change does to the sample, or keep why the caller cannot do it."""
        if change.is_undone or change.entry.handle.startswith(LOCAL):
            return
        stored = context.snapshot.stored(Handle.parse_lenient(change.entry.handle))
        drafts: tuple[Draft, ...] = ()
        try:
            drafts = _revert(context, change)
        except Refused as refused:
            self.refused = self.refused or refused
        can_read = bool(drafts) and context.is_allowed(permissions.read(stored.handle))
        self._tried += 1  # after what can end the chunk before this record
        for draft in drafts if can_read else ():
            if self._page.take(values_size((*stored.values, *draft.values))):
                changes = plan_changes(stored.values, draft.values, can_read=can_read)
                self.sample.append(UndoneRecord(draft.handle, stored.state.label, draft.state.label, changes))

    def start(self, interface: str, note: str = "") -> Job:
        """Start the undo, or continue the one already started; `JobRun` executes it. Raises `Refused`.

        Callers who cannot see the running undo are refused: they could not follow its progress.
        """
        if self.conflict_count:
            raise UndoConflict(self.original.id, self.conflicts, self.conflict_count)
        registry, original = self._registry, self.original.id
        job = None if self._running is None else jobs.find(registry.ledger.log, self._running)
        if job is None:
            if self.refused is not None:
                raise self.refused
            self._try_first_step(interface, note)
            parameters: dict[str, object] = {"operation": original}
            job = runner.start_job(
                registry, KIND, parameters, self._identity, interface, note, total=self.total, undoes=original
            )
        if not runner.can_see_job(registry, self._identity, job):
            reason = f"Job {original} is being undone by job {job.id}, which another user started"
            raise StateConflict(reason, AdviceKind.ASK_JOB_OWNER())
        return job

    def _try_first_step(self, interface: str, note: str) -> None:
        """Decide the first step without doing it. Raises `Refused`.

        Starting an undo ends the original job for everyone, so callers without the permissions must not start one.
        """
        items = tuple(islice(self._past.original.newest_first(), runner.CHUNK_SIZE))
        work = _UndoWork(self.original.id, self._past)
        step = runner.Step(work, replace(self.original, id="", kind=KIND), self._past.undo, items)
        with self._registry.snapshot() as snapshot:
            step.decide(Context(snapshot, self._identity, interface, self._registry.now(), note))


_SINGLE_CHANGE: Final = "to take back a single change, set the earlier values again"


def _find_original(registry: Registry, identity: Identity, name: str) -> Job:
    """Return the job to undo. Raises `Refused`, also if `last` would not be the caller's last change."""
    if "/" in name:
        reason = f"{display_name(name)} is a handle, and only jobs can be undone; {_SINGLE_CHANGE}"
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.SEE_HISTORY(handle=name))
    if name != runner.LAST:
        return runner.find_job(registry, identity, name)
    last = runner.last_own_job(registry, identity)
    if last is None:
        reason = f"You have not started a job; {_SINGLE_CHANGE}"
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.LIST_JOBS())
    if last.undoes and not last.ended_at:
        return runner.find_job(registry, identity, last.undoes)  # to continue its undo
    steps = jobs.load_steps(registry.ledger.log, last.id)
    with registry.snapshot() as snapshot:
        size, end = snapshot.reader.size, next(steps.newest_first(), last.since)
        later = snapshot.reader.log(max(end, size - MAX_ENTRIES_AFTER_LAST), size)
        own = [entry for entry in later if entry.origin and runner.is_own_change(entry.origin[1], identity)]
    if own:
        change = f"{own[-1].action.name.lower()} {display_name(own[-1].handle)}"
        reason = f"Your last change is not a job: entry {own[-1].seq}, {change}"
    elif size - end > MAX_ENTRIES_AFTER_LAST:
        reason = f"More than {MAX_ENTRIES_AFTER_LAST:,} entries are newer than your last job"
    else:
        return last
    raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.UNDO_EARLIER_JOB(job=last.id))


def start(registry: Registry, name: str, identity: Identity, interface: str, note: str = "") -> Job:
    """Start to undo a job, or continue doing so; `JobRun` executes it. Raises `Refused`.

    Everything is checked first, so a job that cannot be undone completely stays unchanged.
    """
    preview = UndoPreview(registry, name, identity)
    while preview.advance():
        pass
    return preview.start(interface, note)


def load_work(registry: Registry, job: Job) -> "_UndoWork":
    """Load the work of an undo job."""
    undos = runner.UndoIndex.of(registry, job.undoes)
    return _UndoWork(job.undoes, _JobSteps.of(registry.ledger.log, job.undoes, job.id, undos))


@dataclass(frozen=True, slots=True)
class _JobSteps:
    """Which entries belong to which job."""

    original: JobSteps
    """The job to undo."""
    undo: JobSteps
    """The undo."""
    reverted: JobSteps
    """Earlier undos of it and the jobs that undid those: together they have no effect."""

    @classmethod
    def of(cls, log: Log, original: str, undo: str, undos: runner.UndoIndex) -> "_JobSteps":
        reverted = JobSteps([row for name in undos.ended(original) for row in jobs.load_steps(log, name)])
        return cls(jobs.load_steps(log, original), jobs.load_steps(log, undo), reverted)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a job did to one record."""

    entry: Entry
    """The job's first entry for the record."""
    before: Entry | None
    """The entry before it; None if there was none, or the change is undone."""
    conflict: Conflict | None
    is_undone: bool

    @classmethod
    def of(cls, reader: LogReader, seq: int, past: _JobSteps) -> "_Change | None":
        """Return the change that starts with an entry; None if an earlier entry of the job started it."""
        previous = reader.previous(seq)
        before = reader.entry(previous) if previous and previous not in past.original else None
        if _last_change_before(reader, previous, before) in past.original:
            return None
        entry = reader.entry(seq)
        later: list[int] = []
        own = 0  # the job's last entry for the record
        at = latest = reader.latest(entry.key)
        while at > seq:
            if at in past.undo:
                return cls(entry, None, None, is_undone=True)
            if at in past.original or at in past.reverted:
                own = own or at
            # A redaction only erases history; the record stays unchanged.
            elif len(later) < MAX_LATER_CHANGES and reader.entry(at).action is not Action.REDACT:
                later.append(at)
            if len(later) == MAX_LATER_CHANGES and not past.undo:
                break  # enough, and no step of the undo is among them
            at = reader.previous(at)
        else:
            own = own or seq
            if later and later[-1] > own and _is_same(reader.entry(latest), reader.entry(own)):
                later = []  # set back to what the job wrote: nothing is lost
        return cls(entry, before, _find_conflict(entry, before, later), is_undone=False)

    @property
    def created_handle(self) -> bool:
        """Whether the job created or reserved the handle."""
        before = State.ABSENT if self.before is None else self.before.state
        return before is State.ABSENT or (before is State.RESERVED and self.entry.state is not State.RESERVED)


def _last_change_before(reader: LogReader, previous: int, before: Entry | None) -> int:
    """Return the entry that last changed a record before another one; redactions do not count."""
    while before is not None and before.action is Action.REDACT:
        previous = reader.previous(previous)
        before = reader.entry(previous) if previous else None
    return previous


def _is_same(one: Entry, other: Entry) -> bool:
    """Whether two entries store the same record, apart from timestamps."""
    if one.state is not other.state or any(slot.is_redacted for slot in (*one.values, *other.values)):
        return False
    contents = [[value.with_timestamp(0) for value in ascending(entry.record())] for entry in (one, other)]
    return contents[0] == contents[1]


def _redact_conflict(context: Context, conflict: Conflict) -> Conflict:
    """Return a conflict as the caller may see it: how often and when a record changed needs access to its history."""
    if context.is_allowed(permissions.read(Handle.parse_lenient(conflict.handle))) or context.is_allowed(SEE_ALL):
        return conflict
    return Conflict(conflict.handle, None, "details withheld: you cannot read its history")


def _find_conflict(entry: Entry, before: Entry | None, later: list[int]) -> Conflict | None:
    if later:
        count = f"{len(later):,}" if len(later) < MAX_LATER_CHANGES else f"{MAX_LATER_CHANGES:,} or more"
        times = "" if len(later) == 1 else f" (the last of {count} changes)"
        return Conflict(entry.handle, later[0], f"changed later, in entry {later[0]}{times}", changed_later=True)
    if before is not None and any(slot.is_redacted for slot in before.values):
        return Conflict(entry.handle, before.seq, f"data of entry {before.seq} was permanently redacted")
    return None


@dataclass(frozen=True, slots=True)
class _UndoWork:
    """Undoes the entries of a job. Requires the permissions for the inverse changes."""

    prepares_ahead: ClassVar[bool] = False
    original_id: str
    past: _JobSteps

    def pages(self, _run: JobRun) -> Iterator[tuple[int, ...]]:
        """Select the entries of the original job, newest first."""
        entries = self.past.original.newest_first()
        while page := tuple(islice(entries, runner.CHUNK_SIZE)):
            yield page

    def decider(self, context: Context, steps: JobSteps) -> Callable[[int], tuple[Draft, ...]]:
        past = replace(self.past, undo=steps)
        return lambda seq: self._drafts(context, seq, past)

    def _drafts(self, context: Context, seq: int, past: _JobSteps) -> tuple[Draft, ...]:
        """Return the entry that reverts the change that starts with `seq`; none if there is none, or it is reverted."""
        change = _Change.of(context.snapshot.reader, seq, past)
        if change is None or change.is_undone:
            return ()
        conflict = change.conflict or _find_other_place(context.snapshot, change.entry)
        if conflict is not None:
            raise UndoConflict(self.original_id, [_redact_conflict(context, conflict)])
        return _revert(context, change)


def _revert(context: Context, change: _Change) -> tuple[Draft, ...]:
    """Return the entry that reverts a change; none if there is nothing to revert."""
    if change.entry.handle.startswith(LOCAL):
        return _revert_hosting(context, change)
    return _revert_record(context, context.snapshot.stored(Handle.parse_lenient(change.entry.handle)), change)


def _revert_record(context: Context, stored: StoredRecord, change: _Change) -> tuple[Draft, ...]:
    if change.created_handle:
        if stored.state in (State.RESERVED, State.TOMBSTONE, State.ABSENT):
            return ()
        return Tombstone(stored.handle, UNDONE_REASON).decide(context).drafts
    before = change.before
    assert before is not None  # noqa: S101 - otherwise the job created the handle
    values_before = before.record()
    differences = Differences.between(stored.values, values_before)
    if stored.state is before.state and not (differences.added or differences.removed or differences.modified):
        return ()
    for old, new in differences.modified:
        decision = authorize_write(context.identity, stored.handle, old, new)
        if not decision.allowed:
            raise Refused.from_decision(decision)
    needed = differences.permissions | _state_permissions(stored.state, before.state)
    if not stored.exists:
        context.require(permissions.create(stored.handle))
    else:  # a token needs its scopes even where no permission is needed
        needs = ((HasPermissions(needed, str(stored.handle)),),) if needed else ()
        required_scope = RequiredScope.of(
            stored.handle, *differences.scopes, *_state_scopes(stored.state, before.state)
        )
        action = f"undo the change of {display_name(stored.handle)}"
        context.require(Requirement(action, needs, public=not needed, required_scope=required_scope))
    values = compose(
        context,
        stored,
        values_before,
        whole=True,  # keeps the metadata that a policy has required since
        creates=not stored.exists,
        state=before.state,
        restored=values_before,
    )
    return (context.draft(stored, _inverse_action(stored.state, before.state), values, before.state),)


def _find_other_place(snapshot: Snapshot, entry: Entry) -> Conflict | None:
    """Return the conflict of a record that moved after a job changed it; None if it is in the same place."""
    if entry.handle.startswith(LOCAL):
        return None
    stored = snapshot.stored(Handle.parse_lenient(entry.handle))
    if stored.key == entry.key and snapshot.is_responsible(stored.handle):
        return None
    partition = snapshot.rules.partition
    if partition is not None and (other := partition.describe_other(stored.handle)):
        return Conflict(entry.handle, stored.seq, f"it belongs to {other}")
    why = "the case rule of its namespace has changed, or its prefix is no longer hosted here"
    return Conflict(entry.handle, stored.seq, why)


def _revert_hosting(context: Context, change: _Change) -> tuple[Draft, ...]:
    """Return the entry that hosts a prefix again or no longer, or does so with its policy; none if that is the case."""
    name, before = change.entry.handle, change.before
    now = context.snapshot.entry(change.entry.key)
    prefix = name.rpartition("/")[2]
    hosts = before is not None and before.state is State.NORMAL
    context.require(permissions.server_operation(OpCode.HOME_NA if hosts else OpCode.UNHOME_NA, prefix))
    if hosts == (now is not None and now.state is State.NORMAL):
        return ()
    if not hosts and context.snapshot.reader.any_between(*key_range(f"{prefix}/")):
        return ()
    if name.startswith(HOMED):
        action = Action.HOME if hosts else Action.UNHOME
    else:
        action = Action.CREATE if hosts else Action.DELETE
    state, values = (State.NORMAL, before.record()) if before is not None and hosts else (State.ABSENT, ())
    return (Draft(action, state, name, context.interface, str(context.identity), context.note, values),)


def _state_permissions(now: State, then: State) -> AdminPermission:
    """Return the permissions needed to restore a state, as in `commands.lifecycle`."""
    if now is then:
        return AdminPermission(0)
    if State.TOMBSTONE in (now, then):
        return AdminPermission.DELETE_HANDLE | AdminPermission.ADD_VALUE
    return AdminPermission.MODIFY_VALUE


def _state_scopes(now: State, then: State) -> tuple[Scope, ...]:
    """Return the scopes that a token needs for it."""
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
