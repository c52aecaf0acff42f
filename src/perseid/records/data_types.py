"""Data classes by type, the text form of data, and PERSEID_TYPE, the definition of a type.

Every class has the same six conversions (`Data`). Unknown types and malformed data are not errors: the value is stored
and returned as bytes, and `interpret` returns None.

The class depends on the part before the first dot, in any case: `HS_SITE.6` is read as `HS_SITE`. Where deployed
software requires exact spelling, check with `types` first.

A definition is in the record of the type's handle (A6):

    {"name": "ORCID iD", "description": "Who wrote it.", "pattern": "[0-9]{4}(-[0-9]{4}){2}-[0-9]{3}[0-9X]",
     "example": "0000-0002-1825-0097"}

The syntax of the data is given by `pattern`, a regular expression for the whole text, or by `schema`, a JSON Schema, or
not at all. A definition with an invalid pattern or schema can be read, but no data is valid for it; `check` validates
new definitions. See docs/reference/types.md.
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, Protocol, Self, TypeVar, cast

from perseid.names.handle import fold

from . import types
from .admin import Admin, ValueList
from .binary import MAX_BYTES
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
from .json_schema import MAX_CHECKED_BYTES, Violation, compile_schema
from .patterns import BudgetExceeded, ValidationBudget, compile_pattern
from .record import Value
from .types import Alias, Description, Email, ServiceHandle, Text, Url

BASE64_PREFIX: Final = "base64:"
"""Prefix of data that is written in base64 instead of text."""

MAX_DEFINITION_BYTES: Final = 32_768
"""Maximum size of a definition: twice the longest schema."""

MAX_TYPE_NAME_LENGTH: Final = 200
"""Maximum length of the name of a type, in characters."""


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


@dataclass(frozen=True, slots=True)
class Definition(Text):
    """The definition of a type, parsed from its JSON text."""

    name: str = field(init=False, compare=False)
    """Display name."""
    description: str = field(init=False, compare=False)
    """Meaning of the values."""
    pattern: str | None = field(init=False, compare=False)
    """A regular expression that the whole data must match."""
    schema: str | None = field(init=False, compare=False)
    """A JSON Schema for the data, as JSON text."""
    example: str | None = field(init=False, compare=False)
    """Valid data of the type."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        data = self.to_bytes()
        if len(data) > MAX_DEFINITION_BYTES:
            message = f"the definition has {len(data):,} bytes; the maximum is {MAX_DEFINITION_BYTES:,}"
            raise InvalidData(message)
        members = require_object(parse_json(data), "the definition of a type")
        name = require_text(require_member(members, "name", "the definition"), "the name of the type")
        if not 0 < len(name.strip()) <= len(name) <= MAX_TYPE_NAME_LENGTH:
            raise InvalidData(f"the name of the type must have 1 to {MAX_TYPE_NAME_LENGTH} characters")
        if "pattern" in members and "schema" in members:
            raise InvalidData("the definition has both a pattern and a schema; use only one")
        schema = members.get("schema")
        for key, value in (
            ("name", name),
            ("description", require_text(require_member(members, "description", "the definition"), "the description")),
            ("pattern", _optional_text(members, "pattern")),
            ("schema", None if "schema" not in members else write_json(schema)),
            ("example", _optional_text(members, "example")),
        ):
            object.__setattr__(self, key, value)

    @classmethod
    def make(
        cls,
        name: str,
        description: str,
        *,
        pattern: str | None = None,
        schema: object = None,
        example: str | None = None,
    ) -> Self:
        """Create a definition; the schema is decoded JSON."""
        parts: JsonObject = {"name": name, "description": description, "pattern": pattern, "schema": schema}
        parts["example"] = example
        return cls(write_json({part: value for part, value in parts.items() if value is not None}))

    @property
    def syntax(self) -> str | None:
        """Description of the syntax of the data; None if there is none."""
        if self.pattern is not None:
            return f"text that matches {self.pattern}"
        return None if self.schema is None else f"JSON that is valid for {self.schema}"

    def check(self) -> None:
        """Reject a definition with an invalid pattern, schema or example."""
        if self.pattern is not None:
            compile_pattern(self.pattern)
        if self.schema is not None:
            compile_schema(self.schema)
        if (
            self.example is not None
            and (violation := self.violation(self.example.encode("utf-8"), ValidationBudget())) is not None
        ):
            raise InvalidData(f"the example is not valid for the type: {violation}")

    def violation(self, data: bytes, budget: ValidationBudget) -> Violation | None:
        """Validate data of the type; None if it is valid or there is no syntax."""
        try:
            if self.pattern is not None:
                return self._check_pattern(self.pattern, data, budget)
            return None if self.schema is None else self._check_schema(self.schema, data, budget)
        except InvalidData as problem:
            return Violation("", problem=str(problem))

    def _check_pattern(self, pattern: str, data: bytes, budget: ValidationBudget) -> Violation | None:
        if len(data) > MAX_CHECKED_BYTES:
            message = f"the data has {len(data):,} bytes; the maximum for validation is {MAX_CHECKED_BYTES:,}"
            raise BudgetExceeded(message)
        text = Text.from_bytes(data).text
        matcher = compile_pattern(pattern)
        budget.prepare(pattern, matcher.cost)
        return None if matcher.matches(text, budget) else Violation(f'"pattern": {write_json(pattern)}')

    def _check_schema(self, text: str, data: bytes, budget: ValidationBudget) -> Violation | None:
        schema = compile_schema(text)
        budget.prepare(text, schema.cost)
        return schema.violation(data, budget)


