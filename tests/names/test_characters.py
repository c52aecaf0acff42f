"""The character table matches the pinned Unicode data, whatever Unicode version Python has."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest
import unicodedata2

import unicode_table
from perseid.names import handle
from perseid.names._unicode_table import BLANKS, UNASSIGNED, UNICODE_VERSION
from perseid.names.errors import InvalidName, load_rules
from perseid.names.handle import Handle
from tests.names.support import attempt, name_error
from tests.strategies import BLANK, BMP, LEGAL, NOT_AT_ENDS

PACKAGE = Path(handle.__file__).parent


def test_h3_table_matches_the_pinned_unicode_data() -> None:
    assert unicode_table.TABLE.read_text() == unicode_table.table()
    assert unicodedata2.unidata_version == UNICODE_VERSION


def test_h3_table_lists_ascending_ranges_that_do_not_touch() -> None:
    assert all(first <= last for first, last in UNASSIGNED)
    gaps = [after[0] - before[1] for before, after in pairwise(UNASSIGNED)]
    assert min(gaps) > 1


def test_ranges_join_only_neighbors() -> None:
    assert list(unicode_table.ranges([])) == []
    assert list(unicode_table.ranges([1, 2, 3, 5, 8, 9])) == [(1, 3), (5, 5), (8, 9)]


def test_h3_rule_applies_to_each_of_the_65536_characters() -> None:
    legal = set(LEGAL)
    wrong = []
    for character in BMP:
        # Inside the suffix, so that blanks are not at an end.
        answer = attempt(Handle.parse, f"10.1/a{character}b")
        if isinstance(answer, Handle) != (character in legal):
            wrong.append(f"U+{ord(character):04X}")
        elif isinstance(answer, InvalidName):
            assert (answer.rule, answer.position, answer.character) == ("H3", 6, character)
    assert wrong == []


def test_h3_rule_applies_to_each_character_at_either_end() -> None:
    legal = set(LEGAL) - NOT_AT_ENDS
    for text, position in (("10.1/a{}", 6), ("10.1/{}a", 5)):
        for character in BMP:
            answer = attempt(Handle.parse, text.format(character))
            assert isinstance(answer, Handle) == (character in legal), ascii(character)
            if isinstance(answer, InvalidName):
                assert answer.position == position


def test_h3_spaces_are_the_space_separators() -> None:
    assert set(BLANKS) == BLANK
    assert len(BLANKS) == len(BLANK)


@pytest.mark.parametrize("plane", range(1, 17))
def test_h3_characters_outside_the_first_plane_are_refused(plane: int) -> None:
    for code_point in (plane << 16, (plane << 16) + 0x8000, (plane << 16) + 0xFFFF):
        problem = name_error(Handle.parse, f"10.1/{chr(code_point)}")
        assert "Basic Multilingual Plane" in problem.message
        assert problem.character == chr(code_point)


@pytest.mark.parametrize("character", ["\u0cf3", "\u1c89", "\ua7da"], ids=ascii)
def test_h3_characters_newer_than_the_oldest_supported_python_are_legal(character: str) -> None:
    """Assigned in Unicode 15.0 and 16.0; Python 3.11 has 14.0 and reports them as unassigned."""
    assert Handle.parse(f"10.1/{character}").suffix == character


# Functions and string methods that use the interpreter's Unicode table, some only without an argument.
BY_TABLE = {
    *("capitalize", "casefold", "isalnum", "isalpha", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper", "lower", "splitlines", "swapcase", "title", "upper"),
    *("IGNORECASE", "normalize"),
}
BY_TABLE_WITHOUT_ARGUMENT = {"lstrip", "rsplit", "rstrip", "split", "strip"}
BY_TABLE_AS_FUNCTION = {"float", "int"}

ALLOWED = {
    ("cordra", "lower"): "after validation",
    ("cordra", "upper"): "on hexadecimal digits that a pattern has matched",
    ("errors", "isalpha"): "after isascii",
    ("errors", "islower"): "after isascii",
    ("errors", "isprintable"): "for showing, not for deciding",
    ("errors", "upper"): "after isascii",
    ("uri", "IGNORECASE"): "together with re.ASCII",
    ("handle", "isprintable"): "after isascii",
    ("handle", "upper"): "after isascii, and on bytes, where it changes only ASCII",
    ("pilin", "int"): "on digits that a pattern has matched and that were translated to ASCII",
    ("pilin", "lower"): "on the alphabet itself",
    ("pilin", "upper"): "after validation",
    ("scheme_loader", "upper"): "on a PILIN digit, or after validation",
    ("suggest", "capitalize"): "creates candidates, which Handle.parse then validates",
    ("suggest", "lower"): "the same",
    ("suggest", "normalize"): "the method of a scheme",
    ("suggest", "swapcase"): "the same",
    ("suggest", "upper"): "the same",
    ("uri", "int"): "on the digits of a port that a pattern has matched",
    ("uri", "lower"): "on http or https, after isascii, or after a pattern has matched; of no other letter is the "
    "lower case one of h, t, p, s",
}


def find_unicode_table_uses(source: str) -> set[str]:
    """Names through which a module uses the interpreter's Unicode table."""
    uses = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            uses |= {"unicodedata"} & modules
        if isinstance(node, ast.Attribute) and node.attr in BY_TABLE:
            uses.add(node.attr)
        if isinstance(node, ast.Call) and not (node.args or node.keywords) and isinstance(node.func, ast.Attribute):
            uses |= BY_TABLE_WITHOUT_ARGUMENT & {node.func.attr}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            uses |= BY_TABLE_AS_FUNCTION & {node.func.id}
    return uses


