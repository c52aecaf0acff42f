"""Signatures and MACs of messages: every recorded one is recomputed, in every version, and forged ones are refused."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.keys import PublicKey, SecretKey
from perseid.records.private_keys import PrivateKey
from perseid.wire.challenges import check_secret_answer, pbkdf2_mac
from perseid.wire.codes import CURRENT_VERSION, LocalProtocolError, OpCode, OpFlag, Version
from perseid.wire.credentials import (
    MAX_IDENTIFIER,
    Algorithm,
    add_mac,
    find_algorithm,
    mac,
    sign,
    signature_hash,
    signature_input,
    verify_mac,
    verify_signature,
)
from perseid.wire.message import Credential, Envelope, Header, Message
from perseid.wire.responses import decode_response
from perseid.wire.sessions import Cipher, decrypt, encrypt
from tests.wire import section21, strategies
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY, codec_vectors, private_keys
from tests.wire.recorded import NOW, WIRE_FILES, Vector, exchanges, frames_of, key_file

VECTOR_FILES = ("codec-macs.json",)
VECTORS = [vector for file in VECTOR_FILES for vector in codec_vectors(file)]
SERVER_PUBLIC = PublicKey.from_bytes(key_file("pubkey.bin"))
NEW, OLD = Version(2, 11), Version(2, 4)


# Recorded codes


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_mac_vectors_match(vector: dict[str, Any]) -> None:
    match vector["function"]:
        case "Util.doMac":
            check_mac_code(vector)
        case "Util.doPbkdf2HmacSHA1":
            check_pbkdf2(vector)
        case "Encoder.encodeSecretKey":
            key = SecretKey(bytes.fromhex(vector["key"]))
            assert key.to_sha1().to_bytes() == bytes.fromhex(vector["encoded_hex"])
        case "AbstractMessage.signMessage(byte[])":
            check_mac_credential(vector)
        case "AbstractMessage.signMessage(Signature)":
            check_signature_credential(vector)
        case "SessionInfo.encryptBuffer":
            check_encryption(vector)
        case function:
            pytest.fail(f"nothing exercises {function}")


def check_mac_code(vector: dict[str, Any]) -> None:
    code = int(vector["name"].rpartition("-")[2], 16)
    key, data, expected = (bytes.fromhex(vector[name]) for name in ("key", "data", "mac"))
    assert mac(Algorithm(code or 1), key, data) == expected
    assert check_secret_answer(key, data[:16], data[16:], bytes((code,)) + expected, CURRENT_VERSION)


def check_pbkdf2(vector: dict[str, Any]) -> None:
    key, data, expected = (bytes.fromhex(vector[name]) for name in ("key", "data", "mac"))
    assert pbkdf2_mac(key, expected[4:20], 10_000, 160, data) == expected
    assert check_secret_answer(key, data[:16], data[16:], b"\x22" + expected, CURRENT_VERSION)


def credential_message(vector: dict[str, Any]) -> tuple[Message, Message]:
    """The message of a vector, without and with its credential."""
    envelope = Envelope(Version.parse(vector["version"]), CURRENT_VERSION, vector["session_id"], vector["request_id"])
    data = bytes.fromhex(vector["header_and_body"])
    bare = Message.from_bytes(envelope, data, NOW)
    return bare, bare.with_credential(Credential.from_bytes(bytes.fromhex(vector["credential"])))


def check_mac_credential(vector: dict[str, Any]) -> None:
    bare, signed = credential_message(vector)
    key = bytes.fromhex(vector["session_key"])
    assert add_mac(bare, key, vector["session_counter"]) == signed
    assert verify_mac(signed, key)
    assert signed.credential is not None
    assert signed.credential.to_bytes() == bytes.fromhex(vector["credential"])


def check_signature_credential(vector: dict[str, Any]) -> None:
    bare, signed = credential_message(vector)
    assert verify_signature(signed, PublicKey.from_x509(bytes.fromhex(vector["rsa_pub_x509"])))
    # The same key as in the files; PKCS#1 v1.5 signatures have no randomness.
    assert sign(bare, RSA_KEY, vector["session_counter"]) == signed


def check_encryption(vector: dict[str, Any]) -> None:
    _, _, cipher, version = vector["name"].split("-")
    number, used_version = Cipher(int(cipher.removeprefix("alg"))), Version.parse(version.removeprefix("v"))
    key, cleartext, ciphertext = (bytes.fromhex(vector[name]) for name in ("key", "cleartext", "ciphertext"))
    assert decrypt(number, key, ciphertext, used_version) == cleartext
    assert encrypt(number, key, cleartext, used_version, lambda count: ciphertext[:count]) == ciphertext


# Vectors of the specification


def described(version: str, data: str) -> Message:
    envelope = Envelope(Version.parse(version), CURRENT_VERSION, 9, 0x0102_0304, length=len(data) // 2)
    return Message.from_bytes(envelope, bytes.fromhex(data), NOW)


@pytest.mark.parametrize(("version", "data"), section21.MACED.items())
def test_session_mac_vectors_of_the_specification_match(version: str, data: str) -> None:
    message, key = described(version, data), bytes(range(1, 17))
    assert verify_mac(message, key)
    assert add_mac(replace(message, credential=None), key, 3) == message
    assert message.payload().hex() == data


@pytest.mark.parametrize(("version", "data"), section21.SIGNED.items())
def test_signed_response_vectors_of_the_specification_match(version: str, data: str) -> None:
    message = described(version, data)
    assert verify_signature(message, PublicKey.from_bytes(bytes.fromhex(section21.RSA_KEY)))
    assert not verify_signature(message, SERVER_PUBLIC)
    assert message.payload().hex() == data


# Exchanges


def signed_responses() -> list[tuple[Vector, Message]]:
    """Every recorded response with an unencrypted signature."""
    found = []
    for vector in exchanges(*WIRE_FILES):
        for frame in frames_of(vector.response, vector.transport):
            if not frame.envelope.encrypted:
                message = Message.from_bytes(frame.envelope, frame.payload, NOW)
                if message.credential is not None and message.credential.type == "HS_SIGNED":
                    found.append((vector, message))
    return found


SIGNED = signed_responses()


@pytest.mark.parametrize(("vector", "message"), SIGNED, ids=[str(vector) for vector, _ in SIGNED])
def test_signed_response_wire_vectors_verify(vector: Vector, message: Message) -> None:
    key = SERVER_PUBLIC
    if "server_pub_x509" in vector.keys:
        assert PublicKey.from_x509(bytes.fromhex(vector.keys["server_pub_x509"])) == key
    assert verify_signature(message, key)
    assert message.credential is not None
    assert sign(replace(message, credential=None), SERVER_KEY, message.credential.counter) == message
    assert not verify_signature(message, RSA_KEY.public)


def test_expected_wire_vector_files_have_signatures() -> None:
    files = {vector.file for vector, _ in SIGNED}
    assert {"certified.json", "verify.json", "versions.json", "replication.json", "session.json"} <= files
    versions = {str(message.version) for vector, message in SIGNED if vector.file == "versions.json"}
    assert versions == {"2.0", "2.1", "2.3", "2.5", "2.6", "2.7", "2.10"}


def test_wire_vector_digests_match() -> None:
    """Unencrypted messages, except answers to challenges, which have the digest of an earlier request."""
    checked = set()
    for vector in exchanges(*WIRE_FILES):
        if vector.file == "malformed.json":
            continue
        requests = frames_of(vector.request, vector.transport)
        if not requests or requests[0].envelope.encrypted:
            continue
        request = Message.from_bytes(requests[0].envelope, requests[0].payload, NOW)
        if request.header.opcode == OpCode.RESPONSE_TO_CHALLENGE:
            continue
        for frame in frames_of(vector.response, vector.transport):
            if frame.envelope.encrypted:
                continue
            response = Message.from_bytes(frame.envelope, frame.payload, NOW)
            digest, _ = decode_response(response, NOW)
            assert (digest is not None) == (OpFlag.REQUEST_DIGEST in response.header.flags)
            if digest is not None:
                assert digest.matches(request.raw), str(vector)
                checked.add(vector.file)
    assert checked >= {"admin-rsa.json", "certified.json", "session.json", "verify.json", "versions.json"}


# Properties


MESSAGES = st.builds(
    lambda envelope, body: Message.build(replace(envelope, sequence=0), Header(OpCode.RESOLUTION), body),
    strategies.envelopes(),
    st.binary(max_size=60),
)
COUNTERS = st.integers(0, 0x7FFF_FFFF)
KEYS = st.binary(min_size=8, max_size=40)


@given(MESSAGES, private_keys, COUNTERS)
@settings(max_examples=40)
def test_signature_covers_the_message(message: Message, key: PrivateKey, counter: int) -> None:
    signed = sign(message, key, counter)
    assert verify_signature(signed, key.public)
    assert verify_signature(Message.from_bytes(signed.envelope, signed.payload(), 0), key.public)
    assert not verify_signature(replace(signed, raw=signed.raw + b"!"), key.public)
    assert not verify_signature(signed, SERVER_PUBLIC)
    assert not verify_signature(message, key.public)


@given(MESSAGES, KEYS, COUNTERS)
def test_mac_covers_the_message(message: Message, key: bytes, counter: int) -> None:
    maced = add_mac(message, key, counter)
    assert verify_mac(maced, key)
    assert verify_mac(Message.from_bytes(maced.envelope, maced.payload(), 0), key)
    assert not verify_mac(replace(maced, raw=maced.raw + b"!"), key)
    assert not verify_mac(maced, key + b"!")
    assert not verify_mac(message, key)


@given(MESSAGES, KEYS, st.sampled_from(["session_id", "request_id", "suggested", "counter"]))
def test_mac_covers_parts_of_the_envelope(message: Message, key: bytes, field: str) -> None:
    maced = add_mac(message, key, 5)
    assert maced.credential is not None
    if field == "counter":
        changed = maced.with_credential(replace(maced.credential, counter=6))
    elif field == "suggested":
        changed = replace(maced, envelope=replace(maced.envelope, suggested=Version(1, 0)))
        changed = changed if message.envelope.suggested != Version(1, 0) else message
    else:
        changed = replace(maced, envelope=replace(maced.envelope, **{field: getattr(maced.envelope, field) ^ 1}))
    covered = message.version.at_least(8 if field == "suggested" else 7)
    assert verify_mac(changed, key) == (not covered and changed is not message)


@given(MESSAGES, st.booleans())
def test_envelope_flags_are_not_covered(message: Message, encrypted: bool) -> None:
    signed = add_mac(message, b"key", 1)
    assert verify_mac(replace(signed, envelope=replace(signed.envelope, encrypted=encrypted, sequence=3)), b"key")


CREDENTIALS = st.builds(
    Credential,
    st.sampled_from(["HS_SIGNED", "HS_DSAPUBKEY", "HS_MAC", "", "HS_PUBKEY"]),
    st.sampled_from([b"SHA1", b"SHA-256", b"MD5", b"HMAC-SHA256", b"\x02", b"\x13", b"\x22"]) | st.binary(max_size=40),
    st.binary(max_size=300),
    st.integers(-(1 << 31), (1 << 31) - 1),
)


@given(MESSAGES, CREDENTIALS)
def test_untrusted_credential_never_verifies(message: Message, credential: Credential) -> None:
    signed = message.with_credential(credential)
    assert not verify_signature(signed, SERVER_PUBLIC)
    assert not verify_signature(signed, DSA_KEY.public)
    assert not verify_mac(signed, b"session key")


# Details


def example(version: Version, session_id: int = 0x0102_0304) -> Message:
    return Message.build(
        Envelope(version, CURRENT_VERSION, session_id, 0x0506_0708), Header(OpCode.RESOLUTION), b"body"
    )


@pytest.mark.parametrize(
    ("version", "prefix"),
    [
        ("2.11", "020b020b01020304050607080000000a"),
        ("2.8", "0208020b01020304050607080000000a"),
        ("2.7", "020701020304050607080000000a"),
        ("2.6", "020601020000000a000000000000"),
        ("2.5", ""),
        ("2.0", ""),
        ("5.0", ""),
    ],
)
def test_signature_input_depends_on_the_version(version: str, prefix: str) -> None:
    message = example(Version.parse(version))
    assert signature_input(message, 10) == bytes.fromhex(prefix) + message.raw


def test_negative_ids_are_signed_in_every_version() -> None:
    for version in (Version(2, 6), Version(2, 7), CURRENT_VERSION):
        message = sign(example(version, -1), RSA_KEY)
        assert verify_signature(message, RSA_KEY.public)
    assert signature_input(example(Version(2, 6), -1), 0)[2:4] == b"\xff\xff"


@pytest.mark.parametrize("spelling", ["HS_SIGNED", "HS_DSAPUBKEY"])
def test_old_signature_type_names_are_accepted(spelling: str) -> None:
    message = sign(example(CURRENT_VERSION), DSA_KEY)
    assert message.credential is not None
    assert verify_signature(message.with_credential(replace(message.credential, type=spelling)), DSA_KEY.public)


@pytest.mark.parametrize(
    ("key", "version", "algorithm"),
    [
        (RSA_KEY, "2.11", b"SHA-256"),
        (RSA_KEY, "2.7", b"SHA-256"),
        (RSA_KEY, "2.6", b"SHA1"),
        (RSA_KEY, "5.9", b"SHA1"),
        (DSA_KEY, "2.11", b"SHA-256"),
        (DSA_KEY, "2.10", b"SHA1"),
        (DSA_KEY, "2.0", b"SHA1"),
    ],
)
def test_new_signatures_use_the_expected_hash(key: PrivateKey, version: str, algorithm: bytes) -> None:
    credential = sign(example(Version.parse(version)), key).credential
    assert credential is not None
    assert (credential.type, credential.algorithm, credential.counter) == ("HS_SIGNED", algorithm, 0)


@pytest.mark.parametrize(
    ("version", "identifier", "right"),
    [
        (NEW, b"HMAC-SHA256", True),
        (NEW, b"hmac_sha256", True),
        (NEW, b"HmacSHA256", True),
        (NEW, b"\x13", True),
        (NEW, b"HMAC-SHA1", False),
        (NEW, b"SHA256", False),
        (NEW, b"\x03", False),
        (OLD, b"\x02", True),
        (OLD, b"SHA1", True),
        (OLD, b"SHA-1", True),
        (OLD, b"HMAC-SHA1", False),
        (OLD, b"\x03", False),
    ],
)
def test_mac_algorithm_is_the_one_in_the_credential(version: Version, identifier: bytes, right: bool) -> None:
    message = add_mac(example(version), b"key", 1)
    assert message.credential is not None
    assert verify_mac(message.with_credential(replace(message.credential, algorithm=identifier)), b"key") == right


@pytest.mark.parametrize(
    ("version", "algorithm"), [(NEW, Algorithm.HMAC_SHA1), (OLD, Algorithm.SHA256), (OLD, Algorithm.MD5)]
)
def test_other_mac_algorithms_of_the_version_are_accepted(version: Version, algorithm: Algorithm) -> None:
    message = example(version)
    covered = signature_input(message, 1)
    credential = Credential("HS_MAC", algorithm.spelling.encode(), mac(algorithm, b"key", covered), 1)
    assert verify_mac(message.with_credential(credential), b"key")


def test_old_mac_constructions_are_refused_in_new_versions() -> None:
    message = example(NEW)
    for algorithm, key in ((Algorithm.SHA1, b"key"), (Algorithm.SHA256, b"key")):
        credential = Credential(
            "HS_MAC", algorithm.spelling.encode(), mac(algorithm, key, signature_input(message, 1)), 1
        )
        assert not verify_mac(message.with_credential(credential), key)
    # Without the key on both sides, as in the faulty buffer of 2.5, a plain hash would prove nothing.
    hmac_named = Credential("HS_MAC", b"HMAC-SHA1", mac(Algorithm.HMAC_SHA1, b"", example(Version(2, 5)).raw), 1)
    assert not verify_mac(example(Version(2, 5)).with_credential(hmac_named), b"")


@pytest.mark.parametrize("counter", [-1, 1 << 31])
def test_counter_out_of_range_raises_local_error(counter: int) -> None:
    with pytest.raises(LocalProtocolError):
        add_mac(example(NEW), b"key", counter)
    with pytest.raises(LocalProtocolError):
        sign(example(NEW), RSA_KEY, counter)


def test_largest_counter_is_accepted() -> None:
    assert verify_mac(add_mac(example(NEW), b"key", (1 << 31) - 1), b"key")


# Identifiers


@pytest.mark.parametrize(
    ("identifier", "algorithm"),
    [
        (b"SHA1", Algorithm.SHA1),
        (b"SHA-1", Algorithm.SHA1),
        (b"sha1", Algorithm.SHA1),
        (b"SHA-256", Algorithm.SHA256),
        (b"SHA256", Algorithm.SHA256),
        (b"MD5", Algorithm.MD5),
        (b"\x01", Algorithm.MD5),
        (b"\x02", Algorithm.SHA1),
        (b"\x03", Algorithm.SHA256),
        (b"\x12", Algorithm.HMAC_SHA1),
        (b"\x13", Algorithm.HMAC_SHA256),
        (b"\x22", Algorithm.PBKDF2_HMAC_SHA1),
        (b"HMAC-SHA1", Algorithm.HMAC_SHA1),
        (b"HMACSHA256", Algorithm.HMAC_SHA256),
        (b"Hmac/sha256", Algorithm.HMAC_SHA256),
        (b"PBKDF2-HMAC-SHA1", Algorithm.PBKDF2_HMAC_SHA1),
        (b"", None),
        (b"\x00", None),
        (b"\x04", None),
        (b"SHA-512", None),
        (b"\xff\xfe", None),
    ],
)
def test_algorithm_names_are_recognized(identifier: bytes, algorithm: Algorithm | None) -> None:
    assert find_algorithm(identifier) == algorithm


def test_algorithm_name_length_is_limited() -> None:
    assert find_algorithm(b"SHA1".ljust(MAX_IDENTIFIER, b"-")) == Algorithm.SHA1
    assert find_algorithm(b"SHA1".ljust(MAX_IDENTIFIER + 1, b"-")) is None


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_algorithm_names_round_trip(algorithm: Algorithm) -> None:
    assert find_algorithm(algorithm.spelling.encode()) == algorithm
    assert find_algorithm(bytes((algorithm,))) == algorithm


def test_pbkdf2_mac_without_parameters_raises_misuse() -> None:
    with pytest.raises(RecordMisuse):
        mac(Algorithm.PBKDF2_HMAC_SHA1, b"", b"")


def test_signature_hash_names_are_known_to_keys() -> None:
    for version in (OLD, NEW):
        for key in (RSA_KEY, DSA_KEY):
            assert key.public.verify(signature_hash(key, version).spelling, b"", b"") is False


@given(st.binary(max_size=80))
def test_arbitrary_credential_bytes_do_not_verify(data: bytes) -> None:
    try:
        credential = Credential.from_bytes(data)
    except InvalidData:
        return
    assert not verify_mac(example(NEW).with_credential(credential), b"key")
