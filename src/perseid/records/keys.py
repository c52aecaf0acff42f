"""Encoding of key numbers, shared by public and private keys, and secret keys (HS_SECKEY).

On the wire (native protocol §9.7.1) a number is a byte string with a big-endian two's-complement integer: positive
numbers whose top bit is set have a leading 00, which may be missing on input. In JSON (§9.7.4) it is base64url without
padding, minimal and unsigned.

The data of an HS_SECKEY value is the secret itself (§9.7.5). Some clients use the lowercase hexadecimal SHA-1 of the
password instead, which is just another secret to the server. Such values must not be public.
"""

import hashlib
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from . import encoding as codec
from .binary import Reader, Writer
from .encoding import JsonObject, from_base64, parse_json, require_member, require_text, write_json
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
