"""Handles: syntax, characters, length and case folding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.errors import InvalidName
from perseid.names.handle import MAX_BYTES, PROFILE_CASE_RULES, CaseRule, Handle
from tests.names.support import attempt, error_fields, misuse_error, name_error
from tests.strategies import handles, texts

# Both ends of the range of each class, with words from its explanation.
REFUSED_CHARACTERS = [
    *((character, "control character") for character in "\x00\x09\x1f\x7f\x80\x9f"),
    *((character, "surrogate") for character in "\ud800\udbff\udc00\udfff"),
    *((character, "separator") for character in "\u2028\u2029"),
    *((character, "bidirectional control") for character in "\u202a\u202e\u2066\u2069"),
    *((character, "noncharacter") for character in "\ufdd0\ufdef\ufffe\uffff"),
    *((character, "Basic Multilingual Plane") for character in "\U00010000\U0001f600\U0010ffff"),
    *((character, "not assigned in Unicode") for character in "\u0378\u1fff\ufe53"),
]


@pytest.mark.parametrize(
    ("text", "prefix", "suffix"),
    [
        ("10.1/x", "10.1", "x"),
        ("102.100.272/2RDV0T0QH", "102.100.272", "2RDV0T0QH"),
        ("10.1/a/b//c/", "10.1", "a/b//c/"),
        ("10.1//", "10.1", "/"),
        ("0.NA/102.100.272", "0.NA", "102.100.272"),
        ("10.1/%41?q#f", "10.1", "%41?q#f"),
        ("10.1/zwei Wörter – 漢字", "10.1", "zwei Wörter – 漢字"),
    ],
)
def test_h1_first_slash_separates_prefix_and_suffix_and_nothing_is_decoded(text: str, prefix: str, suffix: str) -> None:
    handle = Handle.parse(text)
    assert (handle.prefix, handle.suffix, str(handle)) == (prefix, suffix, text)


@pytest.mark.parametrize(
    ("text", "rule", "position", "words"),
    [
        ("", "H1", 0, "empty"),
        ("10.1", "H1", 4, 'no "/"'),
        ("/", "H1", 0, "prefix"),
        ("/x", "H1", 0, "prefix"),
        ("10.1/", "H1", 5, "suffix"),
        (".1/x", "H2", 0, "empty segment"),
        ("10./x", "H2", 2, "empty segment"),
        ("10..1/x", "H2", 3, "empty segment"),
        ("./x", "H2", 0, "empty segment"),
    ],
)
def test_h1_h2_error_names_the_missing_part_with_its_position(text: str, rule: str, position: int, words: str) -> None:
    problem = name_error(Handle.parse, text)
    assert (problem.rule, problem.position) == (rule, position)
    assert words in problem.message


@pytest.mark.parametrize(("character", "words"), REFUSED_CHARACTERS, ids=ascii)
def test_h3_error_names_the_refused_character_with_its_position(character: str, words: str) -> None:
    for text in (f"10.1/ab{character}c", f"10.1/é{character}", f"1{character}0/x"):
        problem = name_error(Handle.parse, text)
        assert error_fields(problem) == ("H3", text.index(character), character)
        assert words in problem.message
        assert f"U+{ord(character):04X}" in problem.message


def test_h3_error_names_the_first_of_several_refused_characters() -> None:
    assert error_fields(name_error(Handle.parse, "10.1/a\u202eb\x00\ufdd0")) == ("H3", 6, "\u202e")


@pytest.mark.parametrize("blank", [" ", "\u00a0", "\u1680", "\u2003", "\u202f", "\u3000"], ids=ascii)
def test_h3_spaces_are_allowed_inside_but_not_at_the_ends(blank: str) -> None:
    assert Handle.parse(f"10{blank}1/a{blank}{blank}b").suffix == f"a{blank}{blank}b"
    for text, position in ((f"{blank}10/x", 0), (f"10{blank}/x", 2), (f"10/{blank}x", 3), (f"10/x{blank}", 4)):
        problem = name_error(Handle.parse, text)
        assert error_fields(problem) == ("H3", position, blank)
        assert "space" in problem.message


@pytest.mark.parametrize("text", ["10.1/a\u202eb", "10..1/x", "10.1/x ", "10.1/\u0378", "10.1/\U0001f600", "10.1/\x00"])
def test_h3_lookup_accepts_an_illegal_name_and_import_reports_it(text: str) -> None:
    for name in (text, text.encode()):
        found = Handle.for_lookup(name)
        assert found is not None
        assert str(found) == text
        handle, problem = Handle.parse_imported(name)
        assert str(handle) == text
        assert problem is not None
        assert error_fields(problem) == error_fields(name_error(Handle.parse, text))


def test_h3_import_of_a_legal_name_reports_no_error() -> None:
    assert Handle.parse_imported("10.1/é") == (Handle("10.1", "é"), None)


@pytest.mark.parametrize(
    ("name", "rule"),
    [("", "H1"), ("10.1", "H1"), ("/x", "H1"), ("10.1/", "H1"), ("10.1/\udc00", "H4"), (b"10.1/\xff", "H4")],
)
def test_h1_h4_name_that_no_record_can_have_is_not_looked_up_or_imported(name: str | bytes, rule: str) -> None:
    assert Handle.for_lookup(name) is None
    assert name_error(Handle.parse_imported, name).rule == rule


@pytest.mark.parametrize(
    ("data", "byte"),
    [(b"10.1/\xff", 6), (b"10.1/\xc3", 6), (b"10.1/ab\xc0\xaf", 8), (b"\xed\xa0\x80/x", 1), (b"1/\xf4\x90\x80\x80", 3)],
)
def test_h4_malformed_utf_8_is_refused_with_the_byte_position(data: bytes, byte: int) -> None:
    problem = name_error(Handle.from_bytes, data)
    assert problem.rule == "H4"
    assert f"byte {byte} " in problem.message


def test_h4_surrogate_is_refused_with_its_position() -> None:
    assert error_fields(name_error(Handle.parse_imported, "10.1/ab\udc41")) == ("H4", 7, "\udc41")


def test_h4_handle_is_encoded_as_utf_8() -> None:
    assert Handle("10.1", "é漢").to_bytes() == b"10.1/\xc3\xa9\xe6\xbc\xa2"


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_h9_length_limit_counts_bytes_and_is_exact(letter: str) -> None:
    width = len(letter.encode())
    longest = "10/" + "y" * ((MAX_BYTES - 3) % width) + letter * ((MAX_BYTES - 3) // width)
    assert len(longest.encode()) == MAX_BYTES == 2048
    assert str(Handle.parse(longest)) == longest
    assert Handle.for_lookup(longest) is not None
    for name in (longest + "x", (longest + "x").encode()):
        assert Handle.for_lookup(name) is None
        assert error_fields(name_error(Handle.parse_imported, name)) == ("H9", len(longest), "x")
    problem = name_error(Handle.parse, longest + "x")
    assert error_fields(problem) == ("H9", len(longest), "x")
    assert "2,049" in problem.message


@pytest.mark.parametrize(
    ("text", "position", "character"),
    [
        ("10/" + "x" * 2044 + "é" * 9, 2047, "é"),  # the limit cuts it in two
        ("10/" + "x" * 2045 + "é", 2048, "é"),
        ("10/" + "漢" * 3000, 3 + 681, "漢"),
        ("10/" + "\U0001f600" * 600, 3 + 511, "\U0001f600"),
        ("10/" + "\ud800" * 700, 3 + 681, "\ud800"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_h9_error_names_the_first_character_beyond_the_limit(text: str, position: int, character: str) -> None:
    assert error_fields(name_error(Handle.parse, text)) == ("H9", position, character)


def test_h5_case_insensitive_namespace_folds_only_ascii_letters() -> None:
    key = CaseRule.INSENSITIVE.key
    assert key(Handle.parse("10.a/aBcZz09")) == key(Handle.parse("10.A/AbCzZ09"))
    # The last three are the dotless i, the long s and the Kelvin sign.
    for one, other in (("é", "É"), ("ß", "SS"), ("İ", "i"), ("\u0131", "I"), ("\u017f", "s"), ("\u212a", "k")):
        assert key(Handle.parse(f"10/x{one}")) != key(Handle.parse(f"10/x{other}"))
        assert key(Handle.parse(f"10/x{one}")) == f"10/X{one}"


def test_h5_case_sensitive_namespace_folds_only_the_prefix() -> None:
    key = CaseRule.SENSITIVE.key
    assert key(Handle.parse("10.a/x")) == key(Handle.parse("10.A/x")) == "10.A/x"
    assert key(Handle.parse("10.a/x")) != key(Handle.parse("10.a/X"))


@pytest.mark.parametrize("rule", CaseRule)
@pytest.mark.parametrize("prefix", ["0.NA", "0.na", "0.Na"])
def test_h5_handles_under_0_na_are_always_folded(rule: CaseRule, prefix: str) -> None:
    assert Handle(prefix, "10.abc").is_prefix_handle
    assert rule.key(Handle(prefix, "10.abc")) == "0.NA/10.ABC"


def test_h5_built_in_profiles_declare_their_case_rule() -> None:
    assert PROFILE_CASE_RULES == {
        "pilin": CaseRule.INSENSITIVE,
        "cordra": CaseRule.PATH,
        "free": CaseRule.INSENSITIVE,
        "exact": CaseRule.SENSITIVE,
    }


def test_h5_only_the_path_of_a_cordra_identifier_is_folded() -> None:
    key = PROFILE_CASE_RULES["cordra"].key
    path = "f58fb49eb1f848f0a606e84cef294be5"
    assert key(Handle("10.a", path)) == key(Handle("10.A", path.upper())) == f"10.A/{path.upper()}"
    for tail in ("?q=Ab", "#Ab", "?q#Ab?", "#Ab?q"):
        assert key(Handle("10.a", path + tail)) == f"10.A/{path.upper()}{tail}"
        assert key(Handle("10.1", path + tail)) != key(Handle("10.1", path + tail.lower()))
    assert key(Handle("10.1", "?Ab")) == "10.1/?Ab"


def test_only_handles_under_0_na_are_prefix_handles() -> None:
    assert not Handle.parse("102.100.272/2RDV0T0QH").is_prefix_handle
    assert Handle.parse("0.NA/102.100.272").is_prefix_handle


@pytest.mark.parametrize(("prefix", "suffix"), [("", "x"), ("10", ""), ("10/1", "x")])
def test_h1_constructor_refuses_a_handle_that_would_not_round_trip(prefix: str, suffix: str) -> None:
    assert misuse_error(Handle, prefix, suffix).rule == "H1"


@pytest.mark.parametrize(("prefix", "suffix"), [("10.1", "a\ud800"), ("1\udfff", "x"), ("10.1", "\udc00é")])
def test_h4_constructor_refuses_a_handle_that_cannot_be_encoded(prefix: str, suffix: str) -> None:
    assert misuse_error(Handle, prefix, suffix).rule == "H4"


def test_h3_parse_lenient_accepts_names_of_other_servers() -> None:
    assert Handle.parse_lenient("10..1/a\u202e ") == Handle("10..1", "a\u202e ")
    assert Handle.parse_lenient("10.1/é".encode()) == Handle("10.1", "é")
    assert error_fields(name_error(Handle.parse_lenient, "10.1")) == ("H1", 4, None)


@given(handles())
def test_h1_h3_h4_every_legal_handle_round_trips_through_text_and_bytes(handle: Handle) -> None:
    assert Handle.parse(str(handle)) == handle
    assert Handle.from_bytes(handle.to_bytes()) == handle
    assert Handle.for_lookup(handle.to_bytes()) == handle
    assert Handle.parse_imported(str(handle)) == (handle, None)


@given(handles())
def test_h5_folding_changes_only_the_case_of_ascii_letters(handle: Handle) -> None:
    expected = "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in str(handle))
    assert CaseRule.INSENSITIVE.key(handle) == expected


@given(texts() | st.binary(max_size=80))
def test_h3_h4_arbitrary_input_is_refused_or_read_literally(name: str | bytes) -> None:
    found = Handle.for_lookup(name)
    answer = attempt(Handle.from_bytes if isinstance(name, bytes) else Handle.parse, name)
    if isinstance(answer, InvalidName):
        assert answer.position is None or 0 <= answer.position <= len(name)
    else:
        assert found == answer
        assert (answer.to_bytes() if isinstance(name, bytes) else str(answer)) == name
