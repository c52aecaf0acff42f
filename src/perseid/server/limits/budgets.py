"""Budgets for the work and the connections of clients: by source, in total, and by transport.

Costs are measured in CPU seconds, because no estimate fits: checking a signature takes 50 µs and checking a secret up
to 0.1 s. A budget is a share of a core. Work is admitted at a typical price, and the difference is settled when it is
done; so clients that ask for expensive work get less of it, and the others never notice.

UDP and other transports are counted separately. Addresses over UDP can be forged: a flood there uses up the budget of
UDP, and no client over TCP is refused for it, least of all the one whose address was forged.

Budgets are in memory that all processes share, see `buckets`. Nothing here has a clock or a lock: event loops call it
and pass the time.
"""

import hashlib
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Final

from perseid.registry.installation.settings import Config
from perseid.server.native.authentication import UnfinishedMessages
from perseid.server.native.work import WorkKind

from .buckets import Buckets
from .connections import ConnectionLimits, SharedConnections
from .guesses import KnownClients, Source
from .udp import NetworkSet, network_to_int

if TYPE_CHECKING:
    from perseid.server.native.tcp import Connection

IPV4_SOURCE_BITS: Final = 32
IPV6_SOURCE_BITS: Final = 64
"""Bits of an address that identify a source where addresses are real: an IPv6 host has a /64 to choose from."""

IPV6_CUSTOMER_BITS: Final = 56
IPV6_SITE_BITS: Final = 48
"""What one customer and one site commonly have of IPv6: 256 and 65,536 sources. Hosting companies give each customer a
/64, so one limit would not suit all three."""

CUSTOMER_FACTOR: Final = 2
SITE_FACTOR: Final = 4
"""The limit of a whole /56 and of a whole /48, as a multiple of the limit of one source."""

LEVEL_FACTORS: Final = (1, CUSTOMER_FACTOR, SITE_FACTOR)
"""The same for the networks of a `Source`, in their order."""

MAX_SOURCES: Final = 16_384
"""Addresses whose networks are cached, in some 2 MiB."""

BURST_SECONDS: Final = 5.0
"""Seconds of its budget that an idle source can use at once."""

OTHER_DESCRIPTORS: Final = 128
"""File descriptors that the process needs besides its connections: databases, sockets, pipes, the log. Those that a
thread of the compiled module has accepted beyond the limits are added."""

PRICES: Final[Mapping[WorkKind, float]] = {
    WorkKind.READ: 0.0005,
    WorkKind.WRITE: 0.0005,
    WorkKind.SIGN: 0.001,
    WorkKind.VERIFY: 0.000_5,
    WorkKind.AGREE: 0.003,
    WorkKind.HANDSHAKE: 0.0005,
}
"""Typical cost of each kind of work in CPU seconds: the price at which it is admitted."""

PROOF_KINDS: Final = frozenset((WorkKind.VERIFY, WorkKind.AGREE))
"""Work that a source with many failures is refused."""


EXEMPT: Final[Source] = ()

_TAG = 8  # bits for the length of a network, so that networks of different lengths differ


@lru_cache(maxsize=MAX_SOURCES)
def get_source(host: str) -> Source:
    """Return the networks of an address: itself, or for IPv6 its /64 and the networks around it."""
    if network_to_int(host, IPV4_SOURCE_BITS, 0):  # IPv6 becomes 0; IPv4 keeps its marker bit
        lengths: tuple[int, ...] = (IPV4_SOURCE_BITS,)
    else:
        lengths = (IPV6_SOURCE_BITS, IPV6_CUSTOMER_BITS, IPV6_SITE_BITS)
    return tuple(network_to_int(host, bits, bits) << _TAG | bits for bits in lengths)


@dataclass(frozen=True, slots=True)
class Rate:
    """An amount per second, and a burst. Zero per second means no limit."""

    per_second: float
    burst: float

    @classmethod
    def share(cls, percent: float) -> "Rate":
        """Return a share of a core."""
        return cls(percent / 100, percent / 100 * BURST_SECONDS)

    def scale(self, factor: float) -> "Rate":
        return Rate(self.per_second * factor, self.burst * factor)


NO_LIMIT: Final = Rate(0, 0)


