"""What the tests of names share: catching refusals, and a world of their own with clock, sleep and leases."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from perseid.names.allocator import MemoryLease
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.suffix_scheme import Source

T = TypeVar("T")

NOON = 1_700_000_000_000
"""The millisecond (of the Unix epoch) at which a fake world begins."""


def refused(call: Callable[..., object], *arguments: object) -> InvalidName:
    """The objection that the call must raise."""
    with pytest.raises(InvalidName) as caught:
        call(*arguments)
    return caught.value


def misused(call: Callable[..., object], *arguments: object, **options: object) -> NameMisuse:
    """The complaint about the caller that the call must raise."""
    with pytest.raises(NameMisuse) as caught:
        call(*arguments, **options)
    return caught.value


def attempt(call: Callable[..., T], *arguments: object) -> T | InvalidName:
    """What the call answers, or its objection; any other error passes and fails the test."""
    try:
        return call(*arguments)
    except InvalidName as problem:
        return problem


def facts(problem: InvalidName) -> tuple[str, int | None, str | None]:
    """What a program reads from an objection."""
    return problem.rule, problem.position, problem.character


@dataclass
class World:
    """A clock in milliseconds that moves only when somebody sleeps or the test says so."""

    now: int = NOON
    slept: list[float] = field(default_factory=list)

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * 1000)

    def source(self, byte: int = 0, max_ahead: int = 3_600_000) -> Source:
        """What a scheme needs; randomness is one byte repeated."""
        return Source(
            clock=lambda: self.now * 1_000_000,
            random=lambda count: bytes([byte]) * count,
            lease=MemoryLease(),
            sleep=self.sleep,
            max_ahead=max_ahead,
        )
