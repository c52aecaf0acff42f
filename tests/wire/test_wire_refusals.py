"""What client and server refuse: forged, corrupted, expired or foreign messages, and invalid key exchanges."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.binary import Writer
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    LocalProtocolError,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
)
from perseid.wire.credentials import sign
from perseid.wire.framing import Frame
from perseid.wire.message import MAX_CREDENTIAL, MAX_MESSAGE, MESSAGE_LIFETIME, Envelope, Header, Message
from perseid.wire.requests import ChallengeResponse, ExchangeMode, HandleRequest, Resolve, SessionSetup, encode_request
from perseid.wire.responses import Empty, Failure, ResolutionResult, SessionSetupResult, decode_response
from perseid.wire.server import (
    CANNOT_DECRYPT_TEXT,
    INVALID_LENGTH_TEXT,
    NOT_UNDERSTOOD_TEXT,
    Reply,
    Request,
    ServerSettings,
)
from perseid.wire.sessions import DEFAULT_GROUP, Session, generate_key_pair
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY
from tests.wire.strategies import EXAMPLES
from tests.wire.talk import (
    FLAGS_TO_READ_ALL,
    HANDLE,
    NOW,
    PRIVATE,
    PUBLIC,
    SEC,
    SECRET,
    Conversation,
    Host,
    frame_of,
    read_code,
    read_message,
)

CERTIFIED = DEFAULT_FLAGS | OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST


def request_and_answer(conversation: Conversation, flags: OpFlag = CERTIFIED) -> tuple[Message, Frame]:
    """A resolution request and the frame of its answer."""
    request = conversation.resolve(flags=flags)
    (frame,) = conversation.send(request)
    return request, frame


def message_in(frame: Frame) -> Message:
    return Message.from_bytes(frame.envelope, frame.payload, int(NOW))


# What the client refuses


def test_response_to_another_request_is_refused() -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation)
    other = replace(frame, envelope=replace(frame.envelope, request_id=request.envelope.request_id + 1))
    with pytest.raises(RemoteProtocolError, match="is for another request"):
        conversation.read(other, request)


@pytest.mark.parametrize(("later", "valid"), [(0, True), (MESSAGE_LIFETIME, True), (MESSAGE_LIFETIME + 1, False)])
def test_response_expires_after_twelve_hours(later: int, valid: bool) -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation)
    conversation.now = float(int(NOW)) + later
    if valid:
        conversation.read(frame, request)
    else:
        with pytest.raises(RemoteProtocolError, match="has expired"):
            conversation.read(frame, request)


def test_request_instead_of_a_response_is_refused() -> None:
    conversation = Conversation()
    request = conversation.resolve()
    with pytest.raises(RemoteProtocolError, match="sent a request instead of a response"):
        conversation.read(frame_of(request), request)


def test_response_with_a_wrong_or_missing_digest_is_refused() -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation, DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST)
    other = conversation.request(OpCode.RESOLUTION, Resolve(b"1/other"), flags=DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST)
    other = replace(other, envelope=replace(other.envelope, request_id=request.envelope.request_id))
    with pytest.raises(RemoteProtocolError, match="the digest of another request"):
        conversation.read(frame, other)
    _, without = request_and_answer(conversation, DEFAULT_FLAGS)
    without = replace(without, envelope=replace(without.envelope, request_id=request.envelope.request_id))
    with pytest.raises(RemoteProtocolError, match="does not have the digest"):
        conversation.read(without, request)


def test_unsigned_response_or_foreign_signature_is_refused() -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation)
    message = message_in(frame)
    bare = replace(message, credential=None)
    for forged in (
        replace(bare, envelope=bare.envelope.with_length(len(bare.payload()))),
        sign(bare, RSA_KEY),
        sign(bare, DSA_KEY),
    ):
        with pytest.raises(RemoteProtocolError, match="is not signed by the server"):
            conversation.read(frame_of(forged), request)
    assert conversation.read(frame_of(message), request).is_certified
    assert conversation.read(frame_of(sign(bare, SERVER_KEY)), request).is_certified


def test_certified_response_needs_the_server_key() -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation)
    with pytest.raises(LocalProtocolError, match="requires the server's public key"):
        conversation.client.read(frame, request, NOW)


def test_unrequested_signature_is_not_checked() -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation, DEFAULT_FLAGS)
    forged = sign(message_in(frame), RSA_KEY)
    assert not conversation.read(frame_of(forged), request).is_certified


def test_mac_of_another_session_or_reused_counter_is_refused() -> None:
    conversation = Conversation()
    session, other = conversation.begin_authenticated_session(), conversation.begin_session()
    request = conversation.resolve(flags=CERTIFIED, session=session)
    (frame,) = conversation.send(request, session)
    with pytest.raises(RemoteProtocolError, match="the MAC of another session"):
        conversation.read(frame, request)
    with pytest.raises(RemoteProtocolError, match="the MAC of another session"):
        conversation.read(frame, request, other)
    renamed = Session(session.id, other.key, other.cipher, other.version)
    with pytest.raises(RemoteProtocolError, match="the MAC is invalid"):
        conversation.read(frame, request, renamed)
    assert conversation.read(frame, request, session).is_certified
    with pytest.raises(RemoteProtocolError, match="the session counter was used before"):
        conversation.read(frame, request, session)


def test_encrypted_response_without_its_session_key_is_refused() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    request = conversation.resolve(flags=FLAGS_TO_READ_ALL, session=session)
    (frame,) = conversation.send(request, session)
    assert frame.envelope.encrypted
    with pytest.raises(RemoteProtocolError, match="is encrypted, but there is no session"):
        conversation.read(frame, request)
    for key in (bytes(32), bytes(range(32))):
        with pytest.raises(RemoteProtocolError):
            conversation.read(frame, request, Session(session.id, key, session.cipher, session.version))
    assert conversation.read(frame, request, session).body == ResolutionResult(HANDLE, (PUBLIC, PRIVATE))


def test_only_a_challenge_to_the_same_request_is_answered() -> None:
    conversation = Conversation()
    request, other = conversation.create(), conversation.create(b"1/other")
    challenge = conversation.ask(request)
    with pytest.raises(RemoteProtocolError, match="the challenge is for another request"):
        conversation.client.answer_challenge(challenge, other, SEC, SECRET, NOW)
    success = conversation.ask(conversation.resolve())
    with pytest.raises(LocalProtocolError, match="the response is not a challenge"):
        conversation.client.answer_challenge(success, request, SEC, SECRET, NOW)


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        (Frame(Envelope(length=-1), b""), ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT),
        (Frame(Envelope(length=MAX_MESSAGE + 1), b""), ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT),
        (Frame(Envelope(length=23), bytes(23)), ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT),
        (Frame(Envelope(length=24), bytes(24)), ResponseCode.PROTOCOL_ERROR, "Unknown opCode in message: 0"),
        (Frame(Envelope(length=24), b"\0\0\7\1" + bytes(20)), ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT),
        (Frame(Envelope(length=24), b"\0\0\0\1" + bytes(20)), ResponseCode.ERROR, NOT_UNDERSTOOD_TEXT),
        (Frame(Envelope(length=24, encrypted=True), bytes(24)), ResponseCode.SESSION_FAILED, CANNOT_DECRYPT_TEXT),
    ],
)
def test_early_failure_has_code_and_text(frame: Frame, code: ResponseCode, text: str) -> None:
    conversation = Conversation()
    (reply,) = conversation.host.receive(frame, NOW).frames
    assert (reply.envelope.session_id, reply.envelope.request_id) == (0, -1)
    assert str(reply.envelope.version) == "2.3"
    with pytest.raises(RemoteProtocolError, match=f"the server could not read the request: {text}") as caught:
        conversation.read(reply, conversation.resolve())
    assert caught.value.code is code


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        Header(OpCode.RESERVED, ResponseCode.SUCCESS).to_bytes(CURRENT_VERSION, 0),
        Header(OpCode.RESERVED, ResponseCode.RESERVED).to_bytes(CURRENT_VERSION, 0),
    ],
)
def test_message_without_a_request_id_that_is_not_a_failure_is_refused(payload: bytes) -> None:
    conversation = Conversation()
    with pytest.raises(RemoteProtocolError, match="is for another request"):
        conversation.read(Frame(Envelope(request_id=-1), payload), conversation.resolve())


# Tampering

UNPROTECTED_IN_ENVELOPE = {2: 0xFC, **dict.fromkeys(range(12, 16), 0xFF)}
"""Bits of the envelope that no signature covers: CP, EC, TC and unused ones, and the sequence number."""


def ignored_bits(message: Message) -> dict[int, int]:
    """By offset, the bits that may change undetected."""
    credential = 20 + len(message.raw) + 4
    assert message.credential is not None
    algorithm = credential + 4 + 4 + 4 + 4 + len(message.credential.type) + 4 + 4
    return {
        **UNPROTECTED_IN_ENVELOPE,
        **dict.fromkeys(range(credential, credential + 4), 0xFF),  # version, reserved and options: without meaning
        # Algorithm names are compared without case and punctuation.
        **dict.fromkeys(range(algorithm, algorithm + len(message.credential.algorithm)), 0xFF),
    }


@pytest.mark.parametrize("kind", ["signed", "maced"])
def test_changed_byte_of_a_certified_response_is_detected(kind: str) -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session() if kind == "maced" else None
    request = conversation.resolve(flags=CERTIFIED, session=session)
    (frame,) = conversation.send(request, session)
    data = frame.envelope.to_bytes() + frame.payload
    harmless, unnoticed = ignored_bits(message_in(frame)), []
    for offset in range(len(data)):
        if 16 <= offset < 20:
            continue  # the length, which tells the transport where the message ends
        for bit in (1 << (offset % 8), 1 << ((offset + 5) % 8)):
            changed = bytearray(data)
            changed[offset] ^= bit
            corrupted = Frame(Envelope.from_bytes(bytes(changed)), bytes(changed[20:]))
            fresh = replace(session, received=type(session.received)()) if session else None
            try:
                answer = conversation.read(corrupted, request, fresh)
            except RemoteProtocolError:
                continue
            unnoticed.append(offset)
            assert bit & harmless.get(offset, 0), f"byte {offset}, bit {bit:#x}"
            assert answer.body == ResolutionResult(HANDLE, (PUBLIC,)), "and it says the same"
    assert set(unnoticed) >= {12, 13, 14, 15}, "the test sees what is accepted"
    assert len(set(unnoticed)) < 20


@EXAMPLES
@given(st.data())
def test_no_corrupted_response_crashes_the_client(data: st.DataObject) -> None:
    conversation = Conversation()
    request, frame = request_and_answer(conversation, data.draw(st.sampled_from([CERTIFIED, DEFAULT_FLAGS])))
    raw = bytearray(frame.envelope.to_bytes() + frame.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(20, len(raw)))
    corrupted = Frame(Envelope.from_bytes(bytes(raw)), bytes(raw[20:cut]))
    with suppress(RemoteProtocolError):
        assert isinstance(conversation.read(corrupted, request), VerifiedResponse)


# What the server refuses


def setup(conversation: Conversation, **fields: object) -> ResponseCode:
    """The response code for an invalid session setup request."""
    pair = generate_key_pair(DEFAULT_GROUP, random.Random(3).randbytes)
    body = SessionSetup(ExchangeMode.DIFFIE_HELLMAN, 3600, public_key=pair.public.to_bytes())
    body = replace(body, **fields)  # type: ignore[arg-type]
    request = conversation.request(OpCode.SESSION_SETUP, body, flags=CERTIFIED)
    answer = conversation.ask(request)
    if answer.code is not ResponseCode.SUCCESS:
        assert answer.is_certified
        assert answer.message.envelope.session_id == 0
        assert len(conversation.host.server.sessions) == 0
        assert isinstance(answer.body, Failure)
        assert answer.body.sentence
    return answer.code


def group_key(y: int, p: int, g: int) -> bytes:
    """A Diffie-Hellman key that our own class would refuse."""
    writer = Writer().text("DH_PUB_KEY").i16(0)
    for number in (y, p, g):
        writer.bytes_(number.to_bytes(number.bit_length() // 8 + 1, "big"))
    return writer.getvalue()


P = DEFAULT_GROUP[0]


def test_default_group_is_accepted() -> None:
    assert setup(Conversation()) is ResponseCode.SUCCESS
    assert setup(Conversation(), public_key=group_key(P - 2, P, 2)) is ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "key",
    [
        group_key(0, P, 2),
        group_key(1, P, 2),
        group_key(P - 1, P, 2),
        group_key(P, P, 2),
        group_key(5, P, 1),
        group_key(5, P, P - 1),
        group_key(5, P - 1, 2),
        group_key(5, (1 << 511) - 1, 2),
        group_key(5, (1 << 4096) + 1, 2),
        RSA_KEY.public.to_bytes(),
        DSA_KEY.public.to_bytes(),
        b"",
        b"\0\0\0\5hello",
        group_key(5, P, 2)[:-1],
    ],
    ids=["y0", "y1", "y-1", "yp", "g1", "g-1", "even", "small", "large", "RSA", "DSA", "empty", "kind", "cut"],
)
def test_invalid_key_exchange_is_refused(key: bytes) -> None:
    assert setup(Conversation(), public_key=key) is ResponseCode.SESSION_FAILED


@pytest.mark.parametrize("mode", [1, 2, 3, 5, 0, -1])
def test_other_key_exchange_modes_are_refused(mode: int) -> None:
    assert setup(Conversation(), mode=ExchangeMode(mode)) is ResponseCode.SESSION_FAILED


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda data: data[:3],
        lambda data: b"\0\0\0\7" + data[4:],
        lambda data: data[:4] + group_key(P - 2, P, 3),
        lambda data: data[:4] + group_key(1, P, 2),
        lambda data: data[:4] + RSA_KEY.public.to_bytes(),
    ],
    ids=["short", "cipher", "group", "weak", "kind"],
)
def test_client_refuses_an_invalid_key_exchange(corrupt: Callable[[bytes], bytes]) -> None:
    conversation = Conversation()
    session_setup = conversation.client.begin_session(SEC, NOW, peer_version=CURRENT_VERSION)
    answer = conversation.ask(session_setup.request)
    assert isinstance(answer.body, SessionSetupResult)
    assert conversation.client.finish_session(session_setup, answer).id == 1
    corrupted = replace(answer, body=replace(answer.body, data=corrupt(answer.body.data)))
    with pytest.raises(RemoteProtocolError, match="the key exchange failed") as caught:
        conversation.client.finish_session(session_setup, corrupted)
    assert caught.value.code is ResponseCode.SESSION_FAILED


@pytest.mark.parametrize("body", [Failure.of("no"), SessionSetupResult(ExchangeMode.CLIENT_KEY, b"")])
def test_session_that_is_not_granted_is_refused(body: Failure | SessionSetupResult) -> None:
    conversation = Conversation()
    session_setup = conversation.client.begin_session(None, NOW)
    answer = replace(conversation.ask(session_setup.request), body=body)
    with pytest.raises(RemoteProtocolError, match="did not grant the session"):
        conversation.client.finish_session(session_setup, answer)


@pytest.mark.parametrize("session_id", [0, -1])
def test_session_without_an_id_is_refused(session_id: int) -> None:
    conversation = Conversation()
    session_setup = conversation.client.begin_session(None, NOW, peer_version=CURRENT_VERSION)
    answer = conversation.ask(session_setup.request)
    envelope = replace(answer.message.envelope, session_id=session_id)
    answer = replace(answer, message=replace(answer.message, envelope=envelope))
    with pytest.raises(RemoteProtocolError, match="no id"):
        conversation.client.finish_session(session_setup, answer)


def test_mac_of_a_challenged_request_is_checked_again_with_the_answer() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    request = conversation.create(session=session)
    challenge = conversation.ask(request, session)
    proof = conversation.client.answer_challenge(challenge, request, SEC, SECRET, NOW)
    conversation.host.server.sessions.add(replace(session, key=bytes(32)), NOW)
    assert read_code(conversation.host.receive(frame_of(proof), NOW)) is ResponseCode.INVALID_SESSION_KEY
    assert not conversation.host.executed


def test_undecryptable_request_in_a_session_is_an_early_failure() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    for payload in (b"", bytes(15), bytes(16), bytes(33), bytes(320)):
        envelope = Envelope(session_id=session.id, request_id=9, length=len(payload), encrypted=True)
        reply = read_message(conversation.host.receive(Frame(envelope, payload), NOW))
        assert reply.envelope.request_id == -1
        assert reply.header.response_code is ResponseCode.SESSION_FAILED


def test_encrypted_request_shorter_than_a_header_is_an_early_failure() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    message = Message(Envelope(session_id=session.id), Header(OpCode.RESOLUTION), b"tiny")
    envelope, payload = session.seal(message, random.Random(1).randbytes)
    reply = conversation.host.receive(Frame(envelope, payload), NOW)
    assert read_code(reply) is ResponseCode.SESSION_FAILED


def test_altered_ciphertext_always_gets_the_same_answer() -> None:
    """Otherwise the answers would reveal the plaintext byte by byte (padding oracle)."""
    conversation = Conversation()
    session = conversation.begin_session()
    request = conversation.create(flags=DEFAULT_FLAGS | OpFlag.ENCRYPT, session=session)
    frame = conversation.client.pack(request, session)
    codes = set()
    for position in range(len(frame.payload)):
        for flip in (1, 0x80):
            data = bytearray(frame.payload)
            data[position] ^= flip
            codes.add(read_code(conversation.host.receive(Frame(frame.envelope, bytes(data)), NOW)))
    # Every last byte of two forged blocks: one in 256 has valid padding.
    for byte in range(256):
        forged = bytes(15) + bytes((byte,)) + frame.payload[16:32]
        envelope = replace(frame.envelope, length=len(forged))
        codes.add(read_code(conversation.host.receive(Frame(envelope, forged), NOW)))
    assert codes == {ResponseCode.SESSION_FAILED}
    assert not conversation.host.executed


def test_answer_without_a_challenge_looks_like_altered_ciphertext() -> None:
    conversation = Conversation()
    session = conversation.begin_session()
    body = ChallengeResponse("HS_SECKEY", b"1/2", 3, b"answer")
    header = Header(OpCode.RESPONSE_TO_CHALLENGE, flags=DEFAULT_FLAGS | OpFlag.ENCRYPT)
    message = Message.build(
        Envelope(session_id=session.id, request_id=5), header, encode_request(body, CURRENT_VERSION)
    )
    frame = Frame(*session.seal(message, random.Random(1).randbytes))
    assert read_code(conversation.host.receive(frame, NOW)) is ResponseCode.SESSION_FAILED


@pytest.mark.parametrize("lowered", [Version(2, 0), Version(2, 4), Version(2, 7), Version(2, 10)])
def test_client_detects_a_version_downgrade_in_transit(lowered: Version) -> None:
    conversation = Conversation()
    session_setup = conversation.client.begin_session(SEC, NOW, peer_version=CURRENT_VERSION)
    frame = frame_of(session_setup.request)
    altered = Frame(replace(frame.envelope, suggested=lowered), frame.payload)
    (answer,) = conversation.host.receive(altered, NOW).frames
    with pytest.raises(RemoteProtocolError, match="older version"):
        conversation.client.read(answer, session_setup.request, NOW, server_key=SERVER_KEY.public)


def test_answer_to_another_operation_is_refused() -> None:
    conversation = Conversation()
    request = conversation.resolve()
    other = conversation.request(OpCode.GET_SITE_INFO, HandleRequest())
    other = replace(other, envelope=replace(other.envelope, request_id=request.envelope.request_id))
    (answer,) = conversation.host.receive(frame_of(other), NOW).frames
    with pytest.raises(RemoteProtocolError, match="another operation"):
        conversation.client.read(answer, request, NOW)


@pytest.mark.parametrize(
    ("opcode", "flags"),
    [
        (OpCode.RESOLUTION, 0x1900_0000),
        (OpCode.CREATE_HANDLE, 0x1900_0000),
        (OpCode.SESSION_SETUP, 0x5980_0000),
        (OpCode.SESSION_EXCHANGEKEY, 0x5980_0000),
        (OpCode.VERIFY_CHALLENGE, 0x5980_0000),
        (OpCode.RETRIEVE_TXN_LOG, 0x5900_0000),
        (OpCode.DUMP_HANDLES, 0x5900_0000),
    ],
)
def test_request_has_the_flags_of_deployed_clients(opcode: OpCode, flags: int) -> None:
    assert Conversation().client.request(opcode, HandleRequest(), NOW).header.flags == flags


def test_two_failures_have_other_codes_over_http() -> None:
    server = Host().server
    unknown = Message.build(Envelope(request_id=5), Header(OpCode(9999)), b"")
    foreign = Frame(Envelope(session_id=77, request_id=5, encrypted=True, length=32), bytes(32))
    for frame, plain, over_http in [
        (frame_of(unknown), ResponseCode.ERROR, ResponseCode.PROTOCOL_ERROR),
        (foreign, ResponseCode.SESSION_TIMEOUT, ResponseCode.SESSION_FAILED),
    ]:
        for http, code in [(False, plain), (True, over_http)]:
            reply = server.receive(frame, NOW, http=http)
            assert isinstance(reply, Reply)
            assert read_code(reply) is code


def test_answer_for_the_wrong_interface_names_the_operation() -> None:
    reply = Host().server.early_failure(ResponseCode.PROTOCOL_ERROR, "not here", NOW, opcode=OpCode.CREATE_HANDLE)
    header = read_message(reply).header
    assert (header.opcode, header.response_code) == (OpCode.CREATE_HANDLE, ResponseCode.PROTOCOL_ERROR)


@pytest.mark.parametrize(("serial", "fits"), [(-0x8000, True), (0x7FFF, True), (0x8000, False), (-0x8001, False)])
def test_site_serial_has_16_bits(serial: int, fits: bool) -> None:
    if fits:
        assert ServerSettings(SERVER_KEY, site_serial=serial).site_serial == serial
    else:
        with pytest.raises(LocalProtocolError):
            ServerSettings(SERVER_KEY, site_serial=serial)


def test_request_that_suggests_2_0_gets_no_digest() -> None:
    conversation = Conversation()
    request = conversation.resolve(flags=DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST)
    frame = frame_of(request)
    old = Frame(replace(frame.envelope, version=Version(2, 0), suggested=Version(2, 0)), frame.payload)
    answer = read_message(conversation.host.receive(old, NOW))
    assert OpFlag.REQUEST_DIGEST not in answer.header.flags
    assert isinstance(decode_response(answer, int(NOW))[1], ResolutionResult)


@EXAMPLES
@given(st.data())
def test_no_corrupted_request_crashes_the_server(data: st.DataObject) -> None:
    conversation = Conversation()
    session = data.draw(st.none() | st.just(conversation.begin_session()))
    request = conversation.create(values=(PUBLIC, PRIVATE), session=session)
    frame = conversation.client.pack(request, session)
    raw = bytearray(frame.envelope.to_bytes() + frame.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(20, len(raw)))
    corrupted = Frame(Envelope.from_bytes(bytes(raw)), bytes(raw[20:cut]))
    try:
        reply = conversation.host.receive(corrupted, NOW)
    except KeyError:
        return  # the test application does not know the handle
    assert all(frame.envelope.has_valid_length for frame in reply.frames)


def test_overlong_answer_is_not_sent() -> None:
    conversation = Conversation()
    session = conversation.begin_authenticated_session()
    room = MAX_MESSAGE - 24 - 4
    for inside, flags, overhead in [
        (None, DEFAULT_FLAGS, 0),
        (None, DEFAULT_FLAGS | OpFlag.CERTIFY, MAX_CREDENTIAL),
        (session, DEFAULT_FLAGS | OpFlag.CERTIFY, 77),
        (session, DEFAULT_FLAGS | OpFlag.ENCRYPT, 16 + 1),
    ]:
        request = conversation.resolve(flags=flags, session=inside)
        received = conversation.host.server.receive(conversation.client.pack(request, inside), NOW)
        assert isinstance(received, Request)
        longest = Failure(bytes(room - overhead - 4))
        too_long = Failure(bytes(room - overhead - 4 + 16))
        reply = conversation.host.server.respond(received, ResponseCode.ERROR, longest, NOW)
        assert reply.frames[0].envelope.length <= MAX_MESSAGE
        with pytest.raises(LocalProtocolError, match=r"the maximum is 262,144|with a signature"):
            conversation.host.server.respond(received, ResponseCode.ERROR, too_long, NOW)


def test_response_flags_follow_request_flags() -> None:
    conversation = Conversation()
    every = OpFlag(0xFFF0_0000) & ~OpFlag.ENCRYPT
    request = conversation.request(OpCode.RESOLUTION, Resolve(HANDLE), flags=every)
    answer = conversation.ask(request)
    assert answer.message.header.flags == (
        OpFlag.AUTHORITATIVE
        | OpFlag.CERTIFY
        | OpFlag.RECURSIVE
        | OpFlag.CACHE_AUTHENTICATION
        | OpFlag.PUBLIC_ONLY
        | OpFlag.REQUEST_DIGEST
        | OpFlag.DO_NOT_REFER
    )
    none = conversation.ask(conversation.request(OpCode.DELETE_HANDLE, HandleRequest(HANDLE), flags=OpFlag(0)))
    assert none.message.header.flags == OpFlag.AUTHORITATIVE | OpFlag.RECURSIVE | OpFlag.REQUEST_DIGEST


def test_overwritten_flag_is_set_on_success_only() -> None:
    host = Host()
    conversation = Conversation(host)
    received = host.server.receive(frame_of(conversation.create(flags=DEFAULT_FLAGS | OpFlag.OVERWRITE)), NOW)
    assert isinstance(received, Request)
    for code, expected in [(ResponseCode.SUCCESS, True), (ResponseCode.HANDLE_ALREADY_EXISTS, False)]:
        reply = host.server.respond(received, code, Empty(), NOW, overwritten=True)
        assert (OpFlag.OVERWRITE in read_message(reply).header.flags) is expected
