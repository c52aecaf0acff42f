"""Parsing and formatting of Authorization headers, and verification of claims."""

import base64
import hashlib
import hmac
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.records.ciphers import latin1_to_utf8
from perseid.records.encoding import to_base64
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.registry.identity import Proof
from perseid.server.http.auth import handle_scheme
from perseid.server.http.auth import handle_scheme as handle_proofs
from perseid.server.http.auth import proofs as basic
from perseid.server.http.auth.handle_scheme import MAX_ITERATIONS, Claim, InvalidFields
from perseid.server.native.authentication import MAX_SECRETS
from perseid.wire.credentials import Algorithm
from tests.server.http.auth_servers import basic_header
from tests.server.native.native_servers import HIDDEN
from tests.wire.key_material import DSA_KEY, RSA_KEY, RSA_KEYS, SERVER_KEY

NONCE = bytes(range(16))
CNONCE = bytes(range(16, 32))
SIGNED = NONCE + CNONCE

header_text = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=60)
names = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True)
handles = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)


# The Handle scheme


@given(st.dictionaries(names, header_text, max_size=6))
@example({"sessionid": 'a"b\\c', "nonce": "", "error": "a, b=c"})
def test_round_trip(fields: dict[str, str]) -> None:
    assert handle_scheme.parse_fields(handle_scheme.format_fields(fields)) == fields


@given(st.dictionaries(names, header_text, min_size=1, max_size=6), st.data())
def test_field_names_are_case_insensitive_and_gaps_ignored(fields: dict[str, str], data: st.DataObject) -> None:
    gaps = st.text(" \t", max_size=2)
    parts = []
    for name, value in fields.items():
        quoted = handle_scheme.format_fields({name: value}).partition("=")[2]
        parts.append(data.draw(gaps).join((name.upper(), "=", quoted)))
    comma = st.tuples(gaps, st.sampled_from((",", ",,", ", ,")), gaps).map("".join)
    text = data.draw(st.sampled_from(("", ",", ", "))) + data.draw(comma).join(parts) + data.draw(gaps)
    assert handle_scheme.parse_fields(text) == fields


@given(st.text(max_size=200) | st.text('ab="\\, \t', max_size=40))
def test_any_header_is_parsed_or_refused(text: str) -> None:
    fields = handle_scheme.parse_fields(text)
    if fields is None:
        return
    assert all(name == name.lower() for name in fields)
    read_all(fields)


def read_all(fields: dict[str, str]) -> None:
    """Parse fields in all ways; only `InvalidFields` may be raised."""
    with suppress(InvalidFields):
        handle_scheme.check_version(fields)
    with suppress(InvalidFields):
        handle_scheme.client_nonce(fields)
    with suppress(InvalidFields):
        handle_scheme.parse_claim(fields, weak_digests=True)


CLAIM_FIELDS = ("id", "type", "cnonce", "alg", "signature", "salt", "iterations", "length", "version")


@given(
    st.dictionaries(st.sampled_from(CLAIM_FIELDS), st.text(max_size=30) | st.sampled_from(("HS_SECKEY", "0", "AAAA")))
)
def test_any_claim_is_parsed_or_refused(fields: dict[str, str]) -> None:
    read_all(fields)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ('sessionID="a"', {"sessionid": "a"}),
        ("SESSIONID=node01", {"sessionid": "node01"}),
        ('a="1",b="2" ,  c=3', {"a": "1", "b": "2", "c": "3"}),
        (r'a="\"\\\x"', {"a": '"\\x'}),
        ("cnonce=AAAA+/==, id=301%3A0.NA/1", {"cnonce": "AAAA+/==", "id": "301%3A0.NA/1"}),
    ],
)
def test_headers_of_clients(text: str, fields: dict[str, str]) -> None:
    assert handle_scheme.parse_fields(text) == fields


@pytest.mark.parametrize(
    "text",
    ['a="1" b="2"', 'a="1', "a", "a=", '="1"', 'a="1";b="2"', 'a="1", a="2"', 'a="1", A="1"', "a=1\n", 'a="1"b="2"'],
)
def test_invalid_headers(text: str) -> None:
    assert handle_scheme.parse_fields(text) is None


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60))
def test_id_round_trips_in_ascii_header(text: str) -> None:
    assert handle_scheme.id_from_header(quote(text, safe=":/")) == text


