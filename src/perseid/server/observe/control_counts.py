"""What the control process counts: plain numbers, which `metrics` names when they are collected."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Final

from perseid.records.site import Transport
from perseid.wire.codes import OpCode, ResponseCode

DURATION_BOUNDS: Final = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
)
"""Upper bounds of the buckets for requests, in microseconds: from a look-up to a write that waits for others."""

LAG_BOUNDS: Final = (1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
"""Upper bounds of the buckets for the lag of the event loop, in microseconds."""

OTHER: Final = "other"
"""Stands for codes that nobody knows: whoever sends them must not make new series."""

NO_RESPONSE: Final = "none"
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


class ControlCounters:
    """What the control process counts, in its event loop."""

    def __init__(self) -> None:
        self._at_once = dict.fromkeys([code.to_bytes(4, "big") for code in ResponseCode], 0)
        self._served: Counter[tuple[Transport, OpCode, ResponseCode | None]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._http: Counter[tuple[Transport, str, int]] = Counter()
        self.http_fast_responses: dict[tuple[bool, str, int], int] = {}
        """Requests over HTTP that were answered from the view: over TLS or not, method, first digit of the status."""
        self._http_failed: Counter[Transport] = Counter()
        self.durations = {transport: Histogram(DURATION_BOUNDS) for transport in Transport}
        self.lags = Histogram(LAG_BOUNDS)
        self._loop_lag = 0.0
        self._seen = monotonic()

    def count_fast_response(self, code: bytes) -> None:
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

    def count_http_failed_proof(self, transport: Transport) -> None:
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
                found["tcp", RESOLUTION, _code_label(int.from_bytes(octets, "big"))] += count
        for (transport, opcode, code), count in self._served.copy().items():
            found[transport.name.lower(), _operation_label(opcode), _code_label(code)] += count
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
        for (secure, method, digit), count in self.http_fast_responses.copy().items():
            found["https" if secure else "http", method, f"{chr(digit)}xx"] += count
        return found

    def drops(self) -> Counter[str]:
        """What was dropped, by reason."""
        return self._dropped.copy()

    def limits(self) -> Counter[str]:
        """Limits that were reached."""
        return self._limited.copy()


def _operation_label(opcode: OpCode) -> str:
    return OTHER if opcode is OpCode.RESERVED else opcode.name.lower()


def _code_label(code: int | None) -> str:
    if code is None:
        return NO_RESPONSE
    return ResponseCode(code).name.lower() if code in _RESPONSE_CODES else OTHER
