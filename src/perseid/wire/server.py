"""The server side of the protocol, without I/O.

    frame ──► receive ──┬──► Reply            send it: an early failure, a session that ended …
                        ├──► Request          execute it, then `respond`; if it requires an identity, `identify` first
                        │                     a session setup: `agree`, then `begin_session` or `refuse_session`
                        └──► ChallengeProof   look up the key and check it, then `accept` or `respond`

It handles versions, digests, flags, ids, sessions, challenges, signatures, MACs, encryption and unreadable requests. It
does not know records or permissions. Sessions and pending challenges are kept by the stores that it is given.

Two steps compute for long, so they are separate: `agree` (2 to 20 ms) and `sign` (about 1 ms). They change no state and
may run in another thread. Every other method is short. A reply is sent after `sign`, and recorded with `record_reply`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey, PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value

from . import fragments
from . import message as header_module
from .challenges import NONCE_LENGTH, ChallengeTable, PendingChallenge, check_key_answer, check_secret_answer
from .codes import (
    ASSUMED_VERSION,
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    MAX_TIMEOUT,
    LocalProtocolError,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
    common_version,
)
from .credentials import sign
from .framing import Frame
from .message import (
    MAX_CREDENTIAL,
    MAX_MESSAGE,
    MESSAGE_LIFETIME,
    UNKNOWN_REQUEST_ID,
    UNKNOWN_SERIAL,
    Envelope,
    Header,
    Message,
    RequestDigest,
)
from .requests import REQUEST_DECODERS, ChallengeResponse, ExchangeMode, RequestBody, SessionSetup
from .responses import (
    Empty,
    Failure,
    Referral,
    ResolutionResult,
    ResponseBody,
    SessionSetupResult,
    encode_challenge,
    encode_response,
)
from .sessions import (
    Cipher,
    Identity,
    Session,
    SessionTable,
    derive_session_key,
    generate_key_pair,
    shared_secret,
)

INVALID_LENGTH_TEXT: Final = "Invalid message length"
NOT_UNDERSTOOD_TEXT: Final = "Server error processing request, see server logs"
NO_SESSION_TEXT: Final = "Invalid session id or session time out. Please try again."
CANNOT_DECRYPT_TEXT: Final = "Invalid session id. Unable to decrypt request message."

_COPIED_FLAGS = (
    OpFlag.CERTIFY
    | OpFlag.CACHE_AUTHENTICATION
    | OpFlag.AUTHORITATIVE
    | OpFlag.ENCRYPT
    | OpFlag.PUBLIC_ONLY
    | OpFlag.DO_NOT_REFER
    | OpFlag.REQUEST_DIGEST
)
_PRIMARY_FLAGS = OpFlag.RECURSIVE | OpFlag.AUTHORITATIVE
_NO_FLAGS = OpFlag(0)
_MINTING_OPCODES = frozenset((OpCode.CREATE_HANDLE, OpCode.ADD_VALUE))
_OPCODES_WITHOUT_MAC = frozenset((OpCode.SESSION_SETUP, OpCode.SESSION_EXCHANGEKEY))
_CIPHER_SENT_SINCE = 4  # minor version


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server that the protocol shows."""

    key: PrivateKey
    """Signs responses; its public key is in the site record."""
    site_serial: int = 1
    """Serial number of the site record."""
    is_primary: bool = True
    """Whether the site accepts changes; shown by the AT flag."""
    challenge_life: float = 60.0
    """Seconds until a challenge expires."""
    session_life: int = MAX_TIMEOUT
    """Default idle timeout of a session in seconds."""
    cipher: Cipher = Cipher.AES
    """Cipher of new sessions."""

    def __post_init__(self) -> None:
        if not -0x8000 <= self.site_serial <= 0x7FFF:
            raise LocalProtocolError(f"the site serial number {self.site_serial} does not fit in 16 bits")


class SessionStore(Protocol):
    """The sessions of a server. Their ids and those of challenges are one sequence."""

    def next_id(self) -> int:
        """The next id, which no session has."""
        ...

    def add(self, session: Session, now: float) -> None:
        """Add a session, which is not authenticated yet."""
        ...

    def use(self, session_id: int, now: float) -> Session | None:
        """Get a session and keep it alive; None if it does not exist or has timed out."""
        ...

    def confirm(self, session: Session) -> None:
        """Store that a session is authenticated: as `session.proved`."""
        ...

    def end(self, session: Session) -> None:
        """Remove a session."""
        ...

    def __len__(self) -> int: ...


