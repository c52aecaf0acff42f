"""Handing over everything under a prefix, or all names that begin alike.

Each record gets the new owner as a single transfer would give it one (`transfer`). It is one unit (`units`), so it can
be watched, gone on with and undone. The names come first and their prefix handle after them, so that whoever hands over
can go on after an interruption; then the names once more, for those that were made meanwhile.

A record is handed over once. What its new owner makes of it while the others are handed over is theirs to decide, and
so are names that are made after the prefix handle was handed over, and prefixes that are derived from it then.

What is left to the new owner of a prefix: the groups in its prefix handle, and the default administrators in its
policy. Both are values that only they can judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.names.prefixes import ancestors, is_derived, parent
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.value import Permission, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.permissions import HasRole, Requirement, Role, display_name, is_admin
from perseid.registry.access.scopes import RequiredScope, Scope
from perseid.registry.commands.namespaces import check_prefix, namespaces
from perseid.registry.commands.records import require_identity
from perseid.registry.commands.transfer import (
    check_owner,
    has_owner,
    replace_owner,
    transfer_requirement,
    transfer_values,
)
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.policy import case_rules
from perseid.registry.queries.paging import PageBudget
from perseid.registry.registry import Registry, check_text
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from . import runner
from .runner import Progress

KIND: Final = "transfer"
"""What the unit is called."""

WILDCARDS: Final = ("*", "…", "...")
"""What stands behind the beginning of names to mean all that begin so."""

MAX_ADMINISTRATORS_SHOWN: Final = 20
"""Administrators of a record that are told of; it may have two thousand."""

_Range = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class TransferAll:
    """Everything under a prefix, or all names that begin alike, for a new owner."""

    where: str
    """A prefix; or the beginning of names, as in `12345/abc`."""
    to: ValueRef
    derived: bool = False
    """Whether the prefixes derived from it go along, with all that is under them."""

    @property
    def prefix(self) -> str:
        return self.where.partition("/")[0]

    @property
    def suffix_start(self) -> str:
        """How the suffixes begin; empty for everything under the prefix."""
        return self.where.partition("/")[2]


@dataclass(frozen=True, slots=True)
class TransferProgress(Progress):
    """How far a transfer has come."""

    processed: int = 0
    """Records, as often as they were looked at, since it was begun or gone on with."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A name that would be handed over."""

    handle: str
    administrators: tuple[str, ...]
    """Who would lose it, as far as that may be read; `MAX_TOLD` at most."""
    refused: Refused | None
    """Why whoever asks may not hand it over; None if they may, or that was not looked at."""


@dataclass(frozen=True, slots=True)
class TransferPage:
    """Some names that would be handed over."""

    items: tuple[PlannedTransfer, ...]
    following: tuple[int, bytes] | None
    """Where the next page begins; None if this is the last one. A page may be empty and not the last."""


def parse_range(text: str) -> str | None:
    """The prefix, or the beginning of names, that people mean by a text; None if they mean one name."""
    for mark in WILDCARDS:
        if text.endswith(mark):
            before = text.removesuffix(mark)
            return before.removesuffix("/") if before.count("/") == 1 else before
    bare = text.removesuffix("/")
    return None if "/" in bare or ":" in bare else bare


def start(registry: Registry, order: TransferAll, identity: Identity, door: str, note: str = "", total: int = 0) -> Job:
    """Begin to hand over; `run` does it. Raises `Refused`.

    It takes the right to see all names of the prefix together, and for the whole of it the right to hand over its
    prefix handle.
    """
    registry.do(_Start(order), identity, door)
    asked: dict[str, object] = {"where": order.where, "to": str(order.to), "derived": order.derived}
    return runner.start_job(registry, KIND, asked, identity, door, note, total=total)


def run(registry: Registry, operation: Job, identity: Identity) -> Iterator[Progress]:
    """Do what is left to do of a transfer, at most `units.CHUNK` records to a commit, and yield after each.

    Rights are asked for record by record, as for single changes: the first that is missing ends it with `Refused`, and
    what is done by then stays done.
    """
    return runner.skip_unchanged(run_steps(registry, operation, identity))


