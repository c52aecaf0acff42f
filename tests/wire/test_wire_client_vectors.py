"""Our client replays the recorded client: it writes exactly the recorded requests and accepts every answer.

The client uses the recorded time, request ids, salts and initialization vectors. Three kinds of bytes cannot
agree: DSA signatures, which are random (they are verified instead); the requests of malformed.json, which no client
writes; and that of `unknown-session`, which names a session that its client does not have.
"""

from collections import deque
from contextlib import suppress
from dataclasses import replace

import pytest

from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey
from perseid.records.private_keys import PrivateKey
from perseid.wire import client as client_module
from perseid.wire.challenges import check_key_answer
from perseid.wire.client import Client, PendingSession, VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.fragments import split
from perseid.wire.framing import Frame
from perseid.wire.message import MESSAGE_LIFETIME, UNKNOWN_REQUEST_ID, Message
from perseid.wire.requests import REQUEST_DECODERS, ChallengeResponse, ExchangeMode, RequestBody, Resolve, SessionSetup
from perseid.wire.responses import Challenge
from perseid.wire.sessions import Cipher, DhKeyPair, Identity, Session, decrypt
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, SERVER_KEY
from tests.wire.recorded import NOW, WIRE_FILES, Vector, conversations, frames_of, load

VECTOR_FILES = WIRE_FILES

CONVERSATIONS = conversations(*VECTOR_FILES)
SECRETS = {"wrong-secret": b"wrong", "invalid-admin": b"x"}


