"""Suffix schemes by name, built-in and third-party, recognition by the form of a handle, and the scheme `pattern`.

Third-party packages declare an entry point in the group `perseid.schemes`. Its object is called with the options of the
policy as keyword arguments and returns a `Scheme`:

    [project.entry-points."perseid.schemes"]
    ark = "example_ark:ArkScheme"

The scheme `pattern` fills a custom template with ascending numbers. In a template, `d` is a decimal digit, `e` is one
of the 31 PILIN digits, and a final `k` is a check character over all letters and digits before it. Uppercase PILIN
letters and digits are literal, and so are the separators "-", ".", "_" and "~", which the check character ignores.
`TR-dddd` gives TR-0000 … TR-9999; `eeeek` gives 923,521 names of five characters that are safe to copy by hand. Vowels
are not allowed, so there are no accidental words (P4).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from .cordra import CordraScheme, UuidScheme
from .errors import InvalidName, NameMisuse, format_character
from .handle import MAX_BYTES, Handle
from .pilin import (
    ALPHABET,
    DIGIT_VALUES,
    MAX_BODY_LENGTH,
    PilinCheckScheme,
    PilinScheme,
    check_character,
    check_character_error,
    has_valid_check,
)
from .schemes import Details, Scheme, Source, check_count, relocate_error

MAX_TEMPLATE_LENGTH = MAX_BYTES - 2
"""Maximum length of a suffix: a handle has at least one character and a slash before it."""

_SEPARATORS = "-._~"
_DIGITS = ALPHABET[:10]
_DIGIT_SETS = {"d": _DIGITS, "e": ALPHABET}
_CHECK = "k"
_TEMPLATE = re.compile(rf"[{ALPHABET}{re.escape(_SEPARATORS)}de]+{_CHECK}?")
_WITHOUT_SEPARATORS = str.maketrans("", "", _SEPARATORS)


@dataclass(frozen=True, slots=True)
class PatternScheme:
    """Names from a template, one for each number from 0 on."""

    template: str
    """The template, such as `TR-dddd`."""
    _slots: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _capacity: int = field(init=False, repr=False, compare=False)

    name = "pattern"

    def __post_init__(self) -> None:
        if not _TEMPLATE.fullmatch(self.template):
            raise _template_error(self.template)
        if len(self.template) > MAX_TEMPLATE_LENGTH:
            message = f"the template has {len(self.template):,} characters; the maximum is {MAX_TEMPLATE_LENGTH:,}"
            raise NameMisuse("P4", message, position=MAX_TEMPLATE_LENGTH)
        slots = tuple(_DIGIT_SETS.get(mark, mark) for mark in self.template.removesuffix(_CHECK))
        capacity = 1
        for slot in slots:
            capacity *= len(slot)
        if capacity == 1:
            raise NameMisuse("P4", f"the template {self.template!r} has no d or e, so it gives only one name")
        letters = sum(slot not in _SEPARATORS for slot in slots)
        if self.has_check and letters > MAX_BODY_LENGTH:
            message = (
                f"a check character covers at most {MAX_BODY_LENGTH} letters and digits; the template has {letters}"
            )
            raise NameMisuse("P4", message)
        object.__setattr__(self, "_slots", slots)
        object.__setattr__(self, "_capacity", capacity)

    @property
    def has_check(self) -> bool:
        """Whether names end with a check character."""
        return self.template.endswith(_CHECK)

    @property
    def capacity(self) -> int:
        """Number of names."""
        return self._capacity

    def format(self, number: int) -> str:
        """Format the suffix of a number."""
        if not 0 <= number < self._capacity:
            message = f"the template {self.template!r} has {self._capacity:,} names; there is no name number {number:,}"
            raise NameMisuse("P4", message)
        reverse: list[str] = []
        for slot in reversed(self._slots):
            number, digit = divmod(number, len(slot))
            reverse.append(slot[digit])
        suffix = "".join(reversed(reverse))
        return suffix + check_character(suffix.translate(_WITHOUT_SEPARATORS)) if self.has_check else suffix

    def parse(self, suffix: str) -> int:
        """Parse a suffix, in either case, to its number."""
        expected = len(self._slots) + self.has_check
        number = 0
        for position, (slot, character) in enumerate(zip(self._slots, suffix, strict=False)):
            letter = character.upper() if character in DIGIT_VALUES else character
            if letter not in slot:
                raise self._make_error(position, slot, character)
            number = number * len(slot) + slot.index(letter)
        if len(suffix) != expected:
            message = f"the suffix has {len(suffix)} characters; the template {self.template} requires {expected}"
            raise InvalidName("P8", message, position=min(len(suffix), expected))
        if self.has_check and not has_valid_check(suffix[:-1].translate(_WITHOUT_SEPARATORS) + suffix[-1]):
            raise check_character_error(suffix)
        return number

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Mint the next names in order; all of them, or none if not enough are left."""
        check_count(count)
        self._check_capacity(source.lease(0, 0), count)
        first = source.lease(count, 0)
        self._check_capacity(first, count)  # another caller may have been faster
        return [self.format(number) for number in range(first, first + count)]

    def _check_capacity(self, first: int, count: int) -> None:
        remaining = max(0, self._capacity - first)
        if count > remaining:
            message = f"the template {self.template!r} has {remaining:,} of {self._capacity:,} names left"
            raise NameMisuse("P4", f"{message}; {count:,} were requested")

    def validate(self, handle: Handle) -> None:
        """Reject suffixes that do not follow the template."""
        self._parse_number(handle)

    def _parse_number(self, handle: Handle) -> int:
        try:
            return self.parse(handle.suffix)
        except InvalidName as problem:
            raise relocate_error(problem, handle) from None

    def normalize(self, handle: Handle) -> Handle:
        """Convert the suffix to uppercase."""
        return Handle(handle.prefix, self.format(self._parse_number(handle)))

    def describe(self, handle: Handle) -> Details:
        """The template, the number and the check character."""
        number = self._parse_number(handle)
        check = handle.suffix[-1].upper() if self.has_check else None
        return {"template": self.template, "number": number, "check": check}

    def _make_error(self, position: int, slot: str, character: str) -> InvalidName:
        expected = {_DIGITS: "a digit", ALPHABET: "a PILIN digit"}.get(slot, f'"{slot}"')
        message = f"{format_character(character)} is not allowed: the template {self.template} requires {expected} here"
        return InvalidName("P8", message, position=position, character=character)


