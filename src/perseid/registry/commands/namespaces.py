"""Namespaces: a prefix with its rules, made, changed and listed.

Making a namespace is one commit: the prefix is homed, its policy stored, its prefix handle made where this server
answers for it, and so are the types that the policy uses (A6). The policy is a record of the installation's own, so no
client that replaces the prefix handle touches it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.reader import CHUNK, LogReader
from perseid.ledger.log.record_keys import HOMED, POLICY, homed_name, policy_name, record_key
from perseid.ledger.log.requests import LeaseProvider
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.names.prefixes import parent
from perseid.records.admin import AdminPermission
from perseid.records.types import DEFINITION, HS_ADMIN, HS_VLIST, has_type
from perseid.records.value import Value
from perseid.registry.access.minting_rights import making
from perseid.registry.access.permissions import HasPermissions, HasRole, Requirement, Role, display_name
from perseid.registry.access.scopes import RequiredScope, Scope
from perseid.registry.context import Context, Plan, check_indexes
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority_metadata import TypeDefinition, type_definitions
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.results import Refused
from perseid.registry.snapshot import POLICY_INDEX, POLICY_TYPE, SITE_PREFIX, Snapshot, StoredRecord
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
    require_administrators: bool = False
    """Whether somebody named these administrators. Then a prefix handle that exists must have them already: it is not
    changed, and nobody should believe that it was."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """Home the prefix, store the policy, make the prefix handle and the types that are to be here."""
        namespace_plan = self.namespace_plan(context)
        made = Namespace(self.prefix, self.policy, 0, namespace_plan.types_elsewhere)
        return _plan_policy(
            context,
            self.prefix,
            namespace_plan.policy_change,
            namespace_plan.drafts(),
            lambda seq: replace(made, seq=seq),
        )

    def namespace_plan(self, context: Context) -> "NamespacePlan":
        """What making it comes to, for whoever may; raises `Refused`."""
        check_prefix(self.prefix)
        check_indexes(self.values)
        context.require(_create_requirement(context, self.prefix))
        entry = context.snapshot.entry(record_key(policy_name(self.prefix)))
        homed = f"{PREFIX_OF_PREFIXES}/{self.prefix}"
        is_homed = context.snapshot.is_homed(homed)
        if entry is not None and entry.why != BY_DEFAULT and is_homed:
            reason = f"there is a namespace {display_name(self.prefix)} already"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "change its policy instead", "H7")
        policy_change = _check_policy_change(context, self.prefix, self.policy)
        context.snapshot.assume(self.prefix, self.policy)
        others: list[Draft] = []
        if not is_homed:
            others.append(Draft(Action.HOME, State.NORMAL, homed_name(homed), context.interface, str(context.identity)))
        others += self._prefix_handle(context)
        types, elsewhere = self._types(context)
        return NamespacePlan(
            context=context,
            namespace=self,
            is_new=entry is None,
            policy_change=policy_change,
            others=(*others, *types),
            types_elsewhere=elsewhere,
        )

    def _prefix_handle(self, context: Context) -> Iterator[Draft]:
        """The record of the prefix itself (H8), unless it exists or is another server's."""
        handle = Handle(PREFIX_OF_PREFIXES, fold(self.prefix))
        if context.snapshot.is_responsible(handle):
            stored = context.snapshot.stored(handle)
            if not stored.exists:
                yield context.draft(stored, Action.CREATE, compose(context, stored, self.values, creates=True))
            elif self.require_administrators and not _admin_data(self.values) <= _admin_data(stored.values):
                reason = (
                    f"{display_name(handle)} exists already, with other administrators "
                    "than those you name, and keeps them"
                )
                advice = "leave the administrators out, and change that record afterwards"
                raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, advice, "H8")

    def _types(self, context: Context) -> tuple[list[Draft], tuple[str, ...]]:
        """The types that the policy uses: those that belong here and do not exist, and those that are elsewhere."""
        drafts: list[Draft] = []
        elsewhere: list[str] = []
        for definition in type_definitions(self.policy):
            handle = definition.handle
            if handle is None or (stored := context.snapshot.stored(handle)).exists:
                continue
            if self._may_define(context, stored):
                values = compose(context, stored, _type_values(definition, stored), creates=True)
                drafts.append(context.draft(stored, Action.CREATE, values))
            else:
                elsewhere.append(definition.type)
        return drafts, tuple(elsewhere)

    def _may_define(self, context: Context, stored: StoredRecord) -> bool:
        """Whether the record of a type is made along: in the new namespace, or where whoever asks may make names."""
        handle = stored.handle
        if stored.entry is not None or handle.is_prefix_handle or stored.policy.check_name(handle):
            return False
        if fold(handle.prefix) == fold(self.prefix):
            return True
        return context.snapshot.is_responsible(handle) and context.is_allowed(
            making(stored.policy, handle.prefix, Scope.CREATE)
        )


