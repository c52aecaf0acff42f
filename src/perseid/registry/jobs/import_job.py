"""Import jobs: apply the valid rows of a file, in their order, each once.

The rows are in the spool (`spool`), where `import_check` has put them. A step changes the records of some rows, and the
note of each entry has the line of its row: the last entry of the job tells where to continue. Entries belong to a job
only if a commit of the job wrote them, so a note is as reliable as the entry itself. Lines ascend, and the rows of one
step are committed together, so a row is never applied twice, also if several processes run the job.

A handle is minted inside the commit, and there the position is read, too (`MintRows`).

What the check decided for a new record is used as long as it holds (`import_decisions`); other rows are decided again.
A row that is refused although it was valid before, because somebody was faster, stops the job; it can be resumed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from typing import ClassVar, Final

import msgspec

from perseid.ledger.log.entry import Draft
from perseid.ledger.log.reader import LogReader
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.names.errors import InvalidName
from perseid.names.handle import fold
from perseid.records.record import Value
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Deferrable, Plan, Stage, defer
from perseid.registry.identity import Identity
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidRequest, Refused, StateConflict
from perseid.schema.imports import ImportRow, ImportState, RowOperation, RowOptions, has_changes
from perseid.wire.codes import ResponseCode

from . import runner
from .import_decisions import SpooledRow, apply_decision, is_unchanged
from .import_rows import build_mint, decide_row
from .runner import DeferToNextChunk, JobRun
from .spool import Spool, SpooledImport

KIND: Final = "import"

ROWS_PER_STEP: Final = 500
"""Rows of one commit: twice as many as other jobs change, because a new record costs less than a changed one."""

_LINE: Final = re.compile(r"import [0-9a-z]+, line ([0-9]+)(?:: |\Z)")
_decode_row = msgspec.json.Decoder(SpooledRow).decode


class _Line(msgspec.Struct):
    """The beginning of a row, to find the first one that is left."""

    line: int


_decode_line = msgspec.json.Decoder(_Line).decode


class AlreadyMinted(StateConflict):
    """The handles of a file were minted before."""


def start(
    registry: Registry,
    spooled: SpooledImport,
    identity: Identity,
    interface: str,
    note: str = "",
    check: int | None = None,
) -> Job:
    """Start the import of the valid rows, once; `JobRun` executes it. Raises `Refused`.

    `check` is the number of the check whose result the caller has seen; None if that does not matter.
    """
    with spooled.claim(), Spool(spooled.path.parent).lock():  # so that of two equal files one is minted
        record = spooled.record
        if record.state is ImportState.STARTED:  # the response may have been lost
            raise StateConflict(f"Import {record.id} was started before, as job {record.job}", AdviceKind.LIST_JOBS())
        if record.state is not ImportState.READY:
            state = f"in the state {record.state.value}"
            raise StateConflict(f"Import {record.id} cannot be started: it is {state}", AdviceKind.IMPORT_AGAIN())
        if check not in (None, record.checks):
            raise StateConflict(f"The file of import {record.id} was checked again", AdviceKind.SHOW_IMPORT())
        if not has_changes(record.outcomes):
            raise StateConflict(f"Import {record.id} changes nothing: all rows are unchanged or skipped")
        if record.mint and not record.mint_again:
            check_not_minted(registry, identity, record.sha256, record.prefix)
        options = msgspec.to_builtins(record.options)
        parameters: dict[str, object] = {"file": record.name, "sha256": record.sha256, "import": record.id, **options}
        if record.mint:
            parameters |= {"mint": True, "prefix": record.prefix}
        if record.invalid:
            parameters["skipped_rows"] = record.invalid
        job = runner.start_job(registry, KIND, parameters, identity, interface, note, total=record.valid)
        spooled.update(state=ImportState.STARTED, job=job.id)
    return job


def check_not_minted(registry: Registry, identity: Identity, sha256: str, prefix: str) -> None:
    """Refuse a file whose handles were minted before: its rows would have two handles each.

    Of a job that the caller cannot see, only one under the same prefix matters, and nothing but that is told.
    """
    for job in jobs.newest_first(registry.ledger.log, kind=KIND):
        parameters = runner.load_parameters(job)
        if not parameters.get("mint") or parameters.get("sha256") != sha256:
            continue
        if runner.UndoIndex.of(registry, job.id).effective_undo(job.id) is not None:
            continue
        if not runner.can_see_job(registry, identity, job):
            is_same = _namespace_of(str(parameters.get("prefix", prefix))) == _namespace_of(prefix)
            if is_same and (job.done or not job.ended_at):
                reason = "Handles were minted for this file before, by a job that you cannot see"
                raise AlreadyMinted(reason, AdviceKind.CONFIRM_MINT())
            continue
        if not job.ended_at:
            reason = f"Job {job.id} has minted the first {job.done:,} of {job.total:,} rows of this file"
            raise AlreadyMinted(reason, AdviceKind.RESUME_JOB(job=job.id))
        if job.done:
            reason = f"Job {job.id} has minted handles for this file already, {job.done:,} in all"
            raise AlreadyMinted(reason, AdviceKind.MINT_AGAIN(job=job.id))


def check_not_unfinished(registry: Registry, identity: Identity, sha256: str) -> None:
    """Refuse a file that an unfinished job imports: each row that it has applied would be a problem."""
    for job in jobs.newest_first(registry.ledger.log, kind=KIND):
        if job.ended_at or not job.done or runner.load_parameters(job).get("sha256") != sha256:
            continue
        if not runner.can_see_job(registry, identity, job):
            continue
        if runner.UndoIndex.of(registry, job.id).effective_undo(job.id) is None:
            reason = f"Job {job.id} has imported a part of this file, {job.done:,} of {job.total:,} rows"
            raise StateConflict(reason, AdviceKind.RESUME_JOB(job=job.id))


def advise_repeated(registry: Registry, identity: Identity, sha256: str) -> Advice | None:
    """Advise about a file that the newest job that the caller can see has imported; None if there is no such job."""
    for job in jobs.newest_first(registry.ledger.log, kind=KIND):
        parameters = runner.load_parameters(job)
        is_same = parameters.get("sha256") == sha256 and not parameters.get("mint")
        if is_same and job.done and runner.can_see_job(registry, identity, job):
            undo = runner.UndoIndex.of(registry, job.id).effective_undo(job.id)
            return AdviceKind.UPDATE_IMPORTED(job=job.id) if undo is None else AdviceKind.REDO_IMPORT(job=undo)
    return None


def _namespace_of(prefix: str) -> str:
    """Return what all spellings of the namespace in which a file is minted share."""
    return fold(prefix.partition("/")[0])


def find_spooled(registry: Registry, job: Job) -> SpooledImport | None:
    """Find the files of a job; None if they are gone."""
    name = str(runner.load_parameters(job).get("import", ""))
    return None if registry.spool is None else Spool(registry.spool).find(name)


def minted_rows(registry: Registry, job: Job) -> Iterator[tuple[int, str]]:
    """Yield the line and the handle of each row that a job has changed, in the order of the lines."""
    for first, count in jobs.load_steps(registry.ledger.log, job.id):
        with registry.ledger.open_reader() as reader:
            entries = [*reader.log(first - 1, first + count - 1)]
        for entry in entries:
            if (line := _line_of(entry.why)) is not None:
                yield line, entry.handle


def load_work(registry: Registry, job: Job) -> "_ImportWork":
    """Load the work of an import job. Raises `Refused` if its rows are gone."""
    spooled = find_spooled(registry, job)
    if spooled is None or not spooled.rows.exists():
        reason = f"The rows of job {job.id} are no longer in the spool of this installation"
        raise StateConflict(reason, AdviceKind.UNDO_JOB(job=job.id))
    if spooled.record.canceled:
        spooled.update(canceled=False)
    parameters = runner.load_parameters(job)
    return _ImportWork(spooled, job, msgspec.convert(parameters, RowOptions))


def clean_up_canceled(registry: Registry, job: Job) -> None:
    """Delete the uploaded file of a canceled job, and its rows after a day."""
    spooled = find_spooled(registry, job)
    if spooled is not None:
        with suppress(FileNotFoundError):  # the job has just ended, and has deleted everything
            spooled.cancel()


def _line_of(note: str | None) -> int | None:
    """Return the line in the note of an entry of a job."""
    found = None if note is None else _LINE.match(note)
    return None if found is None else int(found[1])


def find_position(reader: LogReader, steps: JobSteps) -> int:
    """Return the line of the last row that a job has applied; 0 if there is none. Raises `Refused`."""
    last = next(steps.newest_first(), 0)
    if not last:
        return 0
    line = _line_of(reader.entry(last).why)
    if line is None:
        reason = f"The note of entry {last}, which says how far the import has come, was redacted"
        raise StateConflict(reason, AdviceKind.LIST_JOBS())
    return line


def _with_line(note: str, line: int) -> str:
    """Return the note of a job's entries with the line of a row."""
    job, colon, rest = note.partition(": ")
    return f"{job}, line {line}{colon}{rest}"


