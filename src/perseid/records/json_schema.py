"""The words of JSON Schemas that are understood here: every part of a schema is looked at before it is used.

Only what the walk has seen is ever applied, as references lead nowhere else. `schemas` says why each limit is there.

JSON Schemas of strangers: checked within bounds before one is used, and applied within bounds.

The dialect is that of 2020-12, and the library is `jsonschema`, whose rules can be replaced and counted one by one.
That is what bounds them: every rule that is applied is a step, expressions run on the engine of linear time
(`patterns`), and nothing is ever fetched. What could lead around that is refused when a schema is written:

- references to anything but a part of the schema itself that is a schema (`#`, `#/$defs/name`, `#anchor`; for the
  library the last is made one like the second, as it would look for the anchor in all parts at each use);
- `$schema` other than 2020-12, or in a part: the library would change to rules that are not counted;
- `$id` in a part, `$dynamicRef` and its kin, `unevaluatedItems` and `unevaluatedProperties`;
- words that are no rules: a slip would check nothing, and nobody would notice.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final
from urllib.parse import unquote

from .errors import InvalidData
from .json_parsing import parse_json, write_json
from .patterns import MAX_PREPARING, Effort, Matcher, TooCostly, compiled

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


MAX_SCHEMA_OCTETS: Final = 16_384
"""The longest schema, as JSON. One that is longer describes a document, which belongs behind a URL."""

MAX_NESTED_RULES: Final = 128
"""How many rules may wait for each other while data is checked: more is a schema that refers to itself without end."""

MAX_CHECKED_OCTETS: Final = 65_536
"""The longest data that is checked. A quarter of the longest message that a client can send."""

MAX_NUMBER: Final = 1 << 63
"""Whole numbers from here on are not checked: other readers of JSON take them for other numbers."""

_SHARE: Final = 16  # so many items of a list cost as much as applying one rule
_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with data. It never shows the data, which may be secret."""

    rule: str
    """The rule that is not kept, as the definition has it; empty, if the data could not be judged."""
    place: str = ""
    """Where in the data, as a JSON Pointer; empty for the whole."""
    source: str = ""
    """Where the rule stands in the schema, if there is one."""
    problem: str = ""
    """Why the data could not be judged."""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        source = f" ({self.source} of its schema)" if self.source else ""
        return f"the rule {self.rule}{source} is not kept at {self.place or 'the whole'}"


class Schema:
    """A schema that can be applied."""

    __slots__ = ("_matchers", "_validator", "cost")

    def __init__(self, validator: Any, matchers: Mapping[str, Matcher], cost: int = 0) -> None:
        self._validator = validator
        self._matchers = matchers
        self.cost = cost
        """What it took to make it ready, for `Effort.prepare`."""

    def violation(self, data: bytes, effort: Effort) -> Violation | None:
        """The first rule that data in JSON does not keep. InvalidData, if it is no JSON or too much to check."""
        if len(data) > MAX_CHECKED_OCTETS:
            message = f"{len(data):,} octets are too many to be checked; {MAX_CHECKED_OCTETS:,} are the most"
            raise TooCostly(message)
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - see `schema_of`

        instance = _quiet(parse_json(data))
        token = _RUN.set(_Run(effort, self._matchers))
        try:
            error = next(self._validator.iter_errors(instance), None)
        except RecursionError:  # whoever called was deep in work already
            raise TooCostly("the schema refers to itself without end") from None
        except Unresolvable:  # the walk lets none pass that it knows of; data is then not of the type, and no more
            raise InvalidData("the schema has a reference that leads nowhere") from None
        finally:
            _RUN.reset(token)
        return None if error is None else _violation(error)


