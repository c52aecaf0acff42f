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
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from perseid.registry.installation.settings import Config
from perseid.server.native.authentication import Unfinished
from perseid.server.native.steps import Kind

from .udp import Networks, network_of

if TYPE_CHECKING:
    from perseid.server.native.tcp import Connection

IPV4_SOURCE_BITS: Final = 32
IPV6_SOURCE_BITS: Final = 64
"""How much of an address tells sources apart where addresses are real: a host of IPv6 has a /64 to choose from."""

IPV6_CUSTOMER_BITS: Final = 56
IPV6_SITE_BITS: Final = 48
"""What one customer, and one site, commonly have of IPv6: 256 and 65,536 such sources. Hosting companies give a /64 to
each customer, so neither bound could stand for all three."""

CUSTOMER_TIMES: Final = 2
SITE_TIMES: Final = 4
"""How many times what one source may have, all of a /56 and all of a /48 may have together."""

LEVEL_TIMES: Final = (1, CUSTOMER_TIMES, SITE_TIMES)
"""The same for the networks of a `Source`, in their order."""

MAX_SOURCES: Final = 16_384
"""Networks that a budget remembers, in some 2 MiB; the one that was not seen for longest makes room. It gets a full
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
    Kind.HANDSHAKE: 0.0005,
}
"""What work of each kind typically costs, in seconds of a processor: the price at which it is let in."""


Source: TypeAlias = tuple[int, ...]
"""Whom something counts for: networks, each in the next one. Nothing for somebody to whom no limit by source applies.
The first of them is what the manual calls an address."""

EXEMPT: Final[Source] = ()

_TAG = 8  # bits in which a network says how long it is, so that none is taken for one of another length


@lru_cache(maxsize=MAX_SOURCES)
def source_of(host: str) -> Source:
    """Whom an address counts for: for itself, or for IPv6 its /64, and the networks around that."""
    if network_of(host, IPV4_SOURCE_BITS, 0):  # of IPv6 nothing is left, of IPv4 at least the mark of it
        lengths: tuple[int, ...] = (IPV4_SOURCE_BITS,)
    else:
        lengths = (IPV6_SOURCE_BITS, IPV6_CUSTOMER_BITS, IPV6_SITE_BITS)
    return tuple(network_of(host, bits, bits) << _TAG | bits for bits in lengths)


@dataclass(frozen=True, slots=True)
class Rate:
    """So much a second, and so much at once. Nothing a second means that there is no limit."""

    per_second: float
    burst: float

    @classmethod
    def share(cls, percent: float) -> "Rate":
        """A share of a core."""
        return cls(percent / 100, percent / 100 * BURST_SECONDS)

    def times(self, factor: float) -> "Rate":
        """So many times as much."""
        return Rate(self.per_second * factor, self.burst * factor)


NO_LIMIT: Final = Rate(0, 0)


class Budget:
    """A budget of each source, and one of all sources together.

    Known sources, from which somebody has proved who they are, have so many times the share of others; and so much of
    the whole is reserved for them and for who is exempt. So strangers, however many addresses they have, never use up
    all of it.
    """

    def __init__(
        self,
        per_source: Rate,
        total: Rate,
        *,
        known_times: float = 1.0,
        reserved: float = 0.0,
        max_sources: int = MAX_SOURCES,
    ) -> None:
        self._limits_sources = per_source.per_second > 0
        self._rates = {
            known: tuple(per_source.times(times * (known_times if known else 1.0)) for times in LEVEL_TIMES)
            for known in (False, True)
        }
        self._total = total
        self._of_strangers = total.times(1.0 - reserved)
        self._max_sources = max_sources
        # For each the moment at which it will have its whole budget again; see `limits`. Least recently seen first.
        self._due: dict[int, float] = {}
        self._due_in_all = 0.0
        self._due_of_strangers = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def take(self, source: Source, now: float, cost: float = 1.0, *, known: bool = False) -> bool:
        """Whether a source may have it; then it is counted."""
        taken = self._taken(source, now, cost, known=known)
        if taken is None:
            return False
        for network, due in taken.items():
            self._remember(network, due)
        self._due_in_all = _moved(self._due_in_all, self._total, now, cost)
        if source and not known:
            self._due_of_strangers = _moved(self._due_of_strangers, self._of_strangers, now, cost)
        return True

    def settle(self, source: Source, difference: float, *, known: bool = False) -> None:
        """Count what something cost more, or less if it is negative, than was thought when it was taken."""
        if self._total.per_second:
            self._due_in_all += difference / self._total.per_second
            if source and not known:
                self._due_of_strangers += difference / self._of_strangers.per_second
        for network, rate in zip(source, self._rates[known], strict=False):
            if network in self._due:
                self._due[network] += difference / rate.per_second

    def is_used_up(self, source: Source, now: float, cost: float = 1.0, *, known: bool = False) -> bool:
        """Whether `take` would refuse."""
        return self._taken(source, now, cost, known=known) is None

    def _taken(self, source: Source, now: float, cost: float, *, known: bool) -> dict[int, float] | None:
        """What is due of each network of a source if it takes something; None if that is too much for anybody."""
        if _is_too_much(self._due_in_all, self._total, now, cost):
            return None
        if source and not known and _is_too_much(self._due_of_strangers, self._of_strangers, now, cost):
            return None
        taken: dict[int, float] = {}
        if self._limits_sources:
            for network, rate in zip(source, self._rates[known], strict=False):
                due = self._due.get(network, 0.0)
                if _is_too_much(due, rate, now, cost):
                    return None
                taken[network] = _moved(due, rate, now, cost)
        return taken

    def _remember(self, network: int, due: float) -> None:
        self._due.pop(network, None)
        self._due[network] = due
        if len(self._due) > self._max_sources:
            del self._due[next(iter(self._due))]


def _moved(due: float, rate: Rate, now: float, cost: float) -> float:
    return max(due, now) + (cost / rate.per_second if rate.per_second else 0.0)


def _is_too_much(due: float, rate: Rate, now: float, cost: float) -> bool:
    """Whether something costs more than is left; what costs more than there can ever be needs all of that."""
    if not rate.per_second:
        return False
    return _moved(due, rate, now, min(cost, rate.burst)) - now > rate.burst / rate.per_second


class Recent:
    """Some things that were seen, of which the one that was not seen for longest makes room."""

    def __init__(self, most: int = MAX_SOURCES) -> None:
        self._most = most
        self._seen: dict[Hashable, None] = {}

    def __contains__(self, thing: Hashable) -> bool:
        return thing in self._seen

    def add(self, thing: Hashable) -> None:
        """Note that something was seen."""
        self._seen.pop(thing, None)
        self._seen[thing] = None
        if len(self._seen) > self._most:
            del self._seen[next(iter(self._seen))]


class Budgets:
    """All budgets for work, and the failures that lead to a lock-out.

    There are two lock-outs. An address that failed too often has no proof looked at. And where VERIFY_CHALLENGE was too
    often about wrong answers for one handle, from wherever, it judges no more of them: many addresses do not give many
    guesses. That second one any stranger can bring about, so it touches nobody who proves their own identity here, nor
    a server whose questions about that handle had right answers before.
    """

    def __init__(self, config: Config, old: "Budgets | None" = None) -> None:
        """What is exempt has no budget of its own; what holds in all holds for everybody.

        Who is known is known still if there were `old` budgets, with other settings.
        """
        self._exempt = Networks(config.limits_exempt_networks)
        shares = {
            Kind.READ: config.limits_read_share,
            Kind.WRITE: config.limits_write_share,
            Kind.SIGN: config.limits_sign_share,
            Kind.VERIFY: config.limits_verify_share,
            Kind.AGREE: config.limits_agree_share,
            Kind.HANDSHAKE: config.limits_handshake_share,
        }
        known_times = max(1.0, config.limits_proved_source_share / config.limits_source_share)
        reserved = config.limits_reserved_share / 100
        self._work = {
            (kind, udp): Budget(
                Rate.share(percent * config.limits_source_share / 100),
                Rate.share(percent),
                known_times=known_times,
                reserved=reserved,
            )
            for kind, whole in shares.items()
            for udp, percent in ((False, whole), (True, whole * config.limits_udp_share / 100))
        }
        failures = Rate(config.limits_failed_proofs / 60, config.limits_failed_proofs)
        self._failures = {udp: Budget(failures, NO_LIMIT) for udp in (False, True)}
        self._wrong_guesses = {udp: Budget(failures, NO_LIMIT) for udp in (False, True)}
        if old is None:
            self._known = {udp: Recent() for udp in (False, True)}
            self._right_guesses = {udp: Recent() for udp in (False, True)}
        else:
            self._known, self._right_guesses = old._known, old._right_guesses  # noqa: SLF001 - its own kind

    def whose(self, host: str) -> Source:
        """Whose budget an address uses."""
        return EXEMPT if host in self._exempt else source_of(host)

    def take(
        self,
        kind: Kind,
        source: Source,
        *,
        udp: bool,
        now: float,
        secret_of: bytes | None = None,
        price: float | None = None,
    ) -> bool:
        """Whether work may be done; then it is paid at its typical price, or at another one if that is known.

        If it is to answer VERIFY_CHALLENGE, `secret_of` says whose secret that is about.
        """
        proving = kind in _PROVING or secret_of is not None
        if proving and self.is_locked_out(source, udp=udp, now=now):
            return False
        if secret_of is not None and self._is_guessed_at(secret_of, source, udp=udp, now=now):
            return False
        cost = PRICES[kind] if price is None else price
        return self._work[kind, udp].take(source, now, cost, known=self.is_known(source, udp=udp))

    def settle(self, kind: Kind, source: Source, seconds: float, *, udp: bool, price: float | None = None) -> None:
        """Say what work has cost in the end, for which that price was paid."""
        paid = PRICES[kind] if price is None else price
        self._work[kind, udp].settle(source, seconds - paid, known=self.is_known(source, udp=udp))

    def proved(self, source: Source, *, udp: bool) -> None:
        """Note that somebody has proved who they are."""
        if source:
            self._known[udp].add(source[0])

    def is_known(self, source: Source, *, udp: bool) -> bool:
        """Whether somebody at that address has proved who they are, not too long ago."""
        return bool(source) and source[0] in self._known[udp]

    def failed(self, source: Source, *, udp: bool, now: float) -> None:
        """Note that somebody failed to prove who they are."""
        if source:
            self._failures[udp].take(source, now)

    def guessed(self, secret_of: bytes, source: Source, *, right: bool, udp: bool, now: float) -> None:
        """Note what an answer came to that VERIFY_CHALLENGE asked about."""
        target = _target(secret_of)
        if not right:
            self.failed(source, udp=udp, now=now)
            self._wrong_guesses[udp].take((target,), now)
        else:  # of those without a limit by source nothing is left, so that together they are one
            self._right_guesses[udp].add((source[:1], target))

    def is_locked_out(self, source: Source, *, udp: bool, now: float) -> bool:
        """Whether somebody failed so often that no proof is looked at until some time has passed."""
        return bool(source) and self._failures[udp].is_used_up(source, now)

    def _is_guessed_at(self, secret_of: bytes, source: Source, *, udp: bool, now: float) -> bool:
        """Whether so many answers about a handle were wrong that a source gets no other one judged for a while."""
        target = _target(secret_of)
        if (source[:1], target) in self._right_guesses[udp]:
            return False
        return self._wrong_guesses[udp].is_used_up((target,), now)


_PROVING = frozenset((Kind.VERIFY, Kind.AGREE))


def _target(handle: bytes) -> int:
    """A handle as a number, however its letters are written: names are long, and there may be many of them.

    Its indexes are not told apart. Index 0 stands for all of them, so each would be a way around the others.
    """
    return hash(handle.upper())


class Connections:
    """How many connections there are, in all and of one source, and for how long they may do nothing."""

    def __init__(self, config: Config) -> None:
        self._count: dict[int, int] = {}
        self._total = 0
        self.refused = 0
        """Connections that were not admitted."""
        self.unfinished: Unfinished[Connection] = Unfinished()
        """What has come over them of messages that are not whole."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Take settings; what is open stays open."""
        self.limit = min(config.limits_connections, _descriptors(config.limits_connections))
        """Connections in all: what the settings say, or what the system lets the process have."""
        self._per_source = config.limits_connections_per_address
        self._exempt = Networks(config.limits_exempt_networks)
        self.unfinished.limit = config.limits_tcp_unfinished_octets
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
        if self._total >= self.limit or (not self._has_room(source) and host not in self._exempt):
            self.refused += 1
            return False
        for network in source:
            self._count[network] = self._count.get(network, 0) + 1
        self._total += 1
        return True

    def _has_room(self, source: Source) -> bool:
        levels = zip(source, LEVEL_TIMES, strict=False)
        return all(self._count.get(network, 0) < self._per_source * times for network, times in levels)

    def leave(self, host: str) -> None:
        """Say that a connection has ended which was admitted."""
        self._total -= 1
        for network in source_of(host):
            count = self._count[network] - 1
            if count:
                self._count[network] = count
            else:
                del self._count[network]


def _descriptors(wanted: int) -> int:
    """For how many connections the system gives descriptors; as many as wanted if it may be asked for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, soft - OTHER_DESCRIPTORS)
