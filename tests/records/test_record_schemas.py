"""Untrusted JSON Schemas: allowed content, violations in data, and bounded validation."""

import contextlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing.exceptions import Unresolvable

from perseid.records.errors import InvalidData
from perseid.records.json_schema import (
    DIALECT,
    MAX_CHECKED_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_PARTS,
    Schema,
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
        "pages": {"$ref": "#/$defs/count"},
        "parts": {"type": "array", "items": {"$ref": "#part"}, "uniqueItems": True},
        "secret": False,
    },
    "patternProperties": {"^x-": {"type": "string"}},
    "additionalProperties": False,
    "$defs": {
        "count": {"type": "integer", "minimum": 1},
        "part": {"$anchor": "part", "anyOf": [{"type": "string"}, {"$ref": "#"}]},
    },
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"title": "A", "pages": 3, "x-y": "z", "parts": ["a", {"title": "B"}]}, None),
        ([], ('"type": "object"', "", "#/type")),
        ({}, ('"required": "title"', "", "#/required")),
        ({"title": "a"}, ('"pattern": "^[A-Z]"', "/title", "#/properties/title/pattern")),
        ({"title": "A", "pages": 0}, ('"minimum": 1', "/pages", "#/properties/pages/minimum")),
        ({"title": "A", "a/b~": 1}, ('"additionalProperties": false', "/a~1b~0", "#/additionalProperties")),
        ({"title": "A", "x-": 1}, ('"type": "string"', "/x-", "#/patternProperties/^x-/type")),
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
        ({"multipleOf": 0.01}, 1e300, 0.005),
        ({"uniqueItems": True}, [1, True, "1", [1]], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 1, 3),
        ({"not": {"type": "string"}}, 1, "a"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 5}}, "ab", 4),
        ({"contains": {"type": "string"}, "minContains": 2}, ["a", 1, "b"], ["a", 1]),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", 1]),
        ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"propertyNames": {"pattern": "^x"}}, {"xa": 1}, {"a": 1}),
        ({"patternProperties": {"^a": {}}, "additionalProperties": {"type": "integer"}}, {"a": "b", "c": 1}, {"c": ""}),
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
        ({"$ref": "https://example.org/schema"}, r"/\$ref: .* points outside the schema"),
        ({"$ref": "other.json"}, "points outside the schema"),
        ({"$ref": "file:///etc/passwd"}, "points outside the schema"),
        ({"$ref": 1}, "points outside the schema"),
        ({"$ref": "#/$defs/none"}, "which is not a schema"),
        # Data inside a schema is not a schema and was not checked.
        (
            {"$ref": "#/default", "default": {"$schema": "http://json-schema.org/draft-07/schema#"}},
            "which is not a schema",
        ),
        ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, "/properties/a/.schema"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, r"\$schema must be"),
        ({"items": {"$id": "https://example.org/"}}, "is not a supported keyword"),
        ({"$dynamicRef": "#"}, "is not a supported keyword"),
        ({"unevaluatedProperties": False}, "is not a supported keyword"),
        ({"minLenght": 3}, "at /minLenght: 'minLenght' is not a supported keyword"),
        ({"minLength": "3"}, "invalid schema at /minLength"),
        ({"type": "text"}, "invalid schema at /type"),
        ({"allOf": {}}, "allOf must be an array of schemas"),
        ({"properties": []}, "properties must be an object of schemas"),
        ({"items": [{}]}, "a schema must be an object, true or false"),
        ({"pattern": r"(a)\1"}, "at /pattern: .*backreference"),
        ({"pattern": 1}, "a pattern must be a string"),
        ({"properties": {"a": {"patternProperties": {"(?=x)": {}}}}}, "/properties/a/patternProperties: .*lookaround"),
        ({"$anchor": "/x"}, "invalid or not unique"),
        ({"$anchor": "x", "items": {"$anchor": "x"}}, "invalid or not unique"),
        ({"$anchor": "a/b"}, "invalid schema at /.anchor"),
        # A percent sign in the name of an anchor is literal: nothing is decoded there.
        ({"$ref": "#%41", "$defs": {"x": {"$anchor": "A"}}}, "points to #%41, which is not a schema"),
        ({"$ref": "#A%2F", "$defs": {"x": {"$anchor": "A"}}}, "which is not a schema"),
        ({"type": [{"": number} for number in range(1_000)]}, "at /type: type lists more than the 7 JSON types"),
        ([], "a schema must be an object"),
    ],
)
def test_unsupported_or_unbounded_schema_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        compile_schema(json.dumps(schema))


