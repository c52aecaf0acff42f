"""Making new names: mint, reserve, generate.

A name is new when nobody else has it or ever had it, in this process, in another, on another node. So names are made
inside the commit that stores them, while nobody else can write: numbers are leased there, and what exists or ever
existed is passed over (P6). Nothing may wait meanwhile. Where the clock has to catch up the operation is answered with
`MustWait`, and `mint` waits outside and asks again.

How a suffix looks is the namespace's scheme; where there is none, a UUID is put behind the text that was given, as
deployed servers do (P8). Who may make names, the policy says too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from math import ceil
from typing import Final, Self, TypeAlias, TypeVar

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import LeaseProvider
from perseid.names.allocator import DEFAULT_MAX_WAIT, MemoryLease
from perseid.names.characters import fold
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.handle import CaseRule, Handle
from perseid.names.suffix_scheme import Scheme, Source
from perseid.names.uuids import UuidScheme
from perseid.records.admin import Admin
from perseid.records.types import HS_ADMIN
from perseid.records.value import Value, ValueRef
from perseid.registry.access.minting_rights import require_mint
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Context, Plan, admin_values, caller_as_administrator, check_indexes
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.registry import Registry
from perseid.registry.results import MintResult, Refused
from perseid.registry.snapshot import Snapshot, StoredRecord, values_of_type
from perseid.wire.codes import ResponseCode

from .composition import compose
from .lifecycle import add_value
from .namespaces import check_prefix
from .records import already_exists, was_deleted
from .transfer import check_owner, find_minters

MAX_NAMES: Final = 1_000
"""Names made in one commit: enough that a commit's sync is shared by many, few enough that others wait little."""

MAX_CANDIDATES: Final = 10_000
"""Names tried in one commit, those included that exist already. Each costs a look, and nobody else can write then."""

MIN_WAIT: Final = 0.05
"""Seconds after which names are tried again where there were too many to pass over: others come in between."""

DEFAULT_TIMEOUT: Final = DEFAULT_MAX_WAIT / 1000
"""Seconds that `mint` waits for one commit. Longer means a wrong clock, or very many who share one strict clock."""

T = TypeVar("T")
ValuesFactory: TypeAlias = Callable[[Handle, int], Sequence[Value]]
"""The values of a new name, given the name and its number, from 0. It is called more than once for a number, first
with a name that is not given to anybody, and answers alike each time but for the name."""


class RetryLater(Refused):
    """Names cannot be made yet. Nothing was written."""

    def __init__(self, seconds: float, since: int | None, reason: str, rule: str) -> None:
        advice = f"try again in {max(1, ceil(seconds))} s; if that is long, look at the clock of this machine"
        super().__init__(ResponseCode.SERVER_TOO_BUSY, reason, advice, rule)
        self.seconds = seconds
        """How long it is until names can be made, as far as is known now."""
        self.since = since
        """When names were asked for, as the scheme counts; who asks again says so and keeps their place."""


@dataclass(frozen=True, slots=True)
class MintInputs:
    """Where new names come from: a clock and randomness."""

    clock: Callable[[], int]
    """Nanoseconds since 1970."""
    random: Callable[[int], bytes]

    @classmethod
    def of(cls, registry: Registry) -> Self:
        """Those of a registry's ledger, so that names and entries have one clock."""
        log = registry.ledger.log
        return cls(lambda: log.clock.now() * 1_000, log.random)


@dataclass(frozen=True, slots=True)
class Generate:
    """Make names without records: nobody else is ever given them by this service."""

    inputs: MintInputs
    where: str
    """A prefix; in a namespace without a scheme also the beginning of the suffix, as in `12345/abc-`."""
    count: int = 1
    """How many; where thousands that exist already had to be passed over it may become fewer, and `mint` goes on."""
    _: KW_ONLY
    since: int | None = None
    """When an earlier attempt asked; see `MustWait`."""

    def decide(self, context: Context) -> Plan[MintResult]:
        """Responsibility, prefix, number, right."""
        series = _plan_minting(context, self, self.count)
        made: list[Handle] = []

        def make(lender: LeaseProvider) -> Sequence[Draft]:
            made[:] = series.new(lender, self.count, 1)
            return ()

        return Plan(lambda _: MintResult(tuple(made), 0), make=make, reason=context.reasons[-1])


