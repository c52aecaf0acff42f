"""Whole conversations between our client and our server, over every transport, in every version."""

from dataclasses import replace

import pytest

from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.message import MESSAGE_LIFETIME, Message
from perseid.wire.requests import HandleRequest, Resolve
from perseid.wire.responses import Challenge, CreationResult, HandleList, ResolutionResult
from perseid.wire.server import ChallengeProof, Reply, ServerSettings
from perseid.wire.sessions import Identity
from tests.wire import talk
from tests.wire.key_material import RSA_KEY, SERVER_KEY
from tests.wire.talk import (
    ADMIN,
    DSA,
    FLAGS_TO_READ_ALL,
    HANDLE,
    NOW,
    PRIVATE,
    PUBLIC,
    RSA,
    SEC,
    Conversation,
    Host,
    frame_of,
    lines,
    read_code,
    read_message,
)

VERSIONS = [Version(2, minor) for minor in (0, 1, 4, 6, 7, 10, 11)]
IDENTITIES = pytest.mark.parametrize("identity", [RSA, DSA, SEC], ids=["RSA", "DSA", "secret"])
IN_EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS, ids=str)
CERTIFIED = DEFAULT_FLAGS | OpFlag.CERTIFY
WRONG_PROOFS: dict[Identity, PrivateKey | bytes] = {RSA: SERVER_KEY, DSA: RSA_KEY, SEC: b"wrong"}
DIGESTED = DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST


ON_EVERY_LINE = pytest.mark.parametrize("line", list(lines()))


# Resolution


@IN_EVERY_VERSION
@ON_EVERY_LINE
@pytest.mark.parametrize(
    "flags", [DEFAULT_FLAGS, CERTIFIED, DIGESTED, CERTIFIED | DIGESTED], ids=["", "CT", "RD", "CR"]
)
def test_public_record_is_resolved(line: str, flags: OpFlag, version: Version) -> None:
    conversation = Conversation(line=lines()[line], version=version)
    answer = conversation.ask(conversation.resolve(flags=flags))
    assert answer.code is ResponseCode.SUCCESS
    assert answer.body == ResolutionResult(HANDLE, (PUBLIC,))
    assert answer.is_certified is (OpFlag.CERTIFY in flags)
    assert (answer.digest is not None) is (OpFlag.REQUEST_DIGEST in flags and version.at_least(1))
    assert answer.message.version == version
    assert answer.message.header.site_serial == 1
    assert OpFlag.AUTHORITATIVE in answer.message.header.flags
    assert answer.message.header.expires == int(NOW) + MESSAGE_LIFETIME
    assert not answer.more_follows


@ON_EVERY_LINE
def test_record_of_many_packets_is_resolved(line: str) -> None:
    conversation = Conversation(line=lines()[line])
    large = tuple(Value(index, "DATA", bytes(900)) for index in range(1, 6))
    conversation.host.records[HANDLE] = large
    answer = conversation.ask(conversation.resolve(flags=CERTIFIED))
    assert answer.body == ResolutionResult(HANDLE, large)


def test_mirror_server_is_not_authoritative() -> None:
    conversation = Conversation(Host(ServerSettings(SERVER_KEY, site_serial=9, is_primary=False)))
    answer = conversation.ask(conversation.resolve())
    assert OpFlag.AUTHORITATIVE not in answer.message.header.flags
    assert answer.message.header.site_serial == 9


def test_old_request_that_suggests_a_new_version_is_answered_in_it() -> None:
    conversation = Conversation()
    body = Resolve(HANDLE)
    request = conversation.client.request(OpCode.RESOLUTION, body, NOW, flags=CERTIFIED, peer_version=Version(2, 3))
    assert request.version == Version(2, 3)
    answer = conversation.ask(request)
    assert answer.message.version == CURRENT_VERSION
    assert answer.body == ResolutionResult(HANDLE, (PUBLIC,))


def test_peer_mislabeled_as_5_0_is_answered_in_2_0() -> None:
    conversation = Conversation()
    request = conversation.client.request(OpCode.GET_SITE_INFO, HandleRequest(), NOW, peer_version=Version(5, 0))
    assert request.version == Version(2, 0)
    old = replace(request, envelope=replace(request.envelope, version=Version(5, 0), suggested=Version(5, 0)))
    (frame,) = conversation.host.receive(frame_of(old), NOW).frames
    assert frame.envelope.version == Version(2, 0)


