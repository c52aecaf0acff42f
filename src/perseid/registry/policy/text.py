"""What a TOML text may be like before it is read: the standard library's reader has no bounds of its own.

It takes time that grows with the square of the parts of a dotted key, `a.a.a… = 1`, and it nests as deeply as the text
does. A text of rules or settings is flat, so it is looked at first, in time that grows with its length alone.

Dots and brackets in texts and comments mean nothing, and are passed over as the reader does it. Where a text does not
end the reader stops; so it does not matter what comes after that.

How a policy is written: the kinds of keys there are, and the TOML text of them.

The text is flat on purpose: in TOML a key that is written below a `[table]` belongs to that table, and a rule that is
silently in the wrong place would be no rule.

A key has three forms: the *plain* object that a TOML reader makes (text, number, boolean, list, dict), the *value* that
the policy holds, and the text.
"""

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeAlias

from perseid.names.characters import check_blanks, check_characters, fold
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.uri import parse_user_input
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject, write_json

MAX_DOTS: Final = 32
"""Dots outside of texts, in all: those between the parts of keys, for which flat rules have hardly any use. With as
many, 16 KiB are read in 30 milliseconds at worst; with a thousand it is half a second."""

MAX_NESTING: Final = 8
"""How deep lists and tables stand in each other; a policy needs one level, and `[[name]]` two."""

_STRING_OR_COMMENT: Final = re.compile(
    r"""
      \"{3} (?: \\. | [^\\] )*? (?: \"{3,5} | \Z )          # a text of several lines
    | '{3} .*? (?: '{3,5} | \Z )                            # the same, without escapes
    | " (?: [^"\\\n] | \\[^\n] )*+ (?: " | .* )             # a text; one that does not end goes on for ever
    | ' [^'\n]*+ (?: ' | .* )
    | \# [^\n]*+                                            # a comment
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def validate_toml(text: str) -> str | None:
    """Why a text is not read at all, in words; None if it is."""
    rest = _STRING_OR_COMMENT.sub("", text)
    dots = rest.count(".")
    if dots > MAX_DOTS:
        return f"keys are single words, and here are {dots:,} dots outside of texts; {MAX_DOTS} are the most"
    depth = 0
    for found in _BRACKET.finditer(rest):
        depth += 1 if found[0] in "[{" else -1
        if depth > MAX_NESTING:
            return f"lists and tables stand in each other, very deep; {MAX_NESTING} levels are the most"
    return None


MAX_TEXT_BYTES: Final = 16_384
"""The longest text of a policy: three times the longest sensible one. What else it may be like: `toml_bounds`."""

MAX_TYPE: Final = 255
"""The longest name of a type, in characters; the longest in use have some 50."""

MAX_LINE_LENGTH: Final = 160
"""How much of a policy's line is repeated in a refusal: enough to find it, short enough for a message."""

Options: TypeAlias = tuple[tuple[str, str | int | bool], ...]
"""Named options in alphabetical order; a dict would not be frozen."""

_OPTION_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class InvalidPolicy(ValueError):
    """A policy that cannot be taken; it is refused before anything is stored."""

    def __init__(self, key: str | None, message: str) -> None:
        super().__init__(key, message)
        self.key = key
        """The key at fault; None where the text as a whole is."""
        self.message = message
        """A sentence for people that says what is expected."""

    def __str__(self) -> str:
        return self.message if self.key is None else f"{self.key}: {self.message}"


class Kind(ABC):
    """What a key takes."""

    expects: str
    """The same in words, for refusals and for the manual."""

    @abstractmethod
    def value(self, plain: object) -> object:
        """The value that a plain object stands for, or None if it is of another type altogether."""

    def plain(self, value: Any) -> object:
        """The plain object of a value."""
        return value

    @abstractmethod
    def validate(self, value: Any) -> str | None:
        """What is wrong with a value, in words."""

    @abstractmethod
    def schema(self) -> JsonObject:
        """What a JSON Schema can say about it."""

    def read(self, key: str, plain: object) -> object:
        """Take a plain object from a policy's text."""
        value = self.value(plain)
        if value is None:
            raise InvalidPolicy(key, f"{self.expects} is expected, not {_toml_kind(plain)}")
        return value

    def check(self, key: str, value: object) -> None:
        """Refuse a value that the key cannot have."""
        if (validate := self.validate(value)) is not None:
            raise InvalidPolicy(key, validate)


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Any text of bounded length, or one that follows a pattern."""

    max_length: int
    pattern: str | None = None
    expects: str = "a text"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, str) else None

    def validate(self, value: Any) -> str | None:
        if len(value) > self.max_length:
            return f"the text has {len(value):,} characters; {self.max_length:,} are the most"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"{self.expects} is expected, not {quote_text(value)}"
        return None

    def schema(self) -> JsonObject:
        pattern = {} if self.pattern is None else {"pattern": f"^(?:{self.pattern})$"}
        return {"type": "string", "maxLength": self.max_length, **pattern}


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """Yes or no."""

    expects: str = "true or false"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, bool) else None

    def validate(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else f"{self.expects} is expected"

    def schema(self) -> JsonObject:
        return {"type": "boolean"}


class Number(Kind):
    """A whole number in a range."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self.expects = f"a whole number from {low:,} to {high:,}"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, int) and not isinstance(plain, bool) else None

    def validate(self, value: Any) -> str | None:
        return None if self._low <= value <= self._high else f"{self.expects} is expected"

    def schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self._low, "maximum": self._high}


