"""Untrusted regular expressions: refusals, matches and bounded time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.records.patterns import (
    MAX_PATTERN_LENGTH,
    MAX_PATTERN_WORK,
    MAX_STEPS,
    BudgetExceeded,
    ValidationBudget,
    compile_pattern,
)


@pytest.mark.parametrize(
    ("pattern", "construct", "character"),
    [
        (r"(a)\1", "backreference", 4),
        (r"(?P<x>a)(?P=x)", "backreference", 9),
        (r"(?P<x>a)\k<x>", "backreference", 9),
        (r"a(?=b)", "lookaround", 2),
        (r"a(?!b)", "lookaround", 2),
        (r"(?<=a)b", "lookaround", 1),
        (r"(?<!a)b", "lookaround", 1),
        (r"[a-z&&[^b]]", "intersection", 5),
        (r"[^&&]", "intersection", 3),
        (r"[]&&]", "intersection", 3),
        (r"x[a[bc]]", "class inside a class", 4),
        (r"[[:alpha:]]", "class inside a class", 2),
        (r"\C", "single byte", 1),
    ],
)
def test_unsupported_constructs_are_refused_by_name(pattern: str, construct: str, character: int) -> None:
    with pytest.raises(InvalidData, match=rf"{construct}.* at character {character};"):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(", "a++", "[a", "a{1001}", "((a{100}){100}){10}", r"\pL{100}", "\\", r"(?x)a b"])
def test_invalid_or_too_large_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidData, match="not a valid RE2 regular expression"):
        compile_pattern(pattern)
    with pytest.raises(InvalidData, match="1,001 characters"):
        compile_pattern("a" * (MAX_PATTERN_LENGTH + 1))
    with pytest.raises(InvalidData, match=r"^the (pattern|text) contains a surrogate \(character 1\)$"):
        compile_pattern("\ud800")


@pytest.mark.parametrize(
    ("pattern", "text", "whole", "part"),
    [
        ("[0-9]+", "12", True, True),
        ("[0-9]+", "a12", False, True),
        ("^b", "ab", False, False),
        ("a$", "a\n", False, False),
        ("é+", "éé", True, True),
        (r"\Q[a&&b]\1\E", "[a&&b]\\1", True, True),
        (r"[a\&&]+", "&a", True, True),
        (r"[\[\]]+", "[]", True, True),
        (r"[]a]+", "]a", True, True),
        ("a|ab", "ab", True, True),
        ("", "", True, True),
    ],
)
def test_expression_matches_the_whole_text_or_a_part(pattern: str, text: str, whole: bool, part: bool) -> None:
    assert compile_pattern(pattern).matches(text, ValidationBudget()) is whole
    assert compile_pattern(pattern).has_match_in(text, ValidationBudget()) is part


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*a){20}", "(a?){50}a{50}"])
def test_expressions_with_catastrophic_backtracking_are_matched(pattern: str) -> None:
    """A backtracking engine would not return from these."""
    assert not compile_pattern(pattern).matches("a" * 20_000 + "!", ValidationBudget())


def test_total_work_of_all_matches_is_bounded() -> None:
    large = compile_pattern(r"[\pL\pN]{1,20}")
    budget = ValidationBudget()
    with pytest.raises(BudgetExceeded, match="too long"):
        large.matches("x" * 20_000, budget)
    budget = ValidationBudget()
    for _ in range(5):
        assert not large.matches("x" * 100, budget)
    assert budget.work < MAX_PATTERN_WORK
    budget.work = 0
    with pytest.raises(BudgetExceeded):
        large.matches("x", budget)
    with pytest.raises(InvalidData, match=r"^the (pattern|text) contains a surrogate \(character 1\)$"):
        large.matches("\ud800", ValidationBudget())
    assert (ValidationBudget().steps, ValidationBudget().work) == (MAX_STEPS, MAX_PATTERN_WORK)


def test_cost_grows_with_length_and_compiled_size() -> None:
    assert compile_pattern("a" * 100).cost > compile_pattern("a" * 50).cost > 50
    assert compile_pattern(r"\pL{15}").cost > 300


@given(st.text(st.sampled_from("ab[]()^$\\&*+?{}|.1QE-<=!:é"), max_size=20), st.text(max_size=10))
def test_any_text_is_compiled_or_refused(pattern: str, text: str) -> None:
    try:
        found = compile_pattern(pattern)
    except InvalidData:
        return
    if found.matches(text, ValidationBudget()):
        assert found.has_match_in(text, ValidationBudget())