def name_line(problem: Refused | InvalidName, line: int) -> Refused:
    """Return the refusal of a row with its line."""
    if isinstance(problem, InvalidName):
        refused: Refused = InvalidRequest(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule)
    else:
        refused = problem
    refused.locate(f"Line {line}")
    if refused.advice is not None and refused.advice.kind is AdviceKind.CHOOSE_ON_EXISTING:
        refused.advice = AdviceKind.IMPORT_WITH_ON_EXISTING()  # this job keeps its rows and options
    return refused


@dataclass(frozen=True, slots=True)
class _ImportWork:
    """Applies rows. Requires the permissions for each change."""

    prepares_ahead: ClassVar[bool] = True
    spooled: SpooledImport
    job: Job
    options: RowOptions

    def pages(self, run: JobRun) -> Iterator[list[SpooledRow]]:
        """Read the rows that are left; rows to mint are never on one page with others."""
        with run.registry.snapshot() as snapshot:
            position = find_position(snapshot.reader, run.steps)
        with self.spooled.rows.open("rb") as file:
            lines = (line for line in file if _decode_line(line).line > position)
            while page := [*map(_decode_row, islice(lines, ROWS_PER_STEP))]:
                for _, rows in groupby(page, _mint_key):
                    yield [*rows]

    def step(self, known: JobSteps, items: Sequence[SpooledRow], since: int | None) -> "ImportStep":
        """Return the command that applies the next rows."""
        return ImportStep(self, self.job, known, items, since)

    def decider(self, context: Context, steps: JobSteps) -> Callable[[SpooledRow], tuple[Draft, ...]]:
        position = find_position(context.snapshot.reader, steps)
        changed: set[bytes] = set()
        is_decided = is_unchanged(self.spooled.record.basis, context)

        def decide(row: SpooledRow) -> tuple[Draft, ...]:
            """Return the entries of a row; one that depends on an earlier row of the same step is left for the next."""
            if row.line <= position:
                return ()
            note = _with_line(context.note, row.line)
            if is_decided and row.decision is not None:
                draft = apply_decision(context, row.decision, note)
                if draft is not None and draft.key not in changed:
                    if not context.reasons:
                        context.reasons.append("decided when the file was checked")
                    changed.add(draft.key)
                    return (draft,)
            try:
                drafts = decide_row(context, row, self.options).drafts
            except (Refused, InvalidName) as problem:
                if changed:
                    raise DeferToNextChunk from problem
                raise name_line(problem, row.line) from problem
            keys = {draft.key for draft in drafts}
            if not changed.isdisjoint(keys):
                raise DeferToNextChunk
            changed.update(keys)
            return tuple([draft.with_note(note) for draft in drafts])

        return decide

    def end(self) -> None:
        """Delete the rows."""
        self.spooled.end()


