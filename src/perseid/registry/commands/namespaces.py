"""Namespaces: create, change and list prefixes with their policies.

Creating a namespace is one commit: it homes the prefix, stores the policy, and creates the prefix handle if this server
is responsible for it and the types that the policy uses (A6). The policy is a separate record of the installation, so
replacing the prefix handle does not affect it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import HOMED, POLICY, homed_name, key_range, policy_name, record_key
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle, check_prefix_syntax, fold, parent_prefix
from perseid.names.suggest import find_readings
from perseid.names.uri import is_uri, strip_scheme
from perseid.records.admin import AdminPermission, ValueList
from perseid.records.data_types import interpret_as
from perseid.records.record import Value
from perseid.records.types import HS_ADMIN, HS_VLIST, has_type
from perseid.registry.access import permissions
from perseid.registry.access.permissions import HasPermissions, HasRole, RequiredScope, Requirement, Role, display_name
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.context import Context, Deferrable, Plan, Stage, check_indexes, defer, not_hosted
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import TypeDefinition, type_definitions
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.results import InvalidRequest, Refused, StateConflict, WarningKind
from perseid.registry.snapshot import POLICY_INDEX, POLICY_TYPE, SITE_PREFIX, Snapshot, StoredRecord
from perseid.schema.namespaces import Scope
from perseid.schema.records import WarningInfo
from perseid.wire.codes import OpCode, ResponseCode

from .composition import compose, mint_requirement

BY_DEFAULT = "by default"
"""The note of a policy that a prefix got because it was homed without one."""

_RESERVED_PREFIXES = frozenset({SITE_PREFIX, PREFIX_OF_PREFIXES})


@dataclass(frozen=True, slots=True)
class Namespace:
    """A prefix and its policy."""

    prefix: str
    policy: Policy
    seq: int
    """The entry of the policy."""
    types_elsewhere: tuple[str, ...] = ()
    """Types that the policy uses and whose definitions belong to another service (A6)."""
    warnings: tuple[WarningInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class AddNamespace(Deferrable):
    """Create a namespace."""

    prefix: str
    policy: Policy
    values: tuple[Value, ...] = ()
    """The values of the prefix handle: administrators, keys, service information."""
    require_administrators: bool = False
    """Whether the caller chose the administrators. An existing prefix handle must then have them already, because it is
    not changed."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """Home the prefix, store the policy, create the prefix handle and the types that belong here."""
        if context.stage is not Stage.COMMIT:
            return defer(self)
        namespace_plan = self.namespace_plan(context)
        namespace = Namespace(
            self.prefix, self.policy, 0, namespace_plan.types_elsewhere, self.find_warnings(context.snapshot)
        )
        return _plan_policy(
            context,
            self.prefix,
            namespace_plan.policy_change,
            namespace_plan.drafts(),
            lambda seq: replace(namespace, seq=seq),
        )

    def namespace_plan(self, context: Context) -> "NamespacePlan":
        """The entries to append; raises `Refused`."""
        check_new_prefix(self.prefix)
        check_indexes(self.values)
        context.require(_create_requirement(context, self.prefix))
        entry = context.snapshot.policy_entry(self.prefix)
        homed = f"{PREFIX_OF_PREFIXES}/{self.prefix}"
        is_homed = context.snapshot.is_homed(homed)
        if entry is not None and entry.why != BY_DEFAULT and is_homed:
            reason = f"Namespace {display_name(self.prefix)} already exists"
            raise Refused(
                ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.CHANGE_POLICY(prefix=self.prefix), "H7"
            )
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

    def find_warnings(self, snapshot: Snapshot) -> tuple[WarningInfo, ...]:
        """Warn about chosen administrators without a record here: they cannot authenticate."""
        if not self.require_administrators:
            return ()
        groups = filter(None, (interpret_as(value, ValueList) for value in self.values))
        members = {str(each): Handle.for_lookup(each.handle) for group in groups for each in group.entries}
        own = fold(f"{PREFIX_OF_PREFIXES}/{self.prefix}")
        return tuple(
            [
                WarningKind.MISSING_ADMINISTRATOR(self._advise_missing(snapshot, handle), administrator=member)
                for member, handle in members.items()
                if handle is not None and fold(str(handle)) != own and not snapshot.stored(handle).exists
            ]
        )

    def _advise_missing(self, snapshot: Snapshot, handle: Handle) -> Advice:
        """The fix for an administrator that does not exist. Users can be added under prefixes hosted here."""
        is_user = fold(handle.prefix) != PREFIX_OF_PREFIXES
        is_hosted = fold(handle.prefix) == fold(self.prefix) or snapshot.hosts_prefix(handle.prefix)
        add_user = AdviceKind.ADD_USER(prefix=handle.prefix, name=handle.suffix)
        return add_user if is_user and is_hosted else AdviceKind.NAME_KEY_OR_GROUP()

    def _prefix_handle(self, context: Context) -> Iterator[Draft]:
        """The prefix handle (H8), unless it exists or belongs to another server."""
        handle = Handle(PREFIX_OF_PREFIXES, fold(self.prefix))
        if context.snapshot.is_responsible(handle):
            stored = context.snapshot.stored(handle)
            if not stored.exists:
                yield context.draft(stored, Action.CREATE, compose(context, stored, self.values, creates=True))
            elif self.require_administrators and not _admin_data(self.values) <= _admin_data(stored.values):
                reason = f"{display_name(handle)} already exists, with other administrators"
                raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.OMIT_ADMINISTRATORS(), "H8")

    def _types(self, context: Context) -> tuple[list[Draft], tuple[str, ...]]:
        """The types of the policy that are missing here, and those that belong elsewhere."""
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
        """Whether to create the record of a type: in the new namespace, or where the caller can create handles."""
        handle = stored.handle
        if stored.entry is not None or handle.is_prefix_handle:
            return False
        if stored.policy.check_name(handle) or stored.policy.check_open(handle.prefix):
            return False
        if fold(handle.prefix) == fold(self.prefix):
            return True
        return context.snapshot.is_responsible(handle) and context.is_allowed(
            mint_requirement(stored.policy, handle.prefix, Scope.CREATE)
        )


def _admin_data(values: Iterable[Value]) -> set[tuple[str, bytes]]:
    """The administrators and groups in a record."""
    kinds = (HS_ADMIN, HS_VLIST)
    return {(fold(each.type), each.data) for each in values if any(has_type(each.type, kind) for kind in kinds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePlan:
    """The entries of a new namespace: its policy, and those that go with it."""

    context: Context
    namespace: AddNamespace
    is_new: bool
    """Whether the prefix had no policy before, not even by default."""
    policy_change: "_PolicyChange"
    others: tuple[Draft, ...]
    """The homed prefix, its prefix handle, and the types that the policy uses."""
    types_elsewhere: tuple[str, ...]

    def drafts(self, policy: Policy | None = None) -> tuple[Draft, ...]:
        """The entries, that of the policy first; optionally with another policy."""
        action = Action.CREATE if self.is_new else Action.UPDATE
        rules = self.namespace.policy if policy is None else policy
        return policy_draft(self.context, self.namespace.prefix, rules, action), *self.others


@dataclass(frozen=True, slots=True)
class SetPolicy(Deferrable):
    """Set the policy of a namespace. It applies to later changes; existing records stay readable."""

    prefix: str
    policy: Policy
    change_case: bool = False
    """Whether the case rule can change, with all existing handles (H5): see `case_rules`."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """See `require_policy_change`."""
        if context.stage is not Stage.COMMIT:
            return defer(self)
        require_policy_change(context, self.prefix)
        if not context.snapshot.is_homed(f"{PREFIX_OF_PREFIXES}/{fold(self.prefix)}"):
            raise not_hosted(self.prefix)
        entry = context.snapshot.policy_entry(self.prefix)
        policy_change = _check_policy_change(context, self.prefix, self.policy, change_case=self.change_case)
        if entry is not None and self.policy.to_toml().encode() in [value.data for value in entry.record()]:
            return Plan(lambda _: Namespace(self.prefix, self.policy, entry.seq), reason=context.reasons[-1])
        action = Action.CREATE if entry is None else Action.UPDATE
        draft = policy_draft(context, self.prefix, self.policy, action)
        return _plan_policy(
            context, self.prefix, policy_change, [draft], lambda seq: Namespace(self.prefix, self.policy, seq)
        )


@dataclass(frozen=True, slots=True)
class RemoveNamespace(Deferrable):
    """Stop hosting a prefix under which no handle was ever registered: a handle that exists must keep resolving.

    The prefix handle stays, because its keys can be those of administrators, and so does the history.
    """

    prefix: str

    def decide(self, context: Context) -> Plan[int]:
        """Require a server administrator. The result is the first entry."""
        if context.stage is not Stage.COMMIT:
            return defer(self)
        check_prefix(self.prefix)
        context.require(permissions.server_operation(OpCode.UNHOME_NA, self.prefix))
        homed = filter(context.snapshot.is_homed, (f"{PREFIX_OF_PREFIXES}/{self.prefix}", self.prefix))
        names = [(Action.UNHOME, homed_name(name)) for name in homed]
        if not names:
            former = context.snapshot.entry(record_key(homed_name(f"{PREFIX_OF_PREFIXES}/{self.prefix}")))
            if former is None:
                raise not_hosted(self.prefix)
            reason = f"Namespace {display_name(self.prefix)} is already removed, by entry {former.seq}"
            raise StateConflict(reason, AdviceKind.LIST_NAMESPACES())
        if context.snapshot.policy_entry(self.prefix) is not None:
            names.append((Action.DELETE, policy_name(self.prefix)))
        if context.snapshot.reader.any_between(*key_range(f"{self.prefix}/")):
            reason = f"Handles were registered under {display_name(self.prefix)}, and they are never reused"
            raise StateConflict(reason, AdviceKind.RETIRE_NAMESPACE(prefix=self.prefix), "H7")
        actor, note = str(context.identity), context.note
        drafts = [Draft(action, State.ABSENT, name, context.interface, actor, note) for action, name in names]
        return Plan(lambda seq: seq, tuple(drafts), reason=context.reasons[-1])


def require_policy_change(context: Context, prefix: str) -> None:
    """Require a server administrator, or MODIFY_ADMIN on the prefix handle."""
    check_prefix(prefix)
    by_prefix = (HasPermissions(AdminPermission.MODIFY_ADMIN, f"{PREFIX_OF_PREFIXES}/{fold(prefix)}", on_prefix=True),)
    alternatives = ((HasRole((Role.SERVER,)),), by_prefix)
    required_scope = RequiredScope.for_namespace(prefix, Scope.NAMESPACES)
    action = f"set the policy of {display_name(prefix)}"
    context.require(Requirement(action, alternatives, required_scope=required_scope))


class _KeyChange(Enum):
    """How the records of a namespace are found under another policy."""

    AS_BEFORE = "as before"
    """Or there are none."""
    MOVED = "under other keys, to which they move"


@dataclass(frozen=True, slots=True)
class _PolicyChange:
    """An allowed change of the policy."""

    how: _KeyChange
    before: Policy
    after: Policy


def _check_policy_change(context: Context, prefix: str, policy: Policy, *, change_case: bool = False) -> _PolicyChange:
    """Refuse a policy that does not fit the prefix, or under which existing records would not be found (H5)."""
    if policy.scheme == "cordra" and policy.check_name(Handle(prefix, "0" * 32)):
        reason = f"A CORDRA naming authority consists of decimal digits and dots; {display_name(prefix)} does not"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.CORDRA_PREFIX_EXAMPLE(), "C1")
    names = key_range(f"{prefix}/")
    try:
        before, is_known = context.snapshot.policy(prefix), True
    except Refused:  # it cannot be read; the new one replaces it unless that hides a record
        if not context.snapshot.reader.names(*names, 1):
            return _PolicyChange(_KeyChange.AS_BEFORE, policy, policy)
        before, is_known = _last_known_policy(context.snapshot, prefix)
    has_same_lookup = before.scheme == policy.scheme or "cordra" not in (before.scheme, policy.scheme)
    entry = context.snapshot.policy_entry(prefix)
    is_chosen = is_known and entry is not None and entry.why != BY_DEFAULT
    if is_chosen and not change_case and (refusals := before.check_change(policy)):
        raise Refused.from_refusals(refusals)
    if has_same_lookup and case_rules.has_same_keys(before, policy):
        return _PolicyChange(_KeyChange.AS_BEFORE, before, policy)
    if has_same_lookup and change_case:
        return _PolicyChange(_KeyChange.MOVED, before, policy)
    if context.snapshot.reader.names(*names, 1):
        raise _has_records(prefix, before)
    return _PolicyChange(_KeyChange.AS_BEFORE, before, policy)


def _last_known_policy(snapshot: Snapshot, prefix: str) -> tuple[Policy, bool]:
    """The policy by which records were stored if the current one cannot be read, and whether that is certain.

    It is the last readable one, unless the records themselves show that another case rule came after it.
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
    result: Callable[[int], Namespace],
) -> Plan[Namespace]:
    """The plan for a policy. Records that would not be found are moved."""
    entries = tuple(drafts)
    if policy_change.how is _KeyChange.MOVED:
        exact = policy_change.after.case is CaseRule.SENSITIVE
        entries += case_rules.plan_case_change(context, prefix, entries[0], exact=exact)
    return Plan(result, entries, reason=context.reasons[-1])


