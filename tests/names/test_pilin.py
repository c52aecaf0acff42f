"""PILIN suffixes: the millisecond as nine reversed base 31 digits, with or without a check character."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given

from perseid.names import pilin
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.pilin import PilinCheckScheme, PilinScheme, check_character
from tests.names.support import NOON, FakeClock, attempt, error_fields, misuse_error, name_error
from tests.pilin_vectors import PILIN
from tests.strategies import milliseconds, texts

VECTORS = [
    *PILIN,
    ("000000001", 31**8, None),
    ("ZZZZZZZZZ", 31**9 - 1, "2420-08-16T03:29:20.670Z"),
]


@pytest.mark.parametrize(("suffix", "ms", "time"), VECTORS)
def test_p1_p2_p7_vectors_convert_both_ways_and_in_lowercase(suffix: str, ms: int, time: str | None) -> None:
    assert pilin.encode(ms) == suffix
    assert pilin.decode(suffix) == pilin.decode(suffix.lower()) == ms
    if time is not None:
        assert pilin.format_time(ms) == time
        assert pilin.from_time(datetime.fromisoformat(time)) == ms
        assert PilinScheme().describe(Handle("102.100.272", suffix)) == {"milliseconds": ms, "time": time}


def test_p1_whole_milliseconds_count_from_the_start_of_the_gregorian_calendar() -> None:
    assert pilin.from_time(datetime(1582, 10, 15, tzinfo=UTC)) == 0
    assert pilin.from_time(datetime(1582, 10, 15, 0, 0, 0, 1999, tzinfo=UTC)) == 1
    assert pilin.from_unix_ns(0) == pilin.from_time(datetime(1970, 1, 1, tzinfo=UTC)) == 12_219_292_800_000
    assert pilin.from_unix_ns(1_999_999) == pilin.from_unix_ns(0) + 1
    assert pilin.from_unix_ns(-1) == pilin.from_unix_ns(0) - 1
    assert pilin.to_time(13409306090919) == datetime(2007, 9, 17, 7, 14, 50, 919000, tzinfo=UTC)


@pytest.mark.parametrize("milliseconds", [10**15, -(10**15), 10**30, -(10**30)])
def test_p1_millisecond_outside_the_calendar_is_misuse(milliseconds: int) -> None:
    for function in (pilin.to_time, pilin.format_time):
        problem = misuse_error(function, milliseconds)
        assert problem.rule == "P1"
        assert str(milliseconds) in problem.message


def test_p1_time_requires_a_time_zone_and_is_converted_from_it() -> None:
    melbourne = timezone(timedelta(hours=10))
    assert pilin.from_time(datetime(2007, 9, 17, 17, 14, 50, 919000, tzinfo=melbourne)) == 13409306090919
    assert misuse_error(pilin.from_time, datetime(2007, 9, 17)).rule == "P1"  # noqa: DTZ001 - that is the point


def test_p2_p4_alphabet_is_the_31_digits_of_the_seed_documents_without_vowels() -> None:
    start = 31**8
    assert "".join(pilin.encode(start + digit)[0] for digit in range(31)) == "0123456789BCDFGHJKLMNPQRSTVWXYZ"
    accepted = {chr(c) for c in range(0x10000) if isinstance(attempt(pilin.decode, f"0{chr(c)}0000001"), int)}
    assert accepted == set("0123456789BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz")


def test_p3_range_limits_are_exact() -> None:
    assert (pilin.MIN_MILLISECONDS, pilin.END_MILLISECONDS) == (31**8, 31**9)
    for outside in (pilin.MIN_MILLISECONDS - 1, pilin.END_MILLISECONDS, 0, -1):
        problem = misuse_error(pilin.encode, outside)
        assert problem.rule == "P3"
        assert str(outside) in problem.message
    assert error_fields(name_error(pilin.decode, "ZZZZZZZZ0")) == ("P3", 8, "0")


def test_p4_more_than_a_billion_suffixes_remain() -> None:
    assert pilin.END_MILLISECONDS - pilin.from_time(datetime(2026, 1, 1, tzinfo=UTC)) > 10**9


@pytest.mark.parametrize(
    ("suffix", "rule", "position", "character"),
    [
        ("", "P3", 0, None),
        ("D7J1G0DQ", "P3", 8, None),
        ("D7J1G0DQHH", "P3", 9, None),
        ("D7J1A0DQH", "P7", 4, "A"),
        ("D7J1G0DQé", "P7", 8, "é"),
        ("D7J1G-DQH", "P7", 5, "-"),
        (" D7J1G0DQ", "P7", 0, " "),
        ("D7J1G0DQH\n", "P7", 9, "\n"),
        ("D7J1G0D\u0661H", "P7", 7, "\u0661"),
        ("D7J1G0DQ\uff28", "P7", 8, "\uff28"),
    ],
)
def test_p3_p7_invalid_letter_or_length_is_refused_with_its_position(
    suffix: str, rule: str, position: int, character: str | None
) -> None:
    assert error_fields(name_error(pilin.decode, suffix)) == (rule, position, character)
    problem = name_error(PilinScheme().validate, Handle("10.1", suffix or "x"))
    if suffix:
        assert error_fields(problem) == (rule, 5 + position, character)


@pytest.mark.parametrize(("letter", "digit"), [("O", "0"), ("o", "0"), ("I", "1"), ("i", "1")])
def test_p7_o_and_i_are_refused_with_a_hint(letter: str, digit: str) -> None:
    for suffix in (f"D7J{letter}G0DQH", f"D7J1G0DQ{letter}"):
        problem = name_error(pilin.decode, suffix)
        assert error_fields(problem) == ("P7", suffix.index(letter), letter)
        assert f"did you mean the digit {digit}?" in problem.message
        assert name_error(PilinScheme().normalize, Handle("10.1", suffix)).rule == "P7"
    assert "did you mean" not in name_error(pilin.decode, "D7JAG0DQH").message


def test_p1_minting_uses_the_millisecond_of_the_request() -> None:
    fake_clock = FakeClock()
    now = pilin.from_unix_ns(NOON * 1_000_000)
    source = fake_clock.source()
    assert PilinScheme().mint(source) == [pilin.encode(now)]
    assert PilinScheme().mint(source, 2) == [pilin.encode(now + 1), pilin.encode(now + 2)]
    fake_clock.now += 500
    assert PilinScheme().mint(source) == [pilin.encode(now + 500)]
    assert PilinScheme().mint(source, 0) == []


def test_p1_strict_clock_waits_for_each_millisecond() -> None:
    fake_clock = FakeClock()
    names = PilinScheme().mint(fake_clock.source(max_ahead=0), 10)
    assert len(set(names)) == 10
    assert fake_clock.now == NOON + 9
    assert pilin.decode(names[-1]) == pilin.from_unix_ns(fake_clock.now * 1_000_000)


def test_pilin_check_appends_one_character_to_pilin_names() -> None:
    bodies = PilinScheme().mint(FakeClock().source(), 40)
    names = PilinCheckScheme().mint(FakeClock().source(), 40)
    assert names == [body + check_character(body) for body in bodies]
    assert {len(name) for name in names} == {10}
    for name in names:
        handle = Handle("10.1", name.lower())
        assert PilinCheckScheme().normalize(handle) == Handle("10.1", name)
        details = PilinCheckScheme().describe(handle)
        assert details == {**PilinScheme().describe(Handle("10.1", name[:-1])), "check": name[-1]}


@pytest.mark.parametrize(
    ("suffix", "rule", "position"),
    [
        ("D7J1G0DQH", "P3", 9),
        ("D7J1G0DQHDD", "P3", 10),
        ("ZZZZZZZZ0D", "P3", 8),
        ("D7J1G0DQHO", "P7", 9),
        ("D7JIG0DQHD", "P7", 3),
        ("D7J1G0DQH\u017f", "P7", 9),
    ],
)
def test_pilin_check_refuses_invalid_suffix_with_its_position(suffix: str, rule: str, position: int) -> None:
    problem = name_error(PilinCheckScheme().validate, Handle("10.1", suffix))
    assert (problem.rule, problem.position) == (rule, 5 + position)


def test_p7_o_as_check_character_is_refused_with_the_same_hint() -> None:
    for position in (0, 9):
        suffix = "D7J1G0DQHJ"[:position] + "O" + "D7J1G0DQHJ"[position + 1 :]
        assert "did you mean the digit 0?" in name_error(PilinCheckScheme().validate, Handle("10.1", suffix)).message


def test_p7_non_ascii_letter_is_not_a_check_character() -> None:
    """Python uppercases the long s to S; PILIN does not."""
    body = next(body for body in PilinScheme().mint(FakeClock().source(), 400) if check_character(body) == "S")
    PilinCheckScheme().validate(Handle("10.1", f"{body}s"))
    assert error_fields(name_error(PilinCheckScheme().validate, Handle("10.1", f"{body}\u017f"))) == (
        "P7",
        14,
        "\u017f",
    )


@given(milliseconds())
def test_p1_p2_p7_encoding_matches_the_seed_documents_and_decoding_is_its_inverse(ms: int) -> None:
    digits, rest = "", ms
    while rest:
        rest, digit = divmod(rest, 31)
        digits += "0123456789BCDFGHJKLMNPQRSTVWXYZ"[digit]
    assert pilin.encode(ms) == digits
    assert pilin.decode(digits) == pilin.decode(digits.lower()) == ms
    assert pilin.from_time(pilin.to_time(ms)) == ms


@given(texts())
def test_p7_arbitrary_text_is_refused_or_round_trips(text: str) -> None:
    answer = attempt(pilin.decode, text)
    if not isinstance(answer, InvalidName):
        assert pilin.encode(answer) == text.upper()
