"""Suffix generation (seed 000) and explanation, for every interface.

Three ways to get a new handle differ in what is stored:

    mint       a record: the handle resolves at once
    reserve    a record that only names the owner: the handle does not resolve yet (S1)
    generate   a durable lease and no record: this service never issues the handle again (P6)

All three are commands of `commands.minting` and require the same permission (S13): the policy's `who_may_mint`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from perseid.names import pilin
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.pilin import ALPHABET, BASE, DIGIT_VALUES
from perseid.names.schemes import Details
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.minting import Generate, Mint, MintInputs
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode


class MintMode(Enum):
    """How new handles are made."""

    MINT = "mint"
    RESERVE = "reserve"
    GENERATE = "generate"

    @property
    def text(self) -> str:
        """Description for people."""
        return _TEXTS[self]


_TEXTS: Final = {
    MintMode.MINT: "New handles with a record each: they resolve at once.",
    MintMode.RESERVE: "New handles that are reserved for you: they resolve once their records are created.",
    MintMode.GENERATE: "New handles without a record: they are never issued again, and no owner is stored.",
}


def build_command(
    mode: MintMode,
    inputs: MintInputs,
    where: str,
    count: int = 1,
    *,
    values: Iterable[Value] = (),
    owner: ValueRef | None = None,
) -> Generate:
    """Return the command for `minting.mint`, or for `Registry.do` up to `MAX_NAMES`.

    Values require `mint`, and an owner requires a record. Raises `Refused`.
    """
    values = tuple(values)
    if values and mode is not MintMode.MINT:
        reason = "A reserved or generated handle has no values"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.MINT_INSTEAD(), "S1")
    if mode is MintMode.GENERATE:
        if owner is not None:
            reason = "A generated handle has no record, so it has no owner"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.RESERVE_INSTEAD(), "S1")
        return Generate(inputs, where, count)
    return Mint(inputs, where, count, values=values, owner=owner, reserve=mode is MintMode.RESERVE)


@dataclass(frozen=True, slots=True)
class SuffixCharacter:
    """One character of a PILIN suffix and its meaning."""

    character: str
    place: int
    """Counted from 1."""
    digit: int
    """Value of the character: 0 to 30."""
    each: int
    """Milliseconds per step: 31 times those of the character before it."""

    @property
    def milliseconds(self) -> int:
        """Milliseconds that it contributes."""
        return self.digit * self.each

    @property
    def text(self) -> str:
        """Explanation for people."""
        return f"{self.character} is {self.digit}, in steps of {_format_duration(self.each)}"

    def to_json(self) -> JsonObject:
        return {
            "character": self.character,
            "place": self.place,
            "digit": self.digit,
            "step": self.each,
            "milliseconds": self.milliseconds,
            "text": self.text,
        }


PILIN_EXPLANATION: Final = (
    f"A PILIN suffix is the millisecond of its request since {pilin.UUID_EPOCH:%Y-%m-%d} UTC, written in {BASE} "
    f"digits, {ALPHABET}: no vowels, so no words can appear. The least significant digit comes first, so consecutive "
    f"handles look different. Until the year 2420 it has {pilin.LENGTH} characters."
)
"""The rules P1 to P4, for people."""


def explain_suffix(suffix: str) -> tuple[SuffixCharacter, ...]:
    """Explain each character of a PILIN suffix, in either case; together they give the millisecond (P1).

    Raises `InvalidName` with the invalid character.
    """
    pilin.decode(suffix)
    return tuple(
        [
            SuffixCharacter(ALPHABET[DIGIT_VALUES[character]], place, DIGIT_VALUES[character], BASE ** (place - 1))
            for place, character in enumerate(suffix, 1)
        ]
    )


def describe_suffix(policy: Policy, handle: Handle) -> Details:
    """Return what a handle alone reveals under its namespace's scheme: time of minting, UUID; empty if nothing."""
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
    """Format a duration in the largest unit that it fills."""
    for unit, length in _TIME_UNITS:
        if milliseconds >= length:
            number = f"{milliseconds / length:.1f}".removesuffix(".0")
            return f"about {number} {unit}{'' if number == '1' else 's'}"
    return f"{milliseconds} millisecond{'' if milliseconds == 1 else 's'}"