def test_id_may_be_fully_percent_encoded() -> None:
    for text in ("301:0.NA/1", "301%3A0.NA/1", "301%3a0.NA%2F1", "%33%30%31%3A0.NA/1"):
        assert handle_scheme.id_from_header(text) == "301:0.NA/1"
    assert handle_scheme.id_from_header("ü".encode().decode("latin-1")) == "ü"
    with pytest.raises(InvalidFields, match=r"^the id is not percent-encoded UTF-8$"):
        handle_scheme.id_from_header("%FF")


@given(st.text(max_size=100).filter(lambda text: text.isprintable()))
@example('say "100 %" \\ twice')
def test_error_round_trips_in_ascii(text: str) -> None:
    error = handle_scheme.encode_error(text)
    assert error.isascii()
    assert error.isprintable()
    fields = handle_scheme.parse_fields(handle_scheme.format_fields({"error": error}))
    assert fields is not None
    assert handle_scheme.id_from_header(fields["error"]) == text


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("MD5", Algorithm.MD5),
        ("SHA", Algorithm.SHA1),
        ("SHA1", Algorithm.SHA1),
        ("sha-1", Algorithm.SHA1),
        ("SHA2", Algorithm.SHA256),
        ("SHA-2", Algorithm.SHA256),
        ("SHA256", Algorithm.SHA256),
        ("SHA-256", Algorithm.SHA256),
        ("HMAC-SHA1", Algorithm.HMAC_SHA1),
        ("HmacSHA256", Algorithm.HMAC_SHA256),
        ("PBKDF2-HMAC-SHA1", Algorithm.PBKDF2_HMAC_SHA1),
        ("PBKDF2WithHmacSHA1", Algorithm.PBKDF2_HMAC_SHA1),
    ],
)
def test_algorithms_have_several_names(name: str, algorithm: Algorithm) -> None:
    assert handle_scheme.parse_algorithm(name, Proof.SECRET_KEY, weak_digests=True) is algorithm


@pytest.mark.parametrize("name", ["", "SHA-512", "SHA512", "\x01", "\x12", "none", "MD5" * 20, "\uff2d\uff24\uff15"])
def test_unknown_algorithms_are_refused(name: str) -> None:
    for kind in (Proof.SECRET_KEY, Proof.PUBLIC_KEY):
        with pytest.raises(InvalidFields, match="alg"):
            handle_scheme.parse_algorithm(name, kind, weak_digests=True)


def test_public_key_needs_plain_hash() -> None:
    for name in ("HMAC-SHA256", "PBKDF2-HMAC-SHA1"):
        with pytest.raises(InvalidFields, match="alg"):
            handle_scheme.parse_algorithm(name, Proof.PUBLIC_KEY, weak_digests=True)


@pytest.mark.parametrize("kind", [Proof.PUBLIC_KEY, Proof.SECRET_KEY])
def test_weak_digests_can_be_refused(kind: Proof) -> None:
    for name in ("MD5", "SHA1"):
        with pytest.raises(InvalidFields, match="does not accept"):
            handle_scheme.parse_algorithm(name, kind, weak_digests=False)
    assert handle_scheme.parse_algorithm("SHA256", kind, weak_digests=False) is Algorithm.SHA256


def test_hmac_is_not_a_weak_digest() -> None:
    for name in ("HMAC-SHA1", "PBKDF2-HMAC-SHA1"):
        handle_scheme.parse_algorithm(name, Proof.SECRET_KEY, weak_digests=False)


def claim_fields(**other: str) -> dict[str, str]:
    usual = {
        "id": "300:12345/u",
        "type": "HS_SECKEY",
        "cnonce": to_base64(CNONCE),
        "alg": "SHA256",
        "signature": to_base64(bytes(32)),
    }
    return usual | other


def derived_fields(**other: str) -> dict[str, str]:
    usual = {"alg": "PBKDF2-HMAC-SHA1", "salt": to_base64(b"salt"), "iterations": "1000", "length": "160"}
    return claim_fields(**(usual | other))