def test_h3_h5_names_package_uses_the_interpreters_unicode_table_only_where_allowed() -> None:
    uses = {(path.stem, name) for path in PACKAGE.glob("*.py") for name in find_unicode_table_uses(path.read_text())}
    assert sorted(uses - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - uses) == [], "no longer needed"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import unicodedata", "unicodedata"),
        ("import unicodedata as table", "unicodedata"),
        ("from unicodedata import category", "unicodedata"),
        ("text.isdigit()", "isdigit"),
        ("map(str.isspace, text)", "isspace"),
        ("text[0].upper()", "upper"),
        ("text.casefold()", "casefold"),
        ("text.strip()", "strip"),
        ("text.split()", "split"),
        ("int(text)", "int"),
        ("re.compile('k', re.IGNORECASE)", "IGNORECASE"),
    ],
)
def test_guard_detects_violations(source: str, name: str) -> None:
    assert find_unicode_table_uses(source) == {name}


def test_guard_ignores_safe_calls() -> None:
    assert find_unicode_table_uses("text.strip(' '); text.split('/'); text.isascii(); int.from_bytes(bytes)") == set()


@pytest.mark.parametrize("character", ["\u200b", "\ufeff", "\u00ad", "\u200e", "\u200f", "\ue000"], ids=ascii)
def test_h3_format_and_private_use_characters_are_allowed_inside_only(character: str) -> None:
    """The rule as rules.toml explains it; a namespace can be stricter."""
    assert Handle.parse(f"10.1/a{character}b").suffix == f"a{character}b"
    for name, position in ((f"10.1/{character * 2}", 5), (f"10.1/a{character}", 6), (f"1{character}/a", 1)):
        problem = name_error(Handle.parse, name)
        assert (problem.rule, problem.position, problem.character) == ("H3", position, character)
        assert f"U+{ord(character):04X}" in problem.message
        assert Handle.for_lookup(name) == Handle.parse_imported(name)[0]
    assert "zero-width" in load_rules()["H3"]["text"]
    assert "private-use" in load_rules()["H3"]["text"]


def test_h5_folding_changes_only_26_letters() -> None:
    changed = {character for character in BMP if handle.fold(f"{character}é") != f"{character}é"}
    assert changed == set("abcdefghijklmnopqrstuvwxyz")
    assert handle.fold("azAZ09é\ud800") == "AZAZ09é\ud800"
