"""No secret is shown: every wire object that contains one is printed and searched."""

import dataclasses
import random
from collections.abc import Iterator

from perseid.records.record import Permission, Value
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import Envelope, Header, Message
from perseid.wire.requests import ValuesRequest
from perseid.wire.responses import Referral, ResolutionResult, UnknownBody
from perseid.wire.server import ChallengeProof, Reply, Request, ServerSettings
from perseid.wire.sessions import DEFAULT_GROUP, Cipher, Session, generate_key_pair
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY
from tests.wire.recorded import fed
from tests.wire.talk import FLAGS_TO_READ_ALL, NOW, SEC, Conversation, Host, frame_of

PASSPHRASE = b"correct horse battery staple"
SECRET_VALUE = Value(301, "HS_SECKEY", PASSPHRASE, permissions=Permission.ADMIN_READ)


def spellings(secret: bytes) -> Iterator[str]:
    """The ways to show bytes."""
    yield secret.hex()
    yield repr(secret)[2:-1]
    yield secret.decode("latin-1")
    yield str(list(secret))[1:-1]
    yield str(int.from_bytes(secret, "big"))


def assert_hidden(secret: bytes, *objects: object) -> None:
    assert len(secret) >= 8
    for one in objects:
        for shown in (repr(one), str(one), f"{one}"):
            for spelling in spellings(secret):
                assert spelling not in shown, type(one).__name__
                assert spelling[: len(spelling) // 2] not in shown, type(one).__name__


def test_session_keys_are_not_shown() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    inside = conversation.host.server.sessions.use(session.id, NOW)
    assert inside is not None
    server = conversation.host.server
    assert_hidden(session.key, session, inside, server, server.sessions, [session], {"session": inside})
    request = conversation.create(session=session)
    received = server.receive(frame_of(request), NOW)
    assert isinstance(received, Request)
    assert_hidden(session.key, received, request)


def test_key_exchange_secrets_are_not_shown() -> None:
    pair = generate_key_pair(DEFAULT_GROUP, random.Random(1).randbytes)
    secret = pair.exponent.to_bytes(32, "big")
    assert_hidden(secret, pair)
    assert hex(pair.exponent) not in repr(pair)
    setup = Client(random.Random(1).randbytes).begin_session(SEC, NOW)
    assert setup.pair.exponent == pair.exponent
    assert_hidden(secret, setup)


def test_private_keys_are_not_shown() -> None:
    settings = ServerSettings(SERVER_KEY)
    host = Host(settings)
    for key in (SERVER_KEY, RSA_KEY, DSA_KEY):
        secret = key.to_bytes()[-20:]
        assert_hidden(secret, key, settings, host, host.server)
    for number in (getattr(SERVER_KEY, name) for name in ("d", "p", "q", "dp", "dq", "qi")):
        assert str(number) not in repr(settings)
        assert f"{number:x}" not in repr(settings)


def test_secret_values_are_not_shown_in_requests() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    conversation.host.records[b"1/keys"] = (SECRET_VALUE,)
    body = ValuesRequest(b"1/keys", (SECRET_VALUE,))
    request = conversation.request(OpCode.CREATE_HANDLE, body, session=session)
    frame = frame_of(request)
    received = conversation.host.server.receive(frame, NOW)
    assert isinstance(received, Request)
    reader = FrameReader()
    (read,) = fed(reader, frame.envelope.to_bytes() + frame.payload)
    assert_hidden(PASSPHRASE, body, request, frame, received, reader, read)
    outside = conversation.request(OpCode.CREATE_HANDLE, body)
    challenge = conversation.ask(outside)
    pending = conversation.host.server.challenges.find(challenge.message.envelope.session_id, NOW)
    assert pending is not None
    answer = conversation.client.answer_challenge(challenge, outside, SEC, PASSPHRASE, NOW)
    proof = conversation.host.server.receive(frame_of(answer), NOW)
    assert isinstance(proof, ChallengeProof)
    assert_hidden(PASSPHRASE, outside, challenge, pending, answer, proof, conversation.host.server.challenges)


def test_secret_values_are_not_shown_in_answers() -> None:
    host = Host()
    conversation = Conversation(host)
    host.records[b"1/record"] = (SECRET_VALUE,)
    answer = conversation.ask_as(SEC, conversation.resolve(flags=FLAGS_TO_READ_ALL))
    assert answer.body == ResolutionResult(b"1/record", (SECRET_VALUE,))
    message = Message.build(Envelope(), Header(OpCode.CREATE_HANDLE), PASSPHRASE)
    frame = Frame(message.envelope, message.payload())
    reply = Reply((frame,))
    assert_hidden(PASSPHRASE, answer, message, frame, reply, UnknownBody(PASSPHRASE), Referral(b"1/2", (SECRET_VALUE,)))
    session = Session(1, PASSPHRASE, Cipher.AES, CURRENT_VERSION)
    assert_hidden(PASSPHRASE, session)


def test_stored_reply_of_an_answered_challenge_is_not_shown() -> None:
    host = Host()
    conversation = Conversation(host)
    host.records[b"1/record"] = (SECRET_VALUE,)
    request = conversation.resolve(flags=FLAGS_TO_READ_ALL)
    challenge = conversation.ask(request)
    assert conversation.prove(challenge, request, SEC).code is ResponseCode.SUCCESS
    pending = host.server.challenges.find(challenge.message.envelope.session_id, NOW)
    assert pending is not None
    assert pending.reply
    assert_hidden(PASSPHRASE, pending, host.server.challenges)


def test_assert_hidden_detects_a_shown_secret() -> None:
    @dataclasses.dataclass
    class Careless:
        secret: bytes

    found = False
    try:
        assert_hidden(PASSPHRASE, Careless(PASSPHRASE))
    except AssertionError:
        found = True
    assert found
    assert DEFAULT_FLAGS & OpFlag.PUBLIC_ONLY
