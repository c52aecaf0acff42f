"""Did you mean …? Each typo of people who copy names, and bounded work for any input."""

from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names import pilin
from perseid.names.errors import NameMisuse
from perseid.names.handle import CaseRule, Handle
from perseid.names.pilin import PilinCheckScheme, PilinScheme
from perseid.names.scheme_loader import PatternScheme
from perseid.names.schemes import Scheme
from perseid.names.suggest import (
    MAX_CANDIDATES,
    MAX_EDIT_LENGTH,
    MAX_READINGS,
    MAX_TEXT,
    MAX_TRIES,
    compare,
    did_you_mean,
    find_bare_handle,
    find_readings,
    nearest,
    suggest,
)
from perseid.names.uri import KNOWN_RESOLVERS, Resolver
from tests.names.support import FakeClock
from tests.strategies import handles, milliseconds, texts

NAME = "102.100.272/D7J1G0DQH"


class Register:
    """A membership test that records its queries and requires each to be legal and unique."""

    def __init__(self, *names: str, contains: Callable[[str], bool] | None = None) -> None:
        self.queried: dict[str, bool] = {}
        self._contains = contains or set(names).__contains__

    def __call__(self, name: str) -> bool:
        assert name not in self.queried
        Handle.parse(name)
        self.queried[name] = self._contains(name)
        return self.queried[name]


@pytest.mark.parametrize(
    ("typed", "real"),
    [
        # O/0 and I/1, one of several, all of them, and the other way round
        ("102.100.272/D7J1GODQH", NAME),
        ("102.100.272/D7JIG0DQH", NAME),
        ("102.100.272/D7JlG0DQH", NAME),
        ("102.100.272/D7JIGODQH", NAME),
        ("102.100.272/d7jigodqh", NAME),
        ("10.1/B0B", "10.1/BOB"),
        ("10.1/1STEP", "10.1/ISTEP"),
        # case
        ("102.100.272/d7j1g0dqh", NAME),
        ("10.1/ABC", "10.1/abc"),
        ("10.ABC/XYZ", "10.abc/xyz"),
        ("10.abc/xyz", "10.ABC/XYZ"),
        ("10.abc/x", "10.ABC/x"),
        ("10.ABC/x", "10.abc/x"),
        ("10.1/readme", "10.1/readMe"),
        ("10.1/README", "10.1/ReadMe"),
        ("10.1/readme", "10.1/Readme"),
        ("10.1/ReadMe", "10.1/readMe"),
        ("10.1/ab", "10.1/aB"),
        ("10.aBc/x", "10.abc/x"),
        # one wrong character, in suffix and prefix
        ("102.100.272/D7K1G0DQH", NAME),
        ("102.100.272/D7J1G0DQM", NAME),
        ("102.101.272/D7J1G0DQH", NAME),
        ("10.1/a_b", "10.1/a-b"),
        ("10.1/abyd", "10.1/abXd"),
        ("10.1/ABYD", "10.1/ABxD"),
        # two swapped, at the start, at the end, in the prefix
        ("102.100.272/7DJ1G0DQH", NAME),
        ("102.100.272/D7J1G0DHQ", NAME),
        ("012.100.272/D7J1G0DQH", NAME),
        # one missing, at the end, at the start, inside, in the prefix
        ("10.1/lead", "10.1/leads"),
        ("102.100.272/D7J1G0DQ", NAME),
        ("102.100.272/7J1G0DQH", NAME),
        ("102.100.272/D7JG0DQH", NAME),
        ("102.100.72/D7J1G0DQH", NAME),
        ("10100.272/D7J1G0DQH", "10.100.272/D7J1G0DQH"),
        # one extra, at the end, at the start, inside, in the prefix
        ("10.1/leadss", "10.1/leads"),
        ("102.100.272/DD7J1G0DQH", NAME),
        ("102.100.272/D7J11G0DQH", NAME),
        ("102.100.2772/D7J1G0DQH", NAME),
        ("10.1/a/b", "10.1/ab"),
        # punctuation and blanks left on
        (f"{NAME}.", NAME),
        (f"{NAME}),", NAME),
        (f"({NAME})", NAME),
        (f"<{NAME}>", NAME),
        (f"\u201c{NAME}\u201d", NAME),
        (f" {NAME}\n", NAME),
        # encoded once too often, or at all
        ("10.1/a%2Fb", "10.1/a/b"),
        ("10.1/a%252Fb", "10.1/a/b"),
        ("hdl:10.1/a%252Fb", "10.1/a/b"),
        ("10.1/caf%C3%A9", "10.1/café"),
        # scheme or resolver left on, known or not
        (f"hdl:{NAME}", NAME),
        (f"doi:{NAME}", NAME),
        (f"info:hdl/{NAME}", NAME),
        (f"https://hdl.handle.net/{NAME}", NAME),
        (f"hdl.handle.net/{NAME}", NAME),
        (f"resolver.net.au/hdl/{NAME}", NAME),
        (f"https://unknown.example/{NAME}", NAME),
        (f"https://unknown.example/hdl/{NAME}", NAME),
        (f"http://192.0.2.1/hdl/{NAME}", NAME),
        (f"\ufeff{NAME}", NAME),
        # two typos at once
        (f"(hdl:{NAME}).", NAME),
        (f"hdl:{NAME.lower()};", NAME),
        (f"hdl:{NAME[:-1]}M", NAME),
    ],
)
def test_real_name_is_suggested_for_each_typo(typed: str, real: str) -> None:
    register = Register(real, "99.9/UNRELATED")
    assert suggest(typed, register) == [real]
    assert len(register.queried) <= MAX_TRIES