def _mint_key(row: ImportRow) -> tuple[str, str] | None:
    """Rows with the same key are minted together."""
    return (row.handle, row.state) if row.operation is RowOperation.MINT else None


@dataclass(frozen=True, slots=True)
class MintedRows:
    """The result of `MintRows`."""

    seq: int
    """The first entry; 0 if there is none."""
    minted: int
    processed: int
    """Rows minted now, and rows that another process has minted."""


@dataclass(frozen=True, slots=True)
class MintRows(Deferrable):
    """Mint handles for rows, inside the commit."""

    job: str
    after: int
    """The entry up to which the steps of the job are known."""
    position: int
    """The line of the last row that was applied by then."""
    where: str
    lines: tuple[int, ...]
    each: tuple[tuple[Value, ...], ...]
    reserve: bool
    published: bool
    since: int | None = None
    """When the first attempt was made; see `RetryLater`."""

    def decide(self, context: Context) -> Plan[MintedRows]:
        """As for `Mint`, without the rows that another process has minted meanwhile."""
        if context.stage is not Stage.COMMIT:
            return defer(self)
        reader = context.snapshot.reader
        steps = JobSteps(reader.steps(self.job, self.after))
        position = find_position(reader, steps) if steps else self.position
        done = sum(line <= position for line in self.lines)
        lines = self.lines[done:]
        if not lines:
            return Plan(lambda _: MintedRows(0, 0, done))
        command = Mint(
            self.where,
            len(lines),
            since=self.since,
            each=self.each[done:],
            lines=lines,
            reserve=self.reserve,
            published=self.published,
        )
        plan = command.decide(context)
        drafts = tuple(
            [draft.with_note(_with_line(context.note, line)) for draft, line in zip(plan.drafts, lines, strict=False)]
        )
        return Plan(lambda seq: MintedRows(seq, len(drafts), done + len(drafts)), drafts, reason=plan.reason)


@dataclass(frozen=True, slots=True)
class ImportStep:
    """A command that applies the next rows, as many as fit in one commit."""

    work: _ImportWork
    job: Job
    known: JobSteps
    items: Sequence[SpooledRow]
    since: int | None = None

    def decide(self, context: Context) -> Plan[tuple[JobSteps, int]]:
        """Requires the permissions for each change. The result is all steps, and how many rows were handled."""
        if _mint_key(self.items[0]) is None:
            context.snapshot.prefetch(row.handle for row in self.items)
            return runner.Step(self.work, self.job, self.known, self.items).decide(context)
        require_identity(context, "import records")
        reader = context.snapshot.reader
        steps = self.known.refresh(reader, self.job.id)
        where = self.items[0].handle
        try:
            command = build_mint(context.snapshot.policy(where.partition("/")[0]), self.items)
        except Refused as refused:
            raise name_line(refused, self.items[0].line) from refused
        deferred = MintRows(
            self.job.id,
            steps.until,
            find_position(reader, steps),
            where,
            tuple([row.line for row in self.items]),
            command.each,
            command.reserve,
            command.published,
            self.since,
        )
        plan: Plan[MintedRows] = context.decide(deferred)
        return plan.map(lambda done: (steps.with_step(done.seq, done.minted), done.processed))
