"""The table of characters: what the pinned Unicode data says, on every machine, whatever its Python knows."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest
import unicodedata2

import unicode_table
from perseid.names import Handle, InvalidName, characters
from perseid.names._unicode_table import BLANKS, UNASSIGNED, UNICODE_VERSION
from tests.names.support import attempt, refused
from tests.strategies import BLANK, BMP, LEGAL

PACKAGE = Path(characters.__file__).parent


def test_h3_the_table_is_what_the_pinned_unicode_data_gives() -> None:
    assert unicode_table.TABLE.read_text() == unicode_table.table()
    assert unicodedata2.unidata_version == UNICODE_VERSION


def test_h3_the_table_lists_ascending_ranges_that_do_not_touch() -> None:
    assert all(first <= last for first, last in UNASSIGNED)
    gaps = [after[0] - before[1] for before, after in pairwise(UNASSIGNED)]
    assert min(gaps) > 1


def test_ranges_join_neighbours_only() -> None:
    assert list(unicode_table.ranges([])) == []
    assert list(unicode_table.ranges([1, 2, 3, 5, 8, 9])) == [(1, 3), (5, 5), (8, 9)]


def test_h3_each_of_the_65536_characters_is_decided_as_the_rule_says() -> None:
    legal = set(LEGAL)
    wrong = []
    for character in BMP:
        # Inside the suffix, so that blanks do not stand at an end.
        answer = attempt(Handle.parse, f"10.1/a{character}b")
        if isinstance(answer, Handle) != (character in legal):
            wrong.append(f"U+{ord(character):04X}")
        elif isinstance(answer, InvalidName):
            assert (answer.rule, answer.position, answer.character) == ("H3", 6, character)
    assert wrong == []


def test_h3_each_character_at_an_end_is_decided_as_the_rule_says() -> None:
    legal = set(LEGAL) - BLANK
    for text, place in (("10.1/a{}", 6), ("10.1/{}a", 5)):
        for character in BMP:
            answer = attempt(Handle.parse, text.format(character))
            assert isinstance(answer, Handle) == (character in legal), ascii(character)
            if isinstance(answer, InvalidName):
                assert answer.position == place


def test_h3_blanks_are_the_space_separators() -> None:
    assert set(BLANKS) == BLANK
    assert len(BLANKS) == len(BLANK)


@pytest.mark.parametrize("plane", range(1, 17))
def test_h3_no_plane_above_the_first_is_allowed(plane: int) -> None:
    for code_point in (plane << 16, (plane << 16) + 0x8000, (plane << 16) + 0xFFFF):
        problem = refused(Handle.parse, f"10.1/{chr(code_point)}")
        assert "Basic Multilingual Plane" in problem.message
        assert problem.character == chr(code_point)


@pytest.mark.parametrize("character", ["\u0cf3", "\u1c89", "\ua7da"], ids=ascii)
def test_h3_characters_younger_than_the_oldest_supported_python_are_legal(character: str) -> None:
    """Assigned in Unicode 15.0 and 16.0; Python 3.11 has 14.0 and thinks them unassigned."""
    assert Handle.parse(f"10.1/{character}").suffix == character


def test_h3_no_module_of_names_asks_the_interpreters_unicode_table() -> None:
    """Neither the module unicodedata nor a method of text that consults it, but where the text is known as ASCII."""
    asked: dict[str, list[str]] = {}
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.Attribute) and node.attr in {"isprintable", "isalpha", "isdigit", "casefold"}:
                names.append(node.attr)
            asked.setdefault(path.name, []).extend({"unicodedata", "isprintable", "isalpha", "casefold"} & {*names})
    assert {name: calls for name, calls in asked.items() if calls} == {
        "characters.py": ["isprintable"],  # behind isascii
        "errors.py": ["isprintable"],  # for showing, not for deciding
    }


def test_h5_folding_touches_26_letters_of_the_plane() -> None:
    changed = {character for character in BMP if characters.fold(f"{character}é") != f"{character}é"}
    assert changed == set("abcdefghijklmnopqrstuvwxyz")
    assert characters.fold("azAZ09é\ud800") == "AZAZ09é\ud800"