class ChallengeStore(Protocol):
    """The pending challenges of a server."""

    def add(self, pending: PendingChallenge, *, udp: bool = False) -> None:
        """Add a challenge, issued over UDP or not; one with the same id is replaced."""
        ...

    def find(self, challenge_id: int, now: float) -> PendingChallenge | None:
        """The challenge with this id, if it has not expired."""
        ...

    def take(self, pending: PendingChallenge, used_by: tuple[int, bytes]) -> bool:
        """Mark a challenge as used by an answer; return whether it was unused."""
        ...

    def settle(self, pending: PendingChallenge, reply: tuple[bytes, ...]) -> None:
        """Store the reply to the accepted answer, unless it is too long."""
        ...

    def __contains__(self, challenge_id: int) -> bool: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class UnsignedFrame(Frame):
    """A message that still has to be signed with the server's key. It is complete, but clients reject it."""

    message: Message = field(kw_only=True)
    encrypt_session: Session | None = field(kw_only=True, default=None)
    """The session whose key encrypts it after signing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Messages to send, in order."""

    frames: tuple[Frame, ...]

    @property
    def is_signed(self) -> bool:
        """Whether nothing is left for `Server.sign`."""
        return not any(isinstance(frame, UnsignedFrame) for frame in self.frames)

    def to_stream(self) -> bytes:
        """Encode for TCP."""
        return b"".join(frame.envelope.to_bytes() + frame.payload for frame in self.frames)

    def to_packets(self) -> list[bytes]:
        """Encode for UDP."""
        return [
            packet for frame in self.frames for packet in fragments.split(frame.envelope, frame.payload, request=False)
        ]


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request."""

    message: Message
    body: RequestBody
    session: Session | None
    response_request_id: int
    """The request id of the response: that of the received message, which may be a challenge response."""
    identity: Identity | None = None
    """The authenticated identity."""
    challenge: PendingChallenge | None = None
    """The challenge that proved the identity."""
    private_transport: bool = False
    """Whether the transport encrypts (HTTPS), so that private values are not encrypted again."""

    @property
    def opcode(self) -> OpCode:
        """The operation."""
        return self.message.header.opcode

    @property
    def flags(self) -> OpFlag:
        """The flags of the header."""
        return self.message.header.flags


@dataclass(frozen=True, slots=True)
class ChallengeProof:
    """A challenge response that is not checked yet."""

    request: Request
    """The request to execute if the proof is valid."""
    identity: Identity
    """The claimed identity."""
    auth_type: str
    """`HS_PUBKEY` or `HS_SECKEY`."""
    answer: bytes
    """The signature or MAC, with its parameters."""
    version: Version
    """The version of the challenge response."""

    def check_key(self, key: PublicKey) -> bool:
        """Whether the answer was made with the key."""
        pending = self.pending
        return check_key_answer(key, pending.nonce, pending.digest.digest, self.answer)

    def check_secret(self, secret: bytes) -> bool:
        """Whether the answer was made with the secret."""
        pending = self.pending
        return check_secret_answer(secret, pending.nonce, pending.digest.digest, self.answer, self.version)

    @property
    def pending(self) -> PendingChallenge:
        """The challenge that was answered."""
        pending = self.request.challenge
        assert pending is not None  # noqa: S101 - ensured by `Server.receive`
        return pending


Received: TypeAlias = Reply | Request | ChallengeProof


@dataclass(frozen=True, slots=True)
class KeyAgreement:
    """The result of a key exchange."""

    public: DhPublicKey
    """The server's public key for the client."""
    key: bytes = field(repr=False)
    cipher: Cipher


