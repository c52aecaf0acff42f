"""Cache lifetimes: the smallest TTL, at most two days."""

import pytest

from perseid.records.value import TtlType, Value
from perseid.registry.policy.cache_lifetime import MAX_CACHE_LIFETIME, cache_lifetime, value_lifetime

NOW = 1_800_000_000.7


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
