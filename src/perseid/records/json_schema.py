"""JSON Schemas of strangers: checked within bounds before one is used, and applied within bounds.

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

from .errors import InvalidData
from .json_parsing import parse_json, write_json
from .patterns import Effort, Matcher, TooCostly
from .schema_words import LISTS, MAPS, PARTS, ROOT_ONLY, RULES, Walk, escaped, shortened

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
