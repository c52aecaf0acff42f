"""Private keys, RSA (with and without its primes) and DSA, and the files that contain them.

The plain form (native protocol §9.7.2): a name, then numbers as in public keys, without flags or trailing bytes:

    DSA              str DSA_PRIV_KEY     bytes x   p   q   g
    RSA (normal)     str RSA_PRIVCRT_KEY  bytes n   e   d   p   q   d mod (p-1)   d mod (q-1)   1/q mod p
    RSA (no primes)  str RSA_PRIV_KEY     bytes n   d

The JSON form (§9.7.4) is that of the public key with `d` and possibly `p`, `q`, `dp`, `dq`, `qi` (RSA), or with `x`
instead of `y` (DSA). The constructor checks that the numbers are consistent. `repr()` shows only the kind and size.

A key file (privkey.bin, admpriv.bin …) begins with an i32, the scheme (§9.7.3):

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
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Final, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
)

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
from .encoding import OpenEnum, parse_json, require_object
from .errors import InvalidData, RecordMisuse
from .keys import (
    MAX_KIND_LENGTH,
    SIGNATURE_HASHES,
    DsaPublicKey,
    Key,
    PublicKey,
    RsaPublicKey,
    check_dsa_group,
    key_type,
    numbers_from_json,
    read_numbers,
    write_numbers,
)

_PEM: Final = re.compile(rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.+?-----END [A-Z ]{0,30}PRIVATE KEY-----", re.DOTALL)

COMMON_EXPONENTS: Final = (65_537, 3, 17, 5, 7, 257)
"""Public exponents to try for an RSA key without primes, whose plain form omits the exponent."""


class PrivateKey(Key):
    """A private key: `RsaPrivateKey`, `RsaPrivateKeyWithoutPrimes` or `DsaPrivateKey`."""

    __slots__ = ()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Decode the plain form; a subclass accepts only its own kind."""
        reader = Reader(raw)
        key_class = _BY_KIND.get(reader.text(MAX_KIND_LENGTH))
        if key_class is None:
            # The name is not quoted: after decryption with a wrong passphrase it can be anything.
            raise InvalidData("unknown kind of private key", 4)
        numbers = read_numbers(reader, key_class.WIRE_FIELDS)
        reader.finish()
        return cls._create(key_class, numbers)

    def to_bytes(self) -> bytes:
        """Encode the plain form."""
        writer = Writer().text(self.KIND)
        write_numbers(writer, [getattr(self, name) for name in self.WIRE_FIELDS])
        return writer.getvalue()

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON object."""
        members = require_object(value, "a key")
        key_class: type[PrivateKey]
        kind = key_type(members)
        if kind == "DSA":
            key_class = DsaPrivateKey
        elif kind == "RSA":
            key_class = RsaPrivateKey if "p" in members else RsaPrivateKeyWithoutPrimes
        else:
            raise InvalidData("the kty of the key must be RSA or DSA")
        return cls._create(key_class, numbers_from_json(members, key_class.JSON_FIELDS))

    @classmethod
    def from_pkcs8(cls, raw: bytes) -> Self:
        """Decode PKCS#8 (DER) without a passphrase."""
        try:
            key = load_der_private_key(raw, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise InvalidData("this is not a private key in PKCS#8 format") from None
        return cls.from_library(key)

    @classmethod
    def from_library(cls, key: PrivateKeyTypes) -> Self:
        """Convert a key of the `cryptography` library."""
        if isinstance(key, rsa.RSAPrivateKey):
            numbers = key.private_numbers()
            e, n = numbers.public_numbers.e, numbers.public_numbers.n
            crt = {"dp": numbers.dmp1, "dq": numbers.dmq1, "qi": numbers.iqmp}
            return cls._create(RsaPrivateKey, {"n": n, "e": e, "d": numbers.d, "p": numbers.p, "q": numbers.q} | crt)
        if isinstance(key, dsa.DSAPrivateKey):
            x, group = key.private_numbers().x, key.parameters().parameter_numbers()
            return cls._create(DsaPrivateKey, {"x": x, "p": group.p, "q": group.q, "g": group.g})
        raise InvalidData("the private key is neither RSA nor DSA")

    @property
    @abstractmethod
    def public(self) -> PublicKey:
        """The corresponding public key."""

    @abstractmethod
    def sign(self, hash_name: str, data: bytes) -> bytes:
        """Sign data: PKCS#1 v1.5 for RSA, DER for DSA."""

    @abstractmethod
    def to_pkcs8(self) -> bytes:
        """Encode as PKCS#8 (DER) without a passphrase; secret."""

    def __repr__(self) -> str:
        """Show no numbers."""
        return f"<{type(self).__name__} of {self.public.bits} bits>"


@dataclass(frozen=True, slots=True, repr=False)
class RsaPrivateKey(PrivateKey):
    """An RSA key in the normal form."""

    n: int
    """The modulus."""
    e: int
    """The public exponent."""
    d: int
    """The private exponent."""
    p: int
    """One prime factor of the modulus."""
    q: int
    """The other."""
    dp: int
    """d modulo p - 1."""
    dq: int
    """d modulo q - 1."""
    qi: int
    """The inverse of q modulo p."""
    _library: rsa.RSAPrivateKey = field(init=False, compare=False)

    KIND = "RSA_PRIVCRT_KEY"
    KTY = "RSA"
    WIRE_FIELDS = ("n", "e", "d", "p", "q", "dp", "dq", "qi")
    JSON_FIELDS = ("n", "e", "d", "p", "q", "dp", "dq", "qi")

    @classmethod
    def from_primes(cls, p: int, q: int, e: int, d: int) -> Self:
        """Create a key from its primes and exponents."""
        if p < 3 or q < 3 or p == q:
            raise InvalidData(_INCONSISTENT_NUMBERS)
        try:
            inverse = pow(q, -1, p)
        except ValueError:
            raise InvalidData(_INCONSISTENT_NUMBERS) from None
        return cls(p * q, e, d, p, q, d % (p - 1), d % (q - 1), inverse)

    def __post_init__(self) -> None:
        public = self.public
        p, q = self.p, self.q
        if not (1 < p < self.n and 1 < q < self.n and p * q == self.n and 1 < self.d < self.n):
            raise InvalidData(_INCONSISTENT_NUMBERS)
        if (self.dp, self.dq, self.qi * q % p) != (self.d % (p - 1), self.d % (q - 1), 1) or not 0 < self.qi < p:
            raise InvalidData(_INCONSISTENT_NUMBERS)
        if (self.e * self.dp % (p - 1), self.e * self.dq % (q - 1)) != (1, 1):
            raise InvalidData(_INCONSISTENT_NUMBERS)
        numbers = rsa.RSAPrivateNumbers(
            p, q, self.d, self.dp, self.dq, self.qi, rsa.RSAPublicNumbers(public.e, public.n)
        )
        try:
            # The library's primality tests take 35 ms at 2048 bits; the key is our own.
            library = numbers.private_key(unsafe_skip_rsa_key_validation=True)
        except ValueError:  # pragma: no cover - checked above
            raise InvalidData(_INCONSISTENT_NUMBERS) from None
        object.__setattr__(self, "_library", library)

    @property
    def public(self) -> RsaPublicKey:
        return RsaPublicKey(self.e, self.n)

    def sign(self, hash_name: str, data: bytes) -> bytes:
        return self._library.sign(data, padding.PKCS1v15(), _hash(hash_name))

    def to_pkcs8(self) -> bytes:
        return self._library.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True, repr=False)
