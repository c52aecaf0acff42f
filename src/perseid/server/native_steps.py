"""How a door says what is to be done while it waits, and how it is driven.

A door is a generator: it hands out an answer to send (`Served`), or work to do (`Work`) whose result it wants back. So
it waits for nothing itself and knows no threads. Whoever drives it decides where work is done, how much of each kind at
a time and for whom, and says `Busy` to what is too much. The state of the protocol changes between two steps only, and
never while work is done.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from perseid.wire import message
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply

T = TypeVar("T")


class Kind(Enum):
    """What sort of work it is: each has a price of its own."""

    READ = "read"
    """Reads the ledger: up to a few milliseconds of SQL."""
    WRITE = "write"
    """May append to the ledger: waits for the disk."""
    SIGN = "sign"
    """Signs an answer with the server's key: about a millisecond of arithmetic."""
    VERIFY = "verify"
    """Checks an answer to a challenge: 50 µs for a signature, 5 ms and up to 0.1 s for a secret, several times that
    where it may be one of several keys."""
    AGREE = "agree"
    """Agrees on a session's key: 2 to 20 ms of arithmetic."""
    HANDSHAKE = "handshake"
    """A step of a TLS handshake: about half a millisecond, most of it the signature of the server."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to be done elsewhere; in any thread."""

    kind: Kind
    call: Callable[[], object] = field(repr=False)
    secret_of: bytes | None = None
    """Whose secret somebody gets a word about by it, where VERIFY_CHALLENGE asks for one."""
    price: float | None = None
    """What it will cost in seconds of a processor, if that can be told and is not what such work costs."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What an answer came to that VERIFY_CHALLENGE asked about. Whoever asks may be guessing."""

    secret_of: bytes
    """The handle, as it came from the network."""
    right: bool


@dataclass(frozen=True, slots=True)
class Served:
    """An answer, or one of several messages of it, and what may be said about it in a log."""

    reply: Reply
    """What to send; no messages at all where silence is the answer."""
    opcode: OpCode = OpCode.RESERVED
    """What was asked for."""
    code: ResponseCode | None = None
    """How it went; None where nothing, or nothing readable, is sent."""
    who: str = ""
    """Who asked, as far as they have proved it."""
    name: bytes = b""
    """What it was about, as it came from the network."""
    more: bool = False
    """Whether another message of the same answer follows."""
    keeps_connection: bool = False
    """Whether the client asked to keep the connection (KC)."""
    guess: Guess | None = None
    """What it says about a secret, if that is what was asked for; the code is SUCCESS then, right or wrong."""

    @property
    def is_failed_proof(self) -> bool:
        """Whether somebody tried to be who they are not, or not yet."""
        if self.guess is not None:
            return not self.guess.right
        return self.code in (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY)


Step: TypeAlias = Work | Served
Steps: TypeAlias = Generator[Step, Any, None]
"""What a door does for one request."""

Doing: TypeAlias = Generator[Step, Any, T]
"""A part of that, with a result."""


def work(kind: Kind, call: Callable[[], T], *, secret_of: bytes | None = None) -> Doing[T]:
    """Have something done."""
    result: T = yield Work(kind, call, secret_of)
    return result


def drive(steps: Steps, do: Callable[[Work], object], lock: Lock) -> Iterator[Served]:
    """The answers, with all work done as the caller says, in the caller's thread. The lock guards the steps alone."""
    result: object = None
    error: Exception | None = None
    try:
        while True:
            with lock:
                step = _advance(steps, result, error)
            result = error = None
            if step is None:
                return
            if isinstance(step, Served):
                yield step
                continue
            try:
                result = do(step)
            except Exception as problem:  # noqa: BLE001 - the door answers it
                error = problem
    finally:
        with lock:
            steps.close()


async def drive_in_loop(steps: Steps, do: Callable[[Work], Awaitable[object]]) -> AsyncGenerator[Served, None]:
    """The same in an event loop, in whose thread all steps are made."""
    result: object = None
    error: Exception | None = None
    with closing(steps):
        while (step := _advance(steps, result, error)) is not None:
            result = error = None
            if isinstance(step, Served):
                yield step
                continue
            try:
                result = await do(step)
            except Exception as problem:  # noqa: BLE001 - the door answers it
                error = problem


def _advance(steps: Steps, result: object, error: Exception | None) -> Step | None:
    """The next step, given what the work of the last one came to; None at the end."""
    try:
        return steps.send(result) if error is None else steps.throw(error)
    except StopIteration:
        return None


def code_of(frame: Frame) -> tuple[OpCode, ResponseCode | None]:
    """The opcode and code that a message shows to everybody; nothing, if it is encrypted."""
    if frame.envelope.encrypted:
        return OpCode.RESERVED, None
    shown, _ = message.Header.from_bytes(frame.payload, frame.envelope.version, 0)
    return shown.opcode, shown.response_code
