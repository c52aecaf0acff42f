"""Block ciphers with padding, for key files and sessions: the one place that knows DES.

Deployed software uses DES, triple DES and AES, in CBC mode or (old forms) ECB, always padded as PKCS#7 says. The
cryptographic library has no DES any more; triple DES with the same key three times is the same thing.

A ciphertext that does not come out right is refused in the same words whatever was wrong with it: the difference
would tell a stranger something about the plaintext.

Keys from passwords: PBKDF2 with HMAC-SHA1, as deployed, within bounds.

Whoever sends or writes the parameters makes us do the work, so their numbers are judged before anything is computed.
The deployed code hands PBKDF2 a character string, one character for each byte of the password, and that is encoded
in UTF-8 before it is used (native protocol, 13.5, "password quirk"): see `widened`.
"""

import hashlib
from enum import Enum
from typing import Final

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher as LibraryCipher
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from .errors import InvalidData, RecordMisuse

DECRYPTION_FAILED: Final = "the bytes cannot be decrypted"
"""All that is said about a wrong ciphertext."""

_DES_KEY = 8
_TDES_KEY = 24
_AES_KEYS = (16, 24, 32)


class BlockCipher(Enum):
    """A cipher and the bytes of its blocks."""

    DES = "DES", 8
    TDES = "3DES", 8
    AES = "AES", 16

    @property
    def block(self) -> int:
        """Bytes of a block, and of the initialisation vector."""
        return self.value[1]

    def __str__(self) -> str:
        return self.value[0]


def encrypt_blocks(cipher: BlockCipher, key: bytes, iv: bytes | None, plaintext: bytes) -> bytes:
    """Pad and encrypt; without initialisation vector in ECB mode."""
    if iv is not None and len(iv) != cipher.block:
        raise RecordMisuse(f"an initialisation vector for {cipher} has {cipher.block} bytes, not {len(iv)}")
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
    """Whether a key has a length that the cipher takes."""
    return (
        len(key) in {BlockCipher.DES: (_DES_KEY,), BlockCipher.TDES: (_TDES_KEY,), BlockCipher.AES: _AES_KEYS}[cipher]
    )


def _library_cipher(cipher: BlockCipher, key: bytes, iv: bytes | None) -> LibraryCipher[modes.ECB | modes.CBC]:
    if not is_valid_key_length(cipher, key):
        raise RecordMisuse(f"a key of {len(key)} bytes does not fit {cipher}")
    mode = modes.ECB() if iv is None else modes.CBC(iv)  # noqa: S305 - prescribed, for versions before 2.4
    if cipher is BlockCipher.AES:
        return LibraryCipher(algorithms.AES(key), mode)
    return LibraryCipher(TripleDES(key * 3 if cipher is BlockCipher.DES else key), mode)


MAX_ITERATIONS: Final = 100_000
"""The most iterations: ten times what is deployed. With the longest derived key they cost 0.1 s."""

MAX_DERIVED_BITS: Final = 512
"""The longest derived key: every 160 bits cost all iterations once more, and no cipher here takes more than 256."""

MIN_DERIVED_BITS: Final = 128
"""The shortest derived key. Its length is the peer's choice too: an answer made with a derived key of eight bits could
be guessed by somebody who does not know the password."""

DEFAULT_ITERATIONS: Final = 10_000
"""What deployed software writes, in answers and in key files."""


def derive_key(password: bytes, salt: bytes, iterations: int, bits: int, *, limit: int = MAX_ITERATIONS) -> bytes:
    """The derived key; parameters out of bounds are refused, more iterations than the `most` among them."""
    if not 1 <= iterations <= limit:
        raise InvalidData(f"{iterations} iterations of PBKDF2 are not between 1 and {limit:,}")
    if not MIN_DERIVED_BITS <= bits <= MAX_DERIVED_BITS or bits % 8:
        raise InvalidData(
            f"a derived key has {MIN_DERIVED_BITS} to {MAX_DERIVED_BITS} bits, in whole bytes; not {bits}"
        )
    return hashlib.pbkdf2_hmac("sha1", password, salt, iterations, bits // 8)


def latin1_to_utf8(data: bytes) -> bytes:
    """Every byte taken for a character and encoded in UTF-8: `80` becomes `c2 80`, ASCII stays what it is."""
    return data.decode("latin-1").encode("utf-8")
