"""Steps of the native server, and the protocol server whose expensive steps run elsewhere.

Handling a message is a generator: it yields responses to send (`NativeResponse`), or work to do (`Work`) whose result
it gets back. So it never blocks and knows no threads. The driver decides where work is done, how much of each kind at a
time and for whom, and raises `Busy` for excess work. The protocol state changes only between two steps, never while
work is done.

`wire.server.Server` signs responses and agrees on session keys directly: 1 to 20 ms of computation. Here a response
that must be signed is returned as `UnsignedFrame`, and a session setup is returned as a request; the computation is a
function without side effects, for a pool. Changes of the server's state (sessions, challenges, counters) happen before
and after it and are quick. Everything else is inherited.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar

from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey, PublicKey
from perseid.wire import message
from perseid.wire.codes import LocalProtocolError, OpCode, OpFlag, ResponseCode, common_version
from perseid.wire.credentials import sign
from perseid.wire.framing import Frame
from perseid.wire.message import MAX_CREDENTIAL, MAX_MESSAGE, Message
from perseid.wire.requests import ExchangeMode, SessionSetup
from perseid.wire.responses import Failure, SessionSetupResult
from perseid.wire.server import Received, Reply, Request, Server, ServerSettings
from perseid.wire.sessions import (
    MAX_TIMEOUT,
    Cipher,
    Identity,
    Session,
    SessionTable,
    derive_session_key,
    generate_key_pair,
    shared_secret,
)

from .authentication import Challenges, TableLimits

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


_SIGNED_IN_SESSIONS: Final = frozenset((OpCode.SESSION_SETUP, OpCode.SESSION_EXCHANGEKEY))
_CIPHER_SENT_SINCE: Final = 4  # minor version


@dataclass(frozen=True, slots=True)
class UnsignedFrame(Frame):
    """A message that still has to be signed with the server's key. It is complete, but clients reject it."""

    message: Message = field(kw_only=True)
    encrypt_session: Session | None = field(kw_only=True, default=None)
    """The session whose key encrypts it after signing."""


@dataclass(frozen=True, slots=True)
class KeyAgreement:
    """The result of a key exchange."""

    public: DhPublicKey
    """The server's public key for the client."""
    key: bytes = field(repr=False)
    cipher: Cipher


class ProtocolServer(Server):
    """Protocol state; `respond`, `identify` and `accept` never compute for long. Not thread-safe."""

    challenges: Challenges

    def __init__(
        self, settings: ServerSettings, random: Callable[[int], bytes], sizes: TableLimits | None = None
    ) -> None:
        super().__init__(settings, random)
        sizes = sizes or TableLimits()
        self.sessions = SessionTable(sizes.sessions, sizes.unproved_sessions)
        self.challenges = Challenges(settings.challenge_life, sizes)

    def identify(self, request: Request, now: float, *, udp: bool = False) -> Identity | Reply:
        """Identify the caller; challenges issued over UDP have their own table."""
        self.challenges.issuing_over_udp = udp
        return super().identify(request, now)

    def set_last_id(self, last: int) -> None:
        """Number sessions and challenges from here on.

        After a restart, the ids of old sessions must not be reused soon: their messages would look forged instead of
        expired.
        """
        self._last_id = last

    def adopt_state(self, old: "ProtocolServer") -> None:
        """Take over the state of a server with old settings."""
        self.sessions, self.challenges, self._last_id = old.sessions, old.challenges, old._last_id  # noqa: SLF001 - same class

    # Signing

    def signing(self, message: Message) -> Callable[[], Message]:
        """Return the function that signs a message; it may run in another thread."""
        key = self._settings.key
        return lambda: sign(message, key)

    def signed(self, frame: UnsignedFrame, message: Message) -> Frame:
        """Return the frame to send for an unsigned one, given its signed message."""
        if frame.encrypt_session is not None:
            return Frame(*frame.encrypt_session.seal(message, self._random))
        return Frame(message.envelope, message.payload())

    def remember(self, request: Request, reply: Reply, *, more: bool) -> None:
        """Store the final reply to a challenge response, in case it is sent again."""
        self._store_reply(request, reply, more=more)

    def _finish(self, message: Message, request: Request, *, private: bool) -> Frame:
        session = request.session
        has_mac = session is not None and message.header.opcode not in _SIGNED_IN_SESSIONS
        if has_mac or OpFlag.CERTIFY not in message.header.flags:
            return super()._finish(message, request, private=private)
        if message.envelope.length > MAX_MESSAGE - MAX_CREDENTIAL:
            raise LocalProtocolError("with a signature the message is too long")
        encrypt_session = session if OpFlag.ENCRYPT in message.header.flags else None
        return UnsignedFrame(message.envelope, message.payload(), message=message, encrypt_session=encrypt_session)

    def _store_reply(self, request: Request, reply: Reply, *, more: bool) -> None:
        # Not the final reply while unsigned; until then, a retry gets no reply.
        if not any(isinstance(frame, UnsignedFrame) for frame in reply.frames):
            super()._store_reply(request, reply, more=more)

    # Sessions

    def prepare_key_agreement(self, request: Request) -> Callable[[], KeyAgreement]:
        """Return the function that agrees on a session key; for any thread. It raises `InvalidData`."""
        setup = request.body
        assert isinstance(setup, SessionSetup)  # noqa: S101 - checked by `_dispatch`
        sends_cipher = request.message.envelope.suggested.at_least(_CIPHER_SENT_SINCE)
        cipher = self._settings.cipher if sends_cipher else Cipher.DES
        random, data = self._random, setup.public_key

        def agree() -> KeyAgreement:
            peer_key = PublicKey.from_bytes(data)
            if not isinstance(peer_key, DhPublicKey):
                raise InvalidData("the public key is not a Diffie-Hellman key")
            own_key = generate_key_pair((peer_key.p, peer_key.g), random)
            return KeyAgreement(own_key.public, derive_session_key(cipher, shared_secret(own_key, peer_key)), cipher)

        return agree

    def begin_session(self, request: Request, key_agreement: KeyAgreement, now: float) -> Reply:
        """Start the requested session with the agreed key."""
        setup, suggested = request.body, request.message.envelope.suggested
        assert isinstance(setup, SessionSetup)  # noqa: S101 - checked by `_dispatch`
        timeout = min(setup.timeout, MAX_TIMEOUT) if setup.timeout > 0 else self._settings.session_life
        identity = Identity(setup.handle, setup.index) if setup.handle else None
        session = Session(
            self._new_id(), key_agreement.key, key_agreement.cipher, common_version(suggested), identity, timeout
        )
        self.sessions.add(session, now)
        prefix = key_agreement.cipher.to_bytes(4, "big") if suggested.at_least(_CIPHER_SENT_SINCE) else b""
        body = SessionSetupResult(ExchangeMode.DIFFIE_HELLMAN, prefix + key_agreement.public.to_bytes())
        # The response has the id of the new session, not of one that the request was sent in.
        return self.respond(replace(request, session=None), ResponseCode.SUCCESS, body, now, session_id=session.id)

    def refuse_session(self, request: Request, problem: InvalidData, now: float) -> Reply:
        """Return the reply to a failed key agreement."""
        return self.respond(request, ResponseCode.SESSION_FAILED, Failure.of(problem.message), now)

    def _dispatch(self, request: Request, now: float) -> Received:
        setup = request.body
        if isinstance(setup, SessionSetup) and setup.mode == ExchangeMode.DIFFIE_HELLMAN:
            return request
        return super()._dispatch(request, now)
