"""HS_SIGNATURE and HS_CERT: tokens, their claims and their verification."""

import base64
import hashlib
import json

import pytest
from hypothesis import given

from perseid.records.data_types import interpret, interpret_as
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.signatures import (
    MAX_CHAIN,
    MAX_JWS_LENGTH,
    MAX_JWS_SIGNATURES,
    Certificate,
    CertPermission,
    Claims,
    Comparison,
    Jws,
    RecordSignature,
    TokenStatus,
    ValueDigest,
)
from tests.record_strategies import DSA_PRIVATE, NOWS, RSA_PRIVATE, claims
from tests.vector_files import read_bytes

NOW = NOWS[0]
CLAIMS = Claims(ValueRef(300, "0.NA/12345"), ValueRef(0, "12345/x"), NOW - 10, NOW - 20, NOW + 100)
URL = Value.text(1, "URL", "https://example.org/")
DESC = Value.text(2, "DESC", "x")
OTHER_KEY = PublicKey.from_bytes(read_bytes("keys/pubkey.bin"))
KEYS = [pytest.param(RSA_PRIVATE, id="rsa"), pytest.param(DSA_PRIVATE, id="dsa")]


def encode(plain: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(plain).encode()).decode().rstrip("=")


def forge_token(header: object, payload: object) -> str:
    return f"{encode(header)}.{encode(payload)}.AAAA"


def payload_of(token: Jws) -> dict[str, object]:
    found: dict[str, object] = json.loads(token.payload)
    return found


@pytest.mark.parametrize("key", KEYS)
def test_record_is_signed_and_verified(key: PrivateKey) -> None:
    signature = RecordSignature.sign(CLAIMS, [URL, DESC], key)
    assert signature.claimed == CLAIMS
    assert signature.verdict(key.public, NOW) is TokenStatus.GOOD
    assert signature.verdict(OTHER_KEY, NOW) is TokenStatus.WRONG_KEY
    assert signature.compare([URL, DESC]) == Comparison((1, 2), (), (), ())
    reparsed = interpret_as(Value(400, "HS_SIGNATURE", signature.to_bytes()), RecordSignature)
    assert reparsed == signature
    assert reparsed.verdict(key.public, NOW) is TokenStatus.GOOD


def test_payload_has_the_deployed_form() -> None:
    signature = RecordSignature.sign(CLAIMS, [URL], RSA_PRIVATE)
    # from offset 8: TTL type, TTL, permissions, type, data, references
    signed = bytes.fromhex("00 00015180 0e 00000003 55524c 00000014") + b"https://example.org/" + bytes(4)
    assert payload_of(signature) == {
        "iss": "300:0.NA/12345",
        "sub": "12345/x",
        "iat": NOW - 10,
        "nbf": NOW - 20,
        "exp": NOW + 100,
        "digests": {
            "alg": "SHA-256",
            "digests": [{"index": 1, "digest": base64.b64encode(hashlib.sha256(signed).digest()).decode()}],
        },
    }
    assert [one.algorithm for one in signature.signatures] == ["RS256"]
    assert [one.algorithm for one in RecordSignature.sign(CLAIMS, [], DSA_PRIVATE).signatures] == ["DS256"]


def test_everything_but_index_and_timestamp_is_signed() -> None:
    digest = ValueDigest.of(URL).digest
    assert ValueDigest.of(Value.text(9, "URL", "https://example.org/").with_timestamp(5)).digest == digest
    for changed in (
        Value.text(1, "url", "https://example.org/"),
        Value.text(1, "URL", "https://example.org"),
        Value(1, "URL", URL.data, ttl=1),
        Value(1, "URL", URL.data, permissions=Permission(0x0F)),
        Value(1, "URL", URL.data, references=(ValueRef(1, "x"),)),
    ):
        assert ValueDigest.of(changed).digest != digest


def test_values_are_compared_one_by_one() -> None:
    signature = RecordSignature.sign(CLAIMS, [URL, DESC, Value.text(3, "X", "x")], RSA_PRIVATE)
    now = [URL, Value.text(2, "DESC", "y"), Value.text(7, "NEW", "")]
    assert signature.compare(now) == Comparison((1,), (2,), (3,), (7,))


def test_conflicting_digests_of_a_value_count_as_changed() -> None:
    plain = payload_of(RecordSignature.sign(CLAIMS, [URL], RSA_PRIVATE))
    listed = plain["digests"]["digests"]  # type: ignore[index]
    listed.append({"index": "1", "digest": "AAAA"})
    assert RecordSignature(forge_token({"alg": "RS256"}, plain)).compare([URL]).changed == (1,)


