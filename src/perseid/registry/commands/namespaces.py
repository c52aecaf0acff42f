"""Namespaces: a prefix with its rules, made, changed and listed.

Making a namespace is one commit: the prefix is homed, its policy stored, its prefix handle made where this server
answers for it, and so are the types that the policy uses (A6). The policy is a record of the installation's own, so no
client that replaces the prefix handle touches it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.reader import CHUNK, Reading
from perseid.ledger.log.record_keys import HOMED, POLICY, homed_name, policy_name, record_key
from perseid.ledger.log.requests import Lender
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.names.prefixes import parent
from perseid.records.admin import AdminPermission
from perseid.records.types import DEFINITION, HS_ADMIN, HS_VLIST, has_type
from perseid.records.value import Value
from perseid.registry.access.minting_rights import making
from perseid.registry.access.permissions import Demand, Membership, Need, Role, shown
from perseid.registry.access.scopes import Reach, Word
from perseid.registry.context import Context, Plan, check_indexes
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority_metadata import TypeDefinition, definitions
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.results import Refused
from perseid.registry.snapshot import POLICY_INDEX, POLICY_TYPE, SITE_PREFIX, Facts, Held
from perseid.wire.codes import ResponseCode

from .composition import compose

BY_DEFAULT = "by default"
"""The note of a policy that a prefix got because it was homed without one."""

_RESERVED_PREFIXES = frozenset({SITE_PREFIX, PREFIX_OF_PREFIXES})


@dataclass(frozen=True, slots=True)
class Namespace:
    """A prefix and what its policy says."""

    prefix: str
    policy: Policy
    seq: int
    """The entry that made it so."""
    types_elsewhere: tuple[str, ...] = ()
    """Types the policy uses whose definitions belong to a service elsewhere (A6)."""


@dataclass(frozen=True, slots=True)
class AddNamespace:
    """Make a namespace."""

    prefix: str
    policy: Policy
    values: tuple[Value, ...] = ()
    """What the prefix handle holds: administrators, keys, service information."""
    insists: bool = False
    """Whether somebody named these administrators. Then a prefix handle that exists must have them already: it is not
    changed, and nobody should believe that it was."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """Home the prefix, store the policy, make the prefix handle and the types that are to be here."""
        founding = self.founding(context)
        made = Namespace(self.prefix, self.policy, 0, founding.types_elsewhere)
        return _plan(context, self.prefix, founding.fits, founding.drafts(), lambda seq: replace(made, seq=seq))

    def founding(self, context: Context) -> "Founding":
        """What making it comes to, for whoever may; raises `Refused`."""
        checked_prefix(self.prefix)
        check_indexes(self.values)
        context.demand(_making(context, self.prefix))
        entry = context.facts.entry(record_key(policy_name(self.prefix)))
        homed = f"{PREFIX_OF_PREFIXES}/{self.prefix}"
        is_homed = context.facts.is_homed(homed)
        if entry is not None and entry.why != BY_DEFAULT and is_homed:
            reason = f"there is a namespace {shown(self.prefix)} already"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "change its policy instead", "H7")
        fits = _check_fits(context, self.prefix, self.policy)
        context.facts.assume(self.prefix, self.policy)
        others: list[Draft] = []
        if not is_homed:
            others.append(Draft(Action.HOME, State.NORMAL, homed_name(homed), context.door, str(context.who)))
        others += self._prefix_handle(context)
        types, elsewhere = self._types(context)
        return Founding(
            context=context,
            namespace=self,
            is_new=entry is None,
            fits=fits,
            others=(*others, *types),
            types_elsewhere=elsewhere,
        )

    def _prefix_handle(self, context: Context) -> Iterator[Draft]:
        """The record of the prefix itself (H8), unless it exists or is another server's."""
        handle = Handle(PREFIX_OF_PREFIXES, fold(self.prefix))
        if context.facts.is_responsible(handle):
            held = context.facts.held(handle)
            if not held.exists:
                yield context.draft(held, Action.CREATE, compose(context, held, self.values, creates=True))
            elif self.insists and not _said(self.values) <= _said(held.values):
                reason = (
                    f"{shown(handle)} exists already, with other administrators than those you name, and keeps them"
                )
                advice = "leave the administrators out, and change that record afterwards"
                raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, advice, "H8")

    def _types(self, context: Context) -> tuple[list[Draft], tuple[str, ...]]:
        """The types that the policy uses: those that belong here and do not exist, and those that are elsewhere."""
        drafts: list[Draft] = []
        elsewhere: list[str] = []
        for definition in definitions(self.policy):
            handle = definition.handle
            if handle is None or (held := context.facts.held(handle)).exists:
                continue
            if self._may_define(context, held):
                values = compose(context, held, _defined(definition, held), creates=True)
                drafts.append(context.draft(held, Action.CREATE, values))
            else:
                elsewhere.append(definition.type)
        return drafts, tuple(elsewhere)

    def _may_define(self, context: Context, held: Held) -> bool:
        """Whether the record of a type is made along: in the new namespace, or where whoever asks may make names."""
        handle = held.handle
        if held.entry is not None or handle.is_prefix_handle or held.policy.check_name(handle):
            return False
        if fold(handle.prefix) == fold(self.prefix):
            return True
        return context.facts.is_responsible(handle) and context.may(making(held.policy, handle.prefix, Word.CREATE))


