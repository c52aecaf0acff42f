"""Migration jobs: store the records of another server as they are.

Another server has accepted these records, and others rely on them. So a migrated record is kept byte for byte: handle,
values, permissions, TTLs, timestamps and references. Neither today's rules for new handles nor the policy of the
namespace apply; they do to every later change. Only server administrators can migrate records.

What was changed here since is never overwritten or deleted without the caller's consent: a record belongs to the
migration while its latest entry does. Such a record is a conflict, which is reported.

The source of a migration is not part of the installation, so a job cannot be resumed from here: the command is
repeated, continues the unfinished job, and stores only what differs.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from perseid.ledger.log.entry import IMPORT, Action, Draft, Entry, State, find_oversized
from perseid.ledger.log.record_keys import key_range, record_key
from perseid.ledger.store.jobs import EndJob, Job
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle, fold
from perseid.records.binary import MAX_BYTES
from perseid.records.record import MAX_VALUES, Value, ascending
from perseid.registry.access.permissions import HasRole, RequiredScope, Requirement, Role, display_name
from perseid.registry.commands.namespaces import policy_draft
from perseid.registry.commands.records import Home
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Policy
from perseid.registry.registry import Registry
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.schema.namespaces import Scope

from . import runner

KIND: Final = "migrate"

STEP_SIZE: Final = 500
"""Records of one commit, which takes some hundredths of a second: others write in between."""

STEP_BYTES: Final = 2 << 20
"""Bytes of values after which a commit takes no more records."""

MAX_SOURCE_LENGTH: Final = 300
"""Characters of the name of a source in notes and jobs."""

_DIGEST_LENGTH: Final = 16
_NOTE_START: Final = "migrated from "
_PREFIX_HANDLE: Final = f"{PREFIX_OF_PREFIXES}/"

_MIGRATE: Final = Requirement(
    "migrate records", ((HasRole((Role.SERVER,)),),), required_scope=RequiredScope.for_server(Scope.CREATE, Scope.ADMIN)
)


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record of another server."""

    handle: str
    values: tuple[Value, ...] | None
    """None if the record was deleted there."""
    state: State = State.NORMAL

    @property
    def size(self) -> int:
        """Bytes of data, approximately."""
        return sum([len(value.data) for value in self.values or ()])


