"""How much a network may draw over UDP, where addresses can be forged; in memory that all processes share.

Whoever forges the address of a victim has the server send its answers there. So the octets that go to one network, a
/24 of IPv4 or a /56 of IPv6, are limited, and what is beyond the limit gets an answer that is hardly longer than the
request, every other time, or nothing: an honest client then asks over TCP, where addresses are real.

A network has a bucket, which is a single number: the moment at which the bucket would be full again (the generic cell
rate algorithm). An answer moves it on by the time in which its octets flow back; one that would move it further ahead
of now than a whole bucket takes is refused. So in any `t` seconds a network draws at most `burst + rate · t` octets,
and nothing has to be tidied up: a moment that has passed is a full bucket.

The buckets are words of 64 bits in memory that belongs to its descriptor, as the counters do. They are chosen by a hash
of the network under a secret that is made with them, so strangers cannot choose whose bucket they share. Two networks
in one bucket share what it gives, which with many more buckets than networks is rare and harmless. Processes read and
write without locks. A word is read and written whole; when two do so at the same time one of two charges is lost, which
gives away one answer, and only as often as two processes meet within a fraction of a microsecond in one bucket.

This module is loaded by resolvers and imports little.
"""

import hashlib
import mmap
import os
import socket
import sys
from collections.abc import Iterable
from struct import Struct
from typing import Final

from perseid.wire.codes import CURRENT_VERSION, OpFlag, ResponseCode, Version, common_version
from perseid.wire.digests import DigestAlgorithm, digest_algorithm_for
from perseid.wire.message import ENVELOPE_LENGTH as ENVELOPE
from perseid.wire.message import HEADER_LENGTH as HEADER
from perseid.wire.message import MESSAGE_LIFETIME, UNKNOWN_SERIAL

SLOTS: Final = 1 << 17
"""Buckets: 1 MiB. Ten thousand networks that are active at the same time share one with another in 7 of 100 cases."""

MAX_HOSTS: Final = 1 << 14
"""Addresses whose bucket a process remembers, in some 2 MiB. Forged ones may fill that at any time; then all are
forgotten, and looked up again in two microseconds each."""

IPV4_BITS: Final = 24
IPV6_BITS: Final = 56
"""How much of an address is the network that has a bucket: what one customer of a provider usually has."""

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
"""Networks without limits by default: what comes from this machine has no forged address."""

TOO_MUCH_TEXT: Final = b"too much for UDP; ask over TCP"
"""What the short answer says, where there is room for it."""

_PAGE = 4096  # before the buckets, so that they are aligned and may be mapped alone
_HEAD = Struct("=QQQ")  # layout, secret, buckets
_LAYOUT = 0x5045_5253_0001
_WORD_SIZE = 8
_NO_LIMIT = -1

_BITS = 128
_IPV4 = 1 << _BITS  # a bit that no IPv6 address has
_IPV4_MAPPED = bytes(10) + b"\xff\xff"  # how IPv4 looks on a socket of IPv6


class IncompatibleLayout(Exception):
    """The shared memory was made by another version of the program: start all processes anew."""


# Addresses


def address_to_int(host: str) -> int:
    """An address as a number whose first bits are those of its network; IPv4 on a socket of IPv6 is still IPv4."""
    if ":" not in host:
        return _IPV4 | int.from_bytes(socket.inet_pton(socket.AF_INET, host), "big") << _BITS - 32
    octets = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])  # behind % stands a link of this machine
    if octets.startswith(_IPV4_MAPPED):
        return _IPV4 | int.from_bytes(octets[len(_IPV4_MAPPED) :], "big") << _BITS - 32
    return int.from_bytes(octets, "big")


def network_to_int(host: str, ipv4_bits: int = IPV4_BITS, ipv6_bits: int = IPV6_BITS) -> int:
    """The network of an address, as a number that no other network has."""
    return _first_bits(address_to_int(host), ipv4_bits, ipv6_bits)


def _first_bits(number: int, ipv4_bits: int, ipv6_bits: int) -> int:
    return number >> _BITS - (ipv4_bits if number & _IPV4 else ipv6_bits)


class NetworkSet:
    """Networks as they are written in settings, for the question whether an address is in one of them."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Iterable[object]) -> None:
        """Take texts, or objects that are written so."""
        self._networks = tuple(_parse_network(str(network)) for network in networks)

    def __contains__(self, host: object) -> bool:
        return self.contains_number(address_to_int(str(host)))

    def contains_number(self, number: int) -> bool:
        """The same for an address as a number."""
        return any(number >> shift == network for shift, network in self._networks)


def _parse_network(text: str) -> tuple[int, int]:
    """How far an address is to be shifted to compare it with a network, and the network."""
    host, _, bits = text.partition("/")
    number = address_to_int(host)
    longest = _BITS if ":" in host else 32
    length = int(bits or longest)
    if number & _IPV4 and longest == _BITS:  # written as IPv6 has it: its first 96 bits say only that it is IPv4
        length = max(0, length - (_BITS - 32))
    shift = _BITS - length
    return shift, number >> shift


# Buckets


class RateLimit:
    """A bucket of one process: so many a second, and so many at once."""

    __slots__ = ("_ahead", "_due", "_seconds")

    def __init__(self, per_second: float, burst: float) -> None:
        """No limit if nothing a second is allowed: that is how settings say it."""
        self._seconds = 1 / per_second if per_second else 0.0
        self._ahead = burst * self._seconds
        self._due = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Whether it may be done now; then it is counted."""
        due = max(self._due, now) + cost * self._seconds
        if due - now > self._ahead:
            return False
        self._due = due
        return True


