"""What a suffix scheme is: the one small protocol behind which `pilin`, `cordra`, `uuid`, `pattern` and those of
third parties stand.

A scheme says how suffixes of a namespace are made and which ones belong there. It has no state and asks for
everything it needs: clock, randomness and leases come in a `Source`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .allocator import DEFAULT_MAX_AHEAD, DEFAULT_MAX_WAIT, Lease
from .errors import InvalidName, NameMisuse
from .handle import Handle

Details: TypeAlias = Mapping[str, str | int | None]
"""What a scheme can tell from a suffix alone; plain values, ready to be shown as JSON."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a scheme takes what must come from outside."""

    clock: Callable[[], int]
    """Unix time in nanoseconds, like `time.time_ns`."""
    random: Callable[[int], bytes]
    """So many unpredictable bytes, like `secrets.token_bytes`."""
    lease: Lease
    """Numbers that nobody else gets: see `allocator`."""
    sleep: Callable[[float], None]
    """Waits for so many seconds, like `time.sleep`."""
    max_ahead: int = DEFAULT_MAX_AHEAD
    """How many milliseconds a suffix made from the time may run ahead of the clock; see `allocator.STRICT_CLOCK`."""
    max_wait: int | None = DEFAULT_MAX_WAIT
    """How many milliseconds to wait for the clock at a time before giving up; None waits without end."""


class Scheme(Protocol):
    """One way to make suffixes. Methods but `mint` take whole handles because a scheme may restrict prefixes.

    A scheme whose names end with a check character may say so with an attribute `has_check`; then suggestions try more.
    """

    @property
    def name(self) -> str:
        """The name a policy uses: `pilin`."""
        ...

    def mint(self, source: Source, count: int = 1) -> list[str]:
        """So many new suffixes, none of which the scheme ever made before from the same source."""
        ...

    def validate(self, handle: Handle) -> None:
        """Raise InvalidName if the handle does not belong in a namespace of this scheme."""
        ...

    def normalize(self, handle: Handle) -> Handle:
        """The spelling the scheme prefers; raises like `validate`."""
        ...

    def describe(self, handle: Handle) -> Details:
        """What a valid handle tells about itself."""
        ...


def check_count(count: int) -> None:
    """Refuse to mint fewer than no names."""
    if count < 0:
        raise NameMisuse("P6", f"{count} names cannot be minted")


def relocate_error(problem: InvalidName, handle: Handle) -> InvalidName:
    """A problem found in the suffix, with its position in the whole handle, which is what the caller gave."""
    return problem.with_position(None if problem.position is None else len(handle.prefix) + 1 + problem.position)
