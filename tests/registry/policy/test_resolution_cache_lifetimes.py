"""Cache lifetimes: the smallest TTL, at most two days; and the TTLs that new values can have."""

import pytest

from perseid.records.record import TtlType, Value
from perseid.registry.commands.lifecycle import Revive, Tombstone
from perseid.registry.commands.records import Add, Create, Modify, Remove
from perseid.registry.policy.resolution import MAX_CACHE_LIFETIME, cache_lifetime, check_ttls, value_lifetime
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.registries import OPERATOR, add_namespace, handle, registry_in_memory

NOW = 1_800_000_000.7
NAME = handle("10.1/x")
NEGATIVE = Value(1, "URL", b"https://example.org/", ttl=-5)


@pytest.mark.parametrize(
    ("ttl", "ttl_type", "seconds"),
    [
        (60, TtlType.RELATIVE, 60),
        (0, TtlType.RELATIVE, 0),
        (-5, TtlType.RELATIVE, 0),
        (400_000, TtlType.RELATIVE, MAX_CACHE_LIFETIME),
        (1_800_000_060, TtlType.ABSOLUTE, 60),
        (1_800_400_000, TtlType.ABSOLUTE, MAX_CACHE_LIFETIME),
        (1, TtlType.ABSOLUTE, 0),
        (60, TtlType(7), 0),
    ],
)
def test_a_value_is_cached_for_its_ttl(ttl: int, ttl_type: TtlType, seconds: int) -> None:
    assert value_lifetime(Value(1, "URL", b"x", ttl, ttl_type), NOW) == seconds


def test_the_smallest_lifetime_applies() -> None:
    values = (Value(1, "A", b"", 600), Value(2, "B", b"", 1_800_000_300, TtlType.ABSOLUTE), Value(3, "C", b""))
    assert cache_lifetime(values, NOW) == 300
    assert cache_lifetime((), NOW) is None


@pytest.mark.parametrize(
    ("ttl", "ttl_type", "words"),
    [
        (0, TtlType.RELATIVE, ""),
        (-5, TtlType.RELATIVE, "must not be negative; it is -5"),
        (0x7FFF_FFFF, TtlType.RELATIVE, ""),
        (int(NOW) + (1 << 31), TtlType.ABSOLUTE, "68 years"),
        (int(NOW) + (1 << 31) - 1, TtlType.ABSOLUTE, ""),
        (int(NOW) - (1 << 31) - 1, TtlType.ABSOLUTE, "68 years"),
        (-5, TtlType.ABSOLUTE, ""),
        (-5, TtlType(7), ""),
    ],
)
def test_new_ttls_are_checked(ttl: int, ttl_type: TtlType, words: str) -> None:
    value = Value(3, "URL", b"x", ttl, ttl_type)
    if not words:
        check_ttls([value], (), int(NOW))
        return
    with pytest.raises(Refused, match=words) as caught:
        check_ttls([value], (), int(NOW))
    assert caught.value.code is ResponseCode.INVALID_VALUE
    assert "value 3" in caught.value.reason
    check_ttls([value], [value], int(NOW))


def test_existing_ttl_is_kept() -> None:
    """A record from another server can be changed, withdrawn and restored, whatever its TTLs."""
    with registry_in_memory() as registry:
        add_namespace(registry, "10.1")
        with pytest.raises(Refused, match="negative"):
            registry.do(Create(NAME, (NEGATIVE,)), OPERATOR, "cli")
        registry.do(Create(NAME, (NEGATIVE,)), OPERATOR, "import")
        registry.do(Add(NAME, (Value(2, "DESC", b"x"),)), OPERATOR, "cli")
        registry.do(Modify(NAME, (Value(1, "URL", b"https://example.org/2", ttl=-5),)), OPERATOR, "cli")
        with pytest.raises(Refused, match="it is -6"):
            registry.do(Modify(NAME, (Value(1, "URL", b"https://example.org/2", ttl=-6),)), OPERATOR, "native")
        registry.do(Remove(NAME, (2,)), OPERATOR, "cli")
        registry.do(Tombstone(NAME, "withdrawn"), OPERATOR, "cli")
        registry.do(Revive(NAME), OPERATOR, "cli")
        with registry.snapshot() as snapshot:
            assert [value.ttl for value in snapshot.stored(NAME).values if value.type == "URL"] == [-5]
