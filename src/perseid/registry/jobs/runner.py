"""Jobs: changes to many records that run in steps and can be watched, resumed and undone.

A kind of job (`rewrite`, `transfer`, `undo`) selects the items of a job and decides on each of them. `JobRun` does the
rest: each step is a commit of at most `CHUNK_SIZE` records, so other writers never wait long, and is recorded as a step
of its job (`perseid.ledger.store.jobs`). An interrupted job keeps what it has done; `resume` does the rest, and `undo`
reverts it with new entries.

The server administrator sees all jobs. Other users see the jobs they started, themselves or with one of their tokens,
however they spell their handle. A token sees only the jobs started with that same token.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from perseid.ledger.log.entry import Draft
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import ChangeJob, EndJob, Job, JobOwner, JobSteps, StartJob, UndoJob
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS, MAX_GROUP_MEMBERS, Decision
from perseid.registry.access.permissions import Requirement, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.minting import retry_until_ready
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Command, Context, Plan
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, handle_key
from perseid.registry.policy import case_rules
from perseid.registry.queries.history import SEE_ALL, is_allowed
from perseid.registry.queries.paging import PageBudget
from perseid.registry.registry import Execution, Registry, check_text
from perseid.registry.results import Refused, StateConflict
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.schema.jobs import JobState
from perseid.wire.codes import ResponseCode

CHUNK_SIZE: Final = 250
"""Records per commit: about 20 ms during which nobody else can write."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes of values after which a commit takes no more records: about 20 ms again."""

MAX_CHUNK_LOOKUPS: Final = MAX_GROUP_LOOKUPS // 2
MAX_CHUNK_MEMBERS: Final = MAX_GROUP_MEMBERS // 2
"""References and group members that one commit may look up for authorization before it takes no more records. The
authorization limits are per record: records that are allowed on their own must not be refused together. `Chunk` also
ends before a record for which too little of the budget is left."""

STEP_PATIENCE: Final = 1.0
"""Seconds that a step which mints waits for the clock; after that it raises `RetryLater` and can be repeated."""

_CANCELED: Final = "canceled"
"""The parameter that a canceled job has in addition."""

_REFUSED: Final = "refused"
"""The parameter that a job has in addition if a refusal stopped it outside a server: who ran it, and the reason."""

LAST: Final = "last"
"""Selects the most recently started job that the caller can see."""

WITHHELD_REASON: Final = "The user who ran the job could not complete it"
"""What others see of the reason, which can reveal permissions."""

_ID_BYTES: Final = 8  # enough to never collide in one installation
_TOKEN_ACTOR: Final = re.compile(r"\Atoken:\S+ by ")  # as `TokenIdentity` is written

T = TypeVar("T")


def start_job(  # noqa: PLR0913 - the fields of a job
    registry: Registry,
    kind: str,
    parameters: dict[str, object],
    identity: Identity,
    interface: str,
    note: str = "",
    *,
    total: int = 0,
    undoes: str = "",
) -> Job:
    """Record the start of a job. Anonymous callers are refused: they could not resume it.

    A job that `undoes` another one ends that one; if an unfinished undo exists, it is returned instead.
    """
    if isinstance(identity, Anonymous):
        reason = "Authentication required to start a job"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, AdviceKind.AUTHENTICATE())
    check_text(note)
    text = msgspec.json.encode(parameters).decode()
    job = Job(
        secrets.token_hex(_ID_BYTES),
        kind,
        text,
        undoes,
        interface,
        str(identity),
        note,
        total=total,
        owner=_owner_name(str(identity)),
    )
    started: Job = registry.ledger.change(StartJob(job))
    return started


def complete_or_discard(registry: Registry, job: Job) -> None:
    """End a job that cannot be resumed, however it went; forget it if it changed nothing."""
    registry.ledger.change(EndJob(job.id, discard=True))


def load_parameters(job: Job) -> dict[str, object]:
    """Decode the job's parameters."""
    parameters = msgspec.json.decode(job.parameters, type=dict[str, object])
    for name in (_CANCELED, _REFUSED):
        parameters.pop(name, None)
    return {"job" if name == "operation" else name: value for name, value in parameters.items()}  # as undos store it


