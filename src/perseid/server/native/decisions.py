"""What a client is told when something does not go as it wished: a code of the protocol and a sentence.

Deployed servers have fixed sentences for some refusals (native protocol, 7.6, 12.1, 16), and these are sent as they
are. For the others the reason is told, and what to do about it. What goes wrong inside is nobody's business but the
operator's: the client gets a number, under which the log has the kind of error and where it came from. Not its
message, which may hold anything, a statement with its parameters for example.

Deciding and carrying out what the native protocol asks: for somebody who claims, and for somebody who has proved it.

Every request is one `Operation` of the registry, reading ones too. So two calls serve them all: `weigh` decides it for
whoever claims to be somebody and does nothing, `perform` carries it out for whoever has proved it. Both take place in
one state of the ledger, and what was read of the key there the commit rests on.
"""

import logging
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Generic, NoReturn, TypeVar

from perseid.ledger.errors import (
    ClockError,
    Contention,
    LeaseClosed,
    LedgerError,
    OutcomeUnknown,
    ReadOnlyStore,
    StorageFull,
    TooBusy,
)
from perseid.ledger.log.entry import Entry
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.value import Value
from perseid.registry.commands.minting import RetryLater
from perseid.registry.context import Command, Context, Plan
from perseid.registry.identity import Identity, KeyIdentity
from perseid.registry.registry import Registry
from perseid.registry.results import ReferralError, Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.errors import LocalProtocolError
from perseid.wire.responses import Failure, Referral, ResponseBody
from perseid.wire.server import Request

from .authentication import Guard, find_keys

MAX_TEXT: Final = 400
"""Octets of the longest sentence: with all that stands before it, it fits into one packet. A refusal, which anybody can
provoke from a forged address, is then no longer than the request of a longer name."""

WRONG_PREFIX: Final = "That prefix doesn't live here"
WRONG_SERVER: Final = "Request was hashed incorrectly"
NOT_PRIMARY: Final = "Not a primary server"
"""What deployed servers say with RC_SERVER_NOT_RESP."""

INTERNAL_ERROR: Final = "Internal Error"
"""What deployed servers say when something went wrong inside."""

_FIXED_MESSAGES: Final = (
    WRONG_PREFIX,
    WRONG_SERVER,
    NOT_PRIMARY,
    "Value indexes must be positive",
    "Value list was empty",
    "Value is read-only",
    "Handle is not a prefix handle",
)
_FIXED_BY_LOWER: Final = {text.lower(): text for text in _FIXED_MESSAGES}
_INDEX_CONFLICT: Final = "Index conflict for "  # and the index

_CODES_WITHOUT_TEXT: Final = frozenset((ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND))
"""What is said without a sentence when a name is resolved: a resolver process says so too, and must say the same."""

_REFERRALS_SINCE: Final = 5  # the minor version; before it, the number of a referral meant something else

_INTERNAL_FAILURES: Final[dict[type[Exception], tuple[ResponseCode, str]]] = {
    TooBusy: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, try again shortly"),
    Contention: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, try again shortly"),
    StorageFull: (ResponseCode.ERROR, "the server has no room to store changes; nothing was changed"),
    ClockError: (ResponseCode.ERROR, "the server's clock cannot be right, so nothing was changed"),
    ReadOnlyStore: (ResponseCode.SERVER_BACKUP, "the server takes no changes at present; nothing was changed"),
    LeaseClosed: (ResponseCode.ERROR, "the server makes no names here until an operator has looked at it"),
    OutcomeUnknown: (ResponseCode.ERROR, "whether the change was made is not known; look before you try again"),
    LocalProtocolError: (ResponseCode.ERROR, "the answer is too long for a message; ask for fewer values"),
}

_logger = logging.getLogger(__name__)


class Busy(Exception):
    """Whoever does the work has too much of it; nothing was begun."""


