"""Envelope, header, credential, bodies and whole messages: both directions, limits, and untrusted input."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.binary import Reader, Writer
from perseid.records.encoding import from_wire, to_wire
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.record import MAX_VALUES, Permission, TtlType, Value, ValueRef, read_values, write_values
from perseid.wire.codes import CURRENT_VERSION, LocalProtocolError, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.message import (
    MAX_MESSAGE,
    Credential,
    DigestAlgorithm,
    Envelope,
    Header,
    Message,
    RequestDigest,
    digest_algorithm_for,
)
from perseid.wire.requests import (
    MAX_HANDLE_LENGTH,
    REQUEST_DECODERS,
    DumpHandles,
    MirrorShare,
    Resolve,
    RetrieveTransactions,
    ValuesRequest,
    VerifyChallenge,
    encode_request,
)
from perseid.wire.responses import (
    Challenge,
    CreationResult,
    Empty,
    Failure,
    HandleList,
    Referral,
    ResolutionResult,
    ResponseBody,
    SessionSetupResult,
    UnknownBody,
    VerificationResult,
    decode_response,
    encode_challenge,
    encode_response,
)
from tests.wire import strategies
from tests.wire.strategies import EXAMPLES, FEW_EXAMPLES, INSTANTS

NOWS = pytest.mark.parametrize("now", INSTANTS, ids=["2026", "2039", "2056"])
NOW = INSTANTS[0]


NO_FLAGS = OpFlag(0)


def response(
    opcode: OpCode, code: ResponseCode, body: bytes, flags: OpFlag = NO_FLAGS, version: Version = CURRENT_VERSION
) -> Message:
    return Message.build(Envelope(version), Header(opcode, code, flags), body)


# Envelope


@EXAMPLES
@given(strategies.envelopes())
def test_envelope_round_trips(envelope: Envelope) -> None:
    data = envelope.to_bytes()
    assert len(data) == 20
    assert Envelope.from_bytes(data) == envelope
    assert Envelope.from_bytes(data + b"more") == envelope


@EXAMPLES
@given(st.binary(min_size=20, max_size=20))
def test_envelope_with_a_suggested_version_and_clear_unused_bits_is_canonical(data: bytes) -> None:
    envelope = Envelope.from_bytes(data)
    if data[2] & 0x03 and not data[2] & 0x1C:
        assert envelope.to_bytes() == data


@EXAMPLES
@given(st.binary(max_size=30))
def test_any_twenty_bytes_are_an_envelope(data: bytes) -> None:
    if len(data) >= 20:
        Envelope.from_bytes(data)
    else:
        with pytest.raises(InvalidData, match=f"an envelope must have 20 bytes, not {len(data)}"):
            Envelope.from_bytes(data)


def test_missing_suggestion_means_the_version_in_use() -> None:
    data = bytearray(Envelope(Version(2, 1)).to_bytes())
    data[2], data[3] = 0xE0, 9
    envelope = Envelope.from_bytes(bytes(data))
    assert envelope.suggested == Version(2, 1)
    assert (envelope.compressed, envelope.encrypted, envelope.truncated) == (True, True, True)


def test_unused_flag_bits_are_not_part_of_the_suggested_version() -> None:
    data = bytearray(Envelope(Version(2, 3)).to_bytes())
    data[2] |= 0x1C
    assert Envelope.from_bytes(bytes(data)) == Envelope(Version(2, 3))


@pytest.mark.parametrize(
    ("length", "valid"), [(-1, False), (0, True), (MAX_MESSAGE, True), (MAX_MESSAGE + 1, False), (-(1 << 31), False)]
)
def test_envelope_limits_a_message_to_262144_bytes(length: int, valid: bool) -> None:
    assert MAX_MESSAGE == 262_144
    assert Envelope(length=length).has_valid_length is valid


# Header


@NOWS
@EXAMPLES
@given(data=st.data())
def test_header_round_trips(now: int, data: st.DataObject) -> None:
    version = data.draw(strategies.VERSIONS)
    header = data.draw(strategies.headers(now, version))
    raw = header.to_bytes(version, 77)
    assert len(raw) == 24
    assert Header.from_bytes(raw + b"body", version, now) == (header, 77)


@NOWS
@EXAMPLES
@given(data=st.binary(max_size=30))
def test_any_bytes_are_a_canonical_header_or_too_short(now: int, data: bytes) -> None:
    if len(data) < 24:
        with pytest.raises(InvalidData, match="a header must have 24 bytes"):
            Header.from_bytes(data, CURRENT_VERSION, now)
    else:
        header, length = Header.from_bytes(data, CURRENT_VERSION, now)
        assert header.to_bytes(CURRENT_VERSION, length) == data[:24]
        assert header.is_request is (header.response_code == 0)


@NOWS
@EXAMPLES
@given(bits=st.integers(0, 0xFFFF_FFFF))
def test_wire_time_is_the_instant_nearest_to_now(now: int, bits: int) -> None:
    instant = from_wire(bits, now)
    assert to_wire(instant) == bits
    assert instant == 0 if bits == 0 else abs(instant - now) <= 1 << 31


# Credential


@EXAMPLES
@given(strategies.CREDENTIALS)
def test_credential_round_trips(credential: Credential) -> None:
    assert Credential.from_bytes(credential.to_bytes()) == credential


@EXAMPLES
@given(st.binary(max_size=60) | strategies.CREDENTIALS.map(Credential.to_bytes))
def test_any_bytes_are_a_canonical_credential_or_refused(data: bytes) -> None:
    try:
        credential = Credential.from_bytes(data)
    except InvalidData:
        return
    assert credential.to_bytes() == data


def test_credential_with_trailing_bytes_is_refused() -> None:
    credential = Credential("HS_MAC", b"SHA1", b"mac")
    with pytest.raises(InvalidData, match="1 trailing bytes"):
        Credential.from_bytes(credential.to_bytes() + b"\0")
    head = Writer().u8(0).u8(0).i16(0).bytes_(b"").i32(0).text("HS_MAC")
    signed = Writer().bytes_(b"SHA1").bytes_(b"mac").u8(0).getvalue()
    with pytest.raises(InvalidData, match="1 trailing bytes"):
        Credential.from_bytes(head.bytes_(signed).getvalue())


# Messages


@NOWS
@EXAMPLES
@given(data=st.data())
def test_message_round_trips(now: int, data: st.DataObject) -> None:
    message = data.draw(strategies.messages(now))
    raw = message.to_bytes()
    envelope = Envelope.from_bytes(raw)
    assert envelope.length == len(raw) - 20
    again = Message.from_bytes(envelope, raw[20:], now)
    assert again == message
    assert again.body == message.body
    assert again.to_bytes() == raw


@NOWS
@EXAMPLES
@given(payload=st.binary(max_size=100) | st.binary(max_size=60).map(lambda rest: bytes(23) + b"\x08" + rest))
def test_any_payload_is_refused_or_preserved_exactly(now: int, payload: bytes) -> None:
    try:
        message = Message.from_bytes(Envelope(length=len(payload)), payload, now)
    except InvalidData:
        return
    assert payload.startswith(message.raw)
    written = message.payload()
    # Two forms are accepted that we do not write: no credential, and bytes after it.
    assert payload.startswith(written) or message.raw == payload


def test_message_that_ends_after_the_body_has_no_credential() -> None:
    message = Message.build(Envelope(), Header(OpCode.RESOLUTION), b"body")
    payload = message.payload()
    assert payload.endswith(b"body\0\0\0\0")
    assert Message.from_bytes(message.envelope, payload[:-4], NOW).credential is None


@pytest.mark.parametrize("length", [-1, 5, 0x7FFF_FFFF])
def test_body_longer_than_the_message_is_refused(length: int) -> None:
    payload = Header(OpCode.RESOLUTION).to_bytes(CURRENT_VERSION, length) + b"body"
    with pytest.raises(InvalidData, match=f"the body length {length}"):
        Message.from_bytes(Envelope(), payload, NOW)


def test_message_with_signature_has_at_most_262144_bytes() -> None:
    header = Header(OpCode.RESOLUTION)
    room = MAX_MESSAGE - 24 - 4
    assert Message.build(Envelope(), header, bytes(room)).envelope.length == MAX_MESSAGE
    with pytest.raises(LocalProtocolError, match="262,145 bytes"):
        Message.build(Envelope(), header, bytes(room + 1))
    credential = Credential("HS_MAC", b"SHA1", bytes(20))
    size = len(credential.to_bytes())
    message = Message.build(Envelope(), header, bytes(room - size))
    assert message.with_credential(credential).envelope.length == MAX_MESSAGE
    message = Message.build(Envelope(), header, bytes(room - size + 1))
    with pytest.raises(LocalProtocolError, match="262,145 bytes"):
        message.with_credential(credential)


def test_message_repr_hides_its_content() -> None:
    message = Message.build(Envelope(), Header(OpCode.RESOLUTION), b"passphrase", Credential("T", b"A", b"passphrase"))
    assert "passphrase" not in repr(message)


# Bodies of requests


@NOWS
@pytest.mark.parametrize("opcode", REQUEST_DECODERS)
@FEW_EXAMPLES
@given(data=st.data())
def test_every_request_body_round_trips(opcode: OpCode, now: int, data: st.DataObject) -> None:
    version = data.draw(strategies.VERSIONS)
    body = data.draw(strategies.requests(now, version)[opcode])
    raw = encode_request(body, version)
    assert REQUEST_DECODERS[opcode](Reader(raw), version, now) == body


@pytest.mark.parametrize("opcode", REQUEST_DECODERS)
@EXAMPLES
@given(data=st.binary(max_size=120), version=strategies.VERSIONS, now=st.sampled_from(INSTANTS))
def test_any_bytes_are_a_canonical_request_body_or_refused(
    opcode: OpCode, data: bytes, version: Version, now: int
) -> None:
    reader = Reader(data)
    try:
        body = REQUEST_DECODERS[opcode](reader, version, now)
    except InvalidData:
        return
    written = encode_request(body, version)
    if opcode == OpCode.SESSION_SETUP:
        assert written == data[: reader.offset] + b"\0\0"
    elif not isinstance(body, VerifyChallenge):  # which has two forms of digest; only one is written
        assert written == data[: reader.offset]


def test_resolution_request_matches_the_specification() -> None:
    body = Resolve(b"12345/abc", (1, 2), ("URL",))
    expected = "0000000931323334352f616263000000020000000100000002000000010000000355524c"
    assert encode_request(body, CURRENT_VERSION).hex() == expected


@pytest.mark.parametrize(("code", "length"), [(1, 16), (2, 20), (3, 32)])
def test_verify_challenge_accepts_a_bare_digest_after_its_algorithm(code: int, length: int) -> None:
    writer = Writer().bytes_(b"1/A").i32(300).bytes_(b"nonce").u8(code).raw(bytes(range(length))).bytes_(b"answer")
    body = REQUEST_DECODERS[OpCode.VERIFY_CHALLENGE](Reader(writer.getvalue()), CURRENT_VERSION, NOW)
    assert body == VerifyChallenge(b"1/A", 300, b"nonce", bytes(range(length)), b"answer")


def test_transaction_request_has_a_discriminator_since_2_9() -> None:
    body = RetrieveTransactions(MirrorShare(2, 1, 0), 5, 6)
    with_it = encode_request(body, Version(2, 9))
    assert with_it == b"\0" + encode_request(body, Version(2, 8))
    state = RetrieveTransactions(MirrorShare(2, 1, 0), state='{"ownName":"2:0.NA/X"}')
    assert encode_request(state, Version(2, 9))[0] == 1
    assert RetrieveTransactions.read(Reader(encode_request(state, Version(2, 9))), Version(2, 9), NOW) == state
    with pytest.raises(InvalidData, match="unknown kind of transaction request 2"):
        RetrieveTransactions.read(Reader(b"\2" + with_it[1:]), Version(2, 9), NOW)


def test_dump_request_can_resume_at_a_handle() -> None:
    whole = DumpHandles(MirrorShare(2, 1, 0))
    assert len(encode_request(whole, CURRENT_VERSION)) == 9
    resumed = DumpHandles(MirrorShare(2, 1, 0), b"1/A", 2)
    assert encode_request(resumed, CURRENT_VERSION).hex() == "02000000010000000000000003312f4100000002"


# Bodies of responses


@NOWS
@pytest.mark.parametrize("opcode", strategies.successes(NOW))
@FEW_EXAMPLES
@given(data=st.data())
def test_every_success_body_round_trips_with_and_without_digest(opcode: OpCode, now: int, data: st.DataObject) -> None:
    body = data.draw(strategies.successes(now)[opcode])
    digest = data.draw(st.none() | strategies.DIGESTS)
    flags = OpFlag.REQUEST_DIGEST if digest else NO_FLAGS
    version = data.draw(strategies.VERSIONS)
    message = response(opcode, ResponseCode.SUCCESS, encode_response(body, digest), flags, version)
    assert decode_response(message, now) == (digest, body)


@NOWS
@EXAMPLES
@given(data=st.data())
def test_every_failure_body_round_trips_with_and_without_digest(now: int, data: st.DataObject) -> None:
    version = data.draw(strategies.VERSIONS)
    code, body = data.draw(strategies.failures(now, version))
    digest = data.draw(st.none() | strategies.DIGESTS)
    flags = OpFlag.REQUEST_DIGEST if digest else NO_FLAGS
    message = response(data.draw(strategies.OPCODES), code, encode_response(body, digest), flags, version)
    assert decode_response(message, now) == (digest, body)


@EXAMPLES
@given(
    opcode=strategies.OPCODES,
    code=st.sampled_from(list(ResponseCode)) | strategies.I32.map(ResponseCode),
    data=st.binary(max_size=120),
    flags=st.sampled_from([OpFlag(0), OpFlag.REQUEST_DIGEST]),
    now=st.sampled_from(INSTANTS),
)
def test_any_bytes_are_a_response_body_or_refused(
    opcode: OpCode, code: ResponseCode, data: bytes, flags: OpFlag, now: int
) -> None:
    message = response(opcode, code, data, flags)
    try:
        digest, body = decode_response(message, now)
    except InvalidData:
        return
    written = encode_response(body, digest if flags else None)
    if isinstance(body, SessionSetupResult):
        written = written[:-2]
    old_form = flags and data[:1] == b"\0"  # a digest as a byte string, which we never write
    assert data.startswith(written) or old_form


@pytest.mark.parametrize("opcode", [OpCode(9999), OpCode.RESERVED])
def test_success_of_an_unknown_operation_is_preserved(opcode: OpCode) -> None:
    _, body = decode_response(response(opcode, ResponseCode.SUCCESS, b"new"), NOW)
    assert body == UnknownBody(b"new")
    assert encode_response(body, None) == b"new"


def test_unknown_response_code_is_an_error_with_text() -> None:
    _, body = decode_response(
        response(OpCode.RESOLUTION, ResponseCode(999), encode_response(Failure.of("x"), None)), NOW
    )
    assert body == Failure(b"x")


@pytest.mark.parametrize("text", [None, b"", b"caf\xc3\xa9", b"\xff"])
def test_error_text_may_be_missing_or_invalid(text: bytes | None) -> None:
    data = encode_response(Failure(text), None)
    _, body = decode_response(response(OpCode.RESOLUTION, ResponseCode.ERROR, data), NOW)
    assert isinstance(body, Failure)
    assert body.text == text
    assert body.sentence == (text or b"").decode("utf-8", "replace")


@pytest.mark.parametrize(("byte", "valid"), [(0, False), (1, True), (2, False), (0xFF, True)])
def test_lowest_bit_is_the_verification_result(byte: int, valid: bool) -> None:
    assert VerificationResult(byte).is_valid is valid


def test_challenge_digest_follows_the_nonce_in_2_0_and_precedes_it_in_2_1() -> None:
    request = b"request"
    for version, algorithm in [(Version(2, 0), DigestAlgorithm.MD5), (Version(2, 1), DigestAlgorithm.SHA1)]:
        digest = RequestDigest.of(request, version)
        data = encode_challenge(b"n" * 16, digest, version)
        flags = OpFlag.REQUEST_DIGEST if version.at_least(1) else OpFlag(0)
        message = response(OpCode.DELETE_HANDLE, ResponseCode.AUTHENTICATION_NEEDED, data, flags, version)
        found, body = decode_response(message, NOW)
        assert found == digest
        assert found.algorithm is algorithm
        assert isinstance(body, Challenge)
        assert body.nonce == b"n" * 16
        assert found.matches(request)
        assert not found.matches(b"another")


@pytest.mark.parametrize("trailing", [b"\0", b"\0\0\0\7more"])
def test_bytes_after_the_nonce_of_a_challenge_are_ignored(trailing: bytes) -> None:
    digest = RequestDigest.of(b"request", CURRENT_VERSION)
    data = encode_challenge(b"n" * 16, digest, CURRENT_VERSION) + trailing
    code = ResponseCode.AUTHENTICATION_NEEDED
    message = response(OpCode.DELETE_HANDLE, code, data, OpFlag.REQUEST_DIGEST)
    assert decode_response(message, NOW) == (digest, Challenge(b"n" * 16))


@pytest.mark.parametrize(
    ("version", "algorithm"),
    [("2.0", 1), ("5.0", 1), ("2.1", 2), ("2.6", 2), ("2.7", 3), ("2.11", 3), ("3.0", 3)],
)
def test_digest_algorithm_depends_on_the_response_version(version: str, algorithm: int) -> None:
    assert digest_algorithm_for(Version.parse(version)) == algorithm


def test_old_digest_form_is_read_and_unknown_algorithm_is_refused() -> None:
    old = Writer().bytes_(b"d" * 16).getvalue()
    assert RequestDigest.read(Reader(old)) == RequestDigest(DigestAlgorithm.MD5, b"d" * 16)
    with pytest.raises(InvalidData, match="unknown digest algorithm 4"):
        RequestDigest.read(Reader(b"\4" + bytes(40)))
    with pytest.raises(InvalidData):
        RequestDigest.read(Reader(Writer().bytes_(b"d" * 17).getvalue()))


def test_creation_result_may_omit_the_handle_and_referral_its_values() -> None:
    assert decode_response(response(OpCode.CREATE_HANDLE, ResponseCode.SUCCESS, b""), NOW) == (
        None,
        CreationResult(None),
    )
    assert encode_response(CreationResult(None), None) == b""
    data = encode_response(Referral(b"0.NA/1"), None)
    code = ResponseCode.SERVICE_REFERRAL
    assert decode_response(response(OpCode.RESOLUTION, code, data), NOW) == (None, Referral(b"0.NA/1", None))


def test_bytes_after_an_empty_success_body_are_ignored() -> None:
    assert decode_response(response(OpCode.DELETE_HANDLE, ResponseCode.SUCCESS, b"new"), NOW) == (None, Empty())


@pytest.mark.parametrize(
    ("opcode", "code", "make"),
    [
        (OpCode.RESOLUTION, ResponseCode.SUCCESS, lambda name: ResolutionResult(name, ())),
        (OpCode.CREATE_HANDLE, ResponseCode.SUCCESS, CreationResult),
        (OpCode.LIST_HANDLES, ResponseCode.SUCCESS, lambda name: HandleList((b"", name))),
        (OpCode.RESOLUTION, ResponseCode.SERVICE_REFERRAL, Referral),
    ],
)
def test_handle_in_a_response_has_at_most_2048_bytes(
    opcode: OpCode, code: ResponseCode, make: Callable[[bytes], ResponseBody]
) -> None:
    assert MAX_HANDLE_LENGTH == 2048
    longest = make(b"n" * MAX_HANDLE_LENGTH)
    assert decode_response(response(opcode, code, encode_response(longest, None)), NOW) == (None, longest)
    with pytest.raises(InvalidData, match="not between 0 and 2048"):
        decode_response(response(opcode, code, encode_response(make(b"n" * (MAX_HANDLE_LENGTH + 1)), None)), NOW)


# Values


@NOWS
@EXAMPLES
@given(data=st.data())
def test_value_round_trips(now: int, data: st.DataObject) -> None:
    value = data.draw(strategies.values(now))
    assert Value.from_bytes(value.to_bytes(), now) == value


@NOWS
@EXAMPLES
@given(data=st.binary(max_size=60) | st.binary(min_size=14, max_size=14).map(lambda head: head + bytes(12)))
def test_any_bytes_are_a_canonical_value_or_refused(now: int, data: bytes) -> None:
    try:
        value = Value.from_bytes(data, now)
    except InvalidData:
        return
    assert value.to_bytes() == data


def test_values_of_the_specification_are_written_exactly() -> None:
    value = Value(1, "URL", b"http://example.com/", timestamp=1_500_000_000)
    begin = "0000000159682f0000000151800e0000000355524c00000013687474703a2f2f6578616d706c652e636f6d2f"
    assert value.to_bytes().hex() == begin + "00000000"
    with_reference = Value(1, "URL", b"http://example.com/", timestamp=1_500_000_000, references=(ValueRef(7, "1/2"),))
    assert with_reference.to_bytes().hex() == begin + "0000000100000003312f3200000007"


def test_message_has_at_most_2048_values() -> None:
    assert MAX_VALUES == 2048

    def written(count: int) -> bytes:
        writer = Writer()
        write_values(writer, tuple(Value(index, "", b"") for index in range(count)))
        return writer.getvalue()

    assert len(read_values(Reader(written(MAX_VALUES)), NOW)) == MAX_VALUES
    with pytest.raises(InvalidData, match="not between 0 and 2048"):
        read_values(Reader(written(MAX_VALUES + 1)), NOW)
    request = Writer().bytes_(b"1/2").raw(written(MAX_VALUES + 1)).getvalue()
    with pytest.raises(InvalidData):
        ValuesRequest.read(Reader(request), CURRENT_VERSION, NOW)


def test_absolute_ttl_is_an_instant_and_relative_ttl_may_be_negative() -> None:
    for now in INSTANTS:
        absolute = Value(1, "URL", b"", ttl=now + 1000, ttl_type=TtlType.ABSOLUTE)
        assert Value.from_bytes(absolute.to_bytes(), now) == absolute
        relative = Value(1, "URL", b"", ttl=-5)
        assert Value.from_bytes(relative.to_bytes(), now) == relative
    with pytest.raises(RecordMisuse):
        Value(1, "URL", b"", ttl=1 << 31).to_bytes()


def test_data_of_private_values_and_secret_keys_is_not_shown() -> None:
    private = Value(1, "NOTE", b"passphrase", permissions=Permission.ADMIN_READ)
    secret = Value(2, "hs_seckey.x", b"passphrase")
    public = Value(3, "URL", b"shown")
    assert "passphrase" not in repr((private, secret))
    assert "<10 bytes>" in repr(private)
    assert "shown" in repr(public)
