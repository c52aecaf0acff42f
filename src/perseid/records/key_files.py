"""Private key files (privkey.bin, admpriv.bin …), with or without a passphrase.

A file begins with an i32, the scheme (native protocol §9.7.3):

    1  none    the plain form
    0  (old)   DES-ECB, key = first 8 bytes of MD5(passphrase)
    2  (old)   8 bytes IV, then DES-CBC; key as before
    3          bytes salt   i32 iterations   i32 key bits   bytes IV   bytes ciphertext (3DES-CBC)
    4          the same with AES-CBC; used for new files with a passphrase

Schemes 3 and 4 derive the key with PBKDF2 from the passphrase in UTF-8. Other software may encode a passphrase outside
ASCII twice (`latin1_to_utf8`), so reading tries both. Iterations, key length and IV length are read from the file,
within the limits of `derive_key`.

Scheme numbers are below 10; the first word of a public key file is a string length above 10, which distinguishes the
two kinds of file.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from .binary import Reader, Writer
from .ciphers import (
    DEFAULT_ITERATIONS,
    BlockCipher,
    decrypt_blocks,
    derive_key,
    encrypt_blocks,
    is_valid_key_length,
    latin1_to_utf8,
)
from .encoding import OpenEnum
from .errors import InvalidData, RecordMisuse
from .private_keys import PrivateKey

MAX_FILE_SIZE: Final = 65_536
"""Maximum size of a key file in bytes; the longest key takes about 5,000."""

_SALT_SIZE = 16
_FIRST_PUBLIC_WORD = 10  # schemes are lower, names of public key kinds are longer


class ProtectionScheme(OpenEnum):
    """Protection of a key file."""

    DES_ECB = 0
    """Weak; for old readers only."""
    NONE = 1
    DES_CBC = 2
    """Weak; for old readers only."""
    TDES = 3
    AES = 4


_CIPHERS = {ProtectionScheme.TDES: (BlockCipher.TDES, 192), ProtectionScheme.AES: (BlockCipher.AES, 128)}
"""Ciphers of the schemes with PBKDF2, and the key sizes in bits of new files."""


def needs_passphrase(data: bytes) -> bool:
    """Whether a private key file is protected by a passphrase."""
    return _read_scheme(Reader(data)) != ProtectionScheme.NONE


def read_key_file(data: bytes, passphrase: bytes | None) -> PrivateKey:
    """Read a key from a file. A passphrase is ignored if the file is not protected."""
    attempts = [passphrase]
    if passphrase is not None and not passphrase.isascii():
        attempts.append(latin1_to_utf8(passphrase))
    for attempt in attempts[:-1]:
        try:
            return PrivateKey.from_bytes(unprotect(data, attempt))
        except InvalidData:
            continue
    plain = unprotect(data, attempts[-1])
    try:
        return PrivateKey.from_bytes(plain)
    except InvalidData:
        if needs_passphrase(data):
            raise InvalidData(_WRONG_PASSPHRASE) from None
        raise


def write_key_file(
    key: PrivateKey,
    passphrase: bytes | None,
    random: Callable[[int], bytes],
    scheme: ProtectionScheme = ProtectionScheme.AES,
) -> bytes:
    """Encode a key as a file. Without a passphrase it is not protected, whatever the scheme."""
    return protect(key.to_bytes(), passphrase, random, scheme)


def protect(
    plain: bytes,
    passphrase: bytes | None,
    random: Callable[[int], bytes],
    scheme: ProtectionScheme = ProtectionScheme.AES,
) -> bytes:
    """Encode the plain form of a key as a file."""
    if passphrase is None:
        return Writer().i32(ProtectionScheme.NONE).raw(plain).getvalue()
    writer = Writer().i32(scheme)
    if scheme == ProtectionScheme.DES_ECB:
        return writer.raw(encrypt_blocks(BlockCipher.DES, _des_key(passphrase), None, plain)).getvalue()
    if scheme == ProtectionScheme.DES_CBC:
        iv = random(BlockCipher.DES.block)
        return writer.raw(iv).raw(encrypt_blocks(BlockCipher.DES, _des_key(passphrase), iv, plain)).getvalue()
    if scheme not in _CIPHERS:
        raise RecordMisuse(f"scheme {scheme.value} does not support a passphrase")
    cipher, bits = _CIPHERS[scheme]
    salt, iv = random(_SALT_SIZE), random(cipher.block)
    ciphertext = encrypt_blocks(cipher, derive_key(passphrase, salt, DEFAULT_ITERATIONS, bits), iv, plain)
    return writer.bytes_(salt).i32(DEFAULT_ITERATIONS).i32(bits).bytes_(iv).bytes_(ciphertext).getvalue()


def unprotect(data: bytes, passphrase: bytes | None) -> bytes:
    """Decode the plain form of a key from a file; a wrong passphrase may go unnoticed and give wrong bytes."""
    reader = Reader(data)
    scheme = _read_scheme(reader)
    if scheme == ProtectionScheme.NONE:
        return reader.rest()
    if passphrase is None:
        raise InvalidData("the key file requires a passphrase")
    if scheme in _CIPHERS:
        cipher, _ = _CIPHERS[scheme]
        salt, iterations, bits = reader.bytes_(), reader.i32(), reader.i32()
        iv, ciphertext = reader.bytes_(), reader.bytes_()
        reader.finish()
        key = derive_key(passphrase, salt, iterations, bits)
        if not is_valid_key_length(cipher, key):
            raise InvalidData(f"{cipher} does not support keys of {bits} bits")
    else:
        cipher, key = BlockCipher.DES, _des_key(passphrase)
        iv = reader.raw(cipher.block) if scheme == ProtectionScheme.DES_CBC else b""
        ciphertext = reader.rest()
    try:
        return decrypt_blocks(cipher, key, None if scheme == ProtectionScheme.DES_ECB else iv, ciphertext)
    except InvalidData:
        raise InvalidData(_WRONG_PASSPHRASE) from None


def _read_scheme(reader: Reader) -> ProtectionScheme:
    if reader.remaining > MAX_FILE_SIZE:
        raise InvalidData(f"the key file has more than {MAX_FILE_SIZE:,} bytes")
    scheme = ProtectionScheme(reader.i32())
    if scheme >= _FIRST_PUBLIC_WORD:
        raise InvalidData("this is not a private key file; it may be a public key file", 0)
    if scheme not in ProtectionScheme.__members__.values():
        raise InvalidData(f"unknown key file scheme {scheme.value}", 0)
    return scheme


def _des_key(passphrase: bytes) -> bytes:
    return hashlib.md5(passphrase, usedforsecurity=False).digest()[:8]


_WRONG_PASSPHRASE = "the passphrase is wrong, or the file is damaged"  # noqa: S105 - a sentence
