"""The generator of suffixes (seed 000), for every door: what can be asked for, and what a suffix says.

There are three ways to get a new name, and they differ in what is kept of it:

    mint       a record: the name stands for something at once
    reserve    a record that only says whose the name is: nobody can resolve it yet (S1)
    generate   a durable lease, and no record: this service never gives the name to anybody else (P6)

All three are operations of `minting` and demand the same right (S13): what the policy's `who_may_mint` says.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from perseid.names import pilin
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.pilin import ALPHABET, BASE, DIGIT_VALUES
from perseid.names.suffix_scheme import Details
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value, ValueRef
from perseid.registry.commands.minting import Generate, Mint, MintInputs
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode


class MintMode(Enum):
    """What is asked for."""

    MINT = "mint"
    RESERVE = "reserve"
    GENERATE = "generate"

    @property
    def text(self) -> str:
        """What it does, for people."""
        return _TEXTS[self]


_TEXTS: Final = {
    MintMode.MINT: "New names with a record each: they stand for something, and everybody can resolve them.",
    MintMode.RESERVE: "New names that are yours and stand for nothing yet: they resolve once they are created.",
    MintMode.GENERATE: (
        "New names and nothing else: nobody is given them again, and no record is kept of whose they are."
    ),
}


def build_command(
    making: MintMode,
    inputs: MintInputs,
    where: str,
    count: int = 1,
    *,
    values: Iterable[Value] = (),
    owner: ValueRef | None = None,
) -> Generate:
    """What `minting.mint`, or `Registry.do` for up to `MAX_NAMES`, is asked to carry out.

    Values go with `mint` only, and an owner with what has a record. Raises `Refused`.
    """
    values = tuple(values)
    if values and making is not MintMode.MINT:
        reason = "a name that is reserved or generated stands for nothing yet, so it has no values"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "mint it, or give the values when it is created", "S1")
    if making is MintMode.GENERATE:
        if owner is not None:
            reason = "of a name that is generated no record is kept, so it has no owner"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "reserve it instead", "S1")
        return Generate(inputs, where, count)
    return Mint(inputs, where, count, values=values, owner=owner, reserve=making is MintMode.RESERVE)


@dataclass(frozen=True, slots=True)
class SuffixCharacter:
    """One character of a PILIN suffix, and what it says."""

    character: str
    place: int
    """From 1, as people count."""
    digit: int
    """What the character stands for: 0 to 30."""
    each: int
    """How many milliseconds one step of it is: 31 times as many as one of the character before it."""

    @property
    def milliseconds(self) -> int:
        """How many milliseconds it adds to the whole."""
        return self.digit * self.each

    @property
    def text(self) -> str:
        """The same for people."""
        return f"{self.character} is {self.digit}, counted in steps of {_format_duration(self.each)}"

    def to_json(self) -> JsonObject:
        """As a plain object."""
        return {
            "character": self.character,
            "place": self.place,
            "digit": self.digit,
            "step": self.each,
            "milliseconds": self.milliseconds,
            "text": self.text,
        }


PILIN_EXPLANATION: Final = (
    f"A PILIN suffix is the millisecond in which it was asked for, counted from {pilin.UUID_EPOCH:%Y-%m-%d} in UTC and "
    f"written in {BASE} digits, {ALPHABET}: no vowels, so that no words come about. The last digit stands first: "
    f"names made one after the other look different. Until the year 2420 it has {pilin.LENGTH} characters."
)
"""The rules P1 to P4, for people."""


def explain_suffix(suffix: str) -> tuple[SuffixCharacter, ...]:
    """What each character of a PILIN suffix, in either case, says; together they are the millisecond (P1).

    Raises `InvalidName` for what is none, with the character that is at fault.
    """
    pilin.decode(suffix)
    return tuple(
        [
            SuffixCharacter(ALPHABET[DIGIT_VALUES[character]], place, DIGIT_VALUES[character], BASE ** (place - 1))
            for place, character in enumerate(suffix, 1)
        ]
    )


def describe_suffix(policy: Policy, handle: Handle) -> Details:
    """What the scheme of a namespace tells from a name alone: when it was minted, which UUID it is; nothing if none."""
    try:
        scheme = policy.suffix_scheme()
        return {} if scheme is None else scheme.describe(handle)
    except (InvalidName, InvalidPolicy):
        return {}


_TIME_UNITS: Final = (
    ("year", 31_556_952_000),
    ("day", 86_400_000),
    ("hour", 3_600_000),
    ("minute", 60_000),
    ("second", 1_000),
)


def _format_duration(milliseconds: int) -> str:
    """A length of time in the largest unit that it has one of."""
    for unit, length in _TIME_UNITS:
        if milliseconds >= length:
            number = f"{milliseconds / length:.1f}".removesuffix(".0")
            return f"about {number} {unit}{'' if number == '1' else 's'}"
    return f"{milliseconds} millisecond{'' if milliseconds == 1 else 's'}"