def run_steps(registry: Registry, operation: Job, identity: Identity) -> Iterator[TransferProgress]:
    """The same in pieces of bounded work, whether or not anything was changed; the first one does nothing yet."""
    order = _load_parameters(operation)
    steps = jobs.load_steps(registry.ledger.log, operation.id)
    ranges = registry.do(_Start(order, operation, steps), identity, operation.door)
    processed = 0
    yield TransferProgress(operation.id, len(steps), operation.total, processed)
    for first, end in ranges:
        at: bytes | None = first
        while at is not None:
            step = _Step(order, operation, steps, at, end)
            done = registry.do(step, identity, operation.door, runner.entry_note(operation), job_id=operation.id)
            steps, at = done.steps, done.following
            processed += done.processed
            yield TransferProgress(operation.id, len(steps), operation.total, processed)
    runner.complete_job(registry, operation)


def preview_page(
    context: Context,
    order: TransferAll,
    after: tuple[int, bytes] | None,
    limit: int = 0,
    *,
    check_permissions: bool = True,
) -> TransferPage:
    """A page of the names that would be handed over, by the state of now, from where it begins; nothing is done.

    It has `units.CHUNK` names, unless it says. With `judges` it is looked whether each of them may be. Raises `Refused`
    where the transfer as a whole would be.
    """
    ranges = _Start(order).decide(context).answer(0)
    chunk = runner.Chunk(context)
    owner = check_owner(chunk.context, order.to)
    names = [*dict.fromkeys(ranges)]  # once is enough here
    number, first = after or (0, b"")
    budget = PageBudget(limit or runner.CHUNK_SIZE)
    items: list[PlannedTransfer] = []

    def look(entry: Entry) -> tuple[()]:
        """Note what would become of a record, if the page has room for that."""
        stored = _find_record(context, entry)
        item = (
            None if stored is None else _plan_record(chunk.context, stored, owner, check_permissions=check_permissions)
        )
        if item is not None:
            if not budget.take(len(item.handle) + sum(map(len, item.administrators))):
                raise runner.DeferToNextChunk
            items.append(item)
        return ()

    while number < len(names):
        entries, more = context.snapshot.reading.names_page(
            max(first, names[number][0]), names[number][1], runner.CHUNK_SIZE
        )
        before = chunk.processed
        chunk.take(entries[: runner.CHUNK_SIZE - before], look)
        if (taken := chunk.processed - before) < len(entries):
            return TransferPage(tuple(items), (number, entries[taken].key))
        number, first = (number, entries[-1].key + b"\0") if more and entries else (number + 1, b"")
    return TransferPage(tuple(items), None)


def _plan_record(
    context: Context, stored: StoredRecord, owner: Admin, *, check_permissions: bool
) -> PlannedTransfer | None:
    """What would become of a record; None if it has that owner already."""
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
    """Who administers a record, as far as whoever asks may read that."""
    found: list[str] = []
    for value in filter(is_admin, stored.values):
        if len(found) == MAX_ADMINISTRATORS_SHOWN:
            break
        readable = Permission.ADMIN_READ in value.permissions and context.is_allowed(permissions.read(stored.handle))
        if value.is_public or readable:
            try:
                found.append(str(Admin.from_bytes(value.data).administrator))
            except InvalidData:
                continue  # it means nobody
    return tuple(found)


def _load_parameters(operation: Job) -> TransferAll:
    """What a transfer is about. Raises `Refused` if that cannot be read any more."""
    asked = runner.load_parameters(operation)
    try:
        return TransferAll(str(asked["where"]), ValueRef.parse(str(asked["to"])), bool(asked["derived"]))
    except (KeyError, InvalidData) as problem:
        reason = f"what {operation.id} is about cannot be read"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "undo what was done, or begin anew") from problem


# Deciding


