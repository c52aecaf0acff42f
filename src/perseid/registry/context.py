"""Context and plan of a command: what it reads, who runs it, and the entries it appends.

A command is a frozen value with one method, `decide`. It reads a snapshot and either raises `Refused` or returns a
plan. It has no side effects, so the same method explains a command, and runs again when what it read has changed.

Some commands depend on more than the records they read: a minted handle is one that nobody else has. They are deferred:
decided inside the commit, where nobody else can write, perhaps in another process. So they consist of data. A command
that wraps another one decides it with `Context.decide`, which defers any command if that is wanted.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from perseid.ledger.log.entry import IMPORT, Action, Draft, State
from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_BYTES, PREFIX_OF_PREFIXES, Handle, check_prefix_syntax, find_invisible, fold
from perseid.names.suggest import OPENING, find_bare_handle
from perseid.names.uri import is_uri
from perseid.records import binary
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import MAX_VALUES, Value, ValueRef, ascending
from perseid.records.types import HS_ADMIN
from perseid.registry.access.authorization import Decision, authorize, authorize_read
from perseid.registry.access.permissions import HasRole, RequiredScope, Requirement, Role, display_name
from perseid.registry.access.roles import has_keys_or_groups
from perseid.registry.policy.authority import find_built_in_definition
from perseid.registry.policy.policy import Audience, Policy
from perseid.schema.namespaces import Scope
from perseid.schema.records import WarningInfo
from perseid.wire.codes import ResponseCode

from .advice import AdviceKind
from .identity import Identity, KeyIdentity, effective_identity
from .results import (
    InvalidRequest,
    NotPublic,
    OtherServer,
    PrefixNotHosted,
    ReferralError,
    Refused,
    StateConflict,
    WarningKind,
)
from .snapshot import SITE_PREFIX, Snapshot, StoredRecord, values_of_type

if TYPE_CHECKING:
    from perseid.ledger.log.requests import Redactions  # `resolve` needs none of that module

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FIRST_ADMIN_INDEX = 100
"""First index of administrators that the policy adds, as in deployed tools."""


_IMPORT_RECORDS = Requirement(
    "keep the dates of a record", ((HasRole((Role.SERVER,)),),), required_scope=RequiredScope.for_server(Scope.CREATE)
)


@dataclass(frozen=True, slots=True)
class Plan(Generic[T_co]):
    """The entries to append, and the result."""

    result: Callable[[Any], T_co]
    """Return the result. The argument is the sequence number of the first entry, 0 if nothing is appended; or the
    result of the deferred command."""
    drafts: tuple[Draft, ...] = ()
    """The entries: all of them are appended, or none."""
    deferred: "Deferrable | None" = None
    """The command to decide inside the commit; nothing is decided yet."""
    reason: str = ""
    """Why it is allowed."""
    redactions: "Redactions" = field(default_factory=dict)
    """What is redacted in earlier entries."""

    def map(self, convert: Callable[[T_co], T]) -> "Plan[T]":
        """The same plan with another result."""
        to_result = self.result
        return Plan(lambda result: convert(to_result(result)), self.drafts, self.deferred, self.reason, self.redactions)


MAX_WARNINGS: Final = 10
"""Warnings of one command: enough to see what is wrong."""


class Stage(Enum):
    """When a command is decided."""

    EARLY = "early"
    """Before the commit. What depends on the commit is deferred."""
    DEFERRING = "deferring"
    """Before the commit, with everything deferred that can be."""
    COMMIT = "commit"
    """Inside the commit; or as if inside it, to find out whether it would be allowed."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a command is decided on: the snapshot, the caller, the time, and what the decision collects."""

    snapshot: Snapshot
    identity: Identity
    interface: str
    """`native`, `http`, `cli`, `import` …"""
    now: int
    """Seconds since 1970."""
    note: str = ""
    """Why, or where from; stored in the entry."""
    reasons: list[str] = field(default_factory=list)
    """Why the requirements so far are met, for `explain`; none if nothing was required."""
    warnings: list[WarningInfo] = field(default_factory=list)
    """What the caller should know although the command is executed."""
    stage: Stage = Stage.EARLY
    clock: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970, for new handles."""
    random: Callable[[int], bytes] = secrets.token_bytes
    """Random bytes, for new handles."""
    quiet: bool = False
    """Whether nobody reads warnings about values, which take a tenth of the time of a decision."""

    def decide(self, command: "Command[T]") -> Plan[T]:
        """Decide a command that another one wraps; raises `Refused`."""
        if self.stage is Stage.DEFERRING and isinstance(command, Deferrable):
            return defer(command)
        return command.decide(self)

    def warn(self, warning: WarningInfo) -> None:
        """Add a warning to the result, once."""
        if warning not in self.warnings and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(warning)

    def warn_about_characters(self, name: str) -> None:
        """Warn about a character of a new handle that nobody sees."""
        if what := find_invisible(name):
            self.warn(WarningKind.HANDLE_CHARACTER(AdviceKind.OMIT_CHARACTER(), handle=name, character=what))

    # Permissions

    def require(self, requirement: Requirement) -> None:
        """Refuse a caller who does not meet a requirement."""
        decision = self.check(requirement)
        if not decision.allowed:
            raise Refused.from_decision(decision)
        self.reasons.append(decision.reason)

    def require_read(self, handle: Handle, values: Iterable[Value]) -> None:
        """Refuse a caller who cannot read these values of a record."""
        snapshot = self.snapshot
        decision = authorize_read(
            self.identity, handle, values, snapshot, snapshot.rules.administration, snapshot.usage
        )
        if not decision.allowed:
            raise Refused.from_decision(decision)

    def is_allowed(self, requirement: Requirement) -> bool:
        """Whether the caller meets a requirement."""
        return self.check(requirement).allowed

    def check(self, requirement: Requirement) -> Decision:
        """Whether the caller meets a requirement, and why."""
        snapshot = self.snapshot
        return authorize(self.identity, requirement, snapshot, snapshot.rules.administration, snapshot.usage)

    @property
    def is_import(self) -> bool:
        """Whether a server administrator imports records, with their dates."""
        return self.interface == IMPORT and self.is_allowed(_IMPORT_RECORDS)

    def for_import(self) -> Self:
        """The same for an import, which keeps the dates of records (A3); refused to others."""
        self.require(_IMPORT_RECORDS)
        return replace(self, interface=IMPORT)

    # Handles

    def get_hosted(self, handle: Handle, *, refer: bool = True, new: bool = False) -> StoredRecord:
        """The record of a handle whose prefix is hosted here; otherwise raises `Refused` or `ReferralError`.

        `new` means that no record is expected.
        """
        if fold(handle.prefix) == SITE_PREFIX:
            reason = f"{display_name(handle)} is reserved for the installation and is not a handle"
            raise Refused(ResponseCode.SERVER_NOT_RESP, reason)
        if not self.snapshot.is_responsible(handle):
            raise other_server(self.snapshot, handle) or not_hosted(handle.prefix, handle)
        stored = self.snapshot.stored(handle, new=new)
        if refer and not stored.exists and (values := self.snapshot.referral(handle)):
            raise ReferralError(values)
        return stored

    def get_for_update(self, handle: Handle) -> StoredRecord:
        """The record of a handle that will change. A handle with query or fragment has none of its own (C5)."""
        stored = self.get_hosted(handle)
        if stored.query is not None or stored.fragment is not None:
            raise Refused.from_refusals(stored.policy.check_name(handle))
        return stored

    def check_registrable(self, stored: StoredRecord, *, known: bool = False) -> None:
        """Refuse a handle that cannot be registered: by the general rules, or by the policy of its namespace.

        `known` means that the record exists and that the caller can know it: its handle may have been legal once.
        """
        try:
            if self.is_import:
                Handle.parse_lenient(str(stored.requested))  # keep what another server registered (H3)
            else:
                Handle.parse(str(stored.requested), existing=known)
        except InvalidName as problem:
            raise InvalidRequest(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem
        if stored.requested.is_prefix_handle and not (known or self.is_import):
            _check_prefix_handle(stored.requested)
        if refusals := stored.policy.check_name(stored.requested):
            raise Refused.from_refusals(refusals)
        if not known:
            self.warn_about_characters(str(stored.requested))

    # Entries

    def draft(
        self,
        stored: StoredRecord,
        action: Action,
        values: Sequence[Value],
        state: State = State.NORMAL,
        note: str | None = None,
    ) -> Draft:
        """The entry that stores these values."""
        return Draft(
            action,
            state,
            str(stored.handle),
            self.interface,
            str(self.identity),
            self.note if note is None else note,
            ascending(values),
            stored.exact,
        )


class Command(Protocol[T_co]):
    """A change that a caller can request."""

    def decide(self, context: Context) -> "Plan[T_co]":
        """Return the plan; raises `Refused`."""
        ...


class Deferrable:
    """A command that consists of data only, so that another process can decide it."""

    __slots__ = ()


def defer(command: Deferrable) -> Plan[Any]:
    """The plan to decide a command inside the commit."""
    return Plan(lambda result: result, deferred=command)


def check_open(policy: Policy, prefix: str) -> None:
    """Refuse a new handle in a retired namespace.

    Call it after the permission is checked: otherwise free handles would differ from hidden ones.
    """
    if refusals := policy.check_open(prefix):
        refused = Refused.from_refusals(refusals)
        raise StateConflict(refused.reason, refused.advice, refused.rule)


def not_found(stored: StoredRecord) -> Refused:
    """The refusal for a handle without a record."""
    return Refused(ResponseCode.HANDLE_NOT_FOUND, f"Handle {display_name(stored.requested)} does not exist")


def not_public(stored: StoredRecord, *, earlier: bool = False) -> NotPublic:
    """The refusal for an unpublished or reserved handle, to a caller who can read it.

    With `earlier` they asked for an earlier version, which is as visible as the present one.
    """
    state = f"{stored.state.label} now" if earlier else stored.state.label
    hidden = "it and its earlier versions" if earlier else "it"
    reason = f"Handle {display_name(stored.requested)} is {state}: only its administrators can see {hidden}"
    return NotPublic(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.SEE_HIDDEN(handle=stored.handle))


def not_hosted(prefix: str, handle: Handle | None = None) -> PrefixNotHosted:
    """The refusal for a prefix that this server does not host, because of a handle if there is one."""
    name = display_name(prefix) or '""'
    reason = f"This server does not host prefix {name}"
    if handle is not None and find_built_in_definition(handle) is not None:
        advice = AdviceKind.SEE_TYPE_COPY(type=handle)
    elif handle is not None and (meant := find_bare_handle(str(handle))) is not None:
        advice = AdviceKind.USE_BARE_HANDLE(handle=meant)
    elif is_uri(prefix.lstrip(OPENING)):
        advice = AdviceKind.PREFIX_EXAMPLE()
    else:
        advice = AdviceKind.HOST_PREFIX(prefix=prefix)
    return PrefixNotHosted(ResponseCode.SERVER_NOT_RESP, reason, advice)


def other_server(snapshot: Snapshot, handle: Handle) -> OtherServer | None:
    """The refusal for a handle of another server of this site; None if it is not one."""
    partition = snapshot.rules.partition
    position = None if partition is None else partition.find_other(handle)
    if partition is None or position is None or not snapshot.hosts_prefix(handle.prefix):
        return None
    what = display_name(handle) if partition.find_other_of_prefix(handle.prefix) is None else f"Prefix {handle.prefix}"
    reason = f"{what} belongs to server {position + 1} of this site; this is server {partition.position + 1}"
    advice = AdviceKind.USE_OTHER_SERVER(address=partition.address(position))
    return OtherServer(ResponseCode.SERVER_NOT_RESP, reason, advice)


def name_too_long(name: str) -> Refused:
    """The refusal for a handle that is too long to exist anywhere (H9)."""
    reason = f"Handle {display_name(name)} does not exist: a handle has at most {MAX_BYTES:,} bytes"
    return Refused(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.CHECK_COPIED_HANDLE(), "H9")


def require_prefix(text: str) -> str:
    """Return a prefix that is a search criterion, folded; refuse what cannot be one (H2)."""
    if "/" in text or Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{text}") is None:
        reason = f"Invalid prefix {display_name(text)}"
        raise InvalidRequest(ResponseCode.INVALID_HANDLE, reason, AdviceKind.PREFIX_EXAMPLE(), "H2")
    return fold(text)


def _check_prefix_handle(handle: Handle) -> None:
    """Refuse the handle of a prefix that cannot exist (H8)."""
    try:
        check_prefix_syntax(handle.suffix)
    except InvalidName as problem:
        reason, advice = (
            f"{display_name(handle)} does not name a prefix: {problem.message}",
            AdviceKind.PREFIX_EXAMPLE(),
        )
        raise InvalidRequest(ResponseCode.INVALID_HANDLE, reason, advice, problem.rule) from problem


def still_reserved(stored: StoredRecord) -> Refused:
    """The refusal for a reserved handle, which does not resolve yet."""
    reason = f"Handle {display_name(stored.requested)} is reserved and does not resolve yet"
    return StateConflict(reason, AdviceKind.CREATE_RECORD(handle=stored.requested), "S1")


def check_indexes(values: Sequence[Value]) -> None:
    """Refuse indexes that are not positive or not unique."""
    indexes = [value.index for value in values]
    if min(indexes, default=1) <= 0:
        raise Refused(ResponseCode.INVALID_VALUE, "Value indexes must be positive")
    if len({*indexes}) < len(indexes):
        seen: set[int] = set()
        for index in indexes:
            if index in seen:
                raise Refused(ResponseCode.VALUE_ALREADY_EXISTS, f"Index conflict for {index}")
            seen.add(index)


def check_count(values: Sequence[Value]) -> None:
    """Refuse a record with more values than clients can read."""
    if len(values) > MAX_VALUES:
        reason = f"The record would have {len(values):,} values; clients read at most {MAX_VALUES:,}"
        raise Refused(ResponseCode.INVALID_VALUE, reason)


def check_sizes(values: Iterable[Value], known: Sequence[Value]) -> None:
    """Refuse values that clients cannot read, except those that the record has already."""
    for value in values:
        if value.size > binary.MAX_BYTES and value not in known:
            reason = f"Value {value.index} would have {value.size:,} bytes with its type and references"
            raise Refused(ResponseCode.INVALID_VALUE, f"{reason}; the maximum is {binary.MAX_BYTES:,}")


def add_administrators(context: Context, stored: StoredRecord, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values of a new record, with the administrators of the policy if it has none.

    The protocol allows a record without administrators, which only server administrators can change. Where every
    authenticated user can mint, the caller becomes the administrator, so that they can correct or delete the record.
    Editors and readers of the prefix are not among the administrators of a record with keys or groups: see `roles`.
    """
    if values_of_type(tuple(values), HS_ADMIN):
        return tuple(values)
    admins: Sequence[Admin] = stored.policy.administrators(stored.handle.prefix)
    if has_keys_or_groups(values):
        admins = [admin for admin in admins if AdminPermission.ADD_ADMIN in admin.permissions] or admins
    if not admins and stored.policy.who_may_mint is Audience.AUTHENTICATED:
        admins = caller_as_administrator(context)
    return (*values, *admin_values(values, stored.policy, admins))


def admin_values(values: Sequence[Value], policy: Policy, admins: Sequence[Admin]) -> list[Value]:
    """HS_ADMIN values at indexes that `values` do not use."""
    if not admins:
        return []
    taken = {value.index for value in values}
    index, result = FIRST_ADMIN_INDEX, []
    for admin in admins:
        while index in taken:
            index += 1
        result.append(_admin_value(index, admin, policy.default_ttl))
        index += 1
    return result


@lru_cache(64)  # those of the namespaces that a process works with at a time
def _admin_value(index: int, admin: Admin, ttl: int) -> Value:
    return Value(index, HS_ADMIN, admin.to_bytes(), ttl=ttl)


def caller_as_administrator(context: Context) -> list[Admin]:
    """The key of the caller; a local identity has none."""
    identity = effective_identity(context.identity)
    return [Admin(ValueRef.parse(str(identity)))] if isinstance(identity, KeyIdentity) else []
