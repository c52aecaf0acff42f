"""Public keys (HS_PUBKEY, site records, pubkey.bin), secret keys (HS_SECKEY), and the encoding of key numbers.

Public and private keys encode numbers alike. On the wire (native protocol §9.7.1) a number is a byte string with a
big-endian two's-complement integer: positive numbers whose top bit is set have a leading 00, which may be missing on
input. In JSON (§9.7.4) it is base64url without padding, minimal and unsigned.

A public key begins with the name of its kind and two unused bytes, written as zero and ignored on reading; then its
numbers:

    RSA   str RSA_PUB_KEY   i16 0   bytes e   bytes n   four zero bytes
    DSA   str DSA_PUB_KEY   i16 0   bytes q   bytes p   bytes g   bytes y
    DH    str DH_PUB_KEY    i16 0   bytes y   bytes p   bytes g

The four trailing zeros of the RSA form are always written, because the HTTPS check of deployed software compares all
bytes; on reading, anything after the numbers is ignored. The JSON form is a JSON Web Key, which is standard for RSA
only; DSA is as deployed, and DH, which was never deployed in JSON, follows the same pattern.

The numbers of a key always come from outside: even the constructor raises `InvalidData` for impossible numbers, so that
an invalid key cannot exist.

The data of an HS_SECKEY value is the secret itself (§9.7.5). Some clients use the lowercase hexadecimal SHA-1 of the
password instead, which is just another secret to the server. Such values must not be public.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from . import encoding as codec
from .binary import Reader, Writer
from .encoding import (
    JsonObject,
    from_base64,
    parse_json,
    require_member,
    require_object,
    require_text,
    to_base64,
    write_json,
)
from .errors import InvalidData, RecordMisuse

MAX_KEY_BITS: Final = 8192
"""Maximum size of RSA and DSA keys: one RSA verification with exponent 65537 then costs 0.3 ms."""

MIN_KEY_BITS: Final = 512
"""Minimum size of RSA and DSA keys, as in deployed software. Such keys can be broken, but records with them must be
readable; whether to rely on them is a matter of policy."""

MAX_NUMBER_SIZE: Final = MAX_KEY_BITS // 8 + 1
"""Maximum size of a number in bytes: all bits of the longest key, and a leading zero byte."""

MAX_KIND_LENGTH: Final = 32
"""Maximum length of the name of a key kind in bytes; the longest known, RSA_PRIVCRT_KEY, has 15."""

_MAX_DIGITS = (MAX_NUMBER_SIZE + 2) // 3 * 4  # of base64


class Key(ABC):
    """Base class of public and private keys: named numbers, in different orders on the wire and in JSON."""

    __slots__ = ()

    KIND: ClassVar[str]
    """The name on the wire."""
    KTY: ClassVar[str]
    """The name in JSON."""
    WIRE_FIELDS: ClassVar[tuple[str, ...]]
    """The numbers, in the order of the wire."""
    JSON_FIELDS: ClassVar[tuple[str, ...]]
    """The numbers, in the order of JSON."""

    @classmethod
    @abstractmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON object."""

    def to_json(self) -> JsonObject:
        """The JSON object; secret for a private key."""
        return {"kty": self.KTY} | numbers_to_json({name: getattr(self, name) for name in self.JSON_FIELDS})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse JSON text."""
        return cls.from_json(parse_json(text))

    def to_text(self) -> str:
        """The JSON text on one line."""
        return write_json(self.to_json())

    @classmethod
    def _create(cls, kind: "type[Key]", numbers: dict[str, int]) -> Self:
        """Create a key of a kind; rejected if it is not an instance of this class."""
        factory: Callable[..., Key] = kind
        key = factory(**numbers)
        if not isinstance(key, cls):
            raise InvalidData(f"a {key.KTY} key cannot be used here")
        return key


def key_type(members: JsonObject) -> str:
    """The `kty` of a JSON key in uppercase, because deployed readers accept any case; empty if missing."""
    kty = members.get("kty")
    return kty.upper() if isinstance(kty, str) else ""


def read_numbers(reader: Reader, names: Iterable[str]) -> dict[str, int]:
    """Read one number for each name."""
    return {name: int.from_bytes(reader.bytes_(MAX_NUMBER_SIZE), "big") for name in names}


def write_numbers(writer: Writer, numbers: Iterable[int]) -> None:
    """Write non-negative numbers."""
    for number in numbers:
        writer.bytes_(number.to_bytes(number.bit_length() // 8 + 1, "big"))


def numbers_from_json(members: JsonObject, names: Iterable[str]) -> dict[str, int]:
    """Parse one number for each name from a JSON object; other members are ignored."""
    numbers = {}
    for name in names:
        label = f"the number {name} of the key"
        text = require_text(require_member(members, name, "the key"), label)
        if len(text) > _MAX_DIGITS:
            raise InvalidData(f"{label} is too long; the maximum is {MAX_NUMBER_SIZE} bytes")
        numbers[name] = int.from_bytes(from_base64(text, label), "big")
    return numbers


def numbers_to_json(numbers: dict[str, int]) -> JsonObject:
    """Format numbers in base64url."""
    return {name: _to_base64url(number) for name, number in numbers.items()}


def _to_base64url(number: int) -> str:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A shared secret. `repr()` shows neither the secret nor its length."""

    secret: bytes = field(repr=False)
    """The secret, as stored and used."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the data of a value."""
        return cls(data)

    def to_bytes(self) -> bytes:
        """Encode the data of a value."""
        return self.secret

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON string, or an object with a format."""
        return cls(codec.from_json(value, "a secret key"))

    def to_json(self) -> str | JsonObject:
        """A JSON string if the secret is text, otherwise an object with base64."""
        return codec.to_json(self.secret)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Create from a password."""
        try:
            return cls(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidData("the password contains a surrogate and cannot be encoded in UTF-8") from None

    def to_text(self) -> str:
        """The password."""
        try:
            return self.secret.decode("utf-8")
        except UnicodeDecodeError:
            raise RecordMisuse("the secret is not text; use JSON instead") from None

    def to_sha1(self) -> "SecretKey":
        """The secret of clients that hash the password: its SHA-1 in lowercase hexadecimal."""
        return SecretKey(hashlib.sha1(self.secret, usedforsecurity=False).hexdigest().encode("ascii"))


MAX_RSA_EXPONENT: Final = (1 << 33) - 1
"""Maximum public exponent of RSA: verification time is proportional to its bits. The usual one, 65537, has 17; 33 bits
allow 2³² + 1."""

MAX_LOADED_KEYS: Final = 256
"""RSA keys that the library has loaded: loading one takes 100 µs, verifying a signature 30. Each takes some 2 kB."""

MIN_ORDER_BITS: Final = 160
MAX_ORDER_BITS: Final = 256
"""Size of a DSA key's q, as in the standard. The time of every operation is proportional to it."""

MIN_DH_BITS: Final = 512
"""Minimum size of a Diffie–Hellman modulus, as in the `cryptography` library. Deployed clients use 1024 bits."""

MAX_DH_BITS: Final = 4096
"""Maximum size of a Diffie–Hellman modulus: the peer chooses it before it is authenticated, and one exchange with 4096
bits costs 20 ms."""

SIGNATURE_HASHES: Final = MappingProxyType(
    {
        "MD5": hashes.MD5(),  # noqa: S303 - old peers use them
        "SHA1": hashes.SHA1(),  # noqa: S303
        "SHA-256": hashes.SHA256(),
    }
)
"""Hashes of signatures, by their names in the protocol."""

_OIDS = (bytes.fromhex("06092a864886f70d010101"), bytes.fromhex("06072a8648ce380401"))  # of RSA and DSA keys
_OID_SEARCH_SIZE = 32  # bytes from the front: two headers of at most six bytes precede it


class PublicKey(Key):
    """A public key: `RsaPublicKey`, `DsaPublicKey` or `DhPublicKey`."""

    __slots__ = ()

    TRAILER: ClassVar[bytes] = b""
    """Bytes after the numbers on the wire."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode a key; a subclass accepts only its own kind."""
        reader = Reader(data)
        kind = reader.text(MAX_KIND_LENGTH)
        key_class = _BY_KIND.get(kind)
        if key_class is None:
            raise InvalidData(f"unknown kind of public key {kind!r}", 4)
        reader.i16()
        return cls._create(key_class, read_numbers(reader, key_class.WIRE_FIELDS))

    @property
    def fingerprint(self) -> str:
        """Type, length and hash of the key; the hash covers the binary form, as in site information."""
        digest = to_base64(hashlib.sha256(self.to_bytes()).digest()).rstrip("=")
        return f"{self.KTY} {self.bits} SHA256:{digest}"

    def to_bytes(self) -> bytes:
        """Encode the binary form."""
        writer = Writer().text(self.KIND).i16(0)
        write_numbers(writer, [getattr(self, name) for name in self.WIRE_FIELDS])
        return writer.raw(self.TRAILER).getvalue()

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON object."""
        members = require_object(value, "a key")
        key_class = _BY_KTY.get(key_type(members))
        if key_class is None:
            raise InvalidData("the kty of the key must be RSA, DSA or DH")
        return cls._create(key_class, numbers_from_json(members, key_class.JSON_FIELDS))

    @classmethod
    def from_x509(cls, data: bytes) -> Self:
        """Decode an RSA or DSA key from the SubjectPublicKeyInfo of a certificate (DER)."""
        # The library would spend seconds on a primality test of an untrusted Diffie–Hellman modulus.
        if not any(oid in data[:_OID_SEARCH_SIZE] for oid in _OIDS):
            raise InvalidData("this is not an RSA or DSA key in X.509 format")
        try:
            key = load_der_public_key(data)
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidData("this is not an RSA or DSA key in X.509 format") from None
        if isinstance(key, rsa.RSAPublicKey):
            rsa_numbers = key.public_numbers()
            return cls._create(RsaPublicKey, {"e": rsa_numbers.e, "n": rsa_numbers.n})
        if isinstance(key, dsa.DSAPublicKey):
            numbers = key.public_numbers()
            group = numbers.parameter_numbers
            return cls._create(DsaPublicKey, {"q": group.q, "p": group.p, "g": group.g, "y": numbers.y})
        raise InvalidData("this is not an RSA or DSA key in X.509 format")

    @classmethod
    def from_file(cls, data: bytes) -> Self:
        """Read a key in any form that tools write: PEM (a public key or a certificate), JWK, or a Handle key.

        A private key is rejected, so that nobody publishes one by mistake.
        """
        if data.lstrip().startswith(b"{"):
            if {"d", "x"} & require_object(parsed := parse_json(data), "a key").keys():
                raise InvalidData("this is a private key; use its public key")
            return cls.from_json(parsed)
        match = _PEM.search(data)
        if match is None:
            return cls.from_bytes(data)
        label, body = match[1].decode("ascii"), b"".join(match[2].split())
        if "PRIVATE" in label:
            raise InvalidData("this is a private key; use its public key")
        if label not in _PEM_LABELS:
            raise InvalidData(f"PEM with {label} is neither a public key nor a certificate")
        der = from_base64(body.decode("ascii"), "the key")
        return cls.from_x509(_read_certificate(der) if label == "CERTIFICATE" else der)

    def to_x509(self) -> bytes:
        """Encode as SubjectPublicKeyInfo (DER), for RSA and DSA keys that the `cryptography` library supports."""
        try:
            return self._library_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except ValueError as error:
            raise RecordMisuse(f"the key cannot be encoded in X.509 format: {error}") from None

    def verify(self, hash_name: str, signature: bytes, data: bytes) -> bool:
        """Whether the signature of the data is valid. `hash_name` is a key of `SIGNATURE_HASHES`."""
        algorithm = SIGNATURE_HASHES.get(hash_name)
        if algorithm is None:
            return False
        try:
            self._verify(algorithm, signature, data)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return False
        return True

    @property
    @abstractmethod
    def bits(self) -> int:
        """Size of the key in bits."""

    @abstractmethod
    def _library_key(self) -> rsa.RSAPublicKey | dsa.DSAPublicKey: ...

    @abstractmethod
    def _verify(self, algorithm: hashes.HashAlgorithm, signature: bytes, data: bytes) -> None: ...


@lru_cache(MAX_LOADED_KEYS)
def _load_rsa_key(e: int, n: int) -> rsa.RSAPublicKey:
    return rsa.RSAPublicNumbers(e, n).public_key()


@dataclass(frozen=True, slots=True)
class RsaPublicKey(PublicKey):
    """An RSA key; signatures are PKCS#1 v1.5."""

    e: int
    """The public exponent."""
    n: int
    """The modulus."""

    KIND = "RSA_PUB_KEY"
    KTY = "RSA"
    WIRE_FIELDS = ("e", "n")
    JSON_FIELDS = ("n", "e")
    TRAILER = bytes(4)

    def __post_init__(self) -> None:
        check_modulus_length(self.n)
        if not 3 <= self.e <= MAX_RSA_EXPONENT or self.e % 2 == 0:
            raise InvalidData(f"the exponent of an RSA key must be odd and between 3 and {MAX_RSA_EXPONENT}")

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    def _library_key(self) -> rsa.RSAPublicKey:
        return _load_rsa_key(self.e, self.n)

    def _verify(self, algorithm: hashes.HashAlgorithm, signature: bytes, data: bytes) -> None:
        self._library_key().verify(signature, data, padding.PKCS1v15(), algorithm)


@dataclass(frozen=True, slots=True)
class DsaPublicKey(PublicKey):
    """A DSA key; signatures are DER. Keys of sizes that the library does not support (768 bits …) verify nothing."""

    q: int
    """The order of the group."""
    p: int
    """The modulus."""
    g: int
    """The generator."""
    y: int
    """g to the power of the private key."""

    KIND = "DSA_PUB_KEY"
    KTY = "DSA"
    WIRE_FIELDS = ("q", "p", "g", "y")
    JSON_FIELDS = ("y", "p", "q", "g")

    def __post_init__(self) -> None:
        check_dsa_group(self.p, self.q, self.g)
        if not 1 < self.y < self.p:
            raise InvalidData("y of a DSA key must be between 1 and the modulus")

    @property
    def bits(self) -> int:
        return self.p.bit_length()

    def _library_key(self) -> dsa.DSAPublicKey:
        return dsa.DSAPublicNumbers(self.y, dsa.DSAParameterNumbers(self.p, self.q, self.g)).public_key()

    def _verify(self, algorithm: hashes.HashAlgorithm, signature: bytes, data: bytes) -> None:
        self._library_key().verify(signature, data, algorithm)


@dataclass(frozen=True, slots=True)
class DhPublicKey(PublicKey):
    """A public Diffie–Hellman key with its group; not for signatures."""

    y: int
    """g to the power of the private exponent."""
    p: int
    """The modulus."""
    g: int
    """The generator."""

    KIND = "DH_PUB_KEY"
    KTY = "DH"
    WIRE_FIELDS = ("y", "p", "g")
    JSON_FIELDS = ("y", "p", "g")

    def __post_init__(self) -> None:
        check_dh_group(self.p, self.g)
        # 0, 1 and p - 1 would give a predictable secret.
        if not 1 < self.y < self.p - 1:
            raise InvalidData("y of a Diffie-Hellman key must be between 1 and the modulus minus one")

    @property
    def bits(self) -> int:
        return self.p.bit_length()

    def _library_key(self) -> rsa.RSAPublicKey | dsa.DSAPublicKey:
        raise ValueError("Diffie-Hellman keys are not used with certificates")

    def _verify(self, _algorithm: hashes.HashAlgorithm, _signature: bytes, _data: bytes) -> None:
        raise InvalidSignature


_KINDS: tuple[type[PublicKey], ...] = (RsaPublicKey, DsaPublicKey, DhPublicKey)
_BY_KIND = {kind.KIND: kind for kind in _KINDS}
_BY_KTY = {kind.KTY: kind for kind in _KINDS}


_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----([A-Za-z0-9+/=\s]*)-----END")
_PEM_LABELS: Final = ("PUBLIC KEY", "CERTIFICATE")


def _read_certificate(der: bytes) -> bytes:
    """Return the SubjectPublicKeyInfo of a certificate with an RSA or DSA key."""
    from cryptography.x509 import load_der_x509_certificate  # noqa: PLC0415 - it takes long to import

    try:
        if not any(oid in der for oid in _OIDS):
            raise InvalidData("this certificate has neither an RSA nor a DSA key")
        key = load_der_x509_certificate(der).public_key()
        return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidData("this is not a certificate with an RSA or DSA key") from None


def check_modulus_length(modulus: int) -> None:
    """Reject a modulus of RSA or DSA that is even, too short or too long."""
    _check_modulus(modulus, MIN_KEY_BITS, MAX_KEY_BITS)


def check_dsa_group(p: int, q: int, g: int) -> None:
    """Reject an invalid group of a DSA key."""
    check_modulus_length(p)
    if not (q > 0 and MIN_ORDER_BITS <= q.bit_length() <= MAX_ORDER_BITS):
        raise InvalidData(f"q of a DSA key must have {MIN_ORDER_BITS} to {MAX_ORDER_BITS} bits")
    if not 1 < g < p:
        raise InvalidData("g of a DSA key must be between 1 and the modulus")


def check_dh_group(p: int, g: int) -> None:
    """Reject a Diffie–Hellman group that is invalid, too small or too large.

    Primality of p is not tested: that takes seconds at 4096 bits, for an unauthenticated peer, and a peer that proposes
    a composite p weakens only its own session.
    """
    _check_modulus(p, MIN_DH_BITS, MAX_DH_BITS)
    if not 1 < g < p - 1:
        raise InvalidData("a Diffie-Hellman generator must be between 1 and the modulus minus one")


def _check_modulus(modulus: int, min_bits: int, max_bits: int) -> None:
    bits = modulus.bit_length()
    if not min_bits <= bits <= max_bits or modulus < 0:
        raise InvalidData(f"the modulus of the key must have {min_bits} to {max_bits} bits, not {bits}")
    if modulus % 2 == 0:
        raise InvalidData("the modulus of the key is even; it must be odd")
