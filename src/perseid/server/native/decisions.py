"""Registry commands for the native protocol, and the responses to errors.

Every request is one `Command` of the registry, including reads. `dry_run` and `find_claim_refusal` decide it without
executing it, `execute_request` executes it. Each decides in one snapshot of the ledger, and the key read there is a
precondition of the commit.

A refusal has its reason as text, without advice: deployed servers have fixed texts for some (native protocol, 7.6,
12.1, 16), and clients compare them. Internal errors are for the operator only: the client gets a reference, under which
the log has the type and the stack of the error, without its message, which may contain anything.
"""

import asyncio
import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Generic, NoReturn, TypeVar

from perseid.ledger.errors import (
    Contention,
    LedgerError,
    OutcomeUnknown,
    ReadOnlyStore,
    StoreUnavailable,
    TooBusy,
)
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.names.errors import InvalidName, capitalize
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.record import Value
from perseid.registry.access.token_records import check_token_identity
from perseid.registry.commands.minting import RetryLater
from perseid.registry.context import Command, Context, Plan, Stage, not_hosted
from perseid.registry.identity import Identity, KeyIdentity
from perseid.registry.registry import Registry
from perseid.registry.results import PrefixNotHosted, ReferralError, Refused, find_refusal
from perseid.registry.snapshot import LedgerNeeded, Rules, Snapshot
from perseid.server.observe.limited_log import RateLimitedLogger
from perseid.server.state.state import StateFull
from perseid.wire.codes import LocalProtocolError, OpCode, ResponseCode
from perseid.wire.responses import Failure, Referral, ResponseBody
from perseid.wire.server import Request

from .authentication import Guard, find_keys
from .resolution import WRONG_PREFIX

MAX_TEXT: Final = 400
"""Bytes of the longest text: with everything before it, it fits into one packet. A refusal, which anybody can provoke
from a forged address, is then no longer than a request with a longer name."""

NOT_PRIMARY: Final = "Not a primary server"
"""Text of deployed servers with RC_SERVER_NOT_RESP."""

INTERNAL_ERROR: Final = "Internal Error"
"""Text of deployed servers for internal errors."""

_CODES_WITHOUT_TEXT: Final = frozenset((ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND))
"""Codes without a text for resolution: the fast path sends none, and both must agree."""

_READING_OPCODES: Final = frozenset(
    (OpCode.RESOLUTION, OpCode.GET_SITE_INFO, OpCode.LIST_HANDLES, OpCode.LIST_HOMED_NAS, OpCode.VERIFY_CHALLENGE)
)

_REFERRALS_SINCE: Final = 5  # minor version; before it, the code of a referral had another meaning

_INTERNAL_FAILURES: Final[dict[type[Exception], tuple[ResponseCode, str]]] = {
    TooBusy: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, retry shortly"),
    Contention: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, retry shortly"),
    StateFull: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; retry shortly"),
    StoreUnavailable: (ResponseCode.SERVER_TOO_BUSY, "the server cannot reach its database at present; retry shortly"),
    ReadOnlyStore: (ResponseCode.SERVER_BACKUP, "the server is read-only at present; nothing was changed"),
    OutcomeUnknown: (ResponseCode.ERROR, "it is unknown whether the change was made; check before you retry"),
    LocalProtocolError: (ResponseCode.ERROR, "the response is too long for a message; request fewer values"),
}

_REFERENCE_BYTES: Final = 6
_logger = logging.getLogger(__name__)
_failure_logs = {kind: RateLimitedLogger() for kind in _INTERNAL_FAILURES}  # without the database every request fails


class Busy(Exception):
    """The work was refused because there is too much of it; nothing was started."""

    text: ClassVar = "the server is too busy; retry shortly"
    """What clients are told."""


class TooManyGuesses(Busy):
    """An attempt at a secret was refused because too many failed; nothing was checked."""

    text: ClassVar = "too many attempts to authenticate failed; retry later"

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        """Until it is worth trying again."""


def error_response(
    error: Exception, request: Request, reference: Callable[[], str]
) -> tuple[ResponseCode, ResponseBody]:
    """Return the response to a request that failed; unexpected errors are logged under a reference."""
    error = find_refusal(error, reads=request.opcode in _READING_OPCODES) or error
    if isinstance(error, ReferralError):
        if request.message.envelope.suggested.at_least(_REFERRALS_SINCE):
            return ResponseCode.PREFIX_REFERRAL, Referral(values=error.values)
        return ResponseCode.SERVER_NOT_RESP, make_failure(error.reason)
    if isinstance(error, Refused):
        return error.code, Failure() if _omits_text(error, request) else make_failure(refusal_text(error))
    if isinstance(error, Busy):
        return ResponseCode.SERVER_TOO_BUSY, make_failure(error.text)
    if (known := known_failure(error)) is not None:
        return known[0], make_failure(known[1])
    return ResponseCode.ERROR, make_failure(internal_error(error, reference()))


