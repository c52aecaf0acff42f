"""TOML text of policies: the kinds of keys, their parser and formatter, and bounds for untrusted TOML.

The text is flat on purpose: in TOML a key that is written below a `[table]` belongs to that table, and a rule that is
silently in the wrong table would have no effect.

A key has three forms: the *plain* object of a TOML parser (str, int, bool, list, dict), the *value* in the policy, and
the text.

The standard library's parser has no bounds: a dotted key, `a.a.a… = 1`, takes quadratic time, and nesting is as deep as
the text. So `validate_toml` checks the text first, in linear time. It skips strings and comments as the parser does;
the parser stops at a string that does not end, so what follows it does not matter.
"""

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from perseid.names.characters import check_blanks, check_characters, fold
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.suggest import did_you_mean, nearest
from perseid.names.uri import parse_user_input
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject, write_json
from perseid.schema.namespaces import MAX_TEXT_BYTES

MAX_DOTS: Final = 32
"""Dots outside of strings, which separate the parts of keys; flat text hardly needs any. With this many, 16 KiB are
parsed in 30 milliseconds at worst; with a thousand it takes half a second."""

MAX_NESTING: Final = 8
"""How deep lists and tables can be nested; a policy needs one level, and `[[name]]` two."""

_STRING_OR_COMMENT: Final = re.compile(
    r"""
      \"{3} (?: \\. | [^\\] )*? (?: \"{3,5} | \Z )          # a multi-line string
    | '{3} .*? (?: '{3,5} | \Z )                            # the same, literal
    | " (?: [^"\\\n] | \\[^\n] )*+ (?: " | .* )             # a string; one that does not end takes the rest
    | ' [^'\n]*+ (?: ' | .* )
    | \# [^\n]*+                                            # a comment
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def validate_toml(text: str) -> str | None:
    """Why a text must not be parsed; None if it is fine."""
    rest = _STRING_OR_COMMENT.sub("", text)
    dots = rest.count(".")
    if dots > MAX_DOTS:
        return f"it has {dots:,} dots outside of strings; the limit is {MAX_DOTS}"
    depth = 0
    for bracket in _BRACKET.finditer(rest):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_NESTING:
            return f"lists and tables are nested more than {MAX_NESTING} levels deep"
    return None


MAX_TYPE: Final = 255
"""The longest name of a type, in characters; the longest in use have about 50."""

MAX_LINE_LENGTH: Final = 160
"""How much of a policy's line a refusal repeats: enough to find it, short enough for a message."""

Options: TypeAlias = tuple[tuple[str, str | int | bool], ...]
"""Named options in alphabetical order; a dict is not hashable."""

_OPTION_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class InvalidPolicy(ValueError):
    """A policy is invalid; nothing was stored."""

    def __init__(self, key: str | None, message: str) -> None:
        super().__init__(key, message)
        self.key = key
        """The invalid key; None for the text as a whole."""
        self.message = message
        """What is wrong, for people."""

    def __str__(self) -> str:
        return self.message if self.key is None else f"{self.key}: {self.message}"


class Kind(ABC):
    """The kind of values that a key has."""

    expects: str
    """What is expected, for error messages and the manual."""

    @abstractmethod
    def value(self, plain: object) -> object:
        """The value of a plain object; None if its type is wrong."""

    def plain(self, value: Any) -> object:
        """The plain object of a value."""
        return value

    @abstractmethod
    def validate(self, value: Any) -> str | None:
        """What is wrong with a value; None if it is valid."""

    @abstractmethod
    def schema(self) -> JsonObject:
        """The JSON Schema of a value."""

    def read(self, key: str, plain: object) -> object:
        """Parse a plain object from a policy's text."""
        value = self.value(plain)
        if value is None:
            raise InvalidPolicy(key, f"expected {self.expects}, not {_toml_kind(plain)}")
        return value

    def check(self, key: str, value: object) -> None:
        """Raise `InvalidPolicy` for an invalid value."""
        if (error := self.validate(value)) is not None:
            raise InvalidPolicy(key, error)


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A string of limited length, optionally with a pattern."""

    max_length: int
    pattern: str | None = None
    expects: str = "a string"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, str) else None

    def validate(self, value: Any) -> str | None:
        if len(value) > self.max_length:
            return f"the string has {len(value):,} characters; the limit is {self.max_length:,}"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"expected {self.expects}, not {quote_text(value)}"
        return None

    def schema(self) -> JsonObject:
        pattern = {} if self.pattern is None else {"pattern": f"^(?:{self.pattern})$"}
        return {"type": "string", "maxLength": self.max_length, **pattern}


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """A boolean."""

    expects: str = "true or false"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, bool) else None

    def validate(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else f"expected {self.expects}"

    def schema(self) -> JsonObject:
        return {"type": "boolean"}


class Number(Kind):
    """An integer in a range."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self.expects = f"an integer from {low:,} to {high:,}"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, int) and not isinstance(plain, bool) else None

    def validate(self, value: Any) -> str | None:
        return None if self._low <= value <= self._high else f"expected {self.expects}"

    def schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self._low, "maximum": self._high}


