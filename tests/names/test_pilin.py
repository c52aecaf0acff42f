"""PILIN suffixes: the millisecond in base 31, backwards, nine characters; and the kind with a check character."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given

from perseid.names import pilin
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.pilin import PilinCheckScheme, PilinScheme, check_character
from tests.names.support import NOON, World, attempt, facts, misused, refused
from tests.pilin_vectors import PILIN
from tests.strategies import milliseconds, texts

VECTORS = [
    *PILIN,
    ("000000001", 31**8, None),
    ("ZZZZZZZZZ", 31**9 - 1, "2420-08-16T03:29:20.670Z"),
]


@pytest.mark.parametrize(("suffix", "ms", "time"), VECTORS)
def test_p1_p2_p7_the_vectors_hold_both_ways_and_in_lowercase(suffix: str, ms: int, time: str | None) -> None:
    assert pilin.encode(ms) == suffix
    assert pilin.decode(suffix) == pilin.decode(suffix.lower()) == ms
    if time is not None:
        assert pilin.format_time(ms) == time
        assert pilin.from_time(datetime.fromisoformat(time)) == ms
        assert PilinScheme().describe(Handle("102.100.272", suffix)) == {"milliseconds": ms, "time": time}


def test_p1_the_count_begins_with_the_gregorian_calendar_and_is_whole() -> None:
    assert pilin.from_time(datetime(1582, 10, 15, tzinfo=UTC)) == 0
    assert pilin.from_time(datetime(1582, 10, 15, 0, 0, 0, 1999, tzinfo=UTC)) == 1
    assert pilin.from_unix_ns(0) == pilin.from_time(datetime(1970, 1, 1, tzinfo=UTC)) == 12_219_292_800_000
    assert pilin.from_unix_ns(1_999_999) == pilin.from_unix_ns(0) + 1
    assert pilin.from_unix_ns(-1) == pilin.from_unix_ns(0) - 1
    assert pilin.to_time(13409306090919) == datetime(2007, 9, 17, 7, 14, 50, 919000, tzinfo=UTC)


@pytest.mark.parametrize("milliseconds", [10**15, -(10**15), 10**30, -(10**30)])
def test_p1_a_millisecond_outside_the_calendar_is_misuse(milliseconds: int) -> None:
    for function in (pilin.to_time, pilin.format_time):
        problem = misused(function, milliseconds)
        assert problem.rule == "P1"
        assert str(milliseconds) in problem.message


def test_p1_a_moment_is_the_same_in_every_time_zone_and_has_one() -> None:
    melbourne = timezone(timedelta(hours=10))
    assert pilin.from_time(datetime(2007, 9, 17, 17, 14, 50, 919000, tzinfo=melbourne)) == 13409306090919
    assert misused(pilin.from_time, datetime(2007, 9, 17)).rule == "P1"  # noqa: DTZ001 - that is the point


def test_p2_p4_the_alphabet_is_the_seeds_31_digits_without_vowels() -> None:
    start = 31**8
    assert "".join(pilin.encode(start + digit)[0] for digit in range(31)) == "0123456789BCDFGHJKLMNPQRSTVWXYZ"
    accepted = {chr(c) for c in range(0x10000) if isinstance(attempt(pilin.decode, f"0{chr(c)}0000001"), int)}
    assert accepted == set("0123456789BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz")


def test_p3_the_range_ends_are_exact() -> None:
    assert (pilin.MIN_MILLISECONDS, pilin.END_MILLISECONDS) == (31**8, 31**9)
    for outside in (pilin.MIN_MILLISECONDS - 1, pilin.END_MILLISECONDS, 0, -1):
        problem = misused(pilin.encode, outside)
        assert problem.rule == "P3"
        assert str(outside) in problem.message
    assert facts(refused(pilin.decode, "ZZZZZZZZ0")) == ("P3", 8, "0")


def test_p4_there_is_room_for_a_thousand_million_things() -> None:
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
def test_p3_p7_a_invalid_letter_or_length_is_refused_with_its_position(
    suffix: str, rule: str, position: int, character: str | None
) -> None:
    assert facts(refused(pilin.decode, suffix)) == (rule, position, character)
    problem = refused(PilinScheme().validate, Handle("10.1", suffix or "x"))
    if suffix:
        assert facts(problem) == (rule, 5 + position, character)


@pytest.mark.parametrize(("letter", "digit"), [("O", "0"), ("o", "0"), ("I", "1"), ("i", "1")])
def test_p7_o_and_i_are_refused_with_a_hint_and_never_read_silently(letter: str, digit: str) -> None:
    for suffix in (f"D7J{letter}G0DQH", f"D7J1G0DQ{letter}"):
        problem = refused(pilin.decode, suffix)
        assert facts(problem) == ("P7", suffix.index(letter), letter)
        assert f"did you mean the digit {digit}?" in problem.message
        assert refused(PilinScheme().normalize, Handle("10.1", suffix)).rule == "P7"
    assert "did you mean" not in refused(pilin.decode, "D7JAG0DQH").message


def test_p1_minting_takes_the_millisecond_of_the_request() -> None:
    world = World()
    now = pilin.from_unix_ns(NOON * 1_000_000)
    source = world.source()
    assert PilinScheme().mint(source) == [pilin.encode(now)]
    assert PilinScheme().mint(source, 2) == [pilin.encode(now + 1), pilin.encode(now + 2)]
    world.now += 500
    assert PilinScheme().mint(source) == [pilin.encode(now + 500)]
    assert PilinScheme().mint(source, 0) == []


def test_p1_a_strict_clock_waits_for_each_millisecond() -> None:
    world = World()
    names = PilinScheme().mint(world.source(max_ahead=0), 10)
    assert len(set(names)) == 10
    assert world.now == NOON + 9
    assert pilin.decode(names[-1]) == pilin.from_unix_ns(world.now * 1_000_000)


def test_pilin_check_adds_one_character_to_the_same_names() -> None:
    bodies = PilinScheme().mint(World().source(), 40)
    names = PilinCheckScheme().mint(World().source(), 40)
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
def test_pilin_check_refuses_what_is_not_its_own_with_its_position(suffix: str, rule: str, position: int) -> None:
    problem = refused(PilinCheckScheme().validate, Handle("10.1", suffix))
    assert (problem.rule, problem.position) == (rule, 5 + position)


def test_p7_an_o_as_check_character_is_refused_with_the_same_hint() -> None:
    for place in (0, 9):
        suffix = "D7J1G0DQHJ"[:place] + "O" + "D7J1G0DQHJ"[place + 1 :]
        assert "did you mean the digit 0?" in refused(PilinCheckScheme().validate, Handle("10.1", suffix)).message


def test_p7_a_letter_that_only_looks_folded_is_not_a_check_character() -> None:
    """The capital of the long s is S for Python, but not for us."""
    body = next(body for body in PilinScheme().mint(World().source(), 400) if check_character(body) == "S")
    PilinCheckScheme().validate(Handle("10.1", f"{body}s"))
    assert facts(refused(PilinCheckScheme().validate, Handle("10.1", f"{body}\u017f"))) == ("P7", 14, "\u017f")


@given(milliseconds())
def test_p1_p2_p7_encoding_is_the_seeds_formula_and_decoding_its_inverse(ms: int) -> None:
    digits, rest = "", ms
    while rest:
        rest, digit = divmod(rest, 31)
        digits += "0123456789BCDFGHJKLMNPQRSTVWXYZ"[digit]
    assert pilin.encode(ms) == digits
    assert pilin.decode(digits) == pilin.decode(digits.lower()) == ms
    assert pilin.from_time(pilin.to_time(ms)) == ms


@given(texts())
def test_p7_arbitrary_text_is_refused_properly_or_decodes_to_what_encodes_to_it(text: str) -> None:
    answer = attempt(pilin.decode, text)
    if not isinstance(answer, InvalidName):
        assert pilin.encode(answer) == text.upper()
