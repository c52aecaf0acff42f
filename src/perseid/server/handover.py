"""What passes between a resolver and the control process: datagrams with the address they came from or go to.

Answers are not handed over. Whoever forges addresses could otherwise send a server its own answers, or those of
another one, and have it answer them for ever.

A resolver hands over what it does not answer itself, and control's answer leaves through the socket of the resolver
that handed it over, so a client sees one peer. Each message on the Unix socket between them is one datagram:

    0   when it was handed over, seconds of the monotonic clock of the machine, which all its processes share
    8   port     10  scope of a link-local IPv6 address     14  length of the host     15  length of the local address
    16  the host, the address of this machine that was asked if that has to be said (see `datagrams`), the datagram
"""

from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from perseid.wire.fragments import MAX_PACKET
from perseid.wire.message import ENVELOPE_LENGTH as ENVELOPE

MAX_AGE: Final = 2.0
"""Seconds for which a datagram that was handed over is worth an answer. Clients ask again after 0.5, 1 and 1.5 seconds;
what waited longer, while control was started anew, has been asked again since."""

QUEUE_OCTETS: Final = 1 << 20
"""Room for datagrams that control has not taken yet, and for answers that a resolver has not sent: some hundred. When
it is full they are dropped, as UDP does: clients ask again, or over TCP."""

Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""An address as the socket module has it, of IPv4 or IPv6."""

_HEAD = Struct("!dHIBB")
_LONGEST_HOST = _LONGEST_LOCAL = 255

# Of an envelope: flags, number of the packet, length. Then comes the header, of which the response code is looked at.
_DELIVERY = Struct(">2xB9xii")
_CODE = slice(ENVELOPE + 4, ENVELOPE + 8)
_ENCRYPTED, _IN_SEVERAL_PACKETS = 0x40, 0x20


class Parcel(NamedTuple):
    """A datagram on its way between the processes."""

    at: float
    address: Address
    datagram: bytes
    local: bytes = b""
    """The address of this machine that was asked and has to answer, as octets; none where there is only one."""


def pack(at: float, address: Address, datagram: bytes, local: bytes = b"") -> bytes:
    """A datagram as it is handed over."""
    host = address[0].encode("ascii")
    scope = address[3] if len(address) == 4 else 0
    return b"".join((_HEAD.pack(at, address[1], scope, len(host), len(local)), host, local, datagram))


def unpack(octets: bytes) -> Parcel:
    """The same the other way. Both ends are ours, so it is whole."""
    at, port, scope, length, local_length = _HEAD.unpack_from(octets)
    local_at = _HEAD.size + length
    end = local_at + local_length
    host = octets[_HEAD.size : local_at].decode("ascii")
    address: Address = (host, port, 0, scope) if ":" in host else (host, port)
    return Parcel(at, address, octets[end:], octets[local_at:end])


MAX_PARCEL: Final = _HEAD.size + _LONGEST_HOST + _LONGEST_LOCAL + MAX_PACKET + 1
"""Octets of the longest message between the processes. Of a datagram that is longer than any packet one octet more than
fits comes along, to be noticed."""


def is_answer(datagram: bytes) -> bool:
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
        return not flags & _IN_SEVERAL_PACKETS
    return not flags & _ENCRYPTED and any(datagram[_CODE])
