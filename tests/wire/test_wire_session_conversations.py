"""Sessions between our client and our server: from setup to end, with every cipher, in every version."""

from dataclasses import replace

import pytest

from perseid.records.record import Value
from perseid.wire.codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
)
from perseid.wire.message import Credential
from perseid.wire.requests import ExchangeKey, HandleRequest, Resolve, ValuesRequest
from perseid.wire.responses import CreationResult, Empty, Failure, ResolutionResult
from perseid.wire.server import NO_SESSION_TEXT, ServerSettings
from perseid.wire.sessions import Cipher, Identity, Session
from tests.wire import talk
from tests.wire.key_material import SERVER_KEY
from tests.wire.talk import (
    FLAGS_TO_READ_ALL,
    HANDLE,
    NOW,
    PRIVATE,
    PUBLIC,
    RSA,
    SEC,
    SECRET,
    Conversation,
    Host,
    Http,
    Line,
    Tcp,
    Udp,
    frame_of,
    read_code,
    without_credential,
)

SESSION_VERSIONS = [Version(2, minor) for minor in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11)]
CERTIFIED = DEFAULT_FLAGS | OpFlag.CERTIFY
SESSION_FLAGS = {
    "plain": DEFAULT_FLAGS,
    "certified": CERTIFIED,
    "encrypted": DEFAULT_FLAGS | OpFlag.ENCRYPT,
    "both": CERTIFIED | OpFlag.ENCRYPT | OpFlag.REQUEST_DIGEST,
}


@pytest.mark.parametrize("cipher", list(Cipher))
@pytest.mark.parametrize("version", SESSION_VERSIONS, ids=str)
@pytest.mark.parametrize("flags", SESSION_FLAGS)
def test_session_works_from_setup_to_end_with_every_cipher_and_version(
    cipher: Cipher, version: Version, flags: str
) -> None:
    line = Tcp(4096)
    conversation = Conversation(Host(ServerSettings(SERVER_KEY, cipher=cipher)), line, version)
    request_flags = SESSION_FLAGS[flags]
    session = conversation.begin_session(RSA)
    assert session.cipher is (cipher if version.at_least(4) else Cipher.DES)
    assert session.version == version
    line.seen.clear()
    first = conversation.ask_as(RSA, conversation.create(flags=request_flags, session=session), session)
    second = conversation.ask(conversation.create(b"1/second", flags=request_flags, session=session), session)
    for answer in (first, second):
        assert answer.code is ResponseCode.SUCCESS
        assert answer.message.envelope.session_id == session.id
        assert answer.is_certified is (OpFlag.CERTIFY in request_flags)
        assert answer.message.envelope.encrypted is (OpFlag.ENCRYPT in request_flags)
    assert [frame.envelope.encrypted for frame in line.seen] == [OpFlag.ENCRYPT in request_flags] * 6
    assert [identity for _, identity in conversation.host.executed] == [
        replace(RSA, key_index=300),
        replace(RSA, key_index=300),
    ]
    request = conversation.request(OpCode.SESSION_TERMINATE, HandleRequest(), flags=request_flags, session=session)
    end = conversation.ask(request, session)
    assert end.body == Empty()
    assert not end.message.envelope.encrypted, "the session is gone"
    assert end.message.envelope.session_id == session.id
    if OpFlag.CERTIFY in request_flags:
        assert end.message.credential is not None
        assert end.message.credential.type == "HS_SIGNED"
    assert len(conversation.host.server.sessions) == 0


@pytest.mark.parametrize("line", [Tcp(), Udp(), Udp(seed=5, loss=0.3), Http()], ids=["tcp", "udp", "bad udp", "http"])
def test_session_works_over_every_transport(line: Line) -> None:
    """Packets are not duplicated: a request received twice has a used counter and may get only that error."""
    conversation = Conversation(line=line)
    session = conversation.begin_authenticated_session()
    flags = CERTIFIED | OpFlag.ENCRYPT
    for number in range(10):
        name = b"1/%d" % number
        # In one packet: packets of two attempts with different MACs cannot always be distinguished.
        request = conversation.create(name, (Value(1, "DATA", bytes(200)),), flags=flags, session=session)
        assert conversation.ask(request, session).body == CreationResult(name)


