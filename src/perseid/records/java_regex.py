r"""Regular expressions of strangers: Java's syntax, run by an engine whose time is linear in the text.

Templates of deployed servers are matched by Java. The engine here (RE2) never backtracks, so nobody can make it run
for hours; it lacks some of Java's constructs, and reads others differently without a word: `[a-z&&[^b]]`, `\v`,
`\12`. So an expression is taken apart first. What means the same in both is handed on, what can be said otherwise is
said otherwise, and everything else is refused with its place. What is refused so:

- back references, look-ahead and look-behind, atomic groups, possessive and doubled quantifiers;
- unions and intersections of classes, POSIX names in them, a class that begins with `]`;
- octal numbers, control characters by letter, `\b`, `\B`, `\G`, `\R`, `\X`, `\Z`, `\h`, `\v` and their opposites;
- `$` elsewhere than at the end of the whole expression or of one of its alternatives, as Java's also stands before a
  last line end;
- flags other than `i` and `s`; properties other than general categories without case;
- repetition of a group that may match nothing and holds a captured one: the two capture differently.

Letters fold as everywhere in names: the ASCII ones, and no others.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2

from .errors import InvalidData

MAX_EXPRESSION: Final = 1_000
"""The longest expression, in characters. What people write to tell names apart has some dozens."""

MAX_EXPRESSION_DEPTH: Final = 32
"""How deeply groups may stand in each other."""

MAX_EXPRESSION_MEMORY: Final = 1 << 18
"""Octets that the engine may use for one expression; a larger one is refused when it is made."""

GROUP_COST: Final = 500
"""What it costs to take a captured group out of the engine: as much as so many states do for a character."""

_KEPT: Final = 128  # expressions of as many namespaces, at most 32 MiB
_MAX_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

# Categories with case are left out, since versions of Java differ in what `i` makes of them, and "C", since Java counts
# characters to it that nobody has assigned yet.
_CATEGORIES: Final = re.compile("L[mo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?")

_DOT: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"  # Java knows more line ends than the engine
_SETS: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": "[:space:]", "D": r"\D", "W": r"\W", "S": "[:^space:]"}
_CHARACTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_LOOKING: Final = ("(?=", "(?!", "(?<=", "(?<!")
_NOT_USABLE: Final = "which cannot be used here"
_COUNTED: Final = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_FLAGS: Final = re.compile(r"\(\?(?!\))([is]*)(?:-([is]+))?([):])")
_NAMED: Final = re.compile(r"\(\?<[A-Za-z][A-Za-z0-9]*>")
_HEXADECIMAL: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})|u([0-9A-Fa-f]{4})")
_PROPERTY: Final = re.compile(r"([pP])(?:([A-Z])|\{([A-Z][a-z]?)\})")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that both engines read alike."""

    text: str
    """As it was written."""
    ignore_case: bool
    """Whether ASCII letters are one, small and capital."""
    _compiled: Any = field(repr=False, compare=False)

    def match(self, text: str) -> tuple[str, ...] | None:
        """The whole text and its captured groups, if all of the text matches; a group that took no part is empty."""
        found = self._compiled.fullmatch(text)
        return None if found is None else (text, *found.groups(""))

    @property
    def size(self) -> int:
        """How many states the engine has made of it."""
        return int(self._compiled.programsize)

    def cost(self, text: str) -> int:
        """How much work a match can be: states of the engine times characters, and what is captured beside."""
        return self.size * (len(text) + 1) + GROUP_COST * int(self._compiled.groups)


@lru_cache(_KEPT)
def expression(text: str, *, ignore_case: bool = False) -> Expression:
    """Take an expression in Java's syntax; raises `InvalidData` for what cannot be run, or would mean another thing."""
    if len(text) > MAX_EXPRESSION:
        raise InvalidData(
            f"a regular expression of {len(text):,} characters is too long; {MAX_EXPRESSION:,} are the most"
        )
    options = re2.Options()
    options.max_mem = MAX_EXPRESSION_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(_Translation(text, ignore_case).whole(), options)
    except re2.error:
        raise InvalidData("the regular expression is too large when it is written out") from None
    return Expression(text, ignore_case, compiled)


class _Piece(NamedTuple):
    """A part of an expression in the engine's syntax."""

    text: str
    may_be_empty: bool = False
    """Whether it matches the empty text."""
    captures: bool = False
    """Whether a captured group is in it."""
    repeatable: bool = True
    """Whether a quantifier may follow."""


