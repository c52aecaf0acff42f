"""What all changes of records have in common: who can create one, its values and timestamps, and conditions.

`require_mint` applies the policy's rule about who can create handles in a namespace (S13), for every way to create one.

All changes of every interface go through `compose`, which combines the requested values with what the policy adds,
requires and forbids: administrators for a new record without any, authority metadata, the policy's types, aliases,
TTLs, timestamps. Rules for aliases and TTLs do not apply to values that the record has or had, nor to an import: what
another server accepted stays, and does not block other corrections of the record.

The server sets timestamps, and an unchanged value keeps its own. So a client that replaces a whole record with what it
read changes no date, and authority metadata can derive the last update from the values (A3).

A conditional change is executed only if the record has not changed since it was read. A tag identifies a state of a
record. Public responses carry a tag of the public values, which anybody can compute and which reveals nothing else; or,
where they show the number of the latest entry, a tag of that number. Callers who can read everything get a tag that
changes with every entry. The condition is checked last, in the snapshot of the decision: a caller without permission
learns nothing from it.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, Generic, TypeVar

from perseid.ledger.log.clock import SECOND, TOLERANCE
from perseid.ledger.log.entry import State
from perseid.names.errors import MAX_QUOTED_LENGTH
from perseid.names.handle import Handle, find_invisible, fold
from perseid.names.uri import KNOWN_RESOLVERS
from perseid.records.encoding import to_iso
from perseid.records.errors import RecordMisuse
from perseid.records.record import Value, ascending
from perseid.records.types import DEFINITION, HS_ALIAS, HS_NAMESPACE, MAX_CHECKED_URL, has_any_type
from perseid.registry.access import permissions
from perseid.registry.access.permissions import HasRole, RequiredScope, Requirement, Role, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import (
    MAX_WARNINGS,
    Command,
    Context,
    Deferrable,
    Plan,
    add_administrators,
    check_count,
    check_sizes,
)
from perseid.registry.policy.authority import Change, CompletedRecord, complete_record
from perseid.registry.policy.policy import Audience, Policy, advise_url, find_new_urls, find_url_problems
from perseid.registry.policy.resolution import (
    check_aliases,
    check_namespaces,
    check_ttls,
    find_missing_targets,
    find_party,
)
from perseid.registry.policy.types import (
    check_definitions,
    check_types,
    find_handle_typos,
    find_type_problems,
    find_type_typos,
)
from perseid.registry.results import InvalidTimestamp, Refused, WarningKind
from perseid.registry.snapshot import StoredRecord
from perseid.schema.namespaces import Scope
from perseid.schema.records import WarningInfo
from perseid.wire.codes import ResponseCode


def set_timestamps(
    before: Collection[Value] | None, values: Iterable[Value], now: int, *, is_import: bool = False
) -> tuple[Value, ...]:
    """The values with their timestamps: those that are new or changed get `now`.

    A value is unchanged if the record had it at this index, with everything except the timestamp equal. An import keeps
    its own timestamps; 0 means none.
    """
    if not (before or is_import):  # all are new
        return tuple([value.with_timestamp(now) for value in values])
    former = {value.index: value for value in before or ()}
    return tuple([_with_timestamp(former.get(value.index), value, now, is_import) for value in values])


def _with_timestamp(former: Value | None, value: Value, now: int, is_import: bool) -> Value:
    if is_import and value.timestamp:
        return value
    if former is not None and value.with_timestamp(former.timestamp) == former:
        return former
    return value.with_timestamp(now)


def check_timestamps(before: Iterable[Value], requested: Iterable[Value], now: int) -> None:
    """Refuse values of an import with a timestamp before 1970 or in the future; 0 means none.

    Records store the low 32 bits of a time, so other times would be read as different ones. Values that the record has
    are not checked again.
    """
    known = set(before)
    for number, value in enumerate(requested):
        if 0 <= value.timestamp <= now + TOLERANCE // SECOND or value in known:
            continue
        if value.timestamp < 0:
            problem, advice = "before 1970", AdviceKind.WRITE_DATE(example=to_iso(now))
        else:
            problem, advice = "in the future", AdviceKind.CORRECT_DATE()
        reason = f"Value {value.index} has a timestamp {problem}, {_format_time(value.timestamp)}"
        raise InvalidTimestamp(reason, advice, number)


def _format_time(instant: int) -> str:
    try:
        return to_iso(instant)
    except RecordMisuse:  # ISO 8601 has no such year
        return str(instant)


MAX_INDEX = 0x7FFF_FFFF
"""The largest index."""

_SPECIAL_TYPES: Final = (HS_ALIAS, HS_NAMESPACE, DEFINITION)
"""The types whose data has rules of its own in every namespace; few records have any."""


def compose(
    context: Context,
    stored: StoredRecord,
    requested: Sequence[Value],
    *,
    whole: bool = False,
    creates: bool = False,
    state: State | None = None,
    restored: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """The values of the record after a change; refused if they violate the policy.

    `whole` means that the request has the whole record, `creates` that it creates the record, `state` is the state
    afterwards, and `restored` are values of an earlier version, which are not new. A reserved handle has neither a date
    of creation nor the required values; a tombstone need not have the required values either.
    """
    is_import = context.is_import
    after = (State.NORMAL if creates else stored.state) if state is None else state
    if is_import:
        check_timestamps(stored.values, requested, context.now)
    values = add_administrators(context, stored, requested) if creates else tuple(requested)
    if stored.policy.authority and after is not State.RESERVED:
        change = Change(
            handle=stored.handle,
            before=None if creates else stored.values,
            requested=values,
            now=context.now,
            whole=whole or creates,
            is_import=is_import,
            restored=tuple(restored),
        )
        snapshot = context.snapshot
        resolvers = (*snapshot.rules.resolvers, *KNOWN_RESOLVERS)
        completed = complete_record(stored.policy, change, lambda handle: find_party(snapshot, handle), resolvers)
        if not isinstance(completed, CompletedRecord):
            raise Refused.from_refusals(completed)
        values = completed.values
    check_count(values)
    known = (*stored.values, *restored)
    special = tuple([value for value in values if has_any_type(value.type, _SPECIAL_TYPES)])
    if not is_import:
        if special:
            _check_special(context, stored, special, known)
        check_ttls(values, known, context.now)
    complete = after not in (State.RESERVED, State.TOMBSTONE)
    if refusals := stored.policy.check_values(values, complete=complete, known=known):
        raise Refused.from_refusals(refusals)
    if not context.quiet:
        _warn_about_values(context, stored.policy, values, known)
    if special:
        check_definitions(stored.values, special)
    if refusals := list(check_types(context.snapshot, stored.policy, values, stored.values)):
        raise Refused.from_refusals(refusals)
    dated = set_timestamps(stored.values, values, context.now, is_import=is_import)
    check_sizes(dated, stored.values)
    return dated


def _check_special(context: Context, stored: StoredRecord, special: tuple[Value, ...], known: Sequence[Value]) -> None:
    """Refuse namespaces and aliases that are invalid, and warn about aliases of nothing."""
    check_namespaces(stored.values, special)
    check_aliases(context.snapshot, stored, special, known)
    for value, target in find_missing_targets(context.snapshot, special, known):
        advice = AdviceKind.FIX_ALIAS(handle=target)
        context.warn(WarningKind.ALIAS_TARGET(advice, "S2", index=value.index, target=target))


def _warn_about_values(context: Context, policy: Policy, values: Sequence[Value], known: Sequence[Value]) -> None:
    """Warn about new values that deployed servers accept, and that are probably mistakes."""
    urls = find_new_urls(values, known)
    for warning in find_url_warnings(urls, (), context.snapshot.rules.url_schemes):
        context.warn(warning)
    remove = AdviceKind.OMIT_CHARACTER()
    for value in urls:
        if what := find_invisible(value.data[:MAX_CHECKED_URL].decode("utf-8", "ignore")):
            context.warn(WarningKind.URL_CHARACTER(remove, **_describe_url(value), character=what))
    typos = chain(find_type_typos(policy, values, known), find_handle_typos(context.snapshot, policy, values, known))
    for value, meant in islice(typos, MAX_WARNINGS):
        advice = AdviceKind.USE_MEANT_TYPE(type=meant)
        context.warn(WarningKind.TYPE_TYPO(advice, index=value.index, type=value.type))
    for value, what in find_type_problems(values, known):
        context.warn(WarningKind.TYPE_CHARACTER(remove, index=value.index, type=value.type, character=what))


def find_url_warnings(
    values: Iterable[Value], known: Iterable[Value], schemes: Collection[str]
) -> Iterator[WarningInfo]:
    """The warnings about new URLs to which no client is redirected."""
    for value, problem in find_url_problems(values, known, schemes):
        yield WarningKind.UNUSABLE_URL(advise_url(problem), **_describe_url(value), problem=problem.reason)


def _describe_url(value: Value) -> dict[str, object]:
    text = value.data[:MAX_CHECKED_URL].decode("utf-8", "replace")
    return {"index": value.index, "type": value.type, "data": text[: MAX_QUOTED_LENGTH + 1]}


def reindex(values: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Move values whose index is taken by others to the next free one."""
    taken = {value.index for value in others}
    result = []
    for value in values:
        index = value.index
        while index in taken:
            index = index + 1 if index < MAX_INDEX else 1
        taken.add(index)
        result.append(replace(value, index=index))
    return result