def error_response(
    error: Exception, request: Request, reference: Callable[[], str]
) -> tuple[ResponseCode, ResponseBody]:
    """What a request gets that ended in an error; one that nobody expected is logged under a reference."""
    if isinstance(error, ReferralError):
        if request.message.envelope.suggested.at_least(_REFERRALS_SINCE):
            return ResponseCode.PREFIX_REFERRAL, Referral(values=error.values)
        return ResponseCode.SERVER_NOT_RESP, make_failure(error.reason)
    if isinstance(error, Refused):
        return error.code, Failure() if _omits_text(error, request) else make_failure(refusal_text(error))
    if isinstance(error, Busy):
        return ResponseCode.SERVER_TOO_BUSY, make_failure("the server is too busy; try again shortly")
    if (known := known_failure(error)) is not None:
        return known[0], make_failure(known[1])
    return ResponseCode.ERROR, make_failure(internal_error(error, reference()))


def known_failure(error: Exception) -> tuple[ResponseCode, str] | None:
    """The code and sentence for what can go wrong inside, the ledger's part of it being logged; None for all else."""
    for kind, response in _INTERNAL_FAILURES.items():
        if isinstance(error, kind):
            if isinstance(error, LedgerError):
                _logger.warning("a request failed: %s", kind.__name__)
            return response
    return None


def internal_error(error: Exception, reference: str) -> str:
    """Log an error that nobody expected, and say what the client is told: where to find it, and nothing else."""
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    _logger.error("%s, reference %s: %s in %s", INTERNAL_ERROR, reference, type(error).__qualname__, where)
    return f"{INTERNAL_ERROR} (reference {reference})"


def refusal_text(refused: Refused) -> str:
    """The sentence for a refusal: what deployed servers say where that is fixed, or else reason and advice."""
    reason = refused.reason
    fixed = _FIXED_BY_LOWER.get(reason.lower())
    if fixed is not None or reason.startswith(_INDEX_CONFLICT):
        return fixed or reason
    return str(refused)


def make_failure(text: str) -> Failure:
    """A failure with a sentence, cut if it is long."""
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT:
        data = data[: MAX_TEXT - 3].decode("utf-8", "ignore").encode() + "…".encode()
    return Failure(data)


def _omits_text(refused: Refused, request: Request) -> bool:
    return request.opcode == OpCode.RESOLUTION and refused.code in _CODES_WITHOUT_TEXT


INTERFACE: Final = "native"
"""What the ledger keeps as the door through which a change came."""

MAX_WAIT: Final = 1.0
"""Seconds that making a name may wait for the clock to catch up; a client waits longer than that, but not for long."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What a request came to."""

    body: ResponseBody
    overwritten: bool = False
    """Whether something that was there was replaced."""
    names: tuple[bytes, ...] | None = None
    """A list, or a part of it, to be sent in messages of its own instead of the body."""
    next_page: "RegistryRequest | None" = None
    """What gives the next part of the list."""


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """What a request asks of the registry."""

    make: Callable[[int | None], Command[RequestResult]]
    """The operation. Where a name cannot be made yet, it is asked for again with what `MustWait` says as `since`."""
    changes: bool = False
    """Whether it may write."""
    needs_identity: bool = True
    """Whether it matters who asks."""
    allow_referrals: bool = True
    """Whether the client may be sent to another service."""
    on_success: Callable[[], object] | None = None
    """What is done when the registry has allowed it."""


def execute_request(
    registry: Registry, registry_request: RegistryRequest, identity: Identity, guard: Guard | None
) -> RequestResult:
    """Carry a request out for somebody. What their key is, is read where the decision is made. Waits for the ledger."""
    done = execute(
        registry,
        lambda since: GuardedCommand(registry_request.make(since), guard, registry_request.allow_referrals),
        identity,
        INTERFACE,
    )
    if registry_request.on_success is not None:
        registry_request.on_success()
    return done


def execute(
    registry: Registry, make: Callable[[int | None], Command[T]], identity: Identity, interface: str, note: str = ""
) -> T:
    """Have the registry do something; where a name cannot be made yet, wait a little. `make` is as in `Asked`."""
    return execute_with_wait(make, lambda command: registry.do(command, identity, interface, note))