def test_claim_is_parsed() -> None:
    claim = handle_scheme.parse_claim(claim_fields(), weak_digests=True)
    assert claim == Claim(
        "300:12345/u", ValueRef(300, "12345/u"), Proof.SECRET_KEY, Algorithm.SHA256, CNONCE, bytes(32)
    )
    assert claim.rounds == 0
    derived = handle_scheme.parse_claim(derived_fields(length="512"), weak_digests=True)
    assert (derived.salt, derived.iterations, derived.bits, derived.rounds) == (b"salt", 1000, 512, 4000)
    assert "signature" not in repr(claim)


@pytest.mark.parametrize("name", ["id", "type", "cnonce", "alg", "signature"])
def test_claim_with_missing_field_is_refused(name: str) -> None:
    fields = claim_fields()
    del fields[name]
    with pytest.raises(InvalidFields, match=f"missing: {name}"):
        handle_scheme.parse_claim(fields, weak_digests=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (claim_fields(type="HS_ADMIN"), "type"),
        (claim_fields(alg="rot13"), "alg"),
        (claim_fields(cnonce="AAAA"), "fewer than 8"),
        (claim_fields(cnonce="?"), "not base64"),
        (claim_fields(cnonce=to_base64(bytes(1025))), "more than 1,024"),
        (claim_fields(signature="%%%"), "not base64"),
        (claim_fields(id=""), "INDEX:HANDLE"),
        (claim_fields(id="300:"), "INDEX:HANDLE"),
        (claim_fields(id="99999999999:12345/u"), "INDEX:HANDLE"),
        (derived_fields(salt="!"), "not base64"),
        (derived_fields(iterations="0"), "must be 1 to 1,000,000"),
        (derived_fields(iterations="1000001"), "must be 1 to 1,000,000"),
        (derived_fields(iterations="300000", length="512"), "must be 1 to 1,000,000"),
        (derived_fields(iterations="-1"), "number"),
        (derived_fields(iterations="1" * 30), "number"),
        (derived_fields(iterations="١٢"), "number"),
        (derived_fields(length="8"), "128 to 512"),
        (derived_fields(length="161"), "a multiple of 8"),
        (derived_fields(length="4096"), "128 to 512"),
    ],
)
def test_invalid_claim_is_refused_with_reason(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidFields, match=reason):
        handle_scheme.parse_claim(fields, weak_digests=True)


@pytest.mark.parametrize("name", ["salt", "iterations", "length"])
def test_pbkdf2_needs_all_its_parameters(name: str) -> None:
    fields = derived_fields()
    del fields[name]
    with pytest.raises(InvalidFields, match=name):
        handle_scheme.parse_claim(fields, weak_digests=True)


def test_unknown_version_is_refused() -> None:
    handle_scheme.check_version({})
    handle_scheme.check_version({"version": "0"})
    for version in ("1", "", "00"):
        with pytest.raises(InvalidFields, match=r"^the version of the Handle scheme is not supported; use version 0$"):
            handle_scheme.check_version({"version": version})


def test_nonce_alone_requests_server_proof() -> None:
    assert handle_scheme.client_nonce({"cnonce": "AAAA"}) == bytes(3)
    assert handle_scheme.client_nonce({"cnonce": ""}) == b""
    assert handle_scheme.client_nonce({}) is None
    assert handle_scheme.client_nonce(claim_fields()) is None


# Verification


def secret_value(secret: bytes, index: int = 300) -> Value:
    return Value(index, "HS_SECKEY", secret, permissions=HIDDEN)


def claim(kind: Proof, algorithm: Algorithm, signature: bytes, **derivation: int | bytes) -> Claim:
    return Claim("", ValueRef(0, "12345/u"), kind, algorithm, CNONCE, signature, **derivation)  # type: ignore[arg-type]


