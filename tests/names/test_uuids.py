"""The scheme `uuid`: versions 1, 4 and 7 as text in lower case, made from a given clock and given randomness."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.names.uuids import UuidScheme, UuidVersion, generate_uuid
from tests.names.support import NOON, World, facts, misused, refused
from tests.strategies import utf_8_texts

TEXT = "f58fb49e-b1f8-48f0-a606-e84cef294be5"
VERSIONS: tuple[UuidVersion, ...] = (1, 4, 7)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("byte", [0x00, 0x5A, 0xFF])
def test_every_version_is_marked_as_what_it_is(version: UuidVersion, byte: int) -> None:
    made = generate_uuid(version, World().source(byte))
    assert (made.version, made.variant) == (version, uuid.RFC_4122)
    assert UuidScheme(version).mint(World().source(byte)) == [str(made)]
    assert UuidScheme(version).describe(Handle("10.1", str(made))) == {"version": version}


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_version_7_begins_with_the_unix_millisecond_and_ends_with_randomness(byte: int) -> None:
    number = generate_uuid(7, World().source(byte)).int
    assert number >> 80 == NOON
    fixed = 0xF << 76 | 0x3 << 62
    randomness = int.from_bytes(bytes([byte] * 10), "big")
    assert number & ((1 << 80) - 1) & ~fixed == randomness & ~fixed


def test_version_7_names_sort_by_age() -> None:
    world = World()
    source = world.source(0xFF)
    names = []
    for _ in range(5):
        names += UuidScheme(7).mint(source)
        world.now += 1
    assert names == sorted(names)
    assert len(set(names)) == 5


def test_version_1_holds_the_time_in_tenths_of_microseconds() -> None:
    made = generate_uuid(1, World().source(0x11))
    assert made.time == NOON * 10_000 + 0x01B21DD213814000
    assert made.node == 0x111111111111
    assert generate_uuid(1, World(now=0).source()).time == 0x01B21DD213814000


def test_version_4_is_the_default_and_random_throughout() -> None:
    draws = iter([bytes(range(16)), bytes(range(16, 32))])
    source = World().source()
    made = [
        generate_uuid(4, type(source)(source.clock, lambda _: next(draws), source.lease, source.sleep)) for _ in "ab"
    ]
    assert [str(each) for each in made] == [
        "00010203-0405-4607-8809-0a0b0c0d0e0f",
        "10111213-1415-4617-9819-1a1b1c1d1e1f",
    ]
    assert UuidScheme() == UuidScheme(4)


def test_other_versions_cannot_be_made() -> None:
    for version in (0, 2, 3, 5, 6, 8, "4"):
        assert misused(UuidScheme, version).rule == "P8"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_requested_number_is_minted(count: int) -> None:
    assert len(UuidScheme().mint(World().source(), count)) == count


@pytest.mark.parametrize(
    ("suffix", "position", "character"),
    [
        ("x", 0, "x"),
        ("g" + TEXT[1:], 0, "g"),
        (TEXT[:-1], 35, None),
        (TEXT + "0", 36, None),
        (TEXT.replace("-", ""), 8, "b"),
        (TEXT[:8] + "_" + TEXT[9:], 8, "_"),
        (TEXT[:7] + "-" + TEXT[8:], 7, "-"),
        ("{" + TEXT + "}", 0, "{"),
        ("urn:uuid:" + TEXT, 0, "u"),
        (TEXT[:-1] + "\uff11", 35, "\uff11"),
        (TEXT + "\n", 36, None),
    ],
)
def test_invalid_uuid_with_hyphens_is_refused_with_its_position(
    suffix: str, position: int, character: str | None
) -> None:
    for method in (UuidScheme().validate, UuidScheme().normalize):
        assert facts(refused(method, Handle("10.1", suffix))) == ("P8", 5 + position, character)


def test_a_uuid_is_normalized_to_lowercase_and_tells_its_version_if_it_has_one() -> None:
    assert UuidScheme().normalize(Handle("10.1", TEXT.upper())) == Handle("10.1", TEXT)
    assert UuidScheme().describe(Handle("10.1", TEXT.upper())) == {"version": 4}
    assert UuidScheme().describe(Handle("10.1", str(uuid.UUID(int=0)))) == {"version": None}


@given(st.uuids(), st.booleans())
def test_every_uuid_is_valid_and_normalizing_twice_changes_nothing(value: uuid.UUID, capitals: bool) -> None:
    text = str(value).upper() if capitals else str(value)
    once = UuidScheme().normalize(Handle("10.1", text))
    assert once == UuidScheme().normalize(once) == Handle("10.1", str(value))


@given(utf_8_texts().filter(bool))
def test_arbitrary_text_is_refused_with_a_place(text: str) -> None:
    position = refused(UuidScheme().validate, Handle("10.1", text)).position
    assert position is not None
    assert 5 <= position <= 5 + len(text)
