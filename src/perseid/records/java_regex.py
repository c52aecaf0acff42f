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

MAX_EXPRESSION_LENGTH: Final = 1_000
"""The longest expression, in characters. What people write to tell names apart has some dozens."""

MAX_EXPRESSION_DEPTH: Final = 32
"""How deeply groups may stand in each other."""

MAX_EXPRESSION_MEMORY: Final = 1 << 18
"""Bytes that the engine may use for one expression; a larger one is refused when it is made."""

GROUP_COST: Final = 500
"""What it costs to take a captured group out of the engine: as much as so many states do for a character."""

_CACHE_SIZE: Final = 128  # expressions of as many namespaces, at most 32 MiB
_MAX_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

# Categories with case are left out, since versions of Java differ in what `i` makes of them, and "C", since Java counts
# characters to it that nobody has assigned yet.
_CATEGORIES: Final = re.compile("L[mo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?")

_DOT: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"  # Java knows more line ends than the engine
_CLASS_ESCAPES: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": "[:space:]", "D": r"\D", "W": r"\W", "S": "[:^space:]"}
_CHARACTER_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_LOOKAROUND: Final = ("(?=", "(?!", "(?<=", "(?<!")
_UNSUPPORTED: Final = "which cannot be used here"
_REPETITION: Final = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_FLAGS: Final = re.compile(r"\(\?(?!\))([is]*)(?:-([is]+))?([):])")
_NAMED_GROUP: Final = re.compile(r"\(\?<[A-Za-z][A-Za-z0-9]*>")
_HEXADECIMAL: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})|u([0-9A-Fa-f]{4})")
_PROPERTY: Final = re.compile(r"([pP])(?:([A-Z])|\{([A-Z][a-z]?)\})")


@dataclass(frozen=True, slots=True)
class JavaRegex:
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


@lru_cache(_CACHE_SIZE)
def compile_java_regex(text: str, *, ignore_case: bool = False) -> JavaRegex:
    """Take an expression in Java's syntax; raises `InvalidData` for what cannot be run, or would mean another thing."""
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise InvalidData(
            f"a regular expression of {len(text):,} characters is too long; {MAX_EXPRESSION_LENGTH:,} are the most"
        )
    options = re2.Options()
    options.max_mem = MAX_EXPRESSION_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(_Translator(text, ignore_case).translate(), options)
    except re2.error:
        raise InvalidData("the regular expression is too large when it is written out") from None
    return JavaRegex(text, ignore_case, compiled)


class _Fragment(NamedTuple):
    """A part of an expression in the engine's syntax."""

    text: str
    may_be_empty: bool = False
    """Whether it matches the empty text."""
    captures: bool = False
    """Whether a captured group is in it."""
    repeatable: bool = True
    """Whether a quantifier may follow."""