@dataclass(frozen=True, slots=True)
class _Start:
    """Find out what a transfer has to go through, and whether somebody may begin it, or go on with it."""

    order: TransferAll
    unit: Job | None = None
    """What is gone on with."""
    steps: JobSteps | None = None

    def decide(self, context: Context) -> Plan[list[_Range]]:
        """The right to see the names together: what is refused later names them, reserved ones included."""
        order, snapshot = self.order, context.snapshot
        check_text(order.where)
        check_prefix(order.prefix)
        require_identity(context, f"transfer {display_name(order.where)}")
        if not snapshot.is_responsible(Handle(order.prefix, "…")):
            advice = f"ask the service of the prefix {display_name(order.prefix)}, or home the prefix here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", advice)
        policy = snapshot.policy(order.prefix)
        chunk = runner.Chunk(context)
        access = _TransferAccess(chunk.context, order, self.unit, self.steps or JobSteps())
        access.require(order.prefix)
        if order.suffix_start and order.derived:
            reason = f"{display_name(order.where)} is no prefix, so no prefix is derived from it"
            raise Refused(
                ResponseCode.INVALID_HANDLE, reason, f"transfer {display_name(order.prefix)} as a whole", "H6"
            )
        owner = check_owner(chunk.context, order.to)

        def require(prefix: str) -> tuple[()]:
            """What handing over a prefix takes."""
            access.require(prefix)
            self._demand_handle(chunk.context, access, prefix, owner)
            return ()

        if not order.suffix_start:  # as many as can be looked at at once; steps look at theirs again
            chunk.take(self._prefixes(snapshot, access), require)
        exact = policy.case is CaseRule.SENSITIVE
        ranges = [_prefix_range(record_key(order.where, exact=exact))] if order.suffix_start else _key_ranges(order)
        return Plan(lambda _: ranges, reason=context.reasons[-1])

    def _prefixes(self, snapshot: Snapshot, access: "_TransferAccess") -> Iterator[str]:
        """The prefixes that are handed over."""
        yield self.order.prefix
        for below in namespaces(snapshot.reading) if self.order.derived else ():
            if is_derived(below, self.order.prefix) and not access.belongs_to_new_owner(below):
                yield below

    def _demand_handle(self, context: Context, access: "_TransferAccess", prefix: str, owner: Admin) -> None:
        """What handing over the prefix handle takes: whoever may not would find out when all else is done."""
        handle = Handle(PREFIX_OF_PREFIXES, fold(prefix))
        if not context.snapshot.is_responsible(handle) or access.transferred_at(prefix):
            return
        stored = context.snapshot.stored(handle)
        if stored.exists and not has_owner(stored, owner):
            context.require(transfer_requirement(stored, replace_owner(stored, owner)))


@dataclass(frozen=True, slots=True)
class _StepResult:
    """What a step came to."""

    steps: JobSteps
    processed: int
    following: bytes | None
    """Where the next step begins; None if there is none in this range."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Give the next records of a range a new owner, as far as one commit takes them."""

    order: TransferAll
    unit: Job
    known: JobSteps
    """What of it has been done, as far as is known."""
    first: bytes
    end: bytes

    def decide(self, context: Context) -> Plan[_StepResult]:
        """For each record what changing its administrators takes."""
        require_identity(context, f"transfer {display_name(self.order.where)}")
        reading = context.snapshot.reading
        done = self.known.refresh(reading, self.unit.id)
        chunk = runner.Chunk(context)
        access = _TransferAccess(chunk.context, self.order, self.unit, done)
        access.require(self.order.prefix)
        owner = check_owner(chunk.context, self.order.to)
        entries, more = reading.names_page(self.first, self.end, runner.CHUNK_SIZE)
        following = entries[-1].key + b"\0" if more and entries else None
        found: list[StoredRecord] = []

        def transfer_record(entry: Entry) -> Iterator[Draft]:
            """The entry that gives a record its new owner, if it is to have one."""
            stored = _find_record(context, entry)
            if stored is None:
                return
            if access.needs_transfer(stored, owner):
                values = transfer_values(chunk.context, stored, owner)
                if values is not None:
                    yield context.draft(stored, Action.UPDATE, values, stored.state)
            found.append(stored)

        if not chunk.take(entries, transfer_record):
            following = entries[chunk.processed].key
        drafts, processed = tuple(chunk.drafts), len(found)
        reason = context.reasons[-1]
        return Plan(
            lambda seq: _StepResult(done.with_step(seq, len(drafts)), processed, following), drafts, reason=reason
        )