def is_canceled(job: Job) -> bool:
    """Whether a job was canceled; if it was undone later, that counts."""
    return _CANCELED in msgspec.json.decode(job.parameters, type=dict[str, object])


def record_refusal(registry: Registry, job: Job, identity: Identity, refused: Refused) -> None:
    """Keep the reason why an unfinished job stopped, for the user who ran it."""
    parameters = msgspec.json.decode(job.parameters, type=dict[str, object])
    parameters[_REFUSED] = [str(identity), refused.reason]
    registry.ledger.change(ChangeJob(job.id, 0, msgspec.json.encode(parameters).decode(), ended=False))


def find_interruption(job: Job, identity: Identity) -> "JobInterrupted":
    """Return why a job is unfinished that no process of the server runs. Only the user who ran it sees a refusal."""
    refused = msgspec.json.decode(job.parameters, type=dict[str, object]).get(_REFUSED)
    if refused is None:
        return JobInterrupted(job)
    actor, reason = msgspec.convert(refused, tuple[str, str])
    return JobInterrupted(job, reason if is_own_change(actor, identity) else WITHHELD_REASON)


class DeferToNextChunk(Exception):
    """Authorization for a record could not be decided within this commit; the next commit takes it."""


class Chunk:
    """The drafts of one commit, and the limit on how many records it takes.

    Check permissions through its `context`. All records of a chunk share one lookup budget, so a negative result from a
    nearly spent budget is inconclusive: the chunk then ends before that record. For its first record the check is
    repeated with a full budget, because the next commit would get no further.
    """

    def __init__(self, context: Context) -> None:
        self.context: Context = _ChunkContext(
            context.snapshot,
            context.identity,
            context.interface,
            context.now,
            context.note,
            context.reasons,
            quiet=context.quiet,
            chunk=self,
        )
        self.drafts: list[Draft] = []
        self.processed = 0
        """Records or entries handled."""
        self._size = 0

    def take(self, items: Iterable[T], decide: Callable[[T], Iterable[Draft]]) -> bool:
        """Decide items in order; return whether all were taken. The first one always is."""
        for item in items:
            if self.processed and self.is_full:
                return False
            self.processed += 1
            try:
                drafts = tuple(decide(item))
            except DeferToNextChunk:
                self.processed -= 1
                return False
            self.drafts += drafts
            self._size += sum([draft.size for draft in drafts])
        return True

    @property
    def is_full(self) -> bool:
        """Whether the size or the lookups for authorization have reached the limit."""
        usage = self.context.snapshot.usage
        return self._size >= CHUNK_BYTES or usage.lookups > MAX_CHUNK_LOOKUPS or usage.members > MAX_CHUNK_MEMBERS


@dataclass(frozen=True, slots=True)
class _ChunkContext(Context):
    """The context in which the records of a chunk are decided."""

    chunk: Chunk = field(kw_only=True)

    def check(self, requirement: Requirement) -> Decision:
        """Check a requirement. Raises `DeferToNextChunk`."""
        usage = self.snapshot.usage
        was_fresh = not (usage.lookups or usage.members)
        decision = Context.check(self, requirement)
        if decision.allowed or was_fresh or not usage.is_exhausted:
            return decision
        if self.chunk.processed > 1:
            raise DeferToNextChunk
        usage.lookups = usage.members = 0
        return Context.check(self, requirement)


class Work(Protocol[T]):
    """The work of one kind of job."""

    prepares_ahead: ClassVar[bool]
    """Whether the next page and step are prepared while a step is committed: pages do not depend on what the job has
    changed, or end before they would."""

    def pages(self, run: "JobRun") -> Iterator[Sequence[T]]:
        """Select the items to change, at most `CHUNK_SIZE` at a time; a page can be empty. Raises `Refused`."""

    def decider(self, context: Context, steps: JobSteps) -> Callable[[T], Iterable[Draft]]:
        """Return the function that decides on an item; `steps` are the entries of the job so far."""


