"""Validation with untrusted JSON Schemas, within limits.

The dialect is 2020-12, and the library is `jsonschema`, whose keywords can be replaced and metered one by one. Every
applied keyword is a step, patterns run on an engine with linear time (`patterns`), and nothing is ever fetched. A
schema is checked completely before it is used. To keep the limits effective, these are rejected:

- references outside the schema. Allowed are `#`, `#/$defs/name` and `#anchor`; anchors are replaced by paths, because
  the library would search the whole schema for an anchor at each use;
- `$schema` other than 2020-12, or in a subschema: the library would switch to keywords that are not metered;
- `$id` in a subschema, `$dynamicRef` and related keywords, `unevaluatedItems` and `unevaluatedProperties`;
- unknown keywords: a typo would silently validate nothing.
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
"""Maximum number of subschemas."""

MAX_SCHEMA_PATTERNS: Final = 32
"""Maximum number of different patterns in a schema: compiling one takes up to some hundredths of a second."""

# Cost of compiling a schema, in units of `MAX_COMPILE_COST`; most of it is the library's check with the metaschema.
_SUBSCHEMA_COST: Final = 8
_KEYWORD_COST: Final = 2
_BYTES_PER_COST: Final = 16
_TYPE_COUNT: Final = 7  # in JSON
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
    """Checks all subschemas; recursion is limited by the nesting of JSON."""

    def __init__(self, size: int) -> None:
        self._pointers: set[str] = set()
        self._anchors: dict[str, str] = {}
        self._anchored: list[dict[str, object]] = []
        self._references: list[tuple[str, dict[str, object]]] = []
        self.matchers: dict[str, Matcher] = {}
        """Compiled patterns of the schema."""
        self.cost = size // _BYTES_PER_COST
        """Cost of compiling the schema, for `ValidationBudget.prepare`."""

    def check(self, obj: object) -> None:
        """Reject unsupported keywords and references."""
        self._check_subschema(obj, "")
        for pointer, part in self._references:
            reference = part["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise _make_error(pointer, "$ref points outside the schema; use #/$defs/…")
            # The library decodes percent signs in paths only.
            name = reference[1:]
            if not (unquote(name) in self._pointers if name.startswith("/") else name in ("", *self._anchors)):
                raise _make_error(pointer, f"$ref points to {reference[:60]}, which is not a schema")

    def replace_anchors(self) -> None:
        """Replace references to anchors with paths, and remove the anchors, in a checked schema."""
        for _, part in self._references:
            name = str(part["$ref"])[1:]
            if name in self._anchors:
                part["$ref"] = f"#{self._anchors[name].replace('%', '%25')}"
        for part in self._anchored:
            del part["$anchor"]

    def _charge(self, cost: int) -> None:
        self.cost += cost
        if self.cost > MAX_COMPILE_COST:
            raise InvalidData("the schema is too complex: it has too many subschemas or too large patterns")

    def _check_subschema(self, obj: object, pointer: str) -> None:
        if len(self._pointers) >= MAX_SCHEMA_PARTS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PARTS:,} subschemas")
        self._pointers.add(pointer)
        self._charge(_SUBSCHEMA_COST)
        if isinstance(obj, bool):
            return
        if not isinstance(obj, dict):
            raise _make_error(pointer, "a schema must be an object, true or false")
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
                raise _make_error(child, f"$schema must be {DIALECT}")
        elif keyword in ASSERTION_KEYWORDS | _ANNOTATION_KEYWORDS:
            self._check_rule(keyword, value, child)
        else:
            raise _make_error(child, f"{keyword[:40]!r} is not a supported keyword")

    def _check_subschemas(self, keyword: str, value: object, pointer: str) -> None:
        if keyword in LIST_KEYWORDS and isinstance(value, list):
            named: list[tuple[str, object]] = [(str(index), part) for index, part in enumerate(value)]
        elif keyword in MAP_KEYWORDS and isinstance(value, dict):
            named = list(value.items())
        else:
            raise _make_error(
                pointer, f"{keyword} must be an {'array' if keyword in LIST_KEYWORDS else 'object'} of schemas"
            )
        for name, part in named:
            if keyword == "patternProperties":
                self._pattern(name, pointer)
            self._check_subschema(part, f"{pointer}/{escape_pointer(name)}")

    def _check_rule(self, keyword: str, value: object, pointer: str) -> None:
        if keyword == "pattern":
            self._pattern(value, pointer)
        elif keyword == "type" and isinstance(value, list) and len(value) > _TYPE_COUNT:
            # The library's comparison takes quadratic time.
            raise _make_error(pointer, f"type lists more than the {_TYPE_COUNT} JSON types")

    def _add_anchor(self, part: dict[str, object], pointer: str) -> None:
        name = part["$anchor"]
        if not isinstance(name, str) or not name or name[0] == "/" or name in self._anchors:
            raise _make_error(f"{pointer}/$anchor", "$anchor is invalid or not unique")
        self._anchors[name] = pointer
        self._anchored.append(part)

    def _pattern(self, pattern: object, pointer: str) -> None:
        if not isinstance(pattern, str):
            raise _make_error(pointer, "a pattern must be a string")
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
    return InvalidData(f"invalid schema at {truncate(pointer) or 'the root'}: {message}")


def truncate(text: str) -> str:
    """Truncate untrusted text for a message."""
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"


def escape_pointer(name: str) -> str:
    """Escape a step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


