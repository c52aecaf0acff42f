"""Messages in UDP packets: cutting them up and putting them together again.

A packet has at most 512 bytes: the envelope with the packet's number, and up to 492 bytes of the message; all
packets but the last are full. Packets come in any order, twice, or never. The number of packets follows from the
length that every envelope states; a request says by its TC flag that there are several, a response need not.

What is unfinished lives in memory that strangers fill, so it is bounded by source, in all, and in time. When room
is needed the oldest goes: the packets of an honest message arrive within milliseconds of each other, so it is
finished long before it is the oldest.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final

from . import message as envelope_module
from .message import Envelope

MAX_PACKET: Final = 512
"""Bytes of a packet, envelope included: deployed peers read with a buffer of this size."""

PACKET_PAYLOAD: Final = MAX_PACKET - envelope_module.ENVELOPE_LENGTH
"""Bytes of the message in a full packet."""

MAX_AGE: Final = 5.0
"""Seconds after its first packet at which an unfinished message is given up, as deployed servers do."""

MAX_PARTIAL_MESSAGES: Final = 64
"""Unfinished messages from one source: a busy institution behind one address has a few at a time."""

MAX_SOURCE_BYTES: Final = 1 << 20
"""What the unfinished messages of one source may cost: three of the greatest length."""

MAX_TOTAL_BYTES: Final = 8 << 20
"""What all unfinished messages may cost: what one process may spend on strangers who never finish."""

_PACKET_OVERHEAD = 128  # what keeping a packet costs beside its bytes
_MESSAGE_OVERHEAD = 768  # and keeping a message beside its packets, which may be a single byte each


def packet_count(length: int) -> int:
    """How many packets a message of so many bytes takes; an empty one takes one."""
    return max(1, -(-length // PACKET_PAYLOAD))


def split(envelope: Envelope, payload: bytes, *, request: bool) -> list[bytes]:
    """Cut what follows the envelope into packets; a request of several says so in each of them."""
    count = packet_count(len(payload))
    envelope = replace(envelope, length=len(payload), truncated=envelope.truncated or (request and count > 1))
    return [
        replace(envelope, sequence=number).to_bytes() + payload[number * PACKET_PAYLOAD : (number + 1) * PACKET_PAYLOAD]
        for number in range(count)
    ]


@dataclass(slots=True)
class _PartialMessage:
    """A message of which some packets have come."""

    envelope: Envelope
    since: float
    parts: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class _Source:
    """What one source has under way, oldest first."""

    messages: dict[int, _PartialMessage] = field(default_factory=dict)
    size: int = 0


class Reassembler:
    """Puts packets together. A source is whatever the caller tells peers apart by: a server uses the IP address."""

    def __init__(self) -> None:
        self._sources: dict[Hashable, _Source] = {}
        self._order: dict[tuple[Hashable, int], _PartialMessage] = {}  # all messages, oldest first
        self._size = 0

    @property
    def size(self) -> int:
        """What the unfinished messages cost."""
        return self._size

    def __len__(self) -> int:
        return len(self._order)

    def receive(self, source: Hashable, packet: bytes, now: float) -> tuple[Envelope, bytes] | None:
        """Take one packet of several; answer the message when it is whole. What does not fit together is dropped."""
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
            # Another attempt, with a fresh counter and MAC: nothing of the first fits together with it.
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
        """Give up what is too old."""
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
    """Whether a packet can be part of the message that its envelope announces."""
    if not envelope.has_valid_length or not 0 <= envelope.sequence < packet_count(envelope.length):
        return False
    return len(part) == min(PACKET_PAYLOAD, envelope.length - envelope.sequence * PACKET_PAYLOAD)
