"""Counters of resolvers: integers in memory that resolvers and the control process share.

A resolver spends some microseconds on a request; a metrics library would need a tenth of that for every increment. So
each resolver adds to words of its own page, without locks, because nothing else writes there; each of its two threads
has its own words. The control process reads the pages when metrics are collected. The memory is anonymous and belongs
to its descriptor: the supervisor creates it and passes the descriptor to the processes that it starts. A restarted
resolver continues to count where the last one ended. A counter never decreases.

Words are aligned, have 64 bits, and are read and written whole through a memory view. A reader may see one request
partly counted, but never half a number.
"""

import mmap
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from perseid.server.limits.udp import IncompatibleLayout
from perseid.wire.codes import ResponseCode
from perseid.wire.message import RESPONSE_CODE

PAGE: Final = 4096
"""Bytes for each resolver: a page, so that no two resolvers write to the same cache line."""

_WORD_SIZE = 8

# Positions of the words. The first identifies the layout.
_CODES = tuple(ResponseCode)
_LAYOUT_WORD, _FORWARDED, _DROPPED, _BYTES_SENT, _OTHER_CODE, _BYTES_RELAYED = range(6)
_FIRST_CODE = 8
_LAYOUT = 2 << 32 | len(_CODES)
_CODE_WORDS = {code.to_bytes(4, "big"): _FIRST_CODE + position for position, code in enumerate(_CODES)}


@dataclass(frozen=True, slots=True)
class CounterTotals:
    """Counters of one resolver, or of several together."""

    by_code: Mapping[ResponseCode, int] = field(default_factory=dict)
    """Responses by code; unused codes are left out."""
    other_code: int = 0
    """Responses with an unknown code."""
    forwarded: int = 0
    """Datagrams forwarded to the control process."""
    dropped: int = 0
    """Datagrams without a response: over a limit, not a request, or not accepted by the control process."""
    bytes_sent: int = 0
    """Bytes sent: all packets with their envelopes, including responses of the control process."""

    @property
    def answered(self) -> int:
        """Datagrams answered by the resolver itself."""
        return sum(self.by_code.values()) + self.other_code

    @property
    def received(self) -> int:
        """Datagrams received: each is answered, forwarded or dropped."""
        return self.answered + self.forwarded + self.dropped

    def __add__(self, other: "CounterTotals") -> "CounterTotals":
        codes = {**self.by_code, **other.by_code}
        return CounterTotals(
            {code: self.by_code.get(code, 0) + other.by_code.get(code, 0) for code in codes},
            self.other_code + other.other_code,
            self.forwarded + other.forwarded,
            self.dropped + other.dropped,
            self.bytes_sent + other.bytes_sent,
        )


class ResolverCounters:
    """Counters of one resolver.

    `relayed` is for the thread that sends responses of control, the rest for the other thread: an addition takes more
    than one step, so two threads that add to the same word would lose counts.
    """

    __slots__ = ("_words",)

    def __init__(self, words: "memoryview[int]") -> None:
        self._words = words

    def answered(self, answer: bytes) -> None:
        """Count a response that is sent. `sent` adds the bytes of further envelopes."""
        words = self._words
        words[_CODE_WORDS.get(answer[RESPONSE_CODE], _OTHER_CODE)] += 1
        words[_BYTES_SENT] += len(answer)

    def forwarded(self) -> None:
        """Count a datagram forwarded to the control process."""
        self._words[_FORWARDED] += 1

    def dropped(self) -> None:
        self._words[_DROPPED] += 1

    def sent(self, size: int) -> None:
        """Count further bytes: the envelopes of further packets."""
        self._words[_BYTES_SENT] += size

    def relayed(self, size: int) -> None:
        """Count a packet sent for the control process."""
        self._words[_BYTES_RELAYED] += size

    def read(self) -> CounterTotals:
        words = self._words
        codes = {code: words[_FIRST_CODE + position] for position, code in enumerate(_CODES)}
        return CounterTotals(
            {code: count for code, count in codes.items() if count},
            words[_OTHER_CODE],
            words[_FORWARDED],
            words[_DROPPED],
            words[_BYTES_SENT] + words[_BYTES_RELAYED],
        )


class SharedCounters:
    """The shared memory with the counters of all resolvers."""

    def __init__(self, descriptor: int) -> None:
        """Map memory that `create` made, in any process; the descriptor stays the caller's."""
        size = os.fstat(descriptor).st_size
        if not size or size % PAGE:
            raise IncompatibleLayout(f"invalid size of the shared counters: {size} bytes")
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self._whole = memoryview(self._map)
        self._pages = [self._whole[at : at + PAGE].cast("Q") for at in range(0, size, PAGE)]
        if any(page[_LAYOUT_WORD] != _LAYOUT for page in self._pages):
            self.close()
            raise IncompatibleLayout("the shared counters were created by another version; restart the server")

    @classmethod
    def create(cls, resolvers: int) -> Self:
        """Create the memory. Other processes inherit the descriptor."""
        descriptor = os.memfd_create("perseid-counters", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, resolvers * PAGE)
            layout = _LAYOUT.to_bytes(_WORD_SIZE, sys.byteorder)
            for at in range(0, resolvers * PAGE, PAGE):
                os.pwrite(descriptor, layout, at + _LAYOUT_WORD * _WORD_SIZE)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def __len__(self) -> int:
        return len(self._pages)

    def counters(self, resolver: int) -> ResolverCounters:
        """Return the counters of one resolver. Only that resolver may count."""
        return ResolverCounters(self._pages[resolver])

    def read(self) -> list[CounterTotals]:
        """Return the counters of each resolver."""
        return [ResolverCounters(page).read() for page in self._pages]

    def total(self) -> CounterTotals:
        """Return the sum of all resolvers."""
        return sum(self.read(), CounterTotals())

    def close(self) -> None:
        """Unmap the memory; the creator also closes the descriptor. Nothing may be counting."""
        for page in self._pages:
            page.release()
        self._whole.release()
        self._map.close()