@runtime_checkable
class StepWork(Work[T], Protocol[T]):
    """The work of a kind of job that has steps of its own, and something to do at the end."""

    def step(self, known: JobSteps, items: Sequence[T], since: int | None) -> Command[tuple[JobSteps, int]]:
        """Return the command that changes the next items; the result is as of `Step`. See `RetryLater` for `since`."""

    def end(self) -> None:
        """Clean up after the job has ended."""


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """A command that changes the next items of a job, as many as fit in one commit."""

    work: Work[T]
    job: Job
    known: JobSteps
    """Steps known to be done."""
    items: Sequence[T]

    def decide(self, context: Context) -> Plan[tuple[JobSteps, int]]:
        """Requires the permissions for each change. The result is all steps, and how many items were handled."""
        require_identity(context, f"{self.job.kind} records")
        steps = self.known.refresh(context.snapshot.reader, self.job.id)  # also those of concurrent runs
        chunk = Chunk(replace(context, quiet=True))
        chunk.take(self.items, self.work.decider(chunk.context, steps))
        drafts, processed = tuple(chunk.drafts), chunk.processed
        reason = context.reasons[-1] if context.reasons else ""
        return Plan(lambda seq: (steps.with_step(seq, len(drafts)), processed), drafts, reason=reason)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that was decided before the one before it was committed."""

    execution: Execution[tuple[JobSteps, int]]
    items: Sequence[Any]

    def is_for(self, items: Sequence[Any]) -> bool:
        """Whether it was decided for these items, which can differ if the step before it was decided again."""
        return len(items) == len(self.items) and items[0] is self.items[0]


class JobRun:
    """A job while it runs, in pieces of bounded work."""

    def __init__(self, registry: Registry, job: Job, identity: Identity) -> None:
        """`identity` runs the job; another one may have started it."""
        self.registry, self.job, self.identity = registry, job, identity
        self.steps = JobSteps()
        self.done = job.done
        """Entries written, including those before an interruption."""
        self.processed = 0
        """Items handled in this run; one can be handled several times."""
        self._work: Work[Any] | None = None
        self._pages: Iterator[Sequence[Any]] | None = None
        self._items: Sequence[Any] = ()
        self._following: Sequence[Any] = ()
        """The next page, if it was needed before its time."""
        self._ahead: _Ahead | None = None

    def advance(self) -> bool:
        """Do the next piece of the work; return whether some may be left. What was done is durable.

        Raises `Refused` at the first record that the caller may not change. After any error it can be called again.
        """
        if not self._items and not self._next_page():
            self.registry.ledger.change(EndJob(self.job.id))
            if isinstance(self._work, StepWork):
                self._work.end()
            return False
        if self._items and self._work is not None:
            steps, processed = retry_until_ready(partial(self._do_step, self._work), None, STEP_PATIENCE)
            self.steps = self.steps.merge(steps)
            self._items = self._items[processed:]
            self.processed += processed
            self.done = len(self.steps)
        return True

    def _do_step(self, work: Work[Any], since: int | None) -> tuple[JobSteps, int]:
        """Change the next items; return all steps, and how many items were handled."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.is_for(self._items):
            execution = ahead.execution
        else:
            execution = self._execution(work, self._items, since)
        try:
            return execution.complete(partial(self._decide_ahead, work, execution))
        except BaseException:
            self._ahead = None
            raise

    def _execution(self, work: Work[Any], items: Sequence[Any], since: int | None) -> Execution[tuple[JobSteps, int]]:
        """Return the execution of a step."""
        step: Command[tuple[JobSteps, int]]
        if isinstance(work, StepWork):
            step = work.step(self.steps, items, since)
        else:
            step = Step(work, self.job, self.steps, items)
        note = f"{self.job.kind} {self.job.id}" + (f": {self.job.note}" if self.job.note else "")
        return self.registry.execution(step, self.identity, self.job.interface, note, job_id=self.job.id)

    def _decide_ahead(self, work: Work[Any], current: Execution[tuple[JobSteps, int]]) -> None:
        """Decide the step after the current one while that is committed; it is sent only if the current one succeeds.

        Whatever fails here is repeated afterwards, and fails there.
        """
        if not work.prepares_ahead or (expected := current.expected) is None:
            return
        items = self._items[expected[1] :]
        try:
            if not items and self._pages is not None and not self._following:
                self._following = next(self._pages, ())
        except Exception:  # noqa: BLE001 - an iterator that raised is finished
            self._pages = None
        if items := items or self._following:
            with suppress(Exception):
                execution = self._execution(work, items, None)
                if execution.decide_ahead():
                    self._ahead = _Ahead(execution, items)

    def _next_page(self) -> bool:
        """Select the next items; return whether there was another page."""
        if self._pages is None:
            self.steps = jobs.load_steps(self.registry.ledger.log, self.job.id)
            self.done = len(self.steps)
            self._work = _kinds()[self.job.kind](self.registry, self.job)
            self._pages = self._work.pages(self)
        if self._following:
            self._items, self._following = self._following, ()
            return True
        try:
            self._items = next(self._pages)
        except StopIteration:
            return False
        except BaseException:
            self._pages = None  # an iterator that raised is finished
            raise
        return True


