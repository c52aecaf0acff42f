"""The numbers of keys, on the wire and in JSON; shared by public and private keys.

On the wire (native protocol, 9.7.1): "Every number is written as bytes holding a big-endian two's-complement integer:
positive numbers whose top bit is set get a leading 00. Readers interpret the bytes as unsigned, so a missing 00 is
tolerated on input." In JSON (9.7.4): "All base64url without padding, minimal unsigned big-endian (no leading zero
byte)."

How long a number may be is said here, what it may be by the key it belongs to.

Secret keys: the data of HS_SECKEY values.

"The value's data is the secret itself. Some clients store (and authenticate with) the lower-case hexadecimal SHA-1 of
the password instead of the password; it is just another secret to the server. Such values must not be publicly
readable." (native protocol, 9.7.5)
"""

import hashlib
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from . import encoding as codec
from .binary import Reader, Writer
from .encoding import from_base64
from .errors import InvalidData, RecordMisuse
from .json_parsing import JsonObject, parse_json, require_member, require_text, write_json

MAX_KEY_BITS: Final = 8192
"""The longest RSA and DSA keys: one RSA verification with the exponent 65537 then costs 0.3 ms."""

MIN_KEY_BITS: Final = 512
"""The shortest RSA and DSA keys: what deployed software takes. Such keys can be broken; records that hold them must
be readable all the same, and who may rely on them is a matter of policy."""

MAX_NUMBER_SIZE: Final = MAX_KEY_BITS // 8 + 1
"""Bytes of the longest number: all bits of the longest key, and the zero byte that keeps it positive."""

MAX_KIND_LENGTH: Final = 32
"""Bytes of the longest name of a kind of key; the longest known one, RSA_PRIVCRT_KEY, has 15."""

_MAX_DIGITS = (MAX_NUMBER_SIZE + 2) // 3 * 4  # of base64


class Key(ABC):
    """What public and private keys have in common: named numbers, in one order on the wire and in another in JSON."""

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
        """Take a key from a JSON object."""

    def to_json(self) -> JsonObject:
        """The JSON object; that of a private key must be kept secret."""
        return {"kty": self.KTY} | numbers_to_json({name: getattr(self, name) for name in self.JSON_FIELDS})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Take a key from JSON text."""
        return cls.from_json(parse_json(text))

    def to_text(self) -> str:
        """The JSON text, in one line."""
        return write_json(self.to_json())

    @classmethod
    def _create(cls, kind: "type[Key]", numbers: dict[str, int]) -> Self:
        """A key of a kind; refused where this class stands for another kind."""
        factory: Callable[..., Key] = kind
        key = factory(**numbers)
        if not isinstance(key, cls):
            raise InvalidData(f"a key of another kind is needed here; this is a {key.KTY} key")
        return key


def key_type(members: JsonObject) -> str:
    """The kind of a JSON key, in capitals: deployed readers take any case. Empty if there is none."""
    kty = members.get("kty")
    return kty.upper() if isinstance(kty, str) else ""


def read_numbers(reader: Reader, names: Iterable[str]) -> dict[str, int]:
    """Take one number for each name."""
    return {name: int.from_bytes(reader.bytes_(MAX_NUMBER_SIZE), "big") for name in names}


def write_numbers(writer: Writer, numbers: Iterable[int]) -> None:
    """Add numbers, none of them negative."""
    for number in numbers:
        writer.bytes_(number.to_bytes(number.bit_length() // 8 + 1, "big"))


def numbers_from_json(members: JsonObject, names: Iterable[str]) -> dict[str, int]:
    """Take one number for each name from a JSON object; whatever else it holds does not matter."""
    numbers = {}
    for name in names:
        label = f"the number {name} of the key"
        text = require_text(require_member(members, name, "the key"), label)
        if len(text) > _MAX_DIGITS:
            raise InvalidData(f"{label} is longer than {MAX_NUMBER_SIZE} bytes")
        numbers[name] = int.from_bytes(from_base64(text, label), "big")
    return numbers


def numbers_to_json(numbers: dict[str, int]) -> JsonObject:
    """Numbers in base64url."""
    return {name: _to_base64url(number) for name, number in numbers.items()}


def _to_base64url(number: int) -> str:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A secret that both sides know. `repr()` does not show it, nor its length."""

    secret: bytes = field(repr=False)
    """The bytes, as they are stored and used."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Take a value's data."""
        return cls(data)

    def to_bytes(self) -> bytes:
        """The value's data."""
        return self.secret

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Take a JSON string, or an object that says how the bytes are written."""
        return cls(codec.from_json(value, "a secret key"))

    def to_json(self) -> str | JsonObject:
        """A JSON string if the secret is text, or else an object with base64; to be kept secret."""
        return codec.to_json(self.secret)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Take a password as somebody types it."""
        try:
            return cls(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidData("a password holds half of a surrogate pair and has no UTF-8 form") from None

    def to_text(self) -> str:
        """The password; to be kept secret."""
        try:
            return self.secret.decode("utf-8")
        except UnicodeDecodeError:
            raise RecordMisuse("the secret is not text; JSON can hold it") from None

    def to_sha1(self) -> "SecretKey":
        """The secret that clients use who hash their password: its SHA-1 in lower-case hexadecimal digits."""
        return SecretKey(hashlib.sha1(self.secret, usedforsecurity=False).hexdigest().encode("ascii"))
