"""Metrics for Prometheus.

A counter of the metrics library costs a tenth of a request. So requests are counted in plain numbers, by each worker in
its `WorkerCounters`. Once a second it publishes them in shared memory (`counters`). The library is used only when
metrics are collected, by any worker: a collector adds up the numbers of all workers and names them. `FAMILIES` defines
all metrics, for the collector and for the manual.

The collector runs in another thread than the event loop. It copies each table in one step and calls the functions of
`MetricSources`; what fails there is left out and counted.
"""

import logging
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from perseid.ledger.store.node_reports import NodeReport, read_reports
from perseid.records.site import Transport
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.message import RESPONSE_CODE

from .tally import RequestTally

if TYPE_CHECKING:
    from perseid.compiled import native
    from perseid.ledger.ledger import Ledger
    from perseid.server.native.work import WorkKind
    from perseid.server.processes.pools import PoolStats
    from perseid.server.state.state import TableSize

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
_logger = logging.getLogger(__name__)


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

    def read(self) -> list[float]:
        """Return the cumulative counts of the buckets, and the sum in seconds."""
        return [*accumulate(self._counts.copy()), self._sum / _MICROSECONDS]


class WorkerCounters:
    """The counters of a worker, in plain numbers.

    Only the event loop counts. Readers copy each table in one step, so they can be in any thread; they may see one
    request partly counted. No table grows with what clients send: unknown codes are counted together.
    """

    def __init__(self) -> None:
        self._fast_responses = dict.fromkeys([code.to_bytes(4, "big") for code in ResponseCode], 0)
        self._udp_responses = self._fast_responses.copy()
        self.udp_bytes = 0
        """Bytes sent over UDP by the event loop."""
        self.compiled: native.Loop | None = None
        """The thread that answers public resolution, and counts it."""
        self._served: Counter[tuple[Transport, OpCode, ResponseCode | None]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._http: Counter[tuple[Transport, str, int]] = Counter()
        self.http_fast_responses: dict[tuple[bool, str, int], int] = {}
        """HTTP requests answered from the view: over TLS or not, method, first digit of the status."""
        self._http_authentication_failures: Counter[Transport] = Counter()
        self.durations = {transport: Histogram(DURATION_BOUNDS) for transport in Transport}
        self.lags = Histogram(LAG_BOUNDS)
        self.tally = RequestTally()
        """Requests by namespace, for statistics."""

    def count_fast_response(self, code: bytes) -> None:
        """Count a public resolution over TCP answered from the view; `code` as in the response."""
        self._fast_responses[code] = self._fast_responses.get(code, 0) + 1

    def count_udp_response(self, response: bytes, size: int) -> None:
        """Count a public resolution over UDP, and the bytes of all its packets."""
        code = response[RESPONSE_CODE]
        self._udp_responses[code] = self._udp_responses.get(code, 0) + 1
        self.udp_bytes += size

    def continue_udp(self, responses: Mapping[bytes, int], size: int) -> None:
        """Continue the counts of the process that has answered over UDP before."""
        self._udp_responses |= responses
        self.udp_bytes += size

    def count_request(self, transport: Transport, opcode: OpCode, code: ResponseCode | None, microseconds: int) -> None:
        """Count a request of the native protocol."""
        if opcode not in _OPCODES:  # a client that tries all numbers must not fill the memory
            opcode = OpCode.RESERVED
        self._served[transport, opcode, code] += 1
        self.durations[transport].add(microseconds)

    def count_http_request(self, transport: Transport, method: str, status: int) -> None:
        """Count an HTTP request."""
        self._http[transport, method if method in METHODS else OTHER, status // 100] += 1

    def count_http_failed_proof(self, transport: Transport) -> None:
        """Count a failed authentication over HTTP."""
        self._http_authentication_failures[transport] += 1

    def count_drop(self, reason: str) -> None:
        """Count a datagram that gets no response, or a short one. The reason is a label of ours."""
        self._dropped[reason] += 1

    def count_limit(self, limit: str) -> None:
        """Count a limit that was reached. Its name is a label of ours."""
        self._limited[limit] += 1

    def sent_udp_bytes(self) -> int:
        """Return the bytes sent over UDP."""
        return self.udp_bytes + (0 if self.compiled is None else self.compiled.counts()[1])

    def requests(self) -> Counter[tuple[str, str, str]]:
        """Return requests by transport, operation and code."""
        totals: Counter[tuple[str, str, str]] = Counter()
        if self.compiled is not None:
            answered = ("udp", self.compiled.counts()[0]), ("tcp", self.compiled.tcp_counts()[0])
            for transport_name, by_code in answered:
                for number, count in by_code.items():
                    totals[transport_name, RESOLUTION, _code_label(number)] += count
        for transport_name, responses in (("tcp", self._fast_responses), ("udp", self._udp_responses)):
            for code_bytes, count in responses.copy().items():
                if count:
                    totals[transport_name, RESOLUTION, _code_label(int.from_bytes(code_bytes, "big"))] += count
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
        dropped = self._dropped.copy()
        if self.compiled is not None:
            _, _, rate_limit, unsent, in_flight = self.compiled.counts()
            dropped.update({"rate_limit": rate_limit, "unsent": unsent, "in_flight": in_flight})
        return +dropped

    def limits(self) -> Counter[str]:
        """Return how often limits were reached."""
        limited = self._limited.copy()
        if self.compiled is not None:
            _, idle, exhausted = self.compiled.tcp_counts()
            limited.update({"slow_connection": idle, "descriptors": exhausted})
        return +limited


def _operation_label(opcode: OpCode) -> str:
    return OTHER if opcode is OpCode.RESERVED else opcode.name.lower()


def _code_label(code: int | None) -> str:
    if code is None:
        return NO_RESPONSE
    return ResponseCode(code).name.lower() if code in _RESPONSE_CODES else OTHER


COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric."""

    kind: str
    about: str
    labels: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()
    """Of a histogram: upper bounds of the buckets, in microseconds."""


FAMILIES: Final[Mapping[str, MetricFamily]] = {
    "perseid_build_info": MetricFamily(GAUGE, "Always 1; the label is the version of Perseid.", ("version",)),
    "perseid_ready": MetricFamily(GAUGE, "1 if the server is ready for requests, like /ready."),
    "perseid_accepts_changes": MetricFamily(
        GAUGE, "1 if changes are accepted; otherwise the log says why not, such as a full disk or the database."
    ),
    "perseid_requests_total": MetricFamily(
        COUNTER,
        "Requests of the native protocol by transport, operation and response code.",
        ("transport", "operation", "code"),
    ),
    "perseid_request_duration_seconds": MetricFamily(
        HISTOGRAM,
        "Duration of requests that were not answered from the answers view alone.",
        ("transport",),
        DURATION_BOUNDS,
    ),
    "perseid_http_requests_total": MetricFamily(
        COUNTER, "HTTP requests by method and status class.", ("transport", "method", "status")
    ),
    "perseid_tls_handshakes_total": MetricFamily(
        COUNTER, "TLS handshakes by result: `done`, or why they failed.", ("result",)
    ),
    "perseid_authentication_failures_total": MetricFamily(COUNTER, "Failed authentications.", ("transport",)),
    "perseid_udp_dropped_total": MetricFamily(COUNTER, "Datagrams that got no response, or a short one.", ("reason",)),
    "perseid_udp_sent_bytes_total": MetricFamily(COUNTER, "Bytes sent over UDP."),
    "perseid_limits_triggered_total": MetricFamily(COUNTER, "How often a limit was reached.", ("limit",)),
    "perseid_connections": MetricFamily(GAUGE, "Open TCP connections, including HTTP."),
    "perseid_http_connections": MetricFamily(GAUGE, "Open HTTP connections."),
    "perseid_sessions": MetricFamily(GAUGE, "Open sessions."),
    "perseid_challenges_pending": MetricFamily(GAUGE, "Challenges waiting for a response."),
    "perseid_state_entries": MetricFamily(GAUGE, "Entries in a table of the shared state.", ("table",)),
    "perseid_state_bytes": MetricFamily(GAUGE, "Bytes of a table of the shared state.", ("table",)),
    "perseid_pool_busy": MetricFamily(GAUGE, "Tasks running in a thread pool.", ("kind",)),
    "perseid_pool_waiting": MetricFamily(GAUGE, "Tasks waiting for a thread pool.", ("kind",)),
    "perseid_pool_done_total": MetricFamily(COUNTER, "Finished tasks.", ("kind",)),
    "perseid_pool_cpu_seconds_total": MetricFamily(COUNTER, "CPU seconds of finished tasks.", ("kind",)),
    "perseid_pool_refused_total": MetricFamily(
        COUNTER, "Refused tasks: the queue was full, or a budget was used up.", ("kind", "reason")
    ),
    "perseid_loop_lag_seconds": MetricFamily(
        HISTOGRAM, "Lag of the event loops, measured once a second.", (), LAG_BOUNDS
    ),
    "perseid_loop_last_tick_seconds": MetricFamily(
        GAUGE, "Seconds since the event loop that is most behind was last seen running."
    ),
    "perseid_ledger_entries": MetricFamily(GAUGE, "Entries in the ledger."),
    "perseid_ledger_checkpoint_entries": MetricFamily(GAUGE, "Entries covered by the last signed checkpoint."),
    "perseid_answers_lag_entries": MetricFamily(GAUGE, "Entries that the answers view has not applied yet."),
    "perseid_answers_ready": MetricFamily(
        GAUGE, "1 if the answers view is in use; otherwise resolution reads the records."
    ),
    "perseid_node_info": MetricFamily(
        GAUGE, "Always 1, for each node that shares the PostgreSQL database, with its version.", ("node", "version")
    ),
    "perseid_node_report_age_seconds": MetricFamily(
        GAUGE, "Seconds since a node has reported, which it does every 10 s.", ("node",)
    ),
    "perseid_node_lag_entries": MetricFamily(
        GAUGE, "Entries that the answers view of a node had not applied when it reported.", ("node",)
    ),
    "perseid_node_clock_difference_seconds": MetricFamily(
        GAUGE, "Seconds that the clock of a node is ahead of the clock of the database.", ("node",)
    ),
    "perseid_restarts_total": MetricFamily(COUNTER, "Restarted processes.", ("process",)),
    "perseid_log_lines_lost_total": MetricFamily(COUNTER, "Log lines that were lost because the reader was too slow."),
    "perseid_process_cpu_seconds_total": MetricFamily(COUNTER, "CPU seconds used.", ("process",)),
    "perseid_process_resident_memory_bytes": MetricFamily(GAUGE, "Resident memory.", ("process",)),
    "perseid_process_open_fds": MetricFamily(GAUGE, "Open file descriptors.", ("process",)),
    "perseid_scrape_errors_total": MetricFamily(COUNTER, "Metrics that could not be read during a scrape."),
}
"""All metrics by name."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Progress of the ledger and its views."""

    entries: int
    checkpoint: int
    """Entries covered by the last signed checkpoint."""
    applied: int
    """Entries that the answers view has applied."""
    ready: bool
    """Whether the answers view can be used and is being updated."""
    nodes: Sequence[NodeReport] = ()
    """The nodes that share the database."""


def get_ledger_state(ledger: "Ledger") -> LedgerState:
    """Read the state of a ledger from its database; blocks, so do not call it in an event loop."""
    with ledger.open_reader() as reader:
        entries, checkpoint = reader.size, reader.checkpoint_size() or 0
    ready = ledger.ready
    nodes = tuple(read_reports(ledger.log.store))
    return LedgerState(entries, checkpoint, ledger.answers.applied if ready else 0, ready, nodes)


def _empty() -> Mapping[str, int]:
    return {}


def _zero() -> int:
    return 0


def _yes() -> bool:
    return True


def _this_process() -> Mapping[str, int]:
    return {"worker-0": os.getpid()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Sources of numbers. All are called in the metrics thread, and may take some milliseconds."""

    counts: WorkerCounters
    ready: Callable[[], str]
    """Why the server should not get requests; empty if it should."""
    ledger: Callable[[], LedgerState]
    accepts_changes: Callable[[], bool] = _yes
    tick_age: Callable[[], float] = _zero
    """Seconds since the event loop that is most behind was last seen running."""
    other_workers: "Callable[[], Iterable[bytes]]" = tuple
    """What the other workers have published, and what earlier processes of this worker have."""
    connections: Callable[[], int] = _zero
    http_connections: Callable[[], int] = _zero
    handshakes: Callable[[], Mapping[str, int]] = _empty
    """TLS handshakes by result."""
    sessions: Callable[[], int] = _zero
    challenges: Callable[[], int] = _zero
    state: Callable[[], "Mapping[str, TableSize]"] = dict
    """Sizes of the tables of the shared state."""
    pools: Callable[[], "Mapping[WorkKind, PoolStats]"] = dict
    """Statistics of the thread pools, by kind of work."""
    limits: Callable[[], Mapping[str, int]] = _empty
    """Limits reached that are counted elsewhere than in `counts`."""
    restarts: Callable[[], Mapping[str, int]] = _empty
    """Restarts by kind of process."""
    lines_lost: Callable[[], int] = _zero
    processes: Callable[[], Mapping[str, int]] = _this_process
    """Names and ids of the server's processes, to read their numbers from /proc."""


_Samples: TypeAlias = dict[str, list[tuple[tuple[str, ...], list[float]]]]
"""Metrics by name: labels, and one number, or those of `Histogram.read`."""


def read_worker(sources: MetricSources) -> _Samples:
    """Return the numbers of this worker, which are added to those of the others."""
    counts = sources.counts
    limits = counts.limits()
    limits.update(sources.limits())
    pools = [(kind.value, stats) for kind, stats in sources.pools().items()]
    return {
        "perseid_requests_total": _samples(counts.requests()),
        "perseid_http_requests_total": _samples(counts.http_requests()),
        "perseid_tls_handshakes_total": _samples_by_label(sources.handshakes()),
        "perseid_authentication_failures_total": _samples_by_label(counts.authentication_failures()),
        "perseid_udp_dropped_total": _samples_by_label(counts.drops()),
        "perseid_udp_sent_bytes_total": _sample(counts.sent_udp_bytes()),
        "perseid_limits_triggered_total": _samples_by_label(limits),
        "perseid_connections": _sample(sources.connections()),
        "perseid_http_connections": _sample(sources.http_connections()),
        "perseid_pool_busy": _samples_by_label({kind: stats.busy for kind, stats in pools}),
        "perseid_pool_waiting": _samples_by_label({kind: stats.waiting for kind, stats in pools}),
        "perseid_pool_done_total": _samples_by_label({kind: stats.done for kind, stats in pools}),
        "perseid_pool_cpu_seconds_total": _samples_by_label({kind: stats.seconds for kind, stats in pools}),
        "perseid_pool_refused_total": _samples(
            {
                (kind, reason): count
                for kind, stats in pools
                for reason, count in (("full", stats.full), ("over_budget", stats.over_budget))
            }
        ),
        "perseid_log_lines_lost_total": _sample(sources.lines_lost()),
        "perseid_request_duration_seconds": [
            ((transport.name.lower(),), times.read()) for transport, times in counts.durations.items()
        ],
        "perseid_loop_lag_seconds": [((), counts.lags.read())],
    }


def encode_samples(samples: _Samples) -> bytes:
    """Encode the numbers of a worker for the others."""
    return msgspec.msgpack.encode(samples)


def keep_counters(published: bytes) -> bytes:
    """Return the part of published numbers that outlives their process: what never decreases."""
    counters = {name: rows for name, rows in decode_samples(published).items() if FAMILIES[name].kind is not GAUGE}
    return encode_samples(counters)


def decode_samples(published: bytes) -> _Samples:
    """Decode published numbers; none if they are of another version."""
    try:
        samples = msgspec.msgpack.decode(published, type=_Samples) if published else {}
    except msgspec.DecodeError:
        return {}
    return {name: rows for name, rows in samples.items() if name in FAMILIES}


def add_samples(parts: Iterable[_Samples]) -> _Samples:
    """Add up the numbers of all workers."""
    totals: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for part in parts:
        for name, rows in part.items():
            family = totals.setdefault(name, {})
            for labels, numbers in rows:
                known = family.get(labels)
                family[labels] = numbers if known is None else list(map(add, known, numbers))
    return {name: sorted(family.items()) for name, family in totals.items()}


def _sample(number: float) -> list[tuple[tuple[str, ...], list[float]]]:
    return [((), [number])]


def _samples(counts: Mapping[Any, float]) -> list[tuple[tuple[str, ...], list[float]]]:
    return sorted((labels, [count]) for labels, count in counts.items())


def _samples_by_label(counts: Mapping[str, float]) -> list[tuple[tuple[str, ...], list[float]]]:
    return _samples({(label,): count for label, count in counts.items()})
