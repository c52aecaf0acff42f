"""Untrusted JSON Schemas: allowed content, violations in data, and bounded validation."""

import contextlib
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from perseid.records.errors import InvalidData
from perseid.records.json_schema import (
    ANNOTATIONS,
    DIALECT,
    MAX_CHECKED_BYTES,
    MAX_SCHEMA_BYTES,
    ROOT_ANNOTATIONS,
    RULES,
    Violation,
    compile_schema,
)
from perseid.records.patterns import MAX_STEPS, BudgetExceeded, ValidationBudget


def violation(schema: object, data: object, budget: ValidationBudget | None = None) -> Violation | None:
    return compile_schema(json.dumps(schema)).violation(json.dumps(data).encode(), budget or ValidationBudget())


def violation_fields(schema: object, data: object) -> tuple[str, str, str]:
    found = violation(schema, data)
    assert found is not None
    return found.rule, found.pointer, found.source


BOOK = {
    "$schema": DIALECT,
    "$id": "https://example.org/book",
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "pages": {"type": "integer", "minimum": 1},
        "parts": {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"title": {"type": "string"}}}]},
            "uniqueItems": True,
        },
        "secret": False,
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"title": "A", "pages": 3, "parts": ["a", {"title": "B"}]}, None),
        ([], ('"type": "object"', "", "#/type")),
        ({}, ('"required": "title"', "", "#/required")),
        ({"title": "a"}, ('"pattern": "^[A-Z]"', "/title", "#/properties/title/pattern")),
        ({"title": "A", "pages": 0}, ('"minimum": 1', "/pages", "#/properties/pages/minimum")),
        ({"title": "A", "a/b~": 1}, ('"additionalProperties": false', "/a~1b~0", "#/additionalProperties")),
        ({"title": "A", "secret": 1}, ('"properties": false', "/secret", "#/properties/secret")),
        ({"title": "A", "parts": ["a", "a"]}, ('"uniqueItems": true', "/parts", "#/properties/parts/uniqueItems")),
        ({"title": "A", "parts": ["a", {"title": 1}]}, None),
    ],
)
def test_violation_names_the_rule_and_the_location(data: object, expected: tuple[str, str, str] | None) -> None:
    if expected is not None:
        assert violation_fields(BOOK, data) == expected
    elif isinstance(data, dict) and isinstance(data["parts"][1]["title"], int):
        rule, pointer, source = violation_fields(BOOK, data)
        assert (pointer, source) == ("/parts/1", "#/properties/parts/items/anyOf")
        assert rule.startswith('"anyOf": ')
    else:
        assert violation(BOOK, data) is None


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a", 1]}, 1, True),
        ({"const": {"a": [1]}}, {"a": [1.0]}, {"a": [2]}),
        ({"uniqueItems": True}, [1, True, "1", [1]], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 1, 3),
        ({"anyOf": [{"type": "integer"}, {"minLength": 2}]}, 3, "a"),
        ({"type": "integer"}, 1.0, True),
        ({"type": ["null", "number"]}, None, False),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 2.5}, 2, 1.0),
        ({"minProperties": 1, "maxProperties": 1}, {"a": 1}, {}),
        ({"items": False, "minItems": 0}, [], [1]),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": "b", "c": 1}, {"c": ""}),
        ({"format": "email"}, "not checked", None),
        (True, 1, None),
    ],
)
def test_rules_of_the_dialect_are_applied(schema: object, good: object, bad: object) -> None:
    assert violation(schema, good) is None
    if bad is not None:
        assert violation(schema, bad) is not None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.org/schema"}, r"at /\$ref: '\$ref' is not a supported keyword"),
        ({"$ref": "#"}, r"at /\$ref: '\$ref' is not a supported keyword"),
        ({"$defs": {"a": {}}}, r"at /\$defs: '\$defs' is not a supported keyword"),
        ({"properties": {"a": {"$schema": DIALECT}}}, r"at /properties/a/\$schema: '\$schema' is not a supported"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, r"at /\$schema: \$schema must be https://"),
        ({"items": {"$id": "https://example.org/"}}, r"at /items/\$id: '\$id' is not a supported keyword"),
        ({"$dynamicRef": "#"}, "'.dynamicRef' is not a supported keyword"),
        ({"unevaluatedProperties": False}, "'unevaluatedProperties' is not a supported keyword"),
        ({"minLenght": 3}, "at /minLenght: 'minLenght' is not a supported keyword; supported are type, enum, const, "),
        ({"allOf": [{}]}, "at /allOf: 'allOf' is not a supported keyword"),
        ({"patternProperties": {}}, "at /patternProperties: 'patternProperties' is not a supported keyword"),
        (
            {"$anchor": "/x"},
            r"^invalid schema at /\$anchor: '\$anchor' is not a supported keyword; supported are type, ",
        ),
        (
            {"items": {"$anchor": "x"}},
            r"^invalid schema at /items/\$anchor: '\$anchor' is not a supported keyword; supported are type, ",
        ),
        ({"minLength": "3"}, "at /minLength: minLength must be an integer from 0"),
        ({"maxItems": -1}, "at /maxItems: maxItems must be an integer from 0"),
        ({"maxItems": True}, "at /maxItems: maxItems must be an integer from 0"),
        ({"minimum": "3"}, "at /minimum: minimum must be a number"),
        ({"type": "text"}, "at /type: type must be one or several of array, boolean, integer, null, number, object"),
        ({"type": []}, "at /type: type must be"),
        ({"type": ["string", "string"]}, "at /type: type must be"),
        ({"type": [{"": number} for number in range(1_000)]}, "at /type: type must be"),
        ({"enum": 1}, "at /enum: enum must be an array"),
        ({"uniqueItems": 1}, "at /uniqueItems: uniqueItems must be true or false"),
        ({"required": ["a", "a"]}, "at /required: required must be an array of strings"),
        ({"anyOf": {}}, "at /anyOf: anyOf must be an array of schemas"),
        ({"oneOf": []}, "at /oneOf: oneOf must be an array of schemas"),
        ({"anyOf": [1]}, "at /anyOf/0: a schema must be an object, true or false"),
        ({"properties": []}, "at /properties: properties must be an object of schemas"),
        ({"items": [{}]}, "at /items: a schema must be an object, true or false"),
        ({"pattern": r"(a)\1"}, "at /pattern: .*backreference"),
        ({"pattern": 1}, "at /pattern: pattern must be a string"),
        ({"properties": {"a/b": {"pattern": "(?=x)"}}}, "at /properties/a~1b/pattern: .*lookaround"),
        ({"const": 1 << 63}, "63 bits"),
        ([], "a schema must be an object"),
    ],
)
def test_unsupported_or_unbounded_schema_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        compile_schema(json.dumps(schema))