class RsaPrivateKeyWithoutPrimes(PrivateKey):
    """An RSA key without its primes, which the constructor computes from its exponents."""

    n: int
    """The modulus."""
    d: int
    """The private exponent."""
    e: int = 0
    """The public exponent; 0 means to find it among `COMMON_EXPONENTS`."""
    _complete: RsaPrivateKey = field(init=False, compare=False)

    KIND = "RSA_PRIV_KEY"
    KTY = "RSA"
    WIRE_FIELDS = ("n", "d")
    JSON_FIELDS = ("n", "e", "d")

    def __post_init__(self) -> None:
        exponents = (self.e,) if self.e else COMMON_EXPONENTS
        RsaPublicKey(exponents[0], self.n)  # validates the numbers
        if not 1 < self.d < self.n:
            raise InvalidData(_INCONSISTENT_NUMBERS)
        signature = pow(2, self.d, self.n)
        for e in exponents:
            if pow(signature, e, self.n) == 2:
                break
        else:
            raise InvalidData(_INCONSISTENT_NUMBERS)
        p, q = _factorize(self.n, e * self.d - 1)
        object.__setattr__(self, "e", e)
        object.__setattr__(self, "_complete", RsaPrivateKey.from_primes(p, q, e, self.d))

    @property
    def public(self) -> RsaPublicKey:
        return RsaPublicKey(self.e, self.n)

    def sign(self, hash_name: str, data: bytes) -> bytes:
        return self._complete.sign(hash_name, data)

    def to_pkcs8(self) -> bytes:
        return self._complete.to_pkcs8()


