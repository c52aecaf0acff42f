"""UDP sockets of workers, and telling responses from requests.

A socket bound to one address sends from that address. One bound to every address of the machine (0.0.0.0 or ::) sends
from the address that the system finds nearest to the client, which may not be the one that the client used; connected
clients, NAT and firewalls drop such responses. For these sockets the system reports the local address of each datagram
and sends the response from it (IP_PKTINFO; RFC 3542). That costs a microsecond for each datagram, so sockets with one
address do without. Either kind is used through `receive` and `send`, which never wait whatever the mode of the socket:
other processes may share it. Of a `ReturnAddress` only host and port are read.

Responses are never answered: with forged addresses, servers could otherwise be made to answer each other forever.
"""

import socket
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeAlias

from perseid.wire.message import ENVELOPE_LENGTH as ENVELOPE

Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""An IPv4 or IPv6 address as the socket module has it."""

# Of an envelope: flags, packet number, length. The header follows; only its response code is read.
_DELIVERY = Struct(">2xB9xii")
_CODE = slice(ENVELOPE + 4, ENVELOPE + 8)
_ENCRYPTED, _TRUNCATED = 0x40, 0x20


def is_response(datagram: bytes) -> bool:
    """Whether a datagram is a response, or a further packet of one.

    A response has a response code, which a request never has. A further packet has a number and is shorter than its
    envelope says. Further packets of a request have the TC flag; responses have it only if their request did, and
    those are detected after reassembly.

    Encrypted messages cannot be told apart here. They cause at most one refusal, which is not encrypted and causes
    none.
    """
    if len(datagram) < ENVELOPE:
        return False
    flags, number, length = _DELIVERY.unpack_from(datagram)
    if number and length != len(datagram) - ENVELOPE:
        return not flags & _TRUNCATED
    return not flags & _ENCRYPTED and any(datagram[_CODE])


ReturnAddress: TypeAlias = tuple[str, int, *tuple[Any, ...]]
"""Where to send the response: host, port, and what the socket needs besides."""

MAX_LOCAL_ADDRESSES: Final = 1_024
"""Local addresses whose ancillary data is cached. Few machines have this many, but all of 127.0.0.0/8 is local, and a
client that uses each would fill the memory. When the cache is full it is cleared."""

_IP_PKTINFO = 8  # <linux/in.h>; the socket module has no name for it yet
_IPV4_INFO_SIZE, _IPV6_INFO_SIZE = 12, 20  # bytes of in_pktinfo and in6_pktinfo
_ANY_INTERFACE = bytes(4)  # the number of a network interface; 0 leaves the choice to the routing table

_Ancillary: TypeAlias = list[tuple[int, int, bytes]]  # to send from a local address


def set_packet_info(udp: socket.socket, *, enabled: bool) -> None:
    """Have the system report the local address of each datagram, or not."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, enabled)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, enabled)


def is_wildcard(udp: socket.socket) -> bool:
    """Whether a socket is bound to every address of the machine."""
    return udp.getsockname()[0] in ("0.0.0.0", "::")  # noqa: S104 - only compared


class SingleAddressSocket:
    """A socket bound to one address."""

    __slots__ = ("_own", "_receive", "_send")

    def __init__(self, udp: socket.socket) -> None:
        self._receive: Callable[[int, int], tuple[bytes, ReturnAddress]] = udp.recvfrom
        self._send: Callable[[bytes, int, ReturnAddress], object] = udp.sendto
        self._own: ReturnAddress = udp.getsockname()

    def receive(self, size: int) -> tuple[bytes, ReturnAddress]:
        return self._receive(size, socket.MSG_DONTWAIT)

    def send(self, data: bytes, return_address: ReturnAddress) -> None:
        """Send a packet to the sender of a datagram."""
        self._send(data, socket.MSG_DONTWAIT, return_address)

    def return_address(self, sender: Address, _info: bytes) -> ReturnAddress:
        """Where to send the response to a datagram that another thread has received."""
        return sender

    def is_own(self, return_address: ReturnAddress) -> bool:
        """Whether the sender address is this socket's own, which means that it is forged."""
        return return_address == self._own


class WildcardSocket:
    """A socket bound to all addresses of the machine, with `set_packet_info` enabled."""

    __slots__ = ("_ancillary_size", "_family", "_local_addresses", "_local_slice", "_port", "_receive", "_send")

    def __init__(self, udp: socket.socket) -> None:
        self._receive, self._send = udp.recvmsg, udp.sendmsg
        self._family, self._port = udp.family, udp.getsockname()[1]
        if udp.family == socket.AF_INET6:
            self._ancillary_size, self._local_slice = socket.CMSG_SPACE(_IPV6_INFO_SIZE), slice(16)
        else:
            # After the interface. For a broadcast this field is the local address; the other one is not.
            self._ancillary_size, self._local_slice = socket.CMSG_SPACE(_IPV4_INFO_SIZE), slice(4, 8)
        self._local_addresses: dict[bytes, _Ancillary] = {}

    def receive(self, size: int) -> tuple[bytes, ReturnAddress]:
        datagram, ancillary, _, address = self._receive(size, self._ancillary_size, socket.MSG_DONTWAIT)
        return datagram, self.return_address(address, ancillary[0][2] if ancillary else b"")

    def return_address(self, sender: Address, info: bytes) -> ReturnAddress:
        """Where to send the response to a datagram, from the address of its ancillary data."""
        local_address = self._local_addresses.get(info)
        if local_address is None:
            local_address = self._cache(info)
        return sender[0], sender[1], sender, local_address

    def send(self, data: bytes, return_address: ReturnAddress) -> None:
        """Send a packet to the sender of a datagram, from the local address that received it."""
        self._send((data,), return_address[3], socket.MSG_DONTWAIT, return_address[2])

    def is_own(self, return_address: ReturnAddress) -> bool:
        """Whether the sender is this socket: our port, and any address of this machine.

        Rarely called, and addresses come and go, so it tries to bind the address.
        """
        address: Address = return_address[2]
        if return_address[1] != self._port:
            return False
        with socket.socket(self._family, socket.SOCK_DGRAM) as probe:
            if self._family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                probe.bind((address[0], 0, *address[2:]))
            except OSError:
                return False
        return True

    def _cache(self, info: bytes) -> _Ancillary:
        if len(self._local_addresses) >= MAX_LOCAL_ADDRESSES:
            self._local_addresses.clear()
        local_address = self._local_addresses[info] = self._make_ancillary(info[self._local_slice])
        return local_address

    def _make_ancillary(self, local: bytes) -> _Ancillary:
        if not local:  # not reported by the system
            return []
        if self._family == socket.AF_INET6:
            return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, local + _ANY_INTERFACE)]
        return [(socket.IPPROTO_IP, _IP_PKTINFO, _ANY_INTERFACE + local + bytes(4))]


DatagramSocket: TypeAlias = SingleAddressSocket | WildcardSocket
"""The UDP socket of a worker."""


def wrap_socket(udp: socket.socket) -> DatagramSocket:
    """Return the kind of socket for the address that it is bound to."""
    return WildcardSocket(udp) if is_wildcard(udp) else SingleAddressSocket(udp)
