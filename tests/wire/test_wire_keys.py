"""Public and private keys: every recorded one both ways, limits, and untrusted input."""

import time
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.keys import (
    MAX_DH_BITS,
    MAX_KEY_BITS,
    MAX_KIND_LENGTH,
    MAX_NUMBER_SIZE,
    MAX_ORDER_BITS,
    MAX_RSA_EXPONENT,
    MIN_DH_BITS,
    MIN_KEY_BITS,
    MIN_ORDER_BITS,
    SIGNATURE_HASHES,
    DhPublicKey,
    DsaPublicKey,
    PublicKey,
    RsaPublicKey,
)
from perseid.records.private_keys import (
    DsaPrivateKey,
    PrivateKey,
    ProtectionScheme,
    RsaPrivateKey,
    RsaPrivateKeyWithoutPrimes,
    unprotect,
    write_key_file,
)
from perseid.wire.sessions import (
    Cipher,
    DhKeyPair,
    derive_session_key,
    exchange_with_library,
    exchange_with_pow,
    shared_secret,
)
from tests.wire import section21
from tests.wire.key_material import (
    DSA_KEY,
    KEY_FILES,
    PLAIN_RSA_KEYS,
    RSA_KEY,
    codec_vectors,
    dsa_key,
    private_key,
    private_keys,
    public_keys,
    refused,
    rsa_key,
)
from tests.wire.recorded import key_file

VECTOR_FILES = ("codec-keys.json",)
VECTORS = [vector for file in VECTOR_FILES for vector in codec_vectors(file)]
SHORT_MODULUS = (1 << 1024) - 1
P, G = dsa_key().p, dsa_key().g


# Recorded keys


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_key_vectors_match(vector: dict[str, Any]) -> None:
    match vector["function"]:
        case "Util.getBytesFromPrivateKey":
            check_private_key(bytes.fromhex(vector["pkcs8_hex"]), bytes.fromhex(vector["encoded_hex"]))
        case "Util.encrypt":
            check_key_file(bytes.fromhex(vector["file_hex"]), bytes.fromhex(vector["cleartext_hex"]))
        case "HdlSecurityProvider.getKeyFromDH":
            check_exchange(vector)
        case function:
            pytest.fail(f"nothing exercises {function}")


def check_private_key(pkcs8: bytes, encoded: bytes) -> None:
    key = PrivateKey.from_pkcs8(pkcs8)
    assert key.to_bytes() == encoded
    assert PrivateKey.from_bytes(encoded) == key
    assert PrivateKey.from_pkcs8(key.to_pkcs8()) == key


def check_key_file(file: bytes, cleartext: bytes) -> None:
    key = PrivateKey.from_bytes(cleartext)
    assert unprotect(file, b"passphrase") == cleartext
    # The random parts are in the file in this order: salt and initialization vector, or one of them.
    scheme = file[3]
    drawn = {0: [], 1: [], 2: [file[4:12]], 3: [file[8:24], file[36:44]], 4: [file[8:24], file[36:52]]}[scheme]
    draw = iter(drawn)
    assert (
        write_key_file(key, None if scheme == 1 else b"passphrase", lambda _: next(draw), ProtectionScheme(scheme))
        == file
    )


def check_exchange(vector: dict[str, Any]) -> None:
    p, g, x, y = (int(vector[name], 16) for name in ("p", "g", "x1", "y2"))
    pair, peer = DhKeyPair(DhPublicKey(pow(g, x, p), p, g), x), DhPublicKey(y, p, g)
    key = bytes.fromhex(vector["key_hex"])
    for power in (exchange_with_pow, exchange_with_library, shared_secret):
        assert derive_session_key(Cipher(key[3]), power(pair, peer)) == key[4:]


@pytest.mark.parametrize(("private", "public"), KEY_FILES.items())
def test_vector_key_files_are_read(private: str, public: str) -> None:
    key, data = PublicKey.from_bytes(key_file(public)), key_file(public)
    assert key.to_bytes() == data
    assert private_key(private).public == key
    assert write_key_file(private_key(private), None, bytes) == key_file(private)