@dataclass(frozen=True, slots=True, repr=False)
class DsaPrivateKey(PrivateKey):
    """A DSA key of a size that the `cryptography` library supports: 1024, 2048, 3072 or 4096 bits."""

    x: int
    """The secret."""
    p: int
    """The modulus."""
    q: int
    """The order of the group."""
    g: int
    """The generator."""
    _library: dsa.DSAPrivateKey = field(init=False, compare=False)

    KIND = "DSA_PRIV_KEY"
    KTY = "DSA"
    WIRE_FIELDS = ("x", "p", "q", "g")
    JSON_FIELDS = ("x", "p", "q", "g")

    def __post_init__(self) -> None:
        check_dsa_group(self.p, self.q, self.g)
        if not 0 < self.x < self.q:
            raise InvalidData(_INCONSISTENT_NUMBERS)
        public = self.public
        group = dsa.DSAParameterNumbers(self.p, self.q, self.g)
        try:
            library = dsa.DSAPrivateNumbers(self.x, dsa.DSAPublicNumbers(public.y, group)).private_key()
        except ValueError:
            raise InvalidData(
                "a private DSA key must have 1024, 2048, 3072 or 4096 bits, and q 160, 224 or 256"
            ) from None
        object.__setattr__(self, "_library", library)

    @property
    def public(self) -> DsaPublicKey:
        return DsaPublicKey(self.q, self.p, self.g, pow(self.g, self.x, self.p))

    def sign(self, hash_name: str, data: bytes) -> bytes:
        return self._library.sign(data, _hash(hash_name))

    def to_pkcs8(self) -> bytes:
        return self._library.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


_MAX_BASES = 64  # each finds the factors with a probability of at least one half
_INCONSISTENT_NUMBERS = "the numbers of the private key are inconsistent"
_KINDS: tuple[type[PrivateKey], ...] = (RsaPrivateKey, RsaPrivateKeyWithoutPrimes, DsaPrivateKey)
_BY_KIND = {kind.KIND: kind for kind in _KINDS}


def _factorize(n: int, multiple: int) -> tuple[int, int]:
    """Factors of an RSA modulus, larger first, from a multiple of the order of all numbers modulo n.

    Any number to that power is 1. When it is computed by squaring, at least half of the bases pass a square root of 1
    other than 1 and -1, which differs from 1 by a multiple of one factor (NIST SP 800-56B, appendix C).
    """
    twos = (multiple & -multiple).bit_length() - 1
    for base in range(2, 2 + _MAX_BASES):
        root = pow(base, multiple >> twos, n)
        for _ in range(twos):
            square = root * root % n
            if square == 1 and root not in (1, n - 1):
                factor = gcd(root - 1, n)
                return max(factor, n // factor), min(factor, n // factor)
            root = square
    raise InvalidData(_INCONSISTENT_NUMBERS)


def _hash(name: str) -> hashes.HashAlgorithm:
    algorithm = SIGNATURE_HASHES.get(name)
    if algorithm is None:
        raise RecordMisuse(f"unknown signature hash {name!r}")
    return algorithm


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


def read_private_key(data: bytes, passphrase: bytes | None = None) -> PrivateKey:
    """Read a key in any form that tools write: PEM (also with a certificate), JWK, or a Handle key file.

    A passphrase is ignored if the key is not protected.
    """
    if data.lstrip()[:1] == b"{":
        return PrivateKey.from_json(parse_json(data))
    match = _PEM.search(data)
    if match is None:
        return read_key_file(data, passphrase)
    is_protected = b"ENCRYPTED" in match[0]
    if is_protected and passphrase is None:
        raise InvalidData(_PASSPHRASE_REQUIRED)
    try:
        key = load_pem_private_key(match[0], passphrase if is_protected else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidData(_WRONG_PASSPHRASE if is_protected else "this is not a private key in PEM format") from None
    return PrivateKey.from_library(key)


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
        raise InvalidData(_PASSPHRASE_REQUIRED)
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


_PASSPHRASE_REQUIRED = "the key file requires a passphrase"  # noqa: S105 - a sentence
_WRONG_PASSPHRASE = "the passphrase is wrong, or the file is damaged"  # noqa: S105 - a sentence