def _said(values: Iterable[Value]) -> set[tuple[str, bytes]]:
    """Which administrators and groups a record names."""
    kinds = (HS_ADMIN, HS_VLIST)
    return {(fold(each.type), each.data) for each in values if any(has_type(each.type, kind) for kind in kinds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Founding:
    """What making a namespace comes to: the entry of its policy, and others that go with it."""

    context: Context
    namespace: AddNamespace
    is_new: bool
    """Whether the prefix has had no policy before, not even by default."""
    fits: "_Fits"
    others: tuple[Draft, ...]
    """That the prefix is homed, its prefix handle, and the types that the policy uses."""
    types_elsewhere: tuple[str, ...]

    def drafts(self, policy: Policy | None = None) -> tuple[Draft, ...]:
        """The entries, that of the policy first; with another policy, if one is given."""
        action = Action.CREATE if self.is_new else Action.UPDATE
        rules = self.namespace.policy if policy is None else policy
        return policy_draft(self.context, self.namespace.prefix, rules, action), *self.others

    def check(self, lender: Lender) -> None:
        """Refuse it where there are names by now that would not be found any more; while nobody else can write."""
        if self.fits.how is _How.IF_EMPTY:
            _check_empty(lender, self.namespace.prefix, self.fits)


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Give a namespace another policy. It holds for changes from then on, and makes nothing unreadable."""

    prefix: str
    policy: Policy
    change_case: bool = False
    """Whether the case rule may become another one, with all names there are (H5): see `case_rule`."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """For whoever may: see `demand_setting`."""
        demand_setting(context, self.prefix)
        if not context.facts.is_homed(f"{PREFIX_OF_PREFIXES}/{fold(self.prefix)}"):
            reason = f"{shown(self.prefix)} is not homed here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, reason, f"perseid namespace add {shown(self.prefix)}")
        entry = context.facts.entry(record_key(policy_name(self.prefix)))
        fits = _check_fits(context, self.prefix, self.policy, change_case=self.change_case)
        if entry is not None and self.policy.to_toml().encode() in [value.data for value in entry.record()]:
            return Plan(lambda _: Namespace(self.prefix, self.policy, entry.seq), reason=context.reasons[-1])
        made = Action.CREATE if entry is None else Action.UPDATE
        draft = policy_draft(context, self.prefix, self.policy, made)
        return _plan(context, self.prefix, fits, [draft], lambda seq: Namespace(self.prefix, self.policy, seq))


def demand_setting(context: Context, prefix: str) -> None:
    """Refuse whoever may not set a policy: it takes a server administrator, or the right to change the prefix's own."""
    checked_prefix(prefix)
    by_prefix = (Need(AdminPermission.MODIFY_ADMIN, f"{PREFIX_OF_PREFIXES}/{fold(prefix)}", on_prefix=True),)
    ways = ((Membership((Role.SERVER,)),), by_prefix)
    reach = Reach.under(prefix, Word.NAMESPACES)
    context.demand(Demand(f"set the policy of {shown(prefix)}", ways, reach=reach))


class _How(Enum):
    """How the names of a namespace are found under another policy."""

    AS_BEFORE = "as before"
    IF_EMPTY = "if there are none"
    MOVED = "under other keys, to which they are moved"


@dataclass(frozen=True, slots=True)
class _Fits:
    """That a namespace may have another policy."""

    how: _How
    before: Policy
    after: Policy


def _check_fits(context: Context, prefix: str, policy: Policy, *, change_case: bool = False) -> _Fits:
    """Refuse a policy that the prefix cannot have, or under which its records would not be found any more (H5)."""
    if policy.scheme == "cordra" and (refusals := policy.check_name(Handle(prefix, "0" * 32))):
        raise Refused.by_policy(refusals)
    names = case_rules.names_under(prefix)
    try:
        before, is_known = context.facts.policy(prefix), True
    except Refused:  # it cannot be read, and this one takes its place, if that hides no record
        if not context.facts.reading.names(*names, 1):
            return _Fits(_How.IF_EMPTY, policy, policy)
        before, is_known = _last_known(context.facts, prefix)
    finds_alike = before.scheme == policy.scheme or "cordra" not in (before.scheme, policy.scheme)
    entry = context.facts.entry(record_key(policy_name(prefix)))
    is_chosen = is_known and entry is not None and entry.why != BY_DEFAULT
    if is_chosen and not change_case and (refusals := before.may_change_to(policy)):
        raise Refused.by_policy(refusals)
    if finds_alike and case_rules.keeps_keys(before, policy):
        return _Fits(_How.AS_BEFORE, before, policy)
    if finds_alike and change_case:
        return _Fits(_How.MOVED, before, policy)
    if context.facts.reading.names(*names, 1):
        raise _has_records(prefix, before)
    return _Fits(_How.IF_EMPTY, before, policy)


def _last_known(facts: Facts, prefix: str) -> tuple[Policy, bool]:
    """By which policy the names of a namespace are kept whose policy cannot be read, and whether that is sure.

    It is the last one that could be read, unless the names themselves say that another case rule came after it.
    """
    last = facts.last_readable_policy(prefix)
    likely = facts.rules.default_policy if last is None else last
    exact = case_rules.kept_exactly(facts, prefix)
    if exact is None or exact == (likely.case is CaseRule.SENSITIVE):
        return likely, last is not None
    return PROFILES["exact" if exact else "free"], False


def _plan(
    context: Context, prefix: str, fits: _Fits, drafts: Sequence[Draft], answer: Callable[[int], Namespace]
) -> Plan[Namespace]:
    """The plan for a policy. Where names would not be found as before, they are moved, or there must be none."""
    fixed = tuple(drafts)
    if fits.how is _How.AS_BEFORE:
        return Plan(answer, fixed, reason=context.reasons[-1])
    if fits.how is _How.MOVED:
        exact = fits.after.case is CaseRule.SENSITIVE
        return Plan(answer, make=case_rules.moving(context, prefix, fixed[0], exact=exact), reason=context.reasons[-1])

    def make(lender: Lender) -> Sequence[Draft]:
        _check_empty(lender, prefix, fits)
        return fixed

    return Plan(answer, make=make, reason=context.reasons[-1])


def _check_empty(lender: Lender, prefix: str, fits: _Fits) -> None:
    if lender.any_between(*case_rules.names_under(prefix)):
        raise _has_records(prefix, fits.before)


def _has_records(prefix: str, before: Policy) -> Refused:
    line = before.line("case")
    reason = f"{shown(prefix)} has records, which would not be found any more by other rules; its policy says: {line}"
    return Refused(ResponseCode.INVALID_VALUE, reason, "leave case and scheme as they are", "H5")


def types_elsewhere(facts: Facts, policy: Policy) -> tuple[str, ...]:
    """The types that a policy uses and that have no definition here."""
    found = [(definition.type, definition.handle) for definition in definitions(policy)]
    return tuple([type_ for type_, handle in found if handle is not None and not facts.held(handle).exists])


def homed_prefixes(reading: Reading) -> Iterator[str]:
    """The table of homed prefixes, as its entries are written."""
    return _names(reading, HOMED)


def namespaces(reading: Reading) -> Iterator[str]:
    """The prefixes that have a policy of their own, in order."""
    return _names(reading, POLICY)


def _names(reading: Reading, before: str) -> Iterator[str]:
    first = record_key(before)
    end = first[:-1] + bytes((first[-1] + 1,))
    while page := reading.names(first, end, CHUNK):
        yield from (entry.handle.removeprefix(before) for entry in page if entry.state is State.NORMAL)
        first = page[-1].key + b"\0"


def checked_prefix(prefix: str) -> None:
    """Refuse what cannot be a namespace."""
    try:
        prefixes.check_prefix(prefix)
    except InvalidName as problem:
        raise Refused(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
    if fold(prefix) in _RESERVED_PREFIXES:
        raise Refused(ResponseCode.INVALID_HANDLE, f"{fold(prefix)} belongs to the system itself", rule="H8")


def _making(context: Context, prefix: str) -> Demand:
    """Server administrators make namespaces; for a derived one the parent's permission suffices (H6).

    A prefix handle that exists has administrators of its own, and then theirs is the right.
    """
    ways: list[tuple[Membership | Need, ...]] = [(Membership((Role.SERVER,)),)]
    above = parent(prefix)
    prefix_handle = f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"
    if context.facts.values(prefix_handle) is not None:
        ways.append((Need(AdminPermission.MODIFY_ADMIN, prefix_handle, on_prefix=True),))
    elif above is not None:
        ways.append((Need(AdminPermission.ADD_NA, f"{PREFIX_OF_PREFIXES}/{fold(above)}", on_prefix=True),))
    reach = Reach.under(prefix, Word.NAMESPACES)
    return Demand(f"make the namespace {shown(prefix)}", tuple(ways), reach=reach)


def policy_draft(context: Context, prefix: str, policy: Policy, action: Action, note: str | None = None) -> Draft:
    """The entry that gives a namespace its policy."""
    value = Value(POLICY_INDEX, POLICY_TYPE, policy.to_toml().encode(), timestamp=context.now)
    name = policy_name(prefix)
    note = context.note if note is None else note
    return Draft(action, State.NORMAL, name, context.door, str(context.who), note, (value,))


def _defined(definition: TypeDefinition, held: Held) -> tuple[Value, ...]:
    """The record of a type: what people read, and what programs do where the namespace has room for it. Where nobody
    else is known as creator of such records, it names itself (A4).
    """
    values = [Value.text(1, "DESC", definition.text)]
    if (said := definition.definition) is not None:
        exact = Value(len(values) + 1, DEFINITION, said.to_bytes())
        values += [] if held.policy.check_values([exact], complete=False) else [exact]
    if held.policy.authority and not held.policy.default_creator:
        values.append(Value.text(len(values) + 1, held.policy.creator_type, str(held.handle)))
    return tuple(values)
