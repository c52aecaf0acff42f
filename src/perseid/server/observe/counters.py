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
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Self

from perseid.records.site import Transport
from perseid.wire.codes import OpCode, ResponseCode

PAGE: Final = 4096
"""Octets for each resolver: a page, so that no two of them write to the same cache line."""

_WORD = 8
_CODE = slice(24, 28)  # where the response code of an answer stands

# Which word is which. The first says that the page is laid out as this version of the program thinks.
_CODES = tuple(ResponseCode)
_LAYOUT_WORD, _HANDED_OVER, _DROPPED, _OCTETS_OUT, _OTHER_CODE, _OCTETS_FORWARDED = range(6)
_FIRST_CODE = 8
_LAYOUT = 2 << 32 | len(_CODES)
_WORD_OF_CODE = {code.to_bytes(4, "big"): _FIRST_CODE + place for place, code in enumerate(_CODES)}


class WrongLayout(Exception):
    """The shared memory was made by another version of the program: start all processes anew."""


@dataclass(frozen=True, slots=True)
class Count:
    """What one resolver, or several together, have done so far."""

    by_code: Mapping[ResponseCode, int] = field(default_factory=dict)
    """Answers given here, by response code; codes that were never used are left out."""
    other_code: int = 0
    """Answers with a code that nobody knows."""
    handed_over: int = 0
    """Datagrams that the control process got."""
    dropped: int = 0
    """Datagrams that got nothing: over a limit, no requests, or the control process could not take them."""
    octets_out: int = 0
    """Octets sent: all packets with their envelopes, also of answers that the control process gave."""

    @property
    def answered(self) -> int:
        """Datagrams answered here."""
        return sum(self.by_code.values()) + self.other_code

    @property
    def received(self) -> int:
        """Datagrams that came: each is answered, handed over or dropped."""
        return self.answered + self.handed_over + self.dropped

    def __add__(self, other: "Count") -> "Count":
        codes = {**self.by_code, **other.by_code}
        return Count(
            {code: self.by_code.get(code, 0) + other.by_code.get(code, 0) for code in codes},
            self.other_code + other.other_code,
            self.handed_over + other.handed_over,
            self.dropped + other.dropped,
            self.octets_out + other.octets_out,
        )


class Counters:
    """The counters of one resolver: `forwarded` for the thread that sends what control answers, the rest for the other.

    Adding to a word takes more than one step, so two threads that add to the same one would lose what they add.
    """

    __slots__ = ("_words",)

    def __init__(self, words: "memoryview[int]") -> None:
        self._words = words

    def answered(self, answer: bytes) -> None:
        """An answer was given here, and is sent; in packets it has some octets more, which `sent` adds."""
        words = self._words
        words[_WORD_OF_CODE.get(answer[_CODE], _OTHER_CODE)] += 1
        words[_OCTETS_OUT] += len(answer)

    def handed_over(self) -> None:
        """A datagram went to the control process."""
        self._words[_HANDED_OVER] += 1

    def dropped(self) -> None:
        """A datagram got nothing."""
        self._words[_DROPPED] += 1

    def sent(self, octets: int) -> None:
        """So many octets more were sent: the envelopes of further packets."""
        self._words[_OCTETS_OUT] += octets

    def forwarded(self, octets: int) -> None:
        """A packet was sent that the control process answered."""
        self._words[_OCTETS_FORWARDED] += octets

    def read(self) -> Count:
        """What was counted so far."""
        words = self._words
        codes = {code: words[_FIRST_CODE + place] for place, code in enumerate(_CODES)}
        return Count(
            {code: count for code, count in codes.items() if count},
            words[_OTHER_CODE],
            words[_HANDED_OVER],
            words[_DROPPED],
            words[_OCTETS_OUT] + words[_OCTETS_FORWARDED],
        )


class Board:
    """The shared memory with the counters of all resolvers."""

    def __init__(self, descriptor: int) -> None:
        """Take memory that `create` made, in this process or another; the descriptor stays the caller's."""
        size = os.fstat(descriptor).st_size
        if not size or size % PAGE:
            raise WrongLayout(f"{size} octets are no counters")
        self.descriptor = descriptor
        """What other processes open the memory by."""
        self._map = mmap.mmap(descriptor, size)
        self._whole = memoryview(self._map)
        self._pages = [self._whole[at : at + PAGE].cast("Q") for at in range(0, size, PAGE)]
        if any(page[_LAYOUT_WORD] != _LAYOUT for page in self._pages):
            self.close()
            raise WrongLayout("the counters were made by another version of the program; start it anew")

    @classmethod
    def create(cls, resolvers: int) -> Self:
        """Make the memory for so many resolvers. Processes that are to have it inherit the descriptor."""
        descriptor = os.memfd_create("perseid-counters", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, resolvers * PAGE)
            layout = _LAYOUT.to_bytes(_WORD, sys.byteorder)
            for at in range(0, resolvers * PAGE, PAGE):
                os.pwrite(descriptor, layout, at + _LAYOUT_WORD * _WORD)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def __len__(self) -> int:
        return len(self._pages)

    def counters(self, resolver: int) -> Counters:
        """The counters of one resolver. Only that resolver may count."""
        return Counters(self._pages[resolver])

    def read(self) -> list[Count]:
        """What each resolver has counted."""
        return [Counters(page).read() for page in self._pages]

    def total(self) -> Count:
        """What all of them have counted together."""
        return sum(self.read(), Count())

    def close(self) -> None:
        """Give the memory back; whoever made it closes the descriptor as well. Nobody may be counting."""
        for page in self._pages:
            page.release()
        self._whole.release()
        self._map.close()


