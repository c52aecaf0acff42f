"""Our server replays the recorded server: every recorded request gets exactly the recorded answer.

The server has the recorded server's key, the recorded instant, and a source of randomness that gives the recorded
nonces and initialization vectors. The test replaces the application: it returns the recorded response (code,
body, whether something was overwritten), looks up keys, and leaves everything else to the server. RSA signatures are
deterministic, so signed answers agree too. The private exponents of the recorded Diffie-Hellman exchanges are known on
the client's side only; the server uses the recorded public key and the secret computed by the client.
"""

from collections import deque
from dataclasses import dataclass

import pytest

from perseid.wire import server as server_module
from perseid.wire.challenges import check_secret_answer
from perseid.wire.codes import OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.credentials import verify_signature
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import MESSAGE_LIFETIME, Header, Message
from perseid.wire.requests import ExchangeMode, SessionSetup, VerifyChallenge
from perseid.wire.responses import (
    Challenge,
    Failure,
    HandleList,
    ResponseBody,
    SiteInfo,
    VerificationResult,
    decode_response,
)
from perseid.wire.server import (
    INVALID_LENGTH_TEXT,
    NOT_UNDERSTOOD_TEXT,
    ChallengeProof,
    Reply,
    Request,
    Server,
    ServerSettings,
)
from perseid.wire.sessions import Cipher, decrypt
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, SERVER_KEY
from tests.wire.recorded import NOW, WIRE_FILES, Vector, conversations, fed, frames_of, key_file, load
from tests.wire.recorded_sessions import RecordedHalf, session_of, setup_of
from tests.wire.talk import set_last_id, start_session

VECTOR_FILES = WIRE_FILES

CONVERSATIONS = conversations(*VECTOR_FILES)
"""The exchanges of one name are one conversation with one server."""

WRONG_SECRETS = {"wrong-secret": b"wrong", "invalid-admin": b"x"}
"""The wrong secrets of the conversations that fail."""


@dataclass
class Recorded:
    """A parsed recorded answer."""

    messages: list[Message]

    @property
    def first(self) -> Message:
        return self.messages[0]

    @property
    def code(self) -> ResponseCode:
        return self.first.header.response_code

    @property
    def now(self) -> int:
        """The time of the answer: twelve hours before it expires."""
        return self.first.header.expires - MESSAGE_LIFETIME


class Replay:
    """A server that replays one conversation."""

    def __init__(self) -> None:
        self.randomness: deque[bytes] = deque()
        self.server = Server(ServerSettings(SERVER_KEY), self._random)

    def _random(self, count: int) -> bytes:
        data = self.randomness.popleft()
        assert len(data) == count
        return data

    def exchange(self, vector: Vector) -> None:
        """Answer one recorded request and compare."""
        recorded = self.prepare(vector)
        reply = self.server.sign(self.answer(vector, recorded))
        assert not self.randomness, "the recorded server drew as much"
        if vector.transport == "tcp":
            assert reply.to_stream() == b"".join(vector.response)
        else:
            assert reply.to_packets() == list(vector.response)

    def prepare(self, vector: Vector) -> Recorded:
        """Parse the answer and prepare the recorded randomness for the server."""
        messages = []
        for frame in frames_of(vector.response, vector.transport):
            payload, iv = frame.payload, b""
            if frame.envelope.encrypted:
                iv = payload[:16]
                payload = decrypt(
                    Cipher.AES, bytes.fromhex(vector.keys["session_key"]), payload, frame.envelope.version
                )
            message = Message.from_bytes(frame.envelope, payload, NOW)
            messages.append(message)
            _, body = decode_response(message, NOW)
            if isinstance(body, Challenge):
                self.randomness.append(body.nonce)
            if iv:
                self.randomness.append(iv)
        recorded = Recorded(messages)
        if recorded.code == ResponseCode.AUTHENTICATION_NEEDED or recorded.first.header.opcode == OpCode.SESSION_SETUP:
            # Challenge and session ids are sequential; a session uses its own id.
            set_last_id(self.server, recorded.first.envelope.session_id - 1)
        return recorded

    def answer(self, vector: Vector, recorded: Recorded) -> Reply:
        received = self.server.receive(received_frame(vector), recorded.now)
        if isinstance(received, Reply):
            return received
        if isinstance(received, Request) and isinstance(received.body, SessionSetup):
            return start_session(self.server, received, recorded.now)
        if isinstance(received, ChallengeProof):
            checked = self.check(received, vector, recorded)
            return checked if isinstance(checked, Reply) else self.execute(checked, vector, recorded)
        if recorded.code == ResponseCode.AUTHENTICATION_NEEDED or received.session is not None:
            identity = self.server.identify(received, recorded.now)
            if isinstance(identity, Reply):
                return identity
        return self.execute(received, vector, recorded)

    def check(self, proof: ChallengeProof, vector: Vector, recorded: Recorded) -> Request | Reply:
        """Check a proof as an application does; the records of the recorded server are in the README."""
        if vector.group.partition(".")[0] in WRONG_SECRETS:
            assert proof.check_secret(WRONG_SECRETS[vector.group.partition(".")[0]])
            assert not proof.check_secret(SECRET)
            return proof.request
        assert proof.identity.handle == b"0.NA/20.500.99999"
        match proof.auth_type, proof.identity.index:
            case "HS_PUBKEY", 300:
                assert proof.check_key(RSA_KEY.public)
                assert not proof.check_key(DSA_KEY.public)
            case "HS_PUBKEY", 302:
                assert proof.check_key(DSA_KEY.public)
                assert not proof.check_key(RSA_KEY.public)
            case "HS_SECKEY", 301:
                assert proof.check_secret(SECRET)
                assert not proof.check_secret(SECRET + b"x")
            case other:
                pytest.fail(f"nobody is {other}")
        return self.server.accept(proof, proof.identity, recorded.now)

    def execute(self, request: Request, vector: Vector, recorded: Recorded) -> Reply:
        """Return the response of the recorded application."""
        frames: list[Frame] = []
        for message in recorded.messages:
            _, body = decode_response(message, NOW)
            check_body(request, body, vector)
            flags = message.header.flags
            reply = self.server.respond(
                request,
                message.header.response_code,
                body,
                recorded.now,
                more=OpFlag.CONTINUOUS in flags,
                overwritten=OpFlag.OVERWRITE in flags,
            )
            frames += reply.frames
        return Reply(tuple(frames))


