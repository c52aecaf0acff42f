"""Prefixes: syntax, and derivation as far as names show it."""

import pytest
from hypothesis import given

from perseid.names import prefixes
from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_BYTES, Handle
from tests import strategies
from tests.names.support import attempt, error_fields, name_error


@pytest.mark.parametrize("prefix", ["0", "10.1", "102.100.272", "102.100.pilin2", "0.NA", "é.漢", "1 0.x", "a:b@c%"])
def test_h2_prefix_is_segments_joined_by_dots(prefix: str) -> None:
    prefixes.check_prefix(prefix)
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
    assert error_fields(name_error(prefixes.check_prefix, prefix)) == expected


def test_h6_parent_and_ancestors_are_computed_from_the_name() -> None:
    assert prefixes.parent("12345.1") == "12345"
    assert prefixes.parent("12345") is None
    assert list(prefixes.ancestors("1.2.3.4")) == ["1.2.3", "1.2", "1"]
    assert list(prefixes.ancestors("12345")) == []
    assert list(prefixes.ancestors("..7")) == ["."], "an empty parent is none"


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
    assert prefixes.is_derived(prefix, ancestor_prefix) is derived


@given(strategies.prefixes())
def test_h6_prefix_relations_are_consistent(prefix: str) -> None:
    ancestors = list(prefixes.ancestors(prefix))
    assert len(ancestors) == prefix.count(".")
    for ancestor in ancestors:
        assert prefixes.is_derived(prefix, ancestor)
        assert not prefixes.is_derived(ancestor, prefix)
    if ancestors:
        assert ancestors[0] == prefixes.parent(prefix)


@given(strategies.texts())
def test_h2_arbitrary_text_is_refused_or_is_a_valid_prefix(text: str) -> None:
    answer = attempt(prefixes.check_prefix, text)
    if isinstance(answer, InvalidName):
        assert answer.rule in {"H1", "H2", "H3", "H9"}
    elif len(text) <= 500:
        assert Handle.parse(f"{text}/x") == Handle(text, "x")


def test_h9_prefix_handle_of_the_longest_prefix_fits_the_limit() -> None:
    assert len(f"0.NA/{'x' * prefixes.MAX_PREFIX_BYTES}") == MAX_BYTES
    prefixes.check_prefix("x" * prefixes.MAX_PREFIX_BYTES)
    limit = prefixes.MAX_PREFIX_BYTES
    assert error_fields(name_error(prefixes.check_prefix, "x" * (limit + 1))) == ("H9", limit, "x")
    assert error_fields(name_error(prefixes.check_prefix, "é" * (limit // 2 + 1))) == ("H9", limit // 2, "é")
