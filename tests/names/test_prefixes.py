"""Prefixes: syntax, and derivation as far as names show it."""

import pytest
from hypothesis import given

from perseid.names import prefixes
from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_BYTES, Handle
from tests import strategies
from tests.names.support import attempt, error_fields, misuse_error, name_error


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


def test_h6_children_are_one_segment_longer_and_keep_their_order() -> None:
    candidates = ["10", "10.2", "10.1", "10.1.1", "100.1", "x.y", "X.z"]
    assert prefixes.children("10", candidates) == ["10.2", "10.1"]
    assert prefixes.children("x", candidates) == ["x.y", "X.z"]
    assert prefixes.children("99", candidates) == []


def test_h6_derived_prefix_is_a_valid_prefix() -> None:
    derived = prefixes.derive("12345", "1")
    assert derived == "12345.1"
    prefixes.check_prefix(derived)
    assert prefixes.derive(derived, "x") == "12345.1.x"


@pytest.mark.parametrize("segment", ["", ".", "1.2", ".1"])
def test_h6_deriving_requires_exactly_one_segment(segment: str) -> None:
    assert misuse_error(prefixes.derive, "12345", segment).rule == "H6"


@pytest.mark.parametrize(
    ("prefix", "segment", "expected"),
    [
        ("10", "a/b", ("H2", 4, "/")),
        ("10", "a\x00", ("H3", 4, "\x00")),
        ("10", "a ", ("H3", 4, " ")),
        ("10.", "1", ("H2", 3, ".")),
    ],
)
def test_h6_deriving_an_illegal_prefix_is_refused(prefix: str, segment: str, expected: tuple[str, int, str]) -> None:
    assert error_fields(name_error(prefixes.derive, prefix, segment)) == expected


@given(strategies.prefixes())
def test_h6_prefix_relations_are_consistent(prefix: str) -> None:
    ancestors = list(prefixes.ancestors(prefix))
    assert len(ancestors) == prefix.count(".")
    for ancestor in ancestors:
        assert prefixes.is_derived(prefix, ancestor)
        assert not prefixes.is_derived(ancestor, prefix)
    if ancestors:
        assert ancestors[0] == prefixes.parent(prefix)
        assert prefixes.children(ancestors[0], [prefix, *ancestors]) == [prefix]
        assert prefixes.derive(ancestors[0], prefix.rpartition(".")[2]) == prefix


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