@pytest.mark.parametrize(
    "vector",
    [vector for vector in codec_vectors("codec-records.json") if "x509_hex" in vector],
    ids=lambda v: v["name"],
)
def test_vector_keys_round_trip_as_x509(vector: dict[str, Any]) -> None:
    key = PublicKey.from_x509(bytes.fromhex(vector["x509_hex"]))
    assert key.to_bytes() == bytes.fromhex(vector["encoded_hex"])
    assert PublicKey.from_bytes(key.to_bytes()).to_x509() == bytes.fromhex(vector["x509_hex"])


@pytest.mark.parametrize("data", [section21.RSA_KEY, section21.DH_PEER], ids=["RSA", "DH"])
def test_public_key_vectors_of_the_specification_match(data: str) -> None:
    assert PublicKey.from_bytes(bytes.fromhex(data)).to_bytes().hex() == data


# Round trips


@given(public_keys)
def test_public_keys_round_trip(key: PublicKey) -> None:
    assert PublicKey.from_bytes(key.to_bytes()) == key
    assert PublicKey.from_json(key.to_json()) == key
    assert PublicKey.from_text(key.to_text()) == key
    assert type(key).from_bytes(key.to_bytes()) == key


@given(private_keys)
@settings(max_examples=40)
def test_private_keys_round_trip(key: PrivateKey) -> None:
    assert PrivateKey.from_bytes(key.to_bytes()) == key
    assert PrivateKey.from_text(key.to_text()) == key
    assert PublicKey.from_bytes(key.public.to_bytes()) == key.public


@given(private_keys, st.sampled_from(sorted(SIGNATURE_HASHES)), st.binary(max_size=100))
@settings(max_examples=40)
def test_a_signature_verifies_with_the_public_key_only(key: PrivateKey, hash_name: str, data: bytes) -> None:
    signature = key.sign(hash_name, data)
    assert key.public.verify(hash_name, signature, data)
    assert not key.public.verify(hash_name, signature, data + b"!")
    assert not key.public.verify(hash_name, signature[:-1], data)
    assert not RSA_KEY.public.verify(hash_name, signature, data)


def test_hash_names_are_those_of_the_protocol() -> None:
    signature = RSA_KEY.sign("SHA1", b"data")
    assert not RSA_KEY.public.verify("SHA-1", signature, b"data")
    with pytest.raises(RecordMisuse):
        RSA_KEY.sign("SHA-512", b"data")


def test_dsa_truncates_a_hash_longer_than_q() -> None:
    key = dsa_key()
    assert key.q.bit_length() == 160
    assert key.public.verify("SHA-256", key.sign("SHA-256", b"data"), b"data")


# Forms


def test_a_json_key_has_no_padding_and_no_leading_zero() -> None:
    json = RsaPublicKey(65_537, SHORT_MODULUS).to_json()
    assert json == {"kty": "RSA", "n": "_" * 170 + "8", "e": "AQAB"}
    assert list(dsa_key().to_json()) == ["kty", "x", "p", "q", "g"]
    assert list(dsa_key().public.to_json()) == ["kty", "y", "p", "q", "g"]
    assert list(rsa_key().to_json()) == ["kty", "n", "e", "d", "p", "q", "dp", "dq", "qi"]


def test_missing_zero_byte_and_trailing_bytes_are_tolerated() -> None:
    key = RsaPublicKey(65_537, SHORT_MODULUS)
    data = key.to_bytes()
    without_zero = data.replace(b"\0\0\0\x81\0\xff", b"\0\0\0\x80\xff")
    assert len(without_zero) == len(data) - 1
    for variant in (without_zero, data[:-4], data + b"more", data.replace(b"KEY\0\0", b"KEY\0\1")):
        assert PublicKey.from_bytes(variant) == key


def test_type_of_a_json_key_is_case_insensitive() -> None:
    for key in (rsa_key(), dsa_key()):
        plain = key.public.to_json() | {"kty": key.KTY.lower()}
        assert PublicKey.from_json(plain) == key.public
        assert PrivateKey.from_json(key.to_json() | {"kty": key.KTY.lower()}) == key
    assert "kty" in refused(PublicKey.from_json, {"kty": 1})


def test_private_key_with_trailing_bytes_is_refused() -> None:
    refused(PrivateKey.from_bytes, DSA_KEY.to_bytes() + b"\0")