def resume(registry: Registry, name: str, identity: Identity, interface: str = "") -> JobRun:
    """Return the run that does the rest of an unfinished job. Raises `Refused`.

    The job continues with the permissions and identity of the caller, through `interface` or else the interface that
    started it. An undo checks for conflicts again first.
    """
    from .undo import start as start_undo  # noqa: PLC0415 - it imports this module

    job = reopen(registry, get_unfinished_job(registry, name, identity))
    job = replace(job, interface=interface or job.interface)
    if job.undoes:
        start_undo(registry, job.undoes, identity, job.interface, job.note)
    return JobRun(registry, job, identity)


def reopen(registry: Registry, job: Job) -> Job:
    """Open a canceled job again; others stay unchanged. Raises `StateConflict` if it was undone or ended meanwhile.

    Several requests may open it; the one that claims it runs it.
    """
    if not is_canceled(job):
        return job
    parameters = msgspec.json.decode(job.parameters, type=dict[str, object])
    del parameters[_CANCELED]
    text = msgspec.json.encode(parameters).decode()
    undos = jobs.find_undos(registry.ledger.log, [job.id])
    UndoIndex(undos).check_has_no_undo(job.id)
    if not registry.ledger.change(ChangeJob(job.id, job.ended_at, text, ended=False, undos=tuple(undos))):
        UndoIndex.of(registry, job.id).check_has_no_undo(job.id)
        raise StateConflict(f"Job {job.id} was just resumed by another request", AdviceKind.RESUME_JOB(job=job.id))
    return replace(job, parameters=text, ended_at=0)


def cancel(registry: Registry, name: str, identity: Identity) -> Job:
    """End an unfinished job, wherever it runs: it stops before its next step. What it did remains. Raises `Refused`."""
    from . import import_job  # noqa: PLC0415 - it imports this module

    job = _find_not_undone(registry, name, identity)
    if is_canceled(job):
        advice = AdviceKind.RESUME_JOB(job=job.id) if can_resume(job.kind) else AdviceKind.UNDO_JOB(job=job.id)
        raise StateConflict(f"Job {job.id} is already canceled", advice)
    if job.undoes and not job.ended_at:
        reason = f"Job {job.id} undoes job {job.undoes}; an undo cannot be canceled"
        raise StateConflict(reason, AdviceKind.RESUME_JOB(job=job.id))
    parameters = msgspec.json.decode(job.parameters, type=dict[str, object]) | {_CANCELED: True}
    text = msgspec.json.encode(parameters).decode()
    if job.ended_at or not registry.ledger.change(ChangeJob(job.id, 0, text, ended=True)):
        raise StateConflict(f"Job {job.id} is already complete", AdviceKind.UNDO_JOB(job=job.id))
    if job.kind == import_job.KIND:
        import_job.clean_up_canceled(registry, job)
    return find_job(registry, identity, job.id)


def can_resume(kind: str) -> bool:
    """Whether this kind of job can be resumed."""
    return kind in _kinds()


def _find_not_undone(registry: Registry, name: str, identity: Identity) -> Job:
    """Return a job that is neither undone nor being undone. Raises `Refused`."""
    job = find_job(registry, identity, name)
    UndoIndex.of(registry, job.id).check_has_no_undo(job.id)
    return job


class JobInterrupted(Refused):
    """A job is not complete, and no process of the server runs it."""

    problem_type = "job-failed"

    def __init__(self, job: Job, reason: str = "") -> None:
        """`reason` is that of the refusal which stopped it, if one did."""
        advice = AdviceKind.FIX_AND_RESUME_JOB(job=job.id) if reason else AdviceKind.RESUME_JOB(job=job.id)
        reason = reason or (
            "The server stopped, or the command that ran the job ended, before it was complete; or a command or "
            "another server still runs it"
        )
        super().__init__(ResponseCode.ERROR, reason, advice)