@lru_cache(_KEPT)
def schema_of(text: str) -> Schema:
    """Take a schema as JSON text; InvalidData says what is wrong with it, and where."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - it takes long to load, and few processes check

    octets = len(text.encode("utf-8"))
    if octets > MAX_SCHEMA_OCTETS:
        raise InvalidData(f"the schema has more than {MAX_SCHEMA_OCTETS:,} octets")
    quiet = _quiet(parse_json(text))
    walk = Walk(octets)
    walk.check(quiet)
    validator = _validator_class()
    try:
        # Without a checker of formats: the library's would compile expressions with another engine.
        validator.check_schema(quiet, format_checker=None)
    except SchemaError as error:
        place = _pointer(error.absolute_path)
        message = f"the schema is none of 2020-12: at {place or 'its root'} {_rule(error)} of the dialect is not kept"
        raise InvalidData(message) from None
    if isinstance(quiet, dict):
        for word in ROOT_ONLY:  # they say what the schema is called, and are no rules
            quiet.pop(word, None)
    walk.replace_anchors()
    return Schema(validator(quiet, registry=_nothing_else()), walk.matchers, walk.cost)


# Applying rules


@dataclass(slots=True)
class _Run:
    """One check under way."""

    effort: Effort
    matchers: Mapping[str, Matcher]
    nested: int = field(default=0)

    def finds(self, pattern: str, text: str) -> bool:
        """Whether some part of a text matches an expression of the schema."""
        return self.matchers[pattern].is_found_in(text, self.effort)


_RUN: ContextVar[_Run] = ContextVar("perseid schema run")


class _Object(dict[str, object]):
    """An object whose picture costs nothing: the library puts one of whatever it judges into each of its messages."""

    size: int = 1
    __repr__ = object.__repr__


class _Array(list[object]):
    """The same for a list."""

    size: int = 1
    __repr__ = object.__repr__


class _String(str):
    """The same for a text."""

    __slots__ = ()
    __repr__ = object.__repr__


def _quiet(plain: object) -> Any:
    """The same plain object, its parts without pictures and with their sizes. Its depth is bounded already."""
    if isinstance(plain, str):
        return _String(plain)
    if isinstance(plain, int) and not isinstance(plain, bool) and abs(plain) >= MAX_NUMBER:
        raise InvalidData("a whole number has more than 63 bits, and readers of JSON differ about those")
    made: _Object | _Array
    if isinstance(plain, dict):
        made = _Object({name: _quiet(item) for name, item in plain.items()})
    elif isinstance(plain, list):
        made = _Array([_quiet(item) for item in plain])
    else:
        return plain
    parts = made.values() if isinstance(made, _Object) else made
    made.size = 1 + sum(_size(part) for part in parts)
    return made


def _size(plain: object) -> int:
    return plain.size if isinstance(plain, _Object | _Array) else 1


def _counted(keyword: Any) -> Any:
    """A rule of the library that pays for what it does."""

    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        run = _RUN.get()
        run.effort.step(1 + (_size(value) + _size(instance)) // _SHARE)
        run.nested += 1
        if run.nested > MAX_NESTED_RULES:
            raise TooCostly("the schema refers to itself without end, or nests its rules too deeply")
        try:
            yield from keyword(validator, value, instance, schema) or ()
        finally:
            run.nested -= 1

    return apply


@cache
def _validator_class() -> Any:
    """The rules of the dialect: counted, without those that are refused, and on the engine of linear time."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - see `schema_of`
    from jsonschema.validators import extend  # noqa: PLC0415

    own = {
        "pattern": _pattern,
        "properties": _properties,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "required": _required,
        "uniqueItems": _unique_items,
    }
    known = PARTS | LISTS | MAPS | RULES
    rules = {word: rule for word, rule in {**Draft202012Validator.VALIDATORS, **own}.items() if word in known}
    unknown = {word: _not_here for word in Draft202012Validator.VALIDATORS if word not in known}
    return extend(Draft202012Validator, {**{word: _counted(rule) for word, rule in rules.items()}, **unknown})


@cache
def _nothing_else() -> Any:
    """The library's registry of schemas that can be referred to: none, and no way to fetch any."""
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415 - see `schema_of`

    return EMPTY_REGISTRY


def _not_here(*_: object) -> tuple[()]:
    """A rule that no schema has which was accepted, or which is a remark (`format`)."""
    return ()


def _failed(**about: object) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415 - see `schema_of`

    return ValidationError("", **about)


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _RUN.get().finds(pattern, instance):
        yield _failed()


def _properties(validator: Any, parts: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    """As in the library, which does not tell the place of a member that must not be there."""
    if validator.is_type(instance, "object"):
        for name, part in parts.items():
            if name not in instance:
                continue
            if part is False:
                yield _failed(path=(name,), schema_path=(name,), validator_value=False)
            else:
                yield from validator.descend(instance[name], part, path=name, schema_path=name)


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        run = _RUN.get()
        run.effort.step(len(patterns) * len(instance) // _SHARE)
        for pattern, part in patterns.items():
            for name, item in instance.items():
                if run.finds(pattern, name):
                    yield from validator.descend(item, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    run = _RUN.get()
    patterns = schema.get("patternProperties", ())
    run.effort.step(len(patterns) * len(instance) // _SHARE)
    for name, item in instance.items():
        if name in schema.get("properties", ()) or any(run.finds(pattern, name) for pattern in patterns):
            continue
        if part is False:
            yield _failed(path=(name,))
        else:
            yield from validator.descend(item, part, path=name)


def _required(validator: Any, names: list[str], instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for name in names:
            if name not in instance:
                yield _failed(validator_value=str(name))


def _unique_items(validator: Any, wanted: bool, instance: Any, _schema: Any) -> Iterator[Any]:
    """By what items are written as, which takes one pass where the library compares each with each."""
    if wanted and validator.is_type(instance, "array"):
        written = {_written(item) for item in instance}
        if len(written) < len(instance):
            yield _failed()


def _written(plain: object) -> str:
    """A text that two plain objects share exactly if they are the same JSON: 1 is 1.0, and members have no order."""
    if isinstance(plain, dict):
        members = sorted(f"{write_json(str(name))}:{_written(item)}" for name, item in plain.items())
        return f"{{{','.join(members)}}}"
    if isinstance(plain, list):
        return f"[{','.join(map(_written, plain))}]"
    if isinstance(plain, float) and plain.is_integer():
        return str(int(plain))
    return write_json(str(plain) if isinstance(plain, str) else plain)


# Telling what is wrong


def _violation(error: Any) -> Violation:
    place, source = _pointer(error.absolute_path), f"#{_pointer(error.absolute_schema_path)}"
    return Violation(_rule(error), shortened(place), shortened(source))


def _rule(error: Any) -> str:
    """The rule, as it stands in the schema."""
    if error.validator is None:
        return "false"
    return shortened(f"{write_json(str(error.validator))}: {write_json(_loud(error.validator_value))}")


def _loud(plain: object) -> object:
    """The same in types that JSON writers know."""
    if isinstance(plain, dict):
        return {str(name): _loud(item) for name, item in plain.items()}
    if isinstance(plain, list):
        return [_loud(item) for item in plain]
    return str(plain) if isinstance(plain, str) else plain


def _pointer(path: Any) -> str:
    return "".join([f"/{escaped(str(step))}" for step in path])