@given(st.text("abcXYZ019-_", min_size=1, max_size=8), st.integers(0, 8), st.sampled_from("abcXYZ019-_"))
def test_any_missing_or_extra_character_is_corrected(suffix: str, position: int, letter: str) -> None:
    shorter, longer = f"10.1/{suffix}", f"10.1/{suffix[:position]}{letter}{suffix[position:]}"
    assert shorter in suggest(longer, Register(shorter))
    assert longer in suggest(shorter, Register(longer))


def test_suffix_is_never_removed_completely() -> None:
    register = Register(contains=lambda _: False)
    suggest("10.1/x", register)
    assert "10.1/" not in register.queried
    assert "10.1/xs" in register.queried


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("doi.org/10.1000/1", "10.1000/1"),
        ("hdl.handle.net/10.1000/a/b", "10.1000/a/b"),
        ("api/handles/10.1000/1", "10.1000/1"),
        ("<https://doi.org/10.1000/1>", "10.1000/1"),
        ("10.1000/doi.org/1", None),
        ("abc/x", None),
        ("abc/x/y", None),
        ("12345/x", None),
    ],
)
def test_handle_after_a_part_of_a_url_is_found(text: str, bare: str | None) -> None:
    found = find_bare_handle(text)
    assert bare == (None if found is None else str(found))


def test_no_similar_name_means_no_suggestion() -> None:
    assert suggest(NAME, Register("99.9/UNRELATED")) == []
    assert suggest("", Register(NAME)) == []


def test_input_itself_is_never_suggested_or_looked_up() -> None:
    register = Register(contains=lambda _: True)
    assert NAME not in suggest(NAME, register, limit=1_000_000)
    assert NAME not in register.queried


def test_nearest_names_come_first_up_to_the_limit() -> None:
    typed = "10.1/AB0."
    wrong, lookalike, cut = "10.1/AC0.", "10.1/ABO.", "10.1/AB0"
    register = Register(wrong, lookalike, cut)
    assert suggest(typed, register) == [cut, lookalike, wrong]
    assert suggest(typed, Register(wrong, lookalike, cut), limit=2) == [cut, lookalike]
    assert suggest(typed, Register(wrong, lookalike, cut), limit=0) == []
    assert len(suggest(NAME, Register(contains=lambda _: True))) == 5


@pytest.mark.parametrize("case", [CaseRule.INSENSITIVE, CaseRule.PATH])
def test_h5_case_insensitive_names_are_suggested_and_looked_up_in_one_spelling(case: CaseRule) -> None:
    register = Register(contains=lambda name: name.upper() == "10.1/README")
    assert [name.upper() for name in suggest("10.1/readmx", register, case=case)] == ["10.1/README"]
    keys = [case.key(Handle.parse(name)) for name in register.queried]
    assert len(keys) == len(set(keys))
    assert suggest("10.1/readme", Register(contains=lambda name: name.upper() == "10.1/README"), case=case) == []