def test_list_is_sent_in_messages_of_fifty() -> None:
    conversation = Conversation()
    for number in range(120):
        conversation.host.records[b"1/%03d" % number] = (PUBLIC,)
    request = conversation.request(OpCode.LIST_HANDLES, HandleRequest(ADMIN), flags=CERTIFIED | OpFlag.REQUEST_DIGEST)
    challenge = conversation.ask(request)
    proof = conversation.client.answer_challenge(challenge, request, RSA, RSA_KEY, NOW)
    answers = [conversation.read(frame, proof, about=request) for frame in conversation.send(proof)]
    assert [answer.more_follows for answer in answers] == [True, True, False]
    names = [name for answer in answers if isinstance(answer.body, HandleList) for name in answer.body.handles]
    assert names == sorted(conversation.host.records)
    assert conversation.host.receive(frame_of(proof), NOW) == Reply(()), "a list is not kept for a repeated answer"
    assert len(conversation.host.executed) == 1


# Challenges


@IN_EVERY_VERSION
@IDENTITIES
@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, CERTIFIED | OpFlag.REQUEST_DIGEST], ids=["plain", "certified"])
def test_challenge_is_answered_in_every_version_with_every_key_type(
    identity: Identity, version: Version, flags: OpFlag
) -> None:
    conversation = Conversation(version=version)
    answer = conversation.ask_as(identity, conversation.create(flags=flags))
    assert answer.body == CreationResult(b"1/new")
    assert answer.message.header.opcode is OpCode.CREATE_HANDLE
    assert answer.message.envelope.session_id == 0
    assert answer.message.version == version
    assert answer.is_certified is (OpFlag.CERTIFY in flags)
    assert conversation.host.executed == [(OpCode.CREATE_HANDLE, replace(identity, key_index=identity.index))]
    assert conversation.host.records[b"1/new"] == (PUBLIC,)


@ON_EVERY_LINE
def test_challenged_request_is_executed_once_over_every_transport(line: str) -> None:
    conversation = Conversation(line=lines()[line])
    large = Value(1, "DATA", bytes(2000))
    answer = conversation.ask_as(SEC, conversation.create(values=(large,)))
    assert answer.code is ResponseCode.SUCCESS
    assert len(conversation.host.executed) == 1


@IDENTITIES
def test_wrong_key_fails_authentication(identity: Identity) -> None:
    conversation = Conversation()
    request = conversation.create()
    challenge = conversation.ask(request)
    message = conversation.client.answer_challenge(challenge, request, identity, WRONG_PROOFS[identity], NOW)
    assert conversation.ask(message, about=request).code is ResponseCode.AUTHENTICATION_FAILED
    assert not conversation.host.executed


def test_private_values_are_read_after_a_challenge() -> None:
    conversation = Conversation()
    answer = conversation.ask_as(DSA, conversation.resolve(flags=FLAGS_TO_READ_ALL))
    assert answer.body == ResolutionResult(HANDLE, (PUBLIC, PRIVATE))


def request_and_proof(conversation: Conversation, **changes: object) -> tuple[Message, Message, VerifiedResponse]:
    """A request, the answer to its challenge, and the challenge."""
    request = conversation.create(**changes)  # type: ignore[arg-type]
    challenge = conversation.ask(request)
    return request, conversation.client.answer_challenge(challenge, request, SEC, talk.SECRET, NOW), challenge


def test_repeated_answer_gets_the_same_reply_without_execution() -> None:
    conversation = Conversation()
    _, proof, _ = request_and_proof(conversation)
    first = conversation.host.receive(frame_of(proof), NOW)
    assert read_code(first) is ResponseCode.SUCCESS
    for later in (0.0, 1.0, 59.0):
        assert conversation.host.receive(frame_of(proof), NOW + later) == first
    assert len(conversation.host.executed) == 1


def test_answer_received_twice_before_its_check_is_accepted_once() -> None:
    conversation = Conversation()
    _, proof, _ = request_and_proof(conversation)
    server = conversation.host.server
    first, second = server.receive(frame_of(proof), NOW), server.receive(frame_of(proof), NOW)
    assert isinstance(first, ChallengeProof)
    assert isinstance(second, ChallengeProof)
    checked = conversation.host.check_proof(first, NOW)
    assert not isinstance(checked, Reply)
    assert conversation.host.check_proof(second, NOW) == Reply(())
    assert server.receive(frame_of(proof), NOW) == Reply(())
    reply = conversation.host.execute(checked, NOW)
    assert server.receive(frame_of(proof), NOW) == reply


