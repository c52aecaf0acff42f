"""Prefixes: their form, and who is derived from whom as far as names tell."""

import pytest
from hypothesis import given

from perseid.names import prefixes
from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_BYTES, Handle
from tests import strategies
from tests.names.support import attempt, facts, misused, refused


@pytest.mark.parametrize("prefix", ["0", "10.1", "102.100.272", "102.100.pilin2", "0.NA", "é.漢", "1 0.x", "a:b@c%"])
def test_h2_segments_joined_by_dots_are_a_prefix(prefix: str) -> None:
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
    assert facts(refused(prefixes.check_prefix, prefix)) == expected


def test_h6_parent_and_ancestors_are_computed_from_the_name() -> None:
    assert prefixes.parent("12345.1") == "12345"
    assert prefixes.parent("12345") is None
    assert list(prefixes.ancestors("1.2.3.4")) == ["1.2.3", "1.2", "1"]
    assert list(prefixes.ancestors("12345")) == []


@pytest.mark.parametrize(
    ("prefix", "above", "derived"),
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
def test_h6_derived_means_longer_by_whole_segments(prefix: str, above: str, derived: bool) -> None:
    assert prefixes.is_derived(prefix, above) is derived


def test_h6_children_are_those_one_segment_longer_in_the_given_order() -> None:
    among = ["10", "10.2", "10.1", "10.1.1", "100.1", "x.y", "X.z"]
    assert prefixes.children("10", among) == ["10.2", "10.1"]
    assert prefixes.children("x", among) == ["x.y", "X.z"]
    assert prefixes.children("99", among) == []


def test_h6_a_derived_prefix_is_a_prefix_in_its_own_right() -> None:
    derived = prefixes.derive("12345", "1")
    assert derived == "12345.1"
    prefixes.check_prefix(derived)
    assert prefixes.derive(derived, "x") == "12345.1.x"


@pytest.mark.parametrize("segment", ["", ".", "1.2", ".1"])
def test_h6_one_segment_at_a_time_is_derived(segment: str) -> None:
    assert misused(prefixes.derive, "12345", segment).rule == "H6"


@pytest.mark.parametrize(
    ("prefix", "segment", "expected"),
    [
        ("10", "a/b", ("H2", 4, "/")),
        ("10", "a\x00", ("H3", 4, "\x00")),
        ("10", "a ", ("H3", 4, " ")),
        ("10.", "1", ("H2", 3, ".")),
    ],
)
def test_h6_deriving_makes_legal_prefixes_only(prefix: str, segment: str, expected: tuple[str, int, str]) -> None:
    assert facts(refused(prefixes.derive, prefix, segment)) == expected


@given(strategies.prefixes())
def test_h6_the_relations_agree_with_each_other(prefix: str) -> None:
    above = list(prefixes.ancestors(prefix))
    assert len(above) == prefix.count(".")
    for ancestor in above:
        assert prefixes.is_derived(prefix, ancestor)
        assert not prefixes.is_derived(ancestor, prefix)
    if above:
        assert above[0] == prefixes.parent(prefix)
        assert prefixes.children(above[0], [prefix, *above]) == [prefix]
        assert prefixes.derive(above[0], prefix.rpartition(".")[2]) == prefix


@given(strategies.texts())
def test_h2_arbitrary_text_is_refused_properly_or_is_the_prefix_of_a_handle(text: str) -> None:
    answer = attempt(prefixes.check_prefix, text)
    if isinstance(answer, InvalidName):
        assert answer.rule in {"H1", "H2", "H3", "H9"}
    elif len(text) <= 500:
        assert Handle.parse(f"{text}/x") == Handle(text, "x")


def test_h9_a_prefix_leaves_room_for_the_handle_that_describes_it() -> None:
    assert len(f"0.NA/{'x' * prefixes.MAX_PREFIX_BYTES}") == MAX_BYTES
    prefixes.check_prefix("x" * prefixes.MAX_PREFIX_BYTES)
    most = prefixes.MAX_PREFIX_BYTES
    assert facts(refused(prefixes.check_prefix, "x" * (most + 1))) == ("H9", most, "x")
    assert facts(refused(prefixes.check_prefix, "é" * (most // 2 + 1))) == ("H9", most // 2, "é")
