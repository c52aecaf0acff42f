"""Guesses at secrets: the addresses where an identity was proved, and the queue for everybody else.

After `limits.failed_proofs` wrong secrets of a handle in a minute, from any address, others wait for their turn: there
is one in each `60 / failed_proofs` seconds. So guessing stays as slow as it was, and the right secret gets through. The
next turn belongs to the network that failed least often at that handle. Someone who guesses needs a new network for
every guess to be before the administrator, who has never failed. Beyond the queue attempts are refused.

Addresses where an identity was proved never wait. They are kept across restarts in a file that reveals neither
addresses nor handles: keyed hashes, each with the day on which it expires.
"""

import hashlib
import hmac
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

import msgspec

from perseid.server.state.state import Entry, SharedState, StateFull, Transaction

Source: TypeAlias = tuple[int, ...]
"""The networks that a client belongs to, each contained in the next; empty for clients exempt from limits. The manual
calls the first of them an address."""

MAX_KNOWN: Final = 16_384
"""Proofs that are remembered, an address with an identity each, in a file of 320 KiB; one of those that were not used
for the most days is evicted."""

MAX_RECENT: Final = 1_024
RECENT_SECONDS: Final = 1.0
"""Proofs that a process looks up once in so many seconds: those of the clients that it serves at the moment."""

KNOWN_DAYS: Final = 30
"""Days after its last use on which a proof is forgotten: longer than a vacation, shorter than most leases of an
address."""

MAX_FAILURES: Final = 1_000_000
"""Wrong guesses that are counted for a network: more are no worse."""

FAILURE_SECONDS: Final = 86_400
"""Seconds after the last of them for which they are counted."""

MAX_TURNS: Final = 4
"""Attempts that wait for one handle: eight seconds with the default settings, less than the timeout of any client."""

MAX_WAITING: Final = 64
"""Attempts that wait in total, in all processes, each with its connection; those over UDP have a queue of their own."""

MAX_WAIT: Final = 60.0
"""Seconds that an attempt waits at most, if `limits.failed_proofs` is so small that a turn takes that long."""

POLL_SECONDS: Final = 0.1
"""Seconds between two looks at the queue: unnoticeable, and 640 looks a second at most."""

_LEVELS = 3  # networks of an IPv6 source
_DAY = 86_400
_MAGIC = b"perseid known clients 1\n"
_ENTRY = struct.Struct("<16sI")
_DIGEST_SIZE = 16
_DAY_BYTES = 4
_TABLE_BYTES = 4 << 20  # of the table: twice what it needs
_NETWORK_BYTES = 24
_QUEUE_BYTES = 1 << 20  # of a queue: ten times what it needs
_ORDER_BYTES = 8

MAX_FILE_BYTES: Final = len(_MAGIC) + MAX_KNOWN * _ENTRY.size + _DIGEST_SIZE
"""Bytes of the file; a longer one is damaged."""


