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
from perseid.server.native.authentication import UnfinishedMessages
from perseid.server.native.steps import WorkKind

from .udp import NetworkSet, network_to_int

if TYPE_CHECKING:
    from perseid.server.native.tcp import Connection

IPV4_SOURCE_BITS: Final = 32
IPV6_SOURCE_BITS: Final = 64
"""How much of an address tells sources apart where addresses are real: a host of IPv6 has a /64 to choose from."""

IPV6_CUSTOMER_BITS: Final = 56
IPV6_SITE_BITS: Final = 48
"""What one customer, and one site, commonly have of IPv6: 256 and 65,536 such sources. Hosting companies give a /64 to
each customer, so neither bound could stand for all three."""

CUSTOMER_FACTOR: Final = 2
SITE_FACTOR: Final = 4
"""How many times what one source may have, all of a /56 and all of a /48 may have together."""

LEVEL_FACTORS: Final = (1, CUSTOMER_FACTOR, SITE_FACTOR)
"""The same for the networks of a `Source`, in their order."""

MAX_SOURCES: Final = 16_384
"""Networks that a budget remembers, in some 2 MiB; the one that was not seen for longest makes room. It gets a full
budget back by that, and the budget in all still holds."""

BURST_SECONDS: Final = 5.0
"""For how long a source that did nothing may do as much at once as it may do in that time."""

OTHER_DESCRIPTORS: Final = 128
"""Descriptors that the process needs beside its connections: databases, sockets, pipes, the log."""

PRICES: Final[Mapping[WorkKind, float]] = {
    WorkKind.READ: 0.0005,
    WorkKind.WRITE: 0.0005,
    WorkKind.SIGN: 0.001,
    WorkKind.VERIFY: 0.000_5,
    WorkKind.AGREE: 0.003,
    WorkKind.HANDSHAKE: 0.0005,
}
"""What work of each kind typically costs, in seconds of a processor: the price at which it is let in."""


Source: TypeAlias = tuple[int, ...]
"""Whom something counts for: networks, each in the next one. Nothing for somebody to whom no limit by source applies.
The first of them is what the manual calls an address."""

EXEMPT: Final[Source] = ()

_TAG = 8  # bits in which a network says how long it is, so that none is taken for one of another length


@lru_cache(maxsize=MAX_SOURCES)
def get_source(host: str) -> Source:
    """Whom an address counts for: for itself, or for IPv6 its /64, and the networks around that."""
    if network_to_int(host, IPV4_SOURCE_BITS, 0):  # of IPv6 nothing is left, of IPv4 at least the mark of it
        lengths: tuple[int, ...] = (IPV4_SOURCE_BITS,)
    else:
        lengths = (IPV6_SOURCE_BITS, IPV6_CUSTOMER_BITS, IPV6_SITE_BITS)
    return tuple(network_to_int(host, bits, bits) << _TAG | bits for bits in lengths)


