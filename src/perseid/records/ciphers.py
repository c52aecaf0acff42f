"""Block ciphers with padding, for key files and sessions: the one place that knows DES.

Deployed software uses DES, triple DES and AES, in CBC mode or (old forms) ECB, always padded as PKCS#7 says. The
cryptographic library has no DES any more; triple DES with the same key three times is the same thing.

A ciphertext that does not come out right is refused in the same words whatever was wrong with it: the difference
would tell a stranger something about the plaintext.
"""

from enum import Enum
from typing import Final

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher as LibraryCipher
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from .errors import InvalidData, RecordMisuse

UNDECIPHERABLE: Final = "the octets cannot be decrypted"
"""All that is said about a wrong ciphertext."""

_DES_KEY = 8
_TDES_KEY = 24
_AES_KEYS = (16, 24, 32)


class BlockCipher(Enum):
    """A cipher and the octets of its blocks."""

    DES = "DES", 8
    TDES = "3DES", 8
    AES = "AES", 16

    @property
    def block(self) -> int:
        """Octets of a block, and of the initialisation vector."""
        return self.value[1]

    def __str__(self) -> str:
        return self.value[0]


def encrypt_blocks(cipher: BlockCipher, key: bytes, iv: bytes | None, plaintext: bytes) -> bytes:
    """Pad and encrypt; without initialisation vector in ECB mode."""
    if iv is not None and len(iv) != cipher.block:
        raise RecordMisuse(f"an initialisation vector for {cipher} has {cipher.block} octets, not {len(iv)}")
    padder = PKCS7(cipher.block * 8).padder()
    padded = padder.update(plaintext) + padder.finalize()
    encryptor = _library_cipher(cipher, key, iv).encryptor()
    return encryptor.update(padded) + encryptor.finalize()


def decrypt_blocks(cipher: BlockCipher, key: bytes, iv: bytes | None, ciphertext: bytes) -> bytes:
    """Decrypt and remove the padding."""
    if not ciphertext or len(ciphertext) % cipher.block or (iv is not None and len(iv) != cipher.block):
        raise InvalidData(UNDECIPHERABLE)
    decryptor = _library_cipher(cipher, key, iv).decryptor()
    padded = decryptor.update(ciphertext) + decryptor.finalize()
    unpadder = PKCS7(cipher.block * 8).unpadder()
    try:
        return unpadder.update(padded) + unpadder.finalize()
    except ValueError:
        raise InvalidData(UNDECIPHERABLE) from None


def fits(cipher: BlockCipher, key: bytes) -> bool:
    """Whether a key has a length that the cipher takes."""
    return (
        len(key) in {BlockCipher.DES: (_DES_KEY,), BlockCipher.TDES: (_TDES_KEY,), BlockCipher.AES: _AES_KEYS}[cipher]
    )


def _library_cipher(cipher: BlockCipher, key: bytes, iv: bytes | None) -> LibraryCipher[modes.ECB | modes.CBC]:
    if not fits(cipher, key):
        raise RecordMisuse(f"a key of {len(key)} octets does not fit {cipher}")
    mode = modes.ECB() if iv is None else modes.CBC(iv)  # noqa: S305 - prescribed, for versions before 2.4
    if cipher is BlockCipher.AES:
        return LibraryCipher(algorithms.AES(key), mode)
    return LibraryCipher(TripleDES(key * 3 if cipher is BlockCipher.DES else key), mode)
