"""What passes between a resolver and the control process: datagrams with the address they came from or go to.

Answers are not handed over. Whoever forges addresses could otherwise send a server its own answers, or those of
another one, and have it answer them for ever.

A resolver hands over what it does not answer itself, and control's answer leaves through the socket of the resolver
that handed it over, so a client sees one peer. Each message on the Unix socket between them is one datagram:

    0   when it was handed over, seconds of the monotonic clock of the machine, which all its processes share
    8   port     10  scope of a link-local IPv6 address     14  length of the host     15  length of the local address
    16  the host, the address of this machine that was asked if that has to be said (see `datagrams`), the datagram

A resolver's UDP socket: where a datagram came from, and how an answer goes back there.

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
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from perseid.wire.fragments import MAX_PACKET
from perseid.wire.message import ENVELOPE_LENGTH as ENVELOPE

MAX_AGE: Final = 2.0
"""Seconds for which a datagram that was handed over is worth an answer. Clients ask again after 0.5, 1 and 1.5 seconds;
what waited longer, while control was started anew, has been asked again since."""

QUEUE_BYTES: Final = 1 << 20
"""Room for datagrams that control has not taken yet, and for answers that a resolver has not sent: some hundred. When
it is full they are dropped, as UDP does: clients ask again, or over TCP."""

Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""An address as the socket module has it, of IPv4 or IPv6."""

_HEAD = Struct("!dHIBB")
_MAX_HOST = _MAX_LOCAL = 255

# Of an envelope: flags, number of the packet, length. Then comes the header, of which the response code is looked at.
_DELIVERY = Struct(">2xB9xii")
_CODE = slice(ENVELOPE + 4, ENVELOPE + 8)
_ENCRYPTED, _TRUNCATED = 0x40, 0x20


class ForwardedDatagram(NamedTuple):
    """A datagram on its way between the processes."""

    at: float
    address: Address
    datagram: bytes
    local: bytes = b""
    """The address of this machine that was asked and has to answer, as octets; none where there is only one."""


def pack_datagram(at: float, address: Address, datagram: bytes, local: bytes = b"") -> bytes:
    """A datagram as it is handed over."""
    host = address[0].encode("ascii")
    scope = address[3] if len(address) == 4 else 0
    return b"".join((_HEAD.pack(at, address[1], scope, len(host), len(local)), host, local, datagram))


def unpack_datagram(data: bytes) -> ForwardedDatagram:
    """The same the other way. Both ends are ours, so it is whole."""
    at, port, scope, length, local_length = _HEAD.unpack_from(data)
    local_at = _HEAD.size + length
    end = local_at + local_length
    host = data[_HEAD.size : local_at].decode("ascii")
    address: Address = (host, port, 0, scope) if ":" in host else (host, port)
    return ForwardedDatagram(at, address, data[end:], data[local_at:end])


MAX_FORWARDED_BYTES: Final = _HEAD.size + _MAX_HOST + _MAX_LOCAL + MAX_PACKET + 1
"""Octets of the longest message between the processes. Of a datagram that is longer than any packet one octet more than
fits comes along, to be noticed."""


def is_response(datagram: bytes) -> bool:
    """Whether a datagram is an answer, or a further packet of one.

    An answer has a response code, which a request never has. A further packet has a number and is not all that its
    envelope announces; of a request it would say that there are several, which answers do only if their request did,
    and then control finds out when it is whole.

    What is encrypted cannot be told here. It draws one refusal at most, which is not encrypted and draws none.
    """
    if len(datagram) < ENVELOPE:
        return False
    flags, number, length = _DELIVERY.unpack_from(datagram)
    if number and length != len(datagram) - ENVELOPE:
        return not flags & _TRUNCATED
    return not flags & _ENCRYPTED and any(datagram[_CODE])


ReturnAddress: TypeAlias = tuple[str, int, *tuple[Any, ...]]
"""The way back to whoever sent a datagram: host, port, and what the socket needs beside them."""

MAX_LOCAL_ADDRESSES: Final = 1_024
"""Addresses of this machine for which it is remembered how to send from them. Few have so many; but all of 127.0.0.0/8
is this machine, and who asks at each would fill the memory. Then all are forgotten, and made again."""

_IP_PKTINFO = 8  # <linux/in.h>; the socket module has no name for it yet
_IPV4_INFO_SIZE, _IPV6_INFO_SIZE = 12, 20  # octets of in_pktinfo and in6_pktinfo
_ANY_INTERFACE = bytes(4)  # the number of a network interface: the routing table knows which

