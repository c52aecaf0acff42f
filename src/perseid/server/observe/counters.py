"""Counters of resolvers: plain integers in memory that resolvers and the control process share.

A resolver spends some microseconds on a request, of which a metrics library would take a tenth for every increment. So
it adds to words of a page of its own, without locks, for nobody else writes there (of its two threads each has words of
its own); the control process reads the pages
whenever somebody asks for metrics. The memory is anonymous and belongs to its descriptor: the supervisor makes it and
hands the descriptor to the processes that it starts, and a resolver that is started anew goes on counting where the
last one ended. A counter never goes back.

Words are aligned and have 64 bits, and are read and written whole through a memory view. A reader may see the words of
one request partly counted; it never sees half a number.

What the control process counts: plain numbers, which `metrics` names when somebody asks for them.

Only the event loop counts. Whoever reads copies each table in one step, so it may be any thread; it may see one request
partly counted. No table grows with what strangers send: codes that nobody knows are counted together.
"""

import mmap
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from perseid.wire.codes import ResponseCode

PAGE: Final = 4096
"""Octets for each resolver: a page, so that no two of them write to the same cache line."""

_WORD_SIZE = 8
_CODE = slice(24, 28)  # where the response code of an answer stands

# Which word is which. The first says that the page is laid out as this version of the program thinks.
_CODES = tuple(ResponseCode)
_LAYOUT_WORD, _FORWARDED, _DROPPED, _BYTES_SENT, _OTHER_CODE, _BYTES_FORWARDED = range(6)
_FIRST_CODE = 8
_LAYOUT = 2 << 32 | len(_CODES)
_CODE_WORDS = {code.to_bytes(4, "big"): _FIRST_CODE + position for position, code in enumerate(_CODES)}


class IncompatibleLayout(Exception):
    """The shared memory was made by another version of the program: start all processes anew."""


@dataclass(frozen=True, slots=True)
class CounterTotals:
    """What one resolver, or several together, have done so far."""

    by_code: Mapping[ResponseCode, int] = field(default_factory=dict)
    """Answers given here, by response code; codes that were never used are left out."""
    other_code: int = 0
    """Answers with a code that nobody knows."""
    handed_over: int = 0
    """Datagrams that the control process got."""
    dropped: int = 0
    """Datagrams that got nothing: over a limit, no requests, or the control process could not take them."""
    bytes_sent: int = 0
    """Octets sent: all packets with their envelopes, also of answers that the control process gave."""

    @property
    def answered(self) -> int:
        """Datagrams answered here."""
        return sum(self.by_code.values()) + self.other_code

    @property
    def received(self) -> int:
        """Datagrams that came: each is answered, handed over or dropped."""
        return self.answered + self.handed_over + self.dropped

    def __add__(self, other: "CounterTotals") -> "CounterTotals":
        codes = {**self.by_code, **other.by_code}
        return CounterTotals(
            {code: self.by_code.get(code, 0) + other.by_code.get(code, 0) for code in codes},
            self.other_code + other.other_code,
            self.handed_over + other.handed_over,
            self.dropped + other.dropped,
            self.bytes_sent + other.bytes_sent,
        )


class ResolverCounters:
    """The counters of one resolver: `forwarded` for the thread that sends what control answers, the rest for the other.

    Adding to a word takes more than one step, so two threads that add to the same one would lose what they add.
    """

    __slots__ = ("_words",)

    def __init__(self, words: "memoryview[int]") -> None:
        self._words = words

    def answered(self, answer: bytes) -> None:
        """An answer was given here, and is sent; in packets it has some octets more, which `sent` adds."""
        words = self._words
        words[_CODE_WORDS.get(answer[_CODE], _OTHER_CODE)] += 1
        words[_BYTES_SENT] += len(answer)

    def handed_over(self) -> None:
        """A datagram went to the control process."""
        self._words[_FORWARDED] += 1

    def dropped(self) -> None:
        """A datagram got nothing."""
        self._words[_DROPPED] += 1

    def sent(self, octets: int) -> None:
        """So many octets more were sent: the envelopes of further packets."""
        self._words[_BYTES_SENT] += octets

    def forwarded(self, octets: int) -> None:
        """A packet was sent that the control process answered."""
        self._words[_BYTES_FORWARDED] += octets

    def read(self) -> CounterTotals:
        """What was counted so far."""
        words = self._words
        codes = {code: words[_FIRST_CODE + position] for position, code in enumerate(_CODES)}
        return CounterTotals(
            {code: count for code, count in codes.items() if count},
            words[_OTHER_CODE],
            words[_FORWARDED],
            words[_DROPPED],
            words[_BYTES_SENT] + words[_BYTES_FORWARDED],
        )


class SharedCounters:
    """The shared memory with the counters of all resolvers."""

    def __init__(self, descriptor: int) -> None:
        """Take memory that `create` made, in this process or another; the descriptor stays the caller's."""
        size = os.fstat(descriptor).st_size
        if not size or size % PAGE:
            raise IncompatibleLayout(f"{size} octets are no counters")
        self.descriptor = descriptor
        """What other processes open the memory by."""
        self._map = mmap.mmap(descriptor, size)
        self._whole = memoryview(self._map)
        self._pages = [self._whole[at : at + PAGE].cast("Q") for at in range(0, size, PAGE)]
        if any(page[_LAYOUT_WORD] != _LAYOUT for page in self._pages):
            self.close()
            raise IncompatibleLayout("the counters were made by another version of the program; start it anew")

    @classmethod
    def create(cls, resolvers: int) -> Self:
        """Make the memory for so many resolvers. Processes that are to have it inherit the descriptor."""
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
        """The counters of one resolver. Only that resolver may count."""
        return ResolverCounters(self._pages[resolver])

    def read(self) -> list[CounterTotals]:
        """What each resolver has counted."""
        return [ResolverCounters(page).read() for page in self._pages]

    def total(self) -> CounterTotals:
        """What all of them have counted together."""
        return sum(self.read(), CounterTotals())

    def close(self) -> None:
        """Give the memory back; whoever made it closes the descriptor as well. Nobody may be counting."""
        for page in self._pages:
            page.release()
        self._whole.release()
        self._map.close()
