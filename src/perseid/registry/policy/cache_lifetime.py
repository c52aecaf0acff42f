"""Cache lifetimes: how long clients can cache a response with values.

One rule applies to every interface: the smallest TTL of the values, at most two days. A relative TTL is a number of
seconds, an absolute one the time left until then; neither is ever less than zero. An unknown TTL type allows no
caching. Interfaces decide only whether a response can be cached at all, and by whom.
"""

from collections.abc import Iterable
from typing import Final

from perseid.records.value import TtlType, Value

MAX_CACHE_LIFETIME: Final = 172_800
"""Seconds for which a response is cached at most: two days, so that a changed target takes effect in that time."""


def cache_lifetime(values: Iterable[Value], now: float) -> int | None:
    """Seconds for which a response with these values can be cached; None for no values."""
    lifetimes = [value_lifetime(value, now) for value in values]
    return min(lifetimes) if lifetimes else None


def value_lifetime(value: Value, now: float) -> int:
    """Seconds for which a value can be cached."""
    if value.ttl_type == TtlType.RELATIVE:
        seconds = value.ttl
    elif value.ttl_type == TtlType.ABSOLUTE:
        seconds = value.ttl - int(now)
    else:
        seconds = 0
    return max(0, min(seconds, MAX_CACHE_LIFETIME))
