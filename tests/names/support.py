"""Helpers for the tests of names: expected errors, and a fake clock with sleep and leases."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.schemes import MemoryLease, Source

T = TypeVar("T")

NOON = 1_700_000_000_000
"""Start time of the fake clock, in milliseconds of the Unix epoch."""


def name_error(call: Callable[..., object], *arguments: object) -> InvalidName:
    """The InvalidName that the call must raise."""
    with pytest.raises(InvalidName) as caught:
        call(*arguments)
    return caught.value


def misuse_error(call: Callable[..., object], *arguments: object, **options: object) -> NameMisuse:
    """The NameMisuse that the call must raise."""
    with pytest.raises(NameMisuse) as caught:
        call(*arguments, **options)
    return caught.value


def attempt(call: Callable[..., T], *arguments: object) -> T | InvalidName:
    """The result of the call, or its InvalidName; any other error fails the test."""
    try:
        return call(*arguments)
    except InvalidName as problem:
        return problem


def error_fields(problem: InvalidName) -> tuple[str, int | None, str | None]:
    """Rule, position and character of an error."""
    return problem.rule, problem.position, problem.character


@dataclass
class FakeClock:
    """A fake clock in milliseconds that moves only on sleep or when the test sets it."""

    now: int = NOON
    slept: list[float] = field(default_factory=list)

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * 1000)

    def source(self, byte: int = 0, max_ahead: int = 3_600_000) -> Source:
        """A source whose randomness is one byte repeated."""
        return Source(
            clock=lambda: self.now * 1_000_000,
            random=lambda count: bytes([byte]) * count,
            lease=MemoryLease(),
            sleep=self.sleep,
            max_ahead=max_ahead,
        )
