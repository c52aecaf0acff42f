"""Errors about names, and the texts of the rules that they cite.

`InvalidName`: the input text is wrong, and its author can fix it. `NameMisuse`: the calling program, its
configuration or its clock is wrong. Rule ids are those of docs/reference/names.md.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Self

MAX_QUOTED_LENGTH = 80
"""Characters of the input that an error message quotes: one line."""


class NameProblem(ValueError):
    """Base class of both errors; never raised itself."""

    def __init__(self, rule: str, message: str, *, position: int | None = None, character: str | None = None) -> None:
        if type(self) is NameProblem:
            raise TypeError("raise InvalidName or NameMisuse instead")
        super().__init__(rule, message, position, character)
        self.rule = rule
        """Id of the violated rule: H3, P7, U5 …"""
        self.message = message
        """Text without rule and position."""
        self.position = position
        """Index of the wrong character in the input (from 0), if there is one."""
        self.character = character
        """The wrong character, if there is one."""

    def with_position(self, position: int | None) -> Self:
        """Copy with the position in the surrounding text."""
        return type(self)(self.rule, self.message, position=position, character=self.character)

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickle: errors cross process boundaries."""
        return _rebuild, (type(self), self.rule, self.message, self.position, self.character)

    @property
    def detail(self) -> str:
        """Text with the position, without the rule."""
        return self.message if self.position is None else f"at character {self.position + 1}: {self.message}"

    def __str__(self) -> str:
        return f"{self.detail} (rule {self.rule})"


class InvalidName(NameProblem):
    """The text is not a name, or not one that can be registered."""


class NameMisuse(NameProblem):
    """Wrong use of this package, wrong configuration or a wrong clock."""


@cache
def load_rules() -> dict[str, dict[str, str]]:
    """Load the title and text of each rule, by id, from rules.toml."""
    return tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))


def _rebuild(
    kind: type[NameProblem], rule: str, message: str, position: int | None, character: str | None
) -> NameProblem:
    return kind(rule, message, position=position, character=character)


def capitalize(text: str) -> str:
    """Capitalize a text for the start of a sentence if it begins with a plain word.

    Otherwise it begins with a name, a key, a value or a command, which keep their spelling.
    """
    word, _, rest = text.partition(" ")
    is_word = word.isascii() and word.isalpha() and word.islower() and word != "perseid" and rest[:1] != "="
    return text[0].upper() + text[1:] if is_word else text


def format_character(character: str) -> str:
    """Format a character with its code point: `"ß" (U+00DF)`; only the code point if it is not printable."""
    code = f"U+{ord(character):04X}"
    # str.isprintable uses the interpreter's Unicode table, which is fine for display, not for validation.
    return f'"{character}" ({code})' if character.isprintable() and character != " " else code


def quote_text(text: str) -> str:
    """Quote a text, with unprintable characters escaped and the end truncated."""
    return repr(text if len(text) <= MAX_QUOTED_LENGTH else text[:MAX_QUOTED_LENGTH] + "…")