def known_failure(error: Exception) -> tuple[ResponseCode, str] | None:
    """Return code and text of an expected internal failure, else None; some of those of the ledger are logged."""
    for kind, response in _INTERNAL_FAILURES.items():
        if isinstance(error, kind):
            if isinstance(error, LedgerError):
                _failure_logs[kind].warning(_logger, time.monotonic(), f"request failed: {kind.__name__}")
            return response
    return None


def to_refusal(error: Exception) -> Refused:
    """Return the refusal that says why work failed that nobody waits for; unexpected errors are logged."""
    refused = error if isinstance(error, Refused) else find_refusal(error)
    if refused is not None:
        return refused
    if isinstance(error, Busy):
        return Refused(ResponseCode.SERVER_TOO_BUSY, capitalize(error.text))
    if (known := known_failure(error)) is not None:
        return Refused(known[0], capitalize(known[1]))
    return Refused(ResponseCode.ERROR, internal_error(error, secrets.token_hex(_REFERENCE_BYTES)))


def internal_error(error: Exception, reference: str) -> str:
    """Log an unexpected error; return the text for the client, which only contains the reference."""
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    _logger.error("%s, reference %s: %s in %s", INTERNAL_ERROR, reference, type(error).__qualname__, where)
    return f"{INTERNAL_ERROR} (reference {reference})"


def refusal_text(refused: Refused) -> str:
    """Return the reason, or the text of deployed servers."""
    return WRONG_PREFIX if isinstance(refused, PrefixNotHosted) else refused.reason


def make_failure(text: str) -> Failure:
    """Return a failure with a text, truncated if it is long."""
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT:
        data = data[: MAX_TEXT - 3].decode("utf-8", "ignore").encode() + "…".encode()
    return Failure(data)


def _omits_text(refused: Refused, request: Request) -> bool:
    return request.opcode == OpCode.RESOLUTION and refused.code in _CODES_WITHOUT_TEXT


INTERFACE: Final = "native"
"""The interface of changes as stored in the ledger."""

MAX_WAIT: Final = 1.0
"""Seconds that minting may wait for the clock to catch up; clients wait longer than that, but not much."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of a request."""

    body: ResponseBody
    overwritten: bool = False
    """Whether something was replaced."""
    names: tuple[bytes, ...] | None = None
    """A list, or a page of it, sent in its own messages instead of the body."""
    next_page: "RegistryRequest | None" = None
    """The request for the next page of the list."""


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """A request translated for the registry."""

    make: Callable[[int | None], Command[RequestResult]]
    """Creates the command. If minting must wait, it is called again with `since` of `RetryLater`."""
    changes: bool = False
    """Whether it may write."""
    needs_identity: bool = True
    """Whether the identity of the caller matters."""
    allow_referrals: bool = True
    """Whether the client may be referred to another service."""
    is_long: bool = False
    """Whether it reads more than a few records."""
    on_success: Callable[[], object] | None = None
    """Called after the registry has allowed it."""


def execute_request(
    registry: Registry, registry_request: RegistryRequest, identity: Identity, guard: Guard | None
) -> RequestResult:
    """Execute a request; the key is read in the snapshot of the decision. Waits for the ledger.

    What everybody can see is read from the answers view: resolution needs no database, also if the response is signed.
    """
    if guard is None and not registry_request.needs_identity:
        with suppress(LedgerNeeded), registry.public_snapshot(short_only=False) as snapshot:
            context = registry.context(snapshot, identity, INTERFACE)
            return _guarded(registry_request, guard)(None).decide(context).result(0)
    result = execute(registry, _guarded(registry_request, guard), identity, INTERFACE)
    if registry_request.on_success is not None:
        registry_request.on_success()
    return result


async def execute_change(
    registry: Registry, registry_request: RegistryRequest, identity: Identity, guard: Guard | None
) -> RequestResult:
    """The same in an event loop, for a request without `on_success`: only the commit is waited for."""
    make = _guarded(registry_request, guard)
    try:
        return await registry.execute(make(None), identity, INTERFACE)
    except RetryLater:
        return await execute_in_loop(registry, make, identity, INTERFACE)