def test_size_number_and_depth_of_schemas_are_limited() -> None:
    with pytest.raises(InvalidData, match="bytes"):
        compile_schema(json.dumps({"description": "x" * MAX_SCHEMA_BYTES}))
    with pytest.raises(InvalidData, match="more than 1,000 subschemas"):
        compile_schema(json.dumps({"allOf": [True] * MAX_SCHEMA_PARTS}))
    with pytest.raises(InvalidData, match="more than 32 different patterns"):
        compile_schema(json.dumps({"patternProperties": {f"a{number}": True for number in range(33)}}))
    deep: object = {}
    for _ in range(16):
        deep = {"not": deep}
    with pytest.raises(InvalidData, match="nested more than 16 levels deep"):
        compile_schema(json.dumps(deep))
    with pytest.raises(InvalidData, match="invalid JSON"):
        compile_schema("{")


def test_schema_that_costs_too_much_to_prepare_is_refused() -> None:
    long = [{"pattern": f"{number:02}" + "x" * 998} for number in range(14)]
    with pytest.raises(InvalidData, match="too many subschemas or too large patterns"):
        compile_schema(json.dumps({"allOf": long}))
    large = [{"pattern": rf"{number:02}[\pL\pN]{{22}}"} for number in range(30)]
    with pytest.raises(InvalidData, match="too many subschemas or too large patterns"):
        compile_schema(json.dumps({"allOf": large}))


def test_cost_grows_with_the_content_of_the_schema() -> None:
    def cost(schema: object) -> int:
        return compile_schema(json.dumps(schema)).cost

    assert cost({}) == 8
    assert cost({"allOf": [True] * 100}) > 800
    assert cost({"pattern": "a" * 100}) > 100
    assert cost({"pattern": r"\pL{15}"}) > 300
    assert cost({"enum": list(range(2_000))}) > 500


def test_repeated_expression_is_charged_once() -> None:
    once, twice = ({"allOf": [{"pattern": "a" * 400}] * count} for count in (1, 2))
    assert compile_schema(json.dumps(twice)).cost < compile_schema(json.dumps(once)).cost + 100


@pytest.mark.parametrize("name", ["x", "a/b", "a~b", "a%41", "é", "a b"])
def test_anchor_is_resolved_anywhere_in_the_schema(name: str) -> None:
    schema = {"items": {"$ref": "#A"}, "$defs": {name: {"$anchor": "A", "type": "integer"}}}
    assert violation(schema, [1]) is None
    assert violation_fields(schema, [1, "a"])[:2] == ('"type": "integer"', "/1")
    root = {"$anchor": "top", "type": ["array", "integer"], "items": {"$ref": "#top"}}
    assert violation(root, [[1]]) is None
    assert violation_fields(root, [["a"]])[1] == "/0/0"


def test_library_never_searches_for_an_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would scan the whole schema at each use, which the step budget does not count."""

    def anchor(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("referencing._core.Registry.anchor", anchor)
    monkeypatch.setattr("referencing._core.Registry.crawl", anchor)
    assert violation({"items": {"$ref": "#A"}, "$defs": {"x": {"$anchor": "A", "type": "integer"}}}, [1, 2]) is None


def test_broken_reference_is_invalid_data() -> None:
    class BrokenReference:
        def iter_errors(self, _: object) -> Iterator[object]:
            raise Unresolvable("#nowhere")

    with pytest.raises(InvalidData, match="broken reference"):
        Schema(BrokenReference(), {}).violation(b"1", ValidationBudget())


def doubling(levels: int) -> object:
    """A short schema that takes two to the power of `levels` checks."""
    parts: dict[str, object] = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": parts | {f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"$ref": "#"}, 1),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"not": {"$ref": "#"}}, 1),
        ({"if": {"$ref": "#"}}, 1),
        (doubling(30), "x"),
        ({"items": {"anyOf": [*[{"type": "string", "minLength": 2}] * 200, {}]}}, ["a"] * 1_000),
        (
            {"items": {"patternProperties": {f"^{number}": True for number in range(30)}}},
            [{f"x{number}": 1 for number in range(50)}] * 130,
        ),
        ({"$defs": {"c": {"const": list(range(1_500))}}, "items": {"$ref": "#/$defs/c"}}, [list(range(900))] * 15),
        ({"pattern": "(a+)+$", "allOf": [{"pattern": "(a|b|ab)*c{1,500}$"}] * 100}, "a" * 60_000),
    ],
    ids=[
        "itself",
        "itself twice",
        "not itself",
        "if itself",
        "doubling",
        "branches",
        "patterns",
        "const",
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
    with pytest.raises(BudgetExceeded, match="endlessly"):
        violation({"$ref": "#"}, 1)


def test_recursion_error_is_reported_as_exceeded_budget() -> None:
    class Deep:
        def iter_errors(self, _: object) -> Iterator[object]:
            raise RecursionError

    with pytest.raises(BudgetExceeded, match="endlessly"):
        Schema(Deep(), {}).violation(b"1", ValidationBudget())


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


_keywords = st.sampled_from(
    ["type", "$ref", "$anchor", "items", "allOf", "properties", "pattern", "enum", "minLength", "not", "x"]
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
