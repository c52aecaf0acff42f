"""UDP rate limits by network, in memory that all processes share.

With the forged address of a victim, an attacker has the server send its responses there. So the bytes sent to one
network, a /24 of IPv4 or a /56 of IPv6, and to all networks together, are limited, as far as they exceed the bytes of
the requests: an attacker gains nothing by the rest, and small responses cost little. Beyond the limit every other
request gets a response that is hardly longer than the request, and the rest get nothing: an honest client then uses
TCP, where addresses are real.

A bucket is a single number: the time at which it will be full again (the generic cell rate algorithm). A response
advances it by the time in which its bytes are refilled; one that would advance it further ahead of now than a whole
bucket is refused. So in any `t` seconds a network gets at most `burst + rate · t` bytes more than were sent in its
name, and nothing needs cleaning up: a time in the past is a full bucket. The first bucket is that of all networks
together.

Buckets are 64-bit words in memory that belongs to its descriptor, like the counters. They are chosen by a hash of the
network with a random secret, so attackers cannot choose whose bucket they share. Two networks in one bucket share its
limit; with many more buckets than networks that is rare and harmless. Processes read and write whole words without
locks: when two do so at the same time one charge is lost, which gives away one response. That happens in a fraction of
a microsecond for every response, so even the bucket of all networks loses few charges.

The supervisor loads this module, so it imports little.
"""

import hashlib
import math
import mmap
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from perseid.wire.codes import CURRENT_VERSION, OpFlag, ResponseCode, Version, common_version
from perseid.wire.message import ENVELOPE_LENGTH as ENVELOPE
from perseid.wire.message import HEADER_LENGTH as HEADER
from perseid.wire.message import MESSAGE_LIFETIME, UNKNOWN_SERIAL, DigestAlgorithm, digest_algorithm_for

SLOTS: Final = 1 << 17
"""Number of buckets: 1 MiB. Of ten thousand networks active at the same time, 7 in 100 share a bucket."""

MAX_HOSTS: Final = 1 << 14
"""Addresses whose bucket a process caches, in some 2 MiB. Forged ones may fill the cache at any time; it is then
cleared, and each lookup costs two microseconds."""

IPV4_BITS: Final = 24
IPV6_BITS: Final = 56
"""Bits of an address that identify the network of a bucket: what one customer of a provider usually has."""

TOO_MUCH_TEXT: Final = b"rate limit exceeded; use TCP"
TOO_LARGE_TEXT: Final = b"the response is too long for UDP; use TCP"
"""Texts of the short response, if they fit."""

_PAGE = 4096  # header size, so that buckets are aligned
_HEAD = Struct("=QQQ")  # layout, secret, buckets
_LAYOUT = 0x5045_5253_0004
_WORD_SIZE = 8
_NO_LIMIT = -1
_ALL_NETWORKS = 0  # the bucket of all networks; the others follow

_BITS = 128
_IPV4 = 1 << _BITS  # a bit that no IPv6 address has
_IPV4_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 on an IPv6 socket


class IncompatibleLayout(Exception):
    """The shared memory was created by another version of Perseid."""


# Addresses


def address_to_int(host: str) -> int:
    """Return an address as a number that starts with its network; IPv4-mapped IPv6 is IPv4."""
    if ":" not in host:
        return _IPV4 | int.from_bytes(socket.inet_pton(socket.AF_INET, host), "big") << _BITS - 32
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])  # after % is the interface
    if packed.startswith(_IPV4_MAPPED):
        return _IPV4 | int.from_bytes(packed[len(_IPV4_MAPPED) :], "big") << _BITS - 32
    return int.from_bytes(packed, "big")


def network_to_int(host: str, ipv4_bits: int = IPV4_BITS, ipv6_bits: int = IPV6_BITS) -> int:
    """Return the network of an address as a unique number."""
    return _first_bits(address_to_int(host), ipv4_bits, ipv6_bits)


def _first_bits(number: int, ipv4_bits: int, ipv6_bits: int) -> int:
    return number >> _BITS - (ipv4_bits if number & _IPV4 else ipv6_bits)