def get_unfinished_job(registry: Registry, name: str, identity: Identity) -> Job:
    """Return a job that can be resumed, also if it was canceled. Raises `Refused`."""
    job = _find_not_undone(registry, name, identity)
    if job.ended_at and not is_canceled(job):
        reason = f"Job {job.id} is already complete"
        raise StateConflict(reason, AdviceKind.LIST_JOBS())
    if not can_resume(job.kind):
        reason = f"A {display_kind(job)} job cannot be resumed"
        raise StateConflict(reason, AdviceKind.REPEAT_OR_UNDO_JOB(job=job.id))
    return job


def display_kind(job: Job) -> str:
    """Return what a job does. Jobs that reserve are stored as those that mint, with a parameter."""
    return "reserve" if job.kind == "mint" and load_parameters(job).get("reserve") else job.kind


def _kinds() -> dict[str, Callable[[Registry, Job], Work[Any]]]:
    """Return how to load the work of each kind of job that can be resumed."""
    from . import grant, import_job, rewrite, transfer, undo  # noqa: PLC0415 - they import this module

    return {
        grant.KIND: grant.load_work,
        import_job.KIND: import_job.load_work,
        rewrite.KIND: rewrite.load_work,
        transfer.KIND: transfer.load_work,
        undo.KIND: undo.load_work,
    }


def list_jobs(registry: Registry, identity: Identity) -> Iterator[Job]:
    """Iterate over the jobs that the caller can see, newest first."""
    return jobs.newest_first(registry.ledger.log, owner=_visible_jobs(registry, identity))


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, newest first."""

    items: tuple[Job, ...]
    last: tuple[int, str] | None
    """Start time and id of the last job, as the cursor for the next page; None if this is the last page."""


def jobs_page(registry: Registry, identity: Identity, before: tuple[int, str] | None, limit: int) -> JobPage:
    """Return the page of visible jobs after the cursor `before`."""
    budget = PageBudget(limit)
    items: list[Job] = []
    for job in jobs.newest_first(registry.ledger.log, before, _visible_jobs(registry, identity), limit + 1):
        if not budget.take(len(job.parameters) + len(job.actor) + len(job.note)):
            return JobPage(tuple(items), (items[-1].started_at, items[-1].id))
        items.append(job)
    return JobPage(tuple(items), None)


def find_job(registry: Registry, identity: Identity, name: str) -> Job:
    """Return a job that the caller can see. Raises `Refused`."""
    owner = _visible_jobs(registry, identity)
    if name == LAST:
        job = next(jobs.newest_first(registry.ledger.log, owner=owner, page_size=1), None)
    else:
        job = jobs.find(registry.ledger.log, name) if name.isascii() and name.isalnum() else None
    if job is None or not (owner is None or owner.owns(job)):
        if name == LAST:
            raise Refused(ResponseCode.HANDLE_NOT_FOUND, "There are no jobs yet")
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, f"Job {display_name(name)} not found", AdviceKind.LIST_JOBS())
    return job


def last_own_job(registry: Registry, identity: Identity) -> Job | None:
    """Return the most recent job that the caller started, themselves or with one of their tokens."""
    owner = JobOwner(str(identity), _owner_names(identity))
    return next(jobs.newest_first(registry.ledger.log, owner=owner, page_size=1), None)


def can_see_job(registry: Registry, identity: Identity, job: Job) -> bool:
    """Whether the caller can see a job."""
    owner = _visible_jobs(registry, identity)
    return owner is None or owner.owns(job)


def is_own_job(job: Job, identity: Identity) -> bool:
    """Whether the caller started a job, themselves or with one of their tokens."""
    return JobOwner(str(identity), _owner_names(identity)).owns(job)


def is_own_change(actor: str, identity: Identity) -> bool:
    """Whether the caller is the actor of an entry, themselves or with one of their tokens."""
    return actor == str(identity) or _owner_name(actor) in _owner_names(identity)


def last_changed_seq(snapshot: Snapshot, stored: StoredRecord, job: Job, steps: JobSteps) -> int:
    """Return the job's last entry for a record, even if others changed it later; 0 if there is none."""
    for entry in case_rules.history(snapshot, stored) if stored.seq > job.since else ():
        if entry.seq <= job.since:
            return 0
        if entry.seq in steps:
            return entry.seq
    return 0


