"""What operations answer: typed values, and refusals that carry the protocol's code and a sentence for people.

The rules that refusals name by their ids, explained: those for names, and those of the registry.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Self

from perseid.ledger.log.entry import State
from perseid.names.errors import load_rules as name_rules
from perseid.names.handle import Handle
from perseid.records.value import Value
from perseid.registry.access.authorization import Decision
from perseid.registry.policy.policy import Refusal, Subject
from perseid.wire.codes import ResponseCode


class Refused(Exception):
    """An operation was not carried out. Nothing has changed."""

    def __init__(self, code: ResponseCode, reason: str, advice: str = "", rule: str = "") -> None:
        super().__init__(reason if not advice else f"{reason}. {advice[:1].upper()}{advice[1:]}")
        self.code = code
        """What the protocol answers."""
        self.reason = reason
        """What was wrong."""
        self.advice = advice
        """What to do about it."""
        self.rule = rule
        """The id of the requirement, or the policy's line, that stood in the way."""

    @classmethod
    def from_decision(cls, decision: Decision) -> Self:
        """The refusal of somebody who may not."""
        return cls(decision.code or ResponseCode.INVALID_ADMIN, decision.reason, decision.advice)

    @classmethod
    def from_refusals(cls, refusals: list[Refusal]) -> Self:
        """The refusal of a policy; of several objections the first is told, as the protocol has room for one."""
        first = refusals[0]
        code = ResponseCode.INVALID_HANDLE if first.subject is Subject.NAME else ResponseCode.INVALID_VALUE
        reason = f"{first.message}; the policy of this namespace says: {first.line}"
        return cls(code, reason, first.remedy, first.line)


class InvalidQuery(Refused):
    """A question has the right form, and there is no answer to it."""

    def __init__(self, reason: str, advice: str = "", rule: str = "") -> None:
        super().__init__(ResponseCode.INVALID_VALUE, reason, advice, rule)


class ReferralError(Refused):
    """Another service holds what was asked for."""

    def __init__(self, values: tuple[Value, ...]) -> None:
        super().__init__(ResponseCode.PREFIX_REFERRAL, "another service holds the handles of this prefix")
        self.values = values
        """The values that say which."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """A record was changed, or was already what it should become."""

    handle: Handle
    """The name as it is registered."""
    seq: int
    """The entry that did it, or the last one of the record if nothing had to be done."""
    overwritten: bool = False
    """Whether something that was there was replaced."""


@dataclass(frozen=True, slots=True)
class MintResult:
    """New names."""

    handles: tuple[Handle, ...]
    seq: int
    """The entry of the first; those of the others follow."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name stands for."""

    handle: Handle
    """The name as it was asked for."""
    registered: Handle
    """The name as it is registered."""
    state: State
    values: tuple[Value, ...]
    """The values that were asked for and may be seen, by ascending index."""
    seq: int
    """The entry that says so."""
    at: int
    """When that was written, in microseconds since 1970."""
    query: str | None = None
    fragment: str | None = None
    """What a CORDRA name had behind it; for the caller (C5)."""
    by_template: bool = False
    """Whether a template made the values: there is no record of that name."""
    base: Handle | None = None
    """The name that they were made from, if it has a record."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether an operation would be carried out, and why or why not."""

    allowed: bool
    reason: str
    code: ResponseCode | None = None
    advice: str = ""
    rule: str = ""


@cache
def rules() -> dict[str, dict[str, str]]:
    """Title and text of each rule by its id, in the order of their letters and numbers."""
    own: dict[str, dict[str, str]] = tomllib.loads(
        files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    )
    found = {**name_rules(), **own}
    letters = list(dict.fromkeys(key[0] for key in found))
    return dict(sorted(found.items(), key=lambda item: (letters.index(item[0][0]), int(item[0][1:]))))
