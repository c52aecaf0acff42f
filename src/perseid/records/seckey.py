"""Secret keys: the data of HS_SECKEY values.

"The value's data is the secret itself. Some clients store (and authenticate with) the lower-case hexadecimal SHA-1 of
the password instead of the password; it is just another secret to the server. Such values must not be publicly
readable." (native protocol, 9.7.5)
"""

import hashlib
from dataclasses import dataclass, field
from typing import Self

from . import encoding as octets_module
from .errors import InvalidData, RecordMisuse
from .json_parsing import JsonObject


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A secret that both sides know. `repr()` does not show it, nor its length."""

    secret: bytes = field(repr=False)
    """The octets, as they are stored and used."""

    @classmethod
    def from_bytes(cls, octets: bytes) -> Self:
        """Take a value's data."""
        return cls(octets)

    def to_bytes(self) -> bytes:
        """The value's data."""
        return self.secret

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Take a JSON string, or an object that says how the octets are written."""
        return cls(octets_module.from_json(value, "a secret key"))

    def to_json(self) -> str | JsonObject:
        """A JSON string if the secret is text, or else an object with base64; to be kept secret."""
        return octets_module.to_json(self.secret)

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

    def hashed(self) -> "SecretKey":
        """The secret that clients use who hash their password: its SHA-1 in lower-case hexadecimal digits."""
        return SecretKey(hashlib.sha1(self.secret, usedforsecurity=False).hexdigest().encode("ascii"))
