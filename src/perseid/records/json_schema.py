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
from .patterns import MAX_COMPILE_COST, BudgetExceeded, Matcher, ValidationBudget, compile_pattern

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MAX_SCHEMA_PARTS: Final = 1_000
"""The most schemas inside a schema."""

MAX_SCHEMA_PATTERNS: Final = 32
"""The most different expressions in a schema: to compile one takes some hundredths of a second at worst."""

# What making a schema ready costs, in the measure of `MAX_PREPARING`: most is the library's check by the dialect's own.
_SUBSCHEMA_COST: Final = 8
_KEYWORD_COST: Final = 2
_BYTES_PER_COST: Final = 16  # so many cost 1
_TYPE_COUNT: Final = 7  # that JSON has
_MAX_MESSAGE_LENGTH: Final = 120
SUBSCHEMA_KEYWORDS: Final = frozenset(
    {"additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames", "contentSchema"}
)
LIST_KEYWORDS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAP_KEYWORDS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
ASSERTION_KEYWORDS: Final = frozenset(
    {
        *("type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains"),
        *("maxProperties", "minProperties", "required", "dependentRequired", "$ref"),
    }
)
_ANNOTATION_KEYWORDS: Final = frozenset(
    {
        *("$anchor", "$comment", "title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples"),
        *("format", "contentEncoding", "contentMediaType"),
    }
)
ROOT_KEYWORDS: Final = frozenset({"$schema", "$id"})


class SchemaChecker:
    """Goes through every part of a schema that is a schema, without recursion beyond the bound of JSON."""

    def __init__(self, size: int) -> None:
        self._pointers: set[str] = set()
        self._anchors: dict[str, str] = {}
        self._anchored: list[dict[str, object]] = []
        self._references: list[tuple[str, dict[str, object]]] = []
        self.matchers: dict[str, Matcher] = {}
        """The expressions of the schema, compiled."""
        self.cost = size // _BYTES_PER_COST
        """What making the schema ready costs, for `Effort.prepare`."""

    def check(self, obj: object) -> None:
        """Refuse what is not understood, or could not be bounded."""
        self._check_subschema(obj, "")
        for pointer, part in self._references:
            reference = part["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise _make_error(pointer, "$ref leads out of the schema, and nothing is fetched; write #/$defs/…")
            # Percent signs have a meaning in paths only: that is how the library reads them.
            name = reference[1:]
            if not (unquote(name) in self._pointers if name.startswith("/") else name in ("", *self._anchors)):
                raise _make_error(pointer, f"$ref leads to {reference[:60]}, where no schema stands")

    def replace_anchors(self) -> None:
        """Have references lead to the places of anchors, and take these away; of a schema that was checked."""
        for _, part in self._references:
            name = str(part["$ref"])[1:]
            if name in self._anchors:
                part["$ref"] = f"#{self._anchors[name].replace('%', '%25')}"
        for part in self._anchored:
            del part["$anchor"]

    def _charge(self, cost: int) -> None:
        self.cost += cost
        if self.cost > MAX_COMPILE_COST:
            raise InvalidData("the schema has too many parts, or too large expressions, to be made ready for use")

    def _check_subschema(self, obj: object, pointer: str) -> None:
        if len(self._pointers) >= MAX_SCHEMA_PARTS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PARTS:,} schemas in it")
        self._pointers.add(pointer)
        self._charge(_SUBSCHEMA_COST)
        if isinstance(obj, bool):
            return
        if not isinstance(obj, dict):
            raise _make_error(pointer, "a schema is an object, true or false")
        for keyword, value in obj.items():
            self._charge(_KEYWORD_COST)
            self._check_keyword(keyword, value, pointer)
            if keyword == "$ref":
                self._references.append((f"{pointer}/$ref", obj))
            elif keyword == "$anchor":
                self._add_anchor(obj, pointer)

    def _check_keyword(self, keyword: str, value: object, pointer: str) -> None:
        child = f"{pointer}/{escape_pointer(keyword)}"
        if keyword in SUBSCHEMA_KEYWORDS:
            self._check_subschema(value, child)
        elif keyword in LIST_KEYWORDS | MAP_KEYWORDS:
            self._check_subschemas(keyword, value, child)
        elif keyword in ROOT_KEYWORDS and not pointer:
            if keyword == "$schema" and value != DIALECT:
                raise _make_error(child, f"the dialect is not {DIALECT}")
        elif keyword in ASSERTION_KEYWORDS | _ANNOTATION_KEYWORDS:
            self._check_rule(keyword, value, child)
        else:
            raise _make_error(child, f"{keyword[:40]!r} is no rule that is understood here")

    def _check_subschemas(self, keyword: str, value: object, pointer: str) -> None:
        if keyword in LIST_KEYWORDS and isinstance(value, list):
            named: list[tuple[str, object]] = [(str(index), part) for index, part in enumerate(value)]
        elif keyword in MAP_KEYWORDS and isinstance(value, dict):
            named = list(value.items())
        else:
            raise _make_error(pointer, f"{keyword} is no {'list' if keyword in LIST_KEYWORDS else 'object'} of schemas")
        for name, part in named:
            if keyword == "patternProperties":
                self._pattern(name, pointer)
            self._check_subschema(part, f"{pointer}/{escape_pointer(name)}")

    def _check_rule(self, keyword: str, value: object, pointer: str) -> None:
        if keyword == "pattern":
            self._pattern(value, pointer)
        elif keyword == "type" and isinstance(value, list) and len(value) > _TYPE_COUNT:
            # The library would compare each with each.
            raise _make_error(pointer, f"type has more than the {_TYPE_COUNT} types that there are")

    def _add_anchor(self, part: dict[str, object], pointer: str) -> None:
        name = part["$anchor"]
        if not isinstance(name, str) or not name or name[0] == "/" or name in self._anchors:
            raise _make_error(f"{pointer}/$anchor", "$anchor is no name, or one that stands here twice")
        self._anchors[name] = pointer
        self._anchored.append(part)

    def _pattern(self, pattern: object, pointer: str) -> None:
        if not isinstance(pattern, str):
            raise _make_error(pointer, "a pattern is a text")
        if pattern not in self.matchers and len(self.matchers) >= MAX_SCHEMA_PATTERNS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PATTERNS} different patterns")
        try:
            matcher = compile_pattern(str(pattern))
        except InvalidData as problem:
            raise _make_error(pointer, problem.message) from None
        if pattern not in self.matchers:
            self._charge(matcher.cost)
        self.matchers[pattern] = matcher


