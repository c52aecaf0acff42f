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
from perseid.ledger.log.requests import Lender
from perseid.names.allocator import DEFAULT_PATIENCE, MemoryLease
from perseid.names.characters import fold
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.handle import CaseRule, Handle
from perseid.names.suffix_scheme import Scheme, Source
from perseid.names.uuids import UuidText
from perseid.records.admin import Admin
from perseid.records.types import HS_ADMIN
from perseid.records.value import Value, ValueRef
from perseid.registry.access.minting_rights import demand_making
from perseid.registry.access.permissions import shown
from perseid.registry.context import Context, Plan, administrators, check_indexes, own_administrators
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.registry import Registry
from perseid.registry.results import Minted, Refused
from perseid.registry.snapshot import Facts, Held, of_type
from perseid.wire.codes import ResponseCode

from .composition import compose
from .lifecycle import with_value
from .namespaces import checked_prefix
from .records import already_exists, was_deleted
from .transfer import checked_owner, makers_of

MAX_NAMES: Final = 1_000
"""Names made in one commit: enough that a commit's sync is shared by many, few enough that others wait little."""

MAX_TRIED: Final = 10_000
"""Names tried in one commit, those included that exist already. Each costs a look, and nobody else can write then."""

SHORTEST_WAIT: Final = 0.05
"""Seconds after which names are tried again where there were too many to pass over: others come in between."""

PATIENCE: Final = DEFAULT_PATIENCE / 1000
"""Seconds that `mint` waits for one commit. Longer means a wrong clock, or very many who share one strict clock."""

T = TypeVar("T")
Template: TypeAlias = Callable[[Handle, int], Sequence[Value]]
"""The values of a new name, given the name and its number, from 0. It is called more than once for a number, first
with a name that is not given to anybody, and answers alike each time but for the name."""


class MustWait(Refused):
    """Names cannot be made yet. Nothing was written."""

    def __init__(self, seconds: float, since: int | None, reason: str, rule: str) -> None:
        advice = f"try again in {max(1, ceil(seconds))} s; if that is long, look at the clock of this machine"
        super().__init__(ResponseCode.SERVER_TOO_BUSY, reason, advice, rule)
        self.seconds = seconds
        """How long it is until names can be made, as far as is known now."""
        self.since = since
        """When names were asked for, as the scheme counts; who asks again says so and keeps their place."""


@dataclass(frozen=True, slots=True)
class Maker:
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

    maker: Maker
    where: str
    """A prefix; in a namespace without a scheme also the beginning of the suffix, as in `12345/abc-`."""
    count: int = 1
    """How many; where thousands that exist already had to be passed over it may become fewer, and `mint` goes on."""
    _: KW_ONLY
    since: int | None = None
    """When an earlier attempt asked; see `MustWait`."""

    def decide(self, context: Context) -> Plan[Minted]:
        """Responsibility, prefix, number, right."""
        series = _series(context, self, self.count)
        made: list[Handle] = []

        def make(lender: Lender) -> Sequence[Draft]:
            made[:] = series.new(lender, self.count, 1)
            return ()

        return Plan(lambda _: Minted(tuple(made), 0), make=make, reason=context.reasons[-1])


