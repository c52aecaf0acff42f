"""Deciding and carrying out what the native protocol asks: for somebody who claims, and for somebody who has proved it.

Every request is one `Operation` of the registry, reading ones too. So two calls serve them all: `weigh` decides it for
whoever claims to be somebody and does nothing, `perform` carries it out for whoever has proved it. Both take place in
one state of the ledger, and what was read of the key there the commit rests on.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Generic, NoReturn, TypeVar

from perseid.ledger.log.entry import Entry
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.value import Value
from perseid.registry.commands.minting import MustWait
from perseid.registry.context import Context, Operation, Plan
from perseid.registry.identity import Identity, KeyHolder
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts
from perseid.server.native_failures import WRONG_PREFIX
from perseid.wire.codes import ResponseCode
from perseid.wire.responses import ResponseBody

from .authentication import Guard, keys_of

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
