"""Public keys: the data of HS_PUBKEY values, the keys of site records, and pubkey.bin.

Every kind begins with its name and two bytes without use, which are written as zero and ignored; then its numbers
(native protocol, 9.7.1):

    RSA   str RSA_PUB_KEY   i16 0   bytes e   bytes n   four zero bytes
    DSA   str DSA_PUB_KEY   i16 0   bytes q   bytes p   bytes g   bytes y
    DH    str DH_PUB_KEY    i16 0   bytes y   bytes p   bytes g

"The four trailing zeros of the RSA form come from an over-allocation in the reference encoder. They are ignored on
reading, but the HTTPS check compares byte by byte, so always write them." Whatever else follows the numbers is
ignored likewise. The JSON form (9.7.4) is a JSON Web Key, which standards know for RSA alone; DSA is as deployed,
and DH, which never was deployed in JSON, follows the pattern.

The numbers of a key come from outside, whoever constructs it: a number that no key can have is `InvalidData` even in
the constructor, so that an unfit key cannot exist.
"""

from abc import abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from .binary import Reader, Writer
from .errors import InvalidData, RecordMisuse
from .json_parsing import require_object
from .keys import (
    MAX_KEY_BITS,
    MAX_KIND_LENGTH,
    MIN_KEY_BITS,
    Key,
    key_type,
    numbers_from_json,
    read_numbers,
    write_numbers,
)

MAX_RSA_EXPONENT: Final = (1 << 33) - 1
"""The largest public exponent of RSA: verification takes time in proportion to its bits. The usual one, 65537, has 17
of them; 33 bits let 2³² + 1 through."""

MIN_ORDER_BITS: Final = 160
MAX_ORDER_BITS: Final = 256
"""How long a DSA key's q may be: the lengths that the standard has. Every operation takes time in proportion to it."""

MIN_DH_BITS: Final = 512
"""The shortest Diffie–Hellman modulus, as short as the cryptographic library takes one; 1024 bits must be accepted."""

MAX_DH_BITS: Final = 4096
"""The longest Diffie–Hellman modulus: the peer chooses it before it has proved anything, and one exchange of 4096 bits
costs 20 ms. Deployed clients use 1024 bits."""

SIGNATURE_HASHES: Final = MappingProxyType(
    {
        "MD5": hashes.MD5(),  # noqa: S303 - the protocol lets old peers use them
        "SHA1": hashes.SHA1(),  # noqa: S303
        "SHA-256": hashes.SHA256(),
    }
)
"""The hashes that signatures are made with, by the names under which the protocol writes them."""

_OIDS = (bytes.fromhex("06092a864886f70d010101"), bytes.fromhex("06072a8648ce380401"))  # of RSA and DSA keys
_OID_SEARCH_SIZE = 32  # bytes from the front: two headers of at most six bytes stand before it


class PublicKey(Key):
    """A public key of one of three kinds: `RsaPublicKey`, `DsaPublicKey`, `DhPublicKey`. There are no others."""

    __slots__ = ()

    TRAILER: ClassVar[bytes] = b""
    """What follows the numbers on the wire."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Take a key; called on one kind, it takes only that kind."""
        reader = Reader(data)
        kind = reader.text(MAX_KIND_LENGTH)
        key_class = _BY_KIND.get(kind)
        if key_class is None:
            raise InvalidData(f"public keys of the kind {kind!r} are not known", 4)
        reader.i16()
        return cls._create(key_class, read_numbers(reader, key_class.WIRE_FIELDS))

    def to_bytes(self) -> bytes:
        """The binary form."""
        writer = Writer().text(self.KIND).i16(0)
        write_numbers(writer, [getattr(self, name) for name in self.WIRE_FIELDS])
        return writer.raw(self.TRAILER).getvalue()

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Take a key from a JSON object."""
        members = require_object(value, "a key")
        key_class = _BY_KTY.get(key_type(members))
        if key_class is None:
            raise InvalidData("the key's kty is not RSA, DSA or DH")
        return cls._create(key_class, numbers_from_json(members, key_class.JSON_FIELDS))

    @classmethod
    def from_x509(cls, data: bytes) -> Self:
        """Take an RSA or DSA key from the SubjectPublicKeyInfo of a certificate (DER)."""
        # The library would test a stranger's Diffie–Hellman modulus for being prime, for seconds.
        if not any(oid in data[:_OID_SEARCH_SIZE] for oid in _OIDS):
            raise InvalidData("the bytes are not an RSA or DSA key in X.509 form")
        try:
            key = load_der_public_key(data)
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidData("the bytes are not an RSA or DSA key in X.509 form") from None
        if isinstance(key, rsa.RSAPublicKey):
            rsa_numbers = key.public_numbers()
            return cls._create(RsaPublicKey, {"e": rsa_numbers.e, "n": rsa_numbers.n})
        if isinstance(key, dsa.DSAPublicKey):
            numbers = key.public_numbers()
            group = numbers.parameter_numbers
            return cls._create(DsaPublicKey, {"q": group.q, "p": group.p, "g": group.g, "y": numbers.y})
        raise InvalidData("the bytes are not an RSA or DSA key in X.509 form")

    def to_x509(self) -> bytes:
        """The SubjectPublicKeyInfo (DER) of an RSA or DSA key that the cryptographic library can handle."""
        try:
            return self._library_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except ValueError as error:
            raise RecordMisuse(f"the key has no X.509 form here: {error}") from None

    def verify(self, hash_name: str, signature: bytes, data: bytes) -> bool:
        """Whether this is the key owner's signature of the data. `hash_name` is a key of `SIGNATURE_HASHES`."""
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
        """The key's length, as one speaks of it."""

    @abstractmethod
    def _library_key(self) -> rsa.RSAPublicKey | dsa.DSAPublicKey: ...

    @abstractmethod
    def _verify(self, algorithm: hashes.HashAlgorithm, signature: bytes, data: bytes) -> None: ...


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
            raise InvalidData(f"an RSA key's exponent is odd and between 3 and {MAX_RSA_EXPONENT}")

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    def encrypt(self, plaintext: bytes) -> bytes:
        """Encrypt some bytes for the key's owner (PKCS#1 v1.5); the padding is the library's random choice."""
        try:
            return self._library_key().encrypt(plaintext, padding.PKCS1v15())
        except ValueError:
            raise RecordMisuse(f"{len(plaintext)} bytes are too many for an RSA key of {self.bits} bits") from None

    def _library_key(self) -> rsa.RSAPublicKey:
        return rsa.RSAPublicNumbers(self.e, self.n).public_key()

    def _verify(self, algorithm: hashes.HashAlgorithm, signature: bytes, data: bytes) -> None:
        self._library_key().verify(signature, data, padding.PKCS1v15(), algorithm)


