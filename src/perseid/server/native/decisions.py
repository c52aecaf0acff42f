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
    Contention,
    LeaseClosed,
    LedgerError,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    TooBusy,
    WrongClock,
)
from perseid.ledger.log.entry import Entry
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.value import Value
from perseid.registry.commands.minting import MustWait
from perseid.registry.context import Context, Operation, Plan
from perseid.registry.identity import Identity, KeyHolder
from perseid.registry.registry import Registry
from perseid.registry.results import Referred, Refused
from perseid.registry.snapshot import Facts
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.errors import LocalProtocolError
from perseid.wire.responses import Failure, Referral, ResponseBody
from perseid.wire.server import Request

from .authentication import Guard, keys_of

MAX_TEXT: Final = 400
"""Octets of the longest sentence: with all that stands before it, it fits into one packet. A refusal, which anybody can
provoke from a forged address, is then no longer than the request of a longer name."""

WRONG_PREFIX: Final = "That prefix doesn't live here"
WRONG_SERVER: Final = "Request was hashed incorrectly"
NOT_PRIMARY: Final = "Not a primary server"
"""What deployed servers say with RC_SERVER_NOT_RESP."""

INTERNAL_ERROR: Final = "Internal Error"
"""What deployed servers say when something went wrong inside."""

_FIXED: Final = (
    WRONG_PREFIX,
    WRONG_SERVER,
    NOT_PRIMARY,
    "Value indexes must be positive",
    "Value list was empty",
    "Value is read-only",
    "Handle is not a prefix handle",
)
_BY_LOWER: Final = {text.lower(): text for text in _FIXED}
_BEGINNING: Final = "Index conflict for "  # and the index

_SILENT: Final = frozenset((ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND))
"""What is said without a sentence when a name is resolved: a resolver process says so too, and must say the same."""

_REFERRALS_SINCE: Final = 5  # the minor version; before it, the number of a referral meant something else

_INSIDE: Final[dict[type[Exception], tuple[ResponseCode, str]]] = {
    TooBusy: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, try again shortly"),
    Contention: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, try again shortly"),
    StorageFull: (ResponseCode.ERROR, "the server has no room to store changes; nothing was changed"),
    WrongClock: (ResponseCode.ERROR, "the server's clock cannot be right, so nothing was changed"),
    ReadOnly: (ResponseCode.SERVER_BACKUP, "the server takes no changes at present; nothing was changed"),
    LeaseClosed: (ResponseCode.ERROR, "the server makes no names here until an operator has looked at it"),
    OutcomeUnknown: (ResponseCode.ERROR, "whether the change was made is not known; look before you try again"),
    LocalProtocolError: (ResponseCode.ERROR, "the answer is too long for a message; ask for fewer values"),
}

_logger = logging.getLogger(__name__)


class Busy(Exception):
    """Whoever does the work has too much of it; nothing was begun."""


def answer_to(error: Exception, request: Request, reference: Callable[[], str]) -> tuple[ResponseCode, ResponseBody]:
    """What a request gets that ended in an error; one that nobody expected is logged under a reference."""
    if isinstance(error, Referred):
        if request.message.envelope.suggested.at_least(_REFERRALS_SINCE):
            return ResponseCode.PREFIX_REFERRAL, Referral(values=error.values)
        return ResponseCode.SERVER_NOT_RESP, failure(error.reason)
    if isinstance(error, Refused):
        return error.code, Failure() if _is_silent(error, request) else failure(text_of(error))
    if isinstance(error, Busy):
        return ResponseCode.SERVER_TOO_BUSY, failure("the server is too busy; try again shortly")
    if (known := known_failure(error)) is not None:
        return known[0], failure(known[1])
    return ResponseCode.ERROR, failure(internal_error(error, reference()))


def known_failure(error: Exception) -> tuple[ResponseCode, str] | None:
    """The code and sentence for what can go wrong inside, the ledger's part of it being logged; None for all else."""
    for kind, told in _INSIDE.items():
        if isinstance(error, kind):
            if isinstance(error, LedgerError):
                _logger.warning("a request failed: %s", kind.__name__)
            return told
    return None


def internal_error(error: Exception, reference: str) -> str:
    """Log an error that nobody expected, and say what the client is told: where to find it, and nothing else."""
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    _logger.error("%s, reference %s: %s in %s", INTERNAL_ERROR, reference, type(error).__qualname__, where)
    return f"{INTERNAL_ERROR} (reference {reference})"


def text_of(refused: Refused) -> str:
    """The sentence for a refusal: what deployed servers say where that is fixed, or else reason and advice."""
    reason = refused.reason
    fixed = _BY_LOWER.get(reason.lower())
    if fixed is not None or reason.startswith(_BEGINNING):
        return fixed or reason
    return str(refused)


def failure(text: str) -> Failure:
    """A failure with a sentence, cut if it is long."""
    octets = text.encode("utf-8", "replace")
    if len(octets) > MAX_TEXT:
        octets = octets[: MAX_TEXT - 3].decode("utf-8", "ignore").encode() + "…".encode()
    return Failure(octets)


def _is_silent(refused: Refused, request: Request) -> bool:
    return request.opcode == OpCode.RESOLUTION and refused.code in _SILENT


DOOR: Final = "native"
"""What the ledger keeps as the door through which a change came."""

PATIENCE: Final = 1.0
"""Seconds that making a name may wait for the clock to catch up; a client waits longer than that, but not for long."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done:
    """What a request came to."""

    body: ResponseBody
    overwritten: bool = False
    """Whether something that was there was replaced."""
    names: tuple[bytes, ...] | None = None
    """A list, or a part of it, to be sent in messages of its own instead of the body."""
    following: "Asked | None" = None
    """What gives the next part of the list."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of the registry."""

    make: Callable[[int | None], Operation[Done]]
    """The operation. Where a name cannot be made yet, it is asked for again with what `MustWait` says as `since`."""
    changes: bool = False
    """Whether it may write."""
    personal: bool = True
    """Whether it matters who asks."""
    refers: bool = True
    """Whether the client may be sent to another service."""
    afterwards: Callable[[], object] | None = None
    """What is done when the registry has allowed it."""


