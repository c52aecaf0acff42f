r"""Untrusted regular expressions of types and JSON Schemas, in RE2 syntax, with limits.

RE2 takes linear time. Three constructs of other engines that it lacks or silently reads differently are rejected by
name: backreferences, lookaround, and a class inside a class (`[a-z&&[^b]]`). An invalid expression in an existing
record matches nothing.

Matching takes time proportional to the product of text and compiled expression, and `\pL{100}` is large. So that
product is limited for all values of a record together (`ValidationBudget`), and so is the cost of compilation, which
takes longer than most matches.

Templates use Java syntax: see `java_regex`.
"""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from .errors import InvalidData
from .json_parsing import check_utf8

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
    import re2  # noqa: PLC0415 - resolver processes do not validate

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
