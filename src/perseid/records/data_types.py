"""Which type of value is read by which class, and how people write its data.

Every class has the same six conversions (`Data`). A type that nobody knows, and data that does not have the form
its type demands, are not errors: the value is kept and returned as bytes, and `interpret` says None, as if it were
not there.

The registry goes by what stands before the first dot, in any case of letters: `HS_SITE.6` is read as `HS_SITE`.
Where deployed software insists on exact spelling, ask `types` first.
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
"""What stands before data that is written in base64 where text is usual."""


class Data(Protocol):
    """What the data of a value says, with the same conversions for every type."""

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Self:
        """Take the data of a value."""
        ...

    def to_bytes(self) -> bytes:
        """The data of a value."""
        ...

    @classmethod
    def from_json(cls, obj: object, /) -> Self:
        """Take a plain object."""
        ...

    def to_json(self) -> object:
        """A plain object."""
        ...

    @classmethod
    def from_text(cls, text: str, /) -> Self:
        """Take what people write."""
        ...

    def to_text(self) -> str:
        """What people write."""
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
    """The class that reads the data of a type; None if nobody knows it."""
    return _CLASSES.get(types.get_base_type(type_))


def interpret(value: Value) -> Data | None:
    """What a value's data says; None if the type is not known or the data has not its form."""
    class_ = find_data_class(value.type)
    return None if class_ is None else _try_decode(class_, value.data)


def interpret_as(value: Value, class_: type[D]) -> D | None:
    """What a value's data says if it is of the wanted kind."""
    decoded = interpret(value)
    return decoded if isinstance(decoded, class_) else None


def data_from_text(type_: str, text: str) -> bytes:
    """The data of a value as people write it behind `TYPE=`: the type's natural form, or `base64:…`.

    For types that nobody knows it is the text itself.
    """
    if text.startswith(BASE64_PREFIX):
        return check_data_length(from_base64(text.removeprefix(BASE64_PREFIX), "the data"))
    return _encode((find_data_class(type_) or Text).from_text(text))


def data_from_json(type_: str, obj: object) -> bytes:
    """The data of a value from the plain object that its type has in JSON; a string for types nobody knows."""
    return _encode((find_data_class(type_) or Text).from_json(obj))


def data_to_text(value: Value) -> str:
    """What people would write: the inverse of `data_from_text`, exact in every case."""
    decoded = _try_decode(find_data_class(value.type) or Text, value.data)
    if decoded is not None and decoded.to_bytes() == value.data:
        try:
            text = decoded.to_text()
        except RecordMisuse:  # a secret that is no text
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
    """Refuse more data than one value can hold."""
    if len(data) > MAX_BYTES:
        raise InvalidData(f"{len(data):,} bytes of data are too many; {MAX_BYTES:,} are the most")
    return data


def _encode(decoded: Data) -> bytes:
    try:
        return check_data_length(decoded.to_bytes())
    except RecordMisuse as problem:  # what has a text or JSON form may still be too long for its field
        raise InvalidData(problem.message) from None
