"""The messages of the native protocol specification, section 21.3, in both directions."""

import pytest

from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.message import UNKNOWN_REQUEST_ID, Envelope, Header, Message, RequestDigest
from perseid.wire.requests import (
    REQUEST_DECODERS,
    ChallengeResponse,
    DumpHandles,
    ExchangeMode,
    MirrorShare,
    RequestBody,
    Resolve,
    RetrieveTransactions,
    SessionSetup,
    VerifyChallenge,
    encode_request,
)
from perseid.wire.responses import Failure, SessionSetupResult, decode_response, encode_response

NOW = 1_700_000_000
CERTIFIED = DEFAULT_FLAGS | OpFlag.CERTIFY
CERTIFIED_DIGESTED = CERTIFIED | OpFlag.REQUEST_DIGEST
SETUP = SessionSetup(ExchangeMode.DIFFIE_HELLMAN, 86_400, b"1/A", 300, b"\xaa\xbb")

REQUESTS_OF_21_3: list[tuple[OpCode, OpFlag, int, Version, RequestBody, str]] = [
    (
        OpCode.RESOLUTION,
        DEFAULT_FLAGS,
        5,
        CURRENT_VERSION,
        Resolve(b"12345/abc", (1, 2), ("URL",)),
        (
            "000000010000000019000000000500006553f100000000240000000931323334352f6162630000000200000001000000"
            "02000000010000000355524c00000000"
        ),
    ),
    (
        OpCode.RESOLUTION,
        DEFAULT_FLAGS,
        -1,
        CURRENT_VERSION,
        Resolve(b"12345/abc"),
        "000000010000000019000000ffff00006553f100000000150000000931323334352f616263000000000000000000000000",
    ),
    (
        OpCode.SESSION_SETUP,
        CERTIFIED_DIGESTED,
        -1,
        CURRENT_VERSION,
        SETUP,
        "000001900000000059800000ffff00006553f1000000001900040001518000000003312f410000012c00000002aabb000000000000",
    ),
    (
        OpCode.SESSION_SETUP,
        DEFAULT_FLAGS,
        -1,
        CURRENT_VERSION,
        SessionSetup(ExchangeMode.DIFFIE_HELLMAN, 86_400, public_key=b"\xaa"),
        "000001900000000019000000ffff00006553f1000000001500040001518000000000ffffffff00000001aa000000000000",
    ),
    (
        OpCode.RESPONSE_TO_CHALLENGE,
        DEFAULT_FLAGS,
        -1,
        CURRENT_VERSION,
        ChallengeResponse("HS_SECKEY", b"1/A", 300, b"\2\3"),
        (
            "000000c80000000019000000ffff00006553f1000000001e0000000948535f5345434b455900000003312f410000012c"
            "00000002020300000000"
        ),
    ),
    (
        OpCode.VERIFY_CHALLENGE,
        CERTIFIED_DIGESTED,
        -1,
        CURRENT_VERSION,
        VerifyChallenge(b"1/A", 300, b"\x09\x09", b"\x08\x08\x08", b"\2\7"),
        (
            "000000c90000000059800000ffff00006553f1000000001e00000003312f410000012c00000002090900000003080808"
            "00000002020700000000"
        ),
    ),
    (
        OpCode.RETRIEVE_TXN_LOG,
        CERTIFIED,
        -1,
        CURRENT_VERSION,
        RetrieveTransactions(MirrorShare(2, 1, 0), 5, 6),
        "000003e90000000059000000ffff00006553f1000000001a000000000000000005000000000000000602000000010000000000000000",
    ),
    (
        OpCode.RETRIEVE_TXN_LOG,
        CERTIFIED,
        -1,
        Version(2, 8),
        RetrieveTransactions(MirrorShare(2, 1, 0), 5, 6),
        "000003e90000000059000000ffff00006553f100000000190000000000000005000000000000000602000000010000000000000000",
    ),
    (
        OpCode.DUMP_HANDLES,
        CERTIFIED,
        -1,
        CURRENT_VERSION,
        DumpHandles(MirrorShare(2, 1, 0), b"1/A", 2),
        "000003ea0000000059000000ffff00006553f1000000001402000000010000000000000003312f410000000200000000",
    ),
]


@pytest.mark.parametrize(("opcode", "flags", "serial", "version", "body", "data"), REQUESTS_OF_21_3)
def test_request_vector_of_the_specification_round_trips(
    opcode: OpCode, flags: OpFlag, serial: int, version: Version, body: RequestBody, data: str
) -> None:
    header = Header(opcode, flags=flags, site_serial=serial, expires=NOW)
    message = Message.build(Envelope(version), header, encode_request(body, version))
    assert message.payload().hex() == data
    again = Message.from_bytes(Envelope(version), bytes.fromhex(data), NOW)
    assert again.header == header
    assert REQUEST_DECODERS[opcode](again.body_reader(), version, NOW) == body


def test_envelope_vector_of_the_specification_round_trips() -> None:
    envelope = Envelope(request_id=0x01020304, length=0x40)
    assert envelope.to_bytes().hex() == "020b020b00000000010203040000000000000040"
    assert Envelope.from_bytes(envelope.to_bytes()) == envelope


def test_session_vector_of_the_specification_has_its_request_digest() -> None:
    header = Header(OpCode.SESSION_SETUP, flags=CERTIFIED_DIGESTED, expires=NOW)
    request = Message.build(Envelope(), header, encode_request(SETUP, CURRENT_VERSION))
    digest = RequestDigest.of(request.raw, CURRENT_VERSION)
    body = SessionSetupResult(ExchangeMode.DIFFIE_HELLMAN, b"\1\2\3")
    answer = Header(OpCode.SESSION_SETUP, ResponseCode.SUCCESS, CERTIFIED_DIGESTED, 1, expires=NOW)
    response = Message.build(Envelope(), answer, encode_response(body, digest))
    expected = (
        "000001900000000159800000000100006553f1000000002c0324f9ce631c06273e7e24a70608bd93ffe2c8fb7b19523a"
        "a7c3132b4c807a9d1d000400000003010203000000000000"
    )
    assert response.payload().hex() == expected
    again = Message.from_bytes(Envelope(), bytes.fromhex(expected), NOW)
    assert decode_response(again, NOW) == (digest, body)


def test_early_failure_vector_of_the_specification_round_trips() -> None:
    envelope = Envelope(Version(2, 3), CURRENT_VERSION, request_id=UNKNOWN_REQUEST_ID)
    header = Header(OpCode.RESERVED, ResponseCode.PROTOCOL_ERROR, expires=NOW)
    message = Message.build(envelope, header, encode_response(Failure.of("x"), None))
    expected = "000000000000000419000000ffff00006553f10000000005000000017800000000"
    assert message.payload().hex() == expected
    assert message.envelope.to_bytes().hex() == "0203020b00000000ffffffff0000000000000021"
    again = Message.from_bytes(envelope, bytes.fromhex(expected), NOW)
    assert decode_response(again, NOW) == (None, Failure(b"x"))
