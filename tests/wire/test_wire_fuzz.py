"""The fuzz targets: each accepts its seeds, which include the recorded vectors, and mutations of them."""

import random

import pytest

from fuzz.wire import SEEDS, TARGETS, WORDS, fuzz
from perseid.wire.message import Credential

NAMES = list(TARGETS)


def mutate(seed: bytes, chance: random.Random) -> bytes:
    """A seed with a few bytes changed, inserted or deleted."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(1, len(data)) if len(data) > 1 else 0
        match chance.randrange(4):
            case 0 if place:
                data[place] = chance.randrange(256)
            case 1:
                data[place or 1 : place or 1] = chance.choice(WORDS)
            case 2 if place:
                del data[place : place + chance.randrange(1, 20)]
            case _ if place:
                word = chance.choice(WORDS)
                data[place : place + len(word)] = word
    return bytes(data)


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_fuzz_target_accepts_its_seeds_and_their_mutations(index: int) -> None:
    seeds = [seed for seed in SEEDS if seed[0] == index]
    assert len(seeds) > 50
    chance = random.Random(index)
    # The two endpoint targets start a server each time, so they use fewer seeds.
    several = seeds[::5] if NAMES[index] in ("server", "client") else seeds
    for seed in several:
        fuzz(seed)
        fuzz(mutate(seed, chance))


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_fuzz_target_accepts_very_short_input(index: int) -> None:
    for data in (b"", b"\0", b"\xff", bytes(20), b"\xff" * 44):
        fuzz(bytes((index,)) + data)
    fuzz(b"")


def test_fuzz_target_reports_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in SEEDS if seed[0] == NAMES.index("credential") and b"HS_MAC" in seed)
    data = seed[1:]
    data = data[data.index(b"HS_MAC") - 16 :]
    TARGETS["credential"](data)
    monkeypatch.setattr(Credential, "to_bytes", lambda _: b"")
    with pytest.raises(AssertionError, match="a credential has one form"):
        TARGETS["credential"](data)
