"""Types whose data is text in UTF-8: URL, EMAIL, DESC, HS_SERV, HS_ALIAS, and the base of those that hold a grammar.

What the text should look like is not judged here: a record keeps what its owner wrote. The three conversions are
the same text each time, so every one of them is exact.
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
            raise RecordMisuse("a text holds half of a surrogate pair and has no UTF-8 form") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Take the data of a value."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidData("the data is not UTF-8", error.start) from None
        return cls(text)

    def to_bytes(self) -> bytes:
        """The data of a value."""
        return self.text.encode("utf-8")

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Take a JSON string."""
        return cls(require_text(obj, "the data"))

    def to_json(self) -> str:
        """A JSON string."""
        return self.text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Take the text itself."""
        check_utf8(text, "the data")
        return cls(text)

    def to_text(self) -> str:
        """The text itself."""
        return self.text


@dataclass(frozen=True, slots=True)
class Url(Text):
    """URL: where the thing is."""


@dataclass(frozen=True, slots=True)
class Email(Text):
    """EMAIL: whom to write to."""


@dataclass(frozen=True, slots=True)
class Description(Text):
    """DESC: what it is, for people."""


@dataclass(frozen=True, slots=True)
class HandleText(Text):
    """The name of another handle."""

    @property
    def handle(self) -> Handle | None:
        """The handle; None if no record can be kept under that name."""
        return Handle.for_lookup(self.text)


@dataclass(frozen=True, slots=True)
class ServiceHandle(HandleText):
    """HS_SERV, HS_SERV.PREFIX: under this name are the sites; `0.NA/0.NA` means the root service."""


@dataclass(frozen=True, slots=True)
class Alias(HandleText):
    """HS_ALIAS: the handle is another name of this one. Servers do not follow it, proxies do."""
