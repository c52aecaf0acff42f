"""The scheme `pattern`: a site's own template, filled with ascending numbers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.handle import Handle
from perseid.names.pilin import check_character
from perseid.names.scheme_loader import MAX_TEMPLATE_LENGTH, PatternScheme
from perseid.names.schemes import MemoryLease
from tests.names.support import FakeClock, attempt, error_fields, misuse_error, name_error
from tests.strategies import templates, texts


@pytest.mark.parametrize(
    ("template", "number", "suffix"),
    [
        ("TR-dddd", 0, "TR-0000"),
        ("TR-dddd", 1, "TR-0001"),
        ("TR-dddd", 9999, "TR-9999"),
        ("ee", 30, "0Z"),
        ("ee", 31, "10"),
        ("ee", 960, "ZZ"),
        ("deK", 31, "10K"),
        ("d.d_d~d-", 1234, "1.2_3~4-"),
        ("ddk", 11, "113"),
        ("d-dk", 11, "1-13"),
        ("Xdk", 5, "X5" + check_character("X5")),
    ],
)
def test_number_and_suffix_convert_both_ways(template: str, number: int, suffix: str) -> None:
    pattern = PatternScheme(template)
    assert pattern.format(number) == suffix
    assert pattern.parse(suffix) == pattern.parse(suffix.lower()) == number


@pytest.mark.parametrize(("template", "capacity"), [("TR-dddd", 10_000), ("eeeek", 923_521), ("de", 310), ("Xdk", 10)])
def test_template_has_a_fixed_capacity(template: str, capacity: int) -> None:
    pattern = PatternScheme(template)
    assert pattern.capacity == capacity
    assert pattern.parse(pattern.format(capacity - 1)) == capacity - 1
    for beyond in (-1, capacity):
        problem = misuse_error(pattern.format, beyond)
        assert problem.rule == "P4"
        assert f"{capacity:,}" in problem.message


@pytest.mark.parametrize(
    ("template", "position", "character"),
    [
        ("", None, None),
        ("k", 0, "k"),
        ("dkd", 1, "k"),
        ("kk", 0, "k"),
        ("ddkk", 2, "k"),
        ("Ad", 0, "A"),
        ("dEd", 1, "E"),
        ("ddt", 2, "t"),
        ("d d", 1, " "),
        ("d/d", 1, "/"),
        ("d%", 1, "%"),
        ("dé", 1, "é"),
        ("d\n", 1, "\n"),
        ("TR-0001", None, None),
        ("BCDk", None, None),
    ],
)
def test_p4_invalid_template_or_vowel_is_misuse_with_its_position(
    template: str, position: int | None, character: str | None
) -> None:
    problem = misuse_error(PatternScheme, template)
    assert (problem.rule, problem.position, problem.character) == ("P4", position, character)


def test_p4_minted_names_have_no_vowels() -> None:
    minted = PatternScheme("ek").mint(FakeClock().source(), 31)
    assert not set("".join(minted)) & set("AEIOUaeiou")


def test_check_character_covers_29_letters_without_separators() -> None:
    longest = "e-" * 29 + "k"
    assert PatternScheme(longest).parse(PatternScheme(longest).format(31**29 - 1)) == 31**29 - 1
    problem = misuse_error(PatternScheme, "e" * 30 + "k")
    assert problem.rule == "P4"
    assert "30" in problem.message
    assert PatternScheme("e" * 30).capacity == 31**30


@pytest.mark.parametrize(
    ("template", "suffix", "rule", "position", "character"),
    [
        ("TR-dddd", "TS-0001", "P8", 1, "S"),
        ("TR-dddd", "TR_0001", "P8", 2, "_"),
        ("TR-dddd", "TR-00B1", "P8", 5, "B"),
        ("TR-dddd", "TR-000", "P8", 6, None),
        ("TR-dddd", "TR-00011", "P8", 7, None),
        ("TR-dddd", "", "P8", 0, None),
        ("ee", "0O", "P8", 1, "O"),
        ("ee", "0\u017f", "P8", 1, "\u017f"),
        ("dd", "1\u0661", "P8", 1, "\u0661"),
        ("ddk", "110", "P7", 2, "0"),
        ("ddk", "11-", "P7", 2, "-"),
        ("ddk", "11O", "P7", 2, "O"),
        ("ddk", "11", "P8", 2, None),
        ("d-dk", "1-1\u017f", "P7", 3, "\u017f"),
    ],
)
def test_suffix_that_does_not_match_the_template_is_refused_with_its_position(
    template: str, suffix: str, rule: str, position: int, character: str | None
) -> None:
    assert error_fields(name_error(PatternScheme(template).parse, suffix)) == (rule, position, character)
    if suffix:
        problem = name_error(PatternScheme(template).validate, Handle("10.1", suffix))
        assert error_fields(problem) == (rule, 5 + position, character)


@pytest.mark.parametrize(
    ("suffix", "words"), [("TR-x00", "a digit"), ("TS-000", '"R"'), ("TR-00A", "a PILIN digit"), ("TR-", "6")]
)
def test_error_says_what_the_template_requires(suffix: str, words: str) -> None:
    message = name_error(PatternScheme("TR-dde").parse, suffix).message
    assert words in message
    assert "TR-dde" in message


def test_minting_uses_the_next_numbers_until_the_template_is_exhausted() -> None:
    source = FakeClock().source()
    pattern = PatternScheme("dk")
    assert pattern.mint(source, 0) == []
    assert pattern.mint(source) == ["00"]
    assert pattern.mint(source, 9) == [f"{number}{number}" for number in range(1, 10)]
    assert misuse_error(pattern.mint, source).rule == "P4"
    assert pattern.mint(source, 0) == []


def test_refused_mint_uses_no_names() -> None:
    source = FakeClock().source()
    pattern = PatternScheme("d")
    problem = misuse_error(pattern.mint, source, 11)
    assert problem.rule == "P4"
    assert "10 of 10 names left" in problem.message
    assert "11 were requested" in problem.message
    assert pattern.mint(source, 4) == ["0", "1", "2", "3"]
    assert "6 of 10 names left" in misuse_error(pattern.mint, source, 7).message
    assert pattern.mint(source, 6) == ["4", "5", "6", "7", "8", "9"]


def test_mint_is_refused_when_a_concurrent_lease_exhausts_the_template() -> None:
    lease = MemoryLease()

    def contended_lease(count: int, now: int) -> int:
        if count:
            lease(8, now)  # another caller leases between reading and leasing
        return lease(count, now)

    source = replace(FakeClock().source(), lease=contended_lease)
    assert misuse_error(PatternScheme("d").mint, source, 3).rule == "P4"


def test_name_is_normalized_to_uppercase_and_described_with_its_number() -> None:
    handle = Handle("10.1", "tr-7t")
    pattern = PatternScheme("TR-dT")
    assert pattern.normalize(handle) == Handle("10.1", "TR-7T")
    assert pattern.describe(handle) == {"template": "TR-dT", "number": 7, "check": None}
    checked = PatternScheme("TR-dk")
    name = checked.format(7)
    assert checked.describe(Handle("10.1", name.lower())) == {"template": "TR-dk", "number": 7, "check": name[-1]}


@given(templates(), st.data())
def test_parse_and_format_are_inverse_for_every_template(template: str, data: st.DataObject) -> None:
    pattern = PatternScheme(template)
    number = data.draw(st.integers(0, pattern.capacity - 1))
    suffix = pattern.format(number)
    assert len(suffix) == len(template)
    assert pattern.parse(suffix) == pattern.parse(suffix.lower()) == number
    handle = Handle("10.1", suffix.lower())
    assert pattern.normalize(handle) == pattern.normalize(pattern.normalize(handle)) == Handle("10.1", suffix)


@given(templates(), texts())
def test_arbitrary_text_is_refused_or_round_trips(template: str, text: str) -> None:
    answer = attempt(PatternScheme(template).parse, text)
    if not isinstance(answer, InvalidName):
        assert PatternScheme(template).format(answer) == text.upper()


@given(st.text(st.sampled_from("dekDTR0-._~A/ é\n"), max_size=8) | texts())
def test_p4_arbitrary_template_is_misuse_or_round_trips(template: str) -> None:
    try:
        pattern = PatternScheme(template)
    except NameMisuse as problem:
        position = problem.position
    else:
        assert pattern.parse(pattern.format(1)) == 1
        return
    assert position is None or template[position] not in "de"


def test_p4_template_longer_than_a_suffix_is_misuse() -> None:
    assert PatternScheme("d" * MAX_TEMPLATE_LENGTH).capacity == 10**MAX_TEMPLATE_LENGTH
    assert misuse_error(PatternScheme, "d" * (MAX_TEMPLATE_LENGTH + 1)).rule == "P4"