def test_size_number_and_depth_of_schemas_are_limited() -> None:
    with pytest.raises(InvalidData, match="bytes"):
        compile_schema(json.dumps({"description": "x" * MAX_SCHEMA_BYTES}))
    with pytest.raises(InvalidData, match="too many subschemas"):
        compile_schema(json.dumps({"anyOf": [True] * 1_250}))
    with pytest.raises(InvalidData, match="more than 32 different patterns"):
        compile_schema(json.dumps({"anyOf": [{"pattern": f"a{number}"} for number in range(33)]}))
    deep: object = {}
    for _ in range(16):
        deep = {"items": deep}
    with pytest.raises(InvalidData, match="nested more than 16 levels deep"):
        compile_schema(json.dumps(deep))
    with pytest.raises(InvalidData, match="invalid JSON"):
        compile_schema("{")


def test_schema_that_costs_too_much_to_prepare_is_refused() -> None:
    long = [{"pattern": f"{number:02}" + "x" * 998} for number in range(14)]
    with pytest.raises(InvalidData, match="too many subschemas or too large patterns"):
        compile_schema(json.dumps({"anyOf": long}))
    large = [{"pattern": rf"{number:02}[\pL\pN]{{22}}"} for number in range(30)]
    with pytest.raises(InvalidData, match="too many subschemas or too large patterns"):
        compile_schema(json.dumps({"anyOf": large}))