def digest(name: str, secret: bytes) -> bytes:
    return hashlib.new(name, secret + SIGNED + secret).digest()


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_secret_authenticates_by_digest_and_hmac(secret: bytes, other: bytes) -> None:
    keys = [secret_value(other, 1), secret_value(secret, 2)]
    proofs = {
        Algorithm.MD5: digest("md5", secret),
        Algorithm.SHA1: digest("sha1", secret),
        Algorithm.SHA256: digest("sha256", secret),
        Algorithm.HMAC_SHA1: hmac.digest(secret, SIGNED, "sha1"),
        Algorithm.HMAC_SHA256: hmac.digest(secret, SIGNED, "sha256"),
    }
    for algorithm, signature in proofs.items():
        right = claim(Proof.SECRET_KEY, algorithm, signature)
        found = handle_proofs.matching_signature_key(right, NONCE, keys)
        assert found is not None
        assert found.data == secret or secret.rstrip(b"\0") == other.rstrip(b"\0")  # HMAC fills keys with zeros
        assert handle_proofs.matching_signature_key(right, bytes(16), keys) is None
        for wrong in (signature[:-1], signature + b"\0", b"", bytes(len(signature))):
            assert handle_proofs.matching_signature_key(claim(Proof.SECRET_KEY, algorithm, wrong), NONCE, keys) is None


@pytest.mark.parametrize("secret", ["s\u00e4:cret".encode(), b"\x80\xff", b"plain"])
def test_pbkdf2_accepts_both_encodings_of_secret(secret: bytes) -> None:
    for password in (secret, latin1_to_utf8(secret)):
        derived = hashlib.pbkdf2_hmac("sha1", password, b"salt", 10, 20)
        signature = hmac.digest(derived, SIGNED, "sha1")
        right = claim(Proof.SECRET_KEY, Algorithm.PBKDF2_HMAC_SHA1, signature, salt=b"salt", iterations=10, bits=160)
        assert handle_proofs.matching_signature_key(right, NONCE, [secret_value(secret)]) is not None
        assert handle_proofs.matching_signature_key(right, NONCE, [secret_value(secret + b"x")]) is None