def _make_error(pointer: str, message: str) -> InvalidData:
    return InvalidData(f"the schema cannot be used: at {truncate(pointer) or 'its root'}: {message}")


def truncate(text: str) -> str:
    """Of a long text the beginning: what is told may come from anybody."""
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"


def escape_pointer(name: str) -> str:
    """A step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


MAX_SCHEMA_BYTES: Final = 16_384
"""The longest schema, as JSON. One that is longer describes a document, which belongs behind a URL."""

MAX_NESTED_RULES: Final = 128
"""How many rules may wait for each other while data is checked: more is a schema that refers to itself without end."""

MAX_CHECKED_BYTES: Final = 65_536
"""The longest data that is checked. A quarter of the longest message that a client can send."""

MAX_NUMBER: Final = 1 << 63
"""Whole numbers from here on are not checked: other readers of JSON take them for other numbers."""

_ITEMS_PER_STEP: Final = 16  # so many items of a list cost as much as applying one rule
_CACHE_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with data. It never shows the data, which may be secret."""

    rule: str
    """The rule that is not kept, as the definition has it; empty, if the data could not be judged."""
    pointer: str = ""
    """Where in the data, as a JSON Pointer; empty for the whole."""
    source: str = ""
    """Where the rule stands in the schema, if there is one."""
    problem: str = ""
    """Why the data could not be judged."""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        source = f" ({self.source} of its schema)" if self.source else ""
        return f"the rule {self.rule}{source} is not kept at {self.pointer or 'the whole'}"


