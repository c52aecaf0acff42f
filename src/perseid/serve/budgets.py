"""How much work strangers may cause: by address, in all, and by transport; and how many connections they may have.

What work costs is measured, in seconds of a processor, because no estimate fits: checking a signature takes 50 µs and
checking a secret up to 0.1 s. A budget is a share of a core. Work is let in at a typical price, and when it is done the
difference is settled; so whoever asks for expensive things may ask for fewer of them, and those who ask for cheap ones
never notice.

Everything is kept twice, for UDP and for the others. Addresses over UDP can be forged: a flood there uses up what UDP
may use, and nobody who comes over TCP is refused for it, least of all the one whose address was forged.

Nothing here has a clock or a lock: the control process asks from its event loop, and says what time it is.
"""

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perseid.registry.config import Config

from .limits import Networks, network_of
from .native_steps import Kind

IPV4_SOURCE_BITS: Final = 32
IPV6_SOURCE_BITS: Final = 64
"""How much of an address tells sources apart where addresses are real: a host of IPv6 has a /64 to choose from."""

MAX_SOURCES: Final = 16_384
"""Sources that a budget remembers, in some 2 MiB; the one that was not seen for longest makes room. It gets a full
budget back by that, and the budget in all still holds."""

BURST_SECONDS: Final = 5.0
"""For how long a source that did nothing may do as much at once as it may do in that time."""

OTHER_DESCRIPTORS: Final = 128
"""Descriptors that the process needs beside its connections: databases, sockets, pipes, the log."""

PRICES: Final[Mapping[Kind, float]] = {
    Kind.READ: 0.0005,
    Kind.WRITE: 0.0005,
    Kind.SIGN: 0.001,
    Kind.VERIFY: 0.000_5,
    Kind.AGREE: 0.003,
}
"""What work of each kind typically costs, in seconds of a processor: the price at which it is let in."""


@lru_cache(maxsize=MAX_SOURCES)
def source_of(host: str) -> int:
    """Whom an address counts for: the address itself, or for IPv6 its /64."""
    return network_of(host, IPV4_SOURCE_BITS, IPV6_SOURCE_BITS)


@dataclass(frozen=True, slots=True)
class Rate:
    """So much a second, and so much at once. Nothing a second means that there is no limit."""

    per_second: float
    burst: float

    @classmethod
    def share(cls, percent: float) -> "Rate":
        """A share of a core."""
        return cls(percent / 100, percent / 100 * BURST_SECONDS)


NO_LIMIT: Final = Rate(0, 0)


class Budget:
    """A budget of each source, and one of all sources together."""

    def __init__(self, per_source: Rate, total: Rate, max_sources: int = MAX_SOURCES) -> None:
        self._per_source = per_source
        self._total = total
        self._max_sources = max_sources
        # For each the moment at which it will have its whole budget again; see `limits`. Least recently seen first.
        self._due: dict[int, float] = {}
        self._due_in_all = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def take(self, source: int | None, now: float, cost: float = 1.0) -> bool:
        """Whether a source may have it; then it is counted. None is somebody to whom only the whole budget applies."""
        in_all = _moved(self._due_in_all, self._total, now, cost)
        if _beyond(in_all, self._total, now):
            return False
        if source is not None and self._per_source.per_second:
            due = _moved(self._due.get(source, 0.0), self._per_source, now, cost)
            if _beyond(due, self._per_source, now):
                return False
            self._remember(source, due)
        self._due_in_all = in_all
        return True

    def settle(self, source: int | None, difference: float) -> None:
        """Count what something cost more, or less if it is negative, than was thought when it was taken."""
        if self._total.per_second:
            self._due_in_all += difference / self._total.per_second
        if source is not None and source in self._due:
            self._due[source] += difference / self._per_source.per_second

    def is_used_up(self, source: int | None, now: float, cost: float = 1.0) -> bool:
        """Whether `take` would refuse."""
        if _beyond(_moved(self._due_in_all, self._total, now, cost), self._total, now):
            return True
        rate = self._per_source
        return source is not None and _beyond(_moved(self._due.get(source, 0.0), rate, now, cost), rate, now)

    def _remember(self, source: int, due: float) -> None:
        self._due.pop(source, None)
        self._due[source] = due
        if len(self._due) > self._max_sources:
            del self._due[next(iter(self._due))]