def test_session_continues_over_another_transport() -> None:
    conversation = Conversation(line=Udp())
    session = conversation.begin_authenticated_session()
    for line in (Tcp(), Http(), Udp(seed=3, loss=0.3)):
        conversation.line = line
        assert conversation.ask(conversation.create(session=session), session).code is ResponseCode.SUCCESS


@pytest.mark.parametrize(("minor", "automatic"), [(7, False), (8, True), (11, True)])
def test_private_values_are_encrypted_both_ways_in_sessions_since_2_8(minor: int, automatic: bool) -> None:
    line = Tcp(4096)
    conversation = Conversation(line=line, version=Version(2, minor))
    session = conversation.begin_authenticated_session()
    line.seen.clear()
    for opcode in (OpCode.CREATE_HANDLE, OpCode.ADD_VALUE, OpCode.MODIFY_VALUE):
        request = conversation.request(opcode, ValuesRequest(b"1/x", (PUBLIC, PRIVATE)), session=session)
        assert conversation.ask(request, session).code is ResponseCode.SUCCESS
    answer = conversation.ask(conversation.resolve(flags=FLAGS_TO_READ_ALL, session=session), session)
    assert answer.body == ResolutionResult(HANDLE, (PUBLIC, PRIVATE))
    assert conversation.ask(conversation.create(session=session), session).code is ResponseCode.SUCCESS
    encrypted = [frame.envelope.encrypted for frame in line.seen]
    assert encrypted == [automatic, False] * 3 + [False, automatic] + [False, False]
    seen = b"".join(frame.payload for frame in line.seen)
    assert (talk.PRIVATE_TEXT in seen) is not automatic


def test_private_values_are_not_encrypted_again_over_encrypted_transport() -> None:
    conversation = Conversation(line=Http(private=True))
    session = conversation.begin_authenticated_session()
    request = conversation.resolve(flags=FLAGS_TO_READ_ALL, session=session)
    answer = conversation.ask(request, session)
    assert answer.body == ResolutionResult(HANDLE, (PUBLIC, PRIVATE))
    assert not answer.message.envelope.encrypted


def test_private_values_outside_a_session_cannot_be_encrypted() -> None:
    conversation = Conversation()
    answer = conversation.ask_as(SEC, conversation.create(values=(PRIVATE,)))
    assert not answer.message.envelope.encrypted


@pytest.mark.parametrize("minor", [4, 5, 6, 7, 8, 11])
def test_replayed_request_is_refused_since_2_5(minor: int) -> None:
    conversation = Conversation(version=Version(2, minor))
    session = conversation.begin_authenticated_session()
    request = conversation.create(b"1/once", session=session)
    assert conversation.ask(request, session).code is ResponseCode.SUCCESS
    code = ResponseCode.SESSION_MESSAGE_REJECTED if minor >= 5 else ResponseCode.SUCCESS
    assert read_code(conversation.host.receive(frame_of(request), NOW), session) is code
    if minor >= 5:
        assert conversation.ask(conversation.client.repeat(request, session), session).code is ResponseCode.SUCCESS


def test_request_overtaken_by_two_hundred_others_is_refused() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    requests = [conversation.create(b"1/%d" % number, session=session) for number in range(203)]
    for request in requests[2:]:
        assert read_code(conversation.host.receive(frame_of(request), NOW)) is ResponseCode.SUCCESS
    late = read_code(conversation.host.receive(frame_of(requests[1]), NOW))
    assert late is ResponseCode.SESSION_MESSAGE_REJECTED
    fresh = conversation.create(session=session)
    assert read_code(conversation.host.receive(frame_of(fresh), NOW)) is ResponseCode.SUCCESS


def test_only_a_message_with_a_valid_mac_uses_a_counter() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    request = conversation.create(session=session)
    assert request.credential is not None
    forged = request.with_credential(replace(request.credential, signature=bytes(32)))
    assert read_code(conversation.host.receive(frame_of(forged), NOW)) is ResponseCode.INVALID_SESSION_KEY
    assert read_code(conversation.host.receive(frame_of(request), NOW)) is ResponseCode.SUCCESS


