r"""Regular expressions of strangers: compiled within bounds for an engine of linear time, or refused.

The engine is RE2. Three constructs that people know from other engines it does not have, or reads differently without
a word, and these are refused by name: back references, look-around, and a class inside a class (`[a-z&&[^b]]`, which
RE2 takes for the signs themselves). Who writes an expression is told where it stands; where one is met in a record
that exists, it counts as one that matches nothing.

Linear time is not yet little time: it is the product of the text and the compiled expression, and `\pL{100}` is large.
So that product is bounded too, for all values of a record together (`Effort`). And before anything is matched,
expressions are compiled, which takes longer than most matches: that is bounded in the same way.

This is for expressions in the engine's own syntax, those of types and of JSON Schemas. Templates have Java's, and match
in another way: see `regex`.
"""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from .errors import InvalidData
from .json_parsing import check_utf8

MAX_PATTERN_LENGTH: Final = 1_000
"""The longest expression, in characters. Those for identifiers and dates have a few dozen."""

MAX_PATTERN_MEMORY: Final = 1 << 19
"""How many bytes a compiled expression may take; what needs more is not compiled."""

MAX_PATTERN_WORK: Final = 50_000_000
"""How many bytes of text, each times the instructions of its expression, are matched for one record: about a tenth of
a second at worst. A thousand bytes against an expression of a thousand instructions are a fiftieth of it."""

MAX_STEPS: Final = 10_000
"""How many rules of schemas are applied for one record: some tenths of a second at worst."""

MAX_COMPILE_COST: Final = 10_000
"""What making definitions ready may cost for one record: half a second at worst. A character of an expression costs 1,
a schema inside of a schema 8; see `Matcher.cost` and `schema_words.Walk`. It is counted too if the definitions happen
to be ready, so that the same record is not accepted at one time and refused at another."""

_INSTRUCTIONS_PER_COST: Final = 50  # so many of a compiled expression take as long as one character that is read
_CACHE_SIZE: Final = 256  # compiled expressions: those of the types that an installation uses most
_LOOK_AROUND: Final = ("(?=", "(?!", "(?<=", "(?<!")
_BACK_REFERENCES: Final = ("(?P=", "\\k", *[f"\\{digit}" for digit in range(1, 10)])
_CONSTRUCTS: Final = {
    **dict.fromkeys(_LOOK_AROUND, "look-around"),
    **dict.fromkeys(_BACK_REFERENCES, "a back reference"),
    "\\C": "a single byte, which may be half of a character",
}


class ValidationBudget:
    """What checking one record may still cost. It is spent while values are checked, and never comes back."""

    __slots__ = ("_prepared", "preparing", "steps", "work")

    def __init__(self, steps: int = MAX_STEPS, work: int = MAX_PATTERN_WORK, preparing: int = MAX_COMPILE_COST) -> None:
        self.steps = steps
        self.work = work
        self.preparing = preparing
        self._prepared: set[str] = set()

    def prepare(self, text: str, cost: int) -> None:
        """Make an expression or a schema ready; for all data that is checked against it, this is done once."""
        if text not in self._prepared:
            self._prepared.add(text)
            self.preparing -= cost
            if self.preparing < 0:
                raise BudgetExceeded("the definitions of the types of one record are too large to be used together")

    def step(self, count: int = 1) -> None:
        """Apply a rule of a schema; on long lists it counts as several."""
        self.steps -= count
        if self.steps < 0:
            raise BudgetExceeded(
                "it takes too many steps to check; as many as all values of one record may take are done"
            )

    def match(self, size: int, instructions: int) -> None:
        """Match a text against an expression."""
        self.work -= size * instructions
        if self.work < 0:
            raise BudgetExceeded("it is too long to be matched against an expression of this size")


class BudgetExceeded(InvalidData):
    """Data that cannot be checked within bounds."""


class Matcher:
    """A compiled regular expression."""

    __slots__ = ("_compiled", "pattern")

    def __init__(self, pattern: str, compiled: Any) -> None:
        self.pattern = pattern
        self._compiled = compiled

    @property
    def cost(self) -> int:
        r"""What compiling it took: an expression may be long, or short and large (`\pL{15}`)."""
        return len(self.pattern) + int(self._compiled.programsize) // _INSTRUCTIONS_PER_COST

    def matches(self, text: str, budget: ValidationBudget) -> bool:
        """Whether the whole text matches."""
        self._charge(text, budget)
        return self._compiled.fullmatch(text) is not None

    def has_match_in(self, text: str, budget: ValidationBudget) -> bool:
        """Whether some part of the text matches."""
        self._charge(text, budget)
        return self._compiled.search(text) is not None

    def _charge(self, text: str, budget: ValidationBudget) -> None:
        check_utf8(text, "the text")  # the engine has no place for half of a surrogate pair
        budget.match(len(text.encode("utf-8")), self._compiled.programsize)


@lru_cache(_CACHE_SIZE)
def compile_pattern(pattern: str) -> Matcher:
    """Compile an expression; InvalidData says what is wrong with it, and where."""
    import re2  # noqa: PLC0415 - resolver processes know types of values, and check none

    check_utf8(pattern, "the pattern")
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidData(f"the pattern has {len(pattern):,} characters; {MAX_PATTERN_LENGTH:,} are the most")
    if (result := _find_unsupported(pattern)) is not None:
        raise InvalidData(f"the pattern has {result.construct} at character {result.position + 1}; {result.advice}")
    options = re2.Options()
    options.log_errors = False  # they would go to standard error
    options.never_capture = True
    options.max_mem = MAX_PATTERN_MEMORY
    try:
        return Matcher(pattern, re2.compile(pattern, options=options))
    except re2.error as problem:
        raise InvalidData(f"the pattern is no regular expression of RE2: {_error_text(problem)}") from None


class _UnsupportedConstruct(NamedTuple):
    """A construct that is not understood here, and where it stands."""

    construct: str
    position: int
    advice: str = "the engine of linear time has none: write the expression without it"


def _find_unsupported(pattern: str) -> _UnsupportedConstruct | None:
    """The first construct that RE2 lacks or would read otherwise than it is meant."""
    position = 0
    while position < len(pattern):
        for mark, name in _CONSTRUCTS.items():
            if pattern.startswith(mark, position):
                return _UnsupportedConstruct(name, position)
        if pattern.startswith("\\Q", position):  # everything up to \E stands for itself
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
    """What is wrong with the class that begins here, or where it ends."""
    position = start + 1
    if pattern.startswith("^", position):
        position += 1
    first = position
    while position < len(pattern):
        if pattern.startswith("&&", position):
            return _UnsupportedConstruct(
                "an intersection of classes (&&)", position, "write out the characters that are meant"
            )
        if pattern[position] == "[":
            return _UnsupportedConstruct(
                "a class inside a class", position, 'a bracket that stands for itself is written "\\["'
            )
        if pattern[position] == "]" and position > first:
            return position + 1
        position += 2 if pattern[position] == "\\" else 1
    return position


def _error_text(problem: Exception) -> str:
    message = problem.args[0] if problem.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
