"""Challenges and their answers: every recorded one is checked and recreated, in both roles."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records.binary import Reader, Writer
from perseid.records.ciphers import MAX_DERIVED_BITS, MAX_ITERATIONS, MIN_DERIVED_BITS, latin1_to_utf8
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.wire.challenges import (
    SALT_LENGTH,
    answer_with_key,
    answer_with_secret,
    check_key_answer,
    check_secret_answer,
    pbkdf2_mac,
)
from perseid.wire.codes import CURRENT_VERSION, OpCode, ResponseCode, Version
from perseid.wire.credentials import Algorithm, mac
from perseid.wire.message import Envelope, Message, RequestDigest
from perseid.wire.requests import ChallengeResponse, VerifyChallenge
from perseid.wire.responses import Challenge, VerificationResult, decode_response, encode_challenge
from tests.wire import section21, strategies
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, private_keys, refused
from tests.wire.opened import DecryptedExchange, decrypted_exchanges
from tests.wire.recorded import NOW, WIRE_FILES, Vector, conversations

CONVERSATIONS = {
    name: vectors
    for name, vectors in conversations(*WIRE_FILES).items()
    if vectors[0].file != "malformed.json" and len(vectors) > 1
}
NONCE, DIGEST = b"n" * 16, b"d" * 32
V1, V6, V7 = Version(2, 1), Version(2, 6), Version(2, 7)


# Recorded answers


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_challenges_of_the_wire_vectors_verify(name: str) -> None:
    """Challenge and reply have the digest of the request, and the answer verifies."""
    challenged: DecryptedExchange | None = None
    answers = 0
    for exchange in decrypted_exchanges(CONVERSATIONS[name]):
        digest, body = decode_response(exchange.response, NOW)
        if isinstance(body, Challenge):
            assert digest == RequestDigest.of(exchange.request.raw, exchange.response.version)
            assert body == Challenge(body.nonce)
            assert len(body.nonce) == 16
            assert encode_challenge(body.nonce, digest, exchange.response.version) == exchange.response.body
            challenged = exchange
        elif exchange.request.header.opcode == OpCode.RESPONSE_TO_CHALLENGE:
            assert challenged is not None
            check_answer(challenged, exchange)
            answers += 1
            if digest is not None:
                assert digest.matches(challenged.request.raw)
    assert answers or challenged is None


def check_answer(challenged: DecryptedExchange, exchange: DecryptedExchange) -> None:
    digest, body = decode_response(challenged.response, NOW)
    assert isinstance(body, Challenge)
    assert digest is not None
    version, suggested = challenged.response.version, challenged.response.envelope.suggested
    response = ChallengeResponse.read(exchange.request.body_reader(), version, NOW)
    if response.auth_type == "HS_SECKEY":
        secret, answer = secret_of(exchange.vector), response.answer
        salt = Reader(answer[1:]).bytes_()
        assert answer_with_secret(secret, body.nonce, digest.digest, version, suggested, salt) == answer
        assert check_secret_answer(secret, body.nonce, digest.digest, answer, exchange.request.version)
        failed = exchange.response.header.response_code == ResponseCode.AUTHENTICATION_FAILED
        assert failed == ("wrong-secret" in exchange.vector.name)
        if failed:
            assert not check_secret_answer(SECRET, body.nonce, digest.digest, answer, exchange.request.version)
    else:
        assert response.auth_type == "HS_PUBKEY"
        key = key_of(exchange.vector)
        assert check_key_answer(key.public, body.nonce, digest.digest, response.answer)
        assert not check_key_answer(key.public, body.nonce, digest.digest + b"!", response.answer)
        mine = answer_with_key(key, body.nonce, digest.digest, version)
        assert check_key_answer(key.public, body.nonce, digest.digest, mine)
        if key == RSA_KEY:  # DSA signatures are randomized
            assert mine == response.answer


def secret_of(vector: Vector) -> bytes:
    if "invalid-admin" in vector.name:
        return b"x"
    return bytes.fromhex(vector.keys.get("secret_key") or vector.keys.get("secret_key_used") or SECRET.hex())


def key_of(vector: Vector) -> PrivateKey:
    kind = "dsa" if "dsa_priv_pkcs8" in vector.keys else "rsa"
    if f"{kind}_priv_pkcs8" not in vector.keys:
        return RSA_KEY
    key = PrivateKey.from_pkcs8(bytes.fromhex(vector.keys[f"{kind}_priv_pkcs8"]))
    assert key == {"dsa": DSA_KEY, "rsa": RSA_KEY}[kind]
    assert key.public == PublicKey.from_bytes(bytes.fromhex(vector.keys[f"{kind}_pub_handle_encoding"]))
    return key


def test_wire_vector_files_with_challenges_are_complete() -> None:
    files = {name.partition(":")[0] for name in CONVERSATIONS}
    assert files >= {"admin-dsa", "admin-rsa", "admin-sec", "auth-errors", "multipacket", "prefixes", "session"}


@pytest.mark.parametrize("name", ["verify:verify-challenge.udp", "verify:verify-challenge.tcp"])
def test_verify_challenge_wire_vectors_match(name: str) -> None:
    (exchange,) = decrypted_exchanges(conversations("verify.json")[name])
    request_body = VerifyChallenge.read(exchange.request.body_reader(), exchange.request.version, NOW)
    _, body = decode_response(exchange.response, NOW)
    assert isinstance(body, VerificationResult)
    right = check_secret_answer(
        SECRET, request_body.nonce, request_body.digest, request_body.answer, exchange.request.version
    )
    assert right == body.is_valid


@pytest.mark.parametrize("version", section21.CHALLENGES)
def test_answer_vectors_of_the_specification_match(version: str) -> None:
    used_version = Version.parse(version)
    data, answer = (bytes.fromhex(part) for part in section21.CHALLENGES[version])
    request = bytes.fromhex(section21.MACED["2.4"])[: 24 + 13]
    message = Message.from_bytes(Envelope(used_version, CURRENT_VERSION), data, NOW)
    digest, body = decode_response(message, NOW)
    assert isinstance(body, Challenge)
    assert digest == RequestDigest.of(request, used_version)
    assert encode_challenge(body.nonce, digest, used_version) == message.body
    salt = answer[5:21]
    assert answer_with_secret(b"secret", body.nonce, digest.digest, used_version, CURRENT_VERSION, salt) == answer
    assert check_secret_answer(b"secret", body.nonce, digest.digest, answer, used_version)
    assert not check_secret_answer(b"Secret", body.nonce, digest.digest, answer, used_version)


def test_utf8_answer_vector_of_the_specification_matches() -> None:
    secret, answer = bytes.fromhex("80ff6100"), bytes.fromhex(section21.WIDENED_ANSWER)
    nonce, digest = b"\x11" * 16, b"\x22" * 32
    assert answer_with_secret(secret, nonce, digest, CURRENT_VERSION, CURRENT_VERSION, b"\x33" * 16) == answer
    assert check_secret_answer(secret, nonce, digest, answer, CURRENT_VERSION)
    assert not check_secret_answer(latin1_to_utf8(secret), nonce, digest, answer, CURRENT_VERSION)


# Properties


@given(private_keys, st.binary(max_size=20), st.binary(max_size=40), strategies.VERSIONS)
@settings(max_examples=30)
def test_answers_with_keys_verify(key: PrivateKey, nonce: bytes, digest: bytes, version: Version) -> None:
    answer = answer_with_key(key, nonce, digest, version)
    assert check_key_answer(key.public, nonce, digest, answer)
    assert not check_key_answer(key.public, nonce + b"!", digest, answer)
    assert not check_key_answer(key.public, nonce, digest, answer + b"!")
    assert not check_key_answer(key.public, nonce, digest, answer[:-1])


SECRETS = st.binary(min_size=1, max_size=30)


@given(SECRETS, st.binary(max_size=20), st.binary(max_size=40), strategies.VERSIONS, strategies.VERSIONS)
@settings(max_examples=60, deadline=None)
def test_answers_with_secrets_verify(
    secret: bytes, nonce: bytes, digest: bytes, version: Version, suggested: Version
) -> None:
    answer = answer_with_secret(secret, nonce, digest, version, suggested, bytes(SALT_LENGTH))
    # The answer has the version of the challenge; only the oldest has no algorithm byte.
    used_version = version if suggested.at_least(1) else Version(2, 0)
    assert check_secret_answer(secret, nonce, digest, answer, used_version)
    assert not check_secret_answer(secret + b"!", nonce, digest, answer, used_version)
    assert not check_secret_answer(secret, nonce + b"!", digest, answer, used_version)
    assert not check_secret_answer(secret, nonce, digest, answer + b"!", used_version)
    assert not check_secret_answer(secret, nonce, digest, answer[:-1], used_version)


@given(st.binary(max_size=60), strategies.VERSIONS)
@settings(deadline=None)
def test_arbitrary_bytes_do_not_verify(answer: bytes, version: Version) -> None:
    for data in (answer, b"\x22" + answer, b"\x22\0\0\0\2ab" + answer, b"\x13" + answer):
        assert not check_secret_answer(SECRET, NONCE, DIGEST, data, version)
        assert not check_key_answer(RSA_KEY.public, NONCE, DIGEST, data)
    assert not check_key_answer(DSA_KEY.public, NONCE, DIGEST, b"\0\0\0\4SHA1" + answer)


# Details


@pytest.mark.parametrize(
    ("version", "suggested", "byte"),
    [
        (CURRENT_VERSION, CURRENT_VERSION, 0x22),
        (V7, CURRENT_VERSION, 0x22),
        (CURRENT_VERSION, V6, 0x02),
        (V6, CURRENT_VERSION, 0x02),
        (V1, CURRENT_VERSION, 0x02),
        (CURRENT_VERSION, V1, 0x02),
    ],
)
def test_lower_version_determines_the_answer_format(version: Version, suggested: Version, byte: int) -> None:
    assert answer_with_secret(b"s", NONCE, DIGEST, version, suggested, bytes(16))[0] == byte


@pytest.mark.parametrize("version", [Version(2, 0), Version(5, 0)])
def test_oldest_answer_format_has_no_algorithm_byte(version: Version) -> None:
    answer = hashlib.md5(b"s" + NONCE + DIGEST + b"s").digest()
    for used_version, suggested in ((version, CURRENT_VERSION), (CURRENT_VERSION, version)):
        assert answer_with_secret(b"s", NONCE, DIGEST, used_version, suggested, b"") == answer
    assert check_secret_answer(b"s", NONCE, DIGEST, answer, version)
    assert not check_secret_answer(b"s", NONCE, DIGEST, b"\1" + answer, version)
    assert not check_secret_answer(b"s", NONCE, DIGEST, answer, V1)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 0x12, 0x13])
def test_all_plain_algorithm_codes_are_accepted(code: int) -> None:
    answer = bytes((code,)) + mac(Algorithm(code or 1), SECRET, NONCE + DIGEST)
    assert check_secret_answer(SECRET, NONCE, DIGEST, answer, CURRENT_VERSION)
    assert check_secret_answer(SECRET, NONCE, DIGEST, answer, V1)
    # Only PBKDF2 widens the secret.
    wide = bytes((code,)) + mac(Algorithm(code or 1), b"\x80\xff", NONCE + DIGEST)
    assert check_secret_answer(b"\x80\xff", NONCE, DIGEST, wide, CURRENT_VERSION)


@pytest.mark.parametrize("code", [4, 0x11, 0x14, 0x21, 0x23, 0xFF])
def test_unknown_algorithm_codes_do_not_verify(code: int) -> None:
    assert not check_secret_answer(SECRET, NONCE, DIGEST, bytes((code,)) + bytes(20), CURRENT_VERSION)


def derived_answer(iterations: int, bits: int) -> bytes:
    """An answer with parameters chosen by the client."""
    key = hashlib.pbkdf2_hmac("sha1", SECRET, b"salt", max(iterations, 1), max(bits // 8, 1))[: bits // 8]
    code = mac(Algorithm.HMAC_SHA1, key, NONCE + DIGEST)
    return Writer().u8(0x22).bytes_(b"salt").i32(iterations).i32(bits).bytes_(code).getvalue()


@pytest.mark.parametrize(
    ("iterations", "bits"), [(1, 160), (MAX_ITERATIONS, 160), (2, MIN_DERIVED_BITS), (MAX_ITERATIONS, MAX_DERIVED_BITS)]
)
def test_parameters_within_limits_are_accepted(iterations: int, bits: int) -> None:
    assert check_secret_answer(SECRET, NONCE, DIGEST, derived_answer(iterations, bits), CURRENT_VERSION)


@pytest.mark.parametrize(
    ("iterations", "bits"),
    [
        (0, 160),
        (-1, 160),
        (MAX_ITERATIONS + 1, 160),
        (2, MAX_DERIVED_BITS + 8),
        (2, 161),
        (2, MIN_DERIVED_BITS - 8),
        (2, 8),
        (2, 0),
    ],
)
def test_parameters_out_of_limits_do_not_verify(iterations: int, bits: int) -> None:
    assert not check_secret_answer(SECRET, NONCE, DIGEST, derived_answer(iterations, bits), CURRENT_VERSION)


def test_a_short_derived_key_cannot_be_guessed() -> None:
    """All derived keys of eight bits could be tried without knowing the secret."""
    for guess in range(256):
        code = mac(Algorithm.HMAC_SHA1, bytes((guess,)), NONCE + DIGEST)
        answer = Writer().u8(0x22).bytes_(b"").i32(1).i32(8).bytes_(code).getvalue()
        assert not check_secret_answer(SECRET, NONCE, DIGEST, answer, CURRENT_VERSION)


def test_empty_secret_never_verifies() -> None:
    for code in (1, 2, 0x13):
        answer = bytes((code,)) + mac(Algorithm(code), b"", NONCE + DIGEST)
        assert not check_secret_answer(b"", NONCE, DIGEST, answer, CURRENT_VERSION)
    assert not check_secret_answer(
        b"", NONCE, DIGEST, b"\x22" + pbkdf2_mac(b"", b"", 1, 160, NONCE + DIGEST), CURRENT_VERSION
    )
    assert not check_secret_answer(SECRET, NONCE, DIGEST, b"", CURRENT_VERSION)


def test_own_parameters_are_validated() -> None:
    assert refused(pbkdf2_mac, b"s", b"", 0, 160, b"")


@pytest.mark.parametrize("name", [b"MD5", b"SHA1", b"SHA-1", b"SHA-256", b"SHA256", b"\x02"])
@pytest.mark.parametrize("key", [RSA_KEY, DSA_KEY], ids=["RSA", "DSA"])
def test_any_hash_is_accepted_with_keys(name: bytes, key: PrivateKey) -> None:
    spelling = {b"MD5": "MD5", b"SHA1": "SHA1", b"SHA-1": "SHA1", b"\x02": "SHA1"}.get(name, "SHA-256")
    signature = key.sign(spelling, NONCE + DIGEST)
    assert check_key_answer(key.public, NONCE, DIGEST, Writer().bytes_(name).bytes_(signature).getvalue())


@pytest.mark.parametrize("name", [b"", b"SHA-512", b"HMAC-SHA1", b"\x12", b"S" * 33])
def test_other_hashes_do_not_verify(name: bytes) -> None:
    signature = RSA_KEY.sign("SHA1", NONCE + DIGEST)
    assert not check_key_answer(RSA_KEY.public, NONCE, DIGEST, Writer().bytes_(name).bytes_(signature).getvalue())


def test_diffie_hellman_key_vector_verifies_no_answer() -> None:
    key = PublicKey.from_bytes(bytes.fromhex(section21.DH_PEER))
    assert not check_key_answer(key, NONCE, DIGEST, answer_with_key(RSA_KEY, NONCE, DIGEST, CURRENT_VERSION))


def test_malformed_answer_does_not_verify() -> None:
    with pytest.raises(InvalidData):
        Reader(b"\xff\xff\xff\xff").bytes_()
    assert not check_key_answer(RSA_KEY.public, NONCE, DIGEST, b"\xff\xff\xff\xff")