def test_wrong_answer_does_not_use_up_the_challenge() -> None:
    conversation = Conversation()
    request, proof, challenge = request_and_proof(conversation)
    wrong = conversation.client.answer_challenge(challenge, request, SEC, b"a guess", NOW)
    for _ in range(3):
        reply = read_message(conversation.host.receive(frame_of(wrong), NOW))
        assert reply.header.response_code is ResponseCode.AUTHENTICATION_FAILED
    assert not conversation.host.executed
    assert read_code(conversation.host.receive(frame_of(proof), NOW)) is ResponseCode.SUCCESS


def test_reply_is_not_repeated_to_an_unauthenticated_peer_with_both_ids() -> None:
    conversation = Conversation()
    request, proof, challenge = request_and_proof(conversation)
    conversation.send(proof)
    guess = conversation.client.answer_challenge(challenge, request, SEC, b"a guess", NOW)
    guess = replace(guess, envelope=replace(guess.envelope, request_id=proof.envelope.request_id))
    assert read_code(conversation.host.receive(frame_of(guess), NOW)) is ResponseCode.AUTHEN_TIMEOUT


def test_second_different_answer_is_too_late() -> None:
    conversation = Conversation()
    request, proof, challenge = request_and_proof(conversation)
    conversation.send(proof)
    other = conversation.client.answer_challenge(challenge, request, RSA, RSA_KEY, NOW)
    assert other.envelope.request_id != proof.envelope.request_id
    reply = read_message(conversation.host.receive(frame_of(other), NOW))
    assert reply.header.response_code is ResponseCode.AUTHEN_TIMEOUT
    assert reply.header.opcode is OpCode.RESPONSE_TO_CHALLENGE
    assert len(conversation.host.executed) == 1


@pytest.mark.parametrize(("age", "code"), [(60.0, ResponseCode.SUCCESS), (60.5, ResponseCode.SESSION_TIMEOUT)])
def test_challenge_expires_after_the_configured_time(age: float, code: ResponseCode) -> None:
    conversation = Conversation()
    _, proof, _ = request_and_proof(conversation)
    assert read_code(conversation.host.receive(frame_of(proof), NOW + age)) is code


def test_answer_without_a_challenge_is_refused() -> None:
    conversation = Conversation()
    _, proof, _ = request_and_proof(conversation)
    stray = replace(proof, envelope=replace(proof.envelope, session_id=0))
    assert read_code(conversation.host.receive(frame_of(stray), NOW)) is ResponseCode.AUTHEN_TIMEOUT


def test_expired_challenge_in_a_session_is_405_and_the_session_continues() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    request = conversation.create(session=session)
    challenge = conversation.ask(request, session)
    conversation.now += 61
    answer = conversation.prove(challenge, request, SEC, session)
    assert answer.code is ResponseCode.AUTHEN_TIMEOUT
    assert answer.message.envelope.session_id == session.id
    assert conversation.ask_as(SEC, conversation.create(session=session), session).code is ResponseCode.SUCCESS


def test_every_challenge_has_a_new_id_and_nonce() -> None:
    conversation = Conversation()
    challenges = [conversation.ask(conversation.create()) for _ in range(5)]
    assert len({challenge.message.envelope.session_id for challenge in challenges}) == 5
    assert len({challenge.body.nonce for challenge in challenges if isinstance(challenge.body, Challenge)}) == 5


def test_repeated_request_in_a_session_gets_the_same_challenge() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    request = conversation.create(session=session)
    first = conversation.ask(request, session)
    repeated = conversation.client.repeat(request, session)
    assert repeated.credential != request.credential
    assert conversation.ask(repeated, session).body == first.body
    other = conversation.ask(conversation.create(b"1/other", session=session), session)
    assert other.body != first.body


def test_challenge_with_a_lower_suggested_version_gets_the_lower_answer_format() -> None:
    """The suggested version of a challenge may be lower than its own version."""
    conversation = Conversation()
    request = conversation.create()
    challenge = conversation.ask(request)
    lowered = replace(challenge.message.envelope, suggested=Version(2, 6))
    challenge = replace(challenge, message=replace(challenge.message, envelope=lowered))
    proof = conversation.client.answer_challenge(challenge, request, SEC, talk.SECRET, NOW)
    assert len(proof.body) < 70, "SHA-1 without parameters"
    assert conversation.ask(proof, about=request).code is ResponseCode.SUCCESS
