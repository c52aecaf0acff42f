"""Work of the server, and responses of the native protocol.

The process decides where work is done, how much of each kind at a time and for whom, and raises `Busy` for excess work.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from perseid.records.site import Transport
from perseid.wire import message
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply


class WorkKind(StrEnum):
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
    """Something to do, in any thread."""

    kind: WorkKind
    call: Callable[[], object] = field(repr=False)
    secret_of: bytes | None = None
    """The secret that the work is an attempt at: `verified_secret_id` for VERIFY_CHALLENGE, else `own_secret_id`. Only
    the work that finds the result has it: if that fails, the attempt costs nothing."""
    price: float | None = None
    """Expected CPU seconds, if known and not the typical price of the kind."""
    is_short: bool = False
    """Whether it takes less time than handing it over to a thread; it is then done in the event loop."""
    coroutine: Callable[[], Coroutine[Any, Any, object]] | None = field(default=None, repr=False)
    """Does the same in an event loop, where it waits without a thread."""


@dataclass(frozen=True, slots=True)
class SecretGuess:
    """The result of an attempt at a secret. The sender may be guessing."""

    secret_of: bytes
    """As in `Work`."""
    right: bool | None
    """None without a result: the attempt then costs nothing."""


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
            return self.guess.right is False
        codes = (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY)
        return self.failed_proof or self.code in codes


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


RunWork: TypeAlias = Callable[[Work, str, Transport], Awaitable[object]]
"""Does work for a client address and returns its result; raises `Busy` if it is too much."""


async def run_here(work: Work, _source: str, _transport: Transport) -> object:
    """Do work at once, without limits."""
    return work.call()


def read_codes(frame: Frame) -> tuple[OpCode, ResponseCode | None]:
    """Return the visible opcode and code of a message; none if it is encrypted."""
    if frame.envelope.encrypted:
        return OpCode.RESERVED, None
    shown, _ = message.Header.from_bytes(frame.payload, frame.envelope.version, 0)
    return shown.opcode, shown.response_code