@dataclass(frozen=True, slots=True)
class Mint(Generate):
    """Make names, and a record for each; or reserve them (S1)."""

    _: KW_ONLY
    values: tuple[Value, ...] | ValuesFactory = ()
    """What each record holds."""
    metadata: tuple[Value, ...] | ValuesFactory | None = None
    """What the record of each metadata record's name holds: there are two names to a thing, linked both ways (S12).
    None makes one name to a thing."""
    reserve: bool = False
    """Whether the names shall have an owner and nothing else: they cannot be resolved until they are registered."""
    published: bool = True
    owner: ValueRef | None = None
    """Who administers the records, if the values do not say it."""
    number: int = 0
    """The number of the first thing, for templates."""

    @property
    def names_each(self) -> int:
        """How many names a thing gets."""
        return 1 if self.metadata is None else 2

    def decide(self, context: Context) -> Plan[MintResult]:
        """Responsibility, prefix, number, right, policy."""
        total = self.count * self.names_each
        series = _plan_minting(context, self, total)
        frozen = _FrozenSnapshot(context.snapshot)
        commit_context = replace(context, snapshot=frozen)
        sample = self._try(commit_context, series)
        frozen.close()
        is_uniform = not callable(self.values) and self.metadata is None
        made: list[Handle] = []

        def make(lender: LeaseProvider) -> Sequence[Draft]:
            made[:] = series.new(lender, total, self.names_each)
            if is_uniform:
                return [replace(sample, handle=str(name)) for name in made]
            groups = [made[at : at + self.names_each] for at in range(0, len(made), self.names_each)]
            found = [self._drafts(commit_context, series, group, self.number + at) for at, group in enumerate(groups)]
            return [draft for drafts in found for draft in drafts]

        return Plan(lambda seq: MintResult(tuple(made), seq), make=make, reason=context.reasons[-1])

    def _try(self, context: Context, series: "_MintPlan") -> Draft:
        """Make the records of names that are not given to anybody, to read and check all that they rest on."""
        names = [series.sample_name() for _ in range(self.names_each)]
        per_number = callable(self.values) or callable(self.metadata)
        first = self._drafts(context, series, names, self.number)
        for number in range(self.number + 1, self.number + self.count if per_number else 0):
            self._drafts(context, series, names, number)
        return first[0]

    def _drafts(self, context: Context, series: "_MintPlan", names: Sequence[Handle], number: int) -> list[Draft]:
        """The entries of one thing: its name, and that of its metadata record if it gets one."""
        policy = series.policy
        if self.reserve:
            return [self._reserved(context, series, name, number) for name in names]
        wanted = [self._filled(self.values, names[0], number)]
        if self.metadata is not None:
            wanted.append(self._filled(self.metadata, names[1], number))
            wanted[0] = add_value(wanted[0], policy, policy.metadata_type, str(names[1]))
            wanted[1] = add_value(wanted[1], policy, policy.object_type, str(names[0]))
        state = State.NORMAL if self.published else State.UNPUBLISHED
        drafts = []
        for name, values in zip(names, wanted, strict=True):
            check_indexes(values)
            stored = series.stored(name)
            owned = _with_owner(context, stored, values, self.owner)
            drafts.append(context.draft(stored, Action.CREATE, compose(context, stored, owned, creates=True), state))
        return drafts

    def _reserved(self, context: Context, series: "_MintPlan", name: Handle, number: int) -> Draft:
        if self.metadata is not None or self._filled(self.values, name, number):
            reason = "a reserved name stands for nothing yet, so it has no values"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "mint without reserving, or give the values later", "S1")
        return _reservation(context, series.stored(name), self.owner)

    def _filled(self, template: tuple[Value, ...] | ValuesFactory, name: Handle, number: int) -> tuple[Value, ...]:
        return tuple(template(name, number)) if callable(template) else template


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve names that somebody has chosen; all of them, or none (S1)."""

    handles: tuple[Handle, ...]
    owner: ValueRef | None = None

    def decide(self, context: Context) -> Plan[MintResult]:
        """Responsibility, name, right, existence: only who may make names learns which ones are taken."""
        _check_count(len(self.handles))
        requested = []
        for handle in self.handles:
            check_prefix(handle.prefix)
            stored = context.get_hosted(handle)
            context.check_registrable(stored)
            requested.append(stored)
        for prefix in sorted({fold(handle.prefix) for handle in self.handles}):
            require_mint(context, context.snapshot.policy(prefix), prefix)
        found: dict[bytes, StoredRecord] = {}
        for stored in requested:
            if stored.exists or stored.key in found:
                raise already_exists(stored)
            if stored.entry is not None:
                raise was_deleted(stored)
            found[stored.key] = stored
        drafts = tuple([_reservation(context, stored, self.owner) for stored in found.values()])
        handles = tuple([stored.handle for stored in found.values()])
        return Plan(lambda seq: MintResult(handles, seq), drafts, reason=context.reasons[-1])


def mint(
    registry: Registry,
    order: Generate,
    identity: Identity,
    interface: str,
    note: str = "",
    patience: float = DEFAULT_TIMEOUT,
    job_id: str = "",
) -> Iterator[MintResult]:
    """Make any number of names, at most `MAX_NAMES` to a commit; what is yielded is durable.

    `step_of` names the unit that it belongs to, if any: see `units`.

    Where the clock has to catch up this waits, for each commit up to so many seconds; then, or at once if that would
    not suffice, it raises `MustWait`.
    """
    each = order.names_each if isinstance(order, Mint) else 1
    done = 0
    while True:
        part = replace(order, count=min(MAX_NAMES // each, order.count - done))
        if isinstance(part, Mint):
            part = replace(part, number=part.number + done)
        made = retry_until_ready(
            partial(_mint_batch, registry, part, (identity, interface, note, None, job_id)), part.since, patience
        )
        yield made
        done += len(made.handles) // each
        if done >= order.count:
            return


def _mint_batch(
    registry: Registry, order: Generate, by: tuple[Identity, str, str, None, str], since: int | None
) -> MintResult:
    return registry.do(replace(order, since=since), *by)


def retry_until_ready(attempt: Callable[[int | None], T], since: int | None, patience: float) -> T:
    """Do what makes names, again and again while the clock has to catch up, up to so many seconds; then `MustWait`.

    An attempt is told when the first one asked, which keeps its place.
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


