"""Transfer jobs: give all records under a prefix, or all handles with a common start, to a new owner.

Each record changes as in a single transfer (`commands.transfer`). Records come first and their prefix handle after
them, so that the old owner can resume after an interruption; then the records again, for those created meanwhile.

A record is transferred once. What its new owner does with it while the job runs is theirs to decide, and so are records
created, and prefixes derived, after the prefix handle was transferred.

Left to the new owner of a prefix: the groups in its prefix handle and the default administrators in its policy. Only
the new owner can judge those values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.names.handle import (
    PREFIX_OF_PREFIXES,
    CaseRule,
    Handle,
    ancestor_prefixes,
    fold,
    is_derived,
    parent_prefix,
)
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.record import Permission, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.permissions import HasRole, RequiredScope, Requirement, Role, display_name, is_admin
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import check_prefix, namespaces
from perseid.registry.commands.records import require_identity
from perseid.registry.commands.transfer import (
    check_owner,
    has_owner,
    replace_owner,
    transfer_requirement,
    transfer_values,
)
from perseid.registry.context import Context, Plan, not_hosted
from perseid.registry.identity import Identity
from perseid.registry.policy import case_rules
from perseid.registry.queries.access import find_stored
from perseid.registry.queries.paging import PageBudget
from perseid.registry.registry import Registry, check_text
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.schema.jobs import MAX_ADMINISTRATORS_SHOWN
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from . import runner
from .runner import JobRun

KIND: Final = "transfer"
WILDCARDS: Final = ("*", "…", "...")
"""Marks after the start of a handle that select all handles that start like it."""


_Range = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class TransferAll:
    """The parameters of a transfer job."""

    where: str
    """A prefix, or the start of handles, as in `12345/abc`."""
    to: ValueRef
    derived: bool = False
    """Whether derived prefixes, with everything under them, are included."""

    @property
    def prefix(self) -> str:
        return self.where.partition("/")[0]

    @property
    def suffix_start(self) -> str:
        """The start of the suffixes; empty for everything under the prefix."""
        return self.where.partition("/")[2]


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """The planned transfer of one record."""

    handle: str
    administrators: tuple[str, ...]
    """The present administrators, as far as the caller can read them; at most `MAX_ADMINISTRATORS_SHOWN`."""
    refused: Refused | None
    """Why the caller may not transfer it; None if allowed or not checked."""


@dataclass(frozen=True, slots=True)
class TransferPage:
    """A page of planned transfers."""

    items: tuple[PlannedTransfer, ...]
    following: tuple[int, bytes] | None
    """Where the next page starts; None if this is the last one. A page can be empty and not the last."""


def parse_range(text: str) -> str | None:
    """Return the prefix, or the start of handles, that a text selects; None if it is a single handle."""
    for mark in WILDCARDS:
        if text.endswith(mark):
            before = text.removesuffix(mark)
            return before.removesuffix("/") if before.count("/") == 1 else before
    bare = text.removesuffix("/")
    return None if "/" in bare or ":" in bare else bare


def start(
    registry: Registry, order: TransferAll, identity: Identity, interface: str, note: str = "", total: int = 0
) -> Job:
    """Start a transfer job; `JobRun` executes it. Raises `Refused`.

    Requires permission to list all handles of the prefix; for a whole prefix also permission to transfer its prefix
    handle.
    """
    registry.do(_Start(order), identity, interface)
    parameters: dict[str, object] = {"where": order.where, "to": str(order.to), "derived": order.derived}
    return runner.start_job(registry, KIND, parameters, identity, interface, note, total=total)


def preview_page(
    context: Context,
    order: TransferAll,
    after: tuple[int, bytes] | None,
    limit: int = 0,
    *,
    check_permissions: bool = True,
) -> TransferPage:
    """Return a page of the transfers that the job would make now, without making them.

    It has `CHUNK_SIZE` records unless `limit` is set. With `check_permissions` each record is checked. Raises `Refused`
    if the job as a whole would be refused.
    """
    ranges = _Start(order).decide(context).result(0)
    chunk = runner.Chunk(context)
    owner = check_owner(chunk.context, order.to)
    names = [*dict.fromkeys(ranges)]  # without the second pass
    number, first = after or (0, b"")
    budget = PageBudget(limit or runner.CHUNK_SIZE)
    items: list[PlannedTransfer] = []

    def plan(entry: Entry) -> tuple[()]:
        """Add the planned transfer of a record if the page budget allows."""
        stored = find_stored(context.snapshot, entry)
        item = (
            None if stored is None else _plan_record(chunk.context, stored, owner, check_permissions=check_permissions)
        )
        if item is not None:
            if not budget.take(len(item.handle) + sum(map(len, item.administrators))):
                raise runner.DeferToNextChunk
            items.append(item)
        return ()

    while number < len(names):
        entries, more = context.snapshot.reader.names_page(
            max(first, names[number][0]), names[number][1], runner.CHUNK_SIZE
        )
        before = chunk.processed
        chunk.take(entries[: runner.CHUNK_SIZE - before], plan)
        if (taken := chunk.processed - before) < len(entries):
            return TransferPage(tuple(items), (number, entries[taken].key))
        number, first = (number, entries[-1].key + b"\0") if more and entries else (number + 1, b"")
    return TransferPage(tuple(items), None)


def _plan_record(
    context: Context, stored: StoredRecord, owner: Admin, *, check_permissions: bool
) -> PlannedTransfer | None:
    """Return the planned transfer of a record; None if it already has that owner."""
    refused: Refused | None = None
    if has_owner(stored, owner):
        return None
    if check_permissions:
        try:
            transfer_values(context, stored, owner)
        except Refused as problem:
            refused = problem
    return PlannedTransfer(str(stored.handle), _administrators(context, stored) if check_permissions else (), refused)


def _administrators(context: Context, stored: StoredRecord) -> tuple[str, ...]:
    """Return the administrators of a record that the caller can read."""
    administrators: list[str] = []
    for value in filter(is_admin, stored.values):
        if len(administrators) == MAX_ADMINISTRATORS_SHOWN:
            break
        readable = Permission.ADMIN_READ in value.permissions and context.is_allowed(permissions.read(stored.handle))
        if value.is_public or readable:
            try:
                administrators.append(str(Admin.from_bytes(value.data).administrator))
            except InvalidData:
                continue  # it names no administrator
    return tuple(administrators)


def load_work(_registry: Registry, job: Job) -> "_TransferWork":
    """Load the work of a transfer job. Raises `Refused` if its parameters are unreadable."""
    parameters = runner.load_parameters(job)
    try:
        to = ValueRef.parse(str(parameters["to"]))
        return _TransferWork(TransferAll(str(parameters["where"]), to, bool(parameters["derived"])), job)
    except (KeyError, InvalidData) as problem:
        reason = f"The parameters of job {job.id} are unreadable"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.UNDO_JOB(job=job.id)) from problem


# Commands


@dataclass(frozen=True, slots=True)
class _Start:
    """Find the key ranges of a transfer and check that the caller may start or resume it."""

    order: TransferAll
    job: Job | None = None
    """The job to resume."""
    steps: JobSteps | None = None

    def decide(self, context: Context) -> Plan[list[_Range]]:
        """Requires permission to list the handles: later refusals name them, including reserved ones."""
        order, snapshot = self.order, context.snapshot
        check_text(order.where)
        check_prefix(order.prefix)
        require_identity(context, f"transfer {display_name(order.where)}")
        if not snapshot.hosts_prefix(order.prefix):
            raise not_hosted(order.prefix)
        policy = snapshot.policy(order.prefix)
        chunk = runner.Chunk(context)
        access = _TransferAccess(chunk.context, order, self.job, self.steps or JobSteps())
        access.require(order.prefix)
        if order.suffix_start and order.derived:
            reason = f"{display_name(order.where)} is not a prefix, so it has no derived prefixes"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.TRANSFER_PREFIX(prefix=order.prefix), "H6")
        owner = check_owner(chunk.context, order.to)

        def require(prefix: str) -> tuple[()]:
            access.require(prefix)
            self._require_prefix_handle(chunk.context, access, prefix, owner)
            return ()

        if not order.suffix_start:  # as many as fit in one chunk; steps check theirs again
            chunk.take(self._prefixes(snapshot, access), require)
        exact = policy.case is CaseRule.SENSITIVE
        ranges = [_prefix_range(record_key(order.where, exact=exact))] if order.suffix_start else _key_ranges(order)
        return Plan(lambda _: ranges, reason=context.reasons[-1])

    def _prefixes(self, snapshot: Snapshot, access: "_TransferAccess") -> Iterator[str]:
        """Iterate over the prefixes to transfer."""
        yield self.order.prefix
        for derived in namespaces(snapshot.reader) if self.order.derived else ():
            if is_derived(derived, self.order.prefix) and not access.belongs_to_new_owner(derived):
                yield derived

    def _require_prefix_handle(self, context: Context, access: "_TransferAccess", prefix: str, owner: Admin) -> None:
        """Check the transfer of a prefix handle now: otherwise it would fail only after everything else is done."""
        handle = Handle(PREFIX_OF_PREFIXES, fold(prefix))
        if not context.snapshot.is_responsible(handle) or access.transferred_at(prefix):
            return
        stored = context.snapshot.stored(handle)
        if stored.exists and not has_owner(stored, owner):
            context.require(transfer_requirement(stored, replace_owner(stored, owner)))


@dataclass(frozen=True, slots=True)
class _TransferWork:
    """Transfers records, each once. Requires permission to change the administrators of each record."""

    prepares_ahead: ClassVar[bool] = False
    order: TransferAll
    job: Job

    def pages(self, run: JobRun) -> Iterator[list[Entry]]:
        """Select the records of all ranges, whether or not they must be transferred."""
        for first, end in run.registry.do(_Start(self.order, self.job, run.steps), run.identity, self.job.interface):
            at: bytes | None = first
            while at is not None:
                with run.registry.snapshot() as snapshot:
                    entries, more = snapshot.reader.names_page(at, end, runner.CHUNK_SIZE)
                yield [entry for entry in entries if entry.state is not State.ABSENT]
                at = entries[-1].key + b"\0" if more and entries else None

    def decider(self, context: Context, steps: JobSteps) -> Callable[[Entry], Iterator[Draft]]:
        access = _TransferAccess(context, self.order, self.job, steps)
        access.require(self.order.prefix)
        owner = check_owner(context, self.order.to)

        def transfer_record(entry: Entry) -> Iterator[Draft]:
            """Yield the entry that transfers a record, if one is needed."""
            stored = find_stored(context.snapshot, entry)
            if stored is not None and access.needs_transfer(stored, owner):
                values = transfer_values(context, stored, owner)
                if values is not None:
                    yield context.draft(stored, Action.UPDATE, values, stored.state)

        return transfer_record


class _TransferAccess:
    """What the caller of a transfer can see, and what remains to be transferred."""

    def __init__(self, context: Context, order: TransferAll, job: Job | None, steps: JobSteps) -> None:
        self._context, self._order, self._job, self._steps = context, order, job, steps
        self._checked: set[str] = set()
        self._transferred: dict[str, int] = {}

    def require(self, prefix: str) -> None:
        """Refuse callers who cannot see all handles under a prefix, including reserved and unpublished ones.

        This applies even where the policy opens the listing: refusals name records that no listing shows. A caller who
        lost the permission by transferring the prefix handle in this very job keeps the access they had.
        """
        prefix = fold(prefix)
        if prefix in self._checked:
            return
        self._checked.add(prefix)
        listing = permissions.list_handles(prefix)
        required_scope = RequiredScope.for_namespace(prefix, Scope.TRANSFER)
        requirement = replace(
            listing, alternatives=(*listing.alternatives, (HasRole((Role.SERVER,)),)), required_scope=required_scope
        )
        is_own = self._job is not None and runner.is_own_job(self._job, self._context.identity)
        if is_own and not self._context.is_allowed(requirement) and self.transferred_at(prefix):
            requirement = Requirement(
                f"resume the transfer of {display_name(prefix)}", ((),), required_scope=required_scope
            )
        self._context.require(requirement)

    def transferred_at(self, prefix: str) -> int:
        """Return the job's entry that transferred the handle of a prefix; 0 if there is none."""
        prefix = fold(prefix)
        if self._job is None:
            return 0
        if prefix not in self._transferred:
            stored = self._context.snapshot.stored(Handle(PREFIX_OF_PREFIXES, prefix))
            self._transferred[prefix] = runner.last_changed_seq(self._context.snapshot, stored, self._job, self._steps)
        return self._transferred[prefix]

    def belongs_to_new_owner(self, prefix: str) -> bool:
        """Whether a derived prefix was created after its parent was transferred."""
        since = self._prefix_transferred_at(parent_prefix(prefix) or "")
        if not since:
            return False
        before = self._context.snapshot.reader.as_of(record_key(policy_name(prefix)), since)
        return before is None or before.state is State.ABSENT

    def needs_transfer(self, stored: StoredRecord, owner: Admin) -> bool:
        """Whether a record remains to be transferred; refuses callers who may not know of it."""
        if has_owner(stored, owner):
            return False
        assert self._job is not None  # noqa: S101 - steps always have a job
        snapshot, name = self._context.snapshot, stored.handle
        since = self._prefix_transferred_at(
            (parent_prefix(name.suffix) or "") if name.is_prefix_handle else name.prefix
        )
        before = case_rules.as_of(snapshot, stored, since) if 0 < since < stored.seq else stored.entry
        if before is None or before.state is State.ABSENT:
            return False  # created after the prefix was transferred
        if not name.is_prefix_handle:
            self.require(name.prefix)
        return not runner.last_changed_seq(snapshot, stored, self._job, self._steps)

    def _prefix_transferred_at(self, prefix: str) -> int:
        """Return the job's entry that transferred a prefix or its nearest ancestor; 0 if there is none.

        The owner of that prefix creates handles under it and derives other prefixes from it.
        """
        for each in (prefix, *ancestor_prefixes(prefix)):
            if fold(each) != fold(self._order.prefix) and not is_derived(each, self._order.prefix):
                break
            if at := self.transferred_at(each):
                return at
        return 0


# Ranges of keys


def _key_ranges(order: TransferAll) -> list[_Range]:
    """Return the key ranges to scan for a prefix, in order."""
    # Prefixes in keys are folded, so all prefixes derived from `12345` start with `12345.`
    prefix_handle = record_key(f"{PREFIX_OF_PREFIXES}/{order.prefix}")
    names, handles = [_prefix_range(record_key(f"{order.prefix}/"))], [(prefix_handle, prefix_handle + b"\0")]
    if order.derived:
        names.append(_prefix_range(record_key(f"{order.prefix}.")))
        handles.insert(0, _prefix_range(record_key(f"{PREFIX_OF_PREFIXES}/{order.prefix}.")))
    return [*names, *handles, *names]


def _prefix_range(key: bytes) -> _Range:
    """Return the range of keys that start with `key`. The last byte of UTF-8 text is never 0xFF."""
    return key, key[:-1] + bytes((key[-1] + 1,))