def execute_with_wait(make: Callable[[int | None], Command[T]], do: Callable[[Command[T]], R]) -> R:
    """Have an operation done; where a name cannot be made yet, wait a little. `make` is as in `Asked`."""
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
    """Decide a request as `perform` would, and do nothing. Raises the same `Refused`."""
    with registry.snapshot() as snapshot, suppress(RetryLater):  # who has to wait may do it
        GuardedCommand(registry_request.make(None), None, registry_request.allow_referrals).decide(
            Context(snapshot, identity, INTERFACE, registry.now())
        )


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A claim that was looked at and not yet verified."""

    keys: tuple[Value, ...]
    """What may prove it."""
    refused: Refused | None
    """Why the claim alone would not do, where the key that proves it may still make the difference."""


def check_claim(registry: Registry, registry_request: RegistryRequest, claimed: KeyIdentity) -> ClaimCheck:
    """Look whether somebody may do it if they are who they say, and find the keys that would prove it.

    Raises `Refused` for whoever is no administrator. Every other refusal waits until the claim is verified: it could
    tell a stranger of names that are not public. Within a session an identity without an index may be meant by the
    index of the key that proves it (14), which is not known yet, so that waits as well.
    """
    refused: Refused | None = None
    with registry.snapshot() as snapshot:
        try:
            context = Context(snapshot, claimed, INTERFACE, registry.now())
            GuardedCommand(registry_request.make(None), None, registry_request.allow_referrals).decide(context)
        except Refused as problem:
            refused = problem if problem.code == ResponseCode.INVALID_ADMIN else None
        if refused is not None and not (claimed.session and claimed.reference.index == 0):
            raise refused
        try:
            return ClaimCheck(find_keys(snapshot, claimed), refused)
        except Refused as elsewhere:
            raise refused or elsewhere from None


# Operations of the registry


@dataclass(frozen=True, slots=True)
class GuardedCommand(Generic[T]):
    """An operation that is carried out only while the key of whoever asks is what it was."""

    command: Command[T]
    guard: Guard | None
    allow_referrals: bool

    def decide(self, context: Context) -> Plan[T]:
        """The key first: whoever had it, and has it no more, learns nothing of what its owner may know."""
        if self.guard is not None:
            self.guard.check(context.snapshot)
        inner = context if self.allow_referrals else replace(context, snapshot=_WithoutReferrals(context.snapshot))
        return self.command.decide(inner)


@dataclass(frozen=True, slots=True)
class MappedCommand(Generic[T]):
    """An operation of the registry, and what its result is to a client."""

    command: Command[T]
    to_result: Callable[[T], RequestResult]

    def decide(self, context: Context) -> Plan[RequestResult]:
        """As the operation decides."""
        plan = self.command.decide(context)
        return Plan(lambda seq: self.to_result(plan.answer(seq)), plan.drafts, plan.make, plan.reason, plan.redactions)


@dataclass(frozen=True, slots=True)
class ReadCommand(Generic[T]):
    """Something that is read, as an operation: nothing is written, and it is read in the state of the decision."""

    read: Callable[[Context], T]

    def decide(self, context: Context) -> Plan[T]:
        """Read it."""
        done = self.read(context)
        return Plan(lambda _: done)


@dataclass(frozen=True, slots=True)
class UnstorableName:
    """A name under which no record can be kept anywhere: not UTF-8, without a part, too long."""

    name: bytes
    problem: str
    code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND

    def decide(self, context: Context) -> Plan[NoReturn]:
        """There is no such record, if it would be here at all."""
        self.check_responsible(context.snapshot)
        raise Refused(self.code, self.problem)

    def check_responsible(self, snapshot: Snapshot) -> None:
        """Refuse a name of a prefix that is not here."""
        prefix, slash, _ = self.name.partition(b"/")
        stand_in = Handle.for_lookup((prefix if slash else PREFIX_OF_PREFIXES.encode()) + b"/x")
        if stand_in is None or not snapshot.is_responsible(stand_in):
            raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_PREFIX)


class _WithoutReferrals(Snapshot):
    """The same facts for a client that cannot be sent elsewhere: a derived prefix that is not here is not here."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.reading, snapshot.rules)
        self._snapshot = snapshot
        self.usage = snapshot.usage

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, which the decision rests on."""
        return self._snapshot.entry(key, new=new)

    def referral(self, _handle: Handle) -> tuple[Value, ...]:
        """Nowhere."""
        return ()


def parse_lenient(name: bytes, code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND) -> Handle | UnstorableName:
    """The name as a handle, legal here or not; or what stands for a name that no server can have."""
    try:
        return Handle.parse_lenient(name)
    except InvalidName as problem:
        return UnstorableName(name, str(problem), code)