def _has_records(prefix: str, before: Policy) -> Refused:
    line = before.line("case")
    reason = f"{display_name(prefix)} has records that would not be found any more; its policy says: {line}"
    return StateConflict(reason, AdviceKind.KEEP_CASE_AND_SCHEME(), "H5")


def types_elsewhere(snapshot: Snapshot, policy: Policy) -> tuple[str, ...]:
    """The types that a policy uses and that have no definition here."""
    types = [(definition.type, definition.handle) for definition in type_definitions(policy)]
    return tuple([type_ for type_, handle in types if handle is not None and not snapshot.stored(handle).exists])


def homed_prefixes(reader: LogReader) -> Iterator[str]:
    """The entries of the table of homed prefixes."""
    return _names(reader, HOMED)


def namespaces(reader: LogReader) -> Iterator[str]:
    """The prefixes with a policy, in order."""
    return _names(reader, POLICY)


def _names(reader: LogReader, start: str) -> Iterator[str]:
    entries = reader.all_names(start)
    return (entry.handle.removeprefix(start) for entry in entries if entry.state is State.NORMAL)


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that cannot be a namespace."""
    try:
        check_prefix_syntax(prefix)
    except InvalidName as problem:
        raise InvalidRequest(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
    if fold(prefix) in _RESERVED_PREFIXES:
        reason = f"Prefix {fold(prefix)} is reserved for the system"
        raise InvalidRequest(ResponseCode.INVALID_HANDLE, reason, rule="H8")


def check_new_prefix(prefix: str) -> None:
    """Refuse a prefix that cannot be a new namespace, because interfaces would read its handles as URIs."""
    check_prefix(prefix)
    uri = next((each.text for each in find_readings(prefix, ()) if is_uri(each.text)), "")  # as in `<hdl:12345>`
    if uri:
        reason = f"Prefix {display_name(prefix)} would be read as a URI, and its handles could not be resolved"
        bare = strip_scheme(uri)
        advice = AdviceKind.PREFIX_EXAMPLE() if is_uri(bare) else AdviceKind.USE_BARE_PREFIX(prefix=bare)
        raise InvalidRequest(ResponseCode.INVALID_HANDLE, reason, advice, rule="U7")


def _create_requirement(context: Context, prefix: str) -> Requirement:
    """Require a server administrator; or ADD_NA on the parent for a derived prefix (H6).

    If the prefix handle exists, require MODIFY_ADMIN on it instead of ADD_NA.
    """
    alternatives: list[tuple[HasRole | HasPermissions, ...]] = [(HasRole((Role.SERVER,)),)]
    above = parent_prefix(prefix)
    prefix_handle = f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"
    if context.snapshot.values(prefix_handle) is not None:
        alternatives.append((HasPermissions(AdminPermission.MODIFY_ADMIN, prefix_handle, on_prefix=True),))
    elif above is not None:
        above_handle = f"{PREFIX_OF_PREFIXES}/{fold(above)}"
        alternatives.append((HasPermissions(AdminPermission.ADD_NA, above_handle, on_prefix=True),))
    required_scope = RequiredScope.for_namespace(prefix, Scope.NAMESPACES)
    action = f"create the namespace {display_name(prefix)}"
    return Requirement(action, tuple(alternatives), required_scope=required_scope)


def policy_draft(context: Context, prefix: str, policy: Policy, action: Action, note: str | None = None) -> Draft:
    """The entry that stores the policy of a namespace."""
    value = Value(POLICY_INDEX, POLICY_TYPE, policy.to_toml().encode(), timestamp=context.now)
    name = policy_name(prefix)
    note = context.note if note is None else note
    return Draft(action, State.NORMAL, name, context.interface, str(context.identity), note, (value,))


def _type_values(definition: TypeDefinition, stored: StoredRecord) -> tuple[Value, ...]:
    """The record of a type: a description, and the definition where the policy allows that value. Without a default
    creator it names itself (A4).
    """
    description, *defining = definition.values
    values = [description, *[value for value in defining if not stored.policy.check_values([value], complete=False)]]
    if stored.policy.authority and not stored.policy.default_creator:
        values.append(Value.text(len(values) + 1, stored.policy.creator_type, str(stored.handle)))
    return tuple(values)
