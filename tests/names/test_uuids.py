"""The scheme `uuid`: lowercase UUIDs of versions 1, 4 and 7, generated from a source's clock and random bytes."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.cordra import UuidScheme, UuidVersion, generate_uuid
from perseid.names.handle import Handle
from tests.names.support import NOON, FakeClock, error_fields, misuse_error, name_error
from tests.strategies import utf_8_texts

TEXT = "f58fb49e-b1f8-48f0-a606-e84cef294be5"
VERSIONS: tuple[UuidVersion, ...] = (1, 4, 7)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("byte", [0x00, 0x5A, 0xFF])
def test_generated_uuid_has_its_version_and_variant(version: UuidVersion, byte: int) -> None:
    generated = generate_uuid(version, FakeClock().source(byte))
    assert (generated.version, generated.variant) == (version, uuid.RFC_4122)
    assert UuidScheme(version).mint(FakeClock().source(byte)) == [str(generated)]
    assert UuidScheme(version).describe(Handle("10.1", str(generated))) == {"version": version}


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_version_7_starts_with_the_unix_millisecond_and_ends_with_random_bits(byte: int) -> None:
    number = generate_uuid(7, FakeClock().source(byte)).int
    assert number >> 80 == NOON
    fixed = 0xF << 76 | 0x3 << 62
    randomness = int.from_bytes(bytes([byte] * 10), "big")
    assert number & ((1 << 80) - 1) & ~fixed == randomness & ~fixed


def test_version_7_names_sort_by_age() -> None:
    fake_clock = FakeClock()
    source = fake_clock.source(0xFF)
    names = []
    for _ in range(5):
        names += UuidScheme(7).mint(source)
        fake_clock.now += 1
    assert names == sorted(names)
    assert len(set(names)) == 5


def test_version_1_has_the_time_in_tenths_of_microseconds() -> None:
    generated = generate_uuid(1, FakeClock().source(0x11))
    assert generated.time == NOON * 10_000 + 0x01B21DD213814000
    assert generated.node == 0x111111111111
    assert generate_uuid(1, FakeClock(now=0).source()).time == 0x01B21DD213814000


def test_version_4_is_the_default_and_random() -> None:
    draws = iter([bytes(range(16)), bytes(range(16, 32))])
    source = FakeClock().source()
    generated = [
        generate_uuid(4, type(source)(source.clock, lambda _: next(draws), source.lease, source.sleep)) for _ in "ab"
    ]
    assert [str(each) for each in generated] == [
        "00010203-0405-4607-8809-0a0b0c0d0e0f",
        "10111213-1415-4617-9819-1a1b1c1d1e1f",
    ]
    assert UuidScheme() == UuidScheme(4)


def test_other_versions_are_misuse() -> None:
    for version in (0, 2, 3, 5, 6, 8, "4"):
        assert misuse_error(UuidScheme, version).rule == "P8"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_requested_number_is_minted(count: int) -> None:
    assert len(UuidScheme().mint(FakeClock().source(), count)) == count


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
        assert error_fields(name_error(method, Handle("10.1", suffix))) == ("P8", 5 + position, character)


def test_uuid_is_normalized_to_lowercase_and_described_with_its_version() -> None:
    assert UuidScheme().normalize(Handle("10.1", TEXT.upper())) == Handle("10.1", TEXT)
    assert UuidScheme().describe(Handle("10.1", TEXT.upper())) == {"version": 4}
    assert UuidScheme().describe(Handle("10.1", str(uuid.UUID(int=0)))) == {"version": None}


@given(st.uuids(), st.booleans())
def test_every_uuid_is_valid_and_normalizing_twice_changes_nothing(value: uuid.UUID, uppercase: bool) -> None:
    text = str(value).upper() if uppercase else str(value)
    normalized = UuidScheme().normalize(Handle("10.1", text))
    assert normalized == UuidScheme().normalize(normalized) == Handle("10.1", str(value))


@given(utf_8_texts().filter(bool))
def test_arbitrary_text_is_refused_with_a_position(text: str) -> None:
    position = name_error(UuidScheme().validate, Handle("10.1", text)).position
    assert position is not None
    assert 5 <= position <= 5 + len(text)
