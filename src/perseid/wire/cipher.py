"""The encryption of sessions: whole messages, envelope excluded (native protocol, 15.5).

             from 2.4 on                     before
    AES      AES-128-CBC, IV in front        AES-128-ECB
    DES      DES-CBC, IV in front            DES-ECB
    3DES     3DES-CBC, IV in front           3DES-ECB

Padding is PKCS#7 throughout, the IV is random, and the version is that of the session. "MACs use all 32 octets; AES
uses the first 16": the session's key may be longer than the cipher's.

Encryption protects against reading only: the protocol checks the MAC inside after decryption. An undecryptable
message is therefore refused in one sentence whatever is wrong with it.
"""

from collections.abc import Callable

from perseid.records.ciphers import UNDECIPHERABLE, BlockCipher, decrypt_blocks, encrypt_blocks
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData

from .codes import Version
from .errors import LocalProtocolError


class Cipher(OpenEnum):
    """The ciphers of sessions; the server decides which."""

    DES = 1
    TDES = 2
    AES = 3


_CIPHERS = {
    Cipher.DES: (BlockCipher.DES, 8),
    Cipher.TDES: (BlockCipher.TDES, 24),
    Cipher.AES: (BlockCipher.AES, 16),
}
"""Each cipher and the octets of its key, which are the first of the session's."""


def encrypt(cipher: Cipher, key: bytes, plaintext: bytes, version: Version, random: Callable[[int], bytes]) -> bytes:
    """Encrypt a message under a session's key; from version 2.4 on with a fresh initialisation vector in front."""
    block, used = _prepare(cipher, key)
    if not version.at_least(4):
        return encrypt_blocks(block, used, None, plaintext)
    iv = random(block.block)
    return iv + encrypt_blocks(block, used, iv, plaintext)


def decrypt(cipher: Cipher, key: bytes, octets: bytes, version: Version) -> bytes:
    """Decrypt a message under a session's key."""
    block, used = _prepare(cipher, key)
    if not version.at_least(4):
        return decrypt_blocks(block, used, None, octets)
    if len(octets) < block.block:
        raise InvalidData(UNDECIPHERABLE)
    return decrypt_blocks(block, used, octets[: block.block], octets[block.block :])


def _prepare(cipher: Cipher, key: bytes) -> tuple[BlockCipher, bytes]:
    if cipher not in _CIPHERS:
        raise LocalProtocolError(f"sessions with cipher {cipher.value} are not known")
    block, length = _CIPHERS[cipher]
    if len(key) < length:
        raise LocalProtocolError(f"a session's key for {block} has at least {length} octets, not {len(key)}")
    return block, key[:length]