MAX_SCHEMA_BYTES: Final = 16_384
"""Maximum size of a schema as JSON. A longer one describes a document, which belongs at a URL."""

MAX_NESTED_RULES: Final = 128
"""Maximum nesting of keywords during validation; more means a schema that refers to itself endlessly."""

MAX_CHECKED_BYTES: Final = 65_536
"""Maximum size of validated data: a quarter of the longest message."""

MAX_NUMBER: Final = 1 << 63
"""Limit for integers: JSON readers differ about larger ones."""

_ITEMS_PER_STEP: Final = 16
_CACHE_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule. It never shows the data, which may be secret."""

    rule: str
    """The violated rule, as in the definition; empty if the data could not be validated."""
    pointer: str = ""
    """Position in the data, as a JSON Pointer; empty for the root."""
    source: str = ""
    """Position of the rule in the schema, if there is one."""
    problem: str = ""
    """Why the data could not be validated."""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        source = f" ({self.source} of the schema)" if self.source else ""
        location = f" at {self.pointer}" if self.pointer else ""
        return f"the data{location} violates the rule {self.rule}{source}"


class Schema:
    """A compiled schema."""

    __slots__ = ("_matchers", "_validator", "cost")

    def __init__(self, validator: Any, matchers: Mapping[str, Matcher], cost: int = 0) -> None:
        self._validator = validator
        self._matchers = matchers
        self.cost = cost
        """Cost of compiling it, for `ValidationBudget.prepare`."""

    def violation(self, data: bytes, budget: ValidationBudget) -> Violation | None:
        """Find the first rule that JSON data violates; InvalidData if it is not JSON or too large to validate."""
        if len(data) > MAX_CHECKED_BYTES:
            message = f"the data has {len(data):,} bytes; the maximum for validation is {MAX_CHECKED_BYTES:,}"
            raise BudgetExceeded(message)
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - see `compile_schema`

        instance = _wrap(parse_json(data))
        token = _RUN.set(_ValidationRun(budget, self._matchers))
        try:
            error = next(self._validator.iter_errors(instance), None)
        except RecursionError:  # the caller's stack was deep already
            raise BudgetExceeded("the schema refers to itself endlessly") from None
        except Unresolvable:  # SchemaChecker rejects all that it knows of
            raise InvalidData("the schema has a broken reference") from None
        finally:
            _RUN.reset(token)
        return None if error is None else _to_violation(error)


@lru_cache(_CACHE_SIZE)
def compile_schema(text: str) -> Schema:
    """Compile a schema from JSON text; raises InvalidData."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - slow to import, and few processes validate

    size = len(text.encode("utf-8"))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidData(f"the schema has {size:,} bytes; the maximum is {MAX_SCHEMA_BYTES:,}")
    wrapped = _wrap(parse_json(text))
    checker = SchemaChecker(size)
    checker.check(wrapped)
    validator = _validator_class()
    try:
        # Without a format checker: the library's would use another regular expression engine.
        validator.check_schema(wrapped, format_checker=None)
    except SchemaError as error:
        pointer = _format_pointer(error.absolute_path)
        rule = _format_rule(error)
        message = f"invalid schema at {pointer or 'the root'}: it violates the rule {rule} of JSON Schema 2020-12"
        raise InvalidData(message) from None
    if isinstance(wrapped, dict):
        for keyword in ROOT_KEYWORDS:  # identification only
            wrapped.pop(keyword, None)
    checker.replace_anchors()
    return Schema(validator(wrapped, registry=_empty_registry()), checker.matchers, checker.cost)