@dataclass(frozen=True, slots=True)
class _MintPlan:
    """A namespace in which somebody may make names, and how they are made there."""

    order: Generate
    policy: Policy
    before: str
    """What stands before the part that is made."""
    scheme: Scheme

    def new(self, lender: LeaseProvider, count: int, each: int) -> list[Handle]:
        """So many names that nobody has, nor ever had; fewer, and a multiple of `each`, if too many are passed over."""
        source = self._source(lender)
        found: dict[bytes, Handle] = {}
        tried = 0
        while len(found) < count and tried < MAX_CANDIDATES:
            missing = min(count - len(found), MAX_CANDIDATES - tried)
            tried += missing
            for name in self._made(source, missing):
                stored = self.stored(name)
                if stored.key not in found and not lender.exists(stored.key):
                    found[stored.key] = stored.handle
        names = list(found.values())[: len(found) // each * each]
        if not names:
            reason = f"{tried:,} names under {display_name(self.before)} were tried, and all exist already"
            raise RetryLater(MIN_WAIT, self.order.since, reason, self.policy.line("scheme"))
        return names

    def sample_name(self) -> Handle:
        """A name as they are made here, which nobody is given; two of them may be the same."""
        source = Source(self.order.inputs.clock, self.order.inputs.random, MemoryLease(), _no_sleep)
        return self.stored(self._made(source, 1)[0]).handle

    def stored(self, name: Handle) -> StoredRecord:
        """A new name as the ledger will have it."""
        exact = self.policy.case is CaseRule.SENSITIVE
        handle = self.policy.normalize(name)
        return StoredRecord(name, handle, record_key(str(handle), exact=exact), exact, self.policy, None, ())

    def _made(self, source: Source, count: int) -> list[Handle]:
        try:
            names = [Handle.parse(self.before + suffix) for suffix in self.scheme.mint(source, count)]
        except NameMisuse as problem:
            line = self.policy.line("scheme")
            reason = f"no name can be made: {problem.message}; the policy of this namespace says: {line}"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, "give the policy another scheme", line) from problem
        except InvalidName as problem:
            raise Refused(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
        for name in names:
            if refusals := self.policy.check_name(name):
                raise Refused.from_refusals(refusals)
        return names

    def _source(self, lender: LeaseProvider) -> Source:
        """Numbers from the lender. Nothing waits while others cannot write: the attempt ends instead."""
        scope = f"{fold(self.before.partition('/')[0])} {self.scheme.name}".encode()
        since = self.order.since

        def lease(count: int, now: int) -> int:
            # An attempt that waited counts from when it was first made: a strict clock would never let it pass.
            nonlocal since
            since = now if since is None else min(now, since)
            return lender.lease(scope, count, since)

        def sleep(seconds: float) -> None:
            key = "strict_clock" if self.policy.strict_clock else "max_ahead"
            line = self.policy.line(key)
            reason = (
                f"names under {display_name(self.before)} have been given out as far ahead of the clock as is allowed; "
                f"the policy of this namespace says: {line}"
            )
            raise RetryLater(seconds, since, reason, line)

        inputs = self.order.inputs
        return Source(inputs.clock, inputs.random, lease, sleep, self.policy.lead, None)


class _FrozenSnapshot(Snapshot):
    """Facts that are read while an operation is decided, and no more afterwards: then the reading has ended."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(None, snapshot.rules)
        self._snapshot = snapshot
        self._seen: dict[bytes, Entry | None] = {}
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, which the decision rests on from now on."""
        if key not in self._seen:
            if self._is_closed:
                name = display_name(key.decode("utf-8", "replace"))
                reason = f"the values of a new name lead to {name} only with that very name, and not with another"
                raise Refused(ResponseCode.INVALID_VALUE, reason, "give values that can be checked beforehand")
            self._seen[key] = self._snapshot.entry(key, new=new)
        return self._seen[key]


def _plan_minting(context: Context, order: Generate, count: int) -> _MintPlan:
    """Where names are asked for, if they can be made there and whoever asks may do so."""
    prefix, _, lead = order.where.partition("/")
    check_prefix(prefix)
    if not context.snapshot.is_responsible(Handle(prefix, "…")):
        advice = f"ask the service of the prefix {display_name(prefix)}, or home the prefix here"
        raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", advice)
    policy = context.snapshot.policy(prefix)
    try:
        scheme = policy.suffix_scheme()
    except InvalidPolicy as problem:
        advice = "install the package that brings the scheme, or change the policy"
        raise Refused(ResponseCode.INVALID_HANDLE, problem.message, advice, policy.line("scheme")) from problem
    if scheme is not None and lead:
        line = policy.line("scheme")
        reason = f"the suffix cannot begin with {display_name(lead)}; the policy of this namespace says: {line}"
        advice = f"ask for names under {display_name(prefix)}: the service makes the whole suffix"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, advice, "P8")
    series = _MintPlan(order, policy, f"{prefix}/{lead}", scheme or UuidScheme())
    series.sample_name()
    _check_count(count)
    require_mint(context, policy, prefix)
    return series


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_NAMES:
        reason = f"{count:,} names cannot be made at once; 1 to {MAX_NAMES:,} can"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "ask several times")