def test_request_without_a_mac_is_refused_in_an_authenticated_session() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    request = without_credential(conversation.create(session=session))
    assert read_code(conversation.host.receive(frame_of(request), NOW)) is ResponseCode.INVALID_CREDENTIAL
    assert len(conversation.host.executed) == 1


@pytest.mark.parametrize("minor", [1, 4, 5, 6, 7, 8, 11])
def test_request_with_a_wrong_mac_is_refused_in_an_authenticated_session(minor: int) -> None:
    conversation = Conversation(version=Version(2, minor))
    session = conversation.begin_authenticated_session()
    other = Session(session.id, bytes(len(session.key)), session.cipher, session.version, sent=session.sent)
    request = conversation.create(session=other)
    assert read_code(conversation.host.receive(frame_of(request), NOW)) is ResponseCode.INVALID_SESSION_KEY
    assert len(conversation.host.executed) == 1


def test_the_mac_of_a_request_is_checked_before_it_is_challenged() -> None:
    for corrupt, code in [
        (without_credential, ResponseCode.INVALID_CREDENTIAL),
        (lambda m: m.with_credential(replace(m.credential, signature=bytes(32))), ResponseCode.INVALID_SESSION_KEY),
    ]:
        conversation = Conversation()
        session = conversation.begin_session()
        request = corrupt(conversation.create(session=session))
        assert conversation.ask(request, session).code is code
        assert not conversation.host.executed
        assert not len(conversation.host.server.challenges)
        found = conversation.host.server.sessions.use(session.id, NOW)
        assert found is not None
        assert found.proved is None


def test_public_records_are_resolved_in_a_session_without_a_mac_check() -> None:
    conversation = Conversation()
    session = conversation.begin_session(None)
    request = without_credential(conversation.resolve(session=session))
    assert conversation.ask(request, session).body == ResolutionResult(HANDLE, (PUBLIC,))


def test_identity_other_than_that_of_the_session_is_challenged_each_time() -> None:
    conversation = Conversation()
    session = conversation.begin_session(SEC)
    for _ in range(2):
        answer = conversation.ask_as(RSA, conversation.create(session=session), session)
        assert answer.code is ResponseCode.SUCCESS
    found = conversation.host.server.sessions.use(session.id, NOW)
    assert found is not None
    assert found.proved is None
    assert [identity for _, identity in conversation.host.executed] == [replace(RSA, key_index=300)] * 2


def test_anonymous_session_is_challenged_each_time() -> None:
    conversation = Conversation()
    session = conversation.begin_session(None)
    for _ in range(2):
        assert conversation.ask_as(SEC, conversation.create(session=session), session).code is ResponseCode.SUCCESS


@pytest.mark.parametrize("opcode", [OpCode.RESOLUTION, OpCode.DELETE_HANDLE, OpCode.SESSION_TERMINATE])
def test_unknown_session_is_refused_for_every_operation(opcode: OpCode) -> None:
    conversation = Conversation()
    session = Session(77, bytes(32), Cipher.AES, CURRENT_VERSION)
    body = Resolve(HANDLE) if opcode == OpCode.RESOLUTION else HandleRequest()
    answer = conversation.ask(conversation.request(opcode, body, flags=CERTIFIED, session=session), session)
    assert answer.code is ResponseCode.SESSION_TIMEOUT
    assert answer.body == Failure.of(NO_SESSION_TEXT)
    assert answer.message.envelope.session_id == 77
    assert answer.is_certified


def test_encrypted_request_in_an_unknown_session_is_refused_unencrypted() -> None:
    conversation = Conversation()
    session = Session(77, bytes(32), Cipher.AES, CURRENT_VERSION)
    request = conversation.resolve(flags=DEFAULT_FLAGS | OpFlag.ENCRYPT, session=session)
    (frame,) = conversation.send(request, session)
    assert (frame.envelope.session_id, frame.envelope.request_id) == (77, request.envelope.request_id)
    with pytest.raises(RemoteProtocolError, match="could not read the request") as caught:
        conversation.read(frame, request, session)
    assert caught.value.code is ResponseCode.SESSION_TIMEOUT


