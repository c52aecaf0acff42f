"""Protocol of suffix schemes, built-in (`pilin`, `cordra`, `uuid`, `pattern`) and third-party.

A scheme mints and validates the suffixes of a namespace. It has no state: clock, randomness and leases come in a
`Source`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .allocator import DEFAULT_MAX_AHEAD, DEFAULT_MAX_WAIT, Lease
from .errors import InvalidName, NameMisuse
from .handle import Handle

Details: TypeAlias = Mapping[str, str | int | None]
"""Facts that a scheme derives from a suffix, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Source:
    """Clock, randomness and leases of a scheme."""

    clock: Callable[[], int]
    """Unix time in nanoseconds, like `time.time_ns`."""
    random: Callable[[int], bytes]
    """Returns N unpredictable bytes, like `secrets.token_bytes`."""
    lease: Lease
    """Reserves numbers: see `allocator`."""
    sleep: Callable[[float], None]
    """Waits for N seconds, like `time.sleep`."""
    max_ahead: int = DEFAULT_MAX_AHEAD
    """Milliseconds that a time-based suffix may run ahead of the clock; see `allocator.STRICT_CLOCK`."""
    max_wait: int | None = DEFAULT_MAX_WAIT
    """Milliseconds to wait for the clock before giving up; None waits forever."""


class Scheme(Protocol):
    """A way to create suffixes. Methods other than `mint` take whole handles because a scheme may restrict prefixes.

    A scheme whose suffixes end with a check character can set `has_check = True`; suggestions then try more.
    """

    @property
    def name(self) -> str:
        """The name in policies, such as `pilin`."""
        ...

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """Create `count` suffixes, none of which was minted before from the same source."""
        ...

    def validate(self, handle: Handle) -> None:
        """Raise InvalidName if the handle does not follow the scheme."""
        ...

    def normalize(self, handle: Handle) -> Handle:
        """The canonical spelling; raises like `validate`."""
        ...

    def describe(self, handle: Handle) -> Details:
        """Facts about a valid handle; raises like `validate`."""
        ...


def check_count(count: int) -> None:
    """Reject a negative number of names."""
    if count < 0:
        raise NameMisuse("P6", f"cannot mint {count} names")


def relocate_error(problem: InvalidName, handle: Handle) -> InvalidName:
    """Convert the position of an error from the suffix to the whole handle."""
    return problem.with_position(None if problem.position is None else len(handle.prefix) + 1 + problem.position)