def _moved(due: float, rate: Rate, now: float, cost: float) -> float:
    return max(due, now) + (cost / rate.per_second if rate.per_second else 0.0)


def _beyond(due: float, rate: Rate, now: float) -> bool:
    return rate.per_second > 0 and due - now > rate.burst / rate.per_second


class Budgets:
    """All budgets for work, and the failures that lead to a lock-out."""

    def __init__(self, config: Config) -> None:
        """What is exempt has no budget of its own; what holds in all holds for everybody."""
        self._exempt = Networks(config.limits_exempt_networks)
        shares = {
            Kind.READ: config.limits_read_share,
            Kind.WRITE: config.limits_write_share,
            Kind.SIGN: config.limits_sign_share,
            Kind.VERIFY: config.limits_verify_share,
            Kind.AGREE: config.limits_agree_share,
        }
        self._work = {
            (kind, udp): Budget(Rate.share(percent * config.limits_source_share / 100), Rate.share(percent))
            for kind, whole in shares.items()
            for udp, percent in ((False, whole), (True, whole * config.limits_udp_share / 100))
        }
        failures = Rate(config.limits_failed_proofs / 60, config.limits_failed_proofs)
        self._failures = {udp: Budget(failures, NO_LIMIT) for udp in (False, True)}

    def whose(self, host: str) -> int | None:
        """Whose budget an address uses; None if it needs none."""
        return None if host in self._exempt else source_of(host)

    def take(self, kind: Kind, source: int | None, *, udp: bool, now: float) -> bool:
        """Whether work may be done; then it is paid at its typical price."""
        if kind in _PROVING and self.is_locked_out(source, udp=udp, now=now):
            return False
        return self._work[kind, udp].take(source, now, PRICES[kind])

    def settle(self, kind: Kind, source: int | None, seconds: float, *, udp: bool) -> None:
        """Say what work has cost in the end."""
        self._work[kind, udp].settle(source, seconds - PRICES[kind])

    def failed(self, source: int | None, *, udp: bool, now: float) -> None:
        """Note that somebody failed to prove who they are."""
        if source is not None:
            self._failures[udp].take(source, now)

    def is_locked_out(self, source: int | None, *, udp: bool, now: float) -> bool:
        """Whether somebody failed so often that no proof is looked at until some time has passed."""
        return source is not None and self._failures[udp].is_used_up(source, now)


_PROVING = frozenset((Kind.VERIFY, Kind.AGREE))


class Connections:
    """How many connections there are, in all and of one source, and for how long they may do nothing."""

    def __init__(self, config: Config) -> None:
        self._count: dict[int, int] = {}
        self._total = 0
        self.refused = 0
        """Connections that were not admitted."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Take settings; what is open stays open."""
        self.limit = min(config.limits_connections, _descriptors(config.limits_connections))
        """Connections in all: what the settings say, or what the system lets the process have."""
        self._per_source = config.limits_connections_per_address
        self._exempt = Networks(config.limits_exempt_networks)
        self.message_time: float = config.limits_message_time
        """Seconds in which a whole message must have come."""
        self.idle_time: float = config.limits_idle_time
        """Seconds that a kept connection may be silent between two messages."""
        self.take_time: float = config.limits_take_time
        """Seconds in which a client must take what it asked for."""

    def __len__(self) -> int:
        return self._total

    def admit(self, host: str) -> bool:
        """Whether an address may have another connection; then `leave` has to follow."""
        source = source_of(host)
        count = self._count.get(source, 0)
        if self._total >= self.limit or (count >= self._per_source and host not in self._exempt):
            self.refused += 1
            return False
        self._count[source] = count + 1
        self._total += 1
        return True

    def leave(self, host: str) -> None:
        """Say that a connection has ended which was admitted."""
        source = source_of(host)
        self._total -= 1
        count = self._count[source] - 1
        if count:
            self._count[source] = count
        else:
            del self._count[source]


def _descriptors(wanted: int) -> int:
    """For how many connections the system gives descriptors; as many as wanted if it may be asked for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, soft - OTHER_DESCRIPTORS)