class KnownClients:
    """The addresses where an identity was proved, as keyed hashes in the shared state."""

    def __init__(
        self,
        key: bytes,
        clock: Callable[[], float] = time.time,
        max_size: int = MAX_KNOWN,
        state: SharedState | None = None,
    ) -> None:
        """`key` is a secret of the installation; the clock returns seconds since 1970.

        `state` is that of all processes; without, the addresses are known to this process.
        """
        self._key = key
        self._clock = clock
        state = state or SharedState.private()
        # By hash: the day on which the proof expires, since 1970.
        self._expiry = state.table(
            "known_clients", version=1, max_entries=max_size, max_bytes=_TABLE_BYTES, clock=clock
        )
        # By hash: the number of wrong guesses at a handle from a network.
        self._failures = state.table(
            "failed_guesses", version=1, max_entries=max_size, max_bytes=_TABLE_BYTES, clock=clock
        )
        self._recent: dict[tuple[int, bytes, bool], tuple[float, int]] = {}  # when it was seen, and that day
        self.changed = False
        """Whether `dump` has something new. Set it again if what that returned could not be saved."""

    @classmethod
    def read(cls, path: Path, key: bytes, state: SharedState | None = None) -> Self:
        """Read the file, if there is one."""
        known = cls(key, state=state)
        with suppress(OSError), path.open("rb") as file:
            known.load(file.read(MAX_FILE_BYTES + 1))
        return known

    def __len__(self) -> int:
        return self._expiry.size().entries

    def add(self, source: Source, secret_of: bytes = b"", *, udp: bool) -> None:
        """Remember a proof; without `secret_of` that of any identity."""
        key, expiry, now = (source[0] if source else 0, secret_of, udp), self._today + KNOWN_DAYS, self._clock()
        if not self._is_recent(key, now, expiry):
            self.changed |= self._remember(self._hash(source, secret_of, udp=udp), expiry)
            self._recent[key] = now, expiry

    def contains(self, source: Source, secret_of: bytes = b"", *, udp: bool) -> bool:
        """Whether a proof is remembered."""
        key, now = (source[0] if source else 0, secret_of, udp), self._clock()
        if self._is_recent(key, now):
            return True
        day = self._expiry.get(self._hash(source, secret_of, udp=udp), now)
        if day is not None:
            self._recent[key] = now, int.from_bytes(day, "little")
        return day is not None

    def _is_recent(self, key: tuple[int, bytes, bool], now: float, expiry: int = 0) -> bool:
        """Whether this process has just seen that a proof is remembered: each request asks for it several times."""
        if len(self._recent) > MAX_RECENT:
            self._recent.clear()  # those that matter are back at once
        since, until = self._recent.get(key, (0.0, 0))
        return 0 <= now - since < RECENT_SECONDS and until >= expiry and until * _DAY > now

    def add_failure(self, source: Source, secret_of: bytes, *, udp: bool) -> None:
        """Count a wrong guess at a secret for each network of a source."""
        now = self._clock()

        def count(old: bytes | None) -> Entry:
            number = min(int.from_bytes(old or b"", "little") + 1, MAX_FAILURES)
            return Entry(number.to_bytes(_DAY_BYTES, "little"), now + FAILURE_SECONDS)

        for key in self._failure_keys(source, secret_of, udp=udp):
            self._failures.update(key, now, count)

    def failures(self, source: Source, secret_of: bytes, *, udp: bool) -> tuple[int, ...]:
        """Count the wrong guesses at a secret from each network of a source."""
        values = (self._failures.get(key, self._clock()) for key in self._failure_keys(source, secret_of, udp=udp))
        return tuple(int.from_bytes(value or b"", "little") for value in values)

    def forget_failures(self, source: Source, secret_of: bytes, *, udp: bool) -> None:
        """Forget the wrong guesses, after a right one."""
        for key in self._failure_keys(source, secret_of, udp=udp):
            if self._failures.get(key, self._clock()) is not None:
                with suppress(StateFull):  # the secret was right nevertheless
                    self._failures.delete(key)

    def _failure_keys(self, source: Source, secret_of: bytes, *, udp: bool) -> list[bytes]:
        return [self._hash((network,), secret_of, udp=udp) for network in source]

    def dump(self) -> bytes:
        """Return the contents of the file."""
        self.changed = False
        data = _MAGIC + b"".join(entry + day for entry, day in self._expiry.items(self._clock()))
        return data + self._digest(data)

    def load(self, data: bytes) -> None:
        """Read the contents of the file; a damaged one, or that of another installation, counts as empty."""
        contents, digest = data[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
        if not hmac.compare_digest(digest, self._digest(contents)) or not contents.startswith(_MAGIC):
            return
        today = self._today
        # After the clock was set back, nothing is valid for longer than if it were proved now.
        for entry, expiry in _ENTRY.iter_unpack(contents.removeprefix(_MAGIC)):
            if expiry > today:
                self._remember(entry, min(expiry, today + KNOWN_DAYS))

    def _remember(self, entry: bytes, expiry: int) -> bool:
        """Remember a proof until a day; return whether that is new."""
        day = expiry.to_bytes(_DAY_BYTES, "little")
        if self._expiry.get(entry, self._clock()) == day:
            return False  # most of the time: once a day is enough
        return self._expiry.put(entry, Entry(day, float(expiry * _DAY)))

    @property
    def _today(self) -> int:
        return int(self._clock() // _DAY)

    def _hash(self, source: Source, secret_of: bytes, *, udp: bool) -> bytes:
        """Hash an address with a handle, ignoring case; exempt sources are empty, so together they are one."""
        network = (source[0] if source else 0).to_bytes(_NETWORK_BYTES, "big")
        return self._digest(bytes((udp,)) + network + secret_of.upper())

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_DIGEST_SIZE, key=self._key).digest()


class Attempt(NamedTuple):
    """An attempt that waits for its turn."""

    key: bytes
    """Hash of the handle, number in the order of arrival, and random bytes, as numbers are used again."""
    networks: list[bytes]
    rank: tuple[int, ...]
    """Failures and waiting attempts of its networks, the largest network first. The lowest rank is next.

    An IPv4 address has one network, which counts at every level, so that it is compared with IPv6 on equal terms.
    """

    @property
    def order(self) -> int:
        """Its number in the order of arrival."""
        return int.from_bytes(self.key[_DIGEST_SIZE : _DIGEST_SIZE + _ORDER_BYTES], "big")


class GuessQueue:
    """Attempts that wait for their turn in all processes, over one kind of transport.

    Those of a killed process keep their place until they expire.
    """

    def __init__(
        self, state: SharedState | None = None, *, udp: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`state` is that of all processes; without, the queue is of this process."""
        self._state = state or SharedState.private()
        self._clock = clock
        self._table = self._state.table(
            f"{'udp_' * udp}guess_queue", version=1, max_entries=MAX_WAITING, max_bytes=_QUEUE_BYTES, clock=clock
        )

    def __len__(self) -> int:
        return len(self._waiting())

    @contextmanager
    def enter(
        self, secret_of: bytes, source: Source, failures: tuple[int, ...], seconds: float = MAX_WAIT
    ) -> Iterator[Attempt]:
        """Wait in the queue; if it is full, in place of the attempt with the highest rank. `failures` by network."""
        networks = [network.to_bytes(_NETWORK_BYTES, "big") for network in source]
        target, expires = _hash_secret(secret_of), self._clock() + seconds

        def add(txn: Transaction) -> Attempt:
            waiting = self._waiting()
            same = [one for one in waiting if one.key.startswith(target)]
            counts = zip(networks, failures, strict=True)
            by_level = tuple(failed + sum(net in one.networks for one in same) for net, failed in counts)
            order = max((one.order for one in waiting), default=0) + 1
            key = target + order.to_bytes(_ORDER_BYTES, "big") + secrets.token_bytes(_ORDER_BYTES)
            attempt = Attempt(key, networks, (by_level + by_level[-1:] * (_LEVELS - len(by_level)))[::-1])
            for attempts, limit in ((same, MAX_TURNS), (waiting, MAX_WAITING)):
                if len(attempts) >= limit:
                    last = max(*attempts, attempt, key=_rank_and_order)  # of equal ones the last to come
                    if last is attempt:
                        return attempt
                    self._table.remove(txn, last.key)
                    waiting.remove(last)
            self._table.write(txn, key, Entry(msgspec.msgpack.encode(attempt[1:]), expires))
            return attempt

        try:
            attempt = self._state.write(add)
        except StateFull:
            attempt = Attempt(target, networks, ())  # without a place
        try:
            yield attempt
        finally:
            with suppress(StateFull):  # then it expires
                if attempt in self:
                    self._table.delete(attempt.key)

    def __contains__(self, attempt: Attempt) -> bool:
        """Whether an attempt still has its place."""
        return self._table.get(attempt.key, self._clock()) is not None

    def is_next(self, secret_of: bytes, attempt: Attempt | None = None) -> bool:
        """Whether the next turn at a handle is that of an attempt; one that does not wait has it if none waits."""
        same = self._waiting(_hash_secret(secret_of))
        return not same or min(same, key=_rank_and_order) == attempt

    def _waiting(self, target: bytes = b"") -> list[Attempt]:
        items = self._table.items(self._clock())
        decode = msgspec.msgpack.Decoder(tuple[list[bytes], tuple[int, ...]]).decode
        return [Attempt(key, *decode(value)) for key, value in items if key.startswith(target)]


def _hash_secret(secret_of: bytes) -> bytes:
    return hashlib.blake2b(secret_of, digest_size=_DIGEST_SIZE).digest()


def _rank_and_order(attempt: Attempt) -> tuple[tuple[int, ...], int]:
    return attempt.rank, attempt.order