class Budget:
    """A budget for each source, and a total one.

    Known sources, where somebody has authenticated, have `known_factor` times the share of others, and the part
    `reserved` of the total is for them and for exempt clients. So anonymous clients never use up all of it, however
    many addresses they have.
    """

    def __init__(
        self,
        per_source: Rate,
        total: Rate,
        *,
        known_factor: float = 1.0,
        reserved: float = 0.0,
        buckets: Buckets | None = None,
        number: int = 0,
    ) -> None:
        """`buckets` are those of all processes, in which the budget has its number; without, it is of this process."""
        self._has_source_limit = per_source.per_second > 0
        self._rates = {
            known: tuple(per_source.scale(scale * (known_factor if known else 1.0)) for scale in LEVEL_FACTORS)
            for known in (False, True)
        }
        self._total = total
        self._unknown_rate = total.scale(1.0 - reserved)
        self._buckets = Buckets.private() if buckets is None else buckets
        self._words = self._buckets.words
        self._number = number
        self._total_word, self._unknown_word = self._buckets.totals(number)

    def take(self, source: Source, now: float, cost: float = 1.0, *, known: bool = False) -> bool:
        """Charge a source; return whether it was within the limits. If not, nothing is charged."""
        words, is_unknown = self._words, bool(source) and not known
        if self._is_total_exceeded(now, cost, is_unknown=is_unknown):
            return False
        charges = []
        if self._has_source_limit:
            for network, rate in zip(source, self._rates[known], strict=False):
                slots = self._buckets.slots(self._number, network)
                due = self._buckets.due(slots)
                if _exceeds_rate(due, rate, now, cost):
                    return False
                charges.append((slots, due, _advance_due(due, rate, now, cost)))
        for slots, due, new in charges:
            self._buckets.change(slots, due, new)
        if self._total.per_second:
            words[self._total_word] = _advance_due(words[self._total_word], self._total, now, cost)
            if is_unknown:
                words[self._unknown_word] = _advance_due(words[self._unknown_word], self._unknown_rate, now, cost)
        return True

    def settle(self, source: Source, difference: float, *, known: bool = False) -> None:
        """Charge the difference between the actual and the assumed cost; it may be negative."""
        if self._total.per_second:
            self._words[self._total_word] += difference / self._total.per_second
            if source and not known:
                self._words[self._unknown_word] += difference / self._unknown_rate.per_second
        if self._has_source_limit:
            for network, rate in zip(source, self._rates[known], strict=False):
                slots = self._buckets.slots(self._number, network)
                due = self._buckets.due(slots)
                self._buckets.change(slots, due, due + difference / rate.per_second)

    def is_exhausted(self, source: Source, now: float, cost: float = 1.0, *, known: bool = False) -> bool:
        """Whether `take` would refuse."""
        if self._is_total_exceeded(now, cost, is_unknown=bool(source) and not known):
            return True
        levels = zip(source, self._rates[known], strict=False)
        return self._has_source_limit and any(_exceeds_rate(self._due(net), rate, now, cost) for net, rate in levels)

    def delay(self, source: Source, now: float) -> float:
        """Seconds until one unit more is within the limits of a source."""
        levels = zip(source, self._rates[False], strict=False)
        return max([0.0, *(self._due(net) - now - (rate.burst - 1) / rate.per_second for net, rate in levels)])

    def _is_total_exceeded(self, now: float, cost: float, *, is_unknown: bool) -> bool:
        words = self._words
        return bool(self._total.per_second) and (
            _exceeds_rate(words[self._total_word], self._total, now, cost)
            or (is_unknown and _exceeds_rate(words[self._unknown_word], self._unknown_rate, now, cost))
        )

    def _due(self, network: int) -> float:
        return self._buckets.due(self._buckets.slots(self._number, network))


def _advance_due(due: float, rate: Rate, now: float, cost: float) -> float:
    return max(due, now) + (cost / rate.per_second if rate.per_second else 0.0)


def _exceeds_rate(due: float, rate: Rate, now: float, cost: float) -> bool:
    """Whether the cost exceeds the rest of the budget; one above the burst needs the whole burst."""
    if not rate.per_second:
        return False
    return _advance_due(due, rate, now, min(cost, rate.burst)) - now > rate.burst / rate.per_second