class NetworkSet:
    """Networks from the settings, to test whether an address is in one of them."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Iterable[object]) -> None:
        """Accept texts, or objects whose `str` is such a text."""
        self._networks = tuple(_parse_network(str(network)) for network in networks)

    def __contains__(self, host: object) -> bool:
        return self.contains_number(address_to_int(str(host)))

    def contains_number(self, number: int) -> bool:
        return any(number >> shift == network for shift, network in self._networks)

    def to_bytes(self) -> tuple[tuple[bool, bytes, int], ...]:
        """Return the networks: whether each is IPv4, an address of 16 bytes that starts with it, and its bits."""
        return tuple(
            (bool(network >> _BITS - shift), (network << shift).to_bytes(17, "big")[1:], _BITS - shift)
            for shift, network in self._networks
        )


def _parse_network(text: str) -> tuple[int, int]:
    """How far to shift an address to compare it with the network, and the network."""
    host, _, bits = text.partition("/")
    number = address_to_int(host)
    longest = _BITS if ":" in host else 32
    length = int(bits or longest)
    if number & _IPV4 and longest == _BITS:  # IPv4-mapped: the first 96 bits only mark it as IPv4
        length = max(0, length - (_BITS - 32))
    shift = _BITS - length
    return shift, number >> shift


# Buckets


class RateLimit:
    """A bucket of one process."""

    __slots__ = ("_ahead", "_due", "_seconds")

    def __init__(self, per_second: float, burst: float) -> None:
        """Zero per second means no limit, as in the settings."""
        self._seconds = 1 / per_second if per_second else 0.0
        self._ahead = burst * self._seconds
        self._due = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Charge `cost`; return whether it was within the limit."""
        due = max(self._due, now) + cost * self._seconds
        if due - now > self._ahead:
            return False
        self._due = due
        return True


_WORD_BITS: Final = (1 << 64) - 1