class _TransferAccess:
    """What somebody who hands over may see, and what is left for them."""

    def __init__(self, context: Context, order: TransferAll, unit: Job | None, steps: JobSteps) -> None:
        self._context, self._order, self._unit, self._steps = context, order, unit, steps
        self._checked: set[str] = set()
        self._transferred: dict[str, int] = {}

    def require(self, prefix: str) -> None:
        """Refuse whoever may not see all names under a prefix, reserved and unpublished ones included.

        Also where the policy opens the list: what is refused names records that no list shows. Whoever has handed over
        the prefix handle with this very unit, and lost the right by that, sees what they saw until then.
        """
        prefix = fold(prefix)
        if prefix in self._checked:
            return
        self._checked.add(prefix)
        listing = permissions.list_handles(prefix)
        required_scope = RequiredScope.for_namespace(prefix, Scope.TRANSFER)
        seeing = replace(
            listing, alternatives=(*listing.alternatives, (HasRole((Role.SERVER,)),)), required_scope=required_scope
        )
        is_own = self._unit is not None and runner.is_own_job(self._unit, self._context.identity)
        if is_own and not self._context.is_allowed(seeing) and self.transferred_at(prefix):
            seeing = Requirement(
                f"go on with handing over {display_name(prefix)}", ((),), required_scope=required_scope
            )
        self._context.require(seeing)

    def transferred_at(self, prefix: str) -> int:
        """The entry with which the unit has handed over the handle of a prefix; 0 if it has not."""
        prefix = fold(prefix)
        if self._unit is None:
            return 0
        if prefix not in self._transferred:
            stored = self._context.snapshot.stored(Handle(PREFIX_OF_PREFIXES, prefix))
            self._transferred[prefix] = runner.last_changed_seq(
                self._context.snapshot, stored, self._unit, self._steps
            )
        return self._transferred[prefix]

    def belongs_to_new_owner(self, prefix: str) -> bool:
        """Whether a derived prefix came to be when the one above it was the new owner's already."""
        since = self._prefix_transferred_at(parent(prefix) or "")
        return since > 0 and self._context.snapshot.reading.as_of(record_key(policy_name(prefix)), since) is None

    def needs_transfer(self, stored: StoredRecord, owner: Admin) -> bool:
        """Whether a record is still to be handed over; refuses whoever may not know of it."""
        if has_owner(stored, owner):
            return False
        assert self._unit is not None  # noqa: S101 - a step has one
        snapshot, name = self._context.snapshot, stored.handle
        since = self._prefix_transferred_at((parent(name.suffix) or "") if name.is_prefix_handle else name.prefix)
        before = case_rules.as_of(snapshot, stored, since) if 0 < since < stored.seq else stored.entry
        if before is None or before.state is State.ABSENT:
            return False  # it was made when the prefix was the new owner's already
        if not name.is_prefix_handle:
            self.require(name.prefix)
        return not runner.last_changed_seq(snapshot, stored, self._unit, self._steps)

    def _prefix_transferred_at(self, prefix: str) -> int:
        """The entry with which the unit has handed over a prefix, or else the nearest above it; 0 if it has none.

        Whoever has that prefix makes names under it, and derives others from it.
        """
        for each in (prefix, *ancestors(prefix)):
            if fold(each) != fold(self._order.prefix) and not is_derived(each, self._order.prefix):
                break
            if at := self.transferred_at(each):
                return at
        return 0


def _find_record(context: Context, entry: Entry) -> StoredRecord | None:
    """The record of an entry that was met under a key; None if there is none that can be handed over."""
    stored = context.snapshot.stored(Handle.parse_lenient(entry.handle))
    # What stands under another key ends that of another era.
    if stored.key != entry.key or not stored.exists or not context.snapshot.is_responsible(stored.handle):
        return None
    return stored


# Ranges of keys


def _key_ranges(order: TransferAll) -> list[_Range]:
    """What is gone through for a prefix, one after the other."""
    # Keys have folded prefixes, so all that is derived from `12345` begins with `12345.`
    above = record_key(f"{PREFIX_OF_PREFIXES}/{order.prefix}")
    names, handles = [_prefix_range(record_key(f"{order.prefix}/"))], [(above, above + b"\0")]
    if order.derived:
        names.append(_prefix_range(record_key(f"{order.prefix}.")))
        handles.insert(0, _prefix_range(record_key(f"{PREFIX_OF_PREFIXES}/{order.prefix}.")))
    return [*names, *handles, *names]


def _prefix_range(key: bytes) -> _Range:
    """The range of keys that begin so. The last octet of UTF-8 is never the highest there is."""
    return key, key[:-1] + bytes((key[-1] + 1,))