class Choice(Kind):
    """One of a few strings."""

    def __init__(self, members: Iterable[Enum]) -> None:
        self._members: dict[object, Enum] = {member.value: member for member in members}
        self.expects = _join_or([format_toml(word) for word in self._members])

    def value(self, plain: object) -> object:
        if isinstance(plain, str) and plain not in self._members:
            return plain  # so that `validate` can quote it
        return self._members.get(plain) if isinstance(plain, str) else None

    def plain(self, value: Any) -> object:
        return value.value

    def validate(self, value: Any) -> str | None:
        return None if value in self._members.values() else f"expected {self.expects}, not {quote_text(str(value))}"

    def schema(self) -> JsonObject:
        return {"enum": list(self._members)}


@dataclass(frozen=True, slots=True)
class TypeName(Kind):
    """The type of values that the server writes; the types of the Handle System have their own meaning."""

    optional: bool = False
    expects: str = "the name of a type"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, str) else None

    def validate(self, value: Any) -> str | None:
        if not value and self.optional:
            return None
        if value.endswith("."):
            return f"{quote_text(value)} means a family of types; name a single type"
        if fold(value).startswith("HS_"):
            return f"{quote_text(value)} is a type of the Handle System; name your own type"
        return _validate_type(value)

    def schema(self) -> JsonObject:
        return {"type": "string", "minLength": 0 if self.optional else 1, "maxLength": MAX_TYPE}


class _StringList(Kind):
    """A list of strings."""

    def value(self, plain: object) -> object:
        if not isinstance(plain, list) or not all(isinstance(item, str) for item in plain):
            return None
        return tuple(plain)

    def plain(self, value: Any) -> object:
        return list(value)

    def schema(self) -> JsonObject:
        return {"type": "array", "items": {"type": "string", "minLength": 1}}


class TypeList(_StringList):
    """Types as in queries: `URL` is that type, `URL.` also includes its subtypes."""

    expects = "a list of types"

    def validate(self, value: Any) -> str | None:
        return next(filter(None, map(_validate_type, value)), None)


class Administrators(_StringList):
    """Administrators in the text form of the command line."""

    expects = "a list of administrators such as 200:0.NA/{prefix}"

    def validate(self, value: Any) -> str | None:
        for text in value:
            try:
                administrator = Admin.from_text(text).administrator
                Handle.parse(administrator.handle)
            except (InvalidData, InvalidName) as problem:
                return f"{quote_text(text)} is not an administrator: {problem}"
            if administrator.index < 0:
                return f"{quote_text(text)} is not an administrator: the index is negative"
        return None


@dataclass(frozen=True, slots=True)
class HandleName(Kind):
    """A bare handle; or empty."""

    expects: str = "a handle"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, str) else None

    def validate(self, value: Any) -> str | None:
        if not value:
            return None
        try:
            handle = str(parse_user_input(value).handle)
        except InvalidName as problem:
            return f"{quote_text(value)} is not a handle: {problem}"
        # `hdl:1/x` is a legal handle with the prefix `hdl:1`, which nobody intends.
        return None if handle == value else f"write the handle bare: {quote_text(handle)}, not {quote_text(value)}"

    def schema(self) -> JsonObject:
        return {"type": "string"}


