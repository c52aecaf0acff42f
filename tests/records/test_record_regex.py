"""Untrusted regular expressions: read as Java reads them, or refused; compared with Python's engine."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.records.patterns import (
    MAX_EXPRESSION_DEPTH,
    MAX_EXPRESSION_LENGTH,
    MAX_EXPRESSION_MEMORY,
    compile_java_regex,
)


def groups(text: str, subject: str, *, ignore_case: bool = False) -> tuple[str, ...] | None:
    return compile_java_regex(text, ignore_case=ignore_case).match(subject)


@pytest.mark.parametrize(
    ("text", "subject", "found"),
    [
        ("", "", ("",)),
        ("a", "b", None),
        ("a", "ab", None),  # the whole text, not a part
        (r"(\d+)-(\d+)", "12-7", ("12-7", "12", "7")),
        (r"^box\(([^,]*),([^,]*)\)$", "box(1,2)", ("box(1,2)", "1", "2")),
        ("a$|b$", "b", ("b",)),
        ("(a)|(b)", "b", ("b", "", "b")),  # a group that did not match is empty
        ("(?<page>[0-9]+)p", "7p", ("7p", "7")),
        ("(?:ab)+", "abab", ("abab",)),
        (r"\Qa.b\Ec", "a.bc", ("a.bc",)),
        (r"\Qa.b", "axb", None),
        ("(a+?)(a*)", "aaa", ("aaa", "a", "aa")),
        ("a{2,3}?b{1,}c{2}", "aabbcc", ("aabbcc",)),
        ("a{0}b", "b", ("b",)),
        (r"[a-c\-_.x]+", "b-_.x", ("b-_.x",)),
        (r"[-a][a-]", "--", ("--",)),
        (r"[^\d]", "a", ("a",)),
        (r"[a&b^]+", "&^", ("&^",)),
        (r"[\s\S][\w\W][\d\D]", "\x0b\n ", ("\x0b\n ",)),
        (r"\s", "\x0b", ("\x0b",)),  # the engine's own \s has no vertical tab
        (r"\S", "\x0b", None),
        (".", "\r", None),  # its dot would match these
        (".", "\u2028", None),
        ("(?s).", "\r", ("\r",)),
        ("(?s:.).", "\n\n", None),
        (r"\x41\x{42}\u0043\t\e\.\é", "ABC\t\x1b.é", ("ABC\t\x1b.é",)),
        (r"\pL\p{Nd}\PL[\p{Zs}]", "é7- ", ("é7- ",)),
        (r"\Aa\z", "a", ("a",)),
        ("]}", "]}", ("]}",)),
        ("é+", "éé", ("éé",)),
        (".", "\U0001f600", ("\U0001f600",)),
        ("(a*)?", "", ("", "")),
    ],
)
def test_constructs_that_both_engines_share_match(text: str, subject: str, found: tuple[str, ...] | None) -> None:
    assert groups(text, subject) == found


@pytest.mark.parametrize(
    ("text", "subject", "matches"),
    [
        ("abc", "aBC", True),
        ("[a-c]", "B", True),
        ("[A-C]", "b", True),
        ("[^a]", "A", False),
        ("[Z-a]", "z", True),  # a range across both cases, with the folded letters
        ("[Z-a]", "A", True),
        ("[Z-a]", "b", False),
        (r"\x41", "a", True),
        (r"\Qa", "A", True),
        ("(?-i)a", "A", False),
        ("(?-i:a)b", "aB", True),
        ("é", "É", False),  # only ASCII letters are folded
        ("k", "\u212a", False),
        ("s", "\u017f", False),
        ("[é]", "É", False),
    ],
)
def test_ignore_case_folds_only_ascii_letters(text: str, subject: str, matches: bool) -> None:
    assert (groups(text, subject, ignore_case=True) is not None) is matches


def test_flags_apply_to_the_end_of_their_group() -> None:
    assert groups("a(b(?i)c|d)e", "aDe") is not None
    assert groups("a(b(?i)c|d)e", "aDE") is None
    assert groups("(?i)a|b", "B") is not None


REFUSED = {
    "back reference": r"(a)\1",
    "named back reference": r"(?<n>a)\k<n>",
    "octal of two digits, a back reference to Java": r"(a)\12",
    "octal": r"\012",
    "look-ahead": "(?=a)a",
    "negative look-ahead": "(?!b)a",
    "look-behind": "(?<=a)b",
    "negative look-behind": "(?<!a)b",
    "atomic group": "(?>a)",
    "Python's named group": "(?P<n>a)",
    "comment": "(?#x)a",
    "intersection": "[a-z&&[^b]]",
    "intersection without a class in it": "[a-z&&b]",
    "union": "[a[b]]",
    "POSIX class": "[[:alpha:]]",
    "quotation in a class": r"[\Qa\E]",
    "class that begins with a bracket": "[]a]",
    "negated class that begins with a bracket": "[^]a]",
    "range of nothing": "[z-a]",
    "range from a class": r"[\d-z]",
    "range to a class": r"[a-\d]",
    "hyphen behind a range": "[a-z-9]",
    "open class": "[a",
    "open range": "[a-",
    "possessive": "a*+",
    "possessive plus": "a++b",
    "possessive question": "a?+",
    "possessive count": "a{2}+",
    "doubled": "a**",
    "counted twice": "a{2}{3}",
    "count without a first number": "a{,3}",
    "count of words": "a{x}",
    "count downwards": "a{3,2}",
    "brace": "{",
    "nothing to repeat": "*a",
    "nothing to repeat behind an alternative": "a|+",
    "group without anything": "(?)",
    "repeated start": "^*a",
    "repeated end": "a$+",
    "end in the middle": "a$b",
    "end in a group": "(a$)",
    "end before a line end": r"\Z",
    "vertical space": r"\v",
    "horizontal space": r"\h",
    "line break": r"\R",
    "word boundary": r"\b",
    "no word boundary": r"\B",
    "end of the last match": r"\G",
    "grapheme": r"\X",
    "single byte": r"\C",
    "control character": r"\cA",
    "case category": r"\p{Lu}",
    "script": r"\p{Greek}",
    "Java's class": r"\p{javaLowerCase}",
    "POSIX property": r"\p{Alpha}",
    "unassigned": r"\p{C}",
    "no character": r"\x{110000}",
    "half a surrogate pair": r"\ud800",
    "half a number": r"\x4",
    "backslash at the end": "a\\",
    "ungreedy, to Java Unicode": "(?U)a",
    "several lines": "(?m)a",
    "comments": "(?x)a b",
    "open group": "(a",
    "closed too often": "a)",
    "captures of what may be empty": "(a*)*",
    "the same, counted": "(a|b?){2}",
    "the same, deeper": "(?:(a)?)+",
    "the same, quoted": r"(\Q\E)*",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("ignore_case", [False, True])
def test_unsupported_constructs_are_refused(text: str, ignore_case: bool) -> None:
    with pytest.raises(InvalidData, match="in the regular expression"):
        compile_java_regex(text, ignore_case=ignore_case)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (r"(a)\1", r"'\\1' at character 4 is a backreference or an octal number, which is not supported"),
        ("a(?=b)", "'(?' at character 2 begins a lookaround, which is not supported"),
        ("[a&&b]", "'&&' at character 3 is an intersection of classes, which is not supported"),
        ("a{", "'{' at character 2 is not a repetition"),
        ("(a", "a closing parenthesis is missing"),
    ],
)
def test_error_says_what_is_wrong_and_where(text: str, sentence: str) -> None:
    with pytest.raises(InvalidData) as caught:
        compile_java_regex(text)
    assert sentence in str(caught.value)


# Hostile expressions


def test_expressions_with_catastrophic_backtracking_are_fast() -> None:
    start = time.process_time()
    for text in ("(?:a+)+b", "(?:a|aa)+b", "(?:.*a){20}b", "a?" * 200 + "a" * 200):
        compile_java_regex(text).match("a" * 2_000)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "text",
    [r"\pL{900}", "(?:(?:a{1000}){1000}){1000}", "a{1000}" * 100, r"(?:\pL|\pN){200}", "a{1001}"],
)
def test_expression_that_is_too_large_when_compiled_is_refused(text: str) -> None:
    with pytest.raises(InvalidData, match="too large when compiled"):
        compile_java_regex(text)


def test_length_and_depth_of_expressions_are_limited() -> None:
    assert groups("a" * MAX_EXPRESSION_LENGTH, "a" * MAX_EXPRESSION_LENGTH) is not None
    with pytest.raises(InvalidData, match=r"^the regular expression has 1,001 characters; the maximum is 1,000$"):
        compile_java_regex("a" * (MAX_EXPRESSION_LENGTH + 1))
    assert groups("(" * MAX_EXPRESSION_DEPTH + ")" * MAX_EXPRESSION_DEPTH, "") is not None
    with pytest.raises(InvalidData, match="nested more than"):
        compile_java_regex("(" * (MAX_EXPRESSION_DEPTH + 1) + ")" * (MAX_EXPRESSION_DEPTH + 1))
    assert compile_java_regex("a{900}").size * 16 < MAX_EXPRESSION_MEMORY


@given(st.text(max_size=30) | st.text(r"()[]{}^$.*+?|\&-ab19,<=!:iQExpu", max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        found = compile_java_regex(text)
    except InvalidData:
        return
    found.match(text)


# Comparison with Python's engine, which backtracks like Java's

_atoms = st.sampled_from(["a", "b", "C", "-", r"\.", ".", r"\d", r"\W", "[ab]", "[^a]", "[A-b]", r"[\w-]", r"[\s\S]"])


def _combinations(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifiers = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,}"])
    parts = st.lists(inner, min_size=1, max_size=3)
    return (
        st.tuples(inner, quantifiers).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
        | st.tuples(inner, quantifiers).map(lambda pair: f"({pair[0]}){pair[1]}")
        | parts.map("".join)
        | parts.map("|".join).map(lambda text: f"({text})")
    )


_expressions = st.recursive(_atoms, _combinations, max_leaves=6)


@given(_expressions, st.lists(st.text("abcABC-.1_ \néÉ", max_size=6), max_size=6), st.booleans())
@settings(max_examples=250, deadline=None)
def test_matches_and_captures_equal_those_of_a_backtracking_engine(
    text: str, subjects: list[str], ignore_case: bool
) -> None:
    try:
        compiled = compile_java_regex(text, ignore_case=ignore_case)
    except InvalidData:
        with pytest.raises(InvalidData, match="repeats a group that can be empty"):
            compile_java_regex(text, ignore_case=ignore_case)
        return
    reference = re.compile(text, re.ASCII | (re.IGNORECASE if ignore_case else re.ASCII))
    for subject in subjects:
        found = reference.fullmatch(subject)
        expected = None if found is None else (subject, *found.groups(""))
        assert compiled.match(subject) == expected, (text, subject)