class _Translation:
    """Takes an expression apart, from left to right."""

    def __init__(self, text: str, ignore_case: bool) -> None:
        self._text = text
        self._at = 0
        self._ignore_case = ignore_case
        self._dot_all = False

    def whole(self) -> str:
        """The expression in the engine's syntax."""
        found = self._alternatives(0)
        if self._at < len(self._text):
            raise self._refused("closes no group")
        return found.text

    # Structure

    def _alternatives(self, depth: int) -> _Piece:
        if depth > MAX_EXPRESSION_DEPTH:
            raise self._refused(f"is nested more than {MAX_EXPRESSION_DEPTH} deep")
        found = [self._sequence(depth)]
        while self._take("|"):
            found.append(self._sequence(depth))
        text = "|".join([piece.text for piece in found])
        return _Piece(text, any(piece.may_be_empty for piece in found), any(piece.captures for piece in found))

    def _sequence(self, depth: int) -> _Piece:
        found = []
        while self._at < len(self._text) and self._next not in ("|", ")"):
            found.append(self._repeated(self._atom(depth)))
        text = "".join([piece.text for piece in found])
        return _Piece(text, all(piece.may_be_empty for piece in found), any(piece.captures for piece in found))

    def _repeated(self, atom: _Piece) -> _Piece:
        """An atom with the quantifier behind it, if there is one."""
        start, may_be_empty, often = self._at, atom.may_be_empty, True
        if self._take("*"):
            may_be_empty = True
        elif self._take("?"):
            may_be_empty, often = True, False
        elif self._next == "{":
            counted = _COUNTED.match(self._text, self._at)
            if counted is None:
                raise self._refused("begins no number of repetitions, and stands for itself only behind a backslash")
            low, comma, high = counted.groups()
            most = int(high) if high else int(low)
            if most < int(low):
                raise self._refused("is less than nothing")
            may_be_empty = may_be_empty or int(low) == 0
            often = most > 1 or bool(comma and not high)
            self._at = counted.end()
        elif not self._take("+"):
            return atom
        if not atom.repeatable:
            self._at = start
            raise self._refused("repeats nothing")
        if often and atom.may_be_empty and atom.captures:
            self._at = start
            raise self._refused("repeats a group that may be empty, and what is captured then is not certain")
        self._take("?")
        if self._next in ("*", "+", "?", "{"):
            raise self._refused("follows another quantifier")
        return _Piece(atom.text + self._text[start : self._at], may_be_empty, atom.captures)

    def _atom(self, depth: int) -> _Piece:
        character = self._next
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return _Piece(self._class())
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise self._refused("repeats nothing")
            case "$" if depth or self._text[self._at + 1 : self._at + 2] not in ("", "|"):
                raise self._refused("stands elsewhere than at the end of the whole")
        self._at += 1
        match character:
            case "$":
                return _Piece("", may_be_empty=True, repeatable=False)
            case "^":
                return _Piece(r"\A", may_be_empty=True, repeatable=False)
            case ".":
                return _Piece("(?s:.)" if self._dot_all else _DOT)
        return _Piece(self._literal(character))

    def _group(self, depth: int) -> _Piece:
        flags = self._ignore_case, self._dot_all
        captures = True
        if change := _FLAGS.match(self._text, self._at):
            captures = False
            self._set(change[1], on=True)
            self._set(change[2] or "", on=False)
            self._at = change.end()
            if change[3] == ")":
                return _Piece("", may_be_empty=True, repeatable=False)  # from here to the end of the group around it
        elif named := _NAMED.match(self._text, self._at):
            self._at = named.end()
        elif self._text.startswith("(?", self._at):
            looks = self._text.startswith(_LOOKING, self._at)
            raise self._refused(f"{'looks ahead or behind' if looks else 'begins a group of a kind'}, {_NOT_USABLE}")
        else:
            self._at += 1
        inner = self._alternatives(depth + 1)
        if not self._take(")"):
            raise self._refused("is missing at the end: a closing parenthesis", at_end=True)
        self._ignore_case, self._dot_all = flags
        begin = "(" if captures else "(?:"
        return _Piece(f"{begin}{inner.text})", inner.may_be_empty, inner.captures or captures)

    def _set(self, flags: str, *, on: bool) -> None:
        self._ignore_case = on if "i" in flags else self._ignore_case
        self._dot_all = on if "s" in flags else self._dot_all

    # Characters

    def _escape(self) -> _Piece:
        """What a backslash begins, outside of a class."""
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in ("A", "z") and letter:
            self._at += 2
            return _Piece(f"\\{letter}", may_be_empty=True, repeatable=False)
        if letter == "Q":
            return self._quoted()
        found = self._escaped()
        return _Piece(f"[{found.text}]" if isinstance(found, _Piece) else self._literal(found))

    def _quoted(self) -> _Piece:
        r"""What stands literally between `\Q` and `\E`; a quantifier would be for its last character only."""
        literal, end, _ = self._text[self._at + 2 :].partition("\\E")
        self._at += 2 + len(literal) + len(end)
        text = "".join(map(self._literal, literal))
        return _Piece(text, may_be_empty=not literal, repeatable=False)

    def _escaped(self) -> "_Piece | str":
        """A character, or several as the content of a class."""
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _SETS and letter:
            self._at += 2
            return _Piece(_SETS[letter])
        if letter in _CHARACTERS and letter:
            self._at += 2
            return _CHARACTERS[letter]
        if hexadecimal := _HEXADECIMAL.match(self._text, self._at + 1):
            code = int(next(filter(None, hexadecimal.groups())), 16)
            if code > _MAX_CODE_POINT or code in _SURROGATES:
                raise self._refused("is no character")
            self._at = hexadecimal.end()
            return chr(code)
        property_ = _PROPERTY.match(self._text, self._at + 1)
        if property_ is not None and _CATEGORIES.fullmatch(name := property_[2] or property_[3]):
            self._at = property_.end()
            return _Piece(f"\\{property_[1]}{{{name}}}")
        if letter.isascii() and letter.isdecimal():
            raise self._refused(f"is a back reference or an octal number, {_NOT_USABLE}")
        if not letter or (letter.isascii() and letter.isalnum()):
            raise self._refused(f"is a construct, {_NOT_USABLE}")
        self._at += 2
        return letter

    def _literal(self, character: str) -> str:
        if not (character.isascii() and character.isalnum()):
            return _code(character)
        return f"[{character.lower()}{character.upper()}]" if self._folds(character) else character

    def _folds(self, character: str) -> bool:
        return self._ignore_case and character.isascii() and character.isalpha()

    def _class(self) -> str:
        self._at += 1
        negated = "^" if self._take("^") else ""
        found: list[str] = []
        while self._next != "]" or not found:
            item = self._item(first=not found)
            if isinstance(item, _Piece):
                if self._is_range():
                    raise self._refused("ends no range")
                found.append(item.text)
                continue
            last = item
            if self._is_range():
                self._at += 1
                high = self._item(first=False)
                if isinstance(high, _Piece) or high < item:
                    raise self._refused("follows a range that is none")
                last = high
            found.append(self._range(item, last))
        self._at += 1
        return f"[{negated}{''.join(found)}]"

    def _is_range(self) -> bool:
        """Whether a hyphen follows that is not the last character of the class."""
        return self._next == "-" and self._text[self._at + 1 : self._at + 2] != "]"

    def _item(self, *, first: bool) -> "_Piece | str":
        """One character of a class, or several."""
        character = self._next
        match character:
            case "":
                raise self._refused("is missing at the end: a closing bracket", at_end=True)
            case "\\":
                if self._text[self._at + 1 : self._at + 2] == "Q":
                    raise self._refused(f"is a construct, {_NOT_USABLE}")
                return self._escaped()
            case "[":
                raise self._refused(f"is a class within a class, {_NOT_USABLE}")
            case "]":
                raise self._refused("ends a class with nothing in it")
            case "&" if self._text.startswith("&&", self._at):
                raise self._refused(f"is an intersection of classes, {_NOT_USABLE}")
            case "-" if not first and self._text[self._at + 1 : self._at + 2] != "]":
                raise self._refused("may mean two things here")
        self._at += 1
        return character

    def _range(self, low: str, high: str) -> str:
        """A range of characters; where letters fold, with those that its letters stand for as well."""
        found = f"{_code(low)}-{_code(high)}"
        if self._ignore_case:
            for first, other in (("a", "A"), ("A", "a")):
                start, end = max(low, first), min(high, chr(ord(first) + 25))
                if start <= end:
                    shift = ord(other) - ord(first)
                    found += f"{_code(chr(ord(start) + shift))}-{_code(chr(ord(end) + shift))}"
        return found

    # The text

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> bool:
        found = self._next == character
        self._at += found
        return found

    def _refused(self, why: str, *, at_end: bool = False) -> InvalidData:
        if at_end:
            return InvalidData(f"in the regular expression something {why}")
        shown = ascii(self._text[self._at : self._at + 2])
        return InvalidData(f"in the regular expression, {shown} at character {self._at + 1} {why}")


def _code(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
