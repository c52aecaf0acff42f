"""Minting: create, reserve and generate new handles.

A new handle is one that nobody has or ever had, in any process on any node. So minting is decided inside the commit,
while nobody else can write: numbers are leased there, and handles that exist or ever existed are skipped (P6). Nothing
waits meanwhile: if the clock has to catch up, the command fails with `RetryLater`, and `mint` waits outside and tries
again. A few random handles need no number: they are minted before the commit, which checks that nobody ever had them.

The scheme of the namespace makes the suffix; without one, a UUID is appended to the requested text, as in deployed
servers (P8). The policy says who can mint.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from math import ceil
from typing import Final, Self, TypeVar

from perseid.ledger.errors import LeaseClosed
from perseid.ledger.log.entry import Action, Draft, State, buffered_random
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import LeaseProvider
from perseid.names.cordra import UuidScheme
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.handle import CaseRule, Handle, fold
from perseid.names.schemes import DEFAULT_MAX_WAIT, MemoryLease, Scheme, Source
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_ADMIN
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import (
    Context,
    Deferrable,
    Plan,
    Stage,
    admin_values,
    caller_as_administrator,
    check_indexes,
    check_open,
    defer,
    not_hosted,
    other_server,
)
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.registry import Registry
from perseid.registry.results import CounterClosed, InvalidRequest, MintResult, Refused
from perseid.registry.snapshot import StoredRecord, values_of_type
from perseid.schema.records import MAX_NAMES
from perseid.wire.codes import ResponseCode

from .composition import compose, require_mint
from .lifecycle import add_value
from .namespaces import check_prefix
from .records import already_exists, was_deleted
from .transfer import check_owner, find_minters

MAX_CANDIDATES: Final = 10_000
"""Handles tried in one commit, including those that exist. Each costs a lookup while nobody else can write."""

MAX_EARLY: Final = 16
"""Random handles that are minted before the commit; more are one command that is shorter than its entries."""

MAX_EARLY_CANDIDATES: Final = 256
"""Handles tried before the commit. Each may cost a lookup in an event loop; a namespace that is nearly full, or a small
share of one, needs more, and is left to the commit."""

MIN_WAIT: Final = 0.05
"""Seconds before a retry when too many handles had to be skipped: others can write in between."""

DEFAULT_TIMEOUT: Final = DEFAULT_MAX_WAIT / 1000
"""Seconds that `mint` waits for one commit. A longer wait means a wrong clock, or many users of one strict clock."""

T = TypeVar("T")


class RetryLater(Refused):
    """No handle can be minted yet. Nothing was written."""

    def __init__(self, seconds: float, since: int | None, reason: str, rule: str) -> None:
        advice = AdviceKind.RETRY_AFTER(seconds=max(1, ceil(seconds)))
        super().__init__(ResponseCode.SERVER_TOO_BUSY, reason, advice, rule)
        self.seconds = seconds
        """How long to wait, as far as is known now."""
        self.since = since
        """When the first attempt was made, by the scheme's clock. Pass it to the next attempt to keep the position."""


@dataclass(frozen=True, slots=True)
class Generate(Deferrable):
    """Generate handles without records; the service never gives them to anybody else."""

    where: str
    """A prefix; in a namespace without a scheme also the beginning of the suffix, as in `12345/abc-`."""
    count: int = 1
    """How many. If thousands of existing handles had to be skipped there may be fewer, and `mint` continues."""
    _: KW_ONLY
    since: int | None = None
    """When the first attempt was made; see `RetryLater`."""

    def decide(self, context: Context) -> Plan[MintResult]:
        """Check responsibility, prefix, count and permission."""
        if context.stage is not Stage.COMMIT:
            _check_count(self.count)
            return defer(self)
        new = _plan_minting(context, self).check(self.count).new_records(self.count, 1)
        handles = tuple([record.handle for record in new])
        return Plan(lambda _: MintResult(handles, 0), reason=context.reasons[-1])


