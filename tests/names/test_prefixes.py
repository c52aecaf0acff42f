"""Prefixes: syntax, and derivation as far as names show it."""

import pytest
from hypothesis import given

from perseid.names.errors import InvalidName
from perseid.names.handle import (
    MAX_BYTES,
    MAX_PREFIX_BYTES,
    Handle,
    ancestor_prefixes,
    check_prefix_syntax,
    is_derived,
    parent_prefix,
)
from tests import strategies
from tests.names.support import attempt, error_fields, name_error


@pytest.mark.parametrize("prefix", ["0", "10.1", "102.100.272", "102.100.pilin2", "0.NA", "é.漢", "1 0.x", "a:b@c%"])
def test_h2_prefix_is_segments_joined_by_dots(prefix: str) -> None:
    check_prefix_syntax(prefix)
    assert Handle.parse(f"{prefix}/x").prefix == prefix


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ("H1", 0, None)),
        (".", ("H2", 0, ".")),
        (".10", ("H2", 0, ".")),
        ("10.", ("H2", 2, ".")),
        ("10..1", ("H2", 3, ".")),
        ("10.1..", ("H2", 5, ".")),
        ("10/1", ("H2", 2, "/")),
        ("/", ("H2", 0, "/")),
        ("10.\x00", ("H3", 3, "\x00")),
        (" 10", ("H3", 0, " ")),
        ("10\u3000", ("H3", 2, "\u3000")),
    ],
)
def test_h2_invalid_prefix_is_refused_with_its_position(prefix: str, expected: tuple[str, int, str | None]) -> None:
    assert error_fields(name_error(check_prefix_syntax, prefix)) == expected


def test_h6_parent_and_ancestors_are_computed_from_the_name() -> None:
    assert parent_prefix("12345.1") == "12345"
    assert parent_prefix("12345") is None
    assert list(ancestor_prefixes("1.2.3.4")) == ["1.2.3", "1.2", "1"]
    assert list(ancestor_prefixes("12345")) == []
    assert list(ancestor_prefixes("..7")) == ["."], "an empty parent is none"


@pytest.mark.parametrize(
    ("prefix", "ancestor_prefix", "derived"),
    [
        ("12345.1", "12345", True),
        ("12345.1.2", "12345", True),
        ("abc.D", "ABC", True),
        ("12345", "12345", False),
        ("123456", "12345", False),
        ("12345", "12345.1", False),
        ("12345.1", "2345", False),
        ("é.1", "É", False),
    ],
)
def test_h6_derived_prefix_is_longer_by_whole_segments(prefix: str, ancestor_prefix: str, derived: bool) -> None:
    assert is_derived(prefix, ancestor_prefix) is derived


@given(strategies.prefixes())
def test_h6_prefix_relations_are_consistent(prefix: str) -> None:
    ancestors = list(ancestor_prefixes(prefix))
    assert len(ancestors) == prefix.count(".")
    for ancestor in ancestors:
        assert is_derived(prefix, ancestor)
        assert not is_derived(ancestor, prefix)
    if ancestors:
        assert ancestors[0] == parent_prefix(prefix)


@given(strategies.texts())
def test_h2_arbitrary_text_is_refused_or_is_a_valid_prefix(text: str) -> None:
    answer = attempt(check_prefix_syntax, text)
    if isinstance(answer, InvalidName):
        assert answer.rule in {"H1", "H2", "H3", "H9"}
    elif len(text) <= 500:
        assert Handle.parse(f"{text}/x") == Handle(text, "x")


def test_h9_prefix_handle_of_the_longest_prefix_fits_the_limit() -> None:
    assert len(f"0.NA/{'x' * MAX_PREFIX_BYTES}") == MAX_BYTES
    check_prefix_syntax("x" * MAX_PREFIX_BYTES)
    limit = MAX_PREFIX_BYTES
    assert error_fields(name_error(check_prefix_syntax, "x" * (limit + 1))) == ("H9", limit, "x")
    assert error_fields(name_error(check_prefix_syntax, "é" * (limit // 2 + 1))) == ("H9", limit // 2, "é")