@dataclass(frozen=True, slots=True)
class DsaPublicKey(PublicKey):
    """A DSA key; signatures are DER. Sizes that the library does not have (768 bits …) verify nothing."""

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
            raise InvalidData("a DSA key's y lies between 1 and the modulus")

    @property
    def bits(self) -> int:
        return self.p.bit_length()

    def _library_key(self) -> dsa.DSAPublicKey:
        return dsa.DSAPublicNumbers(self.y, dsa.DSAParameterNumbers(self.p, self.q, self.g)).public_key()

    def _verify(self, algorithm: hashes.HashAlgorithm, signature: bytes, data: bytes) -> None:
        self._library_key().verify(signature, data, algorithm)


@dataclass(frozen=True, slots=True)
class DhPublicKey(PublicKey):
    """One side's half of a Diffie–Hellman exchange, with the group; it signs nothing."""

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
        # 0, 1 and p - 1 would make a secret that everybody knows.
        if not 1 < self.y < self.p - 1:
            raise InvalidData("a Diffie-Hellman key's y lies between 1 and the modulus less one")

    @property
    def bits(self) -> int:
        return self.p.bit_length()

    def _library_key(self) -> rsa.RSAPublicKey | dsa.DSAPublicKey:
        raise ValueError("a Diffie-Hellman key is not used with certificates")

    def _verify(self, _algorithm: hashes.HashAlgorithm, _signature: bytes, _data: bytes) -> None:
        raise InvalidSignature


_KINDS: tuple[type[PublicKey], ...] = (RsaPublicKey, DsaPublicKey, DhPublicKey)
_BY_KIND = {kind.KIND: kind for kind in _KINDS}
_BY_KTY = {kind.KTY: kind for kind in _KINDS}


def check_modulus_length(modulus: int) -> None:
    """Refuse a modulus of RSA or DSA that is even, too short or too long."""
    _check_modulus(modulus, MIN_KEY_BITS, MAX_KEY_BITS)


def check_dsa_group(p: int, q: int, g: int) -> None:
    """Refuse what cannot be the group of a DSA key."""
    check_modulus_length(p)
    if not (q > 0 and MIN_ORDER_BITS <= q.bit_length() <= MAX_ORDER_BITS):
        raise InvalidData(f"a DSA key's q has {MIN_ORDER_BITS} to {MAX_ORDER_BITS} bits")
    if not 1 < g < p:
        raise InvalidData("a DSA key's g lies between 1 and the modulus")


def check_dh_group(p: int, g: int) -> None:
    """Refuse a group for Diffie–Hellman that is too small to be safe, too large to be affordable, or none at all.

    Whether p is prime is not tested: that would cost seconds at 4096 bits, for a peer that has proved nothing, and
    whoever proposes a composite one weakens only its own session.
    """
    _check_modulus(p, MIN_DH_BITS, MAX_DH_BITS)
    if not 1 < g < p - 1:
        raise InvalidData("a Diffie-Hellman generator lies between 1 and the modulus less one")


def _check_modulus(modulus: int, min_bits: int, max_bits: int) -> None:
    bits = modulus.bit_length()
    if not min_bits <= bits <= max_bits or modulus < 0:
        raise InvalidData(f"the modulus of such a key has {min_bits} to {max_bits} bits; this one has {bits}")
    if modulus % 2 == 0:
        raise InvalidData("the modulus of a key is odd; this one is even")