class Schema:
    """A schema that can be applied."""

    __slots__ = ("_matchers", "_validator", "cost")

    def __init__(self, validator: Any, matchers: Mapping[str, Matcher], cost: int = 0) -> None:
        self._validator = validator
        self._matchers = matchers
        self.cost = cost
        """What it took to make it ready, for `Effort.prepare`."""

    def violation(self, data: bytes, budget: ValidationBudget) -> Violation | None:
        """The first rule that data in JSON does not keep. InvalidData, if it is no JSON or too much to check."""
        if len(data) > MAX_CHECKED_BYTES:
            message = f"{len(data):,} bytes are too many to be checked; {MAX_CHECKED_BYTES:,} are the most"
            raise BudgetExceeded(message)
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - see `schema_of`

        instance = _wrap(parse_json(data))
        token = _RUN.set(_ValidationRun(budget, self._matchers))
        try:
            error = next(self._validator.iter_errors(instance), None)
        except RecursionError:  # whoever called was deep in work already
            raise BudgetExceeded("the schema refers to itself without end") from None
        except Unresolvable:  # the walk lets none pass that it knows of; data is then not of the type, and no more
            raise InvalidData("the schema has a reference that leads nowhere") from None
        finally:
            _RUN.reset(token)
        return None if error is None else _to_violation(error)


@lru_cache(_CACHE_SIZE)
def compile_schema(text: str) -> Schema:
    """Take a schema as JSON text; InvalidData says what is wrong with it, and where."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - it takes long to load, and few processes check

    size = len(text.encode("utf-8"))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidData(f"the schema has more than {MAX_SCHEMA_BYTES:,} bytes")
    wrapped = _wrap(parse_json(text))
    walk = SchemaChecker(size)
    walk.check(wrapped)
    validator = _validator_class()
    try:
        # Without a checker of formats: the library's would compile expressions with another engine.
        validator.check_schema(wrapped, format_checker=None)
    except SchemaError as error:
        pointer = _format_pointer(error.absolute_path)
        message = (
            f"the schema is none of 2020-12: at {pointer or 'its root'} "
            f"{_format_rule(error)} of the dialect is not kept"
        )
        raise InvalidData(message) from None
    if isinstance(wrapped, dict):
        for keyword in ROOT_KEYWORDS:  # they say what the schema is called, and are no rules
            wrapped.pop(keyword, None)
    walk.replace_anchors()
    return Schema(validator(wrapped, registry=_empty_registry()), walk.matchers, walk.cost)


# Applying rules


@dataclass(slots=True)
class _ValidationRun:
    """One check under way."""

    budget: ValidationBudget
    matchers: Mapping[str, Matcher]
    nested: int = field(default=0)

    def has_match(self, pattern: str, text: str) -> bool:
        """Whether some part of a text matches an expression of the schema."""
        return self.matchers[pattern].has_match_in(text, self.budget)


_RUN: ContextVar[_ValidationRun] = ContextVar("perseid schema run")


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


def _wrap(obj: object) -> Any:
    """The same plain object, its parts without pictures and with their sizes. Its depth is bounded already."""
    if isinstance(obj, str):
        return _String(obj)
    if isinstance(obj, int) and not isinstance(obj, bool) and abs(obj) >= MAX_NUMBER:
        raise InvalidData("a whole number has more than 63 bits, and readers of JSON differ about those")
    container: _Object | _Array
    if isinstance(obj, dict):
        container = _Object({name: _wrap(item) for name, item in obj.items()})
    elif isinstance(obj, list):
        container = _Array([_wrap(item) for item in obj])
    else:
        return obj
    parts = container.values() if isinstance(container, _Object) else container
    container.size = 1 + sum(_size(part) for part in parts)
    return container


def _size(obj: object) -> int:
    return obj.size if isinstance(obj, _Object | _Array) else 1


def _metered(keyword: Any) -> Any:
    """A rule of the library that pays for what it does."""

    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        run = _RUN.get()
        run.budget.step(1 + (_size(value) + _size(instance)) // _ITEMS_PER_STEP)
        run.nested += 1
        if run.nested > MAX_NESTED_RULES:
            raise BudgetExceeded("the schema refers to itself without end, or nests its rules too deeply")
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
    known = SUBSCHEMA_KEYWORDS | LIST_KEYWORDS | MAP_KEYWORDS | ASSERTION_KEYWORDS
    rules = {keyword: rule for keyword, rule in {**Draft202012Validator.VALIDATORS, **own}.items() if keyword in known}
    unknown = {keyword: _ignore_keyword for keyword in Draft202012Validator.VALIDATORS if keyword not in known}
    return extend(Draft202012Validator, {**{keyword: _metered(rule) for keyword, rule in rules.items()}, **unknown})


@cache
def _empty_registry() -> Any:
    """The library's registry of schemas that can be referred to: none, and no way to fetch any."""
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415 - see `schema_of`

    return EMPTY_REGISTRY