def test_cost_grows_with_the_content_of_the_schema() -> None:
    def cost(schema: object) -> int:
        return compile_schema(json.dumps(schema)).cost

    assert cost({}) == 8
    assert cost({"anyOf": [True] * 100}) > 800
    assert cost({"pattern": "a" * 100}) > 100
    assert cost({"pattern": r"\pL{15}"}) > 300
    assert cost({"enum": list(range(2_000))}) > 500


def test_repeated_expression_is_charged_once() -> None:
    once, twice = ({"anyOf": [{"pattern": "a" * 400}] * count} for count in (1, 2))
    assert compile_schema(json.dumps(twice)).cost < compile_schema(json.dumps(once)).cost + 100


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"items": {"anyOf": [*[{"type": "string", "minLength": 2}] * 200, {}]}}, ["a"] * 1_000),
        ({"items": {"oneOf": [True, *[False] * 900]}}, [1] * 100),
        ({"items": {"const": list(range(1_500))}}, [list(range(900))] * 15),
        ({"items": {"uniqueItems": True}}, [["x" * 1_000, "y" * 1_000]] * 30 + [[]] * 10_000),
        ({"anyOf": [{"uniqueItems": True, "maxItems": 0}] * 50}, list(range(5_000))),
        ({"anyOf": [{"const": number} for number in range(100)]}, list(range(5_000))),
        ({"items": {"required": [f"x{n}" for n in range(1_000)]}}, [{f"x{n}": 0 for n in range(1_000)}] * 7),
        ({"items": {"properties": {f"x{n}": True for n in range(900)}}}, [{}] * 200),
        ({"items": {"additionalProperties": {}}}, [{f"{n}": 1 for n in range(160)}] * 60 + [{}] * 9_000),
        ({"anyOf": [{"pattern": "(a|b|ab)*c{1,500}$"}] * 100, "pattern": "(a+)+$"}, "a" * 60_000),
    ],
    ids=[
        "branches",
        "false branches",
        "const",
        "unique items",
        "small items",
        "small const",
        "required",
        "properties",
        "members",
        "expressions",
    ],
)
def test_hostile_schemas_exceed_the_budget(schema: object, data: object) -> None:
    applied = compile_schema(json.dumps(schema))
    with pytest.raises(BudgetExceeded):
        applied.violation(json.dumps(data).encode(), ValidationBudget())


def test_large_data_is_validated_within_the_budget() -> None:
    budget = ValidationBudget()
    assert violation({"items": {"type": "string", "minLength": 1}}, ["a"] * 1_000, budget) is None
    assert violation({"pattern": "(a+)+$"}, "a" * 20_000 + "!", budget) is not None
    assert budget.steps > MAX_STEPS // 2


