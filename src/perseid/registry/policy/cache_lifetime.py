"""Cache lifetimes: which TTLs new values can have, and how long clients can cache a response with values.

One rule applies to every interface: the smallest TTL of the values, at most two days. A relative TTL is a number of
seconds, an absolute one the time left until then; neither is ever less than zero. An unknown TTL type allows no
caching. Interfaces decide only whether a response can be cached at all, and by whom.

A new relative TTL is not negative: servers and clients read such a number differently. An absolute one is less than 68
years from now, because times have 32 bits on the wire and mean the one nearest to now.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from perseid.records.value import TtlType, Value
from perseid.registry.advice import AdviceKind
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

MAX_CACHE_LIFETIME: Final = 172_800
"""Seconds for which a response is cached at most: two days, so that a changed target takes effect in that time."""

_MAX_TTL_DISTANCE: Final = 1 << 31


def cache_lifetime(values: Iterable[Value], now: float) -> int | None:
    """Seconds for which a response with these values can be cached; None for no values."""
    lifetimes = [value_lifetime(value, now) for value in values]
    return min(lifetimes) if lifetimes else None


def value_lifetime(value: Value, now: float) -> int:
    """Seconds for which a value can be cached."""
    lifetimes = {TtlType.RELATIVE: value.ttl, TtlType.ABSOLUTE: value.ttl - int(now)}  # there are other types
    return max(0, min(lifetimes.get(value.ttl_type, 0), MAX_CACHE_LIFETIME))


def check_ttls(values: Sequence[Value], known: Iterable[Value], now: int) -> None:
    """Refuse new TTLs that others would read differently. `known` are values whose TTLs are not new."""
    wrong = [value for value in values if _ttl_problem(value, now)]
    if not wrong:
        return
    existing = {(value.ttl, value.ttl_type) for value in known}
    for value in wrong:
        if (value.ttl, value.ttl_type) not in existing:
            reason = f"The TTL of value {value.index} {_ttl_problem(value, now)}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.USE_TTL())


def _ttl_problem(value: Value, now: int) -> str:
    """What is wrong with a TTL; empty if nothing is."""
    is_relative, is_absolute = value.ttl_type is TtlType.RELATIVE, value.ttl_type is TtlType.ABSOLUTE
    if is_relative and value.ttl < 0:
        return f"must not be negative; it is {value.ttl}"
    if is_absolute and not -_MAX_TTL_DISTANCE <= value.ttl - now < _MAX_TTL_DISTANCE:
        return "must be less than 68 years from now"
    return ""