class _Translator:
    """Takes an expression apart, from left to right."""

    def __init__(self, text: str, ignore_case: bool) -> None:
        self._text = text
        self._position = 0
        self._ignore_case = ignore_case
        self._dot_all = False

    def translate(self) -> str:
        """The expression in the engine's syntax."""
        found = self._parse_alternatives(0)
        if self._position < len(self._text):
            raise self._error("closes no group")
        return found.text

    # Structure

    def _parse_alternatives(self, depth: int) -> _Fragment:
        if depth > MAX_EXPRESSION_DEPTH:
            raise self._error(f"is nested more than {MAX_EXPRESSION_DEPTH} deep")
        found = [self._parse_sequence(depth)]
        while self._accept("|"):
            found.append(self._parse_sequence(depth))
        text = "|".join([piece.text for piece in found])
        return _Fragment(text, any(piece.may_be_empty for piece in found), any(piece.captures for piece in found))

    def _parse_sequence(self, depth: int) -> _Fragment:
        found = []
        while self._position < len(self._text) and self._peek not in ("|", ")"):
            found.append(self._parse_quantifier(self._parse_atom(depth)))
        text = "".join([piece.text for piece in found])
        return _Fragment(text, all(piece.may_be_empty for piece in found), any(piece.captures for piece in found))

    def _parse_quantifier(self, atom: _Fragment) -> _Fragment:
        """An atom with the quantifier behind it, if there is one."""
        start, may_be_empty, is_repeated = self._position, atom.may_be_empty, True
        if self._accept("*"):
            may_be_empty = True
        elif self._accept("?"):
            may_be_empty, is_repeated = True, False
        elif self._peek == "{":
            counted = _REPETITION.match(self._text, self._position)
            if counted is None:
                raise self._error("begins no number of repetitions, and stands for itself only behind a backslash")
            low, comma, high = counted.groups()
            maximum = int(high) if high else int(low)
            if maximum < int(low):
                raise self._error("is less than nothing")
            may_be_empty = may_be_empty or int(low) == 0
            is_repeated = maximum > 1 or bool(comma and not high)
            self._position = counted.end()
        elif not self._accept("+"):
            return atom
        if not atom.repeatable:
            self._position = start
            raise self._error("repeats nothing")
        if is_repeated and atom.may_be_empty and atom.captures:
            self._position = start
            raise self._error("repeats a group that may be empty, and what is captured then is not certain")
        self._accept("?")
        if self._peek in ("*", "+", "?", "{"):
            raise self._error("follows another quantifier")
        return _Fragment(atom.text + self._text[start : self._position], may_be_empty, atom.captures)

    def _parse_atom(self, depth: int) -> _Fragment:
        character = self._peek
        match character:
            case "(":
                return self._parse_group(depth)
            case "[":
                return _Fragment(self._parse_class())
            case "\\":
                return self._parse_escape()
            case "*" | "+" | "?" | "{":
                raise self._error("repeats nothing")
            case "$" if depth or self._text[self._position + 1 : self._position + 2] not in ("", "|"):
                raise self._error("stands elsewhere than at the end of the whole")
        self._position += 1
        match character:
            case "$":
                return _Fragment("", may_be_empty=True, repeatable=False)
            case "^":
                return _Fragment(r"\A", may_be_empty=True, repeatable=False)
            case ".":
                return _Fragment("(?s:.)" if self._dot_all else _DOT)
        return _Fragment(self._literal(character))

    def _parse_group(self, depth: int) -> _Fragment:
        flags = self._ignore_case, self._dot_all
        captures = True
        if change := _FLAGS.match(self._text, self._position):
            captures = False
            self._set_flags(change[1], on=True)
            self._set_flags(change[2] or "", on=False)
            self._position = change.end()
            if change[3] == ")":
                return _Fragment("", may_be_empty=True, repeatable=False)  # from here to the end of the group around it
        elif named := _NAMED_GROUP.match(self._text, self._position):
            self._position = named.end()
        elif self._text.startswith("(?", self._position):
            is_lookaround = self._text.startswith(_LOOKAROUND, self._position)
            raise self._error(
                f"{'looks ahead or behind' if is_lookaround else 'begins a group of a kind'}, {_UNSUPPORTED}"
            )
        else:
            self._position += 1
        inner = self._parse_alternatives(depth + 1)
        if not self._accept(")"):
            raise self._error("is missing at the end: a closing parenthesis", at_end=True)
        self._ignore_case, self._dot_all = flags
        begin = "(" if captures else "(?:"
        return _Fragment(f"{begin}{inner.text})", inner.may_be_empty, inner.captures or captures)

    def _set_flags(self, flags: str, *, on: bool) -> None:
        self._ignore_case = on if "i" in flags else self._ignore_case
        self._dot_all = on if "s" in flags else self._dot_all

    # Characters

    def _parse_escape(self) -> _Fragment:
        """What a backslash begins, outside of a class."""
        letter = self._text[self._position + 1 : self._position + 2]
        if letter in ("A", "z") and letter:
            self._position += 2
            return _Fragment(f"\\{letter}", may_be_empty=True, repeatable=False)
        if letter == "Q":
            return self._parse_quoted()
        found = self._parse_escaped()
        return _Fragment(f"[{found.text}]" if isinstance(found, _Fragment) else self._literal(found))

    def _parse_quoted(self) -> _Fragment:
        r"""What stands literally between `\Q` and `\E`; a quantifier would be for its last character only."""
        literal, end, _ = self._text[self._position + 2 :].partition("\\E")
        self._position += 2 + len(literal) + len(end)
        text = "".join(map(self._literal, literal))
        return _Fragment(text, may_be_empty=not literal, repeatable=False)

    def _parse_escaped(self) -> "_Fragment | str":
        """A character, or several as the content of a class."""
        letter = self._text[self._position + 1 : self._position + 2]
        if letter in _CLASS_ESCAPES and letter:
            self._position += 2
            return _Fragment(_CLASS_ESCAPES[letter])
        if letter in _CHARACTER_ESCAPES and letter:
            self._position += 2
            return _CHARACTER_ESCAPES[letter]
        if hexadecimal := _HEXADECIMAL.match(self._text, self._position + 1):
            code = int(next(filter(None, hexadecimal.groups())), 16)
            if code > _MAX_CODE_POINT or code in _SURROGATES:
                raise self._error("is no character")
            self._position = hexadecimal.end()
            return chr(code)
        property_ = _PROPERTY.match(self._text, self._position + 1)
        if property_ is not None and _CATEGORIES.fullmatch(name := property_[2] or property_[3]):
            self._position = property_.end()
            return _Fragment(f"\\{property_[1]}{{{name}}}")
        if letter.isascii() and letter.isdecimal():
            raise self._error(f"is a back reference or an octal number, {_UNSUPPORTED}")
        if not letter or (letter.isascii() and letter.isalnum()):
            raise self._error(f"is a construct, {_UNSUPPORTED}")
        self._position += 2
        return letter

    def _literal(self, character: str) -> str:
        if not (character.isascii() and character.isalnum()):
            return _hex_escape(character)
        return f"[{character.lower()}{character.upper()}]" if self._is_folded(character) else character

    def _is_folded(self, character: str) -> bool:
        return self._ignore_case and character.isascii() and character.isalpha()

    def _parse_class(self) -> str:
        self._position += 1
        negated = "^" if self._accept("^") else ""
        found: list[str] = []
        while self._peek != "]" or not found:
            item = self._parse_class_item(first=not found)
            if isinstance(item, _Fragment):
                if self._is_range():
                    raise self._error("ends no range")
                found.append(item.text)
                continue
            last = item
            if self._is_range():
                self._position += 1
                high = self._parse_class_item(first=False)
                if isinstance(high, _Fragment) or high < item:
                    raise self._error("follows a range that is none")
                last = high
            found.append(self._format_range(item, last))
        self._position += 1
        return f"[{negated}{''.join(found)}]"

    def _is_range(self) -> bool:
        """Whether a hyphen follows that is not the last character of the class."""
        return self._peek == "-" and self._text[self._position + 1 : self._position + 2] != "]"

    def _parse_class_item(self, *, first: bool) -> "_Fragment | str":
        """One character of a class, or several."""
        character = self._peek
        match character:
            case "":
                raise self._error("is missing at the end: a closing bracket", at_end=True)
            case "\\":
                if self._text[self._position + 1 : self._position + 2] == "Q":
                    raise self._error(f"is a construct, {_UNSUPPORTED}")
                return self._parse_escaped()
            case "[":
                raise self._error(f"is a class within a class, {_UNSUPPORTED}")
            case "]":
                raise self._error("ends a class with nothing in it")
            case "&" if self._text.startswith("&&", self._position):
                raise self._error(f"is an intersection of classes, {_UNSUPPORTED}")
            case "-" if not first and self._text[self._position + 1 : self._position + 2] != "]":
                raise self._error("may mean two things here")
        self._position += 1
        return character

    def _format_range(self, low: str, high: str) -> str:
        """A range of characters; where letters fold, with those that its letters stand for as well."""
        found = f"{_hex_escape(low)}-{_hex_escape(high)}"
        if self._ignore_case:
            for first, other in (("a", "A"), ("A", "a")):
                start, end = max(low, first), min(high, chr(ord(first) + 25))
                if start <= end:
                    shift = ord(other) - ord(first)
                    found += f"{_hex_escape(chr(ord(start) + shift))}-{_hex_escape(chr(ord(end) + shift))}"
        return found

    # The text

    @property
    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _accept(self, character: str) -> bool:
        found = self._peek == character
        self._position += found
        return found

    def _error(self, reason: str, *, at_end: bool = False) -> InvalidData:
        if at_end:
            return InvalidData(f"in the regular expression something {reason}")
        shown = ascii(self._text[self._position : self._position + 2])
        return InvalidData(f"in the regular expression, {shown} at character {self._position + 1} {reason}")


def _hex_escape(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