def test_key_of_another_type_is_refused() -> None:
    assert "RSA" in refused(DhPublicKey.from_bytes, RSA_KEY.public.to_bytes())
    assert "DSA" in refused(RsaPublicKey.from_x509, DSA_KEY.public.to_x509())
    assert "DSA" in refused(RsaPrivateKey.from_bytes, DSA_KEY.to_bytes())
    assert RsaPrivateKey.from_bytes(RSA_KEY.to_bytes()) == RSA_KEY


def test_primes_of_a_key_without_primes_are_computed() -> None:
    whole = rsa_key(e=3, seed=7)
    old = RsaPrivateKeyWithoutPrimes(whole.n, whole.d)
    assert old.e == 3
    completed = RsaPrivateKey.from_pkcs8(old.to_pkcs8())
    assert completed.public == whole.public
    assert {completed.p, completed.q} == {whole.p, whole.q}
    assert PrivateKey.from_json({name: whole.to_json()[name] for name in ("kty", "n", "e", "d")}) == old


def test_diffie_hellman_key_does_not_sign_or_certify() -> None:
    key = PublicKey.from_bytes(bytes.fromhex(section21.DH_PEER))
    assert not key.verify("SHA1", b"", b"")
    assert key.bits == 1024
    with pytest.raises(RecordMisuse):
        key.to_x509()


def test_dsa_key_of_an_unsupported_length_verifies_nothing() -> None:
    key = DsaPublicKey((1 << 160) - 1, (1 << 8192) - 1, 2, 3)
    assert key.bits == 8192
    assert not key.verify("SHA1", dsa_key().sign("SHA1", b"data"), b"data")
    assert "1024" in refused(DsaPrivateKey, 1, (1 << 1100) + 1, (1 << 160) - 1, 2)


# Limits, on both sides