_Ancillary: TypeAlias = list[tuple[int, int, bytes]]
_LocalAddress: TypeAlias = tuple[
    bytes, _Ancillary
]  # an address of this machine, and what makes the system send from it


def set_packet_info(udp: socket.socket, *, enabled: bool) -> None:
    """Have the system say at which address datagrams come, or not."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, enabled)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, enabled)


def is_wildcard(udp: socket.socket) -> bool:
    """Whether a socket is bound to every address of the machine."""
    return udp.getsockname()[0] in ("0.0.0.0", "::")  # noqa: S104 - it is only compared


class SingleAddressSocket:
    """A socket that is bound to one address: nothing stands between the resolver and the system."""

    __slots__ = ("_own", "receive", "send")

    def __init__(self, udp: socket.socket) -> None:
        self.receive: Callable[[int], tuple[bytes, ReturnAddress]] = udp.recvfrom
        self.send: Callable[[bytes, ReturnAddress], object] = udp.sendto
        self._own: ReturnAddress = udp.getsockname()

    def is_own(self, return_address: ReturnAddress) -> bool:
        """Whether a datagram says that we sent it ourselves."""
        return return_address == self._own

    def split_address(self, return_address: ReturnAddress) -> tuple[Address, bytes]:
        """The address of a client, and the one of this machine that it asked, where that has to be said."""
        return return_address, b""

    def join_address(self, address: Address, _local: bytes) -> ReturnAddress:
        """The way back, from its parts."""
        return address


class WildcardSocket:
    """A socket that is bound to all addresses of the machine, and was told to `ask_for_local_addresses`."""

    __slots__ = ("_family", "_local", "_port", "_receive", "_room", "_send", "_ways")

    def __init__(self, udp: socket.socket) -> None:
        self._receive, self._send = udp.recvmsg, udp.sendmsg
        self._family, self._port = udp.family, udp.getsockname()[1]
        if udp.family == socket.AF_INET6:
            self._room, self._local = socket.CMSG_SPACE(_IPV6_INFO_SIZE), slice(16)
        else:
            # Behind the interface; of what came to a broadcast address this is ours, and the other one is not.
            self._room, self._local = socket.CMSG_SPACE(_IPV4_INFO_SIZE), slice(4, 8)
        self._ways: dict[bytes, _LocalAddress] = {}

    def receive(self, size: int) -> tuple[bytes, ReturnAddress]:
        """Wait for a datagram."""
        datagram, ancillary, _, address = self._receive(size, self._room)
        info = ancillary[0][2] if ancillary else b""
        local_address = self._ways.get(info)
        if local_address is None:
            local_address = self._remember(info)
        return datagram, (address[0], address[1], address, local_address)

    def send(self, data: bytes, return_address: ReturnAddress) -> None:
        """Send a packet to whoever sent a datagram, from the address to which that came."""
        self._send((data,), return_address[3][1], 0, return_address[2])

    def is_own(self, return_address: ReturnAddress) -> bool:
        """Whether a datagram says that we sent it ourselves: from our port, and any address of this machine.

        It is asked for hardly ever, and addresses come and go. So whether one is ours is found out by trying it.
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

    def split_address(self, return_address: ReturnAddress) -> tuple[Address, bytes]:
        """The address of a client, and the one of this machine that it asked."""
        return return_address[2], return_address[3][0]

    def join_address(self, address: Address, local: bytes) -> ReturnAddress:
        """The way back, from its parts."""
        return address[0], address[1], address, self._make_local_address(local)

    def _remember(self, info: bytes) -> _LocalAddress:
        if len(self._ways) >= MAX_LOCAL_ADDRESSES:
            self._ways.clear()
        local_address = self._ways[info] = self._make_local_address(info[self._local])
        return local_address

    def _make_local_address(self, local: bytes) -> _LocalAddress:
        if not local:  # the system has not said it
            return b"", []
        if self._family == socket.AF_INET6:
            return local, [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, local + _ANY_INTERFACE)]
        return local, [(socket.IPPROTO_IP, _IP_PKTINFO, _ANY_INTERFACE + local + bytes(4))]


DatagramSocket: TypeAlias = SingleAddressSocket | WildcardSocket
"""A socket as a resolver works with it."""


def wrap_socket(udp: socket.socket) -> DatagramSocket:
    """What a bound socket is worked with."""
    return WildcardSocket(udp) if is_wildcard(udp) else SingleAddressSocket(udp)
