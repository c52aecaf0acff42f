"""Types whose data is UTF-8 text: URL, EMAIL, DESC, HS_SERV, HS_ALIAS, and the base class of types with a syntax.

The text is not validated: a record keeps what its owner wrote. All conversions are exact.
"""

from dataclasses import dataclass
from typing import Self

from perseid.names.handle import Handle

from .errors import InvalidData, RecordMisuse
from .json_parsing import check_utf8, require_text


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    text: str
    """The data, decoded."""

    def __post_init__(self) -> None:
        try:
            self.text.encode("utf-8")
        except UnicodeEncodeError:
            raise RecordMisuse("the text contains a surrogate and cannot be encoded in UTF-8") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the data of a value."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidData("the data is not valid UTF-8", error.start) from None
        return cls(text)

    def to_bytes(self) -> bytes:
        """Encode the data of a value."""
        return self.text.encode("utf-8")

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse a JSON string."""
        return cls(require_text(obj, "the data"))

    def to_json(self) -> str:
        """A JSON string."""
        return self.text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Create from text."""
        check_utf8(text, "the data")
        return cls(text)

    def to_text(self) -> str:
        """The text itself."""
        return self.text


@dataclass(frozen=True, slots=True)
class Url(Text):
    """URL: the target."""


@dataclass(frozen=True, slots=True)
class Email(Text):
    """EMAIL: a contact address."""


@dataclass(frozen=True, slots=True)
class Description(Text):
    """DESC: a description."""


@dataclass(frozen=True, slots=True)
class HandleText(Text):
    """Text that names another handle."""

    @property
    def handle(self) -> Handle | None:
        """The handle; None if no record can exist under that name."""
        return Handle.for_lookup(self.text)


@dataclass(frozen=True, slots=True)
class ServiceHandle(HandleText):
    """HS_SERV, HS_SERV.PREFIX: the handle whose record has the sites; `0.NA/0.NA` means the root service."""


@dataclass(frozen=True, slots=True)
class Alias(HandleText):
    """HS_ALIAS: another handle for which this one is an alias. Proxies follow it, servers do not."""