class Choice(Kind):
    """One of a few words."""

    def __init__(self, members: Iterable[Enum]) -> None:
        self._members: dict[object, Enum] = {member.value: member for member in members}
        self.expects = _join_or([format_toml(word) for word in self._members])

    def value(self, plain: object) -> object:
        if isinstance(plain, str) and plain not in self._members:
            return plain  # `objection` repeats the word; a wrong type would only be named
        return self._members.get(plain) if isinstance(plain, str) else None

    def plain(self, value: Any) -> object:
        return value.value

    def validate(self, value: Any) -> str | None:
        return None if value in self._members.values() else f"{self.expects} is expected, not {quote_text(str(value))}"

    def schema(self) -> JsonObject:
        return {"enum": list(self._members)}


@dataclass(frozen=True, slots=True)
class TypeName(Kind):
    """The type of values that the server itself writes; the Handle System's own types have meanings already."""

    optional: bool = False
    expects: str = "the name of a type"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, str) else None

    def validate(self, value: Any) -> str | None:
        if not value and self.optional:
            return None
        if value.endswith("."):
            return f"{quote_text(value)} means a whole family of types; here one is needed"
        if fold(value).startswith("HS_"):
            return f"{quote_text(value)} has its meaning from the Handle System already; name a type of your own"
        return _validate_type(value)

    def schema(self) -> JsonObject:
        return {"type": "string", "minLength": 0 if self.optional else 1, "maxLength": MAX_TYPE}


class _StringList(Kind):
    """A list of texts."""

    def value(self, plain: object) -> object:
        if not isinstance(plain, list) or not all(isinstance(item, str) for item in plain):
            return None
        return tuple(plain)

    def plain(self, value: Any) -> object:
        return list(value)

    def schema(self) -> JsonObject:
        return {"type": "array", "items": {"type": "string", "minLength": 1}}


class TypeList(_StringList):
    """Types as queries name them: `URL` is that type, `URL.` is it and all below."""

    expects = "a list of types"

    def validate(self, value: Any) -> str | None:
        return next(filter(None, map(_validate_type, value)), None)


class Administrators(_StringList):
    """Administrators in their text form, which the command line has too."""

    expects = "a list of administrators such as 200:0.NA/{prefix}"

    def validate(self, value: Any) -> str | None:
        for text in value:
            try:
                administrator = Admin.from_text(text).administrator
                Handle.parse(administrator.handle)
            except (InvalidData, InvalidName) as problem:
                return f"{quote_text(text)} is no administrator: {problem}"
            if administrator.index < 0:
                return f"{quote_text(text)} is no administrator: an index is not negative"
        return None


