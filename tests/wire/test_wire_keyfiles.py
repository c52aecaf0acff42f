"""Private key files, secret keys, PBKDF2 and block ciphers."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records.binary import Writer
from perseid.records.ciphers import (
    DEFAULT_ITERATIONS,
    MAX_DERIVED_BITS,
    MAX_ITERATIONS,
    MIN_DERIVED_BITS,
    BlockCipher,
    decrypt_blocks,
    derive_key,
    encrypt_blocks,
    latin1_to_utf8,
)
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.keys import SecretKey
from perseid.records.private_keys import (
    MAX_FILE_SIZE,
    PrivateKey,
    ProtectionScheme,
    needs_passphrase,
    protect,
    read_key_file,
    read_private_key,
    unprotect,
    write_key_file,
)
from tests.wire import section21
from tests.wire.key_material import DSA_KEY, KEY_FILES, SECRET, private_keys, refused
from tests.wire.recorded import key_file

PASSPHRASE = b"correct horse"
PROTECTING = (ProtectionScheme.DES_ECB, ProtectionScheme.DES_CBC, ProtectionScheme.TDES, ProtectionScheme.AES)


def sequential_bytes(count: int) -> bytes:
    """Reproducible bytes instead of random ones."""
    return bytes(range(count))


def strong_file(
    scheme: ProtectionScheme, iterations: int, bits: int, passphrase: bytes = PASSPHRASE, iv: int | None = None
) -> bytes:
    """A key file of scheme 3 or 4 with custom parameters."""
    cipher = {ProtectionScheme.TDES: BlockCipher.TDES, ProtectionScheme.AES: BlockCipher.AES}[scheme]
    key = hashlib.pbkdf2_hmac("sha1", passphrase, b"salt", iterations, max(bits // 8, 1))
    fitting = key if len(key) in ((24,) if scheme == ProtectionScheme.TDES else (16, 24, 32)) else bytes(24)
    ciphertext = encrypt_blocks(cipher, fitting, sequential_bytes(cipher.block), DSA_KEY.to_bytes())
    writer = Writer().i32(scheme).bytes_(b"salt").i32(iterations).i32(bits)
    return writer.bytes_(sequential_bytes(cipher.block if iv is None else iv)).bytes_(ciphertext).getvalue()


# Key files


@pytest.mark.parametrize("scheme", section21.KEY_FILES)
def test_key_file_vectors_of_the_specification_match(scheme: int) -> None:
    file, plain = bytes.fromhex(section21.KEY_FILES[scheme]), bytes.fromhex("0102030405")
    assert unprotect(file, b"pass") == plain
    drawn = {0: [], 1: [], 2: [file[4:12]], 3: [file[8:24], file[36:44]], 4: [file[8:24], file[36:52]]}[scheme]
    draw = iter(drawn)
    assert protect(plain, None if scheme == 1 else b"pass", lambda _: next(draw), ProtectionScheme(scheme)) == file


@given(private_keys, st.sampled_from(PROTECTING), st.binary(max_size=30))
@settings(max_examples=20, deadline=None)
def test_key_files_round_trip(key: PrivateKey, scheme: ProtectionScheme, passphrase: bytes) -> None:
    file = write_key_file(key, passphrase, sequential_bytes, scheme)
    assert needs_passphrase(file)
    assert read_key_file(file, passphrase) == key
    assert "passphrase" in refused(read_key_file, file, passphrase + b"!")
    assert "passphrase" in refused(read_key_file, file, None)


def test_key_file_without_a_passphrase_is_unencrypted() -> None:
    file = write_key_file(DSA_KEY, None, sequential_bytes)
    assert not needs_passphrase(file)
    assert file == write_key_file(DSA_KEY, None, sequential_bytes, ProtectionScheme.NONE)
    assert read_key_file(file, None) == read_key_file(file, PASSPHRASE) == DSA_KEY


def test_strong_schemes_are_written_like_deployed_software() -> None:
    for scheme, bits, iv in ((ProtectionScheme.TDES, 192, 8), (ProtectionScheme.AES, 128, 16)):
        file = write_key_file(DSA_KEY, PASSPHRASE, sequential_bytes, scheme)
        head = (
            Writer()
            .i32(scheme)
            .bytes_(sequential_bytes(16))
            .i32(DEFAULT_ITERATIONS)
            .i32(bits)
            .bytes_(sequential_bytes(iv))
            .getvalue()
        )
        assert file.startswith(head)


def test_unencrypted_scheme_refuses_a_passphrase() -> None:
    for scheme in (ProtectionScheme.NONE, ProtectionScheme(5)):
        with pytest.raises(RecordMisuse):
            write_key_file(DSA_KEY, PASSPHRASE, sequential_bytes, scheme)


@pytest.mark.parametrize("passphrase", ["grüße".encode(), b"\x80\xff", "日本".encode()])
@pytest.mark.parametrize("scheme", [ProtectionScheme.TDES, ProtectionScheme.AES])
def test_non_ascii_passphrase_is_tried_in_both_encodings(passphrase: bytes, scheme: ProtectionScheme) -> None:
    for used in (passphrase, latin1_to_utf8(passphrase)):
        file = write_key_file(DSA_KEY, used, sequential_bytes, scheme)
        assert read_key_file(file, passphrase) == DSA_KEY
    assert "passphrase" in refused(
        read_key_file, write_key_file(DSA_KEY, b"other", sequential_bytes, scheme), passphrase
    )


@pytest.mark.parametrize("bits", [128, 192, 256])
def test_all_aes_key_lengths_are_read(bits: int) -> None:
    assert read_key_file(strong_file(ProtectionScheme.AES, 2, bits), PASSPHRASE) == DSA_KEY


def test_key_file_parameters_are_limited() -> None:
    assert read_key_file(strong_file(ProtectionScheme.AES, MAX_ITERATIONS, 128), PASSPHRASE) == DSA_KEY
    assert read_key_file(strong_file(ProtectionScheme.AES, 1, 128), PASSPHRASE) == DSA_KEY
    for iterations in (MAX_ITERATIONS + 1, 2**31 - 1):
        file = strong_file(ProtectionScheme.AES, 1, 128).replace(
            b"\0\0\0\1\0\0\0\x80", iterations.to_bytes(4, "big") + b"\0\0\0\x80"
        )
        assert "iterations" in refused(read_key_file, file, PASSPHRASE)
    for bits in (0, 8, MIN_DERIVED_BITS - 8, 129, MAX_DERIVED_BITS + 8):
        assert "bits" in refused(read_key_file, strong_file(ProtectionScheme.AES, 1, bits), PASSPHRASE)
    # These keys can be derived, but no cipher of the scheme accepts them.
    assert "does not support keys" in refused(
        read_key_file, strong_file(ProtectionScheme.AES, 1, MAX_DERIVED_BITS), PASSPHRASE
    )
    assert "does not support keys" in refused(read_key_file, strong_file(ProtectionScheme.TDES, 1, 128), PASSPHRASE)
    assert "passphrase" in refused(read_key_file, strong_file(ProtectionScheme.AES, 1, 128, iv=8), PASSPHRASE)


def test_decrypted_file_without_a_key_means_wrong_passphrase() -> None:
    for passphrase in (PASSPHRASE, b"p\xe4ss"):
        assert "passphrase" in refused(read_key_file, protect(b"no key", passphrase, sequential_bytes), passphrase)
    assert "passphrase" not in refused(read_key_file, protect(b"no key", None, sequential_bytes), PASSPHRASE)


def test_files_without_a_private_key_are_refused() -> None:
    for public in KEY_FILES.values():
        assert "public" in refused(read_key_file, key_file(public), None)
    for scheme in (5, 9, -1):
        file = scheme.to_bytes(4, "big", signed=True)
        assert "unknown key file scheme" in refused(read_key_file, file, None)


def test_private_keys_are_read_from_files_of_other_tools() -> None:
    library = load_der_private_key(DSA_KEY.to_pkcs8(), None)
    plain, traditional = (
        library.private_bytes(Encoding.PEM, form, NoEncryption())
        for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL)
    )
    certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    for data in (plain, traditional, certificate + plain, key_file("dsapriv.bin"), DSA_KEY.to_text().encode()):
        assert read_private_key(data) == DSA_KEY
    protected = library.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"right"))
    assert read_private_key(protected, b"right") == DSA_KEY
    curve = ec.generate_private_key(ec.SECP256R1())
    for data, passphrase, message in (
        (protected, None, "requires a passphrase"),
        (protected, b"wrong", "the passphrase is wrong"),
        (curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), None, "neither RSA nor DSA"),
        (plain.replace(b"MII", b"AAA"), None, "not a private key in PEM format"),
        (b'{"kty":"EC"}', None, "must be RSA or DSA"),
    ):
        with pytest.raises(InvalidData, match=message):
            read_private_key(data, passphrase)


def test_key_file_length_is_limited() -> None:
    longest = b"\0\0\0\1" + bytes(MAX_FILE_SIZE - 4)
    assert unprotect(longest, None) == bytes(MAX_FILE_SIZE - 4)
    assert "bytes" in refused(unprotect, longest + b"\0", None)


@given(st.binary(max_size=100), st.none() | st.binary(max_size=10))
def test_arbitrary_bytes_are_not_a_key_file(data: bytes, passphrase: bytes | None) -> None:
    for front in (b"", b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\3", b"\0\0\0\4"):
        with pytest.raises(InvalidData):
            read_key_file(front + data, passphrase)


# PBKDF2


def test_key_derivation_parameters_are_limited() -> None:
    assert len(derive_key(b"", b"", 1, MIN_DERIVED_BITS)) == MIN_DERIVED_BITS // 8
    assert len(derive_key(b"", b"", MAX_ITERATIONS, MAX_DERIVED_BITS)) == MAX_DERIVED_BITS // 8
    for iterations in (0, -1, MAX_ITERATIONS + 1):
        assert "iterations" in refused(derive_key, b"", b"", iterations, MIN_DERIVED_BITS)
    for bits in (0, -8, MIN_DERIVED_BITS - 8, MIN_DERIVED_BITS + 1, MAX_DERIVED_BITS + 8):
        assert "bits" in refused(derive_key, b"", b"", 1, bits)


def test_latin1_is_converted_to_utf8() -> None:
    assert latin1_to_utf8(bytes.fromhex("80ff6100")) == bytes.fromhex("c280c3bf6100")
    assert latin1_to_utf8(b"ascii") == b"ascii"


# Block ciphers


@given(st.sampled_from(BlockCipher), st.binary(max_size=70), st.booleans())
def test_blocks_round_trip(cipher: BlockCipher, plaintext: bytes, chained: bool) -> None:
    key = sequential_bytes({BlockCipher.DES: 8, BlockCipher.TDES: 24, BlockCipher.AES: 16}[cipher])
    iv = sequential_bytes(cipher.block) if chained else None
    ciphertext = encrypt_blocks(cipher, key, iv, plaintext)
    assert len(ciphertext) % cipher.block == 0
    assert len(ciphertext) > len(plaintext)
    assert decrypt_blocks(cipher, key, iv, ciphertext) == plaintext


def test_invalid_block_cipher_arguments_raise_misuse() -> None:
    with pytest.raises(RecordMisuse):
        encrypt_blocks(BlockCipher.AES, bytes(15), None, b"")
    with pytest.raises(RecordMisuse):
        encrypt_blocks(BlockCipher.AES, bytes(16), bytes(8), b"")


def test_every_invalid_ciphertext_gets_the_same_error() -> None:
    good = encrypt_blocks(BlockCipher.AES, bytes(16), bytes(16), b"text")
    wrong = [(bytes(16), b""), (bytes(16), good[:-1]), (bytes(8), good), (bytes(16), bytes(16))]
    assert len({refused(decrypt_blocks, BlockCipher.AES, bytes(16), iv, data) for iv, data in wrong}) == 1


# Secret keys


def test_recorded_secret_vector_round_trips() -> None:
    key = SecretKey.from_bytes(SECRET)
    assert key.to_bytes() == SECRET
    assert key.to_text().encode() == SECRET


def test_hashed_secret_vector_of_the_specification_matches() -> None:
    assert SecretKey(b"secret").to_sha1().to_bytes().hex() == section21.HASHED_SECRET


@given(st.binary(max_size=40))
def test_secrets_round_trip(secret: bytes) -> None:
    key = SecretKey(secret)
    assert SecretKey.from_bytes(key.to_bytes()) == key
    assert SecretKey.from_json(key.to_json()) == key


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_passwords_round_trip(password: str) -> None:
    assert SecretKey.from_text(password).to_text() == password


def test_secrets_that_are_not_text_are_refused() -> None:
    with pytest.raises(RecordMisuse):
        SecretKey(b"\xff").to_text()
    refused(SecretKey.from_text, "\ud800")
    refused(SecretKey.from_json, 5)
