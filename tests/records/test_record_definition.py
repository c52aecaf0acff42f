"""PERSEID_TYPE: definitions of types."""

import json
import re
from pathlib import Path

import pytest

from perseid.records import data_types, encoding, json_schema, patterns
from perseid.records.data_types import MAX_DEFINITION_BYTES, Definition, interpret
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json, value_to_json
from perseid.records.json_schema import MAX_CHECKED_BYTES
from perseid.records.patterns import ValidationBudget
from perseid.records.record import Value
from perseid.registry.policy import types

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "reference" / "types.md"

SCALE = Definition.make("Scale", "The scale of a map.", pattern="1:[1-9][0-9]*", example="1:25000")
SIZE = Definition.make("Size", "How large it is.", schema={"type": "object", "required": ["mm"]}, example='{"mm":3}')


def test_definition_is_an_ordinary_value() -> None:
    value = Value(2, "PERSEID_TYPE", SCALE.to_bytes())
    assert interpret(value) == SCALE
    assert value_from_json(value_to_json(value)) == value
    assert json.loads(SCALE.text) == {
        "name": "Scale",
        "description": "The scale of a map.",
        "pattern": "1:[1-9][0-9]*",
        "example": "1:25000",
    }
    assert (SCALE.name, SCALE.description, SCALE.schema) == ("Scale", "The scale of a map.", None)
    assert SIZE.schema == '{"type":"object","required":["mm"]}'
    assert (SCALE.syntax, SIZE.syntax) == (
        f"text that matches {SCALE.pattern}",
        f"JSON that is valid for {SIZE.schema}",
    )
    assert Definition.make("a", "b").syntax is None


def test_definition_text_is_unchanged_with_unknown_members() -> None:
    text = '{ "name": "a", "description": "", "later": [1] }'
    assert Definition.from_text(text).to_bytes() == text.encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "must be a JSON object"),
        ("{", "invalid JSON"),
        ('{"description":"b"}', 'no "name"'),
        ('{"name":"a"}', 'no "description"'),
        ('{"name":" ","description":"b"}', "name of the type must have"),
        (json.dumps({"name": "a" * 201, "description": "b"}), "1 to 200 characters"),
        ('{"name":1,"description":"b"}', "must be a string"),
        ('{"name":"a","description":"b","pattern":1}', "the pattern of the type must be a string"),
        ('{"name":"a","description":"b","pattern":"","schema":{}}', "both a pattern and a schema"),
        (json.dumps({"name": "a", "description": "b" * MAX_DEFINITION_BYTES}), "the definition has"),
    ],
)
def test_invalid_definition_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        Definition.from_text(text)


def test_violation_names_the_rule() -> None:
    assert SCALE.violation(b"1:50000", ValidationBudget()) is None
    assert str(SCALE.violation(b"1:05", ValidationBudget())) == 'the data violates the rule "pattern": "1:[1-9][0-9]*"'
    assert str(SCALE.violation(b"1:5\n", ValidationBudget())).startswith("the data violates the rule")
    assert str(SCALE.violation(b"\xff", ValidationBudget())) == "at byte 0: the data is not valid UTF-8"
    assert "the maximum for validation" in str(SCALE.violation(b"1" * (MAX_CHECKED_BYTES + 1), ValidationBudget()))
    assert SIZE.violation(b'{"mm": 1}', ValidationBudget()) is None
    assert (
        str(SIZE.violation(b"{}", ValidationBudget()))
        == 'the data violates the rule "required": "mm" (#/required of the schema)'
    )
    assert Definition.make("a", "b").violation(b"\xff", ValidationBudget()) is None


@pytest.mark.parametrize(
    "definition",
    [
        Definition.make("a", "b", pattern=r"(a)\1"),
        Definition.make("a", "b", pattern="[a-z&&[^b]]"),
        Definition.make("a", "b", schema={"$ref": "https://example.org/"}),
        Definition.make("a", "b", schema={"pattern": "(?=a)"}),
    ],
)
def test_unusable_syntax_is_refused_by_check_and_matches_no_data(
    definition: Definition,
) -> None:
    with pytest.raises(InvalidData):
        definition.check()
    assert definition.violation(b"a", ValidationBudget()) is not None


@pytest.mark.parametrize(
    "definition",
    [
        Definition.make("a", "b", pattern="x{1,900}"),
        Definition.make("a", "b", schema={"properties": {str(number): {} for number in range(20)}}),
    ],
)
def test_preparing_a_definition_is_charged_once_per_record_even_if_cached(
    definition: Definition,
) -> None:
    spent = []
    for _ in range(2):
        budget = ValidationBudget()
        before = budget.preparing
        for _ in range(3):
            assert definition.violation(b'"x"', budget) is None or definition.pattern
        spent.append(before - budget.preparing)
    assert spent[0] == spent[1] > 20
    assert str(definition.violation(b"x", ValidationBudget(preparing=spent[0] - 1))).startswith("the type definitions")


def test_example_must_be_valid_for_the_type() -> None:
    SCALE.check()
    SIZE.check()
    for wrong in (
        Definition.make("a", "b", pattern="[0-9]+", example="x"),
        Definition.make("a", "b", schema={"type": "string"}, example="1"),
    ):
        with pytest.raises(InvalidData, match="the example is not valid for the type"):
            wrong.check()


def test_manual_documents_every_limit() -> None:
    documented = dict(re.findall(r"^\| `(MAX_\w+)` \| ([0-9,]+) \|", MANUAL.read_text(), re.MULTILINE))
    modules = (data_types, patterns, encoding, json_schema, types)
    known = {name: value for module in modules for name, value in vars(module).items() if name.startswith("MAX_")}
    documented_elsewhere = {
        *("MAX_JSON_BYTES", "MAX_JSON_ITEMS", "MAX_TYPE_NAME_LENGTH", "MAX_BYTES"),
        *("MAX_EXPRESSION_LENGTH", "MAX_EXPRESSION_DEPTH", "MAX_EXPRESSION_MEMORY"),
    }
    assert documented == {name: f"{value:,}" for name, value in known.items() if name not in documented_elsewhere}
