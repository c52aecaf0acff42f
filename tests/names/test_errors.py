"""Errors state the kind of mistake, the rule, the position and the character, in words a librarian understands."""

import ast
import copy
import pickle
from pathlib import Path

import pytest

from perseid import names
from perseid.names import pilin
from perseid.names.errors import (
    MAX_QUOTED_LENGTH,
    InvalidName,
    NameMisuse,
    NameProblem,
    format_character,
    load_rules,
    quote_text,
)
from perseid.names.handle import Handle
from perseid.names.scheme_loader import PatternScheme
from perseid.names.uri import parse_uri, parse_user_input
from tests.names.support import name_error

PACKAGE = Path(names.__file__).parent
BARE_PREFIX = 'a handle is PREFIX/SUFFIX, but there is no "/"; the prefix 10.1 itself is described by 0.NA/10.1'
ERROR_CLASSES: list[type[NameProblem]] = [InvalidName, NameMisuse]


def raised_rules() -> set[str]:
    """The rule ids that the package's modules pass to errors, read from their source."""
    found = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id not in {error_class.__name__ for error_class in ERROR_CLASSES}:
                    continue
                rule = node.args[0]
                assert isinstance(rule, ast.Constant), f"{path.name}:{node.lineno}: the rule is not written out"
                assert isinstance(rule.value, str)
                found.add(rule.value)
    return found


def test_every_cited_rule_is_explained() -> None:
    cited = raised_rules()
    assert {"H1", "H9", "P6", "C2", "U7"} <= cited
    assert cited - load_rules().keys() == set()


def test_every_explanation_has_a_title_and_a_sentence() -> None:
    for rule, explanation in load_rules().items():
        assert explanation.keys() == {"title", "text"}, rule
        assert explanation["text"].endswith("."), rule


def test_error_classes_are_distinct_and_share_a_base() -> None:
    assert issubclass(InvalidName, NameProblem)
    assert issubclass(NameMisuse, NameProblem)
    assert not issubclass(InvalidName, NameMisuse)
    assert not issubclass(NameMisuse, InvalidName)
    assert issubclass(NameProblem, ValueError)


def test_base_class_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match="raise InvalidName or NameMisuse"):
        raise NameProblem("H1", "nobody's fault")


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_error_has_rule_message_position_and_character(error_class: type[NameProblem]) -> None:
    problem = error_class("H3", "so it is", position=4, character="x")
    assert (problem.rule, problem.message, problem.position, problem.character) == ("H3", "so it is", 4, "x")
    assert str(problem) == "at character 5: so it is (rule H3)"
    bare = error_class("H9", "too long")
    assert (bare.position, bare.character) == (None, None)
    assert str(bare) == "too long (rule H9)"


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_error_can_be_pickled_and_copied(error_class: type[NameProblem]) -> None:
    problem = error_class("H3", "so it is", position=0, character="\ud800")
    for other in (pickle.loads(pickle.dumps(problem)), copy.copy(problem), copy.deepcopy(problem)):
        assert type(other) is error_class
        assert vars(other) == vars(problem)
        assert (other.args, str(other)) == (problem.args, str(problem))


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_with_position_returns_a_copy_with_the_new_position(error_class: type[NameProblem]) -> None:
    problem = error_class("H3", "so it is", position=1, character="x")
    moved = problem.with_position(9)
    assert type(moved) is error_class
    assert (moved.rule, moved.message, moved.position, moved.character) == ("H3", "so it is", 9, "x")
    assert moved.with_position(None).position is None
    assert problem.position == 1


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("x", '"x" (U+0078)'),
        ("ß", '"ß" (U+00DF)'),
        (" ", "U+0020"),
        ("\n", "U+000A"),
        ("\u00a0", "U+00A0"),
        ("\u202e", "U+202E"),
        ("\ud800", "U+D800"),
        ("\U0001f600", '"\U0001f600" (U+1F600)'),
    ],
)
def test_character_is_shown_unambiguously(character: str, shown: str) -> None:
    assert format_character(character) == shown


def test_quoted_text_is_on_one_line_and_truncated_when_long() -> None:
    assert quote_text("it's\n\ud800") == '"it\'s\\n\\ud800"'
    assert quote_text("x" * MAX_QUOTED_LENGTH) == repr("x" * MAX_QUOTED_LENGTH)
    assert quote_text("x" * (MAX_QUOTED_LENGTH + 1)) == repr("x" * MAX_QUOTED_LENGTH + "…")


@pytest.mark.parametrize(
    ("call", "text", "sentence"),
    [
        (Handle.parse, "report", 'at character 7: a handle is PREFIX/SUFFIX, but there is no "/" (rule H1)'),
        (
            Handle.parse,
            "10.1",
            f"at character 5: {BARE_PREFIX} (rule H1)",
        ),
        (
            parse_user_input,
            "hdl:10.1?a",
            f"at character 9: {BARE_PREFIX} (rule H1)",
        ),
        (
            Handle.parse,
            "10.1/a\u202eb",
            "at character 7: U+202E is a bidirectional control: the name would not read as it is stored (rule H3)",
        ),
        (
            pilin.decode,
            "D7J1GODQH",
            'at character 6: "O" (U+004F) is not in the PILIN alphabet; did you mean the digit 0? (rule P7)',
        ),
        (
            parse_uri,
            "hdl:10.1/a/b",
            'at character 11: only one segment can follow the prefix; write "/" inside the suffix as %2F (rule U5)',
        ),
        (
            parse_user_input,
            "https://unknown.example/10.1/x",
            "at character 1: 'unknown.example' is not the address of a known resolver (rule U4)",
        ),
        (
            PatternScheme("TR-dd").parse,
            "TR-0x",
            'at character 5: "x" (U+0078) is not allowed: the template TR-dd requires a digit here (rule P8)',
        ),
    ],
)
def test_message_says_what_is_wrong_and_where(call: object, text: str, sentence: str) -> None:
    assert callable(call)
    assert str(name_error(call, text)) == sentence
