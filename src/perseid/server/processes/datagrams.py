"""A resolver's UDP socket: where a datagram came from, and how an answer goes back there.

A socket that is bound to one address sends from that address. One that is bound to every address of the machine
(0.0.0.0 or ::) sends from the address that the system finds nearest to the client, which need not be the one that was
asked: connected clients, NAT and firewalls drop what comes from elsewhere. There the system says with each datagram at
which address it came, and is told to send the answer from it (IP_PKTINFO; RFC 3542).

That costs a microsecond for each datagram, so a socket with one address goes without. A resolver works with either, by
`receive` and `send`; what stands between the two is a `Back`, of which it looks at host and port only.

This module is loaded by resolvers and imports little.
"""

import socket
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from perseid.server.handover import Address

Back: TypeAlias = tuple[str, int, *tuple[Any, ...]]
"""The way back to whoever sent a datagram: host, port, and what the socket needs beside them."""

MAX_WAYS: Final = 1_024
"""Addresses of this machine for which it is remembered how to send from them. Few have so many; but all of 127.0.0.0/8
is this machine, and who asks at each would fill the memory. Then all are forgotten, and made again."""

_IP_PKTINFO = 8  # <linux/in.h>; the socket module has no name for it yet
_IPV4_ROOM, _IPV6_ROOM = 12, 20  # octets of in_pktinfo and in6_pktinfo
_ANYWHERE = bytes(4)  # the number of a network interface: the routing table knows which

_Ancillary: TypeAlias = list[tuple[int, int, bytes]]
_Way: TypeAlias = tuple[bytes, _Ancillary]  # an address of this machine, and what makes the system send from it


def ask_for_local_addresses(udp: socket.socket, *, wanted: bool) -> None:
    """Have the system say at which address datagrams come, or not."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, wanted)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, wanted)


def is_everywhere(udp: socket.socket) -> bool:
    """Whether a socket is bound to every address of the machine."""
    return udp.getsockname()[0] in ("0.0.0.0", "::")  # noqa: S104 - it is only compared


class AtOneAddress:
    """A socket that is bound to one address: nothing stands between the resolver and the system."""

    __slots__ = ("_own", "receive", "send")

    def __init__(self, udp: socket.socket) -> None:
        self.receive: Callable[[int], tuple[bytes, Back]] = udp.recvfrom
        self.send: Callable[[bytes, Back], object] = udp.sendto
        self._own: Back = udp.getsockname()

    def is_own(self, back: Back) -> bool:
        """Whether a datagram says that we sent it ourselves."""
        return back == self._own

    def apart(self, back: Back) -> tuple[Address, bytes]:
        """The address of a client, and the one of this machine that it asked, where that has to be said."""
        return back, b""

    def together(self, address: Address, _local: bytes) -> Back:
        """The way back, from its parts."""
        return address


class AtEveryAddress:
    """A socket that is bound to all addresses of the machine, and was told to `ask_for_local_addresses`."""

    __slots__ = ("_family", "_local", "_port", "_receive", "_room", "_send", "_ways")

    def __init__(self, udp: socket.socket) -> None:
        self._receive, self._send = udp.recvmsg, udp.sendmsg
        self._family, self._port = udp.family, udp.getsockname()[1]
        if udp.family == socket.AF_INET6:
            self._room, self._local = socket.CMSG_SPACE(_IPV6_ROOM), slice(16)
        else:
            # Behind the interface; of what came to a broadcast address this is ours, and the other one is not.
            self._room, self._local = socket.CMSG_SPACE(_IPV4_ROOM), slice(4, 8)
        self._ways: dict[bytes, _Way] = {}

    def receive(self, size: int) -> tuple[bytes, Back]:
        """Wait for a datagram."""
        datagram, ancillary, _, address = self._receive(size, self._room)
        told = ancillary[0][2] if ancillary else b""
        way = self._ways.get(told)
        if way is None:
            way = self._remember(told)
        return datagram, (address[0], address[1], address, way)

    def send(self, octets: bytes, back: Back) -> None:
        """Send a packet to whoever sent a datagram, from the address to which that came."""
        self._send((octets,), back[3][1], 0, back[2])

    def is_own(self, back: Back) -> bool:
        """Whether a datagram says that we sent it ourselves: from our port, and any address of this machine.

        It is asked for hardly ever, and addresses come and go. So whether one is ours is found out by trying it.
        """
        address: Address = back[2]
        if back[1] != self._port:
            return False
        with socket.socket(self._family, socket.SOCK_DGRAM) as tried:
            if self._family == socket.AF_INET6:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                tried.bind((address[0], 0, *address[2:]))
            except OSError:
                return False
        return True

    def apart(self, back: Back) -> tuple[Address, bytes]:
        """The address of a client, and the one of this machine that it asked."""
        return back[2], back[3][0]

    def together(self, address: Address, local: bytes) -> Back:
        """The way back, from its parts."""
        return address[0], address[1], address, self._way(local)

    def _remember(self, told: bytes) -> _Way:
        if len(self._ways) >= MAX_WAYS:
            self._ways.clear()
        way = self._ways[told] = self._way(told[self._local])
        return way

    def _way(self, local: bytes) -> _Way:
        if not local:  # the system has not said it
            return b"", []
        if self._family == socket.AF_INET6:
            return local, [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, local + _ANYWHERE)]
        return local, [(socket.IPPROTO_IP, _IP_PKTINFO, _ANYWHERE + local + bytes(4))]


Datagrams: TypeAlias = AtOneAddress | AtEveryAddress
"""A socket as a resolver works with it."""


def datagrams(udp: socket.socket) -> Datagrams:
    """What a bound socket is worked with."""
    return AtEveryAddress(udp) if is_everywhere(udp) else AtOneAddress(udp)
