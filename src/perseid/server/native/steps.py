"""How a door says what is to be done while it waits, and how it is driven.

A door is a generator: it hands out an answer to send (`Served`), or work to do (`Work`) whose result it wants back. So
it waits for nothing itself and knows no threads. Whoever drives it decides where work is done, how much of each kind at
a time and for whom, and says `Busy` to what is too much. The state of the protocol changes between two steps only, and
never while work is done.

The protocol's server with its expensive steps taken out, so that whoever drives it can have them done elsewhere.

`wire.Server` signs an answer and agrees on a session's key where it stands: 1 to 20 ms of arithmetic in the middle of
what must not wait. Here an answer that has to be signed comes back `Unsigned`, and the wish for a session comes back as
a request; the arithmetic is a function without side effects, for a pool. What changes the state of the server, sessions
and challenges and counters, is done before and after it and is quick. Everything else is `wire.Server`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar

from perseid.records.errors import InvalidData
from perseid.records.public_keys import DhPublicKey, PublicKey
from perseid.wire import message
from perseid.wire.codes import OpCode, OpFlag, ResponseCode, common_version
from perseid.wire.credentials import sign
from perseid.wire.errors import LocalProtocolError
from perseid.wire.framing import Frame
from perseid.wire.key_exchange import derive_session_key, generate_key_pair, shared_secret
from perseid.wire.message import MAX_CREDENTIAL, MAX_MESSAGE, Message
from perseid.wire.requests import ExchangeMode, SessionSetup
from perseid.wire.responses import Failure, SessionSetupResult
from perseid.wire.server import Received, Reply, Request, Server, ServerSettings
from perseid.wire.sessions import MAX_TIMEOUT, Cipher, Identity, Session, SessionTable

from .authentication import Challenges, TableLimits

T = TypeVar("T")


class WorkKind(Enum):
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

    kind: WorkKind
    call: Callable[[], object] = field(repr=False)
    secret_of: bytes | None = None
    """Whose secret somebody gets a word about by it, where VERIFY_CHALLENGE asks for one."""
    price: float | None = None
    """What it will cost in seconds of a processor, if that can be told and is not what such work costs."""


@dataclass(frozen=True, slots=True)
class SecretGuess:
    """What an answer came to that VERIFY_CHALLENGE asked about. Whoever asks may be guessing."""

    secret_of: bytes
    """The handle, as it came from the network."""
    right: bool


@dataclass(frozen=True, slots=True)
class NativeResponse:
    """An answer, or one of several messages of it, and what may be said about it in a log."""

    reply: Reply
    """What to send; no messages at all where silence is the answer."""
    opcode: OpCode = OpCode.RESERVED
    """What was asked for."""
    code: ResponseCode | None = None
    """How it went; None where nothing, or nothing readable, is sent."""
    identity: str = ""
    """Who asked, as far as they have proved it."""
    name: bytes = b""
    """What it was about, as it came from the network."""
    more: bool = False
    """Whether another message of the same answer follows."""
    keep_alive: bool = False
    """Whether the client asked to keep the connection (KC)."""
    guess: SecretGuess | None = None
    """What it says about a secret, if that is what was asked for; the code is SUCCESS then, right or wrong."""

    @property
    def is_authentication_failure(self) -> bool:
        """Whether somebody tried to be who they are not, or not yet."""
        if self.guess is not None:
            return not self.guess.right
        return self.code in (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY)


Step: TypeAlias = Work | NativeResponse
Steps: TypeAlias = Generator[Step, Any, None]
"""What a door does for one request."""

StepsResult: TypeAlias = Generator[Step, Any, T]
"""A part of that, with a result."""


def do_work(kind: WorkKind, call: Callable[[], T], *, secret_of: bytes | None = None) -> StepsResult[T]:
    """Have something done."""
    result: T = yield Work(kind, call, secret_of)
    return result


def run_steps(steps: Steps, do: Callable[[Work], object], lock: Lock) -> Iterator[NativeResponse]:
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
            if isinstance(step, NativeResponse):
                yield step
                continue
            try:
                result = do(step)
            except Exception as problem:  # noqa: BLE001 - the door answers it
                error = problem
    finally:
        with lock:
            steps.close()


async def run_steps_async(
    steps: Steps, do: Callable[[Work], Awaitable[object]]
) -> AsyncGenerator[NativeResponse, None]:
    """The same in an event loop, in whose thread all steps are made."""
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
            except Exception as problem:  # noqa: BLE001 - the door answers it
                error = problem


def _advance(steps: Steps, result: object, error: Exception | None) -> Step | None:
    """The next step, given what the work of the last one came to; None at the end."""
    try:
        return steps.send(result) if error is None else steps.throw(error)
    except StopIteration:
        return None


def read_codes(frame: Frame) -> tuple[OpCode, ResponseCode | None]:
    """The opcode and code that a message shows to everybody; nothing, if it is encrypted."""
    if frame.envelope.encrypted:
        return OpCode.RESERVED, None
    shown, _ = message.Header.from_bytes(frame.payload, frame.envelope.version, 0)
    return shown.opcode, shown.response_code


_SIGNED_IN_SESSIONS: Final = frozenset((OpCode.SESSION_SETUP, OpCode.SESSION_EXCHANGEKEY))
_CIPHER_SENT_SINCE: Final = 4  # the minor version


@dataclass(frozen=True, slots=True)
class UnsignedFrame(Frame):
    """A message that still has to be signed with the server's key. As it stands it is whole, and clients refuse it."""

    message: Message = field(kw_only=True)
    encrypt_session: Session | None = field(kw_only=True, default=None)
    """The session under whose key it is then encrypted."""


