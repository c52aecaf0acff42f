"""Steps of the native server.

Handling a message is a generator: it yields responses to send (`NativeResponse`), or work to do (`Work`) whose result
it gets back. So it never blocks and knows no threads. The driver decides where work is done, how much of each kind at a
time and for whom, and raises `Busy` for excess work. The protocol state changes only between two steps, never while
work is done.
"""

import re
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


class WorkKind(Enum):
    """Kinds of work; each has its own price."""

    READ = "read"
    """Reads the ledger: up to a few milliseconds of SQL."""
    WRITE = "write"
    """May append to the ledger: waits for the disk."""
    SIGN = "sign"
    """Signs a response with the server's key: about a millisecond."""
    VERIFY = "verify"
    """Checks a challenge response: 50 µs for a signature, 5 ms and up to 0.1 s for a secret, several times that if
    several keys are possible."""
    AGREE = "agree"
    """Agrees on a session key: 2 to 20 ms."""
    HANDSHAKE = "handshake"
    """A step of a TLS handshake: about half a millisecond, most of it the server's signature."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to do elsewhere, in any thread."""

    kind: WorkKind
    call: Callable[[], object] = field(repr=False)
    secret_of: bytes | None = None
    """The secret that the work is an attempt at: `verified_secret_id` for VERIFY_CHALLENGE, else `own_secret_id`. Only
    the work that finds the result has it: if that fails, the attempt costs nothing."""
    price: float | None = None
    """Expected CPU seconds, if known and not the typical price of the kind."""


@dataclass(frozen=True, slots=True)
class SecretGuess:
    """The result of an attempt at a secret. The sender may be guessing."""

    secret_of: bytes
    """As in `Work`."""
    right: bool


@dataclass(frozen=True, slots=True)
class NativeResponse:
    """A response, or one of its messages, with what the log may show about it."""

    reply: Reply
    """What to send; no messages if there is no response."""
    opcode: OpCode = OpCode.RESERVED
    code: ResponseCode | None = None
    """The response code; None if nothing, or nothing readable, is sent."""
    identity: str = ""
    """The authenticated identity."""
    name: bytes = b""
    """The requested name, as received."""
    more: bool = False
    """Whether another message of the same response follows."""
    keep_alive: bool = False
    """Whether the client asked to keep the connection (KC)."""
    guess: SecretGuess | None = None
    """The result of VERIFY_CHALLENGE, whose code is SUCCESS, right or wrong; or of a proof by a secret."""
    failed_proof: bool = False
    """Whether a challenge response was wrong; the code may give another reason for the refusal."""

    @property
    def is_authentication_failure(self) -> bool:
        if self.guess is not None:
            return not self.guess.right
        codes = (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY)
        return self.failed_proof or self.code in codes


Step: TypeAlias = Work | NativeResponse
Steps: TypeAlias = Generator[Step, Any, None]
"""The steps for one request."""

StepsResult: TypeAlias = Generator[Step, Any, T]
"""A part of them, with a result."""


_OWN_SECRET = b"own "  # no handle starts like this: a prefix has no space


_QUERY = re.compile(rb"[?#].*", re.DOTALL)


def own_secret_id(handle: str) -> bytes:
    """The secrets of a handle in budgets, for proofs of the caller's own identity."""
    return _OWN_SECRET + verified_secret_id(handle.encode("utf-8", "replace"))


def verified_secret_id(handle: bytes) -> bytes:
    """The same for VERIFY_CHALLENGE, which checks the secret for another server.

    All spellings of a handle have the same id. A CORDRA handle has the same record with any query and fragment, so they
    are left out, in every namespace: handles that differ in them only share a budget. The limits ignore case.
    """
    return _QUERY.sub(b"", handle)


def do_work(kind: WorkKind, call: Callable[[], T], *, secret_of: bytes | None = None) -> StepsResult[T]:
    """Have work done; return its result."""
    result: T = yield Work(kind, call, secret_of)
    return result


def run_steps(steps: Steps, do: Callable[[Work], object], lock: Lock) -> Iterator[NativeResponse]:
    """Yield the responses; work is done by `do` in the caller's thread. The lock guards the steps alone."""
    result: object = None
    error: Exception | None = None
    try:
        while True:
            with lock:
                step = _advance(steps, result, error)
            result = error = None
            if step is None:
                return
            if isinstance(step, NativeResponse):
                yield step
                continue
            try:
                result = do(step)
            except Exception as problem:  # noqa: BLE001 - the steps respond to it
                error = problem
    finally:
        with lock:
            steps.close()


async def run_steps_async(
    steps: Steps, do: Callable[[Work], Awaitable[object]]
) -> AsyncGenerator[NativeResponse, None]:
    """The same in an event loop, whose thread runs all steps."""
    result: object = None
    error: Exception | None = None
    with closing(steps):
        while (step := _advance(steps, result, error)) is not None:
            result = error = None
            if isinstance(step, NativeResponse):
                yield step
                continue
            try:
                result = await do(step)
            except Exception as problem:  # noqa: BLE001 - the steps respond to it
                error = problem


def _advance(steps: Steps, result: object, error: Exception | None) -> Step | None:
    """The next step, given the result of the last one's work; None at the end."""
    try:
        return steps.send(result) if error is None else steps.throw(error)
    except StopIteration:
        return None


def read_codes(frame: Frame) -> tuple[OpCode, ResponseCode | None]:
    """Return the visible opcode and code of a message; none if it is encrypted."""
    if frame.envelope.encrypted:
        return OpCode.RESERVED, None
    shown, _ = message.Header.from_bytes(frame.payload, frame.envelope.version, 0)
    return shown.opcode, shown.response_code
