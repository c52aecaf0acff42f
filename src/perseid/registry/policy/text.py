"""TOML text of policies: bounds for untrusted TOML, its parser and formatter, and the kinds of keys.

The text is flat on purpose: in TOML a key that is written below a `[table]` belongs to that table, and a rule that is
silently in the wrong table would have no effect.

The standard library's parser has no bounds: a dotted key, `a.a.a… = 1`, takes quadratic time, and nesting is as deep as
the text. So `validate_toml` checks the text first, in linear time. It skips strings and comments as the parser does;
the parser stops at a string that does not end, so what follows it does not matter.

The kind of a key is its annotated type (`TypeName`, `Flag`): `msgspec` converts and checks what the type says, and the
kind's validator checks the rest. The handles in a stored policy may have been legal once: those in a new text are
checked by `Key.check_new`.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import partial
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta

from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle, check_blanks, check_characters, fold
from perseid.names.suggest import did_you_mean, nearest
from perseid.names.uri import parse_user_input
from perseid.records.admin import Admin
from perseid.records.encoding import write_json
from perseid.records.errors import InvalidData
from perseid.schema.namespaces import MAX_TEXT_BYTES

MAX_DOTS: Final = 32
"""Dots outside of strings, which separate the parts of keys; flat text hardly needs any. With this many, 16 KiB are
parsed in 30 milliseconds at worst; with a thousand it takes half a second."""

MAX_NESTING: Final = 8
"""How deep lists and tables can be nested; a policy needs one level, and `[[name]]` two."""

MAX_TYPE: Final = 255
"""The longest name of a type, in characters; the longest in use have about 50."""

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
_OPTION_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")


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


# Text


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


def parse(text: str, keys: Collection[str]) -> dict[str, Any]:
    """The plain objects in a policy's text, without missing keys."""
    check_size(text, "the policy")
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
    return plain