@dataclass(frozen=True, slots=True)
class Rate:
    """So much a second, and so much at once. Nothing a second means that there is no limit."""

    per_second: float
    burst: float

    @classmethod
    def share(cls, percent: float) -> "Rate":
        """A share of a core."""
        return cls(percent / 100, percent / 100 * BURST_SECONDS)

    def scale(self, factor: float) -> "Rate":
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
        known_factor: float = 1.0,
        reserved: float = 0.0,
        max_sources: int = MAX_SOURCES,
    ) -> None:
        self._has_source_limit = per_source.per_second > 0
        self._rates = {
            known: tuple(per_source.scale(scale * (known_factor if known else 1.0)) for scale in LEVEL_FACTORS)
            for known in (False, True)
        }
        self._total = total
        self._unknown_rate = total.scale(1.0 - reserved)
        self._max_sources = max_sources
        # For each the moment at which it will have its whole budget again; see `limits`. Least recently seen first.
        self._due: dict[int, float] = {}
        self._due_total = 0.0
        self._due_unknown = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def take(self, source: Source, now: float, cost: float = 1.0, *, known: bool = False) -> bool:
        """Whether a source may have it; then it is counted."""
        due_by_network = self._compute_due(source, now, cost, known=known)
        if due_by_network is None:
            return False
        for network, due in due_by_network.items():
            self._remember(network, due)
        self._due_total = _advance_due(self._due_total, self._total, now, cost)
        if source and not known:
            self._due_unknown = _advance_due(self._due_unknown, self._unknown_rate, now, cost)
        return True

    def settle(self, source: Source, difference: float, *, known: bool = False) -> None:
        """Count what something cost more, or less if it is negative, than was thought when it was taken."""
        if self._total.per_second:
            self._due_total += difference / self._total.per_second
            if source and not known:
                self._due_unknown += difference / self._unknown_rate.per_second
        for network, rate in zip(source, self._rates[known], strict=False):
            if network in self._due:
                self._due[network] += difference / rate.per_second

    def is_exhausted(self, source: Source, now: float, cost: float = 1.0, *, known: bool = False) -> bool:
        """Whether `take` would refuse."""
        return self._compute_due(source, now, cost, known=known) is None

    def _compute_due(self, source: Source, now: float, cost: float, *, known: bool) -> dict[int, float] | None:
        """What is due of each network of a source if it takes something; None if that is too much for anybody."""
        if _exceeds_rate(self._due_total, self._total, now, cost):
            return None
        if source and not known and _exceeds_rate(self._due_unknown, self._unknown_rate, now, cost):
            return None
        due_by_network: dict[int, float] = {}
        if self._has_source_limit:
            for network, rate in zip(source, self._rates[known], strict=False):
                due = self._due.get(network, 0.0)
                if _exceeds_rate(due, rate, now, cost):
                    return None
                due_by_network[network] = _advance_due(due, rate, now, cost)
        return due_by_network

    def _remember(self, network: int, due: float) -> None:
        self._due.pop(network, None)
        self._due[network] = due
        if len(self._due) > self._max_sources:
            del self._due[next(iter(self._due))]


def _advance_due(due: float, rate: Rate, now: float, cost: float) -> float:
    return max(due, now) + (cost / rate.per_second if rate.per_second else 0.0)


def _exceeds_rate(due: float, rate: Rate, now: float, cost: float) -> bool:
    """Whether something costs more than is left; what costs more than there can ever be needs all of that."""
    if not rate.per_second:
        return False
    return _advance_due(due, rate, now, min(cost, rate.burst)) - now > rate.burst / rate.per_second