def _mix(x: int) -> int:
    """The finalizer of SplitMix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _WORD_BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD_BITS
    return x ^ x >> 31


def find_bucket(secret: int, network: int, size: int) -> int:
    """Return the bucket of a network; `perseid.compiled` does the same."""
    return _mix(_mix(network ^ secret) + secret & _WORD_BITS) % size


@dataclass(frozen=True, slots=True)
class TrafficBuckets:
    """A `TrafficLimit` for the compiled module."""

    slots: "memoryview[float]"
    """The buckets; the first is that of all networks."""
    secret: int
    network: tuple[float, float]
    """Seconds in which one byte is refilled, and in which a whole bucket is."""
    total: tuple[float, float]
    exempt: tuple[tuple[bool, bytes, int], ...]
    """Networks as in `NetworkSet.to_bytes`."""


class TrafficLimit:
    """Byte limits of networks and of all together, in shared memory. Each process has one, for one of its threads."""

    __slots__ = (
        "_ahead",
        "_exempt",
        "_map",
        "_seconds",
        "_secret",
        "_size",
        "_slot_cache",
        "_slots",
        "_total_ahead",
        "_total_seconds",
    )

    def __init__(
        self, descriptor: int, per_second: float, burst: float, exempt: Iterable[object] = (), total: float = 0.0
    ) -> None:
        """Map memory that `create` made; the descriptor stays the caller's. Zero per second means no limit.

        All networks together may get `total` per second, and a second of it at once, or the burst of a network.
        """
        size = os.fstat(descriptor).st_size
        if size <= _PAGE:
            raise IncompatibleLayout(f"invalid size of the shared buckets: {size} bytes")
        self._map = mmap.mmap(descriptor, size)
        layout, self._secret, self._size = _HEAD.unpack_from(self._map)
        if layout != _LAYOUT or size != _PAGE + (1 + self._size) * _WORD_SIZE:
            self._map.close()
            raise IncompatibleLayout("the shared buckets were created by another version; restart the server")
        self._slots = memoryview(self._map)[_PAGE:].cast("d")
        self._seconds, self._ahead = _bucket(per_second, burst)
        self._total_seconds, self._total_ahead = _bucket(total, max(total, burst))
        self._exempt = NetworkSet(exempt)
        self._slot_cache: dict[str, int] = {}

    @staticmethod
    def create(slots: int = SLOTS) -> int:
        """Create the memory with all buckets full; return its descriptor, which other processes inherit."""
        descriptor = os.memfd_create("perseid-traffic", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _PAGE + (1 + slots) * _WORD_SIZE)
        secret = int.from_bytes(os.urandom(7), sys.byteorder)
        os.pwrite(descriptor, _HEAD.pack(_LAYOUT, secret, slots), 0)
        return descriptor

    def allows(self, host: str, cost: float, now: float) -> bool:
        """Charge an address at a monotonic time; return whether it was within the limits. A refusal costs nothing.

        The cost of a response is what it has more than its request.
        """
        if cost <= 0:
            return True
        slot = self._slot_cache.get(host)
        if slot is None:
            slot = self._find_slot(host)
        if slot < 0:
            return True
        slots = self._slots
        due, total = slots[slot], slots[_ALL_NETWORKS]
        if due < now:  # noqa: PLR1730 - max() would take a third of the time of this function
            due = now
        if total < now:  # noqa: PLR1730
            total = now
        due += cost * self._seconds
        total += cost * self._total_seconds
        if due - now > self._ahead or total - now > self._total_ahead:
            return False
        slots[slot], slots[_ALL_NETWORKS] = due, total
        return True

    @property
    def buckets(self) -> TrafficBuckets:
        """The same for the compiled module."""
        network, total = (self._seconds, self._ahead), (self._total_seconds, self._total_ahead)
        return TrafficBuckets(self._slots, self._secret, network, total, self._exempt.to_bytes())

    def close(self) -> None:
        """Unmap the memory; the creator also closes the descriptor."""
        self._slots.release()
        self._map.close()

    def _find_slot(self, host: str) -> int:
        """Find and cache the bucket of an address."""
        if len(self._slot_cache) >= MAX_HOSTS:
            self._slot_cache.clear()
        number = address_to_int(host)
        if self._exempt.contains_number(number):
            slot = _NO_LIMIT
        else:
            slot = 1 + find_bucket(self._secret, _first_bits(number, IPV4_BITS, IPV6_BITS), self._size)
        self._slot_cache[host] = slot
        return slot


def _bucket(per_second: float, burst: float) -> tuple[float, float]:
    """Seconds in which one byte is refilled, and in which a whole bucket is."""
    return (1 / per_second, burst / per_second) if per_second else (0.0, math.inf)


# The short response

# Envelope: version and suggestion, session, request id, length. Header: opcode, code, flags, serial, expiry, length.
_REQUEST = Struct(">4s4s4s4x4x4s4xI8xi")
_RESPONSE = Struct(">4s4s4s4xi4siIh2xIi")
_HEADERS = ENVELOPE + HEADER
_ENCRYPTED = 0x40  # encrypted: unreadable here
_REQUEST_DIGEST = int(OpFlag.REQUEST_DIGEST)
_ECHOED_FLAGS = int(OpFlag.CACHE_AUTHENTICATION | OpFlag.PUBLIC_ONLY | OpFlag.DO_NOT_REFER) | _REQUEST_DIGEST
_DIGESTS = {DigestAlgorithm.SHA256: hashlib.sha256, DigestAlgorithm.SHA1: hashlib.sha1}
_LENGTH_FIELDS = 8  # bytes of the length of the text and of the absent credential


def short_response(request: bytes, now: float, text: bytes = TOO_MUCH_TEXT) -> bytes | None:
    """Return RC_ERROR with envelope for a request, so that clients use another transport (2.7); else None.

    It is no longer than the request, unless the request is shorter than the minimum of the protocol: 52 bytes, and up
    to 33 for the digest of the request if that is requested.
    """
    if len(request) < _HEADERS or request[2] & _ENCRYPTED:
        return None
    head, session, request_id, opcode, flags, body_length = _REQUEST.unpack_from(request)
    suggested = Version(head[2] & 3, head[3])
    version = common_version(suggested if suggested.major else Version(head[0], head[1]))
    flags = flags & _ECHOED_FLAGS | int(OpFlag.RECURSIVE)
    digest = b""
    if flags & _REQUEST_DIGEST:
        algorithm = digest_algorithm_for(version)
        hash_function = _DIGESTS.get(algorithm)
        if hash_function is None:  # none before 2.1
            flags &= ~_REQUEST_DIGEST
        else:
            request_body = request[ENVELOPE : _HEADERS + max(body_length, 0)]
            digest = bytes((algorithm,)) + hash_function(request_body, usedforsecurity=False).digest()
    room = len(request) - _HEADERS - _LENGTH_FIELDS - len(digest)
    text = text if room >= len(text) else b""
    body = digest + len(text).to_bytes(4, "big") + text
    fixed = _RESPONSE.pack(
        bytes((*version, *CURRENT_VERSION)),
        session,
        request_id,
        HEADER + len(body) + 4,
        opcode,
        ResponseCode.ERROR,
        flags,
        UNKNOWN_SERIAL,
        int(now) + MESSAGE_LIFETIME & 0xFFFF_FFFF,
        len(body),
    )
    return fixed + body + bytes(4)
