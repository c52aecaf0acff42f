"""What passes between a resolver and the control process: datagrams with the address they came from or go to.

A resolver hands over what it does not answer itself, and control's answer leaves through the socket of the resolver
that handed it over, so a client sees one peer. Each message on the Unix socket between them is one datagram:

    0   when it was handed over, seconds of the monotonic clock of the machine, which all its processes share
    8   port     10  scope of a link-local IPv6 address     14  length of the host, then the host     …  the datagram
"""

from struct import Struct
from typing import Final, NamedTuple, TypeAlias

MAX_DATAGRAM: Final = 512
"""Octets of the longest datagram that deployed peers send; what is longer is cut by one octet more, to be noticed."""

MAX_AGE: Final = 2.0
"""Seconds for which a datagram that was handed over is worth an answer. Clients ask again after 0.5, 1 and 1.5 seconds;
what waited longer, while control was started anew, has been asked again since."""

QUEUE_OCTETS: Final = 1 << 20
"""Room for datagrams that control has not taken yet, and for answers that a resolver has not sent: some hundred. When
it is full they are dropped, as UDP does: clients ask again, or over TCP."""

Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""An address as the socket module has it, of IPv4 or IPv6."""

_HEAD = Struct("!dHIB")
_LONGEST_HOST = 255


class Parcel(NamedTuple):
    """A datagram on its way between the processes."""

    at: float
    address: Address
    datagram: bytes


def pack(at: float, address: Address, datagram: bytes) -> bytes:
    """A datagram as it is handed over."""
    host = address[0].encode("ascii")
    scope = address[3] if len(address) == 4 else 0
    return _HEAD.pack(at, address[1], scope, len(host)) + host + datagram


def unpack(octets: bytes) -> Parcel:
    """The same the other way. Both ends are ours, so it is whole."""
    at, port, scope, length = _HEAD.unpack_from(octets)
    end = _HEAD.size + length
    host = octets[_HEAD.size : end].decode("ascii")
    address: Address = (host, port, 0, scope) if ":" in host else (host, port)
    return Parcel(at, address, octets[end:])


MAX_PARCEL: Final = _HEAD.size + _LONGEST_HOST + MAX_DATAGRAM + 1
"""Octets of the longest message between the processes."""
