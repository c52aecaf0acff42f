"""The client side of the protocol, without I/O.

A client creates a `Message` with `request`, sends it, and passes the response to `read`, which rejects a wrong request
id, an expired message, a digest of another request, and an invalid signature or MAC. Challenges are answered with
`answer_challenge`; sessions are started with `begin_session`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey, PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value

from .challenges import SALT_LENGTH, answer_with_key, answer_with_secret
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
    default_flags,
)
from .credentials import verify_signature
from .framing import Frame
from .message import MESSAGE_LIFETIME, UNKNOWN_REQUEST_ID, UNKNOWN_SERIAL, Envelope, Header, Message, RequestDigest
from .requests import (
    ANONYMOUS_INDEX,
    ChallengeResponse,
    ExchangeMode,
    RequestBody,
    SessionSetup,
    ValuesRequest,
    encode_request,
)
from .responses import Challenge, Failure, ResponseBody, SessionSetupResult, decode_response
from .sessions import (
    DEFAULT_GROUP,
    Cipher,
    DhKeyPair,
    Identity,
    Session,
    derive_session_key,
    generate_key_pair,
    shared_secret,
)

_MAX_ERROR_TEXT = 200  # characters of a peer's message that an error quotes
_REPEATED_FLAGS = OpFlag.CERTIFY | OpFlag.ENCRYPT | OpFlag.PUBLIC_ONLY | OpFlag.KEEP_CONNECTION
_CHALLENGE_FLAGS = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY


@dataclass(frozen=True, slots=True)
class VerifiedResponse:
    """A response that was verified to belong to the request."""

    message: Message
    body: ResponseBody
    digest: RequestDigest | None
    """The digest of the request in the response."""
    is_certified: bool
    """Whether a signature or MAC was verified."""

    @property
    def code(self) -> ResponseCode:
        """The response code."""
        return self.message.header.response_code

    @property
    def more_follows(self) -> bool:
        """Whether another message of the same response follows."""
        return OpFlag.CONTINUOUS in self.message.header.flags


@dataclass(frozen=True, slots=True)
class PendingSession:
    """A session that was requested but not granted yet."""

    request: Message
    """The setup request to send."""
    pair: DhKeyPair = field(repr=False)
    identity: Identity | None
    """The claimed identity."""
    timeout: int
    """Idle timeout in seconds."""


class Client:
    """Creates requests and verifies responses. `version` is the highest that it supports."""

    def __init__(self, random: Callable[[int], bytes], version: Version = CURRENT_VERSION) -> None:
        self._random = random
        self._version = version

    def request(  # noqa: PLR0913 - one argument per field of the message
        self,
        opcode: OpCode,
        body: RequestBody,
        now: float,
        *,
        flags: OpFlag | None = None,
        peer_version: Version = ASSUMED_VERSION,
        site_serial: int = UNKNOWN_SERIAL,
        session: Session | None = None,
        recursion: int = 0,
    ) -> Message:
        """Create a request, in the lower of the peer's version and ours, with a MAC in a session.

        The default `flags` are those of deployed clients; `recursion` is the number of lookups that led to this one.
        """
        if flags is None:
            flags = default_flags(opcode)
        version = common_version(peer_version if session is None else session.version, self._version)
        if not version.at_least(1):
            flags &= ~OpFlag.REQUEST_DIGEST
        envelope = Envelope(version, self._version, 0 if session is None else session.id, self._new_id())
        header = Header(opcode, ResponseCode.RESERVED, flags, site_serial, recursion, int(now) + MESSAGE_LIFETIME)
        message = Message.build(envelope, header, encode_request(body, version))
        return message if session is None else session.protect(message)

    def repeat(self, message: Message, session: Session | None) -> Message:
        """The same request for a retry, with a new counter in a session."""
        return message if session is None else session.protect(message)

    def pack(self, message: Message, session: Session | None, *, check_values: bool = True) -> Frame:
        """The frame to send: encrypted if requested, or if it has private values in a session.

        Without `check_values` the caller has requested encryption where it is needed.
        """
        if session is not None and (
            OpFlag.ENCRYPT in message.header.flags or (check_values and _has_private_values(message))
        ):
            return Frame(*session.seal(message, self._random))
        return Frame(message.envelope, message.payload())

    def read(
        self,
        frame: Frame,
        request: Message,
        now: float,
        *,
        server_key: PublicKey | None = None,
        session: Session | None = None,
        about: Message | None = None,
    ) -> VerifiedResponse:
        """Verify the response to `request`; if that answers a challenge, `about` is the challenged request."""
        envelope, payload = frame.envelope, frame.payload
        if envelope.request_id != request.envelope.request_id:
            raise _mismatch_error(frame, now)
        try:
            if envelope.encrypted:
                if session is None:
                    raise RemoteProtocolError("the response is encrypted, but there is no session")
                payload = session.open(payload)
            message = Message.from_bytes(envelope, payload, int(now))
            digest, body = decode_response(message, int(now))
        except InvalidData as error:
            raise RemoteProtocolError(f"the response is malformed: {error}") from error
        if message.header.opcode == OpCode.RESERVED and isinstance(body, Failure):
            raise _unreadable_request_error(message, body)
        original = about or request
        if message.header.opcode not in (original.header.opcode, request.header.opcode):
            raise RemoteProtocolError("the response is for another operation")
        self._check(message, digest, original, now)
        certified = OpFlag.CERTIFY in original.header.flags and self._verify(message, server_key, session)
        return VerifiedResponse(message, body, digest, certified)

    def _check(self, message: Message, digest: RequestDigest | None, original: Message, now: float) -> None:
        header = message.header
        if header.is_request:
            raise RemoteProtocolError("the server sent a request instead of a response")
        if header.expires < now:
            raise RemoteProtocolError("the response has expired; check both clocks")
        if common_version(message.version) < common_version(original.version):
            # The digest does not cover versions: an attacker may have lowered the suggested version.
            raise RemoteProtocolError("the response has an older version than the request")
        if digest is not None and not digest.matches(original.raw):
            raise RemoteProtocolError("the response has the digest of another request")
        digest_required = OpFlag.REQUEST_DIGEST in original.header.flags and message.version.at_least(1)
        if digest_required and digest is None:
            raise RemoteProtocolError("the response does not have the digest of the request")

    def _verify(self, message: Message, server_key: PublicKey | None, session: Session | None) -> bool:
        credential = message.credential
        if credential is not None and credential.type == "HS_MAC":
            if session is None or message.envelope.session_id != session.id:
                raise RemoteProtocolError("the response has the MAC of another session")
            session.check(message)
            return True
        if server_key is None:
            raise LocalProtocolError("a certified response requires the server's public key")
        if credential is None or not verify_signature(message, server_key):
            raise RemoteProtocolError("the response is not signed by the server")
        return True

    # Challenges

    def answer_challenge(
        self,
        challenge: VerifiedResponse,
        request: Message,
        identity: Identity,
        proof: PrivateKey | bytes,
        now: float,
    ) -> Message:
        """Answer a challenge to `request` as `identity`, with a private key or a secret (bytes)."""
        body = challenge.body
        if not isinstance(body, Challenge) or challenge.digest is None:
            raise LocalProtocolError("the response is not a challenge")
        if not challenge.digest.matches(request.raw):
            raise RemoteProtocolError("the challenge is for another request")
        envelope = challenge.message.envelope
        version, digest = common_version(envelope.version, self._version), challenge.digest.digest
        if isinstance(proof, bytes):
            salt = self._random(SALT_LENGTH)
            kind, answer = "HS_SECKEY", answer_with_secret(proof, body.nonce, digest, version, envelope.suggested, salt)
        else:
            kind, answer = "HS_PUBKEY", answer_with_key(proof, body.nonce, digest, version)
        flags = _CHALLENGE_FLAGS | request.header.flags & _REPEATED_FLAGS
        header = Header(OpCode.RESPONSE_TO_CHALLENGE, flags=flags, expires=int(now) + MESSAGE_LIFETIME)
        answered = Envelope(version, self._version, envelope.session_id, self._new_id())
        content = ChallengeResponse(kind, identity.handle, identity.index, answer)
        return Message.build(answered, header, encode_request(content, version))

    # Sessions

    def begin_session(
        self,
        identity: Identity | None,
        now: float,
        *,
        peer_version: Version = ASSUMED_VERSION,
        timeout: int = MAX_TIMEOUT,
        group: tuple[int, int] = DEFAULT_GROUP,
        flags: OpFlag | None = None,
    ) -> PendingSession:
        """Request a session by Diffie–Hellman, with an identity or anonymously."""
        pair = generate_key_pair(group, self._random)
        setup = SessionSetup(
            ExchangeMode.DIFFIE_HELLMAN,
            timeout,
            b"" if identity is None else identity.handle,
            ANONYMOUS_INDEX if identity is None else identity.index,
            public_key=pair.public.to_bytes(),
        )
        request = self.request(OpCode.SESSION_SETUP, setup, now, flags=flags, peer_version=peer_version)
        return PendingSession(request, pair, identity, timeout)

    def finish_session(self, pending: PendingSession, answer: VerifiedResponse) -> Session:
        """Complete the session with the server's response, which `read` has verified."""
        body, message = answer.body, answer.message
        if not isinstance(body, SessionSetupResult) or body.mode != ExchangeMode.DIFFIE_HELLMAN:
            raise RemoteProtocolError("the server did not grant the session", ResponseCode.SESSION_FAILED)
        if message.envelope.session_id <= 0:
            raise RemoteProtocolError("the session has no id", ResponseCode.SESSION_FAILED)
        cipher, data = Cipher.DES, body.data
        # From 2.4 on, by the suggested version of the request, the number of the cipher comes first.
        if pending.request.envelope.suggested.at_least(4):
            cipher, data = Cipher(int.from_bytes(data[:4], "big")), data[4:]
        try:
            theirs = PublicKey.from_bytes(data)
            if not isinstance(theirs, DhPublicKey) or (theirs.p, theirs.g) != (
                pending.pair.public.p,
                pending.pair.public.g,
            ):
                raise InvalidData("the server's key is not in the proposed group")
            key = derive_session_key(cipher, shared_secret(pending.pair, theirs))
        except InvalidData as error:
            raise RemoteProtocolError(f"the key exchange failed: {error}", ResponseCode.SESSION_FAILED) from error
        return Session(message.envelope.session_id, key, cipher, message.version, pending.identity, pending.timeout)

    def _new_id(self) -> int:
        """A positive 31-bit number; others can mean "not set"."""
        return int.from_bytes(self._random(4), "big") % 0x7FFF_FFFF + 1