def check_body(request: Request, body: ResponseBody, vector: Vector) -> None:
    """Check the recorded response body where it can be computed."""
    if isinstance(request.body, VerifyChallenge):
        request_body = request.body
        secret = bytes.fromhex(vector.keys["secret_key"])
        valid = check_secret_answer(
            secret, request_body.nonce, request_body.digest, request_body.answer, request.message.version
        )
        assert body == VerificationResult(int(valid)) == VerificationResult(1)
    elif isinstance(body, SiteInfo):
        assert body.site == key_file("siteinfo.bin")
    elif isinstance(body, HandleList):
        assert len(body.handles) <= 50
        assert list(body.handles) == sorted(body.handles)


def received_frame(vector: Vector) -> Frame:
    """The request as the transport passes it to the server."""
    if vector.transport == "tcp":
        (frame,) = fed(FrameReader(), b"".join(vector.request))
        return frame
    if len(vector.request) == 1:
        (frame,) = frames_of(vector.request, "udp")
        return frame
    reassembler = Reassembler()
    *_, whole = [reassembler.receive("client", packet, 0.0) for packet in vector.request]
    assert whole is not None
    return Frame(*whole)


def is_special(name: str) -> bool:
    return name.startswith(("session:", "malformed:"))


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if not is_special(name)])
def test_a_vector_gets_exactly_the_recorded_answer(name: str) -> None:
    run = Replay()
    for vector in CONVERSATIONS[name]:
        run.exchange(vector)


# Sessions


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if name.startswith("session:session-dh")])
def test_a_diffie_hellman_session_vector_gets_exactly_the_recorded_answers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = RecordedHalf.of(CONVERSATIONS[name][0])
    monkeypatch.setattr(server_module, "generate_key_pair", half.make_key_pair)
    monkeypatch.setattr(server_module, "shared_secret", half.shared_secret)
    run = Replay()
    for vector in CONVERSATIONS[name]:
        run.exchange(vector)
        session = run.server.sessions.use(int(vector.keys["session_id"]), NOW)
        if session is not None:
            assert session.key == bytes.fromhex(vector.keys["session_key"])
            assert session.cipher == int(vector.keys["encryption_alg"])
            assert session.timeout == 3600
    assert len(run.server.sessions) == 0, "the last exchange ends it"


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if "-rsa-" in name])
def test_an_rsa_session_vector_is_refused_at_setup_and_the_rest_is_answered(name: str) -> None:
    """The recorded server was repaired to do the RSA modes; ours refuses them (reference, 15.3).

    The session is then created directly with its recorded key; the rest does not depend on the key exchange. In
    the mode of the server's key there is none: the client's second message comes without a session and gets 500.
    """
    run = Replay()
    for vector in CONVERSATIONS[name]:
        frame = received_frame(vector)
        setup = setup_of(frame)
        if setup is None:
            run.exchange(vector)
            continue
        recorded = run.prepare(vector)
        reply = run.server.receive(frame, recorded.now)
        assert isinstance(reply, Reply)
        (answer,) = run.server.sign(reply).frames
        message = Message.from_bytes(answer.envelope, answer.payload, NOW)
        digest, body = decode_response(message, NOW)
        assert isinstance(body, Failure)
        assert message.header.response_code is ResponseCode.SESSION_FAILED
        # Everything but the code, the body and the new id is as recorded, and the answer is signed.
        theirs = recorded.first
        assert message.header == Header(
            theirs.header.opcode,
            ResponseCode.SESSION_FAILED,
            theirs.header.flags,
            theirs.header.site_serial,
            theirs.header.recursion,
            theirs.header.expires,
        )
        assert answer.envelope.session_id == 0
        assert answer.envelope.request_id == theirs.envelope.request_id
        assert digest == decode_response(theirs, NOW)[0]
        assert verify_signature(message, SERVER_KEY.public)
        assert len(run.server.sessions) == 0
        if "session_key" in vector.keys:
            run.server.sessions.add(session_of(vector, setup), recorded.now)


def test_every_key_exchange_has_vectors() -> None:
    setups = [setup_of(received_frame(vector)) for vector in load("session.json")]
    assert {setup.mode for setup in setups if setup} == set(ExchangeMode)


# Malformed requests


@pytest.mark.parametrize("vector", load("malformed.json"), ids=str)
def test_a_malformed_vector_gets_exactly_the_recorded_answer(vector: Vector) -> None:
    run = Replay()
    if not vector.response:
        # Three bytes and then the end of the stream: nothing to answer.
        reader = FrameReader()
        assert fed(reader, b"".join(vector.request)) == []
        assert not reader.is_idle
        return
    recorded = run.prepare(vector)
    if len(vector.request[0]) < 20:
        reply = run.server.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT, recorded.now)
    else:
        try:
            reply = run.answer(vector, recorded)
        except RemoteProtocolError as error:
            assert vector.transport == "tcp"
            reply = run.server.early_failure(error.code, NOT_UNDERSTOOD_TEXT, recorded.now)
    expected = list(vector.response)
    assert (reply.to_packets() if vector.transport == "udp" else [reply.to_stream()]) == expected