@dataclass(frozen=True, slots=True)
class Mint(Generate):
    """Make names, and a record for each; or reserve them (S1)."""

    _: KW_ONLY
    values: tuple[Value, ...] | Template = ()
    """What each record holds."""
    metadata: tuple[Value, ...] | Template | None = None
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

    def decide(self, context: Context) -> Plan[Minted]:
        """Responsibility, prefix, number, right, policy."""
        total = self.count * self.names_each
        series = _series(context, self, total)
        foreseen = _Foreseen(context.facts)
        inside = replace(context, facts=foreseen)
        trial = self._try(inside, series)
        foreseen.close()
        alike = not callable(self.values) and self.metadata is None
        made: list[Handle] = []

        def make(lender: Lender) -> Sequence[Draft]:
            made[:] = series.new(lender, total, self.names_each)
            if alike:
                return [replace(trial, handle=str(name)) for name in made]
            groups = [made[at : at + self.names_each] for at in range(0, len(made), self.names_each)]
            found = [self._drafts(inside, series, group, self.number + at) for at, group in enumerate(groups)]
            return [draft for drafts in found for draft in drafts]

        return Plan(lambda seq: Minted(tuple(made), seq), make=make, reason=context.reasons[-1])

    def _try(self, context: Context, series: "_Series") -> Draft:
        """Make the records of names that are not given to anybody, to read and check all that they rest on."""
        names = [series.stand_in() for _ in range(self.names_each)]
        per_number = callable(self.values) or callable(self.metadata)
        first = self._drafts(context, series, names, self.number)
        for number in range(self.number + 1, self.number + self.count if per_number else 0):
            self._drafts(context, series, names, number)
        return first[0]

    def _drafts(self, context: Context, series: "_Series", names: Sequence[Handle], number: int) -> list[Draft]:
        """The entries of one thing: its name, and that of its metadata record if it gets one."""
        policy = series.policy
        if self.reserve:
            return [self._reserved(context, series, name, number) for name in names]
        wanted = [self._filled(self.values, names[0], number)]
        if self.metadata is not None:
            wanted.append(self._filled(self.metadata, names[1], number))
            wanted[0] = with_value(wanted[0], policy, policy.metadata_type, str(names[1]))
            wanted[1] = with_value(wanted[1], policy, policy.object_type, str(names[0]))
        state = State.NORMAL if self.published else State.UNPUBLISHED
        drafts = []
        for name, values in zip(names, wanted, strict=True):
            check_indexes(values)
            held = series.held(name)
            owned = _with_owner(context, held, values, self.owner)
            drafts.append(context.draft(held, Action.CREATE, compose(context, held, owned, creates=True), state))
        return drafts

    def _reserved(self, context: Context, series: "_Series", name: Handle, number: int) -> Draft:
        if self.metadata is not None or self._filled(self.values, name, number):
            reason = "a reserved name stands for nothing yet, so it has no values"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "mint without reserving, or give the values later", "S1")
        return _reservation(context, series.held(name), self.owner)

    def _filled(self, template: tuple[Value, ...] | Template, name: Handle, number: int) -> tuple[Value, ...]:
        return tuple(template(name, number)) if callable(template) else template


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve names that somebody has chosen; all of them, or none (S1)."""

    handles: tuple[Handle, ...]
    owner: ValueRef | None = None

    def decide(self, context: Context) -> Plan[Minted]:
        """Responsibility, name, right, existence: only who may make names learns which ones are taken."""
        _check_count(len(self.handles))
        asked = []
        for handle in self.handles:
            checked_prefix(handle.prefix)
            held = context.own(handle)
            context.registrable(held)
            asked.append(held)
        for prefix in sorted({fold(handle.prefix) for handle in self.handles}):
            demand_making(context, context.facts.policy(prefix), prefix)
        found: dict[bytes, Held] = {}
        for held in asked:
            if held.exists or held.key in found:
                raise already_exists(held)
            if held.entry is not None:
                raise was_deleted(held)
            found[held.key] = held
        drafts = tuple([_reservation(context, held, self.owner) for held in found.values()])
        handles = tuple([held.handle for held in found.values()])
        return Plan(lambda seq: Minted(handles, seq), drafts, reason=context.reasons[-1])


def mint(
    registry: Registry,
    order: Generate,
    who: Identity,
    door: str,
    note: str = "",
    patience: float = PATIENCE,
    step_of: str = "",
) -> Iterator[Minted]:
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
        made = patiently(partial(_made, registry, part, (who, door, note, None, step_of)), part.since, patience)
        yield made
        done += len(made.handles) // each
        if done >= order.count:
            return


def _made(registry: Registry, order: Generate, by: tuple[Identity, str, str, None, str], since: int | None) -> Minted:
    return registry.do(replace(order, since=since), *by)


def patiently(attempt: Callable[[int | None], T], since: int | None, patience: float) -> T:
    """Do what makes names, again and again while the clock has to catch up, up to so many seconds; then `MustWait`.

    An attempt is told when the first one asked, which keeps its place.
    """
    while True:
        try:
            return attempt(since)
        except MustWait as wait:
            patience -= wait.seconds
            if patience < 0:
                raise
            time.sleep(wait.seconds)
            since = wait.since


@dataclass(frozen=True, slots=True)
class _Series:
    """A namespace in which somebody may make names, and how they are made there."""

    order: Generate
    policy: Policy
    before: str
    """What stands before the part that is made."""
    scheme: Scheme

    def new(self, lender: Lender, count: int, each: int) -> list[Handle]:
        """So many names that nobody has, nor ever had; fewer, and a multiple of `each`, if too many are passed over."""
        source = self._source(lender)
        found: dict[bytes, Handle] = {}
        tried = 0
        while len(found) < count and tried < MAX_TRIED:
            missing = min(count - len(found), MAX_TRIED - tried)
            tried += missing
            for name in self._made(source, missing):
                held = self.held(name)
                if held.key not in found and not lender.exists(held.key):
                    found[held.key] = held.handle
        names = list(found.values())[: len(found) // each * each]
        if not names:
            reason = f"{tried:,} names under {shown(self.before)} were tried, and all exist already"
            raise MustWait(SHORTEST_WAIT, self.order.since, reason, self.policy.line("scheme"))
        return names

    def stand_in(self) -> Handle:
        """A name as they are made here, which nobody is given; two of them may be the same."""
        source = Source(self.order.maker.clock, self.order.maker.random, MemoryLease(), _never)
        return self.held(self._made(source, 1)[0]).handle

    def held(self, name: Handle) -> Held:
        """A new name as the ledger will have it."""
        exact = self.policy.case is CaseRule.SENSITIVE
        handle = self.policy.normalise(name)
        return Held(name, handle, record_key(str(handle), exact=exact), exact, self.policy, None, ())

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
                raise Refused.by_policy(refusals)
        return names

    def _source(self, lender: Lender) -> Source:
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
                f"names under {shown(self.before)} have been given out as far ahead of the clock as is allowed; "
                f"the policy of this namespace says: {line}"
            )
            raise MustWait(seconds, since, reason, line)

        maker = self.order.maker
        return Source(maker.clock, maker.random, lease, sleep, self.policy.lead, None)


class _Foreseen(Facts):
    """Facts that are read while an operation is decided, and no more afterwards: then the reading has ended."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(None, facts.rules)
        self._facts = facts
        self._seen: dict[bytes, Entry | None] = {}
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, which the decision rests on from now on."""
        if key not in self._seen:
            if self._is_closed:
                name = shown(key.decode("utf-8", "replace"))
                reason = f"the values of a new name lead to {name} only with that very name, and not with another"
                raise Refused(ResponseCode.INVALID_VALUE, reason, "give values that can be checked beforehand")
            self._seen[key] = self._facts.entry(key, new=new)
        return self._seen[key]


def _series(context: Context, order: Generate, count: int) -> _Series:
    """Where names are asked for, if they can be made there and whoever asks may do so."""
    prefix, _, lead = order.where.partition("/")
    checked_prefix(prefix)
    if not context.facts.is_responsible(Handle(prefix, "…")):
        advice = f"ask the service of the prefix {shown(prefix)}, or home the prefix here"
        raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", advice)
    policy = context.facts.policy(prefix)
    try:
        scheme = policy.suffix_scheme()
    except InvalidPolicy as problem:
        advice = "install the package that brings the scheme, or change the policy"
        raise Refused(ResponseCode.INVALID_HANDLE, problem.message, advice, policy.line("scheme")) from problem
    if scheme is not None and lead:
        line = policy.line("scheme")
        reason = f"the suffix cannot begin with {shown(lead)}; the policy of this namespace says: {line}"
        advice = f"ask for names under {shown(prefix)}: the service makes the whole suffix"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, advice, "P8")
    series = _Series(order, policy, f"{prefix}/{lead}", scheme or UuidText())
    series.stand_in()
    _check_count(count)
    demand_making(context, policy, prefix)
    return series


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_NAMES:
        reason = f"{count:,} names cannot be made at once; 1 to {MAX_NAMES:,} can"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "ask several times")


def _with_owner(context: Context, held: Held, values: tuple[Value, ...], owner: ValueRef | None) -> tuple[Value, ...]:
    """A record with the owner that is named for it, unless it names administrators itself."""
    if owner is None or of_type(values, HS_ADMIN):
        return values
    return (*values, *administrators(values, held.policy, [checked_owner(context, owner)]))


def _reservation(context: Context, held: Held, owner: ValueRef | None) -> Draft:
    """The entry that reserves a name for whoever is named, or else asks, or else administers the namespace."""
    policy, prefix = held.policy, held.handle.prefix
    admins = _named_or_own(context, owner) or policy.administrators(prefix) or makers_of(context, prefix)
    if not admins:
        reason = f"nobody would own {shown(held.handle)}: no owner is named, and the prefix has no administrators"
        advice = "name an owner as INDEX:HANDLE, or set default_administrators in the policy"
        raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "S1")
    values = compose(context, held, administrators((), policy, admins), state=State.RESERVED)
    return context.draft(held, Action.RESERVE, values, State.RESERVED)


def _named_or_own(context: Context, owner: ValueRef | None) -> list[Admin]:
    """The owner that is named, or whoever asks."""
    return own_administrators(context) if owner is None else [checked_owner(context, owner)]


def _never(_seconds: float) -> None:
    raise AssertionError("a stand-in is made from a lease of its own, which never runs ahead")