@pytest.mark.parametrize(
    ("name", "verified"), [("SHA-256", True), ("sha256", True), ("SHA-1", False), ("MD5", False), ("", False)]
)
def test_only_a_supported_hash_verifies_values(name: str, verified: bool) -> None:
    plain = payload_of(RecordSignature.sign(CLAIMS, [URL], RSA_PRIVATE))
    plain["digests"]["alg"] = name  # type: ignore[index]
    compared = RecordSignature(forge_token({"alg": "RS256"}, plain)).compare([URL])
    assert compared == (Comparison((1,), (), (), ()) if verified else Comparison((), (1,), (), ()))


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (NOW - 21, TokenStatus.NOT_YET_VALID),
        (NOW - 20, TokenStatus.GOOD),
        (NOW + 99, TokenStatus.GOOD),
        (NOW + 100, TokenStatus.EXPIRED),
    ],
)
def test_token_is_valid_from_nbf_until_exp(now: int, verdict: TokenStatus) -> None:
    assert RecordSignature.sign(CLAIMS, [], RSA_PRIVATE).verdict(RSA_PRIVATE.public, now) is verdict


def test_token_without_exp_is_expired_and_token_without_nbf_is_valid() -> None:
    endless = Claims(CLAIMS.issuer, CLAIMS.subject)
    assert RecordSignature.sign(endless, [], RSA_PRIVATE).verdict(RSA_PRIVATE.public, NOW) is TokenStatus.EXPIRED
    ending = Claims(CLAIMS.issuer, CLAIMS.subject, expires=NOW + 1)
    assert RecordSignature.sign(ending, [], RSA_PRIVATE).verdict(RSA_PRIVATE.public, 0) is TokenStatus.GOOD


def test_changed_token_is_not_verified() -> None:
    token = RecordSignature.sign(CLAIMS, [URL], RSA_PRIVATE)
    header, payload, signature = token.text.split(".")
    plain = payload_of(token) | {"exp": NOW + 10_000}
    for text in (
        f"{header}.{encode(plain)}.{signature}",
        f"{encode({'alg': 'RS256', 'typ': 'JWT'})}.{payload}.{signature}",
        f"{header}.{payload}.{signature[:-4]}AAAA",
        f"{header}.{payload}.",
    ):
        assert RecordSignature(text).verdict(RSA_PRIVATE.public, NOW) is TokenStatus.WRONG_KEY


@pytest.mark.parametrize("algorithm", ["none", "None", "", "HS256", "DS256", "RS512", "rs256"])
def test_token_cannot_choose_the_algorithm(algorithm: str) -> None:
    # Signed properly, except that the header names an algorithm that is not the key's.
    signed = f"{encode({'alg': algorithm})}.{encode({'iss': 'a', 'sub': 'b', 'digests': {'alg': '', 'digests': []}})}"
    signature = RSA_PRIVATE.sign("SHA-256", signed.encode())
    token = RecordSignature(f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}")
    assert not token.is_signed_by(RSA_PRIVATE.public)


def test_key_that_cannot_sign_verifies_nothing() -> None:
    dh = PublicKey.from_bytes(
        bytes.fromhex("0000000a 44485f5055425f4b4559 0000 00000001 05 00000081 00")
        + b"\xff" * 128
        + bytes.fromhex("00000001 02")
    )
    assert not RecordSignature.sign(CLAIMS, [], RSA_PRIVATE).is_signed_by(dh)


def test_json_forms_of_a_token_are_equivalent() -> None:
    header, payload, signature = RecordSignature.sign(CLAIMS, [URL], RSA_PRIVATE).text.split(".")
    flat = {"payload": payload, "protected": header, "signature": signature}
    several = {
        "payload": payload,
        "signatures": [
            {"protected": encode({"alg": "DS256"}), "signature": "AAAA"},
            {"protected": header, "signature": signature, "header": {"kid": "x"}},
        ],
    }
    for plain in (flat, several):
        token = RecordSignature.from_text(json.dumps(plain, indent=1))
        assert token.claimed == CLAIMS
        assert token.verdict(RSA_PRIVATE.public, NOW) is TokenStatus.GOOD
        assert token.verdict(DSA_PRIVATE.public, NOW) is TokenStatus.WRONG_KEY


def test_whitespace_around_a_token_is_ignored_and_unchanged() -> None:
    text = f"\n{RecordSignature.sign(CLAIMS, [URL], RSA_PRIVATE).text} \n"
    token = RecordSignature.from_text(text)
    assert token.verdict(RSA_PRIVATE.public, NOW) is TokenStatus.GOOD
    assert token.to_text() == text