class Outcome(StrEnum):
    """What became of a record of the source."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"
    """It was changed here, so it stays as it is here."""
    REJECTED = "rejected"
    """It cannot be stored."""


@dataclass(frozen=True, slots=True)
class MigrationProblem:
    """A record or prefix that was not migrated, and why."""

    handle: str
    outcome: Outcome
    reason: str
    is_nameless: bool = False
    """Whether the source does not tell the handle: there is a line of a file in its place."""


@dataclass(slots=True)
class MigrationCounts:
    """What became of the records of the source."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    conflicts: int = 0
    rejected: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count a record."""
        name = "conflicts" if outcome is Outcome.CONFLICT else outcome.value
        setattr(self, name, getattr(self, name) + 1)

    @property
    def has_changes(self) -> bool:
        """Whether anything was stored or deleted."""
        return bool(self.created or self.updated or self.deleted)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """Where the record of a source belongs in the ledger, and what is there."""

    name: str
    key: bytes
    exact: bool
    entry: Entry | None

    @property
    def exists(self) -> bool:
        return self.entry is not None and self.entry.state is not State.ABSENT

    @property
    def is_migrated(self) -> bool:
        """Whether the record is as a migration left it, or never existed."""
        return self.entry is None or is_migrated(self.entry)

    def has(self, contents: list[bytes], state: State) -> bool:
        """Whether the record has exactly these values, and this state."""
        return self.entry is not None and self.entry.state is state and self.entry.contents() == contents


def is_migrated(entry: Entry, source: str | None = None) -> bool:
    """Whether an entry was written by a migration, from this source if one is given."""
    if entry.origin is None or entry.origin[0] != IMPORT or entry.why is None:
        return False
    return entry.why.startswith(_NOTE_START) if source is None else entry.why == make_note(source)


def get_source(entry: Entry) -> str | None:
    """The source that a migrated entry is from, as its note names it; None if no migration wrote it."""
    return entry.why.removeprefix(_NOTE_START) if entry.why is not None and is_migrated(entry) else None


def make_note(source: str) -> str:
    """The note of the entries of a migration."""
    return _NOTE_START + _shorten(source)


def _shorten(source: str) -> str:
    """Shorten the name of a source, or escape it, so that different ones stay different."""
    if len(source) <= MAX_SOURCE_LENGTH and source.isprintable():
        return source
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{quote_text(source)} {digest[:_DIGEST_LENGTH]}"


class CannotBeStored(Exception):
    """A record has no place in the ledger. The message says why."""


def find_record(snapshot: Snapshot, name: str) -> FoundRecord:
    """Find the record of a handle, spelled as another server has it. Raises `CannotBeStored` and `Refused`."""
    exact = _is_exact(snapshot, name)
    key = record_key(name, exact=exact)
    return FoundRecord(name, key, exact, snapshot.entry(key, new=True))


def find_key(snapshot: Snapshot, name: str) -> bytes:
    """Return the key of a record, without reading it. Raises `CannotBeStored` and `Refused`."""
    return record_key(name, exact=_is_exact(snapshot, name))


def _is_exact(snapshot: Snapshot, name: str) -> bool:
    """Whether the suffix of a handle is case-sensitive here."""
    try:
        handle = Handle.parse_lenient(name)
    except InvalidName as problem:
        raise CannotBeStored(str(problem)) from problem
    if fold(handle.prefix) == SITE_PREFIX:
        raise CannotBeStored(f"{SITE_PREFIX} is reserved for the installation")
    return snapshot.policy(handle.prefix).case is CaseRule.SENSITIVE and not handle.is_prefix_handle


def encode_values(values: Iterable[Value]) -> list[bytes]:
    """Encode the values of a record by ascending index. Raises `CannotBeStored`."""
    ordered = ascending(values)
    if len(ordered) > MAX_VALUES:
        raise CannotBeStored(f"it has more than {MAX_VALUES:,} values, which no client can read")
    if len({value.index for value in ordered}) < len(ordered):
        raise CannotBeStored("two of its values have the same index")
    contents = [value.to_bytes() for value in ordered]
    if find_oversized(contents):
        raise CannotBeStored(f"a value has more than {MAX_BYTES:,} bytes")
    return contents


def describe_other_server(snapshot: Snapshot, name: str) -> str:
    """The other server of this site that a handle belongs to; empty if there is none."""
    partition = snapshot.rules.partition
    try:
        return "" if partition is None else partition.describe_other(Handle.parse_lenient(name))
    except InvalidName:
        return ""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """What one commit of a migration did."""

    outcomes: tuple[Outcome, ...]
    """Of each record, in their order."""
    problems: tuple[MigrationProblem, ...]


@dataclass(frozen=True, slots=True)
class Migrate:
    """Store records of another server as they are, and delete those that it deleted."""

    records: tuple[SourceRecord, ...]
    overwrite: bool = False
    """Whether records that were changed here are overwritten."""

    def decide(self, context: Context) -> Plan[MigrationStep]:
        """Require a server administrator. Records that cannot be stored are part of the result."""
        context.require(_MIGRATE)
        drafts: dict[bytes, Draft] = {}
        outcomes: list[Outcome] = []
        problems: list[MigrationProblem] = []
        for record in self.records:
            try:
                outcome, draft = self._decide_record(context, record)
                if draft is not None and draft.key in drafts:
                    raise CannotBeStored(f"it is the same handle here as {display_name(drafts[draft.key].handle)}")
            except CannotBeStored as problem:
                outcome, draft = Outcome.REJECTED, None
                problems.append(MigrationProblem(record.handle, outcome, str(problem)))
            if outcome is Outcome.CONFLICT:
                problems.append(MigrationProblem(record.handle, outcome, "it was changed here since it was migrated"))
            if draft is not None:
                drafts[draft.key] = draft
            outcomes.append(outcome)
        step = MigrationStep(tuple(outcomes), tuple(problems))
        return Plan(lambda _: step, tuple(drafts.values()), reason=context.reasons[-1])

    def _decide_record(self, context: Context, record: SourceRecord) -> tuple[Outcome, Draft | None]:
        found = find_record(context.snapshot, record.handle)
        contents = None if record.values is None else encode_values(record.values)
        if contents is not None and (other := describe_other_server(context.snapshot, record.handle)):
            raise CannotBeStored(f"it belongs to {other}")
        if found.has(contents, record.state) if contents is not None else not found.exists:
            return Outcome.UNCHANGED, None
        if not found.is_migrated and not self.overwrite:
            return Outcome.CONFLICT, None
        name = found.entry.handle if found.exists and found.entry is not None else found.name
        action, state = Action.UPDATE if found.exists else Action.CREATE, record.state
        if contents is None:
            action, state = Action.DELETE, State.ABSENT
        draft = Draft(action, state, name, context.interface, str(context.identity), context.note, exact=found.exact)
        return _OUTCOMES[action], draft if contents is None else replace(draft, values=ascending(record.values or ()))


_OUTCOMES: Final = {
    Action.CREATE: Outcome.CREATED,
    Action.UPDATE: Outcome.UPDATED,
    Action.DELETE: Outcome.DELETED,
}


@dataclass(frozen=True, slots=True)
class HostMigrated:
    """Host a prefix of another server, with a policy if it has none here."""

    name: str
    """As the other server has it: `0.NA/12345`, a bare prefix, or a marker `0.NA/0.NA/12345`."""
    policy: Policy

    def decide(self, context: Context) -> Plan[bool]:
        """As `Home`. The result is whether the prefix is new here."""
        drafts = Home(self.name).decide(context).drafts
        prefix = self.name.rpartition("/")[2]
        if len(drafts) > 1:  # with the default policy
            drafts = (drafts[0], policy_draft(context, prefix, self.policy, Action.CREATE))
        return Plan(lambda _: bool(drafts), drafts, reason=context.reasons[-1])


def start(registry: Registry, source: str, identity: Identity, note: str = "") -> Job:
    """Start a migration job, or continue the unfinished one of the same source. Raises `Refused`."""
    shown = _shorten(source)
    for job in runner.list_jobs(registry, identity):
        if job.kind == KIND and not job.ended_at and runner.load_parameters(job).get("source") == shown:
            return job
    return runner.start_job(registry, KIND, {"source": shown}, identity, IMPORT, note)


def end(registry: Registry, job: Job) -> None:
    """End a migration job; forget it if it changed nothing."""
    registry.ledger.change(EndJob(job.id, discard=True))


def do_step(
    registry: Registry, job: Job, source: str, records: tuple[SourceRecord, ...], identity: Identity, *, overwrite: bool
) -> MigrationStep:
    """Store some records, in one commit. Raises `Refused`.

    Prefix handles have a commit of their own, outside the job: they cannot become tombstones, so no undo could end.
    """
    note = make_note(source)
    prefix_handles = tuple([record for record in records if _is_prefix_handle(record.handle)])
    others = (
        tuple([record for record in records if not _is_prefix_handle(record.handle)]) if prefix_handles else records
    )
    step = MigrationStep((), ())
    for part, job_id in ((prefix_handles, ""), (others, job.id)):
        if part:
            done = registry.do(Migrate(part, overwrite), identity, IMPORT, note, job_id=job_id)
            step = MigrationStep((*step.outcomes, *done.outcomes), (*step.problems, *done.problems))
    return step


def _is_prefix_handle(name: str) -> bool:
    return fold(name[: len(_PREFIX_HANDLE)]) == _PREFIX_HANDLE


def preview_step(
    registry: Registry, source: str, records: tuple[SourceRecord, ...], identity: Identity, *, overwrite: bool
) -> MigrationStep:
    """Return what `do_step` would do, without doing it. Raises `Refused`."""
    with registry.snapshot() as snapshot:
        context = registry.context(snapshot, identity, IMPORT, make_note(source))
        return Migrate(records, overwrite).decide(context).result(0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A record of the source beside that of the ledger."""

    name: str
    source: tuple[Value, ...] | None
    """None if the source does not have it."""
    here: tuple[Value, ...] | None
    """None if there is no record here."""
    reason: str = ""
    """Why it cannot be compared; empty if it can."""