class Budgets:
    """All budgets for work, and those for guesses at secrets.

    After too many failures, authentication is refused for an address. And the wrong secrets of one handle are limited
    over all addresses, so that many addresses do not give many guesses. Anybody can use up that budget, so addresses
    where the handle's secret was proved do not need it, and others wait for it: see `guesses`. Proofs to this server
    and VERIFY_CHALLENGE, which checks the secret for another server, have separate budgets.
    """

    def __init__(self, config: Config, known: KnownClients, buckets: Buckets | None = None) -> None:
        """Exempt networks have no budget of their own, but total budgets apply.

        `buckets` are those of all processes; None for budgets of this process.
        """
        buckets = Buckets.private() if buckets is None else buckets
        numbers = count()  # the same budgets in the same order in every process
        exempt = NetworkSet(config.limits.exempt_networks)
        self.source_for = lru_cache(MAX_SOURCES)(lambda host: EXEMPT if host in exempt else get_source(host))
        """Return the source whose budget an address uses. Each request needs it several times."""
        shares = {
            WorkKind.READ: config.limits.read_share,
            WorkKind.WRITE: config.limits.write_share,
            WorkKind.SIGN: config.limits.sign_share,
            WorkKind.VERIFY: config.limits.verify_share,
            WorkKind.AGREE: config.limits.agree_share,
            WorkKind.HANDSHAKE: config.limits.handshake_share,
        }
        known_factor = max(1.0, config.limits.proved_source_share / config.limits.source_share)
        reserved = config.limits.reserved_share / 100
        self._work = {
            (kind, udp): Budget(
                Rate.share(percent * config.limits.source_share / 100),
                Rate.share(percent),
                known_factor=known_factor,
                reserved=reserved,
                buckets=buckets,
                number=next(numbers),
            )
            for kind, whole in shares.items()
            for udp, percent in ((False, whole), (True, whole * config.limits.udp_share / 100))
        }
        failures = Rate(config.limits.failed_proofs / 60, config.limits.failed_proofs)
        self._failures, self._guesses = (
            {udp: Budget(failures, NO_LIMIT, buckets=buckets, number=next(numbers)) for udp in (False, True)}
            for _ in range(2)
        )
        self.turn_seconds = 60 / config.limits.failed_proofs
        """Seconds from one attempt at a secret to the next, once the budget is used up."""
        self._known = known

    def take(
        self,
        kind: WorkKind,
        source: Source,
        *,
        udp: bool,
        now: float,
        price: float | None = None,
    ) -> bool:
        """Charge work at its typical price, or at `price` if that is known; return whether it is allowed."""
        if kind in PROOF_KINDS and self.is_locked_out(source, udp=udp, now=now):
            return False
        cost = PRICES[kind] if price is None else price
        return self._work[kind, udp].take(source, now, cost, known=self.is_known(source, udp=udp))

    def settle(self, kind: WorkKind, source: Source, seconds: float, *, udp: bool, price: float | None = None) -> None:
        """Correct the charge of finished work to its actual cost."""
        paid = PRICES[kind] if price is None else price
        self._work[kind, udp].settle(source, seconds - paid, known=self.is_known(source, udp=udp))

    def record_proof(self, source: Source, *, udp: bool) -> None:
        """Record a successful authentication."""
        if source:
            self._known.add(source, udp=udp)

    def is_known(self, source: Source, *, udp: bool) -> bool:
        """Whether somebody at that address has authenticated recently."""
        return bool(source) and self._known.contains(source, udp=udp)

    def record_failure(self, source: Source, *, udp: bool, now: float) -> None:
        """Record a failed authentication."""
        if source:
            self._failures[udp].take(source, now)

    def is_locked_out(self, source: Source, *, udp: bool, now: float) -> bool:
        """Whether a source failed so often that authentication is refused for a while."""
        return bool(source) and self._failures[udp].is_exhausted(source, now)

    def is_proved(self, secret_of: bytes, source: Source, *, udp: bool) -> bool:
        """Whether a secret of the handle was proved at that address recently."""
        return self._known.contains(source, secret_of, udp=udp)

    def take_guess(self, secret_of: bytes, *, udp: bool, now: float) -> bool:
        """Charge an attempt at a secret before it is made, where it was not proved; return whether it is allowed."""
        return self._guesses[udp].take(_to_source(secret_of), now)

    def refund_guess(self, secret_of: bytes, *, udp: bool) -> None:
        """Cancel the charge of an attempt without a result."""
        self._guesses[udp].settle(_to_source(secret_of), -1)

    def record_guess(self, secret_of: bytes, source: Source, *, right: bool | None, udp: bool, now: float) -> None:
        """Record the result of an attempt; a right one costs nothing, and neither does one without a result."""
        was_proved, target = self.is_proved(secret_of, source, udp=udp), _to_source(secret_of)
        if right:
            self._known.add(source, secret_of, udp=udp)
            self._known.forget_failures(source, secret_of, udp=udp)
        if right is not False:
            if not was_proved:
                self.refund_guess(secret_of, udp=udp)
            return
        self.record_failure(source, udp=udp, now=now)
        self._known.add_failure(source, secret_of, udp=udp)
        if was_proved:  # else it is charged already
            self._guesses[udp].take(target, now)

    def failed_guesses(self, secret_of: bytes, source: Source, *, udp: bool) -> tuple[int, ...]:
        """Count the wrong guesses at a secret from each network of a source."""
        return self._known.failures(source, secret_of, udp=udp)

    def guess_delay(self, secret_of: bytes, source: Source, *, udp: bool, now: float) -> float:
        """Seconds until an attempt is within the budgets of its source and of the secret."""
        secret_delay = self._guesses[udp].delay(_to_source(secret_of), now)
        return max(secret_delay, self.failure_delay(source, udp=udp, now=now))

    def failure_delay(self, source: Source, *, udp: bool, now: float) -> float:
        """Seconds until a source that failed often is no longer locked out."""
        return self._failures[udp].delay(source, now)


