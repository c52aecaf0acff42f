r"""Untrusted regular expressions, with limits: RE2 syntax in types and JSON Schemas, Java syntax in templates.

RE2 takes linear time. Three constructs of other engines that it lacks or silently reads differently are rejected by
name: backreferences, lookaround, and a class inside a class (`[a-z&&[^b]]`). An invalid expression in an existing
record matches nothing.

Matching takes time proportional to the product of text and compiled expression, and `\pL{100}` is large. So that
product is limited for all values of a record together (`ValidationBudget`), and so is the cost of compilation, which
takes longer than most matches.

Templates of deployed servers are written for Java, which differs from RE2 in more constructs, such as `\v` and `\12`.
So such an expression is parsed and translated to RE2 with the same meaning; everything else is rejected with its
position:

- backreferences, lookaround, atomic groups, possessive and doubled quantifiers;
- unions and intersections of classes, POSIX names in them, a class that begins with `]`;
- octal numbers, control characters by letter, `\b`, `\B`, `\G`, `\R`, `\X`, `\Z`, `\h`, `\v` and their opposites;
- `$` except at the end of the expression or of a top-level alternative, because Java's also matches before a final
  line break;
- flags other than `i` and `s`; properties other than general categories without case;
- repetition of a group that can be empty and contains a capturing group: the engines capture differently.

Only ASCII letters fold, as in names.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .encoding import check_utf8
from .errors import InvalidData

MAX_PATTERN_LENGTH: Final = 1_000
"""Maximum length of an expression in characters. Those for identifiers and dates have a few dozen."""

MAX_PATTERN_MEMORY: Final = 1 << 19
"""Maximum memory of a compiled expression in bytes."""

MAX_PATTERN_WORK: Final = 50_000_000
"""Matching work per record: bytes of text times instructions of the expression. It takes at most about 0.1 s. A text of
a thousand bytes and an expression of a thousand instructions are a fiftieth of it."""

MAX_STEPS: Final = 10_000
"""Schema keywords applied per record: at most some tenths of a second."""

MAX_COMPILE_COST: Final = 10_000
"""Cost of compiling definitions per record: at most half a second. A character of an expression costs 1, a subschema 8;
see `Matcher.cost` and `json_schema`. It is charged even for cached definitions, so that the result for a
record does not depend on the cache."""

_INSTRUCTIONS_PER_COST: Final = 50  # take as long as parsing one character
_CACHE_SIZE: Final = 256  # compiled expressions
_LOOK_AROUND: Final = ("(?=", "(?!", "(?<=", "(?<!")
_BACK_REFERENCES: Final = ("(?P=", "\\k", *[f"\\{digit}" for digit in range(1, 10)])
_CONSTRUCTS: Final = {
    **dict.fromkeys(_LOOK_AROUND, "lookaround"),
    **dict.fromkeys(_BACK_REFERENCES, "a backreference"),
    "\\C": "a single byte (\\C)",
}


class ValidationBudget:
    """Remaining cost of validating one record."""

    __slots__ = ("_prepared", "preparing", "steps", "work")

    def __init__(self, steps: int = MAX_STEPS, work: int = MAX_PATTERN_WORK, preparing: int = MAX_COMPILE_COST) -> None:
        self.steps = steps
        self.work = work
        self.preparing = preparing
        self._prepared: set[str] = set()

    def prepare(self, text: str, cost: int) -> None:
        """Charge for compiling an expression or schema, once per record."""
        if text not in self._prepared:
            self._prepared.add(text)
            self.preparing -= cost
            if self.preparing < 0:
                raise BudgetExceeded("the type definitions of the record are too large in total to validate")

    def step(self, count: int = 1) -> None:
        """Charge for applying a schema keyword; long lists cost more."""
        self.steps -= count
        if self.steps < 0:
            raise BudgetExceeded("validation of the record takes too many steps")

    def match(self, size: int, instructions: int) -> None:
        """Charge for matching a text with an expression."""
        self.work -= size * instructions
        if self.work < 0:
            raise BudgetExceeded("the data is too long to match with a pattern of this size")


class BudgetExceeded(InvalidData):
    """Data that cannot be validated within the limits."""


class Matcher:
    """A compiled regular expression."""

    __slots__ = ("_compiled", "pattern")

    def __init__(self, pattern: str, compiled: Any) -> None:
        self.pattern = pattern
        self._compiled = compiled

    @property
    def cost(self) -> int:
        r"""Cost of compiling it: an expression can be long, or short but large (`\pL{15}`)."""
        return len(self.pattern) + int(self._compiled.programsize) // _INSTRUCTIONS_PER_COST

    def matches(self, text: str, budget: ValidationBudget) -> bool:
        """Whether the whole text matches."""
        self._charge(text, budget)
        return self._compiled.fullmatch(text) is not None

    def has_match_in(self, text: str, budget: ValidationBudget) -> bool:
        """Whether any part of the text matches."""
        self._charge(text, budget)
        return self._compiled.search(text) is not None

    def _charge(self, text: str, budget: ValidationBudget) -> None:
        check_utf8(text, "the text")  # the engine does not support surrogates
        budget.match(len(text.encode("utf-8")), self._compiled.programsize)


@lru_cache(_CACHE_SIZE)
def compile_pattern(pattern: str) -> Matcher:
    """Compile an expression; raises InvalidData."""
    import re2  # noqa: PLC0415 - most commands do not validate

    check_utf8(pattern, "the pattern")
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidData(f"the pattern has {len(pattern):,} characters; the maximum is {MAX_PATTERN_LENGTH:,}")
    if (result := _find_unsupported(pattern)) is not None:
        raise InvalidData(f"the pattern has {result.construct} at character {result.position + 1}; {result.advice}")
    options = re2.Options()
    options.log_errors = False  # to standard error
    options.never_capture = True
    options.max_mem = MAX_PATTERN_MEMORY
    try:
        return Matcher(pattern, re2.compile(pattern, options=options))
    except re2.error as problem:
        raise InvalidData(f"the pattern is not a valid RE2 regular expression: {_error_text(problem)}") from None


class _UnsupportedConstruct(NamedTuple):
    """An unsupported construct and its position."""

    construct: str
    position: int
    advice: str = "RE2 does not support it"


def _find_unsupported(pattern: str) -> _UnsupportedConstruct | None:
    """The first construct that RE2 lacks or reads differently."""
    position = 0
    while position < len(pattern):
        for mark, name in _CONSTRUCTS.items():
            if pattern.startswith(mark, position):
                return _UnsupportedConstruct(name, position)
        if pattern.startswith("\\Q", position):  # literal up to \E
            end = pattern.find("\\E", position)
            position = len(pattern) if end < 0 else end + 2
        elif pattern[position] == "\\":
            position += 2
        elif pattern[position] == "[":
            result = _find_unsupported_in_class(pattern, position)
            if isinstance(result, _UnsupportedConstruct):
                return result
            position = result
        else:
            position += 1
    return None


def _find_unsupported_in_class(pattern: str, start: int) -> _UnsupportedConstruct | int:
    """The unsupported construct in the class that begins here, or the end of the class."""
    position = start + 1
    if pattern.startswith("^", position):
        position += 1
    first = position
    while position < len(pattern):
        if pattern.startswith("&&", position):
            return _UnsupportedConstruct("an intersection of classes (&&)", position, "list the characters instead")
        if pattern[position] == "[":
            return _UnsupportedConstruct("a class inside a class", position, 'write a literal bracket as "\\["')
        if pattern[position] == "]" and position > first:
            return position + 1
        position += 2 if pattern[position] == "\\" else 1
    return position


def _error_text(problem: Exception) -> str:
    message = problem.args[0] if problem.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)


# Java syntax

MAX_EXPRESSION_LENGTH: Final = 1_000
"""Maximum length of an expression in characters. Typical ones have some dozens."""

MAX_EXPRESSION_DEPTH: Final = 32
"""Maximum nesting of groups."""

MAX_EXPRESSION_MEMORY: Final = 1 << 18
"""Maximum memory of a compiled expression in bytes."""

GROUP_COST: Final = 500
"""Cost of extracting a captured group, in states per character."""

_JAVA_CACHE_SIZE: Final = 128  # at most 32 MiB
_MAX_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

# Without categories with case, because versions of Java differ in how `i` affects them, and without "C", which in Java
# includes unassigned characters.
_CATEGORIES: Final = re.compile("L[mo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?")

_DOT: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"  # Java has more line terminators than RE2
_CLASS_ESCAPES: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": "[:space:]", "D": r"\D", "W": r"\W", "S": "[:^space:]"}
_CHARACTER_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_UNSUPPORTED: Final = "which is not supported"
_REPETITION: Final = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_FLAGS: Final = re.compile(r"\(\?(?!\))([is]*)(?:-([is]+))?([):])")
_NAMED_GROUP: Final = re.compile(r"\(\?<[A-Za-z][A-Za-z0-9]*>")
_HEXADECIMAL: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})|u([0-9A-Fa-f]{4})")
_PROPERTY: Final = re.compile(r"([pP])(?:([A-Z])|\{([A-Z][a-z]?)\})")


@dataclass(frozen=True, slots=True)
class JavaRegex:
    """A compiled expression."""

    text: str
    """The expression, as written."""
    ignore_case: bool
    """Whether ASCII letters match in either case."""
    _compiled: Any = field(repr=False, compare=False)

    def match(self, text: str) -> tuple[str, ...] | None:
        """Match the whole text: the text and its captured groups, or None. An unused group is empty."""
        match = self._compiled.fullmatch(text)
        return None if match is None else (text, *match.groups(""))

    @property
    def size(self) -> int:
        """Number of states of the compiled expression."""
        return int(self._compiled.programsize)

    def cost(self, text: str) -> int:
        """Maximum cost of a match: states times characters, plus captured groups."""
        return self.size * (len(text) + 1) + GROUP_COST * int(self._compiled.groups)


@lru_cache(_JAVA_CACHE_SIZE)
def compile_java_regex(text: str, *, ignore_case: bool = False) -> JavaRegex:
    """Compile an expression in Java syntax; raises `InvalidData` if it is unsupported."""
    import re2  # noqa: PLC0415 - see `compile_pattern`

    if len(text) > MAX_EXPRESSION_LENGTH:
        raise InvalidData(
            f"the regular expression has {len(text):,} characters; the maximum is {MAX_EXPRESSION_LENGTH:,}"
        )
    options = re2.Options()
    options.max_mem = MAX_EXPRESSION_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(_Translator(text, ignore_case).translate(), options)
    except re2.error:
        raise InvalidData("the regular expression is too large when compiled") from None
    return JavaRegex(text, ignore_case, compiled)


class _Fragment(NamedTuple):
    """A part of an expression in RE2 syntax."""

    text: str
    may_be_empty: bool = False
    """Whether it matches the empty text."""
    captures: bool = False
    """Whether it contains a capturing group."""
    repeatable: bool = True
    """Whether a quantifier can follow."""


class _Translator:
    """A recursive descent parser that translates an expression to RE2."""

    def __init__(self, text: str, ignore_case: bool) -> None:
        self._text = text
        self._position = 0
        self._ignore_case = ignore_case
        self._dot_all = False

    def translate(self) -> str:
        """The expression in RE2 syntax."""
        fragment = self._parse_alternatives(0)
        if self._position < len(self._text):
            raise self._error("does not close a group")
        return fragment.text

    # Structure

    def _parse_alternatives(self, depth: int) -> _Fragment:
        if depth > MAX_EXPRESSION_DEPTH:
            raise self._error(f"is nested more than {MAX_EXPRESSION_DEPTH} levels deep")
        parts = [self._parse_sequence(depth)]
        while self._accept("|"):
            parts.append(self._parse_sequence(depth))
        text = "|".join([part.text for part in parts])
        return _Fragment(text, any(part.may_be_empty for part in parts), any(part.captures for part in parts))

    def _parse_sequence(self, depth: int) -> _Fragment:
        parts = []
        while self._position < len(self._text) and self._peek not in ("|", ")"):
            parts.append(self._parse_quantifier(self._parse_atom(depth)))
        text = "".join([part.text for part in parts])
        return _Fragment(text, all(part.may_be_empty for part in parts), any(part.captures for part in parts))

    def _parse_quantifier(self, atom: _Fragment) -> _Fragment:
        """Parse the quantifier after an atom, if there is one."""
        start, may_be_empty, is_repeated = self._position, atom.may_be_empty, True
        if self._accept("*"):
            may_be_empty = True
        elif self._accept("?"):
            may_be_empty, is_repeated = True, False
        elif self._peek == "{":
            repetition = _REPETITION.match(self._text, self._position)
            if repetition is None:
                raise self._error("is not a repetition; write a literal brace as \\{")
            low, comma, high = repetition.groups()
            maximum = int(high) if high else int(low)
            if maximum < int(low):
                raise self._error("has a maximum below its minimum")
            may_be_empty = may_be_empty or int(low) == 0
            is_repeated = maximum > 1 or bool(comma and not high)
            self._position = repetition.end()
        elif not self._accept("+"):
            return atom
        if not atom.repeatable:
            self._position = start
            raise self._error("repeats nothing")
        if is_repeated and atom.may_be_empty and atom.captures:
            self._position = start
            raise self._error("repeats a group that can be empty and captures, which is not supported")
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
                raise self._error("is only supported at the end of the expression")
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
                return _Fragment("", may_be_empty=True, repeatable=False)  # up to the end of the enclosing group
        elif named := _NAMED_GROUP.match(self._text, self._position):
            self._position = named.end()
        elif self._text.startswith("(?", self._position):
            is_lookaround = self._text.startswith(_LOOK_AROUND, self._position)
            raise self._error(f"begins {'a lookaround' if is_lookaround else 'a special group'}, {_UNSUPPORTED}")
        else:
            self._position += 1
        inner = self._parse_alternatives(depth + 1)
        if not self._accept(")"):
            raise self._missing("closing parenthesis")
        self._ignore_case, self._dot_all = flags
        begin = "(" if captures else "(?:"
        return _Fragment(f"{begin}{inner.text})", inner.may_be_empty, inner.captures or captures)

    def _set_flags(self, flags: str, *, on: bool) -> None:
        self._ignore_case = on if "i" in flags else self._ignore_case
        self._dot_all = on if "s" in flags else self._dot_all

    # Characters

    def _parse_escape(self) -> _Fragment:
        """Parse an escape outside a class."""
        letter = self._text[self._position + 1 : self._position + 2]
        if letter in ("A", "z") and letter:
            self._position += 2
            return _Fragment(f"\\{letter}", may_be_empty=True, repeatable=False)
        if letter == "Q":
            return self._parse_quoted()
        escaped = self._parse_escaped()
        return _Fragment(f"[{escaped.text}]" if isinstance(escaped, _Fragment) else self._literal(escaped))

    def _parse_quoted(self) -> _Fragment:
        r"""Parse the literal text between `\Q` and `\E`; a quantifier would apply to its last character only."""
        literal, end, _ = self._text[self._position + 2 :].partition("\\E")
        self._position += 2 + len(literal) + len(end)
        text = "".join(map(self._literal, literal))
        return _Fragment(text, may_be_empty=not literal, repeatable=False)

    def _parse_escaped(self) -> "_Fragment | str":
        """Parse an escape to a character, or to the content of a class."""
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
                raise self._error("is not a character")
            self._position = hexadecimal.end()
            return chr(code)
        property_ = _PROPERTY.match(self._text, self._position + 1)
        if property_ is not None and _CATEGORIES.fullmatch(name := property_[2] or property_[3]):
            self._position = property_.end()
            return _Fragment(f"\\{property_[1]}{{{name}}}")
        if letter.isascii() and letter.isdecimal():
            raise self._error(f"is a backreference or an octal number, {_UNSUPPORTED}")
        if not letter or (letter.isascii() and letter.isalnum()):
            raise self._error("is not supported")
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
        items: list[str] = []
        while self._peek != "]" or not items:
            item = self._parse_class_item(first=not items)
            if isinstance(item, _Fragment):
                if self._is_range():
                    raise self._error("does not end a range")
                items.append(item.text)
                continue
            last = item
            if self._is_range():
                self._position += 1
                high = self._parse_class_item(first=False)
                if isinstance(high, _Fragment) or high < item:
                    raise self._error("follows an invalid range")
                last = high
            items.append(self._format_range(item, last))
        self._position += 1
        return f"[{negated}{''.join(items)}]"

    def _is_range(self) -> bool:
        """Whether a hyphen follows that is not the last character of the class."""
        return self._peek == "-" and self._text[self._position + 1 : self._position + 2] != "]"

    def _parse_class_item(self, *, first: bool) -> "_Fragment | str":
        """Parse an item of a class: one character or several."""
        character = self._peek
        match character:
            case "":
                raise self._missing("closing bracket")
            case "\\":
                if self._text[self._position + 1 : self._position + 2] == "Q":
                    raise self._error("is not supported")
                return self._parse_escaped()
            case "[":
                raise self._error(f"is a class inside a class, {_UNSUPPORTED}")
            case "]":
                raise self._error("closes an empty class")
            case "&" if self._text.startswith("&&", self._position):
                raise self._error(f"is an intersection of classes, {_UNSUPPORTED}")
            case "-" if not first and self._text[self._position + 1 : self._position + 2] != "]":
                raise self._error("is ambiguous")
        self._position += 1
        return character

    def _format_range(self, low: str, high: str) -> str:
        """Format a range of characters; if case is ignored, with the letters of the other case."""
        text = f"{_hex_escape(low)}-{_hex_escape(high)}"
        if self._ignore_case:
            for first, other in (("a", "A"), ("A", "a")):
                start, end = max(low, first), min(high, chr(ord(first) + 25))
                if start <= end:
                    shift = ord(other) - ord(first)
                    text += f"{_hex_escape(chr(ord(start) + shift))}-{_hex_escape(chr(ord(end) + shift))}"
        return text

    # Input

    @property
    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _accept(self, character: str) -> bool:
        accepted = self._peek == character
        self._position += accepted
        return accepted

    def _error(self, reason: str) -> InvalidData:
        construct = ascii(self._text[self._position : self._position + 2])
        return InvalidData(f"in the regular expression, {construct} at character {self._position + 1} {reason}")

    @staticmethod
    def _missing(name: str) -> InvalidData:
        return InvalidData(f"in the regular expression, a {name} is missing")


def _hex_escape(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