def _optional_text(members: JsonObject, name: str) -> str | None:
    return require_text(members[name], f"the {name} of the type") if name in members else None


D = TypeVar("D", bound=Data)

_CLASSES: dict[str, type[Data] | str] = {
    fold(name): class_
    for name, class_ in (
        (types.HS_ADMIN, Admin),
        (types.HS_VLIST, ValueList),
        (types.HS_SITE, "site.Site"),
        (types.HS_NA_DELEGATE, "site.Site"),
        (types.HS_PUBKEY, "keys.PublicKey"),
        (types.HS_SECKEY, "keys.SecretKey"),
        (types.HS_SERV, ServiceHandle),
        (types.HS_ALIAS, Alias),
        (types.HS_NAMESPACE, "namespace.Namespace"),
        (types.HS_SIGNATURE, "signatures.RecordSignature"),
        (types.HS_CERT, "signatures.Certificate"),
        (types.URL, Url),
        (types.EMAIL, Email),
        (types.DESC, Description),
        (types.LOCATIONS, "locations.Locations"),
        (types.DEFINITION, Definition),
    )
}
"""The data classes of types. Those with a module are loaded when they are used: cryptography and XML take 50 ms."""


def find_data_class(type_: str) -> type[Data] | None:
    """The data class of a type; None if the type is unknown."""
    base = types.get_base_type(type_)
    found = _CLASSES.get(base)
    if isinstance(found, str):
        module, name = found.split(".")
        found = _CLASSES[base] = cast("type[Data]", getattr(import_module(f".{module}", __package__), name))
    return found


def interpret(value: Value) -> Data | None:
    """Decode the data of a value; None if the type is unknown or the data is malformed."""
    class_ = find_data_class(value.type)
    return None if class_ is None else _try_decode(class_, value.data)


def interpret_as(value: Value, class_: type[D]) -> D | None:
    """Decode the data of a value if it is of the given class."""
    found = find_data_class(value.type)
    return _try_decode(found, value.data) if found is not None and issubclass(found, class_) else None


def data_from_text(type_: str, text: str) -> bytes:
    """Encode data from the text after `TYPE=`: the text form of the type, or `base64:…`.

    For unknown types it is the text itself.
    """
    if text.startswith(BASE64_PREFIX):
        return check_data_length(from_base64(text.removeprefix(BASE64_PREFIX), "the data"))
    return data_from_cell(type_, text)


def data_from_cell(type_: str, text: str) -> bytes:
    """Encode data from the text form of the type, without any other form: `base64:…` is that text."""
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
