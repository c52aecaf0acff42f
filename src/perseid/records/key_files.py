"""Private key files (privkey.bin, admpriv.bin …): a private key, plain or protected by a passphrase.

A file begins with an i32, the scheme (native protocol, 9.7.3):

    1  none    the plain form
    0  (old)   DES-ECB, key = first 8 bytes of MD5(passphrase)
    2  (old)   8 bytes IV, then DES-CBC; key as before
    3          bytes salt   i32 iterations   i32 key bits   bytes IV   bytes ciphertext (3DES-CBC)
    4          the same with AES-CBC; what is written when a passphrase is given

Schemes 3 and 4 derive the key with PBKDF2 "over the passphrase bytes (UTF-8); only ASCII passphrases have been
checked, and the widening quirk may apply to others (a reader should try both)": we do, and write the bytes as they
are. "Read iterations, key length and IV length from the file, do not assume them", within the bounds of `pbkdf2`.

"Scheme numbers stay below 10 while the first word of a public-key file is a string length above 10, which tells the
two kinds of file apart."
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
"""Bytes of the longest key file; the longest key takes about 5,000."""

_SALT_SIZE = 16
_FIRST_PUBLIC_WORD = 10  # no scheme is as high, no name of a kind of public key as short


class ProtectionScheme(OpenEnum):
    """How a key file is protected."""

    DES_ECB = 0
    """Hardly at all; for old readers only."""
    NONE = 1
    DES_CBC = 2
    """Hardly at all; for old readers only."""
    TDES = 3
    AES = 4


_CIPHERS = {ProtectionScheme.TDES: (BlockCipher.TDES, 192), ProtectionScheme.AES: (BlockCipher.AES, 128)}
"""The ciphers of the schemes with PBKDF2, and the bits of the keys that are written."""


def is_private_key_file(data: bytes) -> bool:
    """Whether a file holds a private key; if not, it should be a public one."""
    return Reader(data).i32() < _FIRST_PUBLIC_WORD


def needs_passphrase(data: bytes) -> bool:
    """Whether a private key file cannot be read without a passphrase."""
    return _read_scheme(Reader(data)) != ProtectionScheme.NONE


def read_key_file(data: bytes, passphrase: bytes | None) -> PrivateKey:
    """Take the key from a file. A passphrase that is not needed does no harm."""
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
    """The file of a key. Without a passphrase it is not protected, whichever scheme is named."""
    return protect(key.to_bytes(), passphrase, random, scheme)


def protect(
    plain: bytes,
    passphrase: bytes | None,
    random: Callable[[int], bytes],
    scheme: ProtectionScheme = ProtectionScheme.AES,
) -> bytes:
    """Put the plain form of a key into a file."""
    if passphrase is None:
        return Writer().i32(ProtectionScheme.NONE).raw(plain).getvalue()
    writer = Writer().i32(scheme)
    if scheme == ProtectionScheme.DES_ECB:
        return writer.raw(encrypt_blocks(BlockCipher.DES, _des_key(passphrase), None, plain)).getvalue()
    if scheme == ProtectionScheme.DES_CBC:
        iv = random(BlockCipher.DES.block)
        return writer.raw(iv).raw(encrypt_blocks(BlockCipher.DES, _des_key(passphrase), iv, plain)).getvalue()
    if scheme not in _CIPHERS:
        raise RecordMisuse(f"scheme {scheme.value} does not protect a key with a passphrase")
    cipher, bits = _CIPHERS[scheme]
    salt, iv = random(_SALT_SIZE), random(cipher.block)
    ciphertext = encrypt_blocks(cipher, derive_key(passphrase, salt, DEFAULT_ITERATIONS, bits), iv, plain)
    return writer.bytes_(salt).i32(DEFAULT_ITERATIONS).i32(bits).bytes_(iv).bytes_(ciphertext).getvalue()


def unprotect(data: bytes, passphrase: bytes | None) -> bytes:
    """Take the plain form of a key from a file; a wrong passphrase may go unnoticed here and give other bytes."""
    reader = Reader(data)
    scheme = _read_scheme(reader)
    if scheme == ProtectionScheme.NONE:
        return reader.rest()
    if passphrase is None:
        raise InvalidData("the key file is protected by a passphrase, and none was given")
    if scheme in _CIPHERS:
        cipher, _ = _CIPHERS[scheme]
        salt, iterations, bits = reader.bytes_(), reader.i32(), reader.i32()
        iv, ciphertext = reader.bytes_(), reader.bytes_()
        reader.finish()
        key = derive_key(passphrase, salt, iterations, bits)
        if not is_valid_key_length(cipher, key):
            raise InvalidData(f"{bits} bits of key do not fit {cipher}")
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
        raise InvalidData(f"a key file has at most {MAX_FILE_SIZE:,} bytes")
    scheme = ProtectionScheme(reader.i32())
    if scheme >= _FIRST_PUBLIC_WORD:
        raise InvalidData("this is not the file of a private key; it may be that of a public one", 0)
    if scheme not in ProtectionScheme.__members__.values():
        raise InvalidData(f"key files of scheme {scheme.value} are not known", 0)
    return scheme


def _des_key(passphrase: bytes) -> bytes:
    return hashlib.md5(passphrase, usedforsecurity=False).digest()[:8]


_WRONG_PASSPHRASE = "the passphrase is wrong, or the file is damaged"  # noqa: S105 - a sentence