def test_h5_name_is_suggested_in_one_spelling_of_its_prefix() -> None:
    register = Register(contains=lambda name: name.upper() == "10.ABC/X" and name.endswith("/x"))
    assert suggest("10.Abc/y", register) == ["10.Abc/x"]


def test_names_are_suggested_in_the_normal_form_of_the_scheme() -> None:
    register = Register(contains=lambda name: name.upper() == NAME)
    assert suggest("102.100.272/d7jig0dqh", register, scheme=PilinScheme(), case=CaseRule.INSENSITIVE) == [NAME]
    assert all(name == name.upper() for name in register.queried)


@pytest.mark.parametrize("scheme", [PilinCheckScheme(), PatternScheme("eeeeeek")], ids=repr)
def test_any_swap_is_corrected_with_a_check_character(scheme: Scheme) -> None:
    source = FakeClock().source()
    for suffix in scheme.mint(source, 1_500)[::100]:
        letters = [*suffix]
        letters[0], letters[5] = letters[5], letters[0]
        typed, real = f"10.1/{''.join(letters)}", f"10.1/{suffix}"
        assert suggest(typed, Register(real), scheme=scheme) == ([] if typed == real else [real])


def test_innermost_reading_is_varied_first_so_that_wrapping_does_not_use_up_the_tries() -> None:
    real = "10.1/" + "abcdefghij" * 4 + "k"
    wrong = real[:-1] + "Q"
    for typed in (wrong, f"<({wrong})>", f"<(hdl:{wrong})>.", f" <(hdl.handle.net/{wrong})>, "):
        assert suggest(typed, Register(real)) == [real], typed


def test_escapes_that_are_not_utf_8_are_not_decoded() -> None:
    register = Register(contains=lambda _: False)
    suggest("10.1/a%FFb", register)
    assert not any("\ufffd" in name for name in register.queried)


def test_max_tries_matches_the_documentation() -> None:
    assert MAX_TRIES == 4_000


def test_resolvers_argument_is_used() -> None:
    typed = "http://id.example.org/a/10.1/x%20y"
    resolvers = [Resolver.parse("http://id.example.org/a")]
    first = Register("10.1/x y")
    assert suggest(typed, first, resolvers=resolvers) == ["10.1/x y"]
    assert list(first.queried) == ["10.1/x y", *list(first.queried)[1:]], "it is tried before anything is guessed"


@pytest.mark.parametrize("scheme", [PilinCheckScheme(), PatternScheme("eeeeeek")], ids=repr)
def test_few_names_are_looked_up_with_a_check_character(scheme: Scheme) -> None:
    """At most one of the thirty other characters at a position matches the check character."""
    (suffix,) = scheme.mint(FakeClock().source())
    wrong = f"102.100.272/{suffix[:2]}{'X' if suffix[2] != 'X' else 'Y'}{suffix[3:]}"
    real = f"102.100.272/{suffix}"
    register = Register(real)
    assert suggest(wrong, register, scheme=scheme) == [real]
    assert len(register.queried) <= 2 * len(suffix)
    without = Register(real)
    assert suggest(wrong, without) == [real]
    assert len(without.queried) > 10 * len(register.queried)


def test_only_valid_names_of_the_scheme_are_looked_up() -> None:
    register = Register(contains=lambda _: True)
    assert suggest("102.100.272/D7J1GODQH", register, scheme=PilinScheme(), limit=300)[0] == NAME
    assert len(register.queried) == 31, "the one wrong place can hold any digit; the other places are right"
    for name in register.queried:
        pilin.decode(name.partition("/")[2])


