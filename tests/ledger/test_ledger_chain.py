"""The chain of a record's entries: few steps to any point, however long it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log.entry import find_latest_until, jump_target, next_jump


class Chain:
    """A chain with the given entry numbers, which counts the steps."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.links: dict[int, tuple[int, int]] = {}
        self.steps = 0
        latest = 0
        for place, seq in enumerate(numbers, 1):
            self.links[seq] = (latest, next_jump(place, latest, self.links.__getitem__))
            latest = seq
        self.latest = latest

    def step(self, seq: int) -> tuple[int, int]:
        self.steps += 1
        return self.links[seq]


def test_jump_targets_follow_the_skew_binary_sum() -> None:
    assert [jump_target(place) for place in range(1, 16)] == [0, 1, 0, 3, 4, 3, 0, 7, 8, 7, 10, 11, 10, 7, 0]


@given(st.integers(1, 300))
def test_every_entry_jumps_to_the_defined_position(length: int) -> None:
    chain = Chain(list(range(1, length + 1)))
    assert {seq: jump for seq, (_, jump) in chain.links.items()} == {
        place: jump_target(place) for place in range(1, length + 1)
    }


@given(st.sets(st.integers(1, 500), min_size=1, max_size=80), st.integers(0, 510))
def test_last_entry_up_to_a_point_is_found(numbers: set[int], until: int) -> None:
    chain = Chain(sorted(numbers))
    expected = max((number for number in numbers if number <= until), default=0)
    assert find_latest_until(chain.latest, until, chain.links.__getitem__) == expected


@pytest.mark.parametrize("length", [10, 1_000, 100_000])
def test_the_steps_grow_with_the_logarithm_of_the_length(length: int) -> None:
    chain = Chain(list(range(1, length + 1)))
    most = 0
    for until in range(1, length + 1, max(1, length // 500)):
        chain.steps = 0
        assert find_latest_until(chain.latest, until, chain.step) == until
        most = max(most, chain.steps)
    assert most <= 3 * length.bit_length()
