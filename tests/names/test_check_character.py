"""The check character detects every wrong character and every swap in up to 29 characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.names.pilin import ALPHABET, MAX_BODY_LENGTH, check_character, has_valid_check
from tests.names.support import error_fields, misuse_error, name_error

bodies = st.text(st.sampled_from(ALPHABET), min_size=1, max_size=MAX_BODY_LENGTH)


def substitutions(text: str) -> set[str]:
    """Every text that differs in exactly one character."""
    changed = {text[:at] + letter + text[at + 1 :] for at in range(len(text)) for letter in ALPHABET}
    return changed - {text}


def swaps(text: str) -> set[str]:
    """Every text with two characters swapped, adjacent or not."""
    swapped = set()
    for first in range(len(text)):
        for second in range(first + 1, len(text)):
            letters = list(text)
            letters[first], letters[second] = letters[second], letters[first]
            swapped.add("".join(letters))
    return swapped - {text}


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ("", "0"),
        ("0", "0"),
        ("1", "1"),
        ("01", "2"),
        ("Z", "Z"),
        ("11111", "H"),  # 15
        ("D7J1G0DQH", "J"),  # 12 + 14 + 48 + 4 + 70 + 0 + 84 + 176 + 135 = 543 = 17 * 31 + 16
    ],
)
def test_check_character_is_the_sum_of_position_times_digit_modulo_31(body: str, check: str) -> None:
    assert check_character(body) == check_character(body.lower()) == check
    assert has_valid_check(body + check)
    assert has_valid_check((body + check).lower())


@settings(max_examples=40)
@given(bodies)
def test_every_wrong_character_and_every_swap_is_detected(body: str) -> None:
    whole = body + check_character(body)
    assert has_valid_check(whole)
    assert [wrong for wrong in substitutions(whole) | swaps(whole) if has_valid_check(wrong)] == []


@pytest.mark.parametrize("filler", ["0", "1", "Z", "9"])
def test_longest_body_is_protected_at_every_position(filler: str) -> None:
    for position in range(MAX_BODY_LENGTH):
        body = filler * position + "K" + filler * (MAX_BODY_LENGTH - position - 1)
        whole = body + check_character(body)
        assert not any(map(has_valid_check, substitutions(whole) | swaps(whole)))


def test_body_longer_than_29_characters_is_refused_because_a_swap_would_be_missed() -> None:
    problem = misuse_error(check_character, "1" * 30)
    assert problem.rule == "P4"
    assert "29" in problem.message
    assert misuse_error(has_valid_check, "1" * 31).rule == "P4"
    # The missed swap: the thirtieth digit has the same weight as the check character.
    thirty = [*range(1, 30), 7]
    total = sum(position * digit for position, digit in enumerate(thirty, 1)) % 31
    swapped = [*range(1, 30), total]
    assert total != 7
    assert sum(position * digit for position, digit in enumerate(swapped, 1)) % 31 == 7


@pytest.mark.parametrize("text", ["", "0\u017f", "7O", "1-", "00\u0660"], ids=ascii)
def test_invalid_digit_is_not_a_check_character(text: str) -> None:
    assert not has_valid_check(text)


def test_p7_error_names_the_invalid_letter_in_the_body() -> None:
    assert error_fields(name_error(check_character, "12A4")) == ("P7", 2, "A")
    assert error_fields(name_error(has_valid_check, "O0")) == ("P7", 0, "O")
