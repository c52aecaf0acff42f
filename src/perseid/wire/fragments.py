"""Fragmentation of messages into UDP packets, and reassembly.

A packet has at most 512 bytes: the envelope with the packet number, and up to 492 bytes of the message; all packets but
the last are full. Packets can arrive in any order, twice, or never. The number of packets follows from the length in
every envelope; a request with several has the TC flag, a response may not.

Partial messages use memory that untrusted peers fill, so it is limited per source, in total and in time. The oldest is
evicted first: the packets of an honest message arrive within milliseconds.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final

from . import message as envelope_module
from .message import Envelope

MAX_PACKET: Final = 512
"""Maximum size of a packet with envelope, in bytes: the buffer size of deployed peers."""

PACKET_PAYLOAD: Final = MAX_PACKET - envelope_module.ENVELOPE_LENGTH
"""Bytes of the message in a full packet."""

MAX_AGE: Final = 5.0
"""Seconds from its first packet until a partial message is dropped, as in deployed servers."""

MAX_PARTIAL_MESSAGES: Final = 64
"""Maximum number of partial messages per source: a busy institution with one address has a few."""

MAX_SOURCE_BYTES: Final = 1 << 20
"""Maximum memory for partial messages per source: three of the maximum length."""

MAX_TOTAL_BYTES: Final = 8 << 20
"""Maximum memory for all partial messages of a process."""

_PACKET_OVERHEAD = 128  # memory per packet besides its bytes
_MESSAGE_OVERHEAD = 768  # memory per message besides its packets


def packet_count(length: int) -> int:
    """Number of packets of a message of `length` bytes; at least one."""
    return max(1, -(-length // PACKET_PAYLOAD))


def split(envelope: Envelope, payload: bytes, *, request: bool) -> list[bytes]:
    """Split a payload into packets; a request with several has the TC flag in each."""
    count = packet_count(len(payload))
    envelope = replace(envelope, length=len(payload), truncated=envelope.truncated or (request and count > 1))
    return [
        replace(envelope, sequence=number).to_bytes() + payload[number * PACKET_PAYLOAD : (number + 1) * PACKET_PAYLOAD]
        for number in range(count)
    ]


@dataclass(slots=True)
class _PartialMessage:
    """A message with missing packets."""

    envelope: Envelope
    since: float
    parts: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class _Source:
    """The partial messages of one source, oldest first."""

    messages: dict[int, _PartialMessage] = field(default_factory=dict)
    size: int = 0


class Reassembler:
    """Reassembles packets. The caller defines what a source is; a server uses the IP address."""

    def __init__(self) -> None:
        self._sources: dict[Hashable, _Source] = {}
        self._order: dict[tuple[Hashable, int], _PartialMessage] = {}  # all messages, oldest first
        self._size = 0

    @property
    def size(self) -> int:
        """Memory used by partial messages."""
        return self._size

    def __len__(self) -> int:
        return len(self._order)

    def receive(self, source: Hashable, packet: bytes, now: float) -> tuple[Envelope, bytes] | None:
        """Add a packet; return the message if it is complete. Inconsistent packets are dropped."""
        self.expire(now)
        envelope = Envelope.from_bytes(packet)
        part = packet[envelope_module.ENVELOPE_LENGTH :]
        if not _is_valid_fragment(envelope, part):
            return None
        request_id = envelope.request_id
        message = self._order.get((source, request_id))
        if message is None:
            message = self._begin(source, envelope, now)
        known = message.parts.get(envelope.sequence)
        if message.envelope != replace(envelope, sequence=0) or known == part:
            return None
        if known is not None:
            # A retry with a new counter and MAC: drop the packets of the first attempt.
            self._drop(source, request_id)
            message = self._begin(source, envelope, now)
        self._add(source, message, envelope.sequence, part)
        if len(message.parts) == packet_count(envelope.length):
            self._drop(source, request_id)
            payload = b"".join(message.parts[number] for number in range(len(message.parts)))
            return message.envelope, payload
        self._evict(source)
        return None

    def expire(self, now: float) -> None:
        """Drop expired messages."""
        while self._order:
            (source, request_id), message = next(iter(self._order.items()))
            if abs(now - message.since) <= MAX_AGE:
                return
            self._drop(source, request_id)

    def _begin(self, source: Hashable, envelope: Envelope, now: float) -> _PartialMessage:
        message = _PartialMessage(replace(envelope, sequence=0), now)
        self._sources.setdefault(source, _Source()).messages[envelope.request_id] = message
        self._order[source, envelope.request_id] = message
        self._charge(source, message, _MESSAGE_OVERHEAD)
        return message

    def _add(self, source: Hashable, message: _PartialMessage, number: int, part: bytes) -> None:
        message.parts[number] = part
        self._charge(source, message, len(part) + _PACKET_OVERHEAD)

    def _charge(self, source: Hashable, message: _PartialMessage, cost: int) -> None:
        message.size += cost
        self._sources[source].size += cost
        self._size += cost

    def _drop(self, source: Hashable, request_id: int) -> None:
        message = self._order.pop((source, request_id))
        self._size -= message.size
        source_state = self._sources[source]
        source_state.size -= message.size
        del source_state.messages[request_id]
        if not source_state.messages:
            del self._sources[source]

    def _evict(self, source: Hashable) -> None:
        while (source_state := self._sources.get(source)) and (
            source_state.size > MAX_SOURCE_BYTES or len(source_state.messages) > MAX_PARTIAL_MESSAGES
        ):
            self._drop(source, next(iter(source_state.messages)))
        while self._size > MAX_TOTAL_BYTES:
            self._drop(*next(iter(self._order)))


def _is_valid_fragment(envelope: Envelope, part: bytes) -> bool:
    """Whether the number and size of a packet match the length in its envelope."""
    if not envelope.has_valid_length or not 0 <= envelope.sequence < packet_count(envelope.length):
        return False
    return len(part) == min(PACKET_PAYLOAD, envelope.length - envelope.sequence * PACKET_PAYLOAD)