def _with_owner(
    context: Context, stored: StoredRecord, values: tuple[Value, ...], owner: ValueRef | None
) -> tuple[Value, ...]:
    """A record with the owner that is named for it, unless it names administrators itself."""
    if owner is None or values_of_type(values, HS_ADMIN):
        return values
    return (*values, *admin_values(values, stored.policy, [check_owner(context, owner)]))


def _reservation(context: Context, stored: StoredRecord, owner: ValueRef | None) -> Draft:
    """The entry that reserves a name for whoever is named, or else asks, or else administers the namespace."""
    policy, prefix = stored.policy, stored.handle.prefix
    admins = _owner_or_caller(context, owner) or policy.administrators(prefix) or find_minters(context, prefix)
    if not admins:
        reason = (
            f"nobody would own {display_name(stored.handle)}: no owner is named, and the prefix has no administrators"
        )
        advice = "name an owner as INDEX:HANDLE, or set default_administrators in the policy"
        raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "S1")
    values = compose(context, stored, admin_values((), policy, admins), state=State.RESERVED)
    return context.draft(stored, Action.RESERVE, values, State.RESERVED)


def _owner_or_caller(context: Context, owner: ValueRef | None) -> list[Admin]:
    """The owner that is named, or whoever asks."""
    return caller_as_administrator(context) if owner is None else [check_owner(context, owner)]


def _no_sleep(_seconds: float) -> None:
    raise AssertionError("a stand-in is made from a lease of its own, which never runs ahead")