def _template_error(template: str) -> NameMisuse:
    for position, mark in enumerate(template):
        last = position == len(template) - 1
        if not _TEMPLATE.fullmatch(mark) and not (mark == _CHECK and last and template != _CHECK):
            message = (
                f"{format_character(mark)} is not allowed in a template; use d, e, a final k, "
                "uppercase PILIN letters, digits and -._~"
            )
            return NameMisuse("P4", message, position=position, character=mark)
    return NameMisuse("P4", "the template is empty")


ENTRY_POINT_GROUP = "perseid.schemes"

_BUILT_IN: dict[str, Callable[..., Scheme]] = {
    kind.name: kind for kind in (PilinScheme, PilinCheckScheme, CordraScheme, UuidScheme, PatternScheme)
}

# In order of specificity. `pattern` has no form of its own.
_RECOGNIZABLE: tuple[Scheme, ...] = (CordraScheme(), UuidScheme(), PilinCheckScheme(), PilinScheme())


def entry_points(**selection: str) -> Any:
    """The entry points of installed packages."""
    from importlib import metadata  # noqa: PLC0415 - takes 10 ms, and most names need none

    return metadata.entry_points(**selection)


def scheme_names() -> list[str]:
    """Names of all available schemes, built-in ones first."""
    others = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - _BUILT_IN.keys()
    return [*_BUILT_IN, *sorted(others)]


def load_scheme(name: str, **options: object) -> Scheme:
    """Load a scheme by name with its options. Plugins cannot replace built-in schemes."""
    factory = _BUILT_IN.get(name) or _load_plugin(name)
    try:
        return factory(**options)
    except TypeError as error:
        raise NameMisuse("P8", f"invalid options for the scheme {name!r}: {error}") from error


def recognize(handle: Handle) -> Scheme | None:
    """Guess the built-in scheme of a handle. Only its namespace knows for sure (U6)."""
    for scheme in _RECOGNIZABLE:
        try:
            scheme.validate(handle)
        except InvalidName:
            continue
        return scheme
    return None


def _load_plugin(name: str) -> Callable[..., Scheme]:
    points = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not points:
        raise NameMisuse("P8", f"unknown scheme {name!r}; available schemes: {', '.join(scheme_names())}")
    point = next(iter(points))
    try:
        return cast("Callable[..., Scheme]", point.load())
    except (ImportError, AttributeError) as error:
        message = f"the scheme {name!r} is installed but cannot be loaded ({point.value}): {error}"
        raise NameMisuse("P8", message) from error
