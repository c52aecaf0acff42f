"""The fuzz targets of records, on their seeds and on seeds with something changed: a smoke test, always the same."""

import random

import pytest

from fuzz.records import SEEDS, TARGETS, fuzz


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_survives_its_seeds_and_what_is_made_of_them(target: str) -> None:
    number = list(TARGETS).index(target)
    chance = random.Random(number)
    seeds = [seed[1:] for seed in SEEDS if seed[0] == number] or [b"", b"x"]
    for seed in seeds:
        TARGETS[target](seed)
    for _ in range(200):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            place = chance.randint(0, len(data))
            data[place : place + chance.choice((0, 1, 1, 4))] = chance.randbytes(chance.choice((0, 1, 1, 4)))
        TARGETS[target](bytes(data))


def test_the_first_byte_chooses_the_target() -> None:
    fuzz(b"")
    for seed in SEEDS[::10]:
        fuzz(seed)
