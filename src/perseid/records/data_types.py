"""Data classes by type, and the text form of data.

Every class has the same six conversions (`Data`). Unknown types and malformed data are not errors: the value is stored
and returned as bytes, and `interpret` returns None.

The class depends on the part before the first dot, in any case: `HS_SITE.6` is read as `HS_SITE`. Where deployed
software requires exact spelling, check with `types` first.
"""

from typing import Final, Protocol, Self, TypeVar

from perseid.names.characters import fold

from . import types
from .admin import Admin, ValueList
from .binary import MAX_BYTES
from .encoding import from_base64, to_base64
from .errors import InvalidData, RecordMisuse
from .keys import SecretKey
from .locations import Locations
from .namespace import Namespace
from .public_keys import PublicKey
from .signatures import Certificate, RecordSignature
from .site import Site
from .text_types import Alias, Description, Email, ServiceHandle, Text, Url
from .type_definition import Definition
from .value import Value

BASE64_PREFIX: Final = "base64:"
"""Prefix of data that is written in base64 instead of text."""


class Data(Protocol):
    """Decoded data of a value, with the same conversions for every type."""

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Self:
        """Decode the data of a value."""
        ...

    def to_bytes(self) -> bytes:
        """Encode the data of a value."""
        ...

    @classmethod
    def from_json(cls, obj: object, /) -> Self:
        """Parse decoded JSON."""
        ...

    def to_json(self) -> object:
        """Convert to JSON."""
        ...

    @classmethod
    def from_text(cls, text: str, /) -> Self:
        """Parse the text form."""
        ...

    def to_text(self) -> str:
        """Format the text form."""
        ...


D = TypeVar("D", bound=Data)

_CLASSES: dict[str, type[Data]] = {
    fold(name): class_
    for name, class_ in (
        (types.HS_ADMIN, Admin),
        (types.HS_VLIST, ValueList),
        (types.HS_SITE, Site),
        (types.HS_NA_DELEGATE, Site),
        (types.HS_PUBKEY, PublicKey),
        (types.HS_SECKEY, SecretKey),
        (types.HS_SERV, ServiceHandle),
        (types.HS_ALIAS, Alias),
        (types.HS_NAMESPACE, Namespace),
        (types.HS_SIGNATURE, RecordSignature),
        (types.HS_CERT, Certificate),
        (types.URL, Url),
        (types.EMAIL, Email),
        (types.DESC, Description),
        (types.LOCATIONS, Locations),
        (types.DEFINITION, Definition),
    )
}


def find_data_class(type_: str) -> type[Data] | None:
    """The data class of a type; None if the type is unknown."""
    return _CLASSES.get(types.get_base_type(type_))


def interpret(value: Value) -> Data | None:
    """Decode the data of a value; None if the type is unknown or the data is malformed."""
    class_ = find_data_class(value.type)
    return None if class_ is None else _try_decode(class_, value.data)


def interpret_as(value: Value, class_: type[D]) -> D | None:
    """Decode the data of a value if it is of the given class."""
    decoded = interpret(value)
    return decoded if isinstance(decoded, class_) else None


def data_from_text(type_: str, text: str) -> bytes:
    """Encode data from the text after `TYPE=`: the text form of the type, or `base64:…`.

    For unknown types it is the text itself.
    """
    if text.startswith(BASE64_PREFIX):
        return check_data_length(from_base64(text.removeprefix(BASE64_PREFIX), "the data"))
    return _encode((find_data_class(type_) or Text).from_text(text))


def data_from_json(type_: str, obj: object) -> bytes:
    """Encode data from the JSON form of the type; a string for unknown types."""
    return _encode((find_data_class(type_) or Text).from_json(obj))


def data_to_text(value: Value) -> str:
    """Format data as text: the exact inverse of `data_from_text`."""
    decoded = _try_decode(find_data_class(value.type) or Text, value.data)
    if decoded is not None and decoded.to_bytes() == value.data:
        try:
            text = decoded.to_text()
        except RecordMisuse:  # a secret that is not text
            text = BASE64_PREFIX
        if not text.startswith(BASE64_PREFIX):
            return text
    return BASE64_PREFIX + to_base64(value.data)


def _try_decode(class_: type[D], data: bytes) -> D | None:
    try:
        return class_.from_bytes(data)
    except InvalidData:
        return None


def check_data_length(data: bytes) -> bytes:
    """Reject data that is too long for a value."""
    if len(data) > MAX_BYTES:
        raise InvalidData(f"the data has {len(data):,} bytes; the maximum is {MAX_BYTES:,}")
    return data


def _encode(decoded: Data) -> bytes:
    try:
        return check_data_length(decoded.to_bytes())
    except RecordMisuse as problem:  # text or JSON may be too long for its binary field
        raise InvalidData(problem.message) from None