# Validation


@dataclass(slots=True)
class _ValidationRun:
    """State of one validation."""

    budget: ValidationBudget
    matchers: Mapping[str, Matcher]
    nested: int = field(default=0)

    def has_match(self, pattern: str, text: str) -> bool:
        """Whether a pattern of the schema matches anywhere in a text."""
        return self.matchers[pattern].has_match_in(text, self.budget)


_RUN: ContextVar[_ValidationRun] = ContextVar("perseid schema run")


class _Object(dict[str, object]):
    """A dict with a cheap repr, because the library puts the repr of the data into every message."""

    size: int = 1
    __repr__ = object.__repr__


class _Array(list[object]):
    """A list with a cheap repr."""

    size: int = 1
    __repr__ = object.__repr__


class _String(str):
    """A string with a cheap repr."""

    __slots__ = ()
    __repr__ = object.__repr__


def _wrap(obj: object) -> Any:
    """Wrap JSON in types with a cheap repr and a size. Its depth is limited already."""
    if isinstance(obj, str):
        return _String(obj)
    if isinstance(obj, int) and not isinstance(obj, bool) and abs(obj) >= MAX_NUMBER:
        raise InvalidData("an integer has more than 63 bits, which JSON readers interpret differently")
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
    """Wrap a keyword of the library so that it charges the budget."""

    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        run = _RUN.get()
        run.budget.step(1 + (_size(value) + _size(instance)) // _ITEMS_PER_STEP)
        run.nested += 1
        if run.nested > MAX_NESTED_RULES:
            raise BudgetExceeded("the schema refers to itself endlessly, or is nested too deeply")
        try:
            yield from keyword(validator, value, instance, schema) or ()
        finally:
            run.nested -= 1

    return apply


@cache
def _validator_class() -> Any:
    """Validator of the dialect: metered, without unsupported keywords, and with linear-time patterns."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - see `compile_schema`
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
    """The library's registry of external schemas: empty, without retrieval."""
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415 - see `compile_schema`

    return EMPTY_REGISTRY


def _ignore_keyword(*_: object) -> tuple[()]:
    """A keyword that no accepted schema has, or an annotation (`format`)."""
    return ()


def _validation_error(**details: object) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415 - see `compile_schema`

    return ValidationError("", **details)


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _RUN.get().has_match(pattern, instance):
        yield _validation_error()


def _properties(validator: Any, parts: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    """Like the library's, but with the path of a forbidden member."""
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
    """Compare canonical JSON in one pass; the library takes quadratic time."""
    if enabled and validator.is_type(instance, "array"):
        canonical = {_canonical_json(item) for item in instance}
        if len(canonical) < len(instance):
            yield _validation_error()


def _canonical_json(obj: object) -> str:
    """Canonical text of a JSON value: 1 equals 1.0, and members are sorted."""
    if isinstance(obj, dict):
        members = sorted(f"{write_json(str(name))}:{_canonical_json(item)}" for name, item in obj.items())
        return f"{{{','.join(members)}}}"
    if isinstance(obj, list):
        return f"[{','.join(map(_canonical_json, obj))}]"
    if isinstance(obj, float) and obj.is_integer():
        return str(int(obj))
    return write_json(str(obj) if isinstance(obj, str) else obj)


# Messages


def _to_violation(error: Any) -> Violation:
    pointer, source = _format_pointer(error.absolute_path), f"#{_format_pointer(error.absolute_schema_path)}"
    return Violation(_format_rule(error), truncate(pointer), truncate(source))


def _format_rule(error: Any) -> str:
    """The rule, as in the schema."""
    if error.validator is None:
        return "false"
    return truncate(f"{write_json(str(error.validator))}: {write_json(_unwrap(error.validator_value))}")


def _unwrap(obj: object) -> object:
    if isinstance(obj, dict):
        return {str(name): _unwrap(item) for name, item in obj.items()}
    if isinstance(obj, list):
        return [_unwrap(item) for item in obj]
    return str(obj) if isinstance(obj, str) else obj


def _format_pointer(path: Any) -> str:
    return "".join([f"/{escape_pointer(str(step))}" for step in path])
