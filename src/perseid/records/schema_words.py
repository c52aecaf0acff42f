"""The words of JSON Schemas that are understood here: every part of a schema is looked at before it is used.

Only what the walk has seen is ever applied, as references lead nowhere else. `schemas` says why each limit is there.
"""

from typing import Final
from urllib.parse import unquote

from .errors import InvalidData
from .patterns import MAX_PREPARING, Matcher, compiled

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MAX_SCHEMA_PARTS: Final = 1_000
"""The most schemas inside a schema."""

MAX_SCHEMA_PATTERNS: Final = 32
"""The most different expressions in a schema: to compile one takes some hundredths of a second at worst."""

# What making a schema ready costs, in the measure of `MAX_PREPARING`: most is the library's check by the dialect's own.
_PART: Final = 8
_WORD: Final = 2
_OCTETS: Final = 16  # so many cost 1
_TYPES: Final = 7  # that JSON has
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

    def __init__(self, octets: int) -> None:
        self._places: set[str] = set()
        self._anchors: dict[str, str] = {}
        self._anchored: list[dict[str, object]] = []
        self._references: list[tuple[str, dict[str, object]]] = []
        self.matchers: dict[str, Matcher] = {}
        """The expressions of the schema, compiled."""
        self.cost = octets // _OCTETS
        """What making the schema ready costs, for `Effort.prepare`."""

    def check(self, plain: object) -> None:
        """Refuse what is not understood, or could not be bounded."""
        self._part(plain, "")
        for place, part in self._references:
            reference = part["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise _objection(place, "$ref leads out of the schema, and nothing is fetched; write #/$defs/…")
            # Percent signs have a meaning in paths only: that is how the library reads them.
            name = reference[1:]
            if not (unquote(name) in self._places if name.startswith("/") else name in ("", *self._anchors)):
                raise _objection(place, f"$ref leads to {reference[:60]}, where no schema stands")

    def replace_anchors(self) -> None:
        """Have references lead to the places of anchors, and take these away; of a schema that was checked."""
        for _, part in self._references:
            name = str(part["$ref"])[1:]
            if name in self._anchors:
                part["$ref"] = f"#{self._anchors[name].replace('%', '%25')}"
        for part in self._anchored:
            del part["$anchor"]

    def _pay(self, cost: int) -> None:
        self.cost += cost
        if self.cost > MAX_PREPARING:
            raise InvalidData("the schema has too many parts, or too large expressions, to be made ready for use")

    def _part(self, plain: object, place: str) -> None:
        if len(self._places) >= MAX_SCHEMA_PARTS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PARTS:,} schemas in it")
        self._places.add(place)
        self._pay(_PART)
        if isinstance(plain, bool):
            return
        if not isinstance(plain, dict):
            raise _objection(place, "a schema is an object, true or false")
        for word, value in plain.items():
            self._pay(_WORD)
            self._word(word, value, place)
            if word == "$ref":
                self._references.append((f"{place}/$ref", plain))
            elif word == "$anchor":
                self._anchor(plain, place)

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
        elif word == "type" and isinstance(value, list) and len(value) > _TYPES:
            # The library would compare each with each.
            raise _objection(place, f"type has more than the {_TYPES} types that there are")

    def _anchor(self, part: dict[str, object], place: str) -> None:
        name = part["$anchor"]
        if not isinstance(name, str) or not name or name[0] == "/" or name in self._anchors:
            raise _objection(f"{place}/$anchor", "$anchor is no name, or one that stands here twice")
        self._anchors[name] = place
        self._anchored.append(part)

    def _pattern(self, pattern: object, place: str) -> None:
        if not isinstance(pattern, str):
            raise _objection(place, "a pattern is a text")
        if pattern not in self.matchers and len(self.matchers) >= MAX_SCHEMA_PATTERNS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PATTERNS} different patterns")
        try:
            matcher = compiled(str(pattern))
        except InvalidData as problem:
            raise _objection(place, problem.message) from None
        if pattern not in self.matchers:
            self._pay(matcher.cost)
        self.matchers[pattern] = matcher


def _objection(place: str, message: str) -> InvalidData:
    return InvalidData(f"the schema cannot be used: at {shortened(place) or 'its root'}: {message}")


def shortened(text: str) -> str:
    """Of a long text the beginning: what is told may come from anybody."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def escaped(name: str) -> str:
    """A step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