def _guarded(
    registry_request: RegistryRequest, guard: Guard | None
) -> "Callable[[int | None], GuardedCommand[RequestResult]]":
    return lambda since: GuardedCommand(registry_request.make(since), guard, registry_request.allow_referrals)


def execute(
    registry: Registry, make: Callable[[int | None], Command[T]], identity: Identity, interface: str, note: str = ""
) -> T:
    """Execute a command; if minting must wait, wait a little. `make` is as in `RegistryRequest`."""
    return execute_with_wait(make, lambda command: registry.do(command, identity, interface, note))


async def execute_in_loop(
    registry: Registry, make: Callable[[int | None], Command[T]], identity: Identity, interface: str, note: str = ""
) -> T:
    """Like `execute`, in an event loop."""
    return await wait_in_loop(make, lambda command: registry.execute(command, identity, interface, note))


async def wait_in_loop(make: Callable[[int | None], Command[T]], do: Callable[[Command[T]], Awaitable[R]]) -> R:
    """Like `execute_with_wait`, in an event loop."""
    remaining, since = MAX_WAIT, None
    while True:
        try:
            return await do(make(since))
        except RetryLater as wait:
            remaining -= wait.seconds
            if remaining < 0:
                raise
            await asyncio.sleep(wait.seconds)
            since = wait.since


def execute_with_wait(make: Callable[[int | None], Command[T]], do: Callable[[Command[T]], R]) -> R:
    """Pass a command to `do`; if minting must wait, wait a little. `make` is as in `RegistryRequest`."""
    remaining, since = MAX_WAIT, None
    while True:
        try:
            return do(make(since))
        except RetryLater as wait:
            remaining -= wait.seconds
            if remaining < 0:
                raise
            time.sleep(wait.seconds)
            since = wait.since


def dry_run(registry: Registry, registry_request: RegistryRequest, identity: Identity) -> None:
    """Decide a request without executing it. Raises the same `Refused`.

    That it requires an identity is decided on cached entries, because it is decided again for that identity.
    """
    command = GuardedCommand(registry_request.make(None), None, registry_request.allow_referrals)
    with registry.cached_snapshot() as snapshot:
        try:
            command.decide(registry.context(_WithoutExpectations(snapshot), identity, INTERFACE, stage=Stage.COMMIT))
        except Refused as problem:
            if problem.code == ResponseCode.AUTHENTICATION_NEEDED:
                raise
    with registry.snapshot() as snapshot, suppress(RetryLater):  # having to wait is not a refusal
        command.decide(registry.context(snapshot, identity, INTERFACE, stage=Stage.COMMIT))


def find_recent_keys(registry: Registry, claimed: KeyIdentity) -> tuple[Value, ...]:
    """Return the keys that would prove a claimed identity if they are cached; they may have changed since."""
    with suppress(LedgerNeeded, Refused), registry.recent_snapshot() as snapshot:
        return find_keys(snapshot, claimed.reference, claimed.proof)
    return ()


def find_claimed_keys(registry: Registry, registry_request: RegistryRequest, claimed: KeyIdentity) -> tuple[Value, ...]:
    """Return the keys that would prove a claimed identity; raise `Refused` if none can."""
    try:
        with registry.snapshot() as snapshot:
            return find_keys(snapshot, claimed.reference, claimed.proof)
    except Refused as problem:
        raise find_claim_refusal(registry, registry_request, claimed) or problem from None


def find_claim_refusal(registry: Registry, registry_request: RegistryRequest, claimed: KeyIdentity) -> Refused | None:
    """Return the refusal of a wrong proof, if that is not because of the proof.

    As in deployed servers, a wrong proof of somebody who is not an administrator is refused because of that (14). This
    is decided as if there were only public records: a claim must not reveal others. A right proof is not decided here.
    """
    try:
        with registry.snapshot() as snapshot:
            context = registry.context(_PublicRecords(snapshot), claimed, INTERFACE, stage=Stage.COMMIT)
            GuardedCommand(registry_request.make(None), None, registry_request.allow_referrals).decide(context)
    except Refused as problem:
        return problem if problem.code == ResponseCode.INVALID_ADMIN else None
    return None


# Commands