def policy_values(stored: StoredRecord) -> tuple[Value, ...]:
    """The values that stay in a record although a request for the whole record omits them (A8)."""
    return required_values(stored.policy, stored.values)


def required_values(policy: Policy, values: Iterable[Value]) -> tuple[Value, ...]:
    """Those values that a policy requires in every record, as they are."""
    if not policy.authority:
        return ()
    types = {fold(policy.creation_date_type), fold(policy.creator_type)}
    return tuple([value for value in values if fold(value.type) in types])


TAG_LENGTH: Final = 32
"""Hexadecimal digits of a public tag: enough that nobody finds two records with the same tag."""

T = TypeVar("T")


class ConditionFailed(Refused):
    """The record does not meet the condition of the request."""

    problem_type = "precondition-failed"


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of a record for a change."""

    any_of: tuple[str, ...] | None = None
    """The record has one of these tags; None for no condition."""
    none_of: tuple[str, ...] = ()
    """The record has none of these tags."""
    exists: bool | None = None
    """Whether there is a record; None for no condition."""

    def check(self, stored: StoredRecord) -> None:
        """Refuse if the record does not meet the condition."""
        if self.exists is False and stored.exists:
            reason = f"Handle {display_name(stored.requested)} already exists"
            raise ConditionFailed(ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.REMOVE_NEW_CONDITION())
        wants_one = self.exists is True or self.any_of is not None
        if wants_one and not stored.exists:
            reason = f"Handle {display_name(stored.requested)} does not exist"
            raise ConditionFailed(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.REMOVE_EXISTS_CONDITION())
        tags = {public_tag(stored.values), entry_tag(stored.seq), version_tag(stored.seq)} if stored.exists else set()
        if (self.any_of is not None and tags.isdisjoint(self.any_of)) or not tags.isdisjoint(self.none_of):
            reason = f"Handle {display_name(stored.requested)} has changed since you read it"
            raise ConditionFailed(ResponseCode.ERROR, reason, AdviceKind.READ_AGAIN())


@dataclass(frozen=True, slots=True)
class Conditional(Deferrable, Generic[T]):
    """A command with a condition."""

    command: Command[T]
    handle: Handle
    condition: Condition

    def decide(self, context: Context) -> Plan[T]:
        """Decide the command, then check the condition."""
        plan = self.command.decide(context)
        self.condition.check(context.snapshot.stored(self.handle))
        return plan


def public_tag(values: Iterable[Value]) -> str:
    """The tag of the public values of a record."""
    contents = [value.to_bytes() for value in ascending(values) if value.is_public]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:TAG_LENGTH]


def entry_tag(seq: int) -> str:
    """The tag of a whole record, by its latest entry."""
    return f"e{seq}"


def version_tag(seq: int) -> str:
    """The tag of the public values of a record, where the number of its latest entry is shown."""
    return f"v{seq}"


def require_mint(context: Context, policy: Policy, prefix: str, scope: Scope = Scope.MINT) -> None:
    """Refuse a caller who cannot create handles under a prefix."""
    try:
        context.require(mint_requirement(policy, prefix, scope))
    except Refused as refused:
        if refused.code is ResponseCode.INSUFFICIENT_PERMISSIONS:  # of the token, whatever the policy
            raise
        line = policy.line("who_may_mint")
        reason = f"{refused.reason}; the policy of this namespace says: {line}"
        raise Refused(refused.code, reason, refused.advice, line) from refused


def mint_requirement(policy: Policy, prefix: str, scope: Scope = Scope.MINT) -> Requirement:
    """The requirement to create handles under a prefix (S13). Server administrators always can."""
    action = f"create handles under {display_name(prefix)}"
    required_scope = RequiredScope.for_namespace(prefix, scope)
    servers = (HasRole((Role.SERVER,)),)
    if policy.who_may_mint is Audience.AUTHENTICATED:
        return Requirement(action, ((),), required_scope=required_scope)
    if policy.who_may_mint is Audience.SERVER:
        return Requirement(action, (servers,), required_scope=required_scope)
    return Requirement(
        action, (*permissions.create(Handle(prefix, "…")).alternatives, servers), required_scope=required_scope
    )