@dataclass(frozen=True, slots=True)
class Mint(Generate):
    """Mint handles with a record each; or reserve them (S1)."""

    _: KW_ONLY
    values: tuple[Value, ...] = ()
    """The values of each record."""
    each: tuple[tuple[Value, ...], ...] = ()
    """The values of each single record instead, one row for each of `count`."""
    rows_before: int = 0
    """Rows of earlier batches, so that refusals name the right record."""
    lines: tuple[int, ...] = ()
    """The line of each row in a file, which refusals name instead."""
    metadata: tuple[Value, ...] | None = None
    """The values of each metadata record: an object then gets two handles, linked both ways (S12). None for one."""
    own_handle: str = ""
    """The type of another value, with the handle itself: a creator names itself (A4)."""
    own_administrator: bytes = b""
    """The data of another HS_ADMIN value, whose administrator is the key at the same index in the record itself."""
    reserve: bool = False
    """Whether the handles only get an owner: they do not resolve until their record is created."""
    published: bool = True
    owner: ValueRef | None = None
    """The administrator of the records, if the values name none."""

    @property
    def names_each(self) -> int:
        """How many handles an object gets."""
        return 1 if self.metadata is None else 2

    def decide(self, context: Context) -> Plan[MintResult]:
        """Check responsibility, prefix, count, permission and policy."""
        total = self.count * self.names_each
        if context.stage is not Stage.COMMIT:
            _check_count(total)
            if context.stage is Stage.DEFERRING or total > MAX_EARLY:
                return defer(self)
        mint_plan = _plan_minting(context, self)
        if context.stage is not Stage.COMMIT and mint_plan.leases:
            return defer(self)
        mint_plan.check(total)
        # Checked before numbers are leased: those of a command that is refused afterwards are lost.
        samples = [mint_plan.sample] * self.names_each
        rows = range(self.count if self.each else 1)
        (first, *_), *_ = [self._check_row(context, samples, row) for row in rows]
        new = mint_plan.new_records(total, self.names_each)
        if context.stage is not Stage.COMMIT and (mint_plan.leases or len(new) < total):
            return defer(self)
        if self.each or self.own_handle or self.own_administrator or self.metadata is not None:
            groups = [new[at : at + self.names_each] for at in range(0, len(new), self.names_each)]
            objects = [self._drafts(context, group, row) for row, group in enumerate(groups)]
            drafts = [draft for each in objects for draft in each]
        else:
            drafts = [first.with_handle(str(record.handle)) for record in new]

        def result(seq: int) -> MintResult:
            return MintResult(tuple([record.handle for record in new]), seq, tuple(context.warnings))

        return Plan(result, tuple(drafts), reason=context.reasons[-1])

    def plan(self, context: Context) -> "MintPlan":
        """Return how the handles would be minted, to decide samples. Raises `Refused`."""
        return _plan_minting(context, self).check(self.count * self.names_each)

    def decide_sample(self, context: Context, mint_plan: "MintPlan") -> Draft:
        """Decide the first object as if it were minted, with a handle that nobody gets. Raises `Refused`."""
        samples = [mint_plan.sample] * self.names_each
        return self._drafts(context, samples, 0)[0]

    def _check_row(self, context: Context, samples: Sequence[StoredRecord], row: int) -> list[Draft]:
        """Decide an object; of several with values of their own, refusals name the record, from 1, or its line."""
        try:
            return self._drafts(context, samples, row)
        except Refused as refused:
            if refused.code is ResponseCode.INVALID_VALUE:
                if self.lines:
                    refused.locate(f"Line {self.lines[row]}")
                elif self.rows_before + len(self.each) > 1:
                    refused.locate(f"Record {self.rows_before + row + 1:,}")
            raise

    def _drafts(self, context: Context, new: Sequence[StoredRecord], row: int) -> list[Draft]:
        """The entries of one object: its handle, and that of its metadata record if it has one."""
        policy, handles = new[0].policy, [str(record.handle) for record in new]
        values = self.each[row] if self.each else self.values
        if self.reserve:
            if self.metadata is not None or values:
                reason = "A reserved handle cannot have values"
                raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.MINT_WITHOUT_RESERVING(), "S1")
            return [_reservation(context, record, self.owner) for record in new]
        if self.own_handle:
            index = max((value.index for value in values), default=0) + 1
            values = (*values, Value.text(index, self.own_handle, handles[0]))
        if self.own_administrator:
            admin = Admin.from_bytes(self.own_administrator)
            own = replace(admin, administrator=ValueRef(admin.administrator.index, handles[0]))
            values = (*values, *admin_values(values, policy, [own]))
        records = [values]
        if self.metadata is not None:
            records = [
                add_value(values, policy, policy.metadata_type, handles[1]),
                add_value(self.metadata, policy, policy.object_type, handles[0]),
            ]
        state = State.NORMAL if self.published else State.UNPUBLISHED
        drafts = []
        for stored, complete in zip(new, records, strict=True):
            check_indexes(complete)
            owned = _with_owner(context, stored, complete, self.owner)
            drafts.append(context.draft(stored, Action.CREATE, compose(context, stored, owned, creates=True), state))
        return drafts