@dataclass(frozen=True, slots=True)
class GuardedCommand(Generic[T]):
    """A command that is executed only while the caller's key is unchanged."""

    command: Command[T]
    guard: Guard | None
    allow_referrals: bool

    def decide(self, context: Context) -> Plan[T]:
        """Check the key first: with a changed key the caller learns nothing."""
        if self.guard is not None:
            self.guard.check(context.snapshot, context.now)
        inner = context if self.allow_referrals else replace(context, snapshot=_WithoutReferrals(context.snapshot))
        return inner.decide(self.command)


class AuthorizedRegistry(Registry):
    """A view of a registry for the long work of one identity, such as a job.

    Every step, reads included, checks that the key or token is still valid, and applies the current settings.
    """

    def __init__(
        self, registry: Registry, identity: Identity, guard: Guard | None, rules: Callable[[], Rules] | None = None
    ) -> None:
        """`rules` returns the current settings; by default those of the registry."""
        super().__init__(registry.ledger, registry.rules, registry.spool)
        self._identity = identity
        self._guard = guard
        self._rules_now = rules or (lambda: registry.rules)

    def prepare(self, command: Command[T]) -> Command[T]:
        """Execute a command only if the credentials are still valid."""
        self.rules = self._rules_now()
        return GuardedCommand(command, self._guard, allow_referrals=True)

    @contextmanager
    def snapshot(self, *, short_only: bool = False) -> Iterator[Snapshot]:
        """Read one state of the ledger. Raises `Refused` if the credentials are no longer valid."""
        self.rules = self._rules_now()
        with super().snapshot(short_only=short_only) as snapshot:
            if self._guard is not None:
                self._guard.check(snapshot, self.now())
            check_token_identity(Context(snapshot, self._identity, "read", self.now()))
            yield snapshot


@dataclass(frozen=True, slots=True)
class MappedCommand(Generic[T]):
    """A command of the registry, and the conversion of its result."""

    command: Command[T]
    to_result: Callable[[T], RequestResult]

    def decide(self, context: Context) -> Plan[RequestResult]:
        plan = context.decide(self.command)
        return plan.map(self.to_result)


@dataclass(frozen=True, slots=True)
class ReadCommand(Generic[T]):
    """A read as a command: it writes nothing, and reads in the snapshot of the decision."""

    read: Callable[[Context], T]

    def decide(self, context: Context) -> Plan[T]:
        result = self.read(context)
        return Plan(lambda _: result)


@dataclass(frozen=True, slots=True)
class UnstorableName:
    """A name that no record can have: not UTF-8, without prefix or suffix, or too long."""

    name: bytes
    problem: str
    code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND

    def decide(self, context: Context) -> Plan[NoReturn]:
        """Refuse: there is no such record, if the prefix is hosted here at all."""
        self.check_responsible(context.snapshot)
        raise Refused(self.code, self.problem)

    def check_responsible(self, snapshot: Snapshot) -> None:
        """Refuse a name of a prefix that is not hosted here."""
        prefix, slash, _ = self.name.partition(b"/")
        prefix = prefix if slash else PREFIX_OF_PREFIXES.encode()
        stand_in = Handle.for_lookup(prefix + b"/x")
        if stand_in is None or not snapshot.is_responsible(stand_in):
            raise not_hosted(prefix.decode("utf-8", "replace"))


class _RestrictedSnapshot(Snapshot):
    """The same snapshot for a caller who may not use all of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(None, snapshot.rules)
        self._snapshot = snapshot
        self.usage = snapshot.usage

    @property
    def reader(self) -> LogReader:
        return self._snapshot.reader  # a cached snapshot opens it on first use

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        return self._snapshot.entry(key, new=new)


class _WithoutExpectations(_RestrictedSnapshot):
    """Nothing is expected to be new: without a commit nobody would notice that it is not."""

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:  # noqa: ARG002 - as in `Snapshot`
        return super().entry(key)


class _WithoutReferrals(_RestrictedSnapshot):
    """For a client that cannot be referred: derived prefixes elsewhere are not hosted."""

    def referral(self, _handle: Handle) -> tuple[Value, ...]:
        return ()


class _PublicRecords(_RestrictedSnapshot):
    """For a caller who is not authenticated: unpublished and reserved records do not exist."""

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        entry = super().entry(key, new=new)
        return entry if entry is None or entry.state not in (State.UNPUBLISHED, State.RESERVED) else None


def parse_lenient(name: bytes, code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND) -> Handle | UnstorableName:
    """Return the handle, legal here or not; or a stand-in for a name that no record can have."""
    try:
        return Handle.parse_lenient(name)
    except InvalidName as problem:
        return UnstorableName(name, str(problem), code)