def test_repeating_an_old_request_does_not_replace_the_challenge_of_a_session() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    old = conversation.create(session=session)
    assert conversation.ask_as(SEC, old, session).code is ResponseCode.SUCCESS
    server_session = conversation.host.server.sessions.use(session.id, NOW)
    assert server_session is not None
    server_session.proved = None  # as if the session had to be authenticated again
    request = conversation.create(session=session)
    challenge = conversation.ask(request, session)
    assert conversation.ask(request, session).body == challenge.body, "the same request gets the same challenge"
    assert conversation.ask(old, session).code is ResponseCode.SESSION_MESSAGE_REJECTED
    proof = conversation.client.answer_challenge(challenge, request, SEC, SECRET, NOW)
    (answer,) = [conversation.read(frame, proof, session, about=request) for frame in conversation.send(proof, session)]
    assert answer.code is ResponseCode.SUCCESS


@pytest.mark.parametrize(("data", "granted"), [(2048, True), (2049, False)])
def test_identity_handle_has_at_most_2048_bytes(data: int, granted: bool) -> None:
    conversation = Conversation()
    requested = conversation.client.begin_session(Identity(bytes(data), 1), NOW, peer_version=CURRENT_VERSION)
    reply = conversation.host.receive(frame_of(requested.request), NOW)
    assert (read_code(reply) is ResponseCode.SUCCESS) is granted
    assert len(conversation.host.server.sessions) == granted


def test_session_expires_unless_used() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session(timeout=100)
    for _ in range(3):
        conversation.now += 100
        assert conversation.ask(conversation.create(session=session), session).code is ResponseCode.SUCCESS
    conversation.now += 100.5
    answer = conversation.ask(conversation.create(session=session), session)
    assert answer.code is ResponseCode.SESSION_TIMEOUT
    assert len(conversation.host.server.sessions) == 0


@pytest.mark.parametrize(
    ("requested", "granted"), [(0, 5000), (-1, 5000), (60, 60), (86_400, 86_400), (86_401, 86_400), (1 << 30, 86_400)]
)
def test_requested_session_lifetime_is_limited_to_one_day(requested: int, granted: int) -> None:
    conversation = Conversation(Host(ServerSettings(SERVER_KEY, session_life=5000)))
    session = conversation.begin_session(timeout=requested)
    found = conversation.host.server.sessions.use(session.id, NOW)
    assert found is not None
    assert found.timeout == granted


def test_session_cannot_be_ended_without_its_key() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    end = conversation.request(OpCode.SESSION_TERMINATE, HandleRequest(), session=session)
    for forged in (without_credential(end), end.with_credential(Credential("HS_MAC", b"HMAC-SHA256", bytes(32), 1))):
        reply = conversation.host.receive(frame_of(forged), NOW)
        assert read_code(reply) is ResponseCode.INVALID_SESSION_KEY
    assert len(conversation.host.server.sessions) == 1
    assert conversation.ask(end, session).code is ResponseCode.SUCCESS
    assert conversation.ask(conversation.create(session=session), session).code is ResponseCode.SESSION_TIMEOUT


def test_ending_without_a_session_is_refused() -> None:
    conversation = Conversation()
    answer = conversation.ask(conversation.request(OpCode.SESSION_TERMINATE, HandleRequest()))
    assert answer.code is ResponseCode.SESSION_TIMEOUT


def test_second_step_of_the_rsa_exchange_is_refused_with_and_without_session() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    for inside, code in [(None, ResponseCode.SESSION_TIMEOUT), (session, ResponseCode.SESSION_FAILED)]:
        request = conversation.request(OpCode.SESSION_EXCHANGEKEY, ExchangeKey(b"key"), flags=CERTIFIED, session=inside)
        answer = conversation.ask(request, inside)
        assert answer.code is code
        assert answer.message.credential is not None
        assert answer.message.credential.type == "HS_SIGNED", "an exchange is never MACed"