@dataclass(frozen=True, slots=True)
class HandleName(Kind):
    """A handle as it is stored, bare; or none."""

    expects: str = "a handle"

    def value(self, plain: object) -> object:
        return plain if isinstance(plain, str) else None

    def validate(self, value: Any) -> str | None:
        if not value:
            return None
        try:
            meant = parse_user_input(value).handle
        except InvalidName as problem:
            return f"{quote_text(value)} is no handle: {problem}"
        # `hdl:1/x` is a legal name with the prefix `hdl:1`, and nobody who writes it means that.
        return (
            None if str(meant) == value else f"write the handle bare: {quote_text(str(meant))}, not {quote_text(value)}"
        )

    def schema(self) -> JsonObject:
        return {"type": "string"}


class NamedOptions(Kind):
    """Options of a scheme: names with a text, a number or a flag each."""

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
                return f"{quote_text(name)} is no name of an option: letters, digits and _ make one"
            if isinstance(item, int) and abs(item) >= 1 << 63:
                return f"the number of {name} has more than 64 bits"
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
    """One key of a policy: what it takes and what it is for, in one line."""

    kind: Kind
    about: str


def parse(text: str, keys: Mapping[str, Key]) -> dict[str, object]:
    """The values that a policy's text gives; what it does not say is not in the answer."""
    _check_size(text, "the policy")
    if (validate := validate_toml(text)) is not None:
        raise InvalidPolicy(None, f"this is not a policy: {validate}")
    try:
        plain = tomllib.loads(text)
    except ValueError as error:
        raise InvalidPolicy(None, f"this is not TOML: {error}") from None
    for name in plain:
        if name not in keys:
            near = get_close_matches(name, keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            raise InvalidPolicy(quote_text(name)[1:-1], f"there is no such key; {hint}")
    return {name: keys[name].kind.read(name, item) for name, item in plain.items()}


def format_policy(values: Mapping[str, object], keys: Mapping[str, Key]) -> str:
    """The text of a complete policy: every key, with a line above it that says what it is for."""
    lines = [f"# {key.about}\n{format_line(name, values[name], key)}\n" for name, key in keys.items()]
    text = "\n".join(lines)
    _check_size(text, "the complete policy")
    return text


def format_line(name: str, value: object, key: Key) -> str:
    """The line of a policy that says this: `forbidden_types = ["EMAIL"]`."""
    return f"{name} = {format_toml(key.kind.plain(value))}"


def format_toml(plain: object) -> str:
    """A plain object in TOML, on one line."""
    if isinstance(plain, list):
        return f"[{', '.join(map(format_toml, plain))}]"
    if isinstance(plain, dict):
        return f"{{ {', '.join(f'{name} = {format_toml(item)}' for name, item in plain.items())} }}" if plain else "{}"
    # TOML and JSON write texts, numbers and flags alike, but for U+007F, which JSON does not escape.
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
        message = f"{what} has {size:,} octets; {MAX_TEXT_BYTES:,} are the most"
        raise InvalidPolicy(None, message)


def _validate_type(type_: str) -> str | None:
    if not type_.strip("."):
        return "a type has a name; this one is empty"
    if len(type_) > MAX_TYPE:
        return f"the type {quote_text(type_)} has {len(type_):,} characters; {MAX_TYPE} are the most"
    try:
        check_characters(type_)
        check_blanks(type_, "type", 0)
    except InvalidName as problem:
        return f"{quote_text(type_)} is no type: {problem.message}"
    return None


def _join_or(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]])


def _toml_kind(plain: object) -> str:
    """What a plain object is, in TOML's words."""
    if isinstance(plain, bool):
        return "true" if plain else "false"
    names: dict[type, str] = {str: "a text", int: "a whole number", float: "a number with a fraction", dict: "a table"}
    if isinstance(plain, list):
        other = next((item for item in plain if not isinstance(item, str)), None)
        return "a list" if other is None else f"a list with {_toml_kind(other)} in it"
    return names.get(type(plain), "a date or time")