def compare_records(snapshot: Snapshot, records: Iterable[SourceRecord]) -> Iterator[Comparison]:
    """Yield the records that differ from those of the ledger, in any byte. Raises `Refused`."""
    for record in records:
        try:
            found = find_record(snapshot, record.handle)
            contents = None if record.values is None else encode_values(record.values)
        except CannotBeStored as problem:
            yield Comparison(record.handle, record.values, None, str(problem))
            continue
        if found.has(contents, record.state) if contents is not None else not found.exists:
            continue
        entry = found.entry if found.exists else None
        here = None if entry is None else entry.record()
        has_other_state = entry is not None and entry.state is not record.state
        reason = f"it is {entry.state.label} here" if entry is not None and has_other_state else ""
        yield Comparison(record.handle, record.values, here, reason)


@dataclass(slots=True)
class LocalRecords:
    """The records of some prefixes here, by ascending key, in pages: a migration may take hours."""

    registry: Registry
    prefixes: Collection[str]
    _ranges: list[tuple[bytes, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self._ranges = sorted(key_range(f"{prefix}/") for prefix in {fold(each) for each in self.prefixes})

    def __iter__(self) -> Iterator[Entry]:
        """Yield the latest entry of each record that exists."""
        for first, end in self._ranges:
            at, more = first, True
            while more:
                with self.registry.snapshot() as snapshot:
                    entries, more = snapshot.reader.names_page(at, end, STEP_SIZE)
                yield from (entry for entry in entries if entry.state is not State.ABSENT)
                more = more and bool(entries)
                at = entries[-1].key + b"\0" if entries else end