def perform(registry: Registry, asked: Asked, who: Identity, guard: Guard | None) -> Done:
    """Carry a request out for somebody. What their key is, is read where the decision is made. Waits for the ledger."""
    done = carry_out(registry, lambda since: Guarded(asked.make(since), guard, asked.refers), who, DOOR)
    if asked.afterwards is not None:
        asked.afterwards()
    return done


def carry_out(
    registry: Registry, make: Callable[[int | None], Operation[T]], who: Identity, door: str, note: str = ""
) -> T:
    """Have the registry do something; where a name cannot be made yet, wait a little. `make` is as in `Asked`."""
    return patiently(make, lambda operation: registry.do(operation, who, door, note))


def patiently(make: Callable[[int | None], Operation[T]], do: Callable[[Operation[T]], R]) -> R:
    """Have an operation done; where a name cannot be made yet, wait a little. `make` is as in `Asked`."""
    patience, since = PATIENCE, None
    while True:
        try:
            return do(make(since))
        except MustWait as wait:
            patience -= wait.seconds
            if patience < 0:
                raise
            time.sleep(wait.seconds)
            since = wait.since


def try_out(registry: Registry, asked: Asked, who: Identity) -> None:
    """Decide a request as `perform` would, and do nothing. Raises the same `Refused`."""
    with registry.facts() as facts, suppress(MustWait):  # who has to wait may do it
        Guarded(asked.make(None), None, asked.refers).decide(Context(facts, who, DOOR, registry.now()))


@dataclass(frozen=True, slots=True)
class Weighed:
    """A claim that was looked at and not yet verified."""

    keys: tuple[Value, ...]
    """What may prove it."""
    refused: Refused | None
    """Why the claim alone would not do, where the key that proves it may still make the difference."""


def weigh(registry: Registry, asked: Asked, claimed: KeyHolder) -> Weighed:
    """Look whether somebody may do it if they are who they say, and find the keys that would prove it.

    Raises `Refused` for whoever is no administrator. Every other refusal waits until the claim is verified: it could
    tell a stranger of names that are not public. Within a session an identity without an index may be meant by the
    index of the key that proves it (14), which is not known yet, so that waits as well.
    """
    refused: Refused | None = None
    with registry.facts() as facts:
        try:
            context = Context(facts, claimed, DOOR, registry.now())
            Guarded(asked.make(None), None, asked.refers).decide(context)
        except Refused as problem:
            refused = problem if problem.code == ResponseCode.INVALID_ADMIN else None
        if refused is not None and not (claimed.session and claimed.reference.index == 0):
            raise refused
        try:
            return Weighed(keys_of(facts, claimed), refused)
        except Refused as elsewhere:
            raise refused or elsewhere from None


# Operations of the registry


@dataclass(frozen=True, slots=True)
class Guarded(Generic[T]):
    """An operation that is carried out only while the key of whoever asks is what it was."""

    operation: Operation[T]
    guard: Guard | None
    refers: bool

    def decide(self, context: Context) -> Plan[T]:
        """The key first: whoever had it, and has it no more, learns nothing of what its owner may know."""
        if self.guard is not None:
            self.guard.check(context.facts)
        inner = context if self.refers else replace(context, facts=_WithoutReferrals(context.facts))
        return self.operation.decide(inner)


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """An operation of the registry, and what its result is to a client."""

    operation: Operation[T]
    tell: Callable[[T], Done]

    def decide(self, context: Context) -> Plan[Done]:
        """As the operation decides."""
        plan = self.operation.decide(context)
        return Plan(lambda seq: self.tell(plan.answer(seq)), plan.drafts, plan.make, plan.reason, plan.redacts)


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """Something that is read, as an operation: nothing is written, and it is read in the state of the decision."""

    read: Callable[[Context], T]

    def decide(self, context: Context) -> Plan[T]:
        """Read it."""
        done = self.read(context)
        return Plan(lambda _: done)


@dataclass(frozen=True, slots=True)
class Unkeepable:
    """A name under which no record can be kept anywhere: not UTF-8, without a part, too long."""

    name: bytes
    problem: str
    code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND

    def decide(self, context: Context) -> Plan[NoReturn]:
        """There is no such record, if it would be here at all."""
        self.check_responsible(context.facts)
        raise Refused(self.code, self.problem)

    def check_responsible(self, facts: Facts) -> None:
        """Refuse a name of a prefix that is not here."""
        prefix, slash, _ = self.name.partition(b"/")
        stand_in = Handle.for_lookup((prefix if slash else PREFIX_OF_PREFIXES.encode()) + b"/x")
        if stand_in is None or not facts.is_responsible(stand_in):
            raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_PREFIX)


class _WithoutReferrals(Facts):
    """The same facts for a client that cannot be sent elsewhere: a derived prefix that is not here is not here."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts.reading, facts.rules)
        self._facts = facts
        self.spent = facts.spent

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, which the decision rests on."""
        return self._facts.entry(key, new=new)

    def referral(self, _handle: Handle) -> tuple[Value, ...]:
        """Nowhere."""
        return ()


def keepable(name: bytes, code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND) -> Handle | Unkeepable:
    """The name as a handle, legal here or not; or what stands for a name that no server can have."""
    try:
        return Handle.keepable(name)
    except InvalidName as problem:
        return Unkeepable(name, str(problem), code)
