"""Which TOML texts are parsed."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.policy.text import MAX_DOTS, MAX_NESTING, format_toml, validate_toml

DOTTED = "a." * (MAX_DOTS + 1) + "a = 1"
DEEP = f"a = {'[' * (MAX_NESTING + 1)}{']' * (MAX_NESTING + 1)}"

HARMLESS = (
    "",
    "# it's a comment with a quote\n",
    '# and "another\n',
    'b = "an escaped \\" quote"\n',
    'b = "a backslash \\\\"\n',
    "b = 'a backslash \\'\n",
    "b = '''literal'' \\'''\n",
    "b = '''literal with more'''''\n",
    'b = """several\nlines\n"""\n',
    'b = """with more"""""\n',
    'b = """escaped \\""" and on"""\n',
    'b = """ends with escaped \\\\"""\n',
    'b = "it\'s"\n',
    "b = '\"'\n",
    'b = "# no comment"\n',
    "b = ''\nc = \"\"\n",
    '"quoted" = 1\n',
)
"""Texts before a key that do not hide it."""


@pytest.mark.parametrize("before", HARMLESS)
def test_text_before_a_key_does_not_hide_it(before: str) -> None:
    for hostile, word in ((DOTTED, "dots"), (DEEP, "nested more than")):
        tomllib.loads(before + hostile)  # the reader comes as far as that
        assert word in str(validate_toml(before + hostile))
    assert validate_toml(before + "a.b = [[1]]") is None


def test_limits_are_inclusive() -> None:
    assert validate_toml("a." * MAX_DOTS + "a = 1") is None
    assert validate_toml(f"a = {'[' * MAX_NESTING}{']' * MAX_NESTING}") is None
    assert validate_toml("a = []\n" * 1_000) is None


@pytest.mark.parametrize("hostile", ['"a".' * 100 + "a = 1", f"[{'a.' * 100}a]", "a = {" + "b." * 100 + "b = 1}"])
def test_dots_are_counted_in_all_keys(hostile: str) -> None:
    tomllib.loads(hostile)
    assert validate_toml(hostile) is not None


@given(st.lists(st.text(alphabet=".[{'\"#\\\n\r a", max_size=40), max_size=8))
def test_strings_are_not_counted(texts: list[str]) -> None:
    text = f"texts = {format_toml(texts)}\n# ...{'[' * 50}\n"
    assert tomllib.loads(text) == {"texts": texts}
    assert validate_toml(text) is None


@given(st.text(alphabet=".[]{}'\"#\\\n\r =a1", max_size=60), st.sampled_from([DOTTED, DEEP]))
def test_everything_that_is_parsed_was_checked(before: str, hostile: str) -> None:
    text = f"{before}\nz = 1\n[y]\n{hostile}"
    try:
        tomllib.loads(text)
    except ValueError:
        return
    assert validate_toml(text) is not None