def _admin_data(values: Iterable[Value]) -> set[tuple[str, bytes]]:
    """Which administrators and groups a record names."""
    kinds = (HS_ADMIN, HS_VLIST)
    return {(fold(each.type), each.data) for each in values if any(has_type(each.type, kind) for kind in kinds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePlan:
    """What making a namespace comes to: the entry of its policy, and others that go with it."""

    context: Context
    namespace: AddNamespace
    is_new: bool
    """Whether the prefix has had no policy before, not even by default."""
    policy_change: "_PolicyChange"
    others: tuple[Draft, ...]
    """That the prefix is homed, its prefix handle, and the types that the policy uses."""
    types_elsewhere: tuple[str, ...]

    def drafts(self, policy: Policy | None = None) -> tuple[Draft, ...]:
        """The entries, that of the policy first; with another policy, if one is given."""
        action = Action.CREATE if self.is_new else Action.UPDATE
        rules = self.namespace.policy if policy is None else policy
        return policy_draft(self.context, self.namespace.prefix, rules, action), *self.others

    def check(self, lender: LeaseProvider) -> None:
        """Refuse it where there are names by now that would not be found any more; while nobody else can write."""
        if self.policy_change.how is _KeyChange.IF_EMPTY:
            _check_empty(lender, self.namespace.prefix, self.policy_change)


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Give a namespace another policy. It holds for changes from then on, and makes nothing unreadable."""

    prefix: str
    policy: Policy
    change_case: bool = False
    """Whether the case rule may become another one, with all names there are (H5): see `case_rule`."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """For whoever may: see `demand_setting`."""
        require_policy_change(context, self.prefix)
        if not context.snapshot.is_homed(f"{PREFIX_OF_PREFIXES}/{fold(self.prefix)}"):
            reason = f"{display_name(self.prefix)} is not homed here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, reason, f"perseid namespace add {display_name(self.prefix)}")
        entry = context.snapshot.entry(record_key(policy_name(self.prefix)))
        policy_change = _check_policy_change(context, self.prefix, self.policy, change_case=self.change_case)
        if entry is not None and self.policy.to_toml().encode() in [value.data for value in entry.record()]:
            return Plan(lambda _: Namespace(self.prefix, self.policy, entry.seq), reason=context.reasons[-1])
        made = Action.CREATE if entry is None else Action.UPDATE
        draft = policy_draft(context, self.prefix, self.policy, made)
        return _plan_policy(
            context, self.prefix, policy_change, [draft], lambda seq: Namespace(self.prefix, self.policy, seq)
        )


def require_policy_change(context: Context, prefix: str) -> None:
    """Refuse whoever may not set a policy: it takes a server administrator, or the right to change the prefix's own."""
    check_prefix(prefix)
    by_prefix = (HasPermissions(AdminPermission.MODIFY_ADMIN, f"{PREFIX_OF_PREFIXES}/{fold(prefix)}", on_prefix=True),)
    ways = ((HasRole((Role.SERVER,)),), by_prefix)
    required_scope = RequiredScope.for_namespace(prefix, Scope.NAMESPACES)
    context.require(Requirement(f"set the policy of {display_name(prefix)}", ways, required_scope=required_scope))


class _KeyChange(Enum):
    """How the names of a namespace are found under another policy."""

    AS_BEFORE = "as before"
    IF_EMPTY = "if there are none"
    MOVED = "under other keys, to which they are moved"


@dataclass(frozen=True, slots=True)
class _PolicyChange:
    """That a namespace may have another policy."""

    how: _KeyChange
    before: Policy
    after: Policy


def _check_policy_change(context: Context, prefix: str, policy: Policy, *, change_case: bool = False) -> _PolicyChange:
    """Refuse a policy that the prefix cannot have, or under which its records would not be found any more (H5)."""
    if policy.scheme == "cordra" and (refusals := policy.check_name(Handle(prefix, "0" * 32))):
        raise Refused.from_refusals(refusals)
    names = case_rules.key_range(prefix)
    try:
        before, is_known = context.snapshot.policy(prefix), True
    except Refused:  # it cannot be read, and this one takes its place, if that hides no record
        if not context.snapshot.reading.names(*names, 1):
            return _PolicyChange(_KeyChange.IF_EMPTY, policy, policy)
        before, is_known = _last_known_policy(context.snapshot, prefix)
    has_same_lookup = before.scheme == policy.scheme or "cordra" not in (before.scheme, policy.scheme)
    entry = context.snapshot.entry(record_key(policy_name(prefix)))
    is_chosen = is_known and entry is not None and entry.why != BY_DEFAULT
    if is_chosen and not change_case and (refusals := before.check_change(policy)):
        raise Refused.from_refusals(refusals)
    if has_same_lookup and case_rules.has_same_keys(before, policy):
        return _PolicyChange(_KeyChange.AS_BEFORE, before, policy)
    if has_same_lookup and change_case:
        return _PolicyChange(_KeyChange.MOVED, before, policy)
    if context.snapshot.reading.names(*names, 1):
        raise _has_records(prefix, before)
    return _PolicyChange(_KeyChange.IF_EMPTY, before, policy)


def _last_known_policy(snapshot: Snapshot, prefix: str) -> tuple[Policy, bool]:
    """By which policy the names of a namespace are kept whose policy cannot be read, and whether that is sure.

    It is the last one that could be read, unless the names themselves say that another case rule came after it.
    """
    last = snapshot.last_readable_policy(prefix)
    likely = snapshot.rules.default_policy if last is None else last
    exact = case_rules.detect_case_sensitivity(snapshot, prefix)
    if exact is None or exact == (likely.case is CaseRule.SENSITIVE):
        return likely, last is not None
    return PROFILES["exact" if exact else "free"], False


def _plan_policy(
    context: Context,
    prefix: str,
    policy_change: _PolicyChange,
    drafts: Sequence[Draft],
    answer: Callable[[int], Namespace],
) -> Plan[Namespace]:
    """The plan for a policy. Where names would not be found as before, they are moved, or there must be none."""
    fixed = tuple(drafts)
    if policy_change.how is _KeyChange.AS_BEFORE:
        return Plan(answer, fixed, reason=context.reasons[-1])
    if policy_change.how is _KeyChange.MOVED:
        exact = policy_change.after.case is CaseRule.SENSITIVE
        return Plan(
            answer, make=case_rules.plan_case_change(context, prefix, fixed[0], exact=exact), reason=context.reasons[-1]
        )

    def make(lender: LeaseProvider) -> Sequence[Draft]:
        _check_empty(lender, prefix, policy_change)
        return fixed

    return Plan(answer, make=make, reason=context.reasons[-1])


def _check_empty(lender: LeaseProvider, prefix: str, policy_change: _PolicyChange) -> None:
    if lender.any_between(*case_rules.key_range(prefix)):
        raise _has_records(prefix, policy_change.before)


def _has_records(prefix: str, before: Policy) -> Refused:
    line = before.line("case")
    reason = (
        f"{display_name(prefix)} has records, which would not be found any more by other rules; its policy says: {line}"
    )
    return Refused(ResponseCode.INVALID_VALUE, reason, "leave case and scheme as they are", "H5")


def types_elsewhere(snapshot: Snapshot, policy: Policy) -> tuple[str, ...]:
    """The types that a policy uses and that have no definition here."""
    found = [(definition.type, definition.handle) for definition in type_definitions(policy)]
    return tuple([type_ for type_, handle in found if handle is not None and not snapshot.stored(handle).exists])


def homed_prefixes(reading: LogReader) -> Iterator[str]:
    """The table of homed prefixes, as its entries are written."""
    return _names(reading, HOMED)


def namespaces(reading: LogReader) -> Iterator[str]:
    """The prefixes that have a policy of their own, in order."""
    return _names(reading, POLICY)


def _names(reading: LogReader, before: str) -> Iterator[str]:
    first = record_key(before)
    end = first[:-1] + bytes((first[-1] + 1,))
    while page := reading.names(first, end, CHUNK):
        yield from (entry.handle.removeprefix(before) for entry in page if entry.state is State.NORMAL)
        first = page[-1].key + b"\0"


def check_prefix(prefix: str) -> None:
    """Refuse what cannot be a namespace."""
    try:
        prefixes.check_prefix(prefix)
    except InvalidName as problem:
        raise Refused(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
    if fold(prefix) in _RESERVED_PREFIXES:
        raise Refused(ResponseCode.INVALID_HANDLE, f"{fold(prefix)} belongs to the system itself", rule="H8")


def _create_requirement(context: Context, prefix: str) -> Requirement:
    """Server administrators make namespaces; for a derived one the parent's permission suffices (H6).

    A prefix handle that exists has administrators of its own, and then theirs is the right.
    """
    ways: list[tuple[HasRole | HasPermissions, ...]] = [(HasRole((Role.SERVER,)),)]
    above = parent(prefix)
    prefix_handle = f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"
    if context.snapshot.values(prefix_handle) is not None:
        ways.append((HasPermissions(AdminPermission.MODIFY_ADMIN, prefix_handle, on_prefix=True),))
    elif above is not None:
        ways.append((HasPermissions(AdminPermission.ADD_NA, f"{PREFIX_OF_PREFIXES}/{fold(above)}", on_prefix=True),))
    required_scope = RequiredScope.for_namespace(prefix, Scope.NAMESPACES)
    return Requirement(f"make the namespace {display_name(prefix)}", tuple(ways), required_scope=required_scope)


def policy_draft(context: Context, prefix: str, policy: Policy, action: Action, note: str | None = None) -> Draft:
    """The entry that gives a namespace its policy."""
    value = Value(POLICY_INDEX, POLICY_TYPE, policy.to_toml().encode(), timestamp=context.now)
    name = policy_name(prefix)
    note = context.note if note is None else note
    return Draft(action, State.NORMAL, name, context.interface, str(context.identity), note, (value,))


def _type_values(definition: TypeDefinition, stored: StoredRecord) -> tuple[Value, ...]:
    """The record of a type: what people read, and what programs do where the namespace has room for it. Where nobody
    else is known as creator of such records, it names itself (A4).
    """
    values = [Value.text(1, "DESC", definition.text)]
    if (said := definition.definition) is not None:
        exact = Value(len(values) + 1, DEFINITION, said.to_bytes())
        values += [] if stored.policy.check_values([exact], complete=False) else [exact]
    if stored.policy.authority and not stored.policy.default_creator:
        values.append(Value.text(len(values) + 1, stored.policy.creator_type, str(stored.handle)))
    return tuple(values)