class Server:
    """The server side. Not thread-safe, except for `agree` and `sign`."""

    def __init__(
        self,
        settings: ServerSettings,
        random: Callable[[int], bytes],
        sessions: SessionStore | None = None,
        challenges: ChallengeStore | None = None,
    ) -> None:
        """Without stores, sessions and challenges are kept in memory."""
        self._settings = settings
        self._random = random
        self.sessions = SessionTable() if sessions is None else sessions
        self.challenges = ChallengeTable(settings.challenge_life) if challenges is None else challenges

    # Receiving

    def receive(self, frame: Frame, now: float, *, http: bool = False, private_transport: bool = False) -> Received:
        """Process a received frame. Over HTTP two failures have other codes."""
        try:
            return self._receive(frame, now, private_transport)
        except _EarlyFailure as failure:
            code = failure.http_code if http and failure.http_code is not None else failure.code
            return self.early_failure(code, failure.text, now, answered=failure.answered)

    def early_failure(
        self,
        code: ResponseCode,
        text: str,
        now: float,
        *,
        opcode: OpCode = OpCode.RESERVED,
        answered: Envelope | None = None,
    ) -> Reply:
        """The response to a frame that is not a message, or (with its opcode) not for this interface.

        It echoes the ids of `answered`, if given.
        """
        header = Header(opcode, code, DEFAULT_FLAGS, UNKNOWN_SERIAL, expires=int(now) + MESSAGE_LIFETIME)
        envelope = Envelope(ASSUMED_VERSION, CURRENT_VERSION, request_id=UNKNOWN_REQUEST_ID)
        if answered is not None:
            envelope = replace(envelope, session_id=answered.session_id, request_id=answered.request_id)
        message = Message.build(envelope, header, encode_response(Failure.of(text), None))
        return Reply((Frame(message.envelope, message.payload()),))

    def _receive(self, frame: Frame, now: float, private_transport: bool) -> Received:
        envelope, payload = frame.envelope, frame.payload
        if not 0 <= envelope.length <= MAX_MESSAGE:
            raise _EarlyFailure(ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT)
        session = self.sessions.use(envelope.session_id, now) if envelope.session_id > 0 else None
        if envelope.encrypted:
            message, body = self._open(envelope, payload, session, now)
        elif len(payload) < header_module.HEADER_LENGTH:
            raise _EarlyFailure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT)
        else:
            message, body = self._parse(envelope, payload, now)
        request = Request(message, body, session, envelope.request_id, private_transport=private_transport)
        if message.header.opcode == OpCode.RESPONSE_TO_CHALLENGE:
            return self._receive_challenge_response(request, now)
        if session is None and envelope.session_id > 0 and self.challenges.find(envelope.session_id, now) is None:
            return self._session_timeout(request, now)
        return self._dispatch(request, now)

    def _session_timeout(self, request: Request, now: float) -> Reply:
        return self.respond(request, ResponseCode.SESSION_TIMEOUT, Failure.of(NO_SESSION_TEXT), now)

    def _open(
        self, envelope: Envelope, payload: bytes, session: Session | None, now: float
    ) -> tuple[Message, RequestBody]:
        """Decrypt and decode a message.

        All errors get the same response, so that a sender of altered ciphertext learns nothing. So the MAC is checked
        here first; a challenge response has none and is accepted only while its challenge is pending.
        """
        if envelope.session_id <= 0:
            raise _EarlyFailure(ResponseCode.SESSION_FAILED, CANNOT_DECRYPT_TEXT)
        if session is None:
            failed = ResponseCode.SESSION_FAILED
            raise _EarlyFailure(ResponseCode.SESSION_TIMEOUT, NO_SESSION_TEXT, answered=envelope, http_code=failed)
        try:
            message, body = self._parse(envelope, session.open(payload), now)
            if message.header.opcode != OpCode.RESPONSE_TO_CHALLENGE:
                session.authenticate(message)
            elif self.challenges.find(envelope.session_id, now) is None:
                raise RemoteProtocolError("there is no pending challenge")
        except (RemoteProtocolError, _EarlyFailure) as error:
            raise _EarlyFailure(ResponseCode.SESSION_FAILED, CANNOT_DECRYPT_TEXT) from error
        return message, body

    def _parse(self, envelope: Envelope, payload: bytes, now: float) -> tuple[Message, RequestBody]:
        try:
            message = Message.from_bytes(envelope, payload, int(now))
            opcode = message.header.opcode
            if opcode == OpCode.RESERVED:
                raise _EarlyFailure(ResponseCode.PROTOCOL_ERROR, f"Unknown opCode in message: {opcode.value}")
            if opcode not in REQUEST_DECODERS or not message.header.is_request:
                http_code = None if opcode in REQUEST_DECODERS else ResponseCode.PROTOCOL_ERROR
                raise _EarlyFailure(ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT, http_code=http_code)
            return message, REQUEST_DECODERS[opcode](message.body_reader(), message.version, int(now))
        except InvalidData as error:
            raise _EarlyFailure(ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT) from error

    def _dispatch(self, request: Request, now: float) -> Received:
        match request.opcode:
            case OpCode.SESSION_SETUP:
                return self._check_setup(request, now)
            case OpCode.SESSION_EXCHANGEKEY:
                return self._refuse_key_exchange(request, now)
            case OpCode.SESSION_TERMINATE:
                return self._terminate_session(request, now)
        return request

    # Authentication

    def identify(self, request: Request, now: float, *, udp: bool = False) -> Identity | Reply:
        """The authenticated identity of a request, or the challenge or failure to send, over UDP or not."""
        if request.identity is not None:
            return request.identity
        session = request.session
        if session is None or session.proved is None:
            return self._challenge(request, now, udp=udp)
        try:
            session.check(request.message)
        except RemoteProtocolError as error:
            return self.respond(request, error.code, Failure.of(error.message), now)
        return session.proved

    def accept(self, proof: ChallengeProof, identity: Identity, now: float) -> Request | Reply:
        """Accept a proof that was checked: the request with its identity, or a failure.

        `identity` is the claimed one, with the index of the key. A challenge is used once: an answer that arrives twice
        is accepted once.
        """
        request, pending = proof.request, proof.pending
        if pending.used_by is not None:
            return self._repeat_response(request, proof.answer, pending, now)
        session = request.session
        if session is not None:
            try:
                session.check(request.message, allow_replay=True)
            except RemoteProtocolError as error:
                return self.respond(request, error.code, Failure.of(error.message), now)
            if session.identity is not None and session.identity.is_same_identity(identity):
                session.proved = identity
                self.sessions.confirm(session)
        if not self.challenges.take(pending, (request.response_request_id, proof.answer)):
            return self._repeat_response(request, proof.answer, pending, now)
        return Request(
            request.message,
            request.body,
            session,
            request.response_request_id,
            identity,
            pending,
            request.private_transport,
        )

    def _challenge(self, request: Request, now: float, *, udp: bool) -> Reply:
        message, session = request.message, request.session
        version = common_version(message.envelope.suggested)
        challenge_id = self._new_id() if session is None else session.id
        pending = None if session is None else self.challenges.find(challenge_id, now)
        known = pending is not None and pending.matches_request(message)
        if session is not None:
            # Check first: a session has one challenge at a time, which a forged or replayed request must not replace.
            try:
                session.authenticate(message)
                if not known:
                    session.check_counter(message)
            except RemoteProtocolError as error:
                return self.respond(request, error.code, Failure.of(error.message), now)
        if pending is None or not known:
            digest = RequestDigest.of(message.raw, version)
            pending = PendingChallenge(challenge_id, message, self._random(NONCE_LENGTH), digest, now)
            self.challenges.add(pending, udp=udp)
        # Before 2.1 there is no such flag.
        header = self._header(request, ResponseCode.AUTHENTICATION_NEEDED, now, OpFlag.REQUEST_DIGEST)
        envelope = self._envelope(request, challenge_id)
        body = encode_challenge(pending.nonce, pending.digest, version)
        return Reply((self._finish(Message.build(envelope, header, body), request, private=False),))

    def _receive_challenge_response(self, answer: Request, now: float) -> Received:
        session_id = answer.message.envelope.session_id
        pending = self.challenges.find(session_id, now) if session_id > 0 else None
        if pending is None and answer.session is None and session_id > 0:
            return self._session_timeout(answer, now)
        if pending is None or not isinstance(answer.body, ChallengeResponse):
            return self.respond(answer, ResponseCode.AUTHEN_TIMEOUT, Failure(), now)
        if pending.used_by is not None:
            return self._repeat_response(answer, answer.body.answer, pending, now)
        # A wrong answer does not change the challenge: anyone who guesses its id can send one.
        # The two flags that a reply echoes are those of this message.
        message, delivered = pending.request, answer.message.envelope
        sent = message.envelope
        if (sent.truncated, sent.compressed) != (delivered.truncated, delivered.compressed):
            envelope = replace(sent, truncated=delivered.truncated, compressed=delivered.compressed)
            message = replace(message, envelope=envelope)
        body = REQUEST_DECODERS[message.header.opcode](message.body_reader(), message.version, int(now))
        request = Request(
            message,
            body,
            answer.session,
            answer.response_request_id,
            challenge=pending,
            private_transport=answer.private_transport,
        )
        received_answer = answer.body
        identity = Identity(received_answer.handle, received_answer.index)
        return ChallengeProof(
            request, identity, received_answer.auth_type, received_answer.answer, answer.message.version
        )

    def _repeat_response(self, answer: Request, proof: bytes, pending: PendingChallenge, now: float) -> Reply:
        """Respond to a second challenge response: with the stored reply if it is the same, or a failure."""
        if pending.used_by == (answer.response_request_id, proof):
            # Empty while the first one is being processed.
            return Reply(tuple(_parse_frame(data) for data in pending.reply))
        return self.respond(replace(answer, challenge=None), ResponseCode.AUTHEN_TIMEOUT, Failure(), now)

    # Sessions

    def _check_setup(self, request: Request, now: float) -> Received:
        setup = request.body
        if isinstance(setup, SessionSetup) and setup.mode == ExchangeMode.DIFFIE_HELLMAN:
            return request
        text = "Only Diffie-Hellman key exchange is supported"
        return self.respond(request, ResponseCode.SESSION_FAILED, Failure.of(text), now)

    def agree(self, request: Request) -> KeyAgreement:
        """Agree on the key of the requested session, for any thread; raises `InvalidData`. Takes 2 to 20 ms."""
        sends_cipher = request.message.envelope.suggested.at_least(_CIPHER_SENT_SINCE)
        cipher = self._settings.cipher if sends_cipher else Cipher.DES
        peer_key = PublicKey.from_bytes(_setup_of(request).public_key)
        if not isinstance(peer_key, DhPublicKey):
            raise InvalidData("the public key is not a Diffie-Hellman key")
        own_key = generate_key_pair((peer_key.p, peer_key.g), self._random)
        return KeyAgreement(own_key.public, derive_session_key(cipher, shared_secret(own_key, peer_key)), cipher)

    def begin_session(self, request: Request, agreement: KeyAgreement, now: float) -> Reply:
        """Start the requested session with the agreed key."""
        setup, suggested = _setup_of(request), request.message.envelope.suggested
        timeout = min(setup.timeout, MAX_TIMEOUT) if setup.timeout > 0 else self._settings.session_life
        identity = Identity(setup.handle, setup.index) if setup.handle else None
        session = Session(self._new_id(), agreement.key, agreement.cipher, common_version(suggested), identity, timeout)
        self.sessions.add(session, now)
        prefix = agreement.cipher.to_bytes(4, "big") if suggested.at_least(_CIPHER_SENT_SINCE) else b""
        body = SessionSetupResult(ExchangeMode.DIFFIE_HELLMAN, prefix + agreement.public.to_bytes())
        # The response has the id of the new session, not of an older one in the request.
        return self.respond(replace(request, session=None), ResponseCode.SUCCESS, body, now, session_id=session.id)

    def refuse_session(self, request: Request, problem: InvalidData, now: float) -> Reply:
        """Respond to a failed key agreement."""
        return self.respond(request, ResponseCode.SESSION_FAILED, Failure.of(problem.message), now)

    def _refuse_key_exchange(self, request: Request, now: float) -> Reply:
        if request.session is None:
            return self.respond(request, ResponseCode.SESSION_TIMEOUT, Failure.of(NO_SESSION_TEXT), now)
        return self.respond(request, ResponseCode.SESSION_FAILED, Failure(), now)

    def _terminate_session(self, request: Request, now: float) -> Reply:
        session = request.session
        if session is None:
            return self.respond(request, ResponseCode.SESSION_TIMEOUT, Failure.of(NO_SESSION_TEXT), now)
        try:
            session.check(request.message)
        except RemoteProtocolError as error:
            return self.respond(request, ResponseCode.INVALID_SESSION_KEY, Failure.of(error.message), now)
        self.sessions.end(session)
        # The session has ended: the response is signed with the server's key and not encrypted.
        return self.respond(replace(request, session=None), ResponseCode.SUCCESS, Empty(), now)

    def _new_id(self) -> int:
        """An unused id; sessions and challenges share one sequence."""
        while (new := self.sessions.next_id()) in self.challenges:
            pass
        return new

    # Responding

    def respond(
        self,
        request: Request,
        code: ResponseCode,
        body: ResponseBody,
        now: float,
        *,
        more: bool = False,
        overwritten: bool = False,
        session_id: int | None = None,
    ) -> Reply:
        """Respond to a request. `more`: another response follows; `overwritten`: something was replaced."""
        added = OpFlag.CONTINUOUS if more else _NO_FLAGS
        if code == ResponseCode.SUCCESS:
            if request.opcode in _MINTING_OPCODES:
                added |= request.flags & OpFlag.MINT_SUFFIX
            if overwritten:
                added |= OpFlag.OVERWRITE
        header = self._header(request, code, now, added)
        digest = None
        if OpFlag.REQUEST_DIGEST in header.flags:
            digest = RequestDigest.of(request.message.raw, common_version(request.message.envelope.suggested))
        envelope = self._envelope(request, session_id)
        message = Message.build(envelope, header, encode_response(body, digest))
        return Reply((self._finish(message, request, private=_is_private(body)),))

    def sign(self, reply: Reply) -> Reply:
        """Sign the messages that need it, for any thread. Takes about 1 ms each."""
        return Reply(
            tuple([self._sign(frame) if isinstance(frame, UnsignedFrame) else frame for frame in reply.frames])
        )

    def _sign(self, frame: UnsignedFrame) -> Frame:
        message = sign(frame.message, self._settings.key)
        if frame.encrypt_session is not None:
            return Frame(*frame.encrypt_session.seal(message, self._random))
        return Frame(message.envelope, message.payload())

    def record_reply(self, request: Request, reply: Reply, *, more: bool = False) -> None:
        """Store the final reply to a challenge response, in case it is sent again."""
        pending = request.challenge
        if pending is None or request.identity is None:
            return
        pending.is_list |= more
        if not pending.is_list:
            data = tuple(frame.envelope.to_bytes() + frame.payload for frame in reply.frames)
            self.challenges.settle(pending, data)

    def _header(self, request: Request, code: ResponseCode, now: float, added: OpFlag) -> Header:
        original = request.message.header
        flags = original.flags & _COPIED_FLAGS | added
        if not common_version(request.message.envelope.suggested).at_least(1):
            flags &= ~OpFlag.REQUEST_DIGEST
        flags |= _PRIMARY_FLAGS if self._settings.is_primary else OpFlag.RECURSIVE
        return Header(
            original.opcode, code, flags, self._settings.site_serial, original.recursion, int(now) + MESSAGE_LIFETIME
        )

    def _envelope(self, request: Request, session_id: int | None) -> Envelope:
        original = request.message.envelope
        return Envelope(
            common_version(original.suggested),
            CURRENT_VERSION,
            original.session_id if session_id is None else session_id,
            request.response_request_id,
            # Both are echoed, as deployed.
            truncated=original.truncated,
            compressed=original.compressed,
        )

    def _finish(self, message: Message, request: Request, *, private: bool) -> Frame:
        """Add a MAC and encrypt, as the request and the session require; or leave both to `sign`."""
        session, flags = request.session, message.header.flags
        automatic = private and message.version.at_least(8) and not request.private_transport
        encrypt_session = session if OpFlag.ENCRYPT in flags or automatic else None
        if OpFlag.CERTIFY in flags:
            if session is None or message.header.opcode in _OPCODES_WITHOUT_MAC:
                if message.envelope.length > MAX_MESSAGE - MAX_CREDENTIAL:
                    raise LocalProtocolError("with a signature the message is too long")
                payload = message.payload()
                return UnsignedFrame(message.envelope, payload, message=message, encrypt_session=encrypt_session)
            message = session.protect(message)
        if encrypt_session is not None:
            return Frame(*encrypt_session.seal(message, self._random))
        return Frame(message.envelope, message.payload())


class _EarlyFailure(Exception):
    """A message that cannot be processed as a request."""

    def __init__(
        self,
        code: ResponseCode,
        text: str,
        *,
        answered: Envelope | None = None,
        http_code: ResponseCode | None = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.answered = answered
        """The envelope whose ids are echoed, as in deployed servers."""
        self.http_code = http_code
        """The code over HTTP, if it differs."""


def _setup_of(request: Request) -> SessionSetup:
    setup = request.body
    assert isinstance(setup, SessionSetup)  # noqa: S101 - ensured by `Server.receive`
    return setup


def _is_private(body: ResponseBody) -> bool:
    values: tuple[Value, ...] = ()
    if isinstance(body, ResolutionResult | Referral):
        values = body.values or ()
    return not all(value.is_public for value in values)


def _parse_frame(data: bytes) -> Frame:
    envelope = Envelope.from_bytes(data)
    return Frame(envelope, data[-envelope.length :] if envelope.length else b"")