DURATIONS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000)
"""Upper bounds of the buckets for requests, in microseconds: from a look-up to a write that waits for others."""

LAGS: Final = (1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
"""Upper bounds of the buckets for the lag of the event loop, in microseconds."""

OTHER: Final = "other"
"""Stands for codes that nobody knows: whoever sends them must not make new series."""

NO_ANSWER: Final = "none"
"""Stands for the code where nothing, or nothing readable, was answered."""

_MICROSECONDS = 1_000_000

RESOLUTION: Final = OpCode.RESOLUTION.name.lower()

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT"))
"""Methods of HTTP that are counted by themselves."""

_OPCODES = frozenset(OpCode)
_RESPONSE_CODES = frozenset(ResponseCode)


class Histogram:
    """Plain numbers behind a histogram; in microseconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0

    def add(self, microseconds: int) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, microseconds)] += 1
        self._sum += microseconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """The buckets as Prometheus has them, each with all below it, and the sum; in seconds."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, None), self._counts.copy(), strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound / _MICROSECONDS), float(total)))
        return buckets, self._sum / _MICROSECONDS


class ControlCounts:
    """What the control process counts, in its event loop."""

    def __init__(self) -> None:
        self._at_once = dict.fromkeys([code.to_bytes(4, "big") for code in ResponseCode], 0)
        self._served: Counter[tuple[Transport, OpCode, ResponseCode | None]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._http: Counter[tuple[Transport, str, int]] = Counter()
        self.http_at_once: dict[tuple[bool, str, int], int] = {}
        """Requests over HTTP that were answered from the view: over TLS or not, method, first digit of the status."""
        self._http_failed: Counter[Transport] = Counter()
        self.durations = {transport: Histogram(DURATIONS) for transport in Transport}
        self.lags = Histogram(LAGS)
        self._loop_lag = 0.0
        self._seen = monotonic()

    def answered_at_once(self, code: bytes) -> None:
        """A public resolution over TCP was answered from the view; `code` as it stands in the answer."""
        self._at_once[code] = self._at_once.get(code, 0) + 1

    def served(self, transport: Transport, opcode: OpCode, code: ResponseCode | None, microseconds: int) -> None:
        """A request went through the door."""
        if opcode not in _OPCODES:  # whoever counts through all of them must not fill the memory
            opcode = OpCode.RESERVED
        self._served[transport, opcode, code] += 1
        self.durations[transport].add(microseconds)

    def http(self, transport: Transport, method: str, status: int) -> None:
        """A request over HTTP was answered."""
        self._http[transport, method if method in METHODS else OTHER, status // 100] += 1

    def http_failed_proof(self, transport: Transport) -> None:
        """Somebody tried to prove an identity over HTTP and failed."""
        self._http_failed[transport] += 1

    def dropped(self, reason: str) -> None:
        """Something that resolvers handed over gets no answer, or a short one. The reason is a word of ours."""
        self._dropped[reason] += 1

    def limited(self, limit: str) -> None:
        """A limit was reached. Its name is a word of ours."""
        self._limited[limit] += 1

    @property
    def loop_lag(self) -> float:
        """How late the event loop was when it last looked, in seconds. Setting it says that the loop is at work."""
        return self._loop_lag

    @loop_lag.setter
    def loop_lag(self, seconds: float) -> None:
        self._loop_lag = seconds
        self._seen = monotonic()
        self.lags.add(int(seconds * _MICROSECONDS))

    @property
    def silence(self) -> float:
        """Seconds since the event loop was last seen at work."""
        return monotonic() - self._seen

    def requests(self) -> Counter[tuple[str, str, str]]:
        """Requests by transport, operation and code."""
        found: Counter[tuple[str, str, str]] = Counter()
        for octets, count in self._at_once.copy().items():
            if count:
                found["tcp", RESOLUTION, _code(int.from_bytes(octets, "big"))] += count
        for (transport, opcode, code), count in self._served.copy().items():
            found[transport.name.lower(), _operation(opcode), _code(code)] += count
        return found

    def failed_proofs(self) -> Counter[str]:
        """Requests by transport that were to prove something and did not."""
        found: Counter[str] = Counter()
        for (transport, _, code), count in self._served.copy().items():
            if code in (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY):
                found[transport.name.lower()] += count
        for transport, count in self._http_failed.copy().items():
            found[transport.name.lower()] += count
        return found

    def http_requests(self) -> Counter[tuple[str, str, str]]:
        """Requests over HTTP by transport, method and class of status."""
        found: Counter[tuple[str, str, str]] = Counter()
        for (transport, method, hundreds), count in self._http.copy().items():
            found[transport.name.lower(), method, f"{hundreds}xx"] += count
        for (secure, method, digit), count in self.http_at_once.copy().items():
            found["https" if secure else "http", method, f"{chr(digit)}xx"] += count
        return found

    def drops(self) -> Counter[str]:
        """What was dropped, by reason."""
        return self._dropped.copy()

    def limits(self) -> Counter[str]:
        """Limits that were reached."""
        return self._limited.copy()


def _operation(opcode: OpCode) -> str:
    return OTHER if opcode is OpCode.RESERVED else opcode.name.lower()


def _code(code: int | None) -> str:
    if code is None:
        return NO_ANSWER
    return ResponseCode(code).name.lower() if code in _RESPONSE_CODES else OTHER