def test_step_budget_is_shared_between_validations() -> None:
    budget = ValidationBudget(steps=10)
    for _ in range(10):
        assert violation({"type": "string"}, "x", budget) is None
    with pytest.raises(BudgetExceeded, match="steps"):
        violation({"type": "string"}, "x", budget)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "invalid JSON"),
        (b"\xff", "invalid JSON"),
        (b"[" * 20 + b"]" * 20, "deep"),
        (b"123456789012345678901234567890", "63 bits"),
        (b'"' + b"a" * MAX_CHECKED_BYTES + b'"', "the maximum for validation"),
    ],
)
def test_data_that_cannot_be_validated_is_invalid_data(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        compile_schema("{}").violation(data, ValidationBudget())


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(_plain, max_size=5))
def test_items_are_unique_exactly_if_no_two_are_equal_json(items: list[object]) -> None:
    def same(one: object, other: object) -> bool:
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(same, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
        return one == other

    repeated = any(same(one, other) for pointer, one in enumerate(items) for other in items[:pointer])
    assert (violation({"uniqueItems": True}, items) is not None) is repeated


# The reference implementation agrees about schemas of the closed set.

_sizes = st.integers(0, 3)
_numbers = st.integers(-2, 3) | st.floats(-2, 3)
_types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


_ANNOTATION_VALUES: Final[dict[type, st.SearchStrategy[Any]]] = {
    str: st.just("x"),
    bool: st.booleans(),
    list: st.just([1]),
    object: st.none(),
}


def _rules(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.text("ab", max_size=2), schemas, max_size=3)
    rules: dict[str, st.SearchStrategy[Any]] = {
        "type": _types | st.lists(_types, min_size=1, max_size=3, unique=True),
        "enum": st.lists(_plain, max_size=3),
        "const": _plain,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _numbers),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _sizes),
        "pattern": st.sampled_from(["a", "^a", "b$", "^(a|b)?$"]),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.text("ab", max_size=2), max_size=2, unique=True),
        "properties": members,
        "additionalProperties": schemas,
        "items": schemas,
        **dict.fromkeys(("anyOf", "oneOf"), st.lists(schemas, min_size=1, max_size=3)),
        **{name: _ANNOTATION_VALUES[kind] for name, kind in ANNOTATIONS.items()},
    }
    assert rules.keys() == {*RULES, *ANNOTATIONS}
    names = st.lists(st.sampled_from([*RULES, *RULES, *ANNOTATIONS]), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: rules[name] for name in chosen}))


_valid_schemas = st.recursive(st.booleans() | _rules(st.booleans()), _rules, max_leaves=5)


@given(_valid_schemas, _plain)
def test_result_is_that_of_the_reference_implementation(schema: Any, data: Any) -> None:
    assert (violation(schema, data) is None) is Draft202012Validator(schema).is_valid(data)


_values: st.SearchStrategy[Any] = st.sampled_from(
    ["string", "a", 0, 1, 2.0, -1, True, None, {}, [], {"type": {}}, [{}], ["a"], ["a", "a"], [1]]
)


@given(st.sampled_from(RULES), _values)
def test_value_of_a_keyword_is_accepted_as_by_the_reference_implementation(keyword: str, value: object) -> None:
    schema = json.dumps({keyword: value})
    if keyword != "pattern" and Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(json.loads(schema)):
        compile_schema(schema)
    else:
        with contextlib.suppress(InvalidData):
            compile_schema(schema)
            assert keyword == "pattern"


def test_message_lists_every_keyword() -> None:
    with pytest.raises(InvalidData) as caught:
        compile_schema('{"not": {}}')
    known = caught.value.message.rpartition("supported are ")[2].split(", ")
    assert known == [*RULES, *ANNOTATIONS]
    assert violation(dict.fromkeys(ROOT_ANNOTATIONS, DIALECT), 1) is None


@pytest.mark.parametrize(("keyword", "value"), [("title", 5), ("examples", 1), ("deprecated", "x"), ("$id", 1)])
def test_annotation_has_the_type_of_its_keyword(keyword: str, value: object) -> None:
    with pytest.raises(InvalidData, match=r"must be (a string|an array|true or false)$"):
        compile_schema(json.dumps({keyword: value}))


_keywords = st.sampled_from(
    ["type", "$ref", "items", "anyOf", "properties", "pattern", "enum", "const", "minLength", "required", "x"]
)
_schemas = st.recursive(
    st.booleans() | st.sampled_from(["string", "#", "#/items", "A", "#A", "#%41", "(a", 1, None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_keywords, inner, max_size=3),
    max_leaves=8,
)


@given(_schemas, _plain)
def test_any_schema_is_refused_or_applied(schema: object, data: object) -> None:
    with contextlib.suppress(InvalidData):
        violation(schema, data)
