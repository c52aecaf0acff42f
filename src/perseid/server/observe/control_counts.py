"""Counters of the control process: plain numbers, which `metrics` names when they are collected.

Only the event loop counts. Readers copy each table in one step, so they can be in any thread; they may see one request
partly counted. No table grows with what clients send: unknown codes are counted together.
"""

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
"""Upper bounds of the buckets for requests, in microseconds: from a lookup to a write that waits for others."""

LAG_BOUNDS: Final = (1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
"""Upper bounds of the buckets for the lag of the event loop, in microseconds."""

OTHER: Final = "other"
"""Label of unknown codes: clients must not be able to create new series."""

NO_RESPONSE: Final = "none"
"""Label of the code if nothing, or nothing readable, was sent."""

_MICROSECONDS = 1_000_000

RESOLUTION: Final = OpCode.RESOLUTION.name.lower()

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT"))
"""HTTP methods with their own series."""

_OPCODES = frozenset(OpCode)
_RESPONSE_CODES = frozenset(ResponseCode)


class Histogram:
    """The plain numbers of a histogram, in microseconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0

    def add(self, microseconds: int) -> None:
        self._counts[bisect_left(self._bounds, microseconds)] += 1
        self._sum += microseconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulative buckets as Prometheus has them, and the sum; in seconds."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, None), self._counts.copy(), strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound / _MICROSECONDS), float(total)))
        return buckets, self._sum / _MICROSECONDS


class ControlCounters:
    """The counters of the control process, for its event loop."""

    def __init__(self) -> None:
        self._fast_responses = dict.fromkeys([code.to_bytes(4, "big") for code in ResponseCode], 0)
        self._served: Counter[tuple[Transport, OpCode, ResponseCode | None]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._http: Counter[tuple[Transport, str, int]] = Counter()
        self.http_fast_responses: dict[tuple[bool, str, int], int] = {}
        """HTTP requests answered from the view: over TLS or not, method, first digit of the status."""
        self._http_authentication_failures: Counter[Transport] = Counter()
        self.durations = {transport: Histogram(DURATION_BOUNDS) for transport in Transport}
        self.lags = Histogram(LAG_BOUNDS)
        self._loop_lag = 0.0
        self._last_tick = monotonic()

    def count_fast_response(self, code: bytes) -> None:
        """Count a public resolution over TCP answered from the view; `code` as in the response."""
        self._fast_responses[code] = self._fast_responses.get(code, 0) + 1

    def served(self, transport: Transport, opcode: OpCode, code: ResponseCode | None, microseconds: int) -> None:
        """Count a request of the native protocol."""
        if opcode not in _OPCODES:  # a client that tries all numbers must not fill the memory
            opcode = OpCode.RESERVED
        self._served[transport, opcode, code] += 1
        self.durations[transport].add(microseconds)

    def http(self, transport: Transport, method: str, status: int) -> None:
        """Count an HTTP request."""
        self._http[transport, method if method in METHODS else OTHER, status // 100] += 1

    def count_http_failed_proof(self, transport: Transport) -> None:
        """Count a failed authentication over HTTP."""
        self._http_authentication_failures[transport] += 1

    def dropped(self, reason: str) -> None:
        """Count a forwarded datagram that gets no response, or a short one. The reason is a label of ours."""
        self._dropped[reason] += 1

    def limited(self, limit: str) -> None:
        """Count a limit that was reached. Its name is a label of ours."""
        self._limited[limit] += 1

    @property
    def loop_lag(self) -> float:
        """How late the event loop was at its last tick, in seconds. Setting it records a tick."""
        return self._loop_lag

    @loop_lag.setter
    def loop_lag(self, seconds: float) -> None:
        self._loop_lag = seconds
        self._last_tick = monotonic()
        self.lags.add(int(seconds * _MICROSECONDS))

    @property
    def seconds_since_tick(self) -> float:
        """Seconds since the last tick of the event loop."""
        return monotonic() - self._last_tick

    def requests(self) -> Counter[tuple[str, str, str]]:
        """Return requests by transport, operation and code."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for code_bytes, count in self._fast_responses.copy().items():
            if count:
                totals["tcp", RESOLUTION, _code_label(int.from_bytes(code_bytes, "big"))] += count
        for (transport, opcode, code), count in self._served.copy().items():
            totals[transport.name.lower(), _operation_label(opcode), _code_label(code)] += count
        return totals

    def authentication_failures(self) -> Counter[str]:
        """Return failed authentications by transport."""
        totals: Counter[str] = Counter()
        for (transport, _, code), count in self._served.copy().items():
            if code in (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY):
                totals[transport.name.lower()] += count
        for transport, count in self._http_authentication_failures.copy().items():
            totals[transport.name.lower()] += count
        return totals

    def http_requests(self) -> Counter[tuple[str, str, str]]:
        """Return HTTP requests by transport, method and class of status."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for (transport, method, hundreds), count in self._http.copy().items():
            totals[transport.name.lower(), method, f"{hundreds}xx"] += count
        for (secure, method, digit), count in self.http_fast_responses.copy().items():
            totals["https" if secure else "http", method, f"{chr(digit)}xx"] += count
        return totals

    def drops(self) -> Counter[str]:
        """Return dropped datagrams by reason."""
        return self._dropped.copy()

    def limits(self) -> Counter[str]:
        """Return how often limits were reached."""
        return self._limited.copy()


def _operation_label(opcode: OpCode) -> str:
    return OTHER if opcode is OpCode.RESERVED else opcode.name.lower()


def _code_label(code: int | None) -> str:
    if code is None:
        return NO_RESPONSE
    return ResponseCode(code).name.lower() if code in _RESPONSE_CODES else OTHER
