"""The scheme `pattern`: a site's own template, filled with ascending numbers.

In a template `d` stands for a decimal digit, `e` for one of the 31 PILIN digits, and a final `k` for a check
character over all letters and digits before it. Capital PILIN letters and digits stand for themselves, and so do
"-", ".", "_" and "~", which separate and do not count in the check. So `TR-dddd` gives TR-0000, TR-0001 … TR-9999, and
`eeeek` gives 923,521 names of five characters that survive being copied by hand.

No vowel is allowed anywhere, so no accidental words arise (P4).
"""

import re
from dataclasses import dataclass, field

from .errors import InvalidName, NameMisuse, format_character
from .handle import MAX_BYTES, Handle
from .pilin import ALPHABET, DIGIT_VALUES, MAX_BODY_LENGTH, check_character, check_character_error, has_valid_check
from .suffix_scheme import Details, Source, check_count, relocate_error

MAX_TEMPLATE_LENGTH = MAX_BYTES - 2
"""The longest suffix there can be: a handle has at least one character and a slash before it."""

_SEPARATORS = "-._~"
_DIGITS = ALPHABET[:10]
_DIGIT_SETS = {"d": _DIGITS, "e": ALPHABET}
_CHECK = "k"
_TEMPLATE = re.compile(rf"[{ALPHABET}{re.escape(_SEPARATORS)}de]+{_CHECK}?")
_WITHOUT_SEPARATORS = str.maketrans("", "", _SEPARATORS)


@dataclass(frozen=True, slots=True)
class PatternScheme:
    """Names after a template, one for each number from 0 on."""

    template: str
    """The template, e.g. `TR-dddd`."""
    _places: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _capacity: int = field(init=False, repr=False, compare=False)

    name = "pattern"

    def __post_init__(self) -> None:
        if not _TEMPLATE.fullmatch(self.template):
            raise _template_error(self.template)
        if len(self.template) > MAX_TEMPLATE_LENGTH:
            message = (
                f"the template has {len(self.template):,} characters; {MAX_TEMPLATE_LENGTH:,} are the most in a suffix"
            )
            raise NameMisuse("P4", message, position=MAX_TEMPLATE_LENGTH)
        places = tuple(_DIGIT_SETS.get(mark, mark) for mark in self.template.removesuffix(_CHECK))
        capacity = 1
        for place in places:
            capacity *= len(place)
        if capacity == 1:
            raise NameMisuse("P4", f"the template {self.template!r} has no d or e: it could name one thing only")
        letters = sum(place not in _SEPARATORS for place in places)
        if self.has_check and letters > MAX_BODY_LENGTH:
            message = (
                f"a check character serves at most {MAX_BODY_LENGTH} letters and digits; the template has {letters}"
            )
            raise NameMisuse("P4", message)
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_capacity", capacity)

    @property
    def has_check(self) -> bool:
        """Whether names end with a check character."""
        return self.template.endswith(_CHECK)

    @property
    def capacity(self) -> int:
        """How many names there are."""
        return self._capacity

    def format(self, number: int) -> str:
        """The suffix of a number."""
        if not 0 <= number < self._capacity:
            message = f"the template {self.template!r} has {self._capacity:,} names; number {number:,} is beyond them"
            raise NameMisuse("P4", message)
        reverse: list[str] = []
        for place in reversed(self._places):
            number, digit = divmod(number, len(place))
            reverse.append(place[digit])
        suffix = "".join(reversed(reverse))
        return suffix + check_character(suffix.translate(_WITHOUT_SEPARATORS)) if self.has_check else suffix

    def parse(self, suffix: str) -> int:
        """The number of a suffix, in either case."""
        expected = len(self._places) + self.has_check
        number = 0
        for position, (place, character) in enumerate(zip(self._places, suffix, strict=False)):
            letter = character.upper() if character in DIGIT_VALUES else character
            if letter not in place:
                raise self._make_error(position, place, character)
            number = number * len(place) + place.index(letter)
        if len(suffix) != expected:
            message = f"the suffix has {len(suffix)} characters; the template {self.template} gives {expected}"
            raise InvalidName("P8", message, position=min(len(suffix), expected))
        if self.has_check and not has_valid_check(suffix[:-1].translate(_WITHOUT_SEPARATORS) + suffix[-1]):
            raise check_character_error(suffix)
        return number

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """The next names in order; when there are not as many left, none is given out."""
        check_count(count)
        self._check_capacity(source.lease(0, 0), count)
        first = source.lease(count, 0)
        self._check_capacity(first, count)  # somebody else may have been faster
        return [self.format(number) for number in range(first, first + count)]

    def _check_capacity(self, first: int, count: int) -> None:
        remaining = max(0, self._capacity - first)
        if count > remaining:
            message = f"the template {self.template!r} has {self._capacity:,} names, of which {remaining:,} are left"
            raise NameMisuse("P4", f"{message}; {count:,} are asked for")

    def validate(self, handle: Handle) -> None:
        """Refuse a suffix that does not follow the template."""
        self._parse_number(handle)

    def _parse_number(self, handle: Handle) -> int:
        try:
            return self.parse(handle.suffix)
        except InvalidName as problem:
            raise relocate_error(problem, handle) from None

    def normalize(self, handle: Handle) -> Handle:
        """The spelling in capitals."""
        return Handle(handle.prefix, self.format(self._parse_number(handle)))

    def describe(self, handle: Handle) -> Details:
        """The template and the number in it."""
        number = self._parse_number(handle)
        check = handle.suffix[-1].upper() if self.has_check else None
        return {"template": self.template, "number": number, "check": check}

    def _make_error(self, position: int, place: str, character: str) -> InvalidName:
        wanted = {_DIGITS: "a digit", ALPHABET: "a PILIN digit"}.get(place, f'"{place}"')
        message = f"{format_character(character)} stands where the template {self.template} has {wanted}"
        return InvalidName("P8", message, position=position, character=character)


def _template_error(template: str) -> NameMisuse:
    for position, mark in enumerate(template):
        last = position == len(template) - 1
        if not _TEMPLATE.fullmatch(mark) and not (mark == _CHECK and last and template != _CHECK):
            message = (
                f"{format_character(mark)} means nothing in a template: d, e, a final k, "
                "PILIN capitals, digits and -._~ do"
            )
            return NameMisuse("P4", message, position=position, character=mark)
    return NameMisuse("P4", "the template is empty")