def test_expensive_derivations_try_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def derive(secret: bytes, salt: bytes, iterations: int, bits: int, *, limit: int) -> bytes:
        tried.append((secret, salt, iterations, bits, limit))
        return bytes(20)

    monkeypatch.setattr(handle_proofs, "derive_key", derive)
    three = [secret_value(b"\x80", 1), secret_value(b"b", 2), secret_value(b"c", 3)]
    for keys in (three, three[:1], three[1:], []):
        for iterations, tries in ((MAX_ITERATIONS, 2), (MAX_ITERATIONS // 3, 3), (10, 2 * MAX_SECRETS)):
            tried.clear()
            costly = claim(
                Proof.SECRET_KEY, Algorithm.PBKDF2_HMAC_SHA1, b"x", salt=b"", iterations=iterations, bits=160
            )
            assert handle_proofs.matching_signature_key(costly, NONCE, keys) is None
            assert len(tried) == tries, "whatever secrets there are"
            tried.clear()
            with_index = replace(costly, reference=ValueRef(1, "12345/u"))
            assert handle_proofs.matching_signature_key(with_index, NONCE, keys[:1]) is None
            assert len(tried) == 2


@pytest.mark.parametrize("keys", [[], [secret_value(b"")]])
def test_empty_and_missing_secrets_are_refused_in_the_same_time(keys: list[Value]) -> None:
    for secret in (b"", handle_proofs.DUMMY_KEY.data):
        right = claim(Proof.SECRET_KEY, Algorithm.SHA256, digest("sha256", secret))
        assert handle_proofs.matching_signature_key(right, NONCE, keys) is None
        credentials = basic.parse_credentials(basic_header("300:12345/u", secret).removeprefix("Basic "))
        assert basic.matching_secret(credentials, keys) is None


RSA_PROOFS = [(key, name) for key in (RSA_KEY, *RSA_KEYS) for name in ("MD5", "SHA1", "SHA-256")]
DSA_PROOFS = [(DSA_KEY, name) for name in ("SHA1", "SHA-256")]


@pytest.mark.parametrize(("key", "name"), RSA_PROOFS + DSA_PROOFS)
def test_private_key_signature_matches(key: PrivateKey, name: str) -> None:
    algorithm = handle_scheme.parse_algorithm(name, Proof.PUBLIC_KEY, weak_digests=True)
    signature = key.sign(name, SIGNED)
    values = [
        Value(1, "HS_PUBKEY", b"no key"),
        Value(2, "HS_PUBKEY", SERVER_KEY.public.to_bytes()),
        Value(3, "HS_PUBKEY", key.public.to_bytes()),
    ]
    right = claim(Proof.PUBLIC_KEY, algorithm, signature)
    assert handle_proofs.matching_signature_key(right, NONCE, values) is values[2]
    assert handle_proofs.matching_signature_key(right, bytes(16), values) is None
    assert handle_proofs.matching_signature_key(right, NONCE, values[:2]) is None
    other = Algorithm.SHA1 if algorithm is Algorithm.SHA256 else Algorithm.SHA256
    assert handle_proofs.matching_signature_key(claim(Proof.PUBLIC_KEY, other, signature), NONCE, values) is None


def test_the_server_signs_both_nonces() -> None:
    signature = handle_proofs.sign(SERVER_KEY, NONCE, CNONCE)
    assert SERVER_KEY.public.verify("SHA-256", signature, SIGNED)


# Basic


@given(st.integers(1, 0x7FFF_FFFF), handles, st.binary(max_size=30))
@example(300, "12345/a:b%41", b"a:b")
def test_basic_credentials_round_trip(index: int, handle: str, secret: bytes) -> None:
    found = basic.parse_credentials(basic_header(f"{index}:{handle}", secret).removeprefix("Basic "))
    assert found.reference == ValueRef(index, handle)
    assert found.written == f"{index}:{handle}"
    assert (found.secret, found.guessed) == (secret, False)


@given(st.binary(max_size=60))
@example(b"300:")
@example(b":")
@example(b"300:12345/u")
@example(b"%FF:secret")
@example(b"99999999999%3A12345/u:secret")
def test_any_credentials_are_parsed_or_refused(octets: bytes) -> None:
    with suppress(basic.InvalidCredentials):
        found = basic.parse_credentials(base64.b64encode(octets).decode())
        assert octets.endswith(found.secret)
        assert found.reference.handle


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(basic.InvalidCredentials):
        basic.parse_credentials(text)


def raw(octets: str | bytes) -> str:
    return base64.b64encode(octets.encode() if isinstance(octets, str) else octets).decode()


@pytest.mark.parametrize(
    ("octets", "index", "handle", "secret", "guessed"),
    [
        ("300%3A12345/user:secret", 300, "12345/user", b"secret", False),
        ("300%3A12345%2Fuser:se:cret", 300, "12345/user", b"se:cret", False),
        ("300%3A12345/%C3%BC:s", 300, "12345/ü", b"s", False),
        ("300%3A12345/ü:s", 300, "12345/ü", b"s", False),
        ("12345/user:secret", 0, "12345/user", b"secret", False),
        ("0%3A12345/user:secret", 0, "12345/user", b"secret", False),
        ("a%3Ab/user:secret", 0, "a:b/user", b"secret", False),
        ("300%3A12345/a+b:%41", 300, "12345/a+b", b"%41", False),
        ("300:12345/user:secret", 300, "12345/user", b"secret", False),
        ("300:12345/user:se:cret", 300, "12345/user", b"se:cret", True),
        ("300:12345/a%3Ab:secret", 300, "12345/a:b", b"secret", False),
        ("300:12345/100%25:", 300, "12345/100%", b"", False),
    ],
)
def test_user_names_have_several_spellings(octets: str, index: int, handle: str, secret: bytes, guessed: bool) -> None:
    found = basic.parse_credentials(raw(octets))
    assert (found.reference, found.secret, found.guessed) == (ValueRef(index, handle), secret, guessed)


def test_secret_is_not_shown() -> None:
    for secret in ("opensesame", "open:opensesame"):
        found = basic.parse_credentials(raw(f"300:12345/user:{secret}"))
        assert "opensesame" not in repr(found) + found.remark
        assert ("%3A" in found.remark) == (":" in secret), "only if the handle may end at another colon"
    for octets in ("opensesame", "300:opensesame", "%FF:opensesame", "300%3A:opensesame"):
        with pytest.raises(basic.InvalidCredentials) as problem:
            basic.parse_credentials(raw(octets))
        assert "opensesame" not in str(problem.value)


def test_first_equal_secret_is_the_key() -> None:
    keys = [secret_value(b"a", 1), secret_value(b"b", 2), secret_value(b"b", 3)]
    assert basic.matching_secret(basic.parse_credentials(raw("12345/u:b")), keys) is keys[1]
    assert basic.matching_secret(basic.parse_credentials(raw("12345/u:c")), keys) is None