def _to_source(secret_of: bytes) -> Source:
    """Return the handle of a secret as the source of a budget: its hash, as handles are long; case is ignored.

    Indexes are not part of it: index 0 means all of them, so each would be a way around the limit.
    """
    return (int.from_bytes(hashlib.blake2b(secret_of.upper(), digest_size=16).digest(), "big"),)


MIN_UNFINISHED_BYTES: Final = 1 << 20
"""Bytes of incomplete messages that a worker may have with any number of workers: one message of the maximum size."""


class Connections:
    """Limits on connections, in total and by source, and their timeouts."""

    def __init__(self, config: Config, shared: SharedConnections | None = None, unadmitted: int = 0) -> None:
        """Without shared counters the limits apply to this worker alone, which has no thread.

        `unadmitted` is the number of connections that a thread may have accepted beyond the limits.
        """
        self._shared = shared
        self._unadmitted = unadmitted
        self._count: dict[int, int] = {}
        self._total = 0
        self.refused = 0
        """Number of refused connections."""
        self.unfinished: UnfinishedMessages[Connection] = UnfinishedMessages()
        """Incomplete messages on all connections of this worker, which has its part of the limit."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply settings; open connections stay open."""
        self.limit = _raise_descriptor_limit(config.limits.connections, OTHER_DESCRIPTORS + self._unadmitted)
        """Maximum number of connections of this worker: the setting, or what the system allows the process."""
        self._total_limit = config.limits.connections
        self._per_source = config.limits.connections_per_address
        self._exempt = NetworkSet(config.limits.exempt_networks)
        workers = 1 if self._shared is None else self._shared.workers
        self.unfinished.limit = max(config.limits.tcp_unfinished_octets // workers, MIN_UNFINISHED_BYTES)
        self.message_timeout: float = config.limits.message_time
        """Seconds for a complete message to arrive."""
        self.idle_timeout: float = config.limits.idle_time
        """Seconds that a kept connection may be idle between two messages."""
        self.write_timeout: float = config.limits.take_time
        """Seconds for a client to read its response."""

    def __len__(self) -> int:
        return self._total + (0 if self._shared is None else self._shared.count_kept())

    def for_thread(self) -> ConnectionLimits:
        """Return the limits for the thread of the compiled module; where one may be reached, it asks `admit`."""
        if self._shared is None:
            raise ValueError("without shared counters there is no thread")
        return self._shared.limits(self.limit, self._per_source, self.idle_timeout)

    def admit(self, host: str) -> bool:
        """Return whether an address may have another connection; if so, `leave` must follow."""
        source = get_source(host)
        others = 0 if self._shared is None else self._shared.count_others()
        if (
            len(self) >= self.limit
            or self._total + others >= self._total_limit
            or (not self._has_room(source) and host not in self._exempt)
        ):
            self.refused += 1
            return False
        self._add(source)
        return True

    def count_admitted(self, host: str) -> None:
        """Count a connection that the thread has admitted; `leave` must follow."""
        self._add(get_source(host))

    def _add(self, source: Source) -> None:
        for network in source:
            self._count[network] = self._count.get(network, 0) + 1
        self._total += 1
        self._share(source, 1)

    def _share(self, source: Source, change: int) -> None:
        if self._shared is not None:
            for network in (None, *source):
                self._shared.add(network, change)

    def _has_room(self, source: Source) -> bool:
        levels = zip(source, LEVEL_FACTORS, strict=False)
        count, shared = self._count, self._shared
        return all(
            count.get(network, 0) + (shared.count_others(network) if shared is not None else 0)
            < self._per_source * scale
            for network, scale in levels
        )

    def leave(self, host: str) -> None:
        """Record the end of an admitted connection."""
        self._total -= 1
        self._share(get_source(host), -1)
        for network in get_source(host):
            count = self._count[network] - 1
            if count:
                self._count[network] = count
            else:
                del self._count[network]


def _raise_descriptor_limit(connections: int, others: int) -> int:
    """Raise the descriptor limit if allowed; return for how many of the connections it is sufficient."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + others
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - others))