@dataclass(frozen=True, slots=True)
class Reserve(Deferrable):
    """Reserve chosen handles; all of them, or none (S1)."""

    handles: tuple[Handle, ...]
    owner: ValueRef | None = None

    def decide(self, context: Context) -> Plan[MintResult]:
        """Check responsibility, handle, permission, existence: only users who can mint learn which are taken."""
        _check_count(len(self.handles))
        requested = []
        for handle in self.handles:
            check_prefix(handle.prefix)
            stored = context.get_hosted(handle)
            context.check_registrable(stored)
            requested.append(stored)
        for prefix in sorted({fold(handle.prefix) for handle in self.handles}):
            require_mint(context, context.snapshot.policy(prefix), prefix)
        new: dict[bytes, StoredRecord] = {}
        for stored in requested:
            if stored.exists or stored.key in new:
                raise already_exists(stored, can_replace=False)
            check_open(stored.policy, stored.requested.prefix)
            if stored.entry is not None:
                raise was_deleted(stored, can_reuse=False)
            new[stored.key] = stored
        drafts = tuple([_reservation(context, stored, self.owner) for stored in new.values()])
        handles = tuple([stored.handle for stored in new.values()])
        warnings = tuple(context.warnings)
        return Plan(lambda seq: MintResult(handles, seq, warnings), drafts, reason=context.reasons[-1])


