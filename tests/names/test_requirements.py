"""Every requirement of the reference on identifiers is proved by a test that cites it, or listed in the table below.

A test cites a requirement in its name (`test_h3_…`) or in its docstring (H3). When a requirement is implemented, move
its id from the table to a test.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
COUNTS = {"H": 9, "P": 8, "C": 6, "U": 8, "A": 8, "S": 14}
REQUIREMENTS = {f"{group}{number}" for group, count in COUNTS.items() for number in range(1, count + 1)}
ID = re.compile(r"(?<![A-Za-z0-9])[HPCUAS][0-9]{1,2}(?![A-Za-z0-9])")

LATER = {
    "S6": "later: checking links",
    "S7": "later: checking content",
}


def find_citations(source: str) -> Iterator[tuple[str, str]]:
    """Each requirement that the test functions of a module cite, with the function's name."""
    body = ast.parse(source).body
    for node in (*body, *(each for group in body if isinstance(group, ast.ClassDef) for each in group.body)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = {word.upper() for word in node.name.split("_")} & REQUIREMENTS
            for requirement in words | {*ID.findall(ast.get_docstring(node) or "")}:
                yield requirement, node.name


@pytest.fixture(scope="module")
def tests_by_requirement() -> dict[str, set[str]]:
    """The tests that prove each requirement."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for requirement, test in find_citations(path.read_text()):
            found.setdefault(requirement, set()).add(test)
    return found


def test_every_requirement_is_tested_or_later(tests_by_requirement: dict[str, set[str]]) -> None:
    assert sorted(REQUIREMENTS - tests_by_requirement.keys() - LATER.keys()) == []


def test_no_requirement_is_both_tested_and_later(tests_by_requirement: dict[str, set[str]]) -> None:
    assert {requirement: tests for requirement, tests in tests_by_requirement.items() if requirement in LATER} == {}


def test_only_existing_requirements_are_cited(tests_by_requirement: dict[str, set[str]]) -> None:
    assert {
        requirement: tests for requirement, tests in tests_by_requirement.items() if requirement not in REQUIREMENTS
    } == {}
    assert LATER.keys() - REQUIREMENTS == set()
    assert all(reason.startswith("later: ") for reason in LATER.values())


def test_citations_are_read_only_from_names_and_docstrings_of_tests() -> None:
    source = '''
"""H1 in a module's docstring does not count."""

def helper_h2() -> None:
    """H3"""

class TestGroup:
    def test_h4_u5_something_p(self) -> None:
        """S14, A1–A2 and rule P3; not XH5, H66X or h7."""

async def test_without_any() -> None:
    "c1 C2"
    assert "H8"
'''
    assert {requirement for requirement, _ in find_citations(source)} == {"H4", "U5", "S14", "A1", "A2", "P3", "C2"}