class UndoIndex:
    """Which jobs undo which, and whether they are in effect: an undo can itself be undone."""

    def __init__(self, undos: Iterable[UndoJob]) -> None:
        self._by: dict[str, list[UndoJob]] = {}
        for each in undos:
            self._by.setdefault(each.undoes, []).append(each)
        ids = {name: [each.id for each in undoing] for name, undoing in self._by.items()}
        self._is_effective: dict[str, bool] = {}
        for name in TopologicalSorter(ids).static_order():
            self._is_effective[name] = self.effective_undo(name) is None

    @classmethod
    def of(cls, registry: Registry, *names: str) -> Self:
        """Load the undos of some jobs, transitively."""
        return cls(jobs.find_undos(registry.ledger.log, names) if names else ())

    @classmethod
    def all(cls, registry: Registry) -> Self:
        """Load all undos."""
        return cls(jobs.list_undos(registry.ledger.log))

    def effective_undo(self, name: str) -> str | None:
        """Return the job that undid this one and was not undone itself."""
        return next((each.id for each in self._by.get(name, ()) if each.ended and self._is_effective[each.id]), None)

    def running(self, name: str) -> str | None:
        """Return the job that is undoing this one."""
        return next((each.id for each in self._by.get(name, ()) if not each.ended), None)

    def check_has_no_undo(self, name: str) -> None:
        """Refuse a job that is undone or being undone at present."""
        if (by := self.running(name)) is not None:
            reason = f"Job {name} is being undone by job {by}"
            raise StateConflict(reason, AdviceKind.RESUME_JOB(job=by))
        self.check_not_undone(name)

    def check_not_undone(self, name: str) -> None:
        """Refuse a job that is undone at present."""
        by = self.effective_undo(name)
        if by is not None and (again := self.running(by)) is not None:
            reason = f"Job {by} is being undone by job {again}"
            raise StateConflict(reason, AdviceKind.RESUME_JOB(job=again))
        if by is not None:
            reason = f"Job {name} was undone by job {by}"
            raise StateConflict(reason, AdviceKind.REDO_JOB(job=by))

    def state(self, job: Job, *, is_running: bool = False) -> JobState:
        """Return the state of a job; `is_running` says whether a process of the server runs it."""
        if self.running(job.id):
            return JobState.BEING_UNDONE
        if self.effective_undo(job.id):
            return JobState.UNDONE
        if job.ended_at:
            return JobState.CANCELED if is_canceled(job) else JobState.DONE
        return JobState.RUNNING if is_running else JobState.UNFINISHED

    def ended(self, name: str) -> list[str]:
        """Return all finished undos of this job, transitively. If none is in effect, they cancel each other out."""
        ended: list[str] = []
        pending = [name]
        while pending:
            ids = [each.id for each in self._by.get(pending.pop(), ()) if each.ended]
            ended += ids
            pending += ids
        return ended


def _visible_jobs(registry: Registry, identity: Identity) -> JobOwner | None:
    """Return which jobs the caller can see; None for all."""
    with registry.snapshot() as snapshot:
        if is_allowed(snapshot, identity, SEE_ALL):
            return None
    return JobOwner(str(identity), _owner_names(identity))


def _owner_name(actor: str) -> str:
    """Return the name that owns what an actor did: the issuer of a token, the same for every spelling of its handle."""
    issuer = _TOKEN_ACTOR.sub("", actor)
    index, _, handle = issuer.partition(":")
    return f"{index}:{handle_key(handle)}" if index.isdecimal() else issuer


def _owner_names(identity: Identity) -> tuple[str, ...]:
    """Return the names under which an identity owns jobs; none for a token, whose jobs name the token itself.

    An identity without a key index is known by the key that verified it, but issues tokens without an index.
    """
    if isinstance(identity, KeyIdentity):
        return tuple(
            {_owner_name(str(identity)): None, f"{identity.index}:{handle_key(identity.reference.handle)}": None}
        )
    return (str(identity),) if isinstance(identity, LocalIdentity) else ()