class NamedOptions(Kind):
    """Options of a scheme: names with a string, an integer or a boolean each."""

    expects = "a table of options such as { version = 1 }"

    def value(self, plain: object) -> object:
        if not isinstance(plain, dict) or not all(isinstance(item, str | int) for item in plain.values()):
            return None
        return tuple(sorted(plain.items()))

    def plain(self, value: Any) -> object:
        return dict(value)

    def validate(self, value: Any) -> str | None:
        for name, item in value:
            if not _OPTION_NAME.fullmatch(name):
                return f"{quote_text(name)} is not a valid option name: use letters, digits and _"
            if isinstance(item, int) and abs(item) >= 1 << 63:
                return f"the number {name} has more than 64 bits"
        return None

    def schema(self) -> JsonObject:
        names = {"pattern": f"^{_OPTION_NAME.pattern}$"}
        return {
            "type": "object",
            "propertyNames": names,
            "additionalProperties": {"type": ["string", "integer", "boolean"]},
        }


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a policy: its kind, and what it is for, in one line."""

    kind: Kind
    about: str


def parse(text: str, keys: Mapping[str, Key]) -> dict[str, object]:
    """The values in a policy's text, without missing keys."""
    _check_size(text, "the policy")
    if (error := validate_toml(text)) is not None:
        raise InvalidPolicy(None, f"Invalid policy: {error}")
    try:
        plain = tomllib.loads(text)
    except ValueError as problem:
        raise InvalidPolicy(None, f"Invalid TOML: {problem}") from None
    for name in plain:
        if name not in keys:
            hint = did_you_mean(nearest(name, keys), f"keys: {', '.join(keys)}")
            raise InvalidPolicy(quote_text(name)[1:-1], f"unknown key; {hint}")
    return {name: keys[name].kind.read(name, item) for name, item in plain.items()}


def format_policy(values: Mapping[str, object], keys: Mapping[str, Key]) -> str:
    """The text of a complete policy: every key, each after a comment that says what it is for."""
    lines = [f"# {key.about}\n{format_line(name, values[name], key)}\n" for name, key in keys.items()]
    text = "\n".join(lines)
    _check_size(text, "the complete policy")
    return text


def format_line(name: str, value: object, key: Key) -> str:
    """A line of a policy: `forbidden_types = ["EMAIL"]`."""
    return f"{name} = {format_toml(key.kind.plain(value))}"


def format_toml(plain: object) -> str:
    """A plain object in TOML, on one line."""
    if isinstance(plain, list):
        return f"[{', '.join(map(format_toml, plain))}]"
    if isinstance(plain, dict):
        return f"{{ {', '.join(f'{name} = {format_toml(item)}' for name, item in plain.items())} }}" if plain else "{}"
    # TOML and JSON write strings, numbers and booleans alike, except for U+007F, which JSON does not escape.
    return write_json(plain).replace("\x7f", "\\u007F")


def truncate(text: str) -> str:
    """A line as a refusal shows it."""
    return text if len(text) <= MAX_LINE_LENGTH else text[:MAX_LINE_LENGTH] + "…"


def _check_size(text: str, what: str) -> None:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        message = f"character {error.start + 1} is half of a surrogate pair and has no UTF-8 form"
        raise InvalidPolicy(None, message) from None
    if size > MAX_TEXT_BYTES:
        message = f"{what} has {size:,} bytes; the limit is {MAX_TEXT_BYTES:,}"
        raise InvalidPolicy(None, message)


def _validate_type(type_: str) -> str | None:
    if not type_.strip("."):
        return "the name of a type is empty"
    if len(type_) > MAX_TYPE:
        return f"the type {quote_text(type_)} has {len(type_):,} characters; the limit is {MAX_TYPE}"
    try:
        check_characters(type_)
        check_blanks(type_, "type", 0)
    except InvalidName as problem:
        return f"{quote_text(type_)} is not a valid type: {problem.message}"
    return None


def _join_or(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]])


def _toml_kind(plain: object) -> str:
    """The TOML type of a plain object."""
    if isinstance(plain, bool):
        return "true" if plain else "false"
    names: dict[type, str] = {str: "a string", int: "an integer", float: "a float", dict: "a table"}
    if isinstance(plain, list):
        other = next((item for item in plain if not isinstance(item, str)), None)
        return "a list" if other is None else f"a list that contains {_toml_kind(other)}"
    return names.get(type(plain), "a date or time")
