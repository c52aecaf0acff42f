"""Deterministic smoke test of the fuzz targets of records, on their seeds and on mutated seeds."""

import random

import pytest

from fuzz.records import SEEDS, TARGETS, fuzz


@pytest.mark.parametrize("target", TARGETS)
def test_target_accepts_its_seeds_and_mutations(target: str) -> None:
    number = list(TARGETS).index(target)
    generator = random.Random(number)
    seeds = [seed[1:] for seed in SEEDS if seed[0] == number] or [b"", b"x"]
    for seed in seeds:
        TARGETS[target](seed)
    for _ in range(200):
        data = bytearray(generator.choice(seeds))
        for _ in range(generator.randint(1, 4)):
            position = generator.randint(0, len(data))
            data[position : position + generator.choice((0, 1, 1, 4))] = generator.randbytes(
                generator.choice((0, 1, 1, 4))
            )
        TARGETS[target](bytes(data))


def test_first_byte_selects_the_target() -> None:
    fuzz(b"")
    for seed in SEEDS[::10]:
        fuzz(seed)