@pytest.mark.parametrize("bits", [MIN_KEY_BITS, MAX_KEY_BITS])
def test_longest_and_shortest_keys_are_accepted(bits: int) -> None:
    assert RsaPublicKey(3, (1 << bits) - 1).bits == bits
    assert DsaPublicKey((1 << 160) - 1, (1 << bits) - 1, 2, 3).bits == bits
    data = RsaPublicKey(3, (1 << bits) - 1).to_bytes()
    assert PublicKey.from_bytes(data).bits == bits
    assert not PublicKey.from_bytes(data).verify("SHA-256", b"x" * (bits // 8), b"data")


@pytest.mark.parametrize("bits", [MIN_KEY_BITS - 1, MAX_KEY_BITS + 1])
def test_shorter_and_longer_keys_are_refused(bits: int) -> None:
    for make in (lambda n: RsaPublicKey(3, n), lambda p: DsaPublicKey((1 << 160) - 1, p, 2, 3)):
        assert str(bits) in refused(make, (1 << bits) - 1)
    refused(RsaPublicKey, 3, -(1 << MIN_KEY_BITS) + 1)


def test_a_1024_bit_rsa_key_of_a_deployed_peer_signs_and_verifies() -> None:
    key = rsa_key(1024)
    assert key.public.bits == 1024
    assert key.public.verify("SHA1", key.sign("SHA1", b"data"), b"data")


@pytest.mark.parametrize("e", [3, MAX_RSA_EXPONENT])
def test_smallest_and_largest_exponents_are_accepted(e: int) -> None:
    assert RsaPublicKey(e, SHORT_MODULUS).e == e
    assert not RsaPublicKey(e, SHORT_MODULUS).verify("SHA1", bytes(128), b"")


@pytest.mark.parametrize("e", [-1, 0, 1, 2, 4, MAX_RSA_EXPONENT + 1, MAX_RSA_EXPONENT + 2])
def test_other_exponents_are_refused(e: int) -> None:
    assert "exponent" in refused(RsaPublicKey, e, SHORT_MODULUS)


def test_an_even_modulus_is_refused() -> None:
    assert "even" in refused(RsaPublicKey, 3, SHORT_MODULUS - 1)
    assert "even" in refused(DhPublicKey, 2, SHORT_MODULUS - 1, 2)


@pytest.mark.parametrize("bits", [MIN_ORDER_BITS, MAX_ORDER_BITS])
def test_shortest_and_longest_dsa_orders_are_accepted(bits: int) -> None:
    assert DsaPublicKey((1 << bits) - 1, P, G, 2).q.bit_length() == bits


@pytest.mark.parametrize("bits", [MIN_ORDER_BITS - 1, MAX_ORDER_BITS + 1])
def test_other_dsa_orders_are_refused(bits: int) -> None:
    assert "q of a DSA key" in refused(DsaPublicKey, (1 << bits) - 1, P, G, 2)
    refused(DsaPublicKey, -dsa_key().q, P, G, 2)


@pytest.mark.parametrize(("g", "y"), [(1, 2), (P, 2), (G, 1), (G, P)])
def test_numbers_outside_a_dsa_group_are_refused(g: int, y: int) -> None:
    assert refused(DsaPublicKey, dsa_key().q, P, g, y)


@pytest.mark.parametrize("bits", [MIN_DH_BITS, MAX_DH_BITS])
def test_smallest_and_largest_diffie_hellman_groups_are_accepted(bits: int) -> None:
    p = (1 << bits) - 1
    for y, g in ((2, 2), (p - 2, p - 2)):
        assert DhPublicKey(y, p, g).bits == bits


@pytest.mark.parametrize("bits", [MIN_DH_BITS - 1, MAX_DH_BITS + 1])
def test_other_diffie_hellman_groups_are_refused(bits: int) -> None:
    assert f"{bits}" in refused(DhPublicKey, 2, (1 << bits) - 1, 2)


@pytest.mark.parametrize("number", [-1, 0, 1, SHORT_MODULUS - 1, SHORT_MODULUS, SHORT_MODULUS + 1])
def test_trivial_diffie_hellman_numbers_are_refused(number: int) -> None:
    assert "y of a Diffie-Hellman key" in refused(DhPublicKey, number, SHORT_MODULUS, 2)
    assert "generator" in refused(DhPublicKey, 2, SHORT_MODULUS, number)


def test_number_and_name_lengths_are_limited() -> None:
    head = b"\0\0\0\x0bRSA_PUB_KEY\0\0"
    n = b"\0" + b"\xff" * (MAX_NUMBER_SIZE - 1)
    tail = b"\0\0\0\1\3" + len(n).to_bytes(4, "big") + n
    assert PublicKey.from_bytes(head + tail).bits == MAX_KEY_BITS
    longer = b"\0\0\0\1\3" + (len(n) + 1).to_bytes(4, "big") + b"\0" + n
    assert "length" in refused(PublicKey.from_bytes, head + longer)
    assert "unknown kind" in refused(PublicKey.from_bytes, MAX_KIND_LENGTH.to_bytes(4, "big") + b"K" * MAX_KIND_LENGTH)
    assert "length" in refused(
        PublicKey.from_bytes, (MAX_KIND_LENGTH + 1).to_bytes(4, "big") + b"K" * (MAX_KIND_LENGTH + 1)
    )
    text = RsaPublicKey(3, (1 << MAX_KEY_BITS) - 1).to_json()
    assert PublicKey.from_json(text).bits == MAX_KEY_BITS
    assert "too long" in refused(PublicKey.from_json, text | {"n": "A" * (4 * MAX_NUMBER_SIZE // 3 + 4)})


# Private keys with inconsistent numbers


@pytest.mark.parametrize("name", ["n", "e", "d", "p", "q", "dp", "dq", "qi"])
@pytest.mark.parametrize("change", [2, -2, 0])
def test_wrong_number_in_an_rsa_key_is_detected(name: str, change: int) -> None:
    key = rsa_key()
    numbers = {number: getattr(key, number) for number in RsaPrivateKey.WIRE_FIELDS}
    numbers[name] = numbers[name] + change if change else 0
    refused(lambda: RsaPrivateKey(**numbers))


def test_impossible_primes_and_secrets_are_refused() -> None:
    key = rsa_key()
    refused(RsaPrivateKey.from_primes, key.p, key.p, 65_537, key.d)
    refused(RsaPrivateKey.from_primes, 1, key.n, 65_537, key.d)
    refused(RsaPrivateKey.from_primes, key.p, key.p * key.q, 65_537, key.d)
    refused(RsaPrivateKeyWithoutPrimes, key.n, key.d + 2)
    refused(RsaPrivateKeyWithoutPrimes, key.n, key.n)
    refused(RsaPrivateKeyWithoutPrimes, key.n, key.d, 257)
    prime = next(number for number in range(SHORT_MODULUS, 0, -2) if pow(3, number - 1, number) == 1)
    refused(RsaPrivateKeyWithoutPrimes, prime, pow(65_537, -1, prime - 1))
    for x in (0, dsa_key().q):
        refused(DsaPrivateKey, x, P, dsa_key().q, G)


@pytest.mark.parametrize("key", PLAIN_RSA_KEYS)
def test_key_without_primes_signs_like_the_complete_key(key: RsaPrivateKeyWithoutPrimes) -> None:
    assert key.sign("SHA-256", b"data") == PrivateKey.from_pkcs8(key.to_pkcs8()).sign("SHA-256", b"data")


# Untrusted input


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_not_a_key(data: bytes) -> None:
    for take in (PublicKey.from_bytes, PrivateKey.from_bytes, PublicKey.from_x509, PrivateKey.from_pkcs8):
        with pytest.raises(InvalidData):
            take(data)


@given(public_keys | private_keys.map(lambda key: key.public), st.data())
def test_damaged_key_is_another_key_or_refused(key: PublicKey, data: st.DataObject) -> None:
    raw = bytearray(key.to_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    with suppress(InvalidData):
        PublicKey.from_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


KEY_MEMBERS = ["kty", "n", "e", "d", "p", "q", "x", "y"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kty", "n", "e", "d", "p", "q", "x", "y"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_arbitrary_json_is_not_a_key(value: object) -> None:
    for take in (PublicKey.from_json, PrivateKey.from_json):
        refused(take, value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"kty":"RSA"}', '{"kty":"RSA","n":"%","e":"AQAB"}', '{"kty":"EC","x":"AA"}']
)
def test_text_that_is_not_a_key_is_refused(text: str) -> None:
    refused(PublicKey.from_text, text)
    refused(PrivateKey.from_text, text)


def test_other_key_types_are_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert "neither" in refused(PrivateKey.from_pkcs8, private)
    assert "RSA or DSA" in refused(PublicKey.from_x509, public)


def test_bytes_that_start_like_an_rsa_key_are_refused() -> None:
    """Truncated, and a key of another type that starts with the bytes of an RSA key."""
    data = RSA_KEY.public.to_x509()
    assert "RSA or DSA" in refused(PublicKey.from_x509, data[:-1])
    lucky = x25519.X25519PublicKey.from_public_bytes(bytes.fromhex("06092a864886f70d010101").ljust(32, b"\0"))
    spki = lucky.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert "RSA or DSA" in refused(PublicKey.from_x509, spki)


def test_certified_diffie_hellman_key_is_cheap_to_refuse() -> None:
    """The library would test whether its modulus is prime, which takes seconds."""
    head = bytes.fromhex("3082041e3082020f06092a864886f70d010301")
    started = time.thread_time()
    assert "RSA or DSA" in refused(PublicKey.from_x509, head + bytes(1000))
    assert time.thread_time() - started < 0.1


def test_creating_and_using_keys_gives_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        key = RsaPublicKey(65_537, rsa.generate_private_key(65_537, 1024).public_key().public_numbers().n)
        assert not key.verify("MD5", bytes(128), b"")


def test_public_keys_are_read_from_files_of_other_tools() -> None:
    key = rsa.generate_private_key(65_537, 1_024)
    public = key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    expected = RsaPublicKey(65_537, public.public_numbers().n)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ann")])
    builder = x509.CertificateBuilder(
        name, name, public, 1, datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    for data in (pem, b"# a comment\n" + pem, certificate, expected.to_bytes(), expected.to_text().encode()):
        assert PublicKey.from_file(data) == expected
    curve = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    jwk = RsaPrivateKey.from_pkcs8(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())).to_text()
    for data in (
        *(private, jwk.encode(), pem[:40], b"", b"{", b'{"kty":"EC"}', pem.replace(b"PUBLIC KEY", b"TOKEN")),
        curve.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        builder.sign(curve, hashes.SHA256()).public_bytes(Encoding.PEM)[:60] + b"-----END",
        pem.replace(b"PUBLIC KEY", b"CERTIFICATE"),
    ):
        with pytest.raises(InvalidData):
            PublicKey.from_file(data)