def _mismatch_error(frame: Frame, now: float) -> RemoteProtocolError:
    """Error for a wrong request id: a server that could not read the request does not know its id."""
    error = RemoteProtocolError("the response is for another request")
    if frame.envelope.request_id != UNKNOWN_REQUEST_ID:
        return error
    try:
        message = Message.from_bytes(frame.envelope, frame.payload, int(now))
        _, body = decode_response(message, int(now))
    except InvalidData:
        return error
    if not isinstance(body, Failure) or message.header.is_request:
        return error
    return _unreadable_request_error(message, body)


def _unreadable_request_error(message: Message, failure: Failure) -> RemoteProtocolError:
    text = failure.sentence[:_MAX_ERROR_TEXT]
    return RemoteProtocolError(f"the server could not read the request: {text}", message.header.response_code)


def _has_private_values(message: Message) -> bool:
    """Whether a request has private values; from 2.8 on these are encrypted in sessions."""
    opcode = message.header.opcode
    if not message.version.at_least(8) or opcode not in _OPCODES_WITH_VALUES:
        return False
    values: tuple[Value, ...] = ValuesRequest.read(message.body_reader(), message.version, 0).values
    return not all(value.is_public for value in values)


_OPCODES_WITH_VALUES = frozenset((OpCode.CREATE_HANDLE, OpCode.ADD_VALUE, OpCode.MODIFY_VALUE))