class Replay:
    """A client that replays one conversation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.randomness: deque[bytes] = deque()
        self.client = Client(self._random)
        self.session: Session | None = None
        self.original: Message | None = None
        self.challenge: VerifiedResponse | None = None
        self.pending_session: PendingSession | None = None
        self.monkeypatch = monkeypatch

    def _random(self, count: int) -> bytes:
        data = self.randomness.popleft()
        assert len(data) == count
        return data

    def exchange(self, vector: Vector) -> None:
        """Create the request, compare it, and read the answer."""
        (frame,) = frames_of(vector.request, vector.transport)
        recorded = Message.from_bytes(frame.envelope, self.in_clear(frame, vector), NOW)
        body = REQUEST_DECODERS[recorded.header.opcode](recorded.body_reader(), recorded.version, NOW)
        self.client._version = frame.envelope.suggested
        request = self.request(vector, recorded, body)
        if frame.envelope.encrypted:
            self.randomness.append(frame.payload[:16])
        sent = self.client.pack(request, self.session)
        assert not self.randomness
        assert is_same(sent, frame, vector, self.challenge, body)
        self.read(vector, request)

    def in_clear(self, frame: Frame, vector: Vector) -> bytes:
        if not frame.envelope.encrypted:
            return frame.payload
        key, cipher = bytes.fromhex(vector.keys["session_key"]), Cipher(int(vector.keys["encryption_alg"]))
        return decrypt(cipher, key, frame.payload, frame.envelope.version)

    def request(self, vector: Vector, recorded: Message, body: RequestBody) -> Message:
        now = recorded.header.expires - MESSAGE_LIFETIME
        request_id = (recorded.envelope.request_id - 1).to_bytes(4, "big")
        if isinstance(body, ChallengeResponse):
            assert self.challenge is not None
            assert self.original is not None
            if body.auth_type == "HS_SECKEY":
                self.randomness.append(body.answer[5:21])
            self.randomness.append(request_id)
            identity = Identity(body.handle, body.index)
            return self.client.answer_challenge(self.challenge, self.original, identity, proof(vector, body), now)
        self.randomness.append(request_id)
        if isinstance(body, SessionSetup) and body.mode == ExchangeMode.DIFFIE_HELLMAN:
            pair = DhKeyPair(DhPublicKey.from_bytes(body.public_key), int(vector.keys["dh_client_x"], 16))
            self.monkeypatch.setattr(client_module, "generate_key_pair", lambda _group, _random: pair)
            identity = Identity(body.handle, body.index)
            self.pending_session = self.client.begin_session(
                identity, now, peer_version=recorded.version, timeout=body.timeout, group=(pair.public.p, pair.public.g)
            )
            self.original = self.pending_session.request
        else:
            header = recorded.header
            self.original = self.client.request(
                header.opcode,
                body,
                now,
                flags=header.flags,
                peer_version=recorded.version,
                site_serial=header.site_serial,
                session=self.session,
            )
        return self.original

    def read(self, vector: Vector, request: Message) -> None:
        """Read the answer with all checks."""
        about = self.original
        for frame in frames_of(vector.response, vector.transport):
            answer = self.client.read(
                frame, request, NOW, server_key=SERVER_KEY.public, session=self.session, about=about
            )
            assert answer.is_certified is (OpFlag.CERTIFY in request.header.flags)
            assert answer.more_follows is (OpFlag.CONTINUOUS in answer.message.header.flags)
            if isinstance(answer.body, Challenge):
                self.challenge = answer
            elif request.header.opcode == OpCode.SESSION_SETUP and answer.code == ResponseCode.SUCCESS:
                self.begin(vector, answer)

    def begin(self, vector: Vector, answer: VerifiedResponse) -> None:
        if self.pending_session is not None:
            self.session = self.client.finish_session(self.pending_session, answer)
        elif "session_key" in vector.keys:  # an RSA mode: the session is created directly with its recorded key
            key, cipher = bytes.fromhex(vector.keys["session_key"]), Cipher(int(vector.keys["encryption_alg"]))
            self.session = Session(int(vector.keys["session_id"]), key, cipher, answer.message.version)
        else:
            return
        assert self.session.id == int(vector.keys["session_id"])
        assert self.session.key == bytes.fromhex(vector.keys["session_key"])
        assert self.session.cipher == int(vector.keys["encryption_alg"])


def proof(vector: Vector, body: ChallengeResponse) -> PrivateKey | bytes:
    if body.auth_type == "HS_SECKEY":
        return SECRETS.get(vector.group.partition(".")[0], SECRET)
    return {300: RSA_KEY, 302: DSA_KEY}[body.index]


def is_same(
    sent: Frame, recorded: Frame, vector: Vector, challenge: VerifiedResponse | None, body: RequestBody
) -> bool:
    if isinstance(body, ChallengeResponse) and (body.auth_type, body.index) == ("HS_PUBKEY", 302):
        return is_same_but_for_the_signature(sent, recorded, challenge)
    if vector.transport == "tcp":
        return sent.envelope.to_bytes() + sent.payload == b"".join(vector.request)
    return split(sent.envelope, sent.payload, request=True) == list(vector.request)


def is_same_but_for_the_signature(sent: Frame, recorded: Frame, challenge: VerifiedResponse | None) -> bool:
    """DSA signatures are random and have 46 to 48 bytes; enclosing lengths vary accordingly."""
    assert challenge is not None
    assert challenge.digest is not None
    assert isinstance(challenge.body, Challenge)
    answers = []
    for frame in (sent, recorded):
        message = Message.from_bytes(frame.envelope, frame.payload, NOW)
        answer = ChallengeResponse.read(message.body_reader(), message.version, NOW)
        assert check_key_answer(DSA_KEY.public, challenge.body.nonce, challenge.digest.digest, answer.answer)
        answers.append(
            (replace(message.envelope, length=0), message.header, replace(answer, answer=answer.answer[:11]))
        )
    return answers[0] == answers[1]


def is_written_by_a_client(name: str) -> bool:
    return not name.startswith(("malformed:", "auth-errors:unknown-session"))


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if is_written_by_a_client(name)])
def test_the_requests_of_a_vector_are_written_exactly_and_its_answers_accepted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Replay(monkeypatch)
    for vector in CONVERSATIONS[name]:
        run.exchange(vector)


OTHERS = [*load("malformed.json"), *(vector for vector in load("auth-errors.json") if "unknown-session" in vector.name)]


@pytest.mark.parametrize("vector", OTHERS, ids=str)
def test_the_answer_of_a_vector_without_a_client_request_is_read(vector: Vector) -> None:
    client = Client(bytes)
    for frame in frames_of(vector.response, vector.transport):
        request = client.request(OpCode.RESOLUTION, Resolve(b"20.500.99999/vec-std", (1,)), NOW)
        with suppress(InvalidData):
            (request_frame,) = frames_of(vector.request, "udp")
            request = Message.from_bytes(request_frame.envelope, request_frame.payload, NOW)
        if frame.envelope.request_id == UNKNOWN_REQUEST_ID:
            with pytest.raises(RemoteProtocolError, match="the server could not read the request") as caught:
                client.read(frame, request, NOW)
            message = Message.from_bytes(frame.envelope, frame.payload, NOW)
            assert caught.value.code is message.header.response_code
        else:
            answer = client.read(frame, request, NOW)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SESSION_TIMEOUT)
