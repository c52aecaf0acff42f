"""What can go wrong with a name, and whose doing it was.

There are two sides. `InvalidName`: the text that came in is at fault; whoever sent it can mend it.
`NameMisuse`: the calling program is at fault, or the machine it runs on (its clock, say).
Both say which rule (the ids of docs/reference/names.md), where, and which character.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Self

MAX_QUOTED_LENGTH = 80
"""How many characters of what was given an error repeats: enough to recognise it, on one line."""


class NameProblem(ValueError):
    """The common side of both errors; never raised itself."""

    def __init__(self, rule: str, message: str, *, position: int | None = None, character: str | None = None) -> None:
        if type(self) is NameProblem:
            raise TypeError("raise InvalidName or NameMisuse: an error must say whose doing it was")
        super().__init__(rule, message, position, character)
        self.rule = rule
        """The rule that was broken: H3, P7, U5 …"""
        self.message = message
        """A sentence for people, without rule and position."""
        self.position = position
        """Index of the offending character in the text that was given (from 0), if there is one."""
        self.character = character
        """The offending character, if there is one."""

    def with_position(self, position: int | None) -> Self:
        """The same problem, found at another position: that in the text which the name was part of."""
        return type(self)(self.rule, self.message, position=position, character=self.character)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle: processes hand errors to each other."""
        return _rebuild, (type(self), self.rule, self.message, self.position, self.character)

    def __str__(self) -> str:
        """The sentence, where (counted from 1, as people count) and the rule."""
        where = "" if self.position is None else f"at character {self.position + 1}: "
        return f"{where}{self.message} (rule {self.rule})"


class InvalidName(NameProblem):
    """The text given is not a name, or not one that may be registered."""


class NameMisuse(NameProblem):
    """The program used names wrongly, or its surroundings do not allow what it asked for."""


@cache
def load_rules() -> dict[str, dict[str, str]]:
    """What each rule that an error names means, as title and text by id: the package's rules.toml."""
    return tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))


def _rebuild(
    kind: type[NameProblem], rule: str, message: str, position: int | None, character: str | None
) -> NameProblem:
    return kind(rule, message, position=position, character=character)


def format_character(character: str) -> str:
    """Show one character so that nobody mistakes it: `"ß" U+00DF`; only the code point if it cannot be printed."""
    code = f"U+{ord(character):04X}"
    # str.isprintable asks the interpreter's Unicode table; that is good enough for showing, not for deciding.
    return f'"{character}" ({code})' if character.isprintable() and character != " " else code


def quote_text(text: str) -> str:
    """Show a piece of somebody's text in quotes: what cannot be printed is escaped, and what is long is cut."""
    return repr(text if len(text) <= MAX_QUOTED_LENGTH else text[:MAX_QUOTED_LENGTH] + "…")