def _ignore_keyword(*_: object) -> tuple[()]:
    """A rule that no schema has which was accepted, or which is a remark (`format`)."""
    return ()


def _validation_error(**details: object) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415 - see `schema_of`

    return ValidationError("", **details)


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _RUN.get().has_match(pattern, instance):
        yield _validation_error()


def _properties(validator: Any, parts: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    """As in the library, which does not tell the place of a member that must not be there."""
    if validator.is_type(instance, "object"):
        for name, part in parts.items():
            if name not in instance:
                continue
            if part is False:
                yield _validation_error(path=(name,), schema_path=(name,), validator_value=False)
            else:
                yield from validator.descend(instance[name], part, path=name, schema_path=name)


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        run = _RUN.get()
        run.budget.step(len(patterns) * len(instance) // _ITEMS_PER_STEP)
        for pattern, part in patterns.items():
            for name, item in instance.items():
                if run.has_match(pattern, name):
                    yield from validator.descend(item, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    run = _RUN.get()
    patterns = schema.get("patternProperties", ())
    run.budget.step(len(patterns) * len(instance) // _ITEMS_PER_STEP)
    for name, item in instance.items():
        if name in schema.get("properties", ()) or any(run.has_match(pattern, name) for pattern in patterns):
            continue
        if part is False:
            yield _validation_error(path=(name,))
        else:
            yield from validator.descend(item, part, path=name)


def _required(validator: Any, names: list[str], instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for name in names:
            if name not in instance:
                yield _validation_error(validator_value=str(name))


def _unique_items(validator: Any, enabled: bool, instance: Any, _schema: Any) -> Iterator[Any]:
    """By what items are written as, which takes one pass where the library compares each with each."""
    if enabled and validator.is_type(instance, "array"):
        canonical = {_canonical_json(item) for item in instance}
        if len(canonical) < len(instance):
            yield _validation_error()


def _canonical_json(obj: object) -> str:
    """A text that two plain objects share exactly if they are the same JSON: 1 is 1.0, and members have no order."""
    if isinstance(obj, dict):
        members = sorted(f"{write_json(str(name))}:{_canonical_json(item)}" for name, item in obj.items())
        return f"{{{','.join(members)}}}"
    if isinstance(obj, list):
        return f"[{','.join(map(_canonical_json, obj))}]"
    if isinstance(obj, float) and obj.is_integer():
        return str(int(obj))
    return write_json(str(obj) if isinstance(obj, str) else obj)


# Telling what is wrong


def _to_violation(error: Any) -> Violation:
    pointer, source = _format_pointer(error.absolute_path), f"#{_format_pointer(error.absolute_schema_path)}"
    return Violation(_format_rule(error), truncate(pointer), truncate(source))


def _format_rule(error: Any) -> str:
    """The rule, as it stands in the schema."""
    if error.validator is None:
        return "false"
    return truncate(f"{write_json(str(error.validator))}: {write_json(_unwrap(error.validator_value))}")


def _unwrap(obj: object) -> object:
    """The same in types that JSON writers know."""
    if isinstance(obj, dict):
        return {str(name): _unwrap(item) for name, item in obj.items()}
    if isinstance(obj, list):
        return [_unwrap(item) for item in obj]
    return str(obj) if isinstance(obj, str) else obj


def _format_pointer(path: Any) -> str:
    return "".join([f"/{escape_pointer(str(step))}" for step in path])
