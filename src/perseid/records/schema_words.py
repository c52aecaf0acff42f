"""The words of JSON Schemas that are understood here: every part of a schema is looked at before it is used.

Only what the walk has seen is ever applied, as references lead nowhere else. `schemas` says why each limit is there.
"""

from typing import Final
from urllib.parse import unquote

from .errors import InvalidData
from .patterns import Matcher, compiled

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MAX_SCHEMA_PARTS: Final = 1_000
"""The most schemas inside a schema."""

MAX_SCHEMA_PATTERNS: Final = 32
"""The most different expressions in a schema: to compile one takes some hundredths of a second at worst."""

_MAX_SHOWN: Final = 120
PARTS: Final = frozenset(
    {"additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames", "contentSchema"}
)
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
RULES: Final = frozenset(
    {
        *("type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains"),
        *("maxProperties", "minProperties", "required", "dependentRequired", "$ref"),
    }
)
_REMARKS: Final = frozenset(
    {
        *("$anchor", "$comment", "title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples"),
        *("format", "contentEncoding", "contentMediaType"),
    }
)
ROOT_ONLY: Final = frozenset({"$schema", "$id"})


class Walk:
    """Goes through every part of a schema that is a schema, without recursion beyond the bound of JSON."""

    def __init__(self) -> None:
        self._places: set[str] = set()
        self._references: list[tuple[str, object]] = []
        self.matchers: dict[str, Matcher] = {}
        """The expressions of the schema, compiled."""

    def check(self, plain: object) -> None:
        """Refuse what is not understood, or could not be bounded."""
        self._part(plain, "")
        for place, reference in self._references:
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise _objection(place, "$ref leads out of the schema, and nothing is fetched; write #/$defs/…")
            if unquote(reference[1:]) not in self._places:
                raise _objection(place, f"$ref leads to {reference[:60]}, where no schema stands")

    def _part(self, plain: object, place: str) -> None:
        if len(self._places) >= MAX_SCHEMA_PARTS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PARTS:,} schemas in it")
        self._places.add(place)
        if isinstance(plain, bool):
            return
        if not isinstance(plain, dict):
            raise _objection(place, "a schema is an object, true or false")
        for word, value in plain.items():
            self._word(word, value, place)

    def _word(self, word: str, value: object, place: str) -> None:
        below = f"{place}/{escaped(word)}"
        if word in PARTS:
            self._part(value, below)
        elif word in LISTS | MAPS:
            self._parts(word, value, below)
        elif word in ROOT_ONLY and not place:
            if word == "$schema" and value != DIALECT:
                raise _objection(below, f"the dialect is not {DIALECT}")
        elif word in RULES | _REMARKS:
            self._rule(word, value, below)
        else:
            raise _objection(below, f"{word[:40]!r} is no rule that is understood here")

    def _parts(self, word: str, value: object, place: str) -> None:
        if word in LISTS and isinstance(value, list):
            named: list[tuple[str, object]] = [(str(index), part) for index, part in enumerate(value)]
        elif word in MAPS and isinstance(value, dict):
            named = list(value.items())
        else:
            raise _objection(place, f"{word} is no {'list' if word in LISTS else 'object'} of schemas")
        for name, part in named:
            if word == "patternProperties":
                self._pattern(name, place)
            self._part(part, f"{place}/{escaped(name)}")

    def _rule(self, word: str, value: object, place: str) -> None:
        if word == "pattern":
            self._pattern(value, place)
        elif word == "$ref":
            self._references.append((place, value))
        elif word == "$anchor":
            if not isinstance(value, str) or not value or value[0] == "/" or value in self._places:
                raise _objection(place, "$anchor is no name, or one that stands here twice")
            self._places.add(value)

    def _pattern(self, pattern: object, place: str) -> None:
        if not isinstance(pattern, str):
            raise _objection(place, "a pattern is a text")
        if pattern not in self.matchers and len(self.matchers) >= MAX_SCHEMA_PATTERNS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PATTERNS} different patterns")
        try:
            self.matchers[pattern] = compiled(pattern)
        except InvalidData as problem:
            raise _objection(place, problem.message) from None


def _objection(place: str, message: str) -> InvalidData:
    return InvalidData(f"the schema cannot be used: at {shortened(place) or 'its root'}: {message}")


def shortened(text: str) -> str:
    """Of a long text the beginning: what is told may come from anybody."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def escaped(name: str) -> str:
    """A step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