GOOD = {"iss": "a", "sub": "b", "digests": {"alg": "SHA-256", "digests": []}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b.c.d",
        "..",
        "{",
        "{}",
        '{"payload":"e30"}',
        '{"payload":"e30","signatures":[]}',
        '{"payload":"e30","signatures":[null]}',
        f"{encode({'alg': 'RS256'})}.{encode(GOOD)}.A",
        f"{encode({'alg': 'RS256'})}.{encode(GOOD)}.A+/=",
        f"{encode({'alg': 'RS256'})}=.{encode(GOOD)}.AAAA",
        forge_token({}, GOOD),
        forge_token({"alg": 256}, GOOD),
        forge_token({"alg": "RS256", "crit": ["b64"], "b64": False}, GOOD),
        forge_token([], GOOD),
        forge_token({"alg": "RS256"}, []),
        forge_token({"alg": "RS256"}, {}),
        forge_token({"alg": "RS256"}, GOOD | {"iss": None}),
        forge_token({"alg": "RS256"}, GOOD | {"sub": ""}),
        forge_token({"alg": "RS256"}, GOOD | {"sub": "99999999999:x"}),
        forge_token({"alg": "RS256"}, GOOD | {"exp": "soon"}),
        forge_token({"alg": "RS256"}, GOOD | {"exp": 1 << 60}),
        forge_token({"alg": "RS256"}, GOOD | {"chain": "x"}),
        forge_token({"alg": "RS256"}, GOOD | {"chain": [None]}),
        forge_token({"alg": "RS256"}, {"iss": "a", "sub": "b"}),
        forge_token({"alg": "RS256"}, GOOD | {"digests": {"digests": []}}),
        forge_token({"alg": "RS256"}, GOOD | {"digests": {"alg": "SHA-256", "digests": [{"index": 1}]}}),
        forge_token({"alg": "RS256"}, GOOD | {"digests": {"alg": "SHA-256", "digests": [{"index": 1, "digest": "!"}]}}),
    ],
)
def test_invalid_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidData):
        RecordSignature.from_text(text)


def test_signatures_chain_and_length_of_a_token_are_limited() -> None:
    one = {"protected": encode({"alg": "RS256"}), "signature": "AAAA"}
    for count, valid in ((MAX_JWS_SIGNATURES, True), (MAX_JWS_SIGNATURES + 1, False)):
        text = json.dumps({"payload": encode(GOOD), "signatures": [one] * count})
        assert _is_token(text) is valid
    for count, valid in ((MAX_CHAIN, True), (MAX_CHAIN + 1, False)):
        assert _is_token(forge_token({"alg": "RS256"}, GOOD | {"chain": ["1:a"] * count})) is valid
    token = forge_token({"alg": "RS256"}, GOOD)
    assert _is_token(token + " " * (MAX_JWS_LENGTH - len(token)))
    assert not _is_token(token + " " * (MAX_JWS_LENGTH - len(token) + 1))


def test_signature_can_cover_the_maximum_number_of_values() -> None:
    values = [Value.text(index, "URL", "x") for index in range(1_000_000, 1_002_048)]
    token = RecordSignature.sign(CLAIMS, values, RSA_PRIVATE)
    assert len(token.compare(values).verified) == 2_048


def _is_token(text: str) -> bool:
    try:
        RecordSignature(text)
    except InvalidData:
        return False
    return True


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        (ValueRef(300, "0.NA/1"), "300:0.NA/1"),
        (ValueRef(0, "0.NA/1"), "0.NA/1"),
        (ValueRef(0, "5:x/y"), "0:5:x/y"),
        (ValueRef(0, "5:"), "0:5:"),
    ],
)
def test_identities_in_claims_omit_index_zero(ref: ValueRef, text: str) -> None:
    plain = Claims(ref, ref).to_json()
    assert plain == {"iss": text, "sub": text}
    assert Claims.from_json(plain) == Claims(ref, ref)


@given(claims)
def test_claims_round_trip(claims_: Claims) -> None:
    assert Claims.from_json(claims_.to_json()) == claims_


@pytest.mark.parametrize("key", KEYS)
def test_key_is_certified(key: PrivateKey) -> None:
    permissions = [CertPermission("everything", "0.NA/12345"), CertPermission("thisHandle")]
    claims_ = Claims(CLAIMS.issuer, ValueRef(300, "0.NA/1"), expires=NOW + 9, chain=(ValueRef(0, "0.0/0.0"),))
    certificate = Certificate.sign(claims_, DSA_PRIVATE.public, permissions, key)
    assert certificate.claimed == claims_
    assert certificate.public_key == DSA_PRIVATE.public
    assert certificate.permissions == tuple(permissions)
    assert certificate.verdict(key.public, NOW) is TokenStatus.GOOD
    assert payload_of(certificate)["perms"] == [{"handle": "0.NA/12345", "perm": "everything"}, {"perm": "thisHandle"}]
    assert payload_of(certificate)["chain"] == ["0.0/0.0"]
    assert interpret(Value(400, "HS_CERT", certificate.to_bytes())) == certificate


@pytest.mark.parametrize(
    "change", [{"publicKey": None}, {"publicKey": {"kty": "RSA"}}, {"perms": {}}, {"perms": [{}]}, {"perms": [None]}]
)
def test_invalid_certificate_is_refused(change: dict[str, object]) -> None:
    good = payload_of(Certificate.sign(CLAIMS, OTHER_KEY, [], RSA_PRIVATE))
    assert Certificate(forge_token({"alg": "RS256"}, good)).public_key == OTHER_KEY
    with pytest.raises(InvalidData):
        Certificate(forge_token({"alg": "RS256"}, good | change))