class TrafficLimit:
    """What networks may draw, in shared memory. Each process has one, for one thread of it."""

    __slots__ = ("_ahead", "_exempt", "_map", "_places", "_seconds", "_secret", "_size", "_slots")

    def __init__(self, descriptor: int, bytes_per_second: float, burst: float, exempt: Iterable[object] = ()) -> None:
        """Take memory that `create` made; the descriptor stays the caller's. Nothing a second means no limit."""
        size = os.fstat(descriptor).st_size
        if size <= _PAGE:
            raise IncompatibleLayout(f"{size} octets are no buckets")
        self._map = mmap.mmap(descriptor, size)
        layout, self._secret, self._size = _HEAD.unpack_from(self._map)
        if layout != _LAYOUT or size != _PAGE + self._size * _WORD_SIZE:
            self._map.close()
            raise IncompatibleLayout("the buckets were made by another version of the program; start it anew")
        self._slots = memoryview(self._map)[_PAGE:].cast("d")
        self._seconds = 1 / bytes_per_second if bytes_per_second else 0.0
        self._ahead = burst * self._seconds
        self._exempt = NetworkSet(exempt)
        self._places: dict[str, int] = {}

    @staticmethod
    def create(slots: int = SLOTS) -> int:
        """Make the memory, all buckets full; answers its descriptor, which processes inherit that are to have it."""
        descriptor = os.memfd_create("perseid-traffic", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _PAGE + slots * _WORD_SIZE)
        secret = int.from_bytes(os.urandom(7), sys.byteorder)
        os.pwrite(descriptor, _HEAD.pack(_LAYOUT, secret, slots), 0)
        return descriptor

    def allows(self, host: str, octets: float, now: float) -> bool:
        """Whether so many octets may go to an address at a moment of the monotonic clock; then they are counted."""
        slot = self._places.get(host)
        if slot is None:
            slot = self._find_slot(host)
        if slot < 0:
            return True
        slots = self._slots
        due = slots[slot]
        if due < now:  # noqa: PLR1730 - calling max() would take a third of the time of all this
            due = now
        due += octets * self._seconds
        if due - now > self._ahead:
            return False
        slots[slot] = due
        return True

    def close(self) -> None:
        """Give the memory back; whoever made it closes the descriptor as well."""
        self._slots.release()
        self._map.close()

    def _find_slot(self, host: str) -> int:
        """Which bucket an address draws from; remembered, as it is asked for with every answer."""
        if len(self._places) >= MAX_HOSTS:
            self._places.clear()
        number = address_to_int(host)
        if not self._seconds or self._exempt.contains_number(number):
            slot = _NO_LIMIT
        else:
            # Of whole numbers, so that the hash is the same in every process, whatever its own secret is.
            slot = hash((self._secret, _first_bits(number, IPV4_BITS, IPV6_BITS))) % self._size
        self._places[host] = slot
        return slot


# The short answer

# Envelope: version and suggestion, session, request id, length. Header: opcode, code, flags, serial, expiry, length.
_REQUEST = Struct(">4s4s4s4x4x4s4xI8xi")
_RESPONSE = Struct(">4s4s4s4xi4siIh2xIi")
_HEADERS = ENVELOPE + HEADER
_ENCRYPTED = 0x40  # encrypted: nobody but the owner of the session can tell what it is
_REQUEST_DIGEST = int(OpFlag.REQUEST_DIGEST)
_ECHOED_FLAGS = int(OpFlag.CACHE_AUTHENTICATION | OpFlag.PUBLIC_ONLY | OpFlag.DO_NOT_REFER) | _REQUEST_DIGEST
_DIGESTS = {DigestAlgorithm.SHA256: hashlib.sha256, DigestAlgorithm.SHA1: hashlib.sha1}
_LENGTH_FIELDS = 8  # octets of the length of the text, and of that of the credential, which is not there


def short_response(request: bytes, now: float) -> bytes | None:
    """RC_ERROR to a request, envelope and all: clients then try another way (2.7). None where silence has to do.

    It is no longer than the request, unless that is so short that what the protocol demands of any answer is longer: 52
    octets, and up to 33 for the digest of the request where that is asked for.
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
        make = _DIGESTS.get(algorithm)
        if make is None:  # before 2.1 there was none
            flags &= ~_REQUEST_DIGEST
        else:
            request_body = request[ENVELOPE : _HEADERS + max(body_length, 0)]
            digest = bytes((algorithm,)) + make(request_body, usedforsecurity=False).digest()
    room = len(request) - _HEADERS - _LENGTH_FIELDS - len(digest)
    text = TOO_MUCH_TEXT if room >= len(TOO_MUCH_TEXT) else b""
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
