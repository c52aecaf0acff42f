"""Every recorded exchange is decoded, encoded the same way, framed and reassembled.

Encrypted messages are decrypted with the recorded session key first. The answers of our server are
tested in test_wire_server_vectors.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.wire import message as envelope_module
from perseid.wire.codes import OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.credentials import verify_mac
from perseid.wire.fragments import Reassembler, packet_count, split
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import Envelope, Header, Message
from perseid.wire.requests import REQUEST_DECODERS, encode_request
from perseid.wire.responses import decode_response, encode_response
from perseid.wire.sessions import Cipher, decrypt, encrypt
from tests.wire.describe import (
    Description,
    describe_encrypted,
    describe_envelope,
    describe_message,
    describe_packets,
)
from tests.wire.recorded import (
    NOW,
    WIRE_FILES,
    Field,
    MessageDescription,
    Vector,
    conversations,
    exchanges,
    fed,
    frames_of,
    load,
)

VECTOR_FILES = WIRE_FILES

VECTORS = exchanges(*VECTOR_FILES)
WELL_FORMED = [vector for vector in VECTORS if vector.file != "malformed.json"]
MALFORMED = load("malformed.json")

KNOWN_FIELDS = frozenset(
    """
    SHORT PACKET | TRAILING STREAM | NOTE
    env.majorVersion | env.minorVersion | env.flags+suggestMajor | env.suggestMinor | env.sessionId | env.requestId
    env.sequence (packet number) | env.messageLength
    packet[N].env.majorVersion | packet[N].env.minorVersion | packet[N].env.flags+suggestMajor
    packet[N].env.suggestMinor | packet[N].env.sessionId | packet[N].env.requestId
    packet[N].env.sequence (packet number) | packet[N].env.messageLength
    encrypted.iv | encrypted.ciphertext (AES-128-CBC, PKCS#5, first 16 bytes of the session key)
    hdr.opCode | hdr.responseCode | hdr.opFlags | hdr.siteInfoSerial | hdr.recursionCount | hdr.reserved
    hdr.expiration (unix seconds) | hdr.bodyLength
    body.PADDING (counted in bodyLength)
    credential.length | credential.version | credential.reserved | credential.flags
    credential.signerHandle.length | credential.signerHandle | credential.signerIndex = session counter
    credential.type.length | credential.type | credential.signatureSectionLength
    credential.digestAlg.length | credential.digestAlg | credential.signature.length | credential.signature
    requestDigest.hashType | requestDigest | errorMessage.length | errorMessage | nonce.length | nonce
    handle.length | handle | handleCount | handle[N].length | handle[N] | indexCount | index[N]
    typeCount | type[N].length | type[N]
    valueCount | value[N].index | value[N].timestamp | value[N].ttlType | value[N].ttl | value[N].permissions
    value[N].type.length | value[N].type | value[N].data.length | value[N].data | value[N].referenceCount
    value[N].reference[N].handle.length | value[N].reference[N].handle | value[N].reference[N].index
    value[N].data(HS_ADMIN).permissions | value[N].data(HS_ADMIN).adminId.length
    value[N].data(HS_ADMIN).adminId | value[N].data(HS_ADMIN).adminIdIndex
    authType.length | authType | userIdHandle.length | userIdHandle | userIdIndex
    signedResponse.length | signedResponse | signedResponse.hashAlg.length | signedResponse.hashAlg
    signedResponse.signature.length | signedResponse.signature | signedResponse.macCode
    signedResponse.salt.length | signedResponse.salt | signedResponse.iterations | signedResponse.keyBits
    signedResponse.mac.length | signedResponse.mac
    handleIndex | requestDigest (4-byte length, no hash type).length
    requestDigest (4-byte length, no hash type) | isValid
    pullOtherTransactions | lastTxnId | lastQueryDate | rcvrHashType | numServers | serverNum | keepAliveFlag
    keyExchangeMode | timeout | identityHandle.length | identityHandle | identityIndex | data.length | data
    publicKey.length | publicKey | publicKey.keyType.length | publicKey.keyType | publicKey.flags
    publicKey.y.length | publicKey.y | publicKey.p.length | publicKey.p | publicKey.g.length | publicKey.g
    publicKey.exponent.length | publicKey.exponent | publicKey.modulus.length | publicKey.modulus
    publicKey.TRAILING | exchangeKeyHandle.length | exchangeKeyHandle | exchangeKeyIndex
    encryptedSessionKey.length | encryptedSessionKey
    site.dataFormatVersion | site.majorProtocolVersion | site.minorProtocolVersion | site.serialNumber
    site.primaryMask | site.hashOption | site.hashFilter.length | site.hashFilter | site.attributeCount
    site.attribute[N].name.length | site.attribute[N].name | site.attribute[N].value.length
    site.attribute[N].value | site.serverCount | site.server[N].serverId
    site.server[N].ipAddress (IPv4 right-aligned in zeros) | site.server[N].publicKey.length
    site.server[N].publicKey | site.server[N].publicKey.keyType.length | site.server[N].publicKey.keyType
    site.server[N].publicKey.flags | site.server[N].publicKey.exponent.length
    site.server[N].publicKey.exponent | site.server[N].publicKey.modulus.length
    site.server[N].publicKey.modulus | site.server[N].publicKey.TRAILING | site.server[N].interfaceCount
    site.server[N].interface[N].type | site.server[N].interface[N].protocol | site.server[N].interface[N].port
    """.replace("\n", "|").split("|")
)
"""Every field name of the descriptions. The tests below compare whole descriptions."""


def sides(vector: Vector) -> Iterator[tuple[tuple[bytes, ...], tuple[MessageDescription, ...]]]:
    yield vector.request, vector.described_request
    yield vector.response, vector.described_response


def decrypted(frame: Frame, vector: Vector) -> Frame:
    """The frame, decrypted with the recorded session key."""
    if not frame.envelope.encrypted:
        return frame
    key, cipher = bytes.fromhex(vector.keys["session_key"]), Cipher(int(vector.keys["encryption_alg"]))
    return Frame(frame.envelope, decrypt(cipher, key, frame.payload, frame.envelope.version))


def parse_frame(frame: Frame, vector: Vector) -> Message:
    return Message.from_bytes(frame.envelope, decrypted(frame, vector).payload, NOW)


def reencode_body(message: Message) -> bytes:
    """The body, decoded and encoded again."""
    if message.header.is_request:
        body = REQUEST_DECODERS[message.header.opcode](message.body_reader(), message.version, NOW)
        return encode_request(body, message.version)
    digest, response = decode_response(message, NOW)
    return encode_response(response, digest)


def describe_messages(pieces: tuple[bytes, ...], vector: Vector) -> list[list[Field]]:
    """The descriptions of every message of one side by our own classes."""
    if vector.transport == "udp" and len(pieces) > 1:
        envelopes = [Envelope.from_bytes(piece) for piece in pieces]
        description = describe_packets(envelopes, [len(piece) - envelope_module.ENVELOPE_LENGTH for piece in pieces])
        (frame,) = frames_of(pieces, "udp")
        describe_message(description, parse_frame(frame, vector))
        return [description.fields]
    result, position = [], 0
    for frame in frames_of(pieces, vector.transport):
        description = describe_envelope(frame.envelope, position)
        position += envelope_module.ENVELOPE_LENGTH + len(frame.payload)
        if frame.envelope.encrypted:
            describe_encrypted(description, frame, 16)
        describe_message(description, parse_frame(frame, vector))
        result.append(description.fields)
    return result


def test_known_field_names_are_exactly_those_of_the_vectors() -> None:
    used = {
        re.sub(r"\[\d+\]", "[N]", field.name)
        for vector in VECTORS
        for _, messages in sides(vector)
        for message in messages
        for field in message.fields
    }
    assert used == {name.strip() for name in KNOWN_FIELDS} - {""}


@pytest.mark.parametrize("vector", WELL_FORMED, ids=str)
def test_a_vector_says_what_its_description_says(vector: Vector) -> None:
    for pieces, messages in sides(vector):
        assert describe_messages(pieces, vector) == [list(message.fields) for message in messages]
        assert all(message.undecoded is None for message in messages)


@pytest.mark.parametrize("vector", MALFORMED, ids=str)
def test_a_malformed_vector_says_what_its_description_says_up_to_the_error(vector: Vector) -> None:
    assert describe_messages(vector.response, vector) == [list(message.fields) for message in vector.described_response]
    (message,) = vector.described_request
    (piece,) = vector.request
    if message.fields[0].name in ("SHORT PACKET", "TRAILING STREAM"):
        with pytest.raises(InvalidData):
            Envelope.from_bytes(piece)
        return
    envelope = Envelope.from_bytes(piece)
    description = describe_envelope(envelope, 0)
    payload = piece[envelope_module.ENVELOPE_LENGTH :]
    if payload:
        describe_message(description, Message.from_bytes(envelope, payload, NOW))
    expected = list(message.fields)
    if message.undecoded is None:
        assert description.fields == expected
    else:
        # The recorded description stops at the first invalid field; our classes read a whole body or nothing.
        assert description.fields == expected[: len(description.fields)]
        assert not payload or description.fields[-1].name == "hdr.bodyLength"


@pytest.mark.parametrize("vector", WELL_FORMED, ids=str)
def test_a_vector_is_written_as_it_is_read(vector: Vector) -> None:
    for pieces, _ in sides(vector):
        stream = b""
        for frame in frames_of(pieces, vector.transport):
            clear = decrypted(frame, vector)
            message = Message.from_bytes(clear.envelope, clear.payload, NOW)
            again = Message.build(message.envelope, message.header, reencode_body(message), message.credential)
            assert again.raw == message.raw
            assert again.payload() == clear.payload
            if frame.envelope.encrypted:
                again = replace(again, envelope=frame.envelope)
            assert again.envelope == frame.envelope
            stream += again.envelope.to_bytes() + (frame.payload if frame.envelope.encrypted else again.payload())
        if vector.transport == "tcp":
            assert stream == b"".join(pieces)
        else:
            # The TC bit of a request depends on its length; a response echoes that of the request.
            envelope, is_request = Envelope.from_bytes(stream), pieces is vector.request
            envelope = replace(envelope, truncated=envelope.truncated and not is_request)
            assert split(envelope, stream[envelope_module.ENVELOPE_LENGTH :], request=is_request) == list(pieces)


@pytest.mark.parametrize("vector", MALFORMED, ids=str)
def test_the_reply_of_a_malformed_vector_is_written_as_it_is_read(vector: Vector) -> None:
    for frame in frames_of(vector.response, "tcp"):
        message = parse_frame(frame, vector)
        again = Message.build(message.envelope, message.header, reencode_body(message), message.credential)
        assert again.to_bytes() == b"".join(vector.response)


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.transport == "tcp"], ids=str)
def test_tcp_vector_is_framed_byte_by_byte(vector: Vector) -> None:
    for pieces, _ in sides(vector):
        stream = b"".join(pieces)
        if pieces is vector.request and vector.file == "malformed.json" and _has_bad_length(stream):
            continue
        reader, frames = FrameReader(), []
        for byte in stream:
            frames += fed(reader, bytes((byte,)))
        if len(stream) < envelope_module.ENVELOPE_LENGTH:
            assert frames == []
            assert reader.is_idle is (not stream)
            continue
        assert frames == frames_of(pieces, "tcp")
        assert reader.is_idle
        assert fed(FrameReader(), stream) == frames


@pytest.mark.parametrize("vector", [vector for vector in MALFORMED if vector.transport == "tcp"], ids=str)
def test_vector_with_an_invalid_length_is_refused_after_its_envelope(vector: Vector) -> None:
    stream = b"".join(vector.request)
    if not _has_bad_length(stream):
        return
    reader = FrameReader()
    assert fed(reader, stream[:19]) == []
    with pytest.raises(RemoteProtocolError) as caught:
        fed(reader, stream[19:20])
    assert caught.value.code == ResponseCode.ERROR


def _has_bad_length(stream: bytes) -> bool:
    return len(stream) >= envelope_module.ENVELOPE_LENGTH and not Envelope.from_bytes(stream).has_valid_length


@pytest.mark.parametrize("vector", [vector for vector in WELL_FORMED if vector.transport == "udp"], ids=str)
def test_udp_vector_is_reassembled_in_any_order_with_duplicates(vector: Vector) -> None:
    for pieces, _ in sides(vector):
        (frame,) = frames_of(pieces, "udp")
        assert len(pieces) == packet_count(len(frame.payload))
        doubled = [piece for piece in reversed(pieces) for _ in range(2)]
        for order in (list(pieces), list(reversed(pieces)), doubled):
            reassembler = Reassembler()
            whole = [result for piece in order if (result := reassembler.receive("peer", piece, 0.0)) is not None]
            envelope, payload = whole[0]
            assert replace(envelope, sequence=0) == frame.envelope
            assert payload == frame.payload
        single = Reassembler()
        for piece in pieces[1:]:
            assert single.receive("peer", piece, 0.0) is None
        assert len(single) == (len(pieces) > 1)


@pytest.mark.parametrize("name", conversations(*VECTOR_FILES))
def test_the_digests_of_a_vector_match_the_answered_request(name: str) -> None:
    original: Message | None = None
    for vector in conversations(*VECTOR_FILES)[name]:
        if vector.file == "malformed.json":
            continue
        (request,) = [parse_frame(frame, vector) for frame in frames_of(vector.request, vector.transport)]
        if request.header.opcode != OpCode.RESPONSE_TO_CHALLENGE:
            original = request
        assert original is not None
        for frame in frames_of(vector.response, vector.transport):
            response = parse_frame(frame, vector)
            digest, _ = decode_response(response, NOW)
            assert (digest is not None) is (OpFlag.REQUEST_DIGEST in response.header.flags)
            assert digest is None or digest.matches(original.raw)
            challenged = response.header.response_code == ResponseCode.AUTHENTICATION_NEEDED
            assert (digest is not None) is (challenged or OpFlag.REQUEST_DIGEST in original.header.flags)


def _recorded_random(data: bytes, count: int) -> bytes:
    assert len(data) == count
    return data


ENCRYPTED = [
    vector
    for vector in VECTORS
    if vector.file == "session.json" and any(Envelope.from_bytes(piece).encrypted for piece in vector.request)
]


@pytest.mark.parametrize("vector", ENCRYPTED, ids=str)
def test_encrypted_vector_is_decrypted_and_encrypted_again(vector: Vector) -> None:
    for pieces, messages in sides(vector):
        (frame,) = frames_of(pieces, vector.transport)
        (message,) = messages
        assert frame.envelope.encrypted is (message.decrypted is not None)
        if message.decrypted is None:
            continue
        assert decrypted(frame, vector).payload == message.decrypted
        key, version = bytes.fromhex(vector.keys["session_key"]), frame.envelope.version
        random = partial(_recorded_random, frame.payload[:16])
        assert encrypt(Cipher.AES, key, message.decrypted, version, random) == frame.payload


def test_all_encrypted_messages_of_the_vectors_are_tested() -> None:
    messages = [message for vector in VECTORS for _, side in sides(vector) for message in side]
    among = [message for vector in ENCRYPTED for _, side in sides(vector) for message in side]
    assert sum(message.decrypted is not None for message in messages) == 42
    assert sum(message.decrypted is not None for message in among) == 42


@pytest.mark.parametrize("vector", load("session.json"), ids=str)
def test_macs_of_a_vector_use_its_session_key(vector: Vector) -> None:
    for pieces, _ in sides(vector):
        for frame in frames_of(pieces, vector.transport):
            message = parse_frame(frame, vector)
            if message.credential is None or message.credential.type != "HS_MAC":
                continue
            key = bytes.fromhex(vector.keys["session_key"])
            assert verify_mac(message, key)
            assert not verify_mac(message, key[:-1] + bytes((key[-1] ^ 1,)))


def test_comparison_of_descriptions_detects_a_difference() -> None:
    """One changed field must be detected."""
    vector = load("resolve.json")[0]
    message = vector.described_request[0]
    frame = frames_of(vector.request, vector.transport)[0]
    changed = bytearray(frame.payload)
    changed[-9] ^= 1  # the count of indexes
    description = Description(envelope_module.ENVELOPE_LENGTH)
    describe_message(description, Message.from_bytes(frame.envelope, bytes(changed), NOW))
    assert description.fields != list(message.fields[8:])
    header, length = Header.from_bytes(frame.payload, frame.envelope.version, NOW)
    assert Reader(frame.payload, 24, 24 + length).remaining == length
    assert header.opcode == OpCode.RESOLUTION