class RecentSet:
    """Some things that were seen, of which the one that was not seen for longest makes room."""

    def __init__(self, max_size: int = MAX_SOURCES) -> None:
        self._max_size = max_size
        self._items: dict[Hashable, None] = {}

    def __contains__(self, item: Hashable) -> bool:
        return item in self._items

    def add(self, item: Hashable) -> None:
        """Note that something was seen."""
        self._items.pop(item, None)
        self._items[item] = None
        if len(self._items) > self._max_size:
            del self._items[next(iter(self._items))]


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
        self._exempt = NetworkSet(config.limits_exempt_networks)
        shares = {
            WorkKind.READ: config.limits_read_share,
            WorkKind.WRITE: config.limits_write_share,
            WorkKind.SIGN: config.limits_sign_share,
            WorkKind.VERIFY: config.limits_verify_share,
            WorkKind.AGREE: config.limits_agree_share,
            WorkKind.HANDSHAKE: config.limits_handshake_share,
        }
        known_factor = max(1.0, config.limits_proved_source_share / config.limits_source_share)
        reserved = config.limits_reserved_share / 100
        self._work = {
            (kind, udp): Budget(
                Rate.share(percent * config.limits_source_share / 100),
                Rate.share(percent),
                known_factor=known_factor,
                reserved=reserved,
            )
            for kind, whole in shares.items()
            for udp, percent in ((False, whole), (True, whole * config.limits_udp_share / 100))
        }
        failures = Rate(config.limits_failed_proofs / 60, config.limits_failed_proofs)
        self._failures = {udp: Budget(failures, NO_LIMIT) for udp in (False, True)}
        self._wrong_guesses = {udp: Budget(failures, NO_LIMIT) for udp in (False, True)}
        if old is None:
            self._known = {udp: RecentSet() for udp in (False, True)}
            self._right_guesses = {udp: RecentSet() for udp in (False, True)}
        else:
            self._known, self._right_guesses = old._known, old._right_guesses  # noqa: SLF001 - its own kind

    def source_for(self, host: str) -> Source:
        """Whose budget an address uses."""
        return EXEMPT if host in self._exempt else get_source(host)

    def take(
        self,
        kind: WorkKind,
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
        is_proof = kind in _PROOF_KINDS or secret_of is not None
        if is_proof and self.is_locked_out(source, udp=udp, now=now):
            return False
        if secret_of is not None and self._is_secret_locked(secret_of, source, udp=udp, now=now):
            return False
        cost = PRICES[kind] if price is None else price
        return self._work[kind, udp].take(source, now, cost, known=self.is_known(source, udp=udp))

    def settle(self, kind: WorkKind, source: Source, seconds: float, *, udp: bool, price: float | None = None) -> None:
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

    def record_guess(self, secret_of: bytes, source: Source, *, right: bool, udp: bool, now: float) -> None:
        """Note what an answer came to that VERIFY_CHALLENGE asked about."""
        target = _hash_handle(secret_of)
        if not right:
            self.failed(source, udp=udp, now=now)
            self._wrong_guesses[udp].take((target,), now)
        else:  # of those without a limit by source nothing is left, so that together they are one
            self._right_guesses[udp].add((source[:1], target))

    def is_locked_out(self, source: Source, *, udp: bool, now: float) -> bool:
        """Whether somebody failed so often that no proof is looked at until some time has passed."""
        return bool(source) and self._failures[udp].is_exhausted(source, now)

    def _is_secret_locked(self, secret_of: bytes, source: Source, *, udp: bool, now: float) -> bool:
        """Whether so many answers about a handle were wrong that a source gets no other one judged for a while."""
        target = _hash_handle(secret_of)
        if (source[:1], target) in self._right_guesses[udp]:
            return False
        return self._wrong_guesses[udp].is_exhausted((target,), now)


_PROOF_KINDS = frozenset((WorkKind.VERIFY, WorkKind.AGREE))


def _hash_handle(handle: bytes) -> int:
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
        self.unfinished: UnfinishedMessages[Connection] = UnfinishedMessages()
        """What has come over them of messages that are not whole."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Take settings; what is open stays open."""
        self.limit = min(config.limits_connections, _raise_descriptor_limit(config.limits_connections))
        """Connections in all: what the settings say, or what the system lets the process have."""
        self._per_source = config.limits_connections_per_address
        self._exempt = NetworkSet(config.limits_exempt_networks)
        self.unfinished.limit = config.limits_tcp_unfinished_octets
        self.message_timeout: float = config.limits_message_time
        """Seconds in which a whole message must have come."""
        self.idle_timeout: float = config.limits_idle_time
        """Seconds that a kept connection may be silent between two messages."""
        self.write_timeout: float = config.limits_take_time
        """Seconds in which a client must take what it asked for."""

    def __len__(self) -> int:
        return self._total

    def admit(self, host: str) -> bool:
        """Whether an address may have another connection; then `leave` has to follow."""
        source = get_source(host)
        if self._total >= self.limit or (not self._has_room(source) and host not in self._exempt):
            self.refused += 1
            return False
        for network in source:
            self._count[network] = self._count.get(network, 0) + 1
        self._total += 1
        return True

    def _has_room(self, source: Source) -> bool:
        levels = zip(source, LEVEL_FACTORS, strict=False)
        return all(self._count.get(network, 0) < self._per_source * scale for network, scale in levels)

    def leave(self, host: str) -> None:
        """Say that a connection has ended which was admitted."""
        self._total -= 1
        for network in get_source(host):
            count = self._count[network] - 1
            if count:
                self._count[network] = count
            else:
                del self._count[network]


def _raise_descriptor_limit(wanted: int) -> int:
    """For how many connections the system gives descriptors; as many as wanted if it may be asked for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, soft - OTHER_DESCRIPTORS)