@dataclass(frozen=True, slots=True)
class KeyAgreement:
    """What a key exchange came to."""

    public: DhPublicKey
    """Our half, for the client."""
    key: bytes = field(repr=False)
    cipher: Cipher


class ProtocolServer(Server):
    """One server's conversations; `respond`, `identify` and `accept` never compute long. Not for several threads."""

    challenges: Challenges

    def __init__(
        self, settings: ServerSettings, random: Callable[[int], bytes], sizes: TableLimits | None = None
    ) -> None:
        super().__init__(settings, random)
        sizes = sizes or TableLimits()
        self.sessions = SessionTable(sizes.sessions, sizes.unproved_sessions)
        self.challenges = Challenges(settings.challenge_life, sizes)

    def identify(self, request: Request, now: float, *, udp: bool = False) -> Identity | Reply:
        """Who makes a request; a challenge that is given over UDP is kept apart from the others."""
        self.challenges.issuing_over_udp = udp
        return super().identify(request, now)

    def set_last_id(self, last: int) -> None:
        """Number sessions and challenges from here on.

        Whoever holds one of a server that was started anew must not meet somebody else's under the same number: their
        messages would then look forged, and not out of date.
        """
        self._last_id = last

    def adopt_state(self, old: "ProtocolServer") -> None:
        """Go on with the conversations of another server, whose settings have changed."""
        self.sessions, self.challenges, self._last_id = old.sessions, old.challenges, old._last_id  # noqa: SLF001 - its own kind

    # Signing

    def signing(self, message: Message) -> Callable[[], Message]:
        """The computation that signs a message; it may run in another thread."""
        key = self._settings.key
        return lambda: sign(message, key)

    def signed(self, frame: UnsignedFrame, message: Message) -> Frame:
        """What is sent instead of an unsigned frame, given its message with the signature."""
        if frame.encrypt_session is not None:
            return Frame(*frame.encrypt_session.seal(message, self._random))
        return Frame(message.envelope, message.payload())

    def remember(self, request: Request, reply: Reply, *, more: bool) -> None:
        """Note what the answer to a challenge got in the end, for the case that it comes again."""
        self._store_reply(request, reply, more=more)

    def _finish(self, message: Message, request: Request, *, private: bool) -> Frame:
        session = request.session
        has_mac = session is not None and message.header.opcode not in _SIGNED_IN_SESSIONS
        if has_mac or OpFlag.CERTIFY not in message.header.flags:
            return super()._finish(message, request, private=private)
        if message.envelope.length > MAX_MESSAGE - MAX_CREDENTIAL:
            raise LocalProtocolError("with a signature the message is longer than any peer accepts")
        encrypt_session = session if OpFlag.ENCRYPT in message.header.flags else None
        return UnsignedFrame(message.envelope, message.payload(), message=message, encrypt_session=encrypt_session)

    def _store_reply(self, request: Request, reply: Reply, *, more: bool) -> None:
        # What is not signed yet is not what the answer got; until it is, a repetition gets nothing.
        if not any(isinstance(frame, UnsignedFrame) for frame in reply.frames):
            super()._store_reply(request, reply, more=more)

    # Sessions

    def prepare_key_agreement(self, request: Request) -> Callable[[], KeyAgreement]:
        """The computation that agrees on a session's key; it may run in another thread, and raises `InvalidData`."""
        setup = request.body
        assert isinstance(setup, SessionSetup)  # noqa: S101 - made so by `_dispatch`
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
        """Begin the session that a request wishes for, with the key that was agreed on."""
        setup, suggested = request.body, request.message.envelope.suggested
        assert isinstance(setup, SessionSetup)  # noqa: S101 - made so by `_dispatch`
        timeout = min(setup.timeout, MAX_TIMEOUT) if setup.timeout > 0 else self._settings.session_life
        identity = Identity(setup.handle, setup.index) if setup.handle else None
        session = Session(
            self._new_id(), key_agreement.key, key_agreement.cipher, common_version(suggested), identity, timeout
        )
        self.sessions.add(session, now)
        prefix = key_agreement.cipher.to_bytes(4, "big") if suggested.at_least(_CIPHER_SENT_SINCE) else b""
        body = SessionSetupResult(ExchangeMode.DIFFIE_HELLMAN, prefix + key_agreement.public.to_bytes())
        # The new session is answered under its own id: an older one that the request came in has no part in it.
        return self.respond(replace(request, session=None), ResponseCode.SUCCESS, body, now, session_id=session.id)

    def refuse_session(self, request: Request, problem: InvalidData, now: float) -> Reply:
        """Say that no key could be agreed on."""
        return self.respond(request, ResponseCode.SESSION_FAILED, Failure.of(problem.message), now)

    def _dispatch(self, request: Request, now: float) -> Received:
        setup = request.body
        if isinstance(setup, SessionSetup) and setup.mode == ExchangeMode.DIFFIE_HELLMAN:
            return request
        return super()._dispatch(request, now)
