"""What `perseid check` finds, and how bad it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is: what the operator must do something about is wrong; what is worth knowing is a note."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one part of an installation."""

    about: str
    level: Level
    message: str
    advice: str = ""
    """What to do about it."""


def is_wrong(found: Iterable[Finding]) -> bool:
    """Whether there is something that must be done."""
    return any(finding.level is Level.WRONG for finding in found)
