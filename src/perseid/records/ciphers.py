"""Block ciphers with padding and PBKDF2, for key files and sessions.

Deployed software uses DES, triple DES and AES, in CBC mode or (old forms) ECB, with PKCS#7 padding. The `cryptography`
library no longer has DES; triple DES with the same key three times is equivalent.

All decryption errors have the same message: differences would reveal something about the plaintext.

PBKDF2 uses HMAC-SHA1, as deployed. Its parameters come from untrusted input and are checked before any work is done.
Deployed code passes PBKDF2 a string with one character per byte of the password, which is then encoded in UTF-8 (native
protocol §13.5, "password quirk"): see `latin1_to_utf8`.
"""

import hashlib
from enum import Enum
from typing import Final

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher as LibraryCipher
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from .errors import InvalidData, RecordMisuse

DECRYPTION_FAILED: Final = "decryption failed"
"""The message of all decryption errors."""

_DES_KEY = 8
_TDES_KEY = 24
_AES_KEYS = (16, 24, 32)


class BlockCipher(Enum):
    """A cipher and its block size in bytes."""

    DES = "DES", 8
    TDES = "3DES", 8
    AES = "AES", 16

    @property
    def block(self) -> int:
        """Size of a block and of the initialization vector, in bytes."""
        return self.value[1]

    def __str__(self) -> str:
        return self.value[0]


def encrypt_blocks(cipher: BlockCipher, key: bytes, iv: bytes | None, plaintext: bytes) -> bytes:
    """Pad and encrypt; without initialization vector in ECB mode."""
    if iv is not None and len(iv) != cipher.block:
        raise RecordMisuse(f"an initialization vector for {cipher} must have {cipher.block} bytes, not {len(iv)}")
    padder = PKCS7(cipher.block * 8).padder()
    padded = padder.update(plaintext) + padder.finalize()
    encryptor = _library_cipher(cipher, key, iv).encryptor()
    return encryptor.update(padded) + encryptor.finalize()


def decrypt_blocks(cipher: BlockCipher, key: bytes, iv: bytes | None, ciphertext: bytes) -> bytes:
    """Decrypt and remove the padding."""
    if not ciphertext or len(ciphertext) % cipher.block or (iv is not None and len(iv) != cipher.block):
        raise InvalidData(DECRYPTION_FAILED)
    decryptor = _library_cipher(cipher, key, iv).decryptor()
    padded = decryptor.update(ciphertext) + decryptor.finalize()
    unpadder = PKCS7(cipher.block * 8).unpadder()
    try:
        return unpadder.update(padded) + unpadder.finalize()
    except ValueError:
        raise InvalidData(DECRYPTION_FAILED) from None


def is_valid_key_length(cipher: BlockCipher, key: bytes) -> bool:
    """Whether the cipher supports the length of a key."""
    return (
        len(key) in {BlockCipher.DES: (_DES_KEY,), BlockCipher.TDES: (_TDES_KEY,), BlockCipher.AES: _AES_KEYS}[cipher]
    )


def _library_cipher(cipher: BlockCipher, key: bytes, iv: bytes | None) -> LibraryCipher[modes.ECB | modes.CBC]:
    if not is_valid_key_length(cipher, key):
        raise RecordMisuse(f"{cipher} does not support keys of {len(key)} bytes")
    mode = modes.ECB() if iv is None else modes.CBC(iv)  # noqa: S305 - required by the protocol before 2.4
    if cipher is BlockCipher.AES:
        return LibraryCipher(algorithms.AES(key), mode)
    return LibraryCipher(TripleDES(key * 3 if cipher is BlockCipher.DES else key), mode)


MAX_ITERATIONS: Final = 100_000
"""Maximum number of iterations: ten times what is deployed. With the longest derived key they cost 0.1 s."""

MAX_DERIVED_BITS: Final = 512
"""Maximum size of a derived key: every 160 bits cost all iterations again, and no cipher here needs more than 256."""

MIN_DERIVED_BITS: Final = 128
"""Minimum size of a derived key. The peer chooses it: a response computed with an eight-bit key could be guessed."""

DEFAULT_ITERATIONS: Final = 10_000
"""Iterations that deployed software uses, in challenge responses and key files."""


def derive_key(password: bytes, salt: bytes, iterations: int, bits: int, *, limit: int = MAX_ITERATIONS) -> bytes:
    """Derive a key with PBKDF2; parameters out of bounds, such as more iterations than `limit`, are rejected."""
    if not 1 <= iterations <= limit:
        raise InvalidData(f"the number of PBKDF2 iterations must be between 1 and {limit:,}, not {iterations:,}")
    if not MIN_DERIVED_BITS <= bits <= MAX_DERIVED_BITS or bits % 8:
        raise InvalidData(
            f"a derived key must have {MIN_DERIVED_BITS} to {MAX_DERIVED_BITS} bits, in whole bytes, not {bits}"
        )
    return hashlib.pbkdf2_hmac("sha1", password, salt, iterations, bits // 8)


def latin1_to_utf8(data: bytes) -> bytes:
    """Decode as Latin-1 and encode in UTF-8: `80` becomes `c2 80`, ASCII is unchanged."""
    return data.decode("latin-1").encode("utf-8")