HOSTILE = [
    "x" * 2048,
    "10.1/" + "O" * 2043,
    "10.1/" + "0" * 59,
    "10.1/" + "aB" * 29,
    "10.1/" + "l0" * 5000,
    "%" * 2000,
    "/" * 2000,
    "%25" * 2000,
    "10.1/" + "%25" * 600,
    "10.1/" + "%2F" * 600,
    "a/" * 1000,
    "://" * 700,
    "hdl:" * 500,
    "(" * 1000 + "10.1/x" + ")" * 1000,
    " " * 2000,
    "\ud800" * 2000,
    "http://" + "a/" * 1000,
    "\u0130" * 600 + "/\ufb03" * 600,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
@pytest.mark.parametrize("scheme", [None, PilinCheckScheme()], ids=repr)
def test_number_of_tries_is_bounded_for_hostile_names(name: str, scheme: Scheme | None) -> None:
    register = Register()
    assert suggest(name, register, scheme=scheme) == []
    assert len(register.queried) <= MAX_TRIES


@pytest.mark.parametrize("letter", ["x", "O", "0", "%", "/", "."])
def test_long_name_is_varied_only_by_look_alikes_at_its_start(letter: str) -> None:
    register = Register()
    assert suggest("10.1/" + letter * 2043, register) == []
    assert len(register.queried) <= MAX_READINGS + 6 + 2 * MAX_EDIT_LENGTH


def test_number_of_candidates_is_bounded_when_the_scheme_refuses_all() -> None:
    considered = 0

    class RefuseAll(PilinScheme):
        def validate(self, handle: Handle) -> None:
            nonlocal considered
            considered += 1
            PilinScheme().validate(Handle(handle.prefix, "*"))

    typed = "(http://h/" + "/".join("aB" for _ in range(14)) + "%2525)."
    assert suggest(typed, Register(), scheme=RefuseAll()) == []
    assert 10_000 < considered <= MAX_CANDIDATES


@given(
    texts() | handles().map(str), st.sampled_from([None, PilinScheme(), PilinCheckScheme(), PatternScheme("TR-dddd")])
)
def test_only_existing_names_are_suggested_for_any_input(name: str, scheme: Scheme | None) -> None:
    def exists(candidate: str) -> bool:
        return crc32(candidate.encode()) % 7 == 0

    proposed = suggest(name, exists, scheme=scheme)
    assert len(proposed) == len(set(proposed)) <= 5
    assert name not in proposed
    for candidate in proposed:
        assert exists(candidate)
        handle = Handle.parse(candidate)
        if scheme is not None:
            scheme.validate(handle)


@given(milliseconds(), st.integers(0, 8), st.sampled_from("0123456789BCDFGHJKLMNPQRSTVWXYZ"))
def test_any_wrong_pilin_character_is_corrected(ms: int, position: int, letter: str) -> None:
    suffix = pilin.encode(ms)
    typed = f"102.100.272/{suffix[:position]}{letter}{suffix[position + 1 :]}"
    real = f"102.100.272/{suffix}"
    assert suggest(typed, Register(real)) == ([] if typed == real else [real])


def test_scheme_misuse_is_raised() -> None:
    class Broken(PilinScheme):
        def validate(self, handle: Handle) -> None:
            raise NameMisuse("P8", f"cannot judge {handle}")

    with pytest.raises(NameMisuse):
        suggest(NAME, Register(), scheme=Broken())


# Readings


@given(texts())
def test_readings_start_with_text_and_are_unique(text: str) -> None:
    found = find_readings(text, KNOWN_RESOLVERS)
    assert (found[0].text, found[0].done) == (text, ())
    assert len({reading.text for reading in found}) == len(found) <= MAX_READINGS
    assert all(reading.done and reading.text for reading in found[1:])


def test_overlong_text_is_not_repaired() -> None:
    assert len(find_readings("(" * (MAX_TEXT + 1), KNOWN_RESOLVERS)) == 1


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("12345/ABC", "uppercase and lowercase"),
        ("12345/abd", "character 9"),
        ("12345/acb", "swapped"),
        ("12345/axy", "similar"),
        ("12345/abcd", "it has an extra character 10"),
        ("12345/abbc", "it has an extra character 9"),
        ("12345/ab", "it lacks character 9"),
        ("1234/abc", "it lacks character 5"),
        ("12345/abcde", "similar"),
        ("12345/xabd", "similar"),
    ],
)
def test_spelling_differences_are_explained(found: str, words: str) -> None:
    """Third-party schemes may spell handles in unforeseen ways."""
    assert words in compare(Handle.parse("12345/abc"), Handle.parse(found))[1]


# Words


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("prot", "did you mean port?"),
        ("hosts", "did you mean host?"),
        ("zzz", "use host or port"),
        ("", "use host or port"),
    ],
)
def test_nearest_word_is_offered(word: str, hint: str) -> None:
    assert did_you_mean(nearest(word, ("host", "port")), "use host or port") == hint