def check_size(text: str, what: str) -> None:
    """Refuse a text that is too long to store, or has no UTF-8 form."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        message = f"character {error.start + 1} is half of a surrogate pair and has no UTF-8 form"
        raise InvalidPolicy(None, message) from None
    if size > MAX_TEXT_BYTES:
        raise InvalidPolicy(None, f"{what} has {size:,} bytes; the limit is {MAX_TEXT_BYTES:,}")


def format_toml(obj: object) -> str:
    """An object in TOML, on one line."""
    if isinstance(obj, list | tuple):
        return f"[{', '.join(map(format_toml, obj))}]"
    if isinstance(obj, dict):
        return f"{{ {', '.join(f'{name} = {format_toml(item)}' for name, item in obj.items())} }}" if obj else "{}"
    # TOML and JSON write strings, numbers and booleans alike, except for U+007F, which JSON does not escape.
    return write_json(obj).replace("\x7f", "\\u007F")


# Kinds of keys


class Key:
    """One key of a policy, from the annotated type of its field: the last annotation describes it."""

    def __init__(self, name: str, annotated: Any) -> None:
        self.name = name
        self._holder = msgspec.defstruct("Holder", [("value", annotated)])  # the library compiles structures only once
        self._type, self._kind, described = get_args(annotated)
        self.about: str = described.description
        """What it is for, in one line."""
        self.expects: str = self._kind.extra["expects"]
        """What is expected, for error messages and the manual."""
        self.choices: tuple[str, ...] = tuple((self._kind.extra_json_schema or {}).get("enum", ()))
        """The values, if these are words of a list."""

    def convert(self, plain: object) -> Any:
        """The value of a plain object from a TOML parser; values stay as they are. Raises `InvalidPolicy`."""
        items = plain.values() if isinstance(plain, dict) else (plain,)
        try:
            if any(isinstance(item, float) for item in items):
                raise msgspec.ValidationError  # the library would convert 1.0 to 1
            value: Any = msgspec.convert({"value": plain}, self._holder).value  # type: ignore[attr-defined]
        except msgspec.ValidationError:
            raise InvalidPolicy(self.name, self._describe_mismatch(plain)) from None
        validate: Callable[[Any], str | None] | None = self._kind.extra.get("validate")
        if validate is not None and (error := validate(value)) is not None:
            raise InvalidPolicy(self.name, error)
        return dict(sorted(value.items())) if isinstance(value, dict) else value

    def check_new(self, value: Any) -> None:
        """Refuse a value that can be stored already but not be set any more. Raises `InvalidPolicy`."""
        validate: Callable[[Any], str | None] | None = self._kind.extra.get("validate_new")
        if validate is not None and (error := validate(value)) is not None:
            raise InvalidPolicy(self.name, error)

    def _describe_mismatch(self, plain: object) -> str:
        if isinstance(plain, str) and self._kind.max_length is not None and len(plain) > self._kind.max_length:
            return f"the string has {len(plain):,} characters; the limit is {self._kind.max_length:,}"
        if type(plain) is self._type is int:
            return f"expected {self.expects}"
        quotes = isinstance(plain, str) and issubclass(self._type, str | Enum)
        return f"expected {self.expects}, not {quote_text(str(plain)) if quotes else _toml_kind(plain)}"


def about(text: str) -> Meta:
    """What a key is for, in one line."""
    return Meta(description=text)


def number(low: int, high: int) -> Meta:
    """The kind of integers in a range."""
    return Meta(ge=low, le=high, extra={"expects": f"an integer from {low:,} to {high:,}"})


def choice(members: Iterable[Enum]) -> Meta:
    """The kind of a choice of all or some members of an enumeration."""
    allowed = {member: member.value for member in members}
    *words, last = map(format_toml, allowed.values())
    expects = f"{', '.join(words)} or {last}"

    def validate(value: Enum) -> str | None:
        return None if value in allowed else f"expected {expects}, not {quote_text(value.value)}"

    return Meta(extra={"expects": expects, "validate": validate}, extra_json_schema={"enum": list(allowed.values())})


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


def _validate_types(types: tuple[str, ...]) -> str | None:
    return next(filter(None, map(_validate_type, types)), None)


def _validate_new_types(types: tuple[str, ...]) -> str | None:
    joined = next((each for each in types if ", " in each or ("," in each and "/" not in each)), None)
    return None if joined is None else f"{quote_text(joined)} is a list; name each type by itself"


def _validate_new_schemes(schemes: tuple[str, ...]) -> str | None:
    for scheme in schemes:
        if scheme not in _WEB_SCHEMES and (meant := nearest(scheme, _WEB_SCHEMES, _SCHEME_SIMILARITY)):
            return f"{quote_text(scheme)} is not a URL scheme; did you mean {meant}?"
    return None


def _validate_schemes(schemes: tuple[str, ...]) -> str | None:
    wrong = next((each for each in schemes if not _URL_SCHEME.fullmatch(each)), None)
    return None if wrong is None else f"{quote_text(wrong)} is not a URL scheme; write it in lowercase, without a colon"


def _validate_own_type(type_: str) -> str | None:
    if type_.endswith("."):
        return f"{quote_text(type_)} means a family of types; name a single type"
    if fold(type_).startswith("HS_"):
        return f"{quote_text(type_)} is a type of the Handle System; name your own type"
    return _validate_type(type_)


def _validate_optional_type(type_: str) -> str | None:
    return _validate_own_type(type_) if type_ else None


def _validate_administrators(texts: tuple[str, ...], *, existing: bool = True) -> str | None:
    for text in texts:
        try:
            administrator = Admin.from_text(text).administrator
            Handle.parse(administrator.handle, existing=existing)
        except (InvalidData, InvalidName) as problem:
            return f"{quote_text(text)} is not an administrator: {problem}"
        if administrator.index < 0:
            return f"{quote_text(text)} is not an administrator: the index is negative"
    return None


def _validate_handle(name: str, *, existing: bool = True) -> str | None:
    if not name:
        return None
    try:
        handle = str(parse_user_input(name, for_lookup=True).handle)
        Handle.parse(handle, existing=existing)
    except InvalidName as problem:
        return f"{quote_text(name)} is not a handle: {problem}"
    # `hdl:1/x` is a legal handle with the prefix `hdl:1`, which nobody intends.
    return None if handle == name else f"write the handle bare: {quote_text(handle)}, not {quote_text(name)}"


def _validate_options(options: dict[str, str | int | bool]) -> str | None:
    for name, item in options.items():
        if not _OPTION_NAME.fullmatch(name):
            return f"{quote_text(name)} is not a valid option name: use letters, digits and _"
        if isinstance(item, int) and abs(item) >= 1 << 63:
            return f"the number {name} has more than 64 bits"
    return None


def _names_handles(expects: str, validate: Callable[..., str | None]) -> dict[str, object]:
    """Details of a key that names handles: stored ones stay valid, new ones must be legal."""
    return {"expects": expects, "validate": validate, "validate_new": partial(validate, existing=False)}


def _toml_kind(plain: object) -> str:
    """The TOML type of a plain object."""
    if isinstance(plain, bool):
        return "true" if plain else "false"
    names: dict[type, str] = {str: "a string", int: "an integer", float: "a float", dict: "a table"}
    if isinstance(plain, list):
        other = next((item for item in plain if not isinstance(item, str)), None)
        return "a list" if other is None else f"a list that contains {_toml_kind(other)}"
    return names.get(type(plain), "a date or time")


_URL_SCHEME: Final = re.compile("[a-z][a-z0-9+.-]*")
_WEB_SCHEMES: Final = ("http", "https")
_SCHEME_SIMILARITY: Final = 0.8
_OWN_TYPE: Final = {"expects": "the name of a type", "validate": _validate_own_type}
_NonEmpty = Annotated[str, Meta(extra_json_schema={"minLength": 1})]

Flag = Annotated[bool, Meta(extra={"expects": "true or false"})]
TypeName = Annotated[str, Meta(extra=_OWN_TYPE, extra_json_schema={"minLength": 1, "maxLength": MAX_TYPE})]
"""The type of values that the server writes; the types of the Handle System have their own meaning."""
OptionalTypeName = Annotated[
    str, Meta(extra=_OWN_TYPE | {"validate": _validate_optional_type}, extra_json_schema={"maxLength": MAX_TYPE})
]
TypeList = Annotated[
    tuple[_NonEmpty, ...],
    Meta(extra={"expects": "a list of types", "validate": _validate_types, "validate_new": _validate_new_types}),
]
"""Types as in queries: `URL` is that type, `URL.` also includes its subtypes."""
SchemeList = Annotated[
    tuple[Annotated[str, Meta(extra_json_schema={"pattern": "^[a-z][a-z0-9+.-]*$"})], ...],
    Meta(
        extra={
            "expects": "a list of URL schemes",
            "validate": _validate_schemes,
            "validate_new": _validate_new_schemes,
        }
    ),
]
"""Schemes of URLs, in lowercase."""
Administrators = Annotated[
    tuple[_NonEmpty, ...],
    Meta(extra=_names_handles("a list of administrators such as 200:0.NA/{prefix}", _validate_administrators)),
]
"""Administrators in the text form of the command line."""
HandleName = Annotated[str, Meta(extra=_names_handles("a handle", _validate_handle))]
"""A bare handle; or empty."""
Options = Annotated[
    dict[str, str | int | bool],
    Meta(
        extra={"expects": "a table of options such as { version = 1 }", "validate": _validate_options},
        extra_json_schema={"propertyNames": {"pattern": f"^{_OPTION_NAME.pattern}$"}},
    ),
]
"""Options of a scheme, in alphabetical order."""
