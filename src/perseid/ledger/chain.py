"""The chain of one record's entries: from the latest one back to any moment in a few steps.

Each entry points to the previous one of its record, and to one further back. How far is fixed by the entry's place
in the chain: write its place as a sum of numbers 2^k - 1, the largest first; the last of them is the distance. (1, 1+1,
3, 3+1, 3+1+1, 3+3, 7 …: the skew binary numbers.) So every entry needs two pointers only, and the entry that was the
latest at a given moment is found in a number of steps that grows with the logarithm of the chain's length.
"""

from collections.abc import Callable

Links = Callable[[int], tuple[int, int]]
"""`links(seq)` → (previous, jump) of an entry."""


def jump_place(place: int) -> int:
    """The place in the chain, from 1, to which the entry at a place jumps; 0 is before the first."""
    rest, weight = place, 0
    while rest:
        weight = (1 << (rest + 1).bit_length() - 1) - 1
        rest -= weight
    return place - weight


def jump_of_next(place: int, latest: int, links: Links) -> int:
    """The jump of an entry that is put behind `latest`, to stand at a place; 0 for a first one."""
    if place == 1:
        return 0
    if jump_place(place) == place - 1:
        return latest
    # By construction it jumps to where the jump of its predecessor jumps to.
    _, middle = links(latest)
    return links(middle)[1] if middle else 0


def latest_until(seq: int, until: int, links: Links) -> int:
    """The last entry of a chain, whose latest is `seq`, that is not behind `until`; 0 if there is none."""
    while seq > until:
        previous, jump = links(seq)
        seq = jump if jump > until else previous
    return seq
