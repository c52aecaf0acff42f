"""JSON Schemas of types: a closed set of keywords of the dialect 2020-12, within limits.

A schema is a tree without references, so that each subschema is applied at most once to each part of the data, and
`ValidationBudget` limits the steps of a record. Patterns run on an engine with linear time (`patterns`), and nothing is
ever fetched. A schema is checked completely when it is compiled, and every other keyword is rejected: a typo, or a rule
that is not supported, would silently validate nothing.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from .encoding import parse_json, write_json
from .errors import InvalidData
from .patterns import MAX_COMPILE_COST, BudgetExceeded, Matcher, ValidationBudget, compile_pattern

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MAX_SCHEMA_BYTES: Final = 16_384
"""Maximum size of a schema as JSON. A longer one describes a document, which belongs at a URL."""

MAX_SCHEMA_PATTERNS: Final = 32
"""Maximum number of different patterns in a schema: compiling one takes up to some hundredths of a second."""

MAX_CHECKED_BYTES: Final = 65_536
"""Maximum size of validated data: a quarter of the longest message."""

MAX_NUMBER: Final = 1 << 63
"""Limit for integers: JSON readers differ about larger ones."""

RULES: Final = (
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required", "properties"),
    *("additionalProperties", "items", "anyOf", "oneOf"),
)
"""The keywords that are applied."""

ANNOTATIONS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("title", "description", "format", "$comment"), str),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), bool),
    "examples": list,
    "default": object,
}
"""The keywords that are accepted and not applied, and the types of their values."""

ROOT_ANNOTATIONS: Final[Mapping[str, type]] = {"$schema": str, "$id": str}
"""The same, at the root only."""

_TYPE_NAMES: Final = {str: "a string", bool: "true or false", list: "an array"}

# Cost of compiling a schema, in units of `MAX_COMPILE_COST`.
_SUBSCHEMA_COST: Final = 8
_KEYWORD_COST: Final = 2
_BYTES_PER_COST: Final = 16

_ITEMS_PER_STEP: Final = 16
_CHARACTERS_PER_STEP: Final = 32  # of canonical JSON
_CACHE_SIZE: Final = 64
_MAX_MESSAGE_LENGTH: Final = 120


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


_Path: TypeAlias = "tuple[_Path, str] | tuple[()]"
"""Position in the data: that of the container, and the last step."""

_Found: TypeAlias = tuple[_Path, str, str]
"""A violation: position, rule and source."""

_Check: TypeAlias = Callable[[Any, _Path, ValidationBudget], _Found | None]
"""A compiled keyword, for any data."""


class Schema:
    """A compiled schema."""

    __slots__ = ("_checks", "cost")

    def __init__(self, checks: tuple[_Check, ...], cost: int) -> None:
        self._checks = checks
        self.cost = cost
        """Cost of compiling it, for `ValidationBudget.prepare`."""

    def violation(self, data: bytes, budget: ValidationBudget) -> Violation | None:
        """Find the first rule that JSON data violates; InvalidData if it is not JSON or too large to validate."""
        if len(data) > MAX_CHECKED_BYTES:
            message = f"the data has {len(data):,} bytes; the maximum for validation is {MAX_CHECKED_BYTES:,}"
            raise BudgetExceeded(message)
        instance = _parse(data)
        found = _apply(self._checks, instance, (), budget)
        if found is None:
            return None
        path, rule, source = found
        pointer = ""
        while path:
            path, step = path
            pointer = f"/{_escape(step)}{pointer}"
        return Violation(rule, _truncate(pointer), _truncate(source))


@lru_cache(_CACHE_SIZE)
def compile_schema(text: str) -> Schema:
    """Compile a schema from JSON text; raises InvalidData."""
    size = len(text.encode("utf-8"))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidData(f"the schema has {size:,} bytes; the maximum is {MAX_SCHEMA_BYTES:,}")
    compiler = _Compiler(size // _BYTES_PER_COST)
    checks = compiler.compile(_parse(text), "#")
    return Schema(checks, compiler.cost)


class _Compiler:
    """Compiles a schema; recursion is limited by the nesting of JSON."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self._patterns: set[str] = set()

    def compile(self, obj: object, source: str, keyword: str = "") -> tuple[_Check, ...]:
        """Compile a subschema that is the value of a keyword, or in it."""
        self._charge(_SUBSCHEMA_COST)
        if isinstance(obj, bool):
            rule = _format_rule(keyword, value=False) if keyword else "false"
            return () if obj else (lambda _, path, __: (path, rule, source),)
        if not isinstance(obj, dict):
            raise _invalid(source, "a schema must be an object, true or false")
        checks = []
        for name, value in obj.items():
            self._charge(_KEYWORD_COST)
            child = f"{source}/{_escape(name)}"
            if name in RULES:
                checks.append(self._compile_keyword(name, value, obj, child))
            elif name == "$schema" and source == "#" and value != DIALECT:
                raise _invalid(child, f"$schema must be {DIALECT}")
            else:
                _check_annotation(name, value, child, {**ANNOTATIONS, **(ROOT_ANNOTATIONS if source == "#" else {})})
        return tuple(checks)

    def _compile_keyword(self, keyword: str, value: Any, schema: dict[str, Any], source: str) -> _Check:
        match keyword:
            case "properties":
                return self._compile_properties(value, source)
            case "additionalProperties":
                return self._compile_additional(self.compile(value, source, keyword), schema.get("properties"))
            case "items":
                return _check_items(self.compile(value, source, keyword))
            case "anyOf" | "oneOf":
                return self._compile_choice(keyword, value, source)
            case "required":
                return _check_required(_require(value, _is_unique_texts(value), source, "an array of strings"), source)
        rule = _format_rule(keyword, value)
        holds = self._compile_assertion(keyword, value, source)
        return lambda instance, path, budget: None if holds(instance, budget) else (path, rule, source)

    def _compile_assertion(self, keyword: str, value: Any, source: str) -> Callable[[Any, ValidationBudget], bool]:
        """Compile a keyword without subschemas. It holds for data of the types that it does not concern."""
        if keyword in _NUMBER_LIMITS:
            compare = _NUMBER_LIMITS[keyword]
            limit = _require(value, _is_type(value, "number"), source, "a number")
            return lambda instance, _: not _is_type(instance, "number") or compare(instance, limit)
        if keyword in _SIZE_LIMITS:
            class_, compare = _SIZE_LIMITS[keyword]
            limit = _require(value, _is_type(value, "integer") and value >= 0, source, "an integer from 0")
            return lambda instance, _: not isinstance(instance, class_) or compare(len(instance), limit)
        match keyword:
            case "type":
                names = value if isinstance(value, list) else [value]
                valid = bool(names) and _is_unique_texts(names) and _TYPES.issuperset(names)
                _require(value, valid, source, f"one or several of {', '.join(sorted(_TYPES))}")
                return lambda instance, _: any(_is_type(instance, name) for name in names)
            case "enum" | "const":
                values = _require(value, isinstance(value, list), source, "an array") if keyword == "enum" else [value]
                allowed = {_canonical_json(item) for item in values}
                return lambda instance, budget: _is_one_of(instance, allowed, budget)
            case "uniqueItems":
                enabled = _require(value, isinstance(value, bool), source, "true or false")
                return lambda instance, budget: not enabled or _has_unique_items(instance, budget)
        matcher = self._compile_pattern(value, source)
        return lambda instance, budget: not isinstance(instance, str) or matcher.has_match_in(instance, budget)

    def _compile_properties(self, value: Any, source: str) -> _Check:
        members = _require(value, isinstance(value, dict), source, "an object of schemas").items()
        parts = {name: self.compile(part, f"{source}/{_escape(name)}", "properties") for name, part in members}

        def check(instance: Any, path: _Path, budget: ValidationBudget) -> _Found | None:
            if isinstance(instance, dict):
                budget.step(len(parts) // _ITEMS_PER_STEP)
                for name, checks in parts.items():
                    if name in instance and (found := _apply(checks, instance[name], (path, name), budget)):
                        return found
            return None

        return check

    @staticmethod
    def _compile_additional(checks: tuple[_Check, ...], properties: Any) -> _Check:
        known = frozenset(properties if isinstance(properties, dict) else ())

        def check(instance: Any, path: _Path, budget: ValidationBudget) -> _Found | None:
            if isinstance(instance, dict):
                budget.step(len(instance) // _ITEMS_PER_STEP)
                for name, item in instance.items():
                    if name not in known and (found := _apply(checks, item, (path, name), budget)):
                        return found
            return None

        return check

    def _compile_choice(self, keyword: str, value: Any, source: str) -> _Check:
        branches = _require(value, isinstance(value, list) and bool(value), source, "an array of schemas")
        choices = [self.compile(part, f"{source}/{number}", keyword) for number, part in enumerate(branches)]
        rule, most = _format_rule(keyword, value), 1 if keyword == "oneOf" else len(choices)

        def check(instance: Any, path: _Path, budget: ValidationBudget) -> _Found | None:
            valid = 0
            for checks in choices:
                budget.step()
                valid += _apply(checks, instance, path, budget) is None
                if valid and keyword == "anyOf":
                    break
            return None if 1 <= valid <= most else (path, rule, source)

        return check

    def _compile_pattern(self, pattern: Any, source: str) -> Matcher:
        _require(pattern, isinstance(pattern, str), source, "a string")
        try:
            matcher = compile_pattern(pattern)
        except InvalidData as problem:
            raise _invalid(source, problem.message) from None
        if pattern not in self._patterns:
            self._patterns.add(pattern)
            self._charge(matcher.cost)
        if len(self._patterns) > MAX_SCHEMA_PATTERNS:
            raise InvalidData(f"the schema has more than {MAX_SCHEMA_PATTERNS} different patterns")
        return matcher

    def _charge(self, cost: int) -> None:
        self.cost += cost
        if self.cost > MAX_COMPILE_COST:
            raise InvalidData("the schema is too complex: it has too many subschemas or too large patterns")


def _apply(checks: Iterable[_Check], instance: Any, path: _Path, budget: ValidationBudget) -> _Found | None:
    """Find the first violation of a subschema."""
    for check in checks:
        budget.step()
        if found := check(instance, path, budget):
            return found
    return None


def _check_items(checks: tuple[_Check, ...]) -> _Check:
    def check(instance: Any, path: _Path, budget: ValidationBudget) -> _Found | None:
        if isinstance(instance, list) and checks:
            for index, item in enumerate(instance):
                if found := _apply(checks, item, (path, str(index)), budget):
                    return found
        return None

    return check


def _check_required(names: list[str], source: str) -> _Check:
    def check(instance: Any, path: _Path, budget: ValidationBudget) -> _Found | None:
        if isinstance(instance, dict):
            budget.step(len(names) // _ITEMS_PER_STEP)
            for name in names:
                if name not in instance:
                    return path, _format_rule("required", name), source
        return None

    return check


_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_CLASSES: Final = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}
_NUMBER_LIMITS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_SIZE_LIMITS: Final[Mapping[str, tuple[type[Sized], Callable[[Any, Any], bool]]]] = {
    f"{bound}{noun}": (class_, compare)
    for noun, class_ in (("Length", str), ("Items", list), ("Properties", dict))
    for bound, compare in (("min", operator.ge), ("max", operator.le))
}


def _is_type(instance: object, name: str) -> bool:
    """Whether data has a JSON type; a number without a fraction is an integer."""
    if name in ("integer", "number"):
        if isinstance(instance, float):
            return name == "number" or instance.is_integer()
        return isinstance(instance, int) and not isinstance(instance, bool)
    return isinstance(instance, _CLASSES[name])


def _is_unique_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len({*value}) == len(value)


def _is_one_of(instance: object, allowed: set[str], budget: ValidationBudget) -> bool:
    text = _canonical_json(instance)
    budget.step(len(text) // _CHARACTERS_PER_STEP)
    return text in allowed


def _has_unique_items(instance: object, budget: ValidationBudget) -> bool:
    if not isinstance(instance, list):
        return True
    items = [_canonical_json(item) for item in instance]
    budget.step((sum(map(len, items)) + len(items)) // _CHARACTERS_PER_STEP)
    return len({*items}) == len(items)


def _canonical_json(obj: object) -> str:
    """Canonical text of a JSON value: 1 equals 1.0, and members are sorted."""
    if isinstance(obj, dict):
        return f"{{{','.join(sorted(f'{write_json(name)}:{_canonical_json(item)}' for name, item in obj.items()))}}}"
    if isinstance(obj, list):
        return f"[{','.join(map(_canonical_json, obj))}]"
    return str(int(obj)) if isinstance(obj, float) and obj.is_integer() else write_json(obj)


def _parse(text: str | bytes) -> object:
    """Parse JSON without integers that readers interpret differently."""
    parsed = parse_json(text)
    level = [parsed]
    while level:  # at most as many levels as JSON can have
        if any(isinstance(item, int) and abs(item) >= MAX_NUMBER for item in level):
            raise InvalidData("an integer has more than 63 bits, which JSON readers interpret differently")
        containers = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
        ]
        level = [item for container in containers for item in container]
    return parsed


def _require(value: Any, valid: bool, source: str, expected: str) -> Any:
    """Return the value of a keyword if it is valid."""
    if not valid:
        raise _invalid(source, f"{source.rpartition('/')[2]} must be {expected}")
    return value


def _check_annotation(name: str, value: Any, source: str, allowed: Mapping[str, type]) -> None:
    if name not in allowed:
        known = ", ".join((*RULES, *ANNOTATIONS))
        raise _invalid(source, f"{name[:40]!r} is not a supported keyword; supported are {known}")
    if not isinstance(value, allowed[name]):
        raise _invalid(source, f"{name} must be {_TYPE_NAMES[allowed[name]]}")


def _invalid(source: str, message: str) -> InvalidData:
    return InvalidData(f"invalid schema at {_truncate(source[1:]) or 'the root'}: {message}")


def _format_rule(keyword: str, value: object) -> str:
    return _truncate(f"{write_json(keyword)}: {write_json(value)}")


def _truncate(text: str) -> str:
    """Truncate untrusted text for a message."""
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"


def _escape(name: str) -> str:
    """Escape a step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