def mint(
    registry: Registry,
    command: Generate,
    identity: Identity,
    interface: str,
    note: str = "",
    patience: float = DEFAULT_TIMEOUT,
    job_id: str = "",
) -> Iterator[MintResult]:
    """Mint any number of handles, at most `MAX_NAMES` per commit; each yielded result is durable.

    `job_id` is the job that it belongs to, if any. If the clock has to catch up, this waits up to `patience` seconds
    per commit; then, or at once if that is not enough, it raises `RetryLater`.
    """
    each = command.names_each if isinstance(command, Mint) else 1
    done = 0
    while True:
        batch = replace(command, count=min(MAX_NAMES // each, command.count - done))
        if isinstance(batch, Mint):
            batch = replace(batch, each=batch.each[done : done + batch.count], rows_before=done)
        result = retry_until_ready(
            partial(_mint_batch, registry, batch, (identity, interface, note, None, job_id)), batch.since, patience
        )
        yield result
        done += len(result.handles) // each
        if done >= command.count:
            return


def _mint_batch(
    registry: Registry, command: Generate, by: tuple[Identity, str, str, None, str], since: int | None
) -> MintResult:
    return registry.do(replace(command, since=since), *by)


def retry_until_ready(attempt: Callable[[int | None], T], since: int | None, patience: float) -> T:
    """Retry while the clock has to catch up, for up to `patience` seconds; then raise `RetryLater`.

    Each attempt gets the time of the first one, which keeps its position.
    """
    while True:
        try:
            return attempt(since)
        except RetryLater as wait:
            patience -= wait.seconds
            if patience < 0:
                raise
            time.sleep(wait.seconds)
            since = wait.since


@dataclass(slots=True, eq=False)
class MintPlan:
    """How handles are minted in a namespace. Raises `Refused` if the scheme cannot mint there."""

    context: Context
    command: Generate
    policy: Policy
    start: str
    """The prefix, a slash, and the fixed beginning of the suffix."""
    scheme: Scheme
    sample: StoredRecord = field(init=False)
    """A record of the same form. Nobody gets its handle, unless it is minted before the commit."""
    leases: bool = field(default=False, init=False)
    """Whether the scheme has leased numbers, as far as is known."""
    _early_source: Source = field(init=False)

    def __post_init__(self) -> None:
        lease = MemoryLease()

        def note_lease(count: int, now: int) -> int:
            self.leases = True
            return lease(count, now)

        self._early_source = Source(self.context.clock, self.context.random, note_lease, _no_sleep)
        self.sample = self._candidates(self._early_source, 1)[0]

    def check(self, count: int) -> Self:
        """Refuse a caller who cannot mint so many handles."""
        _check_count(count)
        prefix = self.start.partition("/")[0]
        require_mint(self.context, self.policy, prefix)
        check_open(self.policy, prefix)
        self.context.warn_about_characters(self.start)
        return self

    def new_records(self, count: int, each: int) -> list[StoredRecord]:
        """Records of new handles; fewer than `count`, but a multiple of `each`, if too many had to be skipped.

        Before the commit they are expected to be new, which the commit checks; if the scheme `leases`, they are not.
        Then there may be none. Raises `RetryLater` inside it.
        """
        snapshot, is_early = self.context.snapshot, self.context.stage is not Stage.COMMIT
        source, exists, limit = self._early_source, self._had_entries, MAX_EARLY_CANDIDATES
        if not is_early:
            source, exists, limit = self._source(snapshot.reader), snapshot.reader.exists, MAX_CANDIDATES
        new: dict[bytes, StoredRecord] = {}
        tried = 0
        partition = snapshot.rules.partition
        # The sample has no number, so it can be the first.
        known = [self.sample] if is_early and not self.leases else []
        while len(new) < count and tried < limit:
            missing = min(count - len(new), limit - tried)
            tried += missing
            records, known = [*known, *self._candidates(source, missing - len(known))], []
            if partition is not None:
                records = [record for record in records if partition.find_other(record.requested) is None]
            if not is_early:
                snapshot.reader.prefetch({stored.key for stored in records})
            for stored in records:
                if stored.key not in new and not exists(stored.key):
                    new[stored.key] = stored
        found = list(new.values())[: len(new) // each * each]
        if not found and not is_early:
            share = "" if partition is None else ", or belong to other servers of this site"
            reason = f"All {tried:,} handles that were tried under {display_name(self.start)} already exist{share}"
            raise RetryLater(MIN_WAIT, self.command.since, reason, self.policy.line("scheme"))
        return found

    def _had_entries(self, key: bytes) -> bool:
        return self.context.snapshot.entry(key, new=True) is not None

    def _stored(self, handle: Handle) -> StoredRecord:
        """The record of a new handle."""
        exact = self.policy.case is CaseRule.SENSITIVE
        normalized = self.policy.normalize(handle)
        return StoredRecord(handle, normalized, record_key(str(normalized), exact=exact), exact, self.policy, None, ())

    def _candidates(self, source: Source, count: int) -> list[StoredRecord]:
        try:
            handles = [Handle.parse(self.start + suffix) for suffix in self.scheme.mint(source, count)]
        except NameMisuse as problem:
            line = self.policy.line("scheme")
            reason = f"No handle can be minted: {problem.message}; the policy of this namespace says: {line}"
            raise Refused(
                ResponseCode.INVALID_HANDLE, reason, AdviceKind.CHANGE_SCHEME(prefix=self.start.partition("/")[0]), line
            ) from problem
        except InvalidName as problem:
            raise InvalidRequest(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
        for handle in handles:
            if refusals := self.policy.check_name(handle):
                raise Refused.from_refusals(refusals)
        return [self._stored(handle) for handle in handles]

    def _source(self, lender: LeaseProvider) -> Source:
        """Take numbers from the lender. Nothing sleeps while others cannot write: the attempt fails instead."""
        scope = f"{fold(self.start.partition('/')[0])} {self.scheme.name}".encode()
        since = self.command.since

        def lease(count: int, now: int) -> int:
            # A retry uses the time of the first attempt: otherwise it would never succeed with a strict clock.
            nonlocal since
            since = now if since is None else min(now, since)
            try:
                return lender.lease(scope, count, since)
            except LeaseClosed as closed:
                raise CounterClosed(display_name(self.start.partition("/")[0])) from closed

        def sleep(seconds: float) -> None:
            key = "strict_clock" if self.policy.strict_clock else "max_ahead"
            line = self.policy.line(key)
            reason = (
                f"The handles under {display_name(self.start)} are as far ahead of the clock as allowed; "
                f"the policy of this namespace says: {line}"
            )
            raise RetryLater(seconds, since, reason, line)

        random = buffered_random(self.context.random)
        return Source(self.context.clock, random, lease, sleep, self.policy.lead, None)


def _plan_minting(context: Context, command: Generate) -> MintPlan:
    """How to mint in the namespace, if that is possible; raises `Refused`. `check` tells whether the caller can."""
    prefix, _, start = command.where.partition("/")
    check_prefix(prefix)
    if not context.snapshot.hosts_prefix(prefix):
        raise not_hosted(prefix)
    partition = context.snapshot.rules.partition
    if partition is not None and partition.find_other_of_prefix(prefix) is not None:
        raise other_server(context.snapshot, Handle(prefix, "…")) or not_hosted(prefix)
    policy = context.snapshot.policy(prefix)
    try:
        scheme = policy.suffix_scheme()
    except InvalidPolicy as problem:
        advice, line = AdviceKind.INSTALL_SCHEME(), policy.line("scheme")
        raise Refused(ResponseCode.INVALID_HANDLE, problem.message, advice, line) from problem
    if scheme is not None and start:
        line = policy.line("scheme")
        reason = f"The suffix cannot begin with {display_name(start)}; the policy of this namespace says: {line}"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.MINT_UNDER_PREFIX(prefix=prefix), "P8")
    return MintPlan(context, command, policy, f"{prefix}/{start}", scheme or UuidScheme())


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_NAMES:
        reason = f"Cannot create {count:,} handles at once; the limit is 1 to {MAX_NAMES:,}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.USE_SEVERAL_REQUESTS())


def _with_owner(
    context: Context, stored: StoredRecord, values: tuple[Value, ...], owner: ValueRef | None
) -> tuple[Value, ...]:
    """The values with the requested owner, unless they name administrators."""
    if owner is None or values_of_type(values, HS_ADMIN):
        return values
    return (*values, *admin_values(values, stored.policy, [check_owner(context, owner)]))


def _reservation(context: Context, stored: StoredRecord, owner: ValueRef | None) -> Draft:
    """The entry that reserves a handle for the owner, else the caller, else the administrators of the namespace."""
    policy, prefix = stored.policy, stored.handle.prefix
    admins = _owner_or_caller(context, owner) or policy.administrators(prefix) or find_minters(context, prefix)
    if not admins:
        reason = f"{display_name(stored.handle)} would have no owner: the prefix has no administrators"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_OWNER_OR_DEFAULT(), "S1")
    values = compose(context, stored, admin_values((), policy, admins), state=State.RESERVED)
    return context.draft(stored, Action.RESERVE, values, State.RESERVED)


def _owner_or_caller(context: Context, owner: ValueRef | None) -> list[Admin]:
    return caller_as_administrator(context) if owner is None else [check_owner(context, owner)]


def _no_sleep(_seconds: float) -> None:
    raise AssertionError("a sample has its own lease, which never runs ahead")
