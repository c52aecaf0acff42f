"""The encryption of sessions: recorded bytes, round trips, and arbitrary bytes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.wire.codes import CURRENT_VERSION, LocalProtocolError, Version
from perseid.wire.sessions import Cipher, decrypt, encrypt
from tests.wire import section21, strategies
from tests.wire.key_material import refused

KEYS = {Cipher.DES: bytes(range(1, 9)), Cipher.TDES: bytes(range(1, 25)), Cipher.AES: bytes(range(1, 33))}
CIPHERS = st.sampled_from(sorted(KEYS))
OLD, NEW = Version(2, 3), Version(2, 4)


@pytest.mark.parametrize("number", section21.HELLO)
def test_cipher_vectors_of_the_specification_match(number: int) -> None:
    cipher = Cipher(number)
    old, new = (bytes.fromhex(data) for data in section21.HELLO[number])
    for version, data in ((OLD, old), (NEW, new), (CURRENT_VERSION, new), (Version(5, 9), old)):
        assert decrypt(cipher, KEYS[cipher], data, version) == b"hello"
        assert encrypt(cipher, KEYS[cipher], b"hello", version, lambda count: new[:count]) == data


@given(CIPHERS, st.binary(max_size=100), strategies.VERSIONS, st.binary(min_size=16, max_size=16))
def test_messages_round_trip(cipher: Cipher, plaintext: bytes, version: Version, iv: bytes) -> None:
    data = encrypt(cipher, KEYS[cipher], plaintext, version, lambda count: iv[:count])
    assert decrypt(cipher, KEYS[cipher], data, version) == plaintext
    block = 16 if cipher == Cipher.AES else 8
    assert data.startswith(iv[:block]) or not version.at_least(4)
    assert len(data) == (len(plaintext) // block + 1 + version.at_least(4)) * block


@given(CIPHERS, st.binary(max_size=100), strategies.VERSIONS)
def test_arbitrary_bytes_are_decrypted_or_refused(cipher: Cipher, data: bytes, version: Version) -> None:
    with suppress(InvalidData):
        assert len(decrypt(cipher, KEYS[cipher], data, version)) < len(data)


@pytest.mark.parametrize("data", [b"", bytes(15), bytes(16), bytes(17), bytes(31), bytes(32)])
def test_ciphertext_errors_give_no_reason(data: bytes) -> None:
    assert refused(decrypt, Cipher.AES, KEYS[Cipher.AES], data, CURRENT_VERSION) == "decryption failed"


def test_aes_uses_the_first_sixteen_bytes_of_the_key() -> None:
    data = encrypt(Cipher.AES, bytes(range(16)), b"text", CURRENT_VERSION, bytes)
    assert decrypt(Cipher.AES, bytes(range(32)), data, CURRENT_VERSION) == b"text"


def test_unsupported_cipher_or_key_length_raises_local_error() -> None:
    for cipher, key in ((Cipher(4), bytes(32)), (Cipher.AES, bytes(15)), (Cipher.DES, b"")):
        with pytest.raises(LocalProtocolError):
            encrypt(cipher, key, b"text", CURRENT_VERSION, bytes)
        with pytest.raises(LocalProtocolError):
            decrypt(cipher, key, bytes(32), CURRENT_VERSION)
